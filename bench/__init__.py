"""Every number in README.md and docs/benchmarks.md comes from here.

python -m bench.run       ours beside torch, timed, into build/bench/<machine>.json or what --json names
python -m bench.profile   what ncu says of each of our kernels, into the same file
python -m bench.table     the documents' tables from bench/results/*.json
"""
