"""What cameras saw before and after the worst moments, as small JPEGs inside the page."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from robocache._cache.framed import is_camera
from robocache._cache.tier import KIND
from robocache._core import FileError
from robocache._recordings.recording import Recording
from robocache._recordings.source import Array
from robocache._recordings.streams import join
from robocache._recordings.sync import Watch
from robocache._recordings.words import need
from robocache._report.moments import Moment, beside

MOST_CAMERAS = 2
SIZE = (176, 132)  # pixels: the largest thumbnail
QUALITY = 60
BUDGET = 96 << 10  # bytes of all thumbnails together


def cameras_of(watches: Mapping[str, Watch]) -> list[str]:
    """The streams whose pictures are shown. Frames in a cache are shown only if their camera is not in `watches`."""
    found = []
    for name, watch in watches.items():
        metadata = watch.info.metadata
        if is_camera(watch.info) or (metadata.get("kind") == KIND and metadata.get("of") not in watches):
            found.append(name)
    return found


def add_pictures(
    recording: Recording, watches: Mapping[str, Watch], moments: Sequence[Moment], budget: int
) -> list[str]:
    """Adds thumbnails to the moments until `budget` bytes are spent. Returns the reasons why some are missing.

    A moment of a camera shows that camera; others show the first two.
    """
    cameras, spent = cameras_of(watches), 0
    why: list[str] = []
    for moment in moments:
        chosen = sorted(cameras, key=lambda name: name != moment.stream)[:MOST_CAMERAS]
        for camera in chosen:
            for when, stamp, arrival in beside(moment, watches[camera]):
                if spent > budget:
                    return [*dict.fromkeys(why), "further thumbnails are left out, to keep the page small"]
                try:
                    picture = picture_at(recording, camera, moment.episode, stamp, arrival)
                    data, size = thumbnail(picture)
                except Exception as error:  # decoders have errors of their own; a picture does not stop the report
                    why.append(f"{camera}: no thumbnail: {error}")
                    continue
                spent += len(data)
                seconds = (stamp - moment.start if when == "before" else stamp - moment.end) * 1e-9
                told = {"camera": camera, "when": when, "seconds": f"{seconds:+.3f}"}
                moment.pictures.append(told | {"width": str(size[0]), "height": str(size[1]), "data": data})
    return list(dict.fromkeys(why))


def picture_at(recording: Recording, camera: str, episode: int, stamp: int, arrival: int) -> Array:
    """One picture. Only the messages that arrived at this moment are read, by the file's index if it has one."""
    source = recording._source
    for batch in source.batches([camera], episode, arrival, arrival + 1):
        if not (batch.times == stamp).any() or batch.stream != camera:
            continue
        stream = join([batch], source)
        samples: Any = stream.values if stream.samples is None else stream.samples
        k = int(np.flatnonzero(np.asarray(stream.times) == stamp)[0])
        return np.asarray(samples[k])
    raise FileError(f"the picture at {stamp} ns is not there any more")


def thumbnail(picture: Array) -> tuple[str, tuple[int, int]]:
    """A data URI and its size in pixels. Depth goes from black (near) to white (far); missing readings are black."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise need("Pillow", "video", "A thumbnail") from None
    if picture.ndim not in (2, 3) or not picture.size:
        raise ValueError(f"an array of shape {picture.shape} is no picture")
    if picture.ndim == 3:
        picture = picture[:, :, :3] if picture.shape[2] > 2 else picture[:, :, 0]
    if picture.dtype != np.uint8:
        picture = gray_depth(picture) if picture.ndim == 2 else eight_bits(picture)
    image = Image.fromarray(np.ascontiguousarray(picture))
    image.thumbnail(SIZE)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=QUALITY, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}", image.size


def eight_bits(picture: Array) -> Array:
    """Colours from 0 to 255. The largest integer of the dtype becomes 255, and so does 1 of a float dtype."""
    full = float(np.iinfo(picture.dtype).max) if picture.dtype.kind in "iu" else 1.0
    share = np.nan_to_num(picture.astype(np.float64) / full, nan=0.0)
    return np.rint(np.clip(share, 0, 1) * 255).astype(np.uint8)


def gray_depth(picture: Array) -> Array:
    depth = picture.astype(np.float64)
    there = np.isfinite(depth) & (depth > 0)
    if not there.any():
        return np.zeros(depth.shape, np.uint8)
    near, far = np.percentile(depth[there], (1, 99)).tolist()
    gray = np.clip((depth - near) / max(far - near, 1e-9), 0, 1) * 223 + 32
    return np.where(there, gray, 0).astype(np.uint8)
