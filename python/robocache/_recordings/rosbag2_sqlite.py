"""SQLite bags. Python reads the messages and passes them to the decoder."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import urllib.parse
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache import _core
from robocache._core import FileError
from robocache._recordings.bytes import ForkLock
from robocache._recordings.mcap import batch_of, left_out, promised_by, streams_of
from robocache._recordings.rosbag2_definitions import Definitions
from robocache._recordings.rosbag2_files import temporary_folder
from robocache._recordings.source import BATCH_BYTES, MANY, Batch, Content, Part, Source, StreamInfo, clipped, glanced
from robocache._recordings.stamps import FileStamp, check_unchanged, stamps_of

ROWS = 256  # messages decoded at a time
MOST_PICKED = 5000  # topics that are named in a query


class Database:
    """A SQLite file, opened for reading by any number of threads. A forked child opens it again.

    A file that was not closed has a journal beside it. A write-ahead log is read where it is. A rollback journal says
    how to take back a transaction that was never finished: that is done in a copy, and the bag stays as it is.
    """

    def __init__(self, file: Path, stamps: Sequence[FileStamp]) -> None:
        self.file, self.stamps = file, stamps
        self.notes: list[str] = []
        self._lock = ForkLock()
        _, log, journal = (stamp.size > 0 for stamp in stamps)
        try:
            try:
                # Without a journal nothing is written or locked, so the bag may be on a read-only disk.
                self._connect(file, "mode=ro" if log or journal else "mode=ro&immutable=1")
            except sqlite3.OperationalError as error:
                if not (log or journal) or "locked" in str(error):
                    raise
                self._connect(self._copy(), "mode=rw")
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the second: from SQLite's message about a damaged schema
            locked = ", by the process that is writing it; open it when that is done" if "locked" in str(error) else ""
            raise FileError(f"{file}: cannot be read as SQLite: {error}{locked}") from None

    def _connect(self, file: Path, how: str) -> None:
        address = f"file:{urllib.parse.quote(str(file.absolute()))}?{how}"
        connection = sqlite3.connect(address, uri=True, check_same_thread=False)
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        most = min(4 * max(self.stamps[0].size, 0) + (1 << 20), 1 << 30)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, most)
        connection.execute("PRAGMA trusted_schema = OFF")
        # In a damaged file the name may be a blob, which Python gives as bytes.
        tables = connection.execute("SELECT name, type FROM sqlite_master WHERE typeof(name) = 'text'")
        self.tables: dict[str, str] = dict(tables.fetchall())
        self._opened = (connection, os.getpid(), file, how)

    def _copy(self) -> Path:
        """Copies the file and its journal into a temporary folder, where SQLite may write."""
        self._folder = temporary_folder(self)
        try:
            for stamp in self.stamps:
                if stamp.size > 0:
                    shutil.copyfile(stamp.path, self._folder / Path(stamp.path).name)
        except OSError as error:
            raise FileError(
                f"{self.file}: it was not closed, and must be copied to undo what was not finished: {self._folder}: "
                f"{error.strerror or error}; TMPDIR names another folder"
            ) from None
        check_unchanged(self.stamps)
        self.notes.append("it was not closed when it was recorded: the transaction that was not finished is left out")
        return self._folder / self.file.name

    def ask(self, query: str, values: Sequence[Any]) -> Iterator[Any]:
        with self._lock:
            connection, process, file, how = self._opened
            if process != os.getpid():  # a child may neither use nor close its parent's connections
                inherited.append(connection)
                self._connect(file, how)
            cursor = self._opened[0].execute(query, values)
        if sqlite3.threadsafety == 3:  # then SQLite does the locking
            yield from cursor
            return
        while True:
            with self._lock:
                row = cursor.fetchone()
            if row is None:
                return
            yield row


inherited: list[Any] = []  # connections of the parent, kept untouched


class SqliteBag(Source):
    format = "rosbag2"

    def __init__(self, file: Path, time: str, definitions: Definitions) -> None:
        self.path, self.time, self.notes = str(file), time, []
        self.definitions = definitions
        self.kinds: dict[str, str] = {}  # by topic
        self._inside: dict[str, dict[str, Content]] = {}
        self._counts: dict[Any, Any] | None = None  # messages by topic number
        beside = [Path(f"{file}{end}") for end in ("-wal", "-journal")]  # what SQLite has not merged into the file yet
        # Run by root, SQLite sets the owner of journals even when it only reads, so their ctime is not compared.
        journals = (stamp if stamp.size < 0 else stamp._replace(ctime=0) for stamp in stamps_of(beside))
        self.stamps = (*stamps_of([file]), *journals)
        self.files = (file, *(path for path in beside if path.exists()))
        self.database = Database(file, self.stamps)
        self.notes += self.database.notes
        tables = self.database.tables
        if any(tables.get(name) != "table" for name in ("topics", "messages")):
            there = ", ".join(sorted(name for name, kind in tables.items() if kind == "table")[:6]) or "none"
            raise FileError(
                f"{file}: not a rosbag2 file: SQLite without the tables topics and messages; it has {there}"
            )
        self.rows: dict[str, tuple[list[int], str]] = {}
        for number, topic, kind, encoding in self._ask(
            "SELECT id, name, type, serialization_format FROM topics ORDER BY id"
        ):
            if not isinstance(number, int):
                raise FileError(f"{file}: a damaged SQLite file: the id of a topic is {number!r:.40}")
            self.kinds[str(topic)] = str(kind)
            self.rows.setdefault(str(topic), ([], str(encoding)))[0].append(number)
        self._latched = frozenset[str]()
        if any(column[1] == "offered_qos_profiles" for column in self._ask("PRAGMA table_info(topics)")):
            profiles: dict[str, list[str]] = {}
            for topic, text in self._ask("SELECT name, offered_qos_profiles FROM topics"):
                profiles.setdefault(str(topic), []).append(str(text))
            self._latched = frozenset(
                topic for topic, texts in profiles.items() if all(map(_core.is_transient_local, texts))
            )
        self.own: dict[str, tuple[str, bytes]] = {}
        if tables.get("message_definitions") == "table":
            query = "SELECT topic_type, encoding, encoded_message_definition FROM message_definitions"
            for kind, encoding, text in self._ask(query):
                if text:
                    self.own[str(kind)] = (str(encoding), text if isinstance(text, bytes) else str(text).encode())
        self.lacking = tuple(kind for topic, kind in self.kinds.items() if self.schema(topic) is None)

    def _ask(self, query: str, *values: Any) -> Iterator[Any]:
        try:
            yield from self.database.ask(query, values)
        except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
            raise FileError(f"{self.path}: a damaged SQLite file: {error}") from None

    def parts(self) -> Sequence[Part]:
        ((start, end),) = self._ask(
            "SELECT (SELECT min(timestamp) FROM messages), (SELECT max(timestamp) FROM messages)"
        )
        if not isinstance(start, int) or not isinstance(end, int):  # there is no message, or the value is not a number
            start = end = None
        return [Part(Path(self.path).stem, None, start, end)]

    def count(self, topic: str) -> int | None:
        if self._counts is None:
            self._counts = dict(self._ask("SELECT topic_id, count(*) FROM messages GROUP BY topic_id"))
        return sum(int(self._counts.get(number, 0)) for number in self.rows[topic][0])

    def latched(self) -> frozenset[str]:
        return self._latched

    def survey(self, to: Any, at_a_glance: bool) -> None:
        decoders: dict[str, Any] = {}
        for topic in self.kinds:
            schema = self.schema(topic)
            if schema is not None:
                with contextlib.suppress(FileError):  # reading it reports that
                    decoders[topic] = _core.Decoder(self.kinds[topic], *schema, topic, self.time)
        found = self.glance(decoders) if at_a_glance else self.messages(list(decoders), None, None)
        with contextlib.suppress(FileError):  # a damaged part is reported when it is read
            for topic, *message in found:
                decoders[topic].survey([tuple(message)], to)

    def stretches(self) -> list[tuple[int, int]] | None:
        return glanced(*self.parts()[0][2:])

    def glance(self, topics: Collection[str]) -> Iterator[tuple[str, bytes, int, int]]:
        """The messages of three short stretches, and the first message of each topic that is not in them."""
        wanted = list(topics)
        seen: set[str] = set()
        past = -(2**63)
        for start, end in sorted(self.stretches() or ()):
            for message in self.messages(wanted, max(start, past), end):
                seen.add(message[0])
                yield message
            past = max(past, end)
        if any(topic not in seen and self.count(topic) for topic in wanted):
            names = {number: topic for topic in wanted for number in self.rows[topic][0] if topic not in seen}
            for number, at, data in self._ask("SELECT topic_id, min(timestamp), data FROM messages GROUP BY topic_id"):
                if number in names and isinstance(at, int) and isinstance(data, bytes):
                    yield names[number], data, at, at

    def schema(self, topic: str) -> tuple[str, bytes, str] | None:
        """The schema's encoding and text, and the message encoding. None, and a note, if they are not known."""
        kind, encoding = self.kinds[topic], self.rows[topic][1]
        own = self.own.get(kind)
        if own is not None and own[0] in ("ros2msg", "ros2idl"):
            return own[0], own[1], encoding
        text = self.definitions.find(kind)
        if text is None:
            self.note(
                f"{topic}: left out: {kind} is defined neither in the bag nor by the rosbags package; "
                "--msg-path names a folder with its .msg file"
            )
            return None
        return "ros2msg", text.encode(), encoding

    def messages(
        self, topics: Collection[str], start: int | None, end: int | None
    ) -> Iterator[tuple[str, bytes, int, int]]:
        """(topic, data, log time, publish time) in log-time order."""
        names = {number: topic for topic in topics for number in self.rows[topic][0]}
        low, high = -(2**63) if start is None else start, 2**63 - 1 if end is None else end - 1
        # The query selects topics, so that SQLite does not read the data of others.
        picks = len(topics) < len(self.rows) and len(names) <= MOST_PICKED
        chosen = f"topic_id IN ({', '.join(map(str, names))}) AND " if picks else ""
        order = "timestamp BETWEEN ? AND ? ORDER BY timestamp, id"
        query = f"SELECT topic_id, timestamp, data FROM messages WHERE {chosen}{order}"
        for number, at, data in self._ask(query, low, high):
            if number not in names or not isinstance(data, bytes) or not isinstance(at, int):
                continue
            yield names[number], data, at, at

    def quick(self) -> Mapping[str, tuple[str, NDArray[np.int64]]] | None:
        times: dict[str, list[int]] = {topic: [] for topic in self.rows}
        names = {number: topic for topic, (numbers, _) in self.rows.items() for number in numbers}
        for number, at in self._ask("SELECT topic_id, timestamp FROM messages"):
            if number in names and isinstance(at, int):
                times[names[number]].append(at)
        return {topic: (self.kinds[topic], np.array(found, np.int64)) for topic, found in times.items()}

    def promised(self) -> Mapping[str, StreamInfo]:
        found: dict[str, StreamInfo] = {}
        for topic, kind in self.kinds.items():
            schema = self.schema(topic)
            found |= {} if schema is None else promised_by(kind, *schema, topic, self.time)
        return found

    def listed(self, episode: int) -> Mapping[str, Content]:
        return {topic: Content(topic, kind, self.count(topic)) for topic, kind in self.kinds.items()}

    def contents(self, episode: int) -> Mapping[str, Content]:
        return {name: content for topic in self.kinds for name, content in self._streams(topic).items()}

    def _streams(self, topic: str) -> dict[str, Content]:
        """The streams of a topic, from its first message; some types need all messages."""
        if topic not in self._inside:
            kind, samples = self.kinds[topic], dict[str, int | None]()
            if kind in MANY:
                for batch in self._decoded([topic], None, None):
                    samples[batch.stream] = (samples.get(batch.stream) or 0) + len(batch.times)
            else:
                schema = self.schema(topic)
                if schema is not None:
                    messages = (message[1:] for message in self.messages([topic], None, None))
                    samples = dict.fromkeys(streams_of(self, topic, kind, *schema, messages), self.count(topic))
            self._inside[topic] = {name: Content(name, kind, number) for name, number in samples.items()}
        return self._inside[topic]

    def batches(
        self,
        streams: Collection[str] | None = None,
        episode: int | None = None,
        start: int | None = None,
        end: int | None = None,
    ) -> Iterator[Batch]:
        topics = list(self.kinds)
        if streams is not None:
            topics = [topic for topic in topics if any(name in streams for name in self._streams(topic))]
        for batch in clipped(self._decoded(topics, start, end), start, end):
            if streams is None or batch.stream in streams:
                yield batch

    def _decoded(self, topics: Sequence[str], start: int | None, end: int | None) -> Iterator[Batch]:
        decoders: dict[str, Any] = {}
        for topic in topics:
            schema = self.schema(topic)
            if schema is None:
                continue
            encoding, text, message_encoding = schema
            try:
                decoders[topic] = _core.Decoder(self.kinds[topic], encoding, text, message_encoding, topic, self.time)
            except FileError as error:
                self.note(f"{topic}: left out: {error}")
        waiting: dict[str, list[tuple[bytes, int, int]]] = {topic: [] for topic in decoders}
        broken: dict[str, tuple[int, str]] = {}  # their number, and the first error
        sizes = dict.fromkeys(decoders, 0)

        def decode(topic: str) -> None:
            count, sentence = decoders[topic].add(waiting[topic])
            waiting[topic], sizes[topic] = [], 0
            if count:
                before, first = broken.get(topic, (0, sentence))
                broken[topic] = before + count, first

        for topic, data, log_time, publish_time in self.messages(list(decoders), start, end):
            waiting[topic].append((data, log_time, publish_time))
            sizes[topic] += len(data)
            if len(waiting[topic]) >= ROWS or sizes[topic] >= BATCH_BYTES:
                decode(topic)
                if decoders[topic].bytes >= BATCH_BYTES:
                    yield from map(batch_of, decoders[topic].take())
        for topic, decoder in decoders.items():
            decode(topic)
            yield from map(batch_of, decoder.take())
        for topic, (count, sentence) in broken.items():
            self.note(left_out(topic, count, f"{Path(self.path).name}: {sentence}"))
