"""Relative actions: differences from a reference, and poses relative to a pose. Equal bits on NumPy and torch.

`x` is [..., T, D], a chunk of T steps. All steps of the chunk are relative to `reference`, [..., R]; channel c of x
belongs to channel c of the reference. R and D may differ if both have the channels that are used. The other channels
are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from robocache._arrays import beside
from robocache._loader.elementary import as_float32, is_tensor, join, runs, without_warnings
from robocache._loader.rotations import canonical, opposite, rotate, times, unit, usable

POSE = 7


@without_warnings
def subtract(x: Any, reference: Any, channels: Sequence[int] | None = None) -> Any:
    """x - reference.

    Args:
        x: [..., T, D].
        reference: [..., R].
        channels: The numbers of the channels, in rising order. Default: all D.

    Returns:
        float32 [..., T, D], in the library and on the device of x.
    """
    return by_runs(x, reference, channels, lambda part, of: part - of)


@without_warnings
def add(x: Any, reference: Any, channels: Sequence[int] | None = None) -> Any:
    """x + reference: the inverse of `subtract`, within 2^-24 (|x| + |x - reference|) of the original x.

    Args and the result are those of `subtract`.
    """
    return by_runs(x, reference, channels, lambda part, of: part + of)


@without_warnings
def pose(x: Any, reference: Any, channels: Sequence[int] | None = None) -> Any:
    """inverse(T_reference) T_x: poses in the frame of the reference pose.

    A pose is 7 channels: a position and a quaternion (xyzw) of any length. The position becomes the difference of the
    positions, rotated by the inverse of the reference's rotation. The quaternion becomes the product, unit, with
    w >= 0.

    Args:
        x: [..., T, D].
        reference: [..., R].
        channels: The channels of the poses in rising order: 7 neighbouring ones for each pose. Default: all D.

    Returns:
        float32 [..., T, D], in the library and on the device of x.
    """
    return by_poses(x, reference, channels, seen_from)


@without_warnings
def place(x: Any, reference: Any, channels: Sequence[int] | None = None) -> Any:
    """T_reference T_x: the inverse of `pose`.

    Quaternions are unit. Of q and -q, the result is the one on the reference's side.

    Args and the result are those of `pose`.
    """
    return by_poses(x, reference, channels, seen_with)


def seen_from(x: Any, reference: Any) -> Any:
    """One pose [..., 7] in the frame of another."""
    back = opposite(usable(reference[..., 3:]))
    position = rotate(back, x[..., :3] - reference[..., :3])
    return join([position, canonical(unit(times(unit(back), unit(x[..., 3:]))))])


def seen_with(x: Any, reference: Any) -> Any:
    """The inverse of `seen_from`."""
    rotation = usable(reference[..., 3:])
    position = rotate(rotation, x[..., :3]) + reference[..., :3]
    return join([position, unit(times(unit(rotation), canonical(unit(x[..., 3:]))))])


def by_runs(x: Any, reference: Any, channels: Sequence[int] | None, compute: Callable[[Any, Any], Any]) -> Any:
    """x with the chosen channels replaced by compute(x, reference)."""
    x, reference = checked(x, reference)
    channels = chosen("subtract", x, reference, channels)
    out = x.clone() if is_tensor(x) else x.copy()
    for begin, end in runs(channels):
        out[..., begin:end] = compute(x[..., begin:end], reference[..., None, begin:end])
    return out


def by_poses(x: Any, reference: Any, channels: Sequence[int] | None, compute: Callable[[Any, Any], Any]) -> Any:
    """x with each group of seven channels replaced by compute(x, reference)."""
    x, reference = checked(x, reference)
    channels = chosen("pose", x, reference, channels)
    if len(channels) % POSE:
        raise ValueError(
            f'relative: "pose" takes groups of {POSE} channels (position, quaternion xyzw), not {len(channels)}'
        )
    out = x.clone() if is_tensor(x) else x.copy()
    for first in range(0, len(channels), POSE):
        begin, end = channels[first], channels[first] + POSE
        if list(channels[first : first + POSE]) != list(range(begin, end)):
            raise ValueError(
                f'relative: "pose" takes groups of {POSE} channels side by side, but the group that begins at channel '
                f"{begin} is {list(channels[first : first + POSE])}"
            )
        out[..., begin:end] = compute(x[..., begin:end], reference[..., None, begin:end])
    return out


def checked(x: Any, reference: Any) -> tuple[Any, Any]:
    """Both as float32, with shapes that fit."""
    x = as_float32(x)
    reference = as_float32(beside(x, reference))
    if x.ndim < 2 or list(reference.shape[:-1]) != list(x.shape[:-2]) or reference.ndim != x.ndim - 1:
        raise ValueError(
            f"relative: the reference has shape {list(reference.shape)} and the values {list(x.shape)}; expected "
            "[..., R] beside [..., T, D]"
        )
    return x, reference


def chosen(kind: str, x: Any, reference: Any, channels: Sequence[int] | None) -> Sequence[int]:
    """The channels, checked."""
    width, known = x.shape[-1], reference.shape[-1]
    channels = range(width) if channels is None else channels
    if any(after <= before for before, after in pairwise(channels)) or min(channels, default=0) < 0:
        raise ValueError(f"relative: channels is {list(channels)}; expected numbers from 0 on, in rising order")
    last = max(channels, default=-1)
    if last >= width:
        raise ValueError(f'relative: "{kind}" is asked of channel {last}, but there are {width}')
    if last >= known:
        raise ValueError(f'relative: "{kind}" is asked of channel {last}, but the reference has {known}')
    return channels
