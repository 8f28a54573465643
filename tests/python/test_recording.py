"""rc.open finds the format by content; streams are decoded when touched, sorted, and go into align as they are."""

import copy
import os
import pickle
import sqlite3

import numpy as np
import pytest
from recordings import MadeSource, batch, made

import robocache as rc
from robocache._recordings.open import sniff
from robocache._recordings.recording import Recording

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
def test_raw_images_are_rgb_or_depth(tmp_path, encoding, kind, channels, pad, big):
    shape = (2, 3, 4, channels) if channels > 1 else (2, 3, 4)
    recorded_as = np.arange(np.prod(shape)).reshape(shape).astype(kind)
    stored = recorded_as.astype((">" if big == "1" else "<") + kind).reshape(2, 3, -1).view(np.uint8)
    if encoding in ("mono8", "8UC1"):
        truth = recorded_as[..., None].repeat(3, -1)
    elif channels == 1:
        truth = recorded_as
    else:
        truth = recorded_as[..., :3] if encoding.startswith("rgb") else recorded_as[..., 2::-1]
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
        np.testing.assert_array_equal(samples[[1, 0]], truth[::-1])
        np.testing.assert_array_equal(samples.as_stored(0), rows[: 3 * step])
    for changes, sentence in (
        ({"height": "varies"}, "varies from message to message"),
        ({"step": "1"}, "a step of 1"),
        ({"height": "9"}, "an image of 9 x 4"),
        ({"encoding": "nv21"}, "an image of the format 'nv21' cannot be decoded"),
    ):
        samples = recorded(**changes).streams["/image"].samples
        with pytest.raises(rc.FileError, match=rf"^/image: image 1: .*{sentence}"):
            samples[1]
        assert samples.as_stored(1).shape == (3 * step,)


def test_samples_are_taken_by_number_slice_list_and_mask():
    rows = np.arange(6, dtype=np.uint8)
    samples = (
        made(batch("/cloud", rows, [0, 20, 30], lengths=[2, 1, 3], ragged=True, shape=())).streams["/cloud"].samples
    )
    truth = [[0, 1], [2], [3, 4, 5]]
    assert samples[np.int32(-1)].tolist() == truth[-1]
    for index, numbers in (
        (slice(None, None, -1), [2, 1, 0]),
        ([1, 2], [1, 2]),
        ([], []),
        ([-1, -1], [2, 2]),
        (np.array([0, 2], np.uint8), [0, 2]),
        (np.array([True, False, True]), [0, 2]),
    ):
        assert [found.tolist() for found in samples[index]] == [truth[k] for k in numbers]
    with pytest.raises(IndexError):
        samples[[0, 3]]
    with pytest.raises(IndexError):
        samples[-4]
    with pytest.raises(IndexError, match="a mask of 2 for 3 samples"):
        samples[[True, False]]
    with pytest.raises(TypeError, match="expected an integer, a slice, a list of integers or a mask"):
        samples["0"]


def copies_of(stream):
    return {
        "replace": stream.replace(max_gap=0.5),
        "copy": copy.copy(stream),
        "deepcopy": copy.deepcopy(stream),
        "pickle": pickle.loads(pickle.dumps(stream)),
    }


def test_copies_of_a_stream_keep_what_the_file_says(tmp_path):
    rows = np.arange(2 * 3 * 4 * 3, dtype=np.uint8)
    about = {"height": "3", "width": "4", "step": "12", "encoding": "rgb8", "frame_id": "left"}
    options = {"lengths": [36, 36], "ragged": True, "shape": (), "metadata": about, "type": "sensor_msgs/msg/Image"}
    recording = made(batch("/image", rows, [10, 0], **options), batch("/q", [[1.0], [2.0]], [0, 10], type="a/msg/Q"))
    image, numbers = recording.streams["/image"], recording.streams["/q"]
    for kind, made_of in copies_of(image).items():
        assert isinstance(made_of, rc.RecordedStream), kind
        assert (made_of.info, made_of.backward, len(made_of.samples)) == (image.info, 1, 2), kind
        np.testing.assert_array_equal(made_of.samples[0], rows[36:].reshape(3, 4, 3))
        with rc.CacheWriter(tmp_path / kind) as writer:
            writer.add({"/image": made_of, "/q": copies_of(numbers)[kind]})
        found = rc.Cache(tmp_path / kind).episodes[0].streams
        np.testing.assert_array_equal(found["/image"].samples[0], rows[36:].reshape(3, 4, 3))
        assert found["/image"].info.metadata["frame_id"] == "left"
        assert (found["/image"].info.type, found["/q"].info.type) == ("sensor_msgs/msg/Image", "a/msg/Q")
    assert copies_of(image)["replace"].max_gap == 0.5


def test_a_stream_of_some_samples_is_cached_as_those(tmp_path):
    rows = np.arange(6, dtype=np.uint8)
    stream = made(batch("/cloud", rows, [0, 20, 30], lengths=[2, 1, 3], ragged=True, shape=())).streams["/cloud"]
    some = stream.replace(values=stream.values[1:], times=stream.times[1:], arrivals=stream.arrivals[1:])
    with rc.CacheWriter(tmp_path / "cache") as writer:
        writer.add({"/cloud": some})
        with pytest.raises(ValueError, match=r'stream "/cloud": values name sample 7; there are 3'):
            writer.add({"/cloud": some.replace(values=np.array([0, 7]))})
    found = rc.Cache(tmp_path / "cache").episodes[0].streams["/cloud"]
    assert [sample.tolist() for sample in found.samples] == [[2], [3, 4, 5]]
    numbers = made(batch("/q", [[1.0, 2.0]], [0])).streams["/q"]
    numbers = numbers.replace(values=np.zeros((1, 3, 2), np.float32), channels=None)
    assert (numbers.info.dtype, numbers.info.shape) == (np.dtype(np.float32), (3, 2))


def test_episodes_and_their_extents():
    recording = made(
        batch("/a", [[1.0]], [5], [7]), batch("/a", [[1.0], [2.0]], [5, 6], [7, 90], episode=1), tasks=("x", None)
    )
    assert [episode.task for episode in recording.episodes] == ["x", None]
    assert (recording.episodes[-1].start, recording.episodes[-1].end) == (7, 90)
    assert list(recording.streams) == ["/a"]
    with pytest.raises(ValueError, match="there are 2 episodes"):
        _ = recording.streams["/a"].values
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
