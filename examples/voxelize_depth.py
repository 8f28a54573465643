"""RGB-D frames into coloured grids for a policy, with torch: python examples/voxelize_depth.py

A ball rolls over a table. Each of 16 moments is seen by two cameras: 32 frames with holes go into 16 grids. One call
unprojects, poses and averages them, and writes no cloud between; `into` says which frames are of one moment.
"""

import torch

import robocache as rc

MOMENTS, HEIGHT, WIDTH, RADIUS = 16, 120, 160, 0.08
INTRINSICS = (140.0, 140.0, 79.5, 59.5)  # fx, fy, cx, cy

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def camera(x: float, y: float, z: float) -> torch.Tensor:
    """Camera to table, looking at the table's middle: its right, down, forward and place are the columns."""
    place, up = torch.tensor([x, y, z]), torch.tensor([0.0, 0.0, 1.0])
    forward = -place / place.norm()
    right = torch.linalg.cross(forward, up) / torch.linalg.cross(forward, up).norm()
    pose = torch.eye(4)
    pose[:3] = torch.stack([right, torch.linalg.cross(forward, right), forward, place], dim=1)
    return pose


def frame(pose: torch.Tensor, ball: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """uint16 millimetres [H, W] and uint8 colours [H, W, 3], as a camera would have sent them."""
    pixels = torch.from_numpy(rc.camera_rays(INTRINSICS, (HEIGHT, WIDTH)))
    rays = torch.cat([pixels, torch.ones(HEIGHT, WIDTH, 1)], dim=-1) @ pose[:3, :3].T
    start = pose[:3, 3] - ball
    a, b, c = rays.square().sum(-1), rays @ start, start.square().sum() - RADIUS**2
    table, met = -pose[2, 3] / rays[..., 2], (-b - (b * b - a * c).sqrt()) / a  # NaN: the ray passes by the ball
    depth = torch.where(met < table, met, table)
    depth[(torch.rand(HEIGHT, WIDTH) < 0.02) | (rays[..., 2] > -0.1)] = 0  # no reading: speckles, and beyond the table
    colour = torch.where((met < table)[..., None], torch.tensor([200, 40, 30]), torch.tensor([190, 160, 120]))
    return (1000 * depth).round().to(torch.uint16), colour.to(torch.uint8)


cameras = [camera(0.9, 0.0, 0.6), camera(0.2, -0.8, 0.7)]
balls = torch.stack([torch.tensor([0.2, y, RADIUS]) for y in torch.linspace(-0.4, 0.4, MOMENTS).tolist()])
frames = [frame(pose, ball) for ball in balls for pose in cameras]
depth, colour = (torch.stack(images).to(device) for images in zip(*frames, strict=True))
poses = torch.stack(cameras).repeat(MOMENTS, 1, 1).to(device)

grid = rc.Grid.from_bounds(low=(-0.5, -0.5, -0.02), high=(0.5, 0.5, 0.3), voxel_size=0.04)
moment = torch.arange(MOMENTS, device=device).repeat_interleave(len(cameras))
(occupied, mean), dropped = rc.voxelize_depth(
    depth, INTRINSICS, grid, pose=poses, features=colour, reduce=("occupancy", "mean"), into=moment, grids=MOMENTS
)
holes, outside = int(dropped.no_reading.sum()), int(dropped.outside.sum())
print(f"{tuple(depth.shape)} {depth.dtype} -> {tuple(mean.shape)} {mean.dtype} on {mean.device}")
print(f"of {depth.numel()} pixels {holes} had no reading and {outside} lay outside")

# A policy that says where the ball is. Channels first, as convolutions want them: occupied, red, green, blue.
observed = torch.cat([occupied[..., None].float(), mean / 255], dim=-1).movedim(-1, 1)
policy = torch.nn.Sequential(
    torch.nn.Conv3d(4, 8, 3, stride=2), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(3)
).to(device)
loss = torch.nn.functional.mse_loss(policy(observed), balls.to(device))
loss.backward()
print(f"one step of a small policy: loss {loss.item():.3f}")
