"""LeRobot data sets: every feature a stream, exact times, tasks, videos by reference."""

import contextlib
import json
import sys

import numpy as np
import pytest
from frame_oracle import rgb_of_frame
from recordings import lies, shared, write_lerobot

import robocache as rc
from robocache._recordings import video as _video

pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")


def test_each_episode_names_its_own_video(tmp_path):
    """v2.1 has a file for each: were all named by each, 50,000 episodes would take hours."""
    write_lerobot(tmp_path / "set", "v2.1", lengths=(2,) * 40)
    about = json.loads((tmp_path / "set/meta/info.json").read_text())
    about["features"]["camera"] = {"dtype": "video", "shape": [4, 4, 3], "names": None}
    (tmp_path / "set/meta/info.json").write_text(json.dumps(about))
    (tmp_path / "set/videos/chunk-000/camera").mkdir(parents=True)
    for k in range(40):
        (tmp_path / f"set/videos/chunk-000/camera/episode_{k:06d}.mp4").touch()
    with rc.CacheWriter(tmp_path / "cache") as writer:
        assert writer.add(rc.open(tmp_path / "set")) == 40
    cache = rc.Cache(tmp_path / "cache")
    assert cache.streams["camera"].metadata["file"] == "varies"
    for k, episode in enumerate(cache.episodes):
        assert episode.streams["camera"].samples.file.endswith(f"camera/episode_{k:06d}.mp4")


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_episodes_features_and_tasks(tmp_path, version):
    write_lerobot(tmp_path / "set", version)
    recording = rc.open(tmp_path / "set")
    assert recording.format == f"LeRobot {version}"
    assert [(e.name, e.task, len(e.streams)) for e in recording.episodes] == [
        ("episode-0", "push", 5),
        ("episode-1", "pull", 5),
        ("episode-2", "push", 5),
    ]
    streams = recording.episodes[1].streams
    assert list(streams) == ["observation.state", "action", "matrix", "next.done", "task_index"]
    assert streams["observation.state"].channels == ("x", "y", "z")
    assert streams["action"].channels == ("left", "right")
    assert streams["matrix"].values.shape == (5, 2, 2)
    assert streams["next.done"].values[:, 0].tolist() == [False] * 4 + [True]
    assert streams["next.done"].method == "hold"
    assert streams["task_index"].values[:, 0].tolist() == [1] * 5
    np.testing.assert_array_equal(streams["action"].values, streams["observation.state"].values[:, :2] + 1)
    assert streams["action"].times.tolist() == [0, 40_000_000, 80_000_000, 120_000_000, 160_000_000]
    assert recording.notes == ['feature "note" is of type string, which is no number: left out']
    assert recording.episodes[1].end == 160_000_000


@pytest.mark.parametrize("kind", ["i4,,", "f4, f4", ">f4", "O", "", [], None, 7, "x" * 5000])
def test_types_that_are_none_are_told(tmp_path, kind):
    write_lerobot(tmp_path / "set")
    info = tmp_path / "set" / "meta" / "info.json"
    told = json.loads(info.read_text())
    told["features"]["matrix"]["dtype"] = kind
    info.write_text(json.dumps(told))
    recording = rc.open(tmp_path / "set")
    assert "matrix" not in recording.episodes[0].streams
    (note,) = [note for note in recording.notes if '"matrix"' in note]
    assert note.endswith("which is no number: left out")
    assert len(note) < 200


def test_one_pass_gives_every_sample_once(tmp_path):
    write_lerobot(tmp_path / "set")
    recording = rc.open(tmp_path / "set")
    seen = [(b.episode, len(b.times)) for b in recording.batches(["action"])]
    assert [sum(n for e, n in seen if e == k) for k in range(3)] == [7, 5, 9]
    assert [e for e, _ in seen] == sorted(e for e, _ in seen)
    whole = np.concatenate([b.values for b in recording.batches(["matrix"])])
    np.testing.assert_array_equal(whole[7:12], recording.episodes[1].streams["matrix"].values)


def test_timestamps_that_do_not_follow_the_frames_are_kept(tmp_path):
    write_lerobot(tmp_path / "set", fps=30)
    path = tmp_path / "set/data/chunk-000/file-001.parquet"
    table = pq.read_table(path)
    column = table.schema.get_field_index("timestamp")
    late = np.asarray(table["timestamp"]) + np.float32(0.01)
    pq.write_table(table.set_column(column, "timestamp", [late]), path)
    recording = rc.open(tmp_path / "set")
    assert recording.episodes[0].streams["action"].times[1] == 33_333_333
    assert recording.episodes[2].streams["action"].times[0] == pytest.approx(10_000_000, abs=2)
    assert "timestamps differ from frame_index / fps by more than 0.1 ms" in recording.notes[-1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"codebase_version": "v1.6"}, r"LeRobot version 'v1.6'; v3.0 and v2.1 are read; LeRobot's own converters"),
        ({"codebase_version": "v4.0"}, "LeRobot version 'v4.0'; v3.0 and v2.1 are read$"),
        ({"fps": -3}, "fps is -3.0; expected a positive number"),
        ({"features": 3}, "no fps or no features"),
        ({"data_path": "/etc/{chunk_index:03d}"}, "does not lead to a file of the data set"),
        ({"data_path": "../{chunk_index:03d}"}, "does not lead to a file of the data set"),
        ({"data_path": "data/{chunk_index:9999999999d}"}, "does not lead to a file of the data set"),
        ({"data_path": "data/{secret}"}, 'asks for "secret"; known: chunk_index, file_index'),
    ],
)
def test_what_is_wrong_in_its_metadata_gets_a_sentence(tmp_path, changes, words):
    write_lerobot(tmp_path / "set", **changes)
    with pytest.raises(rc.FileError, match=words):
        rc.open(tmp_path / "set")


def test_what_is_wrong_in_its_data_gets_a_sentence(tmp_path):
    write_lerobot(tmp_path / "set")
    (tmp_path / "set/data/chunk-000/file-001.parquet").write_bytes(b"PAR1 and no more")
    recording = rc.open(tmp_path / "set")
    assert len(recording.episodes[0].streams["action"]) == 7
    with pytest.raises(rc.FileError, match=r"file-001.parquet: cannot be read as Parquet"):
        _ = recording.episodes[2].streams["action"]
    about = json.loads((tmp_path / "set/meta/info.json").read_text())
    about["features"]["action"]["shape"] = [3]
    (tmp_path / "set/meta/info.json").write_text(json.dumps(about))
    with pytest.raises(rc.FileError, match=r'feature "action" is float32 \[3\].*7 rows of the data hold 14 values'):
        _ = rc.open(tmp_path / "set").episodes[0].streams["action"]
    (tmp_path / "set/meta/info.json").write_text("{")
    with pytest.raises(rc.FileError, match=r"info\.json: not JSON"):
        rc.open(tmp_path / "set")


def test_columns_of_a_wrong_kind_get_a_sentence(tmp_path):
    import pyarrow as pa

    write_lerobot(tmp_path / "set")
    path = tmp_path / "set/data/chunk-000/file-001.parquet"
    table = pq.read_table(path)
    for name, column in (("frame_index", pa.array(["x"] * 9)), ("timestamp", pa.array([None] * 9, pa.float32()))):
        place = table.schema.get_field_index(name)
        pq.write_table(table.set_column(place, name, column), path)
        with pytest.raises(rc.FileError, match=rf"file-001\.parquet: the column {name} holds"):
            _ = rc.open(tmp_path / "set").episodes[2].streams["action"]


@pytest.mark.parametrize(
    ("version", "name"), [("v3.0", "info.json"), ("v2.1", "info.json"), ("v2.1", "episodes.jsonl")]
)
def test_metadata_that_lies_is_told_or_harmless(tmp_path, version, name):
    write_lerobot(tmp_path / "set", version)
    path = tmp_path / "set" / "meta" / name
    first, *others = path.read_text().splitlines() if name.endswith("jsonl") else [path.read_text()]
    for lie in lies(json.loads(first)):
        path.write_text("\n".join([json.dumps(lie), *others]))
        with contextlib.suppress(rc.FileError):
            recording = rc.open(tmp_path / "set")
            repr(recording)
            dict(recording.episodes[0].streams.items())


def test_log_times_are_refused(tmp_path):
    write_lerobot(tmp_path / "set")
    with pytest.raises(ValueError, match="one time for each sample"):
        rc.open(tmp_path / "set", time="log")


def test_the_shared_data_set():
    root = shared("lerobot-v3-so101")
    recording = rc.open(root)
    assert repr(recording).endswith("LeRobot v3.0: 6 episodes, 3 streams, 59.20 s)")
    table = pq.read_table(root / "data/chunk-000/file-000.parquet")
    state = np.stack(table["observation.state"].to_numpy())
    offset = 0
    for episode, length in zip(recording.episodes, (383, 386, 379, 382, 90, 162), strict=True):
        assert episode.task == "pick and place"
        stream = episode.streams["observation.state"]
        np.testing.assert_array_equal(stream.values, state[offset : offset + length])
        np.testing.assert_array_equal(stream.times, np.rint(np.arange(length) * 1e9 / 30))
        wrist = episode.streams["observation.images.wrist"]
        np.testing.assert_array_equal(wrist.values, np.arange(length))
        np.testing.assert_array_equal(wrist.samples.references[:, 0], offset + np.arange(length))
        np.testing.assert_array_equal(wrist.times, stream.times)
        offset += length


def test_frames_of_the_shared_video_are_those_of_the_whole_video():
    av = pytest.importorskip("av", reason="PyAV is not installed")
    root = shared("lerobot-v3-so101")
    frames = rc.open(root).episodes[4].streams["observation.images.wrist"].samples
    with av.open(str(root / "videos/observation.images.wrist/chunk-000/file-000.mp4")) as container:
        stream = container.streams.video[0]
        container.seek(int(50.9 / stream.time_base), stream=stream)
        truth = {}
        for frame in container.decode(stream):
            truth[round(float(frame.pts * stream.time_base) * 30)] = frame
            if len(truth) > 40:
                break
    first = 383 + 386 + 379 + 382
    for k in (0, 3, 17):
        np.testing.assert_array_equal(frames[k], rgb_of_frame(truth[first + k]))
    assert len(frames) == 90
    assert len(frames[2:20:6]) == 3
    with pytest.raises(IndexError):
        frames[90]


def test_torchcodec_gives_nearly_the_frames_of_pyav_where_that_is_not_installed(monkeypatch, tmp_path):
    try:
        from torchcodec.decoders import VideoDecoder
    except (ImportError, RuntimeError):
        pytest.skip("torchcodec is not installed")
    root = shared("lerobot-v3-so101")
    video = str(root / "videos/observation.images.wrist/chunk-000/file-000.mp4")
    try:
        count = len(VideoDecoder(video))
    except RuntimeError:
        pytest.skip("torchcodec finds no FFmpeg")
    truth = _video.decode(video, [0, 5, 1600], 30.0)
    monkeypatch.setitem(sys.modules, "av", None)
    found = _video.decode(video, [0, 5, 1600], 30.0)
    for number, image in truth.items():  # its colours are FFmpeg's
        assert np.abs(found[number].astype(int) - image).mean() < 1
    with pytest.raises(rc.FileError, match=rf"mp4: the video has no frame {count} at 30 frames per second"):
        _video.decode(video, [5, count], 30.0)
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"no video")
    with pytest.raises(rc.FileError, match=r"broken\.mp4: cannot be decoded as a video: "):
        _video.decode(str(broken), [0], 30.0)


def test_a_video_without_a_decoder_gets_a_sentence(monkeypatch):
    for module in ("av", "torchcodec", "torchcodec.decoders"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=r"a\.mp4: decoding a video needs av, which is not installed: pip"):
        _video.decode("a.mp4", [0], 30.0)
