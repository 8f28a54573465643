"""`rc.ray.read`: a loader's batches as a Ray dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from robocache._cache.cache import Cache
from robocache._cache.values import Path
from robocache._loader.keys import whole_number
from robocache._loader.loader import Loader
from robocache._ray import cluster
from robocache._recordings.words import named


def read(
    cache: Cache | Path,
    spec: Mapping[str, Any] | Loader,
    *,
    first: int = 0,
    count: int | None = None,
    tasks: int | None = None,
    **changes: Any,
) -> Any:
    """The batches of a loader as a Ray dataset, made on the workers of the cluster, in the loader's order.

    Each row of the dataset is a row of a batch, and its columns are the batch's keys. Rows come in order:
    `iter_batches(batch_size=spec["batch_size"])` gives the loader's batches, with the same bytes, and `position` says
    where each row is. The order holds if the dataset is read as a whole, also after `map_batches` and the like.

    All machines must see the cache under the same path. To train on batches, `rc.ray.loader` on each worker is faster,
    because it copies nothing between processes.

    Args:
        cache: An `rc.Cache`, or its path.
        spec: What `loader.spec()` has returned, or the loader.
        first: The number of the first batch, as in `loader.batch`.
        count: The number of batches. Default: one pass.
        tasks: The number of tasks that make them. Default: Ray decides.
        **changes: Arguments of `rc.Loader` in place of the spec's, such as `split="val"`. The rank is 0 of 1 unless
            given.

    Returns:
        A `ray.data.Dataset`.

    Raises:
        ModuleNotFoundError: Ray is not installed.
        ValueError: An argument makes no sense, or the dataset cannot hold the dtype of a key.

    Examples:
        >>> dataset = rc.ray.read("cache", loader.spec())
        >>> for batch in dataset.iter_batches(batch_size=loader.batch_size):
        ...     batch["observation.state"], batch["position"]
    """
    for name in ("device", "arrays"):
        if changes.get(name) is not None:
            raise ValueError(f"ray.read: {name} is {changes[name]!r}; a Ray dataset holds arrays in shared memory")
    cluster.connected("ray.read")
    path = os.path.abspath(cache.path if isinstance(cache, Cache) else os.fsdecode(cache))
    said = spec.spec() if isinstance(spec, Loader) else spec
    changes = {"rank": 0, "world": 1} | changes
    loader = Loader.from_spec(path, said, **changes)
    with named("ray.read"):
        begin = whole_number("first", first, 0)
        number = len(loader) if count is None else whole_number("count", count, 1)
    from robocache._ray.dataset import dataset

    return dataset(loader, changes, begin, number, tasks)
