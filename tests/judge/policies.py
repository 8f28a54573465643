"""LeRobot's own policies train on loader.lerobot() as on its data set class. Runs in LeRobot's venv.

.judge/bin/python tests/judge/policies.py FOLDER
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
logging.disable(logging.WARNING)
sys.path.insert(0, str(Path(__file__).parents[2] / "python"))

import av  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from av.filter import Graph  # noqa: E402
from lerobot.datasets.factory import resolve_delta_timestamps  # noqa: E402
from lerobot.datasets.lerobot_dataset import LeRobotDataset  # noqa: E402
from lerobot.policies.act.configuration_act import ACTConfig  # noqa: E402
from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig  # noqa: E402
from lerobot.policies.factory import make_policy, make_pre_post_processors  # noqa: E402

import robocache as rc  # noqa: E402

RATE = 20
BATCH = 8
STEPS = 4
EXACT = 2  # of 255: the most that a picture differs from FFmpeg's accurate conversion of the same frame to RGB
FAST = 3  # and from the faster conversion that LeRobot asks FFmpeg for, which is itself up to 3 from the accurate one
CAMERA = "observation.images.top"
STREAMS = {
    "observation.state": "observation.state",
    CAMERA: CAMERA,
    "action": "action",
}
BOOKKEEPING = ("timestamp", "frame_index", "episode_index", "index", "task_index")


def configs() -> dict[str, Any]:
    """Small policies whose weights are random: nothing is downloaded."""
    small = {"vision_backbone": "resnet18", "pretrained_backbone_weights": None, "device": "cpu", "push_to_hub": False}
    act = ACTConfig(
        chunk_size=8,
        n_action_steps=8,
        dim_model=32,
        n_heads=2,
        dim_feedforward=64,
        n_encoder_layers=1,
        n_decoder_layers=1,
        n_vae_encoder_layers=1,
        latent_dim=8,
        kl_weight=1.0,
        **small,
    )
    diffusion = DiffusionConfig(
        n_obs_steps=2,
        horizon=8,
        n_action_steps=4,
        down_dims=(16, 32),
        diffusion_step_embed_dim=16,
        spatial_softmax_num_keypoints=4,
        num_train_timesteps=10,
        resize_shape=None,
        do_mask_loss_for_padding=True,
        **small,
    )
    return {"act": act, "diffusion": diffusion}


def loader_for(cache: Path, config: Any, streams: dict[str, str]) -> Any:
    """The windows that LeRobot's data set class makes for this policy: the set's rate, everything as recorded."""
    keys = {}
    for name, stream in streams.items():
        steps = config.action_delta_indices if name == "action" else config.observation_delta_indices
        keys[name] = rc.Key(stream, steps=steps, knowledge="truth")
    return rc.Loader(cache, batch_size=BATCH, rate=RATE, keys=keys, seed=3)


def same(ours: dict[str, Any], theirs: dict[str, Any], streams: dict[str, str]) -> float:
    """Asserts that two batches are equal, pictures within FAST, and returns the most that pictures differ by."""
    worst = 0.0
    padded = {f"{name}_is_pad" for name in streams} & set(theirs)
    assert "action_is_pad" in padded
    for name in (*streams, *padded, *BOOKKEEPING):
        assert ours[name].shape == theirs[name].shape, (name, ours[name].shape, theirs[name].shape)
        assert ours[name].dtype == theirs[name].dtype, (name, ours[name].dtype, theirs[name].dtype)
        if name == CAMERA:
            worst = max(worst, float((ours[name] - theirs[name]).abs().max()) * 255)
            assert worst < FAST + 0.01, f"{name}: pictures differ by {worst:.2f} of 255"
        else:
            np.testing.assert_array_equal(ours[name].numpy(), theirs[name].numpy(), err_msg=name)
    assert ours["task"] == theirs["task"]
    assert {name for name in ours if name.endswith("_is_pad")} == {n for n in theirs if n.endswith("_is_pad")}
    return worst


def pairs(batches: Any, data: Any, streams: dict[str, str]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Batches of the loader, and of LeRobot's data set class on the same windows."""
    for number in range(STEPS):
        ours = batches.batch(number)
        items = [data[index] for index in ours["index"].tolist()]
        theirs = torch.utils.data.default_collate([{k: item[k] for k in item if k in ours} for item in items])
        same(ours, theirs, streams)
        yield ours, theirs


def trained(config: Any, meta: Any, stats: Any, batches: list[dict[str, Any]]) -> list[float]:
    """The losses of a fresh policy, whose random numbers are the same each time."""
    torch.manual_seed(0)
    policy = make_policy(config, ds_meta=meta)
    before, after = make_pre_post_processors(config, dataset_stats=stats)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)
    policy.train()
    losses = []
    for batch in batches:
        loss, _ = policy.forward(before(dict(batch)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    policy.eval()
    chunk = policy.predict_action_chunk(before({k: v for k, v in batches[0].items() if k != "action"}))
    action = after(chunk)
    assert action.shape[-1] == batches[0]["action"].shape[-1]
    assert bool(torch.isfinite(action).all())
    return losses


def judge_policy(name: str, config: Any, folder: Path) -> None:
    loader = loader_for(folder / "policies-cache", config, STREAMS)
    batches = loader.lerobot()
    data = LeRobotDataset("judge/set", root=folder / "policies", video_backend="pyav")
    deltas = resolve_delta_timestamps(config, data.meta)
    deltas = {key: value for key, value in (deltas or {}).items() if key in STREAMS}
    data = LeRobotDataset("judge/set", root=folder / "policies", delta_timestamps=deltas, video_backend="pyav")
    assert len(data) == len(loader.windows) == batches.meta.total_frames
    assert batches.meta.fps == data.meta.fps
    assert batches.meta.camera_keys == data.meta.camera_keys, (batches.meta.camera_keys, data.meta.camera_keys)
    assert list(batches.meta.tasks.index) == list(data.meta.tasks.index)
    for stat in ("mean", "std", "min", "max"):
        for key in ("observation.state", "action"):
            np.testing.assert_allclose(batches.meta.stats[key][stat], data.meta.stats[key][stat], rtol=1e-5, atol=1e-6)
    both = list(pairs(batches, data, STREAMS))
    mine = trained(config, batches.meta, batches.meta.stats, [ours for ours, _ in both])
    features = config.input_features, config.output_features
    config.input_features, config.output_features = {}, {}
    theirs = trained(config, data.meta, batches.meta.stats, [theirs for _, theirs in both])
    assert features == (config.input_features, config.output_features), features
    assert theirs[-1] != theirs[0]
    np.testing.assert_allclose(mine, theirs, rtol=0.05)
    for label, losses in (("loader.lerobot()", mine), ("LeRobotDataset", theirs)):
        print(f"judge: {name:9} {label:16} losses {' '.join(f'{loss:.5f}' for loss in losses)}")


def judge_numbers(folder: Path) -> None:
    """The recording itself, at its own rates, against its export: interpolated numbers and padding are equal."""
    config = configs()["diffusion"]
    streams = {"observation.state": "observation.state", "action": "action"}
    deltas = {"observation.state": [-1 / RATE, 0.0], "action": [k / RATE for k in config.action_delta_indices]}
    data = LeRobotDataset("judge/set", root=folder / "numbers", delta_timestamps=deltas)
    for _ in pairs(loader_for(folder / "numbers-cache", config, streams).lerobot(), data, streams):
        pass


def judge_pictures(folder: Path) -> None:
    """Every picture of a video, against FFmpeg's accurate conversion of the same frame."""
    loader = rc.Loader(folder / "policies-cache", batch_size=1, rate=RATE, keys={CAMERA: rc.Key(CAMERA)})
    batches, video = loader.lerobot(), av.open(str(next((folder / "policies").rglob("*.mp4"))))
    graph = Graph()
    steps = [graph.add_buffer(template=video.streams.video[0])]
    steps += [graph.add("scale", "flags=bilinear+accurate_rnd+full_chroma_int")]
    steps += [graph.add("format", "pix_fmts=rgb24"), graph.add("buffersink")]
    graph.link_nodes(*steps).configure()
    count = 0
    for frame in video.decode(video=0):
        graph.push(frame)
        wanted = graph.pull().to_ndarray().astype(np.float32)
        found = batches.window(0, count / RATE)[CAMERA][0].numpy().transpose(1, 2, 0) * 255
        assert np.abs(found - wanted).max() < EXACT + 0.01, f"frame {count}: {np.abs(found - wanted).max()} of 255"
        count += 1
    assert count == batches.meta.episodes["length"][0]


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    judge_numbers(folder)
    judge_pictures(folder)
    for name, config in configs().items():
        judge_policy(name, config, folder)
    print("judge: LeRobot's ACT and diffusion policy train on the loader as on LeRobot's data set class.")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
