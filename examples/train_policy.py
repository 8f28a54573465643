"""A policy learns a task from pictures and joints, on the CPU in about a minute: python examples/train_policy.py

An arm with two joints reaches for a red ball that only the camera sees. Every sensor has a clock of its own. From the
last picture and three moments of the joints the policy predicts the next 16 commands, relative to where the arm is.
Half way the training stops, as a job on a cluster does, and goes on from its checkpoint with exactly the next batch.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import robocache as rc

SECONDS, TICK, SIZE = 1.5, 0.005, 64  # of an episode; of the simulation; pixels a side
LINKS = (0.5, 0.4)  # metres
BATCH, RATE, HISTORY, HORIZON = 64, 20, 3, 16  # windows; hertz; steps
GOAL = 2.5  # degrees: the largest error that passes; an arm that holds still has about 20


def places(joints: np.ndarray) -> np.ndarray:
    """Shoulder, elbow and hand in metres, [N, 3, 2], where the joints are [N, 2], radians."""
    angles = np.cumsum(joints, axis=1)[..., None]
    links = np.concatenate([np.cos(angles), np.sin(angles)], axis=2) * np.array(LINKS)[:, None]
    return np.concatenate([np.zeros((len(joints), 1, 2)), np.cumsum(links, axis=1)], axis=1)


def pictures(joints: np.ndarray, ball: np.ndarray) -> np.ndarray:
    """What a camera above the table sees: uint8 [N, SIZE, SIZE, 3]."""
    pixels = np.stack(np.meshgrid(np.linspace(-1, 1, SIZE), np.linspace(-1, 1, SIZE)), axis=-1)
    images = np.full((len(joints), SIZE, SIZE, 3), 230, np.uint8)
    images[:, ((pixels - ball) ** 2).sum(-1) < 0.08**2] = (200, 30, 30)
    for image, (shoulder, elbow, hand) in zip(images, places(joints), strict=True):
        for begin, end, colour in ((shoulder, elbow, 40), (elbow, hand, 90)):
            line = end - begin
            along = (((pixels - begin) * line).sum(-1) / (line @ line)).clip(0, 1)[..., None]
            image[((pixels - begin - along * line) ** 2).sum(-1) < 0.04**2] = colour
    return images


def record(cache: Path, episodes: int) -> None:
    """Writes episodes of an expert. For recordings of your own: robocache build DIR -o CACHE --frames 64x64"""
    random = np.random.default_rng(0)
    with rc.CacheWriter(cache) as writer:
        for number in range(episodes):
            start, goal = random.uniform((-2.0, 0.8), (2.0, 2.2), (2, 2))
            path = [start]
            for _ in range(round(SECONDS / TICK)):
                path.append(path[-1] + TICK * 2.0 * np.tanh(3 * (goal - path[-1])))
            ticks = {  # of each sensor: its own clock
                name: np.rint((np.arange(0, SECONDS, 1 / rate) + random.uniform(0, jitter)) / TICK).astype(np.int64)
                for name, rate, jitter in (("joints", 100, 0.009), ("camera", 15, 0.06), ("command", 50, 0.02))
            }
            arm = {name: np.array(path)[at.clip(0, len(path) - 1)] for name, at in ticks.items()}
            stamps = {name: at * round(TICK * 1e9) for name, at in ticks.items()}  # nanoseconds
            images = pictures(arm["camera"], places(goal[None])[0, 2])
            streams = {
                "joints": rc.Stream(arm["joints"].astype(np.float32), stamps["joints"]),
                "camera": rc.Stream(images, stamps["camera"], arrivals=stamps["camera"] + 30_000_000, method="hold"),
                "command": rc.Stream(arm["command"].astype(np.float32), stamps["command"]),
            }
            writer.add(streams, name=f"reach {number}", task="reach for the ball")


KEYS = {
    "observation.state": rc.Key("joints", steps=range(1 - HISTORY, 1), normalize="mean_std"),
    "observation.images.top": rc.Key("camera", image={"crop": (62, 62)}),  # at a random place for each window
    "action": rc.Key("command", steps=range(HORIZON), relative="observation.state", normalize="quantiles"),
}


class Policy(nn.Module):
    """Convolutions, where in the picture each of their channels is strongest (spatial softmax), and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        first = [nn.Conv2d(3, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU()]
        self.see = nn.Sequential(*first, nn.Conv2d(32, 32, 3), nn.Flatten(2))
        self.act = nn.Sequential(nn.Linear(2 * 32 + 2 * HISTORY, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
        self.chunk = nn.Linear(256, 2 * HORIZON)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        seen = self.see(batch["observation.images.top"][:, 0] - 0.5).softmax(-1)
        axis = torch.linspace(-1, 1, round(seen.shape[-1] ** 0.5))
        where = seen @ torch.cartesian_prod(axis, axis)
        observed = torch.cat([where.flatten(1), batch["observation.state"].flatten(1)], dim=1)
        return self.chunk(self.act(observed)).unflatten(1, (HORIZON, 2))


def known(batch: dict[str, Tensor]) -> Tensor:
    """Which steps count: not those behind the end of their episode, nor before the first picture has arrived."""
    return batch["action.valid"] & batch["observation.images.top.valid"]


def train(cache: Path, checkpoint: Path, end: int, steps: int) -> Policy:
    """Goes on from the checkpoint, if there is one, to step `end` of `steps`, and writes it."""
    torch.manual_seed(0)
    policy, step = Policy(), 0
    optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    parts: dict[str, Any] = {"policy": policy, "optimizer": optimizer, "schedule": schedule}
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        step = saved["step"]
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        loader = rc.Loader.from_spec(cache, saved["spec"], device="cpu")
        loader.load_state_dict(saved["loader"])
        print(f"step {step}: goes on from {checkpoint.name}")
    else:
        loader = rc.Loader(cache, batch_size=BATCH, rate=RATE, keys=KEYS, split="train", device="cpu", seed=0)
        print(loader)
    while step < end:
        for batch in loader:  # one pass over all windows
            loss = (policy(batch) - batch["action"])[known(batch)].square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            step += 1
            if step == end:
                break
    print(f"step {step}: loss {loss.item():.4f}")
    states = {name: part.state_dict() for name, part in parts.items()}
    torch.save(states | {"step": step, "spec": loader.spec(), "loader": loader.state_dict()}, checkpoint)
    return policy


@torch.no_grad()
def evaluate(policy: Policy, cache: Path, spec: dict[str, object]) -> tuple[float, float]:
    """The error of the commands in degrees, root mean square, on episodes that nobody trained on: of the policy, and of
    an arm that holds still."""
    loader = rc.Loader.from_spec(cache, spec, split="val", shuffle=False, last="short", device="cpu").eval()
    errors = []
    for batch in loader:
        commands = loader.invert("action", batch["action"], batch)  # in radians, as the stream has them
        learned = loader.invert("action", policy(batch), batch)
        still = loader.invert("observation.state", batch["observation.state"])[:, -1:]
        counts = known(batch) & batch["row_valid"][:, None]
        errors.append(torch.stack([learned - commands, still - commands])[:, counts])
    squares = torch.cat(errors, dim=1).square().mean(dim=(1, 2))
    learned_error, still_error = squares.sqrt().rad2deg().tolist()
    return learned_error, still_error


def main() -> int:
    parser = argparse.ArgumentParser(description="Trains a small policy on the CPU.")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--goal", type=float, default=GOAL, help="degrees; fail above it")
    options = parser.parse_args()
    torch.set_num_threads(1)  # so small a network gains nothing from more
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        cache, checkpoint = Path(folder, "cache"), Path(folder, "checkpoint.pt")
        record(cache, options.episodes)
        print(f"recorded {options.episodes} episodes: {time.perf_counter() - begin:.1f} s")
        train(cache, checkpoint, options.steps // 2, options.steps)
        policy = train(cache, checkpoint, options.steps, options.steps)
        learned, still = evaluate(policy, cache, torch.load(checkpoint)["spec"])
    print(f"error of {HORIZON} commands: {learned:.2f} degrees; an arm that holds still: {still:.2f} degrees")
    print(f"{time.perf_counter() - begin:.1f} s in all")
    return 0 if learned <= options.goal else 1


if __name__ == "__main__":
    sys.exit(main())
