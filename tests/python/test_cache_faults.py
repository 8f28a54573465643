"""Whatever happens to a build, nothing that was committed is lost, and the next build finishes it."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from cache_cases import check_episode, episode, streams_of
from shims import shim_of

import robocache as rc

HERE = Path(__file__).parent


@pytest.fixture
def folder(tmp_path):
    """In memory where there is such a place: the builds sync to the disk some 10,000 times."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or shutil.disk_usage(memory).free < 64 << 20:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory, prefix="robocache-test-") as place:
        yield Path(place)


def run(*arguments, **environment):
    done = subprocess.run(
        [sys.executable, str(HERE / "cache_faults.py"), *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **environment},
    )
    assert done.returncode == 0, done.stderr
    return [int(number) for number in re.findall(r"\d+", done.stdout)]


def test_kill_at_200_moments(folder):
    kills, finished = run("kill", folder, 200)
    assert kills >= 200
    assert finished > 5


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    return shim_of("faults", tmp_path_factory.mktemp("shim"))


@pytest.mark.parametrize(
    ("error", "sticky"),
    [(errno.ENOSPC, 1), (errno.ENOSPC, 0), (errno.EIO, 0), (0, 0)],
    ids=["full disk", "full for a moment", "input/output error", "short writes"],
)
def test_every_call_fails_once(folder, shim, error, sticky):
    calls, failures = run("disk", folder, error, sticky, LD_PRELOAD=str(shim))
    assert calls > 30
    assert failures > 30 or error == 0


@pytest.mark.parametrize("lost", [0, 1, 2], ids=["nothing lost", "all of it lost", "stamps lost"])
@pytest.mark.parametrize("jumbled", [0, 1], ids=["in order", "sorted"])
def test_a_sync_that_failed_is_not_tried_again_on_the_same_file(folder, shim, lost, jumbled):
    written, refused = run("sync", folder, lost, jumbled, LD_PRELOAD=str(shim))
    assert (written, refused) == ((3, 0) if not lost and not jumbled else (0, 3))  # a shard of each stream


@pytest.mark.parametrize("when", ["full", "widen"])
def test_what_is_written_anew_leaves_nothing_where_it_fails(folder, shim, when):
    (calls,) = run(when, folder, LD_PRELOAD=str(shim))
    assert calls > 3


def test_a_writer_goes_on_after_a_failure(folder, shim):
    run("close", folder, LD_PRELOAD=str(shim))


def test_a_writer_that_comes_while_another_commits_is_seen(folder, shim):
    run("fence", folder, LD_PRELOAD=str(shim))


def test_no_permission(tmp_path):
    path = tmp_path / "c"
    with rc.CacheWriter(path) as writer:
        writer.add(streams_of(episode(0)))
    check_episode(rc.Cache(path).episodes[0], episode(0))
    closed = path / "closed"
    closed.mkdir()
    is_root = os.geteuid() == 0  # whom no mode stops
    for folder in (tmp_path, *tmp_path.parents):  # pytest closes some of them; xdist has one more
        if folder == Path(tempfile.gettempdir()):
            break
        os.chmod(folder, 0o755)
    try:
        os.chmod(path, 0o555)
        os.chmod(path / "lock", 0o444)
        if is_root:
            os.seteuid(65534)
        with pytest.raises(rc.FileError, match="lock: cannot be made: Permission denied"):
            rc.CacheWriter(path)
        with pytest.raises(rc.FileError, match="closed/new: the directory cannot be made: Permission denied"):
            rc.CacheWriter(closed / "new")
        check_episode(rc.Cache(path).episodes[0], episode(0))  # reading needs none of it
        assert rc.verify_cache(path).problems == []
        with pytest.raises(rc.FileError, match="Permission denied"):
            rc.verify_cache(path, repair=True)
    finally:
        if is_root:
            os.seteuid(0)
        os.chmod(path, 0o755)
    os.chmod(path / "manifest.json", 0)
    try:
        if is_root:
            os.seteuid(65534)
        with pytest.raises(rc.FileError, match=r"manifest.json: cannot be opened: Permission denied"):
            rc.Cache(path)
    finally:
        if is_root:
            os.seteuid(0)
