"""Writing a view for Rerun, ours beside Rerun's own `send_columns` on the same arrays: all that are in our file, of
all streams: raw, aligned and known. Ours also computes them, and the blueprint.

Both write a file. What is compared is the sum of all numbers in it and how many they are, read by Rerun."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench import logs, others
from bench.goals import OURS, Row
from bench.timing import Call

SEND_COLUMNS = "rerun send_columns"
NAMES = (SEND_COLUMNS,)
START = 1_700_000_000_000_000_000
SCALARS, STATES = "Scalars:scalars", "StateChange:state"


@dataclasses.dataclass(frozen=True)
class Streams:
    """Streams of a recording, and the arrays that a view has of them, by entity: both clocks, and numbers or words."""

    arrays: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]
    shown: dict[str, tuple[np.ndarray, np.ndarray, Any]]
    place: Path

    @property
    def bytes(self) -> int:
        return sum(16 * len(times) + values.nbytes for times, _, values in self.arrays.values())


@dataclasses.dataclass(frozen=True, eq=False)
class ViewCase(Row):
    """Some streams of float32 at 1 kHz, aligned at 50 Hz."""

    name: str
    streams: int
    samples: int
    channels: int = 7

    op = "view"
    devices = ("cpu",)

    def peers(self, device: str) -> tuple[str, ...]:
        return NAMES

    def make(self, device: str, seed: int = 0) -> Streams:
        others.module("rerun", "pip install robocache[view]")
        random = np.random.default_rng(seed)
        times = START + np.arange(self.samples) * 1_000_000
        arrays = {
            f"/stream_{k}": (
                times + k,
                times + k + 3_000_000,
                random.standard_normal((self.samples, self.channels)).astype(np.float32),
            )
            for k in range(self.streams)
        }
        place = logs.folder() / f"view-{self.streams}-{self.samples}-{seed}"
        made = Streams(arrays, {}, place)
        rc = others.module("robocache", "pip install .")
        self.ours(rc, made)()
        return dataclasses.replace(made, shown=columns_in(place.with_suffix(".rrd")))

    def ours(self, rc: ModuleType, inputs: Streams) -> Call:
        streams = {
            name: rc.Stream(values, times, arrivals=arrivals)
            for name, (times, arrivals, values) in inputs.arrays.items()
        }
        path = inputs.place.with_suffix(".rrd")
        return lambda: rc.view(streams, rate=50, output=path).path

    def other_call(self, who: str, inputs: Streams) -> Call:
        rr = others.module("rerun", "pip install robocache[view]")
        path = inputs.place.with_suffix(".other.rrd")

        def call() -> Path:
            recording = rr.RecordingStream("bench")
            recording.save(path)
            for entity, (times, arrivals, values) in inputs.shown.items():
                clocks = {"recording": times, "arrival": arrivals}
                indexes = [rr.TimeColumn(name, timestamp=clock.view("M8[ns]")) for name, clock in clocks.items()]
                is_words = isinstance(values, list)
                columns = rr.StateChange.columns(state=values) if is_words else rr.Scalars.columns(scalars=values)
                recording.send_columns(entity, indexes, columns)
            recording.flush()
            recording.disconnect()
            return path

        return call

    def results(self, returned: Path) -> list[Tensor]:
        return totals(columns_in(returned))

    def truth(self, inputs: Streams) -> list[Tensor]:
        """The samples as they were made; what was aligned from them is checked by the tests."""
        raw = [values.astype(np.float64) for _, _, values in inputs.arrays.values()]
        return [torch.tensor([sum(float(each.sum()) for each in raw), sum(each.size for each in raw)])]

    def floor_bytes(self, inputs: Streams) -> int:
        """The samples once in, and all arrays once out."""
        shown = sum(16 * len(times) + getattr(values, "nbytes", 0) for times, _, values in inputs.shown.values())
        return inputs.bytes + shown

    def figures(self, who: str, inputs: Streams) -> dict[str, Any]:
        return {"bytes": inputs.bytes} if who == OURS else {}


def columns_in(path: Path) -> dict[str, tuple[np.ndarray, np.ndarray, Any]]:
    """By entity: recording, arrival, and numbers [N, D] or a list of words."""
    from rerun.chunk import RrdReader

    found: dict[str, tuple[np.ndarray, np.ndarray, Any]] = {}
    for chunk in RrdReader(path).stream():
        if chunk.is_static:
            continue
        batch = chunk.to_record_batch()
        clocks = [batch.column(name).cast("int64").to_numpy() for name in ("recording", "arrival")]
        values: Any
        if SCALARS in batch.schema.names:
            values = batch.column(SCALARS).flatten().to_numpy().reshape(len(batch), -1)
        else:
            values = batch.column(STATES).flatten().to_pylist()
        found[chunk.entity_path] = clocks[0], clocks[1], values
    return found


def totals(found: dict[str, tuple[np.ndarray, np.ndarray, Any]]) -> list[Tensor]:
    raw = [values for entity, (_, _, values) in found.items() if entity.startswith("/raw/")]
    return [torch.tensor([sum(float(values.sum()) for values in raw), sum(values.size for values in raw)])]


VIEW_CASES = (
    ViewCase("8 streams of 60K samples, 7 channels", 8, 60_000),
    ViewCase("8 streams of 140K samples, 7 channels", 8, 140_000),
)
