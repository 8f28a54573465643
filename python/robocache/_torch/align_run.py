"""Runs a packed call: in the engine, or in the portable backend if the engine cannot."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from robocache import _core, _versions
from robocache._align.stream import Stream
from robocache._torch import align_backend
from robocache._torch.align_call import (
    LIST,
    NO_AS_OF,
    TIMELINE,
    Call,
    Unpacked,
    batch_rows,
    bind,
    channel_count,
    method_ranges,
    numbers_of,
    timeline,
    unpack,
    words_of,
)

_versions.require("torch")  # every module that registers operators imports this one first


def run(tensors: Sequence[Tensor], call: Call) -> list[Tensor]:
    if not uses_portable(call, tensors[0].device):
        streams, targets = bind(tensors, call)
        made = engine(call, streams, targets, call.check, call.backend)
        if made is not NotImplemented:
            return list(made)
    return run_portable(tensors, call)


def engine(call: Call, streams: Sequence[Stream[Any]], targets: Any, check: bool, backend: str | None) -> Any:
    """The outputs, or NotImplemented."""
    if call.operation == "resample":
        s: Any = streams[0]
        made = _core.resample(
            s.values,
            s.times,
            targets,
            s.method,
            s.edge,
            s.max_gap,
            s.latency,
            s.causal,
            s.as_of,
            s.lengths,
            s.offsets,
            s.rows,
            s.on_nan,
            check,
            None,
            backend,
        )
        return made if made is NotImplemented else [made]
    names = tuple(stream.name for stream in streams)
    options = ("clamp", False, None, "propagate", check, backend)
    if call.operation == "align":
        made = _core.align(streams, names, targets, *options)
        return made if made is NotImplemented else [part for outputs in made for part in outputs]
    made = _core.fuse(streams, names, targets, *options, call.dtype, None)
    return made if made is NotImplemented else made[:3]


# ---- the portable backend


def run_portable(tensors: Sequence[Tensor], call: Call) -> list[Tensor]:
    check_arguments(tensors, call)
    unpacked = unpack(tensors, call)
    targets = target_plan(unpacked, call)
    made = [
        align_backend.align(stream_plan(unpacked, call, k, call.dtype), targets, unpacked.rows)
        for k in range(len(unpacked.streams))
    ]
    if call.operation == "resample":
        return [made[0][0]]
    if call.operation == "align":
        return [part for outputs in made for part in outputs]
    values = [
        outputs[0].reshape(*outputs[1].shape, channel_count(arrays["values"], arrays["times"]))
        for arrays, outputs in zip(unpacked.streams, made, strict=True)
    ]
    marks = [torch.stack([outputs[k] for outputs in made], dim=-1) for k in (1, 2)]
    return [torch.cat(values, dim=-1), *marks]


def stream_plan(unpacked: Unpacked, call: Call, k: int, dtype: torch.dtype | None) -> align_backend.StreamPlan:
    arrays, words, numbers = unpacked.streams[k], words_of(call, k), numbers_of(call, k)
    channels = channel_count(arrays["values"], arrays["times"])
    # As in the engine: in channel order, neighbours of the same method merged, unless on_nan="skip" keeps them apart.
    merge = words.on_nan != "skip"
    ranges: list[tuple[str, int, int]] = []
    for method, begin, end in sorted(method_ranges(words.method, channels), key=lambda entry: entry[1]):
        if begin == end and channels > 0:
            continue
        if merge and ranges and ranges[-1][0] == method:
            ranges[-1] = (method, ranges[-1][1], end)
        else:
            ranges.append((method, begin, end))
    return align_backend.StreamPlan(
        values=arrays["values"],
        times=arrays["times"],
        arrivals=arrays.get("arrivals"),
        lengths=arrays.get("lengths"),
        offsets=arrays.get("offsets"),
        rows=arrays.get("rows"),
        methods=ranges,
        latency=numbers.latency,
        max_gap=numbers.max_gap,
        edge=words.edge,
        causal=words.causal == "true",
        as_of=arrays.get("as_of", None if numbers.as_of == NO_AS_OF else numbers.as_of),
        on_nan=words.on_nan,
        dtype=arrays["values"].dtype if dtype is None else dtype,
    )


def target_plan(unpacked: Unpacked, call: Call) -> align_backend.TargetPlan:
    if call.present[-1] == LIST:
        return align_backend.TargetPlan(unpacked.times)
    start = unpacked.start if unpacked.times is None else unpacked.times
    return align_backend.TargetPlan(None, start, unpacked.first, call.rate, unpacked.steps)


def check_arguments(tensors: Sequence[Tensor], call: Call) -> None:
    """Lets the engine check the call for the portable backend, so that error sentences are written in one place."""
    # Shapes, dtypes and words: expanded zeros of the same shapes, which take no memory, and no targets.
    zeros = [torch.zeros((), dtype=tensor.dtype).expand(tensor.shape) for tensor in tensors]
    numbers = list(call.numbers)
    if call.present[-1] != LIST:
        numbers[-1] = min(numbers[-1], 0)
    elif zeros[-1].ndim > 0:
        zeros[-1] = zeros[-1][..., :0]
    short = call._replace(numbers=numbers)
    streams, targets = bind(zeros, short)
    engine(short, streams, targets, False, None)
    # The data: streams without channels. On another device this would wait for the device.
    if call.check and tensors[0].device.type == "cpu":
        streams, targets = bind([tensor.detach() for tensor in tensors], call)
        without = {"method": "hold", "channels": None}
        empty = [stream.replace(values=torch.empty((*stream.times.shape, 0)), **without) for stream in streams]
        for k, stream in enumerate(empty):
            methods = [method for method, _, _ in method_ranges(words_of(call, k).method, 0)]
            if any(method in align_backend.BINS for method in methods):
                empty[k] = stream.replace(method="last")
        engine(call._replace(dtype=None), empty, targets, True, None)


# ---- which of the two


@functools.cache
def cuda_kernels() -> tuple[bool, str]:
    """Whether the engine's kernels run here; if not, why."""
    if getattr(torch.version, "hip", None):
        return False, "this torch is built for ROCm"
    for name, available, description in _core.backends():
        if name == "cuda":
            return available, description
    return False, "this build has no CUDA backend"


@functools.cache
def warn_once(reason: str) -> None:
    warnings.warn(
        f"robocache: the torch backend serves CUDA tensors, because the kernels cannot run here: {reason}",
        RuntimeWarning,
        stacklevel=2,
    )


def uses_portable(call: Call, device: torch.device) -> bool:
    if call.backend == "torch":
        return True
    if device.type == "cpu":
        return False
    if device.type == "cuda":
        if call.backend is not None:
            return False  # the engine reports why it cannot
        available, reason = cuda_kernels()
        if not available:
            warn_once(reason)
        return not available
    if call.backend is not None:
        raise ValueError(f"{call.operation}: backend {call.backend} does not run on {device.type} tensors; torch does")
    return True


# ---- gradients


def run_backward(
    tensors: Sequence[Tensor], call: Call, wanted: Sequence[int], gradients: Sequence[Tensor]
) -> list[Tensor]:
    """The gradients of the streams in `wanted`, from the gradients of their aligned values."""
    unpacked = unpack(tensors, call)
    if uses_portable(call, tensors[0].device):
        targets = target_plan(unpacked, call)
        return [
            portable_gradient(stream_plan(unpacked, call, k, gradient.dtype), targets, unpacked.rows, gradient)
            for k, gradient in zip(wanted, gradients, strict=True)
        ]
    streams, engine_targets = bind([tensor.detach() for tensor in tensors], call)
    rows = unpacked.rows
    if rows is not None and batch_rows([unpacked.streams[k] for k in wanted], unpacked.times, call.present[-1]) is None:
        # The stream with the batch dimension needs no gradient: the targets get the dimension instead.
        if call.present[-1] == TIMELINE:
            starts = torch.full((rows,), unpacked.start, dtype=torch.int64, device=tensors[0].device)
            engine_targets = timeline(starts, call.rate, unpacked.steps, unpacked.first)
        else:
            engine_targets = engine_targets.expand(rows, -1)
    chosen = [streams[k] for k in wanted]
    names = tuple(stream.name for stream in chosen)
    detached = [gradient.detach() for gradient in gradients]
    made = _core.align_backward(
        chosen, names, engine_targets, "clamp", False, None, "propagate", call.backend, detached
    )
    return list(made)


def portable_gradient(
    stream: align_backend.StreamPlan, targets: align_backend.TargetPlan, rows: int | None, gradient: Tensor
) -> Tensor:
    with torch.enable_grad():
        stream.values = stream.values.detach().requires_grad_()
        values = align_backend.align(stream, targets, rows)[0]
        return torch.autograd.grad(values, stream.values, gradient)[0]
