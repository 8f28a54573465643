"""RoboCache on a local Ray cluster: builds with killed workers and drivers, batches as a dataset, Ray Train."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import numpy as np
import pytest
from camera_files import photo, video_set, write_images
from clock_files import WALL, paced, sampled, write_mcap
from loader_cases import CACHES
from recordings import write_lerobot
from test_mcap_recording import write

import robocache as rc
from robocache._cache import build
from robocache._ray import decoded
from robocache._ray.worker import decode

ray = pytest.importorskip("ray", reason="Ray is not installed")

PATIENCE = 120  # seconds after which something hangs
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


@pytest.fixture(scope="module")
def cluster():
    """Two workers on this machine, or the cluster that RAY_ADDRESS names."""
    paths = [os.path.dirname(__file__), *sys.path]
    options = {"runtime_env": {"env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, paths))}}}
    options |= {"logging_level": "error", "log_to_driver": False}
    if "RAY_ADDRESS" not in os.environ:
        options |= {"address": "local", "num_cpus": 2, "include_dashboard": False, "object_store_memory": 200 << 20}
    for tries_left in (2, 1, 0):
        try:
            ray.init(**options)
            break
        except Exception:  # on a busy machine Ray's processes take longer than Ray waits for them
            ray.shutdown()
            if not tries_left:
                raise
    yield
    ray.shutdown()


def shards(cache):
    """The tensors of each shard, by hash. A shard's name ends in a number of the cache's own, as does its metadata."""
    found = {}
    for path in sorted((cache / "shards").iterdir()):
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        header.pop("__metadata__", None)
        found[path.stem.rpartition("-")[0]] = (header, hashlib.sha256(data[8 + size :]).hexdigest())
    return found


def contents(cache):
    """Every episode's streams: values, times and arrivals."""
    return [
        (
            episode.name,
            episode.task,
            {
                name: (stream.method, stream.values.tobytes(), stream.times.tobytes(), stream.arrivals.tobytes())
                for name, stream in episode.streams.items()
                if isinstance(stream.values, np.ndarray)
            },
        )
        for episode in rc.Cache(cache).episodes
    ]


@pytest.fixture
def logs(tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    for number in range(5):
        write(folder / f"{number}.mcap", {"/fast": 100, "/slow": 10 + number}, seconds=3.0)
    return folder


def test_a_build_is_that_of_one_machine(cluster, logs, tmp_path):
    (logs / "2.mcap").write_bytes(b"no MCAP at all")
    write_images(logs / "camera.mcap", {"/camera": ("rgb8", [photo(seed, 24, 32) for seed in range(6)])})
    write_lerobot(logs / "set")
    whole = (logs / "3.mcap").read_bytes()
    (logs / "cut.mcap").write_bytes(whole[: len(whole) * 2 // 3])
    start = WALL * 1e-9  # a clock that turns out to differ only at the end of a pass, which is then done once more
    write_mcap(logs / "drift.mcap", sampled("/imu", 100, 20.0, paced(0.8), stamp=lambda t: t + start))
    from robocache._recordings.frame_options import FrameOptions

    alone = build.build([str(logs)], tmp_path / "alone", frames=FrameOptions(16, 16))
    found = rc.ray.build(logs, tmp_path / "many", frames="16x16")
    assert [row | {"seconds": 0} for row in found["sources"]] == [row | {"seconds": 0} for row in alone["sources"]]
    assert [row["state"] for row in found["sources"]].count("failed") == 1
    assert contents(tmp_path / "many") == contents(tmp_path / "alone")
    assert shards(tmp_path / "many") == shards(tmp_path / "alone")
    assert rc.verify_cache(tmp_path / "many").ok
    again = rc.ray.build([logs], tmp_path / "many", frames="16x16")
    assert {row["state"] for row in again["sources"]} == {"unchanged", "failed"}


def test_the_episodes_of_a_data_set_go_to_several_workers(cluster, tmp_path):
    from robocache._recordings.frame_options import FrameOptions

    video_set(tmp_path / "set", lengths=(12, 9, 7))
    (alone,) = build.build([str(tmp_path / "set")], tmp_path / "alone", frames=FrameOptions(16, 16))["sources"]
    (found,) = rc.ray.build(tmp_path / "set", tmp_path / "many", frames="16x16")["sources"]
    assert found | {"seconds": 0} == alone | {"seconds": 0}
    assert found["episodes"] == 3
    assert found["frames"] == 28
    assert shards(tmp_path / "many") == shards(tmp_path / "alone")


def dying(work):
    """Decodes as a worker does, and kills the first process that has handed over a piece of each recording."""
    for number, piece in enumerate(decode(work)):
        flag = Path(work.folder, f"died-{hashlib.sha256(work.source).hexdigest()}")
        if number == 1 and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield piece


def test_a_killed_worker_does_not_stop_a_build(cluster, logs, tmp_path, monkeypatch):
    for name in ("2.mcap", "3.mcap", "4.mcap"):
        (logs / name).unlink()
    build.build([str(logs)], tmp_path / "alone")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(decoded, "decode", dying)
    found = rc.ray.build("logs", "many")
    assert [row["state"] for row in found["sources"]] == ["added"] * 2
    assert len(list(tmp_path.glob("died-*"))) == 2
    assert shards(tmp_path / "many") == shards(tmp_path / "alone")


def slow_to_fit(work):
    """Hands over each batch by itself, often enough that a worker which is ahead must wait; dies in the first."""
    for number, batch in enumerate(batch for piece in decode(work) if isinstance(piece, list) for batch in piece):
        flag = Path(work.folder, "died")
        if b"0.mcap" in work.source and number == 1 and not flag.exists():
            flag.touch()
            time.sleep(2)  # until others have taken all CPUs
            os.kill(os.getpid(), signal.SIGKILL)
        yield [batch]


def test_workers_that_wait_make_room_for_the_one_that_is_needed(cluster, tmp_path, monkeypatch):
    for number in range(4):
        write(tmp_path / f"{number}.mcap", {f"/{k}": 20 for k in range(6)})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(decoded, "decode", slow_to_fit)
    monkeypatch.setattr(decoded, "STALL_SECONDS", 1.0)
    found = rc.ray.build([f"{number}.mcap" for number in range(4)], "cache", workers=4, memory=1)
    assert [row["state"] for row in found["sources"]] == ["added"] * 4
    assert (tmp_path / "died").exists()
    monkeypatch.undo()
    build.build([str(tmp_path / f"{number}.mcap") for number in range(4)], tmp_path / "alone")
    assert shards(tmp_path / "cache") == shards(tmp_path / "alone")


def always_dying(work):
    os.kill(os.getpid(), signal.SIGKILL)
    yield from decode(work)


def test_a_recording_that_kills_its_workers_is_told(cluster, logs, tmp_path, monkeypatch):
    for name in ("1.mcap", "2.mcap", "3.mcap", "4.mcap"):
        (logs / name).unlink()
    monkeypatch.setattr(decoded, "decode", always_dying)
    monkeypatch.setattr(decoded, "RETRIES", 0)
    (row,) = rc.ray.build(logs, tmp_path / "cache")["sources"]
    assert row["state"] == "failed"
    assert row["error"].startswith(f"{logs / '0.mcap'}: its Ray worker died")
    assert "WorkerCrashedError" in row["error"]
    assert not len(rc.Cache(tmp_path / "cache").episodes)


KILLED = """
import functools, os, signal, sys
import ray
import robocache as rc
from robocache._cache import build
from robocache._cache.writer import CacheWriter
build.CacheWriter = functools.partial(CacheWriter, group_bytes=1)  # commits each episode
told = build.WriteProgress.__call__
def killed(self, batch):
    if batch.info.name == "action" and batch.episode == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    told(self, batch)
build.WriteProgress.__call__ = killed
ray.init(address="auto", log_to_driver=False)
rc.ray.build(sys.argv[2], sys.argv[1])
"""


def test_a_killed_driver_goes_on(cluster, logs, tmp_path):
    write_lerobot(logs / "2" / "set")
    write(logs / "z.mcap", {"/fast": 100})
    build.build([str(logs)], tmp_path / "alone")
    command = [sys.executable, "-c", KILLED, str(tmp_path / "many"), str(logs)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == -signal.SIGKILL, done.stderr
    before = [episode.name for episode in rc.Cache(tmp_path / "many").episodes]
    assert 2 <= len(before) < 9
    found = rc.ray.build(logs, tmp_path / "many")
    states = [row["state"] for row in found["sources"]]
    assert states.count("unchanged") >= 1
    assert "failed" not in states
    assert contents(tmp_path / "many") == contents(tmp_path / "alone")
    assert rc.verify_cache(tmp_path / "many").ok


# ---- Batches


def small_loader(folder):
    path, _ = CACHES["plain"].write(folder)
    return rc.Loader(
        path, batch_size=5, rate=50, seed=3, observation="state", action="action", action_steps=4, rank=0, world=1
    )


def test_a_dataset_has_the_batches_in_order(cluster, tmp_path):
    loader = small_loader(tmp_path / "cache")
    dataset = rc.ray.read(tmp_path / "cache", loader.spec(), tasks=4)
    taken = list(dataset.iter_batches(batch_size=5, batch_format="numpy"))
    expected = list(loader)
    assert len(taken) == len(expected)
    for mine, theirs in zip(taken, expected, strict=True):
        assert set(mine) == set(theirs)
        for name, array in theirs.items():
            assert (mine[name].dtype, mine[name].shape) == (array.dtype, array.shape)
            assert mine[name].tobytes() == array.tobytes()
    part = rc.ray.read(tmp_path / "cache", loader, first=1000, count=2)
    assert [row["position"] for row in part.take_all()] == list(range(5000, 5010))


def test_what_a_dataset_cannot_be(cluster, tmp_path):
    loader = small_loader(tmp_path / "cache")
    with pytest.raises(ValueError, match=r"ray\.read: device is 'cpu'"):
        rc.ray.read(tmp_path / "cache", loader.spec(), device="cpu")
    with pytest.raises(ValueError, match=r"ray\.read: .*count is 0"):
        rc.ray.read(tmp_path / "cache", loader.spec(), count=0)


# ---- Ray Train


def trained(config):
    """Trains on seven batches in all, notes which, and fails once behind its checkpoint."""
    import tempfile

    import ray.train

    import robocache as rc

    loader = rc.ray.loader(config["cache"], config["spec"])
    notes = Path(config["notes"], f"{loader.rank}-{uuid.uuid4()}.json")
    said = {"from": loader.state_dict()["position"], "world": loader.world, "positions": []}
    for batch in itertools.islice(loader, (35 - said["from"]) // 10):
        said["positions"].append(batch["position"].tolist())
        notes.write_text(json.dumps(said))
        with tempfile.TemporaryDirectory() as folder:
            rc.ray.save(loader, folder)
            made = ray.train.Checkpoint.from_directory(folder) if loader.rank == 0 else None
            ray.train.report({"position": loader.state_dict()["position"]}, checkpoint=made)
        if said["from"] == 0 and len(said["positions"]) == 2:
            raise RuntimeError("fails once")


def test_train_resumes_in_the_middle_of_an_epoch(cluster, tmp_path):
    import ray.train
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    loader = small_loader(tmp_path / "cache")
    (tmp_path / "notes").mkdir()
    config = {"cache": str(tmp_path / "cache"), "spec": loader.spec(), "notes": str(tmp_path / "notes")}
    trainer = DataParallelTrainer(
        trained,
        train_loop_config=config,
        scaling_config=ray.train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
        run_config=ray.train.RunConfig(
            storage_path=str(tmp_path / "runs"), failure_config=ray.train.FailureConfig(max_failures=1)
        ),
    )
    result = trainer.fit()
    assert result.error is None
    runs = [json.loads(path.read_text()) for path in (tmp_path / "notes").iterdir()]
    assert {run["world"] for run in runs} == {2}
    assert sorted(run["from"] for run in runs) == [0, 0, 20, 20]
    taken = sorted(position for run in runs for batch in run["positions"] for position in batch)
    assert taken == list(range(30))
