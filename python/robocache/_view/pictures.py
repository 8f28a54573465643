"""Shows cameras: references into videos, recorded pictures, the frames that a cache keeps, and depth."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache._align.extent import nanoseconds
from robocache._cache.framed import VIDEO_MESSAGES, is_dense
from robocache._cache.framed import is_depth as is_dense_depth
from robocache._cache.tier import DenseSamples, TierSamples
from robocache._core import FileError
from robocache._recordings.frame_options import from_text
from robocache._recordings.images import CODECS, RAW, is_colour, is_image, is_packed_depth
from robocache._recordings.source import Array, StreamInfo
from robocache._recordings.streams import Packed
from robocache._recordings.words import counted
from robocache._view.numbers import Shown, nothing_in
from robocache._view.sink import Sink, Times

MOST_BYTES = 256 << 20  # of a camera's pictures in a view
MOST_VIDEO = 512 << 20  # bytes: larger video files are not put into the view
MOST_TRIED = 8  # pictures, until one can be decoded
CAMERA = "camera"
MEDIA = {"JPEG": "image/jpeg", "PNG": "image/png", "BMP": "image/bmp", "WEBP": "image/webp"}


def is_pictures(info: StreamInfo | None) -> bool:
    """Whether a stream's samples are pictures of any kind: colour, depth, video."""
    if info is None:
        return False
    if is_image(info.metadata) or info.metadata.get("kind") in ("video", "frames", "image"):
        return True
    return is_dense(info) or is_dense_depth(info)


def times_of(stream: Any) -> Times:
    from robocache import _core

    stamps = nanoseconds(f'view: stream "{stream.name}": ', np.asarray(stream.times))
    arrivals = stamps if stream.arrivals is None else nanoseconds("view: ", np.asarray(stream.arrivals))
    return Times(stamps - _core.nanoseconds("latency", stream.latency), arrivals)


def evenly_chosen(count: int, size: int, most: int = MOST_BYTES) -> NDArray[np.int64]:
    """The numbers of the pictures that are sent: all, or every k-th. Together they have at most `most` bytes.

    size: the bytes of one picture.
    """
    every = max(-(-count * max(size, 1) // most), 1)
    return np.arange(0, count, every)


def show_camera(sink: Sink, shown: Shown, name: str, stream: Any, most: int = MOST_BYTES) -> None:
    """Shows a camera's pictures. If they cannot be shown, adds a note that says why."""
    path = sink.path(CAMERA, *shown.paths[name])
    times, info, samples = times_of(stream), stream.info, samples_of(stream)
    if not len(times.recording):
        shown.notes.append(nothing_in(name))
        return
    shown.samples += len(times.recording)
    try:
        if isinstance(samples, TierSamples):
            sent = show_frames(sink, path, times, samples, most)
        elif info.metadata.get("kind") == "video":
            sent = show_video(sink, shown, name, path, times, samples, most)
        elif isinstance(samples, Packed) and is_video_message(info):
            sent = show_video_messages(sink, path, times, samples, info.metadata["format"].lower())
        elif isinstance(samples, Packed) and is_encoded(info):
            sent = show_encoded(sink, path, times, samples, most)
        else:
            sent = show_decoded(sink, shown, name, path, times, samples, most)
    except (FileError, ModuleNotFoundError) as error:
        shown.notes.append(f"{name}: its pictures are not shown: {error}")
        return
    shown.cameras.append(name)
    if sent < len(times.recording):
        shown.notes.append(f"{name}: {sent:,} of {counted(len(times.recording), 'picture')} are shown, evenly chosen")


def samples_of(stream: Any) -> Any:
    """The pictures of a camera, whether they are samples or rows of an array."""
    return DenseSamples(np.asarray(stream.values)) if stream.samples is None else stream.samples


def first_picture(samples: Any) -> Array:
    """The first picture that can be decoded, of the first few.

    Raises:
        FileError: None of them can.
    """
    why: FileError | None = None
    for k in range(min(len(samples), MOST_TRIED)):
        try:
            return np.asarray(samples[k])
        except FileError as error:
            why = why or error
    raise why or FileError("there is no sample")


def decodable(samples: Any, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[Array], FileError | None]:
    """The samples that can be decoded: their numbers, the pictures, and why the first of the others cannot."""
    kept, found = [], []
    why: FileError | None = None
    for k in rows.tolist():
        try:
            found.append(np.asarray(samples[k]))
        except FileError as error:
            why = why or error
            continue
        kept.append(k)
    return np.asarray(kept, np.int64), found, why


def is_depth_array(picture: Array) -> bool:
    return picture.ndim == 2 and picture.dtype != np.uint8


def fit_of(samples: Any) -> str:
    """The `fit` with which pictures were resized."""
    is_known = isinstance(samples, TierSamples) and samples.options not in ("", "varies")
    return from_text(samples.options).fit if is_known else "stretch"


def is_video_message(info: StreamInfo) -> bool:
    return "encoding" not in info.metadata and info.metadata.get("format", "").lower() in VIDEO_MESSAGES


def is_encoded(info: StreamInfo) -> bool:
    """Whether Rerun decodes the samples itself, as JPEG. It cannot decode compressed depth, which has a header."""
    said = info.metadata.get("encoding") or info.metadata.get("format") or ""
    return said not in RAW and not is_packed_depth(said)


# ---- By how the pictures are stored


def show_encoded(sink: Sink, path: str, times: Times, samples: Packed, most: int) -> int:
    """Sends the recorded bytes of JPEG, PNG and the like."""
    total = int((samples.ends - samples.begins).sum())
    rows = evenly_chosen(len(samples), -(-total // max(len(samples), 1)), most)
    data = [samples.as_stored(int(k)) for k in rows]
    kinds = [media_of(piece) for piece in data]
    known = [k for k, kind in enumerate(kinds) if kind is not None]
    if not known:
        raise FileError("they are neither JPEG nor PNG, BMP or WebP")
    archetype = sink.rr.EncodedImage
    columns = [
        (archetype.descriptor_blob(), sink.blobs([data[k] for k in known])),
        (archetype.descriptor_media_type(), sink.texts([str(kinds[k]) for k in known])),
    ]
    sink.columns(path, times.at(rows[known]), columns)
    return len(known)


def media_of(data: Array) -> str | None:
    head = data[:12].tobytes()
    return next((MEDIA[name] for magic, name in CODECS if head.startswith(magic)), None)


def show_frames(sink: Sink, path: str, times: Times, samples: TierSamples, most: int) -> int:
    """Sends the frames that a cache keeps. Samples without a frame are left out."""
    places = np.arange(len(samples.rows)) if samples._places is None else samples._places
    have = np.flatnonzero(places >= 0)
    frames = samples.rows
    chosen = have[evenly_chosen(len(have), int(frames[:1].nbytes), most)]
    if not len(chosen):
        raise FileError("the cache has no frame of them")
    send_pictures(sink, path, times.at(chosen), [frames[k] for k in places[chosen]])
    return len(chosen)


def show_decoded(
    sink: Sink, shown: Shown, name: str, path: str, times: Times, samples: Sequence[Any], most: int
) -> int:
    """Sends decoded pictures: raw ones, and those that Rerun cannot decode."""
    first = first_picture(samples)
    chosen = evenly_chosen(len(samples), first.nbytes, most)
    rows, found, why = decodable(samples, chosen)
    if why is not None:
        lost = len(chosen) - len(rows)
        shown.notes.append(f"{name}: {lost:,} of {counted(len(chosen), 'picture')} cannot be decoded: {why}")
    same = [k for k, picture in enumerate(found) if (picture.shape, picture.dtype) == (first.shape, first.dtype)]
    send_pictures(sink, path, times.at(rows[same]), [found[k] for k in same])
    return len(chosen) - (len(found) - len(same))


def send_pictures(sink: Sink, path: str, times: Times, pictures: Sequence[Array], columns: Any = None) -> None:
    """Sends pictures of one shape: uint8 [H, W, C], or depth [H, W]."""
    rr, first = sink.rr, pictures[0]
    height, width = first.shape[:2]
    archetype: Any
    if is_depth_array(first):
        archetype = rr.DepthImage
        about = archetype.from_fields(
            format=rr.components.ImageFormat(
                width=width, height=height, channel_datatype=rr.ChannelDatatype.from_np_dtype(first.dtype),
                color_model=rr.ColorModel.L,
            ),
            meter=1.0 if first.dtype.kind == "f" else 1000.0,
        )  # fmt: skip
    else:
        archetype = rr.Image
        model = {1: rr.ColorModel.L, 3: rr.ColorModel.RGB, 4: rr.ColorModel.RGBA}[
            1 if first.ndim == 2 else first.shape[2]
        ]
        about = archetype.from_fields(
            format=rr.components.ImageFormat(
                width=width, height=height, channel_datatype=rr.ChannelDatatype.U8, color_model=model
            )
        )
    sink.static(path, about)
    blobs = sink.blobs([np.ascontiguousarray(picture).reshape(-1).view(np.uint8) for picture in pictures])
    send = sink.columns if columns is None else columns
    send(path, times, [(archetype.descriptor_buffer(), blobs)])


def show_video(sink: Sink, shown: Shown, name: str, path: str, times: Times, samples: Any, most: int) -> int:
    """Sends a video file, and for each sample a reference to its frame. If Rerun does not play the video, sends
    decoded frames.
    """
    file = samples.file
    if not file:
        raise FileError("they lie in a video that is not known")
    try:
        size = os.path.getsize(file)
    except OSError as error:
        raise FileError(f"{file}: {error.strerror or error}") from None
    if not file.lower().endswith((".mp4", ".m4v")) or size > MOST_VIDEO:
        return show_decoded(sink, shown, name, path, times, samples, min(most, 64 << 20))
    asset = sink.path(CAMERA, *shown.paths[name], "video_file")
    sink.spend(size)
    sink.static(asset, sink.rr.AssetVideo(path=file))
    if shutil.which("ffmpeg") is None:
        shown.notes.append(f"{name}: where FFmpeg is not installed, the viewer plays videos in AV1 only")
    references = np.rint(samples.references[:, 0].astype(np.float64) * (1e9 / samples.fps)).astype(np.int64)
    archetype = sink.rr.VideoFrameReference
    flat = sink.arrow.Array.from_buffers(sink.arrow.int64(), len(references), [None, sink.arrow.py_buffer(references)])
    ones = np.ones(len(references), np.int64)
    sink.columns(path, times, [(archetype.descriptor_timestamp(), sink.flat_lists(flat, ones))])
    sink.static(path, archetype.from_fields(video_reference=asset))
    return len(references)


def show_video_messages(sink: Sink, path: str, times: Times, samples: Packed, said: str) -> int:
    """Sends a stream of compressed video, message by message, as it was recorded."""
    codecs = {"h264": "H264", "h265": "H265", "hevc": "H265", "av1": "AV1"}
    if said not in codecs:
        raise FileError(f"Rerun does not play {said} messages")
    archetype = sink.rr.VideoStream
    sink.static(path, archetype.from_fields(codec=getattr(sink.rr.VideoCodec, codecs[said])))
    data = [samples.as_stored(k) for k in range(len(samples))]
    sink.columns(path, times, [(archetype.descriptor_sample(), sink.blobs(data))])
    return len(data)


def is_depth(info: StreamInfo) -> bool:
    return is_image(info.metadata) and not is_colour(info.metadata)
