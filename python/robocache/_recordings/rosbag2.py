"""rosbag2 recordings: a directory with metadata.yaml and one file or several, or a .db3 file alone.

Files are MCAP or SQLite; a file may be compressed as a whole, or message by message, which the engine unpacks (zstd).
SQLite bags before Iron carry no message definitions: those come from `msg_path`, else from the type stores of the
rosbags package; `lacking` names the types that nobody defines.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache._core import FileError
from robocache._recordings.mcap import McapSource
from robocache._recordings.open import sniff
from robocache._recordings.rosbag2_definitions import Definitions
from robocache._recordings.rosbag2_files import temporary_folder, unpack_file
from robocache._recordings.rosbag2_sqlite import SqliteBag
from robocache._recordings.source import Batch, Content, Part, Source, StreamInfo
from robocache._recordings.stamps import stamps_of
from robocache._recordings.streams import widened

METADATA_LIMIT = 64 << 20  # bytes of metadata.yaml


def open_rosbag2(place: Path, time: str, msg_path: Sequence[Path]) -> Source:
    if not place.is_dir():
        return BagSource(place, [place], {}, time, msg_path)
    found = load_metadata(place / "metadata.yaml")
    files = []
    named = found.get("relative_file_paths") or []
    if not isinstance(named, list):
        raise FileError(f"{place}/metadata.yaml: relative_file_paths is {named!r:.40}; expected a list")
    for name in named:
        if not isinstance(name, str):
            raise FileError(f"{place}/metadata.yaml: relative_file_paths holds {name!r:.40}; expected names of files")
        relative = PurePosixPath(name)
        if relative.is_absolute() or ".." in relative.parts:
            raise FileError(f'{place}/metadata.yaml: the file "{name}" lies outside the bag')
        # Bags from before ROS 2 Eloquent name their files with the directory.
        candidates = [place / relative, place / relative.name]
        try:
            files.append(next((file for file in candidates if file.is_file()), candidates[0]))
        except OSError as error:  # such as a name that is too long
            raise FileError(f'{place}/metadata.yaml: the file "{name:.60}": {error.strerror}') from None
    if not files:
        raise FileError(f"{place}/metadata.yaml: no files are named in relative_file_paths")
    for file in files:
        if not file.is_file():
            raise FileError(f"{file}: the bag's metadata.yaml names this file, and it is not there")
    return BagSource(place, files, found, time, msg_path)


def load_metadata(path: Path) -> dict[str, Any]:
    try:
        size = path.stat().st_size
        if size > METADATA_LIMIT:
            raise FileError(f"{path}: {size} bytes are too many for a file of metadata")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise error if isinstance(error, FileError) else FileError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise FileError(f"{path}: not UTF-8: {error}") from None
    try:
        found = read_yaml(text).get("rosbag2_bagfile_information")
    except ModuleNotFoundError:
        raise
    except Exception as error:  # YAML libraries raise types of their own
        raise FileError(f"{path}: not YAML: {error}") from None
    if not isinstance(found, dict):
        raise FileError(f"{path}: no rosbag2_bagfile_information; it is not rosbag2 metadata")
    version = found.get("version")
    if not isinstance(version, int) or not 1 <= version <= 9:
        raise FileError(f"{path}: rosbag2 metadata of version {version}; 1 to 9 are read")
    return found


def read_yaml(text: str) -> Any:
    """Parses a document without aliases. rosbag2 writes none, and a few of them can expand to gigabytes."""
    try:
        import yaml
    except ModuleNotFoundError:
        pass
    else:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # by libyaml, 10 times as fast
        refuse_aliases(yaml.parse(text, Loader=loader))
        return yaml.load(text, Loader=loader)
    try:
        from ruamel.yaml import YAML
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "rosbag2's metadata.yaml needs PyYAML or ruamel.yaml, and has neither: pip install 'robocache[rosbag2]'",
            name="yaml",
        ) from None
    refuse_aliases(YAML(typ="safe", pure=True).parse(text))
    return YAML(typ="safe", pure=True).load(text)


def refuse_aliases(events: Iterable[Any]) -> None:
    if any(type(event).__name__ == "AliasEvent" for event in events):
        raise ValueError("it has aliases (*name), which rosbag2 does not write")


class BagSource(Source):
    """The files of a bag, one after the other, as one episode."""

    def __init__(
        self, place: Path, files: Sequence[Path], found: Mapping[str, Any], time: str, msg_path: Sequence[Path]
    ) -> None:
        self.path, self.time, self.notes = str(place), time, []
        self.name = place.stem
        mode = str(found.get("compression_mode") or "").upper()
        packing = str(found.get("compression_format") or "").lower()
        if mode not in ("", "NONE", "FILE", "MESSAGE"):
            raise FileError(f"{place}/metadata.yaml: compression_mode is {mode}; FILE and MESSAGE are read")
        if mode in ("FILE", "MESSAGE") and packing != "zstd":
            raise FileError(f'{place}/metadata.yaml: compression_format is "{packing}"; zstd is read')
        self._folder: Path | None = None
        before = stamps_of([*([place / "metadata.yaml"] if found else []), *files])
        opened = [self._plain(file) for file in files]
        kinds = [sniff(file) for file in opened]
        self.bags: list[McapSource | SqliteBag] = []
        definitions = Definitions(msg_path)
        for file, kind in zip(opened, kinds, strict=True):
            if kind == "SQLite":
                self.bags.append(SqliteBag(file, time, definitions))
            elif kind != "MCAP":
                raise FileError(f"{file}: {kind}, which is not a rosbag2 file")
            else:
                self.bags.append(McapSource(str(file), time))
        stores = sorted({"SQLite" if kind == "SQLite" else "MCAP" for kind in kinds})
        self.format = f"rosbag2 ({', '.join(stores)})"
        for bag in self.bags:
            self.note(*bag.notes)
            bag.notes = self.notes  # notes that reading adds later are shared
        journals = [path for bag in self.bags if isinstance(bag, SqliteBag) for path in bag.files[1:]]
        self.files = (*([place / "metadata.yaml"] if found else []), *files, *journals)
        of_bags = {stamp.path: stamp for bag in self.bags for stamp in bag.stamps}
        ours = "\0" if self._folder is None else str(self._folder)  # the folder of unpacked files
        self.stamps = (*before, *(stamp for path, stamp in of_bags.items() if not path.startswith(ours)))
        self.given = definitions.digest()
        self.lacking = tuple(sorted({kind for bag in self.bags for kind in bag.lacking}))
        self._start, self._end = extent(found, self.bags)

    def _plain(self, file: Path) -> Path:
        with file.open("rb") as opened:
            packed = opened.read(4) == b"\x28\xb5\x2f\xfd"
        if not packed:
            return file
        if self._folder is None:
            self._folder = temporary_folder(self)
        return unpack_file(file, self._folder)

    def parts(self) -> Sequence[Part]:
        return [Part(self.name, None, self._start, self._end)]

    def contents(self, episode: int) -> Mapping[str, Content]:
        return merged([bag.contents(0) for bag in self.bags])

    def batches(
        self,
        streams: Collection[str] | None = None,
        episode: int | None = None,
        start: int | None = None,
        end: int | None = None,
    ) -> Iterator[Batch]:
        known: dict[str, StreamInfo] = {}
        for bag in self.bags:
            for batch in bag.batches(streams, 0, start, end):
                batch = grown(batch, known.get(batch.stream))
                known[batch.stream] = batch.info
                yield batch

    def survey(self, to: Any, at_a_glance: bool) -> None:
        for bag in self.bags:
            bag.survey(to, at_a_glance)

    def stretches(self) -> list[tuple[int, int]] | None:
        found = [bag.stretches() for bag in self.bags]
        if any(each is None for each in found):
            return None
        return [stretch for each in found for stretch in each or ()]

    def latched(self) -> frozenset[str]:
        every, others = set[str](), set[str]()  # others: not latched in at least one file
        for bag in self.bags:
            listed = set(bag.listed(0))
            every |= listed
            others |= listed - bag.latched()
        return frozenset(every - others)

    def listed(self, episode: int) -> Mapping[str, Content]:
        return merged([bag.listed(0) for bag in self.bags])

    def promised(self) -> Mapping[str, StreamInfo]:
        return {name: info for bag in self.bags for name, info in bag.promised().items()}

    def quick(self) -> Mapping[str, tuple[str, NDArray[np.int64]]] | None:
        found: dict[str, tuple[str, NDArray[np.int64]]] = {}
        for bag in self.bags:
            part = bag.quick()
            if part is None:
                return None
            for name, (kind, arrivals) in part.items():
                found[name] = kind, np.concatenate([found[name][1], arrivals]) if name in found else arrivals
        return found


def merged(parts: Sequence[Mapping[str, Content]]) -> dict[str, Content]:
    """The contents of all files."""
    found: dict[str, Content] = {}
    for part in parts:
        for name, content in part.items():
            before = found.get(name)
            if before is not None:
                known = before.samples is not None and content.samples is not None
                total = (before.samples or 0) + (content.samples or 0) if known else None
                content = content._replace(samples=total)
            found[name] = content
    return found


def extent(found: Mapping[str, Any], bags: Sequence[Source]) -> tuple[int | None, int | None]:
    """First and last log time, from metadata.yaml, otherwise from the files."""
    try:
        start = int(found["starting_time"]["nanoseconds_since_epoch"])
        return start, start + int(found["duration"]["nanoseconds"])
    except (KeyError, TypeError, ValueError):
        parts = [bag.parts()[0] for bag in bags]
        starts, ends = [part.start for part in parts], [part.end for part in parts]
        if any(at is None for at in (*starts, *ends)):
            return None, None
        return min(at for at in starts if at is not None), max(at for at in ends if at is not None)


def grown(batch: Batch, before: StreamInfo | None) -> Batch:
    """The batch with the channels of earlier files first: another file may have other channels, or another order."""
    if before is None or before.ragged or before.channels == batch.info.channels or batch.values.ndim != 2:
        return batch
    channels = (*before.channels, *(name for name in batch.info.channels if name not in before.channels))
    whole = len(channels) == len(batch.info.channels) or batch.info.dtype.kind == "f"
    dtype = batch.info.dtype if whole else np.dtype(np.float64)  # NaN for channels that a sample does not have
    info = batch.info._replace(channels=channels, shape=(len(channels),), dtype=dtype)
    if before.channels != channels[: len(batch.info.channels)] and not isinstance(info.method, str):
        info = info._replace(method=before.method)
    return batch._replace(values=widened(batch, info), info=info)
