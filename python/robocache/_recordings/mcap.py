"""MCAP files as recordings. The engine (robocache._core) reads and decodes them."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache import _core
from robocache._core import FileError
from robocache._recordings.bytes import source_of
from robocache._recordings.source import MANY, Batch, Content, Part, Source, StreamInfo, clipped, glanced
from robocache._recordings.stamps import stamps_of
from robocache._recordings.words import counted

MOST_FIRST = 1024  # messages searched for one that shows the streams: the first may be empty


def info_of(given: tuple[Any, ...]) -> StreamInfo:
    """A StreamInfo from the engine's description."""
    name, kind, dtype, shape, channels, methods, ragged, metadata = given
    method = tuple(methods) or None
    if len(methods) == 1:
        method = methods[0][0]  # one for all
    return StreamInfo(name, kind, np.dtype(dtype), tuple(shape), tuple(channels), method, ragged, dict(metadata))


def batch_of(piece: tuple[Any, ...], episode: int = 0) -> Batch:
    info, values, times, arrivals, lengths = piece
    made = info_of(info)
    return Batch(episode, made.name, values, times, arrivals, lengths, made)


def promised_by(
    kind: str, encoding: str, text: bytes, message_encoding: str, topic: str, time: str
) -> dict[str, StreamInfo]:
    """The streams of a topic as far as its schema describes them, by name."""
    try:
        infos = map(info_of, _core.Decoder(kind, encoding, text, message_encoding, topic, time).streams)
    except FileError:  # reading it reports that
        return {}
    return {info.name: info for info in infos}


def streams_of(
    source: Source,
    topic: str,
    kind: str,
    encoding: str,
    text: bytes,
    message_encoding: str,
    messages: Iterable[tuple[bytes, int, int]],
) -> list[str]:
    """The names of the streams in the first message that can be decoded, or in several of them."""
    try:
        decoder = _core.Decoder(kind, encoding, text, message_encoding, topic, source.time)
    except FileError as error:
        source.note(str(error))
        return []
    silent = 0
    for message in messages:
        broken, _ = decoder.add([message])
        names = [piece[0][0] for piece in decoder.take()]
        silent += not broken
        if names or silent == MOST_FIRST:
            return names
    return []


def left_out(topic: str, count: int, sentence: str) -> str:
    return f"{topic}: {counted(count, 'broken message')} left out; the first: {sentence}"


class McapSource(Source):
    format = "MCAP"

    def __init__(self, path: Any, time: str) -> None:
        source, self.path = source_of(path, "open")
        self._place, self.time, self.notes = path, time, []
        self.files = (Path(self.path),) if isinstance(source, bytes) else ()
        self.stamps = stamps_of(self.files)
        self._memory = source if isinstance(source, memoryview) else None
        self.engine = _core.McapRecording(source, self.path, time)
        summary = self.engine.summary()
        self.note(*summary["warnings"])
        self.topics = {topic: Content(topic, kind, count) for topic, kind, _, _, count in summary["topics"]}
        self.encodings = {topic: encoding for topic, _, encoding, _, _ in summary["topics"]}
        self.start, self.end = summary["start"], summary["end"]
        self._latched = frozenset(summary["latched"])
        self._opened: Any = None
        self._inside: dict[str, dict[str, Content]] = {}  # the streams of each topic that are known so far

    def note(self, *sentences: str) -> None:
        super().note(*(sentence.removeprefix(f"{self.path}: ") for sentence in sentences))

    def content(self) -> str:
        return "" if self._memory is None else f"sha256:{hashlib.sha256(self._memory).hexdigest()}"

    def parts(self) -> Sequence[Part]:
        return [Part(Path(self.path).stem, None, self.start, self.end)]

    def listed(self, episode: int) -> Mapping[str, Content]:
        return self.topics

    def contents(self, episode: int) -> Mapping[str, Content]:
        self._discover(self.topics)
        return {name: content for topic in self.topics for name, content in self._streams(topic).items()}

    def _streams(self, topic: str) -> dict[str, Content]:
        """The streams of a topic."""
        self._discover([topic])
        return self._inside[topic]

    def _discover(self, topics: Iterable[str]) -> None:
        """Finds the streams of topics from the first message of each; some types need all messages."""
        unknown = [topic for topic in topics if topic not in self._inside]
        if not unknown:
            return
        # A topic without messages would be searched for in the whole file.
        named, problems = self.engine.discover(
            [topic for topic in unknown if self.topics[topic].type not in MANY and self.topics[topic].samples != 0]
        )
        for topic in unknown:
            kind, count = self.topics[topic].type, self.topics[topic].samples
            if kind in MANY:
                samples: dict[str, int] = {}
                for piece in self.engine.pieces([topic]):
                    samples[piece[0][0]] = samples.get(piece[0][0], 0) + len(piece[2])
                found = {name: Content(name, kind, number) for name, number in samples.items()}
            else:
                found = {name: Content(name, kind, count) for name in named.get(topic, [])}
            self._inside[topic] = found  # if two threads get here, both find the same
        for topic, broken, sentence in problems:
            if not broken:
                self.note(sentence)
            elif not self._inside.get(topic):  # none of it can be read; otherwise a pass over the samples reports it
                self.note(left_out(topic, broken, sentence))
        self.note(*self.engine.summary()["warnings"])

    def _reader(self) -> Any:
        """A reader for what the engine's recording does not offer: single messages, the index."""
        if self._opened is None:
            from robocache.mcap import Reader

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the engine's warnings are in `notes`
                self._opened = Reader(self._place)
        return self._opened

    def batches(
        self,
        streams: Collection[str] | None = None,
        episode: int | None = None,
        start: int | None = None,
        end: int | None = None,
    ) -> Iterator[Batch]:
        topics = None
        if streams is not None:
            topics = [topic for topic in self.topics if any(name in streams for name in self._streams(topic))]
        if start is not None or end is not None:
            first, last = max(start or 0, 0), None if end is None else max(end, 0)
            pieces = self.engine.pieces(topics, first, last)
        else:
            pieces = self.engine.pieces(topics)
        for batch in clipped(map(batch_of, pieces), start, end):
            if streams is None or batch.stream in streams:
                yield batch
        self.note(*self.engine.summary()["warnings"])
        for topic, count, sentence in pieces.problems:
            self.note(left_out(topic, count, sentence) if count else sentence)

    def survey(self, to: Any, at_a_glance: bool) -> None:
        self.engine.survey(to, at_a_glance)

    def stretches(self) -> list[tuple[int, int]] | None:
        return glanced(self.start, self.end) if self._reader().is_indexed else None

    def latched(self) -> frozenset[str]:
        return self._latched

    def promised(self) -> Mapping[str, StreamInfo]:
        found: dict[str, StreamInfo] = {}
        for channel in self._reader().channels.values():
            schema, encoding = channel.schema, channel.message_encoding
            if schema is not None:
                found |= promised_by(schema.name, schema.encoding, schema.data, encoding, channel.topic, self.time)
        return found

    def quick(self) -> Mapping[str, tuple[str, NDArray[np.int64]]] | None:
        """From the message indexes after each chunk. No chunk is decompressed."""
        reader = self._reader()
        if not reader.is_indexed:
            return None
        topics = {number: channel.topic for number, channel in reader.channels.items()}
        times: dict[str, list[NDArray[np.int64]]] = {topic: [] for topic in self.topics}
        for place, chunk in enumerate(reader.chunk_indexes):
            found = reader.message_indexes(place)
            if not found and chunk["message_index_offsets"]:
                return None
            for index in found:
                if index["channel_id"] in topics:
                    stamps = np.array([at for at, _ in index["records"]], np.uint64).astype(np.int64)
                    times[topics[index["channel_id"]]].append(stamps)
        made = {topic: np.concatenate([np.zeros(0, np.int64), *parts]) for topic, parts in times.items()}
        statistics = reader.statistics
        if statistics is None or sum(map(len, made.values())) != statistics["message_count"]:
            return None  # the index is incomplete
        return {topic: (self.topics[topic].type, arrivals) for topic, arrivals in made.items()}
