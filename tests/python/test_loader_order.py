"""The loader's order beside an oracle in plain Python integers, written from docs/semantics.md."""

from __future__ import annotations

import bisect
import itertools
import random
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from robocache import _core
from robocache._loader.order import Order, Passes

BITS = 2**64
BLOCK = 4096
WINDOWS = [1, 2, 3, 4, 5, 15, 16, 17, 255, 256, 257, 1000, 4095, 4096, 4097, 65535, 65536, 65537, 10**6]
WINDOWS += [2**32 - 1, 2**32, 2**32 + 1, 2**40 + 12345, 2**62, 2**62 + 1, 2**63 - 1]
LASTS = ["join", "drop", "short"]


# ---- the oracle ----


def mix(z):
    z %= BITS
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % BITS
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % BITS
    return z ^ (z >> 31)


def key(seed, number):
    return mix(mix(seed + 0x9E3779B97F4A7C15) ^ number)


def window(windows, seed, position):
    epoch, value = divmod(position, windows)
    bits = (windows - 1).bit_length()
    half = max(2, bits + bits % 2) // 2
    low = 2**half
    while True:
        left, right = divmod(value, low)
        for r in range(8):
            left, right = right, left ^ (mix(right ^ mix(key(seed, epoch) + r)) % low)
        value = left * low + right
        if value < windows:
            return value


def draw(seed, position, stream, name):
    hashed = 0xCBF29CE484222325
    for byte in f"{stream}/{name}".encode():
        hashed = (hashed ^ byte) * 0x100000001B3 % BITS
    return mix(key(seed, position) ^ hashed)


def shares(weights):
    total = 0.0
    for weight in weights:
        total += weight
    exact = [weight / total * BLOCK for weight in weights]
    found = [int(x) for x in exact]
    for j in sorted(range(len(weights)), key=lambda j: (-(exact[j] - found[j]), j))[: BLOCK - sum(found)]:
        found[j] += 1
    return found


def mixture(counts, seed, positions):
    """(source, own position) of the positions 0 to positions - 1."""
    source_of = [j for j, count in enumerate(counts) for _ in range(count)]
    seen = Counter()
    for position in range(positions):
        source = source_of[window(BLOCK, seed, position)]
        yield source, seen[source]
        seen[source] += 1


def cumulated(weights):
    most = max(weights)
    return list(itertools.accumulate(max(1, round(w / most * 2**32)) if w else 0 for w in weights))


def passes(length, size, last, start, count):
    """`count` passes from position `start` on, each with its global batches of (position, valid)."""
    found = []
    for _ in range(count):
        end = start - start % length + length
        if last == "drop" and end - start < size:
            start, end = end, end + length
        batches = []
        while start < end:
            rows = range(start, start + size)
            if last == "short":
                batches.append([(min(p, end - 1), p < end) for p in rows])
                start = min(start + size, end)
            else:
                batches.append([(p, True) for p in rows])
                start += size
            if last == "drop" and end - start < size:
                start = end
        found.append((batches, start))
    return found


# ---- windows and draws ----


@pytest.mark.parametrize("windows", WINDOWS)
def test_windows_are_those_of_the_oracle(windows):
    for seed in (0, 7, 2**63, BITS - 1):
        for first in (0, windows - 5, windows, 5 * windows + 1, 2**63 - 12):
            if 0 <= first <= 2**63 - 12:
                expected = [window(windows, seed, first + k) for k in range(12)]
                assert _core.window_order(windows, seed, first, 12, True).tolist() == expected
                in_order = [(first + k) % windows for k in range(12)]
                assert _core.window_order(windows, seed, first, 12, False).tolist() == in_order


@pytest.mark.parametrize("windows", [1, 2, 3, 4, 5, 6, 7, 8, 9, 63, 64, 65, 1000, 4095, 4096, 4097, 10**6])
def test_every_epoch_is_a_permutation_of_its_own(windows):
    epochs = _core.window_order(windows, 3, 0, 4 * windows, True).reshape(4, windows)
    assert epochs.dtype == np.int64
    assert (np.sort(epochs, axis=1) == np.arange(windows)).all()
    if windows >= 63:
        for a, b in itertools.combinations([*epochs, _core.window_order(windows, 4, 0, windows, True)], 2):
            assert (a == b).mean() < 0.1


def test_long_runs_are_those_of_the_oracle():
    """Long runs of few windows go through tables; very long ones through several threads."""
    for windows in (3, 700, 4096):
        found = _core.window_order(windows, 5, 123, 5000, True).tolist()
        assert found == [window(windows, 5, p) for p in range(123, 5123)]
    found = _core.window_order(3000, 5, 17, 50_000, True)
    assert (found == np.concatenate([_core.window_order(3000, 5, p, 100, True) for p in range(17, 50_017, 100)])).all()


def test_the_first_windows_of_epochs_are_spread_evenly():
    firsts = Counter(int(_core.window_order(50, 1, 50 * epoch, 1, True)[0]) for epoch in range(10_000))
    assert set(firsts) == set(range(50))
    assert sum((n - 200) ** 2 / 200 for n in firsts.values()) < 49 + 5 * (2 * 49) ** 0.5  # chi squared


def test_draws_are_those_of_the_oracle():
    some = np.array([0, 1, 2, 10**6, 2**40, 2**63 - 1], np.int64)
    names = [("wrist", "crop"), ("wrist", "hue"), ("top", "crop"), ("", ""), ("/kamera/größe", "drop")]
    for seed in (0, 7, BITS - 1):
        for stream, name in names:
            found = _core.draws(seed, some, stream, name)
            assert found.dtype == np.uint64
            assert found.tolist() == [draw(seed, int(p), stream, name) for p in some]
    every = [_core.draws(seed, np.arange(1000), *names[k]) for seed in (1, 2) for k in range(5)]
    assert len(np.unique(np.concatenate(every))) == 10_000
    assert abs((every[0] / 2.0**64).mean() - 0.5) < 5 / (12 * 1000) ** 0.5
    assert _core.draws(1, np.arange(0), "a", "b").shape == (0,)


# ---- mixtures and weights ----


def test_shares_are_the_largest_remainders():
    draws = random.Random(0)
    for _ in range(200):
        weights = [draws.choice([1.0, 0.1, 2.5, draws.random() + 0.01]) for _ in range(draws.randint(1, 40))]
        found = _core.mixture_shares(weights)
        assert found == shares(weights)
        assert sum(found) == BLOCK
        total = sum(map(Fraction, weights))
        assert all(abs(n - Fraction(w) / total * BLOCK) < 1 for n, w in zip(found, weights, strict=True))
    assert _core.mixture_shares([3, 0, 1]) == [3072, 0, 1024]


@pytest.mark.parametrize("weights", [[1.0], [3.0, 1.0], [1.0, 0.0, 2.0, 5.0], [1.0] * 7])
def test_mixtures_are_those_of_the_oracle(weights):
    counts = _core.mixture_shares(weights)
    expected = list(mixture(counts, 9, 9000))
    sources, own = _core.mixture_order(counts, 9, 0, 9000)
    assert list(zip(sources.tolist(), own.tolist(), strict=True)) == expected
    for first in (1, 4000, 4096, 8744):
        sources, own = _core.mixture_order(counts, 9, first, 256)
        assert list(zip(sources.tolist(), own.tolist(), strict=True)) == expected[first : first + 256]
    far = 2**50 * BLOCK
    sources, own = _core.mixture_order(counts, 9, far, 1)
    assert own[0] == 2**50 * counts[int(sources[0])]


@pytest.mark.parametrize("world", [1, 2, 3, 8, 64])
def test_every_rank_sees_the_shares_within_their_bound(world):
    counts = _core.mixture_shares([6.0, 3.0, 1.0])
    size, batches = 16, max(16, 512 // world)
    rows = size * batches
    sources, _ = _core.mixture_order(counts, 2, 0, rows * world)
    by_rank = sources.reshape(batches, world, size)
    for j, count in enumerate(counts):
        share = count / BLOCK
        for rank in range(world):
            found = (by_rank[:, rank] == j).sum()
            assert abs(found - rows * share) < 5 * (rows * share * (1 - share)) ** 0.5
        run = np.cumsum(sources == j) - np.arange(1, len(sources) + 1) * share
        assert np.abs(run).max() <= count * (BLOCK - count) / BLOCK
        whole = len(sources) // BLOCK * BLOCK
        assert (sources[:whole] == j).sum() == whole // BLOCK * count


def test_weighted_windows_are_those_of_the_oracle():
    draws = random.Random(1)
    weights = [draws.choice([0.0, 1e-12, 1.0, draws.random()]) for _ in range(300)]
    sums = _core.cumulate_weights(np.array(weights))
    assert sums.tolist() == cumulated(weights)
    for seed, first in ((0, 0), (7, 12345), (BITS - 1, 2**63 - 2000)):
        expected = [
            bisect.bisect_right(cumulated(weights), key(seed, first + k) * int(sums[-1]) >> 64) for k in range(2000)
        ]
        assert _core.weighted_order(sums, seed, first, 2000).tolist() == expected
    few = _core.weighted_order(np.array([0, 1, 3, 3]), 5, 0, 100)
    assert few.tolist() == [bisect.bisect_right([0, 1, 3, 3], key(5, p) * 3 >> 64) for p in range(100)]
    found = np.bincount(_core.weighted_order(sums, 3, 0, 200_000), minlength=300)
    rate = np.array(weights) / sum(weights)
    assert (np.abs(found - 200_000 * rate) <= 6 * np.sqrt(200_000 * rate) + 1e-3).all()
    assert (found[np.array(weights) == 0] == 0).all()


# ---- batches and passes ----


@pytest.mark.parametrize("last", LASTS)
def test_passes_are_those_of_the_oracle(last):
    for world in (1, 2, 3, 7, 64):
        for batch_size in (1, 2, 5, 32):
            for length in (1, 2, 63, 64, 65, 1000):
                size = world * batch_size
                if last == "drop" and length < size:
                    continue
                ranks = [Passes(length, batch_size=batch_size, rank=r, world=world, last=last) for r in range(world)]
                start = position = 17 * length // 2  # in the middle of an epoch
                for batches, following in passes(length, size, last, start, 3):
                    assert ranks[0].batches(position) == len(batches)
                    position = ranks[0].begin(position)
                    for k, batch in enumerate(batches):
                        rows = np.concatenate([rank.positions(position) for rank in ranks])
                        valid = np.concatenate([rank.row_valid(position) for rank in ranks])
                        assert list(zip(rows.tolist(), valid.tolist(), strict=True)) == batch
                        assert ranks[0].is_last(position) == (k == len(batches) - 1)
                        position = ranks[0].after(position)
                    assert position == following


@pytest.mark.parametrize("last", LASTS)
def test_a_batch_starts_where_its_number_says(last):
    for length in (64, 65, 1000):
        order = Passes(length, batch_size=8, world=4, last=last)
        position = 0
        for number in range(200):
            assert order.start(number) == position
            position = order.after(position)


@pytest.mark.parametrize("last", LASTS)
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_epoch_has_each_window_once(last, shuffle):
    for windows, batch_size, world in itertools.product((5, 64, 101), (1, 4), (1, 3)):
        if last == "drop" and windows < batch_size * world:
            continue
        ranks = [
            Order(windows, batch_size=batch_size, seed=5, rank=r, world=world, last=last, shuffle=shuffle)
            for r in range(world)
        ]
        position, by_epoch, rows = 0, {}, set()
        while position < 3 * windows:
            for rank in ranks:
                positions, valid = rank.positions(position), rank.row_valid(position)
                numbers = rank.numbers(position)
                rows.add(len(numbers))
                assert numbers.tolist() == [window(windows, 5, int(p)) if shuffle else p % windows for p in positions]
                for number, p in zip(numbers[valid].tolist(), positions[valid].tolist(), strict=True):
                    by_epoch.setdefault(p // windows, []).append(number)
            position = ranks[0].after(position)
        assert rows == {batch_size}
        for epoch in range(3):
            seen = sorted(by_epoch[epoch])
            if last == "drop":
                assert len(set(seen)) == len(seen) == windows - windows % (batch_size * world)
            else:
                assert seen == list(range(windows))


@pytest.mark.parametrize("last", ["join", "short"])
def test_a_loader_goes_on_in_any_world_and_batch_size(last):
    """Stops at random batches, and goes on elsewhere: nothing is lost, and nothing comes twice."""
    draws = random.Random(last)
    for trial in range(16):
        windows = draws.choice([1, 7, 64, 100, 999])
        same_size = trial % 2 == 0
        position, seen, batches = 0, [], []
        while len(seen) < 5 * windows + 300:
            world = draws.choice([1, 2, 4, 8, 16, 64])
            batch_size = 64 // world if same_size else draws.choice([1, 3, 8])
            ranks = [
                Order(windows, batch_size=batch_size, seed=1, rank=r, world=world, last=last) for r in range(world)
            ]
            for _ in range(draws.randint(1, 4)):
                valid = [rank.row_valid(position) for rank in ranks]
                rows = [rank.positions(position)[v] for rank, v in zip(ranks, valid, strict=True)]
                numbers = [rank.numbers(position)[v] for rank, v in zip(ranks, valid, strict=True)]
                seen += np.concatenate(rows).tolist()
                batches.append(np.concatenate(numbers).tolist())
                position = ranks[0].after(position)
        assert seen == list(range(len(seen)))
        assert list(itertools.chain(*batches)) == [window(windows, 1, p) for p in range(len(seen))]
        if same_size:  # the same global batches as without any stop
            whole = Order(windows, batch_size=64, seed=1, last=last)
            for k, batch in enumerate(batches):
                at = whole.start(k)
                assert batch == whole.numbers(at)[whole.row_valid(at)].tolist()


def test_length_takes_the_place_of_an_epoch():
    order = Order(10, batch_size=4, seed=2, length=25, last="short")
    assert order.batches(0) == 7
    assert [order.after(p) for p in (0, 20, 24)] == [4, 24, 25]
    assert order.numbers(24).tolist() == [window(10, 2, 24)] * 4
    assert order.row_valid(24).tolist() == [True, False, False, False]
    weights = np.array([0.0, 1.0, 0.0, 2.0])
    weighted = Order(4, batch_size=100, seed=2, length=1000, weights=weights)
    found = np.concatenate([weighted.numbers(weighted.start(k)) for k in range(weighted.batches(0))])
    assert found.tolist() == _core.weighted_order(_core.cumulate_weights(weights), 2, 0, 1000).tolist()
    assert set(found.tolist()) == {1, 3}


def test_the_last_position_of_all_is_served():
    for last in LASTS:
        order = Order(10, batch_size=2, world=2, rank=1, last=last)
        assert order.positions(2**63 - 4).tolist()[0] == 2**63 - 2
        with pytest.raises(ValueError, match=r"position is 9223372036854775805; expected 0 to 2\^63 - 4"):
            order.positions(2**63 - 3)


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda: Order(0, batch_size=1), ValueError, "Loader: windows is 0; expected at least 1"),
        (lambda: Order(5, batch_size=0), ValueError, "Loader: batch_size is 0; expected at least 1"),
        (lambda: Order(5, batch_size=2.0), TypeError, "Loader: batch_size is 2.0; expected an int"),
        (lambda: Order(5, batch_size=True), TypeError, "Loader: batch_size is True; expected an int"),
        (lambda: Order(5, batch_size=1, seed=-1), ValueError, "Loader: seed is -1; expected at least 0"),
        (lambda: Order(5, batch_size=1, seed=BITS), ValueError, r"Loader: seed is \d+; expected 0 to 2\^64 - 1"),
        (lambda: Order(5, batch_size=1, world=0), ValueError, "Loader: world is 0; expected at least 1"),
        (lambda: Order(5, batch_size=1, rank=-1), ValueError, "Loader: rank is -1; expected at least 0"),
        (lambda: Order(5, batch_size=1, rank=2, world=2), ValueError, "rank is 2, and world is 2; ranks count from 0"),
        (lambda: Order(5, batch_size=1, last="keep"), ValueError, "last is 'keep'; expected one of 'join', 'drop', 's"),
        (lambda: Order(5, batch_size=3, world=2, last="drop"), ValueError, "leaves no batch, since an epoch has 5 win"),
        (
            lambda: Order(5, batch_size=1, weights=np.ones(4), length=9),
            ValueError,
            "weights has 4 numbers; expected one",
        ),
        (lambda: Order(5, batch_size=1, weights=np.ones(5)), ValueError, "weights need length="),
        (lambda: Order(5, batch_size=1).positions(-1), ValueError, "position is -1; expected 0 to"),
        (lambda: _core.window_order(0, 0, 0, 1, True), ValueError, "Loader: there are 0 windows; expected at least 1"),
        (lambda: _core.window_order(5, 0, -1, 1, True), ValueError, "Loader: position -1 is negative; positions count"),
        (lambda: _core.window_order(5, 0, 2**63 - 1, 2, True), ValueError, r"go past the last position, 2\^63 - 1"),
        (
            lambda: _core.window_order(5, 0, 2**63, 1, True),
            ValueError,
            "position = 9223372036854775808 does not fit 64",
        ),
        (lambda: _core.window_order(5, -1, 0, 1, True), ValueError, r"seed is -1; expected 0 to 2\^64 - 1"),
        (lambda: _core.window_order(5, "a", 0, 1, True), TypeError, "Loader: seed is 'a'; expected an int"),
        (lambda: _core.window_order(5, 0, 0, -1, True), ValueError, "Loader: count is -1; it must not be negative"),
        (lambda: _core.draws(0, np.arange(-1, 1), "a", "b"), ValueError, "position -1 is negative"),
        (lambda: _core.draws(0, np.arange(3.0), "a", "b"), TypeError, "expected a contiguous array of int64"),
        (lambda: _core.draws(0, np.arange(6)[::2], "a", "b"), TypeError, "expected a contiguous array of int64"),
        (lambda: _core.draws(0, np.zeros((2, 2), np.int64), "a", "b"), TypeError, "with one dimension"),
        (lambda: _core.draws(0, np.arange(1), "a", "b/c"), ValueError, 'the draw "b/c" has a slash in its name'),
        (lambda: _core.mixture_shares([]), ValueError, "Mixture: a mixture has no source"),
        (lambda: _core.mixture_shares([1.0, -2.0]), ValueError, "Mixture: weight 1 is -2; expected a finite number"),
        (lambda: _core.mixture_shares([1.0, 1e-9]), ValueError, "too little for one position in 4096; give it more"),
        (
            lambda: _core.mixture_order([1, 2], 0, 0, 1),
            ValueError,
            "the shares of a mixture add up to 3; expected 4096",
        ),
        (lambda: _core.mixture_order([4096], 0, -1, 1), ValueError, "position -1 is negative"),
        (lambda: _core.cumulate_weights(np.zeros(3)), ValueError, "Loader: no weight is positive"),
        (lambda: _core.weighted_order(np.zeros(3, np.int64), 0, 0, 1), ValueError, "Loader: no weight is positive"),
    ],
)
def test_wrong_arguments_get_sentences(call, error, sentence):
    with pytest.raises(error, match=sentence):
        call()
