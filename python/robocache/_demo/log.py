"""The demo's recording: the simulated arm's sensors and a depth camera as ROS 2 messages in an MCAP file, as rosbag2
would have written it; and the recipe that makes of it the streams the demo aligns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robocache import mcap
from robocache._demo.arm import DURATION, Array, Sensor, nanoseconds
from robocache._demo.scene import CAMERAS, FOCAL, HEIGHT, WIDTH, Camera, Intrinsics, expose

DEPTH_RATE = 5.0
DEPTH_SIZE = (HEIGHT // 2, WIDTH // 2)
DEPTH_INTRINSICS: Intrinsics = (FOCAL / 2, FOCAL / 2, 0.5 * (DEPTH_SIZE[1] - 1), 0.5 * (DEPTH_SIZE[0] - 1))
DEPTH_CAMERA: Camera = CAMERAS[0]
JOINTS = tuple(f"joint_{k}" for k in range(1, 8))
SEED = 23

HEADER = "std_msgs/Header header\n"
NEEDED = {  # what the types below hold
    "std_msgs/Header": "builtin_interfaces/Time stamp\nstring frame_id\n",
    "builtin_interfaces/Time": "int32 sec\nuint32 nanosec\n",
    "geometry_msgs/Quaternion": "float64 x\nfloat64 y\nfloat64 z\nfloat64 w\n",
    "geometry_msgs/Vector3": "float64 x\nfloat64 y\nfloat64 z\n",
    "geometry_msgs/Point": "float64 x\nfloat64 y\nfloat64 z\n",
    "sensor_msgs/RegionOfInterest": "uint32 x_offset\nuint32 y_offset\nuint32 height\nuint32 width\nbool do_rectify\n",
    "geometry_msgs/Pose": "geometry_msgs/Point position\ngeometry_msgs/Quaternion orientation\n",
}
TYPES = {
    "sensor_msgs/msg/JointState": HEADER + "string[] name\nfloat64[] position\nfloat64[] velocity\nfloat64[] effort\n",
    "sensor_msgs/msg/Imu": HEADER + "geometry_msgs/Quaternion orientation\nfloat64[9] orientation_covariance\n"
    "geometry_msgs/Vector3 angular_velocity\nfloat64[9] angular_velocity_covariance\n"
    "geometry_msgs/Vector3 linear_acceleration\nfloat64[9] linear_acceleration_covariance\n",
    "geometry_msgs/msg/PoseStamped": HEADER + "geometry_msgs/Pose pose\n",
    "sensor_msgs/msg/Image": HEADER + "uint32 height\nuint32 width\nstring encoding\nuint8 is_bigendian\nuint32 step\n"
    "uint8[] data\n",
    "sensor_msgs/msg/CameraInfo": HEADER + "uint32 height\nuint32 width\nstring distortion_model\nfloat64[] d\n"
    "float64[9] k\nfloat64[9] r\nfloat64[12] p\nuint32 binning_x\nuint32 binning_y\n"
    "sensor_msgs/RegionOfInterest roi\n",
    "demo_msgs/msg/Features": HEADER + "float32[16] features\n",
    "demo_msgs/msg/Angle": HEADER + "float32 angle\n",
    "demo_msgs/msg/Gripper": HEADER + "uint8 open\n",
}


def definition(kind: str) -> str:
    """The definition of a type and of all types in it, as rosbag2 writes them into a schema."""
    texts, wanted = {}, [TYPES[kind]]
    while wanted:
        text = wanted.pop()
        for name, inner in NEEDED.items():
            if name in text and name not in texts:
                texts[name] = inner
                wanted.append(inner)
    parts = [TYPES[kind], *(f"MSG: {name}\n{text}" for name, text in texts.items())]
    return f"{'=' * 80}\n".join(parts)


class Cdr:
    """A message in CDR, little endian: numbers aligned to their size, counted from behind the 4 bytes of the head."""

    def __init__(self, stamp: int, frame: str) -> None:
        self.data = bytearray(b"\0\1\0\0")
        self.numbers("i", [stamp // 1_000_000_000]).numbers("I", [stamp % 1_000_000_000]).text(frame)

    def numbers(self, kind: str, values: Any) -> Cdr:
        array = np.asarray(values).astype(np.dtype(kind)).reshape(-1)
        self.data += bytes(-(len(self.data) - 4) % array.itemsize) + array.tobytes()
        return self

    def sequence(self, kind: str, values: Any) -> Cdr:
        self.numbers("I", [np.size(values)])
        return self.numbers(kind, values) if np.size(values) else self

    def text(self, text: str) -> Cdr:
        self.numbers("I", [len(text) + 1])
        self.data += text.encode() + b"\0"
        return self


def joint_state(stamp: int, row: Array) -> Cdr:
    message = Cdr(stamp, "base").numbers("I", [len(JOINTS)])
    for name in JOINTS:
        message.text(name)
    return message.sequence("d", row).sequence("d", []).sequence("d", [])


def imu(stamp: int, row: Array) -> Cdr:
    message = Cdr(stamp, "imu").numbers("d", [0, 0, 0, 1]).numbers("d", np.zeros(9)).numbers("d", row[:3])
    return message.numbers("d", np.zeros(9)).numbers("d", row[3:]).numbers("d", np.zeros(9))


def image(stamp: int, frame: Array) -> Cdr:
    height, width = frame.shape
    message = Cdr(stamp, "depth").numbers("I", [height, width]).text("16UC1").numbers("B", [0])
    return message.numbers("I", [2 * width]).sequence("B", np.ascontiguousarray(frame).view(np.uint8))


def camera_info(stamp: int, intrinsics: Array) -> Cdr:
    fx, fy, cx, cy = intrinsics
    message = Cdr(stamp, "depth").numbers("I", DEPTH_SIZE).text("plumb_bob").sequence("d", [])
    message.numbers("d", [fx, 0, cx, 0, fy, cy, 0, 0, 1]).numbers("d", np.eye(3))
    message.numbers("d", [fx, 0, cx, 0, 0, fy, cy, 0, 0, 0, 1, 0]).numbers("I", np.zeros(6))
    return message.numbers("B", [0])


@dataclass(frozen=True)
class Topic:
    name: str
    kind: str
    message: Callable[[int, Array], Cdr]


TOPICS = {
    "joints": Topic("/joint_states", "sensor_msgs/msg/JointState", joint_state),
    "camera": Topic("/camera/features", "demo_msgs/msg/Features", lambda at, row: Cdr(at, "camera").numbers("f", row)),
    "imu": Topic("/imu", "sensor_msgs/msg/Imu", imu),
    "pose": Topic("/tracker/pose", "geometry_msgs/msg/PoseStamped", lambda at, row: Cdr(at, "map").numbers("d", row)),
    "wrist": Topic("/wrist/angle", "demo_msgs/msg/Angle", lambda at, row: Cdr(at, "wrist").numbers("f", row)),
    "gripper": Topic("/gripper", "demo_msgs/msg/Gripper", lambda at, row: Cdr(at, "hand").numbers("B", row)),
    "depth": Topic("/depth/image", "sensor_msgs/msg/Image", image),
    "info": Topic("/depth/camera_info", "sensor_msgs/msg/CameraInfo", camera_info),
}

RECIPE = """\
# The demo's recipe: what of the recording goes into the cache, under which names, and how it is aligned.

[task]
name = "move the hand over the table"

[streams."/joint_states"]
name = "joints"
channels = ["position.*"]
method = "cubic"
dtype = "float32"

[streams."/camera/features"]
name = "camera"
method = "cubic"

[streams."/imu"]
name = "imu"
channels = ["angular_velocity.*", "linear_acceleration.*"]
method = "linear"
dtype = "float32"

[streams."/tracker/pose"]
name = "pose"
method = { "*position.*" = "cubic", "*orientation.*" = "slerp" }
latency = 0.008  # the tracker stamps a pose so much after it was
dtype = "float32"

[streams."/wrist/angle"]
name = "wrist"
method = "angle"

[streams."/gripper"]
name = "gripper"
method = "hold"

[streams."/depth/image"]
name = "depth"
"""


def depth_frames() -> Iterator[tuple[float, Array]]:
    """Seconds and frame [H, W] uint16, millimetres. The same every time."""
    random = np.random.default_rng(SEED)
    for k in range(int(DURATION * DEPTH_RATE)):
        at = k / DEPTH_RATE + 0.01
        frame, _ = expose(DEPTH_CAMERA, DEPTH_INTRINSICS, random, np.array([at]), DEPTH_SIZE)
        yield at, frame


def simulate(sensors: Mapping[str, Sensor]) -> list[tuple[int, str, bytes]]:
    """Log time, sensor and message of everything, as it would reach a recorder."""
    messages: list[tuple[int, str, bytes]] = []
    for name, sensor in sensors.items():
        topic, stamps = TOPICS[name], sensor.stamps
        arrivals = stamps if sensor.stream.arrivals is None else np.asarray(sensor.stream.arrivals)
        for stamp, arrival, row in zip(stamps.tolist(), arrivals.tolist(), sensor.values, strict=True):
            messages.append((arrival, name, bytes(topic.message(stamp, row).data)))
    for at, frame in depth_frames():
        stamp, arrival = nanoseconds(np.array([at, at + 0.03])).tolist()
        messages.append((arrival, "depth", bytes(image(stamp, frame).data)))
        messages.append((arrival, "info", bytes(camera_info(stamp, np.array(DEPTH_INTRINSICS)).data)))
    return sorted(messages, key=lambda message: message[0])


def write(path: Path, messages: Sequence[tuple[int, str, bytes]]) -> None:
    with mcap.Writer(path, profile="ros2") as writer:
        channels = {}
        for name, topic in TOPICS.items():
            schema = writer.add_schema(topic.kind, "ros2msg", definition(topic.kind))
            channels[name] = writer.add_channel(topic.name, "cdr", schema)
        for arrival, name, data in messages:
            writer.write(channels[name], data, log_time=arrival)
