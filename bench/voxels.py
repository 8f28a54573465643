"""The voxelize rows: what bench.cases is for align, with the same questions answered."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from bench.goals import Row
from bench.timing import Call

# Metres: every grid here is this cube. Voxels are a power of two wide, so that torch finds the same cells.
LOW, EXTENT = -8.0, 16.0
INTRINSICS = (585.0, 585.0, 320.0, 240.0)


# ---- what people write in torch today


def cells(points: Tensor, side: int) -> Tensor:
    """The flat cell of each point; side^3 for those outside."""
    index = torch.floor((points - LOW) / (EXTENT / side)).to(torch.int64)
    inside = ((index >= 0) & (index < side)).all(1)
    return torch.where(inside, (index[:, 0] * side + index[:, 1]) * side + index[:, 2], side**3)


def count(points: Tensor, side: int) -> Tensor:
    index = cells(points, side)
    grid = torch.zeros(side**3 + 1, dtype=torch.int32, device=points.device)
    return grid.scatter_add_(0, index, torch.ones_like(index, dtype=torch.int32))[:-1]


def occupancy(points: Tensor, side: int) -> Tensor:
    return torch.zeros(side**3 + 1, dtype=torch.uint8, device=points.device).index_fill_(0, cells(points, side), 1)[:-1]


def mean(points: Tensor, features: Tensor, side: int) -> Tensor:
    index = cells(points, side)
    sums = features.new_zeros(side**3 + 1, features.shape[1]).index_add_(0, index, features)
    counts = features.new_zeros(side**3 + 1).index_add_(0, index, features.new_ones(len(index)))
    return (sums / counts.clamp_min(1)[:, None])[:-1]


def maximum(points: Tensor, features: Tensor, side: int) -> Tensor:
    index = cells(points, side)[:, None].expand(-1, features.shape[1])
    grid = features.new_zeros(side**3 + 1, features.shape[1])
    return grid.scatter_reduce_(0, index, features, "amax", include_self=False)[:-1]


def depth_occupancy(depth: Tensor, side: int) -> Tensor:
    fx, fy, cx, cy = INTRINSICS
    z = depth.to(torch.float32) * 0.001
    v, u = torch.meshgrid(*(torch.arange(n, device=depth.device) for n in depth.shape[1:]), indexing="ij")
    points = torch.stack([((u - cx) * z) / fx, ((v - cy) * z) / fy, z], -1).reshape(-1, 3)
    points = torch.where((z > 0).reshape(-1, 1), points, torch.inf)
    return occupancy(points, side)


PEERS: dict[str, Callable[..., Tensor]] = {"count": count, "occupancy": occupancy, "mean": mean, "max": maximum}


# ---- clouds


def uniform(number: int, device: str, generator: torch.Generator) -> Tensor:
    return torch.rand(number, 3, device=device, generator=generator) * EXTENT + LOW


def surfaces(number: int, device: str, generator: torch.Generator) -> Tensor:
    """On walls 3.2 m apart, in no order: the cells of a real scene without the order of a real sensor."""
    points = torch.rand(number, 3, device=device, generator=generator) * 12.8 - 6.4
    axis = torch.randint(0, 3, (number, 1), device=device, generator=generator)
    noise = torch.randn(number, 1, device=device, generator=generator) * 0.02
    return points.scatter(1, axis, torch.round(points.gather(1, axis) / 3.2) * 3.2 + noise)


def sensor_order(number: int, device: str, generator: torch.Generator) -> Tensor:
    """Row by row over a wavy floor, as a depth camera gives it."""
    side = int(number**0.5)
    k = torch.arange(number, device=device)
    x, y = (k % side) / side, (k // side) / side
    z = 0.3 * torch.sin(7 * x) * torch.cos(5 * y)
    noise = torch.randn(number, device=device, generator=generator) * 1e-4
    return (torch.stack([x - 0.5, y - 0.5, z + noise], 1) * 14).contiguous()


def one_voxel(number: int, device: str, generator: torch.Generator) -> Tensor:
    return torch.rand(number, 3, device=device, generator=generator) * 0.01 + 0.02


@dataclasses.dataclass
class Inputs:
    points: Tensor  # [N, 3], or depth [C, H, W]
    features: Tensor | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class VoxelCase(Row):
    name: str
    reduce: str
    number: int
    side: int
    cloud: Callable[[int, str, torch.Generator], Tensor] = uniform
    channels: int = 0
    cameras: int = 0  # depth images of 640 x 480 in place of a cloud

    @property
    def op(self) -> str:
        return "voxelize_depth" if self.cameras else "voxelize"

    @property
    def peer(self) -> Callable[..., Tensor]:
        return depth_occupancy if self.cameras else PEERS[self.reduce]

    def make(self, device: str, seed: int = 0) -> Inputs:
        generator = torch.Generator(device).manual_seed(seed)
        if self.cameras:
            v, u = torch.meshgrid(torch.arange(480, device=device), torch.arange(640, device=device), indexing="ij")
            wave = 4000 + 1500 * torch.sin(u / 90) * torch.cos(v / 70)
            noise = torch.randn(self.cameras, 480, 640, device=device, generator=generator)
            return Inputs((wave + 3 * noise).to(torch.uint16))
        points = self.cloud(self.number, device, generator)
        if not self.channels:
            return Inputs(points)
        return Inputs(points, torch.randn(self.number, self.channels, device=device, generator=generator))

    def ours(self, rc: ModuleType, inputs: Inputs) -> Call:
        size = EXTENT / self.side
        grid = rc.Grid((LOW,) * 3, size, (self.side,) * 3)
        if self.cameras:
            into = torch.zeros(self.cameras, dtype=torch.int64, device=inputs.points.device)
            camera = torch.tensor(INTRINSICS, device=inputs.points.device)
            return lambda: rc.voxelize_depth(inputs.points, camera, grid, reduce=self.reduce, into=into, grids=1)
        if inputs.features is None:
            return lambda: rc.voxelize(inputs.points, grid, reduce=self.reduce)
        return lambda: rc.voxelize(inputs.points, grid, features=inputs.features, reduce=self.reduce)

    def results(self, returned: Any) -> list[Tensor]:
        values = returned if isinstance(returned, Tensor) else returned.values
        return [values.reshape(self.side**3, -1)]

    def peer_call(self, inputs: Inputs, function: Callable[..., Any] | None = None) -> Call:
        arguments = [inputs.points] if inputs.features is None else [inputs.points, inputs.features]
        chosen = function or self.peer
        return lambda: chosen(*arguments, self.side)

    def truth(self, inputs: Inputs) -> list[Tensor]:
        """The same cells, and features in float64."""
        exact = inputs if inputs.features is None else Inputs(inputs.points, inputs.features.double())
        return self.results(self.peer_call(exact)())

    def floor_bytes(self, inputs: Inputs) -> int:
        """Points and features once, every cell once."""
        width = {"count": 4, "occupancy": 1}.get(self.reduce, 4 * self.channels)
        read = inputs.points.nbytes + (0 if inputs.features is None else inputs.features.nbytes)
        return read + width * self.side**3


VOXEL_CASES = (
    VoxelCase("count 500K->128^3, uniform", "count", 500_000, 128),
    VoxelCase("count 8M->256^3, surfaces", "count", 8_000_000, 256, surfaces),
    VoxelCase("occupancy 500K->128^3, uniform", "occupancy", 500_000, 128),
    VoxelCase("mean, 8 channels, 500K->128^3", "mean", 500_000, 128, channels=8),
    VoxelCase("max, 8 channels, 500K->128^3", "max", 500_000, 128, channels=8),
    VoxelCase("count 8M->256^3, sensor order", "count", 8_000_000, 256, sensor_order),
    VoxelCase("occupancy 8M->256^3, sensor order", "occupancy", 8_000_000, 256, sensor_order),
    VoxelCase("count 500K->128^3, one voxel", "count", 500_000, 128, one_voxel),
    VoxelCase("mean, 8 channels, 500K->128^3, sensor order", "mean", 500_000, 128, sensor_order, 8),
    VoxelCase("mean, 8 channels, 500K->128^3, one voxel", "mean", 500_000, 128, one_voxel, 8),
    VoxelCase("occupancy 20 frames of 640x480->128^3", "occupancy", 0, 128, cameras=20),
    VoxelCase("count 10K->32^3, uniform", "count", 10_000, 32),
    VoxelCase("count 100M->512^3, uniform", "count", 100_000_000, 512),
)
