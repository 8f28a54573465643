"""Cameras of a loader: depth and gray pictures, and pictures that are decoded for each batch."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from camera_files import CAMERA, encoded, made, photo, video_set, videos_of, write_images
from cases import Random
from loader_cases import Raw, plain_episode, write

import robocache as rc
from robocache._loader import memory

pytest.importorskip("PIL", reason="Pillow is not installed")


def depth_cache(folder):
    episode = plain_episode(0, 12)
    depth = Random("depth").integers(0, 60000, (12, 9, 11)).astype(np.uint16)
    episode.streams["depth"] = Raw(depth, episode.streams["state"].times)
    return rc.Cache(write(folder, [episode])), depth.astype(np.float64)


def test_depth_is_normalised_as_it_is(tmp_path):
    """Its mean and std are of the numbers in the frames, not of colours."""
    cache, depth = depth_cache(tmp_path / "cache")
    keys = {"depth": rc.Key("depth", normalize="mean_std"), "plain": rc.Key("depth")}
    batch = rc.Loader(cache, batch_size=12, rate=50, shuffle=False, keys=keys).batch(0)
    expected = (depth - depth.mean()) / depth.std()
    np.testing.assert_allclose(batch["depth"][:, 0], expected, atol=1e-5)
    np.testing.assert_allclose(batch["plain"][:, 0], depth / 65535, atol=1e-6)


def test_what_is_not_for_depth_is_told(tmp_path):
    cache, _ = depth_cache(tmp_path / "cache")
    with pytest.raises(ValueError, match="3 colours; these have 1"):
        rc.Loader(cache, batch_size=1, rate=50, keys={"depth": rc.Key("depth", normalize="imagenet")})


def stored_as(kind):
    images = [photo(0.2 * k) for k in range(9)]
    if kind == "mono8":
        return kind, [np.ascontiguousarray(image[..., 0]) for image in images]
    if kind == "16UC1":
        return kind, [image[..., 0].astype(np.uint16) * 200 for image in images]
    return kind, [encoded(image, "PNG") for image in images] if kind == "png" else images


@pytest.mark.parametrize("drop", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("kind", ["rgb8", "png", "mono8", "16UC1"])
def test_decoded_pictures_are_those_of_frames(tmp_path, kind, drop):
    """The same shapes and bytes, also in batches in which no picture is known."""
    path = write_images(tmp_path / "a.mcap", {"/camera": stored_as(kind)})
    with rc.CacheWriter(tmp_path / "recorded") as writer:
        writer.add(rc.open(path))
    framed, _ = made(path, tmp_path / "framed", "48x64")
    for options in ({}, {"edge": "zero"}, {"image": {"size": (16, 20), "crop": (5, 7)}}):
        keys = {"camera": rc.Key("/camera", steps=(-3, 0, 2), drop=drop, **options)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            decoded, stored = (
                rc.Loader(cache, batch_size=1, rate=20, keys=keys)
                for cache in (rc.Cache(tmp_path / "recorded"), framed)
            )
            for number in range(6):
                one, other = decoded.batch(number), stored.batch(number)
                for name, array in other.items():
                    assert (one[name].shape, one[name].dtype) == (array.shape, array.dtype), name
                    assert one[name].tobytes() == array.tobytes(), f"{name} of batch {number}"


def test_windows_go_without_a_damaged_picture(tmp_path):
    """The build left it out: the frame before it is held, as after a lost message."""
    images = [encoded(photo(0.2 * k), "JPEG") for k in range(9)]
    images[4] = images[4][:300]
    path = write_images(tmp_path / "a.mcap", {"/camera": ("jpeg", images)})
    cache, _ = made(path, tmp_path / "cache", "48x64")
    loader = rc.Loader(cache, batch_size=1, rate=20, keys={"camera": rc.Key("/camera")})
    times = np.asarray(cache.episodes[0].streams["/camera"].times)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before, damaged = (loader.window(0, int(times[k]) + 10_000_000) for k in (3, 4))
    np.testing.assert_array_equal(damaged["camera"], before["camera"])
    assert (before["camera.age"].item(), damaged["camera.age"].item()) == (10_000_000, 110_000_000)


@pytest.mark.parametrize("keep", ["both", "frames"])
@pytest.mark.parametrize("lost", [0, 1])
def test_an_episode_whose_video_cannot_be_decoded_stops_no_training(tmp_path, keep, lost):
    root = video_set(tmp_path / "set", (5, 6))
    Path(videos_of(root)[lost][0]).write_bytes(b"no video" * 99)
    made(root, tmp_path / "cache", keep=keep)
    keys = {"action": rc.Key("action"), "top": rc.Key(CAMERA)}
    loader = rc.Loader(tmp_path / "cache", batch_size=11, rate=10, keys=keys, shuffle=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batch = loader.batch(0)
    is_lost = batch["episode"] == lost
    assert is_lost.tolist() == [lost == 0] * 5 + [lost == 1] * 6
    np.testing.assert_array_equal(batch["top.valid"][:, 0], ~is_lost)
    assert batch["action.valid"].all()
    assert not batch["top"][is_lost].any()
    assert batch["top"][~is_lost].any()


def test_statistics_of_pictures_need_frames(tmp_path):
    path = write_images(tmp_path / "a.mcap", {"/camera": stored_as("rgb8")})
    with rc.CacheWriter(tmp_path / "cache") as writer:
        writer.add(rc.open(path))
    with pytest.raises(ValueError, match=r'Loader: key "top": .*--frames'):
        rc.Loader(tmp_path / "cache", batch_size=1, rate=20, keys={"top": rc.Key("/camera", normalize="mean_std")})


# ---- Memory of batches


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("dtype", ["float32", "uint8", "bfloat16"])
def test_memory_is_used_again_when_nobody_holds_it(tmp_path, monkeypatch, device, dtype):
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    if device is not None:
        pytest.importorskip("torch", reason="torch is not installed")
    with rc.CacheWriter(tmp_path / "cache") as writer:
        times = np.arange(12) * 20_000_000
        frames = np.random.default_rng(0).integers(0, 256, (12, 8, 9, 3)).astype(np.uint8)
        writer.add({"camera": rc.Stream(frames, times)})
    cache = rc.Cache(tmp_path / "cache")
    keys = {"camera": rc.Key("camera", image={"crop": (6, 7)}, dtype=dtype)}
    more = {"batch_size": 4, "rate": 50, "keys": keys}
    expected = [bits_of(rc.Loader(cache, **more, device=device).batch(k)["camera"]) for k in range(12)]
    monkeypatch.setattr(memory, "LEAST", 1)
    loader = rc.Loader(cache, **more, device=device)
    held, views, addresses = {}, {}, []
    for k in range(12):
        camera = loader.batch(k)["camera"]
        addresses.append(address_of(camera))
        if k % 3 == 0:
            held[k] = camera
        elif k % 3 == 1:
            views[k] = camera[1:2]
        del camera
    assert len({*map(address_of, held.values())}) == len(held)
    assert len(set(addresses)) < len(addresses)  # those that were dropped came again
    for k, camera in held.items():
        assert bits_of(camera) == expected[k]
    for k, view in views.items():
        size = len(expected[k]) // 4
        assert bits_of(view) == expected[k][size : 2 * size]


def bits_of(array):
    if not hasattr(array, "clone"):
        return array.tobytes()
    import torch

    return array.contiguous().view(torch.uint8).numpy().tobytes()


def address_of(array):
    return array.data_ptr() if hasattr(array, "data_ptr") else array.__array_interface__["data"][0]


def test_threads_share_memory_that_is_used_again(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "LEAST", 1)
    taken = memory.Memory()

    def work(number):
        for turn in range(300):
            array = taken.empty((100 + turn % 50, 4), np.dtype(np.int64))
            array[:] = number
            other = taken.empty((100, 4), np.dtype(np.int64))
            other[:] = -number
            assert (array == number).all()
            assert array.base is not other.base

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(1, 5)))
    assert len(taken._free) <= memory.MOST_FREE
