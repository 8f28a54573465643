"""What the judge is shown: exports of a recording that is made here, and of the shared data set. With RoboCache alone.

python tests/judge/make.py FOLDER
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

import robocache as rc
from robocache._cache.build import build
from robocache._export.lerobot import Feature, LeRobotWriter
from robocache._recordings.frame_options import FrameOptions

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench import data

SHARED = data.folder() / "lerobot-v3-so101"
RATE = 50


def made(folder: Path) -> None:
    """Two episodes of streams at their own rates, exported; and the numbers that must come out, by NumPy alone."""
    random = np.random.default_rng(9)
    truth: dict[str, Any] = {}
    with rc.CacheWriter(folder / "cache") as writer:
        for number, seconds in enumerate((3.0, 2.0)):
            fast, slow = np.arange(0, seconds, 0.004), np.arange(0, seconds, 0.033)
            state = random.normal(size=(len(fast), 7)).astype(np.float32)
            action = random.normal(size=(len(slow), 2))
            grid = random.normal(size=(len(slow), 2, 3)).astype(np.float32)
            streams = {
                "observation.state": rc.Stream(state, fast, channels=list("abcdefg")),
                "action": rc.Stream(action, slow, method="hold"),
                "observation.grid": rc.Stream(grid, slow),
            }
            writer.add(streams, name=f"episode-{number}", task=("push", "pull")[number])
            # both streams that are interpolated begin at 0, and the slow one ends first; times in whole nanoseconds
            targets = np.arange(round(slow[-1] * 1e9) * RATE // 10**9 + 1) * (10**9 // RATE)
            truth[f"{number}/observation.state"] = between(targets, fast, state)
            truth[f"{number}/observation.grid"] = between(targets, slow, grid)
            held = np.searchsorted(np.rint(slow * 1e9).astype(np.int64), targets, side="right") - 1
            truth[f"{number}/action"] = action[held].astype(np.float32)
    rc.export(rc.Cache(folder / "cache").episodes, folder / "made", rate=RATE)
    np.savez(folder / "made.npz", **truth)


def between(targets: Any, seconds: Any, values: Any) -> Any:
    """Straight lines between samples, by NumPy."""
    stamps, flat = np.rint(seconds * 1e9), values.reshape(len(values), -1).astype(np.float64)
    columns = [np.interp(targets, stamps, flat[:, k]) for k in range(flat.shape[1])]
    return np.stack(columns, axis=1).reshape(len(targets), *values.shape[1:]).astype(np.float32)


def shared(folder: Path) -> None:
    """The last two episodes of the shared data set, through a cache, at their own rate: nothing may change."""
    with rc.CacheWriter(folder / "shared-cache") as writer:
        writer.add(rc.open(SHARED))
    episodes = rc.Cache(folder / "shared-cache").episodes[4:]
    rc.export(episodes, folder / "shared", rate=30)


def policies(folder: Path) -> None:
    """What LeRobot's policies train on: a data set with a camera and a cache of it; numbers and their export.

    All streams of an episode begin and end together: steps beyond an episode repeat the same sample in both libraries.
    """
    random = np.random.default_rng(5)
    channels = {"observation.state": list("abcdef"), "action": list("abcd")}
    features = {name: Feature("float32", (len(some),), tuple(some)) for name, some in channels.items()}
    features["observation.images.top"] = Feature("video", (96, 96, 3))
    with (
        rc.CacheWriter(folder / "numbers-cache") as writer,
        LeRobotWriter(folder / "policies", fps=20, features=features) as videos,
    ):
        for number, seconds in enumerate((2.0, 1.5, 2.5)):
            times, task = np.arange(round(seconds * 100) + 1) / 100, ("push", "pull")[number % 2]
            state = np.sin(times[:, None] * np.arange(1, 7) + random.uniform(0, 6, 6)).astype(np.float32)
            values = {"observation.state": state, "action": state[:, :4] * 2 + 1}
            streams = {name: rc.Stream(each, times, channels=channels[name]) for name, each in values.items()}
            writer.add(streams, name=f"episode-{number}", task=task)
            frames = {name: each[::5] for name, each in values.items()}
            videos.add(frames, task, {"observation.images.top": map(scene, state[::5])})
    rc.export(rc.Cache(folder / "numbers-cache").episodes, folder / "numbers", rate=20)
    build([str(folder / "policies")], folder / "policies-cache", frames=FrameOptions(96, 96))


def scene(state: Any) -> Any:
    """A picture of a state, uint8 [96, 96, 3]: gray waves under one colour.

    FFmpeg as LeRobot calls it repeats chroma over two pixels and RoboCache interpolates it: where colours change from
    pixel to pixel the two differ by more than rounding.
    """
    y, x = np.mgrid[0:96, 0:96] / 12
    waves = np.sin(x + state[0] * 3) + np.cos(y + state[1] * 3)
    return np.rint(waves[..., None] * 40 + 128 + state[2:5] * 15).astype(np.uint8)


def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    made(folder)
    policies(folder)
    if SHARED.is_dir():
        shared(folder)
    (folder / "judge.json").write_text(json.dumps({"shared": str(SHARED) if SHARED.is_dir() else None}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
