"""Values and methods as a cache stores them, and as arrays."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache._align.stream import Method, Stream
from robocache._cache.prepare import is_numbered
from robocache._recordings.source import BATCH_BYTES, Batch, StreamInfo
from robocache._recordings.streams import Packed, RecordedStream
from robocache._versions import import_torch

Path = str | os.PathLike[str]
Stamps = NDArray[np.int64]


def numpy_dtype(name: str) -> np.dtype[Any]:
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError:
        return np.dtype("V2")
    return np.dtype(ml_dtypes.bfloat16)


def dtype_name(dtype: np.dtype[Any]) -> str:
    return "bfloat16" if dtype == np.dtype("V2") else str(dtype)


def typed(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The array with its dtype. The engine passes bfloat16 as bits."""
    if dtype == np.dtype("V2"):
        raise ModuleNotFoundError(
            "bfloat16 values in NumPy need ml_dtypes, which is not installed: pip install ml_dtypes"
        )
    return values if values.dtype == dtype else values.view(dtype)


def method_of(ranges: Sequence[tuple[str, int, int]], shape: Sequence[int]) -> Method | None:
    if not ranges:
        return None
    if len(ranges) == 1 and (ranges[0][1], ranges[0][2]) == (0, int(np.prod(shape, dtype=np.int64))):
        return ranges[0][0]
    return list(ranges)


def method_text(info: StreamInfo) -> str:
    if info.ragged:
        return "hold"
    if info.method is None:
        return "linear" if dtype_name(info.dtype)[0] in "bf" and info.dtype.kind != "b" else "hold"
    if isinstance(info.method, str):
        return info.method
    assert not isinstance(info.method, Mapping)
    return ", ".join(f"{name} {begin}..{end}" for name, begin, end in info.method)


def widen(values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """The values with all channels of the stream: NaN in channels that were added later."""
    if len(shape) != 1 or values.ndim != 2 or values.shape[1] == shape[0]:
        return values
    wide = np.full((len(values), shape[0]), np.nan, values.dtype)
    wide[:, : values.shape[1]] = values
    return wide


def row_bytes(info: StreamInfo) -> int:
    """The bytes of one aligned row. Streams of images, clouds and videos have an int64 index."""
    return 8 if is_numbered(info) else int(np.prod(info.shape, dtype=np.int64)) * info.dtype.itemsize


def cut(episode: int, stream: RecordedStream) -> Iterator[Batch]:
    info = stream.info
    times, arrivals = np.asarray(stream.times), np.asarray(stream.arrivals)
    ragged = stream.samples if isinstance(stream.samples, Packed) else None
    row = int(np.prod(info.shape, dtype=np.int64)) * info.dtype.itemsize
    bounds = [0]
    if ragged is None:
        step = max(BATCH_BYTES // max(row, 1), 1)
        bounds = list(range(0, len(times), step)) or [0]
    else:
        size = 0
        for k in range(len(times)):
            size += int(ragged.ends[k] - ragged.begins[k]) * row
            if size >= BATCH_BYTES:
                bounds.append(k + 1)
                size = 0
    for begin, end in zip(bounds, [*bounds[1:], len(times)], strict=True):
        part = slice(begin, end)
        lengths = None
        values = np.asarray(getattr(stream.samples, "references", stream.values))[part]
        if ragged is not None:
            lengths = (ragged.ends - ragged.begins)[part]
            values = ragged.rows[ragged.begins[begin] : ragged.ends[end - 1]] if end > begin else ragged.rows[:0]
        yield Batch(episode, info.name, values, times[part], arrivals[part], lengths, info)


def empty_stream(info: StreamInfo) -> Stream[Any]:
    """A stream of this kind without samples."""
    none = np.zeros(0, np.int64)
    values = typed(np.zeros((0, *info.shape), info.dtype), info.dtype)
    return Stream(values, none, arrivals=none, channels=info.channels or None)


def keep(array: NDArray[Any]) -> NDArray[Any]:
    return array


def mover(device: Any) -> Callable[[NDArray[Any]], Any]:
    if device is None:
        return keep
    torch = import_torch(f"Cache.align: device={device!r}")

    def move(array: NDArray[Any]) -> Any:
        bits = array.view(np.uint16) if array.dtype.name == "bfloat16" else array
        if not bits.flags.writeable:
            bits = bits.copy()  # mapped read-only from a file, and torch has no read-only tensors
        tensor = torch.from_numpy(np.ascontiguousarray(bits))
        if array.dtype.name == "bfloat16":
            tensor = tensor.view(torch.bfloat16)
        return tensor.to(device)

    return move
