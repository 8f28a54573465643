"""Statistics from files: LeRobot's stats.json and saved normalisers, openpi's norm_stats.json."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from robocache._loader.keys import Key
from robocache._recordings.words import missing

FILES = ("norm_stats.json", "meta/stats.json", "stats.json", "stats.safetensors")
NORMALIZER = "*normalizer_processor.safetensors"  # in the folder of a policy that LeRobot saved
OPENPI = {"state": "observation.state", "actions": "action"}  # openpi's names, and the keys that they stand for
DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4"}
MOST_HEADER_BYTES = 100 << 20  # of a safetensors file

Statistics = dict[str, dict[str, Any]]


def read_stats(source: Any, what: str = "Loader: stats") -> Statistics:
    """Statistics by key: {"action": {"mean": [...], "std": [...], ...}}.

    Args:
        source: A dict by key, such as `dataset.meta.stats` or the result of `openpi.shared.normalize.load`, with or
            without "norm_stats" around it. Or a path: stats.json, norm_stats.json, a normaliser's .safetensors, or a
            folder that has one of them.
        what: The argument's name, for error sentences.
    """
    if isinstance(source, Mapping):
        found: Any = dict(source)
    elif isinstance(source, (str, Path)):
        path = file_of(Path(source), what)
        found = from_safetensors(path, what) if path.suffix == ".safetensors" else from_json(path, what)
    else:
        raise TypeError(f"{what} is {type(source).__name__}; expected a path, or a dict by key")
    if set(found) == {"norm_stats"}:
        found = found["norm_stats"]
    made: Statistics = {}
    for key, entry in found.items():
        if isinstance(entry, Mapping):
            made[str(key)] = dict(entry)
        elif hasattr(entry, "mean") and hasattr(entry, "std"):  # openpi's NormStats
            made[str(key)] = {n: getattr(entry, n, None) for n in ("mean", "std", "q01", "q99")}
        else:
            raise ValueError(f'{what}: "{key}" is {type(entry).__name__}; expected statistics, as {{"mean": [...]}}')
    return made


def file_of(path: Path, what: str) -> Path:
    if path.is_file():
        return path
    for name in FILES:
        if (path / name).is_file():
            return path / name
    saved = sorted(path.glob(NORMALIZER)) if path.is_dir() else []
    if saved:
        return saved[0]
    if path.is_dir():
        raise FileNotFoundError(f"{what}: {path} has none of {', '.join(FILES)}, {NORMALIZER}")
    raise FileNotFoundError(f"{what}: there is no file {path}")


def from_json(path: Path, what: str) -> Any:
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{what}: {path} is no JSON: {error}") from None
    if not isinstance(found, Mapping):
        raise ValueError(f"{what}: {path} has {type(found).__name__}; expected statistics by key")
    return found


def from_safetensors(path: Path, what: str) -> Statistics:
    """Tensors named "KEY.STATISTIC", as LeRobot saves its normalisers."""
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0] if len(content) >= 8 else MOST_HEADER_BYTES
    try:
        if length >= MOST_HEADER_BYTES:
            raise ValueError("its header is cut off")
        header = json.loads(content[8 : 8 + length])
        made: Statistics = {}
        for name, tensor in header.items():
            if name == "__metadata__":
                continue
            key, _, stat = name.rpartition(".")
            begin, end = (8 + length + int(at) for at in tensor["data_offsets"])
            values = np.frombuffer(content[begin:end], DTYPES[tensor["dtype"]]).reshape(tensor["shape"])
            made.setdefault(key, {})[stat] = values
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{what}: {path} holds no statistics of a normaliser: {error!r}") from None
    return made


def with_stats(table: Mapping[str, Key], source: Any) -> dict[str, Key]:
    """Gives these statistics to the keys that need some and have none of their own."""
    if source is None:
        return dict(table)
    found = read_stats(source)
    made = dict(table)
    for name, key in table.items():
        if key.stats is not None or key.normalize in ("identity", "imagenet"):
            continue
        theirs = name if name in found else next((old for old, new in OPENPI.items() if new == name), name)
        if theirs not in found:
            raise ValueError(missing("Loader: stats= has no statistics of key", name, found))
        made[name] = key.replace(stats=found[theirs])
    return made
