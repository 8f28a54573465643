"""What must hold of attention whatever the numbers are, over problems that hypothesis picks."""

from __future__ import annotations

import dataclasses

import attention_calling as attending
import attention_cases as cases
import attention_oracle as oracle
import calling
import numpy as np
import pytest

import robocache as rc

pytest.importorskip("hypothesis")
from hypothesis import given
from hypothesis import strategies as st

backends = st.sampled_from(["reference", "cpu"])
TOLERANCE = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}  # of values of about 1


@st.composite
def problems(draw, dtypes=tuple(cases.DTYPES), segments=3):
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kv_heads = draw(st.integers(1, 3))
    problem = cases.make(
        generator,
        batch=draw(st.integers(1, 3)),
        heads=kv_heads * draw(st.integers(1, 4)),
        kv_heads=kv_heads,
        queries=draw(st.integers(0, 40)),
        keys=tuple(draw(st.lists(st.integers(0, 70), min_size=1, max_size=segments))),
        head_dim=8 * draw(st.integers(4, 12)),
        dtype=draw(st.sampled_from(dtypes)),
        causal=draw(st.booleans()),
        window=draw(st.one_of(st.none(), st.integers(0, 30), st.tuples(st.integers(0, 30), st.integers(0, 30)))),
        layout=draw(st.sampled_from(["bhqd", "bqhd"])),
    )
    batch, queries, keys = cases.sizes(problem)
    if draw(st.booleans()):
        problem.mask["key_valid"] = generator.random((batch, keys)) < draw(st.floats(0, 1))
    if draw(st.booleans()):
        for name, count in (("query_rank", queries), ("key_rank", keys)):
            problem.mask[name] = generator.integers(-3, 4, (batch, count), dtype=np.int32)
    if draw(st.booleans()):
        problem.mask["dense"] = (
            generator.random((1, problem.q.shape[1 if axis(problem) == 2 else 2], queries, keys)) < 0.7
        )
    return problem


def axis(problem: cases.Problem) -> int:
    """Of places."""
    return 1 if problem.options.get("layout") == "bqhd" else 2


def close(actual: attending.Answer, expected: tuple[np.ndarray, np.ndarray], problem: cases.Problem) -> None:
    tolerance = TOLERANCE[str(problem.q.dtype)]
    np.testing.assert_allclose(actual.out.astype(np.float64), expected[0].astype(np.float64), atol=tolerance)
    np.testing.assert_allclose(actual.lse, expected[1], rtol=1e-5, atol=1e-5)


@given(problems(), backends)
def test_close_to_float64(problem, backend):
    close(attending.attend(problem, backend), oracle.attend(problem), problem)


@given(problems(), backends, st.data())
def test_where_keys_are_cut_into_pieces_does_not_matter(problem, backend, data):
    along = axis(problem)
    keys, values = (np.concatenate(parts, along) for parts in (problem.keys, problem.values))
    count = keys.shape[along]
    cuts = sorted(data.draw(st.lists(st.integers(0, count), min_size=1, max_size=3)))
    pieces = dataclasses.replace(problem, keys=np.split(keys, cuts, along), values=np.split(values, cuts, along))
    whole = dataclasses.replace(problem, keys=[keys], values=[values])
    close(attending.attend(pieces, backend), attending.attend(whole, backend), problem)


@given(problems(), backends)
def test_any_mask_is_a_dense_one(problem, backend):
    seen = np.stack([s.seen for s in oracle.sequences(problem)])
    options = {"layout": problem.options["layout"]}
    dense = dataclasses.replace(problem, mask={"dense": seen}, options=options)
    close(attending.attend(dense, backend), attending.attend(problem, backend), problem)


@given(problems(segments=1), backends)
def test_packed_sequences_are_what_padded_ones_are(problem, backend):
    if "dense" in problem.mask:
        return
    padded = attending.attend(problem, backend)
    batch, queries, keys = cases.sizes(problem)
    turned = [
        part if axis(problem) == 1 else part.transpose(0, 2, 1, 3)
        for part in (problem.q, problem.keys[0], problem.values[0])
    ]
    q, k, v = (np.ascontiguousarray(part).reshape(-1, *part.shape[2:]) for part in turned)
    packed = cases.Problem(
        q,
        [k],
        [v],
        {name: array.reshape(-1) for name, array in problem.mask.items()},
        np.arange(batch + 1) * queries,
        np.arange(batch + 1) * keys,
        options={name: value for name, value in problem.options.items() if name != "layout"},
    )
    made = attending.attend(packed, backend)
    out = padded.out if axis(problem) == 1 else padded.out.transpose(0, 2, 1, 3)
    close(made, (out.reshape(q.shape), padded.lse.transpose(1, 0, 2).reshape(made.lse.shape)), problem)


@given(problems(), backends)
def test_a_batch_is_its_members(problem, backend):
    together = attending.attend(problem, backend)
    for b in range(len(problem.q)):
        alone = dataclasses.replace(
            problem,
            q=problem.q[b : b + 1],
            keys=[part[b : b + 1] for part in problem.keys],
            values=[part[b : b + 1] for part in problem.values],
            mask={name: array if name == "dense" else array[b : b + 1] for name, array in problem.mask.items()},
        )
        close(attending.attend(alone, backend), (together.out[b : b + 1], together.lse[b : b + 1]), problem)


@given(problems(), backends)
def test_weights_sum_to_one(problem, backend):
    ones = dataclasses.replace(problem, values=[np.ones_like(part) for part in problem.values])
    out, lse = attending.attend(ones, backend)
    sees = np.isfinite(lse) if axis(problem) == 2 else np.isfinite(lse).transpose(0, 2, 1)
    np.testing.assert_allclose(
        out.astype(np.float64), np.broadcast_to(sees[..., None], out.shape), atol=TOLERANCE[str(out.dtype)]
    )


@given(problems(dtypes=("float32",), segments=1), st.integers(0, 6))
def test_append_is_a_write_and_a_call(problem, new):
    along = axis(problem)
    batch, _, room = cases.sizes(problem)
    if room < new or batch == 0:
        return
    generator = np.random.default_rng(room)
    shape = list(problem.keys[0].shape)
    shape[along] = new
    fresh = tuple(cases.normal(generator, shape, "float32") for _ in range(2))
    lengths = generator.integers(0, room - new + 1, batch)
    appended = dataclasses.replace(problem, lengths=lengths, append=fresh)
    caches = [np.array(part) for part in (problem.keys[0], problem.values[0])]
    for cache, part in zip(caches, fresh, strict=True):
        for b in range(batch):
            places = slice(lengths[b], lengths[b] + new)
            cache[b, places if along == 1 else slice(None), slice(None) if along == 1 else places] = part[b]
    written = dataclasses.replace(problem, keys=[caches[0]], values=[caches[1]], lengths=lengths + new)
    close(attending.attend(appended, "cpu"), attending.attend(written, "cpu"), problem)


@given(problems(), backends)
def test_inputs_are_not_written(problem, backend):
    arrays, options = attending.arguments(problem)
    flat = [problem.q, *problem.keys, *problem.values, *problem.mask.values()]
    before = [calling.bytes_of(array) for array in flat]
    rc.attention(*arrays, backend=backend, **options)
    assert [calling.bytes_of(array) for array in flat] == before
