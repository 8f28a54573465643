"""The demo's table-top: the arm and four things beside it, as three depth cameras see them. Every surface is known.

Shapes are met by rays in closed form, so a recording takes a fraction of a second and needs NumPy only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from robocache._demo.arm import Array, pose_truth

HEIGHT, WIDTH, FOCAL = 240, 320, 250.0  # pixels
RANGE = 4.0  # metres: beyond it a camera has no reading
GRAZING = 0.12  # cosine: a surface seen flatter than this sends nothing back
EDGE = 0.04  # of the depth: a jump over it between neighbours is an edge, and stereo finds no match there
SPECKLE = 0.01  # of the pixels have no reading, just so
NOISE = 0.001  # metres at 1 m; with stereo it grows with the square
SEED = 11
MOMENT = np.array([6.2])  # seconds into the arm's recording
LIGHT = np.array([0.35, -0.25, 0.9]) / np.linalg.norm([0.35, -0.25, 0.9])

Colour = tuple[float, float, float]
Intrinsics = tuple[float, float, float, float]  # fx, fy, cx, cy


@dataclass(frozen=True)
class Box:
    centre: tuple[float, float, float]
    size: tuple[float, float, float]
    colour: Colour
    turn: float = 0.0  # radians about z
    tile: float = 0.0  # metres: the squares of a chequered pattern; 0: plain

    @property
    def axes(self) -> Array:
        """The box's x, y and z as columns."""
        cosine, sine = np.cos(self.turn), np.sin(self.turn)
        return np.array([[cosine, -sine, 0], [sine, cosine, 0], [0, 0, 1]])

    def meet(self, origin: Array, rays: Array) -> Array:
        """How many lengths of each ray it is to the surface, from outside; infinity where the ray passes by."""
        start, along, half = (origin - self.centre) @ self.axes, rays @ self.axes, 0.5 * np.array(self.size)
        one, other = (-half - start) / along, (half - start) / along
        enter, leave = np.minimum(one, other).max(axis=-1), np.maximum(one, other).min(axis=-1)
        return np.where((enter < leave) & (enter > 0), enter, np.inf)

    def normal(self, points: Array) -> Array:
        inside = (points - self.centre) @ self.axes / (0.5 * np.array(self.size))
        outermost = np.abs(inside) == np.abs(inside).max(axis=-1, keepdims=True)
        return (np.sign(inside) * outermost) @ self.axes.T

    def distance(self, points: Array) -> Array:
        """To the surface; negative inside."""
        beyond = np.abs((points - self.centre) @ self.axes) - 0.5 * np.array(self.size)
        return np.linalg.norm(beyond.clip(0), axis=-1) + beyond.max(axis=-1).clip(max=0)


@dataclass(frozen=True)
class Capsule:
    """All points within the radius of a line; of a line without length: a ball."""

    begin: Array
    end: Array
    radius: float
    colour: Colour

    def meet(self, origin: Array, rays: Array) -> Array:
        line, start = self.end - self.begin, origin - self.begin
        length, behind, along = line @ line, start @ line, rays @ line
        side = nearer_root(
            length * (rays**2).sum(axis=-1) - along**2,
            length * (rays @ start) - behind * along,
            length * (start @ start - self.radius**2) - behind**2,
        )  # of the cylinder, as if it had no ends; NaN for a ball
        place = behind + side * along
        ball = np.where(place > 0, self.meet_ball(origin - self.end, rays), self.meet_ball(start, rays))
        met = np.where((place > 0) & (place < length), side, ball)
        return np.where(met > 0, met, np.inf)

    def meet_ball(self, start: Array, rays: Array) -> Array:
        return nearer_root((rays**2).sum(axis=-1), rays @ start, start @ start - self.radius**2)

    def from_line(self, points: Array) -> Array:
        """The way from the nearest point of the line."""
        line = self.end - self.begin
        share = ((points - self.begin) @ line) / max(float(line @ line), 1e-12)
        return points - self.begin - share.clip(0, 1)[..., None] * line

    def normal(self, points: Array) -> Array:
        return self.from_line(points) / self.radius

    def distance(self, points: Array) -> Array:
        return np.linalg.norm(self.from_line(points), axis=-1) - self.radius


def nearer_root(a: Array, b: Array, c: Array) -> Array:
    """The smaller root of a t^2 + 2 b t + c for a > 0; NaN if there is no real root."""
    return (-b - np.sqrt(b * b - a * c)) / a


Shape = Box | Capsule


def ball(centre: Array, radius: float, colour: Colour) -> Capsule:
    return Capsule(centre, centre, radius, colour)


def arm(hand: Array) -> list[Shape]:
    """The arm with its hand there: two links of one length from the shoulder to the wrist, the fingers downwards."""
    white, dark = (0.86, 0.87, 0.9), (0.22, 0.25, 0.32)
    up, across = np.array([0, 0, 0.07]), np.array([0, 0.035, 0])
    shoulder, wrist, link = np.array([0, 0, 0.36]), hand + 2 * up, 0.36
    reach = wrist - shoulder
    half = 0.5 * float(np.linalg.norm(reach))
    bend = np.cross(np.cross(reach, [0, 0, 1]), reach)
    elbow = shoulder + 0.5 * reach + bend / np.linalg.norm(bend) * np.sqrt(link**2 - half**2)
    return [
        Box((0, 0, 0.02), (0.18, 0.18, 0.04), dark),
        Capsule(np.array([0, 0, 0.05]), shoulder, 0.055, white),
        ball(shoulder, 0.07, dark),
        Capsule(shoulder, elbow, 0.045, white),
        ball(elbow, 0.06, dark),
        Capsule(elbow, wrist, 0.04, white),
        Capsule(wrist, hand + up, 0.045, dark),
        *(Capsule(hand + up + side, hand + side, 0.014, dark) for side in (-across, across)),
    ]


def surfaces(moment: Array = MOMENT) -> list[Shape]:
    """With the arm where it is then."""
    return [
        Box((0.3, 0, -0.77), (12, 12, 0.04), (0.36, 0.38, 0.42)),  # the floor
        Box((0.3, 0, -0.03), (1.3, 1.3, 0.06), (0.8, 0.68, 0.52), tile=0.1),  # the table
        Box((0.52, -0.3, 0.07), (0.14, 0.14, 0.14), (0.13, 0.4, 0.75), turn=0.5),
        Box((0.2, 0.34, 0.04), (0.24, 0.14, 0.08), (0.1, 0.6, 0.42), turn=-0.3),
        ball(np.array([0.64, 0.24, 0.075]), 0.075, (0.85, 0.2, 0.16)),
        Capsule(np.array([0.22, -0.32, 0.05]), np.array([0.22, -0.32, 0.24]), 0.05, (0.95, 0.7, 0.1)),
        *arm(pose_truth(moment)[0, :3]),
    ]


@dataclass(frozen=True)
class Camera:
    name: str
    place: tuple[float, float, float]
    none: int  # the value that it writes where it has no reading
    target: tuple[float, float, float] = (0.3, 0.0, 0.12)

    @property
    def pose(self) -> Array:
        """Camera to table: x right, y down, z forward."""
        forward = np.subtract(self.target, self.place)
        right = np.cross(forward, [0, 0, 1])
        pose = np.eye(4)
        pose[:3, :3] = np.stack([v / np.linalg.norm(v) for v in (right, np.cross(forward, right), forward)], axis=1)
        pose[:3, 3] = self.place
        return pose


CAMERAS = (
    Camera("left", (1.05, -0.85, 0.75), none=0),
    Camera("right", (1.0, 0.9, 0.8), none=0),
    Camera("back", (-0.6, 0.25, 1.15), none=65535),
)


@dataclass(frozen=True)
class Recording:
    depth: Array  # [C, H, W] uint16, millimetres
    colour: Array  # [C, H, W, 3] uint8
    intrinsics: Intrinsics  # the cameras are of one kind
    poses: Array  # [C, 4, 4]


def record() -> Recording:
    """One frame of each camera. The same every time."""
    random = np.random.default_rng(SEED)
    intrinsics = (FOCAL, FOCAL, 0.5 * (WIDTH - 1), 0.5 * (HEIGHT - 1))
    frames = [expose(camera, intrinsics, random) for camera in CAMERAS]
    depth, colour = (np.stack(images) for images in zip(*frames, strict=True))
    return Recording(depth, colour, intrinsics, np.stack([camera.pose for camera in CAMERAS]))


def expose(
    camera: Camera,
    intrinsics: Intrinsics,
    random: np.random.Generator,
    moment: Array = MOMENT,
    size: tuple[int, int] = (HEIGHT, WIDTH),
) -> tuple[Array, Array]:
    depth, facing, light = look(camera, intrinsics, moment, size)
    lost = (facing < GRAZING) | (depth > RANGE) | edges(depth) | (random.random(depth.shape) < SPECKLE)
    known = np.where(lost, 0, depth)
    noisy = known + random.normal(0, NOISE, known.shape) * known**2
    reading = np.where(lost, camera.none, np.rint(1e3 * noisy)).astype(np.uint16)
    return reading, np.rint(255 * light).astype(np.uint8)


def look(
    camera: Camera, intrinsics: Intrinsics, moment: Array = MOMENT, size: tuple[int, int] = (HEIGHT, WIDTH)
) -> tuple[Array, Array, Array]:
    """For each pixel: the true depth [H, W], the cosine of the angle to the surface, and the colour [H, W, 3]."""
    fx, fy, cx, cy = intrinsics
    row, column = np.indices(size)
    rays = np.stack([(column - cx) / fx, (row - cy) / fy, np.ones(row.shape)], axis=-1) @ camera.pose[:3, :3].T
    shapes, origin = surfaces(moment), np.array(camera.place)
    with np.errstate(divide="ignore", invalid="ignore"):
        met = np.stack([shape.meet(origin, rays) for shape in shapes])
    depth = met.min(axis=0)  # a ray is 1 long in z, so that its lengths are depth
    seen = np.where(depth < np.inf, met.argmin(axis=0), len(shapes))
    facing, light = np.zeros(depth.shape), np.full((*depth.shape, 3), 0.8)
    for number, shape in enumerate(shapes):
        here = seen == number
        points = origin + depth[here][:, None] * rays[here]
        normal = shape.normal(points)
        facing[here] = -(normal * rays[here]).sum(axis=1) / np.linalg.norm(rays[here], axis=1)
        bright = 0.6 + 0.4 * (normal @ LIGHT).clip(0)
        if isinstance(shape, Box) and shape.tile:
            bright *= 1 - 0.12 * (np.floor(points[:, :2] / shape.tile).sum(axis=1) % 2)
        light[here] = np.array(shape.colour) * bright[:, None]
    return depth, facing, light


def edges(depth: Array) -> Array:
    near = np.minimum(depth, 2 * RANGE)  # so that there is no edge between two infinities
    edge = np.zeros(depth.shape, bool)
    edge[:, 1:] |= np.abs(np.diff(near, axis=1)) > EDGE * near[:, 1:]
    edge[1:] |= np.abs(np.diff(near, axis=0)) > EDGE * near[1:]
    return edge


def distance(points: Array, moment: Array = MOMENT) -> Array:
    """From each point to the nearest true surface, metres."""
    return np.abs(np.stack([shape.distance(points) for shape in surfaces(moment)])).min(axis=0)
