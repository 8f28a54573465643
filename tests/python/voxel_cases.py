"""The case table of voxelize and voxelize_depth. As in cases.py, inputs come from raw bits by exact operations."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cases import BFLOAT16, Case, Random, bits_of, dtype_of

POINT_DTYPES = ["float16", "float32", "float64"]
FEATURE_DTYPES = ["float16", "float32", "uint8", *(["bfloat16"] if BFLOAT16 else [])]
LAYOUTS = ["single", "padded", "lengths", "packed", "into", "packed_into"]
REDUCTIONS = ("count", "occupancy", "sum", "mean", "max", "min")
SPECIAL = (math.nan, math.inf, -math.inf, -0.0, 0.0, 1e-42, -1e-42, 2.0**-149, 3e38, -3e38, 60000.0, 6e-8)
GRID = ((-4.0, -4.0, -2.0), (0.5, 0.25, 0.5), (16, 32, 8))
TENTHS = ((-3.0, -2.7, -1.9), (0.1, 0.3, 0.7), (50, 17, 5))  # no number of float32
FLAT = ((-4.0, -4.0, -4.0), (8.0, 8.0, 8.0), (1, 1, 1))


@dataclass
class Problem:
    grid: tuple[tuple[float, ...], tuple[float, ...], tuple[int, ...]]
    arrays: dict[str, np.ndarray]  # points or depth, and every other array argument
    options: dict[str, Any] = field(default_factory=dict)
    start: tuple[np.ndarray, ...] | None = None  # accumulate: what `out` holds before the call

    @property
    def operation(self) -> str:
        return "voxelize_depth" if "depth" in self.arrays else "voxelize"


def special(random: Random, values: np.ndarray, one_in: int) -> np.ndarray:
    """Some elements become what arithmetic stumbles over, NaNs of any bits among them."""
    with np.errstate(over="ignore"):
        odd = np.array(SPECIAL).astype(values.dtype)
    picked = odd[random.integers(0, len(odd), values.shape)]
    mixed = np.where(random.integers(0, one_in, values.shape) == 0, picked, values)
    bits = bits_of(values.dtype)
    payload = random.bits(values.shape).astype(bits) & bits.type(0x7F)
    noisy = np.where(np.isnan(mixed.astype(np.float64)), mixed.view(bits) | payload, mixed.view(bits))
    return noisy.astype(bits).view(values.dtype)


def coordinates(random: Random, shape, dtype: str) -> np.ndarray:
    """Within a few metres; a third of them on multiples of a quarter, which are faces of GRID."""
    values = random.values((*shape, 3), dtype).astype(np.float64)
    quarters = np.rint(values * 4) / 4
    return np.where(random.integers(0, 3, values.shape) == 0, quarters, values).astype(dtype_of(dtype))


def feature_values(random: Random, shape, dtype: str) -> np.ndarray:
    return random.values(shape, dtype)


def rotation(random: Random) -> np.ndarray:
    """A 4x4 pose, rigid: from a quaternion of small integers, so that one division makes each number."""
    w, x, y, z = (int(k) for k in random.integers(-3, 4, 4))
    if w == x == y == z == 0:
        w = 1
    norm = w * w + x * x + y * y + z * z
    whole = [
        [w * w + x * x - y * y - z * z, 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), w * w - x * x + y * y - z * z, 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), w * w - x * x - y * y + z * z],
    ]
    pose = np.eye(4)
    pose[:3, :3] = np.array(whole, np.float64) / norm
    pose[:3, 3] = random.values(3, "float32").astype(np.float64) / 8
    return pose


def make_clouds(
    random: Random,
    *,
    dtype: str = "float32",
    layout: str = "single",
    points: int = 60,
    clouds: int = 3,
    channels: int | None = None,
    feature_dtype: str = "float32",
    odd_points: bool = False,
    odd_features: bool = False,
    pose: str | None = None,
    grid=GRID,
    columns: int = 3,
    **options: Any,
) -> Problem:
    arrays: dict[str, np.ndarray] = {}
    lead: tuple[int, ...] = (points,)
    if layout in ("padded", "lengths", "into"):
        lead = (clouds, points)
        if layout == "lengths":
            arrays["lengths"] = random.integers(0, points + 1, clouds)
    elif layout.startswith("packed"):
        sizes = random.integers(0, points + 1, clouds)
        arrays["offsets"] = np.concatenate([[2], 2 + np.cumsum(sizes)]).astype(np.int32)
        lead = (int(arrays["offsets"][-1]) + 1,)
    if layout.endswith("into"):
        arrays["into"] = random.integers(0, 2, clouds)
        options["grids"] = 2
    main = coordinates(random, lead, dtype)
    if odd_points:
        main = special(random, main, 12)
    if columns > 3:
        rest = np.full((*lead, columns - 3), np.nan, main.dtype)
        main = np.concatenate([main, rest], axis=-1)
    arrays["points"] = main
    if channels is not None:
        features = feature_values(random, (*lead, channels), feature_dtype)
        if odd_features and feature_dtype != "uint8":
            features = special(random, features, 10)
        arrays["features"] = features
    if pose is not None:
        each = layout != "single"
        poses = np.stack([rotation(random) for _ in range(clouds)]) if each else rotation(random)
        arrays["pose"] = poses.astype(pose)
    return Problem(grid, arrays, options)


def make_images(
    random: Random,
    *,
    dtype: str = "uint16",
    camera: str = "four",
    batched: bool = False,
    size: tuple[int, int] = (7, 11),
    channels: int | None = None,
    pose: bool = False,
    into: bool = False,
    **options: Any,
) -> Problem:
    cameras = 3
    height, width = size
    lead = (cameras, height, width) if batched else (height, width)
    arrays: dict[str, np.ndarray] = {}
    millimetres = random.integers(0, 3000, lead)
    millimetres = np.where(random.integers(0, 9, lead) == 0, 0, millimetres)
    if dtype == "uint16":
        arrays["depth"] = np.where(random.integers(0, 9, lead) == 0, 65535, millimetres).astype(np.uint16)
    else:
        metres = (millimetres.astype(np.float64) / 1024).astype(dtype)
        arrays["depth"] = special(random, metres, 12)
    own = batched and camera.endswith("each")
    focal = np.array([9.25, 9.5, 4.75, 3.125])
    table = np.stack([focal + k / 8 for k in range(cameras)])
    if camera.startswith("four"):
        arrays["intrinsics"] = table if own else focal
    elif camera.startswith("matrix"):
        matrices = np.zeros((cameras, 3, 3), np.float32)
        matrices[:, 0, 0], matrices[:, 1, 1], matrices[:, 0, 2], matrices[:, 1, 2] = table.T
        matrices[:, 2, 2] = 1
        arrays["intrinsics"] = matrices if own else matrices[0]
    else:
        shape = (cameras, height, width, 2) if own else (height, width, 2)
        arrays["rays"] = random.values(shape, "float32") / np.float32(4)
    if channels is not None:
        arrays["features"] = feature_values(random, (*lead, channels), "uint8")
    if pose:
        arrays["pose"] = np.stack([rotation(random) for _ in range(cameras)]) if batched else rotation(random)
    if into:
        arrays["into"] = np.array([1, 0, 1])
        options["grids"] = 3
    return Problem(((-2.0, -2.0, 0.0), (0.25, 0.25, 0.2), (16, 16, 14)), arrays, options)


def strided(problem: Problem, how: str) -> Problem:
    """The same numbers, elsewhere in memory."""
    for name in ("points", "features", "depth", "rays"):
        if name not in problem.arrays:
            continue
        array = problem.arrays[name]
        if how == "fortran":
            problem.arrays[name] = np.asfortranarray(array)
        elif how == "negative":
            problem.arrays[name] = array[::-1].copy()[::-1]
        elif how == "step":
            wide = np.zeros((*array.shape[:-2], array.shape[-2] * 2, array.shape[-1] * 3), array.dtype)
            wide[..., ::2, ::3] = array
            problem.arrays[name] = wide[..., ::2, ::3]
    return problem


def accumulating(random: Random, reductions: tuple[str, ...], **options: Any) -> Problem:
    problem = make_clouds(random, layout="padded", channels=3, reduce=reductions, accumulate=True, **options)
    start = []
    for reduction in reductions:
        shape: tuple[int, ...] = (3, *problem.grid[2])
        if reduction == "count":
            start.append(random.integers(0, 5, shape).astype(np.int32))
        elif reduction == "occupancy" and options.get("packed"):
            start.append(random.integers(0, 256, (*shape[:-1], (shape[-1] + 7) // 8)).astype(np.uint8))
        elif reduction == "occupancy":
            start.append(random.integers(0, 2, shape).astype(np.uint8))
        else:
            start.append(random.values((*shape, 3), "float32"))
    problem.start = tuple(start)
    return problem


def wide_range(random: Random) -> Problem:
    """Features over more powers of two than a sum can hold."""
    problem = make_clouds(random, points=300, channels=3, grid=FLAT, reduce=("sum", "mean"))
    features = problem.arrays["features"].astype(np.float64)
    exponent = random.integers(-100, 20, features.shape)
    problem.arrays["features"] = np.ldexp(features, exponent).astype(np.float32)
    return problem


def table() -> list[Case]:
    cases: list[Case] = []

    def add(name: str, make: Callable[..., Problem], *positional: Any, **arguments: Any) -> None:
        cases.append(Case(name, lambda random: make(random, *positional, **arguments)))

    for dtype in POINT_DTYPES:
        for layout in LAYOUTS:
            add(f"count/{dtype}/{layout}", make_clouds, dtype=dtype, layout=layout)
        add(f"special/{dtype}", make_clouds, dtype=dtype, layout="padded", odd_points=True, points=200)
        for pose in ("float32", "float64"):
            options = {"dtype": dtype, "layout": "padded", "pose": pose, "odd_points": True}
            add(f"pose/{dtype}/{pose}", make_clouds, **options)
        add(f"tenths/{dtype}", make_clouds, dtype=dtype, points=400, grid=TENTHS)
        add(f"tenths/{dtype}/pose", make_clouds, dtype=dtype, points=200, grid=TENTHS, pose="float64")
        for frame in ("grid", "sensor"):
            box = ((-2.0, -1.5, -math.inf), (1.1, 2.0, 0.7))
            options = {"dtype": dtype, "pose": "float32", "odd_points": True, "crop": box, "crop_frame": frame}
            add(f"crop/{dtype}/{frame}", make_clouds, points=200, **options)
    for dtype in FEATURE_DTYPES:
        reduce = REDUCTIONS
        add(f"features/{dtype}/into", make_clouds, layout="into", channels=3, feature_dtype=dtype, reduce=reduce)
        options = {"layout": "packed", "channels": 17, "odd_features": True, "reduce": reduce, "feature_dtype": dtype}
        add(f"features/{dtype}/special", make_clouds, points=90, grid=FLAT, **options)
        options = {"channels": 2, "feature_dtype": dtype, "reduce": reduce, "odd_features": True}
        add(
            f"features/{dtype}/cells",
            make_clouds,
            points=200,
            grid=((-4, -4, -4), (2.0, 2.0, 2.0), (4, 4, 4)),
            **options,
        )
    for reduction in REDUCTIONS:
        add(f"reduce/{reduction}", make_clouds, channels=3, reduce=reduction, points=150)
        options = {"channels": 2, "reduce": reduction, "points": 20, "empty": 7}
        add(f"empty/{reduction}", make_clouds, layout="padded", feature_dtype="uint8", **options)
    for reduction in ("sum", "mean", "max", "min"):
        add(f"empty_nan/{reduction}", make_clouds, channels=2, reduce=reduction, points=20, empty=math.nan)
    for depth in (1, 7, 8, 13):
        grid = ((-4.0, -4.0, -2.0), (1.0, 1.0, 0.5), (8, 8, depth))
        add(f"packed/{depth}", make_clouds, layout="padded", reduce="occupancy", packed=True, grid=grid)
    add("packed/several", make_clouds, channels=1, reduce=("mean", "occupancy", "count"), packed=True)
    for how in ("fortran", "negative", "step"):
        cases.append(
            Case(
                f"strides/{how}",
                lambda random, how=how: strided(
                    make_clouds(random, layout="padded", channels=3, columns=5, reduce=REDUCTIONS), how
                ),
            )
        )
    add("columns", make_clouds, columns=6, channels=1, reduce=("count", "sum"))
    add("channels/0", make_clouds, channels=0, reduce=("sum", "max", "count"))
    add("points/0", make_clouds, points=0, channels=2, reduce=REDUCTIONS)
    add("clouds/0", make_clouds, layout="padded", clouds=0, channels=2, reduce=REDUCTIONS)
    add("points/0/packed", make_clouds, layout="packed", points=0, channels=2, reduce=REDUCTIONS)
    add("one_voxel", make_clouds, points=500, channels=4, grid=FLAT, reduce=REDUCTIONS)
    add("wide_range", wide_range)
    add("accumulate", accumulating, ("count", "occupancy", "max", "min"))
    add("accumulate/packed", accumulating, ("occupancy", "count"), packed=True)
    for dtype in ("uint16", "float16", "float32", "float64"):
        for camera in ("four", "matrix", "rays"):
            add(f"depth/{dtype}/{camera}", make_images, dtype=dtype, camera=camera)
            each = f"{camera}_each"
            add(f"depth/{dtype}/{each}", make_images, dtype=dtype, camera=each, batched=True, pose=True)
    add("depth/into", make_images, batched=True, into=True, channels=3, reduce=("mean", "count", "max"), pose=True)
    add("depth/limits", make_images, depth_min=0.5, depth_max=2.0, depth_scale=0.0015, invalid=(0, 65535))
    add("depth/65535", make_images, invalid=(65535,), reduce="occupancy", packed=True)
    add("depth/all", make_images, invalid=(), depth_max=100.0)
    add("depth/crop", make_images, pose=True, crop=((-1, -1, 0.5), (1.0, 1.0, 2.0)), crop_frame="sensor")
    add("depth/0", make_images, size=(0, 5), batched=True, channels=2, reduce="mean")
    for how in ("fortran", "negative", "step"):
        cases.append(
            Case(
                f"depth/strides/{how}",
                lambda random, how=how: strided(
                    make_images(random, batched=True, camera="rays_each", channels=3, reduce=("sum", "min")), how
                ),
            )
        )
    return cases


def make_lattice(random: Random, *, size=(0.5, 0.5, 0.5), origin=(0.0, 0.0, 0.0), **arguments: Any) -> Problem:
    """Of voxel_downsample: a grid whose shape says nothing."""
    return make_clouds(random, grid=(origin, size, (1, 1, 1)), **arguments)


def far_apart(random: Random, dtype: str) -> Problem:
    """Coordinates over more powers of two than a sum can hold, some of them denormal, and some beyond every cell."""
    problem = make_lattice(random, dtype=dtype, points=60, channels=1, size=(1e12, 1e12, 1e12), layout="padded")
    points = problem.arrays["points"].astype(np.float64)
    lowest, highest = {"float16": (-24, 12), "float32": (-149, 44)}.get(dtype, (-1074, 44))
    mixed = np.ldexp(points, random.integers(lowest, highest, points.shape))
    if dtype != "float16":  # which ends before the cells do
        beyond = np.ldexp(np.copysign(1.0, points), 120 if dtype == "float32" else 1000)
        mixed = np.where(random.integers(0, 40, points.shape) == 0, beyond, mixed)
    with np.errstate(over="ignore"):
        problem.arrays["points"] = mixed.astype(dtype)
    return problem


def downsample_table() -> list[Case]:
    cases: list[Case] = []

    def add(name: str, make: Callable[..., Problem], *positional: Any, **arguments: Any) -> None:
        cases.append(Case(f"downsample/{name}", lambda random: make(random, *positional, **arguments)))

    for dtype in POINT_DTYPES:
        for layout in ("single", "padded", "lengths", "packed"):
            add(f"{dtype}/{layout}", make_lattice, dtype=dtype, layout=layout, channels=2)
        add(f"{dtype}/alone", make_lattice, dtype=dtype, points=100)
        add(f"{dtype}/tenths", make_lattice, dtype=dtype, points=200, size=(0.1, 0.3, 0.7), origin=(0.1, -0.2, 0.3))
        add(f"{dtype}/far_apart", far_apart, dtype)
        for frame in ("grid", "sensor"):
            box = ((-2.0, -1.5, -math.inf), (1.1, 2.0, 0.7))
            options = {"dtype": dtype, "pose": "float64", "crop": box, "crop_frame": frame, "channels": 1}
            add(f"{dtype}/crop/{frame}", make_lattice, layout="packed", points=90, odd_points=True, **options)
    for dtype in FEATURE_DTYPES:
        options = {"channels": 17, "feature_dtype": dtype, "odd_features": True, "odd_points": True}
        add(f"features/{dtype}", make_lattice, points=150, size=(2.0, 2.0, 2.0), **options)
    for how in ("fortran", "negative", "step"):
        cases.append(
            Case(
                f"downsample/strides/{how}",
                lambda random, how=how: strided(
                    make_lattice(random, layout="padded", channels=3, columns=5, pose="float32"), how
                ),
            )
        )
    add("columns", make_lattice, columns=6, channels=1)
    add("channels/0", make_lattice, channels=0)
    add("points/0", make_lattice, points=0, channels=2)
    add("clouds/0", make_lattice, layout="padded", clouds=0, channels=2)
    add("points/0/packed", make_lattice, layout="packed", points=0)
    add("one_voxel", make_lattice, points=500, channels=4, size=(64.0, 64.0, 64.0), origin=(-32.0, -32.0, -32.0))
    return cases


CASES = table()
BY_NAME = {case.name: case for case in CASES}
SPARSE_CASES = [
    case
    for case in CASES
    if not case.name.startswith(("accumulate", "packed", "depth/65535")) and not case.build().options.get("packed")
]
DOWNSAMPLE_CASES = downsample_table()
DOWNSAMPLE_BY_NAME = {case.name: case for case in DOWNSAMPLE_CASES}


@functools.cache
def problem_of(name: str) -> Problem:
    return (DOWNSAMPLE_BY_NAME if name in DOWNSAMPLE_BY_NAME else BY_NAME)[name].build()
