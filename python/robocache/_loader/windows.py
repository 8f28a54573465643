"""Windows: the numbered anchors of a loader: which episodes, which moments of each, and why others are left out."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache import _core
from robocache._align.extent import nanoseconds
from robocache._align.stream import Duration, Stream
from robocache._cache.prepare import is_numbered, numbers_of
from robocache._limits import SIZE_LIMIT
from robocache._recordings.words import counted, missing, named

if TYPE_CHECKING:
    from robocache._cache.cache import Cache
    from robocache._cache.default_timeline import Span
    from robocache._cache.episodes import CachedEpisode

Integers = NDArray[np.int64]
SPLITS = ("train", "val")
VAL_FRACTION = 0.1
MOST_WINDOWS = SIZE_LIMIT
NAMED_EPISODES = 3  # the most that a sentence names
DAY = 24 * 3600 * 10**9  # nanoseconds


class Grid(NamedTuple):
    """Where anchors lie: start + rint(m * 1e9 / rate), or start + m * stride."""

    rate: float
    stride: int | None  # nanoseconds; None: 1 / rate

    def offsets(self, m: Integers) -> Integers:
        if self.stride is not None:
            return m * self.stride
        return np.rint(m.astype(np.float64) * 1e9 / self.rate).astype(np.int64)

    def period(self, most: int) -> int | None:
        """Nanoseconds p such that the offset of m is m p, for all m up to `most`. None: there is none."""
        if self.stride is not None:
            return self.stride
        period = 1e9 / self.rate
        exact = period.is_integer() and period * self.rate == 1e9 and most * max(period, 1e9) < 2**53
        return int(period) if exact else None

    def first_from(self, offset: int) -> int:
        """The least m whose offset is at least this."""
        m = max(int(offset * self.rate * 1e-9) - 2, 0) if self.stride is None else max(offset // self.stride - 1, 0)
        while self._offset(m) < offset:
            m += 1
        return m

    def count_to(self, offset: int) -> int:
        """The number of m, from 0 on, whose offset is at most this."""
        if offset < 0:
            return 0
        m = int(offset * self.rate * 1e-9) + 2 if self.stride is None else offset // self.stride + 1
        while m > 0 and self._offset(m - 1) > offset:
            m -= 1
        return m

    def _offset(self, m: int) -> float:
        """The offset of m, even if it is beyond the range of times."""
        return float(np.rint(m * 1e9 / self.rate)) if self.stride is None else m * self.stride


class Windows:
    """The windows of a loader, numbered from 0 in the order of the cache's episodes and of time.

    Attributes:
        episodes: The numbers of the episodes that have a window.
        starts: int64 nanoseconds: where each of their spans starts.
        left_out: {reason: the number of episodes or windows that the loader leaves out for it}.
    """

    def __init__(self, episodes: Integers, starts: Integers, grid: Grid, steps: Sequence[Integers | range]) -> None:
        self.episodes, self.starts, self.grid = episodes, starts, grid
        counts = np.asarray([len(each) for each in steps], np.int64)
        self._ends = np.cumsum(counts)
        self._first = np.asarray([each[0] if len(each) else 0 for each in steps], np.int64)
        self._shift = self._ends - counts - self._first  # from the m of an episode to the number of the window
        self._period = grid.period(max((int(each[-1]) for each in steps if len(each)), default=0))
        # Where anchors were taken out of the middle of an episode, the numbers m that are left.
        has_holes = any(len(each) and int(each[-1]) - int(each[0]) + 1 != len(each) for each in steps)
        self._steps = np.concatenate([np.asarray(each, np.int64) for each in steps]) if has_holes else None
        # If the windows of each episode are a period apart: by episode, the anchor that window 0 would have in it.
        self._origin = None if self._period is None or has_holes else starts - self._shift * self._period
        self.left_out: dict[str, int] = {}

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def at(self, numbers: Integers) -> tuple[Integers, Integers, Integers]:
        """For each of these windows: the episode's place in `episodes`, its number in the cache, the anchor in ns."""
        place = self._ends.searchsorted(numbers, "right")
        if self._origin is not None and self._period is not None:
            return place, self.episodes.take(place), self._origin.take(place) + numbers * self._period
        m = numbers - self._shift.take(place) if self._steps is None else self._steps[numbers]
        offset = self.grid.offsets(m) if self._period is None else m * self._period
        return place, self.episodes.take(place), self.starts.take(place) + offset

    def __repr__(self) -> str:
        said = f"Windows({len(self):,} of {counted(len(self.episodes), 'episode')}"
        return f"{said}; left out: {left_out_text(self.left_out)})" if self.left_out else f"{said})"


def left_out_text(left_out: Mapping[str, int]) -> str:
    """3 windows that where= leaves out; 1 episode without stream "joints"."""
    said = []
    for why, count in left_out.items():
        what, _, rest = why.partition(" ")
        said.append(f"{counted(count, what.removesuffix('s'))} {rest}")
    return "; ".join(said)


def selected_episodes(cache: Cache, episodes: Any, split: str | None, left_out: dict[str, int]) -> list[int]:
    """The episodes of the call, in the order of the cache."""
    if len(cache.episodes) == 0:
        raise ValueError(f"Loader: {cache.path} has no episodes")
    if callable(episodes):
        numbers = [episode.index for episode in cache.episodes if episodes(episode)]
        if not numbers:
            raise ValueError(
                f"Loader: none of the {counted(len(cache.episodes), 'episode')} of {cache.path} satisfies episodes="
            )
    else:
        numbers = sorted(numbers_of("Loader", cache.episodes, episodes))
        for before, after in itertools.pairwise(numbers):
            if before == after:
                raise ValueError(f"Loader: episode {before} is given twice in episodes=")
        if not numbers:
            raise ValueError("Loader: episodes= names no episode")
    if len(numbers) < len(cache.episodes):
        left_out["episodes that episodes= does not name"] = len(cache.episodes) - len(numbers)
    if split is None:
        return numbers
    if split not in SPLITS:
        raise ValueError(f"Loader: split is {split!r}; expected {' or '.join(map(repr, SPLITS))}, or None for all")
    mine = [number for number in numbers if split_of(cache.episodes[number]) == split]
    if not mine:
        raise ValueError(
            f'Loader: none of the {counted(len(numbers), "episode")} falls into split="{split}"; a hash of each '
            f"episode's identity decides, and 1 in {round(1 / VAL_FRACTION)} is val. Take more episodes, or name them "
            "by episodes="
        )
    if len(mine) < len(numbers):
        left_out[f'episodes of the other split than "{split}"'] = len(numbers) - len(mine)
    return mine


def identity_of(episode: CachedEpisode) -> str:
    """The identity of an episode: the hash of its source, its number in that source, and its name."""
    source = episode.source
    said = "" if source is None else source.hash or source.path
    return "\0".join([said, str(episode.number), episode.name])


def split_of(episode: CachedEpisode) -> str:
    """ "train" or "val", by a hash of the episode's identity. Adding episodes does not change it."""
    digest = hashlib.blake2b(identity_of(episode).encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return "val" if int.from_bytes(digest, "little") < VAL_FRACTION * 2.0**64 else "train"


def anchor_of(where: str, episode: CachedEpisode, t: float | int) -> Integers:
    """A moment of an episode in nanoseconds, int64 [1]. Raises if it is far from the episode."""
    anchor = nanoseconds(f"{where}: t: ", np.asarray([t]))
    if not episode.start - DAY <= anchor[0] <= episode.end + DAY:
        raise ValueError(
            f"{where}: t is {t}, more than a day from episode {episode.name!r}, which lasts from "
            f"{episode.start * 1e-9:.3f} to {episode.end * 1e-9:.3f} s on its recording's clock"
        )
    return anchor


def stride_of(stride: Duration | None) -> int | None:
    """The stride in nanoseconds."""
    if stride is None:
        return None
    found = _core.nanoseconds("Loader: stride", stride)
    if found <= 0:
        raise ValueError(f"Loader: stride is {stride}; it must be positive")
    return found


def windows_of(
    cache: Cache,
    numbers: Sequence[int],
    spans: Sequence[Span | None],
    grid: Grid,
    reach: tuple[int, int],
    *,
    whole: bool,
    drop_last_steps: int,
    keep: Callable[[int, Integers], NDArray[np.bool_]] | None,
    left_out: dict[str, int],
) -> Windows:
    """The windows of these episodes.

    Args:
        reach: The earliest and the latest step of any key, in nanoseconds from the anchor.
        keep: (episode number, anchors) -> which of the anchors `where=` keeps.
    """
    episodes, starts, steps = [], [], []
    lost = {"episodes whose streams share no time": 0, "windows with steps outside their episode (whole=True)": 0}
    lost |= {"windows at the ends of episodes (drop_last_steps)": 0, "windows that where= leaves out": 0}
    for number, span in zip(numbers, spans, strict=True):
        if span is None or span.end < span.start:
            lost["episodes whose streams share no time"] += 1
            continue
        length = span.end - span.start
        first, end = 0, grid.count_to(length)
        if whole:
            before = end
            first = grid.first_from(max(-reach[0], 0))
            end = max(min(end, grid.count_to(length - max(reach[1], 0))), first)
            lost["windows with steps outside their episode (whole=True)"] += before - (end - first)
        dropped = min(drop_last_steps, end - first)
        lost["windows at the ends of episodes (drop_last_steps)"] += dropped
        kept: Integers | range = range(first, end - dropped)
        if keep is not None and len(kept):
            m = np.arange(kept[0], kept[-1] + 1, dtype=np.int64)
            left = m[keep(number, span.start + grid.offsets(m))]
            lost["windows that where= leaves out"] += len(m) - len(left)
            kept = left
        if len(kept):
            episodes.append(number)
            starts.append(span.start)
            steps.append(kept)
    left_out |= {why: count for why, count in lost.items() if count}
    if not steps:
        raise ValueError(
            f"Loader: no window is left of {counted(len(numbers), 'episode')} of {cache.path}: "
            f"{left_out_text(left_out) or 'their streams share no time'}"
        )
    made = Windows(np.asarray(episodes, np.int64), np.asarray(starts, np.int64), grid, steps)
    made.left_out = left_out
    if len(made) > MOST_WINDOWS:
        raise ValueError(f"Loader: {len(made):,} windows are too many; give a longer stride")
    return made


def where_filter(cache: Cache, where: Any) -> Callable[[int, Integers], NDArray[np.bool_]] | None:
    """The filter that `where=` asks for: (episode number, anchors) -> which anchors stay.

    A str names a stream of one channel: windows stay where its value, held, is not 0. "not NAME" means where it is 0.
    Before the stream's first sample no window stays. A dict gives intervals for episodes, by number or name:
    [(start, end), ...] in seconds from the episode's start.
    """
    if where is None:
        return None
    if isinstance(where, str):
        return _by_stream(cache, where)
    if isinstance(where, Mapping):
        return _by_intervals(cache, where)
    raise TypeError(
        f"Loader: where is {where!r}; expected the name of a stream, or intervals by episode: {{0: [(1.0, 2.5)]}}"
    )


def _by_stream(cache: Cache, where: str) -> Callable[[int, Integers], NDArray[np.bool_]]:
    negated = where.startswith("not ") and where not in cache.streams
    name = where.removeprefix("not ") if negated else where
    with named("Loader: where"):
        info = cache._info(name)  # raises if there is no such stream
    if is_numbered(info) or name in cache._joined or int(np.prod(info.shape, dtype=np.int64)) != 1:
        raise ValueError(f'Loader: where names stream "{name}", which has {list(info.shape)} channels; expected one')

    def keep(number: int, anchors: Integers) -> NDArray[np.bool_]:
        episode = cache.episodes[number]
        if name not in episode.samples:
            return np.zeros(len(anchors), bool)
        found = episode.streams[name]
        from robocache._align.align import align

        values = Stream(np.asarray(found.values), found.times, latency=found.latency, method="hold", causal=False)
        held = align([values], anchors)[0]
        is_known = held.age >= 0  # before the stream's first sample nothing is known
        return ((held.values.reshape(len(anchors)) != 0) != negated) & is_known

    return keep


def _by_intervals(cache: Cache, where: Mapping[Any, Any]) -> Callable[[int, Integers], NDArray[np.bool_]]:
    known: dict[int, Integers] = {}
    for episode, intervals in where.items():
        [number] = numbers_of("Loader: where", cache.episodes, [episode])
        given = np.asarray(intervals, np.float64)
        is_list = given.ndim == 2 and given.shape[1] == 2 and bool(np.isfinite(given).all())
        if not is_list or np.any(given[:, 1] < given[:, 0]):
            raise ValueError(
                f"Loader: where[{episode!r}] is {intervals!r}; expected [(start, end), ...] in seconds from the "
                "episode's start, with start <= end"
            )
        known[number] = cache.episodes[number].start + np.rint(given * 1e9).astype(np.int64)

    def keep(number: int, anchors: Integers) -> NDArray[np.bool_]:
        stays = np.zeros(len(anchors), bool)
        for start, end in known.get(number, np.zeros((0, 2), np.int64)):
            stays |= (anchors >= start) & (anchors < end)
        return stays

    return keep


MISSING = ("error", "leave_out", "mask")


def with_all_streams(
    cache: Cache, numbers: Sequence[int], streams: Sequence[str], missing_streams: str, left_out: dict[str, int]
) -> list[int]:
    """The episodes that have all of the streams; all episodes for "mask". Raises for "error" if one lacks a stream."""
    if missing_streams not in MISSING:
        raise ValueError(f"Loader: missing is {missing_streams!r}; expected one of {', '.join(map(repr, MISSING))}")
    stays = dict.fromkeys(numbers, True)
    has = {number: cache.episodes[number]._entries.keys() for number in numbers}
    for name in streams:
        members = cache._joined.get(name, (name,))
        without = [number for number in numbers if any(member not in has[number] for member in members)]
        if len(without) == len(numbers):
            known = sorted({stream for number in numbers[:100] for stream in cache.episodes[number].samples})
            raise ValueError(
                missing(f"Loader: none of the {counted(len(numbers), 'episode')} has the stream", name, known)
            )
        if without and missing_streams == "error":
            some = ", ".join(map(str, without[:NAMED_EPISODES])) + (", ..." if len(without) > NAMED_EPISODES else "")
            raise ValueError(
                f'Loader: {len(without):,} of {counted(len(numbers), "episode")} lack stream "{name}" ({some}); '
                'missing="leave_out" leaves those episodes out, missing="mask" keeps them, and it is not valid there'
            )
        if without and missing_streams == "leave_out":
            reason = f'episodes without stream "{name}"'
            left_out[reason] = sum(stays[number] for number in without)
            stays |= dict.fromkeys(without, False)
    kept = [number for number in numbers if stays[number]]
    if not kept:
        raise ValueError(f"Loader: no episode is left: {left_out_text(left_out)}")
    return kept
