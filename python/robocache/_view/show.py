"""The end of a view: a file, the viewer's window, or a notebook's cell."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from robocache._core import FileError
from robocache._recordings.words import counted
from robocache._view.sink import APPLICATION, Sink, label, rerun

PATIENCE = 600.0  # seconds that Rerun may take to write the file
SPARE = 16 << 20  # bytes of the disk that stay free
MAGIC = b"RRF"  # the first bytes of Rerun's files


class Viewed:
    """The result of `rc.view`.

    Attributes:
        path: The file. None: a notebook shows the view, and there is no file.
        is_open: Whether a viewer was opened.
        notes: What is not shown, or only in part.
        samples: The number of samples that were read.
        steps: The number of steps of the timeline.
        sent: The bytes of the arrays in the view.
    """

    def __init__(self) -> None:
        self.path: Path | None = None
        self.is_open = False
        self.notes: list[str] = []
        self.samples = self.steps = self.sent = 0
        self.recording: Any = None
        self.blueprint: Any = None

    def open(self) -> None:
        """Opens the viewer on the file.

        Raises:
            RuntimeError: There is no display, or no viewer.
        """
        if self.path is None:
            raise RuntimeError("view: a notebook shows this view itself; rc.view(..., output=...) writes a file")
        program = viewer()
        if program is None or not has_display():
            raise RuntimeError(f"view: there is no display here; {how_to_open(self.path)}")
        subprocess.Popen(
            [program, str(self.path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.is_open = True

    def __repr__(self) -> str:
        of = f"{counted(self.samples, 'sample')}, {counted(self.steps, 'step')}"
        if self.path is None:
            return f"Viewed({of})"
        return f"Viewed({of}; {self.path}: {'opened' if self.is_open else how_to_open(self.path)})"

    def _ipython_display_(self) -> None:
        if self.path is None:
            from rerun.notebook import Viewer

            Viewer(recording=self.recording, blueprint=self.blueprint, width="auto", height=640).display()
        print("\n".join([repr(self), *(f"Note: {note}" for note in self.notes)]))


@contextlib.contextmanager
def opened_sink(title: str, output: str | os.PathLike[str] | None, has_dates: bool) -> Iterator[tuple[Sink, Viewed]]:
    """A sink, and the result. A file gets its name at the end, so it is whole or not there."""
    rr, viewed = rerun(), Viewed()
    recording = rr.RecordingStream(APPLICATION)
    recording.send_recording_name(label(title))
    is_for_cell = output is None and in_notebook()
    if is_for_cell and find_spec("rerun_notebook"):
        viewed.recording = recording
        yield Sink(recording, has_dates), viewed
        return
    wants_window = output is None and has_display() and viewer() is not None
    path = destination(title, output, wants_window)
    place = Path(os.path.realpath(path))  # so that a symbolic link is kept, and its target replaced
    part = place.with_name(f".{place.name}.{os.getpid()}.part")
    try:
        part.touch()  # raises if the folder cannot be written
        room = shutil.disk_usage(part.parent).free - SPARE
        if room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        recording.save(str(part))
        try:
            yield Sink(recording, has_dates, room), viewed
        finally:
            written(recording, path)
        os.replace(part, place)
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from None
    finally:
        part.unlink(missing_ok=True)
    viewed.path = path
    if is_for_cell:
        viewed.notes.append("pip install 'rerun-sdk[notebook]' puts the viewer into the cell")
    if wants_window:
        viewed.open()


def written(recording: Any, path: Path) -> None:
    """Waits until Rerun has written the file. If a write fails, Rerun raises nothing and never ends."""
    try:
        recording.flush(timeout_sec=PATIENCE)
    except RuntimeError:
        raise FileError(f"{path}: Rerun did not write it within {PATIENCE:g} s; is the disk full, or gone?") from None
    recording.disconnect()


def destination(title: str, output: str | os.PathLike[str] | None, wants_window: bool) -> Path:
    """The path of the file to write. Raises FileError if there is a file that is not a view."""
    if output is None:
        stem = re.sub(r"[^\w.-]+", "_", Path(title).stem).strip("._") or "view"
        folder = Path(tempfile.mkdtemp(prefix="robocache-view-")) if wants_window else Path()
        path = folder / f"{stem}.rrd"
    else:
        path = Path(output)
    if path.is_dir():
        raise FileError(f"{path}: is a directory; name a file, as {path / 'view.rrd'}")
    if not path.absolute().parent.is_dir():
        raise FileError(f"{path}: the directory {path.parent} is not there")
    if path.exists():
        if not path.is_file():  # a pipe or a device
            raise FileError(f"{path}: is no file; a view is written to one")
        with path.open("rb") as file:
            if file.read(len(MAGIC)) not in (MAGIC, b""):
                raise FileError(f"{path}: exists already, and is no view; it is not overwritten")
    return path


def has_display() -> bool:
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def in_notebook() -> bool:
    """Whether this process is a Jupyter kernel."""
    if "IPython" not in sys.modules:
        return False
    shell = sys.modules["IPython"].get_ipython()
    return shell is not None and hasattr(shell, "kernel")


def viewer() -> str | None:
    """The path of the viewer's program. None: it is not installed."""
    beside = Path(sys.executable).with_name("rerun")
    return str(beside) if beside.is_file() else shutil.which("rerun")


def how_to_open(path: Path) -> str:
    name = shlex.quote(str(path))
    return f"rerun {name} opens it where there is a display, rerun --web-viewer {name} in a browser"
