"""What voxelize computes, written a second time: from docs/semantics.md, in NumPy and Python's integers.

Nothing here is shared with the C++ code, and nothing here is fast. The answer is exact: tests compare bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np


@dataclass
class Result:
    values: list[np.ndarray]
    dropped: np.ndarray  # int64 [C, 4]
    cells: list[tuple[int, np.ndarray]]  # of each cloud: its grid, and the flat cell of each point, -1: dropped


def fused_single(a, b, c) -> np.ndarray:
    """fma in float32. The product is exact in float64; the sum is rounded there to odd, and then once to float32."""
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    addend = np.asarray(c, np.float64)
    total = product + addend
    part = total - product
    error = (product - (total - part)) + (addend - part)
    inexact = np.isfinite(total) & (error != 0)
    bits = np.ascontiguousarray(total).view(np.int64)
    even = (bits & 1) == 0
    away = np.sign(error) * np.sign(total) < 0  # the exact sum is nearer to zero
    odd = np.where(inexact & even, np.where(away, bits - 1, bits + 1), bits)
    return odd.view(np.float64).astype(np.float32)


def fused_double(a, b, c) -> np.ndarray:
    def one(x: float, y: float, z: float) -> float:
        if not (math.isfinite(x) and math.isfinite(y) and math.isfinite(z)):
            return x * y + z
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        try:
            return float(exact)
        except OverflowError:
            return math.copysign(math.inf, exact)

    return np.vectorize(one, otypes=[np.float64])(a, b, c)


def rotation_and_shift(pose: np.ndarray, compute) -> tuple[np.ndarray, np.ndarray]:
    return pose[:3, :3].astype(compute), pose[:3, 3].astype(compute)


def transformed(points: np.ndarray, pose: np.ndarray) -> np.ndarray:
    compute = points.dtype.type
    fused = fused_single if compute is np.float32 else fused_double
    rotation, shift = rotation_and_shift(pose, compute)
    out = np.empty_like(points)
    for axis in range(3):
        inner = fused(rotation[axis, 2], points[:, 2], shift[axis])
        inner = fused(rotation[axis, 1], points[:, 1], inner)
        out[:, axis] = fused(rotation[axis, 0], points[:, 0], inner)
    return out


@np.errstate(all="ignore")
def unprojected(problem, cloud: int) -> tuple[np.ndarray, np.ndarray]:
    """Points [H * W, 3], and which pixels have a reading."""
    arrays, options = problem.arrays, problem.options
    depth = arrays["depth"]
    raw = depth[cloud] if depth.ndim == 3 else depth
    compute = np.float64 if raw.dtype == np.float64 else np.float32
    reading = raw.astype(compute)
    default = 0.001 if raw.dtype.kind == "u" else 1.0
    z = reading * compute(options.get("depth_scale", default))
    good = np.isfinite(z) & (z > 0)
    good &= z >= compute(options.get("depth_min", 0.0))
    good &= z <= compute(options.get("depth_max", math.inf))
    for value in options.get("invalid", (0,)):
        good &= reading != compute(value)
    height, width = raw.shape
    if "rays" in arrays:
        rays = arrays["rays"]
        rays = (rays[cloud] if rays.ndim == 4 else rays).astype(compute)
        x, y = rays[..., 0] * z, rays[..., 1] * z
    else:
        camera = arrays["intrinsics"]
        if camera.shape[-2:] == (3, 3):
            camera = camera[cloud] if camera.ndim == 3 else camera
            fx, fy, cx, cy = camera[0, 0], camera[1, 1], camera[0, 2], camera[1, 2]
        else:
            fx, fy, cx, cy = camera[cloud] if camera.ndim == 2 else camera
        u = np.arange(width, dtype=compute)[None, :]
        v = np.arange(height, dtype=compute)[:, None]
        x = ((u - compute(cx)) * z) / compute(fx)
        y = ((v - compute(cy)) * z) / compute(fy)
    return np.stack([x, y, z], axis=-1).reshape(-1, 3), good.reshape(-1)


def cloud_points(problem, cloud: int) -> tuple[np.ndarray, np.ndarray, slice]:
    """Points, which of them have a reading, and where they lie among the points of the cloud (or of all, packed)."""
    arrays = problem.arrays
    if problem.operation == "voxelize_depth":
        points, good = unprojected(problem, cloud)
        return points, good, slice(0, len(points))
    points = arrays["points"]
    if "offsets" in arrays:
        part = slice(int(arrays["offsets"][cloud]), int(arrays["offsets"][cloud + 1]))
    else:
        points = points[cloud] if points.ndim == 3 else points
        part = slice(0, int(arrays["lengths"][cloud]) if "lengths" in arrays else len(points))
    compute = np.float64 if points.dtype == np.float64 else np.float32
    points = points[part, :3].astype(compute)
    return points, np.ones(len(points), bool), part


def cloud_features(problem, cloud: int, part: slice) -> np.ndarray | None:
    features = problem.arrays.get("features")
    if features is None:
        return None
    if problem.operation == "voxelize_depth":
        image = features[cloud] if features.ndim == 4 else features
        return image.reshape(-1, image.shape[-1])
    return (features[cloud] if features.ndim == 3 else features)[part]


def number_of_clouds(problem) -> int | None:
    """C, or None without a batch."""
    arrays = problem.arrays
    if "offsets" in arrays:
        return len(arrays["offsets"]) - 1
    main = arrays["depth" if problem.operation == "voxelize_depth" else "points"]
    return len(main) if main.ndim == 3 else None


def inside(points: np.ndarray, box) -> np.ndarray:
    compute = points.dtype.type
    with np.errstate(over="ignore"):
        low, high = (np.asarray(corner, np.float64).astype(compute) for corner in box)
    return np.all((points >= low) & (points < high), axis=1)


def brought(problem, cloud: int) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """The points in the grid's frame, how many voxels each is from the origin, and what it has passed so far."""
    options, arrays = problem.options, problem.arrays
    origin, size, _ = problem.grid
    with np.errstate(all="ignore"):
        points, reading, _ = cloud_points(problem, cloud)
        finite = np.all(np.isfinite(points), axis=1)
        kept = np.ones(len(points), bool)
        crop, frame = options.get("crop"), options.get("crop_frame", "grid")
        if crop is not None and frame == "sensor":
            kept &= inside(points, crop)
        if "pose" in arrays:
            pose = arrays["pose"]
            points = transformed(points, pose[cloud] if pose.ndim == 3 else pose)
            finite &= np.all(np.isfinite(points), axis=1)
        if crop is not None and frame == "grid":
            kept &= inside(points, crop)
        compute = points.dtype.type
        steps = np.floor((points - np.asarray(origin).astype(compute)) / np.asarray(size).astype(compute))
    return points, steps, [reading, finite, kept]


def dropped_at(stages: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Which points pass all, and how many each stage is the first to drop."""
    alive = np.ones(len(stages[0]), bool)
    counts = []
    for stage in stages:
        counts.append(int(np.sum(alive & ~stage)))
        alive &= stage
    return alive, np.array(counts, np.int64)


def located(problem, cloud: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The flat cell of each point, -1 where it is dropped, the four counts, and the points in the grid's frame."""
    shape = problem.grid[2]
    points, steps, stages = brought(problem, cloud)
    with np.errstate(invalid="ignore"):
        within = np.all((steps >= 0) & (steps < 2.0**62), axis=1)
        index = np.where(within[:, None], steps, 0).astype(np.int64)
    within &= np.all(index < np.asarray(shape), axis=1)
    flat = (index[:, 0] * shape[1] + index[:, 1]) * shape[2] + index[:, 2]
    alive, counts = dropped_at([*stages, within])
    return np.where(alive, flat, -1), counts, points


def scale_exponent(features: np.ndarray, points: int) -> int:
    """s of one channel: from the largest finite magnitude that reached the grid, and the points given to it."""
    magnitudes = np.abs(features[np.isfinite(features)])
    largest = float(magnitudes.max()) if len(magnitudes) else 0.0
    if largest == 0.0:
        return 0
    ilogb = math.frexp(largest)[1] - 1
    return 61 - ilogb - points.bit_length()


def scale_exponent_of_doubles(values: np.ndarray, points: int) -> int:
    """s of one axis of float64 points: from the upper half of the largest magnitude, and at most 1000."""
    largest = int(np.abs(values).view(np.int64).max()) >> 32 if len(values) else 0
    if largest == 0:
        return 0
    return min(1000, 61 - ((largest >> 20) - 1023) - points.bit_length())


def summed(values: np.ndarray, exponent: int, divisor: int, result=np.float32):
    if np.isnan(values).any() or (np.isposinf(values).any() and np.isneginf(values).any()):
        return result(np.nan)
    if np.isinf(values).any():
        return result(values[np.isinf(values)][0])
    total = sum(round(Fraction(float(value)) * Fraction(2) ** exponent) for value in values)
    with np.errstate(over="ignore"):
        return result(math.ldexp(float(total), -exponent) / divisor)


def extreme(values: np.ndarray, greatest: bool):
    wide = values.astype(np.float64)
    if np.isnan(wide).any():
        return np.array(np.nan).astype(values.dtype)
    keys = [(x, math.copysign(1, x) if x == 0 else 0) for x in wide.tolist()]
    return values[keys.index(max(keys) if greatest else min(keys))]


def voxelize(problem) -> Result:
    _, _, shape = problem.grid
    cells = math.prod(shape)
    clouds = number_of_clouds(problem)
    batched, clouds = clouds is not None, 1 if clouds is None else clouds
    into = problem.arrays.get("into")
    grids = clouds if into is None else problem.options.get("grids", int(into.max()) + 1 if len(into) else 0)
    reductions = problem.options.get("reduce", "count")
    reductions = (reductions,) if isinstance(reductions, str) else reductions
    empty = problem.options.get("empty", 0)
    features = problem.arrays.get("features")
    channels = None if features is None else features.shape[-1]

    dropped = np.zeros((clouds, 4), np.int64)
    places: list[tuple[int, np.ndarray]] = []
    members: dict[int, list[tuple[int, np.ndarray | None]]] = {}  # key: the points there, in order
    given = [0] * grids
    reached: list[list[np.ndarray]] = [[] for _ in range(grids)]
    for cloud in range(clouds):
        grid = cloud if into is None else int(into[cloud])
        flat, dropped[cloud], _ = located(problem, cloud)
        places.append((grid, flat))
        given[grid] += len(flat)
        rows = cloud_features(problem, cloud, cloud_points(problem, cloud)[2])
        for k in np.flatnonzero(flat >= 0):
            row = None if rows is None else rows[k]
            members.setdefault(grid * cells + int(flat[k]), []).append((int(k), row))
            if row is not None:
                reached[grid].append(row)
    exponents: list[list[int]] = []
    if channels is not None:
        for grid in range(grids):
            table = np.array(reached[grid], features.dtype).reshape(len(reached[grid]), channels)
            with np.errstate(invalid="ignore"):
                wide = table.astype(np.float64)
            exponents.append([scale_exponent(wide[:, c], given[grid]) for c in range(channels)])

    values = []
    for position, reduction in enumerate(reductions):
        tail = () if reduction in ("count", "occupancy") else (channels,)
        dtype = {"count": np.int32, "occupancy": np.uint8, "sum": np.float32, "mean": np.float32}.get(reduction)
        dtype = features.dtype if dtype is None else np.dtype(dtype)
        out = np.zeros((grids * cells, *tail), dtype)
        out[...] = np.array(empty, np.float64).astype(dtype)
        started = problem.start is not None
        if started:
            start = problem.start[position]
            if reduction == "occupancy" and problem.options.get("packed"):
                start = np.unpackbits(start, axis=-1, bitorder="little")[..., : shape[2]]
            out[...] = start.reshape(out.shape)
        for key, points in members.items():
            if reduction == "count":
                out[key] = len(points) + (out[key] if started else 0)
            elif reduction == "occupancy":
                out[key] = 1
            else:
                for c in range(channels):
                    column = np.array([row[c] for _, row in points], dtype=features.dtype)
                    with np.errstate(invalid="ignore"):
                        wide = column.astype(np.float64)
                    if reduction == "sum":
                        out[key, c] = summed(wide, exponents[key // cells][c], 1)
                    elif reduction == "mean":
                        out[key, c] = summed(wide, exponents[key // cells][c], len(points))
                    else:
                        if started:
                            column = np.concatenate([out[key, c : c + 1], column])
                        out[key, c] = extreme(column, reduction == "max")
        out = out.reshape((*((grids,) if batched else ()), *shape, *tail))
        if reduction == "occupancy" and problem.options.get("packed"):
            out = np.packbits(out, axis=-1, bitorder="little")
        values.append(out)
    return Result(values, dropped if batched else dropped[0], places)


@dataclass
class SparseResult:
    coordinates: np.ndarray
    values: list[np.ndarray]
    counts: np.ndarray
    point_to_voxel: np.ndarray
    found: np.ndarray
    first: np.ndarray
    number: np.ndarray
    dropped: np.ndarray

    def arrays(self) -> list[np.ndarray]:
        rest = (self.counts, self.point_to_voxel, self.found, self.first, self.number, self.dropped)
        return [self.coordinates, *self.values, *rest]


def sparse(problem, first: int, max_voxels: int | None = None) -> SparseResult:
    """The rows of the dense result that have points, and who they are."""
    dense = voxelize(problem)
    shape = problem.grid[2]
    cells = math.prod(shape)
    members: dict[int, list[tuple[int, int]]] = {}  # key: cloud and number of each point there, in order
    for cloud, (grid, flat) in enumerate(dense.cells):
        for k in np.flatnonzero(flat >= 0):
            members.setdefault(grid * cells + int(flat[k]), []).append((cloud, int(k)))
    keys = sorted(members)
    kept = keys if max_voxels is None else keys[:max_voxels]
    rows = len(kept) if max_voxels is None else max_voxels

    def filled(tail, dtype, rest) -> np.ndarray:
        out = np.empty((rows, *tail), dtype)
        out[...] = np.array(rest, np.float64).astype(dtype)
        return out

    coordinates = filled((4,), np.int64, -1)
    for row, key in enumerate(kept):
        coordinates[row] = (key // cells, *np.unravel_index(key % cells, shape))
    values = []
    for value in dense.values:
        tail = value.shape[value.ndim - 1 :] if value.ndim > (4 if is_batched(problem) else 3) else ()
        out = filled(tail, value.dtype, problem.options.get("empty", 0))
        flat_value = value.reshape(math.prod(value.shape[: value.ndim - len(tail)]), *tail)
        for row, key in enumerate(kept):
            out[row] = flat_value[key]
        values.append(out)
    main = problem.arrays["depth" if problem.operation == "voxelize_depth" else "points"]
    lead = main.shape if problem.operation == "voxelize_depth" else main.shape[:-1]
    point_to_voxel = np.full(math.prod(lead), -1, np.int64)
    each = math.prod(lead[1:]) if is_batched(problem) else 0
    features = problem.arrays.get("features")
    channels = 0 if features is None else features.shape[-1]
    compute = np.float64 if main.dtype == np.float64 else np.float32
    points = filled((first, 3 + channels), compute, 0)
    for row, key in enumerate(kept):
        for rank, (cloud, k) in enumerate(members[key]):
            part = cloud_points(problem, cloud)[2]
            start = part.start if "offsets" in problem.arrays else cloud * each
            point_to_voxel[start + k] = row
            if rank < first:
                points[row, rank, :3] = located(problem, cloud)[2][k]
                if features is not None:
                    theirs = cloud_features(problem, cloud, part)[k].astype(compute)
                    points[row, rank, 3:] = np.where(np.isnan(theirs), np.nan, theirs)
    counts = np.array([len(members[key]) for key in kept] + [0] * (rows - len(kept)), np.int32)
    found = np.array([len(kept), len(keys) - len(kept)], np.int64)
    number = np.minimum(counts, first).astype(np.int32)
    return SparseResult(coordinates, values, counts, point_to_voxel.reshape(lead), found, points, number, dense.dropped)


def is_batched(problem) -> bool:
    return number_of_clouds(problem) is not None


def downsample(problem) -> list[np.ndarray]:
    """Of voxel_downsample: points, features where there are some, counts, coordinates, dropped."""
    clouds = number_of_clouds(problem)
    main, features = problem.arrays["points"], problem.arrays.get("features")
    compute = np.float64 if main.dtype == np.float64 else np.float32
    channels = 0 if features is None else features.shape[-1]
    dropped, means, mean_features, counts, coordinates = [], [], [], [], []
    for cloud in range(1 if clouds is None else clouds):
        points, steps, stages = brought(problem, cloud)
        with np.errstate(invalid="ignore"):
            within = np.all((steps >= -(2.0**62)) & (steps < 2.0**62), axis=1)
        alive, reasons = dropped_at([*stages, within])
        dropped.append(reasons)
        given = len(points)
        points, steps = points[alive], steps[alive]
        rule = scale_exponent_of_doubles if compute is np.float64 else scale_exponent
        exponents = [rule(points[:, axis], given) for axis in range(3)]
        rows = np.zeros((len(points), 0))
        if features is not None:
            with np.errstate(invalid="ignore"):
                part = cloud_features(problem, cloud, cloud_points(problem, cloud)[2])
                rows = part[alive].astype(np.float64)
        feature_exponents = [scale_exponent(rows[:, c], given) for c in range(channels)]
        members: dict[tuple[int, ...], list[int]] = {}
        for k, step in enumerate(steps.tolist()):
            members.setdefault(tuple(int(x) for x in step), []).append(k)
        for cell in sorted(members):
            own = members[cell]
            coordinates.append((cloud, *cell))
            counts.append(len(own))
            means.append([summed(points[own, axis], exponents[axis], len(own), compute) for axis in range(3)])
            mean_features.append([summed(rows[own, c], feature_exponents[c], len(own)) for c in range(channels)])
    made = len(counts)
    parts = [np.array(means, compute).reshape(made, 3)]
    if features is not None:
        parts.append(np.array(mean_features, np.float32).reshape(made, channels))
    all_dropped = np.array(dropped, np.int64).reshape(-1, 4)
    return [
        *parts,
        np.array(counts, np.int32),
        np.array(coordinates, np.int64).reshape(made, 4),
        all_dropped if clouds is not None else all_dropped[0],
    ]
