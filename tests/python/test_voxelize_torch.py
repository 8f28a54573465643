"""voxelize in torch: the portable backend, gradients, torch.compile, tensors without memory, CUDA graphs."""

from __future__ import annotations

import functools

import calling
import numpy as np
import pytest
import voxel_calling
import voxel_cases as cases
from test_errors import says

import robocache as rc

torch = pytest.importorskip("torch")

GRID = rc.Grid((-1, -1, -1), 0.5, (4, 4, 4))
REDUCTIONS = ("sum", "mean", "max", "min")


@pytest.mark.parametrize("name", list(cases.BY_NAME))
def test_portable_equals_reference(name):
    actual = voxel_calling.voxelize(cases.problem_of(name), "torch", calling.to_torch)
    voxel_calling.assert_same(actual, voxel_calling.reference(name), name)


@pytest.mark.parametrize("name", list(cases.BY_NAME))
def test_portable_on_cuda(name, cuda):
    actual = voxel_calling.voxelize(cases.problem_of(name), "torch", cuda)
    voxel_calling.assert_same(actual, voxel_calling.reference(name), name)


def test_portable_says_what_is_wrong_with_the_words_of_the_engine():
    points = torch.zeros(2, 4, 3)
    pairs = [
        (ValueError, ["voxelize: lengths[1] = 9"], {"lengths": [0, 9]}),
        (ValueError, ["voxelize: into[0] = 5"], {"into": [5, 0], "grids": 2}),
        (ValueError, ["voxelize: pose[0] is not rigid"], {"pose": 2 * np.eye(4)}),
        (ValueError, ["voxelize: reduce is 'median'"], {"reduce": "median"}),
        (ValueError, ["voxelize: reduce mean needs features"], {"reduce": "mean"}),
        (ValueError, ["voxelize: features have shape [2, 3, 1]"], {"features": torch.zeros(2, 3, 1), "reduce": "sum"}),
        (ValueError, ["voxelize: empty = 0.5"], {"empty": 0.5}),
        (ValueError, ["voxelize: crop along x is 1..0"], {"crop": ((1, 0, 0), (0, 1, 1))}),
        (ValueError, ["voxelize: crop_frame is 'robot'"], {"crop_frame": "robot"}),
        (ValueError, ["voxelize: accumulate", "give out"], {"accumulate": True}),
    ]
    for error, parts, options in pairs:
        says(error, parts, rc.voxelize, points, GRID, backend="torch", **options)
    says(TypeError, ["voxelize: points are int64"], rc.voxelize, points.long(), GRID, backend="torch")
    says(TypeError, ["backend torch takes torch tensors"], rc.voxelize, points.numpy(), GRID, backend="torch")


def test_portable_says_how_large_a_grid_would_be():
    """With the engine's words, and before anything is made: here with what its own scratch takes besides."""
    large = rc.Grid((0, 0, 0), 1, (1 << 16, 1 << 16, 1 << 10))
    words = r"voxelize: 2 dense grids of \[65536, 65536, 1024\] would take \d+\.\d GiB, and \d+\.\d GiB of memory "
    for backend in (None, "torch"):
        with pytest.raises(ValueError, match=words + 'are free; take larger voxels, or layout="sparse"'):
            rc.voxelize(torch.zeros(2, 4, 3), large, backend=backend)
    largest = rc.Grid((0, 0, 0), 1, (1 << 20, 1 << 21, 1 << 21))
    parts = ["voxelize_depth: 1 dense grid of", "GiB, and no memory is as large"]
    says(ValueError, parts, rc.voxelize_depth, torch.ones(2, 2), (1, 1, 0, 0), largest, backend="torch")
    assert rc.voxelize(torch.zeros(4, 3), large, layout="sparse", backend="torch").counts.tolist() == [4]


def test_an_allocator_that_has_no_more_is_quoted(monkeypatch):
    from robocache._torch import voxels_backend

    def full(scene):
        raise torch.OutOfMemoryError("tried to allocate 7 GiB\nand more")

    monkeypatch.setattr(voxels_backend, "dense_places", full)
    parts = ["voxelize: 1 dense grid of [4, 4, 4] would take 0.0 GiB, and tried to allocate 7 GiB; take larger voxels"]
    says(ValueError, parts, rc.voxelize, torch.zeros(4, 3), GRID, backend="torch")


# ---- gradients ---------------------------------------------------------------------------------------------------


def problem(seed: int = 0, points: int = 40, channels: int = 3):
    generator = torch.Generator().manual_seed(seed)
    places = torch.rand(2, points, 3, generator=generator) * 3 - 1.5
    return places, torch.randn(2, points, channels, generator=generator)


def expected_gradient(points, features, reduction, into, given):
    """By one-hot matrices: cells of every point from a count of it alone."""
    clouds, number, _ = features.shape
    leaf = features.detach().double().requires_grad_()
    outputs = torch.zeros(given.shape, dtype=torch.float64)
    members: dict[tuple, list] = {}
    for c in range(clouds):
        for k in range(number):
            cell = rc.voxelize(points[c, k : k + 1], GRID).values.nonzero().tolist()
            if cell:
                members.setdefault((into[c], *cell[0]), []).append(leaf[c, k])
    for cell, rows in members.items():
        stacked = torch.stack(rows)
        if reduction == "sum":
            outputs[cell] = stacked.sum(0)
        elif reduction == "mean":
            outputs[cell] = stacked.mean(0)
        else:
            outputs[cell] = (stacked.max(0) if reduction == "max" else stacked.min(0)).values
    return torch.autograd.grad(outputs, leaf, given.double())[0]


@pytest.mark.parametrize("backend", [None, "reference", "torch"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_gradients(reduction, backend):
    points, features = problem()
    features.requires_grad_()
    voxels = rc.voxelize(points, GRID, features=features, reduce=reduction, into=[1, 0], backend=backend)
    given = torch.randn(voxels.values.shape, generator=torch.Generator().manual_seed(3))
    (actual,) = torch.autograd.grad(voxels.values, features, given)
    expected = expected_gradient(points, features, reduction, [1, 0], given)
    assert actual.abs().sum() > 0
    torch.testing.assert_close(actual.double(), expected, rtol=1e-6, atol=1e-7)


def test_gradients_of_several_reductions_add_up():
    points, features = problem(1)
    features.requires_grad_()
    reduce = ("count", *REDUCTIONS, "occupancy")
    values = rc.voxelize(points, GRID, features=features, reduce=reduce).values
    assert [value.requires_grad for value in values] == [False, True, True, True, True, False]
    sum(value.sum() for value in values[1:5]).backward()
    alone = torch.zeros_like(features)
    for reduction in REDUCTIONS:
        leaf = features.detach().requires_grad_()
        rc.voxelize(points, GRID, features=leaf, reduce=reduction).values.sum().backward()
        alone += leaf.grad
    torch.testing.assert_close(features.grad, alone)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_gradients_have_the_features_dtype(dtype):
    points, features = problem(2)
    features = features.to(dtype).requires_grad_()
    rc.voxelize(points, GRID, features=features, reduce="mean").values.sum().backward()
    assert features.grad.dtype == dtype


def test_the_earliest_of_equals_wins():
    features = torch.tensor([[1.0], [2.0], [2.0], [-0.0], [0.0]], requires_grad=True)
    rc.voxelize(torch.zeros(5, 3), GRID, features=features, reduce="max").values.sum().backward()
    assert features.grad.reshape(-1).tolist() == [0, 1, 0, 0, 0]
    features.grad = None
    rc.voxelize(torch.zeros(5, 3), GRID, features=features, reduce="min").values.sum().backward()
    assert features.grad.reshape(-1).tolist() == [0, 0, 0, 1, 0]


def test_what_is_dropped_has_no_gradient():
    points = torch.tensor([[0.0, 0, 0], [9, 9, 9], [float("nan"), 0, 0]])
    features = torch.ones(3, 2, requires_grad=True)
    rc.voxelize(points, GRID, features=features, reduce="sum").values.sum().backward()
    assert features.grad.tolist() == [[1, 1], [0, 0], [0, 0]]


def test_gradients_of_depth_and_ragged_clouds():
    depth = torch.full((2, 3, 4), 0.6)
    features = torch.ones(2, 3, 4, 2, requires_grad=True)
    voxels = rc.voxelize_depth(depth, (8, 8, 1.5, 1), GRID, features=features, reduce="mean", pose=np.eye(4))
    voxels.values.sum().backward()
    assert features.grad.sum().item() == pytest.approx(2 * (voxels.values[..., 0] > 0).sum().item())
    points, features = torch.zeros(6, 3), torch.ones(6, 1, requires_grad=True)
    rc.voxelize(points, GRID, features=features, reduce="sum", offsets=[1, 3, 3, 5]).values.sum().backward()
    assert features.grad.reshape(-1).tolist() == [0, 1, 1, 1, 1, 0]


def test_gradients_exclude_out_and_second_derivatives():
    points, features = problem()
    features.requires_grad_()
    out = torch.zeros(2, 4, 4, 4, 3)
    says(
        ValueError,
        ["a result in out has no gradient"],
        rc.voxelize,
        points,
        GRID,
        features=features,
        reduce="sum",
        out=out,
    )
    with torch.no_grad():
        assert rc.voxelize(points, GRID, features=features, reduce="sum", out=out).values is out
    values = rc.voxelize(points, GRID, features=features, reduce="sum").values
    (first,) = torch.autograd.grad(values.square().sum(), features, create_graph=True)
    with pytest.raises(RuntimeError):
        first.sum().backward()


@pytest.mark.parametrize("backend", [None, "torch"])
def test_out_without_a_gradient_needs_none(backend):
    """Features that require grad are in nobody's way where nothing is made of them."""
    points, features = problem()
    features.requires_grad_()
    out = torch.zeros(2, 4, 4, 4, dtype=torch.int32)
    made = rc.voxelize(points, GRID, features=features, reduce="count", out=out, backend=backend)
    assert made.values is out
    assert torch.equal(out, rc.voxelize(points, GRID).values)
    rc.voxelize(points, GRID, features=features, reduce="count", out=out, accumulate=True, backend=backend)
    assert torch.equal(out, 2 * rc.voxelize(points, GRID).values)
    values = rc.voxelize(points, GRID, features=features, reduce=("count", "occupancy"), backend=backend).values
    assert not any(value.requires_grad for value in values)
    both = (out, torch.zeros(2, 4, 4, 4, 3))
    refused = {"features": features, "reduce": ("count", "sum"), "out": both, "backend": backend}
    says(ValueError, ["a result in out has no gradient"], rc.voxelize, points, GRID, **refused)


def test_torch_func_grad():
    points, features = problem()
    gradient = torch.func.grad(lambda f: rc.voxelize(points, GRID, features=f, reduce="sum").values.sum())(features)
    inside = gradient[..., 0] != 0
    assert 0 < inside.sum() < inside.numel()


@pytest.mark.parametrize("backend", [None, "torch"])
def test_torch_func_says_what_it_cannot(backend):
    points, features = problem()

    def mean(f, **options):
        return rc.voxelize(points, GRID, features=f, reduce="mean", backend=backend, **options).values

    def thinned(f):
        return rc.voxel_downsample(points, 0.5, features=f, backend=backend).features

    for function in (mean, functools.partial(mean, layout="sparse"), thinned):
        with pytest.raises(ValueError, match=r"it has gradients backward .* and none forward"):
            torch.func.jvp(function, (features,), (features,))
    with pytest.raises(ValueError, match=r"torch\.vmap cannot go through it; give the clouds as a batch"):
        torch.vmap(lambda p: rc.voxelize(p, GRID, backend=backend).values)(points)


# ---- torch.compile -----------------------------------------------------------------------------------------------


def compiled(function, **options):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager", **options)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(dynamic):
    def step(points, features):
        voxels = rc.voxelize(points, GRID, features=features, reduce=("count", "mean"), into=[0, 0], pose=np.eye(4))
        return voxels.values[0], voxels.values[1] * 2, voxels.dropped.outside

    fast = compiled(step, dynamic=dynamic)
    for points in (30, 40, 55):
        places, features = problem(points, points)
        features.requires_grad_()
        expected, actual = step(places, features), fast(places, features)
        for left, right in zip(actual, expected, strict=True):
            torch.testing.assert_close(left, right, rtol=0, atol=0)
        (mine,) = torch.autograd.grad(actual[1].sum(), features)
        (theirs,) = torch.autograd.grad(expected[1].sum(), features)
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def test_compiled_depth():
    def step(depth, intrinsics, pose):
        made = rc.voxelize_depth(depth, intrinsics, GRID, pose=pose, reduce="occupancy", packed=True, invalid=(0, 7))
        return made.values + 1, made.dropped.no_reading

    depth = torch.full((2, 5, 6), 0.7)
    arguments = depth, torch.tensor([6.0, 6, 2.5, 2]), torch.eye(4)
    for left, right in zip(compiled(step)(*arguments), step(*arguments), strict=True):
        assert torch.equal(left, right)


def test_compiled_with_lists_of_tensors_and_arrays():
    points, _ = problem()
    pose = torch.eye(4)
    pose[0, 3] = 0.25
    expected = rc.voxelize(points, GRID, pose=[pose, pose]).values
    assert torch.equal(compiled(lambda p, t: rc.voxelize(p, GRID, pose=[t, t]).values)(points, pose), expected)
    array = pose.double().numpy()
    assert torch.equal(compiled(lambda p: rc.voxelize(p, GRID, pose=[array, array]).values)(points), expected)
    depth, numbers = torch.ones(4, 5), [torch.tensor(x) for x in (5.0, 5.0, 2.0, 1.0)]
    seen = compiled(lambda d, n: rc.voxelize_depth(d, n, GRID).values)(depth, numbers)
    assert torch.equal(seen, rc.voxelize_depth(depth, (5.0, 5.0, 2.0, 1.0), GRID).values)


def test_compiled_out():
    def step(points, out):
        return rc.voxelize(points, GRID, out=out).values

    points, _ = problem()
    out = torch.zeros(2, 4, 4, 4, dtype=torch.int32)
    compiled(step)(points, out)
    assert torch.equal(out, rc.voxelize(points, GRID).values)


def test_an_unknown_reduction_is_named_where_it_is_traced_too():
    points, features = problem()
    function = torch.compile(lambda p: rc.voxelize(p, GRID, features=features, reduce="median").values, backend="eager")
    with pytest.raises(ValueError, match="voxelize: reduce is 'median'; expected count, occupancy, sum, mean, max or"):
        function(points)


def test_the_operator_is_well_formed():
    from robocache._torch import voxels as torch_voxels

    points, features = problem()
    features.requires_grad_()
    options = {"packed": False, "empty": 0, "grids": None, "crop": None, "crop_frame": "grid", "check": True}
    arrays = {"points": points, "features": features}
    tensors, call = torch_voxels.pack("voxelize", arrays, GRID, ("sum", "max", "count"), {**options, "backend": None})
    torch.library.opcheck(torch.ops.robocache.voxelize.default, (tensors, *call))


def test_meta_tensors_have_shapes():
    points = torch.empty(3, 100, 3, device="meta")
    features = torch.empty(3, 100, 5, device="meta", dtype=torch.float16)
    count, high = rc.voxelize(points, GRID, features=features, reduce=("count", "max")).values
    assert (count.shape, count.dtype, count.device.type) == ((3, 4, 4, 4), torch.int32, "meta")
    assert (high.shape, high.dtype) == ((3, 4, 4, 4, 5), torch.float16)


# ---- CUDA --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_gradients_have_the_same_bits_on_cuda(reduction, cuda):
    points, features = problem(5, 3000)
    given = torch.randn(2, 4, 4, 4, 3, generator=torch.Generator().manual_seed(3))
    found = []
    for device in ("cpu", "cuda"):
        leaf = features.to(device).requires_grad_()
        values = rc.voxelize(points.to(device), GRID, features=leaf, reduce=reduction).values
        found.append(torch.autograd.grad(values, leaf, given.to(device))[0].cpu())
    assert torch.equal(*found)


def test_captured_in_a_cuda_graph(cuda):
    points, features = (tensor.cuda() for tensor in problem(6, 5000))
    pose = torch.eye(4, device="cuda")
    call = lambda: rc.voxelize(points, GRID, features=features, reduce=("count", "mean", "max"), pose=pose)  # noqa: E731
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    points.copy_(problem(7, 5000)[0])
    graph.replay()
    torch.cuda.synchronize()
    for left, right in zip(captured.values, call().values, strict=True):
        assert torch.equal(left, right)
