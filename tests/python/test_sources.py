"""What a cache takes for the same recording, and a recording that changes while it is read."""

import hashlib
import io
import json
import os
import shutil

import numpy as np
import pytest
from recordings import write_lerobot

import robocache as rc
from robocache import mcap
from robocache._build import build

TIMES = np.arange(200) * 10_000_000


def write_numbers(path, offset=0.0, times=TIMES):
    """One topic, /a, with the numbers offset, offset + 1, ..."""
    with mcap.Writer(path, compression=None) as writer:
        channel = writer.add_channel("/a", "json", writer.add_schema("a", "jsonschema", "{}"))
        for k, at in enumerate(times.tolist()):
            writer.write(channel, json.dumps({"x": float(f"{offset + k:06.1f}")}).encode().ljust(20), log_time=at)


def numbers(cache, episode=0):
    return rc.Cache(cache).episodes[episode].streams["/a"].values[:, 0]


# ---- The same recording


def test_another_spelling_of_a_path_is_the_same_recording(tmp_path, monkeypatch):
    write_numbers(tmp_path / "run.mcap")
    (tmp_path / "link.mcap").symlink_to("run.mcap")
    (tmp_path / "folder").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    spellings = ["run.mcap", tmp_path / "run.mcap", "folder/run.mcap", "link.mcap", "cache/../run.mcap"]
    with rc.CacheWriter(tmp_path / "cache") as writer:
        assert [writer.add(rc.open(spelling)) for spelling in spellings] == [1, 0, 0, 0, 0]
    assert [source.path for source in rc.Cache("cache").sources] == [os.path.realpath("run.mcap")]
    states = [build([str(s)], tmp_path / "cache")["sources"][0]["state"] for s in spellings]
    write_numbers(tmp_path / "run.mcap", 500)
    again = build(["folder/run.mcap"], tmp_path / "cache")["sources"][0]["state"]
    assert (states[1:], again) == (["unchanged"] * 4, "replaced")
    assert len(rc.Cache("cache").episodes) == 1


def test_a_source_that_was_known_by_its_link_stays_that_source(tmp_path):
    """As caches of earlier versions have it."""
    write_numbers(tmp_path / "run.mcap")
    (tmp_path / "folder").symlink_to(tmp_path)
    spelled = tmp_path / "folder" / "run.mcap"
    with rc.CacheWriter(tmp_path / "cache") as writer:
        recording = rc.open(spelled)
        files = [os.fsencode(spelled)]
        writer._writer.begin_source(os.fsencode(spelled), files, "")
        writer._writer.begin_episode("run", "", 0, False)
        for batch in recording.batches():
            writer._append_batch(batch, {})
        writer._writer.end_episode()
        writer._writer.end_source()
    with rc.CacheWriter(tmp_path / "cache") as writer:
        assert writer.add(rc.open(spelled)) == 0
    write_numbers(tmp_path / "run.mcap", 500)
    with rc.CacheWriter(tmp_path / "cache") as writer:
        assert writer.add(rc.open(spelled)) == 1
    assert len(rc.Cache(tmp_path / "cache").episodes) == 1
    assert numbers(tmp_path / "cache")[0] == 500


def test_bytes_are_known_by_their_hash(tmp_path):
    write_numbers(tmp_path / "run.mcap")
    content = (tmp_path / "run.mcap").read_bytes()
    with rc.CacheWriter(tmp_path / "cache") as writer:
        for given in (content, bytearray(content), memoryview(content)):
            writer.add(rc.open(given))
        writer.add(rc.open(io.BytesIO(content)))  # nobody knows what is in a file object: an episode of its own
        writer.add(rc.open(io.BytesIO(content)))
    cache = rc.Cache(tmp_path / "cache")
    of_bytes = [source for source in cache.sources if source.path.startswith("sha256:")]
    assert {source.path for source in of_bytes} == {f"sha256:{hashlib.sha256(content).hexdigest()}"}
    assert len(cache.episodes) == 3
    with rc.CacheWriter(tmp_path / "cache") as writer:
        assert writer.knows(rc.open(content))
        assert not writer.knows(rc.open(content, time="log"))
        assert writer.add(rc.open(content)) == 0
    manifest = (tmp_path / "cache" / "manifest.json").read_bytes()
    assert b"MCAP" not in manifest
    assert len(manifest) < 20_000


def test_files_of_one_source_that_change_places_are_a_change(tmp_path):
    """The sum of their sizes and the latest mtime stay."""
    bag = tmp_path / "bag"
    bag.mkdir()
    one, two = bag / "bag_0.mcap", bag / "bag_1.mcap"
    write_numbers(one, 0)
    write_numbers(two, 500, TIMES + 10**10)
    assert one.stat().st_size == two.stat().st_size
    for path, mtime in ((one, 10**18), (two, 10**18 + 10**9)):
        os.utime(path, ns=(mtime, mtime))
    about = {"version": 5, "relative_file_paths": [one.name, two.name]}
    (bag / "metadata.yaml").write_text(json.dumps({"rosbag2_bagfile_information": about}))
    os.utime(bag / "metadata.yaml", ns=(10**18, 10**18))
    states = [build([str(bag)], tmp_path / "cache")["sources"][0]["state"] for _ in range(2)]
    one.rename(bag / "other")
    two.rename(one)
    (bag / "other").rename(two)
    states.append(build([str(bag)], tmp_path / "cache")["sources"][0]["state"])
    assert states == ["added", "unchanged", "replaced"]


# ---- A recording that changes while it is read


def replaced(path, offset=500.0):
    """Another file takes its place: same size, same mtime, as `cp -p` and a rename leave it."""
    status = path.stat()
    write_numbers(path.with_suffix(".new"), offset)
    assert path.with_suffix(".new").stat().st_size == status.st_size
    os.utime(path.with_suffix(".new"), ns=(status.st_atime_ns, status.st_mtime_ns))
    os.replace(path.with_suffix(".new"), path)


def appended(path):
    with path.open("ab") as file:
        file.write(b"\0" * 64)


@pytest.mark.parametrize("change", [replaced, appended, os.remove])
@pytest.mark.parametrize("when", ["opened", "known", "read"])
def test_a_recording_that_changes_is_never_cached_as_what_it_became(tmp_path, monkeypatch, change, when):
    path = tmp_path / "run.mcap"
    write_numbers(path)
    recording = rc.open(path)
    with rc.CacheWriter(tmp_path / "cache") as writer:
        if when == "opened":
            change(path)
        elif when == "known":
            knows = writer.knows
            monkeypatch.setattr(writer, "knows", lambda *given: (knows(*given), change(path))[0])
        options = {"progress": lambda batch: change(path)} if when == "read" else {}
        with pytest.raises(rc.FileError, match=r"run\.mcap: "):
            writer.add(recording, **options)
    cache = rc.Cache(tmp_path / "cache")
    assert not any(source.complete for source in cache.sources)
    assert not len(cache.episodes)
    write_numbers(path, 500)
    with rc.CacheWriter(tmp_path / "cache") as writer:
        assert writer.add(rc.open(path)) == 1
        assert writer.knows(rc.open(path))
    np.testing.assert_array_equal(numbers(tmp_path / "cache"), 500 + np.arange(len(TIMES)))


def test_a_recording_that_changes_stops_no_build(tmp_path, monkeypatch):
    write_numbers(tmp_path / "a.mcap")
    write_numbers(tmp_path / "b.mcap", 500)
    from robocache._mcap_source import McapSource

    batches = McapSource.batches

    def changing(self, *given):
        yield from batches(self, *given)
        if self.path.endswith("a.mcap"):
            appended(tmp_path / "a.mcap")

    monkeypatch.setattr(McapSource, "batches", changing)
    found = build([str(tmp_path / "a.mcap"), str(tmp_path / "b.mcap")], tmp_path / "cache")
    assert [row["state"] for row in found["sources"]] == ["failed", "added"]
    assert "a.mcap: went from" in found["sources"][0]["error"]
    np.testing.assert_array_equal(numbers(tmp_path / "cache"), 500 + np.arange(len(TIMES)))


def test_a_data_set_that_changes_is_noticed(tmp_path):
    write_lerobot(tmp_path / "set", "v2.1", lengths=(6, 6))
    file = sorted((tmp_path / "set" / "data").rglob("*.parquet"))[0]

    def touch(batch):
        shutil.copy2(file, tmp_path / "copy")
        os.replace(tmp_path / "copy", file)

    with (
        rc.CacheWriter(tmp_path / "cache") as writer,
        pytest.raises(rc.FileError, match=r"000000\.parquet: was .* while it was read; add it"),
    ):
        writer.add(rc.open(tmp_path / "set"), progress=touch)
    assert not any(source.complete for source in rc.Cache(tmp_path / "cache").sources)
