"""Where a reader's bytes come from: a path, memory, a file object, or an address that fsspec opens."""

from __future__ import annotations

import os
from typing import Any, NamedTuple, Protocol

from robocache._core import FileError


class Readable(Protocol):
    """A file object, as open(path, "rb") and fsspec give them."""

    def seek(self, offset: int, whence: int = 0, /) -> int: ...
    def read(self, count: int, /) -> bytes: ...


Source = str | os.PathLike[str] | bytes | bytearray | memoryview | Readable


class FileObject:
    """A file object as the engine reads it: size, and read(offset, count)."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self.size = int(file.seek(0, os.SEEK_END))

    def read(self, offset: int, count: int) -> bytes:
        self.file.seek(offset)
        pieces = []
        while count > 0:
            piece = self.file.read(count)
            if not piece:
                break
            pieces.append(piece)
            count -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class Named(NamedTuple):
    source: bytes | memoryview | FileObject  # as _core takes it: a path, content, or an object that reads
    name: str  # for sentences


def source_of(path: Any, operation: str) -> Named:
    """What _core reads for anything that a user may give as a path."""
    if isinstance(path, str) and "://" in path:
        return Named(FileObject(_remote(path)), path)
    if isinstance(path, str | os.PathLike):
        name = os.fspath(path)
        return Named(os.fsencode(name), os.fsdecode(name))
    if isinstance(path, bytes | bytearray | memoryview):
        return Named(memoryview(path).cast("B"), "bytes in memory")
    if hasattr(path, "open") and hasattr(path, "fs"):  # fsspec's OpenFile
        return Named(FileObject(path.open()), str(getattr(path, "path", "a file")))
    if hasattr(path, "seek") and hasattr(path, "read"):
        return Named(FileObject(path), str(getattr(path, "name", None) or getattr(path, "path", "a file object")))
    raise TypeError(f"{operation}: path is {path!r:.80}; expected a path, an address, bytes, or a file object")


def _remote(address: str) -> Any:
    try:
        import fsspec
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"{address}: reading from there needs fsspec, which is not installed: pip install fsspec", name="fsspec"
        ) from None
    try:
        return fsspec.open(address, "rb").open()
    except (OSError, ValueError, ImportError) as error:
        raise FileError(f"{address}: cannot be opened: {error}") from error
