"""info, build, export, verify: what a shell sees. The work behind them is tested elsewhere."""

import json

import numpy as np
import pytest
from recordings import batch, made, shared, write_lerobot
from test_mcap_recording import write

import robocache as rc
from robocache import mcap

typer_testing = pytest.importorskip("typer.testing", reason="Typer is not installed")


def robocache(*arguments):
    from robocache.cli.commands import application

    return typer_testing.CliRunner().invoke(application, list(map(str, arguments)))


def answer(*arguments):
    result = robocache(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_info_tells_and_is_json(tmp_path):
    write(tmp_path / "a.mcap", {"/fast": 100, "/slow": 10})
    text = answer("info", tmp_path / "a.mcap")
    for word in ("/fast", "100 Hz", "/slow", "Verdict: 2 of 2 streams good. This is by log times only"):
        assert word in text
    assert "This is by log times only. A few stamps were read to find the clock; --full reads all of them." in " ".join(
        text.split()
    )
    text = answer("info", tmp_path / "a.mcap", "--full")
    for word in ("float64 [2]", "arrival - stamp", "never change"):
        assert word in text
    assert text.rstrip().endswith("Verdict: 2 of 2 streams good.")
    found = json.loads(answer("info", tmp_path / "a.mcap", "--json", "--full"))
    assert found["format"] == "MCAP"
    assert found["sync"]["streams"]["/fast"]["rate_hz"] == pytest.approx(100)
    assert found["episodes"][0]["name"] == "a"


def test_info_lists_episodes(tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    write_lerobot(tmp_path / "set")
    text = answer("info", tmp_path / "set")
    assert "Episodes: 3" in text
    assert "episode-2" in text
    assert "push" in text


def test_strict_tells_by_its_exit_code():
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    place = shared("lerobot-v3-so101")  # whose joints never move
    assert robocache("info", place).exit_code == 0
    assert robocache("info", place, "--strict").exit_code == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["info", "none.mcap"], "robocache info: none.mcap: No such file or directory"),
        (["export", "none", "--rate", "50", "-o", "out"], "robocache export: none: No such file"),
        (["verify", "none"], "robocache verify: none"),
    ],
)
def test_what_cannot_be_done_is_a_sentence(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    result = robocache(*arguments)
    assert result.exit_code == 1
    assert words in result.stderr
    assert "Traceback" not in result.output


def test_wrong_usage():
    assert robocache("build", "x").exit_code == 2
    for wrong in (
        ("build", "x", "-o", "y", "--episodes", "daily"),
        ("build", "x", "-o", "y", "--time", "header"),
        ("build", "x", "-o", "y", "--rate", 0),
        ("info", "x", "--time", "header"),
        ("info", "x", "--rate", "nan"),
        ("info", "x", "--gap", -1),
        ("export", "x", "-o", "y", "--rate", 0),
        ("export", "x", "-o", "y", "--rate", -1),
        ("export", "x", "-o", "y", "--rate", 50, "--format", "zip"),
        ("export", "x", "-o", "y", "--rate", 50, "--max-gap", 0),
    ):
        assert robocache(*wrong).exit_code == 2, wrong


def test_what_is_no_recording_or_no_cache_is_told(tmp_path):
    write(tmp_path / "a.mcap", {"/fast": 100})
    assert robocache("info", tmp_path).exit_code == 0  # a folder of recordings: a row for each
    with pytest.raises(rc.FileError) as error:
        rc.open(tmp_path)
    assert f"take one of them, as {tmp_path / 'a.mcap'}, or all: robocache build {tmp_path} -o CACHE" in str(
        error.value
    )
    result = robocache("verify", tmp_path / "a.mcap")
    assert result.exit_code == 1
    assert "a.mcap: a file, not a cache" in result.stderr


def test_what_the_system_refuses_is_a_sentence(tmp_path):
    file = tmp_path / "a.mcap"
    write(file, {"/fast": 100})
    inside = file / "inside"  # a folder inside a file: refused to anybody
    for command in (
        ("info", file, "--write-recipe", inside),
        ("export", file, "--rate", 50, "--format", "safetensors", "-o", inside),
        ("demo", file, "--output", inside),
    ):
        result = robocache(*command)
        assert result.exit_code == 1, command
        assert result.stderr.startswith(f"robocache {command[0]}: {tmp_path}")
        assert ": Not a directory" in result.stderr
        assert "Errno" not in result.stderr


def test_what_is_next_is_said_where_something_was_built(tmp_path):
    mcap.Writer(tmp_path / "none.mcap").close()
    write(tmp_path / "a.mcap", {"/fast": 100})
    assert "Next:" not in answer("build", tmp_path / "none.mcap", "-o", tmp_path / "cache")
    assert "Next:" not in robocache("build", tmp_path / "x.mcap", "-o", tmp_path / "cache").output
    assert "Next:" in answer("build", tmp_path / "a.mcap", "-o", tmp_path / "cache")
    assert "Next:" in answer("build", tmp_path / "a.mcap", "-o", tmp_path / "cache")


def test_a_recipe_is_written_and_used(tmp_path):
    write(tmp_path / "a.mcap", {"/fast": 100, "/slow": 10})
    recipe = tmp_path / "recipe.toml"
    answer("info", tmp_path / "a.mcap", "--write-recipe", recipe)
    assert robocache("info", tmp_path / "a.mcap", "--write-recipe", recipe).exit_code == 1  # what was edited stays
    recipe.write_text(recipe.read_text().replace('name = "/fast"', 'name = "observation.state"'))
    answer("build", tmp_path / "a.mcap", "-o", tmp_path / "cache", "--recipe", recipe)
    cache = rc.Cache(tmp_path / "cache")
    assert set(cache.streams) == {"observation.state", "/slow"}
    np.testing.assert_array_equal(
        cache.episodes[0].streams["observation.state"].values, rc.open(tmp_path / "a.mcap").streams["/fast"].values
    )


def test_a_recipe_keeps_the_rate(tmp_path):
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file["action"], file["observations/qpos"] = np.ones((20, 3)), np.ones((20, 4))
    text = answer("info", tmp_path / "x.hdf5", "--rate", 30, "--write-recipe", tmp_path / "recipe.toml")
    assert "--rate 30" in " ".join(text.split())
    assert "rate = 30.0\n" in (tmp_path / "recipe.toml").read_text()
    answer("build", tmp_path / "x.hdf5", "-o", tmp_path / "cache", "--recipe", tmp_path / "recipe.toml")
    assert rc.Cache(tmp_path / "cache").episodes[0].duration == pytest.approx(19 / 30)


def test_messages_that_give_no_sample_are_told(tmp_path):
    file = tmp_path / "words.mcap"
    with mcap.Writer(file) as writer:
        says, some = writer.add_channel("/says", "json"), writer.add_channel("/some", "json")
        for k in range(20):
            writer.write(says, b'{"data": "hello"}', log_time=k * 10_000_000)
            writer.write(some, b'{"x": 1}' if k % 4 else b"{broken", log_time=k * 10_000_000)
    words = ("/some: 5 of 20 messages gave no sample", "no numbers were found in /says (20 messages of no type)")
    for command in (("info", file, "--full"), ("build", file, "-o", tmp_path / "cache")):
        text = " ".join(answer(*command).split())
        assert all(sentence in text for sentence in words)
    notes = json.loads(answer("build", file, "-o", tmp_path / "other", "--json"))["sources"][0]["notes"]
    assert set(words) <= set(notes)


def test_a_recording_without_samples(tmp_path):
    with mcap.Writer(tmp_path / "words.mcap") as writer:
        writer.write(writer.add_channel("/says", "json"), b'{"data": "hello"}', log_time=0)
    mcap.Writer(tmp_path / "none.mcap").close()
    for name, words in (("words", "there is no sample in it"), ("none", "there is no message in it")):
        file = tmp_path / f"{name}.mcap"
        assert words in answer("info", file, "--full")
        assert words in answer("build", file, "-o", tmp_path / "cache")
        text = answer("demo", file, "--output", tmp_path)
        assert "There are no samples: nothing to align" in text
        assert "matplotlib" not in text


def test_only_what_changed_is_read_again(tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        write(tmp_path / "in" / f"{name}.mcap", {"/fast": 100})
    build = ("build", tmp_path / "in", "-o", tmp_path / "cache", "--json")
    first = json.loads(answer(*build))
    assert [row["state"] for row in first["sources"]] == ["added", "added"]
    assert [row["samples"] for row in first["sources"]] == [200, 200]
    write(tmp_path / "in" / "b.mcap", {"/fast": 50})
    write(tmp_path / "in" / "c.mcap", {"/fast": 10})
    second = json.loads(answer(*build))
    assert [row["state"] for row in second["sources"]] == ["unchanged", "replaced", "added"]
    cache = rc.Cache(tmp_path / "cache")
    counts = {episode.name: len(episode.streams["/fast"].times) for episode in cache.episodes}
    assert counts == {"a": 200, "b": 100, "c": 20}
    third = json.loads(answer(*build, "--time", "log"))  # read in another way
    assert [row["state"] for row in third["sources"]] == ["replaced"] * 3


def test_one_that_cannot_be_read_does_not_stop_the_others(tmp_path):
    (tmp_path / "bad.mcap").write_bytes(b"no MCAP at all")
    write(tmp_path / "good.mcap", {"/fast": 100})
    result = robocache("build", tmp_path / "bad.mcap", tmp_path / "good.mcap", "-o", tmp_path / "cache")
    assert result.exit_code == 1
    assert "bad.mcap: not a known format" in result.stderr
    assert [episode.name for episode in rc.Cache(tmp_path / "cache").episodes] == ["good"]


def test_episodes_by_gap(tmp_path):
    with mcap.Writer(tmp_path / "long.mcap") as writer:
        channel = writer.add_channel("/a", "json", writer.add_schema("a", "jsonschema", "{}"))
        for k in [*range(50), *range(2000, 2030)]:
            writer.write(channel, json.dumps({"x": k}).encode(), log_time=k * 10_000_000)
    answer("build", tmp_path / "long.mcap", "-o", tmp_path / "cache", "--episodes", "by-gap", "--gap", "2")
    cache = rc.Cache(tmp_path / "cache")
    assert [len(episode.streams["/a"].times) for episode in cache.episodes] == [50, 30]
    assert cache.episodes[1].streams["/a"].values[0].tolist() == [2000]


def test_episodes_by_a_topic_that_is_not_taken(tmp_path):
    with mcap.Writer(tmp_path / "long.mcap") as writer:
        data = writer.add_channel("/a", "json", writer.add_schema("a", "jsonschema", "{}"))
        marks = writer.add_channel("/on", "json", writer.add_schema("on", "jsonschema", "{}"))
        for k in range(100):
            if k in (20, 50, 80):
                writer.write(marks, json.dumps({"on": k != 50}).encode(), log_time=k * 10_000_000)
            writer.write(data, json.dumps({"x": k}).encode(), log_time=k * 10_000_000)
    (tmp_path / "recipe.toml").write_text(
        '[streams."/a"]\nname = "action"\n[episodes]\nby = "topic"\ntopic = "/on"\n[task]\nname = "go"\n'
    )
    answer("build", tmp_path / "long.mcap", "-o", tmp_path / "cache", "--recipe", tmp_path / "recipe.toml")
    cache = rc.Cache(tmp_path / "cache")
    assert set(cache.streams) == {"action"}
    assert [(len(e.streams["action"].times), e.task) for e in cache.episodes] == [(30, "go"), (20, "go")]


def test_verify_says_what_is_wrong(tmp_path):
    write(tmp_path / "a.mcap", {"/fast": 100})
    answer("build", tmp_path / "a.mcap", "-o", tmp_path / "cache")
    assert "all is well" in answer("verify", tmp_path / "cache")
    assert json.loads(answer("verify", tmp_path / "cache", "--json"))["ok"] is True
    shard = next((tmp_path / "cache").rglob("*.safetensors"))
    damaged = bytearray(shard.read_bytes())
    damaged[len(damaged) * 2 // 3] ^= 255  # a sample: the statistics lie behind them
    shard.write_bytes(damaged)
    result = robocache("verify", tmp_path / "cache")
    assert result.exit_code == 3
    assert shard.name[:10] in result.stdout
    before = sorted(tmp_path.rglob("*"))
    for options in (["--dry-run"], ["--repair", "--dry-run"]):
        plan = robocache("verify", tmp_path / "cache", *options)
        assert plan.exit_code == 3
        assert "Would be moved to quarantine" in plan.stdout
        assert sorted(tmp_path.rglob("*")) == before
    assert robocache("verify", tmp_path / "cache", "--repair").exit_code == 0
    answer("build", tmp_path / "a.mcap", "-o", tmp_path / "cache")
    assert "all is well" in answer("verify", tmp_path / "cache")
    assert len(rc.Cache(tmp_path / "cache").episodes) == 1


@pytest.fixture
def cached(tmp_path):
    write(tmp_path / "a.mcap", {"/fast": 100, "/slow": 10})
    answer("build", tmp_path / "a.mcap", "-o", tmp_path / "cache")
    return tmp_path / "cache"


def test_export_lerobot_opens_again(cached, tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    found = json.loads(answer("export", cached, "--rate", 50, "-o", tmp_path / "out", "--json"))
    assert (found["episodes"], found["frames"]) == (1, 96)
    recording = rc.open(tmp_path / "out")
    assert recording.format == "LeRobot v3.0"
    streams = recording.streams
    assert list(streams) == ["fast", "valid.fast", "slow", "valid.slow"]
    source = rc.Cache(cached).episodes[0].streams
    truth = rc.align(dict(source), rc.Timeline.over(dict(source), rate=50))
    assert streams["fast"].values.dtype == np.float32  # as models have it
    np.testing.assert_array_equal(streams["fast"].values, np.float32(truth["/fast"].values))
    np.testing.assert_array_equal(streams["slow"].values, np.float32(truth["/slow"].values))
    assert streams["valid.fast"].values.all()
    again = robocache("export", cached, "--rate", 50, "-o", tmp_path / "out")
    assert again.exit_code == 1
    assert "exists already" in again.stderr


def test_statistics_are_of_what_is_real(tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    t = np.arange(200) * 10_000_000
    values = np.where(np.arange(200) < 150, 1.0, 5.0)[:, None]
    gone = (np.arange(200) < 60) | (np.arange(200) > 140)  # a gap, whose ends are repeated inside
    with rc.CacheWriter(tmp_path / "cache") as writer:
        writer.add({"a": rc.Stream(values[gone], t[gone]), "b": rc.Stream(values, t)}, name="x")
    answer("export", tmp_path / "cache", "--rate", 100, "-o", tmp_path / "out", "--max-gap", 0.1)
    stats = json.loads((tmp_path / "out/meta/stats.json").read_text())
    assert stats["a"]["mean"][0] == pytest.approx(values[gone].mean())
    assert stats["b"]["mean"][0] == pytest.approx(values.mean())


def test_pictures_of_the_whole_video_are_in_its_statistics(tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pytest.importorskip("av", reason="PyAV is not installed")
    images = np.broadcast_to(np.arange(250, dtype=np.uint8)[:, None, None, None], (250, 16, 16, 3))
    from robocache._export.lerobot import Feature, LeRobotWriter

    features = {"q": Feature("float32", (1,)), "camera": Feature("video", (16, 16, 3))}
    with LeRobotWriter(tmp_path / "set", fps=50, features=features) as writer:
        writer.add({"q": np.zeros((250, 1))}, "look", {"camera": iter(images)})
    mean = np.ravel(json.loads((tmp_path / "set/meta/stats.json").read_text())["camera"]["mean"])
    np.testing.assert_allclose(mean, images.mean() / 255, atol=0.01)


def test_folders_below_a_folder_are_read(tmp_path):
    (tmp_path / "runs/day/late").mkdir(parents=True)
    for place in ("runs/a.mcap", "runs/day/b.mcap", "runs/day/late/a.mcap"):
        write(tmp_path / place, {"/fast": 100})
    answer("build", tmp_path / "runs", "-o", tmp_path / "cache")
    cache = rc.Cache(tmp_path / "cache")
    assert [episode.name for episode in cache.episodes] == ["a", "b", "a"]
    with pytest.raises(ValueError, match='2 episodes are named "a"; take them by number: 0, 2'):
        cache.align(episodes=["a"], rate=50)
    assert cache.episodes["b"].index == 1


def test_a_cache_is_not_built_into_itself(tmp_path):
    write(tmp_path / "a.mcap", {"/fast": 100})
    answer("build", tmp_path / "a.mcap", "-o", tmp_path / "cache")
    result = robocache("build", tmp_path / "cache", "-o", tmp_path / "cache")
    assert result.exit_code == 1
    assert "is the cache itself" in result.stderr
    assert len(rc.Cache(tmp_path / "cache").episodes) == 1


def test_a_damaged_cache_is_not_added_to(tmp_path):
    write(tmp_path / "a.mcap", {"/fast": 100})
    answer("build", tmp_path / "a.mcap", "-o", tmp_path / "cache")
    next((tmp_path / "cache/shards").iterdir()).unlink()
    result = robocache("build", tmp_path / "a.mcap", "-o", tmp_path / "cache")
    assert result.exit_code == 1
    assert "is missing; `robocache verify --repair` keeps what is whole" in result.stderr


def test_an_empty_episode_does_not_stop_an_export(tmp_path):
    t = np.arange(100) * 10_000_000
    with rc.CacheWriter(tmp_path / "cache") as writer:
        writer.add({}, name="cut-off")
        writer.add({"a": rc.Stream(np.sin(t * 1e-9)[:, None], t)}, name="x")
    export = ("export", tmp_path / "cache", "--rate", 50, "--format", "safetensors", "--json")
    found = json.loads(answer(*export, "-o", tmp_path / "out"))
    assert found["episodes"] == 1
    assert found["notes"] == ['episode cut-off is left out: it has no stream "a"']


def test_episodes_that_lack_a_stream(tmp_path):
    t = np.arange(100) * 10_000_000
    one, other = (rc.Stream(np.sin(t * 1e-9 + k)[:, None], t) for k in range(2))
    with rc.CacheWriter(tmp_path / "cache") as writer:
        writer.add({"a": one, "b": other}, name="x")
        writer.add({"b": other}, name="y")
        writer.add({"c": other}, name="z")
    export = ("export", tmp_path / "cache", "--rate", 50, "--format", "safetensors", "--json")
    result = robocache(*export, "-o", tmp_path / "out")
    assert result.exit_code == 1
    assert "no stream is in every episode; name some with --streams: a, b, c" in result.stderr
    found = json.loads(answer(*export, "-o", tmp_path / "out", "--streams", "b"))
    assert found["episodes"] == 2
    assert found["notes"] == ['episode z is left out: it has no stream "b"']


def test_a_sensor_that_died_is_told(tmp_path):
    t = np.arange(1000) * 10_000_000
    alive, dead = rc.Stream(np.sin(t * 1e-9)[:, None], t), rc.Stream(np.cos(t[:300] * 1e-9)[:, None], t[:300])
    with rc.CacheWriter(tmp_path / "cache") as writer:
        writer.add({"alive": alive, "dead": dead}, name="x")
    export = ("export", tmp_path / "cache", "--rate", 50, "--format", "safetensors", "--json")
    found = json.loads(answer(*export, "-o", tmp_path / "out"))
    assert found["notes"] == [
        'of episode x, 30 % are exported: "alive" begins last and "dead" ends first; --streams leaves one out'
    ]
    assert json.loads(answer(*export, "-o", tmp_path / "whole", "--streams", "alive"))["notes"] == []


@pytest.fixture
def gappy(tmp_path):
    """Two seconds at 100 Hz; from 0.5 s on, /a is silent for one."""
    with mcap.Writer(tmp_path / "gap.mcap") as writer:
        some, other = (writer.add_channel(topic, "json") for topic in ("/a", "/b"))
        for k in range(200):
            for channel in [other] if 50 <= k < 150 else [some, other]:
                writer.write(channel, json.dumps({"x": k / 7}).encode(), log_time=k * 10_000_000)
    return tmp_path / "gap.mcap"


def test_nothing_is_valid_inside_a_gap(gappy, tmp_path):
    numpy = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    answer("info", gappy, "--write-recipe", tmp_path / "recipe.toml")
    answer("build", gappy, "-o", tmp_path / "cache", "--recipe", tmp_path / "recipe.toml")
    export = ("--rate", 50, "--format", "safetensors", "-o")
    answer("export", tmp_path / "cache", *export, tmp_path / "by-recipe")
    answer("export", gappy, *export, tmp_path / "by-option", "--max-gap", 0.5)
    answer("export", tmp_path / "cache", *export, tmp_path / "long", "--max-gap", 5)
    valid = {}
    for name in ("by-recipe", "by-option", "long"):
        tensors = numpy.load_file(tmp_path / name / "episode-000000.safetensors")
        assert tensors["/b.valid"].all()
        valid[name] = int((~tensors["/a.valid"]).sum())
    assert valid == {"by-recipe": 50, "by-option": 50, "long": 0}
    answer("export", tmp_path / "cache", "--rate", 50, "--format", "mcap", "-o", tmp_path / "mcap")
    streams = rc.open(tmp_path / "mcap" / "episode-000000.mcap").streams
    assert (len(streams["/a"]), len(streams["/b"])) == (50, 100)


def test_rows_that_are_not_finite_are_not_valid(tmp_path):
    numpy = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    t = np.arange(100) * 20_000_000
    values = np.stack([np.sin(t * 1e-9), np.cos(t * 1e-9)], axis=1)
    values[40:60, 1] = np.nan
    values[70, 0] = np.inf
    with rc.CacheWriter(tmp_path / "cache") as writer:
        for name in ("x", "y"):
            writer.add({"a": rc.Stream(values, t, channels=["s", "c"])}, name=name)
    export = ("export", tmp_path / "cache", "--rate", 50, "--json", "--format")
    found = json.loads(answer(*export, "safetensors", "-o", tmp_path / "out"))
    assert found["notes"] == ['stream "a": 42 rows not finite, so not valid (s, c)']
    tensors = numpy.load_file(tmp_path / "out" / "episode-000001.safetensors")
    np.testing.assert_array_equal(np.flatnonzero(~tensors["a.valid"]), [*range(40, 60), 70])
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    found = json.loads(answer(*export, "lerobot", "-o", tmp_path / "set"))
    assert any("42 rows not finite" in note for note in found["notes"])
    assert rc.open(tmp_path / "set").episodes[0].streams["valid.a"].values.sum() == 79
    stats = json.loads((tmp_path / "set" / "meta" / "stats.json").read_text())["a"]
    real = values[np.isfinite(values).all(axis=1)]
    np.testing.assert_allclose(stats["mean"], real.mean(axis=0))
    np.testing.assert_allclose(stats["std"], real.std(axis=0))
    assert stats["count"] == [158]


def test_a_stream_that_was_widened_is_exported_with_all_its_channels(tmp_path):
    numpy = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    t = np.arange(100) * 20_000_000
    with rc.CacheWriter(tmp_path / "cache", group_bytes=1) as writer:  # a group for each
        for channels in ("ab", "cba", "b"):
            values = np.stack([np.sin(t * 1e-9) + ord(channel) for channel in channels], axis=1)
            writer.add({"j": rc.Stream(values, t, channels=list(channels))}, name=channels)
    cache = rc.Cache(tmp_path / "cache")
    truth = np.sin(t * 1e-9)[:, None] + [ord(channel) for channel in "abc"]
    expected = [np.where([c in had for c in "abc"], truth, np.nan) for had in ("ab", "cba", "b")]
    np.testing.assert_allclose(cache.align(rate=50)["j"].values, expected)
    for k in range(3):
        np.testing.assert_allclose(cache.align(k, rate=50)["j"].values[0], expected[k])
    export = ("export", tmp_path / "cache", "--rate", 50, "--json", "--format")
    told = 'stream "j": 200 rows not finite, so not valid (c, a)'
    for format in ("safetensors", "mcap", "lerobot"):
        if format == "lerobot":
            pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        assert told in json.loads(answer(*export, format, "-o", tmp_path / format))["notes"]
    for k in range(3):
        tensors = numpy.load_file(tmp_path / "safetensors" / f"episode-{k:06d}.safetensors")
        written = rc.open(tmp_path / "mcap" / f"episode-{k:06d}.mcap").streams["/j"]
        row = rc.open(tmp_path / "lerobot").episodes[k].streams
        assert (tensors["j.valid"].all(), row["valid.j"].values.all()) == (k == 1, k == 1)
        assert row["j"].channels == ("a", "b", "c")
        for found in (tensors["j"], row["j"].values):
            np.testing.assert_allclose(found, expected[k])
        by_name = dict(zip(written.channels, written.values.T, strict=True))
        assert set(by_name) <= set("abc")
        for channel, column in zip("abc", expected[k].T, strict=True):
            np.testing.assert_allclose(by_name.get(channel, np.full(100, np.nan)), column)


def test_images_of_two_sizes(tmp_path):
    """Each episode of a cache keeps its size; a LeRobot video has one."""
    numpy = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    t = np.arange(5) * 100_000_000
    with rc.CacheWriter(tmp_path / "cache") as writer:
        for name, (height, width) in {"small": (16, 32), "large": (32, 48)}.items():
            about = {"encoding": "rgb8", "height": f"{height}", "width": f"{width}", "step": f"{3 * width}"}
            lengths = [3 * width * height] * 5
            rows = np.zeros(5 * lengths[0], np.uint8)
            image = batch("/image", rows, t, lengths=lengths, ragged=True, shape=(), metadata=about)
            writer.add(made(image, batch("/joints", np.arange(5.0)[:, None], t)), name=name)
    export = ("export", tmp_path / "cache", "--rate", 10, "-o")
    answer(*export, tmp_path / "out", "--format", "safetensors")
    for k, height in enumerate(("16", "32")):
        file = tmp_path / "out" / f"episode-{k:06d}.safetensors"
        header = file.read_bytes()[8 : 8 + int.from_bytes(file.read_bytes()[:8], "little")]
        assert json.loads(json.loads(header)["__metadata__"]["streams"])["/image"]["height"] == height
        assert len(numpy.load_file(file)["/image"]) == 5 * 3 * 16 * 32 * (1, 3)[k]
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pytest.importorskip("av", reason="PyAV is not installed")
    assert robocache(*export, tmp_path / "set").exit_code == 0
    assert [len(episode.streams["joints"]) for episode in rc.open(tmp_path / "set").episodes] == [5]
    found = rc.export(tmp_path / "cache", tmp_path / "again", rate=10)
    told = 'episode large is left out: an image of stream "/image" is 32 x 48 x 3, the first was 16 x 32 x 3; '
    assert [note for note in found["notes"] if note.startswith(told)]
    answer(*export, tmp_path / "joints", "--streams", "/joints")
    assert len(rc.open(tmp_path / "joints").episodes) == 2


def test_what_is_held_or_written_on_change_does_not_bound_an_export(tmp_path):
    numpy = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    second = 1_000_000_000
    t, few = np.arange(1000) * 10_000_000, np.array([2, 4, 6]) * second
    joints = rc.Stream(np.sin(t * 1e-9)[:, None], t)
    mode = rc.Stream(np.array([[1], [2], [3]]), few)
    camera = rc.Stream([np.zeros(5, np.uint8)] * 600, t[200:800])
    for name, streams, spans in (
        ("all", {"joints": joints, "mode": mode, "camera": camera}, (0, 9.98)),
        ("held", {"mode": mode, "camera": camera}, (2, 7.98)),
        ("change", {"mode": mode}, (2, 6)),
    ):
        with rc.CacheWriter(tmp_path / f"{name}.cache") as writer:
            writer.add(streams)
        export = ("export", tmp_path / f"{name}.cache", "--rate", 50, "--format", "safetensors", "--json")
        notes = json.loads(answer(*export, "-o", tmp_path / name))["notes"]
        tensors = numpy.load_file(tmp_path / name / "episode-000000.safetensors")
        times = tensors["times"] * 1e-9
        assert (times[0], times[-1]) == pytest.approx(spans)
        np.testing.assert_array_equal(tensors["mode.valid"], times >= 2)  # its last sample holds
        if name == "all":
            np.testing.assert_array_equal(tensors["camera.valid"], (times >= 2) & (times <= 7.99))
            assert tensors["mode"][times > 6].tolist() == [[3]] * 199
            assert 'stream "camera" is valid in 60 % of the rows: it has gaps, begins late or ends early' in notes
    export = ("export", tmp_path / "all.cache", "--rate", 50, "--format", "safetensors", "--max-gap", 3)
    answer(*export, "-o", tmp_path / "gap")
    tensors = numpy.load_file(tmp_path / "gap" / "episode-000000.safetensors")
    times = tensors["times"] * 1e-9
    np.testing.assert_array_equal(tensors["mode.valid"], (times >= 2) & (times <= 9))


def test_export_safetensors_opens_with_safetensors(cached, tmp_path):
    numpy = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    answer("export", cached, "--rate", 20, "-o", tmp_path / "out", "--format", "safetensors", "--streams", "/fast")
    (file,) = (tmp_path / "out").iterdir()
    tensors = numpy.load_file(file)
    assert set(tensors) == {"times", "/fast", "/fast.valid", "/fast.age"}
    assert tensors["/fast"].shape == (40, 2)
    np.testing.assert_array_equal(np.diff(tensors["times"]), 50_000_000)


def test_export_mcap_opens_again(cached, tmp_path):
    answer("export", cached, "--rate", 20, "-o", tmp_path / "out", "--format", "mcap")
    recording = rc.open(tmp_path / "out" / "episode-000000.mcap")
    assert recording.streams["/fast"].channels == ("x", "y.z")
    assert len(recording.streams["/slow"]) == 39
    assert recording.streams["/fast"].values[1, 0] == 5


def test_export_of_what_is_not_there(cached, tmp_path):
    result = robocache("export", cached, "--rate", 20, "-o", tmp_path / "out", "--streams", "/fats")
    assert result.exit_code == 1
    assert 'there is no stream "/fats"; near names: /fast' in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_video_goes_through(tmp_path):
    """LeRobot in, cache, LeRobot out at another rate: frames are those that were held."""
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pytest.importorskip("av", reason="PyAV is not installed")
    from robocache._export.lerobot import Feature, LeRobotWriter

    features = {"action": Feature("float32", (1,)), "observation.images.wrist": Feature("video", (32, 48, 3))}
    with LeRobotWriter(tmp_path / "in", fps=10, features=features) as writer:
        for length in (12, 7):
            frames = (np.full((32, 48, 3), 15 * k + 20, np.uint8) for k in range(length))
            writer.add({"action": np.arange(length)[:, None]}, "look", {"observation.images.wrist": frames})
    answer("build", tmp_path / "in", "-o", tmp_path / "cache")
    answer("export", tmp_path / "cache", "--rate", 20, "-o", tmp_path / "out")
    recording = rc.open(tmp_path / "out")
    assert [len(episode.streams["action"]) for episode in recording.episodes] == [23, 13]
    frames = recording.episodes[1].streams["observation.images.wrist"].samples
    for k in range(13):
        assert abs(frames[k].mean() - (15 * (k // 2) + 20)) < 4
    assert recording.episodes[0].task == "look"


def test_a_cache_hands_out_the_frames_of_videos(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pytest.importorskip("av", reason="PyAV is not installed")
    from robocache._export.lerobot import Feature, LeRobotWriter

    features = {"action": Feature("float32", (1,)), "camera": Feature("video", (32, 48, 3))}
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("one", "two")):
        with LeRobotWriter(tmp_path / name, fps=10 + number, features=features) as writer:
            frames = (np.full((32, 48, 3), 15 * k + 20 + 60 * number, np.uint8) for k in range(8))
            writer.add({"action": np.arange(8)[:, None]}, "look", {"camera": frames})
        answer("build", name, "-o", "cache")  # the second makes file and fps of the stream vary
        (tmp_path / "elsewhere").mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / "elsewhere")  # what a cache names does not depend on where it is read
        cache = rc.Cache(tmp_path / "cache")
        for episode in range(number + 1):
            stream = cache.episodes[episode].streams["camera"]
            assert len(stream.samples) == 8
            assert stream.samples[5].shape == (32, 48, 3)
            assert abs(stream.samples[5].mean() - (95 + 60 * episode)) < 4
        opened = rc.open(tmp_path / "cache").episodes[number].streams["camera"].samples
        assert abs(opened[2].mean() - (50 + 60 * number)) < 4
        monkeypatch.chdir(tmp_path)
    found = json.loads(answer("export", "cache", "--rate", 10, "-o", "out", "--json"))
    assert found["episodes"] == 2
    (tmp_path / "two").rename(tmp_path / "three")
    stream = rc.Cache("cache").episodes[1].streams["camera"]
    with pytest.raises(rc.FileError, match=r'the frames of "camera".*has it moved.*robocache build'):
        stream.samples[0]
    assert stream.values.shape == (8,)


def test_a_data_set_and_its_cache_are_moved_together(tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pytest.importorskip("av", reason="PyAV is not installed")
    from robocache._export.lerobot import Feature, LeRobotWriter

    features = {"action": Feature("float32", (1,)), "camera": Feature("video", (32, 48, 3))}
    (tmp_path / "here/caches").mkdir(parents=True)
    with LeRobotWriter(tmp_path / "here/set", fps=10, features=features) as writer:
        frames = (np.full((32, 48, 3), 15 * k + 20, np.uint8) for k in range(8))
        writer.add({"action": np.arange(8)[:, None]}, "look", {"camera": frames})
    answer("build", tmp_path / "here/set", "-o", tmp_path / "here/caches/one")
    (tmp_path / "here").rename(tmp_path / "there")
    cache = rc.Cache(tmp_path / "there/caches/one")
    for place in (cache.episodes[0], rc.open(tmp_path / "there/caches/one").episodes[0]):
        assert abs(place.streams["camera"].samples[5].mean() - 95) < 4
    answer("export", cache.path, "--rate", 10, "-o", tmp_path / "out")
    with rc.CacheWriter(tmp_path / "copy") as writer:
        writer.add(cache)
    tmp_path = tmp_path.rename(tmp_path.with_name("moved"))
    assert abs(rc.Cache(tmp_path / "copy").episodes[0].streams["camera"].samples[5].mean() - 95) < 4
