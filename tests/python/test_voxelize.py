"""The case table of voxelize: against the oracle in bytes, backends against each other in bytes."""

from __future__ import annotations

import itertools
import math
import pickle

import calling
import numpy as np
import pytest
import voxel_calling
import voxel_cases as cases
import voxel_oracle as oracle

import robocache as rc

every_case = pytest.mark.parametrize("name", list(cases.BY_NAME))


@every_case
def test_reference_equals_the_oracle(name):
    problem = cases.problem_of(name)
    expected = oracle.voxelize(problem)
    voxel_calling.assert_same(voxel_calling.reference(name), [*expected.values, expected.dropped], name)


@every_case
def test_cpu_equals_reference(name, simd):
    actual = voxel_calling.voxelize(cases.problem_of(name), "cpu")
    voxel_calling.assert_same(actual, voxel_calling.reference(name), f"{name}: cpu {simd}")


@every_case
def test_cuda_equals_reference(name, cuda):
    actual = voxel_calling.voxelize(cases.problem_of(name), "cuda", cuda)
    voxel_calling.assert_same(actual, voxel_calling.reference(name), f"{name}: cuda")


def test_the_table_has_points_in_cells():
    """A table whose points all fall outside would prove little."""
    inside = total = 0
    for case in cases.CASES:
        for _, flat in oracle.voxelize(case.build()).cells:
            inside += int(np.sum(flat >= 0))
            total += len(flat)
    assert inside > total / 3


# ---- sums --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["one_voxel", "wide_range", "features/float32/into", "features/float16/cells", "reduce/sum"]
)
def test_sums_are_within_the_stated_bound(name, backend):
    """docs/semantics.md: n points of a cell, N of the grid: n * max|f| * 2^(bit_width(N) - 62), then the roundings."""
    kind, convert = backend
    problem = cases.problem_of(name)
    where = oracle.voxelize(problem)
    cells = math.prod(problem.grid[2])
    given: dict[int, int] = {}
    for grid, flat in where.cells:
        given[grid] = given.get(grid, 0) + len(flat)
    rows: dict[int, list[np.ndarray]] = {}
    for cloud, (grid, flat) in enumerate(where.cells):
        features = oracle.cloud_features(problem, cloud, oracle.cloud_points(problem, cloud)[2])
        for k in np.flatnonzero(flat >= 0):
            rows.setdefault(grid * cells + int(flat[k]), []).append(features[k].astype(np.float64))
    largest: dict[int, np.ndarray] = {}
    for key, members in rows.items():
        table = np.where(np.isfinite(members), np.abs(members), 0.0).max(axis=0)
        largest[key // cells] = np.maximum(largest.get(key // cells, 0.0), table)
    sums, means, _ = voxel_calling.voxelize(problem, kind, convert, reduce=("sum", "mean"))
    channels = sums.shape[-1]
    sums, means = (array.reshape(-1, channels).astype(np.float64) for array in (sums, means))
    for key, members in rows.items():
        grid, n = key // cells, len(members)
        for c in range(channels):
            column = [float(row[c]) for row in members]
            if not all(math.isfinite(x) for x in column):
                continue
            truth = math.fsum(column)
            bound = n * float(largest[grid][c]) * 2.0 ** (given[grid].bit_length() - 62)
            for actual, exact, slack in ((sums[key, c], truth, bound), (means[key, c], truth / n, bound / n)):
                rounding = 2.0**-24 * abs(exact) * (1 + 2.0**-20) + 2.0**-150
                assert abs(actual - exact) <= slack + rounding, (name, key, c)


def test_sums_of_like_magnitudes_are_exact(backend):
    """docs/semantics.md: nothing is lost where the features span no more than 2^(38 - bit_width(N))."""
    kind, convert = backend
    random = cases.Random(5)
    points = cases.coordinates(random, (3000,), "float32")
    features = (2 + random.values((3000, 2), "float32") / 8).astype(np.float32)
    grid = rc.Grid((-9, -9, -9), 18, (1, 1, 1))
    sums = rc.voxelize(convert(points), grid, features=convert(features), reduce="sum", backend=kind).values
    expected = [np.float32(math.fsum(features[:, c].tolist())) for c in range(2)]
    np.testing.assert_array_equal(calling.to_numpy(sums).reshape(-1), expected)


@pytest.mark.parametrize(
    "name", ["one_voxel", "wide_range", "special/float32", "features/float32/special", "features/float16/cells"]
)
def test_the_order_of_points_does_not_matter(name, backend):
    kind, convert = backend
    problem = cases.problem_of(name)
    generator = np.random.default_rng(1)
    arrays = dict(problem.arrays)
    if "offsets" in arrays:
        bounds = arrays["offsets"]
        order = np.arange(len(arrays["points"]))
        for begin, end in itertools.pairwise(bounds):
            order[begin:end] = generator.permutation(order[begin:end])
    else:
        order = generator.permutation(arrays["points"].shape[-2])
    for part in ("points", "features"):
        if part in arrays:
            arrays[part] = np.take(arrays[part], order, axis=-2)
    shuffled = cases.Problem(problem.grid, arrays, problem.options)
    voxel_calling.assert_same(voxel_calling.voxelize(shuffled, kind, convert), voxel_calling.reference(name), name)


def test_every_run_is_the_same(backend):
    kind, convert = backend
    random = cases.Random(11)
    problem = cases.make_clouds(random, points=40000, layout="padded", channels=3, reduce=cases.REDUCTIONS)
    first = voxel_calling.voxelize(problem, kind, convert)
    for _ in range(3):
        voxel_calling.assert_same(voxel_calling.voxelize(problem, kind, convert), first, "again")


def test_threads_do_not_matter():
    random = cases.Random(12)
    grid = ((-4.0, -4.0, -4.0), (0.125, 0.125, 0.125), (64, 64, 64))
    problem = cases.make_clouds(
        random, points=70000, layout="into", channels=2, reduce=cases.REDUCTIONS, grid=grid, odd_features=True
    )
    expected = voxel_calling.voxelize(problem, "reference")
    before = rc.num_threads()
    try:
        for threads in (1, 2, 5):
            rc.set_num_threads(threads)
            voxel_calling.assert_same(voxel_calling.voxelize(problem, "cpu"), expected, f"{threads} threads")
    finally:
        rc.set_num_threads(before)


# ---- what goes in and what comes out -----------------------------------------------------------------------------


def test_grid():
    grid = rc.Grid.from_bounds(low=(-3, -3, 0), high=(3, 3, 2), voxel_size=0.05)
    assert grid == rc.Grid((-3, -3, 0), 0.05, (120, 120, 40))
    assert repr(grid) == "Grid(origin=(-3.0, -3.0, 0.0), voxel_size=0.05, shape=(120, 120, 40))"
    assert (grid.low, grid.high) == ((-3.0, -3.0, 0.0), (3.0, 3.0, 2.0))
    other = rc.Grid(np.zeros(3), (1, 2, 3), np.array([4, 5, 6]))
    assert repr(other) == "Grid(origin=(0.0, 0.0, 0.0), voxel_size=(1.0, 2.0, 3.0), shape=(4, 5, 6))"
    assert pickle.loads(pickle.dumps(other)) == other
    assert len({grid, other, rc.Grid((0, 0, 0), (1, 2, 3), (4, 5, 6))}) == 2
    with pytest.raises(AttributeError):
        grid.shape = (1, 1, 1)


def test_shapes():
    points = np.zeros((5, 3), np.float32)
    grid = rc.Grid((-1, -1, -1), 1, (2, 3, 11))
    values, dropped = rc.voxelize(points, grid)
    assert (values.shape, values.dtype) == ((2, 3, 11), np.int32)
    assert values[1, 1, 1] == 5
    assert int(dropped.outside) == int(dropped.not_finite) == int(dropped.cropped) == int(dropped.no_reading) == 0
    features = np.ones((5, 4), np.float16)
    count, mean, high = rc.voxelize(points, grid, features=features, reduce=("count", "mean", "max")).values
    assert (count.shape, mean.shape, high.shape) == ((2, 3, 11), (2, 3, 11, 4), (2, 3, 11, 4))
    assert (mean.dtype, high.dtype) == (np.float32, np.float16)
    bits = rc.voxelize(points[None], grid, reduce="occupancy", packed=True)
    assert (bits.values.shape, bits.values.dtype) == ((1, 2, 3, 2), np.uint8)
    assert bits.values[0, 1, 1, 0] == 2
    assert bits.dropped.outside.shape == (1,)
    assert isinstance(rc.voxelize(points, grid, reduce=("count",)).values, tuple)
    assert repr(bits) == (
        "Voxels(values uint8 [1, 2, 3, 2], Dropped(no_reading=0, not_finite=0, cropped=0, outside=0))"
    )


def test_lists_do_for_small_arrays():
    points = np.zeros((3, 2, 3), np.float32)
    grid = rc.Grid((-1, -1, -1), 2, (1, 1, 1))
    pose = np.eye(4).tolist()
    voxels = rc.voxelize(points, grid, lengths=[1, 2, 0], into=[0, 1, 1], pose=pose)
    np.testing.assert_array_equal(voxels.values.reshape(-1), [1, 2])
    np.testing.assert_array_equal(rc.voxelize(points[0], grid, offsets=[0, 1, 2]).values.reshape(-1), [1, 1])
    np.testing.assert_array_equal(rc.voxelize(points, grid, into=np.array([2, 0, 0])).values.reshape(-1), [4, 0, 2])
    assert rc.voxelize(points[:0], grid, into=[]).values.shape == (0, 1, 1, 1)
    depth = np.full((2, 2, 2), 500, np.uint16)
    cameras = [(1, 1, 0.5, 0.5), (1, 1, 0.5, 0.5)]
    np.testing.assert_array_equal(rc.voxelize_depth(depth, cameras, grid).values.reshape(-1), [4, 4])
    matrix = [[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1]]
    np.testing.assert_array_equal(rc.voxelize_depth(depth, matrix, grid).values.reshape(-1), [4, 4])


def test_torch_tensors_with_lists_and_numpy_beside_them():
    torch = pytest.importorskip("torch")
    points = torch.zeros((2, 4, 3))
    grid = rc.Grid((-1, -1, -1), 2, (1, 1, 1))
    for pose in (np.eye(4), np.eye(4).tolist(), [torch.eye(4), torch.eye(4)], torch.eye(4)):
        voxels = rc.voxelize(points, grid, pose=pose, into=[1, 1])
        assert isinstance(voxels.values, torch.Tensor)
        assert voxels.values.reshape(-1).tolist() == [0, 8]
        assert voxels.dropped.outside.tolist() == [0, 0]
    depth = torch.full((2, 2), 0.5)
    assert rc.voxelize_depth(depth, (1, 1, 0.5, 0.5), grid).values.item() == 4


def test_cuda_tensors_with_lists_and_numpy_beside_them(cuda):
    import torch

    points = torch.zeros((2, 4, 3), device="cuda")
    grid = rc.Grid((-1, -1, -1), 2, (1, 1, 1))
    for pose in (np.eye(4), np.eye(4).tolist(), torch.eye(4, device="cuda")):
        voxels = rc.voxelize(points, grid, pose=pose, into=[1, 1])
        assert voxels.values.is_cuda
        assert voxels.values.reshape(-1).tolist() == [0, 8]
    into = torch.tensor([0, 0], device="cuda")
    with pytest.raises(ValueError, match="say grids="):
        rc.voxelize(points, grid, into=into)
    assert rc.voxelize(points, grid, into=into, grids=2).values.reshape(-1).tolist() == [8, 0]


@pytest.mark.parametrize("name", ["features/float32/into", "depth/into", "accumulate", "pose/float64/float32"])
def test_torch_on_the_cpu(name):
    pytest.importorskip("torch")
    actual = voxel_calling.voxelize(cases.problem_of(name), None, calling.to_torch)
    voxel_calling.assert_same(actual, voxel_calling.reference(name), name)


def test_jax():
    jax = pytest.importorskip("jax")
    problem = cases.problem_of("features/float32/into")
    voxels = voxel_calling.call(problem, None, lambda array: jax.numpy.asarray(array))
    for mine, theirs in zip(voxels.values, voxel_calling.reference("features/float32/into"), strict=False):
        assert isinstance(mine, jax.Array)
        calling.assert_same_bytes(np.asarray(mine), theirs, "jax")
    np.testing.assert_array_equal(
        np.asarray(voxels.dropped.counts), voxel_calling.reference("features/float32/into")[-1]
    )


def test_out_is_written_and_returned(backend):
    kind, convert = backend
    problem = cases.problem_of("features/float32/into")
    fresh = tuple(convert(np.full_like(array, 1)) for array in voxel_calling.reference("features/float32/into")[:-1])
    made = voxel_calling.call(problem, kind, convert, out=fresh)
    assert all(mine is theirs for mine, theirs in zip(made.values, fresh, strict=True))
    for mine, theirs in zip(fresh, voxel_calling.reference("features/float32/into"), strict=False):
        calling.assert_same_bytes(calling.to_numpy(mine), theirs, "out")


def test_clouds_one_by_one_equal_clouds_at_once(backend):
    """accumulate streams what into gathers."""
    kind, convert = backend
    random = cases.Random(21)
    problem = cases.make_clouds(
        random, layout="into", clouds=4, channels=2, reduce=("count", "occupancy", "max", "min")
    )
    problem.arrays["into"] = np.zeros(4, np.int64)
    problem.options["grids"] = 1
    whole = voxel_calling.voxelize(problem, kind, convert, empty=0)[:-1]
    out = tuple(convert(np.zeros_like(array[0])) for array in whole)
    for low, value in ((2, -math.inf), (3, math.inf)):
        out[low][...] = value
    for cloud in range(4):
        arrays = {name: problem.arrays[name][cloud] for name in ("points", "features")}
        rc.voxelize(
            convert(arrays["points"]),
            rc.Grid(*problem.grid),
            features=convert(arrays["features"]),
            reduce=("count", "occupancy", "max", "min"),
            out=out,
            accumulate=True,
            backend=kind,
        )
    filled = whole[0][0] > 0
    for mine, theirs in zip(out, whole, strict=True):
        np.testing.assert_array_equal(calling.to_numpy(mine)[filled], theirs[0][filled])


def test_depth_equals_the_cloud_that_it_is(backend):
    """Unprojected by hand in float64: no point lies near enough to a face for the roundings to matter here."""
    kind, convert = backend
    random = cases.Random(31)
    depth = (0.5 + random.integers(0, 1000, (2, 20, 30)) / 512).astype(np.float64)
    fx, fy, cx, cy = 25.0, 26.0, 14.5, 9.5
    v, u = np.mgrid[0:20, 0:30]
    points = np.stack([((u - cx) * depth) / fx, ((v - cy) * depth) / fy, depth], axis=-1).reshape(2, -1, 3)
    pose = np.stack([cases.rotation(random) for _ in range(2)])
    grid = rc.Grid((-3, -3, -3), 0.37, (16, 16, 16))
    from_depth = rc.voxelize_depth(
        convert(depth), convert(np.array([fx, fy, cx, cy])), grid, pose=convert(pose), backend=kind
    )
    from_points = rc.voxelize(convert(points), grid, pose=convert(pose), backend=kind)
    np.testing.assert_array_equal(calling.to_numpy(from_depth.values), calling.to_numpy(from_points.values))
    assert calling.to_numpy(from_depth.values).sum() > 0


# ---- cameras -----------------------------------------------------------------------------------------------------


def redistorted(rays: np.ndarray, distortion) -> np.ndarray:
    """OpenCV's forward model, from its documentation."""
    k1, k2, p1, p2, k3, k4, k5, k6, s1, s2, s3, s4, tau_x, tau_y = [*distortion, *[0] * 10][:14]
    x, y = rays[..., 0], rays[..., 1]
    r2 = x**2 + y**2
    radial = (1 + k1 * r2 + k2 * r2**2 + k3 * r2**3) / (1 + k4 * r2 + k5 * r2**2 + k6 * r2**3)
    seen = [
        x * radial + 2 * p1 * x * y + p2 * (r2 + 2 * x**2) + s1 * r2 + s2 * r2**2,
        y * radial + p1 * (r2 + 2 * y**2) + 2 * p2 * x * y + s3 * r2 + s4 * r2**2,
        np.ones_like(x),
    ]
    cos_x, sin_x, cos_y, sin_y = np.cos(tau_x), np.sin(tau_x), np.cos(tau_y), np.sin(tau_y)
    turned = [
        cos_y * seen[0] + sin_y * (sin_x * seen[1] - cos_x * seen[2]),
        cos_x * seen[1] + sin_x * seen[2],
        sin_y * seen[0] + cos_y * (cos_x * seen[2] - sin_x * seen[1]),
    ]
    r13, r23, r33 = -sin_y * cos_x, sin_x, cos_y * cos_x
    return np.stack(
        [(r33 * turned[0] - r13 * turned[2]) / turned[2], (r33 * turned[1] - r23 * turned[2]) / turned[2]], axis=-1
    )


@pytest.mark.parametrize(
    "distortion",
    [
        (0, 0, 0, 0),
        (-0.28, 0.07, 0.0002, 0.00002),
        (0.1, -0.2, 0.001, -0.002, 0.05),
        (0.5, -2.4, 0.0004, -0.0003, 1.4, 0.4, -2.2, 1.3),
        (-0.28, 0.07, 0.0002, 0.00002, 0.01, 0.02, -0.03, 0.001, 0.01, -0.02, 0.005, 0.003),
        (-0.28, 0.07, 0.0002, 0.00002, 0.01, 0.02, -0.03, 0.001, 0.01, -0.02, 0.005, 0.003, 0.1, -0.2),
        (-0.28, 0.07, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
    ],
)
def test_camera_rays_distort_back_to_their_pixels(distortion):
    fx, fy, cx, cy = 458.0, 457.0, 367.0, 248.0
    rays = rc.camera_rays((fx, fy, cx, cy), (480, 752), distortion)
    assert (rays.shape, rays.dtype) == ((480, 752, 2), np.float32)
    again = redistorted(rays.astype(np.float64), distortion)
    found = np.isfinite(rays[..., 0])
    assert found.mean() > 0.99
    v, u = np.mgrid[0:480, 0:752]
    np.testing.assert_allclose((again[..., 0] * fx + cx)[found], u[found], atol=1e-3)
    np.testing.assert_allclose((again[..., 1] * fy + cy)[found], v[found], atol=1e-3)
    matrix = np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]])
    np.testing.assert_array_equal(rc.camera_rays(matrix, (480, 752), distortion), rays)


def test_camera_rays_without_distortion_are_the_pinhole():
    depth = np.full((6, 8), 0.75)
    grid = rc.Grid((-2, -2, 0), 0.125, (32, 32, 8))
    camera = (8.0, 8.0, 3.5, 2.5)
    rays = rc.camera_rays(camera, depth.shape)
    pinhole = rc.voxelize_depth(depth, camera, grid).values
    np.testing.assert_array_equal(rc.voxelize_depth(depth, None, grid, rays=rays).values, pinhole)


def test_a_pixel_that_no_ray_reaches_is_not_finite():
    rays = rc.camera_rays((100, 100, 200, 200), (401, 401), (-0.3, 0, 0, 0))  # folds back at r = 1.05
    assert np.isnan(rays[0, 0]).all()
    assert np.isfinite(rays[200, 250]).all()
    voxels = rc.voxelize_depth(np.ones((401, 401), np.float32), None, rc.Grid((-9, -9, 0), 1, (18, 18, 2)), rays=rays)
    assert int(voxels.dropped.not_finite) == np.isnan(rays[..., 0]).sum() > 0


def test_camera_rays_say_what_is_wrong():
    with pytest.raises(ValueError, match=r"camera_rays: intrinsics have shape \[2\]"):
        rc.camera_rays((1, 2), (2, 2), (0, 0, 0, 0))
    with pytest.raises(ValueError, match=r"camera_rays: distortion has 6 numbers; .* 4, 5, 8, 12 or 14"):
        rc.camera_rays((1, 1, 0, 0), (2, 2), np.zeros(6))
    with pytest.raises(ValueError, match=r"camera_rays: distortion: \[nan, .*; expected finite numbers"):
        rc.camera_rays((1, 1, 0, 0), (2, 2), (np.nan, 0, 0, 0))
    with pytest.raises(TypeError, match="camera_rays: intrinsics: 'pinhole'; expected numbers"):
        rc.camera_rays("pinhole", (2, 2))
    with pytest.raises(ValueError, match="camera_rays: the focal lengths are 0 and 5"):
        rc.camera_rays((0, 5, 1, 1), (2, 2))
    for size in (5, (2.5, 2), (1, 2, 3)):
        with pytest.raises(TypeError, match=r"camera_rays: size is .*; expected \(height, width\)"):
            rc.camera_rays((1, 1, 0, 0), size)
    with pytest.raises(ValueError, match=r"camera_rays: size is \(-2, 3\)"):
        rc.camera_rays((1, 1, 0, 0), (-2, 3))
