"""seeds.py FOLDER FUZZER...: small valid files to start the fuzzers from, a folder per format; standard library only.

What FOLDER held is removed. Each fuzzer gets an empty folder found/FUZZER for the inputs that it finds, so each run
starts from the same files.
"""

import json
import pathlib
import shutil
import struct
import sys
import zlib

folder = pathlib.Path(sys.argv[1])
shutil.rmtree(folder, ignore_errors=True)
for fuzzer in sys.argv[2:]:
    (folder / "found" / fuzzer).mkdir(parents=True)


def write(form: str, name: str, content: bytes) -> None:
    (folder / form).mkdir(parents=True, exist_ok=True)
    (folder / form / name).write_bytes(content)


# PCD: two points of every type
TYPES = [("F", 4, "f"), ("F", 8, "d"), ("I", 1, "b"), ("I", 2, "h"), ("I", 4, "i"), ("I", 8, "q")]
TYPES += [("U", 1, "B"), ("U", 2, "H"), ("U", 4, "I"), ("U", 8, "Q")]
fields = [(name, *TYPES[0], 1) for name in "xyz"] + [(f"f{k}", *kind, 1) for k, kind in enumerate(TYPES)]
fields += [("rgba", *TYPES[8], 1), ("_", *TYPES[6], 3), ("normal", *TYPES[0], 3)]
head = "# .PCD v0.7\nVERSION 0.7\nFIELDS {}\nTYPE {}\nSIZE {}\nCOUNT {}\nWIDTH 1\nHEIGHT 2\nVIEWPOINT 0 0 0 1 0 0 0\n"
head = head.format(*(" ".join(str(field[k]) for field in fields) for k in (0, 1, 2, 4))) + "POINTS 2\nDATA "
count = sum(field[4] for field in fields)
layout = "<" + "".join(field[3] * field[4] for field in fields)
columns = "<" + "".join(field[3] * field[4] * 2 for field in fields)
text = " ".join(["1"] * count) + "\n" + " ".join(["2"] * count) + "\n"
write("pcd", "ascii", (head + "ascii\n" + text).encode())
write("pcd", "binary", (head + "binary\n").encode() + struct.pack(layout, *[1] * count) * 2)
raw = struct.pack(columns, *[1] * 2 * count)
packed = b"".join(bytes([len(raw[k : k + 32]) - 1]) + raw[k : k + 32] for k in range(0, len(raw), 32))
write("pcd", "literals", (head + "binary_compressed\n").encode() + struct.pack("<II", len(packed), len(raw)) + packed)
small = head.split("FIELDS")[0] + "FIELDS x y z\nTYPE U U U\nSIZE 1 1 1\nWIDTH 9\nPOINTS 9\nDATA binary_compressed\n"
write("pcd", "copies", small.encode() + struct.pack("<II", 9, 27) + b"\x00\x07\xa0\x00\xa0\x00\xe0\x03\x05")

# PLY: a face, two vertices of every type, an edge
kinds = {"char": "b", "uchar": "B", "short": "h", "ushort": "H", "int": "i", "uint": "I", "float": "f", "double": "d"}
head = "ply\nformat {} 1.0\ncomment c\nelement face 1\nproperty list uchar int vertices\nelement vertex 2\n"
head += "".join(f"property float {name}\n" for name in "xyz") + "".join(f"property {kind} p_{kind}\n" for kind in kinds)
head += "element edge 1\nproperty int a\nend_header\n"
text = "2 0 1\n" + (" ".join(["3"] * 11) + "\n") * 2 + "7\n"
write("ply", "ascii", (head.format("ascii") + text).encode())
for name, order in (("binary_little_endian", "<"), ("binary_big_endian", ">")):
    body = struct.pack(order + "Bii", 2, 0, 1)
    body += struct.pack(order + "fff" + "".join(kinds.values()), *[3] * 11) * 2 + struct.pack(order + "i", 7)
    write("ply", name, head.format(name).encode() + body)

# NPY
structure = "[('x', '<f4'), ('y', '>f4'), ('', '|V2'), ('z', '<f2'), ('ok', '|b1'), ('rgb', '|u1', (3,))]"
for name, descr, order, shape, size in (
    ("plain", "'<f4'", False, "(2, 4)", 32),
    ("fortran", "'>f8'", True, "(2, 4)", 64),
    ("organised", "'|i1'", False, "(2, 2, 3)", 12),
    ("structured", structure, False, "(2,)", 32),
):
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    write("npy", name, b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(range(size)))
    write("npy", name + "2", b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text)) + text + bytes(range(size)))

write("kitti", "points", struct.pack("<8f", *range(8)))


# PNG: a row of each filter
def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


for name, level in (("stored", 0), ("deflated", 9)):
    data = zlib.compress(b"".join(bytes([kind, *range(8)]) for kind in range(5)), level)
    content = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 5, 16, 0, 0, 0, 0))
    write("png", name, content + chunk(b"IDAT", data[:9]) + chunk(b"IDAT", data[9:]) + chunk(b"IEND", b""))

# MCAP
sys.path.append(str(pathlib.Path(__file__).parents[1] / "python"))
import mcap_files  # noqa: E402
import message_files  # noqa: E402

for name, content in mcap_files.valid().items():
    write("mcap", name, content)

# Schemas and messages
for target, files in message_files.valid().items():
    for name, content in files.items():
        write(target, name, content)


# Recordings: each schema with its messages as a topic of an MCAP file, one file for each and one of all
def recording(named: dict[str, tuple[str, bytes]]) -> bytes:
    """`named`: by topic, the target ("ros2" or "json") and what its fuzzer reads."""
    declared, logged = b"", b""
    for id, (target, content) in enumerate(named.values(), 1):
        kind, text, name = "", b"", b"s"
        if target == "ros2":
            head, content = content[: content.index(b"\0", 1)], content[content.index(b"\0", 1) + 1 :]
            name, _, text = head[1:].partition(b"\n")
            kind = "ros2idl" if head[0] & 1 else "ros2msg"
        body = mcap_files.text(name) + mcap_files.text(kind) + mcap_files.text(text)
        declared += mcap_files.record(mcap_files.SCHEMA, struct.pack("<H", id) + body)
        about = mcap_files.text(f"/{id}") + mcap_files.text("cdr" if target == "ros2" else "json")
        about = struct.pack("<HH", id, id) + about + mcap_files.mapping({})
        declared += mcap_files.record(mcap_files.CHANNEL, about)
        at = 0
        while at < len(content):
            size = int.from_bytes(content[at : at + 2], "little")
            logged += mcap_files.message(10**9 + at, content[at + 2 : at + 2 + size], id)
            at += 2 + size
    return mcap_files.finish(mcap_files.chunk(declared + logged), crc=False)


topics = {
    f"{target} {name}": (target, c) for target, files in message_files.valid().items() for name, c in files.items()
}
for topic, content in topics.items():
    write("recording", topic, recording({topic: content}))
write("recording", "all", recording(topics))


def clocks(ticks: bool) -> bytes:
    """Two streams of simulated time at half its pace, one on a clock of its own, and a reset; with /clock or not."""
    time = b"builtin_interfaces/Time clock\n===\nMSG: builtin_interfaces/Time\nint32 sec\nuint32 nanosec"
    schemas = [(b"s", b"", b""), (b"rosgraph_msgs/msg/Clock", b"ros2msg", time)]
    declared, logged = b"", b""
    for id, schema in enumerate(schemas, 1):
        body = b"".join(map(mcap_files.text, schema))
        declared += mcap_files.record(mcap_files.SCHEMA, struct.pack("<H", id) + body)
    for id, (topic, schema) in enumerate([("/a", 1), ("/b", 1), ("/c", 1), ("/clock", 2)], 1):
        about = mcap_files.text(topic) + mcap_files.text("json" if schema == 1 else "cdr") + mcap_files.mapping({})
        declared += mcap_files.record(mcap_files.CHANNEL, struct.pack("<HH", id, schema) + about)
    for k in range(12):
        log, simulated = 10**18 + k * 2 * 10**9, k % 6 + 1
        for id, stamp in ((1, simulated), (2, simulated), (3, 2 * k + 5000)):
            logged += mcap_files.message(log, b'{"x":1,"stamp":%d.5}' % stamp, id)
        if ticks:
            logged += mcap_files.message(log, b"\0\1\0\0" + struct.pack("<iI", simulated, 0), 4)
    return mcap_files.finish(mcap_files.chunk(declared + logged), crc=False)


write("recording", "clocks", clocks(False))
write("recording", "clocks with ticks", clocks(True))


# The cache: a manifest of two streams, and a shard of each
def described(dtype: str, shape: list[int], ragged: bool) -> dict:
    channels = ["a", "b"] if shape == [2] else []
    about = {"name": f"/{dtype}", "type": "t", "dtype": dtype, "shape": shape, "channels": channels}
    return {
        **about,
        "method": [["hold", 0, 1]],
        "ragged": ragged,
        "metadata": {"k": "varies"},
        "variants": [{"k": "v"}, {"k": "w"}],
    }


source = {"path": "/run", "size": 3, "mtime": 5, "hash": "00", "options": "", "complete": True}
streams = [described("float32", [2], False), described("uint8", [], True)]
tensors = [[("values", "F32", [2, 2])], [("values", "U8", [3]), ("padding", "U8", [5])]]
for some in tensors:
    some += [("times", "I64", [2]), ("arrivals", "I64", [2]), ("offsets", "I64", [3])]
tensors[1].append(("inner", "I64", [3]))
episode = {"name": "e", "task": "", "source": 0, "number": 0, "group": 0, "row": 0, "start": 1, "end": 2}
episode |= {"samples": {"/float32": 2, "/uint8": 2}, "backward": {"/uint8": 1}, "latency": {"/float32": -5}}
other = episode | {"name": "f", "number": 1, "row": 1, "samples": {"/uint8": 0}, "backward": {}, "latency": {}}
episodes = [episode, other | {"metadata": {"/uint8": 1}}]  # a shard says that of its own stream alone
shards = []
for stream, some in zip(streams, tensors, strict=True):
    size = {"F32": 4, "U8": 1, "I64": 8}
    header, at = {}, 0
    for name, kind, shape in some:
        end = at + size[kind] * (shape[0] * (shape[1] if len(shape) > 1 else 1))
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, end]}
        at = end
    shard = {"file": f"000000{stream['name'].replace('/', '-')}.safetensors", "stream": stream["name"], "group": 0}
    shard |= {"bytes": at, "episodes": 2, "samples": 2, "rows": 3 if stream["ragged"] else 2}
    shard |= {"channels": 1 if stream["ragged"] else 2, "xxh3": {"values": "00"}}
    said = {"format": "robocache", "version": 1, "streams": [stream], "sources": [source], "shards": [shard]}
    known = episodes if stream["ragged"] else [episode, other]
    text = json.dumps({"__metadata__": {"robocache": json.dumps({**said, "episodes": known})}, **header}).encode()
    text += b" " * (-len(text) % 8)
    write("cache", stream["dtype"], struct.pack("<Q", len(text)) + text + bytes(at))
    shards.append(shard)
document = {"format": "robocache", "version": 1, "next_group": 1, "streams": streams, "sources": [source]}
write("cache", "manifest", json.dumps({**document, "shards": shards, "episodes": episodes}).encode())
write("cache", "empty", json.dumps({**document, "streams": [], "shards": [], "episodes": []}).encode())

# A whole cache, which the target makes itself: a changed byte of each file, a cut, another content
for file in range(6):
    write("cache_files", f"changed {file}", bytes([file, 1, 0, 40 * file, 1]))
    write("cache_files", f"cut {file}", bytes([file, 1, 200]))
    write("cache_files-large", f"replaced {file}", bytes([file, 0]) + b"{}")

# Large ones: many times the small ones, up to 1 MiB
write(
    "pcd-large",
    "ascii",
    (small.split("WIDTH")[0] + "WIDTH 90000\nPOINTS 90000\nDATA ascii\n" + "1 2 3\n" * 90000).encode(),
)
head = "ply\nformat binary_little_endian 1.0\nelement vertex 60000\n"
head += "".join(f"property float {name}\n" for name in "xyz") + "end_header\n"
write("ply-large", "binary", head.encode() + struct.pack("<fff", 1, 2, 3) * 60000)
text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (60000, 4), }"
write("npy-large", "plain", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(960000))
write("kitti-large", "points", bytes(960000))
pixels = chunk(b"IDAT", zlib.compress(bytes(2 * 4096 + 1) * 4096))
head = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 4096, 4096, 16, 0, 0, 0, 0))
write("png-large", "zeros", head + pixels + chunk(b"IEND", b""))
many = [mcap_files.message(k, bytes(20)) for k in range(8000)]
chunks = [mcap_files.chunk(b"".join(many[k : k + 500]), (k, k + 499), "lz4") for k in range(0, len(many), 500)]
write(
    "mcap-large", "chunks", mcap_files.finish(mcap_files.schema() + mcap_files.channel() + b"".join(chunks), crc=False)
)
for target, files in message_files.valid().items():
    for name, content in files.items():
        head = content.index(b"\0", 1) + 1 if target == "ros2" else 0
        write(f"{target}-large", name, content[:head] + content[head:] * (500_000 // max(len(content) - head, 1000)))
        of_many = content[:head] + content[head:] * (300_000 // max(len(content) - head, 1000))
        write("recording-large", f"{target} {name}", recording({"/": (target, of_many)}))
crowd = [episode | {"name": f"e{k}", "number": k, "group": k, "samples": {"/float32": 2}} for k in range(2000)]
crowd = [{**one, "backward": {}, "latency": {}} for one in crowd]
held = [shards[0] | {"group": k, "file": f"{k:06d}-float32.safetensors", "episodes": 1} for k in range(2000)]
write(
    "cache-large", "manifest", json.dumps({**document, "next_group": 2000, "shards": held, "episodes": crowd}).encode()
)
