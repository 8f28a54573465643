"""Small caches for tests of the loader, and the raw episodes that they were made from.

All numbers come from PCG64's raw bits and from integers, so every machine makes the same bytes.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from cases import Random

import robocache as rc
from robocache._cache.joined import declaration
from robocache._recordings.source import Batch, StreamInfo

MS = 1_000_000
START = 1_700_000_000_000_000_000
JOINTS = tuple(f"joint_{k}" for k in range(4))


@dataclass
class Raw:
    """A stream of an episode, sorted by time as a cache keeps it."""

    values: np.ndarray
    times: np.ndarray  # int64 nanoseconds, latency not yet taken off
    arrivals: np.ndarray | None = None  # None: the times
    latency: int = 0  # nanoseconds
    method: Any = None
    max_gap: int | None = None  # nanoseconds
    static: bool = False
    channels: tuple[str, ...] = ()
    frames: bool = False  # a camera's frames, uint8 [N, H, W, C]
    said: dict[str, str] = field(default_factory=dict)  # more metadata

    @property
    def arrived(self) -> np.ndarray:
        return self.times if self.arrivals is None else self.arrivals

    def cut(self, count: int) -> Raw:
        """The first samples."""
        arrivals = None if self.arrivals is None else self.arrivals[:count]
        return dataclasses.replace(self, values=self.values[:count], times=self.times[:count], arrivals=arrivals)

    def numbered(self) -> Raw:
        """The numbers of the samples in their place: what is aligned of a camera."""
        return dataclasses.replace(self, values=np.arange(len(self.times)), method="hold", frames=False)


@dataclass
class Episode:
    name: str
    streams: dict[str, Raw]
    task: str | None = None


@dataclass
class Part:
    name: str
    task: str | None


class Recording:
    """Raw episodes as a recording that CacheWriter.add takes."""

    files: tuple[Path, ...] = ()

    def __init__(self, path: str, episodes: Sequence[Episode]) -> None:
        self.path = path
        self.parts = episodes
        self.episodes = [Part(episode.name, episode.task) for episode in episodes]

    def batches(self, streams: Any = None) -> Iterator[Batch]:
        for number, episode in enumerate(self.parts):
            for name, raw in episode.streams.items():
                yield Batch(number, name, raw.values, raw.times, raw.arrived, None, info_of(name, raw))


class Info(StreamInfo):
    """A StreamInfo with a latency of its own."""

    latency: int = 0


def info_of(name: str, raw: Raw) -> StreamInfo:
    metadata = dict(raw.said)
    if raw.static:
        metadata["static"] = "true"
    if raw.max_gap is not None:
        metadata["max_gap_ns"] = str(raw.max_gap)
    kind = "test/Type"
    if raw.frames:
        kind = "robocache/frames"
        size = list(raw.values.shape[1:3])
        options = {"size": size, "fit": "stretch", "filter": "bilinear", "pad": 0}
        metadata |= {"kind": "frames", "frames": json.dumps(options), "decoder": "none, raw rgb8"}
    method = "hold" if raw.frames else raw.method
    made = Info(name, kind, raw.values.dtype, raw.values.shape[1:], raw.channels, method, False, metadata)
    made.latency = raw.latency
    return made


def write(folder: Path | str, episodes: Sequence[Episode], shards: str = "one") -> Path:
    """A cache of these episodes. shards: "one" commit for all, or "many", one for each episode."""
    path = Path(folder)
    with rc.CacheWriter(path) as writer:
        if shards == "one":
            writer.add(Recording("test://all", episodes))
        else:
            for number, episode in enumerate(episodes):
                writer.add(Recording(f"test://{number}", [episode]))
                writer.commit()
    return path


def write_own(folder: Path | str, episodes: Sequence[Episode]) -> Path:
    """The same by rc.Stream, as users add arrays of their own. Only for streams without metadata."""
    path = Path(folder)
    with rc.CacheWriter(path) as writer:
        for episode in episodes:
            streams = {}
            for name, raw in episode.streams.items():
                assert not raw.static
                assert raw.max_gap is None
                assert not raw.frames
                streams[name] = rc.Stream(
                    raw.values,
                    raw.times,
                    arrivals=raw.arrived,
                    method=raw.method,
                    latency=raw.latency,
                    channels=list(raw.channels) or None,
                )
            writer.add(streams, name=episode.name, task=episode.task)
    return path


# ---- Pieces


def stamps(random: Random, start: int, seconds: float, rate: float, jitter: int = 0, lost: Sequence[int] = ()) -> Any:
    """Times at about this rate, each off by up to `jitter` nanoseconds, without samples number `lost`."""
    count = int(seconds * rate) + 1
    period = int(1e9 / rate)
    times = start + np.arange(count, dtype=np.int64) * period
    if jitter:
        times = times + random.integers(-jitter, jitter + 1, count)
    return np.sort(np.delete(times, [k for k in lost if k < count]))


def late(random: Random, times: np.ndarray, least: int, most: int) -> np.ndarray:
    """Arrivals behind the times by `least` to `most` nanoseconds each, in no order."""
    return times + random.integers(least, most + 1, len(times))


def curve(random: Random, count: int, channels: int, dtype: Any = np.float32) -> np.ndarray:
    """A walk in steps of 1/1024."""
    steps = random.integers(-100, 101, (count, channels))
    return (np.cumsum(steps, axis=0) / 1024).astype(dtype)


def with_holes(random: Random, values: np.ndarray) -> np.ndarray:
    """One value in eight is not finite."""
    kind = random.integers(0, 24, values.shape)
    for k, bad in enumerate((np.nan, np.inf, -np.inf)):
        values[kind == k] = bad
    return values


def quaternions(random: Random, count: int, dtype: Any = np.float32) -> np.ndarray:
    """Rotations that go on steadily, not quite of unit length."""
    walk = np.cumsum(random.integers(-80, 81, (count, 4)), axis=0) + np.array([60, -110, 150, 900])
    return (walk / 1024).astype(dtype)


def pictures(random: Random, count: int, height: int = 14, width: int = 18) -> np.ndarray:
    return random.integers(0, 256, (count, height, width, 3)).astype(np.uint8)


# ---- Episodes


def arm_episode(number: int, seconds: float = 0.8, name: str | None = None, task: str | None = None) -> Episode:
    """Every kind of stream: rates that jitter, gaps, late arrivals in no order, latency, and every dtype."""
    random = Random(f"loader arm {number}")
    start = START + number * 10_000 * MS
    streams: dict[str, Raw] = {}

    def add(stream: str, rate: float, make: Callable[[int], np.ndarray], delay: tuple[int, int], **more: Any) -> None:
        lost = more.pop("lost", ())
        begin = start + random.integer(0, 12) * MS
        times = stamps(random, begin, seconds, rate, int(0.1e9 / rate), lost)
        arrivals = late(random, times, delay[0] * MS, delay[1] * MS)
        streams[stream] = Raw(make(len(times)), times, arrivals, **more)

    add(
        "joints",
        100,
        lambda n: curve(random, n, 4),
        (2, 45),
        max_gap=35 * MS,
        channels=JOINTS,
        lost=(21, 22, 23, 24, 50, 51, 52, 53, 54),
    )
    add("gripper", 30, lambda n: curve(random, n, 1, np.float64)[:, 0], (1, 90), latency=12 * MS)
    add("half", 40, lambda n: curve(random, n, 2, np.float16), (0, 0))
    add("heading", 50, lambda n: curve(random, n, 2) * np.float32(20), (5, 30), method="angle")
    add(
        "tool_pose",
        60,
        lambda n: np.concatenate([curve(random, n, 3), quaternions(random, n)], axis=1),
        (3, 40),
        method=[("linear", 0, 3), ("slerp", 3, 7)],
        latency=4 * MS,
    )
    add("wheel_velocity", 50, lambda n: curve(random, n, 2), (0, 25))
    add("contact", 50, lambda n: random.integers(0, 2, n).astype(bool), (1, 6))
    add("buttons", 25, lambda n: random.integers(0, 200, (n, 3)).astype(np.uint8), (1, 6), max_gap=110 * MS)
    add("command", 50, lambda n: curve(random, n, 4), (0, 2), max_gap=100 * MS, channels=JOINTS)
    add("target_pose", 50, lambda n: streams_like(random, n), (0, 2), method=[("linear", 0, 3), ("slerp", 3, 7)])
    add("wrist", 20, lambda n: pictures(random, n), (15, 70), frames=True, latency=8 * MS)
    add("noisy", 60, lambda n: with_holes(random, curve(random, n, 3)), (0, 30), max_gap=60 * MS)
    changes = start + np.array([30, 35, 300, 310, 505], np.int64) * MS  # written on change
    changes = changes[: max(2, int(np.count_nonzero(changes < start + int(seconds * 1000) * MS)))]
    streams["mode"] = Raw(np.arange(len(changes), dtype=np.int32) + number, changes, changes + 3 * MS, method="hold")
    streams["mount"] = Raw(
        curve(random, 1, 3), np.array([start + 100 * MS]), np.array([start + 140 * MS]), method="hold", static=True
    )
    return Episode(name or f"arm-{number}", streams, task)


def streams_like(random: Random, count: int) -> np.ndarray:
    return np.concatenate([curve(random, count, 3), quaternions(random, count)], axis=1)


def arm() -> list[Episode]:
    tasks = ["pick the cup", None, "place the cup", "pick the cup"]
    lengths = [0.8, 0.55, 0.31, 0.7]
    return [arm_episode(k, seconds, task=task) for k, (seconds, task) in enumerate(zip(lengths, tasks, strict=True))]


def plain_episode(number: int, count: int = 30, name: str | None = None, task: str | None = None) -> Episode:
    """Two streams on even clocks that arrive at their stamps."""
    random = Random(f"loader plain {number}")
    start = START + number * 10_000 * MS
    times = start + np.arange(count, dtype=np.int64) * 20 * MS
    state = Raw(curve(random, count, 3), times, channels=("x", "y", "z"))
    action = Raw(curve(random, count, 3), times + 5 * MS, channels=("x", "y", "z"))
    moving = Raw((np.arange(count) // 4 % 3 != 1), times)
    return Episode(name or f"plain-{number}", {"state": state, "action": action, "moving": moving}, task)


def plain() -> list[Episode]:
    return [plain_episode(0, 30, task="a"), plain_episode(1, 17, task="b"), plain_episode(2, 41, task="a")]


def short() -> list[Episode]:
    """Beside whole episodes: streams that share no time, streams that share one instant, and a very short one."""
    apart, touching = plain_episode(10, 20), plain_episode(11, 20)
    for episode, off in ((apart, 3000), (touching, 19 * 20)):
        action, state = episode.streams["action"], episode.streams["state"]
        action.times = state.times + off * MS
    return [plain_episode(12, 25), apart, touching, plain_episode(13, 9), plain_episode(14, 8)]


def lacking() -> list[Episode]:
    """`action` is missing in two of four episodes."""
    made = [plain_episode(20 + k, 15 + k) for k in range(4)]
    del made[1].streams["action"], made[3].streams["action"]
    return made


def joined() -> list[Episode]:
    """`arm` as a recipe joins it: of joints and gripper."""
    members = {"arm/joints": "joints", "arm/gripper": "gripper"}
    said = {"joined": declaration("arm", list(members))}
    return [
        Episode(each.name, {name: dataclasses.replace(each.streams[of], said=said) for name, of in members.items()})
        for each in arm()
    ]


def many(count: int = 120) -> list[Episode]:
    return [plain_episode(100 + k, 10 + k % 5) for k in range(count)]


def fixed() -> list[Episode]:
    """For golden hashes: integers alone, no generator."""
    made = []
    for number in range(3):
        start = 1_000_000_000 * (number + 1)
        fast, slow = np.arange(90 + 7 * number), np.arange(40 + 3 * number)
        jitter = (fast * fast * 7919 + number) % 2_000_001
        times = start + fast * 10 * MS + jitter
        arrivals = times + (fast * 104_729 * MS // 1000) % (40 * MS)
        values = ((fast[:, None] * np.array([3, 5, 7]) * (fast[:, None] + 11)) % 1009 - 500) / 256
        state = Raw(values.astype(np.float32), times, arrivals, latency=3 * MS, max_gap=60 * MS)
        held = Raw(((slow * slow * 31) % 251).astype(np.uint8), start + slow * 23 * MS, start + slow * 23 * MS + 9 * MS)
        action = Raw(np.stack([slow * 13 % 97, slow * 29 % 89], axis=1) / 64, start + slow * 22 * MS + 4 * MS)
        streams = {"state": state, "gripper": held, "action": action}
        made.append(Episode(f"fixed-{number}", streams, f"task {number % 2}"))
    return made


@dataclass(frozen=True)
class CacheCase:
    """A cache of a test: its episodes and how they are written."""

    make: Callable[[], list[Episode]]
    shards: str = "one"
    own: bool = False  # by rc.Stream

    def write(self, folder: Path | str) -> tuple[Path, list[Episode]]:
        episodes = self.make()
        return (write_own(folder, episodes) if self.own else write(folder, episodes, self.shards)), episodes


CACHES: dict[str, CacheCase] = {
    "arm": CacheCase(arm),
    "arm in shards": CacheCase(arm, "many"),
    "plain": CacheCase(plain),
    "plain own": CacheCase(plain, own=True),
    "short": CacheCase(short, "many"),
    "lacking": CacheCase(lacking),
    "joined": CacheCase(joined),
    "fixed": CacheCase(fixed),
    "many shards": CacheCase(lambda: many(30), "many"),
}
