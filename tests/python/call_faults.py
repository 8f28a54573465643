"""The calls of a piece of work fail one after the other; test_crash.py runs it in a process of its own.

call_faults.py SCENARIO FOLDER ERROR EVERY    under faults.c: the first call fails with ERROR (its name, or "short": a
                                              read or write does half of what it was asked to), then the next one,
                                              until a run has no call left to fail. EVERY: 3 is every third call.

After each: what was committed is there, nothing is deleted, the sentence names a file of the folder and the error, and
the work can be finished (see crash_scenarios.py). EINTR and short reads and writes are no failures: the work passes.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
from pathlib import Path

from crash_scenarios import SCENARIOS

import robocache as rc

# Which calls can fail so.
CALLS = {
    "EIO": "pread read pwrite write fsync fdatasync ftruncate rename mkdir unlink flock mmap close create open",
    "ENOSPC": "pwrite write fsync fdatasync ftruncate rename mkdir create close",
    "EACCES": "create open rename mkdir unlink mmap",
    "EMFILE": "create open",
    "EINTR": "pread read pwrite write fsync fdatasync flock create open",  # pyarrow takes that of close() for a failure
    "short": "pread read pwrite write",
}


def run(scenario: str, folder: Path, error: str, every: int) -> None:
    shim = ctypes.CDLL(None)
    shim.fault_last.restype = ctypes.c_char_p
    number = 0 if error == "short" else getattr(errno, error)
    work = SCENARIOS[scenario]
    calls = failures = 0
    while True:
        place = folder / str(calls)
        place.mkdir()
        work.prepare(place)
        marks: list[str] = []
        said = ""
        shim.fault_calls_of(f" {CALLS[error]} ".encode())
        folder_that_fails = place / "work" if scenario == "build" else place  # that one writes its sources itself
        shim.fault_arm(str(folder_that_fails).encode(), 1 + calls * every, number, 0)
        try:
            work.work(place, marks.append)
        except rc.FileError as caught:
            said = str(caught)
        finally:
            fired, last = shim.fault_fired(), shim.fault_last().decode()
            shim.fault_arm(b"", 0, 0, 0)
        if fired and said:
            failures += 1
            assert error not in ("EINTR", "short"), (last, said)
            assert str(place) in said, (last, said)
            is_pyarrow = last.startswith("close ") and last.endswith(".parquet")  # which does not tell why
            assert os.strerror(number) in said or is_pyarrow, (last, said)
        try:
            work.check(place, marks, False)
        except Exception as wrong:
            wrong.add_note(f"after {error} of call {calls * every}: {last}; the work said: {said or 'nothing'}")
            raise
        shutil.rmtree(place)
        if not fired:
            break
        calls += 1
    print(f"{calls} calls, {failures} failures")


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
