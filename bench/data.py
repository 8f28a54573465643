"""Where the recordings of real robots and sensors lie that tests and benchmarks read. tools/fetch-data fetches them."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def folder() -> Path:
    """The folder that ROBOCACHE_DATA names, or else shared/data beside the checkout. It need not exist."""
    named = os.environ.get("ROBOCACHE_DATA")
    return Path(named).absolute() if named else ROOT.parent / "shared" / "data"
