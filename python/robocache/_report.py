"""Tables for people: with Rich where it is installed, in plain text where it is not."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import Literal

PLAIN_WIDTH = 110  # where the output is no terminal: a log or a paste
BETWEEN = 2  # characters, of columns
LEAST_NAME, LEAST_WORDS = 20, 16  # what names and words may be narrowed to


def table(
    title: str,
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    best: int | None = None,
    spare: Sequence[str] = (),
) -> None:
    """Prints rows under a title; the first column is a name, the others are figures or words. `best` is in bold green.

    Where the terminal is too narrow, columns that are `spare` are left out, the first of them first; names fold at the
    middle, and words wrap. Figures are never cut.
    """
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ModuleNotFoundError:
        print(plain(title, headers, rows))
        return
    console = Console()
    width = console.width if console.is_terminal else PLAIN_WIDTH
    columns = {header: [row[k] for row in rows] for k, header in enumerate(headers)}
    widths = fitted(columns, width, spare)
    console.width = max(width, sum(widths.values()) + BETWEEN * len(widths))
    shown = Table(title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    shown.padding = (0, BETWEEN - 1, 0, 0)
    for number, header in enumerate(widths):
        justify: Literal["left", "right"] = "right" if number and is_figures(columns[header]) else "left"
        style = "bold green" if best is not None and header == headers[best] else ""
        shown.add_column(Text(wrapped(header, widths[header])), justify=justify, style=style, no_wrap=True)
    for k in range(len(rows)):
        cells = [
            (wrapped if number else folded)(columns[header][k], room)
            for number, (header, room) in enumerate(widths.items())
        ]
        shown.add_row(*map(Text, cells))
    console.print(shown)


def fitted(columns: Mapping[str, Sequence[str]], width: int, spare: Sequence[str] = ()) -> dict[str, int]:
    """The columns that are shown, and how wide each is."""
    least = {header: narrowest(header, cells, not number) for number, (header, cells) in enumerate(columns.items())}
    for header in spare:
        if sum(least.values()) + BETWEEN * len(least) > width:
            least.pop(header, None)
    left = width - sum(least.values()) - BETWEEN * len(least)
    wanted = {header: max(map(len, (header, *columns[header]))) - room for header, room in least.items()}
    name, *others = least
    for number, header in enumerate([name, *sorted(others, key=lambda header: wanted[header])]):
        share = left if number == 0 else left // (len(least) - number)  # names first, the others alike
        more = max(min(wanted[header], share), 0)
        least[header] += more
        left -= more
    return least


def narrowest(header: str, cells: Sequence[str], is_name: bool) -> int:
    if is_name:
        return min(max(map(len, (header, *cells))), LEAST_NAME)
    if is_figures(cells):
        return max(map(len, [*header.split(), *cells]), default=0)
    words = [word for cell in (header, *cells) for word in cell.split()]
    return min(max(map(len, words), default=0), LEAST_WORDS)


def is_figures(cells: Sequence[str]) -> bool:
    """Not words: a cell begins with a digit, or none with anything."""
    return any(cell.lstrip("+-")[:1].isdigit() for cell in cells) or all(cell in ("", "-") for cell in cells)


def wrapped(cell: str, width: int) -> str:
    return "\n".join(textwrap.wrap(cell, max(width, 1)))


def folded(name: str, width: int) -> str:
    """Its two ends: topics and files differ there."""
    if len(name) <= width:
        return name
    end = width // 2
    return f"{name[: width - end - 1]}…{name[-end:]}"


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
