"""The lines of a recipe that mend what the sync report found."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from robocache._recordings.source import StreamInfo
from robocache._recordings.sync_report import Finding, StreamReport, SyncReport
from robocache._recordings.words import counted, figures, toml_string

LEAST_DELAY = 0.1  # milliseconds: no latency is proposed for a smaller delay


class Mend(NamedTuple):
    """A finding, and the line of a recipe that mends it.

    Attributes:
        finding: What was found. If its level is "good", nothing is wrong, and the line is only information.
        table: Where the line belongs: "stream" is the stream's table, "source" is [source], "" is neither.
        line: A line of TOML. It begins with # if a person must decide about it, or if there is nothing to set.
    """

    finding: Finding
    table: str
    line: str


NOTHING = {
    "jitter": "# nothing to set: samples are interpolated at their own stamps",
    "duplicates": "# nothing to set: of samples with equal stamps the last one counts",
    "backward": "# nothing to set: samples are sorted by their stamps",
    "late start": "# nothing to set: a timeline is the time that all its streams share; without this one it is longer",
    "early end": "# nothing to set: a timeline is the time that all its streams share; without this one it is longer",
    "not finite": '# nothing to set: pass on_nan="skip" to align, and no value beside such a one is valid',
    "no samples": "# nothing to take: leave the stream out",
    "dead": "# leave the stream out, if the sensor is dead",
}
BY_LOG = {
    "unit": "the unit of the stamps is in doubt",
    "mixed": "then all samples have one kind of time",
    "drift": "stamps drift, and log times do not; they also have the delay of each message",
}


def mends(report: SyncReport, name: str, info: StreamInfo | None) -> list[Mend]:
    """What a recipe can do about each finding of a stream, and what to know about its times."""
    stream = report.streams[name]
    drifts = any(finding.kind == "drift" for finding in stream.findings)
    found = [mend(stream, finding, info, drifts) for finding in stream.findings]
    usual = usual_delay(report)
    if stream.static:
        finding = Finding("static", "good", "is a constant, held from the start on")
        found.append(Mend(finding, "stream", "# static = false  # if it is no constant"))
    elif stream.source == "log" and usual is not None and usual >= LEAST_DELAY:
        why = "has no stamps: its times are when it was logged"
        line = f"# latency = {figures(usual * 1e-3)}  # seconds: the delay of the streams that have stamps"
        found.append(Mend(Finding("unstamped", "good", why), "stream", line))
    clock = (report.clock or {}).get("streams", {}).get(name, {})
    if clock.get("source") == "own":
        finding = Finding("own clock", "good", "is stamped by a clock of its own, and was carried over")
        found.append(Mend(finding, "stream", '# clock = "as stamped"  # undoes that'))
    return found


def usual_delay(report: SyncReport) -> float | None:
    """The usual delay from stamp to arrival, in milliseconds, over the streams that have stamps."""
    known = [stream.offset_ms for stream in report.streams.values() if stream.offset_ms is not None]
    return float(np.median(known)) if known else None


def mend(stream: StreamReport, finding: Finding, info: StreamInfo | None, drifts: bool) -> Mend:
    """drifts: whether the stream's clock drifts."""
    kind = finding.kind
    if kind in NOTHING:
        return Mend(finding, "", NOTHING[kind])
    if kind in BY_LOG:
        return Mend(finding, "source", f'# time = "log"  # {BY_LOG[kind]}')
    line = ""
    limit = info.metadata.get("max_gap_ns", "") if info is not None else ""
    if kind == "gaps" and limit.isdecimal():
        told = f"# mended: max_gap is {figures(int(limit) * 1e-9)} s, and nothing is valid inside a gap"
        return Mend(finding, "", told)
    if kind == "lost" and limit.isdecimal() and int(limit) * 1e-6 < 2 * (stream.period_ms or 0.0):
        told = f"# mended: max_gap is {figures(int(limit) * 1e-9)} s, and no value is valid beside a lost sample"
        return Mend(finding, "", told)
    if kind == "irregular" and info is not None and info.method == "hold":
        return Mend(finding, "", "# mended: its method is hold")
    if kind == "gaps":
        line = max_gap(stream)
    elif kind == "lost" and stream.period_ms is not None:
        line = (
            f"# max_gap = {figures(1.5e-3 * stream.period_ms)}  # seconds: then no value is valid beside a lost sample"
        )
    elif kind == "irregular":
        is_held = info is not None and info.ragged
        line = "# nothing to set: it is held" if is_held else 'method = "hold"  # a value holds until the next one'
    elif kind == "one sample":
        line = "# static = true  # if it is a constant"
    elif kind in ("offset", "delay") and drifts:  # with log times, it would shift those
        line = "# nothing to set: no clock_offset mends a clock that drifts"
    elif kind in ("offset", "delay") and finding.ahead_ms is not None:
        line = f"# clock_offset = {figures(finding.ahead_ms * 1e-3)}  # seconds, if it is the clock that is off"
    elif kind == "still":
        line = moving_channels(stream, info)
    return Mend(finding, "" if line.startswith("# nothing") else "stream", line)


def max_gap(stream: StreamReport) -> str:
    gaps = f"{counted(stream.gaps or 0, 'gap')}, longest {figures(stream.longest_gap_s or 0.0)} s"
    limit = figures((stream.gap_threshold_ms or 0.0) * 1e-3)
    return f"max_gap = {limit}  # seconds: nothing is valid inside; {gaps}"


def moving_channels(stream: StreamReport, info: StreamInfo | None) -> str:
    still = stream.constant_channels or []
    moving = [channel for channel in (info.channels if info is not None else ()) if channel not in still]
    if not moving:
        return "# nothing to set, if it is a command or a flag"
    if len(moving) > 12:
        return "# channels = [...]  # those that change, if the others are not wanted"
    listed = ", ".join(map(toml_string, moving))
    return f"# channels = [{listed}]  # those that change, if the others are not wanted"
