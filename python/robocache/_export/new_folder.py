"""A folder that appears whole or not at all, even if the power fails."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from robocache._core import FileError


def sync(path: Path) -> None:
    """Syncs a file, or a directory's names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(descriptor)


def make_parents(path: Path) -> None:
    """Makes the missing directories above `path`, and syncs the name of each."""
    parent = path.parent
    if not parent.exists():
        make_parents(parent)
        parent.mkdir(exist_ok=True)
        sync(parent.parent)


class NewFolder:
    """A folder `path` beside `target`, under a name of its own. publish() syncs it and renames it to `target`.

    After a crash `target` is not there, or whole. The folder under the other name (`.NAME.part-…`) may be left; nothing
    reads it, and a second try makes another one.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise FileError(f"{target}: exists already; an export is written to a new directory")
        with told(target):
            make_parents(target)
            self.path = Path(tempfile.mkdtemp(prefix=f".{target.name}.part-", dir=target.parent))
            mask = os.umask(0)
            os.umask(mask)
            self.path.chmod(0o777 & ~mask)  # mkdtemp gives access to the owner only

    def publish(self) -> None:
        with told(self.target):
            for folder, _, files in os.walk(self.path, topdown=False):
                for name in files:
                    sync(Path(folder, name))
                sync(Path(folder))
            os.rename(self.path, self.target)  # also over an empty directory
            sync(self.target.parent)

    def discard(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A NewFolder's path. It is published at the end of the block, and discarded if that raises or wrote nothing."""
    folder = NewFolder(target)
    try:
        with told(target):
            yield folder.path
        if any(folder.path.iterdir()):
            folder.publish()
        else:
            folder.discard()
    except BaseException:
        folder.discard()
        raise


@contextmanager
def told(target: Path) -> Iterator[None]:
    """Turns an OSError into a FileError that names the file."""
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        name = error.filename if isinstance(error.filename, str | bytes) else str(target)
        reason = error.strerror or str(error)
        raise FileError(f"{os.fsdecode(name)}: {reason}; nothing was exported") from error
