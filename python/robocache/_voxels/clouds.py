"""Point clouds and depth images from files. The engine (robocache._core) reads them."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache import _core

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]


class Cloud(NamedTuple):
    """A point cloud, and what its file says about each point.

    Attributes:
        points: [N, 3] float32, or float64 if the file's numbers need it.
        fields: All other columns in the file's order, with the file's dtypes: [N] or [N, count].
        shape: (N,), or (height, width) of an organised cloud: `points.reshape(*shape, 3)`.
        viewpoint: PCD only: the sensor's position x, y, z and its quaternion w, x, y, z.
    """

    points: NDArray[np.floating[Any]]
    fields: dict[str, NDArray[Any]]
    shape: tuple[int, ...]
    viewpoint: tuple[float, ...] | None

    def __repr__(self) -> str:
        fields = ", ".join(f"{name!r}: {array.dtype} {list(array.shape)}" for name, array in self.fields.items())
        organised = f", shape {self.shape}" if len(self.shape) == 2 else ""
        return f"Cloud(points {self.points.dtype} {list(self.points.shape)}, fields {{{fields}}}{organised})"


def read_cloud(path: Path) -> Cloud:
    """Reads a point cloud: PCD (ascii, binary, binary_compressed), PLY (ascii, binary), NPY, KITTI or nuScenes .bin.

    The format is detected from the file's content; only .bin is known by its name. Points that are not finite are kept.
    A packed PCD colour becomes the field "rgb", uint8 [N, 3], and `rgba` also "alpha". The columns of a plain NPY array
    after the third become the field "extra".

    Args:
        path: The file.

    Returns:
        A `Cloud`.

    Raises:
        FileError: The file is missing or truncated, gives wrong sizes, or has text where numbers belong. Sizes are
            checked before memory is allocated for them.
    """
    points, fields, height, width, viewpoint = _core.read_cloud(os.fsencode(path))
    return Cloud(points, fields, (len(points),) if height == 1 else (height, width), viewpoint)


def read_depth(path: Path) -> NDArray[np.uint16]:
    """Reads a depth image from a 16-bit grayscale PNG: the values as stored, without gamma or scale.

    Args:
        path: The file.

    Returns:
        uint16 [H, W].

    Raises:
        FileError: The file is missing, damaged, or another kind of image.
    """
    return _core.read_depth(os.fsencode(path))
