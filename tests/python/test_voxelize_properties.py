"""What must hold of voxelize whatever the numbers are, over problems that hypothesis picks."""

from __future__ import annotations

import math

import calling
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


# ---- sparse ------------------------------------------------------------------------------------------------------


@given(problems(), st.one_of(st.none(), st.integers(0, 12)), st.integers(1, 4), backends)
def test_sparse_equals_the_oracle(problem, max_voxels, first, backend):
    actual = voxel_calling.sparse(problem, backend, max_voxels=max_voxels, first=first)
    voxel_calling.assert_same(actual, oracle.sparse(problem, first, max_voxels).arrays(), "oracle")


@given(problems(), backends)
def test_sparse_scattered_back_is_the_dense_grid(problem, backend):
    *dense, dropped = voxel_calling.voxelize(problem, backend)
    voxels = voxel_calling.call(problem, backend, layout="sparse")
    np.testing.assert_array_equal(voxels.dropped.counts, dropped)
    batched = oracle.is_batched(problem)
    grid, x, y, z = voxels.coordinates.T
    for sparse_values, grids in zip(voxels.values, dense, strict=True):
        scattered = np.zeros_like(grids if batched else grids[None])
        scattered[grid, x, y, z] = sparse_values
        calling.assert_same_bytes(scattered if batched else scattered[0], grids, "scattered")
    count = dense[0] if batched else dense[0][None]
    np.testing.assert_array_equal(voxels.coordinates, np.argwhere(count > 0))  # sorted by grid, x, y, z, each once


@given(problems(), st.one_of(st.none(), st.integers(0, 12)), backends)
def test_point_to_voxel_says_what_was_counted(problem, max_voxels, backend):
    voxels = voxel_calling.call(problem, backend, layout="sparse", max_voxels=max_voxels, first=2)
    rows = voxels.point_to_voxel.reshape(-1)
    used, lost = voxels.found.tolist()
    assert rows.min(initial=-1) >= -1
    assert rows.max(initial=-1) < max(used, 1)
    np.testing.assert_array_equal(np.bincount(rows[rows >= 0], minlength=len(voxels.counts)), voxels.counts)
    np.testing.assert_array_equal(voxels.number, np.minimum(voxels.counts, 2))
    assert (voxels.counts[:used] > 0).all()
    assert (voxels.coordinates[used:] == -1).all()
    assert lost == 0 or used == max_voxels
    clouds = oracle.number_of_clouds(problem)
    points = sum(len(oracle.cloud_points(problem, c)[0]) for c in range(1 if clouds is None else clouds))
    reached = points - int(voxels.dropped.counts.sum())
    assert int(voxels.counts.sum()) == reached if lost == 0 else int(voxels.counts.sum()) < reached
    for row in range(used):  # and `first` has the first of them, features and all
        features = problem.arrays["features"].reshape(len(rows), -1)[rows == row].astype(np.float64)
        kept = voxels.first[row, : voxels.number[row], 3:].astype(np.float64)
        np.testing.assert_array_equal(kept, features[:2])


@given(problems(layouts=("single", "padded", "into")), st.randoms(use_true_random=False), backends)
def test_any_order_of_points_gives_the_same_rows(problem, shuffler, backend):
    order = list(range(problem.arrays["points"].shape[-2]))
    shuffler.shuffle(order)
    arrays = {
        name: np.take(a, order, axis=-2) if name in ("points", "features") else a for name, a in problem.arrays.items()
    }
    before = voxel_calling.call(problem, backend, layout="sparse")
    after = voxel_calling.call(cases.Problem(problem.grid, arrays, problem.options), backend, layout="sparse")
    for mine, theirs in zip((*after.values, *after[:1]), (*before.values, *before[:1]), strict=True):
        calling.assert_same_bytes(mine, theirs, "shuffled")
    np.testing.assert_array_equal(after.counts, before.counts)
    np.testing.assert_array_equal(after.found, before.found)
    np.testing.assert_array_equal(after.point_to_voxel, np.take(before.point_to_voxel, order, axis=-1))


@given(problems(layouts=("single", "packed")), st.integers(0, 12), backends)
def test_max_voxels_only_cuts(problem, max_voxels, backend):
    """What is kept has the bits that it has without a limit: points without a row count for the scale of sums too."""
    whole = voxel_calling.call(problem, backend, layout="sparse", first=3)
    cut = voxel_calling.call(problem, backend, layout="sparse", first=3, max_voxels=max_voxels)
    used = int(cut.found[0])
    assert used == min(max_voxels, len(whole.counts))
    assert int(cut.overflow) == len(whole.counts) - used
    parts = ("coordinates", "counts", "first", "number")
    pairs = [(getattr(cut, part), getattr(whole, part)) for part in parts]
    for mine, theirs in (*pairs, *zip(cut.values, whole.values, strict=True)):
        calling.assert_same_bytes(mine[:used], theirs[:used], "kept")
    np.testing.assert_array_equal(
        cut.point_to_voxel, np.where(whole.point_to_voxel < max_voxels, whole.point_to_voxel, -1)
    )


# ---- voxel_downsample --------------------------------------------------------------------------------------------

ORIGIN, SIZE = (0.25, -0.5, 0.1), (0.5, 0.3, 0.7)


@st.composite
def lattices(draw, layouts=("single", "padded", "lengths", "packed"), **options):
    problem = draw(problems(layouts=layouts, grid=(ORIGIN, SIZE, (1, 1, 1)), **options))
    problem.options.clear()
    return problem


@given(lattices(), backends)
def test_downsample_equals_the_oracle(problem, backend):
    voxel_calling.assert_same(voxel_calling.downsample(problem, backend), oracle.downsample(problem), "oracle")


@given(lattices(), backends)
def test_downsample_keeps_every_point_in_its_voxel(problem, backend):
    points, _, counts, coordinates, dropped = voxel_calling.downsample(problem, backend)
    clouds = oracle.number_of_clouds(problem)
    given_points = sum(len(oracle.cloud_points(problem, c)[0]) for c in range(1 if clouds is None else clouds))
    assert int(counts.sum()) == given_points - int(dropped.sum())
    assert (counts > 0).all()
    rows = [tuple(row) for row in coordinates.tolist()]
    assert rows == sorted(set(rows))
    # Where a voxel begins and ends is rounded as the points are, and so is the mean.
    begin = np.array(ORIGIN) + coordinates[:, 1:] * np.array(SIZE)
    epsilon = float(np.finfo(points.dtype).eps)
    slack = 4 * epsilon * (1 + np.abs(begin))
    wide = points.astype(np.float64)
    spread = float(np.abs(wide).max(initial=0.0)) * 2.0**-52  # what the integers of a cloud lose
    assert (wide >= begin - slack - spread).all()
    assert (wide <= begin + np.array(SIZE) + slack + spread).all()


@given(lattices(odd_points=False, odd_features=False), backends)
def test_downsampling_again_changes_nothing(problem, backend):
    """Of multiples of 2^-8, whose sums lose nothing: a mean lies between the points that it is of."""
    problem.arrays.pop("pose", None)
    points = problem.arrays["points"]
    problem.arrays["points"] = (np.rint(points.astype(np.float64) * 256) / 256).astype(points.dtype)
    once, _, _, coordinates, _ = voxel_calling.downsample(problem, backend)
    sizes = np.bincount(coordinates[:, 0], minlength=oracle.number_of_clouds(problem) or 1)
    arrays = {"points": once, "offsets": np.concatenate([[0], np.cumsum(sizes)])}
    again = voxel_calling.downsample(cases.Problem(problem.grid, arrays), backend)
    np.testing.assert_array_equal(again[2], coordinates)
    np.testing.assert_array_equal(again[1], np.ones(len(once), np.int32))
    if once.dtype == np.float32:
        np.testing.assert_array_equal(again[0], once)


@given(lattices(layouts=("single", "padded")), st.randoms(use_true_random=False), backends)
def test_downsample_does_not_depend_on_the_order(problem, shuffler, backend):
    order = list(range(problem.arrays["points"].shape[-2]))
    shuffler.shuffle(order)
    arrays = {
        name: np.take(a, order, axis=-2) if name in ("points", "features") else a for name, a in problem.arrays.items()
    }
    voxel_calling.assert_same(
        voxel_calling.downsample(cases.Problem(problem.grid, arrays), backend),
        voxel_calling.downsample(problem, backend),
        "shuffled",
    )


@given(lattices(layouts=("packed",)), backends)
def test_downsampled_clouds_do_not_touch(problem, backend):
    """Together or one by one: the same rows."""
    points, features, counts, coordinates, dropped = voxel_calling.downsample(problem, backend)
    offsets = problem.arrays["offsets"]
    for cloud in range(len(offsets) - 1):
        part = slice(int(offsets[cloud]), int(offsets[cloud + 1]))
        arrays = {name: problem.arrays[name][part] for name in ("points", "features")}
        if "pose" in problem.arrays:
            arrays["pose"] = problem.arrays["pose"][cloud]
        alone = voxel_calling.downsample(cases.Problem(problem.grid, arrays), backend)
        own = coordinates[:, 0] == cloud
        calling.assert_same_bytes(points[own], alone[0], "points")
        calling.assert_same_bytes(features[own], alone[1], "features")
        np.testing.assert_array_equal(counts[own], alone[2])
        np.testing.assert_array_equal(coordinates[own, 1:], alone[3][:, 1:])
        np.testing.assert_array_equal(dropped[cloud], alone[4])


@given(
    hn.arrays(st.sampled_from([np.float32, np.float64]), (6, 3), elements=st.floats(width=32, allow_subnormal=True)),
    st.sampled_from([0.1, 0.5, 3.0, 1e20]),
    backends,
)
def test_any_bits_are_points_to_downsample(points, size, backend):
    """Or more voxels than keys can number, which is said."""
    problem = cases.Problem(((-1.0, 0.0, 0.3), (size, 2 * size, size), (1, 1, 1)), {"points": points})
    expected = oracle.downsample(problem)
    cells = expected[2][:, 1:].tolist()
    if math.prod(max(axis) - min(axis) + 1 for axis in zip(*cells, strict=True)) > 2**62:
        with pytest.raises(ValueError, match=r"voxel_downsample: the points span \[.*\] voxels, more than 2\^62"):
            voxel_calling.downsample(problem, backend)
        return
    voxel_calling.assert_same(voxel_calling.downsample(problem, backend), expected, "any bits")
