"""Grid: the box of voxels that points and depth images go into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from robocache import _core

Three = tuple[float, float, float]


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Grid:
    """A box of voxels: cell (i, j, k) begins at origin + voxel_size * (i, j, k). At most 2^62 cells.

    Args:
        origin: The lowest corner.
        voxel_size: One number, or three: for x, y and z.
        shape: The number of cells along x, y and z.

    Examples:
        >>> rc.Grid(origin=(-3, -3, 0), voxel_size=0.05, shape=(120, 120, 40))
        >>> rc.Grid.from_bounds(low=(-3, -3, 0), high=(3, 3, 2), voxel_size=(0.05, 0.05, 0.1))
    """

    origin: Three
    voxel_size: Three
    shape: tuple[int, int, int]

    def __init__(self, origin: Sequence[float], voxel_size: float | Sequence[float], shape: Sequence[int]) -> None:
        self._set(_core.make_grid(origin, voxel_size, shape))

    @staticmethod
    def from_bounds(low: Sequence[float], high: Sequence[float], voxel_size: float | Sequence[float]) -> Grid:
        """The smallest grid that begins at `low` and reaches `high`.

        Args:
            low: The lowest corner.
            high: The corner that the grid reaches. Points exactly there may be outside.
            voxel_size: One number, or three: for x, y and z.

        Returns:
            The grid.
        """
        grid = Grid.__new__(Grid)
        grid._set(_core.grid_from_bounds(low, high, voxel_size))
        return grid

    def _set(self, fields: tuple[Three, Three, tuple[int, int, int]]) -> None:
        for name, value in zip(("origin", "voxel_size", "shape"), fields, strict=True):
            object.__setattr__(self, name, value)

    @property
    def low(self) -> Three:
        """The lowest corner; the same as `origin`."""
        return self.origin

    @property
    def high(self) -> Three:
        """The highest corner: origin + voxel_size * shape."""
        x, y, z = (o + size * n for o, size, n in zip(self.origin, self.voxel_size, self.shape, strict=True))
        return x, y, z

    def __repr__(self) -> str:
        size = self.voxel_size[0] if len(set(self.voxel_size)) == 1 else self.voxel_size
        return f"Grid(origin={self.origin}, voxel_size={size}, shape={self.shape})"
