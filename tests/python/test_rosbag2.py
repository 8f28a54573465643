"""rosbag2: directories, split files, both stores, both compressions, definitions from everywhere."""

import contextlib
import gc
import json
import sqlite3

import numpy as np
import pytest
from recordings import batch, lies, made, shared

import robocache as rc
from robocache import mcap

rosbags = pytest.importorskip("rosbags.rosbag2", reason="rosbags is not installed")
from rosbags.typesys import Stores, get_typestore  # noqa: E402

from robocache._recordings.rosbag2 import grown  # noqa: E402

STORE = get_typestore(Stores.LATEST)
SECOND = 1_000_000_000


def imu(k):
    types = STORE.types
    stamp = types["builtin_interfaces/msg/Time"](sec=100 + k // 100, nanosec=(k % 100) * 10_000_000)
    vector = types["geometry_msgs/msg/Vector3"]
    return types["sensor_msgs/msg/Imu"](
        header=types["std_msgs/msg/Header"](stamp=stamp, frame_id="imu"),
        orientation=types["geometry_msgs/msg/Quaternion"](x=0.0, y=0.0, z=0.0, w=1.0),
        orientation_covariance=np.zeros(9),
        angular_velocity=vector(x=float(k), y=0.5, z=-1.0),
        angular_velocity_covariance=np.zeros(9),
        linear_acceleration=vector(x=0.0, y=0.0, z=9.81),
        linear_acceleration_covariance=np.zeros(9),
    )


def write(path, plugin="SQLITE3", mode=None, count=300, version=9, first=0):
    writer = rosbags.Writer(path, version=version, storage_plugin=rosbags.StoragePlugin[plugin])
    if mode is not None:
        writer.set_compression(rosbags.CompressionMode[mode], rosbags.CompressionFormat.ZSTD)
    with writer:
        topic = writer.add_connection("/imu", "sensor_msgs/msg/Imu", typestore=STORE)
        text = writer.add_connection("/says", "std_msgs/msg/String", typestore=STORE)
        for k in range(first, first + count):
            at = 100 * SECOND + k * 10_000_000 + 2_000_000
            writer.write(topic, at, STORE.serialize_cdr(imu(k), "sensor_msgs/msg/Imu"))
        hello = STORE.types["std_msgs/msg/String"](data="hello")
        writer.write(text, at + 1, STORE.serialize_cdr(hello, "std_msgs/msg/String"))
    return path


def pack(path):
    """A bag whose only file is compressed as a whole, as `ros2 bag record --compression-mode file` leaves it."""
    from robocache._recordings.rosbag2_files import zstd

    (file,) = path.glob("*.mcap")
    packed = file.with_name(f"{file.name}.zstd")
    packed.write_bytes(zstd().compress(file.read_bytes()))
    file.unlink()
    text = (path / "metadata.yaml").read_text().replace(file.name, packed.name)
    text = text.replace("compression_format: ''", "compression_format: zstd")
    (path / "metadata.yaml").write_text(text.replace("compression_mode: ''", "compression_mode: FILE"))
    return path


def check(recording, count=300):
    stream = recording.streams["/imu"]
    assert stream.channels[4] == "angular_velocity.x"
    np.testing.assert_array_equal(stream.values[:, 4], np.arange(count))
    np.testing.assert_array_equal(stream.times, 100 * SECOND + np.arange(count) * 10_000_000)
    np.testing.assert_array_equal(stream.arrivals - stream.times, 2_000_000)
    assert stream.method == (("slerp", 0, 4), ("linear", 4, 10))


@pytest.mark.parametrize("mode", [None, "FILE", "MESSAGE"])
@pytest.mark.parametrize("plugin", ["SQLITE3", "MCAP"])
def test_directories(tmp_path, plugin, mode):
    if plugin == "MCAP" and mode == "FILE":  # which rosbags does not write
        path = pack(write(tmp_path / "bag", plugin))
    else:
        path = write(tmp_path / "bag", plugin, mode)
    recording = rc.open(path)
    assert recording.format == ("rosbag2 (SQLite)" if plugin == "SQLITE3" else "rosbag2 (MCAP)")
    check(recording)
    assert recording.episodes[0].start == 100 * SECOND + 2_000_000
    assert recording.streams.contents["/imu"].samples == 300
    report = rc.sync_report(recording)
    assert report.streams["/imu"].offset_ms == 2
    assert report.streams["/imu"].source == "stamp"
    assert (path / "metadata.yaml") in recording.files


def test_a_db3_file_alone(tmp_path):
    path = write(tmp_path / "bag")
    (database,) = path.glob("*.db3")
    recording = rc.open(database)
    check(recording)
    assert recording.episodes[0].end == 100 * SECOND + 299 * 10_000_000 + 2_000_001
    quick = recording.quick()
    assert (quick["/imu"][0], len(quick["/imu"][1])) == ("sensor_msgs/msg/Imu", 300)


def strip_definitions(path, kind=None):
    """As bags before Iron: no definitions; or with another name for a type."""
    (database,) = path.glob("*.db3")
    with sqlite3.connect(database) as connection:
        connection.execute("DROP TABLE message_definitions")
        if kind is not None:
            connection.execute("UPDATE topics SET type = ? WHERE name = '/imu'", [kind])
    connection.close()


def test_definitions_from_the_type_store(tmp_path):
    path = write(tmp_path / "bag")
    strip_definitions(path)
    check(rc.open(path))


def test_definitions_from_a_folder(tmp_path):
    path = write(tmp_path / "bag")
    strip_definitions(path, "robot_msgs/msg/Body")
    recording = rc.open(path)
    assert list(recording.streams) == []
    assert any("robot_msgs/msg/Body is defined neither in the bag" in note for note in recording.notes)
    package = tmp_path / "messages" / "robot_msgs" / "msg"
    package.mkdir(parents=True)
    text = STORE.generate_msgdef("sensor_msgs/msg/Imu", ros_version=2)[0].split("=" * 80)[0]
    (package / "Body.msg").write_text(f"# of our robot\nuint8 KIND=3\n{text}\n")
    recording = rc.open(path, msg_path=tmp_path / "messages")
    stream = recording.streams["/imu"]
    names = [name for name in stream.channels if "covariance" not in name]
    assert "angular_velocity.x" in names
    column = stream.channels.index("angular_velocity.x")
    np.testing.assert_array_equal(stream.values[:, column], np.arange(300))
    with pytest.raises(rc.FileError, match="msg_path must name a folder"):
        rc.open(path, msg_path=tmp_path / "none")


def built(cache, recording):
    """What became of adding it: how many episodes were added, and the streams that are there."""
    with rc.CacheWriter(cache) as writer:
        added = writer.add(recording)
    return added, sorted(rc.Cache(cache).streams)


def test_what_nobody_defined_is_read_when_somebody_does(tmp_path):
    """A .msg file that comes, and one that changes; and no bag is read again for nothing."""
    path, cache = write(tmp_path / "bag"), tmp_path / "cache"
    strip_definitions(path, "robot_msgs/msg/Body")
    assert rc.open(path).lacking == ("robot_msgs/msg/Body",)
    assert built(cache, rc.open(path)) == (1, [])
    assert built(cache, rc.open(path))[0] == 0

    package = tmp_path / "messages" / "robot_msgs" / "msg"
    package.mkdir(parents=True)
    (package / "Body.msg").write_text("std_msgs/Header header\nfloat64 wrong\n")
    recording = rc.open(path, msg_path=tmp_path / "messages")
    assert recording.lacking == ()
    assert built(cache, recording) == (1, ["/imu"])
    assert built(cache, recording)[0] == 0
    (package / "Body.msg").write_text("std_msgs/Header header\nfloat64[4] right\n")
    assert built(cache, rc.open(path, msg_path=tmp_path / "messages")) == (1, ["/imu"])
    assert "right[0]" in rc.Cache(cache).streams["/imu"].channels


def test_a_build_without_the_definitions_keeps_what_was_read_with_them(tmp_path):
    from robocache._cache.build import build

    path, cache = write(tmp_path / "bag"), tmp_path / "cache"
    strip_definitions(path, "robot_msgs/msg/Body")
    package = tmp_path / "messages" / "robot_msgs" / "msg"
    package.mkdir(parents=True)
    (package / "Body.msg").write_text("std_msgs/Header header\nfloat64 x\n")
    options = {"msg_path": [str(tmp_path / "messages")]}
    assert build([str(path)], cache, open_options=options)["sources"][0]["state"] == "added"
    assert build([str(path)], cache, open_options=options)["sources"][0]["state"] == "unchanged"
    (row,) = build([str(path)], cache)["sources"]
    assert row["state"] == "unchanged"
    assert "stays as it was read with --msg-path, which is not given now" in row["notes"]
    assert list(rc.Cache(cache).streams) == ["/imu"]


def test_the_type_store_that_is_installed_later(tmp_path, monkeypatch):
    import sys

    path, cache = write(tmp_path / "bag"), tmp_path / "cache"
    strip_definitions(path)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "rosbags.typesys", None)
        assert built(cache, rc.open(path)) == (1, [])
        assert built(cache, rc.open(path))[0] == 0
    assert built(cache, rc.open(path)) == (1, ["/imu"])
    with monkeypatch.context() as without:  # gone again: what was read stays
        without.setitem(sys.modules, "rosbags.typesys", None)
        assert built(cache, rc.open(path)) == (0, ["/imu"])


@pytest.mark.parametrize("plugin", ["SQLITE3", "MCAP"])
def test_messages_that_cannot_be_unpacked_are_left_out_and_told(tmp_path, plugin):
    path = write(tmp_path / "bag", plugin, "MESSAGE")
    if plugin == "SQLITE3":
        (file,) = path.glob("*.db3")
        with sqlite3.connect(file) as connection:
            connection.execute("UPDATE messages SET data = substr(data, 1, 40) WHERE id IN (11, 12)")
        connection.close()
    else:
        (file,) = path.glob("*.mcap")
        messages = list(mcap.messages(file))
        with mcap.Writer(file) as writer:
            channels = {}
            for k, m in enumerate(messages):
                if m.topic not in channels:
                    schema = writer.add_schema(m.schema.name, m.schema.encoding, m.schema.data)
                    channels[m.topic] = writer.add_channel(m.topic, "cdr", schema)
                data = bytes(m.data)[:40] if k in (10, 11) else bytes(m.data)
                writer.write(channels[m.topic], data, log_time=m.log_time)
    recording = rc.open(path)
    values = recording.streams["/imu"].values[:, 4]
    np.testing.assert_array_equal(values, np.delete(np.arange(300), [10, 11]))
    (note,) = recording.notes
    assert note.startswith("/imu: 2 broken messages left out; the first: ")
    assert "compressed by zstd" in note


def test_split_files_are_one_episode(tmp_path):
    first, second = write(tmp_path / "one"), write(tmp_path / "two", count=100, first=300)
    (one,), (two,) = first.glob("*.db3"), second.glob("*.db3")
    two.rename(first / "part_1.db3")
    text = (first / "metadata.yaml").read_text()
    (first / "metadata.yaml").write_text(text.replace(f"- {one.name}", f"- {one.name}\n  - part_1.db3"))
    if "part_1.db3" not in (first / "metadata.yaml").read_text():
        pytest.skip("another layout of metadata.yaml than this test edits")
    recording = rc.open(first)
    assert len(recording.episodes) == 1
    assert recording.streams.contents["/imu"].samples == 400
    stream = recording.streams["/imu"]
    assert len(stream) == 400
    assert stream.backward == 0
    np.testing.assert_array_equal(stream.values[:, 4], np.arange(400))


def test_a_part_that_repeats_the_stamps_of_the_first_is_an_episode_of_its_own(tmp_path):
    first, second = write(tmp_path / "one"), write(tmp_path / "two", count=100)
    (one,), (two,) = first.glob("*.db3"), second.glob("*.db3")
    with sqlite3.connect(two) as connection:
        connection.execute("UPDATE messages SET timestamp = timestamp + 3000000000")
    connection.close()
    two.rename(first / "part_1.db3")
    text = (first / "metadata.yaml").read_text()
    (first / "metadata.yaml").write_text(text.replace(f"- {one.name}", f"- {one.name}\n  - part_1.db3"))
    episodes = rc.open(first).episodes
    assert [len(episode.streams["/imu"]) for episode in episodes] == [300, 100]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text.replace("version: 9", "version: 99"), "rosbag2 metadata of version 99; 1 to 9 are read"),
        (lambda text: "a: [", "metadata.yaml: not YAML"),
        (lambda text: "a: 1", "no rosbag2_bagfile_information"),
        (lambda text: text.replace(".db3", ".db4"), "names this file, and it is not there"),
        (lambda text: text.replace("- bag", "- ../bag"), "lies outside the bag"),
        (
            lambda text: text.replace("compression_format: ''", "compression_format: lz9").replace(
                "compression_mode: ''", "compression_mode: FILE"
            ),
            'compression_format is "lz9"; zstd is read',
        ),
    ],
)
def test_what_is_wrong_gets_a_sentence(tmp_path, change, words):
    path = write(tmp_path / "bag", count=3)
    before = (path / "metadata.yaml").read_text()
    after = change(before)
    if after == before:
        pytest.skip("another layout of metadata.yaml than this test edits")
    (path / "metadata.yaml").write_text(after)
    with pytest.raises(rc.FileError, match=words):
        rc.open(path)


def test_damaged_databases(tmp_path):
    path = write(tmp_path / "bag", count=50)
    (database,) = path.glob("*.db3")
    whole = database.read_bytes()
    random = np.random.default_rng(2)
    for _ in range(40):
        damaged = bytearray(whole[: random.integers(2000, len(whole) + 1)])
        for at in random.integers(100, len(damaged), 20):
            damaged[at] = random.integers(256)
        database.write_bytes(damaged)
        with contextlib.suppress(rc.FileError):
            dict(rc.open(database).streams.items())
    database.write_bytes(whole[:100])
    with pytest.raises(rc.FileError):
        rc.open(database)


def test_a_topic_is_read_without_the_data_of_others(tmp_path):
    """The pages of the third message of /other are damaged. Reading them fails, and reading /imu does not."""
    (database,) = write(tmp_path / "bag").glob("*.db3")
    with sqlite3.connect(database) as connection:
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        columns = [name for _, name, *_ in connection.execute("PRAGMA table_info(topics)")][2:]
        same = ", ".join(columns)
        connection.execute(
            f"INSERT INTO topics (id, name, {same}) SELECT 99, '/other', {same} FROM topics WHERE id = 1"
        )
        first = "SELECT 99, timestamp, data FROM messages WHERE topic_id = 1 ORDER BY timestamp LIMIT 2"
        connection.execute(f"INSERT INTO messages (topic_id, timestamp, data) {first}")
        more = "INSERT INTO messages (topic_id, timestamp, data) VALUES (99, ?, ?)"
        connection.execute(more, [200 * SECOND, b"\xab" * (20 * size)])
    connection.close()
    content = bytearray(database.read_bytes())
    overflow = [k for k in range(0, len(content), size) if content[k + 4 : k + size] == b"\xab" * (size - 4)]
    assert len(overflow) > 10
    for k in overflow:
        content[k : k + 4] = b"\xff" * 4  # the number of the next page
    database.write_bytes(content)
    with pytest.raises(rc.FileError, match="a damaged SQLite file"):
        list(rc.open(database).batches())
    check(rc.open(database))


def test_other_databases_are_refused(tmp_path):
    path = tmp_path / "x.db3"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE things (id)")
        connection.execute("CREATE VIEW messages AS SELECT 1")
    connection.close()
    with pytest.raises(rc.FileError, match="SQLite without the tables topics and messages; it has things"):
        rc.open(path)


def test_a_damaged_list_of_tables_is_refused(tmp_path):
    """The names of tables are blobs, as damage can make them. sqlite3 gives bytes for those."""
    (database,) = write(tmp_path / "bag").glob("*.db3")
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE other (id)")
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_master SET name = CAST(name AS BLOB) WHERE name IN ('topics', 'metadata')")
    connection.close()
    with pytest.raises(rc.FileError, match=r"SQLite without the tables topics and messages; it has .*other"):
        rc.open(database)


def test_shared_files_as_a_bag(tmp_path):
    """Two files that rosbag2 split, put back into a directory."""
    files = [shared(f"mcap/rosbag2/wbag_{k}.mcap") for k in (0, 1)]
    bag = tmp_path / "wbag"
    bag.mkdir()
    for file in files:
        (bag / file.name).write_bytes(file.read_bytes())
    names = "\n".join(f"    - {file.name}" for file in files)
    (bag / "metadata.yaml").write_text(
        f"rosbag2_bagfile_information:\n  version: 5\n  storage_identifier: mcap\n  relative_file_paths:\n{names}\n"
    )
    recording = rc.open(bag)
    assert recording.format == "rosbag2 (MCAP)"
    counts = {name: content.samples for name, content in recording.listed().items()}
    parts = [rc.open(file).listed() for file in files]
    assert counts == {name: sum(part[name].samples for part in parts if name in part) for name in counts}
    assert len(counts) == 8
    assert list(recording.streams) == []  # they hold text


def test_files_of_a_bag_may_have_other_channels():
    """A joint that appears in the second file only, in another order: the first file's channels stay in front."""
    first = batch("/joints", [[1.0, 2.0]], [0], channels=["a", "b"])
    second = grown(batch("/joints", [[5.0, 6.0]], [1], channels=["c", "a"]), first.info)
    assert second.info.channels == ("a", "b", "c")
    np.testing.assert_array_equal(second.values, [[6, np.nan, 5]])
    third = grown(batch("/joints", [[7.0, 8.0]], [2], channels=["a", "b"]), second.info)
    np.testing.assert_array_equal(third.values, [[7, 8, np.nan]])
    stream = made(first, second, third).streams["/joints"]
    np.testing.assert_array_equal(stream.values, [[1, 2, np.nan], [6, np.nan, 5], [7, 8, np.nan]])


def test_metadata_that_lies_is_told_or_harmless(tmp_path):
    from robocache._recordings.rosbag2 import read_yaml

    path = write(tmp_path / "bag", count=3)
    content = read_yaml((path / "metadata.yaml").read_text())
    for lie in lies(content):
        (path / "metadata.yaml").write_text(json.dumps(lie))  # JSON is YAML
        with contextlib.suppress(rc.FileError):
            recording = rc.open(path)
            repr(recording)
            dict(recording.streams.items())


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("a" * 5000, r'the file "a{60}": File name too long'),
        ({"topic": "a"}, r"relative_file_paths holds \{'topic': 'a'\}; expected names of files"),
    ],
)
def test_metadata_that_names_no_file(tmp_path, name, sentence):
    path = write(tmp_path / "bag", count=3)
    (path / "metadata.yaml").write_text(
        json.dumps({"rosbag2_bagfile_information": {"version": 5, "relative_file_paths": [name]}})
    )
    with pytest.raises(rc.FileError, match=sentence):
        rc.open(path)


# ---- Files that were not closed


def unfinished(path, journal, count=300, extra=400):
    """A bag as a crash leaves it: `count` messages were committed, `extra` more were being written."""
    write(path, count=count)
    (file,) = path.glob("*.db3")
    image = path.with_name("crashed")
    image.mkdir()
    database = sqlite3.connect(file)
    try:
        database.execute(f"PRAGMA journal_mode = {journal}")
        database.execute("PRAGMA cache_size = 2")  # so that pages of the transaction go into the file
        data = bytes(STORE.serialize_cdr(imu(7), "sensor_msgs/msg/Imu"))
        database.execute("BEGIN")
        for k in range(extra):
            at = 200 * SECOND + k
            database.execute("INSERT INTO messages (topic_id, timestamp, data) VALUES (1, ?, ?)", (at, data))
        database.execute("UPDATE messages SET data = ? WHERE timestamp < ?", (data, 101 * SECOND))
        if journal == "WAL":  # these were committed, and lie in the log
            database.execute("ROLLBACK")
            query = "INSERT INTO messages (topic_id, timestamp, data) VALUES (1, ?, ?)"
            for k in range(count, count + 50):
                message = bytes(STORE.serialize_cdr(imu(k), "sensor_msgs/msg/Imu"))
                database.execute(query, (100 * SECOND + k * 10_000_000 + 2_000_000, message))
            database.commit()
        for part in path.iterdir():
            if not part.name.endswith("-shm"):
                (image / part.name).write_bytes(part.read_bytes())
    finally:
        database.close()
    return image


@pytest.mark.parametrize("alone", [False, True])
def test_a_transaction_that_was_not_finished_is_rolled_back_in_a_copy(tmp_path, alone):
    image = unfinished(tmp_path / "bag", "DELETE")
    (file,) = image.glob("*.db3")
    (journal,) = image.glob("*.db3-journal")
    before = {part: part.read_bytes() for part in image.iterdir()}
    recording = rc.open(file if alone else image)
    check(recording)
    assert any("the transaction that was not finished is left out" in note for note in recording.notes)
    assert {part: part.read_bytes() for part in image.iterdir()} == before
    assert journal in recording.files
    with rc.CacheWriter(tmp_path / "cache") as writer:
        assert writer.add(recording) == 1
        assert writer.knows(rc.open(file if alone else image))
    np.testing.assert_array_equal(rc.Cache(tmp_path / "cache").episodes[0].streams["/imu"].values[:, 4], np.arange(300))


def test_a_copy_goes_with_its_recording_but_not_in_a_child(tmp_path, monkeypatch):
    import os
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    recording = rc.open(unfinished(tmp_path / "bag", "DELETE"))
    child = os.fork()
    if child == 0:
        try:
            check(recording)
            recording = None
            gc.collect()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert len(list((tmp_path / "temporary").iterdir())) == 1
    check(recording)
    recording = None
    gc.collect()
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_journal_that_cannot_be_copied_gets_a_sentence(tmp_path, monkeypatch):
    import shutil

    image = unfinished(tmp_path / "bag", "DELETE")

    def full(*given):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(rc.FileError, match=r"db3: it was not closed.*No space left on device; TMPDIR names another"):
        rc.open(image)


def test_a_write_ahead_log_is_read_and_stamped(tmp_path):
    image = unfinished(tmp_path / "bag", "WAL")
    (log,) = image.glob("*.db3-wal")
    recording = rc.open(image)
    check(recording, 350)
    assert log in recording.files
    with rc.CacheWriter(tmp_path / "cache") as writer:
        assert writer.add(recording) == 1
        assert writer.knows(rc.open(image))
    (file,) = image.glob("*.db3")
    writing = sqlite3.connect(file)
    writing.execute("PRAGMA wal_autocheckpoint = 0")
    message = bytes(STORE.serialize_cdr(imu(350), "sensor_msgs/msg/Imu"))
    query = "INSERT INTO messages (topic_id, timestamp, data) VALUES (1, ?, ?)"
    writing.execute(query, (100 * SECOND + 350 * 10_000_000 + 2_000_000, message))
    writing.commit()  # the log has grown; the file itself is as it was
    with rc.CacheWriter(tmp_path / "cache") as writer:
        assert not writer.knows(rc.open(image))
        assert writer.add(rc.open(image)) == 1
    writing.close()
    cache = rc.Cache(tmp_path / "cache")
    assert len(cache.episodes) == 1
    assert len(cache.episodes[0].streams["/imu"]) == 351


def test_a_bag_that_is_being_written_is_told(tmp_path):
    write(tmp_path / "bag")
    (file,) = (tmp_path / "bag").glob("*.db3")
    writing = sqlite3.connect(file)
    writing.execute("PRAGMA cache_size = 2")
    writing.execute("BEGIN EXCLUSIVE")
    for k in range(400):
        writing.execute("INSERT INTO messages (topic_id, timestamp, data) VALUES (1, ?, ?)", (k, bytes(400)))
    try:
        with pytest.raises(
            rc.FileError, match=r"db3: cannot be read as SQLite: .*locked, by the process that is writing"
        ):
            rc.open(tmp_path / "bag")
    finally:
        writing.close()
    check(rc.open(tmp_path / "bag"))


def test_threads_and_a_child_share_a_database(tmp_path):
    import os
    from concurrent.futures import ThreadPoolExecutor

    recording = rc.open(write(tmp_path / "bag"))
    with ThreadPoolExecutor(8) as executor:
        for done in [executor.submit(lambda: check(rc.Recording(recording._source))) for _ in range(24)]:
            done.result(timeout=60)
    child = os.fork()
    if child == 0:
        try:
            check(rc.Recording(recording._source))
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
