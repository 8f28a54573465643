"""The streams of a recording, assembled from the batches of its source."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from robocache import _core, _tables
from robocache._align.stream import Stream
from robocache._recordings.source import Array, Batch, Content, Source, StreamInfo, max_gap_of, method_of
from robocache._recordings.words import NoStream, absent, figures


class RecordedStream(Stream[Array]):
    """A stream of a recording: a `Stream`, with what the file says about it.

    Its samples are sorted by time; samples of equal time stay in recorded order. `replace`, copies and pickles keep
    `info`, `backward` and `samples`.

    Attributes:
        info: Name, type, dtype, shape, channels, method, ragged and metadata.
        backward: How many stamps were earlier than the one before, as recorded.
        samples: For samples that are not rows of an array (images, clouds, video frames): `samples[i]` is sample i, and
            `samples[2:5]` and `samples[[1, 7]]` are lists. `values` then holds sample numbers, which align holds, so
            that `stream.samples[aligned.values[k]]` is what was seen at target k. Colour images are uint8 [H, W, 3] in
            RGB, whatever the encoding (raw, JPEG, PNG, video). Depth images are [H, W] in their own dtype.
            `samples.as_stored(i)` has an image's bytes as recorded. Of a camera of which a cache keeps frames,
            samples[i] is the frame, and `samples.source[i]` the picture as it was recorded. None for other streams.
    """

    __slots__ = ("backward", "info", "samples")
    # A recording can be read even if its method does not fit its channels; align reports that. `replace` checks all.
    _check = staticmethod(_core.check_stream_options)

    info: StreamInfo
    backward: int
    samples: Sequence[Any] | None

    def replace(self, **changes: Any) -> RecordedStream:
        """A copy of the stream with some arguments changed, as `Stream.replace`.

        Args:
            **changes: Arguments of `Stream`.

        Returns:
            The new stream, with the same `info`, `backward` and `samples`.
        """
        info = self.info
        if "values" in changes and self.samples is None and isinstance(changes["values"], np.ndarray):
            info = info._replace(dtype=changes["values"].dtype, shape=changes["values"].shape[1:])
        made = _restore_recorded({**self._arguments(), **changes}, info, self.backward, self.samples)
        _core.check_stream(made)
        return made

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
        """The message type: "nav_msgs/msg/Odometry"."""
        return self.info.type

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of a sample."""
        return self.info.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a sample; of one of its rows if samples vary in length."""
        return self.info.shape

    @property
    def ragged(self) -> bool:
        """Whether samples vary in length, as clouds and compressed images do."""
        return self.info.ragged

    @property
    def metadata(self) -> dict[str, str]:
        """What else the file says, such as `{"encoding": "rgb8"}`; "varies" if messages disagree."""
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
        """These samples. All numbers are within bounds."""


class Packed(Samples):
    """Samples of varying length, one after the other in `rows`: packed[i] is sample i, a view."""

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
        """The rows of sample i. For an image: its bytes."""
        k = range(len(self))[index]
        return self.rows[self.begins[k] : self.ends[k]]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} samples, {self.rows.dtype} {list(self.rows.shape)} in all)"


def packed(info: StreamInfo, rows: Array, lengths: NDArray[np.int64], order: NDArray[np.intp] | None = None) -> Packed:
    """Samples of varying length. Images are decoded on access."""
    if rows.ndim == 1 and rows.dtype == np.uint8:
        from robocache._recordings.images import Images, is_image

        if is_image(info.metadata):
            return Images(info.name, info.metadata, rows, lengths, order)
    return Packed(rows, lengths, order)


def widened(batch: Batch, info: StreamInfo) -> Array:
    """The batch's values with the channels of `info`: NaN in channels that were added later."""
    values = batch.values
    if batch.info.ragged or batch.info.channels == info.channels or values.ndim != 2:
        return values.astype(info.dtype, copy=False)
    place = {name: k for k, name in enumerate(info.channels)}
    wide = np.full((len(values), len(info.channels)), np.nan if info.dtype.kind == "f" else 0, info.dtype)
    wide[:, [place[name] for name in batch.info.channels]] = values
    return wide


def passed(batches: Iterable[Batch], heard: Callable[[Batch], None]) -> Iterator[Batch]:
    for batch in batches:
        yield batch
        heard(batch)


def assemble(batches: Iterable[Batch], source: Source) -> dict[str, RecordedStream]:
    """The batches of one episode as streams in memory."""
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


def describe_rate(times: Array) -> str:
    if len(times) < 2:
        return ""
    period = float(np.median(np.diff(times)))
    return f"{figures(1e9 / period, 4)} Hz" if period > 0 else ""


class Streams(Mapping[str, RecordedStream]):
    """The streams of an episode by name. Each is decoded once, on first use; items() decodes all in one pass."""

    def __init__(self, source: Source, episode: int, start: int | None = None, end: int | None = None) -> None:
        self._source = source
        self._episode = episode
        self._range = (start, end)
        self._decoded: dict[str, RecordedStream] = {}

    @property
    def contents(self) -> Mapping[str, Content]:
        """Names, types and, if the file has them, numbers of samples. Nothing is decoded."""
        return self._source.contents(self._episode)

    def select(self, *names: str) -> dict[str, RecordedStream]:
        """Several streams, decoded in one pass over the recording.

        Args:
            *names: Names of streams.

        Returns:
            A dict of the streams in this order.

        Raises:
            KeyError: There is no such stream.
        """
        return self._select(names)

    def _select(self, names: Sequence[str], heard: Callable[[Batch], None] | None = None) -> dict[str, RecordedStream]:
        """heard: called with each batch that was read."""
        contents = self.contents
        for name in names:
            if name not in contents:
                raise NoStream(absent(self._source, name, contents))
        wanted = [name for name in names if name not in self._decoded]
        if wanted:
            start, end = self._range
            batches = self._source.batches(wanted, self._episode, start, end)
            found = assemble(batches if heard is None else passed(batches, heard), self._source)
            for name in wanted:  # if two threads decoded it, both get the first result
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

    def _repr_html_(self) -> str:
        listed = self._source.listed(self._episode)
        return content_html(f"Streams of {self._source.path}", listed)


def content_html(title: str, listed: Mapping[str, Content], sentences: Sequence[str] = ()) -> str:
    """The streams that a file lists, as a table for notebooks. It decodes no samples."""
    rows = [[name, c.type, "-" if c.samples is None else f"{c.samples:,}"] for name, c in listed.items()]
    return _tables.as_html(title, ("stream", "type", "samples"), rows, sentences)


def empty(content: Content) -> RecordedStream:
    """A stream without samples."""
    none = np.zeros(0, np.int64)
    stream = RecordedStream(np.zeros((0, 0)), none, arrivals=none, name=content.name)
    stream.info = StreamInfo(content.name, content.type, np.dtype(np.float64), (0,), (), None, False, {})
    stream.backward, stream.samples = 0, None
    return stream
