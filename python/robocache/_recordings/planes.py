"""The pixels of a decoded video frame, as rc.image takes them.

FFmpeg's own conversion to RGB (swscale) gives different bits in different versions and on different CPUs. Ours always
gives the same bits, so frames in a cache and frames that are decoded on access are equal.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from robocache._image.image import image
from robocache._recordings.frame_options import FrameOptions
from robocache._recordings.source import Array

# FFmpeg's pixel formats that rc.image converts: luma's height and width are divided by these numbers for chroma.
YUV = {
    "yuv420p": (2, 2),
    "yuvj420p": (2, 2),
    "yuv422p": (1, 2),
    "yuvj422p": (1, 2),
    "nv12": (2, 2),
    "nv16": (1, 2),
}
PACKED = {"rgb24": (0, 1, 2), "bgr24": (2, 1, 0), "gray": (0,), "gray8": (0,)}
MATRICES = {1: "bt709", 2: None, 5: "bt601", 6: "bt601", 9: "bt2020"}  # AVCOL_SPC_*; None: not tagged
FULL = 2  # AVCOL_RANGE_JPEG
LEFT = (1, 3, 5)  # AVCHROMA_LOC_LEFT, TOPLEFT, BOTTOMLEFT; chroma without a tag is in the centre, as in FFmpeg


class Planes(NamedTuple):
    """A picture in YUV: luma [H, W], chroma in two planes [h, w] or in one [h, w, 2]."""

    y: Array
    u: Array
    v: Array | None
    matrix: str | None
    range: str
    siting: str


Picture = Array | Planes  # or uint8 [H, W, C], or depth, uint16 [H, W]


def picture_of(frame: Any) -> Picture | None:
    """The pixels of an av.VideoFrame, without a copy where possible. None: only FFmpeg can convert this format."""
    name = frame.format.name
    if name in PACKED:
        channels = len(PACKED[name])
        packed = rows_of(frame.planes[0], frame.height, frame.width * channels)
        packed = packed.reshape(frame.height, frame.width, channels)
        return np.ascontiguousarray(packed[..., list(PACKED[name])])
    if name not in YUV or int(frame.colorspace) not in MATRICES:
        return None
    down, across = YUV[name]
    height, width = -(-frame.height // down), -(-frame.width // across)
    is_full = name.startswith("yuvj") or int(frame.color_range) == FULL
    siting = "left" if int(getattr(frame, "chroma_location", 0)) in LEFT else "center"
    about = (MATRICES[int(frame.colorspace)], "full" if is_full else "limited", siting)
    planes = frame.planes
    luma = rows_of(planes[0], frame.height, frame.width)
    if name.startswith("nv"):
        return Planes(luma, rows_of(planes[1], height, 2 * width).reshape(height, width, 2), None, *about)
    return Planes(luma, rows_of(planes[1], height, width), rows_of(planes[2], height, width), *about)


def rows_of(plane: Any, height: int, width: int) -> Array:
    """The bytes of a plane, [height, width], where they lie. FFmpeg pads its rows."""
    return np.ndarray((height, width), np.uint8, plane, strides=(plane.line_size, 1))


def layout_of(picture: Picture) -> tuple[Any, ...]:
    """The layout of a picture. Pictures of equal layouts are converted by one call."""
    if isinstance(picture, Planes):
        return (picture.y.shape, picture.u.shape, *picture[3:])
    return (picture.shape, picture.dtype)


def converted(
    pictures: Sequence[Picture], options: FrameOptions | None = None, memory: FrameMemory | None = None
) -> Array:
    """Pictures of one layout as RGB, gray or depth, resized by the options."""
    first = pictures[0]
    if options is None and not isinstance(first, Planes):
        return stacked(pictures)
    frames = Conversion(first, len(pictures), options, memory)
    for picture in pictures:
        frames.add(picture)
    return frames.made


class Conversion:
    """Frames that pictures of one layout become. Each is converted when it is added, while it is in the CPU's cache.

    Args:
        first: A picture of this layout.
        count: How many pictures there will be.
        memory: Memory for the frames.
    """

    def __init__(
        self, first: Picture, count: int, options: FrameOptions | None, memory: FrameMemory | None = None
    ) -> None:
        self.layout = layout_of(first)
        self.given: dict[str, Any] = {}
        if options is not None:
            is_depth = not isinstance(first, Planes) and first.ndim == 2
            self.given |= {"size": (options.height, options.width), "fit": options.fit, "pad": options.pad}
            self.given["filter"] = options.filter_of(is_depth)
        if isinstance(first, Planes):
            self.given |= {"yuv_matrix": first.matrix, "yuv_range": first.range, "yuv_siting": first.siting}
        shape = (count, *shape_of(first, options))
        dtype = first.y.dtype if isinstance(first, Planes) else first.dtype
        self.made = np.empty(shape, dtype) if memory is None else memory.take(shape, dtype)
        self.count = 0

    def add(self, picture: Picture) -> None:
        image(pixels_of(picture), out=self.made[self.count], **self.given)
        self.count += 1


def pixels_of(picture: Picture) -> Any:
    """The picture as an argument of rc.image."""
    if not isinstance(picture, Planes):
        return picture
    return picture[:2] if picture.v is None else picture[:3]


def shape_of(picture: Picture, options: FrameOptions | None) -> tuple[int, ...]:
    """The shape of the frame that a picture becomes."""
    shape = (*picture.y.shape, 3) if isinstance(picture, Planes) else picture.shape
    return shape if options is None else (options.height, options.width, *shape[2:])


def stacked(arrays: Sequence[Any]) -> Array:
    """Arrays of one shape as one, without a copy of a single one."""
    return arrays[0][None] if len(arrays) == 1 else np.stack(arrays)


class FrameMemory:
    """Memory for frames. It is used again when no array refers to it, because new pages cost as much as a resize.

    Args:
        most: The most unused blocks that are kept.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._spare: list[bytearray] = []

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        size = math.prod(shape) * dtype.itemsize
        try:
            block = self._spare.pop()
        except IndexError:  # another thread may have taken the last one
            block = bytearray()
        if len(block) < size:
            block = bytearray(size)
        flat = np.frombuffer(block, dtype, math.prod(shape))
        weakref.finalize(flat, self._give_back, block).atexit = False  # every view holds a reference to `flat`
        return flat.reshape(shape)

    def _give_back(self, block: bytearray) -> None:
        if len(self._spare) < self.most:
            self._spare.append(block)
