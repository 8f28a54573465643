"""Shared libraries that a test preloads: record.c logs the calls that change a folder, faults.c lets calls fail."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def shim_of(name: str, folder: Path) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler to make the shim with")
    library, source = folder / f"{name}.so", Path(__file__).with_name(f"{name}.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl", "-pthread"], check=True)
    return library
