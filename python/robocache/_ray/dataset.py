"""A loader's batches as a Ray dataset. Imports Ray: only `rc.ray.read` imports this module."""

from __future__ import annotations

import functools
import itertools
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
from ray import cloudpickle
from ray.data.block import BlockAccessor, BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from robocache._loader.loader import Loader


class Batches(Datasource):  # type: ignore[misc]  # Ray has no types that mypy follows
    """Batches of a loader by their numbers. Each read task makes a range of them.

    Args:
        pickled_loader: The cache, spec and arguments of the loader, pickled.
        first: The number of the first batch.
        count: The number of batches.
        rows: The rows of a batch.
        bytes_each: The bytes of a batch.
    """

    def __init__(self, pickled_loader: bytes, first: int, count: int, rows: int, bytes_each: int) -> None:
        super().__init__()
        self.pickled_loader, self.first, self.count, self.rows, self.bytes_each = (
            pickled_loader,
            first,
            count,
            rows,
            bytes_each,
        )

    def get_name(self) -> str:
        return "RoboCache"

    def estimate_inmemory_data_size(self) -> int:
        return self.count * self.bytes_each

    def get_read_tasks(self, parallelism: int, *_: Any, **options: Any) -> list[ReadTask]:
        limit = options.get("per_task_row_limit")
        tasks = max(min(parallelism, self.count), 1)
        edges = [self.first + self.count * k // tasks for k in range(tasks + 1)]
        made = []
        for begin, end in itertools.pairwise(edges):
            about = BlockMetadata(
                num_rows=(end - begin) * self.rows,
                size_bytes=(end - begin) * self.bytes_each,
                exec_stats=None,
                input_files=None,
            )
            read = functools.partial(blocks, self.pickled_loader, begin, end)
            made.append(ReadTask(read, about, per_task_row_limit=limit))
        return made


def blocks(pickled_loader: bytes, begin: int, end: int) -> Iterator[Any]:
    """The batches with these numbers, as blocks."""
    loader = loader_of(pickled_loader)
    for number in range(begin, end):
        yield BlockAccessor.batch_to_block(as_arrays(loader.batch(number)))


@functools.lru_cache(maxsize=2)
def loader_of(pickled_loader: bytes) -> Loader:
    """The loader, one for all tasks of a process."""
    cache, spec, changes = pickle.loads(pickled_loader)
    return Loader.from_spec(cache, spec, **changes)


def as_arrays(batch: dict[str, Any]) -> dict[str, Any]:
    """The batch as NumPy arrays. Raises if a Ray dataset cannot hold one of them."""
    found = {}
    for name, value in batch.items():
        array = np.asarray(value)
        if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
            raise ValueError(
                f'ray.read: "{name}" of the batch is {array.dtype}, which a Ray dataset cannot hold; give the key '
                'dtype="float16" or "float32"'
            )
        found[name] = array
    return found


def dataset(loader: Loader, changes: dict[str, Any], first: int, count: int, tasks: int | None) -> Any:
    """The dataset of a loader's batches, in order."""
    import ray

    batch = as_arrays(loader.batch(first))  # raises here, before any task runs
    pickled_loader = cloudpickle.dumps((loader.cache.path, loader.spec(), changes))
    size = sum(int(array.nbytes) for array in batch.values())
    source = Batches(pickled_loader, first, count, loader.batch_size, size)
    made = ray.data.read_datasource(source, override_num_blocks=tasks)
    made.context.execution_options.preserve_order = True
    return made
