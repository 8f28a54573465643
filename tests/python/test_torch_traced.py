"""Every op under torch.compile(fullgraph=True) and torch.export: what is traced equals what is called."""

from __future__ import annotations

import numpy as np
import pytest

import robocache as rc
from robocache import _versions

torch = pytest.importorskip("torch")
if _versions.numbers(torch.__version__) < _versions.OLDEST_TRACED_TORCH:
    pytest.skip("torch.compile(fullgraph=True) and torch.export need torch 2.5", allow_module_level=True)

GRID = rc.Grid(origin=(-1, -1, -1), voxel_size=0.25, shape=(8, 8, 8))
CAMERA = (20.0, 20.0, 7.5, 5.5)
STAMPS = torch.arange(6) * 10_000_000
WANTED = torch.tensor([0, 4_000_000, 25_000_000, 70_000_000])


def wave(*shape: int) -> torch.Tensor:
    """Numbers between -1 and 1 that no two runs disagree about."""
    count = int(np.prod(shape))
    return torch.from_numpy(np.sin(np.arange(count, dtype=np.float32) * 1.7).reshape(shape))


def streams(pose, grip, stamps):
    return {
        "pose": rc.Stream(pose, stamps, method=[("linear", 0, 3), ("slerp", 3, 7)], latency=0.001),
        "grip": rc.Stream(grip, stamps, method="hold", max_gap=0.5),
    }


def resample(values, stamps, wanted):
    return rc.resample(values, stamps, wanted, method="cubic")


def align(pose, grip, stamps, wanted):
    made = rc.align(streams(pose, grip, stamps), wanted)
    return [part for name in ("pose", "grip") for part in made[name]]


def fuse(pose, grip, stamps):
    fused = rc.fuse(streams(pose, grip, stamps), rc.Timeline(0, rate=100, count=5))
    return fused.values, fused.valid, fused.age


def align_as_of(values, stamps, arrivals, decisions):
    stream = rc.Stream(values, stamps, arrivals=arrivals, method="cubic")
    complete = rc.Stream(values, stamps, as_of=False)
    line = rc.Timeline.around(decisions, history=3, horizon=2, rate=100)
    made = rc.align([stream, complete], line, as_of=decisions)
    fused = rc.fuse([stream], line, as_of="anchor")
    return [part for outputs in made for part in outputs] + [fused.values, fused.valid, fused.age]


def resample_as_of(values, stamps, wanted):
    return rc.resample(values, stamps, wanted, as_of=0.025)


def voxelize(points, features):
    voxels = rc.voxelize(points, GRID, features=features, reduce=("mean", "max", "count"), pose=np.eye(4))
    return *voxels.values, voxels.dropped.counts


def voxelize_depth(depth):
    return rc.voxelize_depth(depth, CAMERA, GRID, reduce="occupancy").values


def voxelize_sparse(points, features):
    made = rc.voxelize(points, GRID, features=features, reduce="mean", layout="sparse", first=2, max_voxels=40)
    return made.coordinates, made.values, made.counts, made.first, made.number


def voxelize_sparse_of_any_size(points):
    made = rc.voxelize(points, GRID, layout="sparse")
    return made.coordinates, made.counts, made.point_to_voxel


def downsample(points, features):
    made = rc.voxel_downsample(points, 0.5, features=features)
    return made.points, made.features, made.counts


def tsdf(depth):
    volume = rc.TsdfVolume(GRID, 0.5, device="cpu")
    volume.integrate(depth, CAMERA, torch.eye(4))
    volume.integrate(depth * 2, CAMERA, depth_max=1.5, invalid=(0, 1))
    return volume.values, volume.weights


def tsdf_surface(depth):
    volume = rc.TsdfVolume(GRID, 0.5, device="cpu")
    volume.integrate(depth, CAMERA, np.eye(4))
    return volume.surface_points()


def attention(q, k, v):
    return rc.attention(q, k, v, causal=True, return_lse=True)


def attention_with_a_mask(q, k, v):
    valid = torch.arange(k.shape[2]) < 9
    return rc.attention(q, [k, k], [v, v], mask=rc.Mask(key_valid=torch.cat([valid, valid])))


def image(frames, rows):
    resized = rc.image(frames, (5, 6), fit="cover", rows=rows, dtype=torch.float32, mean=(0.4, 0.5, 0.6), layout="nchw")
    return (
        resized,
        rc.image(frames[:, 1:], crop=(3, 4)),
        rc.image(frames, rows=[1, 0], dtype="bfloat16", std=0.5, pad=(1, 2, 3)),
    )


def image_of_planes(y, uv, offsets):
    out = torch.empty(2, 4, 4, 3, dtype=torch.uint8)
    rc.image((y, uv), (8, 8), crop=(4, 4), crop_offsets=offsets, yuv_siting="center", out=out)
    return out, rc.image(y.to(torch.uint16), (3, 3), filter="box")


POINTS = (wave(50, 3), wave(50, 2).cos())
DEPTH = (wave(12, 16).abs() + 0.3,)
PIXELS = (wave(3, 12, 16, 3) * 120 + 128).to(torch.uint8)
HEADS = (wave(1, 4, 7, 32), wave(1, 2, 11, 32).cos(), wave(1, 2, 11, 32))
CASES = {
    "resample": (resample, (wave(6, 3), STAMPS, WANTED)),
    "align": (align, (wave(6, 7), wave(6, 1) > 0, STAMPS, WANTED)),
    "align as_of": (align_as_of, (wave(6, 3), STAMPS, STAMPS.flip(0), torch.tensor([20_000_000, 40_000_000]))),
    "resample as_of": (resample_as_of, (wave(6, 3), STAMPS, WANTED)),
    "fuse": (fuse, (wave(6, 7), wave(6, 1), STAMPS)),
    "voxelize": (voxelize, POINTS),
    "voxelize_depth": (voxelize_depth, DEPTH),
    "voxelize sparse": (voxelize_sparse, POINTS),
    "voxelize sparse of any size": (voxelize_sparse_of_any_size, POINTS[:1]),
    "voxel_downsample": (downsample, POINTS),
    "tsdf": (tsdf, DEPTH),
    "tsdf surface": (tsdf_surface, DEPTH),
    "image": (image, (PIXELS, torch.tensor([2, 0, 2]))),
    "image of planes": (image_of_planes, (PIXELS[:2, :, :, 0], PIXELS[:2, :6, :8, :2], torch.tensor([[0, 4], [3, 1]]))),
    "attention": (attention, HEADS),
    "attention with a mask": (attention_with_a_mask, HEADS),
}
case = pytest.mark.parametrize("name", CASES)


@pytest.fixture(autouse=True)
def sizes_that_the_data_decides():
    """torch.compile asks for this where a result is as long as there are voxels; newer ones with fullgraph do not."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        yield


def same(made, expected):
    made, expected = ([part] if isinstance(part, torch.Tensor) else list(part) for part in (made, expected))
    assert len(made) == len(expected)
    for mine, theirs in zip(made, expected, strict=True):
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs)


@case
def test_compiled(name):
    function, arguments = CASES[name]
    same(torch.compile(function, fullgraph=True, backend="aot_eager")(*arguments), function(*arguments))


@case
def test_exported(name):
    function, arguments = CASES[name]

    class Model(torch.nn.Module):
        def forward(self, *arguments):
            return function(*arguments)

    program = torch.export.export(Model(), arguments)
    assert "torch.ops.robocache" in program.graph_module.code
    same(program.module()(*arguments), function(*arguments))


def test_a_volume_from_outside_is_written():
    volume, expected = (rc.TsdfVolume(GRID, 0.5, device="cpu") for _ in range(2))

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(depth):
        volume.integrate(depth, CAMERA, None)
        return volume.surface_points()

    expected.integrate(*DEPTH, CAMERA, None)
    assert torch.equal(step(*DEPTH), expected.surface_points())
    assert torch.equal(volume.values, expected.values)
    assert torch.equal(volume.weights, expected.weights)


def test_a_traced_volume_is_checked_when_it_runs():

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(depth):
        volume = rc.TsdfVolume(GRID, -1.0, device="cpu")
        volume.integrate(depth, CAMERA, None)
        return volume.values

    with pytest.raises(ValueError, match=r"tsdf: .*truncation"):
        step(*DEPTH)


@pytest.mark.parametrize(
    "start", [np.int64(7_000_000), np.float64(0.007), np.float32(0.0078125), 7_000_000, 0.007], ids=repr
)
@pytest.mark.parametrize("made", ["outside", "inside"])
def test_a_timeline_from_a_numpy_number(start, made):
    values = wave(6, 3)
    line = rc.Timeline(start, rate=100, count=4)

    def call(values):
        at = line if made == "outside" else rc.Timeline(start, rate=100, count=4)
        return rc.align([rc.Stream(values, STAMPS)], at)[0].values

    same(torch.compile(call, fullgraph=True, backend="aot_eager")(values), call(values))


def test_a_timeline_whose_rate_and_count_are_numpy_numbers():
    """Made outside: inside Dynamo takes them for arrays, whose numbers it does not know."""
    line = rc.Timeline(0, rate=np.float64(100), count=np.int64(4))

    def call(values):
        return rc.resample(values, STAMPS, line)

    values = wave(6, 3)
    same(torch.compile(call, fullgraph=True, backend="aot_eager")(values), call(values))
