"""The figure of `robocache demo FILE`: when each stream had samples, where it had gaps, and how old its data was."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from robocache._demo.arm import Array
from robocache._demo.figure import BAD, FAINT, INK, save
from robocache._recordings.sync_report import SyncReport

MOST = 20  # streams
TICKS = 1500  # samples of a stream that are drawn one by one; of more, the bar alone


def draw(
    path: Path, title: str, times: Mapping[str, Array], ages: Mapping[str, Array], at: Array, sync: SyncReport
) -> None:
    """times: of each stream's samples; ages: of its values at the targets `at`. All nanoseconds."""
    names = list(times)[:MOST]
    start = min((int(times[name][0]) for name in names if len(times[name])), default=0)
    figure = Figure(figsize=(11, 2.6 + 0.32 * len(names)), dpi=120, facecolor="white")
    rows, below = figure.subplots(2, 1, sharex=True, height_ratios=[max(0.3 * len(names), 0.6), 1.6])
    figure.subplots_adjust(left=0.24, right=0.86, top=0.92, bottom=0.09, hspace=0.22)
    for axes in (rows, below):
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(FAINT)
        axes.tick_params(labelcolor=INK, labelsize=9, color=FAINT)
    for row, name in enumerate(names):
        row_of(rows, row, (times[name] - start) * 1e-9, sync.streams.get(name))
    rows.set_yticks(range(len(names)), [name if len(name) < 32 else f"...{name[-29:]}" for name in names])
    rows.set_ylim(len(names) - 0.5, -0.5)
    rows.set_title(title, loc="left", fontsize=10.5, color=INK, weight="bold")
    for row, name in enumerate(names):
        if name in ages and len(at):
            age = np.where(ages[name] < 0, np.nan, ages[name]) * 1e-6
            below.plot((at - start) * 1e-9, age.clip(0.05), color=f"C{row % 10}", linewidth=0.8)
    below.set_yscale("log")
    below.set_ylabel("age, ms", fontsize=9, color=INK)
    below.set_xlabel("seconds since the first sample", fontsize=9, color=INK)
    path.parent.mkdir(parents=True, exist_ok=True)
    save(figure, path)


def row_of(axes: Any, row: int, seconds: Array, found: Any) -> None:
    if not len(seconds):
        return
    steps = np.diff(seconds)
    threshold = np.inf if found is None or found.gap_threshold_ms is None else found.gap_threshold_ms * 1e-3
    gaps = np.flatnonzero(steps > threshold)
    begins, ends = seconds[[0, *(gaps + 1)]], seconds[[*gaps, len(seconds) - 1]]
    axes.broken_barh(
        list(zip(begins, np.maximum(ends - begins, 1e-3), strict=True)),
        (row - 0.3, 0.6),
        color=f"C{row % 10}",
        alpha=0.3,
    )
    lost = list(zip(seconds[gaps], steps[gaps], strict=True))
    if lost:
        axes.broken_barh(lost, (row - 0.06, 0.12), color=BAD)
    if len(seconds) <= TICKS:
        axes.vlines(seconds, row - 0.3, row + 0.3, color=f"C{row % 10}", linewidth=0.6)
    rate = "irregular" if found is None or found.rate_hz is None else f"{found.rate_hz:.4g} Hz"
    gap = f", {len(gaps)} gap{'' if len(gaps) == 1 else 's'}" if len(gaps) else ""
    colour = BAD if found is not None and found.level == "bad" else INK
    axes.annotate(
        f"{rate}{gap}", (1.01, row), xycoords=("axes fraction", "data"), va="center", fontsize=9, color=colour
    )
