"""The report as Markdown that also reads well as plain text in a terminal."""

import math
from collections.abc import Sequence

from benchmarks import findings, formats
from benchmarks.judgement import Row, judge_all
from benchmarks.metrics import METRICS
from benchmarks.results import Results

WIDTH = 24


def document(results: Results) -> str:
    """The whole report."""
    rows = judge_all(results)
    lost = findings.losses(results)
    parts = [
        f"# {findings.TITLE}",
        findings.machine(results),
        *(f"> {line}".replace("\n", "\n> ") for line in findings.warnings(results)),
        "## Targets",
        findings.headline(rows),
        targets(rows),
        "## Against the best peer",
        findings.RATIO_NOTE,
        f"```\n{plot(rows)}\n```",
        "## All figures",
        everything(results),
        "## Losses and repeats",
        findings.total(results),
        *([table(findings.LOSSES_HEAD, lost)] if lost else []),
        "## What this machine allows",
        table(findings.LIMITS_HEAD, findings.limits(results)),
        "## Peers",
        table(findings.PEERS_HEAD, findings.peers(results)),
    ]
    return "\n\n".join(parts) + "\n"


def targets(rows: Sequence[Row]) -> str:
    """The table of the figures that have a target."""
    return table(
        findings.TARGETS_HEAD,
        [
            [
                formats.subject(row),
                formats.figure(row.metric, row.figure),
                formats.best(row),
                formats.ratio(row.ratio),
                formats.goals(row.target),
                formats.mark(row.verdict),
                formats.aim(row),
                formats.mark(row.aim) if row.aim else "",
            ]
            for row in rows
        ],
    )


def everything(results: Results) -> str:
    """Every figure of every peer: the median, with least and most when rounds differ."""
    return table(
        ["figure", "unit", *results.peers],
        [
            [
                metric.title,
                metric.unit,
                *(
                    formats.figure(metric, results.figure(metric.name, peer), unit=False)
                    for peer in results.peers
                ),
            ]
            for metric in METRICS.values()
            if results.figures(metric.name)
        ],
    )


def plot(rows: Sequence[Row]) -> str:
    """Bars that grow to the right of a line where qworker is better than the best peer, to the left where worse."""
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
            f"{formats.subject(row):{margin}}  {left:>{WIDTH}}│{right:{WIDTH}} {formats.ratio(ratio):>7} {peer}"
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
