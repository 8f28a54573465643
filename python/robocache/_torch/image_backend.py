"""The portable backend of image: docs/semantics.md in plain torch operations on integers, on any device.

Its results have the bits of the other backends. The engine checks the call, says where every pixel lies, and makes the
weights and the table of floats; the pixels stay on their device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from robocache import _core

WEIGHT_BITS = 22
AxisNumbers = tuple[int, int, int, int, int]  # begin, box, resized, first, count


def image(planes: Sequence[Tensor], rows: Tensor | None, crop_offsets: Tensor | None, call: Any) -> Tensor:
    plan = plan_of(planes, rows, crop_offsets, call)
    trailing = 2 if len(planes) > 1 or planes[0].dtype == torch.uint16 else 3
    lead = planes[0].shape[: planes[0].ndim - trailing] if rows is None else rows.shape
    stacks = [frames_of(plane, len(planes[0].shape) - trailing, rows) for plane in planes]
    depth = planes[0].dtype == torch.uint16
    pixels = stacks[0][..., None] if depth else stacks[0]
    if len(planes) > 1:
        pixels = rgb_of(stacks, plan)
    (top, height, *_), (left, width, *_) = plan["height"], plan["width"]
    pixels = pixels[:, top : top + height, left : left + width]
    pixels = resized_depth(pixels, plan) if depth else resized(resized(pixels, 2, plan), 1, plan)
    pixels = placed(pixels, plan, crop_offsets)
    made = as_floats(pixels, call, depth) if plan["dtype"].startswith(("float", "bfloat")) else pixels
    made = made.to(getattr(torch, plan["dtype"]))
    if depth:
        made = made[..., 0]
    elif call.layout == "nchw":
        made = made.permute(0, 3, 1, 2)
    return made.reshape(*lead, *made.shape[1:])


def plan_of(planes: Sequence[Tensor], rows: Tensor | None, crop_offsets: Tensor | None, call: Any) -> dict[str, Any]:
    """Lets the engine check the call, so that error sentences are written in one place.

    It sees expanded zeros of the same shapes, which take no memory. The values of rows and crop_offsets are checked
    only on the CPU; elsewhere the check would wait for the device.
    """
    device = planes[0].device
    for tensor in (*planes, rows, crop_offsets):
        if tensor is not None and tensor.device != device:
            raise ValueError(f"image: an array is on {tensor.device} and frames on {device}; all must be on one device")

    def stand_in(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else torch.zeros((), dtype=tensor.dtype).expand(tensor.shape)

    check = call.check and device.type == "cpu"
    frames = tuple(stand_in(plane) for plane in planes)
    integers = (rows, crop_offsets) if check else (stand_in(rows), stand_in(crop_offsets))
    form = (call.size or None, call.fit, call.filter, call.pad, call.crop or None, call.dtype, call.mean, call.std)
    places = (integers[0], call.box or None, integers[1])
    shown = frames[0] if len(frames) == 1 else frames
    return _core.image_plan(shown, *form, call.layout, *places, call.yuv_matrix, call.yuv_range, call.yuv_siting, check)


def frames_of(plane: Tensor, lead: int, rows: Tensor | None) -> Tensor:
    """int32 [frames, ...]."""
    if rows is not None:  # clamped, so that nothing is read out of bounds
        plane = plane.index_select(0, rows.long().clamp(0, max(plane.shape[0] - 1, 0)))
    return plane.to(torch.int32).reshape(-1, *plane.shape[lead:]) if lead else plane.to(torch.int32)[None]


# ---- colour


def rgb_of(stacks: list[Tensor], plan: dict[str, Any]) -> Tensor:
    luma, luma_offset, v_red, u_green, v_green, u_blue = plan["yuv"]
    chroma = stacks[1:] if len(stacks) == 3 else stacks[1].unbind(-1)
    height, width = stacks[0].shape[1:3]
    u, v = (mixed(part, 2, width, plan["is_centered"]) for part in chroma)
    u, v = ((mixed(part, 1, height, True) if plan["is_420"] else 4 * part) - 2048 for part in (u, v))
    grey = luma * (stacks[0] - luma_offset) * 16 + (1 << 19)
    sums = torch.stack([grey + v_red * v, grey + u_green * u + v_green * v, grey + u_blue * u], dim=-1)
    return (sums >> 20).clamp(0, 255)


def mixed(plane: Tensor, dim: int, size: int, is_centered: bool) -> Tensor:
    """4 times the chroma at every pixel along a dimension."""
    at = torch.arange(size, device=plane.device)
    odd = at % 2 == 1
    near, far = at // 2, (at // 2 + torch.where(odd, 1, -1)).clamp(0, plane.shape[dim] - 1)
    weight = torch.full_like(at, 3) if is_centered else torch.where(odd, 2, 4)
    weight = weight.to(torch.int32).reshape([-1 if d == dim else 1 for d in range(plane.ndim)])
    return weight * plane.index_select(dim, near) + (4 - weight) * plane.index_select(dim, far)


# ---- resize


def taps_of(plan: dict[str, Any], axis: str, device: torch.device) -> tuple[Tensor, list[list[int]]]:
    _, box, resized_to, _, _ = plan[axis]
    first, weights = _core.image_taps(plan["filter"], box, resized_to)
    return torch.tensor(first, device=device), weights


def resized(pixels: Tensor, dim: int, plan: dict[str, Any]) -> Tensor:
    """One direction."""
    axis = "width" if dim == 2 else "height"
    box = plan[axis][1]
    first, weights = taps_of(plan, axis, pixels.device)
    if plan["filter"] == "nearest":
        return pixels.index_select(dim, first)
    most = max(map(len, weights))
    table = torch.tensor([row + [0] * (most - len(row)) for row in weights], dtype=torch.int32, device=pixels.device)
    shape = [1, 1, -1, 1] if dim == 2 else [1, -1, 1, 1]
    total: Any = 1 << (WEIGHT_BITS - 1)
    for k in range(most):
        total = total + pixels.index_select(dim, (first + k).clamp(max=box - 1)) * table[:, k].reshape(shape)
    return (total >> WEIGHT_BITS).clamp(0, 255)


def resized_depth(pixels: Tensor, plan: dict[str, Any]) -> Tensor:
    rows, row_weights = taps_of(plan, "height", pixels.device)
    columns, column_weights = taps_of(plan, "width", pixels.device)
    if plan["filter"] == "nearest":
        return pixels.index_select(1, rows).index_select(2, columns)
    # Sums over rectangles are differences of running sums.
    ends = [
        first + torch.tensor([len(row) for row in weights], device=first.device)
        for first, weights in ((rows, row_weights), (columns, column_weights))
    ]
    total, count = (
        over_windows(over_windows(part.long(), 1, rows, ends[0]), 2, columns, ends[1]) for part in (pixels, pixels != 0)
    )
    mean = torch.div(2 * total + count, (2 * count).clamp(min=1), rounding_mode="floor")
    return torch.where(count > 0, mean, 0).to(torch.int32)


def over_windows(values: Tensor, dim: int, first: Tensor, end: Tensor) -> Tensor:
    running = torch.cat([torch.zeros_like(values.narrow(dim, 0, 1)), values.cumsum(dim)], dim)
    return running.index_select(dim, end) - running.index_select(dim, first)


# ---- the output


def placed(pixels: Tensor, plan: dict[str, Any], crop_offsets: Tensor | None) -> Tensor:
    """The output's pixels, with padding where they lie outside the resized box."""
    device = pixels.device
    places, inside = [], []
    for k, axis in enumerate(("height", "width")):
        _, _, resized_to, first, count = plan[axis]
        at = torch.arange(first, first + count, device=device)[None]
        if crop_offsets is not None:
            at = at + crop_offsets[:, k, None].long()
        places.append(at.clamp(0, resized_to - 1))
        inside.append((at >= 0) & (at < resized_to))
    frame = torch.arange(pixels.shape[0], device=device)[:, None, None]
    picked = pixels[frame, places[0][:, :, None], places[1][:, None, :]]
    pad = torch.tensor(plan["pad"], dtype=torch.int32, device=device)
    return torch.where((inside[0][:, :, None] & inside[1][:, None, :])[..., None], picked, pad)


def as_floats(pixels: Tensor, call: Any, depth: bool) -> Tensor:
    """By a table of all values, which the engine makes."""
    channels = pixels.shape[-1]
    if depth:
        every = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).reshape(256, 256)
    else:
        every = torch.arange(256, dtype=torch.int32).to(torch.uint8).reshape(1, 256, 1).expand(1, 256, channels)
    form = ("stretch", None, 0, None, call.dtype, call.mean, call.std, "nhwc")
    made = _core.image(every, None, *form, None, None, None, None, "limited", "left", None, True, "reference")
    table = made.reshape(-1, channels).to(pixels.device)
    return table[pixels.long(), torch.arange(channels, device=pixels.device)]
