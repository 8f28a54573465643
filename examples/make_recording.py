"""Writes a small MCAP recording to try RoboCache on: python examples/make_recording.py run.mcap

Ten seconds of an arm, as JSON messages: /joint_states at 100 Hz with half a second missing, /odom at 30 Hz, and
/gripper, which is written only when it changes. Every message is logged some milliseconds after its stamp. The file is
always the same.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from robocache import mcap

START = 1_700_000_000_000_000_000  # nanoseconds since 1970


def write(path: Path) -> None:
    random = np.random.default_rng(7)
    messages = []  # (log time, topic, stamp, fields)

    def add(topic: str, seconds: float, delay: float, fields: dict[str, object]) -> None:
        stamp = START + round(seconds * 1e9)
        messages.append((stamp + round(delay * 1e9), topic, stamp, fields))

    for seconds in np.arange(0, 10, 0.01) + random.uniform(0, 0.001, 1000):
        if not 6 < seconds < 6.5:  # half a second was lost
            angles = [round(float(np.sin(seconds + joint)), 6) for joint in range(3)]
            add("/joint_states", seconds, random.uniform(0.001, 0.004), {"position": angles})
    for seconds in np.arange(0, 10, 1 / 30) + random.uniform(0, 0.002, 300):
        x, y = np.cos(seconds / 3), np.sin(seconds / 3)
        add("/odom", seconds, random.uniform(0.005, 0.02), {"x": round(float(x), 6), "y": round(float(y), 6)})
    for seconds, closed in ((0.5, 0), (3.25, 1), (7.75, 0)):
        add("/gripper", seconds, 0.002, {"closed": closed})

    with mcap.Writer(path) as writer:
        channels = {topic: writer.add_channel(topic, "json") for topic in ("/joint_states", "/odom", "/gripper")}
        for log_time, topic, stamp, fields in sorted(messages, key=lambda message: message[0]):
            writer.write(channels[topic], json.dumps({"stamp": stamp} | fields).encode(), log_time=log_time)


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "run.mcap"))
