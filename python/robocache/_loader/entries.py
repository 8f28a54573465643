"""Entries: from the aligned members of a numeric key to its tensors in a batch.

The steps: the stream's dtype -> float32 -> members side by side -> relative -> rotation -> normalised -> 0 where no
sample exists -> the key's dtype. Each step rounds each element once, so NumPy and torch give the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from robocache._align.results import Aligned
from robocache._cache.joined import NEVER, joined_marks, library_of
from robocache._cache.values import numpy_dtype
from robocache._loader import relative, rotations
from robocache._loader.engine import Member
from robocache._loader.keys import Key
from robocache._loader.normalize import Normalizer
from robocache._recordings.words import counted

KINDS = {name: np.dtype(name) for name in ("float16", "float32", "float64")}


class Raw(NamedTuple):
    """A key's members side by side: not yet relative, rotated or normalised."""

    values: Any  # float32 [B, T, D]
    valid: Any  # bool [B, T]
    age: Any  # int64 [B, T]
    never: list[Any]  # by member, bool [B, T]: true where no sample exists

    def without(self, rows: Any) -> Raw:
        """The same as if no sample existed in these rows, bool [B]."""
        if not is_any(rows):
            return self
        return self._replace(valid=self.valid & ~rows[:, None], never=[none | rows[:, None] for none in self.never])


class Entry:
    """A numeric key: how its tensor is made.

    Attributes:
        width: Channels of the tensor.
        channels: Their names, or ().
    """

    def __init__(self, name: str, key: Key, members: Sequence[Member]) -> None:
        self.name, self.key, self.members = name, key, list(members)
        self.normalizer: Normalizer | None = None
        self.origin_step = 0  # the step that it is relative to, among those of the origin's key
        self._names = [member.name for member in members]
        self.raw_width = sum(member.width for member in members)
        self.rotation = key.rotation or "quaternion"
        self.quaternions = quaternions_of(name, key, members) if key.rotation else ()
        # Each member's channels in the tensor.
        ends = [self._width(end) for end in np.cumsum([member.width for member in members]).tolist()]
        self.parts = [slice(begin, end) for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
        self.width = ends[-1]

    def _width(self, channels: int) -> int:
        """The number of channels in the tensor that the first `channels` channels of the members become."""
        before = [start for start in self.quaternions if start < channels]
        return rotations.width_after(channels, before, "quaternion", self.rotation)

    def raw(self, aligned: Mapping[str, Aligned[Any]]) -> Raw:
        first = aligned[self._names[0]]
        valid, age = first.valid, first.age
        if len(self._names) == 1:
            return Raw(flat_float32(first), valid, age, [age == NEVER])
        parts = [aligned[name] for name in self._names]
        flat, never = [flat_float32(part) for part in parts], [part.age == NEVER for part in parts]
        valid, age = joined_marks(parts)
        return Raw(library_of(valid).concatenate(flat, -1), valid, age, never)

    def transformed(self, raw: Raw, origin: Any) -> Any:
        """Relative and rotated values, not yet normalised: float32 [B, T, D]. origin: [B, D], the origin's values."""
        values = raw.values
        if self.key.relative is not None:
            make_relative = relative.pose if self.key.relative == "pose" else relative.subtract
            values = make_relative(values, origin, self.key.relative_channels)
        if self.quaternions:
            values = rotations.convert_channels(values, self.quaternions, "quaternion", self.rotation)
        return values

    def finished(self, values: Any, raw: Raw) -> Any:
        if self.normalizer is not None:
            values = self.normalizer.forward(values)
        for part, none in zip(self.parts, raw.never, strict=True):
            if is_any(none):  # rare, and then a copy of the channels
                values = zeroed(values, part, none)
        return as_dtype(values, self.key.dtype or "float32")

    def inverted(self, values: Any, origin: Any) -> Any:
        """Undoes normalisation, rotation and the subtraction of the origin: the values in the units of the streams."""
        values = to_float32(values)
        if values.ndim == 0 or values.shape[-1] != self.width:
            raise ValueError(
                f'Loader.invert: key "{self.name}" has {counted(self.width, "channel")}, and the chunk has shape '
                f"{list(values.shape)}"
            )
        if self.normalizer is not None:
            values = self.normalizer.inverse(values)
        if self.quaternions:
            starts = rotations.starts_after(self.quaternions, "quaternion", self.rotation)
            values = rotations.convert_channels(values, starts, self.rotation, "quaternion")
        if self.key.relative is None:
            return values
        make_absolute = relative.place if self.key.relative == "pose" else relative.add
        return make_absolute(values, origin, self.key.relative_channels)


def origin_step_of(entry: Entry, key: Key, members: Sequence[Member], rate: float) -> int:
    """The step at the anchor of the key that this entry is relative to, checked. key, members: those of that key."""
    name, other = entry.name, entry.key.relative_to
    offsets = key.offsets(rate).tolist()
    if 0 not in offsets:
        raise ValueError(
            f'Loader: key "{name}" is relative to "{other}" at the anchor, and that key has no step 0; give it one'
        )
    if members[0].camera is not None or key.voxels is not None:
        raise ValueError(f'Loader: key "{name}" is relative to "{other}", which is pictures or clouds')
    channels, has = entry.key.relative_channels, sum(member.width for member in members)
    needed = entry.raw_width if channels is None else channels[-1] + 1
    if needed > has:
        raise ValueError(
            f'Loader: key "{name}" is relative to "{other}", which has {counted(has, "channel")}, and needs {needed}; '
            "say by relative_channels= which of its own become relative"
        )
    return int(offsets.index(0))


def quaternions_of(name: str, key: Key, members: Sequence[Member]) -> tuple[int, ...]:
    """The first channel of each quaternion: from `rotation_channels`, otherwise the channels with the method slerp."""
    if key.rotation_channels is not None:
        found = key.rotation_channels
    else:
        found, first = (), 0
        for member in members:
            method = member.options.get("method")
            ranges = [(method, 0, member.width)] if isinstance(method, str) else method or ()
            for kind, begin, end in ranges:
                found += tuple(range(first + begin, first + end, 4)) if kind == "slerp" else ()
            first += member.width
    if not found:
        raise ValueError(
            f'Loader: key "{name}" has rotation="{key.rotation}", and none of its channels has the method slerp; say '
            "by rotation_channels= where quaternions begin"
        )
    rotations.check_starts(sum(member.width for member in members), found, "quaternion")
    ends = np.cumsum([member.width for member in members])
    for start in found:
        if np.searchsorted(ends, start, "right") != np.searchsorted(ends, start + 3, "right"):
            raise ValueError(f'Loader: key "{name}": the quaternion at channel {start} lies in two streams')
    return found


def zeroed(values: Any, part: slice, none: Any) -> Any:
    """The values with 0 in these channels where no sample exists."""
    if isinstance(values, np.ndarray):
        values = values if values.flags.writeable else values.copy()
        values[..., part][none] = 0
        return values
    array = library_of(values)
    channels = values[..., part]
    values[..., part] = array.where(none[..., None], array.zeros_like(channels), channels)
    return values


def is_any(flags: Any) -> bool:
    return bool(np.count_nonzero(flags)) if isinstance(flags, np.ndarray) else bool(flags.any())


def flat_float32(part: Aligned[Any]) -> Any:
    """[B, T, D], whatever the shape of a sample is."""
    values = to_float32(part.values)
    return values if values.ndim == 3 else values.reshape((*part.valid.shape, -1))


def to_float32(values: Any) -> Any:
    if isinstance(values, np.ndarray):
        return values if values.dtype == np.float32 else values.astype(np.float32)
    import torch

    return values.to(torch.float32)


def as_dtype(values: Any, dtype: str) -> Any:
    if isinstance(values, np.ndarray):
        kind = KINDS.get(dtype) or numpy_dtype(dtype)
        if kind == np.dtype("V2"):
            raise ModuleNotFoundError(
                "Loader: bfloat16 in NumPy needs ml_dtypes, which is not installed: pip install ml_dtypes; or give "
                'device="cpu" for torch tensors'
            )
        return values if values.dtype == kind else values.astype(kind)
    return values.to(getattr(library_of(values), dtype))
