"""The methods of align in plain torch operations: a value from two samples, or four, and a weight."""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 2**63 - 1


# torch has few operations for these dtypes. Signed integers of the same width can be copied and ordered instead.
SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def linear(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
    return (a - w * a) + w * b


def angle(a: Tensor, b: Tensor, w: Tensor, turn: float) -> Tensor:
    # A tensor, not a number: to divide by a number, torch multiplies by its inverse on some devices, which moves the
    # half turn.
    period = torch.full((), turn, dtype=a.dtype, device=a.device)
    x = b - a
    return w * (x - period * torch.floor((x + period / 2) / period)) + a


def is_tiny(interval: Tensor, neighbour: Tensor) -> Tensor:
    """Whether an interval is under 1/16 of its neighbour. The tangent between them is then the longer one's slope."""
    return interval <= (neighbour - 1) >> 4


def cubic_steps(w: Tensor, h_before: Tensor, h: Tensor, h_after: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The Hermite cubic as steps between neighbours. Lengths are integers; 0 means a neighbour without weight."""
    u = 1.0 - w
    into_left, into_right = w * u * u, -(w * w * u)
    across = w * w * (3.0 - 2.0 * w)
    inner = h.to(w.dtype)

    def side(into: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        there, long = length > 0, is_tiny(h, length)
        safe = torch.where(there, length, 1).to(w.dtype)
        share = torch.where(long, inner / safe, inner * inner / (safe * (safe + inner)))
        own = torch.where(there, torch.where(long, 0.0, safe / (safe + inner)), 1.0)
        return torch.where(there, into * share, 0.0), into * own

    before, from_left = side(into_left, h_before)
    after, from_right = side(into_right, h_after)
    return before, across + from_left + from_right, after


def norm4(q: Tensor) -> Tensor:
    """The squared norm, summed in channel order. float32 squares are exact in float64: it has the engine's bits."""
    x, y, z, w = (q * q).split(1, -1)
    return root(((x + y) + z) + w)


def root(x: Tensor) -> Tensor:
    """The square root, rounded to nearest. torch's is an ulp off on some CPUs, which could select the other arc."""
    near = torch.sqrt(x)
    fixed = near.detach()
    usable = (fixed > 0) & torch.isfinite(fixed)
    safe = torch.where(usable, fixed, 1.0)
    return near + torch.where(usable, fused(-safe, safe, x.detach()) / (2.0 * safe), 0.0)


def two_sum(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The rounded sum, and its rounding error."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


def fused(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """x y + z with one rounding, for numbers far from overflow and underflow (Boldo and Melquiond, 2008: Emulation of
    FMA and correctly rounded sums)."""
    split = 134217729.0 if x.dtype == torch.float64 else 4097.0
    x_high, y_high = split * x - (split * x - x), split * y - (split * y - y)
    x_low, y_low = x - x_high, y - y_high
    product = x * y
    product_error = ((x_high * y_high - product) + x_high * y_low + x_low * y_high) + x_low * y_low
    low, low_error = two_sum(z, product_error)
    high, high_error = two_sum(product, low)
    rest, rest_error = two_sum(low_error, high_error)
    # Rounded to odd, to avoid double rounding.
    bits = rest.view(torch.int64 if x.dtype == torch.float64 else torch.int32)
    step = torch.where((rest_error > 0) == (rest > 0), 1, -1).to(bits.dtype)
    odd = torch.where((rest_error != 0) & (bits & 1 == 0), bits + step, bits).view(x.dtype)
    return high + odd


def turns_away(a: Tensor, b: Tensor) -> Tensor:
    """Whether the dot product is negative, summed as the engine does: at right angles, roundings decide."""
    a, b = a.detach(), b.detach()
    dot = a[..., :1] * b[..., :1]
    for k in range(1, 4):
        dot = fused(a[..., k : k + 1], b[..., k : k + 1], dot)
    return dot < 0


def is_real(norm: Tensor) -> Tensor:
    return (norm > 0) & torch.isfinite(norm)


def unit(q: Tensor) -> tuple[Tensor, Tensor]:
    """q normalised, and whether that was possible. If not, it is replaced before the division: its gradient is 0."""
    real = is_real(norm4(q.detach()))
    safe = torch.where(real, q, torch.ones_like(q))
    return safe / norm4(safe), real


def slerp(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
    """slerp of [..., groups, 4] with weights [..., 1, 1] above 0."""
    a, a_real = unit(a)
    b, b_real = unit(b)
    b = torch.where(turns_away(a, b), -b, b)
    dot = (a * b).sum(-1, keepdim=True)
    near = dot > 1.0 - (1e-9 if a.dtype == torch.float64 else 1e-6)
    straight, _ = unit(linear(a, b, w))
    theta = torch.acos(torch.where(near, 0.5, dot))  # avoid 1, where the arc cosine has an infinite slope
    whole = torch.sin(theta)
    arc = (torch.sin(theta * w) / whole) * b + (torch.sin(theta * (1.0 - w)) / whole) * a
    return torch.where(a_real & b_real, torch.where(near, straight, arc), torch.nan)


def unit_or_same(q: Tensor, wide: torch.dtype, dtype: torch.dtype) -> Tensor:
    """Quaternions [..., 4 n] normalised. One without a usable norm is copied."""
    groups = q.reshape(*q.shape[:-1], q.shape[-1] // 4, 4)
    made, real = unit(groups.to(wide))
    return torch.where(real, made.to(dtype), groups.to(dtype)).reshape(q.shape)


def order_key(values: Tensor, method: str) -> Tensor:
    """int64 keys that order values: NaN is the greatest, and -0 < +0."""
    if values.dtype in SIGNED:
        key = values.view(SIGNED[values.dtype]).to(torch.int64)
        lowest = torch.iinfo(SIGNED[values.dtype]).min
        key = key ^ lowest
    elif values.is_floating_point():
        bits = values.detach().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()])
        key = torch.where(bits < 0, bits ^ torch.iinfo(bits.dtype).max, bits).to(torch.int64)
    else:
        key = values.to(torch.int64)
    if method == "min":
        key = ~key
    return key.masked_fill(torch.isnan(values), LARGEST) if values.is_floating_point() else key
