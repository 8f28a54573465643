"""The envelope of a signal: the least and the largest value in each piece of time, in bounded memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
MOST_PIECES = 192
MOST_CHANNELS = 8
FINEST = 20  # the first pieces take 2^20 ns, a millisecond


def least_and_most(
    at: NDArray[np.int64], values: NDArray[Any], low: Values, high: Values
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Updates `low` and `high` [pieces, K] with the first K columns of values [N, C]. at: the piece of each row.

    Returns the least and the largest values of all C columns, for each run of neighbouring rows in one piece.
    """
    begins = np.concatenate([[0], np.flatnonzero(np.diff(at)) + 1])
    least, most = np.fmin.reduceat(values, begins), np.fmax.reduceat(values, begins)
    kept = min(low.shape[1], values.shape[1])
    np.fmin.at(low[:, :kept], at[begins], least[:, :kept])
    np.fmax.at(high[:, :kept], at[begins], most[:, :kept])
    return least, most


class Envelope:
    """Pieces of equal length, from the first sample on. Their length doubles whenever there are too few of them.

    Attributes:
        start: Nanoseconds: where the first piece begins. Earlier samples belong to the first piece.
        low: The least values [pieces, channels]; NaN where there is no sample. Only the first 8 channels are kept.
        high: The largest values, as `low`.
    """

    def __init__(self) -> None:
        self.start = 0
        self._shift = FINEST
        self.low: Values = np.full((MOST_PIECES, 0), np.nan)
        self.high: Values = self.low

    @property
    def width(self) -> int:
        """Nanoseconds: the length of a piece."""
        return 1 << self._shift

    def add(self, times: NDArray[np.int64], values: NDArray[Any]) -> tuple[Values, Values]:
        """Adds samples [N, C]. Returns the least and the largest value of each of all C channels."""
        kept = min(values.shape[1], MOST_CHANNELS)
        if not self.low.size:
            self.start = int(times.min())
        if kept > self.low.shape[1]:  # later samples may have more channels
            more = np.full((MOST_PIECES, kept - self.low.shape[1]), np.nan)
            self.low, self.high = np.hstack([self.low, more]), np.hstack([self.high, more])
        while (int(times.max()) - self.start) >> self._shift >= MOST_PIECES:
            self._double()
        at = np.maximum(times - self.start, 0) >> self._shift
        low, high = least_and_most(at, values, self.low, self.high)
        return np.fmin.reduce(low).astype(np.float64), np.fmax.reduce(high).astype(np.float64)

    def _double(self) -> None:
        self._shift += 1
        half = MOST_PIECES // 2
        for name, merge in (("low", np.fmin), ("high", np.fmax)):
            pieces = getattr(self, name)
            merged = np.full_like(pieces, np.nan)
            merged[:half] = merge(pieces[0::2], pieces[1::2])
            setattr(self, name, merged)
