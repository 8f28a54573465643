"""python -m bench.profile: profiles each of our kernels with ncu, into the "kernels" of the file that bench.run writes.

ncu runs this module again as a child process, which makes one call of each case after a warm-up. A spin kernel of torch
before each call marks where a case begins. ncu flushes the caches before each kernel and leaves the clocks alone."""

from __future__ import annotations

import argparse
import csv
import glob
import importlib
import importlib.util
import io
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from bench import records
from bench.attention import ActionCase
from bench.cases import CASES, AnyCase, select
from bench.goals import Absent

MARK = "spin_kernel"  # torch.cuda._sleep
KERNELS = f"regex:robocache|align|voxelize|tsdf|image|attention|cub|{MARK}"
TIMEOUT = 300  # seconds, for all of ncu

# Our name of a metric, and names that ncu has for it; the first that the report has is taken.
METRICS = {
    "duration_us": ("gpu__time_duration.sum",),
    "dram_pct": (
        "dram__throughput.avg.pct_of_peak_sustained_elapsed",
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    ),
    "l2_pct": ("lts__throughput.avg.pct_of_peak_sustained_elapsed", "lts__t_sectors.avg.pct_of_peak_sustained_elapsed"),
    "issue_pct": (
        "sm__inst_issued.avg.pct_of_peak_sustained_active",
        "sm__instruction_throughput.avg.pct_of_peak_sustained_active",
    ),
    "occupancy_pct": ("sm__warps_active.avg.pct_of_peak_sustained_active",),
    "registers": ("launch__registers_per_thread",),
}
SECTIONS = ("SpeedOfLight", "ComputeWorkloadAnalysis", "Occupancy", "LaunchStats")
NANOSECONDS = {"nsecond": 1, "ns": 1, "usecond": 1e3, "us": 1e3, "msecond": 1e6, "ms": 1e6, "second": 1e9, "s": 1e9}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("bench.profile", description="ncu over each of our kernels.")
    parser.add_argument("--json", type=Path, help="default: build/bench/<machine>.json")
    parser.add_argument("--only", metavar="PATTERN", help="as for bench.run")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    cases = profiled(select(options.only))
    if options.child:
        return launch(cases)
    ncu = find_ncu()
    if ncu is None:
        return complain("ncu (Nsight Compute) is not on the PATH: nothing was profiled")
    if not torch.cuda.is_available():
        return complain("torch sees no CUDA device: nothing was profiled")
    if importlib.util.find_spec("robocache") is None:
        return complain("robocache is not installed in this Python: nothing was profiled")
    if not cases:
        return complain(f"no case matches {options.only!r}")
    try:
        found = parse(profile(ncu, options.only), cases)
    except RuntimeError as error:
        return complain(str(error))
    if not found:
        return complain(f"ncu saw no kernel that matches {KERNELS}")
    record = records.header("cuda")
    path = options.json or records.BUILT / f"{record['machine']}.json"
    merge(path, record, found, cases)
    print(table(found))
    seen = {entry["case"] for entry in found}
    failed = False
    for case in cases:
        if case.title in seen:
            continue
        reason = reason_to_skip(case)
        failed |= reason is None
        print(f"{case.title}: skipped: {reason}" if reason else f"FAILED {case.title}: no kernel of ours was seen")
    print(f"{path}: {len(found)} kernels")
    return 1 if failed else 0


def reason_to_skip(case: AnyCase) -> str | None:
    try:
        case.make("cuda")
    except Absent as reason:
        return str(reason)
    return None


def profiled(cases: Sequence[AnyCase]) -> list[AnyCase]:
    """All CUDA cases but the whole action, which is 198 calls of other rows."""
    return [case for case in cases if "cuda" in case.devices and not isinstance(case, ActionCase)]


def complain(sentence: str) -> int:
    print(f"bench.profile: {sentence}", file=sys.stderr)
    return 1


def find_ncu() -> str | None:
    places = glob.glob("/usr/local/cuda*/bin/ncu") + glob.glob("/opt/nvidia/nsight-compute/*/ncu")
    return shutil.which("ncu") or (sorted(places)[-1] if places else None)


# ---- the child


def launch(cases: Sequence[AnyCase]) -> int:
    """Makes one profiled call of each case. A case that fails prints a sentence and leaves its mark without kernels."""
    rc = importlib.import_module("robocache")
    for case in cases:
        call = None
        try:
            inputs: Any = case.make("cuda")
            call = case.ours(rc, inputs)
            call()
            torch.cuda.synchronize()
        except Exception as error:
            print(f"{case.title}: {type(error).__name__}: {error}", file=sys.stderr)
            call = None
        torch.cuda.profiler.start()
        torch.cuda._sleep(1)
        if call is not None:
            call()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
        del call
        torch.cuda.empty_cache()
    return 0


# ---- ncu


def profile(ncu: str, only: str | None) -> str:
    """The report as CSV. A second try collects whole sections, for an ncu that lacks one of the metrics."""
    names = ",".join(alternatives[0] for alternatives in METRICS.values())
    sections = [word for section in SECTIONS for word in ("--section", section)]
    problems = []
    for wanted in (["--metrics", names], sections):
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.ncu-rep"
            collect = [ncu, "--clock-control", "none", "--profile-from-start", "off", "--target-processes", "all"]
            collect += ["--kernel-name-base", "demangled", "--kernel-name", KERNELS, *wanted]
            child = [sys.executable, "-m", "bench.profile", "--child", *(["--only", only] if only else [])]
            problems.append(run([*collect, "--export", str(report), "--force-overwrite", *child]))
            if not report.is_file():
                continue
            shown = [ncu, "--import", str(report), "--csv", "--page", "raw", "--print-units", "base"]
            text = subprocess.run(shown, capture_output=True, text=True, timeout=TIMEOUT, check=False).stdout
            if '"Kernel Name"' in text and METRICS["duration_us"][0] in text:
                return text
            problems.append(text[-500:])
    raise RuntimeError("ncu gave no report: " + " | ".join(problem for problem in problems if problem))


def run(command: Sequence[str]) -> str:
    """Runs a command in the root of the repository. Returns the end of its output."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False, cwd=records.ROOT)
    except subprocess.TimeoutExpired:
        return f"ncu took more than {TIMEOUT} s"
    sys.stderr.write(done.stderr)
    return (done.stdout + done.stderr)[-1500:]


def parse(text: str, cases: Sequence[AnyCase]) -> list[records.Row]:
    """One entry for each kernel and case. The first line below the names holds the units."""
    begin = text.index('"ID"')
    rows = list(csv.DictReader(io.StringIO(text[begin:])))
    units = rows.pop(0) if rows and not rows[0]["ID"].strip() else {}
    found: list[records.Row] = []
    place = -1
    for row in rows:
        if MARK in row["Kernel Name"]:
            place += 1
        elif 0 <= place < len(cases):
            found.append({"kernel": short_name(row["Kernel Name"]), "case": cases[place].title} | figures(row, units))
    return found


def figures(row: Mapping[str, str], units: Mapping[str, str]) -> records.Row:
    result: records.Row = {}
    for name, alternatives in METRICS.items():
        metric = next((metric for metric in alternatives if row.get(metric)), None)
        result[name] = None if metric is None else _figure(row[metric], units.get(metric, ""), name)
    return result


def _figure(cell: str, unit: str, name: str) -> float | int | None:
    try:
        value = float(cell.replace(",", ""))
    except ValueError:  # "n/a"
        return None
    if name == "registers":
        return int(value)
    return round(value * NANOSECONDS.get(unit, 1) / 1e3, 3) if name == "duration_us" else round(value, 1)


def short_name(name: str) -> str:
    """'void robocache::align_op::(anonymous namespace)::rows<float, 4>(Plan)' -> 'rows<float, 4>'."""
    plain = re.sub(r"\(anonymous namespace\)::|<unnamed>::", "", name).removeprefix("void ")
    depth = 0
    for place, letter in enumerate(plain):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            plain = plain[:place]
            break
    return re.sub(r"\b(?:\w+::)+", "", plain).strip()


# ---- the results


def merge(path: Path, record: records.Row, found: list[records.Row], cases: Sequence[AnyCase]) -> None:
    old = records.load(path)
    again = {case.title for case in cases}
    kept = records.keep_others(old, record, "kernels", lambda entry: entry["case"] in again)
    found = [{name: record[name] for name in ("commit", "run")} | entry for entry in found]
    if old.get("machine") == record["machine"]:
        record = old  # what the file says of its rows stays that of the last bench.run
    records.save(path, record | {"kernels": [*found, *kept]}, [(case.op, case.name) for case in CASES])


def table(found: Sequence[records.Row]) -> str:
    lines = [("case", "kernel", "us", "DRAM %", "L2 %", "issue %", "occupancy %", "registers")]
    lines += [(entry["case"], entry["kernel"], *(str(entry[name]) for name in METRICS)) for entry in found]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


if __name__ == "__main__":
    sys.exit(main())
