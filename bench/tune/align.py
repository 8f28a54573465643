"""python -m bench.tune.align [NAME...]: sweeps of src/ops/align/cuda/tuning.h.

Needs a GPU. It has not been run since it was written."""

from __future__ import annotations

import sys

from bench.tune.sweep import Sweep, over, run

# The plain rows of the bench, which tuning.h counts from the first to the last.
ROWS = ("resample 64x4096->1024x32", "fuse", "resample 16x300->200x4096", "resample hold", "resample 100000x50->20x8")
GENERAL = ("resample angle 256x500", "resample cubic", "resample pose 256x500", "resample mean", "resample max")

SWEEPS = {
    "threads": over("threads", (64, 128), ROWS),
    "blocks_per_processor": over("blocks_per_processor", (12, 16, 20), ROWS),
    "vectors_in_flight": over("vectors_in_flight", (1, 2, 3), ROWS),
    "most_vectors": over("most_vectors", (4, 8, 16, 32), ROWS),
    "fewest_vectors": over("fewest_vectors", (2, 4, 8), ROWS),
    "window_stamps": over("window_stamps", (128, 256, 512), ROWS),
    "margins": Sweep([{"narrow_margin": n, "wide_margin": w} for n, w in ((8, 48), (16, 48), (16, 96))], ROWS),
    "fewest_targets": over("fewest_targets", (8, 16, 32), ROWS),
    "general_blocks_per_processor": over("general_blocks_per_processor", (8, 10, 12), GENERAL),
    "general_channels": over("general_channels", (16, 32, 64), GENERAL),
    "general_steps": over("general_steps", (8, 16, 32), GENERAL),
    "bin_samples": over("bin_samples", (16, 32, 64), GENERAL),
    "bin_unroll": over("bin_unroll", (2, 4, 8), GENERAL),
    "check_threads": over("check_threads", (64, 128, 256), ("resample 1x10000000",)),
    "checks_per_thread": over("checks_per_thread", (8, 16, 32), ("resample 1x10000000",)),
}

if __name__ == "__main__":
    sys.exit(run("align", SWEEPS))
