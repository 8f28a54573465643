"""The examples run as they are. Those in the README and on the pages of docs/: test_documents.py."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> str:
    answer = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_align_robot():
    said = run("examples/align_robot.py")
    assert re.search(r"^wrist +\(\d+, 48, 64, 3\) +uint8", said, re.MULTILINE)
    assert re.search(r"^pose +\(\d+, 7\) +float32", said, re.MULTILINE)
    assert re.search(r"^gripper +\(\d+,\) +uint8", said, re.MULTILINE)


def test_train_windows():
    pytest.importorskip("torch", reason="torch is not installed")
    said = run("examples/train_windows.py")
    assert "observed (256, 3, 71), to predict (256, 16, 7)" in said
    assert re.search(r"loss \d+\.\d+", said)


def test_voxelize_depth():
    pytest.importorskip("torch", reason="torch is not installed")
    said = run("examples/voxelize_depth.py")
    assert "(32, 120, 160) torch.uint16 -> (16, 25, 25, 8, 3) torch.float32" in said
    assert re.search(r"of 614400 pixels \d{5} had no reading and \d{6} lay outside", said)
    assert re.search(r"loss \d+\.\d+", said)


def test_policy_attention():
    pytest.importorskip("torch", reason="torch is not installed")
    said = run("examples/policy_attention.py")
    error = re.search(r"^\(1, 50, 256\) .+ differ by (.+) of the largest action$", said, re.MULTILINE)
    assert error
    assert float(error[1]) < (1e-4 if "on cpu" in said else 5e-2)
    assert re.search(r"^SDPA \d+\.\d\d ms an action\nours \d+\.\d\d ms an action$", said, re.MULTILINE)


def test_train_policy():
    pytest.importorskip("torch", reason="torch is not installed")
    said = run("examples/train_policy.py", "--steps", "60", "--episodes", "80", "--goal", "90")
    assert re.search(r"^Loader\(.+ batches of 64", said, re.MULTILINE)
    assert "step 30: goes on from checkpoint.pt" in said
    assert re.search(r"^step 60: loss \d+\.\d+$", said, re.MULTILINE)
    assert re.search(r"^error of 16 commands: \d+\.\d+ degrees; .+ holds still: \d+\.\d+ degrees$", said, re.MULTILINE)


def test_make_recording(tmp_path):
    first, second = tmp_path / "first.mcap", tmp_path / "second.mcap"
    run("examples/make_recording.py", str(first))
    run("examples/make_recording.py", str(second))
    assert first.read_bytes() == second.read_bytes()
    assert 10_000 < first.stat().st_size < 100_000
