"""image in torch: torch.compile, and every device that has no kernels of ours.

The compiled engine handles plain tensors. robocache._image calls this module for the others. A call takes the first of
these paths that fits:
1. traced (Dynamo, export, fake or meta tensors): `torch.ops.robocache.image`. At run time it takes path 2 or 3.
2. backend="torch", a device that is neither cpu nor cuda, CUDA without usable kernels: the portable backend.
3. the engine.
There are no gradients: frames are integers.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robocache import _core
from robocache._torch import image_backend
from robocache._torch.align_run import uses_portable
from robocache._torch.operators import register
from robocache._torch.voxels import is_batched_by_vmap, is_traced

engine: Any = _core


class Call(NamedTuple):
    """The constant part of a call. An empty list stands for None."""

    size: Sequence[int]
    fit: str
    filter: str | None
    pad: Sequence[int]
    crop: Sequence[int]
    dtype: torch.dtype | None
    mean: Sequence[float]
    std: Sequence[float]
    layout: str
    box: Sequence[int]
    yuv_matrix: str | None
    yuv_range: str
    yuv_siting: str
    check: bool
    backend: str | None


SCHEMA = (
    "Tensor[] frames, Tensor? rows, Tensor? crop_offsets, SymInt[] size, str fit, str? filter, int[] pad, SymInt[] "
    "crop, ScalarType? dtype, float[] mean, float[] std, str layout, SymInt[] box, str? yuv_matrix, str yuv_range, str "
    "yuv_siting, bool check, str? backend"
)


def run(frames: Any, rows: Any, crop_offsets: Any, form: tuple[Any, ...], options: tuple[Any, ...], out: Any) -> Tensor:
    planes = list(frames) if isinstance(frames, tuple) else [frames]
    given = [(f"frames[{k}]" if len(planes) > 1 else "frames", plane) for k, plane in enumerate(planes)]
    given += [(name, array) for name, array in (("rows", rows), ("crop_offsets", crop_offsets)) if array is not None]
    for name, array in given:
        if not isinstance(array, Tensor):
            raise TypeError(f"image: {name} is a {type(array).__name__}; torch tensors and other arrays do not mix")
        if not torch.compiler.is_compiling() and is_batched_by_vmap(array):
            raise ValueError("image: torch.vmap cannot go through it; give the frames as a batch")
    call = pack(form, options)
    if is_traced([array for _, array in given]):
        made = torch.ops.robocache.image(planes, rows, crop_offsets, *call)
    else:
        made = image(planes, rows, crop_offsets, *call)
    if out is None:
        return made
    if not isinstance(out, Tensor):
        raise TypeError(f"image: out is a {type(out).__name__}; expected a tensor")
    if out.shape != made.shape or out.dtype != made.dtype:
        raise ValueError(f"image: out is {out.dtype} {list(out.shape)}; expected {made.dtype} {list(made.shape)}")
    return out.copy_(made)


def pack(form: tuple[Any, ...], options: tuple[Any, ...]) -> Call:
    size, fit, filter, pad, crop, dtype, mean, std, layout = form
    box, yuv_matrix, yuv_range, yuv_siting, check, backend = options
    return Call(
        list(size or ()),
        fit,
        filter,
        [operator.index(value) for value in (pad if hasattr(pad, "__len__") else [pad])],
        list(crop or ()),
        dtype_of(dtype),
        numbers_of(mean, 0.0),
        numbers_of(std, 1.0),
        layout,
        list(box or ()),
        yuv_matrix,
        yuv_range,
        yuv_siting,
        bool(check),
        backend,
    )


def dtype_of(dtype: Any) -> torch.dtype | None:
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    name = dtype if isinstance(dtype, str) else _core.dtype_name(dtype)
    return getattr(torch, name)


def numbers_of(given: Any, default: float) -> list[float]:
    if given is None:
        return [default]
    return [float(x) for x in (given if hasattr(given, "__len__") else [given])]


def arguments(planes: Sequence[Tensor], rows: Any, crop_offsets: Any, call: Call) -> tuple[Any, ...]:
    """The arguments of the engine's image."""
    frames = planes[0] if len(planes) == 1 else tuple(planes)
    form = (call.size or None, call.fit, call.filter, call.pad, call.crop or None, call.dtype, call.mean, call.std)
    colour = (call.yuv_matrix, call.yuv_range, call.yuv_siting)
    return (frames, *form, call.layout, rows, call.box or None, crop_offsets, *colour, None, call.check, call.backend)


def image(planes: Sequence[Tensor], rows: Tensor | None, crop_offsets: Tensor | None, *options: Any) -> Tensor:
    call = Call(*options)
    if not uses_portable(SimpleNamespace(operation="image", backend=call.backend), planes[0].device):  # type: ignore[arg-type]
        made = engine.image(*arguments(planes, rows, crop_offsets, call))
        if made is not NotImplemented:
            return made
    return image_backend.image(planes, rows, crop_offsets, call)


def image_fake(planes: Sequence[Tensor], rows: Tensor | None, crop_offsets: Tensor | None, *options: Any) -> Tensor:
    call = Call(*options)
    pixels = planes[0]
    depth = pixels.dtype == torch.uint16
    trailing = 2 if depth or len(planes) > 1 else 3
    lead = list(pixels.shape[: pixels.ndim - trailing]) if rows is None else [rows.shape[0]]
    whole = pixels.shape[pixels.ndim - trailing : pixels.ndim - trailing + 2]
    height, width = (call.crop or call.size or call.box or whole)[-2:]
    channels = 3 if len(planes) > 1 else pixels.shape[-1]
    shape = [height, width] if depth else [height, width, channels]
    if not depth and call.layout == "nchw":
        shape = [channels, height, width]
    return pixels.new_empty([*lead, *shape], dtype=call.dtype or pixels.dtype)


register(f"image({SCHEMA}) -> Tensor", image, image_fake)
