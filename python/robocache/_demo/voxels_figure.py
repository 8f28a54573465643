"""The picture of the demo's second part: what each camera saw, and the voxels that one call made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from robocache._demo import voxels
from robocache._demo.arm import Array
from robocache._demo.figure import FAINT, INK, save, title
from robocache._demo.scene import CAMERAS, RANGE

NONE = "#F4D3BF"  # where a camera has no reading
METRES, COLOURS = Normalize(0.5, RANGE), colormaps["viridis"].with_extremes(bad=NONE)
FACES = {0: 0.84, 1: 0.94, 2: 1.04}  # how bright the faces that look along x, y and z are drawn
TURN, TILT = np.radians(38), np.radians(33)  # where the voxels are seen from: beyond +x, towards -y, from above

# A point on the paper from a point in the grid, without perspective: right, and up.
RIGHT = np.array([np.sin(TURN), np.cos(TURN), 0])
UP = np.array([-np.sin(TILT) * np.cos(TURN), np.sin(TILT) * np.sin(TURN), np.cos(TILT)])
SIGN = np.array([1, -1, 1])  # the faces that are seen look along +x, -y, +z
PAPER = np.stack([RIGHT, UP], axis=1)


def draw(outcome: voxels.Outcome, path: Path) -> None:
    figure = Figure(figsize=(11, 6.3), dpi=120, facecolor="white")
    for row in range(len(CAMERAS)):
        colour, depth = (figure.add_axes((left, 0.69 - 0.287 * row, 0.185, 0.242)) for left in (0.012, 0.2))
        draw_camera(colour, depth, outcome, row)
        if row == 0:
            title(colour, "Seen by three depth cameras", "")
            title(depth, "", "colour, and depth")
    draw_scale(figure, figure.add_axes((0.2, 0.047, 0.185, 0.014)))
    draw_voxels(figure.add_axes((0.42, 0.015, 0.568, 0.917)), outcome)
    save(figure, path)


def draw_camera(colour: Axes, depth: Axes, outcome: voxels.Outcome, number: int) -> None:
    readings, name = outcome.recording.depth[number], CAMERAS[number].name
    counts = outcome.report["cameras"][name]
    none = (readings == 0) | (readings == 65535)
    colour.imshow(outcome.recording.colour[number])
    depth.imshow(np.ma.masked_array(1e-3 * readings, none), norm=METRES, cmap=COLOURS, interpolation="nearest")
    for axes in (colour, depth):
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    lost = f"{counts['no_reading']:,} without a reading, {counts['outside']:,} outside"
    told = f"{lost}, {counts['in_the_grid']:,} in the grid"
    below: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "top", "fontsize": 8.5}
    colour.annotate(name, (0, 0), (0, -4), color=INK, weight="bold", **below)
    depth.annotate(told, (1, 0), (0, -4), color=FAINT, ha="right", **below)


def draw_scale(figure: Figure, axes: Axes) -> None:
    metres = np.arange(1, RANGE + 1)
    bar = figure.colorbar(ScalarMappable(METRES, COLOURS), axes, orientation="horizontal")
    bar.outline.set_visible(False)
    axes.set_xticks(metres, [f"{m:g} m" for m in metres], fontsize=8.5, color=INK)
    axes.tick_params(length=2, pad=2, color=FAINT)
    left: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "center", "ha": "right"}
    axes.annotate("■", (0, 0.5), (-63, 0), color=NONE, **left)
    axes.annotate("no reading", (0, 0.5), (-8, 0), color=INK, fontsize=8.5, **left)


def visible_faces(count: Array, colour: Array) -> tuple[Array, Array]:
    """The corners on the paper [F, 4, 2] and the colours [F, 3] of the faces to draw, the furthest first."""
    filled = count > 0
    corners, colours, order = [], [], []
    for axis, bright in FACES.items():
        forward = np.roll(np.pad(filled, 1), -SIGN[axis], axis)[1:-1, 1:-1, 1:-1]  # the neighbour on the seen side
        cells = np.argwhere(filled & ~forward)
        others = [other for other in range(3) if other != axis]
        square = np.zeros((4, 3))
        square[:, others] = [(0, 0), (1, 0), (1, 1), (0, 1)]
        square[:, axis] = max(SIGN[axis], 0)
        corners.append((np.array(voxels.GRID.origin) + voxels.VOXEL * (cells[:, None] + square)) @ PAPER)
        colours.append((bright / 255 * colour[tuple(cells.T)]).clip(0, 1))
        order.append(cells @ SIGN)  # whatever hides a cell has a larger sum
    far_to_near = np.argsort(np.concatenate(order), kind="stable")
    return np.concatenate(corners)[far_to_near], np.concatenate(colours)[far_to_near]


def draw_voxels(axes: Axes, outcome: voxels.Outcome) -> None:
    report = outcome.report
    shape, size = " x ".join(map(str, report["shape"])), 1e3 * report["voxel_size"]
    title(axes, "One call of rc.voxelize_depth", f"{shape} cells of {size:g} mm, mean colours")
    draw_walls(axes)
    corners, colours = visible_faces(outcome.count, outcome.colour)
    axes.add_collection(PolyCollection(list(corners), facecolors=colours, edgecolors=0.9 * colours, linewidths=0.25))
    axes.autoscale_view()
    axes.set_aspect("equal")
    axes.axis("off")


def draw_walls(axes: Axes) -> None:
    """The three sides of the grid that lie behind, and its measures."""
    (x0, y0, z0), (x1, y1, z1) = voxels.GRID.low, voxels.GRID.high
    walls = [
        [(x0, y0, z0), (x0, y1, z0), (x0, y1, z1), (x0, y0, z1)],
        [(x0, y1, z0), (x1, y1, z0), (x1, y1, z1), (x0, y1, z1)],
        [(x0, y0, z0), (x1, y0, z0), (x1, y1, z0), (x0, y1, z0)],
    ]
    axes.add_collection(
        PolyCollection(list(np.array(walls) @ PAPER), facecolors="#F7F7F7", edgecolors="#BDBDBD", linewidths=0.7)
    )
    style: dict[str, Any] = {"textcoords": "offset points", "color": FAINT, "fontsize": 9}
    x, y, z = ((x0 + x1) / 2, y0, z0), (x1, (y0 + y1) / 2, z0), (x0, y0, (z0 + z1) / 2)
    axes.annotate(f"{x1 - x0:.1f} m", np.array(x) @ PAPER, (-8, -8), ha="right", va="top", **style)
    axes.annotate(f"{y1 - y0:.1f} m", np.array(y) @ PAPER, (8, -8), ha="left", va="top", **style)
    axes.annotate(f"{z1 - z0:.1f} m", np.array(z) @ PAPER, (-6, 0), ha="right", va="center", **style)
