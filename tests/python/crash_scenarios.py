"""Pieces of work on a folder, and what must hold of the folder wherever the work was broken off.

crash_replay.py lays out what a crash may leave of them; call_faults.py has their calls fail. Neither knows how a cache
is written: everything is asked through the public API.

What must hold: every episode whose commit had returned is there with its bytes, nothing is half there, the folder opens
(or `verify --repair` mends it), and the work can be finished with the result of a run without a crash.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from cache_cases import FakeRecording, check_episode, episode, streams_of
from cache_faults import GROUP, build, check_problems, look, whole
from cache_faults import content as source_content
from crash_model import snapshot

import robocache as rc
from robocache import mcap

Mark = Callable[[str], None]


class Scenario(NamedTuple):
    """Everything that is recorded and replayed lies in place / "work"; what is only read lies beside it."""

    prepare: Callable[[Path], None]
    work: Callable[[Path, Mark], None]
    check: Callable[[Path, list[str], bool], None]  # place, marks before the crash, whether to repair first


# ---- Caches

Content = dict[str, dict[str, Any]]  # episode -> streams


def contents_of(cache: Path, known: list[Content]) -> Content:
    """What a cache has; each episode is, bit for bit, the one of that name in one of `known`."""
    found: Content = {}
    for entry in rc.Cache(cache).episodes:
        for candidate in (some[entry.name] for some in known if entry.name in some):
            try:
                check_episode(entry, candidate)
            except AssertionError:
                continue
            found[entry.name] = candidate
            break
        else:
            raise AssertionError(f"{entry.name} is none of those that were added")
    return found


def is_same(a: Content, b: Content) -> bool:
    return a.keys() == b.keys() and all(a[name] is b[name] for name in a)


def opened(cache: Path, must: bool, repair: bool) -> bool:
    """That a cache opens, as it is or after a repair. False: there is none, and none must be."""
    if repair and cache.exists():
        try:
            rc.verify_cache(cache, repair=True)
        except rc.FileError:
            if must:
                raise
    try:
        rc.Cache(cache)
    except rc.FileError:
        if must:
            raise
        return False
    return True


def finished(cache: Path, wanted: Content) -> None:
    """Goes on with a cache as its user would, and compares."""
    with rc.CacheWriter(cache) as writer:
        for name, content in wanted.items():
            writer.add(streams_of(content), name=name, replace=True)
    assert rc.verify_cache(cache).problems == []
    assert is_same(contents_of(cache, [wanted]), wanted)


def sorted_late(seed: int, samples: int = 12) -> dict[str, Any]:
    """Stamps that go backward: the writer sorts them."""
    return {name: (entry[0], np.roll(entry[1], 3), *entry[2:]) for name, entry in episode(seed, samples).items()}


# What each commit adds: a new episode, two, one that replaces another, one too long for memory.
COMMITS: list[Content] = [
    {"one": episode(1, 12)},
    {"two": episode(2, 12), "three": sorted_late(3)},
    {"one": sorted_late(4)},
    {"long": {"joints": episode(5, 12_000)["joints"]}},
]
STATES: list[Content] = [{}]
for _added in COMMITS:
    STATES.append(STATES[-1] | _added)


def commit_work(place: Path, mark: Mark) -> None:
    writer = rc.CacheWriter(place / "work/cache")
    mark("opened")
    for added in COMMITS[:-1]:
        for name, content in added.items():
            writer.add(streams_of(content), name=name, replace=True)
        writer.commit()
        mark("committed")
    for name, content in COMMITS[-1].items():
        writer.add(streams_of(content), name=name)
    writer.close()
    mark("committed")


def commit_check(place: Path, marks: list[str], repair: bool) -> None:
    cache, done = place / "work/cache", marks.count("committed")
    if opened(cache, bool(marks), repair):
        found = contents_of(cache, STATES)
        possible = STATES[done : done + 2]  # the last commit that returned, or the one under way
        assert any(is_same(found, state) for state in possible), f"{done} commits returned, and it has {[*found]}"
        check_problems(cache)
    finished(cache, STATES[-1])


def sources_of(place: Path) -> list[Path]:
    return [place / "a", place / "b"]


def build_prepare(place: Path) -> None:
    for source in sources_of(place):
        source.write_text(source.name + "1")


class Watched(FakeRecording):
    """Marks what a reader sees of the cache while the source is read: what the writer committed on its own."""

    def __init__(self, source: Path, cache: Path, mark: Mark) -> None:
        version = source.read_text()
        super().__init__(source, [source_content(version, k) for k in range(3)])
        self.cache, self.mark = cache, mark

    def batches(self, streams: Any = None) -> Any:
        last = None
        for batch in super().batches(streams):
            if batch.episode != last:
                last = batch.episode
                episodes = rc.Cache(self.cache).episodes
                self.mark(json.dumps([(entry.source.path, version_of(entry), entry.number) for entry in episodes]))
            yield batch


def version_of(entry: Any) -> str:
    for version in [version for version in ("a1", "a2", "b1") if version[0] == Path(entry.source.path).name]:
        if entry.start == min(times.min() for _, times, *_ in source_content(version, entry.number).values()):
            return version
    raise AssertionError(f"{entry.name} is of no version")


def build_work(place: Path, mark: Mark) -> None:
    cache, sources = place / "work/cache", sources_of(place)
    for version in ("a1", "a2"):
        sources[0].write_text(version)
        with rc.CacheWriter(cache, group_bytes=GROUP) as writer:
            for source in sources:
                writer.add(Watched(source, cache, mark))
        mark(json.dumps([(str(source), source.read_text(), k) for source in sources for k in range(3)]))


def build_check(place: Path, marks: list[str], repair: bool) -> None:
    cache, sources = place / "work/cache", sources_of(place)
    a, b = map(str, sources)
    versions = {a: ["a1", "a2"], b: ["b1"]}
    if opened(cache, bool(marks), repair):
        found = look(cache, versions)
        newest = {("a2", k) for k in range(3)}
        for path, version, number in json.loads(marks[-1]) if marks else []:
            is_there = (version, number) in found.get(path, set())
            assert is_there or (path == a and found[a] == newest), f"{path} {version} {number} is lost: {found}"
        check_problems(cache)
    if sources[0].read_text() != "a2":
        sources[0].write_text("a2")
    build(cache, sources)
    assert rc.verify_cache(cache).problems == []
    assert look(cache, versions) == whole(versions)


# ---- Repairs

REPAIRED = {f"episode-{k}": episode(k, 12) for k in range(4)}
DAMAGED = "episode-1"


def repair_prepare(place: Path, *, lose_manifest: bool) -> None:
    cache = place / "work/cache"
    with rc.CacheWriter(cache) as writer:
        for name, content in REPAIRED.items():
            writer.add(streams_of(content), name=name)
            writer.commit()
    damaged = sorted((cache / "shards").glob("*joints*"))[1]
    raw = bytearray(damaged.read_bytes())
    raw[8 + int.from_bytes(raw[:8], "little") + 3] ^= 1  # a sample
    damaged.write_bytes(raw)
    if lose_manifest:  # and its journal, whatever it is called
        for path in cache.iterdir():
            if path.is_file() and path.name != "lock":
                path.unlink()
    files = [path.read_bytes().hex() for path in files_of(cache) if path.name != "lock"]
    (place / "files.json").write_text(json.dumps(files))


def files_of(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def repair_work(place: Path, mark: Mark) -> None:
    rc.verify_cache(place / "work/cache", repair=True)
    mark("repaired")


def repair_check(place: Path, marks: list[str], repair: bool) -> None:
    cache = place / "work/cache"
    intact = {name: content for name, content in REPAIRED.items() if name != DAMAGED}
    if "repaired" not in marks:
        rc.verify_cache(cache, repair=True)
    assert rc.verify_cache(cache).problems == []
    assert is_same(contents_of(cache, [intact]), intact)
    here = {path.read_bytes().hex() for path in files_of(cache)}
    missing = [text for text in json.loads((place / "files.json").read_text()) if text not in here]
    assert not missing, f"{len(missing)} of the files are gone, and not in quarantine"
    for folder in (cache / "quarantine").iterdir():
        for path in files_of(folder / "shards"):
            assert path.name in (folder / "report.txt").read_text(), "the report does not say what was taken out"
    finished(cache, REPAIRED)


# ---- Exports


def export_prepare(place: Path) -> None:
    (place / "work").mkdir()
    rng = np.random.default_rng(5)
    times = np.arange(40) * 20_000_000
    with rc.CacheWriter(place / "cache") as writer:
        for k in range(2):
            writer.add(
                {"state": rc.Stream(rng.normal(size=(40, 3)), times), "action": rc.Stream(rng.normal(size=40), times)},
                name=f"episode-{k}",
                task="pick",
            )


def export_work(place: Path, mark: Mark, *, format: str) -> None:
    rc.export(place / "cache", place / "work/set", rate=25, format=format)
    mark("exported")


def export_check(place: Path, marks: list[str], repair: bool, *, format: str) -> None:
    target = place / "work/set"
    whole = place / "whole"
    if not whole.exists():
        rc.export(place / "cache", whole, rate=25, format=format)
    wanted = snapshot(whole)[0]
    if target.exists() or "exported" in marks:
        assert target.exists(), "the export returned, and is not there"
        assert snapshot(target)[0] == wanted, "the export is there, and not whole"
        return
    rc.export(place / "cache", target, rate=25, format=format)
    assert snapshot(target)[0] == wanted


# ---- mcap.Writer

MESSAGES = [(f"message {k} ".encode() * 40, 1000 + k) for k in range(60)]


def mcap_work(place: Path, mark: Mark) -> None:
    writer = mcap.Writer(place / "work/log.mcap", compression=None, chunk_size=4000)
    channel = writer.add_channel("/topic", "raw")
    for k, (data, time) in enumerate(MESSAGES):
        writer.write(channel, data, log_time=time)
        if k == 30:
            writer.flush()
    writer.close()
    mark("closed")


def mcap_check(place: Path, marks: list[str], repair: bool) -> None:
    path = place / "work/log.mcap"
    found = []
    if "closed" in marks or path.exists():
        try:
            with warnings.catch_warnings(action="ignore"):  # it ends early
                found = [(bytes(message.data), message.log_time) for message in mcap.messages(path)]
        except rc.FileError:
            assert "closed" not in marks
    if "closed" in marks:
        assert found == MESSAGES
    assert set(found) <= set(MESSAGES), "a message is not one of those that were written"
    mcap_work(place, lambda text: None)
    assert [(bytes(message.data), message.log_time) for message in mcap.messages(path)] == MESSAGES


# ---- Reading


def read_prepare(place: Path) -> None:
    (place / "work").mkdir()
    finished(place / "work/cache", REPAIRED)


def open_work(place: Path, mark: Mark) -> None:
    assert is_same(contents_of(place / "work/cache", [REPAIRED]), REPAIRED)


def verify_work(place: Path, mark: Mark) -> None:
    for problem in rc.verify_cache(place / "work/cache").problems:  # an unreadable file may be a problem or an error
        raise rc.FileError(f"{place / 'work/cache' / problem.file}: {problem.sentence}")


def read_check(place: Path, marks: list[str], repair: bool) -> None:
    open_work(place, lambda text: None)
    verify_work(place, lambda text: None)


def log_prepare(place: Path) -> None:
    (place / "work").mkdir()
    with mcap.Writer(place / "log.mcap", chunk_size=500) as writer:
        schema = writer.add_schema("Point", "jsonschema", '{"type": "object", "properties": {"x": {"type": "number"}}}')
        channel = writer.add_channel("/point", "json", schema)
        for k in range(50):
            writer.write(channel, b'{"x": %d}' % k, log_time=k * 10_000_000)


def log_work(place: Path, mark: Mark) -> None:
    with rc.CacheWriter(place / "work/cache") as writer:
        writer.add(rc.open(place / "log.mcap"))
    mark("built")


def log_check(place: Path, marks: list[str], repair: bool) -> None:
    cache = place / "work/cache"
    opened(cache, bool(marks), repair)
    log_work(place, lambda text: None)
    assert rc.verify_cache(cache).problems == []
    (found,) = rc.Cache(cache).episodes
    np.testing.assert_array_equal(np.ravel(found.streams["/point"].values), np.arange(50))


# ---- The table


def empty(place: Path) -> None:
    (place / "work").mkdir()


def make_scenarios() -> dict[str, Scenario]:
    def build_all(place: Path) -> None:
        empty(place)
        build_prepare(place)

    def repair_all(lose_manifest: bool) -> Callable[[Path], None]:
        def prepare(place: Path) -> None:
            empty(place)
            repair_prepare(place, lose_manifest=lose_manifest)

        return prepare

    made = {
        "commit": Scenario(empty, commit_work, commit_check),
        "build": Scenario(build_all, build_work, build_check),
        "repair-shard": Scenario(repair_all(False), repair_work, repair_check),
        "repair-manifest": Scenario(repair_all(True), repair_work, repair_check),
        "mcap": Scenario(empty, mcap_work, mcap_check),
        "open": Scenario(read_prepare, open_work, read_check),
        "verify": Scenario(read_prepare, verify_work, read_check),
        "log": Scenario(log_prepare, log_work, log_check),
    }
    for name in ("lerobot", "safetensors", "mcap"):
        made[f"export-{name}"] = Scenario(
            export_prepare, partial(export_work, format=name), partial(export_check, format=name)
        )
    return made


SCENARIOS = make_scenarios()
