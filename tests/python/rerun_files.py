"""What a view has written, read back by Rerun's own reader."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("rerun", reason="rerun-sdk is not installed")
from rerun.chunk import RrdReader


class Entity(NamedTuple):
    times: dict[str, np.ndarray]  # int64 nanoseconds, by timeline; {} where it is static
    columns: dict[str, Any]  # Arrow list arrays by component

    def rows(self, component: str) -> list[Any]:
        return self.columns[component].to_pylist()

    def scalars(self) -> np.ndarray:
        return np.array(self.rows("Scalars:scalars"), np.float64)

    def blobs(self, component: str) -> list[bytes]:
        return [bytes(row[0]) for row in self.rows(component)]


class Read(NamedTuple):
    entities: dict[str, Entity]  # what changes with time
    static: dict[str, dict[str, Any]]
    kinds: dict[str, str]  # Arrow types of the timelines
    blueprints: int

    @property
    def text(self) -> str:
        return self.static["/about"]["TextDocument:text"].to_pylist()[0][0]


def read(path) -> Read:
    reader = RrdReader(path)
    entities, static, kinds = {}, {}, {}
    for chunk in reader.stream():
        batch = chunk.to_record_batch()
        columns = {name: batch.column(name) for name in batch.schema.names if ":" in name}
        if chunk.is_static:
            static.setdefault(chunk.entity_path, {}).update(columns)
            continue
        times = {}
        for name in chunk.timeline_names:
            kinds[name] = str(batch.schema.field(name).type)
            times[name] = batch.column(name).cast("int64").to_numpy()
        assert chunk.entity_path not in entities, "one chunk an entity: whole arrays"
        entities[chunk.entity_path] = Entity(times, columns)
    return Read(entities, static, kinds, len(reader.blueprints()))


def bands(entity: Entity, timeline: str = "recording") -> list[tuple[int, str]]:
    return list(zip(entity.times[timeline].tolist(), [row[0] for row in entity.rows("StateChange:state")], strict=True))


def spread(found: list[tuple[int, str]], at) -> list[str]:
    """The state that is shown at these times."""
    starts = np.array([time for time, _ in found])
    return [found[int(k)][1] for k in np.searchsorted(starts, at, side="right") - 1]
