"""verify and its repair: only damage counts, nothing is deleted, what is whole stays, a second repair finds nothing."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import re
import resource
import shutil
import struct
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from cache_cases import FakeRecording, Part, version_1

import robocache as rc
from robocache import _core


def stream(seed: int, samples: int, width: int = 2, **more) -> rc.Stream:
    rng = np.random.default_rng(seed)
    times = np.sort(rng.integers(0, 10**9, samples)) + seed * 10**10
    return rc.Stream(rng.standard_normal((samples, width)).astype(np.float32), times, **more)


def make(path: Path, *, keep_journal: bool = False, episodes: int = 7, versions: bool = False) -> None:
    """Episodes of several groups; some lack the camera; one source; one episode that was replaced. With `versions` also
    what build_versions makes."""
    if versions:
        build_versions(path)
    writer = rc.CacheWriter(path)
    for k in range(episodes):
        streams = {"joints": stream(k, 5 + k, channels=("a", "b"), method="linear")}
        if k % 3 != 1:
            streams["camera"] = stream(100 + k, 3)
        if k % 4 == 2:
            images = [np.full(n, k, np.uint8) for n in range(4)]
            streams["images"] = rc.Stream(images, np.arange(4) + k * 10**10)
        writer.add(streams, name=f"e{k}", task="pick")
        if k % 2:
            writer.commit()
    recorded = {"joints": (np.ones((4, 2), np.float32), np.arange(4, dtype=np.int64) + 5)}
    source = path.parent / f"{path.name}.log"
    source.write_bytes(b"log")
    recording = FakeRecording(source, [recorded])
    writer.add(recording)
    writer.commit()
    writer.add({"joints": stream(50, 9, channels=("a", "b"))}, name="e0", replace=True)
    writer.commit()
    writer._writer.abandon() if keep_journal else writer.close()
    assert any(p.name.startswith("journal.") for p in path.iterdir()) == keep_journal


def record(seed: int) -> dict:
    return {"joints": (np.full((4, 2), seed, np.float32), np.arange(4, dtype=np.int64) + seed)}


def named(source: Path, names: list[str], seed: int, **more) -> FakeRecording:
    recording = FakeRecording(source, [record(seed + k) for k in range(len(names))], **more)
    recording.episodes = [Part(name, None) for name in names]
    return recording


def harm(path: Path) -> None:
    """Changes a sample of a shard."""
    data = bytearray(path.read_bytes())
    data[8 + struct.unpack_from("<Q", data)[0] + 3] ^= 1
    path.write_bytes(data)


def build_versions(path: Path) -> None:
    """A cache of two sources. Of "versions", an episode is lost, and the first one of a second version is beside the
    rest. Of "touched", an episode is lost and was read again under another mtime."""
    versions = path.parent / f"{path.name}.versions"
    touched = path.parent / f"{path.name}.touched"
    versions.write_bytes(b"version 1")
    touched.write_bytes(b"touched")
    with rc.CacheWriter(path, group_bytes=1) as writer:
        writer.add(named(versions, ["v0", "v1", "v2"], 60))
        writer.add(named(touched, ["t0", "t1"], 70))
        versions.write_bytes(b"version 2")
        again = named(versions, ["w0", "w1", "w2"], 80)
        again.fail_at = 3
        with pytest.raises(RuntimeError, match="broke"):
            writer.add(again)
    for shard in (path / "shards").iterdir():
        if shard_of(shard)[0] in (0, 3):
            harm(shard)
    assert sorted(rc.verify_cache(path, repair=True).dropped) == ["t0", "v0"]
    shutil.rmtree(path / "quarantine")
    os.utime(touched, (5, 5))
    with rc.CacheWriter(path) as writer:
        writer.add(named(touched, ["t0", "t1"], 70))


def content(path: Path) -> dict[str, dict[str, tuple[bytes, bytes]]]:
    """Episodes by name, and the bytes of their streams."""
    found = {}
    for episode in rc.Cache(path).episodes:
        streams = {}
        for name, one in episode.streams.items():
            values = one.samples.rows if one.samples is not None else one.values
            streams[name] = (np.asarray(values).tobytes(), np.asarray(one.times).tobytes())
        found[episode.name] = streams
    return found


def shard_of(path: Path) -> tuple[int, str]:
    """The group and the stream of a shard, as its header says."""
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + struct.unpack_from("<Q", data)[0]])
    said = json.loads(header["__metadata__"]["robocache"])["shards"][0]
    return said["group"], said["stream"]


def files_of(path: Path) -> list[Path]:
    """What a repair may touch."""
    return sorted(p for p in path.rglob("*") if p.is_file() and p.name != "lock" and "quarantine" not in p.parts)


def hashes(path: Path) -> Counter[str]:
    return Counter(
        hashlib.sha256(p.read_bytes()).hexdigest()
        for p in path.rglob("*")
        if p.is_file() and not p.is_symlink() and p.name not in ("lock", "report.txt")
    )


def state(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def repaired(path: Path) -> rc.CacheReport:
    """Repairs, and holds the result against everything that is promised of every repair."""
    before = hashes(path)
    names = {p.relative_to(path) for p in files_of(path)}
    planned = rc.verify_cache(path, dry_run=True)
    assert hashes(path) == before
    report = rc.verify_cache(path, repair=True)
    assert report.repaired == bool(report.problems)
    assert (report.problems, report.moved, report.dropped) == (planned.problems, planned.moved, planned.dropped)
    assert not before - hashes(path), "bytes are gone"
    again = rc.verify_cache(path, repair=True)
    assert again.problems == []
    assert again.moved == []
    assert rc.verify_cache(path).problems == []
    opened = rc.Cache(path)
    assert len(opened.episodes) == report.episodes
    if report.moved:
        folder = path / str(report.quarantine)
        told = (folder / "report.txt").read_text()
        for move in report.moved:
            assert Path(move.file) in names
            assert (folder / move.file).exists()
            assert move.file in told
            assert move.reason in told
        for name in report.dropped:
            assert name in told
    return report


# ---- Random damage


def flip(rng: random.Random, files: list[Path]) -> list[Path]:
    file = rng.choice(files)
    data = bytearray(file.read_bytes())
    for _ in range(rng.choice([1, 1, 3])):
        if data:
            at = rng.randrange(len(data)) if rng.random() < 0.6 else rng.randrange(min(len(data), 1200))
            data[at] ^= 1 << rng.randrange(8)
    file.write_bytes(data)
    return [file]


def truncate(rng: random.Random, files: list[Path]) -> list[Path]:
    file = rng.choice(files)
    os.truncate(file, rng.randrange(file.stat().st_size + 1))
    return [file]


def grow(rng: random.Random, files: list[Path]) -> list[Path]:
    file = rng.choice(files)
    file.write_bytes(file.read_bytes() + rng.randbytes(rng.randrange(1, 40)))
    return [file]


def delete(rng: random.Random, files: list[Path]) -> list[Path]:
    file = rng.choice(files)
    file.unlink()
    return [file]


def swap(rng: random.Random, files: list[Path]) -> list[Path]:
    if len(files) < 2:
        return []
    a, b = rng.sample(files, 2)
    first, second = a.read_bytes(), b.read_bytes()
    a.write_bytes(second)
    b.write_bytes(first)
    return [a, b]


def duplicate(rng: random.Random, files: list[Path]) -> list[Path]:
    """A copy of a shard, or a row that is there twice."""
    file = rng.choice(files)
    if file.suffix == ".safetensors":
        shutil.copy(file, file.with_name(f"{file.stem}-copy.safetensors"))
    else:
        lines = file.read_bytes().splitlines(keepends=True)
        if not lines:
            return []
        at = rng.randrange(len(lines))
        file.write_bytes(b"".join([*lines[: at + 1], *lines[at:]]))
    return [] if file.suffix == ".safetensors" else [file]


def leave(rng: random.Random, files: list[Path]) -> list[Path]:
    """What a crash leaves."""
    folder = files[0].parent if files[0].parent.name == "shards" else files[0].parent / "shards"
    names = ("000077-joints.safetensors", "000003-joints.0.tmp", "../manifest.json.tmp", "../journal." + "a" * 32)
    (folder / rng.choice(names)).write_bytes(rng.randbytes(100))
    return []


DAMAGES = (flip, truncate, grow, delete, swap, duplicate, leave)


@pytest.mark.parametrize("keep_journal", [False, True], ids=["snapshot", "journal"])
def test_random_damage(tmp_path, keep_journal):
    whole = tmp_path / "whole"
    make(whole, keep_journal=keep_journal, versions=True)
    expected = content(whole)
    rc_cache = rc.Cache(whole)
    group_of = {episode.name: episode._group for episode in rc_cache.episodes}
    places = {p.name: shard_of(p) for p in (whole / "shards").iterdir()}
    for seed in range(int(os.environ.get("ROBOCACHE_REPAIRS", "60"))):
        rng = random.Random(seed)
        path = tmp_path / "c"
        shutil.copytree(whole, path)
        chosen = [p for p in files_of(path) if rng.random() < 0.7] or files_of(path)
        if rng.random() < 0.3:
            chosen = [p for p in files_of(path) if p.parent == path]
        harmed: list[Path] = []
        done = []
        for _ in range(rng.choice([1, 1, 2, 4])):
            damage = rng.choice(DAMAGES)
            chosen = [p for p in chosen if p.exists()]
            if not chosen:
                break
            harmed += damage(rng, chosen)
            done.append(damage.__name__)
        hurt = {
            p.name
            for p in harmed
            if p.parent.name == "shards"
            and (not p.exists() or p.read_bytes() != (whole / "shards" / p.name).read_bytes())
        }
        if not any(p.parent.name == "shards" for p in files_of(path)):
            shutil.rmtree(path)
            continue
        where = f"seed {seed}: {done} {sorted(p.name for p in harmed)}"
        try:
            report = repaired(path)
            found = content(path)
        except Exception as error:
            error.add_note(where)
            raise
        lost = {places[name] for name in hurt}
        # Shards do not say which versions of a source were beside each other: a manifest made of them has the newest.
        is_anew = any(problem.repair.startswith("made anew") for problem in report.problems)
        older = {"v1", "v2", "t1"} if is_anew else set()
        for name, streams in expected.items():
            if any((group_of[name], one) in lost for one in streams):
                continue
            if name in older and name not in found:
                continue
            assert name in found, f"{where}: {name} is lost\n{report}"
            assert found[name] == streams, f"{where}: {name}"
        assert set(found) <= set(expected), where
        with rc.CacheWriter(path) as writer:  # and it goes on
            writer.add({"joints": stream(7, 4, channels=("a", "b"))}, name="new")
        assert "new" in content(path)
        shutil.rmtree(path)


# ---- What the system cannot read is no damage


def test_too_many_open_files_change_nothing(tmp_path):
    path = tmp_path / "c"
    make(path)
    before = state(path)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(int(name) for name in os.listdir("/proc/self/fd")) + 10
    held = [os.open(os.devnull, os.O_RDONLY)]
    words: list[str] = []
    try:
        while held[-1] < most:
            held.append(os.open(os.devnull, os.O_RDONLY))
        for spare in range(6):
            resource.setrlimit(resource.RLIMIT_NOFILE, (held[-1] + 1 + spare, hard))
            try:
                assert rc.verify_cache(path, repair=True).problems == []
            except rc.FileError as error:
                words.append(str(error))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in held:
            os.close(descriptor)
    assert words
    assert all("Too many open files" in sentence for sentence in words)
    assert state(path) == before


@contextlib.contextmanager
def as_nobody(path: Path):
    """Runs as a user whom permissions bind, which they do not bind root."""
    if os.geteuid() != 0:
        yield
        return
    for folder in [path, *path.rglob("*")]:
        os.chown(folder, 65534, 65534)
    for parent in path.parents:
        if not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("what", ["shard", "manifest", "shards", "lost manifest"])
def test_no_permission_changes_nothing(tmp_path, what):
    path = tmp_path / "c"
    make(path)
    shard = next(p for p in sorted((path / "shards").iterdir()))
    if what == "lost manifest":
        (path / "manifest.json").unlink()
    before = state(path)
    closed = {"manifest": path / "manifest.json", "shards": path / "shards"}.get(what, shard)
    with as_nobody(path):
        mode = closed.stat().st_mode
        closed.chmod(0)
        try:
            for repair in (False, True):
                with pytest.raises(rc.FileError, match="Permission denied"):
                    rc.verify_cache(path, repair=repair)
        finally:
            closed.chmod(mode)
    assert state(path) == before


def test_a_repair_that_cannot_move_is_undone(tmp_path):
    path = tmp_path / "c"
    make(path)
    for shard in sorted((path / "shards").iterdir())[:2]:
        shard.write_bytes(b"short")
    before = state(path)
    with as_nobody(path):
        (path / "shards").chmod(0o555)
        try:
            with pytest.raises(rc.FileError, match="Permission denied"):
                rc.verify_cache(path, repair=True)
        finally:
            (path / "shards").chmod(0o755)
    after = state(path)
    assert {name: after[name] for name in before} == before
    assert all(name.startswith("quarantine/") for name in set(after) - set(before))
    shutil.rmtree(path / "quarantine")
    assert len(repaired(path).dropped) > 0


def test_without_its_folder_of_shards_nothing_is_repaired(tmp_path):
    path = tmp_path / "c"
    make(path)
    (path / "shards").rename(tmp_path / "elsewhere")
    before = state(path)
    for repair in (False, True):
        with pytest.raises(rc.FileError, match=r"shards: is missing, with all \d+ shards; mount or restore it"):
            rc.verify_cache(path, repair=repair)
    assert state(path) == before


# ---- A manifest from shards


def test_a_lost_manifest_and_a_damaged_header(tmp_path):
    """Every intact shard is found again."""
    path = tmp_path / "c"
    make(path)
    expected = content(path)
    groups = {episode.name: episode._group for episode in rc.Cache(path).episodes}
    target = next(p for p in sorted((path / "shards").iterdir()) if shard_of(p) == (1, "camera"))
    (path / "manifest.json").unlink()
    data = bytearray(target.read_bytes())
    data[10] ^= 1
    target.write_bytes(data)
    report = repaired(path)
    found = content(path)
    lost = {name for name, streams in expected.items() if groups[name] == 1 and "camera" in streams}
    assert lost
    assert found == {name: streams for name, streams in expected.items() if name not in lost}
    assert [move.file for move in report.moved if "camera" in move.file] == [f"shards/{target.name}"]
    assert set(report.dropped) == lost
    told = (path / str(report.quarantine) / "report.txt").read_text()
    assert all(f'"{name}"\n    lacks the shard of its stream "camera"' in told for name in lost)


def test_a_rebuild_names_what_is_lost_and_how_to_undo_it(tmp_path):
    """Episodes of one stream: where a header cannot be read, no other shard names them."""
    path = tmp_path / "c"
    with rc.CacheWriter(path, group_bytes=1) as writer:
        for k in range(3):
            writer.add({"joints": stream(k, 4)} | ({"camera": stream(9, 3)} if k else {}), name=f"e{k}")
        writer.add({"joints": stream(8, 5)}, name="e2", replace=True)  # which group 2 has no more
    (path / "manifest.json").unlink()
    before = state(path)
    alone, camera = (p for p in sorted((path / "shards").iterdir()) if shard_of(p) in ((0, "joints"), (1, "camera")))
    for shard in (alone, camera):
        data = bytearray(shard.read_bytes())
        data[10] ^= 1
        shard.write_bytes(data)
    harmed = state(path)
    report = repaired(path)
    assert list(content(path)) == ["e2"]
    assert report.dropped == ["e1"]
    told = (path / str(report.quarantine) / "report.txt").read_text()
    assert '"e1"\n    lacks the shard of its stream "camera"' in told
    lost, undo = told.index("lost all episodes of the groups of these shards"), told.index("To undo this repair")
    assert lost < told.index(alone.name, lost) < undo
    assert camera.name not in told[lost:undo]
    assert "remove the cache's manifest.json, which this repair made" in told[undo:]
    assert "with this\nmanifest.json" not in told
    folder = path / str(report.quarantine)  # as it says
    for file in (folder / "shards").iterdir():
        file.rename(path / "shards" / file.name)
    (path / "manifest.json").unlink()
    shutil.rmtree(path / "quarantine")
    assert state(path) == harmed
    assert before.keys() == harmed.keys()


def test_a_rebuild_that_takes_nothing_out_says_so(tmp_path):
    path = tmp_path / "c"
    make(path)
    (path / "manifest.json").unlink()
    report = rc.verify_cache(path, repair=True)
    told = (path / str(report.quarantine) / "report.txt").read_text()
    assert "No file was taken out of the cache" in told
    assert "the cache: remove the cache's manifest.json, which this repair made" in told


def described(path: Path, change) -> None:
    """Changes what a shard says about itself, as version 1, which had no checksum."""
    data = path.read_bytes()
    size = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8 : 8 + size])
    said = json.loads(header["__metadata__"]["robocache"])
    said.pop("checksum", None)
    said["version"] = 1
    change(said)
    header["__metadata__"]["robocache"] = json.dumps(said)
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % 64)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])


def test_a_description_with_a_row_twice(tmp_path):
    path = tmp_path / "c"
    make(path)
    expected = content(path)

    def twice(said):
        said["episodes"].append(said["episodes"][0] | {"name": "twin"})

    (path / "manifest.json").unlink()
    for shard in (path / "shards").iterdir():
        if shard.name.startswith("000000-"):
            described(shard, twice)
    report = repaired(path)
    assert any("has row 0 twice" in problem.sentence for problem in report.problems)
    found = content(path)
    assert "twin" not in found
    assert found == {name: streams for name, streams in expected.items() if name in found}
    assert len(found) >= len(expected) - 2


def test_the_last_line_of_the_journal_is_damaged(tmp_path):
    """A crash leaves such a line before its commit has finished; a flipped bit after. Then its shards are whole."""
    path = tmp_path / "c"
    make(path, keep_journal=True)
    expected = content(path)
    journal = next(p for p in path.iterdir() if p.name.startswith("journal."))
    data = bytearray(journal.read_bytes())
    data[-5] ^= 1
    journal.write_bytes(data)
    with pytest.warns(UserWarning, match=r"c: the last \d+ bytes of its journal are not a whole commit"):
        rc.Cache(path)
    repaired(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert content(path) == expected


def test_a_journal_that_is_gone(tmp_path):
    path = tmp_path / "c"
    make(path, keep_journal=True)
    expected = content(path)
    next(p for p in path.iterdir() if p.name.startswith("journal.")).unlink()
    assert rc.verify_cache(path).problems
    repaired(path)
    assert content(path) == expected


def test_a_leftover_does_not_replace_an_older_version(tmp_path):
    """Two versions of a source are beside each other after a repair. A repair that takes nothing in leaves them so."""
    path = tmp_path / "c"
    build_versions(path)
    expected = content(path)
    assert {"v1", "v2", "w0", "t0", "t1"} == set(expected)
    (path / "shards" / "000099-x.safetensors").write_bytes(b"junk")
    report = repaired(path)
    assert [move.file for move in report.moved] == ["shards/000099-x.safetensors"]
    assert report.dropped == []
    assert content(path) == expected


def test_episodes_of_one_number_stay_beside_each_other(tmp_path):
    path = tmp_path / "c"
    source = tmp_path / "log"
    source.write_bytes(b"log")
    writer = _core.CacheWriter(os.fsencode(path), 1)
    writer.begin_source(os.fsencode(source), [os.fsencode(source)], "")
    times = np.arange(3, dtype=np.int64)
    for name in "abc":
        writer.begin_episode(name, "", 0, False)
        writer.append("q", "", np.ones((3, 1)), times, times, None, (), None, False, {}, 0)
        writer.end_episode()
    writer.end_source()
    writer.close()
    (path / "shards" / "000099-x.safetensors").write_bytes(b"junk")
    assert len(repaired(path).moved) == 1
    assert sorted(content(path)) == ["a", "b", "c"]
    (path / "manifest.json").unlink()
    repaired(path)
    assert sorted(content(path)) == ["a", "b", "c"]


def test_a_touched_source_is_the_same_source(tmp_path):
    """An episode of a touched source is read again, and its commit is lost: the others of that source stay."""
    path = tmp_path / "c"
    source = tmp_path / "log"
    source.write_bytes(b"log")
    with rc.CacheWriter(path, group_bytes=1) as writer:
        writer.add(named(source, ["t0", "t1", "t2"], 70))
    expected = content(path)
    harm(next(p for p in (path / "shards").iterdir() if shard_of(p)[0] == 1))
    assert rc.verify_cache(path, repair=True).dropped == ["t1"]
    os.utime(source, (5, 5))
    before = (path / "manifest.json").read_bytes()
    with rc.CacheWriter(path) as writer:
        assert writer.add(named(source, ["t0", "t1", "t2"], 70)) == 1
    (path / "manifest.json").write_bytes(before)
    assert sorted(content(path)) == ["t0", "t2"]
    assert repaired(path).dropped == []
    assert content(path) == expected
    assert len(rc.Cache(path).sources) == 1


def test_a_commit_that_is_taken_in_replaces_and_says_so(tmp_path):
    path = tmp_path / "c"
    with rc.CacheWriter(path) as writer:
        writer.add({"joints": stream(1, 4)}, name="same")
    first = content(path)
    old = {p.name: p.read_bytes() for p in (path / "shards").iterdir()}
    manifest = (path / "manifest.json").read_bytes()
    with rc.CacheWriter(path) as writer:
        writer.add({"joints": stream(2, 4)}, name="same", replace=True)
    second = content(path)
    assert first != second
    for name, data in old.items():  # as if the commit had been interrupted before its line was written
        (path / "shards" / name).write_bytes(data)
    committed = (path / "manifest.json").read_bytes()
    (path / "manifest.json").write_bytes(manifest)
    report = repaired(path)
    assert report.dropped == ["same"]
    assert content(path) == second
    (path / "manifest.json").write_bytes(committed)  # as if it had been interrupted before the old shards were removed
    for name, data in old.items():
        (path / "shards" / name).write_bytes(data)
    report = repaired(path)
    assert report.dropped == []
    assert [move.file for move in report.moved] == [f"shards/{name}" for name in old]
    assert content(path) == second


def test_shards_of_a_replaced_version_do_not_come_back(tmp_path):
    """A crash after the commit of a new version, and before the shards of the old one are removed."""
    path = tmp_path / "c"
    source = tmp_path / "log"
    source.write_bytes(b"log")
    with rc.CacheWriter(path) as writer:
        writer.add(named(source, ["a"], 1))
    old = {p.name: p.read_bytes() for p in (path / "shards").iterdir()}
    source.write_bytes(b"another log")
    with rc.CacheWriter(path) as writer:
        writer.add(named(source, ["b"], 2))
    expected = content(path)
    assert set(expected) == {"b"}
    for name, data in old.items():
        (path / "shards" / name).write_bytes(data)
    assert repaired(path).dropped == []
    assert content(path) == expected


def move_back(path: Path) -> None:
    """Does what the reports of a writer say."""
    for report in path.glob("quarantine/*/report.txt"):
        assert "verify --repair" in report.read_text()
        for kept in (report.parent / "shards").iterdir():
            assert f"shards/{kept.name}" in report.read_text()
            kept.rename(path / "shards" / kept.name)


@pytest.mark.parametrize("moves_back", [False, True])
@pytest.mark.parametrize("harm", ["a flipped bit", "gone", "empty", "a line is gone"])
def test_a_writer_deletes_no_shard_that_a_damaged_journal_may_have_named(tmp_path, harm, moves_back):
    path = tmp_path / "c"
    make(path, keep_journal=True)
    expected = content(path)
    shards = {p.name: p.read_bytes() for p in (path / "shards").iterdir()}
    journal = next(p for p in path.iterdir() if p.name.startswith("journal."))
    if harm == "gone":
        journal.unlink()
    else:
        data = journal.read_bytes()
        lines = data.splitlines(keepends=True)
        harmed = {"a flipped bit": data[:-5] + bytes([data[-5] ^ 1]) + data[-4:], "empty": b""}
        journal.write_bytes(harmed.get(harm, b"".join(lines[:-1])))
    with pytest.warns(UserWarning, match=r"c: shards that no commit names were moved to quarantine/\w+: .*report.txt"):
        rc.CacheWriter(path).close()
    for name in ("later", "last"):  # by a writer that finds the shards in the quarantine, and by the next one
        if moves_back:  # and such a writer comes before the repair does
            move_back(path)
        with warnings.catch_warnings(action="ignore" if moves_back else "error"):
            writer = rc.CacheWriter(path)
        writer.add({"joints": stream(90, 4, channels=("a", "b"))}, name=name)
        writer.commit()
        writer._writer.abandon()  # the next writer finds a whole journal, which does not name these shards
    added = content(path)
    move_back(path)
    found = {p.name: p.read_bytes() for p in (path / "shards").iterdir()}
    assert shards.items() <= found.items()
    repaired(path)
    assert content(path) == expected | {name: added[name] for name in ("later", "last")}


def test_readers_are_told_of_shards_that_no_commit_names(tmp_path):
    path = tmp_path / "c"
    writer = rc.CacheWriter(path)
    for k in range(5):
        writer.add({"joints": stream(k, 4)}, name=f"e{k}")
        writer.commit()
    writer._writer.abandon()
    expected = content(path)
    os.truncate(next(path.glob("journal.*")), 0)
    with pytest.warns(UserWarning, match=r"c: no commit names 5 of its shards.*`robocache verify` says what"):
        assert len(rc.Cache(path).episodes) == 0
    with rc.CacheWriter(path), warnings.catch_warnings(action="error"):  # it may be about to name them
        rc.Cache(path)
    move_back(path)
    repaired(path)
    with warnings.catch_warnings(action="error"):
        assert content(path) == expected


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "an app", "icons": []}',
        '{"name": "my-plugin", "dependencies": {"robocache": "^1"}}',
        '{"robocache": {"format": "robocache"}, "format": "zip"}',
        '{"format": "robocache-plugin"}',
        "",
        "[1, 2]",
        None,
    ],
)
@pytest.mark.parametrize("shards", [False, True])
def test_other_peoples_folders_are_left_alone(tmp_path, text, shards):
    path = tmp_path / "app"
    path.mkdir()
    if text is not None:
        (path / "manifest.json").write_text(text)
    if shards:  # a name like ours, and another content
        (path / "shards").mkdir()
        (path / "shards" / "000000-weights.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    (path / "notes.txt").write_text("mine")
    before = state(path)
    calls = [
        rc.Cache,
        rc.CacheWriter,
        rc.verify_cache,
        lambda place: rc.verify_cache(place, repair=True),
        lambda place: rc.verify_cache(place, dry_run=True),
    ]
    for call in calls:
        with pytest.raises(rc.FileError) as caught:
            call(path)
        assert "repair" not in str(caught.value)
        assert state(path) == before
    assert "no cache" in str(caught.value)


@pytest.mark.parametrize("form", ["ours", "version 1", "torn"])
def test_an_empty_cache_with_a_damaged_manifest_is_ours(tmp_path, form):
    path = tmp_path / "c"
    rc.CacheWriter(path).close()
    text = (path / "manifest.json").read_text()
    text = version_1(json.loads(text)) if form == "version 1" else text
    (path / "manifest.json").write_text(text[:60] if form == "torn" else text.replace("next_group", "next_grouq"))
    for call in (rc.Cache, rc.CacheWriter):
        with pytest.raises(rc.FileError, match="verify --repair"):
            call(path)
    assert repaired(path).episodes == 0


def test_a_refused_call_leaves_no_lock(tmp_path):
    """Of a cache of ours that cannot be opened, too."""
    path = tmp_path / "c"
    make(path)
    (path / "lock").unlink()
    manifest = path / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"version": 2', '"version": 99'))
    before = state(path)
    for call in (rc.CacheWriter, lambda place: rc.verify_cache(place, repair=True)):
        with pytest.raises(rc.FileError, match="newer RoboCache"):
            call(path)
        assert state(path) == before
    manifest.write_text(text)
    rc.CacheWriter(path).close()
    assert (path / "lock").exists()


# ---- What is no file


@pytest.mark.parametrize("kind", ["link", "broken link", "fifo", "directory"])
@pytest.mark.parametrize("lost", [False, True], ids=["manifest", "no manifest"])
def test_what_is_no_file_is_never_opened(tmp_path, kind, lost):
    path = tmp_path / "c"
    make(path)
    target = next(p for p in sorted((path / "shards").iterdir()) if shard_of(p) == (0, "joints"))
    outside = tmp_path / "outside.safetensors"
    shutil.copy(target, outside)
    secret = outside.read_bytes()
    target.unlink()
    if kind == "directory":
        target.mkdir()
        (target / "inside").write_bytes(b"kept")
    elif kind == "fifo":
        os.mkfifo(target)
    else:
        target.symlink_to(outside if kind == "link" else tmp_path / "nowhere")
    if lost:
        (path / "manifest.json").unlink()
    report = rc.verify_cache(path)
    words = {"fifo": "is not a regular file", "directory": "is a directory"}.get(kind, "is a symbolic link")
    assert next(p.sentence for p in report.problems if p.file == f"shards/{target.name}").startswith(words)
    report = rc.verify_cache(path, repair=True)
    assert report.repaired
    moved = path / str(report.quarantine) / "shards" / target.name
    assert os.path.lexists(moved)
    assert not os.path.lexists(target)
    assert outside.read_bytes() == secret
    if kind == "directory":
        assert (moved / "inside").read_bytes() == b"kept"
    assert rc.verify_cache(path, repair=True).problems == []
    assert "e3" in content(path)


def test_a_quarantine_that_is_a_link_is_refused(tmp_path):
    path = tmp_path / "c"
    make(path)
    (tmp_path / "elsewhere").mkdir()
    (path / "quarantine").symlink_to(tmp_path / "elsewhere")
    next((path / "shards").iterdir()).write_bytes(b"short")
    before = state(path)
    with pytest.raises(rc.FileError, match="quarantine: is not a directory"):
        rc.verify_cache(path, repair=True)
    assert state(path) == before
    assert os.listdir(tmp_path / "elsewhere") == []


# ---- A manifest that was changed


def rename_channel(manifest):
    manifest["streams"][0]["channels"][0] = "other"


def change_task(manifest):
    manifest["episodes"][1]["task"] = "place"


def change_method(manifest):
    manifest["streams"][0]["method"] = [["hold", 0, 2]]


def change_start(manifest):
    manifest["episodes"][1]["start"] -= 10**9


CHANGES = [rename_channel, change_task, change_method, change_start]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_manifest_is_seen(tmp_path, change, version):
    path = tmp_path / "c"
    make(path)
    manifest = json.loads((path / "manifest.json").read_text())
    was = [(e.name, e.task, e.start, e.end) for e in rc.Cache(path).episodes]
    streams = {name: (info.channels, info.method) for name, info in rc.Cache(path).streams.items()}
    if version == 1:
        for shard in manifest["shards"]:
            shard.pop("header", None)
    (path / "manifest.json").write_text(version_1(manifest) if version == 1 else json.dumps(manifest))
    if version == 1:
        assert rc.verify_cache(path).problems == []
    change(manifest)
    (path / "manifest.json").write_text(version_1(manifest) if version == 1 else json.dumps(manifest, indent=1))
    report = rc.verify_cache(path)
    assert "manifest.json" in [problem.file for problem in report.problems]
    repaired(path)
    cache = rc.Cache(path)
    assert [(e.name, e.task, e.start, e.end) for e in cache.episodes] == was
    assert {name: (info.channels, info.method) for name, info in cache.streams.items()} == streams


# ---- The report


def test_the_report_says_how_to_undo_a_repair(tmp_path):
    path = tmp_path / "c"
    make(path)
    expected = content(path)
    before = state(path)
    target = next(p for p in sorted((path / "shards").iterdir()) if shard_of(p) == (0, "joints"))
    original = target.read_bytes()
    target.write_bytes(b"short")
    report = repaired(path)
    assert report.dropped
    folder = path / str(report.quarantine)
    told = (folder / "report.txt").read_text()
    assert re.search(r"on 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC", told)
    assert "Nothing was deleted" in told
    assert "To undo this repair" in told
    for file in [p for p in folder.rglob("*") if p.is_file() and p.name != "report.txt"]:  # as it says
        os.replace(file, path / file.relative_to(folder))
    target.write_bytes(original)
    shutil.rmtree(path / "quarantine")
    assert content(path) == expected
    assert state(path) == before


def test_verify_does_not_write(tmp_path):
    path = tmp_path / "c"
    make(path)
    next((path / "shards").iterdir()).write_bytes(b"short")
    (path / "lock").unlink()
    before = sorted(path.rglob("*"))
    assert rc.verify_cache(path).problems
    assert rc.verify_cache(path, dry_run=True).problems
    assert sorted(path.rglob("*")) == before


def test_a_writer_at_work(tmp_path):
    path = tmp_path / "c"
    make(path)
    with rc.CacheWriter(path):
        assert rc.verify_cache(path).problems == []
        for options in ({"repair": True}, {"dry_run": True}):
            with pytest.raises(rc.FileError, match="writer"):
                rc.verify_cache(path, **options)
