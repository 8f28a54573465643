"""Shows streams of numbers: recorded samples, aligned values, what a robot knew, states and ages."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache._align.timeline import Timeline
from robocache._cache.default_timeline import is_held
from robocache._recordings.source import Array
from robocache._recordings.words import counted
from robocache._view.aligned import (
    COLOURS,
    STATES,
    HostStream,
    ages_ms,
    blocks,
    known_states,
    shown_values,
    states,
)
from robocache._view.reduce import Rows, bucket_of, reduced
from robocache._view.sink import Sink, Times

MOST_CHANNELS = 64  # channels of a stream that are sent
MOST_VISIBLE = 8  # channels that are drawn at first
LOOKED_AT = 20_000  # rows that are compared to find out whether a channel changes
MOST_CHANGES = 20_000  # of the state of a stream
# Okabe and Ito's colours, without yellow and black, which cannot be seen in the light and the dark theme.
PALETTE = ((86, 180, 233), (230, 159, 0), (0, 158, 115), (204, 121, 167), (213, 94, 0), (0, 114, 178), (148, 148, 220))
RAW, ALIGNED, KNOWN, AGE, STATE = "raw", "aligned", "known", "age", "state"


@dataclass
class Shown:
    """What a view has of each stream: for the layout, the page About, and the result of `rc.view`."""

    paths: Mapping[str, tuple[str, ...]]
    numbers: list[str] = field(default_factory=list)
    cameras: list[str] = field(default_factory=list)
    space: list[str] = field(default_factory=list)  # paths of what is shown in 3D
    voxels: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    visible: dict[str, list[bool]] = field(default_factory=dict)  # the channels that are drawn at first, by stream
    samples: int = 0
    steps: int = 0
    knows: bool = False  # whether the view has what a robot knew at each step
    is_camera_space: bool = False  # whether the axes of 3D are a camera's: x right, y down, z forward


def nothing_in(name: str) -> str:
    """The note on a stream without samples."""
    return f"{name}: nothing to draw: there is no sample"


def cut_channels(one: HostStream, values: Array) -> Array:
    flat = values.reshape(len(values), -1)
    return flat[:, :MOST_CHANNELS] if flat.shape[1] > MOST_CHANNELS else flat


def show_raw(sink: Sink, shown: Shown, one: HostStream, most: int) -> None:
    """Shows the recorded samples as points."""
    values = cut_channels(one, one.values)
    bucket = bucket_of(len(values), values.shape[1], most)
    rows = reduced(Times(one.times, one.arrivals), values, bucket)
    path = sink.path(RAW, *shown.paths[one.name])
    sink.columns(path, rows.times, [sink.scalars(rows.values)])
    width = values.shape[1]
    visible = shown.visible[one.name] = visible_of(rows.values)
    style = {"colors": colours_of(width), "names": list(one.channels[:width]), "visible_series": visible}
    if bucket > 1:  # a line through the least and the largest value of each bucket fills the area between them
        sink.static(path, sink.rr.SeriesLines(widths=[1.0] * width, **style))
    else:
        sink.static(path, sink.rr.SeriesPoints(marker_sizes=[1.5] * width, markers=["circle"] * width, **style))
    shown.samples += len(values)
    if not one.is_static:
        shown.numbers.append(one.name)
    of = int(np.prod(one.values.shape[1:], dtype=np.int64))
    if width < of:
        shown.notes.append(f"{one.name}: the first {width} of {of:,} channels are shown")
    if sum(visible) < width:
        shown.notes.append(
            f"{one.name}: {sum(visible)} of {width} channels are drawn at first; select the plot to draw others"
        )
    if bucket > 1:
        shown.notes.append(
            f"{one.name}: {counted(len(values), 'sample')} are shown by the least and the largest value of every "
            f"{bucket:,}; --most (in Python: most=) shows more"
        )


def visible_of(values: Array) -> list[bool]:
    """Whether each channel is drawn at first: the first MOST_VISIBLE that change, or the first ones if none changes."""
    values = values[:: max(len(values) // LOOKED_AT, 1)].astype(np.float64, copy=False)
    with np.errstate(invalid="ignore", over="ignore"):
        spans = np.fmax.reduce(values) - np.fmin.reduce(values) if len(values) else np.zeros(values.shape[1])
    first = np.flatnonzero(spans > 0)[:MOST_VISIBLE]
    if not len(first):
        first = np.arange(min(len(spans), MOST_VISIBLE))
    made = np.zeros(values.shape[1], bool)
    made[first] = True
    return made.tolist()


def colours_of(width: int, share: float = 1.0) -> list[tuple[int, int, int]]:
    """A colour for each channel. share: of the brightness; below 1 colours are darker."""
    return [tuple(round(share * part) for part in PALETTE[k % len(PALETTE)]) for k in range(width)]  # type: ignore[misc]


class Series:
    """Collects the rows of one entity, block by block, and reduces them to the extremes of buckets."""

    def __init__(self, bucket: int) -> None:
        self.bucket = bucket
        self._parts: list[Rows] = []
        self._rest: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []

    def add(self, times: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        if self.bucket == 1:
            self._parts.append(Rows(Times(times, times), values, 1))
            return
        self._rest.append((times, values))
        count = sum(len(t) for t, _ in self._rest)
        if count >= self.bucket:
            self._reduce(count - count % self.bucket)

    def _reduce(self, count: int) -> None:
        times = np.concatenate([t for t, _ in self._rest])
        values = np.concatenate([v for _, v in self._rest])
        self._parts.append(reduced(Times(times[:count], times[:count]), values[:count], self.bucket))
        self._rest = [(times[count:], values[count:])]

    def send(self, sink: Sink, path: str) -> Array:
        """Sends all rows. Returns their values."""
        left = sum(len(t) for t, _ in self._rest)
        if left:
            self._reduce(left)
        if not self._parts:
            return np.zeros((0, 0))
        recording = np.concatenate([part.times.recording for part in self._parts])
        values = np.concatenate([part.values for part in self._parts])
        sink.columns(path, Times(recording, recording), [sink.scalars(values)])
        return values


def show_aligned(
    sink: Sink,
    shown: Shown,
    streams: Mapping[str, HostStream],
    line: Timeline,
    most: int,
    told: Callable[[float], None],
) -> None:
    """Shows the aligned values, what a robot knew, ages and states of all streams on one timeline."""
    if not streams or not line.count:
        return
    series: dict[tuple[str, ...], Series] = {}
    changes: dict[tuple[str, ...], list[NDArray[np.uint8]]] = {}
    stamps = []
    for name, one in streams.items():
        width = min(len(one.channels), MOST_CHANNELS)
        for kind, channels in ((ALIGNED, width), (KNOWN, width), ("age aligned", 1), ("age known", 1)):
            series[kind, name] = Series(bucket_of(line.count, channels, most))
        changes[ALIGNED, name], changes[KNOWN, name] = [], []
    for block in blocks(streams, line):
        stamps.append(block.times)
        for name, one in streams.items():
            for kind, found in ((ALIGNED, block.aligned[name]), (KNOWN, block.known[name])):
                series[kind, name].add(block.times, cut_channels(one, shown_values(found)))
                series[f"age {kind}", name].add(block.times, ages_ms(found))
                state = states(one, found, block.times) if kind == ALIGNED else known_states(one, found)
                changes[kind, name].append(state)
        told((block.first + len(block.times)) / line.count)
    times = np.concatenate(stamps)
    for name, one in streams.items():
        parts = shown.paths[name]
        width = min(len(one.channels), MOST_CHANNELS)
        visible = shown.visible[name]
        for kind, share, thick, suffix in ((ALIGNED, 1.0, 1.5, f"at {line.rate:g} Hz"), (KNOWN, 0.6, 1.0, "known")):
            path = sink.path(kind, *parts)
            series[kind, name].send(sink, path)
            style: dict[str, Any] = {"colors": colours_of(width, share), "widths": [thick] * width}
            if kind == KNOWN or is_held(one.stream.method, one.values.dtype):
                style["interpolation_mode"] = "StepAfter"
            names = [f"{channel} {suffix}" for channel in one.channels[:width]]
            sink.static(path, sink.rr.SeriesLines(names=names, visible_series=visible, **style))
            age = sink.path(AGE, kind, *parts)
            series[f"age {kind}", name].send(sink, age)
            show_states(sink, sink.path(STATE, kind, *parts), times, np.concatenate(changes[kind, name]))
    shown.steps, shown.knows = line.count, True
    bucket = max(each.bucket for each in series.values())
    if bucket > 1:
        shown.notes.append(
            f"{counted(line.count, 'step')} of the timeline are shown by the least and the largest value of up to "
            f"every {bucket:,}; --most (in Python: most=) shows more"
        )


def show_states(sink: Sink, path: str, times: NDArray[np.int64], codes: NDArray[np.uint8]) -> None:
    """Shows the states as a band: each change, and the end."""
    changed = np.flatnonzero(np.diff(codes)) + 1
    if len(changed) > MOST_CHANGES:  # then only the worst state of each bucket is shown
        bucket = -(-2 * len(codes) // MOST_CHANGES)
        starts = np.arange(0, len(codes), bucket)
        codes, times = np.maximum.reduceat(codes, starts), times[starts]
        changed = np.flatnonzero(np.diff(codes)) + 1
    rows = np.concatenate([[0], changed])
    end = times[-1] + (times[-1] - times[-2] if len(times) > 1 else 0)
    at = np.append(times[rows], end)
    words = [*(STATES[code] for code in codes[rows]), ""]  # Rerun ends a band at an empty state
    sink.columns(path, Times(at, at), [(sink.rr.StateChange.descriptor_state(), sink.texts(words))])
    sink.static(path, style_of_states(sink.rr))


@functools.cache
def style_of_states(rr: Any) -> Any:
    return rr.StateConfiguration(values=list(STATES), colors=np.asarray(COLOURS, np.uint32))
