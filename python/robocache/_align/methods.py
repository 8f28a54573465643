"""Methods by channel name, as ranges of channels."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence


def by_name(where: str, methods: Mapping[str, str], channels: Sequence[str] | None) -> list[tuple[str, int, int]]:
    """(method, begin, end) for each run of neighbouring channels that one key names.

    A key that is the name of a channel ("position[0]") is that name and no pattern; of the patterns the first that
    matches wins. A key that matches no channel is an error. Runs of different keys are not merged, because
    `on_nan="skip"` treats each run separately. A quaternion is never cut.
    """
    if channels is None:
        raise ValueError(f"{where}method is a dict of patterns, and the stream has no channels for them to match")
    for key in methods:
        if not isinstance(key, str):
            raise TypeError(f"{where}method names a channel by {key!r}; expected a str")
    used = {key: key in channels for key in methods}
    patterns = [key for key in methods if not used[key]]
    ranges: list[tuple[str, int, int]] = []
    previous = None
    for k, channel in enumerate(channels):
        matching = [key for key in patterns if fnmatch.fnmatchcase(channel, key)]
        for key in matching:
            used[key] = True
        if channel in methods:
            chosen = channel
        elif matching:
            chosen = matching[0]
        else:
            raise ValueError(f'{where}no pattern of method matches channel "{channel}"; end the dict with "*"')
        method = methods[chosen]
        in_quaternion = method == "slerp" and bool(ranges) and (k - ranges[-1][1]) % 4 != 0
        if ranges and ranges[-1][0] == method and (chosen == previous or in_quaternion):
            ranges[-1] = (method, ranges[-1][1], k + 1)
        else:
            ranges.append((method, k, k + 1))
        previous = chosen
    unused = [key for key, is_used in used.items() if not is_used]
    if unused and channels:
        named = ", ".join(channels[:8]) + (", ..." if len(channels) > 8 else "")
        raise ValueError(f'{where}method names "{unused[0]}", which matches no channel; the channels are {named}')
    return ranges
