#!/usr/bin/env python3
"""Keeps the result of one step of tools/distros in a JSON file, and in the table of docs/versions.md, which keeps the
rows of the other steps. The table is left alone where the checkout has changes that its commit does not have."""

from __future__ import annotations

import argparse
import json
import re
import time
from pathlib import Path

import page

PAGE = Path(__file__).resolve().parents[1] / "docs/versions.md"
HEAD = ["| step | result | versions | commit | date |", "| --- | --- | --- | --- | --- |"]


def table(before: str, every: list[str], new: dict[str, str]) -> str:
    """The rows of `every` step: those of the table that is there, but for the new ones."""
    old = re.findall(r"^\| `([^`]+)` .*$", before, re.MULTILINE)
    lines = dict(zip(old, re.findall(r"^\| `.*$", before, re.MULTILINE), strict=True)) | new
    return "\n".join([*HEAD, *(lines.get(step, f"| `{step}` | not run yet | | | |") for step in every)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("step")
    parser.add_argument("result")
    parser.add_argument("seconds", type=int)
    parser.add_argument("versions")
    parser.add_argument("commit")
    parser.add_argument("every", nargs="+", help="all steps, in the order of the table")
    said = parser.parse_args()
    date = time.strftime("%Y-%m-%d", time.gmtime())
    results = json.loads(said.results.read_text()) if said.results.exists() else {}
    results[said.step] = {
        "result": said.result,
        "seconds": said.seconds,
        "versions": said.versions,
        "commit": said.commit,
        "date": date,
    }
    said.results.write_text(json.dumps(results, indent=1) + "\n")
    if re.fullmatch(r"[0-9a-f]+", said.commit):
        line = f"| `{said.step}` | {said.result} | {said.versions} | `{said.commit}` | {date} |"
        page.write(PAGE, "tools/distros", table(page.written(PAGE, "tools/distros"), said.every, {said.step: line}))


if __name__ == "__main__":
    main()
