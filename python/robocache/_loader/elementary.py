"""The operations of the loader's formulas, for NumPy arrays and torch tensors alike.

Addition, subtraction, multiplication and division of float32 are rounded once, by IEEE 754, in NumPy and in torch on
CPUs and NVIDIA GPUs, and so is `sqrt` below. A formula of only these operations has the same bits everywhere, unless a
product is fused with a sum: eager torch does not fuse, torch.compile may. Three rules keep the bits equal:

- Constants are float32 numbers, so that it does not matter where they are rounded. `constant` makes them.
- An array is divided only by an array, because torch on a GPU would multiply by the reciprocal of a Python number. A
  number is divided by an array only if it is a power of two, because torch multiplies it by the array's reciprocal.
- Powers, sums along an axis, norms and library functions (sin, atan2) are not used: their bits differ.

The bits of a NaN are not part of the promise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

# The branch that `where` does not take may overflow or divide 0 by 0.
without_warnings: Callable[..., Any] = np.errstate(all="ignore")


def is_tensor(x: Any) -> bool:
    """Whether x is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def as_float32(x: Any) -> Any:
    """A tensor or an array (lists become one) as float32, rounded once."""
    return x.to(sys.modules["torch"].float32) if is_tensor(x) else np.asarray(x, np.float32)


def constant(x: float) -> float:
    """The float32 number that is nearest to x."""
    return float(np.float32(x))


def sqrt(x: Any) -> Any:
    """The square root of float32, rounded once.

    torch's own is an ulp off for every sixth number on a CPU (with MKL). Computed in float64 it is right: the root of a
    float32 number in [1, 4) is at least 2^-50 away from where rounding changes, and float64's ulp there is 2^-52.
    """
    if not is_tensor(x):
        return np.sqrt(x)
    return x.sqrt() if x.device.type == "mps" else x.double().sqrt().float()  # mps has no float64


def nearest_integer(x: Any) -> Any:
    """The nearest whole number, ties to even."""
    return x.round() if is_tensor(x) else np.rint(x)


def absolute(x: Any) -> Any:
    return x.abs() if is_tensor(x) else np.abs(x)


def where(condition: Any, x: Any, y: Any) -> Any:
    """x where the condition holds, else y. One of them may be a number."""
    return sys.modules["torch"].where(condition, x, y) if is_tensor(condition) else np.where(condition, x, y)


def unstack(x: Any) -> list[Any]:
    """The numbers along the last axis, each an array."""
    return [x[..., k] for k in range(x.shape[-1])]


def stack(parts: Sequence[Any]) -> Any:
    """The inverse of `unstack`."""
    return sys.modules["torch"].stack(list(parts), dim=-1) if is_tensor(parts[0]) else np.stack(parts, axis=-1)


def join(parts: Sequence[Any]) -> Any:
    """Arrays side by side along the last axis."""
    return sys.modules["torch"].cat(list(parts), dim=-1) if is_tensor(parts[0]) else np.concatenate(parts, axis=-1)


def polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """c0 + x (c1 + x (c2 + ...)), by Horner's rule. Each operation rounds."""
    total = x * coefficients[-1] + coefficients[-2]
    for coefficient in reversed(coefficients[:-2]):
        total = total * x + coefficient
    return total


def runs(channels: Sequence[int]) -> list[tuple[int, int]]:
    """Rising channels as half-open ranges, because slices need no index array on the device."""
    found: list[tuple[int, int]] = []
    for channel in channels:
        if found and found[-1][1] == channel:
            found[-1] = (found[-1][0], channel + 1)
        else:
            found.append((channel, channel + 1))
    return found
