"""Batches as openpi's models expect them: pi0, pi0.5 and pi0-FAST."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from robocache._loader.checkpoints import OPENPI, read_stats
from robocache._loader.engine import Rows
from robocache._loader.entries import Entry
from robocache._loader.gather import is_torch, padded
from robocache._loader.normalize import Normalizer
from robocache._loader.pictures import Picture
from robocache._loader.policies import Batch, PolicyBatches, numbers_by, picture_as, with_entries
from robocache._loader.statistics import normalizer_of
from robocache._recordings.words import missing

if TYPE_CHECKING:
    from robocache._loader.loader import Loader

KINDS = {"pi0": "mean_std", "pi05": "quantiles", "pi0_fast": "quantiles"}  # the normalisation of each model
IMAGES = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
SIDE = 224
WRIST_WORDS = ("wrist", "hand", "gripper")


class OpenPIBatches(PolicyBatches):
    """Batches as openpi's data loader has them before `Observation.from_dict`: `loader.openpi()` makes them.

    A batch is a dict: `image` {name: uint8 [B, 224, 224, 3]}, `image_mask` {name: bool [B]}, `state` float32 [B, 32],
    `actions` float32 [B, T, 32], `prompt` (a list of str), and if the loader tokenizes `tokenized_prompt` int32 and
    `tokenized_prompt_mask` bool [B, L]. Beside them are `actions_is_pad` bool [B, T], true where a step is not valid,
    and `position`.

    Attributes:
        images: {openpi's name: the key of the camera, or None}.
        loader: The loader behind it.
    """

    def __init__(
        self,
        loader: Loader,
        model: str,
        images: Mapping[str, str | None] | None,
        state: str,
        actions: str | None,
        width: int,
        norm_stats: Any,
        normalize: bool,
        prompt: str,
    ) -> None:
        if model not in KINDS:
            raise ValueError(f"Loader.openpi: model is {model!r}; expected one of {', '.join(map(repr, KINDS))}")
        self._model, self._prompt, self._width = model, prompt, width
        self._state, self._actions = state, actions
        self.images = images_of(loader, images)
        given = None if norm_stats is None else read_stats(norm_stats, "Loader.openpi: norm_stats")
        changed: dict[str, Entry | Picture] = {}
        for name, theirs in ((state, "state"), (actions, "actions")):
            if name is None:
                continue
            entry = loader._entries.get(name)
            if not isinstance(entry, Entry):
                numeric = [key for key, each in loader._entries.items() if isinstance(each, Entry)]
                raise ValueError(missing(f"Loader.openpi: {theirs}= names no key of numbers:", name, numeric))
            if entry.width > width:
                raise ValueError(
                    f'Loader.openpi: key "{name}" has {entry.width} channels; the model has {width} (width=)'
                )
            how = normalizer_for(loader, entry, theirs, KINDS[model], given) if normalize else None
            changed[name] = numbers_by(entry, how)
        for camera in filter(None, self.images.values()):
            entry = loader._entries[camera]
            assert isinstance(entry, Picture)
            resized = {} if entry.size or entry.crop else {"size": (SIDE, SIDE), "fit": "contain", "pad": 0}
            changed[camera] = picture_as(entry, "uint8", "nhwc", **resized)
        single = [state, *filter(None, self.images.values())]
        self._anchor = {name: anchor_of(loader, name) for name in single}
        super().__init__(with_entries(loader, changed))

    def _convert(self, batch: Batch, rows: Rows) -> Batch:
        made: Batch = {"image": {}, "image_mask": {}}
        masked = self._model != "pi0_fast"  # openpi masks no pictures of pi0-FAST
        pictures = {name: self._at_anchor(batch, key) for name, key in self.images.items() if key is not None}
        blank = next(iter(pictures.values()), None)
        for name, key in self.images.items():
            if key is None:
                made["image"][name] = self._zeros((len(rows.number), SIDE, SIDE, 3), "uint8", blank)
                made["image_mask"][name] = self._mask(batch, np.zeros(len(rows.number), bool) | (not masked))
            else:
                made["image"][name] = pictures[name]
                seen = batch[f"{key}.valid"][:, self._anchor[key]]
                made["image_mask"][name] = seen if masked else seen | True
        made["state"] = padded(self._at_anchor(batch, self._state), self._width)
        if self._actions is not None and self._actions in batch:  # `window` has no actions
            made["actions"] = padded(batch[self._actions], self._width)
            made["actions_is_pad"] = ~batch[f"{self._actions}.valid"]
        if "task_tokens" in batch:
            tokens = {"": as_int32(batch["task_tokens"])}
            made["tokenized_prompt"] = self.loader.placement.finished(tokens)[""]
            made["tokenized_prompt_mask"] = batch["task_tokens.valid"]
        made |= {name: batch[name] for name in ("position", "row_valid") if name in batch}
        made["prompt"] = self._tasks(rows, self._prompt)
        return made

    def _at_anchor(self, batch: Batch, key: str) -> Any:
        return batch[key][:, self._anchor[key]]

    def _zeros(self, shape: tuple[int, ...], dtype: str, like: Any) -> Any:
        """Black pictures, of the same shape as `like` if that is given."""
        if like is not None:
            return like * 0
        return self.loader.placement.finished({"": self.loader._engine.move(np.zeros(shape, dtype))})[""]

    def _mask(self, batch: Batch, mask: Any) -> Any:
        return self.loader.placement.finished({"": self.loader._engine.move(mask)})[""]

    def invert(self, actions: Any, batch: Mapping[str, Any] | None = None) -> Any:
        """The actions of a model in the units of their streams: without padding, normalisation and origin.

        Args:
            actions: The output of a model: [B, T, width].
            batch: The batch, if actions are relative: it has the `state` that they are relative to.

        Returns:
            float32 [B, T, D].
        """
        if self._actions is None:
            raise ValueError("Loader.openpi: this loader has no actions (actions=None)")
        widths = {name: self.loader._entries[name].width for name in (self._state, self._actions)}  # type: ignore[union-attr]
        origin = None
        if batch is not None:  # the state, repeated for each step of its key: only the step at the anchor is read
            steps = np.zeros(self._anchor[self._state] + 1, np.int64)
            origin = {self._state: batch["state"][:, None, : widths[self._state]][:, steps]}
        return self.loader.invert(self._actions, actions[..., : widths[self._actions]], origin)

    def norm_stats(self) -> dict[str, dict[str, list[float]]]:
        """The statistics in use, in the form of "norm_stats" in openpi's norm_stats.json.

        Returns:
            {"state": {...}, "actions": {...}}: mean and std, or q01 and q99.
        """
        made = {}
        for name, theirs in ((self._state, "state"), (self._actions, "actions")):
            entry = None if name is None else self.loader._entries[name]
            if isinstance(entry, Entry) and entry.normalizer is not None:
                made[theirs] = {stat: values.tolist() for stat, values in entry.normalizer.statistics.items()}
        return made

    def __repr__(self) -> str:
        cameras = ", ".join(f"{name}: {key or 'missing'}" for name, key in self.images.items())
        return f"OpenPIBatches({self._model}; {cameras}; {self.loader!r})"


def images_of(loader: Loader, given: Mapping[str, str | None] | None) -> dict[str, str | None]:
    """The camera for each of openpi's pictures."""
    cameras = [name for name, entry in loader._entries.items() if isinstance(entry, Picture)]
    if given is not None:
        for key in filter(None, given.values()):
            if key not in cameras:
                raise ValueError(missing("Loader.openpi: images= names no key of a camera:", key, cameras))
        return {**dict.fromkeys(IMAGES), **given} if set(given) <= set(IMAGES) else dict(given)
    made: dict[str, str | None] = dict.fromkeys(IMAGES)
    for camera in cameras:
        name = slot_of(camera)
        if made[name] is not None:
            raise ValueError(
                f'Loader.openpi: cameras "{made[name]}" and "{camera}" could both be {name}; say which by '
                f"images={{{', '.join(f'{slot!r}: ...' for slot in IMAGES)}}}"
            )
        made[name] = camera
    return made


def anchor_of(loader: Loader, name: str) -> int:
    """The number of the key's step at the anchor."""
    offsets = loader.keys[name].offsets(loader.rate).tolist()
    if 0 not in offsets:
        raise ValueError(
            f'Loader.openpi: key "{name}" has no step 0, and openpi needs states and pictures at the anchor'
        )
    return offsets.index(0)


def slot_of(camera: str) -> str:
    """The name of openpi's picture for a camera, by the words in the camera's name."""
    if any(word in camera.lower() for word in WRIST_WORDS):
        return IMAGES[2] if "right" in camera.lower() else IMAGES[1]
    return IMAGES[0]


def normalizer_for(loader: Loader, entry: Entry, theirs: str, kind: str, given: Any) -> Normalizer:
    """The normaliser for openpi, from a checkpoint's statistics, the key's own, or those of the episodes."""
    if given is not None:
        known = theirs if theirs in given else OPENPI[theirs]
        known = known if known in given else entry.name
        return Normalizer.from_openpi(given, known, kind, channels=entry.width)
    asked = numbers_by(entry, None)
    asked.key = entry.key.replace(normalize=kind, convention="openpi")
    return normalizer_of(loader, asked, loader._selection["split"])


def as_int32(values: Any) -> Any:
    if is_torch(values):
        import torch

        return values.to(torch.int32)
    return values.astype(np.int32)
