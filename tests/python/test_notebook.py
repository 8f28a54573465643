"""What a notebook shows of recordings, episodes, caches and reports: HTML tables in which every name is escaped."""

from __future__ import annotations

import html.parser

import numpy as np
import pytest

import robocache as rc

EVIL = '<script>alert("1")</script>&amp;'
TAGS = {"div", "strong", "table", "thead", "tbody", "tr", "th", "td", "p"}


class Reader(html.parser.HTMLParser):
    """Refuses tags that a table does not have, and attributes but `style` and `colspan`; collects rows and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        assert tag in TAGS
        for name, value in attrs:
            assert (name, value) in {("style", "text-align: left"), ("style", "text-align: right")} or name == "colspan"
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    path = tmp_path_factory.mktemp("notebook") / "cache <b>"
    with rc.CacheWriter(path) as writer:
        for k in range(23):
            stream = rc.Stream(np.zeros((1500, 2)), np.arange(1500) * 1_000_000, channels=(EVIL, "y"))
            writer.add({f"/{EVIL}": stream}, name=f"{EVIL}{k}", task=EVIL)
    return rc.Cache(path)


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    path = tmp_path_factory.mktemp("notebook") / "run <i>.mcap"
    with rc.mcap.Writer(path) as writer:
        schema = writer.add_schema(EVIL, "jsonschema", '{"type": "object"}')
        channel = writer.add_channel(f"/{EVIL}", "json", schema)
        for k in range(1200):
            writer.write(channel, b'{"x": 1.5}', log_time=10_000_000 * k)
    return rc.open(path)


def test_a_recording(recording):
    found = Reader(recording._repr_html_())
    assert found.rows == [["stream", "type", "samples"], [f"/{EVIL}", EVIL, "1,200"]]
    assert "run <i>.mcap: MCAP: 1 episode, 1 stream, 11.99 s" in found.text
    for part in (recording.episodes[0], recording.streams):
        assert Reader(part._repr_html_()).rows == found.rows


def test_the_episodes_of_a_recording(recording):
    rows = Reader(recording.episodes._repr_html_()).rows
    assert rows[0] == ["", "name", "length", "task"]
    assert rows[1][2] == "11.99 s"


def test_a_report(recording):
    report = rc.sync_report(recording)
    found = Reader(report._repr_html_())
    (_, _, timing), (_, _, stamps) = report.tables()
    assert found.rows[1] == timing[0]
    assert found.rows[-1] == stamps[0]
    assert found.rows[1][0] == f"/{EVIL}"
    assert found.text.rstrip().endswith(f"Verdict: {report.verdict}")


def test_a_cache(cache):
    found = Reader(cache._repr_html_())
    assert found.rows == [["stream", "type", "dtype", "shape", "method"], [f"/{EVIL}", "", "float64", "[2]", "linear"]]
    assert "cache <b>: 23 episodes, 34.5 s" in found.text
    assert Reader(cache.streams._repr_html_()).rows == found.rows


def test_the_episodes_of_a_cache(cache):
    header, first, *_, last = Reader(cache.episodes._repr_html_()).rows
    assert header == ["", "episode", "task", "seconds", "streams", "samples"]
    assert first == ["0", f"{EVIL}0", EVIL, "1.50", "1", "1,500"]
    assert last == ["and 3 more"]
    assert Reader(cache.episodes[3]._repr_html_()).rows == [["stream", "type", "samples"], [f"/{EVIL}", "", "1,500"]]


def test_a_cache_opened_as_a_recording_with_many_episodes(cache):
    recording = rc.open(cache.path)
    found = Reader(recording._repr_html_())
    assert ["stream", "type", "samples"] in found.rows
    assert found.rows[-1] == ["and 11 more"]


def test_no_colour_is_set_so_that_dark_themes_work(cache, recording):
    for thing in (cache, recording, rc.sync_report(recording)):
        assert "color" not in thing._repr_html_()
        assert "background" not in thing._repr_html_()
