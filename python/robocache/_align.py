"""Streams at their own rates, onto one timeline: resample (one stream), align (many), fuse (many into one tensor).

Nothing here computes. The engine (robocache._core) serves arrays that have memory; robocache._torch serves what it
hands back with NotImplemented (gradients, tensors without memory, other devices), and everything while torch.compile
traces.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Number
from typing import Any, Generic, NamedTuple, TypeVar, overload

from robocache import _core

Array = TypeVar("Array")
Duration = float | int | datetime.timedelta
Method = str | Sequence[tuple[str, int, int]] | Mapping[str, str]


class Stream(Generic[Array]):
    """One sensor: its values, the times they were taken at, and how they become values at other times.

    values    [S, ...], batched [B, S, ...], or packed [N, ...] with `offsets`; any trailing shape, any strides.
    times     [S], [B, S] or [N]: int64 nanoseconds, or float64 or float32 seconds. They must not decrease.
    method    "linear" (default for floats), "hold" (default for integers and bool), "nearest", "slerp" (unit
              quaternions, each in four neighbouring channels, xyzw and wxyz alike), "angle", "angle_degrees", "cubic";
              over the samples since the previous target: "mean", "max", "min", "last".
              By channel: [("linear", 0, 3), ("slerp", 3, 7)]; by name, where `channels` are given:
              {"position[0]": "angle", "orientation.*": "slerp", "*": "linear"}. An exact name wins over a pattern of
              fnmatch, and the first pattern that matches wins; a key that matches no channel is an error.
    latency   taken off the times: how much later than the event a stamp is. May be negative.
    arrivals  like times: when each sample reached the robot; `causal` goes by them. Default: the times.
    max_gap   a wider space between two samples is a gap: a target strictly inside is not valid.
    edge, causal, on_nan   for this stream, instead of the call's.
    lengths   [B]: how many of the S samples of a padded row are real.
    offsets   [B + 1]: row b is packed at offsets[b] .. offsets[b + 1]. They need not start at 0 or end at N: only the
              samples between them are read.
    rows      [R]: output row r reads row rows[r]; many windows of few episodes are no copy.
    channels  a name for each channel of the flattened trailing shape.
    name      for error sentences and `Fused.columns`, where streams come as a sequence.

    times, arrivals, lengths, offsets and rows may be lists, or NumPy arrays beside tensors of another library: they are
    brought to the device of the values when the Stream is made.
    A duration is seconds as a float, nanoseconds as an int, or a timedelta. An int from 1 to 999 is refused, and for
    max_gap one up to 999,999, since whoever writes max_gap=1 means a second. A Stream does not change; `replace` makes
    another.
    """

    __slots__ = (
        "_arrivals",
        "_causal",
        "_channels",
        "_edge",
        "_latency",
        "_lengths",
        "_max_gap",
        "_method",
        "_name",
        "_offsets",
        "_on_nan",
        "_rows",
        "_spec",  # the options as the engine has parsed them: None before the first call
        "_times",
        "_values",
    )

    def __init__(
        self,
        values: Array,
        times: Any,
        *,
        method: Method | None = None,
        latency: Duration = 0,
        arrivals: Any = None,
        max_gap: Duration | None = None,
        edge: str | None = None,
        causal: bool | None = None,
        on_nan: str | None = None,
        lengths: Any = None,
        offsets: Any = None,
        rows: Any = None,
        channels: Sequence[str] | None = None,
        name: str | None = None,
    ) -> None:
        if isinstance(method, Iterable) and not isinstance(method, str):  # copied, so that nobody can change them later
            method = dict(method) if isinstance(method, Mapping) else tuple(method)
        kind = type(values)
        if type(times) is not kind:
            times = _beside(values, times)
        if arrivals is not None and type(arrivals) is not kind:
            arrivals = _beside(values, arrivals)
        if lengths is not None and type(lengths) is not kind:
            lengths = _beside(values, lengths)
        if offsets is not None and type(offsets) is not kind:
            offsets = _beside(values, offsets)
        if rows is not None and type(rows) is not kind:
            rows = _beside(values, rows)
        self._values = values
        self._times = times
        self._method = method
        self._latency = latency
        self._arrivals = arrivals
        self._max_gap = max_gap
        self._edge = edge
        self._causal = causal
        self._on_nan = on_nan
        self._lengths = lengths
        self._offsets = offsets
        self._rows = rows
        self._channels = channels if channels is None else tuple(channels)
        self._name = name
        self._spec = None
        if not _compiling():  # a traced call is checked when it runs
            _core.check_stream(self)

    @property
    def values(self) -> Array:
        return self._values

    @property
    def times(self) -> Any:
        return self._times

    @property
    def method(self) -> Method | None:
        return self._method

    @property
    def latency(self) -> Duration:
        return self._latency

    @property
    def arrivals(self) -> Any:
        return self._arrivals

    @property
    def max_gap(self) -> Duration | None:
        return self._max_gap

    @property
    def edge(self) -> str | None:
        return self._edge

    @property
    def causal(self) -> bool | None:
        return self._causal

    @property
    def on_nan(self) -> str | None:
        return self._on_nan

    @property
    def lengths(self) -> Any:
        return self._lengths

    @property
    def offsets(self) -> Any:
        return self._offsets

    @property
    def rows(self) -> Any:
        return self._rows

    @property
    def channels(self) -> tuple[str, ...] | None:
        return self._channels

    @property
    def name(self) -> str | None:
        return self._name

    def replace(self, **changes: Any) -> Stream[Any]:
        """The same stream, but for the arguments given: stream.replace(method="hold", values=other)."""
        return Stream(**{**self._arguments(), **changes})

    def _arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _STREAM_ARGUMENTS}

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_stream, (self._arguments(),)

    def __repr__(self) -> str:
        parts = [f"values {_shape(self.values)}", f"times {_shape(self.times)}"]
        for name, value in self._arguments().items():
            if name in ("values", "times") or value is None or (name == "latency" and value == 0):
                continue
            parts.append(f"{name}={value!r}" if not hasattr(value, "shape") else f"{name} {_shape(value)}")
        return f"Stream({', '.join(parts)})"


_STREAM_ARGUMENTS = (
    "values",
    "times",
    "method",
    "latency",
    "arrivals",
    "max_gap",
    "edge",
    "causal",
    "on_nan",
    "lengths",
    "offsets",
    "rows",
    "channels",
    "name",
)


def _restore_stream(arguments: dict[str, Any]) -> Stream[Any]:
    return Stream(**arguments)


class Timeline:
    """The times a policy wants values at, as a start, a rate and a count; no call writes them out, `times` does.

    Step k is start + rint((first + k) * 1e9 / rate) nanoseconds, for k from 0 to count - 1; there are len(timeline).

    start   nanoseconds as an int, seconds as a float, or an array [B] of either: a start for each row.
    rate    steps per second.
    count   how many steps.
    first   the number of the first step; negative where steps lie before `start`.
    """

    __slots__ = ("count", "first", "rate", "start")

    start: Any
    rate: float
    count: int
    first: int

    def __init__(self, start: Any, *, rate: float, count: int) -> None:
        self.start = start
        self.rate = rate
        self.count = count
        self.first = 0
        if not _compiling():  # a traced call is checked when it runs
            _core.check_timeline(self)
            self.start, self.rate, self.count = _python_number(start), _python_number(rate), _python_number(count)

    @staticmethod
    def around(t: Any, *, history: int, horizon: int, rate: float) -> Timeline:
        """Windows about `t` (a time, or an array [B] of times): `history` steps before it, then `horizon` from it on.

        Timeline.around(t, history=2, horizon=100, rate=50) has 102 steps, and t itself is step 2.
        """
        given: dict[str, Any] = {"history": history, "horizon": horizon}
        for name, steps in given.items():
            if isinstance(steps, bool) or not isinstance(steps, Integral):
                raise TypeError(f"Timeline.around: {name} is {steps!r}; expected an int")
            if steps < 0:
                raise ValueError(f"Timeline.around: {name} is {steps}; it must not be negative")
        line = Timeline(t, rate=rate, count=history + horizon)
        line.first = -history
        return line

    @staticmethod
    def over(streams: Stream[Any] | Mapping[str, Stream[Any]] | Sequence[Stream[Any]], *, rate: float) -> Timeline:
        """Where all streams overlap: from the latest first stamp to the earliest last one, latencies taken off.

            rc.Timeline.over([streams["joints"], streams["camera"]], rate=50)

        Pass the streams that run all the time. One that is written only on change (a gripper) would cut the timeline at
        its last change; left out, it is still aligned, and with causal=True its last sample is held and valid to the
        end.

        Row by row where a stream has rows; all rows then have as many steps as the longest overlap, and `valid` tells
        which of them a row really has. Streams without rows that do not overlap are refused, since they are on two
        clocks or in two units, and so are integer times under 1000 ns apart, since they are no nanoseconds. No step
        (count 0) where a stream is empty. Reads stamps on the host: for arrays on a GPU this waits for them.
        """
        from robocache._extent import overlap  # NumPy is only needed here

        names, members = _unpack("Timeline.over", [streams] if isinstance(streams, Stream) else streams)
        start, count = overlap(names, members, rate)
        return Timeline(start, rate=rate, count=count)

    @property
    def times(self) -> Any:
        """The steps, int64 nanoseconds: [T], or [B, T] where each row has a start.

        NumPy's where the start is a number, else the same kind of array as the starts, on the same device.
        """
        import numpy as np

        from robocache._extent import like

        zero = like(self.start, np.zeros(1, np.int64))
        return align([Stream(zero, zero)], self)[0].age  # how old a sample at 0 is

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        start = f"starts {_shape(self.start)}" if hasattr(self.start, "shape") else repr(self.start)
        first = "" if self.first == 0 else f", first={self.first}"
        return f"Timeline({start}, rate={self.rate}, count={self.count}{first})"


class Aligned(NamedTuple, Generic[Array]):
    """One stream on the timeline. Unpacks: values, valid, age, index = aligned["pose"]."""

    values: Array  # [B, T, ...]: no B where neither a stream nor the targets have rows
    valid: Any  # bool [B, T]: the value is real, not what `edge` put there
    age: Any  # int64 [B, T], nanoseconds: target minus the stamp of the sample at or before it
    # int64 [B, T], counted from the row's first: the sample at or before the target, but the one that "nearest" chose,
    # the one that the value is clamped to, -1 where none is behind the value
    index: Any

    def __repr__(self) -> str:
        parts = [f"{name} {_shape(part)}" for name, part in zip(self._fields, self, strict=True)]
        return f"Aligned({', '.join(parts)})"


class Fused(NamedTuple, Generic[Array]):
    """All streams on the timeline, side by side. fused.values[..., fused.columns["pose"]] is one of them."""

    values: Array  # [B, T, channels of all streams]
    valid: Any  # bool [B, T, streams]
    age: Any  # int64 [B, T, streams], nanoseconds
    columns: dict[str | int, slice]  # the channels of each stream: by name, or by position where it has none

    @property
    def index(self) -> Any:
        raise AttributeError("Fused has no index; align gives one for each stream")  # tuple has a method of that name

    def __repr__(self) -> str:
        parts = [f"{name} {_shape(part)}" for name, part in zip(self._fields, self, strict=True) if name != "columns"]
        columns = ", ".join(f"{name!r}: {c.start}..{c.stop}" for name, c in self.columns.items())
        return f"Fused({', '.join(parts)}, columns {{{columns}}})"


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
    lengths: Any = None,
    offsets: Any = None,
    rows: Any = None,
    on_nan: str = "propagate",
    check: bool = True,
    out: Array | None = None,
    backend: str | None = None,
) -> Array:
    """The values of one stream at other times.

        rc.resample(joints, stamps, targets)                        # [S, 7], [S], [T] -> [T, 7]
        rc.resample(joints, stamps, rc.Timeline(t0, rate=50, count=100), method="cubic")
        rc.resample(joints, stamps, targets, lengths=lengths)       # [B, S, 7], [B, S], [B, T] -> [B, T, 7]

    values, times, method, latency, max_gap, lengths, offsets, rows: see `Stream`.
    targets   [T] for all rows, [B, T], or a `Timeline`: dtypes as times, in any order (not decreasing for mean, max,
              min, last). Beside NumPy arrays a list will do.
    edge      what is returned where the value is not valid, which is before the first and after the last sample, inside
              a gap, and, with on_nan="skip", beside a sample that is not finite: "clamp" (the nearest sample; of "hold"
              never a later one, except before the first), "nan", "zero". "clamp" repeats the first and last sample
              beyond the ends: mask by the `valid` of `align`. Where no sample exists (an empty stream; with causal,
              before the first arrival) "clamp" returns 0.
    causal    only what had arrived by the target: what a robot would have seen. Samples are held.
    on_nan    "propagate", or "skip": a sample that is not finite makes no valid value.
    check     False leaves out what only the data can tell: that times do not decrease, that lengths, offsets, rows fit.
    out       an array to write into, of the shape, dtype and device that would be returned; any strides, in memory of
              its own: no input lies between its first and last byte. Not for JAX.
    backend   "reference", "cpu", "cuda" or "torch"; default: by the device of the arrays.

    Returns an array [B, T, ...] of the same kind, on the same device, queued on the caller's current stream. CUDA calls
    do not wait; what their checks find is raised by the thread's next call or `rc.synchronize()`. With JAX on a GPU the
    call returns when the result is there, and waits for the GPU before it frees results that JAX has let go of. torch's
    record_stream() does nothing for a tensor made here, as for every tensor that comes through DLPack: where another
    stream uses it, pass out=. torch differentiates it by `values`, once; backend="torch" differentiates twice.
    """
    kind = type(values)
    if type(times) is not kind:
        times = _beside(values, times)
    if lengths is not None and type(lengths) is not kind:
        lengths = _beside(values, lengths)
    if offsets is not None and type(offsets) is not kind:
        offsets = _beside(values, offsets)
    if rows is not None and type(rows) is not kind:
        rows = _beside(values, rows)
    if not _compiling():
        made: Array = _core.resample(
            values,
            times,
            targets,
            method,
            edge,
            max_gap,
            latency,
            causal,
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
    from robocache import _torch

    stream = Stream(
        values,
        times,
        method=method,
        latency=latency,
        max_gap=max_gap,
        lengths=lengths,
        offsets=offsets,
        rows=rows,
    )
    return _torch.resample(stream, targets, _options(edge, causal, on_nan, check, backend), out)  # type: ignore


@overload
def align(
    streams: Mapping[str, Stream[Array]],
    targets: Any,
    *,
    edge: str = "clamp",
    causal: bool = False,
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
    on_nan: str = "propagate",
    check: bool = True,
    backend: str | None = None,
) -> dict[str, Aligned[Array]] | list[Aligned[Array]]:
    """Many streams on one timeline, each with its own dtype, shape and method; 1 to 64 in one launch per dtype.

        aligned = rc.align({"pose": pose, "gripper": gripper}, rc.Timeline(t0, rate=50, count=100))
        values, valid, age, index = aligned["pose"]

    streams   a dict by name, or a sequence; streams without rows are broadcast beside those that have them.
    targets, edge, causal, on_nan, check, backend: see `resample`; a stream's own edge, causal and on_nan come first.

    Returns an `Aligned` for each stream: a dict by the same names, or a list in the same order. Whose memory it is and
    when it is there: see `resample`, also for record_stream().
    """
    if not _compiling():
        made: dict[str, Aligned[Array]] | list[Aligned[Array]] = _core.align(
            streams, None, targets, edge, causal, on_nan, check, backend
        )
        if made is not NotImplemented:
            return made
    from robocache import _torch

    names, members = _unpack("align", streams)
    parts = _torch.align(names, members, targets, _options(edge, causal, on_nan, check, backend))
    return dict(zip(streams, parts, strict=True)) if isinstance(streams, Mapping) else parts


def fuse(
    streams: Mapping[str, Stream[Array]] | Sequence[Stream[Array]],
    targets: Any,
    *,
    edge: str = "clamp",
    causal: bool = False,
    on_nan: str = "propagate",
    check: bool = True,
    dtype: Any = None,
    out: Array | None = None,
    backend: str | None = None,
) -> Fused[Array]:
    """Many streams on one timeline, concatenated: what a policy takes as its observation.

        fused = rc.fuse({"joints": joints, "pose": pose, "gripper": gripper}, timeline)
        fused.values                                  # [B, T, 7 + 7 + 1]
        fused.values[..., fused.columns["pose"]]      # [B, T, 7]
        fused.valid[..., 2]                           # [B, T]: is the gripper's value real?

    dtype     of the fused values; needed where the streams' dtypes differ. Each stream is computed in its own dtype and
              rounded once. An integer dtype must be able to hold every value of each stream.
    out       an array to write the values into, as in `resample`; its dtype counts where `dtype` is not given.
    streams, targets, edge, causal, on_nan, check, backend: see `align` and `resample`.

    Returns a `Fused`. Whose memory it is and when it is there: see `resample`, also for record_stream().
    """
    if not _compiling():
        made: Fused[Array] = _core.fuse(streams, None, targets, edge, causal, on_nan, check, backend, dtype, out)
        if made is not NotImplemented:
            return made
    from robocache import _torch

    names, members = _unpack("fuse", streams)
    options = _options(edge, causal, on_nan, check, backend)
    return _torch.fuse(names, members, targets, options, dtype, out)  # type: ignore


def _look_for_torch() -> bool:
    """Whether torch.compile or torch.export traces this. torch is never imported for the question."""
    global _compiling
    compiler: Any = getattr(sys.modules.get("torch"), "compiler", None)
    # No torch, or one before 2.5, which cannot trace our calls: it breaks the graph there, and makes them as they are.
    if not hasattr(compiler, "substitute_in_graph"):
        return False
    if compiler.is_compiling():
        return True
    _compiling = compiler.is_compiling  # once it is there, the question costs 70 ns instead of 150
    return False


_compiling: Callable[[], bool] = _look_for_torch
_look_for_torch()


def stored_duration(nanoseconds: int) -> Duration:
    """A duration out of a file or another call. As an int a short one would be refused, since a person who writes that
    means another unit."""
    return nanoseconds * 1e-9 if -1_000_000 < nanoseconds < 1_000_000 else nanoseconds


def _beside(values: Any, array: Any) -> Any:
    """A list, or a NumPy array beside tensors of another library, as an array like the values."""
    from robocache._arrays import beside  # NumPy is only needed here

    return beside(values, array)


def _unpack(
    operation: str, streams: Mapping[str, Stream[Array]] | Sequence[Stream[Array]]
) -> tuple[tuple[str | None, ...], tuple[Stream[Array], ...]]:
    """The names and the streams, as the torch layer takes them."""
    names: tuple[str | None, ...]
    if isinstance(streams, Mapping):
        names, members = tuple(streams), tuple(streams.values())
    elif isinstance(streams, (list, tuple)):
        members = tuple(streams)
        names = tuple([member.name if isinstance(member, Stream) else None for member in members])
    else:
        raise TypeError(f"{operation}: streams is of type {_kind(streams)}; expected a dict or a list of Stream")
    for position, member in enumerate(members):
        if not isinstance(member, Stream):
            where = f'{operation}: stream "{names[position] or position}"'  # type: ignore[unreachable]
            raise TypeError(f"{where}: expected a robocache.Stream, not {_kind(member)}")
    named = [name for name in names if name is not None]
    if len(set(named)) < len(named):
        raise ValueError(f"{operation}: two streams have the same name; they are named {', '.join(named)}")
    return names, members


def _options(edge: str, causal: bool, on_nan: str, check: bool, backend: str | None) -> dict[str, Any]:
    return {"edge": edge, "causal": causal, "on_nan": on_nan, "check": check, "backend": backend}


def _python_number(number: Any) -> Any:
    """What is no number of NumPy stays as it is. Dynamo would take a number of NumPy for an array."""
    is_numpy = isinstance(number, Number) and type(number).__module__ == "numpy"
    return number.item() if is_numpy else number


def _kind(thing: Any) -> str:
    kind = type(thing)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _shape(array: Any) -> str:
    if not hasattr(array, "shape"):
        return f"({type(array).__name__})"
    return f"{str(array.dtype).removeprefix('torch.')} {list(array.shape)}"
