"""The page: first the verdict, then what to do, then why. It is static HTML without scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from robocache._cache.mends import Mend
from robocache._recordings.clock import clock_name
from robocache._recordings.sync_report import timing_row
from robocache._recordings.words import counted, figures, toml_string
from robocache._report import plots
from robocache._report.difference import as_json
from robocache._report.figures import ages, delays, gaps, jitter, moments, pieces_of
from robocache._report.report import Section
from robocache._report.style import STYLE
from robocache._report.words import badge, seconds, table, text

MOST_ROWS = 200  # in the table of streams
MOST_FINDINGS = 40  # streams whose findings are listed
SAFE = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"  # no script runs, even in a name not escaped
PARTS = (
    ("mend", "What to mend"),
    ("streams", "Streams"),
    ("gaps", "Gaps"),
    ("moments", "Worst moments"),
    ("jitter", "Jitter"),
    ("delays", "Arrival minus stamp"),
    ("ages", "Age at tick"),
    ("recipe", "Recipe"),
)
HEADERS = (
    "stream",
    "signal",
    "samples",
    "rate",
    "jitter p50 / p99, ms",
    "gaps, longest",
    "lost",
    "coverage",
    "verdict",
)


def page(data: Mapping[str, Any], sections: Sequence[Section]) -> str:
    drawn = [section for section in sections if section.drawn or not section.report.streams]
    alone = len(sections) == 1 and not data["failed"]
    title = sections[0].data["name"] if alone else counted(len(sections) + len(data["failed"]), "recording")
    body = [f"<header><h1>Report: {text(title)}</h1>", banner(data["level"], data["verdict"])]
    body.append(facts(sections[0]) if alone else "")
    body.append("</header>")
    if data["against"] is not None:
        body.append(changes(data["against"], alone))
    if not alone:
        body.append(recordings(data, sections, drawn))
    for number, section in enumerate(drawn):
        inside = whole(section, float(data["rate_hz"]), alone)
        body.append(inside if alone else f'<article id="r{number}">{prefixed(inside, number)}</article>')
    body.append(footer(data))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{SAFE}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>Report: {text(title)}</title>"
        f"<style>{STYLE}</style></head>\n<body>\n{''.join(body)}\n{as_json(data)}\n</body></html>\n"
    )


def prefixed(inside: str, number: int) -> str:
    """The HTML with the recording's number in each id and link, so that ids are unique on a page about several."""
    for key, _ in PARTS:
        inside = inside.replace(f'<h2 id="{key}">', f'<h2 id="r{number}-{key}">')
        inside = inside.replace(f'<a href="#{key}">', f'<a href="#r{number}-{key}">')
    return inside


def banner(level: str, verdict: str) -> str:
    words = {"good": "Good", "fair": "Usable with care", "bad": "Look at it before training"}
    return f'<div class="verdict {text(level)}"><strong>{words.get(level, "")}</strong>{text(verdict)}</div>'


def facts(section: Section) -> str:
    report, data = section.report, section.data
    clock = "one clock" if report.clock is None else clock_name(report.clock)
    told = [
        ("format", data["format"]),
        ("length", seconds(report.duration_s)),
        ("episodes", f"{report.episodes:,}"),
        ("streams", f"{len(report.streams):,}"),
        ("samples", f"{data['samples']:,}"),
        ("clock", clock),
    ]
    items = "".join(f'<li><span class="dim">{name}</span> <b>{text(value)}</b></li>' for name, value in told)
    return f'<ul class="facts">{items}</ul>'


def whole(section: Section, rate: float, alone: bool) -> str:
    parts = [findings(section), streams(section), gaps(section), moments(section), jitter(section), delays(section)]
    parts += [ages(section, rate), recipe(section), notes(section)]
    there = "".join(parts)
    links = "".join(f'<a href="#{key}">{title}</a>' for key, title in PARTS if f'<h2 id="{key}">' in there)
    nav = f"<nav>{links}</nav>"
    if alone:
        return nav + there
    head = f'<h1 style="margin-top:3.5rem">{text(section.data["name"])}</h1>'
    return head + banner(section.report.level, section.report.verdict) + facts(section) + nav + there


# ---- What to mend


def findings(section: Section) -> str:
    begin = '<h2 id="mend">What to mend</h2>'
    wrong = {n: [m for m in found if m.finding.level != "good"] for n, found in section.mends.items()}
    wrong = {n: found for n, found in wrong.items() if found}
    hints = {n: [m for m in found if m.finding.level == "good"] for n, found in section.mends.items()}
    hints = {n: found for n, found in hints.items() if found}
    order = sorted(wrong, key=lambda name: section.report.streams[name].level != "bad")
    parts = [finding(name, section.report.streams[name].level, wrong[name]) for name in order[:MOST_FINDINGS]]
    if len(order) > MOST_FINDINGS:
        parts.append(f"<p>and {len(order) - MOST_FINDINGS} more streams, in the data</p>")
    if not wrong:
        parts.append("<p>Nothing: no stream needs care.</p>")
    else:
        said = "Each finding, and the lines of a recipe that mend it. A line that begins with # is for you to decide."
        parts = [f'<p class="caption">{said}</p>', f'<div class="findings">{"".join(parts)}</div>']
    if hints:
        some = "".join(finding(name, "", hints[name]) for name in list(hints)[:MOST_FINDINGS])
        some = f'<div class="findings">{some}</div>'
        parts.append(f"<details><summary>Good to know: {counted(len(hints), 'stream')}</summary>{some}</details>")
    return begin + "".join(parts)


def finding(name: str, level: str, found: Sequence[Mend]) -> str:
    said = "".join(f"<li>{text(mend.finding.sentence)}{advice(mend)}</li>" for mend in found)
    head = f'<span class="name">{text(name)}</span> {badge(level) if level else ""}'
    return f'<div class="finding">{head}<ul>{said}</ul>{lines(name, found)}</div>'


def advice(mend: Mend) -> str:
    """A mend that is not a line of a recipe, as a sentence."""
    words = mend.line.removeprefix("# ")
    return f'<div class="dim small">{text(words[:1].upper() + words[1:])}.</div>' if not mend.table else ""


def lines(name: str, found: Sequence[Mend]) -> str:
    """The lines of a recipe, each under the name of its table."""
    made: list[str] = []
    for place, title in (("source", "[source]"), ("stream", f"[streams.{toml_string(name)}]")):
        told = list(dict.fromkeys(mend.line for mend in found if mend.table == place and mend.line))
        made += [title, *told] if told else []
    code = "\n".join(made)
    return f"<pre>{text(code, len(code))}</pre>" if made else ""


# ---- Tables


def streams(section: Section) -> str:
    report = section.report
    moving = [stream for stream in report.streams.values() if not stream.static]
    static = [stream.name for stream in report.streams.values() if stream.static]
    rows = []
    for stream in moving[:MOST_ROWS]:
        name, *cells, level = timing_row(stream)
        first = f'<span class="name">{text(name)}</span><div class="dim small">{text(stream.type)}</div>'
        rows.append([first, signal(section, stream.name), *map(text, cells), badge(level)])
    more = ""
    if len(moving) > MOST_ROWS:
        more += f"<p>and {len(moving) - MOST_ROWS:,} more streams, in the data</p>"
    if static:
        shown = ", ".join(map(text, static[:8])) + (f" and {len(static) - 8} more" if len(static) > 8 else "")
        more += f'<p class="small dim">Constants, held from the start on: {shown}.</p>'
    said = (
        "Signal: the first channel that changes, from its least to its greatest value at each moment, over the first "
        "episode; of cameras and clouds, their size."
    )
    good = '<p class="caption">' + said + " <b>Good:</b> a lively curve without holes, no gaps, and 100 % covered.</p>"
    return f'<h2 id="streams">Streams</h2>{good}{table(HEADERS, rows, range(2, 8))}{more}'


def signal(section: Section, name: str) -> str:
    found = section.measures.data.get(name, {}).get("signal") if name in section.drawn else None
    if found is None:
        return "-"
    least, most = plots.bounds(found["low"], found["high"])
    label = f"{found['of']}: {figures(least)} to {figures(most)}"
    if {*found["low"], *found["high"]} - {None} == {found["low"][0]}:
        label = f"{found['of']}: always {figures(found['low'][0])}"
    stream, piece = section.report.streams[name], found["piece_ns"]
    few = pieces_of(stream.gap_threshold_ms, piece) if stream.regular else len(found["low"])
    low, high = (plots.held(found[key], few) for key in ("low", "high"))
    wide = section.axis.lengths.get(found["episode"], 0) / piece
    drawn = plots.sparkline(low, high, found["after_s"] * 1e9 / piece, wide, text(label))
    return f'<div>{drawn}<div class="dim small">{text(label)}</div></div>'


def recordings(data: Mapping[str, Any], sections: Sequence[Section], drawn: Sequence[Section]) -> str:
    numbers = {id(section): number for number, section in enumerate(drawn)}
    rows = []
    for section in sections:
        name, report = text(section.data["name"]), section.report
        if id(section) in numbers:
            name = f'<a href="#r{numbers[id(section)]}">{name}</a>'
        count = sum(stream.gaps or 0 for stream in report.streams.values())
        cells = [f"{report.episodes:,}", f"{len(report.streams):,}", seconds(report.duration_s), f"{count:,}"]
        rows.append([name, *cells, badge(report.level)])
    rows += [[text(failed["error"]), "", "", "", "", badge_of("bad", "cannot be read")] for failed in data["failed"]]
    headers = ("recording", "episodes", "streams", "length", "gaps", "verdict")
    more = ""
    if len(drawn) < len(sections):
        more = f"<p>The {len(drawn)} worst of them follow; the data inside this page have the numbers of all.</p>"
    return f"<h2>Recordings</h2>{table(headers, rows, range(1, 5))}{more}"


def changes(against: Mapping[str, Any], alone: bool) -> str:
    found = against["changes"]
    better = sum(change["better"] is True for change in found)
    worse = sum(change["better"] is False for change in found)
    made = text(against["made"][:16].replace("T", " "))
    said = f"{better} better, {worse} worse, {len(found) - better - worse} other changes since "
    said += f"{text(against['file'])} ({made})."
    parts = [f'<h2 id="against">Since the earlier report</h2><p>{said} Earlier: {text(against["verdict"])}</p>']
    whole = [change for change in found if change["what"] == "stream"]
    for words, key, after in (("New here", "only_now", "there"), ("Not here any more", "only_before", "not there")):
        names = [*map(text, against[key]), *(where(each, alone) for each in whole if each["after"] == after)]
        more = f" and {len(names) - 12} more" if len(names) > 12 else ""
        parts += [f"<p>{words}: {', '.join(names[:12])}{more}.</p>"] if names else []
    rows = []
    for change in sorted(found, key=lambda each: each["better"] is not False)[:MOST_ROWS]:
        mark = {True: badge_of("good", "better"), False: badge_of("bad", "worse"), None: ""}[change["better"]]
        if change["what"] != "stream":
            cells = [text(change[key]) for key in ("what", "before", "after")]
            rows.append([f'<span class="name">{where(change, alone)}</span>', *cells, mark])
    if rows:
        parts.append(table(("stream", "what", "before", "now", ""), rows, (2, 3)))
    return "".join(parts)


def where(change: Mapping[str, Any], alone: bool) -> str:
    return text(change["stream"] if alone else f"{change['recording']}: {change['stream']}")


def badge_of(level: str, words: str) -> str:
    return f'<span class="badge {level}">{words}</span>'


# ---- The end


def recipe(section: Section) -> str:
    if not section.data["recipe"]:
        return ""
    command = "robocache build RECORDING -o CACHE --recipe recipe.toml"
    said = f"The first recipe, as robocache info --write-recipe writes it. Edit it, then: <code>{command}</code>"
    code = section.data["recipe"]
    inside = f"<pre>{text(code, len(code))}</pre>"
    return f'<h2 id="recipe">Recipe</h2><p>{said}</p><details><summary>recipe.toml</summary>{inside}</details>'


def notes(section: Section) -> str:
    said = [*section.data["notes"], *(f"Left out: {why}" for why in section.data["left_out"])]
    items = "".join(f"<li>{text(each)}</li>" for each in said)
    return f"<h2>Notes</h2><ul>{items}</ul>" if items else ""


def footer(data: Mapping[str, Any]) -> str:
    made = text(data["made"].replace("T", " ").removesuffix("+00:00"))
    return (
        f'<footer class="small dim">Made by RoboCache {text(data["robocache"])} on {made} UTC. All numbers are inside '
        "this page as JSON: rc.report_data(file) reads them. Curves and bands are made of what can be seen: the least "
        "and the greatest value of each piece of time.</footer>"
    )
