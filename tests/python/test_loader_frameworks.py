"""The loader in Lightning, Accelerate and JAX, and with functions of the user."""

import numpy as np
import pytest
from loader_small import BATCH, equal, len_of_words, made, passes, same, write

import robocache as rc

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch.utils.data import DataLoader  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings(r"ignore:os.fork\(\) was called:RuntimeWarning"),  # of JAX
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return write(tmp_path_factory.mktemp("loader") / "cache")


# ---- Lightning, Accelerate


def test_a_state_that_is_loaded_after_iter(cache):
    wanted = passes(made(cache), 2)
    first = made(cache)
    [next(batches) for batches in [iter(first)] for _ in range(5)]
    other = made(cache)
    batches = iter(other)
    other.load_state_dict(first.state_dict())
    assert len(other) == len(first) == len(made(cache))  # Lightning counts the batches before the state as well
    assert same(list(batches), wanted[5 : len(first)])


def lightning_module(lightning):
    class Policy(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer, self.seen = torch.nn.Linear(3, 2), []

        def training_step(self, batch, number):
            self.seen.append(int(batch["position"][0]))
            return self.layer(batch["state"][:, -1]).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 1e-3)

    return Policy()


@pytest.mark.filterwarnings("ignore")  # of Lightning: how many workers, which callbacks
@pytest.mark.parametrize("after", [5, "whole"])
def test_lightning_goes_on_where_it_stopped(cache, tmp_path, after):
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    loader = made(cache, device="cpu")
    after = len(loader) if after == "whole" else after
    options = {"max_epochs": 2, "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    options |= {"accelerator": "cpu", "default_root_dir": tmp_path}
    saving = lightning.callbacks.ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=after, save_top_k=-1)
    first, second = lightning_module(lightning), lightning_module(lightning)
    lightning.Trainer(callbacks=[saving], **options).fit(first, loader)
    assert first.seen == [BATCH * k for k in range(len(first.seen))]
    assert len(first.seen) >= 2 * len(loader) - 1
    checkpoint = tmp_path / f"step={after}.ckpt"
    lightning.Trainer(**options).fit(second, made(cache, device="cpu"), ckpt_path=checkpoint)
    assert second.seen == first.seen[after:]


def test_accelerate_leaves_a_loader_as_it_is(cache):
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    loader = made(cache, device="cpu")
    accelerator = accelerate.Accelerator(cpu=True)
    prepared, _ = accelerator.prepare(loader, torch.nn.Linear(3, 2))
    assert prepared is loader
    # One process: nothing is shared out, so a DataLoader may be prepared.
    batches = accelerator.prepare(DataLoader(made(cache).iterable(), batch_size=None))
    assert same(passes(batches, 1), passes(made(cache), 1))


@pytest.mark.parametrize("dispatch", [True, False])
@pytest.mark.parametrize("workers", [0, 1])
def test_accelerate_must_not_share_out_twice(cache, workers, dispatch):
    module = pytest.importorskip("accelerate.data_loader", reason="accelerate is not installed")
    batches = DataLoader(made(cache, rank=0, world=2).iterable(), batch_size=None, num_workers=workers)
    options = {"dispatch_batches": dispatch, "put_on_device": True}
    with pytest.raises(ValueError, match=r"Accelerate has prepared this DataLoader .* \(rank 0 of 2\)"):
        next(iter(module.prepare_data_loader(batches, torch.device("cpu"), 2, 0, **options)))


# ---- JAX


def test_jax(cache):
    jax = pytest.importorskip("jax", reason="jax is not installed")
    wanted = made(cache).batch(1)
    for device in (None, "cpu"):
        loader = made(cache, arrays="jax", device=device)
        batch = loader.batch(1)
        kinds = {name: isinstance(value, jax.Array) for name, value in batch.items()}
        assert kinds == {name: value.dtype != np.int64 for name, value in wanted.items()}
        assert equal(batch, wanted)
        assert {name: value.dtype for name, value in batch.items()} == {n: v.dtype for n, v in wanted.items()}
        assert loader.state_after(batch)["position"] == 2 * BATCH
        jax.jit(lambda state: state * 2)(batch["state"])


def test_jax_shares_memory_that_is_aligned():
    pytest.importorskip("jax", reason="jax is not installed")
    from robocache._loader.placement import jax_array

    for tensor in (torch.arange(640.0), torch.zeros(64, 5, dtype=torch.bool), torch.ones(64, dtype=torch.bfloat16)):
        assert tensor.data_ptr() % 64 == 0
        assert jax_array(tensor).unsafe_buffer_pointer() == tensor.data_ptr()
        if tensor.dtype != torch.bfloat16:
            assert jax_array(tensor.numpy()).unsafe_buffer_pointer() == tensor.data_ptr()


def test_jax_with_64_bits(cache):
    jax = pytest.importorskip("jax", reason="jax is not installed")
    keys = {"state": rc.Key("joints", dtype="float64")}
    with pytest.raises(ValueError, match=r'key "state" has dtype="float64", which JAX has only after .*jax_enable_x64'):
        made(cache, keys=keys, arrays="jax")
    jax.config.update("jax_enable_x64", True)
    try:
        batch = made(cache, keys=keys, arrays="jax").batch(0)
        assert all(isinstance(value, jax.Array) for value in batch.values())
        assert equal(batch, made(cache, keys=keys).batch(0))
    finally:
        jax.config.update("jax_enable_x64", False)


def test_jax_is_not_for_workers(cache):
    pytest.importorskip("jax", reason="jax is not installed")
    batches = DataLoader(made(cache, arrays="jax").iterable(), batch_size=None, num_workers=1)
    with pytest.raises(ValueError, match='arrays="jax" makes batches in the process itself'):
        next(iter(batches))


# ---- Functions of the user


def test_tokenize_runs_once_for_each_task(cache):
    seen = []

    def tokenize(text):
        seen.append(text)
        return len_of_words(text)

    loader = made(cache, tokenize=tokenize)
    rows = {}
    for batch in loader:
        for row, task in enumerate(batch["task_index"]):
            tokens, valid = batch["task_tokens"][row], batch["task_tokens.valid"][row]
            rows[loader.tasks[task]] = tokens.tolist(), valid.tolist()
    assert rows == {"pick": ([4, 0], [True, False]), "place it": ([5, 2], [True, True])}
    assert seen == ["pick", "place it"]


@pytest.mark.parametrize("device", [None, "cpu"])
def test_transform_has_the_whole_batch(cache, device):
    def transform(batch):
        assert batch["action"].shape[0] == BATCH
        return {"both": batch["action"].sum() + batch["state"].sum(), "position": batch["position"]}

    loader = made(cache, transform=transform, device=device)
    batch = next(iter(loader))
    assert set(batch) == {"both", "position"}
    assert loader.state_after(batch) == loader.state_dict()
