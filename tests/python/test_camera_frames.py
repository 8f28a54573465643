"""The frames of a cache's cameras. The judges: PyAV's planes and the formula of frame_oracle.py, and Pillow."""

import json
import os
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pytest
from camera_files import (
    CAMERA,
    decoded_by_pyav,
    encoded,
    made,
    photo,
    seen_in,
    video_set,
    videos_of,
    write_images,
    write_video,
)
from frame_oracle import frame_of
from recordings import shared

import robocache as rc
from robocache._cache import pieces as _pieces
from robocache._cache.build import build
from robocache._cache.camera_table import cameras_in
from robocache._cache.first_recipe import first_recipe
from robocache._cache.recipe import load_recipe
from robocache._recordings import video as _video
from robocache._recordings.frame_options import FrameOptions, options_of
from robocache._recordings.planes import Conversion

pytest.importorskip("PIL", reason="Pillow is not installed")


# ---- What a frame is


@pytest.mark.parametrize("fit", ["stretch", "cover", "contain"])
@pytest.mark.parametrize("keep", ["both", "frames"])
def test_frames_of_a_video_are_its_planes_converted_and_resized(tmp_path, fit, keep):
    root = video_set(tmp_path / "set")
    cache, found = made(root, tmp_path / "cache", "20x24", fit, keep)
    for episode, (file, numbers) in zip(cache.episodes, videos_of(root), strict=True):
        stream = episode.streams[CAMERA]
        truth = [frame_of(image, (20, 24), fit) for image in decoded_by_pyav(file, numbers)]
        np.testing.assert_array_equal(np.stack(stream.samples[:]), truth)
        np.testing.assert_array_equal(stream.samples[len(numbers) - 1], truth[-1])
        assert stream.times.tolist() == [k * 100_000_000 for k in range(len(numbers))]
        assert stream.values.tolist() == list(range(len(numbers)))
        assert list(episode.streams) == ["action", CAMERA]
    assert list(cache.streams) == ["action", CAMERA]
    assert found["frames"] | {"seconds": 0} == {
        "cameras": [CAMERA],
        "pictures": 21,
        "bytes": 21 * 20 * 24 * 3,
        "seconds": 0,
        "not_counted": [],
    }
    assert rc.verify_cache(tmp_path / "cache").problems == []
    assert not _video.passes  # nothing of FFmpeg is left for a fork to inherit


FORMATS = {
    "yuv420p": ("libx264", "mp4", {}),
    "yuv422p": ("ffv1", "mkv", {}),
    "yuvj420p": ("mjpeg", "mkv", {"full": True}),
    "yuv420p full": ("ffv1", "mkv", {"full": True}),
    "yuv420p bt709": ("ffv1", "mkv", {"matrix": 1}),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("size", [(48, 64), (722, 46)])  # from 720 lines on, what is not tagged is bt709
def test_every_pixel_format_by_its_formula(tmp_path, name, size):
    codec, container, options = FORMATS[name]
    root = video_set(tmp_path / "set", (6,))
    ((file, numbers),) = videos_of(root)
    pix_fmt = name.split()[0]
    frames = [photo(0.3 * k, *size) for k in range(6)]
    write_video(file, frames, codec=codec, container=container, pix_fmt=pix_fmt, **options)
    cache, _ = made(root, tmp_path / "cache", "20x24")
    stream = cache.episodes[0].streams[CAMERA]
    images = decoded_by_pyav(file, numbers)
    np.testing.assert_array_equal(np.stack(stream.samples[:]), [frame_of(image, (20, 24)) for image in images])
    np.testing.assert_array_equal(stream.samples.source[3], images[3])  # decoded on access: the same conversion
    if name in ("yuv420p", "yuv422p", "yuvj420p") and size[0] < 720:  # and it is the picture that was encoded
        assert np.abs(images[3].astype(int) - frames[3]).mean() < 6
    assert stream.samples.source[3].shape == (*size, 3)


def test_a_gray_video_has_gray_frames_and_others_go_through_ffmpeg(tmp_path):
    av = pytest.importorskip("av", reason="PyAV is not installed")
    root = video_set(tmp_path / "set", (4,))
    ((file, _),) = videos_of(root)
    gray = [photo(k)[..., 0] for k in range(4)]
    write_video(file, gray, codec="ffv1", container="mkv", pix_fmt="gray")
    cache, _ = made(root, tmp_path / "gray")
    stream = cache.episodes[0].streams[CAMERA]
    assert stream.samples.rows.shape == (4, 20, 24, 1)
    np.testing.assert_array_equal(stream.samples[2], frame_of(gray[2][..., None], (20, 24)))
    np.testing.assert_array_equal(stream.samples.source[2], np.stack([gray[2]] * 3, axis=-1))
    write_video(file, [photo(k) for k in range(4)], codec="ffv1", container="mkv", pix_fmt="yuv444p")
    cache, _ = made(root, tmp_path / "other")
    with av.open(file) as container:
        whole = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    for k in range(4):
        np.testing.assert_array_equal(cache.episodes[0].streams[CAMERA].samples[k], frame_of(whole[k], (20, 24)))
    assert "swscale" in cache.episodes[0]._info(f"{CAMERA}/frames").metadata["decoder"]


STILLS = {
    "jpeg": ("jpeg", lambda image: encoded(image, "JPEG", quality=90)),
    "png": ("png", lambda image: encoded(image, "PNG")),
    "gray png": ("png", lambda image: encoded(image[..., 0], "PNG")),
    "rgb8": ("rgb8", lambda image: image),
    "bgr8": ("bgr8", lambda image: image),
    "bgra8": ("bgra8", lambda image: np.concatenate([image, image[..., :1]], axis=-1)),
    "mono8": ("mono8", lambda image: image[..., 0]),
}


@pytest.mark.parametrize("name", STILLS)
@pytest.mark.parametrize(
    ("size", "options"),
    [
        ("20x24", {"fit": "cover"}),
        ("100x90", {"fit": "contain", "pad": 114}),
        ("13x64", {"filter": "bicubic"}),
        ("7x9", {"filter": "box"}),
        ("20x24", {"filter": "nearest"}),
    ],
)
def test_stills_are_what_pillow_makes_of_them(tmp_path, name, size, options):
    encoding, make = STILLS[name]
    images = [make(photo(k)) for k in range(5)]
    path = write_images(tmp_path / "a.mcap", {"/camera": (encoding, images)})
    height, width = map(int, size.split("x"))
    table = {"size": [height, width], **options}
    text = ", ".join(f"{key} = {json.dumps(value)}" for key, value in table.items())
    (tmp_path / "r.toml").write_text(f'[streams."/camera"]\nframes = {{ {text} }}\n')
    found = build([str(path)], tmp_path / "cache", recipe=tmp_path / "r.toml")
    assert "error" not in found["sources"][0]
    stream = rc.Cache(tmp_path / "cache").episodes[0].streams["/camera"]
    truth = [frame_of(seen_in(encoding, image), (height, width), **options) for image in images]
    np.testing.assert_array_equal(np.stack(stream.samples[:]), truth)
    for k, image in enumerate(images):
        stored = image if isinstance(image, bytes) else np.ascontiguousarray(image).tobytes()
        assert stream.samples.as_stored(k).tobytes() == stored


def test_bayer_and_interleaved_yuv_are_rgb(tmp_path):
    """The judge of Bayer is SciPy: a mean over the neighbours that have the colour; of YUV the oracle."""
    from frame_oracle import rgb_of
    from scipy.ndimage import correlate

    mosaic = photo()[..., 0]
    cross, square = np.array([[0, 1, 0], [1, 4, 1], [0, 1, 0]]), np.array([[1, 2, 1], [2, 4, 2], [1, 2, 1]])
    for order in ("rggb", "bggr", "gbrg", "grbg"):
        truth = []
        for colour in "rgb":
            mask = np.zeros(mosaic.shape, int)
            for place in range(4):
                mask[place // 2 :: 2, place % 2 :: 2] = order[place] == colour
            weights = cross if colour == "g" else square
            sums = correlate(mosaic.astype(int) * mask, weights, mode="mirror")
            truth.append((sums + 2) // 4)  # where the colour is the pixel's own, 4 of 4 are of it
        path = write_images(tmp_path / f"{order}.mcap", {"/camera": (f"bayer_{order}8", [mosaic])})
        found = rc.open(path).streams["/camera"].samples[0]
        np.testing.assert_array_equal(found, np.stack(truth, axis=-1))
    y, u, v = photo()[..., 0], photo(1)[:, ::2, 1], photo(2)[:, ::2, 2]
    for encoding, at in (("yuv422_yuy2", (0, 1, 3)), ("yuv422", (1, 0, 2))):
        packed = np.empty((48, 128), np.uint8)
        packed[:, at[0] :: 2], packed[:, at[1] :: 4], packed[:, at[2] :: 4] = y, u, v
        path = write_images(tmp_path / f"{encoding}.mcap", {"/camera": (encoding, [packed.reshape(48, 64, 2)])})
        np.testing.assert_array_equal(rc.open(path).streams["/camera"].samples[0], rgb_of(y, u, v))


@pytest.mark.parametrize("filter", [None, "box"])
def test_depth_stays_depth(tmp_path, filter):
    depth = (np.arange(48 * 64).reshape(48, 64) % 977 * 5).astype(np.uint16)
    depth[::3, ::4] = 0
    images = [np.roll(depth, k, axis=1) for k in range(3)]
    path = write_images(tmp_path / "a.mcap", {"/depth": ("16UC1", images)})
    more = "" if filter is None else f', filter = "{filter}"'
    (tmp_path / "r.toml").write_text(f'[streams."/depth"]\nframes = {{ size = [12, 16], keep = "frames"{more} }}\n')
    build([str(path)], tmp_path / "cache", recipe=tmp_path / "r.toml")
    found = np.stack(rc.Cache(tmp_path / "cache").episodes[0].streams["/depth"].samples[:])
    assert (found.dtype, found.shape) == (np.uint16, (3, 12, 16))
    if filter is None:
        rows, columns = (2 * np.arange(12) + 1) * 48 // 24, (2 * np.arange(16) + 1) * 64 // 32
        truth = np.stack(images)[:, rows][:, :, columns]
    else:  # the mean of the readings in each 4 x 4 block
        blocks = np.stack(images).reshape(3, 12, 4, 16, 4).transpose(0, 1, 3, 2, 4).reshape(3, 12, 16, 16).astype(int)
        count = np.maximum((blocks > 0).sum(axis=-1), 1)
        truth = (2 * blocks.sum(axis=-1) + count) // (2 * count)
    np.testing.assert_array_equal(found, truth)


def test_cameras_of_hdf5(tmp_path):
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    jpegs = [encoded(photo(k), "JPEG") for k in range(4)]
    with h5py.File(tmp_path / "episode_0.hdf5", "w") as file:
        file["action"] = np.zeros((4, 14), np.float32)
        file["observations/qpos"] = np.zeros((4, 14))
        file["observations/images/high"] = np.stack([photo(k) for k in range(4)])
        padded = np.zeros((4, max(map(len, jpegs))), np.uint8)
        for row, data in enumerate(jpegs):
            padded[row, : len(data)] = np.frombuffer(data, np.uint8)
        file["observations/images/low"] = padded
        file["compress_len"] = np.array([[0] * 4, [len(data) for data in jpegs]], np.float64)
    cache, _ = made(tmp_path / "episode_0.hdf5", tmp_path / "cache")
    streams = cache.episodes[0].streams
    for k in range(4):
        np.testing.assert_array_equal(streams["images/high"].samples[k], frame_of(photo(k), (20, 24)))
        low = frame_of(seen_in("jpeg", jpegs[k]), (20, 24))
        np.testing.assert_array_equal(streams["images/low"].samples[k], low)
        np.testing.assert_array_equal(streams["images/high"].samples.source[k], photo(k))
    aligned = cache.align(rate=50, streams=["images/high", "action"])
    np.testing.assert_array_equal(aligned["images/high"].values, [[0, 1, 2, 3]])
    assert aligned.samples["images/high"][0][2].shape == (20, 24, 3)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("form", ["varying", "strings", "padded"])
def test_encoded_pictures_of_hdf5(tmp_path, kind, form):
    """As arrays of varying length, as strings of bytes, and as rows that zeros fill up, without their sizes."""
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    pictures = [encoded(photo(k), kind) for k in range(70)]  # more than are read at a time
    with h5py.File(tmp_path / "log.h5", "w") as file:
        file["times"] = np.arange(70) * 0.1
        file["q"] = np.zeros((70, 2))
        if form == "varying":
            made_of = file.create_dataset("top", 70, h5py.vlen_dtype(np.uint8))
            for k, picture in enumerate(pictures):
                made_of[k] = np.frombuffer(picture, np.uint8)
        elif form == "strings":
            file["top"] = np.array(pictures)
        else:
            longest = max(map(len, pictures))
            file["top"] = np.stack([np.frombuffer(p.ljust(longest, b"\0"), np.uint8) for p in pictures])
    stream = rc.open(tmp_path / "log.h5").streams["top"]
    assert [stream.samples.as_stored(k).tobytes() for k in range(70)] == pictures
    assert stream.times[69] == 6_900_000_000
    cache, _ = made(tmp_path / "log.h5", tmp_path / "cache")
    samples = cache.episodes[0].streams["top"].samples
    for k in (0, 63, 64, 69):
        np.testing.assert_array_equal(samples[k], frame_of(seen_in(kind.lower(), pictures[k]), (20, 24)))
    assert list(cache.streams) == ["q", "top"]


@pytest.mark.parametrize("keep", ["both", "frames"])
def test_depth_of_hdf5_has_frames_where_a_recipe_names_it(tmp_path, keep):
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    depth = (np.arange(4 * 48 * 64).reshape(4, 48, 64) * 7 % 65_521).astype(np.uint16)
    with h5py.File(tmp_path / "episode_0.hdf5", "w") as file:
        file["action"] = np.zeros((4, 14), np.float32)
        file["observations/qpos"] = np.zeros((4, 14))
        file["observations/images/depth"] = depth
    assert made(tmp_path / "episode_0.hdf5", tmp_path / "plain")[0].episodes[0].streams["images/depth"].samples is None
    (tmp_path / "r.toml").write_text(
        f'[streams.depth]\ntopic = "images/depth"\nframes = {{ size = [12, 16], fit = "cover", keep = "{keep}" }}\n'
        '[streams.action]\ntopic = "action"\n'
    )
    found = build([str(tmp_path / "episode_0.hdf5")], tmp_path / "cache", recipe=tmp_path / "r.toml")
    assert ("error" in found["sources"][0], found["frames"]["cameras"]) == (False, ["depth"])
    cache = rc.Cache(tmp_path / "cache")
    stream = cache.episodes[0].streams["depth"]
    truth = [frame_of(image, (12, 16), "cover", "nearest") for image in depth]
    np.testing.assert_array_equal(np.stack(stream.samples[:]), truth)
    aligned = cache.align(rate=50, streams=["depth"])
    np.testing.assert_array_equal(aligned.samples["depth"][0][int(aligned["depth"].values[0, 2])], truth[2])
    if keep == "both":
        np.testing.assert_array_equal(stream.samples.source[3], depth[3])
    assert [(camera.camera, camera.kept, camera.samples) for camera in cameras_in(cache)] == [("depth", keep, 4)]
    rc.export(cache, tmp_path / "tensors", rate=50, format="safetensors")
    notes = rc.export(cache, tmp_path / "lerobot", rate=50, format="lerobot")["notes"]
    assert any("LeRobot has no feature for depth images" in note for note in notes)
    tensors = pytest.importorskip("safetensors.numpy").load_file(tmp_path / "tensors" / "episode-000000.safetensors")
    np.testing.assert_array_equal(tensors["depth"], truth)
    assert rc.verify_cache(tmp_path / "cache").problems == []


def test_the_shared_set():
    pytest.importorskip("av", reason="PyAV is not installed")
    root = shared("lerobot-v3-so101")
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        cache, found = made(root, Path(folder, "cache"), "96x128", "cover")
        name = "observation.images.wrist"
        assert found["frames"]["pictures"] == 1782
        numbers = [0, 1, 384, 1000, 1781]
        truth = decoded_by_pyav(root / f"videos/{name}/chunk-000/file-000.mp4", numbers)
        lengths = [len(episode.streams[name].samples) for episode in cache.episodes]
        assert sum(lengths) == 1782
        firsts = np.cumsum([0, *lengths])
        for number, image in zip(numbers, truth, strict=True):
            k = int(np.searchsorted(firsts, number, side="right")) - 1
            frame = cache.episodes[k].streams[name].samples[number - int(firsts[k])]
            np.testing.assert_array_equal(frame, frame_of(image, (96, 128), "cover"))


# ---- Served


def test_align_serves_frames_and_says_what_it_decodes(tmp_path):
    """Two sets in one cache, of which only the first has frames: the other is decoded on access, with the same bits."""
    first, second = video_set(tmp_path / "a", (12,)), video_set(tmp_path / "b", (7,))
    made(first, tmp_path / "cache", "20x24", "cover")
    build([str(second)], tmp_path / "cache")
    cache = rc.Cache(tmp_path / "cache")
    whole, _ = made(second, tmp_path / "other", "20x24", "cover")
    aligned = cache.align(rate=10)
    assert aligned[CAMERA].values.shape == (2, 12)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert aligned.samples[CAMERA][0][3].shape == (20, 24, 3)
    said = rf'stream "{CAMERA}" has no frame of some samples, as in episode episode-0'
    with pytest.warns(UserWarning, match=said) as told:
        found = aligned.samples[CAMERA][1][2]
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once
        np.testing.assert_array_equal(aligned.samples[CAMERA][1][2], found)
    np.testing.assert_array_equal(found, whole.episodes[0].streams[CAMERA].samples[2])
    with pytest.raises(KeyError, match=rf'has the frames of "{CAMERA}", which are that camera.s samples'):
        cache.align(rate=10, streams=[f"{CAMERA}/frames"])
    assert f"{CAMERA}/frames" not in cache.streams


def test_a_cache_and_a_stream_are_copied_with_their_frames(tmp_path):
    root = video_set(tmp_path / "set")
    cache, _ = made(root, tmp_path / "cache")
    build([str(tmp_path / "cache")], tmp_path / "built")
    with rc.CacheWriter(tmp_path / "added") as writer:
        writer.add(cache)
    for name in ("built", "added"):
        for k, episode in enumerate(rc.Cache(tmp_path / name).episodes):
            was = cache.episodes[k].streams[CAMERA]
            np.testing.assert_array_equal(episode.streams[CAMERA].samples.rows, was.samples.rows)
            np.testing.assert_array_equal(
                episode.streams[CAMERA].samples.source.references, was.samples.source.references
            )
    with rc.CacheWriter(tmp_path / "one") as writer:
        writer.add({"top": cache.episodes[1].streams[CAMERA]})
    again = rc.Cache(tmp_path / "one").episodes[0].streams["top"]
    np.testing.assert_array_equal(again.samples[3], cache.episodes[1].streams[CAMERA].samples.source[3])
    build([str(tmp_path / "cache")], tmp_path / "other", frames=FrameOptions(8, 8))  # new frames of the same cameras
    assert rc.Cache(tmp_path / "other").episodes[0].streams[CAMERA].samples[0].shape == (8, 8, 3)
    alone, _ = made(root, tmp_path / "alone", keep="frames")
    with rc.CacheWriter(tmp_path / "of_alone") as writer:
        writer.add({CAMERA: alone.episodes[0].streams[CAMERA]})
    kept = rc.Cache(tmp_path / "of_alone").episodes[0].streams[CAMERA]
    np.testing.assert_array_equal(kept.samples[:], alone.episodes[0].streams[CAMERA].samples[:])


def test_the_copy_of_one_episode_has_no_note_on_its_frames(tmp_path):
    made(video_set(tmp_path / "set", (5,)), tmp_path / "cache")
    found = build([str(tmp_path / "cache")], tmp_path / "built")
    assert found["sources"][0]["notes"] == []
    assert rc.sync_report(tmp_path / "cache").notes == []


def test_the_recipe_of_a_cache_keeps_its_frames(tmp_path):
    """Also that of a report, whose pass leaves them out."""
    cache, _ = made(video_set(tmp_path / "set", (5,)), tmp_path / "cache")
    recording = rc.open(tmp_path / "cache")
    alone = first_recipe(recording)
    assert f'[streams."{CAMERA}/frames"]  # robocache/frames' in alone
    (text,) = (each["recipe"] for each in rc.report(tmp_path / "cache").recordings)
    for name, recipe in (("alone", alone), ("report", text)):
        (tmp_path / "recipe.toml").write_text(recipe)
        build([str(tmp_path / "cache")], tmp_path / name, recipe=tmp_path / "recipe.toml")
        rows = rc.Cache(tmp_path / name).episodes[0].streams[CAMERA].samples.rows
        np.testing.assert_array_equal(rows, cache.episodes[0].streams[CAMERA].samples.rows)
    assert text.split("[streams.")[-1] == alone.split("[streams.")[-1]


def test_streams_with_frames_can_be_pickled(tmp_path):
    import pickle

    cache, _ = made(video_set(tmp_path / "set", (5,)), tmp_path / "cache")
    stream = cache.episodes[0].streams[CAMERA]
    again = pickle.loads(pickle.dumps(stream))
    np.testing.assert_array_equal(again.samples[3], stream.samples[3])
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(cache)).episodes[0].streams[CAMERA].samples[3], again.samples[3]
    )


@pytest.mark.parametrize("pictures", ["frames", "source"])
def test_exports_say_which_pictures_they_take(tmp_path, pictures):
    pytest.importorskip("av", reason="PyAV is not installed")
    root = video_set(tmp_path / "set", (6,))
    cache, _ = made(root, tmp_path / "cache")
    said = (
        "the frames of 20 x 24 that the cache has are exported" if pictures == "frames" else "the recorded pictures are"
    )
    for form in ("lerobot", "safetensors", "mcap"):
        target = tmp_path / f"{form}-{pictures}"
        found = rc.export(cache, target, rate=10, format=form, pictures=pictures)
        assert any(f'stream "{CAMERA}": {said}' in note for note in found["notes"]), found["notes"]
    size = (20, 24, 3) if pictures == "frames" else (48, 64, 3)
    assert rc.open(tmp_path / f"lerobot-{pictures}").episodes[0].streams[CAMERA].samples[0].shape == size
    log = rc.open(tmp_path / f"mcap-{pictures}/episode-000000.mcap").streams[f"/{CAMERA}"]
    samples = cache.episodes[0].streams[CAMERA].samples
    truth = samples if pictures == "frames" else samples.source
    np.testing.assert_array_equal(log.samples[4], truth[4])
    if pictures == "frames":
        load_file = pytest.importorskip("safetensors.numpy").load_file
        tensors = load_file(tmp_path / "safetensors-frames/episode-000000.safetensors")
        np.testing.assert_array_equal(tensors[CAMERA], samples.rows)
    with pytest.raises(ValueError, match="there are no pictures"):
        rc.export(cache, tmp_path / "none", rate=10, pictures="both")


# ---- Built again, interrupted, on a full disk


def test_a_video_without_an_index_is_decoded_by_one_decoder(tmp_path, monkeypatch):
    """PyAV 15 gives none, and some containers have none."""
    root = video_set(tmp_path / "set", (9,))
    ((file, _),) = videos_of(root)
    whole, _ = made(root, tmp_path / "whole")
    monkeypatch.setattr(_video.VideoDecoder, "key_frames", lambda self: [])
    assert not _pieces.Pieces(file, 10.0).are_useful()
    cache, found = made(root, tmp_path / "cache")
    np.testing.assert_array_equal(
        cache.episodes[0].streams[CAMERA].samples.rows, whole.episodes[0].streams[CAMERA].samples.rows
    )
    assert not found["sources"][0]["notes"]


def test_an_interrupted_build_goes_on_and_decodes_nothing_twice(tmp_path, monkeypatch):
    root = video_set(tmp_path / "set", (8, 9, 10))
    whole, _ = made(root, tmp_path / "whole")
    real, decoded = Conversion.add, []

    def counting(conversion, picture):
        if len(decoded) == 12 and limit:
            raise KeyboardInterrupt
        decoded.append(picture)
        real(conversion, picture)

    monkeypatch.setattr(Conversion, "add", counting)
    monkeypatch.setattr(_pieces, "TASK_PICTURES", 4)
    monkeypatch.setattr("robocache._cache.frame_plan.TRIED", 0)  # the plan's trial would count too
    limit = True
    with pytest.raises(KeyboardInterrupt):
        build([str(root)], tmp_path / "cache", frames=FrameOptions(20, 24))
    assert [episode.name for episode in rc.Cache(tmp_path / "cache").episodes] == ["episode-0"]
    assert rc.verify_cache(tmp_path / "cache").problems == []
    limit, decoded[:] = False, []
    cache, _ = made(root, tmp_path / "cache")
    assert len(decoded) == 19  # of the episodes that were not there
    for one, other in zip(cache.episodes, whole.episodes, strict=True):
        np.testing.assert_array_equal(one.streams[CAMERA].samples.rows, other.streams[CAMERA].samples.rows)
    decoded[:] = []
    _, found = made(root, tmp_path / "cache")
    assert (found["sources"][0]["state"], decoded, found["frames"]["pictures"]) == ("unchanged", [], 0)


FULL = """
import resource, signal, sys
import robocache as rc
from robocache._cache.framed import FramedSource
from robocache._recordings.frame_options import FrameOptions
from robocache._recordings.recording import Recording

def recording():
    return Recording(FramedSource(rc.open(sys.argv[1])._source, FrameOptions(64, 64), {}, {}))

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 64 * 3 * 12, resource.RLIM_INFINITY))  # as a disk that has room for 12
try:
    with rc.CacheWriter(sys.argv[2], group_bytes=1) as writer:
        writer.add(recording())
except rc.FileError as error:
    print(error)
print([len(e.streams["observation.images.top"].samples) for e in rc.Cache(sys.argv[2]).episodes])
print(rc.verify_cache(sys.argv[2]).ok)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
with rc.CacheWriter(sys.argv[2]) as writer:
    writer.add(recording())
print([len(e.streams["observation.images.top"].samples.rows) for e in rc.Cache(sys.argv[2]).episodes])
print(rc.verify_cache(sys.argv[2]).ok)
"""


def test_a_full_disk_keeps_what_is_committed_and_the_build_goes_on(tmp_path):
    root = video_set(tmp_path / "set", (8, 9, 20, 5))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FULL), root, tmp_path / "cache"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    error, *told = done.stdout.splitlines()
    assert error.startswith(str(tmp_path / "cache"))
    assert "File too large" in error
    assert told == ["[8, 9]", "True", "[8, 9, 20, 5]", "True"]


def test_frames_with_other_options_are_refused(tmp_path, capsys):
    root, other = video_set(tmp_path / "set", (5,)), video_set(tmp_path / "other", (4,))
    made(root, tmp_path / "cache", "20x24", "cover")
    for size, fit, keep, said in (
        ("20x24", "contain", None, "the cache has frames of it of 20 x 24, cover, not 20 x 24, contain"),
        ("24x24", "cover", None, "the cache has frames of it of 20 x 24, cover, not 24 x 24, cover"),
        ("20x24", "cover", "frames", 'the cache was built with keep "both" for it, not "frames"'),
    ):
        found = build([str(other)], tmp_path / "cache", frames=options_of("test", size, fit, keep))
        assert said in found["sources"][0]["error"]
    found = build([str(root)], tmp_path / "cache", frames=FrameOptions(24, 24), show=True)
    assert "notes" not in found["sources"][0]  # not that the new options hold
    assert "Frames:" not in capsys.readouterr().out  # not that there is no camera
    assert len(rc.Cache(tmp_path / "cache").episodes) == 1
    made(other, tmp_path / "alone", keep="frames")
    found = build([str(root)], tmp_path / "alone", frames=FrameOptions(20, 24))
    assert 'the cache was built with keep "frames" for it, not "both"' in found["sources"][0]["error"]


def test_frames_of_a_cache_that_has_nothing_else_stay_and_are_told(tmp_path):
    made(video_set(tmp_path / "set", (5,)), tmp_path / "alone", keep="frames")
    for size, is_told in (("30x20", True), ("20x24", False)):
        cache, found = made(tmp_path / "alone", tmp_path / size, size)
        assert cache.episodes[0].streams[CAMERA].samples[0].shape == (20, 24, 3)
        assert [
            f'stream "{CAMERA}" keeps its frames of 20 x 24, stretch, and gets none of 30 x 20, stretch' in note
            for note in found["sources"][0]["notes"]
        ] == [True] * is_told


def test_a_cache_that_is_built_again_without_frames_has_none(tmp_path):
    root = video_set(tmp_path / "set", (5,))
    made(root, tmp_path / "cache")
    found = build([str(root)], tmp_path / "cache")
    assert found["sources"][0]["state"] == "replaced"
    assert "frames" not in found
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rc.Cache(tmp_path / "cache").episodes[0].streams[CAMERA].samples[2].shape == (48, 64, 3)


def test_recipes_without_frames_are_told_as_before():
    """A cache remembers a recipe by this text; a new field in it would read every data set again."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "r.toml")
        with open(path, "w") as file:
            file.write('[streams."/a"]\nlatency = 0.5\n')
        assert repr(load_recipe(path).streams) == (
            "(Wanted(topic='/a', name='/a', channels=(), method=None, latency=500000000, clock_offset=0, max_gap=None, "
            "dtype=None, times=None, unit=None, rate=None, clock='recording', static=None, joined=None),)"
        )


def test_pictures_are_counted_before_a_recording_is_split_into_episodes(tmp_path):
    path = write_images(tmp_path / "a.mcap", {"/camera": ("rgb8", [photo(k) for k in range(7)])}, rate=2)
    (tmp_path / "r.toml").write_text('[episodes]\nby = "gap"\ngap = 0.3\n[streams.x]\ntopic = "/camera"\n')
    found = build([str(path)], tmp_path / "cache", recipe=tmp_path / "r.toml", frames=FrameOptions(6, 8))
    cache = rc.Cache(tmp_path / "cache")
    assert len(cache.episodes) > 1
    assert found["frames"]["pictures"] == sum(len(episode.streams["x"].samples.rows) for episode in cache.episodes) == 7


def test_a_recipe_chooses_cameras(tmp_path):
    images = [photo(k) for k in range(4)]
    topics = dict.fromkeys(("/a", "/b", "/c"), ("rgb8", images))
    path = write_images(tmp_path / "a.mcap", topics)
    (tmp_path / "r.toml").write_text(
        '[streams.x]\ntopic = "/a"\nframes = { size = [10, 12] }\n[streams."/b"]\nframes = false\n[streams."/c"]\n'
        "[streams.joints]\ntopic = '/joints'\n"
    )
    found = build([str(path)], tmp_path / "cache", recipe=tmp_path / "r.toml", frames=FrameOptions(6, 8))
    assert "error" not in found["sources"][0]
    streams = rc.Cache(tmp_path / "cache").episodes[0].streams
    assert {name: streams[name].samples[1].shape for name in ("x", "/b", "/c")} == {
        "x": (10, 12, 3),
        "/b": (48, 64, 3),
        "/c": (6, 8, 3),
    }
    assert streams["joints"].samples is None
    np.testing.assert_array_equal(streams["x"].samples[1], frame_of(images[1], (10, 12)))
