"""How the streams of a call are prepared for aligning: one rule, for Cache.align and export."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from robocache._joined import info_of, method_of_member
from robocache._recording import NoStream, StreamInfo, missing


class Prepared(NamedTuple):
    """A stored stream as it will be aligned."""

    name: str  # of the stream that is asked for
    member: str  # the stored stream: itself, or one of those that it is joined of
    changes: dict[str, Any]  # what the call says: arguments of Stream.replace


def prepared(
    where: str,
    groups: Mapping[str, Sequence[str]],
    infos: Mapping[str, StreamInfo],
    options: Mapping[str, Any],
    edge: str = "clamp",
) -> dict[str, Prepared]:
    """The stored streams to align, each under a key of its own.

    groups   the streams that are asked for, and the stored streams of each
    options  method, max_gap, edge, causal, on_nan: for all streams or by name; None: as the stream says
    edge     of streams for which the options name none
    """
    made: dict[str, Prepared] = {}
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
            made[key_of(name, member, groups)] = Prepared(name, member, changes)
    return made


def key_of(name: str, member: str, groups: Collection[str]) -> str:
    """The key of a stored stream: its name; a member of a join that is also asked for itself has both names."""
    return member if member == name or member not in groups else f"{name}: {member}"


def is_numbered(info: StreamInfo) -> bool:
    """Whether `values` are the indices of `samples`."""
    return info.ragged or info.metadata.get("kind") == "video"


def said(
    where: str, argument: str, given: Any, name: str, default: dict[str, Any], names: Collection[str]
) -> dict[str, Any]:
    """What a call says for this stream: one thing for all, or a mapping by name."""
    if isinstance(given, Mapping) and (not given or argument != "method" or any(key in names for key in given)):
        for key in given:
            if key not in names:
                raise NoStream(missing(f"{where} names a stream", key, names))
        return {argument: given[name]} if name in given else default
    return default if given is None else {argument: given}
