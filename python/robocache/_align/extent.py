"""Where streams overlap: the first and last stamps of each, read on the host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from robocache import _core
from robocache._limits import TIME_LIMIT, TIME_LIMIT_IN_WORDS
from robocache._recordings.source import is_static

if TYPE_CHECKING:
    from robocache._align.stream import Stream

Stamps = NDArray[np.int64]


def overlap(names: Sequence[str | None], streams: Sequence[Stream[Any]], rate: float) -> tuple[Any, int]:
    """The start and the count of a Timeline. The start is nanoseconds; for rows an array like the streams' own."""
    if len(streams) == 0:
        raise ValueError("Timeline.over: there are no streams")
    moving = [k for k, stream in enumerate(streams) if not is_constant(stream)]
    if 0 < len(moving) < len(streams):
        names, streams = [names[k] for k in moving], [streams[k] for k in moving]
    if not 0 < _core.hertz("Timeline.over: rate", rate) < np.inf:
        raise ValueError(f"Timeline.over: rate is {rate}; it must be a positive number of hertz")
    start = end = np.int64(0) * np.zeros((), np.int64)
    filled: Any = np.ones((), bool)
    ranges: list[tuple[Stamps, Stamps]] = []
    for position, stream in enumerate(streams):
        where = f'Timeline.over: stream "{names[position] or position}": '
        first, last, any_sample = extent(where, stream)
        if start.ndim == 1 and first.ndim == 1 and len(start) != len(first):
            raise ValueError(f"{where}{len(first)} rows, but an earlier stream has {len(start)}")
        start = first if position == 0 else np.maximum(start, first)
        end = last if position == 0 else np.minimum(end, last)
        filled = filled & any_sample
        ranges.append((first, last))
    count = steps(np.where(filled, end - start, -1), rate)
    if start.ndim == 0:
        if filled and end < start:
            refuse(names, ranges)
        return int(start), count
    return like(streams[0].times, start), count


def is_constant(stream: Stream[Any]) -> bool:
    """Whether it is a static stream of a recording, such as tf_static. It does not limit a timeline."""
    info = getattr(stream, "info", None)
    return info is not None and is_static(info)


def refuse(names: Sequence[str | None], ranges: Sequence[tuple[Stamps, Stamps]]) -> NoReturn:
    """Raises for streams that do not overlap. Names the one that begins last and the one that ends first."""
    late = max(range(len(ranges)), key=lambda k: ranges[k][0])
    early = min(range(len(ranges)), key=lambda k: ranges[k][1])
    said = [f'"{names[k] or k}" runs from {ranges[k][0]} to {ranges[k][1]} ns' for k in (early, late)]
    if early == late:
        raise ValueError(f"Timeline.over: stream {said[0]}; times must not decrease")
    raise ValueError(
        f"Timeline.over: the streams do not overlap: {said[0]}, {said[1]}; are they on one clock, in one unit?"
    )


def extent(where: str, stream: Stream[Any]) -> tuple[Stamps, Stamps, NDArray[np.bool_]]:
    """First and last stamp minus latency, and whether there is a sample: scalars, or [B] for a stream with rows."""
    times = stream.times
    if not hasattr(times, "shape"):
        raise TypeError(f"{where}times are of type {type(times).__name__}; expected an array")
    check_dtype(
        where, "times", times, ("int64", "float64", "float32"), "int64 nanoseconds, or float64 or float32 seconds"
    )
    for name, array in (("lengths", stream.lengths), ("offsets", stream.offsets), ("rows", stream.rows)):
        if array is not None:
            check_dtype(where, name, array, ("int64", "int32"), "int64 or int32")
    rank = len(times.shape)
    if rank not in (1, 2) or (stream.offsets is not None and rank != 1):
        raise ValueError(f"{where}times have {rank} dimensions; expected [S], [B, S], or [N] with offsets")
    if stream.offsets is not None:
        bounds = on_host(stream.offsets).astype(np.int64)
        begin, end = bounds[:-1], bounds[1:]
        counts = end - begin
        flat = on_host(times)
        if np.any(begin < 0) or np.any(end < begin) or np.any(end > len(flat)):
            raise ValueError(f"{where}offsets must not decrease, and lie within the {len(flat)} samples")
    elif rank == 2 and stream.lengths is not None:
        lengths = on_host(stream.lengths).astype(np.int64)
        if lengths.shape != times.shape[:1] or np.any(lengths < 0) or np.any(lengths > times.shape[1]):
            raise ValueError(f"{where}lengths must be [{times.shape[0]}], each from 0 to {times.shape[1]}")
        flat = on_host(times).reshape(-1)
        begin = np.arange(times.shape[0], dtype=np.int64) * times.shape[1]
        end = begin + lengths
        counts = lengths
    else:  # only the ends are read
        samples = times.shape[-1]
        ends = [on_host(times[..., k : k + 1]) for k in (0, max(samples - 1, 0))]
        flat = np.stack(ends, axis=-1).reshape(-1)
        begin = 2 * np.arange(times.shape[0] if rank == 2 else 1, dtype=np.int64)
        end = begin + (2 if samples > 0 else 0)
        if rank == 1:
            begin, end = begin[0], end[0]
        counts = np.full_like(begin, samples)
    filled = np.asarray(end > begin)
    zero = flat.dtype.type(0)
    padded = np.append(flat, zero)  # an entry for empty rows to read
    latency = _core.nanoseconds(where + "latency", stream.latency)

    def stamps(at: Any) -> Stamps:  # converted after they are picked: padding may hold anything
        return np.where(filled, nanoseconds(where, np.where(filled, padded[at], zero)) - latency, np.int64(0))

    first, last = stamps(np.minimum(begin, len(flat))), stamps(np.maximum(end, 1) - 1)
    if flat.dtype == np.int64:
        check_unit(where, int(np.sum(last - first)), int(np.sum(np.maximum(counts - 1, 0))))
    if stream.rows is not None:
        rows = on_host(stream.rows).astype(np.int64)
        if first.ndim == 0 or np.any(rows < 0) or np.any(rows >= len(first)):
            raise ValueError(f"{where}rows must name rows of the stream, which has {first.size}")
        first, last, filled = first[rows], last[rows], filled[rows]
    return first, last, filled


def check_unit(where: str, span: int, gaps: int) -> None:
    """Refuses integer times that are too close for nanoseconds: no sensor runs at a megahertz."""
    if 0 < span < 1000 * gaps:
        raise ValueError(
            f"{where}integer times are nanoseconds, and these are {span / gaps:.3g} ns apart on average; convert them: "
            "t * 1_000_000_000 where t is seconds, t * 1_000_000 where it is milliseconds"
        )


def steps(spans: Stamps, rate: float) -> int:
    """How many steps of the timeline lie within the longest span; the last at or before its end."""
    return steps_within(int(spans.max(initial=-1)), rate)


def steps_within(span: int, rate: float) -> int:
    """How many steps of a timeline lie within a span of so many nanoseconds; the last at or before its end."""
    if span < 0:
        return 0
    count = math.floor(span * rate / 1e9) + 2  # steps are rounded to nanoseconds, so one may lie a little earlier
    while count > 1 and round((count - 1) * 1e9 / rate) > span:
        count -= 1
    return count


def nanoseconds(where: str, stamps: NDArray[Any]) -> Stamps:
    if stamps.dtype == np.float32 and np.any(np.abs(stamps) > 2**14):
        raise ValueError(f"{where}times are too large for float32; give float64 seconds or int64 nanoseconds")
    with np.errstate(over="ignore"):
        ns = stamps if stamps.dtype == np.int64 else np.rint(stamps.astype(np.float64) * 1e9)
    if not np.all((ns > -TIME_LIMIT) & (ns < TIME_LIMIT)):
        raise ValueError(f"{where}times must be numbers below {TIME_LIMIT_IN_WORDS} (146 years)")
    return ns.astype(np.int64)


def check_dtype(where: str, name: str, array: Any, accepted: Sequence[str], expected: str) -> None:
    """Checks a dtype before NumPy reads the array: NumPy may not know the dtypes of other libraries."""
    dtype = str(getattr(array, "dtype", type(array).__name__)).removeprefix("torch.")
    if dtype not in accepted:
        raise TypeError(
            f"{where}{name} are {dtype}; they must be {expected}"
            + (" (JAX has int64 with jax_enable_x64)" if "jax" in type(array).__module__ else "")
        )


def on_host(array: Any) -> NDArray[Any]:
    if hasattr(array, "detach"):  # torch
        array = array.detach().cpu()
    elif hasattr(array, "__cuda_array_interface__") and hasattr(array, "get"):  # CuPy
        array = array.get()
    return np.asarray(array)


def like(times: Any, starts: Stamps) -> Any:
    """The starts as an array of the same kind, on the same device."""
    library = type(times).__module__.partition(".")[0]
    if hasattr(times, "detach"):
        import torch

        return torch.from_numpy(starts).to(times.device)
    if library == "cupy":
        import cupy

        with times.device:
            return cupy.asarray(starts)
    if library in ("jax", "jaxlib"):
        import jax

        wide = jax.dtypes.canonicalize_dtype(np.int64) == np.int64
        return jax.device_put(starts if wide else (starts / 1e9).astype(np.float32), next(iter(times.devices())))
    return starts
