"""Beside Open3D, on clouds that real sensors made: the same voxels, the same counts, the same means.

Open3D computes in double from a corner half a voxel below the lowest point, so points are float64 here and `origin` is
that corner.
"""

from __future__ import annotations

import calling
import numpy as np
import pytest
import voxel_cases as cases
from recordings import shared

import robocache as rc

o3d = pytest.importorskip(
    "open3d", reason="Open3D is not installed (pip install 'robocache[open3d]'), or lacks libusb", exc_type=ImportError
)

NAMES = ["lidar_source.ply", "lidar_target.ply", "lidar_ascii.pcd", "cturtle.pcd", "table_scene_mug.pcd"]
PARTS = [30, 200]  # voxels along the longest side
each_cloud = pytest.mark.parametrize("name", NAMES)
each_size = pytest.mark.parametrize("parts", PARTS)


def points_of(name: str) -> np.ndarray:
    """As they were measured, what is not finite too, and turned, so that no coordinate is a short number any more."""
    points = rc.read_cloud(shared(f"clouds/{name}")).points.astype(np.float64)
    return points @ cases.rotation(cases.Random(3))[:3, :3].T


class Theirs:
    """What Open3D makes of a cloud. Its voxels come in no order: sorted here, by x, y, z."""

    def __init__(self, points: np.ndarray, parts: int, colours: np.ndarray | None = None):
        self.finite = np.isfinite(points).all(axis=1)
        points = points[self.finite]
        self.cloud = o3d.geometry.PointCloud(o3d.utility.Vector3dVector(points))
        if colours is not None:
            self.cloud.colors = o3d.utility.Vector3dVector(colours[self.finite].astype(np.float64))
        low, high = points.min(axis=0), points.max(axis=0)
        self.size = float((high - low).max()) / parts
        self.low, self.high = low - self.size * 0.5, high + self.size * 0.5
        small, _, members = self.cloud.voxel_down_sample_and_trace(self.size, self.low, self.high)
        members = [np.asarray(own) for own in members]
        cells = np.floor((points[[own[0] for own in members]] - self.low) / self.size).astype(np.int64)
        order = np.lexsort(cells.T[::-1])
        self.cells, self.means = cells[order], np.asarray(small.points)[order]
        self.colours = np.asarray(small.colors)[order] if colours is not None else None
        self.members = [members[k] for k in order]
        self.counts = np.array([len(own) for own in self.members])


@each_cloud
@each_size
def test_voxel_downsample(name, parts, backend):
    kind, convert = backend
    points = points_of(name)
    theirs = Theirs(points, parts)
    ours = rc.voxel_downsample(convert(points), theirs.size, origin=theirs.low, backend=kind)
    assert int(ours.dropped.not_finite) == int((~theirs.finite).sum())
    assert int(ours.dropped.outside) == 0
    np.testing.assert_array_equal(calling.to_numpy(ours.coordinates)[:, 1:], theirs.cells)
    np.testing.assert_array_equal(calling.to_numpy(ours.counts), theirs.counts)
    means = calling.to_numpy(ours.points)
    scale = np.abs(points[theirs.finite]).max()
    np.testing.assert_allclose(means, theirs.means, rtol=1e-9, atol=1e-9 * scale)
    # voxel_down_sample, which people call, is the same set.
    plain = np.asarray(theirs.cloud.voxel_down_sample(theirs.size).points)
    assert plain.shape == means.shape
    np.testing.assert_allclose(np.sort(plain, axis=0), np.sort(means, axis=0), rtol=1e-9, atol=1e-9 * scale)


@each_cloud
def test_features_are_their_colours(name, backend):
    kind, convert = backend
    points = points_of(name)
    colours = cases.Random(5).integers(0, 256, (len(points), 3)).astype(np.float32) / np.float32(256)
    theirs = Theirs(points, 30, colours)
    arrays = {"features": convert(colours)}
    ours = rc.voxel_downsample(convert(points), theirs.size, origin=theirs.low, backend=kind, **arrays)
    np.testing.assert_allclose(calling.to_numpy(ours.features), theirs.colours, rtol=0, atol=2.0**-24)


@each_cloud
@each_size
def test_voxelize_finds_the_voxels_of_their_grid(name, parts, backend):
    kind, convert = backend
    points = points_of(name)
    theirs = Theirs(points, parts)
    made = o3d.geometry.VoxelGrid.create_from_point_cloud_within_bounds(
        theirs.cloud, theirs.size, theirs.low, theirs.high
    )
    cells = np.array([voxel.grid_index for voxel in made.get_voxels()], np.int64)
    cells = cells[np.lexsort(cells.T[::-1])]
    grid = rc.Grid.from_bounds(theirs.low, theirs.high, theirs.size)
    sparse = rc.voxelize(convert(points), grid, reduce=("count", "occupancy"), layout="sparse", backend=kind)
    np.testing.assert_array_equal(calling.to_numpy(sparse.coordinates)[:, 1:], cells)
    np.testing.assert_array_equal(calling.to_numpy(sparse.values[0]), theirs.counts)
    assert (calling.to_numpy(sparse.values[1]) == 1).all()
    row = calling.to_numpy(sparse.point_to_voxel)[theirs.finite]
    for k, own in enumerate(theirs.members):
        assert (row[own] == k).all()
    dense = rc.voxelize(convert(points), grid, reduce=("count", "occupancy"), backend=kind)
    count, occupancy = (calling.to_numpy(values) for values in dense.values)
    np.testing.assert_array_equal(np.argwhere(occupancy), cells)
    np.testing.assert_array_equal(count[occupancy > 0], theirs.counts)


def test_depth_images_are_their_clouds():
    """Float depth, unprojected there and here; in float32 here, so voxels are asked for, not means."""
    depth = rc.read_depth(shared("depth/frame-000000.depth.png"))
    depth = np.where(depth == 65535, 0, depth)
    intrinsics, pose = (
        np.loadtxt(shared(f"depth/{name}")) for name in ("camera-intrinsics.txt", "frame-000000.pose.txt")
    )
    height, width = depth.shape
    camera = o3d.camera.PinholeCameraIntrinsic(
        width, height, intrinsics[0, 0], intrinsics[1, 1], intrinsics[0, 2], intrinsics[1, 2]
    )
    cloud = o3d.geometry.PointCloud.create_from_depth_image(
        o3d.geometry.Image(depth.astype(np.uint16)), camera, np.linalg.inv(pose), depth_scale=1000.0, depth_trunc=100.0
    )
    grid = rc.Grid((-4, -4, -2), 0.05, (160, 160, 160))
    theirs = rc.voxelize(np.asarray(cloud.points), grid)
    ours = rc.voxelize_depth(depth, intrinsics, grid, pose=pose)
    assert int(ours.dropped.no_reading) == depth.size - len(cloud.points)
    moved = np.abs(ours.values.astype(np.int64) - theirs.values).sum() / 2  # points beside a face may change sides
    assert moved <= 1e-4 * len(cloud.points), moved
