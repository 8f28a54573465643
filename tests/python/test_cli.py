"""The `robocache` command, as a shell sees it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import robocache as rc
from robocache.cli import doctor

pytest.importorskip("typer", reason="Typer is not installed")


def robocache(*arguments: str, folder: Path | None = None, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "robocache.cli", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd=folder, env=os.environ | environment
    )


def without(tmp_path: Path, *modules: str) -> str:
    """A PYTHONPATH on which these modules cannot be imported, as if they were not installed."""
    for name in modules:
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError('No module named {name}', name='{name}')\n")
    return os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))


def test_version():
    answer = robocache("--version")
    assert answer.returncode == 0
    assert answer.stdout == f"robocache {rc.__version__}\n"


def test_alone_it_lists_the_commands():
    answer = robocache()
    said = answer.stdout + answer.stderr
    assert all(command in said for command in ("doctor", "bench", "demo"))


def test_an_unknown_command_is_refused():
    answer = robocache("frobnicate")
    assert answer.returncode == 2
    assert "frobnicate" in answer.stderr


def test_doctor_is_ready_to_paste():
    answer = robocache("doctor")
    assert answer.returncode == 0, answer.stderr
    lines = answer.stdout.splitlines()
    for beginning in ("RoboCache", "build", "Python", "system", "CPU", "SIMD", "GPU", "packages"):
        assert any(line.startswith(beginning) for line in lines), beginning
    for name, works, detail in rc.backends():
        line = next(line for line in lines if line.startswith(f"backend {name} "))
        assert ("works: " if works else "not here: ") + detail.split(",")[0] in line  # threads are another process's
    for op in ("align", "voxelize", "tsdf", "image"):
        assert any(re.fullmatch(rf"op {op} +cpu gives the same bits as reference", line) for line in lines), op
    assert any(re.fullmatch(r"op attention +cpu is close to reference: \de-\d\d of .+", line) for line in lines)
    assert any(re.fullmatch(r"  on cpu +51 x 867, 8/1 heads, 256: cpu: .+", line) for line in lines)
    assert "\x1b" not in answer.stdout


def test_doctor_speaks_json():
    answer = robocache("doctor", "--json")
    assert answer.returncode == 0, answer.stderr
    report = json.loads(answer.stdout)
    assert report["robocache"]["version"] == rc.__version__
    assert report["robocache"]["commit"]
    toolkit = report["robocache"]["cuda"]
    assert toolkit is None or re.fullmatch(r"\d+\.\d+", toolkit)
    assert report["cpu"]["simd_target"] == rc.simd_target()
    assert report["cpu"]["threads"] >= 1
    assert report["backends"]["reference"]["works"] is True
    assert report["backends"]["cpu"]["works"] is True
    assert set(report["backends"]) == {"reference", "cpu", "cuda", "torch"}
    assert all(backend["detail"] for backend in report["backends"].values())
    assert "numpy" in report["packages"]
    assert report["equal_to_reference"] == {"align": True, "voxelize": True, "tsdf": True, "image": True}
    assert 0 < report["attention"]["error"] < doctor.ATTENTION_BOUND
    working = {name for name, backend in report["backends"].items() if backend["works"]}
    assert set(report["attention"]["kernels"]) == working & {"cpu", "cuda"}


def test_doctor_says_where_bits_differ(monkeypatch):
    monkeypatch.setitem(doctor.OPS, "voxelize", str.encode)
    report = doctor.examine()
    assert report["equal_to_reference"] == {"align": True, "voxelize": False, "tsdf": True, "image": True}
    assert any(line.endswith("cpu gives OTHER BITS THAN reference") for line in doctor.lines(report))


@pytest.mark.parametrize("form", [(), ("--json",)])
@pytest.mark.parametrize("wrong", ["bits", "attention", "nothing"])
def test_doctor_tells_by_its_exit_code_that_an_op_is_wrong(monkeypatch, wrong, form):
    testing = pytest.importorskip("typer.testing", reason="Typer is not installed")
    from robocache.cli.commands import application

    if wrong == "bits":
        monkeypatch.setitem(doctor.OPS, "voxelize", str.encode)
    if wrong == "attention":
        monkeypatch.setattr(doctor, "ATTENTION_BOUND", 0.0)
    answer = testing.CliRunner().invoke(application, ["doctor", *form])
    assert answer.exit_code == (0 if wrong == "nothing" else 3), answer.output


def test_doctor_survives_a_gpu_without_free_memory(monkeypatch):
    """Asking such a GPU for its kernels raises, because its context cannot be made."""
    testing = pytest.importorskip("typer.testing", reason="Typer is not installed")
    from robocache.cli.commands import application

    asked = doctor._core.describe_attention_sizes

    def out_of_memory(backend, **sizes):
        if backend == "cuda":
            raise rc.CudaError("CUDA: out of memory")
        return asked(backend, **sizes)

    monkeypatch.setattr(doctor._core, "describe_attention_sizes", out_of_memory)
    monkeypatch.setattr(doctor.rc, "backends", lambda: [("cpu", True, "here"), ("cuda", True, "a full GPU")])
    answer = testing.CliRunner().invoke(application, ["doctor"])
    assert answer.exit_code == 0, answer.output
    assert "CUDA: out of memory" in answer.stdout


def test_doctor_exits_0_where_no_gpu_can_be_seen(tmp_path):
    answer = robocache("doctor", "--json", PATH=str(tmp_path), CUDA_VISIBLE_DEVICES="")
    assert answer.returncode == 0, answer.stderr
    report = json.loads(answer.stdout)
    assert report["gpus"] == []
    assert report["backends"]["cuda"]["works"] is False
    assert report["environment"]["CUDA_VISIBLE_DEVICES"] == ""


def test_doctor_survives_a_broken_nvidia_smi(tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'; exit 9\n")
    program.chmod(0o755)
    answer = robocache("doctor", "--json", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["gpus"] == []


def test_doctor_reads_what_nvidia_smi_says(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H200, 9.0, 143771 MiB, 12 MiB, 580.65.06'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    report = doctor.examine()
    fields = ("NVIDIA H200", "9.0", "143771 MiB", "12 MiB", "580.65.06")
    assert report["gpus"] == [dict(zip(doctor.GPU_FIELDS, fields, strict=True))]
    line = next(line for line in doctor.lines(report) if line.split()[:3] == ["GPU", "0", "NVIDIA"])
    assert "143771 MiB, of which 12 MiB are free, driver 580.65.06" in line


@pytest.mark.parametrize("cause", ["out of memory (cudaErrorMemoryAllocation)", "busy (cudaErrorDevicesUnavailable)"])
def test_doctor_says_why_no_cuda_context_can_be_made(monkeypatch, capsys, cause):
    """A driver and a GPU are there, so the backend seems to work until the first call that needs a context."""

    def describe(device, **sizes):
        if device == "cuda":
            raise rc.CudaError(f"{cause} while allocating host memory")
        return f"{device}: kernels"

    listed = [(name, works or name == "cuda", detail) for name, works, detail in rc.backends()]
    monkeypatch.setattr(rc, "backends", lambda: listed)
    monkeypatch.setattr(doctor._core, "describe_attention_sizes", describe)
    report = doctor.examine()
    assert report["backends"]["cuda"]["works"] is False
    assert report["attention"]["kernels"] == {"cpu": "cpu: kernels"}
    doctor.main()
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("backend cuda"))
    assert f"{cause} while allocating host memory" in line
    assert ("the GPU has no free memory" in line) == ("out of memory" in cause)


def test_doctor_imports_no_framework():
    code = "import sys; from robocache.cli import doctor as d; d.examine(); print({'torch', 'jax'} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert answer.stdout.strip() == "set()", answer.stderr


@pytest.mark.parametrize("module", ["typer", "rich"])
def test_without_the_extra_it_says_how_to_install_it(tmp_path, module):
    answer = robocache("doctor", PYTHONPATH=without(tmp_path, module))
    assert answer.returncode == 1
    assert answer.stdout == ""
    assert answer.stderr == (
        f"The robocache command needs {module}, which is not installed: pip install 'robocache[cli]'\n"
    )


def test_the_library_does_not_import_the_command_line():
    code = "import sys, robocache; print({'typer', 'rich', 'robocache.cli', 'torch', 'matplotlib'} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert answer.stdout.strip() == "set()", answer.stderr


def test_bench_needs_the_repository(tmp_path, monkeypatch):
    from robocache.cli import commands

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands.rc, "__file__", str(tmp_path / "robocache" / "__init__.py"))
    assert commands.checkout() is None
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "run.py").touch()
    assert commands.checkout() is None
    project = tmp_path / "pyproject.toml"
    for others in ("", '[project]\nname = "other"\n', 'name = "robocache"\n', "project = 3\n", "no TOML", "\udcff"):
        project.write_bytes(others.encode(errors="surrogateescape"))
        assert commands.checkout() is None, others
    project.write_text('[project]\nname = "robocache"\n')
    assert commands.checkout() == tmp_path


def test_bench_runs_the_repository_s_own(tmp_path):
    """A small checkout: the options reach bench.run.main, and what it returns is the exit code."""
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "run.py").write_text("def main(argv):\n    print('ran', *argv)\n    return 3\n")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "robocache"\n')
    answer = robocache("bench", "--quick", "--only", "fuse", folder=tmp_path)
    assert answer.returncode == 3, answer.stderr
    assert answer.stdout == "ran --quick --only fuse\n"
