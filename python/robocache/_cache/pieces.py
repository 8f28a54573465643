"""The pieces of a video, each of which one thread decodes and converts.

FFmpeg's threads work on one video together and wait for each other. Pieces that begin at key frames need nothing of
each other, and a picture is converted on the core that has decoded it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from robocache._core import FileError
from robocache._recordings.frame_options import FrameOptions
from robocache._recordings.planes import Conversion, FrameMemory, Picture, layout_of
from robocache._recordings.source import Array

TASK_BYTES = 8 << 20  # of pictures that one task converts
TASK_PICTURES = 16


def pictures_per_task(size: int) -> int:
    """How many pictures of this many bytes one task converts."""
    return max(min(TASK_BYTES // max(size, 1), TASK_PICTURES), 1)


def bytes_of(picture: Picture) -> int:
    return int(picture.y.nbytes * 2 if hasattr(picture, "y") else picture.nbytes)


class Pieces:
    """A video that is decoded by pieces, with an open decoder for each thread that decodes one."""

    def __init__(self, path: str, fps: float) -> None:
        self.path, self.fps = path, fps
        self._idle: list[Any] = []
        self._gap = 0  # between key frames, in frames
        self._has_recovery_points = False
        video = self._take()
        self.count, self.codec, self.by_swscale = video.count, video.codec, ""
        self._keys = video.key_frames()
        if self.count:  # else the last gap is not known
            self._gap = max((end - key for key, end in pairwise([*self._keys, self.count])), default=0)
        self._most = pictures_per_task(2 * video.pixels)
        video.most_ahead = self._gap
        self._idle.append(video)
        if not self.are_useful():
            self.close()

    def are_useful(self) -> bool:
        """Whether the key frames are so close together that pieces can begin at them, and all are whole pictures."""
        return 0 < self._gap <= self._most and not self._has_recovery_points

    def _take(self) -> Any:
        from robocache._recordings.video import open_pass

        try:
            return self._idle.pop()
        except IndexError:  # another thread may have taken the last one
            video = open_pass(self.path, self.fps, 1)
            video.most_ahead = self._gap
            return video

    def close(self) -> None:
        """Closes the decoders. No thread may be decoding."""
        while self._idle:
            self._idle.pop().close()

    def rows_of(self, numbers: Sequence[int]) -> Iterator[range]:
        """The rows of each piece of a batch with these frames."""
        keys = set(self._keys)
        begin = 0
        for row, number in enumerate(numbers):
            count = row - begin
            if count >= self._most or (number in keys and count + self._gap > self._most):
                yield range(begin, row)
                begin = row
        yield range(begin, len(numbers))

    def frames(
        self, numbers: Sequence[int], rows: range, options: FrameOptions, memory: FrameMemory
    ) -> tuple[Array, list[int]] | None:
        """The frames of a piece, and its rows. None: one decoder has to read on from here.

        Some frames are lost, their pictures have several layouts, or the index gives recovery points as key frames.
        """
        if self._has_recovery_points:
            return None
        try:
            video = self._take()
        except FileError:
            return None
        try:
            made: Conversion | None = None
            for row in rows:
                picture = video.picture(numbers[row])
                self._has_recovery_points |= video.has_recovery_points
                if picture is None or self._has_recovery_points:
                    return None
                if made is None:
                    made = Conversion(picture, len(rows), options, memory)
                elif made.layout != layout_of(picture):
                    return None
                made.add(picture)
            self.by_swscale = self.by_swscale or video.by_swscale
            return None if made is None else (made.made, list(rows))
        except FileError:
            return None
        finally:
            self._idle.append(video)
