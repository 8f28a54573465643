"""Tables for people: with Rich where it is installed, in plain text where it is not."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence

PLAIN_WIDTH = 110  # where the output is no terminal: a log or a paste


def table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]], *, best: int | None = None) -> None:
    """Prints rows under a title; the first column is a name, the others are figures. `best` is set in bold green."""
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ModuleNotFoundError:
        print(plain(title, headers, rows))
        return
    console = Console()
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    shown = Table(title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, header in enumerate(headers):
        style = "bold green" if number == best else ""
        shown.add_column(Text(header), justify="right" if number else "left", style=style, no_wrap=number == 0)
    for row in rows:
        shown.add_row(*(Text(cell) for cell in row))
    console.print(shown)


def plain(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same as text; an empty line ends it."""
    widths = [max(len(line[k]) for line in (headers, *rows)) for k in range(len(headers))]

    def joined(line: Sequence[str]) -> str:
        cells = [
            cell.rjust(width) if k else cell.ljust(width)
            for k, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    rule = "-" * (sum(widths) + 2 * len(widths) - 2)
    return "\n".join([title, "", joined(headers), rule, *map(joined, rows), ""])


def paragraph(text: str) -> None:
    """Prints a sentence or two, broken at the width of the terminal."""
    columns = shutil.get_terminal_size((PLAIN_WIDTH, 0)).columns
    print(textwrap.fill(text, min(columns, PLAIN_WIDTH), break_long_words=False, break_on_hyphens=False))
