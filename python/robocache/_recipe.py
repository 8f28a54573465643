"""Recipes: which streams of a recording become which of a cache, and how. A short TOML file.

All keys are in docs/semantics.md, Recipes.
"""

from __future__ import annotations

import fnmatch
import functools
import json
import os
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from robocache._align import Method
from robocache._clock import ClockedSource, LastSamples, as_static
from robocache._core import FileError
from robocache._joined import KEY as JOINED
from robocache._joined import declaration
from robocache._recording import (
    Array,
    Batch,
    Content,
    Part,
    Recording,
    Source,
    SourceOver,
    StreamInfo,
    clipped,
    counted,
    figures,
    is_static,
    missing,
    open,
    topic_of,
)
from robocache._sync import SyncReport

SECTIONS: dict[str, dict[str, tuple[type, ...]]] = {
    "source": {"time": (str,), "rate": (int, float), "msg_path": (str, list)},
    "task": {"name": (str,)},
    "episodes": {"by": (str,), "gap": (int, float), "topic": (str,)},
}
STREAM: dict[str, tuple[type, ...]] = {
    "topic": (str,),
    "topics": (list,),
    "name": (str,),
    "channels": (list, str),
    "method": (str, dict),
    "latency": (int, float),
    "clock_offset": (int, float),
    "max_gap": (int, float),
    "dtype": (str,),
    "times": (str,),
    "unit": (str,),
    "rate": (int, float),
    "clock": (str,),
    "static": (bool,),
}
CLOCKS = ("recording", "as stamped")
DTYPES = ("float16", "float32", "float64", "bool", *(f"{sign}int{n}" for sign in ("", "u") for n in (8, 16, 32, 64)))
METHODS = ("linear", "hold", "nearest", "slerp", "angle", "angle_degrees", "cubic", "mean", "max", "min", "last")
BY = ("file", "gap", "topic")


@dataclass(frozen=True)
class Wanted:
    """One [streams.*] table."""

    topic: str
    name: str
    channels: tuple[str, ...] = ()
    method: str | dict[str, str] | None = None
    latency: int = 0  # nanoseconds
    clock_offset: int = 0
    max_gap: int | None = None
    dtype: str | None = None
    times: str | None = None
    unit: str | None = None  # of integer times
    rate: float | None = None
    clock: str = "recording"  # or "as stamped": its stamps are not carried over to the recording's clock
    static: bool | None = None  # a constant or none, whatever the recording says
    joined: str | None = None  # where it is a member of a joined stream: _joined.declaration


@dataclass(frozen=True)
class Recipe:
    path: str
    streams: tuple[Wanted, ...] = ()  # none: all, as they are
    task: str | None = None
    source: dict[str, Any] = field(default_factory=dict)
    episodes: dict[str, Any] = field(default_factory=dict)

    def open(self, path: str | os.PathLike[str]) -> Recording:
        """The recording, as [source] says; `apply` does the rest."""
        options = dict(self.source)
        if "msg_path" in options:
            folders = options["msg_path"]
            base = Path(self.path).parent
            options["msg_path"] = [base / folder for folder in ([folders] if isinstance(folders, str) else folders)]
        # Where one stream says its times, a mapping names all of them: it takes the place of the file's own layout.
        needs_mapping = any(w.times is not None or w.rate is not None for w in self.streams)
        mapped: dict[str, dict[str, Any]] = {w.topic: {"values": w.topic} for w in self.streams if needs_mapping}
        for wanted in self.streams:
            for key in ("times", "unit", "rate"):
                if getattr(wanted, key) is not None:
                    mapped[wanted.topic][key] = getattr(wanted, key)
        opened = open(path, **options, mapping=mapped or None)
        if isinstance(opened._source, ClockedSource):
            by_clock = {clock: {w.topic for w in self.streams if w.clock == clock} for clock in CLOCKS}
            twice = by_clock["as stamped"] & by_clock["recording"]
            if twice:
                raise ValueError(f"{self.path}: {min(twice)} is taken twice, with and without its own clock; say one")
            not_static = frozenset(w.topic for w in self.streams if w.static is False)
            source = ClockedSource(opened._source.source, frozenset(by_clock["as stamped"]), not_static)
            return Recording(source)
        return opened

    def apply(self, recording: Recording) -> Recording:
        if not self.streams and self.task is None:
            return recording
        return Recording(CookedSource(self, recording._source))


def load_recipe(path: str | os.PathLike[str]) -> Recipe:
    """Reads and checks a recipe: FileError where it is no TOML, ValueError where a key is unknown or wrong."""
    where = str(path)
    try:
        given = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"{where}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:  # also no UTF-8
        raise FileError(f"{where}: not TOML: {error}") from None
    for section in given:
        if section not in (*SECTIONS, "streams"):
            raise ValueError(missing(f"{where}: a recipe has no section", section, [*SECTIONS, "streams"]))
        if not isinstance(given[section], dict):
            raise ValueError(f"{where}: {section} must be a table: [{section}]")
    for section, known in SECTIONS.items():
        check(f"{where}: [{section}]", given.get(section, {}), known)
    by = given.get("episodes", {}).get("by", "file")
    if by not in BY:
        raise ValueError(f'{where}: [episodes]: by is "{by}"; expected "file", "gap" or "topic"')
    streams: list[Wanted] = []
    names: list[str] = []
    for key, table in given.get("streams", {}).items():
        spot = f'{where}: [streams."{key}"]'
        if not isinstance(table, dict):
            raise ValueError(f"{spot} must be a table")
        check(spot, table, STREAM)
        found = members_of(spot, key, table) if "topics" in table else [wanted_of(spot, key, table)]
        streams += found
        names += dict.fromkeys([table.get("name", key), *(wanted.name for wanted in found)])
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f'{where}: two streams are named "{twice}"')
    task = given.get("task", {}).get("name")
    return Recipe(where, tuple(streams), task, given.get("source", {}), given.get("episodes", {}))


def check(where: str, table: Mapping[str, Any], known: Mapping[str, tuple[type, ...]]) -> None:
    for key, value in table.items():
        if key not in known:
            raise ValueError(missing(f"{where}: there is no key", key, known))
        if not isinstance(value, known[key]) or (isinstance(value, bool) and bool not in known[key]):
            kinds = " or ".join(
                {"str": "text", "dict": "table", "bool": "true or false"}.get(kind.__name__, kind.__name__)
                for kind in known[key]
            )
            raise ValueError(f"{where}: {key} is {value!r}; expected {kinds}")


def wanted_of(where: str, key: str, table: Mapping[str, Any]) -> Wanted:
    topic = table.get("topic", key)
    channels = table.get("channels", ())
    channels = (channels,) if isinstance(channels, str) else tuple(channels)
    if not all(isinstance(pattern, str) for pattern in channels):
        raise ValueError(f"{where}: channels must be a list of text")
    method = table.get("method")
    for name in method.values() if isinstance(method, dict) else [method] if method is not None else []:
        if name not in METHODS:
            raise ValueError(missing(f"{where}: there is no method", str(name), METHODS))
    dtype = table.get("dtype")
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(missing(f"{where}: there is no dtype", dtype, DTYPES))
    seconds = {}
    for name in ("latency", "clock_offset"):
        seconds[name] = float(table.get(name, 0.0))
        if not abs(seconds[name]) < 2**31:
            raise ValueError(f"{where}: {name} is {seconds[name]}; expected seconds")
    clock = table.get("clock", CLOCKS[0])
    if clock not in CLOCKS:
        raise ValueError(f'{where}: clock is "{clock}"; expected "as stamped", or "recording", which is the default')
    max_gap = table.get("max_gap")
    if max_gap is not None and not 0 < max_gap < 2**31:
        raise ValueError(f"{where}: max_gap is {max_gap}; expected seconds, more than 0")
    return Wanted(
        topic,
        table.get("name", key),
        channels,
        method,
        round(seconds["latency"] * 1e9),
        round(seconds["clock_offset"] * 1e9),
        None if max_gap is None else round(max_gap * 1e9),
        dtype,
        table.get("times"),
        table.get("unit"),
        table.get("rate"),
        clock,
        table.get("static"),
    )


def members_of(where: str, key: str, table: Mapping[str, Any]) -> list[Wanted]:
    """A stream of several topics. Each member is a stream of its own, named after the joined one and its topic. What
    the table says holds for all of them, unless a member says it itself."""
    for other in ("topic", "channels"):
        if other in table:
            how = '{ topic = "/gripper", channels = ["width"] }'
            raise ValueError(f"{where}: {other} and topics; say it of each topic: topics = [{how}]")
    given = [{"topic": each} if isinstance(each, str) else each for each in table["topics"]]
    if not given or not all(isinstance(each, dict) and "topic" in each for each in given):
        how = '["/joint_states", { topic = "/gripper", latency = 0.01 }]'
        raise ValueError(f"{where}: topics is {table['topics']!r}; expected topics or tables with a topic: {how}")
    name = table.get("name", key)
    alone = {key: value for key, value in STREAM.items() if key not in ("topics", "name", "dtype")}
    shared = {key: value for key, value in table.items() if key not in ("topics", "name")}
    named: list[str] = []
    for each in given:
        check(f"{where}: topics", each, alone)
        member, count = f"{name}/{each['topic'].strip('/')}", 1
        while member in named:
            count += 1
            member = f"{name}/{each['topic'].strip('/')}-{count}"
        named.append(member)
    said = declaration(name, named)
    return [
        replace(wanted_of(where, key, {**shared, **each, "name": member}), joined=said)
        for each, member in zip(given, named, strict=True)
    ]


# ---- Applied to a recording


class CookedSource(SourceOver):
    """A recording as a recipe wants it."""

    def __init__(self, recipe: Recipe, source: Source) -> None:
        super().__init__(source)
        self.recipe = recipe
        self._later: dict[str, tuple[str, ...]] = {}
        if recipe.streams and source.parts():
            there = {name for k in range(min(len(source.parts()), 16)) for name in source.contents(k)}
            for wanted in recipe.streams:
                if wanted.topic not in there:
                    raise ValueError(
                        missing(f"{recipe.path}: {source.path} has no stream", wanted.topic, sorted(there))
                    )

    def parts(self) -> Sequence[Part]:
        task = self.recipe.task
        return [part if task is None else part._replace(task=task) for part in self.source.parts()]

    def contents(self, episode: int) -> Mapping[str, Content]:
        contents = self.source.contents(episode)
        if not self.recipe.streams:
            return contents
        wanted = [w for w in self.recipe.streams if w.topic in contents]
        return {w.name: contents[w.topic]._replace(name=w.name) for w in wanted}

    def batches(
        self,
        streams: Collection[str] | None = None,
        episode: int | None = None,
        start: int | None = None,
        end: int | None = None,
    ) -> Iterator[Batch]:
        if not self.recipe.streams:
            yield from self.source.batches(streams, episode, start, end)
            return
        chosen = [w for w in self.recipe.streams if streams is None or w.name in streams]
        topics = {w.topic for w in chosen}
        first: dict[str, tuple[str, ...]] = {}
        for batch in self.source.batches(topics, episode, start, end):
            later = set(batch.info.channels) - set(first.setdefault(batch.stream, batch.info.channels))
            for wanted in chosen:
                if wanted.topic == batch.stream:
                    every = functools.partial(self._channels, batch.stream)
                    made = cooked(self.recipe.path, wanted, batch, every)
                    if later and wanted.channels:
                        self._note_left_out(wanted, later - set(made.info.channels))
                    yield made

    def _channels(self, topic: str) -> tuple[str, ...]:
        """All that a stream ever has: some come with later messages, and only reading them tells."""
        if topic not in self._later:
            infos = (batch.info for batch in self.source.batches([topic]))
            self._later[topic] = tuple(dict.fromkeys(name for info in infos for name in info.channels))
        return self._later[topic]

    def _note_left_out(self, wanted: Wanted, channels: Collection[str]) -> None:
        if not channels:
            return
        names = ", ".join(sorted(channels)[:6]) + (" ..." if len(channels) > 6 else "")
        note = f'stream "{wanted.name}": channels that come later are not in the recipe, and are left out: {names}'
        self.notes += [] if note in self.notes else [note]

    def constants(self) -> frozenset[str]:
        static = self.source.constants()
        chosen = {w.name for w in self.recipe.streams if w.static or topic_of(w.topic, static) is not None}
        return frozenset(chosen) if self.recipe.streams else static

    def quick(self) -> Mapping[str, Any] | None:
        found = self.source.quick()
        if found is None or not self.recipe.streams:
            return found
        return {w.name: found[w.topic] for w in self.recipe.streams if w.topic in found}

    def promised(self) -> Mapping[str, StreamInfo]:
        return {} if self.recipe.streams else self.source.promised()

    def listed(self, episode: int) -> Mapping[str, Content]:
        return self.contents(episode) if self.recipe.streams else self.source.listed(episode)


def cooked(where: str, wanted: Wanted, batch: Batch, every: Callable[[], tuple[str, ...]]) -> Batch:
    """every: the channels that the stream has in any batch."""
    info, values = batch.info, batch.values
    spot = f'{where}: [streams."{wanted.name}"]'
    channels = info.channels
    if wanted.channels:
        if not channels or values.ndim != 2:
            raise ValueError(f"{spot}: {wanted.topic} has no named channels to choose from")
        chosen = [name for pattern in wanted.channels for name in matches(spot, pattern, channels, every)]
        later = [name for name in dict.fromkeys(chosen) if name not in channels]
        if later:  # NaN until it comes
            kind = values.dtype if values.dtype.kind == "f" else np.dtype(np.float64)
            values = np.concatenate([values, np.full((len(values), len(later)), np.nan, kind)], axis=1)
            info = info._replace(dtype=values.dtype)
        place = {name: k for k, name in enumerate((*channels, *later))}
        picks = [place[name] for name in chosen]
        values, channels = values[:, picks], tuple(chosen)
        info = info._replace(shape=(len(picks),), channels=channels, method=kept_method(info.method, picks))
    if wanted.joined is not None and (info.ragged or values.ndim > 2 or info.metadata.get("kind") == "video"):
        raise ValueError(
            f"{spot}: {wanted.topic} cannot be joined: its samples are no rows of numbers; give it a stream of its own"
        )
    if wanted.dtype is not None and not info.ragged:
        values = fitted(spot, values, np.dtype(wanted.dtype), channels)
        info = info._replace(dtype=np.dtype(wanted.dtype))
    if wanted.method is not None:
        info = info._replace(method=method_of(spot, wanted.method, channels))
    metadata = dict(info.metadata)
    shift = wanted.latency + wanted.clock_offset
    if shift:
        metadata |= {"latency_ns": str(wanted.latency), "clock_offset_ns": str(wanted.clock_offset)}
    if wanted.max_gap is not None:
        metadata["max_gap_ns"] = str(wanted.max_gap)
    if wanted.joined is not None:
        metadata[JOINED] = wanted.joined
    info = info._replace(name=wanted.name, metadata=metadata | {"topic": wanted.topic})
    times = batch.times - shift
    if wanted.static and not is_static(info):
        info, times = as_static(info), batch.arrivals
    return batch._replace(stream=wanted.name, values=values, times=times, info=info)


def fitted(where: str, values: Array, dtype: np.dtype[Any], channels: Sequence[str]) -> Array:
    """The values in another dtype. Floats are rounded; a value that an integer or bool cannot hold exactly, or that is
    too large for a float, is refused."""
    if np.can_cast(values.dtype, dtype, "safe"):
        return values.astype(dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        made = values.astype(dtype)
        if dtype.kind == "f":
            wrong = np.isinf(made) & np.isfinite(values)
        else:
            wrong = (made.astype(values.dtype) != values) | ((made < 0) != (values < 0))
    if wrong.any():
        at = tuple(int(k) for k in np.argwhere(wrong)[0])
        of = f' of channel "{channels[at[1]]}"' if len(at) == 2 and len(channels) == values.shape[1] else ""
        raise ValueError(
            f"{where}: dtype is {dtype}, which cannot hold {values[at]}{of}; take a wider one, as float32, or none"
        )
    return made


def matches(where: str, pattern: str, channels: Sequence[str], every: Callable[[], tuple[str, ...]]) -> list[str]:
    def among(names: Sequence[str]) -> list[str]:
        if pattern in names:  # "position[3]" is a name before it is a pattern
            return [pattern]
        return [name for name in names if fnmatch.fnmatchcase(name, pattern)]

    found = among(channels) or among(every())
    if not found:
        raise ValueError(missing(f"{where}: there is no channel", pattern, every()))
    return found


def kept_method(method: Method | None, picks: Sequence[int]) -> Method | None:
    """Methods by range, of the channels that were picked."""
    if method is None or isinstance(method, (str, Mapping)):
        return method
    by_channel = {k: name for name, begin, end in method for k in range(begin, end)}
    return ranges([by_channel.get(k, "linear") for k in picks])


def ranges(methods: Sequence[str]) -> Method:
    made: list[tuple[str, int, int]] = []
    for k, name in enumerate(methods):
        if made and made[-1][0] == name:
            made[-1] = (name, made[-1][1], k + 1)
        else:
            made.append((name, k, k + 1))
    return tuple(made)


def method_of(where: str, method: str | Mapping[str, str], channels: Sequence[str]) -> Method:
    if isinstance(method, str):
        return method
    found = []
    patterns = {key: m for key, m in method.items() if key not in channels}  # "position[3]" is a name before a pattern
    for name in channels:
        chosen = method.get(name) or next((m for p, m in patterns.items() if fnmatch.fnmatchcase(name, p)), None)
        if chosen is None:
            raise ValueError(f'{where}: no pattern of method matches the channel "{name}"; end with "*"')
        found.append(chosen)
    return ranges(found)


# ---- Episodes out of a long recording


class SplitSource(SourceOver):
    """One recording as several episodes: ranges of its arrivals, each read by its range."""

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
        """Constants hold on: their last sample before a cut belongs to the episode that begins there."""
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
        raise ValueError(f"{recording.path}: {topic} marks no episode: it is never other than 0")
    return Recording(SplitSource(source, cuts))


def episodes_by_id(ids: Array) -> tuple[Array, Array]:
    """Where an id changes, and whether an episode begins there.

    While it is 0 there is no episode, as with a flag: 0, 1, 0, 1 are two. But where ids count from 0, as in 0, 1, 2,
    the 0 is an id: it comes first, never again, and at least two others follow.
    """
    starts = np.flatnonzero(np.append(True, ids[1:] != ids[:-1])) if len(ids) else np.zeros(0, np.intp)
    seen = ids[starts]
    counts_from_0 = len(seen) > 0 and seen[0] == 0 and (seen == 0).sum() == 1 and len(np.unique(seen)) > 2
    return starts, np.ones(len(seen), bool) if counts_from_0 else seen != 0


# ---- A first one to edit


def first_recipe(
    recording: Recording,
    report: SyncReport | None = None,
    rate: float | None = None,
    msg_path: Sequence[str | os.PathLike[str]] | None = None,
) -> str:
    """A recipe that takes every stream as it is, for a person to edit; where the report found gaps, with a max_gap.

    rate, msg_path: as the recording was opened with.
    """
    task = recording.episodes[0].task if len(recording.episodes) else None
    lines = [
        f"# What robocache build --recipe makes of {os.path.basename(recording.path.rstrip('/'))}: delete what is not",
        "# wanted, and name what policies ask for: observation.state, action, observation.images.<camera>.",
        '# In a stream also: dtype = "float32"; topic, for two out of one; topics = ["/joint_states", "/gripper"], for',
        "# one out of two. All keys: docs/semantics.md, Recipes.",
        "",
        "[source]",
        f"time = {json.dumps(recording.time)}  # or stamp, log, publish",
        *([] if rate is None else [f"rate = {rate!r}"]),
        *([f"msg_path = {json.dumps([os.path.abspath(folder) for folder in msg_path])}"] if msg_path else []),
        "",
        "[task]",
        f"name = {json.dumps(task)}" if task else '# name = "what the robot was asked to do"',
        "",
        "# [episodes]",
        '# by = "gap"  # or file, topic',
        "# gap = 5.0  # seconds in which nothing was logged",
    ]
    source = recording._source
    infos: dict[str, StreamInfo] = {}
    names = list(source.contents(0)) if len(recording.episodes) else []
    for batch in source.batches(names, 0):
        infos.setdefault(batch.stream, batch.info)
        if len(infos) == len(names):
            break
    for name in names:
        info = infos.get(name)
        lines += ["", f"[streams.{json.dumps(name)}]" + (f"  # {info.type}" if info else "  # no samples")]
        lines.append(f"name = {json.dumps(name)}")
        if info is None:
            continue
        if info.channels and not info.metadata.get("kind"):
            lines += written_channels(info.channels)
        lines.append(written_method(info))
        lines += [
            "# latency = 0.0  # seconds that a stamp is later than the event",
            "# clock_offset = 0.0  # seconds that the sensor's clock is ahead of the robot's; behind: below 0",
        ]
        found = report.streams.get(name) if report is not None else None
        if found is not None and found.gaps and found.gap_threshold_ms is not None:
            gaps = f"{counted(found.gaps, 'gap')}, longest {figures(found.longest_gap_s or 0.0)} s"
            limit = figures(found.gap_threshold_ms * 1e-3)
            lines.append(f"max_gap = {limit}  # seconds: nothing is valid inside; {gaps}")
        else:
            lines.append("# max_gap = 1.0  # seconds: inside a longer gap no value is valid")
    return "\n".join(lines) + "\n"


def written_channels(channels: Sequence[str]) -> list[str]:
    """Exact names, few to a line."""
    if len(channels) > 40:
        return [f"# channels: {len(channels)}, {channels[0]} to {channels[-1]}"]
    rows = [
        ", ".join(json.dumps(name, ensure_ascii=False) for name in channels[k : k + 4])
        for k in range(0, len(channels), 4)
    ]
    return ["channels = [", *(f"  {row}," for row in rows), "]"]


def written_method(info: StreamInfo) -> str:
    method = info.method
    if isinstance(method, str):
        return f"method = {json.dumps(method)}"
    if method and not isinstance(method, Mapping) and info.channels:
        by_channel = {info.channels[k]: name for name, begin, end in method for k in range(begin, end)}
        pairs: dict[str, str] = {}
        for channel, name in by_channel.items():
            stem = channel.rpartition(".")[0]
            alike = {by_channel[other] for other in by_channel if other.startswith(f"{stem}.")}
            pairs[f"{stem}.*" if stem and alike == {name} else channel] = name
        table = ", ".join(
            f"{json.dumps(pattern, ensure_ascii=False)} = {json.dumps(name)}" for pattern, name in pairs.items()
        )
        return f"method = {{ {table} }}"
    return '# method = "linear"  # or cubic, nearest, hold, slerp, angle' if not info.ragged else '# method = "hold"'
