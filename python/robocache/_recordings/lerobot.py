"""LeRobot data sets, v3.0 (many episodes to a file) and v2.1 (a file for each), through pyarrow.

Every feature is a stream of its name, except `timestamp`, `frame_index`, `episode_index` and `index`, which give times
and episodes. A sample's time is rint(frame_index * 1e9 / fps) nanoseconds from the episode's
start where the float32 `timestamp` agrees with it within 0.1 ms, otherwise the timestamp itself; `notes` say where.

A video is a stream of references, values [N, 1] int64: frames of the episode's metadata["file"], at the exact times of
the data. stream.samples[i] decodes that of sample i (robocache/_recordings/video.py), with PyAV or torchcodec.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache._core import FileError
from robocache._recordings.source import (
    BATCH_BYTES,
    DTYPES,
    Array,
    Batch,
    Content,
    Part,
    Source,
    StreamInfo,
    clipped,
    most_unpacked,
)
from robocache._recordings.stamps import FileStamp, stamps_of
from robocache._recordings.words import need

TOLERANCE = 1e-4  # seconds: LeRobot itself accepts this much between a timestamp and its frame
BOOKKEEPING = ("timestamp", "frame_index", "episode_index", "index")
LARGEST_SAMPLE = 1 << 31  # values
NESTED = ("list", "fixed_size_list", "large_list", "extension")
METADATA_LIMIT = 256 << 20  # bytes of a JSON file
METADATA_ROWS, DATA_ROWS = 4, 64  # of a Parquet file, for each of its bytes
FIELD = re.compile(r"\{(\w+)(?::0?(\d)d)?\}")


def load_json(path: Path) -> Any:
    try:
        if path.stat().st_size > METADATA_LIMIT:
            raise FileError(f"{path}: {path.stat().st_size} bytes are too many for a file of metadata")
        return json.loads(path.read_bytes())
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path}: not JSON: {error}") from None


def load_lines(path: Path) -> list[dict[str, Any]]:
    try:
        if path.stat().st_size > METADATA_LIMIT:
            raise FileError(f"{path}: {path.stat().st_size} bytes are too many for a file of metadata")
        with path.open("rb") as file:
            return [json.loads(line) for line in file if line.strip()]
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path}: not JSON lines: {error}") from None


def fill(where: Path, template: str, **numbers: Any) -> Path:
    """A path template of info.json, filled in. Only plain fields, and only paths inside the data set."""

    def put(match: re.Match[str]) -> str:
        name, width = match.groups()
        if name not in numbers:
            known = ", ".join(numbers)
            raise FileError(f'{where}/meta/info.json: the path "{template}" asks for "{name}"; known: {known}')
        if width and not isinstance(numbers[name], int):
            raise FileError(f"{where}/meta: {name} of an episode is {numbers[name]!r:.40}; expected a number")
        return f"{numbers[name]:0{int(width)}d}" if width else str(numbers[name])

    relative = PurePosixPath(FIELD.sub(put, template))
    if relative.is_absolute() or ".." in relative.parts or "{" in FIELD.sub("", template):
        raise FileError(f'{where}/meta/info.json: the path "{template}" does not lead to a file of the data set')
    return where / relative


def channel_names(feature: Mapping[str, Any], size: int) -> tuple[str, ...]:
    """The channel names. `names` may be a list, {"motors": [...]}, or missing."""
    names = feature.get("names")
    if isinstance(names, Mapping):
        names = [name for group in names.values() if isinstance(group, list) for name in group]
    if isinstance(names, list) and len(names) == size and len(set(map(str, names))) == size:
        return tuple(map(str, names))
    return ()


class LeRobotSource(Source):
    def __init__(self, path: Path, time: str) -> None:
        try:
            import pyarrow.parquet
        except ModuleNotFoundError:
            raise need("pyarrow", "lerobot", f"{path}: a LeRobot data set") from None
        self._parquet = pyarrow.parquet
        self.root, self.path, self.time, self.notes = path, str(path), time, []
        if time in ("log", "publish"):
            raise ValueError(f'{path}: a LeRobot data set has one time for each sample; time must be "auto" or "stamp"')
        self.info = load_json(path / "meta" / "info.json")
        version = self.info.get("codebase_version") if isinstance(self.info, dict) else None
        if version not in ("v3.0", "v2.1", "v2.0"):
            raise FileError(
                f"{path}: LeRobot version {version!r}; v3.0 and v2.1 are read"
                + ("; LeRobot's own converters bring older ones there" if str(version).startswith("v1") else "")
            )
        self.format = f"LeRobot {version}"
        self.old = version != "v3.0"
        try:
            self.fps = float(self.info["fps"])
            self.features = {str(name): dict(feature) for name, feature in self.info["features"].items()}
            for feature in self.features.values():
                feature["shape"] = tuple(int(n) for n in feature["shape"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FileError(f"{path}/meta/info.json: no fps or no features as LeRobot writes them: {error!r}") from None
        if not 0 < self.fps < 1e6:
            raise FileError(f"{path}/meta/info.json: fps is {self.fps}; expected a positive number")
        try:
            self._understand()
        except (TypeError, ValueError, KeyError, OverflowError, AttributeError) as error:
            raise FileError(f"{path}/meta: not as LeRobot writes it: {error!r:.200}") from None

    def _understand(self) -> None:
        path = self.root
        meta = sorted((path / "meta").rglob("*.json*")) + sorted((path / "meta").rglob("*.parquet"))
        self.stamps = stamps_of(meta)
        for name, feature in self.features.items():
            if min(feature["shape"], default=0) < 0 or math.prod(feature["shape"]) > LARGEST_SAMPLE:
                raise ValueError(f'the shape of feature "{name}"')
        self.videos = [name for name, feature in self.features.items() if feature["dtype"] == "video"]
        self.tasks = self._tasks()
        self.rows = self._episodes()
        self._places = {int(row["episode_index"]): k for k, row in enumerate(self.rows)}
        self._infos = {info.name: info for info in map(self._stream, self.features) if info is not None}
        data = [self._data_file(k) for k in range(len(self.rows))]
        video = [self._video_file(name, k) for name in self.videos for k in range(len(self.rows))]
        self.files = tuple(dict.fromkeys([*meta, *data, *video]))
        self._parts = [
            Part(
                f"episode-{int(row['episode_index'])}",
                "; ".join(map(str, row.get("tasks") or [])) or None,
                0,
                int(np.rint(max(row["length"] - 1, 0) * 1e9 / self.fps)),
            )
            for row in self.rows
        ]

    # ---- What it holds

    def _read(self, path: Path, columns: list[str] | None = None) -> Any:
        """A table of metadata. All of it is kept in memory, so rows are limited by the file's size."""
        try:
            check_size(path, self._parquet.read_metadata(path), METADATA_ROWS)
            return self._parquet.read_table(path, columns=columns)
        except FileError:
            raise
        except Exception as error:  # pyarrow raises many types for damaged files
            raise FileError(f"{path}: cannot be read as Parquet: {error}") from None

    def _tasks(self) -> dict[int, str]:
        if self.old:
            lines = load_lines(self.root / "meta" / "tasks.jsonl")
            return {int(line["task_index"]): str(line["task"]) for line in lines if "task_index" in line}
        path = self.root / "meta" / "tasks.parquet"
        if not path.is_file():
            return {}
        table = self._read(path).to_pydict()
        names = next((table[key] for key in ("task", "__index_level_0__") if key in table), None)
        if names is None or "task_index" not in table:
            raise FileError(f"{path}: no columns task and task_index; it has {', '.join(table)}")
        return {int(number): str(name) for number, name in zip(table["task_index"], names, strict=True)}

    def _episodes(self) -> list[dict[str, Any]]:
        """The metadata of each episode, in order."""
        if self.old:
            rows = load_lines(self.root / "meta" / "episodes.jsonl")
        else:
            wanted = ["episode_index", "tasks", "length", "data/chunk_index", "data/file_index"]
            for name in self.videos:
                wanted += [f"videos/{name}/{key}" for key in ("chunk_index", "file_index", "from_timestamp")]
            rows = []
            for path in sorted((self.root / "meta" / "episodes").rglob("*.parquet")):
                try:
                    there = self._parquet.read_schema(path).names
                except Exception as error:
                    raise FileError(f"{path}: cannot be read as Parquet: {error}") from None
                absent = [name for name in wanted if name not in there]
                if absent:
                    raise FileError(f"{path}: the column {absent[0]} is missing")
                rows += self._read(path, wanted).to_pylist()
        try:
            rows.sort(key=lambda row: row["episode_index"])
            for row in rows:
                row["length"] = int(row["length"])
        except (KeyError, TypeError, ValueError) as error:
            raise FileError(f"{self.root}/meta: an episode without episode_index or length: {error!r}") from None
        return rows

    def _chunk(self, episode: int) -> int:
        return int(episode) // max(int(self.info.get("chunks_size", 1000)), 1)

    def _data_file(self, k: int) -> Path:
        row = self.rows[k]
        if self.old:
            default = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
            number = int(row["episode_index"])
            template = str(self.info.get("data_path", default))
            return fill(self.root, template, episode_chunk=self._chunk(number), episode_index=number)
        default = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
        template = str(self.info.get("data_path", default))
        return fill(self.root, template, chunk_index=row["data/chunk_index"], file_index=row["data/file_index"])

    def _video_file(self, name: str, k: int) -> Path:
        row = self.rows[k]
        if self.old:
            default = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
            number = int(row["episode_index"])
            numbers = {"episode_chunk": self._chunk(number), "episode_index": number}
        else:
            default = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
            numbers = {key: row[f"videos/{name}/{key}"] for key in ("chunk_index", "file_index")}
        place = fill(self.root, str(self.info.get("video_path", default)), video_key=name, **numbers)
        return Path(os.path.abspath(place))  # a cache stores it, and may be opened from any directory

    def _stream(self, name: str) -> StreamInfo | None:
        feature = self.features[name]
        kind, shape = feature["dtype"], feature["shape"]
        if name in BOOKKEEPING or (name == "task_index" and len(self.tasks) < 2):
            return None
        if kind == "video":
            metadata = {"kind": "video", "fps": f"{self.fps:g}", "shape": json.dumps(shape)}
            return StreamInfo(name, "lerobot/video", np.dtype(np.int64), (1,), ("frame",), "hold", False, metadata)
        if kind == "image":
            metadata = {"kind": "image", "encoding": "file", "shape": json.dumps(shape)}
            return StreamInfo(name, "lerobot/image", np.dtype(np.uint8), (), (), "hold", True, metadata)
        if kind not in DTYPES:
            self.notes.append(f'feature "{name}" is of type {kind!s:.40}, which is no number: left out')
            return None
        dtype = np.dtype(kind)
        method, channels = "hold" if dtype.kind in "biu" else None, channel_names(feature, int(np.prod(shape)))
        return StreamInfo(name, f"lerobot/{kind}", dtype, shape, channels, method, False, {})

    def parts(self) -> Sequence[Part]:
        return self._parts

    def stamped(self) -> tuple[FileStamp, ...]:
        meta = {stamp.path for stamp in self.stamps}
        return (*self.stamps, *stamps_of(file for file in self.files if str(file) not in meta))

    def contents(self, episode: int) -> Mapping[str, Content]:
        length = int(self.rows[episode]["length"])
        return {name: Content(name, info.type, length) for name, info in self._infos.items()}

    # ---- Samples

    def batches(
        self,
        streams: Collection[str] | None = None,
        episode: int | None = None,
        start: int | None = None,
        end: int | None = None,
    ) -> Iterator[Batch]:
        wanted = [name for name in self._infos if streams is None or name in streams]
        files = [self._data_file(k) for k in range(len(self.rows))] if episode is None else [self._data_file(episode)]
        only = None if episode is None else int(self.rows[episode]["episode_index"])
        for path in dict.fromkeys(files):
            for table in self._tables(path, wanted, only):
                rows = self._column(path, table, "episode_index", "iu")
                bounds = [0, *(np.flatnonzero(np.diff(rows)) + 1).tolist(), len(rows)]
                for first, last in itertools.pairwise(bounds):  # the episodes in this piece
                    number = int(rows[first]) if last > first else None
                    if number is None or number not in self._places or (only is not None and number != only):
                        continue
                    found = self._piece(self._places[number], table.slice(first, last - first), wanted)
                    yield from clipped(found, start, end)

    def _column(self, path: Path, table: Any, name: str, kinds: str) -> Array:
        column = table[name]
        values = np.asarray(column)
        if values.dtype.kind not in kinds or column.null_count:
            raise FileError(
                f"{path}: the column {name} holds {column.type} with {column.null_count} nulls; not numbers"
            )
        return values

    def _tables(self, path: Path, wanted: Sequence[str], only: int | None) -> Iterator[Any]:
        """A file's rows in pieces. For one episode, row groups that cannot contain it are skipped."""
        columns = [name for name in wanted if name not in self.videos]
        needed = ["timestamp", "frame_index", "episode_index"]
        try:
            file = self._parquet.ParquetFile(path)
            check_size(path, file.metadata, DATA_ROWS)
            absent = [name for name in (*needed, *columns) if name not in file.schema_arrow.names]
            if absent:
                raise FileError(f"{path}: the column {absent[0]}, which meta/info.json names, is missing")
            groups = list(range(file.metadata.num_row_groups))
            if only is not None:
                groups = [k for k in groups if may_hold(file.metadata.row_group(k), "episode_index", only)]
            infos = [self._infos[name] for name in columns]
            width = 24 + sum(info.dtype.itemsize * int(np.prod(info.shape)) for info in infos)
            count = 64 if any(info.ragged for info in infos) else max(1, BATCH_BYTES // width)
            import pyarrow as pa

            for piece in file.iter_batches(count, row_groups=groups, columns=[*columns, *needed]):
                yield pa.Table.from_batches([piece])
        except OSError as error:
            raise error if isinstance(error, FileError) else FileError(f"{path}: {error}") from None
        except Exception as error:
            raise FileError(f"{path}: cannot be read as Parquet: {error}") from None

    def _piece(self, k: int, table: Any, wanted: Sequence[str]) -> Iterator[Batch]:
        frames = self._column(self._data_file(k), table, "frame_index", "iu").astype(np.int64)
        stamps = self._column(self._data_file(k), table, "timestamp", "f").astype(np.float64)
        times = self._times(k, frames, stamps)
        for name in wanted:
            info, lengths = self._infos[name], None
            if name in self.videos:
                info = info._replace(metadata=info.metadata | {"file": str(self._video_file(name, k))})
                offset = 0.0 if self.old else float(self.rows[k][f"videos/{name}/from_timestamp"])
                values: Array = np.rint((offset + stamps) * self.fps).astype(np.int64)[:, None]
            elif name == "task_index":
                info = info._replace(metadata=info.metadata | self._several_tasks(k))
                values = self._numbers(name, info, table[name])
            elif info.ragged:
                values, lengths = pictures(self.root, name, table[name])
            else:
                values = self._numbers(name, info, table[name])
            yield Batch(k, name, values, times, times, lengths, info)

    def _several_tasks(self, k: int) -> dict[str, str]:
        """The texts of an episode's tasks by their numbers, if it has several: metadata of its task_index."""
        texts = list(map(str, self.rows[k].get("tasks") or []))
        if len(texts) < 2:
            return {}
        return {"tasks": json.dumps({number: text for number, text in self.tasks.items() if text in texts})}

    def _times(self, k: int, frames: NDArray[np.int64], stamps: NDArray[np.float64]) -> NDArray[np.int64]:
        exact = frames / self.fps
        # float32 seconds: half a step of float32, added to LeRobot's own tolerance
        agree = np.abs(stamps - exact) <= TOLERANCE + np.abs(exact) * 2.0**-24
        if agree.all():
            return np.rint(frames * 1e9 / self.fps).astype(np.int64)
        self.note("timestamps differ from frame_index / fps by more than 0.1 ms: taken as they are, in float32's steps")
        if not np.isfinite(stamps).all() or np.abs(stamps).max() > 2**31:
            raise FileError(f"{self._data_file(k)}: a timestamp of episode {k} is not finite or beyond 2^31 s")
        return np.rint(stamps * 1e9).astype(np.int64)

    def _numbers(self, name: str, info: StreamInfo, column: Any) -> Array:
        count, size = len(column), int(np.prod(info.shape, dtype=np.int64))
        flat = column.combine_chunks()
        while str(flat.type).startswith(NESTED):
            flat = flat.storage if str(flat.type).startswith("extension") else flat.flatten()
        values = np.asarray(flat)
        if values.dtype.kind not in "biuf" or values.size != count * size:
            raise FileError(
                f'{self.root}: feature "{name}" is {info.dtype} {list(info.shape)} in meta/info.json, but {count} rows '
                f"of the data hold {values.size} values of type {values.dtype}"
            )
        return values.astype(info.dtype, copy=False).reshape(count, *info.shape)

    def samples(self, info: StreamInfo, values: Array) -> Sequence[Any] | None:
        if info.metadata.get("kind") != "video":
            return None
        from robocache._recordings.video import Frames

        return Frames(info, values)


def check_size(path: Path, metadata: Any, rows_a_byte: int) -> None:
    """Refuses a file that claims too many rows for its size: equal values take almost no bytes in Parquet."""
    size = path.stat().st_size
    if metadata.num_rows > rows_a_byte * size + 1000:
        raise FileError(f"{path}: claims {metadata.num_rows} rows in a file of {size} bytes; refused")
    unpacked = sum(metadata.row_group(k).total_byte_size for k in range(metadata.num_row_groups))
    if unpacked > most_unpacked(size):
        raise FileError(f"{path}: claims to unpack from {size} bytes to {unpacked}; refused")


def may_hold(group: Any, column: str, value: int) -> bool:
    for k in range(group.num_columns):
        chunk = group.column(k)
        if chunk.path_in_schema == column and chunk.statistics is not None and chunk.statistics.has_min_max:
            return bool(chunk.statistics.min <= value <= chunk.statistics.max)
    return True


def pictures(root: Path, name: str, column: Any) -> tuple[Array, NDArray[np.int64]]:
    """Encoded images inside the Parquet file, as one array of bytes."""
    pieces = []
    for row in column.to_pylist():
        inside = row.get("bytes") if isinstance(row, dict) else None
        if not isinstance(inside, bytes):
            raise FileError(f'{root}: feature "{name}": an image without its bytes in the Parquet file')
        pieces.append(np.frombuffer(inside, np.uint8))
    lengths = np.array([len(piece) for piece in pieces], np.int64)
    return np.concatenate(pieces) if pieces else np.zeros(0, np.uint8), lengths
