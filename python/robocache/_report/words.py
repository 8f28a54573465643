"""Text and tables of the page. Text is escaped here: names, topics and tasks come from files."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from robocache._recordings.words import figures

# Control characters, and those that change the direction of the text after them.
HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
MOST_TEXT = 600  # characters of a name or sentence
MARKS = {"good": "\u25cf", "fair": "\u25b2", "bad": "\u2715"}  # a shape for each level, for people who see no colours


def text(given: object, most: int = MOST_TEXT) -> str:
    """The text escaped, for elements and for attributes in double quotes. Text longer than `most` loses its middle."""
    whole = str(given)
    if len(whole) > most:
        whole = f"{whole[: most // 2]} \u2026 {whole[-(most // 2) :]}"
    whole = HIDDEN.sub("\ufffd", whole).encode("utf-8", "backslashreplace").decode()
    return html.escape(whole, quote=True)


def badge(level: str) -> str:
    return f'<span class="badge {text(level)}">{MARKS.get(level, "")} {text(level)}</span>'


def milliseconds(value: float | None) -> str:
    if value is None:
        return "-"
    if abs(value) < 5e-5:
        return "0 ms"
    if abs(value) >= 1000:
        return f"{figures(value / 1000)} s"
    return f"{figures(value)} ms"


def seconds(value: float) -> str:
    """A time or a duration for people."""
    if abs(value) < 120:
        return f"{figures(round(value, 3), 4)} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def ppm(value: float | None) -> str:
    return "not measured" if value is None else f"{round(value):+d} ppm" if round(value) else "0 ppm"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int]) -> str:
    """A table; on a phone each row becomes a card. Cells must be HTML already."""
    head = "".join(f"<th{' class=n' if k in right else ''}>{name}</th>" for k, name in enumerate(headers))
    made = []
    for cells in rows:
        inside = (
            f'<td{" class=n" if k in right else ""} data-label="{headers[k]}">{cell}</td>'
            for k, cell in enumerate(cells)
        )
        made.append(f"<tr>{''.join(inside)}</tr>")
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(made)}</tbody></table></div>'
