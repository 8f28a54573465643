"""The contenders' names, and the rows that have a goal. No torch, for bench.table."""

from __future__ import annotations

from typing import Any

OURS, EAGER, COMPILED = "robocache", "torch", "torch.compile"
FLOOR = "floor"

# (op, case) to microseconds cold and wall on an H200; None: no goal.
GOALS: dict[tuple[str, str], tuple[float, float | None]] = {
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
    ("voxelize", "first 5 of 250K->1400x800x20, max_voxels"): (100, None),
    ("attention", "pi0 suffix: q 51 x kv 867, 8 query heads / 1 kv head, head dim 256"): (8, 10),
    ("attention", "pi0 prefix: 816 x 816, 8/1 heads, 256"): (22, None),
    ("attention", "ACT decoder cross: 100 x 1202, 8 x 64"): (7, 10),
    ("attention", "ACT encoder: 1202 x 1202, 8 x 64"): (15, None),
    ("attention", "GR00T DiT self: 41 x 41, 32 x 48"): (4, 10),
    ("attention", "GR00T DiT cross: 41 x 300, 32 x 48"): (6, 10),
    ("attention", "RDT image cross: 67 x 4374, 32 x 64"): (16, None),
    ("attention", "RDT text cross: 67 x 1024, 32 x 64"): (9, 10),
    ("attention", "SigLIP: 256 x 256, 16 x 72"): (7, 10),
    ("attention", "Diffusion policy: 10 x 10, 4 x 64"): (3.5, 10),
    ("attention", "OpenVLA prefill: 290 x 290, 32 x 128"): (9, 10),
    ("attention", "SmolVLA cross: 50 x 241, 15/5 heads, 64"): (5, 10),
}

# (op, case) to how many times as fast as a contender; of what sensors give, half of the floor's speed is past 81 G
# points/s too.
SENSOR_ORDER = {COMPILED: 2.0, FLOOR: 0.5}
GPU_FACTORS: dict[tuple[str, str], dict[str, float]] = {
    ("voxelize", "count 8M->256^3, sensor order"): SENSOR_ORDER,
    ("voxelize", "occupancy 8M->256^3, sensor order"): SENSOR_ORDER,
    ("voxelize", "count 20 shared frames as points->256^3"): SENSOR_ORDER,
    ("voxelize", "occupancy 20 shared frames as points->256^3"): SENSOR_ORDER,
    ("voxelize", "count 48 shared lidar scans->256^3"): SENSOR_ORDER,
    ("voxelize", "occupancy 48 shared lidar scans->256^3"): SENSOR_ORDER,
    ("voxelize_depth", "occupancy 20 frames of 640x480->128^3"): {COMPILED: 5},
    ("voxelize_depth", "occupancy 20 shared frames->256^3"): {COMPILED: 5},
    ("voxelize", "mean, 8 channels, 500K->128^3"): {"float atomics": 1 / 1.3},
    ("voxelize", "mean, 8 channels, 500K->128^3, sensor order"): {"float atomics": 1 / 1.3},
}
CPU_FACTORS: dict[tuple[str, str], dict[str, float]] = {
    **{row: {EAGER: 1 if row[0] == "attention" else 4} for row in GOALS},
    **{
        ("voxel_downsample", name): {"open3d": 2, "open3d.t": 2}
        for name in (
            "500K in a unit cube, 1/64",
            "1M on surfaces, 1/16",
            "table_scene_mug.pcd, 1/128",
            "cturtle.pcd, 1/64",
            "lidar_source.ply, 1/4",
            "lidar_target.ply, 1/4",
            "lidar_ascii.pcd, 1/4",
        )
    },
    **{("mcap.messages", f"100K of 320 bytes, {kind}"): {"mcap": 10} for kind in ("zstd", "lz4", "zstd, out of order")},
    **{
        ("decode", name): {"mcap-ros2-support": 20}
        for name in ("10K Imu", "10K JointState, 7 joints", "200 PointCloud2, 1K points of 4 floats")
    },
    ("build", "1 GiB of PointCloud2 and Imu, zstd"): {"zstd -d + cp": 0.6},
}
# (op, case) to MiB that are resident at most.
PEAKS: dict[tuple[str, str], float] = {("build", "1 GiB of PointCloud2 and Imu, zstd"): 300}


class Absent(Exception):
    """What a case or a contender needs is not on this machine: it is skipped, and this says why."""


class Row:
    """What a case is called, who runs it, and whether it has a goal."""

    op: str
    name: str
    devices: tuple[str, ...] = ("cuda", "cpu")
    roundings: float = 1  # that explain what a result is off by
    is_long: bool = False  # --quick leaves it out

    @property
    def title(self) -> str:
        return f"{self.op} {self.name}"

    @property
    def has_goal(self) -> bool:
        row = self.op, self.name
        return row in GOALS or row in GPU_FACTORS or row in CPU_FACTORS

    def peers(self, device: str) -> tuple[str, ...]:
        """Who is measured beside ours."""
        return EAGER, COMPILED

    def other_call(self, who: str, inputs: Any) -> Any:
        """The call of a peer that is not torch."""
        raise NotImplementedError(who)

    def compared(self, who: str, results: list[Any]) -> list[Any]:
        """What of a contender's results, and of the truth, must be the same."""
        return results

    def figures(self, who: str, inputs: Any) -> dict[str, float]:
        """What else a row says of a contender."""
        return {}

    def waits(self, who: str) -> bool:
        """For the GPU, which keeps it out of CUDA graphs: it has no cold figure."""
        return False
