"""The sweeps of tuning numbers, without a GPU: builds and times are stood in for."""

from __future__ import annotations

import re

import pytest

from bench.tune import align, sweep, tsdf, voxelize

SWEEPS = {"align": align.SWEEPS, "tsdf": tsdf.SWEEPS, "voxelize": voxelize.SWEEPS}


@pytest.mark.parametrize("op", SWEEPS)
def test_every_number_of_a_sweep_is_in_tuning_h(op):
    text = (sweep.ROOT / f"src/ops/{op}/cuda/tuning.h").read_text()
    for settings in SWEEPS[op].values():
        for values in settings.settings:
            changed = sweep.with_values(text, values)
            for name, value in values.items():
                assert re.search(rf"constexpr [\w:]+ {name} = {value};", changed)


@pytest.fixture
def tuned(tmp_path, monkeypatch):
    """A checkout with one tuning.h. A row takes as long as the number is far from 128."""
    path = tmp_path / "src/ops/align/cuda/tuning.h"
    path.parent.mkdir(parents=True)
    path.write_text("// Why.\ninline constexpr int threads = 64;\ninline constexpr std::int64_t steps = 1'000;\n")

    def measured(rows):
        threads = int(re.search(r"threads = (\d+)", path.read_text())[1])
        return dict.fromkeys(rows, 1.0 + abs(threads - 128))

    monkeypatch.setattr(sweep, "ROOT", tmp_path)
    monkeypatch.setattr(sweep, "build", lambda: None)
    monkeypatch.setattr(sweep, "measured", measured)
    return path


ONE = {"threads": sweep.over("threads", (64, 128, 256), ("fuse", "hold"))}


def test_a_sweep_restores_the_file(tuned, capsys):
    before = tuned.read_text()
    assert sweep.run("align", ONE, []) == 0
    assert tuned.read_text() == before
    assert "threads = 128: fuse 1.0, hold 1.0" in capsys.readouterr().out


def test_write_keeps_the_best_value(tuned):
    before = tuned.read_text()
    assert sweep.run("align", ONE, ["threads", "--write"]) == 0
    assert tuned.read_text() == before.replace("threads = 64", "threads = 128")


def test_a_sweep_that_fails_restores_the_file(tuned, monkeypatch):
    before = tuned.read_text()

    def broken():
        raise RuntimeError("no build")

    monkeypatch.setattr(sweep, "build", broken)
    with pytest.raises(RuntimeError):
        sweep.run("align", ONE, ["--write"])
    assert tuned.read_text() == before
