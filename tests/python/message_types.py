"""Messages of any ROS 2 type, made at random with rosbags, and what their streams must be, in plain Python."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from rosbags.interfaces import Nodetype
from rosbags.typesys import Stores, get_typestore

STORE = get_typestore(Stores.ROS2_HUMBLE)

NUMBERS = {
    "bool": np.bool_,
    "byte": np.uint8,
    "octet": np.uint8,
    "char": np.uint8,
    "int8": np.int8,
    "uint8": np.uint8,
    "int16": np.int16,
    "uint16": np.uint16,
    "int32": np.int32,
    "uint32": np.uint32,
    "int64": np.int64,
    "uint64": np.uint64,
    "float32": np.float32,
    "float64": np.float64,
}
COVARIANCES = {
    "sensor_msgs/msg/Imu": {
        "orientation_covariance",
        "angular_velocity_covariance",
        "linear_acceleration_covariance",
    },
    "sensor_msgs/msg/MagneticField": {"magnetic_field_covariance"},
    "sensor_msgs/msg/NavSatFix": {"position_covariance"},
    "geometry_msgs/msg/PoseWithCovariance": {"covariance"},
    "geometry_msgs/msg/TwistWithCovariance": {"covariance"},
    "geometry_msgs/msg/AccelWithCovariance": {"covariance"},
}
PLACEHOLDER = "structure_needs_at_least_one_member"


def schema_text(store: Any, name: str) -> bytes:
    return store.generate_msgdef(name, ros_version=2)[0].encode()


def numbers(rng: np.random.Generator, kind: str, count: int) -> np.ndarray:
    dtype = np.dtype(NUMBERS[kind])
    if dtype.kind == "f":
        return rng.normal(size=count).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, count).astype(dtype)
    limits = np.iinfo(dtype)
    most = 127 if kind in ("byte", "octet", "char") else limits.max  # rosbags writes them signed
    return rng.integers(limits.min, most, count, dtype=dtype, endpoint=True)


def random_value(store: Any, rng: np.random.Generator, desc: Any) -> Any:
    node, of = desc
    if node == Nodetype.NAME:
        return random_message(store, rng, of)
    if node == Nodetype.BASE:
        if of[0] == "string":
            return "ab cd"[: rng.integers(0, 6)]
        return numbers(rng, of[0], 1)[0].item()
    element, size = of
    count = size if node == Nodetype.ARRAY else int(rng.integers(0, min(size or 4, 4) + 1))
    if element[0] == Nodetype.BASE and element[1][0] != "string":
        return numbers(rng, element[1][0], count)
    return [random_value(store, rng, element) for _ in range(count)]


def random_message(store: Any, rng: np.random.Generator, name: str) -> Any:
    fields = store.get_msgdef(name).fields
    return store.types[name](**{field: random_value(store, rng, desc) for field, desc in fields})


class Leaf(NamedTuple):
    path: str
    dtype: np.dtype
    value: Any


class Expected(NamedTuple):
    """Of one message."""

    dense: list[Leaf]
    ragged: dict[str, list[list[Leaf]]]  # by path: the leaves of each row


def join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def expect(store: Any, name: str, message: Any) -> Expected:
    expected = Expected([], {})
    _fields(store, name, message, "", expected.dense, expected.ragged)
    return expected


def _fields(store: Any, name: str, message: Any, path: str, dense: list[Leaf], ragged: Any) -> None:
    for field, desc in store.get_msgdef(name).fields:
        if field in COVARIANCES.get(name, ()) or field == PLACEHOLDER:
            continue
        _value(store, desc, getattr(message, field), join(path, field), dense, ragged)


def _value(store: Any, desc: Any, value: Any, path: str, dense: list[Leaf], ragged: Any) -> None:
    node, of = desc
    if node == Nodetype.NAME:
        if of != "std_msgs/msg/Header":
            _fields(store, of, value, path, dense, ragged)
    elif node == Nodetype.BASE:
        if of[0] in NUMBERS:
            dense.append(Leaf(path, np.dtype(NUMBERS[of[0]]), value))
    elif node == Nodetype.ARRAY:
        for k, item in enumerate(value):
            _value(store, of[0], item, f"{path}[{k}]", dense, ragged)
    elif ragged is not None:  # a sequence inside the elements of one is left out
        rows: list[list[Leaf]] = []
        for item in value:
            rows.append([])
            _value(store, of[0], item, "", rows[-1], None)
        ragged[path] = rows


def common_dtype(leaves: list[Leaf]) -> np.dtype:
    dtypes = {leaf.dtype for leaf in leaves}
    return dtypes.pop() if len(dtypes) == 1 else np.dtype(np.float64)


class Piece(NamedTuple):
    name: str
    type: str
    dtype: str
    shape: tuple[int, ...]
    channels: tuple[str, ...]
    methods: tuple[tuple[str, int, int], ...]
    ragged: bool
    metadata: dict[str, str]
    values: np.ndarray
    times: np.ndarray
    arrivals: np.ndarray
    lengths: np.ndarray | None


def pieces(decoder: Any) -> list[Piece]:
    return [Piece(*piece[0], *piece[1:]) for piece in decoder.take()]


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Value for value; a NaN is one."""
    return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def check(store: Any, name: str, messages: list[Any], decoded: list[Piece], topic: str) -> None:
    """What a decoder made of these messages, all of them in one piece of each stream."""
    found = {piece.name: piece for piece in decoded}
    assert len(found) == len(decoded)
    all_expected = [expect(store, name, message) for message in messages]
    streams = set()
    if dense := all_expected[0].dense:
        piece = found[topic]
        streams.add(topic)
        dtype = common_dtype(dense)
        assert piece.channels == tuple(leaf.path for leaf in dense)
        rows = np.array([[leaf.value for leaf in each.dense] for each in all_expected]).astype(dtype)
        if dtype.kind in "iu":  # not through float64
            rows = np.array([[int(leaf.value) for leaf in each.dense] for each in all_expected], dtype=dtype)
        assert same(piece.values, rows), (piece.values, rows)
        assert piece.lengths is None
        assert not piece.ragged
        assert piece.shape == (len(dense),)
    for path in all_expected[0].ragged:
        rows_of = [each.ragged[path] for each in all_expected]
        flat = [row for rows in rows_of for row in rows]
        if not flat or not flat[0]:
            continue
        piece = found[f"{topic}/{path}"]
        streams.add(piece.name)
        dtype = common_dtype(flat[0])
        assert piece.ragged
        assert piece.lengths is not None
        assert piece.lengths.tolist() == [len(rows) for rows in rows_of]
        scalar = piece.shape == ()
        assert piece.channels == (() if scalar else tuple(leaf.path for leaf in flat[0]))
        exact: Any = int if dtype.kind in "iu" else float
        values = np.array([[exact(leaf.value) for leaf in row] for row in flat], dtype=dtype)
        assert same(piece.values, values[:, 0] if scalar else values)
    for piece in decoded:
        assert piece.name in streams or (piece.ragged and len(piece.values) == 0)
        assert piece.values.dtype == piece.dtype
        assert piece.values.shape[1:] == piece.shape
