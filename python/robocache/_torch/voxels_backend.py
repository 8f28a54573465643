"""The portable backend of voxelize: docs/semantics.md in plain torch operations, on any device that has float64.

Its results have the bits of the other backends: cells are found with a fused multiply-add made of plain operations, and
sums are made of integers. Only where a pose meets float64 points beyond 2^+-900 may they differ by a rounding.
Nothing here waits for the device, and no read is out of bounds, whatever lengths, offsets and into hold.
_torch/voxels.py checks the arguments.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from robocache._limits import SIZE_LIMIT, SIZE_LIMIT_IN_WORDS

SMALLEST = -(2**63)
LARGEST = 2**63 - 1
BITS = {torch.float16: torch.int16, torch.bfloat16: torch.int16, torch.float32: torch.int32, torch.float64: torch.int64}


@dataclass
class Scene:
    """A call with every default filled in and every shape checked."""

    main: Tensor  # points or depth
    is_depth: bool
    origin: Sequence[float]
    voxel_size: Sequence[float]
    shape: Sequence[int]
    grids: int
    lengths: Tensor | None = None
    offsets: Tensor | None = None
    into: Tensor | None = None
    pose: Tensor | None = None
    intrinsics: Tensor | None = None
    rays: Tensor | None = None
    crop: Sequence[float] = (*[-math.inf] * 3, *[math.inf] * 3)  # low, then high
    crop_in_sensor_frame: bool = False
    depth_scale: float = 1.0
    depth_min: float = 0.0
    depth_max: float = math.inf
    invalid: Sequence[float] = ()
    lattice: bool = False  # an unbounded grid, in all directions from the origin; `shape` is not used

    @property
    def clouds(self) -> int:
        if self.offsets is not None:
            return self.offsets.shape[0] - 1
        return self.main.shape[0] if self.main.ndim == 3 else 1

    @property
    def cells(self) -> int:
        x, y, z = self.shape
        return x * y * z


@dataclass
class PointList:
    """All points as one list."""

    points: Tensor  # [P, 3], in the grid's frame
    cell: Tensor  # int64 [P, 3]; 0 for points that are not kept
    grid: Tensor  # int64 [P]; `grids` for points that belong to no cloud
    kept: Tensor  # bool [P]
    dropped: Tensor  # int64 [C, 4]


@dataclass
class Places:
    """The row of the result that each point goes to: a cell of a dense grid, or a voxel that has points."""

    located: PointList
    row: Tensor  # int64 [P]; `rows` for points that go to none
    rows: int
    row_grid: Tensor  # int64 [rows + 1]
    grids: int


@dataclass
class Voxels:
    """Voxels that have points, sorted."""

    places: Places
    key: Tensor  # int64 [rows + 1]: grid * cells + cell; grids * cells for rows without a voxel
    order: Tensor  # int64 [P]: points by key
    start: Tensor  # int64 [rows + 1]: where a row's points begin in `order`
    found: Tensor  # int64 [2]: rows that hold voxels, and voxels without a row
    shape: Sequence[int]
    lowest: Sequence[int]

    def coordinates(self) -> Tensor:
        """int64 [rows, 4]: grid, x, y, z; -1 for rows without a voxel."""
        x, y, z = self.shape
        key = self.key[:-1]
        grid, cell = key // (x * y * z), key % (x * y * z)
        parts = [grid, cell // (y * z), cell // z % y, cell % z]
        low = torch.tensor([0, *self.lowest], dtype=torch.int64, device=key.device)
        return torch.where((grid < self.places.grids)[:, None], torch.stack(parts, -1) + low, -1)


def locate(scene: Scene) -> PointList:
    compute = torch.float64 if scene.main.dtype == torch.float64 else torch.float32
    device = scene.main.device
    points, reading, cloud, exists = read(scene, compute)

    def rounded(x: float) -> float:
        return x if compute == torch.float64 else to_single(x)

    def each(matrices: Tensor, rank: int) -> Tensor:
        """One matrix for all points, or the matrix of each point's cloud, in the dtype of the computation."""
        matrices = matrices.to(compute)
        return matrices if matrices.ndim == rank else matrices[cloud]

    finite = torch.isfinite(points).all(-1)
    box = [rounded(x) for x in scene.crop]
    if scene.crop_in_sensor_frame:
        kept = inside(points, box)
    if scene.pose is not None:
        pose = each(scene.pose, 2)
        rows = []
        for axis in range(3):
            value = fused(pose[..., axis, 2], points[:, 2], pose[..., axis, 3])
            value = fused(pose[..., axis, 1], points[:, 1], value)
            rows.append(fused(pose[..., axis, 0], points[:, 0], value))
        points = torch.stack(rows, -1)
        finite = finite & torch.isfinite(points).all(-1)
    if not scene.crop_in_sensor_frame:
        kept = inside(points, box)
    cells = []
    within = torch.ones_like(finite)
    least = -(2.0**62) if scene.lattice else 0.0
    for axis in range(3):
        # On CUDA torch turns a divisor that is a number into a multiplication by its reciprocal.
        size = torch.full((), rounded(scene.voxel_size[axis]), dtype=compute, device=device)
        at = torch.floor((points[:, axis] - rounded(scene.origin[axis])) / size)
        near = (at >= least) & (at < 2.0**62)
        cells.append(torch.where(near, at, 0).to(torch.int64))
        within = within & near
        if not scene.lattice:
            within = within & (cells[axis] < scene.shape[axis])

    alive = exists
    clouds = scene.clouds
    dropped = torch.zeros(clouds * 4 + 1, dtype=torch.int64, device=device)
    for reason, passes in enumerate((reading, finite, kept, within)):
        lost = alive & ~passes
        place = torch.where(lost, cloud * 4 + reason, clouds * 4)
        dropped.index_add_(0, place, lost.to(torch.int64))
        alive = alive & passes
    grid = cloud
    if scene.into is not None:
        into = scene.into.to(torch.int64).clamp(0, max(scene.grids - 1, 0))
        grid = into[cloud] if clouds > 0 else cloud
    grid = torch.where(exists, grid, scene.grids)
    cell = torch.where(alive[:, None], torch.stack(cells, -1), 0)
    return PointList(points, cell, grid, alive, dropped[: clouds * 4].reshape(clouds, 4))


def dense_bytes(scene: Scene, features: Tensor | None, reductions: Sequence[str]) -> float:
    """The bytes that dense_places and reduce need at the same time for the cells."""
    channels = 0 if features is None else features.shape[-1]
    each = 8 + 8 + 1 + 4  # row_grid; counts, as int64 and as they are returned; which are not 0
    if "sum" in reductions or "mean" in reductions:
        each += channels * (8 + 8 + 8 + 4 * 2)  # the integers, the scale and the double; a float32 of each
    if "max" in reductions or "min" in reductions:
        each += channels * (8 + 8 + 4 * 2)
    return float(scene.grids) * float(scene.cells) * each


def dense_places(scene: Scene) -> Places:
    located = locate(scene)
    rows = scene.grids * scene.cells
    key = keys_of(located, scene.shape, scene.grids)
    row_grid = torch.arange(rows + 1, device=key.device) // scene.cells
    return Places(located, key, rows, row_grid, scene.grids)


def keys_of(located: PointList, shape: Sequence[int], grids: int) -> Tensor:
    """grid * cells + cell; grids * cells for points without a cell."""
    x, y, z = shape
    cell = (located.cell[:, 0] * y + located.cell[:, 1]) * z + located.cell[:, 2]
    return torch.where(located.kept, located.grid * (x * y * z) + cell, grids * (x * y * z))


def sparse_voxels(scene: Scene, max_voxels: int | None) -> Voxels:
    """The voxels that have points, sorted. Waits for the device if max_voxels is None or the grid is unbounded."""
    located = locate(scene)
    shape, lowest = scene.shape, [0, 0, 0]
    if scene.lattice:
        shape, lowest = lattice_of(located, scene.grids)
        low = torch.tensor(lowest, dtype=torch.int64, device=located.cell.device)
        located.cell = torch.where(located.kept[:, None], located.cell - low, 0)
    none = scene.grids * math.prod(shape)
    key, order = torch.sort(keys_of(located, shape, scene.grids), stable=True)
    device = key.device
    begins = key < none
    begins[1:] &= key[1:] != key[:-1]
    number = torch.cumsum(begins, 0) - 1  # the voxel that each sorted point is in, if any
    voxels = begins.sum()
    rows = int(voxels) if max_voxels is None else max_voxels
    row_sorted = torch.where(key < none, number.clamp(max=rows), rows)
    row = torch.empty_like(row_sorted).scatter_(0, order, row_sorted)
    start = torch.zeros(rows + 2, dtype=torch.int64, device=device)
    start[1:] = torch.cumsum(
        torch.zeros(rows + 1, dtype=torch.int64, device=device).index_add_(0, row_sorted, torch.ones_like(row_sorted)),
        0,
    )
    row_key = torch.full((rows + 1,), none, dtype=torch.int64, device=device)
    row_key.scatter_reduce_(0, row_sorted, key, "amin")
    row_key[rows] = none
    row_grid = torch.div(row_key, math.prod(shape), rounding_mode="floor")
    found = torch.stack([voxels.clamp(max=rows), (voxels - rows).clamp(min=0)])
    places = Places(located, row, rows, row_grid, scene.grids)
    return Voxels(places, row_key, order, start[:-1], found, shape, lowest)


def lattice_of(located: PointList, grids: int) -> tuple[list[int], list[int]]:
    """The number of cells along each axis, and the lowest cell."""
    if not bool(located.kept.any()):
        return [1, 1, 1], [0, 0, 0]
    cells = located.cell[located.kept]
    lowest, highest = cells.amin(0).tolist(), cells.amax(0).tolist()
    shape = [high - low + 1 for low, high in zip(lowest, highest, strict=True)]
    if max(grids, 1) * math.prod(shape) > SIZE_LIMIT:
        each = " in each cloud" if grids > 1 else ""
        raise ValueError(
            f"voxel_downsample: the points span {shape} voxels{each}, more than {SIZE_LIMIT_IN_WORDS} in all; take "
            "larger voxels, or crop far points away"
        )
    return shape, lowest


def read(scene: Scene, compute: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Points [P, 3], whether each has a reading, its cloud, and whether it belongs to a cloud."""
    main, device = scene.main, scene.main.device
    if scene.is_depth:
        height, width = main.shape[-2:]
        total = main.numel()
        number = torch.arange(total, device=device)
        cloud = number // max(height * width, 1)
        pixel = number - cloud * (height * width)
        row = pixel // max(width, 1)
        z, reading = measured(scene, main.reshape(total).to(compute))
        if scene.rays is not None:
            rays = scene.rays.to(compute)
            if rays.ndim == 3 and main.ndim == 3:
                rays = rays.expand(main.shape[0], *rays.shape)
            rays = rays.reshape(total, 2)
            x, y = rays[:, 0] * z, rays[:, 1] * z
        else:
            assert scene.intrinsics is not None
            table = scene.intrinsics.to(compute)
            if table.shape[-1] == 3:
                table = torch.stack([table[..., 0, 0], table[..., 1, 1], table[..., 0, 2], table[..., 1, 2]], -1)
            camera = table[cloud] if table.ndim == 2 else table
            x = (((pixel - row * width).to(compute) - camera[..., 2]) * z) / camera[..., 0]
            y = ((row.to(compute) - camera[..., 3]) * z) / camera[..., 1]
        return torch.stack([x, y, z], -1), reading, cloud, torch.ones_like(reading)
    points = main[..., :3].reshape(-1, 3).to(compute)
    number = torch.arange(points.shape[0], device=device)
    if scene.offsets is not None:
        offsets = scene.offsets.to(torch.int64).contiguous()
        cloud = torch.searchsorted(offsets, number, right=True) - 1
        exists = (cloud >= 0) & (cloud < scene.clouds)
        cloud = cloud.clamp(0, max(scene.clouds - 1, 0))
    else:
        count = max(main.shape[-2], 1)
        cloud = number // count
        exists = torch.ones_like(number, dtype=torch.bool)
        if scene.lengths is not None:
            exists = number - cloud * count < scene.lengths.to(torch.int64)[cloud]
    return points, torch.ones_like(exists), cloud, exists


def measured(scene: Scene, raw: Tensor) -> tuple[Tensor, Tensor]:
    """Depth in metres, in the dtype of the computation, and which pixels are readings."""

    def rounded(x: float) -> float:
        return to_single(x) if raw.dtype == torch.float32 else x

    z = raw * rounded(scene.depth_scale)
    reading = torch.isfinite(z) & (z > 0) & (z >= rounded(scene.depth_min)) & (z <= rounded(scene.depth_max))
    for value in scene.invalid:
        reading = reading & (raw != rounded(value))
    return z, reading


def inside(points: Tensor, box: Sequence[float]) -> Tensor:
    kept = torch.ones_like(points[:, 0], dtype=torch.bool)
    for axis in range(3):
        kept = kept & (points[:, axis] >= box[axis]) & (points[:, axis] < box[axis + 3])
    return kept


# ---- arithmetic


def to_single(x: float) -> float:
    """The nearest float32."""
    try:
        return float(struct.unpack("f", struct.pack("f", x))[0])
    except OverflowError:
        return math.inf if x > 0 else -math.inf


def two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a + b rounded, and its rounding error."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def odd_sum(a: Tensor, b: Tensor) -> Tensor:
    """a + b in float64, rounded to odd, so that a further rounding to fewer bits rounds the exact sum."""
    total, error = two_sum(a, b)
    bits = total.view(torch.int64)
    nearer_zero = torch.sign(error) * torch.sign(total) < 0
    odd = torch.where(nearer_zero, bits - 1, bits + 1)
    inexact = torch.isfinite(total) & (error != 0) & (bits & 1 == 0)
    return torch.where(inexact, odd, bits).view(torch.float64)


def halves(a: Tensor) -> tuple[Tensor, Tensor]:
    """a as a sum of two numbers of 26 bits."""
    scaled = a * 134217729.0
    high = scaled - (scaled - a)
    return high, a - high


def fused(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a * b + c with one rounding."""
    if b.dtype == torch.float32:  # the product is exact in float64
        product = a.to(torch.float64) * b.to(torch.float64)
        addend = c.to(torch.float64)
        product, addend = torch.broadcast_tensors(product, addend)
        return odd_sum(product, addend.contiguous()).to(torch.float32)
    a, b, c = (part.contiguous() for part in torch.broadcast_tensors(a, b, c))
    # Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums" (2008).
    product = a * b
    (a1, a2), (b1, b2) = halves(a), halves(b)
    low = a2 * b2 - (((product - a1 * b1) - a2 * b1) - a1 * b2)
    upper, upper_error = two_sum(c, low)
    total, total_error = two_sum(product, upper)
    value = total + odd_sum(upper_error, total_error)
    return torch.where(torch.isfinite(value), value, product + c)


def narrowed(x: Tensor, dtype: torch.dtype) -> Tensor:
    """float64 rounded once, also to half types, which torch reaches through float32."""
    if dtype not in (torch.float16, torch.bfloat16):
        return x.to(dtype)
    single = x.to(torch.float32)
    error = x - single.to(torch.float64)
    bits = single.view(torch.int32)
    odd = torch.where(torch.sign(error) * torch.sign(single) < 0, bits - 1, bits + 1)
    inexact = torch.isfinite(single) & (error != 0) & (single != 0) & (bits & 1 == 0)
    return torch.where(inexact, odd, bits).view(torch.float32).to(dtype)


def power_of_two(exponent: Tensor) -> Tensor:
    return ((exponent.to(torch.int64) + 1023) << 52).view(torch.float64)


# ---- reductions


def counted(places: Places) -> Tensor:
    """The number of points in each row, int64 [rows + 1]. The last counts dropped points."""
    count = torch.zeros(places.rows + 1, dtype=torch.int64, device=places.row.device)
    return count.index_add_(0, places.row, torch.ones_like(places.row))


def exponents(largest: Tensor, given: Tensor, dtype: torch.dtype) -> Tensor:
    """The power of two that the sums of each grid and channel are scaled by."""
    room = 61 - torch.frexp(given.to(torch.float64))[1].to(torch.int64)[:, None]
    if dtype != torch.float64:
        return torch.where(largest == 0, 0, room - (torch.frexp(largest)[1].to(torch.int64) - 1))
    bits = largest.view(torch.int64)
    return torch.where(bits >> 32 == 0, 0, (room - ((bits >> 52) - 1023)).clamp(max=1000))


def summed(places: Places, features: Tensor) -> Tensor:
    """The sums, float64 [rows + 1, F], not yet divided or rounded."""
    channels = features.shape[1]
    wide = features.to(torch.float64)
    finite = torch.isfinite(wide)
    real = torch.where(finite, wide, 0)
    grid, grids = places.located.grid, places.grids
    reached = torch.where(places.located.kept, grid, grids)
    largest = torch.zeros(grids + 1, channels, dtype=torch.float64, device=wide.device)
    largest.scatter_reduce_(0, reached[:, None].expand(-1, channels), real.abs(), "amax")
    given = torch.zeros(grids + 1, dtype=torch.int64, device=wide.device)
    given.index_add_(0, grid, torch.ones_like(grid))
    exponent = exponents(largest, given, features.dtype)
    fixed = torch.round(real * power_of_two(exponent)[reached]).to(torch.int64)
    rows = places.rows + 1
    total = torch.zeros(rows, channels, dtype=torch.int64, device=wide.device).index_add_(0, places.row, fixed)
    value = total.to(torch.float64) * power_of_two(-exponent)[places.row_grid]

    def any_of(mask: Tensor) -> Tensor:
        found = torch.zeros(rows, channels, dtype=torch.int32, device=wide.device)
        return found.index_add_(0, places.row, mask.to(torch.int32)) > 0

    up, down = any_of(wide == math.inf), any_of(wide == -math.inf)
    missing = any_of(torch.isnan(wide)) | (up & down)
    value = torch.where(up, math.inf, torch.where(down, -math.inf, value))
    return torch.where(missing, math.nan, value)


def order_of(features: Tensor, greatest: bool) -> Tensor:
    """int64 keys that order values for max, or min: the greatest key wins. NaN is the greatest, and -0 < +0."""
    if features.dtype not in BITS:
        key = features.to(torch.int64)
        return key if greatest else ~key
    bits = features.contiguous().view(BITS[features.dtype]).to(torch.int64)
    most = torch.iinfo(BITS[features.dtype]).max
    key = torch.where(bits < 0, bits ^ most, bits)
    return torch.where(torch.isnan(features), LARGEST, key if greatest else ~key)


def value_of(order: Tensor, greatest: bool, dtype: torch.dtype) -> Tensor:
    """The inverse of order_of."""
    key = order if greatest else ~order
    if dtype not in BITS:
        return key.to(dtype)
    most = torch.iinfo(BITS[dtype]).max
    bits = torch.where(key < 0, key ^ most, key).to(BITS[dtype]).view(dtype)
    return torch.where(order == LARGEST, torch.full((), math.nan, dtype=dtype, device=order.device), bits)


def extremes(places: Places, order: Tensor) -> Tensor:
    """int64 [rows + 1, F]: the greatest key of each row."""
    channels = order.shape[1]
    best = torch.full((places.rows + 1, channels), SMALLEST, dtype=torch.int64, device=order.device)
    return best.scatter_reduce_(0, places.row[:, None].expand(-1, channels), order, "amax")


def reduce(
    places: Places,
    lead: Sequence[int],
    features: Tensor | None,
    reductions: Sequence[str],
    packed: bool,
    empty: float,
    start: Sequence[Tensor] | None,
) -> list[Tensor]:
    """The values [*lead, ...] of each reduction. `start` holds the values that accumulate adds to."""
    count = counted(places)[:-1]
    filled = count > 0
    flat = None if features is None else features.flatten(0, -2)
    double = None
    values = []
    for k, reduction in enumerate(reductions):
        before = None if start is None else start[k]
        if reduction == "count":
            made = count + before.reshape(-1) if before is not None else torch.where(filled, count, int(empty))
            values.append(made.to(torch.int32).reshape(lead))
            continue
        if reduction == "occupancy":
            if packed:
                made = pack_bits(filled.reshape(lead))
                values.append(made if before is None else made | before.reshape(made.shape))
            else:
                rest = torch.full_like(count, int(empty)) if before is None else before.reshape(-1).to(torch.int64)
                values.append(torch.where(filled, 1, rest).to(torch.uint8).reshape(lead))
            continue
        assert flat is not None
        if reduction in ("sum", "mean"):
            if double is None:
                double = summed(places, flat)
            value = double[:-1] if reduction == "sum" else double[:-1] / count.clamp(min=1)[:, None]
            made = torch.where(filled[:, None], value.to(torch.float32), empty)
        else:
            greatest = reduction == "max"
            best = extremes(places, order_of(flat, greatest))[:-1]
            if before is None:
                rest = narrowed(torch.full((), empty, dtype=torch.float64, device=flat.device), flat.dtype)
            else:
                rest = before.reshape(best.shape)
                best = torch.maximum(best, order_of(rest, greatest))
            made = torch.where(filled[:, None], value_of(best, greatest, flat.dtype), rest)
        values.append(made.reshape(*lead, flat.shape[1]))
    return values


def first_points(voxels: Voxels, features: Tensor | None, first: int) -> Tensor:
    """[rows, first, 3 + F]: the first points of each voxel and their features; 0 after the last."""
    places = voxels.places
    table = places.located.points
    if features is not None:
        flat = features.flatten(0, -2).to(table.dtype)
        table = torch.cat([table, torch.where(torch.isnan(flat), math.nan, flat)], -1)
    rank = torch.arange(first, device=table.device)
    count = counted(places)[:-1]
    at = (voxels.start[:-1, None] + rank).clamp(max=max(table.shape[0] - 1, 0))
    filled = (rank < count[:, None])[:, :, None]
    if table.shape[0] == 0:
        return torch.zeros(places.rows, first, table.shape[1], dtype=table.dtype, device=table.device)
    return torch.where(filled, table[voxels.order[at]], 0)


def pack_bits(filled: Tensor) -> Tensor:
    """Eight cells along z in a byte, the low bit first."""
    depth = filled.shape[-1]
    padded = torch.nn.functional.pad(filled.to(torch.uint8), (0, -depth % 8))
    eights = padded.reshape(*filled.shape[:-1], -1, 8)
    weights = torch.arange(8, device=filled.device, dtype=torch.uint8)
    return (eights << weights).sum(-1, dtype=torch.uint8)


def gradient(places: Places, features: Tensor, reductions: Sequence[str], gradients: Sequence[Tensor | None]) -> Tensor:
    """d loss / d features from d loss / d values: for sum and mean through the row, for max and min to its winner."""
    flat = features.flatten(0, -2)
    channels = flat.shape[1]
    rows, row = places.rows, places.row
    total = torch.zeros(flat.shape, dtype=torch.float64, device=flat.device)
    number = torch.arange(flat.shape[0], device=flat.device)[:, None].expand(-1, channels)
    for reduction, given in zip(reductions, gradients, strict=True):
        if given is None:
            continue
        each = torch.zeros(rows + 1, channels, dtype=torch.float64, device=flat.device)
        each[:rows] = given.reshape(rows, channels)
        if reduction == "sum":
            total = total + each[row]
        elif reduction == "mean":
            count = counted(places).clamp(min=1).to(torch.float64)
            total = total + (each / count[:, None])[row]
        else:
            order = order_of(flat, reduction == "max")
            best = extremes(places, order)
            # The earliest point that has the greatest key of its row.
            candidate = torch.where(order == best[row], number, LARGEST)
            first = torch.full((rows + 1, channels), LARGEST, dtype=torch.int64, device=flat.device)
            first.scatter_reduce_(0, row[:, None].expand(-1, channels), candidate, "amin")
            total = total + torch.where(first[row] == number, each[row], 0)
    return narrowed(total, features.dtype).reshape(features.shape)
