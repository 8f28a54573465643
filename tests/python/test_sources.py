"""Rules about source files that no compiler and no linter checks (docs/design.md, The rules)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST_LINES_OF_FUNCTION = 100
MOST_LINES_OF_FILE = 600
COMMENT_OR_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.S)
PREPROCESSOR = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)
NOT_A_FUNCTION = re.compile(r"\b(?:namespace|extern)\s*\w*\s*$|^(?:struct|class|enum|union)\b")


def files(*patterns: str) -> list[Path]:
    return sorted(path for pattern in patterns for path in ROOT.glob(pattern))


def blanked(pattern: re.Pattern[str], text: str) -> str:
    """The text with what matches made blank, and the lines as they were."""
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def functions(text: str) -> list[tuple[str, int]]:
    """(head, lines from the head to the closing brace) of each block of C++ that has parentheses in its head."""
    text = blanked(PREPROCESSOR, blanked(COMMENT_OR_TEXT, text))
    found: list[tuple[str, int]] = []
    blocks: list[int] = []
    for match in re.finditer(r"[{}]", text):
        if match[0] == "{":
            blocks.append(match.start())
        elif blocks:
            start = blocks.pop()
            head_start = max(text.rfind(mark, 0, start) for mark in ";{}") + 1
            head = text[head_start:start].strip()
            without_template = re.sub(r"^template\s*<.*?>\s*(?=[a-z_])", "", head, flags=re.S)
            if "(" in head and not NOT_A_FUNCTION.search(without_template):
                lines = text.count("\n", start - len(text[head_start:start].lstrip()), match.start()) + 1
                found.append((" ".join(head.split())[:100], lines))
    return found


def lines_without_docstring(function: ast.FunctionDef) -> int:
    """A docstring is the manual, and may be long."""
    first = function.body[0]
    has_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    docstring = (first.end_lineno or 0) - first.lineno + 1 if has_docstring else 0
    return (function.end_lineno or 0) - function.lineno + 1 - docstring


def test_no_function_of_cpp_is_longer_than_a_hundred_lines() -> None:
    suffixes = {".h", ".cpp", ".cu", ".c"}
    paths = [
        path for path in files("src/**/*", "include/**/*", "python/src/*", "tests/**/*") if path.suffix in suffixes
    ]
    assert len(paths) > 300
    long = [
        f"{path.relative_to(ROOT)}: {head} has {lines} lines"
        for path in paths
        for head, lines in functions(path.read_text())
        if lines > MOST_LINES_OF_FUNCTION
    ]
    assert not long, "\n".join(long)


def test_a_long_function_is_found() -> None:
    body = "  x = (1); // }\n" * 120
    assert functions("template <class T>\n__global__ void kernel(const Call call) {\n" + body + "}\n") == [
        ("template <class T> __global__ void kernel(const Call call)", 123)
    ]


def test_no_function_of_python_is_longer_than_a_hundred_lines() -> None:
    long = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path in files("python/robocache/**/*.py", "bench/**/*.py", "tools/*", "examples/*.py")
        if path.is_file() and (path.suffix == ".py" or path.read_text().startswith("#!/usr/bin/env python3"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and lines_without_docstring(node) > MOST_LINES_OF_FUNCTION
    ]
    assert not long, "\n".join(long)


def test_no_file_is_longer_than_six_hundred_lines() -> None:
    """Tests may be: they have tables of cases."""
    paths = files(
        "src/**/*.*", "include/**/*.h", "python/src/*", "python/robocache/**/*.py", "bench/**/*.py", "tools/*"
    )
    sources = [path for path in paths if path.suffix in (".h", ".cpp", ".cu", ".py", "")]
    sources = [path for path in sources if path.is_file()]
    long = [path for path in sources if len(path.read_text().splitlines()) > MOST_LINES_OF_FILE]
    assert not long


def test_pieces_of_a_source_file_are_included_by_nothing_else() -> None:
    """A header with an anonymous namespace is a piece of .cu and .cpp files, so no ordinary header may include it."""
    for path in files("include/**/*.h", "python/src/*.h"):
        assert not re.search(r"^namespace \{", path.read_text(), re.M), f"{path} is an ordinary header"
    headers = {path.relative_to(ROOT / "src").as_posix(): path.read_text() for path in files("src/**/*.h")}
    pieces = {name for name, text in headers.items() if re.search(r"^namespace \{", text, re.M)}
    assert pieces
    wrong = [
        f"{name} includes {included}"
        for name, text in headers.items()
        if name not in pieces
        for included in re.findall(r'#include "([^"]+)"', text)
        if included in pieces
    ]
    assert not wrong, "\n".join(wrong)
