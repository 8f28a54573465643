"""Caches: episodes on disk at their native rates. The engine (robocache._core) writes and maps them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache import _core, _tables
from robocache._align.align import align
from robocache._align.extent import check_dtype, nanoseconds, on_host
from robocache._align.results import Aligned
from robocache._align.stream import Duration, Method, Stream, stored_duration
from robocache._align.timeline import Timeline, anchor_of, with_start
from robocache._cache.cache_aligned import CacheAligned
from robocache._cache.default_timeline import (
    Reach,
    Span,
    hold_always,
    is_held,
    refuse_too_large,
    result_bytes,
    span_of,
    steps_of,
    valid_always,
)
from robocache._cache.episodes import STREAMS, CachedEpisode, CachedEpisodes, CacheSource, StreamsOfCache
from robocache._cache.joined import info_of, joins, put_together, shown
from robocache._cache.prepare import PreparedStream, is_numbered, key_of, names_of, numbers_of, prepared, rate_of
from robocache._cache.statistics import HasStatistics
from robocache._cache.tier import MissingFrames, served, tiers_in
from robocache._cache.values import (
    Path,
    Stamps,
    cut,
    empty_stream,
    keep,
    method_of,
    mover,
    numpy_dtype,
    row_bytes,
    typed,
    widen,
)
from robocache._recordings.source import Batch, StreamInfo, is_static, max_gap_of
from robocache._recordings.words import NoStream, counted, missing

MOST_STREAMS = 64  # in one call of rc.align
ON_HOST = (None, "cpu", "reference")  # backends that read NumPy arrays in place
DEFAULTS: dict[str, Any] = {
    "edge": "clamp",
    "causal": False,
    "as_of": None,
    "on_nan": "propagate",
}  # the defaults of rc.align


class Cache(HasStatistics):
    """A cache, opened for reading.

    Opening costs the same whatever the cache holds: samples are mapped when they are first used. A Cache does not see
    what is committed after it was opened. Threads may share it, and a child process may use it after a fork. Pickling
    keeps only the path and `map`, and opens the cache again.

    Args:
        path: The directory.
        map: True: samples are views of the mapped files. If such a file becomes shorter or its disk fails, the system
            ends the process (SIGBUS) when the lost samples are used. False: an episode's samples are copied into memory
            when they are first used, and such a failure raises FileError with the file's name.

    Attributes:
        path: The directory.
        bytes: The size of all samples.
        episodes: The episodes, by number or name: `cache.episodes[3].streams["joints"]` is a `Stream` over the mapped
            files, without a copy.
        streams: {name: RecordedStream}: type, dtype, shape, channels, method and metadata, with "varies" where the
            episodes differ. The samples are in the episodes; a cache with one episode has them here too. A stream that
            a recipe joined from several topics is one stream here and in `align`; its `members` name what is stored.
        sources: What the episodes were made from.

    Raises:
        FileError: The cache is missing, damaged, or written by a newer RoboCache.

    Examples:
        >>> cache = rc.Cache("cache")
        >>> aligned = cache.align(episodes=[0, 3], rate=50)
    """

    files: tuple[str, ...] = ()  # as a source for another cache, it is always read again

    def __init__(self, path: Path, *, map: bool = True) -> None:
        self.path = os.fspath(path)
        self._map = bool(map)
        if os.path.isfile(path):
            raise _core.FileError(
                f"{self.path}: is a file, and a cache is a folder; `robocache build` makes one of recordings"
            )
        self._core = _core.Cache(os.fsencode(path), self._map)
        if torn := self._core.torn_bytes():
            warnings.warn(
                f"{self.path}: the last {torn} bytes of its journal are not a whole commit, which is left out: it was "
                "interrupted, or was damaged since; `robocache verify` says what can be taken in",
                stacklevel=2,
            )
        elif unnamed := self._core.unnamed_shards():
            warnings.warn(
                f"{self.path}: no commit names {unnamed} of its shards, and their episodes are left out: a commit was "
                "interrupted, or the journal was damaged; `robocache verify` says what can be taken in",
                stacklevel=2,
            )
        streams, episodes, sources, self.bytes = self._core.counts()
        self.sources = [CacheSource(*self._core.source(k)) for k in range(sources)]
        infos: dict[str, StreamInfo] = {}
        for k in range(streams):
            name, kind, dtype, shape, channels, ranges, ragged, metadata = self._core.stream(k)
            info = StreamInfo(
                name, kind, numpy_dtype(dtype), shape, channels, method_of(ranges, shape), ragged, metadata
            )
            infos[name] = info
        self._stored = infos
        self._names = list(infos)
        self._tiers: dict[str, str] = {}
        self._hidden: frozenset[str] = frozenset()
        self.episodes = CachedEpisodes(self, episodes)
        self._tiers = tiers_in(infos, lambda name: any(name in episode._entries for episode in self.episodes))
        self._hidden = frozenset(self._tiers.values())
        self.episodes = CachedEpisodes(
            self, episodes
        )  # made again, because the first ones did not know the hidden streams
        # As users see them: a camera's info has the options of its frames.
        self._infos = infos | {name: served(infos[name], infos[tier]) for name, tier in self._tiers.items()}
        self._joined = joins(infos)
        self._shown = shown([name for name in infos if name not in self._hidden], self._joined)
        self._missing_frames = MissingFrames(self.path)
        self.streams = StreamsOfCache(self)
        self._known_reaches: dict[tuple[int, str], Reach | None] = {}  # by episode and stored stream
        self._known_spans: dict[Any, dict[int, Span | None]] = {}  # by (streams, whether each is held), then by episode
        self._has_warned_of_statistics = False
        self._known_window_statistics: dict[str, Any] = {}  # of a loader's windows, by what they describe
        self._known_constants: dict[tuple[int, str], tuple[bool, Duration | None]] = {}  # static, and max_gap

    def _found(self, metadata: dict[str, str]) -> dict[str, str]:
        """A video's metadata with the path that exists: the stored one, otherwise the one relative to the cache."""
        moved = os.path.normpath(os.path.join(os.path.realpath(self.path), metadata.get("from_cache", "")))
        if "from_cache" in metadata and not os.path.exists(metadata.get("file", "")) and os.path.exists(moved):
            return metadata | {"file": moved}
        return metadata

    def _info(self, name: str) -> StreamInfo:
        """The info of a stored or joined stream."""
        if name in self._joined:
            return info_of(name, [self._infos[member] for member in self._joined[name]])
        if name in self._hidden:
            of = self._stored[name].metadata["of"]
            raise NoStream(
                f'{self.path}: stream "{name}" has the frames of "{of}", which are that camera\'s samples; take "{of}"'
            )
        if name not in self._infos:
            raise NoStream(missing(f"{self.path}: the cache has no stream", name, self._shown))
        return self._infos[name]

    def batches(self, streams: Collection[str] | None = None, episode: int | None = None) -> Iterator[Batch]:
        """All samples in pieces of a few MiB, as a recording gives them and CacheWriter takes them, minus latencies.

        Args:
            streams: Only these streams. Default: all.
            episode: Only this episode. Default: all.

        Yields:
            Batches, episode by episode.
        """
        for name in streams or ():
            self._info(name)  # raises if there is no such stream
        wanted = None if streams is None else {member for n in streams for member in self._joined.get(n, (n,))}
        if wanted is not None:
            wanted |= {self._tiers[name] for name in wanted if name in self._tiers}
        yield from self._batches(wanted, episode)

    def _batches(self, stored: Collection[str] | None, episode: int | None) -> Iterator[Batch]:
        """As batches(), for streams as they are stored."""
        for number in range(len(self.episodes)) if episode is None else [episode]:
            taken = self.episodes[number]
            for name in taken._entries:
                if stored is None or name in stored:
                    stream = taken.streams.stored(name)
                    late = _core.nanoseconds("latency", stream.latency)
                    for batch in cut(number, stream):
                        yield batch._replace(times=batch.times - late)

    def align(
        self,
        episodes: Sequence[int | str | slice] | int | str | slice | None = None,
        *,
        rate: float | None = None,
        targets: Any = None,
        streams: Sequence[str] | str | None = None,
        method: Method | Mapping[str, Method] | None = None,
        max_gap: Duration | Mapping[str, Duration] | None = None,
        edge: str | Mapping[str, str] = "clamp",
        causal: bool | Mapping[str, bool] = False,
        as_of: Any = None,
        on_nan: str | Mapping[str, str] = "propagate",
        device: Any = None,
        backend: str | None = None,
    ) -> CacheAligned:
        """Aligns whole episodes: each on a timeline of its own, or at times that you choose.

        NumPy results are computed from the mapped files in place, whichever shards hold the episodes. For a device, and
        if channels were added after an episode, samples are copied first. For videos and streams whose samples vary in
        length (images, clouds) the sample's number is aligned, and `samples` has the samples. A joined stream has the
        channels of its members side by side: valid where all are, as old as the oldest, with index -1.

        Args:
            episodes: Numbers, names or slices. Default: all.
            rate: Hertz. An episode's timeline spans the time that its streams share, counting only those that run all
                the time: constants and streams that are written on change do not limit it (docs/semantics.md, The
                default timeline). All rows have as many steps as the longest; `lengths` says how many are real.
            targets: Instead of a rate: [T], or [B, T], relative to each episode's start, in seconds (float) or
                nanoseconds (int); or a `Timeline` whose start, or start for each episode, is relative in the same way.
                All of them count: lengths are T.
            streams: Names. Default: all that any of the episodes has. In an episode without the stream nothing is
                valid.
            method: As in `align`, for all streams or by name. Default: as stored.
            max_gap: As in `align`, for all streams or by name. Default: as stored; if the episodes differ, the
                smallest.
            edge: As in `align`, for all streams or by name.
            causal: As in `align`, for all streams or by name: `{"action": False}`. Other streams have the default.
            as_of: As in `align`: when each row decides, relative to its episode's start, in seconds (float) or
                nanoseconds (int); one time, or one for each episode. "anchor": at the t of a `Timeline.around`. By
                name: `{"joints": 2.0}`. Other streams have the default.
            on_nan: As in `align`, for all streams or by name.
            device: None: NumPy arrays. "cpu", "cuda", ...: torch tensors there.
            backend: As in `align`.

        Returns:
            A `CacheAligned`. Stored latencies are subtracted.

        Examples:
            >>> aligned = cache.align(episodes=[0, 3], rate=50)   # the default timeline of each episode
            >>> aligned["joints"].values, aligned.lengths, aligned.times
            >>> cache.align(targets=[0.0, 0.5, 1.0])              # seconds after the start of each episode
            >>> cache.align([0, 3], targets=[[1.9, 2.0], [4.9, 5.0]], as_of=[2.0, 5.0])   # known at the last steps
            >>> cache.align(targets=rc.Timeline.around(2.0, history=1, horizon=8, rate=10), as_of="anchor")
        """
        chosen = [self.episodes[k] for k in numbers_of("Cache.align", self.episodes, episodes)]
        if (rate is None) == (targets is None):
            raise ValueError("Cache.align: give a rate or targets, one of them")
        asked_for = names_of(streams)
        names = self._having(chosen) if asked_for is None else asked_for
        infos = {name: self._info(name) for name in names}
        groups = {name: self._joined.get(name, (name,)) for name in names}
        move = mover(device)
        known = decisions_of(as_of, chosen, targets, move)
        options = {"edge": edge, "causal": causal, "as_of": known, "on_nan": on_nan}
        call: dict[str, Any] = {
            option: DEFAULTS[option] if isinstance(given, Mapping) else given for option, given in options.items()
        }
        own = {option: given for option, given in options.items() if isinstance(given, Mapping)}
        given = {"method": method, "max_gap": max_gap, **own}
        asked = prepared("Cache.align", groups, self._infos, given, call["edge"])
        line, lengths = self._timeline(chosen, asked, rate, targets)
        result = CacheAligned()
        members: dict[str, Stream[Any]] = {}
        in_place: dict[str, str] = {}  # the stored streams that are read in place, row by row
        held: dict[str, Stream[Any]] = {}  # streams that are constants in some episodes
        constant: dict[str, list[int]] = {}  # the rows of those episodes
        for key, (_, member, changes) in asked.items():
            stored = self._infos[member]
            rows, gap = self._constants_and_gap(member, chosen)
            changes = {"method": stored.method, "max_gap": gap, **changes}
            if rows:
                whole = self._packed(member, stored, chosen, move, result.samples).replace(**changes)
                held[key], constant[key] = hold_always(whole, move), rows
                if len(rows) == sum(member in episode.samples for episode in chosen):
                    continue
                members[key] = whole
            elif move is keep and backend in ON_HOST and self._is_scattered(member, stored, chosen):
                in_place[key] = member
                members[key] = empty_stream(stored).replace(**changes)
            else:
                members[key] = self._packed(member, stored, chosen, move, result.samples).replace(**changes)
        at: Any = move(line) if isinstance(line, np.ndarray) else line
        if isinstance(line, Timeline):
            at = with_start(line, move(line.start))
        aligned = self._align_in_place(members, in_place, chosen, at, call, backend) if in_place else {}
        aligned |= align_some({key: members[key] for key in members if key not in aligned}, at, call, backend)
        for key, constants in align_some(held, at, call, backend).items():
            aligned[key] = with_rows(aligned.get(key), valid_always(constants), constant[key])
        for name, info in infos.items():
            parts = [aligned[key_of(name, member, groups)] for member in groups[name]]
            result[name] = put_together(parts, info.dtype) if name in self._joined else parts[0]
            if not is_numbered(info) and len(info.channels) == int(np.prod(info.shape, dtype=np.int64)):
                result.channels[name] = info.channels
        result.lengths = move(lengths)
        result.times = at.times if isinstance(at, Timeline) else at
        result.episodes = [episode.index for episode in chosen]
        return result

    def _constants_and_gap(self, name: str, chosen: Sequence[CachedEpisode]) -> tuple[list[int], Duration | None]:
        """The rows of the episodes in which a stored stream is a constant, and the smallest max_gap of all episodes."""
        if not self._may_be_constant(name):
            return [], None
        known = [
            self._constant_and_gap(episode, name) if name in episode.samples else (False, None) for episode in chosen
        ]
        gaps = [gap for _, gap in known if gap is not None]
        least = min(gaps, key=lambda gap: _core.nanoseconds("max_gap", gap), default=None)
        return [row for row, (static, _) in enumerate(known) if static], least

    def _may_be_constant(self, name: str) -> bool:
        """Whether an episode's metadata may mark a stored stream as a constant, or give it a max_gap."""
        return bool({"static", "max_gap_ns"} & self._infos[name].metadata.keys())

    def _constant_and_gap(self, episode: CachedEpisode, name: str) -> tuple[bool, Duration | None]:
        """Whether a stored stream is a constant in this episode, and its max_gap there."""
        if not self._may_be_constant(name):
            return False, None
        key = episode.index, name
        if key not in self._known_constants:
            info = episode._info(name)
            self._known_constants[key] = is_static(info), max_gap_of(info)
        return self._known_constants[key]

    def _having(self, chosen: Sequence[CachedEpisode]) -> list[str]:
        """The streams that any of these episodes has, as users see them."""
        return shown([name for name in self._names if any(name in e.samples for e in chosen)], self._joined)

    def _timeline(
        self, chosen: Sequence[CachedEpisode], asked: Mapping[str, PreparedStream], rate: float | None, targets: Any
    ) -> tuple[Timeline | Stamps, Stamps]:
        starts = np.asarray([episode.start for episode in chosen], np.int64)
        if rate is not None:
            rate = rate_of("Cache.align", rate)
            spans = self._spans(chosen, asked)
            starts = np.asarray(
                [e.start if s is None else s.start for e, s in zip(chosen, spans, strict=True)], np.int64
            )
            lengths = np.asarray([steps_of(span, rate) for span in spans], np.int64)
            count = int(lengths.max(initial=0))
            longest = int(lengths.argmax()) if len(lengths) else 0
            if count and spans[longest] is not None:
                sizes = (row_bytes(self._infos[one.member]) for one in asked.values())
                size = result_bytes(len(chosen) * count, sizes)
                where, name, span = "Cache.align", chosen[longest].name, spans[longest]
                assert span is not None
                refuse_too_large(where, name, span, rate, count, size, self._reaches(chosen[longest], asked))
            return Timeline(starts, rate=rate, count=count), lengths
        if isinstance(targets, Timeline):
            line = with_start(targets, starts + relative("the start of targets", targets.start, len(chosen)))
            return line, np.full(len(chosen), line.count, np.int64)
        given = on_host(targets) if hasattr(targets, "shape") else np.asarray(targets)
        if given.dtype == np.int32 or given.size == 0:
            given = given.astype(np.int64)
        check_dtype("Cache.align: ", "targets", given, ("int64", "float64", "float32"), "int64 ns or float seconds")
        if given.ndim not in (1, 2) or (given.ndim == 2 and len(given) != len(chosen)):
            raise ValueError(f"Cache.align: targets are {list(given.shape)}; expected [T] or [{len(chosen)}, T]")
        times = nanoseconds("Cache.align: targets: ", given)
        times = starts[:, None] + (times if times.ndim == 2 else times[None, :])
        return np.ascontiguousarray(times), np.full(len(chosen), times.shape[1], np.int64)

    def _is_scattered(self, name: str, info: StreamInfo, chosen: Sequence[CachedEpisode]) -> bool:
        """Whether these episodes lie in several shards or have different latencies, so that rows are read in place."""
        if is_numbered(info) or not chosen:
            return False
        entries = [episode._entries.get(name) for episode in chosen]
        latencies = {entry[3] for entry in entries if entry is not None}
        groups = {episode._group for episode in chosen}
        return not self._map or None in entries or len(groups) > 1 or len(latencies) > 1

    def _align_in_place(
        self,
        members: dict[str, Stream[Any]],
        in_place: Mapping[str, str],
        chosen: Sequence[CachedEpisode],
        at: Any,
        call: Mapping[str, Any],
        backend: str | None,
    ) -> dict[str, Aligned[Any]]:
        """Aligns streams whose episodes lie in several shards, each row read in place.

        A stream that cannot be read in place, because a shard has fewer channels than the stream has now, is packed
        into `members` for rc.align instead.
        """
        numbers = np.asarray([episode.index for episode in chosen], np.int64)
        aligned: dict[str, Aligned[Any]] = {}
        keys = list(in_place)
        for begin in range(0, len(keys), MOST_STREAMS):
            some = {key: members[key] for key in keys[begin : begin + MOST_STREAMS]}
            places = [self._names.index(in_place[key]) for key in some]
            table = _core.EpisodeTable(self._core, places, False)
            options = (call["edge"], call["causal"], call["as_of"], call["on_nan"], True, backend)
            made = _core.align_episodes(table, numbers, some, at, *options)
            if made is not NotImplemented:
                aligned.update(made)
                continue
            for key, stream in some.items():
                packed = self._packed(in_place[key], self._infos[in_place[key]], chosen, keep, {})
                same = {name: getattr(packed, name) for name in ("values", "times", "arrivals", "offsets")}
                members[key] = stream.replace(**same)
        return aligned

    def _spans(self, chosen: Sequence[CachedEpisode], asked: Mapping[str, PreparedStream]) -> list[Span | None]:
        """The span of each episode's default timeline. It is cached for further calls with the same streams."""
        held = [changes.get("method", self._infos[name].method) for _, name, changes in asked.values()]
        names = tuple(one.member for one in asked.values())
        kinds = tuple(is_held(method, self._infos[name].dtype) for method, name in zip(held, names, strict=True))
        known = self._known_spans.setdefault((names, kinds), {})
        self._know_reaches([episode for episode in chosen if episode.index not in known], names)
        for episode in chosen:
            if episode.index not in known:
                known[episode.index] = span_of(self._reaches(episode, asked))
        return [known[episode.index] for episode in chosen]

    def _reaches(self, episode: CachedEpisode, asked: Mapping[str, PreparedStream]) -> dict[str, Reach]:
        """The reach of each of these streams in the episode, as it will be aligned."""
        found: dict[str, Reach] = {}
        for key, (_, name, changes) in asked.items():
            if name not in episode.samples:
                continue
            if (episode.index, name) not in self._known_reaches:
                self._know_reaches([episode], [name])
            reach = self._known_reaches[episode.index, name]
            if reach is not None and "method" in changes:
                reach = reach._replace(is_held=is_held(changes["method"], self._infos[name].dtype))
            if reach is not None:
                found[key] = reach
        return found

    def _know_reaches(self, chosen: Sequence[CachedEpisode], names: Iterable[str]) -> None:
        """Finds the reaches of stored streams in these episodes, and caches them, because that reads all stamps."""
        for name in names:
            unknown = [e for e in chosen if name in e._entries and (e.index, name) not in self._known_reaches]
            if not unknown:
                continue
            info, numbers = self._infos[name], np.asarray([episode.index for episode in unknown], np.int64)
            held = is_held(info.method, info.dtype)
            rows = self._core.reaches(numbers, self._names.index(name)).tolist()
            may_be_constant = self._may_be_constant(name)
            for episode, (first, last, is_running, is_there) in zip(unknown, rows, strict=True):
                static = may_be_constant and self._constant_and_gap(episode, name)[0]
                reach = Reach(first, last, bool(is_running) and not static, held, static)
                self._known_reaches[episode.index, name] = reach if is_there else None

    def _packed(
        self,
        name: str,
        info: StreamInfo,
        chosen: Sequence[CachedEpisode],
        move: Callable[[NDArray[Any]], Any],
        samples: dict[str, list[Sequence[Any]]],
    ) -> Stream[Any]:
        """A stream of these episodes, packed: without a copy if one shard has them all."""
        having = [episode for episode in chosen if name in episode.samples]
        latencies = {episode._entries[name][3] for episode in having}
        groups = {episode._group for episode in having}
        numbered = is_numbered(info)
        channels = info.channels if info.channels and not numbered else None
        if self._map and len(groups) == 1 and len(having) == len(chosen) and len(latencies) == 1 and not numbered:
            stream = having[0]._entries[name][0]
            values, times, arrivals, _, offsets = self._core.read_group(groups.pop(), stream)
            values = typed(values, info.dtype)
            if values.shape[1:] == info.shape:
                rows = np.asarray([episode._row for episode in chosen], np.int64)
                # Only samples from the first to the last of these episodes are checked, or moved to a device.
                first, last = int(offsets[rows.min()]), int(offsets[rows.max() + 1])
                if (first, last) != (0, len(times)):
                    values, times, arrivals = values[first:last], times[first:last], arrivals[first:last]
                    offsets = np.clip(offsets, first, last) - first
                return Stream(
                    move(values),
                    move(times),
                    arrivals=move(arrivals),
                    offsets=move(offsets),
                    rows=move(rows),
                    channels=channels,
                    latency=stored_duration(latencies.pop()),
                )
        parts: list[NDArray[Any]] = []
        times_of: list[Stamps] = []
        arrivals_of: list[Stamps] = []
        lengths = []
        seen: list[Sequence[Any]] = []
        for episode in chosen:
            if name not in episode.samples:
                lengths.append(0)
                seen.append(())
                continue
            stream, _, _, late = episode._entries[name]
            if numbered:
                found = episode.streams[name]
                values, times, arrivals = found.values, found.times, found.arrivals
                seen.append(found.samples if found.samples is not None else ())
            else:  # as `streams` has it, without what else it says of each stream
                values, times, arrivals, _, _ = self._core.read(episode.index, stream)
                values = widen(typed(values, info.dtype), info.shape)
            parts.append(values)
            times_of.append(times - late)
            arrivals_of.append(arrivals)
            lengths.append(len(times))
        if numbered:
            samples[name] = seen
        dtype = np.dtype(np.int64) if numbered else info.dtype
        shape = () if numbered else info.shape
        none = np.zeros(0, np.int64)
        return Stream(
            move(np.concatenate([*parts, np.zeros((0, *shape), dtype)])),
            move(np.concatenate([*times_of, none])),
            arrivals=move(np.concatenate([*arrivals_of, none])),
            offsets=move(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)),
            channels=channels,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_cache, (os.path.abspath(self.path), self._map)

    def _described(self) -> str:
        seconds = sum(episode.duration for episode in self.episodes) if len(self.episodes) <= 10_000 else None
        long = "" if seconds is None else f", {seconds:.1f} s"
        return f"{counted(len(self.episodes), 'episode')}{long}, {self.bytes / 2**20:.1f} MiB"

    def __repr__(self) -> str:
        head = f"Cache({self.path!r}: {self._described()})"
        return f"{head}\n{self.streams!r}" if self._names else head

    def _repr_html_(self) -> str:
        return _tables.as_html(f"{self.path}: {self._described()}", STREAMS, self.streams._rows())


def _open_cache(path: str, map: bool) -> Cache:
    return Cache(path, map=map)


def decisions_of(as_of: Any, chosen: Sequence[CachedEpisode], targets: Any, move: Callable[[NDArray[Any]], Any]) -> Any:
    """The call's as_of, given relative to each episode's start, as a time for each episode; by name, a mapping."""
    if isinstance(as_of, Mapping):
        return {name: decisions_of(given, chosen, targets, move) for name, given in as_of.items()}
    if as_of is None or as_of is False:
        return as_of
    if isinstance(as_of, str) and as_of == "anchor":
        anchor_of("Cache.align: ", targets)
        return as_of
    if as_of is True or isinstance(as_of, str):
        raise TypeError(
            f"Cache.align: as_of is {as_of!r}; expected seconds as a float, nanoseconds as an int, an array with a "
            'time for each episode, relative to its start, or "anchor"'
        )
    starts = np.asarray([episode.start for episode in chosen], np.int64)
    return move(starts + relative("as_of", as_of, len(chosen)))


def relative(what: str, given: Any, rows: int) -> Stamps:
    """Times after the start of an episode, one or one for each row, in nanoseconds."""
    times = on_host(given) if hasattr(given, "shape") else np.asarray(given)
    if times.size == 0:
        times = times.astype(np.int64)
    kinds = ("int64", "float64", "float32")
    check_dtype("Cache.align: ", f"the times of {what}", times, kinds, "int64 ns or float seconds")
    if times.ndim > 1 or (times.ndim == 1 and len(times) != rows):
        raise ValueError(f"Cache.align: {what} is {list(times.shape)}; expected one time or [{rows}]")
    return nanoseconds(f"Cache.align: {what}: ", times)


def align_some(
    streams: Mapping[str, Stream[Any]], at: Any, call: Mapping[str, Any], backend: str | None
) -> dict[str, Aligned[Any]]:
    """rc.align for any number of streams."""
    keys = list(streams)
    aligned: dict[str, Aligned[Any]] = {}
    for begin in range(0, len(keys), MOST_STREAMS):
        some = {key: streams[key] for key in keys[begin : begin + MOST_STREAMS]}
        aligned |= align(some, at, **call, backend=backend)
    return aligned


def with_rows(whole: Aligned[Any] | None, some: Aligned[Any], rows: list[int]) -> Aligned[Any]:
    """`whole` with these rows replaced by those of `some`. If `whole` is None, all rows are those of `some`."""
    if whole is None:
        return some
    for into, array in zip(whole, some, strict=True):
        into[rows] = array[rows]
    return whole
