"""rc.view of recordings in which something is missing or wrong: it shows the rest, and says what it does not show."""

import numpy as np
import pytest

import robocache as rc
from robocache._demo import arm, log

pytest.importorskip("rerun", reason="rerun-sdk is not installed")
import camera_files
from recordings import batch, made
from rerun_files import read

START = 1_700_000_000_000_000_000
PERIOD = 10_000_000


@pytest.fixture(autouse=True)
def no_display(monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)


def stamps(count):
    return START + np.arange(count) * PERIOD


def camera(pictures, **metadata):
    """JPEGs, as /arm/image."""
    about = {"format": "jpeg", "time": "stamp"} | metadata
    data = np.concatenate([np.zeros(0, np.uint8), *(np.frombuffer(each, np.uint8) for each in pictures)])
    lengths = [len(each) for each in pictures]
    return batch("/arm/image", data, stamps(len(pictures)), lengths=lengths, ragged=True, shape=(), metadata=about)


def depth(frames):
    """Depth images [N, H, W] in millimetres, as /arm/image."""
    count, height, width = frames.shape
    about = {"encoding": "16UC1", "height": str(height), "width": str(width), "step": str(2 * width), "time": "stamp"}
    data = np.ascontiguousarray(frames, "<u2").view(np.uint8).reshape(-1)
    lengths = [2 * height * width] * count
    return batch("/arm/image", data, stamps(count), lengths=lengths, ragged=True, shape=(), metadata=about)


def camera_info(focal=50.0, centre=(32.0, 24.0), size=(48, 64)):
    """The message that says how /arm/image looks at the world."""
    matrix = [focal, 0, centre[0], 0, focal, centre[1], 0, 0, 1]
    channels = ["height", "width", *(f"k[{k}]" for k in range(9))]
    return batch(
        "/arm/camera_info", [[*size, *matrix]], stamps(1), channels=channels, type="sensor_msgs/msg/CameraInfo"
    )


def numbers(count=50):
    return batch("/joints", np.sin(np.arange(count) / 9)[:, None], stamps(count))


def viewed(*batches, to):
    """What the view of these has written, and its notes."""
    found = rc.view(made(*batches), output=to / "x.rrd")
    return read(found.path), found.notes


# ---- Cameras


@pytest.mark.parametrize("damage", [b"no picture", b"", None])
def test_a_first_picture_that_is_damaged_hides_no_other(tmp_path, damage):
    pictures = [camera_files.encoded(camera_files.photo(k), "JPEG") for k in range(5)]
    pictures[0] = pictures[0][:300] if damage is None else damage
    found, _ = viewed(camera(pictures), camera_info(), numbers(), to=tmp_path)
    assert found.entities["/camera/arm/image"].blobs("EncodedImage:blob")[-4:] == pictures[1:]
    matrix = found.static["/camera/arm/image"]["Pinhole:image_from_camera"].to_pylist()[0][0]
    assert (matrix[0], matrix[6]) == (50, 32)
    assert "/raw/joints" in found.entities


def test_a_camera_of_damaged_pictures_is_a_note(tmp_path):
    pictures = [camera_files.encoded(camera_files.photo(k), "JPEG")[:300] for k in range(5)]
    found, notes = viewed(camera(pictures), camera_info(), numbers(), to=tmp_path)
    assert "Pinhole:image_from_camera" not in found.static.get("/camera/arm/image", {})
    assert any(note.startswith("/arm/image: not in 3D: /arm/image: image 0: ") for note in notes)
    assert "/raw/joints" in found.entities


def test_a_depth_image_that_is_damaged_hides_no_other(tmp_path):
    about = {"format": "16UC1; compressedDepth png"}
    pictures = [bytes(12) + camera_files.encoded(np.full((48, 64), 500 + k, np.uint16), "PNG") for k in range(4)]
    pictures[2] = pictures[2][:60]
    found, notes = viewed(camera(pictures, **about), camera_info(), numbers(), to=tmp_path)
    shown = found.entities["/camera/arm/image"]
    assert [np.frombuffer(each, np.uint16)[0] for each in shown.blobs("DepthImage:buffer")] == [500, 501, 503]
    assert shown.times["recording"].tolist() == stamps(4)[[0, 1, 3]].tolist()
    assert found.entities["/voxels/arm/image"].times["recording"].tolist() == stamps(4)[[0, 1, 3]].tolist()
    assert any(
        note.startswith("/arm/image: 1 of 4 pictures cannot be decoded: /arm/image: image 2: ") for note in notes
    )


@pytest.mark.parametrize("shape", [(8, 10, 3), (8, 10)])
def test_pictures_that_are_an_array_stand_in_3d_too(tmp_path, shape):
    dtype = np.uint8 if len(shape) == 3 else np.uint16
    pictures = batch("/arm/image", np.full((5, *shape), 200, dtype), stamps(5), channels=[], shape=shape)
    found, _ = viewed(pictures, camera_info(size=(8, 10), centre=(5, 4)), numbers(), to=tmp_path)
    assert found.static["/camera/arm/image"]["Pinhole:resolution"].to_pylist() == [[[10, 8]]]
    assert ("/voxels/arm/image" in found.entities) == (len(shape) == 2)


@pytest.mark.parametrize(
    "given", [{"focal": 1e-300}, {"focal": np.inf}, {"focal": np.nan}, {"focal": 0.0}, {"centre": (1e300, 0)}]
)
def test_intrinsics_that_cannot_be_are_left_out(tmp_path, given):
    found, _ = viewed(depth(np.full((3, 48, 64), 900)), camera_info(**given), numbers(), to=tmp_path)
    assert len(found.entities["/camera/arm/image"].blobs("DepthImage:buffer")) == 3
    assert "Pinhole:image_from_camera" not in found.static["/camera/arm/image"]


@pytest.mark.parametrize("fit", ["stretch", "cover", "contain"])
def test_frames_of_another_size_stand_where_the_camera_saw_them(tmp_path, fit):
    log.write(tmp_path / "demo.mcap", log.simulate({"joints": arm.record()["joints"]}))
    recorded = rc.open(tmp_path / "demo.mcap").streams["/depth/image"].samples[0]
    height, width = recorded.shape
    size = (round(height * 0.75), width // 2)
    cache, _ = camera_files.made(tmp_path / "demo.mcap", tmp_path / "cache", f"{size[0]}x{size[1]}", fit=fit)
    found = read(rc.view(cache, output=tmp_path / "x.rrd").path)
    matrix = np.array(found.static["/camera/depth/image"]["Pinhole:image_from_camera"].to_pylist()[0][0]).reshape(3, 3)
    across, down = {
        "stretch": (0.5, size[0] / height),
        "cover": (max(0.5, size[0] / height),) * 2,
        "contain": (min(0.5, size[0] / height),) * 2,
    }[fit]
    fx, fy, cx, cy = log.DEPTH_INTRINSICS
    assert (matrix[0, 0], matrix[1, 1]) == pytest.approx((fx * across, fy * down), rel=1e-5)
    # The pixel in the middle of the recorded image is the one in the middle of the frame.
    for k, (centre, full, half, scale) in enumerate(((cx, width, size[1], across), (cy, height, size[0], down))):
        assert matrix[2, k] == pytest.approx(half / 2 - 0.5 + scale * (centre - (full / 2 - 0.5)), abs=1e-3)


def test_cameras_and_clouds_without_samples_are_notes(tmp_path):
    cloud = batch(
        "/lidar", np.zeros((0, 3), np.float32), [], lengths=[], ragged=True, shape=(3,), channels=["x", "y", "z"]
    )
    found, notes = viewed(camera([]), camera_info(), cloud, numbers(), to=tmp_path)
    assert notes[:2] == [
        "/arm/image: nothing to draw: there is no sample",
        "/lidar: nothing to draw: there is no sample",
    ]
    assert "/raw/joints" in found.entities


# ---- Numbers and times


def test_times_that_decrease_are_refused_alone_and_beside_others(tmp_path):
    back = rc.Stream(np.arange(5.0), stamps(5)[::-1].copy())
    for streams in ({"back": back}, {"back": back, "joints": rc.Stream(np.arange(5.0), stamps(5))}):
        with pytest.raises(ValueError, match=r'stream "back": times\[1\] = \d+ is before times\[0\] = \d+'):
            rc.view(streams, output=tmp_path / "x.rrd")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [1e308, np.inf, np.nan, 5e-324])
def test_any_numbers_are_shown_without_a_warning(tmp_path, value):
    values = np.where(np.arange(50) % 2, value, -value)[:, None]
    found, _ = viewed(batch("/joints", values, stamps(50)), to=tmp_path)
    assert np.array_equal(found.entities["/raw/joints"].scalars(), values, equal_nan=True)
