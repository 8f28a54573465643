"""Caches: what goes in comes out, whatever its shape; sources that change; what is wrong gets a sentence."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys

import numpy as np
import pytest
from cache_cases import FakeRecording, check_episode, episode, streams_of, version_1

import robocache as rc
from robocache._align.stream import UncheckedStream
from robocache._recordings.source import Batch, StreamInfo

safetensors = pytest.importorskip("safetensors.numpy")

DTYPES = [
    "bool",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
]


def shards(path):
    return sorted((path / "shards").iterdir())


def safetensors_file(path):
    from safetensors import safe_open

    return safe_open(path, "np")


def write(path, *contents, **options):
    with rc.CacheWriter(path, **options) as writer:
        for k, content in enumerate(contents):
            writer.add(streams_of(content), name=f"e{k}", task=f"task {k}")
    return rc.Cache(path)


# ---- Round trips


def test_episodes_come_back(tmp_path):
    contents = [episode(k, 20 + 17 * k) for k in range(4)]
    cache = write(tmp_path / "c", *contents)
    assert len(cache.episodes) == 4
    assert [e.name for e in cache.episodes] == ["e0", "e1", "e2", "e3"]
    assert cache.episodes[2].task == "task 2"
    assert cache.episodes["e3"].index == 3
    assert cache.episodes[-1].duration == pytest.approx((20 + 51 - 1) * 0.01)
    for found, content in zip(cache.episodes, contents, strict=True):
        check_episode(found, content)
    assert rc.verify_cache(tmp_path / "c").problems == []


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 5), (0,)])
def test_every_dtype_and_shape(tmp_path, dtype, shape):
    rng = np.random.default_rng(1)
    values = rng.integers(0, 2, size=(11, *shape)).astype(dtype)
    times = np.arange(11) * 1_000_000
    with rc.CacheWriter(tmp_path / "c") as writer:
        writer.add({"s": rc.Stream(values, times)})
    stream = rc.Cache(tmp_path / "c").episodes[0].streams["s"]
    assert stream.values.dtype == values.dtype
    np.testing.assert_array_equal(stream.values, values)
    assert not stream.values.flags.writeable
    assert not stream.values.flags.owndata
    loaded = safetensors.load_file(shards(tmp_path / "c")[0])
    np.testing.assert_array_equal(loaded["values"], values)
    np.testing.assert_array_equal(loaded["times"], times)
    np.testing.assert_array_equal(loaded["offsets"], [0, 11])


def test_bfloat16(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    torch = pytest.importorskip("torch")
    values = np.arange(12).reshape(6, 2).astype(ml_dtypes.bfloat16)
    times = np.arange(6) * 1_000_000
    with rc.CacheWriter(tmp_path / "c") as writer:
        writer.add({"s": rc.Stream(values, times)})
        writer.add({"s": rc.Stream(torch.arange(12).reshape(6, 2).bfloat16(), torch.from_numpy(times))})
    cache = rc.Cache(tmp_path / "c")
    for found in cache.episodes:
        assert found.streams["s"].values.dtype == values.dtype
        np.testing.assert_array_equal(found.streams["s"].values, values)
    aligned = cache.align(rate=1000, device="cpu")
    assert aligned["s"].values.dtype == torch.bfloat16
    assert aligned["s"].values.shape == (2, 6, 2)


def test_torch_and_strides(tmp_path):
    torch = pytest.importorskip("torch")
    values = torch.arange(60.0, requires_grad=True).reshape(3, 4, 5)
    times = torch.arange(5) * 1_000_000
    with rc.CacheWriter(tmp_path / "c") as writer:
        writer.add(
            {"t": rc.Stream(values.permute(2, 0, 1), times), "r": rc.Stream(np.arange(10.0)[::-2], np.arange(5.0))}
        )
    found = rc.Cache(tmp_path / "c").episodes[0]
    np.testing.assert_array_equal(found.streams["t"].values, values.detach().permute(2, 0, 1).numpy())
    np.testing.assert_array_equal(found.streams["r"].values, [9, 7, 5, 3, 1])
    np.testing.assert_array_equal(found.streams["r"].times, np.arange(5) * 10**9)  # seconds


def test_empty_things(tmp_path):
    none = np.zeros(0, np.int64)
    contents = [
        {},
        {"joints": (np.zeros((0, 3), np.float32), none)},
        {"cloud": (np.zeros((0, 2)), none, none)},
        {"cloud": (np.zeros((0, 2)), np.asarray([5, 7]), np.asarray([0, 0]))},
        episode(1),
    ]
    cache = FakeRecording(tmp_path / "none", contents)
    with rc.CacheWriter(tmp_path / "c") as writer:
        assert writer.add(cache) == 5
    cache = rc.Cache(tmp_path / "c")
    for found, content in zip(cache.episodes, contents, strict=True):
        check_episode(found, content)
    assert cache.episodes[0].duration == 0
    assert rc.verify_cache(tmp_path / "c").problems == []
    aligned = cache.align(rate=100)
    assert aligned.lengths.tolist() == [0, 0, 0, 1, 40]
    assert not aligned["joints"].valid[:4].any()
    assert aligned["joints"].valid[4, :40].all()
    with rc.CacheWriter(tmp_path / "empty"):
        pass
    empty = rc.Cache(tmp_path / "empty")
    assert len(empty.episodes) == 0
    assert empty.align(rate=10) == {}
    assert "0 episodes" in repr(empty)
    assert rc.verify_cache(tmp_path / "empty").problems == []


@pytest.mark.parametrize("seed", range(6))
def test_backward_stamps_are_sorted_and_counted(tmp_path, seed):
    rng = np.random.default_rng(seed)
    contents = []
    for k in range(3):
        content = episode(seed * 10 + k, 60)
        for name, entry in content.items():
            times = entry[1].copy()
            if seed == 0:
                times[-2:] = times[-2:][::-1]
            elif seed == 1:
                times = times[::-1].copy()
            else:
                times = rng.choice(times[: len(times) // 2], len(times))  # with many equal ones
            content[name] = (entry[0], times, *entry[2:])
        contents.append(content)
    with rc.CacheWriter(tmp_path / "c") as writer:
        writer.add(FakeRecording(tmp_path / "none", contents))
    for found, content in zip(rc.Cache(tmp_path / "c").episodes, contents, strict=True):
        check_episode(found, content)
    assert rc.verify_cache(tmp_path / "c").problems == []


def test_long_streams_are_sorted_through_files(tmp_path):
    """Three runs of 2^18 samples, merged; memory stays small."""
    count = 700_000
    rng = np.random.default_rng(0)
    times = np.sort(rng.integers(0, count * 900, count))
    jumbled = times + rng.integers(-2_000_000, 2_000_000, count)
    jumbled[-1] = -5
    values = np.arange(count, dtype=np.int32)
    with rc.CacheWriter(tmp_path / "c") as writer:
        writer.add({"s": rc.Stream(values, jumbled)})
    stream = rc.Cache(tmp_path / "c").episodes[0].streams["s"]
    order = np.argsort(jumbled, kind="stable")
    np.testing.assert_array_equal(stream.times, jumbled[order])
    np.testing.assert_array_equal(stream.values, order)
    assert rc.verify_cache(tmp_path / "c").problems == []


def test_groups(tmp_path):
    contents = [episode(k) for k in range(9)]
    cache = write(tmp_path / "c", *contents, group_bytes=3000)
    assert {e._group for e in cache.episodes} == set(range(len({e._group for e in cache.episodes})))
    assert cache.episodes[8]._group > 2
    for found, content in zip(cache.episodes, contents, strict=True):
        check_episode(found, content)


def test_many_episodes_need_a_longer_header(tmp_path):
    values = np.zeros((50_000, 1), np.float64)  # the file is begun with a small header
    with rc.CacheWriter(tmp_path / "c") as writer:
        writer.add({"s": rc.Stream(values, np.arange(50_000) * 1000)}, name="x" * 1000)
        for k in range(300):
            writer.add({"s": rc.Stream(values[:1], np.asarray([k]))}, name=f"{k}" * 100)
    cache = rc.Cache(tmp_path / "c")
    assert len(shards(tmp_path / "c")) == 1
    assert len(cache.episodes) == 301
    assert cache.episodes[300].streams["s"].times.tolist() == [299]
    assert safetensors.load_file(shards(tmp_path / "c")[0])["values"].shape == (50_300, 1)
    assert rc.verify_cache(tmp_path / "c").problems == []


def test_shards_are_safetensors(tmp_path):
    content = episode(3)
    write(tmp_path / "c", content, episode(4))
    by_name = {p.name.split("-")[1]: p for p in shards(tmp_path / "c")}
    loaded = safetensors.load_file(by_name["cloud"])
    np.testing.assert_array_equal(loaded["inner"][:21], [0, *np.cumsum(content["cloud"][2])])
    np.testing.assert_array_equal(loaded["values"][: len(content["cloud"][0])], content["cloud"][0])
    np.testing.assert_array_equal(loaded["offsets"], [0, 20, 40])
    np.testing.assert_array_equal(safetensors.load_file(by_name["grip"])["values"][:13], content["grip"][0])
    with safetensors_file(by_name["joints"]) as file:
        described = json.loads(file.metadata()["robocache"])
    assert [e["name"] for e in described["episodes"]] == ["e0", "e1"]
    assert described["streams"][0]["name"] == "joints"


def test_methods_channels_latency(tmp_path):
    pose = np.zeros((5, 7))
    pose[:, 6] = 1
    times = np.arange(5) * 10_000_000
    names = ["x", "y", "z", "q.x", "q.y", "q.z", "q.w"]
    method = [("linear", 0, 3), ("slerp", 3, 7)]
    with rc.CacheWriter(tmp_path / "c") as writer:
        writer.add(
            {"pose": rc.Stream(pose, times, method={"q.*": "slerp", "*": "linear"}, channels=names, latency=0.008)}
        )
        writer.add({"pose": rc.Stream(pose, times, method=method, channels=names, latency=0.004)})
        writer.add({"hand": rc.Stream(np.zeros(3), np.arange(3) * 10**7, method="nearest")})
    cache = rc.Cache(tmp_path / "c")
    assert cache.streams["pose"].method == method
    assert cache.streams["hand"].method == "nearest"
    stream = cache.episodes[0].streams["pose"]
    assert (list(stream.method), stream.channels, stream.latency) == (method, tuple(names), 8_000_000)
    assert cache.episodes[0].start == -8_000_000
    both = cache.align([0, 1], targets=[0], streams=["pose"])  # both latencies are taken off
    assert both["pose"].age.tolist() == [[0], [0]]
    assert "slerp 3..7" in repr(cache.streams)
    assert rc.verify_cache(tmp_path / "c").problems == []


def named(values, channels, **more):
    times = np.arange(len(values)) * 10_000_000
    return {"joints": rc.Stream(np.asarray(values, np.float32), times, channels=channels, **more)}


def test_new_channels_widen_a_stream(tmp_path):
    nan = np.nan
    with rc.CacheWriter(tmp_path / "c") as writer:
        writer.add(named([[1, 2], [3, 4]], ["a", "b"]))
        writer.commit()
        writer.add(named([[5, 6]], ["a", "b"]))
        writer.add(named([[7, 8, 9]], ["c", "b", "a"], method=[("hold", 0, 1), ("linear", 1, 3)]))
        writer.add(named([[1]], ["b"]))
    cache = rc.Cache(tmp_path / "c")
    assert cache.streams["joints"].channels == ("a", "b", "c")
    assert cache.streams["joints"].method == [("linear", 0, 2), ("hold", 2, 3)]
    values = [e.streams["joints"].values for e in cache.episodes]
    np.testing.assert_array_equal(values[0], [[1, 2, nan], [3, 4, nan]])  # its shard has two channels
    np.testing.assert_array_equal(values[1], [[5, 6, nan]])
    np.testing.assert_array_equal(values[2], [[9, 8, 7]])
    np.testing.assert_array_equal(values[3], [[nan, 1, nan]])
    assert {e.streams["joints"].channels for e in cache.episodes} == {("a", "b", "c")}
    aligned = cache.align(targets=[0])["joints"].values
    np.testing.assert_array_equal(aligned[:, 0], [[1, 2, nan], [5, 6, nan], [9, 8, 7], [nan, 1, nan]])
    assert rc.verify_cache(tmp_path / "c").problems == []


def test_new_fields_widen_clouds(tmp_path):
    """Rows of an earlier group stay as they are, and say so; a copy has them by name."""
    times = np.array([0, 10])

    def cloud(*fields):
        rows = np.arange(3 * len(fields), dtype=np.float32).reshape(3, -1)
        lengths = np.array([1, 2])
        info = StreamInfo("/cloud", "t", rows.dtype, rows.shape[1:], fields, None, True, {})
        recording = FakeRecording("none", [{}])
        recording.batches = lambda streams: [Batch(0, "/cloud", rows, times, times, lengths, info)]
        return recording, rows

    path, copy = tmp_path / "c", tmp_path / "copy"
    with rc.CacheWriter(path, group_bytes=1) as writer:
        (old, narrow), (new, wide) = cloud("x", "y"), cloud("y", "x", "intensity")
        writer.add(old)
        writer.add(new)
    with rc.CacheWriter(copy) as writer:
        writer.add(rc.Cache(path))
    for place, first in ((path, narrow), (copy, np.insert(narrow, 2, np.nan, axis=1))):
        streams = [e.streams["/cloud"] for e in rc.Cache(place).episodes]
        for stream, expected in zip(streams, (first, wide[:, [1, 0, 2]]), strict=True):
            np.testing.assert_array_equal(np.concatenate(stream.samples[:]), expected)
            assert stream.info.channels == ("x", "y", "intensity")[: expected.shape[1]]
            assert stream.info.shape == expected.shape[1:]


def test_a_cache_goes_into_another(tmp_path):
    contents = [episode(k) for k in range(3)]
    first = write(tmp_path / "a", *contents)
    with rc.CacheWriter(tmp_path / "b") as writer:
        assert writer.add(first) == 3
    second = rc.Cache(tmp_path / "b")
    for found, content in zip(second.episodes, contents, strict=True):
        check_episode(found, content)
    assert [e.task for e in second.episodes] == ["task 0", "task 1", "task 2"]


# ---- Metadata


def camera(height, width, frame="left", **more):
    """An episode of two raw images; their bytes are 0, 1, 2, ..."""
    times = np.array([0, 10]) * 1_000_000
    rows = np.arange(2 * height * width, dtype=np.uint8)
    about = {"encoding": "mono8", "height": str(height), "width": str(width), "step": str(width), "frame_id": frame}
    recording = FakeRecording(f"{height}x{width}", [{"/camera": (rows, times, np.full(2, height * width))}])
    recording.info = about | more
    return recording


def check_camera(found, height, width, **about):
    images = found.streams["/camera"].samples
    gray = np.arange(2 * height * width).reshape(2, height, width)
    np.testing.assert_array_equal(images[:], np.stack([gray] * 3, axis=-1))
    metadata = found.streams["/camera"].info.metadata
    assert (metadata["height"], metadata["width"]) == (str(height), str(width))
    assert {key: metadata.get(key) for key in about} == about


@pytest.mark.parametrize("group_bytes", [1, 10**6], ids=["groups", "one group"])
def test_metadata_are_each_episodes_own(tmp_path, group_bytes):
    path = tmp_path / "c"
    with rc.CacheWriter(path, group_bytes=group_bytes) as writer:
        writer.add(camera(2, 3))
        writer.add(camera(4, 5, frame="right", lens="wide"))
    with rc.CacheWriter(path) as writer:  # another day
        writer.add(camera(2, 3))
        writer.add(camera(6, 1, frame="varies"))

    def check(path):
        cache = rc.Cache(path)
        check_camera(cache.episodes[0], 2, 3, frame_id="left", lens=None)
        check_camera(cache.episodes[1], 4, 5, frame_id="right", lens="wide")
        check_camera(cache.episodes[2], 2, 3, frame_id="left", lens=None)
        check_camera(cache.episodes[3], 6, 1, frame_id="varies")
        differing = ("height", "width", "step", "frame_id", "lens")  # one episode says what its lens is
        assert cache.streams["/camera"].metadata == {"encoding": "mono8"} | dict.fromkeys(differing, "varies")
        aligned = cache.align(targets=[0])
        assert [images[0].shape for images in aligned.samples["/camera"]] == [
            (2, 3, 3),
            (4, 5, 3),
            (2, 3, 3),
            (6, 1, 3),
        ]

    check(path)
    with rc.CacheWriter(tmp_path / "copy") as writer:
        writer.add(rc.Cache(path))
    check(tmp_path / "copy")
    with rc.CacheWriter(tmp_path / "opened") as writer:
        writer.add(rc.open(path))
    check(tmp_path / "opened")
    (path / "manifest.json").unlink()
    assert rc.verify_cache(path, repair=True).repaired
    check(path)
    assert rc.verify_cache(path).problems == []


def test_within_an_episode_metadata_may_vary(tmp_path):
    turning = camera(2, 3)
    turning.step = 1
    pieces = list(turning.batches())
    for piece, frame in zip(pieces, "ab", strict=True):
        piece.info.metadata.update(frame_id=frame, late="x")
    turning.batches = lambda streams: pieces
    with rc.CacheWriter(tmp_path / "c") as writer:
        writer.add(camera(2, 3))
        writer.add(turning)
    cache = rc.Cache(tmp_path / "c")
    check_camera(cache.episodes[0], 2, 3, frame_id="left", late=None)
    check_camera(cache.episodes[1], 2, 3, frame_id="varies", late="x")


def test_episodes_that_agree_cost_the_manifest_nothing(tmp_path):
    path = tmp_path / "c"
    with rc.CacheWriter(path, group_bytes=1) as writer:
        for _ in range(5):
            writer.add(camera(2, 3))
    manifest = json.loads((path / "manifest.json").read_text())
    assert "variants" not in manifest["streams"][0]
    assert not any("metadata" in entry for entry in manifest["episodes"])
    with rc.CacheWriter(path) as writer:
        for _ in range(3):
            writer.add(camera(4, 5))
    manifest = json.loads((path / "manifest.json").read_text())
    assert [variant["height"] for variant in manifest["streams"][0]["variants"]] == ["2", "4"]
    assert [entry.get("metadata") for entry in manifest["episodes"]] == [None] * 5 + [{"/camera": 1}] * 3
    with safetensors_file(shards(path)[-1]) as file:  # of its own group alone
        described = json.loads(file.metadata()["robocache"])["streams"][0]
    assert (described["metadata"]["height"], "variants" in described) == ("4", False)


def test_what_no_episode_says_any_more_is_forgotten(tmp_path):
    path = tmp_path / "c"
    with rc.CacheWriter(path) as writer:
        for height in (2, 4):
            stream = rc.Stream(np.zeros((1, 1)), np.array([0]))
            writer.add({"s": stream, "/camera": whole_camera(tmp_path, height)}, name=f"{height}")
    assert rc.Cache(path).streams["/camera"].metadata["height"] == "varies"
    with rc.CacheWriter(path) as writer:
        writer.add({"s": rc.Stream(np.zeros((1, 1)), np.array([0]))}, name="2", replace=True)
    cache = rc.Cache(path)
    assert cache.streams["/camera"].metadata["height"] == "4"
    check_camera(cache.episodes["4"], 4, 3)


def whole_camera(tmp_path, height):
    with rc.CacheWriter(tmp_path / f"{height}") as writer:
        writer.add(camera(height, 3))
    return rc.Cache(tmp_path / f"{height}").episodes[0].streams["/camera"]


def test_a_cache_from_before_metadata_were_each_episodes_own(tmp_path):
    path = tmp_path / "c"
    with rc.CacheWriter(path) as writer:
        writer.add(camera(2, 3))
        writer.add(camera(4, 3))
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["streams"][0]["variants"]
    for entry in manifest["episodes"]:
        entry.pop("metadata", None)
    (path / "manifest.json").write_text(version_1(manifest))
    with rc.CacheWriter(path) as writer:
        writer.add(camera(5, 3))
    cache = rc.Cache(path)
    old = cache.episodes[1].streams["/camera"]
    assert (old.info.metadata["height"], old.info.metadata["width"]) == ("varies", "3")
    np.testing.assert_array_equal(old.samples.as_stored(1), np.arange(12, 24))
    check_camera(cache.episodes[2], 5, 3)


# ---- Sources


def test_unchanged_sources_are_not_read_again(tmp_path):
    source = tmp_path / "run.log"
    source.write_bytes(b"one")
    recording = FakeRecording(source, [episode(0), episode(1)])
    with rc.CacheWriter(tmp_path / "c") as writer:
        assert not writer.knows(recording)
        assert writer.add(recording) == 2
        assert writer.knows(recording)
        assert writer.add(recording) == 0
    with rc.CacheWriter(tmp_path / "c") as writer:
        assert writer.knows(source)
        assert not writer.knows(source, "another recipe")
        os.utime(source, ns=(1, 1))  # touched: its hash says that it is the same
        assert writer.add(recording) == 0
    assert recording.reads == 1
    cache = rc.Cache(tmp_path / "c")
    assert cache.sources[0].mtime == 1
    assert cache.episodes[1].source == cache.sources[0]
    assert (cache.episodes[1].number, cache.sources[0].complete) == (1, True)


@pytest.mark.parametrize("change", ["content", "options"])
def test_changed_sources_take_the_place_of_the_old(tmp_path, change):
    source = tmp_path / "run.log"
    source.write_bytes(b"one")
    with rc.CacheWriter(tmp_path / "c") as writer:
        writer.add(streams_of(episode(9)), name="own")
        writer.add(FakeRecording(source, [episode(0), episode(1)]))
        writer.commit()
        writer.add(FakeRecording(tmp_path / "other", [episode(5)]))
    before = shards(tmp_path / "c")
    if change == "content":
        source.write_bytes(b"two")
    with rc.CacheWriter(tmp_path / "c") as writer:
        assert writer.add(FakeRecording(source, [episode(2)]), options="r" if change == "options" else "") == 1
        assert len(rc.Cache(tmp_path / "c").episodes) == 4  # the old ones stay until the new are committed
    cache = rc.Cache(tmp_path / "c")
    assert [e.name for e in cache.episodes] == ["own", "part-0", "part-0"]
    check_episode(cache.episodes[0], episode(9))
    check_episode(cache.episodes[1], episode(5))
    check_episode(cache.episodes[2], episode(2))
    assert set(before) < set(shards(tmp_path / "c"))  # the group has episodes that stay
    assert rc.verify_cache(tmp_path / "c").problems == []
    source.write_bytes(b"three")
    with rc.CacheWriter(tmp_path / "c") as writer:
        writer.add(FakeRecording(source, []))
    assert len(rc.Cache(tmp_path / "c").episodes) == 2
    assert set(shards(tmp_path / "c")) == set(before)  # the group that nothing uses is gone


def test_an_interrupted_source_goes_on(tmp_path):
    source = tmp_path / "run.log"
    source.write_bytes(b"one")
    contents = [episode(k) for k in range(5)]
    broken = FakeRecording(source, contents)
    broken.fail_at = 50
    with pytest.raises(RuntimeError, match="the source broke"), rc.CacheWriter(tmp_path / "c") as writer:
        writer.add(broken)
    had = len(rc.Cache(tmp_path / "c").episodes)
    assert 0 < had < 5
    assert not rc.Cache(tmp_path / "c").sources[0].complete
    with rc.CacheWriter(tmp_path / "c") as writer:
        assert not writer.knows(source)
        assert writer.add(FakeRecording(source, contents)) == 5 - had
    cache = rc.Cache(tmp_path / "c")
    for found, content in zip(cache.episodes, contents, strict=True):
        check_episode(found, content)
    assert cache.sources[0].complete


def test_names(tmp_path):
    with rc.CacheWriter(tmp_path / "c") as writer:
        writer.add(streams_of(episode(0)), name="a")
        with pytest.raises(ValueError, match='there is an episode "a" already'):
            writer.add(streams_of(episode(1)), name="a")
        writer.add(streams_of(episode(1)), name="a", replace=True)
        writer.add(streams_of(episode(2)))
    with rc.CacheWriter(tmp_path / "c") as writer:
        writer.add(streams_of(episode(3)), name="a", replace=True)
        writer.add(streams_of(episode(4)))
    cache = rc.Cache(tmp_path / "c")
    assert sorted(e.name for e in cache.episodes) == ["a", "episode-2", "episode-3"]
    check_episode(cache.episodes["a"], episode(3))
    check_episode(cache.episodes["episode-2"], episode(2))
    assert rc.verify_cache(tmp_path / "c").problems == []


@pytest.mark.parametrize(
    ("name", "changes", "kind", "sentence"),
    [
        (3, {}, TypeError, "the name of a stream is 3; expected a str"),
        ("a\ud800", {}, ValueError, r"the name of a stream is 'a\\ud800', which UTF-8 cannot encode"),
        ("a", {"name": 3}, TypeError, "add: name is 3; expected a str"),
        ("a", {"task": "\udcff"}, ValueError, r"add: task is '\\udcff', which UTF-8 cannot encode"),
        ("a", {"channels": ["x", "\udcff"]}, ValueError, r'"a": the name of a channel is .* UTF-8 cannot encode'),
    ],
)
def test_names_that_are_no_text(tmp_path, name, changes, kind, sentence):
    channels = changes.pop("channels", None)
    stream = rc.Stream(np.ones((3, 2)), np.arange(3), channels=channels)
    with rc.CacheWriter(tmp_path / "c") as writer:
        with pytest.raises(kind, match=sentence):
            writer.add({"good": rc.Stream(np.ones(3), np.arange(3)), name: stream}, **changes)
        writer.add({"good": rc.Stream(np.ones(3), np.arange(3))})
    cache = rc.Cache(tmp_path / "c")
    assert list(cache.streams) == ["good"]
    assert len(cache.episodes) == 1


def test_a_failed_episode_leaves_no_trace(tmp_path):
    good = streams_of(episode(0))
    bad = {**streams_of(episode(1)), "new": rc.Stream(np.zeros(3), np.zeros(3, np.int64)), "cloud": rc.Stream([], [])}
    with rc.CacheWriter(tmp_path / "c") as writer:
        writer.add(good, name="a")
        with pytest.raises(ValueError, match="empty list"):
            writer.add(bad, name="b")
        writer.add(streams_of(episode(2)), name="c")
    cache = rc.Cache(tmp_path / "c")
    assert set(cache.streams) == {"joints", "grip", "cloud"}
    check_episode(cache.episodes[0], episode(0))
    check_episode(cache.episodes[1], episode(2))
    assert rc.verify_cache(tmp_path / "c").problems == []


# ---- Align


@pytest.mark.parametrize("group_bytes", [1, 1 << 30])
def test_align_is_align_of_each_episode(tmp_path, group_bytes):
    contents = [episode(k, 30 + 8 * k) for k in range(4)]
    del contents[2]["grip"]
    cache = write(tmp_path / "c", *contents, group_bytes=group_bytes)
    aligned = cache.align([3, 0, 2], rate=70)
    assert list(aligned) == ["joints", "grip", "cloud"]
    assert aligned.episodes == [3, 0, 2]
    for row, k in enumerate(aligned.episodes):
        found = cache.episodes[k]
        line = rc.Timeline(found.start, rate=70, count=aligned["joints"].values.shape[1])
        length = aligned.lengths[row]
        assert aligned.times[row, length - 1] <= found.end
        assert length == len(line) or aligned.times[row, length] > found.end
        np.testing.assert_array_equal(aligned.times[row], line.times)
        alone = rc.align(dict(found.streams), line)
        for name in found.streams:
            for mine, other in zip(aligned[name], alone[name], strict=True):
                np.testing.assert_array_equal(mine[row], other)
    assert not aligned["grip"].valid[2].any()
    everything = cache.align(rate=70, streams=["joints", "cloud"], method="linear", edge="nan")
    np.testing.assert_array_equal(everything["cloud"].index[0], aligned["cloud"].index[1])
    seen = aligned.samples["cloud"][0][aligned["cloud"].values[0, 5]]
    np.testing.assert_array_equal(seen, cache.episodes[3].streams["cloud"].samples[aligned["cloud"].index[0, 5]])


def test_align_with_targets_and_options(tmp_path):
    cache = write(tmp_path / "c", episode(0), episode(1))
    aligned = cache.align(targets=[0.0, 0.105], streams=["joints"], method="hold")
    np.testing.assert_array_equal(aligned["joints"].values[1], episode(1)["joints"][0][[0, 10]])
    assert aligned.lengths.tolist() == [2, 2]
    assert aligned.times[1].tolist() == [10**12, 10**12 + 105_000_000]
    rows = cache.align(targets=np.asarray([[0], [10_000_000]]), method={"joints": "nearest"}, max_gap={"joints": 0.5})
    assert rows["joints"].index.tolist() == [[0], [1]]
    late = cache.align(targets=[10.0], edge="zero", causal=True, max_gap=1.0, streams=["joints"])
    assert late["joints"].valid.tolist() == [[False], [False]]
    torch = pytest.importorskip("torch")
    there = cache.align(1, rate=50, device="cpu")
    assert isinstance(there["joints"].values, torch.Tensor)
    assert isinstance(there.lengths, torch.Tensor)
    here = cache.align([1], rate=50)
    np.testing.assert_array_equal(there["joints"].values.numpy(), here["joints"].values)


def test_align_sentences(tmp_path):
    cache = write(tmp_path / "c", episode(0))
    for arguments, words in [
        ({}, "give a rate or targets"),
        ({"rate": 5, "targets": [0]}, "give a rate or targets"),
        ({"rate": -1}, "rate is -1"),
        ({"rate": 5, "streams": ["joint"]}, 'no stream "joint"; near names: joints'),
        ({"rate": 5, "method": {"joints": "hold", "x": "hold"}}, 'names a stream "x"'),
        ({"targets": [[0], [1]]}, r"targets are \[2, 1\]; expected \[T\] or \[1, T\]"),
        ({"rate": 5, "as_of": [1.0, 2.0]}, r"as_of is \[2\]; expected one time or \[1\]"),
        ({"rate": 5, "as_of": {"x": 1.0}}, 'as_of names a stream "x"'),
        ({"rate": 5, "as_of": np.nan}, r"as_of: times must be numbers below 2\^62 ns"),
        ({"rate": 5, "as_of": 1.0, "causal": True}, "as_of and causal are both on"),
    ]:
        with pytest.raises((ValueError, KeyError), match=words):
            cache.align(**arguments)
    with pytest.raises(TypeError, match=r"Cache\.align: as_of is 'now'; expected seconds as a float"):
        cache.align(rate=5, as_of="now")
    for line in ({"rate": 5}, {"targets": [0.0]}, {"targets": rc.Timeline(0.0, rate=5, count=2)}):
        with pytest.raises(ValueError, match=r"Cache\.align: as_of=.anchor. needs targets that are a Timeline\.around"):
            cache.align(**line, as_of={"joints": "anchor"})
    with pytest.raises(ValueError, match=r"the start of targets is \[2\]; expected one time or \[1\]"):
        cache.align(targets=rc.Timeline(np.array([0, 1]), rate=5, count=2))
    with pytest.raises(IndexError, match=r"Cache\.align: there is no episode 1; there are 1, from 0 on"):
        cache.align([1], rate=5)
    with pytest.raises(ValueError, match=r'"e0" spans .* at 1e\+10 Hz is .* steps. Give a lower rate') as told:
        cache.align(rate=1e10)
    assert "stamp" not in str(told.value)
    with pytest.raises(KeyError, match='no episode "x"'):
        cache.align(["x"], rate=5)
    with pytest.raises(KeyError, match='no stream "a"'):
        cache.episodes[0].streams["a"]


# ---- Sentences


def test_what_cannot_be_added(tmp_path):
    times = np.arange(4) * 1000
    with rc.CacheWriter(tmp_path / "c") as writer:
        writer.add(
            {"s": rc.Stream(np.zeros((4, 2)), times), "i": rc.Stream(np.zeros((4, 2), int), times, channels="ab")}
        )
        for streams, kind, words in [
            ({"s": np.zeros(3)}, TypeError, "expected a robocache.Stream, not ndarray"),
            ({"s": rc.Stream(np.zeros((4, 3)), times)}, ValueError, r"\[3\], but the cache has them as float64 \[2\]"),
            ({"s": rc.Stream(np.zeros((4, 2), np.float32), times)}, ValueError, "samples are float32"),
            ({"i": rc.Stream(np.zeros((4, 2), int), times, channels="bc")}, ValueError, "integers have no NaN"),
            ({"n": UncheckedStream(np.zeros(3), times)}, ValueError, "3 values, but 4 times"),
            ({"n": UncheckedStream(np.zeros(4), times, arrivals=times[:2])}, ValueError, "4 times, but 2 arrivals"),
            ({"n": UncheckedStream(np.zeros(4), times.astype(np.int32))}, TypeError, "times are int32"),
            ({"n": rc.Stream(np.zeros(4), times * 2**60)}, ValueError, "below 2\\^62"),
            ({"n": UncheckedStream(np.zeros(()), times)}, ValueError, "no dimension"),
            ({"n": UncheckedStream(np.zeros(4, complex), times)}, TypeError, "complex"),
            ({"n": UncheckedStream(np.zeros((4, 2)), times, method=[("hold", 0, 3)])}, ValueError, "channels 0 to 3"),
            ({"n": UncheckedStream(np.zeros((4, 2)), times, channels=["a"])}, ValueError, "1 names for 2 channels"),
            ({"n": UncheckedStream(np.zeros((2, 4)), times.reshape(2, 2))}, ValueError, "2 dimensions"),
            ({"n": rc.Stream(np.zeros(4), times, offsets=np.asarray([0, 4]))}, ValueError, "it has offsets"),
            (
                {"n": rc.Stream([np.zeros(2), np.zeros((2, 2))], times[:2])},
                ValueError,
                r"values\[1\] is float64 \[2, 2\]",
            ),
            ({"": rc.Stream(np.zeros(4), times)}, ValueError, "no name"),
        ]:
            with pytest.raises(kind, match=words):
                writer.add(streams, name="bad")
        with pytest.raises(TypeError, match=r"expected a dict of rc.Stream or a recording, not int"):
            writer.add(3)
    assert len(rc.Cache(tmp_path / "c").episodes) == 1


def test_one_writer_at_a_time(tmp_path):
    writer = rc.CacheWriter(tmp_path / "c")
    with pytest.raises(rc.FileError, match="another writer in this process has this cache"):
        rc.CacheWriter(tmp_path / "c")
    with pytest.raises(rc.FileError, match="another writer"):
        rc.verify_cache(tmp_path / "c", repair=True)
    rc.verify_cache(tmp_path / "c")
    writer.close()
    writer.close()
    with pytest.raises(ValueError, match="it is closed"):
        writer.add({})
    rc.CacheWriter(tmp_path / "c").close()


def test_a_reader_and_a_writer_at_a_time(tmp_path):
    source = tmp_path / "run.log"
    source.write_bytes(b"one")
    with rc.CacheWriter(tmp_path / "c") as writer:
        writer.add(FakeRecording(source, [episode(0)]))
        writer.commit()
        reader = rc.Cache(tmp_path / "c")
        held = reader.episodes[0].streams["joints"]
        source.write_bytes(b"two")
        writer.add(FakeRecording(source, [episode(1)]))
        writer.commit()  # removes the shards of the first
        np.testing.assert_array_equal(held.values, episode(0)["joints"][0])
        with pytest.raises(rc.FileError, match="is gone; the cache was changed since it was opened, open it again"):
            reader.episodes[0].streams["grip"]
        check_episode(rc.Cache(tmp_path / "c").episodes[0], episode(1))


def test_places_that_are_no_cache(tmp_path):
    with pytest.raises(rc.FileError, match="there is no such cache"):
        rc.Cache(tmp_path / "none")
    with pytest.raises(rc.FileError, match="no such cache"):
        rc.verify_cache(tmp_path / "none")
    with pytest.raises(rc.FileError, match=r"this is no cache: it has no manifest.json"):
        rc.Cache(tmp_path)
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(rc.FileError, match=r'no cache, and not empty: it holds "mine.txt"'):
        rc.CacheWriter(tmp_path)
    with pytest.raises(rc.FileError, match=r"mine\.txt: is a file, and a cache is a folder; `robocache build`"):
        rc.Cache(tmp_path / "mine.txt")
    with pytest.raises(rc.FileError, match=re.escape(str(tmp_path / "mine.txt"))):
        rc.CacheWriter(tmp_path / "mine.txt")
    with pytest.raises(rc.FileError, match="No such file"):
        rc.CacheWriter(tmp_path / "a" / "b")
    assert sorted(os.listdir(tmp_path)) == ["mine.txt"]


def test_a_newer_version(tmp_path):
    write(tmp_path / "c", episode(0))
    path = tmp_path / "c" / "manifest.json"
    path.write_text(path.read_text().replace('"version": 2', '"version": 3'))
    for action in (rc.Cache, rc.CacheWriter, rc.verify_cache):
        with pytest.raises(rc.FileError, match=r"manifest.json: was written by a newer RoboCache.*version 3.*update"):
            action(tmp_path / "c")
    with pytest.raises(rc.FileError, match="newer RoboCache"):
        rc.verify_cache(tmp_path / "c", repair=True)


# ---- Damage


def damage(path, at, data):
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def test_damaged_shards_are_found_and_dropped(tmp_path):
    source = tmp_path / "run.log"
    source.write_bytes(b"one")
    contents = [episode(k) for k in range(6)]
    whole = tmp_path / "whole"
    with rc.CacheWriter(whole, group_bytes=1) as writer:  # a group for each
        writer.add(FakeRecording(source, contents))
    files = shards(whole)
    target = next(f for f in files if f.name.startswith("000002-joints"))
    size = target.stat().st_size

    def truncate(file):
        os.truncate(file, size - 8)

    cases = [
        (truncate, f"has {size - 8} bytes, but the manifest says {size}"),
        (lambda file: file.unlink(), "is missing"),
        (lambda file: damage(file, size - 500, b"\xff"), "the checksum of .* is wrong"),
        (lambda file: damage(file, 0, struct.pack("<Q", 2**60)), "its header should have"),
        (lambda file: damage(file, 8, b"[" * 100), "nested|damaged|object"),
        (lambda file: file.write_bytes(b""), "has 0 bytes"),
    ]
    for number, (harm, words) in enumerate(cases):
        path = tmp_path / f"c{number}"
        shutil.copytree(whole, path)
        harm(path / "shards" / target.name)
        report = rc.verify_cache(path)
        assert not report.ok
        assert [p.file for p in report.problems] == [f"shards/{target.name}"]
        assert re.search(words, report.problems[0].sentence)
        assert "loses the 1 episode" in report.problems[0].repair
        if "checksum" not in words and number != 4 and number != 3:  # those, only reading tells
            with pytest.raises(rc.FileError, match=target.name):
                rc.Cache(path)
        else:
            opened = rc.Cache(path)
            check_episode(opened.episodes[1], contents[1])
        assert rc.verify_cache(path, repair=True).repaired
        assert rc.verify_cache(path).problems == []
        cache = rc.Cache(path)
        assert [e.number for e in cache.episodes] == [0, 1, 3, 4, 5]
        for found in cache.episodes:
            check_episode(found, contents[found.number])
        with rc.CacheWriter(path) as writer:  # the next build reads what was lost
            assert writer.add(FakeRecording(source, contents)) == 1
        cache = rc.Cache(path)
        assert sorted(e.number for e in cache.episodes) == list(range(6))
        check_episode(cache.episodes[5], contents[2])


@pytest.mark.parametrize("harm", ["missing", "empty", "torn", "nonsense"])
def test_a_lost_manifest_is_made_anew(tmp_path, harm):
    source = tmp_path / "run.log"
    source.write_bytes(b"one")
    path = tmp_path / "c"
    own = [episode(k) for k in range(3)]
    logged = [episode(k) for k in range(10, 14)]
    with rc.CacheWriter(path, group_bytes=5000) as writer:
        for k, content in enumerate(own):
            writer.add(streams_of(content), name=f"own {k}", task="t")
        writer.add(FakeRecording(source, [episode(99)]))
        writer.commit()
        source.write_bytes(b"changed")
        writer.add(FakeRecording(source, logged), options="recipe")
        writer.commit()
        writer.add(streams_of(episode(50)), name="own 1", replace=True)
    before = rc.Cache(path)
    manifest = path / "manifest.json"
    text = manifest.read_bytes()
    if harm == "missing":
        manifest.unlink()
    else:
        manifest.write_bytes({"empty": b"", "torn": text[: len(text) // 2], "nonsense": b'{"format": 3}'}[harm])
    for action in (rc.Cache, rc.CacheWriter):
        with pytest.raises(rc.FileError, match=r"manifest.json: .*robocache verify --repair"):
            action(path)
    assert [p.file for p in rc.verify_cache(path).problems if p.file == "manifest.json"]
    report = rc.verify_cache(path, repair=True)
    assert report.repaired
    assert rc.verify_cache(path).problems == []
    after = rc.Cache(path)
    assert sorted((e.name, e.task, e.start, e.end) for e in after.episodes) == sorted(
        (e.name, e.task, e.start, e.end) for e in before.episodes
    )
    assert dict(after.streams) == dict(before.streams)
    check_episode(after.episodes["own 1"], episode(50))
    with rc.CacheWriter(path) as writer:
        again = FakeRecording(source, logged)
        assert writer.add(again, options="recipe") == 0
        assert writer.knows(source, "recipe")


def test_leftovers(tmp_path):
    path = tmp_path / "c"
    write(path, episode(0))
    leave = ["shards/000001-joints.safetensors", "shards/000001-joints.3.tmp", "manifest.json.tmp"]
    for name in leave:
        (path / name).write_bytes(b"x")
    (path / "shards" / "README").write_text("not ours")
    report = rc.verify_cache(path)
    assert sorted(p.file for p in report.problems) == sorted(leave)
    rc.verify_cache(path, repair=True)
    assert not any((path / name).exists() for name in leave)
    for name in leave:
        (path / name).write_bytes(b"x")
    rc.CacheWriter(path).close()
    assert not any((path / name).exists() for name in leave)
    assert (path / "shards" / "README").exists()
    check_episode(rc.Cache(path).episodes[0], episode(0))


def test_hostile_manifests(tmp_path):
    path = tmp_path / "c"
    write(path, episode(0))
    manifest = path / "manifest.json"
    good = json.loads(manifest.read_text())

    def changed(change):
        copy = json.loads(json.dumps(good))
        change(copy)
        return version_1(copy)

    def put(*keys):
        *way, last, value = keys

        def change(document):
            for key in way:
                document = document[key]
            document[last] = value

        return changed(change)

    for text, words in [
        ("[" * 100_000, "nested over 16 deep"),
        ("[" + "0," * 10 + "0]", "expected an object"),
        (put("format", "other"), "no manifest of a cache"),
        (put("shards", 0, "file", "../../etc/passwd"), "no name of a shard"),
        (put("shards", 0, "file", "/etc/0-x.safetensors"), "no name of a shard"),
        (put("shards", 0, "stream", "nobody"), "not among the streams"),
        (put("shards", 0, "bytes", 5), "too small for the tensors"),
        (put("shards", 0, "rows", -1), "expected a whole number"),
        (put("shards", 0, "samples", 2**64), "expected a whole number"),
        (put("streams", 0, "shape", [2**40] * 3), "too large"),
        (put("streams", 0, "shape", [1] * 9), "over 7 dimensions"),
        (put("streams", 0, "dtype", "float8"), "no dtype"),
        (put("streams", 0, "method", [["linear", 0, 99]]), "expected a whole number from 0 to 3"),
        (put("streams", 1, "name", "joints"), "a second time"),
        (put("streams", 0, "variants", []), "variants has 0 entries for 1 episodes"),
        (put("streams", 0, "variants", [{}] * 2), "variants has 2 entries for 1 episodes"),
        (put("streams", 0, "variants", {"k": {}}), "expected a list"),
        (put("streams", 0, "variants", [{"k": 3}]), "expected a string"),
        (put("episodes", 0, "metadata", {"joints": 1}), "expected a whole number from 0 to 0"),
        (put("episodes", 0, "metadata", {"joints": "x"}), "expected a whole number"),
        (put("episodes", 0, "metadata", {"nobody": 0}), "not among the streams"),
        (put("episodes", 0, "row", 7), "not in the shard"),
        (put("episodes", 0, "group", 7), "but no shard"),
        (put("episodes", 0, "samples", "joints", 10**6), "more samples"),
        (put("episodes", 0, "source", 0), "expected a whole number"),
        (put("episodes", good["episodes"] * 2), "another one has too"),
        (put("episodes", 0, "end", -1), "ends before it starts"),
        (put("next_group", 0), "is not over"),
        ('{"format": "robocache", "version": 1}', 'lacks "streams"'),
        ('{"format": "\xff", "version": 1}', "ill-formed UTF-8"),
        ("", "damaged"),
    ]:
        manifest.write_text(text, encoding="latin-1")
        with pytest.raises(rc.FileError, match=words) as caught:
            rc.Cache(path)
        assert str(caught.value).startswith(f"{manifest}: ")
        assert len(str(caught.value)) < 600


def test_a_cache_that_lies_is_refused_not_followed(tmp_path):
    """The manifest and the header agree, but offsets in the data do not."""
    path = tmp_path / "c"
    write(path, episode(0), episode(1))
    for name, where in (("cloud", "inner"), ("joints", "offsets")):
        (file,) = (path / "shards").glob(f"000000-{name}-*.safetensors")
        content = file.read_bytes()
        size = struct.unpack("<Q", content[:8])[0]
        begin = json.loads(content[8 : 8 + size])[where]["data_offsets"][0] + 8 + size
        damage(file, begin + 8, struct.pack("<q", 2**40))
        with pytest.raises(rc.FileError, match=r"offsets of episode .* are damaged"):
            rc.Cache(path).episodes[0].streams[name]
        assert "checksum" in str(rc.verify_cache(path).problems)


def test_memory_is_bounded(tmp_path):
    """An episode of 400 MiB, values and stamps, goes through little memory."""
    script = f"""
import numpy as np, resource, robocache as rc
import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})
from robocache._recordings.recording import Batch, StreamInfo
from cache_cases import Part
info = StreamInfo("s", "t", np.dtype(np.float32), (4,), (), None, False, {{}})
class Long:
    path, files, episodes = "long", (), [Part("one", None)]
    def batches(self, streams=None):
        values = np.ones((65536, 4), np.float32)
        for k in range(160):
            times = np.arange(65536) * 1000 + k * 65_536_000
            if k == 80: times[::2] -= 500_000
            yield Batch(0, "s", values, times, times, None, info)
with rc.CacheWriter({str(tmp_path / "c")!r}) as w:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    w.add(Long())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 64 * 1024
    cache = rc.Cache(tmp_path / "c")
    assert cache.episodes[0].samples == {"s": 160 * 65536}
    assert (np.diff(cache.episodes[0].streams["s"].times) >= 0).all()


def test_shards_that_nobody_looks_at_make_room(tmp_path):
    """Mapped shards stay mapped after their views; not where another cannot be mapped for it."""
    script = f"""
import numpy as np, resource, robocache as rc
path = {str(tmp_path / "c")!r}
with rc.CacheWriter(path) as w:
    for name in ("one", "two"):
        w.add({{name: rc.Stream(np.zeros((1, 16 << 20)), np.array([0]))}}, name=name)
cache = rc.Cache(path)
assert cache.episodes[0].streams["one"].values.sum() == 0
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (64 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
assert cache.episodes[1].streams["two"].values[0, -1] == 0
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr


def test_metadata_variants_are_in_the_account_of_memory(tmp_path):
    path = tmp_path / "c"
    write(path, episode(0))
    manifest = path / "manifest.json"
    document = json.loads(manifest.read_text())
    stream, part = document["streams"][0], document["episodes"][0]
    document["streams"] += [{**stream, "name": str(k), "variants": [{}] * 1000} for k in range(1200)]
    document["episodes"] += [{**part, "row": k, "samples": {}} for k in range(1, 1000)]
    manifest.write_text(version_1(document).replace(" ", ""))
    with pytest.raises(rc.FileError, match="has too many values for its size"):
        rc.Cache(path)


# ---- Nothing is lost in silence


def test_a_changed_source_that_cannot_be_read_keeps_the_old_episodes(tmp_path):
    file = tmp_path / "run"
    file.write_text("old")
    old, new = [episode(k) for k in range(6)], [episode(10 + k) for k in range(6)]
    with rc.CacheWriter(tmp_path / "c", group_bytes=1) as writer:
        writer.add(FakeRecording(file, old))
    file.write_text("new, and longer")
    broken = FakeRecording(file, new)
    broken.fail_at = 40
    with pytest.raises(RuntimeError, match="broke"), rc.CacheWriter(tmp_path / "c", group_bytes=1) as writer:
        writer.add(broken)
    cache = rc.Cache(tmp_path / "c")
    assert len(cache.episodes) == 6
    for found, content in zip(cache.episodes, old, strict=True):
        check_episode(found, content)
    with rc.CacheWriter(tmp_path / "c", group_bytes=1) as writer:  # goes on where it broke
        assert 0 < writer.add(FakeRecording(file, new)) < 6
    cache = rc.Cache(tmp_path / "c")
    assert len(cache.episodes) == 6
    for found, content in zip(cache.episodes, new, strict=True):
        check_episode(found, content)
    assert rc.verify_cache(tmp_path / "c").ok


def test_recordings_without_a_file_do_not_replace_each_other(tmp_path):
    with rc.CacheWriter(tmp_path / "c") as writer:
        for k in range(2):
            writer.add(FakeRecording("bytes in memory", [episode(k)]))
    assert len(rc.Cache(tmp_path / "c").episodes) == 2


def test_a_copy_of_a_cache_is_aligned_alike(tmp_path):
    times = np.arange(40, dtype=np.int64) * 10_000_000
    values = np.arange(40.0)[:, None]
    with rc.CacheWriter(tmp_path / "a") as writer:
        writer.add({"early": rc.Stream(values, times), "late": rc.Stream(values, times, latency=0.1)}, name="e")
    with rc.CacheWriter(tmp_path / "b") as writer:
        writer.add(rc.Cache(tmp_path / "a"))
    targets = np.arange(5) * 10_000_000 + 150_000_000
    for name in ("early", "late"):
        ours, copied = (
            rc.align({name: rc.Cache(tmp_path / c).episodes[0].streams[name]}, targets)[name].values for c in "ab"
        )
        np.testing.assert_array_equal(ours, copied)


def test_other_streams_of_a_recording_are_read(tmp_path):
    file = tmp_path / "run"
    file.write_text("x")
    with rc.CacheWriter(tmp_path / "c") as writer:
        assert writer.add(FakeRecording(file, [episode(0)]), streams=["joints"]) == 1
        assert writer.add(FakeRecording(file, [episode(0)]), streams=["joints"]) == 0
        assert writer.add(FakeRecording(file, [episode(0)]), streams=["grip"]) == 1
    assert set(rc.Cache(tmp_path / "c").episodes[0].streams) == {"grip"}


def test_many_episodes_can_be_opened(tmp_path):
    write(tmp_path / "c", episode(0))
    path = tmp_path / "c" / "manifest.json"
    manifest = json.loads(path.read_text())
    one = manifest["episodes"][0]
    manifest["episodes"] = [one | {"name": f"e{k}", "row": k, "samples": {}} for k in range(120_000)]
    for shard in manifest["shards"]:  # never looked into
        shard |= {"episodes": 120_000, "bytes": 10_000_000}
        os.truncate(tmp_path / "c" / "shards" / shard["file"], 10_000_000)
    path.write_text(version_1(manifest))
    assert len(rc.Cache(tmp_path / "c").episodes) == 120_000


def test_a_stored_latency_of_less_than_a_microsecond(tmp_path):
    """As an int a person would mean seconds by it; out of a cache it is what it is."""
    times = np.arange(5) * 10_000_000
    with rc.CacheWriter(tmp_path / "cache") as writer:
        writer.add({"a": rc.Stream(np.arange(5.0), times, latency=500e-9)}, name="one")
    cache = rc.Cache(tmp_path / "cache")
    stream = cache.episodes[0].streams["a"]
    late = rc.align([stream], times)[0]
    assert late.age.tolist() == [500] * 5
    assert cache.align(rate=100)["a"].valid.all()
