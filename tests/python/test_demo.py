"""The demo does what it says: deterministic, figures, and errors well below those of the ways it is compared with."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import robocache as rc
from robocache._demo import arm, demo, file, log, scene
from robocache._demo import stages as demo_stages
from robocache._demo import voxels as demo_voxels


@pytest.fixture(scope="module")
def outcome():
    return demo.run()


@pytest.fixture(scope="module")
def voxels():
    return demo_voxels.run()


def test_the_recording_is_what_the_demo_says(outcome):
    streams = outcome.report["streams"]
    for name, rate in {"joints": 500, "camera": 30, "imu": 200, "pose": 100, "wrist": 25}.items():
        assert streams[name]["rate_hz"] == pytest.approx(rate, rel=0.02)
    assert streams["camera"]["dropped"] > 10
    assert len(streams["camera"]["gaps"]) == 1
    (died, end) = streams["imu"]["gaps"][0]
    assert died == pytest.approx(arm.IMU_DIES, abs=0.01)
    assert end == arm.DURATION
    assert streams["imu"]["valid_share"] == pytest.approx(0.5, abs=0.01)
    for whole in ("joints", "pose", "wrist", "gripper"):
        assert streams[whole]["valid_share"] == 1.0
    wrist = outcome.sensors["wrist"].values
    assert np.abs(wrist).max() <= np.pi
    assert (np.abs(np.diff(wrist[:, 0])) > np.pi).sum() >= 4


def test_the_truth_is_what_the_sensors_saw(outcome):
    for name, sensor in outcome.sensors.items():
        latency = arm.POSE_LATENCY if name == "pose" else 0.0
        seen, truth = sensor.values.astype(float), sensor.truth(arm.seconds(sensor.stamps) - latency)
        for quantity in sensor.quantities:
            worst = np.abs(quantity.error(seen, truth)).max()
            assert worst < 2e-3, f"{quantity.label}: {worst} {quantity.unit}"


# (quantity, way): how many times larger its RMS error is than ours, at least.
BEATS = {
    ("joints", "nearest index"): 1000,
    ("joints", "float32 epoch lerp"): 1000,
    ("joints", "float32 lerp"): 10,
    ("camera features", "nearest index"): 1000,
    ("camera features", "float32 lerp"): 10,
    ("imu", "nearest index"): 10,
    ("imu", "float32 epoch lerp"): 1000,
    ("pose: position", "float32 lerp"): 1000,
    ("pose: rotation", "float32 lerp"): 100,
    ("wrist angle", "nearest index"): 10,
    ("wrist angle", "float32 lerp"): 100,
}


@pytest.mark.parametrize(("quantity", "way"), BEATS)
def test_ours_is_closer_to_the_truth(outcome, quantity, way):
    error = outcome.report["errors"][quantity]["error"]
    assert error[way]["rms"] > BEATS[quantity, way] * error["robocache"]["rms"]


def test_ours_is_as_close_as_stated(outcome):
    worst = {label: entry["error"]["robocache"]["max"] for label, entry in outcome.report["errors"].items()}
    assert worst["joints"] < 1e-3  # mrad
    assert worst["pose: position"] < 1e-3  # mm
    assert worst["pose: rotation"] < 0.01  # degrees
    assert worst["wrist angle"] < 0.2  # degrees; a plain lerp is wrong by 180
    assert worst["gripper open"] == 0
    assert outcome.report["errors"]["wrist angle"]["error"]["float32 lerp"]["max"] > 90


def test_causal_sees_what_a_live_robot_held(outcome):
    causal = outcome.report["causal"]
    assert causal["equal_to_live_robot"] == outcome.report["targets"]
    assert causal["from_the_future"] > outcome.report["targets"] // 2


def test_the_reference_gives_the_same_bits(outcome):
    assert outcome.report["equal_to_reference"] is True


def test_it_is_deterministic(outcome):
    again = demo.run()
    assert demo.same_bits(outcome.aligned, again.aligned)
    assert demo.same_bits(outcome.causal, again.causal)
    assert again.report["errors"] == outcome.report["errors"]


@pytest.mark.parametrize("rate", [1.0, 33.3, 1000.0])
def test_any_rate_works(rate, voxels, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    outcome = demo.run(rate)
    assert len(outcome.aligned["pose"].values) == outcome.report["targets"]
    assert all(path.stat().st_size > 10_000 for path in demo.draw(outcome, voxels, tmp_path))


def test_the_cameras_are_as_they_say(voxels):
    recording = voxels.recording
    cameras, height, width = len(scene.CAMERAS), scene.HEIGHT, scene.WIDTH
    assert (recording.depth.shape, recording.depth.dtype) == ((cameras, height, width), np.uint16)
    assert (recording.colour.shape, recording.colour.dtype) == ((cameras, height, width, 3), np.uint8)
    for camera, depth, pose in zip(scene.CAMERAS, recording.depth, recording.poses, strict=True):
        assert set(depth[(depth == 0) | (depth == 65535)]) == {camera.none}
        assert 0.05 < (depth == camera.none).mean() < 0.4
        assert pose[:3, :3].T @ pose[:3, :3] == pytest.approx(np.eye(3), abs=1e-12)
        assert np.linalg.det(pose) == pytest.approx(1)
        assert (np.array([*(np.subtract(camera.target, camera.place)), 0]) @ pose)[:2] == pytest.approx(0, abs=1e-12)


def test_rays_end_on_the_surfaces_that_they_meet():
    """Two ways to the same geometry: where a ray meets a shape, and how far a point is from it."""
    rays = np.random.default_rng(0).normal((0, 0, -2), 0.1, (4000, 3))
    for shape in scene.surfaces():
        middle = np.array(shape.centre) if isinstance(shape, scene.Box) else shape.begin
        origin = middle + np.array([0, 0, 2])
        with np.errstate(divide="ignore", invalid="ignore"):
            met = shape.meet(origin, rays)
        hit = met < np.inf
        assert hit.sum() > 20
        points = origin + met[hit, None] * rays[hit]
        assert shape.distance(points) == pytest.approx(0, abs=1e-9)
        assert (shape.normal(points) * rays[hit]).sum(axis=1).max() < 1e-9  # it is met from outside
        assert shape.distance(points + 0.01 * shape.normal(points)) == pytest.approx(0.01, abs=1e-9)
        along = origin + np.linspace(0, 1, 50)[:, None, None] * np.where(hit, met, 3)[:, None] * rays
        assert shape.distance(along).min() > -1e-9  # and nowhere before


def test_voxels_lie_on_the_true_surfaces(voxels):
    count, voxel = voxels.count, demo_voxels.VOXEL
    assert voxels.report["voxels_from_a_surface"] < 1.2  # half a diagonal, 0.87, and noise
    x, y = (np.array([0.75, -0.45]) - demo_voxels.GRID.origin[:2]) // voxel  # a bare place of the table
    assert count[int(x), int(y)].argmax() == 0
    ball = next(shape for shape in scene.surfaces() if shape.colour == (0.85, 0.2, 0.16))
    top = ball.begin + np.array([0, 0, ball.radius - voxel / 4])
    red, green, blue = voxels.colour[tuple(((top - demo_voxels.GRID.origin) // voxel).astype(int))]
    assert red > 180
    assert max(green, blue) < 60
    assert not voxels.colour[count == 0].any()


def test_only_faces_that_can_be_seen_are_drawn_the_nearest_last():
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from robocache._demo import voxels_figure

    count, colour = np.zeros((4, 4, 4), np.int32), np.zeros((4, 4, 4, 3), np.float32)
    count[1:3, 1:3, 1:3] = 1
    colour[2, 1, 2] = 255  # the corner that is nearest
    corners, colours = voxels_figure.visible_faces(count, colour)
    assert corners.shape == (3 * 4, 4, 2)
    assert (colours[-3:] > 0.8).all()
    assert not colours[:-3].any()


def test_every_pixel_is_accounted_for(voxels):
    cameras = voxels.report["cameras"].values()
    assert all(camera["not_finite"] == camera["cropped"] == 0 for camera in cameras)
    assert voxels.count.sum() == voxels.report["points"] == sum(camera["in_the_grid"] for camera in cameras)
    for number, camera in enumerate(cameras):
        assert camera["no_reading"] == np.isin(voxels.recording.depth[number], (0, 65535)).sum()
    assert voxels.report["let_in_by_truncation"] > 100


def test_the_voxels_have_the_same_bits_each_time_and_from_the_reference(voxels):
    assert voxels.report["equal_to_reference"] is True
    again = demo_voxels.run()
    assert again.count.tobytes() == voxels.count.tobytes()
    assert again.colour.tobytes() == voxels.colour.tobytes()


@pytest.fixture(scope="module")
def stages(outcome, tmp_path_factory):
    return demo_stages.run(tmp_path_factory.mktemp("demo"), outcome.sensors, outcome.timeline)


def test_through_the_log_nothing_changes(outcome, stages):
    """MCAP, CDR, recipe and cache: what is aligned behind them has the bits of what never left memory."""
    assert set(stages.aligned) == set(outcome.aligned)
    for name, aligned in outcome.aligned.items():
        for mine, other in zip(aligned, stages.aligned[name], strict=True):
            assert np.asarray(mine).tobytes() == np.asarray(other).tobytes(), name
    assert stages.report["again"] == "unchanged"


def test_the_sync_report_finds_what_was_built_in(stages):
    streams = stages.sync.streams
    assert (streams["/camera/features"].gaps, streams["/imu"].level) == (1, "bad")
    assert streams["/imu"].ends_before_s == pytest.approx(arm.DURATION - arm.IMU_DIES, abs=0.05)
    assert (streams["/joint_states"].lost, streams["/tracker/pose"].lost) == (9, 3)
    assert not streams["/gripper"].regular
    assert streams["/camera/features"].offset_ms > 40
    assert stages.report["errors"]["joints"]["max"] < 1e-3
    assert stages.report["voxels_from_a_surface"] < 1.2


def test_the_recording_is_as_ros_writes_it(outcome, tmp_path):
    """The messages mean to mcap-ros2-support what was put into them."""
    reader = pytest.importorskip("mcap_ros2.reader", reason="mcap-ros2-support is not installed")
    messages = log.simulate(outcome.sensors)
    log.write(tmp_path / "demo.mcap", messages)
    seen = {}
    for message in reader.read_ros2_messages(str(tmp_path / "demo.mcap")):
        seen.setdefault(message.channel.topic, []).append(message.ros_msg)
    assert {topic: len(found) for topic, found in seen.items()}["/joint_states"] == 3989
    joints = outcome.sensors["joints"].values
    assert [float(np.float32(x)) for x in seen["/joint_states"][7].position] == joints[7].tolist()
    pose = seen["/tracker/pose"][3].pose.orientation
    assert [pose.x, pose.y, pose.z, pose.w] == outcome.sensors["pose"].values[3, 3:].tolist()
    assert seen["/depth/image"][0].encoding == "16UC1"
    assert seen["/depth/camera_info"][0].k[4] == log.DEPTH_INTRINSICS[1]
    assert len(seen["/depth/image"][0].data) == 2 * np.prod(log.DEPTH_SIZE)


def test_a_recording_of_one_s_own(outcome, tmp_path):
    pytest.importorskip("typer", reason="Typer is not installed")
    log.write(tmp_path / "mine.mcap", log.simulate({"joints": outcome.sensors["joints"]}))
    mine = (str(tmp_path / "mine.mcap"), "--output", str(tmp_path / "new"))
    answer = subprocess.run(command(*mine), capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stderr
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    assert (tmp_path / "new" / "recording.png").read_bytes().startswith(b"\x89PNG")
    for word in ("Sync report", "/joint_states", "From log to tensors", "align", "Next: robocache info", "--recipe"):
        assert word in answer.stdout
    assert "40 depth images in cells of" in answer.stdout
    answer = subprocess.run(command(str(tmp_path / "none.mcap")), capture_output=True, text=True, timeout=60)
    assert answer.returncode == 1
    assert "No such file" in answer.stderr


def test_clouds_of_one_s_own(tmp_path):
    random = np.random.default_rng(0)
    clouds = [random.normal(size=(500 + k, 3)).astype(np.float32) for k in range(20)]
    with rc.CacheWriter(tmp_path / "cache") as writer:
        stream = rc.Stream(clouds, np.arange(20) * 100_000_000, channels=["x", "y", "z"])
        writer.add({"/lidar": stream}, name="a")
    watch = demo_stages.Stopwatch()
    (said,) = file.voxelized(dict(rc.Cache(tmp_path / "cache").episodes[0].streams), watch)
    assert said.startswith("/lidar: 20 clouds in cells of")
    assert watch.rows["voxelize"]["pixels"] == sum(map(len, clouds))


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "robocache.cli", "demo", *arguments]


def test_the_command_tells_and_draws(tmp_path):
    pytest.importorskip("typer", reason="Typer is not installed")
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    answer = subprocess.run(command("--output", str(tmp_path / "new")), capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stderr
    for word in ("joints", "camera", "imu", "pose", "wrist", "gripper", "nearest index", "How to read it", "Next:"):
        assert word in answer.stdout
    for word in ("no reading", "outside", "in the grid", "left, 0 for none", "back, 65535 for none", "voxelize_depth"):
        assert word in answer.stdout
    assert " ".join(answer.stdout.split()).count("the same bits as the reference") == 2
    for name in ("demo.png", "scene.png"):
        figure = tmp_path / "new" / name
        assert str(figure) in answer.stdout.replace("\n", "")
        assert figure.read_bytes().startswith(b"\x89PNG")
        assert 20_000 < figure.stat().st_size < 200 * 1024


def test_the_command_speaks_json(tmp_path):
    pytest.importorskip("typer", reason="Typer is not installed")
    answer = subprocess.run(
        command("--json", "--rate", "20", "--output", str(tmp_path)), capture_output=True, text=True, timeout=60
    )
    assert answer.returncode == 0, answer.stderr
    report = json.loads(answer.stdout)
    assert report["rate_hz"] == 20
    assert report["align_us"] > 0
    assert report["backend"].startswith("cpu: ")
    assert report["voxels"]["voxelize_us"] > 0
    assert report["log"]["equal_to_memory"] is True
    assert set(report["log"]["stages"]) == {"record", "info", "build", "align", "voxelize"}
    assert set(report["voxels"]["cameras"]) == {"left", "right", "back"}


def test_with_numpy_alone_it_prints_plain_tables(tmp_path):
    """No torch, no Rich, no matplotlib: the numbers are the same, and it says what brings the figures."""
    code = (
        "import sys\n"
        "for name in ('torch', 'rich', 'matplotlib', 'PIL', 'rerun'): sys.modules[name] = None\n"
        "from pathlib import Path\n"
        "from robocache._demo import demo\n"
        f"demo.main(Path({str(tmp_path)!r}))\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stderr
    assert ".[demo]" in answer.stdout
    assert "No view of the log: pip install '.[view]'" in answer.stdout
    assert "wrist angle" in answer.stdout
    assert "no reading" in answer.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["demo.html"]  # the report needs no package


def test_it_ends_with_a_report_and_a_view_of_its_log(tmp_path):
    pytest.importorskip("rerun", reason="rerun-sdk is not installed")
    from rerun_files import read

    words = [sys.executable, "-m", "robocache.cli", "demo", "--output", str(tmp_path), "--rate", "10"]
    answer = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stderr
    assert f"View of the log: {tmp_path}/demo.rrd." in answer.stdout.replace("\n", " ")
    assert f"Report on the log, for a browser: {tmp_path}/demo.html" in answer.stdout.replace("\n", " ")
    assert "/tracker/pose" in (tmp_path / "demo.html").read_text()
    found = read(tmp_path / "demo.rrd")
    assert (found.entities["/raw/imu"].scalars()[:, -3:] != 0).any()
    assert len(found.entities["/camera/depth/image"].times["recording"]) == arm.DURATION * log.DEPTH_RATE


def test_torch_is_not_imported(tmp_path):
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from robocache._demo import demo\n"
        f"demo.main(Path({str(tmp_path)!r}))\n"
        "assert 'torch' not in sys.modules\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize("name", ["demo.png", "scene.png"])
def test_the_figures_in_the_documents_are_small(name):
    figure = Path(__file__).parents[2] / "docs" / "images" / name
    assert figure.stat().st_size < 150 * 1024


def test_float32_epoch_seconds_are_refused(outcome):
    """What the demo shows to be hopeless does not get in."""
    sensor = outcome.sensors["joints"]
    with pytest.raises(ValueError, match="float32"):
        rc.resample(sensor.values, (sensor.stamps * 1e-9).astype(np.float32), outcome.targets)
