"""Builds that are killed or whose disk fails, run by test_cache_faults.py in a process of their own.

cache_faults.py kill FOLDER COUNT           kill -9 at COUNT random moments of builds; then verify, look, go on
cache_faults.py disk FOLDER ERRNO STICKY    one call of the file system after the other fails, until a build passes
cache_faults.py sync FOLDER LOST SORTED     the fsync of one shard after the other fails, and commit() is called again;
                                            LOST: of fault_lose
cache_faults.py full FOLDER                 then the disk is full, at one call of it after the other
cache_faults.py widen FOLDER                the disk is full while a stream is widened
cache_faults.py close FOLDER                what a user can do after a failure
cache_faults.py fence FOLDER                another writer comes while a commit is under way
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import random
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from cache_cases import FakeRecording, check_episode, episode, streams_of

import robocache as rc

GROUP = 2500  # bytes: a group of each episode or two


def content(version: str, number: int) -> dict:
    """An episode of a version of a source; stamps of some streams go backward, so that sorting is part of it."""
    made = episode(sum(version.encode()) * 10 + number, 30)
    values, times = made["joints"]
    made["joints"] = (values, np.roll(times, number))
    return made


def build(cache: Path, sources: list[Path]) -> None:
    with rc.CacheWriter(cache, group_bytes=GROUP) as writer:
        for source in sources:
            version = source.read_text()
            writer.add(FakeRecording(source, [content(version, k) for k in range(3)]))


def look(cache: Path, versions: dict[str, list[str]]) -> dict[str, set[tuple[str, int]]]:
    """What the cache has of each source, (version, number); every episode is whole, and of one of these versions."""
    found: dict[str, set[tuple[str, int]]] = {}
    for entry in rc.Cache(cache).episodes:
        path = entry.source.path
        for version in versions[path]:
            if entry.start == min(times.min() for _, times, *_ in content(version, entry.number).values()):
                check_episode(entry, content(version, entry.number))
                found.setdefault(path, set()).add((version, entry.number))
                break
        else:
            raise AssertionError(f"{entry} is of no version of {path}")
    return found


def whole(versions: dict[str, list[str]]) -> dict[str, set[tuple[str, int]]]:
    return {path: {(known[-1], k) for k in range(3)} for path, known in versions.items()}


def check_problems(cache: Path) -> None:
    """Nothing but what a commit that did not return has left, and no episode is lost."""
    report = rc.verify_cache(cache)
    left = (
        "left by a crash",
        "have replaced all episodes of its group",  # shards that a commit had replaced, and not yet removed
        "interrupted",  # the last line of the journal, shards of later commits
        "lacks the shard",  # an episode that was not committed
        "belongs to a manifest.json that is not there",  # the journal of the manifest before
    )
    replaced = [p for p in report.problems if "which an episode of those commits replaces" in p.sentence]
    for problem in report.problems:
        assert problem in replaced or any(words in problem.sentence for words in left), problem
    # An episode goes only where the commit that did not return had replaced it, and each one is told.
    assert len(report.dropped) == len(replaced), report
    assert all(any(f'"{name}"' in p.sentence for p in replaced) for name in report.dropped), report


def begin_at(place: Path) -> tuple[Path, list[Path], dict[str, list[str]]]:
    """Where the cache will be, its sources, and the versions that each of them has had."""
    place.mkdir()
    sources = [place / "a", place / "b"]
    for source in sources:
        source.write_text(source.name + "1")
    return place / "cache", sources, {str(source): [source.name + "1"] for source in sources}


def kill(folder: Path, count: int) -> None:
    rng = random.Random(7)
    kills = finished = 0
    begin = time.monotonic()
    (folder / "0").write_text("0")
    build(folder / "cache", [folder / "0"])
    duration = 2 * (time.monotonic() - begin)  # of a build; then as measured
    run = 0
    while kills < count:
        run += 1
        place = folder / str(run)
        cache, sources, versions = begin_at(place)
        for phase in range(2):  # a new cache; then one whose source has changed
            if phase == 1:
                sources[0].write_text("a2")
                versions[str(sources[0])].append("a2")
            had = look(cache, versions) if phase == 1 else {}
            while True:
                begin = time.monotonic()
                child = os.fork()
                if child == 0:
                    build(cache, sources)
                    os._exit(0)
                delay = rng.uniform(0, duration)
                while time.monotonic() - begin < delay and os.waitpid(child, os.WNOHANG)[0] == 0:
                    time.sleep(0.0002)
                else:
                    try:
                        os.kill(child, signal.SIGKILL)
                        status = os.waitpid(child, 0)[1]
                    except (ProcessLookupError, ChildProcessError):
                        status = 0
                if not (cache / "manifest.json").exists():
                    assert os.WIFSIGNALED(status)
                    kills += 1
                    continue
                check_problems(cache)
                now = look(cache, versions)
                for path, episodes in had.items():  # nothing that was committed is gone, or all that is newer is there
                    assert episodes <= now.get(path, set()) or now[path] == whole(versions)[path], path
                had = now
                if os.WIFSIGNALED(status):
                    kills += 1
                    continue
                finished += 1
                duration = 0.9 * duration + 0.1 * 1.1 * (time.monotonic() - begin)
                break
            assert rc.verify_cache(cache).problems == []
            assert look(cache, versions) == whole(versions)
        shutil.rmtree(place)
    print(f"{kills} kills, {finished} builds that finished")


def sentence(call: Callable[[], object]) -> str:
    """What it fails with; empty where it passes."""
    try:
        call()
    except rc.FileError as caught:
        return str(caught)
    return ""


def disk(folder: Path, error: int, sticky: bool) -> None:
    shim = ctypes.CDLL(None)
    shim.fault_last.restype = ctypes.c_char_p
    failures = 0
    calls = 1
    while True:
        place = folder / str(calls)
        cache, sources, versions = begin_at(place)
        build(cache, sources[:1])
        before = look(cache, versions)
        sources[0].write_text("a2")  # one that changed, one that is new
        versions[str(sources[0])].append("a2")
        shim.fault_arm(str(cache).encode(), calls, error, sticky)
        said = sentence(partial(build, cache, sources))
        fired, last = shim.fault_fired(), shim.fault_last().decode()
        assert shim.fault_retried() == 0, last  # what Linux dropped, it does not tell a second time
        shim.fault_arm(b"", 0, 0, 0)
        if not fired:
            break
        if error != 0 and not last.endswith("/lock"):
            assert said.startswith(str(cache)), (last, said)
            assert os.strerror(error) in said, (last, said)
            failures += 1
        check_problems(cache)
        now = look(cache, versions)
        path = str(sources[0])
        assert before[path] <= now[path] or any(version == "a2" for version, _ in now[path]), last
        build(cache, sources)
        assert rc.verify_cache(cache).problems == []
        assert look(cache, versions) == whole(versions), last
        shutil.rmtree(place)
        calls += 1
    print(f"{calls - 1} calls, {failures} failures")


REFUSED = "the disk failed before, and may have lost samples"


def sync(folder: Path, lost: int, jumbled: bool) -> None:
    """Samples that came in order are written anew, where they still are what came; else they must be added again."""
    shim = ctypes.CDLL(None)
    shim.fault_last.restype = ctypes.c_char_p
    shim.fault_lose(lost)
    calls = written = refused = 0
    while True:
        calls += 1
        cache = folder / str(calls)
        made = episode(1, 9000 if lost == 2 else 30)  # many: stamps of every stream go into a file without a name
        if jumbled:
            made = {name: (entry[0], np.roll(entry[1], 3), *entry[2:]) for name, entry in made.items()}
        writer = rc.CacheWriter(cache)
        writer.add(streams_of(episode(0)), name="committed")
        writer.commit()
        writer.add(streams_of(made), name="waiting")
        shim.fault_arm(str(cache / "shards").encode(), calls, errno.EIO, 0)
        said = sentence(writer.commit)
        if not shim.fault_fired():
            break
        assert os.strerror(errno.EIO) in said
        if not shim.fault_last().startswith(b"fsync") or not shim.fault_last().endswith(b".tmp"):
            writer.close()
            continue
        said = sentence(writer.commit)
        assert shim.fault_retried() == 0
        if said:
            refused += 1
            assert REFUSED in said
            assert said.endswith("the 1 episode(s) that waited are dropped: add them again"), said
            assert [entry.name for entry in rc.Cache(cache).episodes] == ["committed"]
            assert rc.verify_cache(cache).problems == []
            writer.add(streams_of(made), name="waiting")
        else:
            written += 1
        writer.commit()
        writer.close()
        assert rc.verify_cache(cache).problems == []
        episodes = rc.Cache(cache).episodes
        assert len(episodes) == 2
        check_episode(episodes[0], episode(0))
        check_episode(episodes[1], made)
    print(f"{written} written anew, {refused} refused")


def fail_sync(shim: ctypes.CDLL, cache: Path, commit: Callable[[], object]) -> None:
    """Has the fsync of the first shard fail."""
    for calls in range(1, 100):
        shim.fault_arm(str(cache / "shards").encode(), calls, errno.EIO, 0)
        assert sentence(commit)
        last = shim.fault_last().decode()
        shim.fault_arm(b"", 0, 0, 0)
        if last.startswith("fsync"):
            return
    raise AssertionError("no fsync")


def check_temporaries(cache: Path) -> None:
    names = [path.name.split(".")[0] for path in (cache / "shards").glob("*.tmp")]
    assert len(names) == len(set(names)), names


def full(folder: Path) -> None:
    shim = ctypes.CDLL(None)
    shim.fault_last.restype = ctypes.c_char_p
    cache = folder / "cache"
    writer = rc.CacheWriter(cache)
    made = {"a": (np.arange(50_000.0), np.arange(50_000))}  # over what stays in memory
    writer.add(streams_of(made), name="one")
    fail_sync(shim, cache, writer.commit)
    for calls in range(1, 1000):
        shim.fault_arm(str(cache / "shards").encode(), calls, errno.ENOSPC, 0)
        said = sentence(writer.commit)
        check_temporaries(cache)
        if not said:
            break
        assert os.strerror(errno.ENOSPC) in said
    writer.close()
    assert rc.verify_cache(cache).problems == []
    check_episode(rc.Cache(cache).episodes[0], made)
    print(f"{calls} calls")


def widen(folder: Path) -> None:
    shim = ctypes.CDLL(None)
    cache = folder / "cache"
    writer = rc.CacheWriter(cache)
    times = np.arange(100_000)
    writer.add({"a": rc.Stream(np.ones((100_000, 1)), times, channels=["x"])}, name="one")
    more = {"a": rc.Stream(np.ones((1, 2)), times[:1], channels=["x", "y"])}
    for calls in range(1, 1000):
        shim.fault_arm(str(cache / "shards").encode(), calls, errno.ENOSPC, 0)
        said = sentence(lambda: writer.add(more, name="two"))
        check_temporaries(cache)
        if not said:
            break
    shim.fault_arm(b"", 0, 0, 0)
    writer.close()
    assert rc.verify_cache(cache).problems == []
    assert [entry.samples for entry in rc.Cache(cache).episodes] == [{"a": 100_000}, {"a": 1}]
    print(f"{calls} calls")


def close(folder: Path) -> None:
    shim = ctypes.CDLL(None)
    shim.fault_last.restype = ctypes.c_char_p
    jumbled = episode(1)
    jumbled = {name: (entry[0], np.roll(entry[1], 3), *entry[2:]) for name, entry in jumbled.items()}

    # Whatever call meets the refusal, the next one goes on.
    for number, again in enumerate(["commit", "add", "replace", "close", "with"]):
        cache = folder / again
        writer = rc.CacheWriter(cache)
        writer.add(streams_of(episode(0)), name="old")
        writer.commit()
        writer.add(streams_of(jumbled), name="old", replace=True)
        fail_sync(shim, cache, writer.commit)
        calls = [
            writer.commit,
            partial(writer.add, streams_of(episode(2)), name="new"),
            partial(writer.add, streams_of(episode(2)), name="old", replace=True),
            writer.close,
            partial(writer.__exit__, None, None, None),
        ]
        assert REFUSED in sentence(calls[number])
        if again in ("close", "with"):
            writer = rc.CacheWriter(cache)  # the lock is free
        writer.add(streams_of(episode(3)), name="new")
        writer.close()
        assert rc.verify_cache(cache).problems == []
        old, new = rc.Cache(cache).episodes
        check_episode(old, episode(0))
        check_episode(new, episode(3))

    # A source that lost an episode is read again, what was committed of it is not.
    cache = folder / "source"
    source = folder / "file"
    source.write_text("content")
    parts = [episode(4), jumbled]
    writer = rc.CacheWriter(cache)
    writer.add(FakeRecording(source, parts))
    assert writer.knows(FakeRecording(source, parts))
    fail_sync(shim, cache, writer.commit)
    assert "the 2 episode(s) that waited are dropped" in sentence(writer.commit)
    assert not writer.knows(FakeRecording(source, parts))
    writer.commit()
    assert len(rc.Cache(cache).episodes) == 0
    assert writer.add(FakeRecording(source, parts)) == 2
    writer.close()
    for found, part in zip(rc.Cache(cache).episodes, parts, strict=True):
        check_episode(found, part)

    # A full disk: close() fails, and lets the next writer in.
    cache = folder / "full"
    writer = rc.CacheWriter(cache)
    writer.add(streams_of(episode(0)), name="one")
    shim.fault_arm(str(cache / "shards").encode(), 1, errno.ENOSPC, 1)
    assert os.strerror(errno.ENOSPC) in sentence(writer.close)
    shim.fault_arm(b"", 0, 0, 0)
    with rc.CacheWriter(cache) as other:
        other.add(streams_of(episode(0)), name="one")
    check_episode(rc.Cache(cache).episodes[0], episode(0))


def fence(folder: Path) -> None:
    """Somebody removes the lock, and another writer comes and goes after the shard of a commit has got its name."""
    shim = ctypes.CDLL(None)
    for k, (is_close, is_empty) in enumerate(itertools.product([False, True], repeat=2)):
        cache = folder / str(k)
        first = rc.CacheWriter(cache)
        first.add(streams_of({"a": episode(0)["joints"]}), name="one")
        first.commit()
        first.add(streams_of({"a": episode(1)["joints"]}), name="lost")
        came = []

        def come(cache: Path = cache, is_empty: bool = is_empty, came: list[int] = came) -> None:
            (cache / "lock").unlink()
            with warnings.catch_warnings(action="ignore"), rc.CacheWriter(cache) as second:
                if not is_empty:
                    second.add(streams_of({"a": episode(2)["joints"]}), name="two")
            came.append(1)

        callback = ctypes.CFUNCTYPE(None)(come)
        shim.fault_after(b".safetensors", callback)
        said = sentence(first.close if is_close else first.commit)
        assert came == [1]
        assert "another writer has changed this cache" in said, said
        first._writer.abandon()
        wanted = {"one": 0} if is_empty else {"one": 0, "two": 2}
        found = {entry.name: entry for entry in rc.Cache(cache).episodes}
        assert found.keys() == wanted.keys()
        for name, seed in wanted.items():
            check_episode(found[name], {"a": episode(seed)["joints"]})
        assert rc.verify_cache(cache).problems == []


if __name__ == "__main__":
    if sys.argv[1] == "kill":
        kill(Path(sys.argv[2]), int(sys.argv[3]))
    elif sys.argv[1] == "sync":
        sync(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "1")
    elif sys.argv[1] in ("full", "widen", "close", "fence"):
        {"full": full, "widen": widen, "close": close, "fence": fence}[sys.argv[1]](Path(sys.argv[2]))
    else:
        disk(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "1")
