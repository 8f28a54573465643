"""The demo's figure: what was recorded, what became of an angle, and how old the data was, on one time axis."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from PIL import Image

from robocache._demo import arm, demo


def darker(colour: str, share: float) -> str:
    red, green, blue = to_rgb(colour)
    return to_hex((share * red, share * green, share * blue))


# Okabe and Ito: told apart with any kind of colour vision.
COLOURS = {
    "joints": "#0072B2",
    "camera": "#E69F00",
    "imu": "#009E73",
    "pose": "#CC79A7",
    "wrist": "#56B4E9",
    "gripper": "#000000",
}
LETTERS = {name: darker(colour, 0.78) for name, colour in COLOURS.items()}  # thin strokes need more contrast than ticks
BAD, OURS, INK, FAINT = "#D55E00", "#0072B2", "#222222", "#858585"
LOST_ALONE = 2.0  # periods: up to two samples in a row are marked as lost; more than that shows as a hole by itself
LEAST_AGE = 0.3  # milliseconds: the foot of a log axis
ZOOM = 0.075  # seconds to each side


def draw(outcome: demo.Outcome, path: Path) -> None:
    figure = Figure(figsize=(11, 8.8), dpi=120, facecolor="white")
    raster, wrist, age = figure.subplots(3, 1, sharex=True, height_ratios=[1, 1.05, 1])
    figure.subplots_adjust(left=0.125, right=0.86, top=0.955, bottom=0.058, hspace=0.23)
    for axes in (raster, wrist, age):
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(FAINT)
        axes.tick_params(labelcolor=INK, labelsize=9.5, color=FAINT)
        axes.set_xlim(0, arm.DURATION)
    draw_raster(raster, outcome)
    draw_wrist(wrist, outcome)
    draw_age(age, outcome)
    age.set_xlabel("seconds since the recording began", fontsize=9.5, color=INK)
    save(figure, path)


def save(figure: Figure, path: Path) -> None:
    canvas = FigureCanvasAgg(figure)  # no window and no pyplot: nothing of the caller's matplotlib is touched
    canvas.draw()
    picture = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    picture.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)  # a third of the bytes, the same picture


def title(axes: Axes, text: str, detail: str) -> None:
    above = functools.partial(axes.annotate, xytext=(0, 7), xycoords="axes fraction", textcoords="offset points")
    above(text, (0, 1), weight="bold", color=INK, fontsize=11)
    above(detail, (1, 1), ha="right", color=FAINT, fontsize=9)


def beside(axes: Axes, height: float, text: str, colour: str, **options: Any) -> None:
    """A label right of the axes, at a height in data units: what a legend box would say, next to its line."""
    axes.annotate(
        text, (1, height), (7, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
        va="center", color=colour, fontsize=9.5, annotation_clip=False, **options,
    )  # fmt: skip


def draw_raster(axes: Axes, outcome: demo.Outcome) -> None:
    title(axes, "Recorded: a tick per sample", "each sensor at its own rate, with jitter; ▾ one sample lost")
    names = list(outcome.sensors)
    for row, name in enumerate(names):
        sensor, found = outcome.sensors[name], outcome.report["streams"][name]
        stamps = arm.seconds(sensor.stamps)
        axes.vlines(stamps, row - 0.3, row + 0.3, color=COLOURS[name], linewidth=0.7 if sensor.rate else 2.2)
        for begin, end in found["gaps"]:
            axes.fill_between([begin, end], row - 0.3, row + 0.3, color=BAD, alpha=0.16, linewidth=0)
            label = f"dead from {begin:.1f} s on" if end >= arm.DURATION else f"gap {end - begin:.1f} s"
            axes.text((begin + end) / 2, row, label, color=BAD, ha="center", va="center", fontsize=9, weight="bold")
        if sensor.rate:
            steps = np.diff(stamps) * sensor.rate
            lost = np.flatnonzero((steps > 1.5) & (steps < 1.5 + LOST_ALONE))
            axes.plot(
                (stamps[lost] + stamps[lost + 1]) / 2, np.full(len(lost), row - 0.41), "v", color=BAD, markersize=3.6
            )
        dropped = f", {found['dropped']} lost" if found["dropped"] else ""
        beside(axes, row, f"{found['samples']} samples{dropped}", LETTERS[name])
    axes.vlines(arm.seconds(outcome.targets), len(names) - 0.3, len(names) + 0.3, color=FAINT, linewidth=0.7)
    beside(axes, len(names), f"{len(outcome.targets)} targets", FAINT)
    rates = [f"{outcome.sensors[name].rate:g} Hz" if outcome.sensors[name].rate else "on change" for name in names]
    labels = [f"{name}  {rate}" for name, rate in zip(names, rates, strict=True)]
    axes.set_yticks(range(len(names) + 1), [*labels, f"timeline  {outcome.report['rate_hz']:g} Hz"])
    for tick, colour in zip(axes.get_yticklabels(), [*LETTERS.values(), FAINT], strict=True):
        tick.set_color(colour)
    axes.set_ylim(len(names) + 0.5, -0.6)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)


def broken(angle: Any) -> Any:
    """A line must not be drawn where a wrapped angle jumps to the other side."""
    shown = np.array(angle, dtype=np.float64)
    shown[1:][np.abs(np.diff(shown)) > np.pi] = np.nan
    return shown


def draw_wrist(axes: Axes, outcome: demo.Outcome) -> None:
    title(
        axes, "Wrist angle, turning through π", "between +π and -π a plain lerp answers angles that the wrist never had"
    )
    sensor, t = outcome.sensors["wrist"], arm.seconds(outcome.targets)
    fine = np.linspace(0, arm.DURATION, 8001)
    truth = sensor.truth(fine)[:, 0]
    naive = demo.float32_lerp(sensor, outcome.targets, arm.EPOCH)[:, 0]
    ours = arm.wrapped(np.asarray(outcome.aligned["wrist"].values, dtype=np.float64)[:, 0])
    wrong = np.abs(arm.wrapped(naive - sensor.truth(t)[:, 0])) > np.radians(10)

    def lines(where: Axes, scale: float) -> None:
        where.plot(fine, broken(truth), color="#CFCFCF", linewidth=7 * scale, solid_capstyle="butt", zorder=1)
        where.plot(t, naive, color=BAD, linewidth=1.1, zorder=2)
        where.plot(t, broken(ours), color=OURS, linewidth=2.6, zorder=3)
        dots: dict[str, Any] = {
            "markersize": 2.3 * scale,
            "markerfacecolor": "white",
            "markeredgecolor": INK,
            "markeredgewidth": 0.5 * scale,
        }
        where.plot(arm.seconds(sensor.stamps), sensor.values[:, 0], "o", **dots, zorder=6)
        where.plot(t[wrong], naive[wrong], "x", color=BAD, markersize=6 * scale, markeredgewidth=1.7, zorder=5)
        for height in (-np.pi, np.pi):
            where.axhline(height, color=FAINT, linewidth=0.7, linestyle=(0, (4, 4)), zorder=0)

    lines(axes, 1.0)
    axes.set_yticks([-np.pi, -np.pi / 2, 0, np.pi / 2, np.pi], ["-π", "-π/2", "0", "π/2", "π"])
    axes.set_ylim(-3.6, 3.6)
    beside(axes, 2.7, "○  samples", INK)
    beside(axes, 1.75, "━  truth", "#9A9A9A", weight="bold")
    beside(axes, 0.8, "━  RoboCache", OURS, weight="bold")
    beside(axes, -0.15, "✕  float32 lerp", BAD, weight="bold")

    # The moment of one turn, in the room that the curve leaves.
    turn = fine[1:][np.abs(np.diff(truth)) > np.pi]
    middle = turn[2]
    zoom = axes.inset_axes((2.38, -3.35, 1.42, 4.0), transform=axes.transData)
    lines(zoom, 1.8)
    near = np.abs(t - middle) < ZOOM
    zoom.plot(t[near], ours[near], "s", color=OURS, markersize=6.5, zorder=4)
    zoom.set(xlim=(middle - ZOOM, middle + ZOOM), ylim=(-3.9, 3.9), xticks=[], yticks=[])
    zoom.spines[:].set_color(FAINT)
    zoom.set_title(f"{2000 * ZOOM:.0f} ms about the turn", fontsize=8.5, color=FAINT, pad=3)


def apart(heights: dict[str, float], least: float) -> dict[str, float]:
    """Labels on a log axis, pushed up where they would touch the one below."""
    placed: dict[str, float] = {}
    floor = -np.inf
    for name, height in sorted(heights.items(), key=lambda item: item[1]):
        floor = max(np.log10(height), floor + least)
        placed[name] = float(10**floor)
    return placed


def draw_age(axes: Axes, outcome: demo.Outcome) -> None:
    title(axes, "Age of what a robot had at that moment (causal=True)", "shaded: older than max_gap, so valid is false")
    t, heights = arm.seconds(outcome.targets), {}
    for name, sensor in outcome.sensors.items():
        aligned = outcome.causal[name]
        milliseconds = np.maximum(np.asarray(aligned.age) * 1e-6, LEAST_AGE)
        invalid = np.where(np.asarray(aligned.valid), np.nan, milliseconds)
        axes.plot(t, invalid, color=BAD, alpha=0.2, linewidth=12, solid_capstyle="butt", zorder=1)
        style: dict[str, Any] = (
            {"marker": ".", "markersize": 3.4, "linestyle": "none"} if sensor.rate else {"linewidth": 1.2}
        )
        axes.plot(t, milliseconds, color=COLOURS[name], zorder=2, **style)
        heights[name] = float(np.median(milliseconds[-25:]))
    axes.set_yscale("log")
    axes.set_ylim(0.8 * LEAST_AGE, 15_000)
    axes.set_yticks([1, 10, 100, 1000, 10_000], ["1 ms", "10 ms", "100 ms", "1 s", "10 s"])
    axes.minorticks_off()
    axes.grid(axis="y", color="#E6E6E6", linewidth=0.7)
    axes.set_axisbelow(True)
    for name, height in apart(heights, 0.36).items():
        beside(axes, height, name, LETTERS[name])
