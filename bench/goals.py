"""The contenders' names, the rows that have a goal, and the base class of all cases. Without torch, for bench.table."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

OURS, EAGER, COMPILED = "robocache", "torch", "torch.compile"
TUNED = "torch.compile max-autotune"
FLOOR = "floor"

# (op, case) to the most microseconds, cold and wall, on an H200. None: no goal.
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
    ("loader", "256 windows of 16+50 steps, four streams"): (12, 40),
    ("loader", "256 windows of 16+50 steps, four streams, as_of"): (12, 40),
    ("loader", "512 frames of 224x224, bf16"): (85.3, 85.3),  # 3 million windows/s, with two pictures each
}

# (op, case) to how many times as fast as a contender we must be. With points in a sensor's order, half of the floor's
# speed is more than 81 G points/s.
SENSOR_ORDER = {COMPILED: 2.0, FLOOR: 0.5}
GPU_FACTORS: dict[tuple[str, str], dict[str, float]] = {
    ("image", "512 of 4096 frames 224x224x3->bf16 nchw"): {FLOOR: 1 / 1.3},
    ("image", "256 frames 480x640x3->224x224"): {EAGER: 2},
    ("loader", "512 frames of 224x224, bf16"): {FLOOR: 1 / 1.3},
    ("loader", "512 frames of 224x224, bf16, from host memory"): {"copy of pinned memory": 0.85},
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
    ("image", "16 frames 480x640x3->224x224"): {"Pillow": 3, EAGER: 1},
    ("image", "16 frames 720x1280x3->256x256"): {"Pillow": 3, EAGER: 1},
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
    ("align", "as_of arrivals 256x500->250x32 bf16"): {"causal": 1 / 1.3},
    ("report", "1 GiB of PointCloud2 and Imu, zstd"): {"robocache info --full": 1 / 1.3},
    ("build --frames", "1,782 frames of 640x360 AV1->224x224"): {"PyAV decoding alone": 0.9},
    **{("view", f"8 streams of {n}K samples, 7 channels"): {"rerun send_columns": 0.6} for n in (60, 140)},
}
_LEROBOT = tuple(
    f"LeRobot {decoder} + {workers} workers" for decoder in ("pyav", "torchcodec") for workers in (0, 1, 2)
)
_WINDOWS = "windows of 2+16 steps, 14+14 channels"
CPU_FACTORS |= {
    **{("loader", f"{batch} {_WINDOWS}"): {"NumPy nearest sample in RAM": 1} for batch in (64, 256)},
    **{("loader", f"{batch} {_WINDOWS}, 200 shards"): {"one shard": 1 / 1.2} for batch in (64, 256)},
    ("loader", f"64 {_WINDOWS}, a LeRobot data set"): dict.fromkeys(_LEROBOT, 500),
    ("loader", f"64 {_WINDOWS}, 2 pictures of 96x96"): dict.fromkeys(_LEROBOT, 100),
    ("loader", f"64 {_WINDOWS}, 2 pictures of 224x224"): dict.fromkeys(_LEROBOT, 50),
}
# (op, case) to the most microseconds on a CPU.
CPU_MOST: dict[tuple[str, str], float] = {("loader", "construction over 10,000 episodes"): 1e6}
# (op, case) to the most resident memory, in MiB.
PEAKS: dict[tuple[str, str], float] = {("build", "1 GiB of PointCloud2 and Imu, zstd"): 300}


class Absent(Exception):
    """The reason to skip a case or a contender: something that it needs is not on this machine."""


class Row:
    """The base of all cases: a name, the peers, and whether there is a goal."""

    op: str
    name: str
    devices: tuple[str, ...] = ("cuda", "cpu")
    roundings: float = 1  # how many roundings to the dtype a result may be off by
    is_long: bool = False  # --quick leaves it out
    windows: int = 0  # in a batch of a loader; a row then says windows/s

    @property
    def title(self) -> str:
        return f"{self.op} {self.name}"

    @property
    def has_goal(self) -> bool:
        row = self.op, self.name
        return any(row in goals for goals in (GOALS, GPU_FACTORS, CPU_FACTORS, CPU_MOST))

    def peers(self, device: str) -> tuple[str, ...]:
        """The contenders beside ours."""
        return EAGER, COMPILED, TUNED

    def other_call(self, who: str, inputs: Any) -> Any:
        """The call of a peer other than torch and torch.compile."""
        raise NotImplementedError(who)

    def settings(self, who: str) -> AbstractContextManager[Any]:
        """What holds while a contender is measured."""
        return nullcontext()

    def compared(self, who: str, results: list[Any]) -> list[Any]:
        """The parts of a contender's results, and of the truth, that must agree."""
        return results

    def figures(self, who: str, inputs: Any) -> dict[str, float]:
        """Further figures for a contender's row."""
        return {}

    def prefetched(self, who: str) -> int:
        """How many results of a contender may be ready before they are asked for."""
        return 0

    def waits(self, who: str) -> bool:
        """Whether a call waits for the GPU. A CUDA graph cannot hold such a call, and it has no cold figure."""
        return False
