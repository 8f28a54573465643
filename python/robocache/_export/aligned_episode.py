"""An aligned episode, from which every format is written; and a stream's name, numbers and images in an export."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robocache._align.results import Aligned
from robocache._core import FileError
from robocache._recordings.images import as_colour, picture
from robocache._recordings.source import Array, StreamInfo
from robocache._recordings.streams import Packed

VIDEO_PIECE = 16  # frames decoded at a time


class AlignedEpisode(NamedTuple):
    """An episode on its timeline."""

    number: int
    name: str
    task: str
    times: Array  # [T] nanoseconds
    aligned: Mapping[str, Aligned[Any]]
    valid: Mapping[str, Array]  # bool [T]: valid and finite
    infos: Mapping[str, StreamInfo]
    samples: Mapping[str, Any]  # the samples of images, clouds and videos, by sample number


def note(notes: list[str], sentence: str) -> None:
    if sentence not in notes:
        notes.append(sentence)


def is_video(info: StreamInfo) -> bool:
    return info.metadata.get("kind") == "video"


def numbers(episode: AlignedEpisode, name: str) -> Array:
    return np.asarray(episode.aligned[name].values)


def seen(episode: AlignedEpisode, name: str) -> Array:
    """The number of the sample behind each target, or -1."""
    return np.asarray(episode.aligned[name].index)


class Unreadable(Exception):
    """An episode's images cannot be exported: its video is gone, or an image is damaged or of another size."""


def frames_of(episode: AlignedEpisode, name: str) -> Iterator[Array]:
    """The image at each target; black if no sample is behind it. A held image is decoded once."""
    try:
        yield from decoded(episode, name)
    except FileError as error:
        raise Unreadable(str(error)) from None


def decoded(episode: AlignedEpisode, name: str) -> Iterator[Array]:
    info, samples, wanted = episode.infos[name], episode.samples[name], seen(episode, name)
    blank = np.zeros(0)
    images: dict[int, Array] = {}
    for first in range(0, len(wanted), VIDEO_PIECE):  # in pieces, so that a video is read forward
        some = wanted[first : first + VIDEO_PIECE].tolist()
        if is_video(info):
            needed = {max(k, 0) for k in some}
            images = {k: image for k, image in images.items() if k in needed}
            new = sorted(needed - set(images))
            images |= dict(zip(new, map(as_colour, samples._take(new)), strict=True))
        for k in some:
            if max(k, 0) not in images:
                stored = samples.as_stored(max(k, 0)) if isinstance(samples, Packed) else samples[max(k, 0)]
                images = {max(k, 0): as_colour(picture(name, stored, info.metadata))}
            if k < 0 and not len(blank):
                blank = np.zeros_like(images[0])
            yield images[k] if k >= 0 else blank


def is_written(path: Path, episode: AlignedEpisode, notes: list[str], write: Callable[[], None]) -> bool:
    """Writes an episode's file by `write`. If samples cannot be read, removes the file and adds a note."""
    try:
        write()
    except Unreadable as error:
        path.unlink()
        note(notes, f"episode {episode.name} is left out: {error}")
        return False
    return True


class OutputNames(NamedTuple):
    """How a format names a stream's output."""

    base: Callable[[str], str]
    derived: Callable[[str], Sequence[str]]  # further outputs of the stream
    reserved: Collection[str]  # names that the format uses itself


def names_in(form: OutputNames, streams: Collection[str], notes: list[str]) -> dict[str, str]:
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
