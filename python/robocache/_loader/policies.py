"""PolicyBatches: a loader whose batches have the form that another library's policies expect."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from robocache._loader.engine import Rows
from robocache._loader.entries import Entry
from robocache._loader.normalize import Normalizer
from robocache._loader.pictures import Picture

if TYPE_CHECKING:
    from robocache._loader.loader import Loader

Batch = dict[str, Any]


class PolicyBatches:
    """A loader's batches in another form. Order, passes, ranks and state are those of the loader.

    Attributes:
        loader: The loader behind it. Its batches are not normalised.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __len__(self) -> int:
        """As the loader's."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        """A pass, as the loader's."""
        loader = self.loader
        batches = iter(loader)
        while True:
            position = loader.order.begin(loader._position)
            batch = next(batches, None)
            if batch is None:
                return
            yield self._convert(batch, self._rows(position))

    def batch(self, number: int) -> Batch:
        """This rank's rows of a global batch, from its number alone.

        Args:
            number: From 0 on, without end.

        Returns:
            The batch.
        """
        return self._convert(self.loader.batch(number), self._rows(self.loader.order.start(number)))

    def window(self, episode: int | str, t: float | int) -> Batch:
        """What a policy gets at any moment of an episode, as `Loader.window`: without actions.

        Args:
            episode: Its number in the cache, or its name.
            t: The anchor: nanoseconds as an int, or seconds as a float.

        Returns:
            A batch of one row.
        """
        batch = self.loader.window(episode, t)
        number, anchor = (np.asarray(batch[name].tolist(), np.int64) for name in ("episode", "time"))
        return self._convert(batch, Rows(np.searchsorted(self.loader.windows.episodes, number), number, anchor))

    def state_dict(self) -> dict[str, Any]:
        """As `Loader.state_dict`.

        Returns:
            The state.
        """
        return self.loader.state_dict()

    def state_after(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """As `Loader.state_after`.

        Args:
            batch: A batch of this object.

        Returns:
            The state.
        """
        return self.loader.state_after(dict(batch))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As `Loader.load_state_dict`.

        Args:
            state: What `state_dict` or `state_after` of the same form has returned.
        """
        self.loader.load_state_dict(state)

    def _rows(self, position: int) -> Rows:
        """The windows of this rank's rows, on the host: no GPU synchronisation."""
        return Rows(*self.loader.windows.at(self.loader.order.numbers(position)))

    def _tasks(self, rows: Rows, without: str) -> list[str]:
        tasks = [*self.loader.tasks, without]  # -1, of an episode without a task, is the last
        return [tasks[task] for task in self.loader._tasks.at(rows).tolist()]

    def _convert(self, batch: Batch, rows: Rows) -> Batch:
        raise NotImplementedError


def with_entries(loader: Loader, changed: Mapping[str, Entry | Picture]) -> Loader:
    """The loader with other entries. It shares the samples, and continues from the same position."""
    other = object.__new__(type(loader))  # copy.copy() would pickle the loader, and a pickle has no samples
    vars(other).update(vars(loader))
    other._passes = None
    other._entries = {name: changed.get(name, entry) for name, entry in loader._entries.items()}
    other.keys = {name: entry.key for name, entry in other._entries.items()}
    other._known_spec = None
    return other


def numbers_by(entry: Entry, normalizer: Normalizer | None) -> Entry:
    """The entry in float32 with another normaliser; None: not normalised."""
    other = copy.copy(entry)
    other.normalizer = normalizer
    kind, stats, convention = "identity", None, "robocache"
    if normalizer is not None:
        kind, convention = normalizer.kind, normalizer.convention
        stats = {name: values.tolist() for name, values in normalizer.statistics.items()}
    other.key = entry.key.replace(normalize=kind, stats=stats, convention=convention, dtype="float32")
    return other


def picture_as(entry: Picture, dtype: str, layout: str, **image: Any) -> Picture:
    """The camera's entry, not normalised, in this dtype and layout, and with these options of `rc.image`."""
    options = {**(entry.key.image or {}), "layout": layout, **image}
    return Picture(
        entry.name, entry.key.replace(normalize="identity", stats=None, dtype=dtype, image=options), entry.member
    )


def is_only_anchor(loader: Loader, name: str) -> bool:
    """Whether the key's only step is the anchor."""
    return loader.keys[name].offsets(loader.rate).tolist() == [0]
