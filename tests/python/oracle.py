"""What align computes, written a second time: from docs/semantics.md, in NumPy float64, one target after the other.

Nothing here is shared with the C++ code, and nothing here is fast. Streams and timelines are any objects with the
attributes of `robocache.Stream` and of `cases.Timeline`, over NumPy arrays.
"""

from __future__ import annotations

import datetime
import fnmatch
import math
from dataclasses import dataclass

import numpy as np

NO_AGE = int(np.iinfo(np.int64).min)
BINS = ("mean", "max", "min", "last")
TURN = {"angle": 2 * math.pi, "angle_degrees": 360.0}


@dataclass
class Result:
    values: np.ndarray  # float64
    valid: np.ndarray
    age: np.ndarray
    index: np.ndarray
    # Where the value is a copy: the sample it copies, in the row that was read; else -1. Its bytes must be equal.
    source: np.ndarray
    # How far from `values` a result may lie, before it is rounded to its dtype: the roundings of the steps before.
    slack: np.ndarray


def is_float(dtype) -> bool:
    return np.dtype(dtype).kind == "f" or np.dtype(dtype).name == "bfloat16"


def nanoseconds(times) -> np.ndarray:
    times = np.asarray(times)
    if times.dtype.kind in "iu":
        return times.astype(np.int64)
    with np.errstate(all="ignore"):  # padding may hold anything
        return np.rint(times.astype(np.float64) * 1e9).astype(np.int64)


def duration(value) -> int | None:
    if value is None:
        return None
    if isinstance(value, datetime.timedelta):
        return (value.days * 86400 + value.seconds) * 10**9 + value.microseconds * 1000
    if isinstance(value, (float, np.floating)):
        return int(np.rint(float(value) * 1e9))
    return int(value)


def ranges(stream) -> list[tuple[str, int, int]]:
    """The methods as (method, begin, end) over the flattened channels, in their order."""
    trailing = stream.values.shape[stream.times.ndim :]
    count = math.prod(trailing)
    method = stream.method
    if method is None:
        method = "linear" if is_float(stream.values.dtype) else "hold"
    if isinstance(method, str):
        return [(method, 0, count)]
    if isinstance(method, dict):
        # Neighbouring channels of one key are a range. A quaternion is a whole, whatever keys name its parts.
        patterns = [key for key in method if key not in stream.channels]
        keys = [
            channel if channel in method else next(p for p in patterns if fnmatch.fnmatchcase(channel, p))
            for channel in stream.channels
        ]
        begins = [0]
        for d in range(1, len(keys)):
            quaternion = method[keys[d]] == method[keys[d - 1]] == "slerp" and (d - begins[-1]) % 4 != 0
            if keys[d] != keys[d - 1] and not quaternion:
                begins.append(d)
        return [(method[keys[b]], b, e) for b, e in zip(begins, [*begins[1:], len(keys)], strict=True)]
    in_order = sorted(((name, begin, end) for name, begin, end in method), key=lambda entry: entry[1:])
    return [entry for entry in in_order if entry[1] < entry[2] or count == 0]


def is_timeline(targets) -> bool:
    return hasattr(targets, "rate")


def target_row(targets, b: int) -> tuple[list[int], int | None]:
    """The targets of row b as integers, and what the first bin reaches back to (None: to the start)."""
    if is_timeline(targets):
        start = nanoseconds(targets.start)
        start = int(start if start.ndim == 0 else start[b])
        steps = [start + int(np.rint(float(targets.first + k) * 1e9 / targets.rate)) for k in range(-1, targets.count)]
        return steps[1:], steps[0]
    times = nanoseconds(targets)
    row = [int(t) for t in (times if times.ndim == 1 else times[b])]
    return row, row[0] - (row[1] - row[0]) if len(row) > 1 else None


def stream_row(stream, b: int):
    """Stamps, arrivals and values [n, D] that output row b reads."""
    stamps = nanoseconds(stream.times)
    arrivals = stamps if stream.arrivals is None else nanoseconds(stream.arrivals)
    values = stream.values
    segment = b if stream.rows is None else int(stream.rows[b])
    if stream.offsets is not None:
        part = slice(int(stream.offsets[segment]), int(stream.offsets[segment + 1]))
        stamps, arrivals, values = stamps[part], arrivals[part], values[part]
    elif stream.times.ndim == 2:
        part = slice(0, stamps.shape[1] if stream.lengths is None else int(stream.lengths[segment]))
        stamps, arrivals, values = stamps[segment, part], arrivals[segment, part], values[segment, part]
    trailing = values.shape[1:]
    values = np.ascontiguousarray(values).reshape(len(stamps), math.prod(trailing))
    return [int(s) for s in stamps], [int(a) for a in arrivals], values


def row_count(streams, targets) -> int | None:
    """B, or None where nothing has a batch dimension."""
    if is_timeline(targets):
        if np.ndim(targets.start) == 1:
            return len(targets.start)
    elif np.ndim(targets) == 2:
        return len(targets)
    for stream in streams:
        if stream.rows is not None:
            return len(stream.rows)
        if stream.offsets is not None:
            return len(stream.offsets) - 1
        if stream.times.ndim == 2:
            return len(stream.times)
    return None


def align(streams, targets, *, edge="clamp", causal=False, as_of=None, on_nan="propagate") -> list[Result]:
    rows = row_count(streams, targets)
    return [_align_one(stream, targets, rows, edge, causal, as_of, on_nan) for stream in streams]


def decision(as_of, targets, b: int) -> int | None:
    """The time by which the samples of row b must have arrived; None: all exist."""
    if as_of is None or as_of is False:
        return None
    times = nanoseconds(targets.start if isinstance(as_of, str) else as_of)
    return int(times if times.ndim == 0 else times[b])


def _align_one(stream, targets, rows, edge, causal, as_of, on_nan) -> Result:
    edge = edge if stream.edge is None else stream.edge
    causal = causal if stream.causal is None else stream.causal
    as_of = as_of if stream.as_of is None else stream.as_of
    on_nan = on_nan if stream.on_nan is None else stream.on_nan
    trailing = stream.values.shape[stream.times.ndim :]
    channels = math.prod(trailing)
    count = targets.count if is_timeline(targets) else np.shape(targets)[-1]
    number = 1 if rows is None else rows

    values = np.zeros((number, count, channels))
    slack = np.zeros((number, count, channels))
    source = np.full((number, count, channels), -1, np.int64)
    valid = np.zeros((number, count), bool)
    age = np.zeros((number, count), np.int64)
    index = np.zeros((number, count), np.int64)
    for b in range(number):
        row = Row(stream, b, edge, causal, decision(as_of, targets, b), on_nan == "skip")
        taus, first_begin = target_row(targets, b)
        for t, tau in enumerate(taus):
            begin = taus[t - 1] if t > 0 else first_begin
            place = row.find(tau, begin)
            age[b, t] = place.age
            valid[b, t] = True
            for k, (method, low, high) in enumerate(ranges(stream)):
                part = slice(low, high)
                answer = row.range(place, method, part)
                values[b, t, part] = answer.value
                if answer.slack is not None:
                    slack[b, t, part] = answer.slack + row.tiniest
                source[b, t, part] = row.numbers[answer.source]
                valid[b, t] &= answer.valid
                if k == 0:
                    index[b, t] = row.numbers[answer.index]

    def shaped(array, tail=()):
        return array.reshape((() if rows is None else (rows,)) + (count, *tail))

    return Result(
        shaped(values, trailing),
        shaped(valid),
        shaped(age),
        shaped(index),
        shaped(source, trailing),
        shaped(slack, trailing),
    )


@dataclass
class Place:
    tau: int
    begin: int | None  # the bin is (begin, tau]
    age: int
    i: int = -1  # the last sample at or before tau that exists
    j: int = -1  # the upper neighbour, where tau lies strictly between
    kind: str = "nothing"  # nothing, before, after, gap, stale, exact, between, held; i and j count existing samples


@dataclass
class Answer:
    valid: bool
    value: np.ndarray | float
    index: int
    source: int = -1
    slack: np.ndarray | float | None = None  # None: nothing was computed


class Row:
    """The samples of a row that exist. as_of leaves the others out here, and everything below knows nothing of them."""

    def __init__(self, stream, b: int, edge: str, causal: bool, known_by: int | None, skip: bool):
        stamps, arrivals, values = stream_row(stream, b)
        existing = [k for k, a in enumerate(arrivals) if known_by is None or a <= known_by]
        stamps, self.arrivals, self.raw = (
            [stamps[k] for k in existing],
            [arrivals[k] for k in existing],
            values[existing],
        )
        self.numbers = np.array([*existing, -1], np.int64)  # of the row's samples; the last, for -1, is -1
        self.more_may_come = known_by is not None
        self.times = [s - duration(stream.latency) for s in stamps]
        with np.errstate(invalid="ignore"):  # signalling NaNs
            self.values = self.raw.astype(np.float64)
        self.floats = is_float(stream.values.dtype)
        self.single = np.dtype(stream.values.dtype) != np.float64
        self.epsilon = 2.0**-24 if self.single else 2.0**-53
        self.tiniest = 2.0**-149 if self.single else 2.0**-1074
        self.max_gap = duration(stream.max_gap)
        self.edge, self.causal, self.skip = edge, causal, skip

    def is_gap(self, interval: int) -> bool:
        return self.max_gap is not None and interval > self.max_gap

    def group_end(self, k: int) -> int:
        return max(n for n, t in enumerate(self.times) if t == self.times[k])

    def arrived(self, k: int, tau: int) -> bool:
        return not self.causal or self.arrivals[k] <= tau

    def find(self, tau: int, begin: int | None) -> Place:
        times = self.times
        if not times:
            return Place(tau, begin, NO_AGE)
        before = [k for k, t in enumerate(times) if t <= tau and self.arrived(k, tau)]
        if self.causal:
            if not before:
                return Place(tau, begin, NO_AGE)
            i = before[-1]
            return Place(tau, begin, tau - times[i], i, kind="stale" if self.is_gap(tau - times[i]) else "held")
        if not before:
            return Place(tau, begin, tau - times[0], kind="before")
        i = before[-1]
        if times[i] == tau:
            return Place(tau, begin, 0, i, kind="exact")
        if i == len(times) - 1 and self.more_may_come:
            return Place(tau, begin, tau - times[i], i, kind="stale" if self.is_gap(tau - times[i]) else "held")
        if i == len(times) - 1:
            return Place(tau, begin, tau - times[i], i, kind="after")
        j = self.group_end(i + 1)
        return Place(tau, begin, tau - times[i], i, j, "gap" if self.is_gap(times[j] - times[i]) else "between")

    def nearest(self, place: Place) -> int:
        if place.kind == "before":
            return 0
        if place.j >= 0 and self.times[place.j] - place.tau < place.tau - self.times[place.i]:
            return place.j
        return place.i

    def finite(self, k: int, part: slice, method: str) -> bool:
        values = self.values[k, part]
        if method == "slerp":  # a norm whose square is 0 or infinite in double cannot be divided by
            with np.errstate(all="ignore"):
                squares = np.sum(values.reshape(-1, 4) ** 2, axis=1)
            if not np.all(np.isfinite(squares) & (squares > 0)):
                return False
        return bool(np.all(np.isfinite(values)))

    def filled(self, source: int, method: str, part: slice) -> Answer:
        """An answer that is not valid; source: what clamp returns, -1 where there is none."""
        if source >= 0 and self.edge == "clamp":
            return self.copy(source, method, part, valid=False)
        return Answer(False, np.nan if self.edge == "nan" else 0.0, -1)

    def copy(self, k: int, method: str, part: slice, valid: bool, index: int | None = None) -> Answer:
        """Sample k as it is; of slerp made unit, where its norm is not 0."""
        index = k if index is None else index
        if method != "slerp":
            return Answer(valid, self.values[k, part], index, k)
        value = self.values[k, part].copy()
        source = np.full(value.shape, k)
        for begin in range(0, len(value), 4):
            group = slice(begin, begin + 4)
            if self.finite(k, slice(part.start + begin, part.start + begin + 4), "slerp"):
                value[group] /= np.linalg.norm(value[group])
                source[group] = -1
        return Answer(valid, value, index, source, slack=np.where(source < 0, 1e-14, 0.0))

    def clamped(self, place: Place, method: str) -> int:
        return place.i if method == "hold" and place.kind != "before" else self.nearest(place)

    def range(self, place: Place, method: str, part: slice) -> Answer:
        if place.kind == "nothing":
            return self.filled(-1, method, part)
        if method in BINS:
            return self.bin(place, method, part)
        if place.kind not in ("exact", "between", "held"):
            return self.filled(self.clamped(place, method), method, part)
        weights = self.taps(place, method)
        if self.skip and not all(self.finite(k, part, method) for k in weights):
            return self.filled(self.clamped(place, method), method, part)
        chosen = self.nearest(place) if method == "nearest" else place.i
        if len(weights) == 1:
            return self.copy(weights[0], method, part, True, chosen)
        if method == "slerp":
            return self.slerp(place, part)
        if method == "cubic":
            return self.cubic(place, part)
        return self.between(place, method, part)

    def weight(self, place: Place) -> float:
        if place.kind != "between":
            return 0.0
        low, high = self.times[place.i], self.times[place.j]
        w = float(place.tau - low) / float(high - low)
        return float(np.float32(w)) if self.single else w

    def taps(self, place: Place, method: str) -> list[int]:
        """The samples that have a weight."""
        if method == "nearest":
            return [self.nearest(place)]
        if method == "hold" or place.kind != "between":
            return [place.i]
        if method == "slerp":
            return [place.i, place.j]
        w = self.weight(place)
        if w == 0.0:
            return [place.i]
        if w == 1.0 and method in ("linear", "cubic"):
            return [place.j]
        if method == "cubic":
            p, q = self.neighbours(place)
            return [k for k in (p, place.i, place.j, q) if k is not None]
        return [place.i, place.j]

    def between(self, place: Place, method: str, part: slice) -> Answer:
        a, b, w = self.values[place.i, part], self.values[place.j, part], self.weight(place)
        with np.errstate(all="ignore"):
            if method == "linear":
                slack = 4 * self.epsilon * np.maximum(abs(a), abs(b))
                return Answer(True, (a - w * a) + w * b, place.i, slack=slack)
            turn = TURN[method]
            arc = (b - a) - turn * np.floor((b - a + turn / 2) / turn)
            slack = 8 * self.epsilon * (abs(a) + abs(b) + turn)
            # Close to half a turn, roundings decide which way round is shorter.
            slack = np.where(turn / 2 - abs(arc) <= slack, slack + 2 * turn, slack)
            return Answer(True, a + w * arc, place.i, slack=slack)

    def neighbours(self, place: Place) -> tuple[int | None, int | None]:
        """The distinct samples before i and after j, None where there is none, a gap lies between, or the interval to
        it is under 1/16 of that between i and j: the tangent is then the slope from i to j alone."""
        times = self.times
        earlier = [k for k, t in enumerate(times) if t < times[place.i]]
        later = [k for k, t in enumerate(times) if t > times[place.j]]
        p = earlier[-1] if earlier else None
        q = self.group_end(later[0]) if later else None
        h = times[place.j] - times[place.i]
        if p is not None and (self.is_gap(times[place.i] - times[p]) or 16 * (times[place.i] - times[p]) < h):
            p = None
        if q is not None and (self.is_gap(times[q] - times[place.j]) or 16 * (times[q] - times[place.j]) < h):
            q = None
        return p, q

    def cubic(self, place: Place, part: slice) -> Answer:
        p, q = self.neighbours(place)
        i, j, times = place.i, place.j, self.times
        h = float(times[j] - times[i])
        s = float(place.tau - times[i]) / h
        # Hermite: a (h00 + h01 = 1) + h01 (b - a) + h10 h m_i + h11 h m_j, collected by the differences of neighbours.
        across, before, after = s * s * (3 - 2 * s), 0.0, 0.0
        left, right = s * (1 - s) ** 2, -s * s * (1 - s)
        if p is None:
            across += left
        elif 16 * (times[j] - times[i]) < times[i] - times[p]:  # the slope of the longer interval
            before = left * h / float(times[i] - times[p])
        else:
            hp = float(times[i] - times[p])
            across += left * hp / (hp + h)
            before = left * h * h / (hp * (hp + h))
        if q is None:
            across += right
        elif 16 * (times[j] - times[i]) < times[q] - times[j]:
            after = right * h / float(times[q] - times[j])
        else:
            hq = float(times[q] - times[j])
            across += right * hq / (hq + h)
            after = right * h * h / (hq * (hq + h))
        if self.single:
            before, across, after = (float(np.float32(step)) for step in (before, across, after))
        a, b = self.values[i, part], self.values[j, part]
        vp = a if p is None else self.values[p, part]
        vq = b if q is None else self.values[q, part]
        with np.errstate(all="ignore"):
            value = a + across * (b - a)
            size = abs(a) + 2 * abs(across) * (abs(a) + abs(b))
            if before != 0:  # a step of weight 0 is left out: it may be infinite
                value = value + before * (a - vp)
                size = size + abs(before) * (abs(a) + abs(vp))
            if after != 0:
                value = value + after * (vq - b)
                size = size + abs(after) * (abs(b) + abs(vq))
            return Answer(True, value, i, slack=8 * self.epsilon * size)

    def slerp(self, place: Place, part: slice) -> Answer:
        low, high = self.times[place.i], self.times[place.j]
        w = float(place.tau - low) / float(high - low)
        out = []
        for begin in range(part.start, part.stop, 4):
            group = slice(begin, begin + 4)
            if not all(self.finite(k, group, "slerp") for k in (place.i, place.j)):
                out.append(np.full(4, np.nan))
                continue
            a = self.values[place.i, group] / np.linalg.norm(self.values[place.i, group])
            b = self.values[place.j, group] / np.linalg.norm(self.values[place.j, group])
            if np.dot(a, b) < 0:
                b = -b
            theta = 2 * math.atan2(np.linalg.norm(a - b), np.linalg.norm(a + b))
            if np.dot(a, b) > 1 - 1e-9:
                q = (1 - w) * a + w * b
            else:
                q = (math.sin((1 - w) * theta) * a + math.sin(w * theta) * b) / math.sin(theta)
            out.append(q / np.linalg.norm(q))
        return Answer(True, np.concatenate([*out, np.zeros(0)]), place.i, slack=1e-14)

    def bin(self, place: Place, method: str, part: slice) -> Answer:
        tau, begin = place.tau, place.begin
        inside = [k for k, t in enumerate(self.times) if (begin is None or t > begin) and t <= tau]
        counted = [k for k in inside if self.arrived(k, tau)]
        if self.skip:
            counted = [k for k in counted if self.finite(k, part, method)]
        if not counted:
            before = [k for k, t in enumerate(self.times) if begin is not None and t <= begin and self.arrived(k, tau)]
            source = before[-1] if before else (-1 if self.causal else 0)
            return self.filled(source, method, part)
        if method == "last":
            return self.copy(counted[-1], method, part, True)
        values = self.values[counted, part]
        if method == "mean":
            with np.errstate(all="ignore"):
                slack = len(counted) * 2.0**-52 * np.max(abs(values), axis=0, initial=0.0)
                return Answer(True, np.sum(values, axis=0) / len(counted), place.i, slack=slack)
        winners = [self.extreme(method, counted, d) for d in range(part.start, part.stop)]
        picked = np.array([self.values[k, d] for k, d in zip(winners, range(part.start, part.stop), strict=True)])
        return Answer(True, picked, place.i, source=np.array(winners, np.int64))

    def extreme(self, method: str, counted: list[int], d: int) -> int:
        def key(k: int):
            value = self.raw[k, d]
            if self.floats:
                number = float(value)
                if math.isnan(number):
                    return (1, 0, 0)
                order = (number, math.copysign(1.0, number) if number == 0 else 0)
            else:
                order = (int(value), 0)
            return (0, *order) if method == "max" else (0, -order[0], -order[1])

        return max(counted, key=key)  # the first of equals
