"""Clouds and depth images out of files. The engine reads them (robocache._core); here they get their names."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache import _core

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]


class Cloud(NamedTuple):
    """Points, and what the file says about each of them."""

    points: NDArray[np.floating[Any]]  # [N, 3] float32; float64 where the file's numbers need it
    fields: dict[str, NDArray[Any]]  # all but x, y and z, in the file's order: [N] or [N, count], of the file's dtype
    shape: tuple[int, ...]  # (N,), or (height, width) of an organised cloud: points.reshape(*shape, 3)
    viewpoint: tuple[float, ...] | None  # PCD: where the sensor was, x y z and the quaternion w x y z

    def __repr__(self) -> str:
        fields = ", ".join(f"{name!r}: {array.dtype} {list(array.shape)}" for name, array in self.fields.items())
        organised = f", shape {self.shape}" if len(self.shape) == 2 else ""
        return f"Cloud(points {self.points.dtype} {list(self.points.shape)}, fields {{{fields}}}{organised})"


def read_cloud(path: Path) -> Cloud:
    """A cloud from a PCD (ascii, binary, binary_compressed), PLY (ascii, binary), NPY, or KITTI or nuScenes .bin file.

    What the file is, its content says; only .bin goes by its name. Points that are not finite are kept. A packed PCD
    colour becomes the field "rgb", uint8 [N, 3], and of `rgba` also "alpha"; the columns of a plain NPY array after the
    third are the field "extra". A file that is missing, truncated, lies about its sizes, or holds text where numbers
    belong raises FileError with a sentence, before memory is taken for what it claims.
    """
    points, fields, height, width, viewpoint = _core.read_cloud(os.fsencode(path))
    return Cloud(points, fields, (len(points),) if height == 1 else (height, width), viewpoint)


def read_depth(path: Path) -> NDArray[np.uint16]:
    """A depth image [H, W] from a 16-bit grayscale PNG: the values as they are stored, no gamma and no scale."""
    return _core.read_depth(os.fsencode(path))
