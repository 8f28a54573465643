"""Shows batches as a policy gets them, window by window: pictures, and the steps of every key with valid and age.
Beside them are the recorded samples that they are made of.

The timeline "step" counts from the window's anchor. The timeline "recording" is the recording's clock.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache._align.frames import on_host_as_table
from robocache._loader.loader import Loader
from robocache._loader.mixture import Mixture
from robocache._loader.pictures import Picture
from robocache._recordings.source import Array
from robocache._recordings.words import counted
from robocache._view.aligned import COLOURS, NEVER, STATES, sampled
from robocache._view.blueprint import escaped, in_tabs, one_or_tabs
from robocache._view.numbers import MOST_CHANNELS, colours_of, visible_of
from robocache._view.pictures import decodable, samples_of, send_pictures, times_of
from robocache._view.reduce import bucket_of, reduced
from robocache._view.show import Viewed, opened_sink
from robocache._view.sink import SINCE_1970, Sink, Times, label, paths_of, strictly

MOST_WINDOWS = 8
MOST_RECORDED = 32  # pictures behind a window, of a camera
STEP = "step"
MARGIN = 0.25  # of a window's span: recorded samples are shown this long before and after it


def view_batch(what: Any, *, behind: Any, first: int | str, most: int, output: str | os.PathLike[str] | None) -> Viewed:
    """Shows `what`: a batch, or the first batch of a loader or a mixture. behind: the loader that made the batch."""
    batch: Mapping[str, Any]
    if isinstance(what, Mapping):
        batch, loader = what, behind
        if loader is not None and not isinstance(loader, (Loader, Mixture)):
            raise TypeError(f"view: behind is of type {type(loader).__name__}; expected the batch's loader")
    else:
        batch, loader = what.batch(0), what  # which does not move the loader's position
    host = {name: on_host_as_table(array) for name, array in batch.items() if hasattr(array, "shape")}
    keys = [name for name in host if f"{name}.valid" in host]
    if not keys:
        raise ValueError("view: the batch has no entry with .valid beside it")
    count = len(host[f"{keys[0]}.valid"])
    if not isinstance(first, int) or not 0 <= first < count:
        raise ValueError(f"view: episode is {first!r}; the batch has {counted(count, 'window')}, from 0 on")
    rows = list(range(first, min(first + MOST_WINDOWS, count)))
    anchors = host.get("time", np.zeros(count, np.int64))
    with strictly(), opened_sink("batch", output, bool(np.median(anchors) > SINCE_1970)) as (sink, viewed):
        window = Windows(sink, host, keys, makers_of(loader, host, keys), most)
        for row in rows:
            window.show(row)
        window.finish(viewed, rows, count)
    return viewed


class Maker(NamedTuple):
    """The loader that made a row, and its names of the keys."""

    source: str  # the name of the loader in a mixture; "" if there is no mixture
    loader: Loader
    keys: Mapping[str, str]  # the key's name in the batch -> its name in the loader

    def entry(self, name: str) -> Any:
        return self.loader._entries[self.keys[name]] if name in self.keys else None

    def offsets(self, name: str) -> NDArray[np.int64]:
        found: NDArray[np.int64] = self.loader.keys[self.keys[name]].offsets(self.loader.rate)
        return found


def makers_of(loader: Any, batch: Mapping[str, Array], keys: Sequence[str]) -> list[Maker]:
    """The maker of each row. Empty: it is not known."""
    if isinstance(loader, Loader):
        one = Maker("", loader, {name: name for name in keys if name in loader.keys})
        return [one] * len(batch[f"{keys[0]}.valid"])
    if not isinstance(loader, Mixture) or "source" not in batch:
        return []
    made = []
    for source, each in loader.sources.items():
        names = {loader.names.get(source, {}).get(key, key): key for key in each.keys}
        made.append(Maker(source, each, {name: names[name] for name in keys if name in names}))
    return [made[int(number)] for number in batch["source"]]


class Windows:
    """The windows of a batch, one after the other."""

    def __init__(self, sink: Sink, batch: Mapping[str, Array], keys: list[str], makers: list[Maker], most: int) -> None:
        self.sink, self.batch, self.keys, self.makers, self.most = sink, batch, keys, makers, most
        self.paths = paths_of(keys)
        self.pictures = [name for name in keys if is_picture(batch[name], makers, name)]
        self.samples = 0
        self.behind: dict[int, list[str]] = {}  # the paths of recorded samples, by window
        self.notes: list[str] = []
        if not makers:
            self.notes.append(
                "steps are counted from the first one, and no samples stand behind them: rc.view(loader), or "
                "behind=loader, shows both"
            )

    def show(self, row: int) -> None:
        anchor = int(self.batch["time"][row]) if "time" in self.batch else 0
        for name in self.keys:
            values, valid = self.batch[name][row], self.batch[f"{name}.valid"][row]
            offsets = self.offsets(row, name, len(valid))
            times = Times(anchor + offsets, anchor + offsets)
            if name in self.pictures:
                self.show_pictures(row, name, values, offsets, times)
            else:
                self.show_numbers(row, name, values, offsets, times)
            self.show_states(row, name, valid, offsets, times)
            if f"{name}.age" in self.batch:
                self.show_ages(row, name, self.batch[f"{name}.age"][row], offsets, times)
        if self.makers and {"episode", "time"} <= self.batch.keys():  # a transform may have taken them out
            self.show_behind(row, anchor, self.makers[row])

    def offsets(self, row: int, name: str, steps: int) -> NDArray[np.int64]:
        """Nanoseconds from the anchor to each step. Without a loader they are not known, and a step counts as 1 s.

        If the row's source lacks the key, the steps are those of another source; the key is then never valid.
        """
        for maker in self.makers[row : row + 1] + self.makers:
            if name in maker.keys:
                return maker.offsets(name)
        return np.arange(steps, dtype=np.int64) * 10**9

    def path(self, row: int, kind: str, name: str) -> str:
        return self.sink.path(f"window-{row}", kind, *self.paths[name])

    def show_numbers(self, row: int, name: str, values: Array, offsets: NDArray[np.int64], times: Times) -> None:
        flat = values.reshape(len(values), -1)[:, :MOST_CHANNELS].astype(np.float64)
        if not flat.shape[1]:
            return
        path, width = self.path(row, "policy", name), flat.shape[1]
        self.sink.on_steps(path, STEP, offsets, times, [self.sink.scalars(flat)])
        names = [label(f"{name}[{k}]") for k in range(width)]
        style = {"colors": colours_of(width), "names": names, "visible_series": visible_of(flat)}
        if len(flat) > 1:
            self.sink.static(path, self.sink.rr.SeriesLines(widths=[1.5] * width, **style))
        else:  # one step makes no line
            self.sink.static(path, self.sink.rr.SeriesPoints(marker_sizes=[4.0] * width, **style))
        self.samples += len(flat)

    def show_pictures(self, row: int, name: str, values: Array, offsets: NDArray[np.int64], times: Times) -> None:
        pictures = as_bytes(values, self.makers[row].entry(name) if self.makers else None)
        send_pictures(
            self.sink,
            self.path(row, "picture", name),
            times,
            list(pictures),
            lambda path, at, columns: self.sink.on_steps(path, STEP, offsets, at, columns),
        )
        self.samples += len(pictures)

    def show_states(self, row: int, name: str, valid: Array, offsets: NDArray[np.int64], times: Times) -> None:
        """A state for each step. The last one ends a step later."""
        step = int(offsets[-1] - offsets[-2]) if len(offsets) > 1 else 10**8
        words = ["valid" if each else "gap" for each in valid] + [""]
        at = np.append(offsets, offsets[-1] + step)
        ends = Times(*(np.append(array, array[-1] + step) for array in times))
        path = self.path(row, "state", name)
        descriptor = self.sink.rr.StateChange.descriptor_state()
        self.sink.on_steps(path, STEP, at, ends, [(descriptor, self.sink.texts(words))])
        about = self.sink.rr.StateConfiguration(
            values=list(STATES), labels=["valid", "stale", "not valid"], colors=np.asarray(COLOURS, np.uint32)
        )
        self.sink.static(path, about)

    def show_ages(self, row: int, name: str, age: Array, offsets: NDArray[np.int64], times: Times) -> None:
        values = np.where(age == NEVER, np.nan, age * 1e-6).reshape(-1, 1)
        path = self.path(row, "age", name)
        self.sink.on_steps(path, STEP, offsets, times, [self.sink.scalars(values)])
        kind = self.sink.rr.SeriesLines if len(values) > 1 else self.sink.rr.SeriesPoints
        self.sink.static(path, kind(names=label(f"{name}, ms")))

    # ---- The samples behind it

    def show_behind(self, row: int, anchor: int, maker: Maker) -> None:
        """The recorded samples of the window's streams, in the window and MARGIN around it."""
        episode = maker.loader.cache.episodes[int(self.batch["episode"][row])]
        made = self.behind.setdefault(row, [])
        for name in maker.keys:
            offsets = maker.offsets(name)
            margin = max(int(MARGIN * (offsets[-1] - offsets[0])), round(2e9 / maker.loader.rate))
            first, last = anchor + int(offsets[0]) - margin, anchor + int(offsets[-1]) + margin
            for member in maker.loader._members[maker.keys[name]]:
                if member.stored not in episode._entries:
                    continue
                if name in self.pictures:
                    stream = episode.streams[member.camera or member.stored]
                    if self.show_recorded_pictures(row, name, stream, anchor, (first, last)):
                        made.append(name)
                    continue
                one = sampled(member.stored, episode.streams.stored(member.stored))
                begin, end = np.searchsorted(one.times, [first, last + 1])
                part = slice(max(int(begin) - 1, 0), int(end) + 1)  # from the sample that is held at the first step
                flat = one.values[part].reshape(len(one.times[part]), -1)[:, :MOST_CHANNELS]
                if not flat.size:
                    continue
                times = Times(one.times[part], one.arrivals[part])
                rows = reduced(times, flat, bucket_of(len(flat), flat.shape[1], self.most))
                path = self.sink.path(f"window-{row}", "recorded", *self.paths[name], member.stored)
                steps = rows.times.recording - anchor
                self.sink.on_steps(path, STEP, steps, rows.times, [self.sink.scalars(rows.values)])
                width = flat.shape[1]
                names = list(one.channels[:width])
                style = {"colors": colours_of(width), "names": names, "visible_series": visible_of(rows.values)}
                self.sink.static(path, self.sink.rr.SeriesPoints(marker_sizes=[2.0] * width, **style))
                made.append(name)

    def show_recorded_pictures(self, row: int, name: str, stream: Any, anchor: int, span: tuple[int, int]) -> bool:
        """Shows some of a camera's pictures, without the policy's crop and augmentation. False: there are none."""
        times, samples = times_of(stream), samples_of(stream)
        begin, end = np.searchsorted(times.recording, [span[0], span[1] + 1])
        wanted = np.arange(max(int(begin) - 1, 0), min(int(end) + 1, len(samples)))
        why: Exception | None
        try:
            rows, found, why = decodable(samples, wanted[:: max(-(-len(wanted) // MOST_RECORDED), 1)])
        except ModuleNotFoundError as error:
            rows, found, why = wanted[:0], [], error
        if why is not None:
            self.notes = list(dict.fromkeys([*self.notes, f"{name}: recorded pictures are not shown: {why}"]))
        same = [
            k for k, picture in enumerate(found) if (picture.shape, picture.dtype) == (found[0].shape, found[0].dtype)
        ]
        if same:
            path, at = self.path(row, "recorded", name), times.at(rows[same])
            steps = at.recording - anchor
            send_pictures(
                self.sink,
                path,
                at,
                [found[k] for k in same],
                lambda path, at, columns: self.sink.on_steps(path, STEP, steps, at, columns),
            )
        return bool(same)

    # ---- The whole

    def finish(self, viewed: Viewed, rows: list[int], count: int) -> None:
        if len(rows) < count:
            shown = f"windows {rows[0]} to {rows[-1]} of {count} are shown"
            self.notes.insert(0, f"{shown}; episode={(rows[-1] + 1) % count} (the first one) shows others")
        document = self.sink.rr.TextDocument(self.text(rows), media_type="text/markdown")
        self.sink.static("about", document)
        viewed.blueprint = self.blueprint(rows)
        self.sink.recording.send_blueprint(viewed.blueprint)
        viewed.notes, viewed.samples, viewed.sent = self.notes, self.samples, self.sink.sent
        viewed.steps = sum(len(self.batch[f"{name}.valid"][0]) for name in self.keys) * len(rows)

    def blueprint(self, rows: list[int]) -> Any:
        import rerun.blueprint as rrb

        axis = rrb.TimeAxis(link=rrb.components.LinkAxis.LinkToGlobal)
        linked = {"axis_x": axis, "plot_legend": rrb.PlotLegend(visible=False)}
        tabs = []
        for row in rows:
            origin = f"/{self.sink.path(f'window-{row}')}"
            pairs = []
            for name in self.keys:
                if name in self.pictures:
                    continue
                policy = rrb.TimeSeriesView(
                    origin="/",
                    contents=[f"/{self.path(row, 'policy', name)}"],
                    name=label(f"{name}: the policy's"),
                    **linked,
                )
                if name in self.behind.get(row, ()):
                    contents = [f"/{self.path(row, 'recorded', name)}/**"]
                    recorded = rrb.TimeSeriesView(
                        origin="/", contents=contents, name=label(f"{name}: as recorded"), **linked
                    )
                    pairs.append(rrb.Horizontal(policy, recorded, name=label(name)))
                else:
                    pairs.append(policy)
            left = [rrb.StateTimelineView(origin=f"{origin}/state", name="Valid", time_view=axis)]
            left += [in_tabs(rrb, pairs, 3)] if pairs else []
            left.append(rrb.TimeSeriesView(origin=f"{origin}/age", name="Age, ms", **linked))
            right: list[Any] = []
            for name in self.pictures:
                kinds = {"picture": name}
                if name in self.behind.get(row, ()):
                    kinds = {"picture": f"{name}: the policy's", "recorded": f"{name}: as recorded"}
                views = [
                    rrb.Spatial2DView(origin=f"/{self.path(row, kind, name)}", name=label(title))
                    for kind, title in kinds.items()
                ]
                right.append(views[0] if len(views) == 1 else rrb.Horizontal(*views, name=label(name)))
            right.append(rrb.TextDocumentView(origin="/about", name="About"))
            shares = [0.8 + 0.4 * len(self.keys), 5, 1.2] if pairs else [1, 1]
            page = rrb.Horizontal(
                rrb.Vertical(*left, row_shares=shares), rrb.Vertical(*right), column_shares=[5, 2], name=f"window {row}"
            )
            tabs.append(page)
        return rrb.Blueprint(
            one_or_tabs(rrb, tabs),
            rrb.TimePanel(state="collapsed", timeline=STEP),
            rrb.BlueprintPanel(state="collapsed"),
            rrb.SelectionPanel(state="collapsed"),
            auto_views=False,
        )

    def text(self, rows: list[int]) -> str:
        lines = ["# Batch", "", f"{counted(len(rows), 'window')}, {counted(len(self.keys), 'key')}.", ""]
        for row in rows:
            said = [f"window {row}"]
            if self.makers and self.makers[row].source:
                said.append(escaped(self.makers[row].source))
            if "episode" in self.batch:
                said.append(f"episode {int(self.batch['episode'][row])}")
            if "position" in self.batch:
                said.append(f"position {int(self.batch['position'][row])}")
            lines.append(f"- {', '.join(said)}")
        lines += [
            "",
            "**The policy's**: the tensors of the batch, normalised as they are. **As recorded**: the samples behind "
            "them. The timeline *step* counts from the anchor, *recording* is the recording's clock.",
        ]
        lines += ["", "**Notes**", "", *(f"- {escaped(note)}" for note in self.notes)] if self.notes else []
        return "\n".join(lines)


# ---- Pictures


def is_picture(values: Array, makers: Sequence[Maker], name: str) -> bool:
    """Whether an entry has pictures: as the loader says, otherwise by its shape [B, T, C, H, W] or [B, T, H, W, C]."""
    entry = next((maker.entry(name) for maker in makers if name in maker.keys), None)
    if entry is not None:
        return isinstance(entry, Picture)
    return values.ndim == 5 and (values.shape[2] in (1, 3, 4) or values.shape[4] in (1, 3, 4))


def as_bytes(values: Array, entry: Any) -> Array:
    """Pictures of a window as uint8 [T, H, W, C], for people. The loader's mean and std are undone. Depth, and values
    without a loader, are scaled from the least to the largest if they are not from 0 to 1.
    """
    if values.ndim == 3:  # depth without a channel
        values = values[:, None]
    layout = getattr(entry, "layout", None)
    is_first = layout == "nchw" if layout is not None else values.shape[1] in (1, 3, 4)
    pictures = np.moveaxis(values, 1, -1) if is_first else values
    if pictures.dtype == np.uint8:
        return np.ascontiguousarray(pictures)
    pictures = pictures.astype(np.float32)
    mean, std = getattr(entry, "mean", None), getattr(entry, "std", None)
    if mean is not None and std is not None:
        pictures = pictures * np.asarray(std, np.float32) + np.asarray(mean, np.float32)
    elif entry is None or float(getattr(entry, "white", 255.0)) != 255.0:
        known = pictures[np.isfinite(pictures)]
        low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
        if not 0 <= low <= high <= 1:
            pictures = (pictures - low) / max(high - low, 1e-12)
    return np.ascontiguousarray(np.rint(np.clip(np.nan_to_num(pictures), 0, 1) * 255).astype(np.uint8))
