"""The figures of the page as SVG, which scales to any width. They have no text: labels are HTML beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from robocache._report.measures import GAP, PIXELS, PRESENT
from robocache._report.moments import COLUMNS

Known = Sequence[float | None]
TALL = 100  # the height of a band or a curve in the SVG's units


def picture(kind: str, size: tuple[float, float], inside: str, label: str) -> str:
    """An SVG that fills its box. `label` is for screen readers, and must be escaped."""
    box = f'viewBox="0 0 {size[0]:g} {size[1]:g}" preserveAspectRatio="none"'
    return f'<svg class="{kind}" {box} role="img" aria-label="{label}">{inside}</svg>'


def bounds(low: Known, high: Known) -> tuple[float, float]:
    """The least and the largest known value. They are never equal."""
    known = [number for number in (*low, *high) if number is not None and math.isfinite(number)]
    least, most = min(known, default=0.0), max(known, default=1.0)
    margin = max(0.5, 1e-6 * abs(least))
    return (least, most) if most > least else (least - margin, most + margin)


def height(value: float, least: float, most: float) -> float:
    """The place of a value between the top (0) and the bottom (TALL). Computed of halves, which cannot overflow."""
    share = (most / 2 - value / 2) / (most / 2 - least / 2)
    return min(max(share, 0.0), 1.0) * TALL


def band(low: Known, high: Known, least: float, most: float) -> str:
    """The path of a band from low to high. It is broken where nothing is known; a single known piece is a dot."""
    parts: list[str] = []
    thin: list[str] = []
    dots: list[str] = []
    for begin, end in runs([a is not None and b is not None for a, b in zip(low, high, strict=True)]):
        there = [
            (k, *(f"{height(each[k] or 0.0, least, most):.0f}" for each in (low, high))) for k in range(begin, end)
        ]
        if len(there) == 1:
            dots.append(f"M{begin} {there[0][2]}V{there[0][1]}h.01")
            continue
        top = "L".join(f"{k} {y}" for k, _, y in there)
        bottom = "L".join(f"{k} {y}" for k, y, _ in reversed(there))
        is_thin = all(lower == upper for _, lower, upper in there)
        (thin if is_thin else parts).append(f"M{top}" if is_thin else f"M{top}L{bottom}Z")
    shown = (("", parts), (' class="thin"', thin), (' class="dots"', dots))
    return "".join(f'<path{kind} d="{"".join(each)}"/>' for kind, each in shown if each)


def runs(mask: Sequence[bool]) -> list[tuple[int, int]]:
    """The runs [begin, end) in which the mask is true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], np.asarray(mask, np.int8), [0]])))
    return list(zip(edges[0::2].tolist(), edges[1::2].tolist(), strict=True))


def boxes(mask: Sequence[bool] | NDArray[np.bool_]) -> str:
    return "".join(f"M{a} 0h{b - a}v1h{a - b}z" for a, b in runs(mask))  # type: ignore[arg-type]


def sparkline(low: Known, high: Known, begin: float, wide: float, label: str) -> str:
    """A band that begins at piece `begin` of a picture that is `wide` pieces wide."""
    least, most = bounds(low, high)
    inside = f'<g transform="translate({begin:.1f} 0)">{band(low, high, least, most)}</g>'
    return picture("spark", (max(wide, begin + len(low), 2), TALL), inside, label)


def held(values: Known, most: float) -> list[float | None]:
    """The values. A run of up to `most` pieces without a sample gets the value before it."""
    found = list(values)
    for begin, end in runs([value is None for value in values]):
        if begin > 0 and end - begin <= most:
            found[begin:end] = [found[begin - 1]] * (end - begin)
    return found


def raster(row: NDArray[np.uint8], episodes: Sequence[int], label: str) -> str:
    """A row of the raster. episodes: the pixels at which episodes begin."""
    inside = f'<path class="there" d="{boxes(row == PRESENT)}"/><path class="gap" d="{boxes(row == GAP)}"/>'
    if episodes:
        inside += f'<path class="cut" d="{"".join(f"M{x} 0v1" for x in episodes)}"/>'
    return picture("raster", (PIXELS, 1), inside, label)


def ticks(columns: NDArray[np.int64], label: str) -> str:
    """A tick for each column of a moment's window that has a sample."""
    mask = np.zeros(COLUMNS, bool)
    mask[np.clip(columns, 0, COLUMNS - 1)] = True
    return picture("ticks", (COLUMNS, 1), f'<path class="there" d="{boxes(mask)}"/>', label)


def ecdf(share: Sequence[float], mark: float, label: str) -> str:
    """A curve over equal steps. mark: where a vertical line is drawn, as a fraction of the width."""
    wide = len(share) - 1
    points = [f"{k} {(1 - part) * TALL:.1f}".removesuffix(".0") for k, part in enumerate(share)]
    kept = [
        point
        for k, point in enumerate(points)
        if k in (0, wide) or not same_height(points[k - 1], point) or not same_height(points[k + 1], point)
    ]
    line = f'<path class="mark" d="M{mark * wide:g} 0V{TALL}"/>'
    return picture("curve", (wide, TALL), f'{line}<path class="line" d="M{"L".join(kept)}"/>', label)


def same_height(one: str, other: str) -> bool:
    return one.split(" ")[1] == other.split(" ")[1]


def delay(low: Known, high: Known, line: Sequence[float] | None, label: str) -> str:
    """The band of arrival - stamp and the line of its drift."""
    least, most = bounds(low, high)
    margin = 0.06 * (most - least)
    least, most = least - margin, most + margin
    inside = band(low, high, least, most)
    if least < 0 < most:
        inside = f'<path class="zero" d="M0 {height(0.0, least, most):.1f}H{len(low)}"/>' + inside
    if line is not None:
        ends = [height(value, least, most) for value in line]
        inside += f'<path class="line" d="M0 {ends[0]:.1f}L{len(low)} {ends[1]:.1f}"/>'
    return picture("delay", (len(low), TALL), inside, label)


def decades(least: float, most: float) -> tuple[int, int]:
    """The exponents of the powers of ten just below the least and just above the largest value."""
    low = math.floor(math.log10(max(least, 1e-3)))
    return low, max(math.ceil(math.log10(max(most, 1e-3))), low + 1)


def age_row(p50: float, p99: float, most: float, period: float | None, scale: tuple[int, int], label: str) -> str:
    """A dot at the median, a bar to the 99th percentile, a thin line to the maximum; the period as a mark."""

    def x(value: float) -> str:
        share = (math.log10(max(value, 1e-9)) - scale[0]) / (scale[1] - scale[0])
        return f"{100 * min(max(share, 0.0), 1.0):.1f}%"

    grid = "".join(
        f'<line class="grid" x1="{100 * k / (scale[1] - scale[0]):.1f}%" x2="{100 * k / (scale[1] - scale[0]):.1f}%" '
        'y1="0" y2="100%"/>'
        for k in range(scale[1] - scale[0] + 1)
    )
    mark = "" if period is None else f'<line class="mark" x1="{x(period)}" x2="{x(period)}" y1="15%" y2="85%"/>'
    return (
        f'<svg class="age" role="img" aria-label="{label}">{grid}'
        f'<line class="thin" x1="{x(p50)}" x2="{x(most)}" y1="50%" y2="50%"/>'
        f'<line class="thick" x1="{x(p50)}" x2="{x(p99)}" y1="50%" y2="50%"/>{mark}'
        f'<circle cx="{x(p50)}" cy="50%" r="4.5"/></svg>'
    )
