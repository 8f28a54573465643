"""Aligned results as named columns, for pandas and Arrow."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from robocache._align.extent import nanoseconds, on_host
from robocache._align.timeline import Timeline
from robocache._recordings.words import need

if TYPE_CHECKING:
    from robocache._align.results import Aligned, Fused

Column = NDArray[Any]
Columns = list[tuple[str, Column]]
MOST_CHANNELS = 10_000  # of a stream: images do not fit into a table


def of_aligned(where: str, aligned: Aligned[Any], times: Any, channels: Sequence[str] | None) -> Columns:
    """The columns of one stream: row (of a batch), time, channels, valid, age, index."""
    valid = on_host(aligned.valid)
    flags: Columns = [("valid", valid), ("age", on_host(aligned.age)), ("index", on_host(aligned.index))]
    return [
        *targets(where, times, valid.shape),
        *channel_columns(where, on_host_as_table(aligned.values), valid.ndim, "value", channels, "{}"),
        *((name, column.reshape(-1)) for name, column in flags),
    ]


def of_fused(where: str, fused: Fused[Any], times: Any, channels: Mapping[str | int, Sequence[str]] | None) -> Columns:
    """The columns of all streams: row (of a batch), time, and for each stream its channels, valid and age."""
    values, valid, age = on_host_as_table(fused.values), on_host(fused.valid), on_host(fused.age)
    for name in channels or {}:
        if name not in fused.columns:
            raise ValueError(f"{where}: channels name stream {name!r}; there are: {', '.join(map(str, fused.columns))}")
    found = targets(where, times, valid.shape[:-1])
    for k, (name, chosen) in enumerate(fused.columns.items()):
        part = values[..., chosen]
        part = part[..., 0] if part.shape[-1] == 1 and name not in (channels or {}) else part
        found += channel_columns(where, part, valid.ndim - 1, str(name), (channels or {}).get(name), f"{name}.{{}}")
        found += [(f"{name}.valid", valid[..., k].reshape(-1)), (f"{name}.age", age[..., k].reshape(-1))]
    return found


def of_episodes(
    where: str,
    parts: Mapping[str, Aligned[Any]],
    channels: Mapping[str, Sequence[str]],
    episodes: Sequence[int],
    times: Any,
    lengths: Any,
) -> Columns:
    """The columns of a cache's episodes: episode, time, and for each stream its channels, valid, age and index.

    Steps after the end of an episode are left out.
    """
    stamps = on_host(times)
    inside = (np.arange(stamps.shape[1]) < on_host(lengths)[:, None]).reshape(-1)
    found: Columns = [("episode", np.repeat(np.asarray(episodes, np.int64), stamps.shape[1])), ("time", stamps)]
    for name, aligned in parts.items():
        found += channel_columns(where, on_host_as_table(aligned.values), 2, name, channels.get(name), f"{name}.{{}}")
        flags = (("valid", aligned.valid), ("age", aligned.age), ("index", aligned.index))
        found += [(f"{name}.{flag}", on_host(array)) for flag, array in flags]
    return [(name, column.reshape(-1)[inside]) for name, column in found]


def targets(where: str, times: Any, shape: tuple[int, ...]) -> Columns:
    """The columns `row`, of a batch, and `time`, for targets of this shape, [T] or [B, T]."""
    given = on_host(times.times if isinstance(times, Timeline) else times)
    if given.dtype.kind in "iu" or given.size == 0:
        given = given.astype(np.int64)
    if given.dtype != np.int64 and given.dtype not in (np.float32, np.float64):
        raise TypeError(f"{where}: times are {given.dtype}; they must be int64 nanoseconds or float seconds")
    if given.shape not in (shape, shape[-1:]):
        either = " or ".join(str(list(each)) for each in dict.fromkeys((shape[-1:], shape)))
        raise ValueError(f"{where}: times are {list(given.shape)}; expected {either}, the targets of the call")
    stamps = np.broadcast_to(nanoseconds(f"{where}: ", given), shape)
    rows: Columns = [("row", np.repeat(np.arange(shape[0]), shape[1]))] if len(shape) == 2 else []
    return [*rows, ("time", stamps.reshape(-1))]


def channel_columns(
    where: str, values: Column, leading: int, name: str, channels: Sequence[str] | None, form: str
) -> Columns:
    """A column for each channel. `leading` dimensions count targets; `form` makes a column's name of a channel's."""
    shape = values.shape[leading:]
    width = int(np.prod(shape, dtype=np.int64))
    if width > MOST_CHANNELS:
        raise ValueError(f"{where}: {name} has {width:,} channels; a table takes at most {MOST_CHANNELS:,}")
    if channels is not None and len(channels) != width:
        raise ValueError(f"{where}: {len(channels)} channels are named for {name}, which has {width}")
    if channels is not None:
        names = [form.replace("{}", channel) for channel in channels]
    else:
        names = [f"{name}[{','.join(map(str, place))}]" for place in np.ndindex(shape)] if shape else [name]
    flat = values.reshape(int(np.prod(values.shape[:leading], dtype=np.int64)), width)
    return [(each, flat[:, k]) for k, each in enumerate(names)]


def on_host_as_table(array: Any) -> Column:
    """An array on the host, of a dtype that tables have: bfloat16 becomes float32."""
    if str(getattr(array, "dtype", "")) == "torch.bfloat16":
        array = array.float()
    found = on_host(array)
    return found.astype(np.float32) if found.dtype.kind == "V" else found  # NumPy has no bfloat16 of its own


def unique(where: str, columns: Iterable[tuple[str, Column]]) -> dict[str, Column]:
    """The columns by name, as copies that share no memory with the result."""
    found: dict[str, Column] = {}
    for name, column in columns:
        if name in found:
            raise ValueError(f'{where}: two columns would be named "{name}"; give the channels other names: channels=')
        found[name] = np.array(column)
    return found


def imported(name: str, where: str) -> Any:
    """The package. Raises a ModuleNotFoundError that says how to install it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise need(name, "tables", where) from None


def to_pandas(where: str, columns: Columns) -> Any:
    return imported("pandas", where).DataFrame(unique(where, columns))


def to_arrow(where: str, columns: Columns) -> Any:
    arrow = imported("pyarrow", where)
    return arrow.table({name: arrow.array(column) for name, column in unique(where, columns).items()})
