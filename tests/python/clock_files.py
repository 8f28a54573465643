"""Recordings whose true times are known: what was sampled when, who stamped it by which clock, and when it was logged.

A `Message` knows the true time of its event on the recording's clock. Its value is `signal(true time)`, so that what is
aligned can be compared with the truth, whatever the stamps and log times are.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from robocache import mcap

SECOND = 1_000_000_000
WALL = 1_780_000_000 * SECOND  # when the recordings begin, by log time
TIME = "\n===\nMSG: builtin_interfaces/Time\nint32 sec\nuint32 nanosec\n"
HEADER = "\n===\nMSG: std_msgs/Header\nbuiltin_interfaces/Time stamp\nstring frame_id" + TIME
TREE = (
    "geometry_msgs/TransformStamped[] transforms\n===\nMSG: geometry_msgs/TransformStamped\nstd_msgs/Header header\n"
    "string child_frame_id\ngeometry_msgs/Transform transform\n===\nMSG: geometry_msgs/Transform\n"
    "geometry_msgs/Vector3 translation\ngeometry_msgs/Quaternion rotation\n===\nMSG: geometry_msgs/Vector3\n"
    "float64 x\nfloat64 y\nfloat64 z\n===\nMSG: geometry_msgs/Quaternion\nfloat64 x\nfloat64 y\nfloat64 z\nfloat64 w"
)
TYPES = {
    "stamped": ("demo/msg/Stamped", "std_msgs/Header header\nfloat64 value" + HEADER),
    "plain": ("demo/msg/Plain", "float64 value"),
    "clock": ("rosgraph_msgs/msg/Clock", "builtin_interfaces/Time clock" + TIME),
    "tree": ("tf2_msgs/msg/TFMessage", TREE + HEADER),
}
LATCHED = "- history: 1\n  depth: 1\n  reliability: 1\n  durability: 1\n  deadline:\n    sec: 2147483647\n"
VOLATILE = LATCHED.replace("durability: 1", "durability: 2")


class Message(NamedTuple):
    topic: str
    kind: str  # of TYPES
    log: int
    stamp: int
    value: float


def signal(times: object) -> np.ndarray:
    """Of true seconds; it is never faster than 1 a second."""
    return np.sin(np.asarray(times, np.float64))


def encoded(message: Message) -> bytes:
    stamp = struct.pack("<iI", message.stamp // SECOND, message.stamp % SECOND)
    if message.kind == "clock":
        return b"\0\1\0\0" + stamp
    if message.kind == "plain":
        return b"\0\1\0\0" + struct.pack("<d", message.value)
    header = stamp + struct.pack("<I", 2) + b"a\0"  # 14 bytes behind the 4
    if message.kind == "stamped":
        return b"\0\1\0\0" + header + bytes(2) + struct.pack("<d", message.value)
    body = struct.pack("<I", 1) + stamp + struct.pack("<I", 2) + b"a\0" + bytes(2) + struct.pack("<I", 2) + b"b\0"
    body += bytes(-len(body) % 8)
    return b"\0\1\0\0" + body + struct.pack("<7d", message.value, 0, 0, 0, 0, 0, 1)


def sampled(
    topic: str,
    rate: float,
    length: float,
    wall: Callable[[np.ndarray], np.ndarray],
    *,
    kind: str = "stamped",
    stamp: Callable[[np.ndarray], np.ndarray] = lambda t: t,
    delay: tuple[float, float] = (0.0002, 0.002),
    start: float = 0.0,
    seed: int = 0,
) -> list[Message]:
    """A stream that samples `signal` at a rate of the true clock.

    wall   true seconds to seconds of log time after WALL; delay: seconds of log time, from, to
    stamp  true seconds to the seconds that its own clock shows
    """
    rng = np.random.default_rng([seed, len(topic), int(rate)])
    true = start + (np.arange(int(length * rate)) + rng.uniform(0, 0.2)) / rate
    logs = WALL + np.rint((wall(true) + rng.uniform(*delay, len(true))) * 1e9).astype(np.int64)
    stamps = np.rint(stamp(true) * 1e9).astype(np.int64)
    rows = zip(logs.tolist(), stamps.tolist(), signal(true).tolist(), strict=True)
    return [Message(topic, kind, log, at, value) for log, at, value in rows]


def once(topic: str, kind: str, log: float, stamp: float, value: float) -> Message:
    return Message(topic, kind, WALL + round(log * 1e9), round(stamp * 1e9), value)


def write_mcap(
    path: Path, messages: Iterable[Message], latched: Sequence[str] = (), unit: int = 1, chunk_size: int = 1 << 14
) -> Path:
    with mcap.Writer(path, profile="ros2", chunk_size=chunk_size) as writer:
        channels: dict[str, int] = {}
        for message in sorted(messages, key=lambda found: found.log):
            if message.topic not in channels:
                name, text = TYPES[message.kind]
                profile = LATCHED if message.topic in latched else VOLATILE
                schema = writer.add_schema(name, "ros2msg", text.encode())
                channels[message.topic] = writer.add_channel(
                    message.topic, "cdr", schema, {"offered_qos_profiles": profile}
                )
            writer.write(channels[message.topic], encoded(message), log_time=message.log // unit)
    return path


def write_db3(path: Path, messages: Iterable[Message], latched: Sequence[str] = ()) -> Path:
    database = sqlite3.connect(path)
    database.executescript(
        "CREATE TABLE topics(id INTEGER PRIMARY KEY, name TEXT, type TEXT, serialization_format TEXT,"
        " offered_qos_profiles TEXT);"
        "CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id INTEGER, timestamp INTEGER, data BLOB);"
        "CREATE INDEX timestamp_idx ON messages (timestamp ASC);"
        "CREATE TABLE message_definitions(id INTEGER PRIMARY KEY, topic_type TEXT, encoding TEXT,"
        " encoded_message_definition TEXT, type_description_hash TEXT);"
    )
    for name, text in TYPES.values():
        row = (name, "ros2msg", text, "")
        database.execute("INSERT INTO message_definitions VALUES (NULL, ?, ?, ?, ?)", row)
    numbers: dict[str, int] = {}
    for message in sorted(messages, key=lambda found: found.log):
        if message.topic not in numbers:
            numbers[message.topic] = len(numbers) + 1
            profile = LATCHED if message.topic in latched else VOLATILE
            row = (numbers[message.topic], message.topic, TYPES[message.kind][0], "cdr", profile)
            database.execute("INSERT INTO topics VALUES (?, ?, ?, ?, ?)", row)
        row = (numbers[message.topic], message.log, encoded(message))
        database.execute("INSERT INTO messages VALUES (NULL, ?, ?, ?)", row)
    database.commit()
    database.close()
    return path


def paced(rate: float | None) -> Callable[[np.ndarray], np.ndarray]:
    """True seconds to log time at a real-time factor; None: one that varies from 0.5 to 1.5 over 20 s."""
    if rate is not None:
        return lambda true: true / rate
    fine = np.linspace(-5, 200, 200_001)
    passed = np.cumsum(1 / (1 + 0.5 * np.sin(fine * 2 * np.pi / 20))) * (fine[1] - fine[0])
    return lambda true: np.interp(true, fine, passed - np.interp(0, fine, passed))
