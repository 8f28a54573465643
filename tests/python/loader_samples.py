"""One stream of one raw episode at any targets, to the bit, from the words of docs/semantics.md (Align, Logs).

test_loader_oracle.py holds it against oracle.py, which has the values in float64, and against rc.align.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

NEVER = int(np.iinfo(np.int64).min)
ALWAYS = -(2**61)


@dataclass
class Found:
    """What align says of one stream at T targets."""

    values: np.ndarray  # [T, D] in the stream's dtype
    valid: np.ndarray
    age: np.ndarray
    index: np.ndarray  # of the row's samples


# ---- Arithmetic


def fma32(x: Any, y: Any, z: Any) -> np.ndarray:
    """x * y + z of float32, rounded once."""
    x, y, z = (np.asarray(each, np.float32).astype(np.float64) for each in (x, y, z))
    with np.errstate(all="ignore"):
        product = x * y  # exact: 48 bits
        total = np.asarray(product + z)
        back = total - product
        error = (product - (total - back)) + (z - back)  # exact
        even = (total.view(np.int64) & 1) == 0
        inexact = np.isfinite(total) & np.isfinite(error) & (error != 0)
        odd = np.where(inexact & even, np.nextafter(total, np.where(error > 0, np.inf, -np.inf)), total)
        return odd.astype(np.float32)


def fma64(x: float, y: float, z: float) -> float:
    """x * y + z of float64, rounded once."""
    if not (math.isfinite(x) and math.isfinite(y) and math.isfinite(z)):
        return x * y + z
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    return float(exact) if exact else x * y + z


def fma(x: Any, y: Any, z: Any, dtype: Any) -> np.ndarray:
    if dtype == np.float32:
        return fma32(x, y, z)
    x, y, z = np.broadcast_arrays(*(np.asarray(each, np.float64) for each in (x, y, z)))
    made = [fma64(float(a), float(b), float(c)) for a, b, c in zip(x.flat, y.flat, z.flat, strict=True)]
    return np.array(made, np.float64).reshape(x.shape)


def unit(q: np.ndarray) -> np.ndarray:
    """A quaternion made unit, in double; one whose norm is 0 or infinite as it is."""
    square = float(q @ q)
    return q / math.sqrt(square) if 0 < square < math.inf else q


def slerp(a: np.ndarray, b: np.ndarray, w: float) -> np.ndarray:
    if not (0 < float(a @ a) < math.inf and 0 < float(b @ b) < math.inf):
        return np.full(4, np.nan)
    a, b = unit(a), unit(b)
    dot = float(a @ b)
    if dot < 0:
        b, dot = -b, -dot
    if dot > 1 - 1e-9:
        return unit((1 - w) * a + w * b)
    theta = 2 * math.atan2(float(np.linalg.norm(a - b)), float(np.linalg.norm(a + b)))
    return unit((math.sin((1 - w) * theta) * a + math.sin(w * theta) * b) / math.sin(theta))


# ---- One stream


def ranges_of(method: Any, dtype: np.dtype, width: int) -> list[tuple[str, int, int]]:
    if method is None:
        method = "linear" if dtype.kind == "f" else "hold"
    return [(method, 0, width)] if isinstance(method, str) else sorted(method, key=lambda one: one[1])


class Samples:
    """The samples of a row that exist."""

    def __init__(self, raw: Any, *, method: Any, max_gap: int | None, edge: str, on_nan: str) -> None:
        values = raw.values.reshape(len(raw.times), math.prod(raw.values.shape[1:]))
        self.raw, self.dtype = values, values.dtype
        self.wide = np.float64 if values.dtype == np.float64 else np.float32
        self.times = raw.times - raw.latency
        self.arrivals = raw.arrived
        self.ranges = ranges_of(method, values.dtype, values.shape[1])
        self.max_gap, self.edge, self.skip = max_gap, edge, on_nan == "skip"
        if raw.static:  # a constant: its first sample was always there
            self.times, self.arrivals = self.times.copy(), self.arrivals.copy()
            self.times[:1] = self.arrivals[:1] = ALWAYS
            self.ranges, self.max_gap, self.edge = [("hold", 0, values.shape[1])], None, "clamp"
        self.static = raw.static

    def at(self, taus: np.ndarray, *, as_of: int | None = None, causal: bool = False) -> Found:
        count, width = len(taus), self.raw.shape[1]
        found = Found(
            np.zeros((count, width), self.dtype),
            np.zeros(count, bool),
            np.full(count, NEVER, np.int64),
            np.full(count, -1, np.int64),
        )
        for k, tau in enumerate(taus):
            known_by = int(tau) if causal else as_of
            exists = np.arange(len(self.times)) if known_by is None else np.flatnonzero(self.arrivals <= known_by)
            self._one(found, k, int(tau), exists, known_by is not None, causal)
        if self.static:
            found.valid = found.index >= 0
            found.age = np.where(found.age < 2**60, found.age, 0)
        return found

    def _one(self, found: Found, k: int, tau: int, exists: np.ndarray, more_may_come: bool, causal: bool) -> None:
        times = self.times[exists]
        if causal:  # what lies after the target is not asked for
            exists, times = exists[times <= tau], times[times <= tau]
        if not len(times):
            if self.edge == "nan" and self.dtype.kind == "f":
                found.values[k] = np.nan
            return
        i = int(np.searchsorted(times, tau, "right")) - 1
        found.age[k] = tau - int(times[max(i, 0)])
        j, place = -1, "before"
        if i >= 0:
            since = tau - int(times[i])
            if since == 0:
                place = "exact"
            elif i + 1 < len(times):
                j = int(np.searchsorted(times, times[i + 1], "right")) - 1
                place = "gap" if self._is_gap(int(times[j] - times[i])) else "between"
            elif more_may_come:
                place = "gap" if self._is_gap(since) else "exact"
            else:
                place = "after"
        valid = True
        for number, (method, first, last) in enumerate(self.ranges):
            part = slice(first, last)
            source, is_valid = self._range(found.values[k, part], tau, times, exists, i, j, place, method, part)
            valid = valid and is_valid
            if number == 0:
                found.index[k] = source
        found.valid[k] = valid

    def _is_gap(self, interval: int) -> bool:
        return self.max_gap is not None and interval > self.max_gap

    def _range(self, out, tau, times, exists, i, j, place, method, part) -> tuple[int, bool]:  # type: ignore[no-untyped-def]
        """Writes the value. Returns the sample behind it and whether it is valid."""
        nearest = 0 if place == "before" else i
        if j >= 0 and int(times[j]) - tau < tau - int(times[i]):
            nearest = j
        taps = {"hold": [i], "nearest": [nearest]}.get(method, [i, j] if place == "between" else [i])
        w = (tau - int(times[i])) / (int(times[j]) - int(times[i])) if j >= 0 else 0.0
        weight = self.wide(w)
        if place == "between" and method in ("linear", "angle", "angle_degrees"):
            if weight == 0:
                taps = [i]
            elif weight == 1 and method == "linear":
                taps = [j]
        good = place in ("exact", "between")
        if (
            good
            and self.skip
            and not all(np.isfinite(self.raw[exists[t], part].astype(np.float64)).all() for t in taps)
        ):
            good = False
        if not good:
            if self.edge == "clamp":
                source = i if method == "hold" and place != "before" else nearest
                self._copy(out, int(exists[source]), method, part)
                return int(exists[source]), False
            out[:] = 0 if self.edge == "zero" else np.nan
            return -1, False
        chosen = int(exists[nearest if method == "nearest" else i])
        if len(taps) == 1:
            self._copy(out, int(exists[taps[0]]), method, part)
            return chosen, True
        a, b = (self.raw[exists[t], part] for t in taps)
        if method == "slerp":
            for g in range(0, len(out), 4):
                group = slice(g, g + 4)
                out[group] = slerp(a[group].astype(np.float64), b[group].astype(np.float64), w)
            return chosen, True
        a, b = a.astype(self.wide), b.astype(self.wide)
        with np.errstate(all="ignore"):
            if method == "linear":
                out[:] = fma(weight, b, fma(-weight, a, a, self.wide), self.wide)
            else:
                turn = self.wide(2 * math.pi if method == "angle" else 360)
                arc = b - a
                arc = arc - turn * np.floor((arc + turn / self.wide(2)) / turn)
                out[:] = fma(weight, arc, a, self.wide)
        out[np.isnan(out)] = np.nan  # what is computed is the canonical one
        return chosen, True

    def _copy(self, out: np.ndarray, sample: int, method: str, part: slice) -> None:
        out[:] = self.raw[sample, part]
        if method == "slerp":
            for g in range(0, len(out), 4):
                out[g : g + 4] = unit(self.raw[sample, part][g : g + 4].astype(np.float64))


# ---- The default timeline


def is_regular(times: np.ndarray) -> bool:
    """Whether samples come all the time (docs/semantics.md, The sync report)."""
    steps = np.diff(times)
    steps = steps[steps > 0]
    if len(steps) < 7:
        return False
    period = float(np.median(steps))
    near = np.count_nonzero(np.abs(steps - period) <= 0.5 * period) / len(steps)
    return near >= (0.6 if len(steps) >= 20 else 0.9)


def is_held(method: Any, dtype: np.dtype) -> bool:
    return all(name == "hold" for name, _, _ in ranges_of(method, dtype, 1))


def span_of(streams: list[tuple[Any, Any]]) -> tuple[int, int] | None:
    """The span of (raw stream, method) of an episode: start and end, both inclusive. None: there is no sample."""
    reaches = []
    for raw, method in streams:
        if len(raw.times):
            first, last = (int(raw.times[k]) - raw.latency for k in (0, -1))
            runs = not raw.static and is_regular(raw.times)
            reaches.append((first, last, runs, is_held(method, raw.values.dtype), raw.static))
    running = [reach for reach in reaches if reach[2]]
    bounds = [reach for reach in running if not reach[3]] or running
    if bounds:
        return max(reach[0] for reach in bounds), min(reach[1] for reach in bounds)
    some = [reach for reach in reaches if not reach[4]] or reaches
    return (min(reach[0] for reach in some), max(reach[1] for reach in some)) if some else None
