"""The case table of TsdfVolume, from a case to a call, and back to NumPy. Images are drawn as those of voxel_cases."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import calling
import numpy as np
import voxel_cases
from cases import Case, Random

import robocache as rc

Outputs = list[np.ndarray]  # values, weights, surface points
GRID = ((-1.5, -1.25, -0.5), (0.125, 0.25, 0.0625), (24, 10, 49))
TENTHS = ((-1.1, -1.3, -0.7), (0.1, 0.3, 0.07), (22, 9, 36))  # no number of float32


@dataclass
class Problem:
    grid: tuple[tuple[float, ...], tuple[float, ...], tuple[int, ...]]
    arrays: dict[str, np.ndarray]  # depth, intrinsics, pose
    truncation: float = 0.25
    options: dict[str, Any] = field(default_factory=dict)
    start: tuple[np.ndarray, np.ndarray] | None = None  # values and weights before the call


def make(
    random: Random,
    *,
    dtype: str = "uint16",
    camera: str = "four",
    batched: bool = False,
    size: tuple[int, int] = (7, 11),
    pose: str | None = "float64",
    grid=GRID,
    truncation: float = 0.25,
    started: bool = False,
    strides: str | None = None,
    **options: Any,
) -> Problem:
    images = voxel_cases.make_images(random, dtype=dtype, camera=camera, batched=batched, size=size, pose=True)
    if strides is not None:
        images = voxel_cases.strided(images, strides)
    arrays = {name: images.arrays[name] for name in ("depth", "intrinsics")}
    if pose is not None:  # each looks at the grid's middle from a metre away
        poses = images.arrays["pose"]
        origin, voxel_size, shape = (np.array(part, np.float64) for part in grid)
        poses[..., :3, 3] = origin + voxel_size * shape / 2 - poses[..., :3, 2]
        arrays["pose"] = poses.astype(pose)
    start = None
    if started:
        values = random.values(grid[2], "float32") / np.float32(8)
        start = (values, random.integers(0, 4, grid[2]).astype(np.float32))
    return Problem(grid, arrays, truncation, options, start)


def table() -> list[Case]:
    cases: list[Case] = []

    def add(name: str, make: Callable[..., Problem], **arguments: Any) -> None:
        cases.append(Case(name, lambda random: make(random, **arguments)))

    for dtype in ("uint16", "float16", "float32", "float64"):
        for camera in ("four", "matrix"):
            add(f"{dtype}/{camera}", make, dtype=dtype, camera=camera)
            add(f"{dtype}/{camera}_each", make, dtype=dtype, camera=f"{camera}_each", batched=True)
        add(f"{dtype}/tenths", make, dtype=dtype, grid=TENTHS, batched=True, truncation=0.1, pose="float32")
        add(f"{dtype}/started", make, dtype=dtype, started=True, truncation=0.7)
    add("no_pose", make, pose=None)
    add("limits", make, batched=True, depth_min=0.5, depth_max=2.0, depth_scale=0.0015, invalid=(0, 65535))
    add("invalid/none", make, invalid=(), depth_max=100.0)
    add("truncation/large", make, truncation=50.0, batched=True)
    add("truncation/small", make, truncation=1e-6, size=(48, 64))
    add("one_voxel", make, grid=((-0.5, -0.5, 0.25), (1.0, 1.0, 1.0), (1, 1, 1)), batched=True)
    add("flat", make, grid=((-1.0, -1.0, 0.5), (0.25, 0.25, 0.25), (8, 8, 1)), truncation=2.0, batched=True)
    add("pixels/0", make, size=(0, 5), batched=True)
    for how in ("fortran", "negative", "step"):
        add(f"strides/{how}", make, dtype="float32", batched=True, strides=how)
    return cases


CASES = table()
BY_NAME = {case.name: case for case in CASES}


@functools.cache
def problem_of(name: str) -> Problem:
    return BY_NAME[name].build()


# ---- calls


def volume_of(problem: Problem, convert=calling.keep) -> rc.TsdfVolume:
    tsdf = rc.TsdfVolume(rc.Grid(*problem.grid), problem.truncation, like=convert(np.zeros(1, np.float32)))
    if problem.start is not None:
        for array, start in zip((tsdf.values, tsdf.weights), problem.start, strict=True):
            array[...] = convert(start)
    return tsdf


def integrate(problem: Problem, backend: str | None, convert=calling.keep) -> rc.TsdfVolume:
    tsdf = volume_of(problem, convert)
    arrays = {name: convert(array) for name, array in problem.arrays.items()}
    tsdf.integrate(arrays["depth"], arrays["intrinsics"], arrays.get("pose"), backend=backend, **problem.options)
    return tsdf


def outputs(problem: Problem, backend: str | None, convert=calling.keep) -> Outputs:
    tsdf = integrate(problem, backend, convert)
    points = tsdf.surface_points(backend=backend)
    return [calling.to_numpy(array) for array in (tsdf.values, tsdf.weights, points)]


@functools.cache
def reference(name: str) -> Outputs:
    return outputs(problem_of(name), "reference")


def assert_same(actual: Outputs, expected: Outputs, what: str) -> None:
    for part, mine, theirs in zip(("values", "weights", "points"), actual, expected, strict=True):
        calling.assert_same_bytes(mine, theirs, f"{what}: {part}")
