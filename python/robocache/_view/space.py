"""Shows in 3D: transforms, clouds, depth images in front of their cameras, and voxels of clouds and depth images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache._core import FileError
from robocache._recordings.source import Array
from robocache._recordings.words import counted
from robocache._view.numbers import Shown, nothing_in
from robocache._view.pictures import (
    CAMERA,
    decodable,
    evenly_chosen,
    first_picture,
    fit_of,
    is_depth_array,
    samples_of,
    times_of,
)
from robocache._view.sink import Sink, Times
from robocache._voxels.grid import Grid
from robocache._voxels.voxelize import voxelize, voxelize_depth

MOST_CLOUD_BYTES = 128 << 20  # of a stream's clouds in a view
MOST_POINTS = 100_000  # of a cloud in a view
MOST_VOXELIZED = 64  # clouds or depth images of a stream that are shown as voxels
CELLS = 96  # along the longest side of their grid
LEAST_FOCAL, MOST_FOCAL = 0.01, 1e6  # pixels: no camera is beyond
Intrinsics = tuple[float, float, float, float]  # fx, fy, cx, cy
CLOUD, VOXELS, FRAMES = "cloud", "voxels", "tf"
TRANSLATION = ("translation.x", "translation.y", "translation.z")
ROTATION = ("rotation.x", "rotation.y", "rotation.z", "rotation.w")


def is_cloud(info: Any) -> bool:
    return info is not None and info.ragged and tuple(info.channels[:3]) == ("x", "y", "z")


def places_of(stream: Any) -> list[int] | None:
    """The numbers of the seven channels of a transform. None: the stream is not of transforms."""
    info = getattr(stream, "info", None)
    if info is None or not info.metadata.get("parent") or info.metadata["parent"] == "varies":
        return None
    channels = list(info.channels)
    try:
        return [channels.index(channel) for channel in (*TRANSLATION, *ROTATION)]
    except ValueError:
        return None


def show_transforms(sink: Sink, shown: Shown, streams: Mapping[str, Any]) -> set[str]:
    """Shows transforms as Rerun's named frames. Returns their names. Frames without a parent are at the origin."""
    parents: dict[str, str] = {}
    for name, stream in streams.items():
        places = places_of(stream)
        if places is None or not len(stream.times):
            continue
        child, parent = name.rpartition("/")[2], stream.info.metadata["parent"].removeprefix("/")
        parents[child] = parent
        values = np.asarray(stream.values)[:, places].astype(np.float32)
        count, rr = len(values), sink.rr
        ones = np.ones(count, np.int64)
        columns = [
            (rr.Transform3D.descriptor_translation(), sink.vectors(values[:, :3], ones)),
            (rr.Transform3D.descriptor_quaternion(), sink.vectors(values[:, 3:], ones)),
            (rr.Transform3D.descriptor_child_frame(), sink.texts([child] * count)),
            (rr.Transform3D.descriptor_parent_frame(), sink.texts([parent] * count)),
        ]
        path = sink.path(FRAMES, *shown.paths[name])
        times = times_of(stream)
        if stream.info.metadata.get("static") == "true":  # it is also valid before its first sample
            first = rr.Transform3D(
                translation=values[0, :3], quaternion=values[0, 3:], child_frame=child, parent_frame=parent
            )
            sink.static(path, first)
        else:
            sink.columns(path, times, columns)
        axes = sink.path(FRAMES, *shown.paths[name], "axes")
        sink.static(axes, rr.CoordinateFrame(frame=child), rr.TransformAxes3D(0.1, show_frame=True))
        shown.space.append(path)
    for root in sorted(set(parents.values()) - set(parents)):
        sink.static(
            sink.path(FRAMES, "root", root),
            sink.rr.Transform3D(translation=[0, 0, 0], child_frame=root, parent_frame="tf#/"),
        )
    return set(parents) | set(parents.values())


def put_in_frame(sink: Sink, path: str, stream: Any, frames: set[str]) -> None:
    frame = stream.info.metadata.get("frame_id", "").removeprefix("/")
    if frame in frames:
        sink.static(path, sink.rr.CoordinateFrame(frame=frame))


# ---- Clouds


def show_clouds(sink: Sink, shown: Shown, name: str, stream: Any, frames: set[str]) -> None:
    """Shows clouds. Of large clouds every k-th point is shown."""
    times, samples = times_of(stream), stream.samples
    if samples is None or not len(times.recording):
        shown.notes.append(nothing_in(name))
        return
    shown.samples += len(times.recording)
    lengths = samples.ends - samples.begins
    usual = min(int(lengths.mean()) + 1, MOST_POINTS)
    rows = evenly_chosen(len(samples), 16 * usual, MOST_CLOUD_BYTES)
    clouds = []
    for k in rows:
        cloud = np.asarray(samples[int(k)])
        cloud = cloud[:: max(-(-len(cloud) // MOST_POINTS), 1)]
        clouds.append(cloud[np.isfinite(cloud[:, :3]).all(axis=1)])
    points = np.concatenate(clouds)
    counts = np.asarray([len(cloud) for cloud in clouds], np.int64)
    path = sink.path(CLOUD, *shown.paths[name])
    archetype = sink.rr.Points3D
    columns = [(archetype.descriptor_positions(), sink.vectors(points[:, :3].astype(np.float32), counts))]
    colours = colours_of(points, tuple(stream.info.channels))
    if colours is not None:
        flat = sink.arrow.Array.from_buffers(sink.arrow.uint32(), len(colours), [None, sink.arrow.py_buffer(colours)])
        columns.append((archetype.descriptor_colors(), sink.flat_lists(flat, counts)))
    sink.columns(path, times.at(rows), columns)
    put_in_frame(sink, path, stream, frames)
    shown.space.append(path)
    if len(rows) < len(samples):
        shown.notes.append(f"{name}: {len(rows):,} of {counted(len(samples), 'cloud')} are shown, evenly chosen")
    if int(lengths.max(initial=0)) > MOST_POINTS:
        shown.notes.append(f"{name}: of clouds of more than {MOST_POINTS:,} points every k-th is shown")
    show_cloud_voxels(sink, shown, name, stream, times.at(rows), clouds, frames)


def colours_of(points: Array, channels: tuple[str, ...]) -> NDArray[np.uint32] | None:
    """The colour 0xRRGGBBAA of each point: by its intensity if it has one, otherwise by its height. None: no points."""
    if not len(points):
        return None
    channel = next((channels.index(each) for each in ("intensity", "reflectivity") if each in channels), 2)
    value = points[:, channel].astype(np.float64)
    low, high = np.percentile(value[np.isfinite(value)], (2, 98)) if np.isfinite(value).any() else (0.0, 1.0)
    share = np.nan_to_num(np.clip((value - low) / max(high - low, 1e-12), 0, 1))
    anchors = np.linspace(0, 1, 5)
    table = np.array([(68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37)])  # viridis
    red, green, blue = (np.interp(share, anchors, table[:, k]).astype(np.uint32) for k in range(3))
    return np.ascontiguousarray((red << 24) | (green << 16) | (blue << 8) | np.uint32(255))


def grid_of(points: Array) -> Grid | None:
    """A grid around most of the points. None: there are no points."""
    if not len(points):
        return None
    low, high = np.percentile(points.astype(np.float64), (1, 99), axis=0)
    size = max(float((high - low).max()), 1e-3) / CELLS
    return Grid.from_bounds(low=tuple(low), high=tuple(high + size), voxel_size=size)


def show_cloud_voxels(
    sink: Sink, shown: Shown, name: str, stream: Any, times: Times, clouds: list[Array], frames: set[str]
) -> None:
    every = max(-(-len(clouds) // MOST_VOXELIZED), 1)
    chosen = [np.ascontiguousarray(cloud[:, :3].astype(np.float32)) for cloud in clouds[::every]]
    grid = grid_of(np.concatenate(chosen))
    if grid is None:
        return
    offsets = np.cumsum([0, *map(len, chosen)])
    found = voxelize(np.concatenate(chosen), grid, offsets=offsets, layout="sparse")
    send_voxels(sink, shown, name, stream, times.at(slice(None, None, every)), found, grid, frames)


def send_voxels(
    sink: Sink, shown: Shown, name: str, stream: Any, times: Times, found: Any, grid: Grid, frames: set[str]
) -> None:
    """Sends the sparse voxels of several clouds, a row for each cloud. Colours show the number of points in a voxel."""
    rr, path = sink.rr, sink.path(VOXELS, *shown.paths[name])
    coordinates, counts = np.asarray(found.coordinates), np.asarray(found.counts).astype(np.float64)
    lengths = np.bincount(coordinates[:, 0], minlength=len(times.recording)).astype(np.int64)
    values = np.log1p(counts).astype(np.float32)
    flat = sink.arrow.Array.from_buffers(sink.arrow.float32(), len(values), [None, sink.arrow.py_buffer(values)])
    archetype = rr.VoxelGridMap
    columns = [
        (archetype.descriptor_voxel_indices(), sink.vectors(coordinates[:, 1:].astype(np.int32), lengths)),
        (archetype.descriptor_values(), sink.flat_lists(flat, lengths)),
    ]
    sink.columns(path, times, columns)
    high = float(np.percentile(values, 99)) if len(values) else 1.0
    about = {"voxel_size": grid.voxel_size, "translation": grid.origin, "value_range": [0.0, max(high, 0.1)]}
    sink.static(path, archetype.from_fields(**about))
    put_in_frame(sink, path, stream, frames)
    shown.voxels.append(path)
    shown.notes.append(
        f"{name}: {counted(len(times.recording), 'moment')} as voxels of {100 * grid.voxel_size[0]:.2g} cm, which the "
        "view has chosen"
    )


# ---- Cameras


def intrinsics_of(
    name: str, streams: Mapping[str, Any], size: tuple[int, int] | None = None, fit: str = "stretch"
) -> Intrinsics | None:
    """fx, fy, cx and cy of the camera_info beside the image's topic. None: there is none, or it is impossible.

    size: the height and width of pictures that are not as recorded. fit: how they were resized.
    """
    folder = name.rpartition("/")[0]
    for other, stream in streams.items():
        channels = list(getattr(stream, "channels", None) or ())
        if other.rpartition("/")[0] == folder and "k[0]" in channels and len(stream.times):
            first = dict(zip(channels, np.asarray(stream.values)[0].tolist(), strict=True))
            fx, fy, cx, cy = (float(first[f"k[{k}]"]) for k in (0, 4, 2, 5))
            before = first.get("height", 0), first.get("width", 0)
            if not (min(fx, fy) >= LEAST_FOCAL and max(fx, fy, abs(cx), abs(cy)) <= MOST_FOCAL):  # False for NaN
                return None
            if size is None or size == before or not (before[0] >= 1 and before[1] >= 1):
                return fx, fy, cx, cy
            return resized((fx, fy, cx, cy), before, size, fit)
    return None


def resized(given: Intrinsics, before: tuple[float, float], after: tuple[int, int], fit: str) -> Intrinsics:
    """The intrinsics of resized pictures. The middle stays the middle; the centre of pixel 0 is at 0."""
    fx, fy, cx, cy = given
    scales = [new / old for old, new in zip(before, after, strict=True)]
    down, across = scales if fit == "stretch" else [max(scales) if fit == "cover" else min(scales)] * 2
    cx = (cx + 0.5 - before[1] / 2) * across + after[1] / 2 - 0.5
    cy = (cy + 0.5 - before[0] / 2) * down + after[0] / 2 - 0.5
    return fx * across, fy * down, cx, cy


def show_camera_in_space(
    sink: Sink, shown: Shown, name: str, stream: Any, streams: Mapping[str, Any], frames: set[str]
) -> None:
    """Shows a camera with a recorded camera_info in 3D, with its pictures or the points of its depth images."""
    if name not in shown.cameras or intrinsics_of(name, streams) is None:
        return  # no picture is decoded for nothing
    samples = samples_of(stream)
    try:
        first = first_picture(samples)
    except (FileError, ModuleNotFoundError) as error:
        shown.notes.append(f"{name}: not in 3D: {error}")
        return
    height, width = first.shape[:2]
    intrinsics = intrinsics_of(name, streams, (height, width), fit_of(samples))
    if intrinsics is None:
        return
    fx, fy, cx, cy = intrinsics
    path = sink.path(CAMERA, *shown.paths[name])
    frame = stream.info.metadata.get("frame_id", "").removeprefix("/")
    about: dict[str, Any] = {"parent_frame": frame} if frame in frames else {}
    if about:
        about["child_frame"] = f"{frame}/picture of {name}"
        sink.static(path, sink.rr.CoordinateFrame(frame=about["child_frame"]))
    pinhole = sink.rr.Pinhole(
        focal_length=[fx, fy], principal_point=[cx, cy], width=width, height=height, image_plane_distance=0.3, **about
    )
    sink.static(path, pinhole)
    shown.space.append(path)
    if is_depth_array(first):
        show_depth_voxels(sink, shown, name, stream, intrinsics, frames)


def show_depth_voxels(
    sink: Sink, shown: Shown, name: str, stream: Any, intrinsics: Intrinsics, frames: set[str]
) -> None:
    samples = samples_of(stream)
    rows = np.arange(0, len(samples), max(-(-len(samples) // MOST_VOXELIZED), 1))
    rows, images, _ = decodable(samples, rows)
    if len({image.shape for image in images}) > 1 or images[0].dtype.kind not in "uf":
        return
    depth = np.stack(images)
    scale = 1.0 if depth.dtype.kind == "f" else 0.001
    reading = depth[np.isfinite(depth) & (depth > 0)].astype(np.float64) * scale
    if not len(reading):
        return
    low, far = (float(x) for x in np.percentile(reading[:: max(len(reading) // 1_000_000, 1)], (1, 99)))
    fx, fy, cx, cy = intrinsics
    height, width = depth.shape[1:]
    corners = np.array([[(u - c) * far / f for u in (0, size)] for c, f, size in ((cx, fx, width), (cy, fy, height))])
    size = max(float(np.ptp(corners, axis=1).max()), far - low, 1e-3) / CELLS
    bounds = (*corners[:, 0], low), (*(corners[:, 1] + size), far + size)
    grid = Grid.from_bounds(low=bounds[0], high=bounds[1], voxel_size=size)
    found = voxelize_depth(depth, intrinsics, grid, layout="sparse")
    send_voxels(sink, shown, name, stream, times_of(stream).at(rows), found, grid, frames)
