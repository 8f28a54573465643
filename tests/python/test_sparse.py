"""Sparse voxels and voxel_downsample: the cases of voxelize, against the oracle and each other in bytes."""

from __future__ import annotations

import functools
import math
import re

import calling
import numpy as np
import pytest
import voxel_calling
import voxel_cases as cases
import voxel_oracle as oracle

import robocache as rc

every_case = pytest.mark.parametrize("name", [case.name for case in cases.SPARSE_CASES])
every_downsample = pytest.mark.parametrize("name", [case.name for case in cases.DOWNSAMPLE_CASES])
LIMITED = ["features/float32/into", "count/float64/packed", "depth/into", "empty/max", "empty/mean", "one_voxel"]


assert_same = voxel_calling.assert_same


def run(name: str, backend: str | None, convert=calling.keep, **changes) -> list[np.ndarray]:
    return voxel_calling.sparse(cases.problem_of(name), backend, convert, **changes)


@functools.cache
def expected_of(name: str, max_voxels: int | None = None) -> list[np.ndarray]:
    return oracle.sparse(cases.problem_of(name), voxel_calling.FIRST, max_voxels).arrays()


@functools.cache
def downsampled_of(name: str) -> list[np.ndarray]:
    return oracle.downsample(cases.problem_of(name))


@every_case
def test_reference_equals_the_oracle(name):
    assert_same(run(name, "reference"), expected_of(name), name)


@every_case
def test_cpu_equals_the_oracle(name, simd):
    assert_same(run(name, "cpu"), expected_of(name), f"{name}: cpu {simd}")


@every_case
def test_cuda_equals_the_oracle(name, cuda):
    assert_same(run(name, "cuda", cuda), expected_of(name), f"{name}: cuda")


@every_case
def test_torch_equals_the_oracle(name):
    pytest.importorskip("torch")
    assert_same(run(name, "torch", calling.to_torch), expected_of(name), f"{name}: torch")


@pytest.mark.parametrize("name", LIMITED)
@pytest.mark.parametrize("max_voxels", [0, 1, 7, 1000])
def test_max_voxels_keeps_the_lowest(name, max_voxels, backend):
    kind, convert = backend
    actual = run(name, kind, convert, max_voxels=max_voxels)
    assert_same(actual, expected_of(name, max_voxels), f"{name}: {max_voxels} voxels")


def test_many_points(backend):
    """More than a tile, rows longer than a thread takes, keys of more than 32 bits."""
    kind, convert = backend
    random = cases.Random(3)
    for shape, size in (((64, 64, 64), 0.125), ((2, 1, 1), 4.0), ((1 << 14, 1 << 14, 1 << 14), 2.0**-11)):
        problem = cases.make_clouds(
            random,
            points=20000,
            layout="into",
            channels=3,
            reduce=cases.REDUCTIONS,
            grid=((-4.0, -4.0, -4.0), (size,) * 3, shape),
            odd_features=True,
        )
        expected = voxel_calling.sparse(problem, "reference", first=3)
        actual = voxel_calling.sparse(problem, kind, convert, first=3)
        assert_same(actual, expected, str(shape))
        assert expected[0].shape[0] > 1


def test_keys_past_32_bits_say_where_points_are():
    grid = rc.Grid((0, 0, 0), 1, (1 << 20, 1 << 20, 1 << 20))
    points = np.array([[0, 0, 0], [2**20 - 1, 2**20 - 1, 2**20 - 1], [5, 7, 2**20 - 2]], np.float64) + 0.5
    voxels = rc.voxelize(points, grid, layout="sparse")
    assert voxels.coordinates[:, 1:].tolist() == [[0, 0, 0], [5, 7, 2**20 - 2], [2**20 - 1] * 3]
    assert voxels.point_to_voxel.tolist() == [0, 2, 1]
    assert voxels.values.tolist() == voxels.counts.tolist() == [1, 1, 1]


def test_what_comes_out():
    points = np.zeros((4, 3), np.float32)
    grid = rc.Grid((-1, -1, -1), 1, (2, 2, 2))
    voxels = rc.voxelize(points, grid, features=np.ones((4, 2), np.float16), reduce=("mean", "max"), layout="sparse")
    assert [array.dtype for array in voxels.values] == [np.float32, np.float16]
    assert (voxels.first, voxels.number, int(voxels.overflow)) == (None, None, 0)
    assert repr(voxels) == (
        "SparseVoxels(coordinates int64 [1, 4], values float32 [1, 2], float16 [1, 2], "
        "Dropped(no_reading=0, not_finite=0, cropped=0, outside=0))"
    )
    hard = rc.voxelize(points, grid, first=3)
    assert (hard.first.shape, hard.first.dtype, hard.number.tolist()) == ((1, 3, 3), np.float32, [3])
    assert rc.voxelize(points.astype(np.float64), grid, first=3).first.dtype == np.float64
    small = rc.voxelize(points[:0], grid, layout="sparse")
    assert (small.coordinates.shape, small.point_to_voxel.shape) == ((0, 4), (0,))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"layout": "coo"}, "voxelize: layout is 'coo'; expected dense or sparse"),
        ({"first": 0}, "voxelize: first is 0; it must be positive"),
        ({"first": 2, "layout": "dense"}, 'voxelize: first is for layout="sparse"'),
        ({"max_voxels": 2}, 'voxelize: max_voxels is for layout="sparse"'),
        ({"max_voxels": -1, "layout": "sparse"}, "voxelize: max_voxels is -1; it must not be negative"),
        ({"reduce": "mean", "layout": "sparse"}, "voxelize: reduce mean needs features"),
        ({"reduce": "occupancy", "packed": True, "layout": "sparse"}, "voxelize: occupancy as bits is for dense grids"),
        ({"out": np.zeros(1), "layout": "sparse"}, "voxelize: out and accumulate are for dense grids"),
        ({"into": [0], "grids": 0, "offsets": [0, 4], "layout": "sparse"}, "no grid for them to go into"),
        ({"empty": 0.5, "layout": "sparse", "max_voxels": 3}, "voxelize: empty = 0.5 is no value of count"),
        ({"into": [0], "grids": 2**61, "offsets": [0, 4], "layout": "sparse"}, "grids of 0 channels; at most 2^31"),
        ({"layout": "sparse", "max_voxels": 2**50}, "there is no room for 1125899906842624 voxels"),
    ],
)
def test_bad_calls_get_a_sentence(options, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        rc.voxelize(np.zeros((4, 3), np.float32), rc.Grid((0, 0, 0), 1, (1, 1, 1)), **options)


# ---- voxel_downsample --------------------------------------------------------------------------------------------


@every_downsample
def test_downsample_reference_equals_the_oracle(name):
    assert_same(voxel_calling.downsample(cases.problem_of(name), "reference"), downsampled_of(name), name)


@every_downsample
def test_downsample_cpu_equals_the_oracle(name, simd):
    actual = voxel_calling.downsample(cases.problem_of(name), "cpu")
    assert_same(actual, downsampled_of(name), f"{name}: cpu {simd}")


@every_downsample
def test_downsample_cuda_equals_the_oracle(name, cuda):
    assert_same(voxel_calling.downsample(cases.problem_of(name), "cuda", cuda), downsampled_of(name), f"{name}: cuda")


@every_downsample
def test_downsample_torch_equals_the_oracle(name):
    pytest.importorskip("torch")
    actual = voxel_calling.downsample(cases.problem_of(name), "torch", calling.to_torch)
    assert_same(actual, downsampled_of(name), f"{name}: torch")


def downsampled(points, size, convert=calling.keep, backend=None, **options):
    arrays = {name: convert(array) for name, array in options.items() if isinstance(array, np.ndarray)}
    made = rc.voxel_downsample(convert(points), size, backend=backend, **{**options, **arrays})
    parts = (made.points, made.features, made.counts, made.coordinates, made.dropped.counts)
    return [None if part is None else calling.to_numpy(part) for part in parts]


def clouds(dtype: str, count: int, odd: bool = False) -> tuple[np.ndarray, np.ndarray]:
    random = cases.Random(7)
    points = cases.coordinates(random, (count,), dtype)
    if odd:
        points = cases.special(random, points, 12)
    return points, random.values((count, 2), "float32")


@pytest.mark.parametrize("dtype", cases.POINT_DTYPES)
@pytest.mark.parametrize("size", [0.5, (0.1, 0.7, 3.0)])
def test_downsample_means(dtype, size, backend):
    """Against float64: within the bound of means, and half a unit in the last place of the result."""
    kind, convert = backend
    points, features = clouds(dtype, 3000)
    means, mean_features, counts, coordinates, dropped = downsampled(points, size, convert, kind, features=features)
    compute = np.float64 if dtype == "float64" else np.float32
    assert (means.dtype, mean_features.dtype, counts.dtype) == (compute, np.float32, np.int32)
    with np.errstate(over="ignore"):
        steps = np.floor(points.astype(compute) / np.asarray(size, np.float64).astype(compute))
    cells, inverse = np.unique(steps.astype(np.int64), axis=0, return_inverse=True)
    np.testing.assert_array_equal(coordinates, np.column_stack([np.zeros(len(cells), np.int64), cells]))
    np.testing.assert_array_equal(counts, np.bincount(inverse))
    assert counts.sum() == 3000
    assert dropped.sum() == 0
    for table, result in ((points, means), (features, mean_features)):
        wide = table.astype(np.float64)
        for c in range(wide.shape[1]):
            truth = np.bincount(inverse, wide[:, c]) / counts
            bound = np.abs(wide[:, c]).max() * 2.0 ** (12 - 62) + 2e-16 * np.abs(wide[:, c]).max()
            slack = bound if result.dtype == np.float64 else bound + 2.0**-24 * np.abs(truth)
            assert (np.abs(result[:, c] - truth) <= slack).all()


@pytest.mark.parametrize("dtype", cases.POINT_DTYPES)
def test_downsample_has_the_same_bits_everywhere(dtype, backend):
    kind, convert = backend
    points, features = clouds(dtype, 5000, odd=True)
    options = {
        "features": features,
        "offsets": np.array([3, 1000, 1000, 4990]),
        "pose": np.stack([cases.rotation(cases.Random(k)) for k in range(3)]),
        "crop": ((-2.0, -2.0, -2.0), (5.0, math.inf, 2.0)),
        "origin": (0.1, 0.2, -0.3),
    }
    expected = downsampled(points, 0.3, backend="reference", **options)
    actual = downsampled(points, 0.3, convert, kind, **options)
    for k, (mine, theirs) in enumerate(zip(actual, expected, strict=True)):
        calling.assert_same_bytes(mine, theirs, f"part {k}")
    assert set(expected[3][:, 0].tolist()) == {0, 2}


def test_downsample_does_not_depend_on_the_order(backend):
    kind, convert = backend
    points, features = clouds("float32", 4000)
    order = np.random.default_rng(0).permutation(len(points))
    first = downsampled(points, 0.4, convert, kind, features=features)
    second = downsampled(points[order], 0.4, convert, kind, features=features[order])
    for mine, theirs in zip(first, second, strict=True):
        calling.assert_same_bytes(mine, theirs, "order")


def test_downsample_of_nothing(backend):
    kind, convert = backend
    for points in (np.zeros((0, 3), np.float32), np.full((5, 3), np.nan, np.float32)):
        means, features, counts, coordinates, dropped = downsampled(points, 1.0, convert, kind)
        assert (means.shape, features, counts.shape, coordinates.shape) == ((0, 3), None, (0,), (0, 4))
        assert dropped.tolist() == [0, len(points), 0, 0]


def test_downsample_takes_huge_and_tiny_coordinates(backend):
    kind, convert = backend
    points = np.array([[1e300, 0, 0], [1e19, 1, 0], [1e-320, 2e-320, 0], [4e5, 5e6, 1], [4e5 + 1e-4, 5e6, 1]])
    means, _, counts, coordinates, dropped = downsampled(points, 0.5, convert, kind)
    assert (counts.tolist(), dropped.tolist()) == ([1, 2], [0, 0, 0, 2])
    assert coordinates[1].tolist() == [0, 800000, 10000000, 2]
    np.testing.assert_allclose(means, [[0, 0, 0], [4e5 + 5e-5, 5e6, 1]], rtol=0, atol=1e-9)


def test_downsample_says_what_is_wrong(backend):
    kind, convert = backend
    points = convert(np.array([[0, 0, 0], [1e9, 1e9, 1e9]], np.float64))
    with pytest.raises(ValueError, match=r"voxel_downsample: the points span \[.*\] voxels, more than 2\^62 in all"):
        rc.voxel_downsample(points, 1e-3, backend=kind)
    with pytest.raises(ValueError, match="the voxel size along x is 0"):
        rc.voxel_downsample(points, 0, backend=kind)
    with pytest.raises(ValueError, match="voxel_downsample: features have shape"):
        rc.voxel_downsample(points, 1.0, features=convert(np.zeros((3, 1), np.float32)), backend=kind)


# ---- torch -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("max_voxels", [None, 5])
def test_gradients(device, max_voxels):
    torch = pytest.importorskip("torch")
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("cuda: torch sees no GPU")
    random = cases.Random(8)
    points = torch.from_numpy(cases.coordinates(random, (40,), "float32")).to(device)
    features = torch.from_numpy(random.values((40, 2), "float32")).to(device).requires_grad_()
    grid = rc.Grid((-4, -4, -4), 2, (4, 4, 4))
    voxels = rc.voxelize(
        points, grid, features=features, reduce=("sum", "mean", "max", "count"), layout="sparse", max_voxels=max_voxels
    )
    weights = [torch.from_numpy(random.values(value.shape, "float32")).to(device) for value in voxels.values[:3]]
    sum((weight * value).sum() for weight, value in zip(weights, voxels.values, strict=False)).backward()
    expected = torch.zeros_like(features)
    for row in range(int(voxels.found[0])):
        members = (voxels.point_to_voxel == row).nonzero()[:, 0]
        for member in members:
            expected[member] += weights[0][row] + weights[1][row] / len(members)
        for c in range(2):
            expected[members[features.detach()[members, c].argmax()], c] += weights[2][row, c]
    torch.testing.assert_close(features.grad, expected)


def test_downsample_gradients():
    torch = pytest.importorskip("torch")
    random = cases.Random(9)
    points = torch.from_numpy(cases.coordinates(random, (40,), "float32"))
    features = torch.from_numpy(random.values((40, 2), "float32")).requires_grad_()
    small = rc.voxel_downsample(points, 2.0, features=features)
    small.features.sum().backward()
    assert features.grad.sum().item() == pytest.approx(2 * len(small.counts), rel=1e-5)


@pytest.mark.parametrize("max_voxels", [None, 6])
def test_torch_compile(max_voxels):
    torch = pytest.importorskip("torch")
    random = cases.Random(10)
    points = torch.from_numpy(cases.coordinates(random, (50,), "float32"))
    features = torch.from_numpy(random.values((50, 2), "float32"))
    grid = rc.Grid((-4, -4, -4), 2, (4, 4, 4))

    def call(points, features):
        options = {"reduce": ("mean", "max"), "first": 2, "max_voxels": max_voxels}
        voxels = rc.voxelize(points, grid, features=features, layout="sparse", **options)
        return voxels.coordinates, *voxels.values, voxels.first, voxels.point_to_voxel + 1

    def thinned(points, features):
        made = rc.voxel_downsample(points, 2.0, features=features)
        return made.points, made.features, made.counts, made.coordinates  # torch 2.6 cannot trace a slice of it

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        for mine, theirs in zip(compiled(points, features), call(points, features), strict=True):
            assert torch.equal(mine, theirs)
        thin = torch.compile(thinned, fullgraph=True, backend="aot_eager")
        for mine, theirs in zip(thin(points, features), thinned(points, features), strict=True):
            assert torch.equal(mine, theirs)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"layout": "coo"}, "layout is 'coo'"),
        ({"max_voxels": 4}, 'max_voxels is for layout="sparse"'),
        ({"first": -2}, "first is -2; it must be positive"),
        ({"layout": "sparse", "out": np.zeros(1)}, "out and accumulate are for dense grids"),
    ],
)
def test_bad_layouts_get_a_sentence_where_they_are_traced_too(options, sentence):
    torch = pytest.importorskip("torch")
    grid = rc.Grid((0, 0, 0), 1, (1, 1, 1))
    call = torch.compile(lambda points: rc.voxelize(points, grid, **options).values, backend="eager")
    with pytest.raises(Exception, match=re.escape(sentence)):
        call(torch.zeros(4, 3))


def test_points_have_no_gradient_where_they_are_traced():
    torch = pytest.importorskip("torch")
    grid = rc.Grid((-4, -4, -4), 2, (4, 4, 4))
    call = torch.compile(lambda points: rc.voxelize(points, grid, first=2, max_voxels=9).first, backend="aot_eager")
    assert not call(torch.zeros(5, 3, requires_grad=True)).requires_grad


def test_other_threads_run_while_the_gpu_is_waited_for(cuda):
    import threading

    import torch

    points = torch.rand(4_000_000, 3, device="cuda")
    grid = rc.Grid((0, 0, 0), 2.0**-9, (512, 512, 512))
    stop, ticks = threading.Event(), []

    def tick():
        while not stop.is_set():
            ticks.append(1)

    thread = threading.Thread(target=tick)
    thread.start()
    for _ in range(20):
        rc.voxelize(points, grid, layout="sparse")
    stop.set()
    thread.join()
    assert len(ticks) > 1000


def test_a_bad_pose_is_said_before_its_span(cuda):
    import torch

    pose = torch.eye(4, dtype=torch.float64, device="cuda") * 1e15
    with pytest.raises(ValueError, match=r"voxel_downsample: pose\[0\] is not rigid"):
        rc.voxel_downsample(torch.rand(10, 3, device="cuda"), 1e-3, pose=pose)


def test_a_graph_needs_max_voxels(cuda):
    import torch

    points = torch.zeros(100, 3, device="cuda")
    grid = rc.Grid((-4, -4, -4), 2, (4, 4, 4))
    rc.voxelize(points, grid, layout="sparse", max_voxels=4)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        voxels = rc.voxelize(points, grid, layout="sparse", max_voxels=4)
    points += 2
    graph.replay()
    assert voxels.coordinates[0].tolist() == [0, 3, 3, 3]
    assert voxels.found.tolist() == [1, 0]
    with pytest.raises(ValueError, match="give max_voxels"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        rc.voxelize(points, grid, layout="sparse")
