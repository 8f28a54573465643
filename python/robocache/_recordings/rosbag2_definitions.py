"""Message definitions for bags without them: from `msg_path`, otherwise from the rosbags package."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robocache._core import FileError


class Definitions:
    """ros2msg texts by type: from folders of .msg files, otherwise from the rosbags package."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = list(folders)
        for folder in self.folders:
            if not folder.is_dir():
                raise FileError(f"{folder}: msg_path must name a folder with .msg files, and this is not one")
        self.used: dict[Path, str] = {}  # the files that were used, and their text
        self._store: Any = None
        self._files: dict[str, Path] | None = None

    def digest(self) -> str:
        """A digest of the .msg files that were used; "" if none was."""
        told = json.dumps(sorted(self.used.values()))
        return hashlib.sha256(told.encode()).hexdigest()[:16] if self.used else ""

    def find(self, kind: str) -> str | None:
        """The definition of "package/msg/Name" with those of its fields' types; None if it is not known."""
        own = self._own(kind)
        return own if own is not None else self._stored(kind)

    def _own(self, kind: str) -> str | None:
        if self._files is None:
            files: dict[str, Path] = {}
            for folder in self.folders:
                for path in sorted(folder.rglob("*.msg")):
                    package = path.parent.parent.name if path.parent.name == "msg" else path.parent.name
                    files.setdefault(f"{package}/{path.stem}", path)
            self._files = files
        short = shortened(kind)
        if short not in self._files:
            return None
        texts: dict[str, str] = {}
        wanted = [short]
        while wanted:
            name = wanted.pop(0)
            if name in texts:
                continue
            text = self._text(name)
            if text is None:
                return None
            texts[name] = text
            wanted += inner_types(name, text)
        return f"\n{'=' * 80}\n".join(text if name == short else f"MSG: {name}\n{text}" for name, text in texts.items())

    def _text(self, short: str) -> str | None:
        assert self._files is not None
        if short in self._files:
            path = self._files[short]
            self.used[path] = path.read_text(encoding="utf-8", errors="replace")
            return self.used[path]
        stored = self._stored(short.replace("/", "/msg/"))
        return None if stored is None else stored.split("=" * 80)[0]

    def _stored(self, kind: str) -> str | None:
        try:
            from rosbags.typesys import Stores, get_typestore
        except ModuleNotFoundError:
            return None
        if self._store is None:
            self._store = get_typestore(Stores.LATEST)
        if kind not in self._store.fielddefs:
            return None
        return str(self._store.generate_msgdef(kind, ros_version=2)[0])


def shortened(kind: str) -> str:
    """ "sensor_msgs/msg/Imu" -> "sensor_msgs/Imu"."""
    parts = kind.split("/")
    return f"{parts[0]}/{parts[-1]}"


PRIMITIVES = {
    *("bool", "byte", "char", "float32", "float64", "string", "wstring"),
    *(f"{sign}int{n}" for sign in ("", "u") for n in (8, 16, 32, 64)),
}


def inner_types(name: str, text: str) -> list[str]:
    """The types of a definition's fields."""
    found = []
    for line in text.splitlines():
        words = line.split("#")[0].split()
        if len(words) < 2 or "=" in words[1][:1] or words[0].startswith("MSG:"):
            continue
        base = words[0].split("[")[0].split("<")[0]
        if base in PRIMITIVES or not base:
            continue
        if base == "Header":
            base = "std_msgs/Header"
        found.append(shortened(base) if "/" in base else f"{name.split('/')[0]}/{base}")
    return found
