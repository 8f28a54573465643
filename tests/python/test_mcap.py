"""robocache.mcap: the conformance files, the `mcap` package as the judge of what is written, order, damage, hostile
files. tests/formats/mcap_test.cpp has the engine's own."""

from __future__ import annotations

import contextlib
import io
import json
import random
import subprocess
import sys
import textwrap
import threading
import warnings

import mcap_files as files
import pytest
from recordings import all_shared

import robocache
from robocache import FileError, mcap

CONFORMANCE = all_shared("mcap-conformance", "*.json")
RECORDINGS = all_shared("mcap", "*.mcap")
COMPRESSIONS = ["zstd", "lz4", None]


@pytest.fixture(autouse=True)
def _warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error", mcap.McapWarning)
        yield


def of(m: mcap.Message) -> tuple:
    return m.topic, m.log_time, m.publish_time, m.sequence, m.data


def judged(path, **options) -> list[tuple]:
    """The messages as the `mcap` package reads them; it checks CRCs."""
    reader = pytest.importorskip("mcap.reader")
    source = io.BytesIO(path) if isinstance(path, bytes) else path.open("rb")
    with source:
        found = reader.make_reader(source, validate_crcs=True).iter_messages(**options)
        return [(c.topic, m.log_time, m.publish_time, m.sequence, m.data) for _, c, m in found]


def told(path) -> tuple[list[tuple], list[str]]:
    """Messages, and the warnings that came with them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", mcap.McapWarning)
        found = [of(m) for m in mcap.messages(path)]
    return found, [str(w.message) for w in caught]


# ---- conformance


def plain(value):
    """As the JSON of the conformance files has it."""
    if isinstance(value, int):
        return str(value)
    if isinstance(value, bytes):
        return [str(byte) for byte in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return value


@pytest.mark.parametrize("path", CONFORMANCE, ids=lambda path: getattr(path, "stem", None))
def test_conformance(path):
    expected = json.loads(path.read_text())
    source = path.with_suffix(".mcap")
    found = list(mcap.records(source))
    assert [{"type": r.type, "fields": plain(r.fields)} for r in found] == [
        {"type": r["type"], "fields": dict(r["fields"])} for r in expected["records"]
    ]
    data = [r.fields for r in found if r.type == "Message"]
    data.sort(key=lambda fields: fields["log_time"])
    assert [(m.log_time, m.sequence, m.data) for m in mcap.messages(source)] == [
        (fields["log_time"], fields["sequence"], fields["data"]) for fields in data
    ]
    features = expected["meta"]["variant"]["features"]
    if "pad" not in features:
        assert copied(found, features) == source.read_bytes()


def copied(records: list[mcap.Record], features: list[str]) -> bytes:
    """The same records through our writer, with the features that the file has."""
    out = io.BytesIO()
    writer = mcap.Writer(
        out,
        compression=None,
        library="",
        chunks="ch" in features,
        message_indexes="mx" in features,
        statistics="st" in features,
        schemas="rsh" in features,
        channels="rch" in features,
        attachment_indexes="ax" in features,
        metadata_indexes="mdx" in features,
        chunk_indexes="chx" in features,
        summary_offsets="sum" in features,
    )
    with writer:
        for record in records:
            copy_record(writer, record)
            if record.type == "DataEnd":
                break
    return out.getvalue()


def copy_record(writer: mcap.Writer, record: mcap.Record) -> None:
    f = record.fields
    if record.type == "Schema":
        writer.add_schema(f["name"], f["encoding"], f["data"], id=f["id"])
    if record.type == "Channel":
        writer.add_channel(f["topic"], f["message_encoding"], f["schema_id"], f["metadata"], id=f["id"])
    if record.type == "Message":
        writer.write(f["channel_id"], f["data"], f["log_time"], f["publish_time"], f["sequence"])
    if record.type == "Attachment":
        writer.attach(f["name"], f["data"], f["media_type"], f["log_time"], f["create_time"])
    if record.type == "Metadata":
        writer.add_metadata(f["name"], f["metadata"])


# ---- recordings, and the judge


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: getattr(path, "stem", None))
def test_recordings_read_as_the_mcap_package_reads_them(path):
    ours = [of(m) for m in mcap.messages(path)]
    assert ours == judged(path)
    reader = mcap.Reader(path)
    assert reader.is_indexed
    assert reader.statistics["message_count"] == len(ours)
    assert sorted(of(m) for m in reader.messages(in_order=False)) == sorted(ours)
    topic = ours[0][0]
    start, end = ours[len(ours) // 4][1], ours[len(ours) // 2][1]
    chosen = [of(m) for m in mcap.messages(path, topics=topic, start=start, end=end)]
    assert chosen == judged(path, topics=[topic], starting_at=start, ending_before=end)
    assert [of(m) for m in mcap.messages(path.read_bytes())] == ours


def sample(count: int = 400, seed: int = 0, spread: int = 50) -> list[tuple]:
    """Messages out of order, with equal times."""
    rng = random.Random(seed)
    found = []
    for k in range(count):
        time = max(0, k + rng.randint(-spread, spread))
        found.append((rng.choice(["/a", "/b", "/c"]), time, time + 1, k, rng.randbytes(rng.randint(0, 90))))
    return found


def written(messages: list[tuple], **options) -> bytes:
    out = io.BytesIO()
    with mcap.Writer(out, **options) as writer:
        schema = writer.add_schema("demo/Text", "text", "any text")
        for topic, log_time, publish_time, sequence, data in messages:
            channel = writer.add_channel(topic, "text", schema if topic != "/c" else None, {"of": topic})
            writer.write(channel, data, log_time, publish_time, sequence)
        writer.attach("notes.txt", b"one note", "text/plain", log_time=5, create_time=6)
        writer.add_metadata("robot", {"name": "arm 7", "empty": ""})
    return out.getvalue()


@pytest.mark.parametrize("chunk_size", [1, 1000, 4 << 20])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_the_mcap_package_reads_what_is_written(compression, chunk_size):
    messages = sample()
    content = written(messages, compression=compression, chunk_size=chunk_size, profile="ros2")
    ordered = sorted(messages, key=lambda m: m[1])
    assert judged(content) == ordered
    assert [of(m) for m in mcap.messages(content)] == ordered
    reader = pytest.importorskip("mcap.reader").make_reader(io.BytesIO(content), validate_crcs=True)
    summary = reader.get_summary()
    assert reader.get_header().profile == "ros2"
    assert summary.statistics.message_count == len(messages)
    assert {c.topic: dict(c.metadata) for c in summary.channels.values()} == {t: {"of": t} for t in ("/a", "/b", "/c")}
    assert [(a.name, a.media_type, a.data, a.log_time, a.create_time) for a in reader.iter_attachments()] == [
        ("notes.txt", "text/plain", b"one note", 5, 6)
    ]
    assert [(m.name, dict(m.metadata)) for m in reader.iter_metadata()] == [("robot", {"name": "arm 7", "empty": ""})]
    ours = mcap.Reader(content)
    assert ours.attachment(0)["data"] == b"one note"
    assert ours.metadata(0)["metadata"] == {"name": "arm 7", "empty": ""}
    assert sum(len(i["records"]) for k in range(len(ours.chunk_indexes)) for i in ours.message_indexes(k)) == 400


def test_the_mcap_package_reads_files_without_chunks_and_summary():
    messages = sample()
    content = written(messages, chunks=False)
    stream = pytest.importorskip("mcap.stream_reader")
    found = list(stream.StreamReader(io.BytesIO(content), validate_crcs=True).records)
    assert [r.data for r in found if type(r).__name__ == "Message"] == [m[4] for m in messages]
    assert judged(content) == sorted(messages, key=lambda m: m[1])
    bare = dict.fromkeys(
        ["message_indexes", "schemas", "channels", "statistics", "chunk_indexes", "summary_offsets"], False
    )
    content = written(messages, crcs=False, chunk_size=700, **bare)
    assert judged(content) == sorted(messages, key=lambda m: m[1])
    assert [of(m) for m in mcap.messages(content)] == judged(content)


@pytest.mark.parametrize("compression", ["ZSTD", "LZ4", "NONE"])
def test_what_the_mcap_package_writes_is_read(compression, tmp_path):
    package = pytest.importorskip("mcap.writer")
    path = tmp_path / "theirs.mcap"
    messages = sample()
    with path.open("wb") as file:
        writer = package.Writer(file, chunk_size=1500, compression=package.CompressionType[compression])
        writer.start("ros2", "test")
        schema = writer.register_schema("demo/Text", "text", b"any text")
        channels = {t: writer.register_channel(t, "text", schema) for t in ("/a", "/b", "/c")}
        for topic, log_time, publish_time, sequence, data in messages:
            writer.add_message(channels[topic], log_time, data, publish_time, sequence)
        writer.finish()
    assert [of(m) for m in mcap.messages(path)] == sorted(messages, key=lambda m: m[1])
    assert mcap.Reader(path).is_indexed
    message = next(iter(mcap.messages(path)))
    assert message.schema == (schema, "demo/Text", "text", b"any text")
    assert message.channel.message_encoding == "text"
    assert message.channel.schema is message.schema


# ---- selection


def test_topics_and_times_are_selected():
    messages = sample(seed=1)
    content = written(messages, chunk_size=800)
    ordered = sorted(messages, key=lambda m: m[1])

    def expected(topics, start, end):
        return [m for m in ordered if m[0] in topics and start <= m[1] < end]

    assert [of(m) for m in mcap.messages(content, topics=["/a", "/c"])] == expected("/a/c", 0, 1000)
    assert [of(m) for m in mcap.messages(content, "/a", 100, 101)] == expected("/a", 100, 101)
    assert [of(m) for m in mcap.messages(content, start=100, end=200)] == expected("/a/b/c", 100, 200)
    assert [of(m) for m in mcap.messages(content, start=100e-9, end=2.0)] == expected("/a/b/c", 100, 1000)
    assert [of(m) for m in mcap.messages(content, start=-5, end=1 << 70)] == ordered
    assert list(mcap.messages(content, start=1 << 70)) == []
    assert list(mcap.messages(content, topics=[])) == []
    assert list(mcap.messages(content, end=-1)) == []


def test_an_unknown_topic_is_told_with_the_near_ones():
    content = written(sample())
    with pytest.raises(ValueError, match=r'bytes in memory: has no topic "/d"; near are "/a", "/b", "/c"'):
        mcap.messages(content, topics=["/a", "/d"])
    with pytest.raises(ValueError, match="it has no topics at all"):
        mcap.messages(files.finish(b""), topics="/a")
    with pytest.raises(TypeError, match="start is 'soon'; expected nanoseconds"):
        mcap.messages(content, start="soon")
    with pytest.raises(ValueError, match="end is nan"):
        mcap.messages(content, end=float("nan"))


# ---- where the bytes come from


def test_paths_memory_file_objects_and_addresses(tmp_path):
    messages = sample(50)
    content = written(messages)
    path = tmp_path / "file.mcap"
    path.write_bytes(content)
    expected = sorted(messages, key=lambda m: m[1])
    sources = [path, str(path), content, bytearray(content), memoryview(content), io.BytesIO(content)]
    for source in sources:
        assert [of(m) for m in mcap.messages(source)] == expected
        assert len(list(mcap.records(source))) > 50
    with path.open("rb", buffering=0) as file:
        assert [of(m) for m in mcap.messages(file)] == expected
    fsspec = pytest.importorskip("fsspec")
    with fsspec.open("memory://file.mcap", "wb") as file:
        file.write(content)
    assert [of(m) for m in mcap.messages("memory://file.mcap")] == expected
    assert [of(m) for m in mcap.messages(fsspec.open("memory://file.mcap"))] == expected
    with pytest.raises(FileError, match="memory://nothing: cannot be opened"):
        mcap.messages("memory://nothing")
    with pytest.raises(TypeError, match=r"mcap.messages: path is 7; expected a path|mcap.Reader: path is 7"):
        mcap.messages(7)


def test_a_file_object_that_fails_is_heard():
    class Broken(io.BytesIO):
        def read(self, count=-1):
            raise KeyError("no such bytes")

    with pytest.raises(KeyError, match="no such bytes"):
        mcap.messages(Broken(written(sample(3))))

    class Short(io.BytesIO):
        def read(self, count=-1):
            return super().read(min(count, 7))

    assert len(list(mcap.messages(Short(written(sample(3)))))) == 3

    class Shrinking(io.BytesIO):
        def read(self, count=-1):
            return super().read(count) if self.tell() < 20 else b""

    with pytest.raises(FileError, match="became shorter while it was read"):
        list(mcap.messages(Shrinking(written(sample(3)))))


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(FileError, match="No such file"):
        mcap.messages(tmp_path / "none.mcap")
    with pytest.raises(FileError, match="this is not a file"):
        mcap.records(tmp_path)
    with pytest.raises(FileError, match="cannot be written: No such file or directory"):
        mcap.Writer(tmp_path / "no" / "folder.mcap")


# ---- writing


def test_a_writer_to_a_path(tmp_path):
    path = tmp_path / "out.mcap"
    with contextlib.suppress(ZeroDivisionError), mcap.Writer(path, "lz4") as writer:
        channel = writer.add_channel("/a", "json")
        assert writer.add_channel("/a", "json") == channel
        writer.write(channel, b"{}", 5)
        writer.flush()
        writer.write(channel, memoryview(b"[]"), log_time=6, publish_time=4, sequence=9)
        raise ZeroDivisionError
    assert [of(m) for m in mcap.messages(path)] == [("/a", 5, 5, 0, b"{}"), ("/a", 6, 4, 9, b"[]")]
    assert writer.statistics["message_count"] == 2
    with pytest.raises(ValueError, match="is finished; nothing more can be written"):
        writer.write(channel, b"", 7)
    with pytest.raises(ValueError, match=r'compression is \'gzip\'; expected "zstd", "lz4" or None'):
        mcap.Writer(path, "gzip")
    with pytest.raises(TypeError, match="path is None; expected a path, or a file object"):
        mcap.Writer(None)
    with mcap.Writer(path) as writer, pytest.raises(ValueError, match="names channel 3, which is not declared"):
        writer.write(3, b"", 0)


def test_a_sink_that_fails_is_heard_and_left_alone():
    class Full(io.BytesIO):
        def write(self, data):
            if self.tell() > 1000:
                raise OSError(28, "No space left on device")
            return super().write(data[:100])  # as sockets and pipes do

    out = Full()
    writer = mcap.Writer(out, None, chunk_size=200)
    channel = writer.add_channel("/a", "")

    def write_on():
        for k in range(100):
            writer.write(channel, bytes(50), k)

    with pytest.raises(OSError, match="No space left"):
        write_on()
    with pytest.raises(FileError, match="could not be written before"):
        writer.close()
    found, said = told(out.getvalue())
    assert len(found) >= 4
    assert said


# ---- damage and hostile files


@pytest.mark.parametrize("name", list(files.valid()))
def test_small_files(name):
    content = files.valid()[name]
    assert [(m.log_time, m.sequence) for m in mcap.messages(content)] == [(1, 0), (2, 1)]
    assert judged(content) == [of(m) for m in mcap.messages(content)]
    assert list(mcap.records(content))[-1].type == "Footer"


@pytest.mark.parametrize("name", list(files.malformed()))
def test_malformed_files(name):
    content, count, sentence = files.malformed()[name]
    found, said = told(content)
    assert len(found) == count
    assert any(sentence in text for text in said) or not sentence
    assert all(text.startswith("bytes in memory: ") for text in said)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mcap.McapWarning)
        assert sum(r.type == "Message" for r in mcap.records(content)) >= count
        list(mcap.records(content, unpack=False))


def test_every_truncation_reads_what_is_whole():
    content = written(sample(30, spread=0), compression="zstd", chunk_size=300)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mcap.McapWarning)
        whole = [of(m) for m in mcap.messages(content)]
        most = 0
        for size in range(len(files.MAGIC), len(content)):
            found = [of(m) for m in mcap.messages(content[:size])]
            assert found == whole[: len(found)]
            assert len(found) >= most
            most = len(found)
    assert most == len(whole)


def test_damaged_attachments_and_data_sections_are_told():
    reader = mcap.Reader(files.malformed()["attachment_crc"][0])
    with pytest.raises(FileError, match="its Attachment at byte 29 does not match its CRC"):
        reader.attachment(0)
    with pytest.warns(mcap.McapWarning, match="its Attachment at byte 29 does not match its CRC; it is left out"):
        list(mcap.records(files.malformed()["attachment_crc"][0]))
    content = files.finish(files.TWO).replace(b"any", b"ANY")
    with pytest.warns(mcap.McapWarning, match="its data section does not match its CRC"):
        list(mcap.records(content))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty; expected an MCAP file"),
        (b"SQLite format 3\0", "is not an MCAP file: it begins with"),
        (b"\x89MCAP1\r\n" + bytes(100), 'is MCAP version "1"; expected "0"'),
        (b"\x89MCAP0\n" + bytes(100), "was it converted as text"),
    ],
)
def test_what_is_no_mcap_is_told_so(content, sentence):
    for read in (mcap.messages, mcap.records, mcap.Reader):
        with pytest.raises(FileError, match=f"bytes in memory: .*{sentence}|bytes in memory: {sentence}"):
            read(content)


# ---- memory and threads


def test_memory_is_bounded_whatever_the_order(tmp_path):
    """600 MB in 4 MiB chunks that all overlap."""
    path = tmp_path / "large.mcap"
    with mcap.Writer(path) as writer:
        channel = writer.add_channel("/a", "")
        data = bytes(100_000)
        for k in range(6000):
            writer.write(channel, data, (k * 7919) % 6000, sequence=k)
    script = f"""
        import resource
        from robocache import mcap
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        times = [m.log_time for m in mcap.messages({str(path)!r})]
        assert times == list(range(6000))
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 150  # MiB


def test_two_threads_take_turns():
    reader = mcap.Reader(written(sample(3000), chunk_size=500))
    counts, refused = [], []

    def count():
        try:
            counts.append(sum(1 for _ in reader.messages()))
        except RuntimeError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(counts) + len(refused) == 8
    assert set(counts) <= {3000}
    assert all("is being read by another thread" in sentence for sentence in refused)


def test_messages_show_themselves():
    message = next(mcap.messages(files.valid()["plain"]))
    assert repr(message) == "Message(topic='/a', log_time=1, publish_time=1, sequence=0, data=4 bytes)"
    assert repr(message.schema) == "Schema(id=1, name='demo/Text', encoding='text', data=3 bytes)"
    assert repr(mcap.Reader(files.valid()["plain"])) == "Reader('bytes in memory', 1 channels, 0 chunks)"
    with pytest.raises(AttributeError):
        message.data = b""
    with pytest.raises(TypeError):
        type(message)()


def test_a_reader_is_a_context_manager(tmp_path):
    with mcap.Writer(tmp_path / "a.mcap") as writer:
        writer.write(writer.add_channel("/a", "json"), b"{}", log_time=5)
    with mcap.Reader(tmp_path / "a.mcap") as reader:
        assert [message.log_time for message in reader.messages()] == [5]
        rest = reader.messages()
    assert [message.topic for message in rest] == ["/a"]  # what was begun goes on
    assert repr(reader).endswith("closed)")
    with pytest.raises(ValueError, match="was closed"):
        reader.messages()
    reader.close()


@pytest.mark.parametrize("number", [-1, 2**64, 1.5, "now", None])
def test_a_time_that_mcap_cannot_hold(number):
    """Its times are unsigned 64-bit nanoseconds. nanobind's list of overloads is no sentence."""
    with mcap.Writer(io.BytesIO()) as writer:
        channel = writer.add_channel("/a", "json")
        kind = ValueError if isinstance(number, int) else TypeError
        with pytest.raises(kind, match=r"^mcap\.Writer\.write: log_time is ") as caught:
            writer.write(channel, b"{}", number)
        assert "\n" not in str(caught.value)
        if number is not None:
            with pytest.raises(kind, match=r"^mcap\.Writer\.write: publish_time is "):
                writer.write(channel, b"{}", 0, number)
        with pytest.raises(kind, match=r"^mcap\.Writer\.attach: log_time is "):
            writer.attach("a", b"", log_time=number)
        with pytest.raises(ValueError, match=r"^mcap\.Writer\.write: channel is 65536; it must be from 0 to 2\^16 - 1"):
            writer.write(65536, b"{}", 0)
        writer.write(channel, b"{}", 2**64 - 1)


def test_log_times_past_2_to_the_63():
    """A message whose log time no int64 holds is left out with a sentence; the others are read."""
    file = io.BytesIO()
    with mcap.Writer(file) as writer:
        schema = writer.add_schema("S", "jsonschema", b"{}")
        for topic, times in {"/a": [2**63 + 5, 10**9], "/b": [2**64 - 1]}.items():
            channel = writer.add_channel(topic, "json", schema)
            for time in times:
                writer.write(channel, b'{"x": 1.5}', time)
    recording = robocache.open(file.getvalue())
    stream = recording.streams["/a"]
    assert stream.times.tolist() == [10**9]
    assert "/b" not in recording.streams
    assert any("2^62" in note for note in recording.notes), recording.notes
