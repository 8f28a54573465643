"""A call as an operator's arguments: its tensors, and the `Call`, which is constant while tensors change.

Dynamo traces `pack`, so it is plain: strings, integers that may be symbolic, lists.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from robocache._align.methods import by_name
from robocache._align.stream import Stream, UncheckedStream, stored_duration
from robocache._align.timeline import Timeline, anchor_of
from robocache._limits import TIME_LIMIT_IN_WORDS

OPTIONAL = ("arrivals", "lengths", "offsets", "rows", "as_of")
LIST, TIMELINE, TIMELINES = 0, 1, 2  # the targets: a list, a timeline from one start, from a start for each row
NO_MAX_GAP = NO_AS_OF = 2**63 - 1
LEAST_LATENCY, LEAST_MAX_GAP = 1000, 1_000_000  # nanoseconds; a smaller int usually means another unit


class Call(NamedTuple):
    operation: str  # resample, align or fuse
    present: Sequence[int]  # for each stream a bit for each of OPTIONAL that it has; then the kind of targets
    words: Sequence[str]  # for each stream its Words
    numbers: Sequence[int]  # for each stream its Numbers; of a timeline: start, first, count
    rate: float  # of a timeline
    dtype: torch.dtype | None  # of fused values
    check: bool
    backend: str | None


SCHEMA = (
    "Tensor[] tensors, str operation, int[] present, str[] words, SymInt[] numbers, float rate, ScalarType? dtype, "
    "bool check, str? backend"
)


class Words(NamedTuple):
    """The words of one stream. `method` is "linear", or "linear 0 3,slerp 3 7"."""

    name: str
    method: str
    edge: str
    causal: str
    on_nan: str


class Numbers(NamedTuple):
    """The numbers of one stream."""

    latency: int
    max_gap: int
    as_of: int  # where it is one time, and no tensor
    channels: int  # the number of named channels; -1 without names


def words_of(call: Call, k: int) -> Words:
    return Words(*call.words[k * len(Words._fields) : (k + 1) * len(Words._fields)])


def numbers_of(call: Call, k: int) -> Numbers:
    return Numbers(*call.numbers[k * len(Numbers._fields) : (k + 1) * len(Numbers._fields)])


# ---- from the user's arguments


def pack(
    operation: str,
    names: Sequence[str | None],
    streams: Sequence[Stream[Any]],
    targets: Any,
    options: Mapping[str, Any],
    dtype: torch.dtype | None,
) -> tuple[list[Tensor], Call]:
    """The engine has already checked the options of an eager call. It has not seen a traced call yet."""
    tensors: list[Tensor] = []
    present: list[int] = []
    words: list[str] = []
    numbers: list[int] = []

    def add(where: str, what: str, array: Any) -> None:
        tensors.append(tensor(where, what, array, tensors[0] if tensors else None))

    for k, stream in enumerate(streams):
        where = place(operation, names, k)
        add(where, "values", stream.values)
        add(where, "times", stream.times)
        mask = 0
        as_of, as_of_ns = as_of_parts(operation, where, options["as_of"], stream.as_of, targets)
        for bit, array in enumerate((stream.arrivals, stream.lengths, stream.offsets, stream.rows, as_of)):
            if array is not None:
                add(where, OPTIONAL[bit], array)
                mask |= 1 << bit
        present.append(mask)
        causal = options["causal"] if stream.causal is None else stream.causal
        words += [
            names[k] or "",
            method_word(where, stream),
            options["edge"] if stream.edge is None else stream.edge,
            "true" if causal else "false",
            options["on_nan"] if stream.on_nan is None else stream.on_nan,
        ]
        numbers.append(duration(where, "latency", stream.latency))
        gap = stream.max_gap
        numbers.append(NO_MAX_GAP if gap is None else duration(where, "max_gap", gap, LEAST_MAX_GAP))
        numbers.append(as_of_ns)
        numbers.append(-1 if stream.channels is None else len(stream.channels))
    rate = 0.0
    if not isinstance(targets, Timeline):
        add(f"{operation}: ", "targets", targets)
        present.append(LIST)
    else:
        rate = float(targets.rate)
        start = targets.start
        if isinstance(start, np.ndarray) and start.ndim == 0:  # what Dynamo makes of numpy.int64(...)
            start = torch.as_tensor(start)
        if isinstance(start, (Tensor, np.ndarray)):  # Dynamo traces no `A | B` before torch 2.10
            add(f"{operation}: ", "the timeline's start", start)
            numbers += [0, targets.first, targets.count]
            present.append(TIMELINES)
        else:
            numbers += [start_ns(operation, start), targets.first, targets.count]
            present.append(TIMELINE)
    check, backend = bool(options["check"]), options["backend"]
    return tensors, Call(operation, present, words, numbers, rate, dtype, check, backend)


def place(operation: str, names: Sequence[str | None], k: int) -> str:
    """The beginning of an error sentence about stream k."""
    return f'{operation}: stream "{names[k] or k}": ' if names[k] or len(names) > 1 else f"{operation}: "


def start_ns(operation: str, start: Any) -> Any:
    return time_ns(f"{operation}: the timeline's start", start)


def time_ns(what: str, time: Any) -> Any:
    """A time in nanoseconds: a float is seconds. The engine checks everything else."""
    if isinstance(time, np.generic):
        time = time.item()
    if not isinstance(time, float):
        return time
    if not -math.inf < time < math.inf:
        raise ValueError(f"{what} = {time} s; it must be finite and within {TIME_LIMIT_IN_WORDS}")
    return round(time * 1e9)


def as_of_parts(operation: str, where: str, of_call: Any, of_stream: Any, targets: Any) -> tuple[Any, Any]:
    """A stream's as_of as an array of times or None, and as one time in nanoseconds or NO_AS_OF."""
    where = f"{operation}: " if of_stream is None else where
    as_of = of_call if of_stream is None else of_stream
    if as_of is None or as_of is False:
        return None, NO_AS_OF
    if isinstance(as_of, str) and as_of == "anchor":
        as_of = anchor_of(where, targets)
    if isinstance(as_of, np.ndarray) and as_of.ndim == 0:  # what Dynamo makes of numpy.int64(...)
        as_of = torch.as_tensor(as_of)
    if isinstance(as_of, (Tensor, np.ndarray)):
        return as_of, NO_AS_OF
    time = time_ns(f"{where}as_of", as_of)
    if isinstance(time, bool) or not isinstance(time, (int, torch.SymInt)):
        raise TypeError(
            f"{where}as_of is {as_of!r}; expected nanoseconds as an int, seconds as a float, an array with one time "
            'for each row, "anchor", or False'
        )
    if isinstance(time, int) and time == NO_AS_OF:
        raise ValueError(f"{where}as_of = {time} ns; it must be within {TIME_LIMIT_IN_WORDS}")
    return None, time


def tensor(where: str, what: str, array: Any, first: Tensor | None) -> Tensor:
    """Checks that it is on the device of the first tensor. A single number may be on the host."""
    if not isinstance(array, Tensor):
        raise TypeError(
            f"{where}{what} is a {type(array).__name__}; torch tensors and other arrays do not mix in one call"
        )
    if first is not None and array.device != first.device and (array.ndim > 0 or array.device.type != "cpu"):
        raise ValueError(
            f"{where}{what} is on {array.device} and the first stream's values on {first.device}; "
            "all must be on one device"
        )
    return array


def method_word(where: str, stream: Stream[Any]) -> str:
    method = stream.method
    if method is None:
        return "linear" if stream.values.is_floating_point() else "hold"
    if isinstance(method, str):
        return method
    ranges = named_ranges(where, method, stream.channels) if isinstance(method, Mapping) else method
    return ",".join([f"{name} {begin} {end}" for name, begin, end in ranges])


# Names are constants, and Dynamo warns about the cache inside fnmatch.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator, unused-ignore]
def named_ranges(where: str, methods: Mapping[str, str], channels: Sequence[str] | None) -> list[tuple[str, int, int]]:
    return by_name(where, methods, channels)


def duration(where: str, what: str, value: Any, least: int = LEAST_LATENCY) -> int:
    """Nanoseconds: a float is seconds, an int is nanoseconds."""
    if isinstance(value, datetime.timedelta):
        return (value.days * 86400 + value.seconds) * 10**9 + value.microseconds * 1000
    if isinstance(value, float):
        if not -math.inf < value < math.inf:  # Dynamo traces no math.isfinite
            raise ValueError(f"{where}{what} = {value} s; it must be finite and within {TIME_LIMIT_IN_WORDS}")
        return round(value * 1e9)
    if not isinstance(value, (int, torch.SymInt)):  # NumPy's scalars
        if type(value).__name__ == "timedelta64":
            return int(value.astype("timedelta64[ns]").astype("int64"))
        value = value.item() if hasattr(value, "item") else value
        if isinstance(value, float):
            return duration(where, what, value, least)
    if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)):
        raise TypeError(
            f"{where}{what} is {value!r}; expected seconds as a float, nanoseconds as an int, or a timedelta"
        )
    if -LEAST_LATENCY < value < 0 or 0 < value < least:
        raise ValueError(
            f"{where}{what} = {value} is {value} ns, since an int is nanoseconds; write seconds as a float: {value}.0, "
            f"or {value / 1000} for {value} ms"
        )
    return int(value)


# ---- and back

Arrays = dict[str, Tensor]


class Unpacked(NamedTuple):
    streams: list[Arrays]
    times: Tensor | None  # the list of targets, or a timeline's starts
    start: int
    first: int
    steps: int  # the number of targets
    rows: int | None  # B, or None if nothing has a batch dimension


def unpack(tensors: Sequence[Tensor], call: Call) -> Unpacked:
    """Compares no sizes, so that symbolic ones stay symbolic."""
    streams = []
    k = 0
    for mask in call.present[:-1]:
        arrays = {"values": tensors[k], "times": tensors[k + 1]}
        k += 2
        for bit, name in enumerate(OPTIONAL):
            if mask >> bit & 1:
                arrays[name] = tensors[k]
                k += 1
        streams.append(arrays)
    kind = call.present[-1]
    times = None if kind == TIMELINE else tensors[k]
    start, first, count = call.numbers[-3:] if kind != LIST else (0, 0, 0)
    if kind == LIST and times is not None and times.ndim > 0:
        count = times.shape[-1]
    return Unpacked(streams, times, start, first, count, batch_rows(streams, times, kind))


def batch_rows(streams: Sequence[Arrays], times: Tensor | None, kind: int) -> int | None:
    if times is not None and times.ndim == (2 if kind == LIST else 1):
        return times.shape[0]
    for arrays in streams:
        if "rows" in arrays:
            return arrays["rows"].shape[0]
        if "offsets" in arrays:
            return arrays["offsets"].shape[0] - 1
        if arrays["times"].ndim == 2:
            return arrays["times"].shape[0]
    return None


def value_positions(call: Call) -> list[int]:
    """The position of each stream's values among the tensors."""
    positions = []
    k = 0
    for mask in call.present[:-1]:
        positions.append(k)
        k += 2 + bin(mask).count("1")
    return positions


def channel_count(values: Tensor, times: Tensor) -> int:
    return math.prod(values.shape[times.ndim :])


def output_shape(unpacked: Unpacked, k: int) -> list[int]:
    """The shape of stream k's values in the result."""
    values, times = unpacked.streams[k]["values"], unpacked.streams[k]["times"]
    lead = [unpacked.steps] if unpacked.rows is None else [unpacked.rows, unpacked.steps]
    return [*lead, *values.shape[times.ndim :]]


def method_ranges(word: str, channels: int) -> list[tuple[str, int, int]]:
    if " " not in word:
        return [(word, 0, channels)]
    parts = [part.rsplit(" ", 2) for part in word.split(",")]
    return [(method, int(begin), int(end)) for method, begin, end in parts]


def bind(tensors: Sequence[Tensor], call: Call) -> tuple[list[Stream[Any]], Any]:
    """Streams and targets as the engine takes them. The options of the call are in each stream."""
    unpacked = unpack(tensors, call)
    streams: list[Stream[Any]] = []
    for k, arrays in enumerate(unpacked.streams):
        words, numbers = words_of(call, k), numbers_of(call, k)
        streams.append(
            UncheckedStream(
                arrays["values"],
                arrays["times"],
                arrivals=arrays.get("arrivals"),
                lengths=arrays.get("lengths"),
                offsets=arrays.get("offsets"),
                rows=arrays.get("rows"),
                method=method_ranges(words.method, 0) if " " in words.method else words.method,
                latency=stored_duration(numbers.latency),
                max_gap=None if numbers.max_gap == NO_MAX_GAP else stored_duration(numbers.max_gap),
                edge=words.edge,
                causal=words.causal == "true",
                as_of=bound_as_of(arrays, numbers),
                on_nan=words.on_nan,
                channels=None if numbers.channels < 0 else [""] * numbers.channels,
                name=words.name or None,
            )
        )
    if call.present[-1] == LIST:
        return streams, unpacked.times
    start = unpacked.start if unpacked.times is None else unpacked.times
    return streams, timeline(start, call.rate, unpacked.steps, unpacked.first)


def bound_as_of(arrays: Arrays, numbers: Numbers) -> Any:
    if "as_of" in arrays:
        return arrays["as_of"]
    return False if numbers.as_of == NO_AS_OF else numbers.as_of


def timeline(start: Any, rate: float, count: int, first: int) -> Timeline:
    line = Timeline(start, rate=rate, count=count)
    line.first = first
    return line
