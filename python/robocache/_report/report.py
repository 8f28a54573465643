"""rc.report: one HTML file about recordings, folders of recordings and caches."""

from __future__ import annotations

import codecs
import contextlib
import datetime
import errno
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from robocache import _core
from robocache._cache.build import expand, sentence_of, share_of
from robocache._cache.first_recipe import first_recipe
from robocache._cache.mends import Mend, mends
from robocache._cache.prepare import gap_of, rate_of
from robocache._core import FileError
from robocache._recordings.recording import Recording
from robocache._recordings.sync import LEVELS, episode_spans, opened, survey
from robocache._recordings.sync_report import SyncReport
from robocache._recordings.words import counted
from robocache._report.difference import FORMAT, VERSION, difference, report_data
from robocache._report.measures import Axis, Measures, has_ages
from robocache._report.moments import Moment, worst
from robocache._report.pictures import BUDGET, add_pictures

MOST_DRAWN = 12  # recordings with figures; the others have a row of a table
MOST_STREAMS = 40  # streams with figures, on a page about one recording
FEW_STREAMS = 12  # the same for each recording, on a page about several
MOST_EPISODES = 200  # in the data of a recording
HTML = (b"<!doctype html", b"<html")  # the first bytes of an HTML file
Progress = Callable[[str, float], None]


@dataclass
class Section:
    """A recording on the page: its data as in the page's JSON, and what is needed only to draw its figures."""

    data: dict[str, Any]
    report: SyncReport
    measures: Measures
    axis: Axis
    moments: list[Moment]
    mends: dict[str, list[Mend]]
    drawn: list[str] = field(default_factory=list)  # the streams that have figures


class Report:
    """The result of `report`. `save` writes the page; a notebook shows it.

    Attributes:
        data: All numbers of the page as plain Python values, equal to the JSON inside the page.
        html: The page.
    """

    def __init__(self, data: dict[str, Any], html: str) -> None:
        self.data = data
        self.html = html

    @property
    def level(self) -> str:
        """ "good", "fair" or "bad": the worst of the recordings."""
        return str(self.data["level"])

    @property
    def verdict(self) -> str:
        """A summary in words."""
        return str(self.data["verdict"])

    @property
    def recordings(self) -> list[dict[str, Any]]:
        """The data of each recording; `["streams"]` has those of each stream, under the names of `StreamReport`."""
        return list(self.data["recordings"])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the page. An earlier page is replaced.

        Args:
            path: An HTML file.

        Raises:
            FileError: The page cannot be written, or `path` is a file that is not HTML.
        """
        place = writable(path)
        beside = place.with_name(f".{place.name}.{os.getpid()}")
        try:
            if place.exists() and not place.is_file():  # a pipe or a device
                place.write_text(self.html, encoding="utf-8")
                return
            beside.write_text(self.html, encoding="utf-8")
            beside.replace(place)
        except OSError as error:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise FileError(f"{path}: cannot be written: {error.strerror or error}") from None

    def __repr__(self) -> str:
        return f"Report({counted(len(self.recordings), 'recording')}, {self.level}: {self.verdict})"

    def _repr_html_(self) -> str:
        page = escape(self.html, quote=True)
        return f'<iframe srcdoc="{page}" sandbox style="width:100%;height:44rem;border:1px solid #8888"></iframe>'


def writable(path: str | os.PathLike[str]) -> Path:
    """The path with symbolic links resolved. Raises FileError if a page cannot be written there.

    A file that is not HTML, such as a recording, is never overwritten.
    """
    place = Path(os.path.realpath(path))
    try:
        if place.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if place.is_file():
            with place.open("rb") as file:
                begin = file.read(64)
            if begin and not begin.removeprefix(codecs.BOM_UTF8).lstrip().lower().startswith(HTML):
                raise FileError(f"{path}: exists already, and is no HTML file; it is not overwritten")
        elif not place.exists():
            os.stat(os.path.join(place.parent, ""))  # raises if the parent is not a folder
            if not os.access(place.parent, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror or error}") from None
    return place


def report(
    source: Any,
    output: str | os.PathLike[str] | None = None,
    *,
    rate: float = 50.0,
    gap: float | None = None,
    against: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Makes an HTML page about recordings: a verdict, what to mend and how, and figures of their timing.

    The page has no scripts.

    The numbers are those of `sync_report`, from the same pass over each recording.

    Args:
        source: A `Recording`, a `Cache`, the path of one of them, a folder of recordings, or a list of these.
        output: The HTML file to write. Default: none; see `Report.save`.
        rate: Ticks per second of the policy: at each tick, the age of the newest sample that had arrived is measured.
        gap: Seconds: a longer step is a gap. Default: 3 median periods.
        against: An earlier report, to tell what became better and worse.
        progress: Called with the name of the recording that is being read, and the fraction of the work that is done.

    Returns:
        A `Report`.

    Raises:
        FileError: The only recording cannot be read. (If there are several, the page lists those that cannot be
            read.) Or `output` cannot be written, or is a file that is not HTML, such as a recording.

    Examples:
        >>> report = rc.report("run.mcap", "report.html", rate=30)
        >>> report.verdict, report.recordings[0]["streams"]["/camera"]["gaps"]
    """
    rate = rate_of("report", rate, 1e6)
    gap = gap_of("report", gap)
    given = list(source) if isinstance(source, (list, tuple)) else [source]
    paths = [str(os.fspath(each)) if isinstance(each, (str, os.PathLike)) else each for each in given]
    if not paths:
        raise ValueError("report: no recording was given")
    whole = [place for each in paths for place in (expand([each]) if isinstance(each, str) else [each])]
    if output is not None:
        writable(output)  # raises before anything is read
    made = make(whole, lambda place: opened("report", place), rate, gap, against, progress)
    if output is not None:
        made.save(output)
    return made


def make(
    places: Sequence[Any],
    open_place: Callable[[Any], Recording],
    rate: float,
    gap: float | None,
    against: str | os.PathLike[str] | None,
    progress: Progress | None,
) -> Report:
    """The report of these recordings. Each is opened by `open_place` just before it is read."""
    from robocache._report.page import page  # here, because page.py imports Section from this file

    earlier = None if against is None else report_data(against)  # raises before anything is read
    sections: list[Section] = []
    failed: list[dict[str, str]] = []
    done = 0.0
    for number, place in enumerate(places):
        try:
            recording = open_place(place)

            def told(share: float, number: int = number, recording: Recording = recording) -> None:
                nonlocal done
                done = max(done, (number + share) / len(places))  # the last batch of a stream may be an early one
                if progress is not None:
                    progress(Path(recording.path).name, done)

            sections.append(section(recording, rate, gap, len(places), told))
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:  # as in a build, the others are still read if one recording fails
            if len(places) == 1:
                raise
            failed.append({"path": str(place), "error": sentence_of(str(place), error)})
            continue
        for extra in ranked(sections)[MOST_DRAWN:]:
            leave_out(extra)
    name_apart(sections)
    data = summary(sections, failed, rate, gap)
    if earlier is not None and against is not None:
        data["against"] = difference(data, earlier, Path(against).name)
    return Report(data, page(data, sections))


def section(recording: Recording, rate: float, gap: float | None, count: int, told: Callable[[float], None]) -> Section:
    """Reads a recording in one pass, then the few pictures that the page shows."""
    measures = Measures(rate)
    found, watches = survey(
        recording, gap=gap, progress=lambda batch: told(share_of(recording, batch)), measured=measures
    )
    spans = episode_spans(watches)
    moments = worst(measures, watches, spans)
    infos = {name: watch.info for name, watch in watches.items()}
    left_out = add_pictures(recording, watches, moments, BUDGET // min(count, MOST_DRAWN))
    known = {name: mends(found, name, infos[name]) for name in found.streams}
    most = MOST_STREAMS if count == 1 else FEW_STREAMS
    drawn = sorted(found.streams.values(), key=lambda stream: (stream.static, LEVELS.index(stream.level)))[:most]
    names = {stream.name for stream in drawn}
    if len(found.streams) > len(names):
        left_out.append(f"pictures of {len(names)} streams, the worst; the table and the data have all")
    slower = max((each["age"]["every"] for each in measures.data.values() if each["age"]), default=1)
    if slower > 1:
        left_out.append(f"ages at one of {slower:,} ticks")
    if not all(has_ages(*span) for span in spans.values()):
        left_out.append("ages in episodes of more than 70 years, or later than 2116: their stamps cannot be right")
    if len(recording.episodes) > MOST_EPISODES:
        left_out.append(f"the data list {MOST_EPISODES} of {len(recording.episodes):,} episodes")
    data: dict[str, Any] = {
        "name": os.path.basename(recording.path.rstrip("/")) or recording.path,
        "path": recording.path,
        "format": recording.format,
        "level": found.level,
        "verdict": found.verdict,
        "duration_s": found.duration_s,
        "episodes": found.episodes,
        "episode_list": episode_list(recording, measures, spans),
        "samples": sum(stream.samples for stream in found.streams.values()),
        "clock": found.clock,
        "notes": found.notes,
        "left_out": left_out,
        "streams": {name: measures.stream(stream) for name, stream in found.streams.items()},
        "moments": [moment.as_dict() for moment in moments],
        "mends": {name: [row(mend) for mend in each] for name, each in known.items() if each},
        "recipe": first_recipe(recording, found, infos=infos),
    }
    for name in found.streams:
        if name not in names:
            strip(data["streams"][name])
    axis = measures.axis or Axis({})
    return Section(data, found, measures, axis, moments, known, [n for n in found.streams if n in names])


def row(mend: Mend) -> dict[str, str]:
    finding = mend.finding
    return {"kind": finding.kind, "level": finding.level, "table": mend.table, "line": mend.line}


def strip(stream: dict[str, Any]) -> None:
    """Removes the series from the data of a stream that has no figures."""
    for name in ("signal", "jitter", "delay"):
        stream[name] = None
    stream["gaps_left_out"] += len(stream["gap_list"])
    stream["gap_list"] = []


def episode_list(recording: Recording, measures: Measures, spans: Any) -> list[dict[str, Any]]:
    told = []
    for episode in recording.episodes[:MOST_EPISODES]:
        start, end = spans.get(episode.index, (0, 0))
        gaps, seconds = measures.missing.get(episode.index, (0, 0.0))
        seen = {"gaps": gaps, "gap_seconds": seconds, "seconds": (end - start) * 1e-9}
        told.append({"name": episode.name, "task": episode.task, **seen})
    return told


def ranked(sections: Sequence[Section]) -> list[Section]:
    """The sections, the worst first: by level, then by the number of bad streams, then by that of fair ones."""

    def order(section: Section) -> tuple[int, ...]:
        levels = [stream.level for stream in section.report.streams.values()]
        return LEVELS.index(section.report.level), -levels.count("bad"), -levels.count("fair")

    return sorted(sections, key=order)


def leave_out(section: Section) -> None:
    """Leaves only a row of a table and the numbers in the data, for a recording that is not among the worst."""
    if section.drawn:
        section.drawn, section.moments = [], []
        section.data["recipe"], section.data["moments"] = "", []
        for stream in section.data["streams"].values():
            strip(stream)
        section.measures.rows.clear()
        section.measures.data.clear()


def name_apart(sections: Sequence[Section]) -> None:
    """Names recordings by their paths where several have the same name."""
    names = [section.data["name"] for section in sections]
    for section in sections:
        if names.count(section.data["name"]) > 1:
            section.data["name"] = section.data["path"]


def summary(
    sections: Sequence[Section], failed: list[dict[str, str]], rate: float, gap: float | None
) -> dict[str, Any]:
    levels = [section.report.level for section in sections] + ["bad"] * len(failed)
    level = next((level for level in LEVELS if level in levels), "bad")
    if len(sections) == 1 and not failed:
        verdict = sections[0].report.verdict
    else:
        count = len(sections) + len(failed)
        parts = [f"{levels.count('good')} of {counted(count, 'recording')} good"]
        for other, words in (("fair", "usable with care"), ("bad", "to be looked at before training")):
            names = [each.data["name"] for each in sections if each.report.level == other]
            more = f" and {len(names) - 4} more" if len(names) > 4 else ""
            parts += [f"{words}: {', '.join(names[:4])}{more}"] if names else []
        parts += [f"{len(failed)} cannot be read"] if failed else []
        verdict = "; ".join(parts) + "."
    return plain({
        "format": FORMAT,
        "version": VERSION,
        "robocache": _core.version(),
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "rate_hz": rate,
        "gap_s": gap,
        "level": level,
        "verdict": verdict,
        "recordings": [section.data for section in sections],
        "failed": failed,
        "against": None,
    })  # fmt: skip


def plain(value: Any) -> Any:
    """The value with None in place of numbers that JSON cannot hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value
