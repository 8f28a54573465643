"""The loader's rows on a GPU, all samples resident unless a row says otherwise: the windows of
../shared/anchors/loader_anchors.py beside torch by hand, and camera frames.

A loader's call begins on the host, with the windows of the next batch, so no CUDA graph can hold it. Its cold figure is
the time of its kernels and copies by torch.profiler, over different batches. torch by hand has the windows on the GPU
already."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C._autograd import DeviceType

from bench import logs
from bench.goals import COMPILED, EAGER, OURS, TUNED, Row
from bench.timing import Call

PINNED = "copy of pinned memory"
NAMES = (PINNED,)

RATE, OBSERVED, ACTIONS, CAMERA_RATE = 50, 16, 50, 30
CAMERAS = ("front", "wrist")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
EPISODE = 10**12  # nanoseconds from the start of one to that of the next


@dataclasses.dataclass(frozen=True)
class Kind:
    rate: int
    channels: int
    dtype: Any
    method: Any


STREAMS = {
    "joints": Kind(500, 14, np.float32, "linear"),
    "imu": Kind(200, 6, np.float32, "linear"),
    "features": Kind(30, 512, np.float16, "hold"),
    "command": Kind(100, 14, np.float32, "linear"),
}
PROFILED = 30  # calls


# ---- Caches


@functools.cache
def windows_cache(episodes: int, seconds: float) -> Path:
    rc = importlib.import_module("robocache")
    path = logs.folder() / f"loader-windows-{episodes}-{seconds:g}"
    random = np.random.default_rng(7)
    with rc.CacheWriter(path) as writer:
        for number in range(episodes):
            streams = {}
            for name, kind in STREAMS.items():
                ticks = np.arange(round(kind.rate * seconds))
                jitter = random.uniform(-0.3, 0.3, len(ticks)) * (ticks > 0)
                stamps = np.rint((ticks + jitter) * (1e9 / kind.rate)).astype(np.int64) + number * EPISODE
                values = random.standard_normal((len(ticks), kind.channels), np.float32).astype(kind.dtype)
                streams[name] = rc.Stream(values, stamps, method=kind.method)
            writer.add(streams, name=f"episode-{number}")
    return path


@functools.cache
def frames_cache(episodes: int, frames: int, size: tuple[int, int]) -> Path:
    """Frames of two cameras: noise, which costs as much as pictures."""
    rc = importlib.import_module("robocache")
    path = logs.folder() / f"loader-frames-{episodes}-{frames}-{size[0]}x{size[1]}"
    random = np.random.default_rng(7)
    stamps = np.rint(np.arange(frames) * (1e9 / CAMERA_RATE)).astype(np.int64)
    with rc.CacheWriter(path) as writer:
        for number in range(episodes):
            streams = {
                camera: rc.Stream(
                    np.frombuffer(random.bytes(frames * size[0] * size[1] * 3), np.uint8).reshape(frames, *size, 3),
                    stamps + number * EPISODE,
                    method="hold",
                )
                for camera in CAMERAS
            }
            writer.add(streams, name=f"episode-{number}")
    return path


def packed(cache: Any, name: str, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """values, times and offsets of a stream of all episodes, for torch by hand."""
    streams = [episode.streams[name] for episode in cache.episodes]
    arrays = [torch.from_numpy(np.concatenate([np.asarray(s.values) for s in streams])).to(device)]
    arrays.append(torch.from_numpy(np.concatenate([np.asarray(s.times) for s in streams])).to(device))
    offsets = np.concatenate([[0], np.cumsum([len(s.times) for s in streams])])
    return arrays[0], arrays[1], torch.from_numpy(offsets).to(device)


@functools.cache
def everything(path: Path, names: tuple[str, ...], device: str) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    cache = importlib.import_module("robocache").Cache(path)
    return {name: packed(cache, name, device) for name in names}


# ---- torch by hand


def windows_by_hand(data: Mapping[str, tuple[Tensor, ...]], episode: Tensor, anchor: Tensor) -> list[Tensor]:
    step = 10**9 // RATE
    found = []
    for name, (values, times, offsets) in data.items():
        steps = torch.arange(ACTIONS) if name == "command" else torch.arange(1 - OBSERVED, 1)
        at = anchor[:, None] + (steps.to(anchor.device) * step)[None]
        index = torch.searchsorted(times, at, right=True)
        low, high = offsets[episode][:, None], offsets[episode + 1][:, None] - 1
        left = (index - 1).clamp(low, high)
        if STREAMS[name].method == "hold":
            found.append(values[left])
            continue
        right = index.clamp(low, high)
        before, after = times[left], times[right]
        weight = ((at - before).double() / (after - before).clamp(min=1)).clamp(0, 1)[..., None].to(values.dtype)
        found.append(values[left] + (values[right] - values[left]) * weight)
    return found


def frames_by_hand(data: Mapping[str, tuple[Tensor, ...]], episode: Tensor, anchor: Tensor) -> list[Tensor]:
    """The index of a frame by a search, the gather, and the arithmetic of torchvision's ToTensor and Normalize."""
    mean, std = (torch.tensor(numbers, device=anchor.device).reshape(3, 1, 1) for numbers in (MEAN, STD))
    found = []
    for frames, times, offsets in data.values():
        index = (torch.searchsorted(times, anchor, right=True) - 1).clamp(offsets[episode], offsets[episode + 1] - 1)
        picked = frames[index].permute(0, 3, 1, 2).to(torch.float32)
        found.append(picked.div(255).sub(mean).div(std).to(torch.bfloat16)[:, None])
    return found


# ---- Rows


@dataclasses.dataclass(frozen=True)
class Inputs:
    loader: Any
    number: int  # of the batch
    episode: Tensor
    anchor: Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class LoaderCudaCase(Row):
    name: str
    episodes: int
    seconds: float
    size: tuple[int, int] | None = None  # of frames; None: windows of the four streams
    as_of: bool = False  # what was known at the anchor, which the peers do not ask
    resident: bool = True
    windows: int = 256

    op = "loader"
    devices = ("cuda",)

    @property
    def peer(self) -> Callable[..., Any]:
        return windows_by_hand if self.size is None else frames_by_hand

    def peers(self, device: str) -> tuple[str, ...]:
        if not self.resident:
            return (PINNED,)
        return () if self.as_of else (EAGER, COMPILED, TUNED)

    @property
    def path(self) -> Path:
        if self.size is None:
            return windows_cache(self.episodes, self.seconds)
        return frames_cache(self.episodes, round(self.seconds * CAMERA_RATE), self.size)

    def opened(self, device: str, **options: Any) -> Any:
        rc = importlib.import_module("robocache")
        knowledge = None if self.as_of else "truth"
        if self.size is not None:
            given = {"normalize": "imagenet", "dtype": "bfloat16", "knowledge": knowledge}
            keys = {f"observation.images.{camera}": rc.Key(camera, **given) for camera in CAMERAS}
        else:
            steps = range(1 - OBSERVED, 1)
            dtypes = {name: np.dtype(kind.dtype).name for name, kind in STREAMS.items() if name != "command"}
            keys = {
                f"observation.{name}": rc.Key(name, steps=steps, dtype=dtype, knowledge=knowledge)
                for name, dtype in dtypes.items()
            }
            keys["action"] = rc.Key("command", steps=range(ACTIONS))
        rate = RATE if self.size is None else CAMERA_RATE
        placed = {"device": device, "resident": self.resident if device == "cuda" else "auto"}
        return rc.Loader(
            self.path, batch_size=self.windows, rate=rate, keys=keys, seed=0, rank=0, world=1, **(placed | options)
        )

    def make(self, device: str, seed: int = 0) -> Inputs:
        loader = shared_loader(self, device)
        _, episode, anchor = loader.windows.at(loader.order.numbers(loader.order.start(seed)))
        return Inputs(loader, seed, *(torch.from_numpy(array.copy()).to(device) for array in (episode, anchor)))

    def ours(self, rc: ModuleType, inputs: Inputs) -> Call:
        numbers = itertools.count(inputs.number)
        return lambda: inputs.loader.batch(next(numbers))

    def peer_call(self, inputs: Inputs, function: Callable[..., Any] | None = None) -> Call:
        names = tuple(STREAMS) if self.size is None else CAMERAS
        data = everything(self.path, names, inputs.episode.device.type)
        chosen = function or self.peer
        return lambda: chosen(data, inputs.episode, inputs.anchor)

    def other_call(self, who: str, inputs: Inputs) -> Call:
        """As many bytes of frames as a batch has."""
        assert self.size is not None
        host = torch.empty(self._frame_bytes(), dtype=torch.uint8, pin_memory=inputs.anchor.is_cuda)
        device = torch.empty_like(host, device=inputs.anchor.device)
        return lambda: device.copy_(host, non_blocking=True)

    def _frame_bytes(self) -> int:
        assert self.size is not None
        return self.windows * len(CAMERAS) * self.size[0] * self.size[1] * 3

    def results(self, returned: Any) -> list[Tensor]:
        if isinstance(returned, dict):
            return [returned[name] for name in self._names() if name in returned]
        return list(returned) if isinstance(returned, (list, tuple)) else [returned]

    def _names(self) -> list[str]:
        if self.size is not None:
            return [f"observation.images.{camera}" for camera in CAMERAS]
        return [*(f"observation.{name}" for name in STREAMS if name != "command"), "action"]

    def compared(self, who: str, results: list[Any]) -> list[Any]:
        return [] if who == PINNED else results

    def truth(self, inputs: Inputs) -> list[Tensor]:
        """By the reference backend on the CPU, which the loader's tests compare with an oracle of their own."""
        batch = self.opened("cpu", backend="reference").batch(0)
        return [tensor.to(inputs.anchor.device) for tensor in self.results(batch)]

    def floor_bytes(self, inputs: Inputs) -> int:
        """Reads two samples for each step that is interpolated and one for each that is held or a frame, and writes the
        batch."""
        if self.size is not None:
            return self._frame_bytes() * 3
        total = 0
        for name, kind in STREAMS.items():
            steps = ACTIONS if name == "command" else OBSERVED
            moves = 2 if kind.method == "hold" else 3
            total += moves * steps * self.windows * kind.channels * np.dtype(kind.dtype).itemsize
        return total

    def waits(self, who: str) -> bool:
        return who == OURS

    def figures(self, who: str, inputs: Inputs) -> dict[str, float]:
        if who != OURS:
            return {}
        took = device_us(self.ours(importlib.import_module("robocache"), inputs))
        return {"cold_us": took} if self.resident else {"device_us": took}


@functools.cache
def shared_loader(case: LoaderCudaCase, device: str) -> Any:
    return case.opened(device)


def device_us(call: Call) -> float:
    """The time of a call's kernels and copies on the GPU."""
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiled:
        for _ in range(PROFILED):
            call()
        torch.cuda.synchronize()
    events = [event for event in profiled.events() if event.device_type == DeviceType.CUDA]
    return float(sum(event.self_device_time_total for event in events)) / PROFILED


WINDOWS = "256 windows of 16+50 steps, four streams"
FRAMES = "512 frames of 224x224, bf16"
LOADER_CUDA_CASES = (
    LoaderCudaCase(WINDOWS, 200, 30.0),
    LoaderCudaCase(f"{WINDOWS}, as_of", 200, 30.0, as_of=True),
    LoaderCudaCase(FRAMES, 60, 3.4, size=(224, 224)),
    LoaderCudaCase(f"{FRAMES}, from host memory", 60, 3.4, size=(224, 224), resident=False),
)
