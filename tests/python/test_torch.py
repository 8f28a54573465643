"""torch: the portable backend, gradients, torch.compile, and what else a torch user may do to a call."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings

import calling
import cases
import numpy as np
import oracle
import pytest

import robocache as rc

torch = pytest.importorskip("torch")

MS = 1_000_000
every_case = pytest.mark.parametrize("name", list(cases.BY_NAME))


# ---- the portable backend ----------------------------------------------------------------------------------------

ULPS = {"linear": 2, "angle": 2, "angle_degrees": 2, "cubic": 4, "mean": 2}
SLERP = {"float64": 1e-12, "float32": 2e-7, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def step(values: np.ndarray, dtype: str) -> np.ndarray:
    """One unit in the last place."""
    digits, lowest = {"float16": (11, -14), "bfloat16": (8, -126), "float32": (24, -126), "float64": (53, -1022)}[dtype]
    return np.ldexp(1.0, np.maximum(np.frexp(values)[1], lowest + 1) - digits)


def tolerance(problem: cases.Problem, stream: cases.Stream, shape: tuple[int, ...]) -> np.ndarray:
    """What the backend's docstring promises, for every element of [B, T, channels]."""
    bound = np.zeros(shape)
    causal = problem.options.get("causal", False) if stream.causal is None else stream.causal
    for row in range(shape[0]):
        _, _, samples = oracle.stream_row(stream, row if stream.times.ndim == 2 or stream.offsets is not None else 0)
        for method, begin, end in oracle.ranges(stream):
            if method in cases.COPYING or (causal and method not in ("mean", "slerp")):
                continue
            if method == "slerp":
                bound[row, :, begin:end] = SLERP[stream.values.dtype.name]
                continue
            with np.errstate(invalid="ignore"):
                wide = np.abs(samples[:, begin:end].astype(np.float64))
            largest = np.max(np.where(np.isfinite(wide), wide, 0), axis=0, initial=0)
            if method.startswith("angle"):
                largest = np.maximum(largest, oracle.TURN[method] / 2)  # the arc itself is rounded, too
            bound[row, :, begin:end] = ULPS[method] * step(largest, stream.values.dtype.name)
    return bound


def assert_within(actual: np.ndarray, expected: np.ndarray, bound: np.ndarray, what: str) -> None:
    assert actual.dtype == expected.dtype, what
    assert actual.shape == expected.shape, what
    with np.errstate(invalid="ignore"):
        mine, theirs = (array.astype(np.float64).reshape(bound.shape) for array in (actual, expected))
        close = (np.abs(mine - theirs) <= bound) | (mine == theirs) | (np.isnan(mine) & np.isnan(theirs))
    assert np.all(close), (
        f"{what}: at {np.argwhere(~close)[:3].tolist()}: {mine[~close][:3]}, expected {theirs[~close][:3]}"
    )


@every_case
def test_portable_agrees_with_reference(name):
    problem = cases.problem_of(name)
    actual, expected = calling.align(problem, "torch", calling.to_torch), calling.reference(name)
    for k, (stream, mine, theirs) in enumerate(zip(problem.streams, actual, expected, strict=True)):
        what = f"{name}: stream {k}"
        for part, left, right in zip(("valid", "age", "index"), mine[1:], theirs[1:], strict=True):
            calling.assert_same_bytes(left, right, f"{what}: {part}")
        channels = math.prod(stream.values.shape[stream.times.ndim :])
        bound = tolerance(problem, stream, (*np.atleast_2d(theirs[1]).shape, channels))
        if not bound.any():
            calling.assert_same_bytes(mine[0], theirs[0], f"{what}: values")
        else:
            assert_within(mine[0], theirs[0], bound, f"{what}: values")


def is_single(name: str) -> bool:
    streams = cases.problem_of(name).streams
    return name.startswith(("method/", "layout/", "time/", "edge/", "arrivals/", "mixed/")) and all(
        stream.values.dtype != np.float64 for stream in streams
    )


@pytest.mark.parametrize("name", [name for name in cases.BY_NAME if is_single(name)][::3])
def test_portable_without_float64(name, monkeypatch):
    """As on a device that has none: the same marks, and values within a few more roundings of float32."""
    from robocache._torch import align_backend

    monkeypatch.setattr(align_backend, "wide_type", lambda device: torch.float32)
    problem = cases.problem_of(name)
    actual, expected = calling.align(problem, "torch", calling.to_torch), calling.reference(name)
    for k, (stream, mine, theirs) in enumerate(zip(problem.streams, actual, expected, strict=True)):
        for part, left, right in zip(("valid", "age", "index"), mine[1:], theirs[1:], strict=True):
            calling.assert_same_bytes(left, right, f"{name}: stream {k}: {part}")
        channels = math.prod(stream.values.shape[stream.times.ndim :])
        bound = tolerance(problem, stream, (*np.atleast_2d(theirs[1]).shape, channels))
        assert_within(mine[0], theirs[0], 10 * bound, f"{name}: stream {k}: values")


@pytest.mark.parametrize("name", [name for name in cases.BY_NAME if cases.problem_of(name).fuse_dtypes])
def test_portable_fuse_agrees_with_reference(name):
    problem = cases.problem_of(name)
    for dtype in problem.fuse_dtypes:
        expected = calling.fuse(problem, "reference", calling.to_torch, dtype=getattr(torch, dtype))
        actual = calling.fuse(problem, "torch", calling.to_torch, dtype=getattr(torch, dtype))
        calling.assert_same_bytes(actual[1], expected[1], f"{name}: {dtype}: valid")
        calling.assert_same_bytes(actual[2], expected[2], f"{name}: {dtype}: age")
        if dtype not in cases.FLOATS:
            calling.assert_same_bytes(actual[0], expected[0], f"{name}: {dtype}: values")
            continue
        wide = expected[0].astype(np.float64)
        scale = np.where(np.isfinite(wide), np.abs(wide), 0)
        coarse = max(
            (s.values.dtype.name for s in problem.streams if s.values.dtype.kind in "fV"), key=digits, default=dtype
        )
        bound = 2 * np.maximum(step(scale, dtype), step(np.full_like(scale, 16.0), min(coarse, dtype, key=digits)))
        assert_within(actual[0], expected[0], bound, f"{name}: {dtype}: values")


def digits(dtype: str) -> int:
    return {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}[dtype]


@pytest.mark.parametrize("name", ["many/pose", "layout/packed_rows/timelines/mean", "arrivals/late/linear/packed_rows"])
def test_portable_on_cuda(name, cuda):
    on_gpu = calling.align(cases.problem_of(name), "torch", cuda)
    on_cpu = calling.align(cases.problem_of(name), "torch", calling.to_torch)
    for mine, theirs in zip(on_gpu, on_cpu, strict=True):
        for left, right in zip(mine[1:], theirs[1:], strict=True):
            calling.assert_same_bytes(left, right, name)
        np.testing.assert_allclose(mine[0].astype(float), theirs[0].astype(float), rtol=1e-2, atol=1e-6)


def test_portable_says_what_is_wrong_with_the_words_of_the_engine():
    values, times, targets = some_stream()
    bad = [
        (ValueError, {"times": times.flip(0)}),
        (ValueError, {"method": "quadratic"}),
        (ValueError, {"values": values[:3]}),
        (TypeError, {"times": times.to(torch.int16)}),
        (ValueError, {"latency": 5}),
        (ValueError, {"method": [("linear", 0, 2)]}),
        (ValueError, {"method": "mean", "targets": targets.flip(0)}),
    ]
    for kind, wrong in bad:
        arguments = {"values": values, "times": times, "targets": targets} | wrong
        with pytest.raises(kind) as theirs:
            rc.resample(**arguments, backend="reference")
        with pytest.raises(kind) as mine:
            rc.resample(**arguments, backend="torch")
        assert str(mine.value) == str(theirs.value)
    unordered = rc.resample(values, times.flip(0), targets, backend="torch", check=False)
    assert unordered.shape == (len(targets), values.shape[1])


# ---- gradients ---------------------------------------------------------------------------------------------------


def some_stream(*shape: int, dtype=torch.float64, samples: int = 9, targets: int = 13, seed: int = 3):
    """values [samples, *shape], times and targets that are between, on and beyond them."""
    generator = torch.Generator().manual_seed(seed)
    shape = shape or (4,)
    values = torch.randn(samples, *shape, generator=generator, dtype=torch.float64).to(dtype)
    times = torch.cumsum(torch.randint(1, 4, (samples,), generator=generator) * 3 * MS, 0)
    times[4] = times[3]  # equal stamps
    wanted = torch.sort(torch.randint(-5, int(times[-1]) // MS + 9, (targets,), generator=generator) * MS).values
    wanted[targets // 2] = times[5]
    return values, times, torch.sort(wanted).values


METHODS = ["linear", "hold", "nearest", "slerp", "angle", "angle_degrees", "cubic", "mean", "max", "min", "last"]


def gradcheck(function, *inputs) -> None:
    def numbers(*arguments):  # NaN, which stands where nothing has arrived, has no difference quotient
        return [torch.nan_to_num(output) for output in leaves(function(*arguments))]

    assert torch.autograd.gradcheck(numbers, tuple(x.clone().requires_grad_() for x in inputs), atol=1e-6)


def leaves(tree):
    return torch.utils._pytree.tree_leaves(tree)


@pytest.mark.parametrize("backend", [None, "reference", "torch"])
@pytest.mark.parametrize(
    "options",
    [{}, {"edge": "zero", "max_gap": 0.005}, {"causal": True, "max_gap": 0.02}, {"as_of": 0.03, "max_gap": 0.02}],
    ids=str,
)
@pytest.mark.parametrize("method", METHODS)
def test_gradcheck(method, options, backend):
    values, times, targets = some_stream()
    gradcheck(lambda v: rc.resample(v, times, targets, method=method, backend=backend, **options), values)


@pytest.mark.parametrize("backend", [None, "reference", "torch"])
@pytest.mark.parametrize("method", METHODS)
def test_gradcheck_as_of_each_row(method, backend):
    values, times, targets = some_stream()
    arrivals = times + torch.tensor([30, 2, 900, 1, 4, 60, 3, 20, 7]) * MS  # in no order
    decisions = times[[0, 4, 8]] + 21 * MS

    def function(v):
        stream = rc.Stream(v, times, arrivals=arrivals, method=method)
        return rc.align([stream], targets.expand(3, -1), as_of=decisions, backend=backend)[0].values

    gradcheck(function, values)
    leaf = values.clone().requires_grad_()
    function(leaf)[:2].sum().backward()
    assert leaf.grad[2].eq(0).all()  # it had not arrived
    assert leaf.grad[1].ne(0).any()


@pytest.mark.parametrize("backend", [None, "torch"])
@pytest.mark.parametrize("method", METHODS)
def test_gradcheck_where_samples_are_left_out(method, backend):
    values, times, targets = some_stream()
    values[2, 1], values[6, 3] = torch.nan, torch.inf
    finite = torch.isfinite(values)

    def function(clean):
        return rc.resample(
            torch.where(finite, clean, values),
            times,
            targets,
            method=method,
            on_nan="skip",
            edge="zero",
            backend=backend,
        )

    gradcheck(function, torch.where(finite, values, 0.5))


@pytest.mark.parametrize("backend", [None, "torch"])
@pytest.mark.parametrize("layout", cases.LAYOUTS)
@pytest.mark.parametrize("method", ["linear", "cubic", "mean"])
def test_gradcheck_of_layouts(method, layout, backend):
    random = cases.Random(f"{method}{layout}")
    made = cases.make_stream(random, dtype="float64", layout=layout, method=method, samples=6, rows=3, trailing=(2,))
    targets = calling.to_torch(cases.make_targets(random, made, "batched", count=5, rows=3, bins=True))
    stream = calling.to_stream(made, calling.to_torch)
    # What no row reads may hold anything, and has no gradient.
    values = torch.randn(stream.values.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def function(v):
        arrays = {"lengths": stream.lengths, "offsets": stream.offsets, "rows": stream.rows}
        return rc.resample(v, stream.times, targets, method=method, backend=backend, **arrays)

    gradcheck(function, values)


@pytest.mark.parametrize("backend", [None, "torch"])
def test_gradcheck_of_fuse_and_align(backend):
    pose, t_pose, targets = some_stream(7)
    force, t_force, _ = some_stream(2, 3, seed=4)
    gripper = torch.arange(9)
    t_force = t_force.expand(2, -1)
    force = torch.stack([force, -force])

    def streams(pose, force):
        return {
            "pose": rc.Stream(pose, t_pose, method=[("linear", 0, 3), ("slerp", 3, 7)], latency=0.001),
            "force": rc.Stream(force, t_force, method="cubic"),
            "gripper": rc.Stream(gripper, t_pose),
        }

    def fused(pose, force):
        return rc.fuse(streams(pose, force), targets, dtype=torch.float64, backend=backend).values

    def aligned(pose, force):
        made = rc.align(streams(pose, force), rc.Timeline(2 * MS, rate=200, count=8), backend=backend)
        return made["pose"].values, made["force"].values

    gradcheck(fused, pose, force)
    gradcheck(aligned, pose, force)
    # The stream that has the rows needs no gradient; the one that has needs to know the rows.
    gradcheck(lambda p: fused(p, force), pose)
    gradcheck(lambda p: aligned(p, force)[0], pose)


def test_gradients_go_to_values_only():
    values, times, targets = some_stream(dtype=torch.float32)
    values.requires_grad_()
    streams = [rc.Stream(values, times), rc.Stream(torch.arange(9), times)]
    floats, integers = rc.align(streams, targets)
    assert floats.values.requires_grad
    assert not integers.values.requires_grad
    assert not any(part.requires_grad for part in (floats.valid, floats.age, floats.index))
    with torch.no_grad():
        assert not rc.resample(values, times, targets).requires_grad
    seconds = (times.double() * 1e-9).requires_grad_()
    rc.resample(values, seconds, targets).sum().backward()
    assert values.grad is not None
    assert seconds.grad is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("method", METHODS)
def test_the_engines_gradient_is_the_portable_one(method, dtype):
    values, times, targets = some_stream(8, dtype=dtype, samples=40, targets=64)
    weights = torch.randn(64, 8, generator=torch.Generator().manual_seed(7)).to(dtype)
    gradients = []
    for backend in (None, "torch"):
        leaf = values.clone().requires_grad_()
        rc.resample(leaf, times, targets, method=method, backend=backend).backward(weights)
        gradients.append(leaf.grad)
    bound = 16 * torch.finfo(dtype).eps
    torch.testing.assert_close(gradients[0], gradients[1], rtol=bound, atol=bound)


def test_gradients_of_fused_values_in_another_dtype():
    values, times, targets = some_stream()
    low = values.to(torch.bfloat16).requires_grad_()
    high = values.clone().requires_grad_()
    rc.fuse([rc.Stream(low, times), rc.Stream(high, times)], targets, dtype=torch.float32).values.sum().backward()
    assert (low.grad.dtype, high.grad.dtype) == (torch.bfloat16, torch.float64)
    torch.testing.assert_close(low.grad.double(), high.grad, rtol=2**-8, atol=0)


def test_second_derivatives_are_refused():
    values, times, targets = some_stream()
    values.requires_grad_()
    (gradient,) = torch.autograd.grad(rc.resample(values, times, targets).pow(2).sum(), values, create_graph=True)
    with pytest.raises(RuntimeError, match="twice"):
        gradient.sum().backward()


def test_a_gradient_that_autograd_made_without_memory():
    """sum() sends an expanded scalar back; a slice sends strides."""
    values, times, targets = some_stream(2, 3)
    for loss in (lambda y: y.sum(), lambda y: y.transpose(0, 2)[::2].sum(), lambda y: y[:0].sum()):
        gradients = []
        for backend in (None, "torch"):
            leaf = values.clone().requires_grad_()
            loss(rc.resample(leaf, times, targets, backend=backend)).backward()
            gradients.append(leaf.grad)
        torch.testing.assert_close(*gradients)


def test_torch_func_grad():
    values, times, targets = some_stream()
    mine = torch.func.grad(lambda v: rc.resample(v, times, targets).pow(2).sum())(values)
    leaf = values.clone().requires_grad_()
    rc.resample(leaf, times, targets).pow(2).sum().backward()
    torch.testing.assert_close(mine, leaf.grad)


def test_out_and_gradients_exclude_each_other():
    values, times, targets = some_stream()
    out = torch.empty(len(targets), 4, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"resample: a result in out has no gradient, and values require grad"):
        rc.resample(values.clone().requires_grad_(), times, targets, out=out)
    with torch.no_grad():
        rc.resample(values.clone().requires_grad_(), times, targets, out=out)
    assert torch.equal(out, rc.resample(values, times, targets))


# ---- torch.compile -----------------------------------------------------------------------------------------------


def compiled_equals_eager(function, *inputs, backend="aot_eager", dynamic=None, gradients=True):
    """Outputs and gradients of the compiled function, without a graph break."""
    torch._dynamo.reset()
    found = []
    for call in (function, torch.compile(function, fullgraph=True, backend=backend, dynamic=dynamic)):
        arguments = [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in inputs]
        wanted = [x for x in arguments if gradients and isinstance(x, torch.Tensor) and x.is_floating_point()]
        for x in wanted:
            x.requires_grad_()
        outputs = leaves(call(*arguments))
        differentiable = [y for y in outputs if y.requires_grad]
        grads = []
        if differentiable:
            grads = torch.autograd.grad(sum(y.sin().sum() for y in differentiable), wanted, allow_unused=True)
        found.append((outputs, [x for x in grads if x is not None]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-6, equal_nan=True)
    assert found[0][1] or not gradients
    return found[1][0]


dynamic = pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])


@dynamic
def test_compiled_resample(dynamic):
    values, times, targets = some_stream()
    compiled_equals_eager(
        lambda v, t, q: rc.resample(v * 2, t, q, method="cubic") + 1, values, times, targets, dynamic=dynamic
    )
    line = rc.Timeline(2 * MS, rate=200, count=8)
    compiled_equals_eager(
        lambda v, t: rc.resample(v, t, line, latency=0.001, max_gap=1.0), values, times, dynamic=dynamic
    )


@dynamic
def test_compiled_align(dynamic):
    pose, times, _ = some_stream(7)
    frames = torch.arange(9 * 4).reshape(9, 2, 2).to(torch.uint8)
    outside = rc.Stream(frames, times, method="hold", max_gap=0.5)
    method = {"position.*": "linear", "orientation.*": "slerp"}
    channels = [*(f"position.{k}" for k in "xyz"), *(f"orientation.{k}" for k in "xyzw")]

    def function(pose, times, starts):
        streams = {"pose": rc.Stream(pose, times, method=method, channels=channels, latency=0.001), "frames": outside}
        aligned = rc.align(streams, rc.Timeline.around(starts, history=2, horizon=4, rate=200.0), causal=False)
        a, b = aligned["pose"], aligned["frames"]
        return a.values, a.valid, a.age, a.index, b.values, b.valid

    outputs = compiled_equals_eager(function, pose, times, torch.tensor([MS, 9 * MS]), dynamic=dynamic)
    assert outputs[0].shape == (2, 6, 7)
    assert outputs[4].shape == (2, 6, 2, 2)


@dynamic
def test_compiled_fuse(dynamic):
    pose, times, targets = some_stream(7)
    force, t_force, _ = some_stream(2, 3, seed=4, dtype=torch.float32)

    def function(pose, force, times, t_force, targets):
        streams = [
            rc.Stream(pose, times, method=[("linear", 0, 3), ("slerp", 3, 7)]),
            rc.Stream(force, t_force, method="mean"),
        ]
        fused = rc.fuse(streams, targets, dtype=torch.float32)
        assert fused.columns[1] == slice(7, 13)
        return fused.values, fused.valid, fused.age

    compiled_equals_eager(function, pose, force, times, t_force, targets, dynamic=dynamic)


@dynamic
@pytest.mark.parametrize("layout", ["lengths_rows", "packed", "packed_rows"])
def test_compiled_layouts(layout, dynamic):
    random = cases.Random(layout)
    made = cases.make_stream(random, dtype="float64", layout=layout, samples=6, rows=3, trailing=(2,), special=False)
    stream = calling.to_stream(made, calling.to_torch)
    values = torch.randn(stream.values.shape, dtype=torch.float64)
    targets = calling.to_torch(cases.make_targets(random, made, "batched", count=5, rows=3))
    arrays = [x for x in (stream.lengths, stream.offsets, stream.rows) if x is not None]
    names = [n for n in ("lengths", "offsets", "rows") if getattr(stream, n) is not None]

    def function(values, times, targets, *arrays):
        return rc.resample(values, times, targets, **dict(zip(names, arrays, strict=True)))

    compiled_equals_eager(function, values, stream.times, targets, *arrays, dynamic=dynamic)


def test_compiled_once_for_all_sizes():
    torch._dynamo.reset()
    counted = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    function = torch.compile(lambda v, t, q: rc.resample(v, t, q), fullgraph=True, backend=counted, dynamic=True)
    for samples, count, width in ((9, 13, 4), (12, 5, 6), (31, 8, 3)):
        values, times, targets = some_stream(width, samples=samples, targets=count)
        assert torch.equal(function(values, times, targets), rc.resample(values, times, targets))
    assert counted.frame_count == 1


def test_compiled_out():
    values, times, targets = some_stream()

    def function(values, times, targets):
        out = torch.empty(13, 4, dtype=torch.float64)
        returned = rc.resample(values, times, targets, out=out)
        return out * 2, returned

    compiled_equals_eager(function, values, times, targets, gradients=False)
    given = torch.zeros(13, 4, dtype=torch.float64)
    compiled = torch.compile(lambda v, t, q, out: rc.resample(v, t, q, out=out), fullgraph=True, backend="aot_eager")
    compiled(values, times, targets, given)
    assert torch.equal(given, rc.resample(values, times, targets))


def test_compiled_with_the_portable_backend():
    values, times, targets = some_stream()
    for method in ("linear", "slerp", "max"):
        compiled_equals_eager(
            lambda v, t, q, method=method: rc.resample(v, t, q, method=method, backend="torch"), values, times, targets
        )


def test_compiled_where_only_the_broadcast_stream_needs_a_gradient():
    values, times, _ = some_stream()
    rows = torch.arange(18).reshape(2, 9)
    line = rc.Timeline(2 * MS, rate=200, count=8)

    def function(values):
        return rc.align([rc.Stream(rows, times.expand(2, 9)), rc.Stream(values, times)], line)[1].values

    compiled_equals_eager(function, values)


def test_compiled_errors_have_the_same_sentence():
    values, times, targets = some_stream()
    function = torch.compile(lambda v, t, q: rc.resample(v, t, q), fullgraph=True, backend="aot_eager")
    with pytest.raises(ValueError, match=r"resample: times\[1\].*must not decrease"):
        function(values, times.flip(0), targets)
    assert torch.equal(function(values, times, targets), rc.resample(values, times, targets))


def test_compiled_by_inductor():
    pose, times, targets = some_stream(7, dtype=torch.float32)

    def function(pose, times, targets):
        fused = rc.fuse([rc.Stream(pose * 2, times, method=[("linear", 0, 3), ("slerp", 3, 7)])], targets)
        return fused.values.cos() * fused.valid

    compiled_equals_eager(function, pose, times, targets, backend="inductor")


def test_the_first_call_may_be_a_compiled_one():
    """Nothing of robocache's torch layer is imported before Dynamo traces."""
    program = (
        "import robocache as rc, torch, sys\n"
        "assert 'robocache._torch.align_ops' not in sys.modules\n"
        "f = torch.compile(lambda v, t, q: rc.resample(v, t, q), fullgraph=True, backend='aot_eager')\n"
        "print(f(torch.tensor([[0.], [2.]]), torch.tensor([0, 2000]), torch.tensor([1000])).item())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["1.0"], done.stderr


def test_the_operator_is_well_formed():
    values, times, targets = some_stream()
    words = ["", "linear", "clamp", "false", "propagate"]
    rc.resample(values.clone().requires_grad_(), times, targets)  # registers it
    for operation in ("resample", "align", "fuse"):
        dtype = torch.float64 if operation == "fuse" else None
        arguments = (
            [values.clone().requires_grad_(), times, targets],
            operation,
            [0, 0],
            words,
            [0, 2**63 - 1, 2**63 - 1, -1],
        )
        torch.library.opcheck(torch.ops.robocache.align.default, (*arguments, 0.0, dtype, True, None))


# ---- tensors of every kind ---------------------------------------------------------------------------------------


def test_meta_tensors_have_shapes():
    values, times, targets = (x.to("meta") for x in some_stream(2, 3, dtype=torch.float16))
    made = rc.align({"a": rc.Stream(values, times)}, targets)["a"]
    parts = [(made.values, (13, 2, 3), torch.float16), (made.valid, (13,), torch.bool), (made.age, (13,), torch.int64)]
    for part, shape, dtype in parts:
        assert (part.device.type, tuple(part.shape), part.dtype) == ("meta", shape, dtype)
    line = rc.Timeline(torch.zeros(5, dtype=torch.int64, device="meta"), rate=50, count=4)
    fused = rc.fuse([rc.Stream(values, times), rc.Stream(values[:, 0], times)], line, dtype=torch.float32)
    assert fused.values.shape == (5, 4, 9)
    assert fused.valid.shape == (5, 4, 2)
    assert rc.resample(values.requires_grad_(), times, targets).requires_grad


def test_fake_tensors():
    values, times, targets = some_stream()
    with torch._subclasses.FakeTensorMode() as mode:
        made = rc.resample(*(mode.from_tensor(x) for x in (values, times, targets)))
    assert made.shape == (13, 4)
    assert isinstance(made, torch._subclasses.FakeTensor)


def test_parameters_and_inference_mode():
    values, times, targets = some_stream()
    expected = rc.resample(values, times, targets)
    assert torch.equal(rc.resample(torch.nn.Parameter(values), times, targets).detach(), expected)
    with torch.inference_mode():
        made = rc.resample(values + 0, times, targets)
        assert made.is_inference()
        assert torch.equal(made, expected)
        out = torch.empty_like(expected)
        rc.resample(values, times, targets, out=out)
        assert torch.equal(out, expected)
        torch.testing.assert_close(rc.resample(values, times, targets, backend="torch"), expected)


def test_values_written_after_the_forward_are_noticed():
    values, times, targets = some_stream()
    leaf = values.clone().requires_grad_()
    twice = leaf * 1
    loss = rc.resample(twice, times, targets).sum()
    with torch.no_grad():
        twice.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_mix_of_kinds_is_refused():
    values, times, targets = some_stream()
    with pytest.raises(TypeError, match="targets"):
        rc.resample(values.requires_grad_(), times, targets.numpy())


# ---- CUDA --------------------------------------------------------------------------------------------------------


def on_cuda(*shape, **options):
    return [x.cuda() for x in some_stream(*shape, **options)]


@pytest.mark.parametrize("method", METHODS)
def test_gradcheck_on_cuda(method, cuda):
    values, times, targets = on_cuda()
    gradcheck(lambda v: rc.resample(v, times, targets, method=method), values)


@pytest.mark.parametrize("method", METHODS)
def test_gradients_have_the_same_bits_on_cuda(method, cuda):
    values, times, targets = some_stream(8, dtype=torch.float32, samples=300, targets=999)
    gradients = []
    for device in ("cpu", "cuda", "cuda"):
        leaf = values.detach().to(device).requires_grad_()
        made = rc.resample(leaf, times.to(device), targets.to(device), method=method)
        weights = torch.randn(made.shape, generator=torch.Generator().manual_seed(7)).to(device)
        made.backward(weights)
        gradients.append(leaf.grad.cpu())
    assert torch.equal(gradients[1], gradients[2])
    assert torch.equal(gradients[0], gradients[1])


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_on_cuda(backend, cuda):
    pose, times, targets = on_cuda(7)
    line = rc.Timeline(2 * MS, rate=200, count=8)

    def function(pose, times, targets):
        streams = [rc.Stream(pose * 2, times, method=[("linear", 0, 3), ("slerp", 3, 7)]), rc.Stream(pose.sin(), times)]
        return rc.fuse(streams, targets).values, rc.align(streams, line)[1].values

    compiled_equals_eager(function, pose, times, targets, backend=backend)


@pytest.mark.parametrize("portable", [False, True], ids=["kernels", "torch"])
@pytest.mark.parametrize("kind", ["list", "timeline", "timelines"])
def test_captured_in_a_cuda_graph(kind, portable, cuda):
    """Forward and backward: nothing waits for the device, nothing is allocated behind torch's back."""
    pose, times, targets = on_cuda(7, dtype=torch.float32)
    if kind == "timeline":
        targets = rc.Timeline(2 * MS, rate=200, count=8)
    elif kind == "timelines":
        targets = rc.Timeline(torch.tensor([MS, 9 * MS], device="cuda"), rate=200, count=8)
    pose.requires_grad_()
    backend = "torch" if portable else None

    def step():
        stream = rc.Stream(pose, times, method=[("linear", 0, 3), ("slerp", 3, 7)], latency=0.001)
        values = rc.fuse([stream, rc.Stream(pose, times, method="cubic")], targets, backend=backend).values
        return values.detach(), torch.autograd.grad(values.sum(), pose)[0]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = step()
    with torch.no_grad():
        pose.copy_(torch.randn_like(pose))
    graph.replay()
    torch.cuda.synchronize()
    bound = 1e-4 if portable else 0  # the portable backend's gradient sums in any order
    for mine, theirs in zip(made, step(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=bound, atol=bound)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="cuda: torch sees no GPU")
def test_without_kernels_the_portable_backend_serves_cuda_and_says_so_once(monkeypatch):
    from robocache._torch import align_run

    monkeypatch.setattr(align_run, "cuda_kernels", lambda: (False, "the driver is older than the kernels"))
    align_run.warn_once.cache_clear()
    values, times, targets = on_cuda()
    values.requires_grad_()  # so that the engine leaves the call to torch
    with pytest.warns(RuntimeWarning, match="the driver is older than the kernels"):
        made = rc.resample(values, times, targets)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rc.resample(values, times, targets).sum().backward()
    torch.testing.assert_close(made.cpu(), rc.resample(values.detach().cpu(), times.cpu(), targets.cpu()))


def forward_calls():
    times = torch.arange(20)
    points = torch.rand(30, 3)
    grid = rc.Grid.from_bounds((0, 0, 0), (1, 1, 1), 0.5)
    return {
        "resample": (lambda x: rc.resample(x, times, times[::2]).values, torch.randn(20, 4)),
        "fuse": (lambda x: rc.fuse({"a": rc.Stream(x, times)}, times[::2]).values, torch.randn(20, 4)),
        "attention": (lambda x: rc.attention(x, x, x), torch.randn(1, 2, 5, 32)),
        "voxelize": (lambda x: rc.voxelize(points, grid, features=x, reduce="mean").values, torch.randn(30, 4)),
    }


@pytest.mark.parametrize("name", forward_calls())
def test_a_tangent_is_refused_and_not_lost(name):
    call, x = forward_calls()[name]
    with pytest.raises(ValueError, match=r"it has gradients backward .* and none forward"):
        torch.func.jvp(call, (x,), (x,))
    forward_ad = torch.autograd.forward_ad
    with forward_ad.dual_level():
        with pytest.raises(ValueError, match=r"has a tangent; there are gradients backward .* and none forward"):
            call(forward_ad.make_dual(x, x))
        call(x)
    call(x)
