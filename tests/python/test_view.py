"""rc.view and `robocache view`: Rerun's own reader finds what was recorded, and what rc.align gives."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

import robocache as rc
from robocache._demo import arm, log
from robocache._view.reduce import reduced
from robocache._view.sink import Times

pytest.importorskip("rerun", reason="rerun-sdk is not installed")
pytest.importorskip("typer", reason="Typer is not installed")
import camera_files
import rerun
from recordings import batch, made
from rerun_files import bands, read, spread

START = 1_700_000_000_000_000_000
PERIOD = 10_000_000
SECOND = 10**9


@pytest.fixture(autouse=True)
def no_display(monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)


def joints(count=300, start=START, delay=8_000_000, missing=range(100, 150)):
    """Times, values [N, 2] and arrivals of a stream at 100 Hz that pauses for half a second."""
    ticks = np.setdiff1d(np.arange(count), np.array(missing, int))
    values = np.stack([np.sin(ticks / 20), np.cos(ticks / 30)], axis=1)
    times = start + ticks * PERIOD
    return times, values, times + delay


def stream(**options):
    times, values, arrivals = joints()
    return rc.Stream(values, times, arrivals=arrivals, **options)


# ---- Streams of numbers


def test_samples_are_as_recorded_on_both_clocks(tmp_path):
    times, values, arrivals = joints()
    viewed = rc.view({"joints": stream(channels=["a", "b"])}, output=tmp_path / "x.rrd")
    found = read(viewed.path)
    raw = found.entities["/raw/joints"]
    assert raw.times["recording"].tolist() == times.tolist()
    assert raw.times["arrival"].tolist() == arrivals.tolist()
    assert (raw.scalars() == values).all()
    assert found.static["/raw/joints"]["SeriesPoints:names"].to_pylist() == [["a", "b"]]
    assert found.kinds == {"recording": "timestamp[ns]", "arrival": "timestamp[ns]"}
    assert (viewed.samples, found.blueprints) == (250, 1)


@pytest.mark.parametrize("options", [{}, {"max_gap": 0.1}, {"method": "hold"}, {"method": "mean"}, {"latency": 0.02}])
def test_aligned_values_are_those_of_align(tmp_path, options):
    """On the timeline from the first to the last sample, and NaN where nothing is valid."""
    one = stream(**options)
    found = read(rc.view({"joints": one}, rate=30, output=tmp_path / "x.rrd").path)
    times = np.asarray(one.times) - (20_000_000 if "latency" in options else 0)
    count = int((times[-1] - times[0]) * 30 // SECOND) + 1
    line = rc.Timeline(int(times[0]), rate=30, count=count)
    values, valid, age, _ = rc.align([one], line)[0]
    shown = found.entities["/aligned/joints"]
    assert shown.times["recording"].tolist() == shown.times["arrival"].tolist() == np.asarray(line.times).tolist()
    assert np.array_equal(shown.scalars(), np.where(valid[:, None], values, np.nan), equal_nan=True)
    assert found.entities["/age/aligned/joints"].scalars()[:, 0] == pytest.approx(age * 1e-6, rel=1e-15)
    assert found.entities["/raw/joints"].times["recording"].tolist() == times.tolist()


@pytest.mark.parametrize("method", ["linear", "mean", "hold"])
def test_what_was_known_is_what_had_arrived_by_each_step(tmp_path, method):
    """Step by step: the samples that had arrived by then, alone, aligned at that step."""
    times, values, arrivals = joints()
    one = stream(method=method, max_gap=0.2)
    found = read(rc.view({"joints": one}, rate=25, output=tmp_path / "x.rrd").path)
    known, ages = found.entities["/known/joints"], found.entities["/age/known/joints"].scalars()[:, 0]
    line = known.times["recording"]
    states = spread(bands(found.entities["/state/known/joints"]), line)
    for k in range(0, len(line), 7):
        there = arrivals <= line[k]
        if not there.any():
            assert np.isnan(known.scalars()[k]).all()
            assert states[k] == "nothing yet"
            continue
        some = rc.Stream(values[there], times[there], method=method, max_gap=0.2)
        wanted = rc.align([some], rc.Timeline.around(int(line[k]), history=1, horizon=1, rate=25), as_of="anchor")[0]
        wanted = [array[1] for array in wanted]
        assert np.array_equal(known.scalars()[k], wanted[0] if wanted[1] else [np.nan] * 2, equal_nan=True), k
        assert ages[k] == pytest.approx(wanted[2] * 1e-6)
        assert (states[k] == "gap") == (not wanted[1])


def test_bands_say_where_values_are_valid_stale_and_missing(tmp_path):
    times, _, _ = joints()
    line = START - SECOND // 2 + np.arange(200) * 20_000_000  # from before the stream to after it
    timeline = rc.Timeline(int(line[0]), rate=50, count=200)
    pause = (line > times[99]) & (line < times[100])
    outside = (line < times[0]) | (line > times[-1])
    for options, word in (({"max_gap": 0.1}, "gap"), ({}, "stale")):  # without max_gap values are made up in between
        viewed = rc.view({"joints": stream(**options)}, timeline=timeline, output=tmp_path / "x.rrd")
        found = bands(read(viewed.path).entities["/state/aligned/joints"])
        states = np.array(spread(found, line))
        assert (states == "outside").tolist() == outside.tolist()
        assert (states == word).tolist() == pause.tolist()
        assert (states == "valid").sum() == len(line) - pause.sum() - outside.sum()
        assert len(found) == 6  # a row for each change, and the end
        assert found[-1] == (line[-1] + 20_000_000, "")
        valid = rc.align([stream(**options)], timeline)[0].valid
        assert (np.isin(states, ["valid", "stale"]) == valid).all()


def test_a_held_value_is_stale_when_it_is_old_and_not_before(tmp_path):
    times, _, _ = joints()
    viewed = rc.view({"joints": stream(method="hold")}, rate=100, gap=0.2, output=tmp_path / "x.rrd")
    found = read(viewed.path).entities["/state/aligned/joints"]
    stale = [time for time, state in bands(found) if state == "stale"]
    assert stale == [times[99] + 210_000_000]  # the first step more than 0.2 s after the last sample


def test_what_arrives_late_as_always_is_not_stale(tmp_path):
    """An age that the usual delay explains: 90 ms, which is 9 periods."""
    times, values, _ = joints(missing=())
    late = rc.Stream(values, times, arrivals=times + 90_000_000)
    found = read(rc.view({"a": late}, output=tmp_path / "x.rrd").path)
    assert {state for _, state in bands(found.entities["/state/known/a"])} == {"nothing yet", "valid", ""}


def test_a_stream_written_on_change_is_never_stale(tmp_path):
    slow = rc.Stream(np.array([0, 1, 0]), START + np.array([0, 2, 29]) * SECOND // 10)
    found = read(rc.view({"joints": stream(), "gripper": slow}, output=tmp_path / "x.rrd").path)
    assert "stale" not in {state for _, state in bands(found.entities["/state/aligned/gripper"])}
    assert found.entities["/raw/gripper"].scalars().tolist() == [[0], [1], [0]]


def test_static_streams_are_always_valid_and_bound_nothing(tmp_path):
    recording = made(
        batch("/a", np.arange(20.0)[:, None], START + np.arange(20) * PERIOD),
        batch("/tf_static/x", [[1.0]], [START - 100 * SECOND], metadata={"static": "true"}),
    )
    found = read(rc.view(recording, output=tmp_path / "x.rrd").path)
    line = found.entities["/aligned/a"].times["recording"]
    assert line[0] == START
    assert {state for _, state in bands(found.entities["/state/aligned/tf_static/x"])} == {"valid", ""}
    assert (found.entities["/known/tf_static/x"].scalars() == 1.0).all()


def test_times_that_count_from_the_start_are_durations(tmp_path):
    times, values, _ = joints(start=0)
    found = read(rc.view({"a": rc.Stream(values, times * 1e-9)}, output=tmp_path / "x.rrd").path)
    assert found.kinds["recording"] == "duration[ns]"
    assert found.entities["/raw/a"].times["recording"].tolist() == times.tolist()


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float32", "float16"])
def test_every_dtype_is_shown(tmp_path, dtype):
    values = (np.arange(40) % 2).astype(dtype)
    found = read(rc.view({"a": rc.Stream(values, START + np.arange(40) * PERIOD)}, output=tmp_path / "x.rrd").path)
    assert found.entities["/raw/a"].scalars()[:, 0].tolist() == values.astype(float).tolist()


def test_many_channels_are_cut_and_told(tmp_path):
    values = np.random.default_rng(0).standard_normal((30, 100))
    viewed = rc.view({"wide": rc.Stream(values, START + np.arange(30) * PERIOD)}, output=tmp_path / "x.rrd")
    found = read(viewed.path)
    assert (found.entities["/raw/wide"].scalars() == values[:, :64]).all()
    assert found.entities["/aligned/wide"].scalars().shape[1] == 64
    assert "wide: the first 64 of 100 channels are shown" in viewed.notes
    assert sum(found.static["/raw/wide"]["SeriesPoints:visible_series"].to_pylist()[0]) == 8


def test_channels_that_never_change_are_not_drawn_at_first(tmp_path):
    times, values, _ = joints()
    both = np.stack([np.zeros(len(values)), values[:, 0]], axis=1)
    found = read(rc.view({"a": rc.Stream(both, times)}, output=tmp_path / "x.rrd").path)
    assert found.static["/raw/a"]["SeriesPoints:visible_series"].to_pylist() == [[False, True]]


def test_empty_streams_and_text_are_notes(tmp_path):
    recording = made(
        batch("/a", np.arange(9.0)[:, None], START + np.arange(9) * PERIOD),
        batch("/none", np.zeros((0, 2)), []),
        batch("/text", np.frombuffer(b"helloyou", np.uint8), [START, START + 1], lengths=[5, 3], ragged=True),
    )
    viewed = rc.view(recording, output=tmp_path / "x.rrd")
    assert [note for note in viewed.notes if "/none" in note] == ["/none: nothing to draw: there is no sample"]
    assert any(note.startswith("/text: ") and "vary in length" in note for note in viewed.notes)
    assert "/raw/a" in read(viewed.path).entities


# ---- Long streams


def test_of_long_streams_the_least_and_the_largest_values_are_shown(tmp_path):
    random = np.random.default_rng(0)
    count = 100_003
    values = random.standard_normal((count, 2)).astype(np.float32)
    values[500, 0], values[70_000, 1], values[999, 1] = 50, -60, np.nan
    times = START + np.arange(count) * 1_000_000
    arrivals = times + 3_000_000
    viewed = rc.view({"fast": rc.Stream(values, times, arrivals=arrivals)}, most=8000, output=tmp_path / "x.rrd")
    found = read(viewed.path)
    raw = found.entities["/raw/fast"]
    rows, bucket = raw.scalars(), -(-count // 2000)
    assert rows.size <= 8000
    for k, begin in enumerate(range(0, count, bucket)):
        part = values[begin : begin + bucket]
        assert rows[2 * k].tolist() == np.fmin.reduce(part).tolist()
        assert rows[2 * k + 1].tolist() == np.fmax.reduce(part).tolist()
        assert raw.times["recording"][[2 * k, 2 * k + 1]].tolist() == times[[begin, begin + len(part) - 1]].tolist()
        assert raw.times["arrival"][2 * k] == arrivals[begin]
    assert (rows.max(), rows.min()) == (50, -60)
    said = f"fast: 100,003 samples are shown by the least and the largest value of every {bucket:,}"
    assert any(note.startswith(said) for note in viewed.notes)
    assert said in found.text.replace("\\", "")
    line = rc.Timeline(int(times[0]), rate=50, count=5001)
    aligned = rc.align([rc.Stream(values, times)], line)[0].values
    shown = found.entities["/aligned/fast"].scalars()
    assert len(shown) == 2 * -(-5001 // 3)
    assert shown[0].tolist() == aligned[:3].min(axis=0).tolist()
    assert shown[-1].tolist() == aligned[-3:].max(axis=0).tolist()


@pytest.mark.parametrize("rows", [1, 6, 7, 8, 20, 21, 22])
def test_the_last_bucket_may_be_a_part_of_one(rows, monkeypatch):
    monkeypatch.setattr("robocache._view.reduce.MOST_BUCKET_BYTES", 7 * 2 * 8)  # a bucket at a time
    values = np.random.default_rng(rows).normal(size=(rows, 2))
    stamps = np.arange(rows)
    shown = reduced(Times(stamps, stamps), values, 7)
    buckets = [values[k : k + 7] for k in range(0, rows, 7)]
    np.testing.assert_array_equal(shown.values[0::2], [each.min(0) for each in buckets])
    np.testing.assert_array_equal(shown.values[1::2], [each.max(0) for each in buckets])


def test_aligning_in_blocks_changes_nothing(tmp_path, monkeypatch):
    from robocache._view import aligned

    one = stream(method="mean", max_gap=0.1)
    whole = read(rc.view({"a": one}, rate=77, output=tmp_path / "x.rrd").path).entities
    monkeypatch.setattr(aligned, "BLOCK", 13)
    parts = read(rc.view({"a": one}, rate=77, output=tmp_path / "y.rrd").path).entities
    for path in ("/aligned/a", "/known/a", "/age/known/a"):
        assert np.array_equal(whole[path].scalars(), parts[path].scalars(), equal_nan=True)
    assert bands(whole["/state/known/a"]) == bands(parts["/state/known/a"])


def test_a_state_that_flickers_is_bounded(tmp_path, monkeypatch):
    from robocache._view import numbers

    monkeypatch.setattr(numbers, "MOST_CHANGES", 40)
    times = START + np.arange(400) * SECOND // 10
    flicker = rc.Stream(np.arange(400.0), times, max_gap=0.01)  # valid only at its samples
    found = read(rc.view({"a": flicker}, rate=20, output=tmp_path / "x.rrd").path)
    states = bands(found.entities["/state/aligned/a"])
    assert len(states) <= 42
    assert {"gap", ""} <= {state for _, state in states}


def test_a_large_recording_is_read_through_a_cache(tmp_path, monkeypatch):
    from robocache._view import spool

    path = tmp_path / "run.mcap"
    camera_files.write_images(
        path, {"/camera": ("jpeg", [camera_files.encoded(camera_files.photo(k), "JPEG") for k in range(9)])}
    )
    small = read(rc.view(path, output=tmp_path / "small.rrd").path)
    monkeypatch.setattr(spool, "MOST_SAMPLES", 3)
    monkeypatch.setattr(spool, "MOST_RAGGED", 4)
    heard = []
    viewed = rc.view(path, output=tmp_path / "large.rrd", progress=lambda name, share: heard.append((name, share)))
    large = read(viewed.path)
    assert any("temporary cache" in note for note in viewed.notes)
    assert any(note.startswith("/camera: one sample of 3 is shown") for note in viewed.notes)
    blobs = [found.entities["/camera/camera"].blobs("EncodedImage:blob") for found in (small, large)]
    assert blobs[1] == blobs[0][::3]
    for entity in small.entities:
        if entity.startswith(("/raw", "/aligned", "/known")):
            assert np.array_equal(small.entities[entity].scalars(), large.entities[entity].scalars(), equal_nan=True)
    assert any("large file" in name for name, _ in heard)


# ---- Names


HOSTILE = [
    "/a",
    "a",
    "a/b",
    "a//b",
    "with space",
    "<script>alert(1)</script>",
    "x/raw",
    "x",
    'naïve [0] \\ "q"',
    "..",
    "\udcff",
]


def test_hostile_names_are_paths_of_their_own(tmp_path):
    streams = {name: rc.Stream(np.full(9, k, float), START + np.arange(9) * PERIOD) for k, name in enumerate(HOSTILE)}
    found = read(rc.view(streams, output=tmp_path / "x.rrd").path)
    raw = {path: entity for path, entity in found.entities.items() if path.startswith("/raw/")}
    assert sorted(entity.scalars()[0, 0] for entity in raw.values()) == list(range(len(HOSTILE)))
    assert "/raw/with\\ space" in raw
    assert "/raw/x/raw" in raw
    assert sum(path.startswith("/state/known/") for path in found.entities) == len(HOSTILE)


def test_a_view_is_called_as_its_file_wherever_that_lies(tmp_path):
    """The demo records into a folder with a random name, which nobody shall see."""
    path = tmp_path / "run.mcap"
    camera_files.write_images(path, {"/camera": ("jpeg", [camera_files.encoded(camera_files.photo(0), "JPEG")])})
    text = read(rc.view(path, output=tmp_path / "x.rrd").path).text
    assert text.startswith("# run.mcap\n")


def test_names_that_are_html_or_markdown_stay_text(tmp_path):
    name = "<script>alert(1)</script>"
    wide = rc.Stream(np.zeros((9, 99)), START + np.arange(9) * PERIOD)
    text = read(rc.view({name: wide, "[a](b)": wide}, output=tmp_path / "x.rrd").path).text
    assert "<script>" not in text.replace("\\<", "")
    assert "\\<script\\>" in text
    assert "\\[a\\](b)" in text


# ---- Cameras


def test_pictures_keep_their_bytes(tmp_path):
    jpegs = [camera_files.encoded(camera_files.photo(k), "JPEG") for k in range(5)]
    raw = [camera_files.photo(k + 0.5) for k in range(4)]
    path = tmp_path / "run.mcap"
    camera_files.write_images(path, {"/front": ("jpeg", jpegs), "/side": ("bgr8", raw)})
    found = read(rc.view(path, output=tmp_path / "x.rrd").path)
    front, side = found.entities["/camera/front"], found.entities["/camera/side"]
    assert front.blobs("EncodedImage:blob") == jpegs
    assert front.rows("EncodedImage:media_type") == [["image/jpeg"]] * 5
    recorded = rc.open(path).streams
    assert front.times["recording"].tolist() == np.asarray(recorded["/front"].times).tolist()
    assert front.times["arrival"].tolist() == np.asarray(recorded["/front"].arrivals).tolist()
    assert side.blobs("Image:buffer") == [np.asarray(image).tobytes() for image in recorded["/side"].samples]
    about = found.static["/camera/side"]["Image:format"].to_pylist()[0][0]
    assert (about["width"], about["height"]) == (64, 48)


def test_a_video_is_there_once_and_referred_to(tmp_path):
    root = camera_files.video_set(tmp_path / "set")
    one = rc.open(root).episodes[1].streams[camera_files.CAMERA]
    viewed = rc.view(root, episode=1, output=tmp_path / "x.rrd")
    found = read(viewed.path)
    path = "/camera/observation.images.top"
    assert (
        bytes(found.static[f"{path}/video_file"]["AssetVideo:blob"].to_pylist()[0][0])
        == Path(one.samples.file).read_bytes()
    )
    references = [row[0] for row in found.entities[path].rows("VideoFrameReference:timestamp")]
    assert references == [round(int(n) * 1e9 / 10) for n in one.samples.references[:, 0]]
    frames = rerun.AssetVideo(path=one.samples.file).read_frame_timestamps_nanos()  # as Rerun finds them
    assert np.abs(frames[one.samples.references[:, 0]] - references).max() < 1_000_000
    assert found.static[path]["VideoFrameReference:video_reference"].to_pylist() == [[f"{path[1:]}/video_file"]]
    assert "episode 1 of 2 is shown; --episode (episode=) shows another" in viewed.notes


def test_frames_that_a_cache_keeps_are_shown(tmp_path):
    camera_files.made(camera_files.video_set(tmp_path / "set"), tmp_path / "cache", "20x24")
    cache = rc.Cache(tmp_path / "cache")
    found = read(rc.view(cache, output=tmp_path / "x.rrd").path)
    frames = cache.episodes[0].streams[camera_files.CAMERA].samples
    assert found.entities["/camera/observation.images.top"].blobs("Image:buffer") == [f.tobytes() for f in frames]


def test_pictures_that_are_too_many_are_thinned_and_told(tmp_path, monkeypatch):
    from robocache._view import pictures

    path = tmp_path / "run.mcap"
    camera_files.write_images(path, {"/side": ("rgb8", [camera_files.photo(k) for k in range(10)])})
    monkeypatch.setattr(pictures.show_camera, "__defaults__", (4 * 48 * 64 * 3,))
    viewed = rc.view(path, output=tmp_path / "x.rrd")
    assert any(note.startswith("/side: 4 of 10 pictures are shown") for note in viewed.notes)
    times = read(viewed.path).entities["/camera/side"].times["recording"]
    assert times.tolist() == np.asarray(rc.open(path).streams["/side"].times)[::3].tolist()


def test_a_camera_that_cannot_be_decoded_is_a_note(tmp_path):
    root = camera_files.video_set(tmp_path / "set")
    Path(rc.open(root).episodes[0].streams[camera_files.CAMERA].samples.file).unlink()
    viewed = rc.view(root, output=tmp_path / "x.rrd")
    assert any("its pictures are not shown" in note for note in viewed.notes)
    assert "/raw/action" in read(viewed.path).entities


# ---- 3D: the demo's depth camera, clouds and TF


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    path = tmp_path_factory.mktemp("demo") / "demo.mcap"
    log.write(path, log.simulate(arm.record()))
    return path


def test_depth_stands_in_3d_as_it_was_recorded(demo, tmp_path):
    found = read(rc.view(demo, output=tmp_path / "x.rrd").path)
    depth = rc.open(demo).streams["/depth/image"]
    shown = found.entities["/camera/depth/image"]
    assert shown.blobs("DepthImage:buffer") == [np.asarray(image).tobytes() for image in depth.samples]
    static = found.static["/camera/depth/image"]
    assert static["DepthImage:meter"].to_pylist() == [[1000.0]]
    fx, fy, cx, cy = log.DEPTH_INTRINSICS
    matrix = np.array(static["Pinhole:image_from_camera"].to_pylist()[0][0]).reshape(3, 3).T
    assert matrix == pytest.approx(np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]]), rel=1e-6)
    voxels = found.entities["/voxels/depth/image"]
    cells, counts = voxels.rows("VoxelGridMap:voxel_indices"), voxels.rows("VoxelGridMap:values")
    size = found.static["/voxels/depth/image"]["VoxelGridMap:voxel_size"].to_pylist()[0][0]
    origin = found.static["/voxels/depth/image"]["VoxelGridMap:translation"].to_pylist()[0][0]
    image = np.asarray(depth.samples[3]).astype(float) * 0.001
    v, u = np.nonzero(image)
    points = np.stack([(u - cx) * image[v, u] / fx, (v - cy) * image[v, u] / fy, image[v, u]], axis=1)
    wanted = np.floor((points - origin) / size).astype(int)
    inside = (wanted >= 0).all(axis=1) & (wanted < np.array(cells[3]).max(axis=0) + 1).all(axis=1)
    seen = {tuple(cell) for cell in cells[3]}
    assert np.mean([tuple(cell) in seen for cell in wanted[inside]]) > 0.98  # the grid is stored in float32
    assert sum(np.expm1(counts[3])) == pytest.approx(inside.sum(), rel=0.02)


def transforms(name, values, times, parent, **metadata):
    channels = [f"{part}.{axis}" for part, axes in (("translation", "xyz"), ("rotation", "xyzw")) for axis in axes]
    return batch(name, values, times, channels=channels, metadata={"parent": parent} | metadata)


def test_clouds_and_transforms_are_in_3d(tmp_path):
    random = np.random.default_rng(0)
    lengths = [5, 0, 7]
    rows = random.standard_normal((12, 4)).astype(np.float32)
    rows[3, 0] = np.nan
    times = START + np.arange(3) * SECOND // 10
    poses = np.tile([1.0, 2, 3, 0, 0, 0, 1], (3, 1))
    recording = made(
        batch(
            "/lidar", rows, times, times + 5, lengths=lengths, ragged=True, shape=(4,),
            channels=["x", "y", "z", "intensity"], metadata={"frame_id": "lidar"},
        ),
        transforms("/tf/base", poses, times, "map"),
        transforms("/tf_static/lidar", poses[:1], times[:1], "base", static="true"),
    )  # fmt: skip
    found = read(rc.view(recording, output=tmp_path / "x.rrd").path)
    cloud = found.entities["/cloud/lidar"]
    shown = [np.array(points, np.float32).reshape(-1, 3) for points in cloud.rows("Points3D:positions")]
    kept = np.isfinite(rows[:5, 0])
    assert (shown[0] == rows[:5, :3][kept]).all()
    assert (len(shown[1]), len(shown[2])) == (0, 7)
    assert (shown[2] == rows[5:, :3]).all()
    assert cloud.times["arrival"].tolist() == (times + 5).tolist()
    assert found.static["/cloud/lidar"]["CoordinateFrame:frame"].to_pylist() == [["lidar"]]
    base = found.entities["/tf/tf/base"]
    assert np.array(base.rows("Transform3D:translation"))[:, 0].tolist() == [[1, 2, 3]] * 3
    assert base.rows("Transform3D:child_frame") == [["base"]] * 3
    assert base.rows("Transform3D:parent_frame") == [["map"]] * 3
    assert found.static["/tf/tf_static/lidar"]["Transform3D:parent_frame"].to_pylist() == [["base"]]
    assert found.static["/tf/root/map"]["Transform3D:child_frame"].to_pylist() == [["map"]]
    counts = found.entities["/voxels/lidar"].rows("VoxelGridMap:values")
    assert 0 < np.expm1(np.concatenate([each or [0] for each in counts])).sum() <= 11


# ---- Aligned results and batches


def test_aligned_results_are_shown_as_they_are(tmp_path):
    one = stream(max_gap=0.1)
    line = rc.Timeline(START, rate=40, count=100)
    aligned = rc.align({"joints": one}, line)
    viewed = rc.view(aligned, timeline=line, behind={"joints": one}, output=tmp_path / "x.rrd")
    found = read(viewed.path)
    values, valid, age, _ = aligned["joints"]
    shown = found.entities["/aligned/joints"]
    assert shown.times["recording"].tolist() == np.asarray(line.times).tolist()
    assert np.array_equal(shown.scalars(), np.where(valid[:, None], values, np.nan), equal_nan=True)
    states = np.array(spread(bands(found.entities["/state/aligned/joints"]), np.asarray(line.times)))
    assert ((states == "valid") == valid).all()
    assert found.entities["/age/aligned/joints"].scalars()[:, 0] == pytest.approx(age * 1e-6)
    assert (found.entities["/raw/joints"].scalars() == np.asarray(one.values)).all()
    with pytest.raises(ValueError, match="do not hold their times; give timeline="):
        rc.view(aligned)
    for steps in (99, 101):
        with pytest.raises(ValueError, match=f'timeline has {steps} steps, and "joints" has 100; give the timeline of'):
            rc.view(aligned, timeline=rc.Timeline(START, rate=40, count=steps), output=tmp_path / "y.rrd")
    with pytest.raises(TypeError, match=r"behind is of type list; expected \{name: Stream\}"):
        rc.view(aligned, timeline=line, behind=[one], output=tmp_path / "y.rrd")


def test_a_row_of_aligned_results_and_an_episode_of_a_cache(tmp_path):
    with rc.CacheWriter(tmp_path / "cache") as writer:
        for k in range(3):
            times, values, _ = joints(start=START + k * 100 * SECOND)
            writer.add({"joints": rc.Stream(values + k, times)}, name=f"e{k}")
    cache = rc.Cache(tmp_path / "cache")
    aligned = cache.align([0, 2], rate=20)
    found = read(rc.view(aligned, episode=2, output=tmp_path / "x.rrd").path)
    steps = int(aligned.lengths[1])
    assert found.entities["/aligned/joints"].times["recording"].tolist() == aligned.times[1, :steps].tolist()
    assert (found.entities["/aligned/joints"].scalars() == aligned["joints"].values[1, :steps]).all()
    with pytest.raises(ValueError, match="the episodes 0, 2, not 1"):
        rc.view(aligned, episode=1)
    whole = read(rc.view(cache, episode="e2", rate=20, output=tmp_path / "y.rrd").path)
    assert (whole.entities["/raw/joints"].scalars() == joints()[1] + 2).all()
    rows = rc.align([cache.episodes[0].streams["joints"]], np.stack([START + np.arange(5) * SECOND] * 2))
    both = read(rc.view(rows, timeline=START + np.arange(5) * SECOND, episode=1, output=tmp_path / "z.rrd").path)
    assert len(both.entities["/aligned/stream 0".replace(" ", "\\ ")].scalars()) == 5


@pytest.fixture(scope="module")
def loader(tmp_path_factory):
    import loader_small

    return loader_small.made(loader_small.write(tmp_path_factory.mktemp("loader") / "cache"))


def test_a_loader_s_batch_is_shown_as_the_policy_gets_it(loader, tmp_path):
    batch = loader.batch(0)
    viewed = rc.view(loader, output=tmp_path / "x.rrd")
    found = read(viewed.path)
    for row in (0, 7):
        anchor = int(batch["time"][row])
        for key in ("state", "action"):
            offsets = loader.keys[key].offsets(loader.rate)
            shown = found.entities[f"/window-{row}/policy/{key}"]
            assert shown.times["step"].tolist() == offsets.tolist()
            assert shown.times["recording"].tolist() == (anchor + offsets).tolist()
            assert (shown.scalars() == batch[key][row]).all()
            states = [row[0] for row in found.entities[f"/window-{row}/state/{key}"].rows("StateChange:state")]
            assert states == ["valid" if each else "gap" for each in batch[f"{key}.valid"][row]] + [""]
            ages = found.entities[f"/window-{row}/age/{key}"].scalars()[:, 0]
            never = batch[f"{key}.age"][row] == np.iinfo(np.int64).min
            assert np.isnan(ages).tolist() == never.tolist()
            assert ages[~never] == pytest.approx(batch[f"{key}.age"][row][~never] * 1e-6)
        pictures = found.entities[f"/window-{row}/picture/image"].blobs("Image:buffer")
        wanted = np.rint(np.moveaxis(batch["image"][row], 1, -1) * 255).astype(np.uint8)
        assert pictures == [each.tobytes() for each in wanted]
    assert "/window-8/policy/state" not in found.entities
    assert viewed.notes[0].startswith("windows 0 to 7 of 16 are shown")
    assert loader.state_dict()["position"] == 0  # looking takes no batch away


def test_behind_a_batch_stand_the_samples_as_recorded(loader, tmp_path):
    found = read(rc.view(loader, episode=3, output=tmp_path / "x.rrd").path)
    batch = loader.batch(0)
    row = 3
    recorded = found.entities[f"/window-{row}/recorded/state/joints"]
    stream = loader.cache.episodes[int(batch["episode"][row])].streams["joints"]
    places = np.searchsorted(np.asarray(stream.times), recorded.times["recording"])
    assert (np.asarray(stream.times)[places] == recorded.times["recording"]).all()
    assert (recorded.scalars() == np.asarray(stream.values)[places]).all()
    anchor, offsets = int(batch["time"][row]), loader.keys["state"].offsets(loader.rate)
    assert recorded.times["step"].tolist() == (recorded.times["recording"] - anchor).tolist()
    inside = (np.asarray(stream.times) >= anchor + offsets[0]) & (np.asarray(stream.times) <= anchor + offsets[-1])
    assert set(np.flatnonzero(inside)) <= set(places)


def test_behind_a_policy_s_picture_stand_the_recorded_ones(loader, tmp_path):
    """Whole, where the policy gets a crop of a resized one; those just before and after the window, too."""
    found = read(rc.view(loader, output=tmp_path / "x.rrd").path)
    batch = loader.batch(0)
    for row in range(8):
        recorded = found.entities[f"/window-{row}/recorded/image"]
        stream = loader.cache.episodes[int(batch["episode"][row])].streams["wrist"]
        times, anchor = np.asarray(stream.times), int(batch["time"][row])
        assert (recorded.times["step"] + anchor).tolist() == recorded.times["recording"].tolist()
        places = np.searchsorted(times, recorded.times["recording"])
        assert (times[places] == recorded.times["recording"]).all()
        assert recorded.blobs("Image:buffer") == [np.asarray(stream.values)[k].tobytes() for k in places]
        assert np.searchsorted(times, anchor, side="right") - 1 in places  # what the policy's is made of
        assert len(places) <= 4  # at 10 Hz, about 50 ms before and after


def test_a_batch_alone_is_shown_by_steps(loader, tmp_path):
    batch = loader.batch(2)
    viewed = rc.view(batch, output=tmp_path / "x.rrd")
    shown = read(viewed.path).entities["/window-0/policy/action"]
    assert shown.times["step"].tolist() == [k * SECOND for k in range(4)]
    assert any("behind=loader" in note for note in viewed.notes)
    with_loader = read(rc.view(batch, behind=loader, output=tmp_path / "y.rrd").path)
    assert with_loader.entities["/window-0/policy/action"].times["step"].tolist() == [
        0,
        25_000_000,
        50_000_000,
        75_000_000,
    ]


def test_torch_batches_are_shown(loader, tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    batch = {name: torch.from_numpy(np.asarray(array)) for name, array in loader.batch(0).items()}
    shown = read(rc.view(batch, behind=loader, output=tmp_path / "x.rrd").path).entities["/window-0/policy/state"]
    assert (shown.scalars() == loader.batch(0)["state"][0]).all()


def test_each_row_of_a_mixture_is_shown_as_its_source_has_made_it(tmp_path):
    from loader_policies import recorded
    from test_loader_mixture import NAMES, mixture_of

    two, one = (recorded(tmp_path / "-".join(cameras), cameras)[0] for cameras in (("top", "wrist"), ("camera",)))
    mixture = mixture_of({"arm": two, "droid": one, "hand": two}, seed=3)
    batch = mixture.batch(0)
    viewed = rc.view(mixture, output=tmp_path / "x.rrd")
    found = read(viewed.path)
    assert not any("no samples stand behind them" in note for note in viewed.notes)
    seen = set()
    for row in range(8):
        source = list(mixture.sources)[int(batch["source"][row])]
        own, anchor = mixture.sources[source], int(batch["time"][row])
        seen.add(source)
        assert f"- window {row}, {source}, episode " in found.text
        for key in ("observation.state", "action"):
            mine = next((k for k in own.keys if NAMES.get(source, {}).get(k, k) == key), None)
            shown = found.entities[f"/window-{row}/policy/{key}"]
            assert np.array_equal(shown.scalars(), batch[key][row].reshape(len(batch[key][row]), -1))
            behind = [path for path in found.entities if path.startswith(f"/window-{row}/recorded/{key}/")]
            assert bool(behind) == (mine is not None)  # a hand has no action
            if mine is not None:
                offsets = own.keys[mine].offsets(own.rate)
                assert shown.times["step"].tolist() == offsets.tolist()
                assert shown.times["recording"].tolist() == (anchor + offsets).tolist()
            for path in behind:
                stream = own.cache.episodes[int(batch["episode"][row])].streams[path.rpartition("/")[2]]
                times = np.asarray(stream.times)
                places = np.searchsorted(times, found.entities[path].times["recording"])
                assert (times[places] == found.entities[path].times["recording"]).all()
                assert (
                    found.entities[path].scalars() == np.asarray(stream.values)[places].reshape(len(places), -1)
                ).all()
    assert seen == {"arm", "droid", "hand"}
    again = read(rc.view(batch, behind=mixture, output=tmp_path / "y.rrd").path)
    assert again.entities.keys() == found.entities.keys()
    with pytest.raises(TypeError, match="behind is of type dict; expected the batch's loader"):
        rc.view(batch, behind={}, output=tmp_path / "y.rrd")


def test_a_transform_may_leave_only_the_keys(loader, tmp_path):
    import loader_small

    kept = ("state", "state.valid", "action", "action.valid")
    bare = loader_small.made(loader.cache, transform=lambda batch: {name: batch[name] for name in kept})
    found = read(rc.view(bare, output=tmp_path / "x.rrd").path)
    offsets = loader.keys["action"].offsets(loader.rate)
    assert found.entities["/window-0/policy/action"].times["step"].tolist() == offsets.tolist()
    assert not any("/recorded/" in path for path in found.entities)


def test_bfloat16_is_shown(loader, tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    times, values, _ = joints()
    values = torch.from_numpy(values).bfloat16()
    one = rc.Stream(values, torch.from_numpy(times))
    line = rc.Timeline(START, rate=100, count=50)
    shown = read(rc.view({"joints": one}, output=tmp_path / "x.rrd").path).entities["/raw/joints"]
    assert (shown.scalars() == values.double().numpy()).all()
    aligned = rc.align({"joints": one}, line)
    shown = read(rc.view(aligned, timeline=line, output=tmp_path / "x.rrd").path).entities["/aligned/joints"]
    assert (shown.scalars() == aligned["joints"].values.double().numpy()).all()
    batch = {name: torch.from_numpy(np.asarray(array)) for name, array in loader.batch(0).items()}
    batch["state"] = batch["state"].bfloat16()
    shown = read(rc.view(batch, behind=loader, output=tmp_path / "x.rrd").path).entities["/window-0/policy/state"]
    assert (shown.scalars() == batch["state"][0].double().numpy()).all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("alone", [True, False])
def test_a_batch_of_nan_is_shown(loader, tmp_path, alone):
    batch = loader.batch(0)
    batch |= {name: np.full_like(batch[name], np.nan) for name in ("state", "image")}
    found = read(rc.view(batch, behind=None if alone else loader, output=tmp_path / "x.rrd").path)
    assert np.isnan(found.entities["/window-0/policy/state"].scalars()).all()
    assert not any(found.entities["/window-0/picture/image"].blobs("Image:buffer")[0])


# ---- Files, viewers, errors


def test_without_a_display_a_file_is_written_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    viewed = rc.view({"joints": stream()})
    assert viewed.path == Path("streams.rrd")
    assert not viewed.is_open
    assert "rerun streams.rrd opens it where there is a display" in repr(viewed)
    with pytest.raises(RuntimeError, match=r"there is no display here; rerun streams\.rrd"):
        viewed.open()


def test_with_a_display_the_viewer_opens_the_file(tmp_path, monkeypatch):
    program = tmp_path / "rerun"
    program.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    program.chmod(0o755)
    monkeypatch.setenv("DISPLAY", ":7")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where the file for the window goes
    viewed = rc.view({"joints": stream()})
    assert viewed.is_open
    assert "opened" in repr(viewed)
    import time

    for _ in range(500):
        if (tmp_path / "opened").exists() and (tmp_path / "opened").read_text():
            break
        time.sleep(0.01)
    assert (tmp_path / "opened").read_text().strip() == str(viewed.path)
    assert "/raw/joints" in read(viewed.path).entities
    quiet = rc.view({"joints": stream()}, output=tmp_path / "x.rrd")
    assert not quiet.is_open


def test_a_view_is_overwritten_and_nothing_else(tmp_path):
    path = tmp_path / "x.rrd"
    rc.view({"joints": stream()}, output=path)
    rc.view({"other": stream()}, output=path)
    assert "/raw/other" in read(path).entities
    assert [each.name for each in tmp_path.iterdir()] == ["x.rrd"]
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(rc.FileError, match=r"thesis\.txt: exists already, and is no view"):
        rc.view({"joints": stream()}, output=tmp_path / "thesis.txt")
    with pytest.raises(rc.FileError, match="is a directory; name a file"):
        rc.view({"joints": stream()}, output=tmp_path)
    with pytest.raises(rc.FileError, match=r"the directory .* is not there"):
        rc.view({"joints": stream()}, output=tmp_path / "no" / "x.rrd")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_pipes_are_refused_and_links_stay(tmp_path):
    """A device would be replaced by a file, for root; reading a pipe never ends."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(rc.FileError, match="pipe: is no file"):
        rc.view({"joints": stream()}, output=tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.rrd").symlink_to("folder/x.rrd")
    for _ in range(2):
        assert rc.view({"joints": stream()}, output=tmp_path / "link.rrd").path == tmp_path / "link.rrd"
        assert (tmp_path / "link.rrd").is_symlink()
        assert [each.name for each in (tmp_path / "folder").iterdir()] == ["x.rrd"]
    assert "/raw/joints" in read(tmp_path / "folder" / "x.rrd").entities


@pytest.mark.parametrize("free", [(16 << 20) + 3000, 1 << 20, 0])
def test_a_full_disk_is_a_sentence_and_leaves_no_file(tmp_path, monkeypatch, free):
    """Before it is full: Rerun waits for ever for what it cannot write."""
    import shutil
    from collections import namedtuple

    def refuse(self, path):
        raise RuntimeError("Failed to encode LogMsg: Failed to write: No space left on device (os error 28)")

    if not free:  # what Rerun says then
        monkeypatch.setattr(rerun.RecordingStream, "save", refuse)
    usage = namedtuple("usage", ("total", "used", "free"))
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(1 << 30, 1 << 30, free))
    with pytest.raises(rc.FileError, match=r"x\.rrd: No space left on device"):
        rc.view({"joints": stream()}, output=tmp_path / "x.rrd")
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_does_not_end_is_a_sentence(tmp_path, monkeypatch):
    def never(self, *, timeout_sec):
        assert timeout_sec < 3600
        raise RuntimeError("Flush timed out")

    monkeypatch.setattr(rerun.RecordingStream, "flush", never)
    with pytest.raises(rc.FileError, match=r"x\.rrd: Rerun did not write it .* is the disk full"):
        rc.view({"joints": stream()}, output=tmp_path / "x.rrd")


def test_a_notebook_shows_the_view_itself(tmp_path, monkeypatch, capsys):
    import types

    import rerun.notebook

    from robocache._view import show

    shown = []
    monkeypatch.setattr(show, "in_notebook", lambda: True)
    monkeypatch.setattr(show, "find_spec", lambda name: object())
    fake = lambda **options: types.SimpleNamespace(display=lambda: shown.append(options))  # noqa: E731
    monkeypatch.setattr(rerun.notebook, "Viewer", fake)
    viewed = rc.view({"joints": stream()})
    assert viewed.path is None
    viewed._ipython_display_()
    assert shown[0]["recording"] is viewed.recording
    assert shown[0]["blueprint"] is viewed.blueprint
    assert "250 samples" in capsys.readouterr().out
    (tmp_path / "x.rrd").write_bytes(viewed.recording.memory_recording().drain_as_bytes())
    assert (read(tmp_path / "x.rrd").entities["/raw/joints"].scalars() == joints()[1]).all()
    with pytest.raises(RuntimeError, match="a notebook shows this view itself"):
        viewed.open()


def test_a_notebook_without_the_viewer_says_what_to_install(tmp_path, monkeypatch, capsys):
    from robocache._view import show

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(show, "in_notebook", lambda: True)
    monkeypatch.setattr(show, "find_spec", lambda name: None)
    viewed = rc.view({"joints": stream()})
    viewed._ipython_display_()
    said = capsys.readouterr().out
    assert "rerun streams.rrd opens it where there is a display" in said
    assert "Note: pip install 'rerun-sdk[notebook]' puts the viewer into the cell" in said
    assert rc.view({"joints": stream()}, output="x.rrd").notes == []


def test_a_view_that_fails_leaves_no_file(tmp_path):
    bad = rc.Stream(np.zeros((2, 5)), np.tile(START + np.arange(5), (2, 1)))
    with pytest.raises(ValueError, match=r'stream "bad" has rows, times \[2, 5\]'):
        rc.view({"bad": bad}, output=tmp_path / "x.rrd")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("what", "options", "sentence"),
    [
        (3, {}, "expected a recording, a cache, a path"),
        ({"a": 3}, {}, '"a" is of type int; expected an rc.Stream'),
        ({}, {"rate": 0}, "must be a positive number of hertz"),
        ({}, {"rate": 1e-300}, "one step would be as long as"),
        ({}, {"most": 3}, "expected a number of at least 1000"),
        ({}, {"gap": -1.0}, "view: gap is -1.0; expected a positive number of seconds"),
        ({}, {"gap": "1"}, "view: gap is '1'; expected a positive number of seconds"),
        ({}, {"timeline": [1, 2]}, "expected an rc.Timeline"),
        ({"a.valid": np.zeros(3)}, {}, "no entry with .valid beside it"),
    ],
)
def test_wrong_arguments_are_sentences(what, options, sentence, tmp_path):
    with pytest.raises((TypeError, ValueError), match=sentence):
        rc.view(what, output=tmp_path / "x.rrd", **options)


def test_streams_on_two_clocks_are_refused(tmp_path):
    far = rc.Stream(np.zeros(3), np.arange(3) * PERIOD)
    with pytest.raises(ValueError, match="Are they on one clock"):
        rc.view({"joints": stream(), "far": far}, output=tmp_path / "x.rrd")


def test_unknown_streams_and_episodes_are_named(demo, tmp_path):
    with pytest.raises(KeyError, match=r'no stream "/imus"; near names: /imu'):
        rc.view(demo, streams=["/imus"], output=tmp_path / "x.rrd")
    with pytest.raises(ValueError, match="there is no episode 5"):
        rc.view(demo, episode=5, output=tmp_path / "x.rrd")
    found = read(rc.view(demo, streams="/imu", output=tmp_path / "x.rrd").path)
    assert {path for path in found.entities if path.startswith(("/raw", "/camera"))} == {"/raw/imu"}


def test_without_rerun_a_sentence_says_what_to_install(demo, tmp_path):
    program = "import sys; sys.modules['rerun'] = None\nfrom robocache.cli import main\nmain()"
    for words in (["view", str(demo)], ["info", str(demo)]):
        done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, cwd=tmp_path)
        if words[0] == "view":
            assert done.returncode == 1
            assert done.stderr == (
                "robocache view: robocache view needs Rerun (rerun-sdk), which is not installed: pip install "
                "'robocache[view]'\n"
            )
        else:
            assert done.returncode == 0, done.stderr  # and the rest works


# ---- The command


def command(*words, cwd):
    return subprocess.run([sys.executable, "-m", "robocache.cli", *words], capture_output=True, text=True, cwd=cwd)


def test_the_command_writes_a_view_and_says_how_to_open_it(demo, tmp_path):
    done = command("view", str(demo), "--rate", "20", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Wrote demo.rrd: " in done.stdout
    assert "rerun demo.rrd opens it where there is a display" in done.stdout.replace("\n", " ")
    line = read(tmp_path / "demo.rrd").entities["/aligned/imu"].times["recording"]
    assert np.diff(line).tolist() == [SECOND // 20] * (len(line) - 1)
    done = command("view", str(demo), "-o", "x.rrd", "--streams", "/imu,/gripper", "--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert (found["path"], found["is_open"], found["samples"]) == ("x.rrd", False, 806)


def test_the_command_takes_a_recipe_and_a_cache(demo, tmp_path):
    (tmp_path / "recipe.toml").write_text(log.RECIPE)
    done = command("view", str(demo), "-o", "x.rrd", "--recipe", "recipe.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = read(tmp_path / "x.rrd")
    assert {"/raw/joints", "/raw/wrist", "/camera/depth"} <= set(found.entities)
    assert command("build", str(demo), "-o", "cache", "--recipe", "recipe.toml", cwd=tmp_path).returncode == 0
    done = command("view", "cache", "-o", "y.rrd", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    cached = read(tmp_path / "y.rrd")
    for path in ("/raw/pose", "/aligned/pose", "/known/pose"):
        assert np.array_equal(found.entities[path].scalars(), cached.entities[path].scalars(), equal_nan=True)
    done = command("view", "cache", "--recipe", "recipe.toml", cwd=tmp_path)
    assert (done.returncode, "is a cache; --recipe" in done.stderr) == (1, True)


def test_progress_is_told_while_a_file_is_read_and_after(tmp_path):
    pictures = [camera_files.photo(k, 120, 160) for k in range(300)]  # 17 MB
    camera_files.write_images(tmp_path / "run.mcap", {"/side": ("rgb8", pictures)})
    seen = []
    rc.view(tmp_path / "run.mcap", output=tmp_path / "x.rrd", progress=lambda name, share: seen.append((name, share)))
    shares = [share for _, share in seen]
    assert shares == sorted(shares)
    assert 0 < shares[0] < 0.25
    assert shares[-1] == 1
    reading = [share for name, share in seen if name == "run.mcap"]
    assert len(reading) > 3
    assert reading[-1] == pytest.approx(0.5)
    after = []
    rc.view({"joints": stream()}, output=tmp_path / "x.rrd", progress=lambda name, share: after.append(share))
    assert after[0] == 0  # nothing is read


def test_bad_files_are_sentences(tmp_path):
    (tmp_path / "x.mcap").write_bytes(b"hello")
    done = command("view", "x.mcap", cwd=tmp_path)
    assert done.returncode == 1
    assert "not a known format" in done.stderr
    assert "Traceback" not in done.stderr
