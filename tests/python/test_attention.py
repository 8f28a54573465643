"""attention on every backend that this machine has, against float64; strides, poison, arrays of all kinds."""

from __future__ import annotations

import os
import subprocess
import sys

import attention_calling as attending
import attention_cases as cases
import attention_oracle as oracle
import calling
import numpy as np
import pytest

import robocache as rc

torch = pytest.importorskip("torch", reason="the error bound is that of torch's math path")


@pytest.mark.parametrize("name", list(cases.BY_NAME))
def test_against_float64(name, backend):
    where, convert = backend
    attending.assert_close(attending.attend(cases.problem_of(name), where, convert), name, f"{name} on {where}")


@pytest.mark.parametrize("name", ["pi0 suffix float32", "head dim 256 float32", "lengths", "RDT image cross"])
def test_sums_of_the_cpu_are_as_exact_as_those_of_torch(name):
    """Without the room that the bound has for a few roundings: chains of sums are short."""
    pytest.importorskip("torch")
    expected = attending.truth(name).out
    error = attending.spread(attending.attend(cases.problem_of(name), "cpu").out, expected)
    assert error <= 1.5 * attending.spread(attending.math_path(name), expected)


@pytest.mark.parametrize("name", list(cases.BY_NAME))
def test_simd_targets(name, simd):
    attending.assert_close(attending.attend(cases.problem_of(name), "cpu"), name, f"{name} with {simd}")


@pytest.mark.parametrize("name", list(cases.BY_NAME))
def test_the_same_bits_on_every_run(name, backend):
    """On any number of threads, with and without lse, into new memory and into out."""
    where, convert = backend
    problem = cases.problem_of(name)
    first = attending.attend(problem, where, convert)
    before = rc.num_threads()
    try:
        for threads in (1, 2, 5):
            rc.set_num_threads(threads)
            again = attending.attend(problem, where, convert)
            calling.assert_same_bytes(again.out, first.out, f"{name}: {threads} threads")
            calling.assert_same_bytes(again.lse, first.lse, f"{name}: lse, {threads} threads")
    finally:
        rc.set_num_threads(before)
    arrays, options = attending.arguments(problem, convert)
    calling.assert_same_bytes(calling.to_numpy(rc.attention(*arrays, backend=where, **options)), first.out, name)


# ---- what is read and written


def poison(array: np.ndarray, places: np.ndarray) -> np.ndarray:
    """NaN and infinities, one after the other, where `places` says."""
    poisoned = np.array(array)
    bad = np.resize(np.array([np.nan, np.inf, -np.inf], np.float32).astype(array.dtype), poisoned.shape)
    return np.where(places[..., None], bad, poisoned)


def poisoned(name: str) -> cases.Problem:
    """What no query may see: of packed sequences nothing, of a cache also its unused rows."""
    problem = cases.problem_of(name)
    heads_last = problem.options.get("layout") == "bqhd"
    keys, values = [], []
    if problem.q_offsets is not None:
        hidden = np.ones(problem.keys[0].shape[:2], bool)
        for b, s in enumerate(oracle.sequences(problem)):
            hidden[problem.k_offsets[b] : problem.k_offsets[b + 1]] = ~oracle.reached(s).T
        keys, values = ([poison(part[0], hidden)] for part in (problem.keys, problem.values))
    else:
        room = sum(part.shape[1 if heads_last else 2] for part in problem.keys)
        groups = problem.keys[0].shape[2 if heads_last else 1]
        hidden = np.ones((len(problem.q), groups, room), bool)
        for b, s in enumerate(oracle.sequences(problem)):
            hidden[b, :, : s.seen.shape[2]] = ~oracle.reached(s)
        first = 0
        for k, v in zip(problem.keys, problem.values, strict=True):
            count = k.shape[1 if heads_last else 2]
            mine = hidden[:, :, first : first + count]
            mine = mine.transpose(0, 2, 1) if heads_last else mine
            keys.append(poison(k, mine))
            values.append(poison(v, mine))
            first += count
    return cases.Problem(**{**vars(problem), "keys": keys, "values": values})


@pytest.mark.parametrize("name", list(cases.BY_NAME))
def test_what_no_query_may_see_reaches_nothing(name, backend):
    where, convert = backend
    answer = attending.attend(poisoned(name), where, convert)
    clean = attending.attend(cases.problem_of(name), where, convert)
    calling.assert_same_bytes(answer.out, clean.out, name)
    calling.assert_same_bytes(answer.lse, clean.lse, name)


@pytest.mark.parametrize("name", [name for name in cases.BY_NAME if "left out" in name])
def test_what_lies_in_no_sequence_is_written_too(name, backend):
    where, convert = backend
    problem = cases.problem_of(name)
    outside = np.ones(len(problem.q), bool)
    outside[problem.q_offsets[0] : problem.q_offsets[-1]] = False
    arrays, options = attending.arguments(problem, convert)
    out = convert(np.full_like(problem.q, np.nan))
    _, lse = rc.attention(*arrays, backend=where, out=out, return_lse=True, **options)
    assert (calling.to_numpy(out)[outside] == 0).all()
    np.testing.assert_array_equal(np.isneginf(calling.to_numpy(lse)), np.broadcast_to(outside, lse.shape))


def test_nothing_of_a_call_shows_in_the_next(backend):
    """Scratch, and a GPU's shared memory: full of NaN, then used for less."""
    where, convert = backend
    large = cases.make(np.random.default_rng(0), 2, 8, 2, 200, 900, 128)
    arrays, _ = attending.arguments(large, convert)
    nan = [convert(np.full(array.shape, np.nan, np.float32)) for array in arrays]
    for name in ("packed, places left out float32", "every mask, segments", "queries that see nothing"):
        before = attending.attend(cases.problem_of(name), where, convert)
        rc.attention(*nan, backend=where)
        after = attending.attend(cases.problem_of(name), where, convert)
        calling.assert_same_bytes(after.out, before.out, name)
        calling.assert_same_bytes(after.lse, before.lse, name)


CANARY = 77.0


def strided(array: np.ndarray, order: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The array in memory of that order, inside of a larger one full of canaries; and that one."""
    shape = [array.shape[axis] for axis in order]
    whole = np.full([n + 3 for n in shape[:-1]] + [shape[-1] + 8], CANARY, array.dtype)
    inside = whole[tuple(slice(1, 1 + n) for n in shape)].transpose(np.argsort(order))
    inside[...] = array
    return inside, whole


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (2, 1, 0, 3), (1, 0, 2, 3)])
def test_strides_and_canaries(order, dtype, backend):
    where, convert = backend
    problem = cases.make(np.random.default_rng(3), kv_heads=2, keys=(20, 13), dtype=dtype, causal=True)
    expected = attending.attend(problem, where, convert).out
    arrays = [strided(array, order) for array in (problem.q, *problem.keys, *problem.values, np.zeros_like(problem.q))]
    wholes = [convert(whole) for _, whole in arrays]

    def inside(k: int):
        """As the array lies in its own copy of what is around it."""
        sizes = [arrays[k][0].shape[axis] for axis in order]
        places = tuple(slice(1, 1 + n) for n in sizes)
        back = tuple(int(axis) for axis in np.argsort(order))
        part = wholes[k][places]
        return part.transpose(back) if isinstance(part, np.ndarray) else part.permute(back)

    q, k0, k1, v0, v1, out = (inside(k) for k in range(6))
    made = rc.attention(q, [k0, k1], [v0, v1], causal=True, out=out, backend=where)
    assert made is out
    if where == "cuda" and dtype != "float32":  # a kernel that reads element by element has other tiles
        bound = 2**-10 if dtype == "float16" else 2**-7
        np.testing.assert_allclose(*(x.astype(np.float32) for x in (calling.to_numpy(out), expected)), atol=bound)
    else:
        calling.assert_same_bytes(np.ascontiguousarray(calling.to_numpy(out)), expected, f"{order} {dtype}")
    untouched = calling.to_numpy(wholes[5]).astype(np.float64)
    places = tuple(slice(1, 1 + problem.q.shape[axis]) for axis in order)
    untouched[places] = CANARY
    assert (untouched == CANARY).all()
    for whole, (_, original) in zip(wholes[:5], arrays[:5], strict=True):
        calling.assert_same_bytes(calling.to_numpy(whole), original, "an input")


@pytest.mark.parametrize("layout", ["bhqd", "bqhd"])
def test_append_writes_the_new_rows_and_no_others(layout, backend):
    where, convert = backend
    problem = cases.problem_of("append" if layout == "bhqd" else "append, bqhd")
    arrays, options = attending.arguments(problem, convert)
    lengths = np.array(problem.lengths)
    out = calling.to_numpy(rc.attention(*arrays, backend=where, **options))
    for cache, before, new in zip(arrays[1:], (*problem.keys, *problem.values), problem.append, strict=True):
        expected = np.array(before)
        view, fresh = (part.transpose(0, 2, 1, 3) if layout == "bqhd" else part for part in (expected, new))
        for b, length in enumerate(lengths):
            view[b, :, length : length + fresh.shape[2]] = fresh[b]
        calling.assert_same_bytes(calling.to_numpy(cache), expected, "cache")
    np.testing.assert_array_equal(calling.to_numpy(options["lengths"]), lengths)
    # What was written is what a call without append then sees.
    options.pop("append")
    options["lengths"] = convert(lengths + 3)
    again = calling.to_numpy(rc.attention(*arrays, backend=where, **options))
    np.testing.assert_allclose(again, out, atol=1e-6)


def test_elements_beyond_32_bits(backend):
    """Heads and places that lie more than 2^31 elements apart, in memory that nobody touches."""
    where, _ = backend
    if where == "cuda":
        pytest.skip("the GPU has no lazily allocated memory; test_large_strides_on_cuda")
    apart = 2**31 + 16
    dense = cases.make(np.random.default_rng(1), 1, 2, 2, 3, 3, 32, "float16")

    def far(array: np.ndarray, head: int, row: int) -> np.ndarray:
        huge = np.empty(apart + 4096, np.float16)  # pages exist once written
        view = np.lib.stride_tricks.as_strided(huge, array.shape, (0, head * 2, row * 2, 2))
        view[...] = array
        return view

    expected = attending.attend(dense, where).out
    heads_apart = (far(array, apart, 32) for array in (dense.q, dense.keys[0], dense.values[0]))
    calling.assert_same_bytes(rc.attention(*heads_apart, backend=where), expected, "heads")
    two = tuple(array[:, :, :2] for array in (dense.q, dense.keys[0], dense.values[0]))
    expected = rc.attention(*two, backend=where)
    rows_apart = (far(array, 64, apart) for array in two)
    out = far(np.zeros_like(two[0]), 64, apart)
    calling.assert_same_bytes(np.array(rc.attention(*rows_apart, backend=where, out=out)), expected, "rows")


def test_large_strides_on_cuda(cuda):
    free = torch.cuda.mem_get_info()[0]
    apart = 2**31 + 16
    if free < 5 * apart:
        pytest.skip(f"needs {5 * apart >> 30} GiB of GPU memory")
    huge, other = (torch.empty(apart + 4096, dtype=torch.float16, device="cuda") for _ in range(2))
    q, k, v = (torch.randn(1, 2, 3, 32, device="cuda").half() for _ in range(3))
    far = [huge.as_strided(part.shape, (0, apart, 32, 1), 128 * n) for n, part in enumerate((q, k, v))]
    for place, part in zip(far, (q, k, v), strict=True):
        place.copy_(part)
    out = other.as_strided(q.shape, (0, apart, 32, 1))
    assert torch.equal(rc.attention(*far, out=out), rc.attention(q, k, v))


# ---- arrays of all kinds


def test_debug_and_description():
    program = "import numpy as np, robocache as rc; q = np.ones((1, 1, 2, 32), np.float32); rc.attention(q, q, q)"
    environment = {**os.environ, "ROBOCACHE_DEBUG": "attention"}
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    q = np.ones((1, 1, 2, 32), np.float32)
    assert said.stderr == f"robocache: {rc.describe_attention(q, q, q)}\n"
    assert rc.describe_attention(q, q, q, backend="reference").startswith("reference")
    tensor = torch.from_numpy(q)
    assert rc.describe_attention(tensor, tensor, tensor, backend="torch").startswith("torch: ")
    for leaf in (tensor.clone().requires_grad_(), tensor.expand(1, 2, 2, 32).requires_grad_()):
        assert rc.describe_attention(leaf, tensor, tensor) == rc.describe_attention(leaf.detach(), tensor, tensor)
    cache = {"lengths": [1], "append": (tensor[:, :, :1], tensor[:, :, :1])}
    with_gradient = rc.describe_attention(tensor.clone().requires_grad_(), tensor, tensor, **cache)
    assert with_gradient == rc.describe_attention(tensor, tensor, tensor, **cache)
    segments = [tensor, tensor.clone().requires_grad_()]
    assert rc.describe_attention(tensor, segments, segments).startswith("cpu: ")


def test_debug_of_the_portable_backend(capfd, monkeypatch):
    monkeypatch.setenv("ROBOCACHE_DEBUG", "attention")
    q = torch.ones(1, 1, 2, 32)
    rc.attention(q, q, q, backend="torch")
    assert capfd.readouterr().err == f"robocache: {rc.describe_attention(q, q, q, backend='torch')}\n"


def test_lists_of_lengths_and_offsets(backend):
    where, convert = backend
    q, k = (convert(np.ones((2, 1, n, 32), np.float32)) for n in (3, 8))
    made = calling.to_numpy(rc.attention(q, k, k, lengths=[0, 4], backend=where))
    assert (made[0] == 0).all()
    assert (made[1] == 1).all()
    flat = convert(np.ones((5, 1, 32), np.float32))
    made = calling.to_numpy(rc.attention(flat, flat, flat, q_offsets=[0, 5], k_offsets=(0, 5), backend=where))
    assert (made == 1).all()


def test_jax_arrays():
    jax = pytest.importorskip("jax")
    problem = cases.problem_of("every mask, segments")
    on_gpu = jax.devices()[0].platform == "gpu"  # where there is one, JAX puts arrays there
    answer = attending.attend(problem, None, calling.to_cuda if on_gpu else calling.keep)
    arrays, options = attending.arguments(problem, lambda array: None if array is None else jax.numpy.asarray(array))
    out, lse = rc.attention(*arrays, return_lse=True, **options)
    assert isinstance(out, jax.Array)
    calling.assert_same_bytes(np.asarray(out), answer.out, "out")
    calling.assert_same_bytes(np.asarray(lse), answer.lse, "lse")


def test_cupy_arrays(cuda):
    pytest.importorskip("cupy")
    problem = cases.problem_of("every mask, segments")
    answer = attending.attend(problem, None, cuda)
    made = attending.attend(problem, None, calling.to_cupy)
    calling.assert_same_bytes(made.out, answer.out, "out")


# ---- Mask


def openpi(pad_masks, att_masks):
    """make_att_2d_masks of openpi and of LeRobot's pi0."""
    cumsum = np.cumsum(att_masks, axis=1)
    return (cumsum[:, None, :] <= cumsum[:, :, None]) & pad_masks[:, None, :] & pad_masks[:, :, None]


def spelled_out(mask: rc.Mask) -> np.ndarray:
    query, key, valid = (calling.to_numpy(part) for part in (mask.query_rank, mask.key_rank, mask.key_valid))
    return (key[..., None, :] <= query[..., :, None]) & valid[..., None, :]


@pytest.mark.parametrize("dtype", [bool, np.int32, np.int64])
def test_from_openpi(dtype):
    generator = np.random.default_rng(7)
    pad = generator.random((3, 40)) < 0.8
    starts = (generator.random((3, 40)) < 0.2).astype(dtype)
    for convert in (calling.keep, calling.to_torch):
        mask = rc.Mask.from_openpi(convert(pad), convert(starts))
        np.testing.assert_array_equal(spelled_out(mask), openpi(pad, starts))
        np.testing.assert_array_equal(spelled_out(mask.last_queries(9)), openpi(pad, starts)[:, -9:])
        assert mask.last_queries(0).query_rank.shape == (3, 0)
        assert (calling.to_numpy(mask.query_rank)[~pad] == np.iinfo(np.int32).min).all()
    q, k = (generator.standard_normal((3, 2, n, 32)).astype(np.float32) for n in (9, 40))
    suffix = rc.Mask.from_openpi(pad, starts).last_queries(9)
    ranked = rc.attention(q, [k[:, :, :31], k[:, :, 31:]], [k[:, :, :31], k[:, :, 31:]], mask=suffix)
    dense = rc.attention(q, k, k, mask=openpi(pad, starts)[:, None, -9:])
    np.testing.assert_allclose(ranked, dense, atol=1e-6)
    for shared in (starts[0], starts[:1]):  # of all sequences
        mask = rc.Mask.from_openpi(pad, shared)
        np.testing.assert_array_equal(spelled_out(mask), openpi(pad, np.broadcast_to(starts[0], (3, 40))))
        rc.attention(q, k, k, mask=mask.last_queries(9))


def test_a_dense_mask_is_an_array_or_a_mask(backend):
    where, convert = backend
    problem = cases.problem_of("dense (2, 4, 17, 33)")
    arrays, options = attending.arguments(problem, convert)
    first = calling.to_numpy(rc.attention(*arrays, backend=where, **options))
    again = calling.to_numpy(rc.attention(*arrays, backend=where, mask=options["mask"].dense))
    calling.assert_same_bytes(again, first, "dense")
    last = calling.to_numpy(
        rc.attention(arrays[0][:, :, -5:], *arrays[1:], backend=where, mask=options["mask"].last_queries(5))
    )
    np.testing.assert_allclose(last, first[:, :, -5:], atol=1e-6)


def test_a_mask_tells_what_it_holds():
    mask = rc.Mask(np.zeros((2, 3), np.int32), np.zeros(5, np.int32))
    assert repr(mask) == "Mask(query_rank=int32 [2, 3], key_rank=int32 [5])"


def wide_problem() -> list[np.ndarray]:
    generator = np.random.default_rng(5)
    return [generator.normal(size=(2, 2, n, 32)).astype(np.float32) for n in (3, 5, 5)]


@pytest.mark.parametrize("name", list(cases.WIDE_RANKS))
@pytest.mark.parametrize("kind", ["numpy", "torch", "jax"])
def test_ranks_may_be_any_int64(kind, name, request):
    """torch's default integer; nanosecond stamps do not fit int32, and must compare exactly all the same."""
    convert = {"numpy": np.asarray, "torch": calling.to_torch}.get(kind)
    if kind == "jax":
        jax = pytest.importorskip("jax")
        before = jax.config.jax_enable_x64
        jax.config.update("jax_enable_x64", True)
        request.addfinalizer(lambda: jax.config.update("jax_enable_x64", before))
        convert = jax.numpy.asarray
    query, key, seen = cases.wide_ranks(name)
    arrays = wide_problem()
    expected = rc.attention(*arrays, mask=seen)
    mask = rc.Mask(convert(query), convert(key))
    assert str(mask.query_rank.dtype).removeprefix("torch.") == "int32"
    assert mask.query_rank.shape == query.shape
    assert mask.key_rank.shape == key.shape
    if name == "that fit":
        assert np.asarray(mask.key_rank).tolist() == key.tolist()
    given = [convert(array) for array in arrays]
    made = np.asarray(rc.attention(*given, mask=mask))
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)
    last = np.asarray(rc.attention(given[0][:, :, 1:], *given[1:], mask=mask.last_queries(2)))
    np.testing.assert_allclose(last, expected[:, :, 1:], rtol=1e-5, atol=1e-6)


def test_ranks_of_both_widths():
    query, key = np.array([0, 2, 5], np.int32), np.array([0, 1, 2, 5, 2**40])
    arrays = wide_problem()
    expected = rc.attention(*arrays, mask=key[None] <= query[:, None])
    np.testing.assert_array_equal(rc.attention(*arrays, mask=rc.Mask(query, key)), expected)
