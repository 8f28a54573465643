"""Images of recordings as arrays: what a camera's messages hold beside their bytes is in the stream's metadata."""

from __future__ import annotations

import io
from collections.abc import Mapping
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
    """Raw images: images[i] is [H, W] or [H, W, C], as recorded; its bytes where the metadata do not tell the shape."""

    def __init__(self, metadata: Mapping[str, str], *given: Any) -> None:
        super().__init__(*given)
        self.metadata = metadata

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        if isinstance(index, slice):
            return found
        image = shaped(found, self.metadata)
        return found if image is None else image


def shaped(sample: Array, metadata: Mapping[str, str]) -> Array | None:
    """Bytes as [H, W] or [H, W, C] of the encoding's dtype and order; None where they cannot be that."""
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
    known = RAW.get(metadata.get("encoding", ""))
    return known is None or bool(known[2])


def picture(where: str, sample: Array, metadata: Mapping[str, str]) -> Array:
    """A sample as an image: uint8 [H, W, 3], or of depth [H, W]."""
    encoding = metadata.get("encoding", "")
    if encoding not in RAW:
        return sample if sample.ndim > 1 else unpacked(where, sample.tobytes(), metadata)
    _, channels, order = RAW[encoding]
    image = sample if sample.ndim > 1 else shaped(sample, metadata)
    if image is None:
        height, width, step = (metadata.get(key, "unknown") for key in ("height", "width", "step"))
        if "varies" in (height, width, step):
            raise FileError(f"{where}: images whose size varies from message to message cannot be put in one video")
        raise FileError(
            f"{where}: an image of {height} x {width} {encoding} has {len(sample)} bytes and a step of {step}"
        )
    if not order:
        return image
    return image[..., list(order)] if channels > 1 else np.stack([image] * 3, axis=-1)


def unpacked(where: str, data: bytes, metadata: Mapping[str, str]) -> Array:
    """A JPEG or PNG."""
    try:
        import av
    except ModuleNotFoundError:
        raise need("av", "video", f"{where}: unpacking an image") from None
    try:
        with av.open(io.BytesIO(data)) as container:
            frame: Any = next(container.decode(video=0))  # type: ignore[union-attr, unused-ignore]
            if frame.format.name.startswith("gray16"):
                return frame.to_ndarray().astype(np.uint16)
            return frame.to_ndarray(format="rgb24")
    except (av.error.FFmpegError, StopIteration, IndexError, ValueError) as error:
        what = metadata.get("format") or metadata.get("encoding") or "unknown"
        raise FileError(f"{where}: an image of the format {what!r} cannot be unpacked: {error}") from None
