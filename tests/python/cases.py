"""The case table: small problems that together meet every method, dtype, layout and option of align.

A case is a name and a recipe. Its inputs come from the raw bits of PCG64 by exact operations only, so every machine and
every NumPy makes the same bytes, and the hashes in tests/golden hold everywhere.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import oracle

try:
    import ml_dtypes

    BFLOAT16: Any = np.dtype(ml_dtypes.bfloat16)
except ImportError:  # the cases that need it are left out
    BFLOAT16 = None

FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTEGERS = ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]
INTERPOLATING = ["linear", "hold", "nearest", "slerp", "angle", "angle_degrees", "cubic"]
BINS = ["mean", "max", "min", "last"]
COPYING = ["hold", "nearest", "last", "max", "min"]
LAYOUTS = ["flat", "padded", "lengths", "packed", "rows", "lengths_rows", "packed_rows"]
STRIDES = ["dense", "step", "negative", "zero_channels", "zero_samples", "fortran", "window"]
PERIOD = 10_000_000  # nanoseconds between samples, about


@dataclass
class Stream:
    """The arguments of robocache.Stream, over NumPy arrays."""

    values: np.ndarray
    times: np.ndarray
    method: Any = None
    latency: Any = 0
    arrivals: np.ndarray | None = None
    max_gap: Any = None
    edge: str | None = None
    causal: bool | None = None
    as_of: Any = None
    on_nan: str | None = None
    lengths: np.ndarray | None = None
    offsets: np.ndarray | None = None
    rows: np.ndarray | None = None
    channels: list[str] | None = None
    name: str | None = None


@dataclass
class Timeline:
    start: Any
    rate: float
    count: int
    first: int = 0  # other than 0: Timeline.around with a history of -first


@dataclass
class Problem:
    streams: list[Stream]
    targets: Any  # an array or a Timeline
    options: dict[str, Any] = field(default_factory=dict)  # edge, causal, as_of, on_nan
    fuse_dtypes: list[str] = field(default_factory=list)  # conversions to try, beyond dtype=None where that is possible


Built = TypeVar("Built")


@dataclass(frozen=True)
class Case(Generic[Built]):
    name: str
    recipe: Callable[[Random], Built]

    def build(self) -> Built:
        return self.recipe(Random(self.name))


def dtype_of(name: str) -> np.dtype:
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


def bits_of(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"uint{8 * dtype.itemsize}")


class Random:
    """Numbers out of PCG64's raw bits. NumPy promises the raw stream; it does not promise its distributions."""

    def __init__(self, seed: str | int):
        number = zlib.crc32(seed.encode()) if isinstance(seed, str) else seed
        self._source = np.random.PCG64(number)

    def bits(self, shape) -> np.ndarray:
        shape = (int(shape),) if np.ndim(shape) == 0 else tuple(shape)
        return np.asarray(self._source.random_raw(math.prod(shape)), np.uint64).reshape(shape)

    def integers(self, low: int, high: int, shape) -> np.ndarray:
        return (self.bits(shape) % np.uint64(high - low)).astype(np.int64) + low

    def integer(self, low: int, high: int) -> int:
        return int(self.integers(low, high, 1)[0])

    def choice(self, options):
        return options[self.integer(0, len(options))]

    def chance(self, one_in: int) -> bool:
        return self.integer(0, one_in) == 0

    def values(self, shape, dtype: str) -> np.ndarray:
        kind = dtype_of(dtype)
        if dtype == "bool":
            return self.integers(0, 2, shape).astype(bool)
        if dtype not in FLOATS:
            return self.bits(shape).astype(bits_of(kind)).view(kind)
        # A significand that the dtype holds exactly, times a power of two.
        digits = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}[dtype]
        whole = self.integers(-(1 << digits), 1 << digits, shape)
        exponent = self.integers(-2, 4, shape) - digits
        return np.ldexp(whole.astype(np.float64), exponent).astype(kind)


# ---- stamps and targets ------------------------------------------------------------------------------------------


def stamps(random: Random, shape, equal: bool, base: int = 10**9, period: int = PERIOD) -> np.ndarray:
    """Stamps that do not decrease along the last axis, in nanoseconds."""
    steps = random.integers(period // 2, period * 3 // 2, shape)
    if equal:
        steps = np.where(random.integers(0, 3, shape) == 0, 0, steps)
    return base + np.cumsum(steps, axis=-1)


def in_dtype(nanoseconds: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "int64":
        return nanoseconds
    return (nanoseconds.astype(np.float64) / 1e9).astype(dtype)


def back(times: np.ndarray) -> np.ndarray:
    return times if times.dtype.kind == "i" else np.rint(times.astype(np.float64) * 1e9).astype(np.int64)


def target_list(random: Random, shape, stream: Stream, ordered: bool, dtype: str, causal: bool) -> np.ndarray:
    """Targets about the stream's stamps: on them, halfway, a nanosecond beside, and off both ends."""
    pool = _real_stamps(stream) - int(stream.latency)
    if pool.size == 0:
        pool = np.array([10**9])
    if causal:  # arrivals are what matters: visit those too
        pool = np.concatenate([pool, pool + int(stream.latency)])
    pool = np.sort(pool)
    number = math.prod(shape)
    k = random.integers(0, len(pool), number)
    low, high = pool[k], pool[np.minimum(k + 1, len(pool) - 1)]
    span = np.maximum(high - low, 1)
    kind = random.integers(0, 8, number)
    inside = low + (random.bits(number) % span.astype(np.uint64)).astype(np.int64)
    far = random.integers(1, 4 * PERIOD, number)
    options = [low, low + span // 2, low + 1, low - 1, pool[0] - far, pool[-1] + far]
    taus = np.select([kind == n for n in range(len(options))], options, inside).reshape(shape)
    if ordered:
        taus = np.sort(taus, axis=-1)
    return in_dtype(taus, dtype)


def _real_stamps(stream: Stream) -> np.ndarray:
    times = stream.times
    if stream.offsets is not None:
        return back(times[int(stream.offsets[0]) : int(stream.offsets[-1])])
    if stream.lengths is not None:
        return back(np.concatenate([row[:n] for row, n in zip(times, stream.lengths, strict=True)] or [times[:0]]))
    return back(times.reshape(-1))


def has_bins(stream: Stream) -> bool:
    method = stream.method
    names = [method] if isinstance(method, str) or method is None else list(method)
    return any((name if isinstance(name, str) else name[0]) in BINS for name in names if name is not None)


# ---- arrays of every layout --------------------------------------------------------------------------------------


def restride(array: np.ndarray, how: str) -> np.ndarray:
    """The same numbers, otherwise in memory. The zero strides repeat a slice, so those do change numbers."""
    if how == "dense" or array.ndim == 0:
        return array
    if how == "step":
        wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
        wide[..., ::2] = array
        return wide[..., ::2]
    if how == "negative":
        return np.flip(np.ascontiguousarray(np.flip(array)))
    if how == "fortran":
        return np.asfortranarray(array)
    if how == "window":  # a part of something larger in every dimension
        whole = np.zeros([n + 3 for n in array.shape], array.dtype)
        part = whole[tuple(slice(1, n + 1) for n in array.shape)]
        part[...] = array
        return part
    axis = -1 if how == "zero_channels" else 0
    if array.shape[axis] == 0:
        return array
    return np.broadcast_to(np.take(array, [0], axis=axis), array.shape)


def sprinkle(random: Random, values: np.ndarray, one_in: int = 6) -> np.ndarray:
    """NaNs of several kinds, infinities, negative zeros, denormals."""
    dtype = values.dtype
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0], np.float64).astype(dtype)
    bits = special.view(bits_of(dtype)).copy()
    tiny = np.array([1, 3], bits.dtype)
    sign = bits.dtype.type(1 << (8 * dtype.itemsize - 1))
    pool = np.concatenate([bits, bits[:1] + bits.dtype.type(5), bits[:1] | sign, tiny, tiny | sign])
    picked = pool[random.integers(0, len(pool), values.shape)]
    where = random.integers(0, one_in, values.shape) == 0
    return np.where(where, picked, np.ascontiguousarray(values).view(bits.dtype)).view(dtype)


def garbage(random: Random, shape, dtype: np.dtype) -> np.ndarray:
    if dtype == np.bool_:
        return random.values(shape, "bool")
    return random.bits(shape).astype(bits_of(dtype)).view(dtype)


def make_stream(
    random: Random,
    *,
    dtype: str = "float32",
    trailing: tuple[int, ...] = (3,),
    method: Any = None,
    layout: str = "padded",
    rows: int = 3,
    samples: int = 17,
    strides: str = "dense",
    time_strides: str = "dense",
    time_dtype: str = "int64",
    integer_dtype: str = "int64",
    equal: bool = False,
    special: bool = False,
    arrivals: str | None = None,
    latency: Any = 0,
    base: int = 10**9,
    **options: Any,
) -> Stream:
    segments = {"flat": 1, "rows": 2, "lengths_rows": 4, "packed_rows": 3}.get(layout, rows)
    packed = layout.startswith("packed")
    counts = np.full(segments, samples, np.int64)
    if layout.startswith("lengths") or packed:
        counts = random.integers(0, samples + 1, segments)

    whole = stamps(random, (segments, samples), equal, base)
    late = random.integers(0, 4 * PERIOD, (segments, samples))
    if arrivals == "ordered":
        late[...] = PERIOD
    when = whole + late
    values = random.values((segments, samples, *trailing), dtype)
    if special:
        values = sprinkle(random, values)
    times, arrival_times = in_dtype(whole, time_dtype), in_dtype(when, time_dtype)

    # What lies beyond a row's length must never matter: it holds garbage.
    for row, count in enumerate(counts):
        times[row, count:] = garbage(random, samples - count, times.dtype)
        arrival_times[row, count:] = garbage(random, samples - count, times.dtype)
        values[row, count:] = garbage(random, (samples - count, *trailing), values.dtype)

    stream = Stream(values, times, method=method, latency=latency, **options)
    stream.arrivals = arrival_times if arrivals else None
    if layout == "flat":
        stream.values, stream.times = values[0], times[0]
        stream.arrivals = arrival_times[0] if arrivals else None
    elif packed:
        parts = [slice(0, int(count)) for count in counts]
        before, after = 2, 3  # samples that belong to no segment

        def joined(array: np.ndarray) -> np.ndarray:
            pieces = [array[row, part] for row, part in enumerate(parts)]
            tail = array.shape[2:]
            ends = [garbage(random, (n, *tail), array.dtype) for n in (before, after)]
            return np.concatenate([ends[0], *pieces, ends[1]])

        stream.values, stream.times = joined(values), joined(times)
        stream.arrivals = joined(arrival_times) if arrivals else None
        stream.offsets = (before + np.concatenate([[0], np.cumsum(counts)])).astype(integer_dtype)
    elif layout.startswith("lengths"):
        stream.lengths = counts.astype(integer_dtype)
    if layout.endswith("rows"):
        stream.rows = random.integers(0, segments, rows).astype(integer_dtype)

    stream.values = restride(stream.values, strides)
    stream.times = restride(stream.times, time_strides)
    if stream.arrivals is not None:
        stream.arrivals = restride(stream.arrivals, time_strides)
    return stream


def make_targets(
    random: Random,
    stream: Stream,
    kind: str,
    *,
    count: int = 21,
    rows: int = 3,
    dtype: str = "int64",
    rate: float = 60.0,
    causal: bool = False,
    bins: bool = False,
) -> Any:
    real = np.sort(_real_stamps(stream))
    first = int(real[0]) if real.size else 10**9
    start = first - int(stream.latency) - PERIOD
    if kind == "timeline":
        return Timeline(start, rate, count)
    if kind == "timelines":
        return Timeline(in_dtype(start + random.integers(-PERIOD, 3 * PERIOD, rows), dtype), rate, count)
    if kind == "around":
        return Timeline(in_dtype(first + random.integers(0, 12 * PERIOD, rows), dtype), rate, count, first=-5)
    shape = (rows, count) if kind.startswith("batched") else (count,)
    ordered = bins or not kind.endswith("unsorted")
    return target_list(random, shape, stream, ordered, dtype, causal)


def single(name: str, *, targets: str = "list", count: int = 21, call: dict[str, Any] | None = None, **options: Any):
    """A case of one stream; `options` go to make_stream, `call` to align."""
    target_options = {key: options.pop(key) for key in ("rate", "target_dtype") if key in options}
    fuse_dtypes = options.pop("fuse_dtypes", [])

    def recipe(random: Random) -> Problem:
        rows = options.get("rows", 3)
        causal = bool(options.get("causal", (call or {}).get("causal", False)))
        stream = make_stream(random, **options)
        taus = make_targets(
            random,
            stream,
            targets,
            count=count,
            rows=rows,
            dtype=target_options.get("target_dtype", "int64"),
            rate=target_options.get("rate", 60.0),
            causal=causal,
            bins=has_bins(stream),
        )
        return Problem([stream], taus, dict(call or {}), fuse_dtypes)

    return Case(name, recipe)


# ---- the table ---------------------------------------------------------------------------------------------------

TRAILING = {"slerp": (8,)}


def _methods() -> list[Case]:
    cases = []
    for dtype in FLOATS:
        for method in INTERPOLATING + BINS:
            trailing = TRAILING.get(method, (5,))
            plain = {"dtype": dtype, "method": method, "trailing": trailing, "equal": True, "rate": 37.0}
            cases.append(single(f"method/{method}/{dtype}", targets="batched_unsorted", **plain))
            cases.append(single(f"special/{method}/{dtype}", special=True, targets="timeline", **plain))
            cases.append(
                single(f"skip/{method}/{dtype}", special=True, call={"on_nan": "skip", "edge": "zero"}, **plain)
            )
    for dtype in INTEGERS:
        for method in COPYING:
            cases.append(
                single(f"method/{method}/{dtype}", dtype=dtype, method=method, trailing=(5,), equal=True, count=15)
            )
    return cases


def _layouts() -> list[Case]:
    cases = []
    for layout in LAYOUTS:
        for targets in ("list", "batched", "timeline", "timelines"):
            for method in ("linear", "mean", "cubic"):
                cases.append(
                    single(
                        f"layout/{layout}/{targets}/{method}",
                        layout=layout,
                        method=method,
                        targets=targets,
                        integer_dtype="int32" if method == "linear" else "int64",
                        dtype="float32" if method != "mean" else "float16",
                    )
                )
    for how in STRIDES:
        for trailing in ((6,), (2, 3), (2, 2, 3)):
            for dtype in ("float32", "uint8"):
                cases.append(
                    single(
                        f"strides/{how}/{'x'.join(map(str, trailing))}/{dtype}",
                        strides=how,
                        trailing=trailing,
                        dtype=dtype,
                        layout="padded",
                    )
                )
        cases.append(single(f"strides/{how}/slerp", strides=how, trailing=(2, 4), method="slerp", dtype="float16"))
        cases.append(single(f"strides/{how}/max", strides=how, trailing=(2, 4), method="max", layout="packed"))
    for how in ("step", "negative", "fortran", "window", "zero_samples"):
        cases.append(single(f"time_strides/{how}", time_strides=how, arrivals="late", causal=True))
        cases.append(single(f"time_strides/{how}/cubic", time_strides=how, method="cubic", targets="batched"))

    def permuted(random: Random) -> Problem:
        stream = make_stream(random, trailing=(2, 3, 4), dtype="uint8", rows=2)
        stream.values = np.ascontiguousarray(np.moveaxis(stream.values, 2, 4)).transpose(0, 1, 4, 2, 3)
        stream.values = np.ascontiguousarray(stream.values.transpose(4, 2, 0, 3, 1)).transpose(2, 4, 1, 3, 0)
        return Problem([stream], target_list(random, (2, 9), stream, False, "int64", False))

    def shared_times(random: Random) -> Problem:
        stream = make_stream(random, rows=4)
        stream.times = np.broadcast_to(stream.times[0], stream.times.shape)
        return Problem([stream], target_list(random, (9,), stream, False, "int64", False))

    return [*cases, Case("strides/permuted images", permuted), Case("strides/shared times", shared_times)]


def _options() -> list[Case]:
    cases = []
    gap = PERIOD * 6 // 5
    for method in (*INTERPOLATING, "mean", "last"):
        trailing = TRAILING.get(method, (3,))
        for edge in ("clamp", "nan", "zero"):
            for max_gap in (None, gap):
                for causal in (False, True):
                    cases.append(
                        single(
                            f"edge/{method}/{edge}/{'gap' if max_gap else 'whole'}/{'causal' if causal else 'after'}",
                            method=method,
                            trailing=trailing,
                            max_gap=max_gap,
                            latency=3_000_000 if causal else 0,
                            call={"edge": edge, "causal": causal},
                            layout="lengths",
                            count=25,
                        )
                    )
    for latency in (0.008, -0.008, 15_000_000, -15_000_000):
        for causal in (False, True):
            for method in ("linear", "last"):
                nanoseconds = int(np.rint(latency * 1e9)) if isinstance(latency, float) else latency

                def recipe(random: Random, latency=latency, causal=causal, method=method, nanoseconds=nanoseconds):
                    stream = make_stream(random, latency=nanoseconds, method=method, equal=True)
                    targets = target_list(random, (25,), stream, True, "int64", causal)
                    stream.latency = latency
                    return Problem([stream], targets, {"causal": causal})

                cases.append(Case(f"latency/{latency}/{'causal' if causal else 'after'}/{method}", recipe))
    for arrivals in ("ordered", "late"):
        for method in ("linear", "nearest", "slerp", "mean", "max", "last"):
            for layout in ("padded", "packed_rows"):
                cases.append(
                    single(
                        f"arrivals/{arrivals}/{method}/{layout}",
                        arrivals=arrivals,
                        method=method,
                        layout=layout,
                        trailing=TRAILING.get(method, (3,)),
                        call={"causal": True, "edge": "clamp"},
                        equal=True,
                        latency=5_000_000,
                        max_gap=4 * PERIOD,
                        special=True,
                        on_nan="skip",
                        count=33,
                    )
                )
    for time_dtype in ("int64", "float64", "float32"):
        for target_dtype in ("int64", "float64", "float32"):
            for kind in ("batched_unsorted", "timelines", "around"):
                cases.append(
                    single(
                        f"time/{time_dtype}/{target_dtype}/{kind}",
                        time_dtype=time_dtype,
                        target_dtype=target_dtype,
                        targets=kind,
                        arrivals="late" if kind == "around" else None,
                        causal=kind == "around",
                    )
                )
    cases.append(single("time/epoch", base=1_700_000_000_000_000_000, dtype="float64", method="cubic"))
    cases.append(single("time/epoch seconds", base=1_700_000_000 * 10**9, time_dtype="float64", target_dtype="float64"))
    cases.append(single("time/negative", base=-(10**12), targets="timeline", rate=29.97))
    for rate in (1.0, 3.0, 29.97, 50.0, 1000.0, 7777.0):
        cases.append(single(f"rate/{rate}", targets="timelines", rate=rate, method="mean", count=40))
    return cases


def _sizes() -> list[Case]:
    cases = []
    for samples in (0, 1, 2, 3):
        for method in ("linear", "slerp", "cubic", "mean", "last", "nearest"):
            for causal in (False, True):
                cases.append(
                    single(
                        f"samples/{samples}/{method}/{'causal' if causal else 'after'}",
                        samples=samples,
                        method=method,
                        causal=causal,
                        trailing=TRAILING.get(method, (3,)),
                        edge=["clamp", "zero", "nan", "clamp"][samples],
                    )
                )
        cases.append(single(f"samples/{samples}/integers", samples=samples, dtype="int16", layout="flat"))
    for count in (0, 1, 2):
        for method in ("linear", "mean", "max"):
            for targets in ("list", "timeline", "batched"):
                cases.append(single(f"targets/{count}/{method}/{targets}", count=count, method=method, targets=targets))
    for rows in (0, 1, 7):
        for layout in ("padded", "lengths", "packed", "rows", "packed_rows"):
            cases.append(single(f"rows/{rows}/{layout}", rows=rows, layout=layout))
        cases.append(single(f"rows/{rows}/flat", rows=rows, layout="flat", targets="batched"))
    for channels in (0, 1, 3, 4, 7, 8, 15, 16, 17, 31, 33, 64, 100):
        for dtype in ("float32", "float64", "bfloat16", "float16"):
            cases.append(single(f"channels/{channels}/{dtype}", trailing=(channels,), dtype=dtype, rows=2))
        cases.append(
            single(f"channels/{channels}/uint8", trailing=(channels,), dtype="uint8", rows=2, method="nearest")
        )
        cases.append(single(f"channels/{channels}/mean", trailing=(channels,), method="mean", rows=2))
        cases.append(single(f"channels/{channels}/cubic", trailing=(channels,), method="cubic", rows=2))
        cases.append(
            single(f"channels/{channels}/strided", trailing=(channels,), strides="step", rows=2, dtype="float16")
        )
    cases.append(single("channels/none", trailing=()))
    cases.append(single("channels/none, unbatched", trailing=(), layout="flat", targets="timeline"))
    for groups in (1, 2, 5):
        cases.append(single(f"channels/slerp {groups}", trailing=(groups, 4), method="slerp", dtype="float64"))
    # Bins longer than a chunk of 256, with and without samples left out.
    long = {"samples": 1500, "rows": 2, "targets": "timeline", "rate": 0.11, "count": 3, "method": "mean"}
    cases.append(single("mean/chunks/float32", special=False, **long))
    cases.append(single("mean/chunks/float64", dtype="float64", **long))
    cases.append(single("mean/chunks/skip", dtype="bfloat16", special=True, on_nan="skip", trailing=(1,), **long))
    cases.append(single("mean/chunks/late", arrivals="late", causal=True, **long))
    return cases


def _exact() -> list[Case]:
    def ties(random: Random) -> Problem:
        times = np.array([0, 10, 20, 20, 30, 31, 41], np.int64) + 10**6
        values = random.values((7, 2), "float32")
        targets = np.array([5, 15, 25, 30, 36, 20, 19, 21, 0, 41, 4, 6], np.int64) + 10**6
        return Problem([Stream(values, times, method="nearest")], targets)

    def all_equal(random: Random, method: str) -> Problem:
        times = np.full(6, 5_000_000, np.int64)
        values = random.values((6, 4), "float32")
        return Problem([Stream(values, times, method=method)], np.array([4_999_999, 5_000_000, 5_000_001]))

    def hits(random: Random, method: str) -> Problem:
        stream = make_stream(random, dtype="float32", trailing=(4,), layout="flat", special=True, method=method)
        return Problem([stream], stream.times.copy())

    def weight_one(random: Random, method: str, on_nan: str) -> Problem:
        times = np.array([0, 1 << 40, 1 << 41, 1 << 42], np.int64)
        values = random.values((4, 4), "float32")
        values[1] = np.nan
        values[3, 2] = np.inf
        targets = np.array([(1 << 40) - 1, (1 << 41) - 1, (1 << 42) - 1, 1, (1 << 41) + 1], np.int64)
        return Problem([Stream(values, times, method=method)], targets, {"on_nan": on_nan})

    def far(random: Random) -> Problem:  # intervals that a double cannot hold
        times = np.array([-(1 << 61) - 1, 5, (1 << 61) + 3], np.int64)
        stream = Stream(random.values((3, 2), "float64"), times)
        return Problem([stream], np.array([-(1 << 61), 4, 6, 1 << 60, (1 << 61) + 2, (1 << 62) - 1], np.int64))

    def halves(random: Random) -> Problem:  # every float16 there is, halfway to another
        values = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(2, 1 << 15)
        return Problem([Stream(values, np.array([0, 2000]))], np.array([0, 500, 1000, 2000]))

    def brains(random: Random) -> Problem:
        values = np.arange(1 << 16, dtype=np.uint16).view(BFLOAT16).reshape(2, 1 << 15)
        return Problem([Stream(values, np.array([0, 2000]))], np.array([0, 500, 1000, 2000]))

    def zero_quaternions(random: Random, on_nan: str) -> Problem:
        values = random.values((6, 8), "float32")
        values[2, 4:] = 0
        values[4, :4] = -0.0
        stream = Stream(values, np.arange(6) * 1000, method="slerp")
        return Problem([stream], np.arange(0, 5001, 500), {"on_nan": on_nan, "edge": "nan"})

    def near_quaternions(random: Random) -> Problem:  # on both sides of the threshold of the linear branch
        turn = np.ldexp(1.0, -np.arange(10, 30))
        values = np.zeros((40, 4))
        values[0::2, 3] = 1
        values[1::2, 3] = 1
        values[1::2, 0] = turn
        values[1::4] *= -1
        return Problem([Stream(values, np.arange(40) * 1000, method="slerp")], np.arange(0, 39001, 250))

    def angles(random: Random, method: str, dtype: str) -> Problem:
        values = random.values((40, 3), dtype).astype(np.float64) * (1 if method == "angle" else 64)
        stream = Stream(values.astype(dtype_of(dtype)), np.arange(40) * 1000, method=method)
        return Problem([stream], np.arange(0, 39001, 300))

    cases = [
        Case("exact/ties", ties),
        Case("exact/far", far),
        Case("exact/all float16", halves),
        Case("exact/all bfloat16", brains),
        Case("slerp/near", near_quaternions),
        Case("slerp/zero", lambda random: zero_quaternions(random, "propagate")),
        Case("slerp/zero skip", lambda random: zero_quaternions(random, "skip")),
    ]
    for method in (*INTERPOLATING, "max"):
        cases.append(Case(f"exact/all equal/{method}", lambda random, method=method: all_equal(random, method)))
        cases.append(Case(f"exact/hits/{method}", lambda random, method=method: hits(random, method)))
    for method in ("linear", "cubic", "angle", "hold", "nearest"):
        for on_nan in ("propagate", "skip"):
            cases.append(
                Case(
                    f"exact/weight one/{method}/{on_nan}",
                    lambda random, method=method, on_nan=on_nan: weight_one(random, method, on_nan),
                )
            )
    for method in ("angle", "angle_degrees"):
        for dtype in FLOATS:
            cases.append(
                Case(f"angles/{method}/{dtype}", lambda random, m=method, dtype=dtype: angles(random, m, dtype))
            )
    return cases


def _many() -> list[Case]:
    def pose(random: Random) -> Problem:
        method = [
            ("linear", 0, 3),
            ("slerp", 3, 7),
            ("hold", 7, 8),
            ("angle", 8, 10),
            ("max", 10, 12),
            ("cubic", 12, 13),
        ]
        stream = make_stream(random, trailing=(13,), method=method, special=True, equal=True, on_nan="skip")
        return Problem([stream], target_list(random, (3, 21), stream, True, "int64", False))

    def by_name(random: Random) -> Problem:
        channels = ["position.x", "position.y", "position.z", *(f"orientation.{k}" for k in "xyzw"), "grip"]
        method = {"position.*": "cubic", "orientation.*": "slerp", "*": "hold"}
        stream = make_stream(random, trailing=(8,), method=method, channels=channels, layout="flat")
        return Problem([stream], target_list(random, (15,), stream, False, "int64", False))

    def three(random: Random) -> Problem:
        streams = [
            make_stream(random, dtype="uint8", trailing=(2, 3), layout="flat", name="wrist"),
            make_stream(
                random, trailing=(7,), method=[("linear", 0, 3), ("slerp", 3, 7)], layout="packed", name="pose"
            ),
            make_stream(random, dtype="float64", trailing=(), method="hold", max_gap=0.012, layout="lengths", name="g"),
        ]
        streams[1].latency = 0.008
        return Problem(streams, Timeline(10**9, 50.0, 12), {"causal": True}, ["float32", "float64", "bfloat16"])

    def sixty_four(random: Random) -> Problem:
        streams = [
            make_stream(
                random,
                dtype=random.choice(["float32", "float16", "float64", "int32"]),
                trailing=(random.integer(0, 6),),
                layout=random.choice(LAYOUTS),
                rows=2,
                samples=random.integer(0, 9),
                name=f"stream{k}",
            )
            for k in range(64)
        ]
        return Problem(streams, Timeline(10**9, 77.0, 9), {}, ["float32"])

    def conversions(random: Random, dtype: str, targets: list[str]) -> Problem:
        special = dtype in FLOATS
        streams = [make_stream(random, dtype=dtype, trailing=(n,), special=special, name=f"n{n}") for n in (3, 5)]
        streams[1].method = "nearest"
        return Problem(streams, target_list(random, (13,), streams[0], False, "int64", False), {}, targets)

    def twice_linear(random: Random, on_nan: str) -> Problem:
        """Two ranges of one method are two all the same: a NaN in one leaves the other's values alone."""
        stream = make_stream(random, trailing=(8,), method=[("linear", 0, 4), ("linear", 4, 8)], on_nan=on_nan)
        stream.values[:, ::3, 5] = np.nan
        return Problem([stream], target_list(random, (21,), stream, False, "int64", False), {"edge": "zero"})

    cases = [Case("many/pose", pose), Case("many/by name", by_name), Case("many/three", three)]
    cases.append(Case("many/twice linear", lambda random: twice_linear(random, "propagate")))
    cases.append(Case("many/twice linear, skip", lambda random: twice_linear(random, "skip")))
    cases.append(Case("many/sixty-four", sixty_four))
    for dtype in (*FLOATS, *INTEGERS):
        wanted = list(FLOATS)
        if dtype not in FLOATS:
            source = dtype_of(dtype)
            wanted += [name for name in INTEGERS if name != dtype and np.can_cast(source, dtype_of(name), "safe")]
        cases.append(
            Case(f"fuse/{dtype}", lambda random, d=dtype, wanted=tuple(wanted): conversions(random, d, [*wanted]))
        )
    return cases


def _limits() -> list[Case]:
    """Intervals on both sides of a sixteenth of their neighbour, many samples that had not arrived, methods by name."""

    def tiny(random: Random, dtype: str, on_nan: str) -> Problem:
        sizes = np.array([1, 40, 62_499, 62_500, 62_501, 999_999, 1_000_000, 1_000_001, 16_000_000, 0])
        times = np.cumsum(sizes[random.integers(0, len(sizes), 60)])
        values = random.values((60, 5), dtype)
        if on_nan == "skip":
            values = sprinkle(random, values, 20)
        stream = Stream(values, times, method="cubic", max_gap=15_000_000)
        return Problem([stream], target_list(random, (200,), stream, False, "int64", False), {"on_nan": on_nan})

    def unarrived(random: Random, method: str, dtype: str) -> Problem:
        samples = 9000
        times = stamps(random, samples, False)
        arrivals = times + 10**15
        early = random.integers(0, samples, 12)
        arrivals[early] = times[early] + random.integers(0, 50 * PERIOD, 12)
        stream = make_stream(random, samples=1, layout="flat", method=method)
        stream.times, stream.arrivals = times, in_dtype(arrivals, dtype)
        stream.values = random.values((samples, 3), "float32")
        targets = target_list(random, (40,), stream, True, "int64", True)
        return Problem([stream], targets, {"causal": True})

    def named(random: Random, on_nan: str) -> Problem:
        channels = ("position[0]", "position[1]", "a", "b", "q.x", "q.y", "q.z", "q.w", "r0", "r1", "r2", "r3")
        method = {"*": "linear", "position[0]": "angle", "q.?": "slerp", "r?": "slerp", "b": "linear"}
        method = {"a": "linear", "b": "linear", "q.[xyz]": "slerp", "q.w": "slerp", "r?": "slerp", **method}
        stream = make_stream(random, trailing=(12,), method=method, channels=channels, special=True, name="arm")
        return Problem([stream], target_list(random, (40,), stream, False, "int64", False), {"on_nan": on_nan})

    cases = [
        Case(f"cubic/tiny/{dtype}/{on_nan}", lambda random, d=dtype, n=on_nan: tiny(random, d, n))
        for dtype in FLOATS
        for on_nan in ("propagate", "skip")
    ]
    for method in ("linear", "nearest", "last", "mean"):
        for dtype in ("int64", "float64"):
            cases.append(
                Case(f"arrivals/far/{method}/{dtype}", lambda random, m=method, d=dtype: unarrived(random, m, d))
            )
    for on_nan in ("propagate", "skip"):
        cases.append(Case(f"names/{on_nan}", lambda random, n=on_nan: named(random, n)))
    return cases


def random_problem(random: Random, streams: int | None = None) -> Problem:
    """Anything with anything."""
    rows = random.integer(1, 5)
    number = random.choice([1, 1, 2, 3]) if streams is None else streams
    ordered = False
    made = []
    for k in range(number):
        dtype = random.choice(FLOATS + ["float32", "float64"] * 2 + INTEGERS)
        floats = dtype in FLOATS
        method = random.choice([*INTERPOLATING, *BINS] if floats else COPYING)
        channels = random.choice([1, 2, 3, 5, 7, 8, 9, 12, 16, 19, 33])
        if method == "slerp":
            channels = 4 * random.integer(1, 4)
        trailing = random.choice([(channels,), (channels,), (1, channels), (channels, 1)])
        if method != "slerp" and random.chance(4):
            trailing = (2, channels)
        ordered |= method in BINS
        whole: Any = method
        if floats and random.chance(4):
            total = math.prod(trailing)
            cut = random.integer(0, total + 1)
            pair = ("linear", "cubic") if method in INTERPOLATING else (method, "hold")
            whole = [(pair[0], 0, cut), (pair[1], cut, total)] if 0 < cut < total else pair[0]
        made.append(
            make_stream(
                random,
                dtype=dtype,
                trailing=trailing,
                method=whole if not random.chance(5) else None,
                layout=random.choice(LAYOUTS),
                rows=rows,
                samples=random.choice([0, 1, 2, 5, 16, 33]),
                strides=random.choice(STRIDES),
                time_strides=random.choice(["dense", "dense", "step", "negative", "window"]),
                time_dtype=random.choice(["int64", "int64", "float64", "float32"]),
                integer_dtype=random.choice(["int32", "int64"]),
                equal=random.chance(2),
                special=floats and random.chance(2),
                arrivals=random.choice([None, None, "ordered", "late"]),
                latency=random.choice([0, 0, 4_000_000, -4_000_000, 25_000_000]),
                max_gap=random.choice([None, PERIOD * 6 // 5, 3 * PERIOD, 0]),
                edge=random.choice([None, "clamp", "zero", "nan"] if floats else [None, "clamp", "zero"]),
                causal=random.choice([None, None, True, False]),
                on_nan=random.choice([None, "skip", "propagate"]),
                name=f"stream{k}",
            )
        )
    kind = random.choice(["list", "unsorted", "batched", "batched_unsorted", "timeline", "timelines", "around"])
    targets = make_targets(
        random,
        made[0],
        kind,
        count=random.choice([1, 2, 7, 24]),
        rows=rows,
        dtype=random.choice(["int64", "int64", "float64", "float32"]),
        rate=random.choice([50.0, 29.97, 333.0]),
        causal=True,
        bins=ordered,
    )
    return Problem(made, targets, {"causal": random.chance(3), "on_nan": random.choice(["propagate", "skip"])})


MIXED = 160


def _mixed() -> list[Case]:
    return [Case(f"mixed/{k}", random_problem) for k in range(MIXED)] if BFLOAT16 else []


def out_of_order(random: Random, stream: Stream) -> None:
    """Gives a stream arrivals in no order: most within a few periods, some before their stamp, some never."""
    late = random.integers(-2 * PERIOD, 12 * PERIOD, stream.times.shape)
    late = np.where(random.integers(0, 6, stream.times.shape) == 0, 10**15, late)
    with np.errstate(over="ignore", invalid="ignore"):  # padding holds garbage
        stream.arrivals = restride(back(stream.times) + late, "dense")


def decisions(random: Random, stream: Stream, shape, dtype: str) -> np.ndarray:
    """Times for as_of: on an arrival, beside one, before all and after all."""
    pool = np.sort(
        _real_stamps(stream if stream.arrivals is None else dataclasses.replace(stream, times=stream.arrivals))
    )
    pool = pool[pool < 10**12]
    if pool.size == 0:
        pool = np.array([10**9])
    number = math.prod(shape)
    at = pool[random.integers(0, len(pool), number)]
    kind = random.integers(0, 8, number)
    options = [at - 1, at + 1, np.full(number, pool[0] - 1), np.full(number, pool[-1] + PERIOD)]
    return in_dtype(np.select([kind == n for n in range(len(options))], options, at).reshape(shape), dtype)


AS_OF_FORMS = ["one", "seconds", "rows", "rows/float64", "rows/float32", "anchor"]


def with_as_of(random: Random, problem: Problem, form: str) -> Problem:
    """The problem as of decisions of one form. Streams that are causal by themselves have it off."""
    rows = oracle.row_count(problem.streams, problem.targets)
    as_of: Any = int(decisions(random, problem.streams[0], (1,), "int64")[0])
    if form == "seconds":
        as_of = as_of / 1e9
    elif form.startswith("rows") and rows is not None:
        as_of = decisions(random, problem.streams[0], (rows,), form[5:] or "int64")
    elif form == "anchor" and isinstance(problem.targets, Timeline) and problem.targets.first != 0:
        as_of = "anchor"
    for stream in problem.streams:
        if stream.causal:
            stream.as_of = False
        elif random.chance(6):
            stream.as_of = random.choice([False, as_of])
    return Problem(problem.streams, problem.targets, {**problem.options, "causal": False, "as_of": as_of})


def _as_of() -> list[Case]:
    def one(random: Random, method: str, layout: str) -> Problem:
        floats = method not in ("hold", "last") or random.chance(2)
        stream = make_stream(
            random,
            dtype=random.choice(["float32", "float64", "float16"]) if floats else random.choice(["int32", "uint8"]),
            trailing=(4,) if method == "slerp" else (random.integer(1, 6),),
            method=method,
            layout=layout,
            samples=random.choice([1, 5, 33]),
            time_dtype=random.choice(["int64", "int64", "float64"]),
            equal=random.chance(2),
            special=floats and random.chance(3),
            arrivals=random.choice([None, "ordered", "late"]),
            latency=random.choice([0, 0, 7_000_000, -7_000_000]),
            max_gap=random.choice([None, None, 3 * PERIOD]),
            edge=random.choice(["clamp", "clamp", "zero", "nan"] if floats else ["clamp", "zero"]),
            on_nan=random.choice(["propagate", "skip"]),
        )
        if random.chance(2):
            out_of_order(random, stream)
        form = random.choice(AS_OF_FORMS)
        kind = "around" if form == "anchor" else random.choice(["list", "unsorted", "batched", "timelines"])
        if kind == "unsorted" and method in BINS:
            kind = "list"
        targets = make_targets(random, stream, kind, count=24, causal=True, bins=method in BINS)
        return with_as_of(random, Problem([stream], targets), form)

    def mixed(random: Random) -> Problem:
        return with_as_of(random, random_problem(random), random.choice(AS_OF_FORMS))

    def unarrived(random: Random, method: str, rows: bool) -> Problem:
        """Most of many samples have not arrived: blocks of them are skipped, to both sides."""
        samples = 9000
        stream = make_stream(random, samples=1, layout="flat", method=method)
        stream.times = stamps(random, samples, random.chance(2))
        stream.arrivals = stream.times + 10**15
        early = random.integers(0, samples, 12)
        stream.arrivals[early] = stream.times[early] + random.integers(0, 50 * PERIOD, 12)
        stream.values = random.values((samples, 3), "float32")
        targets = target_list(random, (40,), stream, True, "int64", True)
        if not rows:
            return Problem([stream], targets, {"as_of": int(stream.times[random.integer(4000, samples)])})
        as_of = stream.times[random.integers(0, samples, 5)]
        return Problem([stream], np.broadcast_to(targets, (5, 40)).copy(), {"as_of": as_of})

    cases = []
    for method in (*INTERPOLATING, *BINS):
        for layout in LAYOUTS:
            name = f"as_of/{method}/{layout}"
            cases.append(Case(name, lambda random, m=method, layout=layout: one(random, m, layout)))
    for method in ("linear", "hold", "nearest", "cubic", "last", "mean"):
        for rows in (False, True):
            name = f"as_of/far/{method}/{'rows' if rows else 'one'}"
            cases.append(Case(name, lambda random, m=method, rows=rows: unarrived(random, m, rows)))
    cases += [Case(f"as_of/mixed/{k}", mixed) for k in range(80)] if BFLOAT16 else []
    return cases


CASES: list[Case] = [
    case
    for case in [
        *_methods(),
        *_layouts(),
        *_options(),
        *_sizes(),
        *_exact(),
        *_many(),
        *_limits(),
        *_mixed(),
        *_as_of(),
    ]
    if BFLOAT16 or ("bfloat16" not in case.name and case.name != "many/three")
]
assert len({case.name for case in CASES}) == len(CASES)
BY_NAME = {case.name: case for case in CASES}


@functools.cache
def problem_of(name: str) -> Problem:
    return BY_NAME[name].build()
