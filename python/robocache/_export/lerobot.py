"""Writes LeRobot v3.0 data sets that LeRobot's own library opens (`make judge` tests that).

    with LeRobotWriter("set", fps=50, features={"action": Feature("float32", (7,), names)}) as writer:
        writer.add({"action": values}, task="pick", videos={"observation.images.wrist": frames})

Data files hold episodes up to 100 MB, a row group for each; a video has a file for each episode. Everything is written
beside the target, synced to the disk and renamed at the end: a data set is whole, or not there.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from robocache._core import FileError
from robocache._export.new_folder import NewFolder, told
from robocache._recordings.source import Array
from robocache._recordings.words import need

FILES_TO_A_CHUNK = 1000
DATA_FILE = 100 << 20  # bytes
VIDEO_MEGABYTES = 200
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
CODECS = ("libx264", "libopenh264", "libsvtav1", "mpeg4")  # the first one that this PyAV has is used
BOOKKEEPING = ("timestamp", "frame_index", "episode_index", "index", "task_index")  # features of every data set
STILLS = 100  # frames of a video, evenly spaced, that its statistics are computed from
# The most that one call into NumPy or Arrow works on: Python handles Ctrl-C only between calls.
NUMBERS_AT_ONCE = 1 << 22
BYTES_AT_ONCE = 32 << 20
EPISODES_AT_ONCE = 100


class Feature(NamedTuple):
    dtype: str  # a NumPy dtype, or "video"
    shape: tuple[int, ...]  # of a video: height, width, 3
    names: tuple[str, ...] = ()


class LeRobotWriter:
    def __init__(
        self, root: str | os.PathLike[str], *, fps: float, features: Mapping[str, Feature], robot: str | None = None
    ) -> None:
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ModuleNotFoundError:
            raise need("pyarrow", "lerobot", "writing a LeRobot data set") from None
        self.pa, self.pq = pa, pq
        self.target = Path(root)
        self.folder = NewFolder(self.target)
        self.root = self.folder.path
        self.fps, self.features, self.robot = fps, dict(features), robot
        self.videos = [name for name, feature in self.features.items() if feature.dtype == "video"]
        self.tasks: dict[str, int] = {}
        self.episodes: list[dict[str, Any]] = []
        self.frames = 0
        self.file, self.written = 0, 0
        self.writer: Any = None
        self.codecs: dict[str, tuple[str, str]] = {}

    def __enter__(self) -> LeRobotWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with told(self.target):
                if error is not None:
                    raise error
                self.close()
        except BaseException:
            with suppress(Exception):  # if the file could not be written
                self._end_file()
            self.folder.discard()
            raise

    def add(self, values: Mapping[str, Array], task: str, videos: Mapping[str, Iterable[Array]] | None = None) -> None:
        """Adds an episode: [T, ...] of every feature, and an iterable of T frames uint8 [H, W, 3] of every video. If it
        fails, such as for a frame that cannot be decoded, the episode is left out, and others may follow."""
        given = [name for name in self.features if name not in self.videos]
        lengths = {len(values[name]) for name in given}
        if len(lengths) != 1:
            raise ValueError(f"LeRobotWriter.add: the features have {sorted(lengths)} frames; they must have as many")
        (length,), episode = lengths, len(self.episodes)
        if length == 0:
            raise ValueError(f"LeRobotWriter.add: episode {episode} has no frames")
        number = self.tasks.get(task, len(self.tasks))
        frames = np.arange(length, dtype=np.int64)
        extra: dict[str, Array] = {
            "timestamp": (frames / self.fps).astype(np.float32),
            "frame_index": frames,
            "episode_index": np.full(length, episode, np.int64),
            "index": self.frames + frames,
            "task_index": np.full(length, number, np.int64),
        }
        row: dict[str, Any] = {"episode_index": episode, "tasks": [task], "length": length}
        place = divmod(self.file, FILES_TO_A_CHUNK)
        row |= {"data/chunk_index": place[0], "data/file_index": place[1]}
        row |= {"dataset_from_index": self.frames, "dataset_to_index": self.frames + length}
        stats: dict[str, dict[str, Any]] = {}
        columns = {}
        for name in given:
            feature = self.features[name]
            array = np.ascontiguousarray(values[name]).astype(feature.dtype, copy=False).reshape(length, *feature.shape)
            columns[name] = self._column(array)
            real = np.ravel(values.get(f"valid.{name}", np.ones(length, bool)))  # rows that are not valid do not count
            stats[name] = statistics(array.reshape(length, *feature.shape)[real])
        for name, array in extra.items():
            columns[name] = self.pa.array(array)
            stats[name] = statistics(array[:, None])
        for name in self.videos:
            chunk, file = divmod(episode, FILES_TO_A_CHUNK)
            path = self.root / f"videos/{name}/chunk-{chunk:03d}/file-{file:03d}.mp4"
            path.parent.mkdir(parents=True, exist_ok=True)
            shape = self.features[name].shape
            try:
                count, codec, stats[name] = encode(path, (videos or {})[name], length, self.fps, shape)
                if count != length:
                    raise ValueError(f'LeRobotWriter.add: video "{name}" has {count} frames; the data has {length}')
            except BaseException:
                for other in self.videos:
                    (self.root / f"videos/{other}/chunk-{chunk:03d}/file-{file:03d}.mp4").unlink(missing_ok=True)
                raise
            self.codecs[name] = codec
            row |= {f"videos/{name}/chunk_index": chunk, f"videos/{name}/file_index": file}
            row |= {f"videos/{name}/from_timestamp": 0.0, f"videos/{name}/to_timestamp": length / self.fps}
        self._write(self.pa.table(columns))
        self.tasks[task] = number
        row["stats"] = stats
        self.episodes.append(row)
        self.frames += length

    def _column(self, array: Array) -> Any:
        """A column of numbers; for vectors, lists of fixed size; for more dimensions, nested lists."""
        pa = self.pa
        if array.shape[1:] in ((), (1,)):
            return pa.array(array.reshape(-1))
        column = pa.array(array.reshape(-1))
        for size in reversed(array.shape[1:]):
            column = pa.FixedSizeListArray.from_arrays(column, size)
        return column if array.ndim == 2 else column.cast(nested(pa, column.type))

    def _write(self, table: Any) -> None:
        if self.writer is None:
            chunk, file = divmod(self.file, FILES_TO_A_CHUNK)
            path = self.root / f"data/chunk-{chunk:03d}/file-{file:03d}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            self.writer = self.pq.ParquetWriter(path, table.schema)
        rows = max(1, BYTES_AT_ONCE * len(table) // max(table.nbytes, 1))
        for first in range(0, len(table), rows):
            self.writer.write_table(table.slice(first, rows))
        self.written += table.nbytes
        if self.written >= DATA_FILE:
            self._end_file()

    def _end_file(self) -> None:
        if self.writer is not None:
            self.writer.close()
            self.file, self.writer, self.written = self.file + 1, None, 0

    def close(self) -> None:
        self._end_file()
        pa, pq = self.pa, self.pq
        meta = self.root / "meta"
        (meta / "episodes/chunk-000").mkdir(parents=True)
        stats = [row.pop("stats") for row in self.episodes]
        rows = [
            row
            | {f"stats/{name}/{key}": value for name, found in of.items() for key, value in found.items()}
            | {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}
            for row, of in zip(self.episodes, stats, strict=True)
        ]
        if rows:
            some = pa.Table.from_pylist(rows[:EPISODES_AT_ONCE])
            with pq.ParquetWriter(meta / "episodes/chunk-000/file-000.parquet", some.schema) as writer:
                writer.write_table(some)
                for first in range(EPISODES_AT_ONCE, len(rows), EPISODES_AT_ONCE):
                    more = rows[first : first + EPISODES_AT_ONCE]
                    writer.write_table(pa.Table.from_pylist(more, schema=some.schema))
        (meta / "stats.json").write_text(json.dumps(gathered(stats), indent=4))
        self._write_tasks(meta / "tasks.parquet")
        (meta / "info.json").write_text(json.dumps(self._info(), indent=4))
        self.folder.publish()

    def _write_tasks(self, path: Path) -> None:
        """Writes the tasks. LeRobot reads the file with pandas, and expects the tasks as the index."""
        columns = [
            {"name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64"},
            {"name": "task", "field_name": "task", "pandas_type": "unicode", "numpy_type": "object"},
        ]
        index = {"name": None, "field_name": None, "pandas_type": "unicode", "numpy_type": "object", "metadata": None}
        described = {"index_columns": ["task"], "column_indexes": [index], "pandas_version": "2.0.0"}
        described["columns"] = [column | {"metadata": None} for column in columns]
        table = self.pa.table({"task_index": list(self.tasks.values()), "task": list(self.tasks)})
        self.pq.write_table(table.replace_schema_metadata({"pandas": json.dumps(described)}), path)

    def _info(self) -> dict[str, Any]:
        features: dict[str, Any] = {}
        for name, feature in self.features.items():
            features[name] = {
                "dtype": feature.dtype,
                "shape": list(feature.shape),
                "names": list(feature.names) or None,
            }
            if feature.dtype == "video":
                codec, pixels = self.codecs.get(name, ("h264", "yuv420p"))
                features[name]["names"] = ["height", "width", "channels"]
                features[name]["info"] = {
                    "video.height": feature.shape[0],
                    "video.width": feature.shape[1],
                    "video.codec": codec,
                    "video.pix_fmt": pixels,
                    "video.is_depth_map": False,
                    "video.fps": self._rate,
                    "video.channels": 3,
                    "has_audio": False,
                }
            elif len(feature.shape) == 0:
                features[name]["shape"] = [1]
        for name in BOOKKEEPING:
            dtype = "float32" if name == "timestamp" else "int64"
            features[name] = {"dtype": dtype, "shape": [1], "names": None}
        return {
            "codebase_version": "v3.0",
            "robot_type": self.robot,
            "total_episodes": len(self.episodes),
            "total_frames": self.frames,
            "total_tasks": len(self.tasks),
            "chunks_size": FILES_TO_A_CHUNK,
            "data_files_size_in_mb": DATA_FILE >> 20,
            "video_files_size_in_mb": VIDEO_MEGABYTES,
            "fps": self._rate,
            "splits": {"train": f"0:{len(self.episodes)}"},
            "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
            "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
            if self.videos
            else None,
            "features": features,
        }

    @property
    def _rate(self) -> float | int:
        return int(self.fps) if float(self.fps).is_integer() else self.fps


def nested(pa: Any, kind: Any) -> Any:
    return pa.list_(nested(pa, kind.value_type)) if pa.types.is_fixed_size_list(kind) else kind


def statistics(array: Array) -> dict[str, Any]:
    """LeRobot's statistics of the finite rows of [T, ...]; zeros if there are none. A single NaN would spoil them."""
    rows = array.reshape(len(array), math.prod(array.shape[1:]))
    width = max(1, NUMBERS_AT_ONCE // max(len(rows), 1))
    blocks = [slice(first, first + width) for first in range(0, max(1, rows.shape[1]), width)]
    finite = np.ones(len(rows), bool)
    for block in blocks:
        finite &= np.isfinite(rows[:, block]).all(axis=1)
    count = int(finite.sum())
    found: dict[str, list[Array]] = {}
    for block in blocks:
        wide = rows[finite, block].astype(np.float64) if count else np.zeros((1, rows[:, block].shape[1]))
        quantiles = zip(QUANTILES, np.quantile(wide, list(QUANTILES.values()), axis=0), strict=True)
        plain = ((name, getattr(wide, name)(axis=0)) for name in ("min", "max", "mean", "std"))
        for name, values in (*plain, *quantiles):
            found.setdefault(name, []).append(values)
    shape = array.shape[1:]
    made = {name: np.concatenate(values).reshape(shape).tolist() for name, values in found.items()}
    return {**made, "count": [count]}


def gathered(stats: list[dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """The statistics of all episodes. As in LeRobot, quantiles are means over the episodes, weighted by frames."""
    made: dict[str, dict[str, Any]] = {}
    for name in stats[0] if stats else {}:
        rows = [of[name] for of in stats if of[name]["count"][0]] or [of[name] for of in stats]
        count = np.array([row["count"][0] for row in rows], np.float64)
        share = count / count.sum() if count.any() else np.full(len(rows), 1 / len(rows))

        def mixed(key: str, rows: list[dict[str, Any]] = rows, share: Array = share) -> Array:
            return np.tensordot(share, np.array([row[key] for row in rows]), axes=1)

        mean = mixed("mean")
        spread = np.array([np.square(row["std"]) + np.square(np.subtract(row["mean"], mean)) for row in rows])
        made[name] = {
            "min": np.min([row["min"] for row in rows], axis=0).tolist(),
            "max": np.max([row["max"] for row in rows], axis=0).tolist(),
            "mean": mean.tolist(),
            "std": np.sqrt(np.tensordot(share, spread, axes=1)).tolist(),
            "count": [int(count.sum())],
            **{key: mixed(key).tolist() for key in QUANTILES},
        }
    return made


def encode(
    path: Path, frames: Iterable[Array], length: int, fps: float, shape: tuple[int, ...]
) -> tuple[int, tuple[str, str], dict[str, Any]]:
    """Encodes frames. Returns their number, codec, pixel format, and statistics of some frames by channel in 0..1."""
    try:
        import av
    except ModuleNotFoundError:
        raise need("av", "video", "writing a video") from None
    from fractions import Fraction

    name = next((codec for codec in CODECS if codec in av.codecs_available), None)
    if name is None:
        raise FileError(f"{path}: this PyAV has no encoder of {', '.join(CODECS)}")
    rate = Fraction(fps).limit_denominator(100_000)
    count, seen = 0, list[Array]()
    stills = set(np.linspace(0, length - 1, min(length, STILLS)).astype(int).tolist())
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(name, rate=rate)
        stream.height, stream.width, stream.pix_fmt = shape[0], shape[1], "yuv420p"
        stream.options = {"g": "2", "crf": "20"} if name != "mpeg4" else {"g": "2", "q:v": "3"}
        for image in frames:
            if image.shape != shape or image.dtype != np.uint8:
                raise ValueError(f"{path}: a frame is {image.dtype} {list(image.shape)}; the first was {list(shape)}")
            if count in stills:
                seen.append(image[::4, ::4].reshape(-1, 3).astype(np.float64) / 255)
            for packet in stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")):
                container.mux(packet)
            count += 1
        for packet in stream.encode():
            container.mux(packet)
    pixels = np.concatenate(seen) if seen else np.zeros((1, 3))
    found = statistics(pixels)
    by_channel = {key: [[[value]] for value in found[key]] for key in found if key != "count"}
    kinds = {"libx264": "h264", "libopenh264": "h264", "libsvtav1": "av1", "mpeg4": "mpeg4"}
    return count, (kinds[name], "yuv420p"), by_channel | {"count": [count]}
