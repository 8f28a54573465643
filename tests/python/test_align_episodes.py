"""Rows that are windows of a cache's episodes, in one call: the bytes of rc.align on the same episodes, packed."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import calling
import numpy as np
import oracle
import pytest
from test_align import assert_close

import robocache as rc
from robocache import _core
from robocache._cache.values import empty_stream

EPISODES = 13
RATE = 50
PERIOD = 20_000_000
WIDTHS = {"pose": (8,), "joints": (3,), "half": (2, 2), "count": (), "flag": (1,)}
DTYPES = {"pose": np.float64, "joints": np.float32, "half": np.float16, "count": np.int16, "flag": np.bool_}
FLOATS = ("pose", "joints", "half")


def content(k: int) -> dict[str, rc.Stream[Any]]:
    """Episode k, from its number alone. Some lack a stream, some streams are empty, and latencies differ."""
    rng = np.random.default_rng(k)
    made = {}
    for place, (name, width) in enumerate(WIDTHS.items()):
        if (k + place) % 5 == 4:
            continue
        count = 0 if (k, name) == (2, "joints") else 30 + 7 * k + place
        times = k * 10**12 + np.cumsum(rng.choice([0, PERIOD // 4, PERIOD, PERIOD, 8 * PERIOD], count))
        arrivals = times + rng.integers(0, PERIOD, count)
        if k % 3 == 0:
            arrivals = np.maximum.accumulate(arrivals)  # in order
        elif name == "pose":
            arrivals[count // 3 : 2 * count // 3] += 60 * PERIOD  # late, for longer than a search walks
        values = rng.normal(size=(count, *width))
        if name == "joints":
            values[rng.random(values.shape) < 0.05] = np.nan
        typed = (values * 5).astype(DTYPES[name]) if name in ("count", "flag") else values.astype(DTYPES[name])
        made[name] = rc.Stream(typed, times, arrivals=arrivals, latency=int((k + place) % 3) * 7_000_000)
    return made


def make(path: Path, per_group: int) -> Path:
    with rc.CacheWriter(path) as writer:
        for k in range(EPISODES):
            writer.add(content(k), name=f"e{k}")
            if (k + 1) % per_group == 0:
                writer.commit()
    return path


def packed(name: str, rows: np.ndarray) -> rc.Stream[Any]:
    """All episodes, packed, with the latencies in the stamps."""
    parts = [content(k).get(name) for k in range(EPISODES)]
    none = np.zeros(0, np.int64)
    values = [np.zeros((0, *WIDTHS[name]), DTYPES[name]) if p is None else p.values for p in parts]
    times = [none if p is None else p.times - p.latency for p in parts]
    arrivals = [none if p is None else p.arrivals for p in parts]
    offsets = np.cumsum([0, *map(len, times)])
    return rc.Stream(
        np.concatenate(values), np.concatenate(times), arrivals=np.concatenate(arrivals), offsets=offsets, rows=rows
    )


def windows(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Episodes and anchors, some of them outside of the episode."""
    rng = np.random.default_rng(seed)
    episodes = rng.integers(0, EPISODES, count)
    return episodes, episodes * 10**12 + rng.integers(-10 * PERIOD, 150 * PERIOD, count)


def table_of(cache: rc.Cache, names: Any, keep: bool = True) -> Any:
    return _core.EpisodeTable(cache._core, [cache._names.index(name) for name in names], keep)


def align(cache: rc.Cache, table: Any, changes: dict[str, Any], episodes: Any, at: Any, **options: Any) -> Any:
    """_core.align_episodes, with the defaults of rc.align."""
    streams = {name: empty_stream(cache._infos[name]).replace(**change) for name, change in changes.items()}
    call = {"edge": "clamp", "causal": False, "as_of": None, "on_nan": "propagate", "check": False, "backend": None}
    call |= options
    return _core.align_episodes(table, np.asarray(episodes, np.int64), streams, at, *call.values())


def same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(found) == list(expected)
    for name in found:
        for part in ("values", "valid", "age", "index"):
            calling.assert_same_bytes(getattr(found[name], part), getattr(expected[name], part), f"{name}: {part}")


@pytest.fixture(scope="module", params=[1, 4, 100], ids=lambda per_group: f"{per_group} in a shard")
def cache(request, tmp_path_factory):
    return rc.Cache(make(tmp_path_factory.mktemp("cache") / "c", request.param))


SLERP = [("slerp", 0, 4), ("angle", 4, 6), ("linear", 6, 8)]
PLAIN: dict[str, Any] = {name: {} for name in WIDTHS}
BINS: dict[str, Any] = {"pose": "mean", "joints": "max", "half": "min", "count": "last", "flag": "max"}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": (PLAIN, {}),
    "causal": (PLAIN, {"causal": True}),
    "as_of": (PLAIN, {"as_of": "rows"}),
    "anchor": (PLAIN, {"as_of": "anchor"}),
    "as_of_and_truth": (
        {**PLAIN, "pose": {"as_of": False}, "half": {"as_of": False, "causal": True}},
        {"as_of": "rows"},
    ),
    "cubic": ({name: {"method": "cubic"} for name in FLOATS}, {"as_of": "rows"}),
    "slerp": ({"pose": {"method": SLERP}}, {"edge": "zero"}),
    "nearest": ({name: {"method": "nearest", "max_gap": 3 * PERIOD} for name in WIDTHS}, {}),
    "hold": ({name: {"method": "hold"} for name in WIDTHS}, {"causal": True}),
    "nan": ({name: {"edge": "nan", "max_gap": 2 * PERIOD} for name in FLOATS}, {}),
    "on_nan": (PLAIN, {"on_nan": "skip"}),
    "bins": ({name: {"method": method} for name, method in BINS.items()}, {}),
    "bins_as_of": ({name: {"method": method} for name, method in BINS.items()}, {"as_of": "rows", "on_nan": "skip"}),
}


def case(name: str, episodes: np.ndarray, anchors: np.ndarray) -> tuple[dict[str, Any], Any, dict[str, Any]]:
    changes, options = CASES[name]
    options = dict(options)
    if options.get("as_of") == "rows":
        options["as_of"] = anchors + PERIOD // 3
    at: Any = rc.Timeline.around(anchors, history=3, horizon=4, rate=RATE)
    if name in ("plain", "bins"):
        at = at.times
    return changes, at, options


def expected_of(changes: dict[str, Any], episodes: np.ndarray, at: Any, options: dict[str, Any], **more: Any) -> Any:
    streams = {name: packed(name, episodes).replace(**change) for name, change in changes.items()}
    return rc.align(streams, at, **options, **more)


@pytest.mark.parametrize("check", [True, False], ids=["checked", "unchecked"])
@pytest.mark.parametrize("name", CASES)
def test_the_bytes_of_align(cache, name, check):
    episodes, anchors = windows(90)
    changes, at, options = case(name, episodes, anchors)
    table = table_of(cache, changes)
    for backend in ("reference", "cpu"):
        found = align(cache, table, changes, episodes, at, **options, check=check, backend=backend)
        same(found, expected_of(changes, episodes, at, options, backend="reference"))


@pytest.mark.parametrize("name", CASES)
def test_every_simd_target(tmp_path, name, simd):
    cache = rc.Cache(make(tmp_path / "c", 4))
    episodes, anchors = windows(40, seed=1)
    changes, at, options = case(name, episodes, anchors)
    found = align(cache, table_of(cache, changes), changes, episodes, at, **options, backend="cpu")
    same(found, expected_of(changes, episodes, at, options, backend="reference"))


@pytest.mark.parametrize("name", ["plain", "causal", "as_of", "cubic", "bins_as_of"])
def test_the_oracle_agrees(cache, name):
    episodes, anchors = windows(12, seed=2)
    changes, at, options = case(name, episodes, anchors)
    targets = at.times if isinstance(at, rc.Timeline) else at
    if "bins" in name:  # of a list, where the first bin begins is another matter
        at = targets
    found = align(cache, table_of(cache, changes), changes, episodes, at, **options)
    streams = [packed(stream, episodes).replace(**change) for stream, change in changes.items()]
    for stream, theirs in zip(changes, oracle.align(streams, targets, **options), strict=True):
        mine = found[stream]
        for part in ("valid", "age", "index"):
            calling.assert_same_bytes(getattr(mine, part), getattr(theirs, part), f"{stream}: {part}")
        if stream in FLOATS:
            assert_close(mine.values, theirs.values, theirs.slack, stream)
        else:
            np.testing.assert_array_equal(mine.values.astype(np.float64), theirs.values)


@pytest.mark.parametrize("mapped", [True, False], ids=["mapped", "copied"])
def test_a_table_that_keeps_nothing(tmp_path, mapped):
    cache = rc.Cache(make(tmp_path / "c", 4), map=mapped)
    episodes, anchors = windows(50)
    changes, at, options = case("as_of", episodes, anchors)
    found = align(cache, table_of(cache, changes, keep=False), changes, episodes, at, **options)
    same(found, expected_of(changes, episodes, at, options))


def test_threads_and_a_child_share_a_table(tmp_path):
    cache = rc.Cache(make(tmp_path / "c", 1))
    table = table_of(cache, PLAIN)

    def work(seed: int) -> None:
        episodes, anchors = windows(300, seed)
        changes, at, options = case("as_of", episodes, anchors)
        same(align(cache, table, changes, episodes, at, **options), expected_of(changes, episodes, at, options))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(16)))
    child = multiprocessing.get_context("fork").Process(target=work, args=(99,))
    child.start()
    child.join(60)
    assert child.exitcode == 0


def test_marks_without_values(tmp_path):
    """A stream without channels takes any stream of the cache, ragged ones too: which sample, how old."""
    times = np.arange(6, dtype=np.int64) * 10**9
    rng = np.random.default_rng(0)
    clouds = [rng.normal(size=(k, 3)) for k in range(6)]
    with rc.CacheWriter(tmp_path / "c") as writer:
        writer.add({"cloud": rc.Stream(clouds, times, latency=7_000_000)})
        writer.add({"cloud": rc.Stream(clouds[:2], times[:2])})
    cache = rc.Cache(tmp_path / "c")
    none = np.zeros(0, np.int64)
    stream = rc.Stream(np.zeros((0, 0), np.float32), none, method="nearest")
    targets = np.array([[0, 1_600_000_000, 9_000_000_000], [500_000_000, 700_000_000, 10**9]])
    call = ("clamp", False, None, "propagate", False, None)
    found = _core.align_episodes(table_of(cache, ["cloud"]), np.arange(2), {"cloud": stream}, targets, *call)["cloud"]
    assert found.values.shape == (2, 3, 0)
    np.testing.assert_array_equal(found.index, [[0, 2, 5], [0, 1, 1]])
    np.testing.assert_array_equal(found.valid, [[True, True, False], [True, True, True]])
    np.testing.assert_array_equal(found.age[:, 0], [7_000_000, 500_000_000])


def test_stamps_are_checked_if_asked(tmp_path):
    """Once for each episode that is read, and with the row in the sentence."""
    path = make(tmp_path / "c", 1)
    stamps = content(7)["pose"].times
    for file in (path / "shards").iterdir():
        data = file.read_bytes()
        if stamps.tobytes() in data:
            file.write_bytes(data.replace(stamps.tobytes(), stamps[::-1].tobytes()))
    cache = rc.Cache(path)
    table, changes = table_of(cache, ["pose"]), {"pose": {}}
    episodes, anchors = np.array([0, 7, 5, 7]), np.array([0, 7, 5, 7]) * 10**12
    at = rc.Timeline(anchors, rate=RATE, count=5)
    align(cache, table, changes, episodes[[0, 2]], rc.Timeline(anchors[[0, 2]], rate=RATE, count=5), check=True)
    for backend in ("cpu", "reference"):
        with pytest.raises(ValueError, match=r'stream "pose": times\[1\]\[1\] = .* is before .*must not decrease'):
            align(cache, table, changes, episodes, at, check=True, backend=backend)
        align(cache, table, changes, episodes, at, backend=backend)  # any values, and no access outside
    late = np.array([0, 2**62])
    with pytest.raises(ValueError, match="as_of"):
        align(cache, table, changes, [0, 5], rc.Timeline(anchors[:2], rate=RATE, count=5), check=True, as_of=late)


def test_what_does_not_fit(tmp_path):
    cache = rc.Cache(make(tmp_path / "c", 4))
    table, at = table_of(cache, ["pose"]), rc.Timeline(np.zeros(2, np.int64), rate=RATE, count=5)
    for number in (-1, EPISODES):
        with pytest.raises(ValueError, match=f"episode {number} of {EPISODES}"):
            align(cache, table, {"pose": {}}, [0, number], at)
    with pytest.raises(ValueError, match="as many rows of targets as episodes"):
        align(cache, table, {"pose": {}}, [0, 1, 2], at)
    with pytest.raises(ValueError, match="2 streams, and the table has 1"):
        align(cache, table, {"pose": {}, "joints": {}}, [0, 1], at)
    with pytest.raises(ValueError, match=r'stream "joints".*not one of the cache'):
        align(cache, table, {"joints": {}}, [0, 1], at)
    with pytest.raises(ValueError, match="stream 5 of 5"):
        _core.EpisodeTable(cache._core, [5], True)
    with pytest.raises(ValueError, match="0 streams; expected 1 to 64"):
        _core.EpisodeTable(cache._core, [], True)
