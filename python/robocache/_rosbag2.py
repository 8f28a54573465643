"""rosbag2 recordings: a directory with metadata.yaml and one file or several, or a .db3 file alone.

Files are MCAP or SQLite; a file may be compressed as a whole, or message by message, which the engine unpacks (zstd).
SQLite bags before Iron carry no message definitions: those come from `msg_path`, else from the type stores of the
rosbags package; `lacking` names the types that nobody defines.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sqlite3
import tempfile
import urllib.parse
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache import _core
from robocache._bytes import ForkLock
from robocache._core import FileError
from robocache._mcap_source import McapSource, batch_of, left_out, promised_by, streams_of
from robocache._recording import (
    BATCH_BYTES,
    MANY,
    Batch,
    Content,
    Part,
    Source,
    StreamInfo,
    clipped,
    glanced,
    sniff,
    widened,
)
from robocache._stamps import FileStamp, check_unchanged, stamps_of

METADATA_LIMIT = 64 << 20  # bytes of metadata.yaml
MOST_UNPACKED = 200  # times its size: what a compressed file may grow to on disk
ROWS = 256  # messages decoded at a time
MOST_PICKED = 5000  # topics that are named in a query


def open_rosbag2(place: Path, time: str, msg_path: Sequence[Path]) -> Source:
    if not place.is_dir():
        return BagSource(place, [place], {}, time, msg_path)
    found = load_metadata(place / "metadata.yaml")
    files = []
    named = found.get("relative_file_paths") or []
    if not isinstance(named, list):
        raise FileError(f"{place}/metadata.yaml: relative_file_paths is {named!r:.40}; expected a list")
    for name in named:
        relative = PurePosixPath(str(name))
        if relative.is_absolute() or ".." in relative.parts:
            raise FileError(f'{place}/metadata.yaml: the file "{name}" lies outside the bag')
        # Bags before Eloquent name their files with the directory in front.
        spots = [place / relative, place / relative.name]
        files.append(next((spot for spot in spots if spot.is_file()), spots[0]))
    if not files:
        raise FileError(f"{place}/metadata.yaml: no files are named in relative_file_paths")
    for file in files:
        if not file.is_file():
            raise FileError(f"{file}: the bag's metadata.yaml names this file, and it is not there")
    return BagSource(place, files, found, time, msg_path)


def load_metadata(path: Path) -> dict[str, Any]:
    try:
        size = path.stat().st_size
        if size > METADATA_LIMIT:
            raise FileError(f"{path}: {size} bytes are too many for a file of metadata")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise error if isinstance(error, FileError) else FileError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise FileError(f"{path}: not UTF-8: {error}") from None
    try:
        found = read_yaml(text).get("rosbag2_bagfile_information")
    except ModuleNotFoundError:
        raise
    except Exception as error:  # each YAML library has kinds of its own
        raise FileError(f"{path}: not YAML: {error}") from None
    if not isinstance(found, dict):
        raise FileError(f"{path}: no rosbag2_bagfile_information; it is no rosbag2 metadata")
    version = found.get("version")
    if not isinstance(version, int) or not 1 <= version <= 9:
        raise FileError(f"{path}: rosbag2 metadata of version {version}; 1 to 9 are read")
    return found


def read_yaml(text: str) -> Any:
    """A document without aliases: rosbag2 writes none, and a few of them stand for gigabytes."""
    try:
        import yaml
    except ModuleNotFoundError:
        pass
    else:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # by libyaml, 10 times as fast
        refuse_aliases(yaml.parse(text, Loader=loader))
        return yaml.load(text, Loader=loader)
    try:
        from ruamel.yaml import YAML
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "rosbag2's metadata.yaml needs PyYAML or ruamel.yaml, and has neither: pip install 'robocache[rosbag2]'",
            name="yaml",
        ) from None
    refuse_aliases(YAML(typ="safe", pure=True).parse(text))
    return YAML(typ="safe", pure=True).load(text)


def refuse_aliases(events: Iterable[Any]) -> None:
    if any(type(event).__name__ == "AliasEvent" for event in events):
        raise ValueError("it has aliases (*name), which rosbag2 does not write")


def zstd() -> Any:
    """Python's own module from 3.14 on, or its backport."""
    import importlib

    for name in ("compression.zstd", "backports.zstd"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError(
        "a compressed rosbag2 needs backports.zstd, which is not installed: pip install 'robocache[rosbag2]'",
        name="backports.zstd",
    )


def unpack_file(file: Path, folder: Path) -> Path:
    """A compressed file of a bag, unpacked into a folder of our own."""
    library, target = zstd(), folder / file.stem
    room = MOST_UNPACKED * file.stat().st_size + (1 << 20)
    try:
        with library.open(file, "rb") as packed, target.open("wb") as plain:
            while piece := packed.read(1 << 20):
                room -= len(piece)
                if room < 0:
                    raise FileError(f"{file}: unpacks to more than {MOST_UNPACKED} times its size; refused")
                plain.write(piece)
    except (library.ZstdError, EOFError) as error:
        raise FileError(f"{file}: cannot be unpacked by zstd: {error}") from None
    except OSError as error:
        raise error if isinstance(error, FileError) else FileError(f"{file}: {error.strerror or error}") from None
    return target


def temporary_folder(owner: object) -> Path:
    """A folder that lives as long as its owner does in this process; a forked child removes nothing."""
    folder = Path(tempfile.mkdtemp(prefix="robocache-"))
    weakref.finalize(owner, remove_folder, folder, os.getpid())
    return folder


def remove_folder(folder: Path, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


class BagSource(Source):
    """The files of a bag, one after the other, as one episode."""

    def __init__(
        self, place: Path, files: Sequence[Path], found: Mapping[str, Any], time: str, msg_path: Sequence[Path]
    ) -> None:
        self.path, self.time, self.notes = str(place), time, []
        self.name = place.stem
        mode = str(found.get("compression_mode") or "").upper()
        packing = str(found.get("compression_format") or "").lower()
        if mode not in ("", "NONE", "FILE", "MESSAGE"):
            raise FileError(f"{place}/metadata.yaml: compression_mode is {mode}; FILE and MESSAGE are read")
        if mode in ("FILE", "MESSAGE") and packing != "zstd":
            raise FileError(f'{place}/metadata.yaml: compression_format is "{packing}"; zstd is read')
        self._folder: Path | None = None
        before = stamps_of([*([place / "metadata.yaml"] if found else []), *files])
        opened = [self._plain(file) for file in files]
        kinds = [sniff(file) for file in opened]
        self.bags: list[McapSource | SqliteBag] = []
        definitions = Definitions(msg_path)
        for file, kind in zip(opened, kinds, strict=True):
            if kind == "SQLite":
                self.bags.append(SqliteBag(file, time, definitions))
            elif kind != "MCAP":
                raise FileError(f"{file}: {kind}, which is no file of a rosbag2")
            else:
                self.bags.append(McapSource(str(file), time))
        stores = sorted({"SQLite" if kind == "SQLite" else "MCAP" for kind in kinds})
        self.format = f"rosbag2 ({', '.join(stores)})"
        for bag in self.bags:
            self.notes += [note for note in bag.notes if note not in self.notes]
            bag.notes = self.notes  # what reading finds later is ours, too
        journals = [path for bag in self.bags if isinstance(bag, SqliteBag) for path in bag.files[1:]]
        self.files = (*([place / "metadata.yaml"] if found else []), *files, *journals)
        of_bags = {stamp.path: stamp for bag in self.bags for stamp in bag.stamps}
        ours = "\0" if self._folder is None else str(self._folder)  # what was unpacked
        self.stamps = (*before, *(stamp for path, stamp in of_bags.items() if not path.startswith(ours)))
        self.given = definitions.digest()
        self.lacking = tuple(sorted({kind for bag in self.bags for kind in bag.lacking}))
        self._start, self._end = extent(found, self.bags)

    def _plain(self, file: Path) -> Path:
        with file.open("rb") as opened:
            packed = opened.read(4) == b"\x28\xb5\x2f\xfd"
        if not packed:
            return file
        if self._folder is None:
            self._folder = temporary_folder(self)
        return unpack_file(file, self._folder)

    def parts(self) -> Sequence[Part]:
        return [Part(self.name, None, self._start, self._end)]

    def contents(self, episode: int) -> Mapping[str, Content]:
        return merged([bag.contents(0) for bag in self.bags])

    def batches(
        self,
        streams: Collection[str] | None = None,
        episode: int | None = None,
        start: int | None = None,
        end: int | None = None,
    ) -> Iterator[Batch]:
        known: dict[str, StreamInfo] = {}
        for bag in self.bags:
            for batch in bag.batches(streams, 0, start, end):
                batch = grown(batch, known.get(batch.stream))
                known[batch.stream] = batch.info
                yield batch

    def survey(self, to: Any, at_a_glance: bool) -> None:
        for bag in self.bags:
            bag.survey(to, at_a_glance)

    def stretches(self) -> list[tuple[int, int]] | None:
        found = [bag.stretches() for bag in self.bags]
        if any(each is None for each in found):
            return None
        return [stretch for each in found for stretch in each or ()]

    def latched(self) -> frozenset[str]:
        every, others = set[str](), set[str]()  # others: not latched in at least one file
        for bag in self.bags:
            listed = set(bag.listed(0))
            every |= listed
            others |= listed - bag.latched()
        return frozenset(every - others)

    def listed(self, episode: int) -> Mapping[str, Content]:
        return merged([bag.listed(0) for bag in self.bags])

    def promised(self) -> Mapping[str, StreamInfo]:
        return {name: info for bag in self.bags for name, info in bag.promised().items()}

    def quick(self) -> Mapping[str, tuple[str, NDArray[np.int64]]] | None:
        found: dict[str, tuple[str, NDArray[np.int64]]] = {}
        for bag in self.bags:
            part = bag.quick()
            if part is None:
                return None
            for name, (kind, arrivals) in part.items():
                found[name] = kind, np.concatenate([found[name][1], arrivals]) if name in found else arrivals
        return found


def merged(parts: Sequence[Mapping[str, Content]]) -> dict[str, Content]:
    """The contents of all files."""
    found: dict[str, Content] = {}
    for part in parts:
        for name, content in part.items():
            before = found.get(name)
            if before is not None:
                known = before.samples is not None and content.samples is not None
                total = (before.samples or 0) + (content.samples or 0) if known else None
                content = content._replace(samples=total)
            found[name] = content
    return found


def extent(found: Mapping[str, Any], bags: Sequence[Source]) -> tuple[int | None, int | None]:
    """Log times: as metadata.yaml says, else as the files do."""
    try:
        start = int(found["starting_time"]["nanoseconds_since_epoch"])
        return start, start + int(found["duration"]["nanoseconds"])
    except (KeyError, TypeError, ValueError):
        parts = [bag.parts()[0] for bag in bags]
        starts, ends = [part.start for part in parts], [part.end for part in parts]
        if any(at is None for at in (*starts, *ends)):
            return None, None
        return min(at for at in starts if at is not None), max(at for at in ends if at is not None)


def grown(batch: Batch, before: StreamInfo | None) -> Batch:
    """Channels of the files before stay, in their order: another file may have others, or another order."""
    if before is None or before.ragged or before.channels == batch.info.channels or batch.values.ndim != 2:
        return batch
    channels = (*before.channels, *(name for name in batch.info.channels if name not in before.channels))
    whole = len(channels) == len(batch.info.channels) or batch.info.dtype.kind == "f"
    dtype = batch.info.dtype if whole else np.dtype(np.float64)  # NaN where a sample has none
    info = batch.info._replace(channels=channels, shape=(len(channels),), dtype=dtype)
    if before.channels != channels[: len(batch.info.channels)] and not isinstance(info.method, str):
        info = info._replace(method=before.method)
    return batch._replace(values=widened(batch, info), info=info)


# ---- What defines the messages


class Definitions:
    """ros2msg texts by type: from folders of .msg files, else from the rosbags package."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = list(folders)
        for folder in self.folders:
            if not folder.is_dir():
                raise FileError(f"{folder}: msg_path must name a folder with .msg files, and this is none")
        self.used: dict[Path, str] = {}  # the files that said something, and what
        self._store: Any = None
        self._files: dict[str, Path] | None = None

    def digest(self) -> str:
        """Of the .msg files that were needed; "" where none was."""
        told = json.dumps(sorted(self.used.values()))
        return hashlib.sha256(told.encode()).hexdigest()[:16] if self.used else ""

    def find(self, kind: str) -> str | None:
        """The definition of "package/msg/Name" and of what it holds; None where nobody knows it."""
        own = self._own(kind)
        return own if own is not None else self._stored(kind)

    def _own(self, kind: str) -> str | None:
        if self._files is None:
            files: dict[str, Path] = {}
            for folder in self.folders:
                for path in sorted(folder.rglob("*.msg")):
                    package = path.parent.parent.name if path.parent.name == "msg" else path.parent.name
                    files.setdefault(f"{package}/{path.stem}", path)
            self._files = files
        short = shortened(kind)
        if short not in self._files:
            return None
        texts: dict[str, str] = {}
        wanted = [short]
        while wanted:
            name = wanted.pop(0)
            if name in texts:
                continue
            text = self._text(name)
            if text is None:
                return None
            texts[name] = text
            wanted += inner_types(name, text)
        return f"\n{'=' * 80}\n".join(text if name == short else f"MSG: {name}\n{text}" for name, text in texts.items())

    def _text(self, short: str) -> str | None:
        assert self._files is not None
        if short in self._files:
            path = self._files[short]
            self.used[path] = path.read_text(encoding="utf-8", errors="replace")
            return self.used[path]
        stored = self._stored(short.replace("/", "/msg/"))
        return None if stored is None else stored.split("=" * 80)[0]

    def _stored(self, kind: str) -> str | None:
        try:
            from rosbags.typesys import Stores, get_typestore
        except ModuleNotFoundError:
            return None
        if self._store is None:
            self._store = get_typestore(Stores.LATEST)
        if kind not in self._store.fielddefs:
            return None
        return str(self._store.generate_msgdef(kind, ros_version=2)[0])


def shortened(kind: str) -> str:
    """ "sensor_msgs/msg/Imu" -> "sensor_msgs/Imu"."""
    parts = kind.split("/")
    return f"{parts[0]}/{parts[-1]}"


PRIMITIVES = {
    *("bool", "byte", "char", "float32", "float64", "string", "wstring"),
    *(f"{sign}int{n}" for sign in ("", "u") for n in (8, 16, 32, 64)),
}


def inner_types(name: str, text: str) -> list[str]:
    """The types that a definition's fields are of."""
    found = []
    for line in text.splitlines():
        words = line.split("#")[0].split()
        if len(words) < 2 or "=" in words[1][:1] or words[0].startswith("MSG:"):
            continue
        base = words[0].split("[")[0].split("<")[0]
        if base in PRIMITIVES or not base:
            continue
        if base == "Header":
            base = "std_msgs/Header"
        found.append(shortened(base) if "/" in base else f"{name.split('/')[0]}/{base}")
    return found


# ---- SQLite: messages that Python hands to the decoder


class Database:
    """A SQLite file, opened for reading, by any number of threads; a forked child opens it again.

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
                # Without a journal nothing is written beside the bag, nor locked: it may lie on a read-only disk.
                self._connect(file, "mode=ro" if log or journal else "mode=ro&immutable=1")
            except sqlite3.OperationalError as error:
                if not (log or journal) or "locked" in str(error):
                    raise
                self._connect(self._copy(), "mode=rw")
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter: of SQLite's own words about a damaged schema
            locked = ", by the process that is writing it; open it when that is done" if "locked" in str(error) else ""
            raise FileError(f"{file}: cannot be read as SQLite: {error}{locked}") from None

    def _connect(self, file: Path, how: str) -> None:
        address = f"file:{urllib.parse.quote(str(file.absolute()))}?{how}"
        connection = sqlite3.connect(address, uri=True, check_same_thread=False)
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        most = min(4 * max(self.stamps[0].size, 0) + (1 << 20), 1 << 30)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, most)
        connection.execute("PRAGMA trusted_schema = OFF")
        self.tables: dict[str, str] = dict(connection.execute("SELECT name, type FROM sqlite_master").fetchall())
        self._opened = (connection, os.getpid(), file, how)

    def _copy(self) -> Path:
        """The file and its journal in a folder of our own, where SQLite may write."""
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
            if process != os.getpid():  # SQLite forbids to go on with a connection of the parent's, or to close it
                inherited.append(connection)
                self._connect(file, how)
            cursor = self._opened[0].execute(query, values)
        if sqlite3.threadsafety == 3:  # it locks by itself
            yield from cursor
            return
        while True:
            with self._lock:
                row = cursor.fetchone()
            if row is None:
                return
            yield row


inherited: list[Any] = []  # connections of the parent's, which stay as they are


class SqliteBag(Source):
    format = "rosbag2"

    def __init__(self, file: Path, time: str, definitions: Definitions) -> None:
        self.path, self.time, self.notes = str(file), time, []
        self.definitions = definitions
        self.kinds: dict[str, str] = {}  # by topic
        self._inside: dict[str, dict[str, Content]] = {}
        self._counts: dict[Any, Any] | None = None  # of messages, by the number of a topic
        beside = [Path(f"{file}{end}") for end in ("-wal", "-journal")]  # what SQLite has written and not put in yet
        # SQLite, run by root, sets the owner of journals, also where it only reads: their ctime says nothing.
        journals = (stamp if stamp.size < 0 else stamp._replace(ctime=0) for stamp in stamps_of(beside))
        self.stamps = (*stamps_of([file]), *journals)
        self.files = (file, *(path for path in beside if path.exists()))
        self.database = Database(file, self.stamps)
        self.notes += self.database.notes
        tables = self.database.tables
        if any(tables.get(name) != "table" for name in ("topics", "messages")):
            there = ", ".join(sorted(name for name, kind in tables.items() if kind == "table")[:6]) or "none"
            raise FileError(f"{file}: no rosbag2: SQLite without the tables topics and messages; it has {there}")
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
        if not isinstance(start, int) or not isinstance(end, int):  # no message, or no number
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
                with contextlib.suppress(FileError):  # reading says so
                    decoders[topic] = _core.Decoder(self.kinds[topic], *schema, topic, self.time)
        found = self.glance(decoders) if at_a_glance else self.messages(list(decoders), None, None)
        with contextlib.suppress(FileError):  # as it is damaged there: reading says so, where that part is read
            for topic, *message in found:
                decoders[topic].survey([tuple(message)], to)

    def stretches(self) -> list[tuple[int, int]] | None:
        return glanced(*self.parts()[0][2:])

    def glance(self, topics: Collection[str]) -> Iterator[tuple[str, bytes, int, int]]:
        """Messages of three short stretches, and the first one of each topic that is in none of them."""
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
        """Its schema's encoding and text, and how messages are encoded; None, and a note, where it is not known."""
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
        # SQL picks the topics, so that SQLite does not read the data of the others.
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
        """What a topic gives: its first message tells, or for some types all of them."""
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

    def note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)

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
        broken: dict[str, tuple[int, str]] = {}  # how many, and the first one's sentence
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
