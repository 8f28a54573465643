"""LeRobot's own library opens what we export. Runs in its venv, without RoboCache: .judge/bin/python judge.py FOLDER"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
logging.disable(logging.WARNING)  # that torchcodec finds no FFmpeg, and PyAV serves

import numpy as np  # noqa: E402
from lerobot.datasets.lerobot_dataset import LeRobotDataset  # noqa: E402
from lerobot.utils.feature_utils import dataset_to_policy_features  # noqa: E402


def opened(root: Path) -> Any:
    return LeRobotDataset("judge/set", root=root, video_backend="pyav")


def judge_made(folder: Path) -> None:
    data, truth = opened(folder / "made"), np.load(folder / "made.npz")
    assert data.fps == 50
    assert data.num_episodes == 2
    lengths = [len(truth[f"{k}/observation.state"]) for k in (0, 1)]
    assert len(data) == sum(lengths)
    assert list(data.meta.tasks.index) == ["push", "pull"]
    for at in range(len(data)):
        item, episode = data[at], int(at >= lengths[0])
        step = at - episode * lengths[0]
        assert item["task"] == ("push", "pull")[episode]
        assert int(item["frame_index"]) == step
        assert abs(float(item["timestamp"]) - step / 50) < 1e-4
        for name in ("observation.state", "action", "observation.grid"):
            got, wanted = np.asarray(item[name]), truth[f"{episode}/{name}"][step]
            assert got.dtype == wanted.dtype or name == "action", (name, got.dtype)
            # linear in float32 by us and in float64 by NumPy; what is held is the same number
            close = 0.0 if name == "action" else 1e-6
            np.testing.assert_allclose(got.astype(np.float32), wanted, rtol=close, atol=close, err_msg=name)
        assert bool(item["valid.observation.state"])
    assert set(dataset_to_policy_features(data.meta.features)) == {"observation.state", "action", "observation.grid"}
    windows = LeRobotDataset("judge/set", root=folder / "made", delta_timestamps={"action": [0, 0.02, 0.04]})
    assert windows[3]["action"].shape == (3, 2)
    whole = np.concatenate([truth[f"{k}/observation.state"] for k in (0, 1)])
    np.testing.assert_allclose(data.meta.stats["observation.state"]["mean"], whole.mean(axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(data.meta.stats["observation.state"]["std"], whole.std(axis=0), rtol=1e-5)
    np.testing.assert_allclose(data.meta.stats["observation.state"]["max"], whole.max(axis=0), rtol=1e-6)


def judge_shared(folder: Path, source: Path) -> None:
    theirs, ours = opened(source), opened(folder / "shared")
    first = 383 + 386 + 379 + 382
    assert len(ours) == 90 + 162
    assert ours.num_episodes == 2
    for at in (0, 45, 89, 90, 200, len(ours) - 1):
        got, wanted = ours[at], theirs[first + at]
        for name in ("observation.state", "action", "timestamp"):
            np.testing.assert_array_equal(np.asarray(got[name]), np.asarray(wanted[name]), err_msg=name)
        assert got["task"] == wanted["task"]
        image, truth = np.asarray(got["observation.images.wrist"]), np.asarray(wanted["observation.images.wrist"])
        assert image.shape == truth.shape
        assert np.abs(image - truth).mean() < 0.02, f"frame {at}: {np.abs(image - truth).mean()}"


def main(folder: Path) -> None:
    judge_made(folder)
    source = json.loads((folder / "judge.json").read_text())["shared"]
    if source is None:
        print("judge: LeRobot's library opens our export; the shared data set is not here, and was not compared.")
        return
    judge_shared(folder, Path(source))
    print("judge: LeRobot's library opens our exports, and finds in them what was aligned and what it recorded itself.")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
