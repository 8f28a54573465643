"""A small cache, its loader, and how batches are compared, for tests of the loader under other libraries."""

import numpy as np

import robocache as rc

BATCH = 16


def write(path):
    """A cache of five episodes. Returns its path."""
    random = np.random.default_rng(0)
    with rc.CacheWriter(path) as writer:
        for episode in range(5):
            times = {
                name: np.arange(int(hz * 1.5), dtype=np.int64) * (10**9 // hz) + 10**12 * (episode + 1)
                for name, hz in (("joints", 100), ("command", 50), ("wrist", 10))
            }
            streams = {
                "joints": rc.Stream(random.standard_normal((len(times["joints"]), 3)).astype("f4"), times["joints"]),
                "command": rc.Stream(random.standard_normal((len(times["command"]), 2)).astype("f4"), times["command"]),
                "wrist": rc.Stream(
                    random.integers(0, 255, (len(times["wrist"]), 8, 10, 3)).astype("u1"), times["wrist"]
                ),
            }
            writer.add(streams, name=f"episode {episode}", task=["pick", "place it"][episode % 2])
    return str(path)


def made(cache, **changes):
    keys = {
        "state": rc.Key("joints", steps=range(-1, 1), normalize="mean_std"),
        "image": rc.Key("wrist", image={"size": (8, 8), "crop": (6, 6)}),
        "action": rc.Key("command", steps=range(4), drop=0.3),
    }
    return rc.Loader(cache, **({"batch_size": BATCH, "rate": 40, "keys": keys, "seed": 3} | changes))


def equal(first, second):
    assert first.keys() == second.keys()
    return all(np.array_equal(np.asarray(first[name]), np.asarray(second[name])) for name in first)


def same(got, wanted):
    return len(got) == len(wanted) and all(map(equal, got, wanted))


def passes(batches, count):
    return [batch for _ in range(count) for batch in batches]


def len_of_words(text):
    return [len(word) for word in text.split()]
