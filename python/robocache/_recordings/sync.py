"""The sync report: the timing of a recording, stream by stream, and what it means.

One pass over the samples. Memory holds 16 bytes per sample (its time and its arrival) and two numbers per channel.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache import _core
from robocache._recordings.envelope import Envelope
from robocache._recordings.open import open
from robocache._recordings.recording import Recording, without_samples
from robocache._recordings.source import Batch, StreamInfo, is_static, topic_of
from robocache._recordings.sync_report import Finding, StreamReport, SyncReport
from robocache._recordings.words import counted, figures

Stamps = NDArray[np.int64]
GAP = 3.0  # periods: a longer step is a gap
# Samples were lost in a step that is at least LOST periods long, and at least this many standard deviations longer than
# a period.
LOST = 1.5
BEYOND_JITTER = 5.0
# A late sample is not a lost one: it delays only itself, while a lost sample shifts all that follow. So the AROUND
# samples before a long step are compared with the AROUND samples after it.
# Strong jitter hides single losses. Then the number of samples is compared with the number of periods, in blocks of
# COUNTED steps. A block counts only if its samples follow a steady clock: coherence above COHERENT, at a rate near the
# median's. If more than MOST_COUNTED of all samples seem lost, the stream is written on change and nothing is lost.
AROUND = 16
SHORT = 0.25  # periods: by so much a step is shorter than those around it where a late sample catches up
COUNTED_JITTER = 0.08  # deviations, in periods
COUNTED = 512
COHERENT = 0.25
RATE_REACH = 0.06
MOST_COUNTED = 0.2
FEW = 8  # samples: with fewer, equal steps prove nothing
DRIFT_BINS = 64
DRIFT_SPAN = 2.0  # seconds: no drift is measured in a shorter recording
ODD_DELAY = 100.0  # milliseconds from stamp to arrival beyond those of other streams
AHEAD = 1.0  # milliseconds that stamps may lie ahead of their arrival
DRIFT_PPM = 100.0  # more than crystals differ by
MOST_JITTER = 0.25  # periods
STILL = ("CameraInfo",)  # types whose channels need not change
COMMANDED = ("cmd", "command", "setpoint", "set_point", "target", "goal", "desired", "reference", "limit", "param")
LATE = 0.05  # of the recording's span: a stream that begins later or ends earlier is named


# ---- One pass over the samples


class Watch:
    """What is kept of a stream during the pass."""

    def __init__(self, info: StreamInfo, is_told: bool = True, envelope: Envelope | None = None) -> None:
        self.info = info
        self.is_told = is_told  # whether the info has more than a name and a type
        self.envelope = envelope  # of the values in the first episode; for ragged samples, of their lengths
        self.times: dict[int, list[Stamps]] = {}
        self.arrivals: dict[int, list[Stamps]] = {}
        self.low: NDArray[np.float64] | None = None
        self.high: NDArray[np.float64] | None = None
        self.not_finite = 0
        self.told: set[str] = set()  # where its times come from, as decoders say; episodes of a cache may differ

    def add(self, batch: Batch) -> None:
        self.times.setdefault(batch.episode, []).append(
            np.array(batch.times, np.int64)
        )  # a copy, not a view of a large block
        self.arrivals.setdefault(batch.episode, []).append(np.array(batch.arrivals, np.int64))
        self.info = batch.info
        if "time" in batch.info.metadata:
            self.told.add(batch.info.metadata["time"])
        envelope = self.envelope if batch.episode == next(iter(self.times)) else None
        if batch.lengths is not None and len(batch.times) and envelope is not None:
            envelope.add(batch.times, batch.lengths[:, None])
        if batch.info.ragged or batch.values.ndim != 2 or not len(batch.values) or "kind" in batch.info.metadata:
            return
        with np.errstate(invalid="ignore"):
            if envelope is not None:
                low, high = envelope.add(batch.times, batch.values)
            else:
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
    """The timing of a recording, stream by stream: what `robocache info` shows.

    Args:
        recording: A `Recording`, a `Cache`, or the path of one of them.
        full: False: use only the file's index, if it has one, and a few messages that tell the clock. All results are
            then by log times, and those that need stamps or values are None.
        gap: Seconds: a longer step is a gap. Default: 3 median periods.
        progress: Called with each batch that was read.

    Returns:
        A `SyncReport`. `report.streams["/camera"]` has the numbers of one stream; `help` of it defines each.

    Examples:
        >>> report = rc.sync_report(rc.open("run.mcap"))
        >>> print(report)
        >>> report.streams["/camera"].gaps
    """
    report, _ = survey(opened("sync_report", recording), full=full, gap=gap, progress=progress)
    return report


def opened(call: str, recording: Recording | Any) -> Recording:
    """The recording itself, or the recording of a path or a cache."""
    if isinstance(recording, Recording):
        return recording
    path = recording if isinstance(recording, (str, os.PathLike)) else getattr(recording, "path", None)
    if path is None:
        kind = type(recording).__name__
        raise TypeError(f"{call}: expected a recording, a cache or the path of one, not {kind}")
    return open(path)


def survey(
    recording: Recording,
    *,
    full: bool = True,
    gap: float | None = None,
    progress: Callable[[Batch], None] | None = None,
    measured: Measured | None = None,
) -> tuple[SyncReport, dict[str, Watch]]:
    """The sync report, and what the pass keeps of each stream.

    measured: called for each stream with its numbers, before its times are freed. If it is given, the pass also keeps
    each stream's envelope.
    """
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
            if batch.info.metadata.get("kind") == "frames" and "of" in batch.info.metadata:
                continue  # the frames that a cache keeps of a camera, which have the camera's times
            if batch.stream not in watches:
                watches[batch.stream] = Watch(batch.info, envelope=None if measured is None else Envelope())
            watches[batch.stream].add(batch)
            if progress is not None:
                progress(batch)
    spans = episode_spans(watches)
    duration = sum(end - start for start, end in spans.values()) * 1e-9
    streams = {}
    for name, watch in watches.items():
        timing = timing_of(watch, gap)
        streams[name] = measure(watch, timing, spans, recording, quick is None)
        if measured is not None:
            measured(streams[name], watch, timing, spans)
    for name, found in streams.items():
        found.static = is_static(watches[name].info) or (quick is not None and topic_of(name, constants) is not None)
    delays = [stream.offset_ms for stream in streams.values() if stream.offset_ms is not None]
    usual = float(np.median(delays)) if len(delays) > 2 else None
    carried = recording.clock is not None and recording.clock["kind"] == "carried"
    ahead = ODD_DELAY if carried else AHEAD  # the messages that arrivals are converted by have delays too
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
    return report, watches


def episode_spans(watches: Mapping[str, Watch]) -> dict[int, tuple[int, int]]:
    """The span of each episode, from the first to the last sample of any stream. Constants count only if alone."""
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


@dataclass(frozen=True)
class Timing:
    """The times of a stream as `measure` needs them: nanoseconds, by episode or of all episodes in turn."""

    recorded: dict[int, Stamps]  # by episode, in recorded order
    times: dict[int, Stamps]  # sorted; only episodes that have samples
    stamps: Stamps  # of all episodes, in recorded order
    arrivals: Stamps
    moving: Stamps  # the steps between neighbours of `times` that are not 0
    duplicates: int  # the steps of 0
    period: float
    regular: bool
    threshold: float | None  # a longer step is a gap

    @functools.cached_property
    def jitter(self) -> NDArray[np.float64]:
        """|step - period| of the steps that are under 1.5 periods and not 0."""
        return np.abs(self.moving - self.period)[self.moving < LOST * self.period]

    @functools.cached_property
    def delay(self) -> Stamps:
        """Arrival - stamp."""
        return self.arrivals - self.stamps

    @functools.cached_property
    def drift(self) -> tuple[float, float] | None:
        """See `drift`. None if there are several episodes."""
        return drift(self.stamps, self.delay) if len(self.recorded) == 1 else None


Measured = Callable[[StreamReport, Watch, Timing, Mapping[int, tuple[int, int]]], None]


def timing_of(watch: Watch, gap: float | None) -> Timing:
    for kept in (watch.times, watch.arrivals):
        for k, pieces in kept.items():
            kept[k] = [joined(pieces)]
    recorded = {k: stamps for k, (stamps,) in watch.times.items()}
    arrivals = joined([watch.arrivals[k][0] for k in recorded])
    stamps = joined(list(recorded.values()))
    times = {k: ascending(t) for k, t in recorded.items() if len(t)}
    steps = joined([np.diff(t) for t in times.values()])
    moving = steps if len(steps) and steps.min() > 0 else steps[steps > 0]
    period = float(np.median(moving)) if len(moving) else 0.0
    regular = is_regular(moving)
    threshold = (gap * 1e9 if gap is not None else GAP * period) if regular or gap is not None else None
    duplicates = len(steps) - len(moving)
    return Timing(recorded, times, stamps, arrivals, moving, duplicates, period, regular, threshold)


def joined(pieces: Sequence[Stamps]) -> Stamps:
    """The pieces as one array. A single piece is not copied, because a stream may have 10^7 samples."""
    return pieces[0] if len(pieces) == 1 else np.concatenate([np.zeros(0, np.int64), *pieces])


def ascending(times: Stamps) -> Stamps:
    return times if (times[1:] >= times[:-1]).all() else np.sort(times)


def measure(
    watch: Watch, timing: Timing, spans: Mapping[int, tuple[int, int]], recording: Recording, full: bool
) -> StreamReport:
    times, stamps, arrivals = timing.times, timing.stamps, timing.arrivals
    regular, period, threshold = timing.regular, timing.period, timing.threshold
    moving = timing.moving
    small = timing.jitter * 1e-6
    wide = moving[moving > threshold] if threshold is not None else moving[:0]
    total = sum(end - start for start, end in spans.values())
    covered = float((moving.sum() - wide.sum()) / total) if total else 1.0
    late = [int(t[0]) - spans[k][0] for k, t in times.items() if k in spans]
    early = [spans[k][1] - int(t[-1]) for k, t in times.items() if k in spans]
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
        duplicates=timing.duplicates,
        backward=sum(int((np.diff(t) < 0).sum()) for t in timing.recorded.values()) if full else None,
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
        middle = float(np.median(timing.delay))
        found.offset_ms = middle * 1e-6
        found.offset_spread_ms = (float(np.percentile(timing.delay, 99)) - middle) * 1e-6
        found.drift_ppm = None if timing.drift is None else timing.drift[0] * 1e6
    return found


def lost_samples(steps: Stamps, period: float) -> int:
    """The samples missing in steps that jitter does not explain; under strong jitter also those found by counting."""
    deviation = 1.4826 * float(np.median(np.abs(steps - period)))
    is_wide = steps >= max(LOST * period, period + BEYOND_JITTER * deviation)
    left_out = np.where(is_wide, np.rint(steps / period) - 1, 0.0)
    left_out[is_wide] = np.minimum(left_out[is_wide], shifts(steps / period, np.flatnonzero(is_wide)))
    lost = int(left_out.sum())
    if deviation <= COUNTED_JITTER * period:
        return lost  # each lost sample makes one long step
    return lost + uncounted(steps - left_out * period, period)


def shifts(steps: NDArray[np.float64], places: NDArray[np.int64]) -> NDArray[np.float64]:
    """By how many whole periods samples come later after each of these steps, in periods, than before it.

    A sample that is only late, or a burst after a hold-up, has short steps around it, and then shifts nothing. Delays
    only add, so the earliest of the AROUND samples at either side are compared.
    """
    outside = np.full(AROUND, np.inf)
    late = np.concatenate([outside[1:], [0.0], np.cumsum(steps - 1), outside])  # of each sample
    near = np.arange(-AROUND, AROUND)
    found = np.zeros(len(places))
    for begin in range(0, len(places), 1 << 16):  # bounds the memory
        part = places[begin : begin + (1 << 16), None]
        around = steps[np.clip(part + np.delete(near, AROUND), 0, len(steps) - 1)]
        is_caught_up = around.min(1) < np.median(around, 1) - SHORT
        window = late[part + AROUND + near]
        shift = np.rint(window[:, AROUND:].min(1) - window[:, :AROUND].min(1))
        found[begin : begin + len(part)] = np.where(is_caught_up, shift, np.inf)
    return np.maximum(found, 0.0)


def uncounted(steps: NDArray[np.float64], period: float) -> int:
    """How many periods of a steady clock passed beyond the number of steps, if the samples follow such a clock."""
    excess, blocks = 0.0, 0
    for begin in range(0, len(steps) - COUNTED // 2 + 1, COUNTED):
        # The last block takes the rest.
        end = begin + COUNTED if len(steps) - begin >= COUNTED + COUNTED // 2 else len(steps)
        block = steps[begin:end]
        rate = steady_rate(np.concatenate([[0.0], np.cumsum(block)]) / float(np.median(block)))
        if rate is not None:
            excess += float(block.sum()) / float(np.median(block)) * rate - len(block)
            blocks += 1
        if end == len(steps):
            break
    lost = round(excess)
    is_certain = lost > 4 + blocks**0.5  # each block is known to about a tenth of a period
    return lost if is_certain and lost <= MOST_COUNTED * len(steps) else 0


def steady_rate(times: NDArray[np.float64]) -> float | None:
    """Ticks per unit of the clock that these times follow: the peak of their spectrum near 1. None without one."""
    fine = 16  # of the histogram, per unit
    counts = np.bincount((times * fine).astype(np.int64))
    size = 4 << int(len(counts) - 1).bit_length()
    spectrum = np.abs(np.fft.rfft(counts, size))
    low, high = int(size / fine * (1 - RATE_REACH)), int(size / fine * (1 + 2 * RATE_REACH))
    rate = (low + int(np.argmax(spectrum[low:high]))) * fine / size
    half = len(times) // 2
    apart = float(times[half:].mean() - times[:half].mean())
    for _ in range(3):  # the phase of the second half beside that of the first
        turns = np.exp(-2j * np.pi * rate * times)
        rate -= float(np.angle(turns[half:].sum() * np.conj(turns[:half].sum()))) / (2 * np.pi * apart)
    coherence = abs(np.exp(-2j * np.pi * rate * times).mean())
    return rate if coherence > COHERENT else None


def is_regular(steps: Stamps) -> bool:
    """Whether steps, those of 0 left out, are those of a regular stream."""
    return _core.are_regular(np.ascontiguousarray(steps))


def chosen(recording: Recording, told: set[str], stamps: Stamps, arrivals: Stamps, full: bool) -> str:
    """Where a stream's times come from: as the decoder says, otherwise by comparing them with the arrivals."""
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


def drift(stamps: Stamps, delay: Stamps) -> tuple[float, float] | None:
    """How much faster the arrivals' clock runs than the stamps' clock: the slope of the delay. Also the delay of the
    fastest messages at the first stamp, in nanoseconds.
    """
    span = int(stamps.max()) - int(stamps.min())
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
    if not len(slopes):
        return None
    slope = float(np.median(slopes))
    return slope, float(np.median(least - slope * at))


# ---- In words


def judge(
    stream: StreamReport, span: float, channels: int, usual: float | None, doubt: bool, ahead: float = AHEAD
) -> None:
    """Sets level and verdict.

    usual: milliseconds from stamp to arrival; doubt: whether the stamps are of one unit; ahead: milliseconds that a
    stamp may lie ahead of its arrival.
    """
    if stream.static:
        stream.level, stream.verdict = "good", "static: held from the start on"
        return
    found = [*judge_samples(stream), *judge_stamps(stream, span, usual, doubt, ahead), *judge_values(stream, channels)]
    stream.findings = sorted(found, key=lambda finding: LEVELS.index(finding.level))
    stream.level = stream.findings[0].level if found else "good"
    told = [finding.sentence for finding in stream.findings]
    stream.verdict = "; ".join(told if stream.level != "good" else ["regular, nothing lost", *told])


LEVELS = ("bad", "fair", "good")


def judge_samples(stream: StreamReport) -> Iterator[Finding]:
    """Findings about the steps between samples."""
    if stream.samples == 0:
        yield Finding("no samples", "fair", "no samples")
    elif stream.samples == 1:
        yield Finding("one sample", "fair", "one sample only")
    elif stream.samples < FEW:
        yield Finding("irregular", "fair", f"{stream.samples} samples only: irregular, too few for a rate")
    elif not stream.regular:
        why = "irregular, as if written on change: hold it, and leave it out of Timeline.over"
        yield Finding("irregular", "fair", why)
    if stream.gaps and stream.longest_gap_s is not None:
        count = f"{counted(stream.gaps, 'gap')}, longest {figures(stream.longest_gap_s)} s"
        why = f"{count}: set max_gap, so that no values are made up inside"
        yield Finding("gaps", "bad" if stream.coverage < 0.9 else "fair", why)
    elif stream.lost:
        yield Finding("lost", "fair", f"{counted(stream.lost, 'sample')} lost")
    jitter = (stream.jitter_ms_p99 or 0.0) / (stream.period_ms or 1.0)
    if jitter > MOST_JITTER:
        yield Finding("jitter", "fair", f"jitter up to {100 * jitter:.0f} % of the period")
    if stream.duplicates:
        yield Finding("duplicates", "fair", counted(stream.duplicates, "duplicate stamp"))
    if stream.backward:
        yield Finding("backward", "fair", f"{counted(stream.backward, 'stamp')} went backward; sorted")


def judge_stamps(
    stream: StreamReport, span: float, usual: float | None, doubt: bool, ahead: float
) -> Iterator[Finding]:
    """Findings about the stamps compared with the arrivals and with the recording's span."""
    if doubt:
        yield Finding("unit", "bad", 'some stamps are not in the unit of the first: open it with time="log"')
    if stream.source == "mixed":
        yield Finding("mixed", "fair", "some samples have no stamp, and their log time serves")
    if stream.offset_ms is not None:
        offset = (usual or 0.0) - stream.offset_ms  # by how much the sensor's clock is ahead
        if stream.offset_ms < -ahead:
            why = f"stamps lie {figures(-stream.offset_ms)} ms ahead of their arrival: the clocks disagree"
            yield Finding("offset", "bad", why, offset)
        elif stream.offset_ms > 1000:
            why = f"stamps lie {figures(stream.offset_ms / 1e3)} s behind their arrival: the clocks disagree"
            yield Finding("offset", "bad", why, offset)
        elif usual is not None and stream.offset_ms > usual + ODD_DELAY:
            odd = f"stamps lie {figures(stream.offset_ms)} ms behind their arrival, those of others {figures(usual)} ms"
            why = f"{odd}: late messages, or a clock of its own (then set clock_offset)"
            yield Finding("delay", "fair", why, offset)
    if stream.drift_ppm is not None and abs(stream.drift_ppm) > DRIFT_PPM and stream.offset_spread_ms is not None:
        moved = abs(stream.drift_ppm) * 1e-6 * span * 1e3
        if moved > max(1.0, stream.offset_spread_ms):
            why = f"its clock drifts by {stream.drift_ppm:+.0f} ppm, {figures(moved)} ms over the recording"
            yield Finding("drift", "bad", why)
    if stream.regular and stream.starts_after_s > max(LATE * span, 0.1):
        yield Finding("late start", "fair", f"begins {figures(stream.starts_after_s)} s after the recording")
    if stream.regular and stream.ends_before_s > max(LATE * span, 0.1):
        ends = f"ends {figures(stream.ends_before_s)} s before the recording"
        yield Finding("early end", "bad" if stream.ends_before_s > 0.25 * span else "fair", ends)


def judge_values(stream: StreamReport, channels: int) -> Iterator[Finding]:
    if stream.not_finite:
        yield Finding("not finite", "fair", f"{counted(stream.not_finite, 'value')} not finite")
    still = stream.constant_channels
    marks = stream.name.startswith("valid.")  # written by our own exports; constant if all is well
    if still and stream.samples > 10 and not stream.type.endswith(STILL) and not marks:
        if len(still) < channels:  # as for a robot that stays level or moves in a plane
            yield Finding("still", "good", f"{len(still)} of {channels} channels never change")
        elif is_commanded(stream):
            yield Finding("still", "good", "no channel ever changes, which is normal for a command or a flag")
        else:
            yield Finding("dead", "bad", "no channel ever changes: is the sensor alive?")


def is_commanded(stream: StreamReport) -> bool:
    """Whether it may well be constant: a setpoint by its name or type, or a flag by its dtype."""
    words = f"{stream.name} {stream.type}".lower()
    return (stream.dtype or "")[:1] in ("b", "i", "u") or any(word in words for word in COMMANDED)


def conclude(report: SyncReport) -> None:
    levels = {level: [s.name for s in report.streams.values() if s.level == level] for level in LEVELS}
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
            " This is by log times only. A few stamps were read to find the clock; --full reads all of them."
        )
