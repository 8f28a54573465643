"""Mixture: several loaders as one. Each source gets its share of the positions."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache import _core
from robocache._cache.joined import NEVER
from robocache._loader import gather, ranks
from robocache._loader.engine import Rows
from robocache._loader.entries import Entry
from robocache._loader.keys import whole_number
from robocache._loader.loader import Batch, Loader, changed_by
from robocache._loader.order import Last, Passes
from robocache._loader.pictures import Picture
from robocache._loader.state import cache_fingerprint, position_in, spec_fingerprint
from robocache._loader.volumes import Volume
from robocache._recordings.words import missing

FORMAT = "robocache mixture"
VERSION = 1
SUFFIXES = (".valid", ".age", ".channel_valid", ".image_mask")  # of the entries beside a key
KINDS: dict[type, str] = {Entry: "numbers", Picture: "a camera", Volume: "voxels"}
Integers = NDArray[np.int64]
BOOKKEEPING = ("episode", "time", "position", "task_index", "row_valid")  # entries of every batch beside the keys


class Column(NamedTuple):
    """An entry of a mixture's batches."""

    keys: dict[int, str]  # by source: the name of the entry in its batches
    width: int | None  # channels, for keys of numbers
    blank: Any  # the row of sources that lack the entry


class Mixture:
    """Batches of several loaders: different robots, rates and caches, each with its own keys and statistics.

    A batch has the entries of a loader's batch, with rows of all sources. `source` int64 [B] is the number of the
    source of each row. Each key of numbers has `key.channel_valid` bool [B, D], false in padded channels. Each camera
    has `key.image_mask` bool [B], false if the source has no such camera; the picture is then zeros. Entries that a
    source lacks are never valid.

    In every 4,096 positions the sources have their shares by weight, in random order. Each source goes through its own
    windows as its loader does alone: the n-th row of a source is the row of its loader's position n.

    Args:
        sources: {name: rc.Loader}. Their rates may differ; steps, pictures and dtypes of a key must be equal. Their
            batch sizes, ranks and passes are ignored.
        batch_size: Windows in a batch of this rank.
        length: Windows in a pass. A mixture has no epochs.
        weights: {name: weight}. Default: the number of windows of each source.
        names: {name: {key of this source: key of the mixture}}, for keys whose names differ.
        pad_to: The number of channels that keys of numbers are padded to with zeros: one number, or by key. Default:
            the largest among the sources.
        seed: The seed of the order of sources. Windows and draws come from each loader's own seed.
        rank: As in `Loader`.
        world: As in `Loader`.
        last: As in `Loader`.
        transform: A function that gets each batch and returns it. The loaders' own functions run before it, on their
            rows.

    Examples:
        >>> arm = rc.Loader("arm", batch_size=1, rate=50, keys=keys)
        >>> droid = rc.Loader("droid", batch_size=1, rate=15, keys=others)
        >>> mixture = rc.Mixture({"arm": arm, "droid": droid}, weights={"arm": 3, "droid": 1}, batch_size=256,
        ...                      length=1_000_000, pad_to=32)
        >>> for batch in mixture:
        ...     batch["action"], batch["action.channel_valid"], batch["source"]
    """

    def __init__(
        self,
        sources: Mapping[str, Loader],
        *,
        batch_size: int,
        length: int,
        weights: Mapping[str, float] | None = None,
        names: Mapping[str, Mapping[str, str]] | None = None,
        pad_to: int | Mapping[str, int] | None = None,
        seed: int = 0,
        rank: int | None = None,
        world: int | None = None,
        last: Last = "join",
        transform: Callable[[Batch], Batch] | None = None,
    ) -> None:
        if not isinstance(sources, Mapping) or not sources:
            raise TypeError(f"Mixture: sources is {sources!r}; expected a dict of rc.Loader by name")
        for name, loader in sources.items():
            if not isinstance(loader, Loader):
                raise TypeError(f'Mixture: source "{name}" is {type(loader).__name__}; expected an rc.Loader')
        self.sources, self.names = dict(sources), {name: dict(given) for name, given in (names or {}).items()}
        self.batch_size = whole_number("batch_size", batch_size, 1)
        self.seed = whole_number("seed", seed, 0)
        self.rank, self.world = ranks.resolved(rank, world)
        self.order = Passes(length, batch_size=self.batch_size, rank=self.rank, world=self.world, last=last)
        self.weights = weights_of(self.sources, weights)
        self.shares: list[int] = _core.mixture_shares(list(self.weights.values()))
        self.pad_to, self.transform = pad_to, transform
        self._loaders = list(self.sources.values())
        self._columns = columns_of(self.sources, self.names, pad_to)
        self.tasks = list(dict.fromkeys(task for loader in self._loaders for task in loader.tasks))
        known = {task: number for number, task in enumerate(self.tasks)}
        self._tasks = [np.asarray([*(known[task] for task in each.tasks), -1], np.int64) for each in self._loaders]
        self._position = 0
        self._compared = False

    # ---- Batches

    def __len__(self) -> int:
        """The number of batches in the current pass, including those that were handed out before."""
        return self.order.pass_batches(self._position)

    def __iter__(self) -> Iterator[Batch]:
        """One pass: from the next position to a multiple of `length`."""
        ranks.compare(self)
        is_last = False
        while not is_last:
            position = self.order.begin(self._position)
            is_last = self.order.is_last(position)
            batch = self._batch(position)
            self._position = self.order.after(position)
            yield batch

    def batch(self, number: int) -> Batch:
        """This rank's rows of a global batch, from its number alone.

        Args:
            number: From 0 on, without end.

        Returns:
            The batch.
        """
        return self._batch(self.order.start(whole_number("number", number, 0)))

    def eval(self) -> Mixture:
        """The same mixture without augmentation, as `Loader.eval`.

        Returns:
            A mixture that shares the samples with this one.
        """
        other = copy.copy(self)
        other._loaders = [loader.eval() for loader in self._loaders]
        other.sources = dict(zip(self.sources, other._loaders, strict=True))
        return other

    def _batch(self, position: int) -> Batch:
        positions = self.order.positions(position)
        first = int(positions[0])
        count = int(positions[-1]) - first + 1
        sources, own = (each[positions - first] for each in _core.mixture_order(self.shares, self.seed, first, count))
        parts: dict[int, Batch] = {}
        rows = np.empty(len(positions), np.int64)  # of each position: its row in the concatenated parts
        said = {name: np.empty(len(positions), np.int64) for name in ("episode", "time", "task_index")}
        begin = 0
        for source, loader in enumerate(self._loaders):
            mine = np.flatnonzero(sources == source)
            if not len(mine):
                continue
            numbers = loader.order.run(int(own[mine[0]]), int(own[mine[-1]] - own[mine[0]]) + 1)
            where = Rows(*loader.windows.at(numbers[own[mine] - own[mine[0]]]))
            parts[source] = loader._make_batch(where, own[mine], None, draws=loader._training)
            rows[mine] = np.arange(begin, begin + len(mine))
            begin += len(mine)
            said["episode"][mine], said["time"][mine] = where.number, where.anchor
            said["task_index"][mine] = self._tasks[source][loader._tasks.at(where)]
        made = {name: self._joined_rows(column, parts, sources, rows) for name, column in self._columns.items()}
        host: dict[str, NDArray[Any]] = said | {"position": positions, "source": sources}
        if self.order.last == "short":
            host["row_valid"] = self.order.row_valid(position)
        host |= self._masks(sources)
        one = self._loaders[0]
        made |= one.placement.finished({name: one._engine.move(array) for name, array in host.items()})
        return made if self.transform is None else changed_by(self.transform, made)

    def _joined_rows(self, column: Column, parts: Mapping[int, Batch], sources: Integers, rows: Integers) -> Any:
        """The rows of all sources in the order of the batch."""
        arrays, place, shift = [], rows.copy(), 0
        for source, part in parts.items():
            here = sources == source
            if source in column.keys:
                values = part[column.keys[source]]
                arrays.append(values if column.width is None else gather.padded(values, column.width))
                place[here] -= shift
            else:  # the blank row, which comes after all others
                count = int(here.sum())
                shift += count
                place[here] = -1
        if shift or not arrays:
            arrays.append(column.blank)
            place[place < 0] = sum(len(array) for array in arrays) - 1
        return gather.picked(arrays, place)

    def _masks(self, sources: Integers) -> dict[str, NDArray[np.bool_]]:
        made = {}
        for name, column in self._columns.items():
            entries = {source: self._loaders[source]._entries.get(key) for source, key in column.keys.items()}
            entry = next(iter(entries.values()))
            if entry is None or isinstance(entry, Volume):  # None: .valid, .age
                continue
            if isinstance(entry, Picture):
                made[f"{name}.image_mask"] = np.isin(sources, list(entries))
                continue
            widths = np.zeros(len(self._loaders), np.int64)
            for source, each in entries.items():
                widths[source] = each.width  # type: ignore[union-attr]
            made[f"{name}.channel_valid"] = np.arange(column.width or 0)[None, :] < widths[sources][:, None]
        return made

    # ---- State and spec

    def state_dict(self) -> dict[str, Any]:
        """The next position, and fingerprints of the sources and of the mixture, as JSON.

        Returns:
            The state.
        """
        return self._state(self._position)

    def state_after(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The state after a batch. Batches that were prefetched since do not count.

        Args:
            batch: A batch of this mixture. It must still have its `position`.

        Returns:
            The state.
        """
        first = int(batch["position"][0])
        if "row_valid" in batch and not bool(batch["row_valid"][0]):  # padded: the pass ends here
            return self._state(self.order.end(first))
        return self._state(self.order.after(first - self.rank * self.batch_size))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a state, also with another number of ranks or another batch size.

        Args:
            state: What `state_dict` or `state_after` has returned.

        Raises:
            ValueError: The state is of another mixture; the sentence says what differs.
        """
        mine = self._state(0)
        if not isinstance(state, Mapping) or set(state) != set(mine):
            raise ValueError("Mixture: this is no state of a mixture; expected what state_dict() returned")
        differs = [name for name in ("version", "mixture", "seed") if state[name] != mine[name]]
        theirs = state["sources"]
        differs += [
            f'source "{n}"' for n in sorted({*theirs, *mine["sources"]}) if theirs.get(n) != mine["sources"].get(n)
        ]
        if differs:
            raise ValueError(f"Mixture: the state is of another mixture. What differs: {', '.join(differs)}")
        self._position = position_in("Mixture", state)

    def _state(self, position: int) -> dict[str, Any]:
        sources = {
            name: f"{cache_fingerprint(loader)} {spec_fingerprint(loader)} {loader.seed}"
            for name, loader in self.sources.items()
        }
        said = self.spec()
        text = json.dumps({name: said[name] for name in ("shares", "names", "pad_to", "order")}, sort_keys=True)
        mixed = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        return {"version": 1, "position": position, "mixture": mixed, "seed": self.seed, "sources": sources}

    def spec(self) -> dict[str, Any]:
        """The spec of the batches as JSON: the specs of all sources, and how they are mixed.

        Returns:
            The spec.
        """
        return {
            "format": FORMAT,
            "version": VERSION,
            "sources": {name: loader.spec() for name, loader in self.sources.items()},
            "weights": self.weights,
            "shares": dict(zip(self.sources, self.shares, strict=True)),
            "names": self.names,
            "pad_to": dict(self.pad_to) if isinstance(self.pad_to, Mapping) else self.pad_to,
            "order": {"length": self.order.length, "last": self.order.last},
            "seed": self.seed,
            "batch_size": self.batch_size,
            "tasks": self.tasks,
        }

    @staticmethod
    def from_spec(
        caches: Mapping[str, Any],
        spec: Mapping[str, Any],
        *,
        loaders: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> Mixture:
        """The mixture that a spec describes.

        Args:
            caches: {name: the cache of this source}.
            spec: What `spec()` has returned.
            loaders: Arguments of every `Loader` in place of the spec's, such as {"device": "cuda"}.
            **changes: Arguments of `Mixture` in place of the spec's.

        Returns:
            The mixture.
        """
        if spec.get("format") != FORMAT or spec.get("version") != VERSION:
            raise ValueError("Mixture: this is no spec of a mixture; expected what mixture.spec() returned")
        for name in spec["sources"]:
            if name not in caches:
                raise ValueError(missing("Mixture: caches= has none for source", name, caches))
        sources = {
            name: Loader.from_spec(caches[name], one, **(loaders or {})) for name, one in spec["sources"].items()
        }
        given = {name: spec[name] for name in ("weights", "names", "pad_to", "seed", "batch_size")}
        return Mixture(sources, **(given | spec["order"] | changes))

    def __repr__(self) -> str:
        lines = [
            f"Mixture({len(self.sources)} sources, passes of {self.order.length:,} windows, batches of "
            f"{self.batch_size}, rank {self.rank} of {self.world})"
        ]
        for (name, loader), share in zip(self.sources.items(), self.shares, strict=True):
            lines.append(
                f"  {name}: {share / 4096:.1%}, {len(loader.windows):,} windows at {loader.rate:g} Hz of "
                f"{loader.cache.path}"
            )
        return "\n".join(lines)


def weights_of(sources: Mapping[str, Loader], weights: Mapping[str, float] | None) -> dict[str, float]:
    if weights is None:
        return {name: float(len(loader.windows)) for name, loader in sources.items()}
    if not isinstance(weights, Mapping):
        raise TypeError(f"Mixture: weights is {weights!r}; expected a dict by the sources' names")
    for name in weights:
        if name not in sources:
            raise ValueError(missing("Mixture: weights= names no source:", name, sources))
    for name in sources:
        if name not in weights:
            raise ValueError(f'Mixture: weights= has none for source "{name}"')
    return {name: float(weights[name]) for name in sources}


def columns_of(
    sources: Mapping[str, Loader],
    names: Mapping[str, Mapping[str, str]],
    pad_to: int | Mapping[str, int] | None,
) -> dict[str, Column]:
    """The entries of the mixture's batches, from one row of each source. Raises if sources do not fit together."""
    check_names(sources, names)
    check_placement(sources)
    probes = [probe(loader) for loader in sources.values()]
    order: dict[str, dict[int, str]] = {}  # by key of the mixture: its name in each source
    for source, (name, loader) in enumerate(sources.items()):
        for key in loader.keys:
            known = names.get(name, {}).get(key, key)
            if source in order.setdefault(known, {}):
                raise ValueError(f'Mixture: source "{name}" has two keys "{known}"')
            order[known][source] = key
    check_reserved(list(order))
    made: dict[str, Column] = {}
    for known, keys in order.items():
        rows = {source: probes[source][key] for source, key in keys.items()}
        kinds = {KINDS[type(list(sources.values())[s]._entries[key])] for s, key in keys.items()}
        if len(kinds) > 1:
            raise ValueError(f'Mixture: key "{known}" is {" in one source and ".join(sorted(kinds))} in another')
        width = width_of(known, rows, pad_to, list(sources)) if kinds == {"numbers"} else None
        check_rows(known, rows, width, list(sources))
        first = next(iter(rows.values()))
        blank = gather.filled(first if width is None else gather.padded(first, width), 0)
        made[known] = Column(keys, width, blank)
        for suffix, value in ((".valid", False), (".age", NEVER)):
            side = probes[next(iter(keys))][f"{keys[next(iter(keys))]}{suffix}"]
            there = {source: f"{key}{suffix}" for source, key in keys.items()}
            made[f"{known}{suffix}"] = Column(there, None, gather.filled(side, value))
    for extra in sorted(set.intersection(*({*each} for each in probes)) - {*BOOKKEEPING, *made}):
        there = dict.fromkeys(range(len(probes)), extra)
        if any(extra in (key, f"{key}.valid", f"{key}.age") for loader in sources.values() for key in loader.keys):
            continue
        rows = {source: each[extra] for source, each in enumerate(probes)}
        width = max(row.shape[-1] for row in rows.values()) if extra.startswith("task_tokens") else None
        check_rows(extra, rows, width, list(sources))
        made[extra] = Column(there, width, None)
    return made


def probe(loader: Loader) -> Batch:
    """A batch of one row, without draws."""
    first = np.zeros(1, np.int64)
    return loader._make_batch(Rows(*loader.windows.at(first)), first, None, draws=False)


def check_names(sources: Mapping[str, Loader], names: Mapping[str, Mapping[str, str]]) -> None:
    for name, given in names.items():
        if name not in sources:
            raise ValueError(missing("Mixture: names= names no source:", name, sources))
        for key in given:
            if key not in sources[name].keys:
                raise ValueError(
                    missing(f'Mixture: names= has a key that source "{name}" lacks:', key, sources[name].keys)
                )


def check_reserved(keys: Sequence[str]) -> None:
    """Raises if a key has the name of another entry of a mixture's batch."""
    beside = {f"{key}{suffix}": f'stands beside key "{key}"' for key in keys for suffix in SUFFIXES}
    beside |= dict.fromkeys((*BOOKKEEPING, "source", "task_tokens", "task_tokens.valid"), "is an entry of every batch")
    for key in keys:
        if key in beside:
            raise ValueError(f'Mixture: a key may not be named "{key}": that {beside[key]}; rename it by names=')


def check_placement(sources: Mapping[str, Loader]) -> None:
    places = {name: (str(loader.placement.device), loader.placement.arrays) for name, loader in sources.items()}
    (first, place), *others = places.items()
    for other, another in others:
        if another != place:
            raise ValueError(
                f'Mixture: source "{first}" has device={place[0]}, arrays={place[1]}, and source "{other}" '
                f"device={another[0]}, arrays={another[1]}; give all loaders the same"
            )


def width_of(known: str, rows: Mapping[int, Any], pad_to: int | Mapping[str, int] | None, names: Sequence[str]) -> int:
    widths = {source: int(row.shape[-1]) for source, row in rows.items()}
    given = pad_to.get(known) if isinstance(pad_to, Mapping) else pad_to
    if given is None:
        return max(widths.values())
    width = whole_number("pad_to", given, 1)
    for source, each in widths.items():
        if each > width:
            raise ValueError(
                f'Mixture: key "{known}" of source "{names[source]}" has {each} channels; pad_to is {width}'
            )
    return width


def check_rows(known: str, rows: Mapping[int, Any], width: int | None, names: Sequence[str]) -> None:
    """Raises if the rows of two sources differ in more than their channels."""

    def form(row: Any) -> tuple[str, tuple[int, ...]]:
        return str(row.dtype), tuple(row.shape[1:] if width is None else row.shape[1:-1])

    (first, row), *others = rows.items()
    for other, another in others:
        if form(row) != form(another):
            (one, one_shape), (two, two_shape) = form(row), form(another)
            raise ValueError(
                f'Mixture: key "{known}" is {one} {list(one_shape)} in source "{names[first]}" and {two} '
                f'{list(two_shape)} in source "{names[other]}"; give both keys the same steps, image and dtype'
            )
