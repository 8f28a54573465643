"""Ranks: which part of each global batch this process gets, and the check that all ranks load the same data."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from robocache._limits import SIZE_LIMIT
from robocache._loader.keys import whole_number

if TYPE_CHECKING:
    from robocache._loader.loader import Loader
    from robocache._loader.mixture import Mixture

MOST_RANKS = 2**20


def process_group() -> Any:
    """torch.distributed if the process is in a group. Does not import torch."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed


def resolved(rank: int | None, world: int | None) -> tuple[int, int]:
    """Rank and world: as given, otherwise from torch.distributed, from the environment, or 0 of 1."""
    if (rank is None) != (world is None):
        raise ValueError("Loader: give rank and world together, or neither")
    if rank is None or world is None:
        rank, world = detected()
    rank, world = (whole_number(name, given, -SIZE_LIMIT) for name, given in (("rank", rank), ("world", world)))
    if not 1 <= world <= MOST_RANKS:
        raise ValueError(f"Loader: world is {world}; expected from 1 to {MOST_RANKS:,} ranks")
    if not 0 <= rank < world:
        raise ValueError(f"Loader: rank is {rank}, outside of a world of {world}; expected from 0 to {world - 1}")
    return rank, world


def detected() -> tuple[int, int]:
    group = process_group()
    if group is not None:
        return int(group.get_rank()), int(group.get_world_size())
    said = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if said[0] is None or said[1] is None:
        return 0, 1
    try:
        return int(said[0]), int(said[1])
    except ValueError:
        raise ValueError(
            f"Loader: the environment has RANK={said[0]!r} and WORLD_SIZE={said[1]!r}; expected numbers, or give rank "
            "and world"
        ) from None


def compare(loader: Loader | Mixture) -> None:
    """Raises if the ranks of a process group would load different data. Costs one small exchange, once."""
    group = process_group()
    if group is None or loader.world == 1 or loader.world != group.get_world_size() or loader._compared:
        return
    mine = loader.state_dict()
    states: list[Any] = [None] * loader.world
    group.all_gather_object(states, mine)
    for other, theirs in enumerate(states):
        differs = [name for name in mine if theirs.get(name) != mine[name]]
        if differs:
            said = ", ".join(f"{name} ({mine[name]} and {theirs.get(name)})" for name in differs)
            raise ValueError(
                f"Loader: rank {loader.rank} and rank {other} differ in {said}; give all ranks the same cache, keys, "
                "seed and state"
            )
    loader._compared = True
