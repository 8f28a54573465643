"""Writers and readers that threads share, or that are open when the process forks; test_shared.py runs each case in a
process of its own, since a wrong answer may be a crash: shared_cases.py CASE FOLDER
"""

from __future__ import annotations

import io
import os
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

from cache_cases import check_episode, episode, streams_of

import robocache as rc
from robocache import mcap

THREADS = 6


def in_child(work: Callable[[], None], *, leave: bool = False) -> int:
    """The process of a fork that does the work and ends as a script does, with destructors. leave: without."""
    child = os.fork()
    if child:
        return child
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    if leave:
        os._exit(0)
    sys.exit(0)


def joined(child: int) -> None:
    status = os.waitpid(child, 0)[1]
    assert os.waitstatus_to_exitcode(status) == 0, f"the child ended with {status}"


def in_threads(work: Callable[[int], None]) -> None:
    """The work in several threads at once; the first exception of any of them is raised."""
    failed: list[BaseException] = []
    together = threading.Barrier(THREADS)

    def run(k: int) -> None:
        together.wait()
        try:
            work(k)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def made(folder: Path, count: int = 4) -> Path:
    with rc.CacheWriter(folder / "cache") as writer:
        for k in range(count):
            writer.add(streams_of(episode(k)), name=f"episode-{k}")
            writer.commit()
    return folder / "cache"


def check_all(cache: Path, seeds: dict[str, int]) -> None:
    found = {entry.name: entry for entry in rc.Cache(cache).episodes}
    assert found.keys() == seeds.keys(), sorted(found)
    for name, seed in seeds.items():
        check_episode(found[name], episode(seed))
    assert rc.verify_cache(cache).problems == []


def sentence(call: Callable[[], object]) -> str:
    try:
        call()
    except (ValueError, rc.FileError) as error:
        return str(error)
    return ""


# ---- Forks


def fork_cache_writer(folder: Path) -> None:
    """The child drops its copy of the writer, or ends without; the parent's episodes and files are its own."""
    for leave in (False, True):
        cache = folder / str(leave) / "cache"
        cache.parent.mkdir()
        writer = rc.CacheWriter(cache)
        writer.add(streams_of(episode(1)), name="committed")
        writer.commit()
        writer.add(streams_of(episode(2)), name="waiting")

        def child(writer: rc.CacheWriter = writer) -> None:
            assert "process" in sentence(lambda: writer.add(streams_of(episode(9)), name="child"))
            assert "process" in sentence(writer.commit)

        joined(in_child(child, leave=leave))
        writer.add(streams_of(episode(3)), name="after")
        writer.close()
        check_all(cache, {"committed": 1, "waiting": 2, "after": 3})


def fork_cache_lock(folder: Path) -> None:
    """A child that lives on does not keep the cache locked."""
    cache = folder / "cache"
    writer = rc.CacheWriter(cache)
    writer.add(streams_of(episode(1)), name="one")
    wake, woken = os.pipe()

    def wait() -> None:
        os.close(woken)
        os.read(wake, 1)  # ends when the parent closes its end

    child = in_child(wait, leave=True)
    writer.close()
    with rc.CacheWriter(cache) as other:
        other.add(streams_of(episode(2)), name="two")
    os.close(woken)
    joined(child)
    check_all(cache, {"one": 1, "two": 2})


def fork_mcap_writer(folder: Path) -> None:
    path = folder / "log.mcap"
    writer = mcap.Writer(path, chunk_size=50)
    channel = writer.add_channel("/a", "raw")
    writer.write(channel, b"before", log_time=1)

    def child() -> None:
        assert "another process" in sentence(lambda: [writer.write(channel, bytes(90), log_time=2) for _ in range(9)])

    joined(in_child(child))
    writer.write(channel, b"after", log_time=3)
    writer.close()
    assert [bytes(message.data) for message in mcap.messages(path)] == [b"before", b"after"]


def fork_readers(folder: Path) -> None:
    """What was opened before a fork is read by the child and the parent."""
    cache = rc.Cache(made(folder))
    path = folder / "log.mcap"
    with mcap.Writer(path, chunk_size=500) as writer:
        channel = writer.add_channel("/a", "raw")
        for k in range(100):
            writer.write(channel, b"message %d" % k, log_time=k)
    reader = mcap.Reader(path)
    expected = [b"message %d" % k for k in range(100)]

    def read() -> None:
        for k, entry in enumerate(cache.episodes):
            check_episode(entry, episode(k))
        assert [bytes(message.data) for message in reader.messages()] == expected

    children = [in_child(read) for _ in range(3)]
    read()
    for child in children:
        joined(child)


# ---- Threads


def threads_cache_writer(folder: Path) -> None:
    """Each add() waits for the others or says so; what returned is there."""
    cache = folder / "cache"
    seeds: dict[str, int] = {}
    writer = rc.CacheWriter(cache)

    def add(thread: int) -> None:
        for k in range(10):
            seed = thread * 10 + k
            said = sentence(lambda seed=seed: writer.add(streams_of(episode(seed)), name=f"episode-{seed}"))
            if not said:
                seeds[f"episode-{seed}"] = seed
            if k == 5:
                said = said or sentence(writer.commit)
            assert not said or "thread" in said or "has not ended" in said, said

    in_threads(add)
    assert seeds
    writer.close()
    check_all(cache, seeds)


class SlowFile(io.BytesIO):
    """A file object that lets other threads run in its write()."""

    def write(self, data: object) -> int:  # type: ignore[override]
        threading.Event().wait(0.0005)
        return super().write(data)  # type: ignore[arg-type]


def threads_mcap_writer(folder: Path) -> None:
    """Of a path and of a file object: a message is written, or the caller is told."""
    memory = SlowFile()
    for target in (folder / "log.mcap", memory):
        writer = mcap.Writer(target, chunk_size=300)
        channel = writer.add_channel("/a", "raw")
        written: list[bytes] = []

        def write(
            thread: int, writer: mcap.Writer = writer, channel: int = channel, written: list[bytes] = written
        ) -> None:
            for k in range(50):
                data = b"thread %d message %d" % (thread, k)
                said = sentence(lambda data=data: writer.write(channel, data, log_time=1))
                assert not said or "another thread" in said, said
                if not said:
                    written.append(data)

        in_threads(write)
        writer.close()
        assert len(written) >= 50
        source = target if isinstance(target, Path) else io.BytesIO(memory.getvalue())
        assert sorted(bytes(message.data) for message in mcap.messages(source)) == sorted(written)


def threads_cache(folder: Path) -> None:
    """Readers share a Cache while a writer commits to the same folder."""
    path = made(folder)
    cache = rc.Cache(path)
    with rc.CacheWriter(path) as writer:

        def work(thread: int) -> None:
            for k in range(20):
                if thread == 0:
                    writer.add(streams_of(episode(100 + k)), name=f"more-{k}")
                    writer.commit()
                else:
                    number = (thread + k) % 4
                    check_episode(cache.episodes[number], episode(number))
                    assert len(rc.Cache(path).episodes) >= 4

        in_threads(work)
    seeds = {f"episode-{k}": k for k in range(4)} | {f"more-{k}": 100 + k for k in range(20)}
    check_all(path, seeds)


def threads_verify(folder: Path) -> None:
    """verify beside a writer: never a complaint about what the writer is at."""
    path = made(folder)
    with rc.CacheWriter(path) as writer:

        def work(thread: int) -> None:
            for k in range(10):
                if thread == 0:
                    writer.add(streams_of(episode(100 + k)), name=f"more-{k}")
                    writer.commit()
                else:
                    assert rc.verify_cache(path).problems == []

        in_threads(work)


CASES = {name: case for name, case in globals().items() if name.startswith(("fork_", "threads_"))}

if __name__ == "__main__":
    CASES[sys.argv[1]](Path(sys.argv[2]))
