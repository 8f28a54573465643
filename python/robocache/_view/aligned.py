"""Aligns streams on a timeline, block by block: aligned values, what a robot knew at each step, and their states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache import _core
from robocache._align.align import align
from robocache._align.extent import nanoseconds, on_host
from robocache._align.frames import on_host_as_table
from robocache._align.results import Aligned
from robocache._align.stream import Stream
from robocache._align.timeline import Timeline
from robocache._cache.cache import MOST_STREAMS
from robocache._cache.default_timeline import hold_always, is_held, runs, valid_always
from robocache._recordings.source import Array, is_static
from robocache._recordings.sync import GAP
from robocache._view.sink import label

BLOCK = 1 << 16  # steps that are aligned at a time
LOOKED_AT = 20_000  # samples that the usual delay is measured on
NEVER = np.iinfo(np.int64).min  # the age if no sample exists

STATES = ("valid", "stale", "gap", "outside", "nothing yet")
VALID, STALE, GAPPED, OUTSIDE, NOTHING = range(5)
COLOURS = (0x3B9C5AFF, 0xE0A100FF, 0xD64545FF, 0x55606AFF, 0x3F4A54FF)  # of the states


class HostStream(NamedTuple):
    """A stream of numbers on the host, ready to be shown and aligned: NumPy arrays, times in nanoseconds."""

    name: str
    stream: Stream[Any]
    values: Array  # [N, ...]
    times: NDArray[np.int64]  # minus the stream's latency
    arrivals: NDArray[np.int64]
    channels: tuple[str, ...]
    is_static: bool
    limit: int | None  # values are stale between samples that are further apart, in nanoseconds; None: it has no rate
    delay: int  # the usual time from a sample to its arrival, in nanoseconds


def sampled(name: str, stream: Stream[Any], gap: float | None = None) -> HostStream:
    values = on_host_as_table(stream.values)
    stamps = nanoseconds(f'view: stream "{name}": ', np.asarray(on_host(stream.times)))
    refuse_decreasing(name, stamps)
    late = _core.nanoseconds("latency", stream.latency)
    times = stamps - late if late else stamps
    arrivals = stamps
    if stream.arrivals is not None:
        arrivals = nanoseconds(f'view: stream "{name}": ', np.asarray(on_host(stream.arrivals)))
    info = getattr(stream, "info", None)
    static = info is not None and is_static(info)
    every = max(len(times) // LOOKED_AT, 1)
    delay = int(np.median(arrivals[::every] - times[::every])) if len(times) else 0
    host = stream.replace(values=values, times=stamps, arrivals=arrivals, name=label(name))
    width = int(np.prod(values.shape[1:], dtype=np.int64))
    names = stream.channels or ()
    names = tuple(map(label, names))
    channels = (
        names if len(names) == width else ((label(name),) if width == 1 else tuple(f"[{k}]" for k in range(width)))
    )
    limit = None if static else limit_of(stream, times, gap)
    return HostStream(name, host, values, times, arrivals, channels, static, limit, max(delay, 0))


def refuse_decreasing(name: str, stamps: NDArray[np.int64]) -> None:
    wrong = np.flatnonzero(stamps[1:] < stamps[:-1])
    if len(wrong):
        k = int(wrong[0])
        early, late = (f"times[{each}] = {stamps[each]}" for each in (k + 1, k))
        raise ValueError(f'view: stream "{name}": {early} is before {late}; times must not decrease')


def refuse_rows(name: str, stream: Stream[Any]) -> None:
    """Raises ValueError for streams with rows: a view shows one recording."""
    rows = stream.lengths, stream.offsets, stream.rows
    if len(stream.times.shape) != 1 or any(each is not None for each in rows):
        shape = list(stream.times.shape)
        raise ValueError(
            f'view: stream "{name}" has rows, times {shape}; show one of them: Stream(values[0], times[0])'
        )


def limit_of(stream: Stream[Any], times: NDArray[np.int64], gap: float | None) -> int | None:
    """The longest step between samples whose values are not stale, in nanoseconds.

    It is `gap`, else the stream's max_gap, else 3 median periods as in the sync report.
    """
    if gap is not None:
        return round(gap * 1e9)
    if stream.max_gap is not None:
        return int(_core.nanoseconds("max_gap", stream.max_gap))
    steps = np.diff(times)
    steps = steps[steps > 0]
    return round(GAP * float(np.median(steps))) if len(steps) and runs(times) else None


class Block(NamedTuple):
    """Consecutive steps of the timeline, and the streams aligned at them."""

    first: int  # the number of the first step
    times: NDArray[np.int64]
    aligned: dict[str, Aligned[Any]]
    known: dict[str, Aligned[Any]]  # what had arrived by each step


def blocks(streams: Mapping[str, HostStream], line: Timeline) -> Iterator[Block]:
    """Aligns the streams on the timeline, once with all samples, and once with those that had arrived by each step."""
    members = {name: ready(one) for name, one in streams.items()}
    for first in range(0, line.count, BLOCK):
        part = Timeline(line.start, rate=line.rate, count=min(BLOCK, line.count - first))
        part.first = line.first + first
        times = np.asarray(part.times)
        # Each step is a row of its own, with as_of at the step. The row begins with the step before, because the bin of
        # a mean begins there.
        rows = Timeline.around(times, history=1, horizon=1, rate=line.rate)
        aligned: dict[str, Aligned[Any]] = {}
        known: dict[str, Aligned[Any]] = {}
        names = list(members)
        for begin in range(0, len(names), MOST_STREAMS):
            some = names[begin : begin + MOST_STREAMS]
            decided = [members[name].replace(causal=None, as_of=None) for name in some]
            aligned |= zip(some, align([members[name] for name in some], part), strict=True)
            known |= zip(some, map(last_step, align(decided, rows, as_of="anchor")), strict=True)
        for found in (aligned, known):
            found |= {name: valid_always(found[name]) for name in found if streams[name].is_static}
        yield Block(first, times, aligned, known)


def ready(one: HostStream) -> Stream[Any]:
    return hold_always(one.stream) if one.is_static else one.stream


def last_step(found: Aligned[Any]) -> Aligned[Any]:
    return Aligned(*(np.ascontiguousarray(array[:, 1]) for array in found))


def states(one: HostStream, found: Aligned[Any], times: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The state of aligned values at each step. If `one` has no samples, nothing is stale."""
    valid, age, index = np.asarray(found.valid), np.asarray(found.age), np.asarray(found.index)
    made = np.where(valid, VALID, GAPPED).astype(np.uint8)
    if len(one.times):
        made[~valid & ((times < one.times[0]) | (times > one.times[-1]))] = OUTSIDE
    made[age == NEVER] = OUTSIDE
    if one.limit is not None and len(one.times):
        late = age > one.limit
        if not is_held(one.stream.method, one.values.dtype):  # interpolated values use the samples on both sides
            here = np.clip(index, 0, len(one.times) - 1)
            step = one.times[np.minimum(here + 1, len(one.times) - 1)] - one.times[here]
            late |= (age > 0) & (index >= 0) & (step > one.limit)
        made[valid & late] = STALE
    return made


def known_states(one: HostStream, found: Aligned[Any]) -> NDArray[np.uint8]:
    """The state of what a robot knew at each step. It is stale if it is older than period and usual delay explain."""
    valid, age = np.asarray(found.valid), np.asarray(found.age)
    made = np.where(valid, VALID, GAPPED).astype(np.uint8)
    made[age == NEVER] = NOTHING
    if one.limit is not None:
        made[valid & (age > one.limit + one.delay)] = STALE
    return made


def shown_values(found: Aligned[Any]) -> NDArray[np.float64]:
    """The values [T, D] as float64, NaN where they are not valid, so that only real values are drawn."""
    values = np.asarray(found.values)
    flat = values.reshape(len(values), -1).astype(np.float64)
    flat[~np.asarray(found.valid)] = np.nan
    return flat


def ages_ms(found: Aligned[Any]) -> NDArray[np.float64]:
    """Milliseconds [T, 1]; NaN where no sample exists."""
    age = np.asarray(found.age)
    return np.where(age == NEVER, np.nan, age * 1e-6)[:, None]
