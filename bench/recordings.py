"""What real sensors gave, in its order: the shared data, or the folder that ROBOCACHE_DATA names."""

from __future__ import annotations

import functools
import importlib
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bench.goals import Absent
from bench.records import ROOT


def find(folder: str, pattern: str) -> list[Path]:
    place = Path(os.environ.get("ROBOCACHE_DATA", ROOT.parent / "shared" / "data")) / folder
    if found := sorted(place.glob(pattern)):
        return found
    raise Absent(f"there is no {pattern} in {place}; ROBOCACHE_DATA names the folder that {folder} is in")


@functools.cache
def cloud(name: str) -> Tensor:
    """float32 [N, 3]: the points of a file that are finite."""
    (path,) = find("clouds", name)
    points = importlib.import_module("robocache").read_cloud(path).points.astype(np.float32)
    return torch.from_numpy(np.ascontiguousarray(points[np.isfinite(points).all(1)]))


@functools.cache
def frames() -> Tensor:
    """uint16 [20, 480, 640]"""
    rc = importlib.import_module("robocache")
    return torch.from_numpy(np.stack([rc.read_depth(path) for path in find("depth", "*.depth.png")]))
