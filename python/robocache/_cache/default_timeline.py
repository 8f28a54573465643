"""The default timeline of an episode: one rule for Cache.align and export. Also how constants are aligned.

An episode's timeline spans the time that the chosen streams share, counting only those that run all the time:
- Static streams (`metadata["static"]`) are constants and do not limit it.
- Irregular streams, such as those written on change, and streams with too few samples for a rate do not limit it.
- Of the others, the interpolated streams limit it. If all are held, the held streams do.
- If no stream runs all the time, it spans from the first to the last sample of the streams that are not static. If all
  are static, of all streams.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from robocache import _core
from robocache._align.extent import nanoseconds, on_host, steps_within
from robocache._align.results import Aligned
from robocache._align.stream import Method, Stream
from robocache._align.timeline import Timeline
from robocache._recordings.source import Array, is_static
from robocache._recordings.words import figures

MOST_STEPS = 2**31
LONG = 24 * 3600 * 10**9  # nanoseconds
ALWAYS = -(2**61)  # nanoseconds: before every target


class Reach(NamedTuple):
    """The time that a stream covers in an episode."""

    first: int  # nanoseconds, minus latency
    last: int
    runs: bool  # samples come all the time, not only on change
    is_held: bool  # a sample holds until the next one
    is_static: bool


class Span(NamedTuple):
    """The span of an episode in nanoseconds, both ends inclusive. It is empty if end < start."""

    start: int
    end: int


def runs(times: Array) -> bool:
    """Whether samples come all the time, not only on change. times: nanoseconds, not decreasing."""
    return _core.come_all_the_time(np.ascontiguousarray(times, np.int64))


def is_held(method: Method | None, dtype: np.dtype[Any]) -> bool:
    """Whether a sample of a stream with this method holds until the next one."""
    if method is None:
        return dtype.kind in "biu"
    if isinstance(method, str):
        return method == "hold"
    if isinstance(method, Mapping):
        return set(method.values()) == {"hold"}
    return {name for name, _, _ in method} == {"hold"}


def reach_of(stream: Stream[Any], name: str = "") -> Reach | None:
    """The time that a stream covers. None: it has no samples."""
    times = np.asarray(stream.times)
    if not len(times):
        return None
    stamps = nanoseconds(f'stream "{name}": ', times)
    ends = stamps[[0, -1]] - _core.nanoseconds("latency", stream.latency)
    info = getattr(stream, "info", None)
    static = info is not None and is_static(info)
    held = is_held(stream.method, np.asarray(stream.values).dtype)
    return Reach(int(ends[0]), int(ends[1]), not static and runs(stamps), held, static)


def bounding(reaches: Mapping[str, Reach]) -> dict[str, Reach]:
    """The streams whose overlap is the span. Empty: the span is from the first to the last sample of all streams."""
    running = {name: reach for name, reach in reaches.items() if reach.runs}
    return {name: reach for name, reach in running.items() if not reach.is_held} or running


def span_of(reaches: Mapping[str, Reach]) -> Span | None:
    """The span of an episode. None: there is no sample."""
    bounds = bounding(reaches)
    if bounds:
        return Span(max(reach.first for reach in bounds.values()), min(reach.last for reach in bounds.values()))
    some = [reach for reach in reaches.values() if not reach.is_static] or list(reaches.values())
    if not some:
        return None
    return Span(min(reach.first for reach in some), max(reach.last for reach in some))


def steps_of(span: Span | None, rate: float) -> int:
    """The number of steps of a timeline at this rate in the span."""
    return 0 if span is None else steps_within(span.end - span.start, rate)


def default_timeline(streams: Mapping[str, Stream[Any]], rate: float) -> Timeline:
    """The default timeline of streams that were recorded together; empty if they share no time."""
    found = {name: reach_of(stream, name) for name, stream in streams.items()}
    span = span_of({name: reach for name, reach in found.items() if reach is not None})
    return Timeline(0 if span is None else span.start, rate=rate, count=steps_of(span, rate))


def refuse_too_large(
    where: str, episode: str, span: Span, rate: float, count: int, size: int, reaches: Mapping[str, Reach]
) -> None:
    """Refuses a timeline that is too long, before memory is allocated. size: bytes of the whole result."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if count <= MOST_STEPS and size <= memory:
        return
    much = f"{count:,} steps"
    if count <= MOST_STEPS:
        much += f" and needs {size / 2**30:,.1f} GiB of memory; this machine has {memory / 2**30:,.1f} GiB"
    length = span.end - span.start
    spans = f'{where}: episode "{episode}" spans {figures(length * 1e-9, 4)} s, which at {rate:g} Hz is'
    if length < LONG:  # a recording may be this long, so the stamps are not wrong
        raise ValueError(f"{spans} {much}. Give a lower rate, fewer episodes or fewer streams")
    early = min(reaches, key=lambda name: reaches[name].first)
    late = max(reaches, key=lambda name: reaches[name].last)
    said = [
        f'"{name}" from {reaches[name].first * 1e-9:.3f} to {reaches[name].last * 1e-9:.3f} s' for name in (early, late)
    ]
    apart = f"{said[0]} and {said[1]}" if early != late else f"{said[0]}, which has one stamp far from the others"
    raise ValueError(
        f"{spans} {much}. The streams that lie furthest apart are {apart}. Are they on one clock? robocache info "
        "tells; name the streams that you want, fewer episodes, or a lower rate"
    )


def result_bytes(count: int, sample_bytes: Iterable[int]) -> int:
    """The bytes of aligned values, valid, age and index: this many rows of samples of these sizes."""
    return sum(count * (size + 1 + 8 + 8) for size in sample_bytes)


# ---- Constants


def hold_always(stream: Stream[Any], move: Callable[[Array], Any] = lambda array: array) -> Stream[Any]:
    """A static stream for align: the first sample of each row gets a time before every target."""
    times = np.array(on_host(stream.times), np.int64)
    arrivals = times.copy() if stream.arrivals is None else np.array(on_host(stream.arrivals), np.int64)
    if stream.offsets is None:
        first = np.arange(min(len(times), 1))
    else:
        offsets = on_host(stream.offsets)
        first = offsets[:-1][offsets[1:] > offsets[:-1]]
    times[first] = arrivals[first] = ALWAYS
    return stream.replace(times=move(times), arrivals=move(arrivals), method="hold", max_gap=None, edge="clamp")


def valid_always(aligned: Aligned[Any]) -> Aligned[Any]:
    """The aligned result of such a stream: valid if there is a sample, and the first sample has age 0."""
    age = aligned.age
    return aligned._replace(valid=aligned.index >= 0, age=age * (age < 2**60))
