"""The tsdf rows. A case has the methods that the cases of bench.cases have."""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from bench.goals import Row
from bench.timing import Call

# Metres. Every volume is this cube; the camera is in the middle of one side and looks into it.
LOW, EXTENT, TRUNCATION = (-2.56, -2.56, 0.0), 5.12, 0.08
CAMERA = (585.0, 585.0, 319.7, 239.6)


def integrate(depth: Tensor, poses: Tensor, values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """What people write in torch today: one image at a time, all voxels at once."""
    fx, fy, cx, cy = CAMERA
    side = values.shape[0]
    steps = torch.arange(side, device=depth.device, dtype=torch.float32) + 0.5
    shapes = ((side, 1, 1), (1, side, 1), (1, 1, side))
    centres = [(steps * (EXTENT / side) + low).reshape(shape) for low, shape in zip(LOW, shapes, strict=True)]
    height, width = depth.shape[1:]
    for image, pose in zip(depth, poses, strict=True):
        x, y, z = (sum(pose[i, axis] * (centres[i] - pose[i, 3]) for i in range(3)) for axis in range(3))
        u = torch.floor(fx * x / z + cx + 0.5).to(torch.int64)
        v = torch.floor(fy * y / z + cy + 0.5).to(torch.int64)
        seen = (z > 0) & (u >= 0) & (u < width) & (v >= 0) & (v < height)
        metres = (image.to(torch.float32) * 0.001)[v.clamp(0, height - 1), u.clamp(0, width - 1)]
        distance = metres - z
        told = seen & (metres > 0) & (distance >= -TRUNCATION)
        mean = (weights * values + (distance / TRUNCATION).clamp(max=1)) / (weights + 1)
        values, weights = torch.where(told, mean, values), torch.where(told, weights + 1, weights)
    return values, weights


@dataclasses.dataclass
class Inputs:
    depth: Tensor  # uint16 [C, 480, 640]
    poses: Tensor  # [C, 4, 4]
    values: Tensor  # an empty volume, for torch
    weights: Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class TsdfCase(Row):
    name: str
    side: int
    frames: int

    op = "tsdf"

    @property
    def peer(self) -> Callable[..., Any]:
        return integrate

    def make(self, device: str, seed: int = 0) -> Inputs:
        """Depth images of a wavy wall 2.5 to 4.5 m away, from a camera that turns left and right."""
        generator = torch.Generator(device).manual_seed(seed)
        v, u = torch.meshgrid(torch.arange(480, device=device), torch.arange(640, device=device), indexing="ij")
        wave = 3500 + 1000 * torch.sin(u / 90) * torch.cos(v / 70)
        noise = torch.randn(self.frames, 480, 640, device=device, generator=generator)
        poses = torch.eye(4).repeat(self.frames, 1, 1)
        for k in range(self.frames):
            angle = 0.4 * math.sin(k + seed)
            poses[k, 0, 0] = poses[k, 2, 2] = math.cos(angle)
            poses[k, 0, 2], poses[k, 2, 0] = math.sin(angle), -math.sin(angle)
        empty = torch.ones((self.side,) * 3, device=device)
        return Inputs((wave + 3 * noise).to(torch.uint16), poses.to(device), empty, torch.zeros_like(empty))

    def volume(self, rc: ModuleType, inputs: Inputs) -> Any:
        return rc.TsdfVolume(rc.Grid(LOW, EXTENT / self.side, (self.side,) * 3), TRUNCATION, like=inputs.depth)

    def ours(self, rc: ModuleType, inputs: Inputs, **options: Any) -> Call:
        """Every call integrates the same frames into one volume. The result of the first call, into the empty volume,
        is compared."""
        tsdf = self.volume(rc, inputs)
        camera = torch.tensor(CAMERA, device=inputs.depth.device)

        def call() -> Any:
            tsdf.integrate(inputs.depth, camera, inputs.poses, **options)
            return tsdf

        return call

    def results(self, returned: Any) -> list[Tensor]:
        return list(returned) if isinstance(returned, tuple) else [returned.values, returned.weights]

    def peer_call(self, inputs: Inputs, function: Callable[..., Any] | None = None) -> Call:
        chosen = function or self.peer
        return lambda: chosen(inputs.depth, inputs.poses, inputs.values, inputs.weights)

    def truth(self, inputs: Inputs) -> list[Tensor]:
        """By the portable backend, because rounding decides which pixel a voxel sees, and float64 rounds otherwise."""
        rc = importlib.import_module("robocache")
        return self.results(self.ours(rc, inputs, backend="torch")())

    def floor_bytes(self, inputs: Inputs) -> int:
        """Reads the images once; reads and writes once each voxel that is updated."""
        told = int((self.peer_call(inputs)()[1] > 0).sum())
        return inputs.depth.nbytes + 16 * told


TSDF_CASES = (
    TsdfCase("640x480->256^3", 256, 1),
    TsdfCase("20 frames of 640x480->256^3", 256, 20),
)
