"""align in torch: gradients, torch.compile, and every device that has no kernels of ours.

The compiled engine handles plain tensors. robocache._align calls this module for the others. A call takes the first
of these paths that fits:
1. traced (Dynamo, export, fake, meta or other tensors without memory): `torch.ops.robocache.align`, one operator for
   resample, align and fuse, with a gradient, and a fake implementation for symbolic sizes. At run time it takes path 2
   or 4.
2. backend="torch", a device that is neither cpu nor cuda, CUDA without usable kernels: the portable backend, whose
   gradients are torch's own.
3. gradients: an autograd.Function around the engine's forward and backward.
4. the engine.
No path waits for the device, except the portable backend's bins. Gradients reach `values` only; there are no second
derivatives.

`out=` is written by a copy at the end, and takes no part in gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from robocache import _core
from robocache._align.results import Aligned, Fused
from robocache._align.stream import Stream
from robocache._align.timeline import Timeline
from robocache._torch import align_run
from robocache._torch.align_call import OPTIONAL, channel_count, pack, place, tensor
from robocache._torch.align_ops import Alignment, TransformedAlignment, is_plain, is_wrapped, refuse_tangents


def resample(stream: Stream[Any], targets: Any, options: Mapping[str, Any], out: Tensor | None) -> Tensor:
    check_out("resample", [None], [stream], targets, out)
    values = run("resample", [None], [stream], targets, options, None)[0]
    return values if out is None else written("resample", out, values)


def align(
    names: Sequence[str | None], streams: Sequence[Stream[Any]], targets: Any, options: Mapping[str, Any]
) -> list[Aligned[Any]]:
    made = run("align", names, streams, targets, options, None)
    return [Aligned(made[k], made[k + 1], made[k + 2], made[k + 3]) for k in range(0, len(made), 4)]


def fuse(
    names: Sequence[str | None],
    streams: Sequence[Stream[Any]],
    targets: Any,
    options: Mapping[str, Any],
    dtype: Any,
    out: Tensor | None,
) -> Fused[Any]:
    check_out("fuse", names, streams, targets, out)
    values, valid, age = run("fuse", names, streams, targets, options, fused_dtype(names, streams, dtype, out))
    if out is not None:
        values = written("fuse", out, values)
    columns: dict[str | int, slice] = {}
    first = 0
    for k, stream in enumerate(streams):
        name = names[k]
        width = channel_count(stream.values, stream.times)
        columns[k if name is None else name] = slice(first, first + width)
        first = first + width
    return Fused(values, valid, age, columns)


def run(
    operation: str,
    names: Sequence[str | None],
    streams: Sequence[Stream[Any]],
    targets: Any,
    options: Mapping[str, Any],
    dtype: torch.dtype | None,
) -> list[Tensor]:
    """The outputs as one list: values; or values, valid, age, index of each stream; or values, valid, age."""
    tensors, call = pack(operation, names, streams, targets, options, dtype)
    if torch.compiler.is_compiling() or not all(is_plain(tensor) or is_wrapped(tensor) for tensor in tensors):
        return list(torch.ops.robocache.align(tensors, *call))
    portable = align_run.uses_portable(call, tensors[0].device)
    if not portable:
        refuse_tangents(operation, tensors)
    if not portable and torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        wrapped = any(is_wrapped(tensor) for tensor in tensors)
        return list((TransformedAlignment if wrapped else Alignment).apply(call, *tensors))
    return align_run.run(tensors, call)


def check_out(
    operation: str, names: Sequence[str | None], streams: Sequence[Stream[Any]], targets: Any, out: Tensor | None
) -> None:
    if out is None:
        return
    if tensor(f"{operation}: ", "out", out, None).requires_grad:
        raise ValueError(f"{operation}: out requires grad, and nothing can be written into it; pass .detach()")
    if torch.is_grad_enabled() and any(stream.values.requires_grad for stream in streams):
        raise ValueError(
            f"{operation}: a result in out has no gradient, and values require grad; do not pass out, "
            "or call under torch.no_grad()"
        )
    if torch.compiler.is_compiling() or not is_plain(out):
        return
    if any(size > 1 and step == 0 for size, step in zip(out.shape, out.stride(), strict=True)):
        raise ValueError(f"{operation}: out is expanded: several of its elements are one place in memory")
    if overlaps_itself(out):
        raise ValueError(f"{operation}: out overlaps itself: several of its elements are one place in memory")
    # The copy at the end could not damage the inputs, but a call must mean the same on every device.
    for k, stream in enumerate(streams):
        for what in ("values", "times", *OPTIONAL):
            refuse_overlap(place(operation, names, k), what, getattr(stream, what), out)
    if isinstance(targets, Timeline):
        refuse_overlap(f"{operation}: ", "the timeline's start", targets.start, out)
    else:
        refuse_overlap(f"{operation}: ", "targets", targets, out)


def overlaps_itself(out: Tensor) -> bool:
    """Whether two elements share a place in memory."""
    sizes = sorted((step, size) for size, step in zip(out.shape, out.stride(), strict=True) if size > 1)
    reach, nested = 0, True
    for step, size in sizes:
        nested = nested and step > reach
        reach += (size - 1) * step
    if nested or out.numel() == 0:
        return False
    places = torch.zeros(1, dtype=torch.int64)
    for step, size in sizes:
        places = (places[:, None] + step * torch.arange(size)).reshape(-1)
    return int(places.unique().numel()) < places.numel()


def refuse_overlap(where: str, what: str, array: Any, out: Tensor) -> None:
    if not isinstance(array, Tensor) or not is_plain(array) or array.numel() == 0 or out.numel() == 0:
        return
    (begin, end), (first, last) = extent(out), extent(array)
    if begin < last and first < end:
        raise ValueError(f"{where}out overlaps {what} in memory; pass an array of its own")


def extent(tensor: Tensor) -> tuple[int, int]:
    """The address of its first byte, and the address after its last one."""
    elements = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + elements * tensor.element_size()


def written(operation: str, out: Tensor, values: Tensor) -> Tensor:
    if out.shape != values.shape:
        raise ValueError(f"{operation}: out has shape {list(out.shape)}; expected {list(values.shape)}")
    if out.dtype != values.dtype:
        raise TypeError(f"{operation}: out is {dtype_name(out.dtype)}; expected {dtype_name(values.dtype)}")
    if out.device != values.device:
        raise ValueError(
            f"{operation}: out is on {out.device} and the first stream's values on {values.device}; "
            "all must be on one device"
        )
    out.copy_(values)
    return out


def fused_dtype(
    names: Sequence[str | None], streams: Sequence[Stream[Any]], dtype: Any, out: Tensor | None
) -> torch.dtype:
    if dtype is not None:
        return dtype if isinstance(dtype, torch.dtype) else getattr(torch, engine_dtype(dtype))
    if out is not None:
        return out.dtype
    first = streams[0].values.dtype
    for k, stream in enumerate(streams):
        here = stream.values.dtype
        if here != first:
            raise TypeError(
                f'fuse: stream "{names[k] or k}": values are {dtype_name(here)}, and the first stream\'s '
                f"{dtype_name(first)}; say dtype= for the fused tensor"
            )
    return first


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator, unused-ignore]
def engine_dtype(dtype: Any) -> str:
    """The engine's name for "float32", numpy.float32, numpy.dtype("float32") or float."""
    return _core.dtype_name(dtype)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
