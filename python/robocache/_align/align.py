"""Streams at their own rates, onto one timeline: resample (one stream), align (many), fuse (many into one tensor).

Nothing here computes. The engine (robocache._core) serves arrays that have memory. For everything else it returns
NotImplemented, and robocache._torch serves the call: gradients, tensors without memory, other devices. While
torch.compile traces, robocache._torch serves every call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, overload

from robocache import _core
from robocache._align import tracing
from robocache._align.results import Aligned, Fused
from robocache._align.stream import Array, Duration, Stream, UncheckedStream, kind_of, moved_beside


def resample(
    values: Array,
    times: Any,
    targets: Any,
    *,
    method: str | Sequence[tuple[str, int, int]] | None = None,
    edge: str = "clamp",
    max_gap: Duration | None = None,
    latency: Duration = 0,
    causal: bool = False,
    as_of: Any = None,
    lengths: Any = None,
    offsets: Any = None,
    rows: Any = None,
    on_nan: str = "propagate",
    check: bool = True,
    out: Array | None = None,
    backend: str | None = None,
) -> Array:
    """The values of one stream at other times.

    CUDA calls are queued on the caller's current stream and do not wait; what their data checks find is raised by the
    thread's next call or by `rc.synchronize()`. With JAX on a GPU the call returns when the result is ready, and waits
    for the GPU before it frees results that JAX has released. torch's `record_stream()` does nothing for the returned
    tensor, as for every tensor that comes through DLPack: if another CUDA stream uses it, pass `out`. torch
    differentiates the result with respect to `values` once, with `backend="torch"` twice.

    Args:
        values: The samples; see `Stream`.
        times: Their times; see `Stream`.
        targets: The times at which values are wanted: [T] for all rows, [B, T], or a `Timeline`. Dtypes as `times`, in
            any order, except that "mean", "max", "min" and "last" need targets that do not decrease. Beside NumPy
            arrays a list works too.
        method: How samples become values; see `Stream`.
        edge: What the value is where it is not valid: before the first and after the last sample, inside a gap, and
            with `on_nan="skip"` beside a sample that is not finite. "clamp" repeats the nearest sample ("hold" never
            repeats a later one, except before the first) and returns 0 where no sample exists: in an empty stream, and
            with `causal` before the first arrival. "nan" and "zero" write that. With "clamp" the values beyond the
            ends look plausible: mask them by the `valid` of `align`.
        max_gap: The longest step between two samples that is not a gap; see `Stream`.
        latency: How much later than the event a stamp is; see `Stream`.
        causal: Use only the samples that had arrived by the target, as a robot does that looks at every target. Samples
            are held.
        as_of: Use only the samples that had arrived by this time, whatever the target is, as a robot does that decides
            then and looks back. Nanoseconds as an int, seconds as a float, [B] of either (a time for each row), or
            "anchor": the `t` of `Timeline.around`. Methods interpolate as usual between the samples that exist, and
            the last of them is held for later targets. Not together with `causal`.
        lengths: Real samples in each padded row; see `Stream`.
        offsets: Where packed rows begin and end; see `Stream`.
        rows: The row that each output row reads; see `Stream`.
        on_nan: "propagate", or "skip": a sample that is not finite makes no valid value.
        check: False skips the checks that must read the data: that times do not decrease, and that lengths, offsets
            and rows fit.
        out: An array to write into, with the shape, dtype and device of the result; any strides. Its memory must not
            overlap an input: none may lie between its first and last byte. Not for JAX.
        backend: "reference", "cpu", "cuda" or "torch". Default: by the device of the arrays.

    Returns:
        An array [B, T, ...] of the same library as `values`, on the same device.

    Examples:
        >>> rc.resample(joints, stamps, targets)                    # [S, 7], [S], [T] -> [T, 7]
        >>> rc.resample(joints, stamps, rc.Timeline(t0, rate=50, count=100), method="cubic")
        >>> rc.resample(joints, stamps, targets, lengths=lengths)   # [B, S, 7], [B, S], [B, T] -> [B, T, 7]
    """
    kind = type(values)
    if type(times) is not kind:
        times = moved_beside(values, times)
    if lengths is not None and type(lengths) is not kind:
        lengths = moved_beside(values, lengths)
    if offsets is not None and type(offsets) is not kind:
        offsets = moved_beside(values, offsets)
    if rows is not None and type(rows) is not kind:
        rows = moved_beside(values, rows)
    if as_of is not None and type(as_of) is not kind:
        as_of = moved_beside(values, as_of)
    if not tracing.compiling():
        made: Array = _core.resample(
            values,
            times,
            targets,
            method,
            edge,
            max_gap,
            latency,
            causal,
            as_of,
            lengths,
            offsets,
            rows,
            on_nan,
            check,
            out,
            backend,
        )
        if made is not NotImplemented:
            return made
    from robocache._torch import align as torch_align

    rows_of = {"lengths": lengths, "offsets": offsets, "rows": rows}
    stream = UncheckedStream(values, times, method=method, latency=latency, max_gap=max_gap, **rows_of)
    return torch_align.resample(stream, targets, _options(edge, causal, as_of, on_nan, check, backend), out)  # type: ignore


@overload
def align(
    streams: Mapping[str, Stream[Array]],
    targets: Any,
    *,
    edge: str = "clamp",
    causal: bool = False,
    as_of: Any = None,
    on_nan: str = "propagate",
    check: bool = True,
    backend: str | None = None,
) -> dict[str, Aligned[Array]]: ...
@overload
def align(
    streams: Sequence[Stream[Array]],
    targets: Any,
    *,
    edge: str = "clamp",
    causal: bool = False,
    as_of: Any = None,
    on_nan: str = "propagate",
    check: bool = True,
    backend: str | None = None,
) -> list[Aligned[Array]]: ...
def align(
    streams: Mapping[str, Stream[Array]] | Sequence[Stream[Array]],
    targets: Any,
    *,
    edge: str = "clamp",
    causal: bool = False,
    as_of: Any = None,
    on_nan: str = "propagate",
    check: bool = True,
    backend: str | None = None,
) -> dict[str, Aligned[Array]] | list[Aligned[Array]]:
    """Many streams on one timeline, each with its own dtype, shape and method.

    1 to 64 streams; on a GPU one kernel launch for each dtype. Memory, CUDA streams and gradients are as in `resample`.

    Args:
        streams: A dict by name, or a sequence. Streams without rows are broadcast beside those that have them.
        targets: The times at which values are wanted, as in `resample`.
        edge: As in `resample`; a stream's own `edge` comes first.
        causal: As in `resample`; a stream's own `causal` comes first.
        as_of: As in `resample`; a stream's own `as_of` comes first, and `Stream(as_of=False)` switches it off.
        on_nan: As in `resample`; a stream's own `on_nan` comes first.
        check: As in `resample`.
        backend: As in `resample`.

    Returns:
        An `Aligned` for each stream: a dict with the same names, or a list in the same order.

    Examples:
        >>> aligned = rc.align({"pose": pose, "gripper": gripper}, rc.Timeline(t0, rate=50, count=100))
        >>> values, valid, age, index = aligned["pose"]
    """
    if isinstance(as_of, (list, tuple)):
        as_of = beside_streams(as_of, streams)
    if not tracing.compiling():
        made: dict[str, Aligned[Array]] | list[Aligned[Array]] = _core.align(
            streams, None, targets, edge, causal, as_of, on_nan, check, backend
        )
        if made is not NotImplemented:
            return made
    from robocache._torch import align as torch_align

    names, members = unpack("align", streams)
    parts = torch_align.align(names, members, targets, _options(edge, causal, as_of, on_nan, check, backend))
    return dict(zip(streams, parts, strict=True)) if isinstance(streams, Mapping) else parts


def fuse(
    streams: Mapping[str, Stream[Array]] | Sequence[Stream[Array]],
    targets: Any,
    *,
    edge: str = "clamp",
    causal: bool = False,
    as_of: Any = None,
    on_nan: str = "propagate",
    check: bool = True,
    dtype: Any = None,
    out: Array | None = None,
    backend: str | None = None,
) -> Fused[Array]:
    """Many streams on one timeline, concatenated into one tensor: what a policy takes as its observation.

    Memory, CUDA streams and gradients are as in `resample`.

    Args:
        streams: A dict by name, or a sequence, as in `align`.
        targets: The times at which values are wanted, as in `resample`.
        edge: As in `resample`; a stream's own `edge` comes first.
        causal: As in `resample`; a stream's own `causal` comes first.
        as_of: As in `resample`; a stream's own `as_of` comes first, and `Stream(as_of=False)` switches it off.
        on_nan: As in `resample`; a stream's own `on_nan` comes first.
        check: As in `resample`.
        dtype: The dtype of the fused values; needed if the streams' dtypes differ. Each stream is computed in its own
            dtype and rounded once. An integer dtype must be able to hold every value of each stream.
        out: An array to write the values into, as in `resample`. Its dtype is used if `dtype` is not given.
        backend: As in `resample`.

    Returns:
        A `Fused`.

    Examples:
        >>> fused = rc.fuse({"joints": joints, "pose": pose, "gripper": gripper}, timeline)
        >>> fused.values                               # [B, T, 7 + 7 + 1]
        >>> fused.values[..., fused.columns["pose"]]   # [B, T, 7]
        >>> fused.valid[..., 2]                        # [B, T]: is the gripper's value real?
    """
    if isinstance(as_of, (list, tuple)):
        as_of = beside_streams(as_of, streams)
    if not tracing.compiling():
        made: Fused[Array] = _core.fuse(streams, None, targets, edge, causal, as_of, on_nan, check, backend, dtype, out)
        if made is not NotImplemented:
            return made
    from robocache._torch import align as torch_align

    names, members = unpack("fuse", streams)
    options = _options(edge, causal, as_of, on_nan, check, backend)
    return torch_align.fuse(names, members, targets, options, dtype, out)  # type: ignore


def unpack(
    operation: str, streams: Mapping[str, Stream[Array]] | Sequence[Stream[Array]]
) -> tuple[tuple[str | None, ...], tuple[Stream[Array], ...]]:
    """The names and the streams of a dict or a sequence. Refuses anything else, and names that occur twice."""
    names: tuple[str | None, ...]
    if isinstance(streams, Mapping):
        names, members = tuple(streams), tuple(streams.values())
    elif isinstance(streams, (list, tuple)):
        members = tuple(streams)
        names = tuple([member.name if isinstance(member, Stream) else None for member in members])
    else:
        raise TypeError(f"{operation}: streams is of type {kind_of(streams)}; expected a dict or a list of Stream")
    for position, member in enumerate(members):
        if not isinstance(member, Stream):
            where = f'{operation}: stream "{names[position] or position}"'  # type: ignore[unreachable]
            raise TypeError(f"{where}: expected a robocache.Stream, not {kind_of(member)}")
    named = [name for name in names if name is not None]
    if len(set(named)) < len(named):
        raise ValueError(f"{operation}: two streams have the same name; they are named {', '.join(named)}")
    return names, members


def beside_streams(times: Any, streams: Any) -> Any:
    """A list of times as an array like the values of the first stream."""
    members = streams.values() if isinstance(streams, Mapping) else streams
    if isinstance(streams, (Mapping, list, tuple)):
        for member in members:
            return moved_beside(member.values, times) if isinstance(member, Stream) else times
    return times


def _options(edge: str, causal: bool, as_of: Any, on_nan: str, check: bool, backend: str | None) -> dict[str, Any]:
    return {"edge": edge, "causal": causal, "as_of": as_of, "on_nan": on_nan, "check": check, "backend": backend}
