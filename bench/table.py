"""python -m bench.table: the tables of README.md (six rows) and docs/benchmarks.md (all), from bench/results/*.json.

Each line names the commit that its rows were measured at, and marks it where it is old or lost. Git says which are;
where git cannot, the marks stay those that the document has.

`--check` exits 1 where a document differs from the results. It takes the marks that the document has: rows become old
because commits pass, which is no fault of the commit that is checked. It notes on stderr where they are out of date."""

from __future__ import annotations

import argparse
import functools
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import provenance, records
from bench.goals import OURS
from bench.provenance import Marks
from bench.report import Group, faster, groups, number, others, pair

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
PLACE = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
# The README's rows: what a reader would do first, each once on the hardware that it was made for. (machine, op, case)
SIX = (
    ("h200", "resample", "64x4096->1024x32 f32"),
    ("h200", "fuse", "B=256 100x512+200x128+300x64->128 bf16"),
    ("h200", "voxelize", "mean, 8 channels, 500K->128^3, sensor order"),
    ("h200", "attention", "pi0 suffix: q 51 x kv 867, 8 query heads / 1 kv head, head dim 256"),
    ("cpu-amd-epyc", "mcap.messages", "100K of 320 bytes, zstd"),
    ("cpu-amd-epyc", "build", "1 GiB of PointCloud2 and Imu, zstd"),
)


def tables(results: Sequence[records.Row], marks: Marks) -> str:
    """Machines with a GPU first, each by name."""
    ordered = sorted(results, key=lambda record: (record["gpu"] is None, record["machine"]))
    return "\n\n".join((gpu_table if record["gpu"] else cpu_table)(record, marks) for record in ordered)


def six(results: Sequence[records.Row], marks: Marks) -> str:
    """Each row of SIX beside its fastest peer."""
    lines = [
        "| case | RoboCache | fastest other | times as fast | measured on | commit |",
        "| --- | ---: | ---: | ---: | --- | --- |",
    ]
    machines = {record["machine"]: record for record in results}
    shown = []
    for machine, op, case in SIX:
        record = machines[machine]
        rows = [row for row in record["rows"] if (row["op"], row["case"]) == (op, case)]
        ours = next(row for row in rows if row["who"] == OURS)
        rest = [row for row in rows if row["who"] != OURS and row.get("threads") == ours.get("threads")]
        other = min(rest, key=_time)
        hardware = record["gpu"] or f"{record['cpu']}, {counted(ours['threads'], 'thread')}"
        commit = provenance.cell((ours, other), marks)
        shown += [ours["commit"], other["commit"]]
        factor = f"{faster(ours, other):.1f}x"
        times = number(_time(ours)), f"{other['who']}: {number(_time(other))}"
        lines.append(_line(f"{op} {case}", *times, factor, hardware, commit))
    legend = [words for mark, words in provenance.LEGEND.items() if mark in map(marks.get, shown)]
    return "\n".join([*lines, "", " ".join(legend)] if legend else lines)


def counted(count: int, thing: str) -> str:
    return f"{count} {thing}" + ("" if count == 1 else "s")


def _time(row: records.Row) -> float:
    return row.get("cold_us") or row["wall_us"]


def gpu_table(record: records.Row, marks: Marks) -> str:
    bandwidth = record["copy_bytes_per_s"] / 1e12
    empty = record.get("empty_kernel_us")
    lines = [
        f"**{record['gpu']}**, driver {record['driver']}, CUDA {record['cuda']}, torch {record['torch']}. "
        "Microseconds per call, cold / wall. Cold: "
        "CUDA-graph replay over inputs that rotate past the L2. Wall: eager calls back to back. Floor: the fewest "
        f"bytes over the copy bandwidth, {bandwidth:.2f} TB/s"
        + (f"; an empty kernel takes {empty:.2f} us. " if empty else ". ")
        + _provenance(record),
        "",
        "| case | floor | RoboCache | torch | torch.compile | faster than torch.compile | commit |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for *_, group in groups(record["rows"]):
        floor = next(row["floor_us"] for row in group if row)
        commit = provenance.cell(group, marks)
        lines.append(_line(_name(group), f"{floor:.1f}", *map(pair, group), _speedup(group), commit))
    host = record.get("host_without_launch_us")
    said = f"Host time of a call with 7 tensors, all but the launch: {host:.1f} us. " if host else ""
    return "\n".join([*lines, *_others(record, marks), "", said + _import(record)]).rstrip()


def cpu_table(record: records.Row, marks: Marks) -> str:
    lines = [
        f"**{record['cpu']}**, {record['cores']} cores, torch {record['torch']}. "
        "Microseconds per call, wall, with the same threads. Of memcpy: the time "
        f"of a memcpy that moves the floor's bytes, over ours. {_provenance(record)}",
        "",
        "| case | threads | RoboCache | torch | torch.compile | faster than torch / torch.compile "
        "| of memcpy | commit |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for *_, threads, group in groups(record["rows"]):
        walls = ["-" if row is None else number(row["wall_us"]) for row in group]
        ours, *peers = group
        factors = [f"{peer['wall_us'] / ours['wall_us']:.1f}x" if ours and peer else "-" for peer in peers]
        share = f"{ours['memcpy_share']:.0%}" if ours else "-"
        commit = provenance.cell(group, marks)
        lines.append(_line(_name(group), str(threads), *walls, " / ".join(factors), share, commit))
    return "\n".join([*lines, *_others(record, marks), "", _peaks(record) + _import(record)]).rstrip()


def _peaks(record: records.Row) -> str:
    told = []
    for row in (row for row in record["rows"] if "peak_mib" in row):
        said = f"{row['op']} {row['case']}: at most {row['peak_mib']:.0f} MiB of resident memory"
        if "first_batch_ms" in row:
            said += f", the first batch after {row['first_batch_ms']:.0f} ms"
        told.append(f"{said}. ")
    return "".join(told)


def _others(record: records.Row, marks: Marks) -> list[str]:
    """The table of the further peers, where there are some."""
    lines = []
    for ours, other in others(record["rows"]):
        factor, commit = f"{faster(ours, other):.1f}x", provenance.cell((ours, other), marks)
        lines.append(_line(_name((ours, other)), pair(ours), other["who"], pair(other), factor, commit))
    head = ["", "| case | RoboCache | beside | takes | faster | commit |", "| --- | ---: | --- | ---: | ---: | --- |"]
    return [*head, *lines] if lines else []


def _provenance(record: records.Row) -> str:
    return " ".join([provenance.summary(record), *provenance.notes(record)])


def _name(rows: Sequence[records.Row | None]) -> str:
    first = next(row for row in rows if row)
    return f"{first['op']} {first['case']}"


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


def refresh(document: Path, make: Callable[[Marks], str], known: Marks | None) -> str | None:
    """Replaces the tables. Returns a sentence where the document has no place for them.

    `known`: the marks by git; None where git cannot say, and those of the document are taken."""
    text = document.read_text()
    if (broken := _without_place(document, text)) is None:
        filled = _filled(text, make(provenance.marks_in(text) if known is None else known))
        if filled != text:
            document.write_text(filled)
    return broken


def differs(document: Path, make: Callable[[Marks], str]) -> str | None:
    """A sentence where the document is not what the results and its own marks give."""
    text = document.read_text()
    if (broken := _without_place(document, text)) is not None:
        return broken
    if _filled(text, make(provenance.marks_in(text))) != text:
        return f"{document} is not what the results give; run python -m bench.table"
    return None


def outdated(document: Path, make: Callable[[Marks], str], known: Marks | None) -> str | None:
    """A sentence where git says other marks than the document has."""
    text = document.read_text()
    if known is None or _filled(text, make(known)) == text:
        return None
    return f"note: some marks (old, lost) in {document} are out of date; python -m bench.table renews them"


def _without_place(document: Path, text: str) -> str | None:
    return None if len(PLACE.findall(text)) == 1 else f"{document} needs one place between {BEGIN} and {END}"


def _filled(text: str, made: str) -> str:
    return PLACE.sub(lambda _: f"{BEGIN}\n{made}\n{END}", text)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("bench.table", description="The documents' tables from bench/results/*.json.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a document differs")
    options = parser.parse_args(argv)
    results = [json.loads(path.read_text()) for path in sorted(records.RESULTS.glob("*.json"))]
    documents = {
        records.ROOT / "README.md": functools.partial(six, results),
        records.ROOT / "docs" / "benchmarks.md": functools.partial(tables, results),
    }
    known = provenance.marks_by_git(set().union(*map(provenance.commits_of, results)))
    notes: list[str | None] = []
    if options.check:
        wrong = [differs(document, make) for document, make in documents.items()]
        if not any(wrong):
            notes = [outdated(document, make, known) for document, make in documents.items()]
    else:
        wrong = [refresh(document, make, known) for document, make in documents.items()]
    for sentence in filter(None, [*wrong, *notes]):
        print(f"bench.table: {sentence}", file=sys.stderr)
    return int(any(wrong))


if __name__ == "__main__":
    sys.exit(main())
