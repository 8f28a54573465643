"""The frame tier: the frames that a cache keeps of its cameras, decoded and resized once when the cache was built.

Frames are a stream of the same episode: uint8 [H, W, C], or uint16 [H, W] for depth, at the camera's own times. If the
cache also keeps the camera's own samples, the stream of frames is named `CAMERA/frames`, and its metadata names the
camera (`of`). Users do not see that name: the camera's `samples` are its frames. If the cache keeps only the frames,
they are the camera's stream.

A frame that could not be decoded is left out. The episode's metadata then has `lost` (how many) and `damage` (why).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache._core import FileError
from robocache._recordings.frame_options import from_text
from robocache._recordings.images import as_colour, is_image
from robocache._recordings.planes import converted
from robocache._recordings.source import Array, StreamInfo
from robocache._recordings.streams import Samples

KIND = "frames"  # metadata["kind"] of a stream of frames
TYPE = "robocache/frames"


def frames_name(camera: str) -> str:
    """The stream of frames of a camera whose own samples the cache keeps too."""
    return f"{camera}/frames"


def tiers_in(infos: Mapping[str, StreamInfo], is_there: Callable[[str], bool]) -> dict[str, str]:
    """The streams of frames whose cameras the cache keeps too: {camera: the frames' stream}.

    Args:
        is_there: Whether any episode has the stream. No episode has it if the cache was built again without frames.
    """
    return {
        info.metadata["of"]: name
        for name, info in infos.items()
        if info.metadata.get("kind") == KIND and info.metadata.get("of") in infos and is_there(name)
    }


def served(info: StreamInfo, frames: StreamInfo) -> StreamInfo:
    """A camera's info with the options of its frames. `is_numbered` recognises a camera with frames by them."""
    of_frames = {"frames": frames.metadata.get("frames", "varies")}
    if not is_image(info.metadata):  # an array of depth images, as in HDF5
        of_frames |= {"kind": "image", "depth": frames.metadata.get("depth", "")}
    return info._replace(metadata={**info.metadata, **of_frames})


class TierSamples(Samples):
    """A camera's frames in a cache: uint8 [H, W, 3] in RGB, [H, W, 1] for a gray camera, or uint16 [H, W] for depth.

    samples[i] is a read-only view of the cache's file. A sample without a frame is decoded from the source and resized
    the same way, with the same bits.

    Attributes:
        rows: The frames in the cache, [M, H, W, C], mapped from its files.
        source: The camera's own samples, as recorded. None if the cache keeps only the frames.
    """

    def __init__(
        self,
        where: str,
        rows: Array,
        options: str,
        source: Any = None,
        places: NDArray[np.int64] | None = None,
        warn: Callable[[], None] | None = None,
    ) -> None:
        self.where, self.rows, self.options, self.source = where, rows, options, source
        self._places, self._warn = places, warn  # places: the row of each sample's frame, or -1

    def __len__(self) -> int:
        return len(self.rows) if self._places is None else len(self._places)

    def _take(self, wanted: Sequence[int]) -> list[Array]:
        places = list(wanted) if self._places is None else self._places[list(wanted)].tolist()
        frames: list[Array] = []
        for k, place in zip(
            wanted, places, strict=True
        ):  # in Python 3.11 a comprehension would be one more stack frame
            frames.append(self.rows[place] if place >= 0 else self._decoded(k))
        return frames

    def _decoded(self, k: int) -> Array:
        if self._warn is not None:
            self._warn()
        if self.options == "varies":
            raise FileError(f"{self.where}: sample {k} has no frame, and its options are not known")
        image = native_of(self.source, k)
        channels = self.rows.shape[3:]
        return converted([as_colour(image) if channels == (3,) else image], from_text(self.options))[0]

    def as_stored(self, index: int) -> Array:
        """The bytes of sample i as recorded, for images whose samples the cache keeps."""
        stored = getattr(self.source, "as_stored", None)
        if stored is None:
            raise FileError(f"{self.where}: the cache does not have sample {index} as it was recorded")
        found: Array = stored(index)
        return found

    def __repr__(self) -> str:
        return f"TierSamples({len(self)} frames of {' x '.join(map(str, self.rows.shape[1:3]))})"


class DenseSamples(Samples):
    """The samples of a stream whose values are images, [N, H, W, C]."""

    def __init__(self, values: Array) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def _take(self, wanted: Sequence[int]) -> list[Array]:
        return [self.values[k] for k in wanted]


def native_of(source: Any, k: int) -> Array:
    """Sample k decoded, gray as [H, W, 1]."""
    image: Array = source.natives([k])[0] if hasattr(source, "natives") else dense(source[k])
    return image


def dense(image: Array) -> Array:
    """An image from a stream of arrays: RGB (RGBA without its alpha), gray, or depth."""
    return image[..., :3] if image.ndim == 3 and image.shape[2] == 4 else image


def places_of(camera: tuple[Array, Array], frames: tuple[Array, Array]) -> NDArray[np.int64] | None:
    """The row of each sample's frame, or -1. None: sample k has row k. Both arguments are (times, arrivals).

    Both are sorted by time, equal times in recorded order, and some samples may have no frame. If several samples share
    time and arrival and only some of them have frames, it is not known which: then none of them gets a frame.
    """
    if len(camera[0]) == len(frames[0]):
        return None
    stamps = np.concatenate([np.stack(camera, axis=1), np.stack(frames, axis=1)])
    order = np.lexsort(stamps.T)
    numbers = np.empty(len(stamps), np.int64)  # equal where time and arrival are
    numbers[order] = np.cumsum(np.diff(stamps[order], axis=0, prepend=stamps[order[:1]]).any(axis=1))
    samples, rows = numbers[: len(camera[0])], numbers[len(camera[0]) :]
    count = len(stamps)
    has_all = np.bincount(samples, minlength=count) == np.bincount(rows, minlength=count)
    taken, given = np.flatnonzero(has_all[samples]), np.flatnonzero(has_all[rows])
    places = np.full(len(samples), -1, np.int64)
    places[taken[np.argsort(samples[taken], kind="stable")]] = given[np.argsort(rows[given], kind="stable")]
    return places


class MissingFrames:
    """Warns, once for each stream of a cache, that samples without frames are decoded on access."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._streams: set[str] = set()

    def __call__(self, stream: str, episode: str) -> None:
        if stream in self._streams:
            return
        self._streams.add(stream)
        warnings.warn(
            f'{self.path}: stream "{stream}" has no frame of some samples, as in episode {episode}; they are decoded '
            "from the source on access, with the same bits",
            stacklevel=5,  # the line that takes samples[i]
        )
