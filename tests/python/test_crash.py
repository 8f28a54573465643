"""Power fails at any moment, or any call fails: nothing that was committed is lost, and the work can be finished.

ROBOCACHE_CRASH=1 (`make crash`) tries more: random losses at each moment, and every call instead of some.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
THOROUGH = os.environ.get("ROBOCACHE_CRASH") == "1"
WRITING = ["commit", "build", "repair-shard", "repair-manifest", "export-lerobot", "export-safetensors", "export-mcap"]
WRITING += ["mcap"]
EVERY = {
    "export-lerobot": 25,
    "build": 10,
    "commit": 7,
}  # the calls that fail in a short run: every third of the others


def shim_of(name: str, folder: Path) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler to make the shim with")
    library = folder / f"{name}.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, HERE / f"{name}.c", "-ldl", "-pthread"], check=True)
    return library


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shim_of("record", tmp_path_factory.mktemp("shim"))


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shim_of("faults", tmp_path_factory.mktemp("shim"))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is such a place: thousands of folders are laid out and synced."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or shutil.disk_usage(memory).free < 64 << 20:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory, prefix="robocache-test-") as place:
        yield Path(place)


def run(script: str, *arguments: object, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, str(HERE / script), *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("scenario", WRITING)
def test_power_fails_at_any_moment(folder: Path, recorder: Path, scenario: str) -> None:
    """In every state that a crash may leave; and each fsync is needed: without it some state breaks."""
    if scenario == "export-lerobot":
        pytest.importorskip("pyarrow")
    found = json.loads(run("crash_replay.py", scenario, folder, recorder, 40 if THOROUGH else 4))
    assert not found["wrong"], found["wrong"]
    assert found["states"] > 5
    assert found["fsyncs"]
    assert found["unneeded"] == []


@pytest.mark.parametrize("error", ["EIO", "ENOSPC", "EACCES", "EMFILE", "EINTR", "short"])
@pytest.mark.parametrize("scenario", [*WRITING, "open", "verify", "log"])
def test_any_call_fails(folder: Path, faults: Path, scenario: str, error: str) -> None:
    if scenario == "export-lerobot":
        pytest.importorskip("pyarrow")
    if error == "ENOSPC" and scenario in ("open", "verify"):
        pytest.skip("it writes nothing")
    is_rare = error in ("EACCES", "EMFILE")  # few calls can fail so
    every = 1 if THOROUGH else 3 if is_rare else EVERY.get(scenario, 3)
    said = run("call_faults.py", scenario, folder, error, every, LD_PRELOAD=str(faults))
    calls, failures = map(int, re.findall(r"\d+", said))
    assert calls > 0
    assert failures > 0 or error in ("EINTR", "short")
