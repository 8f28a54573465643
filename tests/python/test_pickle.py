"""Recordings and episodes travel to spawned workers: they are pickled by what they were opened with."""

import copy
import io
import multiprocessing
import pickle

import numpy as np
import pytest
from recordings import write_lerobot
from test_mcap_recording import write

import robocache as rc
from robocache._cache.recipe import load_recipe
from robocache._cache.split import split


def contents(recording):
    return [
        {name: (s.values.tolist(), s.times.tolist(), s.channels) for name, s in episode.streams.items()}
        for episode in recording.episodes
    ]


def mcap(folder):
    write(folder / "a.mcap", {"/fast": 100, "/slow": 10})
    return rc.open(folder / "a.mcap", "log")


def in_memory(folder):
    mcap(folder)
    return rc.open((folder / "a.mcap").read_bytes())


def in_a_view(folder):
    mcap(folder)
    return rc.open(memoryview((folder / "a.mcap").read_bytes()))


def lerobot(folder):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    write_lerobot(folder / "set")
    return rc.open(folder / "set")


def hdf5(folder):
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    with h5py.File(folder / "a.h5", "w") as file:
        file["q"] = np.arange(12.0).reshape(6, 2)
    return rc.open(folder / "a.h5", rate=10, mapping={"joints": "q"})


def rosbag2(folder):
    mcap(folder)
    bag = folder / "bag"
    bag.mkdir()
    (folder / "a.mcap").rename(bag / "bag_0.mcap")
    (bag / "metadata.yaml").write_text(
        "rosbag2_bagfile_information:\n  version: 5\n  storage_identifier: mcap\n"
        "  relative_file_paths:\n    - bag_0.mcap\n"
    )
    pytest.importorskip("rosbags", reason="rosbags is not installed")
    return rc.open(bag)


def cache(folder):
    with rc.CacheWriter(folder / "cache") as writer:
        writer.add(mcap(folder))
    return rc.open(folder / "cache")


def cooked(folder):
    (folder / "r.toml").write_text('[streams."/fast"]\nname = "action"\n[task]\nname = "go"\n')
    return load_recipe(folder / "r.toml").apply(split(mcap(folder), "gap", 0.5))


SOURCES = [mcap, in_memory, in_a_view, lerobot, hdf5, rosbag2, cache, cooked]


@pytest.mark.parametrize("source", SOURCES, ids=lambda f: f.__name__)
def test_recordings_and_episodes_are_pickled(tmp_path, source):
    recording = source(tmp_path)
    truth = contents(recording)  # also decoded by now, which must not matter
    for again in (pickle.loads(pickle.dumps(recording)), copy.copy(recording), copy.deepcopy(recording)):
        assert type(again) is rc.Recording
        assert (again.path, again.format, again.time) == (recording.path, recording.format, recording.time)
        assert contents(again) == truth
    episode = recording.episodes[-1]
    again = pickle.loads(pickle.dumps(episode))
    assert type(again) is rc.Episode
    assert (again.index, again.name, again.task) == (episode.index, episode.name, episode.task)
    assert (again.start, again.end) == (episode.start, episode.end)
    assert {name: s.values.tolist() for name, s in again.streams.items()} == {n: v[0] for n, v in truth[-1].items()}
    assert len(pickle.dumps(recording)) < 20_000  # not what was decoded


def test_an_open_file_is_refused_with_a_sentence(tmp_path):
    mcap(tmp_path)
    recording = rc.open(io.BytesIO((tmp_path / "a.mcap").read_bytes()))
    with pytest.raises(TypeError, match="a recording of an open file cannot be pickled; open it by its path"):
        pickle.dumps(recording)


def total(given):
    return float(sum(s.values.sum() for s in given.streams.values()))


def test_a_spawned_worker_reads_them(tmp_path):
    recording = mcap(tmp_path)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.map(total, [recording, recording.episodes[0]])
    assert found == [total(recording)] * 2
