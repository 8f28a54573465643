"""Caches: episodes on disk at their native rates. The engine writes and maps them; here they get their names.

with rc.CacheWriter("cache") as w:
    w.add({"joints": rc.Stream(q, t), "gripper": rc.Stream(g, tg, method="hold")}, name="episode-7", task="pick")
    w.add(rc.open("run.mcap"))
cache = rc.Cache("cache")
aligned = cache.align(episodes=[0, 3], rate=50)
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import uuid
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from robocache import _core
from robocache._align import Aligned, Duration, Method, Stream, Timeline, align, stored_duration
from robocache._default_timeline import (
    Reach,
    Span,
    hold_always,
    is_held,
    refuse_too_large,
    result_bytes,
    runs,
    span_of,
    steps_of,
    valid_always,
)
from robocache._extent import check_dtype, nanoseconds, on_host
from robocache._joined import info_of, joins, put_together, shown
from robocache._prepare import Prepared, is_numbered, key_of, prepared
from robocache._recording import (
    BATCH_BYTES,
    Batch,
    NoStream,
    Packed,
    ReadAgain,
    RecordedStream,
    Recording,
    StreamInfo,
    counted,
    is_static,
    max_gap_of,
    missing,
    packed,
)
from robocache._recording import method_of as method_in
from robocache._stamps import FileStamp, check_unchanged
from robocache._versions import import_torch

Path = str | os.PathLike[str]
Stamps = NDArray[np.int64]
GROUP_BYTES = 256 << 20
MOST_STREAMS = 64  # of one call of rc.align
ON_HOST = (None, "cpu", "reference")  # backends that read NumPy arrays in place
DEFAULTS: dict[str, Any] = {"edge": "clamp", "causal": False, "on_nan": "propagate"}  # its defaults


# ---- Writing


class CacheWriter:
    """Puts episodes into a cache: your own arrays, recordings, other caches. Makes the cache, or adds to it.

        with rc.CacheWriter("cache") as w:
            w.add({"joints": rc.Stream(q, t), "gripper": rc.Stream(g, tg, method="hold")}, name="e7", task="pick")
            w.add(rc.open("run.mcap"))

    path         the directory. One writer at a time; readers may read meanwhile. Threads may share a writer: they wait
                 for each other. A process that was forked while it was open cannot use it, and does it no harm.
    group_bytes  whole episodes are committed when so much is waiting, by commit(), and at the end of the `with` block
                 (also where an exception ends it). What is committed survives a crash, a full disk, a kill -9.

    Memory stays under 64 MiB whatever is added. A full disk, a file that cannot be written: FileError with its name,
    and what was committed before is kept; commit() may be tried again. Where the disk may have lost what waits for it,
    commit() says so and drops it: add those episodes again.
    """

    def __init__(self, path: Path, *, group_bytes: int = GROUP_BYTES) -> None:
        self.path = os.fspath(path)
        self._writer = _core.CacheWriter(os.fsencode(path), group_bytes)
        self._lock = threading.RLock()
        self._adds = False
        self._names: set[bytes] | None = None  # of the sources that were there before, where they are needed

    def add(
        self,
        episode: Mapping[str, Stream[Any]] | Recording | Cache | Any,
        *,
        name: str | None = None,
        task: str | None = None,
        replace: bool = False,
        streams: Collection[str] | None = None,
        options: str = "",
        latency: Mapping[str, Duration] | None = None,
        progress: Callable[[Batch], None] | None = None,
    ) -> int:
        """Adds an episode of your own, or all episodes of a recording; returns how many were added.

        episode    {name: rc.Stream}: values [N, ...] (NumPy, torch on the CPU) or, where samples vary in length, a list
                   of arrays; times, arrivals, method, channels, latency as in rc.Stream (what else a Stream says is for
                   the call that aligns). Or a recording: `path`, `files`, `episodes` and `batches()`, as rc.open gives
                   it; the batches of an episode come before those of the next. Or a cache.
        name       default: "episode-<n>"; of a recording with several episodes, theirs.
        task       what was to be done; of a recording, for episodes that name none.
        replace    an episode of this name, if there is one, goes; else a name that is taken is a ValueError.
        streams    of a recording: only these.
        options    of a recording: how it was read, in any words (the hash of a recipe). See `knows`.
        latency    of a recording: by stream, how much later than the event a stamp is, clock offset included. It is
                   kept with the episode, and taken off when it is aligned.
        progress   of a recording: called with each batch that was written.

        A recording whose files are unchanged and that was added with the same options is not read again; of one that
        was added in part, because the build was interrupted, only the other episodes are added. One that has changed
        takes the place of what was read before.

        Where adding fails, the episode is left out, with the streams, channels and methods that it would have brought;
        the earlier ones stay. A stream has one method for each channel, which is the one that was given first. An
        episode that gives none changes nothing; another one is a ValueError, unless everything that has the stream
        is an older version of the same recording.
        """
        if not isinstance(episode, Mapping) and not hasattr(episode, "batches"):
            kind = type(episode).__name__
            raise TypeError(f"CacheWriter.add: expected a dict of rc.Stream or a recording, not {kind}")
        with self._alone():
            if self._adds:
                raise ValueError("CacheWriter.add: called while it adds another episode; wait until that has returned")
            self._adds = True
            try:
                if isinstance(episode, Mapping):
                    return self._add_streams(episode, name, task, replace)
                # Read as if its clock ran with log time, which needs no look ahead; where that is untrue, once more.
                presumed = episode.presumed() if streams is None and isinstance(episode, Recording) else None
                if presumed is not None:
                    try:
                        return self._add_recording(presumed, name, task, streams, options, latency or {}, progress)
                    except ReadAgain:
                        getattr(progress, "restart", lambda: None)()
                return self._add_recording(episode, name, task, streams, options, latency or {}, progress)
            finally:
                self._adds = False

    def _alone(self) -> contextlib.AbstractContextManager[Any]:
        """For one thread at a time. In a forked process nobody waits: the engine refuses each call with a sentence."""
        return contextlib.nullcontext() if self._writer.is_forked() else self._lock

    def knows(self, recording: Recording | Path | Any, options: str = "") -> bool:
        """Whether all of this recording is in the cache, or waits to be committed, as read with these options.

        It is unchanged if the path, size and modification time of its files are; else their hash decides. One of which
        something was left out (recording.lacking) is known until that can be read.
        """
        path, files = self._source_of(recording)
        hows = dict.fromkeys([read_how(recording, options), read_how(recording, options, whole=True)])
        if not files and path.startswith(b"sha256:"):  # its name is its content
            found = [source for source in Cache(self.path).sources if os.fsencode(source.path) == path]
            return any(source.complete and source.options in hows for source in found)
        with self._alone():
            return any(self._writer.knows(path, files, how) for how in hows)

    def knows_better(self, recording: Any, options: str, was: str) -> bool:
        """Whether a recording that lacks definitions now was read with them, and with these options, as `was` says."""
        lacks, how = getattr(recording, "lacking", ()), read_how(recording, options, whole=True)
        with self._alone():
            return (
                bool(lacks) and was.startswith(f"{how} with=") and self._writer.knows(*self._source_of(recording), was)
            )

    def name_of(self, recording: Recording | Any) -> str:
        """What the cache knows a recording by, as in `Cache.sources`."""
        return os.fsdecode(self._source_of(recording)[0])

    def _source_of(self, recording: Any) -> tuple[bytes, list[bytes]]:
        """As source_of; but a source that an earlier version knew by its absolute path keeps that name."""
        path, files = source_of(recording)
        spelled = os.fsencode(os.path.abspath(os.fspath(getattr(recording, "path", recording))))
        if files and spelled != path:
            if self._names is None:
                self._names = {os.fsencode(source.path) for source in Cache(self.path).sources}
            if path not in self._names and spelled in self._names:
                return spelled, files
        return path, files

    def commit(self) -> None:
        """Writes whole episodes that wait for it to the disk, so that nothing can lose them.

        What it costs does not grow with the number of episodes that the cache has."""
        with self._alone():
            self._writer.commit()

    def close(self) -> None:
        """Commits, and lets the next writer in, also where the commit fails."""
        with self._alone():
            self._writer.close()

    def __enter__(self) -> CacheWriter:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            self.close()
        except Exception as second:
            if error is None:
                raise
            error.add_note(f"and then closing the cache failed: {second}")

    def __repr__(self) -> str:
        return f"CacheWriter({self.path!r}, {counted(self._writer.committed_episodes(), 'episode')} committed)"

    def _add_streams(
        self, streams: Mapping[str, Stream[Any]], name: str | None, task: str | None, replace: bool
    ) -> int:
        if name is None:
            count = self._writer.committed_episodes() + self._writer.waiting_episodes()
            while self._writer.has_episode(f"episode-{count}"):
                count += 1
            name = f"episode-{count}"
        try:
            self._writer.begin_episode(name, task or "", 0, replace)
            for stream_name, stream in streams.items():
                self._append_stream(stream_name, stream)
            self._writer.end_episode()
        except BaseException:
            self._writer.discard_episode()
            raise
        return 1

    def _append_stream(self, name: str, stream: Stream[Any]) -> None:
        where = f'CacheWriter.add: stream "{name}": '
        if not isinstance(stream, Stream):
            raise TypeError(f"{where}expected a robocache.Stream, not {type(stream).__name__}")
        for argument in ("lengths", "offsets", "rows"):
            if getattr(stream, argument) is not None:
                raise ValueError(f"{where}it has {argument}; add each episode on its own")
        times = stamps_of(where, "times", stream.times)
        arrivals = times if stream.arrivals is None else stamps_of(where, "arrivals", stream.arrivals)
        latency = _core.nanoseconds(where + "latency", stream.latency)
        info = getattr(stream, "info", None)
        kind = info.type if info else ""
        metadata = self._portable(info.metadata) if info else {}
        samples = getattr(stream, "samples", None)
        values: Any = stream.values
        lengths: Stamps | None = None
        if samples is not None:  # values are their numbers
            numbers = sample_numbers(where, values, len(samples))
            if isinstance(samples, Packed):
                stored = [samples.as_stored(int(k)) for k in numbers]
                values, lengths = pack(where, stored, samples.rows.dtype, samples.rows.shape[1:])
            else:
                values = samples.references[numbers]
        elif isinstance(values, (list, tuple)):
            values, lengths = pack(where, values)
        elif hasattr(values, "detach"):
            values = values.detach()
        channels = stream.channels or ()
        self._writer.append(
            name,
            kind,
            values,
            times,
            arrivals,
            lengths,
            channels,
            None if lengths is not None else stream.method,
            lengths is not None,
            metadata,
            latency,
        )

    def _add_recording(
        self,
        recording: Any,
        name: str | None,
        task: str | None,
        streams: Collection[str] | None,
        options: str,
        latency: Mapping[str, Duration],
        progress: Callable[[Batch], None] | None,
    ) -> int:
        chosen = None if streams is None else sorted(streams)
        late = sorted((stream, repr(duration)) for stream, duration in latency.items())
        if (chosen, late, name, task) != (None, [], None, None):
            options = json.dumps([options, chosen, late, name, task])
        if self.knows(recording, options):
            return 0
        stamps = recording.stamped() if hasattr(recording, "stamped") else ()
        check_unchanged(stamps)  # what is read is what the engine is about to stamp
        episodes = recording.episodes
        if name is not None and len(episodes) != 1:
            raise ValueError(f"CacheWriter.add: a name for {len(episodes)} episodes; they have names of their own")
        writer = self._writer
        path, files = self._source_of(recording)
        there: set[int] = set()
        added = 0
        current = -1

        def advance(number: int) -> None:
            """Ends the episode that is open, begins those up to `number`."""
            nonlocal current, added
            if current >= 0 and current not in there:
                writer.end_episode()
                added += 1
            while current < number:
                current += 1
                if current in there or current >= len(episodes):
                    continue
                begun = episodes[current]
                writer.begin_episode(name or begun.name, begun.task or task or "", current, False)
                if current < number:
                    writer.end_episode()
                    added += 1

        try:
            opened = opened_of(stamps, files)
            there.update(writer.begin_source(path, files, read_how(recording, options), opened))
            for batch in recording.batches(streams):
                if batch.episode < current:
                    raise ValueError(f"CacheWriter.add: a batch of episode {batch.episode} comes after {current}")
                if batch.episode > current:
                    advance(batch.episode)
                if batch.episode not in there:
                    self._append_batch(batch, latency)
                if progress is not None:
                    progress(batch)
            check_unchanged(stamps)
            advance(len(episodes))
            check_unchanged(stamps)
            if not writer.end_source():
                raise _core.FileError(
                    f"{recording.path}: it changed while it was read; add it again when nothing writes to it"
                )
        except BaseException:
            writer.discard_episode()
            writer.leave_source()
            raise
        return added

    def _append_batch(self, batch: Batch, latency: Mapping[str, Duration]) -> None:
        info = batch.info
        given = latency[batch.stream] if batch.stream in latency else getattr(info, "latency", 0)
        self._writer.append(
            batch.stream,
            info.type,
            batch.values,
            np.ascontiguousarray(batch.times, np.int64),
            np.ascontiguousarray(batch.arrivals, np.int64),
            None if batch.lengths is None else np.ascontiguousarray(batch.lengths, np.int64),
            tuple(info.channels),
            None if info.ragged else info.method,
            info.ragged,
            self._portable(info.metadata),
            _core.nanoseconds(f'CacheWriter.add: stream "{batch.stream}": latency', given),
        )

    def _portable(self, metadata: Mapping[str, str]) -> dict[str, str]:
        """Also stores the video's path relative to the cache, so both can be moved together."""
        found = dict(metadata)
        if found.get("kind") == "video" and "file" in found:
            found["from_cache"] = os.path.relpath(os.path.realpath(found["file"]), os.path.realpath(self.path))
        return found


def read_how(recording: Any, options: str, *, whole: bool = False) -> str:
    """A recording's own options beside those that were given, and what it lacks; whole: as if it lacked nothing."""
    time, given = getattr(recording, "time", "auto"), getattr(recording, "given", "")
    how = options if time == "auto" else f"{options} time={time}"
    how = f"{how} with={given}" if given else how
    lacking = () if whole else getattr(recording, "lacking", ())
    return f"{how} without={','.join(lacking)}" if lacking else how


def source_of(recording: Any) -> tuple[bytes, list[bytes]]:
    """The name of a source and its files, as the engine knows it by: real paths, so that a symbolic link or another
    spelling is the same source; of bytes in memory their hash. A file object is never known again, and takes no
    other's place."""
    path = recording.path if hasattr(recording, "batches") else recording
    text = os.fspath(path)
    if hasattr(recording, "batches"):
        files = recording.files
    elif os.path.isdir(text):
        files = [os.path.join(folder, name) for folder, _, names in os.walk(text) for name in names]
    else:
        files = [text]
    content = recording.content() if hasattr(recording, "content") else ""
    if content:
        text = content
    elif not files and "://" not in text:
        text = f"{text} {uuid.uuid4()}"
    elif "://" not in text:
        text = os.path.realpath(text)
    return os.fsencode(text), [os.fsencode(os.path.realpath(file)) for file in files]


def opened_of(stamps: Sequence[FileStamp], files: Sequence[bytes]) -> list[tuple[int, int, int, int]]:
    """Device, inode, size and mtime of each file as the recording opened it; nothing where it does not tell of all."""
    opened = {os.path.realpath(s.path): (s.device, s.inode, s.size, s.mtime) for s in stamps}
    found = [opened.get(os.path.realpath(os.fsdecode(file))) for file in files]
    return [stamp for stamp in found if stamp is not None] if None not in found else []


def stamps_of(where: str, name: str, stamps: Any) -> Stamps:
    if isinstance(stamps, (list, tuple)):
        stamps = np.asarray(stamps) if len(stamps) else np.zeros(0, np.int64)
    accepted = ("int64", "float64", "float32")
    check_dtype(where, name, stamps, accepted, "int64 nanoseconds, or float64 or float32 seconds")
    flat = on_host(stamps)
    if flat.ndim != 1:
        raise ValueError(f"{where}{name} have {flat.ndim} dimensions; expected [N]")
    return np.ascontiguousarray(nanoseconds(where, flat))


def sample_numbers(where: str, values: Any, count: int) -> NDArray[np.int64]:
    """Which of its samples a stream's values name; `replace` may have left some out."""
    numbers = on_host(values)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or numbers.min(initial=0) < 0:
        raise ValueError(f"{where}values must be numbers of its samples, 0 to {count - 1}")
    if numbers.max(initial=-1) >= count:
        raise ValueError(f"{where}values name sample {numbers.max()}; there are {count}")
    return numbers.astype(np.int64)


def pack(
    where: str, samples: Sequence[Any], dtype: Any = None, shape: tuple[int, ...] | None = None
) -> tuple[NDArray[Any], Stamps]:
    """Samples of varying length, end to end, and the length of each."""
    arrays = [on_host(sample) for sample in samples]
    for k, array in enumerate(arrays):
        dtype, shape = (array.dtype, array.shape[1:]) if shape is None else (dtype, shape)
        if array.ndim == 0 or array.dtype != dtype or array.shape[1:] != shape:
            expected = f"{np.dtype(dtype)} {['*', *shape]}".replace("'", "")
            raise ValueError(f"{where}values[{k}] is {array.dtype} {list(array.shape)}; expected {expected}")
    if shape is None:
        raise ValueError(f"{where}values is an empty list; an array of shape [0, ...] says what samples would be")
    lengths = np.asarray([len(array) for array in arrays], np.int64)
    return np.concatenate([*arrays, np.zeros((0, *shape), dtype)]), lengths


# ---- Reading


class CacheSource(NamedTuple):
    """What episodes were made from."""

    path: str
    size: int  # bytes; -1: not known, it is always read again
    mtime: int  # nanoseconds
    hash: str  # xxh3-128
    options: str
    complete: bool  # all its episodes are there


class CachedEpisode:
    """Streams that were recorded together, on one clock: views of the cache's files.

    name, task, start, end (nanoseconds, latencies taken off), duration (seconds), source, number (within its source)
    samples   {stream: how many}
    streams   {stream: rc.Stream}, mapped when touched: values, times, arrivals, channels, method, latency, and
              max_gap where a recipe says it; with `info`, `backward` (stamps that were sorted) and, of samples that
              vary in length and of videos (whose frames stay in the data set), `samples`. Channels that only later
              episodes have are NaN (`values` are a copy then); rows of varying number have the first ones
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
        self.samples = {stream: entry[1] for stream, entry in self._entries.items()}
        self.streams: Mapping[str, RecordedStream] = CachedStreams(cache, self)

    @property
    def duration(self) -> float:
        """Seconds."""
        return (self.end - self.start) * 1e-9

    def _info(self, name: str) -> StreamInfo:
        """Of a stream that the episode has, with its own metadata."""
        cache = self._cache
        return cache._infos[name]._replace(metadata=cache._core.metadata(self.index, self._entries[name][0]))

    def __repr__(self) -> str:
        parts = [f"{self.index}: {self.name!r}", counted(len(self.samples), "stream"), f"{self.duration:.2f} s"]
        parts += [f"task {self.task!r}"] if self.task else []
        return f"CachedEpisode({', '.join(parts)})"


class CachedStreams(Mapping[str, RecordedStream]):
    """The streams of an episode by name, each mapped when it is touched."""

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
        stream, _, backward, latency = episode._entries[name]
        values, times, arrivals, inner, _ = self._cache._core.read(episode.index, stream)
        info = episode._info(name)
        values = typed(values, info.dtype)
        samples: Sequence[Any] | None = None
        if inner is not None:
            if info.shape != values.shape[1:]:  # it was widened later
                info = info._replace(shape=values.shape[1:], channels=info.channels[: values.shape[1]])
            samples = packed(info, values[inner[0] : inner[-1]], np.diff(inner))
            values = np.arange(len(times), dtype=np.int64)
        elif info.metadata.get("kind") == "video":
            from robocache._video import Frames

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
        return iter(self._episode._entries)

    def __len__(self) -> int:
        return len(self._episode._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._episode._entries

    def __repr__(self) -> str:
        return f"CachedStreams({', '.join(map(repr, self))})"


class CachedEpisodes(Sequence[CachedEpisode]):
    """The episodes of a cache, by number or by name; a table when shown."""

    def __init__(self, cache: Cache, count: int) -> None:
        self._cache = cache
        self._count = count

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
            return CachedEpisode(self._cache, named[0])
        return CachedEpisode(self._cache, range(self._count)[index])

    def __repr__(self) -> str:
        shown = self[:20]
        rows = [["", "episode", "task", "seconds", "streams", "samples"]]
        for episode in shown:
            samples = f"{sum(episode.samples.values()):,}"
            seconds = f"{episode.duration:.2f}"
            rows.append(
                [str(episode.index), episode.name, episode.task or "", seconds, str(len(episode.samples)), samples]
            )
        more = f"\n... and {self._count - len(shown)} more" if self._count > len(shown) else ""
        return table(rows, right=(0, 3, 4, 5)) + more


class CachedStream(RecordedStream):
    """A stream of a cache with several episodes: what they agree on, which is all but the samples.

    name, type, dtype, shape, channels, method, ragged, metadata ("varies" where episodes differ), info: as every
    RecordedStream has them. members: of a joined stream, the names of the streams that it is made of; else ().
    The samples are those of one episode: cache.episodes[0].streams[name].
    """

    __slots__ = ("_why_not", "members")

    members: tuple[str, ...]

    def __init__(self, info: StreamInfo, members: tuple[str, ...], why_not: str) -> None:
        # The engine reads the slots, not the properties: they must hold no array.
        super().__init__(NoSamples(), NoSamples(), channels=info.channels or None, name=info.name)  # type: ignore
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


class StreamsOfCache(Mapping[str, RecordedStream]):
    """The streams of a cache by name, as policies see them; a table when shown. The members of a joined stream are
    found by their names, too, but not listed."""

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
        return name in self._cache._infos or name in self._cache._joined

    def __repr__(self) -> str:
        rows = [["stream", "type", "dtype", "shape", "method"]]
        for name in self:
            info = self._cache._info(name)
            shape = f"{list(info.shape)}" if not info.ragged else f"{['*', *info.shape]}".replace("'", "")
            rows.append([info.name, info.type, dtype_name(info.dtype), shape, method_text(info)])
        return table(rows)


class CacheAligned(dict[str, Aligned[Any]]):
    """{stream: Aligned}, a row for each episode. Steps k >= lengths[b] of row b lie behind the end of its episode.

    lengths   int64 [B]
    times     int64 [B, T]: nanoseconds
    episodes  the numbers of the episodes
    samples   of streams whose samples vary in length, and of videos, {stream: a sequence for each row}: what was seen
              at step t of row b is samples[name][b][aligned[name].values[b, t]]
    """

    lengths: Any
    times: Any
    episodes: list[int]
    samples: dict[str, list[Sequence[Any]]]

    def __repr__(self) -> str:
        parts = ", ".join(f"{name!r}: {aligned!r}" for name, aligned in self.items())
        return f"CacheAligned({{{parts}}}, {counted(len(self.episodes), 'episode')})"


class Cache:
    """A cache, opened for reading. Costs the same whatever it holds: samples are mapped when they are touched.

    path, bytes
    episodes   by number or name: cache.episodes[3].streams["joints"] is an rc.Stream over the mapped files, no copy
    streams    {name: RecordedStream}, as a recording has it: type, dtype, shape, channels, method, and metadata where
               the episodes agree on them ("varies" where they do not: an episode's stream has its own). With its
               samples where the cache has one episode; of several, an episode has them. A stream that a recipe joined
               of several topics is one stream here, and in `align`; its `members` are what is stored
    sources    what the episodes were made from

    map        True: samples are views of the mapped files. Where such a file becomes shorter, or its disk fails, the
               system ends the process (SIGBUS) when the lost samples are touched. False: the samples of an episode are
               copied into memory when it is touched, and such a failure is a FileError with the file's name

    What is committed later is seen by a Cache that is opened later. A cache that is missing, damaged, or written by a
    newer RoboCache is a FileError. Threads may share a Cache; a child process may go on with it after a fork; pickled,
    it is its path and `map`, and opens the cache again.
    """

    files: tuple[str, ...] = ()  # as a source of another cache: always read again

    def __init__(self, path: Path, *, map: bool = True) -> None:
        self.path = os.fspath(path)
        self._map = bool(map)
        self._core = _core.Cache(os.fsencode(path), self._map)
        if torn := self._core.torn_bytes():
            warnings.warn(
                f"{self.path}: the last {torn} bytes of its journal are not a whole commit, which is left out: it was "
                "interrupted, or was damaged since; `robocache verify` says what can be taken in",
                stacklevel=2,
            )
        streams, episodes, sources, self.bytes = self._core.counts()
        self.sources = [CacheSource(*self._core.source(k)) for k in range(sources)]
        infos: dict[str, StreamInfo] = {}
        for k in range(streams):
            name, kind, dtype, shape, channels, ranges, ragged, metadata = self._core.stream(k)
            info = StreamInfo(
                name, kind, numpy_dtype(dtype), shape, channels, method_of(ranges, shape), ragged, metadata
            )
            infos[name] = info
        self._infos = infos  # as stored
        self._names = list(infos)
        self._joined = joins(infos)
        self._shown = shown(infos, self._joined)
        self.streams = StreamsOfCache(self)
        self.episodes = CachedEpisodes(self, episodes)
        self._known_reaches: dict[tuple[int, str], Reach | None] = {}  # by episode and stored stream
        self._known_spans: dict[Any, dict[int, Span | None]] = {}  # by streams and whether each is held; by episode
        self._known_told: dict[tuple[int, str], tuple[bool, Duration | None]] = {}  # static, and max_gap

    def _found(self, metadata: dict[str, str]) -> dict[str, str]:
        """The video's path. If the stored path is gone, the path relative to the cache."""
        moved = os.path.normpath(os.path.join(os.path.realpath(self.path), metadata.get("from_cache", "")))
        if "from_cache" in metadata and not os.path.exists(metadata.get("file", "")) and os.path.exists(moved):
            return metadata | {"file": moved}
        return metadata

    def _info(self, name: str) -> StreamInfo:
        """StreamInfo of a stored or joined stream."""
        if name in self._joined:
            return info_of(name, [self._infos[member] for member in self._joined[name]])
        if name not in self._infos:
            raise NoStream(missing(f"{self.path}: the cache has no stream", name, self._shown))
        return self._infos[name]

    def batches(self, streams: Collection[str] | None = None, episode: int | None = None) -> Iterator[Batch]:
        """All samples in pieces of a few MiB, as a recording gives them: what another CacheWriter takes. Latencies are
        taken off the times."""
        for name in streams or ():
            self._info(name)  # raises where there is no such stream
        wanted = None if streams is None else {member for n in streams for member in self._joined.get(n, (n,))}
        for number in range(len(self.episodes)) if episode is None else [episode]:
            found = self.episodes[number].streams
            for name in found:
                if wanted is None or name in wanted:
                    late = _core.nanoseconds("latency", found[name].latency)
                    for batch in cut(number, found[name]):
                        yield batch._replace(times=batch.times - late)

    def align(
        self,
        episodes: Sequence[int | str] | int | str | None = None,
        *,
        rate: float | None = None,
        targets: Any = None,
        streams: Sequence[str] | None = None,
        method: Method | Mapping[str, Method] | None = None,
        max_gap: Duration | Mapping[str, Duration] | None = None,
        edge: str | Mapping[str, str] = "clamp",
        causal: bool | Mapping[str, bool] = False,
        on_nan: str | Mapping[str, str] = "propagate",
        device: Any = None,
        backend: str | None = None,
    ) -> CacheAligned:
        """Whole episodes on one timeline each, or times of your choice in each.

            aligned = cache.align(episodes=[0, 3], rate=50)         # the default timeline of each episode
            aligned["joints"].values, aligned.lengths, aligned.times
            cache.align(targets=[0.0, 0.5, 1.0])                    # seconds after the start of each episode

        episodes   numbers or names; default: all.
        rate       hertz. An episode's timeline spans what its streams share, of those asked for that run all the time:
                   constants and streams that are written on change bound nothing (docs/semantics.md, The default
                   timeline). Rows have as many steps as the longest has; `lengths` says how many are real.
        targets    instead of a rate: [T], or [B, T], relative to each episode's start; floats are seconds, ints
                   nanoseconds. All of them count: lengths are T.
        streams    names; default: all that any of the episodes has. In an episode that lacks one, nothing is valid.
        method, max_gap   for all streams, or by name; default: what the cache has. Where the episodes were built with
                   different max_gaps, the least.
        edge, causal, on_nan   as in rc.align, for all streams or by name ({"action": False}; the others: the default).
        backend    as in rc.align. Latencies that the cache has are taken off.
        device     None: NumPy arrays. "cpu", "cuda", ...: torch tensors there.

        NumPy arrays are made from the mapped files in place, whichever shards the episodes lie in; for a device, and
        where channels came later than an episode, samples are copied first. Of streams whose samples vary in length
        (images, clouds) and of videos the number of the sample is aligned, and `samples` has them. A joined
        stream has the channels of its members side by side: valid where all are, as old as the oldest, index -1.
        """
        chosen = [self.episodes[k] for k in self._numbers(episodes)]
        if (rate is None) == (targets is None):
            raise ValueError("Cache.align: give a rate or targets, one of them")
        names = list(streams) if streams is not None else self._having(chosen)
        infos = {name: self._info(name) for name in names}
        groups = {name: self._joined.get(name, (name,)) for name in names}
        options = {"edge": edge, "causal": causal, "on_nan": on_nan}
        call: dict[str, Any] = {
            option: DEFAULTS[option] if isinstance(given, Mapping) else given for option, given in options.items()
        }
        own = {option: given for option, given in options.items() if isinstance(given, Mapping)}
        given = {"method": method, "max_gap": max_gap, **own}
        asked = prepared("Cache.align", groups, self._infos, given, call["edge"])
        line, lengths = self._timeline(chosen, asked, rate, targets)
        move = mover(device)
        result = CacheAligned()
        result.samples = {}
        members: dict[str, Stream[Any]] = {}
        apart: dict[str, str] = {}  # the stored streams that are read where they lie, row by row
        held: dict[str, Stream[Any]] = {}  # of streams that are constants in some episodes
        constant: dict[str, list[int]] = {}  # the rows of these episodes
        for key, (_, member, changes) in asked.items():
            stored = self._infos[member]
            rows, gap = self._told(member, chosen)
            changes = {"method": stored.method, "max_gap": gap, **changes}
            if rows:
                whole = self._packed(member, stored, chosen, move, result.samples).replace(**changes)
                held[key], constant[key] = hold_always(whole, move), rows
                if len(rows) == sum(member in episode.samples for episode in chosen):
                    continue
                members[key] = whole
            elif move is keep and backend in ON_HOST and self._lies_apart(member, stored, chosen):
                apart[key] = member
                members[key] = empty_stream(stored).replace(**changes)
            else:
                members[key] = self._packed(member, stored, chosen, move, result.samples).replace(**changes)
        at: Any = move(line) if isinstance(line, np.ndarray) else line
        if isinstance(line, Timeline):
            at = Timeline(move(line.start), rate=line.rate, count=line.count)
        aligned = self._align_apart(members, apart, chosen, at, call, backend) if apart else {}
        aligned |= align_some({key: members[key] for key in members if key not in aligned}, at, call, backend)
        for key, constants in align_some(held, at, call, backend).items():
            aligned[key] = with_rows(aligned.get(key), valid_always(constants), constant[key])
        for name, info in infos.items():
            parts = [aligned[key_of(name, member, groups)] for member in groups[name]]
            result[name] = put_together(parts, info.dtype) if name in self._joined else parts[0]
        result.lengths = move(lengths)
        result.times = at.times if isinstance(at, Timeline) else at
        result.episodes = [episode.index for episode in chosen]
        return result

    def _told(self, name: str, chosen: Sequence[CachedEpisode]) -> tuple[list[int], Duration | None]:
        """The rows of the episodes in which a stored stream is a constant, and the least max_gap of all of them."""
        if not self._tells(name):
            return [], None
        told = [self._told_in(episode, name) if name in episode.samples else (False, None) for episode in chosen]
        gaps = [gap for _, gap in told if gap is not None]
        least = min(gaps, key=lambda gap: _core.nanoseconds("max_gap", gap), default=None)
        return [row for row, (static, _) in enumerate(told) if static], least

    def _tells(self, name: str) -> bool:
        """Whether an episode may say of a stored stream that it is a constant, or has a max_gap."""
        return bool({"static", "max_gap_ns"} & self._infos[name].metadata.keys())

    def _told_in(self, episode: CachedEpisode, name: str) -> tuple[bool, Duration | None]:
        """Whether a stored stream is a constant in this episode, and its max_gap there."""
        if not self._tells(name):
            return False, None
        key = episode.index, name
        if key not in self._known_told:
            info = episode._info(name)
            self._known_told[key] = is_static(info), max_gap_of(info)
        return self._known_told[key]

    def _having(self, chosen: Sequence[CachedEpisode]) -> list[str]:
        """The streams of which any of these episodes has something, as users see them."""
        return shown([name for name in self._names if any(name in e.samples for e in chosen)], self._joined)

    def _numbers(self, episodes: Sequence[int | str] | int | str | None) -> list[int]:
        if episodes is None:
            return list(range(len(self.episodes)))
        if isinstance(episodes, (int, str, np.integer)):
            episodes = [episodes]
        return [self.episodes[k].index if isinstance(k, str) else range(len(self.episodes))[int(k)] for k in episodes]

    def _timeline(
        self, chosen: Sequence[CachedEpisode], asked: Mapping[str, Prepared], rate: float | None, targets: Any
    ) -> tuple[Timeline | Stamps, Stamps]:
        starts = np.asarray([episode.start for episode in chosen], np.int64)
        if rate is not None:
            if not 0 < _core.hertz("Cache.align: rate", rate) < np.inf:
                raise ValueError(f"Cache.align: rate is {rate}; it must be a positive number of hertz")
            spans = self._spans(chosen, asked)
            starts = np.asarray(
                [e.start if s is None else s.start for e, s in zip(chosen, spans, strict=True)], np.int64
            )
            lengths = np.asarray([steps_of(span, rate) for span in spans], np.int64)
            count = int(lengths.max(initial=0))
            longest = int(lengths.argmax()) if len(lengths) else 0
            if count and spans[longest] is not None:
                sizes = (row_bytes(self._infos[one.member]) for one in asked.values())
                size = result_bytes(len(chosen) * count, sizes)
                where, name, span = "Cache.align", chosen[longest].name, spans[longest]
                assert span is not None
                refuse_too_large(where, name, span, rate, count, size, self._reaches(chosen[longest], asked))
            return Timeline(starts, rate=rate, count=count), lengths
        given = on_host(targets) if hasattr(targets, "shape") else np.asarray(targets)
        if given.dtype == np.int32 or given.size == 0:
            given = given.astype(np.int64)
        check_dtype("Cache.align: ", "targets", given, ("int64", "float64", "float32"), "int64 ns or float seconds")
        if given.ndim not in (1, 2) or (given.ndim == 2 and len(given) != len(chosen)):
            raise ValueError(f"Cache.align: targets are {list(given.shape)}; expected [T] or [{len(chosen)}, T]")
        times = nanoseconds("Cache.align: targets: ", given)
        times = starts[:, None] + (times if times.ndim == 2 else times[None, :])
        return np.ascontiguousarray(times), np.full(len(chosen), times.shape[1], np.int64)

    def _lies_apart(self, name: str, info: StreamInfo, chosen: Sequence[CachedEpisode]) -> bool:
        """True if these episodes lie in several shards or have different latencies."""
        if is_numbered(info) or not chosen:
            return False
        entries = [episode._entries.get(name) for episode in chosen]
        latencies = {entry[3] for entry in entries if entry is not None}
        groups = {episode._group for episode in chosen}
        return not self._map or None in entries or len(groups) > 1 or len(latencies) > 1

    def _align_apart(
        self,
        members: dict[str, Stream[Any]],
        apart: Mapping[str, str],
        chosen: Sequence[CachedEpisode],
        at: Any,
        call: Mapping[str, Any],
        backend: str | None,
    ) -> dict[str, Aligned[Any]]:
        """Streams whose episodes lie in several shards, each row read in place. Members that cannot be, because a shard
        has fewer channels than the stream has now, are packed for rc.align instead."""
        numbers = np.asarray([episode.index for episode in chosen], np.int64)
        aligned: dict[str, Aligned[Any]] = {}
        keys = list(apart)
        for begin in range(0, len(keys), MOST_STREAMS):
            some = {key: members[key] for key in keys[begin : begin + MOST_STREAMS]}
            places = np.asarray([self._names.index(apart[key]) for key in some], np.int64)
            options = (call["edge"], call["causal"], call["on_nan"], backend)
            made = _core.align_episodes(self._core, numbers, places, some, at, *options)
            if made is not NotImplemented:
                aligned.update(made)
                continue
            for key, stream in some.items():
                packed = self._packed(apart[key], self._infos[apart[key]], chosen, keep, {})
                same = {name: getattr(packed, name) for name in ("values", "times", "arrivals", "offsets")}
                members[key] = stream.replace(**same)
        return aligned

    def _spans(self, chosen: Sequence[CachedEpisode], asked: Mapping[str, Prepared]) -> list[Span | None]:
        """What each episode spans on its default timeline; found once for the same streams."""
        held = [changes.get("method", self._infos[name].method) for _, name, changes in asked.values()]
        names = tuple(one.member for one in asked.values())
        kinds = tuple(is_held(method, self._infos[name].dtype) for method, name in zip(held, names, strict=True))
        known = self._known_spans.setdefault((names, kinds), {})
        for episode in chosen:
            if episode.index not in known:
                known[episode.index] = span_of(self._reaches(episode, asked))
        return [known[episode.index] for episode in chosen]

    def _reaches(self, episode: CachedEpisode, asked: Mapping[str, Prepared]) -> dict[str, Reach]:
        """What each of these streams, as it will be aligned, tells of the episode's span."""
        found: dict[str, Reach] = {}
        for key, (_, name, changes) in asked.items():
            if name not in episode.samples:
                continue
            place = episode.index, name
            if place not in self._known_reaches:  # found once, since it takes all stamps
                self._known_reaches[place] = self._reach(episode, name)
            reach = self._known_reaches[place]
            if reach is not None and "method" in changes:
                reach = reach._replace(is_held=is_held(changes["method"], self._infos[name].dtype))
            if reach is not None:
                found[key] = reach
        return found

    def _reach(self, episode: CachedEpisode, name: str) -> Reach | None:
        """As reach_of, for a stored stream, without its samples."""
        stream, _, _, latency = episode._entries[name]
        times = self._core.read(episode.index, stream)[1]
        if not len(times):
            return None
        info, (static, _) = self._infos[name], self._told_in(episode, name)
        first, last = int(times[0]) - latency, int(times[-1]) - latency
        return Reach(first, last, not static and runs(times), is_held(info.method, info.dtype), static)

    def _packed(
        self,
        name: str,
        info: StreamInfo,
        chosen: Sequence[CachedEpisode],
        move: Callable[[NDArray[Any]], Any],
        samples: dict[str, list[Sequence[Any]]],
    ) -> Stream[Any]:
        """A stream of these episodes, packed: in place where one shard has them all."""
        having = [episode for episode in chosen if name in episode.samples]
        latencies = {episode._entries[name][3] for episode in having}
        groups = {episode._group for episode in having}
        numbered = is_numbered(info)
        channels = info.channels if info.channels and not numbered else None
        if self._map and len(groups) == 1 and len(having) == len(chosen) and len(latencies) == 1 and not numbered:
            stream = having[0]._entries[name][0]
            values, times, arrivals, _, offsets = self._core.read_group(groups.pop(), stream)
            values = typed(values, info.dtype)
            if values.shape[1:] == info.shape:
                rows = np.asarray([episode._row for episode in chosen], np.int64)
                # Only what lies between the first and the last of these episodes is checked, or goes to a device.
                first, last = int(offsets[rows.min()]), int(offsets[rows.max() + 1])
                if (first, last) != (0, len(times)):
                    values, times, arrivals = values[first:last], times[first:last], arrivals[first:last]
                    offsets = np.clip(offsets, first, last) - first
                return Stream(
                    move(values),
                    move(times),
                    arrivals=move(arrivals),
                    offsets=move(offsets),
                    rows=move(rows),
                    channels=channels,
                    latency=stored_duration(latencies.pop()),
                )
        parts: list[NDArray[Any]] = []
        times_of: list[Stamps] = []
        arrivals_of: list[Stamps] = []
        lengths = []
        seen: list[Sequence[Any]] = []
        for episode in chosen:
            if name not in episode.samples:
                lengths.append(0)
                seen.append(())
                continue
            found = episode.streams[name]
            parts.append(found.values)
            times_of.append(found.times - _core.nanoseconds("latency", found.latency))
            arrivals_of.append(found.arrivals)
            lengths.append(len(found.times))
            seen.append(found.samples if found.samples is not None else ())
        if numbered:
            samples[name] = seen
        dtype = np.dtype(np.int64) if numbered else info.dtype
        shape = () if numbered else info.shape
        none = np.zeros(0, np.int64)
        return Stream(
            move(np.concatenate([*parts, np.zeros((0, *shape), dtype)])),
            move(np.concatenate([*times_of, none])),
            arrivals=move(np.concatenate([*arrivals_of, none])),
            offsets=move(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)),
            channels=channels,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_cache, (os.path.abspath(self.path), self._map)

    def __repr__(self) -> str:
        seconds = sum(episode.duration for episode in self.episodes) if len(self.episodes) <= 10_000 else None
        long = "" if seconds is None else f", {seconds:.1f} s"
        head = f"Cache({self.path!r}: {counted(len(self.episodes), 'episode')}{long}, {self.bytes / 2**20:.1f} MiB)"
        return f"{head}\n{self.streams!r}" if self._names else head


def _open_cache(path: str, map: bool) -> Cache:
    return Cache(path, map=map)


# ---- Checking


class CacheProblem(NamedTuple):
    """Something wrong: in which file of the cache, what, and what was or can be done about it."""

    file: str
    sentence: str
    repair: str


class CacheMove(NamedTuple):
    """A file that a repair has taken out of the cache, or would take out: where it was, and why."""

    file: str
    reason: str


class CacheReport(NamedTuple):
    """What verify_cache found. ok: nothing is wrong, or all of it was repaired."""

    problems: list[CacheProblem]
    moved: list[CacheMove]  # to the quarantine, under the same names; without a repair: what one would move
    dropped: list[str]  # episodes that the cache loses, since they have a part in a damaged shard
    quarantine: str | None  # the folder within the cache that `moved` went to, with a report.txt; None: nothing moved
    repaired: bool
    shards: int  # this and what follows: what is good
    tensors: int
    bytes: int
    episodes: int
    streams: int

    @property
    def ok(self) -> bool:
        return not self.problems or self.repaired

    def __repr__(self) -> str:
        counts = {"episode": self.episodes, "shard": self.shards, "tensor": self.tensors}
        good = ", ".join(counted(number, noun) for noun, number in counts.items()) + f", {self.bytes / 2**20:.1f} MiB"
        if not self.problems:
            return f"CacheReport(all is well: {good})"
        done = "done" if self.repaired else "a repair would do"
        lines = [f"  {p.file}: {p.sentence} ({done}: {p.repair})" for p in self.problems]
        lines += [f"  what was taken out is in {self.quarantine}"] if self.quarantine else []
        return "\n".join([f"CacheReport({counted(len(self.problems), 'problem')}; good: {good})", *lines])


def verify_cache(path: Path, *, repair: bool = False, dry_run: bool = False) -> CacheReport:
    """Reads all of a cache: checksums, counts, offsets, the order of times, missing files and leftovers.

    repair    puts right what is wrong as far as it can be, and deletes nothing. Damaged shards, shards that no whole
              episode needs and what a crash left are moved to quarantine/<time>/ inside the cache, where report.txt
              says what, why, and how to undo it. Episodes that have a part in a damaged shard are dropped, all others
              kept, and the next build reads their sources again. A lost or damaged manifest is made anew from the
              shards, and the old one is kept. A second repair finds nothing to do.
    dry_run   only says what a repair would do.

    Only a wrong checksum, size or format is damage. A file that the system cannot read (no permission, a disk that
    fails, too many open files) is a FileError, and nothing was changed.
    """
    if os.path.isfile(path):
        raise _core.FileError(
            f"{os.fspath(path)}: a file, not a cache, which is a directory; robocache info looks at it"
        )
    problems, moved, dropped, quarantine, *counts = _core.verify_cache(os.fsencode(path), repair, dry_run)
    repaired, shards, tensors, size, episodes, streams = counts
    return CacheReport(
        [CacheProblem(*problem) for problem in problems],
        [CacheMove(*move) for move in moved],
        dropped,
        quarantine or None,
        bool(repaired),
        shards,
        tensors,
        size,
        episodes,
        streams,
    )


# ---- Small things


def numpy_dtype(name: str) -> np.dtype[Any]:
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError:
        return np.dtype("V2")
    return np.dtype(ml_dtypes.bfloat16)


def dtype_name(dtype: np.dtype[Any]) -> str:
    return "bfloat16" if dtype == np.dtype("V2") else str(dtype)


def typed(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """bfloat16 comes as its bits."""
    if dtype == np.dtype("V2"):
        raise ModuleNotFoundError(
            "bfloat16 values in NumPy need ml_dtypes, which is not installed: pip install ml_dtypes"
        )
    return values if values.dtype == dtype else values.view(dtype)


def method_of(ranges: Sequence[tuple[str, int, int]], shape: Sequence[int]) -> Method | None:
    if not ranges:
        return None
    if len(ranges) == 1 and (ranges[0][1], ranges[0][2]) == (0, int(np.prod(shape, dtype=np.int64))):
        return ranges[0][0]
    return list(ranges)


def method_text(info: StreamInfo) -> str:
    if info.ragged:
        return "hold"
    if info.method is None:
        return "linear" if dtype_name(info.dtype)[0] in "bf" and info.dtype.kind != "b" else "hold"
    if isinstance(info.method, str):
        return info.method
    assert not isinstance(info.method, Mapping)
    return ", ".join(f"{name} {begin}..{end}" for name, begin, end in info.method)


def widen(values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """A part of a stream that was widened later: NaN in the channels that it lacks."""
    if len(shape) != 1 or values.ndim != 2 or values.shape[1] == shape[0]:
        return values
    wide = np.full((len(values), shape[0]), np.nan, values.dtype)
    wide[:, : values.shape[1]] = values
    return wide


def row_bytes(info: StreamInfo) -> int:
    """Bytes of one aligned row; indexed streams store an int64 index."""
    return 8 if is_numbered(info) else int(np.prod(info.shape, dtype=np.int64)) * info.dtype.itemsize


def cut(episode: int, stream: RecordedStream) -> Iterator[Batch]:
    info = stream.info
    times, arrivals = np.asarray(stream.times), np.asarray(stream.arrivals)
    ragged = stream.samples if isinstance(stream.samples, Packed) else None
    row = int(np.prod(info.shape, dtype=np.int64)) * info.dtype.itemsize
    bounds = [0]
    if ragged is None:
        step = max(BATCH_BYTES // max(row, 1), 1)
        bounds = list(range(0, len(times), step)) or [0]
    else:
        size = 0
        for k in range(len(times)):
            size += int(ragged.ends[k] - ragged.begins[k]) * row
            if size >= BATCH_BYTES:
                bounds.append(k + 1)
                size = 0
    for begin, end in zip(bounds, [*bounds[1:], len(times)], strict=True):
        part = slice(begin, end)
        lengths = None
        values = np.asarray(getattr(stream.samples, "references", stream.values))[part]
        if ragged is not None:
            lengths = (ragged.ends - ragged.begins)[part]
            values = ragged.rows[ragged.begins[begin] : ragged.ends[end - 1]] if end > begin else ragged.rows[:0]
        yield Batch(episode, info.name, values, times[part], arrivals[part], lengths, info)


def empty_stream(info: StreamInfo) -> Stream[Any]:
    """What a stream's samples are, without any."""
    none = np.zeros(0, np.int64)
    values = typed(np.zeros((0, *info.shape), info.dtype), info.dtype)
    return Stream(values, none, arrivals=none, channels=info.channels or None)


def align_some(
    streams: Mapping[str, Stream[Any]], at: Any, call: Mapping[str, Any], backend: str | None
) -> dict[str, Aligned[Any]]:
    """rc.align, of any number of streams."""
    keys = list(streams)
    aligned: dict[str, Aligned[Any]] = {}
    for begin in range(0, len(keys), MOST_STREAMS):
        some = {key: streams[key] for key in keys[begin : begin + MOST_STREAMS]}
        aligned |= align(some, at, **call, backend=backend)
    return aligned


def with_rows(whole: Aligned[Any] | None, some: Aligned[Any], rows: list[int]) -> Aligned[Any]:
    """`whole`, with these rows taken from `some`; None: all of them are."""
    if whole is None:
        return some
    for into, array in zip(whole, some, strict=True):
        into[rows] = array[rows]
    return whole


def keep(array: NDArray[Any]) -> NDArray[Any]:
    return array


def mover(device: Any) -> Callable[[NDArray[Any]], Any]:
    if device is None:
        return keep
    torch = import_torch(f"Cache.align: device={device!r}")

    def move(array: NDArray[Any]) -> Any:
        bits = array.view(np.uint16) if array.dtype.name == "bfloat16" else array
        if not bits.flags.writeable:
            bits = bits.copy()  # mapped from a file: torch has no tensors that may not be written
        tensor = torch.from_numpy(np.ascontiguousarray(bits))
        if array.dtype.name == "bfloat16":
            tensor = tensor.view(torch.bfloat16)
        return tensor.to(device)

    return move


def table(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.rjust(w) if k in right else cell.ljust(w) for k, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)
