"""Bad input to voxelize gets a sentence: what was wrong, where, and what was expected."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from test_errors import says

import robocache as rc

GRID = rc.Grid((0, 0, 0), 1, (2, 2, 2))
POINTS = np.zeros((4, 3), np.float32)
BATCH = np.zeros((2, 4, 3), np.float32)
FEATURES = np.zeros((4, 2), np.float32)
DEPTH = np.ones((3, 5), np.float32)
CAMERA = (5.0, 5.0, 2.0, 1.0)


@pytest.fixture(autouse=True)
def the_library_works_on():
    yield
    assert rc.voxelize(POINTS, GRID).values[0, 0, 0] == 4


@pytest.mark.parametrize(
    ("error", "parts", "arguments"),
    [
        (ValueError, ["Grid: the shape is [2, 0, 2]", "positive"], ((0, 0, 0), 1, (2, 0, 2))),
        (ValueError, ["Grid: the shape is [2, -1, 2]", "positive"], ((0, 0, 0), 1, (2, -1, 2))),
        (ValueError, ["Grid", "more than 2^62 cells"], ((0, 0, 0), 1, (2**40, 2**40, 1))),
        (ValueError, ["Grid: shape", "64 bits"], ((0, 0, 0), 1, (2**70, 1, 1))),
        (ValueError, ["Grid: the voxel size along y is 0", "positive"], ((0, 0, 0), (1, 0, 1), (2, 2, 2))),
        (ValueError, ["Grid: the voxel size along x is -1", "positive"], ((0, 0, 0), -1, (2, 2, 2))),
        (ValueError, ["Grid: the voxel size along x is nan"], ((0, 0, 0), math.nan, (2, 2, 2))),
        (ValueError, ["Grid: the voxel size along x is inf", "finite"], ((0, 0, 0), math.inf, (2, 2, 2))),
        (ValueError, ["Grid: the origin along z is inf"], ((0, 0, math.inf), 1, (2, 2, 2))),
        (TypeError, ["Grid: origin is (0, 0)", "three numbers"], ((0, 0), 1, (2, 2, 2))),
        (TypeError, ["Grid: shape is 3", "three ints"], ((0, 0, 0), 1, 3)),
        (TypeError, ["Grid: shape is 2.5", "an int"], ((0, 0, 0), 1, (2.5, 2, 2))),
        (TypeError, ["Grid: voxel_size is 'small'"], ((0, 0, 0), "small", (2, 2, 2))),
        (TypeError, ["Grid: voxel_size is None", "a number"], ((0, 0, 0), None, (2, 2, 2))),
    ],
)
def test_grids(error, parts, arguments):
    says(error, parts, rc.Grid, *arguments)


def test_bounds():
    says(ValueError, ["Grid: from 0 to 0 along x", "no cells"], rc.Grid.from_bounds, (0, 0, 0), (0, 1, 1), 1)
    says(ValueError, ["Grid: from 1 to 0 along z", "no cells"], rc.Grid.from_bounds, (0, 0, 1), (1, 1, 0), 1)
    says(ValueError, ["Grid: the voxel size along x is -1"], rc.Grid.from_bounds, (1, 0, 0), (0, 1, 1), (-1, 1, 1))
    says(ValueError, ["Grid: from 0 to inf along x"], rc.Grid.from_bounds, (0, 0, 0), (math.inf, 1, 1), 1)
    says(ValueError, ["2^62"], rc.Grid.from_bounds, (0, 0, 0), (1, 1, 1), 1e-9)


def test_points_and_features():
    says(TypeError, ["voxelize: grid is of type tuple", "robocache.Grid"], rc.voxelize, POINTS, (2, 2, 2))
    says(ValueError, ["voxelize: points have shape [4, 2]"], rc.voxelize, POINTS[:, :2], GRID)
    says(ValueError, ["voxelize: points have shape [3]"], rc.voxelize, POINTS[0], GRID)
    says(ValueError, ["voxelize: points have shape [1, 1, 4, 3]"], rc.voxelize, POINTS[None, None], GRID)
    says(TypeError, ["voxelize: points are int64"], rc.voxelize, POINTS.astype(np.int64), GRID)
    says(TypeError, ["voxelize: points is of type list"], rc.voxelize, POINTS.tolist(), GRID)
    says(ValueError, ["voxelize: reduce mean needs features"], rc.voxelize, POINTS, GRID, reduce="mean")
    parts = ["voxelize: features have shape [3, 2]", "expected [4]"]
    says(ValueError, parts, rc.voxelize, POINTS, GRID, features=FEATURES[:3], reduce="sum")
    parts = ["voxelize: features are float64", "float16, bfloat16, float32 or uint8"]
    says(TypeError, parts, rc.voxelize, POINTS, GRID, features=FEATURES.astype(np.float64), reduce="sum")


def test_what_is_missing():
    says(TypeError, ["voxelize: points is None; expected an array"], rc.voxelize, None, GRID)
    says(TypeError, ["voxelize_depth: depth is None; expected an array"], rc.voxelize_depth, None, CAMERA, GRID)
    says(TypeError, ["voxel_downsample: points is None; expected an array"], rc.voxel_downsample, None, 1)


def test_reductions():
    parts = ["voxelize: reduce is 'median'", "count, occupancy, sum, mean, max or min"]
    says(ValueError, parts, rc.voxelize, POINTS, GRID, reduce="median")
    says(ValueError, parts, rc.voxelize, POINTS, GRID, reduce=("count", "median"))
    says(ValueError, ["voxelize: reduce is empty"], rc.voxelize, POINTS, GRID, reduce=())
    says(TypeError, ["voxelize: reduce is 3"], rc.voxelize, POINTS, GRID, reduce=3)
    says(ValueError, ["voxelize: reduce names count twice"], rc.voxelize, POINTS, GRID, reduce=("count", "count"))
    says(ValueError, ["voxelize: packed is for", "occupancy"], rc.voxelize, POINTS, GRID, packed=True)
    says(ValueError, ["voxelize: empty = 0.5", "count", "int32"], rc.voxelize, POINTS, GRID, empty=0.5)
    says(ValueError, ["voxelize: empty = 256", "uint8"], rc.voxelize, POINTS, GRID, empty=256, reduce="occupancy")
    says(TypeError, ["voxelize: empty is None"], rc.voxelize, POINTS, GRID, empty=None)


def test_batches():
    says(ValueError, ["voxelize: lengths need points"], rc.voxelize, POINTS, GRID, lengths=[1])
    says(ValueError, ["voxelize: lengths has 3 elements for 2"], rc.voxelize, BATCH, GRID, lengths=[1, 1, 1])
    says(ValueError, ["voxelize: lengths[1] = 5 is outside 0..4"], rc.voxelize, BATCH, GRID, lengths=[1, 5])
    says(ValueError, ["voxelize: offsets[1] = 5 is outside 0..4"], rc.voxelize, POINTS, GRID, offsets=[0, 5])
    says(ValueError, ["voxelize: offsets[2] = 1 is below"], rc.voxelize, POINTS, GRID, offsets=[0, 2, 1])
    says(ValueError, ["voxelize: offsets are empty"], rc.voxelize, POINTS, GRID, offsets=[])
    says(ValueError, ["voxelize: into has 3 elements"], rc.voxelize, BATCH, GRID, into=[0, 0, 0])
    says(ValueError, ["voxelize: into[1] = -1 is outside 0..0"], rc.voxelize, BATCH, GRID, into=[0, -1])
    says(ValueError, ["voxelize: into[1] = 3 is outside 0..1"], rc.voxelize, BATCH, GRID, into=[0, 3], grids=2)
    says(ValueError, ["voxelize: there are 2 clouds and no grid"], rc.voxelize, BATCH, GRID, into=[0, 0], grids=0)
    says(ValueError, ["voxelize: grids is -1"], rc.voxelize, BATCH, GRID, into=[0, 0], grids=-1)
    says(ValueError, ["voxelize: grids is 3 for 2 clouds", "into"], rc.voxelize, BATCH, GRID, grids=3)
    says(ValueError, ["voxelize: into is for several clouds"], rc.voxelize, POINTS, GRID, into=[0])
    says(TypeError, ["voxelize: into is float64"], rc.voxelize, BATCH, GRID, into=[0.0, 1.0])


def test_poses_and_boxes():
    says(ValueError, ["voxelize: pose[0] is not rigid"], rc.voxelize, POINTS, GRID, pose=2 * np.eye(4))
    says(ValueError, ["voxelize: pose[0] is not rigid"], rc.voxelize, POINTS, GRID, pose=np.diag([1.0, 1, -1, 1]))
    says(ValueError, ["voxelize: pose has shape [3, 4]"], rc.voxelize, POINTS, GRID, pose=np.eye(4)[:3])
    says(ValueError, ["voxelize: pose has shape [3, 4, 4] for 2"], rc.voxelize, BATCH, GRID, pose=[np.eye(4)] * 3)
    says(TypeError, ["voxelize: pose is int64"], rc.voxelize, POINTS, GRID, pose=np.eye(4, dtype=int))
    says(TypeError, ["voxelize: crop is 3", "(low, high)"], rc.voxelize, POINTS, GRID, crop=3)
    says(TypeError, ["voxelize: crop is (0, 0)", "three"], rc.voxelize, POINTS, GRID, crop=((0, 0), (1, 1)))
    says(ValueError, ["voxelize: crop along y is 2..1"], rc.voxelize, POINTS, GRID, crop=((0, 2, 0), (1, 1, 1)))
    parts = ["voxelize: crop_frame is 'robot'", "grid or sensor"]
    says(ValueError, parts, rc.voxelize, POINTS, GRID, crop_frame="robot")
    voxels = rc.voxelize(POINTS, GRID, pose=2 * np.eye(4), check=False)  # as asked for
    assert voxels.values[0, 0, 0] == 4


def test_lists_that_make_no_array():
    sentence = ["[[1, 2], [3]] cannot become an array", "differ in shape"]
    says(ValueError, sentence, rc.voxelize, POINTS, GRID, pose=[[1, 2], [3]])
    says(ValueError, sentence, rc.voxelize, POINTS, GRID, offsets=[[1, 2], [3]])
    says(ValueError, sentence, rc.voxelize_depth, DEPTH, [[1, 2], [3]], GRID)
    says(ValueError, ["['fx', 5] cannot become an array"], rc.voxelize_depth, DEPTH, ["fx", 5], GRID)


def test_out_of_the_torch_backend():
    torch = pytest.importorskip("torch")
    points, count = torch.from_numpy(POINTS), torch.zeros(2, 2, 2, dtype=torch.int32)
    for backend in (None, "torch"):
        parts = ["voxelize: out is of type", "expected a tuple of 2 arrays, one for each of reduce"]
        several = {"reduce": ("count", "occupancy"), "backend": backend}
        says(TypeError, parts, rc.voxelize, points, GRID, out=(count,), **several)
        says(TypeError, parts, rc.voxelize, points, GRID, out=count, **several)
        says(TypeError, ["voxelize: out is of type tuple"], rc.voxelize, points, GRID, out=(count,), backend=backend)
        # Nothing is written where one of them is wrong.
        count.fill_(7)
        small = torch.zeros(2, 2, dtype=torch.uint8)
        says(ValueError, ["[2, 2]; expected", "[2, 2, 2]"], rc.voxelize, points, GRID, out=(count, small), **several)
        assert bool((count == 7).all())
        small = torch.zeros(2, 2, dtype=torch.int32)
        adding = {"accumulate": True, "backend": backend}
        says(ValueError, ["[2, 2]; expected", "[2, 2, 2]"], rc.voxelize, points, GRID, out=small, **adding)
        bits = torch.zeros(2, 2, 2, dtype=torch.uint8)
        adding |= {"reduce": "occupancy", "packed": True}
        says(ValueError, ["[2, 2, 2]; expected", "[2, 2, 1]"], rc.voxelize, points, GRID, out=bits, **adding)


def test_into_that_is_no_list_of_grids():
    unsigned = np.zeros(2, np.uint64)
    says(TypeError, ["voxelize: into is uint64; it must be int64 or int32"], rc.voxelize, BATCH, GRID, into=unsigned)
    says(ValueError, ["voxelize: into[0] = -5 is outside 0..0"], rc.voxelize, BATCH, GRID, into=[-5, -6])
    says(ValueError, ["voxelize: into has shape [2, 1]"], rc.voxelize, BATCH, GRID, into=[[0], [1]])
    says(TypeError, ["voxelize: into"], rc.voxelize, BATCH, GRID, into=[0.5, 1.5])


def test_intrinsics_of_any_strides():
    rows = np.broadcast_to(np.array([2.0, 1.5, 1.0]), (3, 3))
    expected = rc.voxelize_depth(DEPTH, rows.copy(), GRID).values
    np.testing.assert_array_equal(rc.voxelize_depth(DEPTH, rows, GRID).values, expected)


def test_out():
    right = np.zeros((2, 2, 2), np.int32)
    says(TypeError, ["voxelize: out is int64", "int32"], rc.voxelize, POINTS, GRID, out=right.astype(np.int64))
    says(ValueError, ["voxelize: count has shape [2, 2]", "[2, 2, 2]"], rc.voxelize, POINTS, GRID, out=right[0])
    says(ValueError, ["voxelize: count must be contiguous"], rc.voxelize, POINTS, GRID, out=right.T)
    says(ValueError, ["voxelize: accumulate", "give out"], rc.voxelize, POINTS, GRID, accumulate=True)
    parts = ["voxelize: accumulate with sum", "order", "into"]
    out = np.zeros((2, 2, 2, 2), np.float32)
    says(ValueError, parts, rc.voxelize, POINTS, GRID, features=FEATURES, reduce="sum", out=out, accumulate=True)
    parts = ["voxelize: out is of type numpy.ndarray", "tuple of 1"]
    says(TypeError, parts, rc.voxelize, POINTS, GRID, reduce=("count",), out=right)
    memory = np.zeros(16, np.int32)
    points = memory.view(np.float32)[:12].reshape(4, 3)
    parts = ["voxelize: out overlaps points in memory"]
    says(ValueError, parts, rc.voxelize, points, GRID, out=memory[8:].reshape(2, 2, 2))
    both = np.zeros((2, 2, 2, 2), np.float32)
    parts = ["voxelize: out overlaps out in memory"]
    says(ValueError, parts, rc.voxelize, POINTS, GRID, features=FEATURES, reduce=("sum", "mean"), out=(both, both))
    right.flags.writeable = False
    says(ValueError, ["voxelize: out is read-only"], rc.voxelize, POINTS, GRID, out=right)


def test_a_grid_that_does_not_fit():
    large = rc.Grid((0, 0, 0), 1, (1 << 16, 1 << 16, 1 << 10))
    parts = [
        "voxelize: 1 dense grid of [65536, 65536, 1024] would take 16384.0 GiB",
        'take larger voxels, or layout="sparse"',
    ]
    says(ValueError, parts, rc.voxelize, POINTS, large)
    parts = ["voxelize: 2 dense grids", "32768.0 GiB"]
    says(ValueError, parts, rc.voxelize, BATCH, large)
    largest = rc.Grid((0, 0, 0), 1, (1 << 20, 1 << 21, 1 << 21))
    says(ValueError, ["voxelize", "GiB"], rc.voxelize, POINTS, largest, features=FEATURES, reduce=("sum", "max"))


def test_precision():
    small = rc.Grid((0, 0, 0), 1e-60, (2, 2, 2))
    says(ValueError, ["voxelize", "beyond float32", "float64"], rc.voxelize, POINTS, small)
    assert rc.voxelize(POINTS.astype(np.float64), small).values[0, 0, 0] == 4


def test_depth():
    call = rc.voxelize_depth
    says(TypeError, ["voxelize_depth: depth is int32"], call, DEPTH.astype(np.int32), CAMERA, GRID)
    says(ValueError, ["voxelize_depth: depth has shape [5]"], call, DEPTH[0], CAMERA, GRID)
    says(ValueError, ["voxelize_depth: give intrinsics or rays"], call, DEPTH, None, GRID)
    says(ValueError, ["voxelize_depth: intrinsics have shape [3]"], call, DEPTH, CAMERA[:3], GRID)
    parts = ["voxelize_depth: intrinsics has shape [2, 4] for 1"]
    says(ValueError, parts, call, DEPTH, [CAMERA, CAMERA], GRID)
    parts = ["voxelize_depth: rays have shape [5, 3, 2]"]
    says(ValueError, parts, call, DEPTH, None, GRID, rays=np.zeros((5, 3, 2), np.float32))
    says(ValueError, ["voxelize_depth: depth_scale is 0"], call, DEPTH, CAMERA, GRID, depth_scale=0)
    says(ValueError, ["voxelize_depth: depth_scale is -1"], call, DEPTH, CAMERA, GRID, depth_scale=-1)
    says(ValueError, ["voxelize_depth: depth_min = 2"], call, DEPTH, CAMERA, GRID, depth_min=2, depth_max=1)
    says(TypeError, ["voxelize_depth: invalid is 0", "(0,)"], call, DEPTH, CAMERA, GRID, invalid=0)
    says(ValueError, ["voxelize_depth: 9 invalid readings; at most 8"], call, DEPTH, CAMERA, GRID, invalid=range(9))


def test_torch():
    torch = pytest.importorskip("torch")
    points, features = torch.zeros(4, 3), torch.zeros(4, 1)
    says(TypeError, ["voxelize: features is a NumPy array", "torch"], rc.voxelize, points, GRID, features=FEATURES)
    out = torch.zeros((2, 2, 2, 1), requires_grad=True)
    says(ValueError, ["out requires grad"], rc.voxelize, points, GRID, features=features, reduce="max", out=out)


def test_cuda_data_is_checked_later(cuda):
    points = cuda(BATCH)
    rc.voxelize(points, GRID, lengths=[1, 5])
    says(ValueError, ["voxelize: lengths[1] = 5 is outside 0..4"], rc.synchronize)
    rc.voxelize(points, GRID, pose=2 * np.eye(4))
    says(ValueError, ["voxelize: pose[0] is not rigid"], rc.synchronize)


# ---- voxel_downsample --------------------------------------------------------------------------------------------


def test_downsample_sizes_and_origins():
    call = rc.voxel_downsample
    says(TypeError, ["voxel_downsample: voxel_size is None", "a number"], call, POINTS, None)
    says(TypeError, ["voxel_downsample: voxel_size is 'small'", "a number"], call, POINTS, "small")
    says(TypeError, ["voxel_downsample: voxel_size is (1, 2)", "three numbers"], call, POINTS, (1, 2))
    says(TypeError, ["voxel_downsample: voxel_size", "three numbers"], call, POINTS, np.ones(2))
    says(TypeError, ["voxel_downsample: voxel_size", "a number"], call, POINTS, (1, "2", 3))
    says(ValueError, ["voxel_downsample: the voxel size along x is 0", "positive"], call, POINTS, 0)
    says(ValueError, ["voxel_downsample: the voxel size along z is -1", "positive"], call, POINTS, (1, 1, -1))
    says(ValueError, ["voxel_downsample: the voxel size along x is nan"], call, POINTS, math.nan)
    says(ValueError, ["voxel_downsample: the voxel size along x is inf", "finite"], call, POINTS, math.inf)
    parts = ["voxel_downsample: the grid's origin 0 or voxel size 1e-60", "beyond float32"]
    says(ValueError, parts, call, POINTS, 1e-60)
    says(TypeError, ["voxel_downsample: origin is 0", "three numbers"], call, POINTS, 1, origin=0)
    says(TypeError, ["voxel_downsample: origin is None", "three numbers"], call, POINTS, 1, origin=None)
    says(TypeError, ["voxel_downsample: origin is (0, 0)", "three numbers"], call, POINTS, 1, origin=(0, 0))
    says(TypeError, ["voxel_downsample: origin is 'xyz'"], call, POINTS, 1, origin="xyz")
    says(ValueError, ["voxel_downsample: the origin along y is inf"], call, POINTS, 1, origin=(0, math.inf, 0))


def test_downsample_arrays():
    call = rc.voxel_downsample
    says(ValueError, ["voxel_downsample: points have shape [4, 2]"], call, POINTS[:, :2], 1)
    says(ValueError, ["voxel_downsample: points have shape [3]"], call, POINTS[0], 1)
    says(TypeError, ["voxel_downsample: points are int64"], call, POINTS.astype(np.int64), 1)
    says(TypeError, ["voxel_downsample: points is of type list"], call, POINTS.tolist(), 1)
    parts = ["voxel_downsample: features have shape [3, 2]", "expected [4]"]
    says(ValueError, parts, call, POINTS, 1, features=FEATURES[:3])
    parts = ["voxel_downsample: features are float64", "float16, bfloat16, float32 or uint8"]
    says(TypeError, parts, call, POINTS, 1, features=FEATURES.astype(np.float64))
    says(ValueError, ["voxel_downsample: lengths need points"], call, POINTS, 1, lengths=[1])
    says(ValueError, ["voxel_downsample: lengths[1] = 5 is outside 0..4"], call, BATCH, 1, lengths=[1, 5])
    says(ValueError, ["voxel_downsample: offsets[1] = 5 is outside 0..4"], call, POINTS, 1, offsets=[0, 5])
    says(ValueError, ["voxel_downsample: offsets[2] = 1 is below"], call, POINTS, 1, offsets=[0, 2, 1])
    says(ValueError, ["voxel_downsample: offsets are empty"], call, POINTS, 1, offsets=[])
    says(ValueError, ["voxel_downsample: lengths are for padded"], call, BATCH, 1, lengths=[1, 1], offsets=[0, 1])
    says(ValueError, ["voxel_downsample: pose[0] is not rigid"], call, POINTS, 1, pose=2 * np.eye(4))
    says(ValueError, ["voxel_downsample: pose[1] is not rigid"], call, BATCH, 1, pose=[np.eye(4), 2 * np.eye(4)])
    says(ValueError, ["voxel_downsample: pose has shape [3, 4]"], call, POINTS, 1, pose=np.eye(4)[:3])
    says(TypeError, ["voxel_downsample: crop is 3", "(low, high)"], call, POINTS, 1, crop=3)
    says(ValueError, ["voxel_downsample: crop along y is 2..1"], call, POINTS, 1, crop=((0, 2, 0), (1, 1, 1)))
    says(ValueError, ["voxel_downsample: crop_frame is 'robot'"], call, POINTS, 1, crop_frame="robot")
    says(TypeError, ["voxel_downsample: check is 1"], call, POINTS, 1, check=1)
    says(ValueError, ["voxel_downsample: backend is 'gpu'"], call, POINTS, 1, backend="gpu")
    loose = call(POINTS, 1, pose=2 * np.eye(4), check=False)  # as asked for
    assert loose.counts.tolist() == [4]


def test_downsample_of_torch_has_the_same_sentences():
    torch = pytest.importorskip("torch")
    points = torch.from_numpy(POINTS)
    for options in ({"backend": "torch"}, {"features": torch.zeros(4, 1, requires_grad=True)}):
        call = functools.partial(rc.voxel_downsample, points, **options)
        says(ValueError, ["voxel_downsample: the voxel size along x is 0", "positive"], call, 0)
        says(TypeError, ["voxel_downsample: voxel_size is (1, 2)", "three numbers"], call, (1, 2))
        says(TypeError, ["voxel_downsample: origin is (0, 0)", "three numbers"], call, 1, origin=(0, 0))
        says(ValueError, ["voxel_downsample: offsets[1] = 5 is outside 0..4"], call, 1, offsets=[0, 5])
        says(ValueError, ["voxel_downsample: pose[0] is not rigid"], call, 1, pose=2 * np.eye(4))
        says(ValueError, ["voxel_downsample: crop along y is 2..1"], call, 1, crop=((0, 2, 0), (1, 1, 1)))
        parts = ["voxel_downsample: the points span", "2^62"]
        far = functools.partial(rc.voxel_downsample, points + torch.arange(4)[:, None] * 1e12, **options)
        says(ValueError, parts, far, 1e-3)


def test_cuda_says_at_once_what_it_finds_where_it_waits_anyway(cuda):
    sentence = ["voxel_downsample: lengths[1] = 5 is outside 0..4"]
    says(ValueError, sentence, rc.voxel_downsample, cuda(BATCH), 1, lengths=[1, 5])
    call = functools.partial(rc.voxelize, cuda(POINTS), GRID, layout="sparse", pose=2 * np.eye(4))
    says(ValueError, ["voxelize: pose[0] is not rigid"], call)
    call(max_voxels=4)
    says(ValueError, ["voxelize: pose[0] is not rigid"], rc.synchronize)


# ---- out and grids -----------------------------------------------------------------------------------------------


def test_grids_beside_out():
    kinds = [(np.asarray, None)]
    torch = pytest.importorskip("torch")
    kinds += [(torch.from_numpy, None), (torch.from_numpy, "torch")]
    for convert, backend in kinds:
        points, out = convert(BATCH), convert(np.zeros((2, 2, 2, 2), np.int32))
        call = functools.partial(rc.voxelize, points, GRID, out=out, backend=backend)
        says(ValueError, ["voxelize: grids is 3 and out has 2"], call, into=[0, 0], grids=3)
        says(ValueError, ["voxelize: into[1] = 2 is outside 0..1"], call, into=[0, 2])
        assert call(into=[0, 0], grids=2).values is out  # the second stays empty
        assert call(into=[0, 0]).values is out
        assert out.reshape(2, 8).sum(1).tolist() == [8, 0]
        depth = convert(np.ones((2, 3, 5), np.float32))
        call = functools.partial(rc.voxelize_depth, depth, CAMERA, GRID, out=out, backend=backend)
        says(ValueError, ["voxelize_depth: grids is 1 and out has 2"], call, into=[0, 0], grids=1)
        none = convert(np.zeros((), np.int32))
        error = ValueError
        says(error, ["voxelize:"], rc.voxelize, points, GRID, into=[0, 0], out=none, backend=backend)


def test_a_depth_scale_that_float32_has_not():
    torch = pytest.importorskip("torch")
    depth = np.ones((3, 5), np.uint16)
    for convert, backend in ((np.asarray, None), (torch.from_numpy, None), (torch.from_numpy, "torch")):
        for scale in (1e-60, 1e60):
            parts = [f"voxelize_depth: depth_scale {scale:g} is beyond float32, in which uint16 is computed"]
            call = functools.partial(rc.voxelize_depth, convert(depth), CAMERA, GRID, backend=backend)
            says(ValueError, parts, call, depth_scale=scale)
            wide = rc.voxelize_depth(
                convert(DEPTH.astype(np.float64)), CAMERA, GRID, depth_scale=scale, backend=backend
            )
            assert int(wide.dropped.no_reading) == 0
    integrate = rc.TsdfVolume(GRID, truncation=1).integrate
    says(ValueError, ["depth_scale 1e-60 is beyond float32"], integrate, depth, CAMERA, np.eye(4), depth_scale=1e-60)
