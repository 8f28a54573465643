"""The rows that have a goal: (op, case) to microseconds cold and wall on an H200. No torch, for bench.table."""

from __future__ import annotations

GOALS: dict[tuple[str, str], tuple[float, float]] = {
    ("resample", "64x4096->1024x32 f32"): (9.8, 10),
    ("resample", "32x500->256x256 bf16"): (6, 8),
    ("resample", "256x500->250x32 bf16"): (6, 8),
    ("resample", "1024x2048->512x64 bf16"): (59, 60),
    ("fuse", "B=4 30x512+100x64+200x12->50 bf16"): (3.5, 8),
    ("fuse", "B=256 100x512+200x128+300x64->128 bf16"): (26, 28),
    ("voxelize", "count 500K->128^3, uniform"): (9, 12),
    ("voxelize", "count 8M->256^3, surfaces"): (80, 82),
    ("voxelize", "occupancy 500K->128^3, uniform"): (8, 11),
    ("voxelize", "mean, 8 channels, 500K->128^3"): (48, 50),
    ("voxelize", "max, 8 channels, 500K->128^3"): (42, 45),
}
CPU_FACTOR = 4  # on a CPU the goal of these rows is to be this many times as fast as torch


class Row:
    """What a case is called, and whether it has a goal."""

    op: str
    name: str

    @property
    def title(self) -> str:
        return f"{self.op} {self.name}"

    @property
    def has_goal(self) -> bool:
        return (self.op, self.name) in GOALS
