"""RoboCache: robot recordings as time-aligned tensors for training and running policies.

Streams go in at the rate each sensor had; aligned tensors come out, on the device they are on.

    import robocache as rc

    streams = {"wrist": rc.Stream(frames, t_camera),
               "pose": rc.Stream(pose, t_pose, method=[("linear", 0, 3), ("slerp", 3, 7)], latency=0.008),
               "gripper": rc.Stream(gripper, t_gripper, method="hold")}
    timeline = rc.Timeline.over([streams["wrist"], streams["pose"]], rate=50)
    aligned = rc.align(streams, timeline, causal=True)
    aligned["pose"].values, aligned["pose"].valid, aligned["pose"].age

    recording = rc.open("run.mcap")                  # also rosbag2, LeRobot, HDF5
    recording.streams["/odom"].values, rc.sync_report(recording), rc.report(recording, "report.html")

    rc.view(recording, rate=50)                      # in the Rerun viewer; also caches, aligned results, batches

    with rc.CacheWriter("cache") as w: w.add(recording)
    loader = rc.Loader("cache", batch_size=64, rate=50, observation=["joints"], action=["command"], action_steps=16)
    rc.export(rc.Cache("cache"), "set", rate=50)     # a LeRobot data set; or cache.align(rate=50)

    grid = rc.Grid.from_bounds(low=(-3, -3, 0), high=(3, 3, 2), voxel_size=0.05)
    voxels = rc.voxelize_depth(depth, intrinsics, grid, pose=camera_to_grid, features=rgb, reduce="mean")

    tsdf = rc.TsdfVolume(grid, truncation=0.15)
    tsdf.integrate(depth, intrinsics, pose=camera_to_grid)
    tsdf.values, tsdf.weights, tsdf.surface_points()

    rc.image(frames, (224, 224), fit="contain", dtype="bfloat16", layout="nchw")

    out = rc.attention(q, [k_prefix, k_suffix], [v_prefix, v_suffix], mask=rc.Mask.from_openpi(pad_masks, att_masks))

torch tensors (CPU and CUDA), NumPy, CuPy and JAX arrays go in, and the same kind comes out. Times are nanoseconds where
they are integers and seconds where they are floats. What each method computes, to the bit, is in docs/semantics.md.
"""

from typing import TYPE_CHECKING, Any

from robocache._align.align import align, fuse, resample
from robocache._align.results import Aligned, Fused
from robocache._align.stream import Stream
from robocache._align.timeline import Timeline
from robocache._attention.attention import Mask, attention, describe_attention
from robocache._backends import backends
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
from robocache._image.image import image
from robocache._voxels.clouds import Cloud, read_cloud, read_depth
from robocache._voxels.grid import Grid
from robocache._voxels.results import Downsampled, Dropped, SparseVoxels, Voxels
from robocache._voxels.tsdf import TsdfVolume
from robocache._voxels.voxelize import voxel_downsample, voxelize, voxelize_depth

if TYPE_CHECKING:
    from robocache import mcap as mcap
    from robocache import ray as ray
    from robocache._attention.patch import attention_patch, register_transformers
    from robocache._cache.cache import Cache
    from robocache._cache.cache_aligned import CacheAligned
    from robocache._cache.statistics import Statistics
    from robocache._cache.verify import CacheReport, verify_cache
    from robocache._cache.writer import CacheWriter
    from robocache._export.export import export
    from robocache._loader.keys import Key
    from robocache._loader.loader import Loader
    from robocache._loader.mixture import Mixture
    from robocache._loader.spec import LoaderSpec
    from robocache._recordings.open import open
    from robocache._recordings.recording import Episode, Recording
    from robocache._recordings.streams import RecordedStream
    from robocache._recordings.sync import sync_report
    from robocache._recordings.sync_report import Finding, StreamReport, SyncReport
    from robocache._report.difference import report_data
    from robocache._report.report import Report, report
    from robocache._view.view import view
    from robocache._voxels.rays import camera_rays

__version__: str = version()
del version

# What a call on arrays does not need is loaded when one of its names is first asked for.
_LATER = {
    "Cache": "_cache.cache",
    "CacheAligned": "_cache.cache_aligned",
    "CacheReport": "_cache.verify",
    "CacheWriter": "_cache.writer",
    "Statistics": "_cache.statistics",
    "verify_cache": "_cache.verify",
    "export": "_export.export",
    "Episode": "_recordings.recording",
    "Key": "_loader.keys",
    "Loader": "_loader.loader",
    "LoaderSpec": "_loader.spec",
    "Mixture": "_loader.mixture",
    "RecordedStream": "_recordings.streams",
    "Recording": "_recordings.recording",
    "open": "_recordings.open",
    "Finding": "_recordings.sync_report",
    "StreamReport": "_recordings.sync_report",
    "SyncReport": "_recordings.sync_report",
    "sync_report": "_recordings.sync",
    "Report": "_report.report",
    "report": "_report.report",
    "report_data": "_report.difference",
    "attention_patch": "_attention.patch",
    "register_transformers": "_attention.patch",
    "camera_rays": "_voxels.rays",
    "view": "_view.view",
    "mcap": "mcap",
    "ray": "ray",
}


if not TYPE_CHECKING:  # who checks types sees the names above, and no others

    def __getattr__(name: str) -> Any:
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib
        import sys

        importlib.import_module(f"{__name__}.{_LATER[name]}")
        for other, place in _LATER.items():  # and what was imported on the way
            found = getattr(sys.modules.get(f"{__name__}.{place}"), other, None)
            if found is not None:
                globals()[other] = found
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
    "Finding",
    "Fused",
    "Grid",
    "Key",
    "Loader",
    "LoaderSpec",
    "Mask",
    "Mixture",
    "RecordedStream",
    "Recording",
    "Report",
    "SparseVoxels",
    "Statistics",
    "Stream",
    "StreamReport",
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
    "image",
    "mcap",
    "num_threads",
    "open",
    "ray",
    "read_cloud",
    "read_depth",
    "register_transformers",
    "report",
    "report_data",
    "resample",
    "set_num_threads",
    "set_simd_target",
    "simd_target",
    "simd_targets",
    "sync_report",
    "synchronize",
    "verify_cache",
    "view",
    "voxel_downsample",
    "voxelize",
    "voxelize_depth",
]
