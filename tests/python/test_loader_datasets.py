"""The loader under torch's DataLoader and torchdata's StatefulDataLoader, in other processes, and in threads."""

import itertools
import multiprocessing
import os
import pickle
import signal
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from loader_small import BATCH, equal, len_of_words, made, passes, same, write

import robocache as rc

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch.utils.data import DataLoader  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than cores
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata 0.11 under torch 2.15
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings(r"ignore:os.fork\(\) was called:RuntimeWarning"),  # of JAX
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return write(tmp_path_factory.mktemp("loader") / "cache")


# ---- Windows by number


def test_a_sampler_gets_every_window_once(cache):
    loader = made(cache)
    dataset = loader.dataset()
    torch.manual_seed(0)
    found = list(DataLoader(dataset, batch_size=10, shuffle=True))
    assert isinstance(found[0]["state"], torch.Tensor)
    assert found[0]["state"].shape == (10, 2, 3)
    anchors = torch.cat([torch.stack([batch["episode"], batch["time"]], 1) for batch in found]).tolist()
    _, episodes, times = loader.windows.at(np.arange(len(loader.windows)))
    assert anchors != sorted(anchors)
    assert sorted(anchors) == np.stack([episodes, times], 1).tolist()


def test_a_window_has_the_numbers_of_the_loader(cache):
    loader = made(cache).eval()
    dataset = loader.dataset()
    for number in (0, 7, len(dataset) - 1, -1):
        row = dataset[number]
        [[_], [episode], [time]] = loader.windows.at(np.asarray([number % len(dataset)]))
        wanted = loader.window(int(episode), int(time))
        assert all(np.array_equal(row[name], wanted[name][0]) for name in wanted if name != "position")
    assert len(list(dataset)) == len(loader.windows)
    with pytest.raises(IndexError, match=r"there is no window 100000 among \d+"):
        dataset[100_000]


def test_a_list_of_numbers_is_one_call(cache, monkeypatch):
    loader = made(cache)
    calls = []
    align = loader._engine.align
    monkeypatch.setattr(loader._engine, "align", lambda *given: calls.append(0) or align(*given))
    [*batches] = DataLoader(loader.dataset(), batch_size=32)
    assert len(calls) == len(batches)


@pytest.mark.parametrize("workers", [0, 2])
def test_in_the_loaders_order(cache, workers):
    loader = made(cache)
    dataset = loader.dataset(in_order=True)
    for epoch in range(2):
        dataset.set_epoch(epoch)
        rows = list(DataLoader(dataset, batch_size=BATCH, num_workers=workers))
        collated = list(DataLoader(dataset, batch_size=BATCH, num_workers=workers, collate_fn=dataset.collate))
        assert same(rows, collated)
        positions = np.concatenate([np.asarray(batch["position"]) for batch in rows])
        assert np.array_equal(positions, epoch * len(dataset) + np.arange(len(dataset)))
        if epoch == 0:
            assert same(rows[:-1], [loader.batch(number) for number in range(len(rows) - 1)])


def test_numbers_in_any_order(cache):
    loader = made(cache)
    dataset = loader.dataset(in_order=True)
    numbers = [5, 6, 2, 40, 41, 42, 3]
    rows = dataset.__getitems__(numbers)
    for number, row in zip(numbers, rows, strict=True):
        batch = loader.batch(number // BATCH)
        assert all(np.array_equal(row[name], batch[name][number % BATCH]) for name in row)
    assert equal(rows[1:3][1], dataset[2])


def test_living_workers_see_a_new_epoch(cache):
    dataset = made(cache).dataset(in_order=True)
    batches = DataLoader(dataset, batch_size=len(dataset), num_workers=1, persistent_workers=True)
    first = next(iter(batches))["position"][0]
    dataset.set_epoch(5)
    assert (first, next(iter(batches))["position"][0]) == (0, 5 * len(dataset))
    with pytest.raises(ValueError, match="epoch is -1; expected an int from 0 on"):
        dataset.set_epoch(-1)


def test_a_batch_without_rows_needs_collate(cache):
    loader = made(cache, transform=lambda batch: {"loss": batch["action"].sum(), "action": batch["action"]})
    dataset = loader.dataset()
    with pytest.raises(ValueError, match=r'transform= made "loss", which has no row .*collate_fn=dataset\.collate'):
        next(iter(DataLoader(dataset, batch_size=4)))
    batch = next(iter(DataLoader(dataset, batch_size=4, collate_fn=dataset.collate)))
    assert batch["action"].shape == (4, 4, 2)


# ---- Batches, with workers


@pytest.mark.parametrize("last", ["join", "drop", "short"])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_workers_hand_out_the_loaders_sequence(cache, workers, last):
    wanted = passes(made(cache, last=last), 3)
    loader = made(cache, last=last)
    batches = DataLoader(loader.iterable(), batch_size=None, num_workers=workers)
    assert len(batches) == len(made(cache, last=last))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="This DataLoader will create|.*fork")
        assert same(passes(batches, 3), wanted)


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_every_way_to_start_workers(cache, method):
    batches = DataLoader(
        made(cache).iterable(),
        batch_size=None,
        num_workers=2,
        multiprocessing_context=method,
        persistent_workers=True,
    )
    assert same(passes(batches, 2), passes(made(cache), 2))


def test_a_pass_that_is_broken_off_counts(cache):
    native, starts = made(cache), []
    for _ in range(3):
        starts.append(next(batch["position"][0] for batch in [*native][:1]))
    batches = DataLoader(made(cache).iterable(), batch_size=None, num_workers=2)
    firsts = []
    for _ in range(3):
        torch.manual_seed(0)  # workers of each pass have the same seed
        firsts.append(next(iter(batches))["position"][0])
    assert firsts == starts


def test_workers_begin_at_the_loaders_state(cache):
    wanted = passes(made(cache), 2)
    loader = made(cache)
    for batch in loader:
        if batch["position"][0] == 2 * BATCH:
            break
    batches = DataLoader(loader.iterable(), batch_size=None, num_workers=2)
    assert same(passes(batches, 2), wanted[3:])


def threads(batch):
    return batch | {"threads": rc.num_threads()}


def test_workers_share_the_threads(cache):
    before = rc.num_threads()
    rc.set_num_threads(4)
    try:
        for workers, each in ((0, 4), (2, 2), (3, 1)):
            loader = made(cache, transform=threads)
            batches = DataLoader(loader.iterable(), batch_size=None, num_workers=workers)
            assert {batch["threads"] for batch in batches} == {each}
    finally:
        rc.set_num_threads(before)


def test_more_workers_than_batches(cache):
    loader = made(cache, batch_size=200)
    assert len(loader) < 4
    assert same(
        passes(DataLoader(loader.iterable(), batch_size=None, num_workers=4), 2), passes(made(cache, batch_size=200), 2)
    )


@pytest.mark.parametrize("stop", [1, 5, "whole"])
def test_state_after_a_batch_of_workers(cache, stop):
    wanted = passes(made(cache), 2)
    loader = made(cache)
    stop = len(loader) if stop == "whole" else stop
    batches = DataLoader(loader.iterable(), batch_size=None, num_workers=2, prefetch_factor=3)
    for k, batch in enumerate(batches, 1):
        if k == stop:
            state = loader.state_after(batch)
            break
    with pytest.raises(RuntimeError, match=r"use loader\.state_after\(batch\), or a StatefulDataLoader"):
        loader.state_dict()
    other = made(cache)
    other.load_state_dict(state)
    assert equal(next(iter(other)), wanted[stop])
    loader.load_state_dict(state)
    assert same(passes(batches, 1), wanted[stop : len(loader)] or wanted[len(loader) :])


def test_state_after_padded_rows(cache):
    for batch_size in (50, 500):
        loaders = [made(cache, last="short", batch_size=batch_size, rank=rank, world=3) for rank in range(3)]
        for batches in zip(*loaders, strict=True):
            states = {loader.state_after(batch)["position"] for loader, batch in zip(loaders, batches, strict=True)}
            assert states == {loader.state_dict()["position"] for loader in loaders}
            assert len(states) == 1
    with pytest.raises(ValueError, match="no part of the loader's order"):
        loaders[0].state_after(loaders[0].window(0, 10**12))


@pytest.mark.parametrize("workers", [0, 2])
def test_stateful_data_loader(cache, workers):
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    wanted = passes(made(cache), 4)
    each = len(made(cache))

    def batches():
        return stateful.StatefulDataLoader(made(cache).iterable(), batch_size=None, num_workers=workers)

    for stop in (1, each - 1, each, each + 3) if workers == 0 else (5, each + 3):
        torch.manual_seed(0)  # as a program that starts again seeds torch again
        first, found = batches(), []
        while len(found) < stop:
            for batch in first:
                found.append(batch)
                if len(found) == stop:
                    state = pickle.loads(pickle.dumps(first.state_dict()))
                    break
        assert same(found, wanted[:stop])
        torch.manual_seed(0)
        second = batches()
        second.load_state_dict(state)
        found = passes(second, 2 if stop != each else 3)  # at the end of a pass the first one may be empty
        assert same(found, wanted[stop : stop + len(found)])
        assert len(found) > each


def test_states_that_do_not_fit_say_so(cache):
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")

    def batches(workers, **changes):
        return stateful.StatefulDataLoader(made(cache, **changes).iterable(), batch_size=None, num_workers=workers)

    first = batches(1)
    next(iter(first))
    for other, sentence in (
        (
            batches(1, batch_size=8),
            "is of a StatefulDataLoader with 16 windows in a global batch .* and this one has 8",
        ),
        (batches(1, seed=4), r"of another loader\. What differs: the seed \(3 in the state, 4 here\)"),
    ):
        other.load_state_dict(first.state_dict())
        with pytest.raises(ValueError, match=sentence):
            next(iter(other))


class Fails:
    """A transform that fails in workers."""

    def __init__(self, how):
        self.how = how

    def __call__(self, batch):
        if torch.utils.data.get_worker_info() is not None and batch["position"][0] >= 3 * BATCH:
            self.how()
        return batch


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def fail():
    raise ArithmeticError("the transform failed")


def test_a_worker_that_dies(cache):
    batches = DataLoader(made(cache, transform=Fails(die)).iterable(), batch_size=None, num_workers=2)
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid.* (killed by signal|exited unexpectedly)"):
        list(batches)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_batches_are_refused(cache, workers):
    """As DataLoader's own batch_size of 1 makes them."""
    with pytest.raises(ValueError, match=r"Loader\.iterable: it makes whole batches.*batch_size=None"):
        next(iter(DataLoader(made(cache).iterable(), num_workers=workers)))


def test_a_worker_that_raises(cache):
    batches = DataLoader(made(cache, transform=Fails(fail)).iterable(), batch_size=None, num_workers=2)
    with pytest.raises(ArithmeticError, match="the transform failed"):
        list(batches)


# ---- Processes and threads


def test_pickle(cache, monkeypatch):
    loader = made(cache, tokenize=len_of_words, rank=1, world=2)
    next(iter(loader))
    stored = pickle.dumps(loader)
    assert len(stored) < 20_000
    monkeypatch.setattr(rc.Cache, "statistics", lambda *_: pytest.fail("statistics are pickled"))
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("WORLD_SIZE", "9")
    other = pickle.loads(stored)
    assert (other.rank, other.world, other.state_dict()) == (1, 2, loader.state_dict())
    assert same(passes(other, 2), passes(loader, 2))
    assert repr(other) == repr(loader)


def test_pickled_with_samples_in_memory(cache):
    loader = made(cache, device="cpu", resident=True)
    stored = pickle.dumps(loader)
    assert len(stored) < 20_000
    assert equal(next(iter(pickle.loads(stored))), next(iter(loader)))


def test_a_cache_that_changed_since(cache, tmp_path):
    def write(path, names):
        with rc.CacheWriter(path) as writer:
            for name in names:
                writer.add({"q": rc.Stream(np.zeros((50, 1)), np.arange(50) * 10**7)}, name=name)

    write(tmp_path / "one", ["a", "b"])
    write(tmp_path / "two", ["a", "c"])
    stored = pickle.dumps(rc.Loader(tmp_path / "one", batch_size=4, rate=50, keys={"q": rc.Key("q")}))
    assert len(pickle.loads(stored)) > 0
    (tmp_path / "one").rename(tmp_path / "old")
    (tmp_path / "two").rename(tmp_path / "one")
    with pytest.raises(ValueError, match="has other episodes than when the loader was pickled"):
        pickle.loads(stored)


def test_after_a_fork(cache):
    loader = made(cache)
    wanted = loader.batch(2)  # the pool of threads runs
    receiving, sending = multiprocessing.get_context("fork").Pipe(duplex=False)

    def child():
        sending.send(loader.batch(2))

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    assert receiving.poll(60)
    assert equal(receiving.recv(), wanted)
    process.join()


def test_threads(cache):
    loader = made(cache)
    wanted = [loader.batch(number) for number in range(40)]
    expected = passes(made(cache).eval(), 1)
    start = threading.Barrier(8)

    def numbered(thread):
        start.wait()
        return all(equal(loader.batch(number), wanted[number]) for number in range(thread, 40, 3))

    def iterated(_):
        copy = loader.eval()
        start.wait()
        return same(passes(copy, 1), expected)

    with ThreadPoolExecutor(8) as threads:
        running = [threads.submit(numbered if thread % 2 else iterated, thread) for thread in range(8)]
        assert all(each.result() for each in running)


def test_threads_where_a_shard_has_fewer_channels(tmp_path):
    for count in (2, 3):  # channels: each writer makes a shard
        with rc.CacheWriter(tmp_path / "cache") as writer:
            names = tuple("abc"[:count])
            writer.add(
                {"q": rc.Stream(np.ones((50, count), "f4"), np.arange(50) * 10**7, channels=names)}, name=f"{count}"
            )
    options = {"batch_size": 20, "rate": 100, "keys": {"q": rc.Key("q")}}
    wanted = [rc.Loader(tmp_path / "cache", **options).batch(number) for number in range(4)]
    for _ in range(10):
        loader, start = rc.Loader(tmp_path / "cache", **options), threading.Barrier(4)

        def numbered(number, loader=loader, start=start):
            start.wait()
            return equal_with_nan(loader.batch(number), wanted[number])

        with ThreadPoolExecutor(4) as threads:
            assert all(threads.map(numbered, range(4)))


def equal_with_nan(first, second):
    return all(np.array_equal(first[name], second[name], equal_nan=first[name].dtype.kind == "f") for name in first)


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_is_flat(cache):
    loader = made(cache, batch_size=2, keys={"state": rc.Key("joints", steps=range(-3, 1), normalize="mean_std")})
    batches = itertools.chain.from_iterable(itertools.repeat(loader))  # pass after pass
    for _ in itertools.islice(batches, 5_000):
        pass
    before = resident_bytes()
    for _ in itertools.islice(batches, 100_000):
        pass
    assert resident_bytes() - before < 2 * 2**20


def test_memory_of_pictures_is_flat(cache):
    loader = made(cache, batch_size=8)
    for number in range(300):
        loader.batch(number)
    before = resident_bytes()
    for number in range(300, 2300):
        loader.batch(number)
    assert resident_bytes() - before < 4 * 2**20
