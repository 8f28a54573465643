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
from typing import Any, Protocol

from robocache import _tables
from robocache._cache.cache import Cache
from robocache._cache.frame_plan import Framing, Plan, planned
from robocache._cache.recipe import Recipe, load_recipe
from robocache._cache.split import split
from robocache._cache.tier import KIND
from robocache._cache.writer import CacheWriter
from robocache._core import FileError
from robocache._recordings.frame_options import FrameOptions
from robocache._recordings.open import is_cache, recorded, sniff
from robocache._recordings.recording import Recording, without_samples
from robocache._recordings.source import Batch, Source, SourceOver
from robocache._recordings.words import counted


def expand(paths: Sequence[str]) -> list[str]:
    """The recordings at these paths; for a plain folder, those inside and below, ordered by name.

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
    """A progress bar on stderr, if that is a terminal. Yields report(name, share done)."""
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
    """The share of a recording that is done, by time."""
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
    frames: FrameOptions | None = None,
    show: bool = False,
    workers: Workers | None = None,
) -> dict[str, Any]:
    """Adds the recordings to the cache, with `frames` of all cameras. Returns a row for each recording.

    With `workers`, other processes decode the recordings. The cache is the same, and is written in the same order.

    A recording that fails, whatever it raises, gets the error in its row and does not stop the others. Ctrl-C ends the
    build; recordings that were added before are committed.
    """
    loaded = load_recipe(recipe) if recipe is not None else Recipe("")
    options = {key: value for key, value in (open_options or {}).items() if value is not None}
    merged = Recipe(loaded.path, loaded.streams, loaded.task, loaded.source | options, loaded.episodes)
    by = by or merged.episodes.get("by", "file")
    gap = gap if gap is not None else float(merged.episodes.get("gap", 5.0))
    topic = topic or merged.episodes.get("topic")
    # msg_path is left out: recording.given has a hash of its files.
    source_options = sorted((key, value) for key, value in merged.source.items() if key != "msg_path")
    all_options = [repr(merged.streams), merged.task, repr(source_options), by, gap, topic]
    framing = Framing(frames, merged.frames())
    all_options += [repr(framing)] if framing else []  # without frames the hash is that of older versions
    how = hashlib.sha256(json.dumps(all_options).encode()).hexdigest()[:32]
    sources: list[dict[str, Any]] = []
    places = expand(paths)
    begin = clock.perf_counter()
    there = Cache(output) if is_cache(output) else None
    before = {s.path: s for s in (there.sources if there is not None else []) if s.complete}
    plan: Plan | None = None

    def applied(recording: Recording) -> Recording:
        episodes = merged.apply(
            split(recording, by, gap, topic)
        )  # split first: the recipe may leave out the topic that marks episodes
        return Recording(framing.over(episodes._source, there)) if framing else episodes

    with CacheWriter(output) as writer, progress("building", show) as report:
        if framing:
            plan = plan_of(places, writer, how, there, merged.open, applied)
            if show:
                plan.show(output)
        if workers is not None:
            workers.plan(places, ahead_of(writer, how, there, merged.open, applied))
        for number, path in enumerate(places):
            row: dict[str, Any] = {"path": path, "state": "added", "episodes": 0, "samples": 0, "bytes": 0}
            started = clock.perf_counter()
            try:
                if "://" not in path and Path(path).resolve() == output.resolve():
                    raise ValueError(f"{path}: is the cache itself; build adds other recordings to it")
                recording = merged.open(path)
                old = before.get(writer.name_of(recording))
                if writer.knows(recording, how):
                    row["state"] = "unchanged"
                elif old is not None and writer.knows_better(recording, how, old.options):
                    row["state"] = "unchanged"
                    row["notes"] = ["stays as it was read with --msg-path, which is not given now"]
                else:
                    row["state"] = "added" if old is None else "replaced"
                    if there is not None:
                        refuse_other_joins(there, merged)
                    episodes = applied(recording)
                    if workers is not None:
                        episodes = workers.decoded(path, number, episodes)
                    add(writer, episodes, how, row, number, len(places), report)
                    if old is not None and not old.options.startswith(how):
                        row["notes"] = ["was built before with other options, such as another recipe; these hold now"]
                row["notes"] = [*recording.notes, *row.get("notes", [])]
            except (KeyboardInterrupt, SystemExit, GeneratorExit):
                raise
            except BaseException as error:  # decoders also raise types that are not an Exception
                row |= {"state": "failed", "error": sentence_of(path, error)}
            row["seconds"] = clock.perf_counter() - started
            sources.append(row)
        report("committing", 1.0)
    found = {"cache": str(output), "sources": sources, "seconds": clock.perf_counter() - begin}
    return found if plan is None else found | {"frames": plan.as_dict()}


def plan_of(
    places: Sequence[str],
    writer: CacheWriter,
    how: str,
    there: Cache | None,
    opened: Callable[[str], Recording],
    applied: Callable[[Recording], Recording],
) -> Plan:
    """The size and time of the frames of the recordings that are not in the cache yet."""
    begun = begun_in(there, how)

    def to_read(path: str) -> Recording | None:
        recording = opened(path)
        return None if writer.knows(recording, how) else applied(recording)

    return planned(places, to_read, lambda path: begun.get(writer.name_of(opened(path)), ()))


def begun_in(there: Cache | None, how: str) -> dict[str, list[int]]:
    """By recording: the episodes that an interrupted build has committed."""
    begun: dict[str, list[int]] = {}
    for episode in there.episodes if there is not None else ():
        source = episode.source
        if source is not None and not source.complete and source.options.startswith(how):
            begun.setdefault(source.path, []).append(episode.number)
    return begun


class Workers(Protocol):
    """Decodes recordings in other processes, and the next ones ahead of their turn: robocache._ray.decoded."""

    def plan(
        self, places: Sequence[str], to_read: Callable[[str], tuple[Recording, Collection[int]] | None]
    ) -> None: ...

    def decoded(self, path: str, number: int, recording: Recording) -> Recording: ...


def ahead_of(
    writer: CacheWriter,
    how: str,
    there: Cache | None,
    opened: Callable[[str], Recording],
    applied: Callable[[Recording], Recording],
) -> Callable[[str], tuple[Recording, Collection[int]] | None]:
    """A function of a path: the recording as it will be read, and the episodes that the cache has of it already."""
    begun = begun_in(there, how)

    def to_read(path: str) -> tuple[Recording, Collection[int]] | None:
        recording = opened(path)
        if writer.knows(recording, how):
            return None
        return applied(recording), begun.get(writer.name_of(recording), ())

    return to_read


def refuse_other_joins(cache: Cache, recipe: Recipe) -> None:
    """Raises if the recipe redefines a stream of the cache: it must stay stored, or joined of the same members."""
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
    report: Callable[[str, float], None],
) -> None:
    name = Path(recording.path).name
    written = WriteProgress(row, lambda batch: report(name, (number + share_of(recording, batch)) / count))
    row["episodes"] = writer.add(Recording(NotEmpty(recording._source)), options=how, progress=written)
    row["notes"] = [*row.get("notes", []), *without_samples(recording, written.samples)]


class NotEmpty(SourceOver):
    """A source whose pass fails if it finds no sample in a damaged file. Messages without numbers are not damage."""

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


class WriteProgress:
    """Counts the batches that were written. Starts again if the writer reads a recording again."""

    def __init__(self, row: dict[str, Any], report: Callable[[Batch], None]) -> None:
        self.row, self.report = row, report
        self.restart()

    def restart(self) -> None:
        self.samples: dict[str, int] = {}
        self.row |= {"samples": 0, "bytes": 0}
        self.row.pop("frames", None)

    def __call__(self, batch: Batch) -> None:
        if batch.info.metadata.get("kind") == KIND:
            self.row["frames"] = self.row.get("frames", 0) + len(batch.times)
        if "of" not in batch.info.metadata:  # frames beside a camera's samples are not counted twice
            self.samples[batch.stream] = self.samples.get(batch.stream, 0) + len(batch.times)
            self.row["samples"] += len(batch.times)
        self.row["bytes"] += batch.values.nbytes + 16 * len(batch.times)
        self.report(batch)


def sentence_of(path: str, error: BaseException) -> str:
    """An error as a sentence that names the recording."""
    sentence = str(error)
    if isinstance(error, MemoryError):
        sentence = f"it needs more memory than there is{f': {sentence}' if sentence else ''}"
    elif isinstance(error, OSError) and not isinstance(error, FileError) and error.strerror:
        sentence = f"{os.fsdecode(error.filename)}: {error.strerror}" if error.filename else error.strerror
    elif not isinstance(error, (FileError, ValueError, KeyError, ModuleNotFoundError)) or not sentence:
        sentence = f"{type(error).__name__}: {sentence}" if sentence else type(error).__name__
    return sentence if path in sentence else f"{path}: {sentence}"


def print_result(found: dict[str, Any]) -> None:
    rows = []
    for row in found["sources"]:
        speed = f"{row['bytes'] / max(row['seconds'], 1e-9) / 2**20:,.0f} MiB/s" if row["bytes"] else "-"
        size = f"{row['bytes'] / 2**20:,.1f} MiB"
        rows.append([row["path"], row["state"], str(row["episodes"]), f"{row['samples']:,}", size, speed])
    headers = ("recording", "", "episodes", "samples", "size", "speed")
    _tables.table(f"Built: {found['cache']}, {found['seconds']:.2f} s", headers, rows)
    for row in found["sources"]:
        for note in row.get("notes", []):
            _tables.paragraph(f"Note: {row['path']}: {note}")
    lost = len(failures(found))
    if lost:
        _tables.paragraph(f"{lost} of {counted(len(found['sources']), 'recording')} failed and are not in the cache.")


def failures(found: dict[str, Any]) -> list[str]:
    return [str(row["error"]) for row in found["sources"] if row["state"] == "failed"]
