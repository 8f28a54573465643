"""Schemas with messages, as tests/fuzz/messages_fuzz.cpp reads them: small valid ones, and malformed ones. Standard
library only."""

import struct


def framed(*messages: bytes) -> bytes:
    return b"".join(struct.pack("<H", len(message)) + message for message in messages)


def text(value: bytes) -> bytes:
    return struct.pack("<I", len(value) + 1) + value + bytes(1 + -(len(value) + 1) % 4)


CDR, BIG, SECOND = b"\0\1\0\0", b"\0\0\0\0", b"\0\7\0\0"
NUMBERS = ["bool", "byte", "char", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
NUMBERS += ["float32", "float64"]
TIME = "\n===\nMSG: builtin_interfaces/Time\nint32 sec\nuint32 nanosec\n"
HEADER = "\n===\nMSG: std_msgs/Header\nbuiltin_interfaces/Time stamp\nstring frame_id" + TIME
VECTOR = "\n===\nMSG: geometry_msgs/Vector3\nfloat64 x\nfloat64 y\nfloat64 z"
QUATERNION = "\n===\nMSG: geometry_msgs/Quaternion\nfloat64 x\nfloat64 y\nfloat64 z\nfloat64 w"
STAMP = struct.pack("<iI", 3, 7) + text(b"map")


def schema(name: str, definition: str, *messages: bytes, kind: int = 0) -> bytes:
    return bytes([kind]) + f"{name}\n{definition}\0".encode() + framed(*messages)


def valid() -> dict[str, dict[str, bytes]]:
    """By fuzz target, by name."""
    found: dict[str, dict[str, bytes]] = {"ros2": {}, "json": {}}
    every = "".join(f"{word} {word}_\n{word}[3] {word}_array\n{word}[] {word}_list\n" for word in NUMBERS)
    found["ros2"]["numbers"] = schema("p/msg/T", every, CDR + bytes(400), BIG + bytes(400), SECOND + bytes(400))
    nested = "int32 A=3\nstring<=5 s 'x'\nwstring w\nQ q\nQ[2] qs\nQ[] ql\n"
    nested += "===\nMSG: p/Q\nuint8 n\nstring[] t\nfloat32[<=2] v"
    found["ros2"]["nested"] = schema("p/msg/T", nested, CDR + bytes(80), CDR + struct.pack("<I", 1) + bytes(80))
    imu = "std_msgs/Header header\ngeometry_msgs/Quaternion orientation\nfloat64[9] orientation_covariance\n"
    imu += "geometry_msgs/Vector3 angular_velocity" + HEADER + VECTOR + QUATERNION
    found["ros2"]["imu"] = schema("sensor_msgs/msg/Imu", imu, CDR + STAMP + bytes(140))
    joints = "std_msgs/Header header\nstring[] name\nfloat64[] position\nfloat64[] velocity\nfloat64[] effort" + HEADER
    names = struct.pack("<I", 2) + text(b"a") + text(b"bc")
    state = CDR + STAMP + names + struct.pack("<IddI", 2, 1, 2, 0) + bytes(8)
    other = CDR + STAMP + struct.pack("<I", 1) + text(b"d") + struct.pack("<IdI", 1, 1, 0) + bytes(8)
    found["ros2"]["joints"] = schema("sensor_msgs/msg/JointState", joints, state, state, other)
    cloud = "std_msgs/Header header\nuint32 height\nuint32 width\nsensor_msgs/PointField[] fields\nbool is_bigendian\n"
    cloud += "uint32 point_step\nuint32 row_step\nuint8[] data\nbool is_dense\n===\nMSG: sensor_msgs/PointField\n"
    cloud += "string name\nuint32 offset\nuint8 datatype\nuint32 count" + HEADER
    fields = (
        struct.pack("<I", 2) + text(b"x") + struct.pack("<IB3xI", 0, 7, 1) + text(b"r") + struct.pack("<IB3xI", 4, 4, 2)
    )
    points = CDR + STAMP + struct.pack("<II", 1, 2) + fields + struct.pack("<B3xIII", 0, 8, 16, 16) + bytes(17)
    found["ros2"]["points"] = schema("sensor_msgs/msg/PointCloud2", cloud, points, points)
    image = "std_msgs/Header header\nuint32 height\nuint32 width\nstring encoding\nuint8 is_bigendian\nuint32 step\n"
    image += "uint8[] data"
    pixels = CDR + STAMP + struct.pack("<II", 2, 2) + text(b"mono8") + struct.pack("<B3xII", 0, 2, 4) + bytes(4)
    found["ros2"]["image"] = schema("sensor_msgs/msg/Image", image + HEADER, pixels)
    packed = "std_msgs/Header header\nstring format\nuint8[] data" + HEADER
    jpeg = CDR + STAMP + text(b"jpeg") + struct.pack("<I", 0)
    found["ros2"]["jpeg"] = schema("sensor_msgs/msg/CompressedImage", packed, jpeg)
    tree = "geometry_msgs/TransformStamped[] transforms\n===\nMSG: geometry_msgs/TransformStamped\n"
    tree += "std_msgs/Header header\n"
    tree += "string child_frame_id\ngeometry_msgs/Transform transform\n===\nMSG: geometry_msgs/Transform\n"
    tree += "geometry_msgs/Vector3 translation\ngeometry_msgs/Quaternion rotation" + VECTOR + QUATERNION + HEADER
    transform = CDR + struct.pack("<I", 1) + STAMP + text(b"base") + bytes(64)
    found["ros2"]["tree"] = schema("tf2_msgs/msg/TFMessage", tree, transform, transform)
    idl = """module p { module msg { typedef double d9[9]; const long N = 2; @verbatim(language="x", text="y")
struct T { d9 m; @default(value=1) sequence<Q, 3> q[N]; string<5> s; unsigned long long u; Level l; };
struct Q { octet o; };
enum Level { A, B }; }; };"""
    found["ros2"]["idl"] = schema("p/msg/T", idl, CDR + bytes(200), kind=1)
    objects = [
        b'{"a": 1, "b": [1, 2.5, null, {"c": true}], "s": "x"}',
        b'{"b": [3], "new": -1e3, "header": {"stamp": {"sec": 1}}}',
    ]
    found["json"]["objects"] = framed(*objects, b"[1, [2]]", b"3")
    return found


def malformed() -> dict[str, dict[str, bytes]]:
    cut = "\n===\nMSG: p/"
    deep = "A0 a" + "".join(f"{cut}A{k}\nA{k + 1} a" for k in range(40)) + f"{cut}A40\nuint8 x"
    doubling = "A0 a" + "".join(f"{cut}A{k}\nA{k + 1} a\nA{k + 1} b" for k in range(25)) + f"{cut}A25\nstring x"
    aliases = "module p { typedef A B; typedef B A; typedef sequence<C> C; struct T { A a; C c; }; };"
    bomb = b"\x28\xb5\x2f\xfd\xe0\xff\xff\xff\xff\xff\xff\xff\x7f\x01\0\0"
    long = CDR + b"\xff" * 4, CDR + bytes(4) + b"\xff\xff\xff\x1f"
    return {
        "ros2": {
            "cycle": schema("p/T", f"A a{cut}A\nT[] t", CDR),
            "deep": schema("p/T", deep, CDR),
            "doubling": schema("p/T", doubling, CDR),
            "huge array": schema("p/T", "float64[4294967295] x", CDR),
            "huge array of structures": schema("p/T", f"A[4294967295] x{cut}A\nstring s", CDR),
            "long sequences": schema("p/T", "uint8[] a\nfloat64[] b", *long),
            "aliases of themselves": schema("p/T", aliases, CDR, kind=1),
            "unclosed annotation": schema("p/T", '@a(((("\\', kind=1),
            "zstd bomb": schema("p/T", "uint8 a", bomb),
        },
        "json": {
            "deep": framed(b"[" * 2000),
            "overflow": framed(b'{"a":1e999}', b'{"a":1}'),
            "not UTF-8": framed(b'{"a":1,"\xff\xfe":2}', b'{"header":{"stamp":{"sec":1e300}}}'),
        },
    }
