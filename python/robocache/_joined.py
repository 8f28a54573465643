"""Joined streams: one stream for policies, made of several that a cache keeps at their own rates.

A recipe declares one by `topics = [...]`. The cache stores its members as ordinary streams, and the metadata of each
says which joined stream it is a part of, and with which others. So the members lose nothing, and are aligned one by one
when the joined stream is used: `Cache.streams`, `Cache.align` and `export` show it as one stream, its channels those of
the members in the recipe's order; an episode's `streams`, batches and `info` have the members.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from robocache._align import Aligned, Method
from robocache._recording import StreamInfo

KEY = "joined"  # of a member's metadata


def declaration(name: str, members: Sequence[str]) -> str:
    """What the metadata of every member says."""
    return json.dumps([name, list(members)])


def joins(infos: Mapping[str, StreamInfo]) -> dict[str, tuple[str, ...]]:
    """The joined streams that members declare, and their members.

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
    """Stored names as users see them: a joined stream in the place of its first member."""
    of = {member: name for name, members in joined.items() for member in members}
    return list(dict.fromkeys(of.get(name, name) for name in names))


def info_of(name: str, members: Sequence[StreamInfo]) -> StreamInfo:
    """What is known of a joined stream: all channels side by side, in the dtype that holds them all."""
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
    """The members' names; with the member's own before them where two members have the same."""
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
    """The part of a joined stream's method that concerns channels [first, first + width)."""
    if method is None or isinstance(method, str):
        return method
    if isinstance(method, Mapping):
        from robocache._recipe import method_of

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


NEVER = np.iinfo(np.int64).min  # the age where no sample exists


def put_together(parts: Sequence[Aligned[Any]], dtype: np.dtype[Any]) -> Aligned[Any]:
    """The aligned members, as one. A row is real where all of them are; it is as old as the oldest of them; and no one
    sample is behind it, so that index is -1."""
    valid, age = parts[0].valid, parts[0].age
    flat = [part.values.reshape((*valid.shape, -1)) for part in parts]
    array: Any = np
    if hasattr(valid, "detach"):
        import torch as array

        kind = getattr(array, str(dtype))
        values: Any = array.cat([each.to(kind) for each in flat], dim=-1)
    else:
        values = np.concatenate([each.astype(dtype, copy=False) for each in flat], axis=-1)
    never = age == NEVER
    for part in parts[1:]:
        valid, age, never = valid & part.valid, array.maximum(age, part.age), never | (part.age == NEVER)
    return Aligned(values, valid, array.where(never, NEVER, age), array.full_like(parts[0].index, -1))
