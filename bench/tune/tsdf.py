"""python -m bench.tune.tsdf [NAME...]: sweeps of src/ops/tsdf/cuda/tuning.h.

Needs a GPU. It has not been run since it was written."""

from __future__ import annotations

import sys

from bench.tune.sweep import over, run

SWEEPS = {
    "threads": over("threads", (64, 128, 256), ("tsdf",)),
    "cameras": over("cameras", (16, 32, 64), ("tsdf",)),
}

if __name__ == "__main__":
    sys.exit(run("tsdf", SWEEPS))
