"""Decoding ROS 2 messages on one core, ours beside mcap-ros2-support. Both decoders have read the schema before.

Ours makes arrays of all numbers, the package makes objects. A cloud stays bytes in the package's object; the peer
"+ numpy" also makes the points [N, channels] of them, as users do. What is decoded is dropped at once, as a program
does that streams a recording. One check before the timing compares all of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench import others
from bench.goals import Row
from bench.timing import Call

PACKAGE, WITH_NUMPY = "mcap-ros2-support", "mcap-ros2-support + numpy"
NAMES = (PACKAGE, WITH_NUMPY)

Numbers = np.ndarray[Any, Any]  # [rows, channels]
Field = tuple[str, int, int, int]  # name, offset, datatype, count
XYZ: list[Field] = [("x", 0, 7, 1), ("y", 4, 7, 1), ("z", 8, 7, 1)]
PLAIN: tuple[list[Field], int] = ([*XYZ, ("intensity", 12, 7, 1)], 16)
VELODYNE: tuple[list[Field], int] = ([*XYZ, ("intensity", 16, 7, 1), ("ring", 20, 4, 1), ("time", 24, 7, 1)], 32)


@dataclasses.dataclass(frozen=True)
class RecordedMessages:
    schema: str
    messages: list[tuple[bytes, int, int]]  # data, log time, publish time


@dataclasses.dataclass(frozen=True, eq=False)
class MessageCase(Row):
    name: str
    type: str
    number: int
    layout: tuple[list[Field], int] | None = None  # of a cloud: its fields and the bytes of a point
    points: int = 0
    resolution: float = 0  # to which a cloud's numbers are rounded; 0: not rounded

    op = "decode"
    devices = ("cpu",)

    def peers(self, device: str) -> tuple[str, ...]:
        return NAMES if self.layout else (PACKAGE,)

    def make(self, device: str, seed: int = 0) -> RecordedMessages:
        typesys = others.module("rosbags.typesys", "pip install rosbags")
        store = typesys.get_typestore(typesys.Stores.ROS2_HUMBLE)
        rng = np.random.default_rng(seed)
        messages = []
        for k in range(self.number):
            content = bytes(store.serialize_cdr(self._message(store.types, rng, k), self.type))
            messages.append((content, k, k))
        return RecordedMessages(store.generate_msgdef(self.type, ros_version=2)[0], messages)

    def _message(self, types: Any, rng: np.random.Generator, k: int) -> Any:
        time = types["builtin_interfaces/msg/Time"](sec=1 + k, nanosec=0)
        header = types["std_msgs/msg/Header"](stamp=time, frame_id="base_link")
        kind = types[self.type]
        if self.layout:
            fields, step = self.layout
            described = [types["sensor_msgs/msg/PointField"](*field) for field in fields]
            data = np.zeros(self.points, _dtype(self.layout))
            for name in data.dtype.names or ():
                data[name] = rng.normal(size=self.points) if data[name].dtype.kind == "f" else rng.integers(0, 64)
                if self.resolution:
                    data[name] = np.round(data[name] / self.resolution) * self.resolution
            content = data.view(np.uint8)
            return kind(header, 1, self.points, described, False, step, step * self.points, content, True)
        if self.type == "sensor_msgs/msg/Imu":
            rotation = types["geometry_msgs/msg/Quaternion"](*rng.normal(size=4))
            vectors = [types["geometry_msgs/msg/Vector3"](*rng.normal(size=3)) for _ in range(2)]
            none = np.zeros(9)
            return kind(header, rotation, none, vectors[0], none, vectors[1], none)
        return kind(header, [f"panda_joint{joint}" for joint in range(1, 8)], *rng.normal(size=(3, 7)))

    def ours(self, rc: ModuleType, recorded: RecordedMessages) -> Call:
        decoder = self._our_decoder(recorded)
        return lambda: _stack([_last_row(values) for values in self._pieces(decoder, recorded)])

    def _our_decoder(self, recorded: RecordedMessages) -> Any:
        from robocache import _core

        return _core.Decoder(self.type, "ros2msg", recorded.schema.encode(), "cdr", "/topic")

    def _pieces(self, decoder: Any, recorded: RecordedMessages) -> Iterator[Numbers]:
        for begin in range(0, self.number, self.batch):
            decoder.add(recorded.messages[begin : begin + self.batch])
            for piece in decoder.take():
                yield piece[1]

    @property
    def batch(self) -> int:
        """Messages of about 256 KiB together: malloc reuses blocks of that size without a system call."""
        size = self.points * self.layout[1] if self.layout else 200
        return max(1, (256 << 10) // size)

    def other_call(self, who: str, recorded: RecordedMessages) -> Call:
        decode = self._decoder(recorded)

        def call() -> Tensor:
            kept = []
            for k, (data, _, _) in enumerate(recorded.messages, 1):
                message = decode(data)
                if who == WITH_NUMPY:
                    message = self._points(message)
                if k % self.batch == 0 or k == self.number:
                    kept.append(_last_row(message if who == WITH_NUMPY else self._numbers(message)))
            return _stack(kept)

        return call

    def _decoder(self, recorded: RecordedMessages) -> Callable[[bytes], Any]:
        dynamic = others.module("mcap_ros2._dynamic", "pip install mcap-ros2-support")
        return dynamic.generate_dynamic(self.type, recorded.schema)[self.type]

    def _numbers(self, message: Any) -> Numbers:
        return self._points(message) if self.layout else np.array([_numbers(message)])

    def _points(self, message: Any) -> Numbers:
        from numpy.lib.recfunctions import structured_to_unstructured

        assert self.layout
        points = np.frombuffer(message.data, _dtype(self.layout))
        if self.layout == PLAIN:
            return points.view(np.float32).reshape(-1, 4)
        return structured_to_unstructured(points, np.dtype(np.float32))

    def results(self, returned: Any) -> list[Tensor]:
        return [returned]

    def truth(self, recorded: RecordedMessages) -> list[Tensor]:
        decode = self._decoder(recorded)
        theirs = np.concatenate([self._numbers(decode(data)) for data, _, _ in recorded.messages])
        ours = np.concatenate(list(self._pieces(self._our_decoder(recorded), recorded)))
        if not np.array_equal(ours, theirs):
            raise ValueError(f"{self.name}: not what mcap-ros2-support decodes")
        return [self.other_call(PACKAGE, recorded)()]

    def floor_bytes(self, recorded: RecordedMessages) -> int:
        """The messages once, the numbers once."""
        numbers = 4 * self.points * len(self.layout[0]) if self.layout else 8 * (10 if "Imu" in self.type else 21)
        return sum(len(data) for data, _, _ in recorded.messages) + self.number * numbers


def _last_row(values: Numbers) -> Numbers:
    return values[-1].astype(np.float64)


def _stack(rows: list[Numbers]) -> Tensor:
    return torch.from_numpy(np.stack(rows))


def _dtype(layout: tuple[list[Field], int]) -> np.dtype[Any]:
    fields, step = layout
    formats = {4: "<u2", 7: "<f4"}
    return np.dtype(
        {
            "names": [field[0] for field in fields],
            "formats": [formats[field[2]] for field in fields],
            "offsets": [field[1] for field in fields],
            "itemsize": step,
        }
    )


def _numbers(message: Any) -> list[float]:
    if hasattr(message, "position"):
        return [*message.position, *message.velocity, *message.effort]
    parts = ((message.orientation, "xyzw"), (message.angular_velocity, "xyz"), (message.linear_acceleration, "xyz"))
    return [getattr(part, axis) for part, axes in parts for axis in axes]


CLOUD = "sensor_msgs/msg/PointCloud2"
MESSAGE_CASES = (
    MessageCase("10K Imu", "sensor_msgs/msg/Imu", 10_000),
    MessageCase("10K JointState, 7 joints", "sensor_msgs/msg/JointState", 10_000),
    # 200 clouds of 1K points are about a chunk of a recording, and fit the CPU's cache. With 30K points both decoders
    # wait for memory.
    MessageCase("200 PointCloud2, 1K points of 4 floats", CLOUD, 200, PLAIN, 1000),
    MessageCase("100 PointCloud2, 30K points of 4 floats", CLOUD, 100, PLAIN, 30_000),
    MessageCase("200 PointCloud2, 1K points of a Velodyne", CLOUD, 200, VELODYNE, 1000),
    MessageCase("100 PointCloud2, 30K points of a Velodyne", CLOUD, 100, VELODYNE, 30_000),
)
