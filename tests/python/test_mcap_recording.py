"""MCAP files through rc.open: streams of each topic, time sources, the index alone, other places than files."""

import io
import json

import numpy as np
import pytest
from recordings import shared

import robocache as rc
from robocache import mcap

SECOND = 1_000_000_000


def write(path, topics, seconds=2.0, compression="zstd", **options):
    """JSON topics at their rates: {"/a": 100}; a header's stamp 5 ms before the log time."""
    with mcap.Writer(path, compression, **options) as writer:
        messages = []
        for topic, rate in topics.items():
            channel = writer.add_channel(topic, "json", writer.add_schema(f"test{topic}", "jsonschema", "{}"))
            for k in range(int(seconds * rate)):
                at = SECOND + round(k * 1e9 / rate)
                messages.append((at, channel, {"x": k, "y": {"z": np.sin(k)}}))
        for at, channel, content in sorted(messages, key=lambda message: message[:2]):
            writer.write(channel, json.dumps(content).encode(), log_time=at)


def test_json_topics(tmp_path):
    write(tmp_path / "a.mcap", {"/fast": 100, "/slow": 10})
    recording = rc.open(tmp_path / "a.mcap")
    assert repr(recording).endswith("a.mcap', MCAP: 1 episode, 2 streams, 1.99 s)")
    assert {name: content.samples for name, content in recording.streams.contents.items()} == {
        "/fast": 200,
        "/slow": 20,
    }
    fast = recording.streams["/fast"]
    assert fast.channels == ("x", "y.z")
    assert fast.values[:3, 0].tolist() == [0, 1, 2]
    assert fast.times[1] == SECOND + 10_000_000
    assert recording.episodes[0].name == "a"
    aligned = rc.align(recording.streams, rc.Timeline.over(recording.streams, rate=50))
    assert aligned["/slow"].values.shape == (96, 2)


def test_stamps_in_doubt_are_told(tmp_path):
    """The first stamp is read as nanoseconds, and a later one cannot be."""
    with mcap.Writer(tmp_path / "a.mcap") as writer:
        topic = writer.add_channel("/j", "json")
        for k, stamp in enumerate((b"5000000", b"5500000.5", b"6000000")):
            writer.write(topic, b'{"timestamp": %s, "x": %d}' % (stamp, k), log_time=SECOND + k * SECOND)
    recording = rc.open(tmp_path / "a.mcap")
    assert recording.streams["/j"].info.metadata["stamp_unit"] == "ns"
    report = rc.sync_report(recording).streams["/j"]
    assert report.level == "bad"
    assert 'some stamps are not in the unit of the first: open it with time="log"' in report.verdict
    assert "unit" not in rc.sync_report(rc.open(tmp_path / "a.mcap", time="log")).streams["/j"].verdict


def test_a_stream_that_begins_late_is_listed(tmp_path):
    """JSON has no schema that would tell: the first number may come in any message."""
    with mcap.Writer(tmp_path / "a.mcap") as writer:
        late, text, broken = (writer.add_channel(topic, "json") for topic in ("/late", "/text", "/broken"))
        for k in range(5000):
            writer.write(late, b'{"x": []}' if k < 4000 else b'{"x": [%d]}' % k, log_time=k)
            writer.write(text, b'{"says": "nothing"}', log_time=k)
            writer.write(broken, b'{"x":' if k < 4000 else b'{"x": 1}', log_time=k)
    recording = rc.open(tmp_path / "a.mcap")
    assert list(recording.streams) == ["/broken", "/late"]
    assert recording.streams["/late"].values[:, 0].tolist() == list(range(4000, 5000))
    with rc.CacheWriter(tmp_path / "cache") as cache:
        cache.add(recording)
    assert rc.Cache(tmp_path / "cache").episodes[0].samples == {"/broken": 1000, "/late": 1000}


def test_the_index_alone_gives_log_times(tmp_path):
    write(tmp_path / "a.mcap", {"/fast": 100, "/slow": 10}, chunk_size=2000)
    recording = rc.open(tmp_path / "a.mcap")
    quick = recording.quick()
    assert {name: len(times) for name, (_, times) in quick.items()} == {"/fast": 200, "/slow": 20}
    report = rc.sync_report(recording, full=False)
    assert not report.full
    assert report.streams["/fast"].rate_hz == pytest.approx(100)
    assert report.streams["/fast"].backward is None
    assert report.verdict.startswith("2 of 2 streams good. This is by log times only. A few stamps were read")
    write(tmp_path / "b.mcap", {"/fast": 100}, message_indexes=False)
    assert rc.open(tmp_path / "b.mcap").quick() is None
    assert rc.sync_report(rc.open(tmp_path / "b.mcap"), full=False).full


def test_memory_through_fsspec(tmp_path):
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    write(tmp_path / "a.mcap", {"/fast": 100})
    with fsspec.open("memory://robocache/a.mcap", "wb") as file:
        file.write((tmp_path / "a.mcap").read_bytes())
    recording = rc.open("memory://robocache/a.mcap")
    assert len(recording.streams["/fast"]) == 200
    with pytest.raises(rc.FileError, match="cannot be opened"):
        rc.open("memory://robocache/none.mcap")


def test_bytes_and_file_objects(tmp_path):
    write(tmp_path / "a.mcap", {"/fast": 100})
    content = (tmp_path / "a.mcap").read_bytes()
    assert len(rc.open(content).streams["/fast"]) == 200
    with (tmp_path / "a.mcap").open("rb") as file:
        recording = rc.open(file)
        assert len(recording.streams["/fast"]) == 200
        assert recording.quick() is not None
    with pytest.raises(rc.FileError, match="in memory"):
        rc.open(b"nothing of the kind")
    with pytest.raises(TypeError, match="open: path is 3"):
        rc.open(3)


def test_the_index_is_all_that_is_read(tmp_path):
    """info without --full: the summary and the message indexes, of a file that is mostly messages."""

    class Counted(io.BytesIO):
        count = 0

        def read(self, size=-1):
            data = super().read(size)
            Counted.count += len(data)
            return data

    with mcap.Writer(tmp_path / "a.mcap", None, chunk_size=1 << 18) as writer:
        channel = writer.add_channel("/a", "json", writer.add_schema("a", "jsonschema", "{}"))
        for k in range(2000):
            writer.write(channel, json.dumps({"x": k, "text": "x" * 10_000}).encode(), log_time=k * 10_000_000)
    content = (tmp_path / "a.mcap").read_bytes()
    report = rc.sync_report(rc.open(Counted(content)), full=False)
    assert report.streams["/a"].samples == 2000
    assert Counted.count < len(content) / 10  # the index, and the glance that tells the clock


def test_a_cache_is_a_recording_too(tmp_path):
    write(tmp_path / "a.mcap", {"/fast": 100, "/slow": 10})
    recording = rc.open(tmp_path / "a.mcap")
    with rc.CacheWriter(tmp_path / "cache") as writer:
        writer.add(recording)
    again = rc.open(tmp_path / "cache")
    assert again.format == "cache"
    np.testing.assert_array_equal(again.streams["/fast"].values, recording.streams["/fast"].values)
    np.testing.assert_array_equal(again.streams["/fast"].times, recording.streams["/fast"].times)
    assert rc.sync_report(again).streams["/slow"].rate_hz == pytest.approx(10)


def test_a_truncated_file_is_read_as_far_as_it_goes(tmp_path):
    write(tmp_path / "a.mcap", {"/fast": 100}, chunk_size=500)
    whole = (tmp_path / "a.mcap").read_bytes()
    (tmp_path / "cut.mcap").write_bytes(whole[: len(whole) // 2])
    recording = rc.open(tmp_path / "cut.mcap")
    count = len(recording.streams["/fast"])
    assert 0 < count < 200
    assert recording.notes


def test_a_damaged_chunk_is_told_by_listing_the_streams():
    content = bytearray(shared("mcap/json_events.mcap").read_bytes())
    content[3000] ^= 1
    recording = rc.open(bytes(content))
    list(recording.streams)
    assert any("CRC" in note or "chunk" in note for note in recording.notes), recording.notes


def test_shared_sensors():
    recording = rc.open(shared("mcap/imu_jointstate.mcap"))
    imu, joints = recording.streams["/one_shot/imu"], recording.streams["/one_shot/joint_state"]
    assert imu.channels[:4] == ("orientation.x", "orientation.y", "orientation.z", "orientation.w")
    assert imu.method == (("slerp", 0, 4), ("linear", 4, 10))
    assert joints.channels[:3] == ("position.joint1", "position.joint2", "position.joint3")
    assert rc.sync_report(recording).streams["/one_shot/imu"].source == "log"  # its stamp is zero


def test_schemas_tell_shapes_without_a_message():
    report = rc.sync_report(rc.open(shared("mcap/imu_jointstate.mcap")), full=False)
    imu, joints = report.streams["/one_shot/imu"], report.streams["/one_shot/joint_state"]
    assert (imu.dtype, imu.shape) == ("float64", [10])
    assert (joints.dtype, joints.shape) == (None, None)  # only messages name joints
    report = rc.sync_report(rc.open(shared("mcap/image.mcap")), full=False)
    assert report.streams["/camera/image_raw"].shape == ["*"]


def test_shared_images():
    recording = rc.open(shared("mcap/image.mcap"))
    camera = recording.streams["/camera/image_raw"]
    from robocache._recordings.images import picture

    image = picture("/camera/image_raw", camera.samples[1], camera.info.metadata)
    assert image.shape == (480, 640, 3)
    np.testing.assert_array_equal(image, camera.samples[1])
    assert rc.sync_report(recording).streams["/camera/image_raw"].source == "stamp"


def test_shared_events():
    recording = rc.open(shared("mcap/json_events.mcap"))
    report = rc.sync_report(recording)
    screen = report.streams["screen"]
    assert screen.samples == 590
    assert screen.rate_hz == pytest.approx(59.4, abs=0.1)
    for name, reader in (("screen", 590), ("mouse", 209), ("window", 11)):
        assert len(recording.streams[name]) == reader


@pytest.mark.parametrize("kind", ["broken", "late"])
def test_a_topic_of_which_nothing_can_be_read_is_told(tmp_path, kind):
    """It was absent from the streams, and no note said why; CacheWriter.add stored an episode without streams."""
    body, at = (b"{no json", 1000) if kind == "broken" else (b'{"x": 1}', (1 << 62) + 5)

    def write(path, topics):
        with mcap.Writer(path) as writer:
            for topic in topics:
                channel = writer.add_channel(topic, "json", writer.add_schema("demo", "jsonschema", b"{}"))
                for k in range(3):
                    good = topic == "/good"
                    writer.write(channel, b'{"x": 1}' if good else body, log_time=k if good else at + k)
        return path

    recording = rc.open(write(tmp_path / "some.mcap", ["/good", "/bad"]))
    assert list(recording.streams) == ["/good"]
    (note,) = [note for note in recording.notes if note.startswith("/bad: ")]
    assert note.startswith("/bad: 3 broken messages left out; the first: ")
    with pytest.raises(KeyError, match='there is no stream "/bad"; /bad: 3 broken messages left out'):
        recording.streams["/bad"]
    with rc.CacheWriter(tmp_path / "cache") as writer:
        with pytest.raises(rc.FileError, match=r"no sample could be read: .*/bad: 3 broken messages left out"):
            writer.add(rc.open(write(tmp_path / "none.mcap", ["/bad"])))
        assert writer.add(rc.open(tmp_path / "some.mcap")) == 1
    assert [list(episode.streams) for episode in rc.Cache(tmp_path / "cache").episodes] == [["/good"]]
