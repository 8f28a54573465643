"""Augmentation of pictures: small rotations, and brightness, contrast, saturation and hue, drawn for each window.

All arithmetic is on integers, so NumPy arrays and torch tensors on any device have the same bytes. docs/semantics.md,
"Augmentation of pictures", has the formulas.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache._loader.elementary import is_tensor, join, polynomial, stack
from robocache._recordings.words import missing

Integers = NDArray[np.int64]

MOST = {"rotation": 180.0, "brightness": 8.0, "contrast": 8.0, "saturation": 8.0, "hue": 0.5}  # in order of use
EXPECTED = {
    "rotation": "degrees from 0 to 180",
    "brightness": "a number from 0 to 8",
    "contrast": "a number from 0 to 8",
    "saturation": "a number from 0 to 8",
    "hue": "turns from 0 to 0.5",
}
FACTORS = ("brightness", "contrast", "saturation")
ONE = 1 << 16  # factors, matrices, degrees and turns are whole numbers of 1 / ONE
HALF = ONE >> 1
LUMA = (19595, 38470, 7471)  # BT.601 weights, which add up to ONE
HOST_PIXELS, DEVICE_PIXELS = 1 << 16, 1 << 24  # at a time, to fit into a CPU's cache and a device's memory
MOST_INT32_SIDE = 8192  # pixels: coordinates in larger pictures need int64


def augment_of(augment: Any) -> dict[str, float] | None:
    """The ranges of a key, checked, in the order in which they are applied."""
    if not isinstance(augment, Mapping):
        raise TypeError(f"Key: augment is {augment!r}; expected a dict, as dict(brightness=0.2, rotation=5.0)")
    for name in augment:
        if name not in MOST:
            raise ValueError(missing("Key: augment has no", str(name), MOST))
    made = {}
    for name in MOST:
        if name not in augment:
            continue
        given = augment[name]
        if isinstance(given, bool) or not isinstance(given, (int, float, np.integer, np.floating)):
            raise TypeError(f"Key: augment's {name} is {given!r}; expected {EXPECTED[name]}")
        if not 0 <= given <= MOST[name]:
            raise ValueError(f"Key: augment's {name} is {given}; expected {EXPECTED[name]}")
        made[name] = float(given)
    return made or None


def check_form(name: str, augment: Mapping[str, float], channels: int | None) -> None:
    """Raises if pictures with this many channels cannot have this augmentation. None: depth."""
    if channels is None:
        raise ValueError(f'Loader: key "{name}": augment is not for depth; leave it out')
    wrong = [each for each in ("saturation", "hue") if channels == 1 and augment.get(each)]
    if wrong:
        raise ValueError(
            f'Loader: key "{name}": augment has {" and ".join(wrong)}, and its pictures are gray; they can have '
            "rotation, brightness and contrast"
        )


def amounts_of(augment: Mapping[str, float], drawn: Callable[[str, int], Integers]) -> dict[str, Integers]:
    """The amounts of each window: factors, degrees and turns, as multiples of 1 / ONE.

    Args:
        drawn: (name of the draw, count) -> a number from 0 to count - 1 for each window.
    """
    made = {}
    for name, given in augment.items():
        reach = round(given * ONE)
        middle = ONE if name in FACTORS else 0
        least = max(0, ONE - reach) if name in FACTORS else -reach
        if reach > 0:
            made[name] = least + drawn(f"augment.{name}", middle + reach - least + 1)
    return made


def augmented(frames: Any, amounts: Mapping[str, Integers]) -> Any:
    """The pictures, augmented.

    Args:
        frames: uint8 [N, H, W, C] with 1, 3 or 4 channels. Alpha is only rotated.
        amounts: The result of `amounts_of` for each of the N pictures.
    """
    if not amounts:
        return frames
    if is_tensor(frames) and frames.device.type == "cpu":  # NumPy is many times faster on small arrays
        return sys.modules["torch"].from_numpy(augmented(frames.numpy(), amounts))
    count, height, width, _ = frames.shape
    step = max(1, (DEVICE_PIXELS if is_tensor(frames) else HOST_PIXELS) // (height * width))
    made = frames.new_empty(frames.shape) if is_tensor(frames) else np.empty(frames.shape, np.uint8)
    for begin in range(0, count, step):
        rows = slice(begin, begin + step)
        made[rows] = some_augmented(frames[rows], {name: each[rows] for name, each in amounts.items()})
    return made


def some_augmented(frames: Any, amounts: Mapping[str, Integers]) -> Any:
    """As `augmented`, for all pictures at once."""
    if "rotation" in amounts:
        frames = rotated(frames, amounts["rotation"])
    colour, alpha = (frames[..., :3], frames[..., 3:]) if frames.shape[-1] == 4 else (frames, None)
    if "brightness" in amounts:
        colour = blended(colour, amounts["brightness"], None)
    if "contrast" in amounts:
        colour = blended(colour, amounts["contrast"], mean_of(gray_of(planes_of(colour))))
    if "saturation" in amounts or "hue" in amounts:
        planes = planes_of(colour)
        if "saturation" in amounts:
            planes = saturated(planes, per_picture(amounts["saturation"], planes[0]))
        if "hue" in amounts:
            planes = hue_rotated(planes, [per_picture(each, planes[0]) for each in hue_matrix(amounts["hue"])])
        colour = stack([as_bytes(plane) for plane in planes])
    return colour if alpha is None else join([colour, alpha])


# ---- Amounts, on the host


def sine_and_cosine(angle: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Sine and cosine of float64 angles from -pi to pi, within 1e-13. Only products and sums: equal bits everywhere."""
    square = angle * angle
    signed = [(-1) ** (k // 2) / math.factorial(k) for k in range(30)]
    return angle * polynomial(square, signed[1::2]), polynomial(square, signed[0::2])


def fixed(x: NDArray[Any]) -> Integers:
    """The nearest multiples of 1 / ONE."""
    return np.rint(x * ONE).astype(np.int64)


def hue_matrix(turns: Integers) -> tuple[Integers, Integers]:
    """a and s of the rotation about the gray axis. Its diagonal is ONE - 2 a, other elements are a - s and a + s."""
    sine, cosine = sine_and_cosine(turns * (2 * math.pi / ONE))
    return fixed((1 - cosine) / 3), fixed(sine / math.sqrt(3))


def per_picture(numbers: Integers, like: Any) -> Any:
    """The numbers as int32 [N, 1, 1], in the library and on the device of the pictures."""
    made = numbers.astype(np.int32).reshape(-1, 1, 1)
    return sys.modules["torch"].as_tensor(made, device=like.device) if is_tensor(like) else made


# ---- Arithmetic on arrays and tensors alike


def cast(x: Any, dtype: str) -> Any:
    return x.to(getattr(sys.modules["torch"], dtype)) if is_tensor(x) else x.astype(dtype, copy=False)


def integers_up_to(count: int, like: Any, dtype: str) -> Any:
    """0, 1, ..., count - 1."""
    if is_tensor(like):
        torch = sys.modules["torch"]
        return torch.arange(count, dtype=getattr(torch, dtype), device=like.device)
    return np.arange(count, dtype=dtype)


def as_bytes(x: Any) -> Any:
    """Whole numbers as uint8; those below 0 become 0, those above 255 become 255."""
    return cast(x.clip(0, 255), "uint8")


def planes_of(frames: Any) -> list[Any]:
    """The channels as int32 [N, H, W]."""
    return [cast(frames[..., k], "int32") for k in range(frames.shape[-1])]


def gray_of(planes: list[Any]) -> Any:
    if len(planes) == 1:
        return planes[0]
    red, green, blue = planes
    return (red * LUMA[0] + green * LUMA[1] + blue * LUMA[2] + HALF) >> 16


def mean_of(gray: Any) -> Any:
    """The mean of each picture, rounded, int32 [N, 1, 1]."""
    pixels = gray.shape[1] * gray.shape[2]
    total = cast(gray, "int64").sum((1, 2)).reshape(-1, 1, 1)
    return cast((2 * total + pixels) // (2 * pixels), "int32")


def blended(frames: Any, factors: Integers, mean: Any) -> Any:
    """mean + (value - mean) * factor, by a table of 256 values for each picture. mean None: 0."""
    factor, values = per_picture(factors, frames), integers_up_to(256, frames, "int32")
    if mean is None:
        tables = as_bytes((values * factor + HALF) >> 16)
    else:
        tables = as_bytes(mean + (((values - mean) * factor + HALF) >> 16))
    if is_tensor(frames):
        first = integers_up_to(len(frames), frames, "int64").reshape(-1, 1, 1, 1) * 256
        return tables.take(cast(frames, "int64") + first)
    made = np.empty(frames.shape, np.uint8)
    for k, table in enumerate(tables):
        found = frames[k].tobytes().translate(table.tobytes())  # the fastest table look-up in Python
        made[k] = np.frombuffer(found, np.uint8).reshape(frames.shape[1:])
    return made


def saturated(planes: list[Any], factor: Any) -> list[Any]:
    """gray + (channel - gray) * factor for each pixel, clipped to 0 .. 255."""
    gray = gray_of(planes)
    return [(gray + (((plane - gray) * factor + HALF) >> 16)).clip(0, 255) for plane in planes]


def hue_rotated(planes: list[Any], matrix: list[Any]) -> list[Any]:
    """Colours rotated about the gray axis, not yet clipped to 0 .. 255."""
    red, green, blue = planes
    a, s = matrix
    rest = (red + green + blue) * a + HALF
    own = ONE - 3 * a
    pairs = ((red, blue - green), (green, red - blue), (blue, green - red))
    return [(plane * own + other * s + rest) >> 16 for plane, other in pairs]


def rotated(frames: Any, degrees: Integers) -> Any:
    """Pictures rotated counterclockwise about the middle: bilinear, with repeated edges."""
    count, height, width, channels = frames.shape
    sine, cosine = map(fixed, sine_and_cosine(degrees * (math.pi / (180 * ONE))))
    s, c = per_picture(sine, frames), per_picture(cosine, frames)
    dtype = "int32" if max(height, width) <= MOST_INT32_SIDE else "int64"
    x = (2 * integers_up_to(width, frames, dtype) - (width - 1)).reshape(1, 1, -1)
    y = (2 * integers_up_to(height, frames, dtype) - (height - 1)).reshape(1, -1, 1)
    s, c = cast(s, dtype), cast(c, dtype)
    across = (c * x + (ONE * (width - 1) + 256) - s * y) >> 9  # in 1 / 256 pixel
    down = (s * x + (ONE * (height - 1) + 256) + c * y) >> 9
    left, top = across >> 8, down >> 8
    fx, fy = cast(across & 255, "int32"), cast(down & 255, "int32")
    columns = [cast((left + k).clip(0, width - 1), "int64") for k in (0, 1)]
    first = integers_up_to(count, frames, "int64").reshape(-1, 1, 1) * (height * width)
    rows = [cast((top + k).clip(0, height - 1), "int64") * width + first for k in (0, 1)]
    packed = sum(cast(frames[..., k], "int32") << 8 * k for k in range(channels))  # a pixel in one number
    corners = [[packed.take(row + column) for column in columns] for row in rows]
    made = []
    for k in range(channels):
        sides = []
        for row in corners:
            one, other = ((pixel >> 8 * k) & 255 for pixel in row)
            sides.append((one << 8) + (other - one) * fx)
        upper, lower = sides
        made.append(cast(((upper << 8) + (lower - upper) * fy + HALF) >> 16, "uint8"))
    return stack(made)
