"""The attention rows. A case has the methods that the cases of bench.cases have.

bfloat16 on CUDA, float32 on a CPU. torch is SDPA with the kernel that it chooses by itself, torch.compile is
FlexAttention. On CUDA each kernel of SDPA is also forced; one that refuses the call is skipped.

SDPA gets its mask as numbers to add, made before the timing: it would convert a boolean mask in every call, and pad
one whose rows do not begin at multiples of 8 elements."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from bench.goals import COMPILED, EAGER, TUNED, Absent, Row
from bench.timing import Call

EFFICIENT = "SDPA efficient"
FORCED = {
    "SDPA math": SDPBackend.MATH,
    "SDPA flash": SDPBackend.FLASH_ATTENTION,
    EFFICIENT: SDPBackend.EFFICIENT_ATTENTION,
    "SDPA cuDNN": SDPBackend.CUDNN_ATTENTION,
}
NAMES = tuple(FORCED)
PREFIX, KEYS, CAUSAL = "prefix-LM + holes", "keys", "causal"
SUFFIX, HOLE, PADDING = 51, range(601, 700), 37  # block-causal tokens; keys inside and at the end that are not valid


@dataclasses.dataclass
class Inputs:
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None  # bool [B, 1, Q, K]
    bias: Tensor | None = None  # the mask for SDPA: 0 or -inf
    ranks: tuple[Tensor, Tensor] | None = None
    valid: Tensor | None = None
    upstream: Tensor | None = None  # d loss / d out


@dataclasses.dataclass(frozen=True, eq=False)
class AttentionCase(Row):
    name: str
    heads: tuple[int, int]  # of queries, of keys and values
    queries: int
    keys: int
    head_dim: int
    mask: str | None = None
    batch: int = 1
    gradient: bool = False
    devices: tuple[str, ...] = ("cuda", "cpu")

    op = "attention"
    roundings = 4  # it sums thousands of products in float32

    @property
    def peer(self) -> Callable[..., Any]:
        return flex_attention

    def peers(self, device: str) -> tuple[str, ...]:
        return (EAGER, COMPILED, TUNED, *FORCED) if device == "cuda" else (EAGER,)

    def settings(self, who: str) -> AbstractContextManager[Any]:
        return forced(who)

    # ---- data

    def make(self, device: str, seed: int = 0) -> Inputs:
        generator = torch.Generator(device).manual_seed(seed)
        dtype = torch.bfloat16 if device == "cuda" else torch.float32

        def normal(heads: int, places: int) -> Tensor:
            shape = (self.batch, heads, places, self.head_dim)
            return torch.randn(shape, device=device, generator=generator).to(dtype)

        query_heads, kv_heads = self.heads
        q, k, v = normal(query_heads, self.queries), normal(kv_heads, self.keys), normal(kv_heads, self.keys)
        inputs = Inputs(q, k, v, None)
        key = torch.arange(self.keys, device=device)
        if self.mask == PREFIX:
            rank = (key - (self.keys - SUFFIX) + 1).clamp(min=0).to(torch.int32)
            inputs.ranks = rank[self.keys - self.queries :].contiguous(), rank
            inputs.valid = (key < HOLE.start) | (key >= HOLE.stop)
            inputs.mask = (rank <= inputs.ranks[0][:, None]) & inputs.valid
        elif self.mask == KEYS:
            inputs.valid = key < self.keys - PADDING
            inputs.mask = inputs.valid.expand(self.queries, self.keys)
        if inputs.mask is not None:
            inputs.mask = inputs.mask[None, None].expand(self.batch, 1, self.queries, self.keys)
            inputs.bias = additive(inputs.mask, dtype)
        if self.gradient:
            inputs.upstream = normal(query_heads, self.queries)
            for part in (q, k, v):
                part.requires_grad_()
        return inputs

    # ---- calls

    def ours(self, rc: ModuleType, inputs: Inputs) -> Call:
        ranks = inputs.ranks or (None, None)
        mask = None if inputs.mask is None else rc.Mask(*ranks, inputs.valid)
        causal = self.mask == CAUSAL
        q, k, v = inputs.q, inputs.k, inputs.v
        return self.with_gradient(inputs, lambda: rc.attention(q, k, v, causal=causal, mask=mask))

    def with_gradient(self, inputs: Inputs, call: Call) -> Call:
        if not self.gradient:
            return call
        leaves = (inputs.q, inputs.k, inputs.v)
        return lambda: torch.autograd.grad(call(), leaves, inputs.upstream)

    def results(self, returned: Any) -> list[Tensor]:
        return [returned] if isinstance(returned, Tensor) else list(returned)

    def peer_call(self, inputs: Inputs, function: Callable[..., Any] | None = None) -> Call:
        return self.with_gradient(inputs, self.sdpa(inputs) if function is None else self.flex(inputs, function))

    def sdpa(self, inputs: Inputs, repeat: bool = False) -> Call:
        """`repeat`: give each query head a key head of its own, for a kernel that has no grouped heads."""
        q, bias, causal = inputs.q, inputs.bias, self.mask == CAUSAL
        group = self.heads[0] // self.heads[1]

        def call() -> Tensor:
            k, v = inputs.k, inputs.v
            if repeat and group > 1:  # a view where there is one key head
                k, v = (part[:, :, None].expand(-1, -1, group, -1, -1).flatten(1, 2) for part in (k, v))
            grouped = k.shape[1] != q.shape[1]
            return scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=causal, enable_gqa=grouped)

        return call

    def flex(self, inputs: Inputs, function: Callable[..., Any]) -> Call:
        q, k, v = inputs.q, inputs.k, inputs.v
        blocks = None if self.mask is None else block_mask(self, q.device)
        grouped = self.heads[0] != self.heads[1]
        return lambda: function(q, k, v, block_mask=blocks, enable_gqa=grouped)

    def flex_mask(self, inputs: Inputs) -> Callable[..., Tensor]:
        first = self.keys - self.queries
        ranks, valid = inputs.ranks, inputs.valid
        if ranks is not None and valid is not None:
            return lambda b, h, i, j: (ranks[1][j] <= ranks[0][i]) & valid[j]
        if valid is not None:
            return lambda b, h, i, j: valid[j]
        return lambda b, h, i, j: j <= i + first

    def other_call(self, who: str, inputs: Inputs) -> Call:
        """To be called inside `settings(who)`, so that choosing the kernel is no part of what is timed."""
        call = self.with_gradient(inputs, self.sdpa(inputs, repeat=who == EFFICIENT))
        try:
            with forced(who):
                call()
        except RuntimeError as error:
            raise Absent(f"it refuses the call: {str(error).splitlines()[0]}") from error
        return call

    def truth(self, inputs: Inputs) -> list[Tensor]:
        """In float64, one sequence at a time, because the scores of a whole batch would fill a GPU."""
        made: list[list[Tensor]] = []
        for b in range(self.batch):
            q, k, v = (
                part[b].detach().double().requires_grad_(self.gradient) for part in (inputs.q, inputs.k, inputs.v)
            )
            group = self.heads[0] // self.heads[1]
            scores = q @ k.repeat_interleave(group, 0).mT * self.head_dim**-0.5
            if self.mask == CAUSAL:
                scores = scores.masked_fill(torch.ones_like(scores[0], dtype=torch.bool).triu(1), -torch.inf)
            if inputs.mask is not None:
                scores = scores.masked_fill(~inputs.mask[b], -torch.inf)
            out = scores.softmax(-1) @ v.repeat_interleave(group, 0)
            if inputs.upstream is None:
                made.append([out])
            else:
                made.append(list(torch.autograd.grad(out, (q, k, v), inputs.upstream[b].double())))
        return [torch.stack(parts) for parts in zip(*made, strict=True)]

    def floor_bytes(self, inputs: Inputs) -> int:
        """Queries, keys and values read once, the result written once; backward that again, and the gradients."""
        once = 2 * inputs.q.nbytes + inputs.k.nbytes + inputs.v.nbytes
        return 3 * once if self.gradient else once


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where the mask is true, else -inf. Rows begin at multiples of 8 elements."""
    keys = mask.shape[-1]
    bias = torch.zeros(*mask.shape[:-1], -(-keys // 8) * 8, dtype=dtype, device=mask.device)[..., :keys]
    return bias.masked_fill_(~mask, -torch.inf)


def forced(who: str) -> AbstractContextManager[Any]:
    return sdpa_kernel(FORCED[who]) if who in FORCED else nullcontext()


@functools.cache
def block_mask(case: AttentionCase, device: torch.device) -> BlockMask:
    """One for all inputs of a case, which have the same mask. FlexAttention compiles anew for each other object."""
    mask = case.flex_mask(case.make(device.type))
    return create_block_mask(mask, None, None, case.queries, case.keys, device=device)


# ---- the attention of one action of pi0

LAYERS, STEPS = 18, 10
PREFIX_TOKENS = 816


@dataclasses.dataclass
class Layer:
    prefix: Inputs
    suffix: Inputs  # keys and values: of the prefix, then of the suffix


@dataclasses.dataclass(frozen=True, eq=False)
class ActionCase(Row):
    """The prefix once, then the suffix in every step of the denoising: 198 calls. The keys of a suffix lie behind those
    of the prefix, as SDPA needs them, so that SDPA copies nothing. Ours reads the two from separate arrays.

    Not in max-autotune mode: its CUDA graphs overwrite the results of earlier calls, and here all results are kept."""

    name: str
    op = "attention"
    devices: tuple[str, ...] = ("cuda",)

    @property
    def peer(self) -> Callable[..., Any]:
        return flex_attention

    def peers(self, device: str) -> tuple[str, ...]:
        return (EAGER, COMPILED, "SDPA cuDNN")

    def settings(self, who: str) -> AbstractContextManager[Any]:
        return forced(who)

    def make(self, device: str, seed: int = 0) -> list[Layer]:
        layers = []
        for layer in range(LAYERS):
            prefix = PI0_PREFIX.make(device, seed * LAYERS + layer)
            suffix = PI0_SUFFIX.make(device, seed * LAYERS + layer)
            suffix.k[:, :, :PREFIX_TOKENS], suffix.v[:, :, :PREFIX_TOKENS] = prefix.k, prefix.v
            layers.append(Layer(prefix, suffix))
        return layers

    def every(self, layers: list[Layer], prefix: Callable[[Inputs], Call], suffix: Callable[[Inputs], Call]) -> Call:
        prefixes = [prefix(layer.prefix) for layer in layers]
        suffixes = [suffix(layer.suffix) for layer in layers]

        def call() -> list[Tensor]:
            made = [run() for run in prefixes]
            for _ in range(STEPS):
                last = [run() for run in suffixes]
            return [*made, *last]

        return call

    def ours(self, rc: ModuleType, inputs: list[Layer]) -> Call:
        def suffix(part: Inputs) -> Call:
            assert part.ranks is not None
            keys, values = (
                [whole[:, :, :PREFIX_TOKENS], whole[:, :, PREFIX_TOKENS:].contiguous()] for whole in (part.k, part.v)
            )
            mask = rc.Mask(*part.ranks, part.valid)
            return lambda: rc.attention(part.q, keys, values, mask=mask)

        return self.every(inputs, lambda part: PI0_PREFIX.ours(rc, part), suffix)

    def peer_call(self, inputs: list[Layer], function: Callable[..., Any] | None = None) -> Call:
        return self.every(
            inputs, lambda part: PI0_PREFIX.peer_call(part, function), lambda part: PI0_SUFFIX.peer_call(part, function)
        )

    def other_call(self, who: str, inputs: list[Layer]) -> Call:
        return self.every(
            inputs, lambda part: PI0_PREFIX.other_call(who, part), lambda part: PI0_SUFFIX.other_call(who, part)
        )

    def results(self, returned: Any) -> list[Tensor]:
        return list(returned)

    def truth(self, inputs: list[Layer]) -> list[Tensor]:
        made = [PI0_PREFIX.truth(layer.prefix) for layer in inputs]
        made += [PI0_SUFFIX.truth(layer.suffix) for layer in inputs]
        return [part for parts in made for part in parts]

    def floor_bytes(self, inputs: list[Layer]) -> int:
        return sum(
            PI0_PREFIX.floor_bytes(layer.prefix) + STEPS * PI0_SUFFIX.floor_bytes(layer.suffix) for layer in inputs
        )


GPU = ("cuda",)
PI0_SUFFIX = AttentionCase(
    "pi0 suffix: q 51 x kv 867, 8 query heads / 1 kv head, head dim 256", (8, 1), 51, 867, 256, PREFIX
)
PI0_PREFIX = AttentionCase("pi0 prefix: 816 x 816, 8/1 heads, 256", (8, 1), 816, PREFIX_TOKENS, 256, PREFIX)
ACT_ENCODER = AttentionCase("ACT encoder: 1202 x 1202, 8 x 64", (8, 8), 1202, 1202, 64)
DENSE = AttentionCase("dense 4k, 64 heads total, 128", (16, 16), 4096, 4096, 128, batch=4, devices=GPU)
TABLE = (
    PI0_SUFFIX,
    PI0_PREFIX,
    AttentionCase("ACT decoder cross: 100 x 1202, 8 x 64", (8, 8), 100, 1202, 64),
    ACT_ENCODER,
    AttentionCase("GR00T DiT self: 41 x 41, 32 x 48", (32, 32), 41, 41, 48),
    AttentionCase("GR00T DiT cross: 41 x 300, 32 x 48", (32, 32), 41, 300, 48, KEYS),
    AttentionCase("RDT image cross: 67 x 4374, 32 x 64", (32, 32), 67, 4374, 64),
    AttentionCase("RDT text cross: 67 x 1024, 32 x 64", (32, 32), 67, 1024, 64, KEYS),
    AttentionCase("SigLIP: 256 x 256, 16 x 72", (16, 16), 256, 256, 72),
    AttentionCase("Diffusion policy: 10 x 10, 4 x 64", (4, 4), 10, 10, 64, CAUSAL),
    AttentionCase("OpenVLA prefill: 290 x 290, 32 x 128", (32, 32), 290, 290, 128, CAUSAL),
    AttentionCase("SmolVLA cross: 50 x 241, 15/5 heads, 64", (15, 5), 50, 241, 64, KEYS),
    DENSE,
)


# Shapes that policies are trained with, forward and backward.
TRAINING = (
    AttentionCase("ACT encoder, batch 8: 602 x 602, 8 x 64", (8, 8), 602, 602, 64, batch=8),
    AttentionCase("ACT encoder, batch 8: 1202 x 1202, 8 x 64", (8, 8), 1202, 1202, 64, batch=8),
    AttentionCase("pi0 prefix, batch 4: 816 x 816, 8/1 heads, 256", (8, 1), 816, PREFIX_TOKENS, 256, PREFIX, batch=4),
    AttentionCase("SigLIP, batch 24: 256 x 256, 16 x 72", (16, 16), 256, 256, 72, batch=24),
    AttentionCase("GR00T DiT self, batch 32: 41 x 41, 32 x 48", (32, 32), 41, 41, 48, batch=32),
    AttentionCase("GR00T DiT cross, batch 32: 41 x 300, 32 x 48", (32, 32), 41, 300, 48, batch=32),
    AttentionCase("SmolVLA cross, batch 64: 50 x 241, 15/5 heads, 64", (15, 5), 50, 241, 64, batch=64),
    AttentionCase("Diffusion policy, batch 64: 10 x 10, 4 x 64", (4, 4), 10, 10, 64, CAUSAL, batch=64),
    AttentionCase("Diffusion policy, batch 256: 10 x 10, 4 x 64", (4, 4), 10, 10, 64, CAUSAL, batch=256),
    AttentionCase("ViT-B, batch 64: 197 x 197, 12 x 64", (12, 12), 197, 197, 64, batch=64),
    AttentionCase("dense 4k, batch 2: 4096 x 4096, 16 x 128", (16, 16), 4096, 4096, 128, batch=2),
    AttentionCase("dense 4k causal, batch 2: 4096 x 4096, 16 x 128", (16, 16), 4096, 4096, 128, CAUSAL, batch=2),
)


def changed(case: AttentionCase, remark: str, **changes: Any) -> AttentionCase:
    return dataclasses.replace(case, name=f"{case.name}, {remark}", devices=GPU, **changes)


ATTENTION_CASES = (
    *TABLE,
    *(changed(case, "no mask", mask=None) for case in TABLE if case.mask is not None),
    *(changed(case, "forward and backward", gradient=True) for case in (PI0_PREFIX, ACT_ENCODER, DENSE, *TRAINING)),
    ActionCase("one pi0 action: prefix once, suffix 10 times, 18 layers"),
)
