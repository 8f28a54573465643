"""The `robocache` command. `commands.py` does the work and needs Typer and Rich; this file does not."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from robocache.cli.commands import application
    except ModuleNotFoundError as missing:
        if missing.name not in ("typer", "rich"):
            raise
        sentence = f"The robocache command needs {missing.name}, which is not installed: pip install 'robocache[cli]'"
        print(sentence, file=sys.stderr)
        raise SystemExit(1) from None
    application()
