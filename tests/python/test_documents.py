"""The README and the pages of docs/: their code runs, and console output is what the commands print.

All blocks of a page run in order, in one process and one empty folder: Python blocks share their names, sh blocks run
in bash, and a console block is a `$ command` with the output it must print. A block that cannot run here has a comment
on the line before it, <!-- not run: the reason -->, and the test counts it as skipped with that reason.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

import robocache as rc

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN, SHOWN = ("python", "sh", "console"), ("text", "toml", "cpp", "cmake")
PATIENCE = 300  # seconds


class Block(NamedTuple):
    page: Path
    line: int
    language: str
    text: str
    not_run: str | None

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    found, lines, number = [], page.read_text().splitlines(), 0
    while number < len(lines):
        if fence := re.fullmatch(r"```(\w*)", lines[number]):
            end = lines.index("```", number + 1)
            reason = re.fullmatch(r"<!-- not run: (.+) -->", lines[number - 1]) if number else None
            text = "\n".join(lines[number + 1 : end]) + "\n"
            found.append(Block(page, number + 1, fence[1], text, reason and reason[1]))
            number = end
        number += 1
    return found


ALL = [block for page in PAGES for block in blocks(page)]

# What a page's process begins with.
PRELUDE = """
def _shell(name, command, expected=None):
    import subprocess, sys
    sys.stdout.flush()
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", command], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{name}: exit code {done.returncode} of:\\n{command}\\n{done.stdout}")
    printed = [line.rstrip() for line in done.stdout.splitlines()]
    while printed and not printed[-1]:
        printed.pop()
    if expected is not None and printed != expected:
        sys.exit(f"{name}: the page has:\\n" + "\\n".join(expected) + "\\nIt printed:\\n" + "\\n".join(printed))
"""


def script(page: Path) -> str:
    parts = [PRELUDE]
    for block in blocks(page):
        if block.not_run is not None:
            continue
        if block.language == "python":
            parts.append(f"exec(compile({block.text!r}, {block.name!r}, 'exec'))\n")
        elif block.language == "sh":
            parts.append(f"_shell({block.name!r}, {block.text!r})\n")
        elif block.language == "console":
            command, *printed = block.text.splitlines()
            assert command.startswith("$ "), f"{block.name}: a console block begins with $ and a command"
            parts.append(f"_shell({block.name!r}, {command[2:]!r}, {[line.rstrip() for line in printed]!r})\n")
    return "".join(parts)


def runs(page: Path) -> bool:
    return any(block.language in RUN and block.not_run is None for block in blocks(page))


@pytest.mark.parametrize("page", list(filter(runs, PAGES)), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_runs(page, tmp_path):
    program = script(page)
    for module, sign in (
        ("torch", "import torch"),
        ("typer", "robocache "),
        ("pyarrow", "lerobot"),
        ("h5py", "h5py"),
        ("pandas", "to_pandas"),
        ("jax", "import jax"),
        ("torchdata", "from torchdata"),
        ("lightning", "import lightning"),
        ("accelerate", "from accelerate"),
        ("rerun", "rc.view("),
        ("rerun", "robocache view"),
        ("matplotlib", "import matplotlib"),
        ("torch", "train_policy"),
    ):
        if sign in program and importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    commands = tmp_path / "bin"  # `robocache` and `python` are those under test
    commands.mkdir()
    for name, module in (("robocache", "-m robocache.cli "), ("python", "")):
        (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {module}"$@"\n')
        (commands / name).chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    (work / "examples").symlink_to(ROOT / "examples")
    environment = os.environ | {"PATH": f"{commands}:{os.environ['PATH']}", "HOME": str(tmp_path), "TERM": "dumb"}
    environment.pop("COLUMNS", None)  # the pages show what is printed to a pipe; some shells export their width
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, cwd=work, env=environment
    )
    assert done.returncode == 0, done.stderr[-6000:]


SKIPPED = [block for block in ALL if block.not_run is not None]


@pytest.mark.parametrize("block", SKIPPED, ids=lambda block: block.name)
def test_code_that_is_not_run_says_why(block):
    assert block.language in RUN, "only code that would run needs a reason why it does not"
    if block.language == "python":
        compile(block.text, block.name, "exec")
    elif block.language == "sh":
        subprocess.run(["bash", "-n", "-c", block.text], check=True)
    pytest.skip(block.not_run)


def test_every_block_has_a_language():
    assert [f"{block.name} {block.language}" for block in ALL if block.language not in RUN + SHOWN] == []


def test_toml_is_toml():
    for block in ALL:
        if block.language == "toml":
            tomllib.loads(block.text)


def test_c_plus_plus_is_where_ctest_compiles_it():
    assert {block.page for block in ALL if block.language == "cpp"} == {ROOT / "docs" / "guides" / "cpp.md"}


def test_a_picture_of_the_gallery_has_the_ten_lines_that_made_it():
    """tools/figures.py runs them, and keeps what they leave under the picture's name."""
    page = ROOT / "docs" / "gallery.md"
    starts = [number for number, line in enumerate(page.read_text().splitlines(), 1) if line.startswith("## ")]
    assert len(starts) == 5
    for start, end in zip(starts, [*starts[1:], 10**6], strict=True):
        [block] = [block for block in blocks(page) if start < block.line < end]
        assert sum(bool(line.strip()) for line in block.text.splitlines()) <= 10, block.name
        section = "\n".join(page.read_text().splitlines()[start - 1 : end - 1])
        [picture] = re.findall(r"^!\[.+\]\((.+)\)$", section, re.MULTILINE)
        assert (page.parent / picture).stat().st_size <= 150_000


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 165


def test_the_readme_s_links_lead_to_files():
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / "README.md").read_text())
    assert links
    for link in links:
        assert link.startswith("https://") or (ROOT / link).is_file(), link


def test_the_project_s_address_is_written_once_it_is_known(tmp_path):
    """PyPI shows the README without the files beside it: no link of it may be relative then."""
    for name in ("README.md", "pyproject.toml", "mkdocs.yml", "tools/project_url.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    url = "https://example.org/someone/robocache"
    for _ in range(2):
        subprocess.run([sys.executable, "tools/project_url.py", url], cwd=tmp_path, check=True)
        text = (tmp_path / "README.md").read_text()
        assert not re.findall(r"\]\((?!https://)[^)]*\)", text)
        assert f"({url}/raw/HEAD/docs/images/demo.png)" in text
        assert f"[Quickstart]({url}/blob/HEAD/docs/quickstart.md)" in text
        project = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]
        assert project["urls"]["Repository"] == url
        assert project["optional-dependencies"]
        assert (tmp_path / "mkdocs.yml").read_text().count(f"repo_url: {url}\n") == 1


def public() -> list[tuple[str, object]]:
    """What users call: functions and classes of robocache, robocache.mcap and robocache.ray, and their methods."""
    found = []
    for module in (rc, rc.mcap, rc.ray):
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.isfunction(thing) or inspect.isclass(thing):
                found.append((f"{module.__name__}.{name}", thing))
    for name, thing in list(found):
        if inspect.isclass(thing):
            own = {each: part for each, part in vars(thing).items() if not each.startswith("_")}
            methods = {each: getattr(part, "__func__", part) for each, part in own.items()}
            found += [(f"{name}.{each}", part) for each, part in methods.items() if inspect.isfunction(part)]
            found += [(f"{name}.{each}", part) for each, part in methods.items() if isinstance(part, property)]
    return found


PUBLIC = public()


@pytest.mark.parametrize(("name", "thing"), PUBLIC, ids=[name for name, _ in PUBLIC])
def test_a_docstring_names_every_argument(name, thing):
    """In Google's style, which mkdocstrings reads: an Args section with the arguments in their order."""
    text = inspect.getdoc(thing)
    assert text, "no docstring"
    summary = text.splitlines()[0]
    assert summary.endswith((".", ":")) or "." in summary, summary
    assert not re.search(r"^\w+(, \w+)* {2,}\S", text, re.MULTILINE), "arguments in columns, which no tool reads"
    if isinstance(thing, property) or (inspect.isclass(thing) and "__init__" not in vars(thing)):
        return
    listed = re.search(r"^Args:\n((?: {4}.*\n?)+)", text, re.MULTILINE)
    documented = re.findall(r"^ {4}\*{0,2}(\w+): ", listed[1], re.MULTILINE) if listed else []
    given = [each for each in inspect.signature(thing).parameters if each != "self"]
    if "Args:" in text or (given and not name.startswith(INTERNAL)):
        assert documented == given


# Users get these from a call and do not make them.
INTERNAL = tuple(
    f"robocache.{each}"
    for each in (
        "Dropped",
        "Episode",
        "Recording",
        "RecordedStream",
        "Statistics",
        "StreamReport",
        "SyncReport",
        "Finding",
        "Report",
        "mcap.Message",
        "CacheWriter.knows_better",
    )
)


def test_the_page_of_the_command_line_has_every_command(monkeypatch):
    pytest.importorskip("mkdocs", reason="mkdocs is not installed")
    pytest.importorskip("typer", reason="Typer is not installed")
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import docs_hooks

    page = docs_hooks.page()
    assert re.findall(r"^## robocache (\w+)$", page, re.MULTILINE) == [
        *("doctor", "demo", "info", "report", "build", "export", "statistics", "verify", "view", "bench")
    ]
    assert re.search(r"^\| `.*--output.*` \| A new directory\. .*\|$", page, re.MULTILINE)
