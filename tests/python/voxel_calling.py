"""From a Problem of voxel_cases to a call, with any kind of array, and back to NumPy."""

from __future__ import annotations

import functools
from typing import Any

import calling
import numpy as np
import voxel_cases as cases

import robocache as rc

Outputs = list[np.ndarray]  # the values of each reduction, then dropped


def grid_of(problem: cases.Problem) -> rc.Grid:
    return rc.Grid(*problem.grid)


def call(problem: cases.Problem, backend: str | None, convert=calling.keep, **changes: Any) -> rc.Voxels:
    arrays = {name: convert(array) for name, array in problem.arrays.items()}
    options = {**problem.options, **changes}
    if problem.start is not None:
        out = tuple(convert(np.array(array)) for array in problem.start)
        options["out"] = out if not isinstance(options.get("reduce", "count"), str) else out[0]
    if problem.operation == "voxelize":
        return rc.voxelize(arrays.pop("points"), grid_of(problem), backend=backend, **arrays, **options)
    depth, intrinsics = arrays.pop("depth"), arrays.pop("intrinsics", None)
    return rc.voxelize_depth(depth, intrinsics, grid_of(problem), backend=backend, **arrays, **options)


def voxelize(problem: cases.Problem, backend: str | None, convert=calling.keep, **changes: Any) -> Outputs:
    voxels = call(problem, backend, convert, **changes)
    values = voxels.values if isinstance(voxels.values, tuple) else (voxels.values,)
    return [calling.to_numpy(array) for array in (*values, voxels.dropped.counts)]


@functools.cache
def reference(name: str) -> Outputs:
    return voxelize(cases.problem_of(name), "reference")


def assert_same(actual: Outputs, expected: Outputs, what: str) -> None:
    assert len(actual) == len(expected), what
    for k, (mine, theirs) in enumerate(zip(actual, expected, strict=True)):
        calling.assert_same_bytes(mine, theirs, f"{what}: {'dropped' if k + 1 == len(actual) else f'values {k}'}")
