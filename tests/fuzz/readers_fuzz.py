"""readers_fuzz.py FORMAT FOLDER [libFuzzer's options]: any bytes as a file of a format that Python reads, by atheris.

Formats: metadata (a rosbag2's metadata.yaml), db3, info (a LeRobot data set's info.json), tasks, episodes and data (its
Parquet files), hdf5. A file becomes streams, or is refused with a sentence; anything else is a bug. FOLDER gets the
seeds, written by the formats' own libraries.
"""

from __future__ import annotations

import json
import resource
import shutil
import sqlite3
import sys
import tempfile
from pathlib import Path

import atheris
import numpy as np

# An editable install has a finder of its own, past which atheris does not look.
sys.meta_path = [finder for finder in sys.meta_path if "Redirecting" not in type(finder).__name__]
sys.path.insert(0, str(Path(__file__).parents[2] / "python"))
with atheris.instrument_imports(include=["robocache"]):
    import robocache as rc
    import robocache._recordings.hdf5
    import robocache._recordings.lerobot
    import robocache._recordings.rosbag2  # so that they are instrumented

MEMORY = 2 << 30  # bytes that the process may take: libhdf5 asks for what a damaged header says, and gets an error then
LONGEST = 4000  # characters of a sentence


def bag(folder: Path) -> Path:
    """A rosbag2 of a few messages, in SQLite."""
    database = sqlite3.connect(folder / "bag.db3")
    database.execute("CREATE TABLE topics(id INTEGER PRIMARY KEY, name TEXT, type TEXT, serialization_format TEXT)")
    database.execute(
        "CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id INTEGER, timestamp INTEGER, data BLOB NOT NULL)"
    )
    database.execute(
        "CREATE TABLE message_definitions(id INTEGER PRIMARY KEY, topic_type TEXT, encoding TEXT, "
        "encoded_message_definition TEXT)"
    )
    for id, (name, kind, text) in enumerate((("/x", "p/msg/X", "float64 x"), ("/s", "p/msg/S", "uint8[] data")), 1):
        database.execute("INSERT INTO topics VALUES (?, ?, ?, 'cdr')", [id, name, kind])
        database.execute("INSERT INTO message_definitions VALUES (?, ?, 'ros2msg', ?)", [id, kind, text])
        rows = [[id, 1_700_000_000_000_000_000 + k, b"\0\1\0\0" + bytes(8)] for k in range(20)]
        database.executemany("INSERT INTO messages (topic_id, timestamp, data) VALUES (?, ?, ?)", rows)
    database.commit()
    database.close()
    (folder / "metadata.yaml").write_text(
        "rosbag2_bagfile_information:\n  version: 5\n  storage_identifier: sqlite3\n"
        "  duration:\n    nanoseconds: 5\n  starting_time:\n    nanoseconds_since_epoch: 1700000000000000000\n"
        "  message_count: 40\n  relative_file_paths:\n    - bag.db3\n  compression_format: ''\n  compression_mode: ''\n"
        "  topics_with_message_count:\n    - topic_metadata: {name: /x, type: p/msg/X}\n      message_count: 20\n"
    )
    return folder


def data_set(folder: Path) -> Path:
    """A LeRobot v3.0 data set of two episodes."""
    import pyarrow as pa
    from pyarrow import parquet

    for name in ("meta/episodes/chunk-000", "data/chunk-000"):
        (folder / name).mkdir(parents=True)
    features = {
        "action": {"dtype": "float32", "shape": [2], "names": ["a", "b"]},
        "timestamp": {"dtype": "float32", "shape": [1]},
        "task_index": {"dtype": "int64", "shape": [1]},
    }
    info = {"codebase_version": "v3.0", "fps": 10, "features": features, "chunks_size": 1000}
    info["data_path"] = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
    (folder / "meta/info.json").write_text(json.dumps(info))
    parquet.write_table(pa.table({"task": ["pick", "place"], "task_index": [0, 1]}), folder / "meta/tasks.parquet")
    episodes = {"episode_index": [0, 1], "tasks": [["pick"], ["place"]], "length": [3, 4]}
    episodes |= {"data/chunk_index": [0, 0], "data/file_index": [0, 0]}
    parquet.write_table(pa.table(episodes), folder / "meta/episodes/chunk-000/file-000.parquet")
    frames = np.array([0, 1, 2, 0, 1, 2, 3])
    rows = {"action": [[float(k), 0.5] for k in range(7)], "timestamp": (frames / 10).astype(np.float32)}
    rows |= {"frame_index": frames, "episode_index": [0, 0, 0, 1, 1, 1, 1], "task_index": [0, 0, 0, 1, 1, 1, 1]}
    parquet.write_table(pa.table(rows), folder / "data/chunk-000/file-000.parquet")
    return folder


def hdf5(folder: Path) -> Path:
    """Times beside data, robomimic's layout and ALOHA's, each a seed."""
    import h5py

    for name in ("plain", "robomimic", "aloha"):
        with h5py.File(folder / f"{name}.h5", "w", libver="latest" if name == "plain" else "earliest") as file:
            if name == "plain":
                file["arm/times"], file["arm/q"] = np.arange(4.0), np.zeros((4, 3), np.float32)
                file.create_dataset("packed", data=np.zeros((64, 8)), chunks=(16, 8), compression="gzip")
                file["times"] = np.arange(64) * 1000
            elif name == "robomimic":
                file["data/demo_0/actions"], file["data/demo_0/obs/eef"] = np.zeros((4, 2)), np.ones((4, 3))
                # Of a fixed length: damaged heaps of strings make libhdf5 2.0 itself loop forever.
                file["data"].attrs["env_args"] = np.bytes_('{"env_kwargs": {"control_freq": 20}}')
            else:
                file["action"], file["observations/qpos"] = np.zeros((4, 7)), np.zeros((4, 7), np.float32)
                file["observations/images/a"] = np.zeros((4, 5), np.uint8)
                file["compress_len"] = np.array([[5, 3, 0, 1]])
    return folder


# By format: what makes a recording around it, and which file of it the bytes are.
FORMATS = {
    "metadata": (bag, "metadata.yaml"),
    "db3": (bag, "bag.db3"),
    "info": (data_set, "meta/info.json"),
    "tasks": (data_set, "meta/tasks.parquet"),
    "episodes": (data_set, "meta/episodes/chunk-000/file-000.parquet"),
    "data": (data_set, "data/chunk-000/file-000.parquet"),
    "hdf5": (hdf5, "fuzz.h5"),
}


def read(place: Path) -> None:
    try:
        recording = rc.open(place)
        for episode in recording.episodes:
            assert len(repr(episode)) < LONGEST
        for batch in recording.batches():
            assert len(batch.times) == len(batch.arrivals)
        assert all(len(note) < LONGEST for note in recording.notes)
    except (rc.FileError, ValueError) as error:
        sentence = str(error)
    else:
        return
    assert 0 < len(sentence) < LONGEST, sentence[:200]


def main() -> None:
    form, corpus, *options = sys.argv[1:]
    make, name = FORMATS[form]
    folder = Path(tempfile.mkdtemp(prefix="robocache-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    place = make(folder)
    file = place / name
    seeds = Path(corpus)
    seeds.mkdir(parents=True, exist_ok=True)
    for seed in place.glob("*.h5") if form == "hdf5" else [file]:
        shutil.copy(seed, seeds / seed.name)
    opened = file if form in ("db3", "hdf5") else place

    def one(content: bytes) -> None:
        file.write_bytes(content)
        read(opened)

    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    atheris.Setup([sys.argv[0], *options, str(seeds)], one)
    try:
        atheris.Fuzz()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
