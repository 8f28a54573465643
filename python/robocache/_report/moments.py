"""The worst moments of a recording: the longest gaps and the latest messages, with the samples around each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache._recordings.sync import Watch
from robocache._recordings.words import figures
from robocache._report.measures import Measures, Spans

MOST_MOMENTS = 6
MOST_STREAMS = 6  # in the figure of a moment
CANDIDATES = 4  # gaps of a stream that may become moments
COLUMNS = 240
AROUND = 0.75  # of a moment's length: how much of the recording is shown before and after it
LEAST_AROUND = 0.1  # seconds: at least so much
LAST = 2**63 - 1  # nanoseconds: the largest stamp


@dataclass
class Moment:
    """Something that went wrong from `start` to `end`, in nanoseconds on the recording's clock."""

    kind: str  # "gap" or "late"
    stream: str
    episode: int
    start: int
    end: int
    seconds: float  # how long the gap is, or how much later than usual the message came
    after_s: float  # seconds from the start of the episode
    also: list[str] = field(default_factory=list)  # other streams that had trouble at the same time
    samples: dict[str, NDArray[np.int64]] = field(default_factory=dict)  # by stream: the columns that have samples
    pictures: list[dict[str, str]] = field(default_factory=list)

    @property
    def window(self) -> tuple[int, int]:
        margin = int(max(AROUND * (self.end - self.start), LEAST_AROUND * 1e9))
        return max(self.start - margin, -LAST), min(self.end + margin, LAST)

    def sentence(self) -> str:
        if self.kind == "gap":
            return f"no sample for {figures(self.seconds)} s"
        return f"a message came {figures(self.seconds)} s later than usual"

    def as_dict(self) -> dict[str, Any]:
        told = {name: getattr(self, name) for name in ("kind", "stream", "episode", "seconds", "after_s", "also")}
        pictures = [{name: each[name] for name in each if name != "data"} for each in self.pictures]
        return told | {"start_ns": self.start, "end_ns": self.end, "pictures": pictures}


def worst(measures: Measures, watches: Mapping[str, Watch], spans: Spans) -> list[Moment]:
    """The moments, the worst first. Moments that overlap become one."""
    candidates = []
    for name, data in measures.data.items():
        longest = sorted(data["gap_list"], key=lambda gap: -gap["seconds"])[:CANDIDATES]
        for gap in longest:
            start = spans[gap["episode"]][0] + round(gap["after_s"] * 1e9)
            end = start + round(gap["seconds"] * 1e9)
            candidates.append(Moment("gap", name, gap["episode"], start, end, gap["seconds"], gap["after_s"]))
        late = measures.latest[name]
        if late is not None and late[0] in spans:
            episode, stamp, beyond = late
            after = (stamp - spans[episode][0]) * 1e-9
            candidates.append(Moment("late", name, episode, stamp, stamp + round(beyond * 1e6), beyond * 1e-3, after))
    chosen: list[Moment] = []
    for moment in sorted(candidates, key=lambda moment: -moment.seconds):
        same = next((other for other in chosen if overlap(moment, other)), None)
        if same is not None:
            if moment.stream != same.stream and moment.stream not in same.also:
                same.also.append(moment.stream)
        elif len(chosen) < MOST_MOMENTS:
            chosen.append(moment)
    for moment in chosen:
        draw_around(moment, watches)
    return chosen


def overlap(one: Moment, other: Moment) -> bool:
    return one.episode == other.episode and one.start < other.end and other.start < one.end


def draw_around(moment: Moment, watches: Mapping[str, Watch]) -> None:
    """Sets which columns of the moment's window have samples.

    The moment's own stream comes first, then the streams that had trouble at the same time, then others.
    """
    start, end = moment.window
    names = list(dict.fromkeys([moment.stream, *moment.also, *watches]))
    for name in names:
        if len(moment.samples) == MOST_STREAMS:
            return
        kept = watches[name].arrivals if moment.kind == "late" else watches[name].times
        pieces = kept.get(moment.episode, [])
        inside = [piece[(piece >= start) & (piece < end)] for piece in pieces]
        times = np.concatenate([np.zeros(0, np.int64), *inside])
        if len(times) or name == moment.stream or name in moment.also:
            moment.samples[name] = columns_of(times, start, end)


def columns_of(times: NDArray[np.int64], start: int, end: int) -> NDArray[np.int64]:
    """The columns of a window that have samples."""
    wide = max(end - start, 1)
    if wide < 1 << 54:  # times COLUMNS it is a 64-bit integer
        return np.unique((times - start) * COLUMNS // wide)
    return np.unique(((times.astype(np.float64) - start) * (COLUMNS / wide)).astype(np.int64))


def beside(moment: Moment, watch: Watch) -> list[tuple[str, int, int]]:
    """A camera's last sample before the moment and its first sample after it: "before" or "after", stamp, arrival."""
    pieces = watch.times.get(moment.episode, [])
    if not pieces:
        return []
    times, arrivals = np.concatenate(pieces), np.concatenate(watch.arrivals[moment.episode])
    found = []
    before, after = np.flatnonzero(times <= moment.start), np.flatnonzero(times >= moment.end)
    if len(before):
        k = before[np.argmax(times[before])]
        found.append(("before", int(times[k]), int(arrivals[k])))
    if len(after):
        k = after[np.argmin(times[after])]
        found.append(("after", int(times[k]), int(arrivals[k])))
    return found
