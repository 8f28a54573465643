"""A real SIGINT, sent to a process while it is inside a long call, ends that call as KeyboardInterrupt.

Each call below would run for minutes, or shows by what it left that it did not run to its end. The parent waits for
what the child does; nothing here depends on how fast it does it.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import robocache as rc

PATIENCE = 60  # seconds after which something hangs
HUGE = 1 << 40  # bytes of a file that takes no room: it is one hole

SPARSE_CACHE = """
    import numpy as np
    import robocache as rc
    tell("begun")
    try:
        rc.verify_cache(path)
    except KeyboardInterrupt:
        tell("interrupted")
"""

HASHING = """
    import numpy as np
    import robocache as rc
    from cache_cases import FakeRecording
    with rc.CacheWriter(path + "/cache") as w:
        w.add({"a": rc.Stream(np.ones(1), [0])}, name="kept")
        tell("begun")
        try:
            w.add(FakeRecording(path + "/huge.bin", [{}]))
        except KeyboardInterrupt:
            tell("interrupted")
        w.add({"a": rc.Stream(np.ones(1), [0])}, name="after")
    names = [episode.name for episode in rc.Cache(path + "/cache").episodes]
    assert "kept" in names and "after" in names, names
"""

OPENING = """
    import numpy as np
    import robocache as rc
    from robocache import mcap
    tell("begun")
    try:
        {call}
    except KeyboardInterrupt:
        tell("interrupted")
"""

COMMIT = """
    import numpy as np
    import robocache as rc

    w = rc.CacheWriter(path + "/cache")
    w.add({f"s{k}": rc.Stream(np.full(1, float(k)), [0]) for k in range(2000)}, name="one")
    tell("begun")
    try:
        w.commit()
    except KeyboardInterrupt:
        tell("interrupted")
    assert len(rc.Cache(path + "/cache").episodes) == 0, "the commit ran to its end"
    w.commit()
    w.close()
    assert len(rc.Cache(path + "/cache").episodes) == 1
    assert rc.verify_cache(path + "/cache").ok
"""


def cpu_seconds(process: subprocess.Popen[str]) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def interrupt(script: str, path: Path, ready=None) -> None:
    """Runs the script, and sends SIGINT once it is busy inside its call; `ready()` tells, or 0.2 s of CPU time do."""
    head = """
        import sys
        path = sys.argv[1]
        def tell(word):
            print(word, flush=True)
    """
    text = textwrap.dedent(head) + textwrap.dedent(script)
    process = subprocess.Popen(
        [sys.executable, "-c", text, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        before, end = cpu_seconds(process), time.monotonic() + PATIENCE
        while not (ready() if ready else cpu_seconds(process) > before + 0.2):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def sparse_cache(path: Path) -> None:
    """A cache of version 1 with one ragged stream of HUGE bytes, none of which is on the disk."""
    rows = HUGE
    tensors, at = {}, 0
    for name, dtype, shape, size in (
        ("values", "U8", [rows], rows),
        ("times", "I64", [1], 8),
        ("arrivals", "I64", [1], 8),
        ("offsets", "I64", [2], 16),
        ("inner", "I64", [2], 16),
    ):
        tensors[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    header = json.dumps(tensors).encode()
    header += b" " * (-(len(header) + 8) % 64)
    (path / "shards").mkdir(parents=True)
    with open(path / "shards" / "000000-cloud.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + at)
    stream = {"name": "cloud", "type": "", "dtype": "uint8", "shape": [], "channels": [], "method": []}
    shard = {"file": "000000-cloud.safetensors", "stream": "cloud", "group": 0, "bytes": 8 + len(header) + at}
    shard |= {"episodes": 1, "samples": 1, "rows": rows, "channels": 1, "xxh3": dict.fromkeys(tensors, "0" * 32)}
    episode = {"name": "e", "task": "", "source": None, "number": 0, "group": 0, "row": 0, "start": 0, "end": 0}
    manifest = {
        "format": "robocache",
        "version": 1,
        "next_group": 1,
        "streams": [stream | {"ragged": True, "metadata": {}}],
        "sources": [],
        "shards": [shard],
        "episodes": [episode | {"samples": {"cloud": 1}}],
    }
    (path / "manifest.json").write_text(json.dumps(manifest))


def test_verify(tmp_path):
    sparse_cache(tmp_path / "cache")
    assert len(rc.Cache(tmp_path / "cache").episodes) == 1
    interrupt(SPARSE_CACHE, tmp_path / "cache")


def test_repair_changes_nothing(tmp_path):
    sparse_cache(tmp_path / "cache")
    before = sorted(p for p in (tmp_path / "cache").rglob("*") if p.name != "lock")
    interrupt(SPARSE_CACHE.replace("path)", "path, repair=True)"), tmp_path / "cache")
    assert sorted(p for p in (tmp_path / "cache").rglob("*") if p.name != "lock") == before
    rc.CacheWriter(tmp_path / "cache").close()  # the lock was let go


def test_hashing_a_source(tmp_path):
    with open(tmp_path / "huge.bin", "wb") as file:
        file.truncate(HUGE)
    interrupt(HASHING, tmp_path)


@pytest.mark.parametrize("call", ["mcap.Reader(path + '/a.mcap')", "rc.open(path + '/a.mcap')"])
def test_opening_a_file_without_an_index(tmp_path, call):
    from robocache import mcap

    with mcap.Writer(tmp_path / "one.mcap", chunk_size=64 << 20, message_indexes=False) as writer:
        channel = writer.add_channel("/a", "json")
        for k in range(1000):
            writer.write(channel, b"\0" * (64 << 10), k)
        writer.flush()
        written = (tmp_path / "one.mcap").read_bytes()
    begin = 8 + 9 + struct.unpack_from("<Q", written, 9)[0]  # behind the magic and the header: one chunk of 64 MiB
    with open(tmp_path / "a.mcap", "wb") as file:
        file.write(written[:begin])
        for _ in range(3000):
            file.write(written[begin:])
    interrupt(OPENING.format(call=call), tmp_path)


def test_commit(tmp_path):
    def is_committing() -> bool:
        return any(name.endswith(".safetensors") for name in os.listdir(tmp_path / "cache" / "shards"))

    interrupt(COMMIT, tmp_path, is_committing)
