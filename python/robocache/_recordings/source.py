"""What all formats share. A `Source` reads one format (`mcap.py`, `lerobot.py`, `hdf5.py`, `rosbag2.py`).
It hands out batches of bounded size, as recorded, and says what it knows of each stream.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from robocache._align.stream import Duration, Method, stored_duration
from robocache._recordings.stamps import FileStamp

Array = NDArray[Any]
TIMES = ("auto", "stamp", "log", "publish")
BATCH_BYTES = 2 << 20  # the size that sources aim at for a batch
# The dtypes of numbers in recordings: those of NumPy, which has no bfloat16.
DTYPES = ("float16", "float32", "float64", "bool", *(f"{sign}int{n}" for sign in ("", "u") for n in (8, 16, 32, 64)))


def most_unpacked(size: int) -> int:
    """How many bytes a file of `size` bytes may unpack to: 1032 times its size, deflate's maximum, plus 64 MiB."""
    return 1032 * size + (64 << 20)


class StreamInfo(NamedTuple):
    """The description of a stream, without its samples."""

    name: str  # "/odom"; for types that contain several streams "/tf/base_link"
    type: str  # "nav_msgs/msg/Odometry"
    dtype: np.dtype[Any]
    shape: tuple[int, ...]  # of a sample; of a row if samples are ragged
    channels: tuple[str, ...]  # a name for each channel of the flattened shape, or none
    method: Method | None  # a hint for align
    ragged: bool  # samples have any number of rows: points, or an image's bytes
    metadata: dict[str, str]  # "encoding": "rgb8"; "varies" if messages disagree


class Batch(NamedTuple):
    """A piece of one stream, of bounded size, as recorded. Batches of one stream follow each other."""

    episode: int
    stream: str
    values: Array  # [N, ...]; ragged: [rows of all samples, ...]
    times: NDArray[np.int64]  # [N] nanoseconds; they may go backward
    arrivals: NDArray[np.int64]  # [N] nanoseconds
    lengths: NDArray[np.int64] | None  # [N] for ragged samples: the rows of each
    info: StreamInfo  # later batches may add channels, never remove them


class Content(NamedTuple):
    """A stream of an episode, before anything is decoded."""

    name: str
    type: str
    samples: int | None  # None: only decoding can tell


class Part(NamedTuple):
    """An episode, as a source knows it."""

    name: str
    task: str | None
    start: int | None  # nanoseconds, log time if the format has it; None: only decoding can tell
    end: int | None


class ReadAgain(Exception):
    """The presumption was wrong: discard what was read, and read the recording itself."""


def glanced(start: int | None, end: int | None) -> list[tuple[int, int]] | None:
    """The log times [start, end) of three stretches: beginning, middle and end of a file. As in the engine."""
    if start is None or end is None:
        return None
    length = min(max((end - start) // 128, 20_000_000), 1_000_000_000)
    middle = start + (end - start) // 2
    return [(start, start + length), (middle, middle + length), (max(end - length, 0), end + 1)]


class Source(ABC):
    """A format's reader. Nothing is decoded before the first batch is requested.

    A pickled source is opened again from the arguments it was made with: engines and file handles do not travel.
    """

    format: str  # "MCAP", "LeRobot v3.0"
    path: str  # for error sentences
    time: str  # as the user passed it
    files: tuple[Path, ...] = ()  # the files it reads; a cache compares them to decide whether to read again
    stamps: tuple[FileStamp, ...] = ()  # the state of the open files, from before they were opened
    notes: list[str]  # for people: a rate that was assumed, topics that were skipped
    given: str = ""  # a digest of other files that reading depends on
    lacking: tuple[str, ...] = ()  # message types that are skipped because no definition of them was found
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

    def note(self, *sentences: str) -> None:
        """Adds those that are not among the notes yet."""
        self.notes += [sentence for sentence in dict.fromkeys(sentences) if sentence not in self.notes]

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
        """The state of the files before they were opened; of files that a pass opens itself, their state now."""
        return self.stamps

    def content(self) -> str:
        """The hash of a recording that is bytes in memory; otherwise an empty string."""
        return ""

    def samples(self, info: StreamInfo, values: Array) -> Sequence[Any] | None:
        """The samples that the values refer to, if they are references, as for a video's frames."""
        return None

    def listed(self, episode: int) -> Mapping[str, Content]:
        """What the file lists without decoding. For formats with messages: topics."""
        return self.contents(episode)

    def quick(self) -> Mapping[str, tuple[str, NDArray[np.int64]]] | None:
        """Type and arrivals of every topic, if an index has them, so that no message is read."""
        return None

    def promised(self) -> Mapping[str, StreamInfo]:
        """What is known of streams from schemas alone, before a sample is read."""
        return {}

    def survey(self, to: Any, at_a_glance: bool) -> None:
        """Adds the stamps of all messages, or of a few, to a _core.ClockSurvey. For formats that have log times."""
        raise NotImplementedError

    def stretches(self) -> list[tuple[int, int]] | None:
        """The log times [start, end) that a glance reads, with the first message of each topic; None: not known."""
        return None

    def presumed(self) -> Source | None:
        """The same source, read as if its clock ran with log time. It raises ReadAgain if that is not the case.

        For a pass over all of it, which then needs no glance first. None: it is known, or cannot be presumed.
        """
        return None

    def extents(self) -> Sequence[Part]:
        """The episodes as far as they are known without reading, for progress bars."""
        return self.parts()

    def latched(self) -> frozenset[str]:
        """Topics whose publishers are transient-local: late subscribers get the last message again."""
        return frozenset()

    def constants(self) -> frozenset[str]:
        """Topics that are static: their streams hold from the start on and do not limit a timeline."""
        return frozenset()

    def describe_clock(self) -> dict[str, Any] | None:
        """The clock that the times are on, as _core.RecordingClock describes it; None if the format has only one."""
        return None

    def total(self, name: str) -> int | None:
        """How many samples a stream has in all episodes; None: only decoding can tell."""
        found = [self.contents(k).get(name) for k in range(len(self.parts()))]
        counts = [content.samples for content in found if content is not None]
        return None if None in counts else sum(count or 0 for count in counts)

    def leave_out(self, episodes: Collection[int]) -> None:
        """The next pass need not do costly work for these episodes: the cache has them already."""
        return


class SourceOver(Source):
    """A source that wraps another one, and forwards what it does not change."""

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

    def total(self, name: str) -> int | None:
        return self.source.total(name)

    def leave_out(self, episodes: Collection[int]) -> None:
        self.source.leave_out(episodes)


def _reopen(kind: type[Source], given: tuple[Any, ...], named: dict[str, Any]) -> Source:
    return kind(*given, **named)


def method_of(info: StreamInfo, samples: int) -> Method | None:
    """The method that aligns the stream: images, clouds and constants are held."""
    return "hold" if info.ragged or (is_static(info) and samples > 1) else info.method


def max_gap_of(info: StreamInfo) -> Duration | None:
    """The max_gap that a recipe has set."""
    told = info.metadata.get("max_gap_ns", "")
    return stored_duration(int(told)) if told.isdecimal() else None


def is_static(info: StreamInfo) -> bool:
    """Whether it is a constant, such as tf_static: it holds from the start on and limits no episode or timeline."""
    return info.metadata.get("static") == "true"


MANY = ("tf2_msgs/msg/TFMessage", "tf/msg/tfMessage")  # each child is a stream with stamps of its own


def topic_of(name: str, topics: Collection[str]) -> str | None:
    """The topic that a stream belongs to: "/tf" for "/tf/base_link". None: none of these."""
    while name not in topics:
        name, slash, _ = name.rpartition("/")
        if not slash:
            return None
    return name


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
