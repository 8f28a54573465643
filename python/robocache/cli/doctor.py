"""`robocache doctor`: what runs on this machine and why the rest does not, ready to paste into an issue."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

import robocache as rc
from robocache import _core
from robocache._backends import package_version

PACKAGES = (
    *("numpy", "torch", "jax", "cupy", "scipy", "nanobind", "typer", "rich", "matplotlib"),
    *("pyarrow", "h5py", "av", "rosbags", "fsspec"),  # needed for some recording formats
    "rerun-sdk",
)
DISTRIBUTIONS = {"cupy": ("cupy", "cupy-cuda13x", "cupy-cuda12x")}  # other distributions have the package's name
CPU_FEATURES = ("fma", "avx2", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq", "asimd", "fphp", "sve")
ATTENTION_BOUND = 1e-5  # relative to the largest number, for sums of 67 products in float32
PI0_SUFFIX = {"heads": 8, "kv_heads": 1, "queries": 51, "keys": 867, "head_dim": 256}
GPU_FIELDS = ("name", "compute_cap", "memory.total", "memory.free", "driver_version")


def examine() -> dict[str, Any]:
    """The whole report. It reads files and versions and runs each op once. It imports no framework and needs no GPU."""
    backends = {name: {"works": works, "detail": detail} for name, works, detail in rc.backends()}
    kernels = attention_kernels(backends)
    return {
        "robocache": _core.build_info(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": {"os": operating_system(), "kernel": platform.release(), "glibc": platform.libc_ver()[1] or None},
        "cpu": {
            **processor(),
            "simd_targets": list(rc.simd_targets()),
            "simd_target": rc.simd_target(),
            "threads": rc.num_threads(),
        },
        "gpus": graphics_cards(),
        "packages": {name: found for name in PACKAGES if (found := package_version(*DISTRIBUTIONS.get(name, (name,))))},
        "backends": backends,
        "equal_to_reference": {name: bits("cpu") == bits("reference") for name, bits in OPS.items()},
        "attention": {"error": attention_error(), "kernels": kernels},
        "environment": {name: value for name, value in sorted(os.environ.items()) if relevant(name)},
    }


def operating_system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.platform()


def processor() -> dict[str, Any]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    model = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    present = set(flags[1].split()) if flags else set()
    return {
        "model": model[1].strip() if model else platform.processor() or platform.machine(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "features": [name for name in CPU_FEATURES if name in present],
    }


def graphics_cards() -> list[dict[str, str]]:
    """The output of nvidia-smi, which every driver has, even if our kernels cannot run."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    cards = [[cell.strip() for cell in line.split(",")] for line in answer.splitlines()]
    return [dict(zip(GPU_FIELDS, card, strict=True)) for card in cards if len(card) == len(GPU_FIELDS)]


def align_bits(backend: str) -> bytes:
    """The result of a small call whose channels fill every SIMD width and leave a remainder."""
    values = np.sin(np.arange(100 * 37, dtype=np.float32)).reshape(100, 37)
    return rc.resample(
        values, np.arange(100) * 10_000_000, rc.Timeline(0, rate=333, count=300), backend=backend
    ).tobytes()


def voxelize_bits(backend: str) -> bytes:
    """The result of a small call with points inside and outside, and many per cell: means must not depend on order."""
    points = np.sin(np.arange(3 * 10_001, dtype=np.float32)).reshape(-1, 3)
    grid = rc.Grid(origin=(-1, -1, -0.5), voxel_size=0.1, shape=(20, 20, 10))
    values, dropped = rc.voxelize(points, grid, features=points, reduce="mean", backend=backend)
    return bytes(values.tobytes() + dropped.counts.tobytes())


def tsdf_bits(backend: str) -> bytes:
    """The result of a small volume in front of a wavy wall, whose lines fill every SIMD width and leave a remainder."""
    depth = 1.0 + 0.2 * np.sin(np.arange(48 * 64, dtype=np.float32) / 50).reshape(48, 64)
    tsdf = rc.TsdfVolume(rc.Grid(origin=(-0.5, -0.5, 0.5), voxel_size=0.03, shape=(33, 33, 37)), truncation=0.1)
    tsdf.integrate(depth, (60, 60, 31.5, 23.5), None, backend=backend)
    arrays = (tsdf.values, tsdf.weights, tsdf.surface_points(backend=backend))
    return b"".join(array.tobytes() for array in arrays)


def image_bits(backend: str) -> bytes:
    """A small resize, down along one side, up along the other; rows fill every SIMD width and leave a remainder."""
    frame = (127 * np.sin(np.arange(61 * 83 * 3, dtype=np.float32)) + 128).astype(np.uint8).reshape(61, 83, 3)
    made = rc.image(frame, (97, 37), filter="bicubic", dtype="float16", mean=0.45, std=0.22, backend=backend)
    return made.tobytes()


def attention_error() -> float:
    """The cpu backend's distance from the reference, in a small call with a remainder in every dimension."""
    numbers = np.sin(np.arange(2 * 67 * 40, dtype=np.float32))
    k = numbers.reshape(1, 2, 67, 40)
    q = np.cos(numbers[: 6 * 9 * 40]).reshape(1, 6, 9, 40)
    reference, cpu = (rc.attention(q, k, k, causal=True, backend=backend) for backend in ("reference", "cpu"))
    return float(np.abs(cpu - reference).max() / np.abs(reference).max())


def attention_kernels(backends: dict[str, dict[str, Any]]) -> dict[str, str]:
    """The kernels that pi0's suffix takes.

    This is the first call that needs a CUDA context. If none can be made, for example because other processes hold all
    GPU memory, the backend is reported as not working, with the reason.
    """
    found = {}
    for name in ("cpu", "cuda"):
        if not backends[name]["works"]:
            continue
        try:
            found[name] = _core.describe_attention_sizes(name, **PI0_SUFFIX)
        except rc.CudaError as error:
            cause = f"{error}; the GPU has no free memory" if "cudaErrorMemoryAllocation" in str(error) else str(error)
            backends[name] = {"works": False, "detail": f"{backends[name]['detail']}: {cause}"}
    return found


OPS = {"align": align_bits, "voxelize": voxelize_bits, "tsdf": tsdf_bits, "image": image_bits}


def relevant(variable: str) -> bool:
    return variable.startswith("ROBOCACHE_") or variable == "CUDA_VISIBLE_DEVICES"


def lines(report: dict[str, Any]) -> list[str]:
    """The report as plain text: boxes and colours do not survive a paste."""
    build, system, cpu = report["robocache"], report["system"], report["cpu"]
    found = [
        ("RoboCache", f"{build['version']}, commit {build['commit']}"),
        ("build", "; ".join(parts(build))),
        ("Python", report["python"]),
        ("system", f"{system['os']}, kernel {system['kernel']}, glibc {system['glibc'] or 'none'}"),
        ("CPU", f"{cpu['model']}, {cpu['cores']} cores, {' '.join(cpu['features']) or cpu['architecture']}"),
        ("SIMD", f"{simd(cpu)}; {cpu['threads']} threads"),
    ]
    for number, card in enumerate(report["gpus"]):
        name, capability, memory, free, driver = (card[field] for field in GPU_FIELDS)
        memory = f"{memory}, of which {free} are free"
        found.append((f"GPU {number}", f"{name}, compute capability {capability}, {memory}, driver {driver}"))
    if not report["gpus"]:
        found.append(("GPU", "none that nvidia-smi shows"))
    found.append(("packages", ", ".join(f"{name} {number}" for name, number in report["packages"].items())))
    found.extend((name, value) for name, value in report["environment"].items())
    found.extend(
        (f"backend {name}", f"{'works' if backend['works'] else 'not here'}: {backend['detail']}")
        for name, backend in report["backends"].items()
    )
    found.extend(
        (f"op {name}", f"cpu gives {'the same bits as' if equal else 'OTHER BITS THAN'} reference")
        for name, equal in report["equal_to_reference"].items()
    )
    attention = report["attention"]
    close = "close to" if attention["error"] <= ATTENTION_BOUND else "FAR FROM"
    found.append(("op attention", f"cpu is {close} reference: {attention['error']:.0e} of the largest number"))
    size = "{queries} x {keys}, {heads}/{kv_heads} heads, {head_dim}".format_map(PI0_SUFFIX)
    found.extend((f"  on {name}", f"{size}: {kernel}") for name, kernel in attention["kernels"].items())
    width = max(len(name) for name, _ in found)
    return [f"{name.ljust(width)}  {text}" for name, text in found]


def simd(cpu: dict[str, Any]) -> str:
    if not cpu["simd_targets"]:
        return "none that this CPU runs, so the reference code serves as backend cpu"
    return f"{cpu['simd_target']} in use; runs here: {spoken(cpu['simd_targets'])}"


def parts(build: dict[str, Any]) -> list[str]:
    architectures = spoken(build["cuda_architectures"].split(";"))
    cuda = f"CUDA {build['cuda']} for {architectures}" if build["cuda"] else "no CUDA kernels"
    return [cuda, f"SIMD {spoken(build['simd_targets'])}", f"compiler {build['compiler']}"]


def spoken(names: list[str]) -> str:
    return " ".join(names) or "none"


def is_sound(report: dict[str, Any]) -> bool:
    """Whether every op gives the reference's bits, and attention is within its bound."""
    return all(report["equal_to_reference"].values()) and report["attention"]["error"] <= ATTENTION_BOUND


def main(as_json: bool = False) -> bool:
    """Prints the report; returns whether the ops compute what they should."""
    report = examine()
    print(json.dumps(report, indent=2) if as_json else "\n".join(lines(report)))
    return is_sound(report)


if __name__ == "__main__":
    main()
