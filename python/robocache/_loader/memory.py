"""Memory of large tensors that nobody holds any more, for those of the next batches.

The system clears the pages of new memory one by one when they are first written, which takes several times as long as
computing a batch of pictures. malloc gives blocks of over 32 MiB back to the system each time.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import sys
from typing import Any

import numpy as np

LEAST = 4 << 20  # bytes: malloc keeps smaller blocks itself
MOST_FREE = 6  # blocks


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory is full, most likely a GPU's: torch says OutOfMemoryError, and our operations MemoryError."""
    torch = sys.modules.get("torch")
    return isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.cuda.OutOfMemoryError))


class Memory:
    """Blocks of memory. Any threads may take them."""

    def __init__(self) -> None:
        self._free: list[mmap.mmap] = []

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """An array whose memory is used again when no array or tensor of it is left. None: it is too small."""
        size = math.prod(shape) * dtype.itemsize
        return np.asarray(Lease(self, self._taken(size), shape, dtype)) if size >= LEAST else None

    def _taken(self, size: int) -> mmap.mmap:
        for block in sorted(self._free, key=len):
            if size <= len(block) <= 2 * size:
                with contextlib.suppress(ValueError):  # another thread has taken it
                    self._free.remove(block)
                    return block
        block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without huge pages
                block.madvise(mmap.MADV_HUGEPAGE)
        return block

    def give_back(self, block: mmap.mmap) -> None:
        self._free.append(block)
        while len(self._free) > MOST_FREE:
            with contextlib.suppress(IndexError):
                self._free.pop(0)


class Lease:
    """A block while an array uses it. NumPy keeps this object as the array's base."""

    def __init__(self, memory: Memory, block: mmap.mmap, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._memory, self._block = memory, block
        start = np.frombuffer(block, np.uint8).__array_interface__["data"][0]
        self.__array_interface__ = {"data": (start, False), "shape": shape, "typestr": dtype.str, "version": 3}

    def __del__(self) -> None:
        self._memory.give_back(self._block)
