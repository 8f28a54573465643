"""HDF5: robomimic's layout, ALOHA's, times beside the data, and a mapping."""

import contextlib
import json

import numpy as np
import pytest

import robocache as rc

h5py = pytest.importorskip("h5py", reason="h5py is not installed")


def test_robomimic(tmp_path):
    with h5py.File(tmp_path / "demos.bin", "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_name": "Lift", "env_kwargs": {"control_freq": 25}})
        for k, length in ((10, 4), (2, 6)):
            demo = data.create_group(f"demo_{k}")
            demo["actions"] = np.full((length, 7), k, np.float32)
            demo["obs/eef_pos"] = np.zeros((length, 3))
            demo["obs/actions"] = np.zeros((length, 1))
            demo["next_obs/eef_pos"] = np.zeros((length, 3))
            demo["dones"] = np.arange(length)
    recording = rc.open(tmp_path / "demos.bin")
    assert recording.format == "HDF5 (robomimic)"
    assert [(e.name, e.task, e.end) for e in recording.episodes] == [
        ("demo_2", "Lift", 200_000_000),
        ("demo_10", "Lift", 120_000_000),
    ]
    streams = recording.episodes[0].streams
    assert sorted(streams) == ["actions", "dones", "eef_pos", "obs/actions"]
    assert streams["actions"].values.tolist() == [[2.0] * 7] * 6
    assert streams["actions"].times[1] == 40_000_000
    assert streams["dones"].method == "hold"
    assert recording.notes == []
    assert rc.open(tmp_path / "demos.bin", rate=10).episodes[0].end == 500_000_000


def test_aloha_with_images_and_with_padded_jpegs(tmp_path):
    path = tmp_path / "episode_0.hdf5"
    sizes = [3, 5, 1, 4]
    with h5py.File(path, "w") as file:
        file["action"] = np.arange(56, dtype=np.float32).reshape(4, 14)
        file["observations/qpos"] = np.zeros((4, 14))
        file["observations/images/high"] = np.zeros((4, 8, 6, 3), np.uint8)
        padded = np.zeros((4, 6), np.uint8)
        for row, size in enumerate(sizes):
            padded[row, :size] = row + 1
        file["observations/images/low"] = padded
        file["compress_len"] = np.array([[0] * 4, sizes], np.float64)
    recording = rc.open(path)
    assert recording.format == "HDF5 (ALOHA)"
    assert recording.notes == ["no times in the file: 50 Hz assumed, as ALOHA records; rate= says otherwise"]
    assert recording.streams["action"].times.tolist() == [0, 20_000_000, 40_000_000, 60_000_000]
    assert recording.streams["images/high"].values.shape == (4, 8, 6, 3)
    low = recording.streams["images/low"]
    stored = [low.samples.as_stored(k).tolist() for k in range(4)]
    assert stored == [[k + 1] * size for k, size in enumerate(sizes)]
    assert low.info.metadata["encoding"] == "jpeg"


def write_plain(path):
    with h5py.File(path, "w") as file:
        file["robot/q"] = np.arange(6.0).reshape(3, 2)
        file["robot/t"] = np.array([10.0, 10.5, 11.0])
        file["robot/hand/force"] = np.arange(3.0)
        file["camera/stamps"] = np.array([5, 6], np.int64)
        file["camera/seen"] = np.array([7, 9], np.int64)
        file["camera/features"] = np.ones((2, 4), ">f4")
        file["alone"] = np.ones((9, 2))
        file["name"] = "text"


def test_times_beside_the_data_are_found(tmp_path):
    write_plain(tmp_path / "log.h5")
    recording = rc.open(tmp_path / "log.h5")
    assert sorted(recording.streams) == ["camera/features", "camera/seen", "robot/hand/force", "robot/q"]
    assert recording.streams["robot/q"].times.tolist() == [10_000_000_000, 10_500_000_000, 11_000_000_000]
    assert recording.streams["robot/hand/force"].times[2] == 11_000_000_000
    assert recording.streams["camera/features"].values.dtype == np.dtype("float32")
    assert recording.episodes[0].start == 5


def test_a_mapping_names_streams(tmp_path):
    write_plain(tmp_path / "log.h5")
    mapping = {
        "joints": "/robot/q",
        "camera": {
            "values": "camera/features",
            "times": "/camera/stamps",
            "arrivals": "/camera/seen",
            "method": "nearest",
        },
        "other": {"values": "/alone", "rate": 100, "channels": ["a", "b"]},
    }
    streams = rc.open(tmp_path / "log.h5", mapping=mapping).streams
    assert streams["joints"].times[0] == 10_000_000_000
    assert streams["camera"].arrivals.tolist() == [7, 9]
    assert streams["camera"].method == "nearest"
    assert streams["other"].times[1] == 10_000_000
    assert streams["other"].channels == ("a", "b")
    for wrong, words in (
        ({"x": "/robot/qq"}, 'there is no data set "/robot/qq"; near names: /robot/q'),
        ({"x": {"values": "/alone"}}, "/alone has no times beside it"),
        ({"x": {"values": "/alone", "time": "/t"}}, 'mapping has no key "time"; near names: times'),
        ({"x": {"times": "/robot/t"}}, '"values" is missing'),
        ({"x": {"values": "/alone", "rate": 5, "channels": ["a"]}}, "1 channels are named, but /alone has 2"),
    ):
        with pytest.raises(ValueError, match=words):
            rc.open(tmp_path / "log.h5", mapping=wrong)
    with pytest.raises(rc.FileError, match=r"has 9 samples, but /robot/t is \[3\]"):
        rc.open(tmp_path / "log.h5", mapping={"x": {"values": "/alone", "times": "/robot/t"}})


def test_an_unknown_layout_says_what_is_there(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a/b"] = np.ones((4, 2))
        file["loop"] = h5py.SoftLink("/")
        file["out"] = h5py.ExternalLink("/etc/passwd", "/")
    with pytest.raises(rc.FileError, match=r"neither robomimic's.*mapping=.*it holds /a/b float64 \[4, 2\]"):
        rc.open(tmp_path / "x.h5")


def test_damaged_files(tmp_path):
    write_plain(tmp_path / "log.h5")
    whole = (tmp_path / "log.h5").read_bytes()
    for size in (20, 100, 900, len(whole) // 2):
        (tmp_path / "cut.h5").write_bytes(whole[:size])
        with pytest.raises(rc.FileError, match=r"cut\.h5"):
            dict(rc.open(tmp_path / "cut.h5").streams.items())
    random = np.random.default_rng(1)
    for _ in range(60):
        damaged = bytearray(whole)
        for at in random.integers(8, len(whole), 6):
            damaged[at] = random.integers(256)
        (tmp_path / "damaged.h5").write_bytes(damaged)
        with contextlib.suppress(rc.FileError, ValueError):
            dict(rc.open(tmp_path / "damaged.h5").streams.items())


def test_log_times_are_refused(tmp_path):
    write_plain(tmp_path / "log.h5")
    with pytest.raises(ValueError, match="no log times"):
        rc.open(tmp_path / "log.h5", time="log")


@pytest.mark.parametrize(("unit", "nanoseconds"), [("s", 10**9), ("ms", 10**6), ("us", 10**3), ("ns", 1)])
def test_integer_times_tell_their_unit(tmp_path, unit, nanoseconds):
    path = tmp_path / "log.h5"
    true = 1_700_000_000_000_000_000 + np.arange(5) * 10**9
    with h5py.File(path, "w") as file:
        file["times"], file["values"] = true // nanoseconds, np.arange(5.0)
        file["uptime/times"], file["uptime/values"] = np.arange(5) * (20_000_000 // nanoseconds), np.arange(5.0)
    recording = rc.open(path)
    assert recording.streams["values"].times.tolist() == true.tolist()
    told = [note for note in recording.notes if "/times: integer times are taken as " + unit in note]
    assert len(told) == (unit != "ns")
    mapping = {"v": {"values": "/uptime/values", "times": "/uptime/times", "unit": unit}}
    if unit != "s":
        assert rc.open(path, mapping=mapping).streams["v"].times.tolist() == (np.arange(5) * 20_000_000).tolist()
    with pytest.raises(ValueError, match='there is no unit "minutes"'):
        rc.open(path, mapping={"v": mapping["v"] | {"unit": "minutes"}})


def test_integer_times_that_are_too_large(tmp_path):
    path = tmp_path / "log.h5"
    with h5py.File(path, "w") as file:
        file["times"], file["values"] = np.array([1, 2**63], np.uint64), np.arange(2.0)
    with pytest.raises(rc.FileError, match="past 2\\^62"):
        rc.open(path).streams["values"].times  # noqa: B018


def test_links_that_leave_the_file_are_left_out(tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["data/times"], file["data/values"] = np.arange(3.0), np.arange(3.0)
    path = tmp_path / "log.h5"
    with h5py.File(path, "w") as file:
        file["own/times"], file["own/values"] = np.arange(3.0), np.arange(3.0)
        file["straight"] = h5py.ExternalLink("other.h5", "/data")
        file["through"] = h5py.SoftLink("/straight")
        file["deeper"] = h5py.SoftLink("/through/values")
        file["inside"] = h5py.SoftLink("own")
        file["loop"] = h5py.SoftLink("/loop")
        file["nowhere"] = h5py.SoftLink("/absent")
    recording = rc.open(path)
    assert all(name.startswith(("own", "inside")) for name in recording.streams)
    for name in ("straight", "through", "deeper"):
        assert f"/{name} lies in another file and is left out" in recording.notes


def test_a_recipe_may_say_the_times_of_one_stream(tmp_path):
    path, recipe = tmp_path / "log.h5", tmp_path / "recipe.toml"
    with h5py.File(path, "w") as file:
        file["a/values"], file["a/clock"] = np.arange(3.0), np.array([0, 10, 20])
        file["b/values"], file["b/times"] = np.arange(4.0), np.arange(4) / 100
    recipe.write_text(
        '[streams.a]\ntopic = "a/values"\ntimes = "a/clock"\nunit = "ms"\n[streams.b]\ntopic = "b/values"\n'
    )
    from robocache._cache.recipe import load_recipe

    cooked = load_recipe(recipe)
    streams = cooked.apply(cooked.open(path)).streams
    assert streams["a"].times.tolist() == [0, 10_000_000, 20_000_000]
    assert streams["b"].times.tolist() == [0, 10_000_000, 20_000_000, 30_000_000]
