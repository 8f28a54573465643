"""rc.open: the format is detected from the content."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from robocache._core import FileError
from robocache._recordings.recording import Recording
from robocache._recordings.source import TIMES, Source

MCAP_MAGIC = b"\x89MCAP"
SQLITE_MAGIC = b"SQLite format 3\0"
HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
OTHERS = {  # other files that people try; advice helps more than "unknown"
    b"#ROSBAG V": "a ROS 1 bag; convert it: rosbags-convert --src FILE --dst DIRECTORY",
    b"PK\x03\x04": "a ZIP archive; unpack it first",
    b"\x1f\x8b": "compressed by gzip; unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed by zstd; unpack it first (zstd -d), or open the rosbag2 directory it belongs to",
    b"PAR1": "a Parquet file; of a LeRobot data set, open its directory",
}


def open(
    path: Any,
    time: str = "auto",
    *,
    rate: float | None = None,
    mapping: Mapping[str, Any] | None = None,
    msg_path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
) -> Recording:
    """Opens a recording, whatever its format. Nothing is decoded before a stream is used.

    The format is detected from the content.

    Args:
        path: An MCAP file; a rosbag2 directory or its .db3 file; a LeRobot data set (v3.0, v2.1); an HDF5 file
            (robomimic, ALOHA, or any with `mapping`); a cache. For MCAP also an address that fsspec opens ("s3://..."),
            a file object, or bytes.
        time: Where a sample's time comes from. "stamp": the header of the message; for JSON also its own stamp or
            timestamp. "log": when it was written. "publish": when it was published. "auto": one clock for the
            recording, that of most stamped streams. Samples without a stamp then get their log time. If that runs on
            another clock, as under simulated time, it is converted, and so are all arrivals; `recording.clock` names
            the clock. Numeric stamps in JSON have one unit per topic, that of the first: 1e9 to 4e9 is seconds since
            1970, 1e12 to 4e12 ms, 1e15 to 4e15 us, 1e18 to 4e18 ns; otherwise integers from 1e6 on are ns, and the rest
            are seconds.
        rate: HDF5 without times: samples per second, instead of the layout's usual rate.
        mapping: HDF5: `{"joints": "/robot/q"}` or `{"joints": {"values": "/robot/q", "times": "/robot/t", ...}}`.
        msg_path: rosbag2: folders with .msg files, for types that neither the bag nor the rosbags package defines.

    Returns:
        A `Recording`.

    Raises:
        FileError: The file is missing, damaged, or of another format.

    Examples:
        >>> recording = rc.open("run.mcap")
        >>> recording.streams["/odom"].values          # [N, D], with .times, .arrivals, .channels, .method
        >>> rc.align(recording.streams.select("/odom", "/joint_states"), timeline)
    """
    if time not in TIMES:
        raise ValueError(f'open: time is {time!r}; expected "auto", "stamp", "log" or "publish"')
    if not isinstance(path, (str, os.PathLike)) or "://" in str(path):
        from robocache._recordings.mcap import McapSource

        return Recording(on_one_clock(McapSource(path, time)))
    place = Path(path)
    if any(
        "\ud800" <= letter <= "\udfff" for letter in str(place)
    ):  # Python represents bytes that are not UTF-8 this way
        shown = os.fsencode(place).decode("utf-8", "backslashreplace")
        raise FileError(f"{shown}: the name is not UTF-8; rename the file, or open it and pass the file object")
    kind = sniff(place)
    source: Source
    if kind == "MCAP":
        from robocache._recordings.mcap import McapSource

        source = on_one_clock(McapSource(str(place), time))
    elif kind in ("rosbag2", "SQLite"):
        from robocache._recordings.rosbag2 import open_rosbag2

        folders = [msg_path] if isinstance(msg_path, (str, os.PathLike)) else list(msg_path or ())
        source = on_one_clock(open_rosbag2(place, time, [Path(folder) for folder in folders]))
    elif kind == "LeRobot":
        from robocache._recordings.lerobot import LeRobotSource

        source = LeRobotSource(place, time)
    elif kind == "cache":
        from robocache._cache.source import CachedSource

        source = CachedSource(place)
    else:
        from robocache._recordings.hdf5 import Hdf5Source

        source = Hdf5Source(place, time, rate, mapping)
    return Recording(source)


def on_one_clock(source: Source) -> Source:
    if source.time != "auto":
        return source
    from robocache._recordings.clock import ClockedSource

    return ClockedSource(source)


def sniff(place: Path) -> str:
    """ "MCAP", "SQLite", "HDF5", "rosbag2", "LeRobot" or "cache". Raises FileError for anything else."""
    known = "known are MCAP, rosbag2 (directory or .db3), LeRobot data sets (directory) and HDF5"
    if place.is_dir():
        for name, kind in (("metadata.yaml", "rosbag2"), ("meta/info.json", "LeRobot")):
            if (place / name).is_file():
                return kind
        if is_cache(place):
            return "cache"
        try:
            inside = sorted(entry.name for entry in place.iterdir())
        except OSError as error:
            raise FileError(f"{place}: cannot be read: {error.strerror}") from None
        shown = ", ".join(inside[:6]) + (f" and {len(inside) - 6} more" if len(inside) > 6 else "")
        one = next((place / name for name in inside if recorded(place / name)), None)
        take = f"; take one of them, as {one}, or all: robocache build {place} -o CACHE" if one is not None else ""
        raise FileError(
            f"{place}: not a recording: a directory without metadata.yaml (rosbag2) or meta/info.json (LeRobot); "
            + (f"it holds {shown}{take}" if inside else "it is empty")
        )
    if place.exists() and not place.is_file():  # reading from a FIFO would block
        raise FileError(f"{place}: neither a file nor a directory; {known}")
    try:
        with place.open("rb") as file:
            head = file.read(4096)
            if head[: len(MCAP_MAGIC)] == MCAP_MAGIC:
                return "MCAP"
            if head[: len(SQLITE_MAGIC)] == SQLITE_MAGIC:
                return "SQLite"
            for offset in (0, 512, 1024, 2048):  # HDF5 allows a user block before it
                if head[offset : offset + len(HDF5_MAGIC)] == HDF5_MAGIC:
                    return "HDF5"
    except OSError as error:
        raise FileError(f"{place}: {error.strerror or error}") from None
    if not head:
        raise FileError(f"{place}: the file is empty")
    for magic, what in OTHERS.items():
        if head.startswith(magic):
            raise FileError(f"{place}: not a known format: it is {what}")
    found = " ".join(f"{byte:02x}" for byte in head[:8])
    raise FileError(f"{place}: not a known format: it begins with {found} ({printable(head[:8])}); {known}")


SUFFIXES = (".mcap", ".db3", ".h5", ".hdf5")


def recorded(entry: Path) -> bool:
    """Whether an entry of a folder looks like a recording, by its name only. Opening it tells for certain."""
    if not entry.is_dir():
        return entry.suffix in SUFFIXES
    return (entry / "metadata.yaml").is_file() or (entry / "meta" / "info.json").is_file()


MANIFEST = re.compile(rb'\s*\{\s*"format"\s*:\s*"robocache"')


def is_cache(place: Path) -> bool:
    """Whether the directory has a cache's manifest. Many tools write a manifest.json, so its first key decides."""
    try:
        if not (place / "manifest.json").is_file():
            return False
        with (place / "manifest.json").open("rb") as file:
            return MANIFEST.match(file.read(4096)) is not None
    except OSError:
        return False


def printable(head: bytes) -> str:
    return repr("".join(chr(byte) if 32 <= byte < 127 else "." for byte in head))
