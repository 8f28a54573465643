"""What TsdfVolume computes, written a second time: from docs/semantics.md, in NumPy.

`exact` follows every rounding, and tests compare bytes. Without it all is float64, as a reader of the formula would
write it, and `sure` leaves out voxels so near to the edge of a pixel or of the truncation that float32 may decide
otherwise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from tsdf_cases import Problem
from voxel_oracle import fused_double, fused_single


@dataclass
class Result:
    values: np.ndarray
    weights: np.ndarray
    sure: np.ndarray  # bool [X, Y, Z]


@np.errstate(all="ignore")
def integrate(problem: Problem, exact: bool) -> Result:
    depth = problem.arrays["depth"]
    images = depth if depth.ndim == 3 else depth[None]
    compute = np.float32 if exact and depth.dtype != np.float64 else np.float64
    fused = (fused_single if compute is np.float32 else fused_double) if exact else rounded_twice
    origin, size, shape = (np.asarray(part) for part in problem.grid)
    centres = [
        fused(np.arange(shape[axis]).astype(compute) + compute(0.5), compute(size[axis]), compute(origin[axis]))
        for axis in range(3)
    ]
    if problem.start is None:
        values, weights = np.ones(shape, np.float32), np.zeros(shape, np.float32)
    else:
        values, weights = (np.array(part) for part in problem.start)
    kept = np.float32 if exact else np.float64
    values, weights = values.astype(kept), weights.astype(kept)
    sure = np.ones(shape, bool)
    truncation = compute(problem.truncation)
    for camera, image in enumerate(images):
        metres, reading = measured(problem, image, compute)
        rotation, shift = pose_of(problem, camera, compute)
        fx, fy, cx, cy = (compute(x) for x in lens_of(problem, camera))
        dx, dy, dz = (centre - shift[axis] for axis, centre in enumerate(centres))
        x, y, z = (
            fused(
                rotation[2, axis],
                dz[None, None, :],
                fused(rotation[1, axis], dy[None, :, None], (rotation[0, axis] * dx)[:, None, None]),
            )
            for axis in range(3)
        )
        if exact:
            inverse = compute(1) / z
            u, v = fused(fx * x, inverse, cx) + compute(0.5), fused(fy * y, inverse, cy) + compute(0.5)
        else:
            u, v = fx * x / z + cx + 0.5, fy * y / z + cy + 0.5
            for at in (u, v):
                sure &= (np.abs(at - np.rint(at)) > 1e-3) | ~np.isfinite(at)
            sure &= np.abs(z) > 1e-5
        height, width = image.shape
        seen = (z > 0) & (u >= 0) & (u < width) & (v >= 0) & (v < height)
        row, column = (np.floor(np.where(seen, at, 0)).astype(int) for at in (v, u))
        if image.size == 0:
            continue
        distance = metres[row, column] - z
        seen &= reading[row, column]
        told = seen & ~(distance < -truncation)
        if not exact:
            sure &= ~seen | (np.abs(distance + truncation) > 1e-5)
        part = np.minimum(distance / truncation, compute(1))
        wide = weights.astype(compute)
        mean = fused(wide, values.astype(compute), part) / (wide + compute(1))
        values = np.where(told, mean.astype(kept), values)
        weights = np.where(told, (wide + compute(1)).astype(kept), weights)
    return Result(values, weights, sure)


def rounded_twice(a, b, c):
    return a * b + c


def measured(problem: Problem, image: np.ndarray, compute) -> tuple[np.ndarray, np.ndarray]:
    options = problem.options
    raw = image.astype(compute)
    scale = options.get("depth_scale", 0.001 if image.dtype.kind == "u" else 1.0)
    z = raw * compute(scale)
    good = np.isfinite(z) & (z > 0)
    good &= (z >= compute(options.get("depth_min", 0.0))) & (z <= compute(options.get("depth_max", math.inf)))
    for value in options.get("invalid", (0,)):
        good &= raw != compute(value)
    return z, good


def pose_of(problem: Problem, camera: int, compute) -> tuple[np.ndarray, np.ndarray]:
    pose = problem.arrays.get("pose", np.eye(4))
    pose = (pose[camera] if pose.ndim == 3 else pose).astype(compute)
    return pose[:3, :3], pose[:3, 3]


def lens_of(problem: Problem, camera: int) -> np.ndarray:
    lens = problem.arrays["intrinsics"]
    if lens.shape[-2:] == (3, 3):
        lens = lens[camera] if lens.ndim == 3 else lens
        return np.array([lens[0, 0], lens[1, 1], lens[0, 2], lens[1, 2]])
    return lens[camera] if lens.ndim == 2 else lens


def surface_points(problem: Problem, values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """One voxel after the other."""
    origin, size, shape = problem.grid
    points = []
    for index in np.argwhere(weights > 0):
        a = float(values[tuple(index)])
        for axis in range(3):
            other = index.copy()
            other[axis] += 1
            if other[axis] == shape[axis] or not weights[tuple(other)] > 0:
                continue
            b = float(values[tuple(other)])
            if (a < 0) == (b < 0):
                continue
            at = index + 0.5
            at[axis] += a / (a - b)
            points.append([fused_double(at[k], size[k], origin[k]) for k in range(3)])
    return np.array(points, np.float64).reshape(-1, 3).astype(np.float32)
