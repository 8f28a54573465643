"""align for torch: the autograd.Function of eager calls, and the operators of traced calls.

Importing this module registers the operators. Dynamo executes an import inside a traced function, so the first call may
be a compiled one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from robocache._torch import align_run
from robocache._torch.align_call import SCHEMA, Call, channel_count, output_shape, unpack, value_positions
from robocache._torch.operators import register, register_gradient

PLAIN = (Tensor, torch.nn.Parameter)
# Wrapped by torch.func, which unwraps tensors for an autograd.Function but not for an operator with a gradient.
is_wrapped = getattr(getattr(torch._C, "_functorch", None), "is_functorch_wrapped_tensor", lambda tensor: False)


def refuse_tangents(operation: str, tensors: Sequence[Tensor]) -> None:
    """Refuses tangents of forward-mode AD, which would be lost. Outside torch.func the engine refuses them itself."""
    if getattr(forward_ad, "_current_level", 0) < 0:  # outside a dual level there are no tangents
        return
    if any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors):
        raise ValueError(f"{operation}: it has gradients backward (torch.func.grad, vjp), and none forward (jvp)")


def is_plain(tensor: Tensor) -> bool:
    """Whether it is an ordinary tensor with memory of its own."""
    return type(tensor) in PLAIN and tensor.device.type != "meta" and not is_wrapped(tensor)


class Alignment(torch.autograd.Function):
    """The tensors are separate arguments, because autograd does not look into lists."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        output = run_detached(call, *tensors)
        keep(ctx, (call, *tensors), output)
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, *input_gradients(ctx.saved_tensors, ctx.call, ctx.needs_input_grad[1:], gradients)


def run_detached(call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(align_run.run([tensor.detach() for tensor in tensors], call))


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.call = inputs[0]
    ctx.save_for_backward(*inputs[1:])
    ctx.mark_non_differentiable(*[part for part in output if not part.is_floating_point()])
    ctx.set_materialize_grads(False)


class TransformedAlignment(torch.autograd.Function):
    """The same in the form that torch.func needs. Its calls cost 28 us more (torch 2.15, empty: 33 us instead of 4)."""

    forward = staticmethod(run_detached)
    setup_context = staticmethod(keep)
    backward = Alignment.backward  # type: ignore[assignment]


def input_gradients(
    tensors: Sequence[Tensor], call: Call, needed: Sequence[bool], gradients: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """A gradient for each tensor: None except for values that need one."""
    positions = value_positions(call)
    wanted: list[int] = []
    parts: list[Tensor] = []
    first = 0
    for k, position in enumerate(positions):
        values, times = tensors[position], tensors[position + 1]
        width = channel_count(values, times)
        part = gradients[4 * k if call.operation == "align" else 0]
        if part is not None and needed[position]:
            if call.operation == "fuse":
                part = part.narrow(-1, first, width)
                part = part.reshape([*part.shape[:-1], *values.shape[times.ndim :]])
            wanted.append(k)
            parts.append(part.resolve_neg())
        first = first + width
    found: list[Tensor | None] = [None] * len(tensors)
    if wanted:
        if torch.compiler.is_compiling() or not all(is_plain(tensor) for tensor in (*tensors, *parts)):
            made = torch.ops.robocache.align_backward(tensors, *call, wanted, parts)
        else:
            made = align_run.run_backward(tensors, call, wanted, parts)
        for k, gradient in zip(wanted, made, strict=True):
            found[positions[k]] = gradient
    return found


# ---- operators


def align(tensors: Sequence[Tensor], *call: Any) -> list[Tensor]:
    return align_run.run(tensors, Call(*call))


def align_fake(tensors: Sequence[Tensor], *arguments: Any) -> list[Tensor]:
    call = Call(*arguments)
    unpacked = unpack(tensors, call)
    like = tensors[0]
    lead = [unpacked.steps] if unpacked.rows is None else [unpacked.rows, unpacked.steps]
    if call.operation == "fuse":
        width = sum(channel_count(arrays["values"], arrays["times"]) for arrays in unpacked.streams)
        marks = [*lead, len(unpacked.streams)]
        return [
            like.new_empty([*lead, width], dtype=call.dtype),
            like.new_empty(marks, dtype=torch.bool),
            like.new_empty(marks, dtype=torch.int64),
        ]
    made = []
    for k, arrays in enumerate(unpacked.streams):
        made.append(arrays["values"].new_empty(output_shape(unpacked, k)))
        if call.operation == "align":
            made += [like.new_empty(lead, dtype=kind) for kind in (torch.bool, torch.int64, torch.int64)]
    return made


def align_backward(tensors: Sequence[Tensor], *arguments: Any) -> list[Tensor]:
    *call, wanted, gradients = arguments
    return align_run.run_backward(tensors, Call(*call), wanted, gradients)


def align_backward_fake(tensors: Sequence[Tensor], *arguments: Any) -> list[Tensor]:
    *call, wanted, _ = arguments
    positions = value_positions(Call(*call))
    return [tensors[positions[k]].new_empty(tensors[positions[k]].shape) for k in wanted]


def keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Sequence[Tensor]) -> None:
    tensors, *call = inputs
    ctx.call = Call(*call)
    ctx.needed = [tensor.requires_grad for tensor in tensors]
    ctx.save_for_backward(*tensors)


def differentiate(ctx: Any, gradients: Sequence[Tensor | None]) -> tuple[Any, ...]:
    found = input_gradients(ctx.saved_tensors, ctx.call, ctx.needed, gradients)
    return found, *[None] * len(Call._fields)


register(f"align({SCHEMA}) -> Tensor[]", align, align_fake)
# Without an autograd kernel of its own the backward may use autograd inside, as the portable backend does.
register(f"align_backward({SCHEMA}, int[] wanted, Tensor[] gradients) -> Tensor[]", align_backward, align_backward_fake)
register_gradient("align", differentiate, keep_for_backward)
