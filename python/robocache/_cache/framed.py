"""A source whose cameras also give frames: each picture is decoded once, in order, on all cores, and resized.

The frames of a camera are batches of a stream of their own (tier.py), which follow the camera's batches. A picture that
cannot be decoded is left out and noted, and the last batch of the episode records it in its metadata.
"""

from __future__ import annotations

import functools
import os
import queue
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import metadata as packages
from typing import Any, NamedTuple

import numpy as np

from robocache._cache.pieces import Pieces, bytes_of, pictures_per_task
from robocache._cache.tier import KIND, TYPE, dense, frames_name
from robocache._core import FileError, stay_in_this_thread
from robocache._recordings.frame_options import FrameOptions, from_text
from robocache._recordings.images import is_image, native
from robocache._recordings.planes import FrameMemory, Picture, converted, layout_of
from robocache._recordings.source import Array, Batch, Source, SourceOver, StreamInfo
from robocache._recordings.words import counted

BATCH_BYTES = 1 << 20  # of frames
MOST_TASKS = 16  # at a time, and threads of FFmpeg: more would take memory without being faster
VIDEO_MESSAGES = (
    "h264",
    "h265",
    "hevc",
    "vp9",
    "av1",
)  # formats of CompressedVideo: a picture needs the pictures before it
# Keys of a camera's metadata that describe its own samples, and not its frames.
OF_SAMPLES = {
    "kind",
    "encoding",
    "format",
    "height",
    "width",
    "step",
    "is_bigendian",
    "shape",
    "file",
    "from_cache",
    "fps",
}


most_threads: int | None = None  # None: all cores


def limit_threads(most: int) -> None:
    """Decodes pictures on at most this many threads in this process. Ray workers share a machine with others."""
    global most_threads
    most_threads = most


def cores() -> int:
    found = len(os.sched_getaffinity(0))
    return found if most_threads is None else min(found, most_threads)


def is_camera(info: StreamInfo) -> bool:
    """Whether a stream's samples are pictures: videos, images, and arrays that can only be images."""
    if info.metadata.get("kind") == KIND:
        return False
    return is_image(info.metadata) or is_dense(info)


def is_dense(info: StreamInfo) -> bool:
    """Whether its values are images, uint8 [N, H, W, C], as in HDF5."""
    shape = info.shape
    return not info.ragged and info.dtype == np.uint8 and len(shape) == 3 and shape[2] in (1, 3, 4) and min(shape) > 0


def is_depth(info: StreamInfo) -> bool:
    """Whether its values may be depth images, uint16 [N, H, W], as in HDF5. A recipe must name such a stream."""
    return not info.ragged and info.dtype == np.uint16 and len(info.shape) == 2 and min(info.shape) > 0


def why_no_frames(info: StreamInfo) -> str:
    """Why a camera cannot have frames. Empty: it can."""
    said = info.metadata.get("encoding", ""), info.metadata.get("format", "")
    if any(text.startswith("32FC1") for text in said):
        return "depth in float32 has none"
    if said[1].lower() in VIDEO_MESSAGES and not said[0]:
        return f"a stream of {said[1]} messages has none"
    return "" if is_camera(info) or is_depth(info) else "its samples are no pictures"


@functools.cache
def version(package: str) -> str:
    return packages.version(package)


class LostPictures(NamedTuple):
    """Pictures that could not be decoded."""

    rows: list[int]  # of the batch
    why: str
    numbers: list[int]  # of the frames in the video; empty for images


class Damage:
    """The lost pictures of a camera in one episode."""

    def __init__(self, batch: Batch, options: FrameOptions) -> None:
        self.batch, self.options = batch, options  # the first batch with a lost picture
        self.lost: list[LostPictures] = []
        self.has_ended = False  # after a failure the rest of the episode's video is not read
        self.asked: tuple[int, int] | None = None  # the first and the last frame of the video in this episode

    def count(self) -> int:
        return sum(len(lost.rows) for lost in self.lost)

    def sentence(self) -> str:
        whys = dict.fromkeys(lost.why for lost in self.lost if lost.why)
        absent = [number for lost in self.lost if not lost.why for number in lost.numbers]
        if absent and self.asked is not None:
            of = f"of the frames {self.asked[0]:,} to {self.asked[1]:,} that the episode names"
            path = self.batch.info.metadata["file"]
            whys[f"{path}: {of}, the video lacks {len(absent):,}: {runs_of(absent)}"] = None
        return "; ".join(list(whys)[:3]) + (f" and {len(whys) - 3} more" if len(whys) > 3 else "")


def runs_of(numbers: list[int]) -> str:
    """5, 7 to 9, ..."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] + 1 == number:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [f"{a:,}" if a == b else f"{a:,} to {b:,}" for a, b in runs[:6]]
    return ", ".join(texts) + (f" and {len(runs) - 6} more" if len(runs) > 6 else "")


class FramedSource(SourceOver):
    """A source with frames of its cameras.

    Args:
        source: The recording.
        default: The options of cameras that `chosen` does not name. None: they get no frames.
        chosen: The options of some cameras by name. None: the camera gets no frames.
        stored: The streams that are in the cache already. Their frames must have the same options.
    """

    def __init__(
        self,
        source: Source,
        default: FrameOptions | None,
        chosen: Mapping[str, FrameOptions | None],
        stored: Mapping[str, StreamInfo],
    ) -> None:
        super().__init__(source)
        self.default, self.chosen, self.stored = default, dict(chosen), stored
        self.shapes = {name: info.shape for name, info in stored.items() if info.metadata.get("kind") == KIND}
        self._there: frozenset[int] = frozenset()

    def presumed(self) -> Source | None:
        source = self.source.presumed()
        return None if source is None else FramedSource(source, self.default, self.chosen, self.stored)

    def leave_out(self, episodes: Collection[int]) -> None:
        self._there = frozenset(episodes)
        super().leave_out(episodes)

    def options_for(self, info: StreamInfo) -> FrameOptions | None:
        """The options of a stream's frames. None: it gets no frames; if a camera cannot have frames, a note says so."""
        options = self.chosen.get(info.name, self.default)
        if options is not None and info.metadata.get("kind") == KIND:  # from a cache that keeps only the frames
            made = info.metadata.get("frames", "varies")
            if made not in (options.text(False), options.text(True)):
                had = "several kinds" if made == "varies" else str(from_text(made))
                self.note(
                    f'stream "{info.name}" keeps its frames of {had}, and gets none of {options}: the recorded '
                    "pictures are not in the cache that is read"
                )
            return None
        if options is None or not (is_camera(info) or info.name in self.chosen):
            return None
        why = why_no_frames(info)
        if not why:
            self._check_stored(info.name, options)
            return options
        self.note(f'stream "{info.name}" is kept as it was recorded, without frames: {why}')
        return None

    def _check_stored(self, camera: str, options: FrameOptions) -> None:
        """Raises if the cache has frames of this camera with other options."""
        how = "build into a new cache, or give the stream another name in a recipe"
        name = stream_of_frames(camera, options)
        other = self.stored.get(camera if options.keep == "both" else frames_name(camera))
        if other is not None and other.metadata.get("kind") == KIND:
            kept = "frames" if options.keep == "both" else "both"
            raise ValueError(
                f'{self.path}: stream "{camera}": the cache was built with keep "{kept}" for it, '
                f'not "{options.keep}"; {how}'
            )
        there = self.stored.get(name)
        if there is None:
            return
        if there.metadata.get("kind") != KIND:
            raise ValueError(f'{self.path}: stream "{camera}": the cache has a stream "{name}" without frames; {how}')
        if there.metadata["frames"] not in (options.text(False), options.text(True)):
            had = from_text(there.metadata["frames"]) if there.metadata["frames"] != "varies" else "several kinds"
            raise ValueError(
                f'{self.path}: stream "{camera}": the cache has frames of it of {had}, not {options}; {how}'
            )

    def _is_old(self, info: StreamInfo) -> bool:
        """Whether the stream has frames that a cache keeps, and its camera gets new frames here."""
        metadata = info.metadata
        has_camera = metadata.get("kind") == KIND and "of" in metadata
        return has_camera and self.chosen.get(metadata["of"], self.default) is not None

    def batches(
        self,
        streams: Collection[str] | None = None,
        episode: int | None = None,
        start: int | None = None,
        end: int | None = None,
    ) -> Iterator[Batch]:
        with Decoding(self) as decoding:
            current = -1
            for batch in self.source.batches(streams, episode, start, end):
                if batch.episode != current:
                    yield from decoding.end_episode(current)
                    current = batch.episode
                if self._is_old(batch.info):
                    continue
                options = self.options_for(batch.info)
                if options is None or options.keep == "both":
                    yield batch
                if options is not None and batch.episode not in self._there:
                    yield from decoding.frames(batch, options)
            yield from decoding.end_episode(current)
            if episode is None:
                decoding.note_unused()


class Decoding:
    """One pass over the pictures of a recording: its threads, and the video of each camera."""

    def __init__(self, source: FramedSource) -> None:
        self.source = source
        self.videos: dict[str, Any] = {}  # the open video of each camera
        self.pieces: dict[str, Pieces] = {}  # the video of each camera, for decoding by pieces
        self.damage: dict[str, Damage] = {}  # of each camera in this episode
        self.counts: dict[str, int] = {}  # by video: the number of frames in the file
        self.named: dict[str, int] = {}  # by video: the last frame in any episode
        self.codecs: dict[str, str] = {}  # FFmpeg's decoder of each camera
        self.memory = FrameMemory(2 * min(cores(), MOST_TASKS) + 2)
        self.pool = ThreadPoolExecutor(min(cores(), MOST_TASKS), "frames", initializer=stay_in_this_thread)
        self.feeder: threading.Thread | None = None
        self.stopping = threading.Event()

    def __enter__(self) -> Decoding:
        return self

    def __exit__(self, *error: object) -> None:
        self.stopping.set()
        if self.feeder is not None:
            self.feeder.join()
        self.pool.shutdown(cancel_futures=True)
        for name in {*self.videos, *self.pieces}:
            self._close(name)

    def _close(self, name: str) -> None:
        for opened in (self.videos.pop(name, None), self.pieces.pop(name, None)):
            if opened is not None:
                opened.close()

    def frames(self, batch: Batch, options: FrameOptions) -> Iterator[Batch]:
        """The frames of a camera's batch, as batches."""
        is_video = batch.info.metadata.get("kind") == "video"
        tasks = self._named(batch.stream, self._video(batch, options) if is_video else self._images(batch, options))
        ready: list[Array] = []
        rows: list[int] = []
        size = 0
        for done in tasks:
            if isinstance(done, LostPictures):
                self._damage_of(batch, options).lost.append(done)
                continue
            frames, of = done
            frames, of = self._fitting(batch, options, frames, of)
            if not len(of):
                continue
            if not ready and frames.nbytes >= BATCH_BYTES:  # saves a copy
                yield self._made(batch, options, [frames], of)
                continue
            ready.append(frames)
            rows += of
            size += frames.nbytes
            if size >= BATCH_BYTES:
                yield self._made(batch, options, ready, rows)
                ready, rows, size = [], [], 0
        if ready:
            yield self._made(batch, options, ready, rows)

    @staticmethod
    def _named(stream: str, tasks: Iterator[Any]) -> Iterator[Any]:
        """The tasks' results. Errors of rc.image, such as a filter that depth does not have, get the stream's name."""
        try:
            yield from tasks
        except ValueError as error:
            raise ValueError(f'stream "{stream}": {error}') from None

    def _damage_of(self, batch: Batch, options: FrameOptions) -> Damage:
        return self.damage.setdefault(batch.stream, Damage(batch, options))

    def _fitting(self, batch: Batch, options: FrameOptions, frames: Array, rows: list[int]) -> tuple[Array, list[int]]:
        """Frames in the stream's shape, which the first frames set. Gray becomes colour in a colour stream.

        Frames of another shape count as lost.
        """
        name = stream_of_frames(batch.stream, options)
        shape = self.source.shapes.setdefault(name, frames.shape[1:])
        if shape[2:] == (3,):
            frames = as_colours(frames)
        if frames.shape[1:] == shape and (frames.dtype == np.uint16) == (len(shape) == 2):
            return frames, rows
        kinds = {(): "depth", (1,): "gray", (3,): "in colour"}
        found, before = (kinds.get(channels, "of another kind") for channels in (frames.shape[3:], shape[2:]))
        why = f"pictures are {found}, and those before were {before}"
        self._damage_of(batch, options).lost.append(LostPictures(rows, why, []))
        return frames[:0], []

    def _made(self, batch: Batch, options: FrameOptions, frames: list[Array], rows: list[int]) -> Batch:
        values = frames[0] if len(frames) == 1 else np.concatenate(frames)
        info = self._info(batch, options)
        return Batch(batch.episode, info.name, values, batch.times[rows], batch.arrivals[rows], None, info)

    def _info(self, batch: Batch, options: FrameOptions) -> StreamInfo:
        name = stream_of_frames(batch.stream, options)
        shape = self.source.shapes.get(name, (options.height, options.width, 3))
        is_depth = len(shape) == 2
        metadata = {"kind": KIND, "frames": options.text(is_depth), "decoder": self._decoder(batch)}
        if is_depth:
            metadata["depth"] = "true"
        if options.keep == "both":
            metadata["of"] = batch.stream
        else:
            metadata = {key: said for key, said in batch.info.metadata.items() if key not in OF_SAMPLES} | metadata
        dtype = np.dtype(np.uint16 if is_depth else np.uint8)
        return StreamInfo(name, TYPE, dtype, shape, (), "hold", False, metadata)

    def _decoder(self, batch: Batch) -> str:
        """The name and version of the library that decodes a camera's pictures."""
        metadata = batch.info.metadata
        if metadata.get("kind") == "video":
            return ", ".join([f"PyAV {version('av')}", *filter(None, [self.codecs.get(batch.stream)])])
        if is_raw(batch.info):
            return f"none, raw {metadata.get('encoding', batch.info.dtype)}"
        return f"Pillow {version('pillow')}"

    # ---- Tasks. A result is (frames, rows of the batch), or LostPictures

    def _in_order(self, tasks: Iterator[Callable[[], Any] | LostPictures]) -> Iterator[Any]:
        """The results of the tasks, in order. A thread iterates over the tasks: for a video, that decodes it."""
        results: queue.Queue[Any] = queue.Queue(min(cores(), MOST_TASKS) + 1)
        self.feeder = threading.Thread(target=self._feed, args=(tasks, results), name="frames", daemon=True)
        self.feeder.start()
        while (result := results.get()) is not None:
            if isinstance(result, BaseException):
                raise result
            yield result.result() if isinstance(result, Future) else result
        self.feeder.join()

    def _feed(self, tasks: Iterator[Callable[[], Any] | LostPictures], results: queue.Queue[Any]) -> None:
        """Puts the tasks' futures and losses into the queue, and at the end None or the error that ended the tasks."""

        def put(result: Any) -> bool:
            while not self.stopping.is_set():
                try:
                    results.put(result, timeout=0.1)
                    return True
                except queue.Full:
                    continue
            return False

        try:
            for task in tasks:
                if not put(task if isinstance(task, LostPictures) else self.pool.submit(task)):
                    return
            put(None)
        except BaseException as error:
            put(error)

    def _images(self, batch: Batch, options: FrameOptions) -> Iterator[Any]:
        metadata = batch.info.metadata
        lengths = batch.lengths
        ends = None if lengths is None else np.cumsum(lengths)

        def image(k: int) -> Array:
            if ends is None or lengths is None:
                return dense(batch.values[k])
            sample = batch.values[int(ends[k] - lengths[k]) : int(ends[k])]
            at = f"{batch.stream}: the image at {int(batch.times[k])} ns"
            return native(at, sample, metadata)

        def task(k: int) -> Any:
            try:
                return converted([image(k)], options, self.memory), [k]
            except FileError as error:
                return LostPictures([k], str(error), [])

        yield from self._in_order(functools.partial(task, k) for k in range(len(batch.times)))

    def _video(self, batch: Batch, options: FrameOptions) -> Iterator[Any]:
        numbers = [int(number) for number in batch.values[:, 0]]
        path = batch.info.metadata["file"]
        self.named[path] = max([self.named.get(path, -1), *numbers])
        damage = self.damage.get(batch.stream)
        if damage is not None and damage.has_ended:
            return iter([LostPictures(list(range(len(numbers))), "", [])])
        return self._by_pieces(batch, options, numbers)

    def _by_pieces(self, batch: Batch, options: FrameOptions, numbers: list[int]) -> Iterator[Any]:
        """By pieces where the video allows it. From a piece with lost frames on, one decoder says what is lost."""
        row = 0
        pieces = self._pieces_of(batch)
        if pieces is not None:
            is_good = True
            tasks = (
                functools.partial(pieces.frames, numbers, rows, options, self.memory)
                for rows in pieces.rows_of(numbers)
                if is_good  # later pieces would be decoded in vain
            )
            for made in self._in_order(tasks):
                is_good = is_good and made is not None
                if is_good:
                    row = made[1][-1] + 1
                    self.codecs[batch.stream] = self._codec(batch.stream, pieces)
                    yield made
        if row < len(numbers):
            yield from self._in_order(self._read(batch, options, numbers, row))

    def _pieces_of(self, batch: Batch) -> Pieces | None:
        path, fps = batch.info.metadata["file"], float(batch.info.metadata["fps"])
        pieces = self.pieces.get(batch.stream)
        if pieces is None or (pieces.path, pieces.fps) != (path, fps):
            self._close(batch.stream)
            try:
                pieces = self.pieces[batch.stream] = Pieces(path, fps)
            except FileError:  # _read() meets it again
                return None
        self.counts[path] = pieces.count
        return pieces if pieces.are_useful() else None

    def _read(
        self, batch: Batch, options: FrameOptions, numbers: list[int], begin: int
    ) -> Iterator[Callable[[], Any] | LostPictures]:
        """Decodes the frames with these numbers from row `begin` on; yields tasks that convert a few of them each."""
        path = batch.info.metadata["file"]
        waiting: list[Picture] = []
        rows: list[int] = []

        def flush() -> Iterator[Callable[[], Any]]:
            nonlocal waiting, rows
            if waiting:
                pictures, of = waiting, rows
                waiting, rows = [], []
                yield lambda: (converted(pictures, options, self.memory), of)

        missing = LostPictures([], "", [])
        row = begin
        try:
            video = self._opened(batch.stream, path, float(batch.info.metadata["fps"]))
            self.counts[path] = video.count
            for row, number in enumerate(numbers[begin:], begin):
                try:
                    picture = video.picture(number)
                except FileError:
                    if video.threads == 1:
                        raise
                    video = self._with_one_thread(batch.stream, video)
                    picture = video.picture(number)
                self.codecs[batch.stream] = self._codec(batch.stream, video)
                if picture is None:
                    missing.rows.append(row)
                    missing.numbers.append(number)
                    continue
                if waiting and (
                    layout_of(waiting[0]) != layout_of(picture) or len(waiting) >= pictures_per_task(bytes_of(picture))
                ):
                    yield from flush()
                waiting.append(picture)
                rows.append(row)
            yield from flush()
        except FileError as error:
            yield from flush()
            self._close(batch.stream)
            damage = self._damage_of(batch, options)
            damage.has_ended = True
            yield LostPictures(list(range(row, len(numbers))), str(error), [])
        if missing.rows:
            damage = self._damage_of(batch, options)
            low, high = damage.asked or (numbers[0], numbers[0])
            damage.asked = (min(low, *numbers), max(high, *numbers))
            yield missing

    def _codec(self, stream: str, video: Any) -> str:
        """FFmpeg's decoder of a video. Names swscale too if FFmpeg converts the colours."""
        if not video.by_swscale:
            return str(video.codec)
        self.source.note(
            f'stream "{stream}": FFmpeg (swscale) converts the pixel format {video.by_swscale} to RGB; '
            "its bits may differ in other versions"
        )
        return f"{video.codec}, {video.by_swscale} by swscale"

    def _opened(self, stream: str, path: str, fps: float) -> Any:
        from robocache._recordings.video import open_pass

        video = self.videos.get(stream)  # of this file: _pieces_of() has closed another one
        if video is None:
            video = self.videos[stream] = open_pass(path, fps, min(cores(), MOST_TASKS))
        return video

    def _with_one_thread(self, stream: str, video: Any) -> Any:
        """Opens the video again with one thread: then FFmpeg gives all frames before a damaged packet."""
        from robocache._recordings.video import open_pass

        self.videos.pop(stream).close()
        self.videos[stream] = open_pass(video.path, video.fps, 1)
        return self.videos[stream]

    # ---- Lost pictures

    def end_episode(self, episode: int) -> Iterator[Batch]:
        """Records the lost pictures of the episode that ends, in notes and in its metadata."""
        found, self.damage = self.damage, {}
        for stream, damage in found.items():
            count, why = damage.count(), damage.sentence()
            if not count:
                continue
            name = self.source.parts()[episode].name
            self.source.note(
                f'stream "{stream}": {counted(count, "frame")} of episode {name} could not be decoded: {why}'
            )
            if stream_of_frames(stream, damage.options) not in self.source.shapes:
                # No frame was decoded so far. Videos are taken to be in colour; stills may be gray, or depth.
                if damage.batch.info.metadata.get("kind") != "video":
                    continue
                shape = (damage.options.height, damage.options.width, 3)
                self.source.shapes[stream_of_frames(stream, damage.options)] = shape
            info = self._info(damage.batch, damage.options)
            info = info._replace(metadata=info.metadata | {"lost": str(count), "damage": why})
            none = np.zeros(0, np.int64)
            yield Batch(episode, info.name, np.zeros((0, *info.shape), info.dtype), none, none, None, info)

    def note_unused(self) -> None:
        for path, has in self.counts.items():
            last = self.named[path]
            if has > last + 1:
                self.source.note(
                    f"{path}: has {has:,} frames, and the episodes name those up to {last:,}: "
                    f"the last {has - last - 1:,} are not used"
                )


def stream_of_frames(stream: str, options: FrameOptions) -> str:
    return frames_name(stream) if options.keep == "both" else stream


def is_raw(info: StreamInfo) -> bool:
    from robocache._recordings.images import RAW

    return not info.ragged or info.metadata.get("encoding") in RAW


def as_colours(frames: Array) -> Array:
    """Gray frames [N, H, W, 1] with the channel repeated three times. Other frames stay as they are."""
    return np.repeat(frames, 3, axis=3) if frames.ndim == 4 and frames.shape[3] == 1 else frames
