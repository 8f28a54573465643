"""The first recipe for a recording, which a person then edits."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from robocache._cache.framed import is_camera
from robocache._cache.mends import Mend, mends
from robocache._cache.tier import TYPE
from robocache._recordings.recording import Recording
from robocache._recordings.source import StreamInfo
from robocache._recordings.sync_report import SyncReport
from robocache._recordings.words import toml_string, visible


def first_recipe(
    recording: Recording,
    report: SyncReport | None = None,
    rate: float | None = None,
    msg_path: Sequence[str | os.PathLike[str]] | None = None,
    infos: Mapping[str, StreamInfo] | None = None,
) -> str:
    """A recipe for a person to edit. It takes every stream as it is, and has the lines that mend what the report found.
    Lines that a person must decide about are comments.

    rate, msg_path: as in the call that opened the recording. infos: the streams' infos, if a pass over the recording
    has found them; otherwise this function reads the recording until it knows them.
    """
    folders = ", ".join(toml_string(os.path.abspath(folder)) for folder in msg_path or ())
    file = visible(os.path.basename(recording.path.rstrip("/")))
    task = recording.episodes[0].task if len(recording.episodes) else None
    lines = [
        f"# What robocache build --recipe makes of {file}: delete what is not",
        "# wanted, and name what policies ask for: observation.state, action, observation.images.<camera>.",
        '# In a stream also: dtype = "float32"; topic, for two out of one; topics = ["/joint_states", "/gripper"], for',
        "# one out of two. All keys: docs/semantics.md, Recipes.",
        "",
        "[source]",
        f"time = {toml_string(recording.time)}  # or stamp, log, publish",
        *([] if rate is None else [f"rate = {rate!r}"]),
        *([f"msg_path = [{folders}]"] if folders else []),
        "",
        "[task]",
        f"name = {toml_string(task)}" if task else '# name = "what the robot was asked to do"',
        "",
        "# [episodes]",
        '# by = "gap"  # or file, topic',
        "# gap = 5.0  # seconds in which nothing was logged",
    ]
    contents = recording._source.contents(0) if len(recording.episodes) else {}
    names = list(contents)
    if infos is None:
        infos = described(recording, names)
    else:  # a report skips the frames that a cache keeps beside its cameras
        frames = [name for name in names if contents[name].type == TYPE and name not in infos]
        infos = {**infos, **described(recording, frames)} if frames else infos
    for name in names:
        info = infos.get(name)
        known = mends(report, name, info) if report is not None and name in report.streams else []
        lines += ["", f"[streams.{toml_string(name)}]" + (f"  # {visible(info.type)}" if info else "  # no samples")]
        lines.append(f"name = {toml_string(name)}")
        if info is not None:
            lines += written_stream(info, known)
        lines += [f"# under [source]: {mend.line.removeprefix('# ')}" for mend in known if mend.table == "source"]
    return "\n".join(lines) + "\n"


def described(recording: Recording, names: Sequence[str]) -> dict[str, StreamInfo]:
    """The infos of the streams, from the first samples of the first episode."""
    infos: dict[str, StreamInfo] = {}
    for batch in recording._source.batches(names, 0):
        infos.setdefault(batch.stream, batch.info)
        if len(infos) == len(names):
            break
    return infos


def written_stream(info: StreamInfo, known: Sequence[Mend]) -> list[str]:
    """The lines of a stream's table. A line that mends a finding replaces the default line of the same key."""
    lines = {
        "method": written_method(info),
        "latency": "# latency = 0.0  # seconds that a stamp is later than the event",
        "clock_offset": "# clock_offset = 0.0  # seconds that the sensor's clock is ahead of the robot's; "
        "behind: below 0",
        "max_gap": "# max_gap = 1.0  # seconds: inside a longer gap no value is valid",
    }
    lines |= {key_of(mend.line): mend.line for mend in known if mend.table == "stream" and "=" in mend.line}
    lines.pop("channels", None)  # replaced by a list of all channels, for a person to choose from
    begin = []
    if is_camera(info):
        begin.append('# frames = { size = [224, 224], fit = "cover" }  # also keeps its pictures, decoded and resized')
    if info.channels and not info.metadata.get("kind"):
        begin += written_channels(info.channels)
    return [*begin, *lines.values()]


def key_of(line: str) -> str:
    return line.removeprefix("# ").partition(" =")[0]


def written_channels(channels: Sequence[str]) -> list[str]:
    """The channels by their exact names, a few on each line."""
    if len(channels) > 40:
        return [f"# channels: {len(channels)}, {visible(channels[0])} to {visible(channels[-1])}"]
    rows = [", ".join(toml_string(name) for name in channels[k : k + 4]) for k in range(0, len(channels), 4)]
    return ["channels = [", *(f"  {row}," for row in rows), "]"]


def written_method(info: StreamInfo) -> str:
    method = info.method
    if isinstance(method, str):
        return f"method = {toml_string(method)}"
    if method and not isinstance(method, Mapping) and info.channels:
        by_channel = {info.channels[k]: name for name, begin, end in method for k in range(begin, end)}
        pairs: dict[str, str] = {}
        for channel, name in by_channel.items():
            stem = channel.rpartition(".")[0]
            alike = {by_channel[other] for other in by_channel if other.startswith(f"{stem}.")}
            pairs[f"{stem}.*" if stem and alike == {name} else channel] = name
        table = ", ".join(f"{toml_string(pattern)} = {toml_string(name)}" for pattern, name in pairs.items())
        return f"method = {{ {table} }}"
    return '# method = "linear"  # or cubic, nearest, hold, slerp, angle' if not info.ragged else '# method = "hold"'
