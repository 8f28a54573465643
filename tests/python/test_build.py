"""robocache build: one bad recording is told and skipped, whatever it throws; Ctrl-C keeps what was committed."""

import json
import os
import signal
import subprocess
import sys

import pytest
from test_mcap_recording import write

import robocache as rc
from robocache._cache import build

typer_testing = pytest.importorskip("typer.testing", reason="Typer is not installed")


class Panic(BaseException):
    """What a decoder written in Rust raises: no Exception."""


class DecoderError(Exception):
    pass


THROWN = [
    MemoryError(),
    OSError(5, "Input/output error"),
    PermissionError(13, "Permission denied", "/elsewhere/part.bin"),
    RecursionError("maximum recursion depth exceeded"),
    DecoderError("bad magic"),
    Panic("index out of bounds"),
    KeyError("joint"),
    IndexError("list index out of range"),
    AssertionError(),
]


def robocache(*arguments):
    from robocache.cli.commands import application

    return typer_testing.CliRunner().invoke(application, list(map(str, arguments)))


@pytest.fixture
def three(tmp_path):
    for name in "abc":
        write(tmp_path / f"{name}.mcap", {"/fast": 100})
    return [tmp_path / f"{name}.mcap" for name in "abc"]


@pytest.mark.parametrize("thrown", THROWN, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("moment", ["open", "read"])
def test_one_bad_recording_is_told_and_skipped(three, tmp_path, monkeypatch, thrown, moment):
    from robocache._recordings.mcap import McapSource

    made, read = McapSource.__init__, McapSource.batches

    def opening(self, path, time):
        if moment == "open" and path.endswith("b.mcap"):
            raise type(thrown)(*thrown.args)
        made(self, path, time)

    def reading(self, *given, **named):
        for number, batch in enumerate(read(self, *given, **named)):
            yield batch
            if moment == "read" and self.path.endswith("b.mcap") and number == 0:
                raise type(thrown)(*thrown.args)

    monkeypatch.setattr(McapSource, "__init__", opening)
    monkeypatch.setattr(McapSource, "batches", reading)
    result = robocache("build", *three, "-o", tmp_path / "cache")
    assert result.exit_code == 1, result.output
    (sentence,) = [line for line in result.stderr.splitlines() if line.startswith("robocache build: ")]
    assert sentence.startswith(f"robocache build: {three[1]}: ")
    assert str(thrown.args[-1] if thrown.args else "") in sentence
    table = " ".join(result.stdout.split())
    assert "failed" in table
    assert "1 of 3 recordings failed" in table
    assert [episode.name for episode in rc.Cache(tmp_path / "cache").episodes] == ["a", "c"]
    assert rc.verify_cache(tmp_path / "cache").ok


def test_json_tells_it_too(three, tmp_path):
    three[1].write_bytes(b"no MCAP at all")
    result = robocache("build", *three, "-o", tmp_path / "cache", "--json")
    assert result.exit_code == 1
    states = [row["state"] for row in json.loads(result.stdout)["sources"]]
    assert states == ["added", "failed", "added"]


def test_a_folder_without_recordings_does_not_stop_the_others(three, tmp_path):
    (tmp_path / "empty").mkdir()
    result = robocache("build", tmp_path / "empty", three[0], "-o", tmp_path / "cache")
    assert result.exit_code == 1
    assert f"{tmp_path / 'empty'}: not a recording" in result.stderr
    assert len(rc.Cache(tmp_path / "cache").episodes) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_a_folder_that_cannot_be_listed_does_not_stop_the_others(three, tmp_path):
    (tmp_path / "shut").mkdir(mode=0)
    result = robocache("build", tmp_path, "-o", tmp_path / "cache")
    assert result.exit_code == 1
    assert len(rc.Cache(tmp_path / "cache").episodes) == 3


def test_listing_that_fails_is_told(three, tmp_path, monkeypatch):
    from pathlib import Path

    (tmp_path / "shut").mkdir()
    listed = Path.iterdir

    def refuse(self):
        if self.name == "shut":
            raise PermissionError(13, "Permission denied", str(self))
        return listed(self)

    monkeypatch.setattr(Path, "iterdir", refuse)
    result = robocache("build", tmp_path, "-o", tmp_path / "cache")
    assert result.exit_code == 1
    assert f"{tmp_path / 'shut'}: cannot be read: Permission denied" in result.stderr
    assert len(rc.Cache(tmp_path / "cache").episodes) == 3


def test_ctrl_c_ends_the_build_and_keeps_what_was_added(three, tmp_path, monkeypatch):
    from robocache._cache.recipe import Recipe

    opened = Recipe.open

    def interrupted(self, path):
        if str(path).endswith("c.mcap"):
            raise KeyboardInterrupt
        return opened(self, path)

    monkeypatch.setattr(Recipe, "open", interrupted)
    result = robocache("build", *three, "-o", tmp_path / "cache")
    assert result.exit_code == 130
    assert [episode.name for episode in rc.Cache(tmp_path / "cache").episodes] == ["a", "b"]
    monkeypatch.undo()
    assert robocache("build", *three, "-o", tmp_path / "cache").exit_code == 0
    assert [episode.name for episode in rc.Cache(tmp_path / "cache").episodes] == ["a", "b", "c"]


SIGNALLED = """
import os, signal, sys
from robocache._cache import build, recipe
from pathlib import Path
opened = recipe.Recipe.open
def signalled(self, path):
    if path.endswith("c.mcap"):
        os.kill(os.getpid(), signal.SIGINT)
    return opened(self, path)
recipe.Recipe.open = signalled
build.build(sys.argv[2:], Path(sys.argv[1]))
"""


def test_a_real_sigint(three, tmp_path):
    command = [sys.executable, "-c", SIGNALLED, str(tmp_path / "cache"), *map(str, three)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode in (-signal.SIGINT, 1, 130), result.stderr
    assert "KeyboardInterrupt" in result.stderr
    assert [episode.name for episode in rc.Cache(tmp_path / "cache").episodes] == ["a", "b"]


# ---- What is a cache


@pytest.mark.parametrize("text", ["{}", '{"name": "my extension", "version": 3}', '{"format": "npm"}', "[1, 2]"])
def test_a_folder_with_a_manifest_of_another_tool_is_no_cache(three, tmp_path, text):
    folder = tmp_path / "runs"
    folder.mkdir()
    three[0].rename(folder / "a.mcap")
    (folder / "manifest.json").write_text(text)
    assert not build.is_cache(folder)
    found = build.build([str(folder)], tmp_path / "cache")
    assert [row["state"] for row in found["sources"]] == ["added"]
    below = tmp_path / "day"
    below.mkdir()
    folder.rename(below / "runs")
    found = build.build([str(below)], tmp_path / "second")
    assert [row["state"] for row in found["sources"]] == ["added"]
    with pytest.raises(rc.FileError, match=r"not a recording: .*a\.mcap"):
        rc.open(below / "runs")


def test_a_cache_is_told_by_its_content_even_if_damaged(three, tmp_path):
    build.build([str(three[0])], tmp_path / "cache")
    assert build.is_cache(tmp_path / "cache")
    assert rc.open(tmp_path / "cache").format == "cache"
    manifest = tmp_path / "cache" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-40])
    assert build.is_cache(tmp_path / "cache")
    with pytest.raises(rc.FileError, match="manifest"):
        rc.open(tmp_path / "cache")


def test_files_that_no_one_can_read_do_not_stop_the_others(three, tmp_path):
    """FIFOs, names that are not UTF-8, and MCAP files of which nothing is left."""
    os.mkfifo(tmp_path / "fifo.mcap")
    os.mkfifo(tmp_path / "fifo.db3")
    strange = os.fsdecode(os.fsencode(tmp_path) + b"/na\xffme.mcap")
    os.link(three[0], strange)
    (tmp_path / "head.mcap").write_bytes(three[0].read_bytes()[:8])
    built = robocache("build", tmp_path, "-o", tmp_path / "cache", "--json")
    assert built.exit_code == 1
    rows = {os.path.basename(row["path"]): row for row in json.loads(built.stdout)["sources"]}
    assert {name for name, row in rows.items() if row["state"] == "added"} == {"a.mcap", "b.mcap", "c.mcap"}
    assert "neither a file nor a directory" in rows["fifo.mcap"]["error"]
    assert "neither a file nor a directory" in rows["fifo.db3"]["error"]
    assert "no sample could be read" in rows["head.mcap"]["error"]
    assert "na\\xffme.mcap: the name is not UTF-8" in rows["na\udcffme.mcap"]["error"]
    assert len(rc.Cache(tmp_path / "cache").episodes) == 3
    again = robocache("build", tmp_path, "-o", tmp_path / "cache", "--json")
    assert again.exit_code == 1
    assert [row["state"] for row in json.loads(again.stdout)["sources"]].count("unchanged") == 3


@pytest.mark.parametrize("versions", [(1, 2, 1), (1, 2, 1, 2), (1, 2, 2, 1)], ids=str)
@pytest.mark.parametrize("commits", [False, True])
def test_a_file_that_becomes_again_what_it_was_is_read_again(tmp_path, versions, commits):
    with rc.CacheWriter(tmp_path / "cache") as writer:
        for version in versions:
            write(tmp_path / "a.mcap", {"/fast": 100}, seconds=0.5 * version)
            writer.add(rc.open(tmp_path / "a.mcap"))
            if commits:
                writer.commit()
    (episode,) = rc.Cache(tmp_path / "cache").episodes
    assert episode.samples["/fast"] == 50 * versions[-1]
    assert rc.verify_cache(tmp_path / "cache").ok
