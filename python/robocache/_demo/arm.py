"""The demo's arm: seven joints and six sensors whose truth is known in closed form at any moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import robocache as rc

Array = NDArray[Any]
Truth = Callable[[Array], Array]  # seconds since EPOCH -> values [T, D]

EPOCH = 1_700_000_000_000_000_000  # nanoseconds: stamps as a robot writes them, in November 2023
DURATION = 8.0  # seconds of recording
IMU_DIES = 4.0
CAMERA_STALLS = (5.55, 6.2)
POSE_LATENCY = 0.008
GRIPPER_SWITCHES = np.array([0.0, 1.37, 2.91, 3.64, 5.12, 6.95])
SEED = 7


@dataclass(frozen=True)
class Quantity:
    """Something of a sensor that can be wrong: some channels, in a unit a person knows."""

    label: str
    unit: str
    method: str  # how it is aligned
    error: Callable[[Array, Array], Array]  # (values [T, D], truth [T, D]) -> [T, any]


@dataclass(frozen=True)
class Sensor:
    stream: rc.Stream[Array]
    truth: Truth
    quantities: tuple[Quantity, ...]
    rate: float | None = None  # as the data sheet says; None: a sample on change only

    @property
    def values(self) -> Array:
        return np.asarray(self.stream.values)

    @property
    def stamps(self) -> Array:
        """As recorded: nanoseconds, before any latency is taken off."""
        return np.asarray(self.stream.times)


def joint_truth(t: Array) -> Array:
    joint = np.arange(7)
    return 0.9 * np.sin((1.1 + 0.35 * joint) * t[:, None] + joint) + 0.3 * np.sin((4.0 - 0.3 * joint) * t[:, None])


def camera_truth(t: Array) -> Array:
    channel = np.arange(16)
    return np.sin((0.8 + 0.25 * channel) * t[:, None] + 0.7 * channel)


def imu_truth(t: Array) -> Array:
    channel = np.arange(6)
    return (2.0 + 0.5 * channel) * np.cos((3.0 + 1.5 * channel) * t[:, None] + channel)


def pose_truth(t: Array) -> Array:
    """x y z in metres, then the quaternion x y z w of a turn about z followed by a tilt about x."""
    position = np.stack([0.45 + 0.12 * np.cos(2.1 * t), 0.18 * np.sin(2.1 * t), 0.35 + 0.08 * np.sin(3.3 * t)], axis=1)
    turn, tilt = 0.5 * (2.2 * np.sin(1.3 * t)), 0.5 * (0.9 * np.sin(2.3 * t + 0.5))
    rotation = [np.cos(turn) * np.sin(tilt), np.sin(turn) * np.sin(tilt), np.sin(turn) * np.cos(tilt)]
    return np.concatenate([position, np.stack([*rotation, np.cos(turn) * np.cos(tilt)], axis=1)], axis=1)


def wrist_truth(t: Array) -> Array:
    """Radians in (-pi, pi]: a wrist that turns back and forth over the far side, through pi."""
    return wrapped(np.pi - 0.2 + 1.5 * np.sin(1.75 * t - 0.6))[:, None]


def gripper_truth(t: Array) -> Array:
    return ((np.searchsorted(GRIPPER_SWITCHES, t, side="right") - 1) % 2).astype(np.uint8)[:, None]


def wrapped(angle: Array) -> Array:
    return np.pi - np.mod(np.pi - angle, 2 * np.pi)


def clock(random: np.random.Generator, rate: float, jitter: float, *, drift: float, lost: int = 0) -> Array:
    """Seconds at which a sensor really samples: its crystal drifts, its thread jitters, its transport loses some."""
    period = (1.0 + drift) / rate
    times = period * np.arange(int(DURATION / period)) + random.normal(0.0, jitter, int(DURATION / period))
    times = np.sort(np.abs(times))
    keep = np.ones(len(times), bool)
    keep[random.choice(np.arange(1, len(times) - 1), lost, replace=False)] = False
    return times[keep]


def nanoseconds(t: Array) -> Array:
    return EPOCH + np.rint(t * 1e9).astype(np.int64)


def seconds(stamps: Array) -> Array:
    return (stamps - EPOCH) * 1e-9


def record() -> dict[str, Sensor]:
    """Eight seconds of the arm. The same every time."""
    random = np.random.default_rng(SEED)

    def sampled(truth: Truth, t: Array) -> Array:
        return truth(t).astype(np.float32)

    joints = clock(random, 500, 0.00015, drift=4e-4, lost=9)
    camera = clock(random, 30, 0.0008, drift=-3e-4, lost=7)
    camera = camera[(camera < CAMERA_STALLS[0]) | (camera > CAMERA_STALLS[1])]
    late = np.maximum.accumulate(camera + 0.040 + random.exponential(0.018, len(camera)))  # delivered in order
    imu = clock(random, 200, 0.00004, drift=2e-4)
    imu = imu[imu < IMU_DIES]
    pose = clock(random, 100, 0.0004, drift=6e-3, lost=3)  # a loop that sleeps 10 ms, and then some
    tracked = sampled(pose_truth, pose)
    tracked[:, 3:] *= random.choice(
        [1.0, -1.0], (len(pose), 1), p=[0.9, 0.1]
    )  # q and -q are one rotation: trackers flip
    wrist = clock(random, 25, 0.0015, drift=5e-4)
    gripper = GRIPPER_SWITCHES

    def difference(values: Array, truth: Array) -> Array:
        return values - truth

    return {
        "joints": Sensor(
            rc.Stream(sampled(joint_truth, joints), nanoseconds(joints), method="cubic", max_gap=0.02),
            joint_truth,
            (Quantity("joints", "mrad", "cubic", lambda v, truth: 1e3 * difference(v, truth)),),
            500,
        ),
        "camera": Sensor(
            rc.Stream(
                sampled(camera_truth, camera),
                nanoseconds(camera),
                method="cubic",
                arrivals=nanoseconds(late),
                max_gap=0.25,
            ),
            camera_truth,
            (Quantity("camera features", "1e-3", "cubic", lambda v, truth: 1e3 * difference(v, truth)),),
            30,
        ),
        "imu": Sensor(
            rc.Stream(sampled(imu_truth, imu), nanoseconds(imu), method="linear", max_gap=0.05),
            imu_truth,
            (Quantity("imu", "mrad/s", "linear", lambda v, truth: 1e3 * difference(v, truth)),),
            200,
        ),
        "pose": Sensor(
            rc.Stream(
                tracked,
                nanoseconds(pose + POSE_LATENCY),
                method=[("cubic", 0, 3), ("slerp", 3, 7)],
                latency=POSE_LATENCY,
                max_gap=0.1,
            ),
            pose_truth,
            (
                Quantity("pose: position", "mm", "cubic", lambda v, truth: 1e3 * difference(v[:, :3], truth[:, :3])),
                Quantity("pose: rotation", "deg", "slerp", lambda v, truth: turned(v[:, 3:], truth[:, 3:])),
            ),
            100,
        ),
        "wrist": Sensor(
            rc.Stream(sampled(wrist_truth, wrist), nanoseconds(wrist), method="angle", max_gap=0.2),
            wrist_truth,
            (Quantity("wrist angle", "deg", "angle", lambda v, truth: np.degrees(wrapped(difference(v, truth)))),),
            25,
        ),
        "gripper": Sensor(  # samples on change only: causal, so that the last state is valid until the next one
            rc.Stream(gripper_truth(gripper), nanoseconds(gripper), method="hold", causal=True),
            gripper_truth,
            (Quantity("gripper open", "0..1", "hold", lambda v, truth: v.astype(np.float64) - truth),),
        ),
    }


def turned(quaternion: Array, truth: Array) -> Array:
    """Degrees between two rotations; a quaternion that is not unit is made so first, in its favour."""
    a, b = quaternion.astype(np.float64), truth / np.linalg.norm(truth, axis=1, keepdims=True)
    a = a / np.maximum(np.linalg.norm(a, axis=1, keepdims=True), 1e-12)
    a = np.where((a * b).sum(axis=1, keepdims=True) < 0, -a, a)
    # From the chord: the arc cosine of a number near 1 has no digits left.
    return np.degrees(4.0 * np.arcsin(np.clip(0.5 * np.linalg.norm(a - b, axis=1, keepdims=True), 0.0, 1.0)))
