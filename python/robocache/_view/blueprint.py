"""The viewer's first layout: gaps above, plots below, pictures and 3D beside them."""

from __future__ import annotations

from typing import Any

from robocache._recordings.words import counted
from robocache._view.numbers import AGE, ALIGNED, KNOWN, RAW, STATE, Shown
from robocache._view.pictures import CAMERA
from robocache._view.sink import RECORDING, Sink, label

AT_ONCE = 3  # plots in a tab; more plots get more tabs
MOST_CAMERAS = 6  # in a tab


def blueprint_of(sink: Sink, shown: Shown) -> Any:
    import rerun.blueprint as rrb

    def whole(path: str) -> str:
        return f"/{path}/**"

    axis = rrb.TimeAxis(link=rrb.components.LinkAxis.LinkToGlobal)
    linked = {"axis_x": axis, "plot_legend": rrb.PlotLegend(visible=False)}
    plots = []
    for name in shown.numbers:
        parts = shown.paths[name]
        contents = [f"/{sink.path(kind, *parts)}" for kind in (RAW, ALIGNED, KNOWN)]
        plots.append(rrb.TimeSeriesView(origin="/", contents=contents, name=label(name), **linked))
    left: list[Any] = []
    if shown.numbers:
        words = {ALIGNED: "aligned", KNOWN: "as a robot knew it"}
        kinds = [kind for kind in words if kind == ALIGNED or shown.knows]
        states = [
            rrb.StateTimelineView(origin=f"/{STATE}/{kind}", name=f"Valid, stale, gaps: {words[kind]}", time_view=axis)
            for kind in kinds
        ]
        ages = [rrb.TimeSeriesView(origin=f"/{AGE}/{kind}", name=f"Age, ms: {words[kind]}", **linked) for kind in kinds]
        left = [one_or_tabs(rrb, states), in_tabs(rrb, plots, AT_ONCE), one_or_tabs(rrb, ages)]
    right: list[Any] = []
    cameras = [
        rrb.Spatial2DView(origin=f"/{sink.path(CAMERA, *shown.paths[name])}", name=label(name))
        for name in shown.cameras
    ]
    if cameras:
        grids = [rrb.Grid(*cameras[k : k + MOST_CAMERAS]) for k in range(0, len(cameras), MOST_CAMERAS)]
        right.append(one_or_tabs(rrb, grids))
    space = []
    if shown.space:
        space.append(rrb.Spatial3DView(origin="/", contents=[whole(path) for path in [*shown.space, "tf"]], name="3D"))
    if shown.voxels:
        contents = [whole(path) for path in [*shown.voxels, "tf"]]
        space.append(rrb.Spatial3DView(origin="/", contents=contents, name="Voxels"))
    right += [one_or_tabs(rrb, space)] if space else []
    right.append(rrb.TextDocumentView(origin="/about", name="About"))
    column = rrb.Vertical(*right, row_shares=[3] * (len(right) - 1) + [2])
    if not left:
        root: Any = column
    else:
        shares = [min(1.0 + 0.3 * len(shown.numbers), 3.0), 4.5, 1.2]
        root = rrb.Horizontal(rrb.Vertical(*left, row_shares=shares), column, column_shares=[3, 2])
    return rrb.Blueprint(
        root,
        rrb.TimePanel(state="collapsed", timeline=RECORDING),
        rrb.BlueprintPanel(state="collapsed"),
        rrb.SelectionPanel(state="collapsed"),
        auto_views=False,
    )


def one_or_tabs(rrb: Any, views: list[Any]) -> Any:
    return views[0] if len(views) == 1 else rrb.Tabs(*views)


def in_tabs(rrb: Any, views: list[Any], at_once: int) -> Any:
    """The views below each other, in tabs of at most `at_once` views."""
    pages = [views[k : k + at_once] for k in range(0, len(views), at_once)]
    made = [page[0] if len(page) == 1 else rrb.Vertical(*page, name=name_of(page)) for page in pages]
    return one_or_tabs(rrb, made)


def name_of(page: list[Any]) -> str:
    return f"{page[0].name} ... {page[-1].name}"


def text_of(title: str, shown: Shown, rate: float) -> str:
    """The page About, in Markdown."""
    lines = [f"# {escaped(title)}", ""]
    lines += [f"{counted(shown.samples, 'sample')}; {counted(shown.steps, 'step')} at {rate:.4g} Hz.", ""]
    lines += [
        "**Plots.** Points: samples as recorded. Bright lines: values aligned on the timeline; there is none where "
        "nothing is valid. Dark steps: what a robot knew at that moment, from what had arrived.",
        "",
        "**Bands.** *valid*: the data supports the value. *stale*: the samples lie further apart, or arrived later, "
        "than the stream's rate explains. *gap*: further apart than `max_gap`. *outside*: before the first or after "
        "the last sample. *nothing yet*: no sample had arrived.",
        "",
        "**Time.** The menu below chooses the clock: *recording*, when samples were taken, or *arrival*, when they "
        "reached the robot.",
    ]
    if shown.notes:
        lines += ["", "**Notes**", "", *(f"- {escaped(note)}" for note in shown.notes)]
    return "\n".join(lines)


def escaped(text: str) -> str:
    r"""The text escaped, so that Markdown shows it literally, as a\_b."""
    text = label(text)
    return "".join(f"\\{letter}" if letter in "\\`*_{}[]<>#|!&~" else letter for letter in text).replace("\n", " ")
