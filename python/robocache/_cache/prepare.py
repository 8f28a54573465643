"""Prepares the streams of a call for aligning: one rule for Cache.align and export."""

from __future__ import annotations

import fnmatch
import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from robocache import _core
from robocache._cache.joined import info_of, method_of_member
from robocache._limits import TIME_LIMIT, TIME_LIMIT_IN_WORDS
from robocache._recordings.source import StreamInfo
from robocache._recordings.words import NoStream, missing


class PreparedStream(NamedTuple):
    """A stored stream as it will be aligned."""

    name: str  # the stream that the call names
    member: str  # the stored stream: itself, or a member of a joined stream
    changes: dict[str, Any]  # the call's options as arguments of Stream.replace


def prepared(
    where: str,
    groups: Mapping[str, Sequence[str]],
    infos: Mapping[str, StreamInfo],
    options: Mapping[str, Any],
    edge: str = "clamp",
) -> dict[str, PreparedStream]:
    """The stored streams to align, each under a key of its own.

    groups   the streams that are asked for, and the stored streams of each
    options  method, max_gap, edge, causal, as_of, on_nan: for all streams or by name; None: as the stream says
    edge     of streams for which the options name none
    """
    check_method_names(where, options.get("method"), groups, infos)
    made: dict[str, PreparedStream] = {}
    for name, members in groups.items():
        own: dict[str, Any] = {}
        for option, given in options.items():
            own |= said(f"{where}: {option}", option, given, name, {}, groups)
        first = 0
        for member in members:
            info, changes = infos[member], dict(own)
            if member != name and own.get("method") is not None:
                whole = info_of(name, [infos[one] for one in members])
                width = int(np.prod(info.shape, dtype=np.int64))
                changes["method"] = method_of_member(where, own["method"], whole, first, width)
                first += width
            if is_numbered(info):  # Values are sample indices: never interpolate them, and no NaN edge.
                changes["method"] = "nearest" if changes.get("method") == "nearest" else "hold"
                if changes.get("edge", edge) == "nan":
                    changes["edge"] = "clamp"
            made[key_of(name, member, groups)] = PreparedStream(name, member, changes)
    return made


class NoEpisode(NoStream, IndexError, ValueError):
    """An IndexError: there is no such episode."""


def numbers_of(where: str, episodes: Sequence[Any], wanted: Any) -> list[int]:
    """The episodes of a call as numbers. The call gives None, or numbers, names and slices."""
    if wanted is None:
        return list(range(len(episodes)))
    if isinstance(wanted, (str, slice)) or not isinstance(wanted, Iterable) or getattr(wanted, "ndim", 1) == 0:
        wanted = [wanted]
    names: list[str] | None = None
    found: list[int] = []
    for one in wanted:
        if isinstance(one, slice):
            found += range(len(episodes))[one]
            continue
        if isinstance(one, str):
            names = [episode.name for episode in episodes] if names is None else names
            named = [k for k, name in enumerate(names) if name == one]
            if not named:
                raise NoEpisode(missing(f"{where}: there is no episode", one, names))
            if len(named) > 1:
                some = ", ".join(map(str, named[:8]))
                raise ValueError(f'{where}: {len(named)} episodes are named "{one}"; take them by number: {some}')
            found += named
            continue
        try:
            number = operator.index(one)
        except TypeError:
            number = None
        if number is None or isinstance(one, bool):  # bools would be taken for the numbers 0 and 1
            raise TypeError(f"{where}: episodes has {one!r}; expected numbers, names or slices")
        if not -len(episodes) <= number < len(episodes):
            raise NoEpisode(f"{where}: there is no episode {number}; there are {len(episodes)}, from 0 on")
        found.append(number % len(episodes))
    return found


def names_of(streams: Sequence[str] | str | None) -> list[str] | None:
    """The streams of a call, one or several, as a list."""
    return [streams] if isinstance(streams, str) else None if streams is None else list(streams)


def rate_of(where: str, rate: Any, most: float = np.inf) -> float:
    """A rate in hertz, as a float."""
    hertz = _core.hertz(f"{where}: rate", rate)
    if not 0 < hertz < most:
        below = f" below {most:g}" if most < np.inf else ""
        raise ValueError(f"{where}: rate is {rate}; it must be a positive number of hertz{below}")
    if 1e9 / hertz >= TIME_LIMIT:
        raise ValueError(f"{where}: rate is {rate}; one step would be as long as {TIME_LIMIT_IN_WORDS}, or longer")
    return hertz


def gap_of(where: str, gap: Any) -> float | None:
    """The seconds that make a gap, as a float. None: each stream has its own."""
    if gap is None:
        return None
    if isinstance(gap, bool) or not isinstance(gap, (int, float, np.integer, np.floating)):
        raise TypeError(f"{where}: gap is {gap!r}; expected a positive number of seconds")
    if not 0 < gap < 2**31:
        raise ValueError(f"{where}: gap is {gap!r}; expected a positive number of seconds")
    return float(gap)


def check_method_names(where: str, method: Any, groups: Mapping[str, Sequence[str]], infos: Any) -> None:
    """Checks that each key of `method` names a stream or channels."""
    if not isinstance(method, Mapping) or any(key in groups for key in method):
        return  # `said` checks names of streams
    channels = {channel for members in groups.values() for member in members for channel in infos[member].channels}
    for key in method:
        if isinstance(key, str) and not any(key == c or fnmatch.fnmatchcase(c, key) for c in channels):
            raise NoStream(missing(f"{where}: method names a stream", key, groups))


def key_of(name: str, member: str, groups: Collection[str]) -> str:
    """The key of a stored stream: its name. A member of a join that the call also names itself has both names."""
    return member if member == name or member not in groups else f"{name}: {member}"


def is_numbered(info: StreamInfo) -> bool:
    """Whether `values` are the indices of `samples`."""
    return info.ragged or info.metadata.get("kind") in ("video", "frames") or "frames" in info.metadata


def said(
    where: str, argument: str, given: Any, name: str, default: dict[str, Any], names: Collection[str]
) -> dict[str, Any]:
    """The value of an option for this stream: the call gives one for all streams, or a mapping by name."""
    if isinstance(given, Mapping) and (not given or argument != "method" or any(key in names for key in given)):
        for key in given:
            if key not in names:
                raise NoStream(missing(f"{where} names a stream", key, names))
        return {argument: given[name]} if name in given else default
    return default if given is None else {argument: given}
