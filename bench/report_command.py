"""`robocache report` of a recording, beside `robocache info --full`, with which it shares the pass over the recording.
Both are commands on one core."""

from __future__ import annotations

import json
import sys
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from bench.builds import BUILD, BUILD_CASES, BuildCase, Recording, output_of
from bench.goals import OURS
from bench.timing import Call

INFO = "robocache info --full"
NAMES = (INFO,)


class ReportCase(BuildCase):
    """The recordings of the builds. The results are how many samples each command has seen."""

    op = "report"

    def peers(self, device: str) -> tuple[str, ...]:
        return NAMES

    def ours(self, rc: ModuleType, recording: Recording) -> Call:
        def call() -> int:
            self._report(recording)
            page = rc.report_data(recording.path.with_suffix(".html"))
            return int(page["recordings"][0]["samples"])

        return call

    def figures(self, who: str, recording: Recording) -> dict[str, float]:
        return {"peak_mib": self._report(recording)} if who == OURS else {}

    def _report(self, recording: Recording) -> float:
        """Writes the page. Returns the peak of resident memory, in MiB."""
        page = str(recording.path.with_suffix(".html"))
        words = [sys.executable, "-c", BUILD, "report", str(recording.path), "-o", page]
        return int(output_of(*words).split()[-1]) / 1024

    def other_call(self, who: str, recording: Recording) -> Call:
        words = [sys.executable, "-c", BUILD, "info", "--full", "--json", str(recording.path)]

        def call() -> int:
            told, _ = json.JSONDecoder().raw_decode(output_of(*words))
            return sum(stream["samples"] for stream in told["sync"]["streams"].values())

        return call

    def truth(self, recording: Recording) -> list[Tensor]:
        return [torch.tensor(recording.messages)]

    def compared(self, who: str, results: list[Any]) -> list[Any]:
        return results


REPORT_CASES = tuple(ReportCase(case.name, case.clouds, case.is_long) for case in BUILD_CASES)
