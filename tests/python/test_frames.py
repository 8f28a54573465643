"""Aligned results as pandas and Arrow tables: read back and compared with the arrays."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import robocache as rc

S = 1_000_000_000
TIMES = np.arange(0, 2 * S, S // 10)
TARGETS = np.arange(-S // 10, 2 * S, S // 7)  # the first is not valid


def table(result, way: str, *given, **named) -> dict[str, np.ndarray]:
    """The table's columns, in its order, as pandas or Arrow give them back."""
    if way == "pandas":
        pytest.importorskip("pandas", reason="pandas is not installed")
        frame = result.to_pandas(*given, **named)
        assert list(frame.index) == list(range(len(frame)))
        return {name: frame[name].to_numpy() for name in frame.columns}
    pytest.importorskip("pyarrow", reason="PyArrow is not installed")
    found = result.to_arrow(*given, **named)
    return {name: found[name].to_numpy() for name in found.column_names}


def check(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert list(found) == list(expected)
    for name, column in expected.items():
        assert found[name].dtype == column.dtype, name
        np.testing.assert_array_equal(found[name], column, err_msg=name)


def streams(make=np.asarray) -> dict[str, rc.Stream]:
    random = np.random.default_rng(0)
    pose, grip = random.random((20, 3)), np.arange(20)
    return {
        "pose": rc.Stream(make(pose), make(TIMES), channels=("x", "y", "z"), method="linear"),
        "grip": rc.Stream(make(grip), make(TIMES)),
    }


ways = pytest.mark.parametrize("way", ["pandas", "arrow"])


@ways
def test_a_stream(way):
    aligned = rc.align(streams(), TARGETS)
    pose, grip = aligned["pose"], aligned["grip"]
    flags = {"valid": pose.valid, "age": pose.age, "index": pose.index}
    assert not pose.valid.all()
    named = dict(zip("xyz", pose.values.T, strict=True))
    check(table(pose, way, TARGETS, channels=streams()["pose"].channels), {"time": TARGETS, **named, **flags})
    numbered = {f"value[{k}]": pose.values[:, k] for k in range(3)}
    check(table(pose, way, TARGETS), {"time": TARGETS, **numbered, **flags})
    check(
        table(grip, way, TARGETS),
        {"time": TARGETS, "value": grip.values, "valid": grip.valid, "age": grip.age, "index": grip.index},
    )


@ways
@pytest.mark.parametrize("form", ["timeline", "seconds", "list"])
def test_times_may_be_a_timeline_seconds_or_a_list(way, form):
    line = rc.Timeline(0, rate=50, count=40)
    times = {"timeline": line, "seconds": line.times * 1e-9, "list": line.times.tolist()}[form]
    aligned = rc.align(streams(), line)["grip"]
    assert table(aligned, way, times)["time"].tolist() == line.times.tolist()


@ways
def test_rows_of_a_batch_are_numbered(way):
    values = np.random.default_rng(1).random((2, 20, 2, 2)).astype(np.float32)
    aligned = rc.align([rc.Stream(values, np.stack([TIMES, TIMES + 5]))], TARGETS)[0]
    found = table(aligned, way, TARGETS)
    rows = np.repeat([0, 1], len(TARGETS))
    cells = {f"value[{i},{j}]": aligned.values[..., i, j].reshape(-1) for i in range(2) for j in range(2)}
    flags = {name: getattr(aligned, name).reshape(-1) for name in ("valid", "age", "index")}
    check(found, {"row": rows, "time": np.tile(TARGETS, 2), **cells, **flags})
    starts = rc.Timeline(np.array([0, 100]), rate=20, count=7)
    aligned = rc.align([rc.Stream(values, np.stack([TIMES, TIMES + 5]))], starts)[0]
    assert table(aligned, way, starts)["time"].tolist() == starts.times.reshape(-1).tolist()


@ways
def test_no_targets_give_the_columns(way):
    aligned = rc.align(streams(), np.zeros(0, np.int64))["pose"]
    found = table(aligned, way, [], channels=["x", "y", "z"])
    assert list(found) == ["time", "x", "y", "z", "valid", "age", "index"]
    assert all(len(column) == 0 for column in found.values())


@ways
def test_fused_streams(way):
    fused = rc.fuse(streams(), TARGETS, dtype="float64")
    found = table(fused, way, TARGETS, channels={"pose": "xyz"})
    expected = {"time": TARGETS}
    expected |= {f"pose.{name}": fused.values[:, k] for k, name in enumerate("xyz")}
    expected |= {"pose.valid": fused.valid[:, 0], "pose.age": fused.age[:, 0]}
    expected |= {"grip": fused.values[:, 3], "grip.valid": fused.valid[:, 1], "grip.age": fused.age[:, 1]}
    check(found, expected)
    assert list(table(fused, way, TARGETS))[1:4] == ["pose[0]", "pose[1]", "pose[2]"]
    with pytest.raises(ValueError, match=r"channels name stream 'arm'; there are: pose, grip"):
        fused.to_arrow(TARGETS, channels={"arm": "xyz"})


def devices() -> list[str]:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


@ways
def test_torch_tensors_are_copied_to_the_host(way):
    for device in devices():
        import torch

        times = torch.tensor(TARGETS, device=device)
        aligned = rc.align(streams(lambda array, on=device: torch.tensor(array, device=on)), times)["pose"]
        found = table(aligned, way, times, channels=["x", "y", "z"])
        np.testing.assert_array_equal(found["y"], aligned.values[:, 1].cpu().numpy())
        half = aligned._replace(values=aligned.values.to(torch.bfloat16).requires_grad_())
        found = table(half, way, times)
        assert found["value[0]"].dtype == np.float32
        np.testing.assert_array_equal(found["value[0]"], half.values[:, 0].float().detach().cpu().numpy())


@ways
def test_jax_arrays(way):
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    aligned = rc.align(streams(), TARGETS)["grip"]
    half = aligned._replace(values=jax.numpy.asarray(aligned.values, "bfloat16"))
    found = table(half, way, jax.numpy.asarray(TARGETS * 1e-9, "float32"))
    assert found["value"].dtype == np.float32
    assert found["value"].tolist() == aligned.values.tolist()


@ways
def test_the_table_shares_no_memory_with_the_result(way):
    aligned = rc.align(streams(), TARGETS)["grip"]
    before = aligned.values.copy()
    if way == "pandas":
        pytest.importorskip("pandas", reason="pandas is not installed")
        made = aligned.to_pandas(TARGETS)
    else:
        pytest.importorskip("pyarrow", reason="PyArrow is not installed")
        made = aligned.to_arrow(TARGETS)
    aligned.values[:] = -1
    assert made["value"].to_numpy().tolist() == before.tolist()


@ways
def test_episodes_of_a_cache(way, tmp_path):
    with rc.CacheWriter(tmp_path / "cache") as writer:
        writer.add(streams(), name="long")
        short = {"pose": streams()["pose"].replace(values=np.ones((5, 3)), times=TIMES[:5] + 3 * S)}
        writer.add(short, name="short")
    result = rc.Cache(tmp_path / "cache").align(rate=20)
    inside = np.arange(result.times.shape[1]) < result.lengths[:, None]
    assert 0 < result.lengths[1] < result.lengths[0]
    pose, grip = result["pose"], result["grip"]
    expected = {"episode": np.repeat([0, 1], result.lengths), "time": result.times[inside]}
    expected |= {f"pose.{name}": pose.values[inside][:, k] for k, name in enumerate("xyz")}
    expected |= {f"pose.{name}": getattr(pose, name)[inside] for name in ("valid", "age", "index")}
    expected |= {"grip": grip.values[inside]}
    expected |= {f"grip.{name}": getattr(grip, name)[inside] for name in ("valid", "age", "index")}
    check(table(result, way), expected)


def test_what_makes_no_table_says_why():
    aligned = rc.align(streams(), TARGETS)["pose"]
    with pytest.raises(ValueError, match=r"Aligned.to_arrow: times are \[3\]; expected \[15\], the targets"):
        aligned.to_arrow(TARGETS[:3])
    with pytest.raises(TypeError, match="times are bool; they must be int64 nanoseconds or float seconds"):
        aligned.to_arrow(TARGETS > 0)
    with pytest.raises(ValueError, match="2 channels are named for value, which has 3"):
        aligned.to_pandas(TARGETS, channels=["x", "y"])
    pytest.importorskip("pyarrow", reason="PyArrow is not installed")
    with pytest.raises(ValueError, match='two columns would be named "age"'):
        aligned.to_arrow(TARGETS, channels=["x", "age", "z"])
    image = rc.align([rc.Stream(np.zeros((20, 60, 60, 3), np.uint8), TIMES)], TARGETS)[0]
    with pytest.raises(ValueError, match="value has 10,800 channels; a table takes at most 10,000"):
        image.to_arrow(TARGETS)


@pytest.mark.parametrize(("way", "package"), [("to_pandas", "pandas"), ("to_arrow", "pyarrow")])
def test_a_missing_package_is_named(way, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    aligned = rc.align(streams(), TARGETS)["pose"]
    sentence = rf"Aligned.{way} needs {package}, which is not installed: pip install 'robocache\[tables\]'"
    with pytest.raises(ModuleNotFoundError, match=sentence):
        getattr(aligned, way)(TARGETS)
