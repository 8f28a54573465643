"""The numbers of a report that the sync report does not have, computed in the same pass over the samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache._align.align import align
from robocache._align.stream import Stream
from robocache._align.timeline import Timeline
from robocache._limits import TIME_LIMIT
from robocache._recordings.envelope import MOST_PIECES, Envelope, least_and_most
from robocache._recordings.sync import Timing, Watch
from robocache._recordings.sync_report import StreamReport
from robocache._recordings.words import figures

Numbers = NDArray[np.float64]
Spans = Mapping[int, tuple[int, int]]
PIXELS = 480  # in a row of the raster
PIECES = 160  # pieces of time for which arrival - stamp is shown
SEVERAL = 12  # samples in a piece, for streams whose samples are counted
MOST_GAPS = 100  # in the data of a stream
MOST_TICKS = 1 << 18
MOST_EPISODES = 256  # in which ages are measured
LONGEST = 70 * 365 * 86400 * 10**9  # nanoseconds: no ages in longer episodes, because a timeline ends at 73 years
LAST = TIME_LIMIT - 1  # nanoseconds, in the year 2116: align takes no later time
CURVE = np.arange(101) * 0.005  # periods: the points of the jitter's ECDF
NEVER = np.iinfo(np.int64).min  # the age where no sample had arrived
LATE_MS = 100.0  # milliseconds beyond the usual delay: a later message may be one of the worst moments


def rounded(numbers: NDArray[Any], digits: int = 5) -> list[float | None]:
    """The numbers for JSON: with few digits, and None in place of NaN."""
    return [None if number != number else float(f"{number:.{digits}g}") for number in numbers.tolist()]


class Axis:
    """All episodes end to end, in nanoseconds from 0 to `total`."""

    def __init__(self, spans: Spans) -> None:
        self.episodes = sorted(spans)
        lengths = [spans[k][1] - spans[k][0] for k in self.episodes]
        ends = np.cumsum(lengths, dtype=np.int64)
        self.total = max(int(ends[-1]) if len(ends) else 0, 1)
        self.lengths = dict(zip(self.episodes, lengths, strict=True))
        self.begins = dict(zip(self.episodes, (ends - lengths).tolist(), strict=True))
        self._shifts = {k: self.begins[k] - spans[k][0] for k in self.episodes}

    def place(self, episode: int, times: NDArray[np.int64]) -> NDArray[np.int64]:
        return times + self._shifts.get(episode, 0)

    def pieces(self, places: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """Divides the axis into `count` equal pieces and returns the number of the piece that each place lies in."""
        share = np.clip(places, 0, self.total).astype(np.float64) / self.total
        return np.minimum((share * count).astype(np.int64), count - 1)


class Measures:
    """What the pass measures of each stream: `data` for the page's JSON, `rows` for the raster."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.axis: Axis | None = None
        self.data: dict[str, dict[str, Any]] = {}
        self.rows: dict[str, NDArray[np.uint8]] = {}
        self.missing: dict[int, tuple[int, float]] = {}  # by episode: gaps of all streams, and their seconds
        self.latest: dict[str, tuple[int, int, float] | None] = {}

    def __call__(self, found: StreamReport, watch: Watch, timing: Timing, spans: Spans) -> None:
        if self.axis is None:
            self.axis = Axis(spans)
        gaps = gaps_of(timing)
        self.rows[found.name] = raster(timing, gaps, self.axis)
        told = gap_list(gaps, spans)
        if len(gaps[0]):
            self._count(gaps)
        self.latest[found.name] = latest(timing, found)
        self.data[found.name] = {
            "signal": signal(watch, timing, spans),
            "gap_list": told,
            "gaps_left_out": len(gaps[0]) - len(told),
            "jitter": jitter_curve(timing),
            "delay": delays(found, timing, self.axis),
            "age": ages(timing, spans, self.rate),
        }

    def _count(self, gaps: tuple[NDArray[np.int64], ...]) -> None:
        episodes, starts, ends = gaps
        numbers, inverse, counts = np.unique(episodes, return_inverse=True, return_counts=True)
        seconds = np.bincount(inverse, weights=(ends - starts) * 1e-9)
        for number, count, long in zip(numbers.tolist(), counts.tolist(), seconds.tolist(), strict=True):
            before = self.missing.get(number, (0, 0.0))
            self.missing[number] = before[0] + count, before[1] + long

    def stream(self, found: StreamReport) -> dict[str, Any]:
        """The entry of a stream in the page's JSON."""
        return asdict(found) | self.data[found.name]


# ---- Gaps


def gaps_of(timing: Timing) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Episode, start and end of each gap, in nanoseconds."""
    none = np.zeros(0, np.int64)
    episodes, starts, ends = [none], [none], [none]
    for episode, times in timing.times.items() if timing.threshold is not None else ():
        wide = np.flatnonzero(np.diff(times) > timing.threshold)
        episodes.append(np.full(len(wide), episode))
        starts.append(times[wide])
        ends.append(times[wide + 1])
    return np.concatenate(episodes), np.concatenate(starts), np.concatenate(ends)


def gap_list(gaps: tuple[NDArray[np.int64], ...], spans: Spans) -> list[dict[str, Any]]:
    """The longest gaps, in order of time."""
    episodes, starts, ends = gaps
    longest = np.sort(np.argsort(starts - ends, kind="stable")[:MOST_GAPS])
    return [
        {
            "episode": int(episodes[k]),
            "after_s": (int(starts[k]) - spans[int(episodes[k])][0]) * 1e-9 if int(episodes[k]) in spans else 0.0,
            "seconds": int(ends[k] - starts[k]) * 1e-9,
        }
        for k in longest.tolist()
    ]


ABSENT, PRESENT, GAP = 0, 1, 2  # what a pixel of the raster shows


def raster(timing: Timing, gaps: tuple[NDArray[np.int64], ...], axis: Axis) -> NDArray[np.uint8]:
    """A pixel for each of PIXELS pieces of time. A gap takes at least one pixel. In the row of an irregular stream
    only the pixels of its samples are marked.
    """
    row = np.zeros(PIXELS, np.uint8)
    for episode, times in timing.times.items():
        if timing.threshold is None:
            row[axis.pieces(axis.place(episode, times), PIXELS)] = PRESENT
            continue
        first, last = axis.pieces(axis.place(episode, times[[0, -1]]), PIXELS).tolist()
        row[first : last + 1] = PRESENT
    episodes, starts, ends = gaps
    if len(starts):
        numbers = np.unique(episodes)
        moved = np.array([axis.place(int(k), np.zeros(1, np.int64))[0] for k in numbers])[
            np.searchsorted(numbers, episodes)
        ]
        edges = np.zeros(PIXELS + 1, np.int64)
        np.add.at(edges, axis.pieces(starts + moved, PIXELS), 1)
        np.add.at(edges, axis.pieces(ends + moved - 1, PIXELS) + 1, -1)
        row[np.cumsum(edges[:-1]) > 0] = GAP
    return row


# ---- Signals, jitter, delays, ages


def signal(watch: Watch, timing: Timing, spans: Spans) -> dict[str, Any] | None:
    """The first channel that changes, in the stream's first episode.

    For streams without numbers, such as cameras: how many samples lie in each piece of time.
    """
    if not timing.times:
        return None
    episode = next(iter(timing.recorded))

    def told(of: str, start: int, width: int, low: list[Any], high: list[Any]) -> dict[str, Any]:
        after = (start - spans[episode][0]) * 1e-9 if episode in spans else 0.0
        return {"of": of, "episode": episode, "after_s": after, "piece_ns": width, "low": low, "high": high}

    kept = watch.envelope if watch.envelope is not None else Envelope()
    low, high = kept.low, kept.high
    channels = low.shape[1]
    if channels:
        least, most = np.fmin.reduce(low), np.fmax.reduce(high)
        k = int(np.argmax(least < most))  # 0 if none moves
        name = watch.info.channels[k] if k < len(watch.info.channels) else f"[{k}]" if channels > 1 else "value"
        if watch.info.ragged:
            name = "bytes" if watch.info.dtype.itemsize == 1 else "rows"
        there = np.flatnonzero(~np.isnan(low[:, k]))
        if len(there):
            until = int(there[-1]) + 1
            return told(name, kept.start, kept.width, rounded(low[:until, k]), rounded(high[:until, k]))
    times = timing.times.get(episode)
    if times is None:
        return None
    pieces = min(MOST_PIECES, -(-len(times) // SEVERAL))
    width = max(-(-(int(times[-1] - times[0]) + 1) // pieces), 1)
    counts = np.bincount((times - times[0]) // width)
    return told(f"samples in {figures(width * 1e-9)} s", int(times[0]), width, [0] * len(counts), counts.tolist())


def jitter_curve(timing: Timing) -> dict[str, Any] | None:
    """The ECDF of |step - period| over steps under 1.5 periods: the share of steps up to each point of CURVE."""
    if not timing.regular:
        return None
    small = timing.jitter
    counts = np.bincount(np.searchsorted(CURVE * timing.period, small), minlength=len(CURVE))
    share = np.cumsum(counts)[: len(CURVE)] / max(len(small), 1)
    return {"steps": len(small), "periods": rounded(CURVE), "share": rounded(share)}


def delays(found: StreamReport, timing: Timing, axis: Axis) -> dict[str, Any] | None:
    """Arrival - stamp over time: the least and the largest of each piece, and the line of the drift."""
    if found.offset_ms is None:
        return None
    low, high = np.full((PIECES, 1), np.nan), np.full((PIECES, 1), np.nan)
    done = 0
    for episode, stamps in timing.recorded.items():
        part = timing.delay[done : done + len(stamps)]
        done += len(stamps)
        if len(stamps):
            at = axis.pieces(axis.place(episode, stamps), PIECES)
            least_and_most(at, part[:, None] * 1e-6, low, high)
    ends = None
    if timing.drift is not None:
        slope, begin = timing.drift
        long = float(int(timing.stamps.max()) - int(timing.stamps.min()))
        ends = [begin * 1e-6, (begin + slope * long) * 1e-6]
    return {"least_ms": rounded(low[:, 0]), "most_ms": rounded(high[:, 0]), "drift_line_ms": ends}


def latest(timing: Timing, found: StreamReport) -> tuple[int, int, float] | None:
    """The message that came latest: its episode, its stamp, and the milliseconds beyond the usual delay.

    None: no message came much later than usual.
    """
    if found.offset_ms is None or found.offset_spread_ms is None or not len(timing.stamps):
        return None
    k = int(np.argmax(timing.delay))
    beyond = float(timing.delay[k]) * 1e-6 - found.offset_ms
    if beyond < max(LATE_MS, 3 * found.offset_spread_ms):
        return None
    for episode, stamps in timing.recorded.items():
        if k < len(stamps):
            return episode, int(stamps[k]), beyond
        k -= len(stamps)
    return None


def has_ages(start: int, end: int) -> bool:
    """Whether a timeline can span an episode."""
    return end - start <= LONGEST and start >= -LAST and end <= LAST


def ages(timing: Timing, spans: Spans, rate: float) -> dict[str, Any] | None:
    """At the ticks of a policy, the age of the newest sample that had arrived, as `align(causal=True)` gives it."""
    chosen = [k for k in sorted(timing.times) if k in spans and has_ages(*spans[k])]
    if not chosen:
        return None
    some = chosen[:: -(-len(chosen) // MOST_EPISODES)]
    every = sum(int((spans[k][1] - spans[k][0]) * 1e-9 * rate) + 1 for k in some)
    slower = -(-every // MOST_TICKS)  # only every `slower`-th tick is measured
    begins = dict(zip(timing.recorded, np.cumsum([0, *map(len, timing.recorded.values())]).tolist(), strict=False))
    found = []
    for k in some:
        stamps = timing.recorded[k]
        arrivals = np.clip(timing.arrivals[begins[k] : begins[k] + len(stamps)], -LAST, LAST)
        if (np.diff(stamps) < 0).any():
            order = np.argsort(stamps, kind="stable")
            stamps, arrivals = stamps[order], arrivals[order]
        start, end = spans[k]
        count = int((end - start) * 1e-9 * rate / slower) + 1
        stream = Stream(np.zeros((len(stamps), 1), np.uint8), stamps, arrivals=arrivals, method="hold")
        found.append(align([stream], Timeline(start, rate=rate / slower, count=count), causal=True)[0].age)
    every_age = np.concatenate([np.asarray(age).reshape(-1) for age in found])
    known = every_age[every_age != NEVER]
    told: dict[str, Any] = {
        "ticks": len(every_age),
        "before_first": len(every_age) - len(known),
        "every": slower,
        "episodes": len(some),
    }
    if len(known):
        p50, p99, most = (np.percentile(known, (50, 99, 100)) * 1e-6).tolist()
        told |= {"p50_ms": p50, "p99_ms": p99, "max_ms": most}
    return told
