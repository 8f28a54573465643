"""The case table of attention: shapes of policies, every mask, every way to hand over keys, and edges."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cases import BFLOAT16, dtype_of

DTYPES = ["float32", "float16", *(["bfloat16"] if BFLOAT16 else [])]
HEAD_DIMS = [32, 40, 48, 64, 72, 80, 96, 128, 136, 192, 248, 256]


@dataclass
class Problem:
    q: np.ndarray
    keys: list[np.ndarray]
    values: list[np.ndarray]
    mask: dict[str, np.ndarray] = field(default_factory=dict)  # fields of a robocache.Mask
    q_offsets: np.ndarray | None = None
    k_offsets: np.ndarray | None = None
    lengths: np.ndarray | None = None
    append: tuple[np.ndarray, np.ndarray] | None = None
    options: dict[str, Any] = field(default_factory=dict)


def normal(generator: np.random.Generator, shape, dtype: str) -> np.ndarray:
    return generator.standard_normal(shape, np.float32).astype(dtype_of(dtype))


def make(
    generator: np.random.Generator,
    batch: int = 2,
    heads: int = 4,
    kv_heads: int | None = None,
    queries: int = 17,
    keys: int | tuple[int, ...] = 33,
    head_dim: int = 64,
    dtype: str = "float32",
    **options: Any,
) -> Problem:
    groups = heads if kv_heads is None else kv_heads
    segments = (keys,) if isinstance(keys, int) else keys
    q = normal(generator, (batch, heads, queries, head_dim), dtype)
    k, v = ([normal(generator, (batch, groups, n, head_dim), dtype) for n in segments] for _ in range(2))
    if options.get("layout") == "bqhd":
        q = np.ascontiguousarray(q.transpose(0, 2, 1, 3))
        k, v = ([np.ascontiguousarray(part.transpose(0, 2, 1, 3)) for part in parts] for parts in (k, v))
    return Problem(q, k, v, options=options)


def packed(
    generator: np.random.Generator,
    queries: tuple[int, ...],
    keys: tuple[int, ...],
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 64,
    dtype: str = "float32",
    offset_dtype: Any = np.int32,
    **options: Any,
) -> Problem:
    q = normal(generator, (sum(queries), heads, head_dim), dtype)
    k, v = ([normal(generator, (sum(keys), kv_heads, head_dim), dtype)] for _ in range(2))
    offsets = [np.cumsum([0, *counts]).astype(offset_dtype) for counts in (queries, keys)]
    return Problem(q, k, v, q_offsets=offsets[0], k_offsets=offsets[1], options=options)


def ranked(generator: np.random.Generator, problem: Problem, blocks: int = 4) -> Problem:
    """Block-causal, with holes: every query of the last tokens, as a policy's suffix."""
    batch, queries, keys = sizes(problem)
    rank = np.sort(generator.integers(0, blocks, (batch, keys)), axis=1).astype(np.int32)
    problem.mask |= {
        "query_rank": np.ascontiguousarray(rank[:, -queries:] if queries else rank[:, :0]),
        "key_rank": rank,
        "key_valid": generator.random((batch, keys)) < 0.8,
    }
    return problem


def sizes(problem: Problem) -> tuple[int, int, int]:
    axis = 1 if problem.options.get("layout") == "bqhd" else 2
    return len(problem.q), problem.q.shape[axis], sum(part.shape[axis] for part in problem.keys)


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[np.random.Generator], Problem]


def _cases() -> list[Case]:
    cases: list[Case] = []

    def add(name: str, build: Callable[[np.random.Generator], Problem]) -> None:
        cases.append(Case(name, build))

    def plain(name: str, **options: Any) -> None:
        add(name, lambda generator: make(generator, **options))

    for dtype in DTYPES:
        plain(f"plain {dtype}", dtype=dtype)
        plain(f"causal {dtype}", dtype=dtype, causal=True)
        plain(f"groups 8/1 of 256 {dtype}", dtype=dtype, heads=8, kv_heads=1, head_dim=256, queries=9, keys=70)
        for head_dim in HEAD_DIMS:
            plain(f"head dim {head_dim} {dtype}", dtype=dtype, batch=1, heads=2, head_dim=head_dim, queries=5, keys=19)
        add(f"ranks {dtype}", lambda generator, dtype=dtype: ranked(generator, make(generator, dtype=dtype, keys=45)))
        add(
            f"pi0 suffix {dtype}",
            lambda generator, dtype=dtype: ranked(generator, make(generator, 1, 8, 1, 51, (160, 51), 256, dtype)),
        )
        add(f"packed {dtype}", lambda generator, dtype=dtype: packed(generator, (7, 0, 3), (20, 5, 0), dtype=dtype))

    plain("diffusion policy", batch=1, queries=10, keys=10, causal=True)
    plain("GR00T self", batch=1, heads=32, queries=41, keys=41, head_dim=48)
    plain("SmolVLA cross", batch=1, heads=15, kv_heads=5, queries=50, keys=241)
    plain("SigLIP", batch=1, heads=2, queries=256, keys=256, head_dim=72)

    plain("RDT image cross", batch=1, heads=2, queries=7, keys=4374)

    # Positions
    plain("causal, more keys than queries", queries=5, keys=40, causal=True)
    plain("causal, more queries than keys", queries=40, keys=5, causal=True)
    plain("window of 3", window=3)
    plain("window (5, 0)", window=(5, 0), queries=40, keys=40)
    plain("window (None, 2)", window=(None, 2))
    plain("window (0, None)", window=(0, None), queries=20, keys=20)
    plain("window (0, 0)", window=(0, 0), queries=9, keys=20)
    plain("window, more queries than keys", window=(2, 1), queries=30, keys=8)
    plain("causal with a window", causal=True, window=4, queries=30, keys=30)

    # Masks
    def valid(generator: np.random.Generator) -> Problem:
        problem = make(generator, keys=50)
        problem.mask["key_valid"] = generator.random((2, 50)) < 0.5
        return problem

    def shared_valid(generator: np.random.Generator) -> Problem:
        problem = make(generator, keys=50)
        problem.mask["key_valid"] = generator.random(50) < 0.5
        return problem

    def nothing(generator: np.random.Generator) -> Problem:
        problem = ranked(generator, make(generator, keys=50))
        problem.mask["query_rank"][:, ::3] = np.iinfo(np.int32).min
        problem.mask["key_valid"][1] = False
        return problem

    def extreme_ranks(generator: np.random.Generator) -> Problem:
        problem = make(generator)
        limits = np.iinfo(np.int32)
        levels = np.array([limits.min, -1, 0, limits.max - 1, limits.max], np.int32)
        problem.mask |= {
            name: levels[generator.integers(0, 5, n)] for name, n in (("query_rank", 17), ("key_rank", 33))
        }
        return problem

    add("key_valid", valid)
    add("key_valid for all", shared_valid)
    add("queries that see nothing", nothing)
    add("ranks at the ends of int32", extreme_ranks)
    for shape in ((17, 33), (1, 1, 17, 33), (2, 1, 17, 33), (1, 4, 17, 33), (2, 4, 17, 33)):

        def dense(generator: np.random.Generator, shape=shape) -> Problem:
            problem = make(generator, kv_heads=2)
            problem.mask["dense"] = generator.random(shape) < 0.4
            return problem

        add(f"dense {shape}", dense)

    def everything(generator: np.random.Generator) -> Problem:
        problem = ranked(generator, make(generator, kv_heads=2, keys=(20, 0, 13), causal=True, window=(25, 3)))
        problem.mask["dense"] = generator.random((2, 1, 17, 33)) < 0.7
        return problem

    add("every mask, segments", everything)

    # Keys
    plain("two segments", keys=(20, 13))
    plain("four segments, one empty", keys=(1, 0, 40, 7))
    plain("segments, causal", keys=(20, 13), causal=True)
    for dtype in DTYPES[1:]:
        plain(f"segments of several tiles, {dtype}", keys=(100, 0, 70, 30), dtype=dtype)
        plain(f"segments of several tiles, window, {dtype}", keys=(100, 0, 90), queries=30, window=(40, 3), dtype=dtype)
    plain("one key", keys=1)
    plain("no keys", keys=0)
    plain("no queries", queries=0)
    plain("no batch", batch=0)
    plain("no heads", heads=0)

    def masked_away(generator: np.random.Generator, queries: int, keys: int) -> Problem:
        problem = make(generator, queries=queries, keys=keys)
        problem.mask |= {
            "query_rank": np.zeros((2, queries), np.int32),
            "key_rank": np.zeros(keys, np.int32),
            "key_valid": np.ones((2, keys), bool),
        }
        return problem

    add("no keys, masks", lambda generator: masked_away(generator, 17, 0))
    add("no queries, masks", lambda generator: masked_away(generator, 0, 33))
    plain("one query", queries=1, keys=300)
    plain("many queries", batch=1, heads=1, queries=300, keys=3)
    plain("bqhd", layout="bqhd", kv_heads=2)
    plain("bqhd, causal, segments", layout="bqhd", keys=(9, 20), causal=True)
    plain("scale 1", scale=1.0)
    plain("scale -0.3", scale=-0.3)

    def cache(generator: np.random.Generator, new: int = 0, **options: Any) -> Problem:
        problem = make(generator, batch=4, queries=max(new, 3), keys=40, kv_heads=2, **options)
        problem.lengths = np.array([0, 40 - new, 17, 5], np.int64)
        if new:
            axis = 1 if options.get("layout") == "bqhd" else 2
            shape = list(problem.keys[0].shape)
            shape[axis] = new
            problem.append = tuple(normal(generator, shape, options.get("dtype", "float32")) for _ in range(2))
        return problem

    add("lengths", cache)
    add("lengths, causal", lambda generator: cache(generator, causal=True))
    add("append", lambda generator: cache(generator, 3, causal=True))
    add("append, bqhd", lambda generator: cache(generator, 3, causal=True, layout="bqhd"))
    for dtype in DTYPES[1:]:
        add(f"append {dtype}", lambda generator, dtype=dtype: cache(generator, 1, dtype=dtype))

    def cache_with_mask(generator: np.random.Generator) -> Problem:
        problem = cache(generator, 3, causal=True, window=9)
        problem.mask["key_valid"] = generator.random((4, 40)) < 0.8
        return problem

    add("append with a mask", cache_with_mask)

    # Packed
    add("packed, causal", lambda generator: packed(generator, (5, 9, 0, 1), (5, 20, 3, 1), causal=True))
    add("packed, window", lambda generator: packed(generator, (5, 9), (5, 20), window=(3, 1), offset_dtype=np.int64))
    add("packed, no sequences", lambda generator: packed(generator, (), ()))

    def places_left_out(generator: np.random.Generator, dtype: str, sequences: int) -> Problem:
        """Offsets that begin behind the first place and end before the last."""
        problem = packed(generator, (5, 9, 4), (8, 20, 9), dtype=dtype, causal=True)
        problem.q_offsets = np.array([2, 5, 5, 14])[: sequences + 1]
        problem.k_offsets = np.array([1, 8, 20, 33])[: sequences + 1]
        return problem

    for dtype in DTYPES:
        add(f"packed, places left out {dtype}", lambda generator, dtype=dtype: places_left_out(generator, dtype, 3))
    add("packed, all places left out", lambda generator: places_left_out(generator, "float32", 0))

    def packed_with_ranks(generator: np.random.Generator) -> Problem:
        problem = packed(generator, (6, 11), (16, 30))
        problem.mask |= {
            "query_rank": generator.integers(0, 3, 17).astype(np.int32),
            "key_rank": generator.integers(0, 4, 46).astype(np.int32),
            "key_valid": generator.random(46) < 0.8,
        }
        return problem

    add("packed with ranks", packed_with_ranks)

    # Numbers
    def scaled(factor: float, dtype: str = "float32") -> Callable[[np.random.Generator], Problem]:
        def build(generator: np.random.Generator) -> Problem:
            problem = make(generator, dtype=dtype)
            problem.q = (problem.q.astype(np.float32) * factor).astype(problem.q.dtype)
            return problem

        return build

    add("logits of 1e4", scaled(1e4 / 3))
    add("logits of 1e4, float16", scaled(1e4 / 3, "float16"))
    add("subnormal queries", scaled(1e-40))

    def subnormal_values(generator: np.random.Generator) -> Problem:
        problem = make(generator)
        problem.values[0] = problem.values[0] * np.float32(1e-40)
        return problem

    add("subnormal values", subnormal_values)
    return cases


CASES = _cases()
BY_NAME = {case.name: case for case in CASES}
assert len(BY_NAME) == len(CASES)


@functools.cache
def problem_of(name: str) -> Problem:
    """Not to be written: `append` is called with copies."""
    return BY_NAME[name].build(np.random.default_rng(sum(name.encode())))


# int64 ranks that int32 cannot hold, or that it holds only just: (queries, keys), with rows or without.
STAMP = 10**18
LEAST, MOST = -(2**63), 2**63 - 1
WIDE_RANKS = {
    "nanoseconds": ([STAMP, STAMP + 5, STAMP + 8], [STAMP, STAMP + 1, STAMP + 9, STAMP + 5, STAMP + 6]),
    "negative": ([-STAMP, -STAMP - 5, 0], [-STAMP, -STAMP - 5, -STAMP - 6, 0, 1]),
    "the ends of int64": ([LEAST, 0, MOST], [LEAST, LEAST + 1, 0, MOST - 1, MOST]),
    "the ends of int32": ([2**31 - 2, 2**31 - 1, -(2**31)], [2**31 - 1, 2**31, -(2**31) - 1, -(2**31), 2**31 - 2]),
    "that fit": ([0, 2, 5], [0, 1, 2, 5, 2**31 - 2]),
    "rows of queries": ([[STAMP, 3, 9], [0, 1, STAMP + 1]], [STAMP, 0, STAMP + 1, 3, 2]),
    "rows of keys": ([STAMP, 3, 9], [[STAMP, 0, STAMP + 1, 3, 2], [1, 2, 3, 4, -STAMP]]),
    "rows of both": ([[STAMP, 3, 9], [-4, 1, -STAMP]], [[STAMP, 0, STAMP + 1, 3, 2], [1, 2, 3, -4, -STAMP]]),
}


def wide_ranks(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of queries and of keys, and the dense mask [B or 1, 1, Q, K] that they spell out."""
    query, key = (np.array(ranks, np.int64) for ranks in WIDE_RANKS[name])
    seen = np.atleast_2d(key)[:, None, :] <= np.atleast_2d(query)[:, :, None]
    return query, key, seen[:, None]
