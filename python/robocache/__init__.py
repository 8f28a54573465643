"""RoboCache: what robots record, turned into what policies train on and run on.

Streams go in at the rate each sensor had; aligned tensors come out, on the device they are on.

    import robocache as rc

    streams = {"wrist": rc.Stream(frames, t_camera),
               "pose": rc.Stream(pose, t_pose, method=[("linear", 0, 3), ("slerp", 3, 7)], latency=0.008),
               "gripper": rc.Stream(gripper, t_gripper, method="hold")}
    timeline = rc.Timeline.over([streams["wrist"], streams["pose"]], rate=50)
    aligned = rc.align(streams, timeline, causal=True)
    aligned["pose"].values, aligned["pose"].valid, aligned["pose"].age

    recording = rc.open("run.mcap")                  # also rosbag2, LeRobot, HDF5
    recording.streams["/odom"].values, rc.sync_report(recording)

    with rc.CacheWriter("cache") as w: w.add(recording)
    rc.export(rc.Cache("cache"), "set", rate=50)     # a LeRobot data set; or cache.align(rate=50)

    grid = rc.Grid.from_bounds(low=(-3, -3, 0), high=(3, 3, 2), voxel_size=0.05)
    voxels = rc.voxelize_depth(depth, intrinsics, grid, pose=camera_to_grid, features=rgb, reduce="mean")

    tsdf = rc.TsdfVolume(grid, truncation=0.15)
    tsdf.integrate(depth, intrinsics, pose=camera_to_grid)
    tsdf.values, tsdf.weights, tsdf.surface_points()

    out = rc.attention(q, [k_prefix, k_suffix], [v_prefix, v_suffix], mask=rc.Mask.from_openpi(pad_masks, att_masks))

torch tensors (CPU and CUDA), NumPy, CuPy and JAX arrays go in, and the same kind comes out. Times are nanoseconds where
they are integers and seconds where they are floats. What each method computes, to the bit, is in docs/semantics.md.
"""

from typing import TYPE_CHECKING, Any

from robocache._align import Aligned, Fused, Stream, Timeline, align, fuse, resample
from robocache._attention import Mask, attention, describe_attention
from robocache._attention_patch import attention_patch, register_transformers
from robocache._backends import backends
from robocache._clouds import Cloud, read_cloud, read_depth
from robocache._core import (
    CudaError,
    FileError,
    num_threads,
    set_num_threads,
    set_simd_target,
    simd_target,
    simd_targets,
    synchronize,
    version,
)
from robocache._tsdf import TsdfVolume
from robocache._voxelize import (
    Downsampled,
    Dropped,
    Grid,
    SparseVoxels,
    Voxels,
    camera_rays,
    voxel_downsample,
    voxelize,
    voxelize_depth,
)

if TYPE_CHECKING:
    from robocache import mcap as mcap
    from robocache._cache import Cache, CacheAligned, CacheReport, CacheWriter, verify_cache
    from robocache._export import export
    from robocache._recording import Episode, RecordedStream, Recording, open
    from robocache._sync import SyncReport, sync_report

__version__: str = version()
del version

# What only logs need is loaded when one of its names is first asked for.
_LATER = {
    "Cache": "_cache",
    "CacheAligned": "_cache",
    "CacheReport": "_cache",
    "CacheWriter": "_cache",
    "verify_cache": "_cache",
    "export": "_export",
    "Episode": "_recording",
    "RecordedStream": "_recording",
    "Recording": "_recording",
    "open": "_recording",
    "SyncReport": "_sync",
    "sync_report": "_sync",
    "mcap": "mcap",
}


if not TYPE_CHECKING:  # who checks types sees the names above, and no others

    def __getattr__(name: str) -> Any:
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        module = importlib.import_module(f"{__name__}.{_LATER[name]}")
        for other in [other for other, place in _LATER.items() if place == _LATER[name] != other]:
            globals()[other] = found = getattr(module, other)
            if isinstance(found, type):
                found.__module__ = __name__
        return globals()[name]  # importing a module has put it there


def __dir__() -> list[str]:
    return sorted(__all__)  # what users need: no submodules, no helpers


for _public in (
    Stream,
    Timeline,
    Aligned,
    Fused,
    Cloud,
    Grid,
    Voxels,
    SparseVoxels,
    Downsampled,
    Dropped,
    TsdfVolume,
    Mask,
    CudaError,
    FileError,
):
    _public.__module__ = __name__  # where users find them
del _public

__all__ = [
    "Aligned",
    "Cache",
    "CacheAligned",
    "CacheReport",
    "CacheWriter",
    "Cloud",
    "CudaError",
    "Downsampled",
    "Dropped",
    "Episode",
    "FileError",
    "Fused",
    "Grid",
    "Mask",
    "RecordedStream",
    "Recording",
    "SparseVoxels",
    "Stream",
    "SyncReport",
    "Timeline",
    "TsdfVolume",
    "Voxels",
    "__version__",
    "align",
    "attention",
    "attention_patch",
    "backends",
    "camera_rays",
    "describe_attention",
    "export",
    "fuse",
    "mcap",
    "num_threads",
    "open",
    "read_cloud",
    "read_depth",
    "register_transformers",
    "resample",
    "set_num_threads",
    "set_simd_target",
    "simd_target",
    "simd_targets",
    "sync_report",
    "synchronize",
    "verify_cache",
    "voxel_downsample",
    "voxelize",
    "voxelize_depth",
]
