"""rc.export: from Python what `robocache export` does from a shell."""

import numpy as np
import pytest
from camera_files import CAMERA, made, video_set

import robocache as rc

SECOND = 1_000_000_000


@pytest.fixture
def cache(tmp_path):
    """Two episodes; in the second, one stream has a gap from 0.4 s to 0.6 s."""
    times = np.arange(101) * 10_000_000
    some = times[(times <= 400_000_000) | (times >= 600_000_000)]
    with rc.CacheWriter(tmp_path / "cache") as writer:
        for name, taken in (("whole", times), ("torn", some)):
            state = rc.Stream(taken[:, None] / 1e9, taken)
            writer.add({"state": state, "other": rc.Stream(times[:, None] / 1e9, times)}, name=name, task="push")
    return rc.Cache(tmp_path / "cache")


@pytest.mark.parametrize("give", [lambda cache: cache, lambda cache: cache.path, lambda cache: rc.open(cache.path)])
def test_caches_recordings_and_paths(cache, tmp_path, give):
    frames = []
    found = rc.export(give(cache), tmp_path / "out", rate=20, streams=["state"], format="mcap", progress=frames.append)
    assert (found["episodes"], found["frames"], found["format"]) == (2, 42, "mcap")
    assert frames == [21, 21]
    (first, _) = sorted((tmp_path / "out").iterdir())
    assert len(rc.open(first).streams["/state"]) == 21


def test_a_lerobot_data_set_is_the_default(cache, tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    rc.export(cache.episodes[1:], tmp_path / "set", rate=50)
    recording = rc.open(tmp_path / "set")
    assert recording.format == "LeRobot v3.0"
    assert [(episode.task, len(episode.streams["state"])) for episode in recording.episodes] == [("push", 51)]
    with pytest.raises(rc.FileError, match="exists already"):
        rc.export(cache, tmp_path / "set", rate=50)


@pytest.mark.parametrize("max_gap", [0.1, SECOND // 10])
def test_max_gap_is_a_duration_as_everywhere(cache, tmp_path, max_gap):
    safetensors = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    rc.export(cache, tmp_path / "out", rate=20, format="safetensors", max_gap=max_gap)
    torn = [safetensors.load_file(path) for path in sorted((tmp_path / "out").glob("*1*.safetensors"))]
    valid = torn[0]["state.valid"]
    assert valid.all(axis=-1).sum() < len(valid) == 21


def test_what_is_wrong_gets_a_sentence(cache, tmp_path):
    with pytest.raises(ValueError, match='export: there is no format "zip"'):
        rc.export(cache, tmp_path / "out", rate=20, format="zip")
    with pytest.raises(ValueError, match="export: rate is 0"):
        rc.export(cache, tmp_path / "out", rate=0)
    with pytest.raises(rc.FileError, match="No such file"):
        rc.export(tmp_path / "none", tmp_path / "out", rate=20)


@pytest.mark.parametrize(("size", "lost"), [("15x16", "row"), ("16x17", "column"), ("17x33", "row and column")])
def test_a_lerobot_video_says_that_it_lacks_a_row_or_a_column(tmp_path, size, lost):
    """Its pixel format needs even sides."""
    cache, _ = made(video_set(tmp_path / "set", (5,)), tmp_path / "cache", size)
    notes = rc.export(cache, tmp_path / "out", rate=10)["notes"]
    height, width = map(int, size.split("x"))
    assert (
        f'stream "{CAMERA}": its images of {height} x {width} lose their last {lost}: a LeRobot video has even sides; '
        "--format safetensors keeps every size"
    ) in notes
    found = rc.open(tmp_path / "out").episodes[0].streams[CAMERA].samples[0]
    assert found.shape == (height // 2 * 2, width // 2 * 2, 3)
    even = made(tmp_path / "set", tmp_path / "even", "16x32")[0]
    assert not any("lose their last" in note for note in rc.export(even, tmp_path / "whole", rate=10)["notes"])


@pytest.mark.parametrize("size", ["1x1", "1x8", "8x1"])
def test_images_of_one_pixel_make_no_lerobot_video(tmp_path, size):
    cache, _ = made(video_set(tmp_path / "set", (5,)), tmp_path / "cache", size)
    notes = rc.export(cache, tmp_path / "out", rate=10)["notes"]
    height, width = size.split("x")
    assert (
        f'stream "{CAMERA}" is left out: its images are {height} x {width}, and a LeRobot video has even sides; '
        "--format safetensors keeps them"
    ) in notes
    assert list(rc.open(tmp_path / "out").streams) == ["action", "valid.action"]
