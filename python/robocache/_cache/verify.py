"""verify_cache: what is wrong with a cache, and its repair."""

from __future__ import annotations

import os
from typing import NamedTuple

from robocache import _core
from robocache._cache.cache import Cache
from robocache._cache.values import Path
from robocache._recordings.words import counted


class CacheProblem(NamedTuple):
    """A problem that `verify_cache` found.

    Attributes:
        file: The file in the cache.
        sentence: What is wrong with it.
        repair: What was done about it, or what a repair would do.
    """

    file: str
    sentence: str
    repair: str


class CacheMove(NamedTuple):
    """A file that a repair has moved out of the cache, or would move.

    Attributes:
        file: Where it was.
        reason: Why.
    """

    file: str
    reason: str


class CacheReport(NamedTuple):
    """What `verify_cache` found.

    Attributes:
        problems: What is wrong: `file`, `sentence` and `repair` of each problem.
        moved: `file` and `reason` of each file that was moved to the quarantine, or that a repair would move.
        dropped: Episodes that the cache loses, because a part of them is in a damaged shard.
        quarantine: The folder within the cache that files were moved to, with a report.txt; None if nothing moved.
        repaired: Whether all problems were repaired.
        shards: The number of good shards.
        tensors: The number of good tensors.
        bytes: The size of what is good.
        episodes: The number of good episodes.
        streams: The number of streams.
        absent: How many videos are not there, whose frames the cache does not keep itself.
    """

    problems: list[CacheProblem]
    moved: list[CacheMove]
    dropped: list[str]
    quarantine: str | None
    repaired: bool
    shards: int
    tensors: int
    bytes: int
    episodes: int
    streams: int
    absent: int = 0

    @property
    def ok(self) -> bool:
        """True if nothing is wrong, or everything was repaired."""
        return not self.problems or (self.repaired and not self.absent)

    def __repr__(self) -> str:
        counts = {"episode": self.episodes, "shard": self.shards, "tensor": self.tensors}
        good = ", ".join(counted(number, noun) for noun, number in counts.items()) + f", {self.bytes / 2**20:.1f} MiB"
        if not self.problems:
            return f"CacheReport(all is well: {good})"
        done = "done" if self.repaired else "a repair would do"
        lines = [f"  {p.file}: {p.sentence} ({done}: {p.repair})" for p in self.problems]
        lines += [f"  what was taken out is in {self.quarantine}"] if self.quarantine else []
        return "\n".join([f"CacheReport({counted(len(self.problems), 'problem')}; good: {good})", *lines])


def absent(path: Path) -> list[CacheProblem]:
    """The videos that a good cache names and that are not where they were, nor at the same place beside the cache."""
    from robocache._cache.camera_table import absent_videos

    problems = []
    for stream, file, episodes in absent_videos(Cache(path)):
        some = ", ".join(episodes[:4]) + (f" and {len(episodes) - 4} more" if len(episodes) > 4 else "")
        count = counted(len(episodes), "episode") + (" names" if len(episodes) == 1 else " name")
        sentence = f'this video of stream "{stream}" is not there; {count} it: {some}'
        repair = "nothing: put the data set back, or move it together with the cache"
        problems.append(CacheProblem(file, sentence, repair))
    return problems


def verify_cache(path: Path, *, repair: bool = False, dry_run: bool = False) -> CacheReport:
    """Reads a whole cache and checks it: checksums, counts, offsets, the order of times, missing and leftover files.

    Frames that the cache keeps of its cameras are checked as all its samples are. A video whose frames stay in their
    data set must be there, and is not read. One that is not there is a problem that no repair can mend.

    Only a wrong checksum, size or format is damage. A file that the system cannot read (no permission, a failing disk,
    too many open files) raises FileError, and nothing is changed.

    Args:
        path: The cache.
        repair: Repair what can be repaired, and delete nothing. Damaged shards, shards that no whole episode needs and
            leftovers of a crash are moved to quarantine/TIME/ inside the cache; report.txt there says what, why, and
            how to undo it. Episodes with a part in a damaged shard are dropped, all others are kept, and the next build
            reads the dropped ones again. A lost or damaged manifest is rebuilt from the shards; the old one is kept. A
            second repair finds nothing to do.
        dry_run: Only report what a repair would do.

    Returns:
        A `CacheReport`.

    Raises:
        FileError: There is no cache at `path`, or the system cannot read one of its files.
    """
    if os.path.isfile(path):
        raise _core.FileError(
            f"{os.fspath(path)}: a file, not a cache, which is a directory; robocache info looks at it"
        )
    problems, moved, dropped, quarantine, *counts = _core.verify_cache(os.fsencode(path), repair, dry_run)
    repaired, shards, tensors, size, episodes, streams = counts
    found = [CacheProblem(*problem) for problem in problems]
    videos = absent(path) if repaired or not found else []
    return CacheReport(
        found + videos,
        [CacheMove(*move) for move in moved],
        dropped,
        quarantine or None,
        bool(repaired),
        shards,
        tensors,
        size,
        episodes,
        streams,
        len(videos),
    )
