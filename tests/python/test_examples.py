"""The examples, and the one in the README, run as they are."""

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


def readme(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.+?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_the_readme_s_example():
    said = run("-c", readme("python")[0])
    assert re.fullmatch(r"\(100, 7\), at most 10 ms old; gripper valid at 99% of 100 steps\n", said)


def test_all_that_the_readme_shows():
    pytest.importorskip("torch", reason="torch is not installed")
    said = run("-c", "".join(readme("python")))
    assert re.search(
        r"\(3, 10, 7\)\ntorch.Size\(\[200, 7\]\)\nregular, nothing lost \(1, 100, 7\)\n"
        r"\(2, 120, 120, 40, 3\) \[( *\d+){4}\]\n"
        r"\(\d+, 8\) \(4000, 5, 11\) \(\d+, 3\)\n\(\d+, 3\)\n"
        r"torch.Size\(\[1, 8, 51, 64\]\) torch.Size\(\[1, 8, 51\]\)\n$",
        said,
    )
