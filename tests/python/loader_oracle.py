"""What the loader must give, from raw episodes: written from docs/semantics.md and issue 21, in NumPy and plain Python.

Nothing here is of robocache._loader, and nothing here is fast. A spec is the arguments of rc.Loader as a dict; `keys`
are dicts of the arguments of rc.Key.
"""

from __future__ import annotations

import datetime
import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from frame_oracle import frame_of
from loader_samples import NEVER, Samples, fma32, span_of

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


# ---- The order


def mix(x: int) -> int:
    """splitmix64's finaliser."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def window_number(windows: int, seed: int, position: int, shuffle: bool = True) -> int:
    """The window at a global position."""
    epoch, number = divmod(position, windows)
    if not shuffle:
        return number
    bits = max(2, (windows - 1).bit_length() + (windows - 1).bit_length() % 2)
    half = bits // 2
    low = (1 << half) - 1
    key = mix(mix((seed + GOLDEN) & MASK) ^ epoch)
    while True:
        left, right = number >> half, number & low
        for r in range(8):
            left, right = right, left ^ (mix(right ^ mix((key + r) & MASK)) & low)
        number = left << half | right
        if number < windows:
            return number


BLOCK = 4096  # positions of a mixture


def shares_of(weights: Sequence[float]) -> list[int]:
    """How many of a block's positions each source has: largest remainders, of equal ones the earlier source."""
    exact = [Fraction(weight) * BLOCK / sum(map(Fraction, weights)) for weight in weights]
    shares = [math.floor(share) for share in exact]
    by_rest = sorted(range(len(weights)), key=lambda j: (shares[j] - exact[j], j))
    for j in by_rest[: BLOCK - sum(shares)]:
        shares[j] += 1
    return shares


def mixture_block(shares: Sequence[int], seed: int, block: int) -> list[tuple[int, int]]:
    """The source of each position of a block, and the source's own position there."""
    sources = [j for j, share in enumerate(shares) for _ in range(share)]
    passed = [block * share for share in shares]
    made = []
    for position in range(block * BLOCK, (block + 1) * BLOCK):
        source = sources[window_number(BLOCK, seed, position)]
        made.append((source, passed[source]))
        passed[source] += 1
    return made


# ---- The spec


def duration(given: Any) -> int | None:
    if given is None:
        return None
    if isinstance(given, datetime.timedelta):
        return round(given / datetime.timedelta(microseconds=1)) * 1000
    return int(np.rint(given * 1e9)) if isinstance(given, float) else int(given)


@dataclass
class Key:
    """A key of the spec, with what it leaves unsaid."""

    name: str
    streams: list[str]
    offsets: list[int]  # nanoseconds from the anchor
    given: Mapping[str, Any]

    def get(self, name: str, default: Any = None) -> Any:
        found = self.given.get(name)
        return default if found is None else found

    @property
    def knowledge(self) -> str:
        is_action = self.name == "action" or self.name.startswith("action.")
        return self.get("knowledge", "truth" if is_action else "as_of")

    def edge_of(self, stream: str) -> str:
        words = set(re.split(r"[^a-z]+", stream.lower()))
        rates = {"velocity", "velocities", "delta", "deltas"}
        return self.get("edge", "zero" if words & rates else "clamp")


def step_offset(step: float, rate: float) -> int:
    return int(np.rint(step * 1e9 / rate))


def keys_of(spec: Mapping[str, Any], is_camera: Any) -> list[Key]:
    """The table of keys; the short form makes such a table."""
    table = dict(spec.get("keys") or {})
    history, horizon = spec.get("observation_steps", 1), spec.get("action_steps", 1)
    for stream in spec.get("observation") or ():
        steps = [0] if is_camera(stream) else range(1 - history, 1)
        table[f"observation.{stream}"] = {"streams": stream, "steps": steps}
    for stream in spec.get("action") or ():
        table[f"action.{stream}"] = {"streams": stream, "steps": range(horizon)}
    made = []
    for name, given in table.items():
        streams = [given["streams"]] if isinstance(given["streams"], str) else list(given["streams"])
        if given.get("delta_timestamps") is not None:
            offsets = [int(np.rint(d * 1e9)) for d in given["delta_timestamps"]]
        else:
            offsets = [step_offset(k, spec["rate"]) for k in given.get("steps", [0])]
        made.append(Key(name, streams, offsets, given))
    return made


# ---- Windows


@dataclass
class Truth:
    """A loader's batches, from raw episodes and its spec."""

    episodes: Sequence[Any]
    spec: Mapping[str, Any]
    keys: list[Key] = field(init=False)
    windows: list[tuple[int, int]] = field(init=False)  # (episode, time)

    def __post_init__(self) -> None:
        cameras = {name for episode in self.episodes for name, raw in episode.streams.items() if raw.frames}
        self.cameras = cameras
        self.keys = keys_of(self.spec, cameras.__contains__)
        self.by_name = {key.name: key for key in self.keys}
        self.selected = self._selected()
        if self.spec.get("missing") == "leave_out":
            self.selected = [k for k in self.selected if self._has_all(k)]
        self.windows = [(e, t) for e in self.selected for t in self.anchors(e)]
        self.seed = self.spec.get("seed", 0)
        self.shuffle = self.spec.get("shuffle", True)
        self.batch_size = self.spec["batch_size"]
        self._rows: dict[Any, Any] = {}
        self._stats: dict[str, Any] = {}

    def _selected(self) -> list[int]:
        given = self.spec.get("episodes")
        if given is None:
            return list(range(len(self.episodes)))
        if callable(given):
            return [k for k, episode in enumerate(self.episodes) if given(episode)]
        names = [episode.name for episode in self.episodes]
        return sorted({names.index(one) if isinstance(one, str) else one % len(names) for one in given})

    def _has_all(self, episode: int) -> bool:
        return all(name in self.episodes[episode].streams for key in self.keys for name in key.streams)

    def _method(self, key: Key, stream: str, raw: Any) -> Any:
        return "hold" if raw.frames else key.get("method", raw.method)

    def span(self, episode: int) -> tuple[int, int] | None:
        streams = self.episodes[episode].streams
        used = [(key, name) for key in self.keys for name in key.streams if name in streams]
        return span_of([(streams[name], self._method(key, name, streams[name])) for key, name in used])

    def anchors(self, episode: int) -> list[int]:
        span = self.span(episode)
        if span is None:
            return []
        start, end = span
        rate, stride = self.spec["rate"], duration(self.spec.get("stride"))
        times: list[int] = []
        while (time := start + (step_offset(len(times), rate) if stride is None else len(times) * stride)) <= end:
            times.append(time)
        if self.spec.get("whole"):
            least = min(offset for key in self.keys for offset in key.offsets)
            most = max(offset for key in self.keys for offset in key.offsets)
            times = [t for t in times if t + least >= start and t + most <= end]
        left_out = self.spec.get("drop_last_steps", 0)
        times = times[: max(len(times) - left_out, 0)]
        if self.spec.get("where") is not None:
            times = [t for t in times if self._is_where(episode, t)]
        return times

    def _is_where(self, episode: int, time: int) -> bool:
        where = self.spec["where"]
        streams = self.episodes[episode].streams
        if isinstance(where, Mapping):  # intervals in seconds from the episode's start
            start = min(int(raw.times[0]) - raw.latency for raw in streams.values())
            ends = np.rint(np.asarray(where.get(episode, ()), np.float64).reshape(-1, 2) * 1e9).astype(np.int64)
            return any(low <= time - start < high for low, high in ends.tolist())
        raw = streams[where.removeprefix("not ")]
        found = Samples(raw, method="hold", max_gap=raw.max_gap, edge="clamp", on_nan="propagate").at(np.array([time]))
        return bool(found.valid[0] and bool(found.values[0, 0]) != where.startswith("not "))

    # ---- Batches

    def positions(self, start: int, rank: int, world: int) -> range:
        """The positions of a rank's rows, of the global batch that begins at `start`."""
        first = start + rank * self.batch_size
        return range(first, first + self.batch_size)

    def batch(self, number: int, rank: int = 0, world: int = 1, *, augment: bool = True) -> dict[str, np.ndarray]:
        return self.batch_at(number * world * self.batch_size, rank, world, augment=augment)

    def batch_at(self, start: int, rank: int = 0, world: int = 1, *, augment: bool = True) -> dict[str, np.ndarray]:
        return self.batch_of(self.positions(start, rank, world), augment=augment)

    def batch_of(self, positions: Sequence[int], *, augment: bool = True) -> dict[str, np.ndarray]:
        where = [self.windows[window_number(len(self.windows), self.seed, p, self.shuffle)] for p in positions]
        rows = [
            self.row(episode, time, position if augment else None)
            for (episode, time), position in zip(where, positions, strict=True)
        ]
        made = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        made["episode"] = np.array([episode for episode, _ in where], np.int64)
        made["time"] = np.array([time for _, time in where], np.int64)
        made["position"] = np.array(positions, np.int64)
        return made

    def tasks(self, batch: Mapping[str, np.ndarray]) -> list[str | None]:
        return [self.episodes[int(episode)].task for episode in batch["episode"]]

    def passes(self, start: int, world: int = 1, last: str = "join") -> Iterator[list[int]]:
        """The starts of the global batches of each pass, from a position on."""
        many, whole = len(self.windows), world * self.batch_size
        while True:
            end = (start // many + 1) * many
            starts = []
            while start + whole <= end if last == "drop" else start < end:
                starts.append(start)
                start += whole
            if last != "join":
                start = end
            yield starts

    # ---- Rows

    def row(self, episode: int, time: int, position: int | None = None) -> dict[str, np.ndarray]:
        """A window. position: what is drawn goes by it; None: nothing is drawn."""
        made = {}
        for key in self.keys:
            place = key.name, episode, time
            if place not in self._rows:
                self._rows[place] = self._key(key, episode, time, position)
            values, valid, age = self._rows[place]
            made |= {key.name: values, f"{key.name}.valid": valid, f"{key.name}.age": age}
        return made

    def _max_gap(self, key: Key, stream: str) -> int | None:
        given = duration(key.get("max_gap"))
        gaps = [self.episodes[e].streams[stream].max_gap for e in self.selected if stream in self.episodes[e].streams]
        return min((gap for gap in gaps if gap is not None), default=None) if given is None else given

    def samples_of(self, key: Key, stream: str, episode: int) -> Samples:
        """A stream of an episode as the key aligns it."""
        raw = self.episodes[episode].streams.get(stream)
        if raw is None:  # missing="mask": a stream without samples
            raw = next(each.streams[stream] for each in self.episodes if stream in each.streams).cut(0)
        return Samples(
            raw.numbered() if raw.frames else raw,
            method=self._method(key, stream, raw),
            max_gap=self._max_gap(key, stream),
            edge="clamp" if raw.frames and key.edge_of(stream) == "nan" else key.edge_of(stream),
            on_nan=key.get("on_nan", "propagate"),
        )

    def _aligned(self, key: Key, stream: str, episode: int, time: int, offsets: Sequence[int]) -> Any:
        taus = np.array([time + offset for offset in offsets], np.int64)
        as_of, causal = time if key.knowledge == "as_of" else None, key.knowledge == "causal"
        return self.samples_of(key, stream, episode).at(taus, as_of=as_of, causal=causal)

    def _raw(self, key: Key, episode: int, time: int, offsets: Sequence[int]) -> Any:
        """[T, D] float32 as aligned, where a member has no sample [T, D], valid and age."""
        values, absent, valid, age = [], [], np.ones(len(offsets), bool), np.full(len(offsets), NEVER + 1, np.int64)
        never = np.zeros(len(offsets), bool)
        for stream in key.streams:
            found = self._aligned(key, stream, episode, time, offsets)
            with np.errstate(over="ignore"):
                values.append(found.values.astype(np.float32))
            is_absent = found.age == NEVER
            absent.append(np.repeat(is_absent[:, None], values[-1].shape[1], axis=1))
            valid &= found.valid
            age, never = np.maximum(age, found.age), never | is_absent
        return np.concatenate(values, axis=1), np.concatenate(absent, axis=1), valid, np.where(never, NEVER, age)

    def _key(self, key: Key, episode: int, time: int, position: int | None) -> Any:
        if key.streams[0] in self.cameras:
            return self._pictures(key, episode, time, position)
        values, absent, valid, age = self._raw(key, episode, time, key.offsets)
        how = key.get("relative")
        if how is not None:
            to = key.get("relative_to", how if how in self.by_name else "observation.state")
            base, lost, *_ = self._raw(self.by_name[to], episode, time, [0])
            if lost.any():  # nothing is known of what the values are relative to
                valid, absent = np.zeros_like(valid), np.ones_like(absent)
            chosen = key.get("relative_channels")
            if how == "pose":
                values = relative_pose(values, base[0], chosen or range(values.shape[1]))
            else:
                chosen = list(range(values.shape[1]) if chosen is None else chosen)
                values[:, chosen] = values[:, chosen] - base[:, chosen]
        if key.get("rotation") is not None:
            values, absent = self._rotated(key, values, absent)
        values = self._normalised(key, values)
        values = np.where(absent, np.float32(0), values)
        return values.astype(dtype_of(key.get("dtype", "float32"))), valid, age

    def _rotated(self, key: Key, values: np.ndarray, absent: np.ndarray) -> Any:
        """The quaternions, which are the channels of slerp, in another form."""
        firsts = key.get("rotation_channels")
        if firsts is None:
            first, firsts = 0, []
            for stream in key.streams:
                raw = next(each.streams[stream] for each in self.episodes if stream in each.streams)
                for method, begin, end in raw.method if isinstance(raw.method, list) else []:
                    firsts += range(first + begin, first + end, 4) if method == "slerp" else []
                first += int(np.prod(raw.values.shape[1:], dtype=int))
        parts, gone, k = [], [], 0
        while k < values.shape[1]:
            wide = 4 if k in firsts else 1
            part = values[:, k : k + wide]
            parts.append(np.stack([rotation_as(q, key.get("rotation")) for q in part]) if wide == 4 else part)
            gone.append(np.repeat(absent[:, k : k + 1], parts[-1].shape[1], axis=1))
            k += wide
        return np.concatenate(parts, axis=1).astype(np.float32), np.concatenate(gone, axis=1)

    def is_close(self, name: str) -> bool:
        """Whether a key goes through formulas of which the oracle has the values but not each rounding."""
        key = self.by_name.get(name)
        return key is not None and (key.get("relative") == "pose" or key.get("rotation") == "axis_angle")

    # ---- Normalisation

    def _normalised(self, key: Key, x: np.ndarray) -> np.ndarray:
        kind = key.get("normalize", "identity")
        if kind == "identity":
            return x
        stats = key.get("stats") or self._statistics(key)
        tiny, one = np.float32(1e-8), np.float32(1)
        with np.errstate(all="ignore"):
            if kind == "mean_std":
                mean, std = (np.asarray(stats[name], np.float64).astype(np.float32) for name in ("mean", "std"))
                return (x - mean) / np.where(std < tiny, one, std)
            names = {"min_max": ("min", "max"), "quantiles": ("q01", "q99")}[kind]
            low, high = (np.asarray(stats[name], np.float64).astype(np.float32) for name in names)
            wide = high - low
            return (np.float32(2) * (x - low)) / np.where(wide < tiny, one, wide) - one

    def statistics(self, name: str) -> Mapping[str, list[float]]:
        return self._statistics(self.by_name[name])

    def _statistics(self, key: Key) -> Mapping[str, list[float]]:
        """Of the values as stored, of the selected episodes: exact sums, and quantiles as numpy.quantile."""
        if key.name not in self._stats:
            columns = []
            for stream in key.streams:
                having = [self.episodes[e].streams for e in self.selected]
                rows = [streams[stream].values for streams in having if stream in streams]
                whole = np.concatenate([each.reshape(len(each), -1).astype(np.float64) for each in rows])
                columns += list(whole.T)
            told = [statistics_of(column[np.isfinite(column)]) for column in columns]
            self._stats[key.name] = {name: [each[name] for each in told] for name in told[0]}
        return self._stats[key.name]

    # ---- Pictures

    def _pictures(self, key: Key, episode: int, time: int, position: int | None) -> Any:
        (stream,) = key.streams
        found = self._aligned(key, stream, episode, time, key.offsets)
        frames, stages = self.episodes[episode].streams[stream].values, dict(key.get("image") or {})
        made = []
        for index in found.index:
            exists = index >= 0
            picture = frames[index if exists else 0]
            if "size" in stages:
                options = {name: stages[name] for name in ("fit", "filter", "pad") if name in stages}
                picture = frame_of(picture, stages["size"], **options)
            if "crop" in stages:
                (height, width), (h, w) = picture.shape[:2], stages["crop"]
                top, left = (height - h) // 2, (width - w) // 2
                assert position is None or not stages.get("random_crop", True), "the oracle draws no crops"
                picture = picture[top : top + h, left : left + w]
            picture = floats_of(picture, self._colours(key), key.get("dtype", "float32"))
            picture = picture if exists else np.zeros_like(picture)
            made.append(picture if stages.get("layout") == "nhwc" else np.moveaxis(picture, -1, 0))
        return np.stack(made), found.valid, found.age

    def _colours(self, key: Key) -> Mapping[str, Sequence[float]]:
        """Mean and std of a camera's channels, of which 1 is white."""
        kind = key.get("normalize", "identity")
        given = {"identity": {}, "mean_std": key.get("stats"), "imagenet": IMAGENET}[kind]
        assert given is not None, f"the oracle has no {kind} of pictures without stats"
        return given


# ---- Rotations: xyzw, in float64


def matrix_of(q: np.ndarray) -> np.ndarray:
    x, y, z, w = np.asarray(q, np.float64) / np.linalg.norm(np.asarray(q, np.float64))
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


def six_of(q: np.ndarray) -> np.ndarray:
    """The first two columns of the matrix, in float32, each operation rounded."""
    x, y, z, w = q
    one = np.float32(1)
    s = np.float32(2) / (x * x + y * y + z * z + w * w)
    first = [one - s * (y * y + z * z), s * (x * y + w * z), s * (x * z - w * y)]
    return np.array([*first, s * (x * y - w * z), one - s * (x * x + z * z), s * (y * z + w * x)], np.float32)


def rotation_as(q: np.ndarray, kind: str) -> np.ndarray:
    """6d: the first two columns of the matrix, one after the other; axis_angle: the axis times the angle, up to pi."""
    q = np.asarray(q, np.float64)
    if kind == "quaternion" or not q.any():
        return q if kind == "quaternion" else np.zeros({"6d": 6, "axis_angle": 3}[kind])
    if kind == "6d":
        return six_of(q.astype(np.float32))
    q = q / np.linalg.norm(q) * (-1 if q[3] < 0 else 1)
    size = float(np.linalg.norm(q[:3]))
    return q[:3] * (2 * math.atan2(size, q[3]) / size if size > 0 else 2)


def product(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    (a, b, c, d), (x, y, z, w) = p, q
    return np.array(
        [
            d * x + a * w + b * z - c * y,
            d * y - a * z + b * w + c * x,
            d * z + a * y - b * x + c * w,
            d * w - a * x - b * y - c * z,
        ]
    )


def relative_pose(values: np.ndarray, base: np.ndarray, channels: Sequence[int]) -> np.ndarray:
    """inverse(T_t) T_k of poses of seven channels: position and quaternion."""
    made = values.astype(np.float64)
    for first in list(channels)[::7]:
        group = slice(first, first + 7)
        origin = base[group].astype(np.float64)
        if not origin[3:].any():
            continue
        turn = matrix_of(origin[3:]).T
        back = origin[3:] * np.array([-1, -1, -1, 1]) / np.linalg.norm(origin[3:])
        for row in made:
            row[group] = np.concatenate([turn @ (row[group][:3] - origin[:3]), product(back, row[group][3:])])
    return made.astype(np.float32)


def dtype_of(name: str) -> np.dtype:
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def floats_of(picture: np.ndarray, colours: Mapping[str, Any], dtype: str) -> np.ndarray:
    """a = float(1 / (255 std)), b = float(-mean / std), fma(x, a, b), rounded once more to half types."""
    if dtype == "uint8":
        return picture
    mean = np.broadcast_to(np.asarray(colours.get("mean", 0), np.float64), picture.shape[-1])
    std = np.broadcast_to(np.asarray(colours.get("std", 1), np.float64), picture.shape[-1])
    made = fma32(picture, (1 / (255 * std)).astype(np.float32), (-mean / std).astype(np.float32))
    return made.astype(dtype_of(dtype))


def statistics_of(column: np.ndarray) -> dict[str, float]:
    exact = [Fraction(float(value)) for value in column]
    count = len(exact)
    mean = sum(exact) / count
    variance = sum((value - mean) ** 2 for value in exact) / count
    scale = 2**120
    std = math.isqrt(int(variance * scale * scale)) / scale
    low, high = (float(np.quantile(column, share)) for share in (0.01, 0.99))
    return {
        "mean": float(mean),
        "std": std,
        "min": float(column.min()),
        "max": float(column.max()),
        "q01": low,
        "q99": high,
    }


def digest(batch: Mapping[str, Any], names: Sequence[str]) -> str:
    """A hash of a batch: names, dtypes, shapes and bytes."""
    made = hashlib.sha256()
    for name in names:
        array = np.ascontiguousarray(batch[name])
        made.update(f"{name} {array.dtype.name} {array.shape} ".encode())
        made.update(array.tobytes())
    return made.hexdigest()
