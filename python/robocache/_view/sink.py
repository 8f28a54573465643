"""Sink: sends whole arrays to a Rerun recording.

Arrays go to `send_columns` as Arrow arrays over the same memory. Rerun's own helpers would convert and copy them.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache._recordings.source import Array
from robocache._recordings.words import need

RECORDING, ARRIVAL = "recording", "arrival"  # the two timelines
SINCE_1970 = 100_000_000 * 10**9  # nanoseconds: later times (from 1973 on) are shown as dates
APPLICATION = "robocache"


def rerun() -> Any:
    """The rerun package.

    Raises:
        ModuleNotFoundError: It is not installed.
    """
    try:
        import rerun

        rerun.StateChange, rerun.send_columns  # noqa: B018  another package named rerun, or an old one, lacks these
    except (ModuleNotFoundError, AttributeError):
        raise need("Rerun (rerun-sdk)", "view", "robocache view") from None
    return rerun


class Times(NamedTuple):
    """The times of an array's rows on each timeline: int64 nanoseconds [N]."""

    recording: NDArray[np.int64]
    arrival: NDArray[np.int64]

    def at(self, rows: Any) -> Times:
        return Times(self.recording[rows], self.arrival[rows])


class Sink:
    """A Rerun recording that is written to a file, or shown in a notebook.

    Args:
        recording: An `rerun.RecordingStream`.
        has_dates: Whether times are counted from 1970. Otherwise they are shown as durations.
        room: The most bytes that may be sent, because Rerun waits for ever if the disk is full.

    Attributes:
        sent: The bytes of arrays that were sent.
    """

    def __init__(self, recording: Any, has_dates: bool, room: int | None = None) -> None:
        import pyarrow

        self.rr, self.arrow = rerun(), pyarrow
        self.recording = recording
        self.kind = pyarrow.timestamp("ns") if has_dates else pyarrow.duration("ns")
        self.sent, self.room = 0, room

    def path(self, *parts: str) -> str:
        """The entity path of these parts, which may have any characters."""
        return "/".join(self.rr.escape_entity_path_part(label(part)) for part in parts)

    def columns(self, path: str, times: Times, columns: Iterable[tuple[Any, Any]]) -> None:
        """Sends columns: pairs of a component's descriptor and an Arrow list array with a row for each time."""
        indexes = [Column(name, self.stamps(array)) for name, array in zip((RECORDING, ARRIVAL), times, strict=True)]
        self._send(path, indexes, columns)

    def on_steps(self, path: str, name: str, offsets: Array, times: Times, columns: Iterable[tuple[Any, Any]]) -> None:
        """As `columns`, with a third timeline: `name`, in nanoseconds that count from an anchor."""
        buffer = self.arrow.py_buffer(np.ascontiguousarray(offsets, np.int64))
        steps = self.arrow.Array.from_buffers(self.arrow.duration("ns"), len(offsets), [None, buffer])
        stamps = [Column(each, self.stamps(array)) for each, array in zip((RECORDING, ARRIVAL), times, strict=True)]
        self._send(path, [Column(name, steps), *stamps], columns)

    def _send(self, path: str, indexes: Sequence[Column], columns: Iterable[tuple[Any, Any]]) -> None:
        made = [Component(descriptor, array) for descriptor, array in columns]
        self.spend(sum(each.array.nbytes for each in indexes) + sum(each.array.nbytes for each in made))
        self.rr.send_columns(path, indexes, made, recording=self.recording, strict=True)

    def spend(self, size: int) -> None:
        """Counts the bytes of the next columns, before they are sent.

        Raises:
            OSError: There is no room for them.
        """
        self.sent += size
        if self.room is not None and self.sent > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def stamps(self, times: Array) -> Any:
        buffer = self.arrow.py_buffer(np.ascontiguousarray(times, np.int64))
        return self.arrow.Array.from_buffers(self.kind, len(times), [None, buffer])

    def static(self, path: str, *archetypes: Any) -> None:
        """Sends what does not change with time."""
        for archetype in archetypes:
            self.recording.log(path, archetype, static=True, strict=True)

    # ---- Columns

    def scalars(self, values: Array) -> tuple[Any, Any]:
        """The column of values [N, D]: D numbers in each row."""
        values = np.ascontiguousarray(values, np.float64).reshape(len(values), -1)
        return self.rr.Scalars.descriptor_scalars(), self.fixed_rows(values)

    def fixed_rows(self, values: Array) -> Any:
        """Values [N, D] as an Arrow array of N lists of D numbers, over the same memory."""
        count, width = values.shape
        kinds = {"f8": self.arrow.float64(), "f4": self.arrow.float32(), "i4": self.arrow.int32()}
        flat = self.arrow.Array.from_buffers(
            kinds[values.dtype.str[1:]], values.size, [None, self.arrow.py_buffer(values)]
        )
        return self.arrow.ListArray.from_arrays(np.arange(count + 1, dtype=np.int32) * np.int32(width), flat)

    def vectors(self, rows: Array, lengths: NDArray[np.int64]) -> Any:
        """Vectors [M, K] as lists: the first lengths[0] vectors, then the next lengths[1], and so on."""
        rows = np.ascontiguousarray(rows)
        kind = {"f4": self.arrow.float32(), "i4": self.arrow.int32()}[rows.dtype.str[1:]]
        flat = self.arrow.Array.from_buffers(kind, rows.size, [None, self.arrow.py_buffer(rows)])
        field = self.arrow.field("item", kind, nullable=False)
        vectors = self.arrow.FixedSizeListArray.from_arrays(flat, type=self.arrow.list_(field, rows.shape[1]))
        return self.arrow.ListArray.from_arrays(ends_of(lengths), vectors)

    def flat_lists(self, values: Any, lengths: NDArray[np.int64]) -> Any:
        """The values as an Arrow array of lists of these lengths."""
        return self.arrow.ListArray.from_arrays(ends_of(lengths), values)

    def blobs(self, pieces: Sequence[Any]) -> Any:
        """An Arrow array with the bytes of one piece in each row."""
        lengths = np.asarray([len(piece) for piece in pieces], np.int64)
        flat = np.concatenate([np.zeros(0, np.uint8), *(np.frombuffer(piece, np.uint8) for piece in pieces)])
        bytes_of = self.arrow.Array.from_buffers(self.arrow.uint8(), flat.size, [None, self.arrow.py_buffer(flat)])
        kind = self.arrow.list_(self.arrow.field("item", self.arrow.uint8(), nullable=False))
        each = self.arrow.ListArray.from_arrays(ends_of(lengths), bytes_of, type=kind)
        return self.arrow.ListArray.from_arrays(np.arange(len(pieces) + 1, dtype=np.int32), each)

    def texts(self, words: Sequence[str]) -> Any:
        return self.arrow.ListArray.from_arrays(
            np.arange(len(words) + 1, dtype=np.int32), self.arrow.array(words, self.arrow.string())
        )


def label(name: str) -> str:
    """The name as text that Rerun accepts: bytes that are not UTF-8 are spelled out."""
    return name.encode("utf-8", "backslashreplace").decode()


def ends_of(lengths: NDArray[np.int64]) -> NDArray[np.int32]:
    ends = np.concatenate([[0], np.cumsum(lengths)])
    if ends[-1] > np.iinfo(np.int32).max:
        raise ValueError(f"view: {int(ends[-1]):,} rows or bytes of one entity are more than Rerun takes; show less")
    return ends.astype(np.int32)


class Column(NamedTuple):
    """A timeline for `send_columns`."""

    name: str
    array: Any

    def timeline_name(self) -> str:
        return self.name

    def as_arrow_array(self) -> Any:
        return self.array


class Component(NamedTuple):
    """A component for `send_columns`."""

    descriptor: Any
    array: Any

    def component_descriptor(self) -> Any:
        return self.descriptor

    def as_arrow_array(self) -> Any:
        return self.array


@contextlib.contextmanager
def strictly() -> Iterator[None]:
    """Inside, Rerun raises errors instead of printing them."""
    rr = rerun()
    before = rr.strict_mode()
    rr.set_strict_mode(True)
    try:
        yield
    finally:
        rr.set_strict_mode(before)


def paths_of(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The parts of each stream's path: "/camera/front" is ("camera", "front").

    If two names would have the same path, as "a" and "/a", each whole name is one part.
    """
    names = list(names)
    parts = {name: tuple(part for part in name.split("/") if part) or (name or " ",) for name in names}
    taken: dict[tuple[str, ...], int] = {}
    for found in parts.values():
        taken[found] = taken.get(found, 0) + 1
    return {name: found if taken[found] == 1 else (name or " ",) for name, found in parts.items()}
