"""Compressed files of a bag, and the temporary folder they are unpacked into."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

from robocache._core import FileError

MOST_UNPACKED = 200  # times its size: the limit for a compressed file on disk


def zstd() -> Any:
    """Python's own module from 3.14 on, or its backport."""
    import importlib

    for name in ("compression.zstd", "backports.zstd"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError(
        "a compressed rosbag2 needs backports.zstd, which is not installed: pip install 'robocache[rosbag2]'",
        name="backports.zstd",
    )


def unpack_file(file: Path, folder: Path) -> Path:
    """A compressed file of a bag, unpacked into a folder of our own."""
    library, target = zstd(), folder / file.stem
    room = MOST_UNPACKED * file.stat().st_size + (1 << 20)
    try:
        with library.open(file, "rb") as packed, target.open("wb") as plain:
            while piece := packed.read(1 << 20):
                room -= len(piece)
                if room < 0:
                    raise FileError(f"{file}: unpacks to more than {MOST_UNPACKED} times its size; refused")
                plain.write(piece)
    except (library.ZstdError, EOFError) as error:
        raise FileError(f"{file}: cannot be unpacked by zstd: {error}") from None
    except OSError as error:
        raise error if isinstance(error, FileError) else FileError(f"{file}: {error.strerror or error}") from None
    return target


def temporary_folder(owner: object) -> Path:
    """A temporary folder that is removed with its owner, in this process only: a forked child removes nothing."""
    folder = Path(tempfile.mkdtemp(prefix="robocache-"))
    weakref.finalize(owner, remove_folder, folder, os.getpid())
    return folder


def remove_folder(folder: Path, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
