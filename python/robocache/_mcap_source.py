"""MCAP files as recordings. The engine reads and decodes them (robocache._core); here they get their names."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache import _core
from robocache._bytes import source_of
from robocache._recording import Batch, Content, Part, Source, StreamInfo, clipped

MANY = ("tf2_msgs/msg/TFMessage", "tf/msg/tfMessage")  # types of which a topic gives a stream for each name they carry


def info_of(given: tuple[Any, ...]) -> StreamInfo:
    """What the engine says of a stream."""
    name, kind, dtype, shape, channels, methods, ragged, metadata = given
    method = tuple(methods) or None
    if len(methods) == 1:
        method = methods[0][0]  # one for all
    return StreamInfo(name, kind, np.dtype(dtype), tuple(shape), tuple(channels), method, ragged, dict(metadata))


def batch_of(piece: tuple[Any, ...], episode: int = 0) -> Batch:
    info, values, times, arrivals, lengths = piece
    made = info_of(info)
    return Batch(episode, made.name, values, times, arrivals, lengths, made)


class McapSource(Source):
    format = "MCAP"

    def __init__(self, path: str, time: str) -> None:
        self.path, self.time, self.notes = path, time, []
        self.files = () if "://" in path else (Path(path),)
        self.engine = _core.McapRecording(*source_of(path, "open"), time)
        summary = self.engine.summary()
        self.note(summary["warnings"])
        self.topics = {topic: (kind, count) for topic, kind, _, _, count in summary["topics"]}
        self.start, self.end = summary["start"], summary["end"]
        self._inside: dict[str, dict[str, int]] = {}  # of topics that give many streams: names and samples

    def note(self, sentences: Sequence[str]) -> None:
        self.notes += [
            s for s in (sentence.removeprefix(f"{self.path}: ") for sentence in sentences) if s not in self.notes
        ]

    def parts(self) -> Sequence[Part]:
        return [Part(Path(self.path).stem, None, self.start, self.end)]

    def contents(self, episode: int) -> Mapping[str, Content]:
        found = {}
        for topic, (kind, count) in self.topics.items():
            if kind in MANY:
                for name, samples in self._names(topic).items():
                    found[name] = Content(name, kind, samples)
            else:
                found[topic] = Content(topic, kind, count)
        return found

    def _names(self, topic: str) -> dict[str, int]:
        """The streams of a topic that gives many: only its messages can tell."""
        if topic not in self._inside:
            names: dict[str, int] = {}
            for piece in self.engine.pieces([topic]):
                names[piece[0][0]] = names.get(piece[0][0], 0) + len(piece[2])
            self._inside[topic] = names
        return self._inside[topic]

    def batches(
        self,
        streams: Collection[str] | None = None,
        episode: int | None = None,
        start: int | None = None,
        end: int | None = None,
    ) -> Iterator[Batch]:
        topics = None
        if streams is not None:
            topics = [topic for topic in self.topics if topic in streams]
            for topic, (kind, _) in self.topics.items():
                if kind in MANY and any(name in streams for name in self._names(topic)):
                    topics.append(topic)
        for piece in self.engine.pieces(topics):
            batch = clipped(batch_of(piece), start, end)
            if batch is not None and (streams is None or batch.stream in streams):
                yield batch
        self.note(self.engine.summary()["warnings"])
        for topic, count, sentence in self.engine.problems:
            self.note([f"{topic}: {count} broken messages left out; the first: {sentence}" if count else sentence])

    def quick(self) -> Mapping[str, NDArray[np.int64]] | None:
        """From the message indexes behind each chunk: no chunk is unpacked."""
        from robocache.mcap import Reader

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the engine's own are in `notes`
            reader = Reader(self.path)
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
            return None  # an index that leaves messages out
        return made
