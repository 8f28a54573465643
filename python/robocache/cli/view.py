"""`robocache view`: a recording or a cache in the Rerun viewer."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import robocache as rc
from robocache import _tables
from robocache._cache.build import progress
from robocache._cache.recipe import load_recipe
from robocache._recordings.open import is_cache
from robocache._recordings.words import counted
from robocache._view.show import Viewed, how_to_open
from robocache._view.sink import rerun


def main(
    path: str,
    *,
    rate: float,
    output: Path | None,
    episode: str,
    streams: Sequence[str] | None,
    recipe: Path | None,
    gap: float | None,
    most: int,
    time: str,
    msg_path: Sequence[Path] | None,
    as_json: bool,
) -> None:
    rerun()  # raises before a large recording is read
    opened = opened_with(path, recipe, time, msg_path)
    with progress("viewing", not as_json) as told:
        viewed = rc.view(
            opened,
            rate=rate,
            episode=int(episode) if episode.lstrip("-").isdecimal() else episode,
            streams=streams,
            gap=gap,
            most=most,
            output=output,
            progress=told,
        )
    tell(viewed, as_json)


def opened_with(path: str, recipe: Path | None, time: str, msg_path: Sequence[Path] | None) -> Any:
    if is_cache(Path(path)):
        if recipe is not None or time != "auto" or msg_path:
            raise ValueError(f"{path}: is a cache; --recipe, --time and --msg-path are for recordings")
        return rc.Cache(path)
    if recipe is None:
        return rc.open(path, time, msg_path=msg_path)
    parsed = load_recipe(recipe)
    given: dict[str, Any] = {} if time == "auto" else {"time": time}
    given |= {"msg_path": [str(folder.absolute()) for folder in msg_path]} if msg_path else {}
    parsed = dataclasses.replace(parsed, source=parsed.source | given)
    return parsed.apply(parsed.open(path))


def tell(viewed: Viewed, as_json: bool = False) -> None:
    """Prints the result, and how to open the file."""
    if as_json:
        found = {
            "path": None if viewed.path is None else str(viewed.path),
            "is_open": viewed.is_open,
            "samples": viewed.samples,
            "steps": viewed.steps,
            "notes": viewed.notes,
        }
        print(json.dumps(found, indent=2))
        return
    for note in viewed.notes:
        _tables.paragraph(f"Note: {note}")
    assert viewed.path is not None
    size = f"{viewed.path.stat().st_size / 2**20:,.1f} MiB"
    of = f"{counted(viewed.samples, 'sample')}, {counted(viewed.steps, 'step')}, {size}"
    _tables.paragraph(f"Wrote {viewed.path}: {of}.")
    said = "The viewer shows it" if viewed.is_open else f"To see it: {how_to_open(viewed.path)}"
    _tables.paragraph(f"{said}.")
