"""Measures how long a call takes. Results are medians in microseconds, unless a name says otherwise."""

from __future__ import annotations

import contextlib
import gc
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

Call = Callable[[], Any]

ROTATION_BYTES = 200_000_000  # rotating inputs are cold when they exceed this: over three times an H200's L2 of 60 MB
MOST_COPIES = 600
RUN_OVER_AHEAD = 8


@contextlib.contextmanager
def quiet_collector() -> Iterator[None]:
    """Collects garbage before, and not while it holds, so that no case pays for the garbage of another."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


class Effort:
    """How long to measure: seconds for each figure."""

    def __init__(self, quick: bool = False) -> None:
        self.budget = 0.05 if quick else 0.3

    def repeats(self, estimate_us: float, least: int, most: int) -> int:
        return max(least, min(most, int(self.budget * 1e6 / max(estimate_us, 0.1))))


# ---- both kinds of device


def wall(
    call: Call,
    effort: Effort,
    synchronize: Call,
    of: Callable[[list[float]], float] = statistics.median,
    ahead: int = 0,
) -> float:
    """The time that a user waits: eager calls back to back, and the median over repeats of the time per call.

    ahead: how many results may be ready before they are asked for, because workers prefetch them. As many are taken
    before the clock starts, and a timed run takes RUN_OVER_AHEAD times as many: single calls wait for nothing or for
    all workers."""

    def run(calls: int) -> float:
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        synchronize()
        return (time.perf_counter() - begin) / calls * 1e6

    run(1 + ahead)
    estimate = run(max(1, ahead))
    repeats = effort.repeats(estimate, 3, 15)
    calls = max(1, min(500, int(effort.budget * 1e6 / repeats / max(estimate, 0.1))), RUN_OVER_AHEAD * ahead)
    with quiet_collector():
        run(max(min(calls, 20), ahead))
        times = [run(calls) for _ in range(repeats)]
    return of(times)


def tail_on_cpu(call: Call, effort: Effort, estimate_us: float) -> float:
    times = []
    with quiet_collector():
        for _ in range(effort.repeats(estimate_us, 10, 300)):
            begin = time.perf_counter()
            call()
            times.append((time.perf_counter() - begin) * 1e6)
    return percentile(times, 0.99)


# ---- CUDA

FEWEST_IN_GRAPH = 24
ENOUGH_IN_GRAPH = 2000  # microseconds; a graph of that length needs no more calls, whose outputs may be large


def graph(calls: Sequence[Call], effort: Effort, wall_us: float = 0, most: int = 30) -> float:
    """Device time of one call, by replays of one CUDA graph that holds all calls. Few calls are repeated in it, so that
    starting the graph counts for little."""
    fewest = min(FEWEST_IN_GRAPH, math.ceil(ENOUGH_IN_GRAPH / max(wall_us, 1)))
    calls = list(calls) * -(-fewest // len(calls))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            for call in calls[:16]:  # enough to compile, to fill the allocator and to load every kernel
                call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        outputs = [call() for call in calls]  # kept, so that each call writes memory of its own
    replay = _events(captured.replay)
    replay()
    estimate = replay()
    times = [replay() / len(calls) for _ in range(effort.repeats(estimate, 5, most))]
    del outputs, captured
    return statistics.median(times)


def tail_on_cuda(call: Call, effort: Effort, estimate_us: float) -> float:
    """The 99th percentile of single calls between two events. The host's time to enqueue the call is part of it."""
    measured = _events(call)
    with quiet_collector():
        for _ in range(10):
            measured()
        return percentile([measured() for _ in range(effort.repeats(estimate_us, 50, 300))], 0.99)


def _events(call: Call) -> Callable[[], float]:
    def measured() -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3

    return measured


def host(call: Call, bursts: int = 60, burst: int = 32) -> float:
    """The host time of a call that launches nothing."""
    times = []
    with quiet_collector():
        for _ in range(bursts):
            begin = time.perf_counter()
            for _ in range(burst):
                call()
            times.append((time.perf_counter() - begin) / burst * 1e6)
    return statistics.median(times)


def copies(floor_bytes: int) -> int:
    """How many input sets a graph must rotate through so that none is still in the L2."""
    return max(2, min(MOST_COPIES, -(-ROTATION_BYTES // floor_bytes)))


def copy_bytes_per_s() -> float:
    """A device-to-device copy of 4 GiB, bytes read and bytes written."""
    source = torch.empty(1 << 30, dtype=torch.float32, device="cuda").normal_()
    target = torch.empty_like(source)
    measured = _events(lambda: target.copy_(source))
    for _ in range(3):
        measured()
    return 2 * source.nbytes / (statistics.median(measured() for _ in range(10)) * 1e-6)


def empty_kernel_us(effort: Effort) -> float | None:
    """A kernel that does nothing, in a graph: the least time of any launch. None without CuPy to compile it."""
    try:
        import cupy
    except ImportError:
        return None
    kernel = cupy.RawKernel('extern "C" __global__ void nothing() {}', "nothing")

    def launch() -> None:
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            kernel((1,), (32,), ())

    return graph([launch] * 50, effort)


# ---- CPU


def memcpy_us(total_bytes: int, effort: Effort) -> float:
    """A copy that moves as many bytes, half read and half written, with torch's threads. The best of the repeats,
    because it stands for what the memory can do."""
    source = torch.randint(0, 1 << 30, (max(1, total_bytes // 8),), dtype=torch.int32)
    target = torch.empty_like(source)
    return wall(lambda: target.copy_(source), effort, lambda: None, of=min)


# ---- import


IMPORT = """
import time, numpy, sys
begin = time.perf_counter()
import robocache
print((time.perf_counter() - begin) * 1e3, "torch" in sys.modules)
"""


def import_ms(runs: int = 7) -> float:
    """The time of `import robocache` after `import numpy`."""
    times = []
    for _ in range(runs):
        child = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, timeout=60, check=True)
        milliseconds, has_torch = child.stdout.split()
        if has_torch == "True":
            raise RuntimeError("import robocache imports torch")
        times.append(float(milliseconds))
    return statistics.median(times)
