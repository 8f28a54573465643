"""Where the benchmark's rows come from: the commit and run of each, which are old, and what the tables say of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import provenance, records, table

RESULTS = sorted(records.RESULTS.glob("*.json"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_every_row_names_its_commit_and_the_table_prints_it(path):
    record = json.loads(path.read_text())
    lines = table.tables([record], {}).splitlines()
    for row in record["rows"]:
        shown = [line for line in lines if line.startswith(f"| {row['op']} {row['case']} |")]
        assert shown, row
        ran_at = f"`{row['commit']}`"  # in the last cell, behind the name where the contenders' commits differ
        cell = ran_at + (f", torch {row['torch']}" if "torch" in row else "")
        assert any(line.endswith(f"| {cell} |") or f"{row['who']} {ran_at}" in line for line in shown), row
    assert all(entry["commit"] for entry in record.get("kernels", []))


@pytest.fixture
def history(tmp_path, monkeypatch):
    """A repository of 60 commits, which provenance asks in place of ours, and their names, the oldest first."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]

    def run(*words: str) -> str:
        return subprocess.run([*git, *words], capture_output=True, text=True, check=True).stdout

    run("init", "--quiet")
    for number in range(60):
        run("commit", "--quiet", "--allow-empty", "-m", str(number))
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    return [name[:12] for name in run("rev-list", "--reverse", "HEAD").split()]


def test_rows_are_old_after_50_commits_and_lost_where_git_does_not_know_them(history):
    for commit, mark in ((history[9], ""), (history[8], "old"), (history[0], "old"), (history[-1], "")):
        assert provenance.marks_by_git([commit, f"{commit}-dirty"]) == {commit: mark, f"{commit}-dirty": mark}
    assert provenance.marks_by_git(["0123456789ab", "unknown"]) == {"0123456789ab": "lost", "unknown": "lost"}


def test_a_shallow_clone_and_no_repository_cannot_say(history, tmp_path, monkeypatch):
    shallow = tmp_path / "shallow"
    subprocess.run(["git", "clone", "--quiet", "--depth=5", f"file://{tmp_path}", shallow], check=True)
    monkeypatch.setattr(provenance, "ROOT", shallow)
    assert provenance.marks_by_git(history) is None
    plain = tmp_path / "plain"
    plain.mkdir()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.setattr(provenance, "ROOT", plain)
    assert provenance.marks_by_git(history) is None


def test_the_check_needs_no_git(tmp_path):
    environment = os.environ | {"PATH": str(tmp_path)}
    command = [sys.executable, "-m", "bench.table", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=records.ROOT, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def empty_page(folder: Path) -> Path:
    document = folder / "page.md"
    document.write_text(f"before\n{table.BEGIN}\n{table.END}\nafter\n")
    return document


def one_commit(marks: provenance.Marks) -> str:
    return provenance.named("0123456789ab", marks)


def test_the_check_passes_when_a_row_has_become_old_and_notes_it(tmp_path):
    """Else a commit would fail though nothing is wrong with it."""
    document, fresh, old = empty_page(tmp_path), {"0123456789ab": ""}, {"0123456789ab": "old"}
    assert table.refresh(document, one_commit, fresh) is None
    assert table.differs(document, one_commit) is None
    assert table.outdated(document, one_commit, fresh) is None
    assert "are out of date; python -m bench.table renews them" in table.outdated(document, one_commit, old)
    assert table.refresh(document, one_commit, old) is None
    assert document.read_text() == f"before\n{table.BEGIN}\n`0123456789ab` (old)\n{table.END}\nafter\n"
    assert table.differs(document, one_commit) is None
    assert table.outdated(document, one_commit, old) is None
    assert table.outdated(document, one_commit, None) is None, "git cannot say"


def test_the_check_fails_where_a_document_is_not_what_the_results_give(tmp_path):
    document = empty_page(tmp_path)
    assert table.refresh(document, one_commit, None) is None
    assert "is not what the results give" in table.differs(document, lambda marks: "other")
    document.write_text(document.read_text().replace("0123456789ab", "ba9876543210"))
    assert "is not what the results give" in table.differs(document, one_commit)
    document.write_text("no place")
    assert "needs one place" in table.differs(document, one_commit)
    assert "needs one place" in table.refresh(document, one_commit, None)


@pytest.mark.parametrize("mark", ["", "old", "lost"])
def test_no_number_of_commits_makes_the_check_fail(mark, monkeypatch, capsys):
    monkeypatch.setattr(provenance, "marks_by_git", lambda commits: dict.fromkeys(commits, mark))
    assert table.main(["--check"]) == 0
    assert all("note: some marks (old, lost)" in line for line in capsys.readouterr().err.splitlines())


def row(who: str, commit: str = "a", **more: str) -> dict[str, str]:
    return {"who": who, "commit": commit} | more


def test_rows_that_are_compared_say_where_their_commits_or_runs_differ():
    def cell(*rows):
        return provenance.cell(rows, {"b": "lost"})

    assert cell(row("robocache"), None, row("torch")) == "`a`"
    assert cell(row("robocache", run="1"), row("torch", run="1")) == "`a`"
    assert cell(row("robocache", run="1"), row("torch", run="2")) == "`a`, in different runs"
    assert cell(row("robocache", run="1"), row("torch")) == "`a`, in different runs"
    assert cell(row("robocache"), row("torch", "b")) == "robocache `a`; torch `b` (lost)"
    assert cell(row("robocache"), row("torch", torch="2.11")) == "`a`, torch 2.11"


def test_one_run_is_said_only_of_one_run():
    def said(*rows):
        return provenance.summary({"rows": rows})

    one = row("robocache", run="2026-11-18T19:00:00Z")
    assert said(one, one) == "All rows come from one run, which began at 2026-11-18T19:00:00Z."
    assert said(one, row("torch", run="2026-11-18T20:00:00Z")) == "The rows come from 2 runs at one commit."
    assert said(one, row("torch")) == "All rows are of one commit; whether they come from one run was not recorded."
    assert said(one, row("torch", "b")) == "The rows come from runs at 2 commits; each row names its own."


def test_what_an_earlier_run_measured_keeps_its_commit_run_and_versions(tmp_path):
    rows = [{"op": "x", "case": "1", "who": "robocache"}, {"op": "x", "case": "2", "who": "torch", "commit": "z"}]
    old = {"machine": "m", "commit": "a", "torch": "1", "rows": rows}
    new = {"machine": "m", "commit": "b", "torch": "2", "cuda": None, "driver": None}
    kept = records.keep_others(old, new, "rows", lambda entry: entry["case"] == "3")
    assert kept == [{"commit": "a", "torch": "1"} | rows[0], {"commit": "z", "torch": "1"} | rows[1]]
    assert records.keep_others(old, new | {"machine": "other"}, "rows", lambda entry: False) == []
    again = records.keep_others(new | {"rows": kept}, new | {"torch": "1"}, "rows", lambda entry: False)
    assert again == [{"commit": "a"} | rows[0], rows[1]]  # the file's version is theirs again


def test_the_page_says_what_is_known_of_the_lost_commit():
    page = Path(records.ROOT / "docs" / "benchmarks.md").read_text()
    for path in RESULTS:
        for sentence in provenance.notes(json.loads(path.read_text())):
            assert sentence in page
