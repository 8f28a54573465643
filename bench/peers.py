"""What people write in torch today for the work of align: searchsorted, gather, lerp. The rows that have a goal compare
with `linear` and `fuse`. values [B, S, ...], times [B, S], targets [B, T], all times of one float dtype."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def between(times: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The samples before and after each target, and the weight of the one after."""
    right = torch.searchsorted(times, targets, right=True).clamp_(1, times.shape[1] - 1)
    left = right - 1
    start, end = times.gather(1, left), times.gather(1, right)
    return left, right, ((targets - start) / (end - start).clamp_min(1e-8)).clamp_(0, 1)


def pick(values: Tensor, index: Tensor) -> Tensor:
    return values.gather(1, index.unsqueeze(-1).expand(-1, -1, values.shape[-1]))


def linear(values: Tensor, times: Tensor, targets: Tensor) -> Tensor:
    left, right, weight = between(times, targets)
    return torch.lerp(pick(values, left), pick(values, right), weight.unsqueeze(-1).to(values.dtype))


def hold(values: Tensor, times: Tensor, targets: Tensor) -> Tensor:
    index = (torch.searchsorted(times, targets, right=True) - 1).clamp_min_(0)
    return values[torch.arange(values.shape[0], device=values.device)[:, None], index]


def nearest(values: Tensor, times: Tensor, targets: Tensor) -> Tensor:
    left, right, weight = between(times, targets)
    return pick(values, torch.where(weight <= 0.5, left, right))


def slerp(a: Tensor, b: Tensor, weight: Tensor) -> Tensor:
    a, b = a / a.norm(dim=-1, keepdim=True), b / b.norm(dim=-1, keepdim=True)
    dot = (a * b).sum(-1, keepdim=True)
    b, dot = torch.where(dot < 0, -b, b), dot.abs().clamp_max(1)
    angle = torch.acos(dot)
    sine = torch.sin(angle)
    arc = (torch.sin((1 - weight) * angle) * a + torch.sin(weight * angle) * b) / sine.clamp_min(1e-12)
    chord = torch.lerp(a, b, weight)
    return torch.where(dot > 1 - 1e-6, chord / chord.norm(dim=-1, keepdim=True), arc)


def pose(values: Tensor, times: Tensor, targets: Tensor) -> Tensor:
    left, right, weight = between(times, targets)
    weight = weight.unsqueeze(-1).to(values.dtype)
    a, b = pick(values, left), pick(values, right)
    return torch.cat([torch.lerp(a[..., :3], b[..., :3], weight), slerp(a[..., 3:], b[..., 3:], weight)], -1)


def angle(values: Tensor, times: Tensor, targets: Tensor) -> Tensor:
    left, right, weight = between(times, targets)
    a, b = pick(values, left), pick(values, right)
    turn = 2 * math.pi
    difference = b - a
    difference = difference - turn * torch.floor((difference + math.pi) / turn)
    return a + weight.unsqueeze(-1).to(values.dtype) * difference


def cubic(values: Tensor, times: Tensor, targets: Tensor) -> Tensor:
    left, right, weight = between(times, targets)
    before, after = (left - 1).clamp_min(0), (right + 1).clamp_max(times.shape[1] - 1)
    p, a, b, q = (pick(values, index) for index in (before, left, right, after))
    stamps = [times.gather(1, index).unsqueeze(-1) for index in (before, left, right, after)]
    h0, h1, h2 = stamps[1] - stamps[0], stamps[2] - stamps[1], stamps[3] - stamps[2]
    slope = (b - a) / h1
    into = torch.where(h0 > 0, (h1 * (a - p) / h0.clamp_min(1e-12) + h0 * slope) / (h0 + h1), slope)
    out = torch.where(h2 > 0, (h2 * slope + h1 * (q - b) / h2.clamp_min(1e-12)) / (h1 + h2), slope)
    w = weight.unsqueeze(-1)
    u = 1 - w
    across = w * w * (3 - 2 * w)
    return (a + across * (b - a) + h1 * (w * u * u * into - w * w * u * out)).to(values.dtype)


def bins(times: Tensor, targets: Tensor) -> Tensor:
    """For each sample, the target whose bin (previous, target] it is in. Samples past the end go into one extra bin."""
    return torch.searchsorted(targets, times)


def mean(values: Tensor, times: Tensor, targets: Tensor) -> Tensor:
    rows, _, channels = values.shape
    index = bins(times, targets)
    sums = values.new_zeros(rows, targets.shape[1] + 1, channels)
    sums.scatter_add_(1, index.unsqueeze(-1).expand(-1, -1, channels), values)
    counts = values.new_zeros(rows, targets.shape[1] + 1)
    counts.scatter_add_(1, index, values.new_ones(times.shape))
    return (sums / counts.unsqueeze(-1))[:, :-1]


def maximum(values: Tensor, times: Tensor, targets: Tensor) -> Tensor:
    rows, _, channels = values.shape
    index = bins(times, targets).unsqueeze(-1).expand(-1, -1, channels)
    out = values.new_full((rows, targets.shape[1] + 1, channels), -math.inf)
    return out.scatter_reduce_(1, index, values, "amax")[:, :-1]


def arrived(values: Tensor, times: Tensor, arrivals: Tensor, targets: Tensor) -> Tensor:
    """The newest sample that had arrived; 0 before the first. Needs arrivals in order and later than their stamps."""
    index = torch.searchsorted(arrivals, targets, right=True) - 1
    return pick(values, index.clamp_min(0)).masked_fill((index < 0).unsqueeze(-1), 0.0)


def known(values: Tensor, times: Tensor, arrivals: Tensor, targets: Tensor, decisions: Tensor) -> Tensor:
    """Linear between the samples that had arrived by each row's decision, the last of them held.

    Needs arrivals in order, and a sample that had arrived.
    """
    count = torch.searchsorted(arrivals, decisions.unsqueeze(-1), right=True)
    upper = torch.searchsorted(times, targets, right=True)
    left, right = torch.minimum(upper, count) - 1, torch.minimum(upper, count - 1)
    before, after = times.gather(1, left.clamp_min(0)), times.gather(1, right)
    weight = ((targets - before) / (after - before)).masked_fill(right <= left, 0.0)
    return torch.lerp(pick(values, left.clamp_min(0)), pick(values, right), weight.unsqueeze(-1).to(values.dtype))


def packed(values: Tensor, times: Tensor, offsets: Tensor, rows: Tensor, targets: Tensor) -> Tensor:
    """Windows out of episodes of equal length. Only the times are copied for each window."""
    left, right, weight = between(times.view(offsets.shape[0] - 1, -1)[rows], targets)
    first = offsets[rows].unsqueeze(-1)
    return torch.lerp(values[left + first], values[right + first], weight.unsqueeze(-1).to(values.dtype))


def fuse(a: Tensor, a_times: Tensor, b: Tensor, b_times: Tensor, c: Tensor, c_times: Tensor, targets: Tensor) -> Tensor:
    return torch.cat([linear(a, a_times, targets), linear(b, b_times, targets), linear(c, c_times, targets)], -1)


def align(a: Tensor, a_times: Tensor, b: Tensor, b_times: Tensor, c: Tensor, c_times: Tensor, targets: Tensor) -> tuple:
    """A camera, poses and joints. Values only; ours also returns valid, age and index."""
    return hold(a, a_times, targets), pose(b, b_times, targets), linear(c, c_times, targets)
