"""A cache, opened as a recording: for `robocache info`, and wherever a recording serves."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from robocache._cache import Cache
from robocache._recording import Array, Batch, Content, Part, Source, StreamInfo, clipped
from robocache._stamps import stamp_of, stamps_of


class CachedSource(Source):
    format, time = "cache", "auto"

    def __init__(self, path: Path) -> None:
        manifest = stamp_of(path / "manifest.json")
        self.cache = Cache(path)
        self.path, self.notes = str(path), []
        shards = sorted((path / "shards").glob("*.safetensors"))
        self.files = (path / "manifest.json", *shards)
        self.stamps = (manifest, *stamps_of(shards))

    def parts(self) -> Sequence[Part]:
        return [Part(each.name, each.task or None, each.start, each.end) for each in self.cache.episodes]

    def contents(self, episode: int) -> Mapping[str, Content]:
        samples = self.cache.episodes[episode].samples
        return {name: Content(name, self.cache._infos[name].type, count) for name, count in samples.items()}

    def batches(
        self,
        streams: Collection[str] | None = None,
        episode: int | None = None,
        start: int | None = None,
        end: int | None = None,
    ) -> Iterator[Batch]:
        return clipped(self.cache.batches(streams, episode), start, end)

    def samples(self, info: StreamInfo, values: Array) -> Sequence[Any] | None:
        if info.metadata.get("kind") != "video":
            return None
        from robocache._video import Frames

        return Frames(info, values)
