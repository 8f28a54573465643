"""The part of a document that a tool writes: the lines between its own comment and <!-- to here -->."""

from __future__ import annotations

from pathlib import Path


def _split(page: Path, tool: str) -> tuple[str, str, str]:
    begin, end = f"<!-- {tool} writes from here -->\n", "<!-- to here -->"
    before, rest = page.read_text().split(begin)
    written, after = rest.split(end, 1)
    return before + begin, written, end + after


def written(page: Path, tool: str) -> str:
    return _split(page, tool)[1]


def write(page: Path, tool: str, text: str) -> None:
    before, _, after = _split(page, tool)
    page.write_text(f"{before}{text.rstrip()}\n{after}")
