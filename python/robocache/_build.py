"""`robocache build`: many recordings into one cache, at native rates. Only what changed is read again."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time as clock
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from robocache import _report
from robocache._cache import Cache, CacheWriter
from robocache._core import FileError
from robocache._recipe import Recipe, load_recipe, split
from robocache._recording import (
    Batch,
    Recording,
    Source,
    SourceOver,
    counted,
    is_cache,
    recorded,
    sniff,
    without_samples,
)


def expand(paths: Sequence[str]) -> list[str]:
    """Recordings: what is named, and of a plain folder what is inside and below, in the order of names.

    A folder that holds none, or cannot be listed, stands for itself: opening it says what is wrong.
    """
    found: list[str] = []
    for path in paths:
        place = Path(path)
        if "://" in path or not place.is_dir():
            found.append(path)
            continue
        try:
            sniff(place)
            found.append(path)
        except OSError:  # not a recording itself
            found += map(str, list(below(place)) or [place])
    return list(dict.fromkeys(found))


def below(folder: Path) -> Iterator[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        yield folder
        return
    for entry in entries:
        if recorded(entry):
            yield entry
        elif entry.is_dir() and not entry.is_symlink() and not is_cache(entry):
            yield from below(entry)


@contextmanager
def progress(what: str, wanted: bool) -> Iterator[Callable[[str, float], None]]:
    """A bar on stderr, where that is a terminal: told(name, share done)."""
    if not wanted or not sys.stderr.isatty():
        yield lambda name, share: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda name, share: bar.update(task, description=f"{what} {name}", completed=share)


def share_of(recording: Recording, batch: Batch) -> float:
    """How much of a recording is done, by time."""
    parts = recording._source.extents()
    part = parts[batch.episode]
    within = 0.0
    if part.start is not None and part.end is not None and part.end > part.start and len(batch.arrivals):
        within = min(max((int(batch.arrivals[-1]) - part.start) / (part.end - part.start), 0.0), 1.0)
    return (batch.episode + within) / max(len(parts), 1)


def build(
    paths: Sequence[str],
    output: Path,
    *,
    recipe: Path | None = None,
    by: str | None = None,
    gap: float | None = None,
    topic: str | None = None,
    open_options: dict[str, Any] | None = None,
    show: bool = False,
) -> dict[str, Any]:
    """Adds the recordings to the cache; what became of each.

    A recording that fails, whatever it raises, is told in its row and does not stop the others. Ctrl-C ends the build;
    what was added before it is committed.
    """
    cooked = load_recipe(recipe) if recipe is not None else Recipe("")
    options = {key: value for key, value in (open_options or {}).items() if value is not None}
    cooked = Recipe(cooked.path, cooked.streams, cooked.task, cooked.source | options, cooked.episodes)
    by = by or cooked.episodes.get("by", "file")
    gap = gap if gap is not None else float(cooked.episodes.get("gap", 5.0))
    topic = topic or cooked.episodes.get("topic")
    opened = {key: value for key, value in cooked.source.items() if key != "msg_path"}  # what it tells: recording.given
    how = json.dumps([repr(cooked.streams), cooked.task, repr(sorted(opened.items())), by, gap, topic])
    how = hashlib.sha256(how.encode()).hexdigest()[:32]
    sources: list[dict[str, Any]] = []
    places = expand(paths)
    begin = clock.perf_counter()
    there = Cache(output) if is_cache(output) else None
    before = {s.path: s for s in (there.sources if there is not None else []) if s.complete}
    with CacheWriter(output) as writer, progress("building", show) as told:
        for number, path in enumerate(places):
            row: dict[str, Any] = {"path": path, "state": "added", "episodes": 0, "samples": 0, "bytes": 0}
            started = clock.perf_counter()
            try:
                if "://" not in path and Path(path).resolve() == output.resolve():
                    raise ValueError(f"{path}: is the cache itself; build adds other recordings to it")
                recording = cooked.open(path)
                old = before.get(writer.name_of(recording))
                if writer.knows(recording, how):
                    row["state"] = "unchanged"
                elif old is not None and writer.knows_better(recording, how, old.options):
                    row["state"] = "unchanged"
                    row["notes"] = ["stays as it was read with --msg-path, which is not given now"]
                else:
                    row["state"] = "added" if old is None else "replaced"
                    if old is not None and not old.options.startswith(how):
                        row["notes"] = ["was built with other options before, as another recipe; these hold now"]
                    if there is not None:
                        refuse_other_joins(there, cooked)
                    episodes = cooked.apply(split(recording, by, gap, topic))  # what marks them need not be taken
                    add(writer, episodes, how, row, number, len(places), told)
                row["notes"] = [*recording.notes, *row.get("notes", [])]
            except (KeyboardInterrupt, SystemExit, GeneratorExit):
                raise
            except BaseException as error:  # decoders also raise kinds of their own, which are no Exception
                row |= {"state": "failed", "error": sentence_of(path, error)}
            row["seconds"] = clock.perf_counter() - started
            sources.append(row)
        told("committing", 1.0)
    return {"cache": str(output), "sources": sources, "seconds": clock.perf_counter() - begin}


def refuse_other_joins(cache: Cache, recipe: Recipe) -> None:
    """A name is one stream in all of a cache: stored, or joined of the same members."""
    how = "build into a new cache, or give the stream another name"
    for wanted in recipe.streams:
        name, members = json.loads(wanted.joined) if wanted.joined else (wanted.name, [])
        joined = cache._joined.get(name)
        if members and name in cache._infos:
            raise ValueError(f'{recipe.path}: stream "{name}" of {cache.path} is not joined of topics; {how}')
        if joined is not None and not members:
            parts = ", ".join(joined)
            raise ValueError(f'{recipe.path}: stream "{name}" is joined of {parts} in {cache.path}; {how}')
        if joined is not None and tuple(members) != joined:
            raise ValueError(f'{recipe.path}: stream "{name}" was joined by another recipe in {cache.path}; {how}')


def add(
    writer: CacheWriter,
    recording: Recording,
    how: str,
    row: dict[str, Any],
    number: int,
    count: int,
    told: Callable[[str, float], None],
) -> None:
    name = Path(recording.path).name
    heard = Heard(row, lambda batch: told(name, (number + share_of(recording, batch)) / count))
    row["episodes"] = writer.add(Recording(NotEmpty(recording._source)), options=how, progress=heard)
    row["notes"] = [*row.get("notes", []), *without_samples(recording, heard.samples)]


class NotEmpty(SourceOver):
    """A pass that finds no sample fails where the file is damaged. (Messages without numbers are no damage.)"""

    def batches(
        self,
        streams: Collection[str] | None = None,
        episode: int | None = None,
        start: int | None = None,
        end: int | None = None,
    ) -> Iterator[Batch]:
        is_empty = True
        for batch in self.source.batches(streams, episode, start, end):
            is_empty = is_empty and not len(batch.times)
            yield batch
        if is_empty and self.notes:
            raise FileError(f"{self.path}: no sample could be read: {'; '.join(self.notes[:3])}")

    def presumed(self) -> Source | None:
        source = self.source.presumed()
        return None if source is None else NotEmpty(source)


class Heard:
    """Counts what was written; from the start again where the writer reads a recording again."""

    def __init__(self, row: dict[str, Any], told: Callable[[Batch], None]) -> None:
        self.row, self.told = row, told
        self.restart()

    def restart(self) -> None:
        self.samples: dict[str, int] = {}
        self.row |= {"samples": 0, "bytes": 0}

    def __call__(self, batch: Batch) -> None:
        self.samples[batch.stream] = self.samples.get(batch.stream, 0) + len(batch.times)
        self.row["samples"] += len(batch.times)
        self.row["bytes"] += batch.values.nbytes + 16 * len(batch.times)
        self.told(batch)


def sentence_of(path: str, error: BaseException) -> str:
    """What went wrong with a recording, beginning with its name."""
    said = str(error)
    if isinstance(error, MemoryError):
        said = f"it needs more memory than there is{f': {said}' if said else ''}"
    elif isinstance(error, OSError) and not isinstance(error, FileError) and error.strerror:
        said = f"{os.fsdecode(error.filename)}: {error.strerror}" if error.filename else error.strerror
    elif not isinstance(error, (FileError, ValueError, KeyError, ModuleNotFoundError)) or not said:
        said = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return said if path in said else f"{path}: {said}"


def tell(found: dict[str, Any]) -> None:
    rows = []
    for row in found["sources"]:
        speed = f"{row['bytes'] / max(row['seconds'], 1e-9) / 2**20:,.0f} MiB/s" if row["bytes"] else "-"
        size = f"{row['bytes'] / 2**20:,.1f} MiB"
        rows.append([row["path"], row["state"], str(row["episodes"]), f"{row['samples']:,}", size, speed])
    headers = ("recording", "", "episodes", "samples", "size", "speed")
    _report.table(f"Built: {found['cache']}, {found['seconds']:.2f} s", headers, rows)
    for row in found["sources"]:
        for note in row.get("notes", []):
            _report.paragraph(f"Note: {row['path']}: {note}")
    lost = len(failures(found))
    if lost:
        _report.paragraph(f"{lost} of {counted(len(found['sources']), 'recording')} failed and are not in the cache.")


def failures(found: dict[str, Any]) -> list[str]:
    return [str(row["error"]) for row in found["sources"] if row["state"] == "failed"]
