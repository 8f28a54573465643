"""The portable backend `torch`: docs/semantics.md in plain torch operations, on whatever device the tensors are.

It serves devices that have no kernels of ours (mps, xpu, CUDA without a usable driver) and is what the other backends
are compared with where they cannot run. Beside `reference`:
- valid, age, index, and every value that is a copy (hold, nearest, last, max, min, edges, exact hits) are equal;
- linear, the angles and cubic are within 2, 2 and 4 ulp of the dtype at the row's largest sample (or half a turn);
- mean is within 2 ulp of the dtype at the row's largest sample (its sum, in float64, runs in another order);
- slerp is within 1e-12 (float64), 2e-7 (float32), or an ulp (half types); where two float64 quaternions are at right
  angles, roundings of their norms may choose the other of two equally long arcs;
- a NaN that is computed is NaN, with the bits that torch gives it.
Devices without float64 compute weights and slerp in float32, from differences that were taken in int64; slerp is then
within 2e-6. Gradients are torch's own. Nothing here waits for the device but the bins, which ask it once how many
samples they hold; the rest can be captured in a CUDA graph.

Nothing reads outside an array, whatever times, lengths, offsets and rows hold. _torch.py checks the arguments.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

BINS = ("mean", "max", "min", "last")
COPIES = ("hold", "nearest")
NO_AGE = -(2**63)
TIME_LIMIT = 2**62
LARGEST = 2**63 - 1
# Few operations know these dtypes; as signed integers of the same width they are copied and ordered as well.
SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


@dataclass
class StreamPlan:
    """A stream with every default filled in and every shape checked."""

    values: Tensor
    times: Tensor
    arrivals: Tensor | None
    lengths: Tensor | None
    offsets: Tensor | None
    rows: Tensor | None
    methods: list[tuple[str, int, int]]  # in channel order, none of them empty
    latency: int
    max_gap: int
    edge: str
    causal: bool
    on_nan: str
    dtype: torch.dtype  # of the output


@dataclass
class TargetPlan:
    """A list of times, or a timeline: `times` is None then."""

    times: Tensor | None
    start: int | Tensor = 0
    first: int = 0
    rate: float = 1.0
    count: int = 0


# ---- time


@functools.cache
def wide_type(device: torch.device) -> torch.dtype:
    """float64 where the device has it."""
    if device.type == "mps":
        return torch.float32
    if device.type == "xpu" and not getattr(torch.xpu.get_device_properties(device), "has_fp64", True):
        return torch.float32
    return torch.float64


def nanoseconds(stamps: Tensor) -> Tensor:
    """Stamps as int64. What is no time at all saturates, so that a search stays inside its array."""
    if not stamps.is_floating_point():
        return stamps.to(torch.int64)
    # Seconds times 1e9 need all the digits of a double: a device without it has the host convert.
    on = stamps.device if wide_type(stamps.device) == torch.float64 else torch.device("cpu")
    ns = torch.round(stamps.to(on).to(torch.float64) * 1e9)
    high, low = ~(ns < 2.0**62), ~(ns > -(2.0**62))
    kept = torch.where(high | low, 0.0, ns).to(torch.int64)
    return kept.masked_fill(low, -TIME_LIMIT).masked_fill(high, TIME_LIMIT).to(stamps.device)


def target_times(targets: TargetPlan, device: torch.device) -> tuple[Tensor, Tensor]:
    """tau [1 or B, T], and where the bin of each begins, the same shape."""
    if targets.times is not None:
        tau = nanoseconds(targets.times)
        tau = tau.reshape(1, -1) if tau.ndim == 1 else tau
        if tau.shape[1] == 0:
            return tau, tau
        if tau.shape[1] == 1:
            return tau, torch.full_like(tau, -TIME_LIMIT)
        return tau, torch.cat([tau[:, :1] - (tau[:, 1:2] - tau[:, :1]), tau[:, :-1]], dim=1)
    on = device if wide_type(device) == torch.float64 else torch.device("cpu")
    k = torch.arange(-1, targets.count, device=on, dtype=torch.float64) + targets.first
    steps = torch.round(k * 1e9 / targets.rate).to(torch.int64).to(device).reshape(1, -1)
    starts = targets.start
    if isinstance(starts, Tensor):
        starts = nanoseconds(starts).to(device).reshape(-1, 1)  # one number may be the host's
    tau = steps + starts
    return tau[:, 1:], tau[:, :-1]


# ---- rows


class Rows:
    """The samples that each output row reads: `count` from `first` on, along one flat axis that all rows share."""

    def __init__(self, stream: StreamPlan) -> None:
        times = nanoseconds(stream.times)
        arrivals = None if stream.arrivals is None else nanoseconds(stream.arrivals)
        device = times.device
        packed = stream.offsets is not None
        batched = packed or times.ndim == 2
        samples = times.shape[-1]
        self.segments = 1
        if stream.offsets is not None:
            self.segments = stream.offsets.shape[0] - 1
        elif batched:
            self.segments = times.shape[0]
        if stream.rows is not None:
            segment = stream.rows.to(torch.int64).clamp(0, max(self.segments - 1, 0))
        else:
            segment = torch.arange(self.segments, device=device) if batched else torch.zeros(1, device=device).long()

        if self.segments == 0:
            first = count = torch.zeros_like(segment)
        elif stream.offsets is not None:
            offsets = stream.offsets.to(torch.int64).clamp(0, samples)
            first = offsets[segment]
            count = (offsets[segment + 1] - first).clamp(min=0)
        else:
            first = segment * samples
            count = torch.full_like(segment, samples)
            if stream.lengths is not None:
                count = stream.lengths.to(torch.int64).clamp(0, samples)[segment]
        self.first, self.count = first.reshape(-1, 1), count.reshape(-1, 1)

        # torch's own search is the fastest, but knows only rows that are side by side and of one length.
        self.grid: Tensor | None = None
        if not packed and stream.rows is None and times.numel() > 0:
            self.grid = times.reshape(self.segments, samples)
            if stream.lengths is not None:
                padding = torch.arange(samples, device=device) >= self.count
                self.grid = self.grid.masked_fill(padding, LARGEST)
            self.grid = self.grid.contiguous()

        self.times = self.filled(times.reshape(-1))
        self.arrivals = None if arrivals is None else self.filled(arrivals.reshape(-1))
        self.steps = samples.bit_length()

    @staticmethod
    def filled(flat: Tensor) -> Tensor:
        """Never empty, so that a masked read has something to read. cat, because gradients flow through it."""
        return flat if flat.shape[0] > 0 else torch.cat([flat, flat.new_zeros((1, *flat.shape[1:]))])

    def read(self, flat: Tensor, sample: Tensor) -> Tensor:
        return flat[(self.first + sample).clamp(0, flat.shape[0] - 1)]

    def at(self, sample: Tensor) -> Tensor:
        return self.read(self.times, sample)

    def upper_bound(self, key: Tensor) -> Tensor:
        """How many stamps of the row are <= key."""
        if self.grid is not None and (self.segments == 1 or self.segments == key.shape[0]):
            stamps = self.grid[0] if self.segments == 1 else self.grid
            return torch.minimum(torch.searchsorted(stamps, key.contiguous(), right=True), self.count)
        low = torch.zeros_like(key)
        high = self.count.expand_as(key)
        for _ in range(self.steps):
            middle = (low + high) >> 1
            below = (low < high) & (self.at(middle) <= key)
            low = torch.where(below, middle + 1, low)
            high = torch.where(below, high, middle)
        return low

    @functools.cached_property
    def arrival_tree(self) -> list[Tensor]:
        """Level k holds the earliest arrival of every 2^k samples; every level but the last has an even size."""
        assert self.arrivals is not None
        levels = [self.arrivals]
        while levels[-1].shape[0] > 1:
            level = levels[-1]
            if level.shape[0] % 2 == 1:
                level = levels[-1] = torch.cat([level, level.new_full((1,), LARGEST)])
            levels.append(torch.minimum(level[0::2], level[1::2]))
        return levels

    def last_arrived(self, end: Tensor, tau: Tensor) -> Tensor:
        """The last of the samples before `end` that arrived at or before tau, or -1. Arrivals may be in any order."""
        tree = self.arrival_tree
        boundary = self.first + end
        node = torch.full_like(boundary, -1)
        height = torch.full_like(boundary, -1)
        for k, level in enumerate(tree):  # up, until a block of samples that holds one
            block = boundary - 1
            hit = (node < 0) & (boundary % 2 == 1) & (level[block.clamp(0, level.shape[0] - 1)] <= tau)
            node = torch.where(hit, block, node)
            height = torch.where(hit, k, height)
            boundary = boundary >> 1
        for k in range(len(tree) - 2, -1, -1):  # down to the last sample in it
            right = node * 2 + 1
            here = torch.where(tree[k][right.clamp(0, tree[k].shape[0] - 1)] <= tau, right, right - 1)
            node = torch.where(height > k, here, node)
        return torch.where(node >= self.first, node - self.first, -1)


# ---- where a target falls


class Places:
    """Where every target falls among the stamps; kernel.h's Location. All tensors are [B, T]."""

    def __init__(self, stream: StreamPlan, rows: Rows, tau: Tensor) -> None:
        x = tau + stream.latency
        no_arrivals = rows.arrivals is None
        self.upper = rows.upper_bound(torch.minimum(tau, x) if stream.causal and no_arrivals else x)
        i = self.upper - 1
        if stream.causal:
            if not no_arrivals:
                i = rows.last_arrived(self.upper, tau)
            self.nothing = i < 0
            self.since = x - rows.at(i.clamp(min=0))
            self.valid = ~self.nothing & (self.since <= stream.max_gap)
            self.between = torch.zeros_like(self.valid)
            self.i = self.j = self.nearest = i
            self.span = torch.ones_like(i)
            return
        self.nothing = (rows.count == 0).expand_as(i)
        left = rows.at(i.clamp(min=0))
        self.since = x - left
        inside = (i >= 0) & (self.since != 0) & (i < rows.count - 1)
        right = rows.at(i + 1)
        self.i = i
        self.j = torch.where(inside, rows.upper_bound(right) - 1, i)
        self.span = torch.where(inside, right - left, 1)
        self.between = inside & (self.span <= stream.max_gap)
        self.valid = self.between | ((i >= 0) & (self.since == 0))
        later = inside & (self.since > self.span - self.since)
        self.nearest = torch.where(later, self.j, i.clamp(min=0))
        self.nearest = torch.where(self.nothing, -1, self.nearest)

    def clamped(self, method: str) -> Tensor:
        """The sample that an invalid value is clamped to, or -1. hold takes a later one only before the first."""
        if method != "hold":
            return self.nearest
        return torch.where(self.nothing, -1, self.i.clamp(min=0))

    def weight(self, wide: torch.dtype) -> Tensor:
        return torch.where(self.between, self.since.to(wide) / self.span.to(wide), 0.0)

    @property
    def age(self) -> Tensor:
        return torch.where(self.nothing, NO_AGE, self.since)


class Bins:
    """Every sample of every bin (tau_previous, tau], one after the other."""

    def __init__(self, stream: StreamPlan, rows: Rows, places: Places, tau: Tensor, previous: Tensor) -> None:
        shape = places.upper.shape
        begin = torch.minimum(rows.upper_bound((previous + stream.latency).expand(shape)), places.upper)
        before = begin - 1
        if not stream.causal:
            before = torch.where(places.nothing, -1, before.clamp(min=0))
        elif rows.arrivals is not None:
            before = rows.last_arrived(begin, tau)
        self.before = before  # what an empty bin is clamped to
        sizes = (places.upper - begin).reshape(-1)
        self.number = sizes.shape[0]
        self.bin = torch.repeat_interleave(torch.arange(self.number, device=sizes.device), sizes)
        skipped = (rows.first + begin).reshape(-1) - (torch.cumsum(sizes, 0) - sizes)
        self.sample = torch.arange(self.bin.shape[0], device=sizes.device) + skipped[self.bin]  # along the flat axis
        self.arrived: Tensor | None = None
        if stream.causal and rows.arrivals is not None:
            self.arrived = rows.arrivals[self.sample] <= tau.expand(shape).reshape(-1)[self.bin]


# ---- methods


def linear(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
    return (a - w * a) + w * b


def angle(a: Tensor, b: Tensor, w: Tensor, turn: float) -> Tensor:
    # A tensor, not a number: torch divides by a number by multiplying with its inverse on some devices, and that moves
    # the half turn.
    period = torch.full((), turn, dtype=a.dtype, device=a.device)
    x = b - a
    return w * (x - period * torch.floor((x + period / 2) / period)) + a


def is_tiny(interval: Tensor, neighbour: Tensor) -> Tensor:
    """Under 1/16 of its neighbour: the tangent between the two is then the slope of the longer one."""
    return interval <= (neighbour - 1) >> 4


def cubic_steps(w: Tensor, h_before: Tensor, h: Tensor, h_after: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The Hermite cubic as steps between neighbours. Lengths are integers; 0 stands for a neighbour without weight."""
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
    """In channel order: of float32 values the squares are exact in float64, and the sum has the engine's bits."""
    x, y, z, w = (q * q).split(1, -1)
    return root(((x + y) + z) + w)


def root(x: Tensor) -> Tensor:
    """The square root, rounded to nearest: torch's is an ulp off on some CPUs, and that would decide an arc."""
    near = torch.sqrt(x)
    fixed = near.detach()
    usable = (fixed > 0) & torch.isfinite(fixed)
    safe = torch.where(usable, fixed, 1.0)
    return near + torch.where(usable, fused(-safe, safe, x.detach()) / (2.0 * safe), 0.0)


def two_sum(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The rounded sum, and what rounding took from it."""
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
    # Rounded to odd, so that the last rounding is not a second one.
    bits = rest.view(torch.int64 if x.dtype == torch.float64 else torch.int32)
    step = torch.where((rest_error > 0) == (rest > 0), 1, -1).to(bits.dtype)
    odd = torch.where((rest_error != 0) & (bits & 1 == 0), bits + step, bits).view(x.dtype)
    return high + odd


def turns_away(a: Tensor, b: Tensor) -> Tensor:
    """Whether the dot product is negative, summed as the engine sums it: at right angles roundings decide."""
    a, b = a.detach(), b.detach()
    dot = a[..., :1] * b[..., :1]
    for k in range(1, 4):
        dot = fused(a[..., k : k + 1], b[..., k : k + 1], dot)
    return dot < 0


def is_real(norm: Tensor) -> Tensor:
    return (norm > 0) & torch.isfinite(norm)


def unit(q: Tensor) -> tuple[Tensor, Tensor]:
    """q normalised, and whether it could be. What could not is replaced before the division: its gradient is 0."""
    real = is_real(norm4(q.detach()))
    safe = torch.where(real, q, torch.ones_like(q))
    return safe / norm4(safe), real


def slerp(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
    """Of [..., groups, 4] with w [..., 1, 1], which is above 0."""
    a, a_real = unit(a)
    b, b_real = unit(b)
    b = torch.where(turns_away(a, b), -b, b)
    dot = (a * b).sum(-1, keepdim=True)
    near = dot > 1.0 - (1e-9 if a.dtype == torch.float64 else 1e-6)
    straight, _ = unit(linear(a, b, w))
    theta = torch.acos(torch.where(near, 0.5, dot))  # the arc cosine has no slope at 1: keep away from it
    whole = torch.sin(theta)
    arc = (torch.sin(theta * w) / whole) * b + (torch.sin(theta * (1.0 - w)) / whole) * a
    return torch.where(a_real & b_real, torch.where(near, straight, arc), torch.nan)


def unit_or_same(q: Tensor, wide: torch.dtype, dtype: torch.dtype) -> Tensor:
    """Quaternions [..., 4 n] made unit; one that has no norm to divide by is copied."""
    groups = q.reshape(*q.shape[:-1], q.shape[-1] // 4, 4)
    made, real = unit(groups.to(wide))
    return torch.where(real, made.to(dtype), groups.to(dtype)).reshape(q.shape)


def order_key(values: Tensor, method: str) -> Tensor:
    """int64 keys: the greatest wins. NaN wins, -0 < +0."""
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


# ---- one method range


class Range:
    """What one method makes of its channels: validity and index [B, T], values [B, T, channels]."""

    def __init__(
        self, stream: StreamPlan, rows: Rows, places: Places, bins: Bins | None, flat: Tensor, method: str
    ) -> None:
        self.stream, self.rows, self.places, self.bins = stream, rows, places, bins
        self.flat, self.method = flat, method
        self.wide = wide_type(flat.device)
        self.compute = torch.float64 if flat.dtype == torch.float64 else torch.float32
        clamped = stream.edge == "clamp"
        if method in BINS:
            assert bins is not None
            self.counted = self.count_mask(bins)
            counts = torch.zeros(bins.number, dtype=torch.int64, device=flat.device)
            self.counts = counts.index_add(0, bins.bin, self.counted.to(torch.int64))
            self.valid = (self.counts > 0).reshape(places.i.shape)
            source = bins.before if clamped else torch.full_like(places.i, -1)
            copied = self.last_counted(bins) if method == "last" else torch.full_like(places.i, -1)
            self.index = torch.where(self.valid, copied if method == "last" else places.i, source)
            self.source = torch.where(self.valid, copied, source)
            return
        self.weight = places.weight(self.wide)
        # The weight that the values are blended with decides what is a copy: rounded, it may be 0 or 1.
        self.blend = self.weight.to(self.compute)
        self.steps = self.cubic_taps() if method == "cubic" and not stream.causal else None
        copied = self.copied()
        self.valid = places.valid
        if stream.on_nan == "skip":
            self.valid = self.valid & self.taps_finite(copied)
        picked = places.nearest if method == "nearest" else places.i
        source = places.clamped(method) if clamped else torch.full_like(places.i, -1)
        self.index = torch.where(self.valid, picked, source)
        self.source = torch.where(self.valid, copied, source)

    # -- which samples

    def copied(self) -> Tensor:
        """The sample that a valid value copies bit for bit (slerp: makes unit); -1 where it mixes several."""
        places = self.places
        if self.method == "nearest":
            return places.nearest
        if self.method == "hold" or self.stream.causal:
            return places.i
        computed = torch.full_like(places.i, -1)
        if self.method == "slerp":
            return torch.where(places.between, computed, places.i)
        if self.method in ("linear", "cubic"):
            computed = torch.where(self.blend == 1, places.j, computed)
        return torch.where(self.blend == 0, places.i, computed)

    def finite(self) -> Tensor:
        """Whether each sample is finite in all channels of the range; bool [N]."""
        if not self.flat.is_floating_point():
            return torch.ones(self.flat.shape[0], dtype=torch.bool, device=self.flat.device)
        flat = self.flat.detach()
        finite = torch.isfinite(flat).all(dim=1)
        if self.method == "slerp":
            finite &= (
                is_real(norm4(flat.to(self.wide).reshape(flat.shape[0], flat.shape[1] // 4, 4))).all(dim=1).squeeze(-1)
            )
        return finite

    def taps_finite(self, copied: Tensor) -> Tensor:
        finite, places = self.finite(), self.places

        def ask(sample: Tensor) -> Tensor:
            return self.rows.read(finite, sample)

        one = ask(torch.where(copied >= 0, copied, places.i))
        both = ask(places.i) & ask(places.j)
        if self.steps is not None:
            both = both & ask(self.steps[0]) & ask(self.steps[1])
        return torch.where((copied < 0) & places.between, both, one)

    def count_mask(self, bins: Bins) -> Tensor:
        mask = torch.ones_like(bins.bin, dtype=torch.bool) if bins.arrived is None else bins.arrived
        return mask & self.finite()[bins.sample] if self.stream.on_nan == "skip" else mask

    def last_counted(self, bins: Bins) -> Tensor:
        nobody = torch.full((bins.number,), -1, dtype=torch.int64, device=self.flat.device)
        flat = nobody.scatter_reduce(0, bins.bin, torch.where(self.counted, bins.sample, -1), "amax")
        return flat.reshape(self.places.i.shape) - self.rows.first

    def cubic_taps(self) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor]]:
        """The outer samples (i and j themselves where those have no weight) and the steps."""
        rows, places, max_gap = self.rows, self.places, self.stream.max_gap
        left = rows.at(places.i.clamp(min=0))
        before = rows.upper_bound(left - 1) - 1  # the last sample of the stamp before
        h_before = left - rows.at(before)
        there = places.between & (before >= 0) & (h_before <= max_gap) & ~is_tiny(h_before, places.span)
        p = torch.where(there, before, places.i)
        h_before = torch.where(there, h_before, 0)
        right, beyond = rows.at(places.j.clamp(min=0)), rows.at(places.j + 1)
        h_after = beyond - right
        there = places.between & (places.j + 1 < rows.count) & (h_after <= max_gap) & ~is_tiny(h_after, places.span)
        q = torch.where(there, rows.upper_bound(beyond) - 1, places.j)
        h_after = torch.where(there, h_after, 0)
        return p, q, cubic_steps(self.weight, h_before, places.span, h_after)

    # -- values

    def take(self, sample: Tensor) -> Tensor:
        return self.rows.read(self.flat, sample.clamp(min=0))

    def values(self) -> Tensor:
        dtype = self.stream.dtype
        copy = (self.source >= 0).unsqueeze(-1)
        if self.flat.dtype in SIGNED:
            out = self.rows.read(self.flat.view(SIGNED[self.flat.dtype]), self.source.clamp(min=0))
            out = torch.where(copy, out, 0).view(self.flat.dtype).to(dtype)
            return self.with_bins(out)
        taken = self.take(self.source)
        if self.flat.is_floating_point():
            out = unit_or_same(taken, self.wide, dtype) if self.method == "slerp" else taken.to(dtype)
            # A number of the dtype: a vector of NaN that is converted to bfloat16 has other bits on some CPUs.
            out = torch.where(copy, out, out.new_full((), torch.nan if self.stream.edge == "nan" else 0.0))
        else:  # before it is converted: some torch releases choose among no unsigned integers
            out = torch.where(copy, taken, torch.zeros_like(taken)).to(dtype)
        if self.method in BINS:
            return self.with_bins(out)
        if self.method in COPIES or self.stream.causal:
            return out
        return torch.where((self.valid & (self.source < 0)).unsqueeze(-1), self.computed().to(dtype), out)

    def computed(self) -> Tensor:
        places = self.places
        a, b = self.take(places.i), self.take(places.j)
        if self.method == "slerp":
            groups = (*a.shape[:-1], a.shape[-1] // 4, 4)
            a, b = a.to(self.wide).reshape(groups), b.to(self.wide).reshape(groups)
            return slerp(a, b, self.weight[..., None, None]).flatten(-2)
        a, b, w = a.to(self.compute), b.to(self.compute), self.blend.unsqueeze(-1)
        if self.method == "linear":
            return linear(a, b, w)
        if self.steps is not None:
            p, q, steps = self.steps
            before, across, after = (step.to(self.compute).unsqueeze(-1) for step in steps)
            outer_a, outer_b = self.take(p).to(self.compute), self.take(q).to(self.compute)
            # A step of weight 0 is left out: it may be infinite.
            from_left = torch.where(before == 0, -0.0, before * (a - outer_a))
            from_right = torch.where(after == 0, -0.0, after * (outer_b - b))
            return from_left + (across * (b - a) + (from_right + a))
        return angle(a, b, w, 6.283185307179586 if self.method == "angle" else 360.0)

    def with_bins(self, out: Tensor) -> Tensor:
        bins = self.bins
        if self.method not in ("mean", "max", "min") or bins is None or bins.sample.shape[0] == 0 or out.numel() == 0:
            return out
        made = self.mean(bins) if self.method == "mean" else self.picked(bins)
        made = made.to(out.dtype).reshape(out.shape)
        if out.dtype in SIGNED:
            signed = SIGNED[out.dtype]
            return torch.where(self.valid.unsqueeze(-1), made.view(signed), out.view(signed)).view(out.dtype)
        return torch.where(self.valid.unsqueeze(-1), made, out)

    def mean(self, bins: Bins) -> Tensor:
        # From -0.0, the one number that changes nothing it is added to.
        each = torch.where(self.counted.unsqueeze(-1), self.flat[bins.sample].to(self.wide), -0.0)
        total = each.new_full((bins.number, each.shape[1]), -0.0).index_add(0, bins.bin, each)
        return total / self.counts.clamp(min=1).to(self.wide).unsqueeze(-1)

    def picked(self, bins: Bins) -> Tensor:
        number, channels = bins.number, self.flat.shape[1]
        elements = bins.sample.shape[0]
        signed = self.flat.view(SIGNED[self.flat.dtype]) if self.flat.dtype in SIGNED else self.flat

        def restored(taken: Tensor) -> Tensor:  # a view of any dtype has no gradient, of the same one neither
            return taken.view(self.flat.dtype) if self.flat.dtype in SIGNED else taken

        position = torch.arange(elements, device=self.flat.device)
        key = order_key(restored(signed[bins.sample]), self.method)
        key = torch.where(self.counted.unsqueeze(-1), key, -LARGEST - 1)
        into = bins.bin.unsqueeze(-1).expand(elements, channels)
        best = key.new_full((number, channels), -LARGEST - 1).scatter_reduce(0, into, key, "amax")
        wins = self.counted.unsqueeze(-1) & (key == best[bins.bin])
        earliest = torch.where(wins, position.unsqueeze(-1), elements)
        winner = key.new_full((number, channels), elements).scatter_reduce(0, into, earliest, "amin")
        sample = bins.sample[winner.clamp(max=elements - 1)]
        return restored(signed[sample, torch.arange(channels, device=sample.device)])


# ---- the whole


def align(stream: StreamPlan, targets: TargetPlan, batch: int | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """values [B, T, ...], valid, age, index [B, T]; without the first dimension where `batch` is None."""
    device = stream.values.device
    tau, previous = target_times(targets, device)
    rows = Rows(stream)
    number = 1 if batch is None else batch
    tau, previous = tau.expand(number, -1), previous.expand(number, -1)
    places = Places(stream, rows, tau)
    bins = None
    if any(method in BINS for method, _, _ in stream.methods):
        bins = Bins(stream, rows, places, tau, previous)

    leading = stream.times.ndim
    trailing = stream.values.shape[leading:]
    channels = 1
    for size in trailing:
        channels *= size
    samples = 1
    for size in stream.values.shape[:leading]:
        samples *= size
    flat = Rows.filled(stream.values.reshape(samples, channels))

    ranges = [Range(stream, rows, places, bins, flat[:, begin:end], method) for method, begin, end in stream.methods]
    valid = functools.reduce(torch.logical_and, [range.valid for range in ranges])
    parts = [range.values() for range in ranges]
    values = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    lead = (tau.shape[1],) if batch is None else (number, tau.shape[1])
    marks = [mark.reshape(lead).contiguous() for mark in (valid, places.age, ranges[0].index)]
    return values.reshape(*lead, *trailing).contiguous(), marks[0], marks[1], marks[2]
