"""TsdfVolume: the case table against the oracles, backends in bytes, a sphere, real frames, torch, sentences."""

from __future__ import annotations

import math

import calling
import numpy as np
import pytest
import tsdf_cases as cases
import tsdf_oracle as oracle
from test_errors import says
from test_voxelize_data import frames

import robocache as rc

every_case = pytest.mark.parametrize("name", list(cases.BY_NAME))
GRID = rc.Grid((-1, -1, 0), 0.125, (16, 16, 16))
CAMERA = (8.0, 8.0, 3.5, 2.5)
DEPTH = np.full((6, 8), 1000, np.uint16)
HERE = np.eye(4)


# ---- the case table ----------------------------------------------------------------------------------------------


@every_case
def test_reference_equals_the_oracle(name):
    problem = cases.problem_of(name)
    expected = oracle.integrate(problem, exact=True)
    values, weights, points = cases.reference(name)
    calling.assert_same_bytes(values, expected.values, f"{name}: values")
    calling.assert_same_bytes(weights, expected.weights, f"{name}: weights")
    calling.assert_same_bytes(points, oracle.surface_points(problem, values, weights), f"{name}: points")


@every_case
def test_reference_is_near_float64(name):
    """Where float32 and float64 look at the same pixel, values agree to 1e-5 of the truncation and a metre."""
    problem = cases.problem_of(name)
    expected = oracle.integrate(problem, exact=False)
    values, weights, _ = cases.reference(name)
    sure = expected.sure
    assert sure.mean() > 0.7
    np.testing.assert_array_equal(weights[sure], expected.weights[sure])
    np.testing.assert_allclose(values[sure], expected.values[sure], atol=1e-5 * max(1, 1 / problem.truncation))


@every_case
def test_cpu_equals_reference(name, simd):
    cases.assert_same(cases.outputs(cases.problem_of(name), "cpu"), cases.reference(name), f"{name}: cpu {simd}")


@every_case
def test_cuda_equals_reference(name, cuda):
    cases.assert_same(cases.outputs(cases.problem_of(name), "cuda", cuda), cases.reference(name), f"{name}: cuda")


@every_case
def test_torch_tensors_are_served_by_the_engine(name):
    pytest.importorskip("torch")
    cases.assert_same(cases.outputs(cases.problem_of(name), None, calling.to_torch), cases.reference(name), name)


@every_case
def test_portable_equals_reference(name):
    pytest.importorskip("torch")
    cases.assert_same(cases.outputs(cases.problem_of(name), "torch", calling.to_torch), cases.reference(name), name)


@every_case
def test_portable_on_cuda(name, cuda):
    cases.assert_same(cases.outputs(cases.problem_of(name), "torch", cuda), cases.reference(name), name)


def test_the_table_has_surfaces():
    told = {name: cases.reference(name)[1].max() for name in cases.BY_NAME}
    assert [name for name, weight in told.items() if weight == 0] == ["pixels/0"]
    assert sum(len(cases.reference(name)[2]) for name in cases.BY_NAME) > 10_000


# ---- volumes -----------------------------------------------------------------------------------------------------


def test_a_volume_begins_empty():
    tsdf = rc.TsdfVolume(GRID, 0.25)
    assert (tsdf.values.dtype, tsdf.weights.dtype) == (np.float32, np.float32)
    assert tsdf.values.shape == tsdf.weights.shape == GRID.shape
    assert np.all(tsdf.values == 1)
    assert np.all(tsdf.weights == 0)
    assert (tsdf.surface_points().shape, tsdf.surface_points().dtype) == ((0, 3), np.float32)
    assert (tsdf.grid, tsdf.truncation) == (GRID, 0.25)
    assert repr(tsdf) == f"TsdfVolume(float32 [16, 16, 16], truncation=0.25, {GRID!r})"


def test_a_wall():
    tsdf = rc.TsdfVolume(GRID, truncation=0.25)
    assert tsdf.integrate(DEPTH, CAMERA, np.eye(4)) is None
    points = tsdf.surface_points()
    np.testing.assert_allclose(points[:, 2], 1.0, atol=1e-6)
    assert len(points) == (tsdf.weights[:, :, 8] > 0).sum() == 48
    # A second look at the same wall says nothing new, and is a second reading.
    values, weights = tsdf.values.copy(), tsdf.weights.copy()
    tsdf.integrate(DEPTH, CAMERA, np.eye(4))
    np.testing.assert_array_equal(tsdf.values, values)
    np.testing.assert_array_equal(tsdf.weights, 2 * weights)


def test_cameras_together_and_one_by_one(backend):
    kind, convert = backend
    problem = cases.problem_of("float32/matrix_each")
    one_by_one = cases.volume_of(problem, convert)
    for c in range(len(problem.arrays["depth"])):
        part = [convert(np.ascontiguousarray(problem.arrays[name][c])) for name in ("depth", "intrinsics", "pose")]
        one_by_one.integrate(*part, backend=kind)
    values, weights, _ = cases.reference("float32/matrix_each")
    calling.assert_same_bytes(calling.to_numpy(one_by_one.values), values, "values")
    calling.assert_same_bytes(calling.to_numpy(one_by_one.weights), weights, "weights")


def test_lists_and_numpy_beside_torch():
    torch = pytest.importorskip("torch")
    expected = rc.TsdfVolume(GRID, 0.25)
    expected.integrate(DEPTH, np.array(CAMERA), np.eye(4))
    tsdf = rc.TsdfVolume(GRID, 0.25, device="cpu")
    tsdf.integrate(DEPTH, list(CAMERA), np.eye(4).tolist())
    assert isinstance(tsdf.values, torch.Tensor)
    np.testing.assert_array_equal(tsdf.values.numpy(), expected.values)
    np.testing.assert_array_equal(tsdf.surface_points().numpy(), expected.surface_points())
    twin = rc.TsdfVolume(GRID, 0.25, like=torch.zeros(1))
    version = twin.values._version
    twin.integrate(torch.from_numpy(DEPTH), CAMERA, torch.eye(4))
    assert twin.values._version > version  # autograd sees that it was written
    assert torch.equal(twin.values, tsdf.values)


def test_threads_do_not_matter():
    before = rc.num_threads()
    for threads in (1, 2, 5):
        rc.set_num_threads(threads)
        cases.assert_same(cases.outputs(cases.problem_of("limits"), "cpu"), cases.reference("limits"), str(threads))
    rc.set_num_threads(before)


def test_cupy_like():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    if reason := calling.unavailable("cuda"):
        pytest.skip(reason)
    actual = cases.outputs(cases.problem_of("uint16/four"), None, cupy.asarray)
    cases.assert_same(actual, cases.reference("uint16/four"), "CuPy")


# ---- a sphere ----------------------------------------------------------------------------------------------------

RADIUS, DISTANCE = 0.5, 1.5


def look(direction) -> np.ndarray:
    """The pose of a camera that looks at the origin from there."""
    forward = -np.asarray(direction, np.float64) / np.linalg.norm(direction)
    right = np.cross([0.0, 0.0, 1.0] if abs(forward[2]) < 0.9 else [0.0, 1.0, 0.0], forward)
    right /= np.linalg.norm(right)
    pose = np.eye(4)
    pose[:3, :3] = np.stack([right, np.cross(forward, right), forward], axis=1)
    pose[:3, 3] = -DISTANCE * forward
    return pose


def sphere_depth(shape, camera) -> np.ndarray:
    """Metres along the axis of a camera that looks at the sphere's middle; 0 beside it."""
    fx, fy, cx, cy = camera
    v, u = np.mgrid[0 : shape[0], 0 : shape[1]]
    ray = np.stack([(u - cx) / fx, (v - cy) / fy, np.ones(shape)], -1)
    # |z ray - (0, 0, DISTANCE)| = RADIUS, the nearer of the two.
    a, b, c = (ray**2).sum(-1), DISTANCE, DISTANCE**2 - RADIUS**2
    root = b * b - a * c
    return np.where(root > 0, (b - np.sqrt(np.maximum(root, 0))) / a, 0)


def test_a_sphere(backend):
    kind, convert = backend
    size = 0.03125
    grid = rc.Grid.from_bounds((-0.75, -0.75, -0.75), (0.75, 0.75, 0.75), size)
    tsdf = rc.TsdfVolume(grid, 4 * size, like=convert(np.zeros(1)))
    camera = np.array([585.0, 585.0, 320.0, 240.0])
    directions = [(x, y, z) for x in (-1, 0, 1) for y in (-1, 0, 1) for z in (-1, 0, 1) if (x, y, z) != (0, 0, 0)]
    depth = sphere_depth((480, 640), camera).astype(np.float32)
    for direction in directions:
        tsdf.integrate(convert(depth), convert(camera), convert(look(direction)), backend=kind)
    points = calling.to_numpy(tsdf.surface_points(backend=kind)).astype(np.float64)
    radius = np.linalg.norm(points, axis=1)
    assert np.abs(radius - RADIUS).max() < size / 2
    # About one for each voxel face that the sphere passes: 4 pi r^2 times the mean of |nx| + |ny| + |nz|, 1.5.
    assert len(points) == pytest.approx(1.5 * 4 * math.pi * RADIUS**2 / size**2, rel=0.05)
    inside = np.linalg.norm(np.array(grid.origin) + (np.argwhere(np.ones(grid.shape)) + 0.5) * size, axis=1) < RADIUS
    values, weights = (calling.to_numpy(array).reshape(-1) for array in (tsdf.values, tsdf.weights))
    seen = weights > 0
    assert ((values < 0) == inside)[seen].mean() > 0.98


# ---- real frames -------------------------------------------------------------------------------------------------


def test_depth_frames(backend):
    kind, convert = backend
    depth, intrinsics, poses = frames(3)
    problem = cases.Problem(
        ((-2.0, -2.0, -0.5), (0.06, 0.06, 0.06), (60, 60, 60)),
        {"depth": depth, "intrinsics": intrinsics, "pose": poses},
        0.2,
        {"invalid": (0, 65535), "depth_max": 6.0},
    )
    expected = oracle.integrate(problem, exact=True)
    tsdf = cases.integrate(problem, kind, convert)
    values, weights = calling.to_numpy(tsdf.values), calling.to_numpy(tsdf.weights)
    calling.assert_same_bytes(values, expected.values, "values")
    calling.assert_same_bytes(weights, expected.weights, "weights")
    assert (weights > 0).mean() > 0.05
    # The surface is where the readings are: nearly all of its points have one in their voxel or the next.
    points = calling.to_numpy(tsdf.surface_points())
    grid = rc.Grid(*problem.grid)
    options = {**problem.options, "pose": poses, "into": [0, 0, 0], "reduce": "occupancy"}
    near = rc.voxelize_depth(depth, intrinsics, grid, **options).values[0].astype(bool)
    for axis in range(3):
        near = near | np.roll(near, 1, axis) | np.roll(near, -1, axis)
    cell = np.floor((points - np.array(grid.origin)) / 0.06).astype(int)
    assert len(points) > 1000
    assert near[tuple(cell.T)].mean() > 0.95


# ---- torch -------------------------------------------------------------------------------------------------------


def test_captured_in_a_cuda_graph(cuda):
    import torch

    problem = cases.problem_of("uint16/four_each")
    arrays = [cuda(problem.arrays[name]) for name in ("depth", "intrinsics", "pose")]
    tsdf = cases.volume_of(problem, cuda)
    tsdf.integrate(*arrays)  # whatever happens once has happened
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tsdf.integrate(*arrays)
    tsdf.values.fill_(1)
    tsdf.weights.fill_(0)
    graph.replay()
    values, weights, points = cases.reference("uint16/four_each")
    calling.assert_same_bytes(calling.to_numpy(tsdf.values), values, "values")
    calling.assert_same_bytes(calling.to_numpy(tsdf.weights), weights, "weights")
    calling.assert_same_bytes(calling.to_numpy(tsdf.surface_points()), points, "points")


def test_cuda_tells_of_a_pose_in_the_next_call(cuda):
    import torch

    tsdf = rc.TsdfVolume(GRID, 0.25, device="cuda")
    tsdf.integrate(DEPTH, CAMERA, 2 * torch.eye(4, device="cuda"))
    torch.cuda.synchronize()
    says(ValueError, ["tsdf: pose[0] is not rigid", "earlier call"], tsdf.integrate, DEPTH, CAMERA, np.eye(4))


def test_a_volume_of_more_than_2_to_31_voxels(cuda):
    """Its end has the bits of a volume that is only that end: the numbers here are exact in float32."""
    import torch

    if torch.cuda.mem_get_info()[0] < 40 * 2**30:
        pytest.skip("cuda: under 40 GiB of GPU memory are free")
    size, side, begin = 2.0**-9, 1300, 1200
    whole = rc.TsdfVolume(rc.Grid((0, 0, 0), size, (side,) * 3), 0.25, device="cuda")
    end = rc.TsdfVolume(rc.Grid((begin * size, 0, 0), size, (side - begin, side, side)), 0.25, device="cuda")
    depth = np.tile(np.linspace(0.5, 2.5, 640, dtype=np.float32), (480, 1))
    for tsdf in (whole, end):
        tsdf.integrate(depth, (200.0, 200.0, 100.0, 100.0), np.eye(4))
    assert float(end.weights.sum()) > 0
    assert torch.equal(whole.values[begin:], end.values)
    assert torch.equal(whole.weights[begin:], end.weights)
    points, last = whole.surface_points(), end.surface_points()
    assert len(last) > 0
    assert torch.equal(points[len(points) - len(last) :], last)


def test_no_gradients():
    torch = pytest.importorskip("torch")
    tsdf = rc.TsdfVolume(GRID, 0.25, device="cpu")
    depth = torch.ones(6, 8, requires_grad=True)
    for backend in (None, "torch"):
        tsdf.integrate(depth, CAMERA, np.eye(4), backend=backend)
        assert not tsdf.values.requires_grad


# ---- sentences ---------------------------------------------------------------------------------------------------


def test_volumes_say_what_is_wrong():
    says(TypeError, ["tsdf: grid is of type tuple", "robocache.Grid"], rc.TsdfVolume, (2, 2, 2), 0.1)
    for wrong in (0, -0.1, math.inf, math.nan):
        says(ValueError, ["tsdf: truncation is", "positive and finite"], rc.TsdfVolume, GRID, wrong)
    says(TypeError, ["tsdf: truncation is None", "a number"], rc.TsdfVolume, GRID, None)
    says(TypeError, ["tsdf: like is of type list"], rc.TsdfVolume, GRID, 0.1, like=[1])
    says(ValueError, ["tsdf: device", "like", "give one"], rc.TsdfVolume, GRID, 0.1, device="cpu", like=np.zeros(1))
    huge = rc.Grid((0, 0, 0), 1, (2**20, 2**20, 2**10))
    says(ValueError, ["tsdf: a volume of", "GiB", "are free", "smaller grid"], rc.TsdfVolume, huge, 0.1)


@pytest.mark.parametrize("backend", [None, "reference", "torch"])
def test_images_say_what_is_wrong(backend):
    device = None
    if backend == "torch":
        pytest.importorskip("torch")
        device = "cpu"
    tsdf = rc.TsdfVolume(GRID, 0.25, device=device)

    def wrong(error, parts, depth=DEPTH, intrinsics=CAMERA, pose=HERE, **options):
        says(error, parts, tsdf.integrate, depth, intrinsics, pose, backend=backend, **options)

    wrong(TypeError, ["tsdf: depth is int64", "uint16, float16, float32 or float64"], DEPTH.astype(int))
    wrong(ValueError, ["tsdf: depth has shape [8]", "[H, W] or [cameras, H, W]"], DEPTH[0])
    wrong(ValueError, ["tsdf: intrinsics have shape [3]", "expected (fx, fy, cx, cy)"], intrinsics=(1.0, 1.0, 2.0))
    wrong(ValueError, ["tsdf: intrinsics are missing"], intrinsics=None)
    wrong(ValueError, ["tsdf: pose has shape [3, 4]", "expected [4, 4]"], pose=np.eye(4)[:3])
    wrong(ValueError, ["tsdf: pose has shape [3, 4, 4] for 1"], pose=np.stack([np.eye(4)] * 3))
    wrong(ValueError, ["tsdf: pose[0] is not rigid"], pose=2 * np.eye(4))
    wrong(ValueError, ["tsdf: depth_scale is 0"], depth_scale=0)
    wrong(ValueError, ["tsdf: depth_min = 2 is not below depth_max = 1"], depth_min=2, depth_max=1)
    wrong(ValueError, ["tsdf: 9 invalid readings"], invalid=range(9))
    wrong(TypeError, ["tsdf: invalid is 3"], invalid=3)
    assert float(tsdf.weights.max()) == 0  # nothing was written
    tsdf.integrate(DEPTH, CAMERA, 2 * np.eye(4), check=False, backend=backend)  # as asked for


def test_arrays_of_two_kinds_and_backends_elsewhere():
    torch = pytest.importorskip("torch")
    tsdf = rc.TsdfVolume(GRID, 0.25)
    parts = ["tsdf: depth is a torch tensor, but values is a NumPy array"]
    says(TypeError, parts, tsdf.integrate, torch.ones(6, 8), CAMERA, np.eye(4))
    says(ValueError, ["tsdf: backend is 'tpu'"], tsdf.integrate, DEPTH, CAMERA, None, backend="tpu")
    says(TypeError, ["tsdf: backend torch takes torch tensors"], tsdf.surface_points, backend="torch")


def test_a_device_that_there_is_not():
    pytest.importorskip("torch")
    with pytest.raises(ValueError, match="tsdf: device is 'nonsense', which torch does not know"):
        rc.TsdfVolume(rc.Grid((0, 0, 0), 1, (2, 2, 2)), 1.0, device="nonsense")
