"""What a folder may look like after a crash, computed from a log of record.c.

The model is POSIX with no help from the file system, as ALICE (OSDI '14) and CrashMonkey (OSDI '18) have it:

- The data of a file (writes, changes of its size) is on the disk for certain only after an fsync of that file.
- A name (created, renamed, linked, removed) is on the disk for certain only after an fsync of the directory that holds
  it. An fsync of a new file does not keep its name, though ext4 does so.
- Whatever was not synced may be on the disk or not, each call on its own, whatever order the calls had. A write may be
  cut short, and a file may have its new size with zeros in it.
- A rename is atomic: the new name is there and the old one gone, or neither. It is on the disk once the directory of
  the new name is synced.
- What was there when the recording began is on the disk.

A crash happens between two calls (`at`: how many calls came before). `choices()` lists the subsets of the unsynced
calls that survive: all, none, all but one, only one, data without names, names without data, the last write cut short,
zeros instead of data, and random ones from a seed. `ignored` names fsyncs that are taken for not made: a test drops
each of them in turn, and some state must then break.
"""

from __future__ import annotations

import hashlib
import random
import re
import shutil
import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

FRAMES = 4
RECORD = struct.Struct(f"<8sQq3Q{FRAMES}Q")

Tree = dict[str, bytes | None]  # relative path -> content; None: a directory


class Node:
    """A file or a directory, whatever its names are."""

    def __init__(self, *, is_directory: bool, content: bytes = b"") -> None:
        self.is_directory = is_directory
        self.content = content  # at the beginning
        self.entries: dict[str, Node] = {}  # at the beginning


class Call(NamedTuple):
    kind: str  # "data", "names", "fsync", "mark"
    node: Node | None  # of data and fsync; of names: the directory whose fsync keeps the change
    offset: int = 0
    data: bytes | None = None  # of data; None: the size becomes `offset`
    changes: tuple[tuple[Node, str, Node | None], ...] = ()  # of names: directory, name, what it names from now on
    text: str = ""  # of a mark; else the path
    site: str = ""  # of an fsync: what it is for, and where the program calls it


class Choice(NamedTuple):
    """What a crash leaves of the unsynced calls."""

    kept: frozenset[int]  # calls
    cut: int = -1  # this write is only half there
    zeros: frozenset[int] = frozenset()  # of these writes only the size is there


Piece = tuple[int, bool, bool]  # a call that wrote to a file; whether half of it is there; whether as zeros
State = frozenset[tuple[str, Node, tuple[Piece, ...]]]  # path, what is there, what was written to it


class Log:
    def __init__(self, root: Path, before: Tree, inodes: dict[int, str], log: Path) -> None:
        """`before`: the folder `root` when the recording began, and which inode each path had (see `snapshot`)."""
        self.root = str(root)
        self.top = Node(is_directory=True)
        for path in sorted(before):
            self._make(path, before[path])
        self._live: dict[Node, dict[str, Node]] = {}  # entries as the program sees them
        self._by_inode = {inode: self._find_start(path) for inode, path in inodes.items()}
        self.calls = list(self._parse(log.read_bytes()))

    # ---- Reading the log

    def _make(self, path: str, content: bytes | None) -> None:
        parent, _, name = path.rpartition("/")
        self._find_start(parent).entries[name] = Node(is_directory=content is None, content=content or b"")

    def _find_start(self, path: str) -> Node:
        node = self.top
        for name in path.split("/") if path else []:
            node = node.entries[name]
        return node

    def _entries(self, node: Node) -> dict[str, Node]:
        return self._live.setdefault(node, dict(node.entries))

    def _place(self, path: str) -> tuple[Node, str]:
        relative = path[len(self.root) :].strip("/")
        node = self.top
        *folders, name = relative.split("/")
        for folder in folders:
            node = self._entries(node)[folder]
        return node, name

    def _parse(self, raw: bytes) -> Iterator[Call]:
        at = 0
        while at < len(raw):
            kind, inode, offset, *sizes = RECORD.unpack_from(raw, at)[:6]
            stack = RECORD.unpack_from(raw, at)[6:]
            at += RECORD.size
            parts = []
            for size in sizes:
                parts.append(raw[at : at + size])
                at += size
            path, other, data = parts[0].decode(), parts[1].decode(), parts[2]
            call = self._call(kind.rstrip(b"\0").decode(), inode, offset, path, other, data, stack)
            for directory, name, node in call.changes:
                if node is None:
                    self._entries(directory).pop(name, None)
                else:
                    self._entries(directory)[name] = node
            yield call

    def _call(
        self, kind: str, inode: int, offset: int, path: str, other: str, data: bytes, stack: tuple[int, ...]
    ) -> Call:
        if kind == "mark":
            return Call("mark", None, text=path)
        if kind in ("write", "resize"):
            return Call("data", self._by_inode[inode], offset, data if kind == "write" else None, text=path)
        if kind == "fsync":
            name = path[len(self.root) :].strip("/") or "."
            name = re.sub(r"part-[^/]+|\b[0-9a-f]{8,}\b|\d+", "#", name)  # as in any other run
            where = hashlib.md5(repr(stack).encode()).hexdigest()[:4]
            return Call("fsync", self._by_inode[inode], text=path, site=f"{name} [{where}]")
        directory, name = self._place(path)
        if kind in ("create", "mkdir"):
            node = self._by_inode[inode] = Node(is_directory=kind == "mkdir")
            return Call("names", directory, changes=((directory, name, node),), text=path)
        if kind == "unlink":
            return Call("names", directory, changes=((directory, name, None),), text=path)
        target, called = self._place(other)
        node = self._entries(directory)[name]
        changes: tuple[tuple[Node, str, Node | None], ...] = ((target, called, node),)
        if kind == "rename":
            changes += ((directory, name, None),)
        return Call("names", target, changes=changes, text=f"{path} -> {other}")

    # ---- States

    @property
    def sites(self) -> dict[str, frozenset[int]]:
        """The fsyncs, by call site."""
        found: dict[str, set[int]] = {}
        for k, call in enumerate(self.calls):
            if call.kind == "fsync":
                found.setdefault(call.site, set()).add(k)
        return {site: frozenset(calls) for site, calls in found.items()}

    def marks(self, at: int) -> list[str]:
        return [call.text for call in self.calls[:at] if call.kind == "mark"]

    def moments(self, *, is_thorough: bool) -> list[int]:
        """When to crash: after every call; else not between two writes to one file."""
        last = len(self.calls)
        kinds = [(call.kind, call.node) if call.kind == "data" else k for k, call in enumerate(self.calls)]
        return [at for at in range(last + 1) if is_thorough or at in (0, last) or kinds[at - 1] != kinds[at]]

    def unsynced(self, at: int, ignored: Collection[int] = ()) -> list[int]:
        """The calls before `at` that no fsync has put on the disk."""
        synced: dict[Node | None, int] = {}
        for k in range(at):
            if self.calls[k].kind == "fsync" and k not in ignored:
                synced[self.calls[k].node] = k
        changes = (k for k in range(at) if self.calls[k].kind in ("data", "names"))
        return [k for k in changes if k > synced.get(self.calls[k].node, -1)]

    def choices(self, at: int, ignored: Collection[int], rng: random.Random, count: int) -> Iterator[Choice]:
        """`count`: how many calls (the last, and some others) are lost or kept alone; half as many random subsets."""
        pending = self.unsynced(at, ignored)
        everything = frozenset(pending)
        data = frozenset(k for k in pending if self.calls[k].kind == "data")
        writes = [k for k in pending if self.calls[k].data is not None]
        yield Choice(frozenset())
        yield Choice(everything)
        if not pending:
            return
        yield Choice(everything - data)
        yield Choice(data)
        if writes:
            yield Choice(everything, cut=writes[-1])
            yield Choice(everything, zeros=frozenset(writes))
        late, early = pending[-(count // 2) :], pending[: -(count // 2)]
        for k in late + rng.sample(early, min(count // 2, len(early))):
            yield Choice(everything - {k})
            yield Choice(frozenset({k}))
        for _ in range(count // 2):
            share = rng.random()
            kept = frozenset(k for k in pending if rng.random() < share)
            yield Choice(kept, zeros=frozenset(k for k in writes if rng.random() < 0.2))

    def state(self, at: int, choice: Choice, ignored: Collection[int] = ()) -> State:
        """What a crash leaves, without its bytes: cheap to make and to compare."""
        lost = set(self.unsynced(at, ignored)) - choice.kept
        data: dict[Node, list[Piece]] = {}
        entries: dict[Node, dict[str, Node]] = {}
        for k in range(at):
            call = self.calls[k]
            if k in lost:
                continue
            if call.kind == "names":
                for directory, name, node in call.changes:
                    names = entries.setdefault(directory, dict(directory.entries))
                    if node is None:
                        names.pop(name, None)
                    else:
                        names[name] = node
            elif call.kind == "data":
                assert call.node is not None
                data.setdefault(call.node, []).append((k, k == choice.cut, k in choice.zeros))
        found: dict[str, tuple[Node, tuple[Piece, ...]]] = {}

        def walk(node: Node, path: str) -> None:
            for name, entry in entries.get(node, node.entries).items():
                where = f"{path}/{name}".lstrip("/")
                found[where] = entry, tuple(data.get(entry, ()))
                if entry.is_directory:
                    walk(entry, where)

        walk(self.top, "")
        return frozenset((path, *entry) for path, entry in found.items())

    def tree(self, state: State) -> Tree:
        return {path: None if node.is_directory else self._content(node, data) for path, node, data in state}

    def _content(self, node: Node, data: tuple[Piece, ...]) -> bytes:
        content = bytearray(node.content)
        for k, is_cut, is_zeros in data:
            call = self.calls[k]
            if call.data is None:
                del content[call.offset :]
                content.extend(bytes(call.offset - len(content)))
                continue
            bytes_written = call.data[: (len(call.data) + 1) // 2] if is_cut else call.data
            end = call.offset + len(bytes_written)
            content.extend(bytes(max(end - len(content), 0)))
            if not is_zeros:
                content[call.offset : end] = bytes_written
        return bytes(content)


def snapshot(root: Path) -> tuple[Tree, dict[int, str]]:
    """A folder's content, and which inode each path has."""
    tree: Tree = {}
    inodes = {root.stat().st_ino: ""}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        tree[name] = None if path.is_dir() else path.read_bytes()
        inodes[path.stat().st_ino] = name
    return tree, inodes


def lay_out(tree: Tree, root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for path in sorted(tree):
        content = tree[path]
        if content is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(content)
