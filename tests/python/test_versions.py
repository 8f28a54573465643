"""Which versions of other libraries are served, and what is said of older ones."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap
import tomllib

import pytest

import robocache as rc
from robocache import _versions

PYPROJECT = pathlib.Path(__file__).parents[2] / "pyproject.toml"
SENTENCE = "torch 2.3.1 is older than 2.4, the oldest that robocache serves"

# What calls ask of an old torch before they know that it is old.
OLD_TORCH = """
    __version__ = "2.3.1+cu121"
    class Tensor: pass
"""


def fake(folder: pathlib.Path, name: str, code: str, version: str | None = None) -> str:
    """A module of this name, and a distribution where `version` is given, in front of what is installed."""
    (folder / f"{name}.py").write_text(textwrap.dedent(code))
    if version is not None:
        about = folder / f"{name}-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


def run(code: str, path: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("version", "numbers"),
    [("2.4.1+cu121", (2, 4, 1)), ("2.10.0", (2, 10, 0)), ("2.4.0a0+gitf1c", (2, 4, 0)), ("unknown", ()), ("", ())],
)
def test_numbers(version, numbers):
    assert _versions.numbers(version) == numbers


@pytest.mark.parametrize("version", ["2.4", "2.4.0", "2.4.0a0+git1", "2.10.0", "3.0", "unknown", "", None])
def test_served(version):
    assert _versions.too_old("torch", version) is None


@pytest.mark.parametrize(
    ("name", "version", "sentence"),
    [
        ("torch", "2.3.1", SENTENCE),
        ("torch", "1.13.0+cpu", "torch 1.13.0+cpu is older than 2.4, the oldest that robocache serves"),
        ("numpy", "1.25.2", "numpy 1.25.2 is older than 1.26, the oldest that robocache serves"),
        ("jax", "0.4.9", "jax 0.4.9 is older than 0.4.26, the oldest that robocache serves"),
    ],
)
def test_too_old(name, version, sentence):
    assert _versions.too_old(name, version) == sentence


def test_pyproject_has_the_same_bounds():
    if not PYPROJECT.exists():
        pytest.skip("this is no checkout")
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    needs = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    for name, oldest in _versions.OLDEST.items():
        assert f"{name}>={'.'.join(map(str, oldest))}" in needs


def test_this_torch_is_a_backend():
    torch = pytest.importorskip("torch")
    _, available, description = rc.backends()[-1]
    assert available
    plain = torch.__version__.split("+")[0]  # without +cpu or +cu130
    assert description.startswith(f"torch {plain}, on any of its devices")


def test_an_old_torch_hurts_nobody_else(tmp_path):
    """NumPy and JAX are served beside it; each thing that needs torch says the one sentence."""
    code = """
        import numpy as np, torch
        import robocache as rc
        from robocache.cli import doctor

        times = np.arange(4) * 1000
        assert rc.resample(np.arange(4.0), times, np.array([500])).tolist() == [0.5]
        assert rc.resample(np.arange(4.0), list(times), rc.Timeline(0, rate=1e6, count=2)).tolist() == [0, 1]
        grid = rc.Grid((0, 0, 0), 1, (2, 2, 2))
        assert rc.voxelize(np.zeros((5, 3), np.float32), grid, into=None).values.sum() == 5
        rc.TsdfVolume(grid, 0.5).integrate(np.ones((4, 4), np.float32), (1, 1, 2, 2))
        assert rc.attention(*[np.ones((1, 1, 2, 32), np.float32)] * 3).shape == (1, 1, 2, 32)
        try:
            import jax.numpy as jnp
        except ImportError:
            pass
        else:
            seconds = jnp.arange(4, dtype=jnp.float32)
            assert rc.resample(seconds, seconds, jnp.float32([0.5])).tolist() == [0.5]

        def inside_the_patch():
            with rc.attention_patch():
                pass

        tensor = torch.Tensor()
        for call in (
            lambda: rc.resample(tensor, tensor, tensor),
            lambda: rc.align([rc.Stream(tensor, tensor)], tensor),
            lambda: rc.Stream(tensor, np.arange(4)),
            lambda: rc.voxelize(tensor, grid),
            lambda: rc.attention(tensor, tensor, tensor),
            lambda: rc.TsdfVolume(grid, 0.5, device="cpu"),
            inside_the_patch,
        ):
            try:
                call()
            except ImportError as error:
                print(error)
        name, available, said = rc.backends()[-1]
        assert (name, available) == ("torch", False)
        print(said)
        report = doctor.examine()
        assert report["backends"]["torch"] == {"works": False, "detail": said}
        assert any(line.endswith("not here: " + said) for line in doctor.lines(report))
    """
    said = run(code, fake(tmp_path, "torch", OLD_TORCH)).splitlines()
    assert said == [SENTENCE.replace("2.3.1", "2.3.1+cu121")] * 8


def test_an_old_torch_that_nobody_imported(tmp_path):
    code = "import sys, robocache as rc; print(*rc.backends()[-1], 'torch' in sys.modules)"
    path = fake(tmp_path, "torch", "raise AssertionError('imported')", "2.3.1")
    assert run(code, path) == f"torch False {SENTENCE} False\n"


def test_an_old_numpy(tmp_path):
    code = """
        try:
            import robocache
        except ImportError as error:
            print(error)
    """
    path = fake(tmp_path, "numpy", "__version__ = '1.25.2'")
    assert run(code, path) == "numpy 1.25.2 is older than 1.26, the oldest that robocache serves\n"


def test_an_old_jax(tmp_path):
    code = """
        import jax, numpy as np
        import robocache as rc
        assert rc.resample(np.arange(2.0), np.array([0, 1000]), np.array([500])).tolist() == [0.5]
        try:
            rc.resample(jax.Array(), jax.Array(), jax.Array())
        except ImportError as error:
            print(error)
    """
    path = fake(tmp_path, "jax", "__version__ = '0.4.25'\nclass Array: pass\n")
    assert run(code, path) == "jax 0.4.25 is older than 0.4.26, the oldest that robocache serves\n"


@pytest.mark.parametrize(
    ("call", "what"),
    [
        ("with rc.attention_patch(): pass", "attention_patch"),
        ("rc.TsdfVolume(rc.Grid((0, 0, 0), 1, (1, 1, 1)), 1, device='cuda')", "tsdf: device='cuda'"),
    ],
)
def test_without_torch(call, what):
    code = f"""
        import sys
        sys.modules["torch"] = None  # as if it were not installed
        import robocache as rc
        print(*rc.backends()[-1])
        try:
            {call}
        except ModuleNotFoundError as error:
            print(error, error.name)
    """
    said = run(code, os.environ.get("PYTHONPATH", "")).splitlines()
    assert said[0] == "torch False torch is not installed"
    assert said[1] == f"{what} needs torch, which is not installed: pip install 'torch>=2.4' torch"
