"""Clouds and depth images into grids: voxelize, voxelize_depth, voxel_downsample.

Nothing here computes. The engine (robocache._core) serves arrays that have memory. For everything else it returns
NotImplemented, and robocache._torch serves the call: gradients, tensors without memory, other devices. While
torch.compile traces, robocache._torch serves every call. Lists, and NumPy arrays beside tensors of another library,
become small arrays of that library.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from robocache import _core
from robocache._align import tracing
from robocache._arrays import beside
from robocache._voxels.grid import Grid
from robocache._voxels.results import Array, Downsampled, Dropped, SparseVoxels, Voxels


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
    """Point clouds into grids, in one pass.

    A point's cell is floor((p - origin) / voxel_size). The result has the same bits on every backend and in every run,
    and for any order of the points, except `first`. Gradients reach features through sum, mean, max and min. CUDA calls
    do not wait, except for sparse results without `max_voxels`, and to copy lists and NumPy arrays to the GPU; neither
    can be part of a CUDA graph. What the checks find on a GPU is raised by the next call or by `rc.synchronize()`.
    lengths, offsets, into and pose may be lists, or NumPy arrays beside tensors of another library.

    Args:
        points: [N, 3 or more] (further columns are not read), batched [C, N, ...], or packed [N, ...] with `offsets`.
            float16, float32 or float64, any strides.
        grid: The grid.
        features: [..., F], one row for each point: float16, bfloat16, float32 or uint8.
        reduce: "count" (int32), "occupancy" (uint8), and of features "sum", "mean" (float32), "max", "min" (their
            dtype). A tuple gives a tuple of values from one pass.
        packed: Occupancy as bits: cell z is bit z % 8 of byte z // 8, [..., (Z + 7) // 8].
        empty: The value of a cell without points.
        lengths: [C]: how many of the N points of each padded cloud are real.
        offsets: [C + 1]: cloud c is packed at `offsets[c] .. offsets[c + 1]`.
        into: [C]: the grid that each cloud goes into. Default: its own.
        grids: The number of grids; needed if `into` is on a GPU. Default: as many as `out` has, or max(into) + 1.
        pose: [4, 4] or [C, 4, 4]: sensor to grid, rigid.
        crop: (low, high): points outside this box are dropped.
        crop_frame: The frame of `crop`: "grid" or "sensor".
        layout: "dense" or "sparse", which has a row for each voxel that has points. Default: dense, or sparse with
            `first`.
        first: Sparse: the number of points of each voxel that are kept as they are, in the order of the points.
        max_voxels: Sparse: the number of rows of the result, whatever the data. If there are more voxels, the first
            ones in the order of grid, x, y, z are kept. Without it the call waits for the GPU, to learn how many there
            are.
        out: An array, or a tuple of arrays, to write into: contiguous, shaped like the result. Not for JAX.
        accumulate: Add to what `out` holds: for count, occupancy, max and min. The first call of a streamed max takes
            `empty=-inf`, because cells count as they are.
        check: False skips the checks that must read the data: that lengths, offsets and into fit, and poses are rigid.
        backend: "reference", "cpu", "cuda" or "torch". Default: by the device of the arrays.

    Returns:
        A `Voxels`, or a `SparseVoxels` if the layout is sparse.

    Examples:
        >>> rc.voxelize(points, grid).values                              # [N, 3] -> int32 [X, Y, Z]
        >>> rc.voxelize(points, grid, features=rgb, reduce="mean")        # float32 [X, Y, Z, 3]
        >>> rc.voxelize(points, grid, offsets=[0, 900, 2000], pose=poses) # two clouds -> [2, X, Y, Z]
        >>> rc.voxelize(points, grid, into=[0, 0, 1])                     # [3, N, 3]: three clouds into two grids
        >>> rc.voxelize(points, grid, features=f, reduce="mean", layout="sparse")
        >>> rc.voxelize(points, grid, first=32, max_voxels=20000)         # the first 32 points of each voxel
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
    if not tracing.compiling():
        placed: tuple[Any, ...] = (lengths, offsets, into, grids, pose, crop, crop_frame)
        form: tuple[Any, ...] = (layout, first, max_voxels, out, accumulate, check, backend)
        made = _core.voxelize(points, grid, features, reduce, packed, empty, *placed, *form)
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
    options: dict[str, Any] = {"packed": packed, "empty": empty, "grids": grids, "crop": crop, "crop_frame": crop_frame}
    options["check"], options["backend"] = check, backend
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
    """Depth images into grids, in one pass, without a point cloud in between.

    Determinism, gradients, CUDA graphs and waiting are as in `voxelize`.

    Args:
        depth: [H, W] or [C, H, W]: uint16, float16, float32 or float64. As in OpenCV, z is forward, x right and y down.
        intrinsics: (fx, fy, cx, cy) or 3x3, one or [C, ...]. Pixel centres are at integers. None if `rays` are given.
        grid: The grid.
        rays: [H, W, 2] or [C, H, W, 2]: x / z and y / z of each pixel, for lenses that distort; see `camera_rays`.
        features: [..., F], one row for each pixel; dtypes as in `voxelize`.
        reduce: As in `voxelize`.
        packed: As in `voxelize`.
        empty: The value of a cell without points.
        depth_scale: Metres per unit. Default: 0.001 for uint16, 1 for floats; pass 0.001 if floats are millimetres.
        depth_min: Metres: nearer readings are dropped.
        depth_max: Metres: farther readings are dropped.
        invalid: Readings, before the scale, that mean "no reading", such as 65535 for some cameras. At most 8.
        into: [C]: the grid that each cloud goes into. Default: its own.
        grids: The number of grids; needed if `into` is on a GPU. Default: as many as `out` has, or max(into) + 1.
        pose: [4, 4] or [C, 4, 4]: sensor to grid, rigid.
        crop: (low, high): points outside this box are dropped.
        crop_frame: The frame of `crop`: "grid" or "sensor".
        layout: "dense" or "sparse", which has a row for each voxel that has points. Default: dense, or sparse with
            `first`.
        first: Sparse: the number of points of each voxel that are kept as they are, in the order of the points.
        max_voxels: Sparse: the number of rows of the result, whatever the data. If there are more voxels, the first
            ones in the order of grid, x, y, z are kept. Without it the call waits for the GPU, to learn how many there
            are.
        out: An array, or a tuple of arrays, to write into: contiguous, shaped like the result. Not for JAX.
        accumulate: Add to what `out` holds: for count, occupancy, max and min. The first call of a streamed max takes
            `empty=-inf`, because cells count as they are.
        check: False skips the checks that must read the data: that lengths, offsets and into fit, and poses are rigid.
        backend: "reference", "cpu", "cuda" or "torch". Default: by the device of the arrays.

    Returns:
        A `Voxels`, or a `SparseVoxels` if the layout is sparse.

    Examples:
        >>> rc.voxelize_depth(depth, (fx, fy, cx, cy), grid, pose=camera_to_grid).values   # [H, W] -> [X, Y, Z]
        >>> rc.voxelize_depth(depth, K, grid, pose=poses, features=rgb, reduce="mean", into=[0, 0, 1, 1])   # 4 cameras
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
    if not tracing.compiling():
        metres: tuple[Any, ...] = (depth_scale, depth_min, depth_max, invalid)
        placed: tuple[Any, ...] = (into, grids, pose, crop, crop_frame)
        form: tuple[Any, ...] = (layout, first, max_voxels, out, accumulate, check, backend)
        shown: tuple[Any, ...] = (depth, intrinsics, rays, grid, features, reduce, packed, empty)
        made = _core.voxelize_depth(*shown, *metres, *placed, *form)
        if made is not NotImplemented:
            return _result(made)
    arrays = {"depth": depth, "features": features, "intrinsics": intrinsics, "rays": rays, "into": into, "pose": pose}
    options: dict[str, Any] = {"packed": packed, "empty": empty, "grids": grids, "crop": crop, "crop_frame": crop_frame}
    options["depth_scale"], options["depth_min"], options["depth_max"] = depth_scale, depth_min, depth_max
    options["invalid"], options["check"], options["backend"] = invalid, check, backend
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
    """A thinner cloud: the mean point of each voxel, and the mean of its features. The grid has no bounds.

    The result has the same bits on every backend and for any order of the points. Gradients reach features. On a GPU
    the call waits, because the result is as long as there are voxels.

    Args:
        points: As in `voxelize`: [N, 3 or more], [C, N, ...] with `lengths`, or packed with `offsets`.
        voxel_size: One number, or three.
        features: [..., F], one row for each point.
        origin: Where a voxel begins; all others are whole voxel sizes away from it.
        lengths: [C]: how many of the N points of each padded cloud are real.
        offsets: [C + 1]: cloud c is packed at `offsets[c] .. offsets[c + 1]`.
        pose: As in `voxelize`; the mean is taken after the pose.
        crop: As in `voxelize`.
        crop_frame: As in `voxelize`.
        check: As in `voxelize`.
        backend: As in `voxelize`.

    Returns:
        A `Downsampled`.

    Examples:
        >>> small = rc.voxel_downsample(points, 0.05, features=rgb)      # small.points, small.features, small.counts
        >>> rc.voxel_downsample(points, 0.05, offsets=[0, 900, 2000])    # separate clouds
    """
    if lengths is not None:
        lengths = beside(points, lengths)
    if offsets is not None:
        offsets = beside(points, offsets)
    if pose is not None:
        pose = beside(points, pose, np.float64)
    made: Any = NotImplemented
    if not tracing.compiling():
        made = _core.voxel_downsample(
            points, voxel_size, origin, features, lengths, offsets, pose, crop, crop_frame, check, backend
        )
    if made is NotImplemented:
        from robocache._torch import sparse as torch_sparse

        arrays = {"points": points, "features": features, "lengths": lengths, "offsets": offsets, "pose": pose}
        options = {"crop": crop, "crop_frame": crop_frame, "check": check, "backend": backend}
        made = torch_sparse.downsample(arrays, voxel_size, origin, options)
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
    """Serves a call that the engine has refused, or that is traced."""
    if _sparse(operation, *layout, out, accumulate):
        _, first, max_voxels = layout
        from robocache._torch import sparse as torch_sparse

        return _result(torch_sparse.run(operation, arrays, grid, reduce, options, first, max_voxels))
    from robocache._torch import voxels as torch_voxels

    return _result(torch_voxels.run(operation, arrays, grid, reduce, options, out, accumulate))


def _sparse(
    operation: str, layout: str | None, first: int | None, max_voxels: int | None, out: Any, accumulate: bool
) -> bool:
    """Whether the result is sparse. The same checks as the engine has, for traced calls, which it does not see."""
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


def _grids(into: Any, grids: int | None) -> int | None:
    """How many grids there are. None if `into` is on a GPU, so that the number is not known here."""
    if grids is not None:
        return grids
    if isinstance(into, (list, tuple)) and all(isinstance(k, int) for k in into):
        return max(0, *into) + 1 if into else 0
    if tracing.compiling():
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
