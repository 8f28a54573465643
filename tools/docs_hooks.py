"""Adds the page of the command line, which is made from the commands themselves, to the site, and takes the names of
private modules out of the reference. mkdocs.yml names this file."""

from __future__ import annotations

import re
from typing import Any
from unittest.mock import patch

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from robocache import cli


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, "cli.md", content=page()))
    return files


def on_post_page(output: str, **_: Any) -> str:
    """Types without an entry of their own have a tooltip with the module that defines them."""
    return re.sub(r'(<span) title="robocache\._[^"]*"', r"\1", output)


def application() -> Any:
    """The Typer application that `robocache` runs."""
    found: list[typer.Typer] = []
    with patch.object(typer.Typer, "__call__", lambda self: found.append(self)):
        cli.main()
    return typer.main.get_command(found[0])


def page() -> str:
    group = application()
    context = typer.Context(group, info_name="robocache")
    parts = ["# Command line", group.help, group.epilog]
    for name, command in group.commands.items():
        inside = typer.Context(command, info_name=name, parent=context)
        arguments = [argument(each) for each in command.params if each.param_type_name == "argument"]
        usage = " ".join([f"robocache {name}", "[OPTIONS]", *arguments])
        parts += [f"## robocache {name}", command.help, f"```text\n{usage}\n```"]
        rows = [row for parameter in command.params if (row := described(parameter, inside))]
        if rows:
            parts.append("\n".join(["| | |", "| --- | --- |", *rows]))
    return "\n\n".join(parts) + "\n"


def argument(parameter: Any) -> str:
    name = parameter.name.upper() + ("..." if parameter.nargs == -1 else "")
    return name if parameter.required else f"[{name}]"


def described(parameter: Any, context: Any) -> str | None:
    """A row of the table. `--help` needs none."""
    if "--help" in parameter.opts:
        return None
    if parameter.param_type_name == "argument":
        name, text = argument(parameter), parameter.help or ""
    else:
        name, text = parameter.get_help_record(context) or (", ".join(parameter.opts), "")
    text = text.replace("|", "\\|").replace("  ", " ")
    return f"| `{name}` | {text} |"
