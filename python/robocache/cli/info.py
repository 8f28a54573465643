"""`robocache info`: the content of a recording, and its timing."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robocache import _tables
from robocache._cache import build
from robocache._cache.camera_table import CAMERAS, cameras_in
from robocache._cache.first_recipe import first_recipe
from robocache._cache.source import CachedSource
from robocache._core import FileError
from robocache._recordings.clock import clock_name
from robocache._recordings.open import open as open_recording
from robocache._recordings.recording import EPISODES, MOST_EPISODES, Recording, episode_row
from robocache._recordings.sync import sync_report
from robocache._recordings.sync_report import SyncReport
from robocache._recordings.words import counted


def gather(recording: Recording, full: bool, gap: float | None, show: bool) -> tuple[dict[str, Any], SyncReport]:
    with build.progress("reading", show) as told:
        name = Path(recording.path).name
        report = sync_report(recording, full=full, gap=gap, progress=lambda b: told(name, build.share_of(recording, b)))
    episodes = [
        {"name": episode.name, "task": episode.task, "start": episode._part.start, "end": episode._part.end}
        for episode in recording.episodes
    ]
    found = {"path": recording.path, "format": recording.format, "episodes": episodes, "sync": report.as_dict()}
    if isinstance(recording._source, CachedSource):
        found["cameras"] = [camera._asdict() for camera in cameras_in(recording._source.cache)]
    return found, report


def show(recording: Recording, report: SyncReport) -> None:
    rows = []
    for stream in report.streams.values():
        shape = "" if stream.shape is None else f"{stream.dtype} [{', '.join(map(str, stream.shape))}]"
        rows.append([stream.name, stream.type, shape or "-", f"{stream.samples:,}"])
    for name, content in recording.listed().items():
        if not any(stream == name or stream.startswith(f"{name}/") for stream in report.streams):
            rows.append([name, content.type, "-", f"{content.samples:,}, no numbers" if content.samples else "0"])
    _tables.table(f"{recording.path}: {recording.format}", ("stream", "type", "sample", "samples"), rows)
    if len(recording.episodes) > 1:
        some = recording.episodes[:MOST_EPISODES]
        rows = [episode_row(e, e.duration) for e in some]
        title = f"Episodes: {len(recording.episodes)}"
        title += f", the first {MOST_EPISODES}" if len(recording.episodes) > MOST_EPISODES else ""
        _tables.table(title, EPISODES, rows)
    if isinstance(recording._source, CachedSource):
        cameras = cameras_in(recording._source.cache)
        if cameras:
            _tables.table("Cameras", CAMERAS, [camera.row() for camera in cameras])
    report.show()


def folder(
    path: str,
    places: Sequence[str],
    *,
    full: bool,
    as_json: bool,
    gap: float | None,
    time: str,
    rate: float | None,
    msg_path: Sequence[Path] | None,
) -> tuple[list[SyncReport], list[str]]:
    """Prints a row for each recording of a folder. Returns the reports, and the errors of unreadable recordings."""
    rows, every, reports, failed = [], [], [], []
    for place in places:
        name = str(Path(place).relative_to(path))
        try:
            recording = open_recording(place, time, rate=rate, msg_path=msg_path)
            found, report = gather(recording, full, gap, not as_json)
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:  # as in a build, a recording that fails does not stop the others
            sentence = build.sentence_of(place, error)
            failed.append(sentence)
            every.append({"path": place, "error": sentence})
            rows.append([name, "-", "-", "-", "-", "cannot be read"])
            continue
        reports.append(report)
        every.append(found)
        long = f"{report.duration_s:.2f} s"
        clock = "-" if report.clock is None else clock_name(report.clock)
        rows.append([name, recording.format, str(report.episodes), long, clock, report.level])
    if as_json:
        print(json.dumps({"path": path, "recordings": every}, indent=2))
        return reports, failed
    title = f"{path}: {counted(len(places), 'recording')}"
    _tables.table(title, ("recording", "format", "episodes", "length", "clock", "verdict"), rows)
    _tables.paragraph(f"One of them in full: robocache info {shlex.quote(places[0])}")
    return reports, failed


def write_recipe(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise FileError(f"{path}: exists already, and may have been edited; it is not overwritten") from None


def main(
    recording: Recording,
    *,
    full: bool,
    as_json: bool,
    recipe: Path | None,
    gap: float | None,
    rate: float | None = None,
    msg_path: Sequence[Path] | None = None,
) -> SyncReport:
    """Prints everything about a recording. rate, msg_path: as it was opened; a recipe that is written has them too."""
    found, report = gather(recording, full, gap, not as_json)
    if recipe is not None:
        write_recipe(recipe, first_recipe(recording, report, rate, msg_path))
    if as_json:
        print(json.dumps(found, indent=2))
        return report
    show(recording, report)
    if recipe is not None:
        words = ["robocache", "build", recording.path, "-o", "CACHE", "--recipe", str(recipe)]
        words += [] if rate is None else ["--rate", f"{rate:g}"]
        words += [word for folder in msg_path or () for word in ("--msg-path", str(folder))]
        _tables.paragraph(f"Recipe: {recipe}. Edit it, then: {shlex.join(words)}")
    return report
