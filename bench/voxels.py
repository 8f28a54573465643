"""The voxelize rows. A case has the methods that the cases of bench.cases have."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from bench import others, recordings
from bench.goals import Row
from bench.timing import Call

# Metres. Most grids are a cube of this size around 0. Voxel sizes are powers of two, so torch finds the same cells.
EXTENT = 16.0
INTRINSICS = (585.0, 585.0, 320.0, 240.0)
PIXELS = 480 * 640


# ---- what people write in torch today


def cells(points: Tensor, batch: Tensor | None, side: int, extent: float, grids: int) -> Tensor:
    """The flat cell of each point. Points outside get the cell after the last. `batch`: the grid of each point."""
    index = torch.floor((points + extent / 2) / (extent / side)).to(torch.int64)
    inside = ((index >= 0) & (index < side)).all(1)
    flat = (index[:, 0] * side + index[:, 1]) * side + index[:, 2]
    return torch.where(inside, flat if batch is None else flat + batch * side**3, grids * side**3)


def count(points: Tensor, batch: Tensor | None, side: int, extent: float, grids: int) -> Tensor:
    index = cells(points, batch, side, extent, grids)
    grid = torch.zeros(grids * side**3 + 1, dtype=torch.int32, device=points.device)
    return grid.scatter_add_(0, index, torch.ones_like(index, dtype=torch.int32))[:-1]


def occupancy(points: Tensor, batch: Tensor | None, side: int, extent: float, grids: int) -> Tensor:
    grid = torch.zeros(grids * side**3 + 1, dtype=torch.uint8, device=points.device)
    return grid.index_fill_(0, cells(points, batch, side, extent, grids), 1)[:-1]


def mean(points: Tensor, features: Tensor, batch: Tensor | None, side: int, extent: float, grids: int) -> Tensor:
    index = cells(points, batch, side, extent, grids)
    features = features.reshape(len(index), -1)
    features = features if features.is_floating_point() else features.to(torch.float32)
    sums = features.new_zeros(grids * side**3 + 1, features.shape[1]).index_add_(0, index, features)
    counts = features.new_zeros(grids * side**3 + 1).index_add_(0, index, features.new_ones(len(index)))
    return (sums / counts.clamp_min(1)[:, None])[:-1]


def maximum(points: Tensor, features: Tensor, batch: Tensor | None, side: int, extent: float, grids: int) -> Tensor:
    index = cells(points, batch, side, extent, grids)[:, None].expand(-1, features.shape[1])
    grid = features.new_zeros(grids * side**3 + 1, features.shape[1])
    return grid.scatter_reduce_(0, index, features, "amax", include_self=False)[:-1]


def unproject(depth: Tensor) -> Tensor:
    """[C, H, W] to [C * H * W, 3]; infinite where there is no reading."""
    fx, fy, cx, cy = INTRINSICS
    z = depth.to(torch.float32) * 0.001
    v, u = torch.meshgrid(*(torch.arange(n, device=depth.device) for n in depth.shape[1:]), indexing="ij")
    points = torch.stack([((u - cx) * z) / fx, ((v - cy) * z) / fy, z], -1).reshape(-1, 3)
    return torch.where((z > 0).reshape(-1, 1), points, torch.inf)


PEERS: dict[str, Callable[..., Tensor]] = {"count": count, "occupancy": occupancy, "mean": mean, "max": maximum}


# ---- clouds


def uniform(number: int, device: str, generator: torch.Generator) -> Tensor:
    return torch.rand(number, 3, device=device, generator=generator) * EXTENT - EXTENT / 2


def surfaces(number: int, device: str, generator: torch.Generator) -> Tensor:
    """Points on walls 3.2 m apart, in random order: the cells of a real scene without a sensor's order."""
    points = torch.rand(number, 3, device=device, generator=generator) * 12.8 - 6.4
    axis = torch.randint(0, 3, (number, 1), device=device, generator=generator)
    noise = torch.randn(number, 1, device=device, generator=generator) * 0.02
    return points.scatter(1, axis, torch.round(points.gather(1, axis) / 3.2) * 3.2 + noise)


def sensor_order(number: int, device: str, generator: torch.Generator) -> Tensor:
    """Points of a wavy floor row by row, as a depth camera gives them."""
    side = int(number**0.5)
    k = torch.arange(number, device=device)
    x, y = (k % side) / side, (k // side) / side
    z = 0.3 * torch.sin(7 * x) * torch.cos(5 * y)
    noise = torch.randn(number, device=device, generator=generator) * 1e-4
    return (torch.stack([x - 0.5, y - 0.5, z + noise], 1) * 14).contiguous()


def one_voxel(number: int, device: str, generator: torch.Generator) -> Tensor:
    return torch.rand(number, 3, device=device, generator=generator) * 0.01 + 0.02


def waves(number: int, device: str, generator: torch.Generator) -> Tensor:
    """Depth images of a wavy wall."""
    v, u = torch.meshgrid(torch.arange(480, device=device), torch.arange(640, device=device), indexing="ij")
    wave = 4000 + 1500 * torch.sin(u / 90) * torch.cos(v / 70)
    noise = torch.randn(number // PIXELS, 480, 640, device=device, generator=generator)
    return (wave + 3 * noise).to(torch.uint16)


def shared_frames(number: int, device: str, generator: torch.Generator) -> Tensor:
    return recordings.frames()[: number // PIXELS].to(device, copy=True)


def shared_frame_points(number: int, device: str, generator: torch.Generator) -> Tensor:
    """The points of all pixels with a reading. 65535 is none."""
    depth = recordings.frames()
    read = (depth.to(torch.int32) > 0) & (depth.to(torch.int32) < 65535)
    return unproject(depth)[read.reshape(-1)].to(device, copy=True)


def shared_lidar(number: int, device: str, generator: torch.Generator) -> Tensor:
    """Three scans, repeated 16 times: 4 million points."""
    scans = [recordings.cloud(name) for name in ("lidar_source.ply", "lidar_target.ply", "lidar_ascii.pcd")]
    return torch.cat(scans * 16).to(device, copy=True)


# ---- rows


@dataclasses.dataclass
class Inputs:
    points: Tensor  # [N, 3], or depth [C, H, W]
    features: Tensor | None = None
    batch: Tensor | None = None  # [N]: the grid of each point, for torch


@dataclasses.dataclass(frozen=True, eq=False)
class VoxelCase(Row):
    name: str
    reduce: str
    number: int  # points of a cloud; 0 for recordings
    side: int
    cloud: Callable[[int, str, torch.Generator], Tensor] = uniform
    channels: int = 0
    cameras: int = 0  # depth images of 640 x 480 in place of clouds
    clouds: int = 1
    grids: int | None = None  # the clouds or cameras are divided evenly among them; None: a grid for each cloud
    extent: float = EXTENT
    devices: tuple[str, ...] = ("cuda", "cpu")

    @property
    def op(self) -> str:
        return "voxelize_depth" if self.cameras else "voxelize"

    @property
    def peer(self) -> Callable[..., Tensor]:
        peer = PEERS[self.reduce]
        return (lambda depth, *rest: peer(unproject(depth), *rest)) if self.cameras else peer

    @property
    def into(self) -> Tensor:
        """The grid of each cloud or camera."""
        parts = self.cameras or self.clouds
        return torch.arange(parts) * self.all_grids // parts

    @property
    def all_grids(self) -> int:
        return self.grids or self.clouds

    def peers(self, device: str) -> tuple[str, ...]:
        atomics = device == "cuda" and self.reduce == "mean" and self.op == "voxelize" and self.clouds == 1
        return (*super().peers(device), *(["float atomics"] if atomics else []))

    def make(self, device: str, seed: int = 0) -> Inputs:
        generator = torch.Generator(device).manual_seed(seed)
        inputs = Inputs(self.cloud(self.cameras * PIXELS or self.clouds * self.number, device, generator))
        if self.channels and self.cameras:
            shape = (*inputs.points.shape, self.channels)
            inputs.features = torch.randint(0, 256, shape, device=device, generator=generator, dtype=torch.uint8)
        elif self.channels:
            inputs.features = torch.randn(len(inputs.points), self.channels, device=device, generator=generator)
        if self.all_grids > 1:
            inputs.batch = self.into.repeat_interleave(PIXELS if self.cameras else self.number).to(device)
        return inputs

    def ours(self, rc: ModuleType, inputs: Inputs) -> Call:
        points, device = inputs.points, inputs.points.device
        grid = rc.Grid((-self.extent / 2,) * 3, self.extent / self.side, (self.side,) * 3)
        options: dict[str, Any] = {"reduce": self.reduce}
        if inputs.features is not None:
            options["features"] = inputs.features
        if self.clouds > 1:
            options["offsets"] = (torch.arange(self.clouds + 1) * self.number).to(device)
        if self.grids:
            options |= {"into": self.into.to(device), "grids": self.grids}
        if self.cameras:
            camera = torch.tensor(INTRINSICS, device=device)
            return lambda: rc.voxelize_depth(points, camera, grid, **options)
        return lambda: rc.voxelize(points, grid, **options)

    def results(self, returned: Any) -> list[Tensor]:
        values = returned if isinstance(returned, Tensor) else returned.values
        return [values.reshape(self.all_grids * self.side**3, -1)]

    def peer_call(self, inputs: Inputs, function: Callable[..., Any] | None = None) -> Call:
        arguments = [inputs.points] if inputs.features is None else [inputs.points, inputs.features]
        chosen, space = function or self.peer, (self.side, self.extent, self.all_grids)
        return lambda: chosen(*arguments, inputs.batch, *space)

    def other_call(self, who: str, inputs: Inputs) -> Call:
        assert inputs.features is not None
        return others.float_atomics(inputs.points, inputs.features, self.side, self.extent)

    def truth(self, inputs: Inputs) -> list[Tensor]:
        """The same cells, and features in float64."""
        exact = inputs if inputs.features is None else dataclasses.replace(inputs, features=inputs.features.double())
        return self.results(self.peer_call(exact)())

    def floor_bytes(self, inputs: Inputs) -> int:
        """Points and features once, every cell once."""
        width = {"count": 4, "occupancy": 1}.get(self.reduce, 4 * self.channels)
        read = inputs.points.nbytes + (0 if inputs.features is None else inputs.features.nbytes)
        return read + width * self.all_grids * self.side**3


GPU = ("cuda",)  # for rows that take a CPU minutes
BATCHED = 1 << 22  # points of a batch

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
    VoxelCase("occupancy 20 frames of 640x480->128^3", "occupancy", 0, 128, waves, cameras=20, grids=1),
    VoxelCase("count 10K->32^3, uniform", "count", 10_000, 32),
    VoxelCase("count 100M->512^3, uniform", "count", 100_000_000, 512, devices=GPU),
    # Real sensors
    VoxelCase("count 20 shared frames as points->256^3", "count", 0, 256, shared_frame_points, extent=8.0),
    VoxelCase("occupancy 20 shared frames as points->256^3", "occupancy", 0, 256, shared_frame_points, extent=8.0),
    VoxelCase("count 48 shared lidar scans->256^3", "count", 0, 256, shared_lidar, extent=128.0),
    VoxelCase("occupancy 48 shared lidar scans->256^3", "occupancy", 0, 256, shared_lidar, extent=128.0),
    VoxelCase("count 20 shared frames->256^3", "count", 0, 256, shared_frames, cameras=20, grids=1, extent=8.0),
    VoxelCase("occupancy 20 shared frames->256^3", "occupancy", 0, 256, shared_frames, cameras=20, grids=1, extent=8.0),
    # How the cost grows with points, cells and clouds
    VoxelCase("count 10K->128^3, uniform", "count", 10_000, 128),
    VoxelCase("count 100K->128^3, uniform", "count", 100_000, 128),
    VoxelCase("count 1M->128^3, uniform", "count", 1_000_000, 128),
    VoxelCase("count 10M->128^3, uniform", "count", 10_000_000, 128),
    VoxelCase("count 100M->128^3, uniform", "count", 100_000_000, 128, devices=GPU),
    *(VoxelCase(f"count 500K->{side}^3, uniform", "count", 500_000, side) for side in (32, 64, 256, 512)),
    VoxelCase("count 500K->1024^3, uniform", "count", 500_000, 1024, devices=GPU),
    VoxelCase("count 1 cloud of 4M->32^3", "count", BATCHED, 32),
    VoxelCase("count 16 clouds of 256K->32^3 each", "count", BATCHED // 16, 32, clouds=16),
    VoxelCase("count 256 clouds of 16K->32^3 each", "count", BATCHED // 256, 32, clouds=256),
    VoxelCase("count 4096 clouds of 1K->32^3 each", "count", BATCHED // 4096, 32, clouds=4096),
    # Several into one grid
    VoxelCase("mean, 8 channels, 64 clouds of 16K into 16->64^3", "mean", 1 << 14, 64, channels=8, clouds=64, grids=16),
    VoxelCase("mean, rgb, 16 frames of 640x480 into 4->128^3", "mean", 0, 128, waves, 3, cameras=16, grids=4),
)
