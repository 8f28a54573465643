"""The episodes of a cache and their streams, mapped or read on first use."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

from robocache import _tables
from robocache._align.stream import Method, stored_duration
from robocache._cache.tier import KIND, DenseSamples, TierSamples, places_of, served
from robocache._cache.values import dtype_name, method_text, typed, widen
from robocache._recordings.source import StreamInfo, max_gap_of
from robocache._recordings.source import method_of as method_in
from robocache._recordings.streams import RecordedStream, packed
from robocache._recordings.words import NoStream, counted, missing
from robocache._tables import columns

if TYPE_CHECKING:
    from robocache._cache.cache import Cache

EPISODES = ("", "episode", "task", "seconds", "streams", "samples")  # the headers of their table
MOST_EPISODES = 20  # rows of it
STREAMS = ("stream", "type", "dtype", "shape", "method")


class CacheSource(NamedTuple):
    """A recording that episodes were made from.

    Attributes:
        path: Where it was.
        size: Bytes; -1 if not known: then it is always read again.
        mtime: Modification time, nanoseconds.
        hash: xxh3-128.
        options: How it was read.
        complete: Whether all its episodes are in the cache.
    """

    path: str
    size: int
    mtime: int
    hash: str
    options: str
    complete: bool


class CachedEpisode:
    """Streams that were recorded together, on one clock: views of the cache's files.

    Attributes:
        index: The episode's number in the cache.
        name: Its name.
        task: What was to be done, or None.
        source: The recording that it was made from, or None.
        number: Its number in that recording.
        start: Nanoseconds, minus latencies.
        end: Nanoseconds, minus latencies.
        samples: {stream: the number of samples}.
        streams: {stream: RecordedStream}, mapped on first use. Channels that only later episodes have are NaN, and
            `values` are then a copy. For samples of varying length, videos, and cameras of which the cache keeps
            frames, `samples` has the samples.
    """

    def __init__(self, cache: Cache, index: int) -> None:
        core = cache._core
        name, task, source, number, start, end, group, row, streams = core.episode(index)
        self._cache = cache
        self.index = index
        self.name = name
        self.task: str | None = task or None
        self.source: CacheSource | None = cache.sources[source] if source >= 0 else None
        self.number = number
        self.start = start
        self.end = end
        self._group, self._row = group, row
        names = cache._names
        self._entries = {
            names[stream]: (stream, samples, backward, late) for stream, samples, backward, late in streams
        }
        self.samples = {stream: entry[1] for stream, entry in self._entries.items() if stream not in cache._hidden}
        self.streams = CachedStreams(cache, self)

    @property
    def duration(self) -> float:
        """Seconds from `start` to `end`."""
        return (self.end - self.start) * 1e-9

    def _info(self, name: str) -> StreamInfo:
        """The info of a stream of the episode, with the episode's own metadata."""
        cache = self._cache
        return cache._stored[name]._replace(metadata=cache._core.metadata(self.index, self._entries[name][0]))

    def _described(self) -> str:
        parts = [f"{self.index}: {self.name!r}", counted(len(self.samples), "stream"), f"{self.duration:.2f} s"]
        parts += [f"task {self.task!r}"] if self.task else []
        return ", ".join(parts)

    def __repr__(self) -> str:
        return f"CachedEpisode({self._described()})"

    def _repr_html_(self) -> str:
        rows = [[name, self._cache._infos[name].type, f"{samples:,}"] for name, samples in self.samples.items()]
        return _tables.as_html(f"Episode {self._described()}", ("stream", "type", "samples"), rows)


class CachedStreams(Mapping[str, RecordedStream]):
    """The streams of an episode by name, each mapped on first use."""

    def __init__(self, cache: Cache, episode: CachedEpisode) -> None:
        self._cache = cache
        self._episode = episode

    def __getitem__(self, name: str) -> RecordedStream:
        episode = self._episode
        if name not in episode._entries:
            if name in self._cache._joined:
                parts = ", ".join(self._cache._joined[name])
                raise NoStream(
                    f'{self._cache.path}: stream "{name}" is joined of {parts}, each with its own times: take one of '
                    "them, or cache.align, which brings them onto one timeline"
                )
            raise NoStream(missing(f"{self._cache.path}: episode {episode.name!r} has no stream", name, self))
        made = self.stored(name)
        if made.info.metadata.get("kind") == KIND:
            where = f'{self._cache.path}: stream "{name}"'
            options = made.info.metadata.get("frames", "varies")
            return numbered(made, made.info, TierSamples(where, np.asarray(made.values), options))
        return self._with_frames(made, self._cache._tiers[name]) if name in self._cache._tiers else made

    def _with_frames(self, camera: RecordedStream, tier: str) -> RecordedStream:
        """A camera's stream whose samples are the frames that the cache has of it."""
        cache, episode, name = self._cache, self._episode, str(camera.name)
        source = camera.samples if camera.samples is not None else DenseSamples(np.asarray(camera.values))
        stamps = np.asarray(camera.times), np.asarray(camera.arrivals)
        if tier in episode._entries:
            frames = self.stored(tier)
            rows, info = np.asarray(frames.values), frames.info
            places = places_of(stamps, (np.asarray(frames.times), np.asarray(frames.arrivals)))
        else:
            info = cache._stored[tier]
            rows, places = np.zeros((0, *info.shape), info.dtype), np.full(len(camera.times), -1, np.int64)
        warn = functools.partial(cache._missing_frames, name, episode.name)
        where, options = f'{cache.path}: stream "{name}"', info.metadata.get("frames", "varies")
        return numbered(camera, served(camera.info, info), TierSamples(where, rows, options, source, places, warn))

    def stored(self, name: str) -> RecordedStream:
        """A stream as the cache stores it: a camera without its frames, frames as an array."""
        episode = self._episode
        stream, _, backward, latency = episode._entries[name]
        values, times, arrivals, inner, _ = self._cache._core.read(episode.index, stream)
        info = episode._info(name)
        values = typed(values, info.dtype)
        samples: Sequence[Any] | None = None
        if inner is not None:
            if info.shape != values.shape[1:]:  # channels were added later
                info = info._replace(shape=values.shape[1:], channels=info.channels[: values.shape[1]])
            samples = packed(info, values[inner[0] : inner[-1]], np.diff(inner))
            values = np.arange(len(times), dtype=np.int64)
        elif info.metadata.get("kind") == "video":
            from robocache._recordings.video import Frames

            info = info._replace(metadata=self._cache._found(info.metadata))
            samples, values = Frames(info, values), np.arange(len(times), dtype=np.int64)
        else:
            values = widen(values, info.shape)
        channels = info.channels if info.channels and samples is None else None
        made = RecordedStream(
            values,
            times,
            arrivals=arrivals,
            method=method_in(info, len(times)),
            channels=channels,
            latency=stored_duration(latency),
            max_gap=max_gap_of(info),
            name=name,
        )
        made.info, made.backward, made.samples = info, backward, samples
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self._episode.samples)

    def __len__(self) -> int:
        return len(self._episode.samples)

    def __contains__(self, name: object) -> bool:
        return name in self._episode._entries

    def __repr__(self) -> str:
        return f"CachedStreams({', '.join(map(repr, self))})"


def numbered(stream: RecordedStream, info: StreamInfo, samples: TierSamples) -> RecordedStream:
    """The stream with these samples, and their numbers as its values."""
    made = RecordedStream(
        np.arange(len(samples), dtype=np.int64),
        stream.times,
        arrivals=stream.arrivals,
        method="hold",
        latency=stream.latency,
        max_gap=stream.max_gap,
        name=stream.name,
    )
    made.info, made.backward, made.samples = info, stream.backward, samples
    return made


class CachedEpisodes(Sequence[CachedEpisode]):
    """The episodes of a cache, by number or by name. Shown as a table."""

    def __init__(self, cache: Cache, count: int) -> None:
        self._cache = cache
        self._count = count
        self._made: dict[int, CachedEpisode] = {}  # by number: those that were asked for

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int | str) -> CachedEpisode: ...
    @overload
    def __getitem__(self, index: slice) -> list[CachedEpisode]: ...
    def __getitem__(self, index: int | str | slice) -> CachedEpisode | list[CachedEpisode]:
        if isinstance(index, slice):
            return [self[k] for k in range(*index.indices(self._count))]
        if isinstance(index, str):
            names = [self._cache._core.episode(k)[0] for k in range(self._count)]
            named = [k for k, name in enumerate(names) if name == index]
            if len(named) > 1:
                raise ValueError(
                    f"{self._cache.path}: {len(named)} episodes are named {index!r}, of several recordings; "
                    f"take them by number: {', '.join(map(str, named[:8]))}"
                )
            if not named:
                raise NoStream(missing(f"{self._cache.path}: there is no episode", index, names))
            index = named[0]
        number = range(self._count)[index]
        if number not in self._made:
            self._made[number] = CachedEpisode(self._cache, number)
        return self._made[number]

    def _rows(self) -> list[list[str]]:
        rows = []
        for episode in self[:MOST_EPISODES]:
            samples = f"{sum(episode.samples.values()):,}"
            seconds = f"{episode.duration:.2f}"
            rows.append(
                [str(episode.index), episode.name, episode.task or "", seconds, str(len(episode.samples)), samples]
            )
        return rows

    def __repr__(self) -> str:
        more = f"\n... and {self._count - MOST_EPISODES} more" if self._count > MOST_EPISODES else ""
        return "\n".join(columns([EPISODES, *self._rows()], right=(0, 3, 4, 5))) + more

    def _repr_html_(self) -> str:
        title = f"{self._cache.path}: {counted(self._count, 'episode')}"
        return _tables.as_html(title, EPISODES, self._rows(), left_out=max(self._count - MOST_EPISODES, 0))


class CachedStream(RecordedStream):
    """A stream of a cache or a recording with several episodes: what the episodes agree on, but no samples.

    It has name, type, dtype, shape, channels, method, ragged, metadata ("varies" where episodes differ) and info, as
    every `RecordedStream`. The samples are in the episodes: `cache.episodes[0].streams[name]`. For a recording, the
    first episode that has the stream describes it.

    Attributes:
        members: For a joined stream, the names of the streams that it is made of; otherwise ().
    """

    __slots__ = ("_why_not", "members")

    members: tuple[str, ...]

    def __init__(self, info: StreamInfo, members: tuple[str, ...], why_not: str) -> None:
        # The engine reads the slots, not the properties. They must not hold an array.
        none: Any = NoSamples(why_not)
        super().__init__(none, none, channels=info.channels or None, name=info.name)
        self.info, self.members, self._why_not = info, members, why_not

    def _refuse(self) -> Any:
        raise ValueError(self._why_not)

    values = times = arrivals = latency = samples = backward = property(_refuse)

    @property
    def method(self) -> Method | None:
        return self.info.method

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CachedStream):
            return NotImplemented
        return (self.info, self.members) == (other.info, other.members)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return CachedStream, (self.info, self.members, self._why_not)

    def __repr__(self) -> str:
        shape = f"{list(self.info.shape)}" if not self.ragged else f"{['*', *self.info.shape]}".replace("'", "")
        made = f", of {', '.join(self.members)}" if self.members else ""
        kind = f" {self.type}," if self.type else ""
        return f"CachedStream({self.name!r},{kind} {dtype_name(self.dtype)} {shape}, {method_text(self.info)}{made})"


class NoSamples:
    """Placeholder for values and times of a stream that spans several episodes."""

    def __init__(self, why: str) -> None:
        self.why_no_samples = why  # the engine puts it into its error


class StreamsOfCache(Mapping[str, RecordedStream]):
    """The streams of a cache by name, as policies see them. Shown as a table.

    The members of a joined stream are not listed, but can be looked up by their names.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def __getitem__(self, name: str) -> RecordedStream:
        cache = self._cache
        info, members = cache._info(name), cache._joined.get(name, ())
        if len(cache.episodes) == 1 and not members:
            streams = cache.episodes[0].streams
            if name in streams:
                return streams[name]
        if members:
            parts = ", ".join(members)
            why = f'stream "{name}" is joined of {parts}, each with its own times; cache.align makes one of them'
        else:
            has = counted(len(cache.episodes), "episode")
            why = f'there are {has}; take the samples of one: cache.episodes[0].streams["{name}"]'
        return CachedStream(info, members, f"{cache.path}: {why}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._cache._shown)

    def __len__(self) -> int:
        return len(self._cache._shown)

    def __contains__(self, name: object) -> bool:
        return name not in self._cache._hidden and (name in self._cache._infos or name in self._cache._joined)

    def _rows(self) -> list[list[str]]:
        rows = []
        for name in self:
            info = self._cache._info(name)
            shape = f"{list(info.shape)}" if not info.ragged else f"{['*', *info.shape]}".replace("'", "")
            rows.append([info.name, info.type, dtype_name(info.dtype), shape, method_text(info)])
        return rows

    def __repr__(self) -> str:
        return "\n".join(columns([STREAMS, *self._rows()]))

    def _repr_html_(self) -> str:
        return _tables.as_html(f"Streams of {self._cache.path}", STREAMS, self._rows())
