"""Statistics of a cache's streams. The truth is NumPy in float64, and exact fractions."""

from __future__ import annotations

import decimal
import json
import os
import signal
import subprocess
import sys
import warnings
import zipfile
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from cache_cases import FakeRecording
from hypothesis import given, settings
from hypothesis import strategies as st

import robocache as rc

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
ARRAYS = ("count", "nan", "positive_infinity", "negative_infinity", "mean", "std", "min", "max", "quantiles")
RANK_ERROR = 1 / 800
LONG = 16384  # longer episodes have sketches


def stream(values, **options):
    values = np.asarray(values)
    return rc.Stream(values, np.arange(len(values), dtype=np.int64) * 1_000_000, **options)


def write(path, *episodes, commits=(), **options):
    """Episodes {stream: values}, named e0, e1, ...; a commit after each whose number is in `commits`."""
    with rc.CacheWriter(path, **options) as writer:
        for k, episode in enumerate(episodes):
            writer.add({n: v if isinstance(v, rc.Stream) else stream(v) for n, v in episode.items()}, name=f"e{k}")
            if k in commits:
                writer.commit()
    return rc.Cache(path)


def bits(found):
    return {name: (getattr(found, name).dtype, getattr(found, name).tobytes()) for name in ARRAYS}


def exact_mean(values):
    """The nearest float64 to the exact mean."""
    total = sum(map(Fraction, values))
    return (total / len(values)).numerator / (total / len(values)).denominator


def check_std(found, values):
    """Within 1 ulp of the square root of the exact variance."""
    numbers = list(map(Fraction, values))
    variance = sum(x * x for x in numbers) / len(numbers) - (sum(numbers) / len(numbers)) ** 2
    with decimal.localcontext(prec=2000) as context:
        context.Emax, context.Emin = 10**6, -(10**6)
        exact = (decimal.Decimal(variance.numerator) / decimal.Decimal(variance.denominator)).sqrt()
        assert abs(decimal.Decimal(float(found)) - exact) <= decimal.Decimal(float(np.spacing(found)))


def check(found, values, *, exact_quantiles=True):
    """All of a stream's statistics against NumPy and fractions; values [N, ...] of a NumPy dtype."""
    finite = np.isfinite(values)
    assert found.mean.shape == values.shape[1:]
    np.testing.assert_array_equal(found.count, finite.sum(0))
    np.testing.assert_array_equal(found.nan, np.isnan(values).sum(0))
    np.testing.assert_array_equal(found.positive_infinity, (values == np.inf).sum(0))
    np.testing.assert_array_equal(found.negative_infinity, (values == -np.inf).sum(0))
    assert found.exact == exact_quantiles
    for channel in np.ndindex(values.shape[1:]):
        column = values[(slice(None), *channel)]
        column = column[finite[(slice(None), *channel)]]
        if not len(column):
            assert np.isnan(found.mean[channel])
            assert np.isnan(found.std[channel])
            assert np.isnan(found.quantiles[(slice(None), *channel)]).all()
            continue
        assert (found.min[channel], found.max[channel]) == (column.min(), column.max())
        assert found.mean[channel] == exact_mean(column.tolist())
        check_std(found.std[channel], column.tolist())
        check_quantiles(found.probabilities, found.quantiles[(slice(None), *channel)], column, exact_quantiles)


def check_quantiles(probabilities, found, column, exact):
    column = column.astype(np.float64)
    for q, value in zip(probabilities, found, strict=True):
        if exact:
            assert value == np.quantile(column, q)
        else:
            assert np.quantile(column, max(q - RANK_ERROR, 0), method="lower") <= value
            assert value <= np.quantile(column, min(q + RANK_ERROR, 1), method="higher")


# ---- Against NumPy and fractions


@pytest.mark.parametrize("dtype", ["bool", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"])
def test_every_dtype(tmp_path, dtype):
    rng = np.random.default_rng(3)
    kind = np.dtype(dtype)
    parts = []
    for count in (1, 40, 300):
        if kind.kind == "f":
            made = rng.normal(scale=10, size=(count, 3)).astype(kind)
        elif kind.kind == "b":
            made = rng.random((count, 3)) < 0.3
        else:
            limits = np.iinfo(kind)
            made = rng.integers(limits.min, limits.max, (count, 3), dtype=kind, endpoint=True)
            made[0] = [limits.min, limits.max, limits.max]
        parts.append(made)
    found = write(tmp_path, *({"s": part} for part in parts)).statistics("s")
    values = np.concatenate(parts)
    check(found, values)
    assert found.min.dtype == {"f": np.float64, "u": np.uint64 if dtype == "u8" else np.int64}.get(kind.kind, np.int64)


def test_bfloat16(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.random.default_rng(0).normal(size=(50, 2)).astype(ml_dtypes.bfloat16)
    check(write(tmp_path, {"s": values}).statistics("s"), values.astype(np.float64))


TINY = 5e-324
ADVERSARIAL = {
    "constant": lambda rng, n: np.full(n, 0.1),
    "two values": lambda rng, n: np.where(rng.random(n) < 0.3, -7.5, 1e9),
    "sorted": lambda rng, n: np.sort(rng.normal(size=n)),
    "reversed": lambda rng, n: np.sort(rng.exponential(size=n))[::-1].copy(),
    "heavy tails": lambda rng, n: rng.standard_cauchy(n) ** 3,
    "far from zero": lambda rng, n: 1e9 + rng.normal(scale=1e-6, size=n),
    "cancelling": lambda rng, n: np.resize([1e308, 1.0, -1e308, 1e-300], n),
    "the largest": lambda rng, n: np.resize([1.7976931348623157e308, 1.7e308], n),
    "denormals": lambda rng, n: rng.integers(-3, 4, n) * TINY,
    "zeros": lambda rng, n: np.resize([0.0, -0.0], n),
    "all scales": lambda rng, n: rng.normal(size=n) * 2.0 ** rng.integers(-1060, 1000, n),
    "nan and inf": lambda rng, n: np.where(
        rng.random(n) < 0.2, rng.choice([np.nan, np.inf, -np.inf], n), rng.normal(size=n)
    ),
    "nothing finite": lambda rng, n: np.resize([np.nan, np.inf], n),
    "one finite": lambda rng, n: np.where(np.arange(n) == n // 2, 3.25, np.nan),
    "steps": lambda rng, n: np.arange(n) // 700 * 1.0,
}
OVERFLOWING = ("the largest", "cancelling")  # NumPy's own difference of two of these values overflows


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_adversarial_values_of_short_episodes(tmp_path, name):
    rng = np.random.default_rng(7)
    parts = [ADVERSARIAL[name](rng, count) for count in (3, 200, 41)]
    with np.errstate(invalid="ignore"):
        values = np.concatenate(parts)
        found = write(tmp_path, *({"s": part} for part in parts)).statistics("s")
        if name in OVERFLOWING:
            assert np.isfinite(found.quantiles).all()
            assert found.mean == exact_mean(values.tolist())
            return check_std(found.std, values.tolist())
        return check(found, values)


@pytest.mark.parametrize("count", [LONG + 1, 65_536, 140_001])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", ADVERSARIAL)
def test_the_rank_error_of_sketches(tmp_path, name, dtype, count):
    """Also for a short episode beside a long one, and of a subset."""
    rng = np.random.default_rng(count)
    with np.errstate(over="ignore", invalid="ignore"):
        parts = [ADVERSARIAL[name](rng, n).astype(dtype) for n in (count, 900)]
    cache = write(tmp_path, {"s": parts[0]}, {"s": parts[1]})
    asked = (0.0, 0.001, 0.01, 0.1, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0)
    for episodes, values in ((None, np.concatenate(parts)), ([0], parts[0]), ([1], parts[1])):
        found = cache.statistics("s", episodes, quantiles=asked)
        finite = values[np.isfinite(values)]
        assert found.exact == (episodes == [1] or not np.isfinite(parts[0]).any())
        if len(finite) and name not in OVERFLOWING:
            check_quantiles(asked, found.quantiles, finite, found.exact)
            assert (found.quantile(0.0), found.quantile(1.0)) == (finite.min(), finite.max())
        assert found.count == len(finite)


def test_a_quantile_of_many_quantised_values(tmp_path):
    """Values of 16 bits, and integers: the sketch's keys are those of the dtype."""
    rng = np.random.default_rng(1)
    for dtype in ("u2", "i4", "f2", "i8"):
        values = rng.normal(scale=300, loc=700, size=(90_000, 2)).clip(0, 60_000).astype(dtype)
        found = write(tmp_path / dtype, {"s": values}).statistics("s")
        for channel in range(2):
            check_quantiles(found.probabilities, found.quantiles[:, channel], values[:, channel], exact=False)
        np.testing.assert_allclose(found.mean, values.astype(np.float64).mean(0), rtol=1e-13)
        np.testing.assert_allclose(found.std, values.astype(np.float64).std(0), rtol=1e-11)


def test_many_float32_are_near_numpy(tmp_path):
    values = np.random.default_rng(5).normal(3, 2, size=(200_000, 7)).astype(np.float32)
    found = write(tmp_path, {"s": values}).statistics("s", quantiles=())
    wide = values.astype(np.float64)
    np.testing.assert_allclose(found.mean, wide.mean(0), rtol=1e-14)
    np.testing.assert_allclose(found.std, wide.std(0), rtol=1e-12)
    assert found.quantiles.shape == (0, 7)


# ---- Pictures and other shapes


def test_frames_have_exact_statistics_of_each_colour(tmp_path):
    rng = np.random.default_rng(2)
    parts = [rng.integers(0, 256, (n, 20, 24, 3), dtype=np.uint8) // (k + 1) for k, n in enumerate((60, 3, 50))]
    cache = write(tmp_path, *({"wrist": part} for part in parts))
    for episodes in (None, [1], [0, 2]):
        found = cache.statistics("wrist", episodes)
        values = np.concatenate([parts[k] for k in episodes or range(3)]).reshape(-1, 3)
        assert (found.mean.shape, found.exact) == ((3,), True)
        np.testing.assert_array_equal(found.quantiles, np.quantile(values, found.probabilities, axis=0))
        np.testing.assert_array_equal(found.mean, values.sum(0, dtype=np.int64) / len(values))
        np.testing.assert_allclose(found.std, values.std(0), rtol=1e-12)
        np.testing.assert_array_equal(
            [found.count[0], *found.min, *found.max], [len(values), *values.min(0), *values.max(0)]
        )


@pytest.mark.parametrize(
    ("shape", "dtype", "pooled"),
    [
        ((), "f4", ()),
        ((4, 4), "f4", (4, 4)),
        ((2, 3, 2), "i8", (2, 3, 2)),
        ((8, 9), "u1", ()),
        ((8, 9, 1), "u1", (1,)),
        ((8, 9, 4), "u1", (4,)),
        ((3, 8, 9), "u1", ()),
        ((30, 40), "u2", ()),
        ((30, 40), "f4", ()),
        ((30, 40, 2), "f4", (2,)),
        ((300,), "f4", (300,)),  # more channels than shards keep partials of
        ((0,), "f4", (0,)),
        ((3, 0), "f8", (3, 0)),
    ],
)
def test_shapes(tmp_path, shape, dtype, pooled):
    rng = np.random.default_rng(4)
    values = (rng.normal(size=(23, *shape)) * 50 + 100).astype(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is said of streams whose partials no shard keeps
        found = write(tmp_path, {"s": values[:9]}, {"s": values[9:]}).statistics("s")
    size = int(np.prod(pooled, dtype=int))
    flat = values.reshape(-1, size) if size else np.zeros((23, 0), dtype)
    wide = flat.astype(np.float64)
    assert found.mean.shape == found.max.shape == pooled
    assert found.quantiles.shape == (5, *pooled)
    assert (found.count == len(flat)).all()
    np.testing.assert_allclose(found.mean.ravel(), wide.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.std.ravel(), wide.std(0), rtol=1e-9)
    np.testing.assert_array_equal(found.min.ravel(), wide.min(0, initial=np.inf))
    column = found.quantiles.reshape(5, size)
    for channel in range(size):
        check_quantiles(found.probabilities, column[:, channel], flat[:, channel], found.exact)


def test_clouds_and_encoded_pictures(tmp_path):
    rng = np.random.default_rng(8)
    lengths = np.array([3, 0, 40, 1])
    rows = rng.normal(size=(44, 3)).astype(np.float32)
    times = np.arange(4, dtype=np.int64)
    with rc.CacheWriter(tmp_path / "c") as writer:
        writer.add(
            FakeRecording("a", [{"cloud": (rows, times, lengths)}, {"cloud": (rows[:4] * 9, times, np.ones(4, int))}])
        )
    cache = rc.Cache(tmp_path / "c")
    check(cache.statistics("cloud"), np.concatenate([rows, rows[:4] * 9]))
    check(cache.statistics("cloud", 1), rows[:4] * 9)
    check(rc.Cache(tmp_path / "c", map=False).statistics("cloud", [0]), rows)
    encoded = (np.zeros(44, np.uint8), times, lengths)
    with rc.CacheWriter(tmp_path / "c") as writer:
        writer.add(FakeRecording("b", [{"camera": encoded}], format="jpeg"))
        writer.add(FakeRecording("d", [{"video": (times[:, None], times)}], kind="video"))
    for name in ("camera", "video"):
        with pytest.raises(ValueError, match=f'stream "{name}" only as they were recorded, not as frames'):
            rc.Cache(tmp_path / "c").statistics(name)


def test_frames_beside_a_camera_stand_for_it(tmp_path):
    """As a build with frames stores them: a stream of its own, whose metadata names the camera."""
    times = np.arange(30, dtype=np.int64)
    frames = np.random.default_rng(1).integers(0, 256, (30, 6, 8, 3), dtype=np.uint8)
    with rc.CacheWriter(tmp_path) as writer:
        writer.add(FakeRecording("a", [{"wrist": (times[:, None], times)}], kind="video"))
        writer.add(FakeRecording("b", [{"wrist/frames": (frames, times)}], kind="frames", of="wrist"))
    found = rc.Cache(tmp_path).statistics("wrist")
    assert (found.stream, found.mean.shape) == ("wrist", (3,))
    np.testing.assert_array_equal(found.mean, frames.reshape(-1, 3).sum(0, dtype=np.int64) / frames[..., 0].size)


def test_a_joined_stream_has_the_channels_of_its_members(tmp_path):
    rng = np.random.default_rng(9)
    fast, slow = rng.normal(size=(400, 2)), rng.integers(0, 9, (30,), dtype=np.int16)
    parts = {"state/a": (fast, np.arange(400) * 10), "state/b": (slow, np.arange(30) * 130)}
    said = json.dumps(["state", ["state/b", "state/a"]])
    with rc.CacheWriter(tmp_path) as writer:
        writer.add(FakeRecording("a", [parts], joined=said))
    cache = rc.Cache(tmp_path)
    found = cache.statistics("state")
    b, a = cache.statistics("state/b"), cache.statistics("state/a")
    assert (found.stream, found.episodes, found.count.tolist()) == ("state", 1, [30, 400, 400])
    np.testing.assert_array_equal(found.mean, [b.mean, *a.mean])
    np.testing.assert_array_equal(found.quantiles, np.column_stack([b.quantiles, a.quantiles]))
    np.testing.assert_array_equal(found.max, [slow.max(), *fast.max(0)])


# ---- Any grouping, any order, any subset


def scrambled(rng, count, dtype):
    made = rng.normal(size=(count, 2)) * 10.0 ** rng.integers(-30, 30, (count, 1))
    made[rng.random(made.shape) < 0.05] = np.nan
    made[rng.random(made.shape) < 0.02] = np.inf
    return made.astype(dtype)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_neither_grouping_nor_order_nor_threads_change_a_bit(tmp_path_factory, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    dtype = data.draw(st.sampled_from(["f4", "f8"]))
    count = data.draw(st.integers(1, 6))
    parts = [scrambled(rng, data.draw(st.sampled_from([0, 1, 30, LONG + 5])), dtype) for _ in range(count)]
    subset = data.draw(st.sets(st.integers(0, count - 1)))
    answers = []
    for attempt in range(3):
        order = data.draw(st.permutations(range(count)))
        commits = data.draw(st.sets(st.integers(0, count - 1)))
        place = tmp_path_factory.mktemp("c")
        with rc.CacheWriter(place) as writer:
            for k in order:
                writer.add({"s": stream(parts[k])}, name=str(k))
                if k in commits:
                    writer.commit()
        cache = rc.Cache(place, map=attempt != 1)
        before = rc.num_threads()
        rc.set_num_threads(1 + attempt)
        try:
            answers.append(cache.statistics("s", [str(k) for k in rng.permutation(sorted(subset))]))
        finally:
            rc.set_num_threads(before)
    assert bits(answers[0]) == bits(answers[1]) == bits(answers[2])
    values = np.concatenate([np.zeros((0, 2)), *(parts[k] for k in subset)]).astype(np.float64)
    np.testing.assert_array_equal(answers[0].count, np.isfinite(values).sum(0))
    for channel in range(2):
        finite = values[np.isfinite(values[:, channel]), channel]
        if len(finite):
            assert answers[0].mean[channel] == exact_mean(finite.tolist())


def test_batches_and_backward_stamps_change_nothing(tmp_path):
    """A recording is handed out in pieces, and sorted: the sketch is of the sorted samples, whatever the pieces."""
    rng = np.random.default_rng(6)
    values = rng.normal(size=(3 * 65_536, 2)).astype(np.float32)
    times = rng.permutation(len(values)).astype(np.int64)
    answers = []
    for step in (999, 70_000):
        with rc.CacheWriter(tmp_path / str(step)) as writer:
            writer.add(FakeRecording("a", [{"s": (values, times)}], step=step))
        answers.append(bits(rc.Cache(tmp_path / str(step)).statistics("s")))
    with rc.CacheWriter(tmp_path / "sorted") as writer:
        order = np.argsort(times)
        writer.add({"s": rc.Stream(values[order], times[order])}, name="a")
    answers.append(bits(rc.Cache(tmp_path / "sorted").statistics("s")))
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("commits", [(), (0,), (0, 1)])
def test_channels_that_came_later_count_as_nan(tmp_path, commits):
    a, b = np.arange(12.0).reshape(6, 2), np.arange(9.0).reshape(3, 3)
    cache = write(
        tmp_path, {"s": stream(a, channels=["x", "y"])}, {"s": stream(b, channels=["z", "y", "x"])}, commits=commits
    )
    wide = np.full((9, 3), np.nan)
    wide[:6, :2], wide[6:] = a, b[:, ::-1]
    check(cache.statistics("s"), wide)
    check(cache.statistics("s", "e0"), wide[:6])
    assert cache.statistics("s").channels == ("x", "y", "z")


def test_episodes_without_the_stream_and_empty_ones(tmp_path):
    none = np.zeros((0, 2), np.float32)
    cache = write(
        tmp_path, {"a": np.ones((3, 2))}, {"b": none, "i": np.zeros(0, np.int32)}, {"a": np.full((2, 2), 4.0)}
    )
    assert cache.statistics("a").episodes == 2
    assert cache.statistics("a").mean.tolist() == [2.2, 2.2]
    assert cache.statistics("a", [1]).episodes == 0
    for found in (cache.statistics("a", []), cache.statistics("a", [1]), cache.statistics("b")):
        assert found.count.tolist() == [0, 0]
        assert np.isnan([found.mean, found.std, found.min, found.max, *found.quantiles]).all()
    empty = cache.statistics("i")
    assert (empty.count, empty.min, empty.max) == (0, 0, 0)
    assert np.isnan(empty.mean)


def test_replaced_and_discarded_episodes_leave_nothing(tmp_path):
    with rc.CacheWriter(tmp_path) as writer:
        writer.add({"s": stream(np.full((5, 2), 1.0))}, name="a")
        writer.add({"s": stream(np.full((5, 2), 3.0))}, name="b")
        writer.commit()
        broken = FakeRecording("r", [{"s": (np.full((40, 2), 1e9), np.arange(40))}])
        broken.fail_at = 3
        with pytest.raises(RuntimeError):
            writer.add(broken)
        writer.add({"s": stream(np.full((5, 2), 5.0))}, name="b", replace=True)
    assert rc.Cache(tmp_path).statistics("s", "b").mean.tolist() == [5, 5]
    assert rc.Cache(tmp_path).statistics("s").mean.tolist() == [3, 3]
    assert rc.verify_cache(tmp_path).ok


# ---- What is asked wrongly


def test_sentences(tmp_path):
    cache = write(tmp_path, {"s": np.ones((3, 2))})
    with pytest.raises(KeyError, match='the cache has no stream "t"'):
        cache.statistics("t")
    with pytest.raises(TypeError, match=r"stream is \['s'\]; expected the name of one stream"):
        cache.statistics(["s"])
    with pytest.raises(ValueError, match="episode 0 is given twice"):
        cache.statistics("s", [0, "e0"])
    with pytest.raises(IndexError, match="there is no episode 3"):
        cache.statistics("s", 3)
    for q in (-0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match=r"a quantile is .*; it must be from 0 to 1"):
            cache.statistics("s", quantiles=[q])
    with pytest.raises(ValueError, match=r"quantile 0.3 was not asked for; asked for were 0\.5"):
        cache.statistics("s", quantiles=0.5).quantile(0.3)


def test_quantiles_have_names_of_their_own(tmp_path):
    """In JSON. LeRobot's own are q01, q10, q50, q90 and q99; rounded ones would replace each other."""
    asked = (0.0, 0.0004, 0.001, 0.01, 0.07, 0.1, 0.5, 0.975, 0.99, 0.9996, 0.9999, 1.0)
    found = write(tmp_path, {"s": np.arange(10_001.0)}).statistics("s", quantiles=asked).as_dict()
    names = ("q00", "q00.04", "q00.1", "q01", "q07", "q10", "q50", "q97.5", "q99", "q99.96", "q99.99", "q100")
    np.testing.assert_allclose([found[name] for name in names], np.array(asked) * 10_000, rtol=1e-12)


# ---- Old caches, damage, crashes


def test_an_old_cache_computes_them_and_says_so_once(tmp_path):
    with zipfile.ZipFile(GOLDEN / "cache_version_1.zip") as archive:
        archive.extractall(tmp_path)
    cache = rc.Cache(tmp_path)
    with pytest.warns(UserWarning, match="does not keep the statistics of 1 episode, which are computed"):
        found = cache.statistics("joints")
    check(found, np.array([[1.0, 2], [3, 4]]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bits(cache.statistics("joints")) == bits(found)
    with rc.CacheWriter(tmp_path) as writer:  # what is written now has them
        writer.add({"joints": stream(np.float32([[5, 6]]), channels=["a", "b"])}, name="two")
    check(rc.Cache(tmp_path).statistics("joints", "two"), np.array([[5.0, 6]]))
    with pytest.warns(UserWarning, match="an older RoboCache wrote them"):
        check(rc.Cache(tmp_path).statistics("joints"), np.array([[1.0, 2], [3, 4], [5, 6]]))
    with rc.CacheWriter(tmp_path / "copy") as writer:
        writer.add(rc.Cache(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(rc.Cache(tmp_path / "copy").statistics("joints"), np.array([[1.0, 2], [3, 4], [5, 6]]))


def shard_of(path, name):
    return next(path.glob(f"shards/*-{name}-*"))


def statistics_at(shard):
    """Where the tensor begins and ends in the file."""
    content = shard.read_bytes()
    length = int.from_bytes(content[:8], "little")
    begin, end = json.loads(content[8 : 8 + length])["statistics"]["data_offsets"]
    return 8 + length + begin, 8 + length + end


@pytest.mark.parametrize("mapped", [True, False])
def test_damage_is_found_and_dropped_and_the_answer_stays(tmp_path, mapped):
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(n, 2)) for n in (50, 70_000, 140_000)]
    cache = write(tmp_path, *({"s": part, "other": part[:9]} for part in parts), commits=(0,))
    before, samples = bits(cache.statistics("s")), [e.streams["s"].values.copy() for e in cache.episodes]
    shard = sorted(tmp_path.glob("shards/*-s-*"))[1]
    begin, end = statistics_at(shard)
    content = bytearray(shard.read_bytes())
    content[(begin + end) // 2] ^= 0x10
    shard.write_bytes(content)
    with pytest.raises(rc.FileError, match=r"-s-.*its statistics are damaged; `robocache verify --repair` drops them"):
        rc.Cache(tmp_path, map=mapped).statistics("s")
    assert bits(rc.Cache(tmp_path, map=mapped).statistics("s", [0])) != before  # of another shard
    [problem] = rc.verify_cache(tmp_path).problems
    assert problem.file == f"shards/{shard.name}"
    assert 'the checksum of "statistics" is wrong' in problem.sentence
    report = rc.verify_cache(tmp_path, repair=True)
    assert (report.repaired, report.dropped, report.episodes) == (True, [], 3)
    assert rc.verify_cache(tmp_path).problems == []
    repaired = rc.Cache(tmp_path, map=mapped)
    for episode, values in zip(repaired.episodes, samples, strict=True):
        np.testing.assert_array_equal(episode.streams["s"].values, values)
    with pytest.warns(UserWarning, match="the statistics of 2 episodes, .*a repair dropped the statistics"):
        assert bits(repaired.statistics("s")) == before  # the same sketches


def test_the_format_stays(tmp_path):
    """Caches keep sketches, and compute those that they lack: both must be what the cache's writer made."""
    k = np.arange(70_000, dtype=np.int64)
    values = np.column_stack([k * k % 65_537 - 30_000, np.where(k % 1000 == 0, np.nan, k % 97 / 8)])
    pictures = (k[:57_600] * 7 % 251).astype(np.uint8).reshape(20, 30, 32, 3)
    write(tmp_path, {"s": values.astype(np.float32), "d": values[:99], "i": k[:40] - 20, "p": pictures})
    shards = json.loads((tmp_path / "manifest.json").read_text())["shards"]
    found = {shard["stream"]: shard["xxh3"]["statistics"] for shard in shards}
    assert found == {
        "d": "d73aea303c12997e15ce5271fcab06cf",
        "i": "a8d7c1f76d198fccc1b38b44d301c1ef",
        "p": "916c53f36ec7c349784babf937123648",
        "s": "60fb8cda28b88fd29542017936a2bcd5",
    }


def test_a_lost_manifest_keeps_them(tmp_path):
    values = np.random.default_rng(1).normal(size=(20_000, 2))
    cache = write(tmp_path, {"s": values}, {"s": values[:70] * 3}, commits=(0,))
    before = bits(cache.statistics("s"))
    (tmp_path / "manifest.json").unlink()
    assert rc.verify_cache(tmp_path, repair=True).repaired
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bits(rc.Cache(tmp_path).statistics("s")) == before


def test_a_tensor_of_wrong_content_is_found(tmp_path):
    """With the right checksum: what does not fit the shard is damage, for the reader too."""
    write(tmp_path, {"s": np.arange(40.0).reshape(20, 2)})
    shard = shard_of(tmp_path, "s")
    begin, _ = statistics_at(shard)
    whole = shard.read_bytes()
    words = np.frombuffer(whole, np.uint64, offset=begin).copy()
    for place in range(len(words)):
        changed = words.copy()
        changed[place] += 1 << 40
        shard.write_bytes(whole[:begin] + changed.tobytes())
        assert not rc.verify_cache(tmp_path).ok
        with pytest.raises(rc.FileError, match="its statistics are damaged"):
            rc.Cache(tmp_path).statistics("s")


KILLED = """
import sys, numpy as np, robocache as rc
writer = rc.CacheWriter(sys.argv[1])
for k in range(1000):
    values = np.random.default_rng(k).normal(size=(300, 3))
    writer.add({"s": rc.Stream(values, np.arange(300))}, name=str(k))
    writer.commit()
    print(k, flush=True)
"""


def test_a_killed_writer_leaves_the_statistics_of_what_it_committed(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path / "c")], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    for line in child.stdout:
        if int(line) == 7:
            break
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the commit that was interrupted
        cache = rc.Cache(tmp_path / "c")
    numbers = [int(episode.name) for episode in cache.episodes]
    assert set(numbers) >= set(range(8))
    check(cache.statistics("s"), np.concatenate([np.random.default_rng(k).normal(size=(300, 3)) for k in numbers]))


# ---- The command line


def run(*arguments):
    return subprocess.run([sys.executable, "-m", "robocache.cli", *map(str, arguments)], capture_output=True, text=True)


def test_the_command(tmp_path):
    values = np.arange(12.0).reshape(6, 2)
    said = FakeRecording("b", [{"camera": (np.zeros(4, np.uint8), np.arange(2), np.full(2, 2))}], format="jpeg")
    with rc.CacheWriter(tmp_path) as writer:
        writer.add({"joints": stream(values, channels=["x", "y"])}, name="a")
        writer.add({"joints": stream(values * 2, channels=["x", "y"])}, name="b")
        writer.add(said)
    done = run("statistics", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "joints: 2 episodes" in done.stdout
    assert "q01" in done.stdout
    assert "Note: Cache.statistics: " in done.stdout
    found = json.loads(run("statistics", tmp_path, "joints", "--episodes", "a", "--quantile", "0.25", "--json").stdout)
    [joints] = found["streams"].values()
    assert joints["mean"] == values.mean(0).tolist()
    assert joints["q25"] == np.quantile(values, 0.25, axis=0).tolist()
    assert (joints["count"], joints["channels"], joints["episodes"]) == ([6, 6], ["x", "y"], 1)
    for arguments, words in ((("camera",), "not as frames"), (("joints", "--episodes", "z"), "there is no episode")):
        done = run("statistics", tmp_path, *arguments)
        assert done.returncode == 1
        assert words in done.stderr
