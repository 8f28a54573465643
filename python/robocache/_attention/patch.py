"""attention inside models: replaces torch's scaled_dot_product_attention, and registers with transformers."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from robocache._attention.attention import Mask, attention
from robocache._versions import import_torch

# Where ours is faster in bench/results/h200.json: with few queries, for any number of keys; with more queries, up to
# this many scores. (ACT's encoder has 11.6 million scores and takes 0.8 times as long as torch's fastest kernel.)
FEW_QUERIES, SMALL = 128, 1 << 24  # SMALL: batch x heads x queries x keys

_lock = threading.Lock()
_inside: list[bool] = []  # the `always` of each active attention_patch; the last one applies
_original: Callable[..., Any]


@contextlib.contextmanager
def attention_patch(*, always: bool = False) -> Iterator[None]:
    """A context manager in which torch's scaled_dot_product_attention calls `attention` where that is faster.

    Calls that `attention` cannot serve go to torch as before: dropout, float masks, unsupported head dims. `is_causal`
    keeps torch's meaning: it counts from the first query and the first key. Gradients, torch.compile and `enable_gqa`
    work. If a model of transformers has been imported, `register_transformers` is called too.

    The patch holds for all threads of the process until the last thread that entered has left. Modules that imported
    the function itself (`from torch.nn.functional import scaled_dot_product_attention`) are not affected.

    Args:
        always: Also where torch is faster, and on the CPU: for tests.

    Yields:
        None.

    Examples:
        >>> with rc.attention_patch():
        ...     actions = policy(observation)
    """
    global _original
    functional = import_torch("attention_patch").nn.functional
    if "transformers.modeling_utils" in sys.modules:  # importing it here would take seconds
        with contextlib.suppress(ImportError):  # older releases have no such interface
            register_transformers()
    with _lock:
        if not _inside:
            _original = functional.scaled_dot_product_attention
            functional.scaled_dot_product_attention = _patched
        _inside.append(always)
    try:
        yield
    finally:
        with _lock:
            del _inside[-1 - _inside[::-1].index(always)]  # the last one with this value, whichever thread made it
            if not _inside:
                functional.scaled_dot_product_attention = _original


def _patched(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    if not can_serve(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa) or not (
        _inside[-1:] == [True] or is_faster(query, key, value, attn_mask)
    ):
        options = {"attn_mask": attn_mask, "dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
        if enable_gqa:  # torch 2.5 and newer
            options["enable_gqa"] = True
        return _original(query, key, value, **options)
    return serve(query, key, value, attn_mask, is_causal, scale)


def can_serve(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> bool:
    """Whether `attention` computes what torch would. If not, torch serves the call and reports what is wrong."""
    import torch

    if dropout_p != 0 or (scale is not None and not 0 < abs(scale) < math.inf):
        return False
    if any(part.is_nested or part.ndim != 4 for part in (query, key, value)) or key.shape != value.shape:
        return False
    # Not `in range(...)`: torch.compile may not know the number.
    if not 32 <= query.shape[-1] <= 256 or query.shape[-1] % 8 != 0:
        return False
    if query.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return False
    kind = query.device.type
    if torch.is_autocast_enabled(kind) and query.dtype != torch.get_autocast_dtype(kind):  # torch would convert it
        return False
    if any(part.dtype != query.dtype or part.device != query.device for part in (key, value)):
        return False
    if query.shape[0] != key.shape[0] or query.shape[-1] != key.shape[-1] or key.shape[1] == 0:
        return False
    if query.shape[1] != key.shape[1] and not (enable_gqa and query.shape[1] % key.shape[1] == 0):
        return False
    if any(part.stride(-1) != 1 for part in (query, key, value)):
        return False
    if attn_mask is None:
        return True
    wanted = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    return (
        attn_mask.dtype == torch.bool
        and not is_causal
        and attn_mask.ndim in (2, 4)
        and all(size in (1, full) for size, full in zip(attn_mask.shape, wanted[-attn_mask.ndim :], strict=True))
    )


def is_faster(query: Any, key: Any, value: Any, attn_mask: Any) -> bool:
    """Whether ours takes less time than the best of torch's kernels, as bench/attention.py measures."""
    import torch

    if query.device.type != "cuda" or query.dtype == torch.float32:
        return False
    if torch.is_grad_enabled() and any(part.requires_grad for part in (query, key, value)):
        return False
    if attn_mask is not None and not is_padding(attn_mask):
        return False  # not measured
    work = query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2]
    return query.shape[2] <= FEW_QUERIES or work <= SMALL


def is_padding(attn_mask: Any) -> bool:
    return attn_mask.ndim == 4 and attn_mask.shape[1] == 1 and attn_mask.shape[2] == 1


def serve(
    query: Any, key: Any, value: Any, attn_mask: Any, is_causal: bool, scale: float | None, heads_last: bool = False
) -> Any:
    """Calls `attention` on [B, H, Q, D]; with heads_last the result is [B, Q, H, D]."""
    queries, keys = query.shape[2], key.shape[2]
    causal, window = is_causal, None
    # is_causal counts from the top left. The branches make torch.compile decide about dynamic sizes: torch 2.6 has no
    # bool() of such a comparison.
    if is_causal and queries < keys:  # no query sees the keys after that
        key, value = key[:, :, :queries], value[:, :, :queries]
    elif is_causal and queries > keys:
        causal, window = False, (None, queries - keys)
    mask: Any = attn_mask
    if mask is not None:
        if is_padding(mask):
            mask = Mask(key_valid=mask[:, 0, 0].expand(query.shape[0], keys))
        else:
            mask = mask.expand(*mask.shape[:-2], queries, keys)
    layout = "bhqd"
    if heads_last:
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        layout = "bqhd"
    return attention(query, key, value, causal=causal, scale=scale, window=window, mask=mask, layout=layout)


def register_transformers() -> None:
    """Registers `attention` with transformers: `model.set_attn_implementation("robocache")` then selects it.

    Masks are made as for "sdpa". What `attention` cannot serve (dropout, float masks) runs as "sdpa" does.
    """
    from transformers import AttentionInterface, AttentionMaskInterface  # type: ignore[import-not-found, unused-ignore]
    from transformers.masking_utils import sdpa_mask  # type: ignore[import-not-found, unused-ignore]

    AttentionInterface.register("robocache", _for_transformers)
    AttentionMaskInterface.register("robocache", sdpa_mask)


def _for_transformers(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **options: Any,
) -> tuple[Any, None]:
    """attention in the form that transformers calls: [B, H, Q, D] in, [B, Q, H, D] out."""
    if options.get("s_aux") is not None:  # "sdpa" ignores it silently
        raise ValueError(
            "robocache: this model has attention sinks (s_aux), which attention does not support; use eager"
        )
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = query.shape[2] > 1 and attention_mask is None and causal
    special = any(options.get(name) is not None for name in ("softcap", "position_bias", "cache"))
    if special or not can_serve(query, key, value, attention_mask, dropout, causal, scaling, True):
        from transformers.integrations.sdpa_attention import (  # type: ignore[import-not-found, unused-ignore]
            sdpa_attention_forward,
        )

        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, is_causal, **options)
    return serve(query, key, value, attention_mask, causal, scaling, heads_last=True), None
