"""Statistics of a cache's streams, merged from the partial statistics of each episode in its shards."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from robocache._cache.joined import info_of
from robocache._cache.prepare import numbers_of
from robocache._recordings.images import is_image
from robocache._recordings.words import counted

if TYPE_CHECKING:
    from robocache._cache.cache import Cache

QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)
WHERE = "Cache.statistics"
FIELDS = ("count", "nan", "positive_infinity", "negative_infinity", "mean", "std", "min", "max", "quantiles")


@dataclass(frozen=True, repr=False)
class Statistics:
    """What `Cache.statistics` returns: the statistics of a stream, by channel.

    NaN and Inf are counted, and left out of everything else. Arrays have the shape of a sample. Pictures have one
    value for each colour, [C]: samples of two dimensions or more that are uint8 or uint16, or have over 1024 elements;
    if their last dimension is over 4, they are one channel. A joined stream has the channels of its members side by
    side, each of the member's own samples.

    Attributes:
        stream: Its name.
        channels: Names of the channels, or none.
        episodes: How many of the episodes have the stream; of a joined stream, any of its members.
        count: int64: the number of finite values.
        nan: int64: the number of NaN. Channels that were added later count as NaN in older episodes.
        positive_infinity: int64: the number of +Inf.
        negative_infinity: int64: the number of -Inf.
        mean: float64: the nearest to the exact mean of the values. NaN if count is 0, as in all that follow.
        std: float64: the standard deviation of all values (ddof=0), within 1 ulp of the exact one.
        min: float64, exact. For integers and bools int64 or uint64, and 0 if count is 0.
        max: As min.
        probabilities: The probabilities of the quantiles, as they were given.
        quantiles: float64 [len(probabilities), ...], interpolated as `numpy.quantile` does.
        exact: Whether the quantiles are exact. If not, the quantile q lies between the exact ones of q - 1/800 and
            q + 1/800.
    """

    stream: str
    channels: tuple[str, ...]
    episodes: int
    count: NDArray[np.int64]
    nan: NDArray[np.int64]
    positive_infinity: NDArray[np.int64]
    negative_infinity: NDArray[np.int64]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    min: NDArray[Any]
    max: NDArray[Any]
    probabilities: tuple[float, ...]
    quantiles: NDArray[np.float64]
    exact: bool

    def quantile(self, probability: float) -> NDArray[np.float64]:
        """One of the quantiles of the call.

        Args:
            probability: One of `probabilities`.

        Returns:
            The quantile of each channel.

        Raises:
            ValueError: The call did not ask for this quantile.
        """
        if probability not in self.probabilities:
            asked = ", ".join(map(str, self.probabilities)) or "none"
            raise ValueError(f"Statistics: quantile {probability} was not asked for; asked for were {asked}")
        found: NDArray[np.float64] = self.quantiles[self.probabilities.index(probability)]
        return found

    def as_dict(self) -> dict[str, Any]:
        """Lists and numbers for JSON, with None for NaN: `mean`, `std`, `min`, `max`, `count`, `q01`, `q10`, ...

        Returns:
            The same as a dict.
        """
        found: dict[str, Any] = {
            name: plain(getattr(self, name)) for name in ("mean", "std", "min", "max", *FIELDS[:4])
        }
        found |= {name_of(q): plain(self.quantile(q)) for q in self.probabilities}
        return found | {"channels": list(self.channels), "episodes": self.episodes, "exact_quantiles": self.exact}

    def rows(self) -> list[list[str]]:
        """The rows of the table that `robocache statistics` prints.

        Returns:
            For each channel the texts of its figures, in the order of HEADERS, and then the quantiles.
        """
        flat = [np.ravel(getattr(self, name)) for name in ("count", "mean", "std", "min", "max")]
        flat += [np.ravel(quantile) for quantile in self.quantiles]
        others = np.ravel(self.nan + self.positive_infinity + self.negative_infinity)
        names = self.channels or [f"[{k}]" for k in range(len(others))]
        return [
            [name, f"{flat[0][k]:,}", f"{others[k]:,}", *(f"{column[k]:.6g}" for column in flat[1:])]
            for k, name in enumerate(names)
        ]

    def __repr__(self) -> str:
        shape = list(self.mean.shape)
        return f"Statistics({self.stream!r}: {counted(self.episodes, 'episode')}, {shape}, mean {self.mean.tolist()})"


class HasStatistics:
    """The statistics of a Cache."""

    def statistics(self, stream: str, episodes: Any = None, *, quantiles: Sequence[float] = QUANTILES) -> Statistics:
        """Mean, std, min, max and quantiles of a stream, by channel, merged from the statistics of each episode.

        The result does not depend on the order of the episodes or on how they were committed, to the bit.

        Args:
            stream: Its name. Cameras have statistics if the cache has their frames.
            episodes: Numbers, names or slices. Default: all.
            quantiles: From 0 to 1. Without any, `quantiles=()`, no samples are read.

        Returns:
            A `Statistics`.
        """
        return statistics_of(cast("Cache", self), stream, episodes, quantiles)


HEADERS = ("channel", "finite", "other", "mean", "std", "min", "max")


def name_of(probability: float) -> str:
    """q01 for 0.01, as LeRobot calls it. No two probabilities have the same name."""
    percent = f"{Decimal(repr(abs(probability))).scaleb(2):f}"
    whole, _, rest = percent.partition(".")
    rest = rest.rstrip("0")
    return f"q{whole:0>2}" + (f".{rest}" if rest else "")


def plain(array: NDArray[Any]) -> Any:
    def without_nan(value: Any) -> Any:
        if isinstance(value, list):
            return [without_nan(each) for each in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return without_nan(array.tolist())


def statistics_of(cache: Cache, stream: str, episodes: Any, quantiles: Sequence[float]) -> Statistics:
    """Cache.statistics."""
    if not isinstance(stream, str):
        raise TypeError(f"{WHERE}: stream is {stream!r}; expected the name of one stream")
    probabilities = tuple(float(q) for q in ([quantiles] if isinstance(quantiles, (int, float)) else quantiles))
    numbers = numbers_of(WHERE, cache.episodes, episodes)
    twice = {number for number in numbers if numbers.count(number) > 1} if len(set(numbers)) < len(numbers) else set()
    if twice:
        raise ValueError(f"{WHERE}: episode {min(twice)} is given twice")
    members = cache._joined.get(stream, (stream,))
    found = [stored(cache, member, numbers, probabilities) for member in members]
    if len(found) == 1 and stream == members[0]:
        return found[0]
    infos = [cache._infos[member] for member in members]
    for info, part in zip(infos, found, strict=True):
        if part.mean.size != math.prod(info.shape):
            raise ValueError(f'{WHERE}: stream "{stream}" joins pictures, of "{info.name}"; take that stream')
    having = sum(any(member in cache.episodes[number].samples for member in members) for number in numbers)
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(part, name).reshape(*getattr(part, name).shape[:lead], -1) for part in found], -1)
        for name, lead in {name: int(name == "quantiles") for name in FIELDS}.items()
    }
    exact = all(part.exact for part in found)
    return Statistics(
        stream, info_of(stream, infos).channels, having, **joined, probabilities=probabilities, exact=exact
    )


def stored(cache: Cache, name: str, numbers: list[int], probabilities: tuple[float, ...]) -> Statistics:
    """The statistics of a stored stream, or of the frames of a camera."""
    cache._info(name)  # raises if there is no such stream
    info = cache._stored[cache._tiers.get(name, name)]
    if info.metadata.get("kind") == "video" or (info.ragged and is_image(info.metadata)):
        raise ValueError(
            f'{WHERE}: the cache has the pictures of stream "{name}" only as they were recorded, not as frames; '
            "build it with frames (robocache build --frames), or decode them (samples)"
        )
    found = cache._core.statistics(cache._names.index(info.name), numbers, list(probabilities))
    *arrays, exact, episodes, computed = found
    if computed and not cache._has_warned_of_statistics:
        cache._has_warned_of_statistics = True
        warnings.warn(
            f"{cache.path}: does not keep the statistics of {counted(computed, 'episode')}, which are computed from "
            "the samples each time: an older RoboCache wrote them, or a repair dropped the statistics. A copy keeps "
            "them: CacheWriter(COPY).add(cache)",
            stacklevel=4,
        )
    made: dict[str, Any] = dict(zip(FIELDS, arrays, strict=True))
    channels = info.channels if len(info.channels) == made["mean"].size else ()
    return Statistics(name, channels, episodes, **made, probabilities=probabilities, exact=exact)
