"""Attention at the shapes and under the masks that robot policies have: attention, Mask, describe_attention.

Nothing is computed here. The engine (robocache._core) serves arrays that have memory; robocache._torch_attention serves
what it hands back with NotImplemented (gradients, tensors without memory, other devices), and everything while
torch.compile traces.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from robocache import _align, _core
from robocache._align import _kind, _shape
from robocache._arrays import beside


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Mask:
    """What a query may see, as data that grows with the tokens and not with their square.

        rc.Mask(key_valid=padding)                              # bool [B, K]: keys that are real
        rc.Mask(query_rank, key_rank)                           # int [B, Q], [B, K]: prefix-LM, block-causal
        rc.Mask.from_openpi(pad_masks, att_masks)               # as openpi and LeRobot's pi0 carry it
        rc.Mask.from_openpi(pad_masks, att_masks).last_queries(51)

    query_rank, key_rank   query i sees key j where key_rank[j] <= query_rank[i]. One without the other is an error.
                           int64 becomes int32 when the Mask is made. A number that does not fit is refused on the
                           host; on a GPU, which is not waited for, it becomes the nearest that does.
    key_valid              keys that are not may hold anything, NaN too.
    dense                  bool [Q, K] or [B or 1, H or 1, Q, K]: for everything else.

    Each may be without its batch dimension, and then serves all; packed sequences have [N]. All that are given must
    allow it, and `causal` and `window` of the call too.
    """

    query_rank: Any = None
    key_rank: Any = None
    key_valid: Any = None
    dense: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "query_rank", _ranks("query_rank", self.query_rank))
        object.__setattr__(self, "key_rank", _ranks("key_rank", self.key_rank))

    @staticmethod
    def from_openpi(pad_masks: Any, att_masks: Any) -> Mask:
        """The mask that `make_att_2d_masks(pad_masks, att_masks)` spells out: of all tokens, as queries and as keys.

        pad_masks   bool [B, N]: tokens that are real. Those that are not see nothing, and nobody sees them.
        att_masks   [B, N], [1, N] or [N]: 1 where a token begins a new block, which those before it do not see.
        """
        library = _namespace("pad_masks", pad_masks)
        if _namespace("att_masks", att_masks) is not library:
            raise TypeError(f"Mask: pad_masks is of type {_kind(pad_masks)} and att_masks of type {_kind(att_masks)}")
        if pad_masks.dtype != (library.bool if library.__name__ == "torch" else library.bool_):
            raise TypeError(f"Mask: pad_masks is {pad_masks.dtype}; it must be bool")
        if pad_masks.shape[-1:] != att_masks.shape[-1:]:
            raise ValueError(
                f"Mask: pad_masks has shape {list(pad_masks.shape)} and att_masks {list(att_masks.shape)}; "
                "both must have all tokens"
            )
        ranks = library.cumsum(att_masks, -1, dtype=library.int32)
        ranks = library.where(pad_masks, ranks, library.iinfo(library.int32).min)
        return Mask(ranks, ranks, pad_masks)

    def last_queries(self, count: int) -> Mask:
        """The mask of the last `count` queries, over the same keys: a suffix that reads a cached prefix."""
        return Mask(
            None if self.query_rank is None else self.query_rank[..., _last(self.query_rank.shape[-1], count)],
            self.key_rank,
            self.key_valid,
            None if self.dense is None else self.dense[..., _last(self.dense.shape[-2], count), :],
        )

    def __repr__(self) -> str:
        fields = ((name, getattr(self, name)) for name in self.__slots__)
        return f"Mask({', '.join(f'{name}={_shape(array)}' for name, array in fields if array is not None)})"


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: int | tuple[int | None, int | None] | None = None,
    mask: Any = None,
    q_offsets: Any = None,
    k_offsets: Any = None,
    lengths: Any = None,
    append: tuple[Any, Any] | None = None,
    layout: str = "bhqd",
    return_lse: bool = False,
    out: Any = None,
    check: bool = True,
    backend: str | None = None,
) -> Any:
    """softmax(scale * q k^T) v in one pass: as q is shaped, or (out, lse).

        rc.attention(q, k, v)                                          # [B, H, Q, D]; k and v may have fewer heads
        rc.attention(q, k, v, layout="bqhd", causal=True)              # [B, Q, H, D]
        rc.attention(q, [k_prefix, k_new], [v_prefix, v_new], mask=rc.Mask(query_rank, key_rank, key_valid))
        rc.attention(q, k, v, q_offsets=[0, 7, 9], k_offsets=[0, 50, 80])           # packed: [N, H, D]
        rc.attention(q, k_cache, v_cache, lengths=lengths, append=(k_new, v_new))   # a cache, written in place

    q         [B, H, Q, D]: bfloat16, float16 or float32. D is 32 to 256, a multiple of 8, contiguous.
    k, v      [B, G, K, D], where G divides H; or lists of up to 4 such arrays, which are read as one sequence without
              being put together.
    causal    query i of Q sees no key behind its position, which is i + K - Q: the last query sees the last key.
    scale     default: 1 / sqrt(D).
    window    at most so many keys before and behind that position, both inclusive: a number for both, or (left, right),
              where None is any number.
    mask      a Mask, or a dense bool array: [Q, K] or [B or 1, H or 1, Q, K].
    q_offsets, k_offsets   [B + 1]: sequence b is packed at offsets[b] .. offsets[b + 1]. Lists will do.
    lengths   [B]: how many of the K keys are real; positions count from there. A list will do.
    append    (k, v), [B, G, N, D]: written into k and v behind `lengths` and seen. `lengths` stays as it is. Masks are
              as long as the cache, and no other array of the call may lie in its memory.
    layout    "bhqd", or "bqhd" for [B, Q, H, D] of q, k, v and the result.
    return_lse  lse, too: float32 [B, H, Q], packed [H, N]: the natural logarithm of each query's sum of exponentials.
    out       an array to write into: what would be returned, any strides with a contiguous D. Not for JAX.
    check     False leaves out what only the data can tell: that lengths and offsets fit.
    backend   "reference", "cpu", "cuda" or "torch"; default: by the device of the arrays.

    A query that sees nothing gives zeros, and lse = -inf. A key that no query may see may hold anything, NaN too, and
    reaches nothing. Gradients flow to q, k and v, but not with append. The same bits come on every run on one device;
    backends differ within the bound in docs/semantics.md. CUDA calls do not wait, but to bring lists and NumPy arrays
    to the GPU; what their checks find is raised by the next call or `rc.synchronize()`. `describe_attention` says which
    kernel a call takes; with ROBOCACHE_DEBUG=attention in the environment each call does, on stderr.
    """
    if lengths is not None:
        lengths = beside(q, lengths)
    if q_offsets is not None:
        q_offsets = beside(q, q_offsets)
    if k_offsets is not None:
        k_offsets = beside(q, k_offsets)
    if not _align._compiling():
        made = _core.attention(
            q,
            k,
            v,
            causal,
            scale,
            window,
            mask,
            q_offsets,
            k_offsets,
            lengths,
            append,
            layout,
            check,
            backend,
            return_lse,
            out,
        )
        if made is not NotImplemented:
            return made
    from robocache import _torch_attention

    arrays = {"q_offsets": q_offsets, "k_offsets": k_offsets, "lengths": lengths}
    options = (causal, scale, window, layout, check, backend)
    return _torch_attention.run(q, k, v, mask, arrays, append, options, return_lse, out)


def describe_attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: int | tuple[int | None, int | None] | None = None,
    mask: Any = None,
    q_offsets: Any = None,
    k_offsets: Any = None,
    lengths: Any = None,
    append: tuple[Any, Any] | None = None,
    layout: str = "bhqd",
    backend: str | None = None,
) -> str:
    """Which kernel `attention` would take for these arguments on this machine, and why, in one line."""
    arrays = {"q_offsets": beside(q, q_offsets), "k_offsets": beside(q, k_offsets), "lengths": beside(q, lengths)}
    given = (q, k, v, causal, scale, window, mask, *arrays.values(), append, layout, False, backend)
    said = _core.describe_attention(*given)
    if said is not NotImplemented:
        return said
    from robocache import _torch_attention

    return _torch_attention.describe(q, k, v, mask, arrays, append, (causal, scale, window, layout, False, backend))


def _last(queries: int, count: int) -> slice:
    if not 0 <= count <= queries:
        raise ValueError(f"Mask: last_queries({count}) of {queries} queries")
    return slice(queries - count, queries)


def _ranks(argument: str, ranks: Any) -> Any:
    """int64, which is torch's default, as int32."""
    if ranks is None or str(getattr(ranks, "dtype", "")).removeprefix("torch.") != "int64":
        return ranks
    library = _namespace(argument, ranks)
    least, most = library.iinfo(library.int32).min, library.iinfo(library.int32).max
    if not _align._compiling() and _on_host(ranks):
        outside = ranks[(ranks < least) | (ranks > most)]
        if len(outside) > 0:
            raise ValueError(f"Mask: {argument} has {int(outside[0])}, which does not fit int32; give smaller ranks")
    if library.__name__ == "torch":
        return ranks.clamp(least, most).to(library.int32)
    return library.clip(ranks, least, most).astype(library.int32)


def _on_host(array: Any) -> bool:
    """Whether its numbers can be looked at without waiting for a GPU."""
    kind = type(array)
    if kind.__module__.partition(".")[0] == "numpy":
        return True
    if kind.__module__.partition(".")[0] == "torch":
        return kind.__name__ in ("Tensor", "Parameter") and array.device.type == "cpu"  # others have no memory
    devices = array.devices() if hasattr(array, "devices") else ()  # JAX: `device` is a method before 0.4.31
    return any(device.platform == "cpu" for device in devices)


def _namespace(argument: str, array: Any) -> Any:
    """The functions of an array's library, under the names that NumPy gave them."""
    if _align._compiling():
        return sys.modules["torch"]
    name = type(array).__module__.partition(".")[0]
    if name in ("jax", "jaxlib"):
        return sys.modules["jax.numpy"]
    if name not in ("numpy", "torch", "cupy"):
        raise TypeError(f"Mask: {argument} is of type {_kind(array)}; expected a NumPy, CuPy or JAX array, or a tensor")
    return sys.modules[name]
