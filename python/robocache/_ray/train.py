"""`rc.ray.loader` and `rc.ray.save`: a Ray Train worker's share of the batches, and the state in its checkpoints."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path as Folder
from typing import Any

from robocache._cache.cache import Cache
from robocache._cache.values import Path
from robocache._loader.loader import Loader
from robocache._ray import cluster

FILE = "robocache-loader.json"


def loader(cache: Cache | Path, spec: Mapping[str, Any] | None = None, **arguments: Any) -> Loader:
    """The loader of a Ray Train worker: its rank's share of each batch, from the checkpoint on.

    Call it in the function that Ray Train runs on each worker. If the run continues from a checkpoint in which `save`
    has put the loader's state, the loader continues exactly there, also in the middle of an epoch and with another
    number of workers.

    Args:
        cache: An `rc.Cache`, or its path, which all machines must see.
        spec: What `loader.spec()` has returned. None: `arguments` has all arguments.
        **arguments: Arguments of `rc.Loader`; with a spec, in place of the spec's.

    Returns:
        The loader.

    Raises:
        ModuleNotFoundError: Ray is not installed.
        ValueError: The checkpoint is of a loader of another cache, spec or seed; the sentence says what differs.

    Examples:
        >>> def train(config):
        ...     loader = rc.ray.loader("cache", config["spec"])
        ...     for step, batch in enumerate(loader):
        ...         ...
        ...         if step % 1000 == 999:
        ...             with tempfile.TemporaryDirectory() as folder:
        ...                 torch.save(model.state_dict(), f"{folder}/model.pt")
        ...                 rc.ray.save(loader, folder)
        ...                 ray.train.report({}, checkpoint=ray.train.Checkpoint.from_directory(folder))
    """
    cluster.imported("ray.loader")
    import ray.train

    context = ray.train.get_context()
    arguments = {"rank": context.get_world_rank(), "world": context.get_world_size()} | arguments
    made = Loader(cache, **arguments) if spec is None else Loader.from_spec(cache, spec, **arguments)
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            state = Folder(folder, FILE)
            if state.exists():
                made.load_state_dict(json.loads(state.read_text()))
    return made


def save(loader: Loader, folder: str | os.PathLike[str], batch: Mapping[str, Any] | None = None) -> None:
    """Writes the loader's state into the folder of a checkpoint. One rank is enough: all ranks have the same state.

    Args:
        loader: The loader.
        folder: The folder, which must exist.
        batch: The last batch that was trained on, if later batches were already taken from the loader.
    """
    state = loader.state_dict() if batch is None else loader.state_after(dict(batch))
    Folder(folder, FILE).write_text(json.dumps(state))
