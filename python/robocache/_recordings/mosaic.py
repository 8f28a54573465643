"""Raw images that are not stored channel by channel: Bayer mosaics, and YUV 4:2:2 with its samples interleaved."""

from __future__ import annotations

import numpy as np

from robocache._recordings.planes import Planes, converted
from robocache._recordings.source import Array

# For each ROS encoding, the colours of the first two pixels of the first two rows.
BAYER = {"bayer_rggb8": "rggb", "bayer_bggr8": "bggr", "bayer_gbrg8": "gbrg", "bayer_grbg8": "grbg"}
# For each, the places of Y, U and V within the 4 bytes of two pixels: the first Y, then every second byte.
INTERLEAVED = {"yuv422": (1, 0, 2), "uyvy": (1, 0, 2), "yuv422_yuy2": (0, 1, 3), "yuyv": (0, 1, 3)}


def debayered(mosaic: Array, order: str) -> Array:
    """A Bayer mosaic [H, W] as uint8 [H, W, 3]: a colour that a pixel lacks is the mean of its nearest neighbours.

    Two or four neighbours have it; the mean is rounded, halves up. Beyond an edge the image is mirrored about its last
    row or column, so that the mosaic goes on there. H and W are at least 2.
    """
    padded = np.pad(mosaic.astype(np.uint16), 1, mode="reflect")
    height, width = mosaic.shape

    def shifted(down: int, right: int) -> Array:
        part: Array = padded[1 + down : 1 + down + height, 1 + right : 1 + right + width]
        return part

    across = shifted(0, -1) + shifted(0, 1)
    along = shifted(-1, 0) + shifted(1, 0)
    corners = shifted(-1, -1) + shifted(-1, 1) + shifted(1, -1) + shifted(1, 1)
    made = np.empty((height, width, 3), np.uint8)
    for place, own in enumerate(order):
        top, left = divmod(place, 2)
        part = np.s_[top::2, left::2]
        beside = order[2 * top + 1 - left]  # the other colour of this row
        for channel, colour in enumerate("rgb"):
            if colour == own:
                values = mosaic[part]
            elif colour == "g":
                values = (across[part] + along[part] + 2) // 4
            elif own == "g":
                values = ((across if colour == beside else along)[part] + 1) // 2
            else:
                values = (corners[part] + 2) // 4
            made[(*part, channel)] = values
    return made


def from_interleaved(rows: Array, encoding: str) -> Array:
    """YUV 4:2:2 [H, W, 2], two bytes a pixel, as uint8 [H, W, 3]: bt601, limited range, chroma
    at the left of two pixels. W is even."""
    y, u, v = INTERLEAVED[encoding]
    flat = rows.reshape(rows.shape[0], -1)
    parts = (np.ascontiguousarray(flat[:, first::step]) for first, step in ((y, 2), (u, 4), (v, 4)))
    luma, blue, red = parts
    return converted([Planes(luma, blue, red, "bt601", "limited", "left")])[0]
