"""Aligned episodes as safetensors files."""

from __future__ import annotations

import functools
import json
import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from robocache._cache.tier import TierSamples
from robocache._core import FileError
from robocache._export.aligned_episode import (
    AlignedEpisode,
    OutputNames,
    Unreadable,
    is_video,
    is_written,
    names_in,
    note,
    numbers,
    seen,
)
from robocache._export.lerobot import BYTES_AT_ONCE
from robocache._export.new_folder import new_folder, told
from robocache._recordings.source import Array

NAMES = {"float16": "F16", "float32": "F32", "float64": "F64", "bool": "BOOL", "bfloat16": "BF16"}


NAMES |= {f"int{n}": f"I{n}" for n in (8, 16, 32, 64)} | {f"uint{n}": f"U{n}" for n in (8, 16, 32, 64)}


SAFETENSORS = OutputNames(
    lambda name: name, lambda key: [f"{key}.valid", f"{key}.age", f"{key}.offsets"], ("times", "__metadata__")
)


class Packing:
    """Samples of varying length as one tensor. Each is read only when it is written."""

    def __init__(self, samples: Any, wanted: Array) -> None:
        self.samples, self.wanted = samples, wanted
        lengths = np.where(wanted >= 0, (samples.ends - samples.begins)[np.maximum(wanted, 0)], 0)
        self.offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
        self.dtype, self.shape = samples.rows.dtype, (int(self.offsets[-1]), *samples.rows.shape[1:])
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize

    def pieces(self) -> Iterator[Array]:
        for k in self.wanted.tolist():
            if k >= 0:
                yield self.samples.as_stored(k)


class Gathering:
    """A camera's frames as one tensor [T, H, W, C], black where there is none. Each is read only when it is written."""

    def __init__(self, samples: TierSamples, wanted: Array) -> None:
        self.samples, self.wanted = samples, wanted
        self.dtype, self.shape = samples.rows.dtype, (len(wanted), *samples.rows.shape[1:])
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize

    def pieces(self) -> Iterator[Array]:
        black = np.zeros(self.shape[1:], self.dtype)
        try:
            for k in self.wanted.tolist():
                yield self.samples[k] if k >= 0 else black
        except FileError as error:
            raise Unreadable(str(error)) from None


def to_safetensors(episodes: Iterator[AlignedEpisode], target: Path, rate: float, notes: list[str]) -> Iterator[int]:
    """Writes a file for each episode: times; for each stream values, .valid and .age; packed samples with .offsets."""
    with new_folder(target) as folder:
        for episode in episodes:
            tensors: dict[str, Array | Packing | Gathering] = {"times": episode.times}
            about: dict[str, Any] = {}
            for name, key in names_in(SAFETENSORS, episode.infos, notes).items():
                info = episode.infos[name]
                samples = episode.samples.get(name)
                if isinstance(samples, TierSamples):
                    tensors[key] = Gathering(samples, seen(episode, name))
                elif info.ragged:
                    packing = Packing(episode.samples[name], seen(episode, name))
                    tensors[key], tensors[f"{key}.offsets"] = packing, packing.offsets
                elif is_video(info):
                    wanted = seen(episode, name)
                    references = episode.samples[name].references
                    tensors[key] = np.where(wanted[:, None] >= 0, references[np.maximum(wanted, 0)], -1)
                    note(notes, f'stream "{name}" is exported as frame numbers: its pictures stay in the video')
                else:
                    tensors[key] = numbers(episode, name)
                tensors[f"{key}.valid"] = episode.valid[name]
                tensors[f"{key}.age"] = np.asarray(episode.aligned[name].age)
                about[key] = {"channels": info.channels, "type": info.type, **info.metadata}
                about[key] |= {"stream": name} if key != name else {}
            metadata = {
                "episode": episode.name,
                "task": episode.task,
                "rate_hz": f"{rate:g}",
                "streams": json.dumps(about),
            }
            path = folder / f"episode-{episode.number:06d}.safetensors"
            if is_written(path, episode, notes, functools.partial(save, path, tensors, metadata)):
                yield len(episode.times)


def save(path: Path, tensors: Mapping[str, Array | Packing | Gathering], metadata: Mapping[str, str]) -> None:
    """Writes a safetensors file: the size of the header, the header, and the data with wide types first."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    order = sorted(tensors, key=lambda name: -tensors[name].dtype.itemsize)
    offset = 0
    for name in order:
        array = tensors[name]
        header[name] = {
            "dtype": NAMES[str(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with told(path), path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for name in order:
            array = tensors[name]
            for piece in [array] if isinstance(array, np.ndarray) else array.pieces():
                data = np.ascontiguousarray(piece).reshape(-1).view(np.uint8)
                for first in range(0, len(data), BYTES_AT_ONCE):
                    file.write(data[first : first + BYTES_AT_ONCE])
