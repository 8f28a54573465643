"""Splits a long recording into episodes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from robocache._recordings.clock import LastSamples
from robocache._recordings.recording import Recording
from robocache._recordings.source import (
    Array,
    Batch,
    Content,
    Part,
    Source,
    SourceOver,
    clipped,
    topic_of,
)
from robocache._recordings.words import missing


class SplitSource(SourceOver):
    """One recording as several episodes, which are ranges of its arrivals."""

    def __init__(self, source: Source, cuts: Sequence[tuple[int, int]]) -> None:
        super().__init__(source)
        self.cuts = list(cuts)

    def parts(self) -> Sequence[Part]:
        whole = self.source.parts()[0]
        return [
            Part(f"{whole.name}-{number}", whole.task, start, end - 1) for number, (start, end) in enumerate(self.cuts)
        ]

    def contents(self, episode: int) -> Mapping[str, Content]:
        return {name: content._replace(samples=None) for name, content in self.source.contents(0).items()}

    def batches(
        self,
        streams: Collection[str] | None = None,
        episode: int | None = None,
        start: int | None = None,
        end: int | None = None,
    ) -> Iterator[Batch]:
        numbers = range(len(self.cuts)) if episode is None else [episode]
        kept = self._kept([self.cuts[number][0] for number in numbers], streams)
        for number in numbers:
            first, last = self.cuts[number]
            if kept is not None:
                yield from kept.before(first, number, first)
            for batch in clipped(self.source.batches(streams, 0, first, last), start, end):
                yield batch._replace(episode=number)

    def _kept(self, cuts: Sequence[int], streams: Collection[str] | None) -> LastSamples | None:
        """The last sample of each constant before a cut. It still holds in the episode that begins there."""
        static = self.source.constants()
        names = self.source.contents(0) if static and cuts else ()
        wanted = [name for name in names if topic_of(name, static) and (streams is None or name in streams)]
        return LastSamples(self.source.batches(wanted, 0, None, max(cuts)), cuts) if wanted else None


def split(recording: Recording, by: str, gap: float = 5.0, topic: str | None = None) -> Recording:
    """A recording of one episode cut into several.

    by "gap": where nothing was logged for so many seconds. by "topic": where its first channel, an id, changes, and not
    while it is 0 (see `episodes_by_id`); of a topic without numbers, from each message to the next.
    """
    if by == "file" or len(recording.episodes) != 1:
        return recording
    source = recording._source
    if by == "gap":
        quick = source.quick()
        arrivals = [found for _, found in quick.values()] if quick else [batch.arrivals for batch in source.batches()]
        every = np.sort(np.concatenate(arrivals)) if arrivals else np.zeros(0, np.int64)
        if not len(every):
            return recording
        ends = np.flatnonzero(np.diff(every) > gap * 1e9)
        starts = [int(every[0]), *(int(every[k + 1]) for k in ends)]
        stops = [*(int(every[k]) + 1 for k in ends), int(every[-1]) + 1]
        return Recording(SplitSource(source, list(zip(starts, stops, strict=True))))
    if topic is None:
        raise ValueError("episodes by topic: which one? --episode-topic, or topic in the recipe's [episodes]")
    contents = source.contents(0)
    if topic not in contents:
        raise ValueError(missing(f"{recording.path}: there is no topic", topic, contents))
    marks = list(source.batches([topic], 0))
    last = recording.episodes[0].end + 1
    times = np.concatenate([np.zeros(0, np.int64), *(batch.arrivals for batch in marks)])
    numbers = all(b.lengths is None and b.values.ndim == 2 and b.values.shape[1] > 0 for b in marks)
    begins: Array = np.arange(len(times))
    taken: Array = np.ones(len(times), bool)
    if numbers:
        begins, taken = episodes_by_id(np.concatenate([np.zeros(0), *(b.values[:, 0] for b in marks)]))
    edges = [*times[begins].tolist(), last]
    cuts = [(edges[k], edges[k + 1]) for k in np.flatnonzero(taken) if edges[k + 1] > edges[k]]
    if not cuts:
        raise ValueError(f"{recording.path}: {topic} marks no episode: it is always 0")
    return Recording(SplitSource(source, cuts))


def episodes_by_id(ids: Array) -> tuple[Array, Array]:
    """The times at which an id changes, and whether an episode begins there.

    While it is 0 there is no episode, as with a flag: 0, 1, 0, 1 are two. But where ids count from 0, as in 0, 1, 2,
    the 0 is an id: it comes first, never again, and at least two others follow.
    """
    starts = np.flatnonzero(np.append(True, ids[1:] != ids[:-1])) if len(ids) else np.zeros(0, np.intp)
    seen = ids[starts]
    counts_from_0 = len(seen) > 0 and seen[0] == 0 and (seen == 0).sum() == 1 and len(np.unique(seen)) > 2
    return starts, np.ones(len(seen), bool) if counts_from_0 else seen != 0
