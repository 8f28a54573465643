"""Frames of video files, decoded when they are asked for: uint8 [H, W, 3], RGB.

A video that is read stays open, so that the next frame costs one decode instead of a seek and all frames from the last
key frame on. A forked child uses no decoder of its parent's, and opens its own: the two would share a position in the
file, and FFmpeg's threads, if it had any, would not be there.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from robocache._core import FileError
from robocache._recording import Array, Samples, StreamInfo, need

OPEN = 8  # decoders that are kept open; each holds a few frames
AHEAD = 64  # frames: so far ahead it is decoded on; further, a seek is cheaper


class Frames(Samples):
    """The frames of a video stream, uint8 [H, W, 3], decoded when they are asked for; frames[10:40] in one go."""

    references: Array  # [N, 1]: which frame of the file each sample is; what a cache keeps

    def __init__(self, info: StreamInfo, references: Array) -> None:
        known = all(info.metadata.get(key, "varies") != "varies" for key in ("file", "fps"))
        self.name = info.name
        self.file = info.metadata["file"] if known else ""
        self.fps = float(info.metadata["fps"]) if known else 0.0
        self.references = references

    def __len__(self) -> int:
        return len(self.references)

    def _take(self, wanted: Sequence[int]) -> list[Array]:
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
                found = None if decoder.closed else decoder.decode(frames)  # closed: others needed its place meanwhile
    else:
        found = by_torchcodec(path, frames, fps)
    absent = [number for number in frames if number not in found]
    if absent:
        raise FileError(f"{path}: the video has no frame {absent[0]} at {fps:g} frames per second")
    return found


def to_rgb(frame: Any, reformatter: Any) -> Array:
    """uint8 [H, W, 3]. The reformatter is the caller's: PyAV's own is one for each thread, has threads, and hangs in a
    forked child."""
    try:
        made = reformatter.reformat(frame, format="rgb24", threads=1)
    except TypeError:  # PyAV before 14 has no such argument, and no threads there
        made = reformatter.reformat(frame, format="rgb24")
    array: Array = made.to_ndarray()
    return array


class VideoDecoder:
    """An open video file. One thread at a time uses it, with its lock."""

    def __init__(self, path: str, fps: float) -> None:
        import av
        from av.video.reformatter import VideoReformatter

        self.path, self.fps = path, fps
        self.lock = threading.Lock()
        self.closed = False
        self._errors = (av.error.FFmpegError, OSError, IndexError)
        try:
            self._container: Any = av.open(path, options={"protocol_whitelist": "file"})
            self._stream: Any = self._container.streams.video[0]
        except self._errors as error:
            raise self._failure(error) from None
        self._stream.codec_context.thread_count = 1  # threads would not live in a forked child; workers are processes
        self._base = float(self._stream.time_base or 0)
        self._begin = float(self._stream.start_time or 0) * self._base
        self._reformatter = VideoReformatter()
        self._frames: Iterator[Any] | None = None
        self._last: tuple[int, Any] = (-1, None)  # the frame that came out last, and its number

    def _failure(self, error: BaseException) -> FileError:
        return FileError(f"{self.path}: cannot be decoded as a video: {error}")

    def close(self) -> None:
        self._frames = self._stream = None
        self._last = (-1, None)
        self._container.close()
        self.closed = True

    def decode(self, numbers: Sequence[int]) -> dict[int, Array]:
        """Those of these frames, in ascending order, that are there."""
        found: dict[int, Array] = {}
        try:
            for number in numbers:
                frame = self._frame(number)
                if frame is not None:
                    found[number] = to_rgb(frame, self._reformatter)
        except BaseException as error:  # Ctrl-C also ends the generator of frames
            self._frames, self._last = None, (-1, None)
            if isinstance(error, self._errors):
                raise self._failure(error) from None
            raise
        return found

    def _frame(self, number: int) -> Any:
        at, frame = self._last
        if frame is not None and at == number:
            return frame
        if self._frames is None or not at < number <= at + AHEAD:
            self._last = (-1, None)
            start = (self._begin + max(number - 0.5, 0) / self.fps) / self._base
            self._container.seek(int(start), stream=self._stream)
            self._frames = self._container.decode(self._stream)
        for frame in self._frames:
            at = round((float(frame.pts or 0) * self._base - self._begin) * self.fps)
            self._last = (at, frame)
            if at >= number:
                return frame if at == number else None
        self._frames = None  # the file has ended
        return None


# Decoders of this process, the one that was used last at the end.
decoders: OrderedDict[tuple[str, float, int, int], VideoDecoder] = OrderedDict()
deciding = threading.Lock()


def opened(path: str, fps: float) -> VideoDecoder:
    """The decoder of a file as it is now: a file that was replaced is opened again."""
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
        spare = [decoders.popitem(last=False)[1] for _ in range(len(decoders) - OPEN)]
    for old in spare:
        with old.lock:  # somebody may be decoding with it
            old.close()
    return decoder


def forget_after_fork() -> None:
    """Another thread of the parent's may have been decoding: what it left is never touched, nor freed."""
    global decoders, deciding
    for decoder in decoders.values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(decoder))
    decoders, deciding = OrderedDict(), threading.Lock()


os.register_at_fork(after_in_child=forget_after_fork)


def by_torchcodec(path: str, frames: Sequence[int], fps: float) -> dict[int, Array]:
    try:
        from torchcodec.decoders import VideoDecoder as TorchDecoder

        decoder = TorchDecoder(path, dimension_order="NHWC")
        begin, end = decoder.metadata.begin_stream_seconds, decoder.metadata.end_stream_seconds
        moments = [begin + (number + 0.5) / fps for number in frames]
        taken = decoder.get_frames_played_at([moment for moment in moments if moment < end])
    except (ImportError, RuntimeError, ValueError) as error:
        if isinstance(error, ImportError) or "libtorchcodec" in str(error):  # it is not there, or finds no FFmpeg
            raise need("av", "video", f"{path}: decoding a video") from None
        raise FileError(f"{path}: cannot be decoded as a video: {error}") from None
    numbers = ((taken.pts_seconds - begin) * fps).round().int().tolist()
    return dict(zip(numbers, np.asarray(taken.data.numpy()), strict=True))
