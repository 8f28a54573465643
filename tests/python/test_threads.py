"""Calls from many threads, and after fork."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import attention_calling
import attention_cases
import calling
import cases
import numpy as np
import pytest
import voxel_calling
import voxel_cases

import robocache as rc

PATIENCE = 60  # seconds after which something hangs


def big_problem(seed: int = 5) -> cases.Problem:
    """Large enough for several threads of the pool."""
    stream = cases.make_stream(cases.Random(seed), rows=32, samples=400, trailing=(40,))
    return cases.Problem([stream], cases.Timeline(10**9, 150.0, 500))


@pytest.fixture
def pool():
    """At least three threads, also where the machine has fewer cores."""
    before = rc.num_threads()
    rc.set_num_threads(max(3, before))
    yield
    rc.set_num_threads(before)


def test_many_threads_get_the_same_bits(pool):
    problems = [cases.CASES[k].build() for k in range(0, len(cases.CASES), 40)] + [big_problem()]
    expected = [calling.align(problem, "reference") for problem in problems]

    def work(worker: int) -> None:
        for turn in range(3 * len(problems)):
            k = (worker * 7 + turn) % len(problems)
            calling.assert_same(calling.align(problems[k], "cpu"), expected[k], f"worker {worker}")

    with ThreadPoolExecutor(8) as executor:
        for done in [executor.submit(work, worker) for worker in range(8)]:
            done.result(timeout=PATIENCE)


def test_a_fault_on_the_gpu_is_raised_in_the_thread_that_made_it(cuda):
    """Bad stamps of one thread were raised in whichever thread called next."""
    torch = pytest.importorskip("torch")
    values, times, targets = cuda(np.zeros((4, 2), np.float32)), cuda(np.arange(4) * 10), cuda(np.array([5, 25]))
    bad = cuda(np.array([0, 20, 10, 30]))
    found, looked = threading.Event(), threading.Event()
    said = []

    def careless() -> None:
        rc.resample(values, bad, targets)
        torch.cuda.synchronize()
        found.set()
        looked.wait(PATIENCE)
        try:
            rc.resample(values, times, targets)
        except ValueError as error:
            said.append(str(error))
        rc.resample(values, times, targets)

    thread = threading.Thread(target=careless)
    thread.start()
    assert found.wait(PATIENCE)
    rc.resample(values, times, targets)  # has nothing to do with it
    looked.set()
    thread.join(PATIENCE)
    assert len(said) == 1
    assert "times[2] = 10 is before times[1] = 20" in said[0]
    # What a thread leaves behind when it ends is for synchronize().
    thread = threading.Thread(target=rc.resample, args=(values, bad, targets))
    thread.start()
    thread.join(PATIENCE)
    torch.cuda.synchronize()
    rc.resample(values, times, targets)
    with pytest.raises(ValueError, match="times"):
        rc.synchronize()
    rc.synchronize()


def test_many_threads_with_faults_on_the_gpu(cuda):
    """Each sees its own, and only its own, however many come and go."""
    torch = pytest.importorskip("torch")
    values, times, targets = cuda(np.zeros((4, 2), np.float32)), np.arange(4) * 10, cuda(np.array([5, 25]))

    def work(worker: int) -> None:
        bad = times.copy()
        bad[2] = bad[1] - 1 - worker
        rc.resample(values, cuda(bad), targets)
        torch.cuda.synchronize()
        with pytest.raises(ValueError, match=rf"times\[2\] = {bad[2]} is before"):
            rc.resample(values, cuda(times), targets)
        rc.resample(values, cuda(times), targets)

    for _ in range(20):
        with ThreadPoolExecutor(8) as executor:
            for done in [executor.submit(work, worker) for worker in range(8)]:
                done.result(timeout=PATIENCE)
    rc.synchronize()


COLD_START = """
    import threading, time
    import torch
    import robocache as rc

    zeros = torch.zeros
    def slow(*arguments):  # what is looked up at the first call lets other threads run, here for long
        time.sleep(0.2)
        return zeros(*arguments)
    torch.zeros = slow

    made, together = [], threading.Barrier(24)
    def work():
        together.wait()
        stream = rc.Stream(torch.arange(4.0), torch.arange(4) * 10, latency=0.0)
        made.append(rc.fuse([stream, stream], torch.tensor([0, 5, 30])).values.tolist())
    threads = [threading.Thread(target=work) for _ in range(24)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert made == [[[0, 0], [0.5, 0.5], [3, 3]]] * 24, made
    print("served")
"""


def test_the_first_calls_of_many_threads():
    """In a process of its own, which a deadlock stops: a thread that waits with the GIL in hand stops all."""
    pytest.importorskip("torch")
    command = [sys.executable, "-c", textwrap.dedent(COLD_START)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.stdout == "served\n", done.stderr


def test_the_first_use_of_a_stream_by_many_threads():
    """Each may parse its options, and none may free those that another reads."""
    torch = pytest.importorskip("torch")
    names = [f"channel {k}" for k in range(40)]
    options = {"channels": names, "method": {name: "linear" if k % 2 else "hold" for k, name in enumerate(names)}}
    values, times, targets = torch.rand(50, 40), torch.arange(50) * 10, torch.arange(10) * 10 + 3
    expected = rc.align([rc.Stream(values, times, **options)], targets)[0].values
    workers = 8
    together = threading.Barrier(workers)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work(stream: rc.Stream) -> bool:
        together.wait(PATIENCE)
        return torch.equal(rc.align([stream], targets)[0].values, expected)

    try:
        with ThreadPoolExecutor(workers) as executor:
            for _ in range(60):
                stream = rc.Stream(values, times, **options)
                for done in [executor.submit(work, stream) for _ in range(workers)]:
                    assert done.result(timeout=PATIENCE)
    finally:
        sys.setswitchinterval(interval)


def test_errors_in_some_threads_leave_the_others_alone(pool):
    problem = big_problem()
    expected = calling.align(problem, "reference")
    times = problem.streams[0].times.copy()
    times[7, 9] = 0

    def bad() -> str:
        with pytest.raises(ValueError, match=r"times\[7\]\[9\] = 0 is before times\[7\]\[8\]") as caught:
            rc.resample(problem.streams[0].values, times, np.array([10**9]))
        return str(caught.value)

    def good() -> None:
        calling.assert_same(calling.align(problem, "cpu"), expected, "good")

    with ThreadPoolExecutor(6) as executor:
        for done in [executor.submit(bad if k % 2 else good) for k in range(24)]:
            done.result(timeout=PATIENCE)


def test_the_number_of_threads_may_change_while_others_work(pool):
    problem = big_problem()
    expected = calling.align(problem, "reference")
    stop = threading.Event()

    def change() -> None:
        k = 0
        while not stop.is_set():
            rc.set_num_threads(1 + k % 4)
            k += 1
            time.sleep(0.001)

    changer = threading.Thread(target=change)
    changer.start()
    try:
        for _ in range(20):
            calling.assert_same(calling.align(problem, "cpu"), expected, "while threads change")
    finally:
        stop.set()
        changer.join(PATIENCE)


def test_set_num_threads(pool):
    rc.set_num_threads(2)
    assert rc.num_threads() == 2
    rc.set_num_threads(1)
    assert rc.num_threads() == 1


def in_child(action) -> int:
    """Runs action in a forked child; its exit status, or a failure where it hangs."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            action()
            status = 0
        finally:
            os._exit(status)
    for _ in range(PATIENCE * 20):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    pytest.fail("the child hangs")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_after_use(pool):
    problem = big_problem()
    expected = calling.align(problem, "cpu")  # the pool runs

    def action() -> None:
        calling.assert_same(calling.align(problem, "cpu"), expected, "child")
        rc.set_num_threads(2)
        calling.assert_same(calling.align(problem, "cpu"), expected, "child, two threads")
        assert in_child(lambda: calling.assert_same(calling.align(problem, "cpu"), expected, "grandchild")) == 0

    for _ in range(3):
        assert in_child(action) == 0
        calling.assert_same(calling.align(problem, "cpu"), expected, "parent")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_while_other_threads_work(pool):
    problem = big_problem()
    expected = calling.align(problem, "cpu")
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            calling.align(problem, "cpu")

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    try:
        for _ in range(8):
            status = in_child(lambda: calling.assert_same(calling.align(problem, "cpu"), expected, "child"))
            assert status == 0
    finally:
        stop.set()
        for worker in workers:
            worker.join(PATIENCE)


def _resampled(seed: int) -> bytes:
    return calling.bytes_of(calling.align(big_problem(seed), "cpu")[0][0])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing(pool, method):
    expected = [_resampled(seed) for seed in range(3)]
    with multiprocessing.get_context(method).Pool(2) as workers:
        assert workers.map_async(_resampled, range(3)).get(timeout=2 * PATIENCE) == expected


class Windows:
    """A data set as users write one: every item is resampled in the worker."""

    def __init__(self, torch):
        stream = big_problem().streams[0]
        self.values, self.times = torch.from_numpy(stream.values), torch.from_numpy(stream.times)
        self.targets = torch.arange(10**9, 2 * 10**9, 4_000_000)

    def __len__(self) -> int:
        return 12

    def __getitem__(self, k: int):
        return rc.resample(self.values[k : k + 4], self.times[k : k + 4], self.targets)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_data_loader_workers(pool):
    torch = pytest.importorskip("torch")
    data = Windows(torch)
    expected = [data[k] for k in range(len(data))]
    loader = torch.utils.data.DataLoader(
        data, batch_size=3, num_workers=2, multiprocessing_context="fork", timeout=PATIENCE
    )
    got = torch.cat(list(loader))
    assert torch.equal(got, torch.stack(expected))


# ---- voxels ------------------------------------------------------------------------------------------------------


def voxel_problem(seed: int = 6) -> voxel_cases.Problem:
    """Several pieces for the pool, long and short rows, keys of two digits."""
    return voxel_cases.make_clouds(
        voxel_cases.Random(seed),
        points=40000,
        layout="into",
        channels=3,
        reduce=("count", "mean", "max"),
        odd_points=True,
        grid=((-4.0, -4.0, -4.0), (0.25, 0.25, 0.5), (32, 32, 16)),
    )


def lattice_problem(seed: int = 7) -> voxel_cases.Problem:
    return voxel_cases.make_lattice(voxel_cases.Random(seed), points=70000, channels=2, layout="packed")


VOXEL_CALLS = {
    "voxelize": (voxel_calling.voxelize, voxel_problem),
    "sparse": (voxel_calling.sparse, voxel_problem),
    "downsample": (voxel_calling.downsample, lattice_problem),
}


def voxels_of(name: str, backend: str) -> list[np.ndarray]:
    run, make = VOXEL_CALLS[name]
    return run(make(), backend)


@pytest.fixture(scope="module")
def voxels_expected() -> dict[str, list[np.ndarray]]:
    return {name: voxels_of(name, "reference") for name in VOXEL_CALLS}


def test_voxels_by_many_threads(pool, voxels_expected):
    problems = {name: make() for name, (_, make) in VOXEL_CALLS.items()}
    names = list(VOXEL_CALLS)

    def work(worker: int) -> None:
        for turn in range(2 * len(names)):
            name = names[(worker + turn) % len(names)]
            actual = VOXEL_CALLS[name][0](problems[name], "cpu")
            voxel_calling.assert_same(actual, voxels_expected[name], f"worker {worker}: {name}")

    with ThreadPoolExecutor(6) as executor:
        for done in [executor.submit(work, worker) for worker in range(6)]:
            done.result(timeout=PATIENCE)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_voxels_by_any_number_of_threads(pool, voxels_expected, threads):
    rc.set_num_threads(threads)
    for name in VOXEL_CALLS:
        voxel_calling.assert_same(voxels_of(name, "cpu"), voxels_expected[name], f"{threads} threads: {name}")


def test_voxel_errors_in_some_threads_leave_the_others_alone(pool, voxels_expected):
    problem = lattice_problem()
    spread = np.array([[0, 0, 0], [1e9, 1e9, 1e9]])

    def bad() -> None:
        with pytest.raises(ValueError, match="the points span"):
            rc.voxel_downsample(spread, 1e-3, backend="cpu")

    def good() -> None:
        voxel_calling.assert_same(voxel_calling.downsample(problem, "cpu"), voxels_expected["downsample"], "good")

    with ThreadPoolExecutor(6) as executor:
        for done in [executor.submit(bad if k % 2 else good) for k in range(12)]:
            done.result(timeout=PATIENCE)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("name", VOXEL_CALLS)
def test_voxels_after_fork(pool, voxels_expected, name):
    expected = voxels_expected[name]
    voxel_calling.assert_same(voxels_of(name, "cpu"), expected, "the pool runs")

    def action() -> None:
        voxel_calling.assert_same(voxels_of(name, "cpu"), expected, "child")
        rc.set_num_threads(2)
        voxel_calling.assert_same(voxels_of(name, "cpu"), expected, "child, two threads")

    for _ in range(2):
        assert in_child(action) == 0
        voxel_calling.assert_same(voxels_of(name, "cpu"), expected, "parent")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_voxels_forked_while_other_threads_work(pool, voxels_expected):
    stop = threading.Event()
    problem = voxel_problem()

    def work() -> None:
        while not stop.is_set():
            voxel_calling.sparse(problem, "cpu")

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for name in VOXEL_CALLS:

            def action(name=name) -> None:
                voxel_calling.assert_same(voxels_of(name, "cpu"), voxels_expected[name], f"child: {name}")

            assert in_child(action) == 0
    finally:
        stop.set()
        worker.join(PATIENCE)


def _downsampled(seed: int) -> bytes:
    return calling.bytes_of(voxel_calling.downsample(lattice_problem(seed), "cpu")[0])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_voxels_in_multiprocessing(pool, method):
    expected = [_downsampled(seed) for seed in range(2)]
    with multiprocessing.get_context(method).Pool(2) as workers:
        assert workers.map_async(_downsampled, range(2)).get(timeout=2 * PATIENCE) == expected


# ---- attention ---------------------------------------------------------------------------------------------------


def attention_problem(seed: int = 8) -> attention_cases.Problem:
    """Large enough for several threads of the pool, and for the GIL to be let go."""
    return attention_cases.make(
        np.random.default_rng(seed), heads=8, kv_heads=2, queries=70, keys=(90, 200), causal=True
    )


def attended(seed: int = 8) -> bytes:
    answer = attention_calling.attend(attention_problem(seed), "cpu")
    return calling.bytes_of(answer.out) + calling.bytes_of(answer.lse)


def test_attention_by_many_threads(pool):
    expected = [attended(seed) for seed in range(4)]

    def work(worker: int) -> None:
        for turn in range(12):
            seed = (worker + turn) % 4
            assert attended(seed) == expected[seed], f"worker {worker}"

    with ThreadPoolExecutor(8) as executor:
        for done in [executor.submit(work, worker) for worker in range(8)]:
            done.result(timeout=PATIENCE)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_attention_after_fork(pool):
    expected = attended()

    def action() -> None:
        assert attended() == expected
        rc.set_num_threads(2)
        assert attended() == expected

    for _ in range(2):
        assert in_child(action) == 0
        assert attended() == expected


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_attention_in_multiprocessing(pool, method):
    expected = [attended(seed) for seed in range(2)]
    with multiprocessing.get_context(method).Pool(2) as workers:
        assert workers.map_async(attended, range(2)).get(timeout=2 * PATIENCE) == expected


def test_a_thread_may_keep_its_calls_to_itself():
    from robocache._core import stay_in_this_thread

    before = rc.num_threads()
    with ThreadPoolExecutor(1, initializer=stay_in_this_thread) as pool:
        assert pool.submit(rc.num_threads).result() == 1
        frames = np.arange(3 * 200 * 300 * 3, dtype=np.uint32).astype(np.uint8).reshape(3, 200, 300, 3)
        alone = pool.submit(rc.image, frames, (90, 120)).result()
    assert rc.num_threads() == before
    np.testing.assert_array_equal(alone, rc.image(frames, (90, 120)))
