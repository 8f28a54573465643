"""CacheAligned: what `Cache.align` returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from robocache._align import frames
from robocache._align.results import Aligned
from robocache._recordings.words import counted


class CacheAligned(dict[str, Aligned[Any]]):
    """What `Cache.align` returns: {stream: Aligned}, with a row for each episode.

    Steps k >= lengths[b] of row b lie after the end of its episode.

    Attributes:
        lengths: int64 [B]: the number of real steps of each row.
        times: int64 [B, T], nanoseconds.
        episodes: The numbers of the episodes.
        samples: For streams whose samples vary in length, and for cameras: {stream: a sequence for each row}. The
            sample at step t of row b is `samples[name][b][aligned[name].values[b, t]]`; of cameras of which the cache
            keeps frames it is the frame.
        channels: {stream: channel names}, for streams that have them.
    """

    lengths: Any
    times: Any
    episodes: list[int]
    samples: dict[str, list[Sequence[Any]]]
    channels: dict[str, tuple[str, ...]]

    def __init__(self) -> None:
        super().__init__()
        self.samples, self.channels = {}, {}

    def to_pandas(self) -> Any:
        """All streams and episodes as one pandas DataFrame, one row for each step of each episode.

        Columns, in this order: `episode` (its number), `time` (int64 nanoseconds), and for each stream its channels
        (`joints.elbow`, or `joints[0]` without names), `joints.valid`, `joints.age` (nanoseconds) and `joints.index`.
        Steps after the end of an episode are left out. Images, clouds and video frames are the number of the sample.

        Returns:
            A `pandas.DataFrame`.

        Raises:
            ModuleNotFoundError: pandas is not installed.

        Examples:
            >>> frame = cache.align(rate=50, streams=["joints", "action"]).to_pandas()
            >>> frame.groupby("episode")["joints.age"].max()
        """
        return frames.to_pandas("CacheAligned.to_pandas", self._columns("CacheAligned.to_pandas"))

    def to_arrow(self) -> Any:
        """All streams and episodes as one PyArrow table with the columns of `to_pandas`.

        Returns:
            A `pyarrow.Table`.

        Raises:
            ModuleNotFoundError: PyArrow is not installed.
        """
        return frames.to_arrow("CacheAligned.to_arrow", self._columns("CacheAligned.to_arrow"))

    def _columns(self, where: str) -> frames.Columns:
        return frames.of_episodes(where, self, self.channels, self.episodes, self.times, self.lengths)

    def __repr__(self) -> str:
        parts = ", ".join(f"{name!r}: {aligned!r}" for name, aligned in self.items())
        return f"CacheAligned({{{parts}}}, {counted(len(self.episodes), 'episode')})"
