"""Images of recordings as arrays. The stream's metadata has what a camera's messages say beside their bytes.

Colour is uint8 [H, W, 3], RGB, whatever the encoding: raw images in any order of channels, gray ones, JPEG, PNG. Depth
is [H, W] in its own dtype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from robocache._core import FileError
from robocache._recording import Array, Packed, need

# Of ROS encodings: dtype, channels, and the order that makes them RGB.
RAW: dict[str, tuple[str, int, tuple[int, ...]]] = {
    "rgb8": ("u1", 3, (0, 1, 2)),
    "bgr8": ("u1", 3, (2, 1, 0)),
    "rgba8": ("u1", 4, (0, 1, 2)),
    "bgra8": ("u1", 4, (2, 1, 0)),
    "8UC3": ("u1", 3, (2, 1, 0)),
    "mono8": ("u1", 1, (0, 0, 0)),
    "8UC1": ("u1", 1, (0, 0, 0)),
    "mono16": ("u2", 1, ()),
    "16UC1": ("u2", 1, ()),
    "32FC1": ("f4", 1, ()),
}


class Images(Packed):
    """Images, decoded when they are asked for: images[i] is uint8 [H, W, 3], RGB, or of depth [H, W]."""

    def __init__(self, name: str, metadata: Mapping[str, str], *given: Any) -> None:
        super().__init__(*given)
        self.name, self.metadata = name, metadata

    def _take(self, wanted: Sequence[int]) -> list[Array]:
        return [picture(f"{self.name}: image {k}", self.as_stored(k), self.metadata) for k in wanted]


def shaped(sample: Array, metadata: Mapping[str, str]) -> Array | None:
    """Bytes of a raw image as [H, W] or [H, W, C], channels in the encoding's order; None where they cannot be that."""
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
        metadata.get("kind") in ("image", "video")
        or {"height", "width", "encoding"} <= set(metadata)
        or "format" in metadata
    )


def is_colour(metadata: Mapping[str, str]) -> bool:
    """Whether `picture` gives uint8 [H, W, 3]; depth images give [H, W] in their own dtype."""
    if "format" in metadata and "encoding" not in metadata:
        return not is_packed_depth(metadata["format"])
    known = RAW.get(metadata.get("encoding", ""))
    return known is None or bool(known[2])


def picture(where: str, sample: Array, metadata: Mapping[str, str]) -> Array:
    """The bytes of an image decoded: uint8 [H, W, 3], RGB, or of depth [H, W]. What is decoded already stays."""
    if sample.ndim > 1:
        return sample
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
    return np.ascontiguousarray(image[..., list(order)]) if channels > 1 else np.stack([image] * 3, axis=-1)


# ---- JPEG and PNG

# By their first bytes: what a message says of its format is often wrong, and a guess may take it for anything.
CODECS = ((b"\xff\xd8\xff", "mjpeg"), (b"\x89PNG\r\n\x1a\n", "png"), (b"BM", "bmp"), (b"RIFF", "webp"))
MOST_PIXELS = 1 << 28  # of an image, 768 MiB in colour: a larger one is refused before memory is taken
DEPTH_HEADER = 12  # bytes before the PNG of compressed_depth_image_transport: an int32 and two float32


def is_packed_depth(format: str) -> bool:
    return "compresseddepth" in format.lower()


def unpacked(where: str, data: bytes, metadata: Mapping[str, str]) -> Array:
    """A JPEG, PNG, BMP or WebP."""
    what = metadata.get("format") or metadata.get("encoding") or "unknown"
    depth = is_packed_depth(what)
    begin = DEPTH_HEADER if depth else 0
    codec = next((name for magic, name in CODECS if data.startswith(magic, begin)), None)
    if codec is None:
        raise FileError(
            f"{where}: an image of the format {what!r} cannot be decoded: it is no JPEG, PNG, BMP or WebP; "
            "samples.as_stored(i) has its bytes"
        )
    image = decoded(where, what, data[begin:], codec)
    if depth and what.startswith("32FC1"):  # quantised: a / (q - b); 0 is no reading
        a, b = np.frombuffer(data, "<f4", 2, 4)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(image > 0, a / (image.astype(np.float32) - b), np.float32(np.nan)).astype(np.float32)
    return image


def decoded(where: str, what: str, data: bytes, codec: str) -> Array:
    """Nothing is kept between two images: a decoder that lived through a fork, or in two threads, could hang."""
    try:
        import av
        from av.video.reformatter import VideoReformatter
    except ModuleNotFoundError:
        raise need("av", "video", f"{where}: decoding an image") from None
    from robocache._video import to_rgb

    try:
        decoder: Any = av.CodecContext.create(codec, "r")
        decoder.thread_count = 1
        decoder.options = {"max_pixels": str(MOST_PIXELS)}
        frames = decoder.decode(av.Packet(data)) or decoder.decode(None)
        frame = frames[0]
        if frame.format.name.startswith("gray16"):
            image: Array = frame.to_ndarray().astype(np.uint16)
            return image
        return to_rgb(frame, VideoReformatter())
    except (av.error.FFmpegError, IndexError, ValueError) as error:
        raise FileError(f"{where}: an image of the format {what!r} cannot be decoded: {error}") from None
