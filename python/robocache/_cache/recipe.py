"""Recipes: which streams of a recording become which of a cache, and how. A short TOML file.

All keys are in docs/semantics.md, Recipes.
"""

from __future__ import annotations

import fnmatch
import functools
import os
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from robocache import _core
from robocache._align.stream import Method
from robocache._cache.joined import KEY as JOINED
from robocache._cache.joined import declaration
from robocache._core import FileError
from robocache._recordings.clock import ClockedSource, as_static
from robocache._recordings.frame_options import FrameOptions, options_in
from robocache._recordings.open import open
from robocache._recordings.recording import Recording
from robocache._recordings.source import (
    DTYPES,
    Array,
    Batch,
    Content,
    Part,
    Source,
    SourceOver,
    StreamInfo,
    is_static,
    topic_of,
)
from robocache._recordings.words import missing

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
    "frames": (dict, bool),
}


CLOCKS = ("recording", "as stamped")
METHODS = tuple(_core.methods())
BY = ("file", "gap", "topic")


@dataclass(frozen=True)
class Wanted:
    """One [streams.*] table. Caches remember a recipe by the repr of its tables, so its name and fields are fixed."""

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
    clock: str = "recording"  # or "as stamped": its stamps are not converted to the recording's clock
    static: bool | None = None  # whether it is a constant, whatever the recording says
    joined: str | None = None  # for a member of a joined stream: joined.declaration
    # How its pictures become frames; None: none. Not in repr, which tells whether a cache was built with this recipe.
    frames: FrameOptions | None = field(default=None, repr=False)
    has_frames: bool = field(default=False, repr=False)  # whether the recipe says it


@dataclass(frozen=True)
class Recipe:
    path: str
    streams: tuple[Wanted, ...] = ()  # empty: all, as they are
    task: str | None = None
    source: dict[str, Any] = field(default_factory=dict)
    episodes: dict[str, Any] = field(default_factory=dict)

    def open(self, path: str | os.PathLike[str]) -> Recording:
        """Opens the recording with the options of [source]. `apply` does the rest."""
        options = dict(self.source)
        if "msg_path" in options:
            folders = options["msg_path"]
            base = Path(self.path).parent
            options["msg_path"] = [base / folder for folder in ([folders] if isinstance(folders, str) else folders)]
        # If one stream gives its times, the mapping must name all streams: it replaces the file's own layout.
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
                raise ValueError(
                    f"{self.path}: {min(twice)} is taken twice, with and without its own clock; choose one"
                )
            not_static = frozenset(w.topic for w in self.streams if w.static is False)
            source = ClockedSource(opened._source.source, frozenset(by_clock["as stamped"]), not_static)
            return Recording(source)
        return opened

    def frames(self) -> dict[str, FrameOptions | None]:
        """The frame options of the streams that have any, by name. None: the camera gets no frames."""
        return {wanted.name: wanted.frames for wanted in self.streams if wanted.has_frames}

    def apply(self, recording: Recording) -> Recording:
        if not self.streams and self.task is None:
            return recording
        return Recording(RecipeSource(self, recording._source))


def load_recipe(path: str | os.PathLike[str]) -> Recipe:
    """Reads and checks a recipe. FileError: not TOML. ValueError: a key is unknown or wrong."""
    where = str(path)
    try:
        given = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"{where}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:  # or it is not UTF-8
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
        item = f'{where}: [streams."{key}"]'
        if not isinstance(table, dict):
            raise ValueError(f"{item} must be a table")
        check(item, table, STREAM)
        found = members_of(item, key, table) if "topics" in table else [wanted_of(item, key, table)]
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
        frames=options_in(where, table["frames"]) if "frames" in table else None,
        has_frames="frames" in table,
    )


def members_of(where: str, key: str, table: Mapping[str, Any]) -> list[Wanted]:
    """The members of a joined stream. Each is a stream of its own, named after the joined stream and its topic.

    The table's options apply to all members, unless a member sets them itself.
    """
    if "frames" in table:
        raise ValueError(f"{where}: frames and topics; a camera is a stream of its own, with one topic")
    for other in ("topic", "channels"):
        if other in table:
            how = '{ topic = "/gripper", channels = ["width"] }'
            raise ValueError(f"{where}: {other} and topics; say it of each topic: topics = [{how}]")
    given = [{"topic": each} if isinstance(each, str) else each for each in table["topics"]]
    if not given or not all(isinstance(each, dict) and "topic" in each for each in given):
        how = '["/joint_states", { topic = "/gripper", latency = 0.01 }]'
        raise ValueError(f"{where}: topics is {table['topics']!r}; expected topics or tables with a topic: {how}")
    name = table.get("name", key)
    alone = {key: value for key, value in STREAM.items() if key not in ("topics", "name", "dtype", "frames")}
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


class RecipeSource(SourceOver):
    """A recording with a recipe applied."""

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
                    made = with_table(self.recipe.path, wanted, batch, every)
                    if later and wanted.channels:
                        self._note_left_out(wanted, later - set(made.info.channels))
                    yield made

    def _channels(self, topic: str) -> tuple[str, ...]:
        """All channels that a stream ever has. Later messages may add some, so all of them are read."""
        if topic not in self._later:
            infos = (batch.info for batch in self.source.batches([topic]))
            self._later[topic] = tuple(dict.fromkeys(name for info in infos for name in info.channels))
        return self._later[topic]

    def _note_left_out(self, wanted: Wanted, channels: Collection[str]) -> None:
        if not channels:
            return
        names = ", ".join(sorted(channels)[:6]) + (" ..." if len(channels) > 6 else "")
        self.note(f'stream "{wanted.name}": channels that come later are not in the recipe, and are left out: {names}')

    def total(self, name: str) -> int | None:
        return self.source.total(next((w.topic for w in self.recipe.streams if w.name == name), name))

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


def with_table(where: str, wanted: Wanted, batch: Batch, every: Callable[[], tuple[str, ...]]) -> Batch:
    """The batch as the recipe wants it. every: the channels that the stream has in any batch."""
    info, values = batch.info, batch.values
    item = f'{where}: [streams."{wanted.name}"]'
    channels = info.channels
    if wanted.channels:
        if not channels or values.ndim != 2:
            raise ValueError(f"{item}: {wanted.topic} has no named channels to choose from")
        chosen = [name for pattern in wanted.channels for name in matches(item, pattern, channels, every)]
        later = [name for name in dict.fromkeys(chosen) if name not in channels]
        if later:  # NaN until the channel appears
            kind = values.dtype if values.dtype.kind == "f" else np.dtype(np.float64)
            values = np.concatenate([values, np.full((len(values), len(later)), np.nan, kind)], axis=1)
            info = info._replace(dtype=values.dtype)
        place = {name: k for k, name in enumerate((*channels, *later))}
        picks = [place[name] for name in chosen]
        values, channels = values[:, picks], tuple(chosen)
        info = info._replace(shape=(len(picks),), channels=channels, method=kept_method(info.method, picks))
    if wanted.joined is not None and (info.ragged or values.ndim > 2 or info.metadata.get("kind") == "video"):
        raise ValueError(
            f"{item}: {wanted.topic} cannot be joined: its samples are not rows of numbers; give it a stream of its own"
        )
    if wanted.dtype is not None and not info.ragged:
        values = fitted(item, values, np.dtype(wanted.dtype), channels)
        info = info._replace(dtype=np.dtype(wanted.dtype))
    if wanted.method is not None:
        info = info._replace(method=method_of(item, wanted.method, channels))
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
    """The values in another dtype. Floats are rounded.

    A value that an integer or bool cannot hold exactly, or that is too large for a float, is refused.
    """
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
            f"{where}: dtype is {dtype}, which cannot hold {values[at]}{of}; use a wider one, such as float32, or none"
        )
    return made


def matches(where: str, pattern: str, channels: Sequence[str], every: Callable[[], tuple[str, ...]]) -> list[str]:
    def among(names: Sequence[str]) -> list[str]:
        if pattern in names:  # an exact name wins over a pattern: "position[3]" is both
            return [pattern]
        return [name for name in names if fnmatch.fnmatchcase(name, pattern)]

    found = among(channels) or among(every())
    if not found:
        raise ValueError(missing(f"{where}: there is no channel", pattern, every()))
    return found


def kept_method(method: Method | None, picks: Sequence[int]) -> Method | None:
    """The methods of the chosen channels, by range."""
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
    patterns = {key: m for key, m in method.items() if key not in channels}  # an exact name is not a pattern
    for name in channels:
        chosen = method.get(name) or next((m for p, m in patterns.items() if fnmatch.fnmatchcase(name, p)), None)
        if chosen is None:
            raise ValueError(f'{where}: no pattern of method matches the channel "{name}"; end with "*"')
        found.append(chosen)
    return ranges(found)
