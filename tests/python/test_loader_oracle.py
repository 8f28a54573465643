"""The loader's oracle against judges of its own: oracle.py, rc.align, Cache.align, Cache.statistics and Fraction."""

import math
from fractions import Fraction

import numpy as np
import oracle
import pytest
from cases import Random
from cases import Stream as Plain
from loader_calling import GOLDEN, golden_of
from loader_cases import CACHES, arm
from loader_oracle import Truth, mix, mixture_block, shares_of, statistics_of, window_number
from loader_samples import Samples, fma32, fma64
from loader_specs import SPECS

import robocache as rc

pytest.importorskip("PIL", reason="Pillow is not installed")

KNOWLEDGE = {"truth": {}, "as_of": {"as_of": 1}, "causal": {"causal": True}}


def samples_of(raw, edge="clamp", method=None, on_nan="propagate"):
    raw = raw.numbered() if raw.frames else raw
    return Samples(raw, method=method or raw.method, max_gap=raw.max_gap, edge=edge, on_nan=on_nan)


def targets_of(raw):
    """Times around the samples, and exactly on some."""
    random = Random("targets")
    times = raw.times - raw.latency
    first, last = int(times[0]), int(times[-1])
    drawn = random.integers(first - 60_000_000, last + 60_000_000, 40)
    return np.sort(np.concatenate([drawn, times[:: max(len(times) // 5, 1)]]))


@pytest.mark.parametrize("knowledge", KNOWLEDGE)
@pytest.mark.parametrize("stream", [name for name in arm()[0].streams if name != "mount"])
@pytest.mark.parametrize("edge", ["clamp", "zero"])
@pytest.mark.parametrize("on_nan", ["propagate", "skip"])
def test_samples_are_what_align_gives(stream, knowledge, edge, on_nan):
    if on_nan == "skip" and stream != "noisy":
        return
    for episode in arm()[:2]:
        raw = episode.streams[stream]
        raw = raw.numbered() if raw.frames else raw
        taus = targets_of(raw)
        asked = dict(KNOWLEDGE[knowledge])
        if "as_of" in asked:
            asked["as_of"] = int(taus[len(taus) // 2])
        for method in (None, "nearest") if stream in ("joints", "gripper") else (None,):
            found = samples_of(raw, edge, method, on_nan).at(taus, **asked)
            parts = {"values": raw.values, "times": raw.times, "arrivals": raw.arrived, "latency": raw.latency}
            given = {**parts, "max_gap": raw.max_gap, "method": method or raw.method}
            options = {"edge": edge, "on_nan": on_nan, **asked}
            aligned = rc.align({"s": rc.Stream(**given)}, taus, backend="reference", **options)["s"]
            assert aligned.values.reshape(found.values.shape).tobytes() == found.values.tobytes()
            np.testing.assert_array_equal(aligned.valid, found.valid)
            np.testing.assert_array_equal(aligned.age, found.age)
            np.testing.assert_array_equal(aligned.index[found.valid], found.index[found.valid])
            (truth,) = oracle.align([Plain(**given)], taus, **options)
            np.testing.assert_array_equal(truth.valid, found.valid)
            np.testing.assert_array_equal(truth.age, found.age)
            check_close(found.values, truth)


def check_close(found, truth):
    """That values lie as close to those of oracle.py as it says, before they were rounded to their dtype."""
    values, close = found.astype(np.float64), truth.values.reshape(found.shape)
    with np.errstate(invalid="ignore"):
        floats = found if found.dtype.kind == "f" else values
        ulp = np.spacing(np.abs(floats)).astype(np.float64)
        near = np.abs(close - values) <= truth.slack.reshape(found.shape) + ulp
    assert np.all(near | (values == close) | (np.isnan(values) & np.isnan(close)))


@pytest.mark.parametrize("name", ["arm", "plain", "short", "fixed"])
@pytest.mark.parametrize("rate", [50, 7.3, 1000.0])
def test_spans_and_static_streams_are_those_of_cache_align(tmp_path, name, rate):
    path, episodes = CACHES[name].write(tmp_path / "cache")
    cache = rc.Cache(path)
    every = list(episodes[0].streams)
    for streams in [[one] for one in every] + [every, every[:2]]:
        keys = {"a": {"streams": streams}}
        truth = Truth(episodes, {"rate": rate, "batch_size": 1, "keys": keys})
        aligned = cache.align(rate=rate, streams=streams)
        for k in range(len(episodes)):
            assert truth.anchors(k) == times_of(aligned, k, rate), (streams, k)
    if "mount" in every:
        aligned = cache.align(rate=rate, streams=["joints", "mount"], causal=True)
        times = np.array(times_of(aligned, 0, rate))
        found = samples_of(episodes[0].streams["mount"]).at(times, causal=True)
        np.testing.assert_array_equal(aligned["mount"].values[0, : len(times)], found.values)
        assert found.valid.all()
        assert not found.age.any()


def times_of(aligned, row, rate):
    length = int(aligned.lengths[row])
    if hasattr(aligned.times, "start"):
        return [int(aligned.times.start[row]) + round(k * 1e9 / rate) for k in range(length)]
    return np.asarray(aligned.times)[row, :length].tolist()


def test_statistics_are_those_of_the_cache(tmp_path):
    path, episodes = CACHES["arm"].write(tmp_path / "cache")
    told = rc.Cache(path).statistics("joints", [0, 2])
    columns = np.concatenate([episodes[k].streams["joints"].values for k in (0, 2)]).astype(np.float64).T
    for channel, column in enumerate(columns):
        found = statistics_of(column)
        assert found["mean"] == told.mean[channel]
        assert math.isclose(found["std"], told.std[channel], rel_tol=2.0**-52)
        assert (found["min"], found["max"]) == (told.min[channel], told.max[channel])


def test_fused_products_are_rounded_once():
    random = Random("fma")
    bits = random.bits((300, 3)).astype(np.uint32) & np.uint32(0x9FFFFFFF) | np.uint32(0x20000000)
    for x, y, z in bits.view(np.float32):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        found = Fraction(float(fma32(x, y, z)))
        near = [Fraction(float(each)) for each in np.nextafter(np.float32(found), np.float32([-np.inf, np.inf]))]
        assert all(abs(found - exact) <= abs(each - exact) for each in near)
    assert fma64(2.0**-60, 2.0**-60, 1.0) == 1.0
    assert math.copysign(1.0, fma64(-0.0, 1.0, -0.0)) == -1.0
    assert math.copysign(1.0, float(fma32(0.0, 1.0, -0.0))) == 1.0
    # Where a sum of doubles is halfway between two floats, what it lost decides.
    assert fma32(1 + 2.0**-23, 1 + 2.0**-23, 2.0**24) == np.float32(2**24 + 2)


@pytest.mark.parametrize("windows", [1, 2, 3, 4, 5, 16, 17, 64, 65, 1000])
def test_the_order_is_a_permutation_of_each_epoch(windows):
    for epoch in range(3):
        found = [window_number(windows, 9, epoch * windows + k) for k in range(windows)]
        assert sorted(found) == list(range(windows))
    if windows > 16:
        assert found != [window_number(windows, 10, 2 * windows + k) for k in range(windows)]
        assert found != [window_number(windows, 9, windows + k) for k in range(windows)]


def test_golden_positions():
    """The first windows of some orders, for the docs and for other implementations."""
    assert [window_number(10, 0, p) for p in range(20)] == [
        *(8, 1, 3, 6, 4, 7, 9, 0, 2, 5),
        *(5, 1, 6, 2, 3, 4, 7, 9, 0, 8),
    ]
    assert [window_number(1000, 7, p) for p in range(8)] == [272, 73, 61, 707, 99, 752, 277, 44]
    assert [window_number(2**40 - 1, 1, p) for p in range(3)] == [944849749086, 535772443504, 876114808600]


def test_mixtures_take_each_source_as_often_as_its_weight_says():
    shares = shares_of([0.5, 0.3, 0.2])
    assert shares == [2048, 1229, 819]
    assert shares_of([1, 1, 1]) == [1366, 1365, 1365]
    both = mixture_block(shares, 3, 0) + mixture_block(shares, 3, 1)
    for source, share in enumerate(shares):
        assert [own for j, own in both if j == source] == list(range(2 * share))
    early = [j for j, _ in both[:400]]
    assert all(abs(early.count(j) / 400 - share / 4096) < 0.1 for j, share in enumerate(shares))


def test_mix_is_the_finaliser_of_splitmix64():
    # Vigna's splitmix64.c from state 0: the state grows by the golden number before it is mixed
    assert mix(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF
    assert mix(2 * 0x9E3779B97F4A7C15 % 2**64) == 0x6E789E6AA1B965F4


@pytest.mark.parametrize("name", SPECS)
def test_every_spec_has_windows_and_the_cases_meet_what_they_are_for(name):
    case = SPECS[name]
    truth = Truth(CACHES[case.cache].make(), case.arguments)
    assert truth.windows
    starts, ends = zip(*(truth.span(e) or (0, -1) for e in truth.selected), strict=True)
    assert all(starts[truth.selected.index(e)] <= t <= ends[truth.selected.index(e)] for e, t in truth.windows)
    rows = truth.batch_of(range(min(len(truth.windows), 60)), augment=False)
    assert any(rows[f"{key.name}.valid"].any() for key in truth.keys)


def test_the_golden_hash_is_the_oracles():
    case = SPECS["fixed"]
    assert golden_of(Truth(CACHES[case.cache].make(), case.arguments).batch) == GOLDEN
