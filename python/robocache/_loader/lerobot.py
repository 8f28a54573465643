"""Batches as LeRobot's policies expect them, and the metadata that its factories and processors read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from robocache._loader.engine import Rows
from robocache._loader.entries import Entry
from robocache._loader.keys import is_action
from robocache._loader.normalize import IMAGENET
from robocache._loader.pictures import Picture
from robocache._loader.policies import Batch, PolicyBatches, is_only_anchor, numbers_by, picture_as, with_entries
from robocache._loader.statistics import training
from robocache._loader.volumes import Volume
from robocache._loader.window_statistics import QUANTILES, of_windows
from robocache._recordings.words import missing, need
from robocache._versions import import_torch

if TYPE_CHECKING:
    from robocache._loader.loader import Loader

BOOKKEEPING = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}
NO_TASK = "no task"  # as rc.export writes it
Integers = NDArray[np.int64]


class LeRobotBatches(PolicyBatches):
    """Batches as LeRobot's own data loader collates them: `loader.lerobot()` makes them.

    A batch is a dict. Each key is a float32 tensor that is not normalised: [B, T, D], or for a camera [B, T, 3, H, W]
    from 0 to 1. A key whose only step is the anchor has no T, as in LeRobot without `delta_timestamps`; actions have T.
    `KEY_is_pad` bool [B, T] is true where a step is not valid. Beside them are `task` (a list of str), `timestamp`,
    `frame_index`, `episode_index`, `index`, `task_index` and `position`.

    Attributes:
        meta: The metadata that LeRobot's `make_policy` and `make_pre_post_processors` read.
        loader: The loader behind it.
    """

    def __init__(
        self, loader: Loader, names: Mapping[str, str] | None, time_axis: bool | Iterable[str], imagenet_stats: bool
    ) -> None:
        if loader.placement.arrays == "jax":
            raise ValueError('Loader.lerobot: LeRobot has torch tensors, and this loader has arrays="jax"')
        import_torch("Loader.lerobot")
        self._names = names_of(loader, names)
        super().__init__(unnormalised(loader))
        self._has_time = {name: self._keeps_time(name, time_axis) for name in loader.keys}
        starts, ends = frames_of(loader)
        self._base = starts
        self.meta = LeRobotMeta(loader, self.loader, self._names, ends - starts, imagenet_stats)

    def _keeps_time(self, name: str, asked: bool | Iterable[str]) -> bool:
        if is_action(self._names[name]) or not is_only_anchor(self.loader, name):
            return True
        return asked if isinstance(asked, bool) else name in set(asked)

    def _convert(self, batch: Batch, rows: Rows) -> Batch:
        made: Batch = {}
        for name, known in self._names.items():
            if name not in batch:  # an action, which `window` does not have
                continue
            values, feature = self._tensor(batch[name]), self.meta.features[known]
            if feature["dtype"] == "float32":
                values = values.reshape(*values.shape[:2], *feature["shape"])
            made[known] = values if self._has_time[name] else values[:, 0]
            if self._has_time[name]:
                made[f"{known}_is_pad"] = ~self._tensor(batch[f"{name}.valid"])
        frame = frame_of(self.loader, rows)
        task = self.loader._tasks.at(rows)
        said: dict[str, NDArray[Any]] = {
            "timestamp": (frame / self.loader.rate).astype(np.float32),
            "frame_index": frame,
            "episode_index": rows.number,
            "index": self._base[rows.place] + frame,
            "task_index": np.where(task < 0, len(self.loader.tasks), task),
        }
        made |= {name: self._tensor(self.loader._engine.move(array)) for name, array in said.items()}
        made |= {name: self._tensor(batch[name]) for name in ("position", "row_valid") if name in batch}
        made["task"] = self._tasks(rows, NO_TASK)
        return made

    def _tensor(self, array: Any) -> Any:
        if isinstance(array, np.ndarray):
            import torch

            return torch.from_numpy(np.require(array, requirements=["C", "W"]))
        return array

    def __repr__(self) -> str:
        return f"LeRobotBatches({', '.join(self._names.values())} of {self.loader!r})"


class LeRobotMeta:
    """The part of a LeRobot data set's metadata that policies and processors read.

    Attributes:
        features: {name: {"dtype", "shape", "names"}}; a camera's shape is [H, W, 3].
        stats: {name: {"mean", "std", "min", "max", "q01", "q10", "q50", "q90", "q99", "count"}}, of the training
            episodes at the streams' own rates, as NumPy arrays; [3, 1, 1] from 0 to 1 for a camera.
        fps: The loader's rate.
        episodes: {"episode_index", "length", "tasks", "dataset_from_index", "dataset_to_index"}: lists.
        robot_type: None.
        repo_id: The path of the cache.
        root: None: there is no folder of LeRobot's.
        revision: None.
    """

    def __init__(
        self, loader: Loader, plain: Loader, names: Mapping[str, str], lengths: Integers, imagenet_stats: bool
    ) -> None:
        self.repo_id, self.root, self.revision, self.robot_type = str(loader.cache.path), None, None, None
        self.fps = int(loader.rate) if float(loader.rate).is_integer() else loader.rate
        self.features: dict[str, dict[str, Any]] = {}
        self.stats: dict[str, dict[str, NDArray[Any]]] = {}
        split = loader._selection["split"]
        pictures = {name for name in names if isinstance(plain._entries[name], Picture)}
        probe = plain._make_batch(
            Rows(*plain.windows.at(np.zeros(1, np.int64))), np.zeros(1, np.int64), None, draws=False
        )
        for name, known in names.items():
            if name in pictures:
                _, _, colours, height, width = probe[name].shape
                self.features[known] = {
                    "dtype": "image",
                    "shape": (height, width, colours),
                    "names": ["height", "width", "channels"],
                }
                self.stats[known] = picture_stats(loader, name, split, imagenet_stats)
            else:
                entry = plain._entries[name]
                assert isinstance(entry, Entry)
                self.features[known] = {"dtype": "float32", "shape": shape_of(entry), "names": channels_of(entry)}
                found = number_stats(plain, entry, split) | dict(loader.keys[name].stats or {})
                shape = {stat: (1,) if stat == "count" else shape_of(entry) for stat in found}
                self.stats[known] = {stat: np.asarray(value).reshape(shape[stat]) for stat, value in found.items()}
        self.features |= {name: {"dtype": dtype, "shape": (1,), "names": None} for name, dtype in BOOKKEEPING.items()}
        ends = np.cumsum(lengths)
        tasks = [*loader.tasks, NO_TASK]
        of_episodes = loader._tasks.of_episodes
        self._tasks = tasks if not all(of_episodes) else loader.tasks
        self.episodes: dict[str, list[Any]] = {
            "episode_index": loader.windows.episodes.tolist(),
            "length": lengths.tolist(),
            "tasks": [[tasks[task] for task in some or [-1]] for some in of_episodes],
            "dataset_from_index": (ends - lengths).tolist(),
            "dataset_to_index": ends.tolist(),
        }

    @property
    def tasks(self) -> Any:
        """A pandas DataFrame: the tasks as its index, their numbers in the column task_index."""
        try:
            import pandas
        except ModuleNotFoundError:
            raise need("pandas", "lerobot", "LeRobot's table of tasks") from None
        return pandas.DataFrame(
            {"task_index": range(len(self._tasks))}, index=pandas.Index(list(self._tasks), name="task")
        )

    @property
    def camera_keys(self) -> list[str]:
        """The names of cameras."""
        return [name for name, feature in self.features.items() if feature["dtype"] == "image"]

    @property
    def image_keys(self) -> list[str]:
        """As `camera_keys`."""
        return self.camera_keys

    @property
    def video_keys(self) -> list[str]:
        """Empty: pictures come from the cache."""
        return []

    @property
    def depth_keys(self) -> list[str]:
        """Empty."""
        return []

    @property
    def has_language_columns(self) -> bool:
        """False: a window has one task."""
        return False

    @property
    def names(self) -> dict[str, Any]:
        """The names of each feature's channels."""
        return {name: feature["names"] for name, feature in self.features.items()}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each feature."""
        return {name: tuple(feature["shape"]) for name, feature in self.features.items()}

    @property
    def total_episodes(self) -> int:
        """Episodes that have windows."""
        return len(self.episodes["length"])

    @property
    def total_frames(self) -> int:
        """Steps of 1 / rate from the first to the last anchor of each episode."""
        return sum(self.episodes["length"])

    @property
    def total_tasks(self) -> int:
        """Distinct tasks."""
        return len(self._tasks)

    def __repr__(self) -> str:
        return (
            f"LeRobotMeta({', '.join(name for name in self.features if name not in BOOKKEEPING)}; "
            f"{self.total_episodes:,} episodes, {self.total_frames:,} frames at {self.fps} Hz)"
        )


def names_of(loader: Loader, names: Mapping[str, str] | None) -> dict[str, str]:
    """LeRobot's name of each key."""
    given = dict(names or {})
    for name in given:
        if name not in loader.keys:
            raise ValueError(missing("Loader.lerobot: names= has a key that the loader lacks:", name, loader.keys))
    made = {name: given.get(name, name) for name in loader.keys}
    for known in made.values():
        if list(made.values()).count(known) > 1:
            raise ValueError(f'Loader.lerobot: two keys have the name "{known}"')
        if known in BOOKKEEPING or known in ("task", "position", "row_valid"):
            raise ValueError(f'Loader.lerobot: no key may be named "{known}": every batch has an entry of that name')
    return made


def unnormalised(loader: Loader) -> Loader:
    """The loader with float32 values in the units of the streams, and pictures [3, H, W] from 0 to 1."""
    changed: dict[str, Entry | Picture] = {}
    for name, entry in loader._entries.items():
        if isinstance(entry, Volume):
            raise ValueError(f'Loader.lerobot: key "{name}" is voxels, and LeRobot\'s policies have none')
        if isinstance(entry, Picture):
            if entry.member.has_frames and len(entry.member.info.shape) != 3:
                raise ValueError(
                    f'Loader.lerobot: key "{name}" is depth; LeRobot\'s policies expect pictures of 3 colours'
                )
            changed[name] = picture_as(entry, "float32", "nchw")
        else:
            changed[name] = numbers_by(entry, None)
    return with_entries(loader, changed)


def frame_of(loader: Loader, rows: Rows) -> Integers:
    """The step of each anchor in its episode, in units of 1 / rate."""
    since = (rows.anchor - loader.windows.starts[rows.place]).astype(np.float64)
    return np.rint(since * loader.rate / 1e9).astype(np.int64)


def frames_of(loader: Loader) -> tuple[Integers, Integers]:
    """The first and the last index of each episode, half-open: steps of 1 / rate up to its last anchor."""
    last = frame_of(loader, Rows(*loader.windows.at(loader.windows._ends - 1)))
    ends = np.cumsum(last + 1)
    return ends - (last + 1), ends


def shape_of(entry: Entry) -> tuple[int, ...]:
    """The shape of a sample: the stream's own shape if the key is one stream that is not rotated."""
    shape = tuple(entry.members[0].info.shape)
    return shape if len(entry.members) == 1 and not entry.quaternions and len(shape) > 1 else (entry.width,)


def channels_of(entry: Entry) -> list[str] | None:
    found = [name for member in entry.members for name in member.info.channels]
    return found if len(found) == entry.width and not entry.quaternions else None


def number_stats(loader: Loader, entry: Entry, split: str | None) -> dict[str, NDArray[Any]]:
    """LeRobot's statistics of a key: of the streams' samples, or of the windows if it is relative or rotated."""
    if entry.key.relative is not None or entry.quaternions:
        return dict(of_windows(loader, entry, split))
    stored = [member.stored for member in entry.members]
    episodes = training(loader, split, stored)
    parts = [loader.cache.statistics(name, episodes, quantiles=tuple(QUANTILES.values())) for name in stored]
    found: dict[str, NDArray[Any]] = {
        side: np.concatenate([np.ravel(getattr(part, side)) for part in parts]).astype(np.float64)
        for side in ("mean", "std", "min", "max")
    }
    for name, q in QUANTILES.items():
        found[name] = np.concatenate([np.ravel(part.quantile(q)) for part in parts]).astype(np.float64)
    return found | {"count": np.asarray([max(int(np.max(part.count, initial=0)) for part in parts)])}


def picture_stats(loader: Loader, name: str, split: str | None, imagenet: bool) -> dict[str, NDArray[Any]]:
    """LeRobot's statistics of a camera: ImageNet's mean and std, or its own; [3, 1, 1], from 0 to 1."""
    entry = loader._entries[name]
    assert isinstance(entry, Picture)
    if imagenet:
        found: dict[str, Any] = {"min": (0.0,) * 3, "max": (1.0,) * 3, **IMAGENET}
    else:
        episodes = training(loader, split, [entry.member.stored])
        own = loader.cache.statistics(str(entry.member.camera), episodes, quantiles=tuple(QUANTILES.values()))
        found = {side: np.asarray(getattr(own, side)) / 255.0 for side in ("mean", "std", "min", "max")}
        found |= {stat: np.asarray(own.quantile(q)) / 255.0 for stat, q in QUANTILES.items()}
    found |= dict(entry.key.stats or {})
    return {stat: np.asarray(value, np.float64).reshape(-1, 1, 1) for stat, value in found.items()}
