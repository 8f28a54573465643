"""HDF5 files: robomimic's layout, ALOHA's, any file whose data sets have times beside them, and any file by a mapping.

    robomimic   /data/demo_K/{actions, obs/<key>, rewards, dones, states}: an episode for each demo. It has no times:
                the rate is env_args' control_freq.
    ALOHA       /action, /observations/{qpos, qvel, effort, images/<camera>}: one episode. It has no times: 50 Hz.
    by itself   every data set with `times` (or t, time, timestamp, timestamps, stamps) in its group, of one length
    mapping     {"joints": "/robot/q", "hand": {"values": "/hand/pose", "times": "/hand/t", "arrivals": "/hand/seen",
                "unit": "us", "channels": [...], "method": "hold", "rate": 100}}; without times, `rate` is needed

Times: floats are seconds. Integers are in the `unit` of the mapping ("s", "ms", "us", "ns"). Without one the first that
is not 0 tells the unit of all, as in JSON messages: 1e9 to 4e9 (2001 to 2096), or that times 1e3, 1e6, 1e9, is s, ms,
us, ns since 1970. Others count from elsewhere and are nanoseconds, as integers are everywhere. `notes` say where they
are taken as something else or look like it, and which rate was assumed where the file states none.

JPEG and PNG are streams of images: arrays of varying length, strings of bytes, and rows that zeros fill up. The first
picture of a data set tells.

A damaged file raises FileError, except for two faults of libhdf5 itself: it loops forever over some damaged heaps, and
it takes as much memory as some damaged headers ask for, whatever the size of the file. Where a limit on memory
(ulimit -d) refuses that, it is a FileError, too.
A data set may hold at most 1,032 times the bytes of its file (what deflate reaches) and 64 MiB. A larger one is
skipped, because a few bytes can claim terabytes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache._align.extent import nanoseconds
from robocache._core import FileError
from robocache._limits import TIME_LIMIT, TIME_LIMIT_IN_WORDS
from robocache._recordings.hdf5_pictures import PICTURES_AT_ONCE, encoding_of, packed
from robocache._recordings.source import (
    BATCH_BYTES,
    Array,
    Batch,
    Content,
    Part,
    Source,
    StreamInfo,
    clipped,
    most_unpacked,
)
from robocache._recordings.stamps import stamps_of
from robocache._recordings.words import missing, need

TIME_NAMES = ("times", "time", "t", "timestamps", "timestamp", "stamps", "stamp")
ALOHA_RATE = 50.0  # its DT is 0.02 s
ROBOMIMIC_RATE = 20.0  # robosuite's default control_freq
MAPPING_KEYS = ("values", "times", "arrivals", "unit", "channels", "method", "rate")
UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}  # nanoseconds
SHORTEST_STEP = 1000  # nanoseconds between samples: closer integers are probably not nanoseconds
DEEPEST = 32  # groups within groups; soft links to soft links


class Place(NamedTuple):
    """A stream of an episode: where it lies in the file."""

    info: StreamInfo
    values: str
    times: str | None
    arrivals: str | None
    rate: float | None
    samples: int
    unit: str | None = None  # of integer times; None: decided by the first of them
    lengths: tuple[str, int] | None = None  # ALOHA's padded JPEGs: the data set of their sizes, and its row
    is_encoded: bool = False  # whether there are other JPEG and PNG pictures: hdf5_pictures.py


class Hdf5Source(Source):
    def __init__(self, path: Path, time: str, rate: float | None, mapping: Mapping[str, Any] | None) -> None:
        try:
            import h5py
        except ModuleNotFoundError:
            raise need("h5py", "hdf5", f"{path}: an HDF5 file") from None
        self._h5py = h5py
        if time in ("log", "publish"):
            raise ValueError(f'{path}: HDF5 has no log times; time must be "auto" or "stamp"')
        if rate is not None and not 0 < float(rate) < 1e6:
            raise ValueError(f"{path}: rate is {rate}; expected a positive number of hertz")
        self.path, self.time, self.notes, self.files = str(path), time, [], (path,)
        self.stamps = stamps_of(self.files)
        self.rate = None if rate is None else float(rate)
        self.encodings: dict[str, str] = {}  # of data sets of encoded pictures: "jpeg", "png"
        try:
            self.file = h5py.File(path, "r")
        except OSError as error:
            raise FileError(f"{path}: cannot be read as HDF5: {error}") from None
        try:
            self._lay_out(mapping)
        except (KeyError, RuntimeError, TypeError, OverflowError) as error:  # h5py raises these for a damaged file
            raise FileError(f"{path}: a damaged HDF5 file: {error}") from None

    # ---- The layouts

    def _lay_out(self, mapping: Mapping[str, Any] | None) -> None:
        found = self._datasets()
        self.episodes: list[tuple[str, str | None, dict[str, Place]]]
        if mapping is not None:
            self.format = "HDF5 (mapping)"
            self.episodes = [(Path(self.path).stem, None, self._mapped(mapping, found))]
        elif any(re.fullmatch(r"data/demo_?\d+/actions", name) for name in found):
            self.format = "HDF5 (robomimic)"
            self.episodes = self._robomimic(found)
        elif "action" in found and any(name.startswith("observations/") for name in found):
            self.format = "HDF5 (ALOHA)"
            self.episodes = [(Path(self.path).stem, None, self._aloha(found))]
        else:
            self.format = "HDF5"
            places = self._by_itself(found)
            if not places:
                shown = [f"/{name} {dtype} {list(shape)}" for name, (dtype, shape) in list(found.items())[:6]]
                more = f" and {len(found) - 6} more" if len(found) > 6 else ""
                raise FileError(
                    f"{self.path}: neither robomimic's layout nor ALOHA's, and no data set has times beside it; say "
                    f'which they are: rc.open(path, mapping={{"joints": {{"values": "/...", "times": "/..."}}}}); '
                    + (f"it holds {', '.join(shown)}{more}" if shown else "it holds no data sets")
                )
            self.episodes = [(Path(self.path).stem, None, places)]

    def _datasets(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """All data sets of numbers, by path. Links to other files are not followed."""
        found: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        most = most_unpacked(Path(self.path).stat().st_size)
        stack: list[tuple[str, Any, int]] = [("", self.file, 0)]
        seen = set()
        while stack:
            prefix, group, depth = stack.pop()
            identity = self._h5py.h5o.get_info(group.id).addr
            if identity in seen or depth > DEEPEST:  # a group that contains itself
                continue
            seen.add(identity)
            inner = []
            for name in group:
                if not self._is_inside(group, name):
                    self.notes.append(f"/{prefix}{name} lies in another file and is left out")
                    continue
                try:
                    item = group[name]
                except (KeyError, OSError):
                    self.notes.append(f"/{prefix}{name} cannot be read and is left out")
                    continue
                if isinstance(item, self._h5py.Group):
                    inner.append((f"{prefix}{name}/", item, depth + 1))
                elif isinstance(item, self._h5py.Dataset) and item.dtype.kind in "biufSO" and item.shape:
                    if item.external or item.is_virtual:
                        self.notes.append(f"/{prefix}{name} lies in another file and is left out")
                    elif item.dtype.itemsize * math.prod(map(int, item.shape)) > most:
                        self.notes.append(
                            f"/{prefix}{name} is left out: it claims {item.dtype} {list(item.shape)}, "
                            f"more than {most} bytes, which its file cannot hold"
                        )
                    elif self._is_encoded(f"{prefix}{name}", item):
                        found[f"{prefix}{name}"] = (np.dtype(np.uint8), item.shape)
                    elif item.dtype.kind in "biuf":
                        found[f"{prefix}{name}"] = (item.dtype, item.shape)
            stack += reversed(inner)
        return found

    def _is_encoded(self, path: str, item: Any) -> bool:
        """Whether the samples of a data set are JPEG or PNG."""
        try:
            encoding = encoding_of(item, self._h5py.check_vlen_dtype(item.dtype))
        except (KeyError, OSError, RuntimeError, ValueError):
            return False  # the reader reports an unreadable data set
        if encoding:
            self.encodings[path] = encoding
        return bool(encoding)

    def _is_inside(self, group: Any, path: str, depth: int = 0) -> bool:
        """Whether a path leads to an object in this file. A soft link may pass through an external link."""
        for part in filter(None, path.split("/")):
            link = group.get(part, getlink=True)
            if isinstance(link, self._h5py.ExternalLink) or depth > DEEPEST:
                return False
            if isinstance(link, self._h5py.SoftLink):
                start = self.file if link.path.startswith("/") else group
                if not self._is_inside(start, link.path, depth + 1):
                    return False
            try:
                group = group[part]
            except (KeyError, OSError):
                return True  # it leads nowhere, which the caller reports
            if not isinstance(group, self._h5py.Group):
                break
        return True

    def _place(self, name: str, values: str, found: Mapping[str, Any], **known: Any) -> Place:
        dtype, shape = found[values]
        size = int(np.prod(shape[1:], dtype=np.int64))
        channels = tuple(known.get("channels") or ())
        if channels and len(channels) != size:
            named = f"{len(channels)} channels are named"
            raise ValueError(f'{self.path}: stream "{name}": {named}, but /{values} has {size}')
        method = known.get("method") or ("hold" if dtype.kind in "biu" else None)
        dtype = np.dtype(dtype.newbyteorder("="))
        metadata = {"path": f"/{values}", **known.get("metadata", {})}
        is_encoded = values in self.encodings and known.get("lengths") is None
        if is_encoded:
            metadata |= {"kind": "image", "encoding": self.encodings[values]}
        ragged = is_encoded or known.get("lengths") is not None
        inner = () if ragged else tuple(shape[1:])
        info = StreamInfo(name, f"hdf5/{dtype}", dtype, inner, channels, method, ragged, metadata)
        places = (known.get("times"), known.get("arrivals"), known.get("rate"))
        told = {key: known.get(key) for key in ("unit", "lengths")}
        return Place(info, values, *places, samples=int(shape[0]), is_encoded=is_encoded, **told)

    def _mapped(self, mapping: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Place]:
        def there(stream: str, given: Any) -> str:
            name = str(given).strip("/")
            if name not in found:
                where = f'{self.path}: stream "{stream}": there is no data set'
                raise ValueError(missing(where, f"/{name}", [f"/{other}" for other in found]))
            return name

        places = {}
        for name, given in mapping.items():
            entry = {"values": given} if isinstance(given, str) else dict(given)
            unknown = [key for key in entry if key not in MAPPING_KEYS]
            if unknown or "values" not in entry:
                raise ValueError(
                    missing(f'{self.path}: stream "{name}": mapping has no key', unknown[0], MAPPING_KEYS)
                    if unknown
                    else f'{self.path}: stream "{name}": "values" is missing'
                )
            values = there(name, entry["values"])
            times = there(name, entry["times"]) if "times" in entry else None
            arrivals = there(name, entry["arrivals"]) if "arrivals" in entry else None
            if entry.get("unit", "ns") not in UNITS:
                where = f'{self.path}: stream "{name}": there is no unit'
                raise ValueError(missing(where, str(entry["unit"]), UNITS))
            rate = entry.get("rate", self.rate)
            if times is None and rate is None:
                times = beside(values, found)
            if times is None and rate is None:
                where = f'{self.path}: stream "{name}"'
                raise ValueError(f'{where}: /{values} has no times beside it; give "times" or a rate')
            known = {"times": times, "arrivals": arrivals, "rate": rate}
            known |= {key: entry[key] for key in ("channels", "method", "unit") if key in entry}
            place = places[str(name)] = self._place(str(name), values, found, **known)
            for which in filter(None, (times, arrivals)):
                self._check_length(place, which, found[which][1])
        return places

    def _robomimic(self, found: Mapping[str, Any]) -> list[tuple[str, str | None, dict[str, Place]]]:
        rate, task = self.rate, None
        try:
            arguments = json.loads(self.file["data"].attrs["env_args"])
            task = str(arguments.get("env_name") or "") or None
            if rate is None:
                rate = float(arguments["env_kwargs"]["control_freq"])
        except (KeyError, TypeError, ValueError, RecursionError, AttributeError, OSError):
            pass
        if rate is None or not 0 < rate < 1e6:
            rate = ROBOMIMIC_RATE
            self.notes.append(f"no times and no control_freq in the file: {rate:g} Hz assumed; rate= says otherwise")
        demos: dict[str, dict[str, Place]] = {}
        for path in found:
            match = re.fullmatch(r"data/(demo_?\d+)/(.+)", path)
            if match is None or match[2].startswith("next_obs/"):  # the same as obs, one step later
                continue
            name = match[2].removeprefix("obs/")
            if name != match[2] and f"data/{match[1]}/{name}" in found:
                name = match[2]
            demos.setdefault(match[1], {})[name] = self._place(name, path, found, rate=rate)
        order = sorted(demos, key=lambda demo: int(re.sub(r"\D", "", demo)))
        return [(demo, task, demos[demo]) for demo in order]

    def _aloha(self, found: Mapping[str, Any]) -> dict[str, Place]:
        rate = self.rate
        if rate is None:
            rate = ALOHA_RATE
            self.notes.append(f"no times in the file: {rate:g} Hz assumed, as ALOHA records; rate= says otherwise")
        cameras = sorted(path for path in found if path.startswith("observations/images/"))
        places = {}
        for path in found:
            if path == "compress_len":
                continue
            name = path.removeprefix("observations/")
            known: dict[str, Any] = {"rate": rate}
            dtype, shape = found[path]
            if path in cameras and len(shape) == 2 and dtype == np.uint8 and "compress_len" in found:
                known["lengths"] = ("compress_len", cameras.index(path))
                known["metadata"] = {"kind": "image", "encoding": "jpeg"}
            elif path in cameras and len(shape) == 4:
                known["metadata"] = {"kind": "image", "encoding": "rgb8"}
            places[name] = self._place(name, path, found, **known)
        return places

    def _by_itself(self, found: Mapping[str, Any]) -> dict[str, Place]:
        places = {}
        for path in found:
            times = beside(path, found)
            if times is not None and path != times:
                places[path] = self._place(path, path, found, times=times)
        return places

    # ---- What it holds

    def _clock(self, place: Place, which: str) -> NDArray[np.int64]:
        """All times of a stream. They are small compared with its values."""
        where = f'{self.path}: stream "{place.info.name}": '
        stored = self.file[which]
        self._check_length(place, which, stored.shape)
        raw = np.asarray(self._read(stored, 0, place.samples)).reshape(-1)
        if raw.dtype.kind in "iu":
            return self._from_integers(f"{where}/{which}", raw, place.unit)
        try:
            return nanoseconds(where, raw if raw.dtype == np.float32 else raw.astype(np.float64))
        except ValueError as error:
            raise FileError(str(error)) from None

    def _check_length(self, place: Place, which: str, shape: tuple[int, ...]) -> None:
        if shape[0] != place.samples or int(np.prod(shape)) != place.samples:
            where = f'{self.path}: stream "{place.info.name}"'
            raise FileError(f"{where}: /{place.values} has {place.samples} samples, but /{which} is {list(shape)}")

    def _from_integers(self, where: str, raw: Array, unit: str | None) -> NDArray[np.int64]:
        if unit is None:
            unit = unit_of(int(raw[np.argmax(raw != 0)]) if raw.any() else 0)
            step = float(np.median(np.diff(raw.astype(np.float64)))) if raw.size > 1 else 0.0
            if unit != "ns" or 0 < step < SHORTEST_STEP:
                self.note(f"{where}: integer times are taken as {unit}; a mapping with a unit says otherwise")
        most = TIME_LIMIT // UNITS[unit]
        if raw.size and (int(raw.min()) <= -most or int(raw.max()) >= most):
            raise FileError(f"{where}: a time is past {TIME_LIMIT_IN_WORDS}, counted in {unit}")
        return raw.astype(np.int64) * UNITS[unit]

    def _read(self, stored: Any, begin: int, end: int) -> Any:
        try:
            return stored[begin:end]
        except (OSError, RuntimeError, KeyError, ValueError) as error:
            raise FileError(f"{self.path}: {stored.name} cannot be read: {error}") from None

    def parts(self) -> Sequence[Part]:
        made = []
        for name, task, places in self.episodes:
            spans = [self._span(place) for place in places.values() if place.samples]
            start, end = min((span[0] for span in spans), default=0), max((span[1] for span in spans), default=0)
            made.append(Part(name, task, start, end))
        return made

    def _span(self, place: Place) -> tuple[int, int]:
        which = place.arrivals or place.times
        if which is None:
            first, last = even_times(place, np.array([0, place.samples - 1]))
        else:
            clock = self._clock(place, which)
            first, last = clock.min(), clock.max()
        return int(first), int(last)

    def contents(self, episode: int) -> Mapping[str, Content]:
        places = self.episodes[episode][2]
        return {name: Content(name, place.info.type, place.samples) for name, place in places.items()}

    def batches(
        self,
        streams: Collection[str] | None = None,
        episode: int | None = None,
        start: int | None = None,
        end: int | None = None,
    ) -> Iterator[Batch]:
        for k in range(len(self.episodes)) if episode is None else [episode]:
            for name, place in self.episodes[k][2].items():
                if streams is None or name in streams:
                    yield from clipped(self._stream(k, name, place), start, end)

    def _stream(self, episode: int, name: str, place: Place) -> Iterator[Batch]:
        stored_times = None if place.times is None else self._clock(place, place.times)
        stored_arrivals = None if place.arrivals is None else self._clock(place, place.arrivals)
        stored = self.file[place.values]
        width = stored.dtype.itemsize * int(np.prod(stored.shape[1:], dtype=np.int64))
        step = PICTURES_AT_ONCE if stored.dtype.kind == "O" else max(1, BATCH_BYTES // max(width, 1))
        for begin in range(0, place.samples, step):
            end = min(begin + step, place.samples)
            values: Array = self._read(stored, begin, end)
            lengths = None
            if place.is_encoded:
                values, lengths = packed(values)
            elif place.lengths is not None:
                values, lengths = self._unpadded(place, values, begin)
            values = values.astype(place.info.dtype, copy=False)
            times = even_times(place, np.arange(begin, end)) if stored_times is None else stored_times[begin:end]
            arrivals = times if stored_arrivals is None else stored_arrivals[begin:end]
            yield Batch(episode, name, values, times, arrivals, lengths, place.info)

    def _unpadded(self, place: Place, values: Array, begin: int) -> tuple[Array, NDArray[np.int64]]:
        assert place.lengths is not None
        sizes, row = self.file[place.lengths[0]], place.lengths[1]
        if sizes.ndim != 2 or row >= sizes.shape[0] or sizes.shape[1] < begin + len(values):
            raise FileError(f"{self.path}: /{place.lengths[0]} is {list(sizes.shape)}: too small for its images")
        lengths = np.asarray(sizes[row, begin : begin + len(values)]).astype(np.int64)
        if lengths.min(initial=0) < 0 or lengths.max(initial=0) > values.shape[1]:
            longer = f"an image is longer than its row of {values.shape[1]} bytes"
            raise FileError(f"{self.path}: /{place.lengths[0]}: {longer}")
        keep = np.arange(values.shape[1]) < lengths[:, None]
        return values[keep], lengths


def even_times(place: Place, samples: NDArray[np.int64]) -> NDArray[np.int64]:
    """The times of the samples with these numbers, at the stream's rate."""
    assert place.rate is not None
    return np.rint(samples * 1e9 / place.rate).astype(np.int64)


def unit_of(first: int) -> str:
    """The unit of integer times, decided by the first that is not 0."""
    for unit, scale in UNITS.items():
        if 10**18 <= abs(first) * scale < 4 * 10**18:
            return unit
    return "ns"


def beside(path: str, found: Mapping[str, Any]) -> str | None:
    """The data set of times of a data set: of its length, in its group or a group around it."""
    group, count = path.rpartition("/")[0], found[path][1][0]
    while True:
        for name in TIME_NAMES:
            there = f"{group}/{name}" if group else name
            if there in found and found[there][1][0] == count and int(np.prod(found[there][1])) == count:
                return there
        if not group:
            return None
        group = group.rpartition("/")[0]
