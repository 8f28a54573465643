"""The frames that a build will make, and their size and time, which a build prints before it begins."""

from __future__ import annotations

import shutil
import time as clock
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robocache import _tables
from robocache._cache.cache import Cache
from robocache._cache.framed import Decoding, FramedSource, cores
from robocache._recordings.frame_options import FrameOptions
from robocache._recordings.recording import Recording
from robocache._recordings.source import Batch, ReadAgain, Source
from robocache._recordings.words import counted

TRIED = 48  # pictures of each camera that are decoded to measure the time of one
LOOKED_AT = 16  # episodes that are searched for cameras


@dataclass(frozen=True)
class Framing:
    """The options of a build's frames: for all cameras, and for some by name (None: no frames)."""

    default: FrameOptions | None
    chosen: Mapping[str, FrameOptions | None]

    def __bool__(self) -> bool:
        return self.default is not None or any(options is not None for options in self.chosen.values())

    def over(self, source: Source, cache: Cache | None) -> FramedSource:
        return FramedSource(source, self.default, self.chosen, {} if cache is None else cache._stored)


class Cost(NamedTuple):
    """The cost of one picture of a camera."""

    bytes: int  # of its frame
    seconds: float  # to decode and resize it, on all cores


@dataclass
class Plan:
    """The size and time of a build's frames, as far as they are known before the build."""

    costs: dict[str, Cost] = field(default_factory=dict)  # by camera
    counts: dict[str, int] = field(default_factory=dict)  # pictures, by camera
    recordings: int = 0  # that will be read
    unknown: dict[str, None] = field(default_factory=dict)  # cameras whose pictures a recording does not count

    @property
    def pictures(self) -> int:
        return sum(self.counts.values())

    @property
    def bytes(self) -> int:
        return sum(self.costs[name].bytes * count for name, count in self.counts.items())

    @property
    def seconds(self) -> float:
        return sum(self.costs[name].seconds * count for name, count in self.counts.items())

    def as_dict(self) -> dict[str, Any]:
        return {
            "cameras": sorted(self.costs),
            "pictures": self.pictures,
            "bytes": self.bytes,
            "seconds": self.seconds,
            "not_counted": list(self.unknown),
        }

    def sentence(self, output: Path) -> str:
        if not self.costs:
            return "Frames: there is no camera in what is to be read."
        more = f" and those of {', '.join(self.unknown)}, which only reading can count" if self.unknown else ""
        what = f"{counted(len(self.costs), 'camera')}, {counted(self.pictures, 'picture')}{more}"
        said = f"Frames: {what}: {sized(self.bytes)}, about {long(self.seconds)} on {counted(cores(), 'core')}."
        free = free_bytes(output)
        if free is not None and free < self.bytes:
            said += (
                f" Only {sized(free)} are free at {output}: a build that fills the disk keeps what it has committed."
            )
        return said

    def show(self, output: Path) -> None:
        if self.recordings:
            _tables.paragraph(self.sentence(output))


def sized(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB" if size >= 1 << 30 else f"{size / 2**20:,.1f} MiB"


def long(seconds: float) -> str:
    return f"{max(round(seconds), 1)} s" if seconds < 90 else f"{round(seconds / 60):,} minutes"


def free_bytes(path: Path) -> int | None:
    place = path.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        return shutil.disk_usage(place).free
    except OSError:
        return None


def planned(
    places: Sequence[str],
    framed: Callable[[str], Recording | None],
    done: Callable[[str], Collection[int]],
) -> Plan:
    """Counts the pictures of the recordings that will be read, and decodes a few of each camera.

    Args:
        framed: Opens a recording with its frames. None: it will not be read.
        done: The episodes of a recording that the cache has already.
    """
    plan = Plan()
    for path in places:
        try:
            recording = framed(path)
            if recording is not None:
                source = recording._source
                assert isinstance(source, FramedSource)
                count(plan, source, done(path))
                plan.recordings += 1
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException:  # the build itself says what is wrong with a recording
            continue
    return plan


def count(plan: Plan, source: FramedSource, done: Collection[int]) -> None:
    """Adds a recording's pictures to the plan."""
    episodes = [k for k in range(len(source.parts())) if k not in done]
    seen: dict[str, list[int]] = {}  # cameras, and the episodes that have each
    for k in episodes[:LOOKED_AT]:
        for name, content in source.contents(k).items():
            if name in source.chosen or may_be_camera(content.type):
                seen.setdefault(name, []).append(k)
    for name, having in list(seen.items()):
        if name not in plan.costs:
            cost = cost_of(source, name, having)
            if cost is None:
                del seen[name]
                continue
            plan.costs[name] = cost
    for name in seen:
        samples = source.total(name)
        if samples is None:
            plan.unknown[name] = None
            continue
        there = (source.contents(k).get(name) for k in done)
        left = samples - sum(content.samples or 0 for content in there if content is not None)
        plan.counts[name] = plan.counts.get(name, 0) + left


def may_be_camera(type: str) -> bool:
    """Whether a stream of this type may have pictures. Its samples must then be checked."""
    lower = type.lower()
    return "image" in lower or "video" in lower or lower == "hdf5/uint8"


def cost_of(source: FramedSource, name: str, episodes: Sequence[int]) -> Cost | None:
    """The cost of a picture of this camera, measured in the first episode with pictures that can be decoded.

    None: the camera gets no frames. If no picture can be decoded, the cost is a guess: the build reports the reason.
    """
    guess: Cost | None = None
    for episode in episodes:
        pieces = first_pictures(source, name, episode)
        if pieces is None:
            return None
        if not pieces:
            continue
        options = source.options_for(pieces[0].info)
        assert options is not None
        cost = tried(source, pieces, options)
        if cost is not None:
            return cost
        guess = Cost(options.height * options.width * 3, 0.0)
    return guess


def first_pictures(source: FramedSource, name: str, episode: int) -> list[Batch] | None:
    """The first pictures of a camera in this episode. None: the stream gets no frames."""
    reader = source.source.presumed() or source.source
    pieces: list[Batch] = []
    count = 0
    try:
        for batch in reader.batches([name], episode):
            if batch.stream != name or source.options_for(batch.info) is None:
                return None
            pieces.append(first_of(batch, TRIED - count))
            count += len(pieces[-1].times)
            if count >= TRIED:
                break
    except ReadAgain:
        pass
    return pieces if count else []


def tried(source: FramedSource, pieces: Sequence[Batch], options: FrameOptions) -> Cost | None:
    """The cost of one of these pictures. None: none of them can be decoded."""
    begin, made, size = clock.perf_counter(), 0, 0
    trial = FramedSource(source.source, source.default, source.chosen, source.stored)
    with Decoding(trial) as decoding:
        for piece in pieces:
            for batch in decoding.frames(piece, options):
                made += len(batch.times)
                size += batch.values.nbytes
    count = sum(len(piece.times) for piece in pieces)
    return Cost(size // made, (clock.perf_counter() - begin) / count) if made else None


def first_of(batch: Batch, count: int) -> Batch:
    """The first samples of a batch."""
    lengths = None if batch.lengths is None else batch.lengths[:count]
    rows = count if lengths is None else int(np.sum(lengths))
    return batch._replace(
        values=batch.values[:rows], times=batch.times[:count], arrivals=batch.arrivals[:count], lengths=lengths
    )
