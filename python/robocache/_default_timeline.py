"""The default timeline of an episode: one rule, for Cache.align, export and the loader. And what a constant is on it.

An episode's timeline spans what the streams that are asked for share, of those that run all the time:
- Static streams (`metadata["static"]`) bound nothing: they are constants.
- Streams that are irregular, as when a sample is written on change, or have too few samples for a rate, bound nothing.
- Of the others those that are interpolated bound it; where all are held, they do.
- Where no stream runs, it spans from the first to the last sample of those that are not static, else of all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from robocache import _core
from robocache._align import Aligned, Method, Stream, Timeline
from robocache._extent import nanoseconds, on_host, steps_within
from robocache._recording import Array, figures, is_static
from robocache._sync import FEW, is_regular

MOST_STEPS = 2**31
ALWAYS = -(2**61)  # nanoseconds: before every target


class Reach(NamedTuple):
    """What a stream tells of an episode's span."""

    first: int  # nanoseconds, latency taken off
    last: int
    runs: bool  # all the time, not only on change
    is_held: bool  # nothing is between two of its samples
    is_static: bool


class Span(NamedTuple):
    """Of an episode: nanoseconds, both inclusive. It is empty where end < start."""

    start: int
    end: int


def runs(times: Array) -> bool:
    """All the time, not only on change."""
    step = times[1:] - times[:-1]
    if len(step) >= FEW:
        least = step.min()
        if least > 0 and step.max() - least <= 0.5 * least:  # then none is far from the median: no need to find it
            return True
    return is_regular(step[step > 0])


def is_held(method: Method | None, dtype: np.dtype[Any]) -> bool:
    """Nothing is between two samples of a stream with this method."""
    if method is None:
        return dtype.kind in "biu"
    if isinstance(method, str):
        return method == "hold"
    if isinstance(method, Mapping):
        return set(method.values()) == {"hold"}
    return {name for name, _, _ in method} == {"hold"}


def reach_of(stream: Stream[Any], name: str = "") -> Reach | None:
    """None: it has no samples."""
    times = np.asarray(stream.times)
    if not len(times):
        return None
    ends = nanoseconds(f'stream "{name}": ', times[[0, -1]]) - _core.nanoseconds("latency", stream.latency)
    info = getattr(stream, "info", None)
    static = info is not None and is_static(info)
    held = is_held(stream.method, np.asarray(stream.values).dtype)
    return Reach(int(ends[0]), int(ends[1]), not static and runs(times), held, static)


def bounding(reaches: Mapping[str, Reach]) -> dict[str, Reach]:
    """The streams that bound the span by their overlap; none: all of them do, from the first to the last sample."""
    running = {name: reach for name, reach in reaches.items() if reach.runs}
    return {name: reach for name, reach in running.items() if not reach.is_held} or running


def span_of(reaches: Mapping[str, Reach]) -> Span | None:
    """None: there is no sample."""
    bounds = bounding(reaches)
    if bounds:
        return Span(max(reach.first for reach in bounds.values()), min(reach.last for reach in bounds.values()))
    some = [reach for reach in reaches.values() if not reach.is_static] or list(reaches.values())
    if not some:
        return None
    return Span(min(reach.first for reach in some), max(reach.last for reach in some))


def steps_of(span: Span | None, rate: float) -> int:
    """How many steps of a timeline at this rate lie in the span."""
    return 0 if span is None else steps_within(span.end - span.start, rate)


def default_timeline(streams: Mapping[str, Stream[Any]], rate: float) -> Timeline:
    """Of streams that were recorded together; empty where they share no time."""
    found = {name: reach_of(stream, name) for name, stream in streams.items()}
    span = span_of({name: reach for name, reach in found.items() if reach is not None})
    return Timeline(0 if span is None else span.start, rate=rate, count=steps_of(span, rate))


def refuse_too_large(
    where: str, episode: str, span: Span, rate: float, count: int, size: int, reaches: Mapping[str, Reach]
) -> None:
    """Before memory is asked for. size: bytes of the whole result."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if count <= MOST_STEPS and size <= memory:
        return
    much = f"{count:,} steps"
    if count <= MOST_STEPS:
        much += f" and needs {size / 2**30:,.1f} GiB of memory; this machine has {memory / 2**30:,.1f} GiB"
    early = min(reaches, key=lambda name: reaches[name].first)
    late = max(reaches, key=lambda name: reaches[name].last)
    said = [
        f'"{name}" from {reaches[name].first * 1e-9:.3f} to {reaches[name].last * 1e-9:.3f} s' for name in (early, late)
    ]
    apart = f"{said[0]} and {said[1]}" if early != late else f"{said[0]}, which has one stamp far from the others"
    raise ValueError(
        f'{where}: episode "{episode}" spans {figures((span.end - span.start) * 1e-9, 4)} s, which at {rate:g} Hz is '
        f"{much}. The streams that lie furthest apart are {apart}. Are they on one clock? robocache info tells; name "
        "the streams that you want, fewer episodes, or a lower rate"
    )


def result_bytes(count: int, sample_bytes: Iterable[int]) -> int:
    """Of aligned values, valid, age and index: so many rows of samples of these sizes."""
    return sum(count * (size + 1 + 8 + 8) for size in sample_bytes)


# ---- Constants


def hold_always(stream: Stream[Any], move: Callable[[Array], Any] = lambda array: array) -> Stream[Any]:
    """A static stream as align must see it: its first sample, of each row, is there before every target."""
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
    """What align made of it: valid wherever there is a sample, and the first one has age 0."""
    age = aligned.age
    return aligned._replace(valid=aligned.index >= 0, age=age * (age < 2**60))
