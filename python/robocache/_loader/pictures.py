"""Pictures: from a camera's frames, or its recorded samples, to the key's tensor in a batch."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache._align.results import Aligned
from robocache._cache.joined import NEVER
from robocache._cache.tier import native_of
from robocache._cache.values import numpy_dtype
from robocache._image.image import image
from robocache._loader.augment import amounts_of, augmented, check_form
from robocache._loader.engine import Draws, Engine, Member, Rows, uniform
from robocache._loader.keys import PICTURE_DTYPES, PICTURE_NORMALIZE, Key
from robocache._loader.normalize import image_mean_std
from robocache._recordings.images import as_colour

DEPTH_SCALE = 65535.0  # float pictures of depth are divided by this, unless they are normalised


def bfloat16_of(bits: Any) -> Any:
    """int16 seen as bfloat16."""
    if isinstance(bits, np.ndarray):
        return bits.view(numpy_dtype("bfloat16"))
    import torch

    return bits.view(torch.bfloat16)


class Picture:
    """A key of a camera: how its tensor is made.

    Attributes:
        mean: The mean that `rc.image` normalises with. None: it does not normalise.
        std: As `mean`.
    """

    def __init__(self, name: str, key: Key, member: Member) -> None:
        self.name, self.key, self.member = name, key, member
        self.options = dict(key.image or {})
        self.layout = self.options.pop("layout", "nchw")
        self.random_crop = bool(self.options.pop("random_crop", True))
        self.size: tuple[int, int] | None = self.options.pop("size", None)
        self.crop: tuple[int, int] | None = self.options.pop("crop", None)
        self.dtype = key.dtype or "float32"
        if self.dtype not in PICTURE_DTYPES:
            raise ValueError(f'Loader: key "{name}": dtype is {self.dtype}; pictures are {", ".join(PICTURE_DTYPES)}')
        if key.normalize not in PICTURE_NORMALIZE:
            raise ValueError(
                f'Loader: key "{name}": normalize is "{key.normalize}"; pictures have {", ".join(PICTURE_NORMALIZE)}'
            )
        for option in ("relative", "rotation"):
            if getattr(key, option) is not None:
                raise ValueError(f'Loader: key "{name}": {option} is not for pictures')
        self.mean: Any = None
        self.std: Any = None
        self.statistics: Mapping[str, Any] | None = None  # the statistics that mean and std come from
        is_depth = member.has_frames and member.info.dtype == np.uint16
        self.white = 1.0 if is_depth else 255.0  # the value in the frames that becomes 1
        shape = member.info.shape if member.has_frames else None
        self.channels = None if shape is None else shape[2] if len(shape) == 3 else 1
        if key.normalize == "imagenet":
            self.mean, self.std = image_mean_std("imagenet", channels=self.channels or 3, key=name)
        frame = self.size or (shape[:2] if shape else None)
        if self.crop is not None and frame is not None and (self.crop[0] > frame[0] or self.crop[1] > frame[1]):
            raise ValueError(
                f'Loader: key "{name}": crop is {self.crop[0]} x {self.crop[1]}, and the pictures are '
                f"{frame[0]} x {frame[1]}"
            )
        self.frame = frame
        if key.augment is not None and shape:
            check_form(name, key.augment, shape[2] if len(shape) == 3 else None)
        self._has_warned = False
        self._blank: NDArray[Any] | None = None  # a picture of zeros, for cameras without frames

    def normalized_by(self, statistics: Mapping[str, Any]) -> None:
        """Sets mean and std for normalize="mean_std": of colours from 0 to 1, or of depth in its own unit."""
        options: dict[str, Any] = {"convention": self.key.convention, "channels": self.channels, "key": self.name}
        self.mean, self.std = image_mean_std("mean_std", statistics, **options)
        self.statistics = statistics

    def made(self, aligned: Aligned[Any], rows: Rows, engine: Engine, draws: Draws | None) -> Any:
        """The tensor [B, T, C, H, W]. Without draws, crops are in the middle and pictures are not augmented."""
        never = aligned.age == NEVER
        frames = self.frames(aligned, rows, engine)
        shape = tuple(never.shape)
        crop = self._crop_options(frames, shape, draws)
        if draws is None or self.key.augment is None:
            out = self._out(frames, self.crop or self.size or frames.shape[1:3], engine)
            found = image(frames, self.size, **self._output_options(frames), **crop, **self.options, out=out)
        else:
            frames = self._augmented(image(frames, self.size, **crop, **self.options), shape, draws)
            found = image(frames, **self._output_options(frames), out=self._out(frames, frames.shape[1:3], engine))
        found = found.reshape((*shape, *found.shape[1:]))
        if bool(never.any()):
            found[never] = 0
        return found

    def frames(self, aligned: Aligned[Any], rows: Rows, engine: Engine) -> Any:
        """The frames of all steps, [N, H, W, C] or for depth [N, H, W]. Those that are not known are zeros."""
        if not self.member.has_frames:
            return self._decoded(aligned, rows, engine)
        if self.member.has_jitter:
            return self._looked_up(aligned, rows, engine)
        return aligned.values.reshape((-1, *aligned.values.shape[2:]))

    def _out(self, frames: Any, sides: Sequence[int], engine: Engine) -> Any:
        """Memory for the result on the host, if it is large. None: new memory."""
        if engine.memory is None:
            return None
        form = [len(frames), *sides, *frames.shape[3:]]
        if frames.ndim == 4 and self.layout == "nchw":
            form = [len(frames), frames.shape[3], *sides]
        kind = self.dtype if frames.ndim == 4 or self.dtype != "uint8" else "uint16"
        if kind == "bfloat16":  # NumPy has it as bits
            found = engine.memory.empty(tuple(form), np.dtype(np.int16))
            return None if found is None else bfloat16_of(engine.move(found))
        found = engine.memory.empty(tuple(form), np.dtype(kind))
        return None if found is None else engine.move(found)

    def _output_options(self, frames: Any) -> dict[str, Any]:
        if self.dtype == "uint8":
            return {"layout": self.layout} if frames.ndim == 4 else {}
        scale = {} if self.mean is None else {"mean": self.mean, "std": self.std}
        if frames.ndim == 3 and not scale:  # depth
            scale = {"mean": 0.0, "std": DEPTH_SCALE}
        return {"dtype": self.dtype, "layout": self.layout, **scale}

    def _crop_options(self, frames: Any, shape: tuple[int, int], draws: Draws | None) -> dict[str, Any]:
        if self.crop is None:
            return {}
        if draws is None or not self.random_crop:
            return {"crop": self.crop}
        height, width = self.size or frames.shape[1:3]
        places = np.stack(
            [
                uniform(draws(str(self.member.camera), "crop.top"), int(height) - self.crop[0] + 1),
                uniform(draws(str(self.member.camera), "crop.left"), int(width) - self.crop[1] + 1),
            ],
            axis=1,
        )
        return {"crop": self.crop, "crop_offsets": np.repeat(places, shape[1], axis=0)}

    def _augmented(self, frames: Any, shape: tuple[int, int], draws: Draws) -> Any:
        """The frames [N, H, W, C], augmented: all steps of a window with the same draw."""
        assert self.key.augment is not None
        check_form(self.name, self.key.augment, frames.shape[3] if frames.ndim == 4 else None)
        camera = str(self.member.camera)
        amounts = amounts_of(self.key.augment, lambda name, count: uniform(draws(camera, name), count))
        return augmented(frames, {name: np.repeat(each, shape[1]) for name, each in amounts.items()})

    def _looked_up(self, aligned: Aligned[Any], rows: Rows, engine: Engine) -> Any:
        """The frames of windows of which the number was aligned. Zeros where no frame is known."""
        index = np.asarray(aligned.index.cpu() if hasattr(aligned.index, "cpu") else aligned.index)
        samples, info = engine.samples[self.member.name], self.member.info
        made = np.zeros((index.size, *info.shape), info.dtype)
        for k, (place, number) in enumerate(zip(np.repeat(rows.place, index.shape[1]), index.ravel(), strict=True)):
            if number >= 0:
                made[k] = samples[place][number]
        return engine.move(made)

    def _decoded(self, aligned: Aligned[Any], rows: Rows, engine: Engine) -> Any:
        """Decodes the pictures of windows whose camera has no frames in the cache."""
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f'Loader: the cache does not have all frames of camera "{self.member.camera}"; its pictures are '
                "decoded for each batch, with the same bits but slowly: build the cache with frames "
                "(robocache build --frames)",
                stacklevel=2,
            )
        index = np.asarray(aligned.index.cpu() if hasattr(aligned.index, "cpu") else aligned.index)
        samples = engine.samples[self.member.name]
        place = np.broadcast_to(rows.place[:, None], index.shape)
        wanted = np.stack([place.ravel(), index.ravel()], axis=1)
        unique, back = np.unique(wanted, axis=0, return_inverse=True)
        if self._blank is None:  # a batch in which no picture is known must have the same shape
            first = next(episode for episode in samples if len(episode))
            self._blank = np.zeros_like(self._resized(native_of(first, 0)))
        pictures = [self._picture(samples[p], i) if i >= 0 else self._blank for p, i in unique.tolist()]
        shapes = {self._blank.shape, *(picture.shape for picture in pictures)}
        if len(shapes) > 1:
            sizes = ", ".join(" x ".join(map(str, shape)) for shape in sorted(shapes))
            raise ValueError(
                f'Loader: key "{self.name}": the pictures of camera "{self.member.camera}" have several shapes '
                f"({sizes}); give image=dict(size=(height, width)), or build the cache with frames"
            )
        return engine.move(np.stack(pictures)[back.reshape(-1)])

    def _picture(self, samples: Sequence[Any], k: int) -> NDArray[Any]:
        found = self._resized(native_of(samples, k))
        assert self._blank is not None
        return as_colour(found) if self._blank.shape[2:] == (3,) else found

    def _resized(self, picture: NDArray[Any]) -> NDArray[Any]:
        return picture if self.size is None else np.asarray(image(picture, self.size, **self.options))
