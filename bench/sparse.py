"""The rows of sparse voxelize and voxel_downsample. A case has the methods that the cases of bench.cases have."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from bench import others, recordings
from bench.goals import EAGER, OURS, Row
from bench.timing import Call
from bench.voxels import EXTENT, surfaces, uniform

Cloud = Callable[[int, str, torch.Generator], Tensor]
Space = tuple[Tensor, Tensor, tuple[int, int, int]]  # low, voxel size, shape


# ---- what people write in torch today


def keys(points: Tensor, space: Space) -> tuple[Tensor, Tensor]:
    """Which points are inside the grid, and the flat cells of those points."""
    low, size, shape = space
    index = torch.floor((points - low) / size).to(torch.int64)
    inside = ((index >= 0) & (index < torch.tensor(shape, device=points.device))).all(1)
    index = index[inside]
    return inside, (index[:, 0] * shape[1] + index[:, 1]) * shape[2] + index[:, 2]


def coordinates(voxels: Tensor, shape: tuple[int, int, int]) -> Tensor:
    return torch.stack([voxels // (shape[1] * shape[2]), voxels // shape[2] % shape[1], voxels % shape[2]], 1)


def mean(points: Tensor, features: Tensor, space: Space, first: None = None) -> tuple[Tensor, ...]:
    inside, key = keys(points, space)
    voxels, inverse, counts = torch.unique(key, return_inverse=True, return_counts=True)
    sums = features.new_zeros(len(voxels), features.shape[1]).index_add_(0, inverse, features[inside])
    return coordinates(voxels, space[2]), sums / counts[:, None], counts


def first_points(points: Tensor, features: Tensor, space: Space, first: int) -> tuple[Tensor, ...]:
    inside, key = keys(points, space)
    ordered, order = torch.sort(key, stable=True)
    voxels, row, counts = torch.unique_consecutive(ordered, return_inverse=True, return_counts=True)
    place = torch.arange(len(order), device=order.device) - (counts.cumsum(0) - counts)[row]
    kept = place < first
    found = torch.cat([points, features], 1)[inside][order[kept]]
    rows = found.new_zeros(len(voxels), first, found.shape[1])
    rows[row[kept], place[kept]] = found
    return coordinates(voxels, space[2]), rows, counts.clamp(max=first)


def downsample(points: Tensor, size: float) -> tuple[Tensor, Tensor, Tensor]:
    """Packs 21 bits of each axis into one key."""
    index = torch.floor(points / size).to(torch.int64) + (1 << 20)
    key = (index[:, 0] << 42) | (index[:, 1] << 21) | index[:, 2]
    voxels, inverse, counts = torch.unique(key, return_inverse=True, return_counts=True)
    sums = points.new_zeros(len(voxels), 3).index_add_(0, inverse, points)
    mask = (1 << 21) - 1
    cells = torch.stack([voxels >> 42, (voxels >> 21) & mask, voxels & mask], 1) - (1 << 20)
    return sums / counts[:, None], cells, counts


# ---- clouds


def lidar(number: int, device: str, generator: torch.Generator) -> Tensor:
    """64 beams that turn by a quarter circle. They hit the road, walls 20 to 60 m away, or, a third of them, something
    nearer."""
    k = torch.arange(number, device=device)
    turn = ((k // 64) / (number // 64) - 0.5) * (math.pi / 2)
    tilt = torch.deg2rad((k % 64) * (28 / 63) - 25)
    wall = 40 + 20 * torch.sin(9 * turn)
    road = torch.where(tilt < 0, 1.7 / torch.sin(-tilt).clamp_min(1e-6), torch.inf)
    clutter = (3 * torch.rand(number, device=device, generator=generator)).clamp(max=1)
    reach = torch.minimum(wall, road) * clutter + 0.02 * torch.randn(number, device=device, generator=generator)
    flat = reach * torch.cos(tilt)
    return torch.stack([flat * torch.cos(turn), flat * torch.sin(turn), reach * torch.sin(tilt)], 1).contiguous()


def unit_cube(number: int, device: str, generator: torch.Generator) -> Tensor:
    return torch.rand(number, 3, device=device, generator=generator)


def file(name: str) -> Cloud:
    return lambda number, device, generator: recordings.cloud(name).to(device, copy=True)


# ---- rows


@dataclasses.dataclass
class Inputs:
    points: Tensor
    features: Tensor
    space: Space


@dataclasses.dataclass(frozen=True, eq=False)
class SparseCase(Row):
    """The first points of each voxel, or the mean of all."""

    name: str
    number: int
    channels: int
    cloud: Cloud
    low: tuple[float, float, float]
    size: tuple[float, float, float]
    shape: tuple[int, int, int]
    first: int | None = None  # how many points of each voxel; None: their mean
    max_voxels: int | None = None

    op = "voxelize"

    @property
    def peer(self) -> Callable[..., Any]:
        return first_points if self.first else mean

    def peers(self, device: str) -> tuple[str, ...]:
        return (EAGER,)  # torch.compile stops where a size comes from the data

    def waits(self, who: str) -> bool:
        return who != OURS or self.max_voxels is None

    def make(self, device: str, seed: int = 0) -> Inputs:
        generator = torch.Generator(device).manual_seed(seed)
        features = torch.randn(self.number, self.channels, device=device, generator=generator)
        space = torch.tensor(self.low, device=device), torch.tensor(self.size, device=device), self.shape
        return Inputs(self.cloud(self.number, device, generator), features, space)

    def ours(self, rc: ModuleType, inputs: Inputs) -> Call:
        grid = rc.Grid(self.low, self.size, self.shape)
        options = {"first": self.first} if self.first else {"reduce": "mean", "layout": "sparse"}
        options |= {"features": inputs.features, "max_voxels": self.max_voxels}
        return lambda: rc.voxelize(inputs.points, grid, **options)

    def results(self, returned: Any) -> list[Tensor]:
        if not hasattr(returned, "found"):
            return list(returned)
        made = int(returned.found[0])
        values = (returned.first, returned.number) if self.first else (returned.values, returned.counts)
        return [returned.coordinates[:made, 1:], *(array[:made] for array in values)]

    def peer_call(self, inputs: Inputs, function: Callable[..., Any] | None = None) -> Call:
        chosen = function or self.peer
        return lambda: chosen(inputs.points, inputs.features, inputs.space, self.first)

    def truth(self, inputs: Inputs) -> list[Tensor]:
        """The same voxels, and features in float64."""
        return self.results(self.peer_call(dataclasses.replace(inputs, features=inputs.features.double()))())

    def floor_bytes(self, inputs: Inputs) -> int:
        """Reads points and features; writes the row of each point, and coordinates, count and values of each row."""
        rows = self.max_voxels or len(self.peer_call(inputs)()[0])
        values = 4 + 4 + 4 * self.first * (3 + self.channels) if self.first else 4 * self.channels
        return inputs.points.nbytes + inputs.features.nbytes + 8 * self.number + rows * (32 + 4 + values)


@dataclasses.dataclass(frozen=True, eq=False)
class DownsampleCase(Row):
    name: str
    size: float
    cloud: Cloud
    number: int = 0

    op = "voxel_downsample"

    @property
    def peer(self) -> Callable[..., Any]:
        return downsample

    def peers(self, device: str) -> tuple[str, ...]:
        return (EAGER, *others.DOWNSAMPLES) if device == "cpu" else (EAGER,)

    def waits(self, who: str) -> bool:
        return True

    def make(self, device: str, seed: int = 0) -> Tensor:
        return self.cloud(self.number, device, torch.Generator(device).manual_seed(seed))

    def ours(self, rc: ModuleType, points: Tensor) -> Call:
        return lambda: rc.voxel_downsample(points, self.size)

    def results(self, returned: Any) -> list[Tensor]:
        if hasattr(returned, "coordinates"):
            return [returned.points, returned.coordinates[:, 1:], returned.counts]
        return list(returned) if isinstance(returned, tuple) else [others.downsampled(returned)]

    def compared(self, who: str, results: list[Tensor]) -> list[Tensor]:
        """The other libraries order voxels differently, and Open3D counts them from the lowest point. So theirs is
        compared by the number of points and their root mean square."""
        if who in (OURS, EAGER):
            return results
        points = results[0].double()
        return [torch.tensor([float(len(points))]), points.square().mean(0).sqrt()]

    def peer_call(self, points: Tensor, function: Callable[..., Any] | None = None) -> Call:
        chosen = function or self.peer
        return lambda: chosen(points, self.size)

    def other_call(self, who: str, points: Tensor) -> Call:
        return others.DOWNSAMPLES[who](points, self.size)

    def truth(self, points: Tensor) -> list[Tensor]:
        return self.results(self.peer_call(points.double())())

    def floor_bytes(self, points: Tensor) -> int:
        """Points once, every voxel once: its mean, count and coordinates."""
        return points.nbytes + (12 + 4 + 32) * len(self.peer_call(points)()[0])


# The grid of a detector: 140 x 80 x 4 m in front of the car.
DETECTOR = {"low": (0.0, -40.0, -3.0), "size": (0.1, 0.1, 0.2), "shape": (1400, 800, 20)}
CUBE = {"low": (-EXTENT / 2,) * 3, "size": (EXTENT / 128,) * 3, "shape": (128, 128, 128)}

SPARSE_CASES = (
    SparseCase("first 5 of 250K->1400x800x20", 250_000, 4, lidar, **DETECTOR, first=5),
    SparseCase("first 5 of 250K->1400x800x20, max_voxels", 250_000, 4, lidar, **DETECTOR, first=5, max_voxels=120_000),
    SparseCase("sparse mean, 8 channels, 500K->128^3", 500_000, 8, uniform, **CUBE),
    SparseCase("sparse mean, 8 channels, 500K->128^3, max_voxels", 500_000, 8, uniform, **CUBE, max_voxels=500_000),
    DownsampleCase("500K in a unit cube, 1/64", 1 / 64, unit_cube, 500_000),
    DownsampleCase("1M on surfaces, 1/16", 1 / 16, surfaces, 1_000_000),
    DownsampleCase("table_scene_mug.pcd, 1/128", 1 / 128, file("table_scene_mug.pcd")),
    DownsampleCase("cturtle.pcd, 1/64", 1 / 64, file("cturtle.pcd")),
    DownsampleCase("lidar_source.ply, 1/4", 1 / 4, file("lidar_source.ply")),
    DownsampleCase("lidar_target.ply, 1/4", 1 / 4, file("lidar_target.ply")),
    DownsampleCase("lidar_ascii.pcd, 1/4", 1 / 4, file("lidar_ascii.pcd")),
)
