"""Shows how far a run is."""

from __future__ import annotations

import contextlib
import sys
from types import TracebackType
from typing import Any


class Progress:
    """A bar where Rich is installed and someone watches; lines otherwise."""

    def __init__(self, total: int) -> None:
        self.bar: Any = None
        self.total, self.done = total, 0
        if sys.stdout.isatty():
            with contextlib.suppress(ImportError):
                from rich import progress

                self.bar = progress.Progress(
                    progress.TextColumn("{task.description}"),
                    progress.BarColumn(),
                    progress.MofNCompleteColumn(),
                    progress.TimeElapsedColumn(),
                )

    def __enter__(self) -> Progress:
        if self.bar is not None:
            self.bar.start()
            self.task = self.bar.add_task("", total=self.total)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def begin(self, title: str) -> None:
        if self.bar is not None:
            self.bar.update(self.task, description=title)

    def end(self, line: str) -> None:
        self.done += 1
        if self.bar is None:
            print(f"[{self.done}/{self.total}] {line}", flush=True)
        else:
            self.bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
            self.bar.advance(self.task)
