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

SHARED = Path(__file__).parents[3] / "shared" / "data" / "lerobot-v3-so101"
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


def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    made(folder)
    if SHARED.is_dir():
        shared(folder)
    (folder / "judge.json").write_text(json.dumps({"shared": str(SHARED) if SHARED.is_dir() else None}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
