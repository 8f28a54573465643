"""What `import robocache` loads, and what the package carries for type checkers."""

from __future__ import annotations

import pathlib
import subprocess
import sys

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
        "import sys, robocache as rc; later = {'_cache', '_export', '_recordings', 'mcap'};"
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
        "assert [n for n in shown if isinstance(getattr(rc, n), types.ModuleType)] == ['mcap', 'ray'];"
        "assert not {'TYPE_CHECKING', 'Any', 'cli'} & set(shown)"
    )
    done = run("-c", code)
    assert done.returncode == 0, done.stderr


def test_tab_shows_what_users_need_of_mcap_recordings_and_writers(tmp_path):
    from robocache import mcap

    assert dir(mcap) == sorted(mcap.__all__)
    with mcap.Writer(tmp_path / "a.mcap"):
        pass
    shown = [name for name in dir(rc.open(tmp_path / "a.mcap")) if not name.startswith("_")]
    expected = ["batches", "clock", "episodes", "files", "format", "lacking", "notes", "path", "streams", "time"]
    assert shown == expected
    with rc.CacheWriter(tmp_path / "cache") as writer:
        assert "add" in dir(writer)
        assert "knows_better" not in dir(writer)


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
        "ray",
        "sync_report",
        "Recording",
        "Episode",
        "RecordedStream",
        "Cache",
        "CacheWriter",
        "CacheAligned",
        "CacheReport",
        "Loader",
        "LoaderSpec",
        "Key",
        "Mixture",
        "verify_cache",
        "view",
        "export",
        "StreamReport",
        "image",
        "Statistics",
        "SyncReport",
        "Finding",
        "report",
        "report_data",
        "Report",
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


def test_without_ray_it_says_how_to_install_it():
    code = "import sys; sys.modules['ray'] = None; import robocache as rc; rc.ray.build('logs', 'cache')"
    done = run("-c", code)
    assert done.stderr.endswith(
        "ModuleNotFoundError: ray.build needs Ray, which is not installed: pip install 'robocache[ray]'\n"
    ), done.stderr
