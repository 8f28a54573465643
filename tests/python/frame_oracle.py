"""What a frame of a cache must be, from the words of docs/semantics.md alone: YUV in NumPy, resizing by Pillow.

Pillow is asked for one axis a call, because its order of passes in one call is no promise.
"""

from __future__ import annotations

import numpy as np

WEIGHTS = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722), "bt2020": (0.2627, 0.0593)}  # of red and blue


def upsampled(chroma, height, width, halves_height, left):
    """Chroma for each pixel, at 16 times its value.

    Rows: weights of 3 and 1, edges repeat. Columns: the same; sited at the left, even ones have the sample itself, and
    odd ones the mean of two.
    """
    c = chroma.astype(np.int64)

    def mixed(c):
        before, after = np.concatenate([c[:1], c[:-1]]), np.concatenate([c[1:], c[-1:]])
        return 3 * c + before, 3 * c + after

    def woven(even, odd):
        made = np.empty((2 * len(even), *even.shape[1:]), np.int64)
        made[0::2], made[1::2] = even, odd
        return made

    tall = woven(*mixed(c)) if halves_height else 4 * c
    across = tall.T
    right = np.concatenate([across[1:], across[-1:]])
    wide = woven(4 * across, 2 * across + 2 * right) if left else woven(*mixed(across))
    return wide.T[:height, :width]


def rgb_of(y, u, v, matrix="bt601", full=False, left=True):
    """YUV 4:2:0 or 4:2:2 as uint8 [H, W, 3]."""
    red, blue = WEIGHTS[matrix]
    green = 1 - red - blue
    luma, chroma, black = (1.0, 1.0, 0) if full else (255 / 219, 255 / 224, 16)
    down = np.rint(np.array([luma, 2 * (1 - red) * chroma, 2 * (1 - blue) * chroma]) * 65536).astype(np.int64)
    of_u = int(np.rint(2 * (1 - blue) * blue / green * chroma * 65536))
    of_v = int(np.rint(2 * (1 - red) * red / green * chroma * 65536))
    height, width = y.shape
    halves = len(u) != height
    u16 = upsampled(u, height, width, halves, left) - 16 * 128
    v16 = upsampled(v, height, width, halves, left) - 16 * 128
    grey = 16 * int(down[0]) * (y.astype(np.int64) - black)
    sums = [grey + int(down[1]) * v16, grey - of_u * u16 - of_v * v16, grey + int(down[2]) * u16]
    return np.stack([np.clip((total + (1 << 19)) >> 20, 0, 255) for total in sums], axis=-1).astype(np.uint8)


def rgb_of_frame(frame):
    """An av.VideoFrame in yuv420p or yuv422p, from its planes."""
    planes = []
    for plane in frame.planes:
        rows = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)
        planes.append(rows[: plane.height, : plane.width])
    tagged = {1: "bt709", 5: "bt601", 6: "bt601", 9: "bt2020"}
    matrix = tagged.get(int(frame.colorspace), "bt709" if frame.height >= 720 else "bt601")
    full = int(frame.color_range) == 2 or frame.format.name.startswith("yuvj")
    left = int(frame.chroma_location) in (1, 3, 5)  # left, top left, bottom left; not tagged: in the centre
    return rgb_of(*planes, matrix, full, left)


def nearest(image, height, width):
    h, w = image.shape[:2]
    rows = (2 * np.arange(height) + 1) * h // (2 * height)
    columns = (2 * np.arange(width) + 1) * w // (2 * width)
    return image[rows][:, columns]


def scaled(image, height, width, filter):
    from PIL import Image

    if filter == "nearest":
        return nearest(image, height, width)
    how = {"bilinear": Image.BILINEAR, "box": Image.BOX, "bicubic": Image.BICUBIC}[filter]
    gray = image.shape[2] == 1
    picture = Image.fromarray(image[..., 0] if gray else image)
    made = np.asarray(picture.resize((width, image.shape[0]), how).resize((width, height), how))
    return made[..., None] if gray else made


def frame_of(image, size, fit="stretch", filter="bilinear", pad=0):
    """A decoded image, [H, W, C] or depth [H, W], as a cache keeps it."""
    height, width = size
    h, w = image.shape[:2]
    if fit == "stretch":
        return scaled(image, height, width, filter)
    # The side that is not free is the one whose scale is the larger (cover), or the smaller (contain).
    by_width = (width * h >= height * w) == (fit == "cover")
    tall = max((2 * h * width + w) // (2 * w), 1) if by_width else height
    wide = width if by_width else max((2 * w * height + h) // (2 * h), 1)
    made = scaled(image, tall, wide, filter)
    if fit == "cover":
        top, left = (tall - height) // 2, (wide - width) // 2
        return made[top : top + height, left : left + width]
    whole = np.full((height, width, *image.shape[2:]), pad, image.dtype)
    top, left = (height - tall) // 2, (width - wide) // 2
    whole[top : top + tall, left : left + wide] = made
    return whole
