"""The report of ``benchmarks.schedulers``: a table for each figure, and a plot of cost against entries.

Comes from:  what a run has found.
Goes to:     schedulers.md and schedulers.svg.
"""

from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import findings, formats
from benchmarks.charts import LINES, STYLE, empty, short, styled
from benchmarks.judgement import ours
from benchmarks.markdown import table
from benchmarks.schedulers import BURST_SECONDS, SCHEDULERS, Found


class Shown(NamedTuple):
    """A figure in the report. least: what is drawn for less, which a logarithmic scale has no place for."""

    name: str
    title: str
    unit: str
    digits: int
    least: float = 0.0


FIGURES = (
    Shown("first_start", "start for the first time, to the first call", "s", 2),
    Shown("start", "start again, to the first call", "s", 2),
    Shown("idle_cpu", "idle: processor", "% of a core", 2, 0.01),
    Shown("memory", "memory (PSS)", "MB", 1),
    Shown("late_p50", "calls of a minute: late, p50", "ms", 1),
    Shown("late_p99", "calls of a minute: late, p99", "ms", 1, 1.0),
    Shown("late_most", "calls of a minute: late, the last", "ms", 1),
    Shown("spread", "calls of a minute: from the first to the last", "s", 3),
    Shown("burst_cpu", "calls of a minute: processor time", "s", 3),
)
DRAWN = ("start", "idle_cpu", "memory", "late_p99")
NAMES = {
    "qworker": "qworker, SQLite",
    "qworker-redis": "qworker, Redis",
    "qworker-postgresql": "qworker, PostgreSQL",
    "qworker-mariadb": "qworker, MariaDB",
    "celery-redis": "Celery beat, Redis",
    "rq": "rq cron, Redis",
}

NOISY = 20.0
"""Percent of a core that other processes, and the servers, may use while a scheduler is idle."""

Points = Mapping[int, float]


def write(found: Found, out: Path) -> list[Path]:
    """Write both files into `out`; returns their paths."""
    out.mkdir(parents=True, exist_ok=True)
    files = {out / "schedulers.md": document(found), out / "schedulers.svg": plot(found)}
    for path, content in files.items():
        path.write_text(content, encoding="utf-8")
    return list(files)


def points(found: Found, figure: str) -> dict[str, Points]:
    """Of each peer the points that have the figure, the fewest entries first."""
    ordered = sorted(found.points, key=lambda point: point.entries)
    every = {
        name: {each.entries: each.figures[figure] for each in ordered
               if each.peer == name and figure in each.figures}
        for name in SCHEDULERS
    }  # fmt: skip
    return {name: those for name, those in every.items() if those}


def document(found: Found) -> str:
    """The report as Markdown."""
    machine = ", ".join(f"{title} {text}" for title, text in found.machine.items())
    parts = ["# Schedulers", f"{found.started}: {machine}"]
    for shown in FIGURES:
        if points(found, shown.name):
            parts += [f"## {shown.title}, {shown.unit}", table(*_rows(found, shown))]
    taken = {name: points(found, name) for name in ("takeover", "takeover_most")}
    lines = [
        [NAMES[name], f"{entries:,}", f"{value:.2f}", f"{taken['takeover_most'][name][entries]:.2f}"]
        for name, those in taken["takeover"].items()
        for entries, value in those.items()
    ]
    if lines:
        head = ["scheduler", "entries", "median", "longest"]
        parts += ["## A leader is killed: to the next call, s", table(head, lines)]
    parts += ["## Peers", table(["peer", "version"], [[NAMES[name], it] for name, it in found.peers.items()])]
    noisy = [
        f"{NAMES[point.peer]}, {point.entries:,}"
        for point in found.points
        if point.figures.get("others_cpu", 0.0) > NOISY
    ]
    if noisy:
        parts.append(f"The machine was busy with other work during: {'; '.join(noisy)}.")
    missing = [
        f"- {NAMES[point.peer]}, {point.entries:,} entries: {findings.brief(point.error)}"
        for point in found.points
        if point.error
    ]
    missing += [f"- {NAMES[name]}: {why}" for name, why in found.skipped.items()]
    parts += ["## What has no figure", "\n".join(missing)] if missing else []
    return "\n\n".join(parts) + "\n"


def _rows(found: Found, shown: Shown) -> tuple[list[str], list[list[str]]]:
    """A line for each peer, and how many times what we have on the same server, where it is another's."""
    every = points(found, shown.name)
    columns = sorted({entries for those in every.values() for entries in those})
    of_ours = {SCHEDULERS[name].group: those for name, those in every.items() if ours(name)}

    def cell(name: str, entries: int) -> str:
        value = every[name].get(entries)
        if value is None:
            return "–"
        if shown.name.startswith("late") and value >= 1e3 * BURST_SECONDS:
            return f"over {1e3 * BURST_SECONDS:,.0f}"
        text = f"{value:,.{shown.digits}f}"
        against = of_ours.get(SCHEDULERS[name].group, {}).get(entries)
        return text if ours(name) or not against else f"{text} ({formats.ratio(value / against)})"

    head = ["entries", *(f"{entries:,}" for entries in columns)]
    return head, [[NAMES[name], *(cell(name, entries) for entries in columns)] for name in every]


def plot(found: Found) -> str:
    """Cost against entries, four figures, as an SVG file; both scales are logarithmic."""
    colours = dict(zip(SCHEDULERS, LINES, strict=False))
    with styled({**STYLE, "svg.hashsalt": "schedulers", "font.size": 10.0}):
        figure = empty(11.0, 8.0)
        for axes, name in zip(figure.subplots(2, 2).flat, DRAWN, strict=True):
            shown = next(each for each in FIGURES if each.name == name)
            for peer, those in points(found, name).items():
                heights = [max(value, shown.least) for value in those.values()]
                axes.plot(list(those), heights, marker="o", color=colours[peer], label=NAMES[peer])
            axes.set_title(f"{shown.title}, {shown.unit}", fontsize=10.0)
            _scale(axes, sorted({point.entries for point in found.points}))
        lines = {line.get_label(): line for axes in figure.axes for line in axes.get_lines()}
        figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=3, frameon=False)
        out = StringIO()
        figure.savefig(out, format="svg", facecolor="white", metadata={"Date": None})
        return out.getvalue()


def _scale(axes: Any, entries: list[int]) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(entries, [short(each) for each in entries])
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_formatter(lambda value, _: short(value))
    axes.yaxis.set_minor_formatter(lambda value, _: "")
    axes.grid()
