"""Clouds and depth frames of real sensors, in the order that the sensors gave."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bench import data
from bench.goals import Absent


def find(folder: str, pattern: str) -> list[Path]:
    place = data.folder() / folder
    if found := sorted(place.glob(pattern)):
        return found
    raise Absent(f"there is no {pattern} in {place}; tools/fetch-data fetches it")


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
