"""Attention by its definition, in float64 NumPy: every score, every mask, one sequence and head after the other."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from attention_cases import Problem


class Answer(NamedTuple):
    out: np.ndarray
    lse: np.ndarray


class Sequence(NamedTuple):
    """One of the batch: float64 [H, Q, D], [G, K, D], and who sees whom, [H, Q, K]."""

    q: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    seen: np.ndarray
    scale: float


def sequences(problem: Problem) -> list[Sequence]:
    options = problem.options
    heads_last = options.get("layout") == "bqhd"
    packed = problem.q_offsets is not None

    def double(array: np.ndarray) -> np.ndarray:
        array = array.astype(np.float64)
        return array.transpose(0, 2, 1, 3) if heads_last and array.ndim == 4 else array

    q = double(problem.q)
    keys, values = ([double(part) for part in parts] for parts in (problem.keys, problem.values))
    append = None if problem.append is None else [double(part) for part in problem.append]
    batch = len(problem.q_offsets) - 1 if packed else len(q)
    scale = options.get("scale") or q.shape[-1] ** -0.5
    found = []
    for b in range(batch):
        query_places = key_places = slice(None)
        if packed:
            query_places = slice(*problem.q_offsets[b : b + 2])
            key_places = slice(*problem.k_offsets[b : b + 2])
            mine = (
                q[query_places].transpose(1, 0, 2),
                keys[0][key_places].transpose(1, 0, 2),
                values[0][key_places].transpose(1, 0, 2),
            )
        else:
            k, v = (np.concatenate([part[b] for part in parts], 1) for parts in (keys, values))
            if problem.lengths is not None:
                length = int(problem.lengths[b])
                k, v = k[:, :length], v[:, :length]
                if append is not None:
                    k, v = (np.concatenate([old, new[b]], 1) for old, new in zip((k, v), append, strict=True))
            key_places = slice(0, k.shape[1])
            mine = (q[b], k, v)
        found.append(
            Sequence(*mine, seen(problem, b, mine[0].shape, mine[1].shape[1], query_places, key_places), scale)
        )
    return found


def seen(problem: Problem, b: int, shape: tuple[int, ...], keys: int, query_places: slice, key_places: slice):
    heads, queries, _ = shape
    options, mask = problem.options, problem.mask
    distance = np.arange(keys) - (np.arange(queries)[:, None] + keys - queries)
    allowed = np.ones((heads, queries, keys), bool)
    if options.get("causal"):
        allowed &= distance <= 0
    window = options.get("window")
    if window is not None:
        left, right = window if isinstance(window, tuple) else (window, window)
        if left is not None:
            allowed &= distance >= -left
        if right is not None:
            allowed &= distance <= right

    def mine(array: np.ndarray, places: slice) -> np.ndarray:
        return (array[b] if array.ndim == 2 else array)[places]

    if "key_valid" in mask:
        allowed &= mine(mask["key_valid"], key_places)
    if "query_rank" in mask:
        query, key = (np.minimum(mask[name], 2**31 - 2) for name in ("query_rank", "key_rank"))
        allowed &= mine(key, key_places) <= mine(query, query_places)[:, None]
    if "dense" in mask:
        dense = mask["dense"]
        if dense.ndim == 4:
            dense = dense[b if dense.shape[0] > 1 else 0]
        allowed &= dense[..., key_places]
    return allowed


def reached(s: Sequence) -> np.ndarray:
    """bool [G, K]: the keys that any query of the head's group sees."""
    heads, _, keys = s.seen.shape
    groups = len(s.keys)
    return s.seen.any(1).reshape(groups, heads // max(groups, 1), keys).any(1)


def weights(s: Sequence, h: int) -> tuple[np.ndarray, np.ndarray]:
    """[Q, K] and the logarithms [Q]. What nobody may see takes no part, whatever it holds."""
    group = h * len(s.keys) // len(s.q)
    any_query = s.seen[h].any(0)
    scores = np.full(s.seen[h].shape, -np.inf)
    scores[:, any_query] = s.scale * s.q[h] @ s.keys[group][any_query].T
    scores[~s.seen[h]] = -np.inf
    top = np.maximum(scores.max(1, initial=-np.inf), np.finfo(np.float64).min)
    powers = np.exp(scores - top[:, None])
    sums = powers.sum(1)
    with np.errstate(divide="ignore"):
        lse = np.log(sums) + top
    return powers / np.where(sums > 0, sums, 1)[:, None], np.where(sums > 0, lse, -np.inf)


def attend(problem: Problem) -> Answer:
    """Shaped as the call's result."""
    outs, logarithms = [], []
    for s in sequences(problem):
        out, lse = np.zeros(s.q.shape), np.zeros(s.q.shape[:2])
        for h in range(len(s.q)):
            share, lse[h] = weights(s, h)
            any_query = s.seen[h].any(0)
            out[h] = share[:, any_query] @ s.values[h * len(s.keys) // len(s.q)][any_query]
        outs.append(out)
        logarithms.append(lse)
    return joined(problem, outs), joined_lse(problem, logarithms)


def joined(problem: Problem, parts: list[np.ndarray], like: np.ndarray | None = None) -> np.ndarray:
    like = problem.q if like is None else like
    if problem.q_offsets is not None:
        whole = np.zeros(like.shape)
        offsets = problem.q_offsets if like is problem.q else problem.k_offsets
        for b, part in enumerate(parts):
            whole[offsets[b] : offsets[b + 1]] = part.transpose(1, 0, 2)
        return whole
    whole = np.stack(parts) if parts else np.zeros(like.shape)
    return whole.transpose(0, 2, 1, 3) if problem.options.get("layout") == "bqhd" and parts else whole


def joined_lse(problem: Problem, parts: list[np.ndarray]) -> np.ndarray:
    if problem.q_offsets is not None:
        whole = np.full(problem.q.shape[1::-1], -np.inf)
        for b, part in enumerate(parts):
            whole[:, problem.q_offsets[b] : problem.q_offsets[b + 1]] = part
        return whole
    return np.stack(parts) if parts else np.zeros((0, *problem.q.shape[1:3]))


class Gradients(NamedTuple):
    q: np.ndarray
    keys: list[np.ndarray]
    values: list[np.ndarray]


def differentiate(problem: Problem, d_out: np.ndarray, d_lse: np.ndarray, sizes: bool = False) -> Gradients:
    """From those of out and lse, float64 and shaped as the call's results. `sizes`: what each is the sum of, all of it
    taken as positive, which is what roundings are to be compared with."""
    size = np.abs if sizes else lambda x: x
    sign = 1 if sizes else -1
    heads_last = problem.options.get("layout") == "bqhd"
    packed = problem.q_offsets is not None
    d_queries, d_keys, d_values = [], [], []
    for b, s in enumerate(sequences(problem)):
        if packed:
            mine = slice(*problem.q_offsets[b : b + 2])
            d, d_logarithm = d_out[mine].transpose(1, 0, 2), d_lse[:, mine]
        else:
            d, d_logarithm = (d_out[b].transpose(1, 0, 2) if heads_last else d_out[b]), d_lse[b]
        d_q, d_k, d_v = (np.zeros(part.shape) for part in (s.q, s.keys, s.values))
        for h in range(len(s.q)):
            group = h * len(s.keys) // len(s.q)
            any_query = s.seen[h].any(0)
            share = weights(s, h)[0][:, any_query]
            k, v = s.keys[group][any_query], s.values[group][any_query]
            d_share = size(d[h]) @ size(v).T
            mean = (share * d_share).sum(1, keepdims=True)
            d_scores = size(s.scale) * share * (d_share + sign * mean + size(d_logarithm[h][:, None]))
            d_q[h] = d_scores @ size(k)
            d_k[group][any_query] += d_scores.T @ size(s.q[h])
            d_v[group][any_query] += share.T @ size(d[h])
        d_queries.append(d_q)
        d_keys.append(d_k)
        d_values.append(d_v)
    return Gradients(
        joined(problem, d_queries),
        split(problem, d_keys, problem.keys),
        split(problem, d_values, problem.values),
    )


def split(problem: Problem, parts: list[np.ndarray], like: list[np.ndarray]) -> list[np.ndarray]:
    """Of all keys of each sequence, into the segments; zeros beyond lengths."""
    if problem.q_offsets is not None:
        return [joined(problem, parts, like[0])]
    axis = 1 if problem.options.get("layout") == "bqhd" else 2
    wholes = [np.zeros(part.shape) for part in like]
    for b, part in enumerate(parts):
        part = part.transpose(1, 0, 2) if axis == 1 else part
        first = 0
        for whole in wholes:
            places = [slice(None)] * 3
            places[axis - 1] = slice(first, first + whole.shape[axis])
            piece = part[tuple(places)]
            places[axis - 1] = slice(0, piece.shape[axis - 1])
            whole[b][tuple(places)] = piece
            first += whole.shape[axis]
    return wholes
