"""Bad input to attention gets a sentence: what was wrong, where, and what was expected."""

from __future__ import annotations

import math

import numpy as np
import pytest
from test_errors import says

import robocache as rc

Q = np.zeros((2, 4, 3, 32), np.float32)
K = np.zeros((2, 2, 5, 32), np.float32)
PACKED = np.zeros((6, 4, 32), np.float32)
RANKS = np.zeros(3, np.int32), np.zeros(5, np.int32)


@pytest.fixture(autouse=True)
def the_library_works_on():
    yield
    assert (rc.attention(Q, K, K) == 0).all()


@pytest.mark.parametrize(
    ("error", "parts", "options"),
    [
        (ValueError, ["attention: layout is 'bhdq'", "bhqd or bqhd"], {"layout": "bhdq"}),
        (TypeError, ["attention: layout is 3"], {"layout": 3}),
        (TypeError, ["attention: causal is 1", "True or False"], {"causal": 1}),
        (TypeError, ["attention: scale is 'big'", "a number"], {"scale": "big"}),
        (ValueError, ["attention: scale is 0", "1 / sqrt(D)"], {"scale": 0}),
        (ValueError, ["attention: scale is nan", "finite"], {"scale": math.nan}),
        (ValueError, ["attention: window is -2"], {"window": -2}),
        (ValueError, ["attention: window is -5"], {"window": (3, -5)}),
        (TypeError, ["attention: window is (1, 2, 3)", "(left, right)"], {"window": (1, 2, 3)}),
        (TypeError, ["attention: window is 2.5", "an int"], {"window": 2.5}),
        (TypeError, ["attention: mask is of type str"], {"mask": "causal"}),
        (TypeError, ["attention: return_lse is None"], {"return_lse": None}),
        (ValueError, ["attention: backend is 'gpu'", "reference, cpu, cuda or torch"], {"backend": "gpu"}),
        (TypeError, ["attention: backend torch takes torch tensors"], {"backend": "torch"}),
        (ValueError, ["attention: append needs lengths"], {"append": (K[:, :, :1], K[:, :, :1])}),
        (TypeError, ["attention: append is of type int", "(k, v)"], {"append": 3, "lengths": [0, 0]}),
        (TypeError, ["attention: append is a list of 1", "(k, v)"], {"append": (K,), "lengths": [0, 0]}),
        (ValueError, ["attention: lengths[1] = 6", "5"], {"lengths": [0, 6]}),
        (ValueError, ["attention: lengths[0] = -1"], {"lengths": [-1, 5]}),
        (ValueError, ["attention: lengths has 3 elements for 2 sequences"], {"lengths": [1, 2, 3]}),
        (TypeError, ["attention: lengths", "float64"], {"lengths": [1.5, 2.0]}),
        (ValueError, ["offsets without", "packed sequences need both"], {"q_offsets": [0, 3]}),
    ],
)
def test_options(error, parts, options):
    says(error, parts, rc.attention, Q, K, K, **options)


@pytest.mark.parametrize(
    ("error", "parts", "mask"),
    [
        (ValueError, ["attention: mask.query_rank without mask.key_rank"], {"query_rank": RANKS[0]}),
        (ValueError, ["attention: mask.key_rank without mask.query_rank"], {"key_rank": RANKS[1]}),
        (
            ValueError,
            ["mask.query_rank has shape [5]", "[3] or [2, 3]", "mask.last_queries(3)"],
            {"query_rank": RANKS[1], "key_rank": RANKS[1]},
        ),
        (ValueError, ["mask.key_rank has shape [3]", "[5] or [2, 5]"], {"query_rank": RANKS[0], "key_rank": RANKS[0]}),
        (TypeError, ["mask.query_rank is", "big-endian"], {"query_rank": RANKS[0].astype(">i4"), "key_rank": RANKS[1]}),
        (ValueError, ["key_valid has shape [2, 4]", "[5] or [2, 5]"], {"key_valid": np.ones((2, 4), bool)}),
        (ValueError, ["key_valid has shape [3, 5]"], {"key_valid": np.ones((3, 5), bool)}),
        (TypeError, ["key_valid is float32"], {"key_valid": np.ones(5, np.float32)}),
        (ValueError, ["dense has shape [5, 3]", "[3, 5] or [2 or 1, 4 or 1, 3, 5]"], {"dense": np.ones((5, 3), bool)}),
        (ValueError, ["dense has shape [2, 2, 3, 5]"], {"dense": np.ones((2, 2, 3, 5), bool)}),
        (ValueError, ["dense has shape [2, 3, 5]", "mask[:, None]"], {"dense": np.ones((2, 3, 5), bool)}),
        (ValueError, ["dense has shape [2, 5]", "Mask(key_valid=mask)"], {"dense": np.ones((2, 5), bool)}),
        (TypeError, ["dense is float64", "true where a key is seen"], {"dense": np.ones((3, 5))}),
        (TypeError, ["attention: mask.key_valid is of type list"], {"key_valid": [True] * 5}),
    ],
)
def test_masks(error, parts, mask):
    says(error, parts, rc.attention, Q, K, K, mask=rc.Mask(**mask))
    if "dense" in mask:
        says(error, parts, rc.attention, Q, K, K, mask=mask["dense"])


def zeros(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


@pytest.mark.parametrize(
    ("error", "parts", "arrays"),
    [
        (TypeError, ["attention: q is of type list", "stack or concatenate"], ([1, 2], K, K)),
        (TypeError, ["attention: q is None"], (None, K, K)),
        (
            TypeError,
            ["attention: q is float64", "bfloat16, float16 or float32"],
            (zeros(1, 1, 2, 32, dtype=float), K, K),
        ),
        (TypeError, ["k is float16 and q is float32"], (Q, K.astype(np.float16), K)),
        (TypeError, ["v is float16 and q is float32"], (Q, K, K.astype(np.float16))),
        (ValueError, ["q has shape [3, 32]"], (zeros(3, 32), K, K)),
        (ValueError, ["k has shape [5, 32]"], (Q, zeros(5, 32), zeros(5, 32))),
        (
            ValueError,
            ["the head dim is 24", "32 to 256 in steps of 8"],
            (zeros(1, 1, 2, 24), zeros(1, 1, 2, 24), zeros(1, 1, 2, 24)),
        ),
        (ValueError, ["the head dim is 36"], (zeros(1, 1, 2, 36), zeros(1, 1, 2, 36), zeros(1, 1, 2, 36))),
        (ValueError, ["the head dim is 264"], (zeros(1, 1, 2, 264), zeros(1, 1, 2, 264), zeros(1, 1, 2, 264))),
        (ValueError, ["k has shape [2, 2, 5, 64]", "head dim"], (Q, zeros(2, 2, 5, 64), zeros(2, 2, 5, 64))),
        (ValueError, ["k has shape [3, 2, 5, 32]", "batch"], (Q, zeros(3, 2, 5, 32), zeros(3, 2, 5, 32))),
        (ValueError, ["q has 4 heads and k 3", "multiple"], (Q, zeros(2, 3, 5, 32), zeros(2, 3, 5, 32))),
        (ValueError, ["q has 3 heads and k 5", 'layout="bqhd"'], [x.swapaxes(1, 2) for x in (Q, K, K)]),
        (ValueError, ["v has shape [2, 2, 6, 32]", "[2, 2, 5, 32]"], (Q, K, zeros(2, 2, 6, 32))),
        (ValueError, ["stride of 2 along the head dim", "contiguous"], (zeros(2, 4, 3, 64)[..., ::2], K, K)),
        (TypeError, ["attention: k is a list of 1 and v is of type numpy.ndarray", "equally many"], (Q, [K], K)),
        (TypeError, ["attention: k is a list of 2 and v is a list of 1"], (Q, [K, K], [K])),
        (ValueError, ["attention: k and v are lists of 5 arrays", "1 to 4"], (Q, [K] * 5, [K] * 5)),
        (ValueError, ["attention: k and v are lists of 0 arrays"], (Q, [], [])),
        (TypeError, ["attention: k[1] is of type int"], (Q, [K, 3], [K, K])),
        (ValueError, ["k[1] has 1 heads", "2"], (Q, [K, K[:, :1]], [K, K[:, :1]])),
    ],
)
def test_arrays(error, parts, arrays):
    says(error, parts, rc.attention, *arrays)


def test_packed():
    offsets = {"q_offsets": [0, 2, 6], "k_offsets": [0, 3, 6]}
    rc.attention(PACKED, PACKED, PACKED, **offsets)
    for error, parts, changes in [
        (ValueError, ["q_offsets[2] = 7", "0..6"], {"q_offsets": [0, 2, 7]}),
        (ValueError, ["k_offsets[0] = -1"], {"k_offsets": [-1, 2, 6]}),
        (ValueError, ["q_offsets[2] = 1 is below", "must not decrease"], {"q_offsets": [0, 2, 1]}),
        (ValueError, ["q_offsets has 2 elements and k_offsets 3"], {"q_offsets": [0, 6]}),
        (ValueError, ["lengths are for padded sequences"], {"lengths": [1, 1]}),
        (ValueError, ["a dense mask is for padded sequences"], {"mask": np.ones((6, 6), bool)}),
        (ValueError, ["key_valid has shape [2, 6]"], {"mask": rc.Mask(key_valid=np.ones((2, 6), bool))}),
    ]:
        says(error, parts, rc.attention, PACKED, PACKED, PACKED, **{**offsets, **changes})
    says(ValueError, ["q has shape [2, 4, 3, 32]", "with offsets"], rc.attention, Q, K, K, **offsets)
    parts = ["packed sequences have one segment"]
    says(ValueError, parts, rc.attention, PACKED, [PACKED] * 2, [PACKED] * 2, **offsets)


def test_append():
    new = np.zeros((2, 2, 2, 32), np.float32)
    cache = [K.copy(), K.copy()]
    for error, parts, arrays, options in [
        (ValueError, ["lengths[1] = 4", "3"], cache, {"lengths": [0, 4]}),
        (ValueError, ["append has 6 keys for a cache with room for 5"], cache, {"append": (zeros(2, 2, 6, 32),) * 2}),
        (ValueError, ["append[0] has 1 heads"], cache, {"append": (new[:, :1],) * 2}),
        (ValueError, ["append[1] has shape"], cache, {"append": (new, new[:, :, :1])}),
        (ValueError, ["attention: append is for one cache, and k is a list"], [[K], [K]], {}),
        (ValueError, ["attention: k is read-only"], [np.broadcast_to(K, K.shape), cache[1]], {}),
    ]:
        says(error, parts, rc.attention, Q, *arrays, **{"lengths": [0, 3], "append": (new, new), **options})
    assert all((part == 0).all() for part in cache)


def test_append_writes_nothing_that_is_read():
    whole = zeros(2, 2, 2, 9, 32)  # k and v side by side
    k, v = whole[:, 0], whole[:, 1]
    new = zeros(2, 2, 2, 32)
    rc.attention(Q, k, v, lengths=[0, 3], append=(new, new))
    for parts, arrays, append in [
        (["attention: k and v are one array, and append writes to both"], (Q, k, k), (new, new)),
        (["attention: k overlaps append[0] in memory"], (Q, k, v.copy()), (k[:, :, 2:4], new)),
        (["attention: v overlaps append[1] in memory"], (Q, k.copy(), v), (new, v[:, :, 2:4])),
        (["attention: k overlaps q in memory"], (k[:, :, 5:8], k, v.copy()), (new, new)),
    ]:
        says(ValueError, parts, rc.attention, *arrays, lengths=[0, 3], append=append)


def test_out():
    out = np.empty_like(Q)
    assert rc.attention(Q, K, K, out=out) is out
    says(TypeError, ["attention: out is float64"], rc.attention, Q, K, K, out=out.astype(float))
    says(ValueError, ["attention: out has shape [2, 4, 3, 64]"], rc.attention, Q, K, K, out=zeros(2, 4, 3, 64))
    says(ValueError, ["attention: out overlaps q in memory"], rc.attention, out, K, K, out=out)
    says(ValueError, ["attention: out overlaps k in memory"], rc.attention, Q, out, out, out=out)
    says(ValueError, ["attention: out is read-only"], rc.attention, Q, K, K, out=np.broadcast_to(out, Q.shape))
    says(ValueError, ["attention: out", "contiguous"], rc.attention, Q, K, K, out=zeros(2, 4, 3, 64)[..., ::2])


def test_nothing_is_written_where_something_is_wrong():
    out = np.full_like(Q, 7)
    with pytest.raises(ValueError, match="lengths"):
        rc.attention(Q, K, K, lengths=[0, 9], out=out)
    assert (out == 7).all()


def test_mixed_libraries():
    torch = pytest.importorskip("torch")
    parts = ["Mask: pad_masks is of type torch.Tensor and att_masks of type numpy.ndarray"]
    says(TypeError, parts, rc.Mask.from_openpi, torch.ones(2, 5, dtype=torch.bool), np.ones((2, 5)))
    parts = ["attention: k is a NumPy array, but q is a torch tensor"]
    says(TypeError, parts, rc.attention, torch.zeros(2, 4, 3, 32), K, K)
    parts = ["attention: mask.key_valid is a NumPy array, but q is a torch tensor"]
    mask = rc.Mask(key_valid=np.ones(3, bool))
    q = torch.zeros(2, 4, 3, 32)
    says(TypeError, parts, rc.attention, q, q, q, mask=mask)


def test_masks_of_openpi():
    pad = np.ones((2, 5), bool)
    for error, parts, masks in [
        (TypeError, ["Mask: pad_masks is of type list"], ([True], [1])),
        (TypeError, ["Mask: att_masks is of type list"], (pad, [1, 0, 0, 0, 0])),
        (TypeError, ["Mask: pad_masks is int32", "bool"], (pad.astype(np.int32), pad)),
        (ValueError, ["Mask: pad_masks has shape [2, 5] and att_masks [2, 4]"], (pad, pad[:, :4])),
    ]:
        says(error, parts, rc.Mask.from_openpi, *masks)
    says(ValueError, ["Mask: last_queries(4) of 3 queries"], rc.Mask(*RANKS).last_queries, 4)
    says(ValueError, ["Mask: last_queries(-1) of 3 queries"], rc.Mask(*RANKS).last_queries, -1)


def test_mixed_devices(cuda):
    import torch

    q = torch.zeros(2, 4, 3, 32)
    says(ValueError, ["attention: k", "CPU", "cuda"], rc.attention, q.cuda(), q, q)


def test_what_the_gpu_finds_in_the_data_is_told_later(cuda):
    q = cuda(Q)
    rc.attention(q, q, q, lengths=cuda(np.array([0, 9])))
    says(ValueError, ["attention: lengths[1] = 9"], rc.synchronize)
    rc.attention(q, q, q, lengths=cuda(np.array([0, 9])), check=False)
    rc.synchronize()


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int16", "bool"])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_ranks_of_another_dtype(kind, dtype):
    convert = np.asarray if kind == "numpy" else pytest.importorskip("torch").from_numpy
    ranks = convert(np.zeros(3, dtype)), convert(np.zeros(5, "i8"))
    says(TypeError, [f"Mask: query_rank is {dtype}; it must be int32 or int64"], rc.Mask, *ranks)
    says(TypeError, [f"Mask: key_rank is {dtype}; it must be int32 or int64"], rc.Mask, *reversed(ranks))


def test_ranks_of_two_libraries():
    torch = pytest.importorskip("torch")
    says(TypeError, ["Mask: query_rank is of type", "key_rank of type"], rc.Mask, np.arange(3), torch.arange(5))
