"""Camera frames into a policy's tensor: image.

Nothing here computes. The engine (robocache._core) serves arrays that have memory. For everything else it returns
NotImplemented, and robocache._torch.image serves the call: tensors without memory, other devices. While torch.compile
traces, robocache._torch.image serves every call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from robocache import _core
from robocache._align import tracing
from robocache._arrays import beside


def image(
    frames: Any,
    size: tuple[int, int] | None = None,
    *,
    fit: str = "stretch",
    filter: str | None = None,
    pad: int | Sequence[int] = 0,
    crop: tuple[int, int] | tuple[int, int, int, int] | None = None,
    dtype: Any = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    layout: str = "nhwc",
    rows: Any = None,
    box: tuple[int, int, int, int] | None = None,
    crop_offsets: Any = None,
    yuv_matrix: str | None = None,
    yuv_range: str = "limited",
    yuv_siting: str = "left",
    out: Any = None,
    check: bool = True,
    backend: str | None = None,
) -> Any:
    """Camera frames into a policy's tensor, in one pass: YUV to RGB, box, fit and resize, crop, float.

    Every backend gives the same bits. Resized uint8 frames have the bytes of Pillow's `Image.resize`, one axis a call.
    There is no gradient, because frames are integers. CUDA calls do not wait, except to copy lists and NumPy arrays to
    the GPU. What the checks find on a GPU is raised by the next call or by `rc.synchronize()`.

    Args:
        frames: uint8 [..., H, W, C] with 1, 3 or 4 channels, each by itself (alpha is not premultiplied). Or depth:
            uint16 [..., H, W], where 0 means no reading. Or the uint8 planes of a video frame as a tuple: (y, u, v), or
            (y, uv) with [..., h, w, 2] (NV12), where y is [..., H, W] and chroma has half the columns (4:2:2), or half
            the rows and columns (4:2:0), rounded up. Sides of 1 to 32,768 pixels; any strides.
        size: (height, width) to resize to. Default: no resize.
        fit: "stretch" to the size; "cover" keeps the proportions and cuts what is left over, equally on both sides;
            "contain" keeps the proportions and fills the rest with `pad`.
        filter: "bilinear", "box" or "bicubic", widened where the frame shrinks so that they do not alias, or "nearest".
            Default: "bilinear". Depth: "nearest", its default, or "box", the mean of the readings that are not 0.
        pad: The value around a contained frame, as in the input: one, or one for each channel.
        crop: What is kept after the resize: (height, width) of the middle, or (top, left, height, width).
        dtype: "uint8" (depth: "uint16"), the default, or "float16", "bfloat16" or "float32".
        mean: Floats become (x / 255 - mean) / std, of depth (x - mean) / std. One, or one for each channel. Default: 0.
        std: See mean. Default: 1.
        layout: "nhwc" for [..., H, W, C], or "nchw" for [..., C, H, W]. Depth has no channel axis in either.
        rows: [R] int32 or int64: output frame r is frame rows[r] of a stack [N, H, W, C]. May be a list.
        box: (top, left, height, width): the part of the frames that is used, before anything else but YUV to RGB.
        crop_offsets: [R, 2] int32 or int64: the (top, left) of each output frame's crop, in place of the middle; R is
            the product of the leading dimensions. May be a list.
        yuv_matrix: "bt601", "bt709" or "bt2020". Default: bt709 from 720 lines on, else bt601.
        yuv_range: "limited" (luma in 16..235), as video is unless it says otherwise, or "full".
        yuv_siting: Where chroma lies among the columns: "left", on every second one (MPEG-2, H.264, H.265), or
            "center", between two (JPEG, and what FFmpeg takes for video that does not say).
        out: An array to write into, shaped like the result, of any strides. Not for JAX.
        check: False skips the checks that must read the data: that rows and crop_offsets are in range.
        backend: "reference", "cpu", "cuda" or "torch". Default: by the device of the arrays.

    Returns:
        [..., height, width, C], or as `layout` says, with the leading dimensions of frames, or [R, ...] with rows.
        Depth is [..., height, width].

    Examples:
        >>> rc.image(frames, (224, 224), fit="contain", dtype="bfloat16", mean=MEAN, std=STD, layout="nchw")
        >>> rc.image(frames, (256, 256), crop=(224, 224), crop_offsets=offsets)     # random crops
        >>> rc.image(stack, rows=rows, dtype="float32", layout="nchw")              # gather and normalise
        >>> rc.image((y, u, v), (224, 224), yuv_matrix="bt709")                     # planes of a video decoder
        >>> rc.image(depth, (120, 160), filter="box")                               # uint16
    """
    first = frames[0] if isinstance(frames, tuple) and frames else frames
    if rows is not None:
        rows = beside(first, rows)
    if crop_offsets is not None:
        crop_offsets = beside(first, crop_offsets)
    form = (size, fit, filter, pad, crop, dtype, mean, std, layout)
    colour = (yuv_matrix, yuv_range, yuv_siting)
    if not tracing.compiling():
        made = _core.image(frames, *form, rows, box, crop_offsets, *colour, out, check, backend)
        if made is not NotImplemented:
            return made
    from robocache._torch import image as torch_image

    return torch_image.run(frames, rows, crop_offsets, form, (box, *colour, check, backend), out)
