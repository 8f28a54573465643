"""What each `robocache` command does: parse, call, exit code. The work is elsewhere."""

from __future__ import annotations

import functools
import importlib
import json
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ParamSpec

import rich  # noqa: F401  the tables fall back to plain text without it, the command line does not
import typer

import robocache as rc
from robocache import _report
from robocache._recording import TIMES, NoStream, counted, is_cache

application = typer.Typer(
    help="RoboCache: what robots record, turned into what policies train on and run on.",
    epilog="Exit codes: 0 done; 1 failed, and the reason is on stderr; 2 wrong usage; "
    "3 done, and something is wrong with the data (verify, info --strict) or with this machine (doctor).",
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


WRONG = 3  # the exit code where a command did its work and found something wrong
Parameters = ParamSpec("Parameters")


def told(command: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """What a user can put right is a sentence on stderr and exit code 1, without a traceback."""

    @functools.wraps(command)
    def run(*given: Parameters.args, **named: Parameters.kwargs) -> None:
        try:
            command(*given, **named)
        except BrokenPipeError:  # of `| head`, which has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        except (OSError, ValueError, KeyError, ModuleNotFoundError) as error:
            if isinstance(error, KeyError) and not isinstance(error, NoStream):
                raise
            if isinstance(error, ModuleNotFoundError) and "pip install" not in str(error):
                raise
            print(f"robocache {command.__name__}: {sentence_of(error)}", file=sys.stderr)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            print(f"robocache {command.__name__}: interrupted", file=sys.stderr)
            raise typer.Exit(130) from None

    return run


def sentence_of(error: Exception) -> str:
    """The system's own errors as ours are: which file, and what."""
    if isinstance(error, OSError) and not isinstance(error, rc.FileError) and error.filename and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)


def hertz(given: float | None) -> float | None:
    if given is not None and not 0 < given < 1e6:
        raise typer.BadParameter(f"{given:g} is not a positive number of hertz")
    return given


def seconds(given: float | None) -> float | None:
    if given is not None and not 0 < given < 2**31:
        raise typer.BadParameter(f"{given:g} is not a positive number of seconds")
    return given


def one_of(*known: str) -> Callable[[str | None], str | None]:
    def check(given: str | None) -> str | None:
        if given is not None and given not in known:
            raise typer.BadParameter(f"{given!r} is not one of {', '.join(known)}")
        return given

    return check


def by_stream(option: str, given: list[str] | None, read: Callable[[str], Any]) -> Any:
    """What an option says for all streams, or a dict by stream of what it says as STREAM=VALUE; None: nothing."""
    found: dict[str, Any] = {}
    for text in given or ():
        name, equals, value = text.rpartition("=")
        try:
            if not equals and len(given or ()) == 1:
                return read(value)
            found[name] = read(value)
        except ValueError as error:
            raise typer.BadParameter(f"{option} {text}: {error}") from None
        if not equals:
            raise typer.BadParameter(f"{option} {text}: for one stream, write STREAM={value}")
    return found or None


def episodes_of(given: list[str] | None) -> list[int | str | slice] | None:
    """Numbers, ranges and names of episodes."""
    if not given:
        return None
    found: list[int | str | slice] = []
    for text in (part for each in given for part in each.split(",") if part):
        if text.isdecimal():
            found.append(int(text))
        elif re.fullmatch(r"\d*:\d*", text):
            found.append(slice(*(int(end) if end else None for end in text.split(":"))))
        else:
            found.append(text)
    return found


AsJson = Annotated[bool, typer.Option("--json", help="The same as JSON, for programs.")]


@application.command()
def doctor(as_json: AsJson = False) -> None:
    """What runs on this machine, and why the rest does not. Paste it into an issue. Exit code 3: an op is wrong."""
    from robocache import _doctor

    if not _doctor.main(as_json):
        raise typer.Exit(WRONG)


@application.command()
@told
def demo(
    file: Annotated[str | None, typer.Argument(help="A recording of your own, instead of the simulated one.")] = None,
    output: Annotated[Path, typer.Option(help="The folder for the figures.", file_okay=False)] = Path(),
    rate: Annotated[float, typer.Option(help="Rate of the timeline, hertz.", min=1.0, max=1000.0)] = 50.0,
    as_json: AsJson = False,
) -> None:
    """From a log to tensors: a simulated arm, beside what people do by hand, or a recording of yours."""
    from robocache import _demo, _demo_file

    if file is not None:
        _demo_file.main(file, output, rate, as_json)
    else:
        _demo.main(output, rate, as_json)


when = typer.Option(help="Where times come from: auto, stamp, log or publish.", callback=one_of(*TIMES))
Time = Annotated[str, when]
MessagePath = Annotated[list[Path] | None, typer.Option(help="rosbag2: a folder with .msg files. May be repeated.")]
Rate = Annotated[float | None, typer.Option(help="HDF5 without times: samples per second.", callback=hertz)]


@application.command()
@told
def info(
    path: Annotated[
        str, typer.Argument(help="MCAP, a rosbag2 or LeRobot directory, .db3, HDF5, a cache; or a folder of them.")
    ],
    full: Annotated[bool, typer.Option("--full", help="Read every message, also where the file has an index.")] = False,
    as_json: AsJson = False,
    write_recipe: Annotated[Path | None, typer.Option(help="Write a first recipe there, to edit.")] = None,
    time: Time = "auto",
    gap: Annotated[
        float | None, typer.Option(help="Seconds that make a gap; default: 3 periods.", callback=seconds)
    ] = None,
    rate: Rate = None,
    msg_path: MessagePath = None,
    strict: Annotated[
        bool, typer.Option("--strict", help=f"Exit with {WRONG} where a stream is bad, as far as it was looked at.")
    ] = False,
) -> None:
    """What is in a recording: streams, types, rates; and the sync report: jitter, gaps, clocks, and a verdict."""
    from robocache import _build, _info

    places = _build.expand([path])
    if places != [path]:
        if write_recipe is not None:
            raise ValueError(f"{path}: is a folder of recordings; --write-recipe takes one of them, as {places[0]}")
        reports, failed = _info.folder(
            path, places, full=full, as_json=as_json, gap=gap, time=time, rate=rate, msg_path=msg_path
        )
        for sentence in failed:
            print(f"robocache info: {sentence}", file=sys.stderr)
        if failed:
            raise typer.Exit(1)
        if strict and any(report.level == "bad" for report in reports):
            raise typer.Exit(WRONG)
        return
    recording = rc.open(path, time, rate=rate, msg_path=msg_path)
    report = _info.main(
        recording, full=full, as_json=as_json, recipe=write_recipe, gap=gap, rate=rate, msg_path=msg_path
    )
    if strict and report.level == "bad":
        raise typer.Exit(WRONG)


@application.command()
@told
def build(
    paths: Annotated[list[str], typer.Argument(help="Recordings, or folders of them.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The cache: made, or added to.")],
    recipe: Annotated[Path | None, typer.Option(help="A TOML file: which streams, under which names, and how.")] = None,
    episodes: Annotated[
        str | None,
        typer.Option(
            help="by-file, by-gap (nothing was logged for --gap) or by-topic (--episode-topic).",
            callback=one_of("by-file", "by-gap", "by-topic"),
        ),
    ] = None,
    gap: Annotated[float | None, typer.Option(help="Seconds, for by-gap; default 5.", min=0.0)] = None,
    episode_topic: Annotated[str | None, typer.Option(help="For by-topic: an episode is while it is not 0.")] = None,
    time: Annotated[str | None, when] = None,
    rate: Rate = None,
    msg_path: MessagePath = None,
    as_json: AsJson = False,
) -> None:
    """Many recordings into one cache, at native rates. Only what changed is read again; interrupted work goes on."""
    from robocache import _build

    found = _build.build(
        paths,
        output,
        recipe=recipe,
        by=None if episodes is None else episodes.removeprefix("by-"),
        gap=gap,
        topic=episode_topic,
        open_options={"time": time, "rate": rate, "msg_path": None if msg_path is None else list(map(str, msg_path))},
        show=not as_json,
    )
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        _build.tell(found)
        if any(row["samples"] or row["state"] == "unchanged" for row in found["sources"]):
            place = shlex.quote(str(output))
            _report.paragraph(f"Next: robocache verify {place}, or robocache export {place} --rate 50 -o DIR")
    for sentence in _build.failures(found):
        print(f"robocache build: {sentence}", file=sys.stderr)
    if _build.failures(found):
        raise typer.Exit(1)


@application.command()
@told
def export(
    cache: Annotated[str, typer.Argument(help="A cache, or a recording.")],
    rate: Annotated[float, typer.Option(help="Hertz, of the timeline.", callback=hertz)],
    output: Annotated[Path, typer.Option("--output", "-o", help="A new directory.")],
    format: Annotated[
        str,
        typer.Option(help="lerobot (v3.0), safetensors or mcap.", callback=one_of("lerobot", "safetensors", "mcap")),
    ] = "lerobot",
    streams: Annotated[
        list[str] | None, typer.Option(help="Only these; may be repeated, or separated by commas.")
    ] = None,
    episodes: Annotated[
        list[str] | None,
        typer.Option(help="Only these: numbers, ranges as 3:8 (3 to 7), names; may be repeated, or commas."),
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="linear, hold, ...: for all streams, or STREAM=METHOD; may be repeated.")
    ] = None,
    max_gap: Annotated[
        list[str] | None,
        typer.Option(
            help="Seconds: inside a longer gap no value is valid. For all streams, or STREAM=SECONDS; may be repeated; "
            "default: the recipe's."
        ),
    ] = None,
    edge: Annotated[
        list[str] | None,
        typer.Option(help="What a value that is not valid is: clamp, zero, nan. For all streams, or STREAM=EDGE."),
    ] = None,
    causal: Annotated[
        bool, typer.Option("--causal", help="Only what had arrived by each step: what the robot would have seen.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Align every episode at a rate, and write a LeRobot data set, safetensors or MCAP."""
    from robocache import _build
    from robocache._export import chosen_episodes
    from robocache._recipe import METHODS

    names = [name for given in streams for name in given.split(",") if name] if streams else None
    methods = by_stream("--method", method, lambda text: one_of(*METHODS)(text))
    gaps = by_stream("--max-gap", max_gap, lambda text: seconds(float(text)))
    edges = by_stream("--edge", edge, lambda text: one_of("clamp", "zero", "nan")(text))
    opened: rc.Cache | rc.Recording = rc.Cache(cache) if is_cache(Path(cache)) else rc.open(cache)
    chosen = chosen_episodes(opened, episodes_of(episodes))
    total, done = len(chosen), 0
    with _build.progress("exporting", not as_json) as heard:

        def each(frames: int) -> None:
            nonlocal done
            done += 1
            heard(str(output), done / max(total, 1))

        found = rc.export(
            chosen,
            output,
            rate=rate,
            format=format,
            streams=names,
            method=methods,
            max_gap=gaps,
            edge=edges,
            causal=causal or None,
            progress=each,
        )
    if as_json:
        print(json.dumps(found, indent=2))
        return
    for note in found["notes"]:
        _report.paragraph(f"Note: {note}")
    wrote = f"{counted(found['episodes'], 'episode')}, {counted(found['frames'], 'frame')}"
    _report.paragraph(f"Wrote {found['path']}: {format}, {wrote}.")


@application.command()
@told
def verify(
    cache: Annotated[Path, typer.Argument(help="A cache.")],
    repair: Annotated[
        bool, typer.Option("--repair", help="Put right what can be; what is taken out goes to CACHE/quarantine.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what --repair would do, and change nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check all of a cache: checksums, counts, offsets, order; say what is wrong where. Exit code 3: something is."""
    report = rc.verify_cache(cache, repair=repair and not dry_run, dry_run=dry_run)
    if as_json:
        lists = {name: [item._asdict() for item in getattr(report, name)] for name in ("problems", "moved")}
        print(json.dumps(report._asdict() | {"ok": report.ok} | lists, indent=2))
    else:
        rows = [[problem.file, problem.sentence, problem.repair] for problem in report.problems]
        if rows:
            _report.table("Wrong", ("file", "what", "was done" if report.repaired else "with --repair"), rows)
        if report.moved and (report.repaired or dry_run):
            title = f"Moved to {cache / report.quarantine}" if report.quarantine else "Would be moved to quarantine"
            _report.table(title, ("file", "why"), [list(move) for move in report.moved])
        if report.dropped:
            names = ", ".join(report.dropped[:8]) + (", ..." if len(report.dropped) > 8 else "")
            lost = "Episodes that the cache lost" if report.repaired else "Episodes that a repair would drop"
            _report.paragraph(f"{lost}: {len(report.dropped)} ({names}).")
        size = f"{report.bytes / 2**20:,.1f} MiB"
        held = f"{counted(report.episodes, 'episode')} in {counted(report.shards, 'shard')}"
        good = f"{held}, {counted(report.tensors, 'tensor')}, {size}"
        _report.paragraph(f"{cache}: {'all is well' if not rows else 'good are'}: {good}.")
    if not report.ok:
        raise typer.Exit(WRONG)


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
