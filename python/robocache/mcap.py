"""MCAP files, for people who only want MCAP, fast. The engine reads and writes them (robocache/mcap.h).

    from robocache import mcap

    for m in mcap.messages("drive.mcap", topics=["/imu"], start=t0, end=t1):     # log-time order
        m.topic, m.schema, m.log_time, m.publish_time, m.sequence, m.data
    for r in mcap.records("drive.mcap"):                                         # every record, in file order
        r.type, r.fields
    with mcap.Writer("out.mcap", compression="zstd") as w:
        schema = w.add_schema("demo/Point", "jsonschema", text)
        channel = w.add_channel("/points", "json", schema)
        w.write(channel, data, log_time=t)

A path is a path, an address that fsspec opens ("s3://..."), a file object, or bytes in memory. What is damaged is left
out with an McapWarning that says what was lost; a file that is no MCAP raises FileError.
"""

from __future__ import annotations

import operator
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from robocache import _core
from robocache._bytes import ForkLock, Source, source_of

__all__ = ["Channel", "McapWarning", "Message", "Reader", "Record", "Schema", "Writer", "messages", "records"]

_AT_ONCE = 500  # messages or records for each call into the engine
_MOST = (1 << 64) - 1


class McapWarning(UserWarning):
    """A part of a file was damaged or missing; the sentence says which, and what was left out."""


class Schema(NamedTuple):
    id: int
    name: str  # "sensor_msgs/msg/Imu"
    encoding: str  # "ros2msg"
    data: bytes

    def __repr__(self) -> str:
        return f"Schema(id={self.id}, name={self.name!r}, encoding={self.encoding!r}, data={len(self.data)} bytes)"


class Channel(NamedTuple):
    id: int
    topic: str
    message_encoding: str  # "cdr"
    metadata: dict[str, str]
    schema: Schema | None


class Record(NamedTuple):
    type: str  # "Channel"
    fields: dict[str, Any]  # names as in the specification


class Message(Protocol):
    """What messages() hands out; a light object of the engine's."""

    @property
    def topic(self) -> str: ...
    @property
    def schema(self) -> Schema | None: ...
    @property
    def channel(self) -> Channel: ...
    @property
    def log_time(self) -> int: ...
    @property
    def publish_time(self) -> int: ...
    @property
    def sequence(self) -> int: ...
    @property
    def data(self) -> bytes: ...


class _Warner:
    """Tells of an engine's new warnings, once."""

    def __init__(self, engine: _core.McapReader | _core.McapRecords) -> None:
        self.engine, self.told, self.lock = engine, 0, ForkLock()

    def tell(self, level: int) -> None:
        with self.lock:
            fresh = self.engine.warnings(self.told)
            self.told += len(fresh)
        for sentence in fresh:
            warnings.warn(sentence, McapWarning, stacklevel=level + 1)


class Reader:
    """A file's content. Opening it reads the summary; a file that has none is scanned once.

    header, channels, schemas, statistics   as in the file; statistics is None where the summary has none
    chunk_indexes, attachment_indexes, metadata_indexes   lists of dicts, names as in the specification

    close(), or the end of a `with` block, lets go of the file; a file object of yours stays open.

    Threads may share a Reader, each with messages() of its own. What messages() returns is for one thread: a second one
    gets a ValueError.
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
        """Messages that are being iterated over hold the file until they end; a second call does nothing."""
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
        return self._engine.header

    @property
    def is_indexed(self) -> bool:
        """False: the file was scanned."""
        return self._engine.is_indexed

    @property
    def channels(self) -> dict[int, Channel]:
        return self._engine.channels()

    @property
    def schemas(self) -> dict[int, Schema]:
        return self._engine.schemas()

    @property
    def statistics(self) -> dict[str, Any] | None:
        return self._engine.statistics()

    @property
    def chunk_indexes(self) -> list[dict[str, Any]]:
        return self._engine.chunk_indexes()

    @property
    def attachment_indexes(self) -> list[dict[str, Any]]:
        return self._engine.attachment_indexes()

    @property
    def metadata_indexes(self) -> list[dict[str, Any]]:
        return self._engine.metadata_indexes()

    @property
    def warnings(self) -> list[str]:
        """What was damaged so far, and what was left out."""
        return self._engine.warnings(0)

    def attachment(self, place: int) -> dict[str, Any]:
        """The attachment of attachment_indexes[place]."""
        return self._engine.attachment(operator.index(place))

    def metadata(self, place: int) -> dict[str, Any]:
        """The metadata of metadata_indexes[place]."""
        return self._engine.metadata(operator.index(place))

    def message_indexes(self, chunk: int) -> list[dict[str, Any]]:
        """The log times and offsets of the messages in chunk_indexes[chunk], by channel; nothing is unpacked."""
        return self._engine.message_indexes(operator.index(chunk))

    def messages(
        self,
        topics: str | Iterable[str] | None = None,
        start: int | float | None = None,
        end: int | float | None = None,
        *,
        in_order: bool = True,
    ) -> Iterator[Message]:
        """As mcap.messages. in_order=False: as they lie in the file, which is faster where chunks overlap."""
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
        return _each(chosen, warner)


def _each(chosen: _core.McapMessages, warner: _Warner) -> Iterator[Message]:
    while batch := chosen.take(_AT_ONCE):
        warner.tell(2)
        yield from batch
    warner.tell(2)


def _time(name: str, given: int | float | None) -> int | None:
    """Integers are nanoseconds, floats are seconds. Nothing is before zero."""
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
    """The messages of a file in log-time order, equal times in file order.

    topics: a name or several; None is all, and one that the file does not have is a ValueError. start, end: log times
    in [start, end), nanoseconds where they are integers, seconds where they are floats. Only chunks that may have such
    messages are read. Memory is bounded whatever the file's size and order.
    """
    return Reader(path)._messages(topics, start, end, True)


def records(path: Source, *, unpack: bool = True) -> Iterator[Record]:
    """Every record of a file, in file order. Strings are str, data is bytes, maps are dicts, the rest are ints.

    As in the conformance files, an Attachment comes without its crc, which was checked.

    unpack: a chunk's records in the place of the chunk and of the message indexes that follow it; else the Chunk and
    MessageIndex records themselves.
    """
    source, name = source_of(path, "mcap.records")
    engine = _core.McapRecords(source, name, bool(unpack))
    return _each_record(engine)


def _each_record(engine: _core.McapRecords) -> Iterator[Record]:
    warner = _Warner(engine)
    while batch := engine.take(_AT_ONCE):
        warner.tell(2)
        for kind, fields in batch:
            yield Record(kind, fields)
    warner.tell(2)


def _check_numbers(call: str, **numbers: tuple[Any, int]) -> None:
    """Raises a sentence for the first number that a field of so many bits does not hold."""
    for name, (number, bits) in numbers.items():
        if isinstance(number, bool) or not hasattr(number, "__index__"):
            raise TypeError(f"mcap.Writer.{call}: {name} is {number!r}; expected an int")
        value = operator.index(number)
        if not 0 <= value < 1 << bits:
            why = "; MCAP's times are nanoseconds and never negative: add an offset to all of them" * (bits == 64)
            raise ValueError(f"mcap.Writer.{call}: {name} is {value}; it must be from 0 to 2^{bits} - 1{why}")


class Writer:
    """Writes an MCAP file: a chunk goes out when it is full, so that a file that was cut off reads up to its last one.

    path          a path, or a file object that is open for writing bytes (and is left open)
    compression   "zstd", "lz4", or None (or "none", or "")
    chunk_size    bytes of a chunk before it is compressed; chunks=False: messages lie in the file as they are
    level         of zstd
    Each of the other options leaves a part of the file out where it is False.

    Threads may share a Writer: their calls wait for each other. When close() returns, a file given by its path is on
    the disk, also if the power fails then. After os.fork() the file stays the parent's.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Any,
        compression: str | None = "zstd",
        *,
        chunk_size: int = 4 << 20,
        level: int = 1,
        profile: str = "",
        library: str | None = None,
        chunks: bool = True,
        message_indexes: bool = True,
        schemas: bool = True,
        channels: bool = True,
        statistics: bool = True,
        chunk_indexes: bool = True,
        attachment_indexes: bool = True,
        metadata_indexes: bool = True,
        summary_offsets: bool = True,
        crcs: bool = True,
    ) -> None:
        if compression not in ("zstd", "lz4", "none", "", None):
            raise ValueError(f'mcap.Writer: compression is {compression!r:.80}; expected "zstd", "lz4" or None')
        options = {
            "compression": compression or "none",
            "chunk_size": operator.index(chunk_size),
            "level": operator.index(level),
            "profile": profile,
            "library": f"robocache {_core.version()}" if library is None else library,
            "chunks": bool(chunks),
            "message_indexes": bool(message_indexes),
            "schemas": bool(schemas),
            "channels": bool(channels),
            "statistics": bool(statistics),
            "chunk_indexes": bool(chunk_indexes),
            "attachment_indexes": bool(attachment_indexes),
            "metadata_indexes": bool(metadata_indexes),
            "summary_offsets": bool(summary_offsets),
            "crcs": bool(crcs),
        }
        to: Any
        if isinstance(path, str | os.PathLike):
            name = os.fsdecode(os.fspath(path))
            to = os.fsencode(name)
        elif hasattr(path, "write"):
            name, to = str(getattr(path, "name", "a file object")), _Output(path)
        else:
            raise TypeError(f"mcap.Writer: path is {path!r:.80}; expected a path, or a file object to write to")
        self._engine = _core.McapWriter(to, name, options)

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What was written so far becomes a whole file, also where an exception ends it."""
        try:
            self.close()
        except Exception:
            if error is None:
                raise

    def add_schema(self, name: str, encoding: str, data: str | bytes, *, id: int | None = None) -> int:
        """Its id: the next one, that of an equal schema, or the given one."""
        content = data.encode() if isinstance(data, str) else data
        if id is None:
            return self._engine.add_schema(name, encoding, content)
        self._engine.declare_schema(id, name, encoding, content)
        return id

    def add_channel(
        self,
        topic: str,
        message_encoding: str,
        schema: int | None = None,
        metadata: Mapping[str, str] | None = None,
        *,
        id: int | None = None,
    ) -> int:
        """Its id, as add_schema's. schema: the id of one, or None."""
        if id is None:
            return self._engine.add_channel(topic, message_encoding, schema or 0, dict(metadata or {}))
        self._engine.declare_channel(id, schema or 0, topic, message_encoding, dict(metadata or {}))
        return id

    def write(self, channel: int, data: Any, log_time: int, publish_time: int | None = None, sequence: int = 0) -> None:
        """A message: bytes (any buffer) on a channel. Times are nanoseconds from 0 to 2^64 - 1; publish_time=None is
        log_time."""
        published = log_time if publish_time is None else publish_time
        try:
            self._engine.write(channel, data, log_time, published, sequence)
        except TypeError:
            _check_numbers("write", channel=(channel, 16), sequence=(sequence, 32))
            _check_numbers("write", log_time=(log_time, 64), publish_time=(published, 64))
            raise

    def attach(
        self,
        name: str,
        data: Any,
        media_type: str = "application/octet-stream",
        log_time: int = 0,
        create_time: int = 0,
    ) -> None:
        try:
            self._engine.attach(name, media_type, data, log_time, create_time)
        except TypeError:
            _check_numbers("attach", log_time=(log_time, 64), create_time=(create_time, 64))
            raise

    def add_metadata(self, name: str, metadata: Mapping[str, str]) -> None:
        self._engine.add_metadata(name, dict(metadata))

    def flush(self) -> None:
        """Ends the chunk, so that everything so far is in the file. It survives a power failure only after close()."""
        self._engine.flush()

    def close(self) -> None:
        """Ends the file and puts it on the disk (fsync); a second call does nothing."""
        self._engine.finish()

    @property
    def statistics(self) -> dict[str, Any]:
        """Of what was written so far."""
        return self._engine.statistics()


class _Output:
    """A file object as the engine writes to it: all bytes, or an exception."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def __call__(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            count = self.file.write(left)
            left = left[len(left) if count is None else count :]
