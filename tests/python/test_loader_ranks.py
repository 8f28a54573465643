"""Loaders of several ranks: gloo on the CPU, worlds of 1 to 8, restarts into another world, torchrun with DDP."""

import contextlib
import multiprocessing
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import robocache as rc

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings(r"ignore:os.fork\(\) was called:RuntimeWarning"),
]
PATIENCE = 120


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    path = tmp_path_factory.mktemp("ranks") / "cache"
    random = np.random.default_rng(0)
    with rc.CacheWriter(path) as writer:
        for episode in range(7):
            times = np.arange(20 + episode, dtype=np.int64) * 10**8
            writer.add({"q": rc.Stream(random.standard_normal((len(times), 3)).astype("f4"), times)}, name=f"{episode}")
    return str(path)


def made(cache, **changes):
    return rc.Loader(cache, **({"batch_size": 4, "rate": 10, "keys": {"q": rc.Key("q", steps=[0, 1])}} | changes))


def said_by(rank, world, folder, sending, task, arguments):
    with contextlib.suppress(BrokenPipeError):
        try:
            torch.distributed.init_process_group(
                "gloo", init_method=f"file://{folder}/store-{world}", rank=rank, world_size=world
            )
            sending.send((True, task(*arguments)))
            torch.distributed.barrier()
        except Exception as error:  # the test raises it
            sending.send((False, error))


def in_world(world, folder, task, *arguments):
    """What the task returns in each rank of a process group."""
    context = multiprocessing.get_context("fork")
    (Path(folder) / f"store-{world}").unlink(missing_ok=True)
    pipes = [context.Pipe(duplex=False) for _ in range(world)]
    processes = [
        context.Process(target=said_by, args=(rank, world, folder, pipes[rank][1], task, arguments))
        for rank in range(world)
    ]
    for process in processes:
        process.start()
    answers = []
    for receiving, _ in pipes:
        assert receiving.poll(PATIENCE), "a rank says nothing"
        answers.append(receiving.recv())
    for process in processes:
        process.join(PATIENCE)
    for fine, answer in answers:
        if not fine:
            raise answer
    return [answer for _, answer in answers]


def take(cache, batches, state, size):
    """The windows of so many batches, by position, and the state after them."""
    loader = made(cache, batch_size=size)
    if state is not None:
        loader.load_state_dict(state)
    rows = []
    while len(rows) < batches:
        for batch in loader:
            rows.append((batch["position"].tolist(), batch["episode"].tolist(), batch["time"].tolist()))
            if len(rows) == batches:
                break
    return (loader.rank, loader.world), rows, loader.state_dict()


def windows_of(answers):
    """{position: (episode, time)} of all ranks; no position may come twice."""
    found = {}
    for _, rows, _ in answers:
        for batch in rows:
            for position, *window in zip(*batch, strict=True):
                assert position not in found
                found[position] = tuple(window)
    return found


def test_worlds_share_out_and_go_on_in_each_other(cache, tmp_path):
    [[_, rows, _]] = in_world(1, tmp_path, take, cache, 120, None, 4)
    wanted = windows_of([(0, rows, 0)])
    found, state, batches = {}, None, 5
    for world, size in ((1, 4), (2, 4), (3, 5), (4, 2), (8, 1), (2, 3)):
        answers = in_world(world, tmp_path, take, cache, batches, state, size)
        assert [who for who, _, _ in answers] == [(rank, world) for rank in range(world)]
        assert {len(rows) for _, rows, _ in answers} == {batches}
        states = [after for _, _, after in answers]
        assert states == states[:1] * world
        new, state = windows_of(answers), states[0]
        assert not found.keys() & new.keys()
        found |= new
        assert sorted(found) == list(range(state["position"]))
    assert len(found) > len(made(cache).windows)  # an epoch and more
    assert found == {position: wanted[position] for position in found}
    epoch = {found[position] for position in range(len(made(cache).windows))}
    assert len(epoch) == len(made(cache).windows)


def differs(cache):
    rank = torch.distributed.get_rank()
    try:
        next(iter(made(cache, seed=int(rank == 1))))
    except ValueError as error:
        return str(error)
    return "no error"


def test_ranks_that_differ_say_so(cache, tmp_path):
    answers = in_world(2, tmp_path, differs, cache)
    assert answers[0].startswith("Loader: rank 0 and rank 1 differ in seed (0 and 1); give all ranks the same cache")
    assert answers[1].startswith("Loader: rank 1 and rank 0 differ in seed (1 and 0)")


def through_workers(cache):
    from torch.utils.data import DataLoader

    loader = made(cache)
    batches = DataLoader(loader.iterable(), batch_size=None, num_workers=1)
    rows = [(b["position"].tolist(), b["episode"].tolist(), b["time"].tolist()) for b in batches]
    return 0, rows, len(loader)


def test_workers_of_ranks(cache, tmp_path):
    answers = in_world(2, tmp_path, through_workers, cache)
    assert [len(rows) for _, rows, _ in answers] == [length for _, _, length in answers]
    found = windows_of(answers)
    assert sorted(found) == list(range(len(found)))
    assert len(found) >= len(made(cache).windows)


def test_the_environment_says_the_rank(cache, monkeypatch):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "5")
    loader = made(cache)
    assert (loader.rank, loader.world) == (2, 5)
    assert loader.batch(0)["position"].tolist() == [8, 9, 10, 11]
    monkeypatch.setenv("RANK", "5")
    with pytest.raises(ValueError, match="rank is 5, outside of a world of 5; expected from 0 to 4"):
        made(cache)
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(ValueError, match="RANK='first' and WORLD_SIZE='5'; expected numbers"):
        made(cache)
    assert made(cache, rank=1, world=2).rank == 1
    with pytest.raises(ValueError, match="give rank and world together"):
        made(cache, rank=1)


# It ends without the interpreter's finalization, in which torch's gloo may abort (pytorch/pytorch#179291).
TRAINING = """
import os, sys, torch, robocache as rc
torch.distributed.init_process_group("gloo")
loader = rc.Loader(sys.argv[1], batch_size=4, rate=10, keys={"q": rc.Key("q", steps=[0, 1])}, device="cpu")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
steps = 0
for _ in range(2):
    for batch in loader:
        loss = (model(batch["q"][:, 0]) - batch["q"][:, 1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
weights = [torch.zeros(3, 3) for _ in range(loader.world)]
torch.distributed.all_gather(weights, model.module.weight.data)
assert all(torch.equal(each, weights[0]) for each in weights)
print(f"rank {loader.rank} of {loader.world}: {steps} steps, position {loader.state_dict()['position']}", flush=True)
torch.distributed.destroy_process_group()
os._exit(0)
"""


def test_torchrun_with_ddp(cache, tmp_path):
    (tmp_path / "train.py").write_text(TRAINING)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(tmp_path / "train.py"), cache]
    done = subprocess.run([sys.executable, *launch], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-4000:]
    windows = len(made(cache).windows)
    steps = -(-2 * windows // 8)
    for rank in range(2):
        assert f"rank {rank} of 2: {steps} steps, position {steps * 8}" in done.stdout
