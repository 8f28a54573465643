"""loader.openpi(): batches as openpi's models read them, against NumPy; and statistics of checkpoints by stats=."""

import json
import pickle
import struct
from types import SimpleNamespace

import numpy as np
import pytest
from loader_policies import RATE, TASKS, recorded, steps_of

import robocache as rc

STATE, BASE, LEFT, RIGHT = "observation.state", "base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb"
CAMERAS = ("top", "left_wrist")
KEYS = {
    STATE: rc.Key("joints", steps=[-1, 0, 1], knowledge="truth"),
    "images.top": rc.Key("top"),
    "images.left_wrist": rc.Key("left_wrist", normalize="imagenet"),
    "action": rc.Key("command", steps=range(6)),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("openpi") / "cache", CAMERAS, (16, 16))


def loader_of(cache, keys=KEYS, **more):
    return rc.Loader(cache, **({"batch_size": 8, "rate": RATE, "keys": keys, "seed": 5} | more))


def by_openpi(model, x, stats):
    """openpi's transforms.Normalize and PadStatesAndActions."""
    x = x.astype(np.float64)
    if model == "pi0":
        made = (x - stats["mean"]) / (np.asarray(stats["std"]) + 1e-6)
    else:
        q01, q99 = (np.asarray(stats[name]) for name in ("q01", "q99"))
        made = (x - q01) / (q99 - q01 + 1e-6) * 2.0 - 1.0
    return np.pad(made, [(0, 0)] * (x.ndim - 1) + [(0, 32 - x.shape[-1])])


def statistics_of(arrays):
    whole = np.concatenate(arrays).astype(np.float64)
    low, high = np.quantile(whole, (0.01, 0.99), axis=0)
    return {"mean": whole.mean(axis=0), "std": whole.std(axis=0), "q01": low, "q99": high}


@pytest.mark.parametrize("model", ["pi0", "pi05", "pi0_fast"])
def test_state_and_actions_are_normalised_as_openpi_does_and_padded(made, model):
    cache, raw = made
    loader = loader_of(cache)
    batches = loader.openpi(model=model)
    for number, batch in enumerate(batches):
        plain = loader.batch(number)
        state, _ = steps_of(raw["joints"], plain, [0])
        actions, beyond = steps_of(raw["command"], plain, range(6))
        assert batch["state"].shape == (8, 32)
        assert batch["actions"].shape == (8, 6, 32)
        assert batch["state"].dtype == batch["actions"].dtype == np.float32
        wanted = by_openpi(model, state[:, 0], statistics_of(raw["joints"]))
        np.testing.assert_allclose(batch["state"], wanted, rtol=1e-5, atol=1e-5)
        wanted = by_openpi(model, actions, statistics_of(raw["command"]))
        np.testing.assert_allclose(batch["actions"], wanted, rtol=1e-5, atol=1e-5)
        assert not batch["actions"][..., 4:].any()
        np.testing.assert_array_equal(batch["actions_is_pad"], beyond)
        assert batch["prompt"] == [TASKS[episode] or "" for episode in plain["episode"].tolist()]
    assert number == 11


@pytest.mark.parametrize("model", ["pi05", "pi0_fast"])
def test_pictures_are_bytes_and_missing_ones_are_masked(made, model):
    cache, raw = made
    loader = loader_of(cache)
    batches = loader.openpi(model=model)
    assert batches.images == {BASE: "images.top", LEFT: "images.left_wrist", RIGHT: None}
    batch = batches.batch(2)
    for name, stream in ((BASE, "top"), (LEFT, "left_wrist")):
        picture = batch["image"][name]
        assert picture.shape == (8, 224, 224, 3)
        assert picture.dtype == np.uint8
        frames, _ = steps_of(raw[stream], loader.batch(2), [0])
        np.testing.assert_array_equal(picture, rc.image(frames[:, 0], (224, 224), fit="contain"))
        assert batch["image_mask"][name].tolist() == [True] * 8
    assert batch["image"][RIGHT].shape == (8, 224, 224, 3)
    assert not batch["image"][RIGHT].any()
    assert batch["image_mask"][RIGHT].tolist() == [model == "pi0_fast"] * 8


def test_a_camera_that_is_not_there_yet_is_masked(tmp_path):
    with rc.CacheWriter(tmp_path / "cache") as writer:
        times = np.arange(20) * 50_000_000
        late = rc.Stream(np.full((16, 8, 8, 3), 9, np.uint8), times[4:], max_gap=0.06, method="hold")
        numbers = rc.Stream(np.ones((20, 2), np.float32), times)
        writer.add({"top": late, "joints": numbers, "command": numbers})
    keys = {STATE: rc.Key("joints"), "top": rc.Key("top"), "action": rc.Key("command")}
    loader = rc.Loader(tmp_path / "cache", batch_size=1, rate=RATE, keys=keys)
    before, after = (loader.openpi(normalize=False).window(0, t) for t in (0.1, 0.5))
    assert (before["image_mask"][BASE].item(), before["image"][BASE].max()) == (False, 0)
    assert (after["image_mask"][BASE].item(), after["image"][BASE].max()) == (True, 9)


def test_which_camera_is_which_picture(made):
    cache, _ = made
    loader = loader_of(cache)
    batches = loader.openpi(images={RIGHT: "images.left_wrist"})
    assert batches.images == {BASE: None, LEFT: None, RIGHT: "images.left_wrist"}
    assert loader.openpi(images={"base_1_rgb": "images.top"}).images == {"base_1_rgb": "images.top"}
    both = KEYS | {"images.again": rc.Key("top")}
    with pytest.raises(ValueError, match=r'cameras "images\.top" and "images\.again" could both be base_0_rgb'):
        loader_of(cache, both).openpi()
    with pytest.raises(ValueError, match=r'images= names no key of a camera: "images\.tip"'):
        loader.openpi(images={BASE: "images.tip"})
    with pytest.raises(ValueError, match="model is 'pi1'; expected one of 'pi0'"):
        loader.openpi(model="pi1")
    with pytest.raises(ValueError, match=r'state= names no key of numbers: "images\.top"'):
        loader.openpi(state="images.top")
    with pytest.raises(ValueError, match=r'key "observation\.state" has 5 channels; the model has 4'):
        loader.openpi(width=4)
    with pytest.raises(ValueError, match=r'key "observation\.state" has no step 0'):
        loader_of(cache, KEYS | {STATE: rc.Key("joints", steps=[-1])}).openpi()


def test_a_size_of_the_key_is_kept(made):
    keys = KEYS | {"images.top": rc.Key("top", image={"size": (20, 24), "crop": (18, 20)})}
    batch = loader_of(made[0], keys).openpi().batch(0)
    assert batch["image"][BASE].shape == (8, 18, 20, 3)


@pytest.mark.parametrize("form", ["file", "folder", "dict", "objects"])
def test_statistics_of_a_checkpoint(made, tmp_path, form):
    cache, raw = made
    # Those of a model's width, as openpi computes them where a robot has fewer channels.
    stats = {
        name: {"mean": [0.5] * 32, "std": [2.0] * 32, "q01": [low] * 32, "q99": [high] * 32}
        for name, low, high in (("state", -1.0, 7.0), ("actions", -9.0, 11.0))
    }
    (tmp_path / "norm_stats.json").write_text(json.dumps({"norm_stats": stats}))
    given = {
        "file": tmp_path / "norm_stats.json",
        "folder": str(tmp_path),
        "dict": stats,
        "objects": {
            name: SimpleNamespace(**{k: np.asarray(v) for k, v in each.items()}) for name, each in stats.items()
        },
    }[form]
    loader = loader_of(cache)
    batches = loader.openpi(norm_stats=given)
    actions, _ = steps_of(raw["command"], loader.batch(1), range(6))
    wanted = by_openpi("pi05", actions, {name: values[:4] for name, values in stats["actions"].items()})
    np.testing.assert_allclose(batches.batch(1)["actions"], wanted, rtol=1e-5, atol=1e-5)
    assert batches.norm_stats()["actions"] == {"q01": [-9.0] * 4, "q99": [11.0] * 4}


def test_actions_are_inverted(made):
    cache, raw = made
    keys = KEYS | {"action": rc.Key("joints", steps=range(6), relative=STATE)}
    loader = loader_of(cache, keys)
    batches = loader.openpi()
    batch = batches.batch(0)
    wanted, _ = steps_of(raw["joints"], loader.batch(0), range(6))
    np.testing.assert_allclose(batches.invert(batch["actions"], batch), wanted, atol=1e-4)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(batches)).batch(0)["actions"], batch["actions"])
    plain = loader.openpi(normalize=False, actions=None)
    assert "actions" not in plain.batch(0)
    with pytest.raises(ValueError, match="this loader has no actions"):
        plain.invert(batch["actions"])


def test_values_may_stay_as_they_are(made):
    cache, raw = made
    keys = KEYS | {STATE: KEYS[STATE].replace(normalize="mean_std")}
    loader = loader_of(cache, keys)
    state, _ = steps_of(raw["joints"], loader.batch(0), [0])
    np.testing.assert_array_equal(loader.openpi(normalize=False).batch(0)["state"][:, :5], state[:, 0])


def test_tokens(made):
    loader = loader_of(made[0], tokenize=lambda task: [ord(letter) for letter in task])
    batch = loader.openpi().batch(0)
    assert batch["tokenized_prompt"].dtype == np.int32
    for prompt, tokens, mask in zip(
        batch["prompt"], batch["tokenized_prompt"], batch["tokenized_prompt_mask"], strict=True
    ):
        assert "".join(map(chr, tokens[mask])) == prompt


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_other_libraries_give_the_same_numbers(made, library):
    pytest.importorskip(library, reason=f"{library} is not installed")
    cache, _ = made
    keys = {name: key for name, key in KEYS.items() if name != "images.left_wrist"}
    wanted = loader_of(cache, keys, tokenize=lambda task: [1, 2]).openpi().batch(3)
    found = loader_of(cache, keys, tokenize=lambda task: [1, 2], arrays=library).openpi().batch(3)
    assert set(found) == set(wanted)
    for name, values in wanted.items():
        if isinstance(values, dict):
            assert all(np.array_equal(found[name][each], values[each]) for each in values)
        elif name == "prompt":
            assert found[name] == values
        else:
            assert isinstance(found[name], np.ndarray) == (library == "jax" and values.dtype == np.int64)
            assert str(found[name].dtype).removeprefix("torch.") == str(values.dtype)
            np.testing.assert_array_equal(found[name], values)


# ---- stats= of a loader


STATS = {STATE: {"mean": [1.0] * 5, "std": [4.0] * 5}, "action": {"q01": [-2.0] * 4, "q99": [6.0] * 4}}
NORMALISED = {
    STATE: rc.Key("joints", normalize="mean_std", convention="lerobot"),
    "action": rc.Key("command", steps=range(6), normalize="quantiles"),
}


def safetensors(stats):
    """As LeRobot saves a normaliser: "KEY.STATISTIC", float32."""
    header, body = {}, b""
    for key, entry in stats.items():
        for name, values in entry.items():
            array = np.asarray(values, "<f4")
            span = [len(body), len(body) + array.nbytes]
            header[f"{key}.{name}"] = {"dtype": "F32", "shape": [len(array)], "data_offsets": span}
            body += array.tobytes()
    said = json.dumps(header).encode()
    return struct.pack("<Q", len(said)) + said + body


@pytest.mark.parametrize("form", ["dict", "stats.json", "meta/stats.json", "norm_stats.json", "saved policy"])
def test_a_loader_takes_statistics_of_a_checkpoint(made, tmp_path, form):
    cache, raw = made
    given = STATS if form == "dict" else tmp_path
    if form == "saved policy":
        (tmp_path / "policy_preprocessor_step_3_normalizer_processor.safetensors").write_bytes(safetensors(STATS))
    elif form == "norm_stats.json":
        (tmp_path / form).write_text(json.dumps({"norm_stats": {"state": STATS[STATE], "actions": STATS["action"]}}))
    elif form != "dict":
        (tmp_path / form).parent.mkdir(exist_ok=True)
        (tmp_path / form).write_text(json.dumps(STATS))
    loader = loader_of(cache, NORMALISED, stats=given)
    batch = loader.batch(0)
    joints, _ = steps_of(raw["joints"], batch, [0])
    command, _ = steps_of(raw["command"], batch, range(6))
    np.testing.assert_allclose(batch[STATE], (joints - 1) / (4 + 1e-8), rtol=1e-6)
    np.testing.assert_allclose(batch["action"], (command + 2) / 8 * 2 - 1, rtol=1e-5, atol=1e-6)
    again = rc.Loader.from_spec(cache, json.loads(json.dumps(loader.spec())))
    np.testing.assert_array_equal(again.batch(0)["action"], batch["action"])


def test_a_keys_own_statistics_and_identity_come_first(made):
    cache, raw = made
    keys = NORMALISED | {
        STATE: NORMALISED[STATE].replace(stats={"mean": [0.0] * 5, "std": [1.0] * 5}),
        "grid": rc.Key("grid"),
    }
    batch = loader_of(cache, keys, stats=STATS).batch(0)
    np.testing.assert_array_equal(batch[STATE], steps_of(raw["joints"], batch, [0])[0])


def test_statistics_that_do_not_fit_are_told(made, tmp_path):
    cache, _ = made
    with pytest.raises(ValueError, match='stats= has no statistics of key "action"'):
        loader_of(cache, NORMALISED, stats={STATE: STATS[STATE]})
    with pytest.raises(ValueError, match='Key "action": stats have 5 channels; expected 4'):
        loader_of(cache, NORMALISED, stats=STATS | {"action": {"q01": [0.0] * 5, "q99": [1.0] * 5}})
    with pytest.raises(TypeError, match="Loader: stats is int; expected a path, or a dict by key"):
        loader_of(cache, NORMALISED, stats=3)
    with pytest.raises(ValueError, match='"action" is list; expected statistics'):
        loader_of(cache, NORMALISED, stats={"action": [1.0]})
    with pytest.raises(FileNotFoundError, match=r"has none of norm_stats\.json"):
        loader_of(cache, NORMALISED, stats=tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        loader_of(cache, NORMALISED, stats=tmp_path / "none.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ValueError, match=r"broken\.json is no JSON"):
        loader_of(cache, NORMALISED, stats=tmp_path / "broken.json")
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"list\.json has list; expected statistics by key"):
        loader_of(cache, NORMALISED, stats=tmp_path / "list.json")
    whole = safetensors(STATS)
    for cut in (0, 7, 8, 30, len(whole) - 3):
        (tmp_path / "cut.safetensors").write_bytes(whole[:cut])
        with pytest.raises(ValueError, match=r"cut\.safetensors holds no statistics of a normaliser"):
            loader_of(cache, NORMALISED, stats=tmp_path / "cut.safetensors")
