"""From a Problem of the case table to a call, with any kind of array, and back to NumPy."""

from __future__ import annotations

import functools
from typing import Any

import cases
import numpy as np

import robocache as rc

Outputs = list[tuple[np.ndarray, ...]]  # values, valid, age, index per stream


@functools.cache
def unavailable(backend: str) -> str | None:
    """Why a backend cannot run here; None where it can."""
    for name, available, description in rc.backends():
        if name == backend:
            return None if available else f"{backend}: {description}"
    return f"{backend}: not built"


@functools.cache
def simd_targets() -> list[str]:
    return [*rc.simd_targets(), "none"]


def to_torch(array: np.ndarray | None, device: str = "cpu") -> Any:
    """A tensor with the same strides, which torch cannot have where they are negative: then a copy."""
    import torch

    if array is None:
        return None
    if array.dtype.kind in "biufV" and any(stride < 0 for stride in array.strides):
        array = np.ascontiguousarray(array)
    bfloat16 = array.dtype == cases.BFLOAT16
    if bfloat16:
        array = array.view(np.int16)
    size = array.itemsize
    strides = [stride // size for stride in array.strides]
    if array.size == 0:
        strides = None
        flat = np.zeros(0, array.dtype)
    else:
        length = 1 + sum((n - 1) * stride for n, stride in zip(array.shape, strides, strict=True))
        flat = np.lib.stride_tricks.as_strided(array, (length,), (size,)).copy()
    base = torch.from_numpy(flat).to(device)
    if bfloat16:
        base = base.view(torch.bfloat16)
    return base.reshape(array.shape) if strides is None else base.as_strided(array.shape, strides)


def to_cupy(array: np.ndarray | None) -> Any:
    import cupy

    return None if array is None else cupy.asarray(array)


def keep(array: np.ndarray | None) -> Any:
    return array


def to_cuda(array: np.ndarray | None) -> Any:
    return to_torch(array, "cuda")


def to_numpy(array: Any) -> np.ndarray:
    if isinstance(array, np.ndarray):
        return array
    if type(array).__module__.startswith("cupy"):
        return array.get()
    import torch

    array = array.detach().cpu()
    if array.dtype == torch.bfloat16:
        return array.view(torch.int16).numpy().view(cases.BFLOAT16)
    return array.numpy()


def to_stream(stream: cases.Stream, convert=keep) -> rc.Stream:
    return rc.Stream(
        convert(stream.values),
        convert(stream.times),
        method=stream.method,
        latency=stream.latency,
        arrivals=convert(stream.arrivals),
        max_gap=stream.max_gap,
        edge=stream.edge,
        causal=stream.causal,
        as_of=to_as_of(stream.as_of, convert),
        on_nan=stream.on_nan,
        lengths=convert(stream.lengths),
        offsets=convert(stream.offsets),
        rows=convert(stream.rows),
        channels=stream.channels,
        name=stream.name,
    )


def to_targets(targets: Any, convert=keep) -> Any:
    if not isinstance(targets, cases.Timeline):
        return convert(targets)
    start = convert(targets.start) if isinstance(targets.start, np.ndarray) else targets.start
    if targets.first == 0:
        return rc.Timeline(start, rate=targets.rate, count=targets.count)
    line = rc.Timeline(start, rate=targets.rate, count=targets.count)
    line.first = targets.first
    line.anchored = True
    return line


def to_as_of(as_of: Any, convert=keep) -> Any:
    return convert(as_of) if isinstance(as_of, np.ndarray) else as_of


def options_of(problem: cases.Problem, convert=keep) -> dict[str, Any]:
    options = dict(problem.options)
    if "as_of" in options:
        options["as_of"] = to_as_of(options["as_of"], convert)
    return options


@functools.cache
def reference(name: str) -> Outputs:
    """What the reference backend makes of a case."""
    return align(cases.problem_of(name), "reference")


def align(problem: cases.Problem, backend: str | None, convert=keep, **options: Any) -> Outputs:
    streams: Any = [to_stream(stream, convert) for stream in problem.streams]
    named = all(stream.name for stream in problem.streams)
    if named:
        streams = {stream.name: stream for stream in streams}
    targets = to_targets(problem.targets, convert)
    answer = rc.align(streams, targets, backend=backend, **options_of(problem, convert), **options)
    aligned = [answer[stream.name] for stream in problem.streams] if named else answer
    return [tuple(to_numpy(part) for part in (a.values, a.valid, a.age, a.index)) for a in aligned]


def fuse(problem: cases.Problem, backend: str | None, convert=keep, dtype: Any = None, **options: Any) -> Any:
    streams = [to_stream(stream, convert) for stream in problem.streams]
    targets = to_targets(problem.targets, convert)
    answer = rc.fuse(streams, targets, backend=backend, dtype=dtype, **options_of(problem, convert), **options)
    return tuple(to_numpy(part) for part in (answer.values, answer.valid, answer.age))


def bytes_of(array: np.ndarray) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def assert_same_bytes(actual: np.ndarray, expected: np.ndarray, what: str) -> None:
    assert actual.dtype == expected.dtype, what
    assert actual.shape == expected.shape, what
    if bytes_of(actual) == bytes_of(expected):
        return
    bits = cases.bits_of(actual.dtype)
    left, right = (np.ascontiguousarray(array).reshape(array.shape or (1,)).view(bits) for array in (actual, expected))
    wrong = np.argwhere(left != right)
    first = tuple(int(k) for k in wrong[0])
    raise AssertionError(
        f"{what}: {len(wrong)} of {left.size} differ; at {first}: "
        f"{actual.reshape(left.shape)[first]!r} ({left[first]:#x}), expected "
        f"{expected.reshape(left.shape)[first]!r} ({right[first]:#x})"
    )


def assert_same(actual: Outputs, expected: Outputs, what: str) -> None:
    assert len(actual) == len(expected)
    for k, (mine, theirs) in enumerate(zip(actual, expected, strict=True)):
        for part, left, right in zip(("values", "valid", "age", "index"), mine, theirs, strict=True):
            assert_same_bytes(left, right, f"{what}: stream {k}: {part}")


def dtype_argument(name: str, backend: str) -> Any:
    """A dtype as users of NumPy or torch write it."""
    if backend == "cuda":
        import torch

        return getattr(torch, name)
    return cases.dtype_of(name)
