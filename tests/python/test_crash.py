"""Power fails at any moment, or any call fails: nothing that was committed is lost, and the work can be finished.

ROBOCACHE_CRASH=1 (`make crash`) tries more: random losses at each moment, and every call instead of some.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from shims import shim_of

HERE = Path(__file__).parent
THOROUGH = os.environ.get("ROBOCACHE_CRASH") == "1"
WRITING = ["commit", "build", "repair-shard", "repair-manifest", "mcap", "export-safetensors", "export-mcap"]
if importlib.util.find_spec("pyarrow") is not None:
    WRITING.append("export-lerobot")
EVERY = {
    "export-lerobot": 25,
    "build": 10,
    "commit": 7,
}  # the calls that fail in a short run: every third of the others


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shim_of("record", tmp_path_factory.mktemp("shim"))


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shim_of("faults", tmp_path_factory.mktemp("shim"))


@contextlib.contextmanager
def place() -> Iterator[Path]:
    """In memory where there is such a place: thousands of folders are laid out and synced."""
    memory = Path("/dev/shm")
    is_there = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= 64 << 20
    with tempfile.TemporaryDirectory(dir=memory if is_there else None, prefix="robocache-test-") as folder:
        yield Path(folder)


@pytest.fixture
def folder() -> Iterator[Path]:
    with place() as made:
        yield made


def run(script: str, *arguments: object, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, str(HERE / script), *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def replayed(recorder: Path) -> Callable[[str], dict[str, Any]]:
    """What crash_replay.py finds out about a scenario."""

    @functools.cache
    def replay(scenario: str) -> dict[str, Any]:
        with place() as folder:
            count = 40 if THOROUGH else 2 if scenario == "build" else 4
            return json.loads(run("crash_replay.py", scenario, folder, recorder, count))

    return replay


@pytest.mark.parametrize("scenario", WRITING)
def test_power_fails_at_any_moment(replayed: Callable[[str], dict[str, Any]], scenario: str) -> None:
    found = replayed(scenario)
    assert not found["wrong"], found["wrong"]
    assert found["states"] > 5
    assert found["fsyncs"]


def test_every_fsync_is_needed(replayed: Callable[[str], dict[str, Any]]) -> None:
    """Where the fsyncs of a call site are ignored, a state breaks in some scenario."""
    found = [replayed(scenario) for scenario in WRITING]
    needed = {site for one in found for site in one["fsyncs"] if site not in one["unneeded"]}
    assert len(needed) > 30
    assert {site for one in found for site in one["unneeded"]} - needed == set()


@pytest.mark.parametrize("error", ["EIO", "ENOSPC", "EACCES", "EMFILE", "EINTR", "short"])
@pytest.mark.parametrize("scenario", [*WRITING, "open", "verify", "log"])
def test_any_call_fails(folder: Path, faults: Path, scenario: str, error: str) -> None:
    if error == "ENOSPC" and scenario in ("open", "verify"):
        pytest.skip("it writes nothing")
    is_rare = error in ("EACCES", "EMFILE")  # few calls can fail so
    every = 1 if THOROUGH else 3 if is_rare else EVERY.get(scenario, 3)
    said = run("call_faults.py", scenario, folder, error, every, LD_PRELOAD=str(faults))
    calls, failures = map(int, re.findall(r"\d+", said))
    assert calls > 0
    assert failures > 0 or error in ("EINTR", "short")
