"""SharedPasses: how the workers of a DataLoader agree on the pass that they make together.

Worker w of n makes batches w, w + n, ... of a pass. A DataLoader tells its workers nothing about passes. So the workers
write the current passes and where they start into one small file, under a lock. Workers of one pass have the same seed
from torch and different numbers. A new seed, or a worker number that appears again, means the next pass.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, NamedTuple

from robocache._loader.order import Passes

KEPT_PASSES = 8  # for workers that start late


class Batches(NamedTuple):
    """The batches of a pass."""

    start: int  # the position where the first of them starts
    number: int
    following: int  # the position where the next pass starts


def batches_of(order: Passes, position: int) -> Batches:
    """The batches of the pass that starts at a position."""
    start, count = order.begin(position), order.batches(position)
    return Batches(start, count, order.after(start + (count - 1) * order.global_batch))


class SharedPasses:
    """Where passes start, for a loader's process and the workers that it starts.

    Args:
        position: Where the next pass starts.
    """

    def __init__(self, position: int) -> None:
        number, self.path = tempfile.mkstemp(prefix="robocache-loader-", suffix=".json")
        os.close(number)
        self.reset(position)
        weakref.finalize(self, _remove, self.path, os.getpid())

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.path,)

    def reset(self, position: int) -> None:
        """Sets where the next pass starts, whichever pass the workers make now."""
        with self._locked() as file:
            _write(file, {"start": position, "passes": []})

    def is_used(self) -> bool:
        """Whether workers have made batches since the last reset."""
        with self._locked() as file:
            return bool(_read(file)["passes"])

    def start_of(self, order: Passes, seed: int, worker: int) -> int:
        """The position where this worker's pass starts.

        Args:
            order: The loader's order.
            seed: The seed that torch gives the workers of one pass.
            worker: The worker's number.
        """
        with self._locked() as file:
            content = _read(file)
            passes = content["passes"]
            for known in reversed(passes):
                if known["seed"] == seed:
                    if worker in known["workers"]:
                        break
                    known["workers"].append(worker)
                    _write(file, content)
                    return int(known["start"])
            start = batches_of(order, passes[-1]["start"]).following if passes else int(content["start"])
            passes.append({"seed": seed, "start": start, "workers": [worker]})
            del passes[:-KEPT_PASSES]
            _write(file, content)
            return start

    def resume(self, start: int, worker: int) -> None:
        """Records that a worker continues the pass that starts here, from a state that was loaded into it."""
        with self._locked() as file:
            content = _read(file)
            passes = content["passes"]
            if len(passes) == 1 and passes[0]["seed"] is None and passes[0]["start"] == start:
                passes[0]["workers"].append(worker)
            else:
                content["passes"] = [{"seed": None, "start": start, "workers": [worker]}]
            _write(file, content)

    @contextmanager
    def _locked(self) -> Iterator[IO[str]]:
        with open(self.path, "r+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file


def _read(file: IO[str]) -> dict[str, Any]:
    return dict(json.load(file))


def _write(file: IO[str], content: dict[str, Any]) -> None:
    file.seek(0)
    file.truncate()
    json.dump(content, file)
    file.flush()


def _remove(path: str, process: int) -> None:
    if os.getpid() == process:  # forked workers leave the file to the process that made it
        os.unlink(path)


def _reopened(path: str) -> SharedPasses:
    passes = SharedPasses.__new__(SharedPasses)
    passes.path = path
    return passes
