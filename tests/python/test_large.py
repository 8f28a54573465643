"""Shapes that break 32-bit counters and loops that cost more than their bytes."""

from __future__ import annotations

import numpy as np
import pytest

import robocache as rc


@pytest.fixture(params=["reference", "cpu"])
def backend(request):
    return request.param


def test_a_row_of_ten_million_samples(backend):
    times = np.arange(10**7, dtype=np.int64) * 1_000
    values = np.arange(10**7, dtype=np.float64)[:, None]
    targets = np.array([0, 1, 500, 9_999_998_500, 9_999_999_000, 10**10, 5 * 10**9 + 250], np.int64)
    got = rc.align([rc.Stream(values, times)], targets, backend=backend)[0]
    np.testing.assert_array_equal(got.values[:, 0], [0, 0.001, 0.5, 9_999_998.5, 9_999_999, 9_999_999, 5_000_000.25])
    assert got.valid.tolist() == [True] * 5 + [False, True]
    assert got.index.tolist() == [0, 0, 0, 9_999_998, 9_999_999, 9_999_999, 5_000_000]


def test_the_mean_of_ten_million_samples(backend):
    times = np.arange(10**7, dtype=np.int64)
    values = np.broadcast_to(np.float32(0.1), (10**7, 1))
    got = rc.resample(values, times, np.array([10**7 - 1]), method="mean", backend=backend)
    assert got[0, 0] == np.float32(0.1)


def test_a_million_targets(backend):
    times = np.arange(1000, dtype=np.int64) * 1_000_000
    values = np.arange(1000, dtype=np.float32)
    targets = np.arange(10**6, dtype=np.int64) * 999
    got = rc.align([rc.Stream(values, times)], targets, backend=backend)[0]
    np.testing.assert_array_equal(got.index, targets // 1_000_000)
    np.testing.assert_array_equal(got.age, targets % 1_000_000)
    np.testing.assert_allclose(got.values, targets / 1e6, rtol=1e-6)
    line = rc.align([rc.Stream(values, times)], rc.Timeline(0, rate=1e9 / 1000, count=10**6), backend=backend)[0]
    np.testing.assert_array_equal(line.index, np.minimum(np.arange(10**6) // 1000, 999))


def test_a_hundred_thousand_rows(backend):
    rows = 10**5
    times = np.arange(rows * 4, dtype=np.int64).reshape(rows, 4) * 1000
    values = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4, 1)
    targets = times[:, 1:2] + 500
    got = rc.resample(values, times, targets, backend=backend)
    np.testing.assert_array_equal(got[:, 0, 0], values[:, 1, 0] + 0.5)
    offsets = np.arange(rows + 1) * 4
    packed = rc.resample(values.reshape(-1, 1), times.reshape(-1), targets, offsets=offsets, backend=backend)
    np.testing.assert_array_equal(packed, got)
    order = np.arange(rows)[::-1].copy()
    reverse = rc.resample(values, times, targets[::-1], rows=order, backend=backend)
    np.testing.assert_array_equal(reverse, got[::-1])


def test_4096_channels(backend):
    times = np.arange(20, dtype=np.int64) * 1000
    values = np.arange(20 * 4096, dtype=np.float32).reshape(20, 4096)
    got = rc.resample(values, times, np.array([500, 18_500]), backend=backend)
    np.testing.assert_array_equal(got, np.stack([values[0] + 2048, values[18] + 2048]))


def test_a_million_channels(backend):
    images = np.arange(3, dtype=np.uint8)[:, None, None, None] + np.zeros((1, 512, 683, 3), np.uint8)
    got = rc.resample(images, np.array([0, 1000, 2000]), np.array([1500, 2500]), method="nearest", backend=backend)
    assert (got[0] == 1).all()
    assert (got[1] == 2).all()


def test_offsets_in_elements_beyond_32_bits(backend):
    """Rows, samples and channels that lie more than 2^31 elements apart, in memory that nobody touches."""
    huge = np.empty(5 * 2**30, np.uint8)  # pages exist once written
    apart = 2**31 + 7
    for row in range(2):
        for sample in range(3):
            huge[row * apart + sample * 1000 : row * apart + sample * 1000 + 5] = 10 * row + sample + np.arange(5)
    values = np.lib.stride_tricks.as_strided(huge, (2, 3, 5), (apart, 1000, 1))
    times = np.tile(np.array([0, 1000, 2000], np.int64), (2, 1))
    got = rc.resample(values, times, np.array([0, 1000, 2500]), backend=backend)
    np.testing.assert_array_equal(got, values)

    swapped = values.transpose(1, 0, 2)  # the samples lie that far apart
    got = rc.resample(swapped[:2], times.T[:2] * 0 + np.array([0, 1000]), np.array([0, 1000]), backend=backend)
    np.testing.assert_array_equal(got, swapped[:2])

    channels = np.lib.stride_tricks.as_strided(huge, (3, 2), (1000, apart))
    got = rc.resample(channels, times[0], np.array([0, 1000, 2500]), backend=backend)
    np.testing.assert_array_equal(got, channels)


def test_more_than_2_to_31_samples_that_share_memory(backend):
    """A packed axis of 2^32 samples of which the last few are asked for, through zero strides."""
    many = 2**32
    values = np.broadcast_to(np.uint8(9), (many, 1))
    times = np.broadcast_to(np.int64(5), (many,))
    offsets = np.array([many - 3, many - 1, many])
    got = rc.align(
        [rc.Stream(values, times, offsets=offsets, method="hold")], np.array([4, 5, 6]), check=False, backend=backend
    )[0]
    assert (got.values == 9).all()
    assert got.index.tolist() == [[0, 1, 1], [0, 0, 0]]
    assert got.valid.tolist() == [[False, True, False]] * 2


def test_equal_stamps_by_the_million(backend):
    """No walk along a group of equal stamps, sample by sample, target after target."""
    times = np.zeros(10**6, np.int64)
    times[-1] = 1000
    values = np.arange(10**6, dtype=np.float64)
    for method in ("linear", "cubic", "nearest"):
        got = rc.align([rc.Stream(values, times, method=method)], np.full(20_000, 250), backend=backend)[0]
        assert (got.index == 999_998).all()
        expected = {"nearest": 999_998.0}.get(method, 999_998.25)
        assert (got.values == expected).all()


def test_large_outputs_are_written_everywhere(backend):
    values = np.ones((2, 1), np.uint8)
    times = np.array([0, 1000], np.int64)
    got = rc.resample(values, times, rc.Timeline(0, rate=1e6, count=3 * 10**7), backend=backend)
    assert int(got.sum(dtype=np.int64)) == 3 * 10**7


def test_sparse_voxels_of_the_largest_grid(backend):
    """2^62 cells in four grids: keys up to the last."""
    side = 1 << 20
    grid = rc.Grid((0, 0, 0), 1, (side, side, side))
    points = np.array([[side - 1] * 3, [0, 0, 0], [side - 1, 0, side - 1]], np.float64) + 0.5
    clouds = np.broadcast_to(points, (4, 3, 3))
    voxels = rc.voxelize(clouds, grid, layout="sparse", first=1, backend=backend)
    cells = [[0, 0, 0], [side - 1, 0, side - 1], [side - 1] * 3]
    assert voxels.coordinates.tolist() == [[g, *cell] for g in range(4) for cell in cells]
    assert voxels.point_to_voxel.tolist() == [[3 * g + 2, 3 * g, 3 * g + 1] for g in range(4)]
    np.testing.assert_array_equal(voxels.first[:, 0], np.tile(np.array(cells) + 0.5, (4, 1)))
    small = rc.voxel_downsample(clouds, 1, origin=(side // 2, 0, 0), backend=backend)
    np.testing.assert_array_equal(small.coordinates, voxels.coordinates - np.array([0, side // 2, 0, 0]))
    np.testing.assert_array_equal(small.points, voxels.first[:, 0])


def test_a_million_points_in_one_voxel_and_in_as_many(backend):
    count = 10**6
    line = np.zeros((count, 3), np.float32)
    one = rc.voxel_downsample(line + np.float32(0.1), 1, backend=backend)
    assert (one.counts.tolist(), one.points.tolist()) == ([count], [[float(np.float32(0.1))] * 3])
    line[:, 0] = np.arange(count)[::-1]
    each = rc.voxel_downsample(line, 1, backend=backend)
    assert (each.counts == 1).all()
    np.testing.assert_array_equal(each.coordinates[:, 1], np.arange(count))
    np.testing.assert_array_equal(each.points, line[::-1])
    grid = rc.Grid((0, 0, 0), 1, (count, 1, 1))
    voxels = rc.voxelize(line, grid, first=2, max_voxels=count // 2, backend=backend)
    assert voxels.found.tolist() == [count // 2, count - count // 2]
    np.testing.assert_array_equal(voxels.point_to_voxel[count // 2 :], np.arange(count // 2)[::-1])
    assert (voxels.point_to_voxel[: count // 2] == -1).all()


def test_points_beyond_32_bits_of_elements(backend):
    huge = np.zeros(5 * 2**29, np.float16)  # pages exist once written
    apart = 2**31 + 7
    points = np.lib.stride_tricks.as_strided(huge, (2, 4, 3), (apart * 2, 2000, 2))
    points[1] = 1 + np.arange(4)[:, None]
    voxels = rc.voxelize(
        points, rc.Grid((0, 0, 0), 1, (8, 8, 8)), layout="sparse", features=points, first=1, backend=backend
    )
    assert voxels.coordinates.tolist() == [[0, 0, 0, 0], *[[1, k, k, k] for k in range(1, 5)]]
    assert voxels.first[-1].tolist() == [[4] * 6]
    small = rc.voxel_downsample(points, 1, features=points, backend=backend)
    np.testing.assert_array_equal(small.points, small.features)
    np.testing.assert_array_equal(small.coordinates, voxels.coordinates)
