"""`rc.ray.build`: `robocache build`, whose recordings are decoded on the workers of a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from robocache._cache.build import build as build_cache
from robocache._ray import cluster
from robocache._ray.decoded import Workers
from robocache._recordings.frame_options import options_of

AnyPath = str | os.PathLike[str]


def build(
    paths: AnyPath | Sequence[AnyPath],
    cache: AnyPath,
    *,
    recipe: AnyPath | None = None,
    by: str | None = None,
    gap: float | None = None,
    topic: str | None = None,
    open_options: Mapping[str, Any] | None = None,
    frames: str | None = None,
    fit: str | None = None,
    keep: str | None = None,
    workers: int | None = None,
    cpus: int = 1,
    memory: int | None = None,
) -> dict[str, Any]:
    """Adds recordings to a cache as `robocache build` does, decoded on the workers of a Ray cluster.

    Only the calling process writes. The cache is the same as if one machine had built it: the same shards, byte for
    byte, if nothing interrupted the build. If a worker dies, another one decodes its recording. If the calling process
    is killed, run it again: committed recordings stay, and only the others are decoded.

    All machines must see the recordings under the same paths, and have the same RoboCache. The cache is on the machine
    that calls. `ray.init()` joins or starts Ray, unless the process has called it before.

    Args:
        paths: Recordings, and folders of them.
        cache: The cache; it is made if it is not there.
        recipe: The path of a recipe.
        by: How a recording is split into episodes: "file", "gap" or "topic".
        gap: For by="gap": the seconds without a message that split a recording.
        topic: For by="topic": the topic that marks episodes.
        open_options: Options of `rc.open`.
        frames: The size of each camera's frames, height x width, such as "224x224".
        fit: How pictures fit that size: "stretch", "cover" or "contain".
        keep: What the cache keeps of a camera: "both" (its own samples and the frames) or "frames".
        workers: The number of tasks that decode at a time. Default: as many as the cluster has CPUs for.
        cpus: CPUs for each task; it decodes pictures on as many threads.
        memory: The most bytes that are decoded and wait to be written. Default: half of Ray's object store.

    Returns:
        The result, as `robocache build --json` prints it: `sources` has a row for each recording with its path,
        state ("added", "unchanged", "replaced", "failed"), episodes, samples, notes, and error if it failed.

    Raises:
        ModuleNotFoundError: Ray is not installed.
        ValueError: An option makes no sense.

    Examples:
        >>> rc.ray.build(["/data/logs"], "cache", frames="224x224")
    """
    for name, number in (("workers", workers), ("cpus", cpus), ("memory", memory)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
            raise ValueError(f"ray.build: {name} is {number!r}; expected an int from 1 on")
    if frames is None and (fit is not None or keep is not None):
        raise ValueError("ray.build: fit and keep are for frames=, which is not given")
    options = None if frames is None else options_of("ray.build: frames", frames, fit, keep)
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    ray = cluster.connected("ray.build")
    at_work = Workers(ray, workers, cpus, memory)
    try:
        return build_cache(
            [os.fspath(path) for path in given],
            Path(cache),
            recipe=None if recipe is None else Path(recipe),
            by=by,
            gap=gap,
            topic=topic,
            open_options=dict(open_options or {}),
            frames=options,
            workers=at_work,
        )
    finally:
        at_work.close()
