"""Lists and NumPy arrays, moved to the library and device of another array."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from robocache import _versions
from robocache._align import tracing

_versions.require("numpy")  # the first module of the package that imports NumPy


def beside(like: Any, thing: Any, dtype: Any = None) -> Any:
    """A list, or a NumPy array beside arrays of another library, as an array of that library on its device."""
    if type(thing) is type(like) or not isinstance(thing, (list, tuple, np.ndarray)):
        return thing
    torch, cupy, jax = (sys.modules.get(name) for name in ("torch", "cupy", "jax"))
    if torch is not None and tracing.compiling():
        options = {"dtype": None if dtype is None else torch.float64, "device": like.device}
        if isinstance(thing, (list, tuple)) and any(isinstance(part, (torch.Tensor, np.ndarray)) for part in thing):
            return torch.stack([torch.as_tensor(part, **options) for part in thing])
        return torch.as_tensor(thing, **options)
    beside_torch = torch is not None and isinstance(like, torch.Tensor)
    if beside_torch:
        _versions.require("torch")
    given: Any = thing
    if not isinstance(thing, np.ndarray):
        if beside_torch and len(thing) > 0 and all(isinstance(part, torch.Tensor) for part in thing):  # type: ignore
            return torch.stack(tuple(thing))  # type: ignore
        try:
            thing = np.asarray(thing, np.int64 if dtype is None and len(thing) == 0 else dtype)
        except ValueError:
            raise ValueError(
                f"{str(thing)[:60]} cannot become an array: its parts differ in shape, or one of them is not a number"
            ) from None
    if thing.dtype.kind in "mMOSU":
        if isinstance(like, (list, tuple, np.ndarray)):  # the engine says what to pass instead
            return thing
        shown = f"an array of {thing.dtype}" if given is thing else str(given)[:60]
        how = "pass numbers"
        if thing.dtype.kind in "mM":
            how = 'pass nanoseconds: .astype("datetime64[ns]").astype("int64")'
        raise TypeError(f"{shown} cannot become an array of numbers of up to 64 bits; {how}")
    if beside_torch:
        return torch.from_numpy(np.ascontiguousarray(thing)).to(like.device)  # type: ignore
    if cupy is not None and isinstance(like, cupy.ndarray):
        with like.device:
            return cupy.asarray(thing)
    if jax is not None and isinstance(like, jax.Array):
        return jax.device_put(thing, next(iter(like.devices())))
    return thing
