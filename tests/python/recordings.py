"""Recordings for tests: small ones that are made here, and the shared ones where they are."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import data
from robocache._recordings.recording import Recording
from robocache._recordings.source import Batch, Content, Part, Source, StreamInfo


def shared(name: str) -> Path:
    """A file or folder of the recordings that tools/fetch-data fetches; the test is skipped where it is not there."""
    place = data.folder() / name
    if not place.exists():
        pytest.skip(f"{place} is not here; tools/fetch-data fetches it")
    return place


def all_shared(folder: str, pattern: str) -> list[Any]:
    """The files of one folder, as parameters of a test; one that is skipped where there are none."""
    place = data.folder() / folder
    reason = f"{place} is not here; tools/fetch-data fetches it"
    return sorted(place.rglob(pattern)) or [pytest.param(None, marks=pytest.mark.skip(reason))]


def info(name: str, channels: Collection[str] = (), dtype: Any = np.float64, **other: Any) -> StreamInfo:
    made = {
        "name": name,
        "type": "test/msg/Thing",
        "dtype": np.dtype(dtype),
        "shape": (len(channels),),
        "channels": tuple(channels),
        "method": None,
        "ragged": False,
        "metadata": {},
    }
    return StreamInfo(**(made | other))


class MadeSource(Source):
    """Batches as they are given."""

    format, path, time = "MCAP", "made.mcap", "auto"

    def __init__(self, batches: list[Batch], tasks: tuple[str | None, ...] = (None,)) -> None:
        self.given, self.tasks, self.notes, self.passes = batches, tasks, [], 0

    def parts(self) -> list[Part]:
        return [Part(f"episode-{k}", task, None, None) for k, task in enumerate(self.tasks)]

    def contents(self, episode: int) -> dict[str, Content]:
        names = dict.fromkeys(batch.stream for batch in self.given if batch.episode == episode)
        return {name: Content(name, "test/msg/Thing", None) for name in names}

    def batches(self, streams=None, episode=None, start=None, end=None) -> Iterator[Batch]:
        from robocache._recordings.source import clipped

        self.passes += 1
        for batch in clipped(self.given, start, end):
            if (streams is None or batch.stream in streams) and (episode is None or batch.episode == episode):
                yield batch


def batch(name: str, values: Any, times: Any, arrivals: Any = None, episode: int = 0, **other: Any) -> Batch:
    values, times = np.asarray(values), np.asarray(times, np.int64)
    channels = other.pop("channels", [f"c{k}" for k in range(values.shape[1])] if values.ndim == 2 else [])
    lengths = other.pop("lengths", None)
    about = info(name, channels, values.dtype, **({"shape": values.shape[1:]} | other))
    arrived = times if arrivals is None else np.asarray(arrivals, np.int64)
    return Batch(episode, name, values, times, arrived, None if lengths is None else np.asarray(lengths), about)


def made(*batches: Batch, tasks: tuple[str | None, ...] = (None,)) -> Recording:
    return Recording(MadeSource(list(batches), tasks))


# ---- LeRobot data sets


def write_lerobot(
    root: Path, version: str = "v3.0", fps: int = 25, lengths: tuple[int, ...] = (7, 5, 9), **changes: Any
) -> None:
    """A data set as LeRobot lays it out; v3.0 in two data files, v2.1 in one for each episode."""
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    import pyarrow.parquet as pq

    old = version == "v2.1"
    features = {
        "observation.state": {"dtype": "float32", "shape": [3], "names": ["x", "y", "z"]},
        "action": {"dtype": "float32", "shape": [2], "names": {"motors": ["left", "right"]}},
        "matrix": {"dtype": "float64", "shape": [2, 2], "names": None},
        "next.done": {"dtype": "bool", "shape": [1], "names": None},
        "note": {"dtype": "string", "shape": [1], "names": None},
        **{
            name: {"dtype": "float32" if name == "timestamp" else "int64", "shape": [1], "names": None}
            for name in ("timestamp", "frame_index", "episode_index", "index", "task_index")
        },
    }
    about = {
        "codebase_version": version,
        "fps": fps,
        "features": features,
        "chunks_size": 1000,
        "total_episodes": len(lengths),
    }
    about["data_path"] = (
        "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
        if old
        else "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
    )
    (root / "meta").mkdir(parents=True)
    (root / "meta" / "info.json").write_text(json.dumps(about | changes))
    random, tables, start = np.random.default_rng(5), [], 0
    for episode, length in enumerate(lengths):
        frames = np.arange(length)
        state = random.normal(size=(length, 3)).astype(np.float32)
        tables.append(
            pa.table(
                {
                    "observation.state": pa.FixedSizeListArray.from_arrays(pa.array(state.reshape(-1)), 3),
                    "action": pa.array((state[:, :2] + 1).tolist(), pa.list_(pa.float32())),
                    "matrix": pa.array(random.normal(size=(length, 2, 2)).tolist(), pa.list_(pa.list_(pa.float64()))),
                    "next.done": pa.array(frames == length - 1),
                    "note": pa.array(["text"] * length),
                    "timestamp": pa.array((frames / fps).astype(np.float32)),
                    "frame_index": pa.array(frames),
                    "episode_index": pa.array(np.full(length, episode)),
                    "index": pa.array(start + frames),
                    "task_index": pa.array(np.full(length, episode % 2)),
                }
            )
        )
        start += length
    tasks = [[["push"], ["pull"]][episode % 2] for episode in range(len(lengths))]
    if old:
        for episode, table in enumerate(tables):
            path = root / f"data/chunk-000/episode_{episode:06d}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table, path)
        lines = [{"episode_index": k, "tasks": tasks[k], "length": n} for k, n in enumerate(lengths)]
        (root / "meta" / "episodes.jsonl").write_text("\n".join(map(json.dumps, lines)))
        named = [{"task_index": 0, "task": "push"}, {"task_index": 1, "task": "pull"}]
        (root / "meta" / "tasks.jsonl").write_text("\n".join(map(json.dumps, named)))
        return
    (root / "data/chunk-000").mkdir(parents=True)
    (root / "meta/episodes/chunk-000").mkdir(parents=True)
    pq.write_table(pa.concat_tables(tables[:2]), root / "data/chunk-000/file-000.parquet", row_group_size=4)
    pq.write_table(pa.concat_tables(tables[2:]), root / "data/chunk-000/file-001.parquet")
    rows = {
        "episode_index": list(range(len(lengths))),
        "tasks": tasks,
        "length": list(lengths),
        "data/chunk_index": [0] * len(lengths),
        "data/file_index": [0 if k < 2 else 1 for k in range(len(lengths))],
    }
    pq.write_table(pa.table(rows), root / "meta/episodes/chunk-000/file-000.parquet")
    pq.write_table(pa.table({"task_index": [0, 1], "task": ["push", "pull"]}), root / "meta/tasks.parquet")


# ---- Metadata that lies

LIES = (None, -1, 3.5, "x", "../..", [], {}, [1], 10**30, True)


def lies(content: Any) -> Iterator[Any]:
    """The content with one thing in it, at any depth, replaced by something else."""
    yield from LIES
    keys = content if isinstance(content, dict) else range(len(content)) if isinstance(content, list) else ()
    for key in keys:
        for lie in lies(content[key]):
            changed = content.copy()
            changed[key] = lie
            yield changed
