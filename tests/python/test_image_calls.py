"""image's arguments: what each library's arrays give, and the sentences for bad input."""

from __future__ import annotations

import calling
import numpy as np
import pytest
from test_errors import says

import robocache as rc

FRAMES = (np.arange(2 * 6 * 8 * 3) * 7 % 256).astype(np.uint8).reshape(2, 6, 8, 3)
DEPTH = np.arange(48, dtype=np.uint16).reshape(6, 8)
PLANES = (FRAMES[0, :, :, 0], FRAMES[0, :3, :4, 1], FRAMES[0, :3, :4, 2])


def wrong(*parts: str, error: type[Exception] = ValueError, frames=FRAMES, **options):
    says(error, ("image: ", *parts), rc.image, frames, **options)


# ---- sentences


def test_frames_that_are_none():
    wrong("frames is of type list", error=TypeError, frames=[1, 2])
    wrong(
        "frames are float32; they must be uint8 pixels, or uint16 depth", error=TypeError, frames=FRAMES / np.float32(2)
    )
    wrong("frames have shape [6, 8]; expected [..., H, W, C]", frames=FRAMES[0, :, :, 0])
    wrong("have 8 channels", "1, 3 or 4 channels", "must be permuted", frames=FRAMES.transpose(0, 3, 1, 2))
    wrong("frames are 0 pixels high; expected 1 to 32768", frames=FRAMES[:, :0])
    wide = np.lib.stride_tricks.as_strided(FRAMES, (1, 32769, 3), (0, 0, 1))
    wrong("frames are 32769 pixels wide; expected 1 to 32768", frames=wide)


def test_planes_that_do_not_fit():
    wrong("frames are a tuple of 1 arrays; expected (y, u, v) or (y, uv)", frames=PLANES[:1])
    wrong("u has shape [6, 8]", "(4:2:0) or", "(4:2:2)", frames=(PLANES[0], PLANES[0], PLANES[0]))
    wrong("uv has shape [3, 4]", "expected [3, 4, 2]", frames=PLANES[:2])
    wrong("luma is uint16", error=TypeError, frames=(DEPTH, *PLANES[1:]))
    wrong("yuv_matrix is 'ntsc'; expected bt601, bt709 or bt2020", frames=PLANES, yuv_matrix="ntsc")
    wrong("yuv_range is 'tv'; expected limited or full", frames=PLANES, yuv_range="tv")
    wrong("yuv_siting is 'top'; expected left or center", frames=PLANES, yuv_siting="top")


def test_sizes_and_places():
    wrong("size is (0, 4); expected 1 to 32768", size=(0, 4))
    wrong("size is 224; expected (height, width)", error=TypeError, size=224)
    wrong("size is 2.5; expected an int", error=TypeError, size=(2.5, 4))
    wrong("fit is 'fill'; expected stretch, cover or contain", fit="fill")
    wrong("filter is 'lanczos'; expected bilinear, box, bicubic or nearest", filter="lanczos")
    wrong("filter bicubic would mix near and far in depth", frames=DEPTH, filter="bicubic")
    wrong("box has 7 rows, and there are 6", box=(0, 0, 7, 8))
    wrong("box is (1, 2); expected (top, left, height, width)", error=TypeError, box=(1, 2))
    wrong("crop has 9 columns, and there are 8", crop=(3, 9))
    wrong("crop is (1, 2, 3); expected (height, width) of the middle, or", error=TypeError, crop=(1, 2, 3))
    wrong("give crop = (height, width)", crop_offsets=[[0, 0], [0, 0]])
    wrong("crop_offsets has shape [1, 2]; expected [2, 2]", crop=(2, 2), crop_offsets=[[0, 0]])
    wrong("crop_offsets[1][1] = 7 is outside 0..6, where the crop", crop=(2, 2), crop_offsets=[[0, 0], [0, 7]])
    wrong("layout is 'hwc'; expected nhwc or nchw", layout="hwc")


def test_values():
    wrong("dtype is float64; expected uint8, float16, bfloat16 or float32", error=TypeError, dtype="float64")
    wrong("dtype is 'float'", error=TypeError, dtype="float")
    wrong("mean and std need a dtype of floats", mean=0.5)
    wrong("mean has 2 values; expected one, or one for each of 3 channels", dtype="float32", mean=(0.5, 0.5))
    wrong("std is 0; it must be positive", dtype="float32", std=0)
    wrong("pad is 256; expected 0 to 255", pad=256)
    wrong("pad is 0.5; expected an int", error=TypeError, pad=0.5)


def test_rows():
    wrong("rows[1] = 2 is outside 0..1, the frames that there are", rows=[0, 2])
    wrong("rows[0] = -1 is outside 0..1", rows=[-1])
    wrong("rows is float64; it must be int64 or int32", error=TypeError, rows=np.zeros(2))
    wrong("rows choose frames of a stack", frames=FRAMES[0], rows=[0])


def test_out():
    wrong("out is float32; expected uint8", error=TypeError, out=np.zeros((2, 6, 8, 3), np.float32))
    wrong("out has shape [6, 8, 3]; expected [2, 6, 8, 3]", out=np.zeros((6, 8, 3), np.uint8))
    frames = FRAMES.copy()
    wrong("out overlaps frames", frames=frames, out=frames)
    frames.setflags(write=False)
    wrong("out is read-only", out=frames)


def test_a_fault_on_a_gpu_is_raised_afterwards(cuda):
    made = rc.image(cuda(FRAMES), rows=cuda(np.array([1, 5])))
    says(ValueError, ("image: rows[1] = 5 is outside 0..1",), rc.synchronize)
    np.testing.assert_array_equal(calling.to_numpy(made)[0], FRAMES[1])


# ---- libraries


def test_jax():
    jax = pytest.importorskip("jax")
    made = rc.image(jax.numpy.asarray(FRAMES), (3, 4), dtype="float32", layout="nchw", rows=[1])
    assert isinstance(made, jax.Array)
    np.testing.assert_array_equal(np.asarray(made), rc.image(FRAMES, (3, 4), dtype="float32", layout="nchw", rows=[1]))


def test_cupy(cuda):
    cupy = pytest.importorskip("cupy", reason="cupy is not installed")
    made = rc.image(cupy.asarray(FRAMES), (3, 4), rows=[1, 1])
    assert type(made) is cupy.ndarray
    np.testing.assert_array_equal(made.get(), rc.image(FRAMES, (3, 4), rows=[1, 1]))


def test_torch():
    torch = pytest.importorskip("torch")
    frames = torch.from_numpy(FRAMES)
    made = rc.image(frames, (3, 4), dtype=torch.bfloat16, mean=torch.tensor([0.5, 0.4, 0.3]), std=np.float32(0.25))
    assert (made.dtype, made.requires_grad) == (torch.bfloat16, False)
    expected = rc.image(FRAMES, (3, 4), dtype="bfloat16", mean=(0.5, np.float32(0.4), np.float32(0.3)), std=0.25)
    np.testing.assert_array_equal(made.view(torch.int16).numpy(), expected.view(np.int16))
    depth = rc.image(torch.from_numpy(DEPTH), (3, 4))
    assert depth.dtype == torch.uint16
    out = torch.empty(2, 3, 3, 4)
    version = out._version
    assert rc.image(frames, (3, 4), dtype="float32", layout="nchw", out=out) is out
    assert out._version > version
    channels_last = torch.from_numpy(FRAMES.transpose(0, 3, 1, 2).copy())  # as torchcodec gives frames
    np.testing.assert_array_equal(rc.image(channels_last.permute(0, 2, 3, 1), (3, 4)), rc.image(FRAMES, (3, 4)))


def test_torch_fakes_have_the_shape_of_the_result():
    torch = pytest.importorskip("torch")
    frames = torch.from_numpy(FRAMES)
    planes = tuple(torch.from_numpy(np.ascontiguousarray(plane)) for plane in PLANES)
    for given, options in (
        (frames, {"size": (3, 4), "crop": (2, 1), "layout": "nchw"}),
        (frames, {"box": (1, 1, 4, 5), "dtype": torch.float16}),
        (planes, {"layout": "nchw"}),
        (torch.from_numpy(DEPTH), {"layout": "nchw", "size": (4, 4)}),
        (frames, {"rows": [1, 0, 1]}),
    ):
        made = rc.image(given, **options)
        meta = tuple(part.to("meta") for part in given) if isinstance(given, tuple) else given.to("meta")
        if "rows" in options:
            options = {**options, "rows": torch.tensor(options["rows"], device="meta")}
        like = rc.image(meta, **options)
        assert (like.shape, like.dtype) == (made.shape, made.dtype)


def test_torch_sentences():
    torch = pytest.importorskip("torch")
    frames = torch.from_numpy(FRAMES)
    wrong("size is (0, 4)", frames=frames, size=(0, 4), backend="torch")
    wrong("rows[0] = 7 is outside 0..1", frames=frames, rows=[7], backend="torch")
    wrong("out is torch.float32", "expected torch.uint8", frames=frames, out=torch.empty(2, 6, 8, 3), backend="torch")
    with pytest.raises(ValueError, match=r"image: torch\.vmap cannot go through it"):
        torch.vmap(lambda part: rc.image(part))(frames)
    with pytest.raises(TypeError, match="image: v is a NumPy array, but y is a torch tensor"):
        rc.image((torch.from_numpy(PLANES[0].copy()), torch.from_numpy(PLANES[1].copy()), PLANES[2]))


def test_cuda_graph(cuda):
    torch = pytest.importorskip("torch")
    frames, rows = cuda(FRAMES), cuda(np.array([1, 0, 1]))
    out = torch.empty(3, 3, 5, 5, dtype=torch.bfloat16, device="cuda")
    call = lambda: rc.image(frames, (5, 5), rows=rows, dtype="bfloat16", layout="nchw", out=out)  # noqa: E731
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    frames.copy_(255 - frames)
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    expected = rc.image(255 - FRAMES, (5, 5), rows=[1, 0, 1], dtype="bfloat16", layout="nchw")
    np.testing.assert_array_equal(out.view(torch.int16).cpu().numpy(), expected.view(np.int16))
