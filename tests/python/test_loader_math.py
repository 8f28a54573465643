"""Normalisation, rotations and relative actions of the loader: against float64, SciPy, and torch beside NumPy."""

from __future__ import annotations

import json
import pickle
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation
from test_errors import says

import robocache as rc
from robocache._loader import elementary, relative
from robocache._loader.normalize import Normalizer, image_mean_std
from robocache._loader.rotations import convert, convert_channels, starts_after, width_after

torch = pytest.importorskip("torch")

U = 2.0**-24
KINDS = {"mean_std": ("mean", "std"), "min_max": ("min", "max"), "quantiles": ("q01", "q99")}
CONVENTIONS = ("robocache", "lerobot", "openpi")
REPRESENTATIONS = {"quaternion": 4, "6d": 6, "6d_rows": 6, "axis_angle": 3}
on_devices = pytest.mark.parametrize("backend", ["cpu", "cuda"])


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def same_on_torch(backend, call, *arrays):
    """The NumPy result, after the torch one was found to have its bytes, dtype and device."""
    expected = call(*arrays)
    found = call(*[torch.from_numpy(array).to(backend) for array in arrays])
    assert found.device.type == backend
    assert found.dtype == torch.float32
    assert expected.dtype == np.float32
    assert found.shape == expected.shape
    expected_nan, found = np.isnan(expected), found.cpu().numpy()
    np.testing.assert_array_equal(np.isnan(found), expected_nan)
    assert np.where(expected_nan, 0, found).tobytes() == np.where(expected_nan, 0, expected).tobytes()
    return expected


@on_devices
def test_the_root_is_rounded_once(backend):
    x = np.random.default_rng(0).integers(0, 0x7F800000, 500_000).astype(np.int32).view(np.float32)
    x = np.concatenate([x, [0, 1e-45, np.inf, 3.4e38]]).astype(np.float32)
    found = same_on_torch(backend, elementary.sqrt, x)
    assert found.tobytes() == np.sqrt(x.astype(np.float64)).astype(np.float32).tobytes()


# ---- normalisation


def statistics(kind, width=7, seed=3):
    rng = np.random.default_rng(seed)
    first, size = rng.normal(size=width), rng.random(width) + 0.05
    return dict(zip(KINDS[kind], (first, size if kind == "mean_std" else first + size), strict=True))


def truth(kind, convention, x, a, b):
    """In the precision of its arguments, from the conventions' own words."""
    one = x.dtype.type
    if kind == "mean_std":
        scale = {
            "robocache": lambda: np.where(b < one(1e-8), one(1), b),
            "lerobot": lambda: b + one(1e-8),
            "openpi": lambda: b + one(1e-6),
        }
        return (x - a) / scale[convention]()
    span = b - a
    scale = {
        "robocache": lambda: np.where(span < one(1e-8), one(1), span),
        "lerobot": lambda: np.where(span == 0, one(1e-8), span),
        "openpi": lambda: span + one(1e-6),
    }
    return one(2) * (x - a) / scale[convention]() - one(1)


@on_devices
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_normalisation_is_its_formula(kind, convention, backend):
    stats = statistics(kind)
    normalizer = Normalizer(kind, stats, convention=convention)
    x = (random(5, 4, 7) * 3).astype(np.float32)
    found = same_on_torch(backend, normalizer.forward, x)
    a, b = stats.values()
    exact = truth(kind, convention, x.astype(np.float64), a, b)
    scale = b if kind == "mean_std" else (b - a) / 2
    np.testing.assert_array_less(np.abs(found - exact), 8 * U * (np.abs(x) + np.abs(a) + np.abs(b)) / scale)
    if convention != "openpi":  # openpi adds its epsilon in float64
        single = truth(kind, convention, x, a.astype(np.float32), b.astype(np.float32))
        assert found.tobytes() == single.tobytes()
    same_on_torch(backend, normalizer.inverse, found)


def test_normalisation_has_the_bits_of_lerobot():
    """As its NormalizerProcessorStep computes, with torch."""
    x = torch.from_numpy((random(64, 7) * 3).astype(np.float32))
    for kind in KINDS:
        stats = statistics(kind)
        first, second = (torch.tensor(each, dtype=torch.float32) for each in stats.values())
        normalizer = Normalizer.from_lerobot({"action": stats}, "action", kind)
        if kind == "mean_std":
            expected, back = (x - first) / (second + 1e-8), x * second + first
        else:
            expected, back = 2 * (x - first) / (second - first) - 1, (x + 1) / 2 * (second - first) + first
        assert torch.equal(normalizer.forward(x), expected)
        assert torch.equal(normalizer.inverse(x), back)


def test_normalisation_is_close_to_openpi():
    """As its Normalize and Unnormalize compute, in float64."""
    x = (random(64, 7) * 3).astype(np.float32)
    for kind in ("mean_std", "quantiles"):
        stats = statistics(kind)
        normalizer = Normalizer.from_openpi({"norm_stats": {"actions": stats}}, "actions", kind)
        first, second = stats.values()
        if kind == "mean_std":
            expected, back = (x - first) / (second + 1e-6), x * (second + 1e-6) + first
        else:
            span = second - first + 1e-6
            expected, back = (x - first) / span * 2.0 - 1.0, (x + 1.0) / 2.0 * span + first
        np.testing.assert_allclose(normalizer.forward(x), expected, rtol=1e-6, atol=2e-5)
        np.testing.assert_allclose(normalizer.inverse(x), back, rtol=1e-6, atol=2e-6)
        narrow = Normalizer(kind, {name: [0.0, 0.0] for name in KINDS[kind]}, convention="openpi")
        np.testing.assert_allclose(narrow.forward([0.0, 1e-6]), [[0, 1], [-1, 1]][kind == "quantiles"], rtol=1e-6)


NUMBER = st.floats(-1e6, 1e6, width=32)


@given(st.sampled_from(sorted(KINDS)), st.tuples(NUMBER, NUMBER, NUMBER))
def test_normalisation_and_back_is_within_its_bound(kind, numbers):
    x, first, second = numbers
    second = abs(second) if kind == "mean_std" else max(first, second)
    normalizer = Normalizer(kind, dict(zip(KINDS[kind], ([first], [second]), strict=True)))
    back = float(normalizer.inverse(normalizer.forward([x]))[0])
    if kind == "mean_std":
        bound = 2**-22 * (abs(x) + abs(first))
    else:
        bound = 2**-21 * (abs(x) + abs(first) + (second - first))
        if second - first < 1e-8:  # counts as 1
            bound += 2**-21
    assert abs(back - x) <= bound + 1e-37


def test_ends_of_a_range_become_whole():
    stats = {"min": [-0.3, 5.0, 1e6], "max": [0.7, 5.1, 1e6 + 3]}
    normalizer = Normalizer("min_max", stats)
    assert normalizer.forward(stats["min"]).tolist() == [-1, -1, -1]
    assert normalizer.forward(stats["max"]).tolist() == [1, 1, 1]


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_constant_channels_have_no_inf(kind, convention):
    second = [0.0, 3e-9] if kind == "mean_std" else [0.5, 0.5]
    normalizer = Normalizer(kind, dict(zip(KINDS[kind], ([0.5, 0.5], second), strict=True)), convention=convention)
    x = np.array([[0.5, 0.5], [0.75, 0.25]], np.float32)
    found = normalizer.forward(x)
    assert np.isfinite(found).all()
    assert np.isfinite(normalizer.inverse(found)).all()
    assert found[0].tolist() == ([0, 0] if kind == "mean_std" else [-1, -1])
    if convention == "robocache":
        assert found[1].tolist() == ([0.25, -0.25] if kind == "mean_std" else [-0.5, -1.5])
        assert normalizer.inverse(found).tolist() == x.tolist()


def test_identity_copies_any_width():
    normalizer = Normalizer("identity")
    x = np.array([1.5, np.inf], np.float32)
    assert normalizer.forward(x).tobytes() == normalizer.inverse(x).tobytes() == x.tobytes()
    assert normalizer.to_json() == {"kind": "identity"}
    says(ValueError, ["3 channels", "[2]"], Normalizer("identity", channels=3).forward, x)


def test_other_arrays_are_widened():
    normalizer = Normalizer("mean_std", {"mean": [1, 2], "std": [2, 4]})
    for x in ([3, 6], np.array([3, 6]), np.array([3, 6], np.float16), np.array([3.0, 6.0])):
        found = normalizer.forward(x)
        assert (found.dtype, found.tolist()) == (np.float32, [1, 1])
    assert normalizer.forward(torch.tensor([[3, 6]], dtype=torch.bfloat16)).tolist() == [[1, 1]]
    assert normalizer.forward(np.zeros((0, 3, 2))).shape == (0, 3, 2)


@pytest.mark.parametrize("kind", ["identity", *KINDS])
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_normalizers_go_through_json_and_pickle(kind, convention):
    stats = None if kind == "identity" else statistics(kind)
    normalizer = Normalizer(kind, stats, convention=convention, key="action")
    said = json.loads(json.dumps(normalizer.to_json()))
    x = random(3, 7).astype(np.float32)
    for other in (Normalizer.from_json(said), pickle.loads(pickle.dumps(normalizer))):
        assert other == normalizer
        assert other.forward(x).tobytes() == normalizer.forward(x).tobytes()
    if kind != "identity":
        assert said["epsilon"] == {"robocache": 1e-8, "lerobot": 1e-8, "openpi": 1e-6}[convention]
        assert said["formula"] in repr(normalizer)
        assert KINDS[kind][0] in said["formula"]
        says(ValueError, ["epsilon", "0.5", "computes"], Normalizer.from_json, said | {"epsilon": 0.5})
        says(ValueError, ["formula", "x / std", "computes"], Normalizer.from_json, said | {"formula": "x / std"})


def test_statistics_of_lerobot_and_openpi():
    stats = {
        "action": {"mean": [1.0, 2.0], "std": [1.0, 4.0], "min": [0, 0], "max": [1, 1], "count": [9]},
        "observation.images.top": {"mean": [[[0.5]], [[0.25]], [[0.1]]], "std": np.ones((3, 1, 1))},
    }
    assert Normalizer.from_lerobot(stats, "action", channels=2).forward([1.0, 6.0]).tolist() == [0, 1]
    image = Normalizer.from_lerobot(stats, "observation.images.top")
    assert image.statistics["mean"].tolist() == [0.5, 0.25, 0.1]
    says(ValueError, ['no "actions"', "action"], Normalizer.from_lerobot, stats, "actions")
    parts = ['Key "action"', '"quantiles" needs q01 and q99', "no q01 and no q99", "mean, std, min, max"]
    says(ValueError, parts, Normalizer.from_lerobot, stats, "action", "quantiles")
    says(ValueError, ['Key "action"', "2 channels", "expected 7"], Normalizer.from_lerobot, stats, "action", channels=7)

    padded = {"mean": [1.0, 2.0, 0.0], "std": [1.0, 4.0, 0.0], "q01": [-1.0, 0.0, 0.0], "q99": None}
    for norm_stats in ({"norm_stats": {"state": padded}}, {"state": types.SimpleNamespace(**padded)}):
        found = Normalizer.from_openpi(norm_stats, "state", "mean_std", channels=2)
        np.testing.assert_allclose(found.forward([2.0, 6.0]), [1, 1], rtol=1e-5)
        says(ValueError, ["have no q99;", "mean, std, q01"], Normalizer.from_openpi, norm_stats, "state")
        says(ValueError, ["3 channels", "4"], Normalizer.from_openpi, norm_stats, "state", "mean_std", channels=4)


def test_statistics_that_do_not_fit():
    def wrong(parts, kind, stats, **options):
        says(ValueError, parts, Normalizer, kind, stats, **options)

    wrong(['Key "a"', 'normalize is "zscore"', "mean_std"], "zscore", None, key="a")
    wrong(["convention", "lerobot"], "identity", None, convention="act")
    wrong(["Key: ", "needs mean and std", "no mean and no std", "nothing"], "mean_std", None)
    wrong(["mean of channel 1 is nan"], "mean_std", {"mean": [0, np.nan], "std": [1, 1]})
    wrong(["std of channel 0 is nan"], "mean_std", {"mean": [0, 0], "std": [None, 1]})
    wrong(["std of channel 1 is inf"], "mean_std", {"mean": [0, 0], "std": [1, np.inf]})
    wrong(["std of channel 1 is -0.5", "0 or more"], "mean_std", {"mean": [0, 0], "std": [1, -0.5]})
    wrong(["min of channel 0 is 2", "above its max, 1"], "min_max", {"min": [2], "max": [1]})
    wrong(["q01 of channel 0 is 2", "above its q99, 1"], "quantiles", {"q01": [2], "q99": [1]})
    wrong(["2 numbers of mean and 3 of std"], "mean_std", {"mean": [0, 0], "std": [1, 1, 1]})
    wrong(["3 channels; expected 7"], "mean_std", {"mean": [0] * 3, "std": [1] * 3}, channels=7)
    wrong(["mean has shape [2, 2]"], "mean_std", {"mean": np.zeros((2, 2)), "std": np.ones((2, 2))})
    wrong(["mean has shape []"], "mean_std", {"mean": 0.5, "std": 1.0})
    wrong(["mean is zero"], "mean_std", {"mean": "zero", "std": [1]})
    wrong(["channel 1, min -3e+38, max 3e+38"], "min_max", {"min": [0, -3e38], "max": [1, 3e38]})
    made = Normalizer("mean_std", {"mean": [0, 0], "std": [1, 1]}, key="action")
    for call in (made.forward, made.inverse):
        says(ValueError, ['Key "action"', "2 channels", "[4, 3]"], call, np.zeros((4, 3)))


def test_pictures():
    frames = np.arange(2 * 4 * 5 * 3).reshape(2, 4, 5, 3).astype(np.uint8)
    stats = {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.0, 0.1]}
    scaled = frames / 255
    for options, expected in (
        ((("identity"),), scaled),
        (("mean_std", stats), (scaled - stats["mean"]) / [0.2, 1, 0.1]),
        (("imagenet",), (scaled - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]),
    ):
        mean, std = image_mean_std(*options)
        np.testing.assert_allclose(rc.image(frames, mean=mean, std=std, dtype="float32"), expected, atol=2e-6)
    of_bytes = {name: np.array(each) * 255 for name, each in stats.items()}
    np.testing.assert_allclose(image_mean_std("mean_std", of_bytes, of_bytes=True)[0], stats["mean"])
    assert image_mean_std("mean_std", stats, convention="lerobot")[1] == (0.2 + 1e-8, 1e-8, 0.1 + 1e-8)
    says(ValueError, ["3 colours", "1"], image_mean_std, "imagenet", channels=1)
    says(ValueError, ['Key "top"', "min_max"], image_mean_std, "min_max", stats, key="top")
    says(ValueError, ["3 channels; expected 4"], image_mean_std, "mean_std", stats, channels=4)


# ---- rotations


def quaternions(count=20_000, seed=1):
    """float32, of any length; a fifth of them near no rotation, near half a turn, far from unit, with parts of 0."""
    rng = np.random.default_rng(seed)
    q, k = rng.normal(size=(count, 4)), count // 5
    for part, middle in enumerate((0, np.pi)):
        axis = unit(rng.normal(size=(k, 3)))
        half = (middle - 10 ** rng.uniform(-15, 0, (k, 1))) / 2
        q[part * k : (part + 1) * k] = np.concatenate([axis * np.sin(half), np.cos(half)], 1)
    q[2 * k : 3 * k] *= 10 ** rng.uniform(-35, 35, (k, 1))
    q[3 * k : 4 * k, :3] *= rng.random((k, 3)) < 0.5
    return q.astype(np.float32)


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def rotation_of(x, representation):
    """SciPy's, in float64."""
    x = x.astype(np.float64)
    if representation == "quaternion":
        return Rotation.from_quat(unit(x))
    if representation == "axis_angle":
        return Rotation.from_rotvec(x)
    first = unit(x[:, :3])
    second = unit(x[:, 3:] - (first * x[:, 3:]).sum(1, keepdims=True) * first)
    axis = -1 if representation == "6d" else -2
    return Rotation.from_matrix(np.stack([first, second, np.cross(first, second)], axis))


def apart(one, other):
    """The angles between rotations. SciPy's own magnitude is exact near 0."""
    return (one.inv() * other).magnitude()


def bound(source, x):
    """The stated error of a conversion, in radians."""
    if source == "axis_angle":
        return 2e-7 * np.maximum(np.linalg.norm(x.astype(np.float64), axis=1), np.pi)
    if source == "quaternion":
        return np.full(len(x), 4e-7)
    first, second = unit(x[:, :3].astype(np.float64)), unit(x[:, 3:].astype(np.float64))
    return 6e-7 / np.linalg.norm(np.cross(first, second), axis=1)


def examples(representation):
    if representation == "quaternion":
        return quaternions()
    if representation == "axis_angle":
        x = unit(random(20_000, 3)) * 10 ** np.random.default_rng(2).uniform(-30, 3, (20_000, 1))
        return x.astype(np.float32)
    return random(20_000, 6, seed=4).astype(np.float32)


@pytest.mark.parametrize("source", REPRESENTATIONS)
@pytest.mark.parametrize("target", REPRESENTATIONS)
@on_devices
def test_conversions(source, target, backend):
    x = examples(source)
    found = same_on_torch(backend, lambda part: convert(part, source, target), x)
    assert found.shape == (len(x), REPRESENTATIONS[target])
    if source == target:
        assert found.tobytes() == x.tobytes()
        return
    # The second step of a conversion, from the quaternion, has the error of a quaternion's.
    limit = bound(source, x) + (8e-7 if target != "quaternion" else 0)
    if source == "quaternion":
        limit = 1.2e-6
    assert (apart(rotation_of(x, source), rotation_of(found, target)) <= limit).all()


def test_quaternion_to_two_axes_number_by_number():
    q = quaternions()
    matrix = rotation_of(q, "quaternion").as_matrix()
    columns = np.concatenate([matrix[:, :, 0], matrix[:, :, 1]], 1)
    assert np.abs(convert(q, "quaternion", "6d") - columns).max() < 1e-6
    rows = np.concatenate([matrix[:, 0], matrix[:, 1]], 1)
    assert np.abs(convert(q, "quaternion", "6d_rows") - rows).max() < 1e-6


def test_the_order_of_two_axes():
    """A quarter turn about z: the body's x axis lies along y, its y axis along -x."""
    q = np.array([0, 0, np.sqrt(0.5), np.sqrt(0.5)], np.float32)
    assert np.abs(convert(q, "quaternion", "6d") - [0, 1, 0, -1, 0, 0]).max() < 1e-6
    assert np.abs(convert(q, "quaternion", "6d_rows") - [0, -1, 0, 1, 0, 0]).max() < 1e-6
    assert np.abs(convert(q, "quaternion", "axis_angle") - [0, 0, np.pi / 2]).max() < 1e-6


def test_quaternion_to_axis_angle_is_relative_to_the_angle():
    q = quaternions(100_000)
    found = convert(q, "quaternion", "axis_angle").astype(np.float64)
    x = q.astype(np.float64)
    x *= np.where(x[:, 3:] < 0, -1, 1)
    length = np.linalg.norm(x[:, :3], axis=1)
    angle = 2 * np.arctan2(length, x[:, 3])
    exact = x[:, :3] * (angle / np.where(length > 0, length, 1))[:, None]
    error = np.linalg.norm(found - exact, axis=1)
    turn = x[:, 3] == 0  # both directions of the axis are right
    error[turn] = np.minimum(error, np.linalg.norm(found + exact, axis=1))[turn]
    assert (error <= 4e-7 * angle + 1e-44).all()
    assert angle[angle > 0].min() < 1e-14
    assert (np.abs(angle - np.pi) < 1e-6).sum() > 100
    assert np.linalg.norm(found, axis=1).max() <= np.pi * (1 + 4e-7)


def test_axis_angle_to_quaternion_number_by_number():
    v = unit(random(50_000, 3)) * np.random.default_rng(2).uniform(0, np.pi, (50_000, 1))
    v = v.astype(np.float32)
    angle = np.linalg.norm(v.astype(np.float64), axis=1, keepdims=True)
    exact = np.concatenate([v * (np.sin(angle / 2) / angle), np.abs(np.cos(angle / 2))], 1)
    assert np.abs(convert(v, "axis_angle", "quaternion") - exact)[angle[:, 0] < 3.1415].max() < 2.5e-7


def test_axis_angle_to_quaternion_near_zero_is_relative_to_the_angle():
    v = (unit(random(20_000, 3)) * 10 ** np.random.default_rng(2).uniform(-44, 0, (20_000, 1))).astype(np.float32)
    angle = np.linalg.norm(v.astype(np.float64), axis=1, keepdims=True)
    exact = v * (np.sin(angle / 2) / np.where(angle > 0, angle, 1))
    error = np.linalg.norm(convert(v, "axis_angle", "quaternion")[:, :3] - exact, axis=1)
    assert (error <= 4e-7 * angle[:, 0] + 3e-45).all()


@pytest.mark.parametrize("through", ["6d", "6d_rows", "axis_angle"])
def test_rotations_and_back(through):
    q = quaternions()
    back = convert(convert(q, "quaternion", through), through, "quaternion")
    assert apart(rotation_of(q, "quaternion"), rotation_of(back, "quaternion")).max() < 1.5e-6
    assert np.abs(np.linalg.norm(back.astype(np.float64), axis=1) - 1).max() < 4e-7
    assert (back[:, 3] >= 0).all()


@pytest.mark.parametrize("target", ["6d", "6d_rows", "axis_angle"])
def test_opposite_quaternions_are_the_same_rotation(target):
    q = np.concatenate([quaternions(), [[0, 0, 1, 0], [0, -1, 1, 0], [-1, 0, 0, 0], [0, 0, 0, -1]]]).astype(np.float32)
    assert convert(q, "quaternion", target).tobytes() == convert(-q, "quaternion", target).tobytes()


@on_devices
def test_what_is_no_rotation(backend):
    """Zeros give no rotation, and NaN stays in its row."""
    zero, nan = np.zeros((1, 4), np.float32), np.full((1, 4), np.nan, np.float32)
    q = np.concatenate([zero, nan, [[0, 0, 0, 2]], [[np.inf, 0, 0, 1]]]).astype(np.float32)
    for target, none in (("6d", [1, 0, 0, 0, 1, 0]), ("axis_angle", [0, 0, 0])):
        found = same_on_torch(backend, lambda part, target=target: convert(part, "quaternion", target), q)
        assert found[0].tolist() == found[2].tolist() == none
        assert np.isnan(found[1]).all()
        assert np.isnan(found[3]).any()
    axes = [[0] * 6, [1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 0], [0.3, 0.7, 0.1, 0.3, 0.7, 0.1], [2, 0, 0, 5, 1e-9, 0]]
    found = same_on_torch(backend, lambda part: convert(part, "6d", "quaternion"), np.array(axes, np.float32))
    assert found.tolist() == [[0, 0, 0, 1]] * 5
    assert convert(np.zeros(3), "axis_angle", "quaternion").tolist() == [0, 0, 0, 1]


@given(st.lists(st.floats(width=32), min_size=6, max_size=6), st.sampled_from(sorted(REPRESENTATIONS)))
def test_any_numbers_give_the_same_bits_on_torch(numbers, source):
    x = np.array(numbers[: REPRESENTATIONS[source]], np.float32)
    for target in REPRESENTATIONS:
        same_on_torch("cpu", lambda part, target=target: convert(part, source, target), x)


def test_shapes_of_rotations():
    q = quaternions(60).reshape(3, 4, 5, 4)
    assert convert(q, "quaternion", "6d").shape == (3, 4, 5, 6)
    flat = convert(q.reshape(60, 4), "quaternion", "6d")
    assert convert(q, "quaternion", "6d").tobytes() == flat.tobytes()
    assert convert(q[0, 0, 0], "quaternion", "6d").tobytes() == flat[0].tobytes()
    assert convert(q[:, ::2, 1], "quaternion", "6d").tobytes() == flat.reshape(3, 4, 5, 6)[:, ::2, 1].tobytes()
    assert convert(q[:0], "quaternion", "axis_angle").shape == (0, 4, 5, 3)


@on_devices
def test_rotations_among_other_channels(backend):
    """Two arms with a gripper each: position, quaternion, gripper."""
    x = random(6, 5, 16).astype(np.float32)
    starts = (3, 11)
    for target, width in REPRESENTATIONS.items():
        found = same_on_torch(backend, lambda part, t=target: convert_channels(part, starts, "quaternion", t), x)
        moved = starts_after(starts, "quaternion", target)
        assert found.shape[-1] == width_after(16, starts, "quaternion", target) == 8 + 2 * width
        for before, after in zip(starts, moved, strict=True):
            quaternion = convert(x[..., before : before + 4], "quaternion", target)
            assert found[..., after : after + width].tobytes() == quaternion.tobytes()
        kept = [k for k in range(found.shape[-1]) if not any(after <= k < after + width for after in moved)]
        assert found[..., kept].tobytes() == x[..., [0, 1, 2, 7, 8, 9, 10, 15]].tobytes()
        back = convert_channels(found, moved, target, "quaternion")
        assert starts_after(moved, target, "quaternion") == starts
        assert back.shape == x.shape


def test_rotations_that_do_not_fit():
    x = np.zeros((2, 7))
    says(ValueError, ["quaternion has 4 numbers", "[2, 7]"], convert, x, "quaternion", "6d")
    says(ValueError, ["target", '"euler"', "axis_angle"], convert, x, "quaternion", "euler")
    says(ValueError, ["quaternion at channel 4", "4 to 7", "there are 7"], convert_channels, x, [4], "quaternion", "6d")
    says(ValueError, ["channel 3 overlaps"], convert_channels, x, [0, 3], "quaternion", "6d")
    says(ValueError, ["channel -1"], convert_channels, x, [-1], "quaternion", "6d")
    says(ValueError, ["source", '"euler"'], convert_channels, x, [], "euler", "6d")


# ---- relative actions


@on_devices
def test_differences(backend):
    x, reference = random(3, 5, 6).astype(np.float32), random(3, 8, seed=5).astype(np.float32)
    x[0, 0, 5] = -0.0
    found = same_on_torch(backend, lambda a, b: relative.subtract(a, b, [0, 1, 3]), x, reference)
    for channel in range(6):
        expected = x[..., channel] - reference[:, None, channel] if channel in (0, 1, 3) else x[..., channel]
        assert found[..., channel].tobytes() == expected.tobytes()
    back = same_on_torch(backend, lambda a, b: relative.add(a, b, [0, 1, 3]), found, reference)
    assert (np.abs(back - x.astype(np.float64)) <= U * (np.abs(x) + np.abs(found)) * (1 + 2 * U)).all()
    whole = relative.subtract(x, reference[:, :6])
    assert whole.tobytes() == (x - reference[:, None, :6]).tobytes()
    assert relative.subtract(x, reference, []).tobytes() == x.tobytes()


def poses(*shape, seed):
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.normal(size=(*shape, 3)), rng.normal(size=(*shape, 4))], -1).astype(np.float32)


def matrices(pose):
    """[..., 7] as [..., 4, 4] in float64."""
    flat = pose.reshape(-1, 7).astype(np.float64)
    made = np.tile(np.eye(4), (len(flat), 1, 1))
    made[:, :3, :3], made[:, :3, 3] = Rotation.from_quat(flat[:, 3:]).as_matrix(), flat[:, :3]
    return made.reshape(*pose.shape[:-1], 4, 4)


def turn_between(one, other):
    return apart(*[Rotation.from_matrix(each.reshape(-1, 4, 4)[:, :3, :3]) for each in (one, other)]).max()


@on_devices
def test_poses_of_two_arms(backend):
    x = np.concatenate([poses(64, 9, seed=1), random(64, 9, 1), poses(64, 9, seed=2), random(64, 9, 2)], -1)
    x = x.astype(np.float32)
    reference = np.concatenate([poses(64, seed=3), random(64, 1), poses(64, seed=4)], -1).astype(np.float32)
    channels = [*range(7), *range(8, 15)]
    found = same_on_torch(backend, lambda a, b: relative.pose(a, b, channels), x, reference)
    back = same_on_torch(backend, lambda a, b: relative.place(a, b, channels), found, reference)
    for arm in (slice(0, 7), slice(8, 15)):
        origin = matrices(reference[:, arm])[:, None]
        expected = np.linalg.inv(origin) @ matrices(x[..., arm])
        got = matrices(found[..., arm])
        far = np.linalg.norm(expected[..., :3, 3], axis=-1)
        assert (np.linalg.norm(got[..., :3, 3] - expected[..., :3, 3], axis=-1) <= 1e-6 * far).all()
        assert turn_between(got, expected) < 6e-7
        assert (found[..., arm][..., 6] >= 0).all()
        ours, theirs = back[..., arm].astype(np.float64), x[..., arm].astype(np.float64)
        error = np.linalg.norm(ours[..., :3] - theirs[..., :3], axis=-1)
        assert (error <= 2e-6 * far + U * np.linalg.norm(theirs[..., :3], axis=-1)).all()
        assert turn_between(matrices(back[..., arm]), matrices(x[..., arm])) < 1e-6
        assert (np.abs(np.linalg.norm(ours[..., 3:], axis=-1) - 1) < 4e-7).all()
        assert ((ours[..., 3:] * reference[:, None, arm][..., 3:]).sum(-1) >= -1e-6).all()
    for each in (found, back):
        assert each[..., [7, 15, 16]].tobytes() == x[..., [7, 15, 16]].tobytes()


def test_poses_in_a_row_need_no_channels():
    x, reference = poses(4, 5, seed=1), poses(4, seed=2)
    both = relative.pose(np.concatenate([x, x[::-1]], -1), np.concatenate([reference, reference[::-1]], -1))
    one = relative.pose(x, reference)
    assert both[..., :7].tobytes() == one.tobytes()
    assert both[..., 7:].tobytes() == one[::-1].tobytes()


def test_a_pose_seen_from_itself():
    """No distance, no rotation; -q is the same pose, to the bit."""
    x = poses(50, 1, seed=7)
    found = relative.pose(x, x[:, 0])
    assert not found[..., :3].any()
    assert np.abs(found[..., 3:] - [0, 0, 0, 1]).max() < 4e-7
    other, y = x.copy(), poses(50, 1, seed=8)
    other[..., 3:] *= -1
    assert relative.pose(y, other[:, 0]).tobytes() == relative.pose(y, x[:, 0]).tobytes()
    flipped = y.copy()
    flipped[..., 3:] *= -1
    assert relative.pose(flipped, x[:, 0]).tobytes() == relative.pose(y, x[:, 0]).tobytes()
    assert relative.place(flipped, x[:, 0]).tobytes() == relative.place(y, x[:, 0]).tobytes()


def test_a_reference_without_rotation():
    """Where no sample exists the values are 0, and a quaternion of 0 stands for no rotation."""
    x = poses(1, 4, seed=1)
    found = relative.pose(x, np.zeros((1, 7), np.float32))
    assert found[..., :3].tobytes() == x[..., :3].tobytes()
    assert turn_between(matrices(found), matrices(x)) < 4e-7
    assert relative.pose(np.zeros((1, 1, 7)), np.zeros((1, 7))).tolist() == [[[0, 0, 0, 0, 0, 0, 1]]]


def test_relative_actions_that_do_not_fit():
    x, reference = np.zeros((2, 5, 14)), np.zeros((2, 14))
    says(ValueError, ["reference has shape [2, 5, 14]", "[2, 5, 14]"], relative.subtract, x, x)
    says(ValueError, ["reference has shape [3, 14]"], relative.subtract, x, np.zeros((3, 14)))
    says(ValueError, ['"subtract"', "channel 14", "there are 14"], relative.subtract, x, reference, [3, 14])
    says(ValueError, ["channel 13", "the reference has 8"], relative.subtract, x, reference[:, :8])
    says(ValueError, ["[3, 1]", "rising order"], relative.add, x, reference, [3, 1])
    says(ValueError, ["[-1]"], relative.add, x, reference, [-1])
    says(ValueError, ["groups of 7", "not 8"], relative.pose, x, reference, range(8))
    says(ValueError, ["side by side", "[0, 1, 2, 3, 4, 5, 7]"], relative.place, x, reference, [0, 1, 2, 3, 4, 5, 7])
