"""JPEG and PNG in HDF5 data sets: a picture for each row.

Files store them as arrays of varying length (vlen uint8), as strings of bytes, or as rows padded with zeros. The first
sample of a data set shows whether it holds pictures.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache._recordings.images import CODECS
from robocache._recordings.source import Array

PICTURES_AT_ONCE = 64  # that are read, if their lengths vary
SHORTEST = 64  # bytes: a shorter row cannot be a picture
KINDS = ("JPEG", "PNG")  # neither ends with a zero byte, so zeros after a picture are padding


def encoding_of(stored: Any, inner: Any) -> str:
    """ "jpeg" or "png" if the samples of a data set are such pictures, else "".

    Args:
        inner: The dtype of its samples, if they are arrays of varying length.
    """
    count, *widths = stored.shape
    is_string = stored.dtype.kind == "S" and not widths
    is_varying = inner == np.uint8 and not widths
    is_padded = stored.dtype == np.uint8 and len(widths) == 1 and widths[0] >= SHORTEST
    if not count or not (is_string or is_varying or is_padded):
        return ""
    first = as_bytes(stored[0])
    return next((kind.lower() for magic, kind in CODECS if kind in KINDS and first.startswith(magic)), "")


def packed(values: Any) -> tuple[Array, NDArray[np.int64]]:
    """The bytes of all pictures without their padding, and the number of bytes of each."""
    pictures = [as_bytes(value).rstrip(b"\0") for value in values]
    lengths = np.array([len(picture) for picture in pictures], np.int64)
    return np.frombuffer(b"".join(pictures), np.uint8), lengths


def as_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else np.asarray(value, np.uint8).tobytes()
