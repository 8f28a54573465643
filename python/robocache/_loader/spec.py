"""Spec: what a batch is made of, as JSON. Saved with a checkpoint, it makes the same loader anywhere."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from robocache import _core
from robocache._cache.joined import library_of
from robocache._cache.values import numpy_dtype
from robocache._loader.engine import Member
from robocache._loader.entries import Entry, to_float32
from robocache._loader.keys import Key, duration_json, jsonable
from robocache._loader.normalize import NEEDED, Normalizer
from robocache._loader.pictures import Picture
from robocache._recordings.source import StreamInfo
from robocache._recordings.words import missing

if TYPE_CHECKING:
    from robocache._loader.loader import Loader
    from robocache._loader.order import Order

FORMAT = "robocache loader"
VERSION = 1
NAMES = ("rate", "keys", "selection", "order", "seed", "batch_size")
SEMANTICS = 1  # the version of what a loader computes: docs/semantics.md, from "The loader's order" on


class LoaderSpec:
    """A loader's spec without its cache: what a robot has beside a checkpoint.

    Args:
        spec: What `loader.spec()` has returned, also when it was JSON in between.

    Attributes:
        json: The spec as JSON.

    Raises:
        ValueError: It is no spec of a loader, or one that this RoboCache does not know.

    Examples:
        >>> spec = rc.LoaderSpec(json.loads(Path("spec.json").read_text()))
        >>> spec.invert("action", policy(batch), batch)
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        if not isinstance(spec, Mapping) or spec.get("format") != FORMAT:
            raise ValueError("Loader: this is no spec of a loader; expected what loader.spec() returned")
        for name, mine in (("version", VERSION), ("semantics", SEMANTICS)):
            if spec.get(name) != mine:
                raise ValueError(
                    f"Loader: the spec's {name} is {spec.get(name)!r}, and RoboCache {_core.version()} has {mine}; the "
                    f"spec was written by RoboCache {spec.get('robocache')}"
                )
        absent = [name for name in NAMES if name not in spec]
        if absent:
            raise ValueError(f"Loader: this is no spec of a loader: it has no {' and no '.join(absent)}")
        self.json: dict[str, Any] = dict(spec)
        self._entries: dict[str, Entry | None] | None = None  # None: pictures and voxels

    def invert(self, name: str, chunk: Any, batch: Mapping[str, Any] | None = None) -> Any:
        """The values of a key as its streams have them: normalisation, rotation and relativity undone.

        Args:
            name: The key, as "action".
            chunk: What a policy returned: [..., T, D].
            batch: Has the key that this one is relative to, normalised as in a batch.

        Returns:
            float32 [..., T, D], with the bits of `Loader.invert`.
        """
        if self._entries is None:
            self._entries = entries_of(self.json["keys"])
        return inverted(self._entries, name, chunk, batch)

    def __repr__(self) -> str:
        return f"LoaderSpec({', '.join(self.json['keys'])} at {self.json['rate']:g} Hz)"


def json_of(loader: Loader) -> dict[str, Any]:
    """The spec of a loader."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "semantics": SEMANTICS,
        "robocache": _core.version(),
        "rate": loader.rate,
        "keys": {name: key_json(loader, name) for name in loader.keys},
        "selection": selection_json(loader._selection),
        "order": {"shuffle": loader.order.shuffle, "last": loader.order.last, "length": loader._length},
        "weights": weights_hash(loader.order),
        "seed": loader.seed,
        "batch_size": loader.batch_size,
        "tasks": loader.tasks,
    }


def arguments_of(spec: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of Loader that make the same loader, but for some changes."""
    spec = LoaderSpec(spec).json
    if spec.get("weights") is not None and "weights" not in changes:
        raise ValueError("Loader: the spec is of windows drawn by weights, and does not hold these; give weights=")
    keys = {name: with_statistics(Key(**said["key"]), said) for name, said in spec["keys"].items()}
    given = {"rate": spec["rate"], "keys": keys, "seed": spec["seed"], "batch_size": spec["batch_size"]}
    selection = dict(spec["selection"])
    if isinstance(selection["where"], list):
        selection["where"] = dict(selection["where"])
    return given | spec["order"] | selection | changes


def entries_of(keys: Mapping[str, Any]) -> dict[str, Entry | None]:
    """The entries of a spec's keys, with what is needed to undo them. None: pictures and voxels."""
    made: dict[str, Entry | None] = {}
    for name, said in keys.items():
        if "normalizer" not in said:
            made[name] = None
            continue
        key = Key(**said["key"])
        made[name] = entry = Entry(name, key, [member_of(name, key, one) for one in said["streams"]])
        if said["normalizer"] is not None:
            entry.normalizer = Normalizer.from_json(said["normalizer"], channels=entry.width, key=name)
        if key.relative_to is not None:
            entry.origin_step = keys[key.relative_to]["offsets_ns"].index(0)
    return made


def member_of(name: str, key: Key, said: Mapping[str, Any]) -> Member:
    """The entry of a stored stream in a spec."""
    info = StreamInfo(
        said["stored"],
        "",
        numpy_dtype(said["dtype"]),
        tuple(said["shape"]),
        tuple(said["channels"]),
        said["method"],
        False,
        {},
    )
    return Member(
        key=name,
        label=said["stored"],
        stream=said["stream"],
        stored=said["stored"],
        camera=None,
        has_frames=False,
        info=info,
        width=math.prod(info.shape),
        options={"method": said["method"]},
        knowledge=said["knowledge"],
        drop=key.drop,
        has_jitter=key.latency_jitter,
    )


def inverted(entries: Mapping[str, Any], name: str, chunk: Any, batch: Mapping[str, Any] | None) -> Any:
    """The values of a key as its streams have them."""
    if name not in entries:
        raise KeyError(missing("Loader.invert: there is no key", name, entries))
    entry = entries[name]
    if not isinstance(entry, Entry):
        raise ValueError(f'Loader.invert: key "{name}" is pictures or voxels, which cannot be undone')
    return entry.inverted(chunk, origin_of(entries, entry, chunk, batch))


def origin_of(entries: Mapping[str, Any], entry: Entry, chunk: Any, batch: Mapping[str, Any] | None) -> Any:
    """The values that a key is relative to, in the units of their streams. None: it is not relative."""
    other = entry.key.relative_to
    if other is None:
        return None
    if batch is None or other not in batch:
        raise ValueError(
            f'Loader.invert: key "{entry.name}" is relative to "{other}"; give the batch that has "{other}"'
        )
    origin = entries[other]
    assert isinstance(origin, Entry)
    if origin.key.relative is not None or origin.quaternions:
        raise ValueError(f'Loader.invert: key "{other}" is itself relative or rotated, so it is no origin')
    values = batch[other]
    array = library_of(chunk)
    if array.__name__ == "numpy" and hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    values = to_float32(values)
    return (values if origin.normalizer is None else origin.normalizer.inverse(values))[..., entry.origin_step, :]


def selection_json(selection: Mapping[str, Any]) -> dict[str, Any]:
    """The selection as JSON. Intervals are [[episode, intervals], ...], because names in JSON cannot be numbers."""
    where, stride = selection["where"], selection["stride"]
    said: dict[str, Any] = jsonable(selection)
    if isinstance(where, Mapping):
        said["where"] = [[jsonable(episode), jsonable(intervals)] for episode, intervals in where.items()]
    said["stride"] = None if stride is None else duration_json(stride)
    return said


def weights_hash(order: Order) -> str | None:
    """A hash of the weights of windows. None: windows are not drawn by weights."""
    if order.cumulated is None:
        return None
    return hashlib.blake2b(np.ascontiguousarray(order.cumulated, "<i8").tobytes(), digest_size=8).hexdigest()


def key_json(loader: Loader, name: str) -> dict[str, Any]:
    entry, key = loader._entries[name], loader.keys[name]
    streams = [
        {
            "stream": member.stream,
            "stored": member.stored,
            "dtype": str(member.info.dtype),
            "shape": list(member.info.shape),
            "channels": list(member.info.channels),
            "method": jsonable(member.options.get("method"))
            or ("hold" if member.info.dtype.kind in "biu" else "linear"),
            "max_gap_ns": None if own.max_gap is None else _core.nanoseconds("max_gap", own.max_gap),
            "shift_ns": own.shifts,
            "static": own.is_static,
            "edge": member.options["edge"],
            "on_nan": member.options["on_nan"],
            "knowledge": member.knowledge,
            "frames": member.info.metadata.get("frames"),
        }
        for member in loader._members[name]
        for own in [loader._engine.stored_options[member.name]]
    ]
    said: dict[str, Any] = {"key": key.replace(stats=None).to_json(), "streams": streams}
    said["offsets_ns"] = key.offsets(loader.rate).tolist()
    if isinstance(entry, Entry):
        said["normalizer"] = None if entry.normalizer is None else entry.normalizer.to_json()
    elif isinstance(entry, Picture):
        numbers = {"mean": entry.mean, "std": entry.std, "statistics": entry.statistics}
        said["image"] = jsonable(numbers)
    return said


def with_statistics(key: Key, said: Mapping[str, Any]) -> Key:
    """The key with the statistics of the spec in place of the cache's."""
    if said.get("normalizer"):
        return key.replace(stats={n: said["normalizer"][n] for n in NEEDED[key.normalize]})
    statistics = said.get("image", {}).get("statistics")
    return key.replace(stats=statistics) if statistics else key
