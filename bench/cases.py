"""All cases: the rows that have a goal, sizes that show how the cost grows, and one row for each further kind of work.
A case makes its data, its call, its peers' call, and its floor in bytes. The cases of align are defined here."""

from __future__ import annotations

import dataclasses
import fnmatch
import importlib
import math
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from bench import peers
from bench.attention import ATTENTION_CASES, ActionCase, AttentionCase
from bench.builds import BUILD_CASES, BuildCase
from bench.frames import FRAMES_CASES, FramesCase
from bench.goals import GOALS, Row
from bench.image import IMAGE_CASES, ImageCase
from bench.loader import LOADER_CASES, ConstructionCase, LoaderCase
from bench.loader_cuda import LOADER_CUDA_CASES, LoaderCudaCase
from bench.logs import LOG_CASES, McapCase
from bench.messages import MESSAGE_CASES, MessageCase
from bench.report_command import REPORT_CASES
from bench.sparse import SPARSE_CASES, DownsampleCase, SparseCase
from bench.timing import Call
from bench.tsdf import TSDF_CASES, TsdfCase
from bench.view import VIEW_CASES, ViewCase
from bench.voxels import VOXEL_CASES, VoxelCase

SECOND = 1_000_000_000  # nanoseconds; every recording here lasts one

# The ‖ours - truth‖ / ‖truth‖ of one rounding to the dtype. Integers are copied, so they must be equal.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 4e-3}
# The peers compute weights from float32 seconds, and in bfloat16 where the values are.
PEER_TOLERANCE = 3e-2
# In longer rows float32 seconds cannot tell neighbouring stamps apart, so the peers get float64.
MOST_FLOAT32_SAMPLES = 1 << 15

CAUSAL = "causal"  # a contender: ours, with causal in place of as_of
SHORT_NAMES = {"f32": torch.float32, "bf16": torch.bfloat16, "u8": torch.uint8}


@dataclasses.dataclass(frozen=True)
class StreamShape:
    """One stream of a case: `rows` recordings of `samples` samples; None: as many rows as the case has."""

    samples: int
    channels: tuple[int, ...]
    dtype: torch.dtype
    method: Any = None
    arrivals: bool = False
    rows: int | None = None


@dataclasses.dataclass
class StreamData:
    values: Tensor
    times: Tensor  # int64 nanoseconds [B, S]
    arrivals: Tensor | None = None


@dataclasses.dataclass
class Inputs:
    streams: list[StreamData]
    targets: Tensor  # int64 nanoseconds [B, T]
    offsets: Tensor | None = None
    rows: Tensor | None = None
    decisions: Tensor | None = None  # int64 nanoseconds [B]
    upstream: Tensor | None = None  # d loss / d output


@dataclasses.dataclass(frozen=True, eq=False)
class Case(Row):
    op: str  # the function that is called
    name: str
    rows: int
    targets: int
    streams: tuple[StreamShape, ...]
    peer: Callable[..., Any]
    causal: bool = False
    as_of: bool = False  # each row decides in the second half of its second
    packed: bool = False  # the recordings lie end to end; `rows` says which one feeds an output row
    gradient: bool = False
    construct: bool = False  # the Streams are built inside the timed call
    inside: bool = False  # no target is at the last sample, where the peers choose another branch of angles and slerp

    # ---- data

    def make(self, device: str, seed: int = 0) -> Inputs:
        generator = torch.Generator(device).manual_seed(seed)
        streams = [self._stream(shape, device, generator) for shape in self.streams]
        inputs = Inputs(streams, stamps(self.rows, self.targets, device, generator))
        if self.inside:
            inputs.targets = inputs.targets * 999 // 1000
        if self.packed:
            (stream,) = streams
            episodes, samples = stream.times.shape
            stream.values, stream.times = stream.values.flatten(0, 1), stream.times.flatten()
            inputs.offsets = torch.arange(episodes + 1, device=device) * samples
            inputs.rows = torch.randint(0, episodes, (self.rows,), device=device, generator=generator)
            # A window is a tenth of its episode, anywhere in it.
            begin = torch.rand(self.rows, 1, device=device, generator=generator, dtype=torch.float64) * (0.9 * SECOND)
            inputs.targets = inputs.targets // 10 + begin.long()
        if self.as_of:
            share = torch.rand(self.rows, device=device, generator=generator, dtype=torch.float64)
            inputs.decisions = (SECOND * (0.5 + 0.5 * share)).long()
        if self.gradient:
            streams[0].values.requires_grad_()
            shape = (self.rows, self.targets, *self.streams[0].channels)
            inputs.upstream = noise(shape, self.streams[0].dtype, device, generator)
        return inputs

    def _stream(self, shape: StreamShape, device: str, generator: torch.Generator) -> StreamData:
        rows = shape.rows or self.rows
        values = noise((rows, shape.samples, *shape.channels), shape.dtype, device, generator)
        if shape.method == "angle":  # a joint that turns on and on, reported within half a turn
            values = torch.remainder((0.3 * values).cumsum(1) + math.pi, 2 * math.pi) - math.pi
        times = stamps(rows, shape.samples, device, generator)
        if not shape.arrivals:
            return StreamData(values, times)
        # Each sample arrives 5 to 15 ms later, and none overtakes another.
        delay = 5e6 + 10e6 * torch.rand(times.shape, device=device, generator=generator, dtype=torch.float64)
        return StreamData(values, times, (times + delay.long()).cummax(1).values)

    # ---- calls

    def ours(self, rc: ModuleType, inputs: Inputs) -> Call:
        """The call that is timed."""
        targets = inputs.targets
        if self.op == "resample":
            (stream,), (shape,) = inputs.streams, self.streams
            named = {"method": shape.method, "offsets": inputs.offsets, "rows": inputs.rows}
            options = {name: value for name, value in named.items() if value is not None}
            values, times = stream.values, stream.times
            if self.gradient:
                upstream = inputs.upstream
                return lambda: torch.autograd.grad(rc.resample(values, times, targets, **options), values, upstream)[0]
            return lambda: rc.resample(values, times, targets, **options)

        def build() -> dict[str, Any]:
            return {
                f"stream{k}": rc.Stream(data.values, data.times, method=shape.method, arrivals=data.arrivals)
                for k, (shape, data) in enumerate(zip(self.streams, inputs.streams, strict=True))
            }

        function = getattr(rc, self.op)
        if self.construct:
            return lambda: function(build(), targets)
        streams = build()
        if self.causal:
            return lambda: function(streams, targets, causal=True)
        if self.as_of:
            return lambda: function(streams, targets, as_of=inputs.decisions)
        return lambda: function(streams, targets)

    def without_launch(self, rc: ModuleType, inputs: Inputs) -> Call:
        """A plain `align` or `fuse` that launches no kernel, because it has no targets and no checks."""
        streams = {f"stream{k}": rc.Stream(data.values, data.times) for k, data in enumerate(inputs.streams)}
        function, targets = getattr(rc, self.op), inputs.targets[:, :0]
        return lambda: function(streams, targets, check=False)

    def peers(self, device: str) -> tuple[str, ...]:
        return (*super().peers(device), CAUSAL) if self.as_of else super().peers(device)

    def other_call(self, who: str, inputs: Inputs) -> Call:
        """Ours, with what had arrived by each target: its figures say what as_of costs beside it."""
        causal = dataclasses.replace(self, as_of=False, causal=True)
        return causal.ours(importlib.import_module("robocache"), inputs)

    def compared(self, who: str, results: list[Any]) -> list[Any]:
        """causal has other values, so only their shape is compared."""
        return [torch.zeros(result.shape) for result in results] if who == CAUSAL else results

    def results(self, returned: Any) -> list[Tensor]:
        """The values in what a call returned, ours or a peer's."""
        if isinstance(returned, Tensor):
            return [returned]
        inner = getattr(returned, "values", None)
        if inner is None:
            return [result for part in returned for result in self.results(part)]
        return self.results(list(inner()) if callable(inner) else inner)

    def peer_call(self, inputs: Inputs, function: Callable[..., Any] | None = None) -> Call:
        """What torch users write, on the same data with times in seconds. `function`: `peer`, compiled or not."""
        wide = max(shape.samples for shape in self.streams) > MOST_FLOAT32_SAMPLES
        dtype = torch.float64 if wide else torch.float32
        return self._call(function or self.peer, self._arguments(inputs, lambda ns: (ns.double() * 1e-9).to(dtype)))

    def truth(self, inputs: Inputs) -> list[Tensor]:
        """The peer's formula in float64 on the times in nanoseconds, which float64 holds exactly."""
        arguments = self._arguments(inputs, lambda times: times.double())
        exact = [x.detach().double() if x.is_floating_point() else x for x in arguments]
        if self.gradient:
            exact[0].requires_grad_()
        return self.results(self._call(self.peer, exact)())

    def _call(self, function: Callable[..., Any], arguments: Sequence[Tensor]) -> Call:
        if not self.gradient:
            return lambda: function(*arguments)
        *inner, upstream = arguments
        return lambda: torch.autograd.grad(function(*inner), inner[0], upstream)[0]

    def _arguments(self, inputs: Inputs, convert: Callable[[Tensor], Tensor]) -> list[Tensor]:
        arguments = []
        for data in inputs.streams:
            arguments += [data.values, convert(data.times)]
            if data.arrivals is not None:
                arguments.append(convert(data.arrivals))
        arguments += [extra for extra in (inputs.offsets, inputs.rows) if extra is not None]
        arguments.append(convert(inputs.targets))
        if inputs.decisions is not None:
            arguments.append(convert(inputs.decisions))
        return arguments if inputs.upstream is None else [*arguments, inputs.upstream]

    # ---- the floor

    def floor_bytes(self, inputs: Inputs) -> int:
        """The fewest bytes: int64 times of all samples, the samples that targets touch, each output cell once."""
        cells = self.rows * self.targets
        total = 8 * cells  # targets
        for shape, data in zip(self.streams, inputs.streams, strict=True):
            width = data.values[0, 0].numel() if not self.packed else data.values[0].numel()
            size = width * data.values.element_size()
            touched = int(self._touched(shape, data, inputs).sum())
            total += 8 * data.times.numel() + touched * size + cells * size
            if data.arrivals is not None:
                total += 8 * touched
            if self.gradient:  # the backward pass reads times, targets and one gradient, and writes the other
                total += 8 * data.times.numel() + 8 * cells + cells * size + data.values.nbytes
            total += {"resample": 0, "fuse": 9, "align": 17}[self.op] * cells  # valid, age; align: index too
        if inputs.decisions is not None:
            total += 8 * self.rows
        if inputs.offsets is not None and inputs.rows is not None:
            total += 8 * (inputs.offsets.numel() + inputs.rows.numel())
        return total

    def _touched(self, shape: StreamShape, data: StreamData, inputs: Inputs) -> Tensor:
        """bool, in the shape of the times: the samples that some target needs."""
        times, targets = data.times, inputs.targets
        if inputs.offsets is not None and inputs.rows is not None:
            times = times.view(inputs.offsets.numel() - 1, -1)
        touched = torch.zeros(times.shape, dtype=torch.bool, device=times.device)
        if inputs.rows is not None:
            searched, place = times[inputs.rows], inputs.rows[:, None].expand(-1, targets.shape[1])
        else:
            searched, place = times, torch.arange(self.rows, device=times.device)[:, None].expand(-1, targets.shape[1])
        last = times.shape[1] - 1
        if shape.method in ("mean", "max"):
            first = targets[:, :1] - (targets[:, 1:2] - targets[:, :1])
            return (times > first) & (times <= targets[:, -1:])
        if inputs.decisions is not None and data.arrivals is not None:  # the first `known` samples had arrived
            known = torch.searchsorted(data.arrivals, inputs.decisions.unsqueeze(-1), right=True)
            upper = torch.searchsorted(times, targets, right=True)
            for sample in (torch.minimum(upper, known) - 1, torch.minimum(upper, known - 1)):
                touched[place, sample] = True
            return touched
        keys = searched if data.arrivals is None else data.arrivals
        upper = torch.searchsorted(keys, targets, right=True)
        left = (upper - 1).clamp_min(0)
        if shape.method == "hold" or self.causal or not data.values.is_floating_point():
            touched[place, left] = True
            return touched
        between = (upper > 0) & (upper <= last) & (searched.gather(1, left) < targets)
        right = torch.where(between, left + 1, left)
        reach = [left, right]
        if shape.method == "nearest":
            middle = targets - searched.gather(1, left) <= searched.gather(1, right) - targets
            reach = [torch.where(middle, left, right)]
        elif shape.method == "cubic":
            before, after = (left - 1).clamp_min(0), (right + 1).clamp_max(last)
            reach += [torch.where(between, before, left), torch.where(between, after, left)]
        for sample in reach:
            touched[place, sample] = True
        return touched


def stamps(rows: int, count: int, device: str, generator: torch.Generator) -> Tensor:
    """int64 [rows, count] over one second. All but the first and last are moved by up to a quarter of a step."""
    step = SECOND / max(count - 1, 1)
    times = (torch.arange(count, device=device, dtype=torch.float64) * step).expand(rows, -1).clone()
    if count > 2:
        jitter = torch.rand(rows, count - 2, device=device, generator=generator, dtype=torch.float64) - 0.5
        times[:, 1:-1] += jitter * (0.5 * step)
    return times.round().long()


def noise(shape: Sequence[int], dtype: torch.dtype, device: str, generator: torch.Generator) -> Tensor:
    if dtype.is_floating_point:
        return torch.randn(shape, dtype=dtype, device=device, generator=generator)
    return torch.randint(0, 256, shape, dtype=dtype, device=device, generator=generator)


def relative_error(got: Iterable[Tensor], truth: Iterable[Tensor]) -> float:
    """‖got - truth‖ / ‖truth‖ over all parts. Infinite where shapes differ, or where only one is NaN."""
    difference = size = 0.0
    for ours, exact in zip(got, truth, strict=True):
        if ours.shape != exact.shape or not torch.equal(ours.isnan(), exact.isnan()):
            return float("inf")
        ours, exact = ours.detach().double().nan_to_num(0.0), exact.detach().double().nan_to_num(0.0)
        difference += float((ours - exact).square().sum())
        size += float(exact.square().sum())
    return (difference / size) ** 0.5 if size else float(difference > 0)


# ---- the table


def resample(name: str, peer: Callable[..., Any] = peers.linear, **options: Any) -> Case:
    """Parses a name such as '64x4096->1024x32 f32': rows x samples -> targets x channels. Words before are remarks."""
    *_, sizes, dtype = name.split()
    left, right = sizes.split("->")
    rows, samples = map(int, left.split("x"))
    targets, *channels = map(int, right.split("x"))
    method, arrivals, op = options.pop("method", None), options.pop("arrivals", False), options.pop("op", "resample")
    shape = StreamShape(samples, tuple(channels), SHORT_NAMES[dtype], method, arrivals, options.pop("episodes", None))
    return Case(op, name, rows, targets, (shape,), peer, **options)


def fuse(name: str, **options: Any) -> Case:
    """Parses 'B=4 30x512+100x64->50 bf16': rows, samples x channels of streams -> targets. Words after are remarks."""
    rows, sizes, dtype, *_ = name.split()
    left, targets = sizes.split("->")
    shapes = [tuple(map(int, part.split("x"))) for part in left.split("+")]
    streams = tuple(StreamShape(samples, (channels,), SHORT_NAMES[dtype]) for samples, channels in shapes)
    return Case("fuse", name, int(rows.removeprefix("B=")), int(targets), streams, peers.fuse, **options)


MAKERS = {"resample": resample, "fuse": fuse}
WITH_GOALS = tuple(MAKERS[op](name) for op, name in GOALS if op in MAKERS)
SMALL_FUSE = WITH_GOALS[4]  # 7 tensors; the documents state the host time of this call

SCALE = (
    resample("1x10000000->100000x8 f32"),
    resample("1x100000->1000000x16 f32"),
    resample("100000x50->20x8 f32"),
    resample("16x300->200x4096 f32"),
)

METHODS = (
    fuse("B=4 30x512+100x64+200x12->50 bf16 with Stream construction", construct=True),
    resample("hold 4x60->100x224x224x3 u8", peers.hold, method="hold"),
    resample("nearest 256x500->250x32 f32", peers.nearest, method="nearest"),
    resample("pose 256x500->250x7 f32", peers.pose, method=[("linear", 0, 3), ("slerp", 3, 7)], inside=True),
    resample("angle 256x500->250x32 f32", peers.angle, method="angle", inside=True),
    resample("cubic 256x500->250x32 f32", peers.cubic, method="cubic"),
    resample("mean 64x4096->256x32 f32", peers.mean, method="mean"),
    resample("max 64x4096->256x32 f32", peers.maximum, method="max"),
    resample("causal arrivals 256x500->250x32 bf16", peers.arrived, op="align", causal=True, arrivals=True),
    resample("as_of arrivals 256x500->250x32 bf16", peers.known, op="align", as_of=True, arrivals=True),
    resample("8 packed episodes 256x5000->100x32 f32", peers.packed, packed=True, episodes=8),
    resample("forward and backward 64x4096->1024x32 f32", gradient=True),
    Case(
        "align",
        "B=8 camera 30x96x96x3 u8 + pose 100x7 f32 + joints 500x14 f32->50",
        8,
        50,
        (
            StreamShape(30, (96, 96, 3), torch.uint8),
            StreamShape(100, (7,), torch.float32, [("linear", 0, 3), ("slerp", 3, 7)]),
            StreamShape(500, (14,), torch.float32),
        ),
        peers.align,
        inside=True,
    ),
)

AnyCase = (
    Case
    | VoxelCase
    | SparseCase
    | DownsampleCase
    | TsdfCase
    | ImageCase
    | AttentionCase
    | ActionCase
    | McapCase
    | ViewCase
    | MessageCase
    | BuildCase
    | FramesCase
    | LoaderCase
    | ConstructionCase
    | LoaderCudaCase
)
CASES: tuple[AnyCase, ...] = (
    *WITH_GOALS,
    *SCALE,
    *METHODS,
    *VOXEL_CASES,
    *SPARSE_CASES,
    *TSDF_CASES,
    *IMAGE_CASES,
    *ATTENTION_CASES,
    *LOG_CASES,
    *MESSAGE_CASES,
    *BUILD_CASES,
    *REPORT_CASES,
    *FRAMES_CASES,
    *LOADER_CASES,
    *LOADER_CUDA_CASES,
    *VIEW_CASES,
)


def select(pattern: str | None) -> tuple[AnyCase, ...]:
    """The cases whose title contains the pattern, in which * stands for anything."""
    return tuple(case for case in CASES if fnmatch.fnmatchcase(case.title, f"*{pattern or ''}*"))
