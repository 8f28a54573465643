"""The `robocache` commands: they parse options, call the library and set the exit code."""

from __future__ import annotations

import functools
import importlib
import json
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, ParamSpec

import rich  # noqa: F401  the tables fall back to plain text without it, the command line does not
import typer

import robocache as rc
from robocache import _tables
from robocache._recordings.frame_options import FITS, KEEPS, options_of
from robocache._recordings.open import is_cache
from robocache._recordings.source import TIMES
from robocache._recordings.words import NoStream, counted

application = typer.Typer(
    help="RoboCache: robot recordings as time-aligned tensors for training and running policies.",
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


WRONG = 3  # the exit code of a command that did its work and found something wrong
Parameters = ParamSpec("Parameters")


def told(command: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Errors that a user can fix become a sentence on stderr and exit code 1, without a traceback."""

    @functools.wraps(command)
    def run(*given: Parameters.args, **named: Parameters.kwargs) -> None:
        try:
            command(*given, **named)
        except BrokenPipeError:  # the reader has closed the pipe, as head does
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
    """An OSError in our form: the file, and what is wrong with it."""
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
    """The value of an option for all streams, or a dict by stream if it was given as STREAM=VALUE; None: not given."""
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
    """Parses numbers, ranges and names of episodes."""
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
    """Show what runs here, and why the rest does not, to paste into an issue. Exit code 3: an op is wrong."""
    from robocache.cli.doctor import main

    if not main(as_json):
        raise typer.Exit(WRONG)


@application.command()
@told
def demo(
    file: Annotated[str | None, typer.Argument(help="Your own recording, instead of the simulated one.")] = None,
    output: Annotated[Path, typer.Option(help="The folder for the figures.", file_okay=False)] = Path(),
    rate: Annotated[float, typer.Option(help="Rate of the timeline, hertz.", min=1.0, max=1000.0)] = 50.0,
    as_json: AsJson = False,
) -> None:
    """From a log to tensors: a simulated arm, compared with common hand-written code, or a recording of yours."""
    from robocache._demo.demo import main as simulated
    from robocache._demo.file import main as recorded

    if file is not None:
        recorded(file, output, rate, as_json)
    else:
        simulated(output, rate, as_json)


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
    full: Annotated[bool, typer.Option("--full", help="Read every message, even if the file has an index.")] = False,
    as_json: AsJson = False,
    write_recipe: Annotated[
        Path | None, typer.Option(help="Write a first recipe to this file, for you to edit.")
    ] = None,
    time: Time = "auto",
    gap: Annotated[
        float | None, typer.Option(help="Seconds that make a gap; default: 3 periods.", callback=seconds)
    ] = None,
    rate: Rate = None,
    msg_path: MessagePath = None,
    strict: Annotated[
        bool, typer.Option("--strict", help=f"Exit with {WRONG} if a stream is bad, as far as it was read.")
    ] = False,
) -> None:
    """Show a recording: streams, types, rates; and the sync report: jitter, gaps, clocks, and a verdict."""
    from robocache._cache.build import expand
    from robocache.cli.info import folder, main

    places = expand([path])
    if places != [path]:
        if write_recipe is not None:
            raise ValueError(f"{path}: is a folder of recordings; --write-recipe takes one of them, as {places[0]}")
        reports, failed = folder(
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
    report = main(recording, full=full, as_json=as_json, recipe=write_recipe, gap=gap, rate=rate, msg_path=msg_path)
    if strict and report.level == "bad":
        raise typer.Exit(WRONG)


@application.command()
@told
def report(
    paths: Annotated[list[str], typer.Argument(help="Recordings, folders of recordings, and caches.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page, an HTML file; an earlier one is replaced.")],
    rate: Annotated[float, typer.Option(help="Hertz, of the policy that will learn from it.", callback=hertz)] = 50,
    gap: Annotated[
        float | None, typer.Option(help="Seconds that make a gap; default: 3 periods.", callback=seconds)
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="An earlier report: also show what became better and worse.")
    ] = None,
    time: Time = "auto",
    hdf5_rate: Rate = None,
    msg_path: MessagePath = None,
) -> None:
    """Write one HTML page about recordings: a verdict, what to mend and how, gaps, jitter, clocks, worst moments."""
    from robocache._cache.build import expand, progress
    from robocache._report.report import make, writable

    def opened(path: Any) -> rc.Recording:
        return rc.open(path, time, rate=hdf5_rate, msg_path=msg_path)

    writable(output)  # raises before anything is read
    with progress("reading", True) as heard:
        made = make(expand(paths), opened, rate, gap, against, heard)
    made.save(output)
    failed = made.data["failed"]
    for failure in failed:
        print(f"robocache report: {failure['error']}", file=sys.stderr)
    wrote = f"{output}: {counted(len(made.recordings), 'recording')}, {len(made.html.encode()) / 1000:,.0f} kB"
    _tables.paragraph(f"Verdict: {made.verdict}")
    if made.data["against"] is not None:
        changes = [change["better"] for change in made.data["against"]["changes"]]
        told = f"{changes.count(True)} better, {changes.count(False)} worse, {changes.count(None)} other changes"
        _tables.paragraph(f"Since {against}: {told}.")
    _tables.paragraph(f"Wrote {wrote}. Open it in a browser.")
    if failed:
        raise typer.Exit(1)


@application.command()
@told
def build(
    paths: Annotated[list[str], typer.Argument(help="Recordings, or folders of them.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="A new cache, or one to add to.")],
    recipe: Annotated[Path | None, typer.Option(help="A TOML file: which streams, under which names, and how.")] = None,
    episodes: Annotated[
        str | None,
        typer.Option(
            help="by-file, by-gap (nothing was logged for --gap) or by-topic (--episode-topic).",
            callback=one_of("by-file", "by-gap", "by-topic"),
        ),
    ] = None,
    gap: Annotated[float | None, typer.Option(help="Seconds, for by-gap; default 5.", min=0.0)] = None,
    episode_topic: Annotated[
        str | None, typer.Option(help="For by-topic: an episode lasts while this topic is not 0.")
    ] = None,
    time: Annotated[str | None, when] = None,
    rate: Rate = None,
    msg_path: MessagePath = None,
    frames: Annotated[
        str | None,
        typer.Option(help="Also keep the pictures of all cameras, decoded and resized to height x width, as 224x224."),
    ] = None,
    fit: Annotated[
        str | None, typer.Option(help="With --frames: stretch (default), cover or contain.", callback=one_of(*FITS))
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            help="With --frames: what the cache keeps of a camera. both (default): the frames, and the pictures as "
            "recorded (for a video, their numbers in the file). frames: only the frames.",
            callback=one_of(*KEEPS),
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Many recordings into one cache, at native rates. Only changes are read again; an interrupted build continues."""
    from robocache._cache.build import build as build_cache
    from robocache._cache.build import failures, print_result

    if frames is None and (fit is not None or keep is not None):
        raise typer.BadParameter("--fit and --keep are for --frames, as --frames 224x224")
    try:
        framing = None if frames is None else options_of("--frames", frames, fit, keep)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    found = build_cache(
        paths,
        output,
        recipe=recipe,
        by=None if episodes is None else episodes.removeprefix("by-"),
        gap=gap,
        topic=episode_topic,
        open_options={"time": time, "rate": rate, "msg_path": None if msg_path is None else list(map(str, msg_path))},
        frames=framing,
        show=not as_json,
    )
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        print_result(found)
        if any(row["samples"] or row["state"] == "unchanged" for row in found["sources"]):
            place = shlex.quote(str(output))
            _tables.paragraph(f"Next: robocache verify {place}, or robocache export {place} --rate 50 -o DIR")
    for sentence in failures(found):
        print(f"robocache build: {sentence}", file=sys.stderr)
    if failures(found):
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
        typer.Option(help="The value of a step that is not valid: clamp, zero, nan. For all streams, or STREAM=EDGE."),
    ] = None,
    causal: Annotated[
        bool, typer.Option("--causal", help="Use only samples that had arrived by each step, as on the robot.")
    ] = False,
    pictures: Annotated[
        str,
        typer.Option(
            help="For cameras with frames in the cache: export the frames, or the recorded pictures (source).",
            callback=one_of("frames", "source"),
        ),
    ] = "frames",
    as_json: AsJson = False,
) -> None:
    """Align every episode at a rate, and write a LeRobot data set, safetensors or MCAP."""
    from robocache._cache.build import progress
    from robocache._cache.recipe import METHODS
    from robocache._export.export import chosen_episodes

    names = [name for given in streams for name in given.split(",") if name] if streams else None
    methods = by_stream("--method", method, lambda text: one_of(*METHODS)(text))
    gaps = by_stream("--max-gap", max_gap, lambda text: seconds(float(text)))
    edges = by_stream("--edge", edge, lambda text: one_of("clamp", "zero", "nan")(text))
    opened: rc.Cache | rc.Recording = rc.Cache(cache) if is_cache(Path(cache)) else rc.open(cache)
    chosen = chosen_episodes(opened, episodes_of(episodes))
    total, done = len(chosen), 0
    with progress("exporting", not as_json) as report:

        def each(frames: int) -> None:
            nonlocal done
            done += 1
            report(str(output), done / max(total, 1))

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
            pictures=pictures,
            progress=each,
        )
    if as_json:
        print(json.dumps(found, indent=2))
        return
    for note in found["notes"]:
        _tables.paragraph(f"Note: {note}")
    wrote = f"{counted(found['episodes'], 'episode')}, {counted(found['frames'], 'frame')}"
    _tables.paragraph(f"Wrote {found['path']}: {format}, {wrote}.")


@application.command()
@told
def statistics(
    cache: Annotated[Path, typer.Argument(help="A cache.")],
    streams: Annotated[list[str] | None, typer.Argument(help="Only these streams.")] = None,
    episodes: Annotated[
        list[str] | None,
        typer.Option(help="Only these: numbers, ranges as 3:8 (3 to 7), names; may be repeated, or commas."),
    ] = None,
    quantile: Annotated[
        list[float] | None,
        typer.Option(help="From 0 to 1; may be repeated. Default: 0.01, 0.1, 0.5, 0.9, 0.99.", min=0.0, max=1.0),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Mean, std, min, max and quantiles of each channel of a cache's streams."""
    from robocache._cache.statistics import HEADERS, QUANTILES, name_of

    opened = rc.Cache(cache)
    chosen, wanted = episodes_of(episodes), QUANTILES if quantile is None else tuple(quantile)
    every: dict[str, Any] = {}
    for name in streams or opened.streams:
        try:
            found = opened.statistics(name, chosen, quantiles=wanted)
        except ValueError as error:  # pictures as they were recorded; asked for by name, that is an error
            if streams or isinstance(error, NoStream):
                raise
            every[name] = {"error": str(error)}
            continue
        every[name] = found.as_dict()
        if not as_json:
            title = f"{name}: {counted(found.episodes, 'episode')}{'' if found.exact else ', quantiles within 1/800'}"
            _tables.table(title, (*HEADERS, *map(name_of, wanted)), found.rows())
    if as_json:
        print(json.dumps({"path": str(cache), "streams": every}, indent=2))
        return
    for found in every.values():
        if "error" in found:
            _tables.paragraph(f"Note: {found['error']}")


@application.command()
@told
def verify(
    cache: Annotated[Path, typer.Argument(help="A cache.")],
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair what can be repaired; damaged files are moved to CACHE/quarantine.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what --repair would do, and change nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a whole cache: checksums, counts, offsets, order, its videos. Exit code 3: something is wrong."""
    report = rc.verify_cache(cache, repair=repair and not dry_run, dry_run=dry_run)
    if as_json:
        lists = {name: [item._asdict() for item in getattr(report, name)] for name in ("problems", "moved")}
        print(json.dumps(report._asdict() | {"ok": report.ok} | lists, indent=2))
    else:
        rows = [[problem.file, problem.sentence, problem.repair] for problem in report.problems]
        if rows:
            _tables.table("Wrong", ("file", "what", "was done" if report.repaired else "with --repair"), rows)
        if report.moved and (report.repaired or dry_run):
            title = f"Moved to {cache / report.quarantine}" if report.quarantine else "Would be moved to quarantine"
            _tables.table(title, ("file", "why"), [list(move) for move in report.moved])
        if report.dropped:
            names = ", ".join(report.dropped[:8]) + (", ..." if len(report.dropped) > 8 else "")
            lost = "Episodes that the cache lost" if report.repaired else "Episodes that a repair would drop"
            _tables.paragraph(f"{lost}: {len(report.dropped)} ({names}).")
        size = f"{report.bytes / 2**20:,.1f} MiB"
        held = f"{counted(report.episodes, 'episode')} in {counted(report.shards, 'shard')}"
        good = f"{held}, {counted(report.tensors, 'tensor')}, {size}"
        _tables.paragraph(f"{cache}: {'all is well' if not rows else 'good are'}: {good}.")
    if not report.ok:
        raise typer.Exit(WRONG)


@application.command()
@told
def view(
    path: Annotated[str, typer.Argument(help="A recording or a cache.", metavar="PATH|CACHE")],
    rate: Annotated[float, typer.Option(help="Hertz, of the timeline on which streams are aligned.")] = 50.0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write this file, as run.rrd, and open nothing.")
    ] = None,
    episode: Annotated[str, typer.Option(help="Which one, by number or name.")] = "0",
    streams: Annotated[
        list[str] | None, typer.Option(help="Only these; may be repeated, or separated by commas.")
    ] = None,
    recipe: Annotated[
        Path | None, typer.Option(help="A recipe of robocache build: the recording is shown as it makes it.")
    ] = None,
    gap: Annotated[
        float | None,
        typer.Option(
            help="Seconds between samples that make values stale; default: max_gap, else 3 periods.", callback=seconds
        ),
    ] = None,
    most: Annotated[
        int,
        typer.Option(
            help="Numbers of a stream that are sent; a longer one is shown by the least and the largest value of "
            "each bucket of samples.",
            min=1000,
        ),
    ] = 1_000_000,
    time: Time = "auto",
    msg_path: MessagePath = None,
    as_json: AsJson = False,
) -> None:
    """Show a recording or a cache in the Rerun viewer: samples, aligned values, gaps, ages, pictures, 3D. Opens it
    where there is a display, else writes PATH.rrd here. Needs robocache[view]."""
    from robocache.cli.view import main

    main(
        path,
        rate=hertz(rate) or 50.0,
        output=output,
        episode=episode,
        streams=[name for given in streams for name in given.split(",") if name] if streams else None,
        recipe=recipe,
        gap=gap,
        most=most,
        time=time,
        msg_path=msg_path,
        as_json=as_json,
    )


def checkout() -> Path | None:
    """The repository around the current folder, or the one of an editable install."""
    places = [Path.cwd(), *Path.cwd().parents, *Path(rc.__file__).resolve().parents]
    return next((place for place in places if (place / "bench" / "run.py").is_file() and is_ours(place)), None)


def is_ours(place: Path) -> bool:
    """Whether the folder is our repository. Other projects may have a bench/run.py too, which we must not run."""
    try:
        project = tomllib.loads((place / "pyproject.toml").read_text()).get("project", {})
    except (OSError, ValueError):
        return False
    return isinstance(project, dict) and project.get("name") == "robocache"


def bench_loader(words: Sequence[str]) -> None:
    from robocache.cli.bench_loader import main

    raise typer.Exit(main(words))


bench_loader.__name__ = "bench loader"  # in error sentences


@application.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
)
def bench(context: typer.Context) -> None:
    """Time RoboCache and torch on this machine; --quick measures less. All options: robocache bench --help. Of your own
    cache: robocache bench loader CACHE --rate 50."""
    if context.args[:1] == ["loader"]:
        told(bench_loader)(context.args[1:])
        return
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
