"""The whole case table: against the oracle within roundings, backends against each other in bytes."""

from __future__ import annotations

import math

import calling
import cases
import numpy as np
import oracle
import pytest

import robocache as rc

every_case = pytest.mark.parametrize("name", list(cases.BY_NAME))


def last_place(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Half of what one step of the dtype is worth at a value, and no less than its smallest denormal."""
    digits, lowest, tiniest = {
        "float16": (11, -14, -24),
        "bfloat16": (8, -126, -133),
        "float32": (24, -126, -149),
        "float64": (53, -1022, -1074),
    }[dtype.name]
    finite = np.where(np.isfinite(values), values, 0.0)
    exponent = np.maximum(np.frexp(finite)[1], lowest + 1)
    return np.maximum(np.ldexp(0.5, exponent - digits), math.ldexp(1.0, tiniest))


def assert_close(actual: np.ndarray, expected: np.ndarray, slack, what: str) -> None:
    """Within `slack` of the expected float64, and then one rounding to the dtype."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = expected.astype(actual.dtype).astype(np.float64)
        wide = actual.astype(np.float64)
        bound = slack + last_place(expected, actual.dtype)
        close = np.abs(wide - expected) <= bound
        # A slack of an infinite sample is no number: there only NaN and the infinities are compared.
        close |= (wide == rounded) | (np.isnan(wide) & np.isnan(expected))
    if not np.all(close):
        first = tuple(int(k) for k in np.argwhere(~close)[0])
        raise AssertionError(
            f"{what}: {np.sum(~close)} of {close.size} differ; at {first}: {wide[first]!r}, expected "
            f"{expected[first]!r} within {np.broadcast_to(bound, close.shape)[first]!r}"
        )


def assert_copies(actual: np.ndarray, stream: cases.Stream, source: np.ndarray, what: str) -> None:
    """Where the value is a copy, it has the bytes of the sample."""
    trailing = stream.values.shape[stream.times.ndim :]
    channels = math.prod(trailing)
    batched = actual.ndim - len(trailing) == 2
    bits = cases.bits_of(actual.dtype)
    count = source.shape[1 if batched else 0]
    if actual.size == 0:
        return
    flat = np.ascontiguousarray(actual).view(bits).reshape(-1, count, channels)
    for b, row in enumerate(source.reshape(-1, count, channels)):
        _, _, samples = oracle.stream_row(stream, b)
        copied = row >= 0
        if not copied.any():
            continue
        expected = np.take_along_axis(samples.view(bits), np.maximum(row, 0), axis=0)
        wrong = copied & (flat[b] != expected)
        assert not wrong.any(), f"{what}: row {b}, (target, channel) {np.argwhere(wrong)[:3].tolist()} is no copy"


@every_case
def test_reference_agrees_with_the_oracle(name):
    problem = cases.problem_of(name)
    expected = oracle.align(problem.streams, problem.targets, **problem.options)
    for k, (stream, mine, theirs) in enumerate(zip(problem.streams, calling.reference(name), expected, strict=True)):
        values, valid, age, index = mine
        what = f"{name}: stream {k}"
        assert values.dtype == stream.values.dtype
        assert values.shape == theirs.values.shape
        calling.assert_same_bytes(valid, theirs.valid, f"{what}: valid")
        calling.assert_same_bytes(age, theirs.age, f"{what}: age")
        calling.assert_same_bytes(index, theirs.index, f"{what}: index")
        assert_copies(values, stream, theirs.source, what)
        if oracle.is_float(values.dtype):
            assert_close(values, theirs.values, theirs.slack, what)
            computed = np.isnan(theirs.values) & (theirs.source < 0)
            nan = np.array(np.nan, np.float64).astype(values.dtype)
            bits = np.ascontiguousarray(values).view(cases.bits_of(values.dtype))
            assert np.all(bits[computed] == nan.view(bits.dtype)), f"{what}: a computed NaN is not the canonical one"
        else:
            assert np.all(values[theirs.source < 0] == 0)


@every_case
def test_cpu_equals_reference(name, simd):
    calling.assert_same(calling.align(cases.problem_of(name), "cpu"), calling.reference(name), f"{name}: cpu {simd}")


@every_case
def test_cuda_equals_reference(name, cuda):
    calling.assert_same(calling.align(cases.problem_of(name), "cuda", cuda), calling.reference(name), f"{name}: cuda")


@every_case
def test_fuse_and_resample_equal_align(name, backend):
    kind, convert = backend
    problem = cases.problem_of(name)
    expected = calling.reference(name)
    marks = [np.stack([outputs[part] for outputs in expected], axis=-1) for part in (1, 2)]
    flat = [
        values.reshape(*valid.shape, -1 if values.size else _channels(s))
        for s, (values, valid, _, _) in zip(problem.streams, expected, strict=True)
    ]
    if len({stream.values.dtype for stream in problem.streams}) == 1:
        values, valid, age = calling.fuse(problem, kind, convert)
        calling.assert_same_bytes(values, np.concatenate(flat, axis=-1), f"{name}: fused values")
        calling.assert_same_bytes(valid, marks[0], f"{name}: fused valid")
        calling.assert_same_bytes(age, marks[1], f"{name}: fused age")
    for stream, outputs in zip(problem.streams, expected, strict=True):
        if stream.arrivals is not None or stream.channels is not None or len(problem.streams) > 1:
            continue  # resample has no such arguments; a broadcast stream alone has another shape
        calling.assert_same_bytes(_resample(problem, stream, kind, convert), outputs[0], f"{name}: resampled")


def _channels(stream: cases.Stream) -> int:
    return math.prod(stream.values.shape[stream.times.ndim :])


def _resample(problem: cases.Problem, stream: cases.Stream, backend: str, convert) -> np.ndarray:
    options = calling.options_of(problem, convert)
    for key in ("edge", "causal", "on_nan"):
        if getattr(stream, key) is not None:
            options[key] = getattr(stream, key)
    if stream.as_of is not None:
        options["as_of"] = calling.to_as_of(stream.as_of, convert)
    return calling.to_numpy(
        rc.resample(
            convert(stream.values),
            convert(stream.times),
            calling.to_targets(problem.targets, convert),
            method=stream.method,
            max_gap=stream.max_gap,
            latency=stream.latency,
            lengths=convert(stream.lengths),
            offsets=convert(stream.offsets),
            rows=convert(stream.rows),
            backend=backend,
            **options,
        )
    )


CONVERSIONS = [
    (case.name, dtype)
    for case in cases.CASES
    if case.name.startswith(("fuse/", "many/"))
    for dtype in cases.problem_of(case.name).fuse_dtypes
]


@pytest.mark.parametrize(("name", "dtype"), CONVERSIONS)
def test_fuse_converts(name, dtype, backend):
    """Computed in each stream's own precision, rounded once to the dtype that was asked for."""
    kind, convert = backend
    if dtype == "bfloat16" and not cases.BFLOAT16:
        pytest.skip("ml_dtypes is not installed")
    problem = cases.problem_of(name)
    wanted = calling.dtype_argument(dtype, kind)
    values, valid, age = calling.fuse(problem, kind, convert, dtype=wanted)
    again = calling.fuse(problem, "reference", dtype=calling.dtype_argument(dtype, "reference"))
    calling.assert_same_bytes(values, again[0], f"{name} -> {dtype}: values")
    expected = oracle.align(problem.streams, problem.targets, **problem.options)
    np.testing.assert_array_equal(valid, np.stack([e.valid for e in expected], -1))
    np.testing.assert_array_equal(age, np.stack([e.age for e in expected], -1))
    assert values.dtype == cases.dtype_of(dtype)
    begin = 0
    for stream, theirs in zip(problem.streams, expected, strict=True):
        width = _channels(stream)
        part = values[..., begin : begin + width]
        begin += width
        shape = part.shape
        if dtype in cases.FLOATS:
            assert_close(part, theirs.values.reshape(shape), theirs.slack.reshape(shape), f"{name} -> {dtype}")
        else:
            np.testing.assert_array_equal(part.astype(np.float64), theirs.values.reshape(shape))
    assert begin == values.shape[-1]


@pytest.mark.parametrize("name", [name for name in cases.BY_NAME if name.startswith(("mixed/", "many/", "special/"))])
def test_a_second_run_gives_the_same_bytes(name, backend):
    kind, convert = backend
    problem = cases.problem_of(name)
    first = calling.align(problem, kind, convert)
    calling.assert_same(calling.align(problem, kind, convert), first, name)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_number_of_threads_changes_nothing(threads):
    before = rc.num_threads()
    problem = cases.Problem(
        [cases.make_stream(cases.Random(1), rows=64, samples=200, trailing=(33,), dtype="float16", special=True)],
        cases.Timeline(10**9, 200.0, 300),
    )
    expected = calling.align(problem, "reference")
    try:
        rc.set_num_threads(threads)
        calling.assert_same(calling.align(problem, "cpu"), expected, f"{threads} threads")
    finally:
        rc.set_num_threads(before)


@pytest.mark.parametrize("name", ["layout/padded/list/linear", "method/max/int16", "channels/33/float16"])
@pytest.mark.parametrize("how", ["dense", "step", "negative", "fortran", "window"])
def test_out_may_have_any_strides(name, how, backend):
    kind, convert = backend
    if kind == "cuda" and how == "negative":
        pytest.skip("torch has no negative strides")
    problem, (expected, *_) = cases.problem_of(name), calling.reference(name)[0]
    stream = problem.streams[0]
    for call in ("resample", "fuse"):
        garbage = cases.garbage(cases.Random(2), expected.shape, expected.dtype)
        out = convert(cases.restride(garbage, how))
        arguments = calling.to_stream(stream, convert)
        targets = calling.to_targets(problem.targets, convert)
        if call == "fuse":
            answer = rc.fuse([arguments], targets, out=out, backend=kind).values
        else:
            answer = rc.resample(
                arguments.values, arguments.times, targets, method=stream.method, out=out, backend=kind
            )
        assert answer is out
        calling.assert_same_bytes(calling.to_numpy(out), expected, f"{call}: {name}: out {how}")


@pytest.mark.parametrize(
    "name", [name for name in cases.BY_NAME if name.startswith(("mixed/", "strides/", "method/", "rows/"))]
)
def test_torch_tensors_equal_numpy_arrays(name):
    pytest.importorskip("torch")
    calling.assert_same(
        calling.align(cases.problem_of(name), "cpu", calling.to_torch), calling.reference(name), f"{name}: torch"
    )


def each_way(values, times, targets, **options):
    """The call on every backend that runs here, the portable one too; all as NumPy."""
    stream = rc.Stream(values, times, **options)
    for backend in ("reference", "cpu"):
        yield rc.align([stream], targets, backend=backend)[0]
    torch = pytest.importorskip("torch")
    tensors = [torch.from_numpy(array) for array in (values, times, targets)]
    answer = rc.align([rc.Stream(*tensors[:2], **options)], tensors[2], backend="torch")[0]
    yield rc.Aligned(*(part.numpy() for part in answer))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_cubic_leaves_out_a_neighbour_that_is_not_there(dtype):
    """At an end there is no step to the neighbour: an infinite sample there makes an infinity, not inf - inf."""
    times, targets = np.arange(3) * 4, np.array([1, 7])
    for made in each_way(np.array([0, 1, np.inf], dtype), times, targets[1:], method="cubic"):
        assert made.values.tolist() == [np.inf]
    for made in each_way(np.array([-np.inf, 1, 0], dtype), times, targets[:1], method="cubic"):
        assert np.isnan(made.values).all()  # -inf + inf: the sample itself and the step from it
    for made in each_way(np.array([np.inf, 1], dtype), times[:2], targets[:1], method="cubic"):
        assert np.isnan(made.values).all()


def test_index_is_that_of_the_lowest_channels():
    """Whatever the order that the ranges are given in; a range without channels says nothing."""
    values, times = np.zeros((2, 2)), np.array([0, 10])
    for method in ([("nearest", 0, 1), ("hold", 1, 2)], [("hold", 1, 2), ("hold", 0, 0), ("nearest", 0, 1)]):
        for made in each_way(values, times, np.array([7]), method=method):
            assert made.index.tolist() == [1]
    for made in each_way(values, times, np.array([7]), method=[("nearest", 1, 2), ("hold", 0, 1)]):
        assert made.index.tolist() == [0]


def test_ranges_of_one_method_are_judged_apart():
    values, times = np.array([[0, np.nan], [10, 10]]), np.array([0, 10])
    for made in each_way(values, times, np.array([5]), method=[("linear", 0, 1), ("linear", 1, 2)], on_nan="skip"):
        assert made.values[0, 0] == 5
        assert not made.valid[0]
