"""The image rows. A case has the methods that the cases of bench.cases have."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from bench import others
from bench.goals import COMPILED, EAGER, TUNED, Row
from bench.timing import Call

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PILLOW, OPENCV = "Pillow", "OpenCV INTER_AREA"
NAMES = (PILLOW, OPENCV)


@dataclasses.dataclass
class Inputs:
    frames: Tensor  # uint8 [N, H, W, 3]
    rows: Tensor | None
    mean: Tensor  # for torch
    std: Tensor


def normalised(inputs: Inputs) -> Tensor:
    """What people write in torch today: a gather, and the arithmetic of torchvision's ToTensor and Normalize."""
    frames = inputs.frames if inputs.rows is None else inputs.frames[inputs.rows]
    return (frames.permute(0, 3, 1, 2).to(torch.float32).div(255) - inputs.mean).div(inputs.std).to(torch.bfloat16)


def resized(inputs: Inputs, size: tuple[int, int]) -> Tensor:
    """torchvision's resize(antialias=True): uint8 on a CPU has kernels of its own; on a GPU it goes through floats."""
    frames = inputs.frames.permute(0, 3, 1, 2)
    resize = torch.nn.functional.interpolate
    if frames.device.type == "cpu":
        return resize(frames, size, mode="bilinear", antialias=True)
    made = resize(frames.to(torch.float32), size, mode="bilinear", antialias=True)
    return made.clamp(0, 255).round().to(torch.uint8)


@dataclasses.dataclass(frozen=True, eq=False)
class ImageCase(Row):
    name: str
    frames: int
    before: tuple[int, int]
    size: tuple[int, int] | None = None
    stack: int | None = None  # frames are taken out of so many, at random
    devices: tuple[str, ...] = ("cuda", "cpu")

    op = "image"

    @property
    def peer(self) -> Callable[..., Any]:
        size = self.size
        return normalised if size is None else lambda inputs: resized(inputs, size)

    def peers(self, device: str) -> tuple[str, ...]:
        return (EAGER, COMPILED, TUNED) if self.size is None or device == "cuda" else (EAGER, *NAMES)

    def make(self, device: str, seed: int = 0) -> Inputs:
        generator = torch.Generator(device).manual_seed(seed)
        shape = (self.stack or self.frames, *self.before, 3)
        frames = torch.randint(0, 256, shape, dtype=torch.uint8, device=device, generator=generator)
        rows = None
        if self.stack is not None:
            rows = torch.randint(0, self.stack, (self.frames,), device=device, generator=generator)
        mean, std = (torch.tensor(numbers, device=device).reshape(3, 1, 1) for numbers in (MEAN, STD))
        return Inputs(frames, rows, mean, std)

    def ours(self, rc: ModuleType, inputs: Inputs, **options: Any) -> Call:
        if self.size is not None:
            return lambda: rc.image(inputs.frames, self.size, layout="nchw", **options)
        form = {"dtype": torch.bfloat16, "mean": MEAN, "std": STD, "layout": "nchw"} | options
        return lambda: rc.image(inputs.frames, rows=inputs.rows, **form)

    def results(self, returned: Any) -> list[Tensor]:
        return [returned]

    def peer_call(self, inputs: Inputs, function: Callable[..., Any] | None = None) -> Call:
        chosen = function or self.peer
        return lambda: chosen(inputs)

    def other_call(self, who: str, inputs: Inputs) -> Call:
        assert self.size is not None
        height, width = self.size
        frames = inputs.frames.numpy()
        if who == PILLOW:
            library = others.module("PIL.Image", "pip install pillow")
            pictures = [library.fromarray(frame) for frame in frames]
            how = library.Resampling.BILINEAR
            return lambda: [picture.resize((width, height), how) for picture in pictures]
        library = others.module("cv2", "pip install opencv-python-headless")
        library.setNumThreads(torch.get_num_threads())
        return lambda: [library.resize(frame, (width, height), interpolation=library.INTER_AREA) for frame in frames]

    def compared(self, who: str, results: list[Any]) -> list[Any]:
        """Lists of frames as one tensor. OpenCV's filter is another one, so only its shape is compared."""
        if not isinstance(results[0], list):
            return [torch.zeros(results[0].shape)] if who == OPENCV else results
        numpy = importlib.import_module("numpy")
        frames = torch.from_numpy(numpy.stack([numpy.asarray(frame) for frame in results[0]])).permute(0, 3, 1, 2)
        return [torch.zeros(frames.shape)] if who == OPENCV else [frames]

    def truth(self, inputs: Inputs) -> list[Tensor]:
        """By the portable backend, because bytes are rounded twice and float64 rounds otherwise."""
        rc = importlib.import_module("robocache")
        return [self.ours(rc, inputs, backend="torch")()]

    def floor_bytes(self, inputs: Inputs) -> int:
        """Reads each frame that is used once, and writes the result."""
        height, width = self.size or self.before
        read = inputs.frames[0].numel() * self.frames
        if inputs.rows is not None:
            read = inputs.frames[0].numel() * len(inputs.rows.unique())
        return read + self.frames * height * width * 3 * (1 if self.size else 2)


IMAGE_CASES = (
    ImageCase("512 of 4096 frames 224x224x3->bf16 nchw", 512, (224, 224), stack=4096, devices=("cuda",)),
    ImageCase("32 of 64 frames 224x224x3->bf16 nchw", 32, (224, 224), stack=64),
    ImageCase("256 frames 480x640x3->224x224", 256, (480, 640), (224, 224), devices=("cuda",)),
    ImageCase("16 frames 480x640x3->224x224", 16, (480, 640), (224, 224)),
    ImageCase("16 frames 720x1280x3->256x256", 16, (720, 1280), (256, 256)),
)
