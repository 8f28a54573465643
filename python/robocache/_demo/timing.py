"""How long a call takes here, as the demo's sentences state it."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

import robocache as rc


def median_microseconds(call: Callable[[], object], runs: int = 25) -> float:
    taken = []
    for _ in range(runs):
        begin = time.perf_counter_ns()
        call()
        taken.append(time.perf_counter_ns() - begin)
    return round(float(np.median(taken)) / 1e3, 1)


def host_backend() -> str:
    """The backend for NumPy arrays, and its SIMD target and threads."""
    return "cpu: " + next(text for name, _, text in rc.backends() if name == "cpu")
