"""attention in torch: gradients, torch.compile, and every device that has no kernels of ours.

The compiled engine handles plain tensors. robocache._attention calls this module for the others. A call takes the first
of these paths that fits:
1. traced (Dynamo, export, fake or meta tensors): `torch.ops.robocache.attention`, with a gradient, or
   `attention_append`, which writes the cache. At run time they take path 2 or 4.
2. backend="torch", a device that is neither cpu nor cuda, CUDA without usable kernels: the portable backend, whose
   gradients are torch's own.
3. gradients: an autograd.Function around the engine's forward and backward.
4. the engine.
Gradients reach q, k and v, from out and lse. There are no second derivatives.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robocache import _core
from robocache._attention.attention import Mask
from robocache._torch import attention_backend
from robocache._torch.align_ops import is_plain, is_wrapped, refuse_tangents
from robocache._torch.align_run import uses_portable
from robocache._torch.operators import register, register_gradient

engine: Any = _core
OPTIONAL = ("query_rank", "key_rank", "key_valid", "dense", "q_offsets", "k_offsets", "lengths")
MASK = OPTIONAL[:4]  # its fields
PORTABLE = "torch: plain operations, with every score in memory"


class Call(NamedTuple):
    """The constant part of a call. Its tensors are q, k and v of each segment, and those of OPTIONAL that are given."""

    segments: int
    present: int  # a bit for each of OPTIONAL
    causal: bool
    left: int  # -1: no limit
    right: int
    scale: float | None  # None: the default
    layout: str
    check: bool
    backend: str | None

    @property
    def operation(self) -> str:
        return "attention"


SCHEMA = (
    "Tensor[] tensors, int segments, int present, bool causal, SymInt left, SymInt right, float? scale, str layout, "
    "bool check, str? backend"
)


def run(
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    arrays: Mapping[str, Any],
    append: Any,
    options: tuple[Any, ...],
    return_lse: bool,
    out: Any,
) -> Any:
    if append is not None:
        tensors, call = pack(q, [], mask, arrays, options)
        made = run_append(pairs_of(k, v), append, tensors, call)
    else:
        tensors, call = pack(q, pairs_of(k, v), mask, arrays, options)
        wants_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        if out is not None and wants_gradient:
            raise ValueError(
                "attention: a result in out has no gradient, and an input requires grad; do not pass out, "
                "or call under torch.no_grad()"
            )
        plain = not torch.compiler.is_compiling() and all(is_plain(tensor) for tensor in tensors)
        if not plain and is_traced(tensors):
            made = torch.ops.robocache.attention(tensors, *call)
        elif uses_portable(call, q.device):  # type: ignore[arg-type]
            made = run_now(tensors, call)
        else:
            refuse_tangents("attention", tensors)
            differentiable = Attention if plain else TransformedAttention
            made = differentiable.apply(call, *tensors) if wants_gradient else run_now(tensors, call)
    result, lse = made
    if out is not None:
        if out.shape != result.shape or out.dtype != result.dtype:
            raise ValueError(
                f"attention: out is {out.dtype} {list(out.shape)}; expected {result.dtype} {list(result.shape)}"
            )
        result = out.copy_(result)
    return (result, lse) if return_lse else result


def describe(
    q: Any, k: Any, v: Any, mask: Any, arrays: Mapping[str, Any], append: Any, options: tuple[Any, ...]
) -> str:
    tensors, call = pack(q, pairs_of(k, v), mask, arrays, options)
    if uses_portable(call, q.device):  # type: ignore[arg-type]
        return PORTABLE
    new = None if append is None else tuple(part.detach() for part in append)
    said = engine.describe_attention(*arguments(tensors, call, new))
    return PORTABLE if said is NotImplemented else said


def is_traced(tensors: Sequence[Tensor]) -> bool:
    return torch.compiler.is_compiling() or not all(is_plain(tensor) or is_wrapped(tensor) for tensor in tensors)


def run_append(cache: list[Tensor], append: Any, tensors: list[Tensor], call: Call) -> Sequence[Tensor]:
    every = [*tensors, *cache, *append]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in every):
        raise ValueError("attention: append writes in place and has no gradients; call under torch.no_grad()")
    function: Any = torch.ops.robocache.attention_append if is_traced(every) else attention_append
    return function(*cache, *append, tensors, *call)


# ---- a call as an operator's arguments


def pairs_of(k: Any, v: Any) -> list[Any]:
    """Keys and values of all segments as one list: k, v, k, v, ..."""
    keys, values = (part if isinstance(part, (list, tuple)) else [part] for part in (k, v))
    return [tensor for pair in zip(keys, values, strict=True) for tensor in pair]


def pack(
    q: Any, pairs: Sequence[Any], mask: Any, arrays: Mapping[str, Any], options: tuple[Any, ...]
) -> tuple[list[Tensor], Call]:
    if mask is not None and not isinstance(mask, Mask):
        mask = Mask(dense=mask)
    tensors: list[Tensor] = [q, *pairs]
    present = 0
    for bit, name in enumerate(OPTIONAL):
        array = arrays[name] if name in arrays else None if mask is None else getattr(mask, name)
        if array is not None:
            present |= 1 << bit
            tensors.append(array)
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"attention: an array is a {type(tensor).__name__}; torch tensors and other arrays do not mix"
            )
        if tensor.device != q.device:
            raise ValueError(
                f"attention: a tensor is on {tensor.device} and q on {q.device}; all must be on one device"
            )
    causal, scale, window, layout, check, backend = options
    left, right = window if isinstance(window, (list, tuple)) else (window, window)
    return tensors, Call(
        len(pairs) // 2,
        present,
        bool(causal),
        -1 if left is None else left,
        -1 if right is None else right,
        None if scale is None else float(scale),
        layout,
        bool(check),
        backend,
    )


class Unpacked(NamedTuple):
    q: Tensor
    keys: list[Tensor]
    values: list[Tensor]
    optional: dict[str, Tensor]


def unpack(tensors: Sequence[Tensor], call: Call) -> Unpacked:
    first = 1 + 2 * call.segments
    names = [name for bit, name in enumerate(OPTIONAL) if call.present >> bit & 1]
    optional = dict(zip(names, tensors[first:], strict=True))
    return Unpacked(tensors[0], list(tensors[1:first:2]), list(tensors[2:first:2]), optional)


# ---- running a call


def run_now(tensors: Sequence[Tensor], call: Call) -> Sequence[Tensor]:
    """out and lse."""
    if not uses_portable(call, tensors[0].device):  # type: ignore[arg-type]
        made = engine.attention(*arguments(tensors, call), True, None)
        if made is not NotImplemented:
            return made
    return run_portable(tensors, call)


def arguments(tensors: Sequence[Tensor], call: Call, append: Any = None) -> Any:
    """The engine's first arguments. It accepts tensors that require grad only while no gradient is recorded."""
    if torch.is_grad_enabled():
        tensors = [tensor.detach() for tensor in tensors]
    q, keys, values, optional = unpack(tensors, call)
    mask = Mask(*(optional.get(name) for name in MASK))
    rest = (optional.get("q_offsets"), optional.get("k_offsets"), optional.get("lengths"))
    pair = (keys[0], values[0]) if len(keys) == 1 else (keys, values)
    numbers = (call.causal, call.scale, (call.left, call.right))
    return q, *pair, *numbers, mask, *rest, append, call.layout, call.check, call.backend


def run_portable(tensors: Sequence[Tensor], call: Call) -> tuple[Tensor, Tensor]:
    check_arguments(tensors, call)
    return in_layout(call, tensors[0], *attention_backend.attend(plan_of(tensors, call)))


def plan_of(tensors: Sequence[Tensor], call: Call) -> attention_backend.Plan:
    q, keys, values, optional = unpack(tensors, call)
    return attention_backend.Plan(
        heads_first(call, q),
        torch.cat([heads_first(call, part) for part in keys], 2),
        torch.cat([heads_first(call, part) for part in values], 2),
        call.scale or 1 / math.sqrt(q.shape[-1]),
        call.causal,
        call.left,
        call.right,
        **optional,
    )


def heads_first(call: Call, tensor: Tensor) -> Tensor:
    """As [B, H, Q, D]; packed sequences become one batch."""
    if tensor.ndim == 3:
        return tensor.transpose(0, 1)[None]
    return tensor.transpose(1, 2) if call.layout == "bqhd" else tensor


def in_layout(call: Call, q: Tensor, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """The reverse, and contiguous."""
    if q.ndim == 3:
        return out[0].transpose(0, 1).contiguous(), lse[0]
    return (out.transpose(1, 2) if call.layout == "bqhd" else out).contiguous(), lse


def check_arguments(tensors: Sequence[Tensor], call: Call, append: Sequence[Tensor] | None = None) -> None:
    """Lets the engine check the call for the portable backend, so that error sentences are written in one place."""
    if "attention" in os.environ.get("ROBOCACHE_DEBUG", ""):
        print(f"robocache: {PORTABLE}", file=sys.stderr)
    # The data is checked only on the CPU; elsewhere the check would wait for the device.
    here = call.check and tensors[0].device.type == "cpu"
    first = 1 + 2 * call.segments
    stand_ins = [stand_in(tensor, append is not None and 0 < n < first) for n, tensor in enumerate(tensors)]
    for n, name in enumerate(unpack(tensors, call).optional, first):
        if here and name in ("q_offsets", "k_offsets", "lengths"):
            stand_ins[n] = tensors[n]
    new = None if append is None else tuple(stand_in(part) for part in append)
    engine.describe_attention(*arguments(stand_ins, call._replace(check=here, backend=None), new))


def stand_in(tensor: Tensor, will_be_written: bool = False) -> Tensor:
    """A stand-in of the same shape: zeros that share one row, or memory that nobody reads."""
    if tensor.ndim == 0 or will_be_written:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    return torch.zeros(tensor.shape[-1], dtype=tensor.dtype).expand(tensor.shape)


# ---- gradients


class Attention(torch.autograd.Function):
    """The tensors are separate arguments, because autograd does not look into lists."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        output = tuple(run_now(tensors, call))  # autograd records nothing in here
        keep(ctx, (call, *tensors), output)
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_out: Tensor | None, d_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        *tensors, out, lse = ctx.saved_tensors
        needed = ctx.needs_input_grad[1:]
        return None, *input_gradients(tensors, ctx.call, needed, (out, lse, d_out, d_lse))


def run_detached(call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(run_now([tensor.detach() for tensor in tensors], call))


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.call = inputs[0]
    ctx.save_for_backward(*inputs[1:], *output)
    ctx.set_materialize_grads(False)


class TransformedAttention(torch.autograd.Function):
    """The same in the form that torch.func needs."""

    forward = staticmethod(run_detached)
    setup_context = staticmethod(keep)
    backward = Attention.backward  # type: ignore[assignment]


Made = tuple[Tensor, Tensor, Tensor | None, Tensor | None]  # out, lse, and their gradients


def input_gradients(tensors: Sequence[Tensor], call: Call, needed: Sequence[bool], made: Made) -> list[Tensor | None]:
    """A gradient for each tensor: None except for q, k and v that need one."""
    found: list[Tensor | None] = [None] * len(tensors)
    places = [n for n in range(1 + 2 * call.segments) if needed[n]]
    if not places or (made[2] is None and made[3] is None):
        return found
    wanted = sum(1 << n for n in places)
    # Outputs of the forward pass are plain if its inputs are.
    if torch.compiler.is_compiling() or not all(is_plain(part) for part in made if part is not None):
        parts = torch.ops.robocache.attention_backward(tensors, *call, *made, wanted)
    else:
        parts = run_backward(tensors, call, made, wanted)
    for n, part in zip(places, parts, strict=True):
        found[n] = part
    return found


# ---- operators


def attention(tensors: Sequence[Tensor], *call: Any) -> list[Tensor]:
    return list(run_now(tensors, Call(*call)))


def attention_fake(tensors: Sequence[Tensor], *arguments: Any) -> list[Tensor]:
    q, call = tensors[0], Call(*arguments)
    # The engine checks a call when it runs; this refuses it while torch traces. The check is in the operator because
    # Dynamo of torch 2.6 and 2.8 hides the text of errors that Python code outside of operators raises.
    if call.layout not in ("bhqd", "bqhd"):
        raise ValueError(f"attention: layout is {call.layout!r}; expected bhqd or bqhd")
    if call.scale == 0:
        raise ValueError("attention: scale is 0; None is 1 / sqrt(D)")
    if q.ndim == 3:
        shape = [q.shape[1], q.shape[0]]
    else:
        heads, queries = (2, 1) if call.layout == "bqhd" else (1, 2)
        shape = [q.shape[0], q.shape[heads], q.shape[queries]]
    return [q.new_empty(q.shape), q.new_empty(shape, dtype=torch.float32)]


def attention_append(
    keys: Tensor, values: Tensor, new_keys: Tensor, new_values: Tensor, tensors: Sequence[Tensor], *options: Any
) -> tuple[Tensor, Tensor]:
    """`tensors` and the call do not contain the cache: it is written, so it must be a separate argument."""
    call = Call(*options)._replace(segments=1)
    tensors = [tensors[0], keys, values, *tensors[1:]]
    if not uses_portable(call, keys.device):  # type: ignore[arg-type]
        pair = (new_keys.detach(), new_values.detach())
        made = engine.attention(*arguments(tensors, call, pair), True, None)
        if made is not NotImplemented:
            return made
    check_arguments(tensors, call, (new_keys, new_values))
    optional = unpack(tensors, call).optional
    lengths = optional["lengths"]
    for cache, new in ((keys, new_keys), (values, new_values)):
        attention_backend.write(heads_first(call, cache), heads_first(call, new), lengths)
    plan = plan_of(tensors, call)
    plan.lengths = lengths + new_keys.shape[1 if call.layout == "bqhd" else 2]
    return in_layout(call, tensors[0], *attention_backend.attend(plan))


def attention_append_fake(
    keys: Tensor, values: Tensor, new_keys: Tensor, new_values: Tensor, tensors: Sequence[Tensor], *options: Any
) -> tuple[Tensor, ...]:
    return tuple(attention_fake(tensors, *options))


def attention_backward(tensors: Sequence[Tensor], *arguments_: Any) -> list[Tensor]:
    *options, out, lse, d_out, d_lse, wanted = arguments_
    return run_backward(tensors, Call(*options), (out, lse, d_out, d_lse), wanted)


def run_backward(tensors: Sequence[Tensor], call: Call, made: Made, wanted: int) -> list[Tensor]:
    """The gradients of the tensors whose bit is set in `wanted`."""
    out, lse, d_out, d_lse = made
    if not uses_portable(call, out.device):  # type: ignore[arg-type]
        d_out = torch.zeros_like(out) if d_out is None else with_dense_rows(d_out)
        d_lse = None if d_lse is None else d_lse.contiguous()
        gradients = engine.attention_backward(*arguments(tensors, call), out, lse, d_out, d_lse, wanted)
        if gradients is not NotImplemented:
            return [part for part in gradients if part is not None]
    with torch.enable_grad():
        leaves = [tensor.detach().requires_grad_(bool(wanted >> n & 1)) for n, tensor in enumerate(tensors)]
        plan = plan_of(leaves, call)
        if d_out is not None:
            d_out = heads_first(call, d_out)
        if d_lse is not None and d_lse.ndim == 2:
            d_lse = d_lse[None]
        chosen = [leaf for n, leaf in enumerate(leaves) if wanted >> n & 1]
        return [part.contiguous() for part in attention_backend.gradients(plan, chosen, (d_out, d_lse))]


def with_dense_rows(tensor: Tensor) -> Tensor:
    """Contiguous in its last dimension, without a lazy negation. The gradient of sum() is expanded from one element."""
    if tensor.requires_grad or tensor.is_neg():
        tensor = tensor.detach().resolve_neg()
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def attention_backward_fake(tensors: Sequence[Tensor], *arguments_: Any) -> list[Tensor]:
    wanted = arguments_[-1]
    return [tensor.new_empty(tensor.shape) for n, tensor in enumerate(tensors) if wanted >> n & 1]


def keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Sequence[Tensor]) -> None:
    tensors, *call = inputs
    ctx.call = Call(*call)
    ctx.needed = [tensor.requires_grad for tensor in tensors]
    ctx.save_for_backward(*tensors, *output)


def differentiate(ctx: Any, gradients: Sequence[Tensor | None]) -> tuple[Any, ...]:
    *tensors, out, lse = ctx.saved_tensors
    found = input_gradients(tensors, ctx.call, ctx.needed, (out, lse, *gradients))
    return found, *[None] * len(Call._fields)


register(f"attention({SCHEMA}) -> Tensor[]", attention, attention_fake)
register(
    f"attention_append(Tensor(a!) keys, Tensor(b!) values, Tensor new_keys, Tensor new_values, {SCHEMA}) -> (Tensor, "
    "Tensor)",
    attention_append,
    attention_append_fake,
)
register(
    f"attention_backward({SCHEMA}, Tensor out, Tensor lse, Tensor? d_out, Tensor? d_lse, int wanted) -> Tensor[]",
    attention_backward,
    attention_backward_fake,
)
register_gradient("attention", differentiate, keep_for_backward)
