"""Exports that lose nothing and say what they leave out: the truth is the input, NumPy, or another library."""

import gc
import io
import json
import os
import re
import weakref
from functools import partial

import numpy as np
import pytest
from recordings import batch, info, made

import robocache as rc
from robocache import mcap
from robocache._recordings.source import Batch

MS = 1_000_000
SECOND = 1_000_000_000


def ramp(count=101, start=0, channels=None, scale=1.0):
    times = start + np.arange(count) * 10 * MS
    return rc.Stream((scale * (times - start) / 1e9)[:, None], times, channels=channels)


def cache_of(folder, *episodes):
    with rc.CacheWriter(folder) as writer:
        for name, streams in episodes:
            writer.add(streams, name=name, task="push")
    return rc.Cache(folder)


def tensors(folder, number=0):
    safetensors = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    return safetensors.load_file(folder / f"episode-{number:06d}.safetensors")


# ---- Episodes that cannot be aligned


@pytest.mark.parametrize("form", ["lerobot", "safetensors", "mcap"])
@pytest.mark.parametrize("where", [0, 1, 2])
def test_an_episode_whose_streams_do_not_overlap_is_left_out(tmp_path, form, where):
    if form == "lerobot":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    good = {"a": ramp(), "b": ramp()}
    apart = {"a": ramp(), "b": ramp(start=5 * SECOND)}
    episodes = [("one", good), ("two", good)]
    episodes.insert(where, ("apart", apart))
    cache = cache_of(tmp_path / "cache", *episodes)
    found = rc.export(cache, tmp_path / "out", rate=20, format=form)
    assert (found["episodes"], found["frames"]) == (2, 42)
    (told,) = [note for note in found["notes"] if "apart" in note]
    assert told.startswith("episode apart is left out: ")
    assert "overlap" in told
    assert "Timeline" not in told
    with pytest.raises(ValueError, match="nothing to export: episode apart is left out"):
        rc.export([cache.episodes["apart"]], tmp_path / "none", rate=20, format=form)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "out"]  # nothing half written


@pytest.mark.parametrize("odd", [(0, 0), (0, 3), (1, 0), (1, 3), (2, 2)])
def test_an_image_of_another_size_leaves_its_episode_out(tmp_path, odd):
    """Also where it is the first image of all, which says what size the video has."""
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pytest.importorskip("av", reason="PyAV is not installed")
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    times = np.arange(5) * 100 * MS

    def png(*size):
        file = io.BytesIO()
        image.fromarray(np.full((*size, 3), 128, np.uint8)).save(file, "png")
        return np.frombuffer(file.getvalue(), np.uint8)

    with rc.CacheWriter(tmp_path / "cache") as writer:
        for number in range(3):
            images = [png(48, 64) if (number, k) == odd else png(32, 48) for k in range(5)]
            camera = batch(
                "/camera",
                np.concatenate(images),
                times,
                lengths=[len(one) for one in images],
                ragged=True,
                shape=(),
                metadata={"encoding": "png", "format": "png"},
            )
            joints = batch("/joints", number + np.arange(5.0)[:, None], times)
            writer.add(made(camera, joints), name=f"take-{number}")
    found = rc.export(tmp_path / "cache", tmp_path / "out", rate=10)
    assert (found["episodes"], found["frames"]) == (2, 10)
    (told,) = [note for note in found["notes"] if "left out" in note]
    assert told.startswith(f'episode take-{odd[0]} is left out: an image of stream "/camera" is ')
    episodes = rc.open(tmp_path / "out").episodes
    kept = [number for number in range(3) if number != odd[0]]
    assert [episode.streams["joints"].values[0].item() for episode in episodes] == kept
    assert {episode.streams["camera"].samples[k].shape for episode in episodes for k in range(5)} == {(32, 48, 3)}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "out"]


# ---- Names


def test_mcap_has_null_for_what_json_cannot_say(tmp_path):
    values = np.array([[0.0, 1.0], [np.inf, 2.0], [-np.inf, np.nan], [3.0, 4.0]])
    times = np.arange(4) * 100 * MS
    cache = cache_of(tmp_path / "cache", ("x", {"a": rc.Stream(values, times, channels=["p", "q"])}))
    rc.export(cache, tmp_path / "out", rate=10, format="mcap")

    def refuse(text):
        raise AssertionError(f"not JSON: {text}")

    with mcap.Reader(tmp_path / "out" / "episode-000000.mcap") as reader:
        rows = [json.loads(message.data, parse_constant=refuse) for message in reader.messages()]
    expected = [[None if not np.isfinite(v) else v for v in row] for row in values.tolist()]
    assert [[row["p"], row["q"]] for row in rows] == expected


def test_names_that_safetensors_has_itself(tmp_path):
    names = ["times", "a", "a.valid", "a.age", "b.offsets", "b", "__metadata__"]
    streams = {name: ramp(scale=k + 1.0) for k, name in enumerate(names)}
    cache = cache_of(tmp_path / "cache", ("x", streams))
    found = rc.export(cache, tmp_path / "out", rate=10, format="safetensors")
    inside = tensors(tmp_path / "out")
    truth = np.arange(11) / 10
    np.testing.assert_array_equal(inside["times"], np.arange(11) * 100 * MS)
    taken = {"times": "times_2", "a.valid": "a.valid_2", "a.age": "a.age_2", "b.offsets": "b.offsets_2"}
    taken["__metadata__"] = "__metadata___2"
    for k, name in enumerate(names):
        np.testing.assert_allclose(inside[taken.get(name, name)][:, 0], (k + 1) * truth, err_msg=name, atol=1e-12)
        assert inside[f"{taken.get(name, name)}.valid"].all()
    assert inside["a.valid"].dtype == bool
    for name, other in taken.items():
        assert f'stream "{name}" is written as "{other}": the name "{name}" is taken' in found["notes"]


def test_names_that_lerobot_has_itself(tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    names = ["valid./a/b", "/a/b", "/a.b", "index", "timestamp", "task_index", "valid.a.b", "..", "/"]
    keys = ["valid..a.b", "a.b", "a.b_2", "index_2", "timestamp_2", "task_index_2", "valid.a.b_3", "stream", "stream_2"]
    streams = {name: ramp(scale=k + 1.0) for k, name in enumerate(names)}
    cache = cache_of(tmp_path / "cache", ("x", streams))
    found = rc.export(cache, tmp_path / "out", rate=10)
    import pyarrow.parquet as pq

    table = pq.read_table(tmp_path / "out" / "data/chunk-000/file-000.parquet").to_pydict()
    for k, key in enumerate(keys):
        np.testing.assert_allclose(table[key], (k + 1) * np.arange(11) / 10, rtol=1e-6, err_msg=key)
        assert table[f"valid.{key}"] == [True] * 11
    assert table["index"] == list(range(11))
    for name, key in zip(names, keys, strict=True):
        if key[-2:] in ("_2", "_3"):
            assert any(f'stream "{name}" is written as "{key}"' in note for note in found["notes"]), name
    opened = rc.open(tmp_path / "out").episodes[0].streams
    assert set(keys) <= set(opened)


def test_names_that_are_one_topic(tmp_path):
    cache = cache_of(tmp_path / "cache", ("x", {"a": ramp(scale=1.0), "/a": ramp(scale=2.0)}))
    found = rc.export(cache, tmp_path / "out", rate=10, format="mcap")
    streams = rc.open(tmp_path / "out" / "episode-000000.mcap").streams
    assert found["notes"] == ['stream "/a" is written as "/a_2": the name "/a" is taken']
    np.testing.assert_allclose(streams["/a"].values[:, 0], np.arange(11) / 10, atol=1e-12)
    np.testing.assert_allclose(streams["/a_2"].values[:, 0], np.arange(11) / 5, atol=1e-12)


# ---- What a killed export left


def test_a_killed_exports_leftover_is_not_continued(tmp_path):
    """A container's processes often have the same id, so that a name with the id is not new."""
    for name, first in (("old", 1000.0), ("new", 0.0)):
        with mcap.Writer(tmp_path / f"{name}.mcap") as writer:
            channel = writer.add_channel("/t", "json", writer.add_schema("x", "jsonschema", b"{}"))
            for k in range(50):
                writer.write(channel, json.dumps({"x": first + k}).encode(), log_time=SECOND + k * 10 * MS)
    left = tmp_path / f".out.read-{os.getpid()}"
    with rc.CacheWriter(left) as writer:
        writer.add(rc.open(tmp_path / "old.mcap"))
    rc.export(tmp_path / "new.mcap", tmp_path / "out", rate=100, format="safetensors")
    np.testing.assert_array_equal(tensors(tmp_path / "out")["/t"][:, 0], np.arange(50.0))
    assert len(rc.Cache(left).episodes) == 1  # it is not ours: neither used nor removed
    assert [path.name for path in tmp_path.iterdir() if ".read-" in path.name] == [left.name]


# ---- One pass, little memory


class Pieces:
    """A recording of three streams in many pieces, each made when it is read; `alive` counts those that still are."""

    def __init__(self, count=40, samples=50):
        self.count, self.samples, self.most = count, samples, 0
        recording = made(
            *(batch(name, np.zeros((1, 2)), [0]) for name in ("/a", "/b")),
            batch("/cloud", np.zeros((0, 3), np.float32), [], lengths=[], ragged=True),
        )
        self.source = recording._source
        self.source.batches = self.batches
        self.recording, self.passes = recording, 0

    def batches(self, streams=None, episode=None, start=None, end=None):
        self.passes += 1
        alive = []
        for k in range(self.count):
            times = (k * self.samples + np.arange(self.samples)) * MS
            for name in ("/a", "/b", "/cloud"):
                if streams is not None and name not in streams:
                    continue
                if name == "/cloud":
                    values = np.full((2 * self.samples, 3), k, np.float32)
                    about = info(name, "xyz", np.float32, ragged=True)
                    found = Batch(0, name, values, times, times, np.full(self.samples, 2), about)
                else:
                    values = np.stack([times / 1e9, -times / 1e9], axis=1)
                    found = Batch(0, name, values, times, times, None, info(name, "pq"))
                alive.append(weakref.ref(values))
                del values
                yield found
                del found
                gc.collect(0)
                self.most = max(self.most, sum(ref() is not None for ref in alive))


@pytest.mark.parametrize("form", ["safetensors", "mcap"])
def test_a_recording_is_read_once_and_not_kept(tmp_path, form):
    pieces = Pieces()
    found = rc.export(pieces.recording, tmp_path / "out", rate=100, format=form)
    assert pieces.passes == 1
    assert pieces.most <= 3  # of 120: the one that is being read, and what the loops still name
    assert found["frames"] == 200
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert pieces.recording.episodes[0].streams._decoded == {}
    if form == "safetensors":
        inside = tensors(tmp_path / "out")
        at = np.arange(200) / 100
        np.testing.assert_allclose(inside["/a"], np.stack([at, -at], axis=1), atol=1e-12)
        offsets = inside["/cloud.offsets"]
        np.testing.assert_array_equal(offsets, 2 * np.arange(201))
        np.testing.assert_array_equal(inside["/cloud"][offsets[:-1], 0], np.rint(at * 1000).astype(int) // 50)


def test_a_recording_that_breaks_leaves_nothing_behind(tmp_path):
    pieces = Pieces(count=3)
    whole = pieces.source.batches

    def broken(*given, **named):
        yield from whole(*given, **named)
        raise rc.FileError("made.mcap: the file ends within a chunk")

    pieces.source.batches = broken
    with pytest.raises(rc.FileError, match="ends within a chunk"):
        rc.export(pieces.recording, tmp_path / "out", rate=100, format="mcap")
    assert list(tmp_path.iterdir()) == []


# ---- How streams are aligned


def late(folder):
    """A fast stream, and a slow one whose samples arrive 150 ms late: 5, 6, 7, ... at 0.0, 0.2, 0.4, ... s."""
    fast, slow = np.arange(101) * 10 * MS, np.arange(6) * 200 * MS
    return cache_of(
        folder,
        (
            "x",
            {
                "fast": rc.Stream(fast[:, None] / 1e9, fast),
                "slow": rc.Stream(5.0 + np.arange(6)[:, None], slow, arrivals=slow + 150 * MS),
            },
        ),
    )


def test_causal_edge_and_method_by_stream(tmp_path):
    cache = late(tmp_path / "cache")
    at = np.arange(11) * 100 * MS
    rc.export(cache, tmp_path / "plain", rate=10, format="safetensors")
    np.testing.assert_allclose(tensors(tmp_path / "plain")["slow"][:, 0], 5 + at / (200 * MS))
    rc.export(cache, tmp_path / "held", rate=10, format="safetensors", method={"slow": "hold"})
    held = tensors(tmp_path / "held")
    np.testing.assert_array_equal(held["slow"][:, 0], 5 + at // (200 * MS))
    np.testing.assert_allclose(held["fast"][:, 0], at / 1e9, atol=1e-12)
    for name, given in (("causal", {"slow": True}), ("all", True)):
        rc.export(cache, tmp_path / name, rate=10, format="safetensors", causal=given, edge={"slow": "nan"})
        found = tensors(tmp_path / name)
        arrived = (at - 150 * MS) // (200 * MS)  # the last that had arrived, below 0: none
        np.testing.assert_array_equal(found["slow"][:, 0], np.where(arrived >= 0, 5 + arrived, np.nan))
        np.testing.assert_array_equal(found["slow.valid"], arrived >= 0)
    for argument in ("causal", "edge", "method", "max_gap"):
        with pytest.raises(KeyError, match=f'export: {argument} names a stream "slwo"; near names: slow'):
            rc.export(cache, tmp_path / "none", rate=10, format="mcap", **{argument: {"slwo": 1, "slow": 1}})


@pytest.mark.parametrize(("edge", "behind"), [("clamp", 7), ("zero", 0)])
def test_a_stream_written_on_change_is_valid_behind_its_last_sample_where_its_value_is_kept(tmp_path, edge, behind):
    fast = np.arange(11) * 100 * MS
    streams = {"fast": rc.Stream(fast / 1e9, fast), "state": rc.Stream(np.array([3, 7]), [0, 350 * MS])}
    rc.export(cache_of(tmp_path / "cache", ("x", streams)), tmp_path / "out", rate=10, format="safetensors", edge=edge)
    found = tensors(tmp_path / "out")
    inside = fast <= 350 * MS
    np.testing.assert_array_equal(found["state"], np.where(inside, 3, behind))
    np.testing.assert_array_equal(found["state.valid"], inside | (edge == "clamp"))


def test_the_same_of_cache_align(tmp_path):
    cache = late(tmp_path / "cache")
    at = np.arange(11) * 100 * MS
    found = cache.align(targets=at, causal={"slow": True}, edge={"slow": "nan"}, on_nan={"fast": "skip"})
    arrived = (at - 150 * MS) // (200 * MS)
    np.testing.assert_array_equal(found["slow"].values[0, :, 0], np.where(arrived >= 0, 5 + arrived, np.nan))
    np.testing.assert_allclose(found["fast"].values[0, :, 0], at / 1e9, atol=1e-12)
    with pytest.raises(KeyError, match=r'Cache\.align: edge names a stream "slwo"'):
        cache.align(targets=at, edge={"slwo": "nan"})


def test_episodes(tmp_path):
    cache = cache_of(tmp_path / "cache", *((f"e{k}", {"a": ramp(count=11 + 10 * k)}) for k in range(5)))
    lengths = [2, 3, 4, 5, 6]
    for number, (wanted, expected) in enumerate(
        [(2, [4]), ([0, -1], [2, 6]), ("e3", [5]), (["e1", 2], [3, 4]), (slice(1, 3), [3, 4]), (None, lengths)]
    ):
        frames = []
        out = tmp_path / f"{number}"
        rc.export(cache, out, rate=10, format="mcap", episodes=wanted, progress=frames.append)
        assert frames == expected
        frames.clear()
        rc.export(
            rc.open(cache.path),
            tmp_path / f"r{number}",
            rate=10,
            format="mcap",
            episodes=wanted,
            progress=frames.append,
        )
        assert frames == expected
    with pytest.raises(ValueError, match="there is no episode 5; there are 5, from 0 on"):
        rc.export(cache, tmp_path / "none", rate=10, episodes=[5])
    with pytest.raises(ValueError, match='there is no episode "e9"'):
        rc.export(cache, tmp_path / "none", rate=10, episodes="e9")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"episodes": [7]}, "there is no episode 7; there are 5, from 0 on"),
        ({"episodes": -6}, "there is no episode -6; there are 5, from 0 on"),
        ({"episodes": "e9"}, 'there is no episode "e9"; near names: '),
        ({"episodes": 0.5}, "episodes has 0.5; expected numbers, names or slices"),
        ({"episodes": [0, 0.5]}, "episodes has 0.5; expected numbers, names or slices"),
        ({"episodes": True}, "episodes has True; expected numbers, names or slices"),
        ({"episodes": [True, False, True, False, False]}, "episodes has True; expected numbers, names or slices"),
        ({"episodes": np.arange(5) > 2}, f"episodes has {np.False_!r}; expected numbers, names or slices"),
        ({"streams": "/joint"}, 'no stream "/joint"'),
        ({"rate": "50"}, "rate is '50'; expected a number of hertz"),
        ({"rate": 0}, "rate is 0; it must be a positive number of hertz"),
        ({"rate": 1e-300}, "rate is 1e-300; one step would be as long as 2^62 ns, or longer"),
        ({"method": {"nope": "hold"}}, 'method names a stream "nope"; there are: a'),
    ],
    ids=str,
)
def test_align_and_export_refuse_with_the_same_words(tmp_path, given, words):
    cache = cache_of(tmp_path / "cache", *((f"e{k}", {"a": ramp(count=11 + 10 * k)}) for k in range(5)))
    asked = {"rate": 10} | given
    for where, call in (("Cache.align", cache.align), ("export", partial(rc.export, cache, tmp_path / "none"))):
        with pytest.raises((ValueError, KeyError, TypeError), match=re.escape(words)) as caught:
            call(**asked)
        assert str(caught.value).startswith(where) or "streams" in given
    assert not (tmp_path / "none").exists()


def test_align_takes_what_export_takes(tmp_path):
    cache = cache_of(tmp_path / "cache", *((f"e{k}", {"a": ramp(count=11 + 10 * k)}) for k in range(5)))
    assert cache.align(slice(1, 3), rate=10, streams="a").episodes == [1, 2]
    assert cache.align(["e4", slice(0, 2), np.int64(-2)], rate=10).episodes == [4, 0, 1, 3]
    assert cache.align(np.array([3, 0]), rate=10).episodes == [3, 0]
    assert cache.align(np.int64(3), rate=10).episodes == cache.align(np.array(3), rate=10).episodes == [3]
    with pytest.raises(ValueError, match=r"export: rate is .*; it must be a positive number of hertz below 1e\+06"):
        rc.export(cache, tmp_path / "none", rate=1e12)


def test_the_command_line_has_them(tmp_path):
    testing = pytest.importorskip("typer.testing", reason="Typer is not installed")
    from robocache.cli.commands import application

    def run(*arguments):
        given = ["export", str(tmp_path / "cache"), "--rate", "10", "--format", "safetensors", *map(str, arguments)]
        return testing.CliRunner().invoke(application, given)

    late(tmp_path / "cache")
    with rc.CacheWriter(tmp_path / "cache") as writer:
        writer.add(dict(rc.Cache(tmp_path / "cache").episodes[0].streams), name="y")
    at = np.arange(11) * 100 * MS
    arrived = (at - 150 * MS) // (200 * MS)
    answer = run("-o", tmp_path / "a", "--causal", "--edge", "slow=nan", "--episodes", "1")
    assert answer.exit_code == 0, answer.output
    (file,) = (tmp_path / "a").iterdir()
    inside = pytest.importorskip("safetensors.numpy").load_file(file)
    np.testing.assert_array_equal(inside["slow"][:, 0], np.where(arrived >= 0, 5 + arrived, np.nan))
    answer = run("-o", tmp_path / "b", "--method", "slow=hold", "--method", "fast=nearest", "--episodes", "x,1:2")
    assert answer.exit_code == 0, answer.output
    np.testing.assert_array_equal(tensors(tmp_path / "b", 1)["slow"][:, 0], 5 + at // (200 * MS))
    answer = run("-o", tmp_path / "c", "--max-gap", "slow=0.1", "--edge", "nan")
    assert answer.exit_code == 0, answer.output
    assert tensors(tmp_path / "c")["slow.valid"].sum() == 6  # the exact hits
    for wrong in (("--method", "slow=lineer"), ("--edge", "slow=wrap"), ("--max-gap", "long"), ("--max-gap", "-1")):
        assert run("-o", tmp_path / "d", *wrong).exit_code == 2, wrong
    answer = run("-o", tmp_path / "d", "--episodes", "7")
    assert answer.exit_code == 1
    assert "there is no episode 7" in answer.stderr


# ---- Images


@pytest.fixture
def camera(tmp_path):
    """Ten images a second that arrive half a second late, as rosbags writes them, and a number beside them."""
    pytest.importorskip("rosbags", reason="rosbags is not installed")
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.LATEST)
    types = store.types
    schema = store.generate_msgdef("sensor_msgs/msg/Image", ros_version=2)[0]
    pixels = np.random.default_rng(3).integers(0, 255, (20, 6, 8, 3), dtype=np.uint8)
    with mcap.Writer(tmp_path / "camera.mcap") as writer:
        topic = writer.add_channel("/camera", "cdr", writer.add_schema("sensor_msgs/msg/Image", "ros2msg", schema))
        other = writer.add_channel("/a", "json")
        for k, image in enumerate(pixels):
            at = SECOND + k * 100 * MS
            stamp = types["builtin_interfaces/msg/Time"](at // SECOND, at % SECOND)
            header = types["std_msgs/msg/Header"](stamp, "eye")
            message = types["sensor_msgs/msg/Image"](header, 6, 8, "bgr8", 0, 24, image.reshape(-1))
            data = bytes(store.serialize_cdr(message, "sensor_msgs/msg/Image"))
            writer.write(topic, data, log_time=at + 500 * MS)
            writer.write(other, json.dumps({"x": k}).encode(), log_time=at)
    return tmp_path / "camera.mcap", pixels, store


def test_images_go_into_mcap(camera, tmp_path):
    path, pixels, store = camera
    found = rc.export(path, tmp_path / "out", rate=10, format="mcap", streams=["/camera"])
    assert (found["frames"], found["notes"]) == (20, [])
    file = tmp_path / "out" / "episode-000000.mcap"
    with mcap.Reader(file) as reader:
        for k, message in enumerate(reader.messages()):
            theirs = store.deserialize_cdr(message.data, "sensor_msgs/msg/Image")
            assert (theirs.height, theirs.width, theirs.encoding, theirs.step) == (6, 8, "bgr8", 24)
            assert theirs.header.stamp.sec * SECOND + theirs.header.stamp.nanosec == message.log_time
            np.testing.assert_array_equal(theirs.data, pixels[k].reshape(-1))
        assert k == 19
    again = rc.open(file).streams["/camera"]
    np.testing.assert_array_equal(again.times, SECOND + np.arange(20) * 100 * MS)


def test_compressed_images_go_into_mcap(tmp_path):
    pytest.importorskip("rosbags", reason="rosbags is not installed")
    from rosbags.typesys import Stores, get_typestore

    from robocache._export import mcap_images

    store = get_typestore(Stores.LATEST)
    data = np.frombuffer(b"\xff\xd8\xff\xe0 not really", np.uint8)
    message = mcap_images.stored(3 * SECOND + 7, data, {"format": "jpeg"})
    theirs = store.deserialize_cdr(message, "sensor_msgs/msg/CompressedImage")
    assert (theirs.format, bytes(theirs.data)) == ("jpeg", data.tobytes())
    assert (theirs.header.stamp.sec, theirs.header.stamp.nanosec, theirs.header.frame_id) == (3, 7, "")
    for kind, text in mcap_images.SCHEMAS.items():
        from rosbags.typesys import get_types_from_msg

        assert kind in get_types_from_msg(text, kind)


def test_a_video_goes_into_mcap(tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pytest.importorskip("av", reason="PyAV is not installed")
    from robocache._export.lerobot import Feature, LeRobotWriter

    features = {"action": Feature("float32", (1,)), "camera": Feature("video", (32, 48, 3))}
    with LeRobotWriter(tmp_path / "in", fps=10, features=features) as writer:
        frames = (np.full((32, 48, 3), 15 * k + 20, np.uint8) for k in range(12))
        writer.add({"action": np.arange(12)[:, None]}, "look", {"camera": frames})
    rc.export(tmp_path / "in", tmp_path / "out", rate=20, format="mcap")
    stream = rc.open(tmp_path / "out" / "episode-000000.mcap").streams["/camera"]
    assert len(stream) == 23
    for k in range(23):
        assert abs(float(stream.samples[k].mean()) - (15 * (k // 2) + 20)) < 4


def test_what_is_left_out_of_mcap_is_told_with_a_way_on(tmp_path):
    clouds = [np.full((k + 1, 3), k, np.float32) for k in range(11)]
    times = np.arange(11) * 100 * MS
    cache = cache_of(tmp_path / "cache", ("x", {"a": ramp(), "cloud": rc.Stream(clouds, times)}))
    found = rc.export(cache, tmp_path / "out", rate=10, format="mcap")
    (told,) = found["notes"]
    assert re.search('stream "cloud" is left out.*--format safetensors keeps them', told)


def test_a_lerobot_data_set_of_images_alone(camera, tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pytest.importorskip("av", reason="PyAV is not installed")
    found = rc.export(camera[0], tmp_path / "out", rate=10, streams=["/camera"])
    assert found["frames"] == 20
    episode = rc.open(tmp_path / "out").episodes[0]
    assert episode.streams["camera"].samples[7].shape == (6, 8, 3)
    assert episode.streams["valid.camera"].values.all()


def test_what_had_not_arrived_is_black(camera, tmp_path):
    """Nothing of a later image may leak into what a robot would have seen."""
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pytest.importorskip("av", reason="PyAV is not installed")
    path, pixels, _ = camera
    rc.export(path, tmp_path / "out", rate=10, causal=True)
    episode = rc.open(tmp_path / "out").episodes[0]
    frames, valid = episode.streams["camera"].samples, episode.streams["valid.camera"].values.ravel()
    np.testing.assert_array_equal(valid, np.arange(20) >= 5)
    assert max(frames[k].mean() for k in range(5)) < 20
    assert abs(frames[5].mean() - pixels[0].mean()) < 20
    rc.export(path, tmp_path / "st", rate=10, causal=True, format="safetensors")
    inside = tensors(tmp_path / "st")
    np.testing.assert_array_equal(np.diff(inside["/camera.offsets"]), np.where(np.arange(20) >= 5, 6 * 8 * 3, 0))
    np.testing.assert_array_equal(inside["/camera"], pixels[:15].reshape(-1))


@pytest.mark.parametrize("form", ["lerobot", "mcap", "safetensors"])
def test_a_video_that_had_not_arrived_is_black(tmp_path, form):
    """More targets without a sample than are decoded at once, and then all frames."""
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pytest.importorskip("av", reason="PyAV is not installed")
    from robocache._export.lerobot import Feature, LeRobotWriter

    features = {"action": Feature("float32", (1,)), "camera": Feature("video", (32, 48, 3))}
    with LeRobotWriter(tmp_path / "in", fps=10, features=features) as writer:
        frames = (np.full((32, 48, 3), 4 * k + 40, np.uint8) for k in range(50))
        writer.add({"action": np.arange(50)[:, None]}, "look", {"camera": frames})
    with rc.CacheWriter(tmp_path / "one") as writer:
        writer.add(rc.open(tmp_path / "in"))
    streams = dict(rc.Cache(tmp_path / "one").episodes[0].streams)
    camera = streams["camera"]
    late = rc.RecordedStream(
        camera.values, camera.times, arrivals=camera.times + 2 * SECOND, method="hold", name="camera"
    )
    late.info, late.backward, late.samples = camera.info, camera.backward, camera.samples
    with rc.CacheWriter(tmp_path / "cache") as writer:
        writer.add({"action": streams["action"], "camera": late}, name="x")
    rc.export(rc.Cache(tmp_path / "cache"), tmp_path / "out", rate=10, format=form, causal=True)
    seen = np.arange(50) - 20
    if form == "safetensors":
        np.testing.assert_array_equal(tensors(tmp_path / "out")["camera"][:, 0], np.maximum(seen, -1))
    elif form == "mcap":
        stream = rc.open(tmp_path / "out" / "episode-000000.mcap").streams["/camera"]
        assert len(stream) == 30
        assert abs(float(stream.samples[7].mean()) - (4 * 7 + 40)) < 4
    else:
        frames = rc.open(tmp_path / "out").episodes[0].streams["camera"].samples[:]
        for k in range(50):
            assert abs(frames[k].mean() - (4 * seen[k] + 40 if seen[k] >= 0 else 0)) < 4


def test_an_episode_whose_video_has_gone_is_left_out(tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pytest.importorskip("av", reason="PyAV is not installed")
    from robocache._export.lerobot import Feature, LeRobotWriter

    features = {"action": Feature("float32", (1,)), "camera": Feature("video", (32, 48, 3))}
    with LeRobotWriter(tmp_path / "in", fps=10, features=features) as writer:
        for length in (8, 9, 10):
            frames = (np.full((32, 48, 3), 10 * k + length, np.uint8) for k in range(length))
            writer.add({"action": np.arange(length)[:, None]}, f"task {length}", {"camera": frames})
    for gone in range(3):
        video = tmp_path / f"in/videos/camera/chunk-000/file-{gone:03d}.mp4"
        kept = video.read_bytes()
        video.unlink()
        logs = rc.export(tmp_path / "in", tmp_path / f"logs{gone}", rate=10, format="mcap")
        assert logs["episodes"] == len(list((tmp_path / f"logs{gone}").iterdir())) == 2
        found = rc.export(tmp_path / "in", tmp_path / f"out{gone}", rate=10)
        assert found["episodes"] == 2
        assert logs["notes"] == [note for note in found["notes"] if "left out" in note]
        (told,) = [note for note in found["notes"] if "left out" in note]
        assert f"episode-{gone}" in told
        assert f"file-{gone:03d}.mp4" in told
        out = rc.open(tmp_path / f"out{gone}")
        lengths = [length for k, length in enumerate((8, 9, 10)) if k != gone]
        assert [len(episode.streams["action"]) for episode in out.episodes] == lengths
        assert [episode.task for episode in out.episodes] == [f"task {length}" for length in lengths]
        videos = sorted(path.name for path in (tmp_path / f"out{gone}/videos/camera/chunk-000").iterdir())
        assert videos == ["file-000.mp4", "file-001.mp4"]
        for episode, length in zip(out.episodes, lengths, strict=True):
            assert abs(episode.streams["camera"].samples[5].mean() - (50 + length)) < 4
        video.write_bytes(kept)
