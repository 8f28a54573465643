"""The loader's rows: a batch of windows from a cache, beside what people have. A case has the methods that the cases of
bench.cases have; a call is the next batch, in the loader's order, and the first one is checked.

On a CPU: NumPy, which indexes the nearest sample of arrays in RAM and interpolates nothing; the same cache in one
shard; LeRobot's data set class under torch's DataLoader, on a data set that we export and whose videos the cache is
built from. bench/loader_cuda.py has the rows for a GPU."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench import logs, others
from bench.goals import OURS, Absent, Row
from bench.timing import Call

NUMPY, ONE_SHARD = "NumPy nearest sample in RAM", "one shard"
DECODERS, WORKERS = ("pyav", "torchcodec"), (0, 1, 2)
PREFETCHED = 2  # batches of each worker, as torch's DataLoader does by default
LEROBOT = tuple(f"LeRobot {decoder} + {workers} workers" for decoder in DECODERS for workers in WORKERS)
NAMES = (NUMPY, ONE_SHARD, *LEROBOT)

RATE, OBSERVED, ACTIONS = 50, 2, 16
STATE, ACTION, CAMERAS = "observation.state", "action", ("observation.images.front", "observation.images.wrist")
STREAMS = {STATE: (100, 14), ACTION: (50, 14)}  # hertz, channels
MOST_DIFFERENCE = 2.001 / 255  # of pictures, because the colour conversion is ours

# Reports the time from a path to the first batch, and the peak of memory after 50 batches. Without torch for NumPy.
CHILD = """
import json, pathlib, sys, time
import numpy
import robocache as rc
path, spec, device = sys.argv[1:]
if device == "cpu":
    import torch
begin = time.perf_counter()
loader = rc.Loader.from_spec(path, json.loads(spec), device=device or None)
loader.batch(0)
print((time.perf_counter() - begin) * 1e3)
for number in range(1, 51):
    loader.batch(number)
print(pathlib.Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
"""


# ---- Caches


def episode(
    random: np.random.Generator, seconds: float, hertz: int | None = None
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Smooth values and stamps that jitter by a tenth of a period, by stream; at its own rate, or all at one."""
    made = {}
    for name, (own, channels) in STREAMS.items():
        rate = hertz or own
        ticks = np.arange(round(seconds * rate) + 1)
        jitter = random.uniform(-0.1, 0.1, len(ticks)) * (ticks > 0)
        stamps = np.rint((ticks + jitter) * (1e9 / rate))
        phase = np.arange(channels) + random.uniform(0, 6)
        values = np.sin(stamps[:, None] * 1e-9 * (0.3 + 0.1 * np.arange(channels)) + phase)
        made[name] = values.astype(np.float32), stamps.astype(np.int64)
    return made


def frames_of(random: np.random.Generator, count: int, size: tuple[int, int]) -> np.ndarray:
    """uint8 [N, H, W, 3]: grey waves that wander over the picture. Where colours change from pixel to pixel, libraries
    convert those of a video differently."""
    row, column = np.indices(size)
    at = np.arange(count)[:, None, None] * 0.1 + random.uniform(0, 6)
    waves = np.sin(row / 9 + at) + np.sin(column / 13 - 0.7 * at)
    return (127.5 + waves[..., None] * np.array([60.0, 60.0, 60.0])).astype(np.uint8)


@functools.cache
def numbers_cache(episodes: int, seconds: float, shards: int) -> Path:
    rc = importlib.import_module("robocache")
    path = logs.folder() / f"loader-{episodes}-{seconds:g}-{shards}"
    random = np.random.default_rng(0)
    with rc.CacheWriter(path) as writer:
        for number in range(episodes):
            streams = {name: rc.Stream(*arrays) for name, arrays in episode(random, seconds).items()}
            writer.add(streams, name=f"episode-{number}", task="move")
            if (number + 1) * shards // episodes > number * shards // episodes:
                writer.commit()
    return path


@functools.cache
def short_cache(episodes: int) -> Path:
    """Many episodes of a second, in shards of 500."""
    return numbers_cache(episodes, 1.0, max(1, episodes // 500))


@functools.cache
def pictures_set(size: tuple[int, int], episodes: int, seconds: float) -> tuple[Path, Path]:
    """A LeRobot data set with two videos, and a cache that is built from it, with all frames."""
    rc = importlib.import_module("robocache")
    from robocache._cache.framed import FramedSource
    from robocache._export.lerobot import Feature, LeRobotWriter
    from robocache._recordings.frame_options import FrameOptions

    others.module("av", "pip install av")
    name = f"loader-{size[0]}x{size[1]}-{episodes}-{seconds:g}"
    exported, cache = (logs.folder() / f"{name}-{part}" for part in ("lerobot", "cache"))
    random, count = np.random.default_rng(0), round(seconds * RATE)
    features = {name: Feature("float32", (channels,)) for name, (_, channels) in STREAMS.items()}
    features |= {camera: Feature("video", (*size, 3)) for camera in CAMERAS}
    with LeRobotWriter(exported, fps=RATE, features=features) as writer:
        for _ in range(episodes):
            values = {name: arrays[0] for name, arrays in episode(random, seconds, RATE).items()}
            values = {name: each[:count] for name, each in values.items()}
            writer.add(values, "move", {camera: frames_of(random, count, size) for camera in CAMERAS})
    source = FramedSource(rc.open(exported)._source, FrameOptions(*size, "stretch"), {}, {})
    with rc.CacheWriter(cache) as made:
        made.add(rc.Recording(source))
    return exported, cache


@functools.cache
def exported_numbers(episodes: int, seconds: float) -> tuple[Path, Path]:
    """The numbers as a LeRobot data set, and a cache that is built from it."""
    rc = importlib.import_module("robocache")
    exported = logs.folder() / f"loader-{episodes}-{seconds:g}-lerobot"
    rc.export(rc.Cache(numbers_cache(episodes, seconds, 1)).episodes, exported, rate=RATE)
    cache = exported.with_name(exported.name + "-cache")
    with rc.CacheWriter(cache) as writer:
        writer.add(rc.open(exported))
    return exported, cache


def opened(rc: ModuleType, cache: Path | str, *, batch: int, pictures: bool, **options: Any) -> Any:
    """The loader of a row. What it knew is not asked: its peers cannot."""
    keys = {
        STATE: rc.Key(STATE, steps=range(1 - OBSERVED, 1), knowledge="truth"),
        ACTION: rc.Key(ACTION, steps=range(ACTIONS)),
    }
    if pictures:
        keys |= {camera: rc.Key(camera, knowledge="truth") for camera in CAMERAS}
        options = {"device": "cpu"} | options
    return rc.Loader(cache, batch_size=batch, rate=RATE, keys=keys, seed=0, rank=0, world=1, **options)


def as_tensors(batch: Any) -> list[Tensor]:
    """LeRobot's pictures have no dimension of steps where there is one."""
    pictures = [torch.as_tensor(batch[camera]) for camera in CAMERAS if camera in batch]
    return [*(torch.as_tensor(batch[name]) for name in (STATE, ACTION)), *(p.flatten(0, -4) for p in pictures)]


# ---- Rows


@dataclasses.dataclass(frozen=True)
class Inputs:
    cache: Path
    loader: Any


@dataclasses.dataclass(frozen=True, eq=False)
class LoaderCase(Row):
    name: str
    episodes: int
    seconds: float
    windows: int = 64
    shards: int = 1
    size: tuple[int, int] | None = None  # of the pictures of two cameras
    lerobot: bool = False  # built from a LeRobot data set, and beside LeRobot

    op = "loader"
    devices = ("cpu",)

    def peers(self, device: str) -> tuple[str, ...]:
        if self.lerobot:  # without pictures nothing is decoded
            return LEROBOT if self.size else LEROBOT[: len(WORKERS)]
        return (ONE_SHARD,) if self.shards > 1 else (NUMPY,)

    def make(self, device: str, seed: int = 0) -> Inputs:
        rc = importlib.import_module("robocache")
        cache = self._paths()[1]
        return Inputs(cache, opened(rc, cache, batch=self.windows, pictures=self.size is not None))

    def _paths(self) -> tuple[Path | None, Path]:
        """The LeRobot data set, and the cache."""
        if self.size is not None:
            return pictures_set(self.size, self.episodes, self.seconds)
        if self.lerobot:
            return exported_numbers(self.episodes, self.seconds)
        return None, numbers_cache(self.episodes, self.seconds, self.shards)

    def ours(self, rc: ModuleType, inputs: Inputs) -> Call:
        return batches_of(inputs.loader)

    def other_call(self, who: str, inputs: Inputs) -> Call:
        if who == NUMPY:
            return nearest(inputs)
        if who == ONE_SHARD:
            rc = importlib.import_module("robocache")
            one = numbers_cache(self.episodes, self.seconds, 1)
            return batches_of(opened(rc, one, batch=self.windows, pictures=False))
        exported = self._paths()[0]
        assert exported is not None
        decoder, workers = lerobot_options(who)
        batches = lerobot_batches(exported, inputs.loader, decoder, workers, self.size is not None)
        first = next(batches)
        agree(as_tensors(first), self.truth(inputs))
        chained = itertools.chain([first], batches)
        return lambda: next(chained)

    def results(self, returned: Any) -> list[Tensor]:
        return as_tensors(returned)

    def compared(self, who: str, results: list[Any]) -> list[Any]:
        """LeRobot's pictures have been compared exactly, by `agree`, before anything is timed."""
        return results[:2] if who in LEROBOT else results

    def prefetched(self, who: str) -> int:
        return PREFETCHED * lerobot_options(who)[1] if who in LEROBOT else 0

    def truth(self, inputs: Inputs) -> list[Tensor]:
        """By the reference backend, which the loader's tests compare with an oracle of their own."""
        rc = importlib.import_module("robocache")
        pictures = self.size is not None
        return as_tensors(opened(rc, inputs.cache, batch=self.windows, pictures=pictures, backend="reference").batch(0))

    def floor_bytes(self, inputs: Inputs) -> int:
        """The batch, read once and written once."""
        return 2 * sum(tensor.nbytes for tensor in as_tensors(inputs.loader.batch(0)))

    def figures(self, who: str, inputs: Inputs) -> dict[str, float]:
        """Of a process of its own: the time from a path to the first batch, and the peak of memory."""
        if who != OURS:
            return {}
        spec, device = json.dumps(inputs.loader.spec()), "cpu" if self.size else ""
        words = [sys.executable, "-c", CHILD, str(inputs.cache), spec, device]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        first, peak = done.stdout.split()
        return {"first_batch_ms": float(first), "peak_mib": int(peak) / 1024}


@dataclasses.dataclass(frozen=True, eq=False)
class ConstructionCase(Row):
    """From an open cache to a loader that has handed out nothing yet."""

    name: str
    episodes: int
    is_long: bool = True

    op = "loader"
    devices = ("cpu",)

    def peers(self, device: str) -> tuple[str, ...]:
        return ()

    def make(self, device: str, seed: int = 0) -> Inputs:
        rc = importlib.import_module("robocache")
        path = short_cache(self.episodes)
        return Inputs(path, rc.Cache(path))

    def ours(self, rc: ModuleType, inputs: Inputs) -> Call:
        return lambda: opened(rc, inputs.loader, batch=64, pictures=False)

    def results(self, returned: Any) -> list[Tensor]:
        return [torch.tensor(len(returned.windows))]

    def truth(self, inputs: Inputs) -> list[Tensor]:
        """Between the latest start and the earliest end of the streams of each episode, both included."""
        total = 0
        for each in inputs.loader.episodes:
            times = [np.asarray(each.streams[name].times) for name in STREAMS]
            span = min(stamps[-1] for stamps in times) - max(stamps[0] for stamps in times)
            total += int(span) * RATE // 10**9 + 1
        return [torch.tensor(total)]

    def floor_bytes(self, inputs: Inputs) -> int:
        """The first and the last stamp of each stream of each episode."""
        return 16 * len(STREAMS) * self.episodes


def batches_of(loader: Any) -> Call:
    numbers = itertools.count()
    return lambda: loader.batch(next(numbers))


# ---- Peers


def nearest(inputs: Inputs) -> Call:
    """The same windows from arrays in RAM: the index of the nearest sample by arithmetic, clamped to the episode."""
    loader, begins, arrays = inputs.loader, {}, {}
    episodes = inputs.loader.cache.episodes
    for name in STREAMS:
        values = [np.asarray(each.streams[name].values) for each in episodes]
        begins[name] = np.concatenate([[0], np.cumsum([len(each) for each in values])])
        arrays[name] = np.concatenate(values)
    steps = {STATE: np.arange(1 - OBSERVED, 1), ACTION: np.arange(ACTIONS)}
    windows, order = loader.windows, loader.order
    first = order.numbers(0)
    rest = np.random.default_rng(0).permutation(len(windows))
    numbers = np.concatenate([first, rest[: len(rest) // len(first) * len(first)]]).reshape(-1, len(first))
    turns = itertools.cycle(numbers)

    def call() -> dict[str, Any]:
        _, episode, anchor = windows.at(next(turns))
        batch = {}
        for name, (rate, _) in STREAMS.items():
            index = np.rint((anchor[:, None] + steps[name] * (10**9 // RATE)) * (rate * 1e-9)).astype(np.int64)
            low, high = begins[name][episode][:, None], begins[name][episode + 1][:, None] - 1
            index += low
            batch[f"{name}.valid"] = (index >= low) & (index <= high)
            batch[name] = arrays[name][np.clip(index, low, high)]
        return batch

    return call


def lerobot_options(who: str) -> tuple[str, int]:
    """The decoder, and the number of workers."""
    _, decoder, _, workers, _ = who.split()
    return decoder, int(workers)


def lerobot_batches(root: Path, loader: Any, decoder: str, workers: int, pictures: bool) -> Iterator[Any]:
    """The loader's windows by LeRobot's data set class under torch's DataLoader, without end."""
    if decoder == "torchcodec":
        try:
            importlib.import_module("torchcodec.decoders")
        except (ImportError, OSError, RuntimeError) as error:
            reason = str(error).partition("\n")[0]
            raise Absent(f"torchcodec cannot be imported ({reason}); it needs FFmpeg's libraries") from error
    try:
        found = importlib.import_module("lerobot.datasets.lerobot_dataset")
    except ImportError as error:
        raise Absent(f"lerobot cannot be imported ({error}); run it in .judge: make judge makes it") from error
    cameras = {camera: range(1) for camera in (CAMERAS if pictures else ())}
    steps = {STATE: range(1 - OBSERVED, 1), ACTION: range(ACTIONS)} | cameras
    deltas = {name: [step / RATE for step in some] for name, some in steps.items()}
    given = found.LeRobotDataset("bench/loader", root=root, delta_timestamps=deltas, video_backend=decoder)
    begins = np.asarray(given.meta.episodes["dataset_from_index"])

    def chosen() -> Iterator[list[int]]:
        for number in itertools.count():
            place, episodes, anchors = loader.windows.at(loader.order.numbers(loader.order.start(number)))
            frames = np.rint((anchors - loader.windows.starts[place]) * (RATE * 1e-9)).astype(np.int64)
            yield (begins[episodes] + frames).tolist()

    options = {"num_workers": workers, "prefetch_factor": PREFETCHED if workers else None}
    return iter(torch.utils.data.DataLoader(given, batch_sampler=Endless(chosen()), **options))


class Endless:
    """A batch sampler without an end."""

    def __init__(self, batches: Iterator[list[int]]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        return self.batches


def agree(found: Sequence[Tensor], truth: Sequence[Tensor]) -> None:
    """Numbers are equal, and pictures within 2 of 255; otherwise nothing is timed."""
    for got, exact in zip(found, truth, strict=True):
        if got.shape != exact.shape:
            raise ValueError(f"shapes differ: {tuple(got.shape)}, and ours {tuple(exact.shape)}")
        most = float((got - exact).abs().max())
        bound = MOST_DIFFERENCE if got.ndim == 4 else 0.0
        if not most <= bound:
            raise ValueError(f"values differ from ours by up to {most:.3g}, at most {bound:.3g} is agreed")


STEPS = "2+16 steps, 14+14 channels"
LOADER_CASES = (
    LoaderCase(f"64 windows of {STEPS}", 200, 20.0),
    LoaderCase(f"256 windows of {STEPS}", 200, 20.0, 256),
    LoaderCase(f"64 windows of {STEPS}, 200 shards", 200, 20.0, shards=200),
    LoaderCase(f"256 windows of {STEPS}, 200 shards", 200, 20.0, 256, shards=200),
    LoaderCase(f"64 windows of {STEPS}, a LeRobot data set", 50, 10.0, lerobot=True),
    LoaderCase(f"64 windows of {STEPS}, 2 pictures of 96x96", 8, 4.0, size=(96, 96), lerobot=True),
    LoaderCase(f"64 windows of {STEPS}, 2 pictures of 224x224", 8, 4.0, size=(224, 224), lerobot=True),
    ConstructionCase("construction over 10,000 episodes", 10_000),
)
