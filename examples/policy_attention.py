"""One action of a small vision-language-action policy, by SDPA and by ours: python examples/policy_attention.py

The prefix (patches of three cameras, one of which is missing, and words with padding) runs once; its keys and values
are kept. The suffix (the state and 50 noisy actions) then runs ten times, each time over prefix and suffix. SDPA needs
a dense mask and the keys in one piece; ours takes the two pieces, and a mask of one number for each token.
"""

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import robocache as rc

PATCHES, CAMERAS, WORDS, ACTIONS, STEPS, LAYERS = 64, 3, 48, 50, 10, 2
WIDTH, HEADS, HEAD_DIM = 256, 8, 64  # eight query heads read one head of keys and values

device = "cuda" if torch.cuda.is_available() else "cpu"
dtype = torch.bfloat16 if device == "cuda" else torch.float32
torch.manual_seed(0)

# As openpi and LeRobot's pi0 carry the mask: which tokens are real, and which begin a block that those before it do not
# see. Patches and words see each other; the state sees them; the actions see all.
real = torch.ones(1, PATCHES * CAMERAS + WORDS + 1 + ACTIONS, dtype=torch.bool, device=device)
real[:, PATCHES : 2 * PATCHES] = False
real[:, PATCHES * CAMERAS + 20 : PATCHES * CAMERAS + WORDS] = False
begins = torch.zeros_like(real)
begins[:, -ACTIONS - 1] = begins[:, -ACTIONS] = True
PREFIX, SUFFIX = PATCHES * CAMERAS + WORDS, 1 + ACTIONS


class Block(nn.Module):
    """Attention and what follows it. `attend` takes q, and the pieces of k and v; heads come after places."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.project = nn.Linear(WIDTH, (HEADS + 2) * HEAD_DIM, bias=False)
        self.join = nn.Linear(HEADS * HEAD_DIM, WIDTH, bias=False)
        self.think = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor, kept: tuple[Tensor, ...], attend: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        q, k, v = self.project(self.before(x)).unflatten(-1, (-1, HEAD_DIM)).split([HEADS, 1, 1], dim=2)
        keys, values = ([kept[0], k], [kept[1], v]) if kept else ([k], [v])
        x = x + self.join(attend(q, keys, values).flatten(2))
        return x + self.think(self.between(x)), k, v


def through_sdpa(mask: Tensor) -> Callable[..., Tensor]:
    def attend(q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        q, k, v = (part.transpose(1, 2) for part in (q, torch.cat(keys, 1), torch.cat(values, 1)))
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True).transpose(1, 2)

    return attend


def through_ours(mask: rc.Mask) -> Callable[..., Tensor]:
    return lambda q, keys, values: rc.attention(q, keys, values, layout="bqhd", mask=mask)


def act(prefix: Tensor, noise: Tensor, attend_prefix: Callable[..., Tensor], attend: Callable[..., Tensor]) -> Tensor:
    kept = []
    for block in blocks:
        prefix, k, v = block(prefix, (), attend_prefix)
        kept.append((k, v))
    for _ in range(STEPS):
        x = noise
        for block, pieces in zip(blocks, kept, strict=True):
            x = block(x, pieces, attend)[0]
        noise = noise - x / STEPS
    return noise[:, 1:]


def milliseconds(*calls: Callable[[], Tensor]) -> list[float]:
    """In turn, so that what else the machine does counts for all of them."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(20):
        for call, own in zip(calls, times, strict=True):
            wait()
            begin = time.perf_counter()
            call()
            wait()
            own.append(1e3 * (time.perf_counter() - begin))
    return [sorted(own)[len(own) // 2] for own in times]


blocks = nn.ModuleList([Block() for _ in range(LAYERS)]).to(device, dtype).eval()
prefix, noise = (torch.randn(1, n, WIDTH, device=device, dtype=dtype) for n in (PREFIX, SUFFIX))

# What openpi's make_att_2d_masks spells out, and the same as ranks.
block = begins.cumsum(1)
dense = (block[:, None, :] <= block[:, :, None]) & real[:, None, :] & real[:, :, None]
sdpa = through_sdpa(dense[:, None, :PREFIX, :PREFIX]), through_sdpa(dense[:, None, PREFIX:])
ours = (
    through_ours(rc.Mask.from_openpi(real[:, :PREFIX], begins[:, :PREFIX])),
    through_ours(rc.Mask.from_openpi(real, begins).last_queries(SUFFIX)),
)

with torch.inference_mode():
    expected, actions = act(prefix, noise, *sdpa), act(prefix, noise, *ours)
    error = (actions - expected).abs().max().item() / expected.abs().max().item()
    print(f"{tuple(actions.shape)} {actions.dtype} on {device}: the two differ by {error:.1e} of the largest action")
    times = milliseconds(lambda: act(prefix, noise, *sdpa), lambda: act(prefix, noise, *ours))
    print("SDPA {:.2f} ms an action\nours {:.2f} ms an action".format(*times))
