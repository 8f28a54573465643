#!/usr/bin/env python3
"""Adds up JUnit reports of ctest and pytest: why tests were skipped, which failed, how, and one closing line of counts.

A backend that cannot run here counts as one skip for each reason, however many of its cases were not run."""

import argparse
import re
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

BACKENDS = ("cuda",)  # those that a machine may lack: their tests are skipped with "cuda: WHY"
SHOWN = 5  # the number of failed tests whose last lines are printed
# pytest says how many cases one skip stands for (tests/python/conftest.py); a C++ test stands for itself.
BACKEND = re.compile(rf"({'|'.join(BACKENDS)}): (?:([\d,]+) cases? not run: )?(.+)")


def skip_reason(case: ElementTree.Element, skipped: ElementTree.Element) -> str:
    said = re.search(r": Skipped\n(.+)", case.findtext("system-out") or "")  # GoogleTest, through ctest
    return said[1] if said else skipped.get("message", "no reason given")


def end_of(case: ElementTree.Element, broken: ElementTree.Element) -> str:
    """The last lines that a failed test printed. CI shows only the end of its output, so they must stand there."""
    text = f"{broken.text or broken.get('message') or ''}\n{case.findtext('system-out') or ''}"
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(f"    {line[:300]}" for line in lines[-15:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--note", help="what the closing line says behind the counts")
    parser.add_argument("reports", nargs="+")
    options = parser.parse_args()
    passed, failed, skipped, not_run = 0, [], Counter(), Counter()
    for report in options.reports:
        if not Path(report).exists():
            failed.append(f"{report} was not written: its run died")
            continue
        for case in ElementTree.parse(report).iter("testcase"):
            skip = case.find("skipped")
            broken = next((part for part in case if part.tag in ("failure", "error")), None)
            if broken is not None:
                end = f"\n{end_of(case, broken)}" if len(failed) < SHOWN else ""
                failed.append(f"{report}: {case.get('classname')}: {case.get('name')}{end}")
            elif skip is None:
                passed += 1
            elif whole := BACKEND.fullmatch(reason := skip_reason(case, skip)):
                not_run[whole[1], whole[3]] += int((whole[2] or "1").replace(",", ""))
            else:
                skipped[reason] += 1
    for (backend, why), count in not_run.most_common():
        print(f"{backend}: {count:,} {'case' if count == 1 else 'cases'} not run: {why}")
    for reason, count in skipped.most_common():
        print(f"skipped {count}: {reason}")
    for name in failed:
        print(f"failed {name}")
    note = f"; {options.note}" if options.note else ""
    print(f"{passed} passed, {len(failed)} failed, {skipped.total() + len(not_run)} skipped{note}")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
