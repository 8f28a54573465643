"""Peers that are not torch. Each is imported when it is measured, and skipped where it is not installed."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.goals import Absent
from bench.timing import Call


def module(name: str, install: str) -> Any:
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:  # OSError: a library of its own that the system lacks
        raise Absent(f"{name} cannot be imported ({error}); {install}") from error


# ---- the mean of voxels by float atomics, which we measure and do not ship: its bits change from run to run

# sm_90 adds four channels in one atomic. With 8 channels two neighbouring threads share a point.
MEAN_KERNELS = r"""
extern "C" __global__ void add(const float* points, const float4* features, int number, int quads, int side, float low,
                               float size, float4* sums, float* counts) {
  const long long thread = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  const int point = thread / quads, quad = thread % quads;
  if (point >= number) return;
  const int x = (int)floorf((points[3 * point] - low) / size);
  const int y = (int)floorf((points[3 * point + 1] - low) / size);
  const int z = (int)floorf((points[3 * point + 2] - low) / size);
  if (min(x, min(y, z)) < 0 || max(x, max(y, z)) >= side) return;
  const long long cell = (x * (long long)side + y) * side + z;
  atomicAdd(sums + cell * quads + quad, features[thread]);
  if (quad == 0) atomicAdd(counts + cell, 1.0f);
}
extern "C" __global__ void divide(float4* sums, const float* counts, int quads, long long total) {
  const long long thread = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (thread >= total) return;
  const float count = counts[thread / quads];
  if (count < 2) return;
  const float4 sum = sums[thread];
  sums[thread] = make_float4(sum.x / count, sum.y / count, sum.z / count, sum.w / count);
}
"""
THREADS = 256


@functools.cache
def _mean_kernels() -> tuple[Any, Any, Any]:
    cupy = module("cupy", "it compiles the kernels")
    made = cupy.RawModule(code=MEAN_KERNELS)
    return cupy, made.get_function("add"), made.get_function("divide")


def float_atomics(points: Tensor, features: Tensor, side: int, extent: float) -> Call:
    """Means of a grid that is a cube around 0, on the current stream: zeros, sums and counts, then quotients."""
    cupy, add, divide = _mean_kernels()
    number, quads = len(points), features.shape[1] // 4
    integer, real = np.int32, np.float32

    def call() -> Tensor:
        sums = torch.zeros(side**3, 4 * quads, device=points.device)
        counts = torch.zeros(side**3, device=points.device)
        at = [tensor.data_ptr() for tensor in (points, features, sums, counts)]
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            where = integer(side), real(-extent / 2), real(extent / side)
            add((_blocks(number * quads),), (THREADS,), (*at[:2], integer(number), integer(quads), *where, *at[2:]))
            total = side**3 * quads
            divide((_blocks(total),), (THREADS,), (*at[2:], integer(quads), np.int64(total)))
        return sums

    return call


def _blocks(threads: int) -> int:
    return -(-threads // THREADS)


# ---- downsampling on a CPU


def numpy_downsample(points: Tensor, size: float) -> Call:
    """The method of small_gicp, in NumPy: pack 21 bits of each axis into one key, sort, and average equal keys."""
    cloud = points.numpy()

    def call() -> Tensor:
        index = np.floor(cloud / np.float32(size)).astype(np.int64) + (1 << 20)
        keys = (index[:, 0] << 42) | (index[:, 1] << 21) | index[:, 2]
        order = np.argsort(keys)
        begins = np.flatnonzero(np.diff(keys[order], prepend=-1))
        counts = np.diff(begins, append=len(keys))
        return torch.from_numpy(np.add.reduceat(cloud[order].astype(np.float64), begins) / counts[:, None])

    return call


def small_gicp(points: Tensor, size: float) -> Call:
    library = module("small_gicp", "pip install small_gicp")
    cloud, threads = library.PointCloud(points.numpy().astype(np.float64)), torch.get_num_threads()
    return lambda: library.voxelgrid_sampling(cloud, size, num_threads=threads)


@functools.cache
def _imported_open3d() -> tuple[Any, int]:
    """The module and its threads. It reads OMP_NUM_THREADS when it is imported, and takes all cores without it."""
    threads = torch.get_num_threads()
    os.environ["OMP_NUM_THREADS"] = str(threads)
    return module("open3d", "pip install robocache[open3d], and apt install libusb-1.0-0 libgl1"), threads


def _open3d() -> Any:
    library, threads = _imported_open3d()
    if threads != torch.get_num_threads():
        raise Absent(f"Open3D keeps the {threads} threads of its import; other counts need a run of their own")
    return library


def open3d(points: Tensor, size: float) -> Call:
    library = _open3d()
    cloud = library.geometry.PointCloud(library.utility.Vector3dVector(points.numpy().astype(np.float64)))
    return lambda: cloud.voxel_down_sample(size)


def open3d_tensor(points: Tensor, size: float) -> Call:
    library = _open3d()
    cloud = library.t.geometry.PointCloud(library.core.Tensor.from_numpy(points.numpy()))
    return lambda: cloud.voxel_down_sample(size)


DOWNSAMPLES: dict[str, Callable[[Tensor, float], Call]] = {
    "numpy": numpy_downsample,
    "small_gicp": small_gicp,
    "open3d": open3d,
    "open3d.t": open3d_tensor,
}
NAMES = ("float atomics", *DOWNSAMPLES)


def downsampled(returned: Any) -> Tensor:
    """The points in the result of any of DOWNSAMPLES."""
    if isinstance(returned, Tensor):
        return returned
    if hasattr(returned, "voxel_down_sample") and hasattr(returned, "point"):  # open3d.t
        return torch.from_numpy(returned.point.positions.numpy())
    inner = returned.points() if callable(returned.points) else returned.points  # small_gicp: homogeneous
    return torch.from_numpy(np.array(inner)[:, :3])
