"""One clock for a recording: bags whose true times are known, built and aligned, beside the truth."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from clock_files import (
    SECOND,
    TYPES,
    WALL,
    Message,
    encoded,
    once,
    paced,
    sampled,
    signal,
    write_db3,
    write_mcap,
)
from recordings import batch, made
from typer.testing import CliRunner

import robocache as rc
from robocache import mcap
from robocache._cache.recipe import load_recipe
from robocache._recordings import clock as clocks
from robocache.cli.commands import application

LENGTH = 30.0  # seconds of the recording's clock
RATES = [0.1, 0.5, 1.0, 3.0, None]


def simulation(rate: float | None, has_clock: bool, length: float = LENGTH) -> list[Message]:
    """Two stamped streams, one without stamps, and a transform that never changes."""
    wall = paced(rate)
    messages = sampled("/imu", 100, length, wall) + sampled("/odom", 50, length, wall, seed=1)
    messages += sampled("/cmd", 20, length, wall, kind="plain")
    messages += [once("/tf_static", "tree", 0.0, 0.0, 5.0)]
    return messages + (sampled("/clock", 100, length, wall, kind="clock") if has_clock else [])


def built(tmp_path, path, **options) -> rc.Cache:
    target = tmp_path / "cache"
    with rc.CacheWriter(target) as writer:
        writer.add(rc.open(path, **options))
    return rc.Cache(target)


def errors(aligned, name: str) -> np.ndarray:
    """Of aligned values beside the signal at the true times, where they are valid."""
    times, found = aligned.times[0] * 1e-9, aligned[name]
    assert found.valid[0].mean() > 0.99
    return np.abs(found.values[0, :, 0] - signal(times))[found.valid[0]]


@pytest.mark.parametrize("has_clock", [True, False])
@pytest.mark.parametrize("rate", RATES)
def test_a_simulation_at_any_real_time_factor(tmp_path, rate, has_clock):
    path = write_mcap(tmp_path / "sim.mcap", simulation(rate, has_clock))
    cache = built(tmp_path, path)
    (episode,) = cache.episodes
    assert abs(episode.duration - LENGTH) < 0.1  # of simulated seconds
    aligned = cache.align(rate=50)
    assert abs(aligned.lengths[0] - LENGTH * 50) < 10
    late = 0.002 * (rate or 1.5)  # how far simulated time goes on while a message is under way
    assert errors(aligned, "/imu").max() < 1e-3  # linear between samples of 100 Hz
    assert errors(aligned, "/cmd").max() < 2 * late + 0.005  # its times are log times, carried over
    assert aligned["/tf_static/b"].valid.all()
    assert (aligned["/tf_static/b"].values[..., 0] == 5.0).all()
    assert (aligned["/tf_static/b"].age == 0).all()
    clock = rc.open(path).clock
    assert clock["kind"] == "carried"
    assert clock["by"] == ("/clock" if has_clock else "stamps")
    if rate is not None:
        assert abs(clock["rate"] / rate - 1) < 1e-3
    else:
        assert clock["slowest"] < 0.6
        assert clock["fastest"] > 1.3


@pytest.mark.parametrize("has_clock", [True, False])
@pytest.mark.parametrize("rate", [0.1, 3.0, None])
def test_arrivals_are_on_the_recordings_clock(tmp_path, rate, has_clock):
    """FINDINGS 32: causal had nothing valid, since arrivals were wall time."""
    path = write_mcap(tmp_path / "sim.mcap", simulation(rate, has_clock))
    aligned = built(tmp_path, path).align(rate=50, causal=True)
    times = aligned.times[0] * 1e-9
    late = 0.002 * (rate or 1.5) + (0.01 if rate is None else 0.004)
    for name, period in (("/imu", 0.01), ("/odom", 0.02), ("/cmd", 0.05)):
        found = aligned[name]
        assert found.valid[0, 10:].all()
        held = np.abs(found.values[0, 10:, 0] - signal(times[10:]))
        assert held.max() < period + 2 * late  # the last sample that had arrived is no older
    imu = rc.open(path).streams["/imu"]
    delay = (imu.arrivals - imu.times) * 1e-9
    assert np.abs(delay).max() < 2 * late


@pytest.mark.parametrize("has_clock", [True, False])
def test_every_format_and_access_path_gives_the_same(tmp_path, has_clock):
    messages = simulation(0.5, has_clock)
    path = write_mcap(tmp_path / "sim.mcap", messages)
    whole = dict(rc.open(path).streams.items())
    for name, stream in whole.items():
        alone = rc.open(path).streams[name]
        assert np.array_equal(alone.times, stream.times)
        assert np.array_equal(alone.arrivals, stream.arrivals)
    cached = built(tmp_path, path).episodes[0].streams
    table = rc.open(write_db3(tmp_path / "sim.db3", messages)).streams
    bag = rc.open(split_bag(tmp_path / "bag", messages)).streams
    with path.open("rb") as file:
        opened = dict(rc.open(file).streams.items())
    for other in (cached, table, bag, opened):
        assert set(other) == set(whole)
        for name, stream in whole.items():
            assert np.array_equal(other[name].times, stream.times), name
            assert np.array_equal(other[name].arrivals, stream.arrivals), name
            assert np.array_equal(other[name].values, stream.values), name


def split_bag(folder, messages):
    """A rosbag2 directory of two files."""
    folder.mkdir()
    messages = sorted(messages, key=lambda message: message.log)
    half = len(messages) // 2
    write_mcap(folder / "a_0.mcap", messages[:half])
    write_mcap(folder / "a_1.mcap", messages[half:])
    (folder / "metadata.yaml").write_text(
        "rosbag2_bagfile_information:\n  version: 5\n  storage_identifier: mcap\n"
        "  relative_file_paths: [a_0.mcap, a_1.mcap]\n  compression_format: ''\n  compression_mode: ''\n"
    )
    return folder


def test_json_messages_too(tmp_path):
    wall = paced(0.5)
    messages = sampled("/a", 50, LENGTH, wall) + sampled("/b", 20, LENGTH, wall, kind="plain")
    with mcap.Writer(tmp_path / "j.mcap") as writer:
        schema = writer.add_schema("demo", "jsonschema", b"{}")
        channels = {topic: writer.add_channel(topic, "json", schema) for topic in ("/a", "/b")}
        for message in sorted(messages, key=lambda found: found.log):
            body: dict[str, object] = {"value": message.value}
            if message.topic == "/a":
                body["header"] = {"stamp": {"sec": message.stamp // SECOND, "nanosec": message.stamp % SECOND}}
            writer.write(channels[message.topic], json.dumps(body).encode(), log_time=message.log)
    recording = rc.open(tmp_path / "j.mcap")
    assert recording.clock["kind"] == "carried"
    found = recording.streams["/b"]
    assert np.abs(found.values[:, 0] - signal(found.times * 1e-9)).max() < 0.005


def test_a_wall_clock_is_left_alone(tmp_path):
    """Stamps near log time: nothing is carried over, and no more than a glance is read."""
    true = lambda t: t + WALL * 1e-9  # noqa: E731
    wall = paced(1.0)
    messages = sampled("/imu", 100, LENGTH, wall, stamp=true) + sampled("/cmd", 20, LENGTH, wall, kind="plain")
    path = write_mcap(tmp_path / "wall.mcap", messages)
    recording = rc.open(path)
    assert recording.clock["kind"] == "with log time"
    imu, cmd = recording.streams["/imu"], recording.streams["/cmd"]
    logs = {topic: [m.log for m in messages if m.topic == topic] for topic in ("/imu", "/cmd")}
    assert imu.arrivals.tolist() == sorted(logs["/imu"])
    assert sorted(imu.times.tolist()) == sorted(m.stamp for m in messages if m.topic == "/imu")
    assert cmd.times.tolist() == cmd.arrivals.tolist() == sorted(logs["/cmd"])
    assert not recording.notes


def test_wall_and_simulated_time_in_one_bag(tmp_path):
    """The clock of most streams wins; a device on wall time is carried over to it."""
    wall = paced(0.5)
    epoch = WALL * 1e-9
    messages = simulation(0.5, False)
    messages += sampled("/joy", 30, LENGTH, wall, stamp=lambda true: epoch + wall(true))
    path = write_mcap(tmp_path / "mixed.mcap", messages)
    clock = rc.open(path).clock
    assert clock["kind"] == "carried"
    assert clock["agreeing"] == 2
    assert clock["streams"]["/joy"]["source"] == "own"
    assert abs(clock["streams"]["/joy"]["drift_ppm"]) < 100
    aligned = built(tmp_path, path).align(rate=50)
    assert errors(aligned, "/joy").max() < 0.005
    assert any("/joy is stamped by a clock of its own" in note for note in rc.open(path).streams._source.notes) or any(
        "/joy is stamped by a clock of its own" in sentence for sentence in rc.sync_report(rc.open(path)).sentences()
    )


def test_a_simulated_stream_in_a_recording_on_wall_time_is_told_by_its_real_time_factor(tmp_path):
    """It was said to drift by +428573 ppm."""
    wall = paced(0.7)
    start = WALL * 1e-9
    messages = [m for name in "abc" for m in sampled(f"/{name}", 50, 20, wall, stamp=lambda true: start + wall(true))]
    recording = rc.open(write_mcap(tmp_path / "r.mcap", [*messages, *sampled("/sim", 50, 20, wall)]))
    assert recording.streams["/sim"].times.size
    (note,) = [note for note in recording.notes if note.startswith("/sim is stamped by a clock of its own")]
    assert "real-time factor 0.7" in note
    assert "ppm" not in note


def camera_on_uptime(tmp_path):
    wall = paced(1.0)
    true = lambda t: t + WALL * 1e-9  # noqa: E731
    messages = sampled("/imu", 100, 100, wall, stamp=true) + sampled("/odom", 50, 100, wall, stamp=true)
    messages += sampled("/camera", 30, 100, wall, stamp=lambda t: 3600.0 + t * (1 + 400e-6))
    return write_mcap(tmp_path / "camera.mcap", messages)


def test_a_camera_on_uptime_with_drift(tmp_path):
    path = camera_on_uptime(tmp_path)
    recording = rc.open(path)
    clock = recording.clock
    assert clock["kind"] == "with log time"
    assert clock["streams"]["/camera"]["source"] == "own"
    assert abs(clock["streams"]["/camera"]["drift_ppm"] + 400) < 15  # its clock is fast: log time runs slower
    camera = recording.streams["/camera"]
    seconds = (camera.times - WALL) * 1e-9
    assert np.abs(camera.values[:, 0] - signal(seconds)).max() < 0.004
    assert np.array_equal(camera.arrivals, rc.open(path, "log").streams["/camera"].times)
    imu = rc.open(path).streams["/imu"]  # those on the recording's clock are left alone
    assert np.array_equal(imu.times, rc.open(path, "stamp").streams["/imu"].times)
    aligned = built(tmp_path, path).align(rate=50, targets=None)
    times = aligned.times[0] * 1e-9 - WALL * 1e-9
    assert np.abs(aligned["/camera"].values[0, :, 0] - signal(times)).max() < 0.005


def test_a_recipe_and_time_stamp_leave_it_as_stamped(tmp_path):
    path = camera_on_uptime(tmp_path)
    raw = rc.open(path, "stamp").streams["/camera"].times
    assert raw[0] < 3700 * SECOND
    recipe = tmp_path / "r.toml"
    recipe.write_text('[streams."/camera"]\nclock = "as stamped"\n[streams."/imu"]\n')
    cooked = load_recipe(recipe)
    recording = cooked.apply(cooked.open(path))
    assert np.array_equal(recording.streams["/camera"].times, raw)
    assert np.array_equal(pickle.loads(pickle.dumps(recording)).streams["/camera"].times, raw)
    recipe.write_text('[streams."/camera"]\nclock = "its own"\n')
    with pytest.raises(ValueError, match='clock is "its own"; expected "as stamped"'):
        load_recipe(recipe)
    recipe.write_text('[streams.a]\ntopic = "/camera"\nclock = "as stamped"\n[streams.b]\ntopic = "/camera"\n')
    with pytest.raises(ValueError, match="/camera is taken twice"):
        load_recipe(recipe).open(path)


@pytest.mark.parametrize("hours", [-8, 2])
def test_a_device_in_another_time_zone(tmp_path, hours):
    wall = paced(1.0)
    true = lambda t: t + WALL * 1e-9  # noqa: E731
    messages = sampled("/imu", 100, LENGTH, wall, stamp=true) + sampled("/odom", 50, LENGTH, wall, stamp=true)
    messages += sampled("/gps", 10, LENGTH, wall, stamp=lambda t: true(t) + 3600.0 * hours)
    recording = rc.open(write_mcap(tmp_path / "zone.mcap", messages))
    assert abs(recording.clock["streams"]["/gps"]["offset_s"] + 3600 * hours) < 0.01
    gps = recording.streams["/gps"]
    assert np.abs(gps.values[:, 0] - signal((gps.times - WALL) * 1e-9)).max() < 0.004


def test_all_stamps_in_another_time_zone_are_the_clock(tmp_path):
    """Stamps 2 hours off, in every stream: they are the recording's clock, and arrivals are carried over to it."""
    wall, shift = paced(1.0), 7200.0
    true = lambda t: t + WALL * 1e-9 + shift  # noqa: E731
    messages = sampled("/imu", 100, LENGTH, wall, stamp=true) + sampled("/odom", 50, LENGTH, wall, stamp=true)
    recording = rc.open(write_mcap(tmp_path / "zone.mcap", messages))
    assert recording.clock["kind"] == "carried"
    assert recording.clock["is_wall"]
    imu = recording.streams["/imu"]
    assert imu.times.tolist() == sorted(m.stamp for m in messages if m.topic == "/imu")
    assert np.abs(imu.arrivals - imu.times).max() < 0.005 * SECOND


@pytest.mark.parametrize("rate", [0.5, 1.0])
def test_zero_stamps_get_log_time_on_the_clock(tmp_path, rate):
    """Every fourth stamp is zero, as drivers do before they are synchronised; one driver never stamps."""
    messages = simulation(rate, False)
    holes = [
        m._replace(stamp=0) if m.topic == "/odom" and k % 4 == 0 else m
        for k, m in enumerate(sorted(messages, key=lambda m: m.log))
    ]
    holes += [m._replace(stamp=0, topic="/never") for m in sampled("/n", 25, LENGTH, paced(rate))]
    aligned = built(tmp_path, write_mcap(tmp_path / "zero.mcap", holes)).align(rate=50)
    assert errors(aligned, "/odom").max() < 0.005
    assert errors(aligned, "/never").max() < 0.005


# ---- Resets


@pytest.mark.parametrize("has_clock", [True, False])
@pytest.mark.parametrize("write", [write_mcap, write_db3])
def test_a_reset_begins_an_episode(tmp_path, has_clock, write):
    """The simulator goes back to 0 after 20 s of log time, and runs at another rate from there on."""
    first, second = paced(1.0), lambda true: 20.5 + true / 0.5
    messages = []
    for wall, length, seed in ((first, 20.0, 0), (second, 15.0, 5)):
        messages += sampled("/imu", 100, length, wall, seed=seed) + sampled("/odom", 50, length, wall, seed=seed)
        messages += sampled("/slow", 2, length, wall, seed=seed) + sampled("/cmd", 20, length, wall, kind="plain")
        messages += sampled("/clock", 100, length, wall, kind="clock") if has_clock else []
    # One that was under way while the simulator was reset arrives after it.
    messages += [Message("/odom", "stamped", WALL + int(20.52 * SECOND), int(19.9 * SECOND), float(signal(19.9)))]
    messages += [once("/tf_static", "tree", 0.0, 0.0, 5.0)]
    path = write(tmp_path / ("r.mcap" if write is write_mcap else "r.db3"), messages)
    recording = rc.open(path)
    assert len(recording.episodes) == 2
    assert recording.clock["resets"] == 1
    assert any("its clock was reset once" in note for note in recording.notes)
    cache = built(tmp_path, path)
    assert [round(episode.duration) for episode in cache.episodes] == [20, 15]
    for number, length in ((0, 20), (1, 15)):
        aligned = cache.align(episodes=number, rate=50)
        assert abs(aligned.lengths[0] - 50 * length) < 30
        for name in ("/imu", "/odom", "/cmd"):
            assert errors(aligned, name)[10:].max() < 0.02, name
        assert aligned["/tf_static/b"].valid.all()
        assert (aligned["/tf_static/b"].values[..., 0] == 5.0).all()
    samples = sum(sum(episode.samples.values()) for episode in cache.episodes)
    kept = 1  # the constant is in the second episode, too
    assert samples == len(messages) + kept


@pytest.mark.parametrize(("back", "at"), [(2, 20), (10, 20), (40, 50), (10, 80)])
def test_a_wall_clock_that_is_set_back_begins_an_episode(tmp_path, back, at):
    """Also where it stays within a minute of log time, and wherever in the recording that happens."""
    wall = WALL * 1e-9

    def stamp(true):
        return wall + true - np.where(true > at, back, 0)

    messages = []
    for k, name in enumerate("abc"):
        messages += sampled(f"/{name}", 50, 100, paced(1.0), stamp=stamp, seed=k)
    recording = rc.open(write_mcap(tmp_path / "r.mcap", messages))
    assert [round(episode.duration) for episode in recording.episodes] == [at, 100 - at]
    for episode in recording.episodes:
        stream = episode.streams["/a"]
        assert (np.diff(stream.times) > 0).all()
        assert (np.diff(stream.arrivals) > 0).all()


@pytest.mark.parametrize("pause", [2.0, 8.0])
@pytest.mark.parametrize("at", [5.0, 30.0, 50.0])
def test_a_simulation_that_begins_at_wall_time_and_pauses(tmp_path, pause, at):
    start = WALL * 1e-9

    def wall(true):
        return true + np.where(true > at, pause, 0)

    def stamp(true):
        return start + true

    messages = [m for k, name in enumerate("abc") for m in sampled(f"/{name}", 50, 60, wall, stamp=stamp, seed=k)]
    messages += sampled("/plain", 20, 60, wall, kind="plain")
    recording = rc.open(write_mcap(tmp_path / "r.mcap", messages))
    assert recording.clock["kind"] == "carried"
    plain = recording.streams["/plain"]
    true = (np.asarray(plain.times) - WALL) * 1e-9
    # A stamp every 20 ms of each of three streams: of what lies between two of them in the pause, no more is known.
    assert np.abs(plain.values[:, 0] - signal(true)).max() < 0.02


def pausing(pauses, rate=1.0):
    """True seconds to seconds of log time, of a simulation that pauses: (true second, seconds of log time)."""

    def wall(true):
        return paced(rate)(true) + sum(np.where(true > at, length, 0.0) for at, length in pauses)

    return wall


def times_around_pauses(tmp_path, pauses, ticks, rate=1.0, seed=0):
    """Errors of the times of a topic without stamps, and all delays of a stamped one, in seconds."""
    wall = pausing(pauses, rate)
    messages = sampled("/joint", 200, 20, wall, seed=seed) + sampled("/imu", 100, 20, wall, seed=seed + 1)
    messages += sampled("/clock", ticks, 20, wall, kind="clock", seed=seed + 2) if ticks else []
    plain = sampled("/plain", 50, 20, wall, kind="plain", stamp=lambda true: true, seed=seed + 3)
    recording = rc.open(write_mcap(tmp_path / "r.mcap", [*messages, *plain]))
    assert recording.clock["by"] == ("/clock" if ticks else "stamps")
    found, joint = recording.streams["/plain"], recording.streams["/joint"]
    return (found.times - [m.stamp for m in plain]) * 1e-9, (joint.arrivals - joint.times) * 1e-9


@pytest.mark.parametrize("ticks", [0, 1, 20, 100])
def test_times_and_arrivals_hold_around_a_pause(tmp_path, ticks):
    """All samples count: times without stamps were off by 160 ms, and arrivals lay 21 ms before their stamps."""
    errors, delays = times_around_pauses(tmp_path, [(10.0, 30.0)], ticks)
    assert np.abs(errors).max() < 0.003
    assert delays.max() < 0.003
    assert delays.min() > (-0.003 if ticks else -1e-4)  # a tick is under way for up to 2 ms


@pytest.mark.parametrize("seed", range(12))
def test_random_pauses(tmp_path, seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 5))
    pauses = list(zip(rng.uniform(0.5, 19.5, count), 10 ** rng.uniform(-1.2, 1.8, count), strict=True))
    rate = float(rng.choice([0.3, 1.0, 2.0]))
    ticks = [0, int(rng.choice([1, 2, 5, 10, 30, 100]))][seed % 2]
    errors, delays = times_around_pauses(tmp_path, pauses, ticks, rate, seed)
    # A pause is known to one period of the fastest stamps; the 2 ms that a message is under way count by the rate.
    assert np.abs(errors).max() < 0.005 + 0.002 * rate
    assert delays.max() < 0.005 + 0.002 * rate
    assert delays.min() > (-0.005 if ticks else -5e-4)


@pytest.mark.parametrize("ticks", [0, 5])
def test_a_paused_simulation_that_stamps_the_same_time_again_and_again(tmp_path, ticks):
    wall = pausing([(10.0, 3.0)])
    messages = sampled("/joint", 200, 20, wall) + sampled("/imu", 100, 20, wall, seed=1)
    paused = [once("/joint", "stamped", 10.0 + k * 0.005 + 0.001, 10.0, float(signal(10.0))) for k in range(1, 600)]
    messages += sampled("/clock", ticks, 20, wall, kind="clock", seed=2) if ticks else []
    plain = sampled("/plain", 50, 20, wall, kind="plain", seed=3)
    recording = rc.open(write_mcap(tmp_path / "r.mcap", [*messages, *paused, *plain]))
    found = recording.streams["/plain"].times
    assert np.abs(found - [m.stamp for m in plain]).max() < 0.008e9


@pytest.mark.parametrize("seed", [6, 20, 21, 31, 32])
def test_a_slower_stream_does_not_hide_a_short_pause(tmp_path, seed):
    """Its longest stretch without a stamp in that quarter of a second may lie elsewhere."""
    at = float(np.random.default_rng(seed).uniform(9, 11))
    wall = pausing([(at, 0.16)])
    messages = sampled("/joint", 200, 20, wall, seed=seed) + sampled("/camera", 15, 20, wall, seed=seed + 100)
    plain = sampled("/plain", 50, 20, wall, kind="plain", seed=seed + 200)
    recording = rc.open(write_mcap(tmp_path / "r.mcap", messages + plain))
    found = recording.streams["/plain"].times
    assert np.abs(found - [m.stamp for m in plain]).max() < 0.009e9  # times were off by up to 100 ms


def test_a_pause_in_which_stamps_repeat_does_not_hide_another_one(tmp_path):
    """Its half seconds without any progress counted as the usual rate."""
    wall = pausing([(10.0, 0.5), (11.0, 9.0)])
    messages = sampled("/joint", 200, 20, wall)
    for at, start, count in ((10.0, 10.0, 15), (11.0, 11.5, 270)):  # a timer on wall time, 30 Hz, stamps on
        messages += [once("/imu", "stamped", start + k / 30 + 0.001, at, float(signal(at))) for k in range(1, count)]
    messages += sampled("/imu", 30, 20, wall, seed=1)
    plain = sampled("/plain", 50, 20, wall, kind="plain", seed=3)
    recording = rc.open(write_mcap(tmp_path / "r.mcap", messages + plain))
    found = recording.streams["/plain"].times
    assert np.abs(found - [m.stamp for m in plain]).max() < 0.009e9


def test_a_hold_up_of_all_messages_is_no_pause(tmp_path):
    """What was held up arrives late: it must not be known earlier than it came."""
    wall = paced(0.5)
    messages = sampled("/joint", 200, 20, wall) + sampled("/imu", 100, 20, wall, seed=1)
    held, until = WALL + 19 * SECOND, WALL + round(19.4 * SECOND)  # by log time: true seconds 9.5 to 9.7
    late = [m._replace(log=until + (m.log - held) // 100) if held <= m.log < until else m for m in messages]
    recording = rc.open(write_mcap(tmp_path / "r.mcap", late))
    joint = recording.streams["/joint"]
    first = int(np.searchsorted(joint.times, round(9.502 * SECOND)))
    assert abs((joint.arrivals[first] - joint.times[first]) * 1e-9 - 0.2) < 0.01
    delays = (joint.arrivals - joint.times) * 1e-9
    assert delays.min() > -0.001
    assert np.delete(delays, np.s_[first - 2 : first + 42]).max() < 0.003


def test_what_was_held_up_does_not_hold_up_the_clock(tmp_path):
    """In the quarter of a second in which a burst begins, the only messages are a second late, as the map was then."""
    wall = paced(0.8)
    held, until = WALL + round(11.786 * SECOND), WALL + round(13.247 * SECOND)  # 3 ms before a quarter ends
    messages = sampled("/joint", 200, 20, wall) + sampled("/imu", 30, 20, wall, seed=1)
    late = [m._replace(log=until + (m.log - held) // 50) if held <= m.log < until else m for m in messages]
    plain = sampled("/plain", 50, 20, wall, kind="plain", seed=3)  # of another machine, not held up
    recording = rc.open(write_mcap(tmp_path / "r.mcap", late + plain))
    found = recording.streams["/plain"].times
    assert np.abs(found - [m.stamp for m in plain]).max() < 0.01e9


def test_small_steps_back_are_sorted_and_counted(tmp_path):
    messages = simulation(0.5, False)
    stamps = [k for k, m in enumerate(messages) if m.topic == "/imu"][100:200:10]
    for k in stamps:  # each one is delayed past the next: 15 ms later in the file
        messages[k] = messages[k]._replace(log=messages[k].log + 30_000_000)
    recording = rc.open(write_mcap(tmp_path / "a.mcap", messages))
    assert len(recording.episodes) == 1
    imu = recording.streams["/imu"]
    assert imu.backward == len(stamps)
    assert (np.diff(imu.times) >= 0).all()


# ---- Log times in other units


@pytest.mark.parametrize(("unit", "name"), [(1_000, "microseconds"), (1_000_000, "milliseconds")])
def test_log_times_in_another_unit(tmp_path, unit, name):
    """FINDINGS 39: they were said only to disagree with the stamps."""
    true = lambda t: t + WALL * 1e-9  # noqa: E731
    wall = paced(1.0)
    messages = sampled("/imu", 100, LENGTH, wall, stamp=true) + sampled("/cmd", 20, LENGTH, wall, kind="plain")
    path = write_mcap(tmp_path / "ms.mcap", messages, unit=unit)
    recording = rc.open(path)
    cmd = recording.streams["/cmd"]
    assert np.abs(cmd.values[:, 0] - signal((cmd.times - WALL) * 1e-9)).max() < 0.005
    assert any(f"log times are in {name}" in note for note in recording.notes)
    report = rc.sync_report(rc.open(path))
    assert report.level != "bad"
    assert abs(recording.episodes[0].duration - LENGTH) < 0.1


# ---- Constants


@pytest.mark.parametrize("write", [write_mcap, write_db3])
def test_latched_topics_are_constants(tmp_path, write):
    """A latched message is older than the recording; it is valid from the start on, and bounds nothing."""
    wall = paced(1.0)
    true = lambda t: t + WALL * 1e-9  # noqa: E731
    messages = sampled("/imu", 100, LENGTH, wall, stamp=true)
    messages += [once("/map", "stamped", 5.0, WALL * 1e-9 - 9000, 7.0), once("/map", "stamped", 20.0, WALL * 1e-9, 8.0)]
    messages += [once("/model", "plain", 0.1, 0, 3.0)]  # one sample at the start
    messages += [once("/goal", "plain", 15.0, 0, 4.0)]  # one in the middle is an event, not a constant
    path = write(tmp_path / ("l.mcap" if write is write_mcap else "l.db3"), messages, ["/map"])
    recording = rc.open(path)
    assert recording.clock["static"] == ["/map", "/model"]
    assert recording.clock["kind"] == "with log time"
    cache = built(tmp_path, path)
    assert cache.episodes[0].duration < LENGTH + 1
    for causal in (False, True):
        aligned = cache.align(rate=10, causal=causal)
        assert abs(aligned.lengths[0] - 10 * LENGTH) <= 2
        seconds = (aligned.times[0] - WALL) * 1e-9
        assert aligned["/map"].valid.all()
        assert np.array_equal(aligned["/map"].values[0, :, 0], np.where(seconds < 20.0, 7.0, 8.0))
        assert (aligned["/map"].age[0, seconds < 20.0] == 0).all()
        late = seconds > 20.01
        assert np.allclose(aligned["/map"].age[0, late] * 1e-9, seconds[late] - 20.0, atol=1e-6)
        assert (aligned["/model"].values == 3.0).all()
        assert aligned["/model"].valid.all()
        assert not aligned["/goal"].valid[0, seconds < 14.9].any()
    for edge in ("nan", "zero"):
        assert (cache.align(rate=10, edge=edge)["/map"].values[0, -1] == 8.0).all()
    found = dict(cache.episodes[0].streams.items())
    assert len(rc.Timeline.over({name: found[name] for name in ("/imu", "/map")}, rate=10)) == len(seconds)


def test_a_latched_topic_that_runs_is_an_ordinary_stream(tmp_path):
    true = lambda t: t + WALL * 1e-9  # noqa: E731
    messages = sampled("/imu", 100, LENGTH, paced(1.0), stamp=true)
    recording = rc.open(write_mcap(tmp_path / "l.mcap", messages, ["/imu"]))
    assert recording.clock["static"] == []
    assert recording.streams["/imu"].method is None


def test_a_recipe_says_what_is_static(tmp_path):
    true = lambda t: t + WALL * 1e-9  # noqa: E731
    messages = sampled("/imu", 100, LENGTH, paced(1.0), stamp=true)
    messages += [once("/map", "stamped", 5.0, WALL * 1e-9 + 5, 7.0), once("/goal", "plain", 15.0, 0, 4.0)]
    path = write_mcap(tmp_path / "l.mcap", messages, ["/map"])
    recipe = tmp_path / "r.toml"
    recipe.write_text('[streams."/imu"]\n[streams."/map"]\nstatic = false\n[streams."/goal"]\nstatic = true\n')
    from robocache._cache.build import build

    assert build([str(path)], tmp_path / "c", recipe=recipe)["sources"][0]["state"] == "added"
    aligned = rc.Cache(tmp_path / "c").align(rate=10)
    seconds = (aligned.times[0] - WALL) * 1e-9
    assert not aligned["/map"].valid[0, seconds < 4.9].any()
    assert aligned["/goal"].valid.all()
    recipe.write_text('[streams."/imu"]\nstatic = 1\n')
    with pytest.raises(ValueError, match="static is 1; expected true or false"):
        load_recipe(recipe)


def test_offered_qos_profiles():
    from robocache._core import is_transient_local

    assert is_transient_local("- history: 1\n  durability: 1\n")
    assert is_transient_local("- durability: transient_local\n- durability: 'transient_local'\n")
    assert not is_transient_local("- durability: 1\n- durability: 2\n")
    assert not is_transient_local("- durability: volatile")
    assert not is_transient_local("")


# ---- The default timeline


def test_align_and_export_have_one_timeline(tmp_path):
    """FINDINGS 33: 5,070 and 4,835 rows of one episode."""
    wall = paced(1.0)
    true = lambda t: t + WALL * 1e-9  # noqa: E731
    messages = sampled("/imu", 100, LENGTH, wall, stamp=true) + sampled("/odom", 50, 20, wall, stamp=true, start=4.0)
    path = write_mcap(tmp_path / "a.mcap", [*messages, once("/mode", "plain", 29.0, 0, 1.0)])
    cache = built(tmp_path, path)
    aligned = cache.align(rate=50)
    for format in ("safetensors", "lerobot"):
        if format == "lerobot":
            pytest.importorskip("pyarrow")
        out = rc.export(cache, tmp_path / format, rate=50, format=format)
        assert out["frames"] == aligned.lengths[0]
    odom = cache.episodes[0].streams["/odom"]
    assert aligned.times[0, 0] == odom.times[0]  # the latest start, by the rule
    assert odom.times[-1] - aligned.times[0, -1] < SECOND / 50
    chosen = cache.align(rate=50, streams=["/imu"])  # of the streams that are asked for
    assert abs(chosen.lengths[0] - 50 * LENGTH) <= 2


def same_timelines(cache, folder, rate=50, **options):
    """Exports and aligns each episode: the same times, values and ages, and all that align calls valid is."""
    safetensors = pytest.importorskip("safetensors.numpy")
    rc.export(cache, folder, rate=rate, format="safetensors", **options)
    found = []
    for number, episode in enumerate(cache.episodes):
        written = safetensors.load_file(folder / f"episode-{number:06d}.safetensors")
        aligned = cache.align(number, rate=rate, **options)
        assert aligned.times[0].tolist() == written["times"].tolist(), episode.name
        for name, one in aligned.items():
            np.testing.assert_array_equal(one.values[0], written[name], err_msg=name)
            np.testing.assert_array_equal(one.age[0], written[f"{name}.age"], err_msg=name)
            assert (written[f"{name}.valid"] | ~one.valid[0]).all(), name
        found.append(aligned)
    together = cache.align(rate=rate, **options)
    for row, alone in enumerate(found):
        for name, one in alone.items():
            for a, b in zip(one, together[name], strict=True):
                np.testing.assert_array_equal(a[0], b[row, : alone.lengths[0]], err_msg=name)
    return found


@pytest.mark.parametrize(
    ("method", "seconds"),
    [
        (None, 10),  # "a" is interpolated and bounds it; "g" is held
        ("hold", 5),  # both are held, and both bound it
        ("linear", 5),
        ("nearest", 5),
        ({"a": "hold"}, 5),
        ({"g": "linear", "a": "hold"}, 5),
        ({"a": "nearest"}, 10),
    ],
)
def test_a_method_moves_both_timelines(tmp_path, method, seconds):
    with rc.CacheWriter(tmp_path / "c") as writer:
        a = rc.Stream(np.arange(1001.0)[:, None], np.arange(1001) * SECOND // 100)
        g = rc.Stream(np.arange(51.0)[:, None], 2 * SECOND + np.arange(51) * SECOND // 10, method="hold")
        writer.add({"a": a, "g": g}, name="e")
    (aligned,) = same_timelines(rc.Cache(tmp_path / "c"), tmp_path / "out", method=method)
    assert aligned.lengths[0] == 50 * seconds + 1


@pytest.mark.parametrize("method", [None, "hold", {"state": "hold"}, {"state": {"p": "hold", "q": "hold"}}])
def test_joined_streams_have_one_timeline(tmp_path, method):
    from robocache._cache.joined import declaration

    times = np.arange(501) * SECOND // 100
    joined = {"joined": declaration("state", ["state/p", "state/q"])}
    p = batch("state/p", times[:, None] * 1e-9, times, channels=("p",), metadata=joined)
    q = batch("state/q", times[:, None] * 2e-9, times + SECOND, channels=("q",), metadata=joined)
    other = batch("other", times[:, None] * 3e-9, times + 3 * SECOND)
    with rc.CacheWriter(tmp_path / "c") as writer:
        writer.add(made(p, q, other))
    cache = rc.Cache(tmp_path / "c")
    assert list(cache.streams) == ["state", "other"]
    (aligned,) = same_timelines(cache, tmp_path / "out", method=method)
    # Linear streams bound it: all three, or, where "state" is held, "other" alone.
    assert aligned.lengths[0] == (251 if isinstance(method, dict) else 101)
    same_timelines(cache, tmp_path / "both", method=method, streams=["state", "state/q", "other"])


@pytest.mark.parametrize("order", ["sr", "rs", "srs", "rsr"])
@pytest.mark.parametrize("commits", [False, True])
def test_a_stream_that_is_static_in_one_episode_only(tmp_path, order, commits):
    """A constant in one recording; in another the same topic runs, and is not valid before its first sample."""
    times = np.arange(21) * SECOND
    static = batch("/battery", np.array([[5.0]]), [SECOND // 10], metadata={"static": "true", "time": "log"})
    running = batch("/battery", np.arange(2.0, 19.0)[:, None], times[2:19], metadata={"time": "log"})
    with rc.CacheWriter(tmp_path / "c") as writer:
        for number, kind in enumerate(order):
            ref = batch("/ref", np.arange(21.0)[:, None], times)
            writer.add(made(ref, static if kind == "s" else running), name=f"{number}")
            if commits:
                writer.commit()
    cache = rc.Cache(tmp_path / "c")
    assert cache.streams["/battery"].metadata == {"static": "varies", "time": "log"}
    found = cache.align(targets=[0.5, 2.5, 19.5])["/battery"]
    for row, kind in enumerate(order):
        if kind == "s":
            assert found.values[row, :, 0].tolist() == [5.0, 5.0, 5.0]
            assert found.valid[row].tolist() == [True, True, True]
            assert found.age[row].tolist() == [0, 0, 0]
        else:
            assert found.values[row, :, 0].tolist() == [2.0, 2.5, 18.0]
            assert found.valid[row].tolist() == [False, True, False]
            assert found.age[row, 1:].tolist() == [SECOND // 2, SECOND * 3 // 2]
    for method in (None, "hold"):
        aligned = same_timelines(cache, tmp_path / f"out-{method}", rate=10, method=method)
        assert [int(one.lengths[0]) for one in aligned] == [201 if kind == "s" else 161 for kind in order]
    copied = rc.Cache(tmp_path / "c", map=False).align(targets=[0.5])["/battery"]
    assert copied.valid[:, 0].tolist() == [kind == "s" for kind in order]
    torch = pytest.importorskip("torch")
    on_device = cache.align(targets=[0.5, 2.5, 19.5], device="cpu")["/battery"]
    for one, other in zip(on_device, found, strict=True):
        assert torch.equal(one, torch.as_tensor(other))


@pytest.mark.parametrize("commits", [False, True])
def test_constants_and_as_of(tmp_path, commits):
    """The first sample of a constant counts always, also in a decision before it arrives; later ones must arrive."""
    ref = batch("/ref", np.arange(21.0)[:, None], np.arange(21) * SECOND)
    said = {"static": "true", "time": "log"}
    late = batch("/map", np.array([[5.0], [6.0]]), np.array([5, 8]) * SECOND, metadata=said)
    late = late._replace(arrivals=np.array([5, 11]) * SECOND)
    with rc.CacheWriter(tmp_path / "c") as writer:
        for name in ("one", "two"):
            writer.add(made(ref, late), name=name)
            if commits:
                writer.commit()
    cache = rc.Cache(tmp_path / "c")
    found = cache.align(targets=[0.0, 7.5, 9.0, 19.0], as_of=[2.0, 11.0])["/map"]
    assert found.values[..., 0].tolist() == [[5.0, 5.0, 5.0, 5.0], [5.0, 5.0, 6.0, 6.0]]
    assert found.valid.all()
    assert (found.age // SECOND).tolist() == [[0, 0, 0, 0], [0, 0, 1, 11]]


def test_a_timeline_that_no_machine_holds_is_refused(tmp_path):
    """FINDINGS 20: 8.41 TiB were asked for."""
    with rc.CacheWriter(tmp_path / "c") as writer:
        far = np.array([0, 1_780_000_000 * SECOND])
        near = np.arange(20) * SECOND
        writer.add({"/far": rc.Stream(np.ones((2, 3)), far), "/near": rc.Stream(np.zeros((2, 3)), near[:2])}, name="e")
        writer.add({"/far": rc.Stream(np.ones((20, 3)), near), "/near": rc.Stream(np.zeros((20, 3)), near)}, name="ok")
    cache = rc.Cache(tmp_path / "c")
    with pytest.raises(
        ValueError, match=r'episode "e" spans 1780000000 s, which at 50 Hz is 89,000,000,001 steps'
    ) as e:
        cache.align(rate=50)
    assert '"/near" from 0.000 to 1.000 s and "/far" from 0.000 to 1780000000.000 s' in str(e.value) or (
        '"/far" from 0.000 to 1780000000.000 s' in str(e.value)
    )
    with pytest.raises(ValueError, match=r"needs [0-9,.]+ GiB of memory; this machine has [0-9,.]+ GiB"):
        cache.align(rate=1)
    assert cache.align(episodes="ok", rate=1).lengths[0] == 20


# ---- The report


def test_info_names_the_clock_once(tmp_path):
    """FINDINGS 32: a drift of 12100000000 ms, and a line of "one sample only" for each transform."""
    path = write_mcap(tmp_path / "sim.mcap", simulation(0.5, True))
    for options in ([], ["--full"]):
        shown = CliRunner().invoke(application, ["info", str(path), *options])
        assert shown.exit_code == 0
        text = " ".join(shown.output.split())
        assert text.count("real-time factor 0.5") == 1
        assert "Clock: simulated time (2 stamped streams; real-time factor 0.5" in text
        assert "carried over by /clock" in text
        assert "one sample only" not in text
        assert "its clock drifts" not in text
    report = rc.sync_report(rc.open(path))
    assert report.level == "good"
    assert report.streams["/tf_static/b"].static
    assert report.as_dict()["clock"]["by"] == "/clock"
    assert "static" in report.as_dict()["clock"]


@pytest.mark.parametrize(
    ("sources", "sentence"), [(["stamp"], "; all arrivals"), (["stamp", "log"], "of 1 stream without")]
)
def test_the_clock_names_only_streams_that_there_are(sources, sentence):
    streams = {str(k): {"source": source} for k, source in enumerate(sources)}
    clock = {"kind": "simulated", "is_wall": False, "agreeing": 1, "streams": streams, "by": "/clock", "offset_s": 3.0}
    assert sentence in clocks.named(clock | dict.fromkeys(("rate", "fastest", "slowest"), 0.5))


def test_info_on_a_folder_of_bags(tmp_path):
    folder = tmp_path / "bags"
    folder.mkdir()
    write_mcap(folder / "a.mcap", simulation(0.5, True))
    write_mcap(folder / "b.mcap", simulation(1.0, False))
    shown = CliRunner().invoke(application, ["info", str(folder)])
    assert shown.exit_code == 0
    assert "2 recordings" in shown.output
    assert shown.output.count("simulated time") == 2
    found = json.loads(CliRunner().invoke(application, ["info", str(folder), "--json"]).output)
    assert [each["sync"]["level"] for each in found["recordings"]] == ["good", "good"]
    (folder / "c.mcap").write_bytes(b"no recording")
    shown = CliRunner().invoke(application, ["info", str(folder)])
    assert shown.exit_code == 1
    assert shown.output.count("simulated time") == 2


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (MemoryError(), "b.mcap: it needs more memory than there is"),
        (OSError(5, "Input/output error"), "b.mcap: Input/output error"),
        (KeyError("a field"), "b.mcap: 'a field'"),
        (RuntimeError("odd"), "b.mcap: RuntimeError: odd"),
    ],
)
def test_info_on_a_folder_goes_on_past_a_recording_that_fails(tmp_path, monkeypatch, error, sentence):
    from robocache.cli import info

    for name in "abc":
        write_mcap(tmp_path / f"{name}.mcap", simulation(0.5, True))

    def failing(path, *given, real=info.open_recording, **named):
        if path.endswith("b.mcap"):
            raise type(error)(
                *error.args
            )  # a fresh one: pytest keeps the parameter, and its traceback would keep frames
        return real(path, *given, **named)

    monkeypatch.setattr(info, "open_recording", failing)
    shown = CliRunner().invoke(application, ["info", str(tmp_path), "--json"])
    assert shown.exit_code == 1
    found = json.loads(shown.stdout)["recordings"]
    assert found[1]["error"].endswith(sentence)
    assert [each["sync"]["level"] for each in (found[0], found[2])] == ["good", "good"]


@pytest.mark.parametrize("length", [0.5, 1.0, 30.0, 200.0])
def test_the_glance_of_a_pass_is_that_of_the_engine(tmp_path, length):
    """A build watches the stretches that the engine would look at: both places have the same constants."""
    from robocache import _core

    true = lambda t: t + WALL * 1e-9  # noqa: E731
    messages = sampled("/imu", 500, length, paced(1.0), stamp=true)
    source = rc.open(write_mcap(tmp_path / "a.mcap", messages))._source.source
    survey = _core.ClockSurvey()
    source.survey(survey, True)
    seen = _core.find_clock(survey, []).describe()["streams"]["/imu"]["messages"]
    logs = np.array([message.log for message in messages])
    expected = np.zeros(len(logs), bool)
    for start, end in source.stretches():
        expected |= (logs >= start) & (logs < end)
    assert seen == expected.sum() < len(logs)


def test_a_cache_has_a_sync_report(tmp_path):
    path = write_mcap(tmp_path / "sim.mcap", simulation(0.5, True))
    cache = built(tmp_path, path)
    report = rc.sync_report(cache)
    assert report.format == "cache"
    assert report.streams["/tf_static/b"].static
    assert report.streams["/imu"].samples == 3000
    assert rc.sync_report(cache.path).as_dict() == report.as_dict()
    with pytest.raises(TypeError, match="expected a recording, a cache or the path of one, not int"):
        rc.sync_report(3)


def test_the_headers_that_do_not_come_first(tmp_path):
    """A stamp behind a string is found, too, and messages that break off are left out."""
    name, text = "demo/msg/Late", "string word\n" + TYPES["stamped"][1]
    path = tmp_path / "late.mcap"
    messages = sampled("/a", 50, LENGTH, paced(0.5))
    with mcap.Writer(path) as writer:
        channel = writer.add_channel("/a", "cdr", writer.add_schema(name, "ros2msg", text.encode()))
        for message in messages:
            body = encoded(message)
            word = b"\4\0\0\0abc\0"
            writer.write(channel, body[:4] + word + body[4:], log_time=message.log)
        writer.write(channel, b"\0\1\0\0\4\0", log_time=messages[-1].log)
    recording = rc.open(path)
    assert recording.clock["kind"] == "carried"
    assert np.array_equal(recording.streams["/a"].times, [m.stamp for m in messages])


# ---- Builds presume log time


def test_a_build_reads_a_usual_recording_once(tmp_path, monkeypatch):
    """What the build finds in passing is what a glance finds."""
    from robocache._recordings.clock import ClockedSource

    true = lambda t: t + WALL * 1e-9  # noqa: E731
    messages = [*sampled("/imu", 100, LENGTH, paced(1.0), stamp=true), once("/map", "stamped", 5.0, 4.0, 7.0)]
    messages += [once("/model", "plain", 0.1, 0, 3.0), once("/tf_static", "tree", 0.0, 3.0, 5.0)]
    path = write_mcap(tmp_path / "a.mcap", messages, ["/map"])
    glanced = rc.open(path)
    expected, streams = glanced.clock, dict(glanced.streams.items())
    monkeypatch.setattr(ClockedSource, "decide", lambda self: pytest.fail("a build takes no look ahead"))
    recording = rc.open(path)
    with rc.CacheWriter(tmp_path / "c") as writer:
        writer.add(recording)
    monkeypatch.undo()
    assert recording.clock == expected
    assert expected["static"] == ["/map", "/model", "/tf_static"]
    built_streams = rc.Cache(tmp_path / "c").episodes[0].streams
    assert set(built_streams) == set(streams)
    for name, stream in streams.items():
        assert np.array_equal(built_streams[name].times, stream.times), name
        assert np.array_equal(built_streams[name].arrivals, stream.arrivals), name
        assert built_streams[name].info.metadata == stream.info.metadata, name


@pytest.mark.parametrize("kind", ["simulation", "drift", "camera"])
def test_a_build_reads_again_where_it_presumed_wrong(tmp_path, kind):
    """The counts are of what is in the cache, though some of it was read twice."""
    from robocache._cache.build import build

    if kind == "simulation":
        messages = simulation(0.5, False)
    elif kind == "drift":  # within 60 s of log time, at another rate: only the end of the pass tells
        start = WALL * 1e-9
        messages = sampled("/imu", 100, LENGTH, paced(0.8), stamp=lambda t: t + start)
        messages += sampled("/cmd", 20, LENGTH, paced(0.8), kind="plain")
    else:
        camera_on_uptime(tmp_path)
        messages = None
    path = tmp_path / "camera.mcap" if messages is None else write_mcap(tmp_path / "a.mcap", messages)
    row = build([str(path)], tmp_path / "c")["sources"][0]
    cache = rc.Cache(tmp_path / "c")
    assert row["state"] == "added"
    assert row["episodes"] == len(cache.episodes) == 1
    assert row["samples"] == sum(cache.episodes[0].samples.values())
    assert row["notes"]
    for name, stream in rc.open(path).streams.items():
        assert np.array_equal(cache.episodes[0].streams[name].times, stream.times), name
    assert rc.verify_cache(tmp_path / "c").ok
    assert build([str(path)], tmp_path / "c")["sources"][0]["state"] == "unchanged"
    if kind == "drift":
        found = cache.episodes[0].streams["/cmd"]
        assert np.abs(found.values[:, 0] - signal((found.times - WALL) * 1e-9)).max() < 0.005


# ---- Episodes by an id


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([1, 2, 3], 3),
        ([0, 1, 2], 3),
        ([1, 1, 2, 2], 2),
        ([0, 1, 0, 1, 0], 2),  # a flag
        ([0, 1, 0, 2, 0], 2),  # ids, with pauses
        ([0, 1], 1),  # a flag that stays up
        ([1, 2, 0], 2),  # two, and then none
        ([5], 1),
    ],
)
def test_a_change_of_the_id_begins_an_episode(tmp_path, ids, expected):
    """FINDINGS 50: ids 1, 2, 3 made one episode, and 0, 1, 2 dropped the first."""
    from robocache._cache.split import split

    true = lambda t: t + WALL * 1e-9  # noqa: E731
    messages = sampled("/imu", 100, 10.0 * len(ids), paced(1.0), stamp=true)
    messages += [once("/episode", "plain", 10.0 * k + 0.001, 0, value) for k, value in enumerate(ids)]
    messages += [once("/tf_static", "tree", 0.0005, 3.0, 5.0)]
    recording = split(rc.open(write_mcap(tmp_path / "a.mcap", messages)), "topic", topic="/episode")
    assert len(recording.episodes) == expected
    starts = [k for k, value in enumerate(ids) if k == 0 or ids[k - 1] != value]
    if expected == len(starts):
        found = [(episode.start - WALL) // SECOND for episode in recording.episodes]
        assert found == [10 * k for k in starts]
    for episode in recording.episodes:  # a constant is in every one
        assert episode.streams["/tf_static/b"].values[0, 0] == 5.0


def counted_reads(monkeypatch):
    """How often a file is read for the constants alone."""
    from robocache._recordings.mcap import McapSource

    reads = []
    batches = McapSource.batches

    def watched(self, streams=None, episode=None, start=None, end=None):
        if streams is not None and all("/tf_static" in name for name in streams):
            reads.append((start, end))
        return batches(self, streams, episode, start, end)

    monkeypatch.setattr(McapSource, "batches", watched)
    return reads


def test_constants_are_read_once_for_all_episodes_of_a_split(tmp_path, monkeypatch):
    from robocache._cache.split import split

    true = lambda t: t + WALL * 1e-9  # noqa: E731
    messages = sampled("/imu", 50, 100.0, paced(1.0), stamp=true)
    messages += [once("/episode", "plain", 10.0 * k + 0.001, 0, k + 1) for k in range(10)]
    sent = [(0.0005, 5.0), (9.0, 6.0), (9.5, 7.0), (41.0, 8.0), (85.0, 9.0)]
    messages += [once("/tf_static", "tree", log, 3.0, value) for log, value in sent]
    recording = split(rc.open(write_mcap(tmp_path / "a.mcap", messages)), "topic", topic="/episode")
    reads = counted_reads(monkeypatch)
    found = {}
    for piece in recording.batches():
        if piece.stream == "/tf_static/b":
            found.setdefault(piece.episode, []).extend(piece.values[:, 0].tolist())
    for k in range(10):
        before = [value for log, value in sent if log < 10.0 * k + 0.001][-1:]
        inside = [value for log, value in sent if 10.0 * k + 0.001 <= log < 10.0 * k + 10.001]
        assert found[k] == before + inside, k
    assert len(reads) == 1
    for k, episode in enumerate(recording.episodes):  # each by itself
        assert episode.streams["/tf_static/b"].values[:, 0].tolist() == found[k]


def test_constants_are_read_once_for_all_resets(tmp_path, monkeypatch):
    messages, sent = [], [(0.5, 5.0), (21.0, 6.0), (22.0, 7.0)]
    for lap in range(6):
        at = lambda t, lap=lap: t + 10.0 * lap  # noqa: E731
        messages += sampled("/imu", 50, 10.0, at) + sampled("/joints", 40, 10.0, at)
    messages += [once("/tf_static", "tree", log, 3.0, value) for log, value in sent]
    recording = rc.open(write_mcap(tmp_path / "a.mcap", messages))
    assert recording.clock["resets"] == 5
    reads = counted_reads(monkeypatch)
    found = {}
    for piece in recording.batches():
        if piece.stream == "/tf_static/b":
            found.setdefault(piece.episode, []).extend(piece.values[:, 0].tolist())
    assert found == {0: [5.0], 1: [5.0], 2: [5.0, 6.0, 7.0], 3: [7.0], 4: [7.0], 5: [7.0]}
    assert len(reads) == 1
