"""What align and fuse return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple

from robocache._align.stream import Array, shape_of


class Aligned(NamedTuple, Generic[Array]):
    """One stream on the timeline. It unpacks: `values, valid, age, index = aligned["pose"]`.

    Shapes have no B if neither a stream nor the targets have rows.

    Attributes:
        values: [B, T, ...]: the values at the targets.
        valid: bool [B, T]: False where the value is not real, but what `edge` puts there.
        age: int64 [B, T], nanoseconds: the target minus the stamp of the sample at or before it.
        index: int64 [B, T], counted from the first sample of the row: the sample at or before the target; for
            "nearest" the sample it chose; where `edge` clamps, the sample that is repeated; -1 if no sample is behind
            the value.
    """

    values: Array
    valid: Any
    age: Any
    index: Any

    def to_pandas(self, times: Any, *, channels: Sequence[str] | None = None) -> Any:
        """The result as a pandas DataFrame, one row for each target. Arrays on a GPU are copied to the host.

        Columns, in this order: `row` (only for a batch: the number of the output row), `time` (int64 nanoseconds), a
        column for each channel, `valid`, `age` (nanoseconds) and `index`. bfloat16 values become float32.

        Args:
            times: The targets of the call: its `Timeline`, or its times [T] or [B, T].
            channels: A name for each channel of the flattened trailing shape, such as `stream.channels`. Default:
                "value", or "value[0]", "value[1]", ...

        Returns:
            A `pandas.DataFrame`.

        Raises:
            ModuleNotFoundError: pandas is not installed.

        Examples:
            >>> frame = aligned["pose"].to_pandas(timeline, channels=streams["pose"].channels)
            >>> frame[frame.valid].groupby("row").age.max()   # of a batch
        """
        from robocache._align import frames

        return frames.to_pandas("Aligned.to_pandas", frames.of_aligned("Aligned.to_pandas", self, times, channels))

    def to_arrow(self, times: Any, *, channels: Sequence[str] | None = None) -> Any:
        """The result as a PyArrow table with the columns of `to_pandas`.

        Args:
            times: The targets of the call: its `Timeline`, or its times [T] or [B, T].
            channels: A name for each channel, as in `to_pandas`.

        Returns:
            A `pyarrow.Table`.

        Raises:
            ModuleNotFoundError: PyArrow is not installed.
        """
        from robocache._align import frames

        return frames.to_arrow("Aligned.to_arrow", frames.of_aligned("Aligned.to_arrow", self, times, channels))

    def __repr__(self) -> str:
        parts = [f"{name} {shape_of(part)}" for name, part in zip(self._fields, self, strict=True)]
        return f"Aligned({', '.join(parts)})"


class Fused(NamedTuple, Generic[Array]):
    """All streams on the timeline, side by side: `fused.values[..., fused.columns["pose"]]` is one of them.

    Shapes have no B if neither a stream nor the targets have rows.

    Attributes:
        values: [B, T, channels of all streams].
        valid: bool [B, T, streams]: False where a stream's values are not real, but what `edge` puts there.
        age: int64 [B, T, streams], nanoseconds: the target minus the stamp of the sample at or before it.
        columns: The channels of each stream, as a slice: by name, or by position if the stream has no name.
    """

    values: Array
    valid: Any
    age: Any
    columns: dict[str | int, slice]

    @property
    def index(self) -> Any:
        """Not available: `align` gives an index for each stream."""
        raise AttributeError("Fused has no index; align gives one for each stream")  # tuple has a method of that name

    def to_pandas(self, times: Any, *, channels: Mapping[str | int, Sequence[str]] | None = None) -> Any:
        """The result as a pandas DataFrame, one row for each target. Arrays on a GPU are copied to the host.

        Columns, in this order: `row` (only for a batch: the number of the output row), `time` (int64 nanoseconds), and
        for each stream its channels (`pose.x`, or `pose[0]` without a name), `pose.valid` and `pose.age`.

        Args:
            times: The targets of the call: its `Timeline`, or its times [T] or [B, T].
            channels: By stream, a name for each of its channels.

        Returns:
            A `pandas.DataFrame`.

        Raises:
            ModuleNotFoundError: pandas is not installed.

        Examples:
            >>> fused.to_pandas(timeline, channels={"pose": streams["pose"].channels})
        """
        from robocache._align import frames

        return frames.to_pandas("Fused.to_pandas", frames.of_fused("Fused.to_pandas", self, times, channels))

    def to_arrow(self, times: Any, *, channels: Mapping[str | int, Sequence[str]] | None = None) -> Any:
        """The result as a PyArrow table with the columns of `to_pandas`.

        Args:
            times: The targets of the call: its `Timeline`, or its times [T] or [B, T].
            channels: By stream, a name for each of its channels.

        Returns:
            A `pyarrow.Table`.

        Raises:
            ModuleNotFoundError: PyArrow is not installed.
        """
        from robocache._align import frames

        return frames.to_arrow("Fused.to_arrow", frames.of_fused("Fused.to_arrow", self, times, channels))

    def __repr__(self) -> str:
        parts = [f"{name} {shape_of(part)}" for name, part in zip(self._fields, self, strict=True) if name != "columns"]
        columns = ", ".join(f"{name!r}: {c.start}..{c.stop}" for name, c in self.columns.items())
        return f"Fused({', '.join(parts)}, columns {{{columns}}})"
