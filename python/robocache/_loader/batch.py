"""One batch of a loader: from the windows of its rows to its tensors."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from robocache import _core
from robocache._cache.values import keep
from robocache._loader.engine import Rows
from robocache._loader.entries import Entry
from robocache._loader.memory import is_out_of_memory

if TYPE_CHECKING:
    from robocache._loader.loader import Loader

Batch = dict[str, Any]


def made(
    loader: Loader,
    rows: Rows,
    positions: NDArray[np.int64],
    row_valid: NDArray[np.bool_] | None,
    draws: bool,
    names: Sequence[str],
) -> Batch:
    """The batch of any rows. If the GPU's memory is full, the samples leave it, and the batch is made again."""
    try:
        return computed(loader, rows, positions, row_valid, draws, names)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error) or not loader._engine.make_room():
            raise
    return computed(loader, rows, positions, row_valid, draws, names)


def computed(
    loader: Loader,
    rows: Rows,
    positions: NDArray[np.int64],
    row_valid: NDArray[np.bool_] | None,
    draws: bool,
    names: Sequence[str],
) -> Batch:
    engine, entries = loader._engine, loader._entries
    drawn = functools.partial(_core.draws, loader.seed, positions) if draws else None
    aligned = engine.align(rows, drawn)
    raws = {name: entry.raw(aligned) for name, entry in entries.items() if isinstance(entry, Entry)}
    batch: Batch = {}
    for name in names:
        entry = entries[name]
        if not isinstance(entry, Entry):
            found = aligned[entry.member.name]
            batch[name] = entry.made(found, rows, engine, drawn)
            batch[f"{name}.valid"], batch[f"{name}.age"] = found.valid, found.age
        else:
            raw, values = loader._transformed(entry, raws)
            batch[name] = entry.finished(values, raw)
            batch[f"{name}.valid"], batch[f"{name}.age"] = raw.valid, raw.age
    task = loader._tasks.at(rows)
    said: dict[str, NDArray[Any]] = {
        "episode": rows.number,
        "time": rows.anchor,
        "position": positions,
        "task_index": task,
    }
    if row_valid is not None:
        said["row_valid"] = row_valid
    if loader._tokens is not None:
        tokens, valid = loader._tokens
        said["task_tokens"], said["task_tokens.valid"] = tokens[task], valid[task] & (task >= 0)[:, None]
    batch |= said if engine.move is keep else {name: engine.move(array) for name, array in said.items()}
    return loader.placement.finished(batch)
