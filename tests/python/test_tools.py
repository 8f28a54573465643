"""make, tools/ and cmake/ scripts, as a shell sees them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def run(*command: object, folder: Path = REPOSITORY, **environment: str) -> subprocess.CompletedProcess[str]:
    if shutil.which(str(command[0])) is None:
        pytest.skip(f"{command[0]} is not installed")
    variables = os.environ | environment
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=60, cwd=folder, env=variables
    )


def test_make_alone_lists_the_targets():
    done = run("make", "--no-print-directory", MAKEFLAGS="")  # which it prints inside `make test`
    assert done.returncode == 0, done.stderr
    listed = re.findall(r"^make (\w+) +\S", done.stdout, re.MULTILINE)
    assert (
        " ".join(listed)
        == "demo build test judge matrix gpu arm sse bench fuzz crash distros lint format docs wheel reproduce clean"
    )
    assert len(done.stdout.splitlines()) == len(listed), "and builds nothing"


def path_without(tmp_path: Path, program: str) -> str:
    """A PATH with all programs but one."""
    for folder in os.environ["PATH"].split(os.pathsep):
        for found in Path(folder).glob("*"):
            link = tmp_path / found.name
            if found.name != program and not link.is_symlink():
                link.symlink_to(found)
    return str(tmp_path)


def test_without_compute_sanitizer_the_step_fails(tmp_path):
    """Kernels that nobody looked at are not kernels that are fine."""
    (tmp_path / "bin").mkdir()
    path = path_without(tmp_path / "bin", "compute-sanitizer")
    done = run("tools/gpu", "sanitize", OUT=str(tmp_path / "out"), PATH=path)
    assert done.returncode == 1
    assert re.search(r"^sanitize +FAILED", done.stdout, re.MULTILINE)
    assert "compute-sanitizer is not on the PATH: the kernels are unchecked." in done.stdout
    assert done.stdout.endswith("failed: sanitize\n")


def test_an_unknown_step_is_refused(tmp_path):
    done = run("tools/gpu", "sanitise", OUT=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr == "tools/gpu: no step is named sanitise\n"


@pytest.mark.parametrize(
    ("free", "cores", "workers"), [("143000", 16, 16), ("20000", 16, 3), ("100", 16, 1), ("[N/A]", 4, 4), (None, 4, 4)]
)
def test_workers_fit_into_the_gpu_s_memory(tmp_path, free, cores, workers):
    """In a tree of its own: the step deletes the reports of the build that it tests."""
    for name in ("tools/gpu", "bench/results/h200.json"):
        (tmp_path / name).parent.mkdir(parents=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    (tmp_path / "bin").mkdir()
    path = path_without(tmp_path / "bin", "nvidia-smi")
    programs = {"nproc": f"echo {cores}", "python3": f'echo "$@" >> {tmp_path}/asked'}
    if free is not None:
        programs["nvidia-smi"] = f"echo '{free}'; echo 1"
    for name, body in programs.items():
        (tmp_path / "bin" / name).unlink(missing_ok=True)
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    run(tmp_path / "tools/gpu", "test", OUT=str(tmp_path / "out"), PATH=path)
    asked = (tmp_path / "asked").read_text()
    assert f"-m pytest -n {workers} " in asked, asked


@pytest.mark.parametrize("note", [[], ["--note", "NO CUDA KERNEL WAS COMPILED"]])
def test_the_summary_closes_with_counts_and_a_note(tmp_path, note):
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuite><testcase name="a"/><testcase name="b"><skipped message="why"/></testcase></testsuite>'
    )
    done = run(sys.executable, "tools/summary.py", *note, report)
    assert done.returncode == 0
    ending = f"; {note[1]}" if note else ""
    assert done.stdout == f"skipped 1: why\n1 passed, 0 failed, 1 skipped{ending}\n"
    done = run(sys.executable, "tools/summary.py", *note, report, tmp_path / "missing.xml")
    assert done.returncode == 1
    assert done.stdout.endswith(f"1 passed, 1 failed, 1 skipped{ending}\n")


def test_a_backend_counts_as_one_skip_for_each_reason(tmp_path):
    """Its cases of pytest, which one skip stands for, and those of ctest, which skip one by one."""
    pytests, ctests = tmp_path / "pytest.xml", tmp_path / "ctest.xml"
    skips = ("cuda: 5,210 cases not run: no GPU", "cuda: no GPU", "cuda: torch sees no GPU", "no jax", "no jax")
    cases = "".join(f'<testcase name="{k}"><skipped message="{why}"/></testcase>' for k, why in enumerate(skips))
    pytests.write_text(f'<testsuite><testcase name="a"/>{cases}</testsuite>')
    said = "a_test.cpp:4: Skipped\ncuda: no GPU\n"
    skipped = f'<testcase name="c"><skipped message="SKIP"/><system-out>{said}</system-out></testcase>'
    ctests.write_text(f"<testsuite>{skipped}{skipped}</testsuite>")
    done = run(sys.executable, "tools/summary.py", pytests, ctests)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "cuda: 5,213 cases not run: no GPU",
        "cuda: 1 case not run: torch sees no GPU",
        "skipped 2: no jax",
        "1 passed, 0 failed, 4 skipped",
    ]


def test_pytest_folds_a_backend_that_cannot_run(tmp_path):
    calling = pytest.importorskip("calling")
    if calling.unavailable("cuda") is None:
        pytest.skip("cuda runs here")
    report = tmp_path / "pytest.xml"
    chosen = ["tests/python/test_voxelize_data.py", "-k", "cuda", f"--junitxml={report}"]
    done = run(sys.executable, "-m", "pytest", "-q", *chosen)
    assert re.search(r"^1 skipped, \d+ deselected", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r'message="cuda: \d+ cases not run: ', report.read_text())
    assert done.returncode == 0


def test_the_build_names_the_commit_it_is_of(tmp_path):
    """Also where there is no .git, but tools/carry has been."""
    header = tmp_path / "commit.h"
    tree = tmp_path / "tree"
    tree.mkdir()

    def commit_in_header() -> str:
        inside = {"GIT_CEILING_DIRECTORIES": str(tmp_path)}  # a repository around the folder does not count
        run("cmake", f"-DSOURCE={tree}", f"-DHEADER={header}", "-P", "cmake/commit.cmake", **inside)
        found = re.fullmatch(r'#define ROBOCACHE_COMMIT "(\w+)"\n', header.read_text())
        assert found, header.read_text()
        return found[1]

    assert commit_in_header() == "unknown"
    (tree / ".carry").mkdir()
    (tree / ".carry" / "commit").write_text("0123456789ab\n")
    assert commit_in_header() == "0123456789ab"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", tree]
    run(*git, "init", "--quiet")
    for message in ("first", "second"):
        run(*git, "commit", "--quiet", "--allow-empty", "-m", message)
        assert commit_in_header() == run(*git, "rev-parse", "--short=12", "HEAD").stdout.strip()


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        ("buster", "no suite is named buster; there are bookworm trixie sid"),
        ("sid/g++-4", "sid has no step g++-4; it has readme demo g++-15 g++-16"),
    ],
)
def test_distros_names_what_there_is(wanted, sentence):
    done = run("tools/distros", wanted)
    assert done.returncode == 1
    assert done.stderr == f"tools/distros: {sentence}\n"


def test_the_table_of_distros_keeps_the_rows_of_other_steps(tmp_path):
    """And is left alone where the checkout has changes that its commit does not have."""
    for name in ("tools/distros_table.py", "tools/page.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    page = tmp_path / "docs/versions.md"
    page.parent.mkdir()
    kept = "| `a/readme` | passed | g++ 12 | `0123456789ab` | 2026-01-02 |"
    page.write_text(f"# Versions\n<!-- tools/distros writes from here -->\n{kept}\n<!-- to here -->\nThe end.\n")

    def note(step: str, result: str, commit: str) -> list[str]:
        call = ["tools/distros_table.py", tmp_path / "results.json", step, result, 60, "g++ 13", commit]
        done = run(sys.executable, *call, "a/readme", "a/demo", "b/test", folder=tmp_path)
        assert done.returncode == 0, done.stderr
        return page.read_text().splitlines()

    assert note("b/test", "passed", "0123456789ab with changes")[2:4] == [kept, "<!-- to here -->"]
    *before, demo, test, _, end = note("b/test", "FAILED", "ba9876543210")
    assert before[-1] == kept
    assert end == "The end."
    assert demo == "| `a/demo` | not run yet | | | |"
    assert test.startswith("| `b/test` | FAILED | g++ 13 | `ba9876543210` | 20")
    assert note("b/test", "passed", "ba9876543210")[-3] == test.replace("FAILED", "passed")
