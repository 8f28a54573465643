"""Small files that claim much: each gets a sentence, in bounded memory and in time that its bytes explain.

Every file is opened by a process of its own that may use 2 GiB of memory and 10 seconds of a processor. Before they
were bounded, the same files took 8 to 120 seconds on an idle machine, or all of its memory.
"""

from __future__ import annotations

import resource
import sqlite3
import struct
import subprocess
import sys
from pathlib import Path

import mcap_files as mcap
import numpy as np
import pytest

import robocache as rc

MEMORY, SECONDS = 2 << 30, 10
READ = """
import sys
import robocache as rc
recording = rc.open(sys.argv[1])
print(sorted(recording.streams))
for batch in recording.batches():
    pass
print("\\n".join(recording.notes))
"""


def confine() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))


def read(path: Path, program: str = READ) -> str:
    """What a process says that reads the file: its output, or the sentence that it ends with."""
    command = [sys.executable, "-c", program, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=confine, check=False)
    assert done.returncode in (0, 1), f"ended by signal {-done.returncode}: {done.stderr[-300:]}"
    if done.returncode == 0:
        return done.stdout
    sentence = done.stderr.strip().splitlines()[-1]
    assert sentence.startswith("robocache.FileError: "), sentence
    return sentence


def mcap_file(*records: bytes) -> bytes:
    return mcap.MAGIC + mcap.header() + b"".join(records)


def ros2_schema(text: bytes, id: int = 1) -> bytes:
    body = struct.pack("<H", id) + mcap.text("p/msg/T") + mcap.text("ros2msg") + mcap.text(text)
    return mcap.record(mcap.SCHEMA, body)


def ros2_channel(id: int = 1, schema: int = 1) -> bytes:
    body = struct.pack("<HH", id, schema) + mcap.text(f"/t{id}") + mcap.text("cdr") + mcap.mapping({})
    return mcap.record(mcap.CHANNEL, body)


def test_yaml_of_nested_aliases(tmp_path: Path) -> None:
    pytest.importorskip("ruamel.yaml", reason="ruamel.yaml is not installed")
    lines = ["a0: &a0 {k0: [x, x, x, x, x, x, x, x, x, x]}"]
    lines += [f"a{k}: &a{k} {{{', '.join(f'k{k}{j}: *a{k - 1}' for j in range(9))}}}" for k in range(1, 9)]
    lines += ["rosbag2_bagfile_information: {version: 5, relative_file_paths: *a8}"]
    (tmp_path / "metadata.yaml").write_text("\n".join(lines))
    assert (tmp_path / "metadata.yaml").stat().st_size < 1000
    assert "not YAML: it has aliases" in read(tmp_path)


def test_hdf5_of_a_huge_shape(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    path = tmp_path / "huge.h5"
    with h5py.File(path, "w") as file:
        for name in ("times", "values"):
            file.create_dataset(name, (2**40,), np.float64, chunks=(2**16,))
        file["own/times"], file["own/values"] = np.arange(3.0), np.arange(3.0)
    said = read(path)
    assert "['own/values']" in said
    assert "/values is left out: it claims float64 [1099511627776]" in said
    with pytest.raises(ValueError, match='there is no data set "/values"'):
        rc.open(path, mapping={"v": {"values": "/values", "rate": 10}})
    aloha = tmp_path / "aloha.h5"
    with h5py.File(aloha, "w") as file:
        file.create_dataset("action", (2**40, 7), np.float32, chunks=(2**12, 7))
        file["observations/qpos"] = np.zeros((2, 7))
    assert "neither robomimic's layout nor ALOHA's" in read(aloha)


def test_hdf5_without_times_makes_them_as_it_goes(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    path = tmp_path / "aloha.h5"
    with h5py.File(path, "w") as file:  # 60 MiB of samples; all their times would be 480 MiB
        file.create_dataset("action", (60 << 20, 1), np.uint8, chunks=(1 << 20, 1))
        file["observations/qpos"] = np.zeros((2, 7))
    batches = list(rc.open(path).batches(["action"]))
    assert len(batches) > 20
    assert batches[-1].times[-1] == ((60 << 20) - 1) * 20_000_000


def test_parquet_of_many_rows(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    import pyarrow as pa

    (tmp_path / "meta").mkdir()
    info = '{"codebase_version": "v3.0", "fps": 10, "features": {}}'
    (tmp_path / "meta" / "info.json").write_text(info)
    path = tmp_path / "meta" / "tasks.parquet"
    rows = 3_000_000
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array(["t"]))
    parquet.write_table(pa.table({"task_index": pa.array(np.zeros(rows, np.int64)), "task": column}), path)
    assert path.stat().st_size < 100_000
    assert f"tasks.parquet: claims {rows} rows in a file of" in read(tmp_path)


def test_messages_that_claim_to_unpack_to_much(tmp_path: Path) -> None:
    claim = b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", 256 << 20) + bytes(7)
    count = 3000
    messages = b"".join(mcap.message(k, claim) for k in range(count))
    (tmp_path / "claims.mcap").write_bytes(mcap_file(ros2_schema(b"float64 x"), ros2_channel(), messages))
    said = read(tmp_path / "claims.mcap")
    assert "a message of 16 bytes that is compressed by zstd" in said
    assert "3,000 broken messages" in said


def test_message_that_unpacks_to_much_is_read(tmp_path: Path) -> None:
    """128 KiB for 4 bytes is what zstd reaches: a black picture."""
    decoder = rc._core.Decoder("p/msg/T", "ros2msg", b"uint8 x\nuint8[] data", "cdr", "/t")
    broken, sentence = decoder.add([(mcap.zstd_zeros(80), 0, 0)])
    assert (broken, sentence) == (0, None)


def test_schema_of_long_names(tmp_path: Path) -> None:
    long = b"a" * 200_000
    inner = b"".join(b"string s%d\n" % k for k in range(18_000))
    text = b"A %s\n===\nMSG: p/A\n%s" % (long, inner)
    assert len(text) < 500_000
    content = mcap_file(
        ros2_schema(text), *(ros2_channel(k) for k in range(1, 9)), *(mcap.message(1, b"", k) for k in range(1, 9))
    )
    (tmp_path / "schema.mcap").write_bytes(content)
    assert "has a name of more than 1024 bytes" in read(tmp_path / "schema.mcap")


def test_schema_of_many_topics(tmp_path: Path) -> None:
    text = b"float64 x\n" + b"# nothing\n" * 90_000
    topics = range(1, 20_000)
    records = [ros2_schema(text), *(ros2_channel(k) for k in topics), *(mcap.message(1, bytes(12), k) for k in topics)]
    (tmp_path / "topics.mcap").write_bytes(mcap_file(*records))
    assert "is left out: the schemas of the topics before it take more than" in read(tmp_path / "topics.mcap")


def test_index_of_many_channels(tmp_path: Path) -> None:
    ids = range(1, 60_000)
    inside = b"".join(mcap.message(1, b"", k) for k in ids)
    body = struct.pack("<QQQI", 1, 1, len(inside), 0) + mcap.text("") + struct.pack("<Q", len(inside)) + inside
    indexes = [mcap.record(mcap.MESSAGE_INDEX, struct.pack("<H", k) + mcap.text(b"")) for k in (0, *ids)]
    schema = mcap.record(mcap.SCHEMA, struct.pack("<H", 1) + mcap.text("s") + mcap.text("") + mcap.text(""))
    channel = mcap.record(
        mcap.CHANNEL, struct.pack("<HH", 1, 1) + mcap.text("/t") + mcap.text("json") + mcap.mapping({})
    )
    content = mcap_file(schema, channel, mcap.record(mcap.CHUNK, body), indexes[0] * 400_000, *indexes[1:])
    (tmp_path / "index.mcap").write_bytes(content)
    assert len(content) < 10 << 20
    said = read(tmp_path / "index.mcap")
    assert "channel" in said


# ---- Recordings of many topics


ADD = """
import sys
import robocache as rc
with rc.CacheWriter(sys.argv[1] + ".cache") as writer:
    writer.add(rc.open(sys.argv[1]))
cache = rc.Cache(sys.argv[1] + ".cache")
print(len(cache.streams), "streams")
"""
CLOCK = """
import sys
import robocache as rc
clock = rc.open(sys.argv[1]).clock
print(clock["kind"], len(clock["static"]))
"""
APART = """
import numpy as np
from robocache import _core
survey = _core.ClockSurvey()
logs = np.arange(2, dtype=np.int64) * 2 * 10**9 + 10**18
for k in range(40_000):
    survey.add(f"/tf/c{k}", logs, logs - k * 10**11 - 10**15)
clock = _core.find_clock(survey, [])
print(clock.describe()["agreeing"], sum(stream["source"] == "own" for stream in clock.describe()["streams"].values()))
"""


def write_json_topics(path: Path, topics: int) -> None:
    with rc.mcap.Writer(path) as writer:
        schema = writer.add_schema("x", "jsonschema", "{}")
        for k in range(topics):
            writer.write(writer.add_channel(f"/t{k}", "json", schema), b'{"x": 1.0}', log_time=10**18 + k * 10**8)


def write_bag(path: Path, topics: int, spacing: int) -> None:
    database = sqlite3.connect(path)
    columns = "id INTEGER PRIMARY KEY, name TEXT, type TEXT, serialization_format TEXT, offered_qos_profiles TEXT"
    database.execute(f"CREATE TABLE topics({columns})")
    database.execute("CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id INTEGER, timestamp INTEGER, data BLOB)")
    columns = "id INTEGER PRIMARY KEY, topic_type TEXT, encoding TEXT, encoded_message_definition TEXT"
    database.execute(f"CREATE TABLE message_definitions({columns})")
    database.execute("INSERT INTO message_definitions VALUES (1, 'p/msg/X', 'ros2msg', 'float64 x')")
    rows = range(1, topics + 1)
    made = [(k, f"/t{k}", "- durability: 1" if k % 2 else "- durability: 2") for k in rows]
    database.executemany("INSERT INTO topics VALUES (?, ?, 'p/msg/X', 'cdr', ?)", made)
    message = b"\0\1\0\0" + bytes(8)
    database.executemany(
        "INSERT INTO messages VALUES (?, ?, ?, ?)", [(k, k, 10**18 + k * spacing, message) for k in rows]
    )
    database.commit()
    database.close()


def test_mcap_of_many_topics_with_one_message(tmp_path: Path) -> None:
    write_json_topics(tmp_path / "topics.mcap", 800)
    assert read(tmp_path / "topics.mcap", ADD) == "800 streams\n"


def test_bag_of_many_topics_with_one_message(tmp_path: Path) -> None:
    write_bag(tmp_path / "topics.db3", 400, 10**8)
    assert read(tmp_path / "topics.db3", ADD) == "400 streams\n"


def test_latched_topics_of_a_large_bag(tmp_path: Path) -> None:
    write_bag(tmp_path / "topics.db3", 8_000, 1)
    assert read(tmp_path / "topics.db3", CLOCK) == "log time 4000\n"


def test_streams_on_many_clocks(tmp_path: Path) -> None:
    assert read(tmp_path, APART) == "1 39999\n"
