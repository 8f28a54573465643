"""What must hold whatever the numbers are, over problems that hypothesis picks."""

from __future__ import annotations

import calling
import cases
import numpy as np
import pytest

pytest.importorskip("hypothesis")
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

seeds = st.integers(0, 2**32 - 1)
float_dtypes = st.sampled_from(cases.FLOATS if cases.BFLOAT16 else ["float16", "float32", "float64"])
interpolating = st.sampled_from(cases.INTERPOLATING)
methods = st.sampled_from([*cases.INTERPOLATING, *cases.BINS])
layouts = st.sampled_from(cases.LAYOUTS)
backends = st.sampled_from(["reference", "cpu"])
wide = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def problems(draw, method=methods, layout=layouts, **options):
    """One stream and targets that are legal for its method."""
    random = cases.Random(draw(seeds))
    chosen = draw(method)
    stream = cases.make_stream(
        random,
        dtype=draw(float_dtypes),
        method=chosen,
        trailing=(4,) if chosen == "slerp" else draw(st.sampled_from([(), (1,), (3,), (9,), (2, 3)])),
        layout=draw(layout),
        rows=draw(st.integers(1, 4)),
        samples=draw(st.integers(0, 20)),
        equal=draw(st.booleans()),
        special=draw(st.booleans()),
        latency=draw(st.sampled_from([0, 7_000_000, -7_000_000])),
        max_gap=draw(st.sampled_from([None, 12_000_000])),
        edge=draw(st.sampled_from(["clamp", "nan", "zero"])),
        on_nan=draw(st.sampled_from(["propagate", "skip"])),
        **{"causal": draw(st.booleans()), "arrivals": draw(st.sampled_from([None, "late"])), **options},
    )
    bins = chosen in cases.BINS
    count = draw(st.integers(0, 12))
    targets = cases.target_list(random, (count,), stream, bins, "int64", bool(stream.causal))
    return cases.Problem([stream], targets)


def changed(problem: cases.Problem, targets=None, **changes) -> cases.Problem:
    stream = cases.Stream(**{**vars(problem.streams[0]), **changes})
    return cases.Problem([stream], problem.targets if targets is None else targets, problem.options)


@given(problems(), st.integers(-(10**17), 10**17), backends)
def test_a_shift_of_time_changes_nothing(problem, shift, backend):
    stream = problem.streams[0]
    with np.errstate(over="ignore"):  # padding holds garbage
        moved = changed(
            problem,
            targets=problem.targets + shift,
            times=stream.times + shift,
            arrivals=None if stream.arrivals is None else stream.arrivals + shift,
        )
    calling.assert_same(calling.align(moved, backend), calling.align(problem, backend), "shifted")


@given(seeds, float_dtypes, st.sampled_from(["linear", "hold", "nearest", "angle", "angle_degrees", "cubic"]), backends)
def test_an_exact_hit_returns_the_sample(seed, dtype, method, backend):
    random = cases.Random(seed)
    stream = cases.make_stream(random, dtype=dtype, method=method, layout="flat", special=True, max_gap=1e-6)
    values, valid, age, index = calling.align(cases.Problem([stream], stream.times), backend)[0]
    calling.assert_same_bytes(values, stream.values, "values")
    assert valid.all()
    assert (age == 0).all()
    np.testing.assert_array_equal(index, np.arange(len(stream.times)))


@given(problems(method=interpolating), st.randoms(use_true_random=False), backends)
def test_permuted_targets_permute_the_outputs(problem, shuffler, backend):
    order = list(range(len(problem.targets)))
    shuffler.shuffle(order)
    whole = calling.align(problem, backend)
    axis = whole[0][1].ndim - 1
    expected = [tuple(np.take(part, order, axis=axis) for part in outputs) for outputs in whole]
    permuted = changed(problem, targets=problem.targets[order])
    calling.assert_same(calling.align(permuted, backend), expected, "permuted")


@given(problems(method=interpolating), st.integers(0, 12), backends)
def test_targets_may_be_asked_for_in_parts(problem, cut, backend):
    whole = calling.align(problem, backend)
    axis = whole[0][1].ndim - 1
    parts = [
        calling.align(changed(problem, targets=part), backend)[0]
        for part in (problem.targets[:cut], problem.targets[cut:])
    ]
    joined = [tuple(np.concatenate(pair, axis=axis) for pair in zip(*parts, strict=True))]
    calling.assert_same(joined, whole, "in parts")


@given(seeds, methods, st.integers(0, 20), st.integers(1, 5), backends)
def test_a_timeline_may_be_asked_for_in_parts(seed, method, cut, step, backend):
    """At a rate that divides a second, the later part starts where the earlier would have gone on."""
    random = cases.Random(seed)
    stream = cases.make_stream(random, method=method, trailing=(4,), special=True, rows=2)
    period = step * 5_000_000
    start = 10**9
    rate = 1e9 / period
    assume(rate * period == 1e9)

    def ask(first: int, count: int):
        line = cases.Timeline(start + first * period, rate, count)
        return calling.align(cases.Problem([stream], line), backend)[0]

    parts = [ask(0, cut), ask(cut, 20 - cut)]
    joined = [tuple(np.concatenate(pair, axis=1) for pair in zip(*parts, strict=True))]
    calling.assert_same(joined, [ask(0, 20)], "in parts")


@given(seeds, methods, backends)
def test_a_timeline_is_its_list(seed, method, backend):
    random = cases.Random(seed)
    stream = cases.make_stream(random, method=method, trailing=(4,), special=True, rows=2)
    period = 10_000_000
    line = cases.Timeline(10**9 + random.integer(0, period), 100.0, 15)
    taus = line.start + period * np.arange(15)
    whole = calling.align(cases.Problem([stream], line), backend)
    calling.assert_same(calling.align(cases.Problem([stream], taus), backend), whole, "listed")


@given(problems(layout=st.sampled_from(["lengths", "lengths_rows", "packed", "packed_rows"])), seeds, backends)
def test_what_lies_beyond_a_row_never_matters(problem, seed, backend):
    stream, random = problem.streams[0], cases.Random(seed)
    real = np.zeros(stream.times.shape, bool)
    if stream.offsets is not None:
        real[int(stream.offsets[0]) : int(stream.offsets[-1])] = True
    else:
        real[...] = np.arange(stream.times.shape[1]) < stream.lengths[:, None]

    def poisoned(array):
        if array is None:
            return None
        other = cases.garbage(random, array.shape, array.dtype)
        mask = real.reshape(real.shape + (1,) * (array.ndim - real.ndim))
        bits = cases.bits_of(array.dtype)
        return np.where(mask, array.view(bits), other.view(bits)).view(array.dtype)

    again = changed(
        problem,
        values=poisoned(stream.values),
        times=poisoned(stream.times),
        arrivals=poisoned(stream.arrivals),
    )
    calling.assert_same(calling.align(again, backend), calling.align(problem, backend), "poisoned")


@given(problems(layout=st.sampled_from(["lengths", "lengths_rows"])), backends)
def test_packed_equals_padded(problem, backend):
    stream = problem.streams[0]
    lengths = [int(n) for n in stream.lengths]

    def packed(array):
        return None if array is None else np.concatenate([array[row, :n] for row, n in enumerate(lengths)])

    again = changed(
        problem,
        values=packed(stream.values),
        times=packed(stream.times),
        arrivals=packed(stream.arrivals),
        lengths=None,
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
    )
    calling.assert_same(calling.align(again, backend), calling.align(problem, backend), "packed")


@given(problems(layout=st.sampled_from(["rows", "lengths_rows"])), backends)
def test_rows_are_a_gather(problem, backend):
    stream = problem.streams[0]

    def gathered(array):
        return None if array is None else array[stream.rows]

    again = changed(
        problem,
        values=gathered(stream.values),
        times=gathered(stream.times),
        arrivals=gathered(stream.arrivals),
        lengths=gathered(stream.lengths),
        rows=None,
    )
    calling.assert_same(calling.align(problem, backend), calling.align(again, backend), "rows")


@given(seeds, st.integers(1, 4), backends)
def test_fuse_is_align_side_by_side(seed, number, backend):
    random = cases.Random(seed)
    streams = [
        cases.make_stream(
            random,
            dtype="float32",
            trailing=(random.integer(0, 6),),
            layout=random.choice(cases.LAYOUTS),
            special=True,
            method=random.choice(["linear", "nearest", "cubic"]),
            causal=random.choice([None, True]),
        )
        for _ in range(number)
    ]
    problem = cases.Problem(streams, cases.target_list(random, (3, 9), streams[0], False, "int64", False))
    values, valid, age = calling.fuse(problem, backend)
    aligned = calling.align(problem, backend)
    calling.assert_same_bytes(values, np.concatenate([outputs[0] for outputs in aligned], axis=-1), "values")
    calling.assert_same_bytes(valid, np.stack([outputs[1] for outputs in aligned], axis=-1), "valid")
    calling.assert_same_bytes(age, np.stack([outputs[2] for outputs in aligned], axis=-1), "age")


@given(problems(layout=st.just("flat"), causal=True), seeds, backends)
def test_causal_never_depends_on_what_arrives_later(problem, seed, backend):
    stream, random = problem.streams[0], cases.Random(seed)
    arrivals = stream.times if stream.arrivals is None else stream.arrivals
    assume(len(problem.targets) > 0)
    assume(len(stream.times) > 0)
    # A stream without arrivals takes the stamps; given ones can be changed together with the values.
    before = calling.align(changed(problem, arrivals=arrivals), backend)[0]
    if stream.method not in cases.BINS:
        t = random.integer(0, len(problem.targets))
        asked = np.full(len(problem.targets), problem.targets[t])
    else:
        t, asked = len(problem.targets) - 1, problem.targets
    future = arrivals > asked[t]
    values = np.where(
        future.reshape(-1, *[1] * (stream.values.ndim - 1)),
        cases.garbage(random, stream.values.shape, stream.values.dtype),
        stream.values,
    ).astype(stream.values.dtype)
    later = np.where(future, arrivals + random.integers(0, 10**9, arrivals.shape), arrivals)
    kept = ~future
    values[kept] = stream.values[kept]
    after = calling.align(changed(problem, values=values, arrivals=later), backend)[0]
    for mine, theirs in zip(after, before, strict=True):
        calling.assert_same_bytes(mine[t], theirs[t], "the present")


@given(seeds, float_dtypes, backends)
def test_cubic_keeps_a_constant_to_the_bit(seed, dtype, backend):
    random = cases.Random(seed)
    stream = cases.make_stream(random, dtype=dtype, method="cubic", layout="flat", equal=True)
    stream.values = np.broadcast_to(stream.values[:1], stream.values.shape)
    targets = random.integers(int(stream.times[0]), int(stream.times[-1]) + 1, 20)
    values = calling.align(cases.Problem([stream], targets), backend)[0][0]
    calling.assert_same_bytes(values, np.broadcast_to(stream.values[:1], values.shape), "constant")


@given(seeds, backends)
def test_slerp_takes_q_and_minus_q_for_one_rotation(seed, backend):
    random = cases.Random(seed)
    stream = cases.make_stream(random, dtype="float64", method="slerp", trailing=(4,), layout="flat", samples=2)
    targets = random.integers(int(stream.times[0]), int(stream.times[1]), 9)
    values = calling.align(cases.Problem([stream], targets), backend)[0][0]
    stream.values = stream.values * np.array([[1.0], [-1.0]])
    again = calling.align(cases.Problem([stream], targets), backend)[0][0]
    calling.assert_same_bytes(again, values, "the other side")
    np.testing.assert_allclose(np.linalg.norm(values, axis=-1), 1, atol=1e-15, rtol=0)


@wide
@given(seeds)
def test_cpu_equals_reference_on_anything(simd, seed):
    problem = cases.random_problem(cases.Random(seed))
    calling.assert_same(calling.align(problem, "cpu"), calling.align(problem, "reference"), f"seed {seed}: cpu {simd}")


@wide
@given(seeds)
def test_cuda_equals_reference_on_anything(cuda, seed):
    problem = cases.random_problem(cases.Random(seed))
    calling.assert_same(calling.align(problem, "cuda", cuda), calling.align(problem, "reference"), f"seed {seed}: cuda")
