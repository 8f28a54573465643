"""Clouds and depth images into grids: voxelize, voxelize_depth, voxel_downsample, and the rays of a camera whose lens
distorts.

Nothing of a call is computed here. The engine (robocache._core) serves arrays that have memory; robocache._torch_voxels
serves what it hands back with NotImplemented (gradients, tensors without memory, other devices), and everything while
torch.compile traces. Lists, and NumPy arrays beside tensors of another library, become small arrays of that library.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from robocache import _align, _core
from robocache._align import _shape
from robocache._arrays import beside

Array = TypeVar("Array")
Three = tuple[float, float, float]


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Grid:
    """A box of voxels: cell (i, j, k) begins at origin + voxel_size * (i, j, k). At most 2^62 cells.

        rc.Grid(origin=(-3, -3, 0), voxel_size=0.05, shape=(120, 120, 40))
        rc.Grid.from_bounds(low=(-3, -3, 0), high=(3, 3, 2), voxel_size=(0.05, 0.05, 0.1))

    origin       its lowest corner.
    voxel_size   one number, or three: of x, y and z.
    shape        cells along x, y and z.
    """

    origin: Three
    voxel_size: Three
    shape: tuple[int, int, int]

    def __init__(self, origin: Sequence[float], voxel_size: float | Sequence[float], shape: Sequence[int]) -> None:
        self._set(_core.make_grid(origin, voxel_size, shape))

    @staticmethod
    def from_bounds(low: Sequence[float], high: Sequence[float], voxel_size: float | Sequence[float]) -> Grid:
        """The smallest grid of that voxel size that begins at `low` and reaches `high`, which may itself be outside."""
        grid = Grid.__new__(Grid)
        grid._set(_core.grid_from_bounds(low, high, voxel_size))
        return grid

    def _set(self, fields: tuple[Three, Three, tuple[int, int, int]]) -> None:
        for name, value in zip(("origin", "voxel_size", "shape"), fields, strict=True):
            object.__setattr__(self, name, value)

    @property
    def low(self) -> Three:
        return self.origin

    @property
    def high(self) -> Three:
        x, y, z = (o + size * n for o, size, n in zip(self.origin, self.voxel_size, self.shape, strict=True))
        return x, y, z

    def __repr__(self) -> str:
        size = self.voxel_size[0] if len(set(self.voxel_size)) == 1 else self.voxel_size
        return f"Grid(origin={self.origin}, voxel_size={size}, shape={self.shape})"


class Dropped:
    """How many points of each cloud reached no cell, and why: the first of these that holds.

    no_reading   depth: zero, negative, not finite, `invalid`, or outside depth_min .. depth_max
    not_finite   a coordinate is NaN or infinite, also after the pose
    cropped      outside the crop
    outside      outside the grid

    Each is int64 [C], or a single number where there is no batch. `counts` has them side by side, [C, 4] or [4].
    """

    __slots__ = ("counts",)

    counts: Any

    def __init__(self, counts: Any) -> None:
        self.counts = counts

    @property
    def no_reading(self) -> Any:
        return self.counts[..., 0]

    @property
    def not_finite(self) -> Any:
        return self.counts[..., 1]

    @property
    def cropped(self) -> Any:
        return self.counts[..., 2]

    @property
    def outside(self) -> Any:
        return self.counts[..., 3]

    def __repr__(self) -> str:
        names = ("no_reading", "not_finite", "cropped", "outside")
        if not isinstance(self.counts, np.ndarray):  # to read others may take waiting for a GPU
            return f"Dropped({_shape(self.counts)}: {', '.join(names)})"
        totals = self.counts.reshape(-1, 4).sum(0).tolist()
        return f"Dropped({', '.join(f'{name}={total}' for name, total in zip(names, totals, strict=True))})"


class Voxels(NamedTuple, Generic[Array]):
    """Grids, and what did not reach them. Unpacks: values, dropped = rc.voxelize(points, grid)."""

    values: Array  # [G, X, Y, Z], features [..., F]; no G where there is no batch; a tuple where `reduce` is one
    dropped: Dropped

    def __repr__(self) -> str:
        values = self.values if isinstance(self.values, tuple) else (self.values,)
        return f"Voxels(values {', '.join(_shape(array) for array in values)}, {self.dropped!r})"


class SparseVoxels(NamedTuple, Generic[Array]):
    """The voxels that have points, in the order of grid, x, y, z: a row for each.

    coordinates     int64 [M, 4]: grid, x, y, z. -1 in rows without a voxel, which only max_voxels makes
    values          [M], features [M, F]; a tuple where `reduce` is one
    counts          int32 [M]: how many points
    point_to_voxel  int64, as points or pixels are shaped: the row of each; -1 where it has none
    dropped         Dropped
    found           int64 [2]: rows that hold voxels, and voxels that got no row; `overflow` is the latter
    first           [M, k, 3 + F] where first=k was asked for: the first k points of each voxel in the order of the
                    points, as grid-frame x, y, z and then features; 0 behind the last
    number          int32 [M]: how many of these k there are
    """

    coordinates: Array  # int64 [M, 4]: grid, x, y, z
    values: Array  # [M], features [M, F]; a tuple where `reduce` is one
    counts: Array  # int32 [M]: points
    point_to_voxel: Array  # int64, as points or pixels are shaped: the row of each; -1: dropped
    dropped: Dropped
    found: Array  # int64 [2]: rows that hold voxels, and voxels that got no row, because of max_voxels
    first: Array | None  # [M, first, 3 + F]: the first points of each voxel, in the grid's frame, and their features
    number: Array | None  # int32 [M]: how many of these there are

    @property
    def overflow(self) -> Any:
        """Voxels that have points and no row, because of max_voxels."""
        return self.found[1]  # type: ignore[index]

    def __repr__(self) -> str:
        values = self.values if isinstance(self.values, tuple) else (self.values,)
        first = "" if self.first is None else f", first {_shape(self.first)}"
        shapes = ", ".join(_shape(array) for array in values)
        return f"SparseVoxels(coordinates {_shape(self.coordinates)}, values {shapes}{first}, {self.dropped!r})"


class Downsampled(NamedTuple, Generic[Array]):
    """One point for each voxel that has some, in the order of cloud, x, y, z.

    points       [M, 3]: the mean of its points, after the pose; float32, or float64 where the points are
    features     float32 [M, F]: the mean of their features; None where none were given
    counts       int32 [M]: how many points
    coordinates  int64 [M, 4]: the cloud, and the voxel's number along x, y and z from the origin
    dropped      Dropped
    """

    points: Array  # [M, 3]: their mean; float32, or float64 where the points are
    features: Array | None  # float32 [M, F]: their mean
    counts: Array  # int32 [M]: how many
    coordinates: Array  # int64 [M, 4]: cloud, and the voxel's number along x, y and z from the origin
    dropped: Dropped

    def __repr__(self) -> str:
        features = "" if self.features is None else f", features {_shape(self.features)}"
        return f"Downsampled(points {_shape(self.points)}{features}, {self.dropped!r})"


def voxelize(
    points: Array,
    grid: Grid,
    *,
    features: Array | None = None,
    reduce: str | Sequence[str] = "count",
    packed: bool = False,
    empty: float = 0,
    lengths: Any = None,
    offsets: Any = None,
    into: Any = None,
    grids: int | None = None,
    pose: Any = None,
    crop: Any = None,
    crop_frame: str = "grid",
    layout: str | None = None,
    first: int | None = None,
    max_voxels: int | None = None,
    out: Any = None,
    accumulate: bool = False,
    check: bool = True,
    backend: str | None = None,
) -> Any:
    """Point clouds into grids, in one pass: Voxels, or SparseVoxels.

        rc.voxelize(points, grid).values                                   # [N, 3] -> int32 [X, Y, Z]
        rc.voxelize(points, grid, features=rgb, reduce="mean")             # [N, 3] -> float32 [X, Y, Z, 3]
        rc.voxelize(points, grid, offsets=[0, 900, 2000], pose=poses)      # two clouds -> [2, X, Y, Z]
        rc.voxelize(points, grid, into=[0, 0, 1])                          # [3, N, 3]: three clouds into two grids
        rc.voxelize(points, grid, features=f, reduce="mean", layout="sparse")   # coordinates [M, 4], values [M, F], ...
        rc.voxelize(points, grid, first=32, max_voxels=20000)              # the first 32 points of each voxel

    points    [N, 3 or more] (further columns are not read), batched [C, N, ...], or packed [N, ...] with `offsets`:
              float16, float32 or float64, any strides. A point's cell is floor((p - origin) / voxel_size).
    features  [..., F] beside points: float16, bfloat16, float32 or uint8.
    reduce    "count" (int32), "occupancy" (uint8), and of features "sum", "mean" (float32), "max", "min" (their dtype).
              A tuple gives a tuple of values, from one pass.
    packed    occupancy as bits: cell z is bit z % 8 of byte z // 8, [..., (Z + 7) // 8].
    empty     what a cell without points holds.
    lengths   [C]: how many of the N points of a padded cloud are real.
    offsets   [C + 1]: cloud c is packed at offsets[c] .. offsets[c + 1].
    into      [C]: the grid that each cloud adds to; default: its own.
    grids     how many there are; needed where `into` is on a GPU. Default: as many as `out` has, or max(into) + 1.
    pose      [4, 4] or [C, 4, 4]: sensor to grid, rigid.
    crop      (low, high): points outside that box are dropped, in the "grid" or "sensor" frame (`crop_frame`).
    layout    "dense" or "sparse", which has a row for each voxel that has points; default: dense, sparse with `first`.
    first     sparse: how many points of each voxel are kept as they are, in the order of the points.
    max_voxels  sparse: how many rows the result has, whatever the data; of more voxels the first in the order of
              grid, x, y, z are kept. Without it a GPU must be waited for: only it knows how many there are.
    out       an array, or a tuple of them, to write into: contiguous, and what would be returned. Not for JAX.
    accumulate  add to what `out` holds: count, occupancy, max and min. Its cells count as they are: where a max is
              streamed, the first call takes empty=-inf.
    check     False leaves out what only the data can tell: that lengths, offsets and into fit, that poses are rigid.
    backend   "reference", "cpu", "cuda" or "torch"; default: by the device of the arrays.

    The result has the same bits on every backend, on every run, and but for `first` for any order of the points.
    lengths, offsets, into and pose may be lists, or NumPy arrays beside tensors of another library. Gradients flow to
    features, through sum, mean, max and min. CUDA calls do not wait, but for sparse results without max_voxels, and to
    bring lists and NumPy arrays to the GPU, which keeps both out of CUDA graphs. What their checks find is raised by
    the next call or `rc.synchronize()`.
    """
    if into is not None:
        grids = grids if out is not None else _grids(into, grids)
        into = beside(points, into)
    if lengths is not None:
        lengths = beside(points, lengths)
    if offsets is not None:
        offsets = beside(points, offsets)
    if pose is not None:
        pose = beside(points, pose, np.float64)
    if not _align._compiling():
        made = _core.voxelize(
            points,
            grid,
            features,
            reduce,
            packed,
            empty,
            lengths,
            offsets,
            into,
            grids,
            pose,
            crop,
            crop_frame,
            layout,
            first,
            max_voxels,
            out,
            accumulate,
            check,
            backend,
        )
        if made is not NotImplemented:
            return _result(made)
    arrays = {
        "points": points,
        "features": features,
        "lengths": lengths,
        "offsets": offsets,
        "into": into,
        "pose": pose,
    }
    options = {
        "packed": packed,
        "empty": empty,
        "grids": grids,
        "crop": crop,
        "crop_frame": crop_frame,
        "check": check,
        "backend": backend,
    }
    return _in_torch("voxelize", arrays, grid, reduce, options, (layout, first, max_voxels), out, accumulate)


def voxelize_depth(
    depth: Array,
    intrinsics: Any,
    grid: Grid,
    *,
    rays: Any = None,
    features: Array | None = None,
    reduce: str | Sequence[str] = "count",
    packed: bool = False,
    empty: float = 0,
    depth_scale: float | None = None,
    depth_min: float = 0,
    depth_max: float = math.inf,
    invalid: Sequence[float] = (0,),
    into: Any = None,
    grids: int | None = None,
    pose: Any = None,
    crop: Any = None,
    crop_frame: str = "grid",
    layout: str | None = None,
    first: int | None = None,
    max_voxels: int | None = None,
    out: Any = None,
    accumulate: bool = False,
    check: bool = True,
    backend: str | None = None,
) -> Any:
    """Depth images into grids, in one pass: no cloud is written. Voxels, or SparseVoxels.

        rc.voxelize_depth(depth, (fx, fy, cx, cy), grid, pose=camera_to_grid).values     # [H, W] -> [X, Y, Z]
        rc.voxelize_depth(depth, K, grid, pose=poses, features=rgb, reduce="mean", into=[0, 0, 1, 1])  # 4 cameras

    depth       [H, W] or [C, H, W]: uint16, float16, float32 or float64. z forward, x right, y down, as OpenCV has it.
    intrinsics  (fx, fy, cx, cy) or 3x3, one or [C, ...]; pixel centres are at integers. None where `rays` are given.
    rays        [H, W, 2] or [C, H, W, 2]: x / z and y / z of each pixel, for lenses that distort (`camera_rays`).
    features    [..., F] beside pixels.
    depth_scale   metres of one unit; default: 0.001 for uint16, 1 for floats (0.001 where they are millimetres).
    depth_min, depth_max   metres, both inclusive.
    invalid     readings, before the scale, that mean none (65535 for some cameras); at most 8.
    The rest is as in `voxelize`.
    """
    if into is not None:
        grids = grids if out is not None else _grids(into, grids)
        into = beside(depth, into)
    if pose is not None:
        pose = beside(depth, pose, np.float64)
    if intrinsics is not None:
        intrinsics = beside(depth, intrinsics, np.float64)
    if rays is not None:
        rays = beside(depth, rays)
    if not _align._compiling():
        made = _core.voxelize_depth(
            depth,
            intrinsics,
            rays,
            grid,
            features,
            reduce,
            packed,
            empty,
            depth_scale,
            depth_min,
            depth_max,
            invalid,
            into,
            grids,
            pose,
            crop,
            crop_frame,
            layout,
            first,
            max_voxels,
            out,
            accumulate,
            check,
            backend,
        )
        if made is not NotImplemented:
            return _result(made)
    arrays = {
        "depth": depth,
        "features": features,
        "intrinsics": intrinsics,
        "rays": rays,
        "into": into,
        "pose": pose,
    }
    options = {
        "packed": packed,
        "empty": empty,
        "grids": grids,
        "crop": crop,
        "crop_frame": crop_frame,
        "depth_scale": depth_scale,
        "depth_min": depth_min,
        "depth_max": depth_max,
        "invalid": invalid,
        "check": check,
        "backend": backend,
    }
    return _in_torch("voxelize_depth", arrays, grid, reduce, options, (layout, first, max_voxels), out, accumulate)


def voxel_downsample(
    points: Array,
    voxel_size: float | Sequence[float],
    *,
    features: Array | None = None,
    origin: Sequence[float] = (0, 0, 0),
    lengths: Any = None,
    offsets: Any = None,
    pose: Any = None,
    crop: Any = None,
    crop_frame: str = "grid",
    check: bool = True,
    backend: str | None = None,
) -> Downsampled[Any]:
    """A thinner cloud: the mean point of each voxel of a grid without end, and the mean of its features.

        small = rc.voxel_downsample(points, 0.05, features=rgb)       # small.points, small.features, small.counts
        rc.voxel_downsample(points, 0.05, offsets=[0, 900, 2000])     # clouds apart; coordinates[:, 0] is the cloud

    points      as in `voxelize`: [N, 3 or more], [C, N, ...] with `lengths`, or packed with `offsets`.
    voxel_size  one number, or three.
    features    [..., F] beside points, of which the mean is taken.
    origin      where a voxel begins; voxels are whole multiples of their size from there, to either side.
    pose, crop, crop_frame, check, backend   as in `voxelize`; the mean is taken after the pose.

    The same bits on every backend and for any order of the points. Gradients flow to features. A GPU is waited for: the
    result is as long as there are voxels.
    """
    if lengths is not None:
        lengths = beside(points, lengths)
    if offsets is not None:
        offsets = beside(points, offsets)
    if pose is not None:
        pose = beside(points, pose, np.float64)
    made: Any = NotImplemented
    if not _align._compiling():
        made = _core.voxel_downsample(
            points, voxel_size, origin, features, lengths, offsets, pose, crop, crop_frame, check, backend
        )
    if made is NotImplemented:
        from robocache import _torch_sparse

        arrays = {"points": points, "features": features, "lengths": lengths, "offsets": offsets, "pose": pose}
        options = {"crop": crop, "crop_frame": crop_frame, "check": check, "backend": backend}
        made = _torch_sparse.downsample(arrays, voxel_size, origin, options)
    means, mean_features, counts, coordinates, dropped = made
    return Downsampled(means, mean_features, counts, coordinates, Dropped(dropped))


def _in_torch(
    operation: str,
    arrays: dict[str, Any],
    grid: Grid,
    reduce: str | Sequence[str],
    options: dict[str, Any],
    layout: tuple[str | None, int | None, int | None],
    out: Any,
    accumulate: bool,
) -> Any:
    """A call that the engine has looked at, or that is traced."""
    if _sparse(operation, *layout, out, accumulate):
        _, first, max_voxels = layout
        from robocache import _torch_sparse

        return _result(_torch_sparse.run(operation, arrays, grid, reduce, options, first, max_voxels))
    from robocache import _torch_voxels

    return _result(_torch_voxels.run(operation, arrays, grid, reduce, options, out, accumulate))


def _sparse(
    operation: str, layout: str | None, first: int | None, max_voxels: int | None, out: Any, accumulate: bool
) -> bool:
    """The engine's checks of these, for calls that it does not see because they are traced."""
    if layout not in (None, "dense", "sparse"):
        raise ValueError(f"{operation}: layout is {layout!r}; expected dense or sparse")
    sparse = layout == "sparse" or (layout is None and first is not None)
    if not sparse and (first is not None or max_voxels is not None):
        raise ValueError(f'{operation}: {"max_voxels" if first is None else "first"} is for layout="sparse"')
    if sparse and (out is not None or accumulate):
        raise ValueError(f"{operation}: out and accumulate are for dense grids; a sparse result is new each time")
    if first is not None and first < 1:
        raise ValueError(f"{operation}: first is {first}; it must be positive")
    if max_voxels is not None and max_voxels < 0:
        raise ValueError(f"{operation}: max_voxels is {max_voxels}; it must not be negative")
    return sparse


def _result(made: Any) -> Any:
    if len(made) == 2:
        return Voxels(made[0], Dropped(made[1]))
    coordinates, values, counts, point_to_voxel, found, first, number, dropped = made
    return SparseVoxels(coordinates, values, counts, point_to_voxel, Dropped(dropped), found, first, number)


def camera_rays(
    intrinsics: Any, size: tuple[int, int], distortion: Sequence[float] = (0, 0, 0, 0)
) -> NDArray[np.float32]:
    """The rays [H, W, 2] of a camera whose lens distorts by OpenCV's model, for `voxelize_depth(rays=)`.

    intrinsics   (fx, fy, cx, cy) or 3x3.
    size         (height, width), as depth.shape has them.
    distortion   in OpenCV's order, as many as it takes: k1, k2, p1, p2, then k3, then k4, k5, k6, then s1 to s4 of a
                 thin prism, then the tilt of the sensor, 4, 5, 8, 12 or 14 in all.

    Solved by Newton's method in float64 and rounded to float32, in which depth is computed too. A pixel that no ray
    reaches (where the model folds back on itself) gets NaN; its points are counted as not finite.
    """
    matrix = _numbers("intrinsics", intrinsics)
    if matrix.shape == (3, 3):
        fx, fy, cx, cy = matrix[0, 0], matrix[1, 1], matrix[0, 2], matrix[1, 2]
    elif matrix.shape == (4,):
        fx, fy, cx, cy = matrix
    else:
        raise ValueError(
            f"camera_rays: intrinsics have shape {list(matrix.shape)}; expected (fx, fy, cx, cy) or a 3x3 matrix"
        )
    if fx == 0 or fy == 0:
        raise ValueError(f"camera_rays: the focal lengths are {fx:g} and {fy:g}; they must not be 0")
    lens = _numbers("distortion", distortion).ravel()
    if len(lens) not in (4, 5, 8, 12, 14):
        raise ValueError(f"camera_rays: distortion has {len(lens)} numbers; OpenCV's model has 4, 5, 8, 12 or 14")
    lens = np.concatenate([lens, np.zeros(14 - len(lens))])
    try:
        height, width = (operator.index(pixels) for pixels in size)
    except (TypeError, ValueError):
        raise TypeError(f"camera_rays: size is {size!r}; expected (height, width)") from None
    if height < 0 or width < 0:
        raise ValueError(f"camera_rays: size is {size!r}; it must not be negative")
    u, v = np.meshgrid((np.arange(width) - cx) / fx, (np.arange(height) - cy) / fy)
    target = np.stack([u, v, np.ones_like(u)], axis=-1) @ np.linalg.inv(_tilt(*lens[12:])).T
    target_x, target_y = target[..., 0] / target[..., 2], target[..., 1] / target[..., 2]
    x, y = target_x.copy(), target_y.copy()
    with np.errstate(all="ignore"):
        for _ in range(50):
            at_x, at_y, (a, b, c, d) = _distort(x, y, lens)
            determinant = a * d - b * c
            off_x, off_y = at_x - target_x, at_y - target_y
            step_x, step_y = (d * off_x - b * off_y) / determinant, (a * off_y - c * off_x) / determinant
            x -= step_x
            y -= step_y
            if not np.any(np.abs(step_x) + np.abs(step_y) > 1e-14):
                break
        at_x, at_y, _ = _distort(x, y, lens)
        found = (np.hypot(at_x - target_x, at_y - target_y) < 1e-9) & (np.hypot(x, y) < _fold(lens))
    return np.where(found[..., None], np.stack([x, y], axis=-1), np.nan).astype(np.float32)


def _numbers(what: str, given: Any) -> NDArray[np.float64]:
    try:
        numbers = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"camera_rays: {what}: {given!r}; expected numbers") from None
    if not np.isfinite(numbers).all():
        raise ValueError(f"camera_rays: {what}: {numbers.tolist()}; expected finite numbers")
    return numbers


def _fold(lens: NDArray[np.float64]) -> float:
    """The radius at which the model's radius stops to grow, or has a pole; infinite where it does neither."""
    k1, k2, _, _, k3, k4, k5, k6 = lens[:8]
    top, bottom = np.poly1d([k3, k2, k1, 1]), np.poly1d([k6, k5, k4, 1])  # of the squared radius
    slope = top * bottom + np.poly1d([2, 0]) * (top.deriv() * bottom - top * bottom.deriv())
    roots = [*slope.roots, *bottom.roots]
    return math.sqrt(min((root.real for root in roots if root.real > 0 and abs(root.imag) < 1e-9), default=math.inf))


def _tilt(about_x: float, about_y: float) -> NDArray[np.float64]:
    """Where OpenCV's model puts what is distorted, on a sensor that is tilted by these angles."""
    (sin_x, cos_x), (sin_y, cos_y) = ((math.sin(angle), math.cos(angle)) for angle in (about_x, about_y))
    rotation = np.array([[cos_y, 0, -sin_y], [0, 1, 0], [sin_y, 0, cos_y]]) @ np.array(
        [[1, 0, 0], [0, cos_x, sin_x], [0, -sin_x, cos_x]]
    )
    z = rotation[2, 2]
    return np.array([[z, 0, -rotation[0, 2]], [0, z, -rotation[1, 2]], [0, 0, 1]]) @ rotation


def _distort(x: Any, y: Any, lens: NDArray[np.float64]) -> tuple[Any, Any, tuple[Any, Any, Any, Any]]:
    """Where OpenCV's model puts a ray, and the four derivatives of that: x by x, x by y, y by x, y by y."""
    k1, k2, p1, p2, k3, k4, k5, k6, s1, s2, s3, s4 = lens[:12]
    r2 = x * x + y * y
    top, bottom = 1 + r2 * (k1 + r2 * (k2 + r2 * k3)), 1 + r2 * (k4 + r2 * (k5 + r2 * k6))
    slope_top, slope_bottom = k1 + r2 * (2 * k2 + r2 * 3 * k3), k4 + r2 * (2 * k5 + r2 * 3 * k6)
    radial = top / bottom
    slope = (slope_top * bottom - top * slope_bottom) / (bottom * bottom)
    prism_x, prism_y = 2 * (s1 + r2 * 2 * s2), 2 * (s3 + r2 * 2 * s4)
    cross = 2 * (x * y * slope + p1 * x + p2 * y)
    return (
        x * radial + 2 * p1 * x * y + p2 * (r2 + 2 * x * x) + r2 * (s1 + r2 * s2),
        y * radial + p1 * (r2 + 2 * y * y) + 2 * p2 * x * y + r2 * (s3 + r2 * s4),
        (
            radial + 2 * x * x * slope + 2 * p1 * y + 6 * p2 * x + prism_x * x,
            cross + prism_x * y,
            cross + prism_y * x,
            radial + 2 * y * y * slope + 6 * p1 * y + 2 * p2 * x + prism_y * y,
        ),
    )


def _grids(into: Any, grids: int | None) -> int | None:
    """How many grids there are; None where `into` would have to come from a GPU first."""
    if grids is not None:
        return grids
    if isinstance(into, (list, tuple)) and all(isinstance(k, int) for k in into):
        return max(0, *into) + 1 if into else 0
    if _align._compiling():
        return None
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and isinstance(into, torch.Tensor) and into.device.type != "cpu":
        return None
    if cupy is not None and isinstance(into, cupy.ndarray):
        return None
    numbers = np.asarray(into)
    if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
        return 0 if numbers.size == 0 else 1  # the engine says what is wrong with it
    return max(0, int(numbers.max())) + 1 if numbers.size else 0
