"""Tasks of episodes, as numbers and as tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from robocache import _core

if TYPE_CHECKING:
    from robocache._cache.cache import Cache
    from robocache._loader.engine import Rows

Integers = NDArray[np.int64]
TEXTS = "tasks"  # the entry of a stream's metadata that has {number: text}, if an episode has several tasks
NEVER = np.iinfo(np.int64).max  # the time of a change that does not come


class Tasks:
    """The tasks of a loader's windows.

    An episode has no task, or one. If it has several, one of its streams says at each time which one it is.

    Attributes:
        texts: The distinct tasks, in the order of the episodes.
        of_episodes: The numbers of each episode's tasks.
    """

    def __init__(self, cache: Cache, numbers: Sequence[int]) -> None:
        self._cache, self._numbers = cache, list(numbers)
        self._streams = [name for name, info in cache._stored.items() if TEXTS in info.metadata]
        known: dict[str, int] = {}
        self.of_episodes: list[list[int]] = []
        # By the place of an episode with several tasks: the stream that says which, and the task of each number in it.
        self._several: dict[int, tuple[str, dict[int, int]]] = {}
        for place, number in enumerate(self._numbers):
            episode = cache.episodes[number]
            texts = [] if episode.task is None else [episode.task]
            for name in self._streams:
                said = episode._info(name).metadata.get(TEXTS) if name in episode._entries else None
                if said:
                    by_number = {int(each): str(text) for each, text in json.loads(said).items()}
                    texts = list(by_number.values())
                    self._several[place] = name, {n: known.setdefault(t, len(known)) for n, t in by_number.items()}
            self.of_episodes.append([known.setdefault(text, len(known)) for text in texts])
        self.texts = list(known)
        self._one = np.asarray([each[0] if each else -1 for each in self.of_episodes], np.int64)
        self._is_several = np.zeros(len(self._one), bool)
        self._is_several[list(self._several)] = True
        self._changes: tuple[Integers, Integers] | None = None

    def at(self, rows: Rows) -> Integers:
        """The task of each window, as it was known at the anchor; -1: it has none."""
        found = self._one.take(rows.place)
        if self._several:
            if self._changes is None:
                self._changes = self._all_changes()
            times, tasks = self._changes
            several = np.flatnonzero(self._is_several[rows.place])
            place = rows.place[several]
            latest = (times[place] <= rows.anchor[several, None]).sum(axis=1)
            found[several] = tasks[place, latest]
        return found

    def _all_changes(self) -> tuple[Integers, Integers]:
        """[E, R]: when the task of each episode changes. [E, R + 1]: the task before and after each change."""
        found = {place: self._changes_of(place, *told) for place, told in self._several.items()}
        most = max(len(times) for times, _ in found.values())
        times = np.full((len(self._one), most), NEVER)
        tasks = np.full((len(self._one), most + 1), -1)
        for place, (begins, which) in found.items():
            times[place, : len(begins)], tasks[place, 1 : 1 + len(begins)] = begins, which
        return times, tasks

    def _changes_of(self, place: int, name: str, task_of: dict[int, int]) -> tuple[Integers, Integers]:
        """The times when the task of an episode changes, and the tasks. The latest sample that has arrived counts."""
        stream: Any = self._cache.episodes[self._numbers[place]].streams.stored(name)
        stamps = np.asarray(stream.times) - _core.nanoseconds("latency", stream.latency)
        known = np.maximum(stamps, np.asarray(stream.arrivals))
        order = np.argsort(known, kind="stable")
        latest = np.maximum.accumulate(order) if len(order) else order
        said = np.asarray(stream.values).reshape(len(stamps))[latest]
        changed = np.flatnonzero(np.diff(said, prepend=said[:1] - 1))
        return known[order][changed], np.asarray([task_of.get(int(each), -1) for each in said[changed]], np.int64)


def tokens_in(task: str, given: Any) -> Integers:
    """The tokens that tokenize= has returned for a task."""
    try:
        found = np.asarray(given)
    except ValueError:  # rows of several lengths
        found = np.asarray(None)
    if found.ndim == 0 or (found.size and found.dtype.kind not in "iu"):
        raise TypeError(
            f"Loader: tokenize returned {str(given)[:60]!r} for the task {task[:60]!r}; expected a list of whole "
            "numbers"
        )
    return found.astype(np.int64).reshape(-1)


def tokens_of(tasks: Sequence[str], tokenize: Callable[[str], Sequence[int]]) -> tuple[Integers, NDArray[np.bool_]]:
    """The tokens of each task, padded with 0 to the longest, and a mask of the tokens that are not padding."""
    rows = [tokens_in(task, tokenize(task)) for task in tasks] or [np.zeros(0, np.int64)]
    longest = max(len(row) for row in rows)
    tokens, valid = np.zeros((len(rows), longest), np.int64), np.zeros((len(rows), longest), bool)
    for k, row in enumerate(rows):
        tokens[k, : len(row)], valid[k, : len(row)] = row, True
    return tokens, valid
