"""From a Problem of attention_cases to a call, with any kind of array, and back to NumPy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import attention_cases as cases
import attention_oracle as oracle
import calling
import numpy as np

import robocache as rc

SINGLE = float(np.finfo(np.float32).eps)
Answer = oracle.Answer


def arguments(problem: cases.Problem, convert: Callable[[Any], Any] = calling.keep) -> tuple[list[Any], dict[str, Any]]:
    """Of rc.attention. The arrays of a cache are copies: they will be written."""
    writes = problem.append is not None
    keys, values = (
        [convert(np.array(part) if writes else part) for part in parts] for parts in (problem.keys, problem.values)
    )
    pair = [keys[0], values[0]] if len(keys) == 1 else [keys, values]
    options = dict(problem.options)
    for name in ("q_offsets", "k_offsets", "lengths"):
        options[name] = convert(getattr(problem, name))
    if writes:
        options["append"] = tuple(convert(part) for part in problem.append)
    if problem.mask:
        options["mask"] = rc.Mask(**{name: convert(array) for name, array in problem.mask.items()})
    return [convert(problem.q), *pair], options


def attend(problem: cases.Problem, backend: str | None, convert=calling.keep, **changes: Any) -> Answer:
    arrays, options = arguments(problem, convert)
    out, lse = rc.attention(*arrays, backend=backend, return_lse=True, **{**options, **changes})
    return Answer(calling.to_numpy(out), calling.to_numpy(lse))


@functools.cache
def truth(name: str) -> Answer:
    return Answer(*oracle.attend(cases.problem_of(name)))


@functools.cache
def bounds(name: str) -> tuple[float, float]:
    """What out may differ from the truth by, root mean square and at most: 1.5 times and twice what torch's math path
    does in the same dtype. The largest of many roundings is luck, and weights that are rounded to the dtype, as tensor
    cores want them, add to it; the mean is not. Where torch is exact because a row sees one key, of weight 1, the
    rounding of a weight near 1 stays: half a unit on average, a unit at most."""
    problem = cases.problem_of(name)
    expected = truth(name).out
    theirs = math_path(name)
    unit = half_unit(problem.q.dtype)
    rounding = unit / 2 * spread(expected, 0 * expected), unit * float(np.abs(expected).max(initial=0))
    return (
        max(1.5 * spread(theirs, expected), rounding[0]) + tiny(expected),
        max(2 * worst(theirs, expected), rounding[1]) + tiny(expected),
    )


@functools.cache
def math_path(name: str) -> np.ndarray:
    """out of torch's math path in the same dtype."""
    import torch

    problem = cases.problem_of(name)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        made = [calling.to_numpy(sdpa(s, problem.q.dtype)) for s in oracle.sequences(problem)]
    return oracle.joined(problem, made)


def half_unit(dtype: np.dtype) -> float:
    """What rounding to a half type may change, relatively; 0 for float32, whose roundings are counted elsewhere."""
    return 0.0 if dtype == np.float32 else 2.0 ** -(11 if dtype == np.float16 else 8)


def grouped_sdpa(q: Any, k: Any, v: Any, **options: Any) -> Any:
    """torch's, with keys and values repeated for the heads that share them: enable_gqa is there from torch 2.5 on."""
    import torch

    if q.shape[1] != k.shape[1]:
        k, v = (part.repeat_interleave(q.shape[1] // part.shape[1], 1) for part in (k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)


def sdpa(s: oracle.Sequence, dtype: np.dtype) -> Any:
    import torch

    def tensor(array: np.ndarray) -> Any:
        return calling.to_torch(np.ascontiguousarray(array.astype(dtype)))[None]

    reached = torch.from_numpy(oracle.reached(s))[None, :, :, None]
    k, v = (torch.where(reached, tensor(part), 0) for part in (s.keys, s.values))
    seen = torch.from_numpy(s.seen)[None]
    made = grouped_sdpa(tensor(s.q), k, v, attn_mask=seen, scale=s.scale)
    return torch.where(seen.any(-1, keepdim=True), made, 0)[0]


def worst(actual: np.ndarray, expected: np.ndarray) -> float:
    difference = np.abs(actual.astype(np.float64) - expected)
    assert np.isfinite(difference).all()
    return float(difference.max(initial=0))


def spread(actual: np.ndarray, expected: np.ndarray) -> float:
    return float(np.sqrt(np.square(actual.astype(np.float64) - expected).mean())) if expected.size else 0.0


def tiny(expected: np.ndarray) -> float:
    """A few roundings of a float32: everyone's sums are in one."""
    return 4 * SINGLE * float(np.abs(expected).max(initial=0)) + 1e-44


def assert_close(actual: Answer, name: str, what: str) -> None:
    expected = truth(name)
    assert actual.out.dtype == cases.problem_of(name).q.dtype, what
    assert actual.out.shape == expected.out.shape, what
    assert actual.lse.dtype == np.float32, what
    assert actual.lse.shape == expected.lse.shape, what
    errors = spread(actual.out, expected.out), worst(actual.out, expected.out)
    for kind, error, most in zip(("on average", "somewhere"), errors, bounds(name), strict=True):
        assert error <= most, f"{what}: out is off by {error:.3g} {kind}, at most {most:.3g}"
    np.testing.assert_array_equal(np.isneginf(actual.lse), np.isneginf(expected.lse), what)
    seen = np.isfinite(expected.lse)
    np.testing.assert_allclose(actual.lse[seen], expected.lse[seen], rtol=4e-6, atol=4e-6, err_msg=what)
