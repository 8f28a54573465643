"""`robocache export`: the episodes of a cache, aligned at a rate, as a LeRobot data set, safetensors or MCAP.

Each episode is aligned on its default timeline (_default_timeline.py). A stream that is written on change is held to
the end, and a static one is always valid. Values are aligned as the streams say. Where a value is not real (outside a
stream's samples, or inside a gap over its max_gap) it is the nearest one, and a feature tells: `valid.<name>` in a
LeRobot data set, whose policies take every feature that begins with "observation" or "action" as their own;
`<name>.valid` in safetensors. MCAP has no message there. Rows that are not finite are as they were, and not valid; of
MCAP's JSON, null.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robocache import _core, _pictures
from robocache._align import Aligned, Duration, Stream, Timeline, align
from robocache._cache import Cache, row_bytes
from robocache._core import FileError
from robocache._default_timeline import (
    Reach,
    bounding,
    hold_always,
    is_held,
    reach_of,
    refuse_too_large,
    result_bytes,
    runs,
    span_of,
    steps_of,
    valid_always,
)
from robocache._extent import extent
from robocache._lerobot_write import Feature, LeRobotWriter
from robocache._recording import Array, Recording, is_cache, is_static, missing
from robocache._recording import open as open_recording

KEPT = 0.9  # of an episode: less on the timeline is told
FORMATS = ("lerobot", "safetensors", "mcap")


class Taken(NamedTuple):
    """An episode on its timeline."""

    number: int
    name: str
    task: str
    times: Array  # [T] nanoseconds
    aligned: Mapping[str, Aligned[Any]]
    valid: Mapping[str, Array]  # bool [T]: real, and finite
    streams: Mapping[str, Any]


def held_on(stream: Stream[Any], aligned: Aligned[Any], times: Array) -> Aligned[Any]:
    """What is written on change, or once, is still so behind its last sample, for as long as max_gap allows."""
    if runs(np.asarray(stream.times)) or not (is_held(stream) or len(stream.times) == 1):
        return aligned
    since = times - int(extent("", stream)[1])
    long = np.inf if stream.max_gap is None else _core.nanoseconds("max_gap", stream.max_gap)
    return aligned._replace(valid=np.asarray(aligned.valid) | ((since > 0) & (since <= long)))


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


def take(
    episodes: Sequence[Any], rate: float, names: Sequence[str] | None, max_gap: Duration | None, notes: list[str]
) -> Iterator[Taken]:
    common: list[str] = []
    tally = Tally()
    if names is None and len(episodes):
        filled = [episode for episode in episodes if len(episode.streams)]
        every = dict.fromkeys(name for episode in filled for name in episode.streams)
        common = [name for name in every if all(name in episode.streams for episode in filled)]
        if not common:
            raise ValueError(f"no stream is in every episode; name some with --streams: {', '.join(every)}")
        for name in every:
            if name not in common:
                note(notes, f'stream "{name}" is left out: not every episode has it')
    if names is not None:
        every = dict.fromkeys(name for episode in episodes for name in episode.streams)
        for name in names:
            if name not in every:
                raise ValueError(missing("there is no stream", name, every))
    for number, episode in enumerate(episodes):
        chosen = common if names is None else list(names)
        lacking = [name for name in chosen if name not in episode.streams]
        if lacking:
            note(notes, f'episode {episode.name} is left out: it has no stream "{lacking[0]}"')
            continue
        streams = {name: episode.streams[name] for name in chosen}
        for name in [name for name, stream in streams.items() if not len(stream.times)]:
            note(notes, f'stream "{name}" has no samples in episode {episode.name}')
        if not streams or not all(len(stream.times) for stream in streams.values()):
            note(notes, f"episode {episode.name} is left out: a stream has no samples")
            continue
        found = {name: reach_of(stream, name) for name, stream in streams.items()}
        reaches = {name: reach for name, reach in found.items() if reach is not None}
        span = span_of(reaches)
        count = steps_of(span, rate)
        if span is None or not count:
            note(notes, f"episode {episode.name} is left out: its streams share no time")
            continue
        sizes = (row_bytes(stream.info) for stream in streams.values())
        refuse_too_large("export", episode.name, span, rate, count, result_bytes(count, sizes), reaches)
        timeline = Timeline(span.start, rate=rate, count=count)
        warn_of_cuts(episode.name, reaches, timeline, notes)
        aligned: dict[str, Aligned[Any]] = {}
        items = [(n, s if max_gap is None else s.replace(max_gap=max_gap)) for n, s in streams.items()]
        asked = [(n, hold_always(s) if is_static(streams[n].info) else s) for n, s in items]
        for first in range(0, len(asked), 64):  # what one call takes
            aligned |= align(dict(asked[first : first + 64]), timeline)
        times = np.asarray(timeline.times)
        aligned = {
            name: valid_always(aligned[name])
            if is_static(streams[name].info)
            else held_on(stream, aligned[name], times)
            for name, stream in items
        }
        valid = {name: tally.watch(name, one, streams[name].channels) for name, one in aligned.items()}
        yield Taken(number, episode.name, episode.task or "", times, aligned, valid, streams)
    tally.tell(notes)


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
            names = channels or [f"[{k}]" for k in range(finite.shape[1])]
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
    format: str = "lerobot",
    max_gap: Duration | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Aligns every episode at a rate, and writes a LeRobot data set, safetensors or MCAP: `robocache export`.

        rc.export(rc.Cache("cache"), "set", rate=50, streams=["observation.state", "action"])

    source    a cache, a recording, the path of one of them, or some of its episodes: cache.episodes[4:].
    path      a new directory.
    rate      hertz, of the timeline: each episode's default timeline, as in Cache.align.
    streams   only these; default: those that are in every episode.
    format    "lerobot" (v3.0), "safetensors" or "mcap".
    max_gap   inside a longer gap no value is valid: for all streams, instead of what each of them says.
    progress  called after each episode with the number of its frames.

    Returns what was written: path, format, rate_hz, episodes, frames; and notes: what a person should know. Raises
    FileError where the directory is there already or cannot be written, ValueError where there is nothing to write.
    """
    if isinstance(source, (str, os.PathLike)):
        source = Cache(source) if is_cache(Path(source)) else open_recording(source)
    episodes = source if isinstance(source, Sequence) else getattr(source, "episodes", [source])
    streams = [streams] if isinstance(streams, str) else streams
    target = Path(path)
    if format not in FORMATS:
        raise ValueError(missing("export: there is no format", format, FORMATS))
    if not 0 < rate < 1e6:
        raise ValueError(f"export: rate is {rate}; expected a positive number of hertz")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileError(f"{target}: is there already; an export is written to a new directory")
    notes: list[str] = []
    taken = take(episodes, rate, streams, max_gap, notes)
    write = {"lerobot": to_lerobot, "safetensors": to_safetensors, "mcap": to_mcap}[format]
    frames = 0
    count = 0
    for length in write(taken, target, rate, notes):
        frames += length
        count += 1
        if progress is not None:
            progress(length)
    if count == 0:
        raise ValueError(f"{target}: nothing to export: {'; '.join(notes) or 'there are no episodes'}")
    return {"path": str(target), "format": format, "rate_hz": rate, "episodes": count, "frames": frames, "notes": notes}


# ---- What a stream is in an export


def is_packed(stream: Any) -> bool:
    """Its samples are no rows of an array."""
    return bool(stream.info.ragged)


def is_video(stream: Any) -> bool:
    return stream.info.metadata.get("kind") == "video"


def numbers(taken: Taken, name: str) -> Array:
    return np.asarray(taken.aligned[name].values)


def seen(taken: Taken, name: str) -> Array:
    """Which sample is behind each target."""
    return np.maximum(np.asarray(taken.aligned[name].index), 0)


def frames_of(taken: Taken, name: str) -> Iterator[Array]:
    """The image at each target; what is held is unpacked once."""
    stream, last = taken.streams[name], (-1, np.zeros(0))
    if is_video(stream):
        wanted, frames = seen(taken, name), stream.samples
        for first in range(0, len(wanted), 64):  # in pieces, so that a video is read forward
            some = wanted[first : first + 64]
            images = dict(zip(range(some.min(), some.max() + 1), frames[some.min() : some.max() + 1], strict=True))
            yield from (images[k] for k in some)
        return
    metadata = stream.info.metadata
    for k in seen(taken, name):
        if k != last[0]:
            sample = stream.samples[k] if stream.samples is not None else np.asarray(stream.values)[k]
            last = int(k), _pictures.picture(name, sample, metadata)
        yield last[1]


def flat_names(stream: Any) -> tuple[str, ...]:
    return tuple(stream.channels or ())


# ---- LeRobot


def to_lerobot(episodes: Iterator[Taken], target: Path, rate: float, notes: list[str]) -> Iterator[int]:
    first = next(episodes, None)
    if first is None:
        return
    features: dict[str, Feature] = {}
    pictures, plain = [], []
    sizes: dict[str, tuple[int, ...]] = {}
    for name, stream in first.streams.items():
        key = name.strip("/").replace("/", ".")  # LeRobot's features have no slashes
        image = _pictures.is_image(stream.info.metadata) or is_video(stream)
        if image and (is_video(stream) or _pictures.is_colour(stream.info.metadata)):
            sizes[name] = next(frames_of(first, name)).shape
            features[key] = Feature("video", even(sizes[name]))
            features[f"valid.{key}"] = Feature("bool", (1,))
            pictures.append((name, key))
        elif is_packed(stream):
            note(notes, f'stream "{name}" is left out: LeRobot has no feature for samples of varying length')
        else:
            values = numbers(first, name)
            kind = "float32" if values.dtype == np.float64 else str(values.dtype)  # as models have it
            features[key] = Feature(kind, values.shape[1:] or (1,), flat_names(stream))
            plain.append((name, key))
            features[f"valid.{key}"] = Feature("bool", (1,))
    if not plain:
        raise ValueError(f"{target}: nothing to export: a LeRobot data set needs a stream of numbers")
    whole = True
    with LeRobotWriter(target, fps=rate, features=features) as writer:
        for taken in chain(first, episodes):
            columns = {key: numbers(taken, name) for name, key in plain}
            for name, key in (*plain, *pictures):
                columns[f"valid.{key}"] = taken.valid[name][:, None]
                whole &= bool(columns[f"valid.{key}"].all())
            videos = {key: cropped(taken, name, sizes[name]) for name, key in pictures}
            writer.add(columns, taken.task or "no task", videos)
            yield len(taken.times)
    if not whole:
        note(notes, "some values are not real, and repeat the nearest sample: mask them by valid.<feature>")


def chain(first: Taken, others: Iterator[Taken]) -> Iterator[Taken]:
    yield first
    yield from others


def even(size: tuple[int, ...]) -> tuple[int, int, int]:
    """yuv420p halves both."""
    return size[0] - size[0] % 2, size[1] - size[1] % 2, 3


def cropped(taken: Taken, name: str, size: tuple[int, ...]) -> Iterator[Array]:
    height, width, _ = even(size)
    for frame in frames_of(taken, name):
        if frame.shape != size:
            found, first = (" x ".join(map(str, shape)) for shape in (frame.shape, size))
            raise ValueError(
                f'stream "{name}": an image of episode {taken.name} is {found}, the first was {first}; a LeRobot video '
                "has one size: name the streams to keep with --streams, or keep every size with --format safetensors"
            )
        yield frame[:height, :width]


# ---- safetensors

NAMES = {"float16": "F16", "float32": "F32", "float64": "F64", "bool": "BOOL", "bfloat16": "BF16"}
NAMES |= {f"int{n}": f"I{n}" for n in (8, 16, 32, 64)} | {f"uint{n}": f"U{n}" for n in (8, 16, 32, 64)}


def to_safetensors(episodes: Iterator[Taken], target: Path, rate: float, notes: list[str]) -> Iterator[int]:
    """A file for each episode: times, and of each stream its values, .valid and .age; packed samples with .offsets."""
    folder = target.with_name(f".{target.name}.part-{os.getpid()}")
    folder.mkdir(parents=True)
    try:
        for taken in episodes:
            tensors: dict[str, Array] = {"times": taken.times}
            about: dict[str, Any] = {}
            for name, stream in taken.streams.items():
                if is_packed(stream):
                    pieces = [stream.samples.as_stored(k) for k in seen(taken, name)]
                    tensors[name] = np.concatenate(pieces) if pieces else np.zeros(0, np.uint8)
                    tensors[f"{name}.offsets"] = np.cumsum([0, *map(len, pieces)], dtype=np.int64)
                else:
                    tensors[name] = numbers(taken, name)
                if is_video(stream):
                    tensors[name] = stream.samples.references[seen(taken, name)]
                    note(notes, f'stream "{name}" is exported as frame numbers: its pictures stay in the video')
                tensors[f"{name}.valid"] = taken.valid[name]
                tensors[f"{name}.age"] = np.asarray(taken.aligned[name].age)
                about[name] = {"channels": stream.info.channels, "type": stream.info.type, **stream.info.metadata}
            metadata = {"episode": taken.name, "task": taken.task, "rate_hz": f"{rate:g}", "streams": json.dumps(about)}
            save(folder / f"episode-{taken.number:06d}.safetensors", tensors, metadata)
            yield len(taken.times)
        if target.exists():
            target.rmdir()
        folder.rename(target)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def save(path: Path, tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
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
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for name in order:
            file.write(np.ascontiguousarray(tensors[name]).tobytes())


# ---- MCAP


def to_mcap(episodes: Iterator[Taken], target: Path, rate: float, notes: list[str]) -> Iterator[int]:
    """A file for each episode: JSON messages, an object of channel names and numbers, on a topic for each stream."""
    from robocache import mcap

    folder = target.with_name(f".{target.name}.part-{os.getpid()}")
    folder.mkdir(parents=True)
    try:
        for taken in episodes:
            with mcap.Writer(folder / f"episode-{taken.number:06d}.mcap") as writer:
                if taken.task:
                    writer.add_metadata("robocache", {"episode": taken.name, "task": taken.task})
                columns = []
                for name, stream in taken.streams.items():
                    if is_packed(stream) or is_video(stream):
                        note(notes, f'stream "{name}" is left out: images and clouds are not written as JSON')
                        continue
                    values = numbers(taken, name).reshape(len(taken.times), -1)
                    keys = flat_names(stream) or tuple(f"value[{k}]" for k in range(values.shape[1]))
                    kinds = {key: {"type": "integer" if values.dtype.kind in "iu" else "number"} for key in keys}
                    schema = json.dumps({"type": "object", "properties": kinds})
                    number = writer.add_schema(f"robocache.{name.strip('/')}", "jsonschema", schema)
                    topic = name if name.startswith("/") else f"/{name}"
                    channel = writer.add_channel(topic, "json", number)
                    columns.append((channel, keys, values.tolist(), np.asarray(taken.aligned[name].valid)))
                for k, at in enumerate(taken.times.tolist()):
                    for channel, keys, rows, valid in columns:
                        if not valid[k]:
                            continue
                        row = {
                            key: (value if value == value else None) for key, value in zip(keys, rows[k], strict=True)
                        }
                        writer.write(channel, json.dumps(row, allow_nan=True).encode(), log_time=at)
            yield len(taken.times)
        if target.exists():
            target.rmdir()
        folder.rename(target)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
