"""Recordings: what a robot logged, as episodes of streams, whatever the format. `open` finds out which one it is.

A `Source` is a format's reader (`_mcap_source.py`, `_lerobot.py`, `_hdf5.py`, `_rosbag2.py`): it hands out batches of
bounded size, as recorded. What users hold is the same for all: a `Recording` of `Episode`s whose `Streams` are decoded
when they are touched, sorted by time, and go straight into rc.align.
"""

from __future__ import annotations

import functools
import operator
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from robocache._align import Duration, Method, Stream, stored_duration
from robocache._bytes import ForkLock
from robocache._core import FileError
from robocache._stamps import FileStamp

Array = NDArray[Any]
TIMES = ("auto", "stamp", "log", "publish")
BATCH_BYTES = 2 << 20  # what a source aims at for one batch


class StreamInfo(NamedTuple):
    """What is known of a stream beside its samples."""

    name: str  # "/odom"; of a message type that holds many: "/tf/base_link"
    type: str  # "nav_msgs/msg/Odometry"
    dtype: np.dtype[Any]
    shape: tuple[int, ...]  # of a sample; of a row where samples are ragged
    channels: tuple[str, ...]  # a name for each channel of the flattened shape, or none
    method: Method | None  # a hint for align
    ragged: bool  # a sample has any number of rows: points, the bytes of an image
    metadata: dict[str, str]  # "encoding": "rgb8"; "varies" where messages disagree


class Batch(NamedTuple):
    """A piece of one stream, of bounded size, as recorded. Batches of one stream follow each other."""

    episode: int
    stream: str
    values: Array  # [N, ...]; ragged: [rows of all samples, ...]
    times: NDArray[np.int64]  # [N] nanoseconds; they may go backward
    arrivals: NDArray[np.int64]  # [N] nanoseconds
    lengths: NDArray[np.int64] | None  # [N] where samples are ragged: rows of each
    info: StreamInfo  # channels may be added from one batch to the next, never taken away


class Content(NamedTuple):
    """A stream of an episode, as known before anything is decoded."""

    name: str
    type: str
    samples: int | None  # None: only decoding can tell


class Part(NamedTuple):
    """An episode, as a source knows it."""

    name: str
    task: str | None
    start: int | None  # nanoseconds, by log time where the format has one; None: only decoding can tell
    end: int | None


class ReadAgain(Exception):
    """What was read is not as presumed: drop it, and read the recording itself."""


def glanced(start: int | None, end: int | None) -> list[tuple[int, int]] | None:
    """The beginning, the middle and the end of a file, by log time: [start, end) each. As the engine's own glance."""
    if start is None or end is None:
        return None
    length = min(max((end - start) // 128, 20_000_000), 1_000_000_000)
    middle = start + (end - start) // 2
    return [(start, start + length), (middle, middle + length), (max(end - length, 0), end + 1)]


class Source(ABC):
    """A format's reader. Nothing is decoded before `batches` is asked for its next one.

    A pickled source is opened again from the arguments it was made with: engines and file handles do not travel.
    """

    format: str  # "MCAP", "LeRobot v3.0"
    path: str  # for sentences
    time: str  # as it was asked for
    files: tuple[Path, ...] = ()  # what it reads: by them a cache tells whether it must be read again
    stamps: tuple[FileStamp, ...] = ()  # of those files that are open, as they were before
    notes: list[str]  # what a person should know: a rate that was assumed, topics that were left out
    given: str = ""  # what was read with the help of others' files, which may change: a digest of them
    lacking: tuple[str, ...] = ()  # left out as this machine cannot read it yet: types that nobody defines
    _made_with: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *given: Any, **named: Any) -> Self:
        made = super().__new__(cls)
        made._made_with = (given, named)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        given, named = self._made_with
        if any(hasattr(argument, "read") for argument in (*given, *named.values())):
            raise TypeError(
                f"{self.path}: a recording of an open file cannot be pickled; open it by its path or from its bytes"
            )
        given = tuple(bytes(each) if isinstance(each, memoryview) else each for each in given)
        return _reopen, (type(self), given, named)

    @abstractmethod
    def parts(self) -> Sequence[Part]:
        """The episodes."""

    @abstractmethod
    def contents(self, episode: int) -> Mapping[str, Content]:
        """The streams of an episode, in the order of the file."""

    @abstractmethod
    def batches(
        self,
        streams: Collection[str] | None = None,
        episode: int | None = None,
        start: int | None = None,
        end: int | None = None,
    ) -> Iterator[Batch]:
        """One pass over the source, or over an episode; of these streams, with arrivals in [start, end)."""

    def stamped(self) -> tuple[FileStamp, ...]:
        """The files as they were before they were opened; those that a pass opens itself, as they are now."""
        return self.stamps

    def content(self) -> str:
        """The hash of a recording that is bytes in memory, else nothing."""
        return ""

    def samples(self, info: StreamInfo, values: Array) -> Sequence[Any] | None:
        """What the values refer to, where they are references: a video's frames, decoded one by one."""
        return None

    def listed(self, episode: int) -> Mapping[str, Content]:
        """What is there as the file lists it, where finding the streams means to decode some messages: topics."""
        return self.contents(episode)

    def quick(self) -> Mapping[str, tuple[str, NDArray[np.int64]]] | None:
        """Type and arrivals of every topic, where an index has them and no message need be read."""
        return None

    def promised(self) -> Mapping[str, StreamInfo]:
        """What is known of streams before a sample is read, beside `quick`: what a schema alone tells."""
        return {}

    def survey(self, to: Any, at_a_glance: bool) -> None:
        """Adds the stamps of all messages, or of a few, to a _core.ClockSurvey. For formats that have log times."""
        raise NotImplementedError

    def stretches(self) -> list[tuple[int, int]] | None:
        """Log times [start, end) that a glance looks at, beside the first message of each topic; None: not known."""
        return None

    def presumed(self) -> Source | None:
        """The same, read as if its clock ran with log time: it raises ReadAgain where that turns out to be untrue.

        For a pass over all of it, which then needs no glance first. None: it is known, or cannot be presumed.
        """
        return None

    def extents(self) -> Sequence[Part]:
        """The episodes as far as they are known without reading anything for it: for progress."""
        return self.parts()

    def latched(self) -> frozenset[str]:
        """Topics whose publishers are transient-local: who comes later gets the last message again."""
        return frozenset()

    def constants(self) -> frozenset[str]:
        """Topics that are static: their streams hold from the start on, and bound nothing."""
        return frozenset()

    def describe_clock(self) -> dict[str, Any] | None:
        """Which clock the times are on, as _core.RecordingClock describes it; None where the format has one only."""
        return None


class SourceOver(Source):
    """A source that stands on another one, and answers as that does wherever it has nothing to add."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.format, self.path, self.time = source.format, source.path, source.time
        self.files, self.notes, self.given, self.lacking = source.files, source.notes, source.given, source.lacking

    def parts(self) -> Sequence[Part]:
        return self.source.parts()

    def contents(self, episode: int) -> Mapping[str, Content]:
        return self.source.contents(episode)

    def stamped(self) -> tuple[FileStamp, ...]:
        return self.source.stamped()

    def content(self) -> str:
        return self.source.content()

    def samples(self, info: StreamInfo, values: Array) -> Sequence[Any] | None:
        return self.source.samples(info, values)

    def constants(self) -> frozenset[str]:
        return self.source.constants()

    def describe_clock(self) -> dict[str, Any] | None:
        return self.source.describe_clock()


def _reopen(kind: type[Source], given: tuple[Any, ...], named: dict[str, Any]) -> Source:
    return kind(*given, **named)


# ---- Streams in memory


class RecordedStream(Stream[Array]):
    """A stream out of a recording: an rc.Stream, with what the file says about it.

    values, times, arrivals, channels, method: rc.Stream's own words; sorted by time, equal times as recorded.
    info      type, dtype, shape, metadata; `type`, `dtype`, `shape` (of a sample), `ragged` and `metadata` are also
              attributes of the stream.
    backward  how many stamps were earlier than the one before, as recorded.
    samples   where a sample is no row of an array (an image, a cloud, a frame of a video): samples[i] is sample i, and
              `values` are their numbers, held by align; so that stream.samples[aligned.values[k]] is what was seen
              at target k. samples[2:5] and samples[[1, 7]] are lists of them. Colour images are uint8 [H, W, 3], RGB,
              whatever the encoding (raw, JPEG, PNG, video); depth images are [H, W] in their own dtype.
              samples.as_stored(i) has an image's bytes as they were recorded.

    `replace`, copies and pickles keep info, backward and samples.
    """

    __slots__ = ("backward", "info", "samples")

    info: StreamInfo
    backward: int
    samples: Sequence[Any] | None

    def replace(self, **changes: Any) -> RecordedStream:
        info = self.info
        if "values" in changes and self.samples is None and isinstance(changes["values"], np.ndarray):
            info = info._replace(dtype=changes["values"].dtype, shape=changes["values"].shape[1:])
        return _restore_recorded({**self._arguments(), **changes}, info, self.backward, self.samples)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_recorded, (self._arguments(), self.info, self.backward, self.samples)

    def __repr__(self) -> str:
        what = f"{self.info.dtype} {[len(self), *self.info.shape]}"
        if self.info.ragged:
            what = f"{len(self)} samples of {self.info.dtype} {['*', *self.info.shape]}".replace("'", "")
        parts = [f"{self.name!r}", self.info.type, what, describe_rate(np.asarray(self.times))]
        return f"RecordedStream({', '.join(part for part in parts if part)})"

    def __len__(self) -> int:
        return len(self.times)

    @property
    def type(self) -> str:
        return self.info.type

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.info.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.info.shape

    @property
    def ragged(self) -> bool:
        return self.info.ragged

    @property
    def metadata(self) -> dict[str, str]:
        return self.info.metadata


def _restore_recorded(
    arguments: dict[str, Any], info: StreamInfo, backward: int, samples: Sequence[Any] | None
) -> RecordedStream:
    stream = RecordedStream(**arguments)
    stream.info, stream.backward, stream.samples = info, backward, samples
    return stream


class Samples(Sequence[Array]):
    """Samples by number: samples[i]; samples[2:5], samples[[1, 7]] and samples[mask] are lists of them."""

    @overload
    def __getitem__(self, index: int) -> Array: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | Array) -> list[Array]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._take(range(*index.indices(len(self))))
        places = np.asarray(index)
        if places.ndim == 1 and places.dtype == bool:
            if len(places) != len(self):
                raise IndexError(f"a mask of {len(places)} for {len(self)} samples")
            places = np.flatnonzero(places)
        if places.dtype.kind not in "iu" and places.size:
            raise TypeError(f"samples[{index!r:.40}]: expected an integer, a slice, a list of integers or a mask")
        every = range(len(self))
        if places.ndim == 0:
            return self._take([every[operator.index(index)]])[0]
        if places.ndim != 1:
            raise IndexError(f"samples: indices have {places.ndim} dimensions; expected one")
        return self._take([every[int(k)] for k in places])

    @abstractmethod
    def _take(self, wanted: Sequence[int]) -> list[Array]:
        """Those samples; all numbers are within bounds."""


class Packed(Samples):
    """Samples of varying length, end to end in `rows`: packed[i] is sample i, a view of them."""

    def __init__(self, rows: Array, lengths: NDArray[np.int64], order: NDArray[np.intp] | None = None) -> None:
        ends = np.cumsum(lengths, dtype=np.int64)
        self.rows = rows
        self.begins, self.ends = ends - lengths, ends
        if order is not None:
            self.begins, self.ends = self.begins[order], self.ends[order]

    def __len__(self) -> int:
        return len(self.begins)

    def _take(self, wanted: Sequence[int]) -> list[Array]:
        return [self.as_stored(k) for k in wanted]

    def as_stored(self, index: int) -> Array:
        """Sample i's rows: of an image its bytes."""
        k = range(len(self))[index]
        return self.rows[self.begins[k] : self.ends[k]]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} samples, {self.rows.dtype} {list(self.rows.shape)} in all)"


def packed(info: StreamInfo, rows: Array, lengths: NDArray[np.int64], order: NDArray[np.intp] | None = None) -> Packed:
    """Samples of varying length; images are decoded when they are asked for."""
    if rows.ndim == 1 and rows.dtype == np.uint8:
        from robocache._pictures import Images, is_image

        if is_image(info.metadata):
            return Images(info.name, info.metadata, rows, lengths, order)
    return Packed(rows, lengths, order)


def widened(batch: Batch, info: StreamInfo) -> Array:
    """The batch's values with the channels of `info`: NaN in those that came later."""
    values = batch.values
    if batch.info.ragged or batch.info.channels == info.channels or values.ndim != 2:
        return values.astype(info.dtype, copy=False)
    place = {name: k for k, name in enumerate(info.channels)}
    wide = np.full((len(values), len(info.channels)), np.nan if info.dtype.kind == "f" else 0, info.dtype)
    wide[:, [place[name] for name in batch.info.channels]] = values
    return wide


def assemble(batches: Iterable[Batch], source: Source) -> dict[str, RecordedStream]:
    """Batches of one episode, as streams in memory."""
    pieces: dict[str, list[Batch]] = {}
    for batch in batches:
        pieces.setdefault(batch.stream, []).append(batch)
    return {name: join(found, source) for name, found in pieces.items()}


def join(batches: Sequence[Batch], source: Source) -> RecordedStream:
    info = batches[-1].info
    times = np.concatenate([batch.times for batch in batches])
    arrivals = np.concatenate([batch.arrivals for batch in batches])
    values = np.concatenate([widened(batch, info) for batch in batches])
    samples: Sequence[Any] | None = None
    backward = int((np.diff(times) < 0).sum())
    order = np.argsort(times, kind="stable") if backward else None
    if order is not None:
        times, arrivals = times[order], arrivals[order]
    if info.ragged:
        lengths = np.concatenate([np.zeros(0, np.int64) if b.lengths is None else b.lengths for b in batches])
        samples = packed(info, values, lengths, order)
        values = np.arange(len(times), dtype=np.int64)
    else:
        values = values if order is None else values[order]
        samples = source.samples(info, values)
        values = values if samples is None else np.arange(len(times), dtype=np.int64)
    named = None
    if samples is None and info.channels and len(info.channels) == int(np.prod(info.shape, dtype=np.int64)):
        named = info.channels
    stream = RecordedStream(
        values,
        times,
        arrivals=arrivals,
        method=method_of(info, len(times)),
        channels=named,
        max_gap=max_gap_of(info),
        name=info.name,
    )
    stream.info = info
    stream.backward = backward
    stream.samples = samples
    return stream


def method_of(info: StreamInfo, samples: int) -> Method | None:
    """How the stream is aligned: pictures, clouds and constants are held."""
    return "hold" if info.ragged or (is_static(info) and samples > 1) else info.method


def max_gap_of(info: StreamInfo) -> Duration | None:
    """Where a recipe says it."""
    told = info.metadata.get("max_gap_ns", "")
    return stored_duration(int(told)) if told.isdecimal() else None


def is_static(info: StreamInfo) -> bool:
    """A constant, as tf_static is: it holds from the start on, and bounds neither an episode nor a timeline."""
    return info.metadata.get("static") == "true"


MANY = ("tf2_msgs/msg/TFMessage", "tf/msg/tfMessage")  # each child is a stream with stamps of its own


def topic_of(name: str, topics: Collection[str]) -> str | None:
    """Which of these topics a stream is of: "/tf/base_link" is of "/tf". None: of none."""
    while name not in topics:
        name, slash, _ = name.rpartition("/")
        if not slash:
            return None
    return name


def describe_rate(times: Array) -> str:
    if len(times) < 2:
        return ""
    period = float(np.median(np.diff(times)))
    return f"{figures(1e9 / period, 4)} Hz" if period > 0 else ""


def clipped(batches: Iterable[Batch], start: int | None, end: int | None) -> Iterator[Batch]:
    """The parts of batches with arrivals in [start, end)."""
    if start is None and end is None:
        yield from batches
        return
    for batch in batches:
        keep = np.ones(len(batch.times), bool)
        if start is not None:
            keep &= batch.arrivals >= start
        if end is not None:
            keep &= batch.arrivals < end
        if keep.all():
            yield batch
        elif keep.any():
            rows = keep if batch.lengths is None else np.repeat(keep, batch.lengths)
            lengths = None if batch.lengths is None else batch.lengths[keep]
            yield batch._replace(
                values=batch.values[rows], times=batch.times[keep], arrivals=batch.arrivals[keep], lengths=lengths
            )


# ---- What users hold

Item = TypeVar("Item")


class Streams(Mapping[str, RecordedStream]):
    """The streams of an episode by name, each decoded when it is touched and then kept; all at once by items()."""

    def __init__(self, source: Source, episode: int, start: int | None = None, end: int | None = None) -> None:
        self._source = source
        self._episode = episode
        self._range = (start, end)
        self._decoded: dict[str, RecordedStream] = {}

    @property
    def contents(self) -> Mapping[str, Content]:
        """Names, types and, where the file says them, numbers of samples; nothing is decoded for it."""
        return self._source.contents(self._episode)

    def select(self, *names: str) -> dict[str, RecordedStream]:
        """Several streams, in one pass over the recording."""
        contents = self.contents
        for name in names:
            if name not in contents:
                raise NoStream(missing(f"{self._source.path}: there is no stream", name, contents))
        wanted = [name for name in names if name not in self._decoded]
        if wanted:
            start, end = self._range
            found = assemble(self._source.batches(wanted, self._episode, start, end), self._source)
            for name in wanted:  # where two threads decoded it, both get the first one's
                self._decoded.setdefault(name, found[name] if name in found else empty(contents[name]))
        return {name: self._decoded[name] for name in names}

    def __getitem__(self, name: str) -> RecordedStream:
        return self.select(name)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.contents)

    def __len__(self) -> int:
        return len(self.contents)

    def __contains__(self, name: object) -> bool:
        return name in self.contents

    def items(self) -> Any:
        return self.select(*self.contents).items()

    def values(self) -> Any:
        return self.select(*self.contents).values()

    def __repr__(self) -> str:
        return f"Streams({', '.join(map(repr, self))})"


def empty(content: Content) -> RecordedStream:
    """A stream of which there is no sample."""
    none = np.zeros(0, np.int64)
    stream = RecordedStream(np.zeros((0, 0)), none, arrivals=none, name=content.name)
    stream.info = StreamInfo(content.name, content.type, np.dtype(np.float64), (0,), (), None, False, {})
    stream.backward, stream.samples = 0, None
    return stream


class Episode:
    """Streams that were recorded together, on one clock."""

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
        """Nanoseconds: when the first sample was logged (or taken, where the format has no log time)."""
        return self._extent()[0]

    @property
    def end(self) -> int:
        """Nanoseconds: when the last sample was logged."""
        return self._extent()[1]

    @property
    def duration(self) -> float:
        """Seconds."""
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

    def __repr__(self) -> str:
        known = self._part.start is not None and self._part.end is not None
        parts = [f"{self.index}: {self.name!r}", counted(len(self.streams._source.listed(self.index)), "stream")]
        parts += [f"{self.duration:.2f} s"] if known else []
        parts += [f"task {self.task!r}"] if self.task else []
        return f"Episode({', '.join(parts)})"


class Episodes(Sequence[Episode]):
    """Made when they are asked for: a data set may have a hundred thousand."""

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


class Recording:
    """A log that was opened: `episodes`, and `streams` where there is one episode. Nothing is decoded yet.

    path, format     "run.mcap", "MCAP"
    time             as it was asked for: "auto", "stamp", "log" or "publish"
    files            what is read
    lacking          what is left out until this machine can read it: message types that nobody here defines
    notes            what a person should know about it

    Threads may share a recording, its streams, and one pass over its batches. A forked child may go on with it.
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

    @property
    def notes(self) -> list[str]:
        return list(self._source.notes)

    @property
    def streams(self) -> Streams:
        """The streams of a recording that has one episode."""
        if len(self.episodes) != 1:
            raise ValueError(
                f"{self.path}: there are {len(self.episodes)} episodes; take one: recording.episodes[0].streams"
            )
        return self.episodes[0].streams

    def batches(self, streams: Collection[str] | None = None, episode: int | None = None) -> Iterator[Batch]:
        """All samples in pieces of a few MiB, as recorded, episode by episode: one pass, in little memory."""
        if streams is not None:
            numbers = range(len(self.episodes)) if episode is None else [episode]
            known = dict.fromkeys(name for k in numbers for name in self._source.contents(k))
            for name in streams:
                if name not in known:
                    raise NoStream(missing(f"{self.path}: there is no stream", name, known))
        return InTurn(self._source.batches(streams, episode))

    def presumed(self) -> Recording | None:
        """See Source.presumed."""
        source = self._source.presumed()
        return None if source is None else Recording(source)

    @property
    def clock(self) -> dict[str, Any] | None:
        """Which clock its times are on, and what was carried over to it; None where the format has only one clock.

        kind        "log time" (nothing is stamped), "with log time" (wall time; nothing is carried over) or "carried"
        by          what carried log times over: "/clock" or "stamps"
        rate        seconds of the clock in a second of log time, the real-time factor; slowest, fastest
        offset_s    clock - log time at the start
        resets      how often a simulation began anew: each begins an episode
        streams     {name: {"source": "log" | "recording" | "own", ...}}; "own" has offset_s and drift_ppm
        static      topics that are constants
        """
        return self._source.describe_clock()

    def listed(self) -> Mapping[str, Content]:
        """What the file lists, without decoding: topics of an MCAP file, of which most give one stream."""
        return self._source.listed(0) if len(self.episodes) else {}

    def stamped(self) -> tuple[FileStamp, ...]:
        """The files as they were before they were opened, to be compared with what they are after a pass."""
        return self._source.stamped()

    def content(self) -> str:
        """The hash of a recording that is bytes in memory, else nothing."""
        return self._source.content()

    def quick(self) -> Mapping[str, tuple[str, NDArray[np.int64]]] | None:
        """Type and arrivals of every topic, out of the file's index; None where it has none."""
        return self._source.quick()

    def promised(self) -> Mapping[str, StreamInfo]:
        """What is known of streams before a message is read: shapes, where a schema tells them."""
        return self._source.promised()

    def __repr__(self) -> str:
        count = len(self.episodes)
        streams = len(self.listed())
        parts = self.episodes._parts
        known = [part.end - part.start for part in parts if part.end is not None and part.start is not None]
        long = f", {sum(known) * 1e-9:.2f} s" if len(known) == count else ""
        of = f"{counted(count, 'episode')}, {counted(streams, 'stream')}"
        return f"Recording({self.path!r}, {self.format}: {of}{long})"


class InTurn(Iterator[Item]):
    """An iterator that threads may share: each item goes to one of them."""

    def __init__(self, items: Iterator[Item]) -> None:
        self._items = items
        self._lock = ForkLock()

    def __next__(self) -> Item:
        with self._lock:
            return next(self._items)


class NoStream(KeyError):
    """A KeyError whose sentence is for people."""

    def __str__(self) -> str:
        return str(self.args[0])


def missing(sentence: str, name: str, names: Iterable[str]) -> str:
    """`sentence "name"; near: ...`: what is there, by likeness."""
    import difflib  # only for a sentence

    names = list(names)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    near += [other for other in names if name.strip("/") and name.strip("/") in other and other not in near][:3]
    if near:
        return f'{sentence} "{name}"; near names: {", ".join(near)}'
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return f'{sentence} "{name}"; there are: {shown}' if names else f'{sentence} "{name}"; it has none'


def without_samples(recording: Recording, samples: Mapping[str, int]) -> list[str]:
    """Which topics gave fewer samples than they have messages, in words; `samples` are those of all streams."""
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


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def figures(number: float, digits: int = 3, sign: bool = False) -> str:
    """So many digits that count, and never an exponent."""
    return np.format_float_positional(number + 0.0, precision=digits, fractional=False, trim="-", sign=sign)


def need(module: str, extra: str, what: str) -> ModuleNotFoundError:
    """What is raised where an optional package is not installed."""
    install = f"which is not installed: pip install 'robocache[{extra}]'"
    return ModuleNotFoundError(f"{what} needs {module}, {install}", name=module)


# ---- Which format it is

MCAP_MAGIC = b"\x89MCAP"
SQLITE_MAGIC = b"SQLite format 3\0"
HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
OTHERS = {  # what people try; a sentence helps more than "unknown"
    b"#ROSBAG V": "a ROS 1 bag; convert it: rosbags-convert --src FILE --dst DIRECTORY",
    b"PK\x03\x04": "a ZIP archive; unpack it first",
    b"\x1f\x8b": "compressed by gzip; unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed by zstd; unpack it first (zstd -d), or open the rosbag2 directory it belongs to",
    b"PAR1": "a Parquet file; of a LeRobot data set, open its directory",
}


def open(
    path: Any,
    time: str = "auto",
    *,
    rate: float | None = None,
    mapping: Mapping[str, Any] | None = None,
    msg_path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
) -> Recording:
    """A recording, whatever its format; its content says which. Nothing is decoded before a stream is touched.

        recording = rc.open("run.mcap")
        recording.streams["/odom"].values          # [N, D], with .times, .arrivals, .channels, .method
        rc.align(recording.streams.select("/odom", "/joint_states"), timeline)

    path      an MCAP file; a rosbag2 directory or its .db3 file; a LeRobot data set (v3.0, v2.1); an HDF5 file
              (robomimic, ALOHA, or any with `mapping`); a cache. For MCAP also an address that fsspec opens
              ("s3://..."), a file object, or bytes.
    time      where a sample's time comes from: "stamp" (its header's; of JSON also its own stamp or timestamp), "log"
              (when it was written), "publish", or "auto": one clock for the recording, that of most stamped streams.
              What has no stamp gets its log time, carried over to that clock where it is another one, as simulated
              time is; so do all arrivals. `recording.clock` and `robocache info` say which clock it is.
              Numbers that are stamps in JSON have one unit per topic, that of the first: 1e9 to 4e9 is seconds since
              1970, 1e12 to 4e12 ms, 1e15 to 4e15 us, 1e18 to 4e18 ns; else an integer from 1e6 on ns, the rest seconds.
    rate      HDF5 without times: samples per second, instead of the layout's usual one.
    mapping   HDF5: {"joints": "/robot/q"} or {"joints": {"values": "/robot/q", "times": "/robot/t", ...}}.
    msg_path  rosbag2: folders with .msg files, for types that neither the bag nor the rosbags package defines.

    A file that is missing, damaged, or of another format raises FileError with a sentence.
    """
    if time not in TIMES:
        raise ValueError(f'open: time is {time!r}; expected "auto", "stamp", "log" or "publish"')
    if not isinstance(path, (str, os.PathLike)) or "://" in str(path):
        from robocache._mcap_source import McapSource

        return Recording(on_one_clock(McapSource(path, time)))
    place = Path(path)
    if any("\ud800" <= letter <= "\udfff" for letter in str(place)):  # how Python shows bytes that are not UTF-8
        shown = os.fsencode(place).decode("utf-8", "backslashreplace")
        raise FileError(f"{shown}: the name is not UTF-8; rename the file, or open it and pass the file object")
    kind = sniff(place)
    source: Source
    if kind == "MCAP":
        from robocache._mcap_source import McapSource

        source = on_one_clock(McapSource(str(place), time))
    elif kind in ("rosbag2", "SQLite"):
        from robocache._rosbag2 import open_rosbag2

        folders = [msg_path] if isinstance(msg_path, (str, os.PathLike)) else list(msg_path or ())
        source = on_one_clock(open_rosbag2(place, time, [Path(folder) for folder in folders]))
    elif kind == "LeRobot":
        from robocache._lerobot import LeRobotSource

        source = LeRobotSource(place, time)
    elif kind == "cache":
        from robocache._cache_source import CachedSource

        source = CachedSource(place)
    else:
        from robocache._hdf5 import Hdf5Source

        source = Hdf5Source(place, time, rate, mapping)
    return Recording(source)


def on_one_clock(source: Source) -> Source:
    if source.time != "auto":
        return source
    from robocache._clock import ClockedSource

    return ClockedSource(source)


def sniff(place: Path) -> str:
    """ "MCAP", "SQLite", "HDF5", "rosbag2", "LeRobot" or "cache"; FileError where it is none of them."""
    known = "known are MCAP, rosbag2 (directory or .db3), LeRobot data sets (directory) and HDF5"
    if place.is_dir():
        for name, kind in (("metadata.yaml", "rosbag2"), ("meta/info.json", "LeRobot")):
            if (place / name).is_file():
                return kind
        if is_cache(place):
            return "cache"
        try:
            inside = sorted(entry.name for entry in place.iterdir())
        except OSError as error:
            raise FileError(f"{place}: cannot be read: {error.strerror}") from None
        shown = ", ".join(inside[:6]) + (f" and {len(inside) - 6} more" if len(inside) > 6 else "")
        one = next((place / name for name in inside if recorded(place / name)), None)
        take = f"; take one of them, as {one}, or all: robocache build {place} -o CACHE" if one is not None else ""
        raise FileError(
            f"{place}: not a recording: a directory without metadata.yaml (rosbag2) or meta/info.json (LeRobot); "
            + (f"it holds {shown}{take}" if inside else "it is empty")
        )
    if place.exists() and not place.is_file():  # reading from a FIFO would wait for someone to write to it
        raise FileError(f"{place}: neither a file nor a directory; {known}")
    try:
        with place.open("rb") as file:
            head = file.read(4096)
            if head[: len(MCAP_MAGIC)] == MCAP_MAGIC:
                return "MCAP"
            if head[: len(SQLITE_MAGIC)] == SQLITE_MAGIC:
                return "SQLite"
            for offset in (0, 512, 1024, 2048):  # HDF5 allows a block of the user's own before it
                if head[offset : offset + len(HDF5_MAGIC)] == HDF5_MAGIC:
                    return "HDF5"
    except OSError as error:
        raise FileError(f"{place}: {error.strerror or error}") from None
    if not head:
        raise FileError(f"{place}: the file is empty")
    for magic, what in OTHERS.items():
        if head.startswith(magic):
            raise FileError(f"{place}: not a known format: it is {what}")
    found = " ".join(f"{byte:02x}" for byte in head[:8])
    raise FileError(f"{place}: not a known format: it begins with {found} ({printable(head[:8])}); {known}")


SUFFIXES = (".mcap", ".db3", ".h5", ".hdf5")


def recorded(entry: Path) -> bool:
    """Whether a folder's entry looks like a recording; what it really is, opening it tells."""
    if not entry.is_dir():
        return entry.suffix in SUFFIXES
    return (entry / "metadata.yaml").is_file() or (entry / "meta" / "info.json").is_file()


MANIFEST = re.compile(rb'\s*\{\s*"format"\s*:\s*"robocache"')


def is_cache(place: Path) -> bool:
    """Whether the directory has a cache's manifest. Many tools write a manifest.json, so its first key decides."""
    try:
        if not (place / "manifest.json").is_file():
            return False
        with (place / "manifest.json").open("rb") as file:
            return MANIFEST.match(file.read(4096)) is not None
    except OSError:
        return False


def printable(head: bytes) -> str:
    return repr("".join(chr(byte) if 32 <= byte < 127 else "." for byte in head))
