"""The task of a Ray worker in a build: it decodes a recording, and returns its batches in pieces."""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Collection, Iterator
from typing import NamedTuple

from robocache._recordings.source import Batch, Source

PIECE_BYTES = 8 << 20
PIECE_BATCHES = 256


class Work(NamedTuple):
    """A recording, or some of its episodes, as a worker reads it."""

    source: bytes  # pickled
    folder: str  # of relative paths
    cached: frozenset[int]  # the episodes that the cache has already
    episodes: tuple[int, int] | None  # read only the episodes [first, end)
    threads: int  # to decode pictures


class Notes(NamedTuple):
    """The last piece of a pass: the notes of the recording."""

    notes: list[str]


class FailedPass(NamedTuple):
    """The last piece of a pass that failed."""

    error: BaseException
    notes: list[str]


Piece = list[Batch] | Notes | FailedPass


def decode(work: Work) -> Iterator[Piece]:
    """All batches of a recording, in order, then its notes. An error is not raised, but returned as the last piece."""
    notes: list[str] = []
    try:
        with inside(work.folder):
            from robocache._cache import framed

            framed.limit_threads(work.threads)
            source: Source = pickle.loads(work.source)
            notes = source.notes
            source.leave_out(work.cached)
            yield from pieces(passes(source, work))
    except Exception as error:
        yield FailedPass(portable(error), list(notes))
    else:
        yield Notes(list(notes))


def passes(source: Source, work: Work) -> Iterator[Batch]:
    if work.episodes is None:
        yield from source.batches()
        return
    for number in range(*work.episodes):
        yield from source.batches(None, number)


@contextlib.contextmanager
def inside(folder: str) -> Iterator[None]:
    """Changes to the driver's folder, if this machine has it."""
    before = os.getcwd()
    with contextlib.suppress(OSError):
        os.chdir(folder)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.chdir(before)


def pieces(batches: Iterator[Batch]) -> Iterator[list[Batch]]:
    """The batches in pieces. The cuts depend only on the batches, so a repeated task gives the same pieces."""
    piece: list[Batch] = []
    size = 0
    for batch in batches:
        piece.append(batch)
        size += batch.values.nbytes + 16 * len(batch.times)
        if size >= PIECE_BYTES or len(piece) >= PIECE_BATCHES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def portable(error: BaseException) -> BaseException:
    """The error if it can be pickled, otherwise one with the same text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
    return error


def runs(count: int, cached: Collection[int], size: int) -> list[tuple[int, int]]:
    """The episodes of a recording as ranges of at most `size`, without those that the cache has."""
    found: list[tuple[int, int]] = []
    for number in range(count):
        if number in cached:
            continue
        if found and found[-1][1] == number and number - found[-1][0] < size:
            found[-1] = (found[-1][0], number + 1)
        else:
            found.append((number, number + 1))
    return found
