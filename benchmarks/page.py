"""The report as one HTML page that needs nothing else: tables, plots, and a style for light and dark screens."""

from collections.abc import Collection, Sequence
from html import escape

from benchmarks import chart, findings, formats
from benchmarks.judgement import MISS, OURS, PASS, Row, judge_all, ours
from benchmarks.metrics import METRICS
from benchmarks.results import Results

STYLE = """
:root { color-scheme: light dark; --ground: #fff; --ink: #1c2128; --soft: #5b6470; --rule: #dfe3e8; --panel: #f6f7f9;
  --ours: #0b66c3; --peer: #aab3bf; --better: #0b7f5c; --worse: #c2410c; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171b; --ink: #e7eaee; --soft: #9aa4b1; --rule: #2c333c;
  --panel: #1b2026; --ours: #5aa9f5; --peer: #56606d; --better: #3fbf92; --worse: #f0834a; } }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 64rem; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2.5rem 0 .5rem; }
p { margin: .5rem 0; max-width: 46rem; } .soft { color: var(--soft); }
.warning { border-left: 3px solid var(--worse); padding: .25rem .75rem; background: var(--panel); white-space: pre-wrap; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .87rem; }
th, td { padding: .35rem .7rem .35rem 0; border-bottom: 1px solid var(--rule); text-align: left; vertical-align: top; }
th { color: var(--soft); font-weight: 600; } td.figure, th.figure { text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; } td.pass { color: var(--better); } td.miss { color: var(--worse); }
td.pass, td.miss { font-weight: 700; white-space: nowrap; } td.ours, th.ours { font-weight: 650; color: var(--ours); }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(22rem, 1fr)); gap: 1.5rem 2rem; }
figure { margin: 0; } figcaption { font-weight: 600; font-size: .9rem; margin-bottom: .2rem; }
svg { max-width: 100%; height: auto; font: 12px system-ui, sans-serif; }
svg text { fill: var(--ink); } svg text.tick { fill: var(--soft); font-size: 11px; } svg text.peer { fill: var(--soft); }
svg text.ours { fill: var(--ours); font-weight: 650; } svg text.value { font-variant-numeric: tabular-nums;
  paint-order: stroke; stroke: var(--ground); stroke-width: 4px; }
.grid { stroke: var(--rule); } .axis { stroke: var(--soft); } .goal { stroke: var(--worse); stroke-dasharray: 4 3; }
.stem { stroke-width: 3; } line.better { stroke: var(--better); } line.worse { stroke: var(--worse); }
circle.better { fill: var(--better); } circle.worse { fill: var(--worse); }
rect.ours, circle.ours { fill: var(--ours); } rect.peer, circle.peer { fill: var(--peer); }
"""


def document(results: Results) -> str:
    """The whole page."""
    rows = judge_all(results)
    lost = findings.losses(results)
    body = [
        f"<h1>{findings.TITLE}</h1>",
        f'<p class="soft">{escape(findings.machine(results))}</p>',
        *(f'<p class="warning">{escape(warning)}</p>' for warning in findings.warnings(results)),
        "<h2>Targets</h2>",
        f"<p>{escape(findings.headline(rows))}</p>",
        targets(rows),
        "<h2>Against the best peer</h2>",
        f'<p class="soft">{findings.RATIO_NOTE}</p>',
        f'<div class="wide">{chart.against_best(rows)}</div>',
        "<h2>Every figure</h2>",
        f'<div class="plots">{plots(results, rows)}</div>',
        "<h2>As a table</h2>",
        everything(results),
        "<h2>Losses and repeats</h2>",
        f"<p>{escape(findings.total(results))}</p>",
        table(findings.LOSSES_HEAD, lost) if lost else "",
        "<h2>What this machine allows</h2>",
        table(findings.LIMITS_HEAD, findings.limits(results), figures=(1, 2)),
        "<h2>Peers</h2>",
        table(findings.PEERS_HEAD, findings.peers(results)),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{findings.TITLE}</title>\n<style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def targets(rows: Sequence[Row]) -> str:
    """The table of the figures that have a target; verdicts are coloured and also marked with a sign."""
    return table(
        findings.TARGETS_HEAD,
        [
            [
                formats.subject(row),
                formats.figure(row.metric, row.figure),
                formats.best(row),
                formats.ratio(row.ratio),
                formats.goals(row.target),
                row.verdict if row.verdict in (PASS, MISS) else formats.NOTHING,
                formats.aim(row),
                row.aim if row.aim in (PASS, MISS) else formats.NOTHING if row.aim else "",
            ]
            for row in rows
        ],
        figures=(1, 2, 3),
    )


def everything(results: Results) -> str:
    """Every figure of every peer."""
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
        figures=range(2, 2 + len(results.peers)),
    )


def plots(results: Results, rows: Sequence[Row]) -> str:
    """A small plot for each figure that more than one peer has."""
    bounds = {row.metric.name: row.required for row in rows if row.target.subject == OURS}
    drawn = []
    for metric in METRICS.values():
        figures = results.figures(metric.name)
        if len(figures) > 1 and (metric.better or metric.name in bounds):
            drawn.append(chart.peers(metric, figures, bounds.get(metric.name)))
    return "\n".join(drawn)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], figures: Collection[int] = ()) -> str:
    """An HTML table in a box that scrolls sideways; the columns in `figures` are set to the right."""

    def cell(tag: str, column: int, content: str) -> str:
        kinds = ["figure"] if column in figures else []
        sign = formats.MARKS.get(content)
        if sign:
            kinds.append(content)
            content = f"{sign} {content}"
        if tag == "th" and ours(content):
            kinds.append("ours")
        attribute = f' class="{" ".join(kinds)}"' if kinds else ""
        return f"<{tag}{attribute}>{escape(content)}</{tag}>"

    lines = ["<tr>" + "".join(cell("th", column, content) for column, content in enumerate(head)) + "</tr>"]
    lines += [
        "<tr>" + "".join(cell("td", column, content) for column, content in enumerate(row)) + "</tr>"
        for row in rows
    ]
    return '<div class="wide"><table>' + "\n".join(lines) + "</table></div>"
