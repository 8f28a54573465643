"""Recordings with cameras for tests: LeRobot sets whose videos PyAV encodes, MCAP files with images."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from frame_oracle import rgb_of_frame

import robocache as rc
from robocache import mcap
from robocache._cache.build import build
from robocache._export import mcap_images
from robocache._recordings.frame_options import options_of

CAMERA = "observation.images.top"


def photo(seed=0.0, height=48, width=64):
    """Smooth, so that JPEG is close to it, and no channel is like another."""
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / 9 + seed), np.cos(y / 7 + seed), np.sin((x + y) / 11 - seed)]
    return np.stack([127 + 100 * wave for wave in waves], axis=-1).astype(np.uint8)


def encoded(image, kind, **options):
    Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, kind, **options)
    return stream.getvalue()


def write_video(
    path, frames, fps=10, codec="libx264", pix_fmt="yuv420p", container="mp4", full=False, matrix=None, options=None
):
    """Frames [H, W, 3] or [H, W] as a video in this pixel format."""
    av = pytest.importorskip("av", reason="PyAV is not installed")
    frames = list(frames)
    try:
        av.codec.Codec(codec, "w")
    except Exception:
        pytest.skip(f"this PyAV cannot encode {codec}")
    with av.open(str(path), "w", format={"mp4": "mp4", "mkv": "matroska"}[container]) as file:
        stream = file.add_stream(codec, rate=fps, options=options or {})
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = pix_fmt
        if matrix is not None:
            stream.codec_context.colorspace = matrix
        if full:
            stream.codec_context.color_range = 2
        stream.codec_context.gop_size = 5
        for image in frames:
            frame = av.VideoFrame.from_ndarray(image, format="rgb24" if image.ndim == 3 else "gray")
            for packet in stream.encode(frame.reformat(format=pix_fmt)):
                file.mux(packet)
        for packet in stream.encode():
            file.mux(packet)


def video_set(root, lengths=(12, 9), size=(48, 64), fps=10, cameras=(CAMERA,)):
    """A LeRobot set; frame k of the whole is photo(0.3 * k)."""
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pytest.importorskip("av", reason="PyAV is not installed")
    from robocache._export.lerobot import Feature, LeRobotWriter

    features = {"action": Feature("float32", (1,))} | {name: Feature("video", (*size, 3)) for name in cameras}
    with LeRobotWriter(root, fps=fps, features=features) as writer:
        for episode, length in enumerate(lengths):
            first = sum(lengths[:episode])
            videos = {
                name: (photo(0.3 * (first + k) + number, *size) for k in range(length))
                for number, name in enumerate(cameras)
            }
            writer.add({"action": np.arange(length)[:, None]}, "look", videos)
    return root


def videos_of(root, camera=CAMERA):
    """The video of each episode, and the numbers of its frames there."""
    found = []
    for episode in rc.open(root).episodes:
        samples = episode.streams[camera].samples
        found.append((samples.file, samples.references[:, 0].tolist()))
    return found


def write_images(path, topics, rate=10, more=True):
    """An MCAP file: {"/camera": (encoding or format, [arrays or encoded bytes])}, and a stream of numbers."""
    with mcap.Writer(path) as writer:
        messages = []
        for topic, (encoding, images) in topics.items():
            compressed = isinstance(images[0], bytes)
            kind = mcap_images.COMPRESSED if compressed else mcap_images.IMAGE
            schema = writer.add_schema(kind, "ros2msg", mcap_images.SCHEMAS[kind])
            channel = writer.add_channel(topic, "cdr", schema)
            for k, image in enumerate(images):
                at = 1_000_000_000 + round(k * 1e9 / rate)
                if compressed:
                    body = mcap_images.stored(at, np.frombuffer(image, np.uint8), {"format": encoding})
                else:
                    height, width = image.shape[:2]
                    step = image[0].nbytes
                    body = mcap_images.raw(at, height, width, encoding, 0, step, np.ascontiguousarray(image).tobytes())
                messages.append((at, channel, body))
        if more:
            channel = writer.add_channel("/joints", "json", writer.add_schema("joints", "jsonschema", "{}"))
            for k in range(20):
                messages.append((1_000_000_000 + k * 50_000_000, channel, json.dumps({"x": k}).encode()))
        for at, channel, body in sorted(messages, key=lambda message: message[:2]):
            writer.write(channel, body, log_time=at)
    return path


def made(path, output, size="20x24", fit=None, keep=None, **more):
    """The cache of one recording with frames of all cameras."""
    found = build([str(path)], output, frames=options_of("test", size, fit, keep), **more)
    assert [row.get("error") for row in found["sources"]] == [None]
    return rc.Cache(output), found


def decoded_by_pyav(path, numbers):
    """These frames of a video, as the oracle converts their planes."""
    import av

    wanted, found = set(numbers), {}
    with av.open(str(path)) as container:
        for k, frame in enumerate(container.decode(video=0)):
            if k in wanted:
                found[k] = rgb_of_frame(frame)
    return [found[number] for number in numbers]


def seen_in(kind, stored):
    """The picture of a stored image, by Pillow and NumPy."""
    from PIL import Image

    if isinstance(stored, bytes):
        image = np.asarray(Image.open(io.BytesIO(stored)))
        return image[..., None] if image.ndim == 2 else image
    if kind.startswith("bgr"):
        return stored[..., [2, 1, 0]]
    return stored[..., None] if stored.ndim == 2 else stored
