"""`robocache info`: what is in a recording, and what its timing is like."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robocache import _build, _report
from robocache._clock import clock_name
from robocache._core import FileError
from robocache._recipe import first_recipe
from robocache._recording import Recording, counted
from robocache._recording import open as open_recording
from robocache._sync import SyncReport, sync_report

MOST_EPISODES = 12  # rows of their table


def gather(recording: Recording, full: bool, gap: float | None, show: bool) -> tuple[dict[str, Any], SyncReport]:
    with _build.progress("reading", show) as told:
        name = Path(recording.path).name
        report = sync_report(
            recording, full=full, gap=gap, progress=lambda b: told(name, _build.share_of(recording, b))
        )
    episodes = [
        {"name": episode.name, "task": episode.task, "start": episode._part.start, "end": episode._part.end}
        for episode in recording.episodes
    ]
    return {"path": recording.path, "format": recording.format, "episodes": episodes, "sync": report.as_dict()}, report


def show(recording: Recording, report: SyncReport) -> None:
    rows = []
    for stream in report.streams.values():
        shape = "" if stream.shape is None else f"{stream.dtype} [{', '.join(map(str, stream.shape))}]"
        rows.append([stream.name, stream.type, shape or "-", f"{stream.samples:,}"])
    for name, content in recording.listed().items():
        if not any(stream == name or stream.startswith(f"{name}/") for stream in report.streams):
            rows.append([name, content.type, "-", f"{content.samples:,}, no numbers" if content.samples else "0"])
    _report.table(f"{recording.path}: {recording.format}", ("stream", "type", "sample", "samples"), rows)
    if len(recording.episodes) > 1:
        some = recording.episodes[:MOST_EPISODES]
        rows = [[str(e.index), e.name, f"{e.duration:.2f} s", e.task or "-"] for e in some]
        title = f"Episodes: {len(recording.episodes)}"
        title += f", the first {MOST_EPISODES}" if len(recording.episodes) > MOST_EPISODES else ""
        _report.table(title, ("", "name", "length", "task"), rows)
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
    """One row for each recording of a folder; the reports, and the sentences of those that cannot be read."""
    rows, every, reports, failed = [], [], [], []
    for place in places:
        name = str(Path(place).relative_to(path))
        try:
            recording = open_recording(place, time, rate=rate, msg_path=msg_path)
            found, report = gather(recording, full, gap, not as_json)
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:  # as a build: one recording that fails does not stop the others
            sentence = _build.sentence_of(place, error)
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
    _report.table(title, ("recording", "format", "episodes", "length", "clock", "verdict"), rows)
    _report.paragraph(f"One of them in full: robocache info {shlex.quote(places[0])}")
    return reports, failed


def write_recipe(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise FileError(f"{path}: is there already, and may have been edited; it is not overwritten") from None


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
    """rate, msg_path: as the recording was opened with; a recipe says them, too."""
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
        _report.paragraph(f"Recipe: {recipe}. Edit it, then: {shlex.join(words)}")
    return report
