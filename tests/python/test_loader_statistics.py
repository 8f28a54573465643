"""Statistics that a loader takes over windows: of relative and rotated values."""

from __future__ import annotations

import numpy as np
import pytest
from loader_cases import many, plain_episode, write
from loader_oracle import Truth

import robocache as rc
from robocache._loader import window_statistics
from robocache._loader.loader import Loader

STATE = "observation.state"
KEYS = {STATE: {"streams": ["state"], "steps": [0]}, "action": {"streams": ["action"], "steps": range(4)}}


def made(cache, **more):
    action = rc.Key("action", steps=range(4), relative=STATE, normalize=more.pop("normalize", "quantiles"))
    return rc.Loader(cache, batch_size=8, rate=50, keys={STATE: rc.Key("state"), "action": action}, **more)


def differences(episodes, chosen):
    """[N, D]: each valid step of an action less the state at the anchor, in all windows of these episodes."""
    truth = Truth(episodes, {"rate": 50, "batch_size": 1, "keys": KEYS, "episodes": chosen})
    found = []
    for episode, time in truth.windows:
        row = truth.row(episode, time)
        if row[f"{STATE}.age"][0] > np.iinfo(np.int64).min:
            found.append((row["action"] - row[STATE])[row["action.valid"]])
    return np.concatenate(found)


def test_a_loader_of_val_has_the_statistics_of_train(tmp_path):
    episodes = many(60)
    cache = rc.Cache(write(tmp_path / "cache", episodes, "many"))
    train, val = made(cache, split="train"), made(cache, split="val")
    values = differences(episodes, train.windows.episodes.tolist())
    for loader in (train, val):
        told = loader.spec()["keys"]["action"]["normalizer"]
        for name, q in (("q01", 0.01), ("q99", 0.99)):
            np.testing.assert_allclose(told[name], np.quantile(values.astype(np.float64), q, axis=0), rtol=1e-12)
    stats = val.lerobot().meta.stats["action"]
    np.testing.assert_allclose(stats["mean"], values.astype(np.float64).mean(axis=0), rtol=1e-12)
    assert stats["count"].tolist() == [len(values)]


def test_a_split_without_training_episodes_has_its_own(tmp_path):
    episodes = many(60)
    cache = rc.Cache(write(tmp_path / "cache", episodes, "many"))
    chosen = made(cache, split="val").windows.episodes.tolist()
    told = made(cache, split="val", episodes=chosen, normalize="min_max").spec()["keys"]["action"]["normalizer"]
    values = differences(episodes, chosen)
    np.testing.assert_array_equal(told["min"], values.min(axis=0))
    np.testing.assert_array_equal(told["max"], values.max(axis=0))


def test_statistics_of_windows_are_computed_once(tmp_path, monkeypatch):
    cache = rc.Cache(write(tmp_path / "cache", [plain_episode(k) for k in range(3)]))
    first, calls = made(cache), []
    compute = Loader._raw_windows
    monkeypatch.setattr(Loader, "_raw_windows", lambda *given: calls.append(1) or compute(*given))
    assert made(cache, seed=4).spec()["keys"] == first.spec()["keys"]
    assert not calls
    made(cache, episodes=[0, 1])
    assert calls


@pytest.mark.parametrize("named", [True, False])
def test_a_channel_without_a_value_has_no_statistics(tmp_path, named):
    """Such as the effort of an arm that does not measure it."""
    values = np.stack([np.arange(20.0), np.full(20, np.nan)], axis=1)
    channels = ["position", "effort"] if named else None
    with rc.CacheWriter(tmp_path / "cache") as writer:
        writer.add({"joints": rc.Stream(values, np.arange(20) * 0.02, channels=channels)})
    keys = {"state": rc.Key("joints", normalize="mean_std")}
    name = r' \("effort"\)' if named else ""
    said = rf'key "state": channel 1{name} of stream "joints" has no finite value in the 1 training episode.*stats='
    with pytest.raises(ValueError, match=said):
        rc.Loader(tmp_path / "cache", batch_size=4, rate=50, keys=keys)
    keys["state"] = keys["state"].replace(stats={"mean": [0, 0], "std": [1, 1]})
    assert rc.Loader(tmp_path / "cache", batch_size=4, rate=50, keys=keys).batch(0)["state"].shape == (4, 1, 2)


@pytest.mark.parametrize("count", [3, 1000, 10_000])
def test_many_values_are_gathered_in_little_memory(monkeypatch, count):
    """Quantiles within a share of their rank, and all else as NumPy has it."""
    for name, value in (("BLOCK", 1024), ("MOST_KEPT", 2048)):
        monkeypatch.setattr(window_statistics, name, value)
    random = np.random.default_rng(0)
    values = (random.standard_normal((count, 2)) * [1, 100] + [0, 1e4]).astype(np.float32)
    gathered = window_statistics.RunningStatistics(2)
    for part in np.split(values, [count // 7, count // 3, count // 2]):
        gathered.add(part)
    found, wide = gathered.statistics(), values.astype(np.float64)
    for name in ("mean", "std", "min", "max"):
        np.testing.assert_allclose(found[name], getattr(wide, name)(axis=0), rtol=1e-12)
    assert found["count"].tolist() == [count]
    kept = len(gathered._whole) + sum(map(len, gathered._shares))
    assert kept <= 2048 + count // window_statistics.SHARE
    for name, q in window_statistics.QUANTILES.items():
        if count <= 2048:
            np.testing.assert_array_equal(found[name], np.quantile(wide, q, axis=0))
            continue
        near = window_statistics.SHARE / 2 / 1024 + 10 / count  # of the rank: a share of a block, and a value of each
        low, high = (np.quantile(wide, np.clip(q + d, 0, 1), axis=0) for d in (-near, near))
        assert ((low <= found[name]) & (found[name] <= high)).all(), name
