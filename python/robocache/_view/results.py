"""Shows results of rc.align and cache.align."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache._align.extent import nanoseconds, on_host
from robocache._align.frames import on_host_as_table
from robocache._align.results import Aligned
from robocache._align.timeline import Timeline
from robocache._cache.cache_aligned import CacheAligned
from robocache._recordings.words import counted
from robocache._view.aligned import HostStream, ages_ms, shown_values, states
from robocache._view.numbers import (
    AGE,
    ALIGNED,
    MOST_CHANNELS,
    STATE,
    Series,
    Shown,
    colours_of,
    show_states,
    visible_of,
)
from robocache._view.reduce import bucket_of
from robocache._view.sink import Sink, label


def rows_of(what: Any, timeline: Any, row: int | str) -> tuple[dict[str, Aligned[Any]], NDArray[np.int64], list[str]]:
    """One row of the results, on the host; the times of its steps; and notes."""
    if isinstance(what, CacheAligned):
        places = [str(number) for number in what.episodes]
        place = places.index(str(row)) if str(row) in places else 0
        if str(row) not in places and row != 0:
            raise ValueError(f"view: the results have the episodes {', '.join(places)}, not {row!r}")
        steps = int(np.asarray(on_host(what.lengths))[place])
        times = np.asarray(on_host(what.times))[place, :steps]
        found = {name: one_row(one, place, steps) for name, one in what.items()}
        many = len(places) > 1
        note = f"episode {what.episodes[place]} of {len(places)} in the results is shown; episode= shows another"
        return found, times, [note] if many else []
    if isinstance(what, Aligned):
        what = {"aligned": what}
    results: dict[str, Aligned[Any]] = (
        dict(what) if isinstance(what, Mapping) else {f"stream {k}": one for k, one in enumerate(what)}
    )
    if timeline is None:
        raise ValueError("view: results of rc.align do not hold their times; give timeline=, the timeline of the call")
    given = timeline.times if isinstance(timeline, Timeline) else timeline
    times = nanoseconds("view: timeline: ", np.asarray(on_host(given)))
    for name, one in results.items():
        steps = one.valid.shape[-1]
        if steps != times.shape[-1]:
            told = f'timeline has {counted(times.shape[-1], "step")}, and "{name}" has {steps:,}'
            raise ValueError(f"view: {told}; give the timeline of the call")
    rows = next(iter(results.values())).valid.ndim - 1 if results else 0
    if not rows:
        return {name: one_row(one, None, len(times)) for name, one in results.items()}, times, []
    count = len(next(iter(results.values())).valid)
    if not isinstance(row, int) or not 0 <= row < count:
        raise ValueError(f"view: episode is {row!r}; the results have {count} rows, from 0 on")
    times = times[row] if times.ndim == 2 else times
    note = f"row {row} of {count} is shown; episode= shows another"
    return {name: one_row(one, row, len(times)) for name, one in results.items()}, times, [note] if count > 1 else []


def one_row(one: Aligned[Any], row: int | None, steps: int) -> Aligned[Any]:
    host = [on_host_as_table(array) for array in one]
    return Aligned(*(array[:steps] if row is None else array[row, :steps] for array in host))


def show_results(
    sink: Sink,
    shown: Shown,
    results: Mapping[str, Aligned[Any]],
    times: NDArray[np.int64],
    behind: Mapping[str, HostStream],
    most: int,
) -> None:
    for name, found in results.items():
        if not len(times):
            shown.notes.append(f"{name}: the timeline has no steps")
            continue
        parts = shown.paths[name]
        values = shown_values(found)[:, :MOST_CHANNELS]
        width = values.shape[1]
        if not width:
            shown.notes.append(f"{name}: nothing to draw: it has no channels")
            continue
        channels = (
            behind[name].channels if name in behind else ((name,) if width == 1 else [f"[{k}]" for k in range(width)])
        )
        for path, rows in ((sink.path(ALIGNED, *parts), values), (sink.path(AGE, ALIGNED, *parts), ages_ms(found))):
            series = Series(bucket_of(len(times), rows.shape[1], most))
            series.add(times, rows)
            series.send(sink, path)
        style = {"colors": colours_of(width), "visible_series": visible_of(values), "widths": [1.5] * width}
        names = [label(f"{channel} aligned") for channel in channels[:width]]
        sink.static(sink.path(ALIGNED, *parts), sink.rr.SeriesLines(names=names, **style))
        codes = states_of(found, times, behind.get(name))
        show_states(sink, sink.path(STATE, ALIGNED, *parts), times, codes)
        if name not in shown.numbers:
            shown.numbers.append(name)
    shown.steps = len(times)


def states_of(found: Aligned[Any], times: NDArray[np.int64], one: HostStream | None) -> NDArray[np.uint8]:
    """The states of results. Without the streams that they were made from, nothing is stale, and every step that is not
    valid is a gap.
    """
    if one is not None:
        return states(one, found, times)
    nothing = np.zeros(0, np.int64)
    return states(HostStream("", None, nothing, nothing, nothing, (), False, None, 0), found, times)  # type: ignore[arg-type]
