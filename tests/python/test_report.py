"""Tables for people, at the width that they have."""

import functools

import pytest

from robocache import _tables

COLUMNS = {
    "stream": ["/robot/front_camera/color/image_raw", "/imu"],
    "rate": ["irregular", "133.2 Hz"],
    "jitter p50 / p99, ms": ["-", "0.409 / 6.51"],
    "coverage": ["100.0 %", "13.9 %"],
    "what": ["a sentence that has a number of words in it, and wraps", "-"],
}


def test_what_fits_is_left_as_it_is():
    widths = _tables.fitted(COLUMNS, 200, ["coverage"])
    assert widths == {header: max(map(len, (header, *cells))) for header, cells in COLUMNS.items()}


@pytest.mark.parametrize("width", range(57, 140))
def test_figures_are_never_cut(width):
    widths = _tables.fitted(COLUMNS, width, ["coverage"])
    assert sum(widths.values()) + _tables.BETWEEN * len(widths) <= width
    for header in ("rate", "jitter p50 / p99, ms"):
        assert widths[header] >= max(map(len, COLUMNS[header]))
    assert ("coverage" in widths) == (width >= 67)


def test_names_fold_at_the_middle():
    assert _tables.folded("/robot/front_camera/color/image_raw", 20) == "/robot/fr…/image_raw"
    assert _tables.folded("/imu", 20) == "/imu"


def test_figures_are_to_the_right_and_words_to_the_left():
    for cells in (["12", "-"], ["irregular", "3 Hz"], ["+4 ppm"], ["-", ""], []):
        assert _tables.is_figures(cells), cells
    for cells in (["good", "-"], ["float32 [6]"], ["-x"]):
        assert not _tables.is_figures(cells), cells


def test_a_narrow_terminal(monkeypatch, capsys):
    console = pytest.importorskip("rich.console", reason="rich is not installed")
    monkeypatch.setattr(
        console, "Console", functools.partial(console.Console, force_terminal=True, width=80, color_system=None)
    )
    _tables.table("Title", list(COLUMNS), list(zip(*COLUMNS.values(), strict=True)), spare=["coverage"])
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines)) <= 80
    (row,) = [line for line in lines if "/imu" in line]
    assert row.split("  ")[-1].strip() == "-"
    assert "133.2 Hz" in row
    assert "0.409 / 6.51" in row
