"""Frames of cameras where something is wrong: damaged pictures and videos, bad options. Pieces of videos; commands."""

import json
import os
import shutil
import subprocess
import sys
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

import robocache as rc
from robocache._cache import pieces as _pieces
from robocache._cache.build import build
from robocache._cache.camera_table import cameras_in
from robocache._cache.recipe import load_recipe
from robocache._recordings import video as _video
from robocache._recordings.frame_options import FrameOptions

typer_testing = pytest.importorskip("typer.testing", reason="Typer is not installed")
pytest.importorskip("PIL", reason="Pillow is not installed")


def robocache(*arguments):
    from robocache.cli.commands import application

    return typer_testing.CliRunner().invoke(application, list(map(str, arguments)))


def test_a_video_with_too_few_frames_is_told(tmp_path):
    root = video_set(tmp_path / "set", (6, 9))
    file, numbers = videos_of(root)[1]
    first, _ = videos_of(root)[0]
    shorter = tmp_path / "shorter.mp4"
    write_video(shorter, (photo(0.3 * (6 + k)) for k in range(7)))
    assert first != file
    shutil.copy(shorter, file)
    cache, found = made(root, tmp_path / "cache")
    (note,) = [note for note in found["sources"][0]["notes"] if "could not be decoded" in note]
    assert note == (
        f'stream "{CAMERA}": 2 frames of episode episode-1 could not be decoded: {file}: of the frames 0 to 8 that the '
        "episode names, the video lacks 2: 7 to 8"
    )
    stream = cache.episodes[1].streams[CAMERA]
    assert len(stream.samples.rows) == 7
    assert len(stream.samples) == 9
    truth = decoded_by_pyav(file, numbers[:7])
    np.testing.assert_array_equal(stream.samples[6], frame_of(truth[6], (20, 24)))
    with (
        pytest.warns(UserWarning, match="has no frame of some samples"),
        pytest.raises(rc.FileError, match="no frame 7"),
    ):
        stream.samples[7]
    metadata = cache.episodes[1]._info(f"{CAMERA}/frames").metadata
    assert (metadata["lost"], metadata["damage"]) == ("2", note.split("could not be decoded: ")[1])
    assert "lost" not in cache.episodes[0]._info(f"{CAMERA}/frames").metadata
    assert "lost" in robocache("info", tmp_path / "cache").output
    assert rc.verify_cache(tmp_path / "cache").problems == []


def test_a_video_with_more_frames_than_times_is_told(tmp_path):
    root = video_set(tmp_path / "set", (6,))
    ((file, _),) = videos_of(root)
    write_video(file, (photo(0.3 * k) for k in range(9)))
    _, found = made(root, tmp_path / "cache")
    assert (
        f"{file}: has 9 frames, and the episodes name those up to 5: the last 3 are not used"
        in found["sources"][0]["notes"]
    )


@pytest.mark.parametrize("keep", ["both", "frames"])
def test_frames_before_a_damage_are_kept_and_later_episodes_too(tmp_path, keep):
    root = video_set(tmp_path / "set", (40, 6))
    file, numbers = videos_of(root)[0]
    write_video(file, (photo(0.3 * k, 48, 64) for k in range(40)), codec="mjpeg", container="mkv", pix_fmt="yuvj420p")
    truth = [frame_of(image, (20, 24)) for image in decoded_by_pyav(file, numbers)]
    data = bytearray(Path(file).read_bytes())
    starts = [k for k in range(len(data) - 2) if data[k : k + 3] == b"\xff\xd8\xff"]
    assert len(starts) == 40
    data[starts[25] : starts[26] - 40] = bytes(starts[26] - 40 - starts[25])  # the picture is gone
    Path(file).write_bytes(data)
    cache, found = made(root, tmp_path / "cache", keep=keep)
    (note,) = [note for note in found["sources"][0]["notes"] if "could not be decoded" in note]
    assert f'stream "{CAMERA}": 15 frames of episode episode-0 could not be decoded: {file}: ' in note
    rows = cache.episodes[0].streams[CAMERA].samples.rows
    np.testing.assert_array_equal(rows, truth[:25])
    assert len(cache.episodes[1].streams[CAMERA].samples.rows) == 6
    assert cache.episodes[0].samples == {"action": 40, CAMERA: 40 if keep == "both" else 25}


def damaged_at(path, packet, data):
    """Overwrites the end of a packet of a video with these bytes, again and again."""
    av = pytest.importorskip("av", reason="PyAV is not installed")
    with av.open(str(path)) as container:
        place, size = [(each.pos, each.size) for each in container.demux(video=0) if each.size][packet]
    content = bytearray(Path(path).read_bytes())
    begin = place if data == b"\0" else place + size // 3
    content[begin : place + size] = (data * size)[: place + size - begin]
    Path(path).write_bytes(content)


def test_frames_that_the_decoder_holds_back_before_a_damage_are_kept(tmp_path):
    """Packet 25 is frame 28, which comes before frames 25 to 27. When it fails the decoder still holds frames back."""
    root = video_set(tmp_path / "set", (40, 6))
    file, numbers = videos_of(root)[0]
    order = {"x264-params": "keyint=20:min-keyint=20:scenecut=0:bframes=3:b-adapt=0:b-pyramid=none"}
    write_video(file, (photo(0.3 * k) for k in range(40)), options=order)
    images = decoded_by_pyav(file, numbers)
    damaged_at(file, 25, b"\0")
    cache, found = made(root, tmp_path / "cache")
    assert any("15 frames of episode episode-0 could not be decoded" in note for note in found["sources"][0]["notes"])
    samples = cache.episodes[0].streams[CAMERA].samples
    np.testing.assert_array_equal(samples.rows, [frame_of(image, (20, 24)) for image in images[:25]])
    for k in (24, 3, 23):
        np.testing.assert_array_equal(samples.source[k], images[k])
    for k in (25, 28, 39):  # a key frame begins anew, and the second is frame 20
        with pytest.raises(rc.FileError, match="cannot be decoded as a video"):
            samples.source[k]


def test_pieces_of_a_video_begin_at_key_frames(tmp_path, monkeypatch):
    monkeypatch.setattr(_pieces, "TASK_PICTURES", 7)
    ((file, numbers),) = videos_of(video_set(tmp_path / "set", (45,)))  # every second frame is a key frame
    pieces = _pieces.Pieces(file, 10.0)
    assert pieces.are_useful()
    rows = list(pieces.rows_of(numbers))
    assert [row for piece in rows for row in piece] == list(range(45))
    assert {len(piece) for piece in rows[:-1]} == {6}
    skipping = list(pieces.rows_of(numbers[1::2]))  # without key frames
    assert [row for piece in skipping for row in piece] == list(range(22))
    assert max(map(len, skipping)) == 7
    pieces.close()


@pytest.mark.parametrize("distance", [2, 5])
def test_frames_by_pieces_are_those_of_one_decoder(tmp_path, monkeypatch, distance):
    root = video_set(tmp_path / "set", (40, 31))
    for number, (file, _) in enumerate(videos_of(root)):
        options = {"x264-params": f"keyint={distance}:min-keyint=1:bframes=2:scenecut=0:open-gop={number}"}
        write_video(file, (photo(0.3 * k + number) for k in range((40, 31)[number])), options=options)
    by_pieces, found = made(root, tmp_path / "pieces")
    useful = [_pieces.Pieces(file, 10.0).are_useful() for file, _ in videos_of(root)]
    assert useful[0]
    monkeypatch.setattr(_pieces.Pieces, "are_useful", lambda self: False)
    by_one, wanted = made(root, tmp_path / "one")
    for one, other in zip(by_pieces.episodes, by_one.episodes, strict=True):
        np.testing.assert_array_equal(one.streams[CAMERA].samples.rows, other.streams[CAMERA].samples.rows)
        assert one._info(f"{CAMERA}/frames").metadata == other._info(f"{CAMERA}/frames").metadata
    assert found["sources"][0]["notes"] == wanted["sources"][0]["notes"]


@pytest.mark.parametrize("packet", [0, 1, 19, 24, 39])
@pytest.mark.parametrize("data", [b"\0", b"\x5a\xc3\x99"])
def test_a_damage_loses_the_same_frames_by_pieces_as_by_one_decoder(tmp_path, monkeypatch, packet, data):
    root = video_set(tmp_path / "set", (40, 6))
    file, _ = videos_of(root)[0]
    damaged_at(file, packet, data)
    by_pieces, found = made(root, tmp_path / "pieces")
    monkeypatch.setattr(_pieces.Pieces, "are_useful", lambda self: False)
    # One thread: with more, FFmpeg sometimes gives out a damaged frame before it marks it.
    monkeypatch.setattr("robocache._cache.framed.most_threads", 1)
    by_one, wanted = made(root, tmp_path / "one")
    assert found["sources"][0]["notes"] == wanted["sources"][0]["notes"]
    if data == b"\0":  # of another damage the decoder may notice nothing
        assert any("could not be decoded" in note for note in wanted["sources"][0]["notes"])
    for one, other in zip(by_pieces.episodes, by_one.episodes, strict=True):
        np.testing.assert_array_equal(one.streams[CAMERA].samples.rows, other.streams[CAMERA].samples.rows)
        assert one._info(f"{CAMERA}/frames").metadata == other._info(f"{CAMERA}/frames").metadata


LOGGED = """
import sys
import av
from robocache import FileError
from robocache._recordings.video import open_pass

path = sys.argv[1]
with av.open(path) as file:
    packets = [(packet.pos, packet.size) for packet in file.demux(video=0) if packet.pts is not None]
whole = open(path, "rb").read()
av.logging.set_level(av.logging.PANIC)
for place, size in packets[3:25]:
    with open(path, "wb") as file:
        file.write(whole[:place] + bytes(size) + whole[place + size:])
    video = open_pass(path, 10.0, 4)
    try:
        for number in range(30):
            video.picture(number)
    except FileError:
        pass
    video.close()
print(av.logging.get_level() == av.logging.PANIC)
"""


def test_a_damaged_video_does_not_hang_where_ffmpeg_logs_to_python(tmp_path):
    """FFmpeg's threads wait for the interpreter in order to log, and closing the video waits for them."""
    ((file, _),) = videos_of(video_set(tmp_path / "set", (30,)))
    done = subprocess.run([sys.executable, "-c", LOGGED, file], capture_output=True, text=True, timeout=120)
    assert done.stdout == "True\n", done.stderr[-2000:]


def test_frames_that_are_made_from_a_damaged_one_are_refused(tmp_path):
    """FFmpeg conceals a damage: the frame is marked, and those behind it, which are made from it, are not."""
    av = pytest.importorskip("av", reason="PyAV is not installed")
    root = video_set(tmp_path / "set", (40, 6))
    file, numbers = videos_of(root)[0]
    write_video(file, (photo(0.3 * k) for k in range(40)), codec="mpeg4", options={"bf": "0"})
    images = decoded_by_pyav(file, numbers)
    damaged_at(file, 22, b"\x5a\xc3\x99")
    with av.open(file) as container:
        marked = [k for k, frame in enumerate(container.decode(video=0)) if frame.is_corrupt]
    if marked != [22]:
        pytest.skip("this FFmpeg does not mark the frame")
    cache, found = made(root, tmp_path / "cache")
    assert any("frame 22 is damaged" in note for note in found["sources"][0]["notes"])
    samples = cache.episodes[0].streams[CAMERA].samples
    np.testing.assert_array_equal(samples.rows, [frame_of(image, (20, 24)) for image in images[:22]])
    for k in (22, 24, 23):
        with pytest.raises(rc.FileError, match="frame 22 is damaged"):
            samples.source[k]
    with pytest.raises(rc.FileError, match="frame 22 is damaged, and frame 24 is made from it"):
        _video.VideoDecoder(file, 10.0).picture(24)
    for k in (21, 26, 39):
        np.testing.assert_array_equal(samples.source[k], images[k])


def test_a_damaged_still_is_left_out_and_those_behind_it_are_kept(tmp_path):
    images = [encoded(photo(k), "JPEG") for k in range(6)]
    images[2] = images[2][:200]
    path = write_images(tmp_path / "a.mcap", {"/camera": ("jpeg", images)})
    cache, found = made(path, tmp_path / "cache")
    notes = found["sources"][0]["notes"]
    assert any(
        'stream "/camera": 1 frame of episode a could not be decoded: /camera: the image at' in note for note in notes
    )
    samples = cache.episodes[0].streams["/camera"].samples
    assert (len(samples), len(samples.rows)) == (6, 5)
    for k in (0, 1, 3, 4, 5):
        np.testing.assert_array_equal(samples[k], frame_of(seen_in("jpeg", images[k]), (20, 24)))
    told = pytest.warns(UserWarning, match="has no frame of some samples")
    with told, pytest.raises(rc.FileError, match="cannot be decoded"):
        samples[2]


def test_a_damaged_still_is_told_in_the_same_words_each_time(tmp_path):
    """The cache keeps them, and those of many pictures are told once. Pillow's have an address in memory."""
    path = write_images(tmp_path / "a.mcap", {"/c": ("jpeg", [encoded(photo(), "JPEG")] + 2 * [b"\xff\xd8\xff\xe0"])})
    said = [made(path, tmp_path / name)[0].episodes[0]._info("/c/frames").metadata["damage"] for name in "ab"]
    assert said[0] == said[1]
    assert "an image of the format 'jpeg' cannot be decoded: its 4 bytes are no whole JPEG" in said[0]


def test_pictures_of_one_stamp_are_not_taken_for_each_other(tmp_path):
    stills = [encoded(photo(k), "PNG") for k in range(3)]
    pictures = [stills[0], stills[1][:60], stills[2]]
    path = write_images(tmp_path / "a.mcap", {"/c": ("png", pictures)}, rate=1e10)  # all at the same nanosecond
    stream = made(path, tmp_path / "cache")[0].episodes[0].streams["/c"]
    assert len(set(stream.times.tolist())) == 1
    with pytest.warns(UserWarning, match="has no frame of some samples"), pytest.raises(rc.FileError, match="image 1"):
        stream.samples[1]
    for k in (0, 2):
        np.testing.assert_array_equal(stream.samples[k], frame_of(photo(k), (20, 24)))


def test_a_video_of_an_unknown_codec_is_told_and_the_others_have_frames(tmp_path):
    root = video_set(tmp_path / "set", (5, 6))
    (file, _), _ = videos_of(root)
    data = Path(file).read_bytes()
    assert data.count(b"avc1") >= 1
    Path(file).write_bytes(data.replace(b"avc1", b"zzz9"))
    cache, found = made(root, tmp_path / "cache")
    (note,) = [note for note in found["sources"][0]["notes"] if "could not be decoded" in note]
    assert note.startswith(f'stream "{CAMERA}": 5 frames of episode episode-0 could not be decoded: {file}: cannot be')
    assert "has no decoder of its codec" in note
    assert [len(episode.streams[CAMERA].samples.rows) for episode in cache.episodes] == [0, 6]
    (camera,) = cameras_in(cache)
    assert (camera.samples, camera.lost) == (6, 5)
    with pytest.raises(rc.FileError, match="has no decoder of its codec"), pytest.warns(UserWarning, match="no frame"):
        cache.episodes[0].streams[CAMERA].samples[2]
    assert found["frames"]["pictures"] == 11  # the second episode says what a picture costs
    assert found["frames"]["bytes"] == 11 * 20 * 24 * 3


@pytest.mark.parametrize("keep", ["both", "frames"])
def test_what_was_lost_of_a_camera_is_marked_if_nothing_of_it_can_be_decoded(tmp_path, keep):
    root = video_set(tmp_path / "set", (5, 6))
    for file, _ in videos_of(root):
        Path(file).write_bytes(b"no video" * 99)
    cache, found = made(root, tmp_path / "cache", keep=keep)
    assert found["frames"]["cameras"] == [CAMERA]
    assert [len(episode.streams[CAMERA].samples.rows) for episode in cache.episodes] == [0, 0]
    (camera,) = cameras_in(cache)
    assert (camera.samples, camera.lost, camera.kept) == (0, 11, keep)
    aligned = cache.align(rate=10)
    assert aligned[CAMERA].valid.any() == (keep == "both")
    rc.export(cache, tmp_path / "out", rate=10, format="safetensors", streams=["action"])
    assert rc.verify_cache(tmp_path / "cache").problems == []


def test_a_set_without_its_video_is_told(tmp_path):
    root = video_set(tmp_path / "set", (5,))
    ((file, _),) = videos_of(root)
    os.remove(file)
    found = build([str(root)], tmp_path / "cache", frames=FrameOptions(20, 24))
    assert f"{file}: " in found["sources"][0]["error"]


def test_images_over_the_cap_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr("robocache._recordings.images.MOST_PIXELS", 2000)
    images = [encoded(photo(0, 40, 50), "PNG"), encoded(photo(1, 41, 50), "PNG")]
    path = write_images(tmp_path / "a.mcap", {"/camera": ("png", images)})
    cache, found = made(path, tmp_path / "cache")
    assert any(
        "it is 50 x 41; images of more than 2,000 pixels are refused" in note for note in found["sources"][0]["notes"]
    )
    assert len(cache.episodes[0].streams["/camera"].samples.rows) == 1
    monkeypatch.setattr("robocache._recordings.video.MOST_PIXELS", 2000)
    _, found = made(video_set(tmp_path / "set", (3,)), tmp_path / "other")
    assert any(
        "a video of 64 x 48 pixels; frames of more than 2,000 are refused" in n for n in found["sources"][0]["notes"]
    )


def test_colour_and_gray_in_one_stream(tmp_path):
    colour, gray = encoded(photo(), "PNG"), encoded(photo()[..., 0], "PNG")
    cache, _ = made(write_images(tmp_path / "a.mcap", {"/camera": ("png", [colour, gray])}), tmp_path / "a")
    frame = frame_of(photo()[..., :1], (20, 24))
    np.testing.assert_array_equal(cache.episodes[0].streams["/camera"].samples[1], np.repeat(frame, 3, axis=2))
    cache, found = made(write_images(tmp_path / "b.mcap", {"/camera": ("png", [gray, colour])}), tmp_path / "b")
    assert any("pictures are in colour, and those before were gray" in note for note in found["sources"][0]["notes"])
    assert len(cache.episodes[0].streams["/camera"].samples.rows) == 1


def test_what_can_have_no_frames_stays_as_recorded(tmp_path):
    metres = [np.full((6, 8), k, np.float32) for k in range(3)]
    path = write_images(tmp_path / "a.mcap", {"/depth": ("32FC1", metres), "/video": ("h264", [b"\0\0\0\1"] * 3)})
    cache, found = made(path, tmp_path / "cache", keep="frames")
    notes = found["sources"][0]["notes"]
    for stream, why in (("/depth", "depth in float32 has none"), ("/video", "a stream of h264 messages has none")):
        assert f'stream "{stream}" is kept as it was recorded, without frames: {why}' in notes
    np.testing.assert_array_equal(cache.episodes[0].streams["/depth"].samples[2], metres[2])
    assert cache.episodes[0].streams["/video"].samples.as_stored(1).tobytes() == b"\0\0\0\1"


# ---- The commands


def test_the_command_line(tmp_path):
    root = video_set(tmp_path / "set", (6, 5))
    done = robocache("build", root, "-o", tmp_path / "cache", "--frames", "20x24", "--fit", "cover")
    assert done.exit_code == 0, done.output
    text = " ".join(done.output.split())
    assert "Frames: 1 camera, 11 pictures: 0.0 MiB, about 1 s on" in text
    about = " ".join(robocache("info", tmp_path / "cache").output.split())
    assert "20 x 24, cover, bilinear" in about
    assert "PyAV" in about
    assert "Verdict: 2 of 2 streams good" in about
    assert f"{CAMERA}/frames" not in about  # they have the camera's times, and a line among the cameras
    (camera,) = json.loads(robocache("info", tmp_path / "cache", "--json").stdout)["cameras"]
    assert camera | {"decoder": ""} == {
        "camera": CAMERA,
        "frames": "20 x 24, cover, bilinear",
        "samples": 11,
        "bytes": 11 * 20 * 24 * 3,
        "decoder": "",
        "kept": "both",
        "lost": 0,
    }
    robocache("build", root, "-o", tmp_path / "plain")
    (camera,) = json.loads(robocache("info", tmp_path / "plain", "--json").stdout)["cameras"]
    assert (camera["frames"], camera["kept"]) == ("", "source")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--frames", "224"), "'224' is no size"),
        (("--frames", "0x224"), "frames of 0 x 224 pixels"),
        (("--frames", "224x99999"), "each side must be from 1 to 4,096 pixels"),
        (("--frames", "-5x5"), "is no size"),
        (("--frames", "20x24", "--fit", "crop"), "is not one of stretch, cover, contain"),
        (("--frames", "20x24", "--keep", "source"), "is not one of both, frames"),
        (("--fit", "cover"), "are for --frames"),
    ],
)
def test_wrong_options_get_a_sentence(tmp_path, arguments, said):
    done = robocache("build", tmp_path, "-o", tmp_path / "cache", *arguments)
    assert done.exit_code == 2
    assert said in " ".join(done.output.replace("│", " ").split())
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        ("{ size = [0, 4] }", "frames of 0 x 4 pixels"),
        ("{ size = [4] }", r"size is \[4\]; expected \[height, width\]"),
        ("{ fit = 'cover' }", "size is None"),
        ("{ size = [4, 4], fit = 'crop' }", "fit is 'crop'; expected stretch, cover, contain"),
        ("{ size = [4, 4], filter = 'lanczos' }", "filter is 'lanczos'; expected bilinear"),
        ("{ size = [4, 4], keep = 'none' }", "keep is 'none'; expected both, frames"),
        ("{ size = [4, 4], pad = 256 }", "pad is 256; expected a number from 0 to 255"),
        ("{ size = [4, 4], colour = 1 }", 'frames has no key "colour"'),
        ("true", "frames is True; expected"),
        ("[4, 4]", r"frames is \[4, 4\]; expected"),
    ],
)
def test_wrong_recipes_get_a_sentence(tmp_path, frames, said):
    (tmp_path / "r.toml").write_text(f'[streams."/camera"]\nframes = {frames}\n')
    with pytest.raises(ValueError, match=said):
        load_recipe(tmp_path / "r.toml")


def test_a_filter_that_depth_has_not_is_refused(tmp_path):
    path = write_images(tmp_path / "a.mcap", {"/depth": ("16UC1", [np.ones((6, 8), np.uint16)])})
    (tmp_path / "r.toml").write_text('[streams."/depth"]\nframes = { size = [3, 4], filter = "bicubic" }\n')
    found = build([str(path)], tmp_path / "cache", recipe=tmp_path / "r.toml")
    assert 'stream "/depth": image: filter bicubic would mix near and far in depth' in found["sources"][0]["error"]


def test_verify_covers_frames_and_videos(tmp_path):
    root = video_set(tmp_path / "set", (6, 5))
    made(root, tmp_path / "cache")
    assert robocache("verify", tmp_path / "cache").exit_code == 0
    file = videos_of(root)[1][0]
    os.rename(file, tmp_path / "aside.mp4")
    report = rc.verify_cache(tmp_path / "cache")
    (problem,) = report.problems
    assert (problem.file, report.ok, report.absent) == (file, False, 1)
    assert problem.sentence == f'this video of stream "{CAMERA}" is not there; 1 episode names it: episode-1'
    assert robocache("verify", tmp_path / "cache").exit_code == 3
    assert not rc.verify_cache(tmp_path / "cache", repair=True).ok
    os.rename(tmp_path / "aside.mp4", file)
    assert rc.verify_cache(tmp_path / "cache").ok
    shards = sorted((tmp_path / "cache/shards").iterdir(), key=lambda shard: shard.stat().st_size)
    data = bytearray(shards[-1].read_bytes())
    data[len(data) // 2] ^= 1  # of a frame: nothing but a checksum can tell
    shards[-1].write_bytes(data)
    (problem,) = [
        problem for problem in rc.verify_cache(tmp_path / "cache").problems if shards[-1].name in problem.file
    ]
    assert "checksum" in problem.sentence


def test_frames_are_read_in_a_forked_child(tmp_path):
    from test_pictures import in_child

    cache, _ = made(video_set(tmp_path / "set", (6,)), tmp_path / "cache")
    samples = cache.episodes[0].streams[CAMERA].samples
    truth, source = samples[4].tolist(), samples.source[4].tolist()
    assert in_child(lambda: [samples[4].tolist() == truth, samples.source[4].tolist() == source]) == [True, True]


def test_a_fork_while_a_video_is_read_with_threads(tmp_path):
    """The child frees nothing of FFmpeg's, whose threads it does not have, and the parent goes on."""
    import gc

    from test_pictures import in_child

    ((file, _),) = videos_of(video_set(tmp_path / "set", (30,)))
    decoder = _video.open_pass(file, 10.0, 2)
    assert decoder.picture(3) is not None

    def work():
        nonlocal decoder
        decoder = None
        gc.collect()
        return True

    assert in_child(work) is True
    assert decoder.picture(4) is not None
    decoder.close()
