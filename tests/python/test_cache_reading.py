"""Reading a cache: rows of many shards, copies instead of maps, threads, forks, other processes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import robocache as rc

PATIENCE = 60  # seconds after which something hangs


def streams_of(k: int) -> dict[str, rc.Stream]:
    """Episode k, from its number alone. Some lack a stream, and latencies differ."""
    rng = np.random.default_rng(k)
    count = 20 + k
    times = np.cumsum(rng.integers(1, 40_000_000, count)) + k * 10**12
    pose = rng.standard_normal((count, 3))
    late = (k % 3) * 5_000_000
    made = {
        "pose": rc.Stream(pose, times, latency=late, arrivals=times + 3_000_000, channels=("x", "y", "z")),
        "camera": rc.Stream(rng.random((count // 2, 4, 5), np.float32), times[: count // 2], method="hold"),
    }
    if k % 4 == 3:
        del made["camera"]
    return made


def make(path: Path, *, per_group: int, count: int = 10) -> Path:
    with rc.CacheWriter(path) as writer:
        for k in range(count):
            writer.add(streams_of(k), name=f"e{k}")
            if (k + 1) % per_group == 0:
                writer.commit()
    return path


OPTIONS = [
    {"rate": 30},
    {"rate": 30, "causal": True},
    {"rate": 50, "edge": "nan", "max_gap": 0.02},
    {"rate": 20, "method": {"pose": "cubic"}, "edge": "zero"},
    {"rate": 20, "method": {"pose": "mean", "camera": "nearest"}},
    {"targets": [0.0, 0.1, 5.0]},
    {"rate": 30, "as_of": 0.1501},
    {"targets": [0.0, 0.1, 5.0], "as_of": [0.0, 0.05, 0.1, 0.2, 0.3, 9.0]},  # a time for each row
    {"rate": 30, "as_of": {"pose": 120_000_000, "camera": False}, "method": {"pose": "cubic"}},
]


@pytest.mark.parametrize("mapped", [True, False], ids=["mapped", "copied"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("per_group", [1, 3])
def test_rows_of_many_shards(tmp_path, options, per_group, mapped):
    """The same as rc.align of each episode's own arrays, alone."""
    cache = rc.Cache(make(tmp_path / "c", per_group=per_group), map=mapped)
    wanted = [7, 0, 3, 3, 9, 1]
    found = cache.align(wanted, **options)
    given = dict(options)
    methods, gap = given.pop("method", {}), given.pop("max_gap", None)
    rate, relative = given.pop("rate", None), given.pop("targets", None)
    decided = given.pop("as_of", None)
    for b, k in enumerate(wanted):
        streams = streams_of(k)
        first = min(np.asarray(s.times).min() - s.latency for s in streams.values())
        last = max(np.asarray(s.times).max() - s.latency for s in streams.values())
        assert cache.episodes[k].start == first
        if relative is None:
            at = rc.Timeline(int(first), rate=rate, count=found["pose"].valid.shape[1])
            assert found.lengths[b] == np.count_nonzero(at.times <= last)
        else:
            at = first + (np.asarray(relative) * 1e9).astype(np.int64)
        for name, stream in streams.items():
            one = stream.replace(method=methods.get(name, stream.method), max_gap=gap)
            as_of = decided.get(name) if isinstance(decided, dict) else decided
            as_of = as_of[b] if isinstance(as_of, list) else as_of
            if isinstance(as_of, float):
                as_of = round(as_of * 1e9)
            if as_of is not None and as_of is not False:
                one = one.replace(as_of=int(first) + as_of)
            alone = rc.align({name: one}, at, **given)[name]
            for part, one in zip(found[name], alone, strict=True):
                np.testing.assert_array_equal(part[b], one, err_msg=f"{name} of episode {k}")
        if "camera" not in streams:
            assert not found["camera"].valid[b].any()
            assert (found["camera"].index[b] == -1).all()


@pytest.mark.parametrize("mapped", [True, False], ids=["mapped", "copied"])
@pytest.mark.parametrize("t", [0.15, [0.1, 0.2, 0.05]], ids=["one", "for each episode"])
@pytest.mark.parametrize("per_group", [1, 10])
def test_windows_around_an_anchor(tmp_path, t, per_group, mapped):
    """Timelines are relative to each episode's start, and the anchor is the decision."""
    cache = rc.Cache(make(tmp_path / "c", per_group=per_group), map=mapped)
    wanted = [7, 0, 2]
    line = rc.Timeline.around(np.asarray(t) if isinstance(t, list) else t, history=2, horizon=3, rate=20)
    found = cache.align(wanted, targets=line, as_of="anchor", streams=["pose", "camera"])
    assert found.lengths.tolist() == [5, 5, 5]
    by_name = cache.align(wanted, targets=line, as_of={"pose": "anchor"}, streams=["pose"])
    for b, k in enumerate(wanted):
        decision = cache.episodes[k].start + round((t[b] if isinstance(t, list) else t) * 1e9)
        at = decision + np.arange(-2, 3) * 50_000_000
        np.testing.assert_array_equal(found.times[b], at)
        for name, stream in streams_of(k).items():
            alone = rc.align({name: stream}, at, as_of=decision)[name]
            for part, one in zip(found[name], alone, strict=True):
                np.testing.assert_array_equal(part[b], one, err_msg=f"{name} of episode {k}")
        np.testing.assert_array_equal(by_name["pose"].values[b], found["pose"].values[b])
    assert (found["pose"].values != cache.align(wanted, targets=line, streams=["pose"])["pose"].values).any()
    plain = rc.Timeline(0.1, rate=20, count=3)
    same = cache.align(wanted, targets=[0.1, 0.15, 0.2], streams=["pose"])["pose"]
    np.testing.assert_array_equal(cache.align(wanted, targets=plain, streams=["pose"])["pose"].values, same.values)


def test_rows_of_many_shards_are_read_where_they_lie(tmp_path, monkeypatch):
    """Nothing is packed: not of one shard, and not of several."""
    cache = rc.Cache(make(tmp_path / "c", per_group=1))
    numeric = [name for name, info in cache.streams.items() if not info.ragged]
    wanted = [7, 0, 3, 3, 9, 1]
    expected = cache.align(wanted, rate=30, streams=numeric)

    def refuse(*given):
        raise AssertionError("samples are packed")

    monkeypatch.setattr(rc.Cache, "_packed", refuse)
    found = cache.align(wanted, rate=30, streams=numeric)
    assert len({cache.episodes[k]._group for k in wanted}) > 1
    for name in numeric:
        for part, same in zip(found[name], expected[name], strict=True):
            np.testing.assert_array_equal(part, same)


def test_channels_that_came_later(tmp_path):
    with rc.CacheWriter(tmp_path / "c") as writer:
        writer.add({"joints": rc.Stream(np.ones((3, 1)), [0, 10**9, 2 * 10**9], channels=("a",))})
        writer.commit()
        writer.add({"joints": rc.Stream(np.full((3, 2), 2.0), [0, 10**9, 2 * 10**9], channels=("a", "b"))})
    found = rc.Cache(tmp_path / "c").align(rate=1)["joints"]
    np.testing.assert_array_equal(found.values[0], [[1, np.nan]] * 3)
    np.testing.assert_array_equal(found.values[1], [[2, 2]] * 3)


# ---- Copies instead of maps


def test_a_shard_that_shrinks(tmp_path):
    """A map would end the process with SIGBUS. Copies are a FileError with the file's name."""
    path = make(tmp_path / "c", per_group=10)
    cache = rc.Cache(path, map=False)
    held = cache.episodes[0].streams["pose"]
    expected = np.array(held.values)
    for shard in (path / "shards").iterdir():
        os.truncate(shard, 100)
    np.testing.assert_array_equal(held.values, expected)
    for read in (
        lambda: cache.episodes[1].streams["pose"],
        lambda: cache.align(rate=10),
        lambda: cache.align([0], rate=1),
    ):
        with pytest.raises(rc.FileError, match=r"000000-.*safetensors: has 100 bytes, but the manifest says"):
            read()


def test_a_shard_that_shrinks_before_it_is_mapped(tmp_path):
    path = make(tmp_path / "c", per_group=10)
    cache = rc.Cache(path)
    for shard in (path / "shards").iterdir():
        os.truncate(shard, 100)
    with pytest.raises(rc.FileError, match=r"has 100 bytes, but the manifest says"):
        cache.episodes[0].streams["pose"]


def test_copies_are_the_same(tmp_path):
    clouds = [np.arange(3 * n, dtype=np.float32).reshape(n, 3) for n in (2, 0, 3)]
    with rc.CacheWriter(tmp_path / "c") as writer:
        for k in range(3):
            writer.add(
                {**streams_of(k), "clouds": rc.Stream([cloud + k for cloud in clouds], np.arange(3) + k * 10**12)}
            )
    mapped, copied = rc.Cache(tmp_path / "c"), rc.Cache(tmp_path / "c", map=False)
    for k in range(3):
        one, other = mapped.episodes[k].streams, copied.episodes[k].streams
        assert list(one) == list(other)
        for name in one:
            np.testing.assert_array_equal(one[name].times, other[name].times)
            np.testing.assert_array_equal(one[name].values, other[name].values)
            np.testing.assert_array_equal(one[name].arrivals, other[name].arrivals)
        for n, cloud in enumerate(clouds):
            np.testing.assert_array_equal(other["clouds"].samples[n], cloud + k)
            np.testing.assert_array_equal(one["clouds"].samples[n], cloud + k)


# ---- Threads, forks, other processes


def check(cache: rc.Cache, k: int) -> None:
    expected = streams_of(k)
    streams = cache.episodes[k].streams
    assert set(streams) == set(expected)
    for name, stream in expected.items():
        np.testing.assert_array_equal(streams[name].values, stream.values)
        np.testing.assert_array_equal(streams[name].times, stream.times)


@pytest.mark.parametrize("mapped", [True, False], ids=["mapped", "copied"])
def test_threads_share_a_cache(tmp_path, mapped):
    path = make(tmp_path / "c", per_group=2, count=12)
    begin = threading.Barrier(8)
    for _ in range(5):
        cache = rc.Cache(path, map=mapped)

        def read(seed: int, cache: rc.Cache = cache) -> None:
            begin.wait(PATIENCE)
            for k in np.random.default_rng(seed).permutation(12):
                check(cache, int(k))
                cache.align([int(k), int(11 - k)], rate=10)

        with ThreadPoolExecutor(8) as executor:
            for done in [executor.submit(read, seed) for seed in range(8)]:
                done.result(PATIENCE)


def read_in_child(cache: rc.Cache, answer: multiprocessing.Queue) -> None:
    try:
        for k in range(len(cache.episodes)):
            check(cache, k)
        answer.put("fine")
    except BaseException as error:
        answer.put(repr(error))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_other_processes(tmp_path, method):
    """A cache that was read before goes on in a child, also where threads read it while the process forks."""
    cache = rc.Cache(make(tmp_path / "c", per_group=2))
    check(cache, 0)
    context = multiprocessing.get_context(method)
    stop = threading.Event()

    def keep_reading() -> None:
        while not stop.is_set():
            opened = rc.Cache(cache.path)  # maps and lets go, as fast as it can
            for k in range(10):
                check(opened, k)

    threads = [threading.Thread(target=keep_reading) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(4 if method == "fork" else 1):
            answer = context.Queue()
            child = context.Process(target=read_in_child, args=(cache, answer))
            child.start()
            assert answer.get(timeout=PATIENCE) == "fine"
            child.join(PATIENCE)
            assert child.exitcode == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("mapped", [True, False])
def test_a_pickled_cache_is_its_path_and_options(tmp_path, monkeypatch, mapped):
    make(tmp_path / "c", per_group=2)
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps(rc.Cache("c", map=mapped))
    assert len(data) < 500
    monkeypatch.chdir("/")
    opened = pickle.loads(data)
    assert opened._map is mapped
    check(opened, 3)
