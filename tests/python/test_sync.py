"""The sync report says what was put into the recording: jitter, gaps, lost samples, offsets, drift, dead channels."""

import json

import numpy as np
import pytest
from recordings import batch, made, shared

import robocache as rc
from robocache._recordings.words import figures

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND
random = np.random.default_rng(3)


def clock(rate, seconds, jitter=0.0):
    count = int(rate * seconds)
    t = np.arange(count) / rate + random.normal(0, jitter, count)
    return START + np.rint(np.sort(t) * 1e9).astype(np.int64)


def report_of(*batches, **options):
    return rc.sync_report(made(*batches), **options)


def wave(times, channels=3):
    return np.sin((times[:, None] - START) * 1e-9 * np.arange(1, channels + 1))


def test_a_regular_stream():
    times = clock(100, 10, 0.0002)
    report = report_of(batch("/joints", wave(times), times, times + 3_000_000))
    joints = report.streams["/joints"]
    assert joints.rate_hz == pytest.approx(100, rel=1e-2)
    assert joints.jitter_ms_p50 == pytest.approx(0.19, rel=0.3)  # the median of |N(0, 0.2 sqrt 2)|
    assert joints.jitter_ms_p99 < 1.2
    assert (joints.gaps, joints.lost, joints.duplicates, joints.backward) == (0, 0, 0, 0)
    assert joints.offset_ms == 3
    assert joints.offset_spread_ms == 0
    assert abs(joints.drift_ppm) < 1e-6
    assert joints.coverage == 1
    assert joints.constant_channels == []
    assert joints.source == "stamp"
    assert (joints.level, joints.verdict) == ("good", "regular, nothing lost")
    assert report.verdict == "1 of 1 stream good."


def test_gaps_and_lost_samples():
    times = clock(50, 10)
    keep = np.ones(len(times), bool)
    keep[100:140] = False  # 40 of them: a gap of 41 periods
    keep[[300, 302]] = False  # two that are lost one by one
    report = report_of(batch("/camera", wave(times[keep]), times[keep], times[keep]), batch("/imu", wave(times), times))
    camera = report.streams["/camera"]
    assert (camera.gaps, camera.lost) == (1, 42)
    assert camera.longest_gap_s == pytest.approx(0.82)
    assert camera.gap_threshold_ms == pytest.approx(60)
    assert camera.coverage == pytest.approx(1 - 0.82 / 9.98)
    assert "1 gap, longest 0.82 s: set max_gap" in camera.verdict
    assert report_of(batch("/c", wave(times[keep]), times[keep]), gap=0.9).streams["/c"].gaps == 0
    assert report.level == "fair"
    assert report.verdict == "1 of 2 streams good; usable with care: /camera."


def test_duplicate_and_backward_stamps():
    times = clock(100, 1)
    times[10] = times[9]
    times[[20, 21]] = times[[21, 20]]
    stream = report_of(batch("/a", wave(times), times, np.sort(times) + 5)).streams["/a"]
    assert (stream.duplicates, stream.backward) == (1, 1)
    assert "1 duplicate stamp" in stream.verdict
    assert "1 stamp went backward" in stream.verdict


def test_drift_shows_through_delays_that_only_add():
    times = clock(100, 60)
    arrivals = (
        times + np.rint((times - START) * 400e-6).astype(np.int64) + random.exponential(2e6, len(times)).astype(int)
    )
    stream = report_of(batch("/a", wave(times), times, arrivals)).streams["/a"]
    assert stream.drift_ppm == pytest.approx(400, abs=10)
    assert stream.level == "bad"
    assert "drifts by +40" in stream.verdict or "drifts by +39" in stream.verdict
    short = times[:150]
    assert report_of(batch("/a", wave(short), short, short + 1)).streams["/a"].drift_ppm is None


def test_clocks_that_disagree():
    times = clock(100, 5)
    ahead = report_of(batch("/a", wave(times), times, times - 40_000_000)).streams["/a"]
    assert "stamps lie 40 ms ahead of their arrival" in ahead.verdict
    behind = report_of(batch("/a", wave(times), times, times + 7 * SECOND)).streams["/a"]
    assert "stamps lie 7 s behind their arrival" in behind.verdict
    assert ahead.level == behind.level == "bad"


def test_a_delay_that_other_streams_do_not_have():
    times = clock(100, 5)
    late = {"/a": 2, "/b": 8, "/c": 30, "/imu": 252}
    report = report_of(*(batch(name, wave(times), times, times + ms * 1_000_000) for name, ms in late.items()))
    imu = report.streams["/imu"]
    assert "stamps lie 252 ms behind their arrival, those of others 19 ms" in imu.verdict
    assert [stream.level for stream in report.streams.values()] == ["good", "good", "good", "fair"]


def test_channels_that_never_change():
    times = clock(100, 1)
    values = wave(times)
    values[:, 1] = 4
    values[:50, 2] = np.nan
    stream = report_of(batch("/a", values[:50], times[:50]), batch("/a", values[50:], times[50:])).streams["/a"]
    assert stream.constant_channels == ["c1"]
    assert stream.not_finite == 50
    assert "1 of 3 channels never change" in stream.verdict
    level = report_of(batch("/a", np.nan_to_num(values), times)).streams["/a"]
    assert (level.level, level.verdict) == ("good", "regular, nothing lost; 1 of 3 channels never change")
    marks = report_of(batch("valid.a", np.ones((100, 1)), times)).streams["valid.a"]
    assert marks.level == "good"
    dead = report_of(batch("/a", np.ones((100, 2)), times)).streams["/a"]
    assert (dead.level, dead.verdict) == ("bad", "no channel ever changes: is the sensor alive?")


def test_streams_on_change_and_of_few_samples():
    change = START + np.array([0, 1, 500, 501, 2000, 9000]) * 1_000_000
    times = clock(10, 9)
    report = report_of(
        batch("/gripper", np.arange(6)[:, None], change),
        batch("/one", [[1.0]], [START]),
        batch("/half", wave(times[:45]), times[:45]),
        batch("/whole", wave(times), times),
    )
    gripper = report.streams["/gripper"]
    assert (gripper.regular, gripper.rate_hz, gripper.gaps) == (False, None, None)
    assert "irregular" in gripper.verdict
    assert report.streams["/one"].verdict == "one sample only"
    even = report_of(batch("/mode", [[0], [1], [2]], START + np.arange(3) * SECOND)).streams["/mode"]
    assert (even.regular, even.rate_hz) == (False, None)  # two steps are equal by chance
    assert "3 samples only" in even.verdict
    half = report.streams["/half"]
    assert half.ends_before_s == pytest.approx(4.6)
    assert half.level == "bad"


def test_episodes_are_apart():
    times = clock(100, 1)
    later = times + 3600 * SECOND
    recording = made(batch("/a", wave(times), times), batch("/a", wave(later), later, episode=1), tasks=(None, None))
    report = rc.sync_report(recording)
    assert report.streams["/a"].gaps == 0
    assert report.duration_s == pytest.approx(1.98)
    assert report.episodes == 2


def test_log_time_is_told():
    times = clock(100, 1)
    assert report_of(batch("/a", wave(times), times)).streams["/a"].source == "log"
    mixed = times.copy()
    mixed[::2] -= 5_000_000
    assert report_of(batch("/a", wave(times), mixed, times)).streams["/a"].source == "mixed"


def test_the_times_of_a_cache_may_differ_from_episode_to_episode(tmp_path):
    times = clock(100, 1)
    for told in (("stamp", "log"), ("stamp", "stamp")):
        path = tmp_path / "-".join(told)
        with rc.CacheWriter(path) as writer:
            for source in told:
                writer.add(made(batch("/a", wave(times), times, times + 5, metadata={"time": source})))
        stream = rc.sync_report(rc.open(path)).streams["/a"]
        assert stream.source == ("mixed" if "log" in told else "stamp")
        assert ("some samples have no stamp" in stream.verdict) == ("log" in told)


def test_numbers_are_readable():
    assert [figures(x) for x in (0, 1e-6, 0.03, 999.6, 1500, 12345.6, -40)] == [
        "0",
        "0.000001",
        "0.03",
        "1000",
        "1500",
        "12300",
        "-40",
    ]
    assert figures(1.5, sign=True) == "+1.5"
    slow = START + np.arange(20) * 600 * SECOND
    slow[7] += 1500 * 1_000_000
    text = str(report_of(batch("/a", wave(slow), slow, slow + 1), batch("/b", wave(slow), slow + np.arange(20) % 2)))
    assert "e+0" not in text
    assert "e-0" not in text


def test_it_prints_and_is_a_dict(capsys):
    times = clock(100, 1)
    report = report_of(batch("/a", wave(times), times, times + 7), batch("/b", np.ones((100, 1)), times))
    text = str(report)
    assert "Sync report: MCAP, 1 episode, 0.99 s" in text
    assert "/b: no channel ever changes" in text
    assert text.endswith("Verdict: 1 of 2 streams good; to be looked at before training: /b.")
    report.show()
    assert "Verdict:" in capsys.readouterr().out
    again = json.loads(json.dumps(report.as_dict()))
    assert again["streams"]["/a"]["rate_hz"] == pytest.approx(100)
    assert repr(report).startswith("SyncReport('made.mcap', 2 streams, bad:")


def test_no_samples_at_all():
    report = report_of()
    assert report.verdict == "there are no streams"
    empty = report_of(batch("/a", np.zeros((0, 2)), []))
    assert empty.streams["/a"].verdict == "no samples"


def test_the_shared_data_set():
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    report = rc.sync_report(rc.open(shared("lerobot-v3-so101")))
    action = report.streams["action"]
    assert action.rate_hz == pytest.approx(30)
    assert (action.gaps, action.lost, action.source) == (0, 0, "file")
    assert action.constant_channels == [f"j{k}" for k in range(6)]  # as its own stats.json says


def test_jitter_is_no_loss():
    """FINDINGS 38: of 30,000 samples with 20 % Gaussian jitter, none missing, 1,151 were said to be lost."""
    rng = np.random.default_rng(38)
    times = np.sort(np.rint((np.arange(30_000) + rng.normal(0, 0.2, 30_000)) * 1e7).astype(np.int64))
    stream = report_of(batch("/a", wave(times), times)).streams["/a"]
    assert stream.regular
    assert stream.lost == 0
    kept = np.delete(times, np.arange(1000, 1005))  # a gap that no jitter explains
    assert report_of(batch("/a", wave(kept), kept)).streams["/a"].lost == pytest.approx(5, abs=1)
    even = np.delete(np.arange(3000) * 10_000_000, [100, 200, 201])
    assert report_of(batch("/a", wave(even), even)).streams["/a"].lost == 3


def lost_of(times):
    times = np.sort(np.rint(times).astype(np.int64))
    return report_of(batch("/a", wave(times), times)).streams["/a"].lost


def test_losses_that_hide_in_jitter_are_counted_over_the_span():
    """Of 1,000 samples that were removed at random under 20 % jitter, 122 were said to be lost."""
    rng = np.random.default_rng(1)
    ticks = np.arange(30_000)
    jitter = rng.normal(0, 0.2, 30_000)
    times = (ticks + jitter) * 1e7
    assert lost_of(np.delete(times, rng.choice(30_000, 1000, replace=False))) == pytest.approx(1000, rel=0.2)
    assert lost_of(times) == 0
    assert lost_of((ticks * (1 + 2e-6 * ticks) + jitter) * 1e7) == 0  # its rate drifts by 6 %
    assert lost_of((ticks + 200 * np.sin(ticks / 2000) + jitter) * 1e7) == 0  # its rate swings by 10 %
    assert lost_of(np.cumsum(np.maximum(1 + rng.normal(0, 0.2, 30_000), 0.05)) * 1e7) == 0  # each period varies
    assert lost_of(np.cumsum(np.tile([0.9, 0.9, 1.3], 10_000)) * 1e7) == 0


def test_a_late_sample_is_not_a_lost_one():
    """Of 8,000 samples of which 1 in 5 was 0.6 periods late and none missing, 1,298 were said to be lost."""
    rng = np.random.default_rng(2)
    ticks = np.arange(8000.0)
    late = np.where(rng.random(8000) < 0.2, 0.6, 0.0) + rng.normal(0, 0.02, 8000)
    assert lost_of((ticks + late) * 1e7) <= 2  # the end may hide what caught up
    held = ticks.copy()  # hold-ups, and bursts after them
    for at in range(100, 8000, 200):
        held[at : at + 6] = ticks[at + 5] + np.arange(6) * 0.05
    assert lost_of(held * 1e7) == 0
    missing = rng.choice(np.arange(20, 7980), 100, replace=False)
    assert lost_of(np.delete(held, missing) * 1e7) == pytest.approx(100, abs=12)
    rate = np.where(ticks // 500 % 4 == 1, 1.2, 1.0)  # of a camera that adapts to the light
    assert lost_of(np.delete(np.cumsum(1 / rate), np.arange(50, 8000, 100)) * 1e7) == 80


def test_what_is_commanded_may_be_constant():
    """FINDINGS 39: empty topics and constant setpoints were called bad."""
    times = np.arange(100) * 10_000_000
    still = np.ones((100, 2))
    assert report_of(batch("/cmd_vel", still, times)).streams["/cmd_vel"].level == "good"
    assert report_of(batch("/a", still, times, type="demo/msg/JointCommand")).streams["/a"].level == "good"
    assert report_of(batch("/mode", still.astype(np.uint8), times)).streams["/mode"].level == "good"
    assert report_of(batch("/imu", still, times)).streams["/imu"].level == "bad"
    assert report_of(batch("/rosout", np.zeros((0, 2)), [])).streams["/rosout"].level == "fair"
