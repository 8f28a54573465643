"""Placement: which samples lie on the device, and the library of a batch's arrays."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from robocache._loader.engine import Member
from robocache._versions import import_torch, require

if TYPE_CHECKING:
    from robocache._cache.cache import Cache
    from robocache._loader.keys import Key

MEMORY_FRACTION = 0.8  # the part of a device's free memory that samples may take
UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


class Placement:
    """Where samples lie.

    Attributes:
        device: The torch device of the batches. None: NumPy arrays on the host.
    """

    def __init__(self, device: Any, arrays: str | None, resident: frozenset[str]) -> None:
        self.device, self.arrays, self._resident = device, arrays, resident

    def packs(self, member: Member) -> bool:
        """Whether a member's samples lie on the device."""
        return member.name in self._resident

    def finished(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The batch as JAX arrays for arrays="jax", otherwise as it is."""
        return batch if self.arrays != "jax" else {name: jax_array(array) for name, array in batch.items()}

    def text(self, size: int) -> str:
        """Where samples lie, for people. size: the bytes of those on the device."""
        if not size:
            where = "read in place from the cache's files"
            return where if self.device is None else f"{where}, batches on {self.device}"
        return f"{size / 2**20:,.1f} MiB of samples on {self.device}"


def placement_of(
    cache: Cache,
    numbers: Sequence[int],
    members: Mapping[str, Sequence[Member]],
    device: Any,
    arrays: str | None,
    resident: bool | int | str,
) -> Placement:
    """Chooses the members that are packed on the device: the smallest first, as many as fit into its memory."""
    if arrays not in (None, "numpy", "torch", "jax"):
        raise ValueError(f'Loader: arrays is {arrays!r}; expected "numpy", "torch" or "jax"')
    if arrays == "torch" and device is None:
        device = "cpu"
    if arrays == "numpy" and device is not None:
        raise ValueError(f'Loader: arrays is "numpy", and device={device!r} means torch tensors; give one of them')
    most = most_bytes(resident)
    if device is None:
        return Placement(None, arrays, frozenset())
    torch = import_torch(f"Loader: device={device!r}")
    where = device_of(torch, device)
    if most is None:  # "auto". On the CPU no samples are packed, because the cache's files are read in place
        most = torch.cuda.mem_get_info(where)[0] * MEMORY_FRACTION if where.type == "cuda" else 0
    sizes = {
        member.name: sum(cache.episodes[n]._entries.get(member.stored, (0, 0))[1] for n in numbers) * row_bytes(member)
        for some in members.values()
        for member in some
        if member.camera is None or member.has_frames
    }
    taken: list[str] = []
    for name in sorted(sizes, key=lambda name: sizes[name]):
        if sum(sizes[each] for each in taken) + sizes[name] <= most:
            taken.append(name)
    return Placement(where, arrays, frozenset(taken))


def check_jax(keys: Mapping[str, Key]) -> None:
    """Raises if JAX is missing, or lacks the dtype of a key."""
    jax = import_jax()
    for name, key in keys.items():
        if key.dtype == "float64" and not has_64_bits(jax):
            raise ValueError(
                f'Loader: key "{name}" has dtype="float64", which JAX has only after '
                'jax.config.update("jax_enable_x64", True)'
            )


def import_jax() -> Any:
    try:
        import jax
    except ModuleNotFoundError:
        raise ModuleNotFoundError('Loader: arrays="jax" needs JAX, which is not installed: pip install jax') from None
    require("jax")
    return jax


def has_64_bits(jax: Any) -> bool:
    return bool(jax.config.jax_enable_x64)


def jax_array(array: Any) -> Any:
    """The array as a JAX array, without a copy if possible. int64 stays NumPy, unless JAX has 64-bit integers."""
    import jax

    is_numpy = isinstance(array, np.ndarray)
    name = str(array.dtype).removeprefix("torch.")
    if name == "int64" and not has_64_bits(jax):
        return array if is_numpy else array.cpu().numpy()
    if is_numpy:
        try:
            return jax.device_put(array, may_alias=True)
        except TypeError:  # JAX before 0.4.31
            return jax.numpy.asarray(array)
    return jax.dlpack.from_dlpack(array.contiguous())


def row_bytes(member: Member) -> int:
    """The bytes of a sample, its stamp and its arrival."""
    return member.width * member.info.dtype.itemsize + 16


def device_of(torch: Any, device: Any) -> Any:
    """The torch.device. Raises if torch cannot use it."""
    try:
        where = torch.device(device)
        torch.empty(0, device=where)
    except (RuntimeError, TypeError, AssertionError) as error:
        raise type(error)(f"Loader: device is {device!r}, which torch cannot use: {error}") from None
    return where


def most_bytes(resident: bool | int | str) -> float | None:
    """The most bytes of samples on the device. None: as many as fit into its memory."""
    if isinstance(resident, bool):
        return float("inf") if resident else 0
    if resident == "auto":
        return None
    if isinstance(resident, int) and resident >= 0:
        return resident
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", str(resident).lower())
    if match is None:
        raise ValueError(f'Loader: resident is {resident!r}; expected "auto", True, False, or bytes, as "40GiB"')
    return float(match[1]) * UNITS[match[2]]
