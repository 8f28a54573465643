"""Hashes of every case's outputs, in the repository: a machine with a GPU and one without check the same numbers.

`python tests/python/test_golden.py --write` makes tests/golden/align.json anew, from the reference backend. A change
there is a change of what RoboCache computes: say why in CHANGELOG.md.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import sys

import calling
import cases
import numpy as np
import pytest

PATH = pathlib.Path(__file__).parents[1] / "golden" / "align.json"
GOLDEN = json.loads(PATH.read_text()) if PATH.exists() else {}


def digest(arrays) -> str:
    hasher = hashlib.blake2b(digest_size=8)
    for array in arrays:
        hasher.update(f"{array.dtype.name}{array.shape}".encode())
        hasher.update(calling.bytes_of(array))
    return hasher.hexdigest()


def inputs_of(problem: cases.Problem):
    for stream in problem.streams:
        parts = (stream.values, stream.times, stream.arrivals, stream.lengths, stream.offsets, stream.rows)
        yield from (part for part in parts if part is not None)
    yield np.asarray(problem.targets.start if isinstance(problem.targets, cases.Timeline) else problem.targets)


def outputs_of(problem: cases.Problem, backend: str, convert=calling.keep):
    for outputs in calling.align(problem, backend, convert):
        yield from outputs
    for dtype in problem.fuse_dtypes:
        yield calling.fuse(problem, backend, convert, calling.dtype_argument(dtype, backend))[0]


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_golden(case, backend):
    kind, convert = backend
    problem = case.build()
    assert case.name in GOLDEN, f"{PATH.name} has no such case; python tests/python/test_golden.py --write"
    inputs, outputs = GOLDEN[case.name].split()
    assert digest(inputs_of(problem)) == inputs, "the inputs are not those that the hash was made from"
    assert digest(outputs_of(problem, kind, convert)) == outputs


def test_golden_has_no_other_case():
    if not cases.BFLOAT16:
        pytest.skip("ml_dtypes is not installed: the table here is shorter")
    assert list(GOLDEN) == [case.name for case in cases.CASES]


def write() -> None:
    table = {}
    for case in cases.CASES:
        problem = case.build()
        table[case.name] = f"{digest(inputs_of(problem))} {digest(outputs_of(problem, 'reference'))}"
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(json.dumps(table, indent=1) + "\n")
    print(f"{len(table)} cases -> {PATH}")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    write()
