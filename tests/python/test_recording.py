"""rc.open finds the format by content; streams are decoded when touched, sorted, and go into align as they are."""

import os
import sqlite3

import numpy as np
import pytest
from recordings import MadeSource, batch, made

import robocache as rc
from robocache._pictures import picture
from robocache._recording import Recording, sniff

MS = 1_000_000


def test_a_stream_is_decoded_when_it_is_touched_and_then_kept():
    source = MadeSource([batch("/a", [[1.0]], [0]), batch("/b", [[2.0]], [0]), batch("/a", [[3.0]], [5])])
    recording = Recording(source)
    assert list(recording.streams) == ["/a", "/b"]
    assert source.passes == 0
    assert recording.streams["/a"].values.tolist() == [[1.0], [3.0]]
    assert recording.streams["/a"].channels == ("c0",)
    assert source.passes == 1
    assert [name for name, _ in recording.streams.items()] == ["/a", "/b"]
    assert source.passes == 2  # the other one, in one pass
    assert isinstance(recording.streams["/b"], rc.Stream)


def test_streams_go_straight_into_align():
    t = np.arange(50) * 20 * MS
    recording = made(batch("/a", np.stack([t, 2 * t], 1) * 1e-6, t), batch("/b", np.arange(50)[:, None], t))
    timeline = rc.Timeline.over(recording.streams, rate=100)
    aligned = rc.align(recording.streams, timeline)
    assert aligned["/a"].values[1] == pytest.approx([10, 20])
    assert aligned["/b"].values[1].tolist() == [0]


def test_backward_stamps_are_sorted_and_counted():
    recording = made(batch("/a", [[1.0], [3.0], [2.0], [4.0]], [0, 20, 10, 20], [0, 1, 2, 3]))
    stream = recording.streams["/a"]
    assert stream.times.tolist() == [0, 10, 20, 20]
    assert stream.values[:, 0].tolist() == [1, 2, 3, 4]  # equal times as recorded
    assert stream.arrivals.tolist() == [0, 2, 1, 3]
    assert stream.backward == 1


def test_channels_that_came_later_are_nan_before():
    recording = made(
        batch("/a", [[1.0, 2.0]], [0], channels=["x", "y"]),
        batch("/a", [[3.0, 4.0, 5.0]], [1], channels=["x", "new", "y"]),
    )
    stream = recording.streams["/a"]
    assert stream.channels == ("x", "new", "y")
    np.testing.assert_array_equal(stream.values, [[1, np.nan, 2], [3, 4, 5]])


def test_ragged_samples_are_held_by_number():
    rows = np.arange(6, dtype=np.uint8)
    recording = made(batch("/cloud", rows, [0, 20, 10], lengths=[2, 1, 3], ragged=True, shape=()))
    stream = recording.streams["/cloud"]
    assert [s.tolist() for s in stream.samples[:]] == [[0, 1], [3, 4, 5], [2]]
    aligned = rc.align(recording.streams, np.array([15]))["/cloud"]
    assert stream.samples[aligned.values[0]].tolist() == [3, 4, 5]
    assert "3 samples of uint8 [*]" in repr(stream)


@pytest.mark.parametrize(
    ("encoding", "kind", "channels"),
    [
        *(("rgb8", "u1", 3), ("bgr8", "u1", 3), ("8UC3", "u1", 3), ("rgba8", "u1", 4), ("bgra8", "u1", 4)),
        *(("mono8", "u1", 1), ("8UC1", "u1", 1), ("mono16", "u2", 1), ("16UC1", "u2", 1), ("32FC1", "f4", 1)),
    ],
)
@pytest.mark.parametrize(("pad", "big"), [(0, "0"), (5, "0"), (0, "1")])
def test_raw_images_have_their_shape(tmp_path, encoding, kind, channels, pad, big):
    shape = (2, 3, 4, channels) if channels > 1 else (2, 3, 4)
    truth = np.arange(np.prod(shape)).reshape(shape).astype(kind)
    stored = truth.astype((">" if big == "1" else "<") + kind).reshape(2, 3, -1).view(np.uint8)
    step = stored.shape[2] + pad
    rows = np.pad(stored, ((0, 0), (0, 0), (0, pad))).reshape(-1)
    about = {"height": "3", "width": "4", "step": str(step), "encoding": encoding, "is_bigendian": big}

    def recorded(**changes):
        options = {"lengths": [3 * step] * 2, "ragged": True, "shape": (), "metadata": about | changes}
        return made(batch("/image", rows, [0, 10], **options))

    with rc.CacheWriter(tmp_path / "cache") as writer:
        writer.add(recorded())
        writer.add({"/image": recorded().streams["/image"]}, name="by hand")
    cached = [episode.streams["/image"].samples for episode in rc.Cache(tmp_path / "cache").episodes]
    for samples in (recorded().streams["/image"].samples, *cached):
        np.testing.assert_array_equal(samples[1], truth[1])
        assert samples[-1].dtype == np.dtype(kind)
        np.testing.assert_array_equal(samples[:], truth)
        np.testing.assert_array_equal(samples.as_stored(0), rows[: 3 * step])
        shown = picture("/image", samples[1], about)
        np.testing.assert_array_equal(shown, picture("/image", samples.as_stored(1), about))
        if encoding in ("bgr8", "bgra8", "8UC3"):
            np.testing.assert_array_equal(shown, truth[1][..., [2, 1, 0]])
    for changes in ({"height": "varies"}, {"step": "1"}, {"height": "9"}, {"encoding": "yuv422"}):
        assert recorded(**changes).streams["/image"].samples[1].shape == (3 * step,)


def test_episodes_and_their_extents():
    recording = made(
        batch("/a", [[1.0]], [5], [7]), batch("/a", [[1.0], [2.0]], [5, 6], [7, 90], episode=1), tasks=("x", None)
    )
    assert [episode.task for episode in recording.episodes] == ["x", None]
    assert (recording.episodes[-1].start, recording.episodes[-1].end) == (7, 90)
    with pytest.raises(ValueError, match="there are 2 episodes"):
        _ = recording.streams
    assert "2 episodes, 1 stream" in repr(recording)
    assert len(recording.episodes[0:5]) == 2
    with pytest.raises(IndexError):
        recording.episodes[2]
    assert [b.episode for b in recording.batches(["/a"])] == [0, 1]


def test_a_stream_that_is_not_there_gets_near_names():
    recording = made(batch("/joint_states", [[1.0]], [0]), batch("/imu", [[1.0]], [0]))
    with pytest.raises(KeyError) as caught:
        recording.streams["/jointstates"]
    assert str(caught.value) == 'made.mcap: there is no stream "/jointstates"; near names: /joint_states'
    with pytest.raises(KeyError, match="there are: /joint_states, /imu"):
        recording.batches(["/zzz"])
    assert "/imu" in recording.streams
    assert "/zzz" not in recording.streams


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (b"#ROSBAG V2.0\n", "a ROS 1 bag"),
        (b"\x28\xb5\x2f\xfd1234", "zstd -d"),
        (b"hello, world", r"begins with 68 65 6c 6c 6f 2c 20 77 \('hello, w'\); known are MCAP, rosbag2"),
    ],
)
def test_what_is_no_recording_is_told(tmp_path, content, words):
    path = tmp_path / "file.mcap"
    path.write_bytes(content)
    with pytest.raises(rc.FileError, match=words) as caught:
        rc.open(path)
    assert str(caught.value).startswith(str(path))


def test_formats_are_found_by_content(tmp_path):
    places = {}
    for name, content in (
        ("a.txt", b"\x89MCAP0\r\n"),
        ("b", b"\0" * 512 + b"\x89HDF\r\n\x1a\n"),
        ("c.h5", b"\x89HDF\r\n\x1a\n"),
    ):
        places[name] = tmp_path / name
        places[name].write_bytes(content)
    sqlite3.connect(tmp_path / "d.mcap").execute("CREATE TABLE t (x)").connection.close()
    assert [sniff(places[name]) for name in places] == ["MCAP", "HDF5", "HDF5"]
    assert sniff(tmp_path / "d.mcap") == "SQLite"
    with pytest.raises(rc.FileError, match=r"a directory without metadata.yaml \(rosbag2\).*it holds a.txt, b, c.h5"):
        rc.open(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(rc.FileError, match=r"manifest\.json"):  # a cache, but what a cache
        rc.open(tmp_path)


def test_a_missing_file_and_one_without_permission(tmp_path):
    with pytest.raises(rc.FileError, match="No such file"):
        rc.open(tmp_path / "none.mcap")
    secret = tmp_path / "secret.mcap"
    secret.write_bytes(b"x")
    secret.chmod(0)
    if os.access(secret, os.R_OK):
        pytest.skip("root reads everything")
    with pytest.raises(rc.FileError, match="Permission denied"):
        rc.open(secret)


def test_time_must_be_known(tmp_path):
    with pytest.raises(ValueError, match="time is 'header'"):
        rc.open(tmp_path, time="header")
