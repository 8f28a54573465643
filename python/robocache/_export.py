"""`robocache export`: the episodes of a cache, aligned at a rate, as a LeRobot data set, safetensors or MCAP.

Each episode is aligned on its default timeline (_default_timeline.py). A stream that is written on change is held to
the end, and a static one is always valid. Values are aligned as the streams say. Where a value is not real (outside a
stream's samples, or inside a gap over its max_gap) it is the nearest one, and a feature tells: `valid.<name>` in a
LeRobot data set, whose policies take every feature that begins with "observation" or "action" as their own;
`<name>.valid` in safetensors. MCAP has no message there. Rows that are not finite are as they were, and not valid; of
MCAP's JSON, null.

An episode of a recording is first read into a cache beside the target, in one pass, and exported from there: so that
memory holds one batch and what was aligned, however long the recording is.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robocache import _core, _mcap_images, _pictures
from robocache._align import Aligned, Duration, Method, Stream, Timeline
from robocache._cache import Cache, CachedEpisode, CacheWriter, align_some, row_bytes
from robocache._core import FileError
from robocache._default_timeline import (
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
from robocache._extent import extent
from robocache._joined import info_of, put_together, shown
from robocache._lerobot_write import BOOKKEEPING, BYTES_AT_ONCE, Feature, LeRobotWriter
from robocache._new_folder import make_parents, new_folder, told
from robocache._prepare import key_of, prepared
from robocache._recording import Array, Batch, Episode, Packed, Recording, StreamInfo, is_cache, is_static, missing
from robocache._recording import open as open_recording

KEPT = 0.9  # of an episode: less on the timeline is told
FORMATS = ("lerobot", "safetensors", "mcap")
VIDEO_PIECE = 16  # frames that are decoded at once


class Taken(NamedTuple):
    """An episode on its timeline."""

    number: int
    name: str
    task: str
    times: Array  # [T] nanoseconds
    aligned: Mapping[str, Aligned[Any]]
    valid: Mapping[str, Array]  # bool [T]: real, and finite
    infos: Mapping[str, StreamInfo]
    samples: Mapping[str, Any]  # of images, clouds and videos: what `index` counts


class Options(NamedTuple):
    """How streams are aligned: for all of them, or by name. None: as the stream says."""

    method: Method | Mapping[str, Method] | None = None
    max_gap: Duration | Mapping[str, Duration] | None = None
    edge: str | Mapping[str, str] | None = None
    causal: bool | Mapping[str, bool] | None = None
    on_nan: str | Mapping[str, str] | None = None


def held_on(stream: Stream[Any], aligned: Aligned[Any], times: Array) -> Aligned[Any]:
    """A stream written on change, or once, keeps its value behind its last sample, for as long as max_gap allows.

    Where `edge` has put NaN or 0 there, nothing becomes valid: no sample is behind the value."""
    held = len(stream.times) == 1 or is_held(stream.method, np.asarray(stream.values).dtype)
    if not held or runs(np.asarray(stream.times)):
        return aligned
    since = times - int(extent("", stream)[1])
    long = np.inf if stream.max_gap is None else _core.nanoseconds("max_gap", stream.max_gap)
    kept = (since > 0) & (since <= long) & (np.asarray(aligned.index) >= 0)
    return aligned._replace(valid=np.asarray(aligned.valid) | kept)


def warn_of_cuts(episode: str, reaches: Mapping[str, Reach], line: Timeline, notes: list[str]) -> None:
    """A sensor that died cuts the timeline of all."""
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
    """The streams of an episode as policies see them, and what each is stored as: itself, or the members of a join."""
    stored = list(episode.streams)
    joined = episode._cache._joined if isinstance(episode, CachedEpisode) else {}
    found = {name: joined.get(name, (name,)) for name in shown(stored, joined)}
    return {name: members for name, members in found.items() if all(member in episode.streams for member in members)}


def chosen_streams(
    episodes: Sequence[Any], names: Sequence[str] | None, notes: list[str]
) -> tuple[list[str], list[dict[str, tuple[str, ...]]]]:
    """The streams to export, and of each episode those that it has."""
    has = [members_of(episode) for episode in episodes]
    every = dict.fromkeys(name for found in has for name in found)
    if names is not None:
        for found, episode in zip(has, episodes, strict=True):  # members of a join are no less streams
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
    """An episode of a recording, as CacheWriter takes it."""

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
    notes: list[str],
    target: Path,
) -> Generator[Taken, None, None]:
    """The episodes on their timelines, one at a time. What an episode's samples are read from is gone once the next
    one is asked for."""
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
            taken = taken_of(number, stored, members, rate, options, tally, notes)
            if taken is not None:
                yield taken._replace(name=episode.name, task=episode.task or "")
    tally.tell(notes)


def taken_of(
    number: int,
    episode: CachedEpisode,
    members: Mapping[str, tuple[str, ...]],
    rate: float,
    options: Options,
    tally: Tally,
    notes: list[str],
) -> Taken | None:
    """One episode on its timeline; None, and a note, where that cannot be."""
    stored = [member for group in members.values() for member in group]
    empty = [name for name in stored if name not in episode.streams or not episode.samples[name]]
    if empty:
        for name in empty:
            note(notes, f'stream "{name}" has no samples in episode {episode.name}')
        note(notes, f"episode {episode.name} is left out: a stream has no samples")
        return None
    raw = {name: episode.streams[name] for name in stored}
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
        if stream.samples is not None or _pictures.is_image(stream.info.metadata)
    }
    return Taken(number, episode.name, episode.task or "", times, aligned, valid, infos, samples)


class Tally:
    """Rows of each stream: how many, how many are real, and of these how many are not finite."""

    def __init__(self) -> None:
        self.all: dict[str, int] = {}
        self.real: dict[str, int] = {}
        self.rows: dict[str, int] = {}
        self.channels: dict[str, dict[str, None]] = {}

    def watch(self, name: str, aligned: Aligned[Any], channels: Sequence[str] | None) -> Array:
        """Which rows are real, and finite."""
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


def note(notes: list[str], sentence: str) -> None:
    if sentence not in notes:
        notes.append(sentence)


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
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Aligns every episode at a rate, and writes a LeRobot data set, safetensors or MCAP: `robocache export`.

        rc.export(rc.Cache("cache"), "set", rate=50, streams=["observation.state", "action"])
        rc.export("run.mcap", "set", rate=50, causal={"/camera": True}, edge="zero")

    source    a cache, a recording, the path of one of them, or some of its episodes: cache.episodes[4:].
    path      a new directory.
    rate      hertz, of the timeline: each episode's default timeline, as in Cache.align.
    streams   only these; default: those that are in every episode.
    episodes  only these: numbers, names, slices; default: all.
    format    "lerobot" (v3.0), "safetensors" or "mcap".
    method, max_gap, edge, causal, on_nan   as in rc.align, for all streams or by name: {"/gripper": "hold"}. Default:
              method and max_gap as each stream has them, "clamp", False, "propagate".
    progress  called after each episode with the number of its frames.

    Returns what was written: path, format, rate_hz, episodes, frames; and notes: what a person should know. An episode
    that cannot be aligned, because its streams share no time, is left out and noted. Raises FileError where the
    directory is there already or cannot be written, ValueError where there is nothing to write.
    """
    target = Path(path)
    if format not in FORMATS:
        raise ValueError(missing("export: there is no format", format, FORMATS))
    if not 0 < rate < 1e6:
        raise ValueError(f"export: rate is {rate}; expected a positive number of hertz")
    chosen = chosen_episodes(source, episodes)
    streams = [streams] if isinstance(streams, str) else streams
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileError(f"{target}: is there already; an export is written to a new directory")
    notes: list[str] = []
    options = Options(method, max_gap, edge, causal, on_nan)
    taken = take(chosen, rate, streams, options, notes, target)
    write = {"lerobot": to_lerobot, "safetensors": to_safetensors, "mcap": to_mcap}[format]
    frames = 0
    count = 0
    try:
        for length in write(taken, target, rate, notes):
            frames += length
            count += 1
            if progress is not None:
                progress(length)
    finally:
        taken.close()
    if count == 0:
        raise ValueError(f"{target}: nothing to export: {'; '.join(notes) or 'there are no episodes'}")
    return {"path": str(target), "format": format, "rate_hz": rate, "episodes": count, "frames": frames, "notes": notes}


def chosen_episodes(source: Any, wanted: Any) -> Sequence[Any]:
    """The episodes of a cache, a recording, a path of one of them, or of a list; of these the ones that are wanted."""
    if isinstance(source, (str, os.PathLike)):
        source = Cache(source) if is_cache(Path(source)) else open_recording(source)
    if isinstance(source, Recording) and source.format == "cache":
        source = source._source.cache  # type: ignore[attr-defined]
    every: Sequence[Any] = source if isinstance(source, Sequence) else getattr(source, "episodes", [source])
    if wanted is None:
        return every
    if isinstance(wanted, (int, str, slice, np.integer)):
        wanted = [wanted]
    found: list[Any] = []
    for one in wanted:
        if isinstance(one, slice):
            found += every[one]
        elif isinstance(one, str):
            named = [k for k, episode in enumerate(every) if episode.name == one]
            if not named:
                raise ValueError(missing("export: there is no episode", one, [episode.name for episode in every]))
            if len(named) > 1:
                numbers = ", ".join(map(str, named[:8]))
                raise ValueError(f'export: {len(named)} episodes are named "{one}"; take them by number: {numbers}')
            found.append(every[named[0]])
        elif -len(every) <= int(one) < len(every):
            found.append(every[int(one)])
        else:
            raise ValueError(f"export: there is no episode {one}; there are {len(every)}, from 0 on")
    return found


# ---- What a stream is in an export


def is_video(info: StreamInfo) -> bool:
    return info.metadata.get("kind") == "video"


def numbers(taken: Taken, name: str) -> Array:
    return np.asarray(taken.aligned[name].values)


def seen(taken: Taken, name: str) -> Array:
    """Which sample is behind each target; -1: none is."""
    return np.asarray(taken.aligned[name].index)


class Unreadable(Exception):
    """An episode's images cannot be exported: its video is gone, or an image is damaged or of another size."""


def frames_of(taken: Taken, name: str) -> Iterator[Array]:
    """The image at each target; black where no sample is behind it. What is held is unpacked once."""
    try:
        yield from decoded(taken, name)
    except FileError as error:
        raise Unreadable(str(error)) from None


def decoded(taken: Taken, name: str) -> Iterator[Array]:
    info, samples, wanted = taken.infos[name], taken.samples[name], seen(taken, name)
    blank = np.zeros(0)
    images: dict[int, Array] = {}
    for first in range(0, len(wanted), VIDEO_PIECE):  # in pieces, so that a video is read forward
        some = wanted[first : first + VIDEO_PIECE].tolist()
        if is_video(info):
            needed = {max(k, 0) for k in some}
            images = {k: image for k, image in images.items() if k in needed}
            new = sorted(needed - set(images))
            images |= dict(zip(new, samples._take(new), strict=True))
        for k in some:
            if max(k, 0) not in images:
                stored = samples.as_stored(max(k, 0)) if isinstance(samples, Packed) else samples[max(k, 0)]
                images = {max(k, 0): _pictures.picture(name, stored, info.metadata)}
            if k < 0 and not len(blank):
                blank = np.zeros_like(images[0])
            yield images[k] if k >= 0 else blank


class Named(NamedTuple):
    """How a format names what it writes of a stream."""

    base: Callable[[str], str]
    derived: Callable[[str], Sequence[str]]  # what is written beside the stream
    reserved: Collection[str]  # the format's own


def names_in(form: Named, streams: Collection[str], notes: list[str]) -> dict[str, str]:
    """A unique output name for each stream. A renamed stream gets a note.

    A stream is also renamed if its name is that of another stream's extra output ("a.valid").
    """
    every = {name: form.base(name) or "stream" for name in streams}
    beside = {other for base in every.values() for other in form.derived(base)}
    used = set(form.reserved)
    given: dict[str, str] = {}
    for name in sorted(streams, key=lambda name: every[name] in beside):
        key, count = every[name], 1
        while key in used or used & set(form.derived(key)):
            count += 1
            key = f"{every[name]}_{count}"
        used |= {key, *form.derived(key)}
        given[name] = key
        if count > 1:
            note(notes, f'stream "{name}" is written as "{key}": the name "{every[name]}" is taken')
    return {name: given[name] for name in streams}


# ---- LeRobot


def lerobot_name(name: str) -> str:
    """LeRobot's features have no slashes, and name folders: "." and ".." would be others."""
    key = name.strip("/").replace("/", ".")
    return key if key.strip(".") else ""


LEROBOT = Named(lerobot_name, lambda key: [f"valid.{key}"], BOOKKEEPING)


class Layout(NamedTuple):
    """What the first episode says of a LeRobot data set."""

    features: dict[str, Feature]
    plain: list[tuple[str, str]]  # stream and key
    pictures: list[tuple[str, str]]
    sizes: dict[str, tuple[int, ...]]


def layout_of(first: Taken, notes: list[str]) -> Layout:
    made = Layout({}, [], [], {})
    keys = names_in(LEROBOT, first.infos, notes)
    for name, info in first.infos.items():
        key = keys[name]
        image = _pictures.is_image(info.metadata) or is_video(info)
        if image and (is_video(info) or _pictures.is_colour(info.metadata)):
            made.sizes[name] = next(frames_of(first, name)).shape
            made.features[key] = Feature("video", even(made.sizes[name]))
            made.pictures.append((name, key))
        elif info.ragged:
            note(
                notes,
                f'stream "{name}" is left out: LeRobot has no feature for samples of varying length; '
                "--format safetensors keeps them",
            )
            continue
        else:
            values = numbers(first, name)
            kind = "float32" if values.dtype == np.float64 else str(values.dtype)  # as models have it
            made.features[key] = Feature(kind, values.shape[1:] or (1,), tuple(info.channels))
            made.plain.append((name, key))
        made.features[f"valid.{key}"] = Feature("bool", (1,))
    return made


def to_lerobot(episodes: Iterator[Taken], target: Path, rate: float, notes: list[str]) -> Iterator[int]:
    layout: Layout | None = None
    writer: LeRobotWriter | None = None
    whole = True
    with ExitStack() as stack:
        for taken in episodes:
            try:
                layout = layout_of(taken, notes) if layout is None else layout
                if not layout.features:
                    raise ValueError(f"{target}: nothing to export: no stream has numbers or colour images")
                if writer is None:
                    writer = stack.enter_context(LeRobotWriter(target, fps=rate, features=layout.features))
                columns = {key: numbers(taken, name) for name, key in layout.plain}
                for name, key in (*layout.plain, *layout.pictures):
                    columns[f"valid.{key}"] = taken.valid[name][:, None]
                videos = {key: cropped(taken, name, layout.sizes[name]) for name, key in layout.pictures}
                writer.add(columns, taken.task or "no task", videos)
            except Unreadable as error:
                note(notes, f"episode {taken.name} is left out: {error}")
                if writer is not None and not writer.episodes:  # the next episode says what sizes the images have
                    stack.pop_all()
                    writer.folder.discard()
                    writer = layout = None
                continue
            whole &= all(taken.valid[name].all() for name, _ in (*layout.plain, *layout.pictures))
            yield len(taken.times)
    if not whole:
        note(notes, "some values are not real, and repeat the nearest sample: mask them by valid.<feature>")


def even(size: tuple[int, ...]) -> tuple[int, int, int]:
    """yuv420p halves both."""
    return size[0] - size[0] % 2, size[1] - size[1] % 2, 3


def cropped(taken: Taken, name: str, size: tuple[int, ...]) -> Iterator[Array]:
    height, width, _ = even(size)
    for frame in frames_of(taken, name):
        if frame.shape != size:
            found, first = (" x ".join(map(str, shape)) for shape in (frame.shape, size))
            raise Unreadable(
                f'an image of stream "{name}" is {found}, the first was {first}; a LeRobot video has one size: '
                "--streams leaves a stream out, --format safetensors keeps every size"
            )
        yield frame[:height, :width]


# ---- safetensors

NAMES = {"float16": "F16", "float32": "F32", "float64": "F64", "bool": "BOOL", "bfloat16": "BF16"}
NAMES |= {f"int{n}": f"I{n}" for n in (8, 16, 32, 64)} | {f"uint{n}": f"U{n}" for n in (8, 16, 32, 64)}


SAFETENSORS = Named(
    lambda name: name, lambda key: [f"{key}.valid", f"{key}.age", f"{key}.offsets"], ("times", "__metadata__")
)


class Packing:
    """Samples of varying length, end to end, read as they are written."""

    def __init__(self, samples: Any, wanted: Array) -> None:
        self.samples, self.wanted = samples, wanted
        lengths = np.where(wanted >= 0, (samples.ends - samples.begins)[np.maximum(wanted, 0)], 0)
        self.offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
        self.dtype, self.shape = samples.rows.dtype, (int(self.offsets[-1]), *samples.rows.shape[1:])
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize

    def pieces(self) -> Iterator[Array]:
        for k in self.wanted.tolist():
            if k >= 0:
                yield self.samples.as_stored(k)


def to_safetensors(episodes: Iterator[Taken], target: Path, rate: float, notes: list[str]) -> Iterator[int]:
    """A file for each episode: times, and of each stream its values, .valid and .age; packed samples with .offsets."""
    with new_folder(target) as folder:
        for taken in episodes:
            tensors: dict[str, Array | Packing] = {"times": taken.times}
            about: dict[str, Any] = {}
            for name, key in names_in(SAFETENSORS, taken.infos, notes).items():
                info = taken.infos[name]
                if info.ragged:
                    packing = Packing(taken.samples[name], seen(taken, name))
                    tensors[key], tensors[f"{key}.offsets"] = packing, packing.offsets
                elif is_video(info):
                    wanted = seen(taken, name)
                    references = taken.samples[name].references
                    tensors[key] = np.where(wanted[:, None] >= 0, references[np.maximum(wanted, 0)], -1)
                    note(notes, f'stream "{name}" is exported as frame numbers: its pictures stay in the video')
                else:
                    tensors[key] = numbers(taken, name)
                tensors[f"{key}.valid"] = taken.valid[name]
                tensors[f"{key}.age"] = np.asarray(taken.aligned[name].age)
                about[key] = {"channels": info.channels, "type": info.type, **info.metadata}
                about[key] |= {"stream": name} if key != name else {}
            metadata = {"episode": taken.name, "task": taken.task, "rate_hz": f"{rate:g}", "streams": json.dumps(about)}
            save(folder / f"episode-{taken.number:06d}.safetensors", tensors, metadata)
            yield len(taken.times)


def save(path: Path, tensors: Mapping[str, Array | Packing], metadata: Mapping[str, str]) -> None:
    """A safetensors file, as its specification says: the size of the header, the header, the data, wide types first."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    order = sorted(tensors, key=lambda name: -tensors[name].dtype.itemsize)
    offset = 0
    for name in order:
        array = tensors[name]
        header[name] = {
            "dtype": NAMES[str(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with told(path), path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for name in order:
            array = tensors[name]
            for piece in array.pieces() if isinstance(array, Packing) else [array]:
                data = np.ascontiguousarray(piece).reshape(-1).view(np.uint8)
                for first in range(0, len(data), BYTES_AT_ONCE):
                    file.write(data[first : first + BYTES_AT_ONCE])


# ---- MCAP


MCAP = Named(lambda name: name if name.startswith("/") else f"/{name}", lambda key: [], ())


def to_mcap(episodes: Iterator[Taken], target: Path, rate: float, notes: list[str]) -> Iterator[int]:
    """A file for each episode, with a topic for each stream: JSON messages, an object of channel names and numbers; of
    images and videos sensor_msgs/msg/Image or CompressedImage."""
    from robocache import mcap

    with new_folder(target) as folder:
        for taken in episodes:
            path = folder / f"episode-{taken.number:06d}.mcap"
            try:
                # To a file object, since a Writer syncs a path: new_folder syncs all of it once.
                with told(path), path.open("wb") as file, mcap.Writer(file) as writer:
                    write_messages(writer, taken, notes)
            except Unreadable as error:
                path.unlink()
                note(notes, f"episode {taken.name} is left out: {error}")
                continue
            yield len(taken.times)


def write_messages(writer: Any, taken: Taken, notes: list[str]) -> None:
    if taken.task:
        writer.add_metadata("robocache", {"episode": taken.name, "task": taken.task})
    columns = []
    for name, topic in names_in(MCAP, taken.infos, notes).items():
        messages = messages_of(taken, name, notes)
        if messages is None:
            continue
        schema, encoding, text, found = messages
        number = writer.add_schema(schema, encoding, text)
        channel = writer.add_channel(topic, "json" if encoding == "jsonschema" else "cdr", number)
        columns.append((channel, np.asarray(taken.aligned[name].valid), found))
    for k, at in enumerate(taken.times.tolist()):
        for channel, valid, found in columns:
            message = next(found)
            if valid[k]:
                writer.write(channel, message(), log_time=at)


Messages = tuple[str, str, str, Iterator[Callable[[], bytes]]]  # schema, its encoding, its text; a message a target


def messages_of(taken: Taken, name: str, notes: list[str]) -> Messages | None:
    info = taken.infos[name]
    if is_video(info) or _pictures.is_image(info.metadata):
        packed = isinstance(taken.samples[name], Packed)
        kind = _mcap_images.kind_of(info.metadata) if packed else _mcap_images.IMAGE
        if kind is None:
            note(
                notes,
                f'stream "{name}" is left out: the size of its images varies or is not known; '
                "--format safetensors keeps them",
            )
            return None
        return kind, "ros2msg", _mcap_images.SCHEMAS[kind], image_messages(taken, name)
    if info.ragged:
        note(
            notes,
            f'stream "{name}" is left out: samples of varying length are not written as JSON; '
            "--format safetensors keeps them",
        )
        return None
    values = numbers(taken, name).reshape(len(taken.times), -1)
    keys = tuple(info.channels) or tuple(f"value[{k}]" for k in range(values.shape[1]))
    kinds = {key: {"type": "integer" if values.dtype.kind in "iu" else "number"} for key in keys}
    schema = json.dumps({"type": "object", "properties": kinds})
    return f"robocache.{name.strip('/')}", "jsonschema", schema, json_messages(keys, values)


def json_messages(keys: Sequence[str], values: Array) -> Iterator[Callable[[], bytes]]:
    for row in values:
        yield lambda row=row: json_message(keys, row.tolist())  # type: ignore[misc]


def json_message(keys: Sequence[str], numbers: Sequence[float]) -> bytes:
    finite = (number if math.isfinite(number) else None for number in numbers)  # JSON knows no others
    return json.dumps(dict(zip(keys, finite, strict=True)), allow_nan=False).encode()


def image_messages(taken: Taken, name: str) -> Iterator[Callable[[], bytes]]:
    """Bytes as they were recorded, where there are such; else decoded frames."""
    metadata, samples, wanted = taken.infos[name].metadata, taken.samples[name], seen(taken, name)
    if isinstance(samples, Packed):
        for k, at in zip(wanted.tolist(), taken.times.tolist(), strict=True):
            yield lambda k=k, at=at: _mcap_images.stored(at, samples.as_stored(k), metadata)  # type: ignore[misc]
        return
    for frame, at in zip(frames_of(taken, name), taken.times.tolist(), strict=True):
        yield lambda frame=frame, at=at: _mcap_images.frame(at, frame)  # type: ignore[misc]
