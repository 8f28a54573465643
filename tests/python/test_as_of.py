"""as_of: a sample exists if it had arrived by the decision. The truths are written out here, or come from the oracle,
which leaves the other samples out before it looks at anything else."""

from __future__ import annotations

import math
import time

import calling
import cases
import numpy as np
import oracle
import pytest
from test_align import assert_close, assert_copies

import robocache as rc

MS = 1_000_000
NO_AGE = np.iinfo(np.int64).min
METHODS = [*cases.INTERPOLATING, *cases.BINS]


def aligned(backend, values, times, targets, *, call=None, **options):
    """One stream on one backend, as NumPy."""
    call = {"backend": backend, **(call or {})}
    arrays = [np.asarray(array) for array in (values, times, targets)]
    if backend in ("reference", "cpu"):
        return rc.align([rc.Stream(*arrays[:2], **options)], arrays[2], **call)[0]
    pytest.importorskip("torch")
    device = "cuda" if backend == "cuda" else "cpu"

    def tensor(thing):
        return calling.to_torch(np.asarray(thing), device) if isinstance(thing, (np.ndarray, list)) else thing

    options = {name: thing if name == "method" else tensor(thing) for name, thing in options.items()}
    call = {name: tensor(thing) for name, thing in call.items()}
    stream = rc.Stream(tensor(arrays[0]), tensor(arrays[1]), **options)
    made = rc.align([stream], tensor(arrays[2]), **call)[0]
    if backend == "cuda":
        rc.synchronize()
    return rc.Aligned(*(part.cpu().numpy() for part in made))


every_backend = pytest.mark.parametrize("backend", ["reference", "cpu", "torch", "cuda"])


# ---- the rules, by hand


@every_backend
def test_a_robot_that_looks_back_knows_what_came_in_since(backend):
    """Samples at 0, 10, 20, 30 ms arrive 15 ms late. At 30 ms the robot has those of 0 and 10."""
    values, times = np.array([0.0, 10.0, 20.0, 30.0]), np.array([0, 10, 20, 30]) * MS
    late, targets = times + 15 * MS, np.array([-5, 0, 5, 10, 15, 20, 30]) * MS
    made = aligned(backend, values, times, targets, arrivals=late, call={"as_of": 30 * MS})
    assert made.values.tolist() == [0, 0, 5, 10, 10, 10, 10]
    assert made.valid.tolist() == [False, True, True, True, True, True, True]
    assert made.index.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert (made.age // MS).tolist() == [-5, 0, 5, 0, 5, 10, 20]
    # causal, step by step, knew less at the steps before: at 5 ms nothing at all.
    causal = aligned(backend, values, times, targets, arrivals=late, causal=True)
    assert causal.valid.tolist() == [False, False, False, False, True, True, True]
    # Past the last sample that exists max_gap limits how long it is held, and edge says what follows.
    short = aligned(
        backend, values, times, targets, arrivals=late, max_gap=0.012, call={"as_of": 30 * MS, "edge": "nan"}
    )
    assert short.valid.tolist() == [False, True, True, True, True, True, False]
    assert np.isnan(short.values[[0, 6]]).all()
    assert short.index.tolist() == [-1, 0, 0, 1, 1, 1, -1]


@every_backend
def test_the_neighbours_are_those_that_had_arrived(backend):
    """The sample in the middle is still under way: the values on both sides are joined past it."""
    values, times = np.array([0.0, 100.0, 20.0, 30.0]), np.array([0, 10, 20, 30]) * MS
    arrivals, targets = np.array([1, 99, 21, 31]) * MS, np.array([5, 10, 15, 20, 25, 30]) * MS
    call = {"as_of": 31 * MS}
    made = aligned(backend, values, times, targets, arrivals=arrivals, call=call)
    assert made.values.tolist() == [5, 10, 15, 20, 25, 30]
    assert made.index.tolist() == [0, 0, 0, 2, 2, 3]
    near = aligned(backend, values, times, targets, arrivals=arrivals, method="nearest", call=call)
    assert near.index.tolist() == [0, 0, 2, 2, 2, 3]
    gap = aligned(backend, values, times, targets, arrivals=arrivals, max_gap=0.015, call=call)
    assert gap.valid.tolist() == [False, False, False, True, True, True]
    parabola = aligned(backend, (times / MS) ** 2 * 1.0, times, targets, arrivals=arrivals, method="cubic", call=call)
    # Tangents 20, 40, 50 at 0, 20, 30 ms: those of the samples that exist, one-sided at both ends.
    np.testing.assert_allclose(parabola.values[[1, 4]], [150, 637.5], rtol=1e-12)
    counted = aligned(backend, values, times, np.array([0, 20, 40]) * MS, arrivals=arrivals, method="mean", call=call)
    assert counted.values.tolist() == [0, 20, 30]


@every_backend
@pytest.mark.parametrize("method", ["linear", "hold", "nearest", "cubic", "angle", "slerp", *cases.BINS])
def test_before_the_first_that_exists_and_where_none_does(backend, method):
    values = np.ones((4, 4), np.float32) * np.arange(1, 5)[:, None]
    times, arrivals = np.array([0, 10, 20, 30]) * MS, np.array([90, 90, 40, 35]) * MS
    targets = np.array([0, 5, 10]) * MS
    made = aligned(backend, values, times, targets, arrivals=arrivals, method=method, call={"as_of": 50 * MS})
    assert not made.valid.any()
    assert made.index.tolist() == [2, 2, 2]  # clamp copies the first sample that exists
    assert (made.age // MS).tolist() == [-20, -15, -10]
    copied = values[2] / 6 if method == "slerp" else values[2]
    np.testing.assert_array_equal(made.values, np.broadcast_to(copied, (3, 4)))
    for edge, filled in (("clamp", 0.0), ("zero", 0.0), ("nan", np.nan)):
        call = {"as_of": 34 * MS, "edge": edge}
        none = aligned(backend, values, times, targets, arrivals=arrivals, method=method, call=call)
        np.testing.assert_array_equal(none.values, np.full((3, 4), filled, np.float32))
        assert not none.valid.any()
        assert (none.index == -1).all()
        assert (none.age == NO_AGE).all()


@every_backend
def test_stamps_are_the_arrivals_of_a_stream_without_any(backend):
    """latency moves the samples, not their arrivals."""
    values, times = np.array([0.0, 1.0, 2.0]), np.array([10, 20, 30]) * MS
    targets = np.array([0, 5, 10, 15, 20]) * MS
    made = aligned(backend, values, times, targets, latency=10 * MS, call={"as_of": 20 * MS})
    assert made.values.tolist() == [0, 0.5, 1, 1, 1]  # the sample of 20 ms, stamped 30, has not arrived
    assert made.valid.all()


@every_backend
@pytest.mark.parametrize("method", METHODS)
def test_samples_that_arrive_at_once_change_only_the_end(backend, method):
    """Arrival is the stamp, latency 0, all targets up to T: as without causality, up to the last sample."""
    random = cases.Random(method)
    times = cases.stamps(random, 20, False)
    values = random.values((20, 4), "float64")
    decision = int(times[14] + times[15]) // 2
    targets = np.sort(random.integers(int(times[0]) - 3, decision + 1, 200))
    known = aligned(backend, values, times, targets, method=method, call={"as_of": decision})
    full = aligned(backend, values, times, targets, method=method)
    same = targets <= times[13 if method == "cubic" else 14]
    assert same.sum() > 100
    for mine, theirs in zip(known, full, strict=True):
        calling.assert_same_bytes(mine[same], theirs[same], method)
    assert (~same).any()
    assert method in cases.BINS or known.valid[~same].all()
    if method == "linear":
        assert (known.values[~same] != full.values[~same]).any()


# ---- the last sample that exists, at every length


def arrivals_in(order, times, random):
    arrivals = times + 7 * MS
    if order == "reversed":
        return arrivals[::-1].copy()
    if order == "shuffled":
        return arrivals[random.integers(0, len(times), len(times))]
    if order == "the last sample first":
        arrivals[-1] = times[0] - 2 * MS
    if order == "all at once":
        arrivals[:] = arrivals[len(times) // 2]
    return arrivals


def laid_out(layout, times, episodes):
    """A stream's arrays that have the samples of some episodes, and which episode each of 9 rows reads."""
    if layout == "one episode":
        return {"times": times, "arrivals": episodes[0]}, np.zeros(9, np.int64)
    rows = np.arange(9) % len(episodes)
    if layout == "packed":  # an episode is read by three rows; arrivals are seconds
        packed = {"times": np.tile(times, len(episodes)), "arrivals": np.concatenate(episodes) / 1e9}
        return {**packed, "offsets": np.arange(len(episodes) + 1) * len(times), "rows": rows}, rows
    wide = np.full((2, 9, len(times) + 3), -1)  # "parts of wider rows"
    wide[0, :, :-3], wide[1, :, :-3] = times, np.stack(episodes)[rows]
    return {"times": wide[0, :, :-3], "arrivals": wide[1, :, :-3]}, rows


@every_backend
@pytest.mark.parametrize("order", ["in order", "reversed", "shuffled", "the last sample first", "all at once"])
@pytest.mark.parametrize("layout", ["one episode", "packed", "parts of wider rows"])
def test_each_row_has_its_own_last_sample(backend, order, layout):
    """Rows decide before all arrivals, among them and after all. A sample's value is its time in ms, so between two
    samples the value is the target, whichever samples exist."""
    random = cases.Random(f"{order} {layout}")
    for samples in (1, 16, 17, 64, 65, 500, 1024, 1025, 4200, 9000):
        times = np.arange(samples) * 10 * MS
        arrivals = arrivals_in(order, times, random)
        arrays, rows = laid_out(layout, times, [arrivals, arrivals[::-1], arrivals])
        ends = [int(arrivals.min()) - 1, int(arrivals.min()), int(arrivals.max()) - 1, int(arrivals.max())]
        decisions = np.array([*ends, *np.quantile(arrivals, [0.1, 0.3, 0.5, 0.7, 0.9]).astype(np.int64)])
        targets = np.sort(random.integers(-15 * MS, (samples * 10 + 15) * MS, 40))
        every_row = np.tile(targets, (9, 1))
        stamps = arrays.pop("times")
        for method in ("linear", "cubic", "hold"):
            call = {"as_of": decisions}
            made = aligned(backend, stamps / MS, stamps, every_row, method=method, call=call, **arrays)
            for b, decision in enumerate(decisions):
                exist = np.flatnonzero((arrivals[::-1] if rows[b] == 1 else arrivals) <= decision)
                where = f"{samples} samples, {method}, row {b}"
                if exist.size == 0:
                    assert (made.index[b] == -1).all(), where
                    assert (made.age[b] == NO_AGE).all(), where
                    continue
                i = np.searchsorted(times[exist], targets, side="right") - 1
                held = times[exist][np.maximum(i, 0)]
                value = held if method == "hold" else np.clip(targets, times[exist[0]], times[exist[-1]])
                np.testing.assert_array_equal(made.valid[b], i >= 0, err_msg=where)
                np.testing.assert_array_equal(made.index[b], exist[np.maximum(i, 0)], err_msg=where)
                np.testing.assert_array_equal(made.age[b], targets - held, err_msg=where)
                np.testing.assert_allclose(made.values[b], value / MS, rtol=1e-9, atol=1e-9, err_msg=where)


# ---- per call and per stream


def two_streams(**options):
    times = np.array([0, 10, 20]) * MS
    return rc.Stream(np.array([0.0, 10.0, 20.0]), times, arrivals=times + 15 * MS, **options)


def test_a_stream_switches_the_calls_off():
    targets = np.array([5, 15]) * MS
    streams = {
        "call": two_streams(),
        "off": two_streams(as_of=False),
        "own": two_streams(as_of=0.035),
        "causal": two_streams(as_of=False, causal=True),
    }
    made = rc.align(streams, targets, as_of=25 * MS)
    assert {name: part.values.tolist() for name, part in made.items()} == {
        "call": [5, 10],
        "off": [5, 15],
        "own": [5, 15],
        "causal": [0, 0],
    }
    assert rc.align({"a": two_streams(causal=False, as_of=25 * MS)}, targets, causal=True)["a"].values.tolist() == [
        5,
        10,
    ]


def test_anchor_is_the_t_of_around():
    times = np.arange(0, 200, 10) * MS
    stream = rc.Stream(times / MS, times, arrivals=times + 25 * MS)
    t = np.array([50, 100, 101]) * MS
    line = rc.Timeline.around(t, history=3, horizon=3, rate=100)
    by_anchor = rc.align([stream], line, as_of="anchor")[0]
    by_time = rc.align([stream], line, as_of=t)[0]
    by_stream = rc.align([stream.replace(as_of="anchor")], line)[0]
    for mine, theirs, third in zip(by_anchor, by_time, by_stream, strict=True):
        calling.assert_same_bytes(mine, theirs, "anchor")
        calling.assert_same_bytes(third, theirs, "anchor of a stream")
    assert by_anchor.values[0].tolist() == [20, 20, 20, 20, 20, 20]
    assert by_anchor.values[1].tolist() == [70, 70, 70, 70, 70, 70]
    one = rc.Timeline.around(0.1, history=3, horizon=1, rate=100)
    assert rc.fuse([stream], one, as_of="anchor").values[:, 0].tolist() == [70, 70, 70, 70]
    assert rc.resample(times / MS, times, one, as_of="anchor").tolist() == [70, 80, 90, 100]


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64"])
def test_every_form_of_one_time_means_the_same(dtype):
    times = np.arange(0, 200, 10) * MS
    stream = rc.Stream(times / MS, times)
    t = 128 * MS if dtype == "int64" else np.dtype(dtype).type(0.128)
    targets = np.array([[120, 130], [125, 135]]) * MS
    expected = [[120, 120], [120, 120]]
    for as_of in (t, np.asarray(t), np.array([t, t]), [t, t]):
        assert rc.align([stream], targets, as_of=as_of)[0].values.tolist() == expected
        assert rc.align([stream.replace(as_of=as_of)], targets)[0].values.tolist() == expected
        assert rc.resample(stream.values, times, targets, as_of=as_of).tolist() == expected


# ---- bad input


def raises(sentence, error=ValueError):
    import re

    return pytest.raises(error, match=re.escape(sentence))


BOTH = (
    "as_of and causal are both on, and a stream takes one: as_of asks what had arrived by the decision, causal what "
    "had arrived by each target"
)


def libraries():
    yield np.asarray
    try:
        import torch
    except ImportError:
        return
    yield lambda array: torch.from_numpy(np.asarray(array))


@pytest.mark.parametrize("array", list(libraries()))
def test_bad_as_of_gets_a_sentence(array):
    times = array(np.arange(5) * 1000 * MS)
    stream = rc.Stream(array(np.arange(5.0)), times)
    imu = stream.replace(name="imu")
    for backend in (None, "torch") if type(times).__module__ == "torch" else (None,):

        def align(streams=(stream,), targets=times, backend=backend, **call):
            return rc.align(list(streams), targets, backend=backend, **call)

        with raises(f"align: {BOTH}"):
            align(as_of=0, causal=True)
        with raises(f'align: stream "imu": {BOTH}'):
            align([imu.replace(causal=True)], as_of=0)
        with raises("as_of has 3 times, but the call has no rows; expected one time"):
            align(as_of=array(np.zeros(3)))
        rows = array(np.zeros((2, 3)))
        with raises("as_of has 3 times, but the call has 2 rows; expected one time, or one for each row"):
            align(targets=rows, as_of=array(np.zeros(3)))
        with raises("as_of has shape [2, 1]; expected one time, or one for each row: [B]"):
            align(targets=rows, as_of=array(np.zeros((2, 1))))
        with raises("as_of is int32; it must be int64 nanoseconds, or float64 or float32 seconds", TypeError):
            align(targets=rows, as_of=array(np.zeros(2, np.int32)))
        with raises('align: as_of="anchor" needs targets that are a Timeline.around, whose t is the decision'):
            align(as_of="anchor")
        with raises('align: stream "imu": as_of="anchor" needs targets that are a Timeline.around'):
            align([imu.replace(as_of="anchor")], rc.Timeline(0, rate=1, count=2))
        for wrong in ("now", True, 3j):
            with raises(
                f"align: as_of is {wrong!r}; expected nanoseconds as an int, seconds as a float, an", TypeError
            ):
                align(as_of=wrong)
        with raises("as_of = inf s; it must be finite and within 2^62 ns"):
            align(as_of=math.inf)
        for far in (2**62, -(2**62), 2**63 - 1):
            with raises(f"as_of = {far} ns; it must be within 2^62 ns"):
                align(as_of=far)
        with raises("as_of[1] = nan s is not a time: it must be a number below 2^62 ns"):
            align(targets=rows, as_of=array(np.array([0, np.nan])))
        with raises('stream "imu": as_of[0] = 20000 s is too large for float32'):
            align([imu.replace(as_of=array(np.array([2e4, 0], np.float32)))], rows)
    with raises("Stream \"imu\": as_of is 'now'; expected", TypeError):
        imu.replace(as_of="now")
    with raises(f'Stream "imu": {BOTH}'):
        imu.replace(as_of=1.0, causal=True)
    with raises('Stream "imu": as_of has shape [2, 1]; expected one time, or one for each row: [B]'):
        imu.replace(as_of=array(np.zeros((2, 1))))
    with raises('Stream "imu": as_of is int32; it must be', TypeError):
        imu.replace(as_of=array(np.zeros(2, np.int32)))
    with raises("as_of is a NumPy array, but values is a torch tensor", TypeError):
        rc.align([rc.Stream(*map(_torch, (np.zeros(2), np.zeros(2))))], _torch(np.zeros((1, 2))), as_of=np.zeros(1))


def _torch(array):
    return pytest.importorskip("torch").from_numpy(array)


def test_cuda_tells_of_a_decision_that_is_no_time(cuda):
    import torch

    times = torch.arange(5, device="cuda") * 1000
    stream = rc.Stream(times.to(torch.float32), times, name="imu")
    as_of = torch.tensor([0.0, math.nan], dtype=torch.float64, device="cuda")
    rc.align([stream], times.expand(2, -1), as_of=as_of)
    with raises("align: as_of[1] = nan s is not a time: it must be a number below 2^62 ns"):
        rc.synchronize()
    one = rc.align([stream], times, as_of=torch.tensor(2000, device="cuda"))[0]
    assert one.index.tolist() == [0, 1, 2, 2, 2]


@pytest.mark.parametrize("form", ["as_of", "causal", "skip"])
def test_a_mean_is_summed_in_chunks_of_samples_that_count(backend, form):
    """256 of them a chunk, whatever lies between: a window is what the robot computed from what it had, bit for bit."""
    name, place = backend
    values, times = cases.Random(7).values((2000, 3), "float64"), np.arange(2000) * MS
    arrivals, now = np.random.default_rng(7).permutation(times) * 2, np.array([2500 * MS])
    counts = arrivals <= now
    options = {"arrivals": place(arrivals)}
    call = {"as_of": {"as_of": 2500 * MS}, "causal": {"causal": True}, "skip": {"on_nan": "skip"}}[form]
    if form == "skip":
        options = {}
        values[~counts, 1] = np.nan
    stream = rc.Stream(place(values), place(times), method="mean", **options)
    made = rc.align([stream], place(now), backend=name, **call)[0]
    total = np.zeros(3)
    for chunk in np.split(values[counts], range(256, counts.sum(), 256)):
        total += np.add.accumulate(chunk)[-1]  # one by one, where np.sum adds in pairs
    calling.assert_same_bytes(calling.to_numpy(made.values)[0], total / counts.sum(), form)


# ---- cost


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("method", ["linear", "cubic", "last"])
def test_many_samples_under_way_are_skipped_in_blocks(backend, method):
    """To walk over them for every target would be 10^10 steps."""
    samples = 200_000
    times = np.arange(samples) * MS
    arrivals = np.full(samples, 10**15)
    arrivals[[0, samples - 1]] = 0
    values = np.arange(samples, dtype=np.float64)
    targets = np.sort(cases.Random(3).integers(1, (samples - 1) * MS, 50_000))
    begin = time.perf_counter()
    made = aligned(backend, values, times, targets, arrivals=arrivals, method=method, call={"as_of": 10**14})
    assert time.perf_counter() - begin < 20
    assert made.index.max() == 0
    if method == "linear":
        np.testing.assert_allclose(made.values, targets / MS, rtol=1e-12)


# ---- hypothesis

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

backends = st.sampled_from(["reference", "cpu"])


@st.composite
def problems(draw, form=None):
    random = cases.Random(draw(st.integers(0, 2**32 - 1)))
    method = draw(st.sampled_from(METHODS))
    stream = cases.make_stream(
        random,
        dtype=draw(st.sampled_from(["float32", "float64"])),
        method=method,
        trailing=(4,) if method == "slerp" else (2,),
        layout=draw(st.sampled_from(cases.LAYOUTS)),
        samples=draw(st.integers(0, 20)),
        equal=draw(st.booleans()),
        special=draw(st.booleans()),
        arrivals=draw(st.sampled_from([None, "ordered", "late"])),
        latency=draw(st.sampled_from([0, 7_000_000, -7_000_000])),
        max_gap=draw(st.sampled_from([None, 12_000_000])),
        edge=draw(st.sampled_from(["clamp", "nan", "zero"])),
        on_nan=draw(st.sampled_from(["propagate", "skip"])),
    )
    if draw(st.booleans()):
        cases.out_of_order(random, stream)
    kind = draw(st.sampled_from(["list", "batched", "timelines", "around"]))
    targets = cases.make_targets(
        random, stream, kind, count=draw(st.integers(1, 12)), causal=True, bins=method in cases.BINS
    )
    return cases.with_as_of(random, cases.Problem([stream], targets), form or draw(st.sampled_from(cases.AS_OF_FORMS)))


@settings(max_examples=300)
@given(problems(), backends)
def test_the_oracle_agrees_on_anything(problem, backend):
    (stream,) = problem.streams
    (expected,) = oracle.align(problem.streams, problem.targets, **problem.options)
    values, valid, age, index = calling.align(problem, backend)[0]
    calling.assert_same_bytes(valid, expected.valid, "valid")
    calling.assert_same_bytes(age, expected.age, "age")
    calling.assert_same_bytes(index, expected.index, "index")
    assert_copies(values, stream, expected.source, "copies")
    assert_close(values, expected.values, expected.slack, "values")


@given(problems(), st.integers(0, 2**32 - 1), backends)
def test_what_arrives_after_the_decision_never_matters(problem, seed, backend):
    """Its values, and when it arrives."""
    (stream,), random = problem.streams, cases.Random(seed)
    if stream.arrivals is None:
        stream.arrivals = stream.times
    before = calling.align(problem, backend)
    last = oracle.row_count(problem.streams, problem.targets) or 1
    decided = (
        [oracle.decision(stream.as_of, problem.targets, b) for b in range(last)]
        if stream.as_of is not None
        else [oracle.decision(problem.options["as_of"], problem.targets, b) for b in range(last)]
    )
    if None in decided:
        return
    arrivals = cases.back(stream.arrivals)
    future = arrivals > max(decided)
    other = cases.garbage(random, stream.values.shape, stream.values.dtype)
    mask = future.reshape(*future.shape, *[1] * (stream.values.ndim - future.ndim))
    bits = cases.bits_of(stream.values.dtype)
    values = np.where(mask, other.view(bits), np.ascontiguousarray(stream.values).view(bits)).view(stream.values.dtype)
    stream.values = values
    with np.errstate(over="ignore"):  # padding holds garbage
        stream.arrivals = np.where(future, arrivals + random.integers(0, 10**9, arrivals.shape), arrivals)
    calling.assert_same(calling.align(problem, backend), before, "the future")


@given(problems(form="rows"), backends)
def test_a_time_for_each_row_is_a_call_for_each_row(problem, backend):
    rows = oracle.row_count(problem.streams, problem.targets)
    if rows is None or problem.streams[0].as_of is not None:
        return
    whole = calling.align(problem, backend)[0]
    for b in range(rows):
        one = cases.Problem(
            problem.streams, problem.targets, {"as_of": int(oracle.decision(problem.options["as_of"], None, b))}
        )
        for mine, theirs in zip(calling.align(one, backend)[0], whole, strict=True):
            calling.assert_same_bytes(mine[b], theirs[b], f"row {b}")
