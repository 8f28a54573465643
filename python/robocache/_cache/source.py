"""A cache opened as a recording, for `robocache info` and anything else that takes a recording."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from robocache._cache.cache import Cache
from robocache._cache.tier import KIND, TierSamples
from robocache._recordings.source import Array, Batch, Content, Part, Source, StreamInfo, clipped
from robocache._recordings.stamps import stamp_of, stamps_of


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
        entries = self.cache.episodes[episode]._entries
        return {name: Content(name, self.cache._stored[name].type, entry[1]) for name, entry in entries.items()}

    def listed(self, episode: int) -> Mapping[str, Content]:
        """The streams of the cache without `CAMERA/frames`, which users see as the samples of their camera."""
        found = self.contents(episode)
        return {name: content for name, content in found.items() if name not in self.cache._hidden}

    def batches(
        self,
        streams: Collection[str] | None = None,
        episode: int | None = None,
        start: int | None = None,
        end: int | None = None,
    ) -> Iterator[Batch]:
        return clipped(self.cache._batches(streams, episode), start, end)

    def samples(self, info: StreamInfo, values: Array) -> Sequence[Any] | None:
        if info.metadata.get("kind") == KIND:
            return TierSamples(f'{self.path}: stream "{info.name}"', values, info.metadata.get("frames", "varies"))
        if info.metadata.get("kind") != "video":
            return None
        from robocache._recordings.video import Frames

        return Frames(info, values)
