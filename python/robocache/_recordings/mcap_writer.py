"""mcap.Writer: writes MCAP files. The engine (robocache._core) does the writing."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from robocache import _core


def _check_numbers(call: str, **numbers: tuple[Any, int]) -> None:
    """Raises for the first number that does not fit into its field; the second of each pair is the bits."""
    for name, (number, bits) in numbers.items():
        if isinstance(number, bool) or not hasattr(number, "__index__"):
            raise TypeError(f"mcap.Writer.{call}: {name} is {number!r}; expected an int")
        value = operator.index(number)
        if not 0 <= value < 1 << bits:
            why = "; MCAP's times are nanoseconds and never negative: add an offset to all of them" * (bits == 64)
            raise ValueError(f"mcap.Writer.{call}: {name} is {value}; it must be from 0 to 2^{bits} - 1{why}")


class Writer:
    """Writes an MCAP file.

    A chunk is written when it is full, so a file that was cut off can be read up to its last whole chunk. Threads may
    share a Writer; their calls wait for each other. When `close` returns, a file given by its path is on the disk, even
    if the power fails then. After os.fork() the file belongs to the parent.

    Args:
        path: A path, or a file object open for writing bytes, which stays open.
        compression: "zstd", "lz4", or None (also "none" or "").
        chunk_size: Bytes of a chunk before compression.
        level: zstd's compression level.
        profile: The header's profile, such as "ros2".
        library: The header's library. Default: "robocache" and its version.
        chunks: False: messages are written outside of chunks.
        message_indexes: False leaves them out.
        schemas: False leaves out the schemas of the summary.
        channels: False leaves out the channels of the summary.
        statistics: False leaves them out.
        chunk_indexes: False leaves them out.
        attachment_indexes: False leaves them out.
        metadata_indexes: False leaves them out.
        summary_offsets: False leaves them out.
        crcs: False leaves them out.
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
        """Completes the file with what was written so far, also if an exception ends the block."""
        try:
            self.close()
        except Exception:
            if error is None:
                raise

    def add_schema(self, name: str, encoding: str, data: str | bytes, *, id: int | None = None) -> int:
        """Adds a schema.

        Args:
            name: "sensor_msgs/msg/Imu".
            encoding: "ros2msg", "jsonschema", ...
            data: The definition.
            id: Its id. Default: that of an equal schema, or the next free one.

        Returns:
            The id.
        """
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
        """Adds a channel.

        Args:
            topic: "/imu".
            message_encoding: "cdr", "json", ...
            schema: The id of its schema, or None.
            metadata: Anything else, as strings.
            id: Its id. Default: that of an equal channel, or the next free one.

        Returns:
            The id.
        """
        if id is None:
            return self._engine.add_channel(topic, message_encoding, schema or 0, dict(metadata or {}))
        self._engine.declare_channel(id, schema or 0, topic, message_encoding, dict(metadata or {}))
        return id

    def write(self, channel: int, data: Any, log_time: int, publish_time: int | None = None, sequence: int = 0) -> None:
        """Writes a message.

        Args:
            channel: The id of a channel.
            data: The content: bytes or any buffer.
            log_time: Nanoseconds, 0 to 2^64 - 1.
            publish_time: Nanoseconds. Default: `log_time`.
            sequence: A sequence number.
        """
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
        """Writes an attachment.

        Args:
            name: Its file name.
            data: The content: bytes or any buffer.
            media_type: Its media type.
            log_time: Nanoseconds.
            create_time: Nanoseconds.
        """
        try:
            self._engine.attach(name, media_type, data, log_time, create_time)
        except TypeError:
            _check_numbers("attach", log_time=(log_time, 64), create_time=(create_time, 64))
            raise

    def add_metadata(self, name: str, metadata: Mapping[str, str]) -> None:
        """Writes a metadata record.

        Args:
            name: Its name.
            metadata: {str: str}.
        """
        self._engine.add_metadata(name, dict(metadata))

    def flush(self) -> None:
        """Ends the chunk, so that everything so far is in the file. Only `close` protects it from a power failure."""
        self._engine.flush()

    def close(self) -> None:
        """Completes the file and syncs it to the disk. A second call does nothing."""
        self._engine.finish()

    @property
    def statistics(self) -> dict[str, Any]:
        """The statistics of what was written so far."""
        return self._engine.statistics()


class _Output:
    """A file object as the engine writes to it: all bytes are written, or an exception is raised."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def __call__(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            count = self.file.write(left)
            left = left[len(left) if count is None else count :]
