"""`robocache bench loader CACHE`: how fast the loader is with your own cache on this machine, and its slow parts."""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import robocache as rc
from robocache import _tables
from robocache._cache.prepare import is_numbered
from robocache._loader.engine import is_picture
from robocache._loader.entries import Entry

ACTIONS = ("action", "command", "target")  # a stream with one of these words in its name is an action
WARM_UP = 3  # batches
FEWEST = 5


def main(argv: Sequence[str]) -> int:
    options = arguments(argv)
    begin = time.perf_counter()
    loader = opened(options)
    constructed = time.perf_counter() - begin
    wait = waiter(loader)
    begin = time.perf_counter()
    batch = loader.batch(0)
    wait()
    first = time.perf_counter() - begin
    for number in range(1, 1 + WARM_UP):
        loader.batch(number)
    times = timed(loader, wait, options.seconds)
    size = sum(array.nbytes for array in batch.values() if hasattr(array, "nbytes"))
    middle = statistics.median(times)
    found = {
        "cache": str(options.cache),
        "windows": len(loader.windows),
        "batch_size": loader.batch_size,
        "construction_ms": constructed * 1e3,
        "first_batch_ms": first * 1e3,
        "batches": len(times),
        "ms_per_batch": middle * 1e3,
        "ms_per_batch_p99": sorted(times)[int(0.99 * (len(times) - 1))] * 1e3,
        "windows_per_s": loader.batch_size / middle,
        "batch_bytes": size,
        "mib_per_s": size / middle / 2**20,
        "parts_ms": parts(loader, wait, options.seconds),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        show(loader, found)
    return 0


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "robocache bench loader", description="Times batches of a loader over your own cache."
    )
    names: dict[str, Any] = {"type": lambda text: [name for name in text.split(",") if name], "metavar": "STREAM,..."}
    parser.add_argument("cache", type=Path)
    parser.add_argument("--spec", type=Path, help="JSON of loader.spec(); the options below change it")
    parser.add_argument("--rate", type=float, help="hertz; needed without --spec")
    parser.add_argument("--batch", type=int, help="windows in a batch; default: 64")
    parser.add_argument("--observation", **names, help="default: all streams that are not actions")
    parser.add_argument("--action", **names, help=f"default: streams with one of the words {', '.join(ACTIONS)}")
    parser.add_argument("--observation-steps", type=int, default=2)
    parser.add_argument("--action-steps", type=int, default=16)
    parser.add_argument("--device", help="cpu or cuda: torch tensors there; default: NumPy arrays")
    parser.add_argument("--resident", help='on a GPU: auto, or the most bytes, such as "40GiB"')
    parser.add_argument("--seconds", type=float, default=2.0, help="how long to measure")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    options = parser.parse_args(argv)
    if options.spec is None and options.rate is None:
        parser.error("give --rate, the hertz of the steps, or --spec")
    return options


def opened(options: argparse.Namespace) -> rc.Loader:
    cache = rc.Cache(options.cache)
    given = {"rate": options.rate, "batch_size": options.batch, "device": options.device, "resident": options.resident}
    changes = {name: value for name, value in given.items() if value is not None}
    if options.spec is not None:
        return rc.Loader.from_spec(cache, json.loads(options.spec.read_text()), **changes)
    observation, action = options.observation, options.action
    if observation is None and action is None:
        infos = {name: cache._info(name) for name in cache.streams}
        usable = [name for name, info in infos.items() if is_picture(info) or not is_numbered(info)]
        action = [name for name in usable if any(word in name.lower() for word in ACTIONS)]
        observation = [name for name in usable if name not in action]
    return rc.Loader(
        cache,
        observation=observation,
        action=action,
        observation_steps=options.observation_steps,
        action_steps=options.action_steps,
        missing="mask",
        **({"batch_size": 64} | changes),
    )


def waiter(loader: rc.Loader) -> Callable[[], None]:
    """A function that waits until a batch is complete: on a GPU it synchronises."""
    device = getattr(loader.placement.device, "type", None)
    if device != "cuda":
        return lambda: None
    import torch

    return torch.cuda.synchronize


def timed(
    loader: rc.Loader, wait: Callable[[], None], seconds: float, each: Callable[[float], None] = lambda took: None
) -> list[float]:
    """The seconds of each batch, with a GPU synchronisation after each. A training step would hide part of it."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    number = 1 + WARM_UP
    while len(times) < FEWEST or time.perf_counter() < end:
        begin = time.perf_counter()
        loader.batch(number)
        wait()
        times.append(time.perf_counter() - begin)
        each(times[-1])
        number += 1
    return times


def parts(loader: rc.Loader, wait: Callable[[], None], seconds: float) -> dict[str, float]:
    """Milliseconds of a batch by part. This is a separate run, because measuring the parts takes time too."""
    names = ("align", "pictures", "finishing")
    rest = "order and the rest"
    spent = dict.fromkeys(names, 0.0)  # of the batch that is being made
    taken: dict[str, list[float]] = {part: [] for part in (*names, rest)}
    watched: list[tuple[Any, str]] = []

    def watch(owner: Any, name: str, part: str) -> None:
        call = getattr(owner, name)

        def run(*given: Any, **named: Any) -> Any:
            begin = time.perf_counter()
            made = call(*given, **named)
            wait()
            spent[part] += time.perf_counter() - begin
            return made

        setattr(owner, name, run)
        watched.append((owner, name))

    watch(loader._engine, "align", "align")
    for entry in loader._entries.values():
        if not isinstance(entry, Entry):
            watch(entry, "made", "pictures")
        else:
            for name in ("raw", "transformed", "finished"):
                watch(entry, name, "finishing")

    def end(took: float) -> None:
        for part in names:
            taken[part].append(spent[part])
        taken[rest].append(took - sum(spent.values()))
        spent.update(dict.fromkeys(names, 0.0))

    try:
        timed(loader, wait, seconds / 2, end)
    finally:
        for owner, name in watched:
            delattr(owner, name)
    return {part: statistics.median(times) * 1e3 for part, times in taken.items()}


def show(loader: rc.Loader, found: dict[str, Any]) -> None:
    print(loader)
    rows = [
        ["windows/s", f"{found['windows_per_s']:,.0f}"],
        ["ms per batch", f"{found['ms_per_batch']:.3f} (99 %: {found['ms_per_batch_p99']:.3f})"],
        ["MiB/s", f"{found['mib_per_s']:,.0f}"],
        *([f"  {part}", f"{each:.3f} ms"] for part, each in found["parts_ms"].items()),
        ["construction", f"{found['construction_ms']:.1f} ms"],
        ["first batch", f"{found['first_batch_ms']:.1f} ms"],
        ["peak memory", f"{found['peak_mib']:,.0f} MiB"],
    ]
    title = f"{found['cache']}: batches of {found['batch_size']} of {found['windows']:,} windows"
    _tables.table(title, ("figure", "this machine"), rows)
