"""Parts of sentences and tables: counts, figures, names that are similar, packages that are missing."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from robocache._recordings.source import Source


class NoStream(KeyError):
    """A KeyError that shows its sentence without quotes."""

    def __str__(self) -> str:
        return str(self.args[0])


def absent(source: Source, name: str, names: Iterable[str]) -> str:
    """Why a recording has no such stream: a note on its topic, otherwise the names that exist."""
    told = [note for note in source.notes if note.startswith(f"{name}: ")]
    if told:
        return f'{source.path}: there is no stream "{name}"; {told[0]}'
    return missing(f"{source.path}: there is no stream", name, names)


def missing(sentence: str, name: str, names: Iterable[str]) -> str:
    """`sentence "name"; near names: ...`: the sentence with similar names, or some of all names."""
    import difflib  # needed only for an error

    names = list(names)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    near += [other for other in names if name.strip("/") and name.strip("/") in other and other not in near][:3]
    if near:
        return f'{sentence} "{name}"; near names: {", ".join(near)}'
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return f'{sentence} "{name}"; there are: {shown}' if names else f'{sentence} "{name}"; it has none'


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def figures(number: float, digits: int = 3, sign: bool = False) -> str:
    """A number with this many significant digits, never with an exponent."""
    return np.format_float_positional(number + 0.0, precision=digits, fractional=False, trim="-", sign=sign)


def visible(text: str) -> str:
    """On one line, for a comment: characters that do not print, such as line breaks, become \ufffd."""
    return "".join(each if each.isprintable() else "\ufffd" for each in text)


def toml_string(text: str) -> str:
    """A string of TOML. JSON's differ: TOML has no surrogates, and DEL must be escaped.

    All characters that do not print are escaped. Bytes of a name that are no UTF-8 become a question mark.
    """
    quoted = json.dumps(text.encode("utf-8", "replace").decode(), ensure_ascii=False)
    return "".join(each if each.isprintable() else f"\\U{ord(each):08x}" for each in quoted)


def need(module: str, extra: str, what: str) -> ModuleNotFoundError:
    """The error for an optional package that is not installed."""
    install = f"which is not installed: pip install 'robocache[{extra}]'"
    return ModuleNotFoundError(f"{what} needs {module}, {install}", name=module)


@contextlib.contextmanager
def named(where: str) -> Iterator[None]:
    """Puts `where` before the sentence of an error that is raised inside."""
    try:
        yield
    except (TypeError, ValueError, KeyError) as error:
        sentence = str(error)
        if sentence.startswith(where):
            raise
        raise type(error)(f"{where}: {sentence}") from None
