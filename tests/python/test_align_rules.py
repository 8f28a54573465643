"""Rules that a policy's data depend on, each against a truth that is written out here: what clamp returns, what hold
and causal may see, unit quaternions, tangents at near-duplicate stamps, methods by name, arrivals in any order."""

from __future__ import annotations

import math

import numpy as np
import pytest

import robocache as rc

MS = 1_000_000
BACKENDS = ["reference", "cpu", "torch"]


def aligned(backend, values, times, targets, *, edge="clamp", causal=False, on_nan="propagate", **options):
    """One stream on one backend, as NumPy."""
    options_of_call = {"edge": edge, "causal": causal, "on_nan": on_nan, "backend": backend}
    values, times, targets = (np.asarray(array) for array in (values, times, targets))
    if backend != "torch":
        return rc.align([rc.Stream(values, times, **options)], targets, **options_of_call)[0]
    torch = pytest.importorskip("torch")
    if options.get("arrivals") is not None:
        options["arrivals"] = torch.from_numpy(np.asarray(options["arrivals"]))
    tensors = [torch.from_numpy(array) for array in (values, times, targets)]
    made = rc.align([rc.Stream(*tensors[:2], **options)], tensors[2], **options_of_call)[0]
    return rc.Aligned(*(part.numpy() for part in made))


every_backend = pytest.mark.parametrize("backend", BACKENDS)


# ---- where no sample exists


@every_backend
@pytest.mark.parametrize("method", ["linear", "hold", "nearest", "cubic", "angle", "slerp", "mean", "max", "last"])
def test_before_the_first_arrival_clamp_is_zero(backend, method):
    """A NaN times a mask of 0 is NaN: a loss over a masked episode's start was NaN."""
    values = np.ones((3, 4), np.float32)
    times = np.array([10, 20, 30]) * MS
    targets = np.array([0, 5, 10, 25]) * MS
    for edge, filled in (("clamp", 0.0), ("zero", 0.0), ("nan", np.nan)):
        made = aligned(backend, values, times, targets, method=method, causal=True, edge=edge)
        np.testing.assert_array_equal(made.values[:2], np.full((2, 4), filled, np.float32))
        assert made.valid.tolist() == [False, False, True, True]
        assert made.index[:2].tolist() == [-1, -1]
        assert (made.age[:2] == np.iinfo(np.int64).min).all()
    loss = (made_loss := aligned(backend, values, times, targets, method=method, causal=True)).values.sum(-1)
    assert np.isfinite((loss * made_loss.valid).sum())


@every_backend
def test_an_empty_stream_is_zero_unless_nan_is_asked_for(backend):
    nothing, none = np.zeros((0, 2)), np.zeros(0, np.int64)
    for edge, filled in (("clamp", 0.0), ("zero", 0.0), ("nan", np.nan)):
        made = aligned(backend, nothing, none, np.array([0, 1]), edge=edge)
        np.testing.assert_array_equal(made.values, np.full((2, 2), filled))
        assert not made.valid.any()


# ---- hold


@every_backend
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_hold_never_answers_from_the_future(backend, dtype):
    values, times = np.array([1, 2], dtype), np.array([0, 100]) * MS
    targets = np.array([-10, 0, 10, 90, 100, 110]) * MS
    made = aligned(backend, values, times, targets, method="hold", max_gap=0.05)
    assert made.values.tolist() == [1, 1, 1, 1, 2, 2]
    assert made.index.tolist() == [0, 0, 0, 0, 1, 1]
    assert made.valid.tolist() == [False, True, False, False, True, False]
    made = aligned(backend, values, times, targets, method="nearest", max_gap=0.05)
    assert made.values.tolist() == [1, 1, 1, 2, 2, 2]


@every_backend
def test_hold_beside_a_sample_that_is_skipped(backend):
    values, times = np.array([np.nan, 2.0]), np.array([0, 100]) * MS
    made = aligned(backend, values, times, np.array([90 * MS]), method="hold", on_nan="skip")
    assert np.isnan(made.values[0])
    assert made.index.tolist() == [0]
    assert not made.valid[0]


# ---- slerp


@every_backend
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_slerp_is_unit_wherever_it_comes_from(backend, dtype):
    """Held, clamped at both ends and in a gap, hit, and between: the rotation of the sample, with norm 1."""
    quaternions = np.array([[0, 0, 0, 2], [0, 3, 0, 3], [1, 1, 1, 1]], dtype)
    times = np.array([0, 10, 100]) * MS
    tolerance = {"float16": 1e-3, "float32": 1e-6, "float64": 1e-15}[dtype]
    units = quaternions.astype(np.float64) / np.linalg.norm(quaternions.astype(np.float64), axis=1, keepdims=True)
    targets = np.array([-5, 0, 5, 10, 20, 90, 100, 200]) * MS
    made = aligned(backend, quaternions, times, targets, method="slerp", max_gap=0.05)
    np.testing.assert_allclose(np.linalg.norm(made.values.astype(float), axis=1), 1, atol=tolerance)
    expected = [0, 0, None, 1, 1, 2, 2, 2]
    for value, sample in zip(made.values, expected, strict=True):
        if sample is not None:
            np.testing.assert_allclose(value.astype(float), units[sample], atol=tolerance)
    half = math.sin(math.pi / 8), math.cos(math.pi / 8)  # halfway of a quarter turn about y
    np.testing.assert_allclose(made.values[2].astype(float), [0, half[0], 0, half[1]], atol=tolerance)
    held = aligned(backend, quaternions, times, targets, method="slerp", causal=True)
    for value, sample in zip(held.values[1:], [0, 0, 1, 1, 1, 2, 2], strict=True):
        np.testing.assert_allclose(value.astype(float), units[sample], atol=tolerance)


@every_backend
@pytest.mark.parametrize("causal", [False, True])
def test_a_zero_quaternion_is_copied_and_counts_as_not_finite(backend, causal):
    values, times = np.array([[0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 0, 1]], np.float32), np.array([0, 10, 20]) * MS
    targets = np.array([0, 5, 10, 20]) * MS
    made = aligned(backend, values, times, targets, method="slerp", causal=causal)
    assert made.values[2].tolist() == [0, 0, 0, 0]
    assert made.valid.all()
    assert np.isnan(made.values[1]).all() != causal  # between a rotation and none there is none
    skipped = aligned(backend, values, times, targets, method="slerp", causal=causal, on_nan="skip")
    assert skipped.valid.tolist() == [True, causal, False, True]


def test_gradients_of_a_held_quaternion_are_those_of_normalising():
    torch = pytest.importorskip("torch")
    values = torch.tensor([[0.3, -1.0, 2.0, 0.5], [1.0, 2.0, 2.0, 4.0]], dtype=torch.float64, requires_grad=True)
    weights = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    times, targets = torch.tensor([0, 10 * MS]), torch.tensor([-5 * MS, 0, 10 * MS, 15 * MS])
    truth = torch.nn.functional.normalize(values, dim=1)[[0, 0, 1, 1]]
    expected = torch.autograd.grad((truth * weights).sum(), values)[0]
    for backend in (None, "reference", "torch"):
        made = rc.align([rc.Stream(values, times, method="slerp")], targets, backend=backend)[0]
        got = torch.autograd.grad((made.values * weights).sum(), values)[0]
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-14)
    zero = torch.zeros(1, 4, dtype=torch.float64, requires_grad=True)
    for backend in (None, "reference", "torch"):  # a copy
        made = rc.align([rc.Stream(zero, times[:1], method="slerp")], targets[:1], backend=backend)[0]
        assert torch.autograd.grad((made.values * weights).sum(), zero)[0].tolist() == [weights.tolist()]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_torch_backend_takes_the_same_arc_at_right_angles(dtype):
    """The dot product of orthogonal quaternions is a rounding, and its sign decides the way round."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(5)
    first = rng.normal(size=(400, 4)).astype(dtype)
    if dtype == "float64":  # whose norms are roundings: numbers of few digits
        first = np.round(first * 64)
    second = np.stack([-first[:, 1], first[:, 0], -first[:, 3], first[:, 2]], axis=1)  # orthogonal, to the last bit
    values = np.stack([first, second], axis=1)
    times = np.broadcast_to(np.array([0, 10 * MS]), (400, 2))
    targets = np.array([3 * MS])
    truth = rc.resample(values, times, targets, method="slerp", backend="reference")
    tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in (values, times, targets)]
    made = rc.resample(*tensors, method="slerp", backend="torch").numpy()
    np.testing.assert_allclose(made, truth, atol={"float32": 2e-7, "float64": 1e-12}[dtype])


# ---- cubic


def hermite(x, y, tangents, at):
    """By its definition."""
    k = int(np.searchsorted(x, at, side="right")) - 1
    h = x[k + 1] - x[k]
    s = (at - x[k]) / h
    return (
        (1 + 2 * s) * (1 - s) ** 2 * y[k]
        + s * (1 - s) ** 2 * h * tangents[k]
        + s * s * (3 - 2 * s) * y[k + 1]
        + s * s * (s - 1) * h * tangents[k + 1]
    )


@every_backend
def test_cubic_stays_near_its_samples_at_near_duplicate_stamps(backend):
    """A sensor that stamps twice within a microsecond: 15.9 came out between samples of 1 and 2."""
    times = np.array([0, 10 * MS, 10 * MS + 1000, 20 * MS, 30 * MS])
    values = np.array([1.0, 1.0, 2.0, 2.0, 2.0])
    targets = np.arange(0, 30 * MS + 1, 100_000)
    made = aligned(backend, values, times, targets, method="cubic")
    assert made.valid.all()
    assert made.values.min() >= 0.8
    assert made.values.max() <= 2.2


@every_backend
def test_cubic_takes_the_slope_of_the_longer_interval(backend):
    x = np.array([0.0, 16.0, 17.0, 34.0, 50.0, 66.0]) * 1000  # 16 and 1 are a sixteenth; 1 and 17 are less
    y = np.array([0.0, 3.0, 1.0, 4.0, 2.0, 5.0])
    h, d = np.diff(x), np.diff(y) / np.diff(x)
    tangents = [d[0], (h[1] * d[0] + h[0] * d[1]) / (h[0] + h[1]), d[2]]
    tangents += [(h[k] * d[k - 1] + h[k - 1] * d[k]) / (h[k - 1] + h[k]) for k in (3, 4)]
    tangents += [d[4]]
    targets = np.array([8000, 16_500, 20_000, 30_000, 40_000, 60_000])
    expected = [hermite(x, y, tangents, at) for at in targets]
    made = aligned(backend, y, x.astype(np.int64), targets, method="cubic")
    np.testing.assert_allclose(made.values, expected, rtol=1e-12)


# ---- methods by name


def test_an_exact_name_wins_over_a_pattern():
    """ "[0]" is a pattern of fnmatch that matches "0": the joint's own name did not match it."""
    channels = ["position[0]", "position[1]", "position0"]
    values, times = np.array([[3.0, 3.0, 3.0], [-3.0, -3.0, -3.0]]), np.array([0, 10 * MS])
    for method in (
        {"position[0]": "angle", "*": "linear"},
        {"*": "linear", "position[0]": "angle"},
    ):
        for backend in BACKENDS:
            made = aligned(backend, values, times, np.array([5 * MS]), method=method, channels=channels)
            np.testing.assert_allclose(made.values[0], [np.pi, 0, 0], atol=1e-12)


@every_backend
def test_patterns_of_one_method_are_judged_apart(backend):
    values, times = np.array([[np.nan, 0.0], [1.0, 10.0]]), np.array([0, 10 * MS])
    for method in ({"a*": "linear", "b*": "linear"}, [("linear", 0, 1), ("linear", 1, 2)]):
        made = aligned(backend, values, times, np.array([4 * MS]), method=method, channels=["a0", "b0"], on_nan="skip")
        assert made.values[0, 1] == 4.0  # not clamped because of its neighbour
    made = aligned(
        backend, values, times, np.array([4 * MS]), method={"*": "linear"}, channels=["a", "b"], on_nan="skip"
    )
    assert made.values[0, 1] == 0.0  # one pattern is one range


@every_backend
def test_a_quaternion_by_the_names_of_its_parts(backend):
    values, times = np.array([[0, 0, 0, 1.0], [0, 1.0, 0, 1.0]]), np.array([0, 10 * MS])
    names = {"q.x": "slerp", "q.y": "slerp", "q.z": "slerp", "q.w": "slerp"}
    made = aligned(backend, values, times, np.array([5 * MS]), method=names, channels=list(names), on_nan="skip")
    np.testing.assert_allclose(made.values[0], [0, math.sin(math.pi / 8), 0, math.cos(math.pi / 8)], atol=1e-12)


# ---- arrivals


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("dtype", ["int64", "float64"])
def test_arrivals_on_another_clock_are_searched_in_blocks(backend, dtype):
    """Almost nothing has arrived: a walk over it for each target would be 4e11 steps, which takes minutes."""
    samples, count = 2_000_000, 400_000
    times = np.arange(samples) * MS
    arrivals = times + 2**52
    early = np.array([3, 70_000, 70_001, 1_500_000])
    arrivals[early] = times[early] + 5 * MS
    targets = np.linspace(0, (samples - 1) * MS, count).astype(np.int64)
    last = np.searchsorted(arrivals[early], targets, side="right") - 1
    expected = np.where(last < 0, -1, early[np.maximum(last, 0)])
    when = arrivals if dtype == "int64" else arrivals / 1e9
    made = aligned(backend, np.zeros((samples, 1), np.uint8), times, targets, arrivals=when, causal=True)
    np.testing.assert_array_equal(made.index, expected)


@pytest.mark.parametrize("seed", range(4))
def test_arrivals_in_any_order(seed):
    """Against a loop over what had arrived."""
    rng = np.random.default_rng(seed)
    samples = int(rng.integers(1, 12_000))
    times = np.cumsum(rng.integers(1, 2 * MS, samples))
    arrivals = times + rng.exponential(30_000 * MS if seed % 2 else 5 * MS, samples).astype(np.int64)
    targets = np.sort(rng.integers(0, times[-1] + MS, 200))
    expected = [max(np.flatnonzero((times <= t) & (arrivals <= t)), default=-1) for t in targets]
    for backend in BACKENDS:
        made = aligned(backend, times.astype(float), times, targets, arrivals=arrivals, causal=True)
        np.testing.assert_array_equal(made.index, expected)


# ---- the portable backend


@pytest.mark.parametrize("method", ["linear", "hold", "nearest", "slerp", "angle", "cubic", "mean", "max", "last"])
@pytest.mark.parametrize("on_nan", ["propagate", "skip"])
@pytest.mark.parametrize("causal", [False, True])
def test_empty_dimensions_are_no_error_on_the_torch_backend(method, on_nan, causal):
    torch = pytest.importorskip("torch")
    for rows, samples, channels, count in [(0, 3, 4, 2), (2, 0, 4, 2), (2, 3, 0, 2), (2, 3, 4, 0), (0, 0, 0, 0)]:
        values = torch.zeros(rows, samples, channels)
        times = torch.arange(samples).expand(rows, samples) * MS
        made = [
            rc.align([rc.Stream(values, times, method=method)], torch.arange(count) * MS, backend=backend, **options)[0]
            for backend in ("reference", "torch")
            for options in [{"on_nan": on_nan, "causal": causal}]
        ]
        for mine, theirs in zip(*made, strict=True):
            assert mine.shape == theirs.shape
            assert torch.equal(mine, theirs)


def test_the_torch_backends_cubic_is_within_its_tolerance():
    """4 ulp of the row's largest sample, also where intervals are uneven."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(2)
    for dtype in ("float32", "float64"):
        steps = 10 ** rng.uniform(0, 7, (50, 40))
        times = np.cumsum(steps.astype(np.int64) + 1, axis=1)
        values = rng.normal(size=(50, 40)).astype(dtype)
        targets = (rng.uniform(size=(50, 300)) * times[:, -1:]).astype(np.int64)
        truth = rc.resample(values, times, targets, method="cubic", backend="reference")
        tensors = [torch.from_numpy(array) for array in (values, times, targets)]
        made = rc.resample(*tensors, method="cubic", backend="torch").numpy()
        ulp = np.spacing(np.abs(values).max(axis=1, keepdims=True))
        assert (np.abs(made - truth) <= 4 * ulp).all()


# ---- what a Stream and a Timeline take


@pytest.mark.parametrize("wants_gradient", [False, True])
@pytest.mark.parametrize("backend", [None, "torch"])
def test_lists_and_numpy_beside_torch(backend, wants_gradient):
    torch = pytest.importorskip("torch")
    values = np.arange(12, dtype=np.float32).reshape(6, 2)
    times = np.array([0, 10, 20, 0, 10, 20]) * MS
    options = {"offsets": np.array([0, 3, 6]), "rows": np.array([1, 0, 1]), "arrivals": times + MS}
    truth = rc.align([rc.Stream(values, times, **options)], np.array([5 * MS, 15 * MS]), causal=True)[0]
    targets = torch.tensor([5 * MS, 15 * MS])
    for convert in (np.asarray, lambda array: array.tolist()):
        tensor = torch.from_numpy(values).requires_grad_(wants_gradient)
        given = {name: convert(array) for name, array in options.items()}
        stream = rc.Stream(tensor, convert(times), **given)
        assert isinstance(stream.times, torch.Tensor)
        made = rc.align([stream], targets, causal=True, backend=backend)[0]
        for mine, theirs in zip(made, truth, strict=True):
            np.testing.assert_array_equal(mine.detach().numpy(), theirs)
        one = rc.resample(tensor, convert(times), targets, offsets=convert(options["offsets"]), backend=backend)
        expected = rc.resample(values, times, targets.numpy(), offsets=options["offsets"])
        np.testing.assert_array_equal(one.detach().numpy(), expected)
    padded = rc.resample(torch.zeros(2, 3), [[0, 1, 2], [0, 1, 2]], targets, lengths=[3, 2], backend=backend)
    assert padded.shape == (2, 2)


def test_a_list_beside_numpy():
    assert rc.resample(np.array([0.0, 10.0]), [0, 10 * MS], [5 * MS]).tolist() == [5.0]
    assert rc.resample(np.array([0.0, 10.0]), [0.0, 0.01], [0.005]).tolist() == [5.0]


def test_streams_and_timelines_check_their_arguments_when_they_are_made():
    values, times = np.zeros(3), np.arange(3) * MS
    wrong = [
        ({"method": "lineer"}, ValueError),
        ({"latency": "8ms"}, TypeError),
        ({"latency": 5}, ValueError),
        ({"max_gap": -1.0}, ValueError),
        ({"edge": "wrap"}, ValueError),
        ({"on_nan": "drop"}, ValueError),
        ({"causal": "yes"}, TypeError),
        ({"name": 3}, TypeError),
    ]
    for options, error in wrong:
        with pytest.raises(error, match=r"^Stream: "):
            rc.Stream(values, times, **options)
        with pytest.raises(error, match=r"^Stream"):
            rc.Stream(values, times).replace(**options)
    for start, rate, count, error in [
        (0, 0, 3, ValueError),
        (0, float("nan"), 3, ValueError),
        (0, "50", 3, TypeError),
        (0, 50, -1, ValueError),
        (0, 50, 2.5, TypeError),
        ("now", 50, 3, TypeError),
        (None, 50, 3, TypeError),
        (float("inf"), 50, 3, ValueError),
    ]:
        with pytest.raises(error, match=r"^Timeline: "):
            rc.Timeline(start, rate=rate, count=count)
