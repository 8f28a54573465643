"""make_corpus.py: writes corpus/, the malformed files that fuzzers start from and tests/python/test_corpus.py reads. A
case is a line here, in mcap_files.py or in message_files.py: its content, and a part of what a reader says of it ("":
it may say nothing). corpus/cache is written by hand. Standard library only."""

from __future__ import annotations

import struct
import sys
import zlib
from pathlib import Path

FOLDER = Path(__file__).parent / "corpus"
sys.path.append(str(Path(__file__).parents[1] / "python"))
import mcap_files  # noqa: E402
import message_files  # noqa: E402

Cases = dict[str, tuple[bytes, str]]  # by name: the file, and what is said of it

PCD = {"VERSION": "0.7", "FIELDS": "x y z", "SIZE": "4 4 4", "TYPE": "F F F", "COUNT": "1 1 1", "WIDTH": "2"}
PCD |= {"HEIGHT": "1", "VIEWPOINT": "0 0 0 1 0 0 0", "POINTS": "2", "DATA": "ascii"}


def pcd(body: bytes = b"1 2 3\n4 5 6\n", **changes: str | None) -> bytes:
    """Two points, and a header with changes; None: without that entry."""
    entries = {key: value for key, value in (PCD | changes).items() if value is not None}
    return "".join(f"{key} {value}\n" for key, value in entries.items()).encode() + body


def packed(data: bytes, size: int, compressed: int | None = None, **changes: str | None) -> bytes:
    head = struct.pack("<II", len(data) if compressed is None else compressed, size)
    return pcd(head + data, **{"DATA": "binary_compressed", **changes})


MANY, HUGE = str(1 << 40), str((1 << 63) - 1)
BOMB = b"\0\0" + b"\xe0\xff\0" * 399 + b"\xe0\xfe\0"  # 105,600 zeros: one, then copies of it, 264 by 3 bytes


def pcds() -> Cases:
    return {
        "empty": (b"", "is empty; expected PCD, PLY, NPY, or KITTI's"),
        "no_data": (pcd()[:60], 'line 6: "W" is not an entry of a PCD header'),
        "not_a_header": (b"# .PCD\n\xff\xfe\0\1\n", 'line 2: "\\xff\\xfe\\x00\\x01" is not an entry of a PCD'),
        "unknown_entry": (pcd().replace(b"HEIGHT", b"DEPTH"), 'line 7: "DEPTH" is not an entry of a PCD header'),
        "entry_twice": (pcd(HEIGHT="1\nHEIGHT 1"), "line 8: a second HEIGHT"),
        "no_fields": (pcd(FIELDS=None), "its header has no FIELDS"),
        "no_z": (pcd(FIELDS="x y w"), 'has no field "z"; expected x, y and z among "x"'),
        "field_twice": (pcd(FIELDS="x y y"), 'names the field "y" twice'),
        "many_fields": (pcd(FIELDS="x " * 1025), "has 1025 fields; at most 1024 are read"),
        "fewer_sizes": (pcd(SIZE="4 4"), "SIZE has 2 entries; FIELDS has 3"),
        "size_of_three": (pcd(SIZE="4 4 3"), 'field "z" has TYPE "F" and SIZE "3"; expected F'),
        "type_unknown": (pcd(TYPE="F F Q"), 'field "z" has TYPE "Q" and SIZE "4"; expected F'),
        "count_of_none": (pcd(COUNT="1 1 0"), 'field "z" has COUNT "0"; expected 1 or more'),
        "count_negative": (pcd(COUNT="1 1 -4"), 'field "z" has COUNT "-4"; expected 1 or more'),
        "count_huge": (pcd(COUNT=f"1 1 {HUGE}"), 'field "z" has 9223372036854775807 values a'),
        "count_of_x": (pcd(COUNT="2 1 1"), 'field "x" has 2 values a point; expected 1'),
        "width_negative": (pcd(WIDTH="-2"), 'WIDTH is "-2"; expected a whole number'),
        "width_of_text": (pcd(WIDTH="two"), 'WIDTH is "two"; expected a whole number'),
        "width_past_64_bits": (pcd(WIDTH="99999999999999999999"), 'WIDTH is "99999999999999999999"; expected a'),
        "product_past_64_bits": (pcd(WIDTH=HUGE, HEIGHT=HUGE, POINTS=None), "WIDTH 9223372036854775807 times HEIGHT"),
        "points_lie": (pcd(POINTS="3"), "POINTS is 3; WIDTH 2 times HEIGHT 1 is 2"),
        "points_past_63_bits": (pcd(WIDTH=HUGE, POINTS=HUGE), "WIDTH 9223372036854775807 times HEIGHT 1 is past"),
        "points_huge": (pcd(WIDTH=MANY, POINTS=MANY), "ends after 2 of 1099511627776 points"),
        "points_huge_binary": (
            pcd(WIDTH=MANY, POINTS=MANY, DATA="binary"),
            "ends after 1 of 1099511627776 points of 12 bytes",
        ),
        "points_huge_compressed": (
            packed(BOMB, 2**32 - 4, WIDTH=MANY, POINTS=MANY),
            "its data claims to expand to 4294967292 bytes",
        ),
        "viewpoint_short": (pcd(VIEWPOINT="0 0 0"), "VIEWPOINT has 3 numbers; expected 7: x y z and a"),
        "viewpoint_of_text": (pcd(VIEWPOINT="0 0 0 1 0 0 up"), 'VIEWPOINT holds "up"; expected a number'),
        "data_unknown": (pcd(DATA="morse"), 'DATA is "morse"; expected ascii, binary or'),
        "data_twice": (pcd(DATA="ascii binary"), 'DATA is ""; expected ascii, binary or'),
        "text_in_numbers": (pcd(b"1 2 3\n4 five 6\n"), 'line 12: field "y" is "five"; expected a number'),
        "number_past_its_type": (
            pcd(b"1 2 3\n4 5 300\n", TYPE="F F U", SIZE="4 4 1"),
            'line 12: field "z" is "300"; expected a number',
        ),
        "fraction_in_an_integer": (
            pcd(b"1 2 3\n4 5 6.5\n", TYPE="F F I"),
            'line 12: field "z" is "6.5"; expected a number',
        ),
        "exponent_huge": (pcd(b"1 2 3\n4 5 1e999999999\n"), 'line 12: field "z" is "1e999999999"; expected a'),
        "too_few_numbers": (pcd(b"1 2 3\n4 5\n"), "line 12: 2 values; expected 3"),
        "too_many_numbers": (pcd(b"1 2 3\n4 5 6 7\n"), "line 12: 4 values; expected 3"),
        "too_few_lines": (pcd(b"1 2 3\n"), "ends after 1 of 2 points"),
        "too_many_lines": (pcd(b"1 2 3\n4 5 6\n7 8 9\n"), "holds 3 lines of numbers; its header says 2"),
        "zeros_in_text": (pcd(bytes(40)), "ends after 1 of 2 points"),
        "binary_short": (pcd(bytes(23), DATA="binary"), "ends after 1 of 2 points of 12 bytes"),
        "compressed_no_sizes": (
            pcd(b"\1\2\3", DATA="binary_compressed"),
            "ends before the sizes of its compressed data",
        ),
        "compressed_short": (packed(b"\1", 24, compressed=99), "ends after 1 of 99 compressed bytes"),
        "compressed_size_lies": (packed(b"\0\1" * 24, 23), "its data claims to expand to 23 bytes, but 2 points"),
        "compressed_bomb": (packed(BOMB, 105_600), "its data claims to expand to 105600 bytes, but 2"),
        "compressed_bomb_of_points": (packed(BOMB, 105_600, WIDTH="8800", POINTS="8800"), ""),
        "compressed_impossible": (
            packed(b"\0\0", 1_200_000, WIDTH="100000", POINTS="100000"),
            "2 compressed bytes cannot hold 1200000",
        ),
        "compressed_copy_of_nothing": (packed(b"\xe0\x0d\xff", 24), "its compressed data is damaged: it does not"),
        "compressed_cut_in_literals": (packed(b"\x1f\0\0", 24), "its compressed data is damaged: it does not"),
        "compressed_cut_in_copy": (packed(b"\0\0\xe0", 24), "its compressed data is damaged: it does not"),
    }


PLY = "ply\nformat ascii 1.0\n"
XYZ = "property float x\nproperty float y\nproperty float z\n"
VERTICES = f"element vertex 2\n{XYZ}"
LITTLE, BIG = PLY.replace("ascii", "binary_little_endian"), PLY.replace("ascii", "binary_big_endian")


def ply(header: str, body: bytes = b"1 2 3\n4 5 6\n") -> bytes:
    return header.encode() + b"end_header\n" + body


def plys() -> Cases:
    lists = "element face {}\nproperty list {} int v\n"
    return {
        "empty": (b"", "is empty; expected PCD, PLY, NPY, or KITTI's"),
        "no_magic": (ply("plx\n" + VERTICES), 'is not a known cloud format: it begins with "plx\\x0aelem"'),
        "no_format": (ply("ply\n" + VERTICES), 'its format is ""; expected ascii'),
        "no_end": ((PLY + VERTICES).encode(), "ends inside its header, after line 6"),
        "format_unknown": (ply("ply\nformat morse 1.0\n" + VERTICES), 'its format is "morse"; expected ascii'),
        "version_unknown": (ply("ply\nformat ascii 2.0\n" + VERTICES), "line 2: the format's version is not 1.0"),
        "entry_unknown": (ply(PLY + "colour red\n" + VERTICES), 'line 3: "colour" is not an entry of a PLY header'),
        "no_vertices": (ply(PLY), 'has no element "vertex"'),
        "property_of_no_element": (ply(PLY + XYZ), "line 3: a property before any element"),
        "property_of_no_type": (
            ply(PLY + VERTICES + "property quad w\n"),
            'line 7: a property is of type "quad"; expected',
        ),
        "property_of_no_name": (ply(PLY + VERTICES + "property int\n"), "line 7: a property has 1 words; expected its"),
        "property_twice": (ply(PLY + VERTICES + "property float x\n"), 'names the field "x" twice'),
        "no_z": (
            ply(PLY + "element vertex 2\nproperty float x\nproperty float y\n"),
            'has no field "z"; expected x, y and z among "x"',
        ),
        "count_negative": (ply(PLY + f"element vertex -2\n{XYZ}"), "line 3: an element has a name and a count; the"),
        "count_of_text": (ply(PLY + f"element vertex two\n{XYZ}"), "line 3: an element has a name and a count; the"),
        "count_past_64_bits": (
            ply(PLY + f"element vertex 99999999999999999999\n{XYZ}"),
            "line 3: an element has a name and a count; the",
        ),
        "count_huge": (ply(PLY + f"element vertex {HUGE}\n{XYZ}"), "ends after 2 of 9223372036854775807 points"),
        "count_huge_binary": (
            ply(LITTLE + f"element vertex {HUGE}\n{XYZ}", bytes(24)),
            "ends after 2 of 9223372036854775807 points of 12",
        ),
        "element_before_huge": (
            ply(LITTLE + f"element a {HUGE}\nproperty double b\n" + VERTICES, bytes(24)),
            'ends inside its element "a"',
        ),
        "element_of_nothing_huge": (ply(LITTLE + f"element a {HUGE}\n" + VERTICES, bytes(24)), ""),
        "elements_of_nothing_huge": (ply(PLY + f"element a {HUGE}\n" + VERTICES), ""),
        "list_in_a_vertex": (
            ply(PLY + VERTICES + "property list uchar int v\n"),
            'its vertices have the list "v"; expected plain',
        ),
        "list_of_float_length": (
            ply(PLY + lists.format(1, "float") + VERTICES),
            'line 4: the length of a list is "float"',
        ),
        "list_of_negative_length": (
            ply(LITTLE + lists.format(1, "char") + VERTICES, b"\xff" + bytes(40)),
            'a list "v" has a negative length',
        ),
        "list_past_the_end": (
            ply(LITTLE + lists.format(1, "uint") + VERTICES, b"\xff" * 4 + bytes(40)),
            'ends inside its element "face"',
        ),
        "list_past_the_end_big": (
            ply(BIG + lists.format(1, "int") + VERTICES, b"\x7f" + b"\xff" * 43),
            'ends inside its element "face"',
        ),
        "lists_huge": (
            ply(LITTLE + lists.format(HUGE, "uchar") + VERTICES, bytes(40)),
            'ends inside its element "face"',
        ),
        "lists_huge_ascii": (
            ply(PLY + lists.format(HUGE, "uchar") + VERTICES, b"0\n" * 20),
            "ends after 0 of 2 points",
        ),
        "text_in_numbers": (
            ply(PLY + VERTICES, b"1 2 3\n4 five 6\n"),
            'line 9: field "y" is "five"; expected a number',
        ),
        "too_few_numbers": (ply(PLY + VERTICES, b"1 2\n4 5 6\n"), "line 8: 2 values; expected 3"),
        "too_few_lines": (ply(PLY + VERTICES, b"1 2 3\n"), "ends after 1 of 2 points"),
        "zeros_in_text": (ply(PLY + VERTICES, bytes(40)), "ends after 1 of 2 points"),
        "binary_short": (ply(LITTLE + VERTICES, bytes(23)), "ends after 1 of 2 points of 12 bytes"),
        "line_without_end": (b"ply\n" + b"comment " * 250, "ends inside its header, after line 2"),
    }


def npy(header: str, body: bytes = bytes(24), version: int = 1, length: int | None = None) -> bytes:
    size = struct.pack("<H" if version == 1 else "<I", len(header) if length is None else length)
    return b"\x93NUMPY" + bytes([version, 0]) + size + header.encode() + body


def described(descr: str = "'<f4'", shape: str = "(2, 3)", order: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}"


def npys() -> Cases:
    return {
        "only_magic": (b"\x93NUMPY", "ends inside its header"),
        "version_unknown": (npy(described(), version=9), "is NPY version 9; expected 1, 2 or 3"),
        "header_past_the_end": (npy(described(), length=65535), "ends inside its header of 65535 bytes"),
        "header_past_32_bits": (
            npy(described(), version=2, length=2**32 - 1),
            "ends inside its header of 4294967295 bytes",
        ),
        "header_not_closed": (npy("{'descr': '<f4'"), 'its header has "" where } was expected'),
        "header_of_code": (npy(described("__import__('os')")), "its header has \"__import__('os')"),
        "header_nested": (npy("{'descr': " + "[" * 500), "its header has"),
        "string_not_closed": (npy("{'descr': '<f4"), 'its header has "\'<f4" where the end of a string'),
        "no_shape": (npy("{'descr': '<f4', 'fortran_order': False}"), "its header lacks descr, fortran_order or shape"),
        "of_objects": (npy(described("'|O'")), 'its elements are of type "|O"; expected bool'),
        "of_text": (npy(described("'<U8'")), 'its elements are of type "<U8"; expected bool'),
        "of_size_huge": (npy(described("'<f99999999999'")), 'its elements are of type "<f99999999999"'),
        "shape_huge": (npy(described(shape=f"({HUGE}, 3)")), "ends after 24 bytes of data; shape"),
        "shape_past_64_bits": (
            npy(described(shape="(99999999999999999999, 3)")),
            'its header has ", 3)}" where a whole number',
        ),
        "shape_negative": (npy(described(shape="(-2, 3)")), 'its header has "-2, 3)}" where a whole number'),
        "shape_of_two_columns": (npy(described(shape="(3, 2)")), "has shape [3, 2]; expected [N, C] or [H, W, C]"),
        "shape_of_many_axes": (
            npy(described(shape="(1, 1, 1, 2, 3)")),
            "has shape [1, 1, 1, 2, 3]; expected [N, C] or",
        ),
        "fewer_points": (npy(described(), bytes(23)), "ends after 23 bytes of data; shape [2, 3] needs"),
        "fields_twice": (npy(described("[('x', '<f4'), ('x', '<f4')]", "(2,)")), 'names the field "x" twice'),
        "fields_in_fields": (
            npy(described("[('x', [('y', '<f4')])]", "(2,)")),
            'field "x" has fields of its own; expected',
        ),
        "field_of_shape_huge": (
            npy(described(f"[('x', '<f4', ({HUGE}, {HUGE}))]", "(2,)")),
            "ends after 24 bytes of data; shape [2] needs",
        ),
    }


def kittis() -> Cases:
    return {
        "no_whole_point.bin": (struct.pack("<6f", *range(6)), "has 24 bytes; expected points of 4 float32, 16"),
        "not_finite.bin": (b"\xff" * 32, ""),
    }


def stored(data: bytes) -> bytes:
    """As zlib does without compressing, which is the same from every zlib."""
    head = b"\x78\x01\x01" + struct.pack("<HH", len(data), len(data) ^ 0xFFFF)
    return head + data + struct.pack(">I", zlib.adler32(data))


def chunk(kind: bytes, data: bytes, length: int | None = None, crc: int | None = None) -> bytes:
    checked = zlib.crc32(kind + data) if crc is None else crc
    return struct.pack(">I", len(data) if length is None else length) + kind + data + struct.pack(">I", checked)


def png(*chunks: bytes, width: int = 2, height: int = 2, bits: int = 16, colour: int = 0, interlace: int = 0) -> bytes:
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, interlace))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(chunks)


def pngs() -> Cases:
    pixels, end = stored(bytes(10)), chunk(b"IEND", b"")
    data = chunk(b"IDAT", pixels)
    return {
        "only_magic": (png()[:8], "ends before its last chunk"),
        "no_header": (png()[:8] + data + end, "its header chunk IHDR must come first, once, and have 13 bytes"),
        "no_pixels": (png(end), "its 0 bytes of data cannot hold 2 by 2 pixels"),
        "cut": (png(data)[:-6], 'ends inside its chunk "IDAT" of 21 bytes'),
        "chunk_past_the_end": (
            png(chunk(b"IDAT", pixels, length=2**31 - 1)),
            'ends inside its chunk "IDAT" of 2147483647 bytes',
        ),
        "header_crc": (png()[:-1] + b"\0" + data + end, 'its chunk "IHDR" is damaged: the checksum'),
        "pixels_crc": (png(chunk(b"IDAT", pixels, crc=1), end), 'its chunk "IDAT" is damaged: the checksum'),
        "pixels_damaged": (png(chunk(b"IDAT", b"no zlib at all"), end), "its data is damaged: incorrect header check"),
        "pixels_missing": (png(chunk(b"IDAT", stored(bytes(9))), end), "its data ends in row 1 of 2"),
        "pixels_of_more": (png(chunk(b"IDAT", stored(bytes(999))), end), ""),
        "filter_unknown": (png(chunk(b"IDAT", stored(b"\7" * 10)), end), "row 0 has filter 7; expected 0 to 4"),
        "size_huge": (
            png(data, end, width=2**31 - 1, height=2**31 - 1),
            "its 21 bytes of data cannot hold 2147483647 by",
        ),
        "size_past_31_bits": (png(data, end, width=2**32 - 1), "has 2 by 4294967295 pixels; expected 1 to"),
        "size_of_none": (png(data, end, width=0), "has 2 by 0 pixels; expected 1 to 2147483647 each"),
        "of_8_bits": (png(data, end, bits=8), "has 8 bits a channel and PNG colour type 0"),
        "of_colours": (png(data, end, colour=2), "has 16 bits a channel and PNG colour type 2"),
        "interlaced": (png(data, end, interlace=1), "is interlaced; expected rows in order"),
    }


def corpus() -> dict[str, Cases]:
    """By fuzz target."""
    mcap = {name: (content, sentence) for name, (content, _, sentence) in mcap_files.malformed().items()}
    return {
        "mcap": mcap,
        **message_files.malformed(),
        "pcd": pcds(),
        "ply": plys(),
        "npy": npys(),
        "kitti": kittis(),
        "png": pngs(),
    }


def main() -> None:
    for target, cases in corpus().items():
        folder = FOLDER / target
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            if old.name not in cases:
                old.unlink()
        for name, (content, _) in cases.items():
            (folder / name).write_bytes(content)


if __name__ == "__main__":
    main()
