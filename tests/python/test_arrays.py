"""Arrays of every kind in, the same kind out: dtypes, strides, streams, lifetimes, and what is refused."""

from __future__ import annotations

import ctypes
import datetime
import gc
import pickle
import subprocess
import sys
import textwrap
import weakref
from typing import Any

import numpy as np
import pytest

import robocache as rc
from robocache import _core
from robocache._align.stream import UncheckedStream

torch = pytest.importorskip("torch", reason="torch is not installed")
ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")

MS = 1_000_000
TIMES = np.array([0, 10, 20, 30], np.int64) * MS
TARGETS = np.array([0, 4, 11, 29, 30], np.int64) * MS
HELD = [0, 0, 1, 2, 3]  # the sample at or before each target
DTYPES = [
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64"),
]


def numpy_dtype(name: str) -> Any:
    return ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype(name)


def samples(dtype: str = "float64", *trailing: int) -> np.ndarray:
    values = np.arange(4 * int(np.prod(trailing, dtype=int))).reshape(4, *trailing)
    return (values % 2 == 1) if dtype == "bool" else values.astype(numpy_dtype(dtype))


def to_torch(array: np.ndarray) -> Any:
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def from_torch(tensor: Any) -> np.ndarray:
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def refused(kind: Any, sentence: str) -> Any:
    return pytest.raises(kind, match="^" + sentence)


def run_alone(code: str) -> str:
    """In a process of its own: for what must be so before the first call."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---- NumPy


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_dtypes(dtype):
    values = samples(dtype, 3)
    made = rc.resample(values, TIMES, TARGETS, method="hold")
    assert type(made) is np.ndarray
    assert made.dtype == values.dtype
    np.testing.assert_array_equal(made, values[HELD])


@pytest.mark.parametrize("trailing", [(), (3,), (2, 3), (1, 2, 1, 2)])
def test_numpy_trailing_shapes(trailing):
    values = samples("float32", *trailing)
    made = rc.resample(values, TIMES, TARGETS, method="hold")
    assert made.shape == (5, *trailing)
    np.testing.assert_array_equal(made, values[HELD])


def strided_values() -> dict[str, np.ndarray]:
    base = np.random.default_rng(3).standard_normal((2, 8, 12)).astype(np.float32)
    return {
        "dense": base[:, :4, :6].copy(),
        "sliced": base[:, ::2, ::2],
        "backwards": base[::-1, 3::-1, 5::-1],
        "transposed": base.transpose(0, 2, 1)[:, :4, :6],
        "fortran": np.asfortranarray(base[:, :4, :6]),
        "one row for all": np.broadcast_to(base[:1, :4, :6], (2, 4, 6)),
        "one channel for all": np.broadcast_to(base[:, :4, :1], (2, 4, 6)),
    }


@pytest.mark.parametrize("layout", strided_values())
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_numpy_strides(layout, backend):
    values = strided_values()[layout]
    times = np.broadcast_to(TIMES, (2, 4))  # a row stride of zero
    targets = np.stack([TARGETS, TARGETS + MS])[:, ::-1]
    made = rc.resample(values, times, targets, backend=backend)
    plain = rc.resample(*map(np.ascontiguousarray, (values, times, targets)), backend="reference")
    assert made.tobytes() == plain.tobytes()


def test_numpy_read_only_inputs():
    arrays = [samples("float64", 2), TIMES.copy(), TARGETS.copy()]
    for array in arrays:
        array.flags.writeable = False
    np.testing.assert_array_equal(rc.resample(*arrays, method="hold"), samples("float64", 2)[HELD])


def test_numpy_memmap_and_subclass(tmp_path):
    values = np.memmap(tmp_path / "values", np.float64, "w+", shape=(4, 2))
    values[:] = samples("float64", 2)
    assert type(rc.resample(values, TIMES, TARGETS)) is np.ndarray


@pytest.mark.parametrize("scale", [(np.int64, 1), (np.float64, 1e-9), (np.float32, 1e-9)])
def test_time_dtypes(scale):
    dtype, factor = scale
    made = rc.resample(samples("float64", 2), (TIMES * factor).astype(dtype), TARGETS, method="nearest")
    np.testing.assert_array_equal(made, samples("float64", 2)[[0, 0, 1, 3, 3]])


def test_targets_as_a_list():
    np.testing.assert_array_equal(rc.resample(samples(), TIMES, [0, 5 * MS]), [0.0, 0.5])
    np.testing.assert_array_equal(rc.resample(samples(), TIMES, (0.0, 0.005)), [0.0, 0.5])
    with pytest.raises(TypeError, match="targets is a list, but values is a torch tensor"):
        rc.resample(to_torch(samples()), to_torch(TIMES), [0, 5])


STRUCTURED = np.zeros(4, [("x", "f8"), ("y", "f4")])


@pytest.mark.parametrize(
    ("values", "kind", "sentence"),
    [
        (samples().astype(">f8"), TypeError, r"resample: values is big-endian \(>f8\)"),
        (STRUCTURED, TypeError, "resample: values is a structured array"),
        (STRUCTURED["x"], ValueError, "resample: values has a stride of 12 bytes, which is no multiple of its 8-byte"),
        (np.zeros(4, "datetime64[us]"), TypeError, r"resample: values is datetime64\[us\]; pass nanoseconds"),
        (np.zeros(4, object), TypeError, "resample: values is object, which is not supported"),
        (np.zeros(4, "U3"), TypeError, "resample: values is str96, which is not supported"),
        (np.zeros(4, complex), TypeError, "resample: values is complex128, which is not supported"),
        (np.zeros(4, np.longdouble), TypeError, "resample: values is .*, which is not supported"),
        (np.zeros(4, ml_dtypes.float8_e5m2), TypeError, "resample: values is float8_e5m2, which is not supported"),
        (np.ma.masked_array(samples(), [0, 1, 0, 0]), TypeError, "resample: values is a masked array"),
        (np.frombuffer(bytes(33), np.uint8)[1:].view("f8"), ValueError, "resample: values starts at an address"),
        (np.zeros((4,) + (1,) * 8), ValueError, "resample: values has 9 dimensions; at most 8"),
        (
            [1.0, 2.0, 3.0, 4.0],
            TypeError,
            "resample: values is of type list; torch tensors, NumPy, CuPy and JAX arrays",
        ),
        (3.0, TypeError, "resample: values is of type float; torch tensors"),
        (None, TypeError, "resample: values is of type NoneType; torch tensors"),
        (memoryview(bytes(4)), TypeError, "resample: values is of type memoryview"),
    ],
)
def test_numpy_refused(values, kind, sentence):
    with refused(kind, sentence):
        rc.resample(values, TIMES, TARGETS)
    test_numpy_dtypes("float32")  # and the library works on


# ---- torch


@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_dtypes(dtype):
    values = to_torch(samples(dtype, 3))
    made = rc.resample(values, to_torch(TIMES), to_torch(TARGETS), method="hold")
    assert type(made) is torch.Tensor
    assert made.dtype == values.dtype
    np.testing.assert_array_equal(from_torch(made), samples(dtype, 3)[HELD])


@pytest.mark.parametrize("layout", [name for name in strided_values() if name != "backwards"])
def test_torch_strides(layout):
    array = strided_values()[layout]
    if layout.startswith("one"):  # torch takes no strides of zero from NumPy, but has its own
        first = array[:1] if "row" in layout else array[..., :1]
        values = torch.from_numpy(first.copy()).expand(array.shape)
    else:
        values = torch.from_numpy(array)
    assert [stride * 4 for stride in values.stride()] == list(array.strides) or layout.startswith("one")
    made = rc.resample(values, to_torch(TIMES).expand(2, 4), to_torch(TARGETS))
    assert made.numpy().tobytes() == rc.resample(array, np.stack([TIMES, TIMES]), TARGETS).tobytes()


def test_torch_parameter_and_modes():
    values = torch.nn.Parameter(to_torch(samples("float32", 2)))
    expected = samples("float32", 2)[HELD]
    times, targets = to_torch(TIMES), to_torch(TARGETS)
    with torch.no_grad():
        np.testing.assert_array_equal(rc.resample(values, times, targets, method="hold").numpy(), expected)
    with torch.inference_mode():
        made = rc.resample(values * 1, times, targets, method="hold")
        np.testing.assert_array_equal(made.numpy(), expected)
    if not hasattr(torch.nn, "Buffer"):  # before torch 2.5
        return
    buffer = torch.nn.Buffer(values.detach())
    np.testing.assert_array_equal(rc.resample(buffer, times, targets, method="hold").numpy(), expected)


def test_torch_subclass_with_memory():
    class Image(torch.Tensor):
        pass

    values = to_torch(samples("float32", 2)).as_subclass(Image)
    made = rc.resample(values, to_torch(TIMES), to_torch(TARGETS), method="hold")
    assert type(made) is torch.Tensor
    np.testing.assert_array_equal(made.numpy(), samples("float32", 2)[HELD])


def core_resample(values: Any, times: Any, targets: Any, out: Any = None, backend: str | None = None) -> Any:
    return _core.resample(
        *(
            values,
            times,
            targets,
            "linear",
            "clamp",
            None,
            0,
            False,
            None,
            None,
            None,
            None,
            "propagate",
            True,
            out,
            backend,
        )
    )


def test_torch_layer_is_asked_where_only_it_can_serve():
    values, times, targets = to_torch(samples("float32", 2)), to_torch(TIMES), to_torch(TARGETS)
    assert core_resample(values, times, targets) is not NotImplemented
    assert core_resample(values, times, targets, backend="torch") is NotImplemented
    wanted = values.clone().requires_grad_()
    assert core_resample(wanted, times, targets) is NotImplemented
    with torch.no_grad():
        assert core_resample(wanted, times, targets) is not NotImplemented
    assert core_resample(values.to("meta"), times.to("meta"), targets.to("meta")) is NotImplemented
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(tensor) for tensor in (values, times, targets)]
        assert core_resample(*fake) is NotImplemented
    seen = []
    torch.func.vmap(lambda v: (seen.append(core_resample(v, times, targets)), v)[1])(torch.stack([values, values]))
    assert seen == [NotImplemented]


@pytest.mark.parametrize(
    ("change", "kind", "sentence"),
    [
        (lambda v: torch._neg_view(v), ValueError, r"values has the negative bit set.*\.resolve_neg\(\)"),
        (lambda v: torch.complex(v, v).conj().imag, ValueError, r"values has the negative bit set.*\.resolve_neg\(\)"),
        (lambda v: torch.complex(v, v).conj(), ValueError, r"values has the conjugate bit set.*\.resolve_conj\(\)"),
        (lambda v: torch.complex(v, v), TypeError, "values is complex, which is not supported"),
        (lambda v: v.to_sparse(), TypeError, r"values is a sparse tensor .*\.to_dense\(\)"),
        (lambda v: v.to_sparse_csr(), TypeError, r"values is a sparse tensor .*\.to_dense\(\)"),
        (lambda v: torch.quantize_per_tensor(v, 0.1, 0, torch.qint8), TypeError, "values is a quantized tensor"),
        (lambda v: v.to(torch.float8_e5m2), TypeError, "values is"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_torch_refused(change, kind, sentence):
    values = to_torch(samples("float32", 2))
    with refused(kind, "resample: " + sentence):
        rc.resample(change(values), to_torch(TIMES), to_torch(TARGETS))
    test_torch_dtypes("float32")


def test_negative_bit_of_times():
    seconds = torch.complex(torch.zeros(4).double(), to_torch(-1e-9 * TIMES)).conj().imag
    with refused(ValueError, "resample: times has the negative bit set"):
        rc.resample(to_torch(samples()), seconds, to_torch(TARGETS))


WITHOUT_EXCHANGE_API = """
    import numpy as np, torch
    torch.Tensor.__dlpack_c_exchange_api__ = None
    class Own(torch.Tensor): pass
    def given(tensor): return tensor
    {patch}
    import robocache as rc
    times, targets = given(torch.arange(4) * 10), given(torch.tensor([0, 5, 30]))
    for dtype in (torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64):
        values = given(torch.arange(8).reshape(4, 2).to(dtype)[:, ::1])
        made = rc.resample(values, times, targets, method="hold")
        assert type(made) is torch.Tensor and made.dtype == dtype
        assert torch.equal(made, values[[0, 0, 3]])
    out = given(torch.empty(3, 4)[:, ::2])
    assert rc.resample(given(torch.arange(8.).reshape(4, 2)), times, targets, out=out) is out
    assert out.tolist() == [[0, 1], [1, 2], [6, 7]]
    wide = torch.arange(48.).reshape(4, 3, 4)
    for view in (wide[:, 1:, ::2], wide.transpose(1, 2), wide[:, 0, 1], wide[:1].expand(4, 3, 4), wide[:, :0]):
        made = rc.resample(given(view), times, targets)
        expected = rc.resample(view.numpy(), times.numpy(), targets.numpy())
        assert made.shape == expected.shape and made.tolist() == expected.tolist() and made.is_contiguous()
    fused = rc.fuse([rc.Stream(torch.arange(4.), times)] * 2, targets)
    assert fused.values.tolist() == [[0, 0], [.5, .5], [3, 3]] and fused.valid.dtype == torch.bool
    with torch.no_grad():
        rc.resample(torch.nn.Parameter(torch.zeros(4)), times, targets)
    for bad in (torch.zeros(4, dtype=torch.complex64), torch.zeros(4).to_sparse()):
        try:
            rc.resample(bad, times, targets)
        except TypeError as error:
            assert str(error).startswith("resample: values is "), error
        else:
            raise AssertionError(bad)
    print("served")
"""


@pytest.mark.parametrize(
    "patch",
    [
        "def __dlpack__(self, **_): assert self.is_sparse or self.is_complex(), 'it is plain'; return old(self)\n"
        "    old, torch.Tensor.__dlpack__ = torch.Tensor.__dlpack__, __dlpack__",
        "given = lambda tensor: tensor.as_subclass(Own)",
        "given = lambda tensor: tensor.as_subclass(Own)\n"
        "    Own.__dlpack__ = lambda self, stream=None: self.as_subclass(torch.Tensor).__dlpack__(stream=stream)",
    ],
    ids=["attributes", "max_version", "legacy capsule"],
)
def test_torch_without_exchange_api(patch):
    """torch before 2.10: plain tensors are read by their attributes, others go through a capsule."""
    assert run_alone(WITHOUT_EXCHANGE_API.format(patch=patch)) == "served\n"


class ExchangeApi(ctypes.Structure):
    _fields_ = (("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("functions", ctypes.c_void_p * 6))


def exchange_api(capsule: Any) -> ExchangeApi:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return ExchangeApi.from_address(get(capsule, b"dlpack_exchange_api"))


def exchange_capsule(api: ExchangeApi) -> Any:
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(ctypes.addressof(api), b"dlpack_exchange_api", None)


@pytest.mark.skipif(
    not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="this torch has no DLPack exchange API"
)
def test_exchange_api_of_other_versions():
    """A newer major version is passed over for the one before it; a table may lack the borrowing function."""
    given = exchange_api(torch.Tensor.__dlpack_c_exchange_api__)
    older = ExchangeApi(given.major, given.minor, given.functions)
    older.functions[4] = None  # dltensor_from_py_object_no_sync
    newer = ExchangeApi(given.major + 1, 0)
    newer.functions[0] = ctypes.addressof(older)

    class Tensor(torch.Tensor):
        __dlpack_c_exchange_api__ = exchange_capsule(newer)

    values, times, targets = (to_torch(a).as_subclass(Tensor) for a in (samples("float32", 2), TIMES, TARGETS))
    made = rc.resample(values, times, targets, method="hold")
    np.testing.assert_array_equal(made.numpy(), samples("float32", 2)[HELD])


# ---- out=


def test_out_of_any_strides():
    expected = rc.resample(samples("float64", 2), TIMES, TARGETS)
    wide = np.zeros((10, 6))
    view = wide[::-2, 1:5:2]
    assert rc.resample(samples("float64", 2), TIMES, TARGETS, out=view) is view
    np.testing.assert_array_equal(view, expected)
    assert np.count_nonzero(wide) == np.count_nonzero(view)
    tensor = torch.zeros(2, 5).T
    values = to_torch(samples("float32", 2))
    assert rc.resample(values, to_torch(TIMES), to_torch(TARGETS), out=tensor) is tensor
    np.testing.assert_array_equal(tensor.numpy(), rc.resample(samples("float32", 2), TIMES, TARGETS))


def test_out_of_fuse():
    streams = [rc.Stream(samples("float32", 2), TIMES), rc.Stream(samples("uint8"), TIMES)]
    out = np.zeros((5, 3), np.float16)
    fused = rc.fuse(streams, TARGETS, out=out)
    assert fused.values is out
    np.testing.assert_array_equal(out, rc.fuse(streams, TARGETS, dtype="float16").values)
    with refused(TypeError, "fuse: out is float16; expected float32"):
        rc.fuse(streams, TARGETS, dtype=np.float32, out=out)


@pytest.mark.parametrize(
    ("out", "kind", "sentence"),
    [
        (np.zeros((5, 3)), ValueError, r"out has shape \[5, 3\]; expected \[5, 2\]"),
        (np.zeros((5, 2), np.float32), TypeError, "out is float32; expected float64"),
        (np.broadcast_to(np.zeros(2), (5, 2)), ValueError, "out is read-only"),
        (np.lib.stride_tricks.as_strided(np.zeros(2), (5, 2), (0, 8)), ValueError, "out is expanded"),
        (torch.zeros(5, 2).double(), TypeError, "out is a torch tensor, but values is a NumPy array"),
        ([0.0], TypeError, "out is of type list"),
    ],
)
def test_out_refused(out, kind, sentence):
    with refused(kind, "resample: " + sentence):
        rc.resample(samples("float64", 2), TIMES, TARGETS, out=out)


def test_torch_out_and_autograd():
    arrays = [to_torch(samples("float32", 2)), to_torch(TIMES), to_torch(TARGETS)]
    out = torch.zeros(5, 2)
    with refused(ValueError, "resample: out requires grad"):
        rc.resample(*arrays, out=out.clone().requires_grad_())
    weight = torch.ones(5, 2, requires_grad=True)
    product = weight * out  # saves `out` for the backward pass
    rc.resample(*arrays, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


# ---- kinds that do not go together


def test_mixed_kinds_and_devices():
    with refused(TypeError, "resample: targets is a NumPy array, but values is a torch tensor; all arrays"):
        rc.resample(to_torch(samples()), TIMES, TARGETS)
    streams = {"a": rc.Stream(samples(), TIMES), "b": rc.Stream(to_torch(samples()), TIMES)}
    with refused(TypeError, 'align: stream "b": values is a torch tensor, but values of stream "a" is a NumPy array'):
        rc.align(streams, TARGETS)
    with refused(TypeError, 'fuse: targets is a torch tensor, but values of stream "a" is a NumPy array'):
        rc.fuse({"a": streams["a"]}, to_torch(TARGETS))
    with refused(TypeError, "resample: backend torch takes torch tensors, and values is a NumPy array"):
        rc.resample(samples(), TIMES, TARGETS, backend="torch")


def test_streams_refused():
    stream = rc.Stream(samples(), TIMES)
    with refused(TypeError, 'align: stream "1": expected a robocache.Stream, not int'):
        rc.align([stream, 3], TARGETS)
    with refused(TypeError, "align: streams is of type robocache.Stream; expected a dict or a list of Stream"):
        rc.align(stream, TARGETS)
    with refused(TypeError, "fuse: a stream is named 3; expected a str"):
        rc.fuse({3: stream}, TARGETS)
    with refused(ValueError, "fuse: two streams are named 'imu'"):
        rc.fuse([stream.replace(name="imu"), stream.replace(name="imu")], TARGETS)
    with refused(ValueError, "Stream: channels has 3 names, and the values have 1 channels"):
        stream.replace(channels="xyz")
    with refused(TypeError, 'fuse: stream "b": values are float32, and the first stream\'s float64; say dtype'):
        rc.fuse({"a": stream, "b": rc.Stream(samples("float32"), TIMES)}, TARGETS)
    with refused(TypeError, "fuse: dtype is 'complex64'; expected"):
        rc.fuse([stream], TARGETS, dtype="complex64")


@pytest.mark.parametrize("dtype", ["float32", np.float32, np.dtype("float32"), torch.float32])
def test_dtype_of_fuse(dtype):
    assert rc.fuse([rc.Stream(samples(), TIMES)], TARGETS, dtype=dtype).values.dtype == np.float32


# ---- Stream, Timeline and durations


def test_a_stream_does_not_change():
    stream = rc.Stream(
        samples("float64", 3), TIMES, method=(method := [("linear", 0, 1), ("hold", 1, 3)]), latency=0.001
    )
    before = rc.align([stream], TARGETS)[0].values
    with pytest.raises(AttributeError):
        stream.latency = 0.5
    method[0] = ("hold", 0, 1)
    copies = [stream, stream.replace(), pickle.loads(pickle.dumps(stream))]
    for copy in copies:
        assert rc.align([copy], TARGETS)[0].values.tobytes() == before.tobytes()
    assert rc.align([stream.replace(method="hold")], TARGETS)[0].values.tobytes() != before.tobytes()
    assert repr(stream).startswith("Stream(values float64 [4, 3], times int64 [4], method=")


def test_methods_by_name():
    channels = ["position.x", "position.y", "orientation.x", "orientation.y", "orientation.z", "orientation.w", "grip"]
    values = np.random.default_rng(1).standard_normal((4, 7))
    by_name = rc.Stream(
        values, TIMES, channels=channels, method={"position.*": "linear", "orientation.?": "slerp", "*": "hold"}
    )
    by_range = rc.Stream(values, TIMES, method=[("linear", 0, 2), ("slerp", 2, 6), ("hold", 6, 7)])
    one, other = rc.align([by_name, by_range], TARGETS)
    assert one.values.tobytes() == other.values.tobytes()
    with refused(ValueError, 'Stream: no pattern of method matches channel "grip"'):
        by_name.replace(method={"position.*": "linear", "o*": "slerp"})
    with refused(ValueError, "Stream: method is a dict of patterns, and the stream has no channels"):
        by_name.replace(channels=None)


@pytest.mark.parametrize(
    "duration",
    [
        *(0.01, 10 * MS, np.float64(0.01), np.float32(0.01), np.int64(10 * MS)),
        *(np.timedelta64(10, "ms"), datetime.timedelta(milliseconds=10)),
    ],
)
def test_durations(duration):
    assert _core.nanoseconds("latency", duration) == pytest.approx(10 * MS, abs=1)
    made = rc.resample(samples(), TIMES, TARGETS - 10 * MS, latency=duration, max_gap=duration, method="hold")
    assert made.tolist() == samples()[HELD].tolist()


@pytest.mark.parametrize(
    ("duration", "kind", "sentence"),
    [
        (1, ValueError, "max_gap = 1 is 1 ns, since an int is nanoseconds; write seconds as a float: 1.0, or 0.001 "),
        (np.int32(999), ValueError, "max_gap = 999 is 999 ns"),
        (-0.5, ValueError, "max_gap = -0.5 s is negative"),
        (float("nan"), ValueError, "max_gap = nan s; it must be finite"),
        (1e300, ValueError, "it must be finite and within"),
        (2**70, ValueError, r"max_gap = \d+ ns; it must be within"),
        (True, TypeError, "max_gap is True; expected seconds as a float"),
        ("1s", TypeError, "max_gap is '1s'; expected seconds as a float"),
        (np.zeros(1), TypeError, "max_gap is array"),
        (torch.tensor(1.0), TypeError, "max_gap is tensor"),
    ],
)
def test_durations_refused(duration, kind, sentence):
    with refused(kind, "resample: .*" + sentence):
        rc.resample(samples(), TIMES, TARGETS, max_gap=duration)


def test_words_need_not_be_interned():
    assert rc.resample(samples(), TIMES, TARGETS, method="".join(["ho", "ld"])).tolist() == samples()[HELD].tolist()


@pytest.mark.parametrize(
    ("option", "value", "kind", "sentence"),
    [
        ("method", "spline", ValueError, "method is 'spline'; expected linear, hold, nearest, .* or last"),
        ("method", [("linear", 0)], TypeError, r"method\[0\] is \('linear', 0\); expected \(name, begin, end\)"),
        ("method", [], ValueError, "method is an empty list"),
        ("method", 3, TypeError, "method is 3; expected a name"),
        ("edge", "wrap", ValueError, "edge is 'wrap'; expected clamp, nan or zero"),
        ("edge", None, TypeError, "edge is None; expected clamp, nan or zero"),
        ("on_nan", "drop", ValueError, "on_nan is 'drop'; expected propagate or skip"),
        ("causal", "yes", TypeError, "causal is 'yes'; expected True or False"),
        ("check", 2, TypeError, "check is 2; expected True or False"),
        ("backend", "gpu", ValueError, "backend is 'gpu'; expected reference, cpu, cuda or torch"),
    ],
)
def test_words_refused(option, value, kind, sentence):
    with refused(kind, "resample: " + sentence):
        rc.resample(samples(), TIMES, TARGETS, **{option: value})


@pytest.mark.parametrize("start", [5 * MS, 0.005, np.int64(5 * MS), np.float64(0.005), np.array(5 * MS)])
def test_timeline_starts(start):
    made = rc.resample(samples(), TIMES, rc.Timeline(start, rate=100, count=3))
    assert made.tolist() == [0.5, 1.5, 2.5]
    if not isinstance(start, np.ndarray):
        tensors = to_torch(samples()), to_torch(TIMES)
        assert rc.resample(*tensors, rc.Timeline(torch.tensor(start), rate=100, count=3)).tolist() == made.tolist()


def test_timeline_around():
    line = rc.Timeline.around(np.array([10, 20]) * MS, history=1, horizon=2, rate=100)
    assert rc.resample(samples(), TIMES, line).tolist() == [[0, 1, 2], [1, 2, 3]]
    assert repr(line) == "Timeline(starts int64 [2], rate=100, count=3, first=-1)"


@pytest.mark.parametrize("start", ["now", [1, 2], None])
def test_timeline_refused(start):
    with refused(TypeError, "Timeline: start is .*; expected nanoseconds as an int"):
        rc.Timeline(start, rate=100, count=3)


@pytest.mark.parametrize("convert", [np.asarray, to_torch], ids=["numpy", "torch"])
def test_timeline_over(convert):
    a = rc.Stream(convert(samples()), convert(TIMES))
    late = rc.Stream(convert(samples()), convert((TIMES + 7 * MS) * 1e-9), latency=0.002)
    line = rc.Timeline.over({"a": a, "late": late}, rate=100)
    assert (line.start, line.count, line.rate, line.first) == (5 * MS, 3, 100, 0)
    assert rc.Timeline.over(a, rate=100).count == 4
    assert rc.Timeline.over([a], rate=30).count == 1
    empty = rc.Stream(convert(samples()[:0]), convert(TIMES[:0]))
    assert rc.Timeline.over([a, empty], rate=100).count == 0
    with pytest.raises(ValueError, match="do not overlap"):
        rc.Timeline.over([a, rc.Stream(convert(samples()), convert(TIMES + 31 * MS))], rate=100)

    rows = rc.Stream(convert(np.zeros((3, 4))), convert(np.stack([TIMES, TIMES + 10 * MS, TIMES])))
    line = rc.Timeline.over([a, rows], rate=100)
    assert type(line.start) is type(rows.times)
    assert (line.start.tolist(), line.count) == ([0, 10 * MS, 0], 4)
    padded = rows.replace(lengths=convert(np.array([2, 3, 0])))
    line = rc.Timeline.over(padded, rate=100)
    assert (line.start.tolist()[:2], line.count) == ([0, 10 * MS], 3)
    picked = padded.replace(rows=convert(np.array([2, 0])))
    assert rc.Timeline.over(picked, rate=100).count == 2
    packed = rc.Stream(convert(np.zeros(4)), convert(TIMES), offsets=convert(np.array([0, 1, 1, 4])))
    line = rc.Timeline.over(packed, rate=100)
    assert (line.start.tolist(), line.count) == ([0, 0, 10 * MS], 3)
    assert rc.align([packed], line)[0].values.shape == (3, 3)
    with pytest.raises(ValueError, match='stream "1": 3 rows, but an earlier stream has 2'):
        rc.Timeline.over([picked, rows], rate=100)


# ---- JAX


def test_jax():
    pytest.importorskip("jax", reason="jax is not installed")
    code = f"""
        import jax; jax.config.update("jax_enable_x64", True); jax.config.update("jax_platforms", "cpu")
        import jax.numpy as jnp, numpy as np, robocache as rc
        times, targets = jnp.arange(4) * 10, jnp.array([0, 5, 30])
        for dtype in {DTYPES!r}:
            values = jnp.arange(8).reshape(4, 2).astype(dtype)
            made = rc.resample(values, times, targets, method="hold")
            assert isinstance(made, jax.Array) and made.dtype == values.dtype, (made, dtype)
            assert jnp.array_equal(made, values[jnp.array([0, 0, 3])])
        made = rc.resample(jnp.arange(8.).reshape(2, 4).T, times, targets)
        assert made.tolist() == [[0, 4], [.5, 4.5], [3, 7]]
        aligned = rc.align({{"a": rc.Stream(jnp.arange(4.), times)}}, rc.Timeline(0, rate=1e8, count=4))["a"]
        assert aligned.age.dtype == jnp.int64 and aligned.index.tolist() == [0, 1, 2, 3]
        rows = rc.Stream(jnp.zeros((2, 4)), jnp.stack([times, times + 10]) * 1000)
        line = rc.Timeline.over(rows, rate=1e5)
        assert isinstance(line.start, jax.Array) and line.start.tolist() == [0, 10_000]
        assert isinstance(line.times, jax.Array) and jnp.array_equal(line.times, rows.times)
        assert rc.align([rows], line)[0].values.shape == (2, 4)
        chain = jnp.ones((256, 256))
        for _ in range(20):
            chain = chain @ chain / 256  # still running when it is handed over
        assert rc.resample(chain[:4], times, targets).sum() == 3 * 256
        def refused(kind, start, call):
            try:
                call()
            except kind as error:
                assert str(error).startswith(start), error
            else:
                raise AssertionError(start)
        values = jnp.arange(4.)
        traced = jax.jit(lambda v: rc.resample(v, times, targets))
        refused(TypeError, "resample: values is a JAX tracer", lambda: traced(values))
        refused(TypeError, "resample: out is a JAX array", lambda: rc.resample(values, times, targets, out=values))
        assert rc.resample(values, np.arange(4) * 10, targets).tolist() == rc.resample(values, times, targets).tolist()
        refused(TypeError, "resample: targets is a NumPy array", lambda: rc.resample(values, times, np.arange(4)))
        print("served")
    """
    assert run_alone(code) == "served\n"


def test_jax_without_x64():
    pytest.importorskip("jax", reason="jax is not installed")
    code = """
        import jax; jax.config.update("jax_platforms", "cpu")
        import jax.numpy as jnp, robocache as rc
        def refused(call):
            try:
                call()
            except TypeError as error:
                assert "jax_enable_x64" in str(error), error
            else:
                raise AssertionError
        values, ticks, seconds = jnp.arange(4.), jnp.arange(4), jnp.arange(4) / 4
        refused(lambda: rc.resample(values, ticks, ticks))
        refused(lambda: rc.align([rc.Stream(values, seconds)], seconds))
        refused(lambda: rc.fuse([rc.Stream(values, seconds)], seconds))
        refused(lambda: rc.Timeline.over(rc.Stream(values, ticks), rate=1))
        assert rc.resample(values, seconds, jnp.array([.125, .75])).tolist() == [.5, 3]
        print("served")
    """
    assert run_alone(code) == "served\n"


# ---- CuPy: its calls, over host memory; and on a GPU below

needs_new_dlpack = pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="what pretends to be CuPy hands on max_version to NumPy 2.1"
)
PRETENDED_CUPY = """
    import sys, types
    import numpy as np

    class ndarray:
        def __init__(self, array): self.array = np.asarray(array)
        def __dlpack_device__(self): return self.array.__dlpack_device__()
        def __dlpack__(self, *, stream=None, max_version=None):
            assert stream is None  # host memory has none
            return self.array.__dlpack__(max_version=max_version)
        dtype = property(lambda self: self.array.dtype)
    class Device:
        def __init__(self, index): pass
        def __enter__(self): return self
        def __exit__(self, *_): pass
    cupy = sys.modules["cupy"] = types.ModuleType("cupy")
    cupy.ndarray, cupy.cuda = ndarray, types.SimpleNamespace(Device=Device)
    cupy.empty = lambda shape, dtype: ndarray(np.empty(shape, dtype))

    import robocache as rc
    values, times, targets = ndarray(np.arange(8.).reshape(4, 2)), ndarray(np.arange(4) * 10), ndarray(np.array([0, 5]))
    made = rc.resample(values, times, targets)
    assert type(made) is ndarray and made.array.tolist() == [[0, 1], [1, 2]]
    fused = rc.fuse({"a": rc.Stream(values, times)}, targets, dtype="float16")
    assert fused.values.array.dtype == np.float16 and fused.valid.array.all()
    try:
        rc.resample(values, times, np.arange(4))
    except TypeError as error:
        assert "targets is a NumPy array, but values is a CuPy array" in str(error)
    frozen = np.zeros((2, 2)); frozen.flags.writeable = False
    try:
        rc.resample(values, times, targets, out=ndarray(frozen))
    except ValueError as error:
        assert "out is read-only" in str(error)
    print("served")
"""


@needs_new_dlpack
def test_pretended_cupy():
    assert run_alone(PRETENDED_CUPY) == "served\n"


@needs_new_dlpack
def test_cupys_stream_is_that_of_the_arrays_device():
    """With cuda:0 current and arrays on cuda:1, the stream of cuda:0 was taken."""
    code = """
        import sys, types
        import numpy as np

        asked, given = [], []
        class ndarray:
            def __init__(self, array): self.array = np.asarray(array)
            def __dlpack_device__(self): return (2, 1)  # says cuda:1, and gives host memory: no GPU is needed here
            def __dlpack__(self, *, stream=None, max_version=None):
                given.append(stream)
                return self.array.__dlpack__(max_version=max_version)
        class Device:
            def __init__(self, index): pass
            def __enter__(self): return self
            def __exit__(self, *_): pass
        def get_current_stream(device=-1):
            asked.append(device)
            return types.SimpleNamespace(ptr=4096)
        cupy = sys.modules["cupy"] = types.ModuleType("cupy")
        cupy.ndarray = ndarray
        cupy.cuda = types.SimpleNamespace(Device=Device, get_current_stream=get_current_stream)
        cupy.empty = lambda shape, dtype: ndarray(np.empty(shape, dtype))

        import robocache as rc
        try:
            rc.resample(ndarray(np.arange(4.)), ndarray(np.arange(4) * 10), ndarray(np.array([5])))
        except ValueError as error:  # the output says cuda:1, and the inputs were found on the host
            assert "cuda:1" in str(error)
        assert set(asked) == {1}, asked
        assert set(given) == {4096}, given
        print("served")
    """
    assert run_alone(code) == "served\n"


def test_jax_memory_is_freed_when_nobody_reads_it(cuda):
    """An output's memory was freed on the null stream while JAX still read it on another."""
    pytest.importorskip("jax", reason="jax is not installed")
    code = """
        import jax; jax.config.update("jax_enable_x64", True)
        import jax.numpy as jnp, robocache as rc
        if jax.default_backend() != "gpu":
            print("served")
            raise SystemExit
        times, targets = jnp.arange(2) * 10, jnp.array([0] * 4096)
        slow = jax.jit(lambda x: (jax.lax.fori_loop(0, 200, lambda _, y: y @ y / 4096, x[:, :4096]), x.sum()))
        for turn in range(20):
            made = rc.resample(jnp.full((2, 4096), float(turn)), times, targets)
            answer = slow(made)[1]
            del made
            others = [rc.resample(jnp.full((2, 4096), -1.0), times, targets) for _ in range(4)]
            assert answer == turn * 4096 * 4096, (turn, answer)
        print("served")
    """
    assert run_alone(code) == "served\n"


# ---- lifetimes


def every_call(arrays: tuple[Any, Any, Any]) -> None:
    values, times, targets = arrays
    stream = rc.Stream(values, times, method="linear", max_gap=0.5)
    rc.resample(values, times, targets)
    rc.align({"a": stream, "b": stream}, targets)
    rc.fuse([stream, stream], targets)
    rc.fuse([stream], rc.Timeline(0, rate=100, count=3), dtype="float32")
    with refused(ValueError, "resample: times"):
        rc.resample(values, times[::-1] if isinstance(times, np.ndarray) else times.flip(0), targets)
    for bad in (values[:2], "no array"):
        with refused((ValueError, TypeError), "Stream: values"):
            rc.Stream(bad, times)
    with refused((ValueError, TypeError), 'fuse: stream "1": values'):
        rc.fuse([stream, UncheckedStream("no array", times)], targets)


@pytest.mark.parametrize("convert", [lambda a: a.copy(), lambda a: to_torch(a.copy())], ids=["numpy", "torch"])
def test_nothing_is_kept(convert):
    arrays = tuple(convert(array) for array in (samples("float64", 3), TIMES, TARGETS))
    every_call(arrays)
    gc.collect()
    before = [sys.getrefcount(array) for array in arrays]
    objects = len(gc.get_objects())
    for _ in range(200):
        every_call(arrays)
    gc.collect()
    assert [sys.getrefcount(array) for array in arrays] == before
    assert len(gc.get_objects()) - objects < 50
    references = [weakref.ref(array) for array in arrays]
    del arrays
    gc.collect()
    assert [reference() for reference in references] == [None, None, None]


def resident_bytes() -> int:
    with open("/proc/self/statm") as status:
        return int(status.read().split()[1]) * 4096


@pytest.mark.parametrize("convert", [np.asarray, to_torch], ids=["numpy", "torch"])
def test_memory_does_not_grow(convert):
    """Each round makes and drops 8 MB of outputs, through the library's own allocator."""
    values, times = convert(np.zeros((1000, 1000))), convert(np.arange(1000))
    stream = rc.Stream(values, times)

    def call() -> None:
        rc.fuse([stream], times)
        rc.resample(values, times, times)

    call()
    before = resident_bytes()
    for _ in range(30):
        call()
    assert resident_bytes() - before < 64e6


def test_outputs_outlive_the_call():
    made = rc.fuse([rc.Stream(to_torch(samples("float32", 2)), to_torch(TIMES))], to_torch(TARGETS))
    kept = made.values.clone()
    for _ in range(50):
        every_call(tuple(to_torch(array) for array in (samples("float64", 3), TIMES, TARGETS)))
    assert torch.equal(made.values, kept)


def test_outputs_live_apart():
    """Small outputs share one allocation; each must keep it, and none may reach into another."""
    streams = {
        "a": rc.Stream(to_torch(samples("float32", 3)), to_torch(TIMES)),
        "b": rc.Stream(to_torch(samples()), to_torch(TIMES)),
    }
    expected = {
        name: [part.clone() for part in aligned] for name, aligned in rc.align(streams, to_torch(TARGETS)).items()
    }
    kept = []
    for position in range(4):
        for name in streams:
            kept.append((name, position, rc.align(streams, to_torch(TARGETS))[name][position]))
    gc.collect()
    for name, position, tensor in kept:
        assert torch.equal(tensor, expected[name][position])
        assert tensor.untyped_storage().nbytes() == tensor.nbytes
        tensor.zero_()
    again = rc.align(streams, to_torch(TARGETS))
    again["a"].values.fill_(7)
    assert all(torch.equal(part, expected["a"][1 + k]) for k, part in enumerate(again["a"][1:]))
    assert torch.equal(pickle.loads(pickle.dumps(again["b"])).index, expected["b"][3])


# ---- on a GPU


needs_cuda = pytest.mark.usefixtures("cuda")


@needs_cuda
@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_cuda(dtype):
    arrays = [to_torch(array).cuda() for array in (samples(dtype, 3), TIMES, TARGETS)]
    made = rc.resample(*arrays, method="hold")
    assert made.device == arrays[0].device
    np.testing.assert_array_equal(from_torch(made.cpu()), samples(dtype, 3)[HELD])
    rc.synchronize()


@needs_cuda
def test_torch_cuda_runs_on_the_current_stream():
    values, times, targets = (to_torch(array).cuda() for array in (samples("float32", 2), TIMES, TARGETS))
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(2):  # the first round loads the kernels, torch's too, and that waits
            stream.synchronize()
            torch.cuda._sleep(200_000_000)
            values.fill_(3)
            made = rc.resample(values, times, targets)
        assert not stream.query(), "the call waited for the GPU"
    stream.synchronize()
    assert made.cpu().tolist() == [[3, 3]] * 5


@needs_cuda
def test_cuda_devices_do_not_mix():
    values, times, targets = (to_torch(array) for array in (samples("float32", 2), TIMES, TARGETS))
    with refused(ValueError, "resample: times is on the CPU and the first stream's values on cuda:0"):
        rc.resample(values.cuda(), times, targets.cuda())
    with refused(ValueError, "resample: backend cpu needs arrays on the CPU"):
        rc.resample(values.cuda(), times.cuda(), targets.cuda(), backend="cpu")


@needs_cuda
@pytest.mark.parametrize("dtype", DTYPES)
def test_cupy_cuda(dtype):
    cupy = pytest.importorskip("cupy", reason="cupy is not installed")
    if dtype == "bfloat16":
        pytest.skip("CuPy makes no bfloat16 arrays from NumPy's")
    with cupy.cuda.Stream(non_blocking=True) as stream:
        arrays = [cupy.asarray(array) for array in (samples(dtype, 3), TIMES, TARGETS)]
        made = rc.resample(*arrays, method="hold")
        assert type(made) is cupy.ndarray
        out = cupy.empty_like(made)
        assert rc.resample(*arrays, method="hold", out=out) is out
        stream.synchronize()
    for array in (made, out):
        np.testing.assert_array_equal(array.get(), samples(dtype, 3)[HELD])
    line = rc.Timeline.over(rc.Stream(cupy.zeros((2, 4)), cupy.stack([arrays[1], arrays[1]])), rate=100)
    assert type(line.start) is cupy.ndarray
    rc.synchronize()


@needs_cuda
def test_jax_cuda():
    pytest.importorskip("jax", reason="jax is not installed")
    code = """
        import os; os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        import jax; jax.config.update("jax_enable_x64", True)
        if jax.default_backend() != "gpu":
            print("no gpu"); raise SystemExit
        import jax.numpy as jnp, robocache as rc
        times, targets = jnp.arange(4) * 10, jnp.array([0, 5, 30])
        for round in range(20):
            chain = jnp.full((512, 512), 1.0 + round)
            for _ in range(10):
                chain = chain @ jnp.ones((512, 512)) / 512
            made = rc.resample(chain[:4], times, targets)
            assert made.devices() == chain.devices()
            assert bool((made * 2 == 2 + 2 * round).all()), made
        aligned = rc.align([rc.Stream(jnp.arange(4.), times)], targets)[0]
        assert aligned.values.tolist() == [0, .5, 3] and aligned.age.tolist() == [0, 5, 0]
        print("served")
    """
    answer = run_alone(code)
    if answer == "no gpu\n":
        pytest.skip("this JAX has no GPU")
    assert answer == "served\n"


@pytest.mark.parametrize("library", ["torch", "jax"])
@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (["a"], r"\['a'\] cannot become an array of numbers of up to 64 bits; pass numbers"),
        ([2**70], r"\[1180591620717411303424\] cannot become an array of numbers of up to 64 bits"),
        (np.array(["a"]), r"an array of <U1 cannot become an array of numbers"),
        (np.zeros(1, "datetime64[us]"), r"an array of datetime64\[us\] .*; pass nanoseconds: \.astype"),
    ],
)
def test_what_holds_no_numbers_beside_other_libraries(library, rows, sentence):
    frames = np.zeros((2, 3, 4, 3), np.uint8)
    if library == "torch":
        frames = pytest.importorskip("torch").from_numpy(frames)
    else:
        frames = pytest.importorskip("jax.numpy").asarray(frames)
    with pytest.raises(TypeError, match=sentence):
        rc.image(frames, rows=rows)
