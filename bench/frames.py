"""`robocache build --frames` of the shared data set's video, beside PyAV, which decodes it with as many threads and
keeps nothing. A build decodes each picture once, converts it to RGB, resizes it and writes it."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from bench import data, logs
from bench.goals import Absent, Row
from bench.timing import Call

PYAV = "PyAV decoding alone"
NAMES = (PYAV,)


@dataclasses.dataclass(frozen=True)
class VideoSet:
    root: Path
    video: Path
    cache: Path


@dataclasses.dataclass(frozen=True, eq=False)
class FramesCase(Row):
    name: str
    size: tuple[int, int]

    op = "build --frames"
    devices = ("cpu",)

    def peers(self, device: str) -> tuple[str, ...]:
        return NAMES

    def make(self, device: str, seed: int = 0) -> VideoSet:
        root = data.folder() / "lerobot-v3-so101"
        if not root.exists():
            raise Absent(f"{root} is not here; tools/fetch-data fetches it")
        return VideoSet(root, next(root.rglob("*.mp4")), logs.folder() / f"frames-{seed}")

    def ours(self, rc: ModuleType, given: VideoSet) -> Call:
        from robocache._cache.framed import FramedSource
        from robocache._recordings.frame_options import FrameOptions

        def call() -> int:
            shutil.rmtree(given.cache, ignore_errors=True)
            source = FramedSource(rc.open(given.root)._source, FrameOptions(*self.size, "cover"), {}, {})
            with rc.CacheWriter(given.cache) as writer:
                writer.add(rc.Recording(source))
            name = given.video.relative_to(given.root / "videos").parts[0]
            return sum(len(episode.streams[name].samples.rows) for episode in rc.Cache(given.cache).episodes)

        return call

    def other_call(self, who: str, given: VideoSet) -> Call:
        try:
            import av
        except ModuleNotFoundError:
            raise Absent("PyAV is not installed") from None

        def call() -> int:
            with av.open(str(given.video)) as container:
                codec = container.streams.video[0].codec_context
                codec.thread_count, codec.thread_type = len(os.sched_getaffinity(0)), "AUTO"
                return sum(1 for _ in container.decode(video=0))

        return call

    def results(self, returned: int) -> list[Tensor]:
        return [torch.tensor(returned)]

    def truth(self, given: VideoSet) -> list[Tensor]:
        return [torch.tensor(1782)]  # the frames of the data set, as its README says

    def floor_bytes(self, given: VideoSet) -> int:
        """The video once, the frames once."""
        return given.video.stat().st_size + 1782 * self.size[0] * self.size[1] * 3


FRAMES_CASES = (FramesCase("1,782 frames of 640x360 AV1->224x224", (224, 224)),)
