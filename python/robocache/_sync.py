"""The sync report: what a recording's timing is really like, stream by stream, and what that means.

One pass; what is kept is 16 bytes a sample (its time and its arrival) and two numbers a channel.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache import _report
from robocache._clock import words
from robocache._recording import (
    Batch,
    Recording,
    StreamInfo,
    counted,
    figures,
    is_static,
    open,
    topic_of,
    without_samples,
)

Stamps = NDArray[np.int64]
GAP = 3.0  # periods: a longer step is a gap
# A step has lost samples where it is at least LOST periods long, and at least this many standard deviations longer than
# a period.
LOST = 1.5
BEYOND_JITTER = 5.0
REGULAR = 0.6  # the share of steps within half a period of the median that makes a stream regular,
FEW = 8  # samples: of fewer, equal steps say nothing
REGULAR_FEW = 0.9  # and of fewer than 20 steps, which may agree by chance
DRIFT_BINS = 64
DRIFT_SPAN = 2.0  # seconds: a shorter recording tells no drift
ODD_DELAY = 100.0  # milliseconds from stamp to arrival beyond those of other streams
AHEAD = 1.0  # milliseconds that stamps may lie ahead of their arrival
DRIFT_PPM = 100.0  # more than crystals differ by
STILL = ("CameraInfo",)  # types whose channels need not change
COMMANDED = ("cmd", "command", "setpoint", "set_point", "target", "goal", "desired", "reference", "limit", "param")
LATE = 0.05  # of the recording's span: a stream that begins later or ends earlier is named


@dataclass
class StreamReport:
    """Definitions: see `sync_report`. None: not applicable, or not known without reading the messages."""

    name: str
    type: str
    dtype: str | None
    shape: list[int] | None
    samples: int
    source: str  # of its times: "stamp", "log", "publish", "mixed", "file"
    regular: bool
    rate_hz: float | None
    period_ms: float | None
    jitter_ms_p50: float | None
    jitter_ms_p99: float | None
    gap_threshold_ms: float | None
    gaps: int | None
    longest_gap_s: float | None
    lost: int | None
    duplicates: int
    backward: int | None
    offset_ms: float | None
    offset_spread_ms: float | None
    drift_ppm: float | None
    coverage: float
    starts_after_s: float
    ends_before_s: float
    constant_channels: list[str] | None
    not_finite: int | None
    static: bool = False
    level: str = "good"
    verdict: str = ""


@dataclass
class SyncReport:
    """What `sync_report` found. Print it, or take `streams`, `verdict`, as_dict()."""

    path: str
    format: str
    episodes: int
    duration_s: float
    time: str
    full: bool
    streams: dict[str, StreamReport]
    clock: dict[str, Any] | None = None  # as Recording.clock
    notes: list[str] = field(default_factory=list)
    level: str = "good"
    verdict: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join([*(_report.plain(*table) for table in self.tables()), *self.sentences()])

    def __repr__(self) -> str:
        return f"SyncReport({self.path!r}, {len(self.streams)} streams, {self.level}: {self.verdict})"

    def show(self) -> None:
        """Prints it, with Rich where it is installed."""
        for table in self.tables():
            _report.table(*table, spare=SPARE)
        for sentence in self.sentences():
            _report.paragraph(sentence)

    def tables(self) -> list[tuple[str, Sequence[str], Sequence[Sequence[str]]]]:
        moving = [stream for stream in self.streams.values() if not stream.static]
        static = [stream for stream in self.streams.values() if stream.static]
        rows = [timing_row(stream) for stream in moving]
        if static:
            name = static[0].name if len(static) == 1 else f"{len(static)} static streams"
            rows.append([name, f"{sum(stream.samples for stream in static):,}", *("-" * 5), "static"])
        title = f"Sync report: {self.format}, {counted(self.episodes, 'episode')}, {self.duration_s:.2f} s"
        tables: list[tuple[str, Sequence[str], Sequence[Sequence[str]]]] = [(title, TIMING, rows)]
        if self.full:
            tables.append(("Stamps", STAMPS, [stamp_row(stream) for stream in moving]))
        return tables

    def sentences(self) -> list[str]:
        said = [f"{stream.name}: {stream.verdict}" for stream in self.streams.values() if stream.level != "good"]
        clock = words(self.clock)
        said += [f"Clock: {sentence.removeprefix('its clock is ')}" for sentence in clock]
        static = [stream.name for stream in self.streams.values() if stream.static]
        if static:
            more = f" and {len(static) - 6} more" if len(static) > 6 else ""
            said.append(f"Static, held from the start on: {', '.join(static[:6])}{more}")
        said += [f"Note: {note}" for note in self.notes if note not in clock]
        return [*said, f"Verdict: {self.verdict}"]


TIMING = ("stream", "samples", "rate", "jitter p50 / p99, ms", "gaps, longest", "lost", "coverage", "verdict")
SPARE = ("coverage", "lost")  # the sentences tell them where they are bad
STAMPS = ("stream", "time", "duplicate, backward", "arrival - stamp, to p99, ms", "drift", "never change")


def timing_row(stream: StreamReport) -> list[str]:
    jitter = "-"
    if stream.jitter_ms_p50 is not None and stream.jitter_ms_p99 is not None:
        jitter = f"{figures(stream.jitter_ms_p50)} / {figures(stream.jitter_ms_p99)}"
    gaps = "-" if stream.gaps is None else str(stream.gaps)
    if stream.gaps and stream.longest_gap_s is not None:
        gaps += f", {figures(stream.longest_gap_s)} s"
    rate = "irregular" if stream.rate_hz is None else f"{figures(stream.rate_hz, 4)} Hz"
    lost = "-" if stream.lost is None else str(stream.lost)
    covered = f"{100 * stream.coverage:.1f} %"
    rate = rate if stream.samples > 1 else "-"
    return [stream.name, f"{stream.samples:,}", rate, jitter, gaps, lost, covered, stream.level]


def stamp_row(stream: StreamReport) -> list[str]:
    offset = "-"
    if stream.offset_ms is not None and stream.offset_spread_ms is not None:
        offset = f"{figures(stream.offset_ms)}, {figures(stream.offset_spread_ms, sign=True)}"
    drift = "-" if stream.drift_ppm is None else f"{stream.drift_ppm:+.0f} ppm"
    still = stream.constant_channels
    more = f" and {len(still) - 1} more" if still and len(still) > 2 else ""
    constant = "-" if still is None else ", ".join(still[: 1 if more else 2]) + more
    backward = "-" if stream.backward is None else str(stream.backward)
    return [stream.name, stream.source, f"{stream.duplicates}, {backward}", offset, drift, constant or "none"]


# ---- One pass over the samples


class Watch:
    """What is kept of a stream while it passes."""

    def __init__(self, info: StreamInfo, is_told: bool = True) -> None:
        self.info = info
        self.is_told = is_told  # that the info has more than a name and a type
        self.times: dict[int, list[Stamps]] = {}
        self.arrivals: dict[int, list[Stamps]] = {}
        self.low: NDArray[np.float64] | None = None
        self.high: NDArray[np.float64] | None = None
        self.not_finite = 0
        self.told: set[str] = set()  # what its times are, by the decoder; episodes of a cache may differ

    def add(self, batch: Batch) -> None:
        self.times.setdefault(batch.episode, []).append(np.array(batch.times, np.int64))  # no view of a large block
        self.arrivals.setdefault(batch.episode, []).append(np.array(batch.arrivals, np.int64))
        self.info = batch.info
        if "time" in batch.info.metadata:
            self.told.add(batch.info.metadata["time"])
        if batch.info.ragged or batch.values.ndim != 2 or not len(batch.values) or "kind" in batch.info.metadata:
            return
        with np.errstate(invalid="ignore"):
            low, high = np.fmin.reduce(batch.values), np.fmax.reduce(batch.values)
        if batch.values.dtype.kind == "f":
            self.not_finite += int((~np.isfinite(batch.values)).sum())
        if self.low is not None and self.high is not None:
            before = len(self.low)  # later batches may have more channels
            low, high = low.astype(np.float64), high.astype(np.float64)
            low[:before], high[:before] = np.fmin(low[:before], self.low), np.fmax(high[:before], self.high)
        self.low, self.high = low.astype(np.float64), high.astype(np.float64)

    def constant(self) -> list[str] | None:
        if self.low is None or self.high is None:
            return None
        still = np.flatnonzero(~(self.low != self.high) | np.isnan(self.low))
        names = self.info.channels or tuple(f"[{k}]" for k in range(len(self.low)))
        return [names[k] for k in still]


def sync_report(
    recording: Recording | Any,
    *,
    full: bool = True,
    gap: float | None = None,
    progress: Callable[[Batch], None] | None = None,
) -> SyncReport:
    """The timing of a recording, stream by stream: the numbers behind `robocache info`, printable and as a dict.

        report = rc.sync_report(rc.open("run.mcap"))
        print(report); report.streams["/camera"].gaps; report.as_dict()

    recording   an rc.Recording, an rc.Cache, or the path of one of them.
    full   False: by the file's index alone where it has one, and a glance at a few messages, which tells the clock; so
           all is by log times, and what needs stamps or values is None.
    gap    seconds: a longer step is a gap, instead of 3 median periods.
    progress   called with each batch that was read.

    Of a stream, with steps between neighbouring times of an episode, sorted:
    rate_hz, period_ms      the median step that is not 0; None where the stream is irregular: fewer than 60 % of its
                            steps (90 % of fewer than 20) are within half a period of it, as when a sample is written
                            on change; or there are fewer than 8 samples
    jitter_ms_p50, _p99     of |step - period|, over steps under 1.5 periods
    gaps, longest_gap_s     steps over gap_threshold_ms
    lost                    the sum of rint(step / period) - 1 over steps from 1.5 periods on that no jitter explains:
                            over 1 period and 5 deviations of the steps (1.4826 times their median absolute deviation)
    duplicates              times equal to the one before
    backward                stamps earlier than the one before, as recorded
    offset_ms               the median of arrival - stamp; offset_spread_ms: its 99th percentile less the median
    drift_ppm               the slope of arrival - stamp over the stamps: by the median of the slopes between the lower
                            deciles of up to 64 pieces (delays only add: the fast ones show the clocks); None under 2 s
    coverage                the share of the recording's span (of all its streams) that lies between samples, in no gap
    starts_after_s, ends_before_s   of that span
    static                  a constant, as tf_static: held from the start on
    constant_channels       those that never change; not_finite: values that are NaN or infinite
    source                  where its times come from, what time="auto" chose
    level, verdict          good, fair or bad, and why, in words
    """
    if not isinstance(recording, Recording):
        path = recording if isinstance(recording, (str, os.PathLike)) else getattr(recording, "path", None)
        if path is None:
            kind = type(recording).__name__
            raise TypeError(f"sync_report: expected a recording, a cache or the path of one, not {kind}")
        recording = open(path)
    quick = None if full else recording.quick()
    constants = recording._source.constants()
    watches: dict[str, Watch] = {}
    if quick is not None:
        promised = recording.promised()
        for name, (kind, arrivals) in quick.items():
            unknown = StreamInfo(name, kind, np.dtype(np.float64), (), (), None, False, {})
            watch = Watch(promised.get(name, unknown), name in promised)
            watch.times[0] = watch.arrivals[0] = [np.sort(arrivals)]
            watches[name] = watch
    else:
        for batch in recording.batches():
            if batch.stream not in watches:
                watches[batch.stream] = Watch(batch.info)
            watches[batch.stream].add(batch)
            if progress is not None:
                progress(batch)
    spans = episode_spans(watches)
    duration = sum(end - start for start, end in spans.values()) * 1e-9
    streams = {name: measure(watch, spans, recording, quick is None, gap) for name, watch in watches.items()}
    for name, found in streams.items():
        found.static = is_static(watches[name].info) or (quick is not None and topic_of(name, constants) is not None)
    delays = [stream.offset_ms for stream in streams.values() if stream.offset_ms is not None]
    usual = float(np.median(delays)) if len(delays) > 2 else None
    carried = recording.clock is not None and recording.clock["kind"] == "carried"
    ahead = ODD_DELAY if carried else AHEAD  # what carries arrivals over has delays of its own
    for name, watch in watches.items():
        doubt = "stamp_doubt" in watch.info.metadata
        judge(streams[name], duration, 0 if watch.low is None else len(watch.low), usual, doubt, ahead)
    report = SyncReport(
        recording.path,
        recording.format,
        len(recording.episodes),
        duration,
        recording.time,
        quick is None,
        streams,
        recording.clock,
        recording.notes,
    )
    if quick is None:
        report.notes += without_samples(recording, {name: found.samples for name, found in streams.items()})
    conclude(report)
    return report


def episode_spans(watches: Mapping[str, Watch]) -> dict[int, tuple[int, int]]:
    """From the first to the last sample of any stream; of constants only where there is nothing else."""
    spans: dict[int, tuple[int, int]] = {}
    moving = [watch for watch in watches.values() if not is_static(watch.info)]
    for watch in moving or watches.values():
        for episode, pieces in watch.times.items():
            filled = [piece for piece in pieces if len(piece)]
            if not filled:
                continue
            low, high = min(int(p.min()) for p in filled), max(int(p.max()) for p in filled)
            before = spans.get(episode, (low, high))
            spans[episode] = min(before[0], low), max(before[1], high)
    return spans


def measure(
    watch: Watch, spans: Mapping[int, tuple[int, int]], recording: Recording, full: bool, gap: float | None
) -> StreamReport:
    recorded = {k: np.concatenate(pieces) for k, pieces in watch.times.items()}
    none = np.zeros(0, np.int64)
    arrivals = np.concatenate([none, *(piece for k in recorded for piece in watch.arrivals[k])])
    stamps = np.concatenate([none, *recorded.values()])
    times = {k: np.sort(t) for k, t in recorded.items() if len(t)}
    steps = np.concatenate([none, *(np.diff(t) for t in times.values())])
    moving = steps[steps > 0]
    period = float(np.median(moving)) if len(moving) else 0.0
    regular = is_regular(moving)
    small = np.abs(moving - period)[moving < LOST * period] * 1e-6
    threshold = (gap * 1e9 if gap is not None else GAP * period) if regular or gap is not None else None
    wide = moving[moving > threshold] if threshold is not None else moving[:0]
    total = sum(end - start for start, end in spans.values())
    covered = float((moving.sum() - wide.sum()) / total) if total else 1.0
    late = [t[0] - spans[k][0] for k, t in times.items() if k in spans]
    early = [spans[k][1] - t[-1] for k, t in times.items() if k in spans]
    found = StreamReport(
        name=watch.info.name,
        type=watch.info.type,
        dtype=str(watch.info.dtype) if watch.is_told else None,
        shape=[*(["*"] if watch.info.ragged else []), *watch.info.shape] if watch.is_told else None,  # type: ignore[list-item]
        samples=len(stamps),
        source=chosen(recording, watch.told, stamps, arrivals, full),
        regular=regular,
        rate_hz=1e9 / period if regular else None,
        period_ms=period * 1e-6 if regular else None,
        jitter_ms_p50=float(np.percentile(small, 50)) if regular else None,
        jitter_ms_p99=float(np.percentile(small, 99)) if regular else None,
        gap_threshold_ms=None if threshold is None else threshold * 1e-6,
        gaps=None if threshold is None else len(wide),
        longest_gap_s=float(wide.max(initial=0) * 1e-9) if threshold is not None else None,
        lost=lost_samples(moving, period) if regular else None,
        duplicates=int((steps == 0).sum()),
        backward=sum(int((np.diff(t) < 0).sum()) for t in recorded.values()) if full else None,
        offset_ms=None,
        offset_spread_ms=None,
        drift_ppm=None,
        coverage=min(covered, 1.0),
        starts_after_s=float(max(late, default=0) * 1e-9),
        ends_before_s=float(max(early, default=0) * 1e-9),
        constant_channels=watch.constant() if full and len(stamps) > 1 else None,
        not_finite=watch.not_finite if full else None,
    )
    if full and found.source in ("stamp", "mixed", "publish") and len(stamps):
        delay = arrivals - stamps
        middle = float(np.median(delay))
        found.offset_ms = middle * 1e-6
        found.offset_spread_ms = (float(np.percentile(delay, 99)) - middle) * 1e-6
        if len(recorded) == 1:
            found.drift_ppm = drift(stamps, delay)
    return found


def lost_samples(steps: Stamps, period: float) -> int:
    """What steps that no jitter explains leave out."""
    deviation = 1.4826 * float(np.median(np.abs(steps - period)))
    wide = steps[steps >= max(LOST * period, period + BEYOND_JITTER * deviation)]
    return int((np.rint(wide / period) - 1).sum())


def is_regular(steps: Stamps) -> bool:
    """Of the steps of a stream that are not 0."""
    if len(steps) < FEW - 1:
        return False
    period = np.median(steps)
    return bool((np.abs(steps - period) <= 0.5 * period).mean() >= (REGULAR if len(steps) >= 20 else REGULAR_FEW))


def chosen(recording: Recording, told: set[str], stamps: Stamps, arrivals: Stamps, full: bool) -> str:
    """What a stream's times are: as the decoder says, else by whether they are the arrivals."""
    if full and told:
        return "mixed" if len(told) > 1 or "varies" in told else next(iter(told))
    if not recording.format.startswith(("MCAP", "rosbag2")):
        return "file"
    if not full or recording.time == "log":
        return "log"
    if recording.time == "publish":
        return "publish"
    same = stamps == arrivals
    if same.all():
        return "log"
    return "mixed" if same.mean() > 0.05 else "stamp"


def drift(stamps: Stamps, delay: Stamps) -> float | None:
    """Parts per million by which the arrivals' clock runs faster than the stamps'."""
    span = int(stamps.max() - stamps.min())
    bins = min(DRIFT_BINS, len(stamps) // 10)
    if span < DRIFT_SPAN * 1e9 or bins < 4:
        return None
    order = np.argsort(stamps, kind="stable")
    pieces = np.array_split(order, bins)
    at = np.array([float(np.mean(stamps[piece] - stamps[order[0]])) for piece in pieces])
    least = np.array([np.percentile(delay[piece], 10) for piece in pieces])
    i, j = np.triu_indices(bins, 1)
    apart = at[j] - at[i]
    slopes = (least[j] - least[i])[apart > 0] / apart[apart > 0]
    return float(np.median(slopes) * 1e6) if len(slopes) else None


# ---- In words


def judge(
    stream: StreamReport, span: float, channels: int, usual: float | None, doubt: bool, ahead: float = AHEAD
) -> None:
    """Sets level and verdict.

    usual: milliseconds from stamp to arrival; doubt: whether the stamps are of one unit; ahead: milliseconds that a
    stamp may lie ahead of its arrival.
    """
    bad: list[str] = []
    fair: list[str] = []
    told: list[str] = []
    if stream.static:
        stream.level, stream.verdict = "good", "static: held from the start on"
        return
    if stream.samples == 0:
        fair.append("no samples")
    elif stream.samples == 1:
        fair.append("one sample only")
    elif stream.samples < FEW:
        fair.append(f"{stream.samples} samples only: irregular, too few for a rate")
    elif not stream.regular:
        fair.append("irregular, as if written on change: hold it, and leave it out of Timeline.over")
    if stream.gaps and stream.longest_gap_s is not None:
        count = f"{counted(stream.gaps, 'gap')}, longest {figures(stream.longest_gap_s)} s"
        (bad if stream.coverage < 0.9 else fair).append(f"{count}: set max_gap, so that nothing is made up inside")
    elif stream.lost:
        fair.append(f"{counted(stream.lost, 'sample')} lost")
    jitter = (stream.jitter_ms_p99 or 0.0) / (stream.period_ms or 1.0)
    if jitter > 0.25:
        fair.append(f"jitter up to {100 * jitter:.0f} % of the period")
    if stream.duplicates:
        fair.append(counted(stream.duplicates, "duplicate stamp"))
    if stream.backward:
        fair.append(f"{counted(stream.backward, 'stamp')} went backward; sorted")
    if doubt:
        bad.append('some stamps are not in the unit of the first: open it with time="log"')
    if stream.source == "mixed":
        fair.append("some samples have no stamp, and their log time serves")
    if stream.offset_ms is not None:
        if stream.offset_ms < -ahead:
            bad.append(f"stamps lie {figures(-stream.offset_ms)} ms ahead of their arrival: the clocks disagree")
        elif stream.offset_ms > 1000:
            bad.append(f"stamps lie {figures(stream.offset_ms / 1e3)} s behind their arrival: the clocks disagree")
        elif usual is not None and stream.offset_ms > usual + ODD_DELAY:
            odd = f"stamps lie {figures(stream.offset_ms)} ms behind their arrival, those of others {figures(usual)} ms"
            fair.append(f"{odd}: late messages, or a clock of its own (then set clock_offset)")
    if stream.drift_ppm is not None and abs(stream.drift_ppm) > DRIFT_PPM and stream.offset_spread_ms is not None:
        moved = abs(stream.drift_ppm) * 1e-6 * span * 1e3
        if moved > max(1.0, stream.offset_spread_ms):
            bad.append(f"its clock drifts by {stream.drift_ppm:+.0f} ppm, {figures(moved)} ms over the recording")
    if stream.regular and stream.starts_after_s > max(LATE * span, 0.1):
        fair.append(f"begins {figures(stream.starts_after_s)} s after the recording")
    if stream.regular and stream.ends_before_s > max(LATE * span, 0.1):
        ends = f"ends {figures(stream.ends_before_s)} s before the recording"
        (bad if stream.ends_before_s > 0.25 * span else fair).append(ends)
    if stream.not_finite:
        fair.append(f"{counted(stream.not_finite, 'value')} not finite")
    still = stream.constant_channels
    marks = stream.name.startswith("valid.")  # of our own exports, where all is well
    if still and stream.samples > 10 and not stream.type.endswith(STILL) and not marks:
        if len(still) == channels:
            if is_commanded(stream):
                told.append("no channel ever changes, as may be of what is commanded or a flag")
            else:
                bad.append("no channel ever changes: is the sensor alive?")
        else:  # a level robot's, a planar one's
            told.append(f"{len(still)} of {channels} channels never change")
    stream.level = "bad" if bad else "fair" if fair else "good"
    stream.verdict = "; ".join([*(bad + fair or ["regular, nothing lost"]), *told])


def is_commanded(stream: StreamReport) -> bool:
    """Whether it may well be constant: a setpoint by its name or type, or a flag by its dtype."""
    words = f"{stream.name} {stream.type}".lower()
    return (stream.dtype or "")[:1] in ("b", "i", "u") or any(word in words for word in COMMANDED)


def conclude(report: SyncReport) -> None:
    levels = {level: [s.name for s in report.streams.values() if s.level == level] for level in ("bad", "fair", "good")}
    report.level = next((level for level, names in levels.items() if names), "bad")
    if not report.streams:
        report.verdict = "there are no streams"
        return
    count = len(report.streams)
    parts = []
    if levels["good"]:
        parts.append(f"{len(levels['good'])} of {count} stream{'' if count == 1 else 's'} good")
    for level, advice in (("fair", "usable with care"), ("bad", "to be looked at before training")):
        names = levels[level]
        if names:
            parts.append(f"{advice}: {', '.join(names[:4])}{f' and {len(names) - 4} more' if len(names) > 4 else ''}")
    report.verdict = "; ".join(parts) + "."
    if not report.full:
        report.verdict += (
            " That is by log times alone: at stamps only a glance was taken, for the clock; --full reads all of them."
        )


def to_json(report: SyncReport) -> str:
    return json.dumps(report.as_dict(), indent=2)
