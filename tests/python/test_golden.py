"""Hashes of every case's outputs, in the repository: a machine with a GPU and one without check the same numbers.

`python tests/python/test_golden.py --write` makes tests/golden/*.json anew, from the reference backend. A change there
is a change of what RoboCache computes: say why in CHANGELOG.md.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import sys

import calling
import cases
import image_cases
import numpy as np
import pytest
import tsdf_cases
import voxel_calling
import voxel_cases

FOLDER = pathlib.Path(__file__).parents[1] / "golden"


def digest(arrays) -> str:
    hasher = hashlib.blake2b(digest_size=8)
    for array in arrays:
        hasher.update(f"{array.dtype.name}{array.shape}".encode())
        hasher.update(calling.bytes_of(array))
    return hasher.hexdigest()


def align_inputs(problem: cases.Problem):
    for stream in problem.streams:
        parts = (
            stream.values,
            stream.times,
            stream.arrivals,
            stream.lengths,
            stream.offsets,
            stream.rows,
            stream.as_of,
        )
        yield from (part for part in parts if isinstance(part, np.ndarray))
    if "as_of" in problem.options:
        yield np.asarray(problem.options["as_of"])
    yield np.asarray(problem.targets.start if isinstance(problem.targets, cases.Timeline) else problem.targets)


def align_outputs(problem: cases.Problem, backend: str, convert=calling.keep):
    for outputs in calling.align(problem, backend, convert):
        yield from outputs
    for dtype in problem.fuse_dtypes:
        yield calling.fuse(problem, backend, convert, calling.dtype_argument(dtype, backend))[0]


def voxelize_inputs(problem: voxel_cases.Problem):
    yield from (problem.arrays[name] for name in sorted(problem.arrays))
    yield from problem.start or ()


def tsdf_inputs(problem: tsdf_cases.Problem):
    yield from (problem.arrays[name] for name in sorted(problem.arrays))
    yield from problem.start or ()


TABLES = {
    "align": (cases.CASES, align_inputs, align_outputs),
    "voxelize": (voxel_cases.CASES, voxelize_inputs, voxel_calling.voxelize),
    "sparse": (voxel_cases.SPARSE_CASES, voxelize_inputs, voxel_calling.sparse),
    "downsample": (voxel_cases.DOWNSAMPLE_CASES, voxelize_inputs, voxel_calling.downsample),
    "tsdf": (tsdf_cases.CASES, tsdf_inputs, tsdf_cases.outputs),
    "image": (image_cases.CASES, image_cases.inputs, image_cases.outputs),
}
GOLDEN = {
    op: json.loads((FOLDER / f"{op}.json").read_text()) if (FOLDER / f"{op}.json").exists() else {} for op in TABLES
}


@pytest.mark.parametrize(
    ("op", "case"), [pytest.param(op, case, id=f"{op}-{case.name}") for op in TABLES for case in TABLES[op][0]]
)
def test_golden(op, case, backend):
    kind, convert = backend
    _, inputs_of, outputs_of = TABLES[op]
    problem = case.build()
    assert case.name in GOLDEN[op], f"{op}.json has no such case; python tests/python/test_golden.py --write"
    inputs, outputs = GOLDEN[op][case.name].split()
    assert digest(inputs_of(problem)) == inputs, "the inputs are not those that the hash was made from"
    assert digest(outputs_of(problem, kind, convert)) == outputs


@pytest.mark.parametrize("op", TABLES)
def test_golden_has_no_other_case(op):
    if not cases.BFLOAT16:
        pytest.skip("ml_dtypes is not installed: the table here is shorter")
    assert list(GOLDEN[op]) == [case.name for case in TABLES[op][0]]


def write() -> None:
    for op, (table, inputs_of, outputs_of) in TABLES.items():
        hashes = {}
        for case in table:
            problem = case.build()
            hashes[case.name] = f"{digest(inputs_of(problem))} {digest(outputs_of(problem, 'reference'))}"
        path = FOLDER / f"{op}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(hashes, indent=1) + "\n")
        print(f"{len(hashes)} cases -> {path}")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    write()
