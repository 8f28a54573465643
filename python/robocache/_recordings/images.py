"""Images of recordings as arrays. The stream's metadata has the other fields of the camera's messages.

Colour is uint8 [H, W, 3], RGB, whatever the encoding: raw images in any order of channels, gray ones, JPEG, PNG. Depth
is [H, W] in its own dtype.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from robocache._core import FileError
from robocache._recordings.mosaic import BAYER, INTERLEAVED, debayered, from_interleaved
from robocache._recordings.source import Array
from robocache._recordings.streams import Packed
from robocache._recordings.words import need

# For each ROS encoding: dtype, channels, and the order that makes them RGB; of colours that are computed, any.
RAW: dict[str, tuple[str, int, tuple[int, ...]]] = {
    "rgb8": ("u1", 3, (0, 1, 2)),
    "bgr8": ("u1", 3, (2, 1, 0)),
    "rgba8": ("u1", 4, (0, 1, 2)),
    "bgra8": ("u1", 4, (2, 1, 0)),
    "8UC3": ("u1", 3, (2, 1, 0)),
    "mono8": ("u1", 1, (0,)),
    "8UC1": ("u1", 1, (0,)),
    **dict.fromkeys(BAYER, ("u1", 1, (0, 1, 2))),
    **dict.fromkeys(INTERLEAVED, ("u1", 2, (0, 1, 2))),
    "mono16": ("u2", 1, ()),
    "16UC1": ("u2", 1, ()),
    "32FC1": ("f4", 1, ()),
}


class Images(Packed):
    """Images, decoded on access: images[i] is uint8 [H, W, 3] in RGB, or [H, W] for depth."""

    def __init__(self, name: str, metadata: Mapping[str, str], *given: Any) -> None:
        super().__init__(*given)
        self.name, self.metadata = name, metadata

    def _take(self, wanted: Sequence[int]) -> list[Array]:
        return [as_colour(image) for image in self.natives(wanted)]

    def natives(self, wanted: Sequence[int]) -> list[Array]:
        """These images; gray ones as [H, W, 1]."""
        return [native(f"{self.name}: image {k}", self.as_stored(k), self.metadata) for k in wanted]


def shaped(sample: Array, metadata: Mapping[str, str]) -> Array | None:
    """The bytes of a raw image as [H, W] or [H, W, C], channels in the encoding's order; None if they do not fit."""
    try:
        kind, channels, _ = RAW[metadata["encoding"]]
        height, width, step = (int(metadata[key]) for key in ("height", "width", "step"))
    except (KeyError, ValueError):
        return None
    item = np.dtype(kind).itemsize * channels
    if step < width * item or height * step > len(sample) or height < 1 or width < 1:
        return None
    rows = sample[: height * step].reshape(height, step)[:, : width * item]
    stored = np.dtype((">" if metadata.get("is_bigendian") == "1" else "<") + kind)
    image = np.ascontiguousarray(rows).view(stored).astype(kind, copy=False)
    return image.reshape(height, width, channels) if channels > 1 else image


def is_image(metadata: Mapping[str, str]) -> bool:
    return (
        metadata.get("kind") in ("image", "video", "frames")
        or {"height", "width", "encoding"} <= set(metadata)
        or "format" in metadata
    )


def is_colour(metadata: Mapping[str, str]) -> bool:
    """Whether `picture` gives uint8 [H, W, 3]; depth images give [H, W] in their own dtype."""
    if metadata.get("kind") == "frames" or metadata.get("depth") == "true":
        return metadata.get("depth") != "true"
    if "format" in metadata and "encoding" not in metadata:
        return not is_packed_depth(metadata["format"])
    known = RAW.get(metadata.get("encoding", ""))
    return known is None or bool(known[2])


def picture(where: str, sample: Array, metadata: Mapping[str, str]) -> Array:
    """An image decoded: uint8 [H, W, 3] in RGB, or [H, W] for depth. A decoded image is returned as it is."""
    return sample if sample.ndim > 1 else as_colour(native(where, sample, metadata))


def as_colour(image: Array) -> Array:
    """A gray image [H, W, 1] with its channel repeated three times. Other images are returned unchanged."""
    return np.repeat(image, 3, axis=2) if image.ndim == 3 and image.shape[2] == 1 else image


def native(where: str, sample: Array, metadata: Mapping[str, str]) -> Array:
    """An image decoded: uint8 [H, W, 3] in RGB, gray [H, W, 1], or [H, W] for depth."""
    encoding = metadata.get("encoding", "")
    if encoding not in RAW:
        return unpacked(where, sample.tobytes(), metadata)
    _, channels, order = RAW[encoding]
    image = shaped(sample, metadata)
    if image is None:
        height, width, step = (metadata.get(key, "unknown") for key in ("height", "width", "step"))
        if "varies" in (height, width, step):
            raise FileError(
                f"{where}: the size of the images varies from message to message, and is not known for each; "
                "samples.as_stored(i) has their bytes"
            )
        raise FileError(
            f"{where}: an image of {height} x {width} {encoding} has {len(sample)} bytes and a step of {step}"
        )
    if not order:
        return image
    if encoding in BAYER and min(image.shape) > 1:
        return debayered(image, BAYER[encoding])
    if encoding in INTERLEAVED and image.shape[1] % 2 == 0:
        return from_interleaved(image, encoding)
    if encoding in BAYER or encoding in INTERLEAVED:
        raise FileError(f"{where}: an image of {image.shape[0]} x {image.shape[1]} {encoding}, which has no such size")
    return np.ascontiguousarray(image.reshape(*image.shape[:2], channels)[..., list(order)])


# ---- JPEG and PNG

# Detected by their first bytes, because the format that a message names is often wrong.
CODECS = ((b"\xff\xd8\xff", "JPEG"), (b"\x89PNG\r\n\x1a\n", "PNG"), (b"BM", "BMP"), (b"RIFF", "WEBP"))
MOST_PIXELS = 1 << 27  # of an image, 384 MiB in colour: larger images are refused before memory is allocated
DEPTH_HEADER = 12  # bytes before the PNG of compressed_depth_image_transport: an int32 and two float32


def is_packed_depth(format: str) -> bool:
    return "compresseddepth" in format.lower()


def unpacked(where: str, data: bytes, metadata: Mapping[str, str]) -> Array:
    """Decodes a JPEG, PNG, BMP or WebP."""
    what = metadata.get("format") or metadata.get("encoding") or "unknown"
    depth = is_packed_depth(what)
    begin = DEPTH_HEADER if depth else 0
    codec = next((name for magic, name in CODECS if data.startswith(magic, begin)), None)
    if codec is None:
        raise FileError(
            f"{where}: an image of the format {what!r} cannot be decoded: it is not a JPEG, PNG, BMP or WebP; "
            "samples.as_stored(i) has its bytes"
        )
    image = decoded(where, what, data[begin:], codec)
    if depth and what.startswith("32FC1"):  # quantised: a / (q - b); 0 means no reading
        a, b = np.frombuffer(data, "<f4", 2, 4)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(image > 0, a / (image.astype(np.float32) - b), np.float32(np.nan)).astype(np.float32)
    return image


def decoded(where: str, what: str, data: bytes, codec: str) -> Array:
    """Decodes with Pillow, whose bits depend neither on the CPU nor on the machine."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ModuleNotFoundError:
        raise need("Pillow", "video", f"{where}: decoding an image") from None
    try:
        with Image.open(io.BytesIO(data), formats=(codec,)) as image:
            width, height = image.size
            if width * height > MOST_PIXELS:
                raise ValueError(f"it is {width} x {height}; images of more than {MOST_PIXELS:,} pixels are refused")
            if image.mode in ("I", "I;16", "I;16B"):
                return np.asarray(image).astype(np.uint16)
            if image.mode in ("1", "L", "LA"):
                return np.array(image.convert("L"))[..., None]
            return np.array(image.convert("RGB"))  # a copy: Pillow's own memory is read only
    except UnidentifiedImageError:  # its text has an address in memory
        raise FileError(
            f"{where}: an image of the format {what!r} cannot be decoded: its {len(data):,} bytes are no whole {codec}"
        ) from None
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise FileError(f"{where}: an image of the format {what!r} cannot be decoded: {error}") from None
