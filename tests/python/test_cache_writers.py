"""Writers: one at a time, across forks and threads; a failed add leaves nothing; the journal; caches of version 1."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from cache_cases import FakeRecording, check_episode, episode, streams_of, version_1
from shims import shim_of

import robocache as rc
from robocache._align.stream import UncheckedStream

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "golden"


def names(path):
    return [entry.name for entry in rc.Cache(path).episodes]


def journal_of(path):
    (found,) = path.glob("journal.*")
    return found


def stamped(values, channels=None, **more):
    values = np.asarray(values, np.float32)
    return rc.Stream(values, np.arange(len(values)) * 10_000_000, channels=channels, **more)


# ---- Symbolic links


@pytest.mark.parametrize("name", ["lock", "manifest.json.tmp"])
def test_a_link_in_place_of_a_file_is_refused(tmp_path, name):
    path, target = tmp_path / "c", tmp_path / "precious"
    target.write_text("precious")
    with rc.CacheWriter(path) as writer:
        writer.add(streams_of(episode(0)), name="one")
    (path / name).unlink(missing_ok=True)
    (path / name).symlink_to(target)

    def write():
        with rc.CacheWriter(path) as writer:
            (path / name).unlink(missing_ok=True)  # a writer removes what a crash left, links too
            (path / name).symlink_to(target)
            writer.add(streams_of(episode(1)), name="two")

    with pytest.raises(rc.FileError, match=f"{name}: is a symbolic link, which a cache never writes to"):
        write()
    assert target.read_text() == "precious"
    (path / name).unlink()
    assert names(path) == ["one"]


def test_shards_that_are_a_link_are_left_alone(tmp_path):
    path, other = tmp_path / "c", tmp_path / "other"
    with rc.CacheWriter(other) as writer:
        writer.add(streams_of(episode(0)), name="one")
    path.mkdir()
    (path / "shards").symlink_to(other / "shards")
    manifest = (other / "manifest.json").read_text()
    for text in (None, manifest):
        if text is not None:
            (path / "manifest.json").write_text(text)
        with pytest.raises(rc.FileError, match=r"shards: is a symbolic link.*nothing is written or removed there"):
            rc.CacheWriter(path)
    check_episode(rc.Cache(other).episodes[0], episode(0))
    assert rc.verify_cache(other).problems == []
    check_episode(rc.Cache(path).episodes[0], episode(0))  # a reader may follow it


def test_a_fifo_is_no_file_of_a_cache(tmp_path):
    path = tmp_path / "c"
    rc.CacheWriter(path).close()
    (path / "manifest.json").unlink()
    os.mkfifo(path / "manifest.json")
    with pytest.raises(rc.FileError, match=r"manifest.json: is not a regular file"):
        rc.Cache(path)


# ---- Forks

FORKS = """
import os, sys, gc, signal, time
sys.path.insert(0, sys.argv[2])
import numpy as np
import robocache as rc
from cache_cases import episode, streams_of
path = sys.argv[1]
big = {"a": rc.Stream(np.ones((50_000, 2)), np.arange(50_000))}  # goes into a file at once
"""


def script(path, text):
    done = subprocess.run(
        [sys.executable, "-c", FORKS + text, str(path), str(HERE)], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("end", ["sys.exit(0)", "writer.close(); os._exit(0)", "del writer; gc.collect(); os._exit(0)"])
def test_a_child_leaves_the_parents_writer_alone(tmp_path, end):
    out = script(
        tmp_path / "c",
        f"""
with rc.CacheWriter(path) as writer:
    writer.add(big, name="one")
    if os.fork() == 0:
        for call in (writer.commit, lambda: writer.add(big, name="two"), lambda: writer.knows(path)):
            try:
                call()
            except ValueError as error:
                print(error, flush=True)
        {end}
    os.wait()
    writer.add(big, name="three")
""",
    )
    assert len(re.findall("opened by process [0-9]+, and this one was forked from it", out)) == 3
    assert names(tmp_path / "c") == ["one", "three"]
    assert rc.verify_cache(tmp_path / "c").problems == []


@pytest.mark.parametrize("how", ["close", "kill"])
def test_a_child_does_not_keep_the_lock(tmp_path, how):
    script(
        tmp_path / "c",
        """
read, write = os.pipe()
parent = os.fork()
if parent == 0:
    writer = rc.CacheWriter(path)
    writer.add(streams_of(episode(0)), name="one")
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    os.write(write, str(child).encode())
    """
        + ("writer.close(); os._exit(0)" if how == "close" else "os.kill(os.getpid(), signal.SIGKILL)")
        + """
os.waitpid(parent, 0)
child = int(os.read(read, 20))
os.kill(child, 0)  # it is alive
try:
    with rc.CacheWriter(path) as writer:
        writer.add(streams_of(episode(1)), name="two")
finally:
    os.kill(child, signal.SIGKILL)
""",
    )
    assert names(tmp_path / "c") == (["one", "two"] if how == "close" else ["two"])


# ---- Threads


def test_threads_share_a_writer(tmp_path):
    path = tmp_path / "c"
    failures = []

    def add(writer, thread):
        try:
            for k in range(25):
                writer.add(streams_of(episode(100 * thread + k)), name=f"{thread}-{k}")
        except BaseException as error:
            failures.append(error)

    with rc.CacheWriter(path, group_bytes=20_000) as writer:
        threads = [threading.Thread(target=add, args=(writer, thread)) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    cache = rc.Cache(path)
    assert sorted(entry.name for entry in cache.episodes) == sorted(f"{t}-{k}" for t in range(4) for k in range(25))
    for entry in cache.episodes:
        thread, k = map(int, entry.name.split("-"))
        check_episode(entry, episode(100 * thread + k))


def test_add_inside_add(tmp_path):
    file = tmp_path / "run"
    file.write_text("x")
    with rc.CacheWriter(tmp_path / "c") as writer:
        with pytest.raises(ValueError, match="called while it adds another episode"):
            writer.add(FakeRecording(file, [episode(0)]), progress=lambda batch: writer.add(streams_of(episode(1))))
        writer.add(streams_of(episode(2)), name="two")
    assert names(tmp_path / "c") == ["two"]


# ---- Two writers


def test_a_writer_whose_lock_was_removed_is_fenced(tmp_path):
    path = tmp_path / "c"
    first = rc.CacheWriter(path)
    first.add(streams_of(episode(0)), name="one")
    first.commit()
    first.add(streams_of(episode(1)), name="lost")
    (path / "lock").unlink()
    second = rc.CacheWriter(path)
    second.add(streams_of(episode(2)), name="two")
    second.commit()
    with pytest.raises(rc.FileError, match=f"{path}: another writer in this process has this cache"):
        first.commit()
    second.close()
    for call in (first.commit, first.close):
        with pytest.raises(rc.FileError, match=r"another writer has changed this cache.*add it again"):
            call()
    cache = rc.Cache(path)
    assert [entry.name for entry in cache.episodes] == ["one", "two"]
    check_episode(cache.episodes[0], episode(0))
    check_episode(cache.episodes[1], episode(2))
    assert rc.verify_cache(path).problems == []


def test_a_writer_whose_lock_was_removed_goes_on_where_nobody_came(tmp_path):
    path = tmp_path / "c"
    with rc.CacheWriter(path) as writer:
        writer.add(streams_of(episode(0)), name="one")
        (path / "lock").unlink()
        writer.commit()
        with pytest.raises(rc.FileError, match="another writer"):
            rc.CacheWriter(path)
    assert names(path) == ["one"]


def test_no_two_writers_name_a_shard_alike(tmp_path):
    for name in "ab":
        with rc.CacheWriter(tmp_path / name) as writer:
            writer.add(streams_of(episode(0)))
    a, b = ({p.name for p in (tmp_path / name / "shards").iterdir()} for name in "ab")
    assert not a & b


# ---- An add that fails


@pytest.mark.parametrize("given", [{"streams": ["a"]}, {"latency": {"a": 0.05}}, {"options": "x"}, {"progress": print}])
def test_what_is_for_recordings_is_refused_for_streams(tmp_path, given):
    words = f"CacheWriter.add: {next(iter(given))} is for recordings"
    with rc.CacheWriter(tmp_path / "cache") as writer, pytest.raises(ValueError, match=words):
        writer.add({"a": stamped(np.zeros((3, 2)))}, **given)
    assert not rc.Cache(tmp_path / "cache").episodes


def test_a_failed_add_leaves_nothing(tmp_path):
    """Streams, channels, methods, shapes: an episode that fails takes them with it, from the disk too."""
    path = tmp_path / "c"
    times = np.arange(2) * 10_000_000
    with rc.CacheWriter(path) as writer:
        writer.add({"q": stamped([[1], [2]], ["a"], method="hold"), "free": stamped([[1], [2]])}, name="before")
        for bad in (
            {"q": stamped([[1, 2]], ["a", "phantom"], method="hold"), "bad": object()},
            {"q": stamped([[1, 2]], ["phantom", "a"]), "bad": UncheckedStream(np.zeros(3), times)},
            {"free": stamped([[3], [4]], ["named"], method="nearest"), "bad": object()},
            {"new": rc.Stream(np.zeros(2, np.int8), times), "bad": object()},
        ):
            with pytest.raises((TypeError, ValueError)):
                writer.add(bad, name="failed")
            assert not list((path / "shards").glob("*new*"))
        writer.add({"q": stamped([[5]], ["a"]), "new": rc.Stream(np.ones(2), times)}, name="after")  # of another dtype
    cache = rc.Cache(path)
    assert names(path) == ["before", "after"]
    assert set(cache.streams) == {"q", "free", "new"}
    assert (cache.streams["q"].channels, cache.streams["q"].method) == (("a",), "hold")
    assert (cache.streams["free"].channels, cache.streams["free"].method) == (None, None)
    assert cache.streams["new"].dtype == np.float64
    np.testing.assert_array_equal(cache.episodes[0].streams["q"].values, [[1], [2]])
    np.testing.assert_array_equal(cache.episodes[1].streams["q"].values, [[5]])
    assert rc.verify_cache(path).problems == []
    assert not list(path.rglob("*.tmp"))


def test_a_failed_add_of_long_streams_leaves_nothing(tmp_path):
    """The same where values have gone into files: the file from before the channel came is used again."""
    path = tmp_path / "c"
    count = 100_000
    values = np.arange(count, dtype=np.float64)[:, None]
    times = np.arange(count)
    with rc.CacheWriter(path) as writer:
        writer.add({"q": rc.Stream(values, times, channels=["a"])}, name="one")
        for _ in range(2):
            with pytest.raises(TypeError):
                writer.add({"q": rc.Stream(np.ones((count, 2)), times, channels=["b", "a"]), "bad": object()})
        writer.add({"q": rc.Stream(values + 1, times[::-1].copy(), channels=["a"])}, name="two")
        writer.add({"q": rc.Stream(np.ones((count, 2)), times, channels=["b", "a"])}, name="three")
    cache = rc.Cache(path)
    assert cache.streams["q"].channels == ("a", "b")
    np.testing.assert_array_equal(cache.episodes[0].streams["q"].values[:, 0], values[:, 0])
    np.testing.assert_array_equal(cache.episodes[1].streams["q"].values[:, 0], values[::-1, 0] + 1)
    assert np.isnan(cache.episodes[1].streams["q"].values[:, 1]).all()
    np.testing.assert_array_equal(cache.episodes[2].streams["q"].values, np.ones((count, 2)))
    assert rc.verify_cache(path).problems == []
    assert not list(path.rglob("*.tmp"))


def test_a_recording_that_fails_leaves_its_whole_episodes(tmp_path):
    file = tmp_path / "run"
    file.write_text("x")
    other = episode(1) | {"joints": (np.zeros((40, 3), np.float64), episode(1)["joints"][1])}
    with rc.CacheWriter(tmp_path / "c") as writer:
        with pytest.raises(ValueError, match="joints"):  # its dtype changes
            writer.add(FakeRecording(file, [episode(0), other]))
        assert writer.add(FakeRecording(file, [episode(0), episode(1)])) == 1
    cache = rc.Cache(tmp_path / "c")
    for found, content in zip(cache.episodes, (episode(0), episode(1)), strict=True):
        check_episode(found, content)


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    return shim_of("faults", tmp_path_factory.mktemp("shim"))


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("how", ["line", "snapshot"])
def test_an_add_whose_commit_fails_is_left_out(tmp_path, shim, error, how):
    done = subprocess.run(
        [sys.executable, str(HERE / "cache_add_faults.py"), str(tmp_path), str(error), how],
        capture_output=True,
        text=True,
        env={**os.environ, "LD_PRELOAD": str(shim)},
    )
    assert done.returncode == 0, done.stderr
    calls, refused, kept = map(int, re.findall(r"\d+", done.stdout))
    assert calls > 15
    assert refused > 15
    assert kept == 0  # only where two calls fail


def test_a_manifest_whose_directory_is_not_synced_twice_is_this_writers(tmp_path, shim):
    """The commit and taking it back both wrote a manifest, and may be on the disk: neither is another writer's."""
    code = FORKS + (
        "import ctypes\n"
        "shim = ctypes.CDLL(None)\n"
        "writer = rc.CacheWriter(path, group_bytes=1)\n"
        "writer.add(streams_of(episode(0)), name='first')\n"
        "writer._writer.abandon()\n"
        "writer = rc.CacheWriter(path, group_bytes=1)\n"  # the journal is not its own: it writes a manifest
        "shim.fault_exact(1)\n"
        "shim.fault_arm(path.encode(), 1, 5, 1)\n"
        "try:\n"
        "    writer.add(streams_of(episode(1)), name='second')\n"
        "except rc.FileError as error:\n"
        "    assert 'is kept, and waits' in str(error), error\n"
        "else:\n"
        "    raise AssertionError\n"
        "assert shim.fault_fired() == 2\n"
        "shim.fault_arm(b'', 0, 0, 0)\n"
        "writer.add(streams_of(episode(2)), name='third')\n"
        "writer.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "c"), str(HERE)],
        capture_output=True,
        text=True,
        env={**os.environ, "LD_PRELOAD": str(shim)},
    )
    assert done.returncode == 0, done.stderr
    assert names(tmp_path / "c") == ["first", "second", "third"]
    assert rc.verify_cache(tmp_path / "c").problems == []


def test_verify_keeps_no_writer_out(tmp_path):
    path = tmp_path / "c"
    rc.CacheWriter(path).close()
    code = "import sys, robocache as rc\nprint('', flush=True)\nwhile True:\n    rc.verify_cache(sys.argv[1])\n"
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        try:
            for _ in range(2000):
                rc.CacheWriter(path).close()
        finally:
            child.kill()


def test_a_source_that_changes_while_it_is_read_is_not_complete(tmp_path):
    """Of a recording that has no stamps. What was complete before stays what readers see."""
    source = tmp_path / "log"
    source.write_text("1")
    with rc.CacheWriter(tmp_path / "c") as writer:
        writer.add(FakeRecording(source, [episode(0)]))

    class Changing(FakeRecording):
        def batches(self, streams=None):
            yield from super().batches(streams)
            source.write_text("changed while it was read")

    source.write_text("22")
    with (
        rc.CacheWriter(tmp_path / "c") as writer,
        pytest.raises(rc.FileError, match=f"{source}: it changed while it was read"),
    ):
        writer.add(Changing(source, [episode(5)]))
    (entry,) = rc.Cache(tmp_path / "c").episodes
    check_episode(entry, episode(0))
    with rc.CacheWriter(tmp_path / "c") as writer:
        assert writer.add(FakeRecording(source, [episode(6)])) == 1
    (entry,) = rc.Cache(tmp_path / "c").episodes
    check_episode(entry, episode(6))


# ---- Methods


def test_a_method_that_was_given_stays(tmp_path):
    path = tmp_path / "c"
    with rc.CacheWriter(path) as writer:
        writer.add({"q": stamped([[1, 2]], ["a", "b"], method="hold")})
        writer.add({"q": stamped([[1, 2]], ["b", "a"])})
        writer.add({"q": stamped([[1, 2, 3]], ["c", "a", "b"])})
        writer.add({"q": stamped([[1, 2]], ["a", "b"], method="hold")})
        with pytest.raises(ValueError, match='channel "a" is linear, but the cache has it as hold; a stream has one'):
            writer.add({"q": stamped([[1, 2]], ["b", "a"], method=[("hold", 0, 1), ("linear", 1, 2)])})
    with rc.CacheWriter(path) as writer, pytest.raises(ValueError, match="but the cache has it as hold"):
        writer.add({"q": stamped([[1]], ["a"], method="linear")})
    cache = rc.Cache(path)
    assert cache.streams["q"].channels == ("a", "b", "c")
    assert cache.streams["q"].method == [("hold", 0, 2), ("linear", 2, 3)]
    assert len(cache.episodes) == 4


def test_a_method_given_late_is_given(tmp_path):
    with rc.CacheWriter(tmp_path / "c") as writer:
        writer.add({"q": stamped([[1, 2]], ["a", "b"])})
        writer.add({"q": stamped([[1, 2]], ["a", "b"], method="hold")})
    assert rc.Cache(tmp_path / "c").streams["q"].method == "hold"


# ---- Sources


@pytest.fixture
def run(tmp_path):
    """An MCAP file of one JSON topic, by what its messages say."""

    def make(values, name="run.mcap"):
        writer = rc.mcap.Writer(tmp_path / name)
        schema = '{"type": "object", "properties": {"x": {"type": "number"}}}'
        topic = writer.add_channel("/x", "json", writer.add_schema("X", "jsonschema", schema))
        for k, value in enumerate(values):
            writer.write(topic, json.dumps({"x": value}).encode(), log_time=k * 10_000_000)
        writer.close()
        return tmp_path / name

    return make


def test_a_real_recording_is_known_while_it_is_the_same(tmp_path, run):
    file = run([1, 2, 3])
    with rc.CacheWriter(tmp_path / "c") as writer:
        assert not writer.knows(rc.open(file))
        assert writer.add(rc.open(file)) == 1
        assert writer.knows(rc.open(file))
    with rc.CacheWriter(tmp_path / "c") as writer:
        assert writer.knows(rc.open(file))
        assert not writer.knows(rc.open(file), "another recipe")
        os.utime(file)  # touched: its hash says that it is the same
        assert writer.knows(rc.open(file))
        assert writer.add(rc.open(file)) == 0
    with rc.CacheWriter(tmp_path / "c") as writer:
        before = os.stat(file)
        run([1, 2, 4])
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
        assert not writer.knows(rc.open(file))
        assert writer.add(rc.open(file)) == 1
        assert writer.knows(rc.open(file))
    (stream,) = rc.Cache(tmp_path / "c").episodes[0].streams.values()
    np.testing.assert_array_equal(stream.values.ravel(), [1, 2, 4])


class Files(FakeRecording):
    """A recording of several files."""

    def __init__(self, folder, content):
        super().__init__(folder, [content])
        self.files = tuple(sorted(Path(folder).iterdir()))


def stamps_of(files):
    return [(s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns) for s in map(os.stat, files)]


def test_files_that_change_places_are_another_source(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for name, text, mtime in (("a", "AAAA", 10**18), ("b", "BBBB", 2 * 10**18)):
        (folder / name).write_text(text)
        os.utime(folder / name, ns=(mtime, mtime))
    with rc.CacheWriter(tmp_path / "c") as writer:
        writer.add(Files(folder, episode(0)))
        assert writer.knows(Files(folder, episode(0)))
        (folder / "a").rename(tmp_path / "x")
        (folder / "b").rename(folder / "a")
        (tmp_path / "x").rename(folder / "b")
        assert not writer.knows(Files(folder, episode(1)))
        assert writer.add(Files(folder, episode(1))) == 1
    check_episode(rc.Cache(tmp_path / "c").episodes[0], episode(1))


@pytest.mark.parametrize("when", ["never", "before", "while"])
def test_a_source_is_what_was_opened(tmp_path, when):
    """A file that is replaced by one of its size and time is another one: what was read of the old one is not its."""
    file = tmp_path / "run"
    file.write_text("old!")
    os.utime(file, ns=(10**18, 10**18))
    opened = stamps_of([file])

    def replace():
        (tmp_path / "new").write_text("new!")
        os.utime(tmp_path / "new", ns=(10**18, 10**18))
        os.replace(tmp_path / "new", file)

    source = (os.fsencode(file), [os.fsencode(file)], "")
    with rc.CacheWriter(tmp_path / "c") as writer:
        engine = writer._writer
        if when == "before":
            replace()
        assert engine.begin_source(*source, opened) == []
        engine.begin_episode("one", "", 0, False)
        if when == "while":
            replace()
        engine.end_episode()
        assert engine.end_source() is (when == "never")
        assert engine.knows(*source) is (when == "never")
    with rc.CacheWriter(tmp_path / "c") as writer:
        assert writer._writer.knows(*source) is (when == "never")
        with pytest.raises(ValueError, match="1 files of a source, but 2 stamps"):
            writer._writer.begin_source(*source, [*opened, *opened])


# ---- Checksums


@pytest.mark.parametrize(
    ("old", "new"),
    [('"a"', '"x"'), ('"pick"', '"sick"'), ('"hold"', '"last"'), ('"start": 10', '"start": 11')],
)
def test_a_changed_manifest_is_told(tmp_path, old, new):
    path = tmp_path / "c"
    with rc.CacheWriter(path) as writer:
        times = np.asarray([10, 20])
        writer.add({"q": rc.Stream(np.zeros((2, 1)), times, channels=["a"], method="hold")}, task="pick")
    manifest = path / "manifest.json"
    text = manifest.read_text()
    assert old in text
    manifest.write_text(text.replace(old, new))
    with pytest.raises(rc.FileError, match=r"manifest.json: its checksum is wrong.*verify --repair"):
        rc.Cache(path)
    assert any(p.file == "manifest.json" and "checksum" in p.sentence for p in rc.verify_cache(path).problems)
    manifest.write_text(text)
    # The description in a shard, which a lost manifest is made from.
    (shard,) = (path / "shards").iterdir()
    content = shard.read_bytes()
    quoted = [json.dumps(word)[1:-1].encode() for word in (old, new)]
    assert quoted[0] in content
    shard.write_bytes(content.replace(*quoted))
    manifest.unlink()
    assert "the checksum of its description is wrong" in str(rc.verify_cache(path).problems)


# ---- The journal


def grown(path, count):
    """A cache of `count` commits by a writer that is still open, and what it holds."""
    writer = rc.CacheWriter(path)
    for k in range(count):
        writer.add(streams_of(episode(k)), name=f"e{k}")
        writer.commit()
    return writer


def copy_of(path, to):
    """What another process would find now."""
    to.mkdir()
    (to / "shards").mkdir()
    for file in (*path.iterdir(), *(path / "shards").iterdir()):
        if file.is_file():
            (to / file.relative_to(path)).write_bytes(file.read_bytes())
    return to


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_journal_that_ends_anywhere_leaves_whole_commits(tmp_path):
    writer = grown(tmp_path / "c", 3)
    path = copy_of(tmp_path / "c", tmp_path / "copy")
    writer.close()
    journal = journal_of(path)
    text = journal.read_bytes()
    ends = [k + 1 for k, byte in enumerate(text) if byte == ord("\n")]
    assert len(ends) == 3
    shards = {p.read_bytes() for p in (path / "shards").iterdir()}
    cuts = {0, *ends, *(end - 1 for end in ends), *range(1, len(text), 97)}
    for cut in sorted(cuts):
        for rest in (b"", b"\0" * 50, text[cut : len(text) - 1] + b"\n" if cut > ends[1] else b""):
            whole = sum(end <= cut for end in ends)
            content = text[:cut] + rest
            if content == text:
                continue
            journal.write_bytes(content)
            cache = rc.Cache(path)
            assert [entry.name for entry in cache.episodes] == [f"e{k}" for k in range(whole)]
            problems = [p for p in rc.verify_cache(path).problems if p.file == journal.name]
            assert len(problems) == (len(content) > ([0, *ends])[whole])
            assert all("the last commit was interrupted, or they were damaged since" in p.sentence for p in problems)
            # A writer keeps the commits that the journal has, and every shard: any of them may have been committed.
            opened = copy_of(path, tmp_path / "opened")
            rc.CacheWriter(opened).close()
            assert names(opened) == [f"e{k}" for k in range(whole)]
            assert shards <= {p.read_bytes() for p in opened.rglob("*.safetensors")}
            shutil.rmtree(opened)
    # The next writer goes on, and what it writes is whole.
    journal.write_bytes(text[:-1])
    with rc.CacheWriter(path) as again:
        again.add(streams_of(episode(7)), name="e7")
    cache = rc.Cache(path)
    assert [entry.name for entry in cache.episodes] == ["e0", "e1", "e7"]
    check_episode(cache.episodes[1], episode(1))
    check_episode(cache.episodes[2], episode(7))
    assert rc.verify_cache(path).problems == []
    assert not list(path.glob("journal.*"))


def test_damage_inside_a_journal_is_told(tmp_path):
    writer = grown(tmp_path / "c", 3)
    path = copy_of(tmp_path / "c", tmp_path / "copy")
    writer.close()
    journal = journal_of(path)
    text = journal.read_bytes()
    first = text.index(b"\n")
    for at in (0, 31, 32, 33, first // 2, first):
        journal.write_bytes(text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :])
        with pytest.raises(rc.FileError, match=rf"{journal.name}: line 1 is damaged.*verify --repair"):
            rc.Cache(path)
        assert journal.name in str(rc.verify_cache(path).problems)
    journal.write_bytes(text[first + 1 :])  # a line is gone
    with pytest.raises(rc.FileError, match="line 1 is damaged"):
        rc.Cache(path)


def test_a_journal_fits_its_own_manifest_only(tmp_path):
    writer = grown(tmp_path / "c", 2)
    old = journal_of(tmp_path / "c").read_bytes()
    writer.close()  # everything is in the manifest now
    path = tmp_path / "c"
    assert not list(path.glob("journal.*"))
    identity = json.loads((path / "manifest.json").read_text())["identity"]
    (path / f"journal.{identity}").write_bytes(old)
    with pytest.raises(rc.FileError, match="line 1 is damaged"):
        rc.Cache(path)
    (path / f"journal.{identity}").unlink()
    (path / ("journal." + "0" * 32)).write_bytes(old)  # of a manifest that is gone: nobody's
    assert names(path) == ["e0", "e1"]
    assert [p.file for p in rc.verify_cache(path).problems] == ["journal." + "0" * 32]
    rc.CacheWriter(path).close()
    assert not list(path.glob("journal.*"))


def test_commits_come_back_from_the_journal(tmp_path):
    """What replaces, widens, gives methods and metadata, and completes sources goes through the journal."""
    path = tmp_path / "c"
    files = [tmp_path / name for name in "ab"]
    for file in files:
        file.write_text(file.name)
    writer = rc.CacheWriter(path)
    rc.CacheWriter.commit(writer)
    writer.add({"q": stamped([[1], [2]], ["a"])}, name="one")
    writer.commit()
    writer.add({"q": stamped([[3, 4]], ["b", "a"], method="hold")}, name="two")
    writer.commit()
    writer.add({"q": stamped([[9]], ["a"])}, name="one", replace=True)
    writer.commit()
    for file in files:
        writer.add(FakeRecording(file, [episode(1), episode(2)], frame=file.name))
        writer.commit()
    files[0].write_text("changed")
    writer.add(FakeRecording(files[0], [episode(3)], frame="c"))
    writer.commit()
    journal_of(path)

    def look():
        cache = rc.Cache(path)
        return (
            [
                (e.name, e.number, e.source and (e.source.path, e.source.complete), dict(e.samples))
                for e in cache.episodes
            ],
            {name: (info.channels, info.method, info.shape, info.metadata) for name, info in cache.streams.items()},
            [
                np.nan_to_num(e.streams[name].values, nan=-1).tolist()
                for e in cache.episodes
                for name in e.streams
                if name == "q"
            ],
            [e.streams[name].info.metadata for e in cache.episodes for name in e.streams],
            [(source.path, source.size, source.complete) for source in cache.sources],
        )

    before = look()
    assert rc.verify_cache(path).problems == []
    writer.close()
    assert not list(path.glob("journal.*"))
    assert look() == before
    episodes, streams, values, metadata, sources = before
    assert [e[0] for e in episodes] == ["two", "one", "part-0", "part-1", "part-0"]
    assert [e[2] for e in episodes[2:]] == [(str(files[1]), True)] * 2 + [(str(files[0]), True)]
    assert streams["q"][:2] == (("a", "b"), "hold")
    assert streams["joints"][3] == {"frame": "varies"}
    assert values == [[[4, 3]], [[9, -1]]]
    assert {m["frame"] for m in metadata if m} == {"b", "c"}
    assert sorted(sources) == sorted([(str(files[0]), 7, True), (str(files[1]), 1, True)])


def written(pid="self"):
    return int(re.search(r"wchar: (\d+)", Path(f"/proc/{pid}/io").read_text())[1])


def test_a_commit_writes_no_more_where_there_are_many_episodes(tmp_path):
    """Bytes, not seconds. A cache of 4,000 episodes is made by hand: rows of a shard that nobody looks into."""
    path = tmp_path / "c"
    with rc.CacheWriter(path) as writer:
        writer.add(streams_of(episode(0)), name="e0")
    manifest = json.loads((path / "manifest.json").read_text())
    one = manifest["episodes"][0]
    cost = {}
    for count in (100, 4000):
        manifest["episodes"] = [one | {"name": f"e{k}", "row": k, "samples": {}} for k in range(count)]
        for shard in manifest["shards"]:
            shard |= {"episodes": count, "bytes": 1_000_000}
            os.truncate(path / "shards" / shard["file"], 1_000_000)
        place = copy_of(path, tmp_path / str(count))
        (place / "manifest.json").write_text(version_1(manifest))
        with rc.CacheWriter(place) as writer:
            writer.add(streams_of(episode(1)), name="first")
            writer.commit()  # version 1 becomes version 2
            before = written()
            for k in range(5):
                writer.add(streams_of(episode(k)), name=f"new-{k}")
                writer.commit()
            cost[count] = written() - before
        assert len(rc.Cache(place).episodes) == count + 6
    assert cost[4000] < 1.02 * cost[100]


def test_the_journal_is_folded_in_when_it_outgrows_the_manifest(tmp_path):
    path = tmp_path / "c"
    writer = rc.CacheWriter(path)
    wide = {f"stream-{k:03d}": rc.Stream(np.zeros(1), np.zeros(1, np.int64)) for k in range(40)}
    sizes = []
    for k in range(20):
        writer.add(wide, name=f"e{k}")
        writer.commit()
        found = list(path.glob("journal.*"))
        assert len(found) <= 1
        sizes.append(found[0].stat().st_size if found else 0)
        assert len(rc.Cache(path).episodes) == k + 1
    assert any(b < a for a, b in itertools.pairwise(sizes))
    limit = max(64 << 10, (path / "manifest.json").stat().st_size)
    assert max(sizes) <= limit + 20_000
    writer.close()
    assert rc.verify_cache(path).problems == []


def test_readers_are_unharmed_while_a_writer_commits(tmp_path):
    """Each sees a state that was committed, and never an older one than it saw before."""
    path = tmp_path / "c"
    rc.CacheWriter(path).close()
    done = threading.Event()
    failures = []

    def read():
        seen = 0
        try:
            while not done.is_set():
                cache = rc.Cache(path)
                assert len(cache.episodes) >= seen
                seen = len(cache.episodes)
                for entry in cache.episodes[-2:]:
                    check_episode(entry, episode(int(entry.name)))
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for session in range(4):
        with rc.CacheWriter(path) as writer:
            for k in range(10):
                writer.add(streams_of(episode(10 * session + k)), name=str(10 * session + k))
                writer.commit()
    done.set()
    for reader in readers:
        reader.join()
    assert failures == []
    assert len(rc.Cache(path).episodes) == 40


# ---- Version 1


@pytest.fixture
def old(tmp_path):
    """A cache that the writer of commit e848191 made: one episode of its own, one of the file `run`."""
    with zipfile.ZipFile(GOLDEN / "cache_version_1.zip") as archive:
        archive.extractall(tmp_path / "c")
    return tmp_path / "c"


def check_old(cache):
    one, part = cache.episodes[:2]
    assert (one.name, one.task, one.start, one.end) == ("one", "pick", 10, 20)
    np.testing.assert_array_equal(one.streams["joints"].values, [[1, 2], [3, 4]])
    assert (one.streams["joints"].method, one.streams["joints"].channels) == ("hold", ("a", "b"))
    np.testing.assert_array_equal(part.streams["grip"].values, [7])
    np.testing.assert_array_equal(part.streams["grip"].arrivals, [35])
    assert (part.source.path, part.source.complete) == ("/tmp/v1/run", True)


def test_a_cache_of_version_1_opens(old):
    assert json.loads((old / "manifest.json").read_text())["version"] == 1
    check_old(rc.Cache(old))
    assert rc.verify_cache(old).problems == []


def test_a_writer_goes_on_with_a_cache_of_version_1(old):
    reader = rc.Cache(old)
    rc.CacheWriter(old).close()
    assert json.loads((old / "manifest.json").read_text())["version"] == 1  # nothing to write
    with rc.CacheWriter(old) as writer:
        assert writer._writer.knows(b"/tmp/v1/run", [], "") is False  # without files nobody can tell
        writer.add({"joints": stamped([[5, 6, 7]], ["a", "b", "c"])}, name="two")
        writer.commit()
        writer.add({"joints": stamped([[8, 9]], ["a", "b"])}, name="three")
        writer.commit()
        check_old(reader)
        assert names(old) == ["one", "part-0", "two", "three"]
    cache = rc.Cache(old)
    assert json.loads((old / "manifest.json").read_text())["version"] == 2
    check_old(reader)
    np.testing.assert_array_equal(cache.episodes[0].streams["joints"].values, [[1, 2, np.nan], [3, 4, np.nan]])
    np.testing.assert_array_equal(cache.episodes[2].streams["joints"].values, [[5, 6, 7]])
    np.testing.assert_array_equal(cache.episodes[3].streams["joints"].values, [[8, 9, np.nan]])
    assert rc.verify_cache(old).problems == []


def test_a_source_of_version_1_is_known(old, tmp_path):
    """Its stamp is the size and the time of its file, then its hash."""
    file = tmp_path / "run"
    file.write_text("x")
    os.utime(file, ns=(10**18, 10**18))
    with rc.CacheWriter(old) as writer:
        assert writer._writer.knows(b"/tmp/v1/run", [os.fsencode(file)], "")
        os.utime(file)
        assert writer._writer.knows(b"/tmp/v1/run", [os.fsencode(file)], "")
    with rc.CacheWriter(old) as writer:
        assert writer._writer.knows(b"/tmp/v1/run", [os.fsencode(file)], "")
        file.write_text("y")
        assert not writer._writer.knows(b"/tmp/v1/run", [os.fsencode(file)], "")


# ---- Ctrl-C


def test_ctrl_c_leaves_a_cache_that_goes_on(tmp_path):
    path = tmp_path / "c"
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            FORKS + "with rc.CacheWriter(path, group_bytes=3000) as writer:\n"
            "    for k in range(10**6):\n"
            "        writer.add(streams_of(episode(k % 50)), name=str(k))\n"
            "        print(k, flush=True)\n",
            str(path),
            str(HERE),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while int(child.stdout.readline()) < 20:
        pass
    time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    out, error = child.communicate(timeout=60)
    assert "KeyboardInterrupt" in error.splitlines()[-1], error
    added = int(out.split()[-1]) if out.split() else 20
    cache = rc.Cache(path)
    # An add that is stopped leaves nothing. The last one may have been added before it could say so.
    assert [entry.name for entry in cache.episodes] in ([str(k) for k in range(added + n)] for n in (1, 2))
    for entry in cache.episodes:
        check_episode(entry, episode(int(entry.name) % 50))
    with rc.CacheWriter(path) as writer:
        writer.add(streams_of(episode(0)), name="more")
    assert rc.verify_cache(path).problems == []
