"""Backends as fixtures. A backend that cannot run here is skipped with its own words for why."""

from __future__ import annotations

import os
import signal
import sys

# A shell ignores Ctrl-C in what it starts in the background, and processes inherit that; tests send it to theirs.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# JAX takes three quarters of a GPU's memory when it starts. Tests run in several processes, next to torch and CuPy.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import calling
import pytest

import robocache as rc
from robocache import _versions

try:
    from hypothesis import settings
except ImportError:
    pass
else:
    settings.register_profile("robocache", deadline=None, max_examples=60, derandomize=True)
    settings.load_profile("robocache")


def pytest_collection_modifyitems(items):
    """torch.compile with fullgraph, as the tests call it, is served from torch 2.5 on."""
    torch = sys.modules.get("torch")
    if torch is not None and _versions.numbers(torch.__version__) < _versions.OLDEST_TRACED_TORCH:
        for item in items:
            if "compile" in item.name:
                item.add_marker(pytest.mark.skip(reason="torch.compile(fullgraph=True) needs torch 2.5"))


@pytest.fixture(params=["reference", "cpu", "cuda"])
def backend(request):
    """A backend's name and how to bring NumPy arrays to where it runs."""
    reason = calling.unavailable(request.param)
    if reason is None and request.param == "cuda":
        reason = no_cuda_arrays()
    if reason:
        pytest.skip(reason)
    return request.param, calling.to_cuda if request.param == "cuda" else calling.keep


@pytest.fixture(params=calling.simd_targets())
def simd(request):
    before = rc.simd_target()
    rc.set_simd_target(request.param)
    yield request.param
    rc.set_simd_target(before)


@pytest.fixture
def cuda():
    """Brings NumPy arrays to the GPU."""
    reason = calling.unavailable("cuda") or no_cuda_arrays()
    if reason:
        pytest.skip(reason)
    yield calling.to_cuda
    rc.synchronize()


def no_cuda_arrays() -> str | None:
    try:
        import torch
    except ImportError:
        return "cuda: no torch to hold arrays on the GPU"
    return None if torch.cuda.is_available() else "cuda: torch sees no GPU"
