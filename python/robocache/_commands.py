"""What each `robocache` command does: parse, call, exit code. The work is elsewhere."""

from __future__ import annotations

import importlib
import sys
import tomllib
from pathlib import Path
from typing import Annotated

import rich  # noqa: F401  the tables fall back to plain text without it, the command line does not
import typer

import robocache as rc

application = typer.Typer(
    help="RoboCache: what robots record, turned into what policies train on and run on.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def show_version(wanted: bool) -> None:
    if wanted:
        print(f"robocache {rc.__version__}")
        raise typer.Exit


@application.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


AsJson = Annotated[bool, typer.Option("--json", help="The same as JSON, for programs.")]


@application.command()
def doctor(as_json: AsJson = False) -> None:
    """What runs on this machine, and why the rest does not. Paste it into an issue."""
    from robocache import _doctor

    _doctor.main(as_json)


@application.command()
def demo(
    output: Annotated[Path, typer.Option(help="The folder for demo.png and scene.png.", file_okay=False)] = Path(),
    rate: Annotated[float, typer.Option(help="Rate of the timeline, hertz.", min=1.0, max=1000.0)] = 50.0,
    as_json: AsJson = False,
) -> None:
    """A simulated arm, aligned, beside what people do by hand, and its table, voxelized: tables and figures."""
    from robocache import _demo

    _demo.main(output, rate, as_json)


def checkout() -> Path | None:
    """The repository: around the current folder, or the one that an editable install points at."""
    places = [Path.cwd(), *Path.cwd().parents, *Path(rc.__file__).resolve().parents]
    return next((place for place in places if (place / "bench" / "run.py").is_file() and is_ours(place)), None)


def is_ours(place: Path) -> bool:
    """Other projects have a bench/run.py, too, and what it does is not for us to start."""
    try:
        project = tomllib.loads((place / "pyproject.toml").read_text()).get("project", {})
    except (OSError, ValueError):
        return False
    return isinstance(project, dict) and project.get("name") == "robocache"


@application.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
)
def bench(context: typer.Context) -> None:
    """Ours beside torch, measured here, as tables; --quick measures less. All options: robocache bench --help."""
    place = checkout()
    if place is None:
        print(
            "robocache bench: the benchmark is in the repository, not in the installed package; run it in a checkout",
            file=sys.stderr,
        )
        raise typer.Exit(1)
    sys.path.insert(0, str(place))
    try:
        run = importlib.import_module("bench.run")
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        print(
            "robocache bench: torch is not installed, and it is what we are measured against: pip install torch",
            file=sys.stderr,
        )
        raise typer.Exit(1) from None
    raise typer.Exit(run.main(context.args) or 0)
