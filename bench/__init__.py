"""Every number in the README comes from here.

python -m bench.run       ours beside torch, timed, into bench/results/<machine>.json
python -m bench.profile   what ncu says of each of our kernels, into the same file
python -m bench.table     the README's tables from those files
"""
