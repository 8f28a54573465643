"""What a file was when a reader opened it, so that one that is replaced or written to while it is read is noticed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from robocache._core import FileError


class FileStamp(NamedTuple):
    """A file at one moment. Taken before it is opened: equal stamps then and later mean that nobody touched it."""

    path: str
    device: int
    inode: int
    size: int
    mtime: int  # nanoseconds
    ctime: int  # nanoseconds; tells a file that got another's inode and mtime. 0: not compared


def stamp_of(path: str | os.PathLike[str]) -> FileStamp:
    """A file that is not there has a stamp too, which no file has."""
    name = os.fspath(path)
    try:
        status = os.stat(name)
    except OSError:
        return FileStamp(name, -1, -1, -1, -1, -1)
    return FileStamp(name, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def stamps_of(paths: Iterable[str | os.PathLike[str]]) -> tuple[FileStamp, ...]:
    return tuple(map(stamp_of, paths))


def check_unchanged(stamps: Iterable[FileStamp]) -> None:
    """FileError where one of these files is not what it was."""
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
