"""The malformed files of tests/fuzz/corpus, by the readers that are shipped: each is read, or gets a sentence."""

from __future__ import annotations

import struct
import sys
import warnings
from pathlib import Path

import pytest

import robocache as rc
from robocache import _core, mcap

sys.path.append(str(Path(__file__).parents[1] / "fuzz"))
import make_corpus

CASES = [(target, name) for target, cases in make_corpus.corpus().items() for name in cases]
CACHES = sorted((make_corpus.FOLDER / "cache").iterdir())


def said_of_mcap(path: Path) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(mcap.messages(path))
        list(mcap.records(path))
    return [str(one.message) for one in caught]


def said_of_messages(path: Path) -> list[str]:
    """As tests/fuzz/messages_fuzz.cpp reads them."""
    content, schema = path.read_bytes(), ("", "", b"", "json")
    if path.parent.name == "ros2":
        name, _, rest = content[1:].partition(b"\n")
        text, _, messages_of_it = rest.partition(b"\0")
        schema = (name.decode(), "ros2idl" if content[0] & 1 else "ros2msg", text, "cdr")
        content = messages_of_it
    decoder = _core.Decoder(*schema, "/topic")
    messages = []
    while len(content) >= 2:
        end = 2 + struct.unpack_from("<H", content)[0]
        messages.append((content[2:end], 0, 0))
        content = content[end:]
    _, sentence = decoder.add(messages)
    decoder.take()
    return [sentence] if sentence else []


def said_of_cloud(path: Path) -> list[str]:
    rc.read_cloud(path)
    return []


def said_of_image(path: Path) -> list[str]:
    rc.read_depth(path)
    return []


SHARD = "000000-a.safetensors"
READERS = {"mcap": said_of_mcap, "ros2": said_of_messages, "json": said_of_messages, "png": said_of_image}


def test_the_corpus_is_what_its_script_writes():
    for target, cases in make_corpus.corpus().items():
        files = {path.name: path.read_bytes() for path in (make_corpus.FOLDER / target).iterdir()}
        assert files == {name: content for name, (content, _) in cases.items()}, "run tests/fuzz/make_corpus.py"


@pytest.mark.parametrize(("target", "name"), CASES, ids=lambda word: word)
def test_malformed_files_get_a_sentence(target, name):
    _, sentence = make_corpus.corpus()[target][name]
    try:
        said = READERS.get(target, said_of_cloud)(make_corpus.FOLDER / target / name)
    except rc.FileError as error:
        said = [str(error)]
    assert any(sentence in text for text in said) or not sentence
    assert all(text.isprintable() and text.isascii() and len(text) < 1000 for text in said)


@pytest.mark.parametrize("path", CACHES, ids=lambda path: path.name)
def test_malformed_caches_get_a_sentence(tmp_path, path):
    """A manifest, or a shard that a cache without a whole manifest would be made of."""
    content = path.read_bytes()
    is_manifest = content.startswith(b"{")
    (tmp_path / "manifest.json").write_bytes(content if is_manifest else b"{")
    if not is_manifest:
        (tmp_path / "shards").mkdir()
        (tmp_path / "shards" / SHARD).write_bytes(content)
    with pytest.raises(rc.FileError, match=r"manifest\.json: "):
        rc.Cache(tmp_path)
    if path.name == "newer-version":
        with pytest.raises(rc.FileError, match="was written by a newer RoboCache"):
            rc.verify_cache(tmp_path)
        return
    if is_manifest and b"robocache" not in content[:256]:  # somebody else's manifest.json, and no shard: no cache
        with pytest.raises(rc.FileError, match=r"manifest\.json: "):
            rc.verify_cache(tmp_path, repair=True)
        assert (tmp_path / "manifest.json").read_bytes() == content
        return
    report = rc.verify_cache(tmp_path)
    assert not report.ok
    assert report.episodes == 0
    assert is_manifest or SHARD in str(report)
