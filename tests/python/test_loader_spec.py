"""Loader.spec: JSON that makes the same loader again, whatever it was made with."""

from __future__ import annotations

import datetime
import json
import shutil

import numpy as np
import pytest
from loader_calling import loader_of
from loader_cases import CACHES, many, write
from loader_specs import MEANS, one, plain_spec
from recordings import batch
from recordings import made as batches

import robocache as rc
from robocache._cache.recipe import load_recipe

pytest.importorskip("PIL", reason="Pillow is not installed")

COLOURS = {"mean": [0.1, 0.2, 0.3], "std": [0.2, 0.0, 0.5]}
GROUPS = [("cubic", 0, 3), ("slerp", 3, 7)]
CASES = {
    "intervals by number": ("plain", plain_spec(where={0: [(0.05, 0.11)], 2: [(0.1, 9.0)]})),
    "intervals by name": ("plain", plain_spec(where={"plain-0": [(0.05, 0.11)]})),
    "a stream that is 0": ("plain", plain_spec(where="not moving")),
    "a function of episodes": ("plain", plain_spec(episodes=lambda episode: episode.task == "a")),
    "names of episodes": ("plain", plain_spec(episodes=["plain-1"])),
    "a split of some episodes": ("many shards", plain_spec(episodes=range(20), split="train")),
    "a short stride": ("plain", plain_spec(stride=5e-7, episodes=[1], drop_last_steps=np.int64(3))),
    "a stride": ("plain", plain_spec(stride=datetime.timedelta(milliseconds=33))),
    "a short gap": ("arm", one(["joints"], max_gap=datetime.timedelta(microseconds=500))),
    "gaps by stream": ("arm", one(["joints", "gripper"], max_gap={"joints": 0.05, "gripper": 20_000_000})),
    "methods by channel": ("arm", one(["tool_pose"], method=GROUPS)),
    "methods by stream": ("arm", one(["joints", "tool_pose"], method={"joints": "cubic", "tool_pose": GROUPS})),
    "seconds": ("plain", one(["state"], None, delta_timestamps=np.array([-0.1, 0, 0.1]))),
    "length": ("plain", plain_spec(length=33, rate=np.float32(50), seed=np.int64(3))),
    "statistics of the cache": ("arm", one(["joints", "gripper"], normalize="quantiles")),
    "statistics": ("arm", one(["joints"], normalize="mean_std", stats=MEANS)),
    "pictures, ImageNet": ("arm", one("wrist", [-1, 0], normalize="imagenet", dtype="float16")),
    "pictures, crops": ("arm", one("wrist", [0], image={"size": (10, 12), "crop": (5, 6), "layout": "nhwc"})),
    "draws": ("arm", one(["joints", "mount"], drop=0.3, latency_jitter=True)),
    **{
        f"pictures, {convention}, {'own' if stats else 'the cache'}": (
            "arm",
            one("wrist", [0], normalize="mean_std", stats=stats) | {"convention": convention},
        )
        for convention in ("robocache", "lerobot", "openpi")
        for stats in (None, COLOURS)
    },
}


def made(name, folder):
    cache, spec = CASES[name]
    spec = dict(spec)
    convention = spec.pop("convention", None)
    if convention:
        spec["keys"] = {key: given | {"convention": convention} for key, given in spec["keys"].items()}
    return rc.Cache(CACHES[cache].write(folder)[0]), spec


def assert_equal_batches(one, other):
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert (array.dtype, array.shape) == (other[name].dtype, other[name].shape), name
        assert array.tobytes() == other[name].tobytes(), name


@pytest.mark.parametrize("name", CASES)
def test_a_spec_makes_the_same_loader(tmp_path, name):
    cache, arguments = made(name, tmp_path / "cache")
    loader = loader_of(cache, arguments)
    spec = json.loads(json.dumps(loader.spec()))
    again = rc.Loader.from_spec(cache, spec)
    assert again.spec() == spec
    for number in (0, 5, 1000):
        assert_equal_batches(again.batch(number), loader.batch(number))
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))


@pytest.mark.parametrize("episodes", [None, range(75), lambda episode: episode.index < 75])
def test_a_spec_of_train_makes_the_loader_of_val(tmp_path, episodes):
    cache = rc.Cache(write(tmp_path / "cache", many(80)))
    train = rc.Loader(cache, batch_size=2, rate=50, observation="state", split="train", episodes=episodes)
    val = rc.Loader.from_spec(cache, train.spec(), split="val")
    expected = rc.Loader(cache, batch_size=2, rate=50, observation="state", split="val", episodes=episodes)
    np.testing.assert_array_equal(val.windows.episodes, expected.windows.episodes)


RECIPE = """
[streams."/joint_states"]
name = "joints"
latency = 0.002
clock_offset = -0.0005
[streams."/map"]
static = true
[streams."/camera"]
latency = 0.03
"""


def test_the_spec_says_how_stamps_were_shifted_and_what_is_constant(tmp_path):
    """Latency and clock offset together, of a recipe and of the writer: what a live robot has to subtract."""
    times = np.arange(40, dtype=np.int64) * 20_000_000
    frames = np.zeros((40, 4, 5, 3), np.uint8)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    with rc.CacheWriter(tmp_path / "cache") as writer:
        for number, latency in enumerate((0.0, 0.001)):
            recording = batches(
                batch("/joint_states", np.ones((40, 2)), times + number * 10**12),
                batch("/map", np.ones((1, 3)), times[:1] + number * 10**12),
                batch("/camera", frames, times + number * 10**12),
            )
            cooked = load_recipe(tmp_path / "recipe.toml").apply(recording)
            writer.add(cooked, name=f"{number}", latency={"joints": latency})
    keys = {"state": rc.Key(["joints", "/map"]), "camera": rc.Key("/camera")}
    said = rc.Loader(tmp_path / "cache", batch_size=1, rate=50, keys=keys).spec()["keys"]
    joints, constant = said["state"]["streams"]
    [camera] = said["camera"]["streams"]
    assert (joints["shift_ns"], joints["static"]) == ([1_500_000, 2_500_000], False)
    assert (constant["shift_ns"], constant["static"], constant["max_gap_ns"]) == ([0], True, None)
    assert camera["shift_ns"] == [30_000_000]


def test_weights_are_part_of_state_and_spec(tmp_path):
    cache = rc.Cache(CACHES["plain"].write(tmp_path / "cache")[0])
    many_windows = len(loader_of(cache, plain_spec()).windows)
    weights = np.arange(many_windows, dtype=np.float64)
    loader = loader_of(cache, plain_spec(weights=weights, length=50))
    spec = json.loads(json.dumps(loader.spec()))
    with pytest.raises(ValueError, match="give weights="):
        rc.Loader.from_spec(cache, spec)
    again = rc.Loader.from_spec(cache, spec, weights=weights)
    again.load_state_dict(loader.state_dict())
    assert_equal_batches(again.batch(3), loader.batch(3))
    with pytest.raises(ValueError, match="another loader"):
        rc.Loader.from_spec(cache, spec, weights=weights[::-1]).load_state_dict(loader.state_dict())


UNDONE = {
    "minus the state": {
        "observation.state": {"streams": ["joints", "gripper"], "steps": [-3, 0], "normalize": "mean_std"},
        "action": {
            "streams": ["command"],
            "steps": range(4),
            "relative": "subtract",
            "relative_channels": [0, 2],
            "normalize": "quantiles",
            "convention": "openpi",
        },
        "observation.images.wrist": {"streams": "wrist"},
    },
    "a pose as 6d": {
        "observation.state": {"streams": ["tool_pose"], "steps": [-1, 0]},
        "action": {
            "streams": ["target_pose"],
            "steps": range(4),
            "relative": "pose",
            "rotation": "6d",
            "normalize": "min_max",
        },
    },
    "plain": {"action": {"streams": ["gripper", "mode"], "steps": range(4)}},
}


def test_a_checkpoint_of_torch_holds_spec_and_state(tmp_path):
    """Also as torch.load reads them by default: plain dicts, lists, numbers and texts, and no class."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    loader = loader_of(
        CACHES["arm"].write(tmp_path / "cache")[0], {"rate": 50, "batch_size": 4, "keys": UNDONE["plain"]}
    )
    kept = {"spec": loader.spec(), "loader": loader.state_dict()}
    torch.save(kept, tmp_path / "checkpoint.pt")
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True) == kept


@pytest.mark.parametrize("name", UNDONE)
def test_a_robot_undoes_a_chunk_without_the_cache(tmp_path, name):
    path = CACHES["arm"].write(tmp_path / "cache")[0]
    loader = loader_of(rc.Cache(path), {"rate": 50, "batch_size": 4, "keys": UNDONE[name]})
    batch = loader.batch(0)
    expected = loader.invert("action", batch["action"], batch)
    said = json.dumps(loader.spec())
    shutil.rmtree(path)
    spec = rc.LoaderSpec(json.loads(said))
    np.testing.assert_array_equal(spec.invert("action", batch["action"], batch), expected)
    with pytest.raises(KeyError, match='there is no key "actoin"; near names: action'):
        spec.invert("actoin", batch["action"], batch)
    if "observation.images.wrist" in UNDONE[name]:
        with pytest.raises(ValueError, match="pictures or voxels, which cannot be undone"):
            spec.invert("observation.images.wrist", batch["action"])
        with pytest.raises(ValueError, match=r'relative to "observation\.state"; give the batch'):
            spec.invert("action", batch["action"])
    assert "action" in repr(spec)
