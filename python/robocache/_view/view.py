"""rc.view: shows recordings, caches, aligned results and batches in the Rerun viewer."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robocache._align.extent import nanoseconds, on_host, steps_within
from robocache._align.frames import on_host_as_table
from robocache._align.results import Aligned
from robocache._align.stream import Stream
from robocache._align.timeline import Timeline
from robocache._cache.cache import Cache
from robocache._cache.cache_aligned import CacheAligned
from robocache._cache.default_timeline import reach_of
from robocache._cache.prepare import gap_of, names_of, numbers_of, rate_of
from robocache._recordings.recording import Episode, Recording
from robocache._recordings.words import NoStream, counted, missing
from robocache._view import space
from robocache._view.aligned import HostStream, refuse_rows, sampled
from robocache._view.blueprint import blueprint_of, text_of
from robocache._view.numbers import Shown, nothing_in, show_aligned, show_raw
from robocache._view.pictures import is_pictures, show_camera
from robocache._view.show import Viewed, opened_sink
from robocache._view.sink import SINCE_1970, Sink, paths_of, rerun, strictly
from robocache._view.spool import spooled

MOST = 1_000_000  # numbers of a stream in a view
MOST_STEPS = 1 << 27
READING = 0.5  # of the progress, where a file is read
Told = Callable[[str, float], None]


def view(
    what: Any,
    *,
    rate: float = 50.0,
    episode: int | str = 0,
    streams: Sequence[str] | str | None = None,
    behind: Any = None,
    timeline: Any = None,
    gap: float | None = None,
    most: int = MOST,
    output: str | os.PathLike[str] | None = None,
    progress: Told | None = None,
) -> Viewed:
    """Shows data in the Rerun viewer: samples, aligned values, what a robot knew, gaps, ages, pictures, clouds.

    Time runs on two timelines: "recording", the recording's clock, and "arrival", when samples reached the robot. In a
    notebook the viewer is in the cell (with the package rerun-notebook). Elsewhere a window opens if there is a
    display. Without a display a file is written, and the result says how to open it.

    Args:
        what: A recording, an episode or a cache, or the path of one; `{name: Stream}`; the result of `rc.align` or
            `cache.align`; a loader or a mixture, or one of its batches.
        rate: Hertz of the timeline on which streams are aligned.
        episode: The episode, by number or name. For aligned results and batches: the row that is shown first.
        streams: The names of the streams that are shown. Default: all.
        behind: What the data was made from: for aligned results `{name: Stream}`, for a batch its loader.
        timeline: For the result of `rc.align`: the timeline of that call, or its times. For streams: the timeline to
            align on; by default from the first to the last sample of all streams, at `rate`.
        gap: Seconds: values between samples that are further apart are stale. Default: the stream's `max_gap`, else 3
            median periods.
        most: The most numbers of a stream that the view has. Longer streams are shown by the least and the largest
            value of each bucket of samples.
        output: The file to write, such as "run.rrd". Then no viewer opens.
        progress: Called with what is being done, and the fraction that is done, from 0 to 1.

    Returns:
        A `Viewed`: the `path` of the file, `notes` about what is not shown, and how to open the file.

    Raises:
        ModuleNotFoundError: Rerun is not installed: `pip install 'robocache[view]'`.

    Examples:
        >>> rc.view(rc.open("run.mcap"))
        >>> rc.view("cache", episode=3, rate=30, output="episode.rrd")
        >>> rc.view(rc.align(streams, timeline), timeline=timeline, behind=streams)
        >>> rc.view(loader)
    """
    rerun()
    rate = rate_of("view", rate, 1e6)
    if isinstance(most, bool) or not isinstance(most, (int, np.integer)) or most < 1000:
        raise ValueError(f"view: most is {most!r}; expected a number of at least 1000")
    gap = gap_of("view", gap)
    told = progress or (lambda name, share: None)
    if is_batch(what) or is_loader(what):
        from robocache._view.batch import view_batch

        return view_batch(what, behind=behind, first=episode, most=int(most), output=output)
    if is_aligned(what):
        return view_aligned(what, timeline, behind, episode, gap, int(most), output)
    if timeline is not None and not isinstance(timeline, Timeline):
        raise TypeError(f"view: timeline is {timeline!r}; expected an rc.Timeline")
    begun = read = 0.0

    def reading(name: str, share: float) -> None:
        nonlocal begun, read
        begun, read = READING, max(read, share)  # the last batch of a stream may be an early one
        told(name, READING * read)

    with contextlib.ExitStack() as stack:
        title, members, notes = members_of(what, episode, streams, reading, stack)
        for name, stream in members.items():
            refuse_rows(name, stream)
        line = line_of(members, rate) if timeline is None else timeline
        return view_streams(
            title,
            members,
            line,
            gap,
            int(most),
            output,
            notes,
            lambda name, share: told(name, begun + (1 - begun) * share),
        )


def is_loader(what: Any) -> bool:
    return callable(getattr(what, "batch", None)) and hasattr(what, "batch_size")


def is_batch(what: Any) -> bool:
    """Whether `what` is a loader's batch: a dict in which a key has an entry `key.valid` beside it."""
    return isinstance(what, Mapping) and any(isinstance(name, str) and name.endswith(".valid") for name in what)


def is_aligned(what: Any) -> bool:
    values = list(what.values()) if isinstance(what, Mapping) else what if isinstance(what, list) else []
    return isinstance(what, (CacheAligned, Aligned)) or (bool(values) and all(isinstance(v, Aligned) for v in values))


def members_of(
    what: Any, episode: int | str, streams: Sequence[str] | str | None, told: Told, stack: contextlib.ExitStack
) -> tuple[str, dict[str, Stream[Any]], list[str]]:
    """The title, the streams that are shown, and notes."""
    wanted = names_of(streams)
    if isinstance(what, Mapping):
        members = {str(name): stream for name, stream in what.items()}
        for name, stream in members.items():
            if not isinstance(stream, Stream):
                raise TypeError(f'view: "{name}" is of type {type(stream).__name__}; expected an rc.Stream')
        chosen = chosen_of("view: there is no stream", members, wanted)
        return "streams", {name: hosted(stream) for name, stream in chosen.items()}, []
    if isinstance(what, (str, os.PathLike)):
        what = opened(what)
    notes: list[str] = []
    if isinstance(what, (Recording, Cache)):
        if not len(what.episodes):
            raise ValueError(f"view: {what.path}: there is no episode in it")
        [number] = numbers_of("view", what.episodes, [episode])
        if len(what.episodes) > 1:
            notes.append(f"episode {number} of {len(what.episodes)} is shown; --episode (episode=) shows another")
        title = os.path.basename(os.path.abspath(what.path))
        what = what.episodes[number]
    elif hasattr(what, "streams") and hasattr(what, "name"):
        title = what.name
    else:
        raise TypeError(
            f"view: expected a recording, a cache, a path, streams, aligned results, a batch or a loader, not "
            f"{type(what).__name__}"
        )
    every = what.streams
    names = chosen_of("view: there is no stream", dict.fromkeys(every), wanted)
    if isinstance(what, Episode):
        every, more = spooled(what, list(names), told, stack)
        notes += more
        return title, {name: every[name] for name in names if name in every}, notes
    return title, {name: every[name] for name in names}, notes


def hosted(stream: Stream[Any]) -> Stream[Any]:
    """A stream of NumPy arrays."""
    if isinstance(stream.values, np.ndarray):
        return stream
    times, arrivals = (None if each is None else on_host(each) for each in (stream.times, stream.arrivals))
    return stream.replace(values=on_host_as_table(stream.values), times=times, arrivals=arrivals)


def opened(path: str | os.PathLike[str]) -> Any:
    from robocache._recordings.open import is_cache
    from robocache._recordings.open import open as open_recording

    return Cache(path) if is_cache(Path(path)) else open_recording(path)


def chosen_of(sentence: str, members: dict[str, Any], wanted: Sequence[str] | None) -> dict[str, Any]:
    if wanted is None:
        return members
    for name in wanted:
        if name not in members:
            raise NoStream(missing(sentence, name, members))
    return {name: members[name] for name in wanted}


def line_of(members: Mapping[str, Stream[Any]], rate: float) -> Timeline:
    """The timeline from the first to the last sample of all streams that are not static. It covers the time of all
    streams, not only the time that they share, so that missing samples are seen.
    """
    reaches = [reach for name, stream in members.items() if (reach := reach_of(stream, name)) is not None]
    some = [reach for reach in reaches if not reach.is_static] or reaches
    if not some:
        return Timeline(0, rate=rate, count=0)
    start, end = min(reach.first for reach in some), max(reach.last for reach in some)
    count = steps_within(end - start, rate)
    if count > MOST_STEPS:
        raise ValueError(
            f"view: the streams span {(end - start) * 1e-9:,.0f} s, which at {rate:g} Hz is {count:,} steps. Are they "
            'on one clock? robocache info tells; open it with time="log" (--time log), name the streams, or give a '
            "lower rate"
        )
    return Timeline(start, rate=rate, count=count)


def view_streams(
    title: str,
    members: Mapping[str, Stream[Any]],
    line: Timeline,
    gap: float | None,
    most: int,
    output: str | os.PathLike[str] | None,
    notes: Sequence[str],
    told: Told,
) -> Viewed:
    shown = Shown(paths_of(members), notes=list(notes))
    numbers: dict[str, HostStream] = {}
    with strictly(), opened_sink(title, output, has_dates(members)) as (sink, viewed):
        cameras, clouds = kinds_of(members)
        done, total = 0, 2 * len(members)
        for name, stream in members.items():
            told(name, done / max(total, 1))
            done += 1
            if name in cameras:
                show_camera(sink, shown, name, stream)
            elif name not in clouds:
                show_number(sink, shown, numbers, name, stream, gap, most)
        frames = space.show_transforms(sink, shown, members)
        for name in cameras:
            space.show_camera_in_space(sink, shown, name, members[name], members, frames)
        for name in clouds:
            space.show_clouds(sink, shown, name, members[name], frames)
        half = done / max(total, 1)
        show_aligned(sink, shown, numbers, line, most, lambda share: told("aligning", half + (1 - half) * share))
        shown.is_camera_space = bool(shown.space) and not frames and not clouds
        finish(sink, viewed, shown, title, line.rate)
    told("written", 1.0)
    return viewed


def finish(sink: Sink, viewed: Viewed, shown: Shown, title: str, rate: float) -> None:
    """Sends the page About and the layout, and fills in the result."""
    sink.static("about", sink.rr.TextDocument(text_of(title, shown, rate), media_type="text/markdown"))
    if shown.space:
        coordinates = sink.rr.ViewCoordinates
        sink.static("/", coordinates.RDF if shown.is_camera_space else coordinates.RIGHT_HAND_Z_UP)
    viewed.blueprint = blueprint_of(sink, shown)
    sink.recording.send_blueprint(viewed.blueprint)
    viewed.notes = list(shown.notes)
    viewed.samples, viewed.steps, viewed.sent = shown.samples, shown.steps, sink.sent


def kinds_of(members: Mapping[str, Stream[Any]]) -> tuple[list[str], list[str]]:
    """The names of the cameras, and those of the clouds."""
    infos = {name: getattr(stream, "info", None) for name, stream in members.items()}
    cameras = [name for name, info in infos.items() if is_pictures(info)]
    return cameras, [name for name, info in infos.items() if space.is_cloud(info) and name not in cameras]


def show_number(
    sink: Sink,
    shown: Shown,
    numbers: dict[str, HostStream],
    name: str,
    stream: Stream[Any],
    gap: float | None,
    most: int,
) -> None:
    info = getattr(stream, "info", None)
    if info is not None and info.type.endswith("CameraInfo"):  # used to place the camera in 3D
        return
    if info is not None and info.ragged:
        shown.notes.append(f"{name}: {info.type or 'its samples'} cannot be drawn: the samples vary in length")
        return
    one = sampled(name, stream, gap)
    width = int(np.prod(one.values.shape[1:], dtype=np.int64))
    if not len(one.times):
        shown.notes.append(nothing_in(name))
        return
    if not width or one.values.dtype.kind not in "fiub":
        shown.notes.append(f"{name}: nothing to draw: its samples are no numbers")
        return
    show_raw(sink, shown, one, most)
    numbers[name] = one


def has_dates(members: Mapping[str, Stream[Any]]) -> bool:
    """Whether times are counted from 1970, and shown as dates."""
    starts = [sampled_start(stream) for stream in members.values() if len(stream.times)]
    return bool(starts) and float(np.median(starts)) > SINCE_1970


def sampled_start(stream: Stream[Any]) -> float:
    return float(nanoseconds("view: ", np.asarray(on_host(stream.times)).reshape(-1)[:1])[0])


# ---- Aligned results


def view_aligned(
    what: Any,
    timeline: Any,
    behind: Any,
    episode: int | str,
    gap: float | None,
    most: int,
    output: str | os.PathLike[str] | None,
) -> Viewed:
    """Shows aligned results, and the samples of `behind`."""
    from robocache._view.results import rows_of, show_results

    results, times, note = rows_of(what, timeline, episode)
    if not isinstance(behind, (Mapping, type(None))):
        raise TypeError(f"view: behind is of type {type(behind).__name__}; expected {{name: Stream}}")
    raw = {} if behind is None else dict(behind)
    for name, stream in raw.items():
        if not isinstance(stream, Stream):
            raise TypeError(f'view: behind has "{name}" of type {type(stream).__name__}; expected an rc.Stream')
    shown = Shown(paths_of([*results, *(name for name in raw if name not in results)]), notes=note)
    dates = bool(len(times)) and int(times[0]) > SINCE_1970
    with strictly(), opened_sink("aligned", output, dates) as (sink, viewed):
        numbers: dict[str, HostStream] = {}
        cameras, clouds = kinds_of(raw)
        for name, stream in raw.items():
            refuse_rows(name, stream)
            if name in cameras:
                show_camera(sink, shown, name, stream)
            elif name in clouds:
                space.show_clouds(sink, shown, name, stream, set())
            else:
                show_number(sink, shown, numbers, name, stream, gap, most)
        show_results(sink, shown, results, times, numbers, most)
        rate = 1e9 / float(np.median(np.diff(times))) if len(times) > 1 and np.ptp(times) else 0.0
        finish(sink, viewed, shown, counted(len(results), "aligned stream"), rate)
    return viewed
