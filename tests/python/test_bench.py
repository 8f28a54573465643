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

import numpy as np
import pytest

import robocache as rc

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("typer", reason="Typer is not installed")

import torch

from bench import others, profile, recordings, records, report, run, table, timing
from bench.attention import ATTENTION_CASES, ActionCase, AttentionCase
from bench.builds import BUILD_CASES, COMMANDS
from bench.cases import SMALL_FUSE
from bench.goals import COMPILED, CPU_FACTORS, EAGER, GOALS, GPU_FACTORS, OURS, PEAKS, TUNED, Absent
from bench.image import IMAGE_CASES, ImageCase
from bench.loader import LOADER_CASES, NUMPY, ONE_SHARD, ConstructionCase
from bench.loader_cuda import LOADER_CUDA_CASES
from bench.report_command import INFO, REPORT_CASES
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
    record = json.loads((tmp_path / "result.json").read_text())
    assert {(row["commit"], row["run"]) for row in record["rows"]} == {(record["commit"], record["run"])}
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


@pytest.mark.parametrize("checked", [0.2, 100.0])
def test_batches_that_workers_have_ready_are_not_what_is_timed(monkeypatch, checked):
    """Two workers that need a second for a batch make two a second, however many lie ready at first. In single calls,
    one waits a second, and the next waits for nothing."""
    workers, waiting = 2, 4
    now, ready, taken = 0.0, [], []

    def batch() -> None:
        nonlocal now
        k = len(taken)
        begun = max(ready[k - workers] if k >= workers else 0.0, taken[k - waiting] if k >= waiting else 0.0)
        ready.append(begun + 1)
        now = max(now, ready[k])
        taken.append(now)

    monkeypatch.setattr(timing.time, "perf_counter", lambda: now)
    batch()
    now += checked  # while the first batch is compared, workers make more
    found = timing.wall(batch, timing.Effort(quick=True), lambda: None, ahead=waiting)
    assert found == pytest.approx(0.5e6)


def test_the_table_says_the_host_time_where_it_was_measured():
    record = json.loads((records.RESULTS / "h200.json").read_text())
    record.pop("host_without_launch_us", None)
    record["import_ms"] = 23.0
    assert "Host time" not in table.gpu_table(record, {})
    assert table.gpu_table(record, {}).endswith("\n\n`import robocache`: 23 ms beyond NumPy's.")
    measured = table.gpu_table(record | {"host_without_launch_us": 4.26}, {})
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
    if isinstance(case, ImageCase):
        return dataclasses.replace(case, frames=2, before=(60, 80), size=case.size and (22, 26), stack=case.stack and 3)
    if isinstance(case, SparseCase):
        return dataclasses.replace(case, number=2048, max_voxels=case.max_voxels and 2048)
    return dataclasses.replace(case, number=min(case.number, 2000))


def test_the_profile_has_every_kernel_of_attention_and_each_call_once():
    pattern = re.compile(profile.KERNELS.removeprefix("regex:"))
    for name in ("", "dq_", "dkv_", "delta_", "f32_", "f32_dq_", "f32_dkv_"):
        assert pattern.search(f"attention_{name}kernel")
    cases = profile.profiled(ATTENTION_CASES)
    assert cases == list(ATTENTION_CASES[:-1])  # the last is made of others


ROWS = [*VOXEL_CASES, *SPARSE_CASES, *IMAGE_CASES, *ATTENTION_CASES[:-1]]


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


@pytest.mark.parametrize("case", LOADER_CASES, ids=lambda case: case.title)
def test_rows_of_the_loader_agree_with_their_truth(case):
    """LeRobot is where `make judge` is."""
    if isinstance(case, ConstructionCase):
        row = dataclasses.replace(case, episodes=12)
    else:
        size = case.size and (24, 32)
        row = dataclasses.replace(case, episodes=5, seconds=1.0, windows=9, shards=min(case.shards, 3), size=size)
    if row.peers("cpu") and row.lerobot:
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        pytest.importorskip("av", reason="PyAV is not installed")
    measured = run.Bench(rc, "cpu", timing.Effort(quick=True), None)
    inputs = row.make("cpu")
    assert row.floor_bytes(inputs) > 0
    for who in (OURS, *({NUMPY, ONE_SHARD} & set(row.peers("cpu")))):
        measured._agreement(row, who, measured._calls(row, who, [inputs])[0], row.truth(inputs))


@pytest.mark.parametrize("case", LOADER_CUDA_CASES, ids=lambda case: case.title)
def test_rows_of_the_loader_on_a_gpu_agree_with_their_truth_on_a_cpu(case):
    row = dataclasses.replace(case, episodes=3, seconds=2.0, windows=8, size=case.size and (8, 12))
    measured = run.Bench(rc, "cpu", timing.Effort(quick=True), None)
    inputs = row.make("cpu")
    assert row.floor_bytes(inputs) > 0
    for who in {OURS, EAGER} & {OURS, *row.peers("cuda")}:
        measured._agreement(row, who, measured._calls(row, who, [inputs])[0], row.truth(inputs))


def test_the_loader_of_a_cache_of_ones_own(tmp_path):
    cache = tmp_path / "cache"
    with rc.CacheWriter(cache) as writer:
        times = np.arange(200) * 10_000_000
        joints = rc.Stream(np.zeros((200, 3), np.float32), times)
        writer.add(
            {"joints": joints, "command": joints, "camera": rc.Stream(np.zeros((200, 8, 9, 3), np.uint8), times)}
        )
    command = [sys.executable, "-m", "robocache.cli", "bench", "loader", str(cache), "--rate", "50", "--seconds", "0.1"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
    assert "windows/s" in told
    assert "action.command: command; [64, 16, 3] float32" in told
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=PATIENCE, check=True)
    found = json.loads(done.stdout)
    assert found["windows"] == 100
    assert found["windows_per_s"] > 0
    assert set(found["parts_ms"]) == {"align", "pictures", "finishing", "order and the rest"}
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(rc.Loader(cache, batch_size=4, rate=10, observation="joints").spec()))
    done = subprocess.run([*command[:6], "--spec", str(spec), "--json"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["batch_size"] == 4
    absent = subprocess.run([*command[:5], str(tmp_path / "no"), "--rate", "5"], capture_output=True, text=True)
    assert absent.returncode == 1
    assert absent.stderr.startswith("robocache bench loader: ")


def test_max_autotune_agrees_with_its_truth():
    case = small(VOXEL_CASES[0])
    inputs = case.make("cpu")
    measured = run.Bench(rc, "cpu", timing.Effort(quick=True), None)
    (call,) = measured._calls(case, TUNED, [inputs])
    measured._agreement(case, TUNED, call, case.truth(inputs))


def test_each_mode_of_torch_compile(monkeypatch):
    """Cold times are replays of our own CUDA graph, which cannot hold max-autotune's."""
    seen = []
    monkeypatch.setattr(run.torch, "compile", lambda function, **options: seen.append(options) or function)
    measured = run.Bench(rc, "cpu", timing.Effort(quick=True), None)
    case = small(VOXEL_CASES[0])
    inputs = [case.make("cpu")]
    measured._calls(case, EAGER, inputs)
    assert seen == []
    measured._calls(case, COMPILED, inputs)
    measured._calls(case, TUNED, inputs)
    measured._calls(case, TUNED, inputs, own_graphs=False)
    assert [options["mode"] for options in seen] == ["default", "max-autotune", "max-autotune-no-cudagraphs"]
    assert not any(options["dynamic"] for options in seen)


def test_max_autotune_is_a_peer_wherever_torch_compile_is():
    for case in run.CASES:
        for device in case.devices:
            peers = case.peers(device)
            kept = isinstance(case, ActionCase)  # all its results are kept, and max-autotune overwrites earlier ones
            assert (TUNED in peers) == (COMPILED in peers and not kept), case.title
            assert set(peers) <= set(run.PEERS)


def test_every_peer_can_be_named():
    assert run._arguments([]).peers.split(",") == list(run.PEERS)


GROUPED = [case for case in ATTENTION_CASES[:-1] if case.heads[0] != case.heads[1]]


@pytest.mark.parametrize("case", GROUPED, ids=lambda case: case.title)
def test_sdpa_with_repeated_heads_agrees_with_its_truth(case):
    """As the efficient kernel gets them, which has no grouped heads."""
    row = small(case)
    inputs = row.make("cpu")
    call = row.with_gradient(inputs, row.sdpa(inputs, repeat=True))
    run.Bench(rc, "cpu", timing.Effort(quick=True), None)._agreement(row, EAGER, call, row.truth(inputs))


def test_forced_kernels_of_sdpa_hold_while_they_are_measured():
    case = small(ATTENTION_CASES[0])
    flash = torch.backends.cuda.flash_sdp_enabled
    assert flash()
    with case.settings("SDPA math"):
        assert not flash()
        inputs = case.make("cpu")
        call = case.other_call("SDPA math", inputs)
        run.Bench(rc, "cpu", timing.Effort(quick=True), None)._agreement(case, "SDPA math", call, case.truth(inputs))
    assert flash()
    with case.settings(EAGER):
        assert flash()


def test_the_mask_for_sdpa_has_aligned_rows():
    """Else SDPA would copy it into such rows in every call."""
    inputs = small(ATTENTION_CASES[0]).make("cpu")
    assert inputs.bias.shape == inputs.mask.shape
    assert inputs.bias.stride(-2) % 8 == 0
    assert torch.equal(inputs.bias == 0, inputs.mask)


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


@pytest.mark.parametrize(
    ("row", "other", "most"), [(BUILD_CASES[0], COMMANDS, 300), (REPORT_CASES[0], INFO, 400)], ids=["build", "report"]
)
def test_a_command_agrees_with_its_recording(tmp_path, monkeypatch, row, other, most):
    monkeypatch.setattr("bench.logs.folder", lambda: tmp_path)
    case = dataclasses.replace(row, clouds=3)
    measured = run.Bench(rc, "cpu", timing.Effort(quick=True), None)
    try:
        inputs = case.make("cpu")  # needs rosbags
        for who in (OURS, other):
            measured._agreement(case, who, measured._calls(case, who, [inputs])[0], case.truth(inputs))
    except Absent as reason:
        pytest.skip(str(reason))
    assert 10 < case.figures(OURS, inputs)["peak_mib"] < most


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
    assert (
        f"skipped: there is no *.depth.png in {tmp_path}/depth; tools/fetch-data fetches it" in capsys.readouterr().out
    )


def test_goals_beside_others_and_the_floor():
    common = {"op": "voxelize", "case": "count 8M->256^3, sensor order", "floor_us": 40.0, "commit": "e"}
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
        "copy_bytes_per_s": 1e12,
    }
    assert f"| {title} | 70.0 / 71.0 | float atomics | 35.0 / 36.0 | 0.5x | `e` (old) |" in table.gpu_table(
        record, {"e": "old"}
    )
