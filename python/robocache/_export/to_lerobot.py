"""Aligned episodes as a LeRobot data set."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np

from robocache._cache.prepare import is_numbered
from robocache._export.aligned_episode import (
    AlignedEpisode,
    OutputNames,
    Unreadable,
    frames_of,
    is_video,
    names_in,
    note,
    numbers,
)
from robocache._export.lerobot import BOOKKEEPING, Feature, LeRobotWriter
from robocache._recordings.images import is_colour, is_image
from robocache._recordings.source import Array


def lerobot_name(name: str) -> str:
    """A LeRobot feature's name: without slashes, and not "." or "..", because it names a folder."""
    key = name.strip("/").replace("/", ".")
    return key if key.strip(".") else ""


LEROBOT = OutputNames(lerobot_name, lambda key: [f"valid.{key}"], BOOKKEEPING)


class Layout(NamedTuple):
    """The features of a LeRobot data set, from its first episode."""

    features: dict[str, Feature]
    plain: list[tuple[str, str]]  # stream and key
    pictures: list[tuple[str, str]]
    sizes: dict[str, tuple[int, ...]]


def layout_of(first: AlignedEpisode, notes: list[str]) -> Layout:
    made = Layout({}, [], [], {})
    keys = names_in(LEROBOT, first.infos, notes)
    for name, info in first.infos.items():
        key = keys[name]
        image = is_image(info.metadata) or is_video(info)
        if image and (is_video(info) or is_colour(info.metadata)):
            size = next(frames_of(first, name)).shape
            if min(size[:2]) < 2:
                note(
                    notes,
                    f'stream "{name}" is left out: its images are {size[0]} x {size[1]}, and a LeRobot video has even '
                    "sides; --format safetensors keeps them",
                )
                continue
            odd = [what for what, side in (("row", size[0]), ("column", size[1])) if side % 2]
            if odd:
                note(
                    notes,
                    f'stream "{name}": its images of {size[0]} x {size[1]} lose their last {" and ".join(odd)}: a '
                    "LeRobot video has even sides; --format safetensors keeps every size",
                )
            made.sizes[name] = size
            made.features[key] = Feature("video", even(size))
            made.pictures.append((name, key))
        elif is_numbered(info):
            what = "samples of varying length" if info.ragged else "depth images"
            note(
                notes,
                f'stream "{name}" is left out: LeRobot has no feature for {what}; --format safetensors keeps them',
            )
            continue
        else:
            values = numbers(first, name)
            kind = "float32" if values.dtype == np.float64 else str(values.dtype)  # as models use it
            made.features[key] = Feature(kind, values.shape[1:] or (1,), tuple(info.channels))
            made.plain.append((name, key))
        made.features[f"valid.{key}"] = Feature("bool", (1,))
    return made


def to_lerobot(episodes: Iterator[AlignedEpisode], target: Path, rate: float, notes: list[str]) -> Iterator[int]:
    layout: Layout | None = None
    writer: LeRobotWriter | None = None
    whole = True
    with ExitStack() as stack:
        for episode in episodes:
            try:
                layout = layout_of(episode, notes) if layout is None else layout
                if not layout.features:
                    raise ValueError(f"{target}: nothing to export: no stream has numbers or colour images")
                if writer is None:
                    writer = stack.enter_context(LeRobotWriter(target, fps=rate, features=layout.features))
                columns = {key: numbers(episode, name) for name, key in layout.plain}
                for name, key in (*layout.plain, *layout.pictures):
                    columns[f"valid.{key}"] = episode.valid[name][:, None]
                videos = {key: cropped(episode, name, layout.sizes[name]) for name, key in layout.pictures}
                writer.add(columns, episode.task or "no task", videos)
            except Unreadable as error:
                note(notes, f"episode {episode.name} is left out: {error}")
                if writer is not None and not writer.episodes:  # the next episode gives the image sizes
                    stack.pop_all()
                    writer.folder.discard()
                    writer = layout = None
                continue
            whole &= all(episode.valid[name].all() for name, _ in (*layout.plain, *layout.pictures))
            yield len(episode.times)
    if not whole:
        note(notes, "some values are not valid and repeat the nearest sample: mask them with valid.<feature>")


def even(size: tuple[int, ...]) -> tuple[int, int, int]:
    """The size cut to even numbers, which yuv420p needs."""
    return size[0] - size[0] % 2, size[1] - size[1] % 2, 3


def cropped(episode: AlignedEpisode, name: str, size: tuple[int, ...]) -> Iterator[Array]:
    height, width, _ = even(size)
    for frame in frames_of(episode, name):
        if frame.shape != size:
            found, first = (" x ".join(map(str, shape)) for shape in (frame.shape, size))
            raise Unreadable(
                f'an image of stream "{name}" is {found}, the first was {first}; a LeRobot video has one size: '
                "--streams leaves a stream out, --format safetensors keeps every size"
            )
        yield frame[:height, :width]
