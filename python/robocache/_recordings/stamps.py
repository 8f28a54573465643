"""The state of a file when a reader opened it, to notice if it is replaced or written to while it is read."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from robocache._core import FileError


class FileStamp(NamedTuple):
    """A file's state at one moment, taken before it is opened. If it is equal later, nobody changed the file."""

    path: str
    device: int
    inode: int
    size: int
    mtime: int  # nanoseconds
    ctime: int  # nanoseconds; notices a new file with the same inode and mtime. 0: not compared


def stamp_of(path: str | os.PathLike[str]) -> FileStamp:
    """The state of a file. A missing file has a state that no file can have."""
    name = os.fspath(path)
    try:
        status = os.stat(name)
    except OSError:
        return FileStamp(name, -1, -1, -1, -1, -1)
    return FileStamp(name, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def stamps_of(paths: Iterable[str | os.PathLike[str]]) -> tuple[FileStamp, ...]:
    return tuple(map(stamp_of, paths))


def check_unchanged(stamps: Iterable[FileStamp]) -> None:
    """Raises FileError if one of these files has changed."""
    for was in stamps:
        now = stamp_of(was.path)
        if now == was or (was.ctime == 0 and now._replace(ctime=0) == was):
            continue
        if now.inode < 0:
            what = "was removed"
        elif was.inode < 0:
            what = "came into being"
        elif (now.device, now.inode) != (was.device, was.inode):
            what = "was replaced by another file"
        elif now.size != was.size:
            what = f"went from {was.size:,} to {now.size:,} bytes"
        else:
            what = "was written to, or replaced,"
        raise FileError(f"{was.path}: {what} while it was read; add it again when nothing writes to it")
