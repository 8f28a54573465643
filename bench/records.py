"""The results of a machine are a JSON file. This module alone reads, merges and writes it."""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.data import ROOT

RESULTS = ROOT / "bench" / "results"  # in git; the documents show these
BUILT = ROOT / "build" / "bench"  # where a run writes by default
VERSIONS = ("torch", "cuda", "driver")

Row = dict[str, Any]


def _output(*command: str) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True, cwd=ROOT).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def commit() -> str:
    """HEAD, with "-dirty" where the sources differ from it.

    A machine with a GPU may have a copy of the tree without its history. There tools/gpu sets ROBOCACHE_CARRIED, and
    the commit is what tools/carry wrote down."""
    carried = ROOT / ".carry" / "commit"
    if os.environ.get("ROBOCACHE_CARRIED") and carried.is_file():
        return carried.read_text().strip()
    head = _output("git", "rev-parse", "--short=12", "HEAD")
    if head:
        documents = (":!bench/results", ":!README.md", ":!docs")
        changed = _output("git", "status", "--porcelain", "--", ".", *documents)
        return head + ("-dirty" if changed else "")
    return "unknown"


def cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def slug(model: str) -> str:
    """'NVIDIA H200' -> 'h200', 'Intel(R) Xeon(R) Platinum 8480C CPU @ 2.0GHz' -> 'intel-xeon-platinum-8480c'."""
    plain = re.sub(r"\((r|tm)\)|@.*$|\b\d+-core\b|\b(nvidia|geforce|cpu|processor)\b", " ", model.lower())
    return "-".join(re.findall(r"[a-z0-9]+", plain)) or "unknown"


def header(device: str) -> Row:
    """The commit, the time the run began, and the machine."""
    import torch

    gpu = torch.cuda.get_device_name() if device == "cuda" else None
    driver = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") if gpu else None
    return {
        "commit": commit(),
        "run": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": slug(gpu) if gpu else "cpu-" + slug(cpu_model()),
        "gpu": gpu,
        "driver": driver.splitlines()[0] if driver else None,
        "cuda": torch.version.cuda if gpu else None,
        "torch": torch.__version__,
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        # Other programs that ran. Above a few tenths, times on this CPU are not reliable.
        "load": round(os.getloadavg()[0], 2),
    }


def key(row: Row) -> tuple[Any, ...]:
    return row["op"], row["case"], row["who"], row.get("threads")


def load(path: Path) -> Row:
    return json.loads(path.read_text()) if path.is_file() else {}


def keep_others(old: Row, new: Row, name: str, replaced: Callable[[Row], bool]) -> list[Row]:
    """Entries of an earlier run that this one does not replace, with the commit and versions they were measured at.
    A version that is the new run's too is named once, at the top of the file."""
    if old.get("machine") != new["machine"]:
        return []
    earlier = {each: old[each] for each in ("commit", *VERSIONS) if old.get(each)}
    kept = [{"commit": "unknown"} | earlier | entry for entry in old.get(name, []) if not replaced(entry)]
    return [
        {each: value for each, value in entry.items() if each not in VERSIONS or value != new[each]} for entry in kept
    ]


def save(path: Path, record: Row, order: Sequence[tuple[str, str]]) -> None:
    """`order`: the (op, case) pairs as the tables list them."""
    place = {pair: number for number, pair in enumerate(order)}
    record["rows"] = sorted(record.get("rows", []), key=lambda row: place.get((row["op"], row["case"]), len(place)))
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for name, value in record.items():
        if isinstance(value, list):
            entries = ",\n".join("  " + json.dumps(entry, ensure_ascii=False) for entry in value)
            lines.append(f" {json.dumps(name)}: [\n{entries}\n ]" if value else f" {json.dumps(name)}: []")
        else:
            lines.append(f" {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}")
    partial = path.with_suffix(".partial")
    partial.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    partial.replace(path)  # never half a file, even if the machine is taken away
