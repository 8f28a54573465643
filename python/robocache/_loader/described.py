"""The text of `print(loader)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from robocache._loader.engine import Rows
from robocache._loader.entries import Entry
from robocache._loader.volumes import Volume
from robocache._loader.windows import left_out_text
from robocache._recordings.words import counted

if TYPE_CHECKING:
    from robocache._loader.loader import Loader


def described(loader: Loader) -> str:
    """The windows, the keys, what was left out, where the samples lie, and the bytes of a batch."""
    windows = loader.windows
    has = f"{counted(len(windows), 'window')} of {counted(len(windows.episodes), 'episode')}"
    lines = [
        f"Loader({loader.cache.path!r}: {has} at {loader.rate:g} Hz, "
        f"batches of {loader.batch_size}, rank {loader.rank} of {loader.world})"
    ]
    for name, key in loader.keys.items():
        lines.append(f"  {name}: {', '.join(key.streams)}; {shape_text(loader, name)} {dtype_text(loader, name)}")
    if windows.left_out:
        lines.append(f"  left out: {left_out_text(windows.left_out)}")
    lines.append(f"  {loader.placement.text(loader._engine.bytes)}; a batch is {batch_bytes(loader) / 2**20:.2f} MiB")
    return "\n".join(lines)


def dtype_text(loader: Loader, name: str) -> str:
    entry = loader._entries[name]
    return entry.dtype if isinstance(entry, Volume) else loader.keys[name].dtype or "float32"


def shape_text(loader: Loader, name: str) -> str:
    entry, steps = loader._entries[name], len(loader.keys[name].offsets(loader.rate))
    if isinstance(entry, Entry):
        return f"[{loader.batch_size}, {steps}, {entry.width}]"
    if isinstance(entry, Volume):
        return f"[{loader.batch_size}, {steps}, {' x '.join(map(str, entry.shape))}]"
    frame = entry.crop or entry.frame
    return f"[{loader.batch_size}, {steps}, {'?' if frame is None else f'{frame[0]} x {frame[1]}'}]"


def batch_bytes(loader: Loader) -> int:
    if loader._known_bytes is None:
        rows = Rows(*loader.windows.at(np.zeros(1, np.int64)))
        plain = loader.eval()
        plain.transform = None  # it may return anything
        arrays = plain._make_batch(rows, np.zeros(1, np.int64), None, draws=False)
        loader._known_bytes = sum(int(array.nbytes) for array in arrays.values())
    return loader._known_bytes * loader.batch_size
