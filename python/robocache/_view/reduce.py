"""Reduces long arrays for plots to the least and the largest value of each bucket of rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache._recordings.source import Array
from robocache._view.sink import Times

MOST_BUCKET_BYTES = 64 << 20  # of rows that are reduced at a time


class Rows(NamedTuple):
    """Rows to show. bucket: the number of the stream's rows that each pair of them stands for; 1: all are shown."""

    times: Times
    values: Array  # float64 [N, D]
    bucket: int


def bucket_of(rows: int, channels: int, most: int) -> int:
    """The number of rows in a bucket, so that at most `most` numbers are shown. 1: all rows are shown."""
    channels = max(channels, 1)
    if rows * channels <= most:
        return 1
    buckets = max(most // (2 * channels), 1)
    return -(-rows // buckets)


def reduced(times: Times, values: Array, bucket: int) -> Rows:
    """Each bucket as two rows: its least values at its first time, its largest values at its last time.

    A bucket's values are NaN only if all of its rows have NaN there.
    """
    flat = values.reshape(len(values), -1)
    if bucket <= 1:
        return Rows(times, flat.astype(np.float64, copy=False), 1)
    starts = np.arange(0, len(flat), bucket)
    lasts = np.minimum(starts + bucket, len(flat)) - 1
    made = np.empty((2 * len(starts), flat.shape[1]), np.float64)
    step = max(MOST_BUCKET_BYTES // max(bucket * flat.shape[1] * flat.itemsize, 1), 1)
    for first in range(0, len(starts), step):
        part = slice(first, first + step)
        rows = flat[starts[part][0] : lasts[part][-1] + 1]
        made[2 * first : 2 * (first + step) : 2], made[2 * first + 1 : 2 * (first + step) : 2] = extremes(rows, bucket)
    places = np.stack([starts, lasts], axis=1).reshape(-1)
    return Rows(times.at(places), made, bucket)


def extremes(rows: Array, bucket: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The least and the largest values of each bucket, float64."""
    if rows.dtype == bool or rows.dtype.kind not in "fiu":
        rows = rows.astype(np.float64)
    whole = len(rows) // bucket
    blocks = rows[: whole * bucket].reshape(whole, bucket, rows.shape[1])
    least, largest = np.fmin.reduce(blocks, axis=1), np.fmax.reduce(blocks, axis=1)
    if len(rows) > whole * bucket:
        rest = rows[whole * bucket :]
        least = np.concatenate([least, np.fmin.reduce(rest)[None]])
        largest = np.concatenate([largest, np.fmax.reduce(rest)[None]])
    return least.astype(np.float64), largest.astype(np.float64)
