"""The demo's main part: from a log to tensors. A recording is made, looked at, built into a cache, aligned, voxelized;
each stage is timed, and what comes out is compared with the truth and with what never left memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import robocache as rc
from robocache import _tables
from robocache._align.results import Aligned
from robocache._cache import build
from robocache._demo import log
from robocache._demo.arm import Array, Sensor, seconds
from robocache._demo.scene import distance
from robocache._demo.voxels import GRID, VOXEL
from robocache._recordings.images import picture
from robocache._recordings.sync_report import SyncReport

LOOKED_AT = 5  # every so many depth frames are compared with the true surfaces


@dataclass(frozen=True)
class Stages:
    sync: SyncReport
    aligned: Mapping[str, Aligned[Any]]
    report: dict[str, Any]


class Stopwatch:
    """Seconds by stage, and what each did."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[dict[str, Any]]:
        row: dict[str, Any] = {}
        begin = time.perf_counter()
        yield row
        row["seconds"] = time.perf_counter() - begin
        self.rows[name] = row


def run(folder: Path, sensors: Mapping[str, Sensor], timeline: rc.Timeline) -> Stages:
    """All of it in a folder of its own. `sensors` are what was recorded, with its truth."""
    watch, path, recipe = Stopwatch(), folder / "demo.mcap", folder / "recipe.toml"
    messages = log.simulate(sensors)
    with watch.stage("record") as row:
        log.write(path, messages)
        row |= {"messages": len(messages), "bytes": path.stat().st_size}
    recipe.write_text(log.RECIPE)
    with watch.stage("info") as row:
        sync = rc.sync_report(rc.open(path))
        row |= {"messages": sum(stream.samples for stream in sync.streams.values()), "bytes": path.stat().st_size}
    with watch.stage("build") as row:
        built = build.build([str(path)], folder / "cache", recipe=recipe)
        row |= {key: built["sources"][0][key] for key in ("samples", "bytes", "episodes")}
    cache = rc.Cache(folder / "cache")
    recorded = cache.episodes[0].streams
    streams = {
        name: recorded[name].replace(max_gap=sensor.stream.max_gap, causal=sensor.stream.causal)
        for name, sensor in sensors.items()
    }
    with watch.stage("align") as row:
        aligned = rc.align(streams, timeline)
        values = sum(np.size(one.values) for one in aligned.values())
        row |= {"streams": len(streams), "targets": len(timeline), "values": values}
    depth = recorded["depth"]
    assert depth.samples is not None
    frames = np.stack([picture("depth", sample, depth.info.metadata) for sample in depth.samples])
    with watch.stage("voxelize") as row:
        voxels = rc.voxelize_depth(frames, log.DEPTH_INTRINSICS, GRID, pose=log.DEPTH_CAMERA.pose, reduce="occupancy")
        row |= {"frames": len(frames), "pixels": frames.size}
    report: dict[str, Any] = {
        "stages": watch.rows,
        "sync": sync.as_dict(),
        "errors": {
            quantity.label: {"unit": quantity.unit, "max": worst(sensor, quantity.error, aligned[name], timeline)}
            for name, sensor in sensors.items()
            for quantity in sensor.quantities
        },
        "voxels_from_a_surface": farthest(np.asarray(voxels.values), np.asarray(depth.times)),
        "again": again(path, folder / "cache", recipe),
    }
    return Stages(sync, aligned, report)


def worst(sensor: Sensor, error: Callable[[Array, Array], Array], aligned: Aligned[Any], line: rc.Timeline) -> float:
    valid = np.asarray(aligned.valid)
    values = np.asarray(aligned.values)[valid]
    return float(np.abs(error(values, sensor.truth(seconds(np.asarray(line.times)[valid])))).max())


def farthest(occupied: Array, stamps: Array) -> float:
    """How many voxels the centre of an occupied cell is from a true surface at the frame's moment, at most."""
    found = 0.0
    for k in range(0, len(stamps), LOOKED_AT):
        centres = np.array(GRID.origin) + VOXEL * (np.argwhere(occupied[k]) + 0.5)
        found = max(found, float(distance(centres, seconds(stamps[k : k + 1])).max()) / VOXEL)
    return round(found, 2)


def again(path: Path, cache: Path, recipe: Path) -> str:
    return str(build.build([str(path)], cache, recipe=recipe)["sources"][0]["state"])


STAGES = {  # what each row of the table counts: as its work, and as its speed
    "record": ("{messages:,} messages, {mebi:.1f} MiB of MCAP", "messages"),
    "info": ("{messages:,} samples, all of the sync report", "messages"),
    "build": ("{samples:,} samples, {mebi:.1f} MiB in the cache", "mebi"),
    "align": ("{streams} streams at {targets:,} targets", "values"),
    "voxelize": ("{frames} depth images or clouds", "pixels"),
}
UNITS = {"messages": "messages", "mebi": "MiB", "values": "values", "pixels": "points"}


def tell_stages(stages: Mapping[str, Mapping[str, Any]]) -> None:
    table = []
    for name, row in stages.items():
        what, counted = STAGES[name]
        known = dict(row) | {"mebi": row.get("bytes", 0) / 2**20}
        speed = f"{known[counted] / max(row['seconds'], 1e-9):,.0f} {UNITS[counted]}/s"
        table.append([name, what.format(**known), f"{1e3 * row['seconds']:,.1f} ms", speed])
    _tables.table("From log to tensors: each stage, once, on this machine", ("stage", "what", "took", "speed"), table)


def tell(stages: Stages) -> None:
    stages.sync.show()
    print()
    tell_stages(stages.report["stages"])
    _tables.paragraph(
        f"Voxels of the depth stream lie within {stages.report['voxels_from_a_surface']:g} voxels of a true surface of "
        f"their moment, the moving arm's too. Built again, the recording is {stages.report['again']}: nothing is read."
    )
