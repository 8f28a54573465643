"""Data sets for torch's DataLoader: windows by number (map-style), or batches in the loader's order (iterable)."""

from __future__ import annotations

import multiprocessing.context
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from robocache import _core
from robocache._loader import ranks
from robocache._loader.engine import Rows
from robocache._loader.shared_passes import SharedPasses, batches_of
from robocache._loader.state import State, cache_fingerprint, spec_fingerprint

if TYPE_CHECKING:
    from robocache._loader.loader import Batch, Loader

Integers = NDArray[np.int64]


class WindowRows(Sequence[dict[str, Any]]):
    """The rows of a batch as a list of dicts, which `DataLoader` collates. `batch` is the whole batch."""

    def __init__(self, batch: Batch, count: int) -> None:
        self.batch, self._count = batch, count
        self._rows: list[dict[str, Any]] | None = None  # made on first use

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, k: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, k: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, k: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if self._rows is None:
            self._check()
            self._rows = [{name: value[row] for name, value in self.batch.items()} for row in range(self._count)]
        return self._rows[k]

    def _check(self) -> None:
        advice = "give the DataLoader collate_fn=dataset.collate, which takes batches as they are"
        if not isinstance(self.batch, Mapping):
            raise TypeError(
                f"Loader.dataset: transform= made a {type(self.batch).__name__}, which has no rows; {advice}"
            )
        for name, value in self.batch.items():
            if isinstance(value, (str, Mapping)) or not hasattr(value, "__len__") or len(value) != self._count:
                raise ValueError(
                    f'Loader.dataset: transform= made "{name}", which has no row for each of the {self._count} '
                    f"windows; {advice}"
                )


class WindowDataset(Dataset[dict[str, Any]]):
    """A loader's windows by number, for a `DataLoader` with a sampler. A list of numbers costs one call.

    Attributes:
        epoch: The epoch of the draws (crops, drops), and of the permutation if windows come in the loader's order.
    """

    def __init__(self, loader: Loader, in_order: bool = False) -> None:
        self.loader, self.in_order = loader, in_order
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # persistent workers see changes

    @property
    def epoch(self) -> int:
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """The epoch of the next batches. Workers see it too."""
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise ValueError(f"Loader.dataset: epoch is {epoch!r}; expected an int from 0 on")
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        return self.loader.order.length if self.in_order else len(self.loader.windows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> WindowRows:
        enter_worker(self.loader)
        given = np.asarray(numbers)
        if given.ndim != 1 or len(given) == 0 or given.dtype.kind not in "iu":
            raise TypeError(f"Loader.dataset: expected numbers of windows, got {numbers!r}")
        wanted = given.astype(np.int64)
        wanted[wanted < 0] += len(self)
        outside = (wanted < 0) | (wanted >= len(self))
        if outside.any():
            raise IndexError(f"Loader.dataset: there is no window {given[outside][0]} among {len(self):,}")
        loader = self.loader
        positions = self.epoch * len(self) + wanted
        windows = numbers_at(loader, positions) if self.in_order else wanted
        rows = Rows(*loader.windows.at(windows))
        return WindowRows(loader._make_batch(rows, positions, None, draws=loader._training), len(wanted))

    @staticmethod
    def collate(rows: WindowRows) -> Any:
        """For `collate_fn`: the whole batch as torch tensors, without taking its rows apart."""
        return torch.utils.data.default_convert(rows.batch)

    def __getstate__(self) -> dict[str, Any]:
        if is_starting_a_process():
            refuse_other_processes(self.loader)
        return vars(self)


def numbers_at(loader: Loader, positions: Integers) -> Integers:
    """The window numbers at these positions. A run of consecutive positions costs one call."""
    order = loader.order
    cuts = np.flatnonzero(np.diff(positions) != 1) + 1
    found = []
    for run in np.split(positions, cuts):
        first, count = int(run[0]), len(run)
        if order.cumulated is None:
            found.append(_core.window_order(order.windows, order.seed, first, count, order.shuffle))
        else:
            found.append(_core.weighted_order(order.cumulated, order.seed, first, count))
    return np.concatenate(found)


class BatchDataset(IterableDataset[Any]):
    """A loader's batches, for a `DataLoader` with `batch_size=None`. Workers share the batches of a pass."""

    def __init__(self, loader: Loader) -> None:
        ranks.compare(loader)
        cache_fingerprint(loader), spec_fingerprint(loader)  # computed here once, not in each worker
        if loader._passes is None:
            loader._passes = SharedPasses(loader._position)
        self.loader, self._passes = loader, loader._passes

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        refuse_accelerate(self.loader)
        refuse_batch_size(sys._getframe(1))
        enter_worker(self.loader)
        info = get_worker_info()
        if info is None:
            return Pass(self.loader)
        return WorkerPass(self.loader, self._passes, info.id, info.num_workers, info.seed - info.id)

    @property
    def generator(self) -> None:
        """None. Accelerate reads it before it distributes the batches among the ranks; on several ranks that raises."""
        refuse_accelerate(self.loader)

    def __getstate__(self) -> dict[str, Any]:
        refuse_accelerate(self.loader)
        if is_starting_a_process():
            refuse_other_processes(self.loader)
            return {"loader": self.loader, "_passes": self._passes}
        return {"loader": self.loader}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.loader = state["loader"]
        self._passes = self.loader._passes = state.get("_passes") or SharedPasses(self.loader._position)


class Pass:
    """A pass without workers, with the state that StatefulDataLoader asks for."""

    def __init__(self, loader: Loader) -> None:
        self._loader, self._batches = loader, iter(loader)

    def __iter__(self) -> Pass:
        return self

    def __next__(self) -> Batch:
        return next(self._batches)

    def state_dict(self) -> dict[str, Any]:
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if "pass_start" in state:
            raise ValueError(
                "Loader.iterable: the state is of a StatefulDataLoader with workers; give this one the same number of "
                "workers, or load loader.state_after(batch)"
            )
        self._loader.load_state_dict(state)


class WorkerPass:
    """The batches of a pass that one worker makes: w, w + n, ..."""

    def __init__(self, loader: Loader, passes: SharedPasses, worker: int, workers: int, seed: int) -> None:
        self._loader, self._passes, self._worker, self._workers, self._seed = loader, passes, worker, workers, seed
        self._position: int | None = None  # where the pass starts. None: not known yet
        self._number = worker  # the number of the next batch in the pass

    def __iter__(self) -> WorkerPass:
        return self

    def _start(self) -> int:
        if self._position is None:
            self._position = self._passes.start_of(self._loader.order, self._seed, self._worker)
        return self._position

    def __next__(self) -> Batch:
        order = self._loader.order
        made = batches_of(order, self._start())
        if self._number >= made.number:
            raise StopIteration
        batch = self._loader._batch(made.start + self._number * order.global_batch)
        self._number += self._workers
        return batch

    def state_dict(self) -> dict[str, Any]:
        said = State.of(self._loader, self._start()).to_json()
        return said | {
            "pass_start": said["position"],
            "batch": self._number,
            "workers": self._workers,
            "global_batch": self._loader.order.global_batch,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        kept = dict(state)
        mine = {"workers": self._workers, "global_batch": self._loader.order.global_batch}
        if not {"pass_start", "batch", *mine} <= set(kept):
            raise ValueError(
                "Loader.iterable: the state is of a StatefulDataLoader without workers; give this one num_workers=0, "
                "or load loader.state_after(batch)"
            )
        for name, here in mine.items():
            there = kept.pop(name)
            if there != here:
                what = "workers" if name == "workers" else "windows in a global batch (batch_size x world)"
                raise ValueError(
                    f"Loader.iterable: the state is of a StatefulDataLoader with {there} {what}, and this one has "
                    f"{here}; to go on with another number, load loader.state_after(batch) into the loader"
                )
        start, number = kept.pop("pass_start"), kept.pop("batch")
        State.from_json(kept).checked(self._loader)
        self._position, self._number = int(start), int(number)
        self._passes.resume(self._position, self._worker)


def is_starting_a_process() -> bool:
    return multiprocessing.context.get_spawning_popen() is not None


def enter_worker(loader: Loader) -> None:
    """Gives a worker of a DataLoader its part of the threads. Raises if workers cannot make this loader's arrays."""
    info = get_worker_info()
    if info is None or _entered == [os.getpid()]:
        return
    refuse_other_processes(loader)
    _core.set_num_threads(max(1, _core.num_threads() // info.num_workers))
    _entered[:] = [os.getpid()]


_entered: list[int] = []  # the id of this process if it is a worker that has entered


def refuse_other_processes(loader: Loader) -> None:
    """Raises if workers cannot make this loader's arrays."""
    device = loader.placement.device
    if loader.placement.arrays == "jax":
        raise ValueError(
            'Loader: arrays="jax" makes batches in the process itself, since JAX does not survive a fork; give the '
            "DataLoader num_workers=0, or iterate over the loader"
        )
    if device is not None and device.type != "cpu":
        raise ValueError(
            f'Loader: device="{device}" makes batches in the process itself; give the DataLoader num_workers=0, or '
            "iterate over the loader"
        )


def refuse_batch_size(caller: FrameType) -> None:
    """Raises if a DataLoader makes batches of batches, as it does unless it has batch_size=None."""
    if caller.f_globals.get("__name__") == "torch.utils.data._utils.fetch" and caller.f_locals.get("auto_collation"):
        raise ValueError(
            "Loader.iterable: it makes whole batches, and this DataLoader has a batch_size of its own; give it "
            "batch_size=None"
        )


def refuse_accelerate(loader: Loader) -> None:
    """Raises if Accelerate distributes batches among the ranks, which the loader has already done."""
    if loader.world == 1 or "accelerate" not in sys.modules:
        return
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "accelerate.data_loader":
            raise ValueError(
                "Loader: Accelerate has prepared this DataLoader and distributes its batches among the ranks. The "
                f"loader has already done that (rank {loader.rank} of {loader.world}): most windows would be lost. "
                "Leave the loader out of accelerator.prepare(...) and move batches to accelerator.device"
            )
        frame = frame.f_back  # type: ignore[assignment]
