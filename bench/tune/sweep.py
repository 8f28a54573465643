"""Sweeps numbers of a tuning.h: sets each value, builds, runs rows of the bench, prints a table.

It edits the tuning.h in place, so the checkout must be one where `cmake --build build/dev` builds what Python imports
(`make build`). At the end the old values are restored; with `--write` the best ones stay. It needs a GPU. It has not
been run since it was written: the figures beside the numbers are from sweeps that were made by hand.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Sweep:
    """Settings to compare: each gives values for some constants. `rows` are patterns of the titles of bench rows."""

    settings: Sequence[dict[str, int]]
    rows: Sequence[str]


def over(constant: str, values: Sequence[int], rows: Sequence[str]) -> Sweep:
    """A sweep over one constant."""
    return Sweep([{constant: value} for value in values], rows)


def with_values(text: str, values: dict[str, int]) -> str:
    """A tuning.h with other values for some constants."""
    for name, value in values.items():
        text, count = re.subn(rf"(constexpr [\w:]+ {name} = )[\d']+;", rf"\g<1>{value};", text)
        if count != 1:
            raise SystemExit(f"tuning.h has {count} constants named {name}")
    return text


def measured(rows: Sequence[str]) -> dict[str, float]:
    """Cold microseconds of our rows, by title, in a new process, which loads the library anew."""
    found: dict[str, float] = {}
    for pattern in rows:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rows.json"
            command = [sys.executable, "-m", "bench.run", "--device=cuda", "--peers=none", f"--only={pattern}"]
            subprocess.run([*command, f"--json={path}"], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
            for row in json.loads(path.read_text())["rows"]:
                if row["who"] == "robocache":
                    found[f"{row['op']} {row['case']}"] = row["cold_us"]
    return found


def build() -> None:
    subprocess.run(["cmake", "--build", "build/dev"], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


def best(timed: Sequence[tuple[dict[str, int], dict[str, float]]]) -> dict[str, int]:
    """The values with the least geometric mean over the rows."""
    return min(timed, key=lambda each: sum(map(math.log, each[1].values())))[0]


def run(op: str, sweeps: dict[str, Sweep], argv: Sequence[str] | None = None) -> int:
    """The command line of a module of sweeps."""
    parser = argparse.ArgumentParser(f"bench.tune.{op}", description=f"Sweeps numbers of src/ops/{op}/cuda/tuning.h.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(sweeps)}")
    parser.add_argument("--write", action="store_true", help="keep the best values in tuning.h; the comments stay")
    given = parser.parse_args(argv)
    names = given.names or list(sweeps)
    if unknown := set(names) - set(sweeps):
        parser.error(f"no sweep is named {', '.join(sorted(unknown))}")
    path = ROOT / f"src/ops/{op}/cuda/tuning.h"
    text = path.read_text()  # what stays at the end
    try:
        for name in names:
            print(f"{name}: microseconds, cold")
            timed = []
            for values in sweeps[name].settings:
                path.write_text(with_values(text, values))
                build()
                timed.append((values, measured(sweeps[name].rows)))
                figures = ", ".join(f"{title} {us:.1f}" for title, us in timed[-1][1].items())
                print(f"  {in_words(values)}: {figures}", flush=True)
            if given.write:
                text = with_values(text, best(timed))
                print(f"  written: {in_words(best(timed))}")
    finally:
        path.write_text(text)
    return 0


def in_words(values: dict[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items())
