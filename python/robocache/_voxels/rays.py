"""The rays of a camera whose lens distorts."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def camera_rays(
    intrinsics: Any, size: tuple[int, int], distortion: Sequence[float] = (0, 0, 0, 0)
) -> NDArray[np.float32]:
    """The rays of a camera whose lens distorts by OpenCV's model, for `voxelize_depth(rays=)`.

    Solved by Newton's method in float64 and rounded to float32, the precision of depth. A pixel that no ray reaches,
    because the model folds back on itself, gets NaN; `Dropped` counts its points as not finite.

    Args:
        intrinsics: (fx, fy, cx, cy) or 3x3.
        size: (height, width), the shape of the depth image.
        distortion: 4, 5, 8, 12 or 14 coefficients in OpenCV's order: k1, k2, p1, p2, then k3, then k4, k5, k6, then the
            thin prism's s1 to s4, then the tilt of the sensor.

    Returns:
        float32 [H, W, 2]: x / z and y / z of each pixel.
    """
    matrix = _numbers("intrinsics", intrinsics)
    if matrix.shape == (3, 3):
        fx, fy, cx, cy = matrix[0, 0], matrix[1, 1], matrix[0, 2], matrix[1, 2]
    elif matrix.shape == (4,):
        fx, fy, cx, cy = matrix
    else:
        raise ValueError(
            f"camera_rays: intrinsics have shape {list(matrix.shape)}; expected (fx, fy, cx, cy) or a 3x3 matrix"
        )
    if fx == 0 or fy == 0:
        raise ValueError(f"camera_rays: the focal lengths are {fx:g} and {fy:g}; they must not be 0")
    lens = _numbers("distortion", distortion).ravel()
    if len(lens) not in (4, 5, 8, 12, 14):
        raise ValueError(f"camera_rays: distortion has {len(lens)} numbers; OpenCV's model has 4, 5, 8, 12 or 14")
    lens = np.concatenate([lens, np.zeros(14 - len(lens))])
    try:
        height, width = (operator.index(pixels) for pixels in size)
    except (TypeError, ValueError):
        raise TypeError(f"camera_rays: size is {size!r}; expected (height, width)") from None
    if height < 0 or width < 0:
        raise ValueError(f"camera_rays: size is {size!r}; it must not be negative")
    u, v = np.meshgrid((np.arange(width) - cx) / fx, (np.arange(height) - cy) / fy)
    target = np.stack([u, v, np.ones_like(u)], axis=-1) @ np.linalg.inv(_tilt(*lens[12:])).T
    target_x, target_y = target[..., 0] / target[..., 2], target[..., 1] / target[..., 2]
    x, y = target_x.copy(), target_y.copy()
    with np.errstate(all="ignore"):
        for _ in range(50):
            at_x, at_y, (a, b, c, d) = _distort(x, y, lens)
            determinant = a * d - b * c
            off_x, off_y = at_x - target_x, at_y - target_y
            step_x, step_y = (d * off_x - b * off_y) / determinant, (a * off_y - c * off_x) / determinant
            x -= step_x
            y -= step_y
            if not np.any(np.abs(step_x) + np.abs(step_y) > 1e-14):
                break
        at_x, at_y, _ = _distort(x, y, lens)
        found = (np.hypot(at_x - target_x, at_y - target_y) < 1e-9) & (np.hypot(x, y) < _fold(lens))
    return np.where(found[..., None], np.stack([x, y], axis=-1), np.nan).astype(np.float32)


def _numbers(what: str, given: Any) -> NDArray[np.float64]:
    try:
        numbers = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"camera_rays: {what}: {given!r}; expected numbers") from None
    if not np.isfinite(numbers).all():
        raise ValueError(f"camera_rays: {what}: {numbers.tolist()}; expected finite numbers")
    return numbers


def _fold(lens: NDArray[np.float64]) -> float:
    """The radius at which the model stops growing, or has a pole; infinite if it does neither."""
    k1, k2, _, _, k3, k4, k5, k6 = lens[:8]
    top, bottom = np.poly1d([k3, k2, k1, 1]), np.poly1d([k6, k5, k4, 1])  # of the squared radius
    slope = top * bottom + np.poly1d([2, 0]) * (top.deriv() * bottom - top * bottom.deriv())
    roots = [*slope.roots, *bottom.roots]
    return math.sqrt(min((root.real for root in roots if root.real > 0 and abs(root.imag) < 1e-9), default=math.inf))


def _tilt(about_x: float, about_y: float) -> NDArray[np.float64]:
    """Where OpenCV's model puts what is distorted, on a sensor that is tilted by these angles."""
    (sin_x, cos_x), (sin_y, cos_y) = ((math.sin(angle), math.cos(angle)) for angle in (about_x, about_y))
    rotation = np.array([[cos_y, 0, -sin_y], [0, 1, 0], [sin_y, 0, cos_y]]) @ np.array(
        [[1, 0, 0], [0, cos_x, sin_x], [0, -sin_x, cos_x]]
    )
    z = rotation[2, 2]
    return np.array([[z, 0, -rotation[0, 2]], [0, z, -rotation[1, 2]], [0, 0, 1]]) @ rotation


def _distort(x: Any, y: Any, lens: NDArray[np.float64]) -> tuple[Any, Any, tuple[Any, Any, Any, Any]]:
    """Where OpenCV's model puts a ray, and the four derivatives of that: x by x, x by y, y by x, y by y."""
    k1, k2, p1, p2, k3, k4, k5, k6, s1, s2, s3, s4 = lens[:12]
    r2 = x * x + y * y
    top, bottom = 1 + r2 * (k1 + r2 * (k2 + r2 * k3)), 1 + r2 * (k4 + r2 * (k5 + r2 * k6))
    slope_top, slope_bottom = k1 + r2 * (2 * k2 + r2 * 3 * k3), k4 + r2 * (2 * k5 + r2 * 3 * k6)
    radial = top / bottom
    slope = (slope_top * bottom - top * slope_bottom) / (bottom * bottom)
    prism_x, prism_y = 2 * (s1 + r2 * 2 * s2), 2 * (s3 + r2 * 2 * s4)
    cross = 2 * (x * y * slope + p1 * x + p2 * y)
    return (
        x * radial + 2 * p1 * x * y + p2 * (r2 + 2 * x * x) + r2 * (s1 + r2 * s2),
        y * radial + p1 * (r2 + 2 * y * y) + 2 * p2 * x * y + r2 * (s3 + r2 * s4),
        (
            radial + 2 * x * x * slope + 2 * p1 * y + 6 * p2 * x + prism_x * x,
            cross + prism_x * y,
            cross + prism_y * x,
            radial + 2 * y * y * slope + 6 * p1 * y + 2 * p2 * x + prism_y * y,
        ),
    )
