"""Images as ROS 2 messages, which an export writes into MCAP for our reader and for viewers."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import numpy as np

from robocache._recordings.images import RAW
from robocache._recordings.source import Array

RULE = "=" * 80
HEADER = f"""{RULE}
MSG: std_msgs/Header
builtin_interfaces/Time stamp
string frame_id
{RULE}
MSG: builtin_interfaces/Time
int32 sec
uint32 nanosec
"""
IMAGE, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
SCHEMAS = {
    IMAGE: "std_msgs/Header header\nuint32 height\nuint32 width\nstring encoding\nuint8 is_bigendian\nuint32 step\n"
    f"uint8[] data\n{HEADER}",
    COMPRESSED: f"std_msgs/Header header\nstring format\nuint8[] data\n{HEADER}",
}


def kind_of(metadata: Mapping[str, str]) -> str | None:
    """The message type for a stream's samples; None if the size of its raw images is not known."""
    if metadata.get("kind") == "video":
        return IMAGE
    if metadata.get("encoding") not in RAW:
        return COMPRESSED
    sizes = (metadata.get(key, "") for key in ("height", "width", "step"))
    return IMAGE if all(size.isdecimal() for size in sizes) else None


def frame(at: int, image: Array) -> bytes:
    """The message of a decoded frame: uint8 [H, W, 3] in RGB, or depth, uint16 [H, W]."""
    height, width = image.shape[:2]
    if image.ndim == 2:
        return raw(at, height, width, "16UC1", 0, width * 2, np.ascontiguousarray(image, "<u2").tobytes())
    return raw(at, height, width, "rgb8", 0, width * 3, np.ascontiguousarray(image).tobytes())


def stored(at: int, sample: Array, metadata: Mapping[str, str]) -> bytes:
    """The message of a sample with its bytes as recorded."""
    if kind_of(metadata) == IMAGE:
        height, width, step = (int(metadata[key]) for key in ("height", "width", "step"))
        big = int(metadata.get("is_bigendian") == "1")
        return raw(at, height, width, metadata["encoding"], big, step, sample.tobytes())
    data = sample.tobytes()
    return written(at, (text(metadata.get("format") or format_of(data)), sequence(data)))


def format_of(data: bytes) -> str:
    return "png" if data.startswith(b"\x89PNG") else "jpeg"


def raw(at: int, height: int, width: int, encoding: str, is_bigendian: int, step: int, data: bytes) -> bytes:
    number, byte = (4, "<I"), (1, "<B")
    fields = [(*number, height), (*number, width), text(encoding), (*byte, is_bigendian), (*number, step)]
    return written(at, (*fields, sequence(data)))


# ---- CDR: a field is (alignment, struct format, value). If the value is bytes, the format is that of their length.

Field = tuple[int, str, int | bytes]


def text(value: str) -> Field:
    return sequence(value.encode() + b"\0")


def sequence(data: bytes) -> Field:
    return (4, "<I", data)


def written(at: int, fields: tuple[Field, ...]) -> bytes:
    """A message: the header with its stamp and no frame, then the fields."""
    seconds, nanoseconds = divmod(at, 1_000_000_000)
    parts = [b"\0\1\0\0", struct.pack("<iI", seconds, nanoseconds), struct.pack("<I", 1), b"\0"]
    size = 13  # after the four bytes of the encapsulation header
    for alignment, form, value in fields:
        pad = -size % alignment
        head = struct.pack(form, len(value) if isinstance(value, bytes) else value)
        body = value if isinstance(value, bytes) else b""
        parts += [b"\0" * pad, head, body]
        size += pad + len(head) + len(body)
    return b"".join(parts)
