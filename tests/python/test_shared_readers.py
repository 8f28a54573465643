"""Readers and writers that threads share, and what a forked child may do with them."""

import io
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import robocache as rc
from robocache import mcap
from robocache._recordings.bytes import FileObject, source_of

PATIENCE = 60  # seconds after which something hangs
TOPICS, COUNT = 6, 400


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Topics /0 to /5, each with the numbers 0, 1, 2, ...; many small chunks."""
    path = tmp_path_factory.mktemp("shared") / "run.mcap"
    with mcap.Writer(path, chunk_size=4096) as writer:
        channels = [
            writer.add_channel(f"/{k}", "json", writer.add_schema(f"s{k}", "jsonschema", "{}")) for k in range(TOPICS)
        ]
        for at in range(COUNT):
            for k, channel in enumerate(channels):
                data = json.dumps({"x": at, "topic": k, "pad": "p" * 50}).encode()
                writer.write(channel, data, log_time=at * 1_000_000)
        writer.attach("notes", b"n" * 1000)
    return path


class Slow(io.RawIOBase):
    """A file object of the user's own that gives the other threads every chance to come between seek and read."""

    def __init__(self, content):
        self.content, self.place = content, 0

    def seek(self, offset, whence=0):
        self.place = offset if whence == 0 else len(self.content) + offset
        time.sleep(0)
        return self.place

    def read(self, count=-1):
        time.sleep(0)
        found = self.content[self.place : self.place + count]
        self.place += len(found)
        return found


def openings(file):
    return {
        "path": lambda: file,
        "bytes": file.read_bytes,
        "file": lambda: file.open("rb"),
        "BytesIO": lambda: io.BytesIO(file.read_bytes()),
        "slow": lambda: Slow(file.read_bytes()),
    }


KINDS = ("path", "bytes", "file", "BytesIO", "slow")


def together(work, count=8):
    begin = threading.Barrier(count)

    def one(k):
        begin.wait(PATIENCE)
        return work(k)

    with ThreadPoolExecutor(count) as executor:
        return [done.result(timeout=PATIENCE) for done in [executor.submit(one, k) for k in range(count)]]


@pytest.mark.parametrize("kind", KINDS)
def test_threads_share_a_recording(file, kind):
    for _ in range(3):
        recording = rc.open(openings(file)[kind]())

        def work(k, recording=recording):
            name = f"/{k % TOPICS}"
            stream = recording.streams[name] if k % 2 else recording.episodes[0].streams.select(name)[name]
            assert stream.values[:, 0].tolist() == list(range(COUNT))
            assert set(stream.values[:, 1]) == {k % TOPICS}
            return id(stream)

        found = together(work)
        assert found[0] == found[6]
        assert list(recording.streams) == [f"/{k}" for k in range(TOPICS)]


@pytest.mark.parametrize("kind", KINDS)
def test_threads_share_one_pass(file, kind):
    """Each batch goes to one of them."""
    passing = rc.open(openings(file)[kind]()).batches()
    found = together(lambda k: [(batch.stream, batch.values[:, 0].tolist()) for batch in passing])
    every = sorted(((name, x) for part in found for name, values in part for x in values))
    assert every == sorted((f"/{k}", float(x)) for k in range(TOPICS) for x in range(COUNT))


def test_threads_share_messages(file):
    """Each message goes to one of them, whether they ask by for or by next."""
    expected = sorted((m.topic, m.log_time) for m in mcap.messages(file))
    for passing in (mcap.messages(file), mcap.Reader(file).messages(in_order=False)):

        def work(k, passing=passing):
            return [(m.topic, m.log_time) for m in (passing if k % 2 else iter(lambda: next(passing, None), None))]

        assert sorted(m for part in together(work) for m in part) == expected
    records = mcap.records(file)
    assert sum(together(lambda k: sum(r.type == "Message" for r in records))) == len(expected)


def test_messages_go_on_where_a_loop_was_left(file):
    expected = [(m.topic, m.log_time) for m in mcap.Reader(file).messages()]
    passing = mcap.messages(file)
    found = [next(passing)]
    for message in passing:
        found.append(message)
        if len(found) == 3:
            break
    found += [next(passing), *passing]
    assert [(m.topic, m.log_time) for m in found] == expected
    assert next(passing, None) is None


def test_threads_share_the_engines_iterators(file):
    """Below Python's generators, which refuse a second thread by themselves."""
    pieces = rc.open(file)._source.source.engine.pieces()
    found = together(lambda k: sum(len(piece[2]) for piece in pieces))
    assert sum(found) == TOPICS * COUNT
    reader = mcap.Reader(file)
    chosen = rc._core.McapMessages(reader._engine, None, 0, None, True)

    def take(k):
        count = 0
        while batch := chosen.take(50):
            count += len(batch)
        return count

    assert sum(together(take)) == TOPICS * COUNT
    source, name = source_of(file, "test")
    records = rc._core.McapRecords(source, name, True)

    def read(k):
        count = 0
        while batch := records.take(50):
            count += sum(kind == "Message" for kind, _ in batch)
        return count

    assert sum(together(read)) == TOPICS * COUNT


@pytest.mark.parametrize("kind", KINDS)
def test_threads_share_a_reader(file, kind):
    reader = mcap.Reader(openings(file)[kind]())

    def work(k):
        topic = f"/{k % TOPICS}"
        numbers = [json.loads(message.data)["x"] for message in reader.messages([topic])]
        assert numbers == list(range(COUNT))
        assert reader.attachment(0)["data"] == b"n" * 1000
        assert len(reader.channels) == len(reader.schemas) == TOPICS
        assert sum(len(index["records"]) for index in reader.message_indexes(3)) > 0
        return reader.warnings

    assert together(work) == [[]] * 8


@pytest.mark.parametrize("to", ["path", "file", "slow"])
def test_threads_share_a_writer(tmp_path, to):
    class SlowSink(io.BytesIO):
        def write(self, data):
            time.sleep(0)
            return super().write(data)

    target = {"path": tmp_path / "out.mcap", "file": io.BytesIO(), "slow": SlowSink()}[to]
    with mcap.Writer(target, chunk_size=2000) as writer:

        def work(k):
            schema = writer.add_schema(f"s{k}", "jsonschema", "{}")
            channel = writer.add_channel(f"/{k}", "json", schema)
            for at in range(200):
                writer.write(channel, json.dumps({"x": at}).encode(), log_time=at)
                if at % 50 == 0:
                    writer.flush()
                    assert writer.statistics["message_count"] > 0

        together(work)
    content = target.read_bytes() if to == "path" else target.getvalue()
    reader = mcap.Reader(content)
    found = {}
    for message in reader.messages():
        found.setdefault(message.topic, []).append(json.loads(message.data)["x"])
    assert found == {f"/{k}": list(range(200)) for k in range(8)}
    assert reader.warnings == []


def test_a_reader_inside_itself_gets_a_sentence(file):
    """A file object whose read() uses the reader that reads it."""

    class Inside(Slow):
        chosen = None

        def read(self, count=-1):
            if self.chosen is not None:
                self.chosen.take(1)
            return super().read(count)

    source = Inside(file.read_bytes())
    reader = mcap.Reader(source)
    source.chosen = rc._core.McapMessages(reader._engine, None, 0, None, True)
    with pytest.raises(RuntimeError, match=r"mcap\.messages: this iterator is already in use by this thread"):
        source.chosen.take(500)
    source.chosen = None  # a cycle through the engine, which Python's collector does not see


def test_an_open_file_is_read_where_it_is_asked_for(file):
    """Its position is never moved, since a forked child shares it; of a closed one nothing is read."""
    with file.open("rb") as opened:
        reader = FileObject(opened)
        place = opened.tell()
        assert reader.read(5, 3) == file.read_bytes()[5:8]
        assert opened.tell() == place
    with pytest.raises(ValueError, match="closed file"):
        reader.read(5, 3)


def in_child(work):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        import signal

        signal.alarm(PATIENCE)
        try:
            os.write(writing, json.dumps(work()).encode())
        except BaseException as error:
            os.write(writing, json.dumps(f"{type(error).__name__}: {error}").encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    assert os.waitpid(child, 0)[1] == 0, "the child died, or hung"
    return json.loads(said)


@pytest.mark.parametrize("kind", KINDS)
def test_a_forked_child_goes_on_with_a_recording(file, kind):
    recording = rc.open(openings(file)[kind]())
    assert len(recording.streams["/0"]) == COUNT

    def work():
        return [recording.streams[f"/{k}"].values[:, 0].tolist() == list(range(COUNT)) for k in range(TOPICS)]

    stop = threading.Event()

    def read():
        while not stop.is_set():
            for _ in rc.Recording(recording._source).batches():
                pass

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            assert in_child(work) == [True] * TOPICS
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
    assert work() == [True] * TOPICS


def test_an_iterator_that_another_thread_was_in_says_so_in_a_child(file):
    inside, go = threading.Event(), threading.Event()

    class Waiting(Slow):
        waits = False

        def read(self, count=-1):
            if self.waits:
                inside.set()
                go.wait(PATIENCE)
            return super().read(count)

    source = Waiting(file.read_bytes())
    pieces = rc.open(source)._source.source.engine.pieces()
    source.waits = True
    thread = threading.Thread(target=lambda: list(pieces))
    thread.start()
    assert inside.wait(PATIENCE)
    try:
        said = in_child(lambda: len(list(pieces)))
    finally:
        source.waits = False
        go.set()
        thread.join(PATIENCE)
    assert said == (
        "RuntimeError: this pass over a recording was in use by another thread when this process was forked; "
        "open it again in the child"
    )


def test_arrays_of_two_passes_are_their_own(file):
    """What was handed out stays, whatever other threads read."""
    recording = rc.open(file)
    first = [(batch.stream, batch.values.copy(), batch) for batch in recording.batches()]
    together(lambda k: [batch.values.sum() for batch in recording.batches()])
    for name, values, batch in first:
        np.testing.assert_array_equal(batch.values, values, err_msg=name)
