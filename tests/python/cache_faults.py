"""Builds that are killed or whose disk fails, run by test_cache_faults.py in a process of their own.

cache_faults.py kill FOLDER COUNT           kill -9 at COUNT random moments of builds; then verify, look, go on
cache_faults.py disk FOLDER ERRNO STICKY    one call of the file system after the other fails, until a build passes
cache_faults.py sync FOLDER LOST SORTED     the fsync of one shard after the other fails, and commit() is called again
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import shutil
import signal
import sys
import time
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
    """Nothing but leftovers."""
    for problem in rc.verify_cache(cache).problems:
        assert "left by a crash" in problem.sentence, problem


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
        place.mkdir()
        cache = place / "cache"
        sources = [place / "a", place / "b"]
        versions = {}
        for source in sources:
            source.write_text(source.name + "1")
            versions[str(source)] = [source.name + "1"]
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
        place.mkdir()
        cache = place / "cache"
        sources = [place / "a", place / "b"]
        versions = {}
        for source in sources:
            source.write_text(source.name + "1")
            versions[str(source)] = [source.name + "1"]
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


def sync(folder: Path, lost: bool, jumbled: bool) -> None:
    """Samples that came in order are written anew, where they still are what came; else they are refused."""
    shim = ctypes.CDLL(None)
    shim.fault_last.restype = ctypes.c_char_p
    shim.fault_lose(lost)
    calls = written = refused = 0
    while True:
        calls += 1
        cache = folder / str(calls)
        made = episode(1, 30)
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
        said = [sentence(call) for call in (writer.commit, writer.commit, writer.close)]
        if said == ["", "", ""]:
            written += 1
        else:
            refused += 1
            assert all("the disk failed before, and may have lost samples" in each for each in said), said
            writer._writer.abandon()
        assert shim.fault_retried() == 0
        check_problems(cache)
        episodes = rc.Cache(cache).episodes
        check_episode(episodes[0], episode(0))
        assert len(episodes) == (1 if lost or jumbled else 2)
        if len(episodes) == 2:
            check_episode(episodes[1], made)
    print(f"{written} written anew, {refused} refused")


if __name__ == "__main__":
    if sys.argv[1] == "kill":
        kill(Path(sys.argv[2]), int(sys.argv[3]))
    elif sys.argv[1] == "sync":
        sync(Path(sys.argv[2]), sys.argv[3] == "1", sys.argv[4] == "1")
    else:
        disk(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "1")
