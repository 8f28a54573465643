"""Recordings that Ray workers decode. The build reads them in the same order as if it decoded them itself.

Workers decode the next recordings ahead. A worker waits when its decoded batches fill its share of the cluster's object
store, so memory does not grow with the recordings. If a worker dies, Ray runs its task again, and skips the pieces that
the build has already received.
"""

from __future__ import annotations

import contextlib
import os
import pickle
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from robocache._core import FileError
from robocache._ray import cluster
from robocache._ray.worker import PIECE_BYTES, FailedPass, Notes, Piece, Work, decode, runs
from robocache._recordings.recording import Recording
from robocache._recordings.source import Batch, Content, Source, SourceOver

RETRIES = 3  # of a recording whose worker dies
LOOK_AHEAD = 1000  # places after the current one that are searched for recordings to decode
STALL_SECONDS = 60.0  # without a piece, after which a job that is ahead is cancelled to make room
TASK_EPISODES = 16  # the most episodes of a data set that one task decodes

ToRead = Callable[[str], tuple[Recording, Collection[int]] | None]


class Workers:
    """The workers of a build, and the recordings that they decode.

    Args:
        ray: The package.
        workers: The number of tasks that decode at a time. Default: one for each `cpus` CPUs of the cluster.
        cpus: CPUs for each task.
        memory: The most bytes that are decoded and not yet written. Default: half of the object store.
    """

    def __init__(self, ray: Any, workers: int | None, cpus: int, memory: int | None) -> None:
        self.ray = ray
        self.most = workers or max(cluster.cores(ray) // cpus, 1)
        bytes_each = (memory or cluster.memory(ray) // 2) // self.most
        self.cpus = cpus
        self.task = ray.remote(decode).options(
            num_returns="streaming",
            num_cpus=cpus,
            max_retries=RETRIES,
            _generator_backpressure_num_objects=max(bytes_each // PIECE_BYTES, 2),
        )
        self.ahead: dict[str, DecodeJob] = {}  # by path
        self.current: DecodeJob | None = None
        self.places: Sequence[str] = ()
        self.next = self.number = 0
        self.to_read: ToRead = lambda path: None

    def plan(self, places: Sequence[str], to_read: ToRead) -> None:
        """Sets the recordings of the build, in order. `to_read` returns None for a recording that the cache has."""
        self.places, self.to_read = places, to_read

    def decoded(self, path: str, number: int, recording: Recording) -> Recording:
        """The recording at a place, decoded on a worker. Other workers decode the next ones meanwhile."""
        for earlier in self.places[self.number : number]:
            self.drop(earlier)
        self.number = number
        if path not in self.ahead:
            self.begin(path)
        self.next = max(self.next, number + 1)
        self.current = self.ahead.pop(path, None)
        self.fill()
        return Recording(WorkerSource(recording._source, self, self.current))

    def begin(self, path: str) -> None:
        """Plans the tasks of a recording."""
        try:
            found = self.to_read(path)
            if found is not None:
                source = found[0]._source
                self.ahead[path] = DecodeJob(self, source.presumed() or source, frozenset(found[1]))
        except Exception:  # the build reports it when it reads this recording
            return

    def fill(self) -> None:
        """Starts the next tasks, never more than there are workers: a further task might wait for ever."""
        jobs = [job for job in (self.current, *self.ahead.values()) if job is not None]
        room = self.most - sum(len(job.tasks) for job in jobs)
        for job in jobs:
            room -= job.submit(room)
        while room > 0 and self.next < min(len(self.places), self.number + LOOK_AHEAD):
            path = self.places[self.next]
            self.next += 1
            self.begin(path)
            if path in self.ahead:
                room -= self.ahead[path].submit(room)

    def make_room(self) -> bool:
        """Cancels the job that is needed last. It starts again when the build reads its recording."""
        if not self.ahead:
            return False
        self.drop(list(self.ahead)[-1])
        return True

    def drop(self, path: str) -> None:
        job = self.ahead.pop(path, None)
        if job is not None:
            job.cancel()

    def close(self) -> None:
        for path in list(self.ahead):
            self.drop(path)
        if self.current is not None:
            self.current.cancel()


class DecodeJob:
    """A recording that is being decoded, by one task or by several for some of its episodes each.

    Args:
        workers: The workers that decode it.
        source: The source that is decoded: the presumed source if there is one.
        cached: The episodes that the cache has already.
    """

    def __init__(self, workers: Workers, source: Source, cached: frozenset[int]) -> None:
        self.workers, self.path, self.cached, self.kind = workers, source.path, cached, type(source)
        whole = Work(pickle.dumps(source), os.getcwd(), cached, None, workers.cpus)
        self.planned = deque([whole])
        if source.format.startswith("LeRobot"):  # its episodes can be read one by one
            count = len(source.parts())
            size = min(max(count // (8 * workers.most), 1), TASK_EPISODES)
            self.planned = deque(whole._replace(episodes=run) for run in runs(count, cached, size))
        self.tasks: deque[Any] = deque()

    def submit(self, most: int) -> int:
        """Starts at most this many tasks. Returns how many it started."""
        count = 0
        while self.planned and count < most:
            self.tasks.append(self.workers.task.remote(self.planned.popleft()))
            count += 1
        return count

    def pieces(self) -> Iterator[Piece]:
        ray = self.workers.ray
        while self.tasks or self.planned:
            if not self.tasks:
                self.submit(1)
            task = self.tasks[0]
            while True:
                try:
                    while not ray.wait([task], timeout=STALL_SECONDS, fetch_local=False)[0]:
                        self.workers.make_room()
                    piece = ray.get(next(task))
                except StopIteration:
                    break
                except ray.exceptions.RayError as error:
                    raise FileError(f"{self.path}: {sentence_of(error)}") from None
                yield piece
                del piece
            self.tasks.popleft()
            self.workers.fill()

    def cancel(self) -> None:
        self.planned.clear()
        while self.tasks:
            with contextlib.suppress(Exception):
                self.workers.ray.cancel(self.tasks.popleft(), force=True)


def sentence_of(error: Exception) -> str:
    """The reason why Ray has given up on a task: the first line of its error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    why = lines[0] if lines else type(error).__name__
    return f"its Ray worker died, also when it was tried again ({type(error).__name__}: {why})"


class WorkerSource(SourceOver):
    """A source whose whole pass is decoded on a worker."""

    def __init__(self, source: Source, workers: Workers, job: DecodeJob | None) -> None:
        super().__init__(source)
        self.workers, self.job = workers, job
        self._cached: frozenset[int] = frozenset()

    def listed(self, episode: int) -> Any:
        return self.source.listed(episode)

    def contents(self, episode: int) -> dict[str, Content]:
        return dict(self.source.contents(episode))

    def extents(self) -> Any:
        return self.source.extents()

    def presumed(self) -> Source | None:
        source = self.source.presumed()
        if source is None:
            return None
        job, self.job = self.job, None  # if the presumption is wrong, the recording is decoded again
        return WorkerSource(source, self.workers, job)

    def leave_out(self, episodes: Collection[int]) -> None:
        self._cached = frozenset(episodes)
        super().leave_out(episodes)

    def batches(
        self,
        streams: Collection[str] | None = None,
        episode: int | None = None,
        start: int | None = None,
        end: int | None = None,
    ) -> Iterator[Batch]:
        if (streams, episode, start, end) != (None, None, None, None):
            yield from self.source.batches(streams, episode, start, end)
            return
        job, self.job = self.job, None
        if job is None or job.cached != self._cached or job.kind is not type(self.source):
            if job is not None:
                job.cancel()
            job = self.workers.current = DecodeJob(self.workers, self.source, self._cached)
            job.submit(1)
        try:
            for piece in job.pieces():
                if isinstance(piece, list):
                    yield from piece
                    continue
                self._note(piece)
                if isinstance(piece, FailedPass):
                    raise piece.error
        finally:
            job.cancel()

    def _note(self, piece: Notes | FailedPass) -> None:
        for note in piece.notes:
            if note not in self.notes:
                self.notes.append(note)
