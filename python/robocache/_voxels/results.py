"""What voxelize, voxelize_depth and voxel_downsample return."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from robocache._align.stream import shape_of

Array = TypeVar("Array")


class Dropped:
    """How many points of each cloud reached no cell, by the first reason that applies.

    Each count is int64 [C], or a single number if there is no batch.

    Attributes:
        counts: int64 [C, 4] or [4]: the four counts side by side, in the order of the properties.
    """

    __slots__ = ("counts",)

    counts: Any

    def __init__(self, counts: Any) -> None:
        self.counts = counts

    @property
    def no_reading(self) -> Any:
        """Depth images only: zero, negative, not finite, in `invalid`, or outside depth_min .. depth_max."""
        return self.counts[..., 0]

    @property
    def not_finite(self) -> Any:
        """A coordinate is NaN or infinite, before or after the pose."""
        return self.counts[..., 1]

    @property
    def cropped(self) -> Any:
        """Outside the crop."""
        return self.counts[..., 2]

    @property
    def outside(self) -> Any:
        """Outside the grid."""
        return self.counts[..., 3]

    def __repr__(self) -> str:
        names = ("no_reading", "not_finite", "cropped", "outside")
        if not isinstance(self.counts, np.ndarray):  # to read others may take waiting for a GPU
            return f"Dropped({shape_of(self.counts)}: {', '.join(names)})"
        totals = self.counts.reshape(-1, 4).sum(0).tolist()
        return f"Dropped({', '.join(f'{name}={total}' for name, total in zip(names, totals, strict=True))})"


class Voxels(NamedTuple, Generic[Array]):
    """Dense grids, and the points that did not reach them. It unpacks: `values, dropped = rc.voxelize(points, grid)`.

    Attributes:
        values: [G, X, Y, Z], for features [..., F]; no G if there is no batch. A tuple if `reduce` is one.
        dropped: A `Dropped`.
    """

    values: Array
    dropped: Dropped

    def __repr__(self) -> str:
        values = self.values if isinstance(self.values, tuple) else (self.values,)
        return f"Voxels(values {', '.join(shape_of(array) for array in values)}, {self.dropped!r})"


class SparseVoxels(NamedTuple, Generic[Array]):
    """The voxels that have points, one row each, ordered by grid, x, y, z.

    Attributes:
        coordinates: int64 [M, 4]: grid, x, y, z. -1 in rows without a voxel, which only `max_voxels` makes.
        values: [M], for features [M, F]. A tuple if `reduce` is one.
        counts: int32 [M]: the number of points.
        point_to_voxel: int64, shaped like the points or pixels: the row of each, or -1 if it has none.
        dropped: A `Dropped`.
        found: int64 [2]: rows that hold voxels, and voxels that got no row because of `max_voxels`.
        first: [M, k, 3 + F] if `first=k` was passed: the first k points of each voxel in the order of the points, as x,
            y, z in the grid's frame and then features; 0 after the last.
        number: int32 [M]: how many of these k points there are.
    """

    coordinates: Array
    values: Array
    counts: Array
    point_to_voxel: Array
    dropped: Dropped
    found: Array
    first: Array | None
    number: Array | None

    @property
    def overflow(self) -> Any:
        """The number of voxels that have points but no row, because of `max_voxels`."""
        return self.found[1]  # type: ignore[index]

    def __repr__(self) -> str:
        values = self.values if isinstance(self.values, tuple) else (self.values,)
        first = "" if self.first is None else f", first {shape_of(self.first)}"
        shapes = ", ".join(shape_of(array) for array in values)
        return f"SparseVoxels(coordinates {shape_of(self.coordinates)}, values {shapes}{first}, {self.dropped!r})"


class Downsampled(NamedTuple, Generic[Array]):
    """One point for each voxel that has points, ordered by cloud, x, y, z.

    Attributes:
        points: [M, 3]: the mean of the voxel's points, after the pose; float64 if the points are, otherwise float32.
        features: float32 [M, F]: the mean of their features, or None if there are no features.
        counts: int32 [M]: the number of points.
        coordinates: int64 [M, 4]: the cloud, and the voxel's number along x, y and z from the origin.
        dropped: A `Dropped`.
    """

    points: Array
    features: Array | None
    counts: Array
    coordinates: Array
    dropped: Dropped

    def __repr__(self) -> str:
        features = "" if self.features is None else f", features {shape_of(self.features)}"
        return f"Downsampled(points {shape_of(self.points)}{features}, {self.dropped!r})"
