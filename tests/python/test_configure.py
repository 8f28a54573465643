"""What the build says on a machine that lacks something, or has the wrong version of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
DISTRIBUTION = next(
    (
        line.split("=")[1].strip('"')
        for line in Path("/etc/os-release").read_text().splitlines()
        if "PRETTY_NAME=" in line
    ),
    "",
)
needs_cmake = pytest.mark.skipif(not shutil.which("cmake") or not shutil.which("ninja"), reason="no cmake or no ninja")

# How CUDA 13.0's nvcc refuses GCC 16.
REFUSAL = """\
In file included from /usr/local/cuda/bin/../targets/x86_64-linux/include/cuda_runtime.h:82,
                 from <command-line>:
/usr/local/cuda/bin/../targets/x86_64-linux/include/crt/host_config.h:135:2: error: #error -- unsupported GNU version! \
gcc versions later than 15 are not supported! The nvcc flag '-allow-unsupported-compiler' can be used to override this \
version check; however, using an unsupported host compiler may cause compilation failure or incorrect run time \
execution. Use at your own risk.
  135 | #error -- unsupported GNU version! gcc versions later than 15 are not supported!
      |  ^~~~~
"""


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def nvcc(folder: Path, release: str, refusal: str = "") -> Path:
    (folder / "refusal").write_text(refusal)
    return script(
        folder / "nvcc",
        f'case "$*" in\n'
        f"  *--version*) echo 'Cuda compilation tools, release {release}, V{release}.128' ;;\n"
        f"  *) cat '{folder}/refusal' >&2; exit 1 ;;\n"
        f"esac",
    )


def configure(build: Path, *options: str, **environment: str) -> tuple[int, str]:
    """The exit code and, as one line, what CMake said."""
    call = ["cmake", "-S", str(CHECKOUT), "-B", str(build), "-G", "Ninja", *options]
    done = subprocess.run(call, env=os.environ | environment, capture_output=True, text=True, check=False)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@needs_cmake
def test_an_nvcc_that_is_too_old(tmp_path):
    old = nvcc(tmp_path, "12.2")
    sentence = f"{old} is of CUDA 12.2, and RoboCache needs 12.4 or newer"
    code, said = configure(tmp_path / "auto", CUDACXX=str(old))
    assert code == 0, said
    assert f"RoboCache: this build is for the CPU only: {sentence}" in said
    assert sentence in (tmp_path / "auto/generated/robocache_config.h").read_text()
    code, said = configure(tmp_path / "on", "-DROBOCACHE_CUDA=ON", CUDACXX=str(old))
    assert code != 0
    assert f"RoboCache: ROBOCACHE_CUDA is ON, but {sentence}" in said


@needs_cmake
def test_an_nvcc_that_refuses_the_host_compiler(tmp_path):
    new = nvcc(tmp_path, "13.0", REFUSAL)
    code, said = configure(tmp_path / "auto", CUDACXX=str(new), CUDAHOSTCXX="g++-16")
    assert code == 0, said
    assert (
        f"RoboCache: this build is for the CPU only: {new} of CUDA 13.0 does not work with the host compiler g++-16 "
        "(CUDAHOSTCXX chooses another). nvcc says: unsupported GNU version! gcc versions later than 15 are not "
        "supported!"
    ) in said
    assert "-allow-unsupported-compiler" not in said
    code, said = configure(tmp_path / "on", "-DROBOCACHE_CUDA=ON", CUDACXX=str(new), CUDAHOSTCXX="g++-16")
    assert code != 0
    assert "does not work with the host compiler g++-16" in said


@needs_cmake
@pytest.mark.parametrize(("asked", "is_error"), [([], False), (["-DROBOCACHE_WERROR=ON"], True)])
def test_warnings_are_errors_only_where_someone_asks(tmp_path, asked, is_error):
    code, said = configure(tmp_path, "-DROBOCACHE_CUDA=OFF", "-DROBOCACHE_TESTS=ON", *asked)
    assert code == 0, said
    commands = json.loads((tmp_path / "compile_commands.json").read_text())
    ours = [command for command in commands if command["file"].startswith(f"{CHECKOUT}/src/")]
    assert {"-Werror" in command["command"].split() for command in ours} == {is_error}
    assert "ROBOCACHE_WERROR" not in (CHECKOUT / "CMakePresets.json").read_text()


@needs_cmake
def test_missing_packages_are_named_together(tmp_path):
    options = ["-DROBOCACHE_CUDA=OFF", "-DCMAKE_IGNORE_PATH=/usr/include"]
    code, said = configure(tmp_path, *options, CMAKE_PREFIX_PATH="")
    assert code != 0
    missing = "zlib, zstd, lz4, Highway, nlohmann-json, xxHash"
    packages = "zlib1g-dev libzstd-dev liblz4-dev libhwy-dev nlohmann-json3-dev libxxhash-dev"
    assert f"RoboCache needs libraries that were not found: {missing}. " in said
    assert f"apt install {packages}" in said
    if "Debian" in DISTRIBUTION or "Ubuntu" in DISTRIBUTION:
        assert f"On {DISTRIBUTION}: apt install" in said


@needs_cmake
def test_a_missing_compiler(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    for tool in ("cmake", "ninja"):
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
    monkeypatch.delenv("CXX", raising=False)
    code, said = configure(tmp_path / "build", PATH=str(tmp_path / "bin"))
    assert code != 0
    assert "RoboCache needs a C++ compiler, and none was found." in said
    if "Debian" in DISTRIBUTION or "Ubuntu" in DISTRIBUTION:
        assert f"On {DISTRIBUTION}: apt install g++" in said


@needs_cmake
@pytest.mark.parametrize("pip_says_where", [True, False])
def test_missing_headers_of_python(tmp_path, pip_says_where):
    include = tmp_path / "include/python3.12"
    python = script(tmp_path / "python", f"echo {include}")
    where = f"-DPython_INCLUDE_DIR={include}" if pip_says_where else f"-DPython_EXECUTABLE={python}"
    code, said = configure(tmp_path / "build", "-DROBOCACHE_CUDA=OFF", "-DSKBUILD=2", where)
    assert code != 0
    assert "RoboCache needs libraries that were not found: Python.h of python3.12. " in said
    assert "apt install python3.12-dev" in said


@needs_cmake
@pytest.mark.parametrize(
    ("version", "is_accepted"), [("2.10.2", False), ("2.11.0", True), ("3.1.0", True), ("4.0.0", False)]
)
def test_a_nanobind_outside_the_bounds(tmp_path, version, is_accepted):
    (tmp_path / "nanobind-config.cmake").write_text('message(FATAL_ERROR "accepted")' if is_accepted else "")
    (tmp_path / "nanobind-config-version.cmake").write_text(f"set(PACKAGE_VERSION {version})")
    options = [
        "-DROBOCACHE_CUDA=OFF",
        "-DSKBUILD=2",
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-Dnanobind_DIR={tmp_path}",
    ]
    code, said = configure(tmp_path / "build", *options)
    assert code != 0
    sentence = f"RoboCache needs nanobind from 2.11 to before 4, and {tmp_path} is {version}."
    assert (sentence in said) != is_accepted, said


@needs_cmake
def test_a_build_folder_whose_isolated_environment_is_gone(tmp_path):
    gone = tmp_path / "pip-build-env-x/overlay/lib/python3.12/site-packages"
    code, said = configure(tmp_path, "-DROBOCACHE_CUDA=OFF", "-DSKBUILD=2", f"-DCMAKE_MODULE_PATH={gone}")
    assert code != 0
    assert f"RoboCache: pip made {tmp_path} in an isolated environment and has deleted that since" in said
    assert "pip install --no-build-isolation -e ." in said


def setup(folder: Path, *tools: str) -> str:
    """What tools/setup says where the PATH has only fakes, and these tools."""
    for tool in ("bash", "dirname", *tools):
        (folder / "bin" / tool).symlink_to(shutil.which(tool))
    environment = {"PATH": str(folder / "bin"), "HOME": str(folder)}
    call = [shutil.which("bash"), str(CHECKOUT / "tools/setup"), str(folder / "venv"), "demo"]
    done = subprocess.run(call, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    return done.stderr


def test_setup_names_a_python_that_is_too_old(tmp_path):
    script(tmp_path / "bin/python3", 'case "$1" in --version) echo Python 3.9.2 ;; *) exit 1 ;; esac')
    assert setup(tmp_path) == "RoboCache needs Python 3.11 or newer, and python3 is Python 3.9.2.\n"


def test_setup_names_the_packages_and_the_distribution(tmp_path):
    script(tmp_path / "bin/dpkg-query", "exit 1")
    script(tmp_path / "bin/apt-get", "exit 0")
    script(tmp_path / "bin/apt-cache", 'test "$2" != libhwy-dev')
    script(tmp_path / "bin/sudo", "exit 1")
    said = setup(tmp_path, "grep")
    if os.geteuid() == 0:
        expected = f"{DISTRIBUTION} has no package libhwy-dev"
    else:
        expected = (
            f"{DISTRIBUTION} lacks packages, and only root can install them. As root: apt-get install g++ make cmake"
        )
    assert said.startswith(f"tools/packages: {expected}")
