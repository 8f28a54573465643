#!/usr/bin/env python3
"""Adds up JUnit reports of ctest and pytest: why tests were skipped, which failed, and one closing line of counts."""

import argparse
import re
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree


def skip_reason(case: ElementTree.Element, skipped: ElementTree.Element) -> str:
    said = re.search(r": Skipped\n(.+)", case.findtext("system-out") or "")  # GoogleTest, through ctest
    return said[1] if said else skipped.get("message", "no reason given")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--note", help="what the closing line says behind the counts")
    parser.add_argument("reports", nargs="+")
    options = parser.parse_args()
    passed, failed, skipped = 0, [], Counter()
    for report in options.reports:
        if not Path(report).exists():
            failed.append(f"{report} was not written: its run died")
            continue
        for case in ElementTree.parse(report).iter("testcase"):
            skip = case.find("skipped")
            if case.find("failure") is not None or case.find("error") is not None:
                failed.append(f"{report}: {case.get('classname')}: {case.get('name')}")
            elif skip is not None:
                skipped[skip_reason(case, skip)] += 1
            else:
                passed += 1
    for reason, count in skipped.most_common():
        print(f"skipped {count}: {reason}")
    for name in failed:
        print(f"failed {name}")
    note = f"; {options.note}" if options.note else ""
    print(f"{passed} passed, {len(failed)} failed, {skipped.total()} skipped{note}")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
