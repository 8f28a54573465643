"""Pictures: one kind of answer whatever the encoding. The judge of JPEG and PNG is Pillow, of videos the planes that
PyAV decodes, converted to RGB by the formula of frame_oracle.py."""

import base64
import io
import itertools
import json
import os
import struct
import sys
import threading

import numpy as np
import pytest
from camera_files import encoded, photo, write_video
from frame_oracle import rgb_of_frame
from recordings import batch, made

import robocache as rc
from robocache import mcap
from robocache._recordings import video as _video
from robocache._recordings.images import is_colour

av = pytest.importorskip("av", reason="PyAV is not installed")

PATIENCE = 60  # seconds after which something hangs


def by_pillow(data):
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def stream_of(data, **about):
    """A stream of compressed images, as sensor_msgs/CompressedImage gives it."""
    rows = np.frombuffer(b"".join(data), np.uint8)
    options = {"lengths": [len(one) for one in data], "ragged": True, "shape": (), "metadata": about}
    return made(batch("/camera", rows, np.arange(len(data)) * 10, **options)).streams["/camera"]


@pytest.mark.parametrize(
    ("kind", "said", "options"),
    [
        ("JPEG", "jpeg", {"quality": 95, "subsampling": 0}),
        ("JPEG", "rgb8; jpeg compressed bgr8", {"quality": 95, "subsampling": 2}),
        ("JPEG", "png", {"quality": 95, "subsampling": 0, "progressive": True}),  # what it says is wrong
        ("PNG", "png", {}),
        ("BMP", "bmp", {}),
        ("WEBP", "webp", {"lossless": True}),
    ],
)
def test_compressed_images_are_decoded(tmp_path, kind, said, options):
    images = [photo(seed) for seed in range(3)]
    data = [encoded(image, kind, **options) for image in images]
    stream = stream_of(data, format=said)
    with rc.CacheWriter(tmp_path / "cache") as writer:
        writer.add({"/camera": stream})
    for samples in (stream.samples, rc.Cache(tmp_path / "cache").episodes[0].streams["/camera"].samples):
        for k in range(3):
            assert (samples[k].shape, samples[k].dtype) == ((48, 64, 3), np.uint8)
            np.testing.assert_array_equal(samples[k], by_pillow(data[k]))
            assert samples.as_stored(k).tobytes() == data[k]
        np.testing.assert_array_equal(samples[[2, 0]], [samples[2], samples[0]])


def test_gray_and_transparent_images_are_rgb_and_depth_is_depth():
    gray = photo()[..., 0]
    alpha = np.concatenate([photo(), photo()[..., :1]], axis=-1)
    depth = np.arange(48 * 64, dtype=np.uint16).reshape(48, 64) * 20
    data = [encoded(gray, "PNG"), encoded(alpha, "PNG"), encoded(depth, "PNG")]
    first, second, third = stream_of(data, format="png").samples[:]
    np.testing.assert_array_equal(first, np.stack([gray] * 3, axis=-1))
    np.testing.assert_array_equal(second, photo())
    np.testing.assert_array_equal(third, depth)
    assert third.dtype == np.uint16


def test_compressed_depth_is_depth():
    """As compressed_depth_image_transport writes it: a header, and a PNG of millimetres or of quantised inverses."""
    millimetres = np.arange(48 * 64, dtype=np.uint16).reshape(48, 64)
    whole = struct.pack("<iff", 0, 0, 0) + encoded(millimetres, "PNG")
    np.testing.assert_array_equal(stream_of([whole], format="16UC1; compressedDepth png").samples[0], millimetres)
    metres = np.linspace(0.5, 9.5, 48 * 64, dtype=np.float32).reshape(48, 64)
    metres[0, 0] = np.nan
    a, b = 100.0 * (100.0 + 1), 1 - (100.0 * (100.0 + 1)) / 10.0
    quantised = np.where(np.isnan(metres), 0, np.rint(a / np.nan_to_num(metres, nan=1) + b)).astype(np.uint16)
    packed = struct.pack("<iff", 0, a, b) + encoded(quantised, "PNG")
    found = stream_of([packed], format="32FC1; compressedDepth").samples[0]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, metres, rtol=0.01)
    assert not is_colour({"format": "16UC1; compressedDepth png"})


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\0\0\0\1\x67\x42", "cannot be decoded: it is not a JPEG, PNG, BMP or WebP"),
        (b"#EXTM3U\nhttp://127.0.0.1/x.ts\n", "it is not a JPEG"),  # FFmpeg would take it for a playlist, and fetch it
        (b"", "it is not a JPEG"),
        (b"\xff\xd8\xff\xe0 no more", "cannot be decoded"),
        (b"\x89PNG\r\n\x1a\n" + bytes(40), "cannot be decoded"),
    ],
)
def test_images_that_cannot_be_decoded_get_a_sentence(data, said):
    samples = stream_of([data], format="h264").samples
    with pytest.raises(rc.FileError, match=rf"^/camera: image 0: an image of the format 'h264' .*{said}"):
        samples[0]
    assert samples.as_stored(0).tobytes() == data


def test_a_bomb_is_refused():
    """A PNG that says it is 60,000 x 60,000."""
    import zlib

    def piece(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    size = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    bomb = (
        b"\x89PNG\r\n\x1a\n" + piece(b"IHDR", size) + piece(b"IDAT", zlib.compress(bytes(1000))) + piece(b"IEND", b"")
    )
    with pytest.raises(rc.FileError, match="cannot be decoded"):
        stream_of([bomb], format="png").samples[0]


def test_images_without_a_decoder_get_a_sentence(monkeypatch):
    data = encoded(photo(), "PNG")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ModuleNotFoundError, match=r"image 0: decoding an image needs Pillow.*robocache\[video\]"):
        stream_of([data], format="png").samples[0]


# ---- Videos


def truth_of(path, count):
    with av.open(str(path)) as container:
        frames = itertools.islice(container.decode(video=0), count)
        return [rgb_of_frame(frame) for frame in frames]


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    """A data set of two episodes of 40 frames, every one of them different."""
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from robocache._export.lerobot import Feature, LeRobotWriter

    root = tmp_path_factory.mktemp("video") / "set"
    features = {"action": Feature("float32", (1,)), "camera": Feature("video", (48, 64, 3))}
    with LeRobotWriter(root, fps=10, features=features) as writer:
        for episode in range(2):
            frames = (photo(0.3 * (k + 40 * episode)) for k in range(40))
            writer.add({"action": np.arange(40)[:, None]}, "look", {"camera": frames})
    return root


def frames_of(root, episode):
    return rc.open(root).episodes[episode].streams["camera"].samples


def test_frames_in_any_order_are_those_of_the_whole_video(video):
    frames = frames_of(video, 1)
    truth = truth_of(frames.file, 40)
    assert not any(np.array_equal(a, b) for a, b in itertools.pairwise(truth))
    orders = [range(40), range(39, -1, -1), np.random.default_rng(1).integers(0, 40, 60), [5, 5, 5, 6, 6, 39, 0, 39]]
    for order in orders:
        for k in order:
            np.testing.assert_array_equal(frames[int(k)], truth[k])
        found = frames[list(map(int, order))]
        for image, k in zip(found, order, strict=True):
            np.testing.assert_array_equal(image, truth[k])
        assert len({image.ctypes.data for image in found}) == len(found)  # nobody else's array
    np.testing.assert_array_equal(frames[3:30:4], truth[3:30:4])


@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("mpeg2video", {"bf": "2"}),
        ("libx264", {"x264-params": "open-gop=1:bframes=3"}),
        ("libx264", {"x264-params": "intra-refresh=1"}),
        ("libx264", {"x264-params": "intra-refresh=1:keyint=8:bframes=0"}),  # recovery points, and no second key frame
        ("libx265", {"x265-params": "open-gop=1:log-level=none"}),
    ],
)
def test_frames_that_need_others_from_before_a_key_frame_are_found(codec, options, tmp_path):
    """After a seek FFmpeg gives no such frames: decoding must begin further back."""
    path = tmp_path / "open.mp4"
    write_video(path, (photo(0.3 * k) for k in range(40)), codec=codec, options=options)
    truth = truth_of(path, 40)
    for threads in (1, 2):
        decoder = _video.VideoDecoder(str(path), 10.0, threads)
        for number in [*range(39, -1, -1), *range(40)]:
            np.testing.assert_array_equal(decoder.decode([number])[number], truth[number])
        assert decoder.decode([40, 57]) == {}
        decoder.close()


def test_a_video_stays_open(video, monkeypatch):
    opened = []
    monkeypatch.setattr(
        av, "open", lambda *given, real=av.open, **more: (opened.append(given), real(*given, **more))[1]
    )
    monkeypatch.setattr(_video, "decoders", type(_video.decoders)())
    for _ in range(2):
        frames = frames_of(video, 0)
        for k in range(40):
            frames[k]
    assert len(opened) == 1


def test_a_decode_that_ctrl_c_ended_can_be_done_again(video):
    frames = frames_of(video, 0)
    truth = truth_of(frames.file, 40)
    np.testing.assert_array_equal(frames[3], truth[3])
    (decoder,) = [found for found in _video.decoders.values() if found.path == frames.file]

    def interrupted():
        raise KeyboardInterrupt
        yield

    decoder._frames = interrupted()
    with pytest.raises(KeyboardInterrupt):
        frames[4]
    np.testing.assert_array_equal(frames[4], truth[4])  # and not "the video has no frame 4"
    np.testing.assert_array_equal(frames[5], truth[5])


def test_a_video_that_is_replaced_is_opened_again(video, tmp_path):
    import shutil

    shutil.copytree(video, tmp_path / "set")
    frames = frames_of(tmp_path / "set", 0)
    before = frames[3]
    from robocache._export.lerobot import Feature, LeRobotWriter

    features = {"action": Feature("float32", (1,)), "camera": Feature("video", (48, 64, 3))}
    with LeRobotWriter(tmp_path / "other", fps=10, features=features) as writer:
        writer.add({"action": np.arange(40)[:, None]}, "look", {"camera": (photo(5 + k) for k in range(40))})
    file = next((tmp_path / "other").rglob("*.mp4"))
    os.replace(file, frames.file)
    np.testing.assert_array_equal(frames[3], truth_of(frames.file, 4)[3])
    assert not np.array_equal(frames[3], before)


def test_many_videos_are_not_all_kept_open(video, tmp_path):
    import shutil

    for k in range(_video.MOST_OPEN + 3):
        shutil.copy(next(video.rglob("*.mp4")), tmp_path / f"{k}.mp4")
        assert _video.decode(str(tmp_path / f"{k}.mp4"), [7], 10.0)[7].shape == (48, 64, 3)
    assert len(_video.decoders) == _video.MOST_OPEN


def test_threads_share_a_video(video):
    frames = frames_of(video, 0)
    truth = truth_of(frames.file, 40)
    wrong, begin = [], threading.Barrier(8)

    def work(seed):
        begin.wait()
        for k in np.random.default_rng(seed).integers(0, 40, 30).tolist():
            if not np.array_equal(frames[k], truth[k]):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong


def in_child(work):
    """What a forked child finds; a child that hangs is killed, and fails the test."""
    import signal
    import time

    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            answer = work()
            os.write(writing, json.dumps(answer).encode())
        except BaseException as error:
            os.write(writing, json.dumps(repr(error)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    deadline = time.monotonic() + PATIENCE
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail("the child hangs")
        time.sleep(0.02)
    with os.fdopen(reading, "rb") as pipe:
        return json.loads(pipe.read())


def test_frames_are_decoded_in_a_forked_child(video):
    frames = frames_of(video, 0)
    truth = truth_of(frames.file, 40)  # PyAV's own converter of this thread, with threads
    frames[3], frames[4]
    png = stream_of([encoded(photo(), "PNG")], format="png").samples
    png[0]

    def work():
        import gc

        same = [bool(np.array_equal(frames[k], truth[k])) for k in (4, 5, 20, 3)]
        same.append(bool(np.array_equal(png[0], photo())))
        _video.decoders.clear()
        gc.collect()  # what the parent had open is not closed here: its threads are not here
        return same

    assert in_child(work) == [True] * 5
    assert in_child(lambda: in_child(work)) == [True] * 5
    np.testing.assert_array_equal(frames[5], truth[5])


def test_a_fork_while_another_thread_decodes(video):
    frames = frames_of(video, 0)
    truth = truth_of(frames.file, 40)
    stop = threading.Event()

    def work():
        k = 0
        while not stop.is_set():
            frames[k % 40]
            k += 7

    threads = [threading.Thread(target=work, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            assert in_child(lambda: [bool(np.array_equal(frames[k], truth[k])) for k in (0, 31)]) == [True, True]
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)


class Windows:
    """A data set of torch's, of frames of a video."""

    def __init__(self, frames):
        self.frames = frames

    def __len__(self):
        return len(self.frames)

    def __getitem__(self, k):
        return self.frames[k]


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_workers_of_a_data_loader_decode_frames(video, start):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    frames = frames_of(video, 0)
    truth = truth_of(frames.file, 40)
    frames[0]  # the parent has decoded
    loader = torch.utils.data.DataLoader(
        Windows(frames),
        batch_size=4,
        num_workers=2 if start == "fork" else 1,
        multiprocessing_context=start,
        timeout=PATIENCE,
    )
    found = np.concatenate([batch.numpy() for batch in loader])
    np.testing.assert_array_equal(found, truth)


# ---- Foxglove's images in JSON


def write_json(path, schema, messages):
    with mcap.Writer(path) as writer:
        channel = writer.add_channel("/camera", "json", writer.add_schema(schema, "jsonschema", "{}"))
        for k, message in enumerate(messages):
            data = message if isinstance(message, bytes) else json.dumps(message).encode()
            writer.write(channel, data, log_time=5_000_000_000 + k)


def test_foxglove_compressed_images_in_json_are_read(tmp_path):
    data = [encoded(photo(seed), "PNG") for seed in range(4)]
    texts = [base64.b64encode(one).decode() for one in data]
    messages = [
        {"timestamp": {"sec": k + 1, "nsec": 7}, "frame_id": "left", "data": text, "format": "png"}
        for k, text in enumerate(texts)
    ]
    messages[2] = dict(reversed(messages[2].items())) | {"other": {"data": "no", "sec": 3}, "list": [{"sec": 9}]}
    messages[3]["data"] = texts[3].rstrip("=")
    write_json(tmp_path / "run.mcap", "foxglove.CompressedImage", messages)
    stream = rc.open(tmp_path / "run.mcap").streams["/camera"]
    assert stream.times.tolist() == [k * 1_000_000_000 + 7 for k in (1, 2, 3, 4)]
    assert (stream.info.metadata["format"], stream.info.metadata["frame_id"]) == ("png", "left")
    for k in range(4):
        assert stream.samples.as_stored(k).tobytes() == data[k]
        np.testing.assert_array_equal(stream.samples[k], photo(k))
    found = rc.sync_report(rc.open(tmp_path / "run.mcap")).streams["/camera"]
    assert found.samples == 4


def test_foxglove_raw_images_in_json_are_read(tmp_path):
    image = photo()
    message = {
        "timestamp": {"sec": 1, "nsec": 0},
        "frame_id": "",
        "width": 64,
        "height": 48,
        "encoding": "bgr8",
        "step": 192,
        "data": base64.b64encode(image[..., ::-1].tobytes()).decode(),
    }
    write_json(tmp_path / "run.mcap", "foxglove.RawImage", [message])
    np.testing.assert_array_equal(rc.open(tmp_path / "run.mcap").streams["/camera"].samples[0], image)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"data": "****"}, "the data of an image is not base64"),
        ({"data": "AAAAA"}, "the data of an image is not base64"),
        ({"data": "AA==AA=="}, "the data of an image is not base64"),
        ({"format": "png"}, "an image has no data"),
        (b'{"data": "AAAA', "a message is not JSON after byte"),
        ([1, 2], "an image has no data"),
    ],
)
def test_broken_images_in_json_are_told(tmp_path, message, said):
    good = {"timestamp": {"sec": 1, "nsec": 0}, "data": base64.b64encode(b"abcd").decode(), "format": "png"}
    write_json(tmp_path / "run.mcap", "foxglove.CompressedImage", [good, message, good])
    recording = rc.open(tmp_path / "run.mcap")
    assert [one.tobytes() for one in map(recording.streams["/camera"].samples.as_stored, range(2))] == [b"abcd"] * 2
    assert any("1 broken message left out" in note and said in note for note in recording.notes)
