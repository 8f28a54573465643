"""image against its judges: Pillow for resized bytes, and NumPy for what is done around it.

Pillow is called one axis a call, because which axis it takes first in one call differs between its versions.
"""

from __future__ import annotations

import functools

import calling
import frame_oracle
import image_cases as cases
import numpy as np
import pytest

import robocache as rc

Image = pytest.importorskip("PIL.Image")
hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

FILTERS = {"bilinear": Image.Resampling.BILINEAR, "box": Image.Resampling.BOX, "bicubic": Image.Resampling.BICUBIC}
MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def by_pillow(frame: np.ndarray, size: tuple[int, int], filter: str) -> np.ndarray:
    """Each channel by itself: Pillow would multiply RGB by alpha."""
    height, width = size
    channels = []
    for c in range(frame.shape[2]):
        picture = Image.fromarray(frame[:, :, c])
        picture = picture.resize((width, picture.height), FILTERS[filter]).resize((width, height), FILTERS[filter])
        channels.append(np.asarray(picture))
    return np.stack(channels, axis=-1)


@functools.cache
def noise(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    """Bytes of which a quarter are 0 or 255, so that bicubic overshoots."""
    random = np.random.default_rng(seed + height * 10007 + width)
    frame = random.integers(0, 256, (height, width, channels), np.uint8)
    frame[random.random((height, width)) < 0.12] = 0
    frame[random.random((height, width)) < 0.12] = 255
    return frame


# ---- one table, every backend


every_case = pytest.mark.parametrize("name", list(cases.BY_NAME))


def same(made: cases.Outputs, name: str, what: str) -> None:
    calling.assert_same_bytes(made[0], cases.reference(name)[0], f"{name}: {what}")


@every_case
def test_cpu_equals_reference(name, simd):
    same(cases.outputs(cases.problem_of(name), "cpu"), name, simd)


@every_case
def test_cuda_equals_reference(name, cuda):
    same(cases.outputs(cases.problem_of(name), "cuda", cuda), name, "cuda")


@every_case
def test_torch_tensors_are_served_by_the_engine(name):
    pytest.importorskip("torch")
    same(cases.outputs(cases.problem_of(name), None, calling.to_torch), name, "torch tensors")


@every_case
def test_portable_equals_reference(name):
    pytest.importorskip("torch")
    same(cases.outputs(cases.problem_of(name), "torch", calling.to_torch), name, "portable")


@every_case
def test_portable_on_cuda(name, cuda):
    same(cases.outputs(cases.problem_of(name), "torch", cuda), name, "portable on cuda")


# ---- Pillow


SIZES = [
    ((1, 1), (1, 1)), ((1, 1), (7, 5)), ((5, 7), (1, 1)), ((2, 3), (3, 2)), ((2, 2), (4096, 1)), ((1, 4096), (1, 1)),
    ((4096, 3), (2, 3)), ((3, 4096), (3, 4095)), ((3, 4095), (3, 4096)), ((480, 640), (224, 224)),
    ((224, 224), (480, 640)), ((720, 1280), (256, 256)), ((100, 100), (100, 33)), ((100, 100), (33, 100)),
    ((17, 31), (17, 31)), ((64, 64), (63, 65)),
]  # fmt: skip


@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize(("before", "after"), SIZES)
def test_bytes_are_those_of_pillow(before, after, filter):
    frame = noise(*before)
    np.testing.assert_array_equal(rc.image(frame, after, filter=filter), by_pillow(frame, after, filter))


@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize(
    ("before", "after"), [((4096, 4096), (2, 2)), ((2, 2), (4096, 4096)), ((4096, 4096), (224, 300))]
)
def test_large_frames_are_those_of_pillow(before, after, filter):
    frame = noise(*before, channels=1)
    np.testing.assert_array_equal(rc.image(frame, after, filter=filter), by_pillow(frame, after, filter))


side = st.one_of(st.integers(1, 40), st.integers(1, 300))


@hypothesis.given(
    before=st.tuples(side, side), after=st.tuples(side, side), filter=st.sampled_from(list(FILTERS)),
    channels=st.sampled_from([1, 3, 4]), backend=st.sampled_from(["reference", "cpu"]),
)  # fmt: skip
@hypothesis.settings(max_examples=300)
def test_any_size_is_that_of_pillow(before, after, filter, channels, backend):
    frame = noise(*before, channels=channels)
    made = rc.image(frame, after, filter=filter, backend=backend)
    np.testing.assert_array_equal(made, by_pillow(frame, after, filter))


@hypothesis.given(box=st.integers(1, 4096), resized=st.integers(1, 4096), filter=st.sampled_from(list(FILTERS)))
@hypothesis.settings(max_examples=300)
def test_every_length_is_that_of_pillow(box, resized, filter):
    """Along one axis up to 4,096 pixels: steps between 0 and 255 show every weight."""
    frame = noise(1, box, channels=1)
    made = rc.image(frame, (1, resized), filter=filter)
    np.testing.assert_array_equal(made, by_pillow(frame, (1, resized), filter))


def test_a_box_is_a_slice():
    frame = noise(60, 80)
    made = rc.image(frame, (20, 30), box=(5, 7, 41, 50))
    np.testing.assert_array_equal(made, by_pillow(np.ascontiguousarray(frame[5:46, 7:57]), (20, 30), "bilinear"))


# ---- YUV, by the formula in NumPy


@hypothesis.given(
    size=st.tuples(st.integers(1, 9), st.integers(1, 70)), layout=st.sampled_from(["420", "422", "nv12", "nv16"]),
    matrix=st.sampled_from(list(frame_oracle.WEIGHTS)), range=st.sampled_from(["limited", "full"]),
    siting=st.sampled_from(["left", "center"]), seed=st.integers(0, 99), backend=st.sampled_from(["reference", "cpu"]),
)  # fmt: skip
@hypothesis.settings(max_examples=300)
def test_yuv_of_any_size_is_the_formula(size, layout, matrix, range, siting, seed, backend):
    """Odd sides too, whose last chroma sample has one pixel; all bytes, also those that overflow before the clamp."""
    (height, width), random = size, np.random.default_rng(seed)
    rows = (height + 1) // 2 if layout in ("420", "nv12") else height
    y = random.choice([0, 16, 235, 255, *random.integers(0, 256, 9)], (height, width)).astype(np.uint8)
    uv = random.choice([0, 128, 255, *random.integers(0, 256, 9)], (rows, (width + 1) // 2, 2)).astype(np.uint8)
    u, v = uv[..., 0], uv[..., 1]
    frames = (y, uv) if layout.startswith("nv") else (y, u, v)
    colour = {"yuv_matrix": matrix, "yuv_range": range, "yuv_siting": siting}
    expected = frame_oracle.rgb_of(y, u, v, matrix, range == "full", siting == "left")
    np.testing.assert_array_equal(rc.image(frames, backend=backend, **colour), expected)
    resized = rc.image(frames, (5, 6), box=(0, width // 3, height, width - width // 3), backend=backend, **colour)
    np.testing.assert_array_equal(resized, by_pillow(expected[:, width // 3 :], (5, 6), "bilinear"))


# ---- fit and crop, by the rule in words


@hypothesis.given(before=st.tuples(side, side), after=st.tuples(side, side), fit=st.sampled_from(["cover", "contain"]))
def test_fit_is_a_resize_and_a_place(before, after, fit):
    (h, w), (height, width) = before, after
    frame = noise(h, w)
    wide = width * h > height * w  # the size is wider than the frame
    inner = list(after)
    if wide == (fit == "cover"):
        inner[0] = max((2 * h * width + w) // (2 * w), 1)
    else:
        inner[1] = max((2 * w * height + h) // (2 * h), 1)
    hypothesis.assume(max(inner) <= 4096)
    whole = by_pillow(frame, tuple(inner), "bilinear")
    if fit == "cover":
        top, left = ((a - b) // 2 for a, b in zip(inner, after, strict=True))
        expected = whole[top : top + height, left : left + width]
    else:
        expected = np.empty((height, width, 3), np.uint8)
        expected[:] = (1, 2, 3)
        top, left = ((b - a) // 2 for a, b in zip(inner, after, strict=True))
        expected[top : top + inner[0], left : left + inner[1]] = whole
    np.testing.assert_array_equal(rc.image(frame, after, fit=fit, pad=(1, 2, 3)), expected)


def test_crops():
    frames = np.stack([noise(40, 50, seed=k) for k in range(3)])
    whole = rc.image(frames, (30, 31))
    np.testing.assert_array_equal(rc.image(frames, (30, 31), crop=(11, 12)), whole[:, 9:20, 9:21])
    np.testing.assert_array_equal(rc.image(frames, (30, 31), crop=(2, 3, 11, 12)), whole[:, 2:13, 3:15])
    offsets = [(0, 0), (19, 19), (5, 7)]
    expected = np.stack([frame[t : t + 11, left : left + 12] for frame, (t, left) in zip(whole, offsets, strict=True)])
    np.testing.assert_array_equal(rc.image(frames, (30, 31), crop=(11, 12), crop_offsets=offsets), expected)


def test_nearest():
    frame = noise(23, 41)
    y, x = ((2 * np.arange(n) + 1) * m // (2 * n) for n, m in ((10, 23), (77, 41)))
    np.testing.assert_array_equal(rc.image(frame, (10, 77), filter="nearest"), frame[y][:, x])


# ---- floats, rows, layouts


def fused(x: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """fma(x, a, b) in float32, exactly: by Python's fractions, for each of 256 values."""
    from fractions import Fraction

    def one(value: int, a: np.float32, b: np.float32) -> np.float32:
        exact = Fraction(value) * Fraction(float(a)) + Fraction(float(b))
        near = np.float32(float(exact))  # double rounding is looked for below
        return min((np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf))),
                   key=lambda f: (abs(Fraction(float(f)) - exact), int(f.view(np.uint32)) & 1))  # fmt: skip

    a, b = (1 / (255 * std)).astype(np.float32), (-mean / std).astype(np.float32)
    table = np.array([[one(value, a[c], b[c]) for c in range(len(a))] for value in range(256)], np.float32)
    return np.stack([table[x[..., c], c] for c in range(len(a))], axis=-1)


MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def test_floats_are_fused_and_rounded_once(backend):
    kind, convert = backend
    frames = noise(16, 48)[None]
    expected = fused(frames, np.array(MEAN), np.array(STD))
    for dtype in ("float32", "float16"):
        made = calling.to_numpy(rc.image(convert(frames), dtype=dtype, mean=MEAN, std=STD, layout="nchw", backend=kind))
        np.testing.assert_array_equal(made, expected.astype(dtype).transpose(0, 3, 1, 2))


def test_bfloat16():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    frame = noise(16, 48)
    made = rc.image(frame, dtype="bfloat16", mean=MEAN, std=STD)
    expected = fused(frame, np.array(MEAN), np.array(STD)).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(made.view(np.uint16), expected.view(np.uint16))


def test_floats_are_0_to_1_by_default():
    made = rc.image(noise(8, 8), dtype="float32")
    assert made.dtype == np.float32
    assert (made.min(), made.max()) == (0, 1)


def test_rows_choose_frames(backend):
    kind, convert = backend
    stack = np.stack([noise(20, 24, seed=k) for k in range(4)])
    rows = [3, 0, 3, 2, 1]
    made = rc.image(convert(stack), (8, 9), rows=rows, layout="nchw", backend=kind)
    expected = np.stack([by_pillow(stack[row], (8, 9), "bilinear") for row in rows]).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(calling.to_numpy(made), expected)
    nothing = rc.image(convert(stack), (8, 9), rows=np.zeros(0, np.int64), backend=kind)
    assert tuple(nothing.shape) == (0, 8, 9, 3)


def test_strides_and_out():
    planar = np.ascontiguousarray(np.stack([noise(40, 48, seed=k) for k in range(4)]).transpose(0, 3, 1, 2))
    frames = planar.transpose(0, 2, 3, 1)[::2, ::-1, ::3]
    expected = np.stack([by_pillow(np.ascontiguousarray(frame), (10, 11), "bilinear") for frame in frames])
    np.testing.assert_array_equal(rc.image(frames, (10, 11)), expected)
    batch = np.zeros((2, 3, 10, 22), np.uint8)  # out may be a part of a larger array
    assert rc.image(frames, (10, 11), layout="nchw", out=batch[:, :, :, ::2]) is not None
    np.testing.assert_array_equal(batch[:, :, :, ::2], expected.transpose(0, 3, 1, 2))
    assert not batch[:, :, :, 1::2].any()


# ---- depth

short = st.integers(1, 24)


def test_depth_means_the_readings_that_there_are(backend):
    kind, convert = backend
    random = np.random.default_rng(5)
    depth = random.integers(1, 9000, (2, 30, 50)).astype(np.uint16)
    depth[random.random(depth.shape) < 0.4] = 0
    depth[0, :10, :10] = 0
    if kind == "cuda":
        pytest.importorskip("torch")
    made = calling.to_numpy(rc.image(convert(depth), (6, 10), filter="box", backend=kind))
    for f in range(2):
        for y in range(6):
            for x in range(10):
                part = depth[f, 5 * y : 5 * y + 5, 5 * x : 5 * x + 5]
                readings = part[part > 0].astype(int)
                expected = (2 * readings.sum() + len(readings)) // (2 * len(readings)) if len(readings) else 0
                assert made[f, y, x] == expected
    near = calling.to_numpy(rc.image(convert(depth), (6, 10), backend=kind))
    np.testing.assert_array_equal(near, depth[:, 2::5, 2::5])


def test_depth_as_floats():
    depth = np.array([[0, 1000, 65535]], np.uint16)
    made = rc.image(depth, dtype="float32", std=1000)
    np.testing.assert_array_equal(made, np.array([[0, 1, 65.535]], np.float32))


def test_depth_box_windows_are_those_of_pillow():
    """Which readings a pixel averages: of a frame with one reading, Pillow's box is not 0 exactly there."""
    for box, resized in ((7, 3), (10, 4), (13, 13), (5, 9), (97, 31)):
        for at in range(box):
            depth = np.zeros((1, box), np.uint16)
            depth[0, at] = 255
            light = depth.astype(np.uint8)[..., None]
            seen = rc.image(depth, (1, resized), filter="box")[0] > 0
            np.testing.assert_array_equal(seen, by_pillow(light, (1, resized), "box")[0, :, 0] > 0)


@hypothesis.given(before=st.tuples(short, short), after=st.tuples(short, short), seed=st.integers(0, 99))
def test_depth_box_is_the_mean_of_the_readings_that_pillow_weighs(before, after, seed):
    """Windows that share pixels, too. With one light row in a frame, Pillow's box is over 0 where it has a weight."""

    def windows(box, resized):
        light = np.eye(box, dtype=np.uint8)[..., None] * 255
        return by_pillow(light, (box, resized), "box")[..., 0].T > 0

    random = np.random.default_rng(seed)
    depth = random.integers(1, 65536, before).astype(np.uint16)
    depth[random.random(before) < 0.4] = 0
    expected = np.zeros(after, np.uint16)
    for y, rows in enumerate(windows(before[0], after[0])):
        for x, columns in enumerate(windows(before[1], after[1])):
            readings = depth[rows][:, columns].astype(int)
            count = (readings > 0).sum()
            expected[y, x] = (2 * readings.sum() + count) // (2 * count) if count else 0
    for backend in ("reference", "cpu"):
        np.testing.assert_array_equal(rc.image(depth, after, filter="box", backend=backend), expected)
