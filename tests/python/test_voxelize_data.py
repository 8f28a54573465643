"""Clouds and depth frames that real sensors made, from the shared data; skipped where it is absent."""

from __future__ import annotations

import calling
import numpy as np
import pytest
import voxel_calling
import voxel_cases as cases
import voxel_oracle as oracle
from recordings import shared

import robocache as rc


@pytest.mark.parametrize("name", ["lidar_source.ply", "cturtle.pcd", "table_scene_mug.pcd", "lidar_ascii.pcd"])
def test_clouds(name, backend):
    kind, convert = backend
    points = rc.read_cloud(shared(f"clouds/{name}")).points
    finite = points[np.isfinite(points).all(axis=1)]
    low, high = finite.min(axis=0).astype(float), finite.max(axis=0).astype(float)
    size = float((high - low).max()) / 60
    grid = rc.Grid.from_bounds(low, high + size / 2, size)
    problem = cases.Problem(
        (grid.origin, grid.voxel_size, grid.shape),
        {"points": points, "features": np.nan_to_num(points).astype(np.float32)},
        {"reduce": ("count", "mean")},
    )
    count, mean, dropped = voxel_calling.voxelize(problem, kind, convert)
    flat, counts, _ = oracle.located(problem, 0)
    np.testing.assert_array_equal(dropped, counts)
    assert counts[1] == len(points) - len(finite)
    assert counts[3] == 0
    expected = np.bincount(flat[flat >= 0], minlength=count.size)
    np.testing.assert_array_equal(count.reshape(-1), expected)
    # The mean of the points of a cell lies in the cell, but for its own rounding and theirs.
    filled = np.argwhere(count > 0)
    begin = np.array(grid.origin) + filled * size
    slack = 1e-5 * size + 2e-7 * np.abs(begin).max()
    inside = mean[count > 0]
    assert np.all(inside >= begin - slack)
    assert np.all(inside <= begin + size + slack)


def frames(count: int):
    depth = np.stack([rc.read_depth(shared(f"depth/frame-{20 * k:06d}.depth.png")) for k in range(count)])
    poses = np.stack([np.loadtxt(shared(f"depth/frame-{20 * k:06d}.pose.txt")) for k in range(count)])
    return depth, np.loadtxt(shared("depth/camera-intrinsics.txt")), poses


def test_depth_frames(backend):
    kind, convert = backend
    depth, intrinsics, poses = frames(4)
    problem = cases.Problem(
        ((-2.0, -2.0, -1.0), (0.05, 0.05, 0.05), (100, 100, 100)),
        {"depth": depth, "intrinsics": intrinsics, "pose": poses, "into": np.array([0, 0, 1, 1])},
        {"reduce": ("count", "occupancy"), "invalid": (0, 65535), "depth_max": 6.0, "grids": 2},
    )
    count, occupancy, dropped = voxel_calling.voxelize(problem, kind, convert)
    for camera in range(4):
        np.testing.assert_array_equal(dropped[camera], oracle.located(problem, camera)[1])
    for grid in range(2):
        expected = np.zeros(count[grid].size, np.int64)
        for camera in (2 * grid, 2 * grid + 1):
            flat = oracle.located(problem, camera)[0]
            expected += np.bincount(flat[flat >= 0], minlength=expected.size)
        np.testing.assert_array_equal(count[grid].reshape(-1), expected)
    np.testing.assert_array_equal(occupancy, count > 0)
    assert count.sum() > depth.size / 4


def test_depth_frames_in_torch_are_the_same():
    pytest.importorskip("torch")
    depth, intrinsics, poses = frames(2)
    grid = rc.Grid((-2, -2, -1), 0.05, (100, 100, 100))
    mine = rc.voxelize_depth(calling.to_torch(depth), intrinsics, grid, pose=poses, invalid=(0, 65535))
    theirs = rc.voxelize_depth(depth, intrinsics, grid, pose=poses, invalid=(0, 65535), backend="reference")
    np.testing.assert_array_equal(mine.values.numpy(), theirs.values)
