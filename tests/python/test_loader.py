"""rc.Loader against its oracle, byte for byte: windows, order, batches, passes, ranks, resume, threads, forks."""

from __future__ import annotations

import copy
import itertools
import json
import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from camera_files import made, photo, write_images
from cases import Random
from loader_calling import (
    ALWAYS,
    GOLDEN,
    assert_equal_bits,
    case_of,
    check_batch,
    check_tasks,
    golden_of,
    loader_of,
    to_numpy,
)
from loader_cases import CACHES, Episode, Raw, plain_episode, write
from loader_oracle import Truth, digest, window_number
from loader_specs import SPECS, arm_spec, drawn_spec, one, plain_spec

import robocache as rc
from robocache import _core

pytest.importorskip("PIL", reason="Pillow is not installed")
if not hasattr(rc, "Loader"):
    pytest.skip("this build has no rc.Loader", allow_module_level=True)

PATIENCE = 60  # seconds after which something hangs


def needs_of(name):
    if "torch" in name:
        pytest.importorskip("torch")
        pytest.importorskip("ml_dtypes")


def opened(name, folder):
    """A cache of loader_cases, and its episodes."""
    path, episodes = CACHES[name].write(folder)
    return rc.Cache(path), episodes


def without_draws(spec):
    """The same spec with crops in the middle."""
    made = copy.deepcopy(spec)
    for key in made["keys"].values():
        if key.get("image"):
            key["image"]["random_crop"] = False
    return made


def positions_of(batches):
    return [position for batch in batches for position in to_numpy(batch["position"]).tolist()]


# ---- Windows and batches


@pytest.mark.parametrize("name", SPECS)
def test_windows_are_the_oracles(tmp_path, name):
    needs_of(name)
    cache, spec, truth = case_of(name, tmp_path / "cache")
    loader = loader_of(cache, spec, batch_size=len(truth.windows), shuffle=False)
    assert len(loader.windows) == len(truth.windows)
    batch = loader.batch(0)
    found = zip(to_numpy(batch["episode"]).tolist(), to_numpy(batch["time"]).tolist(), strict=True)
    assert list(found) == truth.windows


@pytest.mark.parametrize("name", SPECS)
def test_batches_are_the_oracles(tmp_path, name):
    """The first of a pass, the one that crosses into the next epoch, and some of epoch 2."""
    needs_of(name)
    cache, spec, truth = case_of(name, tmp_path / "cache")
    loader = loader_of(cache, spec)
    close = tuple(key for key in truth.by_name if truth.is_close(key))
    if name == "image cover, crop":  # random crops have a test of their own
        loader, truth = loader.eval(), Truth(truth.episodes, without_draws(spec))
    for number, batch in enumerate(itertools.islice(loader, 3)):
        check_batch(batch, truth.batch(number), f"{name}, batch {number}", close)
        check_tasks(loader, truth, batch)
    many = len(truth.windows)
    for number in {many // truth.batch_size, 2 * many // truth.batch_size + 1}:
        check_batch(loader.batch(number), truth.batch(number), f"{name}, batch {number}", close)


@pytest.fixture(scope="module")
def arms(tmp_path_factory):
    """The cache "arm" in one shard and in many, and its episodes."""
    folder = tmp_path_factory.mktemp("arms")
    return [opened(name, folder / name) for name in ("arm", "arm in shards")]


@pytest.mark.parametrize("number", range(80))
def test_drawn_specs(arms, number):
    spec, random = drawn_spec(number), Random(f"batches {number}")
    cache, episodes = arms[number % 2]
    truth = Truth(episodes, spec)
    world = random.integer(1, 4)
    rank = random.integer(0, world)
    loader = loader_of(cache, spec, rank=rank, world=world)
    for batch in (0, 1, random.integer(0, 10**6)):
        check_batch(loader.batch(batch), truth.batch(batch, rank, world), f"spec {number}, batch {batch}")


@pytest.mark.parametrize("name", ["all", "joined", "mean_std", "stream tool_pose", "camera", "fixed"])
def test_a_whole_epoch(tmp_path, name):
    cache, spec, truth = case_of(name, tmp_path / "cache")
    many = len(truth.windows)
    loader = loader_of(cache, spec, batch_size=many)
    check_batch(loader.batch(1), Truth(truth.episodes, {**spec, "batch_size": many}).batch(1), name)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("name", ["all", "all, in shards", "joined", "stream tool_pose", "image contain", "fixed"])
def test_every_backend_gives_the_same_bytes(tmp_path, name, backend):
    cache, spec, truth = case_of(name, tmp_path / "cache")
    check_batch(loader_of(cache, spec, backend=backend).batch(4), truth.batch(4), f"{name}, {backend}")


@pytest.mark.parametrize("name", ["all", "joined", "stream tool_pose", "image contain", "subtract and normalise"])
def test_every_simd_target_gives_the_same_bytes(tmp_path, name, simd):
    cache, spec, truth = case_of(name, tmp_path / "cache")
    check_batch(loader_of(cache, spec).batch(4), truth.batch(4), f"{name}, {simd}")


@pytest.mark.parametrize("name", ["all", "all, in shards", "joined", "stream tool_pose", "image size", "mean_std"])
def test_torch_tensors_have_the_same_bytes(tmp_path, name):
    torch = pytest.importorskip("torch")
    cache, spec, truth = case_of(name, tmp_path / "cache")
    loader = loader_of(cache, spec, device="cpu")
    for number in (0, 5):
        batch = loader.batch(number)
        assert all(isinstance(array, torch.Tensor) for array in batch.values())
        check_batch(batch, truth.batch(number), name)


@pytest.mark.parametrize("name", ["all", "stream tool_pose", "image size"])
def test_cuda_tensors_have_the_same_bytes(tmp_path, name, cuda):
    cache, spec, truth = case_of(name, tmp_path / "cache")
    loader = loader_of(cache, spec, device="cuda")
    for number in (0, 5):
        check_batch(loader.batch(number), truth.batch(number), name)


def test_jax_arrays_have_the_same_bytes(tmp_path):
    jax = pytest.importorskip("jax")
    cache, spec, truth = case_of("joined", tmp_path / "cache")
    batch = loader_of(cache, spec, arrays="jax").batch(2)
    assert isinstance(batch["observation"], jax.Array)
    assert_equal_bits("observation", to_numpy(batch["observation"]), truth.batch(2)["observation"])


def test_one_shard_and_many_have_the_same_bytes(tmp_path):
    spec = arm_spec()
    one_shard, _ = opened("arm", tmp_path / "one")
    shards, _ = opened("arm in shards", tmp_path / "many")
    for number in (0, 9, 30):
        check = loader_of(one_shard, spec).batch(number)
        check.pop("task_index")
        check_batch(loader_of(shards, spec).batch(number), check, f"batch {number}")


def test_a_joined_stream_of_a_recipe_is_its_members_side_by_side(tmp_path):
    cache, episodes = opened("joined", tmp_path / "cache")
    assert list(cache.streams) == ["arm"]
    truth, loader = Truth(episodes, one(["arm/joints", "arm/gripper"])), loader_of(cache, one(["arm"]))
    for number in (0, 7, 40):
        check_batch(loader.batch(number), truth.batch(number), f"batch {number}")


def test_frames_that_build_made_of_pictures(tmp_path):
    images = [photo(0.2 * k) for k in range(9)]
    path = write_images(tmp_path / "a.mcap", {"/camera": ("rgb8", images)})
    cache, _ = made(path, tmp_path / "cache", "20x24")
    stored = cache.episodes[0].streams
    camera, joints = stored["/camera"], stored["/joints"]
    frames = Raw(np.stack(camera.samples[:]), camera.times, camera.arrivals, frames=True)
    numbers = Raw(joints.values, joints.times, joints.arrivals)
    episode = Episode("a", {"/camera": frames, "/joints": numbers}, cache.episodes[0].task)
    keys = {
        "observation.images.top": {"streams": "/camera", "steps": [-1, 0], "image": {"size": (10, 8)}},
        "observation.state": {"streams": "/joints", "steps": [0]},
    }
    keys["observation.images.top"]["dtype"] = "float32"
    spec = {"rate": 20, "batch_size": 3, "keys": keys}
    truth, loader = Truth([episode], spec), loader_of(cache, spec)
    for number in range(4):
        check_batch(loader.batch(number), truth.batch(number), f"batch {number}")


# ---- Order, passes, ranks, resume


@pytest.mark.parametrize("windows", [1, 2, 3, 5, 16, 17, 1000, 2**20, 2**20 + 1, 2**40 - 1])
def test_the_engine_orders_windows_as_the_oracle(windows):
    for seed in (0, 5, 2**62 - 1):
        for first in (0, windows - 1, 7 * windows + windows // 3):
            found = _core.window_order(windows, seed, first, 60, True)
            assert found.dtype == np.int64
            assert found.tolist() == [window_number(windows, seed, first + k) for k in range(60)]
            plain = _core.window_order(windows, seed, first, 60, False)
            assert plain.tolist() == [(first + k) % windows for k in range(60)]


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**62 - 1])
def test_the_order_of_three_epochs(tmp_path, seed):
    cache, episodes = opened("plain", tmp_path / "cache")
    spec = plain_spec(seed=seed)
    truth = Truth(episodes, spec)
    many = len(truth.windows)
    loader = loader_of(cache, spec, batch_size=3 * many)
    batch = loader.batch(0)
    expected = Truth(episodes, {**spec, "batch_size": 3 * many}).batch(0)
    for name in ALWAYS:
        assert to_numpy(batch[name]).tolist() == expected[name].tolist()
    where = list(zip(expected["episode"].tolist(), expected["time"].tolist(), strict=True))
    for epoch in range(3):
        assert sorted(where[epoch * many : (epoch + 1) * many]) == sorted(truth.windows)


@pytest.mark.parametrize(("world", "batch_size"), [(1, 7), (2, 5), (3, 4), (8, 2), (64, 1)])
def test_ranks_share_a_global_batch_in_order(tmp_path, world, batch_size):
    cache, episodes = opened("plain", tmp_path / "cache")
    spec = plain_spec(batch_size=batch_size)
    truth = Truth(episodes, spec)
    lengths = set()
    for rank in range(world):
        loader = loader_of(cache, spec, rank=rank, world=world)
        lengths.add(len(loader))
        for number in (0, 3):
            check_batch(loader.batch(number), truth.batch(number, rank, world), f"rank {rank}, batch {number}")
        starts = next(truth.passes(0, world))
        assert len(loader) == len(starts)
        found = positions_of(loader)
        assert found == [p for start in starts for p in truth.positions(start, rank, world)]
    assert len(lengths) == 1


@pytest.mark.parametrize("last", ["join", "drop", "short"])
@pytest.mark.parametrize("batch_size", [1, 8, 11, 85, 88])
def test_where_passes_end(tmp_path, last, batch_size):
    cache, episodes = opened("plain", tmp_path / "cache")
    spec = plain_spec(batch_size=batch_size)
    truth = Truth(episodes, spec)
    many = len(truth.windows)
    if last == "drop" and batch_size > many:
        return
    loader = loader_of(cache, spec, last=last)
    assert len(loader) == len(next(truth.passes(0, last=last)))
    end = 0
    for starts in itertools.islice(truth.passes(0, last=last), 3):
        batches = list(loader)
        assert len(batches) == len(starts)
        for start, batch in zip(starts, batches, strict=True):
            assert ("row_valid" in batch) == (last == "short")
            kept = np.ones(batch_size, bool)
            if last == "short":
                kept = to_numpy(batch["row_valid"])
                end = (start // many + 1) * many
                assert kept.tolist() == [start + k < end for k in range(batch_size)]
            expected = truth.batch_of([start + k for k in range(batch_size) if kept[k]])
            check_batch({name: array[kept] for name, array in batch.items()}, expected, f"{last}, from {start}")
            assert all(len(array) == batch_size for array in batch.values())


def test_short_passes_of_ranks_see_each_window_once(tmp_path):
    cache, episodes = opened("plain", tmp_path / "cache")
    spec = plain_spec(batch_size=9)
    found = []
    for rank in range(4):
        batches = list(loader_of(cache, spec, rank=rank, world=4, last="short"))
        assert len(batches) == 3  # 85 windows, 36 a global batch
        for batch in batches:
            found += to_numpy(batch["position"])[to_numpy(batch["row_valid"])].tolist()
    assert sorted(found) == list(range(len(Truth(episodes, spec).windows)))


@pytest.mark.parametrize("turn", range(6))
def test_a_state_goes_on_in_another_world_and_batch_size(tmp_path, turn):
    """Positions are neither lost nor doubled, over several restarts and epochs."""
    cache, episodes = opened("plain", tmp_path / "cache")
    truth = Truth(episodes, plain_spec())
    random = Random(f"resume {turn}")
    state, seen = None, []
    while len(seen) < 3 * len(truth.windows):
        world, batch_size = random.integer(1, 5), random.integer(1, 9)
        loaders = [loader_of(cache, plain_spec(batch_size=batch_size), rank=r, world=world) for r in range(world)]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        steps, states = random.integer(1, 12), []
        passes = [iter(loader) for loader in loaders]
        for _ in range(steps):
            batches = [next(each, None) for each in passes]
            if batches[0] is None:  # each rank's pass ends at the same batch
                assert batches == [None] * world
                break
            got = positions_of(batches)
            assert got == list(range(len(seen), len(seen) + world * batch_size))
            for batch in batches:
                numbers = to_numpy(batch["position"]).tolist()
                check_batch(batch, truth.batch_of(numbers), f"positions {numbers}")
            seen += got
        states = [loader.state_dict() for loader in loaders]
        assert all(each == states[0] for each in states)
        state = json.loads(json.dumps(states[0]))


def test_a_state_is_of_what_was_handed_out(tmp_path):
    cache, _ = opened("plain", tmp_path / "cache")
    loader = loader_of(cache, plain_spec())
    states = [loader.state_dict()]
    for batch in itertools.islice(loader, 5):
        states.append(loader.state_dict())
        assert loader.state_after(batch) == states[-1]
    for number, state in enumerate(states):
        again = loader_of(cache, plain_spec())
        again.load_state_dict(state)
        assert positions_of([next(iter(again))]) == list(range(4 * number, 4 * number + 4))
    loader.load_state_dict(states[2])  # also back
    assert positions_of([next(iter(loader))]) == [8, 9, 10, 11]


def test_a_pass_that_is_left_goes_on_in_the_next_for(tmp_path):
    cache, episodes = opened("plain", tmp_path / "cache")
    loader, truth = loader_of(cache, plain_spec()), Truth(episodes, plain_spec())
    for batch in loader:
        if to_numpy(batch["position"])[0] == 20:
            break
    starts = next(truth.passes(24))
    assert positions_of(loader) == list(range(24, starts[-1] + 4))
    assert positions_of([next(iter(loader))]) == list(range(starts[-1] + 4, starts[-1] + 8))


def test_batches_need_no_state(tmp_path):
    cache, episodes = opened("plain", tmp_path / "cache")
    loader, truth = loader_of(cache, plain_spec()), Truth(episodes, plain_spec())
    for number in (2**40, 0, 10**12 + 3):
        check_batch(loader.batch(number), truth.batch(number), f"batch {number}")
    assert positions_of([next(iter(loader))]) == [0, 1, 2, 3]


# ---- Single windows, evaluation, specs


def test_a_window_is_a_row_at_any_moment(tmp_path):
    cache, episodes = opened("arm", tmp_path / "cache")
    truth, loader = Truth(episodes, arm_spec()), loader_of(cache, arm_spec())
    random = Random("moments")
    for episode in (0, 2, 3):
        start, end = truth.span(episode)
        for time in (start, end, start + random.integer(0, end - start), start - 40_000_000, end + 90_000_000):
            row = loader.window(episode, time)
            expected = truth.row(episode, time)
            assert {name for name in expected if name.startswith("observation")} <= set(row)
            for name in set(row) & set(expected):
                array = to_numpy(row[name]).reshape(expected[name].shape)
                assert_equal_bits(f"{name} at {time}", array, expected[name])


def test_a_window_is_what_a_robot_knows(tmp_path):
    """It has no actions that are yet to come, and `transform` sees it so."""
    cache, _ = opened("plain", tmp_path / "cache")
    keys = {
        "state": rc.Key("state"),
        "action": rc.Key("action"),
        "action.later": rc.Key("action", steps=[1]),
        "action.past": rc.Key("action", steps=[-1], knowledge="as_of"),
    }
    seen = []

    def transform(batch):
        seen.append(set(batch))
        return batch

    loader = rc.Loader(cache, batch_size=1, rate=50, keys=keys, transform=transform)
    row = loader.window(0, int(loader.windows.starts[0]))
    own = {"episode", "time", "position", "task_index"}
    expected = {f"{key}{suffix}" for key in ("state", "action.past") for suffix in ("", ".valid", ".age")} | own
    assert set(row) == seen[0] == expected


def test_printing_asks_no_transform(tmp_path):
    cache, _ = opened("plain", tmp_path / "cache")
    loader = loader_of(cache, plain_spec(), transform=lambda batch: 1 / 0)
    assert "a batch is" in repr(loader)


def test_spec_makes_the_same_loader_again(tmp_path):
    cache, episodes = opened("arm", tmp_path / "cache")
    for name in ("all", "short form", "subtract and normalise", "quantiles of the cache", "where", "stride"):
        case = SPECS[name]
        if case.cache != "arm":
            continue
        loader = loader_of(cache, case.arguments)
        told = json.loads(json.dumps(loader.spec()))
        again = rc.Loader.from_spec(cache, told)
        truth = Truth(episodes, case.arguments)
        check_batch(again.batch(3), truth.batch(3), name)
        assert again.spec() == loader.spec()
        check_batch(
            rc.Loader.from_spec(cache, told, batch_size=7).batch(1),
            Truth(episodes, {**case.arguments, "batch_size": 7}).batch(1),
        )


def test_split_is_a_partition_that_stays_when_episodes_are_added(tmp_path):
    def episodes_of(cache, split):
        loader = loader_of(cache, {**one(["state"], [0]), "batch_size": 1}, split=split, shuffle=False, last="short")
        return {int(to_numpy(batch["episode"])[0]) for batch in loader}

    few = [plain_episode(200 + k, 9) for k in range(60)]
    more = few + [plain_episode(300 + k, 9) for k in range(20)]
    small = rc.Cache(write(tmp_path / "small", few, "many"))
    large = rc.Cache(write(tmp_path / "large", more, "many"))
    train, val = episodes_of(small, "train"), episodes_of(small, "val")
    assert train | val == set(range(60))
    assert not train & val
    assert 0 < len(val) < 20
    assert episodes_of(large, "val") & set(range(60)) == val
    assert episodes_of(large, "train") & set(range(60)) == train


def test_statistics_of_a_split_are_those_of_its_training_episodes(tmp_path):
    episodes = [plain_episode(200 + k, 9) for k in range(60)]
    cache = rc.Cache(write(tmp_path / "cache", episodes, "many"))
    spec = one(["state"], [0], normalize="mean_std")
    train, val = (loader_of(cache, spec, split=split) for split in ("train", "val"))
    seen = {int(k) for number in range(400) for k in to_numpy(val.batch(number)["episode"])}
    stats = Truth(episodes, {**spec, "episodes": sorted(set(range(60)) - seen)}).statistics("observation")
    for loader, chosen in ((train, sorted(set(range(60)) - seen)), (val, sorted(seen))):
        own = one(["state"], [0], normalize="mean_std", stats=stats, episodes=chosen)
        check_batch(loader.batch(2), Truth(episodes, own).batch(2))


def test_where_begins_with_the_streams_first_sample(tmp_path):
    """Before it nothing is known, and it is held behind its last one."""
    episode = plain_episode(0, 20)
    moving = episode.streams["moving"]
    episode.streams["moving"] = Raw(np.array([True, False, True]), moving.times[[4, 8, 12]], method="hold")
    cache = rc.Cache(write(tmp_path / "cache", [episode]))
    for where, expected in (("moving", [*range(4, 8), *range(12, 20)]), ("not moving", [*range(8, 12)])):
        loader = rc.Loader(cache, batch_size=1, rate=50, observation="state", where=where)
        _, _, times = loader.windows.at(np.arange(len(loader.windows)))
        np.testing.assert_array_equal(times, moving.times[expected])


# ---- Threads, forks, golden hashes


def test_threads_share_a_loader(tmp_path):
    cache, spec, truth = case_of("all, in shards", tmp_path / "cache")
    loader = loader_of(cache, spec)
    expected = [truth.batch(number) for number in range(8)]
    barrier = threading.Barrier(6)

    def work(worker):
        barrier.wait(PATIENCE)
        for turn in range(12):
            number = (worker + turn) % 8
            check_batch(loader.batch(number), expected[number], f"worker {worker}")

    with ThreadPoolExecutor(6) as executor:
        for done in [executor.submit(work, worker) for worker in range(6)]:
            done.result(timeout=PATIENCE)


CHILD = {}


def digest_in_child(number):
    loader, names = CHILD["loader"], CHILD["names"]
    return digest({name: to_numpy(loader.batch(number)[name]) for name in names}, names)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_gives_the_same_batches(tmp_path):
    cache, spec, truth = case_of("all", tmp_path / "cache")
    loader = loader_of(cache, spec)
    loader.batch(0)  # used before the fork
    names = sorted(truth.batch(0))
    CHILD.update(loader=loader, names=names)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        found = pool.map_async(digest_in_child, range(6)).get(timeout=PATIENCE)
    assert found == [digest(truth.batch(number), names) for number in range(6)]


def test_golden_hash_of_100_batches(tmp_path):
    """The constant was computed by the oracle."""
    cache, spec, _ = case_of("fixed", tmp_path / "cache")
    assert golden_of(loader_of(cache, spec).batch) == GOLDEN


# ---- Streams that are not the same in all episodes


def grown(folder):
    """A cache whose stream "state" has a channel more from episode 3 on."""
    episodes = [plain_episode(k, 20) for k in range(6)]
    for episode in episodes[:3]:
        state = episode.streams["state"]
        state.values, state.channels = np.ascontiguousarray(state.values[:, :2]), ("x", "y")
    return write(folder, episodes, "many"), episodes


def test_channels_that_were_added_later(tmp_path):
    path, episodes = grown(tmp_path / "cache")
    loader = rc.Loader(path, batch_size=4, rate=50, observation="state")
    for number, episode in enumerate(episodes):
        row = loader.window(number, int(loader.windows.starts[number]))["observation.state"][0, 0]
        width = episode.streams["state"].values.shape[1]
        np.testing.assert_array_equal(row[:width], episode.streams["state"].values[0])
        assert np.isnan(row[width:]).all()


def test_threads_meet_channels_that_were_added_later(tmp_path):
    path, _ = grown(tmp_path / "cache")
    keys = {"observation": rc.Key(["state", "moving"], steps=range(-2, 2)), "action": rc.Key("action")}
    expected = [rc.Loader(path, batch_size=16, rate=50, keys=keys).batch(k) for k in range(8)]
    for _ in range(5):
        loader, start = rc.Loader(path, batch_size=16, rate=50, keys=keys), threading.Barrier(8)

        def batch_of(number, loader=loader, start=start):
            start.wait(PATIENCE)
            return loader.batch(number)

        with ThreadPoolExecutor(8) as threads:
            for number, batch in enumerate(threads.map(batch_of, range(8))):
                check_batch(batch, {k: v for k, v in expected[number].items() if k != "task_index"}, f"batch {number}")


def test_a_joined_stream_beside_one_of_its_members(tmp_path):
    cache, _ = opened("joined", tmp_path / "cache")
    loader = rc.Loader(cache, batch_size=3, rate=50, keys={"both": rc.Key(["arm", "arm/joints"])})
    batch = loader.batch(0)["both"]
    np.testing.assert_array_equal(batch[..., 5:], batch[..., :4])


def test_a_rate_whose_second_step_is_beyond_the_range_of_times(tmp_path):
    """One window an episode: the next one is later than any time."""
    cache, episodes = opened("plain", tmp_path / "cache")
    assert len(rc.Loader(cache, batch_size=1, rate=2.2e-10, observation="state").windows) == len(episodes)


@pytest.mark.parametrize("rate", [1e-12, 1e-300])
def test_a_rate_whose_step_no_time_can_hold(tmp_path, rate):
    cache, _ = opened("plain", tmp_path / "cache")
    with pytest.raises(ValueError, match=f"^Loader: rate is {rate}; one step would be as long as"):
        rc.Loader(cache, batch_size=1, rate=rate, observation="state")


@pytest.mark.parametrize("method", ["cubic", "mean", "max", "min", "last"])
@pytest.mark.parametrize("knowledge", ["as_of", "truth"])
def test_cubic_and_bins_are_those_of_align(tmp_path, method, knowledge):
    cache, episodes = opened("arm", tmp_path / "cache")
    for stream, steps in (("joints", range(-6, 7)), ("gripper", [-5, -3, -2, 0, 4]), ("noisy", range(-6, 7))):
        key = rc.Key(stream, steps=steps, method=method, knowledge=knowledge)
        batch = rc.Loader(cache, batch_size=16, rate=50, keys={"key": key}).batch(1)
        for row, (episode, time) in enumerate(zip(batch["episode"].tolist(), batch["time"].tolist(), strict=True)):
            raw = episodes[episode].streams[stream]
            options = {"latency": raw.latency, "method": method, "max_gap": raw.max_gap}
            if knowledge == "as_of":
                options |= {"arrivals": raw.arrivals, "as_of": time}
            taus = time + np.array([k * 20_000_000 for k in steps])
            found = rc.align([rc.Stream(raw.values, raw.times, **options)], taus, backend="reference")[0]
            values = found.values.reshape(len(taus), -1).astype(np.float32)
            values[found.age == np.iinfo(np.int64).min] = 0
            assert_equal_bits(stream, batch["key"][row], values)
            np.testing.assert_array_equal(batch["key.valid"][row], found.valid)
            np.testing.assert_array_equal(batch["key.age"][row], found.age)
