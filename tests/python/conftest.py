"""Backends as fixtures. Where a backend cannot run, one item stands for all its tests, is skipped, and says why."""

from __future__ import annotations

import functools
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

BACKENDS = ("reference", "cpu", "cuda")

try:
    from hypothesis import settings
except ImportError:
    pass
else:
    settings.register_profile("robocache", deadline=None, max_examples=60, derandomize=True)
    settings.load_profile("robocache")


class NotRun(pytest.Item):
    """Stands for all tests of a backend that cannot run here, so that they count as one skip."""

    def __init__(self, *, count, reason, **options):
        super().__init__(**options)
        self.count, self.reason = count, reason

    def runtest(self):
        name, _, why = self.reason.partition(": ")
        pytest.skip(f"{name}: {self.count:,} {'case' if self.count == 1 else 'cases'} not run: {why}")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(session, config, items):
    """After -k and the like have chosen: what cannot run here is deselected, and one item stands for it."""
    result = yield
    torch = sys.modules.get("torch")
    if torch is not None and _versions.numbers(torch.__version__) < _versions.OLDEST_TRACED_TORCH:
        for item in items:
            if "compile" in item.name:
                item.add_marker(pytest.mark.skip(reason="torch.compile(fullgraph=True) needs torch 2.5"))
    for name in BACKENDS:
        theirs = [item for item in items if needs(item, name)]
        if theirs and (reason := unavailable(name)):
            config.hook.pytest_deselected(items=theirs)
            stand_in = NotRun.from_parent(session, name=name, nodeid=name, count=len(theirs), reason=reason)
            items[:] = [item for item in items if not needs(item, name)] + [stand_in]
    return result


def needs(item, backend):
    """Whether a test has a parameter `backend` of this name, or the fixture of this name."""
    callspec = getattr(item, "callspec", None)
    chosen = callspec is not None and callspec.params.get("backend") == backend
    return chosen or backend in getattr(item, "fixturenames", ())


@functools.cache
def unavailable(backend: str) -> str | None:
    """Why tests of a backend cannot run here; None where they can."""
    return calling.unavailable(backend) or (no_cuda_arrays() if backend == "cuda" else None)


@pytest.fixture(params=BACKENDS)
def backend(request):
    """A backend's name and how to bring NumPy arrays to where it runs."""
    if reason := unavailable(request.param):
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
    if reason := unavailable("cuda"):
        pytest.skip(reason)
    yield calling.to_cuda
    rc.synchronize()


def no_cuda_arrays() -> str | None:
    try:
        import torch
    except ImportError:
        return "cuda: no torch to hold arrays on the GPU"
    return None if torch.cuda.is_available() else "cuda: torch sees no GPU"
