"""The report as Markdown that also reads well as plain text in a terminal."""

import math
from collections.abc import Sequence

from benchmarks import findings, formats
from benchmarks.growth import CURVES
from benchmarks.judgement import Row, judge_all
from benchmarks.results import Results

WIDTH = 24


def document(results: Results) -> str:
    """The whole report."""
    lost = findings.losses(results)
    groups = findings.measured_groups(results)
    parts = [
        f"# {findings.TITLE}",
        findings.machine(results),
        *(f"> {line}".replace("\n", "\n> ") for line in findings.warnings(results)),
    ]
    if groups:
        parts += ["## At a glance", findings.headline(judge_all(results)), findings.GLANCE_NOTE]
        parts += [table(*findings.glance(results))]
    for group in groups:
        parts += broker(results, group)
    if results.growth:
        parts.append("## How the cost of a task grows")
    for curve in findings.curves(results):
        parts += [f"### With {CURVES[curve].title}", table(*findings.growth(results, curve))]
    if groups:
        parts += ["## Losses and repeats", findings.total(results)]
        parts += [table(findings.LOSSES_HEAD, lost)] if lost else []
    if results.limits:
        parts += ["## What this machine allows", findings.LIMIT_NOTE]
        parts += [table(findings.LIMITS_HEAD, findings.limits(results))]
    parts += ["## Peers", table(findings.PEERS_HEAD, findings.peers(results))]
    return "\n\n".join(parts) + "\n"


def broker(results: Results, group: str) -> list[str]:
    """The part of one broker: goals, ratios, all figures."""
    rows = judge_all(results, group)
    judged = (
        [findings.headline(rows), targets(rows), findings.RATIO_NOTE, f"```\n{plot(rows)}\n```"]
        if rows
        else []
    )
    return [f"## {findings.heading(group)}", *judged, table(*findings.figures(results, group))]


def targets(rows: Sequence[Row]) -> str:
    """The table of the figures that have a goal."""
    return table(
        findings.TARGETS_HEAD,
        [
            [
                formats.subject(row),
                formats.figure(row.metric, row.figure),
                formats.best(row),
                formats.ratio(row.ratio),
                formats.limit(row),
                formats.goals(row.target),
                formats.mark(row.verdict),
                formats.aim(row),
                formats.mark(row.aim) if row.aim else "",
            ]
            for row in rows
        ],
    )


def plot(rows: Sequence[Row]) -> str:
    """Bars that grow to the right of a line where qworker is better than the best peer, to the left where
    worse."""
    shown = [(row, row.ratio, row.best[0]) for row in rows if row.ratio is not None and row.best is not None]
    if not shown:
        return "(no figure has both qworker and a peer in this run)"
    reach = max(math.log10(2), *(abs(math.log10(ratio)) for _, ratio, _ in shown))
    margin = max(len(formats.subject(row)) for row in rows)
    lines = [f"{'':{margin}}  {'worse':>{WIDTH}}│better"]
    for row, ratio, peer in shown:
        bar = "█" * round(abs(math.log10(ratio)) / reach * WIDTH)
        left, right = ("", bar) if ratio >= 1 else (bar, "")
        lines.append(
            f"{formats.subject(row):{margin}}  {left:>{WIDTH}}│{right:{WIDTH}} "
            f"{formats.ratio(ratio):>7} {peer}"
        )
    return "\n".join(lines)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns also line up as plain text."""
    lines = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in (head, *rows)]
    widths = [max(3, *(len(line[column]) for line in lines)) for column in range(len(head))]
    drawn = [
        "| " + " | ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)) + " |"
        for line in lines
    ]
    drawn.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(drawn)
