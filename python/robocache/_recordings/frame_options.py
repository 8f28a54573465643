"""FrameOptions: the options that make a cache's frames from a camera's pictures (`robocache build --frames`)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from robocache._recordings.words import missing

FITS = ("stretch", "cover", "contain")
FILTERS = ("bilinear", "box", "bicubic", "nearest")
KEEPS = ("both", "frames")
MOST_SIDE = 4096  # pixels
KEYS = ("size", "fit", "filter", "pad", "keep")


@dataclass(frozen=True)
class FrameOptions:
    """The options of `rc.image` that make a cache's frames, and whether the camera's own samples are kept."""

    height: int
    width: int
    fit: str = "stretch"
    filter: str | None = None  # None: bilinear, for depth nearest
    pad: int = 0
    keep: str = "both"  # the camera's own samples and the frames, or the frames alone

    def filter_of(self, is_depth: bool) -> str:
        return self.filter or ("nearest" if is_depth else "bilinear")

    def text(self, is_depth: bool) -> str:
        """The text that a cache stores: all options that change a pixel."""
        size = [self.height, self.width]
        return json.dumps({"size": size, "fit": self.fit, "filter": self.filter_of(is_depth), "pad": self.pad})

    def __str__(self) -> str:
        return f"{self.height} x {self.width}, {self.fit}"


def from_text(text: str) -> FrameOptions:
    """The options that `FrameOptions.text` has written."""
    options = json.loads(text)
    height, width = options["size"]
    return FrameOptions(height, width, options["fit"], options["filter"], options["pad"])


def size_of(where: str, height: int, width: int) -> tuple[int, int]:
    for side in (height, width):
        if not 1 <= side <= MOST_SIDE:
            raise ValueError(
                f"{where}: frames of {height} x {width} pixels; each side must be from 1 to {MOST_SIDE:,} pixels"
            )
    return height, width


def options_of(where: str, size: str, fit: str | None, keep: str | None) -> FrameOptions:
    """The options of a command: --frames 224x224 --fit cover --keep both. ValueError: one of them is wrong."""
    match = re.fullmatch(r"(\d{1,9})x(\d{1,9})", size.strip().lower())
    if match is None:
        raise ValueError(f'{where}: {size!r} is no size; write height x width, as "224x224"')
    height, width = size_of(where, int(match[1]), int(match[2]))
    return checked(where, FrameOptions(height, width, fit or "stretch", None, 0, keep or "both"))


def options_in(where: str, table: Any) -> FrameOptions | None:
    """The options of a recipe: frames = {size = [224, 224], fit = "cover"}. None: frames = false."""
    if table is False:
        return None
    if not isinstance(table, Mapping):
        raise ValueError(f'{where}: frames is {table!r}; expected {{size = [224, 224], fit = "cover"}}, or false')
    for key in table:
        if key not in KEYS:
            raise ValueError(missing(f"{where}: frames has no key", key, KEYS))
    size = table.get("size")
    if not (isinstance(size, list) and len(size) == 2 and all(type(side) is int for side in size)):
        raise ValueError(f"{where}: size is {size!r}; expected [height, width], as [224, 224]")
    height, width = size_of(where, *size)
    pad = table.get("pad", 0)
    if type(pad) is not int or not 0 <= pad <= 255:
        raise ValueError(f"{where}: pad is {pad!r}; expected a number from 0 to 255")
    made = (table.get("fit", "stretch"), table.get("filter"), pad, table.get("keep", "both"))
    return checked(where, FrameOptions(height, width, *made))


def checked(where: str, options: FrameOptions) -> FrameOptions:
    for name, value, known in (("fit", options.fit, FITS), ("keep", options.keep, KEEPS)):
        if value not in known:
            raise ValueError(f"{where}: {name} is {value!r}; expected {', '.join(known)}")
    if options.filter is not None and options.filter not in FILTERS:
        raise ValueError(f"{where}: filter is {options.filter!r}; expected {', '.join(FILTERS)}")
    return options
