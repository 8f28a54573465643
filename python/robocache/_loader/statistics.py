"""Statistics that a loader normalises with, for keys without statistics of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from robocache._loader.entries import Entry
from robocache._loader.normalize import NEEDED, Normalizer
from robocache._loader.pictures import Picture
from robocache._loader.window_statistics import of_windows
from robocache._loader.windows import split_of
from robocache._recordings.words import counted, named

if TYPE_CHECKING:
    from robocache._loader.loader import Loader


def normalizer_of(loader: Loader, entry: Entry, split: str | None) -> Normalizer:
    """The normaliser of a key, from its own statistics, otherwise from those of the training episodes."""
    key = entry.key
    given: Any = key.stats
    if given is None:
        changed = key.relative is not None or bool(entry.quaternions)
        given = of_windows(loader, entry, split) if changed else of_streams(loader, entry, split)
    return Normalizer(key.normalize, given, convention=key.convention, channels=entry.width, key=entry.name)


def picture_statistics(loader: Loader, entry: Picture, split: str | None) -> dict[str, Any]:
    """The statistics that a camera is normalised with: its key's, otherwise those of the training episodes.

    They are of colours from 0 to 1.
    """
    key, member = entry.key, entry.member
    if key.stats is not None:
        return {name: key.stats[name] for name in NEEDED["mean_std"] if name in key.stats}
    with named(f'Loader: key "{entry.name}"'):
        found = loader.cache.statistics(str(member.camera), training(loader, split, [member.stored]), quantiles=())
    return {"mean": np.ravel(found.mean) / entry.white, "std": np.ravel(found.std) / entry.white}


def training(loader: Loader, split: str | None, stored: Sequence[str]) -> list[int]:
    """The episodes that statistics are computed from: the loader's; for split="val" the train episodes of the call."""
    numbers: list[int] = loader.windows.episodes.tolist()
    if split == "val":
        episodes = [loader.cache.episodes[number] for number in loader._numbers_of_all_splits]
        numbers = [episode.index for episode in episodes if split_of(episode) == "train"] or numbers
    return [n for n in numbers if any(name in loader.cache.episodes[n]._entries for name in stored)] or numbers


def of_streams(loader: Loader, entry: Entry, split: str | None) -> dict[str, NDArray[np.float64]]:
    """The cache's statistics of the key's streams, their channels side by side."""
    stored = [member.stored for member in entry.members]
    episodes = training(loader, split, stored)
    quantiles = (0.01, 0.99) if entry.key.normalize == "quantiles" else ()
    parts = [loader.cache.statistics(name, episodes, quantiles=quantiles) for name in stored]
    for member, part in zip(entry.members, parts, strict=True):
        for k in np.flatnonzero(np.ravel(part.count) == 0):
            name = f' ("{member.info.channels[k]}")' if member.info.channels else ""
            raise ValueError(
                f'Loader: key "{entry.name}": channel {k}{name} of stream "{member.stored}" has no finite value in the '
                f"{counted(len(episodes), 'training episode')}, so it has no statistics; give stats=, or "
                'normalize="identity"'
            )
    sides = {"mean": "mean", "std": "std", "min": "min", "max": "max"}
    found = {name: np.concatenate([np.ravel(getattr(p, side)) for p in parts]) for name, side in sides.items()}
    for name, q in (("q01", 0.01), ("q99", 0.99)) if quantiles else ():
        found[name] = np.concatenate([np.ravel(p.quantile(q)) for p in parts])
    return {name: values.astype(np.float64) for name, values in found.items()}
