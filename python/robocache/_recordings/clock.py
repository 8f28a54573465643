"""One clock for a recording: `time="auto"` of formats whose messages have both stamps and log times.

The engine decides (robocache/clock.h) by a survey of the stamps. First it glances at three short stretches and at the
first message of each topic. If all of these run with log time, no time is converted and nothing else is read. Otherwise
the headers of all messages are surveyed once, and every access path converts its batches by the result.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache import _core
from robocache._recordings.bytes import ForkLock
from robocache._recordings.source import (
    MANY,
    Batch,
    Content,
    Part,
    ReadAgain,
    Source,
    SourceOver,
    StreamInfo,
    clipped,
    topic_of,
)
from robocache._recordings.words import counted, figures

SIMULATED = 10_000  # ppm: a crystal drifts less, so a clock that drifts more is simulated
NEAR = 60e9  # nanoseconds: stamps this close to log time may be on its clock
# A latched topic is static if it has fewer than FEW samples or at most SLOW per second. So is a single sample in the
# first AT_ONCE of a recording of at least LONG.
FEW = 8
SLOW = 1.0  # hertz
AT_ONCE = 1_000_000_000  # nanoseconds
LONG = 10_000_000_000  # nanoseconds


class Decision(NamedTuple):
    """A recording's clock."""

    clock: _core.RecordingClock
    carries: bool  # whether log times are converted; if not, times and arrivals are the source's
    static: frozenset[str]  # topics


class ClockedSource(SourceOver):
    """A source whose times and arrivals are on the recording's clock; a reset of a simulation begins an episode.

    as_stamped   streams whose stamps a recipe keeps as they are
    not_static   streams that a recipe says are no constants
    """

    def __init__(
        self, source: Source, as_stamped: frozenset[str] = frozenset(), not_static: frozenset[str] = frozenset()
    ) -> None:
        super().__init__(source)
        self.as_stamped, self.not_static = as_stamped, not_static
        self._decision: Decision | None = None
        self._lock = ForkLock()
        self._static_infos: dict[str, tuple[StreamInfo, StreamInfo]] = {}

    def decide(self) -> Decision:
        """The decision. The first call reads what it needs."""
        with self._lock:
            if self._decision is None:
                self._decision = decide(self.source)
                if self._decision.carries:
                    self.note(*words(self.describe_clock()))
            return self._decision

    def settle(self, decision: Decision) -> None:
        """Sets the decision that a pass has found."""
        with self._lock:
            self._decision = self._decision or decision

    def describe_clock(self) -> dict[str, Any] | None:
        decision = self._decision or self.decide()
        found: dict[str, Any] = decision.clock.describe()
        if not decision.carries:  # only a glance, which has seen few of the messages
            found |= {"kind": "with log time" if found["agreeing"] else "log time", "resets": 0}
            found["streams"] = {}
        return found | {"static": sorted(decision.static)}

    def presumed(self) -> Source | None:
        known = self._decision is not None or self.as_stamped or self.not_static
        return None if known or not self.source.stretches() else PresumedSource(self)

    def constants(self) -> frozenset[str]:
        return self.decide().static

    def extents(self) -> Sequence[Part]:
        return self.source.parts() if self._decision is None else self.parts()

    def parts(self) -> Sequence[Part]:
        clock, carries, _ = self.decide()
        if not carries:
            return self.source.parts()
        whole = self.source.parts()[0]
        if whole.start is None or whole.end is None:
            bounds: list[tuple[int | None, int | None]] = [(None, None)] * len(clock.episodes)
        else:
            bounds = []
            for number in range(len(clock.episodes)):
                low, high = clock.log_range(number, None, None)
                ends = [whole.start if low is None else low, whole.end if high is None else high - 1]
                start, end = clock.at(number, np.asarray(ends, np.int64)).tolist()
                bounds.append((start, max(start, end)))
        names = [whole.name] if len(bounds) == 1 else [f"{whole.name}-{k}" for k in range(len(bounds))]
        return [Part(name, whole.task, *bound) for name, bound in zip(names, bounds, strict=True)]

    def contents(self, episode: int) -> Mapping[str, Content]:
        contents = self.source.contents(0)
        if len(self.decide().clock.episodes) == 1:
            return contents
        return {name: content._replace(samples=None) for name, content in contents.items()}

    def batches(
        self,
        streams: Collection[str] | None = None,
        episode: int | None = None,
        start: int | None = None,
        end: int | None = None,
    ) -> Iterator[Batch]:
        clock, carries, static = self.decide()
        if not carries:
            found = self.source.batches(streams, episode, start, end)
            yield from map(self._tagged, found) if static else found
            return
        numbers = range(len(clock.episodes)) if episode is None else [episode]
        later = [number for number in numbers if number > 0]
        kept = self._kept(clock, later, streams) if later and static else None
        for number in numbers:
            low, high = clock.log_range(number, start, end)
            if number > 0 and kept is not None:
                cut = reset_before(clock, number)
                at = int(clock.at(number, np.asarray([cut], np.int64))[0])
                yield from map(self._tagged, kept.before(cut, number, at))
            carried = (self._carried(clock, number, batch) for batch in self.source.batches(streams, 0, low, high))
            yield from clipped(carried, start, end)

    def _kept(
        self, clock: _core.RecordingClock, numbers: Sequence[int], streams: Collection[str] | None
    ) -> LastSamples | None:
        """The constants from before the resets that begin these episodes: they still hold, but are rarely resent."""
        names = list(self.source.contents(0)) if streams is None else list(streams)
        wanted = [name for name in names if self._is_static(name)]
        cuts = [reset_before(clock, number) for number in numbers]
        return LastSamples(self.source.batches(wanted, 0, None, max(cuts)), cuts) if wanted else None

    def _carried(self, clock: _core.RecordingClock, number: int, batch: Batch) -> Batch:
        told = batch.info.metadata.get("time", "")
        times, arrivals = clock.carry(
            number,
            batch.stream,
            told,
            np.ascontiguousarray(batch.times, np.int64),
            np.ascontiguousarray(batch.arrivals, np.int64),
        )
        if batch.stream in self.as_stamped:
            times = batch.times
        return self._tagged(batch._replace(episode=number, times=times, arrivals=arrivals))

    def _is_static(self, stream: str) -> bool:
        return topic_of(stream, self.decide().static) is not None and stream not in self.not_static

    def _tagged(self, batch: Batch) -> Batch:
        if not self._is_static(batch.stream):
            return batch
        before, tagged = self._static_infos.get(batch.stream, (None, batch.info))
        if before is not batch.info:
            tagged = as_static(batch.info)
            self._static_infos[batch.stream] = batch.info, tagged
        return batch._replace(info=tagged, times=batch.times if batch.stream in self.as_stamped else batch.arrivals)

    def listed(self, episode: int) -> Mapping[str, Content]:
        return self.source.listed(0)

    def quick(self) -> Mapping[str, tuple[str, NDArray[np.int64]]] | None:
        clock, carries, _ = self.decide()
        found = self.source.quick() if len(clock.episodes) == 1 else None
        if found is None or not carries:
            return found
        return {name: (kind, clock.at(0, np.ascontiguousarray(at))) for name, (kind, at) in found.items()}

    def promised(self) -> Mapping[str, StreamInfo]:
        found = self.source.promised()
        return {name: as_static(info) if self._is_static(name) else info for name, info in found.items()}


class PresumedSource(SourceOver):
    """A recording in one pass, as if its clock ran with log time. The pass checks the samples of a glance."""

    def __init__(self, clocked: ClockedSource) -> None:
        super().__init__(clocked.source)
        self.clocked = clocked

    def listed(self, episode: int) -> Mapping[str, Content]:
        return self.source.listed(0)

    def batches(
        self,
        streams: Collection[str] | None = None,
        episode: int | None = None,
        start: int | None = None,
        end: int | None = None,
    ) -> Iterator[Batch]:
        glance = _core.ClockSurvey()
        stretches = self.source.stretches() or []
        listed = self.source.listed(0)
        begun: set[str] = set()  # streams
        watched: dict[
            str, str
        ] = {}  # the surveyed stream of each topic: the topic's other streams have the same stamps
        constants = StaticTopics(self.source)
        for batch in self.source.batches():
            topic = topic_of(batch.stream, listed) or batch.stream
            name = batch.stream if batch.info.type in MANY else topic
            is_first = batch.stream not in begun and len(batch.arrivals) > 0
            if is_first:
                begun.add(batch.stream)
                constants.arrived(topic, int(batch.arrivals[0]))
            is_static = topic in constants.found
            if watched.setdefault(name, batch.stream) == batch.stream:
                watch(glance, name, batch, stretches, is_first, is_static)
            yield as_constant(batch) if is_static else batch
        names = sorted(constants.found)
        if not glance.runs_with_log_time(names):
            raise ReadAgain
        self.clocked.settle(Decision(_core.find_clock(glance, names), False, frozenset(names)))


def watch(
    glance: Any, name: str, batch: Batch, stretches: Sequence[tuple[int, int]], is_first: bool, is_static: bool
) -> None:
    """Surveys the samples of a glance: those in the stretches, and the first of each stream."""
    at = batch.arrivals
    if not len(at):
        return
    seen = np.zeros(len(at), bool)
    seen[0] = is_first
    for start, end in stretches:
        if at[0] < end and start <= at[-1]:
            seen |= (at >= start) & (at < end)
    if not seen.any():
        return
    logs, stamps = at[seen], batch.times[seen]
    told = batch.info.metadata.get("time", "")
    if told != "stamp":
        stamps = np.where((stamps == logs) | (told == "log"), 0, stamps)
    if not is_static and np.abs(logs - stamps)[stamps != 0].max(initial=0) >= NEAR:
        raise ReadAgain
    glance.add(name, np.ascontiguousarray(logs), np.ascontiguousarray(stamps))


def as_constant(batch: Batch) -> Batch:
    return batch._replace(info=as_static(batch.info), times=batch.arrivals)


def reset_before(clock: _core.RecordingClock, number: int) -> int:
    """The log time of the reset that begins an episode after the first."""
    cut, _ = clock.log_range(number, None, None)
    assert cut is not None
    return cut


class LastSamples:
    """The last sample of each stream before each of some cuts, found in one pass."""

    def __init__(self, batches: Iterable[Batch], cuts: Iterable[int]) -> None:
        self.cuts = np.unique(np.fromiter(cuts, np.int64))
        # By stream, and by the number of the first cut after a sample: the last such sample.
        self.samples: dict[str, dict[int, Batch]] = {}
        for batch in batches:
            known = self.samples.setdefault(batch.stream, {})
            next_cut = np.searchsorted(self.cuts, batch.arrivals, side="right")
            numbers, from_end = np.unique(next_cut[::-1], return_index=True)
            ends = None if batch.lengths is None else np.cumsum(batch.lengths)
            for number, k in zip(numbers.tolist(), (len(next_cut) - 1 - from_end).tolist(), strict=True):
                if number < len(self.cuts):
                    known[number] = one_sample(batch, k, ends)
        self.numbers = {stream: sorted(known) for stream, known in self.samples.items()}

    def before(self, cut: int, episode: int, at: int) -> Iterator[Batch]:
        """Each of them as a batch of this episode, at this time."""
        stamp = np.asarray([at], np.int64)
        cut_number = int(np.searchsorted(self.cuts, cut))
        for stream, numbers in self.numbers.items():
            place = bisect_right(numbers, cut_number)
            if place:
                yield self.samples[stream][numbers[place - 1]]._replace(episode=episode, times=stamp, arrivals=stamp)


def one_sample(batch: Batch, k: int, ends: NDArray[np.int64] | None) -> Batch:
    """A copy of the k-th sample. ends: for a ragged stream, where the rows of each sample end."""
    if ends is None or batch.lengths is None:
        rows, lengths = batch.values[k : k + 1], None
    else:
        lengths = batch.lengths[k : k + 1]
        rows = batch.values[int(ends[k] - lengths[0]) : int(ends[k])]
    at = slice(k, k + 1)
    return batch._replace(values=rows.copy(), times=batch.times[at], arrivals=batch.arrivals[at], lengths=lengths)


def as_static(info: StreamInfo) -> StreamInfo:
    """The batch as a constant. Its times are its arrivals, because its stamps may be much older than the recording."""
    return info._replace(metadata=info.metadata | {"static": "true", "time": "log"})


def decide(source: Source) -> Decision:
    glance = _core.ClockSurvey()
    source.survey(glance, True)
    constants, listed = StaticTopics(source), source.listed(0)
    for name, at in glance.first_log_times().items():
        constants.arrived(topic_of(name, listed) or name, at)
    static = frozenset(constants.found)
    names = sorted(static)
    if glance.runs_with_log_time(names):
        return Decision(_core.find_clock(glance, names), False, static)
    survey = _core.ClockSurvey(glance.log_unit())
    source.survey(survey, False)
    clock = _core.find_clock(survey, names)
    return Decision(clock, clock.carries, static)


class StaticTopics:
    """Finds constants: tf_static, latched topics with few messages, and single samples early in a long recording.

    The first two are found at once. A single sample is judged when its arrival is known.
    """

    def __init__(self, source: Source) -> None:
        self.found: set[str] = set()
        self._singles: set[str] = set()
        latched = source.latched()
        whole = source.parts()[0]
        length = None if whole.start is None or whole.end is None else whole.end - whole.start
        self._latest = None if whole.start is None else whole.start + AT_ONCE
        for topic, content in source.listed(0).items():
            count = content.samples
            if topic.rpartition("/")[2] == "tf_static":
                self.found.add(topic)
            elif topic in latched:
                if count is None or count < FEW or length is None or count <= SLOW * length * 1e-9:
                    self.found.add(topic)
            elif count == 1 and length is not None and length >= LONG:
                self._singles.add(topic)

    def arrived(self, topic: str, at: int) -> None:
        if topic in self._singles and self._latest is not None and at <= self._latest:
            self.found.add(topic)


# ---- In words


def words(clock: Mapping[str, Any] | None) -> list[str]:
    """Notes on a recording's clock."""
    if clock is None:
        return []
    said = [named(clock)]
    if clock["log_unit_ns"] != 1:
        unit = {1_000: "microseconds", 1_000_000: "milliseconds", 1_000_000_000: "seconds"}[clock["log_unit_ns"]]
        said.append(f"its log times are in {unit}, not in nanoseconds, as its stamps show; they are read as such")
    own = {name: stream for name, stream in clock["streams"].items() if stream["source"] == "own"}
    for name, stream in list(own.items())[:8]:
        drift = f"drift {stream['drift_ppm']:+.0f} ppm"
        if abs(stream["drift_ppm"]) > SIMULATED:  # log time passes 1 + drift times as fast
            drift = f"real-time factor {figures(1 / max(1 + stream['drift_ppm'] * 1e-6, 1e-9))}"
        said.append(
            f"{name} is stamped by a clock of its own, {seconds(-stream['offset_s'])} from log time, {drift}; its "
            'stamps were carried over (a recipe undoes that: clock = "as stamped")'
        )
    if len(own) > 8:
        said.append(f"{len(own) - 8} more streams have clocks of their own, and were carried over")
    if clock["resets"]:
        again = "once" if clock["resets"] == 1 else f"{clock['resets']} times"
        said.append(f"its clock was reset {again}: a new episode begins at each reset")
    return said


def clock_name(clock: Mapping[str, Any]) -> str:
    if clock["kind"] == "log time":
        return "log time"
    if clock["kind"] == "with log time":
        return "wall time"
    return "wall time of another clock" if clock["is_wall"] else "simulated time"


def named(clock: Mapping[str, Any]) -> str:
    on = counted(clock["agreeing"], "stamped stream")
    if clock["kind"] == "log time":
        return "its clock is log time: no stream is stamped"
    if clock["kind"] == "with log time":
        return f"its clock is wall time: the stamps of {on} run with log time, and nothing was carried over"
    rate = f"real-time factor {figures(clock['rate'])}"
    if clock["fastest"] - clock["slowest"] > 0.02 * max(clock["rate"], 1e-9):
        rate += f" ({figures(clock['slowest'])} to {figures(clock['fastest'])})"
    unstamped = sum(stream["source"] == "log" for stream in clock["streams"].values())
    logged = f"the log times of {counted(unstamped, 'stream')} without stamps and " if unstamped else ""
    by = "/clock" if clock["by"] == "/clock" else "the stamps of the fastest messages"
    start = f"{seconds(clock['offset_s'])} from log time at the start"
    return f"its clock is {clock_name(clock)} ({on}; {rate}; {start}); {logged}all arrivals were carried over by {by}"


def seconds(offset: float) -> str:
    return f"{offset:+,.3f} s" if abs(offset) < 1e5 else f"{offset:+,.0f} s"
