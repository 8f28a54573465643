"""Timelines: the targets that nobody materialises."""

from __future__ import annotations

import datetime
import re

import numpy as np
import pytest

import robocache as rc

SECOND = 10**9


def taus(timeline, rows: int | None = None) -> np.ndarray:
    """The targets, read back from the age of a sample at 0."""
    lead = () if rows is None else (rows,)
    stream = rc.Stream(np.zeros((*lead, 1), np.int64), np.zeros((*lead, 1), np.int64))
    return rc.align([stream], timeline)[0].age


@pytest.mark.parametrize("rate", [1, 3, 29.97, 50, 50.0, 1000, 44100, 0.1])
@pytest.mark.parametrize("start", [0, 123_456_789, -5 * SECOND, 1_700_000_000 * SECOND])
def test_steps_do_not_drift(rate, start):
    got = taus(rc.Timeline(start, rate=rate, count=500))
    assert got.dtype == np.int64
    assert got.tolist() == [start + round(k * 1e9 / rate) for k in range(500)]


def test_a_start_in_seconds_is_rounded_to_nanoseconds():
    assert taus(rc.Timeline(1.5, rate=2, count=3)).tolist() == [1_500_000_000, 2_000_000_000, 2_500_000_000]
    assert taus(rc.Timeline(np.float64(0.1), rate=10, count=2)).tolist() == [100_000_000, 200_000_000]
    assert taus(rc.Timeline(np.int64(7), rate=10, count=2)).tolist() == [7, 100_000_007]


def test_a_start_for_each_row():
    got = taus(rc.Timeline(np.array([5, 7]), rate=1, count=3))
    assert got.tolist() == [[5, SECOND + 5, 2 * SECOND + 5], [7, SECOND + 7, 2 * SECOND + 7]]
    assert taus(rc.Timeline(np.array([0.5]), rate=1, count=1)).tolist() == [[SECOND // 2]]


@pytest.mark.parametrize("rate", [3, 29.97, 50, 44100, 0.1])
@pytest.mark.parametrize("start", [7, -1.5, np.float32(0.1), np.array([5, 7]), np.array([0.1, 1.7e9])])
def test_times_are_the_targets(rate, start):
    line = rc.Timeline.around(start, history=20, horizon=300, rate=rate)
    assert len(line) == 320
    assert line.times.dtype == np.int64
    assert line.times.shape == (*np.shape(start), 320)
    starts = np.asarray(start)
    if starts.dtype.kind == "f":
        starts = np.rint(starts.astype(np.float64) * 1e9).astype(np.int64)
    steps = [round(k * 1e9 / rate) for k in range(-20, 300)]
    np.testing.assert_array_equal(line.times, starts[..., None] + np.array(steps))


def test_times_are_of_the_start_s_kind():
    torch = pytest.importorskip("torch")
    for start in (torch.tensor([5, 7]), torch.tensor([0.5]), torch.tensor(5)):
        times = rc.Timeline(start, rate=50, count=3).times
        assert isinstance(times, torch.Tensor)
        assert (times.dtype, tuple(times.shape)) == (torch.int64, (*start.shape, 3))
    values, stamps = torch.rand(9, 2), torch.arange(9) * SECOND
    line = rc.Timeline(torch.tensor([0, SECOND // 3]), rate=1.7, count=9)
    assert torch.equal(rc.resample(values, stamps, line), rc.resample(values, stamps, line.times))


def test_around():
    got = taus(rc.Timeline.around(np.array([0, 3 * SECOND]), history=2, horizon=3, rate=50))
    steps = np.arange(-2, 3) * 20_000_000
    np.testing.assert_array_equal(got, np.array([[0], [3 * SECOND]]) + steps)
    alone = taus(rc.Timeline.around(SECOND, history=1, horizon=1, rate=50))
    np.testing.assert_array_equal(alone, [SECOND - 20_000_000, SECOND])


@pytest.mark.parametrize("steps", ["2", 2.5, True, None])
def test_around_refuses_steps_that_are_no_int(steps):
    with pytest.raises(TypeError, match=f"^Timeline.around: history is {steps!r}; expected an int"):
        rc.Timeline.around(0, history=steps, horizon=3, rate=50)
    with pytest.raises(TypeError, match=f"^Timeline.around: horizon is {steps!r}; expected an int"):
        rc.Timeline.around(0, history=3, horizon=steps, rate=50)
    assert rc.Timeline.around(0, history=np.int32(2), horizon=3, rate=50).count == 5


@pytest.mark.parametrize("steps", [{"history": -1, "horizon": 4}, {"history": 2, "horizon": -1}])
def test_around_refuses_negative_steps(steps):
    name = min(steps, key=steps.get)
    with pytest.raises(ValueError, match=f"Timeline.around: {name} is -1; it must not be negative"):
        rc.Timeline.around(0, rate=50, **steps)


def stream(first: float, last: float, **options) -> rc.Stream:
    times = np.linspace(first * SECOND, last * SECOND, 11).astype(np.int64)
    return rc.Stream(np.zeros((11, 2), np.float32), times, **options)


def test_over_covers_where_all_streams_overlap():
    streams = {"a": stream(1, 5), "b": stream(2, 7)}
    got = taus(rc.Timeline.over(streams, rate=50))
    np.testing.assert_array_equal(got, 2 * SECOND + np.arange(151) * 20_000_000)
    for aligned in rc.align(streams, rc.Timeline.over(streams, rate=50)).values():
        assert aligned.valid.all()
    np.testing.assert_array_equal(taus(rc.Timeline.over(list(streams.values()), rate=50)), got)


def test_over_takes_latency_off():
    got = taus(rc.Timeline.over([stream(1, 2, latency=0.5), stream(0, 9)], rate=10))
    np.testing.assert_array_equal(got, SECOND // 2 + np.arange(11) * 100_000_000)
    late = stream(1, 2, latency=datetime.timedelta(milliseconds=500))
    np.testing.assert_array_equal(taus(rc.Timeline.over([late, stream(0, 9)], rate=10)), got)


@pytest.mark.parametrize("rate", ["50", None, True])
def test_over_refuses_a_rate_that_is_none(rate):
    with pytest.raises(TypeError, match=f"^Timeline.over: rate is {rate!r}; expected a number of hertz"):
        rc.Timeline.over([stream(0, 1)], rate=rate)
    with pytest.raises(ValueError, match=r"^Timeline.over: rate is -1; it must be a positive number of hertz"):
        rc.Timeline.over([stream(0, 1)], rate=-1)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("last", [5e9, -5e9, 1e300, np.inf, np.nan, 2**62])
def test_over_refuses_stamps_that_are_no_times(last):
    times = np.array([0, 1, last])
    if isinstance(last, int):
        times = times.astype(np.int64)
    with pytest.raises(ValueError, match=r'^Timeline.over: stream "a": times must be numbers below 2\^62 ns'):
        rc.Timeline.over({"a": rc.Stream(np.zeros(3), times)}, rate=50)


def test_dtypes_that_numpy_does_not_have():
    torch = pytest.importorskip("torch")
    values, times = torch.zeros(2, 4), torch.zeros(2, 4, dtype=torch.int64)
    with pytest.raises(TypeError, match=r"^Stream: times are bfloat16; they must be int64 nanosec"):
        rc.Stream(values, times.bfloat16())
    with pytest.raises(TypeError, match=r"^Stream: lengths is bfloat16; it must be int64 or"):
        rc.Stream(values, times, lengths=torch.ones(2, dtype=torch.bfloat16))


def test_over_where_nothing_overlaps():
    with pytest.raises(ValueError, match=r'do not overlap: "a" runs from 0 to 1000000000 ns, "c" runs from 2000000000'):
        rc.Timeline.over({"a": stream(0, 1), "b": stream(0, 5), "c": stream(2, 3)}, rate=50)
    with pytest.raises(ValueError, match=r'"1" runs .*, "0" runs .*; are they on one clock, in one unit\?'):
        rc.Timeline.over([stream(2, 3), stream(0, 1)], rate=50)
    with pytest.raises(ValueError, match='stream "0" runs from 3000000000 to 2000000000 ns; times must not decrease'):
        rc.Timeline.over([stream(3, 2)], rate=50)
    empty = rc.Stream(np.zeros((0, 2), np.float32), np.zeros(0, np.int64))
    assert len(taus(rc.Timeline.over([empty, stream(2, 3)], rate=50))) == 0


def test_over_of_rows_that_do_not_overlap():
    rows = rc.Stream(np.zeros((2, 2)), np.array([[0, 1], [2, 3]]) * SECOND)
    assert rc.Timeline.over([rows, stream(0, 1)], rate=10).count == 11
    assert rc.Timeline.over([rows, stream(8, 9)], rate=10).count == 0


@pytest.mark.parametrize("step", [1, 10, 999])
def test_over_refuses_integers_that_are_no_nanoseconds(step):
    """Whole seconds at 1 Hz, milliseconds at 100 Hz, microseconds at 1 kHz."""
    times, values = np.arange(100) * step, np.zeros(100)
    rows = np.stack([times, times + 5])
    for stream in (
        rc.Stream(values, times),
        rc.Stream(values, times, offsets=np.array([0, 40, 40, 100])),
        rc.Stream(np.zeros((2, 100)), rows),
        rc.Stream(np.zeros((2, 100)), rows, lengths=np.array([100, 0])),
    ):
        apart = f'"imu": integer times are nanoseconds, and these are {step} ns apart on average; convert them: '
        with pytest.raises(ValueError, match=re.escape(apart + "t * 1_000_000_000 where t is seconds")):
            rc.Timeline.over({"imu": stream}, rate=50)


def test_over_takes_equal_stamps():
    assert rc.Timeline.over([rc.Stream(np.zeros(3), np.array([5, 5, 5]))], rate=50).count == 1


def test_over_of_rows_has_a_start_for_each():
    times = np.array([[0, 1, 2, 9], [5, 6, 7, 8]]) * SECOND
    padded = rc.Stream(np.zeros((2, 4, 1), np.float32), times, lengths=np.array([3, 4]))
    line = rc.Timeline.over([padded], rate=1)
    np.testing.assert_array_equal(taus(line), [[0, SECOND, 2 * SECOND, 3 * SECOND], [k * SECOND for k in (5, 6, 7, 8)]])
    packed = rc.Stream(
        np.zeros((7, 1), np.float32), np.concatenate([times[0, :3], times[1]]), offsets=np.array([0, 3, 7])
    )
    np.testing.assert_array_equal(taus(rc.Timeline.over([packed], rate=1)), taus(line))
    swapped = rc.Stream(packed.values, packed.times, offsets=packed.offsets, rows=np.array([1, 0, 1]))
    np.testing.assert_array_equal(taus(rc.Timeline.over([swapped], rate=1)), taus(line)[[1, 0, 1]])


def test_over_float_seconds():
    times = np.linspace(1.0, 2.0, 11)
    line = rc.Timeline.over([rc.Stream(np.zeros(11), times)], rate=50)
    np.testing.assert_array_equal(taus(line), SECOND + np.arange(51) * 20_000_000)


def test_over_ignores_what_lies_beyond_lengths():
    times = np.array([[0.0, 1.0, np.nan], [0.5, 1.5, 2.5]])
    stream = rc.Stream(np.zeros((2, 3)), times, lengths=np.array([2, 3]))
    assert rc.Timeline.over([stream], rate=10).count == 21


def test_a_float32_start_is_seconds_on_every_backend():
    torch = pytest.importorskip("torch")
    stream = rc.Stream(torch.arange(4.0), torch.arange(4) * SECOND)
    timeline = rc.Timeline(np.float32(1.5), rate=1, count=2)
    assert rc.align([stream], timeline)[0].values.tolist() == [1.5, 2.5]
    assert rc.align([stream], timeline, backend="torch")[0].values.tolist() == [1.5, 2.5]


def test_durations():
    """A float is seconds, an int is nanoseconds, a timedelta is what it says."""
    values, times = np.arange(4.0), np.arange(4) * SECOND
    expected = rc.resample(values, times, np.array([SECOND]), latency=250_000_000)
    assert expected.tolist() == [1.25]
    for latency in (0.25, np.float64(0.25), np.float32(0.25), np.int64(250_000_000), datetime.timedelta(seconds=0.25)):
        assert rc.resample(values, times, np.array([SECOND]), latency=latency).tolist() == [1.25]
    for max_gap in (0.5, datetime.timedelta(seconds=0.5), 500_000_000):
        got = rc.align([rc.Stream(values, times, max_gap=max_gap)], np.array([SECOND, SECOND + 1]))[0]
        assert got.valid.tolist() == [True, False]
    assert rc.align([rc.Stream(values, times, max_gap=0)], np.array([1, SECOND]))[0].valid.tolist() == [False, True]


@pytest.mark.parametrize("rate", [10, 15, 24, 29.97, 30, 50, 60, 90, 120, 1000 / 3])
def test_a_stream_at_its_own_rate_keeps_all_its_samples(rate):
    for count in range(2, 150):
        times = np.rint(np.arange(count) * 1e9 / rate).astype(np.int64)
        timeline = rc.Timeline.over(rc.Stream(np.zeros((count, 1)), times), rate=rate)
        assert len(timeline) == count
        np.testing.assert_array_equal(timeline.times, times)
