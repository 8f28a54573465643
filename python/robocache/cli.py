"""The `robocache` command. What it does is in `_commands.py`, which needs Typer and Rich; this file does not."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from robocache._commands import application
    except ModuleNotFoundError as missing:
        if missing.name not in ("typer", "rich"):
            raise
        sentence = f"The robocache command needs {missing.name}, which is not installed: pip install 'robocache[cli]'"
        print(sentence, file=sys.stderr)
        raise SystemExit(1) from None
    application()


if __name__ == "__main__":
    main()
