"""Where a row comes from: its commit and its run, as the tables print them, and which rows are old."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.data import ROOT
from bench.goals import COMPILED, TUNED

OLD_COMMITS = 50  # a row measured more commits ago than this is marked
OLD, LOST = "old", "lost"
LEGEND = {
    OLD: f"old: measured more than {OLD_COMMITS} commits ago.",
    LOST: "lost: the commit is not in the git history.",
}
# What is known of a commit that the git history does not have.
KNOWN_LOST = {
    "100a3b0c7668": "Commit `100a3b0c7668` is not in the git history, because the commits of that session were lost; "
    "its sources are equal to those of commit `1c9c510`, but for small changes that came later.",
}

# Rows without a run are older than the settings of SDPA that bench/attention.py has now.
EARLIER_SDPA = (
    "The rows of attention were measured before SDPA got its best settings: it converted a boolean mask in every call, "
    "and the wall times of forced kernels hold the cost of forcing them."
)

Marks = Mapping[str, str]  # from a commit to OLD, LOST or ""


def commits_of(record: Mapping[str, Any]) -> set[str]:
    return {row["commit"] for row in record["rows"]}


def marks_by_git(commits: Iterable[str]) -> Marks | None:
    """None where git cannot say: it is not installed, this is no clone, or the clone lacks old commits."""
    if _git("rev-parse", "--is-shallow-repository") != "false":
        return None
    marks = {}
    for commit in commits:
        name = commit.removesuffix("-dirty")
        known = name != "unknown" and _git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        count = _git("rev-list", "--count", f"{known}..HEAD") if known else None
        marks[commit] = LOST if count is None else OLD if int(count) > OLD_COMMITS else ""
    return marks


def marks_in(text: str) -> Marks:
    """The marks that a document has, for where git cannot say."""
    return dict(re.findall(rf"`([\w-]+)` \(({OLD}|{LOST})\)", text))


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], capture_output=True, text=True, timeout=60, check=True, cwd=ROOT)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def named(commit: str, marks: Marks) -> str:
    """'`0123456789ab` (old)'"""
    mark = marks.get(commit)
    return f"`{commit}`" + (f" ({mark})" if mark else "")


def cell(rows: Sequence[Mapping[str, Any] | None], marks: Marks) -> str:
    """The commit of rows that are compared. Where they are not of one commit and one run, it says so."""
    there = [row for row in rows if row]
    commits = list(dict.fromkeys(row["commit"] for row in there))
    if len(commits) > 1:
        told = "; ".join(f"{row['who']} {named(row['commit'], marks)}" for row in there)
    else:
        told = named(commits[0], marks)
        if len({row.get("run") for row in there}) > 1:
            told += ", in different runs"
    versions = dict.fromkeys(f"torch {row['torch']}" for row in there if "torch" in row)
    return ", ".join([told, *versions])


def summary(record: Mapping[str, Any]) -> str:
    """Whether all rows of a machine come from one run, in one sentence."""
    rows = record["rows"]
    commits, runs = commits_of(record), {row.get("run") for row in rows}
    if len(commits) > 1:
        return f"The rows come from runs at {len(commits)} commits; each row names its own."
    if None in runs:
        return "All rows are of one commit; whether they come from one run was not recorded."
    if len(runs) > 1:
        return f"The rows come from {len(runs)} runs at one commit."
    return f"All rows come from one run, which began at {runs.pop()}."


def notes(record: Mapping[str, Any]) -> list[str]:
    """What else a reader must know of these rows."""
    found = [sentence for commit, sentence in KNOWN_LOST.items() if commit in commits_of(record)]
    if any(row["op"] == "attention" and "run" not in row for row in record["rows"]):
        found.append(EARLIER_SDPA)
    contenders = {row["who"] for row in record["rows"]}
    if COMPILED in contenders and TUNED not in contenders:
        found.append("torch.compile in max-autotune mode has not been measured on this machine yet.")
    return found
