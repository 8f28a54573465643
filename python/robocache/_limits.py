"""The limits of src/core/limits.h, and how sentences write them."""

from __future__ import annotations

TIME_LIMIT = 2**62
"""Nanoseconds: the magnitude of a time or a duration must be below this."""
TIME_LIMIT_IN_WORDS = "2^62 ns"
SIZE_LIMIT = 2**62
"""Cells, elements, bytes: at most this."""
SIZE_LIMIT_IN_WORDS = "2^62"
