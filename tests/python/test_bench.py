"""The benchmark's own parts: how far it is, what it times, what it writes into the README."""

from __future__ import annotations

import dataclasses
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

import robocache as rc

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("typer", reason="Typer is not installed")

from bench import others, profile, recordings, records, report, run, table, timing
from bench.attention import ATTENTION_CASES, AttentionCase
from bench.builds import BUILD_CASES, COMMANDS
from bench.cases import SMALL_FUSE
from bench.goals import CPU_FACTORS, EAGER, GOALS, GPU_FACTORS, OURS, PEAKS, Absent
from bench.sparse import SPARSE_CASES, DownsampleCase, SparseCase
from bench.voxels import VOXEL_CASES, VoxelCase

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


def small(case):
    """The same row with sizes that take no time."""
    if isinstance(case, VoxelCase):
        clouds = min(case.clouds, 6)
        grids = case.grids and min(case.grids, 2)
        sizes = {"cameras": min(case.cameras, 2), "clouds": clouds, "grids": grids}
        return dataclasses.replace(case, number=min(case.number, 2000), side=min(case.side, 16), **sizes)
    if isinstance(case, AttentionCase):
        sizes = {
            "queries": min(case.queries, 60),
            "keys": min(case.keys, 60 if case.queries == case.keys else 130),
            "heads": (case.heads[0] // case.heads[1], 1),
        }
        return dataclasses.replace(case, batch=min(case.batch, 2), **sizes)
    if isinstance(case, SparseCase):
        return dataclasses.replace(case, number=2048, max_voxels=case.max_voxels and 2048)
    return dataclasses.replace(case, number=min(case.number, 2000))


def test_the_profile_has_every_kernel_of_attention_and_each_call_once():
    pattern = re.compile(profile.KERNELS.removeprefix("regex:"))
    for name in ("", "dq_", "dkv_", "delta_", "f32_", "f32_dq_", "f32_dkv_"):
        assert pattern.search(f"attention_{name}kernel")
    cases = profile.profiled(ATTENTION_CASES)
    assert cases == list(ATTENTION_CASES[:-1])  # the last is made of others


ROWS = [*VOXEL_CASES, *SPARSE_CASES, *ATTENTION_CASES[:-1]]


@pytest.mark.parametrize("case", ROWS, ids=lambda case: case.title)
def test_rows_agree_with_their_truth(case):
    row = small(case)
    measured = run.Bench(rc, "cpu", timing.Effort(quick=True), None)
    try:
        inputs = row.make("cpu")
        truth = row.truth(inputs)
        assert row.floor_bytes(inputs) > 0
        for who in (OURS, EAGER):
            measured._agreement(row, who, measured._calls(row, who, [inputs])[0], truth)
    except Absent as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("who", others.DOWNSAMPLES)
def test_others_downsample_the_same_cloud(who):
    case = small(next(case for case in SPARSE_CASES if isinstance(case, DownsampleCase)))
    inputs = case.make("cpu")
    measured = run.Bench(rc, "cpu", timing.Effort(quick=True), None)
    try:
        call = case.other_call(who, inputs)
    except Absent as reason:
        pytest.skip(str(reason))
    measured._agreement(case, who, call, case.truth(inputs))


def test_every_goal_is_of_a_row():
    titles = {(case.op, case.name) for case in run.CASES}
    assert {*GOALS, *GPU_FACTORS, *CPU_FACTORS, *PEAKS} <= titles


def test_a_build_agrees_with_its_recording(tmp_path, monkeypatch):
    monkeypatch.setattr("bench.logs.folder", lambda: tmp_path)
    case = dataclasses.replace(BUILD_CASES[0], clouds=3)
    measured = run.Bench(rc, "cpu", timing.Effort(quick=True), None)
    try:
        inputs = case.make("cpu")  # needs rosbags
        for who in (OURS, COMMANDS):
            measured._agreement(case, who, measured._calls(case, who, [inputs])[0], case.truth(inputs))
    except Absent as reason:
        pytest.skip(str(reason))
    assert 10 < case.figures(OURS, inputs)["peak_mib"] < 300


def test_goals_of_memory():
    common = {"op": "build", "case": "1 GiB of PointCloud2 and Imu, zstd", "floor_us": 1.0, "threads": 1}
    rows = [common | {"who": OURS, "wall_us": 4e6, "peak_mib": 301.0}, common | {"who": COMMANDS, "wall_us": 3e6}]
    title = f"{common['op']} {common['case']}"
    assert report.goals(rows, "cpu") == [
        (title, f"0.6x {COMMANDS}", "0.75x", True),
        (title, "300 MiB", "301", False),
    ]


def test_what_is_not_there_is_skipped_and_said(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("ROBOCACHE_DATA", str(tmp_path))
    recordings.frames.cache_clear()
    options = run._arguments(["--device", "cpu", "--only", "20 shared frames as points", "--json", str(tmp_path / "r")])
    cases = run.select(options.only)
    assert run.Run(options, "cpu", [], cases, [1]).all() == 0
    assert f"skipped: there is no *.depth.png in {tmp_path}/depth; ROBOCACHE_DATA names" in capsys.readouterr().out


def test_goals_beside_others_and_the_floor():
    common = {"op": "voxelize", "case": "count 8M->256^3, sensor order", "floor_us": 40.0}
    rows = [
        common | {"who": OURS, "cold_us": 70.0, "wall_us": 71.0},
        common | {"who": "torch.compile", "cold_us": 150.0, "wall_us": 160.0},
        common | {"who": "float atomics", "cold_us": 35.0, "wall_us": 36.0},
    ]
    title = f"{common['op']} {common['case']}"
    assert report.goals(rows, "cuda") == [
        (title, "2x torch.compile", "2.14x", True),
        (title, "0.5x floor", "0.57x", True),
    ]
    assert "NO" not in report.table(rows, "cuda")
    record = {
        "rows": rows,
        "gpu": "a",
        "driver": "b",
        "cuda": "c",
        "torch": "d",
        "commit": "e",
        "copy_bytes_per_s": 1e12,
    }
    assert f"| {title} | 70.0 / 71.0 | float atomics | 35.0 / 36.0 | 0.5x |" in table.gpu_table(record)
