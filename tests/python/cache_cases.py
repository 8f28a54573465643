"""Recordings and caches for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import robocache as rc
from robocache._recordings.source import Batch, StreamInfo


class Part(NamedTuple):
    name: str
    task: str | None


class FakeRecording:
    """A recording of episodes {stream: (values, times[, lengths])}, handed out in pieces of `step` samples."""

    def __init__(self, path: Path | str, episodes: list[dict[str, Any]], step: int = 7, **info: Any) -> None:
        self.path = str(path)
        self.files = (Path(path),) if Path(path).exists() else ()
        self.episodes = [Part(f"part-{k}", None) for k in range(len(episodes))]
        self.parts = episodes
        self.step = step
        self.info = info
        self.reads = 0
        self.fail_at: int | None = None  # the batch that raises

    def batches(self, streams=None):
        self.reads += 1
        count = 0
        for k, episode in enumerate(self.parts):
            longest = max((len(entry[1]) for entry in episode.values()), default=0)
            for first in range(0, max(longest, 1), self.step):
                for name, entry in episode.items():
                    if streams is not None and name not in streams:
                        continue
                    values, times = entry[:2]
                    part = slice(first, first + self.step)
                    if first > 0 and not len(times[part]):
                        continue
                    count += 1
                    if self.fail_at is not None and count >= self.fail_at:
                        raise RuntimeError("the source broke")
                    lengths = None
                    rows = values[part]
                    if len(entry) == 3:
                        ends = np.cumsum(entry[2])
                        lengths = entry[2][part]
                        begin = ends[first] - entry[2][first] if len(lengths) else 0
                        rows = values[begin : begin + lengths.sum()]
                    info = StreamInfo(
                        name, "test/Type", values.dtype, values.shape[1:], (), None, len(entry) == 3, dict(self.info)
                    )
                    yield Batch(k, name, rows, times[part], times[part] + 5, lengths, info)


def version_1(manifest: dict[str, Any]) -> str:
    """The text of a manifest of version 1, which has no checksum: for tests that change it by hand."""
    return json.dumps({k: v for k, v in manifest.items() if k not in ("identity", "checksum")} | {"version": 1})


def episode(seed: int, samples: int = 40) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    times = np.arange(samples, dtype=np.int64) * 10_000_000 + seed * 10**12
    lengths = rng.integers(0, 5, samples // 2)
    return {
        "joints": (rng.normal(size=(samples, 3)).astype(np.float32), times),
        "grip": (rng.integers(0, 9, size=(samples // 3,), dtype=np.int16), times[: samples // 3]),
        "cloud": (rng.normal(size=(int(lengths.sum()), 2)), times[: samples // 2], lengths),
    }


def streams_of(content: dict[str, Any]) -> dict[str, rc.Stream[Any]]:
    """The same, as a user's own streams."""
    streams = {}
    for name, entry in content.items():
        values, times = entry[:2]
        if len(entry) == 3:
            values = np.split(values, np.cumsum(entry[2])[:-1])
        streams[name] = rc.Stream(values, times, arrivals=times + 5)
    return streams


def check_episode(found: Any, content: dict[str, Any]) -> None:
    """That an episode of a cache has this content, sorted by time."""
    assert set(found.streams) == set(content)
    for name, entry in content.items():
        stream = found.streams[name]
        times = entry[1]
        order = np.argsort(times, kind="stable")
        np.testing.assert_array_equal(stream.times, times[order])
        np.testing.assert_array_equal(stream.arrivals, times[order] + 5)
        assert found.samples[name] == len(times)
        assert stream.backward == (np.diff(times) < 0).sum()
        if len(entry) == 3:
            ends = np.cumsum(entry[2])
            assert len(stream.samples) == len(times)
            for k, source in enumerate(order):
                expected = entry[0][ends[source] - entry[2][source] : ends[source]]
                np.testing.assert_array_equal(stream.samples[k], expected)
        else:
            assert stream.values.dtype == entry[0].dtype
            np.testing.assert_array_equal(stream.values, entry[0][order])
