"""One recording, three sensors, one 50 Hz timeline. NumPy only: python examples/align_robot.py"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

import robocache as rc

start = 1_700_000_000_000_000_000  # stamps as a robot writes them: nanoseconds since the epoch
random = np.random.default_rng(0)


def stamps(rate: float, seconds: float, jitter: float) -> NDArray[np.int64]:
    steps = np.arange(int(rate * seconds)) / rate + random.uniform(0, jitter, int(rate * seconds))
    return start + np.rint(steps * 1e9).astype(np.int64)


t_cam, t_pose = stamps(30, 4, 0.004), stamps(100, 4, 0.001)
t_grip = start + np.array([0, 900_000_000, 1_300_000_000, 3_900_000_000])

frames = random.integers(0, 255, (len(t_cam), 48, 64, 3), dtype=np.uint8)
turn = (t_pose - start) * 1e-9
pose = np.zeros((len(t_pose), 7), np.float32)  # x y z, then a quaternion x y z w
pose[:, 0], pose[:, 5], pose[:, 6] = 0.1 * turn, np.sin(turn / 2), np.cos(turn / 2)
gripper = np.array([0, 1, 0, 1], np.uint8)

streams: dict[str, rc.Stream[NDArray[Any]]] = {
    "wrist": rc.Stream(frames, t_cam, arrivals=t_cam + 35_000_000),  # images are held; each arrives 35 ms late
    "pose": rc.Stream(pose, t_pose, method=[("linear", 0, 3), ("slerp", 3, 7)], latency=0.008),
    "gripper": rc.Stream(gripper, t_grip),  # written on change: its stamps do not bound the timeline
}
timeline = rc.Timeline.over([streams["wrist"], streams["pose"]], rate=50)
aligned = rc.align(streams, timeline, causal=True)  # held: only what had arrived; without it the pose is interpolated

for name, stream in aligned.items():
    known = np.asarray(stream.valid)
    age = np.asarray(stream.age)[known] * 1e-6
    share = f"valid at {known.sum()} of {known.size} targets, age {age.min():.1f} to {age.max():.1f} ms"
    print(f"{name:8} {stream.values.shape!s:18} {stream.values.dtype!s:8} {share}")
