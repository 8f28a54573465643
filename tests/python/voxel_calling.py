"""From a Problem of voxel_cases to a call, with any kind of array, and back to NumPy."""

from __future__ import annotations

import functools
from typing import Any

import calling
import numpy as np
import voxel_cases as cases

import robocache as rc

Outputs = list[np.ndarray]  # the values of each reduction, then dropped
FIRST = 2  # how many points of each voxel the sparse cases keep


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


def sparse(problem: cases.Problem, backend: str | None, convert=calling.keep, **changes: Any) -> Outputs:
    """Coordinates, the values of each reduction, counts, point_to_voxel, found, first and number, dropped."""
    voxels = call(problem, backend, convert, **{"layout": "sparse", "first": FIRST, **changes})
    values = voxels.values if isinstance(voxels.values, tuple) else (voxels.values,)
    kept = () if voxels.first is None else (voxels.first, voxels.number)
    rest = (voxels.counts, voxels.point_to_voxel, voxels.found, *kept, voxels.dropped.counts)
    return [calling.to_numpy(array) for array in (voxels.coordinates, *values, *rest)]


def downsample(problem: cases.Problem, backend: str | None, convert=calling.keep, **changes: Any) -> Outputs:
    """Points, features where there are some, counts, coordinates, dropped."""
    arrays = {name: convert(array) for name, array in problem.arrays.items()}
    origin, size, _ = problem.grid
    options = {**problem.options, "origin": origin, **changes}
    small = rc.voxel_downsample(arrays.pop("points"), size, backend=backend, **arrays, **options)
    features = () if small.features is None else (small.features,)
    parts = (small.points, *features, small.counts, small.coordinates, small.dropped.counts)
    return [calling.to_numpy(array) for array in parts]


def assert_same(actual: Outputs, expected: Outputs, what: str) -> None:
    assert len(actual) == len(expected), what
    for k, (mine, theirs) in enumerate(zip(actual, expected, strict=True)):
        calling.assert_same_bytes(mine, theirs, f"{what}: {'dropped' if k + 1 == len(actual) else f'array {k}'}")
