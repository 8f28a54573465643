"""Joined streams: a recipe's `topics = [...]`. The truth is computed by NumPy from the signals that were written."""

import json
import re

import numpy as np
import pytest

import robocache as rc
from robocache import mcap
from robocache._cache import build
from robocache._cache.recipe import load_recipe

MS = 1_000_000
RECIPE = """
[streams."observation.state"]
topics = [
  { topic = "/joints", channels = ["q*"] },
  { topic = "/gripper", method = "hold", latency = 0.01 },
]
[streams.action]
topic = "/joints"
channels = ["command"]
"""


def signals(seed, seconds=4.0):
    """Joints at 100 Hz; a gripper at 7.3 Hz whose stamps are 10 ms late."""
    random = np.random.default_rng(seed)
    fast = (np.arange(int(seconds * 100)) * 10 * MS).astype(np.int64)
    slow = np.sort(random.integers(0, int(seconds * 1000), int(seconds * 7.3))).astype(np.int64) * MS
    return {
        "fast": fast,
        "joints": random.normal(size=(len(fast), 3)).cumsum(axis=0),
        "slow": slow,
        "gripper": random.normal(size=len(slow)),
    }


def record(path, made):
    with mcap.Writer(path) as writer:
        joints, gripper = (writer.add_channel(topic, "json") for topic in ("/joints", "/gripper"))
        rows = [
            (int(t), joints, {"q0": q[0], "q1": q[1], "command": q[2]})
            for t, q in zip(made["fast"], made["joints"], strict=True)
        ]
        rows += [(int(t), gripper, {"width": w}) for t, w in zip(made["slow"] + 10 * MS, made["gripper"], strict=True)]
        for t, channel, row in sorted(rows, key=lambda row: row[0]):
            writer.write(channel, json.dumps(row).encode(), log_time=t)


def truth(made, targets):
    """[T, 3]: q0, q1 linear between samples, the gripper held; and which rows are real."""
    joints = np.stack([np.interp(targets, made["fast"], made["joints"][:, k]) for k in range(2)], axis=1)
    last = np.searchsorted(made["slow"], targets, side="right") - 1
    held = made["gripper"][np.maximum(last, 0)]
    inside = (targets >= made["fast"][0]) & (targets <= made["fast"][-1])
    real = inside & (targets >= made["slow"][0]) & (targets <= made["slow"][-1])
    age = np.maximum(targets - made["fast"][np.clip(targets // (10 * MS), 0, len(made["fast"]) - 1)], 0)
    age = np.where(last >= 0, np.maximum(age, targets - made["slow"][np.maximum(last, 0)]), age)
    return np.concatenate([joints, held[:, None]], axis=1), real, age


@pytest.fixture
def built(tmp_path):
    (tmp_path / "recipe.toml").write_text(RECIPE)
    made = [signals(seed) for seed in (1, 2)]
    for number, each in enumerate(made):
        record(tmp_path / f"{number}.mcap", each)
    paths = [str(tmp_path / f"{number}.mcap") for number in (0, 1)]
    found = build.build(paths, tmp_path / "cache", recipe=tmp_path / "recipe.toml")
    assert [row["state"] for row in found["sources"]] == ["added", "added"], found
    return tmp_path / "cache", made


def test_one_stream_for_policies(built):
    cache = rc.Cache(built[0])
    assert list(cache.streams) == ["observation.state", "action"]
    state = cache.streams["observation.state"]
    assert isinstance(state, rc.RecordedStream)
    assert (state.shape, state.dtype, state.channels) == ((3,), np.float64, ("q0", "q1", "width"))
    assert state.members == ("observation.state/joints", "observation.state/gripper")
    assert state.method == [("linear", 0, 2), ("hold", 2, 3)]
    assert "observation.state" in repr(cache)
    with pytest.raises(ValueError, match=r"joined of observation.state/joints.*cache.align"):
        _ = state.values
    with pytest.raises(KeyError, match=r"joined of .*take one of them, or cache.align"):
        cache.episodes[0].streams["observation.state"]
    with pytest.raises(ValueError, match=r'^align: stream "s": .*joined of observation.state/joints.*cache.align'):
        rc.align({"s": state}, rc.Timeline(0, rate=10, count=3))


def test_members_keep_their_rates(built):
    path, made = built
    for number, each in enumerate(made):
        streams = rc.Cache(path).episodes[number].streams
        assert set(streams) == {"observation.state/joints", "observation.state/gripper", "action"}
        np.testing.assert_array_equal(streams["observation.state/joints"].times, each["fast"])
        np.testing.assert_array_equal(streams["observation.state/gripper"].times, each["slow"])
        np.testing.assert_array_equal(streams["observation.state/gripper"].values[:, 0], each["gripper"])


@pytest.mark.parametrize("device", [None, "cpu"])
def test_align_puts_it_together(built, device):
    path, made = built
    if device is not None:
        pytest.importorskip("torch", reason="torch is not installed")
    cache = rc.Cache(path)
    relative = np.arange(0, 3900, 13) * MS
    aligned = cache.align(targets=relative, device=device)
    assert list(aligned) == ["observation.state", "action"]
    found = aligned["observation.state"]
    for row, each in enumerate(made):
        values, real, age = truth(each, cache.episodes[row].start + relative)
        np.testing.assert_allclose(np.asarray(found.values[row]), values, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(np.asarray(found.valid[row]), real)
        np.testing.assert_array_equal(np.asarray(found.age[row])[real], age[real])
    assert (np.asarray(found.index) == -1).all()
    assert found.values.shape == (2, len(relative), 3)


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("form", ["rows", "by name", "anchor"])
def test_as_of_reaches_the_members(built, form, device):
    """Each member has the samples that had arrived by the decision; those of the gripper arrive 10 ms late."""
    if device is not None:
        pytest.importorskip("torch", reason="torch is not installed")
    path, made = built
    decisions = np.array([1234, 2500]) * MS
    targets, as_of = np.arange(0, 3900, 13) * MS, decisions
    relative = np.stack([targets] * 2)
    if form == "by name":
        as_of = {"observation.state": decisions}
    elif form == "anchor":
        targets, as_of = rc.Timeline.around(decisions, history=100, horizon=50, rate=100), "anchor"
        relative = decisions[:, None] + np.arange(-100, 50) * 10 * MS
    cache = rc.Cache(path)
    found = cache.align(targets=targets, as_of=as_of, device=device)["observation.state"]
    for row, each in enumerate(made):
        start = cache.episodes[row].start
        at, decided = start + relative[row], start + decisions[row]
        fast = each["fast"] <= decided
        slow = each["slow"] + 10 * MS <= decided
        joints = np.stack([np.interp(at, each["fast"][fast], each["joints"][fast, k]) for k in range(2)], axis=1)
        held = np.searchsorted(each["slow"][slow], at, side="right") - 1
        last = np.searchsorted(each["fast"][fast], at, side="right") - 1
        np.testing.assert_allclose(np.asarray(found.values[row, :, :2]), joints, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(np.asarray(found.values[row, :, 2]), each["gripper"][slow][np.maximum(held, 0)])
        np.testing.assert_array_equal(np.asarray(found.valid[row]), (held >= 0) & (last >= 0))
        ages = [at - times[np.maximum(k, 0)] for times, k in ((each["fast"], last), (each["slow"], held))]
        np.testing.assert_array_equal(np.asarray(found.age[row]), np.maximum(*ages))


def test_align_by_name_reaches_the_members(built):
    cache = rc.Cache(built[0])
    relative = np.arange(0, 3900, 7) * MS
    given = {"observation.state": {"width": "linear", "*": "hold"}}
    found = cache.align([1], targets=relative, method=given, streams=["observation.state"])["observation.state"]
    made, at = built[1][1], cache.episodes[1].start + relative
    last = np.clip(at // (10 * MS), 0, len(made["fast"]) - 1)
    np.testing.assert_array_equal(found.values[0, :, :2], made["joints"][last, :2])
    np.testing.assert_allclose(found.values[0, :, 2], np.interp(at, made["slow"], made["gripper"]), rtol=1e-12)
    both = cache.align([1], targets=relative, streams=["observation.state", "observation.state/gripper"], method=given)
    assert (both["observation.state/gripper"].values[..., 0] != both["observation.state"].values[..., 2]).any()
    ranges = cache.align(
        [1], targets=relative, streams=["observation.state"], method=[("hold", 0, 2), ("linear", 2, 3)]
    )
    np.testing.assert_array_equal(ranges["observation.state"].values, found.values)
    gaps = cache.align([1], targets=relative, max_gap={"observation.state": 0.001})["observation.state"]
    hit = np.isin(at, made["slow"]) & np.isin(at, made["fast"])  # an exact hit is never in a gap
    np.testing.assert_array_equal(gaps.valid[0], hit)


def test_exports_have_it_as_one(built, tmp_path):
    path, made = built
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    rc.export(rc.Cache(path), tmp_path / "set", rate=25, streams=["observation.state", "action"])
    for number, episode in enumerate(rc.open(tmp_path / "set").episodes):
        state = episode.streams["observation.state"]
        start = max(made[number]["fast"][0], 0)
        at = start + np.rint(np.arange(len(state)) * 1e9 / 25).astype(np.int64)
        values, real, _ = truth(made[number], at)
        assert state.channels == ("q0", "q1", "width")
        np.testing.assert_allclose(state.values, values, rtol=1e-6, atol=1e-6)
        valid = episode.streams["valid.observation.state"].values.ravel()
        np.testing.assert_array_equal(
            valid[: (at <= made[number]["slow"][-1]).sum()], real[at <= made[number]["slow"][-1]]
        )
    rc.export(rc.open(path), tmp_path / "logs", rate=25, format="mcap")  # opened as a recording, too
    streams = rc.open(tmp_path / "logs" / "episode-000001.mcap").streams
    assert set(streams) == {"/observation.state", "/action"}
    assert streams["/observation.state"].channels == ("q0", "q1", "width")


def test_a_copy_of_the_cache_has_it(built, tmp_path):
    with rc.CacheWriter(tmp_path / "copy") as writer:
        writer.add(rc.Cache(built[0]))
    with rc.CacheWriter(tmp_path / "part") as writer:
        writer.add(rc.Cache(built[0]), streams=["observation.state"])
    assert list(rc.Cache(tmp_path / "copy").streams) == ["observation.state", "action"]
    assert list(rc.Cache(tmp_path / "part").streams) == ["observation.state"]
    one, other = (rc.Cache(place).align(rate=10)["observation.state"] for place in (built[0], tmp_path / "copy"))
    np.testing.assert_array_equal(one.values, other.values)


def test_channels_with_one_name(tmp_path):
    t = np.arange(20) * 10 * MS
    with mcap.Writer(tmp_path / "a.mcap") as writer:
        for topic in ("/left", "/right"):
            channel = writer.add_channel(topic, "json")
            for k in t:
                writer.write(channel, json.dumps({"q": int(k) / MS}).encode(), log_time=int(k))
    (tmp_path / "r.toml").write_text('[streams.state]\ntopics = ["/left", "/right"]\ndtype = "float32"\n')
    build.build([str(tmp_path / "a.mcap")], tmp_path / "cache", recipe=tmp_path / "r.toml")
    state = rc.Cache(tmp_path / "cache").streams["state"]
    assert (state.channels, state.dtype) == (("left.q", "right.q"), np.float32)


def test_an_episode_without_a_member(built, tmp_path):
    """Nothing of it is real; an export tells and leaves the episode out."""
    made = signals(3)
    with mcap.Writer(tmp_path / "2.mcap") as writer:
        joints = writer.add_channel("/joints", "json")
        writer.add_channel("/gripper", "json")
        for t, q in zip(made["fast"], made["joints"], strict=True):
            writer.write(joints, json.dumps({"q0": q[0], "q1": q[1], "command": q[2]}).encode(), log_time=int(t))
    with rc.CacheWriter(built[0]) as writer:
        streams = dict(rc.Cache(built[0]).episodes[0].streams)
        del streams["observation.state/gripper"]
        writer.add(streams, name="without")
    cache = rc.Cache(built[0])
    assert not cache.align(["without"], rate=20, streams=["observation.state"])["observation.state"].valid.any()
    found = rc.export(cache, tmp_path / "out", rate=20, format="safetensors", streams=["observation.state"])
    assert found["episodes"] == 2
    assert any("without" in note and "observation.state" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[streams.a]\ntopics = []\n", "topics is []; expected topics or tables with a topic"),
        ("[streams.a]\ntopics = [3]\n", "topics is [3]; expected topics"),
        ('[streams.a]\ntopics = [{ channels = ["q"] }]\n', "expected topics or tables with a topic"),
        ('[streams.a]\ntopics = ["/a"]\ntopic = "/b"\n', "topic and topics; say it of each topic"),
        ('[streams.a]\ntopics = ["/a"]\nchannels = ["q"]\n', "channels and topics; say it of each topic"),
        ('[streams.a]\ntopics = [{ topic = "/a", nme = "b" }]\n', 'topics: there is no key "nme"'),
        ('[streams.a]\ntopics = ["/b"]\n[streams."a/b"]\ntopic = "/c"\n', 'two streams are named "a/b"'),
    ],
)
def test_what_is_wrong_gets_a_sentence(tmp_path, text, words):
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        load_recipe(tmp_path / "r.toml")
    assert str(caught.value).startswith(str(tmp_path / "r.toml"))


def test_one_topic_twice_and_missing_topics(built, tmp_path):
    text = (
        '[streams.s]\ntopics = [{ topic = "/joints", channels = "q0" }, { topic = "/joints", channels = "command" }]\n'
    )
    (tmp_path / "r.toml").write_text(text)
    build.build([str(tmp_path / "0.mcap")], tmp_path / "twice", recipe=tmp_path / "r.toml")
    cache = rc.Cache(tmp_path / "twice")
    assert cache.streams["s"].members == ("s/joints", "s/joints-2")
    np.testing.assert_array_equal(cache.align(rate=100)["s"].values[0, :100], built[1][0]["joints"][:100, [0, 2]])
    (tmp_path / "r.toml").write_text('[streams.s]\ntopics = ["/joints", "/hand"]\n')
    found = build.build([str(tmp_path / "0.mcap")], tmp_path / "third", recipe=tmp_path / "r.toml")
    assert 'has no stream "/hand"' in found["sources"][0]["error"]


def test_a_name_that_the_cache_has_otherwise(built, tmp_path):
    (tmp_path / "other.toml").write_text('[streams."/joints"]\nname = "observation.state"\n')
    record(tmp_path / "9.mcap", signals(9))
    found = build.build([str(tmp_path / "9.mcap")], built[0], recipe=tmp_path / "other.toml")
    assert found["sources"][0]["state"] == "failed"
    assert 'stream "observation.state" is joined' in found["sources"][0]["error"]
    (tmp_path / "other.toml").write_text('[streams."observation.state"]\ntopics = ["/gripper", "/joints"]\n')
    found = build.build([str(tmp_path / "9.mcap")], built[0], recipe=tmp_path / "other.toml")
    assert found["sources"][0]["state"] == "failed"
    assert "another recipe" in found["sources"][0]["error"]
    assert list(rc.Cache(built[0]).streams) == ["observation.state", "action"]
