"""The task of a window: that of its episode, or, where an episode has several, the one that is held at the anchor."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from loader_cases import Episode, Raw, plain_episode, write
from recordings import write_lerobot

import robocache as rc

MS = 1_000_000
TEXTS = {3: "open the door", 5: "wash", 7: "push"}


def episodes():
    """One with three tasks, whose numbers arrive late and in no order, and two with one and none."""
    made = [plain_episode(0, 40), plain_episode(1, 20, task="push"), plain_episode(2, 20)]
    times = made[0].streams["state"].times
    numbers = np.array([5, 5, 3, 7, 3], np.int64)[:, None]
    at = np.array([2, 8, 12, 20, 30])
    late = np.array([0, 5, 200, 20, 1]) * MS  # the third comes after the fourth
    made[0].streams["task_index"] = Raw(
        numbers, times[at], times[at] + late, method="hold", said={"tasks": json.dumps(TEXTS)}
    )
    return made


def expected(episode: Episode, time: int) -> str | None:
    raw = episode.streams.get("task_index")
    if raw is None:
        return episode.task
    known = np.flatnonzero((raw.times <= time) & (raw.arrived <= time))
    return TEXTS[int(raw.values[known[-1], 0])] if len(known) else None


@pytest.mark.parametrize("shards", ["one", "many"])
def test_a_window_has_the_task_that_was_known_at_its_anchor(tmp_path, shards):
    made = episodes()
    cache = rc.Cache(write(tmp_path / "cache", made, shards))
    loader = rc.Loader(cache, batch_size=13, rate=50, observation="state")
    assert sorted(loader.tasks) == sorted(TEXTS.values())
    seen = set()
    for one in (loader, pickle.loads(pickle.dumps(loader))):
        for batch in one:
            for episode, time, task in zip(batch["episode"], batch["time"], batch["task_index"], strict=True):
                wanted = expected(made[episode], int(time))
                assert (loader.tasks[task] if task >= 0 else None) == wanted
                seen.add((int(episode), wanted))
    assert {(0, text) for text in TEXTS.values()} | {(0, None), (1, "push"), (2, None)} <= seen
    mixture = rc.Mixture({"a": loader}, batch_size=40, length=80)
    batch = mixture.batch(0)
    for episode, time, task in zip(batch["episode"], batch["time"], batch["task_index"], strict=True):
        assert (mixture.tasks[task] if task >= 0 else None) == expected(made[episode], int(time))


def test_a_lerobot_data_set_whose_episodes_have_several_tasks(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    import pyarrow.parquet as pq

    write_lerobot(tmp_path / "set")
    first = tmp_path / "set/data/chunk-000/file-000.parquet"
    table = pq.read_table(first)
    numbers = np.asarray(table["task_index"]).copy()
    numbers[4:7] = 1  # of the first episode, which has 7 frames and began with 0
    place = table.schema.get_field_index("task_index")
    pq.write_table(table.set_column(place, "task_index", pa.array(numbers)), first)
    [about] = (tmp_path / "set/meta/episodes").rglob("*.parquet")
    rows = pq.read_table(about).to_pydict() | {"tasks": [["push", "pull"], ["pull"], ["push"]]}
    pq.write_table(pa.table(rows), about)
    with rc.CacheWriter(tmp_path / "cache") as writer:
        writer.add(rc.open(tmp_path / "set"))
    loader = rc.Loader(tmp_path / "cache", batch_size=21, rate=25, observation="observation.state", shuffle=False)
    wanted = ["push"] * 4 + ["pull"] * 3 + ["pull"] * 5 + ["push"] * 9
    assert [loader.tasks[task] for task in loader.batch(0)["task_index"]] == wanted
    batches = loader.lerobot()
    assert batches.batch(0)["task"] == wanted
    assert batches.meta.episodes["tasks"] == [["push", "pull"], ["pull"], ["push"]]
