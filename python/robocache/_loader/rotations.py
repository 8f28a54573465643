"""Rotations as quaternions, two axes, or axis and angle: float32, with the same bits on NumPy and torch.

A rotation converts coordinates in a body's frame to coordinates in the frame that the body is seen from: v' = R v. The
representations:

quaternion: x, y, z, w. Any length: only the direction counts. q and -q are the same rotation and give the same bits. A
    quaternion of length 0 stands for no rotation.
6d: the first two columns of R, one after the other: R00, R10, R20, R01, R11, R21 (Zhou et al., 2019). These are the
    body's x and y axis. They need not be unit or at right angles.
6d_rows: the first two rows of R in place of columns, as in pytorch3d, diffusion policy and UMI.
axis_angle: the axis times the angle in radians.

All conversions go through the quaternion. Resulting quaternions are unit and have w >= 0; if w is 0, the first of x, y,
z that is not 0 is positive. Resulting axis_angle vectors have an angle of at most pi.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from robocache._loader.elementary import (
    absolute,
    as_float32,
    constant,
    join,
    nearest_integer,
    polynomial,
    sqrt,
    stack,
    unstack,
    where,
    without_warnings,
)

WIDTHS = {"quaternion": 4, "6d": 6, "6d_rows": 6, "axis_angle": 3}

# ---- conversions


@without_warnings
def convert(x: Any, source: str, target: str) -> Any:
    """Rotations in another representation.

    Args:
        x: [..., 4] quaternions (xyzw), [..., 6] two axes or [..., 3] axis and angle.
        source: The representation of x: "quaternion", "6d", "6d_rows" or "axis_angle".
        target: The representation of the result.

    Returns:
        float32, in the library and on the device of x. x itself if source is target.
    """
    for name, given in (("source", source), ("target", target)):
        if given not in WIDTHS:
            raise ValueError(f'rotation: {name} is "{given}"; expected one of {", ".join(WIDTHS)}')
    x = as_float32(x)
    width = x.shape[-1] if x.ndim else 0
    if width != WIDTHS[source]:
        raise ValueError(f"rotation: {source} has {WIDTHS[source]} numbers, but the array has shape {list(x.shape)}")
    if source == target:
        return x
    flat = x.reshape(math.prod(x.shape[:-1]), width)  # NumPy widens numbers without dimensions
    quaternion = TO_QUATERNION[source](flat)
    return FROM_QUATERNION[target](quaternion).reshape(*x.shape[:-1], WIDTHS[target])


def to_columns(q: Any) -> Any:
    """The first two columns of the rotation matrix, q of any length: 1 - s (yy + zz) and so on, where s = 2 / |q|^2."""
    x, y, z, w = unstack(usable(q))
    s = 2.0 / squared_length((x, y, z, w))
    xy, xz, yz = x * y, x * z, y * z
    wx, wy, wz = w * x, w * y, w * z
    xx, yy, zz = x * x, y * y, z * z
    return stack([1.0 - s * (yy + zz), s * (xy + wz), s * (xz - wy), s * (xy - wz), 1.0 - s * (xx + zz), s * (yz + wx)])


def from_columns(axes: Any) -> Any:
    """The quaternion of the frame with x along the first axis, and y as close to the second as right angles allow.

    The result is no rotation if the first axis is 0, or the second is 0 or exactly along the first.
    """
    a, b = scaled(axes[..., :3]), scaled(axes[..., 3:])
    across = scaled(stack(cross(unstack(a), unstack(b))))
    length_a, length_across = (sqrt(squared_length(unstack(each))) for each in (a, across))
    defined = (length_a != 0) & (length_across != 0)
    rx = [each / where(defined, length_a, 1.0) for each in unstack(a)]
    rz = [each / where(defined, length_across, 1.0) for each in unstack(across)]
    ry = cross(rz, rx)
    found = from_matrix(rx, ry, rz)
    return stack([where(defined, part, identity) for part, identity in zip(found, (0.0, 0.0, 0.0, 1.0), strict=True)])


def from_matrix(rx: Sequence[Any], ry: Sequence[Any], rz: Sequence[Any]) -> list[Any]:
    """The unit quaternion of a matrix with these columns, computed from the largest of its four parts."""
    (xx, yx, zx), (xy, yy, zy), (xz, yz, zz) = rx, ry, rz
    squares = ((1.0 + xx) - yy) - zz, ((1.0 - xx) + yy) - zz, ((1.0 - xx) - yy) + zz, ((1.0 + xx) + yy) + zz
    # Each row is 4 times one part of the quaternion times all four.
    rows = (
        (squares[0], yx + xy, xz + zx, zy - yz),
        (yx + xy, squares[1], zy + yz, xz - zx),
        (xz + zx, zy + yz, squares[2], yx - xy),
        (zy - yz, xz - zx, yx - xy, squares[3]),
    )
    best, found = squares[3], list(rows[3])
    for square, row in zip(squares[:3], rows[:3], strict=True):
        larger = square > best
        best = where(larger, square, best)
        found = [where(larger, new, old) for new, old in zip(row, found, strict=True)]
    return unstack(canonical(unit(stack(found))))


# Two parts of pi / 2, of 12 bits each: their products with whole numbers of up to 12 bits are exact.
QUARTER = tuple(float.fromhex(part) for part in ("0x1.922p+0", "-0x1.2aep-18"))
SINE = tuple(constant((-1) ** k / math.factorial(2 * k + 1)) for k in range(5))
COSINE = tuple(constant((-1) ** k / math.factorial(2 * k)) for k in range(6))
SMALL = constant(1e-3)


def from_axis_angle(v: Any) -> Any:
    """(v sin(t / 2) / t, cos(t / 2)), where t is the length of v: accurate for angles of up to 1,000 radians.

    t / 2 is brought to within pi / 4 of 0 by a whole number of quarter turns of pi / 2, of which an odd number
    exchanges sine and cosine, and Taylor's series serve from there. Near 0, sin(t / 2) / t is 1/2 - t^2 / 48.
    """
    parts = unstack(v)
    square = squared_length(parts)
    angle = sqrt(square)
    half = angle * 0.5
    quarters = nearest_integer(half * constant(2 / math.pi))
    rest = (half - quarters * QUARTER[0]) - quarters * QUARTER[1]
    rest_square = rest * rest
    sine, cosine = rest * polynomial(rest_square, SINE), polynomial(rest_square, COSINE)
    odd = absolute(quarters - 2.0 * nearest_integer(quarters * 0.5)) == 1.0
    small = square < SMALL
    per_angle = where(odd, cosine, sine) / where(small, 1.0, angle)
    factor = where(small, 0.5 - square * constant(1 / 48), per_angle)
    w = where(odd, -sine, cosine)
    return canonical(stack([*[part * factor for part in parts], w]))


# atan(t) / t = 1 + u P(u), where u = t^2 <= 1. P is interpolated at Chebyshev's nodes; the error is under 1.2e-8.
ARC_TANGENT = tuple(
    constant(c)
    for c in (
        *(1.0, -0.33333334, 0.1999995, -0.14284004, 0.11088262, -0.08931827),
        *(0.070319146, -0.048960514, 0.026305001, -0.009144629, 0.0014886919),
    )
)
PI = constant(math.pi)


def to_axis_angle(q: Any) -> Any:
    """xyz times t / |xyz|, where t = 2 atan(|xyz| / w) is the angle, and w >= 0.

    If |xyz| <= w, t / |xyz| is a series in (|xyz| / w)^2, which has no 0 / 0. Otherwise t = pi - 2 atan(w / |xyz|).
    """
    x, y, z, w = unstack(canonical(usable(q)))
    square = squared_length((x, y, z))
    length = sqrt(square)
    near = length <= w
    small, large = where(near, length, w), where(near, w, length)
    ratio = small / large
    series = polynomial(ratio * ratio, ARC_TANGENT)
    angle = PI - 2.0 * (ratio * series)
    factor = where(near, 2.0 * series, angle) / large
    return stack([x * factor, y * factor, z * factor])


def opposite(q: Any) -> Any:
    """The inverse rotation, of the same length."""
    x, y, z, w = unstack(q)
    return stack([-x, -y, -z, w])


TO_QUATERNION = {
    "quaternion": lambda x: x,
    "6d": from_columns,
    "6d_rows": lambda x: canonical(opposite(from_columns(x))),
    "axis_angle": from_axis_angle,
}
FROM_QUATERNION = {
    "quaternion": lambda q: q,  # it comes from TO_QUATERNION
    "6d": to_columns,
    "6d_rows": lambda q: to_columns(opposite(q)),
    "axis_angle": to_axis_angle,
}

# ---- quaternions


def squared_length(parts: Sequence[Any]) -> Any:
    """The sum of squares, added from the first to the last."""
    total = parts[0] * parts[0]
    for part in parts[1:]:
        total = total + part * part
    return total


def cross(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
    """The cross product of two vectors, given and returned as their parts."""
    return [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]


def scaled(v: Any) -> Any:
    """A vector times 2^100 if its largest part is below 2^-40, times 2^-100 if above 2^40: its squares fit float32."""
    largest = absolute(v[..., :1])
    for k in range(1, v.shape[-1]):
        part = absolute(v[..., k : k + 1])
        largest = where(part > largest, part, largest)
    v = where(largest < 2.0**-40, v * 2.0**100, v)
    return where(largest > 2.0**40, v * 2.0**-100, v)


def usable(q: Any) -> Any:
    """The quaternion `scaled`, so that its length can be squared. A quaternion of length 0 becomes no rotation."""
    x, y, z, w = unstack(scaled(q))
    nothing = (x == 0) & (y == 0) & (z == 0) & (w == 0)
    return stack([x, y, z, where(nothing, 1.0, w)])


def unit(q: Any) -> Any:
    """A quaternion divided by its length. A quaternion of length 0 becomes no rotation."""
    q = usable(q)
    return q / sqrt(squared_length(unstack(q)))[..., None]


def canonical(q: Any) -> Any:
    """q or -q: the one with w > 0, or w = 0 and the first of x, y, z that is not 0 positive."""
    x, y, z, w = unstack(q)
    negative = (x < 0) | ((x == 0) & ((y < 0) | ((y == 0) & (z < 0))))
    negative = (w < 0) | ((w == 0) & negative)
    return where(negative[..., None], -q, q)


def times(p: Any, q: Any) -> Any:
    """The product of quaternions: the rotation q, then p."""
    (px, py, pz, pw), (qx, qy, qz, qw) = unstack(p), unstack(q)
    return stack(
        [
            ((pw * qx + px * qw) + py * qz) - pz * qy,
            ((pw * qy + py * qw) + pz * qx) - px * qz,
            ((pw * qz + pz * qw) + px * qy) - py * qx,
            ((pw * qw - px * qx) - py * qy) - pz * qz,
        ]
    )


def rotate(q: Any, v: Any) -> Any:
    """The vector v rotated by q, of any length but 0: v + s (w (u x v) + u x (u x v)), u = xyz, s = 2 / |q|^2."""
    parts = unstack(q)
    s = 2.0 / squared_length(parts)
    u, w = parts[:3], parts[3]
    once = cross(u, unstack(v))
    twice = cross(u, once)
    rotated = [p + s * (w * o + t) for p, o, t in zip(unstack(v), once, twice, strict=True)]
    return stack(rotated)


# ---- rotations among other channels


def convert_channels(x: Any, starts: Sequence[int], source: str, target: str) -> Any:
    """Converts rotations that lie among other channels. The other channels are copied.

    Args:
        x: [..., D].
        starts: The first channel of each rotation, in rising order: 3 and 10 for the quaternions of two poses side by
            side.
        source: Their representation, as in `convert`.
        target: The representation of the result.

    Returns:
        float32 [..., `width_after`(D, ...)]. Its rotations begin at `starts_after`(starts, ...).
    """
    x = as_float32(x)
    check_starts(x.shape[-1] if x.ndim else 0, starts, source)
    parts, done = [], 0
    for start in starts:
        parts += [x[..., done:start], convert(x[..., start : start + WIDTHS[source]], source, target)]
        done = start + WIDTHS[source]
    return join([*parts, x[..., done:]])


def check_starts(width: int, starts: Sequence[int], source: str) -> None:
    """Raises if rotations overlap or do not fit into the channels."""
    if source not in WIDTHS:
        raise ValueError(f'rotation: source is "{source}"; expected one of {", ".join(WIDTHS)}')
    done = 0
    for start in starts:
        if start < done:
            why = "overlaps the one before it" if done else "is before channel 0"
            raise ValueError(f"rotation: the {source} at channel {start} {why}")
        done = start + WIDTHS[source]
        if done > width:
            raise ValueError(
                f"rotation: the {source} at channel {start} needs channels {start} to {done - 1}; there are {width}"
            )


def starts_after(starts: Sequence[int], source: str, target: str) -> tuple[int, ...]:
    """The first channel of each rotation after `convert_channels`."""
    return tuple(start + k * (WIDTHS[target] - WIDTHS[source]) for k, start in enumerate(starts))


def width_after(width: int, starts: Sequence[int], source: str, target: str) -> int:
    """The number of channels after `convert_channels`."""
    return width + len(starts) * (WIDTHS[target] - WIDTHS[source])
