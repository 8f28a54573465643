"""Reads episodes of any size: small ones are decoded into memory, large ones go through a cache in a temporary folder.

Writing a cache takes little memory, and its samples are mapped into memory only when they are used. If a large
recording has more pictures or clouds than a view shows, only some are kept.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from robocache._cache.cache import Cache
from robocache._cache.writer import CacheWriter
from robocache._recordings.recording import Episode, Recording
from robocache._recordings.source import Batch, Content, Part, Source, SourceOver
from robocache._recordings.words import counted

MOST_SAMPLES = 10_000_000  # a recording with more samples is large
MOST_FILE = 1 << 30  # bytes for each episode: a recording with larger files is large
MOST_RAGGED = 2000  # pictures or clouds of a stream that are kept of a large recording


def spooled(
    episode: Episode, names: Sequence[str], told: Callable[[str, float], None], stack: ExitStack
) -> tuple[Mapping[str, Any], list[str]]:
    """The streams with these names, and notes. When the stack closes, it removes the temporary folder."""
    source = episode.streams._source
    file = Path(source.path).name
    if not is_large(source, episode.index, names):
        return episode.streams._select(names, lambda batch: told(file, share_of(source, episode.index, batch))), []
    place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="robocache-view-"))) / "cache"
    kept = SubsampledEpisode(source, episode.index, names)
    size = max(sum(file.stat().st_size for file in source.files if file.is_file()), 1)
    with CacheWriter(place) as writer:
        large = f"{file}, a large file,"
        writer.add(Recording(kept), progress=lambda batch: told(large, share_of(source, episode.index, batch)))
    cache = Cache(place)
    streams = dict(cache.episodes[0].streams) if len(cache.episodes) else {}
    notes = [f"read through a temporary cache, because the recording is large ({size / 2**30:,.1f} GiB)"]
    for name, every in kept.every.items():
        if every > 1:
            notes.append(
                f"{name}: one sample of {every} is shown: the recording has {counted(kept.count(name), 'sample')}"
            )
    return streams, notes


def share_of(source: Source, episode: int, batch: Batch) -> float:
    """The fraction of an episode's time that has been read. 0 if it is not known."""
    part = source.extents()[episode]
    if part.start is None or part.end is None or not len(batch.arrivals):
        return 0.0
    return min(max((int(batch.arrivals[-1]) - part.start) / max(part.end - part.start, 1), 0.0), 1.0)


def is_large(source: Source, episode: int, names: Sequence[str]) -> bool:
    contents = source.contents(episode)
    samples = sum(contents[name].samples or 0 for name in names)
    if samples > MOST_SAMPLES:
        return True
    sizes = sum(file.stat().st_size for file in source.files if file.is_file())
    return sizes > MOST_FILE * max(len(source.parts()), 1)


class SubsampledEpisode(SourceOver):
    """One episode's streams. Of pictures and clouds, whose samples vary in length, only every k-th is kept."""

    def __init__(self, source: Source, episode: int, names: Sequence[str]) -> None:
        super().__init__(source)
        self.episode, self.names = episode, list(names)
        self.every: dict[str, int] = {}
        self._seen: dict[str, int] = {}

    def parts(self) -> Sequence[Part]:
        return [self.source.parts()[self.episode]]

    def contents(self, episode: int) -> Mapping[str, Content]:
        return {name: content for name, content in self.source.contents(self.episode).items() if name in self.names}

    def count(self, name: str) -> int:
        return self.source.contents(self.episode)[name].samples or 0

    def batches(
        self,
        streams: Collection[str] | None = None,
        episode: int | None = None,
        start: int | None = None,
        end: int | None = None,
    ) -> Iterator[Batch]:
        for batch in self.source.batches(self.names, self.episode, start, end):
            kept = batch._replace(episode=0)
            yield self._every_kth(kept) if batch.info.ragged else kept

    def _every_kth(self, batch: Batch) -> Batch:
        every = self.every.setdefault(batch.stream, max(-(-self.count(batch.stream) // MOST_RAGGED), 1))
        before = self._seen.get(batch.stream, 0)
        self._seen[batch.stream] = before + len(batch.times)
        if every == 1 or batch.lengths is None:
            return batch
        keep = (before + np.arange(len(batch.times))) % every == 0
        return batch._replace(
            values=batch.values[np.repeat(keep, batch.lengths)],
            times=batch.times[keep],
            arrivals=batch.arrivals[keep],
            lengths=batch.lengths[keep],
        )
