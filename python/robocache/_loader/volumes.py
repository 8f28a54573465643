"""Volumes: from the clouds or depth images of a key to a grid of voxels for each step of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache._align.results import Aligned
from robocache._cache.joined import NEVER
from robocache._cache.prepare import is_numbered
from robocache._loader.engine import Draws, Engine, Member, Rows, is_picture
from robocache._loader.entries import as_dtype, to_float32
from robocache._loader.keys import DTYPES, Key
from robocache._loader.pictures import Picture
from robocache._recordings.images import is_colour
from robocache._recordings.source import StreamInfo
from robocache._recordings.words import missing, named
from robocache._voxels.grid import Grid
from robocache._voxels.voxelize import voxelize, voxelize_depth

AXES = ("x", "y", "z")


class Volume:
    """A key with `voxels=`: how its tensor is made.

    The clouds or depth images of all steps go through one call of `rc.voxelize` or `rc.voxelize_depth`. A step where no
    sample exists is 0.

    Attributes:
        shape: The shape of a step: [X, Y, Z], or with features [X, Y, Z, F].
        dtype: The name of the dtype.
    """

    def __init__(self, name: str, key: Key, member: Member) -> None:
        assert key.voxels is not None
        self.name, self.key, self.member = name, key, member
        if key.dtype is not None and key.dtype not in DTYPES:
            raise ValueError(f'Loader: key "{name}": dtype is {key.dtype}; voxels are {", ".join(DTYPES)}')
        self._options = dict(key.voxels)
        self._grid = Grid(**self._options.pop("grid"))
        self._intrinsics = self._options.pop("intrinsics", None)
        features = self._options.pop("features", None)
        if "pose" in self._options:
            self._options["pose"] = np.asarray(self._options["pose"], np.float64)
        self._depth: Picture | None = None
        self._columns: list[int] = []
        self._features: list[int] | None = None
        if self._intrinsics is None:
            self._columns = columns_of(name, member)
            self._features = None if features is None else self._channels(features)
        elif not is_depth(member.info):
            raise ValueError(
                f'Loader: key "{name}": voxels has intrinsics=, and the samples of stream "{member.stored}" are no '
                "depth images"
            )
        elif member.camera is not None:
            self._depth = Picture(name, key.replace(voxels=None, dtype="float32"), member)
        with named(f'Loader: key "{name}"'):  # what voxelize says of wrong options, before the first batch
            values = self._voxelized(self._nothing()).values
        self.shape, self.dtype = tuple(values.shape[1:]), key.dtype or str(values.dtype)

    def made(self, aligned: Aligned[Any], rows: Rows, engine: Engine, draws: Draws | None) -> Any:
        """The tensor [B, T, *shape]. There are no draws."""
        never = aligned.age == NEVER
        if self._depth is not None:
            found = self._voxelized(self._depth.frames(aligned, rows, engine))
        elif self.member.camera is None:  # all samples have one size, so they are aligned like other values
            found = self._voxelized(aligned.values.reshape((-1, *self.member.info.shape)))
        else:
            points, offsets = self._looked_up(aligned, rows, engine)
            found = self._voxelized(engine.move(points), engine.move(offsets))
        values = found.values.reshape((*never.shape, *self.shape))
        if bool(never.any()):
            values[never] = 0
        return values if self.key.dtype is None else as_dtype(values, self.key.dtype)

    def _voxelized(self, samples: Any, offsets: Any = None) -> Any:
        """Clouds [N, points, channels], or packed [points, channels] with offsets; or depth images [N, H, W]."""
        if self._intrinsics is not None:
            return voxelize_depth(samples, self._intrinsics, self._grid, **self._options, check=False)
        features = None if self._features is None else to_float32(samples[..., self._features])
        points = samples if self._columns == [0, 1, 2] else samples[..., self._columns]
        return voxelize(points, self._grid, features=features, offsets=offsets, **self._options, check=False)

    def _nothing(self) -> NDArray[Any]:
        """One sample without a point."""
        info = self.member.info
        if self._intrinsics is not None:
            return np.zeros((1, *(info.shape if len(info.shape) > 1 else (1, 1))), np.uint16)
        return np.zeros((1, 0, info.shape[-1]), info.dtype)

    def _looked_up(self, aligned: Aligned[Any], rows: Rows, engine: Engine) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The points of all steps, one cloud after the other, and where each cloud begins."""
        index = np.asarray(aligned.index.cpu() if hasattr(aligned.index, "cpu") else aligned.index)
        samples, info = engine.samples[self.member.name], self.member.info
        none = np.zeros((0, *info.shape), info.dtype)
        places = np.repeat(rows.place, index.shape[1]).tolist()
        clouds = [
            samples[place][number] if number >= 0 else none
            for place, number in zip(places, index.ravel().tolist(), strict=True)
        ]
        ends = np.cumsum([len(cloud) for cloud in clouds], dtype=np.int64)
        return np.concatenate([none, *clouds]), np.concatenate([np.zeros(1, np.int64), ends])

    def _channels(self, features: Sequence[int | str]) -> list[int]:
        """The columns of the features, which are given by number or by name."""
        names, count, made = self.member.info.channels, self.member.info.shape[-1], []
        for each in features:
            if isinstance(each, str) and each not in names:
                raise ValueError(missing(f'Loader: key "{self.name}": voxels: the cloud has no channel', each, names))
            column = names.index(each) if isinstance(each, str) else each
            if not 0 <= column < count:
                raise ValueError(f'Loader: key "{self.name}": voxels: the cloud has {count} channels, and no {column}')
            made.append(column)
        return made


def is_depth(info: StreamInfo) -> bool:
    """Whether samples are depth images, as arrays [H, W] or as a camera's messages."""
    if not is_numbered(info) or len(info.shape) > 1:
        return len(info.shape) == 2
    return is_picture(info) and not is_colour(info.metadata)


def columns_of(name: str, member: Member) -> list[int]:
    """The columns of x, y and z: by the names of the channels, otherwise the first three."""
    info = member.info
    dimensions = 1 if info.ragged else 2  # of a row of a cloud, or of a cloud
    if info.dtype.kind != "f" or len(info.shape) != dimensions or info.shape[-1] < 3:
        raise ValueError(
            f'Loader: key "{name}" has voxels=, and stream "{member.stored}" is no cloud; depth images need intrinsics='
        )
    if set(AXES) <= set(info.channels):
        return [info.channels.index(axis) for axis in AXES]
    return [0, 1, 2]
