"""Sparse voxels and voxel_downsample in torch, as _torch/voxels.py serves dense grids.

Only the device knows the number of voxels. Without max_voxels the call waits for it, and torch.compile sees a size that
depends on the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from robocache import _core
from robocache._torch import voxels_backend
from robocache._torch.align_run import uses_portable
from robocache._torch.operators import register, register_gradient
from robocache._torch.voxels import (
    SCHEMA,
    Call,
    Lattice,
    Sparse,
    check_arguments,
    cloud_count,
    engine,
    gradients_of,
    is_batched,
    is_traced,
    named,
    pack,
    save_context,
    scene_of,
    without_gradients,
)
from robocache._voxels.grid import Grid

Parts = tuple[Any, ...]


# ---- voxelize(layout="sparse")


def run(
    operation: str,
    arrays: dict[str, Any],
    grid: Grid,
    reduce: str | Sequence[str],
    options: dict[str, Any],
    first: int | None,
    max_voxels: int | None,
) -> Parts:
    """(coordinates, values, counts, point_to_voxel, found, first, number, dropped), as _core.voxelize returns them."""
    tensors, call = pack(operation, arrays, grid, reduce, options)
    sparse = Sparse(first or 0, max_voxels)
    tensors, wants_gradient = without_gradients(tensors, arrays.get("features"), call)
    if is_traced(tensors):
        made = torch.ops.robocache.voxelize_sparse(tensors, *call, *sparse)
    elif wants_gradient:
        made = list(SparseVoxelization.apply(call, sparse, *tensors))
    else:
        made = run_now(tensors, call, sparse)
    coordinates, counts, point_to_voxel, found, dropped = made[:5]
    values = made[5 : 5 + len(call.reduce)]
    kept = made[5 + len(call.reduce) :] if sparse.first else (None, None)
    return (
        coordinates,
        values[0] if isinstance(reduce, str) else tuple(values),
        counts,
        point_to_voxel,
        found,
        *kept,
        dropped,
    )


def run_now(tensors: Sequence[Tensor], call: Call, sparse: Sparse) -> list[Tensor]:
    """coordinates, counts, point_to_voxel, found, dropped, then the values of each reduction, then first and number."""
    if not uses_portable(call, tensors[0].device):  # type: ignore[arg-type]
        made = engine(tensors, call, sparse)
        if made is not NotImplemented:
            coordinates, values, counts, point_to_voxel, found, first, number, dropped = made
            kept = [first, number] if sparse.first else []
            return [coordinates, counts, point_to_voxel, found, dropped, *values, *kept]
    check_arguments(tensors, call, lambda zeros, asked: engine(zeros, asked, sparse))
    return portable(tensors, call, sparse)


def portable(tensors: Sequence[Tensor], call: Call, sparse: Sparse) -> list[Tensor]:
    voxels = voxels_backend.sparse_voxels(scene_of(tensors, call), sparse.max_voxels)
    places = voxels.places
    features = named(tensors, call).get("features")
    values = voxels_backend.reduce(places, (places.rows,), features, call.reduce, False, call.numbers[6], None)
    counts = voxels_backend.counted(places)[:-1].to(torch.int32)
    lead = tensors[0].shape if call.operation == "voxelize_depth" else tensors[0].shape[:-1]
    point_to_voxel = torch.where(places.row < places.rows, places.row, -1).reshape(lead)
    dropped = places.located.dropped if is_batched(tensors, call) else places.located.dropped[0]
    kept = []
    if sparse.first:
        kept = [voxels_backend.first_points(voxels, features, sparse.first), counts.clamp(max=sparse.first)]
    return [voxels.coordinates(), counts, point_to_voxel, voxels.found, dropped, *values, *kept]


def feature_gradient(
    tensors: Sequence[Tensor], call: Call, gradients: Sequence[Tensor | None], lattice: bool = False
) -> Tensor | None:
    """The gradient of the features. There is a gradient of the values for each name in call.reduce."""
    names, parts = gradients_of(call, gradients)
    if not names:
        return None
    return torch.ops.robocache.voxelize_sparse_backward(tensors, *call, lattice, names, parts)


class SparseVoxelization(torch.autograd.Function):
    @staticmethod
    def forward(call: Call, sparse: Sparse, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(run_now([tensor.detach() for tensor in tensors], call, sparse))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        call = inputs[0]
        values = output[5 : 5 + len(call.reduce)]
        differentiable = [value for value in values if value.is_floating_point()]
        constant = [part for part in output if all(part is not value for value in differentiable)]
        save_context(ctx, call, inputs[2:], constant)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        tensors, call = ctx.saved_tensors, ctx.call
        made = feature_gradient(tensors, call, gradients[5 : 5 + len(call.reduce)])
        return None, None, None, made, *[None] * (len(tensors) - 2)


# ---- voxel_downsample


def downsample(
    arrays: dict[str, Any], voxel_size: Any, origin: Any, options: dict[str, Any]
) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor]:
    """(points, features, counts, coordinates, dropped)."""
    one = isinstance(voxel_size, (int, float)) or getattr(voxel_size, "ndim", 1) == 0
    sizes = [float(size) for size in ([voxel_size] * 3 if one else voxel_size)]
    grid = Lattice([float(x) for x in origin], sizes)
    options = {**options, "packed": False, "empty": 0.0, "grids": None}
    features = arrays.get("features")
    reduce = "count" if features is None else "mean"
    tensors, call = pack("voxel_downsample", arrays, grid, reduce, options)
    tensors, wants_gradient = without_gradients(tensors, features, call)
    if is_traced(tensors):
        made = torch.ops.robocache.voxel_downsample(tensors, *call)
    elif wants_gradient:
        made = list(Downsampling.apply(call, *tensors))
    else:
        made = downsample_now(tensors, call)
    points, counts, coordinates, dropped, *means = made
    return points, means[0] if features is not None else None, counts, coordinates, dropped


def downsample_now(tensors: Sequence[Tensor], call: Call) -> list[Tensor]:
    """points, counts, coordinates, dropped, then the mean of the features, if there are features."""
    if not uses_portable(call, tensors[0].device):  # type: ignore[arg-type]
        made = downsample_engine(tensors, call)
        if made is not NotImplemented:
            points, features, counts, coordinates, dropped = made
            return [points, counts, coordinates, dropped, *([] if features is None else [features])]
    check_arguments(tensors, call, downsample_engine)
    scene = scene_of(tensors, call)
    scene.lattice = True
    voxels = voxels_backend.sparse_voxels(scene, None)
    places = voxels.places
    counts = voxels_backend.counted(places)[:-1]
    located = places.located
    points = torch.where(located.kept[:, None], located.points, 0)
    means = (voxels_backend.summed(places, points)[:-1] / counts[:, None]).to(points.dtype)
    features = named(tensors, call).get("features")
    values = []
    if features is not None:
        values = voxels_backend.reduce(places, (places.rows,), features, ["mean"], False, 0.0, None)
    dropped = located.dropped if is_batched(tensors, call) else located.dropped[0]
    return [means, counts.to(torch.int32), voxels.coordinates(), dropped, *values]


def downsample_engine(tensors: Sequence[Tensor], call: Call) -> Any:
    arrays = named(tensors, call)
    crop = (tuple(call.crop[:3]), tuple(call.crop[3:]))
    return _core.voxel_downsample(
        tensors[0],
        tuple(call.numbers[3:6]),
        tuple(call.numbers[0:3]),
        arrays.get("features"),
        arrays.get("lengths"),
        arrays.get("offsets"),
        arrays.get("pose"),
        crop,
        "sensor" if call.crop_in_sensor_frame else "grid",
        call.check,
        call.backend,
    )


class Downsampling(torch.autograd.Function):
    @staticmethod
    def forward(call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(downsample_now([tensor.detach() for tensor in tensors], call))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        save_context(ctx, inputs[0], inputs[1:], output[:4])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        made = feature_gradient(tensors, ctx.call, gradients[4:], lattice=True)
        return None, None, made, *[None] * (len(tensors) - 2)


# ---- operators


def voxelize_sparse(tensors: Sequence[Tensor], *arguments: Any) -> list[Tensor]:
    *call, first, max_voxels = arguments
    return run_now(tensors, Call(*call), Sparse(first, max_voxels))


def voxelize_sparse_fake(tensors: Sequence[Tensor], *arguments: Any) -> list[Tensor]:
    *rest, first, max_voxels = arguments
    call = Call(*rest)
    main = tensors[0]
    rows = torch.library.get_ctx().new_dynamic_size() if max_voxels is None else max_voxels
    made = fake_rows(tensors, call, rows)
    features = named(tensors, call).get("features")
    for name in call.reduce:
        if name in ("count", "occupancy"):
            made.append(main.new_empty([rows], dtype=torch.int32 if name == "count" else torch.uint8))
            continue
        if features is None:
            raise ValueError(f"{call.operation}: reduce {name} needs features")
        dtype = torch.float32 if name in ("sum", "mean") else features.dtype
        made.append(main.new_empty([rows, features.shape[-1]], dtype=dtype))
    if first:
        channels = 0 if features is None else features.shape[-1]
        dtype = torch.float64 if main.dtype == torch.float64 else torch.float32
        made += [main.new_empty([rows, first, 3 + channels], dtype=dtype), main.new_empty([rows], dtype=torch.int32)]
    return made


def fake_rows(tensors: Sequence[Tensor], call: Call, rows: Any) -> list[Tensor]:
    main = tensors[0]
    lead = main.shape if call.operation == "voxelize_depth" else main.shape[:-1]
    return [
        main.new_empty([rows, 4], dtype=torch.int64),
        main.new_empty([rows], dtype=torch.int32),
        main.new_empty(lead, dtype=torch.int64),
        main.new_empty([2], dtype=torch.int64),
        fake_dropped(tensors, call),
    ]


def fake_dropped(tensors: Sequence[Tensor], call: Call) -> Tensor:
    return tensors[0].new_empty(
        [cloud_count(tensors, call), 4] if is_batched(tensors, call) else [4], dtype=torch.int64
    )


def voxelize_sparse_backward(tensors: Sequence[Tensor], *arguments: Any) -> Tensor:
    *rest, lattice, names, gradients = arguments
    call = Call(*rest)
    scene = scene_of([tensor.detach() for tensor in tensors], call)
    scene.lattice = lattice
    voxels = voxels_backend.sparse_voxels(scene, gradients[0].shape[0])  # as many rows as in the forward pass
    return voxels_backend.gradient(voxels.places, named(tensors, call)["features"].detach(), names, gradients)


def voxelize_sparse_backward_fake(tensors: Sequence[Tensor], *arguments: Any) -> Tensor:
    return torch.empty_like(tensors[1], memory_format=torch.contiguous_format)  # features come first


def keep_sparse(ctx: Any, inputs: tuple[Any, ...], output: Sequence[Tensor]) -> None:
    tensors, *call = inputs
    ctx.call = Call(*call[: len(Call._fields)])
    ctx.save_for_backward(*tensors)


def differentiate_sparse(ctx: Any, gradients: Sequence[Tensor | None]) -> tuple[Any, ...]:
    tensors, call = ctx.saved_tensors, ctx.call
    made: list[Tensor | None] = [None] * len(tensors)
    if "features" in named(tensors, call):
        made[1] = feature_gradient(tensors, call, gradients[5 : 5 + len(call.reduce)])
    return made, *[None] * (len(Call._fields) + 2)


def voxel_downsample(tensors: Sequence[Tensor], *call: Any) -> list[Tensor]:
    return downsample_now(tensors, Call(*call))


def voxel_downsample_fake(tensors: Sequence[Tensor], *arguments: Any) -> list[Tensor]:
    call = Call(*arguments)
    main = tensors[0]
    rows = torch.library.get_ctx().new_dynamic_size()
    dtype = torch.float64 if main.dtype == torch.float64 else torch.float32
    made = [
        main.new_empty([rows, 3], dtype=dtype),
        main.new_empty([rows], dtype=torch.int32),
        main.new_empty([rows, 4], dtype=torch.int64),
        fake_dropped(tensors, call),
    ]
    features = named(tensors, call).get("features")
    if features is not None:
        made.append(main.new_empty([rows, features.shape[-1]], dtype=torch.float32))
    return made


def differentiate_downsample(ctx: Any, gradients: Sequence[Tensor | None]) -> tuple[Any, ...]:
    tensors, call = ctx.saved_tensors, ctx.call
    made: list[Tensor | None] = [None] * len(tensors)
    if "features" in named(tensors, call):
        made[1] = feature_gradient(tensors, call, gradients[4:], lattice=True)
    return made, *[None] * len(Call._fields)


register(f"voxelize_sparse({SCHEMA}, int first, SymInt? max_voxels) -> Tensor[]", voxelize_sparse, voxelize_sparse_fake)
register(
    f"voxelize_sparse_backward({SCHEMA}, bool lattice, str[] names, Tensor[] gradients) -> Tensor",
    voxelize_sparse_backward,
    voxelize_sparse_backward_fake,
)
register(f"voxel_downsample({SCHEMA}) -> Tensor[]", voxel_downsample, voxel_downsample_fake)
register_gradient("voxelize_sparse", differentiate_sparse, keep_sparse)
register_gradient("voxel_downsample", differentiate_downsample, keep_sparse)
