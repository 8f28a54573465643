"""Recordings: what a robot logged, as episodes of streams, whatever the format.

Users get the same for all formats: a `Recording` of `Episode`s, whose `Streams` (`streams.py`) are decoded when they
are first used, sorted by time, and ready for rc.align.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from robocache import _tables
from robocache._recordings.bytes import ForkLock
from robocache._recordings.source import Batch, Content, Part, Source, StreamInfo, topic_of
from robocache._recordings.stamps import FileStamp
from robocache._recordings.streams import RecordedStream, Streams, content_html
from robocache._recordings.words import NoStream, absent, counted, missing

Item = TypeVar("Item")
EPISODES = ("", "name", "length", "task")  # the headers of their table
MOST_EPISODES = 12  # rows of it


class Episode:
    """Streams that were recorded together, on one clock.

    Attributes:
        index: The episode's number in the recording.
        name: Its name.
        task: What was to be done, or None.
        streams: {name: RecordedStream}, each decoded when it is first used. `streams.select("/a", "/b")` decodes
            several in one pass.
    """

    def __init__(self, source: Source, index: int, part: Part) -> None:
        self.index = index
        self.name = part.name
        self.task = part.task
        self.streams = Streams(source, index)
        self._part = part

    def __reduce__(self) -> tuple[Any, ...]:
        return Episode, (self.streams._source, self.index, self._part)

    @property
    def start(self) -> int:
        """Nanoseconds: when the first sample was logged (or taken, if the format has no log time)."""
        return self._extent()[0]

    @property
    def end(self) -> int:
        """Nanoseconds: when the last sample was logged."""
        return self._extent()[1]

    @property
    def duration(self) -> float:
        """Seconds from `start` to `end`."""
        return (self.end - self.start) * 1e-9

    def _extent(self) -> tuple[int, int]:
        if self._part.start is None or self._part.end is None:  # the file does not say: all of it is decoded
            arrivals = [s.arrivals for s in self.streams.values() if len(s)]
            start = min((int(a.min()) for a in arrivals), default=0)
            end = max((int(a.max()) for a in arrivals), default=0)
            self._part = self._part._replace(start=start, end=end)
        assert self._part.start is not None
        assert self._part.end is not None
        return self._part.start, self._part.end

    def _described(self) -> str:
        known = self._part.start is not None and self._part.end is not None
        parts = [f"{self.index}: {self.name!r}", counted(len(self.streams._source.listed(self.index)), "stream")]
        parts += [f"{self.duration:.2f} s"] if known else []
        parts += [f"task {self.task!r}"] if self.task else []
        return ", ".join(parts)

    def __repr__(self) -> str:
        return f"Episode({self._described()})"

    def _repr_html_(self) -> str:
        return content_html(f"Episode {self._described()}", self.streams._source.listed(self.index))


class Episodes(Sequence[Episode]):
    """The episodes of a recording. Each is made on access, because a data set may have a hundred thousand."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._made: dict[int, Episode] = {}

    @functools.cached_property
    def _parts(self) -> Sequence[Part]:
        """Not before they are asked for: how many there are may take a look at the clock."""
        return self._source.parts()

    def __len__(self) -> int:
        return len(self._parts)

    @overload
    def __getitem__(self, index: int) -> Episode: ...
    @overload
    def __getitem__(self, index: slice) -> list[Episode]: ...
    def __getitem__(self, index: int | slice) -> Episode | list[Episode]:
        if isinstance(index, slice):
            return [self[k] for k in range(*index.indices(len(self)))]
        k = range(len(self))[index]
        if k not in self._made:
            self._made.setdefault(k, Episode(self._source, k, self._parts[k]))
        return self._made[k]

    def __repr__(self) -> str:
        return f"[{', '.join(map(repr, self[:4]))}{', ...' if len(self) > 4 else ''}]"

    def _repr_html_(self) -> str:
        shown = self[:MOST_EPISODES]
        rows = []
        for episode, part in zip(shown, self._parts, strict=False):
            known = part.start is not None and part.end is not None  # if not, all of it would have to be decoded
            rows.append(episode_row(episode, episode.duration if known else None))
        title = f"Episodes of {self._source.path}: {len(self):,}"
        return _tables.as_html(title, EPISODES, rows, left_out=len(self) - len(shown))


def episode_row(episode: Episode, duration: float | None) -> list[str]:
    return [str(episode.index), episode.name, "-" if duration is None else f"{duration:.2f} s", episode.task or "-"]


class Recording:
    """A log that was opened by `rc.open`. Nothing is decoded yet.

    Threads may share a recording, its streams, and one pass over its batches. A forked child may continue to use it.

    Attributes:
        path: Where it is: "run.mcap".
        format: "MCAP", "LeRobot v3.0", ...
        time: As passed to `rc.open`: "auto", "stamp", "log" or "publish".
        files: The files that it reads.
        episodes: A sequence of `Episode`.
        lacking: Message types that are skipped, because no definition of them was found.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.path = source.path
        self.format = source.format
        self.time = source.time
        self.files = source.files
        self.given = source.given
        self.lacking = source.lacking
        self.episodes = Episodes(source)

    def __reduce__(self) -> tuple[Any, ...]:
        return Recording, (self._source,)

    def __dir__(self) -> list[str]:  # what users need
        own = {"content", "given", "leave_out", "listed", "presumed", "promised", "quick", "stamped"}
        return [name for name in super().__dir__() if name not in own]

    @property
    def notes(self) -> list[str]:
        """What a person should know: a rate that was assumed, topics that were skipped."""
        return list(self._source.notes)

    @property
    def streams(self) -> Streams | StreamsOfEpisodes:
        """{name: RecordedStream}. With samples if the recording has one episode.

        If it has several, their samples are in the episodes; type, dtype, shape, channels, method and metadata are
        here.
        """
        return self.episodes[0].streams if len(self.episodes) == 1 else StreamsOfEpisodes(self)

    def batches(self, streams: Collection[str] | None = None, episode: int | None = None) -> Iterator[Batch]:
        """All samples in pieces of a few MiB, as recorded, episode by episode: one pass, in little memory.

        Args:
            streams: Only these streams. Default: all.
            episode: Only this episode. Default: all.

        Returns:
            An iterator of batches; threads may share it.

        Raises:
            KeyError: There is no such stream.
        """
        if streams is not None:
            numbers = range(len(self.episodes)) if episode is None else [episode]
            known = dict.fromkeys(name for k in numbers for name in self._source.contents(k))
            for name in streams:
                if name not in known:
                    raise NoStream(absent(self._source, name, known))
        return SharedIterator(self._source.batches(streams, episode))

    def presumed(self) -> Recording | None:
        """See Source.presumed."""
        source = self._source.presumed()
        return None if source is None else Recording(source)

    def leave_out(self, episodes: Collection[int]) -> None:
        """See Source.leave_out."""
        self._source.leave_out(episodes)

    @property
    def clock(self) -> dict[str, Any] | None:
        """The clock that the recording's times are on. None if the format has only one clock.

        A dict with these keys:

        - `kind`: "log time" (nothing is stamped), "with log time" (wall time; nothing is converted) or "carried" (log
          times are converted).
        - `by`: what log times are converted by: "/clock" or "stamps".
        - `rate`, `slowest`, `fastest`: seconds of the clock in a second of log time, the real-time factor.
        - `offset_s`: clock minus log time at the start.
        - `resets`: how often a simulation restarted; each restart begins an episode.
        - `streams`: `{name: {"source": "log" | "recording" | "own", ...}}`; "own" has offset_s and drift_ppm.
        - `static`: topics that are constants.
        """
        return self._source.describe_clock()

    def listed(self) -> Mapping[str, Content]:
        """The list in the file, without decoding: the topics of an MCAP file. Most topics give one stream."""
        return self._source.listed(0) if len(self.episodes) else {}

    def stamped(self) -> tuple[FileStamp, ...]:
        """Size and modification time of the files before they were opened, to find changes after a pass."""
        return self._source.stamped()

    def content(self) -> str:
        """The hash of a recording that is bytes in memory; otherwise an empty string."""
        return self._source.content()

    def quick(self) -> Mapping[str, tuple[str, NDArray[np.int64]]] | None:
        """Type and arrivals of every topic, from the file's index. None if the file has no index."""
        return self._source.quick()

    def promised(self) -> Mapping[str, StreamInfo]:
        """The streams as far as their schemas describe them, before a message is read."""
        return self._source.promised()

    def _described(self) -> str:
        count = len(self.episodes)
        streams = len(self.listed())
        parts = self.episodes._parts
        known = [part.end - part.start for part in parts if part.end is not None and part.start is not None]
        long = f", {sum(known) * 1e-9:.2f} s" if len(known) == count else ""
        of = f"{counted(count, 'episode')}, {counted(streams, 'stream')}"
        return f"{self.format}: {of}{long}"

    def __repr__(self) -> str:
        return f"Recording({self.path!r}, {self._described()})"

    def _repr_html_(self) -> str:
        notes = [f"Note: {note}" for note in self.notes]
        streams = content_html(f"{self.path}: {self._described()}", self.listed(), notes)
        return streams if len(self.episodes) == 1 else f"{streams}\n{self.episodes._repr_html_()}"


class StreamsOfEpisodes(Mapping[str, RecordedStream]):
    """The streams of a recording with several episodes by name, without samples.

    To describe a stream, the first episode that has it is decoded.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def select(self, *names: str) -> dict[str, RecordedStream]:
        return {name: self[name] for name in names}

    def __getitem__(self, name: str) -> RecordedStream:
        from robocache._cache.episodes import CachedStream  # which is made of what is here

        recording = self._recording
        for episode in recording.episodes:
            if name in episode.streams:
                has = counted(len(recording.episodes), "episode")
                take = f'recording.episodes[{episode.index}].streams["{name}"]'
                why = f"{recording.path}: there are {has}; take the samples of one: {take}"
                return CachedStream(episode.streams[name].info, (), why)
        raise NoStream(missing(f"{recording.path}: there is no stream", name, self))

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name for episode in self._recording.episodes for name in episode.streams))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return any(name in episode.streams for episode in self._recording.episodes)

    def __repr__(self) -> str:
        return f"StreamsOfEpisodes({', '.join(map(repr, self))})"


class SharedIterator(Iterator[Item]):
    """An iterator that threads may share: each item goes to one of them."""

    def __init__(self, items: Iterator[Item]) -> None:
        self._items = items
        self._lock = ForkLock()

    def __next__(self) -> Item:
        with self._lock:
            return next(self._items)


def without_samples(recording: Recording, samples: Mapping[str, int]) -> list[str]:
    """Notes on topics that gave fewer samples than they have messages; `samples` are those of all streams."""
    if len(recording.episodes) != 1:
        return []
    listed = recording.listed()
    found = dict.fromkeys(listed, 0)
    for name, count in samples.items():
        topic = topic_of(name, found)
        if topic is not None:
            found[topic] += count
    notes, silent = [], []
    for topic, content in listed.items():
        if content.samples and not found[topic]:
            silent.append(f"{topic} ({counted(content.samples, 'message')} of {content.type or 'no type'})")
        elif content.samples and found[topic] < content.samples:
            notes.append(f"{topic}: {content.samples - found[topic]:,} of {content.samples:,} messages gave no sample")
    if silent:
        more = f" and {len(silent) - 6} more" if len(silent) > 6 else ""
        notes.append(f"no numbers were found in {', '.join(silent[:6])}{more}")
    if not any(samples.values()):
        notes.append(
            "there is no sample in it" if any(c.samples for c in listed.values()) else "there is no message in it"
        )
    return notes
