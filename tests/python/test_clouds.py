"""read_cloud and read_depth: every format and type against NumPy, the shared recordings, and hostile files."""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from fractions import Fraction

import cloud_files as files
import numpy as np
import pytest
from recordings import shared

import robocache as rc

XYZ = [("x", "F", 4, 1), ("y", "F", 4, 1), ("z", "F", 4, 1)]
EVERY_TYPE = [(f"{t}{size}".lower(), t, size, 1) for t, sizes in (("F", (4, 8)), ("I", (1, 2, 4, 8))) for size in sizes]
EVERY_TYPE += [(f"u{size}", "U", size, 1) for size in (1, 2, 4, 8)]


def random_records(dtype: np.dtype, count: int, seed: int = 0) -> np.ndarray:
    """Any bits for integers, ordinary numbers and a few odd ones for floats."""
    rng = np.random.default_rng(seed)
    records = np.frombuffer(rng.bytes(count * dtype.itemsize), dtype).copy()
    for name in dtype.names:
        base = dtype[name].base
        if base.kind == "f":
            values = rng.normal(0, 50, records[name].shape).astype(base)
            values.reshape(-1)[::7] = np.resize([np.nan, np.inf, -np.inf, -0.0, 1e-40], values.reshape(-1)[::7].shape)
            records[name] = values
    return records


def same(array: np.ndarray, expected: np.ndarray) -> None:
    assert array.dtype == expected.dtype.newbyteorder("=")
    np.testing.assert_array_equal(array, expected, strict=False)
    assert array.flags.c_contiguous
    assert array.flags.writeable


def same_cloud(cloud: rc.Cloud, records: np.ndarray, points_dtype=np.float32) -> None:
    points = np.stack([records[name] for name in "xyz"], -1).reshape(-1, 3).astype(points_dtype)
    same(cloud.points, points)
    names = [name for name in records.dtype.names if name not in "xyz"]
    assert list(cloud.fields) == names
    for name in names:
        expected = records[name].reshape(-1, *records.dtype[name].shape)
        same(cloud.fields[name], np.ascontiguousarray(expected.astype(expected.dtype.newbyteorder("="))))


def refuses(path, *parts: str, content: bytes | None = None, read=rc.read_cloud) -> None:
    """A FileError that begins with the path and has all the parts, in this order, in one line."""
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(rc.FileError) as caught:
        read(path)
    sentence = str(caught.value)
    assert sentence.startswith(f"{path}: ")
    assert "\n" not in sentence
    where = len(str(path))
    for part in parts:
        found = sentence.find(part, where)
        assert found >= 0, f"the sentence lacks {part!r} (after position {where}): {sentence}"
        where = found + len(part)


# ---- the shared recordings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cturtle.pcd", "lidar_ascii.pcd", "table_scene_mug.pcd"])
def test_shared_pcd(name):
    path = shared(f"clouds/{name}")
    cloud = rc.read_cloud(path)
    columns, entries = files.parse_pcd(path)
    same(cloud.points, np.stack([columns[k] for k in "xyz"], -1))
    assert cloud.viewpoint == tuple(map(float, entries["VIEWPOINT"]))
    height, width = int(entries["HEIGHT"][0]), int(entries["WIDTH"][0])
    assert cloud.shape == ((width,) if height == 1 else (height, width))
    if "intensity" in columns:
        same(cloud.fields["intensity"], columns["intensity"])
    if "rgba" in columns:
        packed = columns["rgba"]
        same(cloud.fields["rgb"], np.stack([packed >> 16, packed >> 8, packed], -1).astype(np.uint8))
        same(cloud.fields["alpha"], (packed >> 24).astype(np.uint8))
        assert np.count_nonzero(~np.isfinite(cloud.points).all(-1)) == 97_920  # as shared/data/README.md says


@pytest.mark.parametrize("name", ["lidar_source.ply", "lidar_target.ply"])
def test_shared_ply(name):
    path = shared(f"clouds/{name}")
    cloud = rc.read_cloud(path)
    body = path.read_bytes().partition(b"end_header\n")[2]
    records = np.frombuffer(body, "<f4").reshape(-1, 4)
    same(cloud.points, records[:, :3])
    same(cloud.fields["scalar_intensity"], records[:, 3])


def test_shared_depth():
    path = shared("depth/frame-000000.depth.png")
    same(rc.read_depth(path), files.parse_png(path.read_bytes()))
    for frame in path.parent.glob("*.png"):
        assert rc.read_depth(frame).shape == (480, 640)


def test_open3d_agrees():
    open3d = pytest.importorskip("open3d", reason="Open3D is not installed, or lacks libusb", exc_type=ImportError)
    for name in ("cturtle.pcd", "lidar_ascii.pcd", "lidar_source.ply"):
        path = shared(f"clouds/{name}")
        theirs = np.asarray(open3d.io.read_point_cloud(str(path)).points)
        np.testing.assert_array_equal(rc.read_cloud(path).points, theirs.astype(np.float32))


# ---- PCD ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", ["ascii", "binary", "binary_compressed"])
@pytest.mark.parametrize("count", [0, 1, 2, 1000, 40_000])
def test_pcd_every_type(tmp_path, data, count):
    fields = [*XYZ, *EVERY_TYPE, ("histogram", "F", 4, 5), ("pair", "I", 2, 2)]
    records = random_records(files.record_dtype(fields), min(count, 2000) if data != "binary" else count)
    files.write_pcd(tmp_path / "a.pcd", fields, records, data)
    cloud = rc.read_cloud(tmp_path / "a.pcd")
    same_cloud(cloud, records)
    assert cloud.shape == (len(records),)


def test_pcd_text_over_many_pieces(tmp_path):
    """Long enough that threads share the lines, with blank lines between and CRLF ends."""
    records = random_records(files.record_dtype([*XYZ, ("ring", "U", 2, 1)]), 60_000)
    files.write_pcd(tmp_path / "a.pcd", [*XYZ, ("ring", "U", 2, 1)], records, "ascii")
    same_cloud(rc.read_cloud(tmp_path / "a.pcd"), records)
    head, _, body = (tmp_path / "a.pcd").read_bytes().partition(b"DATA ascii\n")
    (tmp_path / "b.pcd").write_bytes(head + b"DATA ascii\n" + body.replace(b"\n", b"  \r\n\n", 30_000))
    same_cloud(rc.read_cloud(tmp_path / "b.pcd"), records)
    lines = body.split(b"\n")
    for bad in (59_000, 31_000, 7):
        lines[bad] = b"1 2 three 4"
        number = head.count(b"\n") + 2 + bad
        refuses(
            tmp_path / "c.pcd",
            f'line {number}: field "z" is "three"',
            content=head + b"DATA ascii\n" + b"\n".join(lines),
        )


@pytest.mark.parametrize("data", ["ascii", "binary", "binary_compressed"])
def test_pcd_coordinates_of_other_types(tmp_path, data):
    for t, size, dtype in [("F", 8, "f8"), ("I", 1, "f4"), ("U", 2, "f4"), ("I", 4, "f8"), ("U", 8, "f8")]:
        fields = [("x", t, size, 1), ("y", "F", 4, 1), ("z", t, size, 1), ("w", "U", 1, 1)]
        records = random_records(files.record_dtype(fields), 99)
        files.write_pcd(tmp_path / "a.pcd", fields, records, data)
        same_cloud(rc.read_cloud(tmp_path / "a.pcd"), records, dtype)


@pytest.mark.parametrize("data", ["ascii", "binary", "binary_compressed"])
def test_pcd_organised(tmp_path, data):
    records = random_records(files.record_dtype(XYZ), 12)
    files.write_pcd(tmp_path / "a.pcd", XYZ, records, data, width=4, height=3, viewpoint="1 2 3 0 1 0 -0.5")
    cloud = rc.read_cloud(tmp_path / "a.pcd")
    same_cloud(cloud, records)
    assert cloud.shape == (3, 4)
    assert cloud.viewpoint == (1, 2, 3, 0, 1, 0, -0.5)
    assert "float32 [12, 3]" in repr(cloud)
    assert "(3, 4)" in repr(cloud)


@pytest.mark.parametrize("data", ["ascii", "binary", "binary_compressed"])
@pytest.mark.parametrize("name", ["rgb", "rgba"])
def test_pcd_packed_colours(tmp_path, data, name):
    fields = [*XYZ, (name, "U", 4, 1), ("label", "U", 4, 1)]
    records = random_records(files.record_dtype(fields), 50)
    files.write_pcd(tmp_path / "a.pcd", fields, records, data)
    cloud = rc.read_cloud(tmp_path / "a.pcd")
    packed = records[name]
    same(cloud.fields["rgb"], np.stack([packed >> 16 & 255, packed >> 8 & 255, packed & 255], -1).astype(np.uint8))
    if name == "rgba":
        same(cloud.fields["alpha"], (packed >> 24).astype(np.uint8))
    same(cloud.fields["label"], records["label"])
    assert list(cloud.fields) == (["rgb", "label"] if name == "rgb" else ["rgb", "alpha", "label"])


def test_pcd_padding_and_old_headers(tmp_path):
    records = random_records(files.record_dtype([*XYZ, ("_", "U", 1, 4), ("a", "F", 4, 1)]), 5)
    files.write_pcd(tmp_path / "a.pcd", [*XYZ, ("_", "U", 1, 4), ("a", "F", 4, 1)], records, "binary")
    cloud = rc.read_cloud(tmp_path / "a.pcd")
    assert list(cloud.fields) == ["a"]
    same(cloud.fields["a"], records["a"])
    old = b"# from a robot\n# v.5\nVERSION .5\nCOLUMNS x y z\nSIZE 4 4 4\nTYPE F F F\nPOINTS 2\nDATA ascii\n"
    old += b"1 2 3\n+4 5e0 -6."
    (tmp_path / "old").write_bytes(old)
    assert rc.read_cloud(tmp_path / "old").points.tolist() == [[1, 2, 3], [4, 5, -6]]
    assert rc.read_cloud(tmp_path / "old").viewpoint is None


def test_pcd_text_is_rounded_once(tmp_path):
    """To the nearest float32, also where a double in between would round the other way, and past both ends of it."""
    words = [
        "16777217.000000001",
        "1e-46",
        "1e39",
        "-1e39",
        "0.1",
        "1.00000017881393421514957253748434595763683319091796875001",
    ]
    words += ["1e38", "123456789012345678901234567890", "1.17549429e-38", "00.5e+1", "-.5"]
    body = "".join(f"{word} 0 0\n" for word in words)
    (tmp_path / "a.pcd").write_bytes(files.pcd_header(XYZ, len(words), "ascii") + body.encode())

    def nearest(word: str) -> np.float32:
        with np.errstate(over="ignore"):
            guess = np.float32(float(word))
        if not np.isfinite(guess) or guess == 0:
            return guess
        near = [np.nextafter(guess, np.float32(s * np.inf)) for s in (-1, 1)] + [guess]
        return min(
            (v for v in near if np.isfinite(v)),
            key=lambda v: (abs(Fraction(float(v)) - Fraction(word)), int(v.view(np.uint32)) & 1),
        )

    np.testing.assert_array_equal(rc.read_cloud(tmp_path / "a.pcd").points[:, 0], [nearest(word) for word in words])


# ---- PLY ---------------------------------------------------------------------------------------------------------

PLY_DTYPE = np.dtype([(k, "f4") for k in "xyz"] + [(f"p_{t}", t) for t in files.PLY_NAMES])


def ply_file(records, form, **header) -> bytes:
    head = files.ply_header(records, form, **header)
    if form == "ascii":
        return head + files.text_of(records).encode()
    order = "<" if form == "binary_little_endian" else ">"
    return head + records.astype(records.dtype.newbyteorder(order)).tobytes()


@pytest.mark.parametrize("form", ["ascii", "binary_little_endian", "binary_big_endian"])
@pytest.mark.parametrize("count", [0, 1, 500])
def test_ply_every_type(tmp_path, form, count):
    records = random_records(PLY_DTYPE, count)
    (tmp_path / "a").write_bytes(ply_file(records, form))
    same_cloud(rc.read_cloud(tmp_path / "a"), records)
    doubles = random_records(np.dtype([("red", "u1"), ("z", "f8"), ("y", "f8"), ("x", "f8")]), count)
    (tmp_path / "b").write_bytes(ply_file(doubles, form).replace(b"uchar", b"uint8").replace(b"double", b"float64"))
    same_cloud(rc.read_cloud(tmp_path / "b"), doubles, "f8")


@pytest.mark.parametrize("form", ["ascii", "binary_little_endian", "binary_big_endian"])
def test_ply_other_elements(tmp_path, form):
    """Cameras and faces come before the vertices, strips after them."""
    records = random_records(PLY_DTYPE, 20)
    before = "element camera 2\nproperty double f\nproperty uchar id\nelement none 5\nelement face 3\n"
    before += "property list uchar int vertex_indices\nproperty short flags\nproperty list uint double weights"
    after = "element strip 1\nproperty list int int indices"
    order = ">" if form == "binary_big_endian" else "<"
    if form == "ascii":
        cameras, faces = b"0.5 1\n0.25 2\n", b"3 0 1 2 7 0\n0 8 1 0.5\n\n4 1 2 3 4 9 2 1 2\n"
    else:
        cameras = struct.pack(order + "dB", 0.5, 1) + struct.pack(order + "dB", 0.25, 2)
        faces = struct.pack(order + "B3ihI", 3, 0, 1, 2, 7, 0) + struct.pack(order + "BhId", 0, 8, 1, 0.5)
        faces += struct.pack(order + "B4ihI2d", 4, 1, 2, 3, 4, 9, 2, 1, 2)
    whole = ply_file(records, form, before=before, after=after)
    head, _, body = whole.partition(b"end_header\n")
    content = head + b"end_header\n" + cameras + faces + body + b"2 1 2\n"
    (tmp_path / "a.ply").write_bytes(content)
    same_cloud(rc.read_cloud(tmp_path / "a.ply"), records)
    if form != "ascii":
        cut = len(head) + 11 + len(cameras) + len(faces)
        refuses(tmp_path / "b.ply", 'ends inside its element "face"', content=content[: cut - 1])
        refuses(tmp_path / "c.ply", "ends after 0 of 20 points", content=content[: cut + 3])


def test_ply_with_carriage_returns(tmp_path):
    records = random_records(PLY_DTYPE, 3)
    head, _, body = ply_file(records, "binary_little_endian").partition(b"end_header\n")
    (tmp_path / "a.ply").write_bytes((head + b"end_header\n").replace(b"\n", b"\r\n") + body)
    same_cloud(rc.read_cloud(tmp_path / "a.ply"), records)


# ---- NPY and .bin ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "?"])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("columns", [3, 4, 7])
def test_npy_plain(tmp_path, dtype, order, columns):
    rng = np.random.default_rng(1)
    table = (rng.normal(0, 40, (301, columns)) % 200).astype(np.dtype(dtype).newbyteorder(order))
    expected = "f4" if np.dtype(dtype).itemsize <= 2 or dtype == "f4" else "f8"
    for name, array in (("c", table), ("fortran", np.asfortranarray(table)), ("empty", table[:0])):
        np.save(tmp_path / f"{name}.npy", array)
        cloud = rc.read_cloud(tmp_path / f"{name}.npy")
        same(cloud.points, array[:, :3].astype(expected))
        assert list(cloud.fields) == ([] if columns == 3 else ["extra"])
        if columns > 3:
            extra = array[:, 3:].astype(np.dtype(dtype))
            same(cloud.fields["extra"], np.ascontiguousarray(extra[:, 0] if columns == 4 else extra))


def test_npy_organised(tmp_path):
    image = np.arange(2 * 5 * 4, dtype=np.float32).reshape(2, 5, 4)
    np.save(tmp_path / "a.npy", image)
    cloud = rc.read_cloud(tmp_path / "a.npy")
    assert cloud.shape == (2, 5)
    same(cloud.points.reshape(*cloud.shape, 3), image[..., :3])
    same(cloud.fields["extra"], image[..., 3].ravel())
    np.save(tmp_path / "b.npy", np.asfortranarray(image))
    refuses(tmp_path / "b.npy", "[2, 5, 4] in Fortran order")


def test_npy_structured(tmp_path):
    dtype = np.dtype(
        [("t", "<i8"), ("x", ">f4"), ("y", "<f4"), ("ok", "?"), ("rgb", "u1", (3,)), ("z", "<f2")], align=True
    )
    records = random_records(dtype, 77)
    records["ok"] = records["t"] % 2
    for version in ((1, 0), (2, 0), (3, 0)):
        with open(tmp_path / "a.npy", "wb") as file:
            np.lib.format.write_array(file, records, version)
        same_cloud(rc.read_cloud(tmp_path / "a.npy"), records)
    np.save(tmp_path / "b.npy", records.reshape(7, 11))
    assert rc.read_cloud(tmp_path / "b.npy").shape == (7, 11)


def test_bin(tmp_path):
    scan = np.random.default_rng(2).normal(size=(100, 20)).astype(np.float32)
    for name, columns in (("a.bin", ["intensity"]), ("scan.pcd.bin", ["intensity", "ring"])):
        (tmp_path / name).write_bytes(scan.tobytes())
        cloud = rc.read_cloud(tmp_path / name)
        table = scan.reshape(-1, 3 + len(columns))
        same(cloud.points, table[:, :3])
        assert list(cloud.fields) == columns
        for k, column in enumerate(columns):
            same(cloud.fields[column], np.ascontiguousarray(table[:, 3 + k]))
    (tmp_path / "empty.bin").write_bytes(b"")
    assert rc.read_cloud(tmp_path / "empty.bin").points.shape == (0, 3)
    refuses(tmp_path / "b.bin", "has 15 bytes", "4 float32, 16 bytes each", content=bytes(15))


# ---- depth -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("filters", [(0,), (1,), (2,), (3,), (4,), (4, 3, 2, 1, 0)])
@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (64, 33)])
def test_png_filters(tmp_path, filters, shape):
    rng = np.random.default_rng(3)
    values = (rng.integers(0, 1 << 16, shape) // rng.choice([1, 500])).astype(np.uint16)
    gamma = files.png_chunk(b"gAMA", struct.pack(">I", 45455))
    (tmp_path / "a.png").write_bytes(files.png(values, filters, parts=3, extra=gamma))
    same(rc.read_depth(tmp_path / "a.png"), values)


def test_png_refusals(tmp_path):
    values = np.arange(60, dtype=np.uint16).reshape(6, 10)
    path = tmp_path / "a.png"
    good = files.png(values)

    def no(content, *parts):
        refuses(path, *parts, content=content, read=rc.read_depth)

    no(b"", "is no PNG image")
    no(b"\x89PNG\r\n\x1a\n", "ends before its last chunk")
    no(good[:-5], "ends before its last chunk")
    no(good[:50], 'ends inside its chunk "IDAT"')
    no(good[:60] + bytes([good[60] ^ 1]) + good[61:], '"IDAT" is damaged: the checksum differs')
    no(files.png(values, bits=8), "8 bits", "expected 16 bits")
    no(files.png(values, colour=2), "colour type 2", "grayscale")
    no(files.png(values, interlace=1), "is interlaced")
    no(files.png(values, extra=files.png_chunk(b"PLTE", b"abc")), 'the chunk "PLTE"')
    no(files.png(values, extra=files.png_chunk(b"IHDR", bytes(13))), "its header chunk IHDR must come first")
    no(
        good.replace(good[8:33], files.png_chunk(b"IHDR", struct.pack(">IIBBBBB", 10, 7, 16, 0, 0, 0, 0))),
        "ends in row 6 of 7",
    )
    lie = files.png_chunk(b"IHDR", struct.pack(">IIBBBBB", (1 << 31) - 1, (1 << 31) - 1, 16, 0, 0, 0, 0))
    no(good.replace(good[8:33], lie), "cannot hold 2147483647 by 2147483647 pixels")
    none = files.png_chunk(b"IHDR", struct.pack(">IIBBBBB", 0, 6, 16, 0, 0, 0, 0))
    no(good.replace(good[8:33], none), "has 6 by 0 pixels; expected 1 to 2147483647 each way")
    start = good.index(b"IDAT") - 4
    no(good[:start] + files.png_chunk(b"IDAT", b"not zlib at all") + good[-12:], "its data is damaged")
    filtered = files.zlib.compress(b"\x09" + bytes(20) + bytes(5 * 21))
    no(good[:start] + files.png_chunk(b"IDAT", filtered) + good[-12:], "row 0 has filter 9; expected 0 to 4")


# ---- hostile clouds ----------------------------------------------------------------------------------------------


def pcd(data="ascii", body=b"1 2 3\n4 5 6\n", **changes) -> bytes:
    """A PCD of two points; a change of None takes the entry out."""
    entries = {"VERSION": "0.7", "FIELDS": "x y z", "SIZE": "4 4 4", "TYPE": "F F F", "COUNT": "1 1 1", "WIDTH": 2}
    entries |= {"HEIGHT": 1, "VIEWPOINT": "0 0 0 1 0 0 0", "POINTS": 2, "DATA": data, **changes}
    return "".join(f"{key} {value}\n" for key, value in entries.items() if value is not None).encode() + body


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (pcd(FIELDS=None), ["no FIELDS"]),
        (pcd(SIZE=None), ["no SIZE"]),
        (pcd(TYPE="F F"), ["TYPE has 2 entries; FIELDS has 3"]),
        (pcd(COUNT="1 1"), ["COUNT has 2 entries; FIELDS has 3"]),
        (pcd(SIZE="4 4 3"), ['field "z" has TYPE "F" and SIZE "3"', "expected F of 4 or 8"]),
        (pcd(TYPE="F F X"), ['field "z" has TYPE "X"']),
        (pcd(COUNT="1 1 0"), ['field "z" has COUNT "0"; expected 1 or more']),
        (pcd(COUNT="1 1 2"), ['field "z" has 2 values a point; expected 1']),
        (pcd(FIELDS="x y y"), ['names the field "y" twice']),
        (pcd(FIELDS="x y w"), ['has no field "z"', '"x", "y", "w"']),
        (pcd(WIDTH=None, POINTS=None), ["neither WIDTH nor POINTS"]),
        (pcd(WIDTH="two"), ['WIDTH is "two"; expected a whole number']),
        (pcd(WIDTH=-2), ['WIDTH is "-2"']),
        (pcd(WIDTH="99999999999999999999"), ['WIDTH is "99999999999999999999"']),
        (pcd(POINTS=3), ["POINTS is 3; WIDTH 2 times HEIGHT 1 is 2"]),
        (pcd(WIDTH=1 << 62, HEIGHT=1 << 62, POINTS=None), ["WIDTH 4611686018427387904 times HEIGHT", "past 2^63"]),
        (pcd(WIDTH=1 << 62, HEIGHT=4, POINTS=0), ["POINTS is 0; WIDTH", "past 2^63"]),
        (pcd(VIEWPOINT="0 0 0"), ["VIEWPOINT has 3 numbers; expected 7"]),
        (pcd(VIEWPOINT="0 0 0 1 0 0 z"), ['VIEWPOINT holds "z"; expected a number']),
        (pcd(data="zip"), ['DATA is "zip"; expected ascii, binary or binary_compressed']),
        (pcd(DATA=None, body=b""), ["ends inside its header, after line 9"]),
        (b"VERSION 0.7\nCOLOUR red\n", ['line 2: "COLOUR" is not an entry of a PCD header']),
        (b"VERSION 0.7\nVERSION 0.7\n", ["line 2: a second VERSION"]),
        (b"VERSION 0.7\nFIELDS" + b" x" * 40_000, ["line 2: its header goes on for 80006 bytes; at most 65536"]),
        (b"VERSION 0.7\nFIELDS" + b" x" * 2_000 + b"\nDATA ascii\n", ["has 2000 fields; at most 1024 are read"]),
        (pcd(body=b"1 2 3\n4 5 6 7\n"), ["line 12: 4 values; expected 3"]),
        (
            pcd(COUNT=f"1 1 1 {1 << 62}", FIELDS="x y z h", SIZE="4 4 4 4", TYPE="F F F F"),
            ["values a point; expected at most"],
        ),
        (
            pcd(COUNT="1 1 1 1000000", FIELDS="x y z h", SIZE="4 4 4 4", TYPE="F F F F"),
            ["too few for 2 points of 1000003"],
        ),
        (pcd(body=b"1 2 3\n"), ["ends after 1 of 2 points"]),
        (pcd(body=b"1 2 3\n4 5 6\n7 8 9\n"), ["holds 3 lines of numbers; its header says 2 points"]),
        (pcd(body=b"1 2 3\n4 5\n"), ["line 12: 2 values; expected 3"]),
        (pcd(body=b"1 2 3\n4 5 six\n"), ['line 12: field "z" is "six"; expected a number of type float32']),
        (pcd(body=b"1 2 3\n4 5 \xff\x00\n"), ['field "z" is "\\xff\\x00"']),
        (pcd(body=b"1 2 3\n4 5 6x\n"), ['field "z" is "6x"']),
        (pcd(body=b"1 2 3\n4 5 0x10\n"), ['field "z" is "0x10"']),
        (pcd(body=b"1 2 3\n4 5 1e400\n"), ['field "z" is "1e400"']),
        (pcd(body=b"1 2 3\n4 5 -\n"), ['field "z" is "-"']),
        (pcd(body=b"1 2 3\n4 5 +-6\n"), ['field "z" is "+-6"']),
        (pcd(body=b"1 2 3\n4 5 .\n"), ['field "z" is "."']),
        (pcd(body=b"1 2 3\n4 5 1.2.3\n"), ['field "z" is "1.2.3"']),
        (pcd(body=b"1 300 3\n4 5 6\n", TYPE="F U F", SIZE="4 1 4"), ['field "y" is "300"', "uint8"]),
        (pcd(body=b"1 -1 3\n4 5 6\n", TYPE="F U F"), ['field "y" is "-1"', "uint32"]),
        (pcd(body=b"1 1.5 3\n4 5 6\n", TYPE="F I F"), ['field "y" is "1.5"', "int32"]),
        (pcd("binary", bytes(23)), ["ends after 1 of 2 points of 12 bytes"]),
        (pcd("binary", bytes(24), WIDTH=1 << 60, POINTS=1 << 60), ["ends after 2 of 1152921504606846976 points"]),
        (pcd("binary_compressed", bytes(7)), ["ends before the sizes"]),
        (pcd("binary_compressed", struct.pack("<II", 9, 24) + bytes(8)), ["ends after 8 of 9 compressed bytes"]),
        (
            pcd("binary_compressed", struct.pack("<II", 8, 25) + bytes(8)),
            ["its data claims to expand to 25 bytes", "are 24"],
        ),
        (
            pcd("binary_compressed", struct.pack("<II", 8, 24) + bytes(8)),
            ["its compressed data is damaged", "24 bytes"],
        ),
        (
            pcd(
                "binary_compressed",
                struct.pack("<II", 8, 1 << 31) + bytes(8),
                WIDTH=1 << 31,
                POINTS=1 << 31,
                SIZE="1 1 1",
            ),
            ["TYPE"],
        ),
        (
            pcd(
                "binary_compressed",
                struct.pack("<II", 8, 3 << 30) + bytes(8),
                WIDTH=1 << 30,
                POINTS=1 << 30,
                SIZE="1 1 1",
                TYPE="I I I",
            ),
            ["8 compressed bytes cannot hold 3221225472"],
        ),
    ],
)
def test_pcd_refusals(tmp_path, content, parts):
    refuses(tmp_path / "bad.pcd", *parts, content=content)


def ply(
    form="ascii",
    body=b"1 2 3\n4 5 6\n",
    header="element vertex 2\nproperty float x\nproperty float y\nproperty float z\n",
):
    return f"ply\nformat {form} 1.0\n{header}end_header\n".encode() + body


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"ply\n", ["ends inside its header, after line 1"]),
        (ply("ascii2"), ['its format is "ascii2"; expected ascii']),
        (b"ply\nformat ascii 2.0\n", ["line 2", "not 1.0"]),
        (b"ply\nformat ascii 1.0\nproperty float x\n", ["line 3: a property before any element"]),
        (ply(header="element face 2\nproperty float x\n"), ['has no element "vertex"']),
        (ply(header="element vertex many\n"), ["line 3", "not a whole number"]),
        (ply(header="element vertex -1\n"), ["line 3", "not a whole number"]),
        (ply(header="element vertex 2\nproperty float\n"), ["line 4: a property has 1 words"]),
        (ply(header="element vertex 2\nproperty complex x\n"), ['line 4: a property is of type "complex"']),
        (ply(header="element vertex 2\nproperty list float int x\n"), ['the length of a list is "float"']),
        (ply(header="element vertex 2\nproperty list int int x\n"), ['its vertices have the list "x"']),
        (ply(header="element vertex 2\nproperty int x\nproperty int x\n"), ['names the field "x" twice']),
        (ply(header="element vertex 2\nproperty int x\n"), ['has no field "y"']),
        (ply(header="elephant\n"), ['line 3: "elephant" is not an entry of a PLY header']),
        (ply(body=b"1 2 3\n"), ["ends after 1 of 2 points"]),
        (ply(body=b"1 2 3\n4 5 6\n7 8 9\n"), ["holds 3 lines"]),
        (ply(body=b"1 2 3\n4 five 6\n"), ['line 9: field "y" is "five"']),
        (ply("binary_little_endian", bytes(23)), ["ends after 1 of 2 points of 12 bytes"]),
        (ply("binary_big_endian", bytes(23)), ["ends after 1 of 2 points of 12 bytes"]),
        (
            ply(
                header=f"element vertex {1 << 62}\nproperty int x\nproperty int y\nproperty int z\n",
                form="binary_big_endian",
            ),
            ["of 4611686018427387904 points"],
        ),
        (
            ply(
                "binary_little_endian",
                b"\xff" * 9,
                f"element face {1 << 62}\nproperty list char int v\nelement vertex 0\n"
                + "".join(f"property int {k}\n" for k in "xyz"),
            ),
            ['a list "v" has a negative length'],
        ),
        (
            ply(
                "binary_little_endian",
                b"\x00" * 9,
                f"element face {1 << 62}\nproperty list char int v\nelement vertex 0\n"
                + "".join(f"property int {k}\n" for k in "xyz"),
            ),
            ['ends inside its element "face"'],
        ),
        (
            ply(header="element vertex 2\n" + "".join(f"property int p{k}\n" for k in range(1025))),
            ["over 1024 properties"],
        ),
    ],
)
def test_ply_refusals(tmp_path, content, parts):
    refuses(tmp_path / "bad.ply", *parts, content=content)


def npy(header: str, body=bytes(24), version=1) -> bytes:
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + length + header.encode() + body


def npy_of(descr="'<f4'", shape="(2, 3)", order="False", **more) -> bytes:
    return npy(f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}", **more)


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"\x93NUMPY\x01\x00", ["ends inside its header"]),
        (npy("{}", version=9), ["is NPY version 9"]),
        (npy("{}")[:10] + b"", ["ends inside its header"]),
        (b"\x93NUMPY\x01\x00\xff\xff{}", ["ends inside its header of 65535 bytes"]),
        (npy("{}"), ["lacks descr, fortran_order or shape"]),
        (npy("[]"), ['its header has "[]" where { was expected']),
        (npy("{'descr': '<f4', 'descr': '<f4'}"), ['its header has "descr"', "once each"]),
        (npy("{'more': 1}"), ['its header has "more"']),
        (npy("{'descr': '<f4"), ["the end of a string"]),
        (npy_of(order="maybe"), ['has "maybe', "True or False"]),
        (npy_of(shape="(two, 3)"), ["a whole number"]),
        (npy_of(shape="(-2, 3)"), ["a whole number"]),
        (npy_of(shape="(99999999999999999999, 3)"), ["a whole number below 2^63"]),
        (npy_of(shape="(1, 1, 1, 1, 1, 1, 1, 1, 1, 3)"), ["at most 8 dimensions"]),
        (npy_of(shape="(1, 1, 1, 3)"), ["[1, 1, 1, 3]", "expected [N, C] or [H, W, C]"]),
        (npy_of(shape="(6,)"), ["[6]", "expected [N, C] or [H, W, C]"]),
        (npy_of(shape="()"), ["[]"]),
        (npy_of(shape="(2, 2)"), ["[2, 2]", "3 or more columns"]),
        (npy_of(shape="(3, 3)"), ["ends after 24 bytes of data; shape [3, 3] needs 36"]),
        (npy_of(shape=f"({1 << 62}, {1 << 62})"), ["needs over 2^63"]),
        (npy_of(shape=f"({1 << 62}, {1 << 62})", order="True"), ["needs over 2^63"]),
        (npy_of(descr="'|O'"), ['its elements are of type "|O"', "expected bool"]),
        (npy_of(descr="'<c8'"), ['"<c8"']),
        (npy_of(descr="''"), ['of type ""']),
        (npy_of(descr="[('x', '<U4')]", shape="(1,)"), ['field "x" is of type "<U4"']),
        (npy_of(descr="[('x', [('a', '<f4')])]", shape="(1,)"), ['field "x" has fields of its own']),
        (npy_of(descr="[('x', '<f4'), ('y', '<f4')]", shape="(3,)"), ['has no field "z"']),
        (npy_of(descr="[('x', '<f4')]", shape="(1, 1, 1)"), ["expected [N] or [H, W]"]),
        (npy_of(descr="[('', '|Vx')]", shape="(1,)"), ['of type "|Vx"']),
        (npy_of(descr=f"[('x', '<f4'), ('', '|V{(1 << 63) - 1}')]", shape="(2,)"), ["needs over 2^63"]),
        (npy_of(descr=f"[('x', '<f4', ({1 << 62}, 4))]", shape="(0,)"), ['field "x" has', "expected 1"]),
    ],
)
def test_npy_refusals(tmp_path, content, parts):
    refuses(tmp_path / "bad.npy", *parts, content=content)


# ---- paths and calls ---------------------------------------------------------------------------------------------


def test_files_that_are_none(tmp_path):
    refuses(tmp_path / "absent.pcd", "cannot be opened: No such file")
    refuses(tmp_path / "absent.png", "cannot be opened", read=rc.read_depth)
    refuses(tmp_path, "is no regular file")
    os.mkfifo(tmp_path / "pipe.pcd")
    refuses(tmp_path / "pipe.pcd", "is no regular file")  # at once, though nobody writes
    refuses(tmp_path / "empty.pcd", "is empty; expected PCD, PLY, NPY", content=b"")
    refuses(tmp_path / "text.txt", 'is not a known cloud format: it begins with "hello wo"', content=b"hello world\n")
    refuses(tmp_path / "a.pcd", "is a PNG image; read_depth reads it", content=files.png(np.zeros((2, 2), np.uint16)))
    with pytest.raises(TypeError):
        rc.read_cloud(5)
    with pytest.raises(rc.FileError, match=r"^a: a zero byte follows"):
        rc.read_cloud("a\0b")


def test_paths(tmp_path):
    name = tmp_path / "wörter 点.pcd"
    name.write_bytes(pcd())
    for path in (name, str(name), os.fsencode(name)):
        assert rc.read_cloud(path).points.tolist() == [[1, 2, 3], [4, 5, 6]]
    refuses(tmp_path / "nicht dä.pcd", "cannot be opened")
    with pytest.raises(rc.FileError, match=r"\\xff\.pcd: cannot be opened"):
        rc.read_cloud(os.fsencode(tmp_path) + b"/\xff.pcd")


def test_field_names_of_any_bytes(tmp_path):
    (tmp_path / "a.pcd").write_bytes(
        pcd(FIELDS="x y z @", SIZE="4 4 4 4", TYPE="F F F F", COUNT="1 1 1 1", body=b"1 2 3 4\n5 6 7 8\n").replace(
            b"@", b"\xff"
        )
    )
    assert list(rc.read_cloud(tmp_path / "a.pcd").fields) == ["\\xff"]


def test_arrays_outlive_the_cloud(tmp_path):
    (tmp_path / "a.pcd").write_bytes(pcd())
    points = rc.read_cloud(tmp_path / "a.pcd").points
    points += 1
    assert points.tolist() == [[2, 3, 4], [5, 6, 7]]


def test_threads_read_at_once(tmp_path):
    records = random_records(files.record_dtype(XYZ), 20_000)
    files.write_pcd(tmp_path / "a.pcd", XYZ, records, "ascii")
    results: list[rc.Cloud] = []
    threads = [threading.Thread(target=lambda: results.append(rc.read_cloud(tmp_path / "a.pcd"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for cloud in results:
        same_cloud(cloud, records)


def test_every_truncation_is_read_or_refused(tmp_path):
    records = random_records(files.record_dtype([*XYZ, ("rgb", "U", 4, 1)]), 6)
    path = tmp_path / "cut"
    contents = [ply_file(random_records(PLY_DTYPE, 3), form) for form in ("ascii", "binary_little_endian")]
    for data in ("ascii", "binary", "binary_compressed"):
        files.write_pcd(path, [*XYZ, ("rgb", "U", 4, 1)], records, data)
        contents.append(path.read_bytes())
    np.save(tmp_path / "a.npy", np.zeros((4, 4)))
    contents.append((tmp_path / "a.npy").read_bytes())
    for content in contents:
        for size in range(len(content)):
            path.write_bytes(content[:size])
            if size > len(content) - 24 and content.endswith(b"\n"):  # text may lose digits and still be text
                with contextlib.suppress(rc.FileError):
                    rc.read_cloud(path)
            else:
                refuses(path)
