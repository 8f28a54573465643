"""An add whose commit fails, at one call of the file system after the other. Run by test_cache_writers.py.

cache_add_faults.py FOLDER ERRNO HOW      the commit writes a "line" of the journal, or a "snapshot"
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from pathlib import Path

import numpy as np

import robocache as rc


def stream(channels: str, seed: int) -> dict[str, rc.Stream]:
    values = np.random.default_rng(seed).normal(size=(20_000, len(channels)))  # does not stay in memory
    return {"q": rc.Stream(values, np.arange(20_000), channels=list(channels), method="hold")}


def check(cache: rc.Cache, name: str, channels: str, seed: int) -> None:
    expected = stream(channels, seed)["q"].values
    found = cache.episodes[name].streams["q"]
    for k, channel in enumerate(channels):
        np.testing.assert_array_equal(found.values[:, found.channels.index(channel)], expected[:, k])


def main(folder: Path, error: int, snapshot: bool) -> None:
    shim = ctypes.CDLL(None)
    shim.fault_last.restype = ctypes.c_char_p
    refused = kept = calls = 0
    for calls in range(1, 1000):
        path = folder / str(calls)
        with rc.CacheWriter(path) as writer:
            writer.add(stream("ab", 0), name="committed")
        writer = rc.CacheWriter(path, group_bytes=900_000)
        for k in range(2):
            writer.add(stream("ab", k), name=f"early-{k}")
            writer.commit()
        if snapshot:  # as a crash leaves it: another writer does not continue the journal
            writer._writer.abandon()
            writer = rc.CacheWriter(path, group_bytes=900_000)
        writer.add(stream("a", 5), name="waiting")
        before = writer._writer.waiting_episodes()
        assert before == 1
        shim.fault_arm(str(path).encode(), calls, error, 0)
        said = ""
        try:
            writer.add(stream("bcxa", 6), name="new")  # two more channels; and the group is full
        except rc.FileError as caught:
            said = str(caught)
        fired, last = shim.fault_fired(), shim.fault_last().decode()
        shim.fault_arm(b"", 0, 0, 0)
        if not fired:
            assert not said
            writer.close()
            break
        if not said:  # a file that was of no use could not be removed, or the like
            assert "unlink" in last or last.endswith("/lock"), last
            expected = {"new"}
        elif "is kept, and waits" in said:
            kept += 1
            expected = {"new"}
        else:
            refused += 1
            assert said.startswith(str(path)), (last, said)
            assert os.strerror(error) in said, (last, said)
            expected = set()
            names = {entry.name for entry in rc.Cache(path).episodes}
            assert "new" not in names, last
            if "dropped: add them again" in said:
                before = 0
            assert writer._writer.waiting_episodes() == (before if "waiting" not in names else 0), last
        again = sentence = ""
        try:
            writer.add(stream("ad", 7), name="last")
        except rc.FileError as caught:
            again = str(caught)
            sentence = again
        assert not again or "may have lost samples" in sentence, (last, sentence)
        if again:
            writer.add(stream("ad", 7), name="last")
        writer.close()
        cache = rc.Cache(path)
        names = {entry.name for entry in cache.episodes}
        assert {"committed", "early-0", "early-1", "last", *expected} <= names, (last, said, names)
        assert ("new" in names) == bool(expected), (last, said)
        assert set(cache.streams["q"].channels) == ({*"abcxd"} if expected else {*"abd"}), (last, said)
        check(cache, "committed", "ab", 0)
        check(cache, "early-1", "ab", 1)
        check(cache, "last", "ad", 7)
        if "waiting" in names:
            check(cache, "waiting", "a", 5)
        else:
            assert "may have lost samples" in again, (last, said)
        if expected:
            check(cache, "new", "bcxa", 6)
        assert rc.verify_cache(path).problems == [], (last, rc.verify_cache(path))
        shutil.rmtree(path)
    print(f"{calls} calls, {refused} refused, {kept} kept")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "snapshot")
