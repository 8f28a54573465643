"""Depth images fused into a volume of truncated signed distances: TsdfVolume.

Nothing here computes. The engine (robocache._core) serves arrays that have memory. For everything else it returns
NotImplemented, and robocache._torch.tsdf serves the call: backend="torch", and devices without kernels of ours. While
torch.compile traces, robocache._torch.tsdf serves every call.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from robocache import _core
from robocache._align import tracing
from robocache._align.stream import kind_of, shape_of
from robocache._arrays import beside
from robocache._versions import import_torch
from robocache._voxels.grid import Grid


class TsdfVolume:
    """A truncated signed distance volume that depth images are fused into, one after the other.

    A voxel's value is the mean, over the cameras that saw its centre, of the distance from there to the surface along
    the camera's axis, in units of the truncation: 1 in free space, 0 on the surface, -1 one truncation behind it.
    Voxels farther behind a surface are not updated. A voxel's weight is the number of readings in that mean. Weights
    start at 0 and values at 1. `values` and `weights` are the volume itself and may be read and written at any time.

    Every backend gives the same bits, and so do images in one call or in several. There are no gradients. CUDA calls do
    not wait, except to copy lists and NumPy arrays to the GPU, and where a method says so.

    Args:
        grid: The grid.
        truncation: Metres: how far in front of and behind a surface distances are kept. Usually three to five voxels.
        device: A torch device: the volume's arrays are torch tensors there.
        like: An array: the volume's arrays are of its library and on its device. NumPy, torch or CuPy. Default: NumPy.

    Examples:
        >>> tsdf = rc.TsdfVolume(grid, truncation=0.15)
        >>> tsdf.integrate(depth, intrinsics, pose)      # one image, or several cameras [C, H, W]
        >>> tsdf.values, tsdf.weights                    # float32 [X, Y, Z]
        >>> tsdf.surface_points()                        # float32 [M, 3]
    """

    __slots__ = ("_grid", "_truncation", "_values", "_weights")

    def __init__(self, grid: Grid, truncation: float, *, device: Any = None, like: Any = None) -> None:
        if device is not None and like is not None:
            raise ValueError("tsdf: device is for torch tensors and like for arrays of any library; give one")
        where = _Place(device, like)
        if not tracing.compiling():  # a traced call is checked when it runs
            _core.tsdf_check(grid, truncation, where.in_host_memory)
        self._grid = grid
        self._truncation = float(truncation)
        self._values = where.full(grid.shape, 1)
        self._weights = where.full(grid.shape, 0)

    @property
    def grid(self) -> Grid:
        """The grid."""
        return self._grid

    @property
    def truncation(self) -> float:
        """Metres: how far in front of and behind a surface distances are kept."""
        return self._truncation

    @property
    def values(self) -> Any:
        """float32 [X, Y, Z]: the mean distance to the surface in units of the truncation, -1 to 1."""
        return self._values

    @property
    def weights(self) -> Any:
        """float32 [X, Y, Z]: the number of readings in that mean."""
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
        """Fuses depth images into the volume: one, or several cameras in their order.

        float64 depth is computed in float64, all others in float32. A CUDA graph can capture the call if all its arrays
        are on the GPU. There, a pose that is not rigid is reported by the next call or by `rc.synchronize()`.

        Args:
            depth: [H, W] or [C, H, W]: uint16, float16, float32 or float64, like the volume's arrays, or NumPy. As in
                OpenCV, z is forward, x right and y down.
            intrinsics: (fx, fy, cx, cy) or 3x3, one or [C, ...]. Pixel centres are at integers.
            pose: [4, 4] or [C, 4, 4]: camera to grid, rigid. None: the camera is at the origin of the grid's frame.
            depth_scale: Metres per unit. Default: 0.001 for uint16, 1 for floats.
            depth_min: Metres: nearer readings are ignored.
            depth_max: Metres: farther readings are ignored.
            invalid: Readings, before the scale, that mean "no reading", such as 65535 for some cameras. At most 8.
            check: False skips the check that poses are rigid.
            backend: "reference", "cpu", "cuda" or "torch". Default: by the device of the volume.
        """
        depth = beside(self._values, depth)
        intrinsics = beside(self._values, intrinsics, np.float64)
        pose = beside(self._values, pose, np.float64)
        volume = (self._values, self._weights, self._grid, self._truncation)
        images: Any = (depth, intrinsics, pose, depth_scale, depth_min, depth_max, invalid, check, backend)
        if not tracing.compiling() and _core.tsdf_integrate(*volume, *images) is not NotImplemented:
            return
        from robocache._torch import tsdf as torch_tsdf

        torch_tsdf.integrate(*volume, *images)

    def surface_points(self, *, backend: str | None = None) -> Any:
        """The points where the surface passes between two neighbouring voxels, in the grid's frame.

        There is a point for each pair of neighbours along x, y or z that both have weight and of which exactly one
        value is below 0. It lies where the line between the two values is 0. Points are ordered by the lower voxel (x,
        y, z), then by the direction x, y, z. On CUDA the call waits once, to learn M.

        Args:
            backend: As in `integrate`.

        Returns:
            float32 [M, 3].
        """
        volume = (self._values, self._weights)
        made = NotImplemented if tracing.compiling() else _surface_points(*volume, self._grid, backend)
        if made is not NotImplemented:
            return made
        from robocache._torch import tsdf as torch_tsdf

        return torch_tsdf.surface_points(*volume, self._grid, backend)

    def __repr__(self) -> str:
        return f"TsdfVolume({shape_of(self._values)}, truncation={self._truncation}, {self._grid!r})"


class _Place:
    """Where a volume's arrays live: NumPy, or the library and device of `like`, or torch's `device`."""

    def __init__(self, device: Any, like: Any) -> None:
        self.torch_device: Any = None
        self.cupy_device: Any = None
        if device is not None:
            torch = sys.modules["torch"] if tracing.compiling() else import_torch(f"tsdf: device={device!r}")
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
            raise TypeError(f"tsdf: like is of type {kind_of(like)}; expected a NumPy or CuPy array, or a torch tensor")

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
