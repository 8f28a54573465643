"""The portable backend of attention: docs/semantics.md in plain torch operations, on any device.

It computes in float32 with every score in memory, and its gradients are torch's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MOST_RANK = 2**31 - 2  # the kernels mark keys that no query sees with 2**31 - 1


@dataclass
class Plan:
    """q [B, H, Q, D], keys and values [B, G, K, D] of all segments; packed sequences are one batch. -1: no limit."""

    q: Tensor
    keys: Tensor
    values: Tensor
    scale: float
    causal: bool
    left: int
    right: int
    query_rank: Tensor | None = None
    key_rank: Tensor | None = None
    key_valid: Tensor | None = None
    dense: Tensor | None = None
    q_offsets: Tensor | None = None
    k_offsets: Tensor | None = None
    lengths: Tensor | None = None


def attend(plan: Plan) -> tuple[Tensor, Tensor]:
    """out, in q's dtype, and lse [B, H, Q]."""
    device = plan.q.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        with torch.autocast(device, enabled=False):  # autocast would multiply in a half type
            return attend(plan)
    batch, heads, queries, _ = plan.q.shape
    groups, keys = plan.keys.shape[1:3]
    shared = (groups, heads // max(groups, 1))
    seen = seen_by(plan).expand(batch, heads, queries, keys).unflatten(1, shared)
    # Keys that no query sees, and queries that see no key, may hold NaN. They become 0 here, because 0 * NaN is NaN.
    reached, sees = seen.any(3).any(2)[..., None], seen.any(-1, keepdim=True)
    k = torch.where(reached, plan.keys.float(), 0)[:, :, None]
    v = torch.where(reached, plan.values.float(), 0)[:, :, None]
    q = torch.where(sees, plan.q.float().unflatten(1, shared), 0)
    scores = torch.where(seen, (q * plan.scale) @ k.mT, -torch.inf)
    scores = torch.where(sees, scores, 0)
    weights = torch.where(sees, scores.softmax(-1), 0)
    lse = torch.where(sees[..., 0], scores.logsumexp(-1), -torch.inf)
    return (weights @ v).flatten(1, 2).to(plan.q.dtype), lse.flatten(1, 2)


def seen_by(plan: Plan) -> Tensor:
    """What each query sees: bool [B or 1, H or 1, Q, K]."""
    queries, keys = plan.q.shape[2], plan.keys.shape[2]
    i = torch.arange(queries, device=plan.q.device)
    j = torch.arange(keys, device=plan.q.device)
    if plan.q_offsets is not None and plan.k_offsets is not None:
        # Positions count from the end of their sequence, where its diagonal ends. Rows outside sequences see nothing.
        mine, position, inside = in_sequences(plan.q_offsets, i)
        theirs, j, key_inside = in_sequences(plan.k_offsets, j)
        position = position[:, None]
        seen = ((mine[:, None] == theirs) & inside[:, None] & key_inside)[None, None]
    elif plan.lengths is not None:
        length = plan.lengths.long()[:, None, None, None]
        position = i[:, None] + length - queries
        seen = j < length
    else:
        position = i[:, None] + keys - queries
        seen = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=plan.q.device)
    distance = j - position
    if plan.causal:
        seen = seen & (distance <= 0)
    if plan.left >= 0:
        seen = seen & (distance >= -plan.left)
    if plan.right >= 0:
        seen = seen & (distance <= plan.right)
    if plan.key_valid is not None:
        seen = seen & batched(plan.key_valid)[:, :, None].bool()
    if plan.query_rank is not None and plan.key_rank is not None:
        key_rank, query_rank = (batched(rank).clamp(max=MOST_RANK) for rank in (plan.key_rank, plan.query_rank))
        seen = seen & (key_rank[:, :, None] <= query_rank[..., None])
    if plan.dense is not None:
        seen = seen & plan.dense.bool()
    return seen


def batched(per_place: Tensor) -> Tensor:
    """[N] or [B, N] to [B or 1, 1, N]."""
    return (per_place if per_place.ndim == 2 else per_place[None])[:, None]


def in_sequences(offsets: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For each row: its sequence, its position counted from the sequence's end, and whether it is in a sequence."""
    offsets = torch.cat([offsets, offsets[-1:]]).long()
    sequence = (torch.searchsorted(offsets, places, right=True) - 1).clamp(0, offsets.shape[0] - 2)
    from_end = places - offsets[sequence + 1]
    return sequence, from_end, (places >= offsets[0]) & (from_end < 0)


def write(cache: Tensor, new: Tensor, lengths: Tensor) -> None:
    """Writes [B, G, N, D] into [B, G, K, D] after `lengths`."""
    batch, _, count, _ = new.shape
    first = lengths.long().clamp(0, max(cache.shape[2] - count, 0))
    places = first[:, None] + torch.arange(count, device=new.device)
    rows = torch.arange(batch, device=new.device)[:, None]
    cache.transpose(1, 2)[rows, places] = new.transpose(1, 2)


def gradients(plan: Plan, wanted: Sequence[Tensor], given: Sequence[Tensor | None]) -> list[Tensor]:
    """The gradients of `wanted`, leaves that the plan was made from, given those of out and lse."""
    pairs: list[tuple[Any, Any]] = [pair for pair in zip(attend(plan), given, strict=True) if pair[1] is not None]
    made = torch.autograd.grad([a for a, _ in pairs], wanted, [b for _, b in pairs], allow_unused=True)
    return [torch.zeros_like(leaf) if part is None else part for leaf, part in zip(wanted, made, strict=True)]
