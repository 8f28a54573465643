"""What `import robocache` loads, and what the package carries for type checkers."""

from __future__ import annotations

import importlib.util
import pathlib
import subprocess
import sys

import pytest

import robocache as rc

REPOSITORY = pathlib.Path(__file__).parents[2]
PACKAGE = pathlib.Path(rc.__file__).parent
HEAVY = ["torch", "jax", "cupy", "typer", "rich", "matplotlib", "scipy", "ml_dtypes", "triton"]


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300, check=False)


def test_import_is_light():
    """Only NumPy comes along; the rest is looked up where a user has imported it."""
    code = f"import sys, robocache; print(*[name for name in {HEAVY} if name in sys.modules])"
    done = run("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_logs_are_loaded_when_they_are_asked_for():
    code = (
        "import sys, robocache as rc; later = {'_cache', '_export', '_recording', '_sync', 'mcap'};"
        "assert not later & {name.partition('.')[2] for name in sys.modules if name.startswith('robocache.')};"
        "assert {*rc.__all__, 'mcap'} <= set(dir(rc));"
        "from robocache import mcap, Recording; assert mcap.Reader and rc.mcap is mcap;"
        "assert rc.Recording is Recording and rc.Cache.__module__ == Recording.__module__ == 'robocache';"
        "from robocache import *; assert open is rc.open; rc.nothing"
    )
    done = run("-c", code)
    assert done.stderr.endswith("AttributeError: module 'robocache' has no attribute 'nothing'\n"), done.stderr


def test_tab_shows_what_users_need():
    """Also after every module was loaded: each import puts its submodule into the package."""
    code = (
        "import types, robocache as rc; [getattr(rc, name) for name in rc.__all__]; shown = dir(rc);"
        "assert shown == sorted(set(rc.__all__)), shown;"
        "assert [n for n in shown if n.startswith('_')] == ['__version__'];"
        "assert [n for n in shown if isinstance(getattr(rc, n), types.ModuleType)] == ['mcap'];"
        "assert not {'TYPE_CHECKING', 'Any', 'cli'} & set(shown)"
    )
    done = run("-c", code)
    assert done.returncode == 0, done.stderr


def test_a_numpy_call_is_light():
    code = (
        "import sys, numpy, robocache;"
        "robocache.resample(numpy.zeros((3, 2)), numpy.arange(3), numpy.array([0, 1]));"
        f"print(*[name for name in {HEAVY} if name in sys.modules])"
    )
    done = run("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_the_package_is_typed():
    assert (PACKAGE / "py.typed").exists()
    stub = PACKAGE / "_core.pyi"
    assert stub.exists()
    for name in (
        "resample",
        "align",
        "fuse",
        "read_cloud",
        "read_depth",
        "voxelize",
        "voxelize_depth",
        "voxel_downsample",
        "tsdf_integrate",
        "backends",
        "synchronize",
    ):
        assert f"def {name}(" in stub.read_text()


def test_public_names():
    names = [
        "resample",
        "align",
        "fuse",
        "read_cloud",
        "read_depth",
        "voxelize",
        "voxelize_depth",
        "voxel_downsample",
        "camera_rays",
        "Grid",
        "Voxels",
        "SparseVoxels",
        "Downsampled",
        "Dropped",
        "TsdfVolume",
        "attention",
        "attention_patch",
        "describe_attention",
        "register_transformers",
        "Mask",
        "Cloud",
        "Stream",
        "Timeline",
        "Aligned",
        "Fused",
        "backends",
        "synchronize",
        "num_threads",
        "set_num_threads",
        "simd_target",
        "simd_targets",
        "set_simd_target",
        "FileError",
        "open",
        "mcap",
        "sync_report",
        "Recording",
        "Episode",
        "RecordedStream",
        "Cache",
        "CacheWriter",
        "CacheAligned",
        "CacheReport",
        "verify_cache",
        "export",
        "SyncReport",
        "CudaError",
        "__version__",
    ]
    for name in names:
        assert hasattr(rc, name), name
        if not name.startswith("_"):
            assert name in rc.__all__
    assert set(rc.__all__) - {"__version__"} <= set(names), "a public name that this test does not know"
    assert issubclass(rc.FileError, OSError)
    assert issubclass(rc.CudaError, RuntimeError)


def test_mypy_on_the_examples():
    examples = REPOSITORY / "examples"
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    if not any(examples.glob("*.py")):
        pytest.skip("there are no examples here")
    done = run("-m", "mypy", "--config-file", str(REPOSITORY / "pyproject.toml"), str(examples))
    assert done.returncode == 0, done.stdout + done.stderr
