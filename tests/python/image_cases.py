"""The case table of image, from a case to a call, and back to NumPy."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import calling
import numpy as np
from cases import BFLOAT16, Case, Random

import robocache as rc

Outputs = list[np.ndarray]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FILTERS = ("bilinear", "box", "bicubic", "nearest")


@dataclass
class Problem:
    arrays: dict[str, np.ndarray]  # frames, or y and u, v or uv; rows, crop_offsets
    options: dict[str, Any] = field(default_factory=dict)


def make(
    random: Random,
    *,
    source: str = "colour",
    height: int = 21,
    width: int = 34,
    channels: int = 3,
    lead: tuple[int, ...] = (2,),
    strides: str | None = None,
    rows: bool = False,
    crop_offsets: tuple[int, int] | None = None,  # the largest
    **options: Any,
) -> Problem:
    h, w = (height + 1) // 2, (width + 1) // 2
    tall = height if source.startswith("yuv422") else h
    shapes: dict[str, tuple[int, ...]] = {
        "colour": {"frames": (height, width, channels)},
        "depth": {"frames": (height, width)},
        "yuv420": {"y": (height, width), "u": (h, w), "v": (h, w)},
        "yuv422": {"y": (height, width), "u": (tall, w), "v": (tall, w)},
        "nv12": {"y": (height, width), "uv": (h, w, 2)},
        "yuv422 uv": {"y": (height, width), "uv": (tall, w, 2)},
    }[source]  # type: ignore[assignment]
    arrays = {}
    for name, shape in shapes.items():
        drawn = random.integers(0, 10_000 if source == "depth" else 256, (*lead, *shape))
        if source == "depth":
            drawn[drawn % 3 == 0] = 0
        else:
            drawn[drawn % 8 == 0] = 0  # with 255, so that bicubic overshoots
            drawn[drawn % 8 == 7] = 255
        arrays[name] = drawn.astype(np.uint16 if source == "depth" else np.uint8)
        if strides == "planar":
            arrays[name] = np.ascontiguousarray(np.moveaxis(arrays[name], -1, -3)).swapaxes(-3, -1).swapaxes(-3, -2)
        elif strides == "negative":
            arrays[name] = np.ascontiguousarray(arrays[name][..., ::-1, :, :])[..., ::-1, :, :]
        elif strides == "step":
            arrays[name] = np.repeat(np.repeat(arrays[name], 2, axis=-2), 3, axis=-1)[..., ::2, ::3]
    count = int(np.prod(lead))
    if rows:
        arrays["rows"] = random.integers(0, lead[0], 5).astype(np.int64)
        count = 5
    if crop_offsets is not None:
        drawn = [random.integers(0, most + 1, count) for most in crop_offsets]
        arrays["crop_offsets"] = np.stack(drawn, axis=-1).astype(np.int32)
    return Problem(arrays, options)


def table() -> list[Case]:
    cases: list[Case] = []

    def add(name: str, **arguments: Any) -> None:
        cases.append(Case(name, lambda random: make(random, **arguments)))

    for filter in FILTERS:
        for channels in (1, 3, 4):
            add(f"{filter}/{channels}/down", filter=filter, channels=channels, size=(8, 11))
            add(f"{filter}/{channels}/up", filter=filter, channels=channels, size=(50, 77))
        add(f"{filter}/mixed", filter=filter, size=(40, 5), lead=())
        add(f"{filter}/one", filter=filter, size=(1, 1))
    for fit in ("cover", "contain"):
        for size in ((16, 16), (9, 40), (64, 20), (1, 1)):
            add(f"{fit}/{size[0]}x{size[1]}", fit=fit, size=size, pad=(9, 200, 3))
        add(f"{fit}/crop", fit=fit, size=(24, 24), crop=(17, 13), pad=7)
        add(f"{fit}/crop_offsets", fit=fit, size=(24, 24), crop=(17, 13), crop_offsets=(7, 11), lead=(3, 2))
    add("crop/offsets", crop=(5, 6), crop_offsets=(16, 28))
    add("crop/place", crop=(3, 4, 10, 20), size=(20, 30))
    add("box", box=(2, 3, 15, 20), size=(10, 10))
    add("box/rows/crop", box=(2, 3, 15, 20), size=(10, 10), rows=True, crop=(4, 4), crop_offsets=(6, 6), lead=(4,))
    for dtype in ("float32", "float16", *(["bfloat16"] if BFLOAT16 else [])):
        for layout in ("nhwc", "nchw"):
            add(f"{dtype}/{layout}", dtype=dtype, layout=layout, mean=MEAN, std=STD, rows=True)
            add(f"{dtype}/{layout}/resize", dtype=dtype, layout=layout, mean=0.5, std=0.5, size=(12, 12), fit="contain")
        add(f"{dtype}/depth", source="depth", dtype=dtype, std=1000)
    add("uint8/nchw", layout="nchw", rows=True)
    for source in ("yuv420", "yuv422", "nv12", "yuv422 uv"):
        for siting in ("left", "center"):
            add(f"{source}/{siting}", source=source, yuv_siting=siting)
        add(f"{source}/odd", source=source, height=15, width=33, yuv_matrix="bt709", yuv_range="full")
        add(f"{source}/one", source=source, height=1, width=1, yuv_matrix="bt2020")
        add(f"{source}/resize", source=source, size=(10, 12), box=(1, 3, 18, 29), rows=True, dtype="float32")
    add("yuv420/720", source="yuv420", height=720, width=2, lead=())
    add("depth/nearest", source="depth", size=(10, 50))
    add("depth/box", source="depth", size=(6, 9), filter="box", fit="contain", pad=60000)
    add("depth/box/up", source="depth", size=(30, 40), filter="box")
    for how in ("planar", "negative", "step"):
        add(f"strides/{how}", strides=how, size=(9, 14))
    add("frames/0", lead=(0,), size=(9, 14))
    return cases


CASES = table()
BY_NAME = {case.name: case for case in CASES}


@functools.cache
def problem_of(name: str) -> Problem:
    return BY_NAME[name].build()


def inputs(problem: Problem) -> list[np.ndarray]:
    return list(problem.arrays.values())


def call(problem: Problem, backend: str | None, convert=calling.keep, **more: Any) -> Any:
    arrays = {name: convert(array) for name, array in problem.arrays.items()}
    planes = tuple(arrays[name] for name in ("y", "u", "v", "uv") if name in arrays)
    frames = planes or arrays["frames"]
    given = {name: arrays[name] for name in ("rows", "crop_offsets") if name in arrays}
    return rc.image(frames, **problem.options, **given, **more, backend=backend)


def outputs(problem: Problem, backend: str | None, convert=calling.keep) -> Outputs:
    return [calling.to_numpy(call(problem, backend, convert))]


@functools.cache
def reference(name: str) -> Outputs:
    return outputs(problem_of(name), "reference")
