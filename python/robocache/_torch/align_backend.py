"""The portable backend `torch`: docs/semantics.md in plain torch operations, on whatever device the tensors are.

It serves devices that have no kernels of ours (mps, xpu, CUDA without a usable driver) and is what the other backends
are compared with where they cannot run. Compared with `reference`:
- valid, age, index, and every value that is a copy (hold, nearest, last, max, min, edges, exact hits) are equal;
- linear, the angles and cubic are within 2, 2 and 4 ulp of the dtype at the row's largest sample (or half a turn);
- mean is within 2 ulp of the dtype at the row's largest sample (its sum, in float64, runs in another order);
- slerp is within 1e-12 (float64), 2e-7 (float32), or an ulp (half types); where two float64 quaternions are at right
  angles, roundings of their norms may choose the other of two equally long arcs;
- a NaN that is computed is NaN, with the bits that torch gives it.
Devices without float64 compute weights and slerp in float32, from differences that were taken in int64; slerp is then
within 2e-6. Gradients are torch's own. Only the bins wait for the device, once, to learn how many samples they hold.
The rest can be captured in a CUDA graph.

No read is out of bounds, whatever times, lengths, offsets and rows hold. _torch/align.py checks the arguments.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from robocache._limits import TIME_LIMIT
from robocache._torch.align_methods import (
    LARGEST,
    SIGNED,
    angle,
    cubic_steps,
    is_real,
    is_tiny,
    linear,
    norm4,
    order_key,
    slerp,
    unit_or_same,
)

BINS = ("mean", "max", "min", "last")
COPIES = ("hold", "nearest")
NO_AGE = -(2**63)


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
    as_of: Tensor | int | None
    on_nan: str
    dtype: torch.dtype  # of the output


@dataclass
class TargetPlan:
    """A list of times, or a timeline, for which `times` is None."""

    times: Tensor | None
    start: int | Tensor = 0
    first: int = 0
    rate: float = 1.0
    count: int = 0


# ---- time


@functools.cache
def wide_type(device: torch.device) -> torch.dtype:
    """float64 if the device has it, otherwise float32."""
    if device.type == "mps":
        return torch.float32
    if device.type == "xpu" and not getattr(torch.xpu.get_device_properties(device), "has_fp64", True):
        return torch.float32
    return torch.float64


def nanoseconds(stamps: Tensor) -> Tensor:
    """Stamps as int64 nanoseconds. NaN and huge values saturate, so that a search stays inside its array."""
    if not stamps.is_floating_point():
        return stamps.to(torch.int64)
    # Seconds times 1e9 need float64: for a device without it the host converts.
    on = stamps.device if wide_type(stamps.device) == torch.float64 else torch.device("cpu")
    ns = torch.round(stamps.to(on).to(torch.float64) * 1e9)
    high, low = ~(ns < 2.0**62), ~(ns > -(2.0**62))
    kept = torch.where(high | low, 0.0, ns).to(torch.int64)
    return kept.masked_fill(low, -TIME_LIMIT).masked_fill(high, TIME_LIMIT).to(stamps.device)


def target_times(targets: TargetPlan, device: torch.device) -> tuple[Tensor, Tensor]:
    """The targets tau [1 or B, T], and where the bin of each target begins, in the same shape."""
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
        starts = nanoseconds(starts).to(device).reshape(-1, 1)  # a single number may be on the host
    tau = steps + starts
    return tau[:, 1:], tau[:, :-1]


def deadlines(stream: StreamPlan, tau: Tensor) -> Tensor:
    """By when a sample must have arrived to exist for each target: its row's decision, or the target itself."""
    if stream.as_of is None:
        return tau
    if not isinstance(stream.as_of, Tensor):
        return torch.full_like(tau, stream.as_of)
    return nanoseconds(stream.as_of).to(tau.device).reshape(-1, 1).expand_as(tau)


# ---- rows


class Rows:
    """The samples that each output row reads: `count` samples from `first` on, on a flat axis shared by all rows."""

    def __init__(self, stream: StreamPlan) -> None:
        times = nanoseconds(stream.times)
        arrivals = None if stream.arrivals is None else nanoseconds(stream.arrivals)
        if stream.as_of is not None and arrivals is None:
            arrivals = times
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

        # torch's own search is the fastest, but needs contiguous rows of equal length.
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
        """At least one element, so that masked reads have something to read. cat, because gradients flow through it."""
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

    def _arrived(self, boundary: Tensor, deadline: Tensor, forward: bool) -> Tensor:
        """The first sample from `boundary` on along the flat axis, or the last before it, that arrived by the deadline.

        -1 if there is none. Arrivals may be in any order.
        """
        tree = self.arrival_tree
        node = torch.full_like(boundary, -1)
        height = torch.full_like(boundary, -1)
        for k, level in enumerate(tree):  # up, until a block of samples that holds one
            block = boundary if forward else boundary - 1
            alone = (boundary % 2 == 1) | (forward and k == len(tree) - 1)
            there = level[block.clamp(0, level.shape[0] - 1)] <= deadline
            hit = (node < 0) & alone & (block < level.shape[0]) & there
            node = torch.where(hit, block, node)
            height = torch.where(hit, k, height)
            boundary = (boundary + (1 if forward else 0)) >> 1
        for k in range(len(tree) - 2, -1, -1):  # down to the sample in it
            near, far = (node * 2, node * 2 + 1) if forward else (node * 2 + 1, node * 2)
            here = torch.where(tree[k][near.clamp(0, tree[k].shape[0] - 1)] <= deadline, near, far)
            node = torch.where(height > k, here, node)
        return node

    def last_arrived(self, end: Tensor, deadline: Tensor) -> Tensor:
        """The last of the samples before `end` that arrived by the deadline, or -1."""
        node = self._arrived(self.first + end, deadline, forward=False)
        return torch.where(node >= self.first, node - self.first, -1)

    def first_arrived(self, begin: Tensor, deadline: Tensor) -> Tensor:
        """The first of the samples from `begin` on that arrived by the deadline, or -1."""
        node = self._arrived(self.first + begin, deadline, forward=True)
        return torch.where((node >= 0) & (node < self.first + self.count), node - self.first, -1)


# ---- where a target falls


class Places:
    """Where every target falls among the stamps, as Location in the C++ code. All tensors are [B, T]."""

    def __init__(self, stream: StreamPlan, rows: Rows, tau: Tensor, deadline: Tensor) -> None:
        x = tau + stream.latency
        self.deadline = deadline
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
            self.i = self.j = self.nearest = self.held = i
            self.span = torch.ones_like(i)
            return
        if stream.as_of is None:
            self.nothing = (rows.count == 0).expand_as(i)
            first, after, known = torch.zeros_like(i), i + 1, i < rows.count - 1
        else:
            i = rows.last_arrived(self.upper, deadline)
            first = after = rows.first_arrived(self.upper, deadline)
            known = after >= 0
            self.nothing = (i < 0) & ~known
        left = rows.at(torch.where(i >= 0, i, first))
        self.since = x - left
        exact = (i >= 0) & (self.since == 0)
        inside = (i >= 0) & ~exact & known
        right = rows.at(after)
        self.i = i
        self.j = torch.where(inside, self.last_equal(stream, rows, right), i)
        self.span = torch.where(inside, right - left, 1)
        self.between = inside & (self.span <= stream.max_gap)
        self.valid = self.between | exact
        if stream.as_of is not None:  # the last sample that exists is held
            self.valid = self.valid | ((i >= 0) & ~known & (self.since <= stream.max_gap))
        later = inside & (self.since > self.span - self.since)
        self.held = torch.where(self.nothing, -1, torch.where(i >= 0, i, first))
        self.nearest = torch.where(later, self.j, self.held)

    def last_equal(self, stream: StreamPlan, rows: Rows, stamp: Tensor) -> Tensor:
        """The last sample with this stamp that exists."""
        upper = rows.upper_bound(stamp)
        return upper - 1 if stream.as_of is None else rows.last_arrived(upper, self.deadline)

    def clamped(self, method: str) -> Tensor:
        """The sample that an invalid value is clamped to, or -1. hold uses a later one only before the first sample."""
        return self.held if method == "hold" else self.nearest

    def weight(self, wide: torch.dtype) -> Tensor:
        return torch.where(self.between, self.since.to(wide) / self.span.to(wide), 0.0)

    @property
    def age(self) -> Tensor:
        return torch.where(self.nothing, NO_AGE, self.since)


class Bins:
    """All samples of all bins (tau_previous, tau], as one list."""

    def __init__(self, stream: StreamPlan, rows: Rows, places: Places, previous: Tensor) -> None:
        shape = places.upper.shape
        begin = torch.minimum(rows.upper_bound((previous + stream.latency).expand(shape)), places.upper)
        before = begin - 1
        if stream.as_of is not None:
            before = rows.last_arrived(begin, places.deadline)
            before = torch.where(before >= 0, before, rows.first_arrived(begin, places.deadline))
        elif not stream.causal:
            before = torch.where(places.nothing, -1, before.clamp(min=0))
        elif rows.arrivals is not None:
            before = rows.last_arrived(begin, places.deadline)
        self.before = before  # the sample that an empty bin is clamped to
        sizes = (places.upper - begin).reshape(-1)
        self.number = sizes.shape[0]
        self.bin = torch.repeat_interleave(torch.arange(self.number, device=sizes.device), sizes)
        skipped = (rows.first + begin).reshape(-1) - (torch.cumsum(sizes, 0) - sizes)
        self.sample = torch.arange(self.bin.shape[0], device=sizes.device) + skipped[self.bin]  # along the flat axis
        self.arrived: Tensor | None = None
        if (stream.causal or stream.as_of is not None) and rows.arrivals is not None:
            self.arrived = rows.arrivals[self.sample] <= places.deadline.expand(shape).reshape(-1)[self.bin]


# ---- one method range


class Range:
    """The result of one method for its channels: validity and index [B, T], values [B, T, channels]."""

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
        # The rounded weight decides whether a value is a copy: it may be 0 or 1.
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
        """The sample that a valid value copies bit for bit (slerp: normalised); -1 if it mixes several samples."""
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
        """The outer samples (i and j if they have no weight) and the steps."""
        rows, places, max_gap = self.rows, self.places, self.stream.max_gap
        left = rows.at(places.i.clamp(min=0))
        before = places.last_equal(self.stream, rows, left - 1)  # the last sample with the previous stamp
        h_before = left - rows.at(before)
        there = places.between & (before >= 0) & (h_before <= max_gap) & ~is_tiny(h_before, places.span)
        p = torch.where(there, before, places.i)
        h_before = torch.where(there, h_before, 0)
        after = places.j + 1
        if self.stream.as_of is not None:
            after = rows.first_arrived(after, places.deadline)
        right, beyond = rows.at(places.j.clamp(min=0)), rows.at(after)
        h_after = beyond - right
        there = (
            places.between & (after >= 0) & (after < rows.count) & (h_after <= max_gap) & ~is_tiny(h_after, places.span)
        )
        q = torch.where(there, places.last_equal(self.stream, rows, beyond), places.j)
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
            # NaN in the dtype itself: converting a vector of NaN to bfloat16 gives other bits on some CPUs.
            out = torch.where(copy, out, out.new_full((), torch.nan if self.stream.edge == "nan" else 0.0))
        else:  # before the conversion: some torch releases have no `where` for unsigned integers
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
            # A step with weight 0 is skipped: it may be infinite.
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
        # The sum starts at -0.0, the only number that changes nothing it is added to.
        each = torch.where(self.counted.unsqueeze(-1), self.flat[bins.sample].to(self.wide), -0.0)
        total = each.new_full((bins.number, each.shape[1]), -0.0).index_add(0, bins.bin, each)
        return total / self.counts.clamp(min=1).to(self.wide).unsqueeze(-1)

    def picked(self, bins: Bins) -> Tensor:
        number, channels = bins.number, self.flat.shape[1]
        elements = bins.sample.shape[0]
        signed = self.flat.view(SIGNED[self.flat.dtype]) if self.flat.dtype in SIGNED else self.flat

        def restored(taken: Tensor) -> Tensor:  # views as another dtype have no gradient
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
    """values [B, T, ...], valid, age, index [B, T]; without the first dimension if `batch` is None."""
    device = stream.values.device
    tau, previous = target_times(targets, device)
    rows = Rows(stream)
    number = 1 if batch is None else batch
    tau, previous = tau.expand(number, -1), previous.expand(number, -1)
    places = Places(stream, rows, tau, deadlines(stream, tau))
    bins = None
    if any(method in BINS for method, _, _ in stream.methods):
        bins = Bins(stream, rows, places, previous)

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
