"""Tables for people: with Rich if it is installed, otherwise in plain text; and in HTML for notebooks."""

from __future__ import annotations

import html
import shutil
import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

PLAIN_WIDTH = 110  # if the output is not a terminal but a log or a paste
BETWEEN = 2  # characters between columns
LEAST_NAME, LEAST_WORDS = 20, 16  # names and words are not made narrower


def table(
    title: str,
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    best: int | None = None,
    spare: Sequence[str] = (),
) -> None:
    """Prints rows under a title. The first column is a name, the others are figures or words. `best` is in bold green.

    If the terminal is too narrow, the columns named in `spare` are dropped one by one, names are shortened in the
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
    """The columns to show, and the width of each."""
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
    """Whether a column holds figures: a cell begins with a digit, or all cells are empty."""
    return any(cell.lstrip("+-")[:1].isdigit() for cell in cells) or all(cell in ("", "-") for cell in cells)


def wrapped(cell: str, width: int) -> str:
    return "\n".join(textwrap.wrap(cell, max(width, 1)))


def folded(name: str, width: int) -> str:
    """The name's two ends, where topics and files differ."""
    if len(name) <= width:
        return name
    end = width // 2
    return f"{name[: width - end - 1]}…{name[-end:]}"


def plain(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table as text, with an empty line at the end."""
    header, *lines = columns([headers, *rows], right=range(1, len(headers)))
    rule = "-" * max(map(len, [header, *lines]))
    return "\n".join([title, "", header, rule, *lines, ""])


def as_html(
    title: str, headers: Sequence[str], rows: Sequence[Sequence[str]], sentences: Sequence[str] = (), left_out: int = 0
) -> str:
    """The same as HTML for a notebook, and sentences below it. It sets no colours, so it fits light and dark themes.

    Every text is escaped: names come from files. `left_out` rows are counted in a last row.
    """
    cells = [[row[k] for row in rows] for k in range(len(headers))]
    sides = ["right" if k and is_figures(cells[k]) else "left" for k in range(len(headers))]
    made = [f"<div><strong>{html.escape(title)}</strong>"]
    if rows:
        made += ["<table><thead>", html_row("th", headers, sides), "</thead><tbody>"]
        made += [html_row("td", row, sides) for row in rows]
        made += [f'<tr><td colspan="{len(headers)}">and {left_out:,} more</td></tr>'] if left_out else []
        made.append("</tbody></table>")
    made += [f"<p>{html.escape(sentence)}</p>" for sentence in sentences]
    return "\n".join([*made, "</div>"])


def html_row(tag: str, cells: Sequence[str], sides: Sequence[str]) -> str:
    parts = (
        f'<{tag} style="text-align: {side}">{html.escape(cell)}</{tag}>'
        for cell, side in zip(cells, sides, strict=True)
    )
    return f"<tr>{''.join(parts)}</tr>"


def columns(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """A line for each row, with aligned columns; those in `right` are flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if k in right else cell.ljust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def paragraph(text: str) -> None:
    """Prints a sentence or two, wrapped at the width of the terminal."""
    columns = shutil.get_terminal_size((PLAIN_WIDTH, 0)).columns
    print(textwrap.fill(text, min(columns, PLAIN_WIDTH), break_long_words=False, break_on_hyphens=False))
