"""python -m bench.table: the tables of README.md (a few rows) and docs/benchmarks.md (all), from bench/results/*.json.
`--check` exits 1 where they are not those."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import records
from bench.goals import COMPILED, CPU_FACTORS, EAGER, GOALS, GPU_FACTORS, OURS
from bench.report import Group, faster, groups, number, others, pair

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
FEW = {
    *GOALS,
    *GPU_FACTORS,
    *CPU_FACTORS,
    ("resample", "hold 4x60->100x224x224x3 u8"),
    ("resample", "pose 256x500->250x7 f32"),
    ("resample", "8 packed episodes 256x5000->100x32 f32"),
    ("resample", "forward and backward 64x4096->1024x32 f32"),
    ("align", "B=8 camera 30x96x96x3 u8 + pose 100x7 f32 + joints 500x14 f32->50"),
}


def tables(results: Sequence[records.Row]) -> str:
    """Machines with a GPU first, each by name."""
    ordered = sorted(results, key=lambda record: (record["gpu"] is None, record["machine"]))
    return "\n\n".join(gpu_table(record) if record["gpu"] else cpu_table(record) for record in ordered)


def few(record: records.Row) -> records.Row:
    """The rows of FEW, each beside torch and beside the fastest of the others."""
    kept = [row for row in record["rows"] if (row["op"], row["case"]) in FEW]
    fastest: dict[tuple[Any, ...], records.Row] = {}
    for row in kept:
        key = (row["op"], row["case"], row.get("threads"))
        if row["who"] not in (OURS, EAGER, COMPILED) and _time(row) < _time(fastest.get(key, row)) + 1e-9:
            fastest[key] = row
    best = [id(row) for row in fastest.values()]
    rows = [row for row in kept if row["who"] in (OURS, EAGER, COMPILED) or id(row) in best]
    return record | {"rows": rows}


def _time(row: records.Row) -> float:
    return row.get("cold_us") or row["wall_us"]


def gpu_table(record: records.Row) -> str:
    bandwidth = record["copy_bytes_per_s"] / 1e12
    empty = record.get("empty_kernel_us")
    lines = [
        f"**{record['gpu']}**, driver {record['driver']}, CUDA {record['cuda']}, torch {record['torch']}, "
        f"commit `{record['commit']}`. Microseconds per call, cold / wall. Cold: CUDA-graph replay over inputs that "
        "rotate past the L2. Wall: eager calls back to back. Floor: the fewest bytes over the copy bandwidth, "
        f"{bandwidth:.2f} TB/s" + (f"; an empty kernel takes {empty:.2f} us." if empty else "."),
        "",
        "| case | floor | RoboCache | torch | torch.compile | faster than torch.compile |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for op, case, _, group in groups(record["rows"]):
        floor = next(row["floor_us"] for row in group if row)
        lines.append(_line(f"{op} {case}", f"{floor:.1f}", *map(pair, group), _speedup(group)))
    host = record.get("host_without_launch_us")
    said = f"Host time of a call with 7 tensors, all but the launch: {host:.1f} us. " if host else ""
    return "\n".join([*lines, *_others(record), "", said + _import(record)]).rstrip()


def cpu_table(record: records.Row) -> str:
    lines = [
        f"**{record['cpu']}**, {record['cores']} cores, torch {record['torch']}, commit `{record['commit']}`. "
        "Microseconds per call, wall, with the same threads. Of memcpy: the time of a memcpy that moves the floor's "
        "bytes, over ours.",
        "",
        "| case | threads | RoboCache | torch | torch.compile | faster than torch / torch.compile | of memcpy |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for op, case, threads, group in groups(record["rows"]):
        walls = ["-" if row is None else number(row["wall_us"]) for row in group]
        ours, *peers = group
        factors = [f"{peer['wall_us'] / ours['wall_us']:.1f}x" if ours and peer else "-" for peer in peers]
        share = f"{ours['memcpy_share']:.0%}" if ours else "-"
        lines.append(_line(f"{op} {case}", str(threads), *walls, " / ".join(factors), share))
    return "\n".join([*lines, *_others(record), "", _peaks(record) + _import(record)]).rstrip()


def _peaks(record: records.Row) -> str:
    peaks = [(f"{row['op']} {row['case']}", row["peak_mib"]) for row in record["rows"] if "peak_mib" in row]
    return "".join(f"{title}: at most {peak:.0f} MiB of resident memory. " for title, peak in peaks)


def _others(record: records.Row) -> list[str]:
    """Beside peers that are not torch, where there are some."""
    lines = [
        _line(f"{ours['op']} {ours['case']}", pair(ours), other["who"], pair(other), f"{faster(ours, other):.1f}x")
        for ours, other in others(record["rows"])
    ]
    head = ["", "| case | RoboCache | beside | takes | faster |", "| --- | ---: | --- | ---: | ---: |"]
    return [*head, *lines] if lines else []


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _speedup(group: Group) -> str:
    ours, _, compiled = group
    factors = []
    for name in ("cold_us", "wall_us"):
        both = ours and compiled and ours.get(name) and compiled.get(name)
        factors.append(f"{compiled[name] / ours[name]:.1f}x" if both and ours and compiled else "-")
    return " / ".join(factors)


def _import(record: records.Row) -> str:
    return f"`import robocache`: {record['import_ms']:.0f} ms beyond NumPy's." if record.get("import_ms") else ""


def refresh(document: Path, made: str, check: bool) -> str | None:
    """What is wrong with the document, where something is; its tables are replaced unless this is a check."""
    text = document.read_text()
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    if len(pattern.findall(text)) != 1:
        return f"{document} needs one place between {BEGIN} and {END}"
    filled = pattern.sub(lambda _: f"{BEGIN}\n{made}\n{END}", text)
    if check and filled != text:
        return f"{document} is not what the results give; run python -m bench.table"
    if filled != text:
        document.write_text(filled)
    return None


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("bench.table", description="The documents' tables from bench/results/*.json.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a document differs")
    options = parser.parse_args(argv)
    results = [json.loads(path.read_text()) for path in sorted(records.RESULTS.glob("*.json"))]
    documents = {
        records.ROOT / "README.md": tables([few(record) for record in results]),
        records.ROOT / "docs" / "benchmarks.md": tables(results),
    }
    wrong = [refresh(document, made, options.check) for document, made in documents.items()]
    for sentence in filter(None, wrong):
        print(f"bench.table: {sentence}", file=sys.stderr)
    return int(any(wrong))


if __name__ == "__main__":
    sys.exit(main())
