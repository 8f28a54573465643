"""Crashes at every moment of a piece of work, replayed; test_crash.py runs it in a process of its own.

crash_replay.py SCENARIO FOLDER SHIM COUNT    does the work once under record.c (SHIM), lays out the states that
                                              crash_model.py allows after a crash (COUNT: of its choices()) and checks
                                              each; then the same with the fsyncs of each call site ignored, until a
                                              state breaks. Prints its findings as JSON.
crash_replay.py work SCENARIO FOLDER          the work itself
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from crash_model import Choice, Log, State, lay_out, snapshot
from crash_scenarios import SCENARIOS

# ---- The replay


QUICK = 4  # a COUNT above it tries every moment, too


class Replay:
    def __init__(self, scenario: str, place: Path, shim: Path) -> None:
        self.scenario, self.place, self.root = SCENARIOS[scenario], place, place / "work"
        self.scenario.prepare(place)
        before, inodes = snapshot(self.root)
        log = place / "log"
        environment = {"LD_PRELOAD": str(shim), "RECORD_FOLDER": str(self.root), "RECORD_LOG": str(log)}
        command = [sys.executable, __file__, "work", scenario, str(place)]
        subprocess.run(command, check=True, env=os.environ | environment)
        self.log = Log(self.root, before, inodes, log)
        real = snapshot(self.root)[0]
        end = len(self.log.calls)
        everything = self.log.tree(self.log.state(end, Choice(frozenset(range(end)))))
        assert everything == real, f"the log lacks calls: {[p for p in real if real[p] != everything.get(p)]}"
        self.passed: dict[State, int] = {}  # state -> most marks with which it was checked

    def check(self, at: int, state: State) -> str:
        """What is wrong with a state; empty: nothing."""
        marks = self.log.marks(at)
        if self.passed.get(state, -1) >= len(marks):
            return ""
        tree = self.log.tree(state)
        lay_out(tree, self.root)
        try:
            self.scenario.check(self.place, marks, len(self.passed) % 2 == 1)
        except Exception:
            last = self.log.calls[at - 1].text if at else "nothing"
            return f"crash after call {at} ({last}), marks {marks}, files {sorted(tree)}:\n{traceback.format_exc()}"
        self.passed[state] = len(marks)
        return ""

    def run(self, ignored: frozenset[int], count: int) -> str:
        """What is wrong with the first state that is wrong."""
        for at in self.log.moments(is_thorough=count > QUICK):
            if at < min(ignored, default=0):
                continue
            for choice in self.log.choices(at, ignored, random.Random(at), count):
                wrong = self.check(at, self.log.state(at, choice, ignored))
                if wrong:
                    return wrong
        return ""


def replay(scenario: str, place: Path, shim: Path, count: int) -> dict[str, Any]:
    all_of = Replay(scenario, place, shim)
    wrong = all_of.run(frozenset(), count)
    states = len(all_of.passed)
    unneeded = []
    if not wrong:
        unneeded = [site for site, calls in all_of.log.sites.items() if not all_of.run(calls, count)]
    return {
        "calls": len(all_of.log.calls),
        "states": states,
        "wrong": wrong,
        "fsyncs": sorted(all_of.log.sites),
        "unneeded": unneeded,  # their fsyncs can be ignored, and nothing breaks
    }


def main(arguments: list[str]) -> None:
    if arguments[0] == "work":
        shim = ctypes.CDLL(None)
        SCENARIOS[arguments[1]].work(Path(arguments[2]), lambda text: shim.record_mark(text.encode()))
        return
    scenario, place, shim, count = arguments
    print(json.dumps(replay(scenario, Path(place), Path(shim), int(count))))


if __name__ == "__main__":
    main(sys.argv[1:])
