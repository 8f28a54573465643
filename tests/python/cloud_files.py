"""Cloud and depth files, written and parsed with NumPy alone: what the readers are compared with."""

from __future__ import annotations

import struct
import zlib

import numpy as np

PCD_TYPES = {"F": "f", "I": "i", "U": "u"}


def pcd_header(fields, points, data, *, width=None, height=1, viewpoint="0 0 0 1 0 0 0") -> bytes:
    """`fields`: (name, TYPE, SIZE, COUNT) each."""
    names, types, sizes, counts = zip(*fields, strict=True)
    lines = ["# .PCD v0.7 - Point Cloud Data file format", "VERSION 0.7"]
    for key, words in (("FIELDS", names), ("SIZE", sizes), ("TYPE", types), ("COUNT", counts)):
        lines.append(" ".join([key, *map(str, words)]))
    lines += [f"WIDTH {points if width is None else width}", f"HEIGHT {height}", f"VIEWPOINT {viewpoint}"]
    lines += [f"POINTS {points}", f"DATA {data}"]
    return ("\n".join(lines) + "\n").encode()


def record_dtype(fields) -> np.dtype:
    return np.dtype(
        [(name, f"<{PCD_TYPES[t]}{size}", () if count == 1 else (count,)) for name, t, size, count in fields]
    )


def text_of(records) -> str:
    """A line per record; repr gives the shortest text that reads back as the same number."""
    lines = []
    for record in records:
        values = np.concatenate([np.ravel(record[name]).astype(object) for name in records.dtype.names])
        lines.append(" ".join(str(value) for value in values))
    return "\n".join(lines) + "\n"


def write_pcd(path, fields, records, data, **header) -> None:
    if data == "ascii":
        body = text_of(records).encode()
    elif data == "binary":
        body = records.tobytes()
    else:
        columns = b"".join(np.ascontiguousarray(records[name]).tobytes() for name in records.dtype.names)
        packed = lzf_compress(columns)
        body = struct.pack("<II", len(packed), len(columns)) + packed
    path.write_bytes(pcd_header(fields, len(records), data, **header) + body)


def lzf_compress(data: bytes) -> bytes:
    """Simple, and it uses every kind of token: literals, short and long copies, copies that overlap themselves."""
    out, literals, seen, at = bytearray(), bytearray(), {}, 0

    def flush():
        for k in range(0, len(literals), 32):
            out.extend([len(literals[k : k + 32]) - 1, *literals[k : k + 32]])
        literals.clear()

    while at < len(data):
        key = data[at : at + 3]
        before = seen.get(key, -1)
        seen[key] = at
        length = 0
        if before >= 0 and at - before <= 8192:
            while length < 264 and at + length < len(data) and data[before + length] == data[at + length]:
                length += 1
        if length < 3:
            literals.append(data[at])
            at += 1
            continue
        flush()
        distance = at - before - 1
        short = min(length - 2, 7)
        out.append(short << 5 | distance >> 8)
        if short == 7:
            out.append(length - 2 - 7)
        out.append(distance & 255)
        at += length
    flush()
    return bytes(out)


def lzf_expand(data: bytes) -> bytes:
    out, at = bytearray(), 0
    while at < len(data):
        control = data[at]
        at += 1
        if control < 32:
            out += data[at : at + control + 1]
            at += control + 1
            continue
        length = control >> 5
        if length == 7:
            length += data[at]
            at += 1
        distance = ((control & 31) << 8 | data[at]) + 1
        at += 1
        start = len(out) - distance
        piece = out[start : start + length + 2]
        out += (piece * (1 + (length + 2) // max(len(piece), 1)))[: length + 2]
    return bytes(out)


def parse_pcd(path) -> tuple[dict[str, np.ndarray], dict[str, list[str]]]:
    """Columns by name, and the header's entries."""
    content = path.read_bytes()
    head, _, rest = content.partition(b"\nDATA ")
    data, _, body = rest.partition(b"\n")
    entries = {line.split()[0]: line.split()[1:] for line in head.decode().splitlines() if not line.startswith("#")}
    fields = list(
        zip(entries["FIELDS"], entries["TYPE"], map(int, entries["SIZE"]), map(int, entries["COUNT"]), strict=True)
    )
    points, dtype = int(entries["POINTS"][0]), record_dtype(fields)
    if data == b"ascii":
        table = np.array(body.split(), np.float64).reshape(points, -1)
        return {name: table[:, k].astype(dtype[name]) for k, name in enumerate(dtype.names)}, entries
    if data == b"binary":
        records = np.frombuffer(body, dtype, points)
        return {name: records[name] for name in dtype.names}, entries
    packed, size = struct.unpack_from("<II", body)
    columns, at, result = lzf_expand(body[8 : 8 + packed]), 0, {}
    assert len(columns) == size
    for name in dtype.names:
        result[name] = np.frombuffer(columns, dtype[name], points, at)
        at += points * dtype[name].itemsize
    return result, entries


PLY_NAMES = {"i1": "char", "u1": "uchar", "i2": "short", "u2": "ushort", "i4": "int", "u4": "uint"}
PLY_NAMES |= {"f4": "float", "f8": "double"}


def ply_header(records, form, *, before="", after="") -> bytes:
    lines = ["ply", f"format {form} 1.0", "comment made by a test", *before.splitlines()]
    lines.append(f"element vertex {len(records)}")
    lines += [f"property {PLY_NAMES[records.dtype[name].str[1:]]} {name}" for name in records.dtype.names]
    return "\n".join([*lines, *after.splitlines(), "end_header\n"]).encode()


def png(values, filters=(0,), *, bits=16, colour=0, interlace=0, parts=1, extra=b"") -> bytes:
    """Rows use `filters` in turn."""
    height, width = values.shape
    rows = np.zeros((height + 1, 2 * width + 2), np.int64)
    rows[1:, 2:] = values.astype(">u2").view(np.uint8).reshape(height, -1)
    raw = bytearray()
    for y in range(height):
        row, above, kind = rows[y + 1], rows[y], filters[y % len(filters)]
        left, up, corner = row[:-2], above[2:], above[:-2]
        guess = left + up - corner
        a, b, c = abs(guess - left), abs(guess - up), abs(guess - corner)
        paeth = np.where((a <= b) & (a <= c), left, np.where(b <= c, up, corner))
        prediction = [np.zeros_like(left), left, up, (left + up) // 2, paeth][kind]
        raw += bytes([kind]) + ((row[2:] - prediction) % 256).astype(np.uint8).tobytes()
    data = zlib.compress(bytes(raw))
    step = max(1, -(-len(data) // parts))
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, interlace)
    content = b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + extra
    content += b"".join(png_chunk(b"IDAT", data[k : k + step]) for k in range(0, len(data), step))
    return content + png_chunk(b"IEND", b"")


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def parse_png(content: bytes) -> np.ndarray:
    """16-bit grayscale; pixel by pixel where a row is filtered."""
    at, data, width, height = 8, b"", 0, 0
    while at < len(content):
        (length,) = struct.unpack_from(">I", content, at)
        kind, chunk = content[at + 4 : at + 8], content[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height = struct.unpack_from(">II", chunk)
        elif kind == b"IDAT":
            data += chunk
        at += 12 + length
    raw = zlib.decompress(data)
    above, rows = [0] * (2 * width), []
    for y in range(height):
        start = y * (2 * width + 1)
        kind, row = raw[start], list(raw[start + 1 : start + 1 + 2 * width])
        for k in range(2 * width):
            left = row[k - 2] if k >= 2 else 0
            corner = above[k - 2] if k >= 2 else 0
            guess = left + above[k] - corner
            nearest = min((left, above[k], corner), key=lambda v: abs(guess - v))  # the first of equals, as PNG says
            row[k] = (row[k] + [0, left, above[k], (left + above[k]) // 2, nearest][kind]) % 256
        above = row
        rows.append(bytes(row))
    return np.frombuffer(b"".join(rows), ">u2").reshape(height, width).astype(np.uint16)
