"""MCAP files byte by byte, whole and malformed, with the standard library alone: for tests, and for fuzzers."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping

MAGIC = b"\x89MCAP0\r\n"
HEADER, FOOTER, SCHEMA, CHANNEL, MESSAGE, CHUNK, MESSAGE_INDEX, CHUNK_INDEX = range(1, 9)
ATTACHMENT, ATTACHMENT_INDEX, STATISTICS, METADATA, METADATA_INDEX, SUMMARY_OFFSET, DATA_END = range(9, 16)


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<I", len(data)) + data


def mapping(entries: Mapping[str, str]) -> bytes:
    return text(b"".join(text(key) + text(value) for key, value in entries.items()))


def record(opcode: int, body: bytes, length: int | None = None) -> bytes:
    return struct.pack("<BQ", opcode, len(body) if length is None else length) + body


def header() -> bytes:
    return record(HEADER, text("") + text("test"))


def schema(id: int = 1, name: str = "demo/Text") -> bytes:
    return record(SCHEMA, struct.pack("<H", id) + text(name) + text("text") + text("any"))


def channel(id: int = 1, schema_id: int = 1, topic: str = "/a") -> bytes:
    return record(CHANNEL, struct.pack("<HH", id, schema_id) + text(topic) + text("text") + mapping({"k": "v"}))


def message(time: int, data: bytes = b"data", id: int = 1, sequence: int = 0) -> bytes:
    return record(MESSAGE, struct.pack("<HIQQ", id, sequence, time, time) + data)


def zstd_frame(data: bytes) -> bytes:
    """One block that is not compressed."""
    head = b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", len(data))
    return head + struct.pack("<I", 1 | len(data) << 3)[:3] + data


def zstd_zeros(count: int) -> bytes:
    """`count` times 128 KiB of zeros, 4 bytes each."""
    head = b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", count << 17)
    blocks = [struct.pack("<I", (k + 1 == count) | 1 << 1 | 1 << 20)[:3] + b"\0" for k in range(count)]
    return head + b"".join(blocks)


def lz4_frame(data: bytes) -> bytes:
    """One block that is not compressed."""
    return b"\x04\x22\x4d\x18\x60\x40\x82" + struct.pack("<I", len(data) | 1 << 31) + data + bytes(4)


def lz4_zeros(count: int) -> bytes:
    """`count` times 64 KiB of zeros, 273 bytes each: a literal, and a match of all the rest."""
    rest = (1 << 16) - 1 - 4 - 15 - 5  # the last 5 bytes of a block are literals
    block = b"\x1f\0\1\0" + b"\xff" * (rest // 255) + bytes([rest % 255]) + b"\x50" + bytes(5)
    return b"\x04\x22\x4d\x18\x60\x40\x82" + count * (struct.pack("<I", len(block)) + block) + bytes(4)


PACK = {"": bytes, "zstd": zstd_frame, "lz4": lz4_frame}


def chunk(
    records: bytes,
    times: tuple[int, int] = (0, 0),
    compression: str = "",
    packed: bytes | None = None,
    size: int | None = None,
    crc: int | None = None,
    label: str | None = None,
) -> bytes:
    packed = PACK[compression](records) if packed is None else packed
    crc = zlib.crc32(records) if crc is None else crc
    body = struct.pack("<QQQI", *times, len(records) if size is None else size, crc)
    body += text(compression if label is None else label)
    return record(CHUNK, body + struct.pack("<Q", len(packed)) + packed)


def message_index(times: list[int], id: int = 1) -> bytes:
    entries = b"".join(struct.pack("<QQ", time, 0) for time in times)
    return record(MESSAGE_INDEX, struct.pack("<H", id) + text(entries))


def chunk_index(start: int, length: int, times: tuple[int, int], compression: str = "", indexes: int = 0) -> bytes:
    offsets = text(struct.pack("<HQ", 1, start + length) if indexes else b"")
    body = struct.pack("<QQQQ", *times, start, length) + offsets + struct.pack("<Q", indexes)
    return record(CHUNK_INDEX, body + text(compression) + struct.pack("<QQ", 0, 0))


def statistics(messages: int = 2, chunks: int = 1) -> bytes:
    counts = text(struct.pack("<HQ", 1, messages))
    return record(STATISTICS, struct.pack("<QHIIIIQQ", messages, 1, 1, 0, 0, chunks, 1, 2) + counts)


def attachment(crc: int | None = None) -> bytes:
    body = struct.pack("<QQ", 1, 2) + text("notes") + text("text/plain") + struct.pack("<Q", 5) + b"notes"
    return record(ATTACHMENT, body + struct.pack("<I", zlib.crc32(body) if crc is None else crc))


def metadata() -> bytes:
    return record(METADATA, text("robot") + mapping({"name": "arm 7"}))


def finish(data: bytes, summary: bytes = b"", crc: bool = True) -> bytes:
    """A whole file of these records: DataEnd, the summary, the footer."""
    data = MAGIC + header() + data
    data += record(DATA_END, struct.pack("<I", zlib.crc32(data) if crc else 0))
    footer = struct.pack("<BQQQ", FOOTER, 20, len(data) if summary else 0, 0)
    return data + summary + footer + struct.pack("<I", zlib.crc32(summary + footer) if crc else 0) + MAGIC


TWO = schema() + channel() + message(1) + message(2, sequence=1)  # the records of a small file
START = len(MAGIC + header())  # of its data section


def indexed(compression: str = "", crc: bool = True) -> bytes:
    """A chunk, its index, a summary."""
    first, index = chunk(TWO, (1, 2), compression), message_index([1, 2])
    entry = chunk_index(START, len(first), (1, 2), compression, len(index))
    return finish(first + index, schema() + channel() + statistics() + entry, crc)


def valid() -> dict[str, bytes]:
    """Files of the messages 1 and 2 on /a, and nothing wrong with them."""
    files = {f"indexed_{name or 'none'}": indexed(name) for name in PACK}
    files |= {f"chunk_{name or 'none'}": finish(chunk(TWO, (1, 2), name)) for name in PACK}
    files["plain"] = finish(TWO)
    files["all_records"] = finish(attachment() + metadata() + chunk(TWO, (1, 2)) + message_index([1, 2]))
    files["two_chunks"] = finish(
        chunk(schema() + channel() + message(2, sequence=1), (2, 2)) + chunk(message(1), (1, 1))
    )
    files["unknown_records"] = finish(record(0x80, b"new") + TWO + record(0x7F, b""))
    files["unknown_in_chunk"] = finish(chunk(record(0x80, b"new") + TWO))
    return files


def malformed() -> dict[str, tuple[bytes, int, str]]:
    """Files with something wrong: how many messages a reader finds all the same, and a part of what it says."""
    whole = finish(chunk(TWO, (1, 2)))
    far = (1 << 64) - 1
    long = struct.pack("<I", (1 << 32) - 1)  # of a string that is not there
    ids = struct.pack("<HH", 1, 1)
    summary = schema() + channel() + statistics()
    footer = struct.pack("<QQI", START, 0, 0)
    return {
        "cut_in_header": (whole[:15], 0, "the last 7 bytes are lost"),
        "cut_in_record_head": (MAGIC + header() + TWO + b"\5\0\0", 2, "the last 3 bytes are lost"),
        "cut_in_footer": (whole[:-20], 2, "is a Footer of 20 bytes, cut off"),
        "header_string_past_record": (
            MAGIC + record(HEADER, long) + whole[START:],
            2,
            "does not begin with a Header record",
        ),
        "schema_name_past_record": (
            finish(record(SCHEMA, ids[:2] + long) + channel(1, 0) + message(1)),
            1,
            "a Schema ends inside a field",
        ),
        "topic_past_record": (
            finish(record(CHANNEL, ids + long + b"/a") + message(1)),
            0,
            "a Channel ends inside a field",
        ),
        "map_past_record": (
            finish(record(CHANNEL, ids + text("/a") + text("text") + long) + message(1)),
            0,
            "a Channel ends inside a field",
        ),
        "map_entry_past_map": (
            finish(record(CHANNEL, ids + text("/a") + text("text") + text(long)) + message(1)),
            0,
            "a Channel ends inside a field",
        ),
        "channel_without_schema": (finish(channel(1, 7) + message(1)), 1, ""),
        "second_header": (finish(header() + TWO), 2, ""),
        "second_data_end": (finish(chunk(TWO) + record(DATA_END, bytes(4)) + chunk(message(3))), 2, ""),
        "footer_too_long": (
            whole[:-37] + record(FOOTER, bytes(20), far) + MAGIC,
            2,
            "a Footer of 18446744073709551615 bytes",
        ),
        "footer_too_short": (whole[:-37] + record(FOOTER, bytes(3)) + MAGIC, 2, ""),
        "chunk_too_short": (finish(TWO + record(CHUNK, bytes(20))), 2, "its Chunk at byte 179 ends inside a field"),
        "chunk_of_less_than_it_says": (
            finish(TWO + record(CHUNK, chunk(TWO)[9:-50])),
            2,
            "its Chunk at byte 179 ends inside a field",
        ),
        "chunk_of_nothing": (finish(chunk(b"") + TWO), 2, ""),
        "chunk_times_backward": (finish(chunk(TWO, (9, 1))), 2, ""),
        "chunk_times_lie": (finish(chunk(TWO, (5, 6)), summary + chunk_index(START, len(chunk(TWO)), (5, 6))), 2, ""),
        "zstd_of_a_huge_window": (
            finish(chunk(TWO, compression="zstd", packed=b"\x28\xb5\x2f\xfd\0\xa8\1\0\0")),
            0,
            "unpacks to 0 bytes and says 150",
        ),
        "lz4_bomb": (
            finish(chunk(b"has a record of type 0", compression="lz4", packed=lz4_zeros(4), size=4 << 16, crc=0)),
            0,
            "",
        ),
        "lz4_of_more_than_it_says": (
            finish(chunk(TWO, compression="lz4", packed=lz4_zeros(1))),
            0,
            "unpacks to more than the 150 bytes",
        ),
        "summary_is_the_data": (MAGIC + header() + TWO + record(FOOTER, footer) + MAGIC, 2, ""),
        "summary_of_messages": (finish(TWO, schema() + channel() + message(3)), 2, ""),
        "summary_offset_at_itself": (
            finish(TWO, summary + record(SUMMARY_OFFSET, struct.pack("<BQQ", SUMMARY_OFFSET, START, far))),
            2,
            "",
        ),
        "statistics_lie": (finish(chunk(TWO), schema() + channel() + statistics(99, 7)), 2, ""),
        "index_at_the_footer": (
            finish(chunk(TWO), summary + chunk_index(len(whole) - 37, 29, (1, 2))),
            2,
            "point outside its data",
        ),
        "index_at_itself": (
            finish(chunk(TWO), summary + chunk_index(len(whole) + 160, 90, (1, 2))),
            2,
            "point outside its data",
        ),
        "index_of_other_length": (finish(chunk(TWO), summary + chunk_index(START, 20, (1, 2))), 2, ""),
        "message_index_outside": (
            finish(chunk(TWO), summary + chunk_index(START, len(chunk(TWO)), (1, 2), indexes=1 << 40)),
            2,
            "point outside its data",
        ),
        "message_index_of_other_times": (finish(chunk(TWO, (1, 2)) + message_index([7] * 5, 9)), 2, ""),
        "attachment_past_record": (
            finish(TWO + record(ATTACHMENT, bytes(16) + text("a") + text("b") + bytes(7))),
            2,
            "its Attachment at byte 179 ends inside a field",
        ),
        "attachment_index_outside": (
            finish(
                TWO, summary + record(ATTACHMENT_INDEX, struct.pack("<QQQQQ", far, 9, 1, 1, 5) + text("a") + text("b"))
            ),
            2,
            "",
        ),
        "metadata_index_at_itself": (
            finish(TWO, summary + record(METADATA_INDEX, struct.pack("<QQ", len(whole), 30) + text("robot"))),
            2,
            "",
        ),
        "cut_in_chunk": (whole[: START + 50], 0, f"its record at byte {START} is a Chunk"),
        "cut_in_summary": (indexed()[:-60], 2, "no message is"),
        "cut_after_chunk": (MAGIC + header() + chunk(TWO), 2, "ends without a footer"),
        "only_magic": (MAGIC, 0, "does not begin with a Header record"),
        "zeros_at_the_end": (MAGIC + header() + TWO + bytes(1000), 2, "the last 1000 bytes are lost"),
        "after_the_end": (whole + b"more", 2, "goes on for 4 bytes after its end"),
        "no_closing_magic": (whole[:-8] + b"deadbeef", 2, "does not end as an MCAP file does"),
        "chunk_crc": (finish(chunk(TWO, (1, 2), crc=1)), 0, "with messages from 1 to 2, does not match its CRC"),
        "one_of_two_chunks": (
            finish(chunk(TWO, (1, 2)) + chunk(message(3), (3, 3), crc=1)),
            2,
            "with messages from 3 to 3, does not match its CRC; it is left out",
        ),
        "attachment_crc": (finish(attachment(crc=1) + TWO), 2, ""),
        "summary_crc": (indexed()[:-12] + b"\1\2\3\4" + MAGIC, 2, "its summary does not match its CRC"),
        "data_crc": (finish(TWO, crc=False).replace(b"data", b"DATA"), 2, ""),
        "nested_chunk": (finish(chunk(TWO + chunk(message(3)))), 2, "holds a chunk; what follows in it is left out"),
        "record_past_chunk": (finish(chunk(TWO + record(MESSAGE, bytes(30), far))), 2, "ends inside a record"),
        "head_past_chunk": (finish(chunk(TWO + b"\5\0")), 2, "ends inside the head of a record"),
        "type_zero": (finish(chunk(TWO + bytes(9))), 2, "has a record of type 0"),
        "short_message": (finish(chunk(TWO + record(MESSAGE, b"short"))), 2, "has a message that is too short"),
        "record_past_file": (MAGIC + header() + TWO + record(METADATA, b"", far), 2, "cut off"),
        "unknown_compression": (finish(chunk(TWO, label="brotli")), 0, 'is compressed with "brotli"'),
        "zstd_damaged": (finish(chunk(TWO, compression="zstd", packed=b"no zstd")), 0, "does not unpack: zstd says"),
        "lz4_damaged": (finish(chunk(TWO, compression="lz4", packed=b"no lz4 at all")), 0, "does not unpack: lz4 says"),
        "lz4_cut": (finish(chunk(TWO, compression="lz4", packed=lz4_frame(TWO)[:-4])), 0, "ends inside an lz4 frame"),
        "size_too_small": (finish(chunk(TWO, compression="lz4", size=9)), 0, "unpacks to more than the 9 bytes"),
        "size_too_large": (finish(chunk(TWO, compression="zstd", size=len(TWO) + 1)), 0, "and says"),
        "size_huge": (finish(chunk(TWO, compression="zstd", size=far)), 0, "at most"),
        "size_impossible": (finish(chunk(TWO, compression="lz4", size=1 << 20)), 0, "cannot unpack from"),
        "size_of_plain": (finish(chunk(TWO, size=1)), 0, "and says 1"),
        "bomb": (finish(chunk(b"", compression="zstd", packed=zstd_zeros(200), size=200 << 17, crc=0)), 0, "type 0"),
        "undeclared_channel": (finish(TWO + message(3, id=9)), 2, "channel 9 are left out: nothing declares it"),
        "two_channels_of_an_id": (finish(channel(1, 0, "/a") + channel(1, 0, "/b") + message(1)), 1, "twice, as"),
        "schema_zero": (finish(schema(0) + channel(1, 0) + message(1)), 1, "has id 0"),
        "index_outside": (finish(chunk(TWO), summary + chunk_index(far - 5, 9, (1, 2))), 2, "point outside its data"),
        "index_twice": (
            finish(chunk(TWO), schema() + channel() + 2 * chunk_index(START, len(chunk(TWO)), (1, 2))),
            2,
            "twice to the same place",
        ),
        "index_elsewhere": (finish(chunk(TWO), summary + chunk_index(START + 1, 100, (1, 2))), 2, ""),
        "summary_outside": (
            MAGIC + header() + TWO + record(FOOTER, struct.pack("<QQI", far, 0, 0)) + MAGIC,
            2,
            "its footer points outside it",
        ),
        "summary_damaged": (finish(chunk(TWO), record(STATISTICS, b"short")), 2, "ends inside a field"),
        "map_of_half_an_entry": (
            finish(TWO, record(STATISTICS, statistics()[9:-14] + text(b"123"))),
            2,
            "ends inside an entry",
        ),
    }
