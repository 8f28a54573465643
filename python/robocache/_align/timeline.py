"""Timeline: the times at which a policy wants values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Number
from typing import Any

from robocache import _core
from robocache._align import tracing
from robocache._align.stream import Stream, shape_of


class Timeline:
    """The times at which a policy wants values: a start, a rate and a count.

    Step k is start + rint((first + k) * 1e9 / rate) nanoseconds, for k from 0 to count - 1. `len(timeline)` is the
    count. Calls compute the times where they need them; `times` returns them as an array.

    Args:
        start: Nanoseconds as an int, seconds as a float, or an array [B] of either: a start for each row.
        rate: Steps per second.
        count: The number of steps.

    Attributes:
        first: The number of the first step: 0, or negative if steps lie before `start` (see `around`).
        anchored: Whether `around` made the timeline. `as_of="anchor"` then takes `start` as the time of the decision.

    Examples:
        >>> rc.Timeline(t0, rate=50, count=100)
        >>> rc.Timeline.over([streams["joints"], streams["camera"]], rate=50)
        >>> rc.Timeline.around(t, history=2, horizon=100, rate=50)
    """

    __slots__ = ("anchored", "count", "first", "rate", "start")

    start: Any
    rate: float
    count: int
    first: int
    anchored: bool

    def __init__(self, start: Any, *, rate: float, count: int) -> None:
        self.start = start
        self.rate = rate
        self.count = count
        self.first = 0
        self.anchored = False
        if not tracing.compiling():  # a traced call is checked when it runs
            _core.check_timeline(self)
            self.start, self.rate, self.count = _python_number(start), _python_number(rate), _python_number(count)

    @staticmethod
    def around(t: Any, *, history: int, horizon: int, rate: float) -> Timeline:
        """Windows around one time or many: `history` steps before `t`, then `horizon` steps that begin at `t`.

        Args:
            t: A time, or an array [B] of times.
            history: The number of steps before `t`.
            horizon: The number of steps from `t` on; the first of them is `t` itself.
            rate: Steps per second.

        Returns:
            A timeline of history + horizon steps.

        Examples:
            >>> line = rc.Timeline.around(t, history=2, horizon=100, rate=50)
            >>> len(line)   # t itself is step 2
            102
            >>> rc.align(streams, line, as_of="anchor")   # from what had arrived by t
        """
        given: dict[str, Any] = {"history": history, "horizon": horizon}
        for name, steps in given.items():
            if isinstance(steps, bool) or not isinstance(steps, Integral):
                raise TypeError(f"Timeline.around: {name} is {steps!r}; expected an int")
            if steps < 0:
                raise ValueError(f"Timeline.around: {name} is {steps}; it must not be negative")
        line = Timeline(t, rate=rate, count=history + horizon)
        line.first = -history
        line.anchored = True
        return line

    @staticmethod
    def over(streams: Stream[Any] | Mapping[str, Stream[Any]] | Sequence[Stream[Any]], *, rate: float) -> Timeline:
        """The time that all streams share: from the latest first stamp to the earliest last one, minus latencies.

        Pass the streams that run all the time. A stream that is written only on change, such as a gripper command,
        would end the timeline at its last change. Leave it out here and still align it: with `causal=True` its last
        sample is held and valid to the end.

        For streams with rows, each row has its own start. All rows have as many steps as the longest overlap, and the
        `valid` of `align` tells which of them are real. A stream without samples makes an empty timeline. The stamps
        are read on the host: arrays on a GPU are waited for.

        Args:
            streams: A stream, or a dict or sequence of streams.
            rate: Steps per second.

        Returns:
            The timeline.

        Raises:
            ValueError: The streams do not overlap, which means two clocks or two units; or integer times are under
                1000 ns apart, so they are not nanoseconds.
        """
        from robocache._align.align import unpack
        from robocache._align.extent import overlap  # NumPy is only needed here

        names, members = unpack("Timeline.over", [streams] if isinstance(streams, Stream) else streams)
        start, count = overlap(names, members, rate)
        return Timeline(start, rate=rate, count=count)

    @property
    def times(self) -> Any:
        """The steps, int64 nanoseconds: [T], or [B, T] if each row has a start.

        A NumPy array if the start is a number; otherwise an array like the starts, on their device.
        """
        import numpy as np

        from robocache._align.align import align
        from robocache._align.extent import like

        zero = like(self.start, np.zeros(1, np.int64))
        return align([Stream(zero, zero)], self)[0].age  # the age of a sample at time 0 is the time

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        start = f"starts {shape_of(self.start)}" if hasattr(self.start, "shape") else repr(self.start)
        first = "" if self.first == 0 else f", first={self.first}"
        return f"Timeline({start}, rate={self.rate}, count={self.count}{first})"


def with_start(line: Timeline, start: Any) -> Timeline:
    """The same steps from another start, or from a start for each row."""
    made = Timeline(start, rate=line.rate, count=line.count)
    made.first, made.anchored = line.first, line.anchored
    return made


def anchor_of(where: str, targets: Any) -> Any:
    """The times of decision that `as_of="anchor"` means: the `t` of `Timeline.around`."""
    if not (isinstance(targets, Timeline) and targets.anchored):
        raise ValueError(
            f'{where}as_of="anchor" needs targets that are a Timeline.around, whose t is the decision; give as_of a '
            "time, or one for each row"
        )
    return targets.start


def _python_number(number: Any) -> Any:
    """A NumPy number as a Python number, because Dynamo would take it for an array. Anything else stays as it is."""
    is_numpy = isinstance(number, Number) and type(number).__module__ == "numpy"
    return number.item() if is_numpy else number
