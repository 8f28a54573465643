"""rc.report: its numbers are the generator's truth, its page is safe, small, and right in a real browser."""

from __future__ import annotations

import base64
import html.parser
import io
import json
import os
import re
import tomllib

import numpy as np
import pytest
from browser import browser
from camera_files import encoded, video_set, write_images
from recordings import batch, made, write_lerobot

import robocache as rc
from robocache._cache.build import build
from robocache._cache.recipe import load_recipe
from robocache._recordings.envelope import MOST_PIECES, Envelope
from robocache._recordings.frame_options import options_of
from robocache._recordings.sync import survey
from robocache._report.measures import MOST_GAPS, PIECES
from robocache._report.pictures import cameras_of, picture_at, thumbnail
from robocache._report.report import MOST_DRAWN, MOST_STREAMS

SECOND, MS = 1_000_000_000, 1_000_000
START = 1_700_000_000 * SECOND
EVIL = '</script><script>alert("1")</script><img src=x onerror=alert(2)>&amp;\u202e\x00\'"'


def wave(times, channels=2):
    return np.sin((times[:, None] - START) * 1e-9 * np.arange(1, channels + 1))


def arm(random):
    """Two streams of 20 s with known steps and delays; one has a gap, and a clock that drifts by 500 ppm."""
    step = 10 * MS + random.integers(-2 * MS, 2 * MS, 2000)
    joints = START + np.concatenate([[0], np.cumsum(step)])
    joints = joints[(joints < START + 6 * SECOND) | (joints > START + 7 * SECOND)]
    late = 3 * MS + random.integers(0, MS, len(joints)) + np.rint((joints - START) * 500e-6).astype(np.int64)
    imu = START + np.arange(4000) * 5 * MS
    return joints, joints + late, imu, imu + 2 * MS


@pytest.fixture
def report_and_truth():
    joints, arrivals, imu, imu_arrivals = arm(np.random.default_rng(5))
    recording = made(
        batch("/joints", wave(joints), joints, arrivals, metadata={"time": "stamp"}),
        batch("/imu", wave(imu, 3), imu, imu_arrivals, metadata={"time": "stamp"}),
    )
    found = rc.report(recording, rate=30)
    assert recording._source.passes == 1  # the pass of the sync report is the only one
    return found, rc.sync_report(recording), joints, arrivals, imu


def test_the_numbers_are_those_of_the_sync_report(report_and_truth):
    found, sync, *_ = report_and_truth
    (recording,) = found.recordings
    assert (found.level, found.verdict) == (sync.level, sync.verdict)
    for name, stream in sync.as_dict()["streams"].items():
        assert {key: recording["streams"][name][key] for key in stream} == stream


def test_gaps_are_where_they_were_made(report_and_truth):
    found, _, joints, *_ = report_and_truth
    (gap,) = found.recordings[0]["streams"]["/joints"]["gap_list"]
    k = int(np.argmax(np.diff(joints)))
    assert gap["episode"] == 0
    assert gap["after_s"] == pytest.approx((joints[k] - START) * 1e-9, abs=1e-9)
    assert gap["seconds"] == pytest.approx((joints[k + 1] - joints[k]) * 1e-9, abs=1e-9)
    (moment,) = found.recordings[0]["moments"]
    assert (moment["stream"], moment["kind"]) == ("/joints", "gap")
    assert (moment["start_ns"], moment["end_ns"]) == (joints[k], joints[k + 1])


def test_jitter_is_the_ecdf(report_and_truth):
    found, _, joints, *_ = report_and_truth
    curve = found.recordings[0]["streams"]["/joints"]["jitter"]
    step = np.diff(joints)
    period = np.median(step)
    near = np.abs(step - period)[step < 1.5 * period]
    truth = [(near <= at * period).mean() for at in curve["periods"]]
    assert curve["periods"] == pytest.approx(np.arange(101) / 200)
    assert curve["share"] == pytest.approx(truth, abs=1e-4)
    assert 0.3 < curve["share"][20] < 0.7  # half of steps of +-20 % are within 10 %
    assert curve["steps"] == len(near)


def test_delays_are_those_that_were_added(report_and_truth):
    found, _, joints, arrivals, imu = report_and_truth
    streams = found.recordings[0]["streams"]
    delay = streams["/joints"]["delay"]
    last = max(joints[-1], imu[-1])
    piece = ((joints - START) * PIECES // (last - START)).clip(0, PIECES - 1)
    for k in range(PIECES):
        inside = (arrivals - joints)[piece == k] * 1e-6
        told = delay["least_ms"][k], delay["most_ms"][k]
        if len(inside) > 2:  # a sample at the edge of a piece may round into its neighbour
            assert told == pytest.approx((inside.min(), inside.max()), abs=0.3)
        elif not len(inside) and 0 < k < PIECES - 1 and not (abs(piece - k) <= 1).any():
            assert told == (None, None)
    begin, end = delay["drift_line_ms"]
    assert streams["/joints"]["drift_ppm"] == pytest.approx(500, abs=5)
    assert begin == pytest.approx(3.1, abs=0.2)  # the fastest tenth of 3 to 4 ms
    assert end - begin == pytest.approx(500e-6 * (joints[-1] - joints[0]) * 1e-6, abs=0.1)
    assert set(streams["/imu"]["delay"]["least_ms"]) == set(streams["/imu"]["delay"]["most_ms"]) == {2.0}


def test_ages_are_those_of_the_newest_sample_that_had_arrived(report_and_truth):
    found, _, joints, arrivals, imu = report_and_truth
    age = found.recordings[0]["streams"]["/joints"]["age"]
    first, last = START, max(joints[-1], imu[-1])
    count = int((last - first) * 1e-9 * 30) + 1
    ticks = first + np.rint(np.arange(count) * 1e9 / 30).astype(np.int64)
    known = [tick - joints[arrivals <= tick].max() for tick in ticks if (arrivals <= tick).any()]
    assert age["ticks"] == count
    assert age["before_first"] == count - len(known) == 1
    truth = np.percentile(known, (50, 99, 100)) * 1e-6
    assert [age[key] for key in ("p50_ms", "p99_ms", "max_ms")] == pytest.approx(truth.tolist())


def test_a_signal_is_least_and_most_of_each_piece(report_and_truth):
    found, _, joints, *_ = report_and_truth
    signal = found.recordings[0]["streams"]["/joints"]["signal"]
    assert signal["of"] == "c0"
    piece = (joints - joints[0]) // signal["piece_ns"]
    values = wave(joints)[:, 0]
    for k, (low, high) in enumerate(zip(signal["low"], signal["high"], strict=True)):
        inside = values[piece == k]
        assert (low, high) == (
            (None, None) if not len(inside) else pytest.approx((inside.min(), inside.max()), rel=1e-4)
        )


@pytest.mark.parametrize("seed", range(8))
def test_an_envelope_has_the_extremes_whatever_the_order(seed):
    random = np.random.default_rng(seed)
    envelope, times, values = Envelope(), [], []
    at = 0
    for _ in range(random.integers(1, 12)):
        count = int(random.integers(1, 400))
        steps = random.integers(0, 10 ** random.integers(3, 10), count)
        part = at + np.cumsum(steps) + random.integers(-5, 5, count)
        at = int(part[-1])
        numbers = random.normal(size=(count, 2)).astype(random.choice([np.float32, np.float64]))
        numbers[random.random(count) < 0.1] = np.nan
        low, high = envelope.add(part, numbers)
        np.testing.assert_array_equal(low, np.fmin.reduce(numbers).astype(np.float64))
        np.testing.assert_array_equal(high, np.fmax.reduce(numbers).astype(np.float64))
        times.append(part)
        values.append(numbers)
    piece = np.maximum(np.concatenate(times) - envelope.start, 0) // envelope.width
    every = np.concatenate([part.astype(np.float64) for part in values])
    assert piece.max() < MOST_PIECES
    for k in range(MOST_PIECES):
        inside = every[piece == k]
        for kept, reduce in ((envelope.low, np.fmin), (envelope.high, np.fmax)):
            truth = reduce.reduce(inside) if len(inside) else np.full(2, np.nan)
            np.testing.assert_array_equal(kept[k], truth)


def test_a_channel_that_comes_later_and_lengths_of_ragged_samples():
    t = START + np.arange(100) * 10 * MS
    first = batch("/a", np.ones((50, 1)), t[:50], channels=["x"])
    second = batch("/a", np.stack([np.ones(50), np.arange(50.0)], 1), t[50:], channels=["x", "late"])
    lengths = np.arange(100) + 1
    cloud = batch("/cloud", np.zeros((lengths.sum(), 3), np.float32), t, lengths=lengths, ragged=True, shape=(3,))
    streams = rc.report(made(first, second, cloud)).recordings[0]["streams"]
    assert streams["/a"]["signal"]["of"] == "late"
    known = [value for value in streams["/a"]["signal"]["low"] if value is not None]  # None before it came
    assert (min(known), max(known)) == (0, 49)
    signal = streams["/cloud"]["signal"]
    assert (signal["of"], signal["low"][0], signal["high"][-1]) == ("rows", 1, 100)


def test_samples_are_counted_where_there_are_no_numbers():
    t = START + np.arange(600) * 33 * MS
    video = batch("/video", np.arange(600)[:, None], t, metadata={"kind": "video", "file": "none.mp4", "fps": "30"})
    signal = rc.report(made(video)).recordings[0]["streams"]["/video"]["signal"]
    assert sum(signal["high"]) == 600
    assert set(signal["low"]) == {0}
    piece = (t - t[0]) // signal["piece_ns"]
    assert signal["high"] == [int((piece == k).sum()) for k in range(len(signal["high"]))]


# ---- What is on the page


class Reader(html.parser.HTMLParser):
    """Refuses what a static page does not have; collects the text."""

    TAGS = frozenset(
        re.findall(
            r"\w+",
            "html head meta link title style body header article nav footer h1 h2 h3 p div span b i strong ul li a "
            "code pre details summary table thead tbody tr th td figure figcaption img svg path line circle g script",
        )
    )

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.scripts, self.within = "", [], ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        assert tag in self.TAGS, tag
        self.within = tag
        given = dict(attrs)
        assert not [name for name in given if name.startswith("on")], given
        assert given.get("src", "data:").startswith("data:image/jpeg;base64,") or tag != "img"
        assert given.get("href", "#").startswith("#") or given["href"] == "data:,"
        if tag == "script":
            assert given == {"type": "application/json", "id": "robocache-report"}
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.within = ""

    def handle_data(self, data):
        if self.within == "script":
            self.scripts[-1] += data
        elif self.within != "style":
            self.text += data


def evil():
    t = START + np.arange(300) * 10 * MS
    t[200:] += SECOND
    about = {"type": EVIL, "metadata": {"time": "stamp"}}
    recording = made(
        batch(f"/{EVIL}", wave(t), t, t + 3 * MS, channels=[EVIL, "y"], **about),
        batch("/other", wave(t[:200]), t[:200], t[:200], episode=1),
        batch(f"/{EVIL}/2", np.ones((200, 2)), t[:200], t[:200], episode=1, channels=[EVIL, "z"], **about),
        tasks=(EVIL, EVIL),
    )
    recording.path = f"{EVIL.replace('/', '')}.mcap"
    recording._source.notes.append(EVIL)
    return recording


def test_names_are_text_wherever_they_stand(tmp_path):
    before = rc.report(evil())
    before.data["recordings"][0]["streams"][EVIL] = {"level": EVIL, "gaps": EVIL, "age": {"p99_ms": EVIL}}
    before.data["recordings"][0]["streams"][f"/{EVIL}"]["gaps"] = 7
    before.data["verdict"] = before.data["made"] = EVIL
    earlier = tmp_path / "earlier.html"
    from robocache._report.difference import as_json

    earlier.write_text(as_json(before.data))
    found = rc.report([evil(), evil()], against=earlier)
    page = Reader(found.html)
    assert len(page.scripts) == 1
    assert json.loads(page.scripts[0]) == found.data
    assert "<" not in page.scripts[0]
    shown = EVIL.replace("\x00", "\ufffd").replace("\u202e", "\ufffd")
    assert page.text.count(shown) > 12  # names, types, channels, notes, tasks, the earlier verdict
    assert "\x00" not in found.html
    assert "\u202e" not in found.html


def test_a_name_of_any_length_leaves_a_page_that_can_be_read():
    t = START + np.delete(np.arange(300), np.arange(100, 150)) * 10 * MS
    name = f"/begin{'x' * 10_000}end"
    found = rc.report(made(batch(name, wave(t), t, t + MS, metadata={"time": "stamp"})))
    assert list(found.recordings[0]["streams"]) == [name]
    shown = re.sub(r"<(pre|script)\b.*?</\1>", "", found.html, flags=re.DOTALL)
    assert "/beginxxx" in shown
    assert "xxxend" in shown
    assert max(map(len, re.findall("x+", shown))) <= 300
    assert name in Reader(found.html).text  # the lines of the recipe are whole


def test_the_data_can_be_read_back(tmp_path):
    found = rc.report(evil(), tmp_path / "page.html")
    assert rc.report_data(tmp_path / "page.html") == found.data
    assert [entry.name for entry in tmp_path.iterdir()] == ["page.html"]
    found.save(tmp_path / "page.html")  # is replaced
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == found.html


def test_a_notebook_shows_it_in_a_frame_where_nothing_runs():
    found = rc.report(evil())
    parsed = html.parser.HTMLParser()
    tags = []
    parsed.handle_starttag = lambda tag, attrs: tags.append((tag, dict(attrs)))
    parsed.feed(found._repr_html_())
    ((tag, given),) = tags
    assert tag == "iframe"
    assert given["sandbox"] is None  # present, and allows nothing
    assert given["srcdoc"] == found.html


def test_findings_have_the_lines_that_mend_them(tmp_path):
    t = START + np.arange(1000) * 10 * MS
    gappy = np.delete(t, np.arange(400, 450))
    few = t[[3, 500, 700]]
    stamped = {"metadata": {"time": "stamp"}}
    recording = made(
        batch("/gappy", wave(gappy), gappy, gappy + MS, **stamped),
        batch("/few", np.arange(3.0)[:, None], few, few + MS, **stamped),
        batch("/ahead", wave(t), t + 400 * MS, t, **stamped),
        batch("/ok", wave(t), t, t + MS, **stamped),
        batch("/drifts", wave(t), t, t + MS + (t - START) // 1000, **stamped),
        batch("/mixed", wave(t), t, t, metadata={"time": "mixed"}),
        batch("/unstamped", wave(t), t, t, metadata={"time": "log"}),
    )
    found = rc.report(recording)
    mends = {
        name: {m["kind"]: (m["table"], m["line"]) for m in each} for name, each in found.recordings[0]["mends"].items()
    }
    assert mends["/gappy"]["gaps"] == (
        "stream",
        "max_gap = 0.03  # seconds: nothing is valid inside; 1 gap, longest 0.51 s",
    )
    assert mends["/few"]["irregular"] == ("stream", 'method = "hold"  # a value holds until the next one')
    table, line = mends["/ahead"]["offset"]
    assert (table, line[:22]) == ("stream", "# clock_offset = 0.401")
    assert mends["/drifts"]["drift"][1].startswith('# time = "log"  #')
    assert mends["/mixed"]["mixed"][0] == "source"
    assert mends["/unstamped"]["unstamped"][1].startswith("# latency = 0.001  #")
    assert "/ok" not in mends
    for line in ("max_gap = 0.03", "method = &quot;hold&quot;", "# clock_offset = 0.401"):
        assert found.html.count(line) >= 2  # beside the finding, and in the recipe
    text = found.recordings[0]["recipe"]
    tables = tomllib.loads(text)["streams"]
    assert tables["/gappy"]["max_gap"] == 0.03
    assert tables["/few"]["method"] == "hold"
    assert set(tables) == set(found.recordings[0]["streams"])
    (tmp_path / "recipe.toml").write_text(text)
    streams = load_recipe(tmp_path / "recipe.toml").apply(recording).streams
    assert streams["/gappy"].max_gap == 30 * MS
    assert streams["/few"].method == "hold"
    (tmp_path / "offset.toml").write_text(text.replace("# clock_offset = 0.401", "clock_offset = 0.401"))
    mended = load_recipe(tmp_path / "offset.toml").apply(recording).streams["/ahead"]
    assert np.median(mended.arrivals - mended.times) == MS  # as those of the others


def test_what_a_recipe_has_mended_is_told(tmp_path):
    t = START + np.arange(1000) * 10 * MS
    gappy, few = np.delete(t, np.arange(400, 450)), t[[3, 500, 700]]
    recording = made(batch("/gappy", wave(gappy), gappy), batch("/few", np.arange(3.0)[:, None], few))
    recording.files = ()
    (tmp_path / "recipe.toml").write_text(rc.report(recording).recordings[0]["recipe"])
    mended = load_recipe(tmp_path / "recipe.toml").apply(recording)
    found = rc.report(mended).recordings[0]
    lines = {name: [mend["line"] for mend in each] for name, each in found["mends"].items()}
    assert lines["/gappy"] == ["# mended: max_gap is 0.03 s, and nothing is valid inside a gap"]
    assert lines["/few"] == ["# mended: its method is hold"]


def test_worst_moments_are_ranked_and_joined():
    t = START + np.arange(3000) * 10 * MS
    long = np.delete(t, np.arange(1000, 1200))
    same = np.delete(t, np.arange(1050, 1100))
    late = t + MS
    late[2500] += 900 * MS
    told = {"metadata": {"time": "stamp"}}
    found = rc.report(made(
        batch("/long", wave(long), long, long + MS, **told),
        batch("/same", wave(same), same, same + MS, **told),
        batch("/late", wave(t), t, late, **told),
    )).recordings[0]["moments"]  # fmt: skip
    assert [(m["kind"], m["stream"], m["also"]) for m in found] == [("gap", "/long", ["/same"]), ("late", "/late", [])]
    assert found[0]["seconds"] == pytest.approx(2.01)
    assert found[1]["seconds"] == pytest.approx(0.9)
    assert found[1]["after_s"] == pytest.approx(25)


def test_thumbnails_are_the_pictures_before_and_after_the_gap(tmp_path):
    Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    frames = [np.full((120, 160, 3), 2 * k, np.uint8) for k in range(100)]
    path = write_images(tmp_path / "a.mcap", {"/camera": ("jpeg", [encoded(f, "JPEG", quality=95) for f in frames])})
    assert path
    recording = rc.open(path)
    source = recording._source
    whole = source.batches

    def gappy(*arguments):  # without the pictures 40 to 69
        for each in whole(*arguments):
            if each.stream != "/camera":
                yield each
                continue
            number = (each.arrivals - SECOND) // (SECOND // 10)
            keep = (number < 40) | (number >= 70)
            rows = np.repeat(keep, each.lengths)
            parts = {"times": each.times[keep], "arrivals": each.arrivals[keep], "lengths": each.lengths[keep]}
            yield each._replace(values=each.values[rows], **parts)

    source.batches = gappy
    found = rc.report(recording)
    (moment,) = found.recordings[0]["moments"]
    assert moment["seconds"] == pytest.approx(3.1)
    assert [shot["when"] for shot in moment["pictures"]] == ["before", "after"]
    shots = re.findall(r'<img src="data:image/jpeg;base64,([^"]+)" width="(\d+)" height="(\d+)"', found.html)
    for (data, width, height), truth in zip(shots, (2 * 39, 2 * 70), strict=True):
        image = Image.open(io.BytesIO(base64.b64decode(data)))
        assert image.size == (int(width), int(height)) == (160, 120)
        assert np.abs(np.asarray(image).astype(int) - truth).max() <= 2
    assert "data:image" not in json.dumps(found.data)


@pytest.mark.parametrize("kind", ["video", "hdf5", "cache", "frames"])
def test_pictures_of_every_kind_of_camera_are_found(tmp_path, kind):
    """Each is the sample that the recording's own stream has at that time."""
    pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    if kind == "hdf5":
        h5py = pytest.importorskip("h5py", reason="h5py is not installed")
        with h5py.File(tmp_path / "a.hdf5", "w") as file:
            file["camera"] = np.random.default_rng(1).integers(0, 256, (30, 24, 32, 3), dtype=np.uint8)
        recording = rc.open(tmp_path / "a.hdf5", rate=10, mapping={"camera": "/camera"})
    else:
        place = video_set(tmp_path / "set")
        if kind != "video":
            build(
                [str(place)],
                tmp_path / "cache",
                frames=options_of("x", "20x24", None, "frames" if kind == "frames" else None),
            )
            place = tmp_path / "cache"
        recording = rc.open(place)
    _, watches = survey(recording)
    (camera,) = cameras_of(watches)
    for episode in recording.episodes:
        stream = episode.streams[camera]
        samples = stream.values if stream.samples is None else getattr(stream.samples, "source", None) or stream.samples
        for k in (0, len(stream.times) // 2, len(stream.times) - 1):
            found = picture_at(recording, camera, episode.index, int(stream.times[k]), int(stream.arrivals[k]))
            np.testing.assert_array_equal(found, samples[k])
    assert thumbnail(found)[0].startswith("data:image/jpeg;base64,")


def test_depth_is_a_gray_picture():
    Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    depth = np.tile(np.linspace(500, 4000, 160).astype(np.uint16), (120, 1))
    depth[:, :20] = 0  # no reading
    data, size = thumbnail(depth)
    gray = np.asarray(Image.open(io.BytesIO(base64.b64decode(data.partition(",")[2])))).astype(int)
    assert size == (160, 120)
    assert gray[:, :15].max() < 12
    assert (np.diff(gray[60, 28:]) > -6).all()  # nearer is darker, up to JPEG's errors
    assert gray[60, 30] < 70 < 200 < gray[60, -1]
    assert thumbnail(np.full((10, 10), np.nan, np.float32))[1] == (10, 10)


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.uint16, np.int16, np.float32])
@pytest.mark.parametrize("channels", [3, 4])
def test_colours_of_any_depth_are_shown(dtype, channels):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    full = np.iinfo(dtype).max if np.dtype(dtype).kind in "iu" else 1
    data, size = thumbnail(np.broadcast_to(np.array([full, 0, full, 0], dtype)[:channels], (24, 32, channels)))
    shown = np.asarray(image.open(io.BytesIO(base64.b64decode(data.partition(",")[2]))), np.float64)
    assert size == (32, 24)
    assert np.abs(shown - [255, 0, 255]).max() < 6  # JPEG


def test_depth_with_a_channel_is_a_gray_picture():
    pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    depth = np.linspace(0.5, 4, 192).reshape(12, 16).astype(np.float32)
    assert thumbnail(depth[:, :, None]) == thumbnail(depth)
    for wrong in (np.zeros((0, 8), np.uint8), np.zeros((2, 8, 8, 3), np.uint8), np.zeros(8, np.uint8)):
        with pytest.raises(ValueError, match="is no picture"):
            thumbnail(wrong)


def test_whatever_a_decoder_raises_is_a_sentence(monkeypatch):
    t = START + np.concatenate([np.arange(50), np.arange(150, 200)]) * 33 * MS
    about = {"ragged": True, "shape": (), "metadata": {"format": "jpeg", "time": "stamp"}}
    camera = batch("/camera", np.zeros(1000, np.uint8), t, t, lengths=np.full(100, 10), **about)

    def broken(*_):
        raise TypeError("a decoder's own error")

    monkeypatch.setattr("robocache._report.pictures.picture_at", broken)
    assert rc.report(made(camera)).recordings[0]["left_out"] == ["/camera: no thumbnail: a decoder's own error"]


def test_a_picture_that_cannot_be_decoded_is_a_sentence(tmp_path):
    pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    t = START + np.concatenate([np.arange(50), np.arange(150, 200)]) * 33 * MS
    about = {"ragged": True, "shape": (), "metadata": {"format": "jpeg", "time": "stamp"}}
    junk = batch("/camera", np.zeros(1000, np.uint8), t, t, lengths=np.full(100, 10), **about)
    found = rc.report(made(junk))
    assert len(found.recordings[0]["moments"]) == 1
    assert any("/camera: no thumbnail" in why for why in found.recordings[0]["left_out"])


# ---- Bounds


def test_ten_million_samples_make_no_larger_a_page():
    def page(count):
        t = START + np.arange(count) * (200 * SECOND // count)
        pieces = [
            batch("/fast", (part % 1000).astype(np.int16)[:, None], t[part], t[part] + 1000, metadata={"time": "stamp"})
            for part in np.array_split(np.arange(count), 50)
        ]
        return rc.report(made(*pieces))

    small, large = page(10**4), page(10**7)
    assert large.recordings[0]["streams"]["/fast"]["samples"] == 10**7
    assert len(large.html) < 1.1 * len(small.html) < 60_000


def test_the_longest_gaps_are_listed_and_all_are_counted():
    steps = np.full(5000, 10 * MS)
    steps[10::20] = 100 * MS + np.arange(250) * MS
    t = START + np.cumsum(steps)
    stream = rc.report(made(batch("/a", wave(t), t))).recordings[0]["streams"]["/a"]
    assert stream["gaps"] == 250
    assert len(stream["gap_list"]) == MOST_GAPS
    assert stream["gaps_left_out"] == 250 - MOST_GAPS
    assert min(gap["seconds"] for gap in stream["gap_list"]) == pytest.approx(0.250)


def test_many_streams_and_recordings_are_bounded_and_told():
    t = START + np.arange(200) * 10 * MS
    many = made(*(batch(f"/s{k:03d}", wave(t), t) for k in range(MOST_STREAMS + 20)))
    found = rc.report(many)
    assert any("pictures of 40 streams" in why for why in found.recordings[0]["left_out"])
    assert found.html.count('<svg class="spark"') == MOST_STREAMS
    bad = np.ones((200, 2))

    def one(k):
        recording = made(batch("/a", bad if k % 5 == 0 else wave(t), t))
        recording.path = f"run-{k:02d}.mcap"
        return recording

    found = rc.report([one(k) for k in range(30)])
    assert len(found.recordings) == 30
    assert found.html.count("<article") == MOST_DRAWN
    assert f"The {MOST_DRAWN} worst of them follow" in found.html
    drawn = re.findall(r"<article[^>]*>.*?<h1[^>]*>(run-\d\d)", found.html)
    assert {f"run-{k:02d}" for k in range(0, 30, 5)} <= set(drawn)  # the bad ones
    assert found.verdict.startswith("24 of 30 recordings good; to be looked at before training: run-00.mcap, ")


def test_ten_streams_with_cameras_stay_below_300_kb(tmp_path):
    pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    noise = np.random.default_rng(2)
    frames = [encoded(noise.integers(0, 256, (240, 320, 3), dtype=np.uint8), "JPEG") for _ in range(8)]
    cameras = []
    for name in ("/top", "/wrist"):
        t = START + np.arange(600) * 33 * MS
        t = np.delete(t, [k for start in range(50, 550, 60) for k in range(start, start + 20)])
        data = [np.frombuffer(frames[k % 8], np.uint8) for k in range(len(t))]
        lengths = [len(each) for each in data]
        about = {"ragged": True, "shape": (), "metadata": {"format": "jpeg", "time": "stamp"}}
        cameras.append(batch(name, np.concatenate(data), t, t + 30 * MS, lengths=lengths, **about))
    others = []
    for k in range(8):
        t = START + np.arange(4000) * 5 * MS + noise.integers(0, 2 * MS, 4000)
        t = np.delete(t, np.flatnonzero(noise.random(4000) < 0.02))
        arrivals = t + noise.integers(0, 20 * MS, len(t))
        others.append(batch(f"/sensor_{k}", noise.normal(size=(len(t), 6)), t, arrivals, metadata={"time": "stamp"}))
    found = rc.report(made(*cameras, *others))
    assert found.html.count("<img ") > 4
    assert len(found.html.encode()) < 300_000


# ---- Against an earlier report


def test_what_became_better_and_worse(tmp_path):
    t = START + np.arange(1000) * 10 * MS
    gappy = np.delete(t, np.arange(400, 450))
    before = made(batch("/a", wave(gappy), gappy), batch("/b", wave(t), t), batch("/old", wave(t), t))
    after = made(batch("/a", wave(t), t), batch("/b", wave(gappy), gappy), batch("/new", wave(t), t))
    rc.report(before, tmp_path / "before.html")
    found = rc.report(after, against=tmp_path / "before.html")
    changes = {
        (c["stream"], c["what"]): (c["before"], c["after"], c["better"]) for c in found.data["against"]["changes"]
    }
    assert changes["/a", "gaps"] == ("1", "0", True)
    assert changes["/b", "gaps"] == ("0", "1", False)
    assert changes["/a", "verdict"] == ("fair", "good", True)
    assert changes["/b", "longest gap"] == ("0 s", "0.51 s", False)
    assert changes["/new", "stream"] == ("not there", "there", None)
    assert changes["/old", "stream"] == ("there", "not there", None)
    assert changes["/a", "samples"] == ("950", "1,000", None)
    same = rc.report(before, against=tmp_path / "before.html").data["against"]
    assert (same["changes"], same["only_now"], same["only_before"]) == ([], [], [])
    assert "New here: /new." in found.html


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file or directory"),
        ("<html></html>", "is no report of RoboCache: the data inside it are missing"),
        (
            '<script type="application/json" id="robocache-report">{"a":</script>',
            "the data inside the report are damaged",
        ),
        ('<script type="application/json" id="robocache-report">' + "[" * 100_000 + "</script>", "are damaged"),
        ('<script type="application/json" id="robocache-report">[1]</script>', "its data are of another kind"),
        (
            '<script type="application/json" id="robocache-report">'
            '{"format":"robocache report","version":9,"recordings":[]}</script>',
            "a report of another version",
        ),
    ],
)
def test_what_is_no_report_is_told_before_anything_is_read(tmp_path, content, words):
    path = tmp_path / "earlier.html"
    if content is not None:
        path.write_text(content)
    recording = evil()
    with pytest.raises(rc.FileError, match=re.escape(words)):
        rc.report(recording, against=path)
    assert recording._source.passes == 0


# ---- What is given


def test_folders_caches_and_what_cannot_be_read(tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    write_lerobot(tmp_path / "runs" / "set")
    (tmp_path / "runs" / "broken.mcap").write_bytes(b"no recording")
    t = np.arange(100) * 10 * MS
    with rc.CacheWriter(tmp_path / "cache") as writer:
        writer.add({"joints": rc.Stream(wave(t), t)}, name="e0")
    seen = []
    found = rc.report(
        [tmp_path / "runs", rc.Cache(tmp_path / "cache")], progress=lambda name, share: seen.append(share)
    )
    assert [each["format"] for each in found.recordings] == ["LeRobot v3.0", "cache"]
    assert found.recordings[0]["episodes"] == 3
    assert [each["task"] for each in found.recordings[0]["episode_list"]] == ["push", "pull", "push"]
    assert found.recordings[1]["streams"]["joints"]["rate_hz"] == pytest.approx(100)
    (failed,) = found.data["failed"]
    assert "broken.mcap" in failed["error"]
    assert found.level == "bad"
    assert "1 cannot be read" in found.verdict
    assert seen == sorted(seen)
    with pytest.raises(rc.FileError, match=r"broken\.mcap: not a known format"):
        rc.report(tmp_path / "runs" / "broken.mcap")


def test_progress_never_goes_back(tmp_path):
    pictures = [np.zeros((120, 160, 3), np.uint8)] * 300  # 17 MB
    write_images(tmp_path / "run.mcap", {"/side": ("rgb8", pictures)})  # beside a stream that ends early
    seen = []
    rc.report([tmp_path / "run.mcap"] * 2, progress=lambda name, share: seen.append(share))
    assert seen == sorted(seen)
    assert len(set(seen)) > 8
    assert seen[-1] == pytest.approx(1)


def test_nothing_to_see():
    for recording in (made(), made(batch("/a", np.zeros((0, 2)), [])), made(batch("/a", [[1.0]], [START]))):
        found = rc.report(recording)
        Reader(found.html)
        assert "No moment stands out" in found.html


@pytest.mark.parametrize("value", [1e308, 1e-300, 2**53, np.inf])
def test_any_numbers_can_be_drawn(value):
    t = START + np.arange(100) * 10 * MS
    for values in (np.full((100, 1), value), np.where(np.arange(100)[:, None] % 2, value, -value)):
        page = rc.report(made(batch("/a", values, t))).html
        assert "nan" not in "".join(re.findall(r' d="([^"]*)"', page))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "times",
    [
        [-(2**62), -5, 0, 5, 2**62],
        [-(2**63) + 1, 0, 2**63 - 1],
        [-(2**63), *range(30), 2**63 - 1],
        [*range(2**62, 2**62 + 40)],
        [0, 2**61],
    ],
)
def test_an_episode_that_is_longer_than_a_timeline_has_no_ages(times):
    found = rc.report(made(batch("/a", np.ones((len(times), 1)), times), batch("/b", wave(np.arange(9)), np.arange(9))))
    assert found.recordings[0]["streams"]["/a"]["age"] is None
    assert any("ages in episodes of more than 70 years" in each for each in found.recordings[0]["left_out"])
    Reader(found.html)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("odd", [[0], [2**63 - 1], [-(2**63)], [2**62], [2**63 - 1, -(2**63)]])
@pytest.mark.parametrize("which", ["stamp", "arrival"])
def test_stamps_that_cannot_be_leave_a_page(which, odd):
    t = START + np.arange(300) * 10 * MS
    wrong = t.copy()
    wrong[100 : 100 + len(odd)] = odd
    stamps, arrivals = (wrong, t) if which == "stamp" else (t, wrong)
    found = rc.report(made(batch("/a", wave(t), stamps, arrivals, metadata={"time": "stamp"})))
    Reader(found.html)
    for drawn in re.findall(r' (?:d|viewBox|transform)="([^"]*)"', found.html):
        assert "nan" not in drawn
        assert "inf" not in drawn


def test_the_ticks_of_a_moment_are_its_samples():
    t = START + np.delete(np.arange(1000), np.arange(400, 450)) * 10 * MS
    found = rc.report(made(batch("/a", wave(t), t)))
    (moment,) = found.recordings[0]["moments"]
    margin = (moment["end_ns"] - moment["start_ns"]) * 3 // 4
    low, high = moment["start_ns"] - margin, moment["end_ns"] + margin
    columns = {int(column) for column in (t[(t >= low) & (t < high)] - low) * 240 // (high - low)}
    drawn = re.search(r'<svg class="ticks".*?d="([^"]*)"', found.html)[1]
    boxes = re.findall(r"M(\d+) 0h(\d+)v1", drawn)
    assert {k for begin, wide in boxes for k in range(int(begin), int(begin) + int(wide))} == columns


def test_no_recording_is_overwritten(tmp_path):
    t = START + np.arange(100) * 10 * MS
    recording = made(batch("/a", wave(t), t))
    place = tmp_path / "run.mcap"
    place.write_bytes(b"\x89MCAP0\r\n, and what was recorded")
    for wrong, words in (
        (place, "run.mcap: exists already, and is no HTML file; it is not overwritten"),
        (tmp_path, "cannot be written: Is a directory"),
        (tmp_path / "no" / "a.html", "cannot be written: No such file or directory"),
        (place / "a.html", "cannot be written: Not a directory"),
    ):
        with pytest.raises(rc.FileError, match=re.escape(words)):
            rc.report(recording, wrong)
    assert recording._source.passes == 0
    with pytest.raises(rc.FileError, match="is not overwritten"):
        rc.report(recording).save(place)
    assert place.read_bytes().endswith(b"what was recorded")
    (tmp_path / "link.html").symlink_to("target.html")
    (tmp_path / "target.html").touch()  # an empty file is nobody's
    for name in ("link.html", "target.html"):  # then an earlier page is replaced
        rc.report(recording, tmp_path / name)
    assert (tmp_path / "link.html").is_symlink()
    assert rc.report_data(tmp_path / "target.html")["recordings"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_stays_a_pipe(tmp_path):
    t = START + np.arange(100) * 10 * MS
    os.mkfifo(tmp_path / "pipe")
    with open(os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK), encoding="utf-8") as reader:
        found = rc.report(made(batch("/a", wave(t), t)), tmp_path / "pipe")  # fits in the pipe's buffer of 64 KiB
        assert (tmp_path / "pipe").is_fifo()
        assert reader.read() == found.html


@pytest.mark.parametrize("value", [10**400, -(10**400), float("nan"), float("inf"), True, "3", None, [], {}])
def test_an_earlier_report_may_have_any_numbers(tmp_path, value):
    from robocache._report.difference import BEGIN, END, MEASURES

    t = START + np.delete(np.arange(100), [50, 51, 52]) * 10 * MS
    recording = made(batch("/a", wave(t), t, t + MS, metadata={"time": "stamp"}))
    before = rc.report(recording).data
    stream = before["recordings"][0]["streams"]["/a"]
    stream.update({key: value for key, *_ in MEASURES}, age={"p99_ms": value})
    (tmp_path / "earlier.html").write_text(BEGIN + json.dumps(before) + END)
    assert rc.report(recording, against=tmp_path / "earlier.html").data["against"]["changes"] == []


def test_wrong_arguments():
    for wrong in (0, -1, True, "50"):
        with pytest.raises((TypeError, ValueError), match="report: rate is"):
            rc.report(made(), rate=wrong)
    with pytest.raises(ValueError, match="report: gap is"):
        rc.report(made(), gap=-1.0)
    with pytest.raises(TypeError, match="report: gap is '1'; expected a positive number of seconds"):
        rc.report(made(), gap="1")
    with pytest.raises(TypeError, match="report: expected a recording"):
        rc.report(5)
    with pytest.raises(ValueError, match="report: no recording was given"):
        rc.report([])


def test_the_command(tmp_path, monkeypatch):
    testing = pytest.importorskip("typer.testing", reason="Typer is not installed")
    from test_mcap_recording import write

    from robocache.cli.commands import application

    def robocache(*words):
        return testing.CliRunner().invoke(application, list(words))

    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.mcap", {"/fast": 100, "/slow": 10})
    done = robocache("report", "a.mcap", "-o", "a.html", "--rate", "20")
    assert done.exit_code == 0, done.output
    assert "Verdict: 2 of 2 streams good." in done.output
    assert "Wrote a.html: 1 recording" in done.output
    assert rc.report_data("a.html")["rate_hz"] == 20
    done = robocache("report", "a.mcap", "-o", "b.html", "--against", "a.html", "--gap", "0.001")
    assert "Since a.html: " in done.output
    assert rc.report_data("b.html")["recordings"][0]["streams"]["/slow"]["gaps"] > 0
    (tmp_path / "broken.mcap").write_bytes(b"no recording")
    done = robocache("report", "a.mcap", "broken.mcap", "-o", "c.html")
    assert done.exit_code == 1
    assert "robocache report: " in done.stderr
    assert "broken.mcap" in done.stderr
    assert rc.report_data("c.html")["recordings"][0]["name"] == "a.mcap"
    for words, message in (
        (("none.mcap", "-o", "d.html"), "none.mcap: No such file"),
        (("a.mcap", "-o", "no/d.html"), "no/d.html: cannot be written: No such file or directory"),
        (("a.mcap", "-o", "d.html", "--against", "a.mcap"), "a.mcap: is no report of RoboCache"),
    ):
        done = robocache("report", *words)
        assert done.exit_code == 1
        assert message in " ".join(done.stderr.split())
    assert robocache("report", "a.mcap", "-o", "d.html", "--rate", "-3").exit_code == 2


# ---- In a browser


WIDE = """[...document.querySelectorAll('body *')].filter(e => !e.closest('.wide, pre, svg'))
    .filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 120))"""
EMPTY = """[...document.querySelectorAll('svg, img')].filter(e => e.getBoundingClientRect().height < 5
    || e.getBoundingClientRect().width < 40 || (e.tagName == 'IMG' && !e.naturalWidth))
    .map(e => e.outerHTML.slice(0, 120))"""


SEEN = "[...document.querySelectorAll('details > :not(summary)')].filter(e => e.checkVisibility())"


def in_browser(folder):
    """A page with all that a page can have, and long and hostile names."""
    t = START + np.arange(600) * 33 * MS
    gappy = np.delete(t, np.arange(200, 260))
    image = encoded(np.full((240, 320, 3), 90, np.uint8), "JPEG")
    data = np.frombuffer(image * len(gappy), np.uint8)
    told = {"metadata": {"time": "stamp"}}
    about = {"ragged": True, "shape": (), "metadata": {"format": "jpeg", "time": "stamp"}}
    long = "/robot/left_arm/" + "very_long_name_of_a_topic" * 4
    recording = made(
        batch(long, data, gappy, gappy + 30 * MS, lengths=np.full(len(gappy), len(image)), **about),
        batch("/joints", wave(t, 7), t, t + 2 * MS + (t - START) // 2000, **told),
        batch(f"/{EVIL}", np.ones((600, 2)), t, t + 3 * MS, **told),
        batch("/few", np.arange(4.0)[:, None], t[[3, 50, 300, 500]], **told),
        batch("/joints", wave(t, 7), t, t + 2 * MS, episode=1, **told),
        tasks=(EVIL, "a task of many words " * 8),
    )
    earlier = folder / "earlier.html"
    rc.report(made(batch("/joints", wave(gappy, 7), gappy)), earlier)
    rc.report(recording, folder / "page.html", against=earlier)
    rc.report([recording, evil()], folder / "several.html")


def test_in_a_real_browser(tmp_path):
    pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    with browser(tmp_path / "profile") as page:
        in_browser(tmp_path)
        colours = set()
        for name in ("page.html", "several.html"):
            for width in (390, 1280):
                for scheme in ("light", "dark"):
                    page.open(tmp_path / name, width, scheme=scheme)
                    assert page.said == []
                    assert page.value("innerWidth") == width
                    assert page.value("document.documentElement.scrollWidth") <= width  # no scrolling to the side
                    assert page.value(WIDE) == []
                    assert page.value(EMPTY) == []
                    colours.add((scheme, page.value("getComputedStyle(document.body).backgroundColor")))
        assert len(colours) == 2
        assert page.value("document.title").startswith("Report: 2 recordings")
        assert page.value("[...document.scripts].length") == 1  # the data
        page.open(tmp_path / "page.html", 794)  # A4
        count = page.value("document.querySelectorAll('details').length")
        assert count >= 1
        assert page.value(f"{SEEN}.length") == 0
        page.as_printed()
        assert page.value(f"{SEEN}.length") == count  # in print, every folded part is open
        page.pdf(tmp_path / "page.pdf")
        assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
