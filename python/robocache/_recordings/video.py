"""Frames of video files, decoded on access: uint8 [H, W, 3] in RGB, by our own conversion (planes.py).

A video stays open, so that the next frame costs one decode instead of a seek and all frames since the last key frame. A
forked child opens its own decoders: it would share the position in the file with its parent, and FFmpeg's threads do
not exist in the child.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import numpy as np

from robocache._core import FileError
from robocache._recordings.images import MOST_PIXELS, as_colour
from robocache._recordings.planes import Picture, converted, picture_of
from robocache._recordings.source import Array, StreamInfo
from robocache._recordings.streams import Samples
from robocache._recordings.words import need

MOST_OPEN = 8  # decoders kept open; each holds a few frames
PREDICTED = (2, 3)  # FFmpeg's picture types P and B
MOST_AHEAD = 64  # frames: up to this distance, decoding the frames in between is cheaper than a seek


class Frames(Samples):
    """The frames of a video stream, uint8 [H, W, 3], decoded on access. frames[10:40] is one pass."""

    references: Array  # [N, 1]: the frame number of each sample; a cache stores these

    def __init__(self, info: StreamInfo, references: Array) -> None:
        known = all(info.metadata.get(key, "varies") != "varies" for key in ("file", "fps"))
        self.name = info.name
        self.file = info.metadata["file"] if known else ""
        self.fps = float(info.metadata["fps"]) if known else 0.0
        self.references = references

    def __len__(self) -> int:
        return len(self.references)

    def _take(self, wanted: Sequence[int]) -> list[Array]:
        return [as_colour(picture) for picture in self.natives(wanted)]

    def natives(self, wanted: Sequence[int]) -> list[Array]:
        """These frames; [H, W, 1] if the video is gray."""
        if not self.file:
            raise FileError(f'the frames of "{self.name}" lie in a file that is not known')
        if not os.path.exists(self.file):
            raise FileError(
                f'{self.file}: is not there, and has the frames of "{self.name}": has it moved? Put the data set back, '
                "move it together with the cache, or build the cache again: robocache build DATA_SET -o CACHE"
            )
        numbers = [int(self.references[k, 0]) for k in wanted]
        found = decode(self.file, sorted(set(numbers)), self.fps)
        seen = set[int]()
        frames = []
        for number in numbers:  # Copy repeats, so that no two samples share memory.
            frames.append(found[number].copy() if number in seen else found[number])
            seen.add(number)
        return frames

    def __repr__(self) -> str:
        return f"Frames({self.name!r}, {len(self)} frames of {self.file or 'an unknown file'})"


def decode(path: str, frames: Sequence[int], fps: float) -> dict[int, Array]:
    """Some frames of a video by their number, in ascending order."""
    if not frames:
        return {}
    if find_spec("av"):
        found = None
        while found is None:
            decoder = opened(path, fps)
            with decoder.lock:
                found = (
                    None if decoder.closed else decoder.decode(frames)
                )  # closed: another thread has evicted it meanwhile
    else:
        found = by_torchcodec(path, frames, fps)
    absent = [number for number in frames if number not in found]
    if absent:
        raise FileError(f"{path}: the video has no frame {absent[0]} at {fps:g} frames per second")
    return found


def by_ffmpeg(frame: Any, reformatter: Any) -> Picture:
    """A frame of a format that rc.image does not convert, by FFmpeg.

    The caller passes the reformatter: PyAV's default one has threads, and hangs in a forked child.
    """
    try:
        made = reformatter.reformat(frame, format="rgb24", threads=1)
    except TypeError:  # PyAV before 14 has no such argument, and no threads
        made = reformatter.reformat(frame, format="rgb24")
    array: Array = made.to_ndarray()
    return array


class VideoDecoder:
    """An open video file. Callers hold its lock.

    Args:
        threads: FFmpeg's threads. More than 1 only if the decoder is closed before this process can fork, because
            threads do not survive a fork, and a data loader's workers are forked.
    """

    def __init__(self, path: str, fps: float, threads: int = 1) -> None:
        import av
        from av.video.reformatter import VideoReformatter

        self.path, self.fps = path, fps
        self.lock = threading.Lock()
        self.closed = False
        self._errors = (av.error.FFmpegError, OSError, IndexError, ValueError)
        try:
            self._container: Any = av.open(path, options={"protocol_whitelist": "file"})
            self._stream: Any = self._container.streams.video[0]
            codec = self._stream.codec_context
        except self._errors as error:
            raise self._failure(error) from None
        if codec is None:
            raise FileError(f"{path}: cannot be decoded as a video: PyAV {av.__version__} has no decoder of its codec")
        if codec.width * codec.height > MOST_PIXELS:
            raise FileError(
                f"{path}: a video of {codec.width} x {codec.height} pixels; "
                f"frames of more than {MOST_PIXELS:,} are refused"
            )
        self.threads = threads
        codec.thread_count = threads
        if threads > 1:
            codec.thread_type = "AUTO"
        self.codec = codec.codec.name  # FFmpeg's decoder
        self.most_ahead = MOST_AHEAD  # less where it is known that key frames are close together
        self.pixels = codec.width * codec.height
        self.count = int(self._stream.frames)  # the number of frames in the file's header; 0: not given
        self._base = float(self._stream.time_base or 0)
        self._begin = float(self._stream.start_time or 0) * self._base
        self._reformatter = VideoReformatter()
        self._frames: Iterator[Any] | None = None
        self._last: tuple[int, Any] = (-1, None)  # the frame that came out last, and its number
        self.by_swscale = ""  # the pixel format, if FFmpeg converts it because rc.image cannot
        self._end: int | None = None  # the number of the file's last frame, when it is known
        self._first: int | None = None  # the first frame that was decoded since the last seek
        self._from_recovery_point = False  # the last seek led to a recovery point: later frames need frames before it
        self.has_recovery_points = False  # its index lists recovery points as key frames
        self._damaged: int | None = None  # a damaged frame since the last key frame: later frames are made from it
        self._broken: BaseException | None = None  # the error that ended decoding; frames before it still come out

    def _failure(self, error: BaseException) -> FileError:
        return FileError(f"{self.path}: cannot be decoded as a video: {error}")

    def close(self) -> None:
        self._frames = self._stream = None
        self._last = (-1, None)
        self._broken = None  # its traceback holds this decoder
        self._container.close()
        self.closed = True
        if self in passes:
            passes.discard(self)
            python_log.resume()

    def decode(self, numbers: Sequence[int]) -> dict[int, Array]:
        """The frames with these numbers, in ascending order; missing ones are left out."""
        found: dict[int, Array] = {}
        for number in numbers:
            picture = self.picture(number)
            if picture is not None:
                found[number] = converted([picture])[0]
        return found

    def key_frames(self) -> list[int]:
        """About the numbers of the key frames, ascending, by the file's index. Empty: there is no index.

        The index has the times of decoding, which are before those of showing by about the same for each key frame.
        """
        entries = getattr(self._stream, "index_entries", None) or ()  # an older PyAV has none
        times = [entry.timestamp for entry in entries if entry.is_keyframe]
        return [round((time - times[0]) * self._base * self.fps) for time in times]

    def picture(self, number: int) -> Picture | None:
        """The pixels of the frame with this number; None: the video has no such frame."""
        try:
            frame = self._frame(number)
            if frame is None:
                return None
            picture = picture_of(frame)
            if picture is None:
                self.by_swscale = frame.format.name
                picture = by_ffmpeg(frame, self._reformatter)
            return picture
        except BaseException as error:  # Ctrl-C ends the generator of frames too
            self._frames, self._last = None, (-1, None)
            if isinstance(error, self._errors):
                raise self._failure(error) from None
            raise

    def _frame(self, number: int) -> Any:
        at, frame = self._last
        if frame is not None and at == number:
            return frame
        if self._end is not None and number > self._end:
            return None
        if self._frames is not None and at < number <= at + self.most_ahead:
            return self._onward(number)
        # The frame may be a key frame itself, with a stamp that was rounded up.
        back = number if self.has_recovery_points else -0.25
        while True:
            start = max(number - back, 0.0)
            self._seek(start)
            frame = None
            try:
                frame = self._onward(number)
            except self._errors:
                if start == 0 or not self._from_recovery_point:
                    raise
            self.has_recovery_points |= self._from_recovery_point and start > 0
            if start == 0 or (self._first is not None and self._first <= number and not self._from_recovery_point):
                return frame
            # FFmpeg leaves out frames that need others from before the key frame.
            back = 0.5 if back < 0 else max(4 * back, 16.0)

    def _seek(self, start: float) -> None:
        """Goes to the key frame before this frame number."""
        self._last, self._first, self._damaged, self._broken = (-1, None), None, None, None
        self._from_recovery_point = False
        self._container.seek(int((self._begin + start / self.fps) / self._base), stream=self._stream)
        self._frames = self._decoded()

    def _onward(self, number: int) -> Any:
        """Decodes up to this frame. None: the video skips this number."""
        at = self._last[0]
        assert self._frames is not None
        for frame in self._frames:
            at = round((float(frame.pts or 0) * self._base - self._begin) * self.fps)
            self._last = (at, frame)
            if self._first is None:
                self._first = at
                self._from_recovery_point = int(frame.pict_type) in PREDICTED
            if frame.is_corrupt:
                self._damaged = at
            elif frame.key_frame:
                self._damaged = None
            if at < number:
                continue
            if self._damaged == at:
                raise ValueError(f"frame {at} is damaged")
            if self._damaged is not None:
                raise ValueError(f"frame {self._damaged} is damaged, and frame {at} is made from it")
            if at > number and self._broken is not None:
                raise self._broken
            return frame if at == number else None
        self._frames = None  # the file has ended
        self._end = at if at >= 0 else None  # None: the seek was past the end
        return None

    def _decoded(self) -> Iterator[Any]:
        """The frames from here on, in the order in which they are shown.

        Packets come in another order, so FFmpeg holds frames back. With one thread, the frames before a damaged packet
        can still be read. With more threads, later packets are already being decoded, and it is not known which frames
        are good.
        """
        try:
            yield from self._container.decode(self._stream)
        except self._errors as error:
            self._broken = error
            if self.threads == 1:
                with suppress(*self._errors):
                    yield from self._stream.codec_context.decode(None)
            raise


# The decoders of this process, in the order of their last use.
decoders: OrderedDict[tuple[str, float, int, int], VideoDecoder] = OrderedDict()
deciding = threading.Lock()


def opened(path: str, fps: float) -> VideoDecoder:
    """The decoder of a file. A file that was replaced is opened again."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from None
    key = (os.path.realpath(path), fps, status.st_ino, status.st_mtime_ns)
    with deciding:
        decoder = decoders.get(key)
        if decoder is not None:
            decoders.move_to_end(key)
            return decoder
    made = VideoDecoder(path, fps)
    with deciding:
        decoder = decoders.setdefault(key, made)
        decoders.move_to_end(key)
        spare = [decoders.popitem(last=False)[1] for _ in range(len(decoders) - MOST_OPEN)]
    for old in spare:
        with old.lock:  # another thread may be decoding with it
            old.close()
    return decoder


class PythonLog:
    """FFmpeg's log to Python, which a program turns on by `av.logging.set_level`. It pauses while passes are open.

    To log, FFmpeg's threads wait for the GIL, and closing a video waits for these threads while it holds the GIL: a
    damaged video would hang the build.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._passes = 0
        self._level: int | None = None  # the level that the program has set

    def pause(self) -> None:
        import av

        with self._lock:
            self._passes += 1
            if (level := av.logging.get_level()) is not None:
                self._level = level
                av.logging.set_level(None)

    def resume(self) -> None:
        import av

        with self._lock:
            self._passes -= 1
            if not self._passes and self._level is not None:
                av.logging.set_level(self._level)
                self._level = None


python_log = PythonLog()

# The decoders of builds, which read whole videos. They have threads, and are closed when the build ends.
passes: weakref.WeakSet[VideoDecoder] = weakref.WeakSet()


def open_pass(path: str, fps: float, threads: int) -> VideoDecoder:
    """A decoder for one pass over a video, in order. The caller closes it."""
    if not find_spec("av"):
        raise need("av", "video", f"{path}: decoding a video")
    if not os.path.exists(path):
        raise FileError(f"{path}: No such file or directory")
    python_log.pause()
    try:
        decoder = VideoDecoder(path, fps, threads)
    except BaseException:
        python_log.resume()
        raise
    passes.add(decoder)
    return decoder


def forget_after_fork() -> None:
    """In a child, forgets the parent's decoders without freeing them: another thread may have been using them."""
    global decoders, deciding, python_log
    for decoder in (*decoders.values(), *passes):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(decoder))
    passes.clear()
    decoders, deciding, python_log = OrderedDict(), threading.Lock(), PythonLog()


os.register_at_fork(after_in_child=forget_after_fork)


def by_torchcodec(path: str, frames: Sequence[int], fps: float) -> dict[int, Array]:
    try:
        from torchcodec.decoders import VideoDecoder as TorchDecoder

        decoder = TorchDecoder(path, dimension_order="NHWC")
        begin, end = decoder.metadata.begin_stream_seconds, decoder.metadata.end_stream_seconds
        moments = [begin + (number + 0.5) / fps for number in frames]
        taken = decoder.get_frames_played_at([moment for moment in moments if moment < end])
    except (ImportError, RuntimeError, ValueError) as error:
        if isinstance(error, ImportError) or "libtorchcodec" in str(
            error
        ):  # torchcodec is missing, or does not find FFmpeg
            raise need("av", "video", f"{path}: decoding a video") from None
        raise FileError(f"{path}: cannot be decoded as a video: {error}") from None
    numbers = ((taken.pts_seconds - begin) * fps).round().int().tolist()
    return dict(zip(numbers, np.asarray(taken.data.numpy()), strict=True))
