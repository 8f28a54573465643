"""Calls of rc.Loader from a case's spec, and batches held against the oracle's."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from loader_cases import CACHES
from loader_oracle import Truth, digest
from loader_specs import SPECS

import robocache as rc

ALWAYS = ("episode", "time", "position")


def loader_of(cache: Any, spec: Mapping[str, Any], **more: Any) -> Any:
    """rc.Loader with this spec; `keys` become rc.Key."""
    arguments = {**spec, **more}
    if arguments.get("keys") is not None:
        arguments["keys"] = {name: key_of(given) for name, given in arguments["keys"].items()}
    return rc.Loader(cache, **arguments)


def key_of(given: Mapping[str, Any]) -> Any:
    options = dict(given)
    return rc.Key(options.pop("streams"), **options)


def to_numpy(array: Any) -> np.ndarray:
    """NumPy, torch or JAX. bfloat16 of torch as ml_dtypes has it."""
    if hasattr(array, "detach"):
        array = array.detach().cpu()
        if str(array.dtype) == "torch.bfloat16":
            import ml_dtypes
            import torch

            return array.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return array.numpy()
    return np.asarray(array)


def check_batch(
    found: Mapping[str, Any], expected: Mapping[str, np.ndarray], where: str = "", close: tuple[str, ...] = ()
) -> None:
    """That a batch has the oracle's bytes, of the keys `close` its values. A NaN may have any bits."""
    wanted = {*expected, "task_index"}
    extra = set(found) - wanted - {"row_valid"}
    assert not extra, f"{where}: keys that no one asked for: {sorted(extra)}"
    assert not wanted - set(found), f"{where}: keys that are missing: {sorted(wanted - set(found))}"
    for name, truth in expected.items():
        array = to_numpy(found[name])
        assert array.dtype == truth.dtype, f"{where}: {name} is {array.dtype}, not {truth.dtype}"
        assert array.shape == truth.shape, f"{where}: {name} is {array.shape}, not {truth.shape}"
        if name in close:
            np.testing.assert_allclose(array, truth, rtol=2e-6, atol=2e-6, err_msg=f"{where}: {name}")
        elif array.tobytes() != truth.tobytes():
            assert_equal_bits(f"{where}: {name}", array, truth)


def assert_equal_bits(where: str, array: np.ndarray, truth: np.ndarray) -> None:
    a, b = np.ascontiguousarray(array), np.ascontiguousarray(truth)
    bits = np.dtype(f"u{a.dtype.itemsize}")
    differs = a.view(bits) != b.view(bits)
    if a.dtype.kind not in "biu":
        differs &= ~(np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64)))
    places = np.argwhere(differs)
    if len(places):
        first = tuple(int(k) for k in places[0])
        raise AssertionError(
            f"{where}: {len(places)} of {a.size} elements differ, first at {first}: {a[first]!r}, expected {b[first]!r}"
        )


def check_tasks(loader: Any, truth: Truth, batch: Mapping[str, Any]) -> None:
    """That task_index names each episode's task in loader.tasks."""
    index = to_numpy(batch["task_index"])
    assert index.dtype == np.int64
    for number, task in zip(index.tolist(), truth.tasks(batch_numpy(batch)), strict=True):
        said = loader.tasks[number] if 0 <= number < len(loader.tasks) else ""
        assert (said or None) == task


def batch_numpy(batch: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: to_numpy(batch[name]) for name in ALWAYS}


def case_of(name: str, folder: Any) -> tuple[Any, dict[str, Any], Truth]:
    """The cache of a spec case, opened; its arguments; its oracle."""
    case = SPECS[name]
    path, episodes = CACHES[case.cache].write(folder)
    spec = dict(case.arguments)
    return rc.Cache(path), spec, Truth(episodes, spec)


GOLDEN = "504a817848eb53d1fb1b19ece59316453433d1fce3a8d95599c67b236ee4adb6"
GOLDEN_NAMES = (
    *("observation.state", "observation.state.valid", "observation.state.age"),
    *("action", "action.valid", "action.age", "episode", "time", "position"),
)


def golden_of(batch: Callable[[int], Mapping[str, Any]]) -> str:
    """One hash of the first 100 batches, by a function of their number."""
    made = hashlib.sha256()
    for number in range(100):
        found = batch(number)
        made.update(digest({name: to_numpy(found[name]) for name in GOLDEN_NAMES}, GOLDEN_NAMES).encode())
    return made.hexdigest()
