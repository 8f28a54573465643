"""Training windows out of packed episodes, with torch: python examples/train_windows.py

Eight episodes of different lengths lie one after the other in one tensor. A batch is 256 random moments; for each, what
the robot knew by then (as_of: nothing that had not arrived) and what it did from then on (all samples). Nothing is
padded and no window is copied: `rows` says which episode a window reads.
"""

import torch

import robocache as rc

BATCH, HISTORY, HORIZON, RATE = 256, 2, 16, 50.0
SECOND = 1_000_000_000

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def packed(rate: int, channels: int, seconds: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """values [N, channels], times [N], offsets [episodes + 1]: a stream of all episodes, each on its own clock."""
    lengths = torch.tensor([rate * length for length in seconds])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    times = torch.cat(
        [episode * 3600 * SECOND + torch.arange(n) * SECOND // rate for episode, n in enumerate(lengths.tolist())]
    )
    values = torch.sin((times.remainder(3600 * SECOND).double() * 1e-9)[:, None] * torch.arange(1, channels + 1))
    return values.float().to(device), times.to(device), offsets.to(device)


seconds = [20, 31, 8, 12, 45, 27, 16, 22]
positions, joint_times, joint_offsets = packed(500, 7, seconds)
features, camera_times, camera_offsets = packed(30, 64, seconds)

episode = torch.randint(len(seconds), (BATCH,), device=device)
length = torch.tensor(seconds, device=device)[episode] * SECOND
moment = episode * 3600 * SECOND + (torch.rand(BATCH, device=device, dtype=torch.float64) * length).long()

joints = rc.Stream(positions, joint_times, offsets=joint_offsets, rows=episode)
camera = rc.Stream(features, camera_times, offsets=camera_offsets, rows=episode, latency=0.03)

# history counts the steps before the moment, horizon the moment itself and those after it.
before = rc.Timeline.around(moment, history=HISTORY, horizon=1, rate=RATE)
after = rc.Timeline.around(moment, history=0, horizon=HORIZON, rate=RATE)
observed = rc.fuse({"joints": joints, "camera": camera}, before, as_of="anchor")
action = rc.align({"joints": joints}, after)["joints"]

whole = observed.valid.all(dim=(1, 2)) & action.valid.all(dim=1)
seen, done = observed.values, action.values
print(f"observed {tuple(seen.shape)}, to predict {tuple(done.shape)} on {seen.device}")
print(f"{int(whole.sum())} of {BATCH} windows are whole; the others reach over an end of their episode")

policy = torch.nn.Linear(seen[0].numel(), done[0].numel(), device=device)
loss = torch.nn.functional.mse_loss(policy(seen[whole].flatten(1)), done[whole].flatten(1))
loss.backward()
print(f"one step of a linear policy: loss {loss.item():.3f}")
