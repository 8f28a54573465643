"""BufferRing: batches in the same memory again and again, for CUDA graphs and for fewer allocations."""

from __future__ import annotations

from typing import Any

import numpy as np


class BufferRing:
    """A ring of buffers that batches take in turn. The first batches become the buffers.

    Args:
        count: The number of buffers: batch k + count overwrites batch k.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._buffers: list[dict[str, Any]] = []
        self._next = 0

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The batch, copied into the next buffer."""
        if len(self._buffers) < self.count:
            kept = {name: np.array(a) if isinstance(a, np.ndarray) else a.clone() for name, a in batch.items()}
            self._buffers.append(kept)
            return dict(kept)
        kept, self._next = self._buffers[self._next], (self._next + 1) % self.count
        for name, array in batch.items():
            if isinstance(array, np.ndarray):
                np.copyto(kept[name], array)
            else:
                kept[name].copy_(array, non_blocking=True)
        return dict(kept)
