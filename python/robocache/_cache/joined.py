"""Joined streams: one stream for policies, made of several that the cache stores at their own rates.

A recipe declares one by `topics = [...]`. The cache stores the members as ordinary streams, so they lose nothing. The
metadata of each member names the joined stream and its other members. `Cache.streams`, `Cache.align` and `export` show
the joined stream as one, with the members' channels in the recipe's order, and align the members one by one. An
episode's `streams`, batches and `info` have the members.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from robocache._align.results import Aligned
from robocache._align.stream import Method
from robocache._recordings.source import StreamInfo

KEY = "joined"  # the key in a member's metadata


def declaration(name: str, members: Sequence[str]) -> str:
    """The entry in the metadata of every member."""
    return json.dumps([name, list(members)])


def joins(infos: Mapping[str, StreamInfo]) -> dict[str, tuple[str, ...]]:
    """The joined streams that the members' metadata declare, with their members.

    A join is ignored if a member is missing, the members disagree, or a stored stream has its name.
    """
    found: dict[str, tuple[str, ...]] = {}
    for info in infos.values():
        said = info.metadata.get(KEY, "")
        if not said.startswith("["):
            continue
        name, members = json.loads(said)
        agreed = all(member in infos and infos[member].metadata.get(KEY) == said for member in members)
        if agreed and name not in infos:
            found[name] = tuple(members)
    return found


def shown(names: Iterable[str], joined: Mapping[str, tuple[str, ...]]) -> list[str]:
    """The names as users see them: a joined stream takes the place of its first member."""
    of = {member: name for name, members in joined.items() for member in members}
    return list(dict.fromkeys(of.get(name, name) for name in names))


def info_of(name: str, members: Sequence[StreamInfo]) -> StreamInfo:
    """The info of a joined stream: all channels side by side, in a dtype that can hold them all."""
    widths = [int(np.prod(info.shape, dtype=np.int64)) for info in members]
    methods: list[tuple[str, int, int]] = []
    first = 0
    for info, width in zip(members, widths, strict=True):
        own = ranges_of(info, width)
        methods += [(method, first + begin, first + end) for method, begin, end in own]
        first += width
    return StreamInfo(
        name,
        "joined",
        np.result_type(*(info.dtype for info in members)),
        (sum(widths),),
        channels_of(name, members, widths),
        methods[0][0] if len({method for method, _, _ in methods}) == 1 else methods,
        False,
        {"members": json.dumps([info.name for info in members])},
    )


def ranges_of(info: StreamInfo, width: int) -> list[tuple[str, int, int]]:
    if info.method is None:
        return [("hold" if info.dtype.kind in "biu" else "linear", 0, width)]
    if isinstance(info.method, str):
        return [(info.method, 0, width)]
    assert not isinstance(info.method, Mapping)
    return list(info.method)


def channels_of(name: str, members: Sequence[StreamInfo], widths: Sequence[int]) -> tuple[str, ...]:
    """The channel names of all members. If two members share one, the member's name is put before it."""
    if not any(info.channels for info in members):
        return ()
    tails = [info.name.removeprefix(f"{name}/").replace("/", ".") for info in members]
    named = [
        info.channels or ((tail,) if width == 1 else tuple(f"{tail}[{k}]" for k in range(width)))
        for info, tail, width in zip(members, tails, widths, strict=True)
    ]
    flat = [channel for group in named for channel in group]
    if len(set(flat)) == len(flat):
        return tuple(flat)
    return tuple(f"{tail}.{channel}" for tail, group in zip(tails, named, strict=True) for channel in group)


def method_of_member(where: str, method: Method | None, whole: StreamInfo, first: int, width: int) -> Method | None:
    """The part of a joined stream's method for channels [first, first + width)."""
    if method is None or isinstance(method, str):
        return method
    if isinstance(method, Mapping):
        from robocache._cache.recipe import method_of

        method = method_of(where, method, whole.channels)
        if isinstance(method, str):
            return method
    assert not isinstance(method, Mapping)
    last = first + width
    return [
        (name, max(begin, first) - first, min(end, last) - first)
        for name, begin, end in method
        if begin < last and end > first
    ]


NEVER = np.iinfo(np.int64).min  # the age if no sample exists


def put_together(parts: Sequence[Aligned[Any]], dtype: np.dtype[Any]) -> Aligned[Any]:
    """The aligned members as one stream.

    A row is valid if all members are, and as old as the oldest of them. Its index is -1, because no single sample is
    behind it.
    """
    valid, age = joined_marks(parts)
    flat = [part.values.reshape((*valid.shape, -1)) for part in parts]
    array = library_of(valid)
    if array is np:
        values: Any = np.concatenate([each.astype(dtype, copy=False) for each in flat], axis=-1)
    else:
        kind = getattr(array, str(dtype))
        values = array.cat([each.to(kind) for each in flat], dim=-1)
    return Aligned(values, valid, age, array.full_like(parts[0].index, -1))


def joined_marks(parts: Sequence[Aligned[Any]]) -> tuple[Any, Any]:
    """valid and age of the members as one stream: valid if all are, and as old as the oldest."""
    valid, age = parts[0].valid, parts[0].age
    array, never = library_of(valid), age == NEVER
    for part in parts[1:]:
        valid, age, never = valid & part.valid, array.maximum(age, part.age), never | (part.age == NEVER)
    return valid, array.where(never, NEVER, age)


def library_of(array: Any) -> Any:
    """numpy, or torch for a tensor."""
    if isinstance(array, np.ndarray):
        return np
    import torch

    return torch
