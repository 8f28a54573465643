"""The benchmark's own parts: how far it is, what it times, what it writes into the README."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

import robocache as rc

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("typer", reason="Typer is not installed")

from bench import records, table, timing
from bench.cases import SMALL_FUSE
from bench.report import OURS

PATIENCE = 120


def bench(tmp_path: Path) -> list[str]:
    """Two cases, ours alone, on the CPU."""
    options = ["--device", "cpu", "--quick", "--peers", "none", "--threads", "1", "--only", SMALL_FUSE.title]
    return [sys.executable, "-m", "robocache.cli", "bench", *options, "--json", str(tmp_path / "result.json")]


def watched(command: list[str]) -> str:
    """What the command writes to a terminal."""
    mine, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120"}
    command = ["timeout", str(PATIENCE), *command]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, cwd=records.ROOT, env=environment) as process:
        os.close(theirs)
        written = b""
        try:
            while part := os.read(mine, 1 << 16):
                written += part
        except OSError:  # the terminal's end, as Linux tells it
            pass
        assert process.wait() == 0, written.decode()
    os.close(mine)
    return written.decode()


def test_a_bar_where_someone_watches(tmp_path):
    pytest.importorskip("rich", reason="Rich is not installed")
    written = watched(bench(tmp_path))
    assert "━" in written
    assert "0/2" in written
    assert "2/2" in written
    assert "[1/2]" not in written
    assert len(json.loads((tmp_path / "result.json").read_text())["rows"]) == 2


def test_lines_where_nobody_watches(tmp_path):
    done = subprocess.run(
        bench(tmp_path), capture_output=True, text=True, timeout=PATIENCE, cwd=records.ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"[1/2] {SMALL_FUSE.title}: {OURS}: wall" in done.stdout
    assert "[2/2]" in done.stdout
    assert "━" not in done.stdout
    assert "\x1b" not in done.stdout


def test_the_host_time_is_of_a_call_with_nothing_to_launch():
    """Checks are launched too, also where there are no targets."""
    seen = {}

    class Recorder:
        Stream = rc.Stream

        @staticmethod
        def fuse(streams, targets, **options):
            seen.update(options, streams=len(streams), targets=tuple(targets.shape))
            return rc.fuse(streams, targets, **options)

    call = SMALL_FUSE.without_launch(Recorder, SMALL_FUSE.make("cpu"))
    assert call().values.shape == (4, 0, 588)
    assert seen == {"check": False, "streams": 3, "targets": (4, 0)}
    assert timing.host(call, bursts=3, burst=3) > 0


def test_the_table_says_the_host_time_where_it_was_measured():
    record = json.loads((records.RESULTS / "h200.json").read_text())
    record.pop("host_without_launch_us", None)
    record["import_ms"] = 23.0
    assert "Host time" not in table.gpu_table(record)
    assert table.gpu_table(record).endswith("\n\n`import robocache`: 23 ms beyond NumPy's.")
    measured = table.gpu_table(record | {"host_without_launch_us": 4.26})
    assert measured.splitlines()[-1].startswith(
        "Host time of a call with 7 tensors, all but the launch: 4.3 us. `import"
    )
