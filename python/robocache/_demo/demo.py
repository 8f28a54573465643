"""`robocache demo`: a simulated arm whose truth is known. Its log, on the way to tensors (`_demo/stages.py`); what
aligning gives beside what people do by hand today; and its table, voxelized (`_demo/voxels.py`).

Needs NumPy only. Rich makes the tables nicer, matplotlib draws the figures and Rerun shows the log, where they are
installed.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import robocache as rc
from robocache import _tables
from robocache._demo import stages as demo_stages
from robocache._demo import voxels as demo_voxels
from robocache._demo.arm import DURATION, EPOCH, Array, Sensor, nanoseconds, record, seconds
from robocache._demo.timing import host_backend, median_microseconds

MARGIN = 0.2  # seconds left out at both ends, so that every sensor has begun and none has ended

# ---- What people do today


def nearest_index(sensor: Sensor, targets: Array) -> Array | None:
    """index = round(t * rate): right only for a sensor that keeps its rate and loses nothing."""
    if sensor.rate is None:
        return None
    index = np.rint((targets - sensor.stamps[0]) * 1e-9 * sensor.rate).astype(np.int64)
    return sensor.values[np.clip(index, 0, len(sensor.values) - 1)].astype(np.float64)


def float32_lerp(sensor: Sensor, targets: Array, origin: int) -> Array:
    """searchsorted and lerp, every channel alike, on float32 seconds since `origin`."""
    stamps = ((sensor.stamps - origin) * 1e-9).astype(np.float32)
    wanted = ((targets - origin) * 1e-9).astype(np.float32)
    upper = np.clip(np.searchsorted(stamps, wanted, side="right"), 1, len(stamps) - 1)
    before, after = stamps[upper - 1], stamps[upper]
    step = np.where(after > before, after - before, np.float32(1))  # equal stamps: 0 / 0 is left out, in its favour
    weight = np.clip((wanted - before) / step, 0, 1)[:, None]
    values = sensor.values.astype(np.float32)
    return (values[upper - 1] + weight * (values[upper] - values[upper - 1])).astype(np.float64)


WAYS = ("nearest index", "float32 epoch lerp", "float32 lerp", "robocache")


def by_hand(sensor: Sensor, targets: Array) -> dict[str, Array | None]:
    return {
        "nearest index": nearest_index(sensor, targets),
        "float32 epoch lerp": float32_lerp(sensor, targets, 0),
        "float32 lerp": float32_lerp(sensor, targets, EPOCH),
    }


def live_frames(sensor: Sensor, ticks: Array) -> Array:
    """The frame a running robot holds at each tick, message by message; -1 before the first."""
    queue, held, frames = list(np.asarray(sensor.stream.arrivals)), -1, []
    for tick in ticks:
        while held + 1 < len(queue) and queue[held + 1] <= tick:
            held += 1
        frames.append(held)
    return np.array(frames)


# ---- What came out


@dataclass(frozen=True)
class Outcome:
    """All that the tables and the figure show."""

    sensors: Mapping[str, Sensor]
    targets: Array  # nanoseconds
    timeline: rc.Timeline  # the same
    aligned: Mapping[str, Any]  # offline: both neighbours are known
    causal: Mapping[str, Any]  # what the robot had at that moment
    report: dict[str, Any]


def statistics(sensor: Sensor, valid: Array) -> dict[str, Any]:
    stamps = sensor.stamps
    found: dict[str, Any] = {"samples": len(stamps), "valid_share": round(float(valid.mean()), 4)}
    max_gap = sensor.stream.max_gap
    if sensor.rate is None or not isinstance(max_gap, float):
        return found | {"rate_hz": None, "jitter_ms_p50": None, "jitter_ms_p99": None, "dropped": None, "gaps": []}
    steps = np.diff(stamps) * 1e-9
    period = float(np.median(steps))
    dropped = int(np.rint(steps / period - 1).clip(0).sum())
    jitter = 1e3 * np.abs(steps - period)[steps < 1.5 * period]
    ends = np.append(stamps, nanoseconds(np.array([DURATION])))  # a sensor that dies leaves a gap until the end
    lengths = np.diff(ends) * 1e-9
    gaps = [(float(seconds(ends[k])), float(seconds(ends[k + 1]))) for k in np.flatnonzero(lengths > max_gap)]
    return found | {
        "rate_hz": round((len(steps) + dropped) / float(steps.sum()), 2),
        "jitter_ms_p50": round(float(np.percentile(jitter, 50)), 4),
        "jitter_ms_p99": round(float(np.percentile(jitter, 99)), 4),
        "dropped": dropped,
        "gaps": [(round(begin, 3), round(end, 3)) for begin, end in gaps],
    }


def magnitude(error: Array) -> dict[str, float]:
    return {"rms": float(np.sqrt(np.mean(error**2))), "max": float(np.abs(error).max())}


def compare(sensor: Sensor, targets: Array, aligned: Any) -> dict[str, Any]:
    """Every way's error on the targets that are valid; on the others a way that knows no `valid` makes numbers up."""
    truth, valid = sensor.truth(seconds(targets)), np.asarray(aligned.valid)
    ways = by_hand(sensor, targets) | {"robocache": np.asarray(aligned.values)}
    found: dict[str, Any] = {}
    for quantity in sensor.quantities:
        entry: dict[str, Any] = {
            "unit": quantity.unit,
            "method": quantity.method,
            "error": {},
            "invalid": int((~valid).sum()),
        }
        for way, values in ways.items():
            if values is not None:
                entry["error"][way] = magnitude(quantity.error(values[valid], truth[valid]))
        lerp = ways["float32 lerp"]
        if lerp is not None and not valid.all():
            entry["made_up"] = magnitude(quantity.error(lerp[~valid], truth[~valid]))["max"]
        found[quantity.label] = entry
    return found


def same_bits(some: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    fields = ("values", "valid", "age", "index")
    return all(
        np.asarray(getattr(some[name], field)).tobytes() == np.asarray(getattr(other[name], field)).tobytes()
        for name in some
        for field in fields
    )


def run(rate: float = 50.0) -> Outcome:
    sensors = record()
    streams = {name: sensor.stream for name, sensor in sensors.items()}
    start, count = EPOCH + round(MARGIN * 1e9), int((DURATION - 2 * MARGIN) * rate) + 1
    timeline = rc.Timeline(start, rate=rate, count=count)
    targets = start + np.rint(np.arange(count) * 1e9 / rate).astype(np.int64)  # only to ask the truth at them

    aligned = rc.align(streams, timeline)
    causal = rc.align(streams, timeline, causal=True)

    live, by_stamp = live_frames(sensors["camera"], targets), np.asarray(aligned["camera"].index)
    report: dict[str, Any] = {
        "rate_hz": rate,
        "targets": count,
        "streams": {name: statistics(sensor, np.asarray(aligned[name].valid)) for name, sensor in sensors.items()},
        "errors": {},
        "causal": {
            "equal_to_live_robot": int((np.asarray(causal["camera"].index) == live).sum()),
            "from_the_future": int((by_stamp > live).sum()),
        },
        "align_us": median_microseconds(lambda: rc.align(streams, timeline)),
        "backend": host_backend(),
        "equal_to_reference": same_bits(aligned, rc.align(streams, timeline, backend="reference")),
    }
    for name, sensor in sensors.items():
        report["errors"] |= compare(sensor, targets, aligned[name])
    return Outcome(sensors, targets, timeline, aligned, causal, report)


# ---- Told to a person


def figure_of(number: float) -> str:
    if number == 0:
        return "0"
    return (
        f"{number:.0f}"
        if number >= 100
        else f"{number:.2g}"
        if number >= 1e-3
        else f"{number:.0e}".replace("e-0", "e-")
    )


def tell(outcome: Outcome) -> None:
    report = outcome.report
    rows = []
    for label, entry in report["errors"].items():
        cells = [entry["error"].get(way) for way in WAYS]
        shown = [
            "no rate" if cell is None else f"{figure_of(cell['rms'])} ({figure_of(cell['max'])})" for cell in cells
        ]
        rows.append([f"{label}, {entry['unit']}", *shown, entry["method"]])
    _tables.table(
        f"Aligned at {report['rate_hz']:g} Hz: error against the truth, RMS (max), where valid",
        ("", *WAYS, "by"),
        rows,
        best=len(WAYS),
        spare=["by"],
    )
    for sentence in lessons(report):
        _tables.paragraph(sentence)


def lessons(report: Mapping[str, Any]) -> list[str]:
    """What to read from the tables. Every number in a sentence is measured above."""
    imu, live = report["errors"]["imu"], report["causal"]
    bits = "the same bits as" if report["equal_to_reference"] else "OTHER BITS THAN"
    return [
        "How to read it: epoch seconds in float32 come in steps of 128 s, so that lerp never moves; counted from 0 "
        "they do for 8 s, and are 1 ms coarse after 2.3 hours. An index knows nothing of drift and lost samples. A "
        "plain lerp takes the long way round at pi, loses its way where a quaternion flips its sign, half-opens the "
        "gripper, and leaves latency in.",
        f"Where valid is false, the other ways answer all the same: {imu['invalid']} times for the dead IMU, wrong by "
        f"up to {figure_of(imu.get('made_up', 0.0))} {imu['unit']}.",
        f"causal=True picks the camera frame that a live robot held at {live['equal_to_live_robot']} of "
        f"{report['targets']} ticks; by stamp alone, {live['from_the_future']} ticks would see a frame that had not "
        "arrived yet.",
        f"rc.align: {len(report['streams'])} streams at {report['targets']} targets in {report['align_us']:.0f} us on "
        f"{report['backend']}; {bits} the reference.",
    ]


def draw(outcome: Outcome, voxels: demo_voxels.Outcome, folder: Path) -> list[Path]:
    """Writes demo.png and scene.png into the folder, where matplotlib is installed."""
    try:
        from robocache._demo import figure, voxels_figure
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.split(".")[0] != "matplotlib":
            raise
        return []
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "demo.png", folder / "scene.png"]
    figure.draw(outcome, paths[0])
    voxels_figure.draw(voxels, paths[1])
    return paths


def report_on(recording: Path, folder: Path, rate: float) -> Path:
    """Writes demo.html into the folder: the report on the log, as robocache report makes it."""
    folder.mkdir(parents=True, exist_ok=True)
    rc.report(recording, folder / "demo.html", rate=rate)
    return folder / "demo.html"


def view(recording: Path, folder: Path, rate: float) -> Path | None:
    """Writes demo.rrd into the folder: the log in the Rerun viewer. None: Rerun is not installed."""
    from robocache._view.sink import rerun

    try:
        rerun()
    except ModuleNotFoundError:
        return None
    return rc.view(recording, rate=rate, output=folder / "demo.rrd").path


def tell_view(seen: Path | None) -> None:
    from robocache._view.show import how_to_open

    if seen is None:
        _tables.paragraph("No view of the log: pip install '.[view]' brings Rerun, which shows it.")
    else:
        _tables.paragraph(f"View of the log: {seen}. {how_to_open(seen)}.")


def main(output: Path, rate: float = 50.0, as_json: bool = False) -> None:
    outcome, voxels = run(rate), demo_voxels.run()
    with tempfile.TemporaryDirectory(prefix="robocache-demo-") as folder:
        stages = demo_stages.run(Path(folder), outcome.sensors, outcome.timeline)
        same = same_bits(outcome.aligned, stages.aligned)
        page = report_on(Path(folder) / "demo.mcap", output, rate)
        seen = view(Path(folder) / "demo.mcap", output, rate)
    paths = draw(outcome, voxels, output)
    log = stages.report | {"equal_to_memory": same}
    if as_json:
        parts: dict[str, Any] = {"log": log, "voxels": voxels.report, "figures": [str(path) for path in paths]}
        parts |= {"page": str(page), "view": None if seen is None else str(seen)}
        print(json.dumps(outcome.report | parts, indent=2))
        return
    _tables.paragraph(
        f"A simulated 7-joint arm and a depth camera, {DURATION:g} s, as ROS 2 messages in an MCAP file; what was "
        "really there is known. First the log, as robocache info tells of it, then the way to tensors."
    )
    print()
    demo_stages.tell(stages)
    bits = "the same bits as" if same else "OTHER BITS THAN"
    _tables.paragraph(f"Through MCAP, CDR and the cache, aligned values have {bits} those that never left memory.")
    print()
    tell(outcome)
    print()
    demo_voxels.tell(voxels)
    _tables.paragraph(
        f"Figures: {', '.join(map(str, paths))}" if paths else "No figures: pip install '.[demo]' brings matplotlib."
    )
    _tables.paragraph(f"Report on the log, for a browser: {page}")
    tell_view(seen)
    _tables.paragraph(
        "Next: robocache demo FILE does this with a recording of yours (MCAP, rosbag2, LeRobot, HDF5); robocache info "
        "FILE --write-recipe recipe.toml begins in earnest. robocache doctor: what runs on this machine."
    )


if __name__ == "__main__":
    main(Path.cwd())
