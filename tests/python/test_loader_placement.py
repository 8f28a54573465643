"""Where a loader's samples lie: packed on the device, or read in place, also when the device's memory is full."""

from __future__ import annotations

import warnings

import pytest
from loader_calling import check_batch, loader_of, to_numpy
from loader_cases import CACHES
from loader_specs import arm_spec, one

import robocache as rc
from robocache._loader import engine
from robocache._loader.entries import Entry

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("PIL", reason="Pillow is not installed")


def opened(folder):
    return rc.Cache(CACHES["arm in shards"].write(folder)[0])


def same(found, expected):
    check_batch(found, {name: to_numpy(array) for name, array in expected.items() if name != "task_index"})


def full(*given):
    raise torch.cuda.OutOfMemoryError("CUDA out of memory")


def test_all_samples_on_the_device_give_the_same_batches(tmp_path):
    cache = opened(tmp_path / "cache")
    placed = loader_of(cache, arm_spec(), device="cpu", resident=True)
    assert " MiB of samples on cpu" in repr(placed)
    for number in (0, 7):
        same(placed.batch(number), loader_of(cache, arm_spec()).batch(number))


def test_samples_that_do_not_fit_are_read_in_place(tmp_path, monkeypatch):
    cache = opened(tmp_path / "cache")
    expected = loader_of(cache, one("wrist", [-1, 0], dtype="uint8"))
    monkeypatch.setattr(engine, "together", full)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        loader = loader_of(cache, one("wrist", [-1, 0], dtype="uint8"), device="cpu", resident=True)
        for number in (0, 3):
            same(loader.batch(number), expected.batch(number))
    assert [str(each.message) for each in told if "memory is full" in str(each.message)] == [str(told[0].message)]
    assert "read in place" in repr(loader)


@pytest.mark.parametrize("error", [torch.cuda.OutOfMemoryError, MemoryError])  # torch's own, and rc.align's
def test_a_batch_that_does_not_fit_makes_room(tmp_path, monkeypatch, error):
    cache = opened(tmp_path / "cache")
    expected = [loader_of(cache, arm_spec()).batch(number) for number in range(3)]
    loader = loader_of(cache, arm_spec(), device="cpu", resident=True)
    finished, failures = Entry.finished, [1]

    def once(*given):
        if failures.pop():
            failures.append(0)
            raise error("CUDA out of memory")
        failures.append(0)
        return finished(*given)

    monkeypatch.setattr(Entry, "finished", once)
    with pytest.warns(UserWarning, match="memory is full.*resident="):
        same(loader.batch(0), expected[0])
    assert "read in place" in repr(loader)
    for number in (1, 2):
        same(loader.batch(number), expected[number])
    failures[:] = [1]  # nothing is left that could make room
    with pytest.raises(error):
        loader.batch(0)


@pytest.mark.parametrize("device", [None, "cpu"])
def test_drawn_delays_do_not_copy_the_frames_of_a_camera(tmp_path, device):
    """They may be more than fits into memory. The windows are those of the same frames as numbers with a delay."""
    cache = opened(tmp_path / "cache")
    spec = one("wrist", [-1, 0], dtype="uint8", latency_jitter=True)
    loader = loader_of(cache, spec, device=device)
    packed = sum(int(stream.values.nbytes) for stream in loader._engine._packed.values())
    assert packed < sum(episode.streams["wrist"].samples[0].nbytes for episode in cache.episodes)
    seen = 0
    for number in range(6):
        batch = {name: to_numpy(array) for name, array in loader.batch(number).items()}
        for row in range(4):
            samples = cache.episodes[int(batch["episode"][row])].streams["wrist"]
            times = samples.times - 8_000_000
            for step, offset in enumerate((-20_000_000, 0)):
                age = batch["observation.age"][row, step]
                picture = batch["observation"][row, step]
                if age < -(2**62):
                    assert not picture.any()
                    continue
                tau = batch["time"][row] + offset
                [index] = (times == tau - age).nonzero()[0] if age >= 0 else [0]
                assert (picture == samples.samples[int(index)].transpose(2, 0, 1)).all()
                seen += 1
    assert seen > 20
