"""Sparse voxels and voxel_downsample of every kind of array: NumPy, torch, JAX, CuPy, and lists beside them."""

from __future__ import annotations

import functools

import calling
import numpy as np
import pytest
import voxel_calling
import voxel_cases as cases
from test_errors import says

import robocache as rc

GRID = rc.Grid((-4, -4, -4), 2, (4, 4, 4))
RUNS = {"sparse": voxel_calling.sparse, "downsample": voxel_calling.downsample}
EACH = [
    ("sparse", "features/float32/into"),
    ("sparse", "features/float16/cells"),
    ("sparse", "pose/float64/float32"),
    ("sparse", "strides/step"),
    ("sparse", "columns"),
    ("sparse", "clouds/0"),
    ("sparse", "depth/into"),
    ("sparse", "depth/float64/rays_each"),
    ("sparse", "depth/0"),
    ("downsample", "downsample/float32/packed"),
    ("downsample", "downsample/float64/lengths"),
    ("downsample", "downsample/float16/crop/sensor"),
    ("downsample", "downsample/strides/step"),
    ("downsample", "downsample/columns"),
    ("downsample", "downsample/clouds/0"),
]
if cases.BFLOAT16:
    EACH += [("sparse", "features/bfloat16/special"), ("downsample", "downsample/features/bfloat16")]
each = pytest.mark.parametrize(("run", "name"), EACH)


@functools.cache
def expected_of(run: str, name: str) -> list[np.ndarray]:
    return RUNS[run](cases.problem_of(name), "reference")


def parts_of(made) -> dict:
    """All arrays of a result, by name."""
    named = made._asdict()
    named["dropped"] = made.dropped.counts
    values = named.get("values", ())
    named |= {f"values{k}": value for k, value in enumerate(values if isinstance(values, tuple) else (values,))}
    return {name: array for name, array in named.items() if array is not None and name != "values"}


@each
def test_torch_on_the_cpu(run, name):
    pytest.importorskip("torch", reason="torch is not installed")
    actual = RUNS[run](cases.problem_of(name), None, calling.to_torch)
    voxel_calling.assert_same(actual, expected_of(run, name), name)


@each
def test_cupy(run, name, cuda):
    cupy = pytest.importorskip("cupy", reason="cupy is not installed")
    problem = cases.problem_of(name)
    if any(array.dtype == cases.BFLOAT16 for array in problem.arrays.values()):
        pytest.skip("CuPy has no bfloat16")
    actual = RUNS[run](problem, None, cupy.asarray)
    voxel_calling.assert_same(actual, expected_of(run, name), name)


@pytest.fixture
def jax():
    """With 64-bit integers, which coordinates are."""
    jax = pytest.importorskip("jax", reason="jax is not installed")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield jax
    jax.config.update("jax_enable_x64", before)


def test_jax_without_x64_would_cut_coordinates():
    jax = pytest.importorskip("jax", reason="jax is not installed")
    if jax.config.jax_enable_x64:
        pytest.skip("jax_enable_x64 is on")
    points = jax.numpy.asarray(np.array([[4e9, 1, 1]], np.float32))
    parts = [": coordinates are int64, which JAX has only with jax_enable_x64; turn it on"]
    says(TypeError, ["voxelize", *parts], rc.voxelize, points, GRID, layout="sparse")
    says(TypeError, ["voxel_downsample", *parts], rc.voxel_downsample, points, 0.5)


@pytest.mark.parametrize("name", ["features/float32/into", "depth/into"])
def test_jax_sparse(name, jax):
    problem = cases.problem_of(name)
    mine = parts_of(voxel_calling.call(problem, None, jax.numpy.asarray, layout="sparse", first=2))
    theirs = parts_of(voxel_calling.call(problem, "reference", layout="sparse", first=2))
    assert mine.keys() == theirs.keys()
    for part, array in mine.items():
        assert isinstance(array, jax.Array), part
        calling.assert_same_bytes(np.asarray(array), theirs[part], part)


def test_jax_downsample(jax):
    problem = cases.problem_of("downsample/float32/packed")
    points, features = (jax.numpy.asarray(problem.arrays[name]) for name in ("points", "features"))
    small = rc.voxel_downsample(points, 0.5, features=features, offsets=problem.arrays["offsets"].tolist())
    theirs = expected_of("downsample", "downsample/float32/packed")
    for array, expected in zip(parts_of(small).values(), theirs, strict=True):
        assert isinstance(array, jax.Array)
        calling.assert_same_bytes(np.asarray(array), expected, "jax")


def kinds():
    yield "NumPy", lambda array: array
    try:
        import torch
    except ImportError:
        return
    yield "torch", torch.from_numpy
    if torch.cuda.is_available() and calling.unavailable("cuda") is None:
        yield "cuda", lambda array: torch.from_numpy(array).cuda()


@pytest.mark.parametrize("kind", ["NumPy", "torch", "cuda"])
def test_lists_and_numpy_beside(kind):
    convert = dict(kinds()).get(kind)
    if convert is None:
        pytest.skip(f"no {kind} arrays here")
    points = convert(np.zeros((2, 4, 3), np.float32))
    quarter = np.array([[0, -1, 0, 1], [1, 0, 0, 2], [0, 0, 1, 3], [0, 0, 0, 1]], np.float64)
    for pose in (quarter, quarter.tolist(), [quarter, quarter], [quarter.tolist()] * 2, convert(quarter)):
        voxels = rc.voxelize(points, GRID, layout="sparse", lengths=[1, 3], into=[2, 0], pose=pose, first=1)
        assert type(voxels.coordinates) is type(points)
        assert voxels.coordinates.tolist() == [[0, 2, 3, 3], [2, 2, 3, 3]]
        assert voxels.counts.tolist() == [3, 1]
        assert voxels.point_to_voxel.tolist() == [[1, -1, -1, -1], [0, 0, 0, -1]]
        assert voxels.first.tolist() == [[[1, 2, 3]], [[1, 2, 3]]]
        small = rc.voxel_downsample(points, (1, 1, 2), lengths=np.array([1, 3]), pose=pose)
        assert type(small.points) is type(points)
        assert small.points.tolist() == [[1, 2, 3], [1, 2, 3]]
        assert (small.counts.tolist(), small.coordinates.tolist()) == ([1, 3], [[0, 1, 2, 1], [1, 1, 2, 1]])
    flat = points.reshape(8, 3)
    small = rc.voxel_downsample(flat, 0.5, offsets=[1, 4, 4, 6], origin=np.array([-1, -1, -1]))
    assert (small.counts.tolist(), small.coordinates[:, 0].tolist()) == ([3, 2], [0, 2])
    assert small.coordinates[0].tolist() == [0, 2, 2, 2]
    depth = convert(np.full((2, 2, 2), 0.5, np.float32))
    voxels = rc.voxelize_depth(depth, [(1, 1, 0.5, 0.5)] * 2, GRID, layout="sparse", into=[1, 1], pose=quarter.tolist())
    assert voxels.coordinates.tolist() == [[1, 2, 2, 3], [1, 2, 3, 3]]
    assert voxels.point_to_voxel.tolist() == [[[0, 1], [0, 1]]] * 2


@pytest.mark.parametrize("size", [0.5, np.float32(0.5), np.array(0.5), np.array([0.5] * 3), [0.5] * 3, (0.5, 0.5, 0.5)])
def test_sizes_of_any_kind(size):
    points = np.array([[0.4, 0.6, 1.1], [0.1, 0.9, 1.4]], np.float32)
    assert rc.Grid((0, 0, 0), size, (1, 2, 3)) == rc.Grid((0, 0, 0), 0.5, (1, 2, 3))
    assert rc.Grid.from_bounds((0, 0, 0), (1, 1, 1), size).shape == (2, 2, 2)
    assert rc.voxel_downsample(points, size).coordinates.tolist() == [[0, 0, 1, 2]]
    torch = pytest.importorskip("torch", reason="torch is not installed")
    features = torch.ones(2, 1, requires_grad=True)
    for backend in (None, "torch"):
        small = rc.voxel_downsample(torch.from_numpy(points), size, features=features, backend=backend)
        assert small.coordinates.tolist() == [[0, 0, 1, 2]]
        assert small.features.requires_grad


def test_a_torch_number_is_a_size():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    assert rc.Grid((0, 0, 0), torch.tensor(0.5), (1, 1, 1)).voxel_size == (0.5, 0.5, 0.5)
    assert rc.voxel_downsample(torch.zeros(2, 3), torch.tensor(0.5)).counts.tolist() == [2]


def test_zero_clouds_and_zero_points(backend):
    kind, convert = backend
    for points, options in (
        (np.zeros((0, 5, 3), np.float32), {}),
        (np.zeros((0, 3), np.float16), {}),
        (np.zeros((3, 3), np.float64), {"offsets": [1]}),
        (np.zeros((3, 3), np.float64), {"offsets": [2, 2, 2]}),
    ):
        voxels = rc.voxelize(convert(points), GRID, layout="sparse", first=2, backend=kind, **options)
        assert (tuple(voxels.coordinates.shape), tuple(voxels.first.shape)) == ((0, 4), (0, 2, 3))
        assert tuple(voxels.point_to_voxel.shape) == points.shape[:-1]
        assert (calling.to_numpy(voxels.point_to_voxel) == -1).all()
        limited = rc.voxelize(convert(points), GRID, max_voxels=2, layout="sparse", backend=kind, **options)
        assert calling.to_numpy(limited.coordinates).tolist() == [[-1] * 4] * 2
        assert calling.to_numpy(limited.found).tolist() == [0, 0]
        small = rc.voxel_downsample(convert(points), 0.1, backend=kind, **options)
        assert tuple(small.points.shape) == (0, 3)
        assert tuple(small.coordinates.shape) == (0, 4)


def test_the_results_are_one_s_own(backend):
    """Nothing of a result is shared with a later one."""
    kind, convert = backend
    problem = cases.problem_of("downsample/float32/single")
    first = rc.voxel_downsample(convert(problem.arrays["points"]), 0.5, backend=kind)
    kept = calling.to_numpy(first.points).copy()
    rc.voxel_downsample(convert(problem.arrays["points"] + 1), 0.5, backend=kind)
    np.testing.assert_array_equal(calling.to_numpy(first.points), kept)
    assert repr(first).startswith(f"Downsampled(points float32 [{len(kept)}, 3], Dropped(")
