"""The tables that a run prints at its end, and the goals that its rows reach or miss."""

from __future__ import annotations

from collections.abc import Sequence

from bench import records
from bench.goals import COMPILED, CPU_FACTORS, CPU_MOST, EAGER, FLOOR, GOALS, GPU_FACTORS, OURS, PEAKS

Group = tuple[records.Row | None, records.Row | None, records.Row | None]


def groups(rows: Sequence[records.Row]) -> list[tuple[str, str, int | None, Group]]:
    """(op, case, threads, (ours, torch, torch.compile)), in the order of the rows."""
    found: dict[tuple[str, str, int | None], dict[str, records.Row]] = {}
    for row in rows:
        if row["who"] in (OURS, EAGER, COMPILED):
            found.setdefault(_place(row), {})[row["who"]] = row
    return [(*key, (by.get(OURS), by.get(EAGER), by.get(COMPILED))) for key, by in found.items()]


def others(rows: Sequence[records.Row]) -> list[tuple[records.Row, records.Row]]:
    """(ours, a peer without a column of its own), in the order of the rows."""
    ours = {_place(row): row for row in rows if row["who"] == OURS}
    rest = (row for row in rows if row["who"] not in (OURS, EAGER, COMPILED))
    return [(ours[_place(row)], row) for row in rest if _place(row) in ours]


def _place(row: records.Row) -> tuple[str, str, int | None]:
    return row["op"], row["case"], row.get("threads")


def faster(ours: records.Row, other: records.Row) -> float:
    """How many times as fast as the other ours is, by cold times where both have one."""
    both = ours.get("cold_us") and other.get("cold_us")
    return other["cold_us"] / ours["cold_us"] if both else other["wall_us"] / ours["wall_us"]


def goals(rows: Sequence[records.Row], device: str) -> list[tuple[str, str, str, bool]]:
    """(row, goal, what it reached, whether that is enough), for the rows that were measured and have a goal."""
    found = []
    measured = {(*_place(row), row["who"]): row for row in rows}
    for ours in (row for row in rows if row["who"] == OURS):
        title = f"{ours['op']} {ours['case']}"
        key = ours["op"], ours["case"]
        if device == "cuda":
            for name, most in zip(("cold_us", "wall_us"), GOALS.get(key, ()), strict=False):
                if most is not None:
                    figure = ours.get(name)
                    reached = "-" if figure is None else number(figure)
                    wanted = f"{most:g} us {name.removesuffix('_us')}"
                    found.append((title, wanted, reached, figure is not None and figure <= most))
        elif key in CPU_MOST:
            most, reached = CPU_MOST[key], ours["wall_us"]
            found.append((title, f"{most:g} us wall", number(reached), reached <= most))
        for who, factor in (GPU_FACTORS if device == "cuda" else CPU_FACTORS).get(key, {}).items():
            other = measured.get((*_place(ours), who))
            if who == FLOOR:
                other = {"cold_us": ours["floor_us"], "wall_us": ours["floor_us"]}
            if other:
                times = faster(ours, other)
                found.append((title, f"{factor:.3g}x {who}", f"{times:.2f}x", times >= factor))
        if key in PEAKS and "peak_mib" in ours:
            peak, most = ours["peak_mib"], PEAKS[key]
            found.append((title, f"{most:g} MiB", number(peak), peak <= most))
    return found


def pair(row: records.Row | None) -> str:
    """cold / wall; wall alone on a CPU"""
    if row is None:
        return "-"
    if row.get("threads"):
        return number(row["wall_us"])
    return " / ".join("-" if row.get(name) is None else number(row[name]) for name in ("cold_us", "wall_us"))


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def table(rows: Sequence[records.Row], device: str) -> str:
    """The rows beside torch, the rows beside other peers, and the goals."""
    head, line = (_cuda_head, _cuda_line) if device == "cuda" else (_cpu_head, _cpu_line)
    parts = [_columns([head, *(line(f"{op} {case}", threads, group) for op, case, threads, group in groups(rows))])]
    if pairs := others(rows):
        lines = [
            (f"{ours['op']} {ours['case']}", pair(ours), other["who"], pair(other), f"{faster(ours, other):.2f}")
            for ours, other in pairs
        ]
        parts.append(_columns([("us", "ours", "beside", "takes", "faster"), *lines]))
    if wanted := goals(rows, device):
        marked = [(*words, "yes" if enough else "NO") for *words, enough in wanted]
        parts.append(_columns([("goal", "must reach", "reached", "enough"), *marked]))
    return "\n\n".join(parts)


_cuda_head = ("us, cold / wall", "floor", "ours", EAGER, COMPILED)
_cpu_head = ("us, wall", "threads", "memcpy", "ours", EAGER, COMPILED, "torch / ours", "of memcpy")


def _cuda_line(title: str, threads: int | None, group: Group) -> tuple[str, ...]:
    floor = next(row["floor_us"] for row in group if row)
    return (title, f"{floor:.2f}", *map(pair, group))


def _cpu_line(title: str, threads: int | None, group: Group) -> tuple[str, ...]:
    ours, eager, _ = group
    floor = next(row["floor_us"] for row in group if row)
    walls = ["-" if row is None else number(row["wall_us"]) for row in group]
    factor = f"{faster(ours, eager):.1f}" if ours and eager else "-"
    share = f"{ours['memcpy_share']:.0%}" if ours else "-"
    return (title, str(threads), number(floor), *walls, factor, share)


def _columns(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(_padded, line, widths, range(len(line)))).rstrip() for line in lines)


def _padded(cell: str, width: int, column: int) -> str:
    return cell.rjust(width) if column else cell.ljust(width)
