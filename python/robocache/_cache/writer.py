"""CacheWriter: adds streams and recordings to a cache. The engine (robocache._core) does the writing."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import uuid
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache import _core
from robocache._align.extent import check_dtype, nanoseconds, on_host
from robocache._align.stream import Duration, Stream
from robocache._cache.cache import Cache
from robocache._cache.tier import DenseSamples, TierSamples
from robocache._cache.values import Path, Stamps
from robocache._recordings.recording import Recording
from robocache._recordings.source import Batch, ReadAgain
from robocache._recordings.stamps import FileStamp, check_unchanged
from robocache._recordings.streams import Packed
from robocache._recordings.words import counted

GROUP_BYTES = 256 << 20


class CacheWriter:
    """Adds episodes to a cache: your own arrays, recordings, other caches. Creates the cache if it is not there.

    One writer at a time; readers may read meanwhile. Threads may share a writer; they wait for each other. A process
    that was forked while a writer was open cannot use it, and does it no harm.

    Memory stays under 64 MiB whatever is added. A full disk or a file that cannot be written raises FileError with the
    file's name; everything that was committed before is kept, and `commit` may be tried again. If the disk may have
    lost uncommitted episodes, `commit` reports it and drops them: add them again.

    Args:
        path: The directory.
        group_bytes: Whole episodes are committed when this many bytes are waiting, by `commit`, and at the end of the
            `with` block, also if an exception ends it. What is committed survives a crash, a full disk and a kill -9.

    Examples:
        >>> with rc.CacheWriter("cache") as w:
        ...     w.add({"joints": rc.Stream(q, t), "gripper": rc.Stream(g, tg, method="hold")}, name="e7", task="pick")
        ...     w.add(rc.open("run.mcap"))
    """

    def __init__(self, path: Path, *, group_bytes: int = GROUP_BYTES) -> None:
        self.path = os.fspath(path)
        self._writer = _core.CacheWriter(os.fsencode(path), group_bytes)
        if folder := self._writer.quarantine():
            warnings.warn(
                f"{self.path}: shards that no commit names were moved to {folder}: a commit was interrupted, or the "
                "journal was damaged; report.txt there says how to take their episodes in",
                stacklevel=2,
            )
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
        """Adds one episode of your own, or all episodes of a recording.

        A recording whose files are unchanged and that was added with the same options is not read again. If it was
        added in part, because a build was interrupted, only the other episodes are added. If it has changed, it
        replaces what was read before.

        If adding fails, the episode is left out, with the streams, channels and methods that it would have added;
        earlier episodes stay. A stream has one method for each channel, the one that was given first. An episode that
        gives none changes nothing. One that gives another method is a ValueError, unless everything that has the stream
        is an older version of the same recording.

        Args:
            episode: {name: rc.Stream} with values [N, ...] (NumPy, or torch on the CPU) or, if samples vary in length,
                a list of arrays; times, arrivals, method, channels and latency as in `Stream`, whose other options are
                for the call that aligns. Or a recording, as `rc.open` returns it: anything with `path`, `files`,
                `episodes` and `batches()`, whose batches come episode by episode. Or a cache.
            name: Default: "episode-N"; the episodes of a recording have names of their own.
            task: What was to be done. For a recording: the task of episodes that name none.
            replace: Replace the episode of this name, if there is one. Otherwise a name that is taken is a ValueError.
            streams: Of a recording: only these streams.
            options: Of a recording: how it was read, in any words (such as the hash of a recipe). See `knows`.
            latency: Of a recording: by stream, how much later than the event a stamp is, clock offset included. It is
                stored with the episode, and subtracted when it is aligned.
            progress: Of a recording: called with each batch that was written.

        Returns:
            The number of episodes that were added.

        Raises:
            ValueError: The name is taken, a stream's method differs from the stored one, or a Stream cannot be stored.
            FileError: The recording cannot be read, or the cache cannot be written.
        """
        if not isinstance(episode, Mapping) and not hasattr(episode, "batches"):
            kind = type(episode).__name__
            raise TypeError(f"CacheWriter.add: expected a dict of rc.Stream or a recording, not {kind}")
        if isinstance(episode, Mapping):
            given = {"streams": streams, "options": options or None, "latency": latency, "progress": progress}
            for argument, value in given.items():
                if value is not None:
                    raise ValueError(f"CacheWriter.add: {argument} is for recordings, not for a dict of rc.Stream")
        for argument, text in (("name", name), ("task", task)):
            if text is not None:
                check_text("CacheWriter.add: ", argument, text)
        with self._alone():
            if self._adds:
                raise ValueError("CacheWriter.add: called while it adds another episode; wait until that has returned")
            self._adds = True
            try:
                if isinstance(episode, Mapping):
                    return self._add_streams(episode, name, task, replace)
                # Presume that its clock runs with log time, which needs no look ahead; if it does not, read it again.
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
        """For one thread at a time. A forked process does not wait: the engine refuses each of its calls."""
        return contextlib.nullcontext() if self._writer.is_forked() else self._lock

    def knows(self, recording: Recording | Path | Any, options: str = "") -> bool:
        """Whether all of this recording is in the cache, or waits to be committed, as read with these options.

        A recording is unchanged if the path, size and modification time of its files are; otherwise their hash decides.
        A recording with parts that could not be read (`recording.lacking`) counts as known until they can be.

        Args:
            recording: A recording or its path.
            options: As passed to `add`.

        Returns:
            True if it need not be read again.
        """
        path, files = self._source_of(recording)
        hows = dict.fromkeys([read_how(recording, options), read_how(recording, options, whole=True)])
        with self._alone():
            return any(self._writer.knows(path, files, how) for how in hows)

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name != "knows_better"]  # for `robocache build`

    def knows_better(self, recording: Any, options: str, was: str) -> bool:
        """Whether a recording that lacks definitions now was read with them, and these options, before (`was`)."""
        lacks, how = getattr(recording, "lacking", ()), read_how(recording, options, whole=True)
        with self._alone():
            return (
                bool(lacks) and was.startswith(f"{how} with=") and self._writer.knows(*self._source_of(recording), was)
            )

    def name_of(self, recording: Recording | Any) -> str:
        """The name by which the cache knows a recording, as in `Cache.sources`.

        Args:
            recording: A recording or its path.

        Returns:
            The name: its real path, or the hash of bytes in memory.
        """
        return os.fsdecode(self._source_of(recording)[0])

    def _source_of(self, recording: Any) -> tuple[bytes, list[bytes]]:
        """As source_of. A source that an earlier version knew by its absolute path keeps that name."""
        path, files = source_of(recording)
        spelled = os.fsencode(os.path.abspath(os.fspath(getattr(recording, "path", recording))))
        if files and spelled != path:
            if self._names is None:
                self._names = {os.fsencode(source.path) for source in Cache(self.path).sources}
            if path not in self._names and spelled in self._names:
                return spelled, files
        return path, files

    def commit(self) -> None:
        """Writes the whole episodes that wait for it to the disk, so that nothing can lose them.

        The cost does not grow with the number of episodes in the cache.
        """
        with self._alone():
            self._writer.commit()

    def close(self) -> None:
        """Commits and releases the cache for the next writer, also if the commit fails."""
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
        check_text("CacheWriter.add: ", "the name of a stream", name)
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
        if isinstance(samples, TierSamples):  # from a cache: the recorded samples are added if it has them
            metadata = {key: said for key, said in metadata.items() if samples.source is None or key != "frames"}
            samples = samples.source if samples.source is not None else DenseSamples(samples.rows)
        if isinstance(samples, DenseSamples):
            values = samples.values[sample_numbers(where, values, len(samples))]
        elif samples is not None:  # values are their numbers
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
        for channel in channels:
            check_text(where, "the name of a channel", channel)
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
        check_unchanged(stamps)  # the files that are read must be those that the engine records
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
            if there and hasattr(recording, "leave_out"):
                recording.leave_out(there)
            is_empty = streams is None
            for batch in recording.batches(streams):
                is_empty = is_empty and not len(batch.times)
                if batch.episode < current:
                    raise ValueError(f"CacheWriter.add: a batch of episode {batch.episode} comes after {current}")
                if batch.episode > current:
                    advance(batch.episode)
                if batch.episode not in there:
                    self._append_batch(batch, latency)
                if progress is not None:
                    progress(batch)
            notes = getattr(recording, "notes", [])
            if is_empty and notes and not getattr(recording, "lacking", ()):  # damaged, not just without definitions
                raise _core.FileError(f"{recording.path}: no sample could be read: {'; '.join(notes[:3])}")
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
    """The options a recording is read with: its own, the given ones, and, unless `whole` is set, what it lacks."""
    time, given = getattr(recording, "time", "auto"), getattr(recording, "given", "")
    how = options if time == "auto" else f"{options} time={time}"
    how = f"{how} with={given}" if given else how
    lacking = () if whole else getattr(recording, "lacking", ())
    return f"{how} without={','.join(lacking)}" if lacking else how


def source_of(recording: Any) -> tuple[bytes, list[bytes]]:
    """The name of a source and its files, as the engine knows them.

    Paths are resolved, so that a symbolic link or another spelling is the same source. Bytes in memory are named by
    their hash. A file object is never recognised again, and replaces no other source.
    """
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
    """Device, inode, size and mtime of each file when the recording opened it. Empty if one file is not known."""
    opened = {os.path.realpath(s.path): (s.device, s.inode, s.size, s.mtime) for s in stamps}
    found = [opened.get(os.path.realpath(os.fsdecode(file))) for file in files]
    return [stamp for stamp in found if stamp is not None] if None not in found else []


def check_text(where: str, what: str, text: Any) -> None:
    if not isinstance(text, str):
        raise TypeError(f"{where}{what} is {text!r}; expected a str")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{where}{what} is {text!a}, which UTF-8 cannot encode") from None


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
    """The sample numbers in a stream's values. `replace` may have removed some."""
    numbers = on_host(values)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or numbers.min(initial=0) < 0:
        raise ValueError(f"{where}values must be numbers of its samples, 0 to {count - 1}")
    if numbers.max(initial=-1) >= count:
        raise ValueError(f"{where}values name sample {numbers.max()}; there are {count}")
    return numbers.astype(np.int64)


def pack(
    where: str, samples: Sequence[Any], dtype: Any = None, shape: tuple[int, ...] | None = None
) -> tuple[NDArray[Any], Stamps]:
    """Samples of varying length as one array, and the length of each."""
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
