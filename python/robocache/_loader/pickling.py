"""Pickling: a loader is pickled without its samples, and opens its cache again in the other process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from robocache._loader.buffer_ring import BufferRing
from robocache._loader.state import cache_fingerprint

if TYPE_CHECKING:
    from robocache._loader.loader import Loader

NOT_PICKLED = ("_engine", "_compared", "_passes")  # samples, and attributes that belong to one process


def parts(loader: Loader) -> dict[str, Any]:
    """The attributes that are pickled. Statistics and tokens are among them, so that they are not computed again."""
    cache_fingerprint(loader)
    kept = {name: value for name, value in vars(loader).items() if name not in NOT_PICKLED}
    kept["_reuse"] = None if loader._reuse is None else BufferRing(loader._reuse.count)
    return kept | {"_backend": loader._engine.backend}


def restore(loader: Loader, kept: dict[str, Any]) -> None:
    """Makes the loader again; raises if its cache has other episodes now."""
    backend = kept.pop("_backend")
    vars(loader).update(kept)
    loader._compared, loader._passes = False, None
    before, loader._known_cache = loader._known_cache, None
    episodes = len(loader.cache.episodes)
    lost = [number for number in loader.windows.episodes.tolist() if number >= episodes]
    if lost or cache_fingerprint(loader) != before:
        raise ValueError(
            f"Loader: {loader.cache.path} has other episodes than when the loader was pickled; make the loader again"
        )
    loader._engine = loader._make_engine(backend)
