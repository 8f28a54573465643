"""Padding, concatenation and gathers of rows for arrays of NumPy, torch and JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def padded(values: Any, width: int) -> Any:
    """The values with zeros appended to the channels, up to this width."""
    added = width - values.shape[-1]
    if not added:
        return values
    if isinstance(values, np.ndarray):
        return np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, added)])
    if is_torch(values):
        import torch

        return torch.nn.functional.pad(values, (0, added))
    import jax

    return jax.numpy.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, added)])


def picked(parts: Sequence[Any], rows: NDArray[np.int64]) -> Any:
    """Rows of the arrays as if they were concatenated. `rows` are on the host."""
    first = parts[0]
    if isinstance(first, np.ndarray):
        return (first if len(parts) == 1 else np.concatenate(parts))[rows]
    if is_torch(first):
        import torch

        whole = first if len(parts) == 1 else torch.cat(list(parts))
        return whole[torch.from_numpy(rows).to(first.device, non_blocking=True)]
    import jax

    return (first if len(parts) == 1 else jax.numpy.concatenate(list(parts)))[rows]


def filled(like: Any, value: Any) -> Any:
    """An array of this shape and dtype, filled with one value."""
    if isinstance(like, np.ndarray):
        return np.full_like(like, value)
    if is_torch(like):
        return like.new_full(like.shape, value)
    import jax

    return jax.numpy.full_like(like, value)


def is_torch(array: Any) -> bool:
    return hasattr(array, "new_full")
