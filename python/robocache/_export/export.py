"""`robocache export`: the episodes of a cache, aligned at a rate, as a LeRobot data set, safetensors or MCAP.

Each episode is aligned on its default timeline (_cache/default_timeline.py). A stream that is written on change is held
to the end, and a static one is always valid. Values are aligned as the streams say. Where a value is not valid (outside
a stream's samples, or inside a gap over its max_gap) the nearest one is repeated, and a feature says so: `valid.NAME`
in a LeRobot data set, because policies take every feature that begins with "observation" or "action" as their own;
`NAME.valid` in safetensors. MCAP has no message there. Rows that are not finite are kept and not valid; MCAP's JSON has
null for them.

An episode of a recording is first written to a temporary cache beside the target, in one pass, and exported from there.
Memory then holds one batch and the aligned values, however long the recording is.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robocache import _core
from robocache._align.extent import extent
from robocache._align.results import Aligned
from robocache._align.stream import Duration, Method, Stream
from robocache._align.timeline import Timeline
from robocache._cache.cache import Cache, align_some
from robocache._cache.default_timeline import (
    Reach,
    bounding,
    hold_always,
    is_held,
    refuse_too_large,
    result_bytes,
    runs,
    span_of,
    steps_of,
    valid_always,
)
from robocache._cache.episodes import CachedEpisode
from robocache._cache.joined import info_of, put_together, shown
from robocache._cache.prepare import key_of, names_of, numbers_of, prepared, rate_of
from robocache._cache.tier import TierSamples
from robocache._cache.values import row_bytes
from robocache._cache.writer import CacheWriter
from robocache._core import FileError
from robocache._export.aligned_episode import AlignedEpisode, note
from robocache._export.new_folder import make_parents, told
from robocache._export.to_lerobot import to_lerobot
from robocache._export.to_mcap import to_mcap
from robocache._export.to_safetensors import to_safetensors
from robocache._recordings.images import is_image
from robocache._recordings.open import is_cache
from robocache._recordings.open import open as open_recording
from robocache._recordings.recording import Episode, Recording
from robocache._recordings.source import Array, Batch, is_static
from robocache._recordings.streams import RecordedStream
from robocache._recordings.words import missing

KEPT = 0.9  # of an episode: a note is made if the timeline has less
FORMATS = ("lerobot", "safetensors", "mcap")
PICTURES = ("frames", "source")
OTHERWISE = "--pictures source takes the recorded pictures"
MOST_RATE = 1e6  # hertz


class Options(NamedTuple):
    """How streams are aligned: for all of them, or by name. None: as the stream says."""

    method: Method | Mapping[str, Method] | None = None
    max_gap: Duration | Mapping[str, Duration] | None = None
    edge: str | Mapping[str, str] | None = None
    causal: bool | Mapping[str, bool] | None = None
    on_nan: str | Mapping[str, str] | None = None


def held_on(stream: Stream[Any], aligned: Aligned[Any], times: Array) -> Aligned[Any]:
    """Extends a stream that is written on change, or once: it keeps its last value for as long as max_gap allows.

    Where `edge` has put NaN or 0, nothing becomes valid, because no sample is behind the value.
    """
    held = len(stream.times) == 1 or is_held(stream.method, np.asarray(stream.values).dtype)
    if not held or runs(np.asarray(stream.times)):
        return aligned
    since = times - int(extent("", stream)[1])
    long = np.inf if stream.max_gap is None else _core.nanoseconds("max_gap", stream.max_gap)
    kept = (since > 0) & (since <= long) & (np.asarray(aligned.index) >= 0)
    return aligned._replace(valid=np.asarray(aligned.valid) | kept)


def warn_of_cuts(episode: str, reaches: Mapping[str, Reach], line: Timeline, notes: list[str]) -> None:
    """Notes it if a stream that ends early or begins late, such as a sensor that died, cuts the timeline of all."""
    bounds = bounding(reaches)
    if not bounds:
        return
    whole = max(reach.last for reach in bounds.values()) - min(reach.first for reach in bounds.values())
    if (len(line) - 1) * 1e9 / line.rate > KEPT * whole:
        return
    late, early = max(bounds, key=lambda name: bounds[name].first), min(bounds, key=lambda name: bounds[name].last)
    share = 100 * (len(line) - 1) * 1e9 / line.rate / whole
    cut = f'"{late}" begins last and "{early}" ends first' if late != early else f'"{late}" is the shortest'
    note(notes, f"of episode {episode}, {share:.0f} % are exported: {cut}; --streams leaves one out")


def members_of(episode: Episode | CachedEpisode) -> dict[str, tuple[str, ...]]:
    """The streams of an episode as policies see them, with the stored streams behind each (several in a join)."""
    stored = list(episode.streams)
    joined = episode._cache._joined if isinstance(episode, CachedEpisode) else {}
    found = {name: joined.get(name, (name,)) for name in shown(stored, joined)}
    return {name: members for name, members in found.items() if all(member in episode.streams for member in members)}


def chosen_streams(
    episodes: Sequence[Any], names: Sequence[str] | None, notes: list[str]
) -> tuple[list[str], list[dict[str, tuple[str, ...]]]]:
    """The streams to export, and for each episode those that it has."""
    has = [members_of(episode) for episode in episodes]
    every = dict.fromkeys(name for found in has for name in found)
    if names is not None:
        for found, episode in zip(has, episodes, strict=True):  # members of a joined stream can be named too
            found |= {name: (name,) for name in names if name not in found and name in episode.streams}
        every |= dict.fromkeys(name for found in has for name in found)
        for name in names:
            if name not in every:
                raise ValueError(missing("there is no stream", name, every))
        return list(names), has
    filled = [found for found in has if found]
    common = [name for name in every if all(name in found for found in filled)]
    if not common and every:
        raise ValueError(f"no stream is in every episode; name some with --streams: {', '.join(every)}")
    for name in every:
        if name not in common:
            note(notes, f'stream "{name}" is left out: not every episode has it')
    return common, has


class OneEpisode:
    """One episode of a recording, in the form that CacheWriter takes."""

    files: tuple[Path, ...] = ()

    def __init__(self, episode: Episode) -> None:
        self.path, self.episodes = episode.streams._source.path, [episode]

    def batches(self, streams: Collection[str] | None = None) -> Iterator[Batch]:
        (episode,) = self.episodes
        start, end = episode.streams._range
        for batch in episode.streams._source.batches(streams, episode.index, start, end):
            yield batch._replace(episode=0)


@contextmanager
def mapped(episode: Episode | CachedEpisode, names: Collection[str], target: Path) -> Iterator[CachedEpisode]:
    """The episode in a cache: its own, or a temporary one in a new folder beside `target`."""
    if isinstance(episode, CachedEpisode):
        yield episode
        return
    with told(target):
        make_parents(target)
        folder = tempfile.mkdtemp(prefix=f".{target.name}.read-", dir=target.parent)
    try:
        with CacheWriter(folder) as writer:
            writer.add(OneEpisode(episode), streams=names)
        yield Cache(folder).episodes[-1]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def take(
    episodes: Sequence[Any],
    rate: float,
    names: Sequence[str] | None,
    options: Options,
    pictures: str,
    notes: list[str],
    target: Path,
) -> Generator[AlignedEpisode, None, None]:
    """The episodes on their timelines, one at a time. The samples of an episode are gone when the next is asked for."""
    tally = Tally()
    chosen, has = chosen_streams(episodes, names, notes)
    for number, (episode, found) in enumerate(zip(episodes, has, strict=True)):
        lacking = [name for name in chosen if name not in found]
        if lacking or not chosen:
            why = f'it has no stream "{lacking[0]}"' if lacking else "it has no streams"
            note(notes, f"episode {episode.name} is left out: {why}")
            continue
        members = {name: found[name] for name in chosen}
        with mapped(episode, {member for group in members.values() for member in group}, target) as stored:
            aligned = aligned_episode(number, stored, members, rate, options, pictures, tally, notes)
            if aligned is not None:
                yield aligned._replace(name=episode.name, task=episode.task or "")
    tally.tell(notes)


def aligned_episode(
    number: int,
    episode: CachedEpisode,
    members: Mapping[str, tuple[str, ...]],
    rate: float,
    options: Options,
    pictures: str,
    tally: Tally,
    notes: list[str],
) -> AlignedEpisode | None:
    """One episode on its timeline. None, and a note, if that is not possible."""
    stored = [member for group in members.values() for member in group]
    empty = [name for name in stored if name not in episode.streams or not episode.samples[name]]
    if empty:
        for name in empty:
            note(notes, f'stream "{name}" has no samples in episode {episode.name}')
        note(notes, f"episode {episode.name} is left out: a stream has no samples")
        return None
    raw = {name: stream_of(episode, name, pictures, notes) for name in stored}
    infos = {
        name: raw[name].info if group == (name,) else info_of(name, [raw[member].info for member in group])
        for name, group in members.items()
    }
    known = {name: stream.info for name, stream in raw.items()}
    asked = prepared("export", members, known, options._asdict())
    streams = {key: raw[member].replace(**changes) for key, (_, member, changes) in asked.items()}
    reaches = episode._cache._reaches(episode, asked)
    span = span_of(reaches)
    count = steps_of(span, rate)
    if span is None or not count:
        note(notes, f"episode {episode.name} is left out: its streams share no time: they do not overlap")
        return None
    try:
        size = result_bytes(count, (row_bytes(stream.info) for stream in streams.values()))
        refuse_too_large("export", episode.name, span, rate, count, size, reaches)
    except (ValueError, MemoryError) as error:
        note(notes, f"episode {episode.name} is left out: {str(error).removeprefix('export: ')}")
        return None
    timeline = Timeline(span.start, rate=rate, count=count)
    warn_of_cuts(episode.name, reaches, timeline, notes)
    static = {key for key, stream in streams.items() if is_static(stream.info)}
    ready = {key: hold_always(stream) if key in static else stream for key, stream in streams.items()}
    parts = align_some(ready, timeline, {}, None)
    times = np.asarray(timeline.times)
    for key, stream in streams.items():
        parts[key] = valid_always(parts[key]) if key in static else held_on(stream, parts[key], times)
    aligned: dict[str, Aligned[Any]] = {}
    for name, group in members.items():
        some = [parts[key_of(name, member, members)] for member in group]
        aligned[name] = some[0] if group == (name,) else put_together(some, infos[name].dtype)
    valid = {name: tally.watch(name, one, infos[name].channels) for name, one in aligned.items()}
    samples = {
        name: stream.values if stream.samples is None else stream.samples
        for name, stream in raw.items()
        if stream.samples is not None or is_image(stream.info.metadata)
    }
    return AlignedEpisode(number, episode.name, episode.task or "", times, aligned, valid, infos, samples)


def stream_of(episode: CachedEpisode, name: str, pictures: str, notes: list[str]) -> RecordedStream:
    """A stream to export; a note says which pictures are taken of a camera of which the cache has frames."""
    stream = episode.streams[name]
    if not isinstance(stream.samples, TierSamples):
        return stream
    size = " x ".join(map(str, stream.samples.rows.shape[1:3]))
    if pictures == "source" and stream.samples.source is not None:
        note(notes, f'stream "{name}": the recorded pictures are taken, not the frames of {size} that the cache has')
        return episode.streams.stored(name)
    more = "the cache does not keep the recorded ones" if stream.samples.source is None else OTHERWISE
    note(notes, f'stream "{name}": the frames of {size} that the cache has are exported; {more}')
    return stream


class Tally:
    """Counts the rows of each stream: all, the valid ones, and those of the valid ones that are not finite."""

    def __init__(self) -> None:
        self.all: dict[str, int] = {}
        self.real: dict[str, int] = {}
        self.rows: dict[str, int] = {}
        self.channels: dict[str, dict[str, None]] = {}

    def watch(self, name: str, aligned: Aligned[Any], channels: Sequence[str] | None) -> Array:
        """Which rows are valid and finite."""
        values, valid = np.asarray(aligned.values), np.asarray(aligned.valid)
        self.all[name] = self.all.get(name, 0) + len(valid)
        self.real[name] = self.real.get(name, 0) + int(valid.sum())
        if values.dtype.kind in "biu":
            return valid
        finite = np.isfinite(values.reshape(len(values), -1))
        rows = finite.all(axis=1)
        if not rows[valid].all():
            self.rows[name] = self.rows.get(name, 0) + int((valid & ~rows).sum())
            bad = np.flatnonzero(~finite[valid].all(axis=0))
            names = list(channels or ()) or [f"[{k}]" for k in range(finite.shape[1])]
            self.channels.setdefault(name, {}).update(dict.fromkeys(names[k] for k in bad.tolist()))
        return valid & rows

    def tell(self, notes: list[str]) -> None:
        for name, real in self.real.items():
            if real < KEPT * self.all[name]:
                share = 100 * real / self.all[name]
                note(
                    notes,
                    f'stream "{name}" is valid in {share:.0f} % of the rows: it has gaps, begins late or ends early',
                )
        for name, rows in self.rows.items():
            found = list(self.channels[name])
            where = ", ".join(found[:4]) + (f" and {len(found) - 4} more" if len(found) > 4 else "")
            note(notes, f'stream "{name}": {rows:,} row{"" if rows == 1 else "s"} not finite, so not valid ({where})')


def export(
    source: Cache | Recording | Sequence[Any] | str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    rate: float,
    streams: Sequence[str] | None = None,
    episodes: Sequence[int | str | slice] | int | str | slice | None = None,
    format: str = "lerobot",
    method: Method | Mapping[str, Method] | None = None,
    max_gap: Duration | Mapping[str, Duration] | None = None,
    edge: str | Mapping[str, str] | None = None,
    causal: bool | Mapping[str, bool] | None = None,
    on_nan: str | Mapping[str, str] | None = None,
    pictures: str = "frames",
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Aligns every episode at a rate and writes a data set: LeRobot, safetensors or MCAP. Behind `robocache export`.

    An episode that cannot be aligned, because its streams share no time, is left out with a note.

    Args:
        source: A cache, a recording, the path of one of them, or some of its episodes, such as `cache.episodes[4:]`.
        path: A new directory.
        rate: Hertz, of each episode's default timeline, as in `Cache.align`.
        streams: Only these streams. Default: those that are in every episode.
        episodes: Only these: numbers, names or slices. Default: all.
        format: "lerobot" (v3.0), "safetensors" or "mcap".
        method: As in `align`, for all streams or by name: `{"/gripper": "hold"}`. Default: as each stream has it.
        max_gap: As in `align`, for all streams or by name. Default: as each stream has it.
        edge: As in `align`, for all streams or by name. Default: "clamp".
        causal: As in `align`, for all streams or by name. Default: False.
        on_nan: As in `align`, for all streams or by name. Default: "propagate".
        pictures: Of cameras of which the cache has frames: "frames" takes these, "source" the recorded pictures. The
            notes say which were taken.
        progress: Called after each episode with the number of its frames.

    Returns:
        A dict: path, format, rate_hz, episodes, frames, and notes that a person should read.

    Raises:
        FileError: The directory is not empty, or cannot be written.
        ValueError: There is nothing to export.

    Examples:
        >>> rc.export(rc.Cache("cache"), "set", rate=50, streams=["observation.state", "action"])
        >>> rc.export("run.mcap", "set", rate=50, causal={"/camera": True}, edge="zero")
    """
    target = Path(path)
    if format not in FORMATS:
        raise ValueError(missing("export: there is no format", format, FORMATS))
    if pictures not in PICTURES:
        raise ValueError(missing("export: there are no pictures", pictures, PICTURES))
    rate = rate_of("export", rate, MOST_RATE)
    chosen = chosen_episodes(source, episodes)
    streams = names_of(streams)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileError(f"{target}: exists already; an export is written to a new directory")
    notes: list[str] = []
    options = Options(method, max_gap, edge, causal, on_nan)
    aligned = take(chosen, rate, streams, options, pictures, notes, target)
    write = {"lerobot": to_lerobot, "safetensors": to_safetensors, "mcap": to_mcap}[format]
    frames = 0
    count = 0
    try:
        for length in write(aligned, target, rate, notes):
            frames += length
            count += 1
            if progress is not None:
                progress(length)
    finally:
        aligned.close()
    if count == 0:
        raise ValueError(f"{target}: nothing to export: {'; '.join(notes) or 'there are no episodes'}")
    return {"path": str(target), "format": format, "rate_hz": rate, "episodes": count, "frames": frames, "notes": notes}


def chosen_episodes(source: Any, wanted: Any) -> Sequence[Any]:
    """The chosen episodes of a cache, a recording, a list, or the path of a cache or recording."""
    if isinstance(source, (str, os.PathLike)):
        source = Cache(source) if is_cache(Path(source)) else open_recording(source)
    if isinstance(source, Recording) and source.format == "cache":
        source = source._source.cache  # type: ignore[attr-defined]
    every: Sequence[Any] = source if isinstance(source, Sequence) else getattr(source, "episodes", [source])
    return every if wanted is None else [every[k] for k in numbers_of("export", every, wanted)]
