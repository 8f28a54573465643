"""tools/fetch-data against a server on this machine: what it writes, what it skips, and what it refuses."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bench import data

TOOL = data.ROOT / "tools" / "fetch-data"
COMMIT = "0123456789" * 4
CONTENTS = {"clouds/a cloud.pcd": b"points", "depth/frame.png": bytes(range(256)) * 300}


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def mirror(tmp_path):
    """A server, the folder that it serves, and a manifest of the two files in it."""
    served = tmp_path / "served"
    rows = []
    for name, content in CONTENTS.items():
        path = served / "someone" / "things" / COMMIT / "upstream" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        rows.append([name, f"upstream/{name}", len(content), hashlib.sha256(content).hexdigest()])
    source = {"repository": "someone/things", "commit": COMMIT, "licence": "MIT", "lfs": False, "files": rows}
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps({"sources": [source]}))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(served))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", served, manifest
        server.shutdown()


def fetch(tmp_path: Path, url: str, manifest: Path, *patterns: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return subprocess.run(
        [sys.executable, TOOL, "--mirror", url, "--manifest", manifest, *patterns],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment | {"ROBOCACHE_DATA": str(tmp_path / "data")},
        check=False,
    )


def written(tmp_path: Path) -> dict[str, bytes]:
    root = tmp_path / "data"
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_files_are_fetched_once(tmp_path, mirror):
    url, _, manifest = mirror
    done = fetch(tmp_path, url, manifest)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{tmp_path}/data: 2 files fetched (0.1 MB), 0 were there, 0 failed\n"
    assert written(tmp_path) == CONTENTS
    assert "0 files fetched (0.0 MB), 2 were there, 0 failed" in fetch(tmp_path, url, manifest).stdout


def test_a_pattern_chooses(tmp_path, mirror):
    url, _, manifest = mirror
    assert fetch(tmp_path, url, manifest, "depth").returncode == 0
    assert list(written(tmp_path)) == ["depth/frame.png"]
    assert fetch(tmp_path, url, manifest, "*.pcd").returncode == 0
    assert written(tmp_path) == CONTENTS
    done = fetch(tmp_path, url, manifest, "*.bag")
    assert done.returncode == 2
    assert done.stderr == "fetch-data: no file matches *.bag; --list prints all\n"


@pytest.mark.parametrize("bad", [b"Points", b"point", b"points and more"])
def test_other_bytes_are_not_written(tmp_path, mirror, bad):
    url, served, manifest = mirror
    next(served.rglob("*.pcd")).write_bytes(bad)
    done = fetch(tmp_path, url, manifest)
    assert done.returncode == 1
    assert (
        "a%20cloud.pcd does not have the 6 bytes that tools/fetch-data.json lists; nothing was written" in done.stderr
    )
    assert "1 files fetched (0.1 MB), 0 were there, 1 failed" in done.stdout
    assert list(written(tmp_path)) == ["depth/frame.png"]


def test_a_file_with_other_bytes_is_left_as_it_is(tmp_path, mirror):
    url, _, manifest = mirror
    mine = tmp_path / "data" / "depth" / "frame.png"
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"mine")
    done = fetch(tmp_path, url, manifest)
    assert done.returncode == 1
    assert f"{mine} has other bytes than someone/things/{COMMIT}/upstream/depth/frame.png" in done.stderr
    assert mine.read_bytes() == b"mine"


def test_a_file_that_the_server_lacks(tmp_path, mirror):
    url, served, manifest = mirror
    next(served.rglob("*.pcd")).unlink()
    done = fetch(tmp_path, url, manifest)
    assert done.returncode == 1
    assert "HTTP Error 404" in done.stderr
    assert list(written(tmp_path)) == ["depth/frame.png"]


def test_from_a_folder(tmp_path, mirror):
    _, served, manifest = mirror
    assert fetch(tmp_path, served.as_uri(), manifest).returncode == 0
    assert written(tmp_path) == CONTENTS


def test_the_manifest_is_what_is_in_the_data():
    """Each name once, a full commit, and where the file is here, its bytes."""
    sources = json.loads((data.ROOT / "tools" / "fetch-data.json").read_text())["sources"]
    rows = [(source, *row) for source in sources for row in source["files"]]
    assert len({name for _, name, *_ in rows}) == len(rows)
    for source, name, path, size, sha256 in rows:
        assert len(source["commit"]) == 40
        assert int(source["commit"], 16)
        assert source["licence"] in ("MIT", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause")
        assert ".." not in name
        assert ".." not in path
        here = data.folder() / name
        if here.exists():
            assert here.stat().st_size == size, name
            assert hashlib.sha256(here.read_bytes()).hexdigest() == sha256, name


def test_the_data_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("ROBOCACHE_DATA", str(tmp_path))
    assert data.folder() == tmp_path
    for unset in (lambda: monkeypatch.setenv("ROBOCACHE_DATA", ""), lambda: monkeypatch.delenv("ROBOCACHE_DATA")):
        unset()
        assert data.folder() == data.ROOT.parent / "shared" / "data"
