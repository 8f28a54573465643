"""python -m bench.tune.voxelize [NAME...]: sweeps of src/ops/voxelize/cuda/tuning.h.

Needs a GPU. It has not been run since it was written."""

from __future__ import annotations

import sys

from bench.tune.sweep import Sweep, over, run

DENSE = ("voxelize",)
IMAGES = ("voxelize_depth",)
SPARSE = ("voxelize sparse", "voxelize first", "voxel_downsample")

SWEEPS = {
    "threads": Sweep(
        [{"threads": t, "points_per_thread": p} for t, p in ((128, 2), (128, 4), (256, 4), (256, 8))], DENSE
    ),
    "most_rounds": over("most_rounds", (1, 4, 8, 16), DENSE),
    "tiles_per_processor": over("tiles_per_processor", (16, 32, 64), DENSE),
    "cache_slots": over("cache_slots", (128, 256, 512), DENSE),
    "image_flight": over("image_flight", (2, 4, 8), IMAGES),
    "most_image_rows": over("most_image_rows", (16, 24, 32, 48, 60), IMAGES),
    "image_blocks_per_processor": over("image_blocks_per_processor", (4, 8, 16), IMAGES),
    "cells_per_thread": over("cells_per_thread", (4, 8), DENSE),
    "chains": Sweep([{"cells_blocks": b, "chain_flight": f} for b, f in ((6, 2), (5, 4), (8, 2))], DENSE),
    "longest_chain": over("longest_chain", (16, 32, 64), DENSE),
    "heavy_span": over("heavy_span", (128, 256, 512), DENSE),
    "bins": over("bins", (512, 1024, 2048), DENSE),
    "bin_least_points": over("bin_least_points", (1_000_000, 2_000_000, 4_000_000), DENSE),
    "feature_sort_points": over("feature_sort_points", (4, 8), DENSE),
    "feature_bin_blocks": over("feature_bin_blocks", (4, 8), DENSE),
    "feature_bin_staged": over("feature_bin_staged", (1, 2, 3, 4), DENSE),
    "longest_cell": over("longest_cell", (31, 63, 127), DENSE),
    "marks_per_thread": over("marks_per_thread", (4, 8, 16), DENSE),
    "blocks_per_processor": over("blocks_per_processor", (16, 32, 64), DENSE),
    "heavy_blocks_per_processor": over("heavy_blocks_per_processor", (4, 8, 16), DENSE),
    "long_row": over("long_row", (64, 128, 256), SPARSE),
    "magnitudes_per_thread": over("magnitudes_per_thread", (8, 16, 32), SPARSE),
    "magnitudes_blocks_per_processor": over("magnitudes_blocks_per_processor", (4, 8, 16), SPARSE),
}

if __name__ == "__main__":
    sys.exit(run("voxelize", SWEEPS))
