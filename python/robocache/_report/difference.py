"""What became better and worse since an earlier report."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from robocache._core import FileError
from robocache._recordings.words import figures

FORMAT = "robocache report"
VERSION = 1
BEGIN, END = '<script type="application/json" id="robocache-report">', "</script>"
MOST_BYTES = 64 << 20
LEVELS = ("good", "fair", "bad")
# The numbers that are compared: the name in the data, the name for people, the unit, and whether less is better (None:
# a change is neither better nor worse).
MEASURES: tuple[tuple[str, str, str, bool | None], ...] = (
    ("samples", "samples", "", None),
    ("rate_hz", "rate", "Hz", None),
    ("jitter_ms_p99", "jitter p99", "ms", True),
    ("gaps", "gaps", "", True),
    ("longest_gap_s", "longest gap", "s", True),
    ("lost", "lost samples", "", True),
    ("duplicates", "duplicate stamps", "", True),
    ("backward", "stamps that went backward", "", True),
    ("offset_ms", "arrival - stamp", "ms", True),
    ("drift_ppm", "drift", "ppm", True),
    ("coverage", "coverage", "%", False),
    ("not_finite", "values not finite", "", True),
    ("age_p99_ms", "age at tick p99", "ms", True),
)
MOST_NUMBER = 1e18  # larger numbers cannot have been measured: the file was edited
SAME = 0.1  # of the value: a smaller change is not reported
NOISE = {"Hz": 0.05, "ms": 0.2, "s": 0.001, "ppm": 10.0, "%": 0.001}  # by unit: a smaller change is not reported either


def as_json(data: Mapping[str, Any]) -> str:
    """The element with the data. <, > and & are escaped, so the data cannot end it or begin another one."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f"{BEGIN}{text}{END}"


def report_data(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads the data inside a report that `rc.report` or `robocache report` wrote.

    Args:
        path: The HTML file.

    Returns:
        A dict, as `Report.data`.

    Raises:
        FileError: The file is missing, or is not such a report.
    """
    place = Path(path)
    try:
        with place.open("rb") as file:
            text = file.read(MOST_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise FileError(f"{place}: {error.strerror or error}") from None
    found = re.search(re.escape(BEGIN) + "(.*?)" + re.escape(END), text, re.DOTALL)
    if found is None:
        raise FileError(f"{place}: is no report of RoboCache: the data inside it are missing")
    try:
        data = json.loads(found[1])
    except (ValueError, RecursionError) as error:
        raise FileError(f"{place}: the data inside the report are damaged: {error}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT or not isinstance(data.get("recordings"), list):
        raise FileError(f"{place}: is no report of RoboCache: its data are of another kind")
    if data.get("version") != VERSION:
        raise FileError(f"{place}: is a report of another version of RoboCache; make it again with this one")
    return data


def difference(now: Mapping[str, Any], before: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The changes of the recordings and streams that both reports have, and the names that only one of them has.

    Recordings are matched by name. If each report is about one recording, the two are compared whatever their names.
    """
    new, old = by_name(now["recordings"], "name"), by_name(before["recordings"], "name")
    if len(new) == len(old) == 1:
        old = {next(iter(new)): next(iter(old.values()))}
    changes: list[dict[str, Any]] = []
    for recording in new.keys() & old.keys():
        changes += compared(recording, new[recording], old[recording])
    changes.sort(key=lambda change: (change["recording"], change["stream"]))
    return {
        "file": name,
        "made": str(before.get("made", "")),
        "level": str(before.get("level", "")),
        "verdict": str(before.get("verdict", "")),
        "changes": changes,
        "only_now": sorted(new.keys() - old.keys()),
        "only_before": sorted(old.keys() - new.keys()),
    }


def by_name(items: Any, key: str) -> dict[str, Mapping[str, Any]]:
    return {str(item.get(key)): item for item in items if isinstance(item, dict)}


def compared(recording: str, now: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    new, old = streams_of(now), streams_of(before)
    for stream in dict.fromkeys([*new, *old]):
        told: dict[str, Any] = {"recording": recording, "stream": stream}
        if stream not in old or stream not in new:
            words = ("not there", "there") if stream not in old else ("there", "not there")
            yield told | {"what": "stream", "before": words[0], "after": words[1], "better": None}
            continue
        yield from (told | change for change in of_stream(new[stream], old[stream]))


def streams_of(recording: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    found = recording.get("streams")
    return {k: v for k, v in found.items() if isinstance(v, dict)} if isinstance(found, dict) else {}


def of_stream(now: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    was, is_now = before.get("level"), now.get("level")
    if was != is_now and was in LEVELS and is_now in LEVELS:
        is_better = LEVELS.index(is_now) < LEVELS.index(was)
        yield {"what": "verdict", "before": was, "after": is_now, "better": is_better}
    for key, words, unit, less in MEASURES:
        old, new = (number(each, key) for each in (before, now))
        if old is None or new is None:
            continue
        least = NOISE.get(unit, 0.0)
        if old == new or (unit and abs(new - old) <= max(least, SAME * max(abs(old), abs(new)) if unit != "%" else 0)):
            continue
        better = None if less is None else (abs(new) < abs(old)) == less
        yield {"what": words, "before": shown(old, unit), "after": shown(new, unit), "better": better}


def number(stream: Mapping[str, Any], key: str) -> float | None:
    """A number of a stream's data. None: it is not a number, as in a file that was edited."""
    age = stream.get("age")
    found = (age.get("p99_ms") if isinstance(age, dict) else None) if key == "age_p99_ms" else stream.get(key)
    if not isinstance(found, (int, float)) or isinstance(found, bool):
        return None
    return found if abs(found) < MOST_NUMBER else None  # false for NaN


def shown(value: float, unit: str) -> str:
    if unit == "%":
        return f"{100 * value:.1f} %"
    return f"{value:,}" if isinstance(value, int) else f"{figures(value, 4)} {unit}".rstrip()
