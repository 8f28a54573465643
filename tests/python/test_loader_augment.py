"""Augmentation of pictures: the integer formulas of docs/semantics.md, its draws, and what a loader does with it."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from cases import Random
from loader_calling import to_numpy
from loader_cases import CACHES, Raw, pictures, plain_episode, write

import robocache as rc

if not hasattr(rc, "Loader"):
    pytest.skip("this build has no rc.Loader", allow_module_level=True)
from robocache import _core
from robocache._loader.augment import augmented, some_augmented

ONE = 65536
NAMES = ("rotation", "brightness", "contrast", "saturation", "hue")
RANGES = {"rotation": 8.0, "brightness": 0.3, "contrast": 0.4, "saturation": 0.5, "hue": 0.1}
NEVER = np.iinfo(np.int64).min


# ---- The oracle: plain Python integers, from docs/semantics.md


def byte(x):
    return min(max(x, 0), 255)


def rounded(x):
    return (x + 32768) // ONE


def gray(pixel):
    if len(pixel) == 1:
        return pixel[0]
    red, green, blue = pixel[:3]
    return rounded(19595 * red + 38470 * green + 7471 * blue)


def of_colours(picture, change):
    """The picture with `change` made to each pixel's colours; alpha stays."""
    return [[[*change(pixel[:3]), *pixel[3:]] for pixel in row] for row in picture]


def turned(picture, amount):
    height, width = len(picture), len(picture[0])
    angle = math.radians(amount / ONE)
    s, c = round(ONE * math.sin(angle)), round(ONE * math.cos(angle))
    made = []
    for y in range(height):
        made.append([])
        for x in range(width):
            across, down = 2 * x - (width - 1), 2 * y - (height - 1)
            u = (c * across - s * down + ONE * (width - 1) + 256) // 512
            v = (s * across + c * down + ONE * (height - 1) + 256) // 512
            columns = [min(max(u // 256 + k, 0), width - 1) for k in (0, 1)]
            rows = [min(max(v // 256 + k, 0), height - 1) for k in (0, 1)]
            total = [0] * len(picture[0][0])
            for row, down_weight in zip(rows, (256 - v % 256, v % 256), strict=True):
                for column, weight in zip(columns, (256 - u % 256, u % 256), strict=True):
                    for k, value in enumerate(picture[row][column]):
                        total[k] += down_weight * weight * value
            made[-1].append([rounded(each) for each in total])
    return made


def expected_of(picture, amounts):
    """One picture [H, W, C] after all that is done to it."""
    made = picture.tolist()
    if "rotation" in amounts:
        made = turned(made, amounts["rotation"])
    if "brightness" in amounts:
        made = of_colours(made, lambda pixel: [byte(rounded(v * amounts["brightness"])) for v in pixel])
    if "contrast" in amounts:
        grays = [gray(pixel) for row in made for pixel in row]
        mean, f = (2 * sum(grays) + len(grays)) // (2 * len(grays)), amounts["contrast"]
        made = of_colours(made, lambda pixel: [byte(rounded(v * f + mean * (ONE - f))) for v in pixel])
    if "saturation" in amounts:
        f = amounts["saturation"]
        made = of_colours(made, lambda pixel: [byte(rounded(v * f + gray(pixel) * (ONE - f))) for v in pixel])
    if "hue" in amounts:
        angle = 2 * math.pi * amounts["hue"] / ONE
        a = round(ONE * (1 - math.cos(angle)) / 3)
        s = round(ONE * math.sin(angle) / math.sqrt(3))
        d, less, more = ONE - 2 * a, a - s, a + s
        matrix = ((d, less, more), (more, d, less), (less, more, d))
        made = of_colours(
            made, lambda pixel: [byte(rounded(sum(m * v for m, v in zip(row, pixel, strict=True)))) for row in matrix]
        )
    return np.array(made, np.uint8).reshape(picture.shape)


def amounts_of(ranges, positions, camera, seed):
    """What is drawn for windows at these positions, from docs/semantics.md."""
    made = {}
    for name, given in ranges.items():
        reach = round(given * ONE)
        most = ONE + reach if name in ("brightness", "contrast", "saturation") else reach
        least = max(0, ONE - reach) if most > reach else -reach
        draws = _core.draws(seed, np.asarray(positions, np.int64), camera, f"augment.{name}").tolist()
        made[name] = [least + (((draw >> 32) * (most - least + 1)) >> 32) for draw in draws]
    return made


# ---- Formulas

AMOUNTS = {
    "rotation": (-180 * ONE, -5 * ONE - 77, -1, 1, 30 * ONE, 45 * ONE + 9, 90 * ONE, 180 * ONE),
    "brightness": (0, 1, 40000, 65535, 65537, 80000, 2 * ONE, 9 * ONE),
    "contrast": (0, 1, 40000, 65535, 65537, 80000, 2 * ONE, 9 * ONE),
    "saturation": (0, 1, 40000, 65535, 65537, 80000, 2 * ONE, 9 * ONE),
    "hue": (-32768, -3000, -1, 1, 700, 10923, 21845, 32768),
}
CASES = [*((name,) for name in NAMES), NAMES, ("rotation", "hue"), ("brightness", "contrast")]


@pytest.mark.parametrize("library", ["numpy", "torch", "torch as on a GPU"])
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("names", CASES, ids="+".join)
def test_the_bytes_are_those_of_the_formulas(library, channels, names):
    if channels == 1 and {"saturation", "hue"} & set(names):
        names = NAMES[:3]
    random = Random(f"augment {channels} {names}")
    for height, width in ((5, 7), (1, 4), (6, 1)):
        frames = random.integers(0, 256, (8, height, width, channels)).astype(np.uint8)
        frames[0], frames[1, 0] = 255, 0
        amounts = {name: np.array(AMOUNTS[name], np.int64) for name in names}
        expected = [expected_of(p, {n: int(each[k]) for n, each in amounts.items()}) for k, p in enumerate(frames)]
        before = frames.copy()
        given = frames if library == "numpy" else pytest.importorskip("torch").from_numpy(frames)
        found = (some_augmented if library == "torch as on a GPU" else augmented)(given, amounts)
        np.testing.assert_array_equal(to_numpy(found), np.stack(expected))
        np.testing.assert_array_equal(frames, before)  # the frames may be the cache's
        assert to_numpy(found).dtype == np.uint8


def test_numpy_and_torch_have_the_same_bytes_of_many_pictures():
    """More pixels than are made at a time, and tensors that are not contiguous."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    random = Random("augment many")
    frames = random.integers(0, 256, (7, 3, 150, 190)).astype(np.uint8).transpose(0, 2, 3, 1)
    amounts = {name: np.array(AMOUNTS[name][:7], np.int64) for name in NAMES}
    found = augmented(frames, amounts)
    tensor = torch.from_numpy(frames)
    assert found.tobytes() == augmented(tensor, amounts).numpy().tobytes()
    assert found.tobytes() == some_augmented(tensor, amounts).contiguous().numpy().tobytes()
    for k in range(7):  # a picture's bytes do not depend on its neighbours
        alone = augmented(frames[k : k + 1], {name: each[k : k + 1] for name, each in amounts.items()})
        assert alone[0].tobytes() == found[k].tobytes()


def test_large_pictures_turn_in_64_bits():
    """Coordinates past int32: turned by half a turn, a row is its mirror image."""
    frames = Random("augment wide").integers(0, 256, (1, 2, 32768, 1)).astype(np.uint8)
    found = augmented(frames, {"rotation": np.array([180 * ONE])})
    np.testing.assert_array_equal(found, frames[:, ::-1, ::-1])


def test_turns_that_are_known():
    """Counterclockwise, as seen; a third of a turn of hue makes red green."""
    picture = np.arange(9, dtype=np.uint8).reshape(1, 3, 3, 1)
    found = augmented(picture, {"rotation": np.array([90 * ONE])})
    np.testing.assert_array_equal(found[0, :, :, 0], np.rot90(picture[0, :, :, 0]))
    red = np.array([250, 10, 10], np.uint8).reshape(1, 1, 1, 3)
    assert np.abs(augmented(red, {"hue": np.array([21845])}).astype(int).ravel() - [10, 250, 10]).max() <= 1
    grays = np.repeat(np.arange(256, dtype=np.uint8), 3).reshape(1, 16, 16, 3)
    for amount in AMOUNTS["hue"]:
        assert augmented(grays, {"hue": np.array([amount])}).tobytes() == grays.tobytes()
    for amount in AMOUNTS["saturation"]:
        assert augmented(grays, {"saturation": np.array([amount])}).tobytes() == grays.tobytes()


def test_no_change_is_none():
    """An angle of 0 and factors of 1 give the same bytes."""
    frames = Random("augment none").integers(0, 256, (2, 9, 8, 3)).astype(np.uint8)
    none = {n: np.array([ONE if n in ("brightness", "contrast", "saturation") else 0] * 2) for n in NAMES}
    assert augmented(frames, none).tobytes() == frames.tobytes()


# ---- The loader


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return rc.Cache(CACHES["arm"].write(tmp_path_factory.mktemp("augment") / "arm")[0])


def made(cache, augment=RANGES, *, batch_size=8, seed=3, key=None, **changes):
    given = {"steps": [-2, 0], "dtype": "uint8", "image": {"size": (11, 13), "layout": "nhwc"}} | (key or {})
    keys = {"picture": rc.Key("wrist", augment=augment, **given)}
    return rc.Loader(cache, batch_size=batch_size, rate=50, keys=keys, seed=seed, **changes)


@pytest.mark.parametrize("crop", [None, (9, 10)])
@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_batch_is_the_plain_one_augmented(cache, device, crop):
    """By the draw of each window's position: all its steps alike, after the crop."""
    if device is not None:
        pytest.importorskip("torch", reason="torch is not installed")
    key = {"image": {"size": (11, 13), "layout": "nhwc", "crop": crop}}
    loader, plain = made(cache, key=key, device=device), made(cache, None, key=key)
    for number in (0, 30):
        batch, before = loader.batch(number), plain.batch(number)
        amounts = amounts_of(RANGES, before["position"], "wrist", 3)
        for row in range(8):
            mine = {name: each[row] for name, each in amounts.items()}
            for step in range(2):
                exists = before["picture.age"][row, step] != NEVER
                whole = before["picture"][row, step]
                expected = expected_of(whole, mine) if exists else np.zeros_like(whole)
                np.testing.assert_array_equal(to_numpy(batch["picture"])[row, step], expected)
        assert (before["picture.age"] != NEVER).sum() > 8


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_floats_are_made_of_the_augmented_bytes(cache, dtype, layout):
    """And ranges of 0 leave the batch as it is."""
    key = {"image": {"size": (11, 13), "crop": (9, 9), "layout": layout}, "dtype": dtype}
    key |= {"normalize": "identity" if dtype == "uint8" else "imagenet"}
    none = made(cache, dict.fromkeys(NAMES, 0), key=key).batch(2)["picture"]
    plain = made(cache, None, key=key).batch(2)["picture"]
    assert none.dtype == plain.dtype
    assert none.shape == plain.shape
    assert none.tobytes() == plain.tobytes()
    found = made(cache, key=key).batch(2)["picture"]
    assert found.tobytes() != plain.tobytes()
    raw = made(cache, key={"image": {"size": (11, 13), "crop": (9, 9), "layout": "nhwc"}}).batch(2)
    scale = {} if dtype == "uint8" else {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), "dtype": dtype}
    floats = rc.image(raw["picture"], layout=layout, **scale)
    floats[raw["picture.age"] == NEVER] = 0
    assert found.tobytes() == np.ascontiguousarray(floats).tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_draws_fill_their_range(name):
    """By a picture of one value or pixel, whose change tells the amount."""
    positions = np.arange(4000)
    given = {"rotation": 8.0, "hue": 0.1}.get(name, 0.3)
    loader_amounts = drawn_by_the_loader({name: given}, positions)[name]
    assert loader_amounts.tolist() == amounts_of({name: given}, positions, "wrist", 3)[name]
    middle = ONE if name in ("brightness", "contrast", "saturation") else 0
    found = (loader_amounts - middle) / (given * ONE)
    assert np.abs(found).max() <= 1 + 1e-4
    assert found.min() < -0.99
    assert found.max() > 0.99
    assert abs(found.mean()) < 0.05
    assert abs(found.std() - 1 / math.sqrt(3)) < 0.02


def drawn_by_the_loader(ranges, positions, camera="wrist", seed=3):
    from robocache._loader.augment import amounts_of as amounts
    from robocache._loader.engine import uniform

    return amounts(ranges, lambda name, count: uniform(_core.draws(seed, positions, camera, name), count))


def test_factors_are_not_negative():
    positions = np.arange(2000)
    found = drawn_by_the_loader({"brightness": 3.0}, positions)["brightness"]
    assert found.min() >= 0
    assert found.min() < 0.01 * ONE
    assert 3.9 * ONE < found.max() <= 4 * ONE


def test_each_amount_has_a_draw_of_its_own():
    """Windows, seeds, cameras and names differ."""
    positions = np.arange(500)
    rows = [
        drawn_by_the_loader({name: 0.3}, positions, camera, seed)[name] - (0 if name in ("rotation", "hue") else ONE)
        for name in NAMES
        for camera in ("wrist", "head")
        for seed in (3, 4)
    ]
    correlation = np.corrcoef(np.stack(rows)) - np.eye(len(rows))
    assert np.abs(correlation).max() < 0.25


def test_cameras_differ_and_keys_of_one_camera_do_not(tmp_path):
    episode = plain_episode(0, 30)
    frames = pictures(Random("augment cameras"), 30)
    for camera in ("left", "right"):
        episode.streams[camera] = Raw(frames, episode.streams["state"].times, frames=True)
    cache = rc.Cache(write(tmp_path / "cache", [episode]))
    options = {"augment": {"brightness": 0.5, "hue": 0.1}, "dtype": "uint8"}
    keys = {"a": rc.Key("left", **options), "b": rc.Key("right", **options), "c": rc.Key("left", **options)}
    loader = rc.Loader(cache, batch_size=16, rate=50, keys=keys)
    batch, calm = loader.batch(0), loader.eval().batch(0)
    differ = [batch["a"][row].tobytes() != batch["b"][row].tobytes() for row in range(16)]
    assert sum(differ) > 12
    assert batch["a"].tobytes() == batch["c"].tobytes()
    assert calm["a"].tobytes() == calm["b"].tobytes()


def test_eval_and_window_have_none(cache):
    loader, plain = made(cache), made(cache, None)
    assert loader.batch(1)["picture"].tobytes() != plain.batch(1)["picture"].tobytes()
    assert loader.eval().batch(1)["picture"].tobytes() == plain.batch(1)["picture"].tobytes()
    at = int(plain.batch(1)["time"][0])
    episode = int(plain.batch(1)["episode"][0])
    assert loader.window(episode, at)["picture"].tobytes() == plain.batch(1)["picture"][:1].tobytes()


def test_a_spec_and_a_state_give_equal_bytes(cache):
    loader = made(cache, last="drop")
    spec = json.loads(json.dumps(loader.spec()))
    assert spec["keys"]["picture"]["key"]["augment"] == RANGES
    again = rc.Loader.from_spec(cache, spec)
    assert again.keys["picture"] == loader.keys["picture"]
    batches = [batch["picture"].tobytes() for batch, _ in zip(loader, range(5), strict=False)]
    assert len(set(batches)) == 5
    assert again.batch(3)["picture"].tobytes() == batches[3]
    first = iter(again)
    next(first), next(first)
    state = json.loads(json.dumps(again.state_dict()))
    resumed = made(cache, last="drop")
    resumed.load_state_dict(state)
    assert [batch["picture"].tobytes() for batch, _ in zip(resumed, range(3), strict=False)] == batches[2:5]
    other = made(cache, {**RANGES, "hue": 0.2}, last="drop")
    with pytest.raises(ValueError, match="spec"):
        other.load_state_dict(state)


def test_ranks_and_batch_sizes_do_not_matter(cache):
    whole = made(cache).batch(1)
    for rank in range(2):
        part = made(cache, batch_size=4, rank=rank, world=2).batch(1)
        mine = slice(4 * rank, 4 * rank + 4)
        assert part["position"].tolist() == whole["position"][mine].tolist()
        assert part["picture"].tobytes() == whole["picture"][mine].tobytes()


def test_gray_pictures_and_depth(tmp_path):
    episode = plain_episode(0, 12)
    frames = pictures(Random("augment gray"), 12)
    times = episode.streams["state"].times
    episode.streams["gray"] = Raw(np.ascontiguousarray(frames[..., :1]), times, frames=True)
    episode.streams["depth"] = Raw(frames[..., 0].astype(np.uint16) * 100, times, frames=True)
    cache = rc.Cache(write(tmp_path / "cache", [episode]))

    def of(stream, augment):
        key = rc.Key(stream, augment=augment, dtype="uint8", image={"layout": "nhwc"})
        return rc.Loader(cache, batch_size=4, rate=50, keys={"picture": key})

    ranges = {"rotation": 10.0, "brightness": 0.3, "contrast": 0.4}
    batch, plain = of("gray", {**ranges, "hue": 0}).batch(1), of("gray", None).batch(1)
    amounts = amounts_of(ranges, plain["position"], "gray", 0)
    for row in range(4):
        mine = {name: each[row] for name, each in amounts.items()}
        np.testing.assert_array_equal(batch["picture"][row, 0], expected_of(plain["picture"][row, 0], mine))
    for augment, said in (({"hue": 0.1}, "hue, .*gray"), ({"saturation": 1, "hue": 0.1}, "saturation and hue, .*gray")):
        with pytest.raises(ValueError, match=f'Loader: key "picture": augment has {said}'):
            of("gray", augment)
    with pytest.raises(ValueError, match=r'Loader: key "picture": augment .*depth'):
        of("depth", {"brightness": 0.1})


# ---- Sentences


@pytest.mark.parametrize(
    ("augment", "error", "said"),
    [
        ({"brightnes": 0.2}, ValueError, "augment has no.*brightnes.*brightness"),
        (0.2, TypeError, "augment is 0.2; expected a dict"),
        ({"brightness": -0.1}, ValueError, "brightness is -0.1; expected a number from 0 to 8"),
        ({"contrast": 8.5}, ValueError, "contrast is 8.5; expected a number from 0 to 8"),
        ({"saturation": float("nan")}, ValueError, "saturation is nan; expected"),
        ({"hue": 0.51}, ValueError, "hue is 0.51; expected turns from 0 to 0.5"),
        ({"rotation": 181}, ValueError, "rotation is 181; expected degrees from 0 to 180"),
        ({"rotation": "5"}, TypeError, "rotation is '5'; expected degrees"),
        ({"hue": True}, TypeError, "hue is True; expected turns"),
        ({"brightness": (0.8, 1.2)}, TypeError, r"brightness is \(0.8, 1.2\); expected a number"),
    ],
)
def test_sentences_for_bad_options(augment, error, said):
    with pytest.raises(error, match=f"^Key: .*{said}"):
        rc.Key("wrist", augment=augment)


def test_streams_of_numbers_are_not_augmented(cache):
    keys = {"picture": rc.Key("joints", augment={"hue": 0.1})}
    with pytest.raises(ValueError, match=r'Loader: key "picture" has augment=, and stream "joints" is no camera'):
        rc.Loader(cache, batch_size=4, rate=50, keys=keys)


def test_a_key_says_what_it_has():
    key = rc.Key("wrist", augment={"hue": 0.1, "rotation": 5})
    assert key.to_json()["augment"] == {"rotation": 5.0, "hue": 0.1}
    assert key == rc.Key("wrist", augment={"rotation": 5.0, "hue": 0.1})
    assert key != rc.Key("wrist")
    assert rc.Key("wrist", augment={}) == rc.Key("wrist")
    assert eval(repr(key), {"Key": rc.Key}) == key
