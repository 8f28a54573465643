"""Where a reader's bytes come from: a path, memory, a file object, or an address that fsspec opens."""

from __future__ import annotations

import io
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol

from robocache._core import FileError


class Readable(Protocol):
    """A file object, as open(path, "rb") and fsspec give them."""

    def seek(self, offset: int, whence: int = 0, /) -> int: ...
    def read(self, count: int, /) -> bytes: ...


Source = str | os.PathLike[str] | bytes | bytearray | memoryview | Readable


class ForkLock:
    """A lock that is free in a forked child, where the thread that held it in the parent does not exist."""

    locks: ClassVar[weakref.WeakSet[ForkLock]] = weakref.WeakSet()

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.locks.add(self)

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *error: object) -> None:
        self.lock.release()

    @classmethod
    def renew(cls) -> None:
        for each in cls.locks:
            each.lock = threading.Lock()


os.register_at_fork(after_in_child=ForkLock.renew)


class FileObject:
    """A file object as the engine reads it: size, and read(offset, count), by any number of threads.

    A file of the operating system is read with pread, which leaves its position alone: a forked child shares it. Any
    other object is moved to the position and read, by one thread at a time.
    """

    locks: ClassVar[weakref.WeakValueDictionary[int, ForkLock]] = weakref.WeakValueDictionary()  # by id of the file

    def __init__(self, file: Any) -> None:
        self.file = file
        self.lock = self.locks.setdefault(id(file), ForkLock())
        with self.lock:
            self.size = int(file.seek(0, os.SEEK_END))
        raw = file.raw if type(file) is io.BufferedReader else file
        self.descriptor = raw.fileno() if type(raw) is io.FileIO else None

    def read(self, offset: int, count: int) -> bytes:
        descriptor = self.descriptor
        if descriptor is not None:
            self._check_open()
            return self._join(lambda left, done: os.pread(descriptor, left, offset + done), count)
        with self.lock:
            self.file.seek(offset)
            return self._join(lambda left, done: self.file.read(left), count)

    def _check_open(self) -> None:
        """Checks that the file is open: the descriptor of a closed file may belong to another file now."""
        if self.file.closed:
            raise ValueError("I/O operation on closed file")

    @staticmethod
    def _join(take: Callable[[int, int], bytes], count: int) -> bytes:
        pieces, done = [], 0
        while done < count:
            piece = take(count - done, done)
            if not piece:
                break
            pieces.append(piece)
            done += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class NamedInput(NamedTuple):
    source: bytes | memoryview | FileObject  # as _core takes it: a path, content, or an object that reads
    name: str  # for sentences


def source_of(path: Any, operation: str) -> NamedInput:
    """The input that _core reads, for anything that users may pass as a path."""
    if isinstance(path, str) and "://" in path:
        return NamedInput(FileObject(_remote(path)), path)
    if isinstance(path, str | os.PathLike):
        name = os.fspath(path)
        return NamedInput(os.fsencode(name), os.fsdecode(name))
    if isinstance(path, bytes | bytearray | memoryview):
        return NamedInput(memoryview(path).cast("B"), "bytes in memory")
    if hasattr(path, "open") and hasattr(path, "fs"):  # fsspec's OpenFile
        return NamedInput(FileObject(path.open()), str(getattr(path, "path", "a file")))
    if hasattr(path, "seek") and hasattr(path, "read"):
        return NamedInput(FileObject(path), str(getattr(path, "name", None) or getattr(path, "path", "a file object")))
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
