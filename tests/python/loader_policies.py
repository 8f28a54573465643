"""A small cache for tests of the batches of other libraries' policies, and the arrays that it was made from."""

import numpy as np

import robocache as rc

RATE = 20
PERIOD = 10**9 // RATE
LENGTHS = (40, 25, 31)
TASKS = ("push", None, "pull")
START = 1_700_000_000_000_000_000


def recorded(folder, cameras=("wrist",), size=(12, 16)):
    """A cache of three episodes whose streams all have a sample at each step, and {stream: arrays by episode}."""
    random = np.random.default_rng(7)
    raw = {"joints": [], "command": [], "grid": [], **{camera: [] for camera in cameras}}
    with rc.CacheWriter(folder) as writer:
        for number, (length, task) in enumerate(zip(LENGTHS, TASKS, strict=True)):
            times = START + number * 10**12 + np.arange(length) * PERIOD
            raw["joints"].append(random.normal(3, 2, (length, 5)).astype(np.float32))
            raw["command"].append(random.normal(-1, 4, (length, 4)).astype(np.float32))
            raw["grid"].append(random.normal(size=(length, 2, 3)).astype(np.float32))
            for camera in cameras:
                raw[camera].append(random.integers(0, 256, (length, *size, 3)).astype(np.uint8))
            streams = {name: rc.Stream(arrays[-1], times) for name, arrays in raw.items()}
            streams["joints"] = rc.Stream(raw["joints"][-1], times, channels=list("abcde"))
            writer.add(streams, name=f"episode-{number}", task=task)
    return rc.Cache(folder), raw


def steps_of(arrays, batch, steps):
    """[B, T, ...]: the raw samples around each row's anchor, repeated beyond the ends; and which are beyond them."""
    values, beyond = [], []
    for episode, frame in zip(batch["episode"].tolist(), frames_in(batch), strict=True):
        wanted = frame + np.asarray(steps)
        values.append(arrays[episode][np.clip(wanted, 0, LENGTHS[episode] - 1)])
        beyond.append((wanted < 0) | (wanted >= LENGTHS[episode]))
    return np.stack(values), np.stack(beyond)


def frames_in(batch):
    """The step of each row in its episode, from a batch with `episode` and `time`."""
    starts = START + np.asarray(batch["episode"].tolist()) * 10**12
    return ((np.asarray(batch["time"].tolist()) - starts) // PERIOD).tolist()
