"""Attention for the shapes and masks of robot policies: attention, Mask, describe_attention.

Nothing here computes. The engine (robocache._core) serves arrays that have memory. For everything else it returns
NotImplemented, and robocache._torch.attention serves the call: gradients, tensors without memory, other devices. While
torch.compile traces, robocache._torch.attention serves every call.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from robocache import _core
from robocache._align import tracing
from robocache._align.stream import kind_of, shape_of
from robocache._arrays import beside


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Mask:
    """What a query may see, as data that grows with the number of tokens and not with its square.

    All parts that are given must allow a key, and so must the call's `causal` and `window`. A part without its batch
    dimension serves all sequences. For packed sequences the parts are [N].

    Args:
        query_rank: int32 or int64 [B, Q]. Query i sees key j if key_rank[j] <= query_rank[i]. int64 ranks may have any
            size: they become int32 when the Mask is made. If one does not fit, each rank is replaced by its position
            among all ranks of the Mask, which keeps their order. On a GPU and under torch.compile int64 costs a sort.
        key_rank: int32 or int64 [B, K]. Needed with `query_rank`, and only with it.
        key_valid: bool [B, K]. Keys that are not valid may hold anything, NaN too.
        dense: bool [Q, K] or [B or 1, H or 1, Q, K], for everything else.

    Examples:
        >>> rc.Mask(key_valid=padding)                   # keys that are real
        >>> rc.Mask(query_rank, key_rank)                # prefix-LM, block-causal
        >>> rc.Mask.from_openpi(pad_masks, att_masks)    # the masks of openpi and LeRobot's pi0
        >>> rc.Mask.from_openpi(pad_masks, att_masks).last_queries(51)
    """

    query_rank: Any = None
    key_rank: Any = None
    key_valid: Any = None
    dense: Any = None

    def __post_init__(self) -> None:
        query_rank, key_rank = _ranks(self.query_rank, self.key_rank)
        object.__setattr__(self, "query_rank", query_rank)
        object.__setattr__(self, "key_rank", key_rank)

    @staticmethod
    def from_openpi(pad_masks: Any, att_masks: Any) -> Mask:
        """The mask that openpi's `make_att_2d_masks(pad_masks, att_masks)` writes out: all tokens are queries and keys.

        Args:
            pad_masks: bool [B, N]: tokens that are real. The others see nothing and are not seen.
            att_masks: [B, N], [1, N] or [N]: 1 where a token begins a new block. Earlier blocks do not see it.

        Returns:
            The mask.
        """
        library = _namespace("pad_masks", pad_masks)
        if _namespace("att_masks", att_masks) is not library:
            raise TypeError(
                f"Mask: pad_masks is of type {kind_of(pad_masks)} and att_masks of type {kind_of(att_masks)}"
            )
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
        """The mask of the last queries over the same keys: a suffix that reads a cached prefix.

        Args:
            count: The number of queries.

        Returns:
            The mask.
        """
        return Mask(
            None if self.query_rank is None else self.query_rank[..., _last(self.query_rank.shape[-1], count)],
            self.key_rank,
            self.key_valid,
            None if self.dense is None else self.dense[..., _last(self.dense.shape[-2], count), :],
        )

    def __repr__(self) -> str:
        fields = ((name, getattr(self, name)) for name in self.__slots__)
        return f"Mask({', '.join(f'{name}={shape_of(array)}' for name, array in fields if array is not None)})"


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
    """softmax(scale * q k^T) v in one pass.

    A query that sees nothing gives zeros and lse = -inf. A key that no query may see may hold anything, NaN too,
    without effect. Gradients reach q, k and v, but not with `append`. Every run on one device gives the same bits;
    backends differ within the bound in docs/semantics.md. CUDA calls do not wait, except to copy lists and NumPy arrays
    to the GPU. What their checks find is raised by the next call or by `rc.synchronize()`. `describe_attention` tells
    which kernel a call takes; with ROBOCACHE_DEBUG=attention in the environment every call prints it on stderr.

    Args:
        q: [B, H, Q, D]: bfloat16, float16 or float32. D is 32 to 256, a multiple of 8, and contiguous.
        k: [B, G, K, D], where G divides H; or a list of up to 4 such arrays, read as one sequence without a copy.
        v: Like `k`.
        causal: Query i sees no key after its position, which is i + K - Q: the last query sees the last key.
        scale: Default: 1 / sqrt(D).
        window: The number of keys before and after that position that are seen, both inclusive: one number for both, or
            (left, right), where None means no limit.
        mask: A `Mask`, or a dense bool array: [Q, K] or [B or 1, H or 1, Q, K].
        q_offsets: [B + 1], for packed sequences [N, H, D]: sequence b is at `offsets[b] .. offsets[b + 1]`. May be a
            list.
        k_offsets: The same for the keys.
        lengths: [B]: how many of the K keys are real; positions count from there. May be a list.
        append: (k, v), [B, G, N, D]: written into k and v after `lengths`, and seen. `lengths` is not changed. Masks
            are as long as the cache, and no other array of the call may share its memory.
        layout: "bhqd", or "bqhd" for [B, Q, H, D] of q, k, v and the result.
        return_lse: Return lse too.
        out: An array to write into, shaped like the result, any strides with a contiguous D. Not for JAX.
        check: False skips the checks that must read the data: that lengths and offsets fit.
        backend: "reference", "cpu", "cuda" or "torch". Default: by the device of the arrays.

    Returns:
        An array shaped like q; with `return_lse` (out, lse), where lse is float32 [B, H, Q] (packed [H, N]), the
        natural logarithm of each query's sum of exponentials.

    Examples:
        >>> rc.attention(q, k, v)                                   # [B, H, Q, D]; k and v may have fewer heads
        >>> rc.attention(q, k, v, layout="bqhd", causal=True)       # [B, Q, H, D]
        >>> rc.attention(q, [k_prefix, k_new], [v_prefix, v_new], mask=rc.Mask(query_rank, key_rank, key_valid))
        >>> rc.attention(q, k, v, q_offsets=[0, 7, 9], k_offsets=[0, 50, 80])           # packed: [N, H, D]
        >>> rc.attention(q, k_cache, v_cache, lengths=lengths, append=(k_new, v_new))   # a cache, written in place
    """
    if lengths is not None:
        lengths = beside(q, lengths)
    if q_offsets is not None:
        q_offsets = beside(q, q_offsets)
    if k_offsets is not None:
        k_offsets = beside(q, k_offsets)
    if not tracing.compiling():
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
    from robocache._torch import attention as torch_attention

    arrays = {"q_offsets": q_offsets, "k_offsets": k_offsets, "lengths": lengths}
    options = (causal, scale, window, layout, check, backend)
    return torch_attention.run(q, k, v, mask, arrays, append, options, return_lse, out)


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
    """Which kernel `attention` would take for these arguments on this machine, and why.

    Args:
        q: As in `attention`.
        k: As in `attention`.
        v: As in `attention`.
        causal: As in `attention`.
        scale: As in `attention`.
        window: As in `attention`.
        mask: As in `attention`.
        q_offsets: As in `attention`.
        k_offsets: As in `attention`.
        lengths: As in `attention`.
        append: As in `attention`.
        layout: As in `attention`.
        backend: As in `attention`.

    Returns:
        One line of text.
    """
    arrays = {"q_offsets": beside(q, q_offsets), "k_offsets": beside(q, k_offsets), "lengths": beside(q, lengths)}
    given = (q, k, v, causal, scale, window, mask, *arrays.values(), append, layout, False, backend)
    said = _core.describe_attention(*given)
    if said is not NotImplemented:
        return said
    from robocache._torch import attention as torch_attention

    return torch_attention.describe(q, k, v, mask, arrays, append, (causal, scale, window, layout, False, backend))


def _last(queries: int, count: int) -> slice:
    if not 0 <= count <= queries:
        raise ValueError(f"Mask: last_queries({count}) of {queries} queries")
    return slice(queries - count, queries)


def _ranks(query: Any, key: Any) -> tuple[Any, Any]:
    """Both ranks as int32 with the same order, for int64 ranks of any size (torch's default dtype).

    No GPU synchronisation.
    """
    named = {"query_rank": query, "key_rank": key}
    given = {argument: ranks for argument, ranks in named.items() if ranks is not None}
    dtypes = [str(getattr(ranks, "dtype", "")).removeprefix("torch.") for ranks in given.values()]
    for argument, dtype in zip(given, dtypes, strict=True):
        if dtype.isalnum() and dtype not in ("int32", "int64"):  # the engine explains the rest: lists, big-endian
            raise TypeError(f"Mask: {argument} is {dtype}; it must be int32 or int64")
    if "int64" not in dtypes:
        return query, key
    library = _namespace(*next(iter(given.items())))
    if len(given) == 2:
        if _namespace("key_rank", key) is not library:
            raise TypeError(f"Mask: query_rank is of type {kind_of(query)} and key_rank of type {kind_of(key)}")
        if library.__name__ == "torch" and query.device != key.device:
            raise ValueError(f"Mask: query_rank is on {query.device} and key_rank on {key.device}")
    narrow = dict(zip(given, _narrowed(library, list(given.values())), strict=True))
    return narrow.get("query_rank"), narrow.get("key_rank")


def _narrowed(library: Any, ranks: list[Any]) -> list[Any]:
    """int64 ranks as int32: unchanged if all fit, otherwise each rank's position among all of them.

    Masks only compare ranks, and positions compare as their ranks do.
    """
    is_torch = library.__name__ == "torch"
    least, most = library.iinfo(library.int32).min, library.iinfo(library.int32).max - 1  # the kernels' highest rank
    known = not tracing.compiling() and all(_on_host(part) for part in ranks)
    if known and not any(bool(((part < least) | (part > most)).any()) for part in ranks):
        return [part.to(library.int32) if is_torch else part.astype(library.int32) for part in ranks]
    if is_torch:
        wide = [part.to(library.int64).contiguous() for part in ranks]
        order = library.cat([part.reshape(-1) for part in wide]).sort().values
        places = [library.searchsorted(order, part, out_int32=True) for part in wide]
    else:
        wide = [part.astype(library.int64) for part in ranks]
        order = library.sort(library.concatenate([part.reshape(-1) for part in wide]))
        places = [library.searchsorted(order, part).astype(library.int32) for part in wide]
    if known:
        return places
    fit = ((order >= least) & (order <= most)).all()
    narrow = [part.to(library.int32) if is_torch else part.astype(library.int32) for part in wide]
    return [library.where(fit, part, place) for part, place in zip(narrow, places, strict=True)]


def _on_host(array: Any) -> bool:
    """Whether the values can be read without waiting for a GPU."""
    kind = type(array)
    if kind.__module__.partition(".")[0] == "numpy":
        return True
    if kind.__module__.partition(".")[0] == "torch":
        return kind.__name__ in ("Tensor", "Parameter") and array.device.type == "cpu"  # others have no memory
    devices = array.devices() if hasattr(array, "devices") else ()  # JAX: `device` is a method before 0.4.31
    return any(device.platform == "cpu" for device in devices)


def _namespace(argument: str, array: Any) -> Any:
    """The functions of an array's library, by their NumPy names."""
    if tracing.compiling():
        return sys.modules["torch"]
    name = type(array).__module__.partition(".")[0]
    if name in ("jax", "jaxlib"):
        return sys.modules["jax.numpy"]
    if name not in ("numpy", "torch", "cupy"):
        raise TypeError(
            f"Mask: {argument} is of type {kind_of(array)}; expected a NumPy, CuPy or JAX array, or a tensor"
        )
    return sys.modules[name]
