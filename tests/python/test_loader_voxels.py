"""Keys with voxels=: clouds and depth images of a cache as grids, beside loops in NumPy."""

from __future__ import annotations

import json
import re
import warnings

import numpy as np
import pytest
from camera_files import made, write_images

import robocache as rc

MS = 1_000_000
START = 1_700_000_000_000_000_000
GRID = rc.Grid((-1, -1, -1), 0.5, (4, 4, 3))
LATE = 30 * MS
FOCUS = (9.0, 8.0, 7.5, 5.5)  # fx, fy, cx, cy


def stamps(number):
    return START + number * 10**10 + np.arange(25) * 40 * MS


def clouds_of(number):
    """Clouds of 0 to 40 points: intensity, x, y, z."""
    random = np.random.default_rng(number)
    return [random.uniform(-1.2, 1.2, (size, 4)).astype(np.float32) for size in random.integers(0, 41, 25)]


def arrays_of(number):
    """The same for clouds of one size, and depth images in millimetres."""
    random = np.random.default_rng(100 + number)
    depth = random.integers(0, 900, (25, 12, 16)).astype(np.uint16)
    return random.uniform(-1, 1, (25, 20, 3)).astype(np.float32), depth


@pytest.fixture(scope="module", params=["one shard", "many shards"])
def cache(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("voxels") / "cache"
    with rc.CacheWriter(folder) as writer:
        for number in range(3):
            times, (dense, depth) = stamps(number), arrays_of(number)
            joints = np.arange(100, dtype=np.float32)[:, None] * np.ones(3, np.float32)
            writer.add(
                {
                    "joints": rc.Stream(joints, times[0] + np.arange(100) * 10 * MS),
                    "lidar": rc.Stream(
                        clouds_of(number), times, arrivals=times + LATE, channels=["intensity", "x", "y", "z"]
                    ),
                    "dense": rc.Stream(dense, times),
                    "depth": rc.Stream(depth, times),
                },
                name=f"episode-{number}",
            )
            if request.param == "many shards":
                writer.commit()
    return str(folder)


def loader_of(cache, voxels, stream="lidar", device=None, batch_size=50, **key):
    keys = {"joints": rc.Key("joints"), "voxels": rc.Key(stream, voxels={"grid": GRID, **voxels}, **key)}
    return rc.Loader(cache, batch_size=batch_size, rate=50, keys=keys, device=device, seed=5)


def cells_of(points):
    """The cells of points [N, 3] that lie in the grid, and which points these are."""
    cells = np.floor((points - np.float32(-1)) / np.float32(0.5)).astype(int)
    inside = ((cells >= 0) & (cells < GRID.shape)).all(axis=1)
    return cells[inside], inside


def counted(points):
    made = np.zeros(GRID.shape, np.int32)
    for cell in cells_of(points)[0]:
        made[tuple(cell)] += 1
    return made


def last_known(times, decision, late, moment):
    """The number of the last sample that was known at `decision` and lies at or before `moment`; -1: none."""
    known = np.flatnonzero((times + late <= decision) & (times <= moment))
    return int(known[-1]) if len(known) else -1


@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_step_has_the_cloud_that_was_known(cache, device):
    if device is not None:
        pytest.importorskip("torch")
    loader = loader_of(cache, {}, steps=[-5, 0], device=device)
    seen = {False: 0, True: 0}
    for number in range(3):
        batch = {name: np.asarray(array) for name, array in loader.batch(number).items()}
        assert batch["voxels"].shape == (50, 2, 4, 4, 3)
        for row, (episode, anchor) in enumerate(zip(batch["episode"], batch["time"], strict=True)):
            for step, back in enumerate((100 * MS, 0)):
                which = last_known(stamps(episode), anchor, LATE, anchor - back)
                truth = counted(clouds_of(episode)[which][:, 1:]) if which >= 0 else np.zeros(GRID.shape, np.int32)
                known_later = which < 0 and last_known(stamps(episode), anchor, LATE, anchor) >= 0
                if not known_later:  # else the first cloud is held before its time, and is not valid
                    np.testing.assert_array_equal(batch["voxels"][row, step], truth)
                assert batch["voxels.valid"][row, step] == (which >= 0)
                seen[which >= 0] += 1
    assert min(seen.values()) > 3


def test_features_are_channels_by_name(cache):
    batch = loader_of(cache, {"reduce": "max", "features": ["intensity", 2]}).batch(1)
    assert batch["voxels"].shape == (50, 1, 4, 4, 3, 2)
    for row, (episode, anchor) in enumerate(zip(batch["episode"], batch["time"], strict=True)):
        which = last_known(stamps(episode), anchor, LATE, anchor)
        truth = np.zeros((*GRID.shape, 2), np.float32)
        if which >= 0:
            cloud = clouds_of(episode)[which]
            cells, inside = cells_of(cloud[:, 1:])
            seen = np.full(truth.shape, -np.inf, np.float32)
            for cell, point in zip(cells, cloud[inside], strict=True):
                seen[tuple(cell)] = np.maximum(seen[tuple(cell)], point[[0, 2]])
            truth = np.where(np.isfinite(seen), seen, truth)
        np.testing.assert_array_equal(batch["voxels"][row, 0], truth)


def test_clouds_of_one_size_are_held_and_not_mixed(cache):
    batch = loader_of(cache, {"reduce": "occupancy"}, "dense", dtype="float16").batch(2)
    assert batch["voxels"].dtype == np.float16
    for row, (episode, anchor) in enumerate(zip(batch["episode"], batch["time"], strict=True)):
        which = last_known(stamps(episode), anchor, 0, anchor)
        truth = counted(arrays_of(episode)[0][which]) > 0
        np.testing.assert_array_equal(batch["voxels"][row, 0], truth.astype(np.float16))


@pytest.mark.parametrize("kept", ["samples", "numbers"])
def test_depth_images_go_through_the_pinhole(cache, kept):
    pose = np.array([[0, 0, 1, -1], [-1, 0, 0, 0], [0, -1, 0, 0], [0, 0, 0, 1.0]])  # a camera that looks along x
    jitter = {"latency_jitter": True} if kept == "numbers" else {}
    batch = loader_of(cache, {"intrinsics": FOCUS, "pose": pose}, "depth", **jitter).batch(0)
    v, u = np.meshgrid(np.arange(12), np.arange(16), indexing="ij")
    for row, (episode, anchor) in enumerate(zip(batch["episode"], batch["time"], strict=True)):
        which = last_known(stamps(episode), anchor, 0, anchor)
        z = arrays_of(episode)[1][which].astype(np.float64) * 0.001
        x, y = (u - FOCUS[2]) * z / FOCUS[0], (v - FOCUS[3]) * z / FOCUS[1]
        camera = np.stack([x, y, z], axis=-1)[z > 0]
        np.testing.assert_array_equal(batch["voxels"][row, 0], counted(camera @ pose[:3, :3].T + pose[:3, 3]))


def test_spec_state_and_window(cache):
    loader = loader_of(cache, {"reduce": "occupancy", "packed": True}, drop=0.5)
    assert "voxels: lidar; [50, 1, 4 x 4 x 1] uint8" in repr(loader)
    other = rc.Loader.from_spec(cache, json.loads(json.dumps(loader.spec())))
    other.load_state_dict(loader.state_dict())
    first, second = loader.batch(2), other.batch(2)
    assert all(np.array_equal(first[name], second[name]) for name in first)
    gone = ~first["voxels.valid"][:, 0]
    assert 10 < gone.sum() < 40
    assert not first["voxels"][gone].any()
    now = loader.window("episode-1", int(stamps(1)[8]) + LATE)
    assert now["voxels"].any()
    assert now["voxels.age"].tolist() == [[LATE]]
    with pytest.raises(ValueError, match="is pictures or voxels, which cannot be undone"):
        loader.invert("voxels", first["voxels"])
    with pytest.raises(ValueError, match="is voxels, and LeRobot's policies have none"):
        loader.lerobot()


def test_a_source_of_a_mixture_may_lack_them(cache):
    blind = rc.Loader(cache, batch_size=1, rate=20, keys={"joints": rc.Key("joints")})
    seeing = loader_of(cache, {})
    mixture = rc.Mixture({"seeing": seeing, "blind": blind}, batch_size=64, length=1000)
    batch = mixture.batch(0)
    is_blind = batch["source"] == 1
    assert 0 < is_blind.sum() < 64
    assert not batch["voxels"][is_blind].any()
    assert not batch["voxels.valid"][is_blind].any()
    assert batch["voxels"][~is_blind].any()
    with pytest.raises(ValueError, match="numbers in one source and voxels in another"):
        rc.Mixture({"seeing": seeing, "blind": blind}, batch_size=8, length=9, names={"blind": {"joints": "voxels"}})


KEYS = {
    "no grid": (("lidar",), {"voxels": {}}, "voxels' grid is None; expected an rc.Grid"),
    "no dict": (("lidar",), {"voxels": GRID}, "voxels is Grid.*; expected a dict"),
    "option": (("lidar",), {"voxels": {"grid": GRID, "redcue": "max"}}, 'no option "redcue"; near names: reduce'),
    "reduce": (("lidar",), {"voxels": {"grid": GRID, "reduce": ["max", "min"]}}, "a key is one tensor"),
    "depth": (("lidar",), {"voxels": {"grid": GRID, "depth_scale": 1.0}}, "depth_scale=.*need intrinsics="),
    "features": (("depth",), {"voxels": {"grid": GRID, "intrinsics": FOCUS, "features": [0]}}, "features="),
    "normalize": (("lidar",), {"voxels": {"grid": GRID}, "normalize": "mean_std"}, "normalize is not for a key with"),
    "image": (("lidar",), {"voxels": {"grid": GRID}, "image": {"size": (4, 4)}}, "image is not for a key with voxels"),
    "streams": (("lidar", "dense"), {"voxels": {"grid": GRID}}, "voxels is for one stream"),
}
LOADERS = {
    "numbers": ("joints", {}, {}, 'stream "joints" is no cloud; depth images need intrinsics='),
    "depth": ("depth", {}, {}, 'stream "depth" is no cloud; depth images need intrinsics='),
    "cloud": ("lidar", {"intrinsics": FOCUS}, {}, 'samples of stream "lidar" are no depth images'),
    "channel": ("lidar", {"reduce": "max", "features": ["red"]}, {}, 'no channel "red".*intensity'),
    "number": ("lidar", {"reduce": "max", "features": [4]}, {}, "4 channels, and no 4"),
    "reduce": ("lidar", {"reduce": "median"}, {}, 'key "voxels": .*median'),
    "no features": ("lidar", {"reduce": "max"}, {}, 'key "voxels": .*features'),
    "pose": ("lidar", {"pose": [[1, 0], [0, 1]]}, {}, 'key "voxels": .*pose'),
    "dtype": ("lidar", {}, {"dtype": "uint8"}, "dtype is uint8; voxels are float32"),
}


@pytest.mark.parametrize("name", KEYS)
def test_keys_that_make_no_sense(name):
    streams, arguments, said = KEYS[name]
    with pytest.raises((ValueError, TypeError)) as found:
        rc.Key(streams, **arguments)
    assert re.search(rf"^Key: .*{said}|^Key: {said}", str(found.value)), found.value


@pytest.mark.parametrize("name", LOADERS)
def test_streams_and_options_that_do_not_fit(cache, name):
    stream, voxels, key, said = LOADERS[name]
    with pytest.raises((ValueError, TypeError)) as found:
        loader_of(cache, voxels, stream, **key)
    assert re.search(rf"^Loader: .*{said}", str(found.value)), found.value


def test_clouds_without_voxels_say_what_to_do(cache):
    with pytest.raises(ValueError, match=r'stream "lidar" vary in length.*clouds become voxels by a key with voxels='):
        rc.Loader(cache, batch_size=4, rate=50, keys={"lidar": rc.Key("lidar")})


@pytest.mark.parametrize("frames", [None, "12x16"])
def test_depth_messages_of_a_camera(tmp_path, frames):
    """As they were recorded, and as frames."""
    images = list(arrays_of(0)[1][:9])
    path = write_images(tmp_path / "a.mcap", {"/depth": ("16UC1", images)})
    if frames is None:
        with rc.CacheWriter(tmp_path / "cache") as writer:
            writer.add(rc.open(path))
    else:
        made(path, tmp_path / "cache", frames)
    key = rc.Key("/depth", voxels={"grid": GRID, "intrinsics": FOCUS})
    loader = rc.Loader(tmp_path / "cache", batch_size=9, rate=10, shuffle=False, keys={"depth": key})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Loader: the cache does not have all frames")
        batch = loader.batch(0)
    v, u = np.meshgrid(np.arange(12), np.arange(16), indexing="ij")
    for image, found in zip(images, batch["depth"][:, 0], strict=True):
        z = image * 0.001
        points = np.stack([(u - FOCUS[2]) * z / FOCUS[0], (v - FOCUS[3]) * z / FOCUS[1], z], axis=-1)
        np.testing.assert_array_equal(found, counted(points[z > 0]))
