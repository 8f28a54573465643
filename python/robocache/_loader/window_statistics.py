"""Statistics of what a key has in all windows: of values that no stream has, because they are relative or rotated."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from robocache._loader.entries import Entry
from robocache._loader.state import cache_fingerprint

if TYPE_CHECKING:
    from robocache._loader.loader import Loader

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
AT_ONCE = 4096  # windows
MOST_STEPS = 1 << 28  # of a key; of more, windows are left out at even distances
BLOCK, SHARE = 1 << 16, 32  # steps in a block; steps that one value of a sorted block stands for
MOST_KEPT = 1 << 20  # steps of which all values are kept, so that quantiles are exact

Values = NDArray[np.float64]


class RunningStatistics:
    """Values by channel, of any number of steps, in little memory.

    Mean and std are those of all values, summed in float64. Quantiles are exact up to MOST_KEPT steps. Of more, each
    sorted block of 65,536 values keeps the middle one of every 32, so a quantile q lies between the exact ones of
    q - 1/4096 and q + 1/4096, but for one value of a block.
    """

    def __init__(self, width: int) -> None:
        self.count = 0
        self._mean, self._squares = np.zeros(width), np.zeros(width)  # squares: of the distances from the mean
        self._min, self._max = np.full(width, np.inf), np.full(width, -np.inf)
        self._whole = np.zeros((0, width), np.float32)
        self._shares: list[NDArray[np.float32]] = []

    def add(self, values: NDArray[np.float32]) -> None:
        """float32 [N, channels], finite."""
        if not len(values):
            return
        wide = values.astype(np.float64)
        mean, before = wide.mean(axis=0), self.count
        self.count += len(wide)
        moved = mean - self._mean
        self._squares += ((wide - mean) ** 2).sum(axis=0) + moved**2 * (before * len(wide) / self.count)
        self._mean = self._mean + moved * (len(wide) / self.count)
        self._min, self._max = np.minimum(self._min, wide.min(axis=0)), np.maximum(self._max, wide.max(axis=0))
        self._whole = np.concatenate([self._whole, values])
        if self._shares or len(self._whole) > MOST_KEPT:
            while len(self._whole) >= BLOCK:
                block, self._whole = np.sort(self._whole[:BLOCK], axis=0), self._whole[BLOCK:]
                self._shares.append(block[SHARE // 2 :: SHARE].copy())

    def statistics(self) -> dict[str, Values]:
        """mean, std, min, max, count and the QUANTILES."""
        found = {"mean": self._mean, "std": np.sqrt(self._squares / self.count), "min": self._min, "max": self._max}
        return found | self._quantiles() | {"count": np.asarray([self.count])}

    def _quantiles(self) -> dict[str, Values]:
        if not self._shares:
            exact = np.quantile(self._whole.astype(np.float64), list(QUANTILES.values()), axis=0)
            return dict(zip(QUANTILES, exact, strict=True))
        values = np.concatenate([*self._shares, self._whole])
        weights = np.full(len(values), SHARE)
        weights[len(values) - len(self._whole) :] = 1
        order = np.argsort(values, axis=0, kind="stable")
        ends = np.cumsum(weights[order], axis=0)  # how many values there are up to each
        values = np.take_along_axis(values, order, 0).astype(np.float64)
        found = {}
        for name, q in QUANTILES.items():
            place = (ends <= math.floor(q * (self.count - 1))).sum(axis=0)
            found[name] = np.take_along_axis(values, place[None], 0)[0]
        return found


def of_windows(loader: Loader, entry: Entry, split: str | None) -> dict[str, Values]:
    """The statistics of all valid steps in the windows of the training episodes, after relative and rotation.

    The cache remembers them.
    """
    if split == "val":
        loader = of_training(loader)
        entry = loader._entries[entry.name]  # type: ignore[assignment]
    keys = {name: key.replace(normalize="identity", stats=None).to_json() for name, key in loader.keys.items()}
    said = json.dumps([cache_fingerprint(loader), loader.rate, entry.name, keys], sort_keys=True)
    known: dict[str, dict[str, Values]] = loader.cache._known_window_statistics
    if said not in known:
        gathered = RunningStatistics(entry.width)
        for values in transformed(loader, entry):
            gathered.add(values)
        if not gathered.count:
            raise ValueError(f'Loader: key "{entry.name}" has no valid step in any window, so it has no statistics')
        known[said] = gathered.statistics()
    return known[said]


def of_training(loader: Loader) -> Loader:
    """The loader of the training episodes beside those of split="val". If there are none, the loader itself."""
    from robocache._loader.loader import Loader

    keys = {name: key.replace(normalize="identity", stats=None) for name, key in loader.keys.items()}
    chosen: dict[str, Any] = loader._selection | {"split": "train"}
    try:
        return Loader(loader.cache, batch_size=1, rate=loader.rate, keys=keys, rank=0, world=1, **chosen)
    except ValueError:
        return loader


def transformed(loader: Loader, entry: Entry) -> Iterator[NDArray[np.float32]]:
    windows, steps = len(loader.windows), len(entry.key.offsets(loader.rate))
    numbers = np.arange(0, windows, max(math.ceil(windows * steps / MOST_STEPS), 1), dtype=np.int64)
    for begin in range(0, len(numbers), AT_ONCE):
        raws = loader._raw_windows(numbers[begin : begin + AT_ONCE])
        raw, values = loader._transformed(entry, raws)
        values, valid = (np.asarray(a.cpu() if hasattr(a, "cpu") else a) for a in (values, raw.valid))
        finite = np.isfinite(values).all(axis=-1)
        yield values[valid & finite]
