"""The lines of a recipe on a report's page: taken from there, they build a cache in which the findings are mended."""

import html
import re
import tomllib

import numpy as np
import pytest
from clock_files import SECOND, WALL, Message, write_mcap

import robocache as rc
from robocache._cache.build import build

SECONDS = np.arange(2000) * 0.01
RARE = np.array([0.1, 0.2, 5, 6, 6.5, 11, 19])
WALL_S = WALL / SECOND


def stream(topic, seconds, stamps=None, delay=0.001, kind="stamped"):
    """A sine; seconds: when it was sampled; stamps: what its clock showed, in seconds."""
    shown = seconds + WALL_S if stamps is None else stamps
    return [
        Message(topic, kind, WALL + round((at + delay) * SECOND), round(stamp * SECOND), float(np.sin(at)))
        for at, stamp in zip(seconds, shown, strict=True)
    ]


def as_on_the_page(page, name):
    """The lines in the card of a stream, as a person copies them."""
    card = next(each for each in re.split(r'<div class="finding">', page)[1:] if f">{html.escape(name)}<" in each)
    return html.unescape(re.search(r"<pre>(.*?)</pre>", card, re.DOTALL)[1])


def odd(values):
    return np.where(np.arange(2000) % 2, values, 0)


# What was recorded, and the kind of finding; the lines; what the findings of the mended stream are then.
CASES = {
    "gaps": (stream("/x", np.delete(SECONDS, np.arange(700, 760))), "max_gap = 0.03", "mended: max_gap is 0.03 s"),
    "lost": (stream("/x", np.delete(SECONDS, range(50, 2000, 99))), "max_gap = 0.015", "mended: max_gap is 0.015 s"),
    "irregular": (stream("/x", RARE), 'method = "hold"', "mended: its method is hold"),
    "one sample": (stream("/x", np.array([3.0])), "static = true", "static"),
    "offset": (stream("/x", SECONDS, SECONDS + WALL_S + 0.5), "clock_offset = 0.5", ""),
    "delay": (stream("/x", SECONDS, SECONDS + WALL_S - 0.3), "clock_offset = -0.299", ""),
    "drift": (stream("/x", SECONDS, SECONDS * 1.001 + WALL_S), 'time = "log"', ""),
    "mixed": (stream("/x", SECONDS, odd(SECONDS + WALL_S)), 'time = "log"', ""),
    "unstamped": (stream("/x", SECONDS, kind="plain"), "latency = 0.0015", ""),
}  # fmt: skip


@pytest.mark.parametrize("kind", CASES)
def test_the_lines_on_the_page_mend_what_was_found(tmp_path, kind):
    messages, line, then = CASES[kind]
    others = [stream(f"/ok{k}", SECONDS, delay=0.001 + k * 0.0005) for k in range(3)]
    path = write_mcap(tmp_path / "run.mcap", sum(others, messages))
    before = rc.report(path)
    assert kind in [mend["kind"] for mend in before.recordings[0]["mends"]["/x"]]
    decided = re.sub(r"^# (\w+ = )", r"\1", as_on_the_page(before.html, "/x"), flags=re.MULTILINE)
    assert line in decided
    tomllib.loads(decided)
    (tmp_path / "recipe.toml").write_text(decided)
    (row,) = build([str(path)], tmp_path / "cache", recipe=tmp_path / "recipe.toml")["sources"]
    assert row.get("error") is None
    after = rc.report(tmp_path / "cache").recordings[0]
    found = after["mends"].get("/x", [])
    if then.startswith("mended"):
        assert [mend["line"].removeprefix("# ").startswith(then) for mend in found if mend["kind"] == kind] == [True]
    else:
        assert [mend["kind"] for mend in found] == [then] * bool(then)
        assert after["streams"]["/x"]["level"] == "good"


def test_a_clock_that_drifts_gets_no_offset_beside_log_times(tmp_path):
    """An offset of the stamps would shift the log times, which have none."""
    others = [stream(f"/ok{k}", SECONDS) for k in range(3)]
    path = write_mcap(tmp_path / "run.mcap", sum(others, stream("/x", SECONDS, SECONDS * 1.001 + WALL_S)))
    found = rc.report(path)
    assert {mend["kind"] for mend in found.recordings[0]["mends"]["/x"]} == {"offset", "drift"}
    assert "clock_offset" not in as_on_the_page(found.html, "/x")
    assert "Nothing to set: no clock_offset mends a clock that drifts." in found.html


def test_what_is_no_line_of_a_recipe_is_a_sentence(tmp_path):
    """Such as what to do about samples of varying length that are irregular, which are held as it is."""
    from recordings import batch, made

    times = WALL + np.array([0, 1, 5, 6, 20, 31, 33, 50]) * SECOND
    cloud = batch("/cloud", np.zeros((8, 3)), times, lengths=[1] * 8, ragged=True, shape=(3,))
    flag = batch("/flag", np.ones((50, 1), np.uint8), WALL + np.arange(50) * SECOND)
    found = rc.report(made(cloud, flag))
    cards = re.split(r'<div class="finding">', found.html)[1:]
    assert len(cards) == 2
    for card, sentence in zip(
        cards, ("Nothing to set: it is held.", "Nothing to set, if it is a command or a flag."), strict=True
    ):
        assert sentence in card
        assert "<pre>" not in card.partition("</div></div>")[0]
    for mends in found.recordings[0]["mends"].values():
        assert [mend["table"] for mend in mends] == [""]
