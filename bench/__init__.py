"""Measures every number in README.md and docs/benchmarks.md.

python -m bench.run       times ours beside torch; writes build/bench/<machine>.json, or the file that --json names
python -m bench.profile   profiles our kernels with ncu; writes the same file
python -m bench.table     writes the documents' tables from bench/results/*.json
"""
