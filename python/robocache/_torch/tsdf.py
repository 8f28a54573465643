"""TsdfVolume in torch: torch.compile, and every device that has no kernels of ours.

The compiled engine handles plain tensors. robocache._voxels calls this module for the others. A call takes the first
of these paths that fits:
1. traced (Dynamo, export, fake or meta tensors): `torch.ops.robocache.tsdf_integrate`, which writes the volume, and
   `tsdf_surface_points`, whose size depends on the data. At run time they go to the engine, or take path 2.
2. the portable backend: docs/semantics.md in plain torch operations, on any device that has float64. Its results have
   the bits of the other backends.
There are no gradients: depth, intrinsics and pose count as constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from robocache import _core
from robocache._torch.align_run import uses_portable
from robocache._torch.operators import register
from robocache._torch.voxels import is_traced
from robocache._torch.voxels_backend import Scene, fused, measured, to_single
from robocache._voxels.grid import Grid
from robocache._voxels.tsdf import _surface_points

SLAB = 1 << 22  # voxels at a time: intermediate results take about 200 bytes each


def integrate(
    values: Tensor, weights: Tensor, grid: Grid, truncation: float, depth: Any, intrinsics: Any, pose: Any, *limits: Any
) -> None:
    """Calls integrate_portable, with `limits` as its last arguments, or the operator if torch traces the call."""
    if not is_traced([array for array in (values, weights, depth, intrinsics, pose) if isinstance(array, Tensor)]):
        integrate_portable(values, weights, grid, truncation, depth, intrinsics, pose, *limits)
        return
    depth_scale, depth_min, depth_max, invalid, check, backend = limits
    for name, array in (("depth", depth), ("intrinsics", intrinsics), ("pose", pose)):
        if not isinstance(array, Tensor) and (name != "pose" or array is not None):
            raise TypeError(f"tsdf: {name} is a {type(array).__name__}; torch tensors and other arrays do not mix")
    if depth_scale == 0:  # 0 stands for the default below
        raise ValueError("tsdf: depth_scale is 0; it must be positive and finite")
    numbers = [*box_of(grid), truncation, 0.0 if depth_scale is None else float(depth_scale)]
    numbers += [float(depth_min), float(depth_max)]
    call = (numbers, [float(x) for x in invalid], bool(check), backend)
    torch.ops.robocache.tsdf_integrate(values, weights, depth, intrinsics, pose, *call)


def integrate_portable(
    values: Tensor,
    weights: Tensor,
    grid: Grid,
    truncation: float,
    depth: Any,
    intrinsics: Any,
    pose: Any,
    depth_scale: float | None,
    depth_min: float,
    depth_max: float,
    invalid: Sequence[float],
    check: bool,
    backend: str | None,
) -> None:
    uses_portable(SimpleNamespace(operation="tsdf", backend=backend), values.device)  # type: ignore[arg-type]
    numbers = (depth_scale, depth_min, depth_max, invalid)
    check_arguments(values.device, grid, truncation, depth, intrinsics, pose, numbers, check)
    compute = torch.float64 if depth.dtype == torch.float64 else torch.float32
    scale = depth_scale if depth_scale is not None else 1.0 if depth.is_floating_point() else 0.001
    limits = {"depth_scale": scale, "depth_min": depth_min, "depth_max": depth_max, "invalid": invalid}
    scene = Scene(depth, True, grid.origin, grid.voxel_size, grid.shape, 1, **limits)  # type: ignore[arg-type]
    images = (depth if depth.ndim == 3 else depth[None]).detach().to(compute)
    if images.numel() == 0:
        return
    table = intrinsics.detach().to(compute)
    if table.shape[-1] == 3:
        table = torch.stack([table[..., 0, 0], table[..., 1, 1], table[..., 0, 2], table[..., 1, 2]], -1)
    poses = torch.eye(4, device=values.device) if pose is None else pose.detach()
    x, y, z = (centres(grid, axis, compute, values.device) for axis in range(3))
    step = max(1, SLAB // (len(y) * len(z)))
    for camera, image in enumerate(images):
        metres, reading = measured(scene, image.reshape(-1))
        seen_depth = torch.where(reading, metres, -torch.inf)
        lens = table if table.ndim == 1 else table[camera]
        matrix = (poses if poses.ndim == 2 else poses[camera]).to(compute)
        for first in range(0, len(x), step):
            slab = slice(first, first + step)
            projected = project(x[slab], y, z, matrix, lens)
            add(values[slab], weights[slab], projected, seen_depth, image.shape, rounded(truncation, compute, values))


def check_arguments(
    device: torch.device,
    grid: Grid,
    truncation: float,
    depth: Any,
    intrinsics: Any,
    pose: Any,
    numbers: Any,
    check: bool,
) -> None:
    """Lets the engine check the call for the portable backend, so that error sentences are written in one place."""
    arrays = {"depth": depth, "intrinsics": intrinsics, "pose": pose}
    for name, array in arrays.items():
        if array is None:
            continue
        if not isinstance(array, Tensor):
            raise TypeError(f"tsdf: {name} is a {type(array).__name__}; torch tensors and other arrays do not mix")
        if array.device != device:
            raise ValueError(f"tsdf: {name} is on {array.device} and the volume on {device}; all must be on one device")
    refuse_single(device)
    # Expanded zeros of the same shapes, which take no memory, into one voxel. Whether poses are rigid is checked only
    # on the CPU; elsewhere the check would wait for the device.
    zeros = [
        None if array is None else torch.zeros((), dtype=array.dtype).expand(array.shape) for array in arrays.values()
    ]
    here = check and device.type == "cpu"
    if here and pose is not None:
        zeros[-1] = pose.detach()
    voxel = torch.zeros(2, 1, 1, 1)
    one = Grid(grid.origin, grid.voxel_size, (1, 1, 1))
    engine: Any = _core.tsdf_integrate
    engine(voxel[0], voxel[1], one, truncation, *zeros, *numbers, here, None)


def refuse_single(device: torch.device) -> None:
    if device.type == "mps":
        raise TypeError("tsdf: the torch backend computes in float64, which mps does not have")


def rounded(x: float, dtype: torch.dtype, like: Tensor) -> Tensor:
    """A number as a tensor. On CUDA torch would turn a plain divisor into a multiplication by its reciprocal."""
    return torch.full((), to_single(x) if dtype == torch.float32 else x, dtype=dtype, device=like.device)


def centres(grid: Grid, axis: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    index = torch.arange(grid.shape[axis], device=device).to(dtype) + 0.5
    return fused(index, rounded(grid.voxel_size[axis], dtype, index), rounded(grid.origin[axis], dtype, index))


def project(x: Tensor, y: Tensor, z: Tensor, pose: Tensor, lens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For each voxel [X, Y, Z]: column and row, whose floors are the pixel, and the distance along the axis."""
    dx, dy, dz = (centre - pose[axis, 3] for axis, centre in enumerate((x, y, z)))
    place = []
    for axis in range(3):
        line = fused(pose[1, axis], dy, (pose[0, axis] * dx)[:, None])
        place.append(fused(pose[2, axis], dz, line[:, :, None]))
    inverse = torch.ones_like(place[2]) / place[2]
    fx, fy, cx, cy = lens
    return fused(fx * place[0], inverse, cx) + 0.5, fused(fy * place[1], inverse, cy) + 0.5, place[2]


def add(
    values: Tensor,
    weights: Tensor,
    projected: tuple[Tensor, Tensor, Tensor],
    depth: Tensor,
    size: torch.Size,
    truncation: Tensor,
) -> None:
    """Adds an image to the running means, in place. projected: u, v and z of each voxel."""
    u, v, z = projected
    height, width = size
    seen = (z > 0) & (u >= 0) & (u < width) & (v >= 0) & (v < height)
    pixel = torch.where(seen, v, 0).to(torch.int64) * width + torch.where(seen, u, 0).to(torch.int64)
    metres = depth[pixel] - z
    updated = seen & (metres >= -truncation)
    distance = (metres / truncation).clamp(max=1)
    before = weights.to(z.dtype)
    after = before + 1
    mean = fused(before, values.to(z.dtype), distance) / after
    values.copy_(torch.where(updated, mean.to(torch.float32), values))
    weights.copy_(torch.where(updated, after.to(torch.float32), weights))


def surface_points(values: Tensor, weights: Tensor, grid: Grid, backend: str | None) -> Tensor:
    if is_traced([values, weights]):
        return torch.ops.robocache.tsdf_surface_points(values, weights, box_of(grid), backend)
    return surface_points_portable(values, weights, grid, backend)


def surface_points_portable(values: Tensor, weights: Tensor, grid: Grid, backend: str | None) -> Tensor:
    """The surface points. nonzero() lists the voxels in order, then the axes; on a GPU it waits."""
    uses_portable(SimpleNamespace(operation="tsdf", backend=backend), values.device)  # type: ignore[arg-type]
    refuse_single(values.device)
    crossed = torch.zeros(*values.shape, 3, dtype=torch.bool, device=values.device)
    usable = (weights > 0) & torch.isfinite(values)
    for axis in range(3):
        count = values.shape[axis] - 1
        below = values.narrow(axis, 0, count) < 0, values.narrow(axis, 1, count) < 0
        both = usable.narrow(axis, 0, count) & usable.narrow(axis, 1, count)
        crossed[..., axis].narrow(axis, 0, count).copy_(both & (below[0] != below[1]))
    voxel = crossed.nonzero()
    index = voxel[:, :3]
    along = torch.arange(3, device=values.device) == voxel[:, 3:]
    a = values[tuple(index.T)].to(torch.float64)
    b = values[tuple((index + along).T)].to(torch.float64)
    part = torch.where(along, (a / (a - b))[:, None], 0)
    size = torch.tensor(grid.voxel_size, dtype=torch.float64, device=values.device)
    origin = torch.tensor(grid.origin, dtype=torch.float64, device=values.device)
    return fused((index.to(torch.float64) + 0.5) + part, size, origin).to(torch.float32)


# ---- operators


def box_of(grid: Grid) -> list[float]:
    """A grid from origin and voxel size, with the volume's shape."""
    return [*grid.origin, *grid.voxel_size]


def grid_of(box: Sequence[float], values: Tensor) -> Grid:
    return Grid(box[:3], box[3:6], values.shape)


def tsdf_integrate(
    values: Tensor,
    weights: Tensor,
    depth: Tensor,
    intrinsics: Tensor,
    pose: Tensor | None,
    numbers: Sequence[float],
    invalid: Sequence[float],
    check: bool,
    backend: str | None,
) -> None:
    truncation, depth_scale, depth_min, depth_max = numbers[6:]
    volume = (values, weights, grid_of(numbers, values), truncation)
    limits: Any = (depth_scale or None, depth_min, depth_max, tuple(invalid), check, backend)
    if _core.tsdf_integrate(*volume, depth, intrinsics, pose, *limits) is NotImplemented:
        integrate_portable(*volume, depth, intrinsics, pose, *limits)


def tsdf_integrate_fake(values: Tensor, weights: Tensor, *call: Any) -> None:
    pass


def tsdf_surface_points(values: Tensor, weights: Tensor, box: Sequence[float], backend: str | None) -> Tensor:
    grid = grid_of(box, values)
    made = _surface_points(values, weights, grid, backend)
    return surface_points_portable(values, weights, grid, backend) if made is NotImplemented else made


def tsdf_surface_points_fake(values: Tensor, weights: Tensor, *call: Any) -> Tensor:
    return values.new_empty([torch.library.get_ctx().new_dynamic_size(), 3])


register(
    "tsdf_integrate(Tensor(a!) values, Tensor(b!) weights, Tensor depth, Tensor intrinsics, Tensor? pose, float[] "
    "numbers, float[] invalid, bool check, str? backend) -> ()",
    tsdf_integrate,
    tsdf_integrate_fake,
)
register(
    "tsdf_surface_points(Tensor values, Tensor weights, float[] box, str? backend) -> Tensor",
    tsdf_surface_points,
    tsdf_surface_points_fake,
)
