"""Someone else's CMake project finds the installed library, links it and runs."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess

import pytest

REPOSITORY = pathlib.Path(__file__).parents[2]


def build_tree() -> pathlib.Path | None:
    """The build tree that this machine has."""
    named = os.environ.get("ROBOCACHE_BUILD")
    for tree in [pathlib.Path(named)] if named else [REPOSITORY / "build" / name for name in ("dev", "gpu", "release")]:
        if (tree / "CMakeCache.txt").exists() and any(tree.glob("librobocache.*")):
            return tree
    return None


def run(*command) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_a_project_outside_the_tree(tmp_path):
    if shutil.which("cmake") is None:
        pytest.skip("cmake is not installed")
    tree = build_tree()
    if tree is None:
        pytest.skip("no build tree: cmake --preset dev && cmake --build --preset dev")
    project = tmp_path / "project"
    shutil.copytree(REPOSITORY / "tests" / "consumer", project)
    run("cmake", "--install", tree, "--prefix", tmp_path / "prefix")
    run("cmake", "-S", project, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={tmp_path / 'prefix'}")
    run("cmake", "--build", tmp_path / "build")
    programs = [p for p in (tmp_path / "build").iterdir() if p.is_file() and os.access(p, os.X_OK)]
    assert len(programs) == 1
    assert run(programs[0]).strip()
