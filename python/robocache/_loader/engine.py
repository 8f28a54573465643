"""The engine of a loader: it takes windows and returns the aligned values of every stream, not yet normalised.

A member is a stored stream of a key. On the host members are read in place, whichever shards hold the episodes. For a
device, and if a member cannot be read in place, its samples are packed into one array. Then each window says by a row
number which episode it reads.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache import _core
from robocache._align.align import align
from robocache._align.extent import on_host
from robocache._align.results import Aligned
from robocache._align.stream import Duration, Stream
from robocache._align.timeline import Timeline
from robocache._cache.cache import MOST_STREAMS, with_rows
from robocache._cache.default_timeline import hold_always, valid_always
from robocache._cache.joined import NEVER
from robocache._cache.prepare import PreparedStream, is_numbered
from robocache._cache.tier import KIND
from robocache._cache.values import empty_stream, keep, mover
from robocache._loader.keys import Key, default_edge, default_knowledge, is_consecutive
from robocache._loader.memory import Memory, is_out_of_memory
from robocache._recordings.images import is_image
from robocache._recordings.source import StreamInfo
from robocache._recordings.words import named

if TYPE_CHECKING:
    from robocache._cache.cache import Cache
    from robocache._cache.episodes import CachedEpisode

Integers = NDArray[np.int64]
Draws = Callable[[str, str], NDArray[np.uint64]]
OPTIONS = ("method", "max_gap", "edge", "causal", "as_of", "on_nan")  # arguments of Stream


class Rows(NamedTuple):
    """The windows of a batch."""

    place: Integers  # [B]: the episode's place among those of the loader
    number: Integers  # [B]: the episode's number in the cache
    anchor: Integers  # [B]: nanoseconds


class Member(NamedTuple):
    """A stored stream as a key aligns it."""

    key: str
    label: str  # distinguishes it from the other members of the key
    stream: str  # the name in the key
    stored: str  # the name in the cache; for a camera with frames, the name of its frames
    camera: str | None  # the camera's name, or that of a stream of clouds
    has_frames: bool  # whether the cache has the camera's frames; if not, the sample's number is aligned
    info: StreamInfo
    width: int  # channels
    options: dict[str, Any]  # arguments of Stream.replace
    knowledge: str
    drop: float  # the probability that a window goes without the stream
    has_jitter: bool  # whether a delay is drawn for each window

    @property
    def name(self) -> str:
        """The name that distinguishes it from all other members, in error sentences too."""
        return f"{self.key}: {self.label}"


class StoredOptions(NamedTuple):
    """The options that the cache stores with a member. The spec records them."""

    max_gap: Duration | None
    shifts: list[int]  # nanoseconds, latency and clock offset together: those of the episodes, each once
    is_static: bool  # a constant, in some episodes at least


class Steps(NamedTuple):
    """Steps around the anchor that several members share."""

    first: int | None  # if the steps are consecutive: the first one, in units of 1 / rate
    offsets: Integers


def steps_of(key: Key, rate: float) -> Steps:
    offsets = key.offsets(rate)
    consecutive = key.steps is not None and is_consecutive(key.steps)
    return Steps(key.steps[0] if consecutive and key.steps is not None else None, offsets)


def members_of(
    name: str, key: Key, asked: Mapping[str, PreparedStream], cache: Cache, numbers: Sequence[int]
) -> list[Member]:
    """The members of a key. `asked`: its stored streams with the key's options, from `prepared`."""
    made = []
    if key.voxels is not None and len(asked) > 1:
        raise ValueError(f'Loader: key "{name}" has voxels=, and "{key.streams[0]}" is joined of several streams')
    for label, (stream, stored, changes) in asked.items():
        camera, has_frames = None, False
        info = cache._infos[stored]
        if is_picture(info):
            if len(key.streams) > 1:
                raise ValueError(f'Loader: key "{name}" joins camera "{stored}" with others; a camera stands alone')
            camera = stored
            frames = frames_of(cache, camera, numbers)
            stored, has_frames = frames or camera, frames is not None
            info = cache._stored[stored]
        elif is_numbered(info) and key.voxels is None:
            raise ValueError(
                f'Loader: key "{name}": the samples of stream "{stored}" vary in length (clouds, text), and a '
                "batch has tensors of one shape; clouds become voxels by a key with voxels="
            )
        elif is_numbered(info):
            camera = stored
        if camera is not None or key.voxels is not None:
            changes = {**changes, "method": "nearest" if changes.get("method") == "nearest" else "hold"}
        elif key.image is not None or key.augment is not None:
            given = "augment" if key.image is None else "image"
            raise ValueError(f'Loader: key "{name}" has {given}=, and stream "{stored}" is no camera')
        method = info.method if camera is None else "hold"
        options = {"method": method, "edge": key.edge or default_edge(stream), "on_nan": key.on_nan, **changes}
        if camera is not None and options["edge"] == "nan":
            options["edge"] = "clamp"
        knowledge = key.knowledge or default_knowledge(name)
        if key.latency_jitter and knowledge != "as_of":
            raise ValueError(
                f'Loader: key "{name}" has latency_jitter, which delays what is known at the anchor, and its knowledge '
                f'is "{knowledge}"'
            )
        if knowledge == "truth":
            options["as_of"] = False
        elif knowledge == "causal":
            options |= {"as_of": False, "causal": True}
        width = int(np.prod(info.shape, dtype=np.int64))
        made.append(
            Member(
                key=name,
                label=label,
                stream=stream,
                stored=stored,
                camera=camera,
                has_frames=has_frames,
                info=info,
                width=width,
                options=options,
                knowledge=knowledge,
                drop=key.drop,
                has_jitter=key.latency_jitter,
            )
        )
    return made


def frames_of(cache: Cache, camera: str, numbers: Sequence[int]) -> str | None:
    """The stored stream that has the frames of a camera. None: an episode has pictures but no frames.

    Pictures without frames, in an episode that has other frames or a mark of its loss, could not be decoded by the
    build, and windows leave them out.
    """
    info = cache._stored[camera]
    if info.metadata.get("kind") == KIND or not is_numbered(cache._infos[camera]):
        return camera
    if camera not in cache._tiers:
        return None
    tier = cache._tiers[camera]
    for number in numbers:
        entries = cache.episodes[number]._entries
        if camera in entries and entries[camera][1] and tier not in entries:
            return None
    return tier


def is_picture(info: StreamInfo) -> bool:
    """Whether samples are pictures: of a camera, or an array of pictures or depth."""
    if is_numbered(info):
        return info.metadata.get("kind") in ("video", KIND) or "frames" in info.metadata or is_image(info.metadata)
    if info.dtype == np.uint8:
        return len(info.shape) == 3 and info.shape[2] in (1, 3, 4)
    return info.dtype == np.uint16 and len(info.shape) == 2


class Engine:
    """Aligns windows of a cache's episodes.

    Args:
        cache: The cache.
        numbers: The episodes that have windows.
        members: The members of each key.
        steps: The steps of each key.
        rate: Hertz.
        device: None: results are NumPy arrays. Otherwise torch's name of the device that results are on.
        packs: Whether a member is packed on that device. The others are read in place on the host, and their results
            are moved to the device.
        backend: As in `rc.align`.
    """

    def __init__(
        self,
        cache: Cache,
        numbers: Sequence[int],
        members: Mapping[str, Sequence[Member]],
        steps: Mapping[str, Steps],
        rate: float,
        device: Any = None,
        packs: Callable[[Member], bool] = lambda member: False,
        backend: str | None = None,
    ) -> None:
        self.cache, self.rate, self.backend, self.packs = cache, rate, backend, packs
        self.move: Callable[[NDArray[Any]], Any] = mover(device)
        # Reused for large results on the host. On a GPU, torch's allocator does that.
        self.memory = Memory() if device is None or device.type == "cpu" else None
        self._numbers = list(numbers)
        self._groups: list[tuple[Steps, list[Member]]] = []
        for name, some in members.items():
            for known, group in self._groups:
                if known.first == steps[name].first and np.array_equal(known.offsets, steps[name].offsets):
                    group += some
                    break
            else:
                self._groups.append((steps[name], list(some)))
        self._dropped_members = [member for _, group in self._groups for member in group if member.drop > 0]
        self.stored_options: dict[str, StoredOptions] = {}
        # By member, for cameras that are read picture by picture: each episode's samples.
        self.samples: dict[str, list[Sequence[Any]]] = {}
        self._empty: dict[str, Stream[Any]] = {}  # by member: a stream with its options and no samples
        self._packed: dict[str, Stream[Any]] = {}  # by member: all samples of the episodes
        self._resident: list[str] = []  # those that are packed because they fit on the device
        self._is_full = False  # the device's memory
        self._constant: dict[str, tuple[Stream[Any], NDArray[np.bool_]]] = {}  # and the episodes where it is one
        self._delays: dict[str, Integers] = {}  # by member: arrival - stamp of all samples
        self._calls: dict[
            int, list[tuple[dict[str, Stream[Any]], _core.EpisodeTable]]
        ] = {}  # by group: calls that read in place
        self._unpacked: dict[int, list[Member]] = {}  # by group: members that are read in place
        for g, (_, group) in enumerate(self._groups):
            self._unpacked[g] = []
            for member in group:
                with named(f'Loader: key "{member.key}"'):
                    if not self._prepare(member):
                        self._unpacked[g].append(member)
            self._calls[g] = self._calls_of(self._unpacked[g])

    @property
    def bytes(self) -> int:
        """The bytes of the samples on the device, without those that cannot be read in place."""
        return sum(int(self._packed[name].values.nbytes) for name in self._resident)

    def _prepare(self, member: Member) -> bool:
        """Packs the member if it cannot be read in place. Returns whether it did."""
        cache, stored = self.cache, cache_info(self.cache, member)
        chosen = [cache.episodes[number] for number in self._numbers]
        static, gap = cache._constants_and_gap(member.camera or member.stored, chosen)
        static = [] if member.camera else static
        options = member.options if "max_gap" in member.options else {**member.options, "max_gap": gap}
        shifts = shifts_of(cache, member.camera or member.stored, chosen)
        self.stored_options[member.name] = StoredOptions(options["max_gap"], shifts, bool(static))
        if static:
            whole = self._pack(member, chosen)
            flags = np.zeros(len(chosen), bool)
            flags[static] = True
            own = {name: value for name, value in options.items() if name in ("as_of", "causal", "on_nan")}
            self._constant[member.name] = hold_always(whole, self.move).replace(**own), flags
            if member.has_jitter:
                self._delays[member.name] = delays_of(whole)
            if not flags.all():
                self._packed[member.name] = whole.replace(**options)
            return True
        if member.has_jitter or (member.camera and not member.has_frames):
            self._packed[member.name] = self._pack(member, chosen).replace(**options)
            if member.has_jitter:
                self._delays[member.name] = delays_of(self._packed[member.name])
            return True
        if self.packs(member) and not self._is_full:
            try:
                self._packed[member.name] = self._pack(member, chosen).replace(**options)
                self._resident.append(member.name)
                return True
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                self._warn_full()
        self._empty[member.name] = empty_stream(stored).replace(**options)
        return False

    def _warn_full(self) -> None:
        self._is_full = True
        warnings.warn(
            "Loader: the GPU's memory is full; samples that have no room there are read from the host for each batch, "
            "which is slower. resident= says how many bytes they may have",
            stacklevel=6,
        )

    def make_room(self) -> bool:
        """Frees the GPU's memory: samples that were put there because they fit are read in place from now on.

        Returns:
            Whether there were any.
        """
        resident, self._resident = set(self._resident), []
        for g, (_, group) in enumerate(self._groups):
            some = [member for member in group if member.name in resident]
            for member in some:
                options = {name: getattr(self._packed[member.name], name) for name in OPTIONS}
                self._empty[member.name] = empty_stream(cache_info(self.cache, member)).replace(**options)
            self._unpacked[g] = self._unpacked[g] + some
            self._calls[g] = self._calls_of(self._unpacked[g])
            for member in some:
                del self._packed[member.name]
        if resident and not self._is_full:
            self._warn_full()
        return bool(resident)

    def _pack(self, member: Member, chosen: Sequence[Any]) -> Stream[Any]:
        info = cache_info(self.cache, member)
        if member.has_frames:
            if member.has_jitter:  # frames stay where they are: they may be more than fits into memory
                self.samples[member.name] = frames_in(member.stored, chosen)
            return packed_frames(member.stored, chosen, info, self.move, member.has_jitter)
        if member.camera is None:
            return self.cache._packed(member.stored, info, chosen, self.move, {})
        samples: dict[str, list[Sequence[Any]]] = {}
        numbers = self.cache._packed(member.camera, self.cache._infos[member.camera], chosen, self.move, samples)
        self.samples[member.name] = samples[member.camera]
        return numbers

    def align(self, rows: Rows, draws: Draws | None = None) -> dict[str, Aligned[Any]]:
        """Every member's values, valid, age and index, by the member's name.

        draws: (stream, name of the draw) -> a number for each window. None: no stream is dropped or delayed.
        """
        made: dict[str, Aligned[Any]] = {}
        anchor = self.move(rows.anchor)
        place = self.move(rows.place)
        for g, (steps, group) in enumerate(self._groups):
            made |= self._in_place(g, rows, steps)
            if self._calls[g] and len(self._unpacked[g]) == len(group):  # no calls: the group has been packed
                continue
            at = self._at(steps, anchor)
            packed = {m.name: at_rows(self._packed[m.name], place) for m in group if m.name in self._packed}
            held = {m.name: at_rows(self._constant[m.name][0], place) for m in group if m.name in self._constant}
            for member in group:
                late = None if draws is None or not member.has_jitter else self._delay(member, draws)
                for streams in (packed, held):
                    if late is not None and member.name in streams:
                        stream, known = streams[member.name], self.move(rows.anchor - late)
                        streams[member.name] = stream.replace(arrivals=stream.times, as_of=known)
            made |= self._align(packed, at, anchor)
            for name, constant in self._align(held, at, anchor).items():
                here = np.flatnonzero(self._constant[name][1][rows.place]).tolist()
                made[name] = with_rows(made.get(name), valid_always(constant), here)
        if draws is not None:
            for member in self._dropped_members:
                gone = draws(member.stream, "drop") < np.uint64(min(member.drop * 2.0**64, 2.0**64 - 2048))
                if gone.any():
                    made[member.name] = without(made[member.name], self.move(gone))
        return made

    def _delay(self, member: Member, draws: Draws) -> Integers:
        """A delay for each window, drawn from the delays that were recorded."""
        delays = self._delays[member.name]
        return delays[uniform(draws(member.stream, "latency"), len(delays))] if len(delays) else np.zeros(1, np.int64)

    def _at(self, steps: Steps, anchor: Any) -> Any:
        if steps.first is None:
            offsets = steps.offsets if isinstance(anchor, np.ndarray) else self.move(steps.offsets)
            return anchor[:, None] + offsets[None, :]
        line = Timeline.__new__(Timeline)  # rate and steps were checked when the loader was made
        line.start, line.rate, line.count = anchor, self.rate, len(steps.offsets)
        line.first, line.anchored = steps.first, False
        return line

    def _in_place(self, g: int, rows: Rows, steps: Steps) -> dict[str, Aligned[Any]]:
        made: dict[str, Aligned[Any]] = {}
        if not self._calls[g]:
            return made
        at = self._at(steps, rows.anchor)
        for streams, table in self._calls[g]:
            found = _core.align_episodes(
                table, rows.number, streams, at, "clamp", False, rows.anchor, "propagate", False, self.backend
            )
            if found is NotImplemented:  # a shard has fewer channels than the stream has now
                self._pack_group(g)
                return {}
            made |= found
        if self.move is keep:
            return made
        return {name: Aligned(*map(self.move, aligned)) for name, aligned in made.items()}

    def _calls_of(self, members: Sequence[Member]) -> list[tuple[dict[str, Stream[Any]], _core.EpisodeTable]]:
        """The arguments of _core.align_episodes for these members, at most MOST_STREAMS a call."""
        calls = []
        for begin in range(0, len(members), MOST_STREAMS):
            some = members[begin : begin + MOST_STREAMS]
            places = [self.cache._names.index(member.stored) for member in some]
            table = _core.EpisodeTable(self.cache._core, places, self.cache._map)
            calls.append(({member.name: self._empty[member.name] for member in some}, table))
        return calls

    def _pack_group(self, g: int) -> None:
        """Packs the members of a group that cannot be read in place."""
        chosen = [self.cache.episodes[number] for number in self._numbers]
        packed = {}
        for member in self._unpacked[g]:
            options = {name: getattr(self._empty[member.name], name) for name in OPTIONS}
            packed[member.name] = self._pack(member, chosen).replace(**options)
        # Other threads may align meanwhile, so members are packed before the calls that read in place go away.
        self._packed.update(packed)
        self._unpacked[g] = []
        self._calls[g] = []

    def _align(self, streams: Mapping[str, Stream[Any]], at: Any, anchor: Any) -> dict[str, Aligned[Any]]:
        names = list(streams)
        made: dict[str, Aligned[Any]] = {}
        for begin in range(0, len(names), MOST_STREAMS):
            some = {name: streams[name] for name in names[begin : begin + MOST_STREAMS]}
            made |= align(some, at, as_of=anchor, check=False, backend=self.backend)
        return made


def shifts_of(cache: Cache, stored: str, chosen: Sequence[CachedEpisode]) -> list[int]:
    """By how much a stream's stamps are later than its events, in nanoseconds: each amount of these episodes once.

    A recipe has taken its latency and its clock offset off the stamps, and says so in the metadata.
    """
    having = [episode for episode in chosen if stored in episode._entries]
    latencies = np.asarray([episode._entries[stored][3] for episode in having], np.int64)
    told = cache._stored[stored].metadata
    for name in ("latency_ns", "clock_offset_ns"):
        if told.get(name) == "varies":
            latencies += np.asarray([int(episode._info(stored).metadata.get(name, 0)) for episode in having], np.int64)
        elif name in told:
            latencies += int(told[name])
    return [int(each) for each in np.unique(latencies)]


def delays_of(stream: Stream[Any]) -> Integers:
    """arrival - stamp of each sample of the stream's rows, which may be some of those that are packed."""
    delays, offsets = on_host(stream.arrivals) - on_host(stream.times), on_host(stream.offsets)
    rows = np.arange(len(offsets) - 1) if stream.rows is None else on_host(stream.rows)
    return np.concatenate([delays[offsets[row] : offsets[row + 1]] for row in rows.tolist()])


def uniform(draws: NDArray[np.uint64], count: int) -> Integers:
    """Numbers from 0 to count - 1: the upper 32 bits of each draw, times count, divided by 2^32."""
    upper = draws >> np.uint64(32)
    return ((upper * np.uint64(count)) >> np.uint64(32)).astype(np.int64)


def without(aligned: Aligned[Any], rows: Any) -> Aligned[Any]:
    """The result as if no sample existed in these rows."""
    made = Aligned(*(np.array(a) if isinstance(a, np.ndarray) else a.clone() for a in aligned))
    for array, value in zip(made, (0, False, NEVER, -1), strict=True):
        array[rows] = value
    return made


def at_rows(stream: Stream[Any], place: Any) -> Stream[Any]:
    """A packed stream whose row b is that of episode place[b]."""
    return stream.replace(rows=place if stream.rows is None else stream.rows[place])


def cache_info(cache: Cache, member: Member) -> StreamInfo:
    """The info of a member: as it is stored for frames, as users see it for other streams."""
    return cache._stored[member.stored] if member.has_frames else cache._infos[member.stored]


def frames_in(name: str, chosen: Sequence[Any]) -> list[Any]:
    """The frames of these episodes, read in place. (): the episode has none."""
    return [np.asarray(e.streams.stored(name).values) if name in e._entries else () for e in chosen]


def packed_frames(
    name: str, chosen: Sequence[Any], info: StreamInfo, move: Callable[[NDArray[Any]], Any], numbers: bool
) -> Stream[Any]:
    """The frames of these episodes as one stream, packed. numbers: of each frame its number in its episode instead."""
    times, arrivals, lengths = [], [], []
    for episode in chosen:
        stream = episode.streams.stored(name) if name in episode._entries else None
        lengths.append(0 if stream is None else len(stream.times))
        if stream is not None:
            times.append(np.asarray(stream.times) - _core.nanoseconds("latency", stream.latency))
            arrivals.append(np.asarray(stream.arrivals))
    none = np.zeros(0, np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
    if numbers:
        values: Any = move(np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths))
    else:
        empty = np.zeros((0, *info.shape), info.dtype)
        values = together(frames_in(name, chosen), empty, offsets.tolist(), move)
    return Stream(
        values,
        move(np.concatenate([*times, none])),
        arrivals=move(np.concatenate([*arrivals, none])),
        offsets=move(offsets),
    )


def together(parts: Sequence[Any], empty: NDArray[Any], offsets: Sequence[int], move: Callable[[Any], Any]) -> Any:
    """Arrays one behind the other, where `move` puts them. On a device they are filled in one by one."""
    place = move(empty)
    if isinstance(place, np.ndarray):
        return np.concatenate([*(part for part in parts if len(part)), empty])
    whole = place.new_empty((offsets[-1], *empty.shape[1:]))
    for part, begin in zip(parts, offsets, strict=False):
        if len(part):
            whole[begin : begin + len(part)] = move(part)
    return whole
