"""What sync_report returns, and its tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from robocache import _tables
from robocache._recordings.clock import words
from robocache._recordings.words import counted, figures


@dataclass
class Finding:
    """Something that a person should know about a stream.

    Attributes:
        kind: "gaps", "lost", "irregular", "jitter", "duplicates", "backward", "offset", "delay", "drift", "unit",
            "mixed", "late start", "early end", "not finite", "still", "dead", "no samples" or "one sample".
        level: "good", "fair" or "bad".
        sentence: The finding in words.
        ahead_ms: For "offset" and "delay": by how much the sensor's clock seems to be ahead of the others.
    """

    kind: str
    level: str
    sentence: str
    ahead_ms: float | None = None


@dataclass
class StreamReport:
    """The timing of one stream. None: not applicable, or not known without reading the messages.

    A step is the time between two neighbouring samples of an episode, sorted by time.

    Attributes:
        name: The stream.
        type: Its message type.
        dtype: The dtype of a sample.
        shape: The shape of a sample.
        samples: The number of samples.
        source: Where its times come from, as `time="auto"` chose: "stamp", "log", "publish", "mixed" or "file".
        regular: Whether it has a rate. A stream is irregular if fewer than 60 % of its steps (90 % of fewer than 20
            steps) are within half a period of the period, as when samples are written on change, or if it has fewer
            than 8 samples.
        rate_hz: 1 / period; None if irregular.
        period_ms: The median step that is not 0; None if irregular.
        jitter_ms_p50: The median of |step - period|, over steps under 1.5 periods.
        jitter_ms_p99: The 99th percentile of the same.
        gap_threshold_ms: A longer step is a gap.
        gaps: The number of gaps.
        longest_gap_s: The longest gap.
        lost: Samples that are missing: the sum of rint(step / period) - 1 over the steps of at least 1.5 periods that
            jitter does not explain, which are longer than the period by 5 deviations of the steps (1.4826 times their
            median absolute deviation), and that later samples do not catch up with: a late sample is not a lost one.
            Under strong jitter also the periods of a steady clock in which no sample came.
        duplicates: Times equal to the one before.
        backward: Stamps earlier than the one before, as recorded.
        offset_ms: The median of arrival - stamp.
        offset_spread_ms: The 99th percentile of arrival - stamp, minus the median.
        drift_ppm: The slope of arrival - stamp over the stamps: the median of the slopes between the lower deciles of
            up to 64 pieces. Delays only add, so the fastest messages show the clocks. None for less than 2 s.
        coverage: The share of the recording's span (of all its streams) that lies between samples and in no gap.
        starts_after_s: Seconds from the start of that span to the first sample.
        ends_before_s: Seconds from the last sample to the end of that span.
        constant_channels: Channels that never change.
        not_finite: The number of values that are NaN or infinite.
        static: Whether it is a constant, as tf_static is: held from the start on.
        level: "good", "fair" or "bad".
        verdict: Why, in words.
        findings: The findings that the verdict is made of.
    """

    name: str
    type: str
    dtype: str | None
    shape: list[int] | None
    samples: int
    source: str
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
    findings: list[Finding] = field(default_factory=list)


@dataclass
class SyncReport:
    """What `sync_report` found. Print it, or read `streams` and `verdict`.

    Attributes:
        path: The recording.
        format: Its format.
        episodes: The number of episodes.
        duration_s: Seconds, of all episodes.
        time: As passed to `rc.open`.
        full: Whether all messages were read.
        streams: {name: StreamReport}.
        clock: As `Recording.clock`.
        notes: What a person should know.
        level: "good", "fair" or "bad": the worst of the streams.
        verdict: A summary in words.
    """

    path: str
    format: str
    episodes: int
    duration_s: float
    time: str
    full: bool
    streams: dict[str, StreamReport]
    clock: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    level: str = "good"
    verdict: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The report as a dict of plain values, as `robocache info --json` prints it."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join([*(_tables.plain(*table) for table in self.tables()), *self.sentences()])

    def __repr__(self) -> str:
        return f"SyncReport({self.path!r}, {len(self.streams)} streams, {self.level}: {self.verdict})"

    def _repr_html_(self) -> str:
        *others, last = self.tables()
        return "\n".join([*(_tables.as_html(*table) for table in others), _tables.as_html(*last, self.sentences())])

    def show(self) -> None:
        """Prints the report, with Rich if it is installed."""
        for table in self.tables():
            _tables.table(*table, spare=SPARE)
        for sentence in self.sentences():
            _tables.paragraph(sentence)

    def tables(self) -> list[tuple[str, Sequence[str], Sequence[Sequence[str]]]]:
        """The tables of the report: a title, the headers and the rows of each."""
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
        """What the report says below its tables."""
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
SPARE = ("coverage", "lost")  # the sentences name them if they are bad
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
