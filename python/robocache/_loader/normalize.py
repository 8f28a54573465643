"""Normalisation of a key's channels and its inverse: float32, with the same bits on NumPy and torch.

Statistics are float64, one number for each channel, and are rounded once to float32. The formulas:

mean_std: forward (x - mean) / d, inverse y m + mean.
min_max, quantiles: forward ((2 (x - lo)) / d) - 1, inverse ((y + 1) / 2) m + lo, where lo and hi are min and max, or
    the quantiles q01 and q99.

d and m depend on the convention (`divisors`). RoboCache's gives no Inf: a constant channel is divided by 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache._arrays import beside
from robocache._loader.elementary import as_float32, is_tensor, without_warnings
from robocache._recordings.words import counted, missing

NEEDED = {"identity": (), "mean_std": ("mean", "std"), "min_max": ("min", "max"), "quantiles": ("q01", "q99")}
EPSILON = {"robocache": 1e-8, "lerobot": 1e-8, "openpi": 1e-6}
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
RULES = {
    ("robocache", "mean_std"): "(x - mean) / std, a std below 1e-8 counts as 1",
    ("robocache", "range"): "2 (x - {lo}) / ({hi} - {lo}) - 1, a range below 1e-8 counts as 1",
    ("lerobot", "mean_std"): "(x - mean) / (std + 1e-8), inverse y std + mean",
    ("lerobot", "range"): "2 (x - {lo}) / ({hi} - {lo}) - 1, a range of 0 counts as 1e-8",
    ("openpi", "mean_std"): "(x - mean) / (std + 1e-6)",
    ("openpi", "range"): "2 (x - {lo}) / ({hi} - {lo} + 1e-6) - 1",
}

Statistics = Mapping[str, Any]


class Normalizer:
    """One way to normalise the channels of a key.

    Args:
        kind: "identity", "mean_std", "min_max" or "quantiles".
        statistics: A number for each channel: "mean" and "std", "min" and "max", or "q01" and "q99". Lists, arrays and
            tensors of one dimension, or [C, 1, 1] for images. Other entries are ignored.
        convention: "robocache", "lerobot" (huggingface/lerobot, NormalizerProcessorStep) or "openpi"
            (Physical-Intelligence/openpi, Normalize).
        channels: How many channels the statistics must have. Default: any number.
        key: The name of the key, for error sentences.
    """

    __slots__ = ("_placed", "channels", "convention", "key", "kind", "statistics")

    def __init__(
        self,
        kind: str,
        statistics: Statistics | None = None,
        *,
        convention: str = "robocache",
        channels: int | None = None,
        key: str | None = None,
    ) -> None:
        where = named(key)
        for name, given, choices in (("normalize", kind, NEEDED), ("convention", convention, EPSILON)):
            if given not in choices:
                raise ValueError(f'{where}: {name} is "{given}"; expected one of {", ".join(choices)}')
        self.kind, self.convention, self.key = kind, convention, key
        self.statistics = read_statistics(where, kind, {} if statistics is None else statistics, channels)
        self.channels = next((len(each) for each in self.statistics.values()), channels)
        # offset, d and m, on each device
        self._placed: dict[Any, tuple[Any, ...]] = {}
        if kind != "identity":
            lo, hi = self.statistics.values()
            offset, forward, inverse = lo.astype(np.float32), *divisors(kind, convention, lo, hi)
            for k, parts in enumerate(zip(offset, forward, inverse, strict=True)):
                if not all(np.isfinite(parts)):
                    raise ValueError(
                        f"{where}: stats of channel {k}, {numbers_text(self.statistics, k)}, are beyond float32"
                    )
            self._placed[None] = offset, forward, inverse

    @without_warnings
    def forward(self, x: Any) -> Any:
        """Normalises [..., channels] to float32, in the library and on the device of x."""
        x = self._checked(x)
        if self.kind == "identity":
            return x
        offset, divisor, _ = self._beside(x)
        if self.kind == "mean_std":
            return (x - offset) / divisor
        return ((x - offset) * 2.0) / divisor - 1.0

    @without_warnings
    def inverse(self, y: Any) -> Any:
        """The inverse of `forward`: [..., channels] to float32, in the library and on the device of y."""
        y = self._checked(y)
        if self.kind == "identity":
            return y
        offset, _, factor = self._beside(y)
        if self.kind == "mean_std":
            return y * factor + offset
        return ((y + 1.0) * 0.5) * factor + offset

    def _checked(self, x: Any) -> Any:
        x = as_float32(x)
        if self.channels is not None and (x.ndim == 0 or x.shape[-1] != self.channels):
            raise ValueError(
                f"{named(self.key)}: the statistics have {counted(self.channels, 'channel')}, but the values have "
                f"shape {list(x.shape)}"
            )
        return x

    def _beside(self, x: Any) -> tuple[Any, ...]:
        place = x.device if is_tensor(x) else None
        found = self._placed.get(place)
        if found is None:
            found = self._placed[place] = tuple(beside(x, part) for part in self._placed[None])
        return found

    # ---- as JSON

    def to_json(self) -> dict[str, Any]:
        """The kind, the convention, the formula with its epsilon, and the statistics."""
        if self.kind == "identity":
            return {"kind": self.kind}
        numbers = {name: each.tolist() for name, each in self.statistics.items()}
        epsilon = EPSILON[self.convention]
        return {
            "kind": self.kind,
            "convention": self.convention,
            "formula": self.formula,
            "epsilon": epsilon,
            **numbers,
        }

    @property
    def formula(self) -> str:
        """The formula of `forward` as text."""
        if self.kind == "identity":
            return "x"
        lo, hi = NEEDED[self.kind]
        which = "mean_std" if self.kind == "mean_std" else "range"
        return RULES[self.convention, which].format(lo=lo, hi=hi)

    @classmethod
    def from_json(cls, said: Mapping[str, Any], *, channels: int | None = None, key: str | None = None) -> Normalizer:
        """The inverse of `to_json`. Raises ValueError if this version computes another formula or epsilon."""
        made = cls(
            said.get("kind", "identity"),
            said,
            convention=said.get("convention", "robocache"),
            channels=channels,
            key=key,
        )
        for name, expected in made.to_json().items():
            if name in ("formula", "epsilon") and said.get(name, expected) != expected:
                raise ValueError(
                    f"{named(key)}: the {name} of the spec is {said[name]!r}; this version computes {expected!r}"
                )
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Normalizer) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return restored, (self.to_json(), self.channels, self.key)

    def __repr__(self) -> str:
        if self.kind == "identity":
            return 'Normalizer("identity")'
        return f"Normalizer({self.kind!r}, {counted(self.channels or 0, 'channel')}: {self.formula})"

    # ---- statistics of other libraries

    @classmethod
    def from_lerobot(
        cls,
        stats: Mapping[str, Any],
        key: str,
        kind: str = "mean_std",
        *,
        channels: int | None = None,
        convention: str = "lerobot",
    ) -> Normalizer:
        """From LeRobot's statistics: the content of meta/stats.json, or `dataset.meta.stats`.

        Args:
            stats: {key: {"mean", "std", "min", "max", "q01", "q99", ...: [...]}}; [C, 1, 1] from 0 to 1 for images.
            key: One of the keys, such as "action" or "observation.state".
            kind: As in `Normalizer`.
            channels: How many there must be.
            convention: The library whose formula normalises.
        """
        return cls(
            kind,
            statistics_of_key(stats, key, "LeRobot's statistics"),
            convention=convention,
            channels=channels,
            key=key,
        )

    @classmethod
    def from_openpi(
        cls,
        norm_stats: Mapping[str, Any],
        key: str,
        kind: str = "quantiles",
        *,
        channels: int | None = None,
        convention: str = "openpi",
    ) -> Normalizer:
        """From openpi's statistics: the content of norm_stats.json, or the result of `openpi.shared.normalize.load`.

        Args:
            norm_stats: {"norm_stats": {key: {"mean", "std", "q01", "q99": [...]}}}, or the inner dict.
            key: "state" or "actions".
            kind: "quantiles" (pi0.5, pi0-FAST), "mean_std" (pi0).
            channels: The number of channels. openpi's statistics have the model's width and are cut.
            convention: The library whose formula normalises.
        """
        inner = norm_stats.get("norm_stats", norm_stats)
        found = statistics_of_key(inner, key, "openpi's statistics")
        if channels is not None:
            found = {
                name: array if array is None or np.ndim(array) != 1 else list(array)[:channels]
                for name, array in found.items()
            }
        return cls(kind, found, convention=convention, channels=channels, key=key)


def restored(said: Mapping[str, Any], channels: int | None, key: str | None) -> Normalizer:
    """Restores a pickled Normalizer."""
    return Normalizer.from_json(said, channels=channels, key=key)


def divisors(
    kind: str, convention: str, lo: NDArray[np.float64], hi: NDArray[np.float64]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """d and m: the divisor of forward, and the factor of inverse. For mean_std, lo and hi are mean and std."""
    lo32, hi32, epsilon = lo.astype(np.float32), hi.astype(np.float32), np.float32(EPSILON[convention])
    with np.errstate(all="ignore"):
        span = hi32 if kind == "mean_std" else hi32 - lo32
        if convention == "lerobot":  # LeRobot computes in float32
            if kind == "mean_std":
                return span + epsilon, span
            span = np.where(span == 0, epsilon, span)
        elif convention == "openpi":  # openpi adds in float64
            span = ((hi if kind == "mean_std" else hi - lo) + EPSILON[convention]).astype(np.float32)
        else:
            span = np.where(span < epsilon, np.float32(1), span)
    return span, span


def image_mean_std(
    normalize: str,
    statistics: Statistics | None = None,
    *,
    convention: str = "robocache",
    channels: int | None = 3,
    of_bytes: bool = False,
    key: str | None = None,
) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """mean and std for `rc.image`, which computes (x / 255 - mean) / std.

    Args:
        normalize: "identity" (None and None: 0 to 1), "imagenet", or "mean_std" with statistics.
        statistics: "mean" and "std" of pixels from 0 to 1, as in LeRobot.
        convention: As in `Normalizer`.
        channels: The number of colours of the pictures. None: any number.
        of_bytes: Whether the statistics are of pixels from 0 to 255, as in `cache.statistics`.
        key: The name of the key, for error sentences.
    """
    where = named(key)
    if normalize == "identity":
        return None, None
    if normalize == "imagenet":
        if channels != 3:
            raise ValueError(f'{where}: normalize "imagenet" needs pictures of 3 colours; these have {channels}')
        return IMAGENET["mean"], IMAGENET["std"]
    if normalize != "mean_std":
        raise ValueError(f'{where}: normalize is "{normalize}"; pictures have identity, mean_std or imagenet')
    made = Normalizer("mean_std", statistics, convention=convention, channels=channels, key=key)
    mean, std = (each / 255.0 if of_bytes else each for each in made.statistics.values())
    epsilon = EPSILON[convention]
    std = np.where(std < epsilon, 1.0, std) if convention == "robocache" else std + epsilon
    return tuple(mean.tolist()), tuple(std.tolist())


# ---- statistics, checked


def named(key: str | None) -> str:
    return "Key" if key is None else f'Key "{key}"'


def numbers_text(statistics: Mapping[str, NDArray[np.float64]], channel: int) -> str:
    return ", ".join(f"{name} {each[channel]:g}" for name, each in statistics.items())


def statistics_of_key(stats: Mapping[str, Any], key: str, whose: str) -> dict[str, Any]:
    """The statistics of a key as a dict. Other libraries have a dict, or an object with attributes."""
    if key not in stats:
        raise ValueError(missing(f"Key: {whose} have no", key, map(str, stats)))
    found = stats[key]
    return dict(found) if isinstance(found, Mapping) else dict(vars(found))


def read_statistics(
    where: str, kind: str, statistics: Statistics, channels: int | None
) -> dict[str, NDArray[np.float64]]:
    """The two statistics of a kind as float64 [channels], checked."""
    needed = NEEDED[kind]
    absent = [name for name in needed if statistics.get(name) is None]
    if absent:
        has = ", ".join(str(name) for name, each in statistics.items() if each is not None) or "nothing"
        also = "; statistics that an older LeRobot or openpi wrote may lack quantiles" if kind == "quantiles" else ""
        raise ValueError(
            f'{where}: normalize "{kind}" needs {" and ".join(needed)}, but stats have no {" and no ".join(absent)}; '
            f"they have {has}{also}"
        )
    found = {name: numbers(where, name, statistics[name]) for name in needed}
    sizes = {name: len(each) for name, each in found.items()}
    if needed and sizes[needed[0]] != sizes[needed[1]]:
        (one, other) = needed
        raise ValueError(f"{where}: stats have {sizes[one]} numbers of {one} and {sizes[other]} of {other}")
    if needed and channels is not None and sizes[needed[0]] != channels:
        raise ValueError(
            f"{where}: stats have {counted(sizes[needed[0]], 'channel')}; expected {channels}, as the key has"
        )
    for name, each in found.items():
        for k in np.flatnonzero(~np.isfinite(each)):
            raise ValueError(f"{where}: {name} of channel {k} is {each[k]:g}; expected a finite number")
    check_order(where, kind, found)
    return found


def check_order(where: str, kind: str, found: Mapping[str, NDArray[np.float64]]) -> None:
    if kind == "mean_std":
        for k in np.flatnonzero(found["std"] < 0):
            raise ValueError(f"{where}: std of channel {k} is {found['std'][k]:g}; expected 0 or more")
    elif found:
        (low, lo), (high, hi) = found.items()
        for k in np.flatnonzero(hi < lo):
            raise ValueError(f"{where}: {low} of channel {k} is {lo[k]:g}, above its {high}, {hi[k]:g}")


def numbers(where: str, name: str, given: Any) -> NDArray[np.float64]:
    """One statistic as float64, a number for each channel. None means NaN, because JSON has no NaN."""
    try:
        array = np.asarray(given.tolist() if hasattr(given, "tolist") else given, np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{where}: {name} is {str(given)[:60]}; expected a number for each channel") from None
    if array.ndim == 3 and array.shape[1:] == (1, 1):
        array = array[:, 0, 0]
    if array.ndim != 1 or not len(array):
        raise ValueError(f"{where}: {name} has shape {list(array.shape)}; expected [channels]")
    return np.array(array, np.float64)
