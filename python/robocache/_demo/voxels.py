"""The demo's second part: the table-top that three depth cameras saw, as one grid of coloured voxels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import robocache as rc
from robocache import _tables
from robocache._demo.arm import Array
from robocache._demo.scene import CAMERAS, Recording, distance, record
from robocache._demo.timing import host_backend, median_microseconds

VOXEL = 0.0125  # metres
# The table's top lies in the middle of a layer of cells: noise then does not tear it into two.
GRID = rc.Grid.from_bounds(low=(-0.25, -0.55, -VOXEL / 2), high=(0.85, 0.55, 0.72), voxel_size=VOXEL)


@dataclass(frozen=True)
class Outcome:
    recording: Recording
    count: Array  # [X, Y, Z] int32
    colour: Array  # [X, Y, Z, 3] float32: the mean of all cameras' pixels in a cell
    report: dict[str, Any]


def voxelize(recording: Recording, backend: str | None = None) -> rc.Voxels[Any]:
    return rc.voxelize_depth(
        recording.depth,
        recording.intrinsics,
        GRID,
        pose=recording.poses,
        features=recording.colour,
        reduce=("count", "mean"),
        into=[0, 0, 0],  # all cameras into one grid
        invalid=(0, 65535),
        backend=backend,
    )


def same_bits(some: rc.Voxels[Any], other: rc.Voxels[Any]) -> bool:
    arrays = [(*voxels.values, voxels.dropped.counts) for voxels in (some, other)]
    return all(a.tobytes() == b.tobytes() for a, b in zip(*arrays, strict=True))


def truncated(recording: Recording) -> int:
    """By hand, a cell is often (p - origin) / size cast to int. How many points from outside that lets in."""
    fx, fy, cx, cy = recording.intrinsics
    camera, row, column = np.nonzero((recording.depth > 0) & (recording.depth < 65535))
    z = 1e-3 * recording.depth[camera, row, column]
    points = np.stack([(column - cx) / fx * z, (row - cy) / fy * z, z], axis=1)
    poses = recording.poses[camera]
    points = np.einsum("nij,nj->ni", poses[:, :3, :3], points) + poses[:, :3, 3]
    scaled = (points - GRID.origin) / GRID.voxel_size
    inside = [((cell >= 0) & (cell < GRID.shape)).all(axis=1) for cell in (scaled.astype(np.int64), np.floor(scaled))]
    return int((inside[0] & ~inside[1]).sum())


def counts_of(pixels: int, dropped: Array) -> dict[str, int]:
    """Where a camera's pixels went, in the order of the table."""
    reasons = dict(zip(("no_reading", "not_finite", "cropped", "outside"), map(int, dropped), strict=True))
    return {"pixels": pixels, **reasons, "in_the_grid": pixels - int(dropped.sum())}


def run() -> Outcome:
    recording = record()
    voxels = voxelize(recording)
    count, colour = (values[0] for values in voxels.values)
    occupied = np.argwhere(count > 0)
    centres = np.array(GRID.origin) + VOXEL * (occupied + 0.5)
    report: dict[str, Any] = {
        "voxel_size": VOXEL,
        "shape": list(GRID.shape),
        "cameras": {
            camera.name: counts_of(recording.depth[number].size, voxels.dropped.counts[number])
            for number, camera in enumerate(CAMERAS)
        },
        "points": int(count.sum()),
        "occupied": len(occupied),
        "voxels_from_a_surface": float(np.ceil(100 * distance(centres).max() / VOXEL)) / 100,
        "let_in_by_truncation": truncated(recording),
        "voxelize_us": median_microseconds(lambda: voxelize(recording)),
        "backend": host_backend(),
        "equal_to_reference": same_bits(voxels, voxelize(recording, "reference")),
    }
    return Outcome(recording, count, colour, report)


def tell(outcome: Outcome) -> None:
    report = outcome.report
    height, width = outcome.recording.depth.shape[1:]
    rows = [
        [f"{camera.name}, {camera.none} for none", *(f"{n:,}" for n in report["cameras"][camera.name].values())]
        for camera in CAMERAS
    ]
    headers = ("camera", "pixels", "no reading", "not finite", "cropped", "outside", "in the grid")
    _tables.table(
        f"Seen: the arm's table by {len(CAMERAS)} depth cameras, {width} x {height}, in one grid", headers, rows
    )
    for sentence in lessons(report):
        _tables.paragraph(sentence)


def lessons(report: Mapping[str, Any]) -> list[str]:
    """What to read from the table. Every number in a sentence is measured above."""
    bits = "the same bits as" if report["equal_to_reference"] else "OTHER BITS THAN"
    shape, pixels = " x ".join(map(str, report["shape"])), sum(c["pixels"] for c in report["cameras"].values())
    return [
        f"All {report['occupied']:,} cells that have points lie at a true surface: their centres are within "
        f"{report['voxels_from_a_surface']:g} voxels of one. Cells found by a cast to int, which rounds towards 0, "
        f"instead of floor would let in {report['let_in_by_truncation']:,} points from outside.",
        f"rc.voxelize_depth: {pixels:,} pixels into {shape} cells of {1e3 * report['voxel_size']:g} mm, count and mean "
        f"colour, in {1e-3 * report['voxelize_us']:.1f} ms on {report['backend']}; {bits} the reference.",
    ]
