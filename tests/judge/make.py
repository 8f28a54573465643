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
from robocache import _export

SHARED = Path(__file__).parents[3] / "shared" / "data" / "lerobot-v3-so101"
RATE = 50


def made(folder: Path) -> None:
    """Two episodes of streams at their own rates, aligned; and the numbers that must come out."""
    random = np.random.default_rng(9)
    with rc.CacheWriter(folder / "cache") as writer:
        for number, seconds in enumerate((3.0, 2.0)):
            fast, slow = np.arange(0, seconds, 0.004), np.arange(0, seconds, 0.033)
            state = rc.Stream(random.normal(size=(len(fast), 7)).astype(np.float32), fast, channels=list("abcdefg"))
            action = rc.Stream(random.normal(size=(len(slow), 2)), slow, method="hold")
            grid = rc.Stream(random.normal(size=(len(slow), 2, 3)).astype(np.float32), slow)
            streams = {"observation.state": state, "action": action, "observation.grid": grid}
            writer.add(streams, name=f"episode-{number}", task=("push", "pull")[number])
    episodes = rc.Cache(folder / "cache").episodes
    rc.export(episodes, folder / "made", rate=RATE)
    truth: dict[str, Any] = {}
    for taken in _export.take(episodes, RATE, None, None, []):
        for name, aligned in taken.aligned.items():
            truth[f"{taken.number}/{name}"] = np.asarray(aligned.values).astype(np.float32)  # as LeRobot has it
    np.savez(folder / "made.npz", **truth)


def shared(folder: Path) -> None:
    """The last two episodes of the shared data set, through a cache, at their own rate: nothing may change."""
    with rc.CacheWriter(folder / "shared-cache") as writer:
        writer.add(rc.open(SHARED))
    episodes = rc.Cache(folder / "shared-cache").episodes[4:]
    rc.export(episodes, folder / "shared", rate=30)


def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    made(folder)
    if SHARED.is_dir():
        shared(folder)
    (folder / "judge.json").write_text(json.dumps({"shared": str(SHARED) if SHARED.is_dir() else None}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
