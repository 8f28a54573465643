"""The table that a run ends with."""

from __future__ import annotations

from collections.abc import Sequence

from bench import records
from bench.goals import CPU_FACTOR, GOALS

OURS, EAGER, COMPILED = "robocache", "torch", "torch.compile"

Group = tuple[records.Row | None, records.Row | None, records.Row | None]


def groups(rows: Sequence[records.Row]) -> list[tuple[str, str, int | None, Group]]:
    """(op, case, threads, (ours, torch, torch.compile)), in the order of the rows."""
    found: dict[tuple[str, str, int | None], dict[str, records.Row]] = {}
    for row in rows:
        found.setdefault((row["op"], row["case"], row.get("threads")), {})[row["who"]] = row
    return [(*key, (by.get(OURS), by.get(EAGER), by.get(COMPILED))) for key, by in found.items()]


def reaches(row: records.Row, must: tuple[float, float]) -> bool:
    figures = row.get("cold_us"), row.get("wall_us")
    return all(figure is not None and figure <= most for figure, most in zip(figures, must, strict=True))


def pair(row: records.Row | None) -> str:
    """cold / wall"""
    if row is None:
        return "-"
    return " / ".join("-" if row.get(name) is None else number(row[name]) for name in ("cold_us", "wall_us"))


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def table(rows: Sequence[records.Row], device: str) -> str:
    lines = [_cuda_head if device == "cuda" else _cpu_head]
    for op, case, threads, group in groups(rows):
        must = GOALS.get((op, case))
        if device == "cuda":
            lines.append(_cuda_line(f"{op} {case}", group, must))
        else:
            lines.append(_cpu_line(f"{op} {case}", threads, group, must is not None))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(_padded, line, widths, range(len(line)))).rstrip() for line in lines)


_cuda_head = ("us, cold / wall", "floor", "ours", EAGER, COMPILED, "must reach", "reached")
_cpu_head = ("us, wall", "threads", "memcpy", "ours", EAGER, COMPILED, "torch / ours", "of memcpy", f"{CPU_FACTOR}x")


def _cuda_line(title: str, group: Group, must: tuple[float, float] | None) -> tuple[str, ...]:
    ours = group[0]
    floor = next(row["floor_us"] for row in group if row)
    wanted = f"{must[0]:g} / {must[1]:g}" if must else ""
    reached = "" if must is None else "yes" if ours and reaches(ours, must) else "NO"
    return (title, f"{floor:.2f}", *map(pair, group), wanted, reached)


def _cpu_line(title: str, threads: int | None, group: Group, must: bool) -> tuple[str, ...]:
    ours, eager, _ = group
    floor = next(row["floor_us"] for row in group if row)
    walls = ["-" if row is None else number(row["wall_us"]) for row in group]
    factor = eager["wall_us"] / ours["wall_us"] if ours and eager else None
    mark = "" if not must else "yes" if factor and factor >= CPU_FACTOR else "NO"
    share = f"{ours['memcpy_share']:.0%}" if ours else "-"
    return (title, str(threads), number(floor), *walls, f"{factor:.1f}" if factor else "-", share, mark)


def _padded(cell: str, width: int, column: int) -> str:
    return cell.rjust(width) if column else cell.ljust(width)
