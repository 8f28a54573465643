"""What rc.Loader draws, crops and weighs, its relative values and their inverse, and cameras of every kind."""

from __future__ import annotations

import dataclasses
import itertools
import warnings

import numpy as np
import pytest
from camera_files import encoded, photo, write_images
from cases import Random
from frame_oracle import frame_of
from loader_calling import assert_equal_bits, case_of, check_batch, loader_of, to_numpy
from loader_cases import CACHES, MS, Episode, Raw, arm, pictures, plain_episode, write
from loader_oracle import Truth
from loader_specs import arm_spec, one, plain_spec

import robocache as rc

pytest.importorskip("PIL", reason="Pillow is not installed")
if not hasattr(rc, "Loader"):
    pytest.skip("this build has no rc.Loader", allow_module_level=True)


def opened(name, folder):
    """A cache of loader_cases, and its episodes."""
    path, episodes = CACHES[name].write(folder)
    return rc.Cache(path), episodes


# ---- Draws


def crops_of(whole, crop):
    """The places of a crop in a picture."""
    (height, width), (h, w) = whole.shape[-2:], crop.shape[-2:]
    places = itertools.product(range(height - h + 1), range(width - w + 1))
    return {(y, x) for y, x in places if np.array_equal(whole[..., y : y + h, x : x + w], crop)}


def test_random_crops_are_one_draw_a_window(tmp_path):
    cache, episodes = opened("arm", tmp_path / "cache")
    spec = one("wrist", [-2, 0], image={"crop": (9, 11)}, dtype="float32", episodes=[0])
    plain = one("wrist", [-2, 0], dtype="float32", episodes=[0])
    truth = Truth(episodes, spec)
    loader, whole = loader_of(cache, spec), Truth(episodes, plain)
    seen = {}
    for number in range(40):
        batch = loader.batch(number)
        pictures, valid = to_numpy(batch["observation"]), to_numpy(batch["observation.valid"])
        wholes = whole.batch(number)["observation"]
        for row, position in enumerate(to_numpy(batch["position"]).tolist()):
            if valid[row].all():
                found = crops_of(wholes[row], pictures[row])  # both steps at once: they share a place
                assert len(found) == 1
                seen[position] = found.pop()
    assert len(set(seen.values())) > 20
    assert {y for y, _ in seen.values()} == set(range(6))
    assert {x for _, x in seen.values()} == set(range(8))
    again = loader_of(cache, {**spec, "batch_size": 1}, rank=1, world=2)
    for number in range(5):
        batch = again.batch(number)
        position = int(to_numpy(batch["position"])[0])
        if position in seen:
            found = crops_of(whole.batch_of([position])["observation"][0], to_numpy(batch["observation"])[0])
            assert found == {seen[position]}
    check_batch(loader.eval().batch(3), truth.batch(3, augment=False), "eval")


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_dropped_streams_do_not_exist_for_a_window(tmp_path, share):
    cache, episodes = opened("plain", tmp_path / "cache")
    keys = {"observation": {"streams": ["state"], "steps": [-1, 0]}, "action": {"streams": ["action"], "steps": [0]}}
    plain = {"rate": 50, "batch_size": 8, "keys": keys}
    spec = {**plain, "keys": {**keys, "observation": {**keys["observation"], "drop": share}}}
    truth, loader = Truth(episodes, plain), loader_of(cache, spec)
    dropped = []
    for number in range(50):
        batch, expected = loader.batch(number), truth.batch(number)
        values, valid = to_numpy(batch["observation"]), to_numpy(batch["observation.valid"])
        for row in range(8):
            gone = not valid[row].any() and not values[row].any()
            gone = gone and (to_numpy(batch["observation.age"])[row] == np.iinfo(np.int64).min).all()
            dropped.append(gone)
            if not gone:
                assert_equal_bits("observation", values[row], expected["observation"][row])
        assert_equal_bits("action", to_numpy(batch["action"]), expected["action"])
    assert abs(np.mean(dropped) - share) < 0.08
    check_batch(loader.eval().batch(3), truth.batch(3), "eval")


def test_drawn_latencies_are_the_recordings_own(tmp_path):
    """Each row is what the stream's samples are, had all arrived later than their stamps by one of its delays."""
    cache, episodes = opened("arm", tmp_path / "cache")
    plain = one(["joints"], range(-6, 1), episodes=[0])
    loader = loader_of(cache, one(["joints"], range(-6, 1), episodes=[0], latency_jitter=True))
    truth, used = Truth(episodes, plain), 0
    raw, key = episodes[0].streams["joints"], truth.by_name["observation"]
    late = []
    for delay in sorted({int(each) for each in raw.arrived - raw.times}):
        episodes[0].streams["joints"] = dataclasses.replace(raw, arrivals=raw.times + delay)
        late.append(truth.samples_of(key, "joints", 0))
    for number in range(6):
        batch, expected = loader.batch(number), truth.batch(number)
        for row, time in enumerate(expected["time"].tolist()):
            found = to_numpy(batch["observation"])[row].tobytes(), to_numpy(batch["observation.age"])[row].tobytes()
            taus = np.array([time + offset for offset in key.offsets])
            made = [samples.at(taus, as_of=time) for samples in late]
            assert found in [(each.values.tobytes(), each.age.tobytes()) for each in made]
            used += found != (expected["observation"][row].tobytes(), expected["observation.age"][row].tobytes())
    assert used > 5
    episodes[0].streams["joints"] = raw
    check_batch(loader.eval().batch(3), Truth(episodes, plain).batch(3), "eval")


@pytest.mark.parametrize("shards", ["one", "many"])
def test_delays_are_drawn_from_the_chosen_episodes(tmp_path, shards):
    """Also where others lie between them in their shard."""
    episodes = [plain_episode(k, 20) for k in range(3)]
    for number, late in enumerate((1, 100, 1)):
        state = episodes[number].streams["state"]
        state.arrivals = state.times + late * 1_000_000
    cache = rc.Cache(write(tmp_path / "cache", episodes, shards))
    key = rc.Key("state", latency_jitter=True)
    loader = rc.Loader(cache, batch_size=34, rate=50, keys={"state": key}, episodes=[0, 2])
    ages = np.concatenate([loader.batch(number)["state.age"] for number in range(4)])
    assert set(ages.ravel().tolist()) <= {20_000_000, np.iinfo(np.int64).min}


def test_later_samples_of_a_constant_are_delayed_too(tmp_path):
    """The first sample is always there, the second one after a drawn delay of 10 or 150 ms."""
    episode = plain_episode(0, 20)
    start = int(episode.streams["state"].times[0])
    times = start + np.array([0, 100]) * MS
    arrivals = times + np.array([10, 150]) * MS
    episode.streams["mount"] = Raw(np.array([[1.0], [2.0]], np.float32), times, arrivals, method="hold", static=True)
    keys = {"state": rc.Key("state"), "mount": rc.Key("mount", latency_jitter=True)}
    loader = rc.Loader(write(tmp_path / "cache", [episode]), batch_size=200, rate=50, keys=keys)
    batch = loader.batch(0)
    after, seen = (batch["time"] - start) // MS, batch["mount"][:, 0, 0]
    assert set(seen[after < 110]) == {1}
    assert set(seen[(after >= 110) & (after < 250)]) == {1, 2}
    assert set(seen[after >= 250]) == {2}
    assert batch["mount.valid"].all()


# ---- Weights and lengths


def test_weighted_windows_come_as_often_as_their_weights_say(tmp_path):
    cache, episodes = opened("plain", tmp_path / "cache")
    truth = Truth(episodes, plain_spec())
    weights = np.array([k % 4 for k in range(len(truth.windows))], np.float64)
    spec = plain_spec(weights=weights, length=400, batch_size=100)
    loader = loader_of(cache, spec)
    assert len(loader) == 4
    counts = np.zeros(len(weights))
    numbers = {where: k for k, where in enumerate(truth.windows)}
    batches = [loader.batch(number) for number in range(200)]
    for batch in batches:
        where = zip(to_numpy(batch["episode"]).tolist(), to_numpy(batch["time"]).tolist(), strict=True)
        for one_of in where:
            counts[numbers[one_of]] += 1
    expected = weights / weights.sum() * counts.sum()
    assert not counts[weights == 0].any()
    drawn = weights > 0
    assert (((counts - expected)[drawn] ** 2 / expected[drawn]).sum()) < 130  # chi square of 63 degrees of freedom
    again = loader_of(cache, plain_spec(weights=weights, length=400, batch_size=50), rank=1, world=2)
    assert_equal_bits("time", to_numpy(again.batch(7)["time"]), to_numpy(batches[7]["time"])[50:])


@pytest.mark.parametrize("length", [1, 20, 85, 200])
def test_a_pass_has_the_length_that_is_given(tmp_path, length):
    cache, episodes = opened("plain", tmp_path / "cache")
    loader = loader_of(cache, plain_spec(length=length))
    truth, found = Truth(episodes, plain_spec()), []
    for _ in range(2):
        passed = list(loader)
        assert passed
        found += passed
        assert len(found) * 4 >= length
    for number, batch in enumerate(found):
        check_batch(batch, truth.batch(number), f"batch {number}")


# ---- Relative values, inverses


def test_the_origin_of_relative_values_is_at_the_anchor(tmp_path):
    """inverse(T_t) T_k, whatever steps the key has that is the origin; or they are refused."""
    cache, episodes = opened("plain", tmp_path / "cache")
    for steps in ([-2], [-2, 0, 3]):
        keys = {
            "state": {"streams": ["state"], "steps": steps, "knowledge": "truth"},
            "action": {"streams": ["action"], "steps": range(4), "relative": "state"},
        }
        spec = plain_spec(keys=keys)
        try:
            loader = loader_of(cache, spec)
        except ValueError:
            continue
        check_batch(loader.batch(2), Truth(episodes, spec).batch(2), f"steps {steps}")


@pytest.mark.parametrize("normalize", ["identity", "mean_std", "min_max", "quantiles"])
@pytest.mark.parametrize("relative", [None, "observation.state"])
def test_invert_gives_what_the_streams_have(tmp_path, normalize, relative):
    cache, episodes = opened("arm", tmp_path / "cache")
    keys = {
        "observation.state": {"streams": ["joints"], "steps": range(-2, 1), "normalize": "mean_std"},
        "action": {"streams": ["command"], "steps": range(6), "relative": relative, "normalize": normalize},
    }
    plain = {"action": {"streams": ["command"], "steps": range(6)}}
    loader = loader_of(cache, arm_spec(keys=keys, stride=0.02, batch_size=50))
    batch = loader.batch(0)
    raw = Truth(episodes, arm_spec(keys=plain))
    found = to_numpy(loader.invert("action", batch["action"], batch))
    where = zip(batch["episode"].tolist(), batch["time"].tolist(), strict=True)
    for row, (episode, time) in enumerate(where):
        if batch["observation.state.age"][row, -1] > np.iinfo(np.int64).min:
            np.testing.assert_allclose(found[row], raw.row(episode, time)["action"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["6d", "axis_angle"])
def test_invert_gives_the_pose(tmp_path, kind):
    cache, episodes = opened("arm", tmp_path / "cache")
    keys = {
        "observation.pose": {"streams": ["tool_pose"], "steps": [-1, 0]},
        "action": {
            "streams": ["target_pose"],
            "steps": range(4),
            "relative": "pose",
            "relative_to": "observation.pose",
            "rotation": kind,
        },
    }
    loader = loader_of(cache, arm_spec(keys=keys, batch_size=40))
    batch = loader.batch(0)
    raw = Truth(episodes, arm_spec(keys={"action": {"streams": ["target_pose"], "steps": range(4)}}))
    found = to_numpy(loader.invert("action", batch["action"], batch))
    for row, (episode, time) in enumerate(zip(batch["episode"].tolist(), batch["time"].tolist(), strict=True)):
        if batch["observation.pose.age"][row, -1] > np.iinfo(np.int64).min:
            expected = raw.row(episode, time)["action"]
            np.testing.assert_allclose(found[row][:, :3], expected[:, :3], rtol=1e-5, atol=1e-5)
            same = np.abs(np.sum(found[row][:, 3:] * expected[:, 3:], axis=1))  # q and -q are one rotation
            np.testing.assert_allclose(same, 1, atol=1e-5)


def test_a_constant_channel_stays_finite(tmp_path):
    episodes = [plain_episode(k, 20) for k in range(2)]
    for episode in episodes:
        episode.streams["state"].values[:, 1] = 3.25
    cache = rc.Cache(write(tmp_path / "cache", episodes))
    for kind, constant in (("mean_std", 0.0), ("min_max", -1.0), ("quantiles", -1.0)):
        spec = one(["state"], range(-3, 1), normalize=kind)
        batch = loader_of(cache, spec).batch(0)
        check_batch(batch, Truth(episodes, spec).batch(0), kind)
        assert (batch["observation"][..., 1] == constant).all()


# ---- Cameras


def test_gray_frames(tmp_path):
    made = plain_episode(0, 12)
    frames = pictures(Random("gray"), 12)[..., :1]
    made.streams["gray"] = Raw(np.ascontiguousarray(frames), made.streams["state"].times, frames=True)
    cache = rc.Cache(write(tmp_path / "cache", [made]))
    for dtype in ("uint8", "float32"):
        spec = one("gray", [-1, 0], image={"size": (7, 9)}, dtype=dtype)
        check_batch(loader_of(cache, spec).batch(1), Truth([made], spec).batch(1), dtype)


@pytest.mark.parametrize("kind", ["rgb8", "png"])
def test_a_camera_without_frames_has_the_same_bits(tmp_path, kind):
    """Decoded on the fly; a warning says so once."""
    images = [photo(0.2 * k) for k in range(9)]
    stored = images if kind == "rgb8" else [encoded(image, "PNG") for image in images]
    path = write_images(tmp_path / "a.mcap", {"/camera": (kind, stored)})
    with rc.CacheWriter(tmp_path / "cache") as writer:
        writer.add(rc.open(path))
    cache = rc.Cache(tmp_path / "cache")
    camera = cache.episodes[0].streams["/camera"]
    frames = Raw(np.stack(images), np.asarray(camera.times), np.asarray(camera.arrivals), frames=True)
    episode = Episode("a", {"/camera": frames}, None)
    spec = one("/camera", [-1, 0], rate=20, image={"size": (10, 8), "fit": "cover"}, dtype="float32")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        loader = loader_of(cache, spec)
        truth = Truth([episode], spec)
        for number in range(3):
            check_batch(loader.batch(number), truth.batch(number), f"batch {number}")
    assert len([each for each in told if "/camera" in str(each.message)]) == 1


def test_a_camera_is_resized_as_pillow_does(tmp_path):
    """The loader's stage after the cache's, in bytes."""
    cache, spec, truth = case_of("image bytes", tmp_path / "cache")
    batch = loader_of(cache, spec).batch(0)
    frames = arm()[int(batch["episode"][0])].streams["wrist"]
    row = next(row for row in range(4) if batch["observation.valid"][row, 0])
    frames = truth.episodes[int(batch["episode"][row])].streams["wrist"]
    known = np.flatnonzero(frames.arrived <= batch["time"][row])
    index = known[frames.times[known] - frames.latency <= batch["time"][row]][-1]
    expected = frame_of(frames.values[index], (7, 9), filter="bicubic")
    np.testing.assert_array_equal(batch["observation"][row, 0], np.moveaxis(expected, -1, 0))


# ---- Memory that batches share


@pytest.mark.parametrize("device", [None, "cpu"])
def test_reused_batches_have_the_same_addresses_and_values(tmp_path, device):
    if device is not None:
        pytest.importorskip("torch", reason="torch is not installed")
    cache, _ = opened("plain", tmp_path / "cache")
    fresh, loader = loader_of(cache, plain_spec()), loader_of(cache, plain_spec(), reuse=2, device=device)
    seen = []
    for number in range(5):
        batch = loader.batch(number)
        for name, array in fresh.batch(number).items():
            assert to_numpy(batch[name]).tobytes() == array.tobytes(), name
        seen.append({name: to_numpy(array).__array_interface__["data"][0] for name, array in batch.items()})
    assert seen[0] == seen[2] == seen[4]
    assert seen[1] == seen[3]
    assert not set(seen[0].values()) & set(seen[1].values())


def test_printing_and_single_windows_reuse_nothing(tmp_path):
    cache, _ = opened("plain", tmp_path / "cache")
    loader = loader_of(cache, plain_spec(), reuse=1)
    repr(loader)
    loader.batch(0)
    batch = loader.batch(1)
    copy = {name: array.copy() for name, array in batch.items()}
    repr(loader)
    loader.window(0, int(loader.windows.starts[0]))
    for name, array in batch.items():
        np.testing.assert_array_equal(array, copy[name])


def test_reuse_is_not_for_jax(tmp_path):
    pytest.importorskip("jax", reason="JAX is not installed")
    cache, _ = opened("plain", tmp_path / "cache")
    with pytest.raises(ValueError, match=r"Loader: reuse .*JAX"):
        loader_of(cache, plain_spec(), arrays="jax", reuse=2)
