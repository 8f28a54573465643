"""The cameras of a cache, and the frames that it has of each: for `robocache info` and `robocache verify`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import NamedTuple

from robocache._cache.cache import Cache
from robocache._cache.framed import is_camera
from robocache._cache.tier import KIND
from robocache._recordings.frame_options import from_text
from robocache._recordings.source import StreamInfo

CAMERAS = ("camera", "frames", "samples", "size", "decoder", "kept")  # the headers of their table


class Camera(NamedTuple):
    """A camera of a cache.

    Attributes:
        camera: Its stream.
        frames: The options of its frames: "224 x 224, cover, bilinear". Empty: without frames, decoded on access.
        samples: The number of frames; without frames, the number of samples.
        bytes: The size of its frames.
        decoder: The decoder that made them.
        kept: "both", "frames" (the frames alone) or "source" (no frames).
        lost: The number of frames that could not be decoded and are left out.
    """

    camera: str
    frames: str
    samples: int
    bytes: int
    decoder: str
    kept: str
    lost: int

    def row(self) -> list[str]:
        count = f"{self.samples:,}" + (f", {self.lost:,} lost" if self.lost else "")
        size = f"{self.bytes / 2**20:,.1f} MiB" if self.bytes else "-"
        return [self.camera, self.frames or "decoded on access", count, size, self.decoder or "-", self.kept]


def cameras_in(cache: Cache) -> list[Camera]:
    """The cameras of a cache, in its order of streams."""
    found = []
    for name, info in cache._stored.items():
        is_one = is_camera(info) or info.metadata.get("kind") == KIND or name in cache._tiers
        if name in cache._hidden or not is_one:
            continue
        tier = cache._tiers.get(name, name if info.metadata.get("kind") == KIND else None)
        samples, lost = 0, 0
        decoders: dict[str, None] = {}
        for episode in cache.episodes:
            stored = tier or name
            if stored not in episode._entries:
                continue
            samples += episode._entries[stored][1]
            if tier is not None:
                metadata = episode._info(tier).metadata
                lost += int(metadata.get("lost", "0")) if metadata.get("lost", "0").isdecimal() else 0
                decoders[metadata.get("decoder", "")] = None
        if tier is None:
            found.append(Camera(name, "", samples, 0, "", "source", 0))
            continue
        frames = cache._stored[tier]
        size = samples * math.prod(frames.shape) * frames.dtype.itemsize
        kept = "frames" if tier == name else "both"
        found.append(Camera(name, described(frames), samples, size, "; ".join(filter(None, decoders)), kept, lost))
    return found


def described(frames: StreamInfo) -> str:
    text = frames.metadata.get("frames", "varies")
    if text == "varies":
        return "of several kinds"
    options = from_text(text)
    return f"{options}, {options.filter}"


def absent_videos(cache: Cache) -> Iterator[tuple[str, str, list[str]]]:
    """The missing videos of the episodes: stream, file, episodes."""
    absent: dict[tuple[str, str], list[str]] = {}
    there: dict[str, bool] = {}
    videos = [name for name, info in cache._stored.items() if info.metadata.get("kind") == "video"]
    for episode in cache.episodes:
        for name in videos:
            if name not in episode._entries:
                continue
            file = cache._found(episode._info(name).metadata).get("file", "")
            if file and not there.setdefault(file, os.path.isfile(file)):
                absent.setdefault((name, file), []).append(episode.name)
    for (name, file), episodes in absent.items():
        yield name, file, episodes
