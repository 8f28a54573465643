"""Dense voxelize and voxelize_depth in torch: gradients, torch.compile, and every device that has no kernels of ours.

The compiled engine handles plain tensors. robocache._voxels calls this module for the others. A call takes the first
of these paths that fits:
1. traced (Dynamo, export, fake or meta tensors): `torch.ops.robocache.voxelize`, with a gradient, and a fake
   implementation for symbolic sizes. At run time it takes path 2 or 4.
2. backend="torch", a device that is neither cpu nor cuda, CUDA without usable kernels: the portable backend.
3. gradients: an autograd.Function around the forward; the backward is the portable backend's.
4. the engine.
Gradients reach `features` only, for sum, mean, max and min. There are no second derivatives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robocache import _core
from robocache._torch import voxels_backend
from robocache._torch.align_ops import is_plain, is_wrapped, refuse_tangents
from robocache._torch.align_run import uses_portable
from robocache._torch.operators import register, register_gradient
from robocache._voxels.grid import Grid

DIFFERENTIABLE = ("sum", "mean", "max", "min")
REDUCTIONS = ("count", "occupancy", *DIFFERENTIABLE)
is_batched_by_vmap = getattr(getattr(torch._C, "_functorch", None), "is_batchedtensor", lambda tensor: False)
ARRAYS = ("features", "lengths", "offsets", "into", "pose", "intrinsics", "rays")  # after points or depth


class Lattice(NamedTuple):
    """An unbounded grid, in place of a Grid. torch.compile can make one, and nothing is checked."""

    origin: Sequence[float]
    voxel_size: Sequence[float]
    shape: Sequence[int] = (1, 1, 1)


class Sparse(NamedTuple):
    """The further options of a sparse call."""

    first: int  # 0: none
    max_voxels: int | None


class Call(NamedTuple):
    """The constant part of a call."""

    operation: str  # voxelize or voxelize_depth
    present: int  # a bit for each of ARRAYS
    reduce: Sequence[str]
    integers: Sequence[int]  # the grid's shape, then how many grids; -1: as many as clouds
    numbers: Sequence[float]  # origin, voxel size, empty, depth_scale (0: default), depth_min, depth_max
    crop: Sequence[float]  # low, then high; without a crop an infinite box
    invalid: Sequence[float]  # never empty, because autograd cannot handle an empty list: NaN stands for none
    packed: bool
    crop_in_sensor_frame: bool
    check: bool
    backend: str | None


SCHEMA = (
    "Tensor[] tensors, str operation, int present, str[] reduce, SymInt[] integers, float[] numbers, float[] crop, "
    "float[] invalid, bool packed, bool crop_in_sensor_frame, bool check, str? backend"
)


def run(
    operation: str,
    arrays: dict[str, Any],
    grid: Grid,
    reduce: str | Sequence[str],
    options: dict[str, Any],
    out: Any,
    accumulate: bool,
) -> tuple[Any, Tensor]:
    """The values (a tuple if `reduce` is one) and dropped."""
    several = not isinstance(reduce, str)
    outs = outs_of(operation, reduce, out)
    if outs and arrays.get("into") is not None:
        grids = outs[0].shape[0] if outs[0].ndim > 0 else 0
        if options["grids"] not in (None, grids):
            raise ValueError(f"{operation}: grids is {options['grids']} and out has {grids}")
        options = {**options, "grids": grids}
    tensors, call = pack(operation, arrays, grid, reduce, options)
    tensors, wants_gradient = without_gradients(tensors, arrays.get("features"), call)
    if outs and wants_gradient:
        raise ValueError(
            f"{operation}: a result in out has no gradient, and features require grad; do not pass out, "
            "or call under torch.no_grad()"
        )
    traced = is_traced(tensors)
    if accumulate:
        if not outs:
            raise ValueError(f"{operation}: accumulate adds to what out holds; give out")
        if traced:
            raise ValueError(f"{operation}: accumulate cannot be traced; call it outside of torch.compile")
        for name in call.reduce:
            if name in ("sum", "mean"):
                raise ValueError(
                    f"{operation}: accumulate with {name}: the result would depend on the order of the calls; "
                    "give all clouds to one call, with into"
                )
        made = run_portable(tensors, call, outs)
    elif traced:
        made = list(torch.ops.robocache.voxelize(tensors, *call))
    elif wants_gradient:
        made = list(Voxelization.apply(call, *tensors))
    else:
        made = run_now(tensors, call)
    values = made[:-1]
    check_outs(operation, outs, values)
    for tensor, value in zip(outs, values):  # noqa: B905  Dynamo traces no strict=False before torch 2.10
        tensor.copy_(value)
    if outs:
        values = list(outs)
    return tuple(values) if several else values[0], made[-1]


def without_gradients(tensors: list[Tensor], features: Any, call: Call) -> tuple[list[Tensor], bool]:
    """The tensors, detached except features that a gradient reaches (sum, mean, max, min); whether one does."""
    reduced = any(name in DIFFERENTIABLE for name in call.reduce)
    if not torch.compiler.is_compiling():
        refuse_transforms(call.operation, tensors, features if reduced else None)
    wanted = reduced and torch.is_grad_enabled() and isinstance(features, Tensor) and features.requires_grad
    return [tensor if wanted and tensor is features else tensor.detach() for tensor in tensors], wanted


def refuse_transforms(operation: str, tensors: Sequence[Tensor], features: Any) -> None:
    """Refuses torch.vmap, and features whose tangents would be lost."""
    if any(is_batched_by_vmap(tensor) for tensor in tensors):
        raise ValueError(f"{operation}: torch.vmap cannot go through it; give the clouds as a batch")
    if isinstance(features, Tensor):
        refuse_tangents(operation, [features])


def is_traced(tensors: Sequence[Tensor]) -> bool:
    return torch.compiler.is_compiling() or not all(is_plain(tensor) or is_wrapped(tensor) for tensor in tensors)


def outs_of(operation: str, reduce: str | Sequence[str], out: Any) -> Sequence[Tensor]:
    if out is None:
        return ()
    outs, expected = (out,), "a tensor"
    if not isinstance(reduce, str):
        outs, expected = out, f"a tuple of {len(reduce)} arrays, one for each of reduce"
        if not isinstance(outs, (tuple, list)) or len(outs) != len(reduce):
            raise TypeError(f"{operation}: out is of type {type(out).__name__}; expected {expected}")
    for tensor in outs:
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{operation}: out is of type {type(tensor).__name__}; expected {expected}")
    return outs


def check_outs(operation: str, outs: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """Checks all of them before any is written."""
    for out, like in zip(outs, expected):  # noqa: B905  Dynamo traces no strict=False before torch 2.10
        if out.shape != like.shape or out.dtype != like.dtype:
            raise ValueError(
                f"{operation}: out is {out.dtype} {list(out.shape)}; expected {like.dtype} {list(like.shape)}"
            )


# ---- a call as an operator's arguments


def pack(
    operation: str, arrays: dict[str, Any], grid: Grid | Lattice, reduce: str | Sequence[str], options: dict[str, Any]
) -> tuple[list[Tensor], Call]:
    if not isinstance(grid, (Grid, Lattice)):
        raise TypeError(f"{operation}: grid is of type {type(grid).__name__}; expected a robocache.Grid")
    for name in (reduce,) if isinstance(reduce, str) else reduce:
        if name not in REDUCTIONS:
            raise ValueError(f"{operation}: reduce is {name!r}; expected count, occupancy, sum, mean, max or min")
    main = arrays["depth" if operation == "voxelize_depth" else "points"]
    tensors = [main]
    present = 0
    for k, name in enumerate(ARRAYS):
        array = arrays.get(name)
        if array is None:
            continue
        if not isinstance(array, Tensor):
            raise TypeError(
                f"{operation}: {name} is a {type(array).__name__}; torch tensors and other arrays do not mix"
            )
        present |= 1 << k
        tensors.append(array)
    grids = options["grids"]
    if grids is None:
        if arrays.get("into") is not None:
            raise ValueError(
                f"{operation}: into is a tensor whose largest number is not known here; say grids=, how many there are"
            )
        grids = -1
    crop = options["crop"]
    scale = options.get("depth_scale")
    if scale == 0:
        raise ValueError(f"{operation}: depth_scale is 0; it must be positive and finite")
    numbers = [
        *grid.origin,
        *grid.voxel_size,
        float(options["empty"]),
        0.0 if scale is None else float(scale),
        float(options.get("depth_min", 0.0)),
        float(options.get("depth_max", math.inf)),
    ]
    if options["crop_frame"] not in ("grid", "sensor"):
        raise ValueError(f"{operation}: crop_frame is {options['crop_frame']!r}; expected grid or sensor")
    return tensors, Call(
        operation,
        present,
        [reduce] if isinstance(reduce, str) else list(reduce),
        [*grid.shape, grids],
        numbers,
        [*[-math.inf] * 3, *[math.inf] * 3] if crop is None else [float(x) for corner in crop for x in corner],
        [float(x) for x in options.get("invalid", ())] or [math.nan],
        bool(options["packed"]),
        options["crop_frame"] == "sensor",
        bool(options["check"]),
        options["backend"],
    )


def named(tensors: Sequence[Tensor], call: Call) -> dict[str, Tensor]:
    names = [name for k, name in enumerate(ARRAYS) if call.present >> k & 1]
    return dict(zip(names, tensors[1:], strict=True))


def is_batched(tensors: Sequence[Tensor], call: Call) -> bool:
    return tensors[0].ndim == 3 or "offsets" in named(tensors, call)


def cloud_count(tensors: Sequence[Tensor], call: Call) -> Any:
    offsets = named(tensors, call).get("offsets")
    if offsets is not None:
        return offsets.shape[0] - 1
    return tensors[0].shape[0] if tensors[0].ndim == 3 else 1


# ---- running a call


def run_now(tensors: Sequence[Tensor], call: Call) -> list[Tensor]:
    """The values of each reduction, then dropped."""
    if not uses_portable(call, tensors[0].device):  # type: ignore[arg-type]
        made = engine(tensors, call)
        if made is not NotImplemented:
            return [*made[0], made[1]]
    return run_portable(tensors, call, None)


def engine(tensors: Sequence[Tensor], call: Call, sparse: Sparse | None = None) -> Any:
    """The engine's result, with the values always as a tuple; or NotImplemented."""
    arrays = named(tensors, call)
    n = call.numbers
    grid = Grid(n[0:3], n[3:6], call.integers[:3])
    grids = None if call.integers[3] < 0 else call.integers[3]
    crop = (tuple(call.crop[:3]), tuple(call.crop[3:]))
    frame = "sensor" if call.crop_in_sensor_frame else "grid"
    pose = arrays.get("pose")
    layout = (None, None, None) if sparse is None else ("sparse", sparse.first or None, sparse.max_voxels)
    scene = (arrays.get("into"), grids, pose, crop, frame, *layout, None, False, call.check, call.backend)
    reductions = (arrays.get("features"), tuple(call.reduce), call.packed, n[6])
    function: Any = _core.voxelize if call.operation == "voxelize" else _core.voxelize_depth
    if call.operation == "voxelize":
        made = function(tensors[0], grid, *reductions, arrays.get("lengths"), arrays.get("offsets"), *scene)
    else:
        camera = (arrays.get("intrinsics"), arrays.get("rays"))
        made = function(tensors[0], *camera, grid, *reductions, n[7] or None, n[8], n[9], tuple(call.invalid), *scene)
    return made


def run_portable(tensors: Sequence[Tensor], call: Call, start: Sequence[Tensor] | None) -> list[Tensor]:
    check_arguments(tensors, call)
    if start is not None:
        shapes = [torch.empty_like(tensor, device="meta") for tensor in tensors]
        check_outs(call.operation, start, voxelize_fake(shapes, *call))
    scene = scene_of(tensors, call)
    features = named(tensors, call).get("features")
    bytes_ = voxels_backend.dense_bytes(scene, features, call.reduce)
    size = (call.operation, scene.shape, scene.grids, bytes_, tensors[0].device.type == "cpu")
    _core.check_dense_size(*size, None)
    try:
        places = voxels_backend.dense_places(scene)
        lead = (scene.grids, *scene.shape)
        values = voxels_backend.reduce(places, lead, features, call.reduce, call.packed, call.numbers[6], start)
    except torch.OutOfMemoryError as error:
        _core.check_dense_size(*size, str(error).partition("\n")[0])
        raise
    dropped = places.located.dropped
    if not is_batched(tensors, call):
        values, dropped = [value[0] for value in values], dropped[0]
    return [*values, dropped]


def scene_of(tensors: Sequence[Tensor], call: Call) -> voxels_backend.Scene:
    arrays = named(tensors, call)
    n = call.numbers
    scale = n[7] or (1.0 if tensors[0].is_floating_point() else 0.001)
    return voxels_backend.Scene(
        main=tensors[0],
        is_depth=call.operation == "voxelize_depth",
        origin=n[0:3],
        voxel_size=n[3:6],
        shape=call.integers[:3],
        grids=cloud_count(tensors, call) if call.integers[3] < 0 else call.integers[3],
        **{name: tensor for name, tensor in arrays.items() if name != "features"},  # type: ignore[arg-type]
        crop=call.crop,
        crop_in_sensor_frame=call.crop_in_sensor_frame,
        depth_scale=scale,
        depth_min=n[8],
        depth_max=n[9],
        invalid=call.invalid,
    )


def check_arguments(
    tensors: Sequence[Tensor], call: Call, ask: Callable[[Sequence[Tensor], Call], Any] = engine
) -> None:
    """Lets the engine check the call for the portable backend, so that error sentences are written in one place."""
    main = tensors[0]
    for tensor in tensors:
        if tensor.device != main.device:
            raise ValueError(
                f"{call.operation}: a tensor is on {tensor.device} and another on {main.device}; "
                "all must be on one device"
            )
    if main.device.type == "mps":
        raise TypeError(f"{call.operation}: the torch backend computes in float64, which mps does not have")
    # Expanded zeros of the same shapes, which take no memory, into one cell for each grid. The data is checked only on
    # the CPU; elsewhere the check would wait for the device.
    here = call.check and main.device.type == "cpu"
    zeros = [torch.zeros((), dtype=tensor.dtype).expand(tensor.shape) for tensor in tensors]
    for k, name in enumerate(named(tensors, call)):
        if here and name in ("lengths", "offsets", "into", "pose"):
            zeros[k + 1] = tensors[k + 1].detach()
    integers = [1, 1, 1, call.integers[3]]
    ask(zeros, call._replace(integers=integers, check=here, backend=None))


# ---- gradients


def save_context(ctx: Any, call: Any, tensors: Sequence[Tensor], constant: Sequence[Tensor]) -> None:
    """Saves what a backward needs. constant: the outputs that have no gradient."""
    ctx.call = call
    ctx.save_for_backward(*tensors)
    ctx.mark_non_differentiable(*constant)
    ctx.set_materialize_grads(False)


class Voxelization(torch.autograd.Function):
    """The tensors are separate arguments, because autograd does not look into lists."""

    @staticmethod
    def forward(call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(run_now([tensor.detach() for tensor in tensors], call))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        save_context(ctx, inputs[0], inputs[1:], [part for part in output if not part.is_floating_point()])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, *input_gradients(ctx.saved_tensors, ctx.call, gradients)


def gradients_of(call: Call, gradients: Sequence[Tensor | None]) -> tuple[list[str], list[Tensor]]:
    """The reductions whose gradient reaches features, and their gradients. There is one for each of call.reduce."""
    pairs = [
        (name, gradient)
        for name, gradient in zip(call.reduce, gradients, strict=True)
        if gradient is not None and name in DIFFERENTIABLE
    ]
    return [name for name, _ in pairs], [gradient for _, gradient in pairs]


def input_gradients(tensors: Sequence[Tensor], call: Call, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """A gradient for each tensor: None except for the features."""
    found: list[Tensor | None] = [None] * len(tensors)
    names, parts = gradients_of(call, gradients[:-1])
    if names:
        found[1] = torch.ops.robocache.voxelize_backward(tensors, *call, names, parts)
    return found


# ---- operators


def voxelize(tensors: Sequence[Tensor], *call: Any) -> list[Tensor]:
    return run_now(tensors, Call(*call))


def voxelize_fake(tensors: Sequence[Tensor], *arguments: Any) -> list[Tensor]:
    call = Call(*arguments)
    main, batched = tensors[0], is_batched(tensors, call)
    clouds = cloud_count(tensors, call)
    x, y, z, grids = call.integers
    lead = [clouds if grids < 0 else grids] if batched else []
    features = named(tensors, call).get("features")
    made = []
    for name in call.reduce:
        if name == "count":
            made.append(main.new_empty([*lead, x, y, z], dtype=torch.int32))
        elif name == "occupancy":
            made.append(main.new_empty([*lead, x, y, (z + 7) // 8 if call.packed else z], dtype=torch.uint8))
        else:
            if features is None:
                raise ValueError(f"{call.operation}: reduce {name} needs features")
            dtype = torch.float32 if name in ("sum", "mean") else features.dtype
            made.append(main.new_empty([*lead, x, y, z, features.shape[-1]], dtype=dtype))
    made.append(main.new_empty([clouds, 4] if batched else [4], dtype=torch.int64))
    return made


def voxelize_backward(tensors: Sequence[Tensor], *arguments: Any) -> Tensor:
    *rest, names, gradients = arguments
    call = Call(*rest)
    features = named(tensors, call)["features"]
    places = voxels_backend.dense_places(scene_of([tensor.detach() for tensor in tensors], call))
    return voxels_backend.gradient(places, features.detach(), names, gradients)


def voxelize_backward_fake(tensors: Sequence[Tensor], *arguments: Any) -> Tensor:
    return torch.empty_like(tensors[1], memory_format=torch.contiguous_format)  # features come first


def keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Sequence[Tensor]) -> None:
    tensors, *call = inputs
    ctx.call = Call(*call)
    ctx.save_for_backward(*tensors)


def differentiate(ctx: Any, gradients: Sequence[Tensor | None]) -> tuple[Any, ...]:
    found = input_gradients(ctx.saved_tensors, ctx.call, gradients)
    return found, *[None] * len(Call._fields)


register(f"voxelize({SCHEMA}) -> Tensor[]", voxelize, voxelize_fake)
register(
    f"voxelize_backward({SCHEMA}, str[] names, Tensor[] gradients) -> Tensor", voxelize_backward, voxelize_backward_fake
)
register_gradient("voxelize", differentiate, keep_for_backward)
