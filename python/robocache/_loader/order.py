"""The loader's order: which positions a batch has, which windows these are, and where a pass ends.

Positions count 0, 1, 2, ... and never end. A batch is known by the global position where it starts, and a loader needs
only that one integer to continue. `docs/semantics.md`, "The loader's order", has the rules.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from robocache import _core
from robocache._loader.keys import whole_number

Last = Literal["join", "drop", "short"]
LASTS = ("join", "drop", "short")
POSITION_LIMIT = 2**63
"""A position must be below this."""


class Passes:
    """The positions of each batch of one rank, cut into passes.

    Epochs are `length` positions long. A global batch has `world * batch_size` positions; rank r has the r-th
    `batch_size` of them. A pass ends where an epoch does, as `last` says:

    - `"join"`: the batch that crosses into the next epoch ends the pass. The next pass continues after that batch.
    - `"drop"`: positions at the end of an epoch that fill no global batch are skipped.
    - `"short"`: the last batch is padded. Its padded rows repeat the last position of the epoch, and `row_valid` is
      False there.

    If a state of another batch size is loaded, batches start at the loaded position.
    """

    def __init__(self, length: int, *, batch_size: int, rank: int = 0, world: int = 1, last: Last = "join") -> None:
        self.length = whole_number("length", length, 1, POSITION_LIMIT)
        self.batch_size = whole_number("batch_size", batch_size, 1)
        self.world = whole_number("world", world, 1)
        self.rank = whole_number("rank", rank, 0)
        self.last = last
        self.global_batch = self.batch_size * self.world
        self._rows = np.arange(self.batch_size, dtype=np.int64)
        if self.rank >= self.world:
            raise ValueError(f"Loader: rank is {self.rank}, and world is {self.world}; ranks count from 0 to world - 1")
        if last not in LASTS:
            raise ValueError(f"Loader: last is {last!r}; expected one of {', '.join(map(repr, LASTS))}")
        if last == "drop" and self.length < self.global_batch:
            raise ValueError(
                f'Loader: last="drop" leaves no batch, since an epoch has {self.length} windows and a global batch '
                f'{self.global_batch} (batch_size {self.batch_size} x world {self.world}); use last="join" or "short", '
                "or a smaller batch_size"
            )

    def check(self, position: int) -> None:
        """Raises if no batch can start at this position."""
        if not 0 <= position <= POSITION_LIMIT - self.global_batch:
            raise ValueError(f"Loader: position is {position}; expected 0 to 2^63 - {self.global_batch}")

    def epoch(self, position: int) -> int:
        """The epoch that the position lies in."""
        return position // self.length

    def end(self, position: int) -> int:
        """The end of the epoch that the position lies in: the first position of the next epoch."""
        return (position // self.length + 1) * self.length

    def start(self, batch: int) -> int:
        """The position where global batch number `batch` starts, if the first one starts at position 0."""
        if self.last == "join":
            return batch * self.global_batch
        epoch, number = divmod(batch, self.batches(0))
        return epoch * self.length + number * self.global_batch

    def begin(self, position: int) -> int:
        """The position where the next batch starts, if everything before `position` has been handed out.

        It differs from `position` only for `last="drop"`, if too few positions are left in the epoch.
        """
        skips = self.last == "drop" and position + self.global_batch > self.end(position)
        return self.end(position) if skips else position

    def after(self, position: int) -> int:
        """The position where the batch after the batch at `position` starts: the state after that batch."""
        following = position + self.global_batch
        return min(following, self.end(position)) if self.last == "short" else self.begin(following)

    def is_last(self, position: int) -> bool:
        """Whether the batch that starts at this position ends its pass."""
        return self.after(position) >= self.end(position)

    def batches(self, position: int) -> int:
        """The number of batches in a pass that starts at this position. It is never 0."""
        position = self.begin(position)
        left = self.end(position) - position
        return left // self.global_batch if self.last == "drop" else -(-left // self.global_batch)

    def pass_batches(self, position: int) -> int:
        """The number of batches in the pass of this position, including those before the position."""
        position = self.begin(position)
        return (position % self.length) // self.global_batch + self.batches(position)

    def positions(self, position: int) -> NDArray[np.int64]:
        """The positions of this rank's rows, int64 [B], in the global batch that starts at `position`."""
        self.check(position)
        positions = self._rows + (position + self.rank * self.batch_size)
        if self.last == "short":
            np.minimum(positions, min(self.end(position), POSITION_LIMIT) - 1, out=positions)
        return positions

    def row_valid(self, position: int) -> NDArray[np.bool_]:
        """Which rows are not padded, bool [B]. Rows are padded only at the end of an epoch with `last="short"`."""
        valid = np.ones(self.batch_size, np.bool_)
        if self.last == "short":
            valid[max(0, self.end(position) - position - self.rank * self.batch_size) :] = False
        return valid


class Order(Passes):
    """Passes over the windows 0 to `windows` - 1.

    Args:
        windows: How many there are.
        batch_size: Windows in a batch of one rank.
        seed: 0 to 2^64 - 1.
        shuffle: True: each epoch has a random order of its own. False: windows come in rising order.
        rank: The number of this process.
        world: How many processes share the windows.
        last: What happens to the last batch of an epoch; see `Passes`.
        length: The number of positions in a pass. None: all windows. Weighted windows need it, because they have no
            epochs.
        weights: A weight for each window, which are then drawn with replacement.
    """

    def __init__(
        self,
        windows: int,
        *,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
        rank: int = 0,
        world: int = 1,
        last: Last = "join",
        length: int | None = None,
        weights: NDArray[np.float64] | None = None,
    ) -> None:
        self.windows = whole_number("windows", windows, 1, POSITION_LIMIT)
        self.seed = whole_number("seed", seed, 0, 2**64)
        self.shuffle = shuffle
        self.cumulated: NDArray[np.int64] | None = None
        if weights is not None:
            if np.ndim(weights) != 1:
                raise ValueError(f"Loader: weights has shape {list(np.shape(weights))}; expected [windows]")
            if len(weights) != windows:
                raise ValueError(
                    f"Loader: weights has {len(weights)} numbers; expected one for each of {windows} windows"
                )
            if length is None:
                raise ValueError("Loader: weights need length=, because windows drawn by weights have no epochs")
            self.cumulated = _core.cumulate_weights(np.ascontiguousarray(weights, np.float64))
        super().__init__(
            self.windows if length is None else length, batch_size=batch_size, rank=rank, world=world, last=last
        )

    def numbers(self, position: int) -> NDArray[np.int64]:
        """The window numbers of this rank's rows, int64 [B], in the global batch that starts at `position`."""
        if self.last != "short":
            self.check(position)
            return self.run(position + self.rank * self.batch_size, self.batch_size)
        positions = self.positions(position)
        first = int(positions[0])
        count = int(positions[-1]) - first + 1  # fewer than rows, where the last ones are padded
        numbers = self.run(first, count)
        return numbers if count == self.batch_size else numbers[positions - first]

    def run(self, first: int, count: int) -> NDArray[np.int64]:
        """The window numbers of the positions first, first + 1, ..., int64 [count]."""
        if self.cumulated is None:
            return _core.window_order(self.windows, self.seed, first, count, self.shuffle)
        return _core.weighted_order(self.cumulated, self.seed, first, count)
