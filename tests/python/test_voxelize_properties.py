"""What must hold of voxelize whatever the numbers are, over problems that hypothesis picks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import voxel_calling
import voxel_cases as cases
import voxel_oracle as oracle

import robocache as rc

pytest.importorskip("hypothesis")
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hn

seeds = st.integers(0, 2**32 - 1)
backends = st.sampled_from(["reference", "cpu"])


@st.composite
def problems(draw, layouts=tuple(cases.LAYOUTS), **options):
    random = cases.Random(draw(seeds))
    return cases.make_clouds(
        random,
        **{
            "dtype": draw(st.sampled_from(cases.POINT_DTYPES)),
            "layout": draw(st.sampled_from(layouts)),
            "points": draw(st.integers(0, 30)),
            "clouds": draw(st.integers(1, 4)),
            "channels": draw(st.integers(0, 3)),
            "feature_dtype": draw(st.sampled_from(cases.FEATURE_DTYPES)),
            "odd_points": draw(st.booleans()),
            "odd_features": draw(st.booleans()),
            "pose": draw(st.sampled_from([None, "float32", "float64"])),
            "grid": draw(st.sampled_from([cases.GRID, cases.TENTHS, cases.FLAT])),
            "reduce": cases.REDUCTIONS,
            **options,
        },
    )


@given(problems(), backends)
def test_equals_the_oracle(problem, backend):
    expected = oracle.voxelize(problem)
    actual = voxel_calling.voxelize(problem, backend)
    voxel_calling.assert_same(actual, [*expected.values, expected.dropped], "oracle")


@given(problems(), backends)
def test_no_point_is_lost(problem, backend):
    """Every point is counted once: in a cell, or under the reason why not."""
    outputs = voxel_calling.voxelize(problem, backend)
    clouds = oracle.number_of_clouds(problem)
    points = sum(len(oracle.cloud_points(problem, c)[0]) for c in range(1 if clouds is None else clouds))
    assert int(outputs[0].sum()) + int(outputs[-1].sum()) == points
    np.testing.assert_array_equal(outputs[1], outputs[0] > 0)


@given(problems(layouts=("single", "padded", "into")), st.randoms(use_true_random=False), backends)
def test_the_order_of_points_does_not_matter(problem, shuffler, backend):
    order = list(range(problem.arrays["points"].shape[-2]))
    shuffler.shuffle(order)
    arrays = {
        name: np.take(a, order, axis=-2) if name in ("points", "features") else a for name, a in problem.arrays.items()
    }
    shuffled = cases.Problem(problem.grid, arrays, problem.options)
    voxel_calling.assert_same(
        voxel_calling.voxelize(shuffled, backend), voxel_calling.voxelize(problem, backend), "shuffled"
    )


@given(problems(layouts=("lengths",)), backends)
def test_packed_equals_padded(problem, backend):
    lengths = [int(n) for n in problem.arrays["lengths"]]
    arrays = {name: a for name, a in problem.arrays.items() if name != "lengths"}
    for name in ("points", "features"):
        arrays[name] = np.concatenate([arrays[name][c, :n] for c, n in enumerate(lengths)])
    arrays["offsets"] = np.concatenate([[0], np.cumsum(lengths)])
    packed = cases.Problem(problem.grid, arrays, problem.options)
    voxel_calling.assert_same(
        voxel_calling.voxelize(packed, backend), voxel_calling.voxelize(problem, backend), "packed"
    )


@given(problems(layouts=("padded",), pose=None), backends)
def test_clouds_into_one_grid_are_one_cloud(problem, backend):
    clouds, points = problem.arrays["points"].shape[:2]
    joined = {name: a.reshape(clouds * points, a.shape[-1]) for name, a in problem.arrays.items()}
    problem.arrays["into"] = np.zeros(clouds, np.int64)
    one = voxel_calling.voxelize(cases.Problem(problem.grid, joined, problem.options), backend)
    many = voxel_calling.voxelize(problem, backend)
    voxel_calling.assert_same([array[0] for array in many[:-1]], one[:-1], "into")


@given(problems(layouts=("single", "padded")), backends)
def test_bits_are_the_packed_bytes(problem, backend):
    bytes_, _ = voxel_calling.voxelize(problem, backend, reduce="occupancy")
    bits, _ = voxel_calling.voxelize(problem, backend, reduce="occupancy", packed=True)
    np.testing.assert_array_equal(bits, np.packbits(bytes_, axis=-1, bitorder="little"))


@given(
    hn.arrays(np.float32, st.integers(1, 40), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)),
    backends,
)
def test_sums_of_any_floats_are_within_the_bound(column, backend):
    n = len(column)
    grid = rc.Grid((0, 0, 0), 1, (1, 1, 1))
    voxels = rc.voxelize(
        np.zeros((n, 3), np.float32), grid, features=column[:, None], reduce=("sum", "mean"), backend=backend
    )
    total, mean = (float(array.reshape(())) for array in voxels.values)
    truth = math.fsum(column.tolist())
    bound = n * float(np.abs(column).max()) * 2.0 ** (n.bit_length() - 62)
    for actual, exact, slack in ((total, truth, bound), (mean, truth / n, bound / n)):
        if abs(exact) + slack > float(np.finfo(np.float32).max):
            assert abs(actual) > 3.4e38
            continue
        assert abs(actual - exact) <= slack + 2.0**-24 * abs(exact) * (1 + 2.0**-20) + 2.0**-150


@given(
    hn.arrays(st.sampled_from([np.float32, np.float64]), (5, 3), elements=st.floats(width=32, allow_subnormal=True)),
    st.sampled_from([1e-30, 0.1, 0.5, 3.0, 1e20]),
    st.integers(1, 6),
    backends,
)
def test_any_bits_are_points(points, size, cells, backend):
    """Whatever a point is, it is in the cell that the rule says, or counted; nothing is written elsewhere."""
    problem = cases.Problem(((-1.0, 0.0, 0.3), (size, 2 * size, size), (cells, cells, 2)), {"points": points})
    expected = oracle.voxelize(problem)
    voxel_calling.assert_same(
        voxel_calling.voxelize(problem, backend), [*expected.values, expected.dropped], "any bits"
    )
