"""Arrays of one library beside those of another."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from robocache import _align, _versions

_versions.require("numpy")  # no module of the package imports NumPy before this one


def beside(like: Any, thing: Any, dtype: Any = None) -> Any:
    """A list, or a NumPy array beside arrays of another library, as an array of that library on its device."""
    if type(thing) is type(like) or not isinstance(thing, (list, tuple, np.ndarray)):
        return thing
    torch, cupy, jax = (sys.modules.get(name) for name in ("torch", "cupy", "jax"))
    if torch is not None and _align._compiling():
        options = {"dtype": None if dtype is None else torch.float64, "device": like.device}
        if isinstance(thing, (list, tuple)) and any(isinstance(part, (torch.Tensor, np.ndarray)) for part in thing):
            return torch.stack([torch.as_tensor(part, **options) for part in thing])
        return torch.as_tensor(thing, **options)
    beside_torch = torch is not None and isinstance(like, torch.Tensor)
    if not isinstance(thing, np.ndarray):
        if beside_torch and len(thing) > 0 and all(isinstance(part, torch.Tensor) for part in thing):  # type: ignore
            return torch.stack(tuple(thing))  # type: ignore
        try:
            thing = np.asarray(thing, np.int64 if dtype is None and len(thing) == 0 else dtype)
        except ValueError:
            raise ValueError(
                f"{str(thing)[:60]} makes no array: its parts differ in shape, or something there is no number"
            ) from None
    if thing.dtype.kind in "mM":  # the engine says how to make nanoseconds of it
        return thing
    if beside_torch:
        return torch.from_numpy(np.ascontiguousarray(thing)).to(like.device)  # type: ignore
    if cupy is not None and isinstance(like, cupy.ndarray):
        with like.device:
            return cupy.asarray(thing)
    if jax is not None and isinstance(like, jax.Array):
        return jax.device_put(thing, next(iter(like.devices())))
    return thing
