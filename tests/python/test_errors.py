"""Bad input gets a sentence: what was wrong, where, and what was expected. Each test here reads it."""

from __future__ import annotations

import datetime

import calling
import cases
import numpy as np
import pytest

import robocache as rc

SECOND = 10**9
TIMES = np.arange(8, dtype=np.int64) * SECOND
VALUES = np.arange(24, dtype=np.float32).reshape(8, 3)
TARGETS = np.array([0, SECOND // 2, 3 * SECOND], np.int64)
BATCH_TIMES = np.stack([TIMES, TIMES + 5, TIMES + 9])
BATCH_VALUES = np.stack([VALUES, VALUES + 1, VALUES + 2])


@pytest.fixture(autouse=True)
def the_library_works_on():
    """After every error, the next call is as right as ever."""
    yield
    answer = rc.resample(VALUES, TIMES, TARGETS)
    np.testing.assert_array_equal(answer, [[0, 1, 2], [1.5, 2.5, 3.5], [9, 10, 11]])


def says(error, parts, call, *arguments, **options):
    """The call raises `error` with a sentence that has all the parts, in this order."""
    with pytest.raises(error) as caught:
        call(*arguments, **options)
    sentence = str(caught.value)
    assert type(caught.value) is error, f"{type(caught.value).__name__}: {sentence}"
    where = 0
    for part in parts:
        found = sentence.find(part, where)
        assert found >= 0, f"the sentence lacks {part!r} (after position {where}): {sentence}"
        where = found + len(part)
    assert "\n" not in sentence
    return sentence


def stream(**changes):
    arguments = {"values": VALUES, "times": TIMES, **changes}
    return rc.Stream(arguments.pop("values"), arguments.pop("times"), **arguments)


# ---- ranks and shapes --------------------------------------------------------------------------------------------


def test_times_of_a_wrong_rank():
    says(ValueError, ["resample: times", "3 dimensions", "[S]"], rc.resample, VALUES, TIMES.reshape(2, 2, 2), TARGETS)
    says(ValueError, ["resample: times", "0 dimensions", "[S]"], rc.resample, VALUES, np.array(3), TARGETS)


def test_values_of_a_wrong_rank():
    says(ValueError, ["resample: values", "[]", "times", "[8]"], rc.resample, np.array(3.5), TIMES, TARGETS)
    call = ['Stream "imu": values', "[8, 3]", "times", "[3, 8]", "[B, S, ...]"]
    says(ValueError, call, stream, times=BATCH_TIMES, name="imu")


def test_targets_of_a_wrong_rank():
    says(ValueError, ["resample: targets", "[1, 1, 3]", "[B, T]"], rc.resample, VALUES, TIMES, TARGETS[None, None])
    says(ValueError, ["resample: targets", "[]"], rc.resample, VALUES, TIMES, np.array(5))


def test_values_and_times_that_are_swapped():
    parts = ["resample: values of shape [8] do not fit times of shape [8, 3]", "are values and times swapped?"]
    says(ValueError, parts, rc.resample, TIMES, VALUES, TARGETS)
    images = np.zeros((8, 2, 2, 3), np.uint8)
    says(ValueError, ["times have 4 dimensions", "swapped?"], rc.resample, TIMES, images, TARGETS)
    parts = ["times of shape [8, 1]", "did you mean times[:, 0]?"]
    says(ValueError, parts, rc.resample, VALUES, TIMES[:, None], TARGETS)


def test_shapes_that_disagree():
    says(ValueError, ["resample: values", "[7, 3]", "times", "[8]"], rc.resample, VALUES[:7], TIMES, TARGETS)
    parts = ["Stream: arrivals", "[7]", "times", "[8]"]
    says(ValueError, parts, stream, arrivals=TIMES[:7])
    says(
        ValueError,
        ["resample", "lengths", "[2]", "3 rows"],
        rc.resample,
        BATCH_VALUES,
        BATCH_TIMES,
        TARGETS,
        lengths=np.array([8, 8]),
    )
    says(ValueError, ["lengths", "times", "[8]"], rc.resample, VALUES, TIMES, TARGETS, lengths=np.array([8]))
    says(ValueError, ["rows", "times", "[8]"], rc.resample, VALUES, TIMES, TARGETS, rows=np.array([0]))
    says(
        ValueError,
        ["lengths", "offsets"],
        rc.resample,
        VALUES,
        TIMES,
        TARGETS,
        lengths=np.array([8]),
        offsets=np.array([0, 8]),
    )
    says(ValueError, ["offsets"], rc.resample, VALUES, TIMES, TARGETS, offsets=np.zeros(0, np.int64))
    says(ValueError, ["offsets"], rc.resample, VALUES, TIMES, TARGETS, offsets=np.zeros((1, 2), np.int64))


def test_rows_that_disagree():
    batch = stream(values=BATCH_VALUES, times=BATCH_TIMES)
    two = np.stack([TARGETS, TARGETS])
    says(ValueError, ['align: stream "imu"', "3 rows", "targets", "2"], rc.align, {"imu": batch}, two)
    other = stream(values=BATCH_VALUES[:2], times=BATCH_TIMES[:2])
    parts = ['fuse: stream "late"', "2 rows", 'stream "imu"', "3"]
    says(ValueError, parts, rc.fuse, {"imu": batch, "late": other}, TARGETS)
    says(ValueError, ['stream "1": has 2 rows, but stream "0" has 3'], rc.fuse, [batch, other], TARGETS)
    starts = rc.Timeline(np.array([0, 0]), rate=50, count=3)
    says(ValueError, ['align: stream "imu"', "3 rows", "2"], rc.align, {"imu": batch}, starts)


def test_the_number_of_streams():
    says(ValueError, ["align", "0 streams", "1 to 64"], rc.align, {}, TARGETS)
    says(ValueError, ["fuse", "65 streams", "1 to 64"], rc.fuse, [stream()] * 65, TARGETS)


def test_streams_that_are_none():
    """The kind of the thing, not its numbers: an array prints over many lines."""
    says(TypeError, ['align: stream "imu"', "robocache.Stream, not", "ndarray"], rc.align, {"imu": VALUES}, TARGETS)
    parts = ['Timeline.over: stream "imu"', "robocache.Stream, not", "ndarray"]
    says(TypeError, parts, rc.Timeline.over, {"imu": VALUES}, rate=50)
    torch = pytest.importorskip("torch")
    tensors = {"imu": torch.from_numpy(VALUES)}
    parts = ['align: stream "imu"', "robocache.Stream, not", "Tensor"]
    says(TypeError, parts, rc.align, tensors, torch.from_numpy(TARGETS), backend="torch")
    says(TypeError, ["align", "Stream"], rc.align, stream(), TARGETS)
    says(ValueError, ["align", "two streams", "imu"], rc.align, [stream(name="imu"), stream(name="imu")], TARGETS)


# ---- methods -----------------------------------------------------------------------------------------------------


def test_unknown_words():
    says(ValueError, ["resample", "lineer", "linear", "slerp"], rc.resample, VALUES, TIMES, TARGETS, method="lineer")
    says(ValueError, ['Stream "imu": method is', "lineer"], stream, method="lineer", name="imu")
    says(ValueError, ["resample", "edge", "wrap", "clamp"], rc.resample, VALUES, TIMES, TARGETS, edge="wrap")
    says(ValueError, ["Stream: edge is", "wrap"], stream, edge="wrap")
    says(ValueError, ["fuse", "on_nan", "drop", "skip"], rc.fuse, [stream()], TARGETS, on_nan="drop")


def test_ranges_that_overlap():
    parts = ["Stream: methods overlap", "linear", "0..2", "hold", "1..3"]
    says(ValueError, parts, stream, method=[("linear", 0, 2), ("hold", 1, 3)])


def test_ranges_that_leave_channels_out():
    says(ValueError, ["Stream: channels 2..3 have no method"], stream, method=[("linear", 0, 2)])
    says(ValueError, ["Stream: channels 1..2 have no method"], stream, method=[("linear", 0, 1), ("hold", 2, 3)])


def test_ranges_outside_the_channels():
    parts = ["linear", "0..5", "3 channels"]
    says(ValueError, parts, rc.resample, VALUES, TIMES, TARGETS, method=[("linear", 0, 5)])
    says(ValueError, ["-1..3"], rc.resample, VALUES, TIMES, TARGETS, method=[("linear", -1, 3)])
    says(ValueError, ["2..1"], rc.resample, VALUES, TIMES, TARGETS, method=[("linear", 0, 3), ("hold", 2, 1)])


def test_a_method_that_is_none():
    parts = ["Stream: method is 5; expected a name, a list of (name, begin, end)"]
    says(TypeError, parts, stream, method=5)


def test_methods_of_a_wrong_form():
    for method in (3, [("linear", 0)], [("linear", 0, "3")], ["linear"], [("linear", 0, 3, 4)]):
        with pytest.raises((TypeError, ValueError), match="method"):
            rc.resample(VALUES, TIMES, TARGETS, method=method)


def test_a_part_of_a_method_names_its_entry():
    parts = ["resample: method[0]: end is '3'; expected an int"]
    says(TypeError, parts, rc.resample, VALUES, TIMES, TARGETS, method=[("linear", 0, "3")])
    parts = ["Stream: method[1]: begin is 1.0; expected an int"]
    says(TypeError, parts, stream, method=[("linear", 0, 1), ("hold", 1.0, 3)])
    parts = ["resample: method[0] is (0, 3, 'linear'); the name comes first: (\"linear\", 0, 3)"]
    says(TypeError, parts, rc.resample, VALUES, TIMES, TARGETS, method=[(0, 3, "linear")])
    parts = ["resample: method[0]: name is 'lineer'; expected linear"]
    says(ValueError, parts, rc.resample, VALUES, TIMES, TARGETS, method=[("lineer", 0, 3)])


def test_methods_by_channel_name():
    names = ["x", "y", "grip"]
    parts = ['Stream: no pattern of method matches channel "grip"; end the dict with "*"']
    says(ValueError, parts, stream, method={"[xy]": "linear"}, channels=names)
    says(ValueError, ["Stream: method is a dict", "channels"], stream, method={"*": "linear"})
    parts = ['Stream: method names "gripper", which matches no channel; the channels are x, y, grip']
    says(ValueError, parts, stream, method={"gripper": "hold", "*": "linear"}, channels=names)
    says(TypeError, ["method names a channel by 3; expected a str"], stream, method={3: "hold"}, channels=names)
    parts = ['"arm"', "2 names", "3 channels"]
    says(ValueError, parts, stream, method={"*": "linear"}, channels=names[:2], name="arm")


def test_fused_has_no_index():
    fused = rc.fuse([stream()], TARGETS)
    says(AttributeError, ["Fused has no index; align gives one"], lambda: fused.index)
    assert not hasattr(fused, "index")


def test_slerp_on_other_than_groups_of_four():
    says(ValueError, ["Stream: slerp", "4 channels", "0..3", "3"], stream, method="slerp")


@pytest.mark.parametrize("method", ["linear", "slerp", "angle", "angle_degrees", "cubic", "mean"])
def test_a_method_that_integers_cannot_have(method):
    whole = VALUES.astype(np.int32)
    parts = ["resample", method, "int32", "hold"]
    says(TypeError, parts, rc.resample, whole, TIMES, TARGETS, method=method)


def test_edge_nan_on_integers():
    whole = VALUES.astype(np.uint8)
    says(ValueError, ["resample", "edge nan", "uint8"], rc.resample, whole, TIMES, TARGETS, edge="nan")


ARRAYS = {  # of a Stream: (error, sentence, arguments)
    "too few times": (ValueError, "values of shape [8, 3] do not fit times of shape [4]", {"times": TIMES[:4]}),
    "too few arrivals": (ValueError, "arrivals of shape [3] do not fit times", {"arrivals": TIMES[:3]}),
    "too few names": (ValueError, "channels has 1 names, and the values have 3 channels", {"channels": ["x"]}),
    "narrow times": (TypeError, "times are int32; they must be int64 nanoseconds", {"times": TIMES.astype(np.int32)}),
    "no values": (TypeError, "values is of type NoneType; torch tensors, NumPy", {"values": None}),
    "text": (TypeError, "values is of type str; torch tensors, NumPy", {"values": "abc"}),
    "no times": (TypeError, "times is of type NoneType; torch tensors, NumPy", {"times": None}),
    "NaN on integers": (ValueError, "edge nan on int64", {"values": VALUES.astype(np.int64), "edge": "nan"}),
    "lengths that are a number": (TypeError, "lengths is of type int; torch tensors, NumPy", {"lengths": 3}),
    "lengths without rows": (ValueError, "lengths need a stream with rows", {"lengths": np.array([8])}),
    "float offsets": (TypeError, "offsets is float64; it must be int64 or int32", {"offsets": np.array([0.0, 8.0])}),
    "linear integers": (TypeError, "method linear needs", {"values": VALUES.astype(np.int64), "method": "linear"}),
}


@pytest.mark.parametrize("kind", ["numpy", "torch", "requires grad"])
@pytest.mark.parametrize("name", list(ARRAYS))
def test_a_stream_checks_its_arrays_when_it_is_made(name, kind):
    """With the words of align."""
    error, sentence, wrong = ARRAYS[name]
    given = {"values": VALUES, "times": TIMES} | wrong
    if kind != "numpy":
        torch = pytest.importorskip("torch")
        given = {k: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for k, x in given.items()}
        if kind == "requires grad" and getattr(given["values"], "dtype", None) == torch.float32:
            given["values"].requires_grad_()
    says(error, [f"Stream: {sentence}"], rc.Stream, **given)
    says(error, [f'Stream "imu": {sentence}'], rc.Stream, **given, name="imu")


def test_tensors_without_memory_make_a_stream():
    torch = pytest.importorskip("torch")
    assert (
        rc.Stream(torch.empty(8, 3, device="meta"), torch.empty(8, device="meta", dtype=torch.int64)).channels is None
    )


def test_a_timeline_that_is_too_long():
    parts = ["Timeline: a timeline of 4294967296 steps at 1 Hz is longer than 73 years"]
    says(ValueError, parts, rc.Timeline, 2**61, rate=1, count=2**32)
    says(ValueError, ["Timeline: a timeline of 1099511627776 steps"], rc.Timeline, 0, rate=1, count=2**40)
    says(ValueError, ["Timeline: the timeline starts at", "2^62"], rc.Timeline, 2**62, rate=1, count=0)
    parts = ["Timeline: the timeline goes from 4611686017427387904 to 4611686018427387904 ns", "within 2^62 ns of 0"]
    says(ValueError, parts, rc.Timeline, 2**62 - 10**9, rate=1, count=2)
    assert len(rc.Timeline(2**62 - 10**9, rate=1, count=1)) == 1
    assert len(rc.Timeline(2**62 - 10**9 - 1, rate=1, count=2)) == 2


# ---- dtypes, devices, kinds --------------------------------------------------------------------------------------


def test_fuse_of_mixed_dtypes():
    mixed = {"a": stream(), "b": stream(values=VALUES.astype(np.float64))}
    says(TypeError, ['fuse: stream "b"', "float64", "float32", "dtype="], rc.fuse, mixed, TARGETS)
    says(
        TypeError,
        ["fuse", "int32", "float32"],
        rc.fuse,
        mixed,
        TARGETS,
        dtype=np.int32,
    )
    small = {"a": stream(values=VALUES.astype(np.int16))}
    says(TypeError, ["fuse", '"a"', "uint16", "int16"], rc.fuse, small, TARGETS, dtype=np.uint16)


def test_times_of_a_wrong_dtype():
    says(TypeError, ["resample: times", "int32", "int64"], rc.resample, VALUES, TIMES.astype(np.int32), TARGETS)
    says(TypeError, ["resample: targets", "uint64", "int64"], rc.resample, VALUES, TIMES, TARGETS.astype(np.uint64))
    says(TypeError, ["Stream: arrivals", "float16"], stream, arrivals=np.zeros(8, np.float16))


@pytest.mark.parametrize("kind", ["datetime64", "timedelta64"])
@pytest.mark.parametrize("unit", ["ns", "us"])
def test_times_of_numpy_are_refused_with_the_way_to_nanoseconds(kind, unit):
    parts = [f"resample: times is {kind}[{unit}]; pass", f'.astype("{kind}[ns]").astype("int64")']
    says(TypeError, parts, rc.resample, VALUES, TIMES.astype(f"{kind}[{unit}]"), TARGETS)


def test_lengths_of_a_wrong_dtype():
    parts = ["resample", "lengths", "float64", "int64"]
    says(TypeError, parts, rc.resample, BATCH_VALUES, BATCH_TIMES, TARGETS, lengths=np.array([8.0, 8.0, 8.0]))


@pytest.mark.parametrize("dtype", ["complex64", "object", "U3", "datetime64[ns]"])
def test_values_of_an_unsupported_dtype(dtype):
    values = np.zeros((8, 3), dtype)
    name = {"U3": "str"}.get(dtype, dtype.split("[")[0])
    sentence = says(TypeError, ["resample", "values", name], rc.resample, values, TIMES, TARGETS)
    assert "nanoseconds" in sentence if dtype.startswith("datetime") else "floats of 16 to 64 bits" in sentence


@pytest.mark.parametrize("values", ["text", 3.5, None, object(), {"a": 1}], ids=lambda v: type(v).__name__)
def test_an_unsupported_kind_of_array(values):
    parts = ["resample", "values", type(values).__name__]
    says(TypeError, parts, rc.resample, values, TIMES, TARGETS)


def test_big_endian_arrays_are_refused():
    swapped = VALUES.astype(">f4")
    says(TypeError, ["resample", "values"], rc.resample, swapped, TIMES, TARGETS)


def test_mixed_kinds_of_arrays():
    torch = pytest.importorskip("torch")
    parts = ["resample", "targets", "numpy", "values", "torch"]
    sentence = says_in_any_order(TypeError, parts, rc.resample, torch.from_numpy(VALUES), TIMES, TARGETS)
    assert "numpy" in sentence.lower()


def says_in_any_order(error, parts, call, *arguments, **options):
    with pytest.raises(error) as caught:
        call(*arguments, **options)
    sentence = str(caught.value)
    for part in parts:
        assert part in sentence.lower(), f"the sentence lacks {part!r}: {sentence}"
    return sentence


def test_mixed_devices(cuda):
    torch = pytest.importorskip("torch")
    parts = ["resample", "times", "cpu", "cuda:0"]
    says_in_any_order(ValueError, parts, rc.resample, cuda(VALUES), torch.from_numpy(TIMES), cuda(TARGETS))


@pytest.mark.parametrize("backend", [None, "torch"])
@pytest.mark.parametrize("wants_gradient", [False, True])
def test_mixed_devices_without_a_gpu(backend, wants_gradient):
    """torch's meta device has shapes and no memory: what came back was memory that nobody had written."""
    torch = pytest.importorskip("torch")
    values, times, targets = (torch.from_numpy(array.copy()) for array in (VALUES, TIMES, TARGETS))
    values.requires_grad_(wants_gradient)
    tail = "; all must be on one device"
    parts = ["resample: times is on meta and the first stream's values on cpu" + tail]
    says(ValueError, parts, rc.resample, values, times.to("meta"), targets, backend=backend)
    parts = ["resample: times is on cpu and the first stream's values on meta" + tail]
    says(ValueError, parts, rc.resample, values.to("meta"), times, targets, backend=backend)
    parts = ["resample: targets is on meta and the first stream's values on cpu" + tail]
    says(ValueError, parts, rc.resample, values, times, targets.to("meta"), backend=backend)
    parts = ["resample: the timeline's start is on meta and the first stream's values on cpu" + tail]
    line = rc.Timeline(torch.zeros(2, device="meta"), rate=50, count=3)
    says(ValueError, parts, rc.resample, values, times, line, backend=backend)
    streams = [rc.Stream(values, times), rc.Stream(values.to("meta"), times.to("meta"))]
    parts = ['fuse: stream "1": values is on meta and the first stream\'s values on cpu' + tail]
    says(ValueError, parts, rc.fuse, streams, targets, backend=backend)


# ---- durations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 5, 999])
def test_a_duration_that_was_meant_as_seconds(number):
    parts = ["resample", "max_gap", f"{number}", "nanoseconds", f"{number}.0", f"{number / 1000} for {number} ms"]
    says(ValueError, parts, rc.resample, VALUES, TIMES, TARGETS, max_gap=number)
    says(ValueError, ["Stream: latency", f"{number}"], stream, latency=number)


@pytest.mark.parametrize("number", [1000, 20_000, 999_999])
def test_a_max_gap_of_less_than_a_millisecond_as_an_int(number):
    """max_gap=1000 was a microsecond, and everything was invalid without a word. As a float it may be any."""
    torch = pytest.importorskip("torch")
    parts = ["max_gap", f"{number} ns", f"{number}.0", f"{number / 1000} for {number} ms"]
    says(ValueError, ["resample: ", *parts], rc.resample, VALUES, TIMES, TARGETS, max_gap=number)
    says(ValueError, ["Stream: ", *parts], stream, max_gap=number)
    tensors = [torch.from_numpy(array) for array in (VALUES, TIMES, TARGETS)]
    says(ValueError, ["resample: ", *parts], rc.resample, *tensors, max_gap=number, backend="torch")
    for backend in (None, "torch"):
        answer = rc.align([rc.Stream(*tensors[:2], max_gap=number * 1e-9)], tensors[2], backend=backend)[0]
        given = rc.align([stream(max_gap=datetime.timedelta(microseconds=number // 1000))], TARGETS)[0]
        assert answer.valid.tolist() == given.valid.tolist()
    assert stream(max_gap=1_000_000).max_gap == 1_000_000
    assert stream(latency=1000).latency == 1000


def test_a_negative_max_gap():
    parts = ["resample: max_gap = -0.5 s is negative; expected", "None"]
    says(ValueError, parts, rc.resample, VALUES, TIMES, TARGETS, max_gap=-0.5)
    says(ValueError, ["Stream: max_gap = -5000 ns is negative; expected"], stream, max_gap=-5000)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30, 1 << 63])
def test_a_duration_that_is_none(value):
    with pytest.raises((ValueError, OverflowError), match="latency"):
        rc.resample(VALUES, TIMES, TARGETS, latency=value)


def test_a_huge_duration_is_written_short():
    says(ValueError, ["resample: latency = 1e+30 s; ", "146 years"], rc.resample, VALUES, TIMES, TARGETS, latency=1e30)


def test_a_duration_of_a_wrong_type():
    says(TypeError, ["resample", "latency", "8ms"], rc.resample, VALUES, TIMES, TARGETS, latency="8ms")
    says(TypeError, ["resample", "max_gap", "True"], rc.resample, VALUES, TIMES, TARGETS, max_gap=True)


# ---- what only the data can tell -----------------------------------------------------------------------------------


def with_change(array: np.ndarray, where, value) -> np.ndarray:
    changed = array.copy()
    changed[where] = value
    return changed


SECONDS = TIMES / 1e9
OFFSETS = np.array([0, 3, 8], np.int64)

# name: (sentence, call)
DATA = {
    "times decrease": (
        ['align: stream "imu": times[2][5] = 17 is before times[2][4] = 4000000009', "must not decrease"],
        lambda c: rc.align({"imu": rc.Stream(c(BATCH_VALUES), c(with_change(BATCH_TIMES, (2, 5), 17)))}, c(TARGETS)),
    ),
    "times decrease, unbatched": (
        ["resample: times[5] = 17 is before times[4] = 4000000000"],
        lambda c: rc.resample(c(VALUES), c(with_change(TIMES, 5, 17)), c(TARGETS)),
    ),
    "times decrease, seconds": (
        ['fuse: stream "b": times[5] = 0.25 s is before times[4] = 4 s'],
        lambda c: rc.fuse(
            {
                "a": rc.Stream(c(VALUES), c(SECONDS)),
                "b": rc.Stream(c(VALUES), c(with_change(SECONDS, 5, 0.25))),
            },
            c(TARGETS),
        ),
    ),
    "times decrease, packed": (
        ["resample: times[5] = 17 is before times[4] = 4000000000"],
        lambda c: rc.resample(c(VALUES), c(with_change(TIMES, 5, 17)), c(TARGETS), offsets=c(OFFSETS)),
    ),
    "times not a number": (
        ["resample: times[5] = nan"],
        lambda c: rc.resample(c(VALUES), c(with_change(SECONDS, 5, np.nan)), c(TARGETS)),
    ),
    "times infinite": (
        ["resample: times[7] = inf"],
        lambda c: rc.resample(c(VALUES), c(with_change(SECONDS, 7, np.inf)), c(TARGETS)),
    ),
    "times that are nanoseconds as floats": (
        ["resample: times[0] = 1.7e+18 s is not a time", "these look like nanoseconds: make them int64"],
        lambda c: rc.resample(c(VALUES), c(TIMES + 1.7e18), c(TARGETS)),
    ),
    "times past 2^62": (
        ["resample: times[7] = 4611686018427387904", "2^62"],
        lambda c: rc.resample(c(VALUES), c(with_change(TIMES, 7, 1 << 62)), c(TARGETS)),
    ),
    "float32 seconds too large": (
        ["resample: times[7] = 16385", "float32", "float64"],
        lambda c: rc.resample(c(VALUES), c(with_change(SECONDS.astype(np.float32), 7, 16385)), c(TARGETS)),
    ),
    "float32 targets too large": (
        ["resample: targets[1] = 1.7e+09 s", "float32", "float64"],
        lambda c: rc.resample(c(VALUES), c(TIMES), c(np.array([0, 1.7e9], np.float32))),
    ),
    "float32 arrivals too large": (
        ['align: stream "imu": arrivals[3] = 16385 s is too large for float32', "float64"],
        lambda c: rc.align(
            {"imu": rc.Stream(c(VALUES), c(TIMES), arrivals=c(with_change(SECONDS.astype(np.float32), 3, 16385)))},
            c(TARGETS),
        ),
    ),
    "a float32 start that is too large": (
        ["align: the timeline's start[1] = 16385 s is too large for float32", "float64"],
        lambda c: rc.align(
            [rc.Stream(c(VALUES), c(TIMES))], rc.Timeline(c(np.array([0, 16385], np.float32)), rate=50, count=3)
        ),
    ),
    "arrivals not a number": (
        ['align: stream "imu": arrivals[3] = nan'],
        lambda c: rc.align(
            {"imu": rc.Stream(c(VALUES), c(TIMES), arrivals=c(with_change(SECONDS, 3, np.nan)))}, c(TARGETS)
        ),
    ),
    "targets not a number": (
        ["resample: targets[2] = nan"],
        lambda c: rc.resample(c(VALUES), c(TIMES), c(np.array([0, 1, np.nan]))),
    ),
    "targets decrease for bins": (
        ["resample: targets[1][2] = 17 is before targets[1][1] = 500000000", "mean"],
        lambda c: rc.resample(c(VALUES), c(TIMES), c(np.stack([TARGETS, with_change(TARGETS, 2, 17)])), method="mean"),
    ),
    "a start that is no time": (
        ["align", "start", "[1]", "nan"],
        lambda c: rc.align([rc.Stream(c(VALUES), c(TIMES))], rc.Timeline(c(np.array([0.0, np.nan])), rate=50, count=3)),
    ),
    "an integer start that is no time": (
        ["align", "start", "[1]", str(2**62)],
        lambda c: rc.align([rc.Stream(c(VALUES), c(TIMES))], rc.Timeline(c(np.array([0, 2**62])), rate=50, count=3)),
    ),
    "bad times and no targets": (
        ["resample: times[2] = 17 is before times[1]"],
        lambda c: rc.resample(c(VALUES), c(with_change(TIMES, 2, 17)), c(TARGETS[:0])),
    ),
    "lengths too large": (
        ["resample: lengths[1] = 9 is outside 0..8"],
        lambda c: rc.resample(c(BATCH_VALUES), c(BATCH_TIMES), c(TARGETS), lengths=c(np.array([8, 9, 8]))),
    ),
    "lengths negative, many targets": (
        ["resample: lengths[1] = -3 is outside 0..8"],
        lambda c: rc.resample(
            c(BATCH_VALUES), c(BATCH_TIMES), c(np.repeat(TARGETS, 60)), lengths=c(np.array([8, -3, 8]))
        ),
    ),
    "lengths negative": (
        ["resample: lengths[2] = -1 is outside 0..8"],
        lambda c: rc.resample(c(BATCH_VALUES), c(BATCH_TIMES), c(TARGETS), lengths=c(np.array([8, 7, -1], np.int32))),
    ),
    "offsets decrease": (
        ["resample: offsets[2] = 2 is below offsets[1] = 3", "must not decrease"],
        lambda c: rc.resample(c(VALUES), c(TIMES), c(TARGETS), offsets=c(np.array([0, 3, 2, 8]))),
    ),
    "offsets too large": (
        ["resample: offsets[2] = 9 is outside 0..8"],
        lambda c: rc.resample(c(VALUES), c(TIMES), c(TARGETS), offsets=c(np.array([0, 3, 9]))),
    ),
    "offsets negative": (
        ["resample: offsets[0] = -3 is outside 0..8"],
        lambda c: rc.resample(c(VALUES), c(TIMES), c(TARGETS), offsets=c(np.array([-3, 3, 8]))),
    ),
    "rows too large": (
        ["resample: rows[1] = 3 is outside 0..2"],
        lambda c: rc.resample(c(BATCH_VALUES), c(BATCH_TIMES), c(TARGETS), rows=c(np.array([0, 3]))),
    ),
    "rows negative": (
        ['align: stream "imu": rows[0] = -1 is outside 0..1'],
        lambda c: rc.align(
            {"imu": rc.Stream(c(VALUES), c(TIMES), offsets=c(OFFSETS), rows=c(np.array([-1])))}, c(TARGETS)
        ),
    ),
}
each_fault = pytest.mark.parametrize("fault", list(DATA))


@each_fault
def test_data_faults_on_the_cpu(fault):
    parts, call = DATA[fault]
    says(ValueError, parts, call, calling.keep)


@each_fault
def test_data_faults_on_cuda_are_raised_by_synchronize(fault, cuda):
    parts, call = DATA[fault]
    call(cuda)  # the launch itself never blocks
    says(ValueError, parts, rc.synchronize)
    rc.synchronize()


@each_fault
def test_data_faults_on_cuda_are_raised_by_the_next_call(fault, cuda):
    torch = pytest.importorskip("torch")
    parts, call = DATA[fault]
    call(cuda)
    torch.cuda.synchronize()
    out = torch.full((3, 3), 7.0, device="cuda")
    says(ValueError, parts, rc.resample, cuda(VALUES), cuda(TIMES), cuda(TARGETS), out=out)
    assert (out == 7).all(), "the call that reports an earlier fault does nothing else"
    rc.resample(cuda(VALUES), cuda(TIMES), cuda(TARGETS), out=out)
    rc.synchronize()
    np.testing.assert_array_equal(out.cpu().numpy(), rc.resample(VALUES, TIMES, TARGETS))


@pytest.mark.parametrize("fault", ["times decrease, unbatched", "targets not a number", "times past 2^62"])
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_nothing_is_written_when_the_data_is_bad(fault, backend):
    out = np.full((3, 3), 7, np.float32)
    times = {"times decrease, unbatched": with_change(TIMES, 5, 17), "times past 2^62": with_change(TIMES, 7, 1 << 62)}
    targets = np.array([0, 1, np.nan]) if fault.startswith("targets") else TARGETS
    with pytest.raises(ValueError, match="resample"):
        rc.resample(VALUES, times.get(fault, TIMES), targets, out=out, backend=backend)
    assert (out == 7).all()
    with pytest.raises(ValueError, match="fuse"):
        rc.fuse([rc.Stream(VALUES, times.get(fault, TIMES))], targets, out=out, backend=backend)
    assert (out == 7).all()


def test_padding_may_hold_anything():
    times = BATCH_TIMES.astype(np.float64) / 1e9
    times[1, 4:] = [np.nan, -1, np.inf, 1e300]
    expected = rc.resample(BATCH_VALUES, BATCH_TIMES / 1e9, TARGETS)
    answer = rc.resample(BATCH_VALUES, times, TARGETS, lengths=np.array([8, 4, 8]))
    np.testing.assert_array_equal(answer, expected)


def test_an_unnamed_stream_has_no_name_in_its_sentence():
    rc.align({"imu": stream()}, TARGETS)  # a name that the library has met
    sentence = says(ValueError, ["resample: times[5]"], rc.resample, VALUES, with_change(TIMES, 5, 17), TARGETS)
    assert "stream" not in sentence


def test_streams_of_a_sequence_are_named_by_their_position():
    bad = stream(times=with_change(TIMES, 5, 17))
    says(ValueError, ['fuse: stream "1": times[5]'], rc.fuse, [stream(), bad], TARGETS)
    named = stream(times=with_change(TIMES, 5, 17), name="lidar")
    says(ValueError, ['fuse: stream "lidar": times[5]'], rc.fuse, [stream(), named], TARGETS)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("method", ["linear", "cubic", "mean", "max", "slerp", "nearest"])
def test_unchecked_garbage_stays_inside_the_arrays(seed, method, backend):
    """check=False promises nothing about the numbers, but no read or write outside, and an end."""
    kind, convert = backend
    random = cases.Random(f"{seed} {method}")
    rows, samples = 3, 9
    packed = random.chance(2)
    shape = (rows * samples,) if packed else (rows, samples)
    time_dtype = np.dtype(random.choice(["int64", "float64", "float32"]))
    values = convert(random.values((*shape, 4), "float32"))
    stamps = random.choice([cases.garbage(random, shape, time_dtype), np.full(shape, 5, time_dtype)])
    numbers = cases.garbage(random, rows + 1 if packed else rows, np.dtype(random.choice(["int32", "int64"])))
    arguments = {
        "arrivals": convert(cases.garbage(random, shape, time_dtype)) if random.chance(2) else None,
        "rows": convert(cases.garbage(random, 5, np.dtype("int64"))) if random.chance(2) else None,
        ("offsets" if packed else "lengths"): convert(numbers),
    }
    stream = rc.Stream(values, convert(stamps), method=method, **arguments)
    targets = convert(cases.garbage(random, 7, np.dtype("int64")))
    out = rc.align([stream], targets, causal=random.chance(2), check=False, backend=kind)[0]
    rc.synchronize()
    index = calling.to_numpy(out.index)
    assert ((index >= -1) & (index < max(shape))).all()


# ---- targets -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("targets", [50, 50.0, np.int64(50), None])
def test_targets_that_are_no_times(targets):
    parts = ["align: targets is ", "; expected a Timeline, or the times as an array", "a list"]
    says(TypeError, parts, rc.align, {"imu": stream()}, targets)


def test_timelines_that_are_none():
    says(ValueError, ["rate", "0", "positive"], lambda: rc.resample(VALUES, TIMES, rc.Timeline(0, rate=0, count=3)))
    says(ValueError, ["rate", "-50", "positive"], lambda: rc.resample(VALUES, TIMES, rc.Timeline(0, rate=-50, count=3)))
    says(ValueError, ["rate", "nan"], lambda: rc.resample(VALUES, TIMES, rc.Timeline(0, rate=float("nan"), count=3)))
    says(ValueError, ["count", "-1", "negative"], lambda: rc.resample(VALUES, TIMES, rc.Timeline(0, rate=50, count=-1)))
    with pytest.raises(ValueError, match=r"start"):
        rc.resample(VALUES, TIMES, rc.Timeline(float("nan"), rate=50, count=3))
    with pytest.raises(ValueError, match=r"timeline|Timeline"):
        rc.resample(VALUES, TIMES, rc.Timeline(0, rate=1e-9, count=10**6))
    with pytest.raises(ValueError, match=r"start"):
        rc.resample(VALUES, TIMES, rc.Timeline(np.zeros((2, 2)), rate=50, count=3))


FAR = " s is too large for float32: its step there is over a millisecond; give float64 seconds or int64 nanoseconds"


def test_a_float32_start_that_is_too_large():
    """Of a recording since 1970, say: float32 puts it up to a minute off."""
    says(ValueError, [f"Timeline: start = 1.7e+09{FAR}"], rc.Timeline, np.float32(1.7e9), rate=50, count=3)
    parts = [f"resample: the timeline's start = 1.7e+09{FAR}"]
    says(ValueError, parts, rc.resample, VALUES, TIMES, rc.Timeline(np.array(1.7e9, np.float32), rate=50, count=3))
    parts = ["start = 20000 s is too large for float16"]
    says(ValueError, parts, rc.Timeline, np.float16(20000), rate=50, count=3)
    for start in (np.float32(2**14), np.float64(1.7e9), np.array(1.7e9), 1.7e9):
        rc.resample(VALUES, TIMES, rc.Timeline(start, rate=50, count=3))


def test_targets_of_rows_that_differ_in_length():
    parts = ["resample: targets is a list whose rows differ in length; expected"]
    says(ValueError, parts, rc.resample, VALUES, TIMES, [[0, 1], [2]])
    parts = ["align: targets is a tuple whose rows differ in length; expected"]
    says(ValueError, parts, rc.align, [stream()], ((0, 1), (2,)))


# ---- out, backend --------------------------------------------------------------------------------------------------


def test_out_of_a_wrong_shape():
    parts = ["resample: out", "[3, 4]", "expected", "[3, 3]"]
    says(ValueError, parts, rc.resample, VALUES, TIMES, TARGETS, out=np.zeros((3, 4), np.float32))
    parts = ["fuse: out", "[3, 3]", "expected", "[3, 6]"]
    says(ValueError, parts, rc.fuse, [stream(), stream()], TARGETS, out=np.zeros((3, 3), np.float32))


def test_out_of_a_wrong_dtype():
    with pytest.raises((TypeError, ValueError), match=r"resample: out.*int32.*float32|resample: out.*float32.*int32"):
        rc.resample(VALUES, TIMES, TARGETS, out=np.zeros((3, 3), np.int32))


def test_out_that_cannot_be_written():
    out = np.zeros((3, 3), np.float32)
    out.flags.writeable = False
    with pytest.raises((TypeError, ValueError), match=r"resample: out.*(read-only|writ)"):
        rc.resample(VALUES, TIMES, TARGETS, out=out)
    with pytest.raises((TypeError, ValueError), match=r"resample: out"):
        rc.resample(VALUES, TIMES, TARGETS, out=np.broadcast_to(np.zeros((1, 3), np.float32), (3, 3)))


@pytest.mark.parametrize("backend", ["reference", "cpu", "torch"])
def test_out_that_overlaps_itself(backend):
    """Rows that share elements came back half overwritten. Layouts that only look so are fine."""
    torch = pytest.importorskip("torch")
    values, times, targets = (torch.from_numpy(array) for array in (VALUES, TIMES, TARGETS))
    expected = rc.resample(VALUES, TIMES, TARGETS)
    for strides, overlaps in [((1, 1), True), ((2, 1), True), ((3, 1), False), ((2, 3), False), ((2, 4), True)]:
        out = torch.zeros(40).as_strided((3, 3), strides)
        if overlaps:
            parts = ["resample: out overlaps itself: several of its elements are one place in memory"]
            says(ValueError, parts, rc.resample, values, times, targets, out=out, backend=backend)
        else:
            rc.resample(values, times, targets, out=out, backend=backend)
            np.testing.assert_array_equal(out.numpy(), expected)
    woven = torch.zeros(40).as_strided((3, 2), (2, 3))  # 0, 3, 2, 5, 4, 7: each once
    rc.resample(values[:, :2], times, targets, out=woven, backend=backend)
    np.testing.assert_array_equal(woven.numpy(), expected[:, :2])


def test_a_broadcast_out_is_refused():
    """Several targets would be written to one place."""
    base = np.zeros((1, 3), np.float32)
    out = np.lib.stride_tricks.as_strided(base, (3, 3), (0, 4), writeable=True)
    with pytest.raises(ValueError, match=r"resample: out"):
        rc.resample(VALUES, TIMES, TARGETS, out=out)


OVERLAPS = {
    "values": lambda v, t, q, b: rc.resample(v, t, q, out=v[2:5], backend=b),
    "times": lambda v, t, q, b: rc.resample(t + 0, t, q, out=t[5:], backend=b),
    "targets": lambda v, t, q, b: rc.resample(t, t, q, out=q, backend=b),
    "the timeline's start": lambda v, t, q, b: rc.resample(t[:, None], t, line(q), out=q[:, None, None], backend=b),
    "arrivals": lambda v, t, q, b: rc.fuse([rc.Stream(v, t + 0, arrivals=t)], q, out=t[:3, None], backend=b),
    "rows": lambda v, t, q, b: rc.resample(t[None] + 0, t[None] + 0, q[:1] + 0, rows=q[:1], out=q[:1, None], backend=b),
}


def line(starts) -> rc.Timeline:
    return rc.Timeline(starts, rate=50, count=1)


@pytest.mark.parametrize("kind", ["numpy", "torch", "torch backend"])
@pytest.mark.parametrize("argument", list(OVERLAPS))
def test_out_that_overlaps_an_input(argument, kind):
    """Targets that are written while others still read would be garbage without a word."""
    arrays = [array.copy() for array in (VALUES, TIMES, TARGETS)]
    if kind != "numpy":
        arrays = [pytest.importorskip("torch").from_numpy(array) for array in arrays]
    operation = "fuse" if argument == "arrivals" else "resample"
    sentence = f"{operation}: out overlaps {argument} in memory; pass an array of its own"
    says(ValueError, [sentence], OVERLAPS[argument], *arrays, "torch" if kind == "torch backend" else None)


def test_out_in_the_same_memory_as_an_input_but_beside_it():
    memory = np.zeros((11, 3), np.float32)
    memory[:8] = VALUES
    expected = rc.resample(VALUES, TIMES, TARGETS)
    rc.resample(memory[:8], TIMES, TARGETS, out=memory[:7:-1])
    np.testing.assert_array_equal(memory[:7:-1], expected)
    says(ValueError, ["out overlaps values"], rc.resample, memory[:8], TIMES, TARGETS, out=memory[9:6:-1])
    out = np.zeros((3, 5), np.float32)
    streams = {"a": stream(), "b": stream(values=out[:, :2], times=TIMES[:3])}
    says(ValueError, ['fuse: stream "b": out overlaps values in memory'], rc.fuse, streams, TARGETS, out=out)
    nothing = np.zeros((0, 3), np.float32)
    assert rc.resample(nothing, TIMES[:0], TARGETS[:0], out=nothing) is nothing


def test_read_only_inputs_are_fine():
    values, times, targets = (array.copy() for array in (VALUES, TIMES, TARGETS))
    for array in (values, times, targets):
        array.flags.writeable = False
    np.testing.assert_array_equal(rc.resample(values, times, targets), rc.resample(VALUES, TIMES, TARGETS))


def test_a_backend_that_nobody_knows():
    says(
        ValueError,
        ["resample", "fpga", "reference", "cpu", "cuda"],
        rc.resample,
        VALUES,
        TIMES,
        TARGETS,
        backend="fpga",
    )


def test_a_backend_that_is_not_there():
    reason = calling.unavailable("cuda")
    if reason is None:
        pytest.skip("cuda runs here")
    says(RuntimeError, ["resample", "cuda"], rc.resample, VALUES, TIMES, TARGETS, backend="cuda")


def test_a_backend_on_the_wrong_device(cuda):
    with pytest.raises((ValueError, TypeError), match=r"resample.*cuda"):
        rc.resample(VALUES, TIMES, TARGETS, backend="cuda")
    with pytest.raises((ValueError, TypeError), match=r"resample.*cpu"):
        rc.resample(cuda(VALUES), cuda(TIMES), cuda(TARGETS), backend="cpu")


def test_threads_and_simd_targets():
    with pytest.raises(ValueError, match="0"):
        rc.set_num_threads(0)
    with pytest.raises(ValueError, match="mmx"):
        rc.set_simd_target("mmx")
    for threads in ("x", 1.5, None):
        says(TypeError, [f"set_num_threads: threads is {threads!r}; expected an int"], rc.set_num_threads, threads)
    for threads in (-1, 1 << 40):
        says(ValueError, ["set_num_threads: ", "threads", "1 to 4096"], rc.set_num_threads, threads)
    says(TypeError, ["set_simd_target: name is 3; expected a str"], rc.set_simd_target, 3)


# ---- torch -------------------------------------------------------------------------------------------------------


def test_out_that_requires_grad():
    torch = pytest.importorskip("torch")
    out = torch.zeros(3, 3, requires_grad=True)
    arrays = [torch.from_numpy(array) for array in (VALUES, TIMES, TARGETS)]
    says_in_any_order((ValueError, TypeError, RuntimeError), ["resample", "out", "grad"], rc.resample, *arrays, out=out)


# name: (error, sentence, call of (values, times, targets, backend))
TORCH = {
    "names of other channels": (
        ValueError,
        "Stream: channels has 2 names, and the values have 3 channels",
        lambda v, t, q, b: rc.align([rc.Stream(v, t, channels="ab")], q, backend=b),
    ),
    "a start of another kind": (
        TypeError,
        "resample: the timeline's start is a NumPy array, but values is a torch tensor",
        lambda v, t, q, b: rc.resample(v, t, rc.Timeline(np.array([0]), rate=50, count=3), backend=b),
    ),
    "one number of another kind": (
        TypeError,
        "resample: the timeline's start is a NumPy array, but values is a torch tensor",
        lambda v, t, q, b: rc.resample(v, t, rc.Timeline(np.array(0), rate=50, count=3), backend=b),
    ),
    "a float32 start that is too large": (
        ValueError,
        f"Timeline: start = 1.7e+09{FAR}",
        lambda v, t, q, b: rc.resample(v, t, rc.Timeline(np.float32(1.7e9), rate=50, count=3), backend=b),
    ),
    "a float32 tensor start that is too large": (
        ValueError,
        f"resample: the timeline's start = 1.7e+09{FAR}",
        lambda v, t, q, b: rc.resample(v, t, rc.Timeline(t[0].float() + 1.7e9, rate=50, count=3), backend=b),
    ),
    "a start that is no number": (
        TypeError,
        "resample: the timeline's start is tensor(False); expected nanoseconds as an int",
        lambda v, t, q, b: rc.resample(v, t, rc.Timeline(t[0] != 0, rate=50, count=3), backend=b),
    ),
    "a rate that is none": (
        TypeError,
        "Timeline: rate is 'a'; expected a number of hertz",
        lambda v, t, q, b: rc.resample(v, t, rc.Timeline(0, rate="a", count=3), backend=b),
    ),
    "a rate in quotes": (
        TypeError,
        "Timeline: rate is '50'; expected a number of hertz",
        lambda v, t, q, b: rc.resample(v, t, rc.Timeline(0, rate="50", count=3), backend=b),
    ),
    "a count that is none": (
        TypeError,
        "Timeline: count is 'a'; expected an int",
        lambda v, t, q, b: rc.resample(v, t, rc.Timeline(0, rate=50, count="a"), backend=b),
    ),
    "a list": (
        TypeError,
        "resample: targets is a list, but values is a torch tensor",
        lambda v, t, q, b: rc.resample(v, t, [0, 1], backend=b),
    ),
    "targets of another kind": (
        TypeError,
        "resample: targets is a NumPy array, but values is a torch tensor",
        lambda v, t, q, b: rc.resample(v, TIMES, TARGETS, backend=b),
    ),
    "a bad method in a later stream": (
        TypeError,
        "Stream: method[0] is ('linear', 0); expected (name, begin, end)",
        lambda v, t, q, b: rc.align([rc.Stream(v, t), rc.Stream(v, t, method=[("linear", 0)])], q, backend=b),
    ),
    "a dtype that nobody knows": (
        TypeError,
        "fuse: dtype is 'half'; expected a float, integer or bool dtype",
        lambda v, t, q, b: rc.fuse([rc.Stream(v, t)], q, dtype="half", backend=b),
    ),
}


@pytest.mark.parametrize("backend", ["reference", None, "torch"])
@pytest.mark.parametrize("wants_gradient", [False, True])
@pytest.mark.parametrize("fault", list(TORCH))
def test_one_sentence_whoever_serves_the_call(fault, wants_gradient, backend):
    torch = pytest.importorskip("torch")
    error, sentence, call = TORCH[fault]
    values, times, targets = (torch.from_numpy(array.copy()) for array in (VALUES, TIMES, TARGETS))
    says(error, [sentence], call, values.requires_grad_(wants_gradient), times, targets, backend)


@pytest.mark.parametrize("backend", [None, "torch"])
def test_a_dtype_means_the_same_whoever_serves_the_call(backend):
    torch = pytest.importorskip("torch")
    values, times, targets = (torch.from_numpy(array.copy()) for array in (VALUES, TIMES, TARGETS))
    for wants_gradient in (False, True):
        floats, whole = rc.Stream(values.requires_grad_(wants_gradient), times), rc.Stream(times, times)
        assert rc.fuse([floats], targets, dtype=float, backend=backend).values.dtype == torch.float64
        fused = rc.fuse([whole, floats.replace(values=times)], targets, dtype=int, backend=backend)
        assert fused.values.dtype == torch.int64


@pytest.mark.parametrize("backend", [None, "torch"])
def test_out_that_requires_grad_where_none_is_kept(backend):
    torch = pytest.importorskip("torch")
    arrays = [torch.from_numpy(array) for array in (VALUES, TIMES, TARGETS)]
    out = torch.zeros(3, 3, requires_grad=True)
    with torch.no_grad():
        says(ValueError, ["resample: out requires grad"], rc.resample, *arrays, out=out, backend=backend)
    says(TypeError, ["resample: out is"], rc.resample, *arrays, out=[0.0], backend=backend)


@pytest.mark.parametrize("backend", [None, "torch"])
def test_out_that_is_expanded(backend):
    torch = pytest.importorskip("torch")
    arrays = [torch.from_numpy(array) for array in (VALUES, TIMES, TARGETS)]
    out = torch.zeros(3).expand(3, 3)
    says(ValueError, ["resample: out is expanded"], rc.resample, *arrays, out=out, backend=backend)


def test_more_memory_than_there_is():
    """torch's own message goes on with its C++ stack."""
    torch = pytest.importorskip("torch")
    line = rc.Timeline(0, rate=1e9, count=10**16)  # more than any address space has
    says(MemoryError, ["120000000000000000 bytes"], rc.resample, *map(torch.from_numpy, (VALUES, TIMES)), line)


def test_out_with_values_that_require_grad():
    torch = pytest.importorskip("torch")
    values, times, targets = (torch.from_numpy(array.copy()) for array in (VALUES, TIMES, TARGETS))
    values.requires_grad_()
    out = torch.zeros(3, 3)
    says_in_any_order(
        (ValueError, TypeError, RuntimeError), ["resample", "grad"], rc.resample, values, times, targets, out=out
    )


def test_tensors_with_the_negative_or_conjugate_bit():
    torch = pytest.importorskip("torch")
    times, targets = torch.from_numpy(TIMES), torch.from_numpy(TARGETS)
    negative = torch.complex(torch.zeros(8, 3), torch.from_numpy(VALUES)).conj().imag
    assert negative.is_neg()
    says(ValueError, ["resample: values has the negative bit set"], rc.resample, negative, times, targets)
    conjugate = torch.complex(torch.zeros(8, 3), torch.from_numpy(VALUES)).conj()
    says(ValueError, ["resample: values has the conjugate bit set"], rc.resample, conjugate, times, targets)


def test_sparse_and_meta_tensors():
    torch = pytest.importorskip("torch")
    times, targets = torch.from_numpy(TIMES), torch.from_numpy(TARGETS)
    sparse = torch.from_numpy(VALUES).to_sparse()
    with pytest.raises((TypeError, ValueError, RuntimeError), match="resample"):
        rc.resample(sparse, times, targets)


# ---- what is no error ----------------------------------------------------------------------------------------------


def test_empty_things_are_not_errors():
    nothing = np.zeros((0, 3), np.float32)
    assert (rc.resample(nothing, np.zeros(0, np.int64), TARGETS) == 0).all()
    assert np.isnan(rc.resample(nothing, np.zeros(0, np.int64), TARGETS, edge="nan")).all()
    assert rc.resample(VALUES, TIMES, np.zeros(0, np.int64)).shape == (0, 3)
    assert rc.resample(VALUES[:, :0], TIMES, TARGETS).shape == (3, 0)
    assert rc.resample(BATCH_VALUES[:0], BATCH_TIMES[:0], TARGETS).shape == (0, 3, 3)
    assert rc.resample(VALUES, TIMES, TARGETS, offsets=np.zeros(1, np.int64)).shape == (0, 3, 3)
    np.testing.assert_array_equal(rc.resample(VALUES[:1], TIMES[:1], TARGETS), np.repeat(VALUES[:1], 3, axis=0))
