"""State: the position of a loader, and fingerprints of the cache, spec and seed that it counts in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from robocache._loader.windows import MOST_WINDOWS, identity_of

if TYPE_CHECKING:
    from robocache._loader.loader import Loader

MEANINGS = {
    "version": "the version of the state",
    "cache": "the episodes of the cache and their windows",
    "spec": "the spec: keys, rate, selection or order",
    "seed": "the seed",
}


@dataclass(frozen=True)
class State:
    """A loader's state: the next global position, and fingerprints of the windows that positions number."""

    position: int
    cache: str
    spec: str
    seed: int
    version: int = 1

    @staticmethod
    def of(loader: Loader, position: int) -> State:
        return State(position, cache_fingerprint(loader), spec_fingerprint(loader), loader.seed)

    @staticmethod
    def from_json(state: Any) -> State:
        if not isinstance(state, Mapping):
            raise TypeError(f"Loader: the state is {type(state).__name__}; expected what state_dict() returned")
        names = set(State.__dataclass_fields__)
        if set(state) != names:
            differs = ", ".join(sorted(set(state) ^ names))
            raise ValueError(f"Loader: the state is no state of a loader: it differs in {differs}")
        position_in("Loader", state)
        return State(**state)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def checked(self, loader: Loader) -> int:
        """The position, if the state is of this loader's cache, spec and seed."""
        mine = State.of(loader, self.position)
        differs = [name for name in MEANINGS if getattr(self, name) != getattr(mine, name)]
        if differs:
            said = "; ".join(
                f"{MEANINGS[name]} ({getattr(self, name)} in the state, {getattr(mine, name)} here)" for name in differs
            )
            raise ValueError(f"Loader: the state is of another loader. What differs: {said}")
        return self.position


def position_in(where: str, state: Mapping[str, Any]) -> int:
    """The position of a state, checked."""
    position = state["position"]
    if isinstance(position, bool) or not isinstance(position, int) or not 0 <= position < MOST_WINDOWS:
        raise ValueError(f"{where}: the state's position is {position!r}; expected an int from 0 on")
    return position


def cache_fingerprint(loader: Loader) -> str:
    """A hash of the episodes and their windows. It does not depend on where the cache lies."""
    if loader._known_cache is None:
        windows, digest = loader.windows, hashlib.blake2b(digest_size=8)
        for number in windows.episodes.tolist():
            digest.update(identity_of(loader.cache.episodes[number]).encode("utf-8", "surrogateescape") + b"\n")
        for array in (windows.starts, windows._ends, windows._first):
            digest.update(np.ascontiguousarray(array, "<i8").tobytes())
        if windows._steps is not None:
            digest.update(np.ascontiguousarray(windows._steps, "<i8").tobytes())
        loader._known_cache = digest.hexdigest()
    return loader._known_cache


def spec_fingerprint(loader: Loader) -> str:
    """A hash of everything that a window's tensors depend on. Batch size, world and placement are not part of it."""
    if loader._known_spec is None:
        spec = loader.spec()
        part = {name: spec[name] for name in ("format", "version", "semantics", "rate", "keys", "order", "weights")}
        text = json.dumps(part, sort_keys=True, separators=(",", ":"))
        loader._known_spec = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return loader._known_spec
