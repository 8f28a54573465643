"""Loader: batches of windows from a cache, in an order that one integer describes."""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from robocache._align.stream import Duration
from robocache._cache.cache import Cache
from robocache._cache.prepare import PreparedStream, numbers_of, prepared, rate_of
from robocache._cache.values import Path
from robocache._loader import pickling, ranks
from robocache._loader.batch import made
from robocache._loader.buffer_ring import BufferRing
from robocache._loader.checkpoints import with_stats
from robocache._loader.described import described
from robocache._loader.engine import Engine, Rows, is_picture, members_of, steps_of
from robocache._loader.entries import Entry, Raw, origin_step_of
from robocache._loader.keys import Key, check_origins, is_known_to_a_robot, short_form, table_of, whole_number
from robocache._loader.order import Last, Order
from robocache._loader.pictures import Picture
from robocache._loader.placement import Placement, check_jax, placement_of
from robocache._loader.spec import arguments_of, inverted, json_of
from robocache._loader.state import State
from robocache._loader.statistics import normalizer_of, picture_statistics
from robocache._loader.tasks import Tasks, tokens_of
from robocache._loader.volumes import Volume
from robocache._loader.windows import (
    Grid,
    Windows,
    anchor_of,
    selected_episodes,
    stride_of,
    where_filter,
    windows_of,
    with_all_streams,
)
from robocache._recordings.words import named
from robocache._versions import import_torch

if TYPE_CHECKING:
    from robocache._loader.datasets import BatchDataset, WindowDataset
    from robocache._loader.lerobot import LeRobotBatches
    from robocache._loader.openpi import OpenPIBatches
    from robocache._loader.shared_passes import SharedPasses

Batch = dict[str, Any]
Integers = NDArray[np.int64]


class Loader:
    """Batches of windows from a cache: every stream on one timeline around an anchor, normalised, in a fixed order.

    A batch is a dict of tensors. For each key it has `key` [B, T, D] (of a camera [B, T, C, H, W]), `key.valid`
    bool [B, T] and `key.age` int64 [B, T]; beside them `episode`, `time` (the anchor in nanoseconds), `position` and
    `task_index`, int64 [B].

    The order of windows never ends: position p = 0, 1, 2, ... is a window of epoch p // W, and each epoch is a
    permutation that depends on the seed alone. A loader remembers only the next position.

    Args:
        cache: An `rc.Cache`, or its path.
        batch_size: Windows in a batch of this rank.
        rate: Hertz: the unit of steps, and of anchors unless `stride` says otherwise.
        keys: {name: rc.Key}: the entries of a batch.
        observation: In place of keys: streams that become keys "observation.NAME".
        action: In place of keys: streams that become keys "action.NAME".
        observation_steps: How many steps up to the anchor. Cameras have the anchor alone.
        action_steps: How many steps from the anchor on.
        episodes: Numbers, names, slices, or a function of an episode. Default: all.
        split: "train" or "val", by a hash of each episode's identity: adding episodes changes no other's split.
        where: The name of a stream of one channel: windows stay where it is not 0 ("not NAME": where it is 0), held
            from its first sample on. Or intervals by episode: {0: [(1.0, 2.5)]} in seconds from its start; the end is
            not part of an interval.
        stride: The time between anchors, a duration. Default: 1 / rate.
        whole: Take only windows whose steps all lie in their episode. Default: the first window has no history.
        drop_last_steps: Leaves out this many windows at the end of each episode; `whole` is applied before.
        missing: What to do about episodes that lack a stream of the keys: "error" raises, "leave_out" leaves the
            episode out, "mask" keeps it, and that stream is never valid there.
        shuffle: Whether windows are shuffled.
        seed: The seed of the order and of all draws.
        rank: Which share of each global batch is this process's. Default: from torch.distributed, else from the
            environment (RANK, WORLD_SIZE), else 0 of 1.
        world: How many ranks there are.
        last: How a pass ends: "join" (the batch that crosses into the next epoch ends it, and the next pass continues
            after that batch), "drop" (that batch is left out) or "short" (the last batch has padded rows; `row_valid`
            is false there).
        length: Windows in a pass. Default: all of them.
        weights: How likely each window is, [W]; windows are then drawn with replacement, and `length` is needed.
        device: None: NumPy arrays. "cpu", "cuda", ...: torch tensors there.
        arrays: "jax" for JAX arrays. If `device` is given, they share the memory of torch tensors on it. int64 entries
            (`time`, `position`, `.age`, ...) stay NumPy arrays unless jax_enable_x64 is set.
        resident: Whether samples lie on the device: "auto" (as many streams as fit), True, False, or the most bytes,
            such as "40GiB".
        reuse: The number of buffers that batches take in turn: batch k + reuse overwrites batch k, so a CUDA graph
            finds its addresses again. Only one thread may then take batches. 0: every batch has memory of its own.
        transform: A function that gets each batch and returns it, changed or not.
        tokenize: A function of a task's text that returns a list of numbers; runs once for each task. Batches then have
            `task_tokens` [B, L] and `task_tokens.valid`, padded to the longest.
        stats: Statistics of a checkpoint in place of the cache's, for keys that are normalised and have no `stats` of
            their own: a path (LeRobot's stats.json or saved normaliser, openpi's norm_stats.json, or their folder), or
            a dict by key. openpi's "state" and "actions" are "observation.state" and "action".
        backend: As in `rc.align`.

    Examples:
        >>> loader = rc.Loader("cache", batch_size=64, rate=50, observation=["joints"], action=["command"])
        >>> for batch in loader:
        ...     batch["observation.joints"], batch["action.command"], batch["action.command.valid"]
    """

    def __init__(
        self,
        cache: Cache | Path,
        *,
        batch_size: int,
        rate: float,
        keys: Mapping[str, Key] | None = None,
        observation: Sequence[str] | str | None = None,
        action: Sequence[str] | str | None = None,
        observation_steps: int = 1,
        action_steps: int = 1,
        episodes: Any = None,
        split: str | None = None,
        where: Any = None,
        stride: Duration | None = None,
        whole: bool = False,
        drop_last_steps: int = 0,
        missing: str = "error",
        shuffle: bool = True,
        seed: int = 0,
        rank: int | None = None,
        world: int | None = None,
        last: Last = "join",
        length: int | None = None,
        weights: Any = None,
        device: Any = None,
        arrays: str | None = None,
        resident: bool | int | str = "auto",
        reuse: int = 0,
        transform: Callable[[Batch], Batch] | None = None,
        tokenize: Callable[[str], Sequence[int]] | None = None,
        stats: Any = None,
        backend: str | None = None,
    ) -> None:
        self._known_cache: str | None = None  # fingerprints
        self._known_spec: str | None = None
        self._known_bytes: int | None = None  # of a window in a batch
        self.cache = opened(cache)
        self.rate = rate_of("Loader", rate)
        self.batch_size = whole_number("batch_size", batch_size, 1)
        self.seed = whole_number("seed", seed, 0, 2**64)
        self.rank, self.world = ranks.resolved(rank, world)
        for argument, given in (("transform", transform), ("tokenize", tokenize)):
            if given is not None and not callable(given):
                raise TypeError(f"Loader: {argument} is {given!r}; expected a function")
        self.transform, self._training = transform, True
        if keys is not None and (observation is not None or action is not None):
            raise ValueError("Loader: give keys, or observation and action, not both")
        short = (observation, action, observation_steps, action_steps, self._is_camera)
        self.keys = with_stats(short_form(*short) if keys is None else table_of(keys), stats)
        check_origins(self.keys)
        left_out: dict[str, int] = {}
        numbers = selected_episodes(self.cache, episodes, split, left_out)
        self._numbers_of_all_splits = numbers if split is None else selected_episodes(self.cache, episodes, None, {})
        numbers = with_all_streams(self.cache, numbers, self._streams(), missing, left_out)
        asked = {name: self._prepared_streams(name, key) for name, key in self.keys.items()}
        dropped = whole_number("drop_last_steps", drop_last_steps, 0)
        self.windows = self._windows(numbers, asked, where, stride_of(stride), bool(whole), dropped, left_out)
        self.order = Order(
            len(self.windows),
            batch_size=self.batch_size,
            seed=self.seed,
            shuffle=bool(shuffle),
            rank=self.rank,
            world=self.world,
            last=last,
            length=length,
            weights=weights,
        )
        self._tasks = Tasks(self.cache, self.windows.episodes.tolist())
        self.tasks = self._tasks.texts
        self._selection = {
            "episodes": None if episodes is None else self._numbers_of_all_splits,
            "split": split,
            "where": where,
            "stride": stride_of(stride),
            "whole": bool(whole),
            "drop_last_steps": drop_last_steps,
            "missing": missing,
        }
        chosen = self.windows.episodes.tolist()
        self._members = {name: members_of(name, self.keys[name], asked[name], self.cache, chosen) for name in self.keys}
        if arrays == "jax":
            check_jax(self.keys)
        self.placement: Placement = placement_of(self.cache, chosen, self._members, device, arrays, resident)
        self._engine = self._make_engine(backend)
        self._entries: dict[str, Entry | Picture | Volume] = {name: self._entry(name) for name in self.keys}
        for name in self.keys:
            self._normalize(name, split)
        self._tokens = None if tokenize is None else tokens_of(self.tasks, tokenize)
        self._reuse = None if whole_number("reuse", reuse, 0) == 0 else BufferRing(reuse)
        if self._reuse is not None and arrays == "jax":
            raise ValueError("Loader: reuse is not for JAX, whose arrays do not change")
        self._position: int = 0
        self._length = length
        self._compared = False  # with the other ranks
        self._passes: SharedPasses | None = None  # the pass that workers of a DataLoader make

    # ---- Construction

    def _make_engine(self, backend: str | None) -> Engine:
        steps = {name: steps_of(key, self.rate) for name, key in self.keys.items()}
        numbers, place = self.windows.episodes.tolist(), self.placement
        return Engine(self.cache, numbers, self._members, steps, self.rate, place.device, place.packs, backend)

    def __getstate__(self) -> dict[str, Any]:
        return pickling.parts(self)

    def __setstate__(self, kept: dict[str, Any]) -> None:
        pickling.restore(self, kept)

    def _is_camera(self, stream: str) -> bool:
        return is_picture(self.cache._info(stream))

    def _streams(self) -> list[str]:
        return list(dict.fromkeys(stream for key in self.keys.values() for stream in key.streams))

    def _prepared_streams(self, name: str, key: Key) -> dict[str, PreparedStream]:
        for stream in key.streams:
            with named(f'Loader: key "{name}"'):
                self.cache._info(stream)  # raises if there is no such stream
        groups = {stream: self.cache._joined.get(stream, (stream,)) for stream in key.streams}
        options = {"method": key.method, "max_gap": key.max_gap}
        return prepared(f'Loader: key "{name}"', groups, self.cache._infos, options)

    def _windows(
        self,
        numbers: Sequence[int],
        asked: Mapping[str, Mapping[str, PreparedStream]],
        where: Any,
        stride: int | None,
        whole: bool,
        drop_last_steps: int,
        left_out: dict[str, int],
    ) -> Windows:
        offsets = [key.offsets(self.rate) for key in self.keys.values()]
        reach = int(min(each[0] for each in offsets)), int(max(each[-1] for each in offsets))
        chosen = [self.cache.episodes[number] for number in numbers]
        together = {f"{name}: {stream}": one for name, some in asked.items() for stream, one in some.items()}
        spans = self.cache._spans(chosen, together)
        return windows_of(
            self.cache,
            numbers,
            spans,
            Grid(self.rate, stride),
            reach,
            whole=whole,
            drop_last_steps=drop_last_steps,
            keep=where_filter(self.cache, where),
            left_out=left_out,
        )

    def _entry(self, name: str) -> Entry | Picture | Volume:
        key, members = self.keys[name], self._members[name]
        if key.voxels is not None:
            return Volume(name, key, members[0])
        if members[0].camera is not None:
            return Picture(name, key, members[0])
        entry = Entry(name, key, members)
        if key.relative_to is not None:
            origin = self.keys[key.relative_to], self._members[key.relative_to]
            entry.origin_step = origin_step_of(entry, *origin, self.rate)
        return entry

    def _normalize(self, name: str, split: str | None) -> None:
        entry, key = self._entries[name], self.keys[name]
        if key.normalize == "identity" or (isinstance(entry, Picture) and key.normalize == "imagenet"):
            return
        if isinstance(entry, Picture):
            entry.normalized_by(picture_statistics(self, entry, split))
        elif isinstance(entry, Entry):
            entry.normalizer = normalizer_of(self, entry, split)

    # ---- Batches

    def __len__(self) -> int:
        """The number of batches in the current pass, including those that were handed out before."""
        return self.order.pass_batches(self._position)

    def __iter__(self) -> Iterator[Batch]:
        """One pass: from the next position to the end of an epoch."""
        ranks.compare(self)
        is_last = False
        try:
            while not is_last:
                position = self.order.begin(self._position)
                is_last = self.order.is_last(position)
                batch = self._batch(position)
                self._position = self.order.after(position)
                yield batch
        finally:
            if self._passes is not None:
                self._passes.reset(self._position)

    def __getitem__(self, number: Any) -> Any:
        """Raises TypeError: torch's DataLoader calls this for data sets that it does not know as iterable."""
        raise TypeError(
            f"Loader: a loader has batches, not items; loader.batch({number!r}) is one. Loop over the loader itself, "
            "or give a DataLoader loader.iterable() and batch_size=None, or loader.dataset()"
        )

    def batch(self, number: int) -> Batch:
        """This rank's rows of a global batch, from its number alone.

        Args:
            number: From 0 on, without end.

        Returns:
            The batch.
        """
        return self._batch(self.order.start(whole_number("number", number, 0)))

    def window(self, episode: int | str, t: float | int) -> Batch:
        """What a robot knows at any moment of an episode: one row, without draws, with crops in the middle.

        Keys of actions are not in it, unless they have another knowledge than "truth": a robot that decides at t has
        not acted yet. `transform` gets it as it is.

        Args:
            episode: Its number in the cache, or its name. It must be one that the loader has windows of.
            t: The anchor: nanoseconds as an int, or seconds as a float, on the clock of the recording. At most a day
                before or after the episode.

        Returns:
            A batch of one row. `position` is -1.
        """
        [number] = numbers_of("Loader.window", self.cache.episodes, [episode])
        places = np.flatnonzero(self.windows.episodes == number)
        if not len(places):
            raise ValueError(f"Loader.window: the loader has no windows of episode {episode!r}")
        rows = Rows(places, np.asarray([number], np.int64), anchor_of("Loader.window", self.cache.episodes[number], t))
        known = [name for name, key in self.keys.items() if is_known_to_a_robot(name, key)]
        return self._make_batch(rows, np.asarray([-1], np.int64), None, draws=False, names=known)

    def _batch(self, position: int) -> Batch:
        """The batch of this rank in the global batch that starts at a position."""
        rows = Rows(*self.windows.at(self.order.numbers(position)))
        row_valid = self.order.row_valid(position) if self.order.last == "short" else None
        return self._make_batch(
            rows, self.order.positions(position), row_valid, draws=self._training, reuse=self._reuse
        )

    def _make_batch(
        self,
        rows: Rows,
        positions: Integers,
        row_valid: NDArray[np.bool_] | None,
        *,
        draws: bool,
        reuse: BufferRing | None = None,
        names: Sequence[str] | None = None,
    ) -> Batch:
        """The batch of any rows. reuse: the memory that it is in; None: its own. names: the keys; None: all."""
        batch = made(self, rows, positions, row_valid, draws, list(self._entries) if names is None else names)
        if reuse is not None:
            batch = reuse(batch)
        return batch if self.transform is None else changed_by(self.transform, batch)

    def _transformed(self, entry: Entry, raws: Mapping[str, Raw]) -> tuple[Raw, Any]:
        """An entry's values, relative and rotated. A row whose origin has no sample is not valid."""
        raw, other = raws[entry.name], entry.key.relative_to
        if other is None:
            return raw, entry.transformed(raw, None)
        origin, step = raws[other], entry.origin_step
        values = entry.transformed(raw, origin.values[:, step])
        return raw.without(functools.reduce(operator.or_, (none[:, step] for none in origin.never))), values

    def _raw_windows(self, numbers: Integers) -> dict[str, Raw]:
        """The windows with these numbers, before values become relative. Statistics need them."""
        aligned = self._engine.align(Rows(*self.windows.at(numbers)))
        return {name: e.raw(aligned) for name, e in self._entries.items() if isinstance(e, Entry)}

    # ---- State and spec

    def eval(self) -> Loader:
        """The same loader without augmentation: crops are in the middle, and no stream is dropped.

        Returns:
            A loader that shares the samples with this one.
        """
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        other._training, other._passes = False, None
        other._reuse = None if self._reuse is None else BufferRing(self._reuse.count)
        return other

    def state_dict(self) -> dict[str, Any]:
        """The next position and fingerprints of cache, spec and seed, as JSON.

        Returns:
            The state.

        Raises:
            RuntimeError: Workers of a `DataLoader` make the batches; use `state_after`.
        """
        if self._passes is not None and self._passes.is_used():
            raise RuntimeError(
                "Loader.state_dict: workers of a DataLoader make the batches, and the loader is not told which of them "
                "were handed out; use loader.state_after(batch), or a StatefulDataLoader and its state_dict()"
            )
        return State.of(self, self._position).to_json()

    def state_after(self, batch: Batch) -> dict[str, Any]:
        """The state after a batch, for loaders with workers: batches that were prefetched since do not count.

        Args:
            batch: A batch of this loader. It must still have its `position`.

        Returns:
            The state.
        """
        first = int(batch["position"][0])
        if first < 0:
            raise ValueError("Loader.state_after: the batch is no part of the loader's order; its position is -1")
        if "row_valid" in batch and not bool(batch["row_valid"][0]):  # padded: the pass ends here
            return State.of(self, self.order.end(first)).to_json()
        return State.of(self, self.order.after(first - self.rank * self.batch_size)).to_json()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a state, also with another number of ranks or another batch size.

        Args:
            state: What `state_dict` or `state_after` has returned.

        Raises:
            ValueError: The state is of another cache, spec or seed; the sentence says what differs.
        """
        self._position = State.from_json(state).checked(self)
        if self._passes is not None:
            self._passes.reset(self._position)

    def dataset(self, *, in_order: bool = False) -> WindowDataset:
        """The windows by number, map-style, for torch's `DataLoader`: a sampler says the order, ranks and batches.

        Args:
            in_order: True: number i is the i-th window of the loader's order, in the epoch of `set_epoch`. False: it
                is window i, by episode and then by time.

        Returns:
            A data set of single windows. `collate_fn=dataset.collate` keeps each batch whole, instead of taking it
            apart and putting it together again.
        """
        import_torch("Loader.dataset")
        from robocache._loader.datasets import WindowDataset

        return WindowDataset(self, in_order)

    def iterable(self) -> BatchDataset:
        """The batches in the loader's order, for torch's `DataLoader(..., batch_size=None)` with any workers.

        Each `for` over the `DataLoader` is the next pass, even if the pass before was left early. To continue in the
        middle of a pass, use torchdata's `StatefulDataLoader`, or `load_state_dict(state_after(batch))`.

        Returns:
            An iterable data set.
        """
        import_torch("Loader.iterable")
        from robocache._loader.datasets import BatchDataset

        return BatchDataset(self)

    def spec(self) -> dict[str, Any]:
        """The spec of the batches as JSON. Save it with a checkpoint, and `from_spec` makes the same loader anywhere.

        Returns:
            The spec.
        """
        return json_of(self)

    @staticmethod
    def from_spec(cache: Cache | Path, spec: Mapping[str, Any], **changes: Any) -> Loader:
        """The loader that a spec describes.

        Args:
            cache: The cache.
            spec: What `spec()` has returned. Its statistics are used, not those of the cache.
            **changes: Arguments of `Loader` in place of the spec's, such as `split="val"`. A spec has no `device`,
                `rank`, `transform` or `tokenize`, and has only a hash of `weights`: give them again.

        Returns:
            The loader.
        """
        return Loader(cache, **arguments_of(spec, changes))

    def invert(self, name: str, chunk: Any, batch: Mapping[str, Any] | None = None) -> Any:
        """Undoes normalisation, rotation and the subtraction of the origin: the key in the units of its streams.

        Args:
            name: The key, such as "action".
            chunk: What a policy returned: [..., T, D].
            batch: The batch that the chunk belongs to, if the key is relative: it has the key of the origin.

        Returns:
            float32 [..., T, D]. Without the cache, as on a robot: `rc.LoaderSpec(spec).invert`.
        """
        return inverted(self._entries, name, chunk, batch)

    # ---- Other libraries' batches

    def lerobot(
        self,
        *,
        names: Mapping[str, str] | None = None,
        time_axis: bool | Sequence[str] = False,
        imagenet_stats: bool = True,
    ) -> LeRobotBatches:
        """Batches as LeRobot's policies want them: torch tensors, not normalised, `action_is_pad`, `task`, `.meta`.

        Args:
            names: {key: LeRobot's name}, for keys that LeRobot names differently.
            time_axis: Whether keys whose only step is the anchor keep their time axis: True for all, or their names.
            imagenet_stats: Whether cameras get ImageNet's mean and std in `meta.stats`, as in LeRobot's training
                script.

        Returns:
            An iterable of batches.
        """
        from robocache._loader.lerobot import LeRobotBatches

        return LeRobotBatches(self, names, time_axis, imagenet_stats)

    def openpi(
        self,
        *,
        model: str = "pi05",
        images: Mapping[str, str | None] | None = None,
        state: str = "observation.state",
        actions: str | None = "action",
        width: int = 32,
        norm_stats: Any = None,
        normalize: bool = True,
        prompt: str = "",
    ) -> OpenPIBatches:
        """Batches as openpi's models want them: image, image_mask, state, actions, prompt.

        Args:
            model: "pi0" (normalised by mean and std), "pi05" or "pi0_fast" (by quantiles).
            images: {openpi's name: the key of a camera, or None}. Default: by the words wrist and right in the keys.
            state: The key of the state. Its step at the anchor is used, and so is that of each camera.
            actions: The key of the actions. None: batches have no actions.
            width: State and actions are padded with zeros to this many channels, after they are normalised.
            norm_stats: A checkpoint's statistics: the path of norm_stats.json or of its folder, or a dict. Default:
                those of the keys, else of the training episodes.
            normalize: False: values stay in the units of the streams.
            prompt: The prompt of episodes without a task.

        Returns:
            An iterable of batches.
        """
        from robocache._loader.openpi import OpenPIBatches

        return OpenPIBatches(self, model, images, state, actions, width, norm_stats, normalize, prompt)

    def __repr__(self) -> str:
        return described(self)


def changed_by(transform: Callable[[Batch], Batch], batch: Batch) -> Batch:
    made = transform(batch)
    if made is None:
        raise TypeError("Loader: transform returned None; it must return the batch, also if it has changed it in place")
    return made


def opened(cache: Any) -> Cache:
    if isinstance(cache, Cache):
        return cache
    if not isinstance(cache, (str, bytes, os.PathLike)):
        raise TypeError(f"Loader: cache is {cache!r}; expected an rc.Cache, or its path")
    return Cache(os.fsdecode(cache))
