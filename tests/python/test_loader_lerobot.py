"""loader.lerobot(): batches and metadata as LeRobot's policies and processors read them, against the raw arrays."""

import pickle

import numpy as np
import pytest
from loader_policies import LENGTHS, RATE, TASKS, recorded, steps_of

import robocache as rc

torch = pytest.importorskip("torch", reason="torch is not installed")

STATE, WRIST = "observation.state", "observation.images.wrist"
KEYS = {
    STATE: rc.Key("joints", steps=[-1, 0], normalize="mean_std", dtype="float16"),
    WRIST: rc.Key("wrist", normalize="imagenet"),
    "observation.grid": rc.Key("grid", normalize="min_max"),
    "action": rc.Key("command", steps=range(6), normalize="quantiles"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("lerobot") / "cache")


def loader_of(cache, **more):
    return rc.Loader(cache, **({"batch_size": 8, "rate": RATE, "keys": KEYS, "seed": 5} | more))


def test_values_are_those_of_the_streams(made):
    cache, raw = made
    loader = loader_of(cache)
    batches = loader.lerobot()
    assert len(batches) == len(loader) == 12
    for number, batch in enumerate(batches):
        plain = loader.batch(number)
        for name, stream, steps in ((STATE, "joints", [-1, 0]), ("action", "command", range(6))):
            wanted, beyond = steps_of(raw[stream], plain, steps)
            assert batch[name].dtype == torch.float32
            np.testing.assert_array_equal(batch[name], wanted)
            np.testing.assert_array_equal(batch[f"{name}_is_pad"], beyond)
        grid, _ = steps_of(raw["grid"], plain, [0])
        np.testing.assert_array_equal(batch["observation.grid"], grid[:, 0])
        pictures, _ = steps_of(raw["wrist"], plain, [0])
        assert batch[WRIST].shape == (8, 3, 12, 16)
        np.testing.assert_allclose(batch[WRIST], pictures[:, 0].transpose(0, 3, 1, 2) / 255, atol=1e-7)
        assert f"{WRIST}_is_pad" not in batch
    assert number == 11


def test_every_row_says_which_frame_it_is(made):
    cache, _ = made
    batches = loader_of(cache, shuffle=False, batch_size=32).lerobot()
    rows = {name: torch.cat([batch[name] for batch in batches]) for name in ("index", "frame_index", "episode_index")}
    assert rows["index"].tolist() == list(range(sum(LENGTHS)))
    assert rows["frame_index"].tolist() == [k for length in LENGTHS for k in range(length)]
    assert rows["episode_index"].tolist() == [e for e, length in enumerate(LENGTHS) for _ in range(length)]
    for batch in batches:
        np.testing.assert_array_equal(batch["timestamp"], (batch["frame_index"].numpy() / RATE).astype(np.float32))
        said = [TASKS[episode] or "no task" for episode in batch["episode_index"].tolist()]
        assert batch["task"] == said
        assert [list(batches.meta._tasks)[k] for k in batch["task_index"].tolist()] == said


def test_meta_is_what_factories_and_processors_read(made):
    cache, raw = made
    meta = loader_of(cache).lerobot().meta
    assert meta.fps == RATE
    assert meta.camera_keys == meta.image_keys == [WRIST]
    assert meta.features[WRIST] == {"dtype": "image", "shape": (12, 16, 3), "names": ["height", "width", "channels"]}
    assert meta.features[STATE] == {"dtype": "float32", "shape": (5,), "names": list("abcde")}
    assert meta.shapes["observation.grid"] == (2, 3)
    assert meta.names["action"] is None
    assert meta.features["index"]["dtype"] == "int64"
    assert (meta.total_episodes, meta.total_frames, meta.total_tasks) == (3, sum(LENGTHS), 3)
    assert meta.episodes["dataset_from_index"] == [0, 40, 65]
    assert meta.episodes["dataset_to_index"] == [40, 65, 96]
    assert meta.episodes["tasks"] == [["push"], ["no task"], ["pull"]]
    for name, stream in ((STATE, "joints"), ("action", "command"), ("observation.grid", "grid")):
        whole, stats = np.concatenate(raw[stream]).astype(np.float64), meta.stats[name]
        for stat in ("mean", "std", "min", "max"):
            np.testing.assert_allclose(stats[stat], getattr(whole, stat)(axis=0), rtol=1e-9)
        for stat, q in (("q01", 0.01), ("q10", 0.1), ("q50", 0.5), ("q90", 0.9), ("q99", 0.99)):
            np.testing.assert_allclose(stats[stat], np.quantile(whole, q, axis=0), rtol=1e-9)
        assert stats["count"].tolist() == [96]


def test_pictures_have_imagenets_statistics_or_their_own(made):
    cache, raw = made
    imagenet = loader_of(cache).lerobot().meta.stats[WRIST]
    assert imagenet["mean"].shape == (3, 1, 1)
    assert imagenet["mean"].ravel().tolist() == [0.485, 0.456, 0.406]
    own = loader_of(cache).lerobot(imagenet_stats=False).meta.stats[WRIST]
    whole = np.concatenate(raw["wrist"]).reshape(-1, 3) / 255
    np.testing.assert_allclose(own["mean"].ravel(), whole.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(own["std"].ravel(), whole.std(axis=0), rtol=1e-9)


def test_statistics_are_of_the_training_episodes_and_of_relative_actions(made):
    cache, raw = made
    keys = {STATE: rc.Key("joints"), "action": rc.Key("joints", steps=range(3), relative=STATE)}
    batches = loader_of(cache, keys=keys, episodes=[0, 2]).lerobot()
    stats = batches.meta.stats
    whole = np.concatenate([raw["joints"][0], raw["joints"][2]]).astype(np.float64)
    np.testing.assert_allclose(stats[STATE]["mean"], whole.mean(axis=0), rtol=1e-9)
    differences = []
    for episode in (0, 2):
        joints = raw["joints"][episode]
        for step in range(3):
            differences.append(joints[step:] - joints[: len(joints) - step])
    truth = np.concatenate(differences).astype(np.float64)
    np.testing.assert_allclose(stats["action"]["std"], truth.std(axis=0), rtol=1e-6)
    np.testing.assert_allclose(stats["action"]["q10"], np.quantile(truth, 0.1, axis=0), rtol=1e-6)
    assert stats["action"]["count"].tolist() == [len(truth)]
    assert batches.batch(0)["action"][:, 0].abs().max() == 0  # relative to the state at the anchor itself


def test_statistics_of_a_checkpoint_are_kept(made):
    cache, _ = made
    given = {"mean": [1.0] * 5, "std": [2.0] * 5}
    keys = KEYS | {STATE: KEYS[STATE].replace(stats=given)}
    stats = loader_of(cache, keys=keys).lerobot().meta.stats[STATE]
    assert stats["mean"].tolist() == [1.0] * 5
    assert stats["std"].tolist() == [2.0] * 5
    assert stats["max"].max() > 2


def test_the_time_axis_follows_the_steps(made):
    cache, _ = made
    keys = {STATE: rc.Key("joints"), WRIST: rc.Key("wrist"), "action": rc.Key("command")}
    batch = loader_of(cache, keys=keys).lerobot().batch(0)
    assert batch[STATE].shape == (8, 5)
    assert batch["action"].shape == (8, 1, 4)
    assert batch["action_is_pad"].shape == (8, 1)
    batch = loader_of(cache, keys=keys).lerobot(time_axis=[STATE]).batch(0)
    assert batch[STATE].shape == (8, 1, 5)
    assert batch[WRIST].shape == (8, 3, 12, 16)
    batch = loader_of(cache, keys=keys).lerobot(time_axis=True).batch(0)
    assert batch[WRIST].shape == (8, 1, 3, 12, 16)
    assert f"{WRIST}_is_pad" in batch


def test_a_batch_from_its_number_a_window_and_a_state(made):
    cache, _ = made
    batches = loader_of(cache).lerobot()
    passed = list(batches)
    assert equal(batches.batch(4), passed[4])
    row = passed[4]["index"][3].item()
    episode, frame = (passed[4][name][3].item() for name in ("episode_index", "frame_index"))
    window = batches.window(episode, cache.episodes[episode].start + frame * 10**9 // RATE)
    assert window["index"].tolist() == [row]
    np.testing.assert_array_equal(window[STATE][0], passed[4][STATE][3])
    assert not {"action", "action_is_pad"} & set(window)
    again = loader_of(cache).lerobot()
    again.load_state_dict(batches.state_after(passed[4]))
    assert equal(next(iter(again)), passed[5])
    assert again.state_dict() == batches.state_after(passed[5])
    assert equal(pickle.loads(pickle.dumps(batches)).batch(4), passed[4])
    loader = loader_of(cache)
    assert loader.state_dict() != loader.lerobot().state_dict() == loader_of(cache).lerobot().state_dict()


def test_crops_are_drawn_in_training_and_centred_in_evaluation(made):
    cache, raw = made
    keys = {WRIST: rc.Key("wrist", image={"crop": (8, 8)}), "action": rc.Key("command")}
    loader = loader_of(cache, keys=keys)
    assert loader.lerobot().meta.features[WRIST]["shape"] == (8, 8, 3)
    wanted, _ = steps_of(raw["wrist"], loader.batch(0), [0])
    centred = wanted[:, 0, 2:10, 4:12].transpose(0, 3, 1, 2) / 255
    np.testing.assert_allclose(loader.eval().lerobot().batch(0)[WRIST], centred, atol=1e-7)
    assert not np.allclose(loader.lerobot().batch(0)[WRIST], centred, atol=1e-3)


def test_devices_and_ranks_give_the_same_rows(made):
    cache, _ = made
    whole = loader_of(cache).lerobot().batch(1)
    parts = [
        loader_of(cache, batch_size=4, rank=rank, world=2, device="cpu", resident=True).lerobot().batch(1)
        for rank in (0, 1)
    ]
    for name, values in whole.items():
        joined = parts[0][name] + parts[1][name] if name == "task" else torch.cat([part[name] for part in parts])
        assert joined == values if name == "task" else torch.equal(joined, values), name


def test_names_are_lerobots(made):
    cache, _ = made
    loader = rc.Loader(cache, batch_size=4, rate=RATE, observation=["joints", "wrist"], action=["command"])
    batches = loader.lerobot(names={"action.command": "action", "observation.wrist": "observation.images.wrist"})
    assert {"action", "action_is_pad", "observation.joints", WRIST} <= set(batches.batch(0))
    assert batches.meta.camera_keys == [WRIST]
    with pytest.raises(ValueError, match='names= has a key that the loader lacks: "command"'):
        loader.lerobot(names={"command": "action"})
    with pytest.raises(ValueError, match=r'two keys have the name "observation\.joints"'):
        loader.lerobot(names={"action.command": "observation.joints"})
    with pytest.raises(ValueError, match='no key may be named "index"'):
        loader.lerobot(names={"action.command": "index"})


def test_what_lerobot_cannot_use_is_told(tmp_path, made):
    with rc.CacheWriter(tmp_path / "cache") as writer:
        times = np.arange(4) * 50_000_000
        streams = {
            "depth": rc.Stream(np.ones((4, 6, 8), np.uint16), times),
            "command": rc.Stream(np.ones((4, 1)), times),
        }
        writer.add(streams)
    with pytest.raises(ValueError, match=r'key "observation\.depth" is depth'):
        rc.Loader(tmp_path / "cache", batch_size=1, rate=RATE, observation="depth", action="command").lerobot()
    pytest.importorskip("jax", reason="JAX is not installed")
    with pytest.raises(ValueError, match="LeRobot has torch tensors"):
        loader_of(made[0], arrays="jax").lerobot()


def equal(one, other):
    assert set(one) == set(other)
    return all(one[name] == other[name] if name == "task" else torch.equal(one[name], other[name]) for name in one)
