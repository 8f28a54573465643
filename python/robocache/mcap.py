"""MCAP files: read and write, fast. For people who want only MCAP.

A path is a path, an address that fsspec opens ("s3://..."), a file object, or bytes in memory. Damaged parts are
skipped with an `McapWarning` that says what was lost. A file that is not MCAP raises `FileError`.

Examples:
    >>> from robocache import mcap
    >>> for m in mcap.messages("drive.mcap", topics=["/imu"], start=t0, end=t1):     # in log-time order
    ...     m.topic, m.schema, m.log_time, m.publish_time, m.sequence, m.data
    >>> for r in mcap.records("drive.mcap"):                                         # every record, in file order
    ...     r.type, r.fields
    >>> with mcap.Writer("out.mcap", compression="zstd") as w:
    ...     schema = w.add_schema("demo/Point", "jsonschema", text)
    ...     channel = w.add_channel("/points", "json", schema)
    ...     w.write(channel, data, log_time=t)
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, NamedTuple, Protocol, TypeVar

from robocache import _core
from robocache._recordings.bytes import ForkLock, Source, source_of
from robocache._recordings.mcap_writer import Writer

__all__ = ["Channel", "McapWarning", "Message", "Reader", "Record", "Schema", "Writer", "messages", "records"]

_AT_ONCE = 500  # messages or records for each call into the engine
_MOST = (1 << 64) - 1
Item = TypeVar("Item")
Writer.__module__ = __name__  # where users find it


def __dir__() -> list[str]:
    return sorted(__all__)  # what users need: no helpers, nothing imported


class McapWarning(UserWarning):
    """A part of a file was damaged or missing; the text says which part, and what was skipped."""


class Schema(NamedTuple):
    """A schema record.

    Attributes:
        id: Its number in the file.
        name: "sensor_msgs/msg/Imu".
        encoding: "ros2msg".
        data: The definition.
    """

    id: int
    name: str
    encoding: str
    data: bytes

    def __repr__(self) -> str:
        return f"Schema(id={self.id}, name={self.name!r}, encoding={self.encoding!r}, data={len(self.data)} bytes)"


class Channel(NamedTuple):
    """A channel record.

    Attributes:
        id: Its number in the file.
        topic: "/imu".
        message_encoding: "cdr".
        metadata: What the writer added.
        schema: Its `Schema`, or None.
    """

    id: int
    topic: str
    message_encoding: str
    metadata: dict[str, str]
    schema: Schema | None


class Record(NamedTuple):
    """Any record of a file.

    Attributes:
        type: "Channel".
        fields: The fields, named as in the MCAP specification.
    """

    type: str
    fields: dict[str, Any]


class Message(Protocol):
    """A message, as `messages` returns it."""

    @property
    def topic(self) -> str:
        """The channel's topic."""
        ...

    @property
    def schema(self) -> Schema | None:
        """The channel's schema, or None."""
        ...

    @property
    def channel(self) -> Channel:
        """The channel."""
        ...

    @property
    def log_time(self) -> int:
        """Nanoseconds: when it was recorded."""
        ...

    @property
    def publish_time(self) -> int:
        """Nanoseconds: when it was published."""
        ...

    @property
    def sequence(self) -> int:
        """The writer's sequence number."""
        ...

    @property
    def data(self) -> bytes:
        """The content."""
        ...


class _Warner:
    """Issues each warning of the engine once."""

    def __init__(self, engine: _core.McapReader | _core.McapRecords) -> None:
        self.engine, self.told, self.lock = engine, 0, ForkLock()

    def tell(self, level: int) -> None:
        with self.lock:
            fresh = self.engine.warnings(self.told)
            self.told += len(fresh)
        for sentence in fresh:
            warnings.warn(sentence, McapWarning, stacklevel=level + 1)


class Reader:
    """Reads an MCAP file. Opening it reads the summary; a file without a summary is scanned once.

    `close`, or the end of a `with` block, releases the file; your own file object stays open. Threads may share a
    Reader and an iterator that `messages` returned: each message goes to one of them.

    Args:
        path: A path, an address that fsspec opens, a file object, or bytes.
    """

    def __init__(self, path: Source) -> None:
        source, self.name = source_of(path, "mcap.Reader")
        self._opened: _core.McapReader | None = _core.McapReader(source, self.name, Schema, Channel)
        self._warner: _Warner | None = _Warner(self._opened)
        self._warner.tell(2)

    @property
    def _engine(self) -> _core.McapReader:
        if self._opened is None:
            raise ValueError(f"mcap.Reader: {self.name} was closed")
        return self._opened

    def close(self) -> None:
        """Releases the file. Running iterators hold it until they end. A second call does nothing."""
        self._opened = self._warner = None

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._opened is None:
            return f"Reader({self.name!r}, closed)"
        return f"Reader({self.name!r}, {len(self.channels)} channels, {len(self.chunk_indexes)} chunks)"

    @property
    def header(self) -> dict[str, str]:
        """The header record."""
        return self._engine.header

    @property
    def is_indexed(self) -> bool:
        """False if the file has no usable summary and was scanned."""
        return self._engine.is_indexed

    @property
    def channels(self) -> dict[int, Channel]:
        """{id: Channel}."""
        return self._engine.channels()

    @property
    def schemas(self) -> dict[int, Schema]:
        """{id: Schema}."""
        return self._engine.schemas()

    @property
    def statistics(self) -> dict[str, Any] | None:
        """The statistics record; None if the summary has none."""
        return self._engine.statistics()

    @property
    def chunk_indexes(self) -> list[dict[str, Any]]:
        """The chunk index records, with fields named as in the specification."""
        return self._engine.chunk_indexes()

    @property
    def attachment_indexes(self) -> list[dict[str, Any]]:
        """The attachment index records, with fields named as in the specification."""
        return self._engine.attachment_indexes()

    @property
    def metadata_indexes(self) -> list[dict[str, Any]]:
        """The metadata index records, with fields named as in the specification."""
        return self._engine.metadata_indexes()

    @property
    def warnings(self) -> list[str]:
        """The damage that was found and the parts that were skipped so far."""
        return self._engine.warnings(0)

    def attachment(self, place: int) -> dict[str, Any]:
        """One attachment.

        Args:
            place: Its position in `attachment_indexes`.

        Returns:
            Its fields, named as in the specification.
        """
        return self._engine.attachment(operator.index(place))

    def metadata(self, place: int) -> dict[str, Any]:
        """One metadata record.

        Args:
            place: Its position in `metadata_indexes`.

        Returns:
            Its fields, named as in the specification.
        """
        return self._engine.metadata(operator.index(place))

    def message_indexes(self, chunk: int) -> list[dict[str, Any]]:
        """Log times and offsets of the messages of a chunk, by channel. The chunk is not decompressed.

        Args:
            chunk: Its position in `chunk_indexes`.

        Returns:
            The message index records, with fields named as in the specification.
        """
        return self._engine.message_indexes(operator.index(chunk))

    def messages(
        self,
        topics: str | Iterable[str] | None = None,
        start: int | float | None = None,
        end: int | float | None = None,
        *,
        in_order: bool = True,
    ) -> Iterator[Message]:
        """The messages of the file, as `mcap.messages`.

        Args:
            topics: As in `mcap.messages`.
            start: As in `mcap.messages`.
            end: As in `mcap.messages`.
            in_order: False: in file order, which is faster if chunks overlap.

        Returns:
            An iterator of `Message`; threads may share it.
        """
        return self._messages(topics, start, end, in_order)

    def _messages(
        self, topics: str | Iterable[str] | None, start: int | float | None, end: int | float | None, in_order: bool
    ) -> Iterator[Message]:
        names = [topics] if isinstance(topics, str) else None if topics is None else list(topics)
        first, last = _time("start", start), _time("end", end)
        if first is not None and first > _MOST:
            names = []
        stop = None if last is None or last > _MOST else last
        warner = self._warner
        chosen = _core.McapMessages(self._engine, names, min(first or 0, _MOST), stop, in_order)
        assert warner is not None
        return _SharedIterator(lambda: chosen.take(_AT_ONCE), warner)


class _SharedIterator(Iterator[Item]):
    """Items that come in batches. Threads may share it: each item goes to one of them."""

    def __init__(self, take: Callable[[], list[Item]], warner: _Warner) -> None:
        self._take = take
        self._warner = warner
        self._lock = ForkLock()
        self._left: Iterator[Item] | None = iter(())  # of the last batch; None: all were given out

    def __iter__(self) -> Iterator[Item]:
        """A generator, which is faster than __next__. All generators take from the same batch."""
        while (left := self._left) is not None:
            yield from left
            self._refill(left)

    def __next__(self) -> Item:
        while (left := self._left) is not None:
            for item in left:
                return item
            self._refill(left)
        raise StopIteration

    def _refill(self, spent: Iterator[Item]) -> None:
        with self._lock:
            if self._left is not spent:  # another thread was here
                return
            batch = self._take()
            self._left = iter(batch) if batch else None
            self._warner.tell(3)

    def close(self) -> None:
        self._left = None


def _time(name: str, given: int | float | None) -> int | None:
    """Nanoseconds of an int (nanoseconds) or a float (seconds). Negative times become 0."""
    if given is None:
        return None
    if isinstance(given, float):
        if given != given:
            raise ValueError(f"mcap.messages: {name} is nan; expected nanoseconds (int) or seconds (float)")
        return max(0, round(min(given, 2e10) * 1e9))
    try:
        return max(0, operator.index(given))
    except TypeError:
        raise TypeError(
            f"mcap.messages: {name} is {given!r:.80}; expected nanoseconds (int) or seconds (float)"
        ) from None


def messages(
    path: Source,
    topics: str | Iterable[str] | None = None,
    start: int | float | None = None,
    end: int | float | None = None,
) -> Iterator[Message]:
    """The messages of a file in log-time order; equal times in file order.

    Only chunks that may have such messages are read. Memory is bounded, whatever the file's size and order.

    Args:
        path: A path, an address that fsspec opens, a file object, or bytes.
        topics: A topic or several. None: all.
        start: Only log times >= start: nanoseconds (int) or seconds (float).
        end: Only log times < end.

    Returns:
        An iterator of `Message`; threads may share it.

    Raises:
        ValueError: The file has no such topic.
        FileError: The file is not MCAP, or cannot be read.
    """
    return Reader(path)._messages(topics, start, end, True)


def records(path: Source, *, unpack: bool = True) -> Iterator[Record]:
    """Every record of a file, in file order.

    Strings are str, data is bytes, maps are dicts, and all other fields are ints. As in the conformance files, an
    Attachment has no crc; it was checked.

    Args:
        path: A path, an address that fsspec opens, a file object, or bytes.
        unpack: True: the records inside a chunk, instead of the Chunk and the MessageIndex records that follow it.
            False: the Chunk and MessageIndex records themselves.

    Returns:
        An iterator of `Record`; threads may share it.
    """
    source, name = source_of(path, "mcap.records")
    engine = _core.McapRecords(source, name, bool(unpack))
    return _SharedIterator(lambda: [Record(*record) for record in engine.take(_AT_ONCE)], _Warner(engine))
