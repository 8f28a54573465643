"""Writers and readers shared by threads, or open in a process that forks: an answer, a wait or a sentence; no crash."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from shared_cases import CASES

PATIENCE = 120  # seconds after which something hangs


@pytest.mark.parametrize("case", CASES)
def test_shared(tmp_path: Path, case: str) -> None:
    script = Path(__file__).with_name("shared_cases.py")
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(script), case, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
