"""Messages into streams: every type of ROS 2 at random against an oracle, the known types, JSON, and hostile input."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robocache import FileError, _core

pytest.importorskip("rosbags", reason="rosbags writes the messages")
dynamic = pytest.importorskip("mcap_ros2._dynamic", reason="mcap-ros2-support is a judge")

from message_types import (  # noqa: E402
    STORE,
    Piece,
    check,
    pieces,
    random_message,
    schema_text,
)
from recordings import shared  # noqa: E402

KNOWN = {
    "sensor_msgs/msg/JointState",
    "sensor_msgs/msg/PointCloud2",
    "sensor_msgs/msg/Image",
    "sensor_msgs/msg/CompressedImage",
    "tf2_msgs/msg/TFMessage",
}
TYPES = sorted(set(STORE.fielddefs) - KNOWN)
TIME = STORE.types["builtin_interfaces/msg/Time"]
HEADER = STORE.types["std_msgs/msg/Header"]


def decoder_of(name: str, topic: str = "/t", time: str = "auto") -> Any:
    return _core.Decoder(name, "ros2msg", schema_text(STORE, name), "cdr", topic, time)


def serialize(message: Any, name: str, little_endian: bool = True, store: Any = STORE) -> bytes:
    return bytes(store.serialize_cdr(message, name, little_endian=little_endian))


def decode(name: str, messages: list[Any], **more: Any) -> list[Piece]:
    decoder = decoder_of(name, **more)
    assert decoder.add([(serialize(m, name), k, 10 * k) for k, m in enumerate(messages)]) == (0, None)
    return pieces(decoder)


def header(seconds: int = 3, frame: str = "base") -> Any:
    return HEADER(stamp=TIME(sec=seconds, nanosec=7), frame_id=frame)


# ---- any type


@pytest.mark.parametrize("little_endian", [True, False], ids=["little", "big"])
@pytest.mark.parametrize("name", TYPES)
def test_every_type(name: str, little_endian: bool) -> None:
    rng = np.random.default_rng(TYPES.index(name))
    messages = [random_message(STORE, rng, name) for _ in range(3)]
    decoder = decoder_of(name)
    assert decoder.add([(serialize(m, name, little_endian), k, k) for k, m in enumerate(messages)]) == (0, None)
    decoded = pieces(decoder)
    check(STORE, name, messages, decoded, "/t")
    assert all(piece.type == name and piece.arrivals.tolist() == [0, 1, 2] for piece in decoded)


@pytest.mark.parametrize("name", ["sensor_msgs/msg/Imu", "sensor_msgs/msg/LaserScan", "nav_msgs/msg/Path"])
def test_truncated_anywhere(name: str) -> None:
    """A message that ends early is broken, wherever it ends, and leaves no trace."""
    rng = np.random.default_rng(1)
    message = random_message(STORE, rng, name)
    content = serialize(message, name)
    decoder = decoder_of(name)
    for size in range(len(content)):
        broken, sentence = decoder.add([(content[:size], 0, 0)])
        assert broken == 1, size
        assert sentence.startswith('"/t": a message '), (size, sentence)
    assert decoder.add([(content, 1, 1)]) == (0, None)
    check(STORE, name, [message], pieces(decoder), "/t")


def test_lengths_that_lie() -> None:
    name = "sensor_msgs/msg/LaserScan"
    content = serialize(random_message(STORE, np.random.default_rng(0), name), name)
    rng = np.random.default_rng(2)
    decoder = decoder_of(name)
    for _ in range(2000):
        changed = bytearray(content)
        for _ in range(rng.integers(1, 4)):
            changed[rng.integers(len(changed))] = rng.integers(256)
        decoder.add([(bytes(changed), 0, 0)])
    for piece in pieces(decoder):
        assert len(piece.values) == (piece.lengths.sum() if piece.ragged else len(piece.times))


def test_random_schemas() -> None:
    """Nested types, all numbers, bounded and fixed arrays, strings between them; mcap-ros2-support agrees."""
    hypothesis = pytest.importorskip("hypothesis")
    from hypothesis import strategies as st
    from rosbags.typesys import get_types_from_msg
    from rosbags.typesys.store import Typestore

    words = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64"]
    kinds = st.sampled_from([*words, "string", "float64", "uint8", "pkg/A", "pkg/B"])
    shapes = st.sampled_from(["", "", "", "[3]", "[]", "[<=5]"])
    members = st.lists(st.tuples(kinds, shapes), min_size=1, max_size=6)

    @hypothesis.given(members, members, members, st.booleans(), st.integers(0, 1000))
    def run(root: Any, a: Any, b: Any, little_endian: bool, seed: int) -> None:
        def text(fields: Any, without: tuple[str, ...]) -> str:
            lines = [f"{kind}{shape} f{k}  # a field" for k, (kind, shape) in enumerate(fields) if kind not in without]
            return "\n".join(["int32 CONSTANT=3", *lines, "uint8 last 7"])

        store = Typestore()
        store.register(get_types_from_msg(text(b, ("pkg/A", "pkg/B")), "pkg/msg/B"))
        store.register(get_types_from_msg(text(a, ("pkg/A",)), "pkg/msg/A"))
        store.register(get_types_from_msg(text(root, ()), "pkg/msg/Root"))
        separator = "\n" + "=" * 80 + "\n"
        schema = text(root, ()) + separator + "MSG: pkg/A\n" + text(a, ("pkg/A",))
        schema += separator + "MSG: pkg/msg/B\n" + text(b, ("pkg/A", "pkg/B"))
        rng = np.random.default_rng(seed)
        messages = [random_message(store, rng, "pkg/msg/Root") for _ in range(2)]
        contents = [serialize(m, "pkg/msg/Root", little_endian, store) for m in messages]
        decoder = _core.Decoder("pkg/msg/Root", "ros2msg", schema.encode(), "cdr", "/t")
        assert decoder.add([(content, 0, 0) for content in contents]) == (0, None)
        decoded = pieces(decoder)
        check(store, "pkg/msg/Root", messages, decoded, "/t")
        judge = dynamic.generate_dynamic("pkg/msg/Root", schema)["pkg/msg/Root"]
        check(store, "pkg/msg/Root", [judge(content) for content in contents], decoded, "/t")

    run()


def test_streams_and_their_names() -> None:
    scan = random_message(STORE, np.random.default_rng(0), "sensor_msgs/msg/LaserScan")
    decoded = {piece.name: piece for piece in decode("sensor_msgs/msg/LaserScan", [scan], topic="/scan")}
    assert list(decoded) == ["/scan", "/scan/ranges", "/scan/intensities"]
    assert decoded["/scan"].channels[0] == "angle_min"
    assert decoded["/scan"].dtype == "float32"
    assert decoded["/scan"].methods == ()
    assert decoded["/scan/ranges"].methods == (("hold", 0, 1),)
    assert decoded["/scan/ranges"].ragged


def test_methods_follow_the_fields() -> None:
    (fix,) = decode(
        "sensor_msgs/msg/NavSatFix", [random_message(STORE, np.random.default_rng(0), "sensor_msgs/msg/NavSatFix")]
    )
    assert fix.channels == (
        "status.status",
        "status.service",
        "latitude",
        "longitude",
        "altitude",
        "position_covariance_type",
    )
    assert fix.methods == (("hold", 0, 2), ("linear", 2, 5), ("hold", 5, 6))
    odometry = "nav_msgs/msg/Odometry"
    (odom,) = decode(odometry, [random_message(STORE, np.random.default_rng(0), odometry)])
    assert odom.methods == (("linear", 0, 3), ("slerp", 3, 7), ("linear", 7, 13))
    assert odom.channels[:4] == (
        "pose.pose.position.x",
        "pose.pose.position.y",
        "pose.pose.position.z",
        "pose.pose.orientation.x",
    )
    assert len(odom.channels) == 13
    for name, dimensions in (
        ("PoseStamped", 7),
        ("PoseWithCovarianceStamped", 7),
        ("TransformStamped", 7),
        ("Pose", 7),
    ):
        name = f"geometry_msgs/msg/{name}"
        (pose,) = decode(name, [random_message(STORE, np.random.default_rng(0), name)])
        assert pose.methods == (("linear", 0, 3), ("slerp", 3, 7))
        assert pose.shape == (dimensions,)
    for name in ("Twist", "TwistStamped", "Wrench", "WrenchStamped"):
        name = f"geometry_msgs/msg/{name}"
        (twist,) = decode(name, [random_message(STORE, np.random.default_rng(0), name)])
        assert twist.methods == ()
        assert twist.shape == (6,)


def test_sequences_inside_sequences_are_named() -> None:
    name = "trajectory_msgs/msg/JointTrajectory"
    (points,) = decode(name, [random_message(STORE, np.random.default_rng(3), name)])
    assert points.name == "/t/points"
    assert points.channels == ("time_from_start.sec", "time_from_start.nanosec")
    assert points.metadata["left_out"] == "positions, velocities, accelerations, effort"


# ---- time


@pytest.mark.parametrize(
    ("time", "stamp", "expected", "told"),
    [
        ("auto", 3, 3_000_000_007, "stamp"),
        ("auto", None, 5, "log"),
        ("stamp", 3, 3_000_000_007, "stamp"),
        ("stamp", None, 0, "stamp"),
        ("log", 3, 5, "log"),
        ("publish", 3, 4, "publish"),
    ],
)
def test_time_sources(time: str, stamp: int | None, expected: int, told: str) -> None:
    name = "geometry_msgs/msg/PointStamped"
    stamped = header(stamp) if stamp is not None else HEADER(stamp=TIME(sec=0, nanosec=0), frame_id="a")
    message = STORE.types[name](header=stamped, point=STORE.types["geometry_msgs/msg/Point"](1.0, 2.0, 3.0))
    decoder = decoder_of(name, time=time)
    assert decoder.add([(serialize(message, name), 5, 4)]) == (0, None)
    (piece,) = pieces(decoder)
    assert piece.times.tolist() == [expected]
    assert piece.arrivals.tolist() == [5]
    assert piece.metadata["time"] == told


def test_automatic_time_that_varies() -> None:
    name = "geometry_msgs/msg/PointStamped"
    point = STORE.types["geometry_msgs/msg/Point"](1.0, 2.0, 3.0)
    (piece,) = decode(name, [STORE.types[name](header=header(s), point=point) for s in (1, 2)])
    assert piece.times.tolist() == [1_000_000_007, 2_000_000_007]
    assert piece.metadata["time"] == "stamp"
    zero = HEADER(stamp=TIME(sec=0, nanosec=0), frame_id="other")
    (piece,) = decode(name, [STORE.types[name](header=h, point=point) for h in (header(1), zero)])
    assert piece.times.tolist() == [1_000_000_007, 1]
    assert piece.metadata == {"time": "varies", "frame_id": "varies"}


def test_no_stamp_to_take() -> None:
    with pytest.raises(FileError, match=r'"/t": messages of geometry_msgs/msg/Point have no header\.stamp'):
        decoder_of("geometry_msgs/msg/Point", time="stamp")
    with pytest.raises(ValueError, match='time is "now"'):
        decoder_of("geometry_msgs/msg/Point", time="now")


# ---- known types


def joints(names: list[str], **values: list[float]) -> Any:
    empty: list[float] = []
    arrays = {field: np.array(values.get(field, empty), np.float64) for field in ("position", "velocity", "effort")}
    return STORE.types["sensor_msgs/msg/JointState"](header=header(), name=names, **arrays)


@pytest.mark.parametrize("little_endian", [True, False], ids=["little", "big"])
def test_joint_state(little_endian: bool) -> None:
    name = "sensor_msgs/msg/JointState"
    messages = [
        joints(["a", "bb"], position=[1, 2], velocity=[3, 4]),
        joints(["a", "bb"], position=[5, 6], velocity=[7, 8]),
        joints(["bb", "a"], position=[9, 10], velocity=[11, 12]),  # another order
        joints(["bb"], position=[13]),  # a joint and a field are missing
        joints(["a", "ccc"], position=[14, 15], effort=[16, 17]),  # new ones
    ]
    decoder = decoder_of(name)
    assert decoder.add([(serialize(m, name, little_endian), 0, 0) for m in messages]) == (0, None)
    (piece,) = pieces(decoder)
    assert piece.channels == (
        *("position.a", "position.bb", "velocity.a", "velocity.bb"),
        *("position.ccc", "effort.a", "effort.ccc"),
    )
    n = np.nan
    expected = [
        [1, 2, 3, 4, n, n, n],
        [5, 6, 7, 8, n, n, n],
        [10, 9, 12, 11, n, n, n],
        [n, 13, n, n, n, n, n],
        [14, n, n, n, 15, 16, 17],
    ]
    np.testing.assert_array_equal(piece.values, expected)
    assert piece.methods == ()


def test_joints_come_later() -> None:
    """Channels are appended: to a small batch in place, else from the next batch on."""
    name = "sensor_msgs/msg/JointState"
    decoder = decoder_of(name)
    few = serialize(joints(["a"], position=[1]), name)
    many = serialize(joints(["a", "b"], position=[2, 3]), name)
    assert decoder.add([(few, 0, 0)] * 20000 + [(many, 0, 0)]) == (0, None)
    before, after = pieces(decoder)
    assert before.channels == ("position.a",)
    assert before.values.shape == (20000, 1)
    assert after.channels == ("position.a", "position.b")
    assert after.values.tolist() == [[2, 3]]
    assert decoder.add([(few, 0, 0)]) == (0, None)
    (piece,) = pieces(decoder)
    np.testing.assert_array_equal(piece.values, [[1, np.nan]])


def test_broken_joint_states_leave_no_trace() -> None:
    name = "sensor_msgs/msg/JointState"
    decoder = decoder_of(name)
    good = serialize(joints(["a", "b"], position=[1, 2]), name)
    bad = serialize(joints(["x", "y"], position=[1, 2, 3]), name)
    broken, sentence = decoder.add([(good, 0, 0), (bad, 0, 0), (bad, 0, 0), (good, 0, 0)])
    assert broken == 2
    assert sentence == '"/t": a message has 2 joints and 3 values of position'
    later = serialize(joints(["x", "y"], position=[1, 2]), name)
    assert decoder.add([(later, 0, 0)]) == (0, None)
    (piece,) = pieces(decoder)
    assert piece.channels == ("position.a", "position.b", "position.x", "position.y")
    np.testing.assert_array_equal(piece.values[2], [np.nan, np.nan, 1, 2])
    for size in range(len(good)):
        assert decoder.add([(good[:size], 0, 0)])[0] == 1
    assert pieces(decoder) == []


def test_joints_without_names_and_too_many() -> None:
    name = "sensor_msgs/msg/JointState"
    (piece,) = decode(name, [joints([], position=[1, 2])])
    assert piece.channels == ("position[0]", "position[1]")
    assert decode(name, [joints([])]) == []
    decoder = decoder_of(name)
    crowd = joints([f"j{k}" for k in range(5000)], position=[0.0] * 5000)
    assert decoder.add([(serialize(crowd, name), 0, 0)]) == (
        1,
        '"/t": a message brings the joints to more than 4096 channels',
    )
    assert decoder.add([(serialize(joints(["a"], effort=[1]), name), 0, 0)]) == (0, None)
    (piece,) = pieces(decoder)
    assert piece.channels == ("effort.a",)


POINT_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 8: "f8"}


def cloud(
    fields: list[tuple[str, int, int, int]],  # name, offset, datatype, count
    step: int,
    height: int = 1,
    width: int = 5,
    padding: int = 0,
    big_endian: bool = False,
    seed: int = 0,
) -> tuple[Any, np.ndarray]:
    """A message, and the points as float64 [N, C] read by NumPy."""
    rng = np.random.default_rng(seed)
    order = ">" if big_endian else "<"
    dtype = np.dtype(
        {
            "names": [field[0] for field in fields],
            "formats": [(order + POINT_TYPES[field[2]], (field[3],)) for field in fields],
            "offsets": [field[1] for field in fields],
            "itemsize": step,
        }
    )
    points = np.zeros((height, width), dtype)
    for name, _, datatype, count in fields:
        if datatype < 7:
            limits = np.iinfo(POINT_TYPES[datatype])
            points[name] = rng.integers(limits.min, limits.max, (height, width, count), endpoint=True)
        else:
            points[name] = rng.normal(size=(height, width, count))
    row_step = width * step + padding
    data = np.zeros((height, row_step), np.uint8)
    data[:, : width * step] = points.view(np.uint8).reshape(height, width * step)
    field_type = STORE.types["sensor_msgs/msg/PointField"]
    message = STORE.types["sensor_msgs/msg/PointCloud2"](
        header=header(),
        height=height,
        width=width,
        fields=[field_type(name=n, offset=o, datatype=d, count=c) for n, o, d, c in fields],
        is_bigendian=big_endian,
        point_step=step,
        row_step=row_step,
        data=data.reshape(-1),
        is_dense=True,
    )
    columns = [points[name].reshape(height * width, -1).astype(np.float64) for name in dtype.names]
    return message, np.concatenate(columns, axis=1)


XYZI = [("x", 0, 7, 1), ("y", 4, 7, 1), ("z", 8, 7, 1), ("intensity", 12, 7, 1)]
LAYOUTS: dict[str, tuple[list[tuple[str, int, int, int]], int]] = {
    "xyzi": (XYZI, 16),
    "padded": (XYZI, 20),
    "velodyne": ([*XYZI[:3], ("intensity", 16, 7, 1), ("ring", 20, 4, 1), ("time", 24, 7, 1)], 32),
    "ouster": ([*XYZI[:3], ("t", 16, 6, 1), ("reflectivity", 20, 4, 1), ("ambient", 22, 2, 1)], 24),
    "doubles": ([("x", 0, 8, 1), ("y", 8, 8, 1), ("z", 16, 8, 1)], 24),
    "counts": ([("position", 0, 7, 3), ("histogram", 12, 2, 5)], 17),
    "backward": ([("z", 8, 7, 1), ("y", 4, 7, 1), ("x", 0, 7, 1)], 12),
    "integers": ([("a", 1, 1, 2), ("b", 3, 2, 1), ("c", 5, 3, 1), ("d", 8, 4, 2), ("e", 12, 7, 1)], 16),
    "two channels": ([("x", 28, 7, 1), ("ring", 2, 4, 1)], 32),
    "past a register": ([*XYZI[:3], ("time", 32, 7, 1)], 36),
    "unaligned": ([("x", 2, 7, 1), ("ring", 7, 3, 1)], 10),
    "every": ([(f"f{k}", 8 * k, k, 1) for k in POINT_TYPES], 80),
}


@pytest.mark.parametrize("big_endian", [False, True], ids=["little", "big"])
@pytest.mark.parametrize("organised", [False, True], ids=["list", "image"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_point_cloud(layout: str, organised: bool, big_endian: bool) -> None:
    fields, step = LAYOUTS[layout]
    shape = {"height": 3, "width": 400, "padding": 6} if organised else {"width": 700}
    name = "sensor_msgs/msg/PointCloud2"
    made = [cloud(fields, step, big_endian=big_endian, seed=seed, **shape) for seed in range(2)]  # type: ignore[arg-type]
    (piece,) = decode(name, [message for message, _ in made])
    exact = all(field[2] in (1, 2, 3, 4, 7) for field in fields)
    expected = np.concatenate([points for _, points in made]).astype(np.float32 if exact else np.float64)
    assert same_values(piece.values, expected)
    assert piece.lengths is not None
    assert piece.lengths.tolist() == [len(points) for _, points in made]
    names = [n if c == 1 else f"{n}[{k}]" for n, _, _, c in fields for k in range(c)]
    assert piece.channels == tuple(names)
    assert piece.ragged
    assert piece.methods == (("hold", 0, len(names)),)
    assert (piece.metadata["height"], piece.metadata["frame_id"]) == ("3" if organised else "1", "base")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_point_clouds_of_few_points(layout: str) -> None:
    fields, step = LAYOUTS[layout]
    made = [cloud(fields, step, width=width, seed=width) for width in range(1, 20)]
    (piece,) = decode("sensor_msgs/msg/PointCloud2", [message for message, _ in made])
    assert np.array_equal(piece.values, np.concatenate([points for _, points in made]).astype(piece.values.dtype))


def same_values(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and np.array_equal(a, b)


def test_broken_clouds() -> None:
    name = "sensor_msgs/msg/PointCloud2"
    decoder = decoder_of(name)

    def sentence(**changes: Any) -> str:
        message, _ = cloud(XYZI, 16, height=2, width=3)
        for field, value in changes.items():
            setattr(message, field, value)
        broken, told = decoder.add([(serialize(message, name), 0, 0)])
        return told if broken else ""

    field_type = STORE.types["sensor_msgs/msg/PointField"]
    assert sentence() == ""
    assert "has 96 bytes for 2 x 4 points of 16" in sentence(width=4, row_step=64)
    assert "has rows of 48 bytes for 4 points of 16" in sentence(width=4)
    assert "96 bytes for 4294967295 x 3" in sentence(height=2**32 - 1)
    assert "has 6 points of 0 bytes" in sentence(point_step=0, fields=[]) or "other fields" in sentence(fields=[])
    assert "points of 12 bytes and a field that ends at byte 16" in sentence(point_step=12)
    assert "of datatype 9; 1 to 8" in sentence(fields=[field_type("x", 0, 9, 1)])
    assert "two fields of one name" in sentence(fields=[field_type("x", 0, 7, 1)] * 2)
    assert "other fields" in sentence(fields=[field_type("q", 0, 7, 1)])
    assert "more than 4096 numbers" in sentence(fields=[field_type("x", 0, 7, 2**31)])
    names = ["x", "y", "z", "intensity"]
    doubles = [field_type(n, 0, 8, 1) for n in names]
    assert "float32 does not hold" in sentence(fields=doubles)
    assert sentence(width=0, row_step=0, data=np.zeros(0, np.uint8)) == ""
    assert sentence() == ""
    (piece,) = pieces(decoder)
    assert piece.lengths is not None
    assert piece.lengths.tolist() == [6, 0, 6]


def test_image() -> None:
    name = "sensor_msgs/msg/Image"
    data = np.arange(24, dtype=np.uint8)

    def image(height: int) -> Any:
        kind = STORE.types[name]
        return kind(
            header=header(), height=height, width=4, encoding="rgb8", is_bigendian=0, step=12, data=data[: 12 * height]
        )

    (piece,) = decode(name, [image(2), image(2)])
    assert piece.values.tolist() == [*data, *data]
    assert piece.lengths is not None
    assert piece.lengths.tolist() == [24, 24]
    assert piece.metadata == {
        "encoding": "rgb8",
        "frame_id": "base",
        "height": "2",
        "is_bigendian": "0",
        "step": "12",
        "time": "stamp",
        "width": "4",
    }
    assert (piece.dtype, piece.shape, piece.channels, piece.methods) == ("uint8", (), (), (("hold", 0, 1),))
    (piece,) = decode(name, [image(2), image(1)])
    assert piece.metadata["height"] == "varies"
    assert piece.metadata["width"] == "4"


def test_compressed_image() -> None:
    name = "sensor_msgs/msg/CompressedImage"
    message = STORE.types[name](header=header(), format="jpeg", data=np.arange(5, dtype=np.uint8))
    (piece,) = decode(name, [message])
    assert piece.values.tolist() == [0, 1, 2, 3, 4]
    assert piece.metadata["format"] == "jpeg"


def test_transforms() -> None:
    name = "tf2_msgs/msg/TFMessage"
    vector, quaternion = STORE.types["geometry_msgs/msg/Vector3"], STORE.types["geometry_msgs/msg/Quaternion"]

    def transform(parent: str, child: str, x: float, seconds: int) -> Any:
        inner = STORE.types["geometry_msgs/msg/Transform"](vector(x, 2.0, 3.0), quaternion(0.0, 0.0, 0.0, 1.0))
        stamped = STORE.types["geometry_msgs/msg/TransformStamped"]
        return stamped(header=header(seconds, parent), child_frame_id=child, transform=inner)

    message = STORE.types[name]
    messages = [
        message([transform("map", "odom", 1.0, 1), transform("odom", "base", 2.0, 2)]),
        message([transform("odom", "base", 3.0, 3)]),
        message([]),
        message([transform("other", "base", 4.0, 4), transform("map", "odom", 5.0, 5)]),
    ]
    odom, base = decode(name, messages, topic="/tf")
    assert (odom.name, base.name) == ("/tf/odom", "/tf/base")
    assert odom.values[:, 0].tolist() == [1, 5]
    assert base.values[:, 0].tolist() == [2, 3, 4]
    assert base.times.tolist() == [2_000_000_007, 3_000_000_007, 4_000_000_007]
    assert base.arrivals.tolist() == [0, 1, 3]
    assert odom.metadata["parent"] == "map"
    assert base.metadata["parent"] == "varies"
    assert odom.methods == (("linear", 0, 3), ("slerp", 3, 7))
    assert odom.channels[3] == "rotation.x"
    content = serialize(messages[0], name)
    decoder = decoder_of(name)
    for size in range(len(content)):
        assert decoder.add([(content[:size], 0, 0)])[0] == 1
    assert pieces(decoder) == []


def test_a_known_name_with_other_fields_is_any_type() -> None:
    decoder = _core.Decoder("sensor_msgs/msg/Image", "ros2msg", b"float32 brightness", "cdr", "/t")
    assert decoder.add([(struct.pack("<If", 0x100, 2.5), 0, 0)]) == (0, None)
    (piece,) = pieces(decoder)
    assert piece.channels == ("brightness",)
    assert piece.values.tolist() == [[2.5]]


# ---- encodings


def plain(text: str, content: bytes, encoding: str = "ros2msg") -> list[Piece]:
    decoder = _core.Decoder("p/msg/T", encoding, text.encode(), "cdr", "/t")
    assert decoder.add([(content, 0, 0)]) == (0, None)
    return pieces(decoder)


def test_second_cdr() -> None:
    """XCDR2: numbers of 8 bytes at multiples of 4, and a size before collections of anything but numbers."""
    text = "uint8 a\nfloat64 b\nstring[] c\nQ[2] d\nint64[] e\n===\nMSG: p/Q\nuint8 x"
    for kind, order in ((7, "<"), (6, ">"), (0x11, "<")):
        body = struct.pack(order + "Bxxxd", 1, 2.5)
        body += struct.pack(order + "III2s", 10, 1, 2, b"s\0") + b"\0\0"
        body += struct.pack(order + "IBB", 2, 7, 8) + b"\0\0" + struct.pack(order + "Iqq", 2, 5, 6)
        dense, ragged = plain(text, struct.pack(">HH", kind, 0) + body)
        assert dense.values.tolist() == [[1, 2.5, 7, 8]]
        assert dense.channels == ("a", "b", "d[0].x", "d[1].x")
        assert ragged.values.tolist() == [5, 6]


@pytest.mark.parametrize("size", [4, 2], ids=["Fast CDR 1", "Fast CDR 2"])
def test_wide_strings(size: int) -> None:
    text = "wstring a\nuint32 b\nwstring<=9 c\nfloat64 d"
    characters = "I" if size == 4 else "H"
    body = struct.pack(f"<I3{characters}", 3, 65, 66, 67)
    body += bytes(-len(body) % 4) + struct.pack(f"<II2{characters}", 9, 2, 65, 66)
    body += bytes(-len(body) % 8) + struct.pack("<d", 1.5)
    (piece,) = plain(text, b"\0\1\0\0" + body)
    assert piece.channels == ("b", "d")
    assert piece.values.tolist() == [[9, 1.5]]


def test_other_cdr_is_refused() -> None:
    decoder = _core.Decoder("p/T", "ros2msg", b"uint8 a", "cdr", "/t")
    assert decoder.add([(b"\0\3\0\0\1", 0, 0)]) == (
        1,
        '"/t": a message is CDR of kind 3; plain CDR (0, 1) and CDR2 (6, 7) are read',
    )
    assert decoder.add([(b"\0\1", 0, 0)]) == (1, '"/t": a message has 2 bytes; CDR begins with 4')


def test_compressed_messages() -> None:
    zstandard = pytest.importorskip("zstandard")
    content = b"\0\1\0\0" + struct.pack("<d", 2.5)
    packed = zstandard.ZstdCompressor().compress(content)
    assert plain("float64 a", packed)[0].values.tolist() == [[2.5]]
    decoder = _core.Decoder("p/T", "ros2msg", b"float64 a", "cdr", "/t")
    for size in range(1, len(packed)):
        assert decoder.add([(packed[:size], 0, 0)])[0] == 1


IDL = """
// generated from rosidl_adapter/resource/msg.idl.em
#include "std_msgs/msg/Header.idl"
#include "geometry_msgs/msg/Point.idl"
module p {
  module msg {
    typedef double double__9[9];
    typedef geometry_msgs::msg::Point Corner;
    const long unused = 4;
    module T_Constants {
      @verbatim (language="comment", text=
        "An option; (with signs" "\\n" "and more)")
      const uint8 SIDES = 2;
    };
    @verbatim (language="comment", text="A type.")
    struct T {
      std_msgs::msg::Header header;
      @default (value=TRUE)
      boolean ok;
      /* a comment; with signs { */ octet byte;
      long small, other;
      unsigned long long large;
      string<=20> name;
      double__9 matrix;
      Corner corners[SIDES];
      sequence<geometry_msgs::msg::Point, 4> points;
      sequence<float> ranges;
      p::msg::Level level;
    };
  };
};

================================================================================
IDL: geometry_msgs/msg/Point
module geometry_msgs { module msg { struct Point { double x; double y; double z; }; }; };
================================================================================
IDL: p/msg/Level
module p { module msg { enum Level { @value(1) LOW, HIGH }; }; };
================================================================================
IDL: std_msgs/msg/Header
module std_msgs { module msg { struct Header { builtin_interfaces::msg::Time stamp; string frame_id; }; }; };
================================================================================
IDL: builtin_interfaces/msg/Time
module builtin_interfaces { module msg { struct Time { int32 sec; uint32 nanosec; }; }; };
""".replace("string<=20>", "string<20>")
AS_MSG = """
std_msgs/Header header
bool ok
byte byte
int32 small
int32 other
uint64 large
string<=20 name
float64[9] matrix
geometry_msgs/Point[2] corners
geometry_msgs/Point[<=4] points
float32[] ranges
uint32 level
===
MSG: geometry_msgs/Point
float64 x
float64 y
float64 z
===
MSG: std_msgs/Header
builtin_interfaces/Time stamp
string frame_id
"""


def test_idl_is_as_msg() -> None:
    from rosbags.typesys import Stores, get_types_from_msg, get_typestore

    store = get_typestore(Stores.ROS2_HUMBLE)
    store.register(get_types_from_msg(AS_MSG.split("===")[0], "p/msg/T"))
    rng = np.random.default_rng(4)
    for little_endian in (True, False):
        message = random_message(store, rng, "p/msg/T")
        content = serialize(message, "p/msg/T", little_endian, store)
        by_idl, by_msg = plain(IDL, content, "ros2idl"), plain(AS_MSG, content)
        check(store, "p/msg/T", [message], by_msg, "/t")
        check(store, "p/msg/T", [message], by_idl, "/t")
        assert [piece[:8] for piece in by_idl] == [piece[:8] for piece in by_msg]


def test_idl_constants_belong_to_their_module() -> None:
    other = "module q { module msg { module T_Constants { const long N = 5; }; const long M = 7; }; };"
    own = "module p { module msg { module T_Constants { const long N = 2; }; const long M = 3; struct T { %s }; }; };"

    def sizes(members: str) -> int:
        (piece,) = plain(f"{other} {own % members} {other}", b"\0\1\0\0" + bytes(range(64)), "ros2idl")
        return piece.values.shape[1]

    assert sizes("octet a[N];") == 2
    assert sizes("octet a[M];") == 3
    assert sizes("octet a[T_Constants::N];") == 2
    assert sizes("octet a[msg::M];") == 3
    assert sizes("octet a[::q::msg::M];") == 7
    assert sizes("octet a[q::msg::T_Constants::N];") == 5
    for absent in ("K", "::M", "q::M", "r::msg::M"):
        assert f'the size "{absent}"' in refused(own % f"octet a[{absent}];", "ros2idl")


# ---- schemas that are refused


def refused(text: str, encoding: str = "ros2msg", name: str = "p/msg/T") -> str:
    with pytest.raises(FileError) as error:
        _core.Decoder(name, encoding, text.encode(), "cdr", "/t")
    return str(error.value)


def test_refused_schemas() -> None:
    cut = "\n===\nMSG: "
    assert refused("p/T again") == '"/t": type "p/T" holds itself'
    assert refused(f"A a{cut}p/A\nB[] b{cut}p/B\nA a") == '"/t": type "p/A" holds itself'
    deep = "A0 a" + "".join(f"{cut}p/A{k}\nA{k + 1} a" for k in range(60)) + f"{cut}p/A60\nuint8 x"
    assert "nested deeper than 32" in refused(deep)
    wide = "A0 a" + "".join(f"{cut}p/A{k}\nA{k + 1} a\nA{k + 1} b" for k in range(28)) + f"{cut}p/A28\nstring x"
    assert "has more than 131072 fields" in refused(wide)
    assert 'field "x": the type has more than 65536 numbers' in refused("float32[4294967295] x")
    assert "more than 131072 fields" in refused(f"string x\nA[4294967295] y{cut}p/A\nstring s")
    assert refused("Missing m") == '"/t": type "Missing" is not defined'
    assert refused("other/Missing m") == '"/t": type "other/Missing" is not defined'
    assert refused("uint8") == '"/t": line 1 of the schema: "uint8" is neither a field nor a constant'
    assert "has no ]" in refused("uint8[3 a")
    assert 'has the size "0"' in refused("uint8[0] a")
    assert 'has the size "99999999999"' in refused("uint8[99999999999] a")
    assert "only strings and sequences have bounds" in refused("uint8<=3 a")
    assert "expected \\x22MSG" in refused("uint8 a\n===\nuint8 b") or "MSG: package/Type" in refused(
        "uint8 a\n===\nuint8 b"
    )
    assert "at most 1048576 are read" in refused("# " + "x" * 2**20)
    assert refused("uint8 a", "protobuf").startswith(
        '"/t": messages of encoding "cdr" with a schema of encoding "protobuf"'
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("module p { struct T { union U u; }; };", 'expected ";"'),
        ("module p { union T switch(long) {}; };", '"union" is not read'),
        ("module p { struct T : B { long a; }; };", "has a base"),
        ("module p { struct T { long double a; }; };", "long double"),
        ("module p { struct T { T again; }; };", "holds itself"),
        ("module p { typedef A B; typedef B A; struct T { A a; }; };", "is a name of itself"),
        ("module p { typedef sequence<A> A; struct T { A a; }; };", "nested deeper than 32"),
        ("module p { struct T { " + "sequence<" * 99 + "long" + ">" * 99 + " a; }; };", "nested deeper than 32"),
        ("module a {" * 99, "modules are nested deeper than 8"),
        ("module p { struct T { long a", 'expected ";"'),
        ("module p { struct T {", "expected a type"),
        ("module p {", "the text ends inside module"),
        ("struct T { long a[0]; };", "the size"),
        ("struct S { long a; };", 'type "p/T" is not defined'),
        ("@a(((", 'type "p/T" is not defined'),
        ("module p { enum E { A", "the text ends inside"),
    ],
)
def test_refused_idl(text: str, sentence: str) -> None:
    assert sentence in refused(text, "ros2idl")


# ---- JSON


def json_pieces(messages: list[Any], time: str = "auto") -> list[Piece]:
    decoder = _core.Decoder("s", "jsonschema", b"{}", "json", "/j", time)
    contents = [m if isinstance(m, bytes) else json.dumps(m).encode() for m in messages]
    assert decoder.add([(content, k, k) for k, content in enumerate(contents)]) == (0, None)
    return pieces(decoder)


def flat(value: Any, path: str = "") -> dict[str, float]:
    found: dict[str, float] = {}
    if isinstance(value, dict):
        for key, inner in value.items():
            if path or key != "header":
                found |= flat(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for k, inner in enumerate(value):
            found |= flat(inner, f"{path}[{k}]")
    elif isinstance(value, int | float):
        found[path] = float(value)
    return found


def check_json(messages: list[Any], decoded: list[Piece]) -> None:
    flattened = [flat(message) for message in messages]
    names = list(dict.fromkeys(name for each in flattened for name in each))
    first = next((k for k, each in enumerate(flattened) if each), len(messages))
    if not names:
        assert decoded == []
        return
    (piece,) = decoded
    assert piece.channels == tuple(names)
    assert piece.arrivals.tolist() == list(range(first, len(messages)))
    rows = [[each.get(name, np.nan) for name in names] for each in flattened[first:]]
    np.testing.assert_array_equal(piece.values, rows)


def test_json() -> None:
    messages = [
        {"a": "text", "none": None},
        {"a": 1, "b": {"c": True, "d": [1, 2.5, "x", None]}, "s": "text"},
        {"b": {"d": [3]}, "a": -2, "new": 1e300},
        {"a": {"now": "an object", "z": 5}, "b": {"d": [[6], {"e": 7}]}},
        {},
        {"header": {"stamp": {"sec": 3, "nanosec": 7}, "seq": 5}, "a": 2**63},
    ]
    decoded = json_pieces(messages)
    check_json(messages, decoded)
    assert decoded[0].times.tolist() == [1, 2, 3, 4, 3_000_000_007]
    assert decoded[0].metadata["time"] == "varies"
    assert decoded[0].methods == (("linear", 0, 1), ("hold", 1, 2), ("linear", 2, len(decoded[0].channels)))
    check_json([[1, [2, 3]], [4]], json_pieces([[1, [2, 3]], [4]]))
    assert json_pieces([5, b" 6 "])[0].channels == ("value",)


NOW = 1_700_000_000_123_456_789  # when the messages below were logged


@pytest.mark.parametrize(
    ("stamps", "time"),
    [
        ({"stamp": {"sec": 3, "nanosec": 7}}, 3_000_000_007),
        ({"stamp": {"secs": 3, "nsecs": 7}}, 3_000_000_007),
        ({"timestamp": {"sec": 3, "nsec": 7}}, 3_000_000_007),  # as Foxglove's schemas have it
        ({"stamp": 1_699_999_999_000_000_001}, 1_699_999_999_000_000_001),  # exact
        ({"stamp": 1_699_999_999.25}, round(1_699_999_999.25 * 1e9)),
        ({"stamp": 1_699_999_999}, 1_699_999_999_000_000_000),  # what JavaScript makes of 1699999999.0
        ({"timestamp": 1_699_999_999_250}, 1_699_999_999_250_000_000),  # Date.now()
        ({"timestamp": 1_699_999_999_250.5}, round(1_699_999_999_250.5 * 1e6)),
        ({"timestamp": 1_699_999_999_250_125}, 1_699_999_999_250_125_000),
        ({"stamp": 5.25}, 5_250_000_000),  # a simulation's, near no log time
        ({"stamp": 5_250_000_000}, 5_250_000_000),
        ({"header": {"stamp": 5.25}, "stamp": 6.5}, 5_250_000_000),
        ({"timestamp": 6.5, "stamp": 5.25}, 5_250_000_000),
        ({"stamp": "2023-11-14", "timestamp": 6.5}, 6_500_000_000),
        ({"stamp": 0}, NOW),
    ],
)
def test_json_stamps(stamps: dict[str, Any], time: int) -> None:
    decoder = _core.Decoder("s", "", b"", "json", "/j", "auto")
    assert decoder.add([(json.dumps({"x": 1, **stamps, "y": 2}).encode(), NOW, NOW)]) == (0, None)
    (piece,) = pieces(decoder)
    assert piece.times.tolist() == [time]
    assert piece.channels == ("x", "y")


DAY = 86_400 * 10**9
E = NOW // 10**9


def ns(*seconds: float) -> list[int]:
    return [round(1000 * t) * 10**6 for t in seconds]


@pytest.mark.parametrize("log", [0, NOW, NOW + 7 * DAY, E * 10**9 + DAY - 10**9], ids=["0", "now", "week", "day"])
@pytest.mark.parametrize(
    ("stamps", "times", "unit"),
    [
        ("10.5 11 11.5 12", ns(10.5, 11, 11.5, 12), "s"),  # JavaScript's, from 0
        (f"{E} {E}.5 {E + 1} {E + 1}.5", ns(E, E + 0.5, E + 1, E + 1.5), "s"),
        (f"{E}.0 {E + 1}.0", ns(E, E + 1), "s"),
        (f"{E}000 {E}500 {E + 1}000.0 {E + 1}500.5", [*ns(E, E + 0.5, E + 1), round(1_700_000_001_500.5 * 1e6)], "ms"),
        (f"{E}000.25 {E}001", [round(1_700_000_000_000.25 * 1e6), E * 10**9 + 10**6], "ms"),
        (f"{E}000000 {E}500000", ns(E, E + 0.5), "us"),
        (f"{E}000000001 {E}500000003", [E * 10**9 + 1, E * 10**9 + 500_000_003], "ns"),
        ("1 2 3", ns(1, 2, 3), "s"),
        ("11 11.5 12", ns(11, 11.5, 12), "s"),
        ("0.5 1 1.5", ns(0.5, 1, 1.5), "s"),
        ("999999 1000000 1000000.5", ns(999_999, 1_000_000, 1_000_000.5), "s"),  # the first tells, not each
        ("1000000 2000000 1500000000", [10**6, 2 * 10**6, 1_500_000_000], "ns"),
        ("5250000000 5260000000", ns(5.25, 5.26), "ns"),
        ("260000000000000 260000010000000", ns(260_000, 260_000.01), "ns"),  # time.monotonic_ns(), three days up
        ("10500 11000", ns(10_500, 11_000), "s"),  # a simulation's milliseconds: not to be known
        ("-1.5 -1 1", ns(-1.5, -1, 1), "s"),
        (f"-{E}000 -{E}001", ns(-E, -E - 0.001), "ms"),
        ("-5 -4", ns(-5, -4), "s"),
        ("1e9 2e9", ns(10**9, 2 * 10**9), "s"),
        ("4e12 5.5 6", [None, *ns(5.5, 6)], "s"),  # past 4e9 seconds, and tells no unit
    ],
)
def test_json_units(stamps: str, times: list[int | None], unit: str, log: int) -> None:
    """The first number of a topic that is not 0 fixes the unit of all, whatever the log times are."""
    for before in ([], ["0", "0.0", "-0"], ['"NaN"', "null"], ["1e300", "99999999999999999999"]):
        given = before + stamps.split()
        logs = [log + k * 10**9 for k in range(len(given))]
        wanted = [at if t is None else t for t, at in zip([None] * len(before) + times, logs, strict=True)]
        for form in ('{"x": 1, "timestamp": %s}', '{"stamp": %s, "x": 1}', '{"header": {"stamp": %s}, "x": 1}'):
            decoder = _core.Decoder("s", "", b"", "json", "/j", "auto")
            messages = [(form.replace("%s", text).encode(), at, at) for text, at in zip(given, logs, strict=True)]
            piece_by_piece = []
            for message in messages:
                assert decoder.add([message]) == (0, None)
                piece_by_piece += pieces(decoder)
            assert [t for piece in piece_by_piece for t in piece.times.tolist()] == wanted, form
            assert piece_by_piece[-1].metadata["stamp_unit"] == unit
            assert "stamp_doubt" not in piece_by_piece[-1].metadata
            assert decoder.add([messages[-1]]) == (0, None)


@pytest.mark.parametrize(
    ("stamps", "times", "unit"),
    [
        ("5000000 5.5 6000000", [5_000_000, 6, 6_000_000], "ns"),
        (f"10500 {E}000", [*ns(10_500), 1], "s"),  # milliseconds since 1970, after some that were not
    ],
)
def test_json_units_that_are_contradicted(stamps: str, times: list[int], unit: str) -> None:
    (piece,) = json_pieces([{"x": 1, "stamp": json.loads(text)} for text in stamps.split()])
    assert piece.times.tolist() == times
    assert (piece.metadata["stamp_unit"], "stamp_doubt" in piece.metadata) == (unit, True)
    (piece,) = json_pieces([{"x": 1, "stamp": json.loads(text)} for text in stamps.split()], "log")
    assert piece.times.tolist() == list(range(len(times)))
    assert piece.metadata == {"time": "log"}


def test_json_units_of_more_than_one_field() -> None:
    both = [{"timestamp": 1_700_000_000_500, "stamp": t, "x": 1} for t in (5.5, 6)]
    (piece,) = json_pieces(both)
    assert (piece.times.tolist(), piece.metadata["stamp_unit"]) == (ns(5.5, 6), "s")
    (piece,) = json_pieces([*both, {"timestamp": 1_700_000_001_000, "x": 1}])
    assert (piece.times.tolist()[-1], piece.metadata["stamp_unit"]) == (1_700_000_001 * 10**9, "varies")
    (piece,) = json_pieces([{"stamp": {"sec": 3, "nanosec": 7}, "timestamp": 5000000, "x": 1}])
    assert (piece.times.tolist(), piece.metadata) == ([3_000_000_007], {"time": "stamp"})


def test_a_broken_message_tells_no_unit() -> None:
    decoder = _core.Decoder("s", "", b"", "json", "/j")
    assert decoder.add([(b'{"x": 1, "stamp": 5000000, ', 0, 0)])[0] == 1
    assert decoder.add([(b'{"x": 1, "stamp": 5.5}', 0, 0), (b'{"x": 1, "stamp": 6}', 0, 0)]) == (0, None)
    assert pieces(decoder)[0].times.tolist() == ns(5.5, 6)


def test_json_that_is_called_a_stamp_and_is_none() -> None:
    inner = {"stamp": 3, "timestamp": 4}
    (piece,) = json_pieces([{"x": 1, "stamp": 1e300, "timestamp": [1, {"sec": 2}], "inner": inner}])
    assert piece.times.tolist() == [0]
    assert piece.channels == ("x", "stamp", "timestamp[0]", "timestamp[1].sec", "inner.stamp", "inner.timestamp")
    (piece,) = json_pieces([{"stamp": {"sec": 2, "clock": 5}, "timestamp": True}])
    assert (piece.times.tolist(), piece.channels) == ([2_000_000_000], ("stamp.clock", "timestamp"))


def test_random_json() -> None:
    hypothesis = pytest.importorskip("hypothesis")
    from hypothesis import strategies as st

    leaves = (
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**64 - 1)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text()
    )
    keys = st.sampled_from(["a", "b", "header", "key.with.dots", "ü", ""])
    values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4))

    @hypothesis.given(st.lists(st.dictionaries(st.sampled_from("abc"), values, max_size=3), min_size=1, max_size=4))
    def run(messages: list[Any]) -> None:
        ambiguous = any("" in str(path).split(".") or path.count(".") > 20 for m in messages for path in flat(m))
        hypothesis.assume(
            not ambiguous and not any("key." in path or ".." in path for m in messages for path in flat(m))
        )
        check_json(messages, json_pieces(messages))

    run()


def test_broken_json() -> None:
    decoder = _core.Decoder("s", "", b"", "json", "/j")
    good = b'{"a": 1, "b": [2, 3]}'
    for size in range(len(good)):
        broken, sentence = decoder.add([(good[:size], 0, 0)])
        assert broken == 1, size
        assert sentence.startswith('"/j": a message is not JSON after byte '), (size, sentence)
    assert decoder.add([(b'{"z": 1, "a": 1e999}', 0, 0)])[1] == (
        '"/j": a message is not JSON after byte 19: a number is past the range of float64'
    )
    assert decoder.add([(b'{"z": 1, "a": "\xff"}', 0, 0)])[0] == 1
    assert "nested deeper than 64" in decoder.add([(b"[" * 10**6, 0, 0)])[1]
    assert "stamp past 4e9 seconds" in decoder.add([(b'{"q": 1, "header": {"stamp": {"sec": 1e300}}}', 0, 0)])[1]
    assert decoder.add([(good, 0, 0)]) == (0, None)
    (piece,) = pieces(decoder)
    assert piece.channels == ("a", "b[0]", "b[1]")


def test_json_as_python_writes_it() -> None:
    nan, infinity = float("nan"), float("inf")
    messages = [
        {"a": nan, "b": {"c": [1, nan, -infinity]}, "text": 'a "quoted" NaN, and -Infinity\\'},
        {"a": 2.5, "b": {"c": [infinity, 3, 4]}, "NaN": 5},
        {"a": nan, "d": nan},
        {"text": '5" pipe', "a": nan, "d": 1},
        {"text": 'he said "NaN" twice', "a": nan, "d": 2},
        {"text": '"', "a": -infinity, "d": 3},
        {"text": "C:\\", "a": nan, "d": 4},
        {"text": '\\"\\\\"NaN\\', "a": infinity, "d": 5},
        {'a "key" \\': nan, "a": infinity, "text": "é\n\t", "d": nan},
    ]
    assert "NaN" in json.dumps(messages[0])
    check_json(messages, json_pieces(messages))
    # A stamp that is NaN is no stamp.
    (piece,) = json_pieces([{"x": 1, "stamp": nan}, {"x": 2, "header": {"stamp": {"sec": nan, "nanosec": 3}}}])
    assert piece.channels == ("x",)
    assert piece.times.tolist() == [0, 1]
    decoder = _core.Decoder("s", "", b"", "json", "/j")
    for broken in (b'{"a": NaNs}', b'{"a": Inf}', b'{"a": nan}', b'{"a": N', b'{"a": NaN', b'NaN"', b'{"a": "\\'):
        assert decoder.add([(broken, 0, 0)])[0] == 1, broken


def test_json_is_capped() -> None:
    (piece,) = json_pieces([{"a": list(range(5000)), "b": 1}])
    assert len(piece.channels) == 1025
    assert piece.channels[-1] == "b"
    assert "1024" in piece.metadata["left_out"]
    (piece,) = json_pieces([{str(k): k for k in range(9000)}])
    assert len(piece.channels) == 4096


# ---- recordings


def recording_of(path: Path, time: str = "auto") -> Any:
    return _core.McapRecording(os.fsencode(path), str(path), time)


def judged(path: Path) -> dict[str, list[Any]]:
    """Messages by topic as mcap-ros2-support, or json, decodes them: (type, message, log time)."""
    reader = pytest.importorskip("mcap.reader")
    found: dict[str, list[Any]] = {}
    parsers: dict[int, Any] = {}
    with path.open("rb") as file:
        for schema, channel, message in reader.make_reader(file).iter_messages():
            data = message.data
            if data.startswith(b"\x28\xb5\x2f\xfd"):
                data = pytest.importorskip("zstandard").ZstdDecompressor().decompress(data)
            if schema.encoding == "ros2msg":
                if schema.id not in parsers:
                    parsers[schema.id] = dynamic.generate_dynamic(schema.name, schema.data.decode())[schema.name]
                value = parsers[schema.id](data)
            else:
                value = json.loads(data)
            found.setdefault(channel.topic, []).append((schema.name, value, message.log_time))
    return found


def read_all(path: Path) -> dict[str, list[Piece]]:
    recording = recording_of(path)
    found: dict[str, list[Piece]] = {}
    passing = recording.pieces()
    for piece in passing:
        found.setdefault(piece[0][0], []).append(Piece(*piece[0], *piece[1:]))
    assert passing.problems == []
    return found


def number_at(message: Any, path: str) -> Any:
    for part in path.replace("[", ".[").split("."):
        message = message[int(part[1:-1])] if part.startswith("[") else getattr(message, part)
    return message


@pytest.mark.parametrize(
    "file",
    [
        "imu_jointstate.mcap",
        "image.mcap",
        "json_events.mcap",
        *(
            f"rosbag2/{name}.mcap"
            for name in ("cdr_test_0", "only_topics", "rewriter_b_0", "talker", "wbag_0", "wbag_1")
        ),
    ],
)
def test_shared_recordings(file: str) -> None:
    path = shared(f"mcap/{file}")
    judges = judged(path)
    summary = recording_of(path).summary()
    assert {name: count for name, _, _, _, count in summary["topics"] if count} == {
        t: len(m) for t, m in judges.items()
    }
    found = read_all(path)
    for topic, messages in judges.items():
        kind = messages[0][0]
        times = [time for _, _, time in messages]
        if file.startswith("json"):
            check_json(
                [message for _, message, _ in messages],
                [
                    p._replace(arrivals=np.arange(len(messages) - len(p.arrivals), len(messages)))
                    for p in found.get(topic, [])
                ],
            )
        elif kind in ("sensor_msgs/Image", "sensor_msgs/msg/Image"):
            (piece,) = found[topic]
            assert piece.values.tobytes() == b"".join(message.data for _, message, _ in messages)
        elif kind == "sensor_msgs/msg/JointState":
            (piece,) = found[topic]
            for name, column in zip(piece.channels, piece.values.T, strict=True):
                field, _, joint = name.partition(".")
                assert column.tolist() == [getattr(m, field)[m.name.index(joint)] for _, m, _ in messages]
        elif topic in found:
            (piece,) = found[topic]
            assert piece.arrivals.tolist() == times
            for name, column in zip(piece.channels, piece.values.T, strict=True):
                judged_column = np.array([number_at(message, name) for _, message, _ in messages])
                assert same_values(column, judged_column.astype(column.dtype)), name
    if file == "rosbag2/cdr_test_0.mcap":
        assert len(found["/array_topic"][0].channels) == 157


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Topics that decode, one that does not, a broken schema, broken messages."""
    writer_of = pytest.importorskip("mcap.writer")
    path = tmp_path / "written.mcap"
    with path.open("wb") as file:
        writer = writer_of.Writer(file)
        writer.start()
        numbers = writer.register_schema("p/msg/N", "ros2msg", b"float64 a")
        other = writer.register_schema("x", "protobuf", b"")
        bad = writer.register_schema("p/msg/Bad", "ros2msg", b"Missing m")
        channels = {
            topic: writer.register_channel(topic, encoding, schema)
            for topic, encoding, schema in (
                ("/good", "cdr", numbers),
                ("/proto", "protobuf", other),
                ("/bad", "cdr", bad),
                ("/broken", "cdr", numbers),
                ("/none", "", 0),
            )
        }
        channels["/good again"] = writer.register_channel("/good", "cdr", numbers, {"from": "another node"})
        for k in range(1000):
            content = b"\0\1\0\0" + struct.pack("<d", k)
            for topic, channel in channels.items():
                cut = topic == "/broken" and k % 10 == 3
                writer.add_message(channel, 2 * k + (topic == "/good again"), content[:7] if cut else content, 5)
        writer.finish()
    return path


def test_what_cannot_be_decoded_is_told(written: Path) -> None:
    recording = recording_of(written)
    passing = recording.pieces()
    assert passing.problems == []
    found = {piece[0][0]: piece for piece in passing}
    assert sorted(found) == ["/broken", "/good"]
    assert found["/good"][3].tolist() == list(range(2000))
    assert len(found["/broken"][1]) == 900
    problems = {topic: (count, sentence) for topic, count, sentence in passing.problems}
    assert all(sentence.startswith(f"{written}: ") for _, sentence in problems.values())
    assert {topic: count for topic, (count, _) in problems.items()} == {
        "/proto": 0,
        "/bad": 0,
        "/none": 0,
        "/broken": 100,
    }
    assert problems["/bad"][1].endswith('"/bad": type "Missing" is not defined')
    assert "a message ends after 7 bytes" in problems["/broken"][1]
    assert [topic[0] for topic in recording.summary()["topics"]] == ["/bad", "/broken", "/good", "/none", "/proto"]
    assert recording.summary()["topics"][2][4] == 2000
    another = recording.pieces(["/good"])
    (only,) = another
    assert only[0][0] == "/good"
    assert another.problems == []
    with pytest.raises(ValueError, match="/goof"):
        recording.pieces(["/goof"])


def test_memory_and_objects_serve_too(written: Path) -> None:
    content = written.read_bytes()

    class Reader:
        size = len(content)

        def read(self, offset: int, count: int) -> bytes:
            return content[offset : offset + count]

    expected = [piece[0] for piece in recording_of(written).pieces()]
    for source in (memoryview(content), Reader()):
        assert [piece[0] for piece in _core.McapRecording(source, "it").pieces()] == expected


def test_what_reading_raises_goes_through(written: Path) -> None:
    content = written.read_bytes()

    class Reader:
        size = len(content)
        left = 30

        def read(self, offset: int, count: int) -> bytes:
            self.left -= 1
            if self.left < 0:
                raise OSError("the network is gone")
            return content[offset : offset + count]

    reader = Reader()
    recording = _core.McapRecording(reader, "it")
    reader.left = 0
    with pytest.raises(OSError, match="the network is gone"):
        list(recording.pieces())


def test_many_topics_that_take_much(tmp_path: Path) -> None:
    """A small file whose schemas unfold: what is decoded stays bounded, and what is left out is told."""
    writer_of = pytest.importorskip("mcap.writer")
    path = tmp_path / "hostile.mcap"
    with path.open("wb") as file:
        writer = writer_of.Writer(file)
        writer.start()
        schema = writer.register_schema("p/msg/T", "ros2msg", b"float32 x\nstring[60000] y")
        for k in range(100):
            writer.add_message(writer.register_channel(f"/t{k}", "cdr", schema), k, b"\0\1\0\0" + bytes(240_004), k)
        writer.finish()
    recording = recording_of(path)
    passing = recording.pieces()
    found = [piece[0][0] for piece in passing]
    told = [topic for topic, _, sentence in passing.problems if "bytes to decode" in sentence]
    assert len(found) == 100
    assert 10 < len(told) < 100


def test_pieces_are_bounded(tmp_path: Path) -> None:
    writer_of = pytest.importorskip("mcap.writer")
    path = tmp_path / "large.mcap"
    image = random_message(STORE, np.random.default_rng(0), "sensor_msgs/msg/CompressedImage")
    image.data = np.zeros(300_000, np.uint8)
    content = serialize(image, "sensor_msgs/msg/CompressedImage")
    with path.open("wb") as file:
        writer = writer_of.Writer(file)
        writer.start()
        schema = writer.register_schema(
            "sensor_msgs/msg/CompressedImage", "ros2msg", schema_text(STORE, "sensor_msgs/msg/CompressedImage")
        )
        channels = [writer.register_channel(f"/camera{k}", "cdr", schema) for k in range(40)]
        for k in range(200):
            writer.add_message(channels[k % 40], k, content, k)
        writer.finish()
    sizes = [piece[1].nbytes for piece in recording_of(path).pieces()]
    assert sum(sizes) == 200 * 300_000
    assert max(sizes) <= (2 << 20) + 300_000
