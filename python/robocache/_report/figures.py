"""The figures of a recording: gaps over time, the worst moments, jitter, arrival - stamp, age at tick."""

from __future__ import annotations

from collections.abc import Sequence

from robocache._recordings.sync import MOST_JITTER
from robocache._report import plots
from robocache._report.measures import CURVE, PIECES, PIXELS
from robocache._report.moments import Moment
from robocache._report.report import Section
from robocache._report.words import milliseconds, ppm, seconds, table, text

MOST_CUTS = 60  # episodes between which lines are drawn
MOST_EPISODES = 8  # in the table of episodes


def caption(said: str, good: str) -> str:
    return f'<p class="caption">{said} <b>Good:</b> {good}</p>'


def heading(section: Section, key: str, title: str) -> str:
    return f'<h2 id="{key}">{title}</h2>'


def rows_of(names: Sequence[str], pictures: Sequence[str], scale: str, more: Sequence[str] | None = None) -> str:
    """A grid with a row for each name: the name, its picture, and optional text. The scale is below."""
    kind = "rows" if more is None else "rows three"
    parts = []
    for k, (name, picture) in enumerate(zip(names, pictures, strict=True)):
        behind = "" if more is None else f'<div class="figures small">{more[k]}</div>'
        parts.append(f'<div class="name">{text(name)}</div><div>{picture}</div>{behind}')
    end = "" if more is None else '<div class="blank"></div>'
    return f'<div class="{kind}">{"".join(parts)}<div class="blank"></div><div class="scale">{scale}</div>{end}</div>'


def key(*entries: tuple[str, str]) -> str:
    return "".join(
        ['<div class="key">', *(f'<span><i style="background:var(--{c})"></i>{w}</span>' for c, w in entries), "</div>"]
    )


# ---- Gaps


def gaps(section: Section) -> str:
    names = [name for name in section.drawn if not section.report.streams[name].static]
    if not names:
        return ""
    axis, several = section.axis, section.report.episodes > 1
    begins = [round(at / axis.total * PIXELS) for at in list(axis.begins.values())[1:]]
    cuts = begins if len(begins) <= MOST_CUTS else []
    pictures = []
    for name in names:
        stream = section.report.streams[name]
        told = "irregular" if stream.gaps is None else f"{stream.gaps} gaps, {100 * stream.coverage:.1f} % covered"
        pictures.append(plots.raster(section.measures.rows[name], cuts, text(f"{name}: {told}")))
    long = section.report.duration_s
    scale = f"<span>0 s</span><span>{seconds(long / 2)}</span><span>{seconds(long)}</span>"
    said = "Each row is a stream over the whole recording"
    said += f", its {section.report.episodes:,} episodes end to end." if several else "."
    said += " A gap is never drawn narrower than a pixel, so that none is overlooked."
    legend = key(("there", "samples"), ("gap", "gap"), ("absent", "not there: not begun, ended, or not written"))
    figure = rows_of(names, pictures, scale)
    good = "full bars. Gaps of several streams at the same moment mean that the recorder stood still, not a sensor."
    return "".join([
        heading(section, "gaps", "Gaps over time"),
        caption(said, good),
        legend,
        figure,
        episodes(section) if several else "",
    ])  # fmt: skip


def episodes(section: Section) -> str:
    """A table of the episodes that miss most."""
    listed = section.data["episode_list"]
    worst = sorted((each for each in listed if each["gaps"]), key=lambda each: -each["gap_seconds"])[:MOST_EPISODES]
    if not worst:
        return "<p>No episode has a gap.</p>"
    rows = [
        [text(each["name"]), text(each["task"] or "-"), seconds(each["seconds"]), f"{gaps:,}", seconds(missing)]
        for each in worst
        for gaps, missing in [(each["gaps"], each["gap_seconds"])]
    ]
    has = sum(1 for each in listed if each["gaps"])
    title = f"<p>{has:,} of {len(listed):,} episodes have gaps; those that miss most, over all streams:</p>"
    return title + table(("episode", "task", "length", "gaps", "missing"), rows, (2, 3, 4))


# ---- Moments


def moments(section: Section) -> str:
    begin = heading(section, "moments", "Worst moments")
    if not section.moments:
        return f"{begin}<p>No moment stands out: there is no gap, and no message was much later than usual.</p>"
    said = (
        "The longest gaps and the latest messages, with the samples around them. Each tick is a sample at its time; "
        "around a late message, each tick is an arrival. Look at the hole; a single late message has none."
    )
    good = "none at all, or moments at which nothing happened that a policy must learn."
    return begin + caption(said, good) + "".join(moment(section, each) for each in section.moments)


def moment(section: Section, found: Moment) -> str:
    at = f"at {seconds(found.after_s)}"
    if section.report.episodes > 1:
        at += f" of episode {found.episode}"
    also = ""
    if found.also:
        shown = ", ".join(found.also[:4]) + (f" and {len(found.also) - 4} more" if len(found.also) > 4 else "")
        also = f"; at the same time {shown}"
    title = f'<h3><span class="name">{text(found.stream)}</span>: {text(found.sentence())}, {text(at)}</h3>'
    names = list(found.samples)
    pictures = [plots.ticks(found.samples[name], text(f"samples of {name}")) for name in names]
    start, end = found.window
    low, high = ((each - found.start) * 1e-9 for each in (start, end))
    scale = f"<span>{low:+.2f} s</span><span>{high:+.2f} s</span>"
    shots = "".join(shot_of(shot) for shot in found.pictures)
    shots = f'<div class="shots">{shots}</div>' if shots else ""
    more = f'<p class="small dim">{text(also.removeprefix("; "))}</p>' if also else ""
    return f'<div class="moment">{title}{more}{rows_of(names, pictures, scale)}{shots}</div>'


def shot_of(shot: dict[str, str]) -> str:
    away = abs(float(shot["seconds"]))
    when = {"before": "the last before", "after": "the first after"}[shot["when"]]
    apart = f", {away:.3f} s {'earlier' if shot['when'] == 'before' else 'later'}" if away >= 0.0005 else ""
    told = text(f"{shot['camera']}, {when}{apart}")
    image = f'<img src="{shot["data"]}" width="{shot["width"]}" height="{shot["height"]}" alt="{told}">'
    return f"<figure>{image}<figcaption>{told}</figcaption></figure>"


# ---- Jitter, delays, ages


def jitter(section: Section) -> str:
    panels = []
    for name in section.drawn:
        stream, curve = section.report.streams[name], section.measures.data[name]["jitter"]
        if curve is None or stream.static:
            continue
        p50, p99 = milliseconds(stream.jitter_ms_p50), milliseconds(stream.jitter_ms_p99)
        period = milliseconds(stream.period_ms)
        drawn = plots.ecdf(curve["share"], MOST_JITTER / CURVE[-1], text(f"{name}: half of the steps within {p50}"))
        told = f"half within {p50}, 99 % within {p99}; period {period}"
        panels.append(panel(name, told, drawn, "<span>0</span><span>25 % of the period</span><span>50 %</span>"))
    if not panels:
        return ""
    said = (
        "How far the time between two samples is from the usual period: the curve is the share of steps (from 0 to "
        "100 %) that are at most so far off. Steps of over 1.5 periods are lost samples or gaps, and are not in it."
    )
    good = "a curve that jumps to the top at the left edge; it should be there long before the dashed line."
    return heading(section, "jitter", "Jitter") + caption(said, good) + f'<div class="panels">{"".join(panels)}</div>'


def least_known(value: float | None) -> float:
    return float("inf") if value is None else value


def most_known(value: float | None) -> float:
    return float("-inf") if value is None else value


def pieces_of(threshold_ms: float | None, piece_ns: float) -> float:
    """How many pieces in a row may lack samples before that is a gap."""
    return 0.0 if threshold_ms is None else threshold_ms * 1e6 / piece_ns


def panel(name: str, told: str, drawn: str, scale: str) -> str:
    return (
        f'<figure><div class="name small">{text(name)}</div>{drawn}<div class="scale">{scale}</div>'
        f"<figcaption>{told}</figcaption></figure>"
    )


def delays(section: Section) -> str:
    panels, without = [], []
    for name in section.drawn:
        stream, found = section.report.streams[name], section.measures.data[name]["delay"]
        if stream.static:
            continue
        if found is None:
            without.append(name)
            continue
        line = found["drift_line_ms"]
        few = pieces_of(stream.gap_threshold_ms, section.axis.total / PIECES)
        low, high = (plots.held(found[key], few) for key in ("least_ms", "most_ms"))
        drawn = plots.delay(low, high, line, text(f"{name}: arrival - stamp"))
        least, most = plots.bounds(found["least_ms"], found["most_ms"])
        told = f"median {milliseconds(stream.offset_ms)}, drift {ppm(stream.drift_ppm)}"
        if min(found["least_ms"], key=least_known) == max(found["most_ms"], key=most_known):
            scale = "<span>always the same</span>"
        else:
            scale = f"<span>from {milliseconds(least)} to {milliseconds(most)}</span>"
        panels.append(panel(name, told, drawn, scale))
    if not panels:
        return ""
    said = (
        "How long each message took from its stamp to the recorder, over the whole recording: from the least to the "
        "most at each moment. The line is the drift of the fastest messages; a dotted line is zero."
    )
    good = (
        "a thin, level band a little above zero. A slope is a clock that drifts, a step a clock that was set, a spike "
        "a late message; below zero, stamps lie in the future."
    )
    rest = ""
    if without:
        shown = ", ".join(map(text, without[:8])) + (f" and {len(without) - 8} more" if len(without) > 8 else "")
        rest = f'<p class="small dim">Without stamps of their own: {shown}.</p>'
    title = heading(section, "delays", "Arrival minus stamp")
    return title + caption(said, good) + f'<div class="panels">{"".join(panels)}</div>{rest}'


def ages(section: Section, rate: float) -> str:
    data = section.measures.data
    names = [n for n in section.drawn if (data[n]["age"] or {}).get("p50_ms") is not None]
    names = [name for name in names if not section.report.streams[name].static]
    if not names:
        return ""
    told = [data[name]["age"] for name in names]
    positive = [value for age in told for value in (age["p50_ms"], age["max_ms"]) if value > 0]
    scale = plots.decades(min(positive, default=1.0), max(positive, default=1.0))
    pictures, words = [], []
    for name, age in zip(names, told, strict=True):
        values = age["p50_ms"], age["p99_ms"], age["max_ms"]
        label = text(f"{name}: median {milliseconds(values[0])}, maximum {milliseconds(values[2])}")
        pictures.append(plots.age_row(*values, section.report.streams[name].period_ms, scale, label))
        words.append(" / ".join(milliseconds(value) for value in values))
    steps = "".join(f"<span>{milliseconds(10.0**k)}</span>" for k in range(scale[0], scale[1] + 1))
    said = (
        f"At each tick of a policy that runs at {rate:g} Hz: how old the newest sample is that had arrived. The dot is "
        "the median, the bar reaches to the 99th percentile, the thin line to the maximum; the upright mark is the "
        "period. Behind it: median / 99th percentile / maximum."
    )
    good = "the dot is at half a period plus the delay, and the bar is short. A long line is a gap or a late message."
    if any(age["every"] > 1 for age in told):
        said += f" Measured at one of {max(age['every'] for age in told):,} ticks."
    title = heading(section, "ages", f"Age at tick, {rate:g} Hz")
    return title + caption(said, good) + rows_of(names, pictures, steps, words)
