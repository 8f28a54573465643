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
    fields = b"".join(
        text(name) + struct.pack("<IB3xI", offset, kind, 1)
        for name, offset, kind in ((b"x", 0, 7), (b"y", 4, 7), (b"ring", 22, 4), (b"t", 28, 7), (b"n", 24, 1))
    )
    points = CDR + STAMP + struct.pack("<III", 2, 3, 5) + fields + struct.pack("<B3xIII", 0, 32, 96, 192) + bytes(193)
    found["ros2"]["padded points"] = schema("sensor_msgs/msg/PointCloud2", cloud, points, points)
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
    found["json"]["seconds"] = framed(*(b'{"timestamp": %s, "x": 1}' % t for t in (b"0", b"10.5", b"11", b"-1e9")))
    found["json"]["units"] = framed(b'{"stamp": 1700000000123}', b'{"stamp": 1.7e9, "x": 1}', b'{"stamp": 1e99}')
    found["json"]["doubt"] = framed(b'{"timestamp": 5000000, "x": 1}', b'{"timestamp": 5.5}')
    return found


def malformed() -> dict[str, dict[str, tuple[bytes, str]]]:
    """By fuzz target, by name: and a part of what is said, of the schema or of the first message that is left out."""
    cut = "\n===\nMSG: p/"
    deep = "A0 a" + "".join(f"{cut}A{k}\nA{k + 1} a" for k in range(40)) + f"{cut}A40\nuint8 x"
    doubling = "A0 a" + "".join(f"{cut}A{k}\nA{k + 1} a\nA{k + 1} b" for k in range(25)) + f"{cut}A25\nstring x"
    aliases = "module p { typedef A B; typedef B A; typedef sequence<C> C; struct T { A a; C c; }; };"
    bomb = b"\x28\xb5\x2f\xfd\xe0\xff\xff\xff\xff\xff\xff\xff\x7f\x01\0\0"
    long = CDR + b"\xff" * 4, CDR + bytes(4) + b"\xff\xff\xff\x1f"
    most = struct.pack("<I", (1 << 32) - 1)

    def of(name: str, *messages: bytes) -> bytes:
        """Other messages of a valid schema."""
        content = valid()["ros2"][name]
        return content[: content.index(b"\0", 1) + 1] + framed(*messages)

    one = struct.pack("<I", 1)
    field = text(b"x") + struct.pack("<IB3xI", 0, 7, 1)

    def points(size: tuple[int, int], fields: bytes, step: int, bytes_: int = 16, count: int = 1) -> bytes:
        head = CDR + STAMP + struct.pack("<II", *size) + struct.pack("<I", count) + fields
        return of("points", head + struct.pack("<B3xIII", 0, step, 0, bytes_) + bytes(17))

    def idl(definition: str) -> bytes:
        return schema("p/T", f"module p {{ {definition} }};", CDR + bytes(8), kind=1)

    return {
        "ros2": {
            # Schemas
            "cycle": (schema("p/T", f"A a{cut}A\nT[] t", CDR), 'type "p/T" holds itself'),
            "deep": (schema("p/T", deep, CDR), "types are nested deeper than 32"),
            "doubling": (schema("p/T", doubling, CDR), 'type "p/msg/T" has more than 131072 fields'),
            "huge_array": (
                schema("p/T", "float64[4294967295] x", CDR),
                'field "x": the type has more than 65536 numbers',
            ),
            "huge_array_of_structures": (
                schema("p/T", f"A[4294967295] x{cut}A\nstring s", CDR),
                'type "p/msg/T" has more than 131072 fields',
            ),
            "huge_bound": (
                schema("p/T", "uint8[<=4294967295] x\nstring<=4294967295 s", CDR + most + most),
                "ends after 12 bytes, where a sequence",
            ),
            "size_past_32_bits": (schema("p/T", "uint8[4294967296] x", CDR), 'type "uint8[4294967296]"'),
            "size_is_no_number": (schema("p/T", "uint8[-1] x", CDR), 'type "uint8[-1]" has the'),
            "size_without_end": (schema("p/T", "uint8[3 x", CDR), 'type "uint8[3" has no ]'),
            "no_name": (schema("p/T", "uint8", CDR), '"uint8" is neither a field'),
            "no_such_type": (schema("p/T", "Missing m", CDR), 'type "Missing" is not defined'),
            "no_definition": (schema("p/T", "uint8 a\n===\nuint8 b", CDR), 'expected "MSG'),
            "bytes_as_schema": (schema("p/T", "\x01\x02\x7f", CDR), '"\\x01\\x02\\x7f" is neither'),
            "long_names": (
                schema("p/T", f"A[200] {'n' * 900}{cut}A\nuint8[200] m", CDR),
                "the names of its fields are too long",
            ),
            "aliases_of_themselves": (schema("p/T", aliases, CDR, kind=1), 'type "p/B" is a name of itself'),
            "unclosed_annotation": (schema("p/T", '@a(((("\\', kind=1), 'type "p/T" is not defined'),
            "unclosed_module": (schema("p/T", "module p { struct T { octet a;", kind=1), 'expected a type, not ""'),
            "deep_sequences": (idl(f"struct T {{ {'sequence<' * 60}octet{'>' * 60} a; }};"), "sequences are nested"),
            "many_dimensions": (idl(f"struct T {{ octet a{'[2]' * 40}; }};"), '"a" has more than 8'),
            "constant_of_itself": (idl("const long N = N; struct T { octet a[N]; };"), 'the size "N"; expected 1'),
            "base_of_itself": (idl("struct T : T { octet a; };"), '"p/T" has a base, which is'),
            "a_union": (idl("union T switch (long) { case 1: octet a; };"), '"union" is not read'),
            # Messages
            "no_header": (schema("p/T", "uint8 a", b"\0\1"), "has 2 bytes; CDR begins with 4"),
            "unknown_kind": (schema("p/T", "uint8 a", b"\x55\1\0\0\0"), "is CDR of kind 21761; plain CDR (0, 1)"),
            "ends_early": (schema("p/T", "uint8 a\nfloat64 b", CDR + bytes(9)), "ends after 13 bytes, where 1 numbers"),
            "big_endian_ends_early": (
                schema("p/T", "uint32[] a", BIG + b"\0\0\0\2" + bytes(7)),
                "ends after 15 bytes, where a sequence",
            ),
            "long_sequences": (schema("p/T", "uint8[] a\nfloat64[] b", *long), "ends after 8 bytes, where a sequence"),
            "long_string": (schema("p/T", "string s\nuint8 a", CDR + most), "ends inside a string of 4294967295"),
            "long_wide_string": (
                schema("p/T", "wstring s\nuint8 a", CDR + struct.pack("<I", 1 << 30) + bytes(9)),
                "ends inside a wide string of",
            ),
            "long_sequence_of_structures": (schema("p/T", f"A[] a{cut}A\nuint8[] b", CDR + most + bytes(40)), ""),
            "past_its_bound": (
                schema("p/T", "uint8[<=2] a", CDR + struct.pack("<I", 3) + bytes(3)),
                "has a sequence of 3 elements; its",
            ),
            "zstd_bomb": (schema("p/T", "uint8 a", bomb), "compressed by zstd does not say its size"),
            "zstd_cut": (schema("p/T", "uint8 a", bomb[:5]), "compressed by zstd does not say its size"),
            "joints_of_no_number": (of("joints", CDR + STAMP + most), "ends after 24 bytes, where a sequence"),
            "more_positions_than_joints": (
                of("joints", CDR + STAMP + one + text(b"a") + struct.pack("<IddII", 2, 1, 2, 0, 0)),
                "has 1 joints and 2 values of position",
            ),
            "frames_of_no_number": (of("tree", CDR + most), "ends after 8 bytes, where a sequence"),
            "image_of_no_number": (
                of("image", CDR + STAMP + bytes(8) + text(b"mono8") + bytes(4) + most),
                "ends after 48 bytes, where a sequence",
            ),
            "points_of_no_bytes": (points((1, 2), field, 0), "has points of 0 bytes and a field that"),
            "points_past_the_data": (points((1, 3), field, 8), "has 16 bytes for 1 x 3 points of 8"),
            "points_past_64_bits": (
                points(((1 << 32) - 1, (1 << 32) - 1), field, (1 << 32) - 1),
                "has rows of 0 bytes for 4294967295",
            ),
            "field_past_the_point": (
                points((1, 2), text(b"x") + struct.pack("<IB3xI", 1 << 31, 7, 1), 8),
                "has points of 8 bytes and a field that",
            ),
            "field_of_huge_count": (
                points((1, 2), text(b"x") + struct.pack("<IB3xI", 0, 7, (1 << 32) - 1), 8),
                "has points of more than 4096 numbers",
            ),
            "field_of_no_datatype": (
                points((1, 2), text(b"x") + struct.pack("<IB3xI", 0, 9, 1), 8),
                'has a field "x" of datatype 9; 1 to 8',
            ),
            "fields_of_one_name": (points((1, 2), 2 * field, 8, count=2), "has two fields of one name"),
            "fields_past_the_message": (
                points((1, 2), field, 8, count=(1 << 32) - 1),
                "ends after 85 bytes, where a sequence",
            ),
        },
        "json": {
            "deep": (framed(b"[" * 2000), "is nested deeper than 64"),
            "overflow": (framed(b'{"a":1e999}', b'{"a":1}'), "is not JSON after byte 10: a number is"),
            "not_utf8": (
                framed(b'{"a":1,"\xff\xfe":2}', b'{"header":{"stamp":{"sec":1e300}}}'),
                "is not JSON after byte 9",
            ),
            "half": (framed(b'{"a": [1, 2'), "is not JSON after byte 12"),
            "two_documents": (framed(b'{"a": 1} {"a": 2}'), "is not JSON after byte 10"),
            "empty": (framed(b""), "is not JSON after byte 1"),
            "half_a_surrogate": (framed(b'{"\\ud800": 1, "a": "\\udc00"}'), "is not JSON after byte 9"),
            "zero_in_a_name": (framed(b'{"a\\u0000b": 1}'), ""),
            "long_name": (framed(b'{"' + b"n" * 2000 + b'": 1}'), ""),
            "name_twice": (framed(b'{"a": 1, "a": {"b": 2}}', b'{"a": [3]}'), ""),
            "stamp_past_64_bits": (
                framed(b'{"header": {"stamp": {"sec": 18446744073709551615, "nanosec": -1}}}'),
                "has a stamp past 4e9 seconds",
            ),
            "not_a_number": (framed(b'{"a": nan}', b'{"a": NaN, "b": -Inf}'), "is not JSON after byte 8"),
        },
    }
