"""Sweeps of the numbers in src/ops/*/cuda/tuning.h: `python -m bench.tune.align`, `.voxelize`, `.tsdf`."""
