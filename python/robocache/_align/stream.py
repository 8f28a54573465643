"""Stream: one sensor's samples, and how they become values at other times."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from robocache import _core
from robocache._align import tracing

Array = TypeVar("Array")
Duration = float | int | datetime.timedelta
Method = str | Sequence[tuple[str, int, int]] | Mapping[str, str]


class Stream(Generic[Array]):
    """One sensor: its samples, their times, and how they become values at other times.

    A Stream does not change; `replace` makes a new one. Durations are seconds as a float, nanoseconds as an int, or a
    timedelta. An int from 1 to 999 is refused, and for `max_gap` up to 999,999, because `max_gap=1` usually means one
    second. All arguments but `values` may be lists, or NumPy arrays beside tensors of another library: they are moved
    to the device of `values` when the Stream is made.

    Args:
        values: The samples: [S, ...], batched [B, S, ...], or packed [N, ...] with `offsets`. Any trailing shape and
            any strides.
        times: When each sample was taken: [S], [B, S] or [N], int64 nanoseconds or float64 or float32 seconds. Times
            must not decrease.
        method: How samples become values between their times: "linear" (default for floats), "hold" (default for
            integers and bool), "nearest", "slerp" (unit quaternions in four neighbouring channels, xyzw and wxyz
            alike), "angle", "angle_degrees" or "cubic". Over the samples since the previous target: "mean", "max",
            "min" or "last". By channel: `[("linear", 0, 3), ("slerp", 3, 7)]`. By name, if `channels` are given:
            `{"position[0]": "angle", "orientation.*": "slerp", "*": "linear"}`. An exact name wins over an fnmatch
            pattern, and the first matching pattern wins. A key that matches no channel is an error.
        latency: How much later than the event a stamp is; subtracted from the times. May be negative.
        arrivals: When each sample reached the robot, like `times`. `causal` uses them. Default: `times`.
        max_gap: The longest step between two samples that is not a gap. A target strictly inside a gap is not valid.
        edge: Overrides the `edge` of the call for this stream.
        causal: Overrides the `causal` of the call for this stream.
        as_of: Overrides the `as_of` of the call for this stream; False switches it off.
        on_nan: Overrides the `on_nan` of the call for this stream.
        lengths: [B]: how many of the S samples of each padded row are real.
        offsets: [B + 1]: row b is packed at `offsets[b] .. offsets[b + 1]`. Offsets need not start at 0 or end at N:
            only the samples between them are read.
        rows: [R]: output row r reads row `rows[r]`, so many windows of a few episodes need no copy.
        channels: A name for each channel of the flattened trailing shape.
        name: The stream's name in error messages and `Fused.columns`, for streams that are passed as a sequence.

    Examples:
        >>> pose = rc.Stream(values, stamps, method=[("linear", 0, 3), ("slerp", 3, 7)], latency=0.008)
        >>> held = pose.replace(method="hold")
    """

    __slots__ = (
        "_arrivals",
        "_as_of",
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
    _check = staticmethod(_core.check_stream)

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
        as_of: Any = None,
        on_nan: str | None = None,
        lengths: Any = None,
        offsets: Any = None,
        rows: Any = None,
        channels: Sequence[str] | None = None,
        name: str | None = None,
    ) -> None:
        if isinstance(method, Iterable) and not isinstance(method, str):  # copy it: the caller may change theirs later
            method = dict(method) if isinstance(method, Mapping) else tuple(method)
        kind = type(values)
        if type(times) is not kind:
            times = moved_beside(values, times)
        if arrivals is not None and type(arrivals) is not kind:
            arrivals = moved_beside(values, arrivals)
        if lengths is not None and type(lengths) is not kind:
            lengths = moved_beside(values, lengths)
        if offsets is not None and type(offsets) is not kind:
            offsets = moved_beside(values, offsets)
        if rows is not None and type(rows) is not kind:
            rows = moved_beside(values, rows)
        if as_of is not None and type(as_of) is not kind:
            as_of = moved_beside(values, as_of)
        self._values = values
        self._times = times
        self._method = method
        self._latency = latency
        self._arrivals = arrivals
        self._max_gap = max_gap
        self._edge = edge
        self._causal = causal
        self._as_of = as_of
        self._on_nan = on_nan
        self._lengths = lengths
        self._offsets = offsets
        self._rows = rows
        self._channels = channels if channels is None else tuple(channels)
        self._name = name
        self._spec = None
        if not tracing.compiling():  # a traced call is checked when it runs
            if kind is list or kind is tuple:  # CacheWriter.add takes lists of samples; align refuses them
                _core.check_stream_options(self)
            else:
                self._check(self)

    @property
    def values(self) -> Array:
        """The samples."""
        return self._values

    @property
    def times(self) -> Any:
        """When each sample was taken, before `latency` is subtracted."""
        return self._times

    @property
    def method(self) -> Method | None:
        """How samples become values between their times; None: the default of their dtype."""
        return self._method

    @property
    def latency(self) -> Duration:
        """How much later than the event a stamp is."""
        return self._latency

    @property
    def arrivals(self) -> Any:
        """When each sample reached the robot; None: at its time."""
        return self._arrivals

    @property
    def max_gap(self) -> Duration | None:
        """The longest step between two samples that is not a gap; None: no step is a gap."""
        return self._max_gap

    @property
    def edge(self) -> str | None:
        """Overrides the call's `edge`."""
        return self._edge

    @property
    def causal(self) -> bool | None:
        """Overrides the call's `causal`."""
        return self._causal

    @property
    def as_of(self) -> Any:
        """Overrides the call's `as_of`; False: every sample exists."""
        return self._as_of

    @property
    def on_nan(self) -> str | None:
        """Overrides the call's `on_nan`."""
        return self._on_nan

    @property
    def lengths(self) -> Any:
        """[B]: the number of real samples in each padded row."""
        return self._lengths

    @property
    def offsets(self) -> Any:
        """[B + 1]: where each packed row begins and ends."""
        return self._offsets

    @property
    def rows(self) -> Any:
        """[R]: the row that each output row reads."""
        return self._rows

    @property
    def channels(self) -> tuple[str, ...] | None:
        """The name of each channel."""
        return self._channels

    @property
    def name(self) -> str | None:
        """The stream's name in error messages and `Fused.columns`."""
        return self._name

    def replace(self, **changes: Any) -> Stream[Any]:
        """A copy of the stream with some arguments changed.

        Args:
            **changes: Arguments of `Stream`, such as `method="hold"`.

        Returns:
            The new stream. Arrays that were not changed are shared with this one.
        """
        return Stream(**{**self._arguments(), **changes})

    def _arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _STREAM_ARGUMENTS}

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_stream, (self._arguments(),)

    def __repr__(self) -> str:
        parts = [f"values {shape_of(self.values)}", f"times {shape_of(self.times)}"]
        for name, value in self._arguments().items():
            if name in ("values", "times") or value is None or (name == "latency" and value == 0):
                continue
            parts.append(f"{name}={value!r}" if not hasattr(value, "shape") else f"{name} {shape_of(value)}")
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
    "as_of",
    "on_nan",
    "lengths",
    "offsets",
    "rows",
    "channels",
    "name",
)


class UncheckedStream(Stream[Array]):
    """A Stream whose arrays are checked later, by the call it is made for, so that errors name that call."""

    __slots__ = ()
    _check = staticmethod(_core.check_stream_options)


def _restore_stream(arguments: dict[str, Any]) -> Stream[Any]:
    return Stream(**arguments)


def stored_duration(nanoseconds: int) -> Duration:
    """A duration from a file or another call, in a form that Stream accepts.

    Stream refuses short integers, because a person who writes one means another unit. Seconds carry them instead.
    """
    return nanoseconds * 1e-9 if -1_000_000 < nanoseconds < 1_000_000 else nanoseconds


def moved_beside(values: Any, array: Any) -> Any:
    """A list, or a NumPy array beside tensors of another library, as an array like the values."""
    from robocache._arrays import beside  # NumPy is only needed here

    return beside(values, array)


def kind_of(thing: Any) -> str:
    """The name of a thing's type, with its module unless it is a builtin."""
    kind = type(thing)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def shape_of(array: Any) -> str:
    """dtype and shape in one string, as reprs show them."""
    if not hasattr(array, "shape"):
        return f"({type(array).__name__})"
    return f"{str(array.dtype).removeprefix('torch.')} {list(array.shape)}"
