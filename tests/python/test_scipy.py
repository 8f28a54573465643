"""The oracle and the reference backend against NumPy and SciPy, in float64."""

from __future__ import annotations

import cases
import numpy as np
import oracle
import pytest

import robocache as rc

interpolate = pytest.importorskip("scipy.interpolate")
stats = pytest.importorskip("scipy.stats")
spatial = pytest.importorskip("scipy.spatial.transform")


def by_oracle(stream: cases.Stream, targets, **options):
    answer = oracle.align([stream], targets, **options)[0]
    return answer.values, answer.valid, answer.age, answer.index


def by_reference(stream: cases.Stream, targets, **options):
    given = rc.Stream(stream.values, stream.times, method=stream.method, max_gap=stream.max_gap)
    answer = rc.align([given], targets, backend="reference", **options)[0]
    return answer.values, answer.valid, answer.age, answer.index


@pytest.fixture(params=[by_oracle, by_reference], ids=["oracle", "reference"])
def subject(request):
    return request.param


def recording(seed: int, channels: int = 4, samples: int = 60):
    random = cases.Random(seed)
    times = cases.stamps(random, samples, equal=False, base=0)
    values = random.values((samples, channels), "float64")
    inside = times[0] + random.integers(0, int(times[-1] - times[0]), 300)
    return values, times, np.sort(np.concatenate([inside, times]))


@pytest.mark.parametrize("seed", range(5))
def test_linear_is_numpy_interp(subject, seed):
    values, times, targets = recording(seed)
    around = np.concatenate([[times[0] - 5000], targets, [times[-1] + 5000]])
    got, valid, _, _ = subject(cases.Stream(values, times), around)
    expected = np.stack([np.interp(around, times, column) for column in values.T], axis=-1)
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)
    assert valid.tolist() == [False, *[True] * len(targets), False]
    line = interpolate.interp1d(times, values, axis=0)
    np.testing.assert_allclose(got[1:-1], line(targets), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("method", "kind"), [("hold", "previous"), ("nearest", "nearest")])
@pytest.mark.parametrize("seed", range(3))
def test_copying_methods_are_interp1d(subject, seed, method, kind):
    values, times, targets = recording(seed)
    halves = times[:-1] + (times[1:] - times[:-1]) // 2  # exact ties where the interval is even
    targets = np.concatenate([targets, halves])
    got, *_ = subject(cases.Stream(values, times, method=method), targets)
    np.testing.assert_array_equal(got, interpolate.interp1d(times, values, axis=0, kind=kind)(targets))


@pytest.mark.parametrize("seed", range(3))
def test_index_and_age_are_searchsorted(subject, seed):
    random = cases.Random(seed)
    times = cases.stamps(random, 50, equal=True)
    targets = random.integers(int(times[0]), int(times[-1]) + 1, 400)
    _, valid, age, index = subject(cases.Stream(random.values((50, 1), "float64"), times), targets)
    expected = np.searchsorted(times, targets, side="right") - 1
    np.testing.assert_array_equal(index, expected)
    np.testing.assert_array_equal(age, targets - times[expected])
    assert valid.all()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("samples", [2, 3, 60])
def test_cubic_is_the_hermite_spline_with_our_tangents(subject, seed, samples):
    values, times, targets = recording(seed, samples=samples)
    h = np.diff(times)[:, None].astype(np.float64)
    d = np.diff(values, axis=0) / h
    m = np.empty_like(values)
    m[0], m[-1] = d[0], d[-1]
    m[1:-1] = (h[1:] * d[:-1] + h[:-1] * d[1:]) / (h[:-1] + h[1:])
    spline = interpolate.CubicHermiteSpline(times.astype(np.float64), values, m, axis=0)
    got, *_ = subject(cases.Stream(values, times, method="cubic"), targets)
    np.testing.assert_allclose(got, spline(targets), rtol=1e-10, atol=1e-10)


def test_cubic_is_exact_on_a_parabola(subject):
    times = np.array([0, 3, 4, 9, 11, 20], np.int64) * 1000
    seconds = times / 1000.0
    targets = np.arange(3000, 11001, 125)  # where both tangents are two-sided
    got, *_ = subject(cases.Stream((seconds**2 - 3 * seconds)[:, None], times, method="cubic"), targets)
    x = targets / 1000.0
    np.testing.assert_allclose(got[:, 0], x**2 - 3 * x, rtol=1e-13, atol=1e-12)


def test_cubic_is_one_sided_at_a_gap(subject):
    times = np.array([0, 1, 2, 3, 10, 11, 12], np.int64) * 1000
    values = cases.Random(3).values((7, 2), "float64")
    targets = np.arange(0, 12001, 100)
    whole = cases.Stream(values, times, method="cubic", max_gap=2e-6)
    got, valid, *_ = subject(whole, targets)
    for part in (slice(0, 4), slice(4, 7)):
        inside = (targets >= times[part][0]) & (targets <= times[part][-1])
        alone, *_ = subject(cases.Stream(values[part], times[part], method="cubic"), targets[inside])
        np.testing.assert_array_equal(got[inside], alone)
        assert valid[inside].all()
    assert not valid[(targets > 3000) & (targets < 10000)].any()


@pytest.mark.parametrize("seed", range(3))
def test_slerp_is_scipy_slerp(subject, seed):
    values, times, targets = recording(seed)
    got, *_ = subject(cases.Stream(values, times, method="slerp"), targets)
    rotations = spatial.Rotation.from_quat(values)
    expected = spatial.Slerp(times.astype(np.float64), rotations)(targets.astype(np.float64)).as_quat()
    lower = np.searchsorted(times, targets, side="right") - 1
    side = np.sign(np.sum(expected * values[lower], axis=-1, keepdims=True))
    np.testing.assert_allclose(got, expected * side, rtol=0, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(got, axis=-1), 1, rtol=0, atol=1e-15)


@pytest.mark.parametrize(("method", "turn"), [("angle", 2 * np.pi), ("angle_degrees", 360.0)])
def test_angle_is_interp_over_unwrapped(subject, method, turn):
    _, times, targets = recording(7)
    steps = cases.Random(8).values((60, 1), "float64") / 16 * turn * 0.49  # no step over half a turn
    truth = np.cumsum(steps, axis=0)
    wrapped = truth - turn * np.floor(truth / turn)
    got, *_ = subject(cases.Stream(wrapped, times, method=method), targets)
    expected = np.interp(targets, times, truth[:, 0])
    apart = got[:, 0] - expected
    np.testing.assert_allclose(apart - turn * np.rint(apart / turn), 0, atol=1e-10 * turn)
    lower = np.searchsorted(times, targets, side="right") - 1
    assert np.all(np.abs(got - wrapped[lower]) <= turn / 2 * (1 + 1e-12))  # on a's branch


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("statistic", ["mean", "max", "min"])
def test_bins_are_binned_statistic(subject, seed, statistic):
    random = cases.Random(seed)
    times = cases.stamps(random, 200, equal=True)
    values = random.values((200, 1), "float64")
    edges = np.linspace(times[0] - 1000, times[-1], 9).astype(np.int64)
    width = edges[2] - edges[1]
    edges[0] = edges[1] - width  # the first bin is as wide as the second
    got, valid, *_ = subject(cases.Stream(values, times, method=statistic), edges[1:])
    # SciPy's bins are closed on the left, ours on the right: count time backwards.
    expected, *_ = stats.binned_statistic(-times[::-1], values[::-1, 0], statistic, bins=-edges[::-1])
    np.testing.assert_allclose(got[:, 0], expected[::-1], rtol=1e-13, atol=1e-13)
    assert valid.all()


@pytest.mark.parametrize("seed", range(3))
def test_last_is_searchsorted(subject, seed):
    random = cases.Random(seed)
    times = cases.stamps(random, 100, equal=True)
    values = random.values((100, 2), "float64")
    targets = np.sort(random.integers(int(times[0]), int(times[-1]), 30))
    got, valid, *_ = subject(cases.Stream(values, times, method="last"), targets)
    index = np.searchsorted(times, targets, side="right") - 1
    np.testing.assert_array_equal(got, values[index])
    begins = np.concatenate([[2 * targets[0] - targets[1]], targets[:-1]])
    np.testing.assert_array_equal(valid, times[index] > begins)
