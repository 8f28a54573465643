"""Recipes: names, channels, methods, latencies; sentences for what is wrong; episodes out of long recordings."""

import re
import tomllib

import numpy as np
import pytest
from recordings import batch, made, write_lerobot

import robocache as rc
from robocache._cache.first_recipe import first_recipe
from robocache._cache.recipe import load_recipe
from robocache._cache.split import split
from robocache._recordings.words import toml_string, visible

MS = 1_000_000


def recipe(tmp_path, text):
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    return load_recipe(path)


def arm():
    t = np.arange(5) * 10 * MS
    channels = ["position.a", "position.b", "velocity.a", "orientation.x"]
    values = np.arange(20.0).reshape(5, 4)
    methods = (("linear", 0, 3), ("slerp", 3, 4))
    return made(
        batch("/joint_states", values, t, t + 5 * MS, channels=channels, method=methods),
        batch("/gripper", np.arange(5)[:, None], t),
    )


def test_streams_are_named_cut_and_shifted(tmp_path):
    cooked = recipe(
        tmp_path,
        """
        [task]
        name = "pick"
        [streams."/joint_states"]
        name = "observation.state"
        channels = ["velocity.*", "position.*"]
        method = { "position.a" = "cubic", "*" = "linear" }
        latency = 0.002
        clock_offset = -0.001
        dtype = "float32"
        [streams.action]
        topic = "/joint_states"
        channels = ["position.b", "orientation.x"]
        """,
    ).apply(arm())
    assert list(cooked.streams) == ["observation.state", "action"]
    state = cooked.streams["observation.state"]
    assert state.channels == ("velocity.a", "position.a", "position.b")
    assert state.values.dtype == np.float32
    assert state.values[1].tolist() == [6, 4, 5]
    assert state.method == (("linear", 0, 1), ("cubic", 1, 2), ("linear", 2, 3))
    assert state.times[0] == -1 * MS
    assert state.arrivals[0] == 5 * MS
    assert state.info.metadata["latency_ns"] == "2000000"
    assert cooked.streams["action"].method == (("linear", 0, 1), ("slerp", 1, 2))
    assert cooked.episodes[0].task == "pick"
    with pytest.raises(KeyError, match="no stream"):
        cooked.streams["/gripper"]
    rc.align(cooked.streams.select("observation.state"), np.array([5 * MS]))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[stream.x]", 'a recipe has no section "stream"; near names: streams'),
        ("[task]\nnme = 'x'", 'there is no key "nme"; near names: name'),
        ("[streams.x]\nmethd = 'hold'", 'there is no key "methd"; near names: method'),
        ("[streams.x]\nmethod = 'lnear'", 'there is no method "lnear"; near names: linear'),
        ("[streams.x]\nlatency = '8 ms'", "latency is '8 ms'; expected int or float"),
        ("[streams.x]\nlatency = true", "latency is True; expected int or float"),
        ("[streams.x]\nlatency = inf", "latency is inf; expected seconds"),
        ("[streams.x]\nmax_gap = 0", "max_gap is 0; expected seconds, more than 0"),
        ("[streams.x]\ndtype = 'float'", 'there is no dtype "float"; near names: float64'),
        ("[streams.x]\nname = 'a'\n[streams.a]", 'two streams are named "a"'),
        ("[streams]\nx = 3", "must be a table"),
        ("streams = 3", "streams must be a table"),
        ("[episodes]\nby = 'day'", 'by is "day"; expected "file", "gap" or "topic"'),
        ("[streams.x]\nchannels = [3]", "channels must be a list of text"),
    ],
)
def test_what_is_wrong_gets_a_sentence(tmp_path, text, words):
    with pytest.raises(ValueError, match=words):
        recipe(tmp_path, text)


def test_no_toml_and_no_file(tmp_path):
    with pytest.raises(rc.FileError, match="not TOML"):
        recipe(tmp_path, "[[[")
    with pytest.raises(rc.FileError, match="No such file"):
        load_recipe(tmp_path / "none.toml")


def test_topics_and_channels_that_are_not_there(tmp_path):
    with pytest.raises(ValueError, match=r'made.mcap has no stream "/joints"; near names: /joint_states'):
        recipe(tmp_path, '[streams."/joints"]').apply(arm())
    cooked = recipe(tmp_path, '[streams."/joint_states"]\nchannels = ["positon.*"]').apply(arm())
    with pytest.raises(ValueError, match=r'there is no channel "positon.\*"; near names: position.b, position.a'):
        _ = cooked.streams["/joint_states"]
    cooked = recipe(tmp_path, '[streams."/joint_states"]\nmethod = { "position.*" = "linear" }').apply(arm())
    with pytest.raises(ValueError, match=r'no pattern of method matches the channel "velocity.a"'):
        _ = cooked.streams["/joint_states"]


def one(values, dtype):
    values = np.asarray(values, dtype).reshape(-1, 1)
    return made(batch("/a", values, np.arange(len(values)) * MS, channels=["speed"]))


@pytest.mark.parametrize(
    ("values", "dtype", "wanted", "named"),
    [
        ([1, 130], np.int64, "int8", "130"),
        ([0.0, 1000.5], np.float64, "int16", "1000.5"),
        ([0.0, np.nan], np.float64, "int8", "nan"),
        ([0.0, np.inf], np.float64, "int64", "inf"),
        ([0, -1], np.int32, "uint8", "-1"),
        ([2**64 - 1], np.uint64, "int64", str(2**64 - 1)),
        ([-1], np.int64, "uint64", "-1"),
        ([2.0**63], np.float64, "int64", "9.223372036854775807e18"),
        ([0, 2], np.int64, "bool", "2"),
        ([0.0, 1e300], np.float64, "float32", "1e+300"),
        ([0, 70000], np.int64, "float16", "70000"),
    ],
)
def test_a_dtype_that_values_do_not_fit_is_refused(tmp_path, values, dtype, wanted, named):
    cooked = recipe(tmp_path, f'[streams."/a"]\nname = "b"\ndtype = "{wanted}"\n').apply(one(values, dtype))
    with pytest.raises(ValueError, match=f'dtype is {wanted}, which cannot hold .* of channel "speed"') as caught:
        _ = cooked.streams["b"].values
    assert str(caught.value).startswith(f'{tmp_path / "recipe.toml"}: [streams."b"]: ')
    assert float(re.search(r"hold (\S+) of", str(caught.value))[1]) == pytest.approx(float(named), nan_ok=True)


@pytest.mark.parametrize(
    ("values", "dtype", "wanted"),
    [
        ([-128, 127], np.int64, "int8"),
        ([0.0, -3.0, 255.0 - 128], np.float64, "int8"),
        ([0, 255], np.int16, "uint8"),
        ([2**63], np.uint64, "uint64"),
        ([0, 1], np.int64, "bool"),
        ([0.1, np.nan, np.inf, -np.inf], np.float64, "float32"),
        ([0.1, 65504.0], np.float64, "float16"),
        ([2**53 + 1], np.int64, "float64"),
        ([True, False], np.bool_, "float32"),
    ],
)
def test_a_dtype_that_they_fit_is_taken(tmp_path, values, dtype, wanted):
    cooked = recipe(tmp_path, f'[streams."/a"]\ndtype = "{wanted}"\n').apply(one(values, dtype))
    found = cooked.streams["/a"].values
    assert found.dtype == wanted
    np.testing.assert_array_equal(found[:, 0], np.asarray(values, dtype).astype(wanted))


def test_a_build_tells_a_dtype_that_does_not_fit(tmp_path):
    from robocache import mcap
    from robocache._cache import build as _build

    for name, most in (("good", 100), ("bad", 300)):
        with mcap.Writer(tmp_path / f"{name}.mcap") as writer:
            topic = writer.add_channel("/a", "json")
            for k in range(0, most, 10):
                writer.write(topic, b'{"x": %d}' % k, log_time=k * MS)
    (tmp_path / "r.toml").write_text('[streams."/a"]\ndtype = "int8"\n')
    paths = [str(tmp_path / f"{name}.mcap") for name in ("bad", "good")]
    found = _build.build(paths, tmp_path / "cache", recipe=tmp_path / "r.toml")
    assert [row["state"] for row in found["sources"]] == ["failed", "added"]
    assert "bad.mcap" in found["sources"][0]["error"]
    assert "cannot hold 130" in found["sources"][0]["error"]


def test_the_first_recipe_takes_everything_as_it_is(tmp_path):
    plain = arm()
    cooked = recipe(tmp_path, first_recipe(plain)).apply(plain)
    assert list(cooked.streams) == list(plain.streams)
    for name, stream in plain.streams.items():
        other = cooked.streams[name]
        np.testing.assert_array_equal(other.values, stream.values)
        np.testing.assert_array_equal(other.times, stream.times)
        assert other.channels == stream.channels
        assert other.method == stream.method


def gappy():
    t = np.concatenate([np.arange(50), np.arange(150, 200)]) * 10 * MS
    return made(
        batch("/a", np.sin(t * 1e-9)[:, None], t), batch("/b", np.arange(200.0)[:, None], np.arange(200) * 10 * MS)
    )


def test_any_name_can_stand_in_a_first_recipe():
    t = np.arange(200) * 10_000_000
    t[100:] += 1_000_000_000
    names = ["/\U0001f916 arm", "/a\nmax_gap = 1", "/\x7f\x01\t", "/\u202e\u05d0", "/'\"\\", "", "]]#"]
    values = np.stack([np.arange(200.0), np.zeros(200)], 1)
    batches = [batch(name, values, t, type=name, channels=[f"{name}x", f"{name}y"]) for name in names]
    batches.append(batch("/many", np.ones((200, 41)), t, channels=[f"{k}\n[" for k in range(41)]))
    recording = made(*batches, tasks=("\U0001f916\x7f\n",))
    recording.path = "a\n[b].mcap"
    recipe = tomllib.loads(first_recipe(recording, rc.sync_report(recording)))
    assert list(recipe["streams"]) == [*names, "/many"]
    assert recipe["task"]["name"] == "\U0001f916\x7f\n"
    for name in names:
        assert recipe["streams"][name]["name"] == name
        assert recipe["streams"][name]["channels"] == [f"{name}x", f"{name}y"]
        assert recipe["streams"][name]["max_gap"] > 0
    assert visible(toml_string("\u202e\u200b\ud800")) == '"\\U0000202e\\U0000200b?"'


def test_channels_that_come_later(tmp_path):
    """JSON and JointState: a name that is there is taken, with NaN before; one that no recipe names is told."""
    first = batch("/a", [[1.0]], [0], channels=["x"])
    plain = made(first, batch("/a", [[2.0, 3.0, 4.0]], [1], channels=["x", "late", "other"]))
    text = '[streams."/a"]\nname = "a"\nchannels = %s\n'
    cooked = recipe(tmp_path, text % '["late", "x"]').apply(plain)
    np.testing.assert_array_equal(cooked.streams["a"].values, [[np.nan, 1], [3, 2]])
    assert cooked.streams["a"].channels == ("late", "x")
    (note,) = cooked.notes
    assert note == 'stream "a": channels that come later are not in the recipe, and are left out: other'
    with pytest.raises(ValueError, match='there is no channel "lete"; near names: late'):
        list(recipe(tmp_path, text % '["lete"]').apply(plain).batches())


def test_the_first_recipe_sets_max_gap_where_there_are_gaps(tmp_path):
    recording = gappy()
    text = first_recipe(recording, rc.sync_report(recording))
    assert "max_gap = 0.03  # seconds: nothing is valid inside; 1 gap, longest 1.01 s" in text
    streams = recipe(tmp_path, text).apply(recording).streams
    assert (streams["/a"].max_gap, streams["/b"].max_gap) == (30 * MS, None)
    aligned = rc.align(streams, np.array([400, 1000, 1600]) * MS)
    assert aligned["/a"].valid.tolist() == [True, False, True]
    assert aligned["/b"].valid.all()


def test_max_gap_is_the_builds_own(tmp_path):
    """Two recordings that were built with different recipes, and one of them built again without."""

    def build(name, max_gap, time="auto"):
        text = '[streams."/a"]\n' + ("" if max_gap is None else f"max_gap = {max_gap * 1e-9}")
        recording = recipe(tmp_path, text).apply(gappy())
        recording.path, recording.time = str(tmp_path / name), time
        recording.files = (tmp_path / name,)
        recording.files[0].touch()
        with rc.CacheWriter(tmp_path / "cache") as writer:
            writer.add(recording, name=name, options=f"{max_gap}")
        return rc.Cache(tmp_path / "cache")

    cache = build("x", 30 * MS)
    assert cache.align(rate=10)["/a"].valid.sum() == 10
    assert cache.align(rate=10, max_gap=2.0)["/a"].valid.all()
    cache = build("y", 2000 * MS, time="log")
    gaps = {episode.name: episode.streams["/a"].max_gap for episode in cache.episodes}
    assert gaps == {"x": 30 * MS, "y": 2000 * MS}
    assert cache.align(["y"], rate=10)["/a"].valid.all()
    assert not cache.align(rate=10)["/a"].valid.all()  # the least serves all
    cache = build("x", None)
    assert cache.episodes["x"].streams["/a"].max_gap is None
    assert cache.align("x", rate=10)["/a"].valid.all()
    with rc.CacheWriter(tmp_path / "copy") as writer:
        writer.add(cache)
    assert rc.Cache(tmp_path / "copy").episodes["y"].streams["/a"].max_gap == 2000 * MS


def test_a_recipe_opens_data_sets(tmp_path):
    write_lerobot(tmp_path / "set")
    wanted = recipe(tmp_path, '[streams.action]\nchannels = ["right"]\n[task]\nname="all"')
    cooked = wanted.apply(wanted.open(tmp_path / "set"))
    assert [episode.task for episode in cooked.episodes] == ["all"] * 3
    assert cooked.episodes[0].streams["action"].values.shape == (7, 1)


def test_a_recipe_maps_hdf5(tmp_path):
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["q"], file["clock"] = np.ones((4, 2)), np.arange(4) * MS
    wanted = recipe(tmp_path, '[streams."/q"]\ntimes = "/clock"\nname = "state"')
    cooked = wanted.apply(wanted.open(tmp_path / "x.h5"))
    assert cooked.streams["state"].times.tolist() == [0, MS, 2 * MS, 3 * MS]


def test_episodes_by_gap():
    t = np.concatenate([np.arange(10), 1000 + np.arange(5), 5000 + np.arange(3)]) * 10 * MS
    recording = split(
        made(batch("/a", np.arange(18.0)[:, None], t, t + MS), batch("/b", [[1.0]], [t[12]])), "gap", gap=5
    )
    assert [episode.name for episode in recording.episodes] == ["episode-0-0", "episode-0-1", "episode-0-2"]
    assert [len(episode.streams["/a"]) for episode in recording.episodes] == [10, 5, 3]
    assert [len(episode.streams["/b"]) for episode in recording.episodes] == [0, 1, 0]
    assert recording.episodes[1].start == t[10] + MS
    assert [b.episode for b in recording.batches()] == [0, 1, 1, 2]


def test_episodes_by_topic():
    t = np.arange(100) * 10 * MS
    marks = batch("/on", np.array([[1], [1], [0], [1]]), [100 * MS, 150 * MS, 300 * MS, 900 * MS])
    recording = split(made(batch("/a", np.arange(100.0)[:, None], t), marks), "topic", topic="/on")
    assert [(e.start, e.end) for e in recording.episodes] == [(100 * MS, 300 * MS - 1), (900 * MS, 990 * MS)]
    assert [len(e.streams["/a"]) for e in recording.episodes] == [20, 10]
    words = batch("/says", np.zeros((2, 0)), [100 * MS, 500 * MS], channels=[])
    recording = split(made(batch("/a", np.arange(100.0)[:, None], t), words), "topic", topic="/says")
    assert [len(e.streams["/a"]) for e in recording.episodes] == [40, 50]
    with pytest.raises(ValueError, match="which one"):
        split(made(marks), "topic")
    with pytest.raises(ValueError, match='no topic "/of"; near names: /on'):
        split(made(marks), "topic", topic="/of")
    with pytest.raises(ValueError, match="marks no episode"):
        split(made(batch("/on", [[0]], [5])), "topic", topic="/on")


def test_an_exact_name_wins_over_a_pattern_in_a_recipe():
    from robocache._cache.recipe import method_of

    method = {"*": "linear", "position[0]": "angle"}
    channels = ["position[0]", "position[1]", "position0"]
    assert method_of("recipe", method, channels) == (("angle", 0, 1), ("linear", 1, 3))
