"""python -m bench.run: times ours beside torch and others on the same data, and checks every result first.

On CUDA: cold (CUDA-graph replay over inputs that rotate past the L2), warm (one input), wall (eager calls back to
back), wall p99 (single calls), floor (fewest bytes over the copy bandwidth measured here). For one small call also the
host time without the launch. On a CPU: wall, and as the floor a memcpy that moves as many bytes. All figures are
microseconds per call.

The file is written after every case, so that a run that is cut short keeps its rows. It is build/bench/<machine>.json.
The documents' tables are made from bench/results, which a run writes only where --json names it."""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.util
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from bench import (
    attention,
    builds,
    frames,
    image,
    loader,
    loader_cuda,
    logs,
    messages,
    others,
    records,
    report_command,
    timing,
    view,
)
from bench.cases import (
    CASES,
    CAUSAL,
    PEER_TOLERANCE,
    SMALL_FUSE,
    TOLERANCE,
    AnyCase,
    Call,
    relative_error,
    select,
)
from bench.goals import COMPILED, EAGER, OURS, TUNED, Absent
from bench.progress import Progress
from bench.report import table

PEERS = (
    EAGER,
    COMPILED,
    TUNED,
    CAUSAL,
    *others.NAMES,
    *attention.NAMES,
    *image.NAMES,
    *logs.NAMES,
    *messages.NAMES,
    *builds.NAMES,
    *report_command.NAMES,
    *frames.NAMES,
    *loader.NAMES,
    *loader_cuda.NAMES,
    *view.NAMES,
)


class Disagreement(Exception):
    """A result that is wrong. It is not timed."""


class Bench:
    """Measures case by case, and keeps the rows."""

    def __init__(
        self, rc: ModuleType, device: str, effort: timing.Effort, copies: int | None, stamp: records.Row | None = None
    ) -> None:
        self.rc, self.device, self.effort, self.copies = rc, device, effort, copies
        self.stamp = stamp or {}  # what every row carries: its commit and its run
        self.rows: list[records.Row] = []
        self.failures: list[str] = []
        self.ours_failed = False
        self.bandwidth = 0.0
        self.synchronize: Call = torch.cuda.synchronize if device == "cuda" else lambda: None

    def case(self, case: AnyCase, contenders: Sequence[str], threads: int | None, progress: Progress) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
            self.rc.set_num_threads(threads)
        first: Any = case.make(self.device)
        floor_bytes = case.floor_bytes(first)
        common: records.Row = {"floor_bytes": floor_bytes}
        sets = [first]
        if self.device == "cuda":
            common["floor_us"] = floor_bytes / self.bandwidth * 1e6
            common["copies"] = self.copies or timing.copies(floor_bytes)
            sets += [case.make(self.device, seed) for seed in range(1, common["copies"])]
        else:
            common["floor_us"] = timing.memcpy_us(floor_bytes, self.effort)
            common["threads"] = threads
        truth = case.truth(first)
        for who in contenders:
            progress.begin(f"{case.title}: {who}")
            try:
                row = self.stamp | {"op": case.op, "case": case.name, "who": who}
                row |= self._contender(case, who, sets, truth, common)
            except Absent as reason:
                progress.end(f"{case.title}: {who}: skipped: {reason}")
                continue
            except Exception as error:  # the other contenders are still measured
                self.failed(f"{case.title}: {who}", error, who)
                progress.end(self.failures[-1])
                if not isinstance(error, Disagreement):
                    self.synchronize()  # raises where the device is lost, and nothing more can be measured
                continue
            self.rows.append({name: _rounded(value) for name, value in row.items()})
            shown = [f"{name} {row[name + '_us']:.2f}" for name in ("cold", "warm", "wall") if row.get(name + "_us")]
            shown.append(f"floor {common['floor_us']:.2f}")
            units = {"windows_per_s": "windows/s", "first_batch_ms": "ms to the first batch", "peak_mib": "MiB at most"}
            more = "".join(f", {row[name]:,.0f} {unit}" for name, unit in units.items() if name in row)
            shown[-1] += f" us, relative error {row['relative_error']:.1e}{more}"
            progress.end(f"{case.title}: {who}: {', '.join(shown)}")

    def failed(self, what: str, error: BaseException, who: str = OURS) -> None:
        """Keeps the sentence. Only a failure of ours makes the whole run fail."""
        self.failures.append(f"{what}: {_sentence(error)}")
        self.ours_failed |= who == OURS
        if not isinstance(error, Disagreement):
            traceback.print_exception(error, limit=-4, file=sys.stderr)
        error.__traceback__ = None  # it holds the tensors of every frame

    def _contender(
        self, case: AnyCase, who: str, sets: Sequence[Any], truth: Sequence[torch.Tensor], common: records.Row
    ) -> records.Row:
        with case.settings(who):
            return self._measured(case, who, sets, truth, common)

    def _measured(
        self, case: AnyCase, who: str, sets: Sequence[Any], truth: Sequence[torch.Tensor], common: records.Row
    ) -> records.Row:
        calls = self._calls(case, who, sets)
        row = common | {"cold_us": None, "warm_us": None, "wall_us": None, "wall_p99_us": None}
        row["relative_error"] = self._agreement(case, who, calls[0], truth)
        if self.device == "cpu":
            row["wall_us"] = timing.wall(calls[0], self.effort, self.synchronize, ahead=case.prefetched(who))
            row["wall_p99_us"] = timing.tail_on_cpu(calls[0], self.effort, row["wall_us"])
            row["memcpy_share"] = row["floor_us"] / row["wall_us"]
            return row | _rate(case, row) | case.figures(who, sets[0])
        row["wall_us"] = timing.wall(calls[0], self.effort, self.synchronize)
        row["wall_p99_us"] = timing.tail_on_cuda(calls[0], self.effort, row["wall_us"])
        row |= _rate(case, row)
        if case.waits(who):
            return row | case.figures(who, sets[0])
        if who == OURS and case is SMALL_FUSE:
            row["host_without_launch_us"] = timing.host(case.without_launch(self.rc, sets[0]))
        try:
            if who == TUNED:
                calls = self._calls(case, who, sets, own_graphs=False)
            row["cold_us"] = timing.graph(calls, self.effort, row["wall_us"])
            row["warm_us"] = timing.graph(calls[:1], self.effort, row["wall_us"])
        except Exception as error:
            self.failed(f"{case.title}: {who}: no cold figure, the capture failed", error, who)
        if who == OURS:
            self.rc.synchronize()  # raises what a kernel found in the data
        return row

    def _calls(self, case: AnyCase, who: str, sets: Sequence[Any], own_graphs: bool = True) -> list[Call]:
        """`own_graphs`: max-autotune runs in CUDA graphs of its own, which the graph for cold times cannot hold."""
        if who == OURS:
            return [case.ours(self.rc, inputs) for inputs in sets]
        if who not in (EAGER, COMPILED, TUNED):
            return [case.other_call(who, inputs) for inputs in sets]
        function: Callable[..., Any] | None = None
        if who != EAGER:
            torch._dynamo.reset()  # else the second shape gets slower kernels of dynamic shape
            tuned = "max-autotune" if own_graphs else "max-autotune-no-cudagraphs"
            function = torch.compile(case.peer, dynamic=False, mode=tuned if who == TUNED else "default")
        return [case.peer_call(inputs, function) for inputs in sets]

    def _agreement(self, case: AnyCase, who: str, call: Call, truth: Sequence[torch.Tensor]) -> float:
        results, truth = case.compared(who, case.results(call())), case.compared(who, list(truth))
        if len(results) != len(truth):
            raise Disagreement(f"{len(results)} results, expected {len(truth)}")
        worst = 0.0
        for got, exact in zip(results, truth, strict=True):
            same = got.dtype == exact.dtype and torch.equal(got, exact)  # a billion cells as float64 would take 9 GB
            error = 0.0 if same else relative_error([got], [exact])
            bound = case.roundings * TOLERANCE.get(got.dtype, 0.0) if who == OURS else PEER_TOLERANCE
            if not error <= bound:
                raise Disagreement(f"disagrees with the float64 truth: relative error {error:.2e}, at most {bound:.0e}")
            worst = max(worst, error)
        return worst


def _rate(case: AnyCase, row: records.Row) -> records.Row:
    return {"windows_per_s": case.windows / row["wall_us"] * 1e6} if case.windows else {}


def _sentence(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text if isinstance(error, Disagreement) else f"{type(error).__name__}: {text.splitlines()[0][:300]}"


def _rounded(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return round(value, 1) if value >= 1000 else float(f"{value:.4g}")


class Run:
    """A whole run: the machine, the cases, the file, the table."""

    def __init__(
        self,
        options: argparse.Namespace,
        device: str,
        peers: list[str],
        cases: Sequence[AnyCase],
        threads: list[int | None],
    ) -> None:
        self.options, self.device, self.peers, self.cases, self.threads = options, device, peers, cases, threads
        self.effort = timing.Effort(options.quick)
        rc = importlib.import_module("robocache")
        self.record = records.header(device) | {"robocache": rc.__version__}
        stamp = {name: self.record[name] for name in ("commit", "run")}
        self.bench = Bench(rc, device, self.effort, options.copies, stamp)
        self.path: Path = options.json or records.BUILT / f"{self.record['machine']}.json"
        old = records.load(self.path)
        known = {(case.op, case.name) for case in CASES}
        self.earlier = records.keep_others(old, self.record, "rows", lambda row: (row["op"], row["case"]) not in known)
        self.kernels = records.keep_others(old, self.record, "kernels", lambda entry: False)

    def all(self) -> int:
        self._machine()
        lines = len(self.threads) * sum(len(self._contenders(case)) for case in self.cases)
        print(f"{lines} lines to measure{'' if self.options.quick else '; --quick takes less time'}, into {self.path}")
        with Progress(lines) as progress:
            for threads in self.threads:
                for case in self.cases:
                    if not self._case(case, threads, progress):
                        return self._finish()
        return self._finish()

    def _machine(self) -> None:
        record = self.record
        model = record["gpu"] or record["cpu"]
        print(f"{record['machine']}: {model}, torch {record['torch']}, commit {record['commit']}")
        if record["load"] > 0.5:
            print(f"WARNING the load average is {record['load']}: other programs run here, and host times suffer")
        if self.device == "cuda":
            self.bench.bandwidth = timing.copy_bytes_per_s()
            torch.cuda.empty_cache()
            record["copy_bytes_per_s"] = round(self.bench.bandwidth)
            record["empty_kernel_us"] = self._figure("an empty kernel", lambda: timing.empty_kernel_us(self.effort))
            bandwidth, empty = self.bench.bandwidth / 1e12, record["empty_kernel_us"]
            print(f"copy {bandwidth:.2f} TB/s, an empty kernel in a graph {empty} us")
        record["import_ms"] = self._figure("import robocache", timing.import_ms)
        print(f"import robocache: {record['import_ms']} ms beyond NumPy's own import", flush=True)

    def _figure(self, what: str, measure: Callable[[], float | None]) -> float | None:
        try:
            return _rounded(measure())
        except Exception as error:
            self.bench.failed(what, error)
            return None

    def _contenders(self, case: AnyCase) -> list[str]:
        skipped = (COMPILED, TUNED) if self.options.quick and not case.has_goal else ()
        return [OURS, *(who for who in case.peers(self.device) if who in self.peers and who not in skipped)]

    def _case(self, case: AnyCase, threads: int | None, progress: Progress) -> bool:
        """False where the device is lost and nothing more can be measured."""
        alive = True
        try:
            self.bench.case(case, self._contenders(case), threads, progress)
        except Absent as reason:
            progress.end(f"{case.title}: skipped: {reason}")
        except Exception as error:
            self.bench.failed(case.title, error)
            progress.end(self.bench.failures[-1])
        gc.collect()
        if self.device == "cuda":
            try:
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
            except RuntimeError as error:
                self.bench.failed("the device is lost, nothing after that was measured", error)
                alive = False
        self._save()
        return alive

    def _kept(self) -> list[records.Row]:
        """The rows of an earlier run that this one has not measured, or not yet."""
        measured = {records.key(row) for row in self.bench.rows}
        return [row for row in self.earlier if records.key(row) not in measured]

    def _save(self) -> None:
        rows = [*self.bench.rows, *self._kept()]
        for row in rows:
            if "host_without_launch_us" in row:
                self.record["host_without_launch_us"] = row["host_without_launch_us"]
        whole = self.record | {"rows": rows} | ({"kernels": self.kernels} if self.kernels else {})
        records.save(self.path, whole, [(case.op, case.name) for case in CASES])

    def _finish(self) -> int:
        print(f"\n{table(self.bench.rows, self.device)}\n")
        if self.device == "cuda":
            print(
                f"host time of {SMALL_FUSE.title}, all but the launch: {self.record.get('host_without_launch_us')} us"
            )
        for failure in self.bench.failures:
            print(f"FAILED {failure}")
        print(f"{self.path}: {len(self.bench.rows)} rows measured, {len(self._kept())} kept")
        return 1 if self.bench.ours_failed else 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("bench.run", description="Ours beside torch, timed.")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: cuda where there is one")
    parser.add_argument("--json", type=Path, help="default: build/bench/<machine>.json; rows not measured are kept")
    parser.add_argument("--only", metavar="PATTERN", help="cases whose title contains it; * is anything")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="fewer repeats; no long cases; torch.compile only on the rows that have a goal",
    )
    parser.add_argument(
        "--peers", default=",".join(PEERS), help=f"comma separated, of {', '.join(PEERS)}; none: ours alone"
    )
    parser.add_argument("--threads", default="", help="on a CPU: comma separated; default: all cores")
    parser.add_argument("--copies", type=int, help="on CUDA: input sets to rotate; default: past the L2")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = _arguments(argv)
    # torch.compile warns of a CUDA toolkit without a GPU.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        print("bench.run: torch sees no CUDA device; try --device cpu", file=sys.stderr)
        return 2
    chosen = [] if options.peers == "none" else options.peers.split(",")
    if unknown := set(chosen) - set(PEERS):
        names = ", ".join(sorted(unknown))
        print(f"bench.run: no peer is named {names}; there are {', '.join(PEERS)}", file=sys.stderr)
        return 2
    if importlib.util.find_spec("robocache") is None:
        print("bench.run: robocache is not installed in this Python; `make bench` installs it", file=sys.stderr)
        return 2
    cases = [case for case in select(options.only) if device in case.devices and not (options.quick and case.is_long)]
    if not cases:
        print(f"bench.run: no case matches {options.only!r}; the titles are:", file=sys.stderr)
        print("\n".join(f"  {case.title}" for case in CASES), file=sys.stderr)
        return 2
    threads = [int(count) for count in options.threads.split(",") if count] or [os.cpu_count() or 1]
    rounds: list[int | None] = [None] if device == "cuda" else list(threads)
    return Run(options, device, chosen, cases, rounds).all()


if __name__ == "__main__":
    sys.exit(main())
