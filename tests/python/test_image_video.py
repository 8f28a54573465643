"""image beside FFmpeg, torch and openpi: as close as docs/guides/images.md says."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from recordings import shared

import robocache as rc

# ---- FFmpeg: YUV to RGB on the shared video

SITINGS = {"left": ":in_h_chr_pos=0:in_v_chr_pos=128", "center": ""}  # its default for video that does not say


def by_ffmpeg(av, frame, siting: str) -> np.ndarray:
    graph = av.filter.Graph()
    steps = [
        graph.add_buffer(width=frame.width, height=frame.height, format=frame.format, time_base=frame.time_base),
        graph.add("scale", "flags=bilinear+accurate_rnd+full_chroma_int" + SITINGS[siting]),
        graph.add("format", "rgb24"),
        graph.add("buffersink"),
    ]
    for before, after in itertools.pairwise(steps):
        before.link_to(after)
    graph.configure()
    graph.push(frame)
    return graph.pull().to_ndarray()


def planes_of(frame) -> tuple[np.ndarray, ...]:
    return tuple(
        np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[: plane.height, : plane.width]
        for plane in frame.planes
    )


@pytest.mark.parametrize("siting", SITINGS)
def test_rgb_is_that_of_ffmpeg(siting):
    av = pytest.importorskip("av")
    (path,) = (shared("lerobot-v3-so101") / "videos").rglob("*.mp4")
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        for number, frame in enumerate(container.decode(stream)):
            if number % 60 == 0:
                made = rc.image(planes_of(frame), yuv_siting=siting)
                far = np.abs(made.astype(int) - by_ffmpeg(av, frame, siting))
                assert (far <= 1).mean() > 0.9999
                assert far.max() <= 2
                other = rc.image(planes_of(frame), yuv_siting="center" if siting == "left" else "left")
                far = np.abs(other.astype(int) - by_ffmpeg(av, frame, siting))
                assert (far <= 2).mean() > 0.994
            if number == 240:
                break


@pytest.mark.parametrize("subsampling", ["yuv420p", "yuv422p", "nv12"])
@pytest.mark.parametrize(("matrix", "range"), [("bt601", "limited"), ("bt709", "full"), ("bt2020", "limited")])
def test_any_yuv_is_that_of_ffmpeg(subsampling, matrix, range):
    """Smooth colours, with the matrix and the range said. Strong ones overflow in FFmpeg: blue past 255 becomes 0."""
    av = pytest.importorskip("av")
    frame = av.VideoFrame(128, 90, subsampling)
    for plane, (a, b) in zip(frame.planes, ((1.0, 0.7), (0.9, -0.4), (-0.3, 1.1)), strict=False):
        rows, bytes_ = plane.height, plane.line_size
        v, u = np.mgrid[0:rows, 0:bytes_]
        plane.update((128 + 30 * np.sin(a * v / 9) + 30 * np.cos(b * u / 11)).astype(np.uint8).tobytes())
    spaces = {"bt601": 5, "bt709": 1, "bt2020": 9}
    frame.colorspace, frame.color_range = spaces[matrix], {"limited": 1, "full": 2}[range]
    frame.time_base = Fraction(1, 30)
    planes = planes_of(frame)
    if subsampling == "nv12":
        planes = (planes[0], np.frombuffer(frame.planes[1], np.uint8).reshape(45, -1)[:, :128].reshape(45, 64, 2))
    made = rc.image(planes, yuv_matrix=matrix, yuv_range=range, yuv_siting="center")
    far = np.abs(made.astype(int) - by_ffmpeg(av, frame, "center"))
    assert (far <= 2).mean() > 0.999


# ---- other resizes


def scene(height: int, width: int) -> np.ndarray:
    """Smooth light, sharp edges and noise, as a camera gives them."""
    random = np.random.default_rng(3)
    y, x = np.mgrid[0:height, 0:width]
    light = 120 + 80 * np.sin(x / 37) * np.cos(y / 23)
    light = np.where((x // 40 + y // 30) % 2 == 0, light, 255 - light)[..., None] + random.normal(
        0, 6, (height, width, 3)
    )
    return np.clip(light, 0, 255).astype(np.uint8)


@pytest.mark.parametrize("filter", ["bilinear", "bicubic"])
def test_torch_antialias_is_within_one(filter):
    """What torchvision's resize(antialias=True) calls, for uint8 tensors and for floats."""
    torch = pytest.importorskip("torch")
    frame = scene(480, 640)
    planar = torch.from_numpy(frame).permute(2, 0, 1)[None]
    resize = torch.nn.functional.interpolate
    theirs = resize(planar, (224, 224), mode=filter, antialias=True)[0].permute(1, 2, 0).numpy()
    made = rc.image(frame, (224, 224), filter=filter).astype(int)
    far = np.abs(made - theirs)
    assert far.max() <= 1
    assert (far == 0).mean() > 0.995
    floats = resize(planar.float(), (224, 224), mode=filter, antialias=True)[0].permute(1, 2, 0)
    far = np.abs(made - np.clip(np.round(floats.numpy()), 0, 255))
    assert far.max() <= 1
    assert (far == 0).mean() > 0.83


FRAMES = {
    "noise": lambda random, size: random.integers(0, 256, (*size, 3), dtype=np.uint8),
    "black and white": lambda random, size: (random.integers(0, 2, (*size, 3)) * 255).astype(np.uint8),
}


@pytest.mark.parametrize("kind", FRAMES)
@pytest.mark.parametrize(
    ("before", "after"),
    [((480, 640), (256, 256)), ((100, 120), (96, 96)), ((37, 411), (64, 50)), ((100, 120), (224, 224))],
)
def test_torch_antialias_of_the_hardest_frames(kind, before, after):
    torch = pytest.importorskip("torch")
    frame = FRAMES[kind](np.random.default_rng(5), before)
    planar = torch.from_numpy(frame).permute(2, 0, 1)[None]
    for filter, over in (("bilinear", 1), ("bicubic", 30)):
        made = rc.image(frame, after, filter=filter).astype(int)

        def far(given, made=made, filter=filter):
            theirs = torch.nn.functional.interpolate(given, after, mode=filter, antialias=True)[0].permute(1, 2, 0)
            return np.abs(made - np.clip(np.round(theirs.numpy().astype(float)), 0, 255))

        assert far(planar).max() <= 2
        assert (far(planar) == 0).mean() > 0.94
        assert far(planar.float()).max() <= over


def with_pad(height: int, width: int, size: int) -> tuple[int, int]:
    """The inner size of openpi's resize_with_pad, which rounds down."""
    ratio = max(width / size, height / size)
    return int(height / ratio), int(width / ratio)


def test_openpi_resize_with_pad_of_usual_cameras():
    """openpi-client resizes by Pillow, one call for both axes; the sizes agree for the usual cameras."""
    Image = pytest.importorskip("PIL.Image")
    for height, width in ((480, 640), (360, 640), (720, 1280), (240, 320), (256, 256)):
        inner = with_pad(height, width, 224)
        frame = scene(height, width)
        picture = Image.fromarray(frame).resize(inner[::-1], Image.Resampling.BILINEAR)
        expected = np.zeros((224, 224, 3), np.uint8)
        top, left = (224 - inner[0]) // 2, (224 - inner[1]) // 2
        expected[top : top + inner[0], left : left + inner[1]] = np.asarray(picture)
        np.testing.assert_array_equal(rc.image(frame, (224, 224), fit="contain"), expected)


def test_openpi_resize_with_pad_in_jax():
    jax = pytest.importorskip("jax")
    frame = scene(480, 640)
    inner = with_pad(480, 640, 224)
    resized = jax.image.resize(jax.numpy.asarray(frame, jax.numpy.float32), (*inner, 3), "linear")
    far = np.abs(rc.image(frame, inner).astype(int) - np.clip(np.round(np.asarray(resized)), 0, 255))
    assert far.max() <= 1
    assert (far == 0).mean() > 0.88
