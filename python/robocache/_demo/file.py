"""`robocache demo FILE`: the same way with a recording of one's own: looked at, built, aligned, voxelized, timed."""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import robocache as rc
from robocache import _tables
from robocache._cache import build
from robocache._cache.default_timeline import default_timeline
from robocache._demo.arm import Array
from robocache._demo.stages import Stopwatch, tell_stages
from robocache._recordings.images import picture
from robocache._recordings.sync_report import SyncReport
from robocache._view.pictures import is_depth
from robocache._view.space import intrinsics_of, is_cloud

MOST_FRAMES = 64  # depth images or clouds that are voxelized
CELLS = 128  # along the longest side of the grid


def main(path: str, output: Path, rate: float, as_json: bool) -> None:
    watch = Stopwatch()
    with tempfile.TemporaryDirectory(prefix="robocache-demo-") as folder:
        with watch.stage("info") as row:
            recording = rc.open(path)
            sync = rc.sync_report(recording)
            row["messages"] = sum(stream.samples for stream in sync.streams.values())
        if not as_json:
            sync.show()
            print()
        with watch.stage("build") as row, build.progress("building", not as_json) as told:
            state: dict[str, Any] = {"samples": 0, "bytes": 0}
            with rc.CacheWriter(Path(folder) / "cache") as writer:
                build.add(writer, recording, "", state, 0, 1, told)
            row |= {key: state[key] for key in ("samples", "bytes")}
        said, figure = tensors(rc.Cache(Path(folder) / "cache"), rate, watch, sync, output)
    if as_json:
        found = {"path": path, "stages": watch.rows, "sync": sync.as_dict(), "notes": said, "figures": figure}
        print(json.dumps(found, indent=2))
        return
    tell_stages(watch.rows)
    for sentence in said:
        _tables.paragraph(sentence)
    for path_of in figure:
        _tables.paragraph(f"Figure: {path_of}")
    name = shlex.quote(path)
    _tables.paragraph(
        f"Next: robocache info {name} --write-recipe recipe.toml; edit it; robocache build {name} -o cache --recipe "
        "recipe.toml; robocache export cache --rate 50 -o dataset"
    )


def tensors(
    cache: rc.Cache, rate: float, watch: Stopwatch, sync: SyncReport, output: Path
) -> tuple[list[str], list[str]]:
    """Aligns the longest episode and voxelizes its depth images or clouds. Returns sentences and the figures' files."""
    longest = max(cache.episodes, key=lambda each: each.duration, default=None)
    every = {} if longest is None else longest.streams
    streams = {name: stream for name, stream in every.items() if len(stream.times)}
    if longest is None or not streams:
        return ["There are no samples: nothing to align, to voxelize or to draw."], []
    timeline = default_timeline(streams, rate)
    some = dict(list(streams.items())[:64])
    with watch.stage("align") as row:
        aligned = rc.align(some, timeline)
        values = sum(np.size(one.values) for one in aligned.values())
        row |= {"streams": len(some), "targets": len(timeline), "values": values}
    valid = np.mean([np.asarray(one.valid).mean() for one in aligned.values()]) if len(timeline) else 1.0
    said = [f"Aligned at {rate:g} Hz: of {len(timeline):,} targets, {100 * valid:.1f} % are valid in the mean."]
    title = f"{Path(cache.sources[0].path).name}, {longest.name}: samples, and the age of values at {rate:g} Hz"
    figure = draw(output, title, some, aligned, np.asarray(timeline.times), sync)
    if not figure:
        said.append("No figure: pip install '.[demo]' brings matplotlib.")
    return [*said, *voxelized(streams, watch)], figure


def draw(
    output: Path, title: str, streams: Mapping[str, Any], aligned: Mapping[str, Any], at: Array, sync: SyncReport
) -> list[str]:
    try:
        from robocache._demo import file_figure
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.split(".")[0] not in ("matplotlib", "PIL"):
            raise
        return []
    path = output / "recording.png"
    times = {name: np.asarray(stream.times) for name, stream in streams.items()}
    ages = {name: np.asarray(one.age) for name, one in aligned.items()}
    file_figure.draw(path, title, times, ages, at, sync)
    return [str(path)]


def voxelized(streams: Mapping[str, Any], watch: Stopwatch) -> list[str]:
    seen = next((name for name in streams if is_depth(streams[name].info) or is_cloud(streams[name].info)), None)
    if seen is None:
        return ["No depth images and no clouds: nothing to voxelize."]
    if is_cloud(streams[seen].info):
        return [voxelize_clouds(seen, streams[seen], watch)]
    intrinsics = intrinsics_of(seen, streams)
    if intrinsics is None:
        return [f"{seen} holds depth images; without a camera_info beside it they cannot be voxelized."]
    return [voxelize_depth(seen, streams[seen], intrinsics, watch)]


def grid_of(points: Array) -> rc.Grid:
    """A box around most of the points."""
    finite = points[np.isfinite(points).all(axis=1)]
    low, high = np.percentile(finite, (1, 99), axis=0) if len(finite) else (np.zeros(3), np.ones(3))
    size = max(float((high - low).max()), 1e-3) / CELLS
    return rc.Grid.from_bounds(low=tuple(low), high=tuple(high + size), voxel_size=size)


def voxelize_clouds(name: str, stream: Any, watch: Stopwatch) -> str:
    clouds = [np.ascontiguousarray(cloud[:, :3]) for cloud in stream.samples[:MOST_FRAMES]]
    points = np.concatenate(clouds)
    grid = grid_of(points)
    offsets = np.cumsum([0, *map(len, clouds)])
    with watch.stage("voxelize") as row:
        voxels = rc.voxelize(points, grid, offsets=offsets, layout="sparse")
        row |= {"frames": len(clouds), "pixels": len(points)}
    size = 100 * grid.voxel_size[0]
    return f"{name}: {len(clouds)} clouds in cells of {size:.2g} cm; {len(voxels.counts):,} cells have points."


def voxelize_depth(name: str, stream: Any, intrinsics: tuple[float, ...], watch: Stopwatch) -> str:
    images = [picture(name, sample, stream.info.metadata) for sample in stream.samples[:MOST_FRAMES]]
    frames = np.stack(images)
    scale = 1.0 if frames.dtype.kind == "f" else 0.001
    reading = frames[0][frames[0] > 0] * scale
    far = float(np.percentile(reading, 99)) if len(reading) else 1.0
    wide = far * frames.shape[2] / (2 * intrinsics[0])
    grid = rc.Grid.from_bounds(low=(-wide, -wide, 0), high=(wide, wide, far), voxel_size=2 * wide / CELLS)
    with watch.stage("voxelize") as row:
        voxels = rc.voxelize_depth(frames, intrinsics, grid, layout="sparse")  # type: ignore[arg-type, unused-ignore]
        row |= {"frames": len(frames), "pixels": frames.size}
    size = 100 * grid.voxel_size[0]
    return f"{name}: {len(frames)} depth images in cells of {size:.2g} cm; {len(voxels.counts):,} cells have points."
