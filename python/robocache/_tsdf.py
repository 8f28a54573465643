"""Depth images fused into a volume of truncated signed distances: TsdfVolume.

Nothing is computed here. The engine (robocache._core) serves arrays that have memory; robocache._torch_tsdf serves what
it hands back with NotImplemented (backend="torch", devices that have no kernels of ours), and everything while
torch.compile traces.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from robocache import _align, _core
from robocache._align import _kind, _shape
from robocache._arrays import beside
from robocache._versions import import_torch
from robocache._voxelize import Grid


class TsdfVolume:
    """A truncated signed distance volume, into which depth images are fused one after the other.

        tsdf = rc.TsdfVolume(grid, truncation=0.15)          # NumPy; device="cuda" for torch, like=array for CuPy
        tsdf.integrate(depth, intrinsics, pose)              # a frame, or several cameras [C, H, W]
        tsdf.values, tsdf.weights                            # float32 [X, Y, Z]
        tsdf.surface_points()                                # float32 [M, 3]

    grid         a robocache.Grid, as in `voxelize`.
    truncation   metres: how far in front of and behind a surface distances are told apart. Some three to five voxels.
    device       a torch device: the volume's arrays are torch tensors there.
    like         an array: the volume's arrays are of its library and on its device. NumPy, torch or CuPy.

    A voxel's value is the mean, over the cameras that saw its centre, of the distance from there to the surface along
    the camera's axis, in units of the truncation: 1 in free space, 0 on the surface, -1 a truncation behind it. What
    lies further behind is not seen. Its weight is how many readings that is the mean of; it begins at 0, and the value
    at 1. `values` and `weights` are the volume itself: they may be read at any time, and written.

    The same bits come from every backend, and for images given in one call or one after the other. No gradients.
    CUDA calls do not wait, but to bring lists and NumPy arrays to the GPU, and where they say so.
    """

    __slots__ = ("_grid", "_truncation", "_values", "_weights")

    def __init__(self, grid: Grid, truncation: float, *, device: Any = None, like: Any = None) -> None:
        if device is not None and like is not None:
            raise ValueError("tsdf: device is for torch tensors and like for arrays of any library; give one")
        where = _Place(device, like)
        if not _align._compiling():  # a traced call is checked when it runs
            _core.tsdf_check(grid, truncation, where.in_host_memory)
        self._grid = grid
        self._truncation = float(truncation)
        self._values = where.full(grid.shape, 1)
        self._weights = where.full(grid.shape, 0)

    @property
    def grid(self) -> Grid:
        return self._grid

    @property
    def truncation(self) -> float:
        return self._truncation

    @property
    def values(self) -> Any:
        """float32 [X, Y, Z]: the mean distance to the surface in units of the truncation, -1 to 1."""
        return self._values

    @property
    def weights(self) -> Any:
        """float32 [X, Y, Z]: how many readings the value is the mean of."""
        return self._weights

    def integrate(
        self,
        depth: Any,
        intrinsics: Any,
        pose: Any = None,
        *,
        depth_scale: float | None = None,
        depth_min: float = 0,
        depth_max: float = math.inf,
        invalid: Sequence[float] = (0,),
        check: bool = True,
        backend: str | None = None,
    ) -> None:
        """Puts depth images into the volume: one, or several cameras in their order.

        depth        [H, W] or [C, H, W]: uint16, float16, float32 or float64, of the volume's library and on its
                     device, or NumPy. z forward, x right, y down, as OpenCV has it.
        intrinsics   (fx, fy, cx, cy) or 3x3, one or [C, ...]; pixel centres are at integers.
        pose         [4, 4] or [C, 4, 4]: camera to grid, rigid. None: the camera is at the grid's own origin.
        depth_scale  metres of one unit; default: 0.001 for uint16, 1 for floats.
        depth_min, depth_max   metres, both inclusive.
        invalid      readings, before the scale, that mean none (65535 for some cameras); at most 8.
        check        False leaves out whether poses are rigid.
        backend      "reference", "cpu", "cuda" or "torch"; default: by the device of the volume.

        float64 depth is computed in float64, the rest in float32. On CUDA it does not wait, and a CUDA graph can
        capture it where all its arrays are on the GPU; a pose that is not rigid is told by the next call or
        `rc.synchronize()`.
        """
        depth = beside(self._values, depth)
        intrinsics = beside(self._values, intrinsics, np.float64)
        pose = beside(self._values, pose, np.float64)
        volume = (self._values, self._weights, self._grid, self._truncation)
        images: Any = (depth, intrinsics, pose, depth_scale, depth_min, depth_max, invalid, check, backend)
        if not _align._compiling() and _core.tsdf_integrate(*volume, *images) is not NotImplemented:
            return
        from robocache import _torch_tsdf

        _torch_tsdf.integrate(*volume, *images)

    def surface_points(self, *, backend: str | None = None) -> Any:
        """float32 [M, 3]: where the surface passes between two neighbouring voxels, in the grid's frame.

        There is a point for each two neighbours along x, y or z that have weight and of which one value is below 0 and
        the other is not: where the line between the two values is 0. They come in the order of the lower voxel, x, then
        y, then z, and those of one voxel along x, y, z. On CUDA this waits once, to learn M.
        """
        volume = (self._values, self._weights)
        made = NotImplemented if _align._compiling() else _surface_points(*volume, self._grid, backend)
        if made is not NotImplemented:
            return made
        from robocache import _torch_tsdf

        return _torch_tsdf.surface_points(*volume, self._grid, backend)

    def __repr__(self) -> str:
        return f"TsdfVolume({_shape(self._values)}, truncation={self._truncation}, {self._grid!r})"


class _Place:
    """Where a volume's arrays live: NumPy, or the library and device of `like`, or torch's `device`."""

    def __init__(self, device: Any, like: Any) -> None:
        self.torch_device: Any = None
        self.cupy_device: Any = None
        if device is not None:
            torch = sys.modules["torch"] if _align._compiling() else import_torch(f"tsdf: device={device!r}")
            try:
                self.torch_device = torch.device(device)
            except RuntimeError as error:
                raise ValueError(f"tsdf: device is {device!r}, which torch does not know: {error}") from None
            return
        loaded_torch, loaded_cupy = sys.modules.get("torch"), sys.modules.get("cupy")
        if loaded_torch is not None and isinstance(like, loaded_torch.Tensor):
            self.torch_device = like.device
        elif loaded_cupy is not None and isinstance(like, loaded_cupy.ndarray):
            self.cupy_device = like.device
        elif like is not None and not isinstance(like, np.ndarray):
            raise TypeError(f"tsdf: like is of type {_kind(like)}; expected a NumPy or CuPy array, or a torch tensor")

    @property
    def in_host_memory(self) -> bool:
        return self.cupy_device is None and (self.torch_device is None or self.torch_device.type == "cpu")

    def full(self, shape: tuple[int, int, int], value: float) -> Any:
        if self.torch_device is not None:
            import torch

            return torch.full(shape, value, dtype=torch.float32, device=self.torch_device)
        if self.cupy_device is not None:
            import cupy

            with self.cupy_device:
                return cupy.full(shape, value, np.float32)
        return np.full(shape, value, np.float32)


def _surface_points(values: Any, weights: Any, grid: Grid, backend: str | None) -> Any:
    """By the engine, or NotImplemented."""
    offsets = _core.tsdf_surface_count(values, weights, grid, backend)
    if offsets is NotImplemented:
        return offsets
    return _core.tsdf_surface_points(values, weights, offsets, int(offsets[-1]), grid, backend)
