"""Aligned episodes as MCAP files."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robocache._export import mcap_images
from robocache._export.aligned_episode import (
    AlignedEpisode,
    OutputNames,
    frames_of,
    is_video,
    is_written,
    names_in,
    note,
    numbers,
    seen,
)
from robocache._export.new_folder import new_folder, told
from robocache._recordings.images import is_image
from robocache._recordings.source import Array
from robocache._recordings.streams import Packed

MCAP = OutputNames(lambda name: name if name.startswith("/") else f"/{name}", lambda key: [], ())


def to_mcap(episodes: Iterator[AlignedEpisode], target: Path, rate: float, notes: list[str]) -> Iterator[int]:
    """Writes a file for each episode, with a topic for each stream.

    Messages are JSON objects of channel names and numbers; for images and videos sensor_msgs/msg/Image or
    CompressedImage.
    """
    with new_folder(target) as folder:
        for episode in episodes:
            path = folder / f"episode-{episode.number:06d}.mcap"
            if is_written(path, episode, notes, functools.partial(write_file, path, episode, notes)):
                yield len(episode.times)


def write_file(path: Path, episode: AlignedEpisode, notes: list[str]) -> None:
    from robocache import mcap

    # A file object, because a Writer syncs a path; new_folder syncs everything once.
    with told(path), path.open("wb") as file, mcap.Writer(file) as writer:
        write_messages(writer, episode, notes)


def write_messages(writer: Any, episode: AlignedEpisode, notes: list[str]) -> None:
    if episode.task:
        writer.add_metadata("robocache", {"episode": episode.name, "task": episode.task})
    columns = []
    for name, topic in names_in(MCAP, episode.infos, notes).items():
        messages = messages_of(episode, name, notes)
        if messages is None:
            continue
        schema, encoding, text, found = messages
        number = writer.add_schema(schema, encoding, text)
        channel = writer.add_channel(topic, "json" if encoding == "jsonschema" else "cdr", number)
        columns.append((channel, np.asarray(episode.aligned[name].valid), found))
    for k, at in enumerate(episode.times.tolist()):
        for channel, valid, found in columns:
            message = next(found)
            if valid[k]:
                writer.write(channel, message(), log_time=at)


Messages = tuple[
    str, str, str, Iterator[Callable[[], bytes]]
]  # schema, its encoding, its text; a message for each target


def messages_of(episode: AlignedEpisode, name: str, notes: list[str]) -> Messages | None:
    info = episode.infos[name]
    if is_video(info) or is_image(info.metadata):
        packed = isinstance(episode.samples[name], Packed)
        kind = mcap_images.kind_of(info.metadata) if packed else mcap_images.IMAGE
        if kind is None:
            note(
                notes,
                f'stream "{name}" is left out: the size of its images varies or is not known; '
                "--format safetensors keeps them",
            )
            return None
        return kind, "ros2msg", mcap_images.SCHEMAS[kind], image_messages(episode, name)
    if info.ragged:
        note(
            notes,
            f'stream "{name}" is left out: samples of varying length are not written as JSON; '
            "--format safetensors keeps them",
        )
        return None
    values = numbers(episode, name).reshape(len(episode.times), -1)
    keys = tuple(info.channels) or tuple(f"value[{k}]" for k in range(values.shape[1]))
    kinds = {key: {"type": "integer" if values.dtype.kind in "iu" else "number"} for key in keys}
    schema = json.dumps({"type": "object", "properties": kinds})
    return f"robocache.{name.strip('/')}", "jsonschema", schema, json_messages(keys, values)


def json_messages(keys: Sequence[str], values: Array) -> Iterator[Callable[[], bytes]]:
    for row in values:
        yield lambda row=row: json_message(keys, row.tolist())  # type: ignore[misc]


def json_message(keys: Sequence[str], numbers: Sequence[float]) -> bytes:
    finite = (number if math.isfinite(number) else None for number in numbers)  # JSON has no NaN or infinity
    return json.dumps(dict(zip(keys, finite, strict=True)), allow_nan=False).encode()


def image_messages(episode: AlignedEpisode, name: str) -> Iterator[Callable[[], bytes]]:
    """Images with their bytes as recorded, if there are such; otherwise decoded frames."""
    metadata, samples, wanted = episode.infos[name].metadata, episode.samples[name], seen(episode, name)
    if isinstance(samples, Packed):
        for k, at in zip(wanted.tolist(), episode.times.tolist(), strict=True):
            yield lambda k=k, at=at: mcap_images.stored(at, samples.as_stored(k), metadata)  # type: ignore[misc]
        return
    for frame, at in zip(frames_of(episode, name), episode.times.tolist(), strict=True):
        yield lambda frame=frame, at=at: mcap_images.frame(at, frame)  # type: ignore[misc]
