"""The report as one HTML page that needs nothing else: tables, plots, and a style for light and dark
screens."""

from collections.abc import Collection, Sequence
from html import escape

from benchmarks import charts, findings, formats
from benchmarks.growth import CURVES, FIGURES
from benchmarks.judgement import MISS, PASS, Row, judge_all, ours
from benchmarks.metrics import METRICS
from benchmarks.results import Results

STYLE = """
:root {
  color-scheme: light dark; --ground: #fff; --ink: #1c2128; --soft: #5b6470; --rule: #dfe3e8;
  --panel: #f6f7f9; --ours: #0b66c3; --peer: #aab3bf; --better: #0b7f5c; --worse: #c2410c; }
@media (prefers-color-scheme: dark) { :root {
  --ground: #14171b; --ink: #e7eaee; --soft: #9aa4b1; --rule: #2c333c;
  --panel: #1b2026; --ours: #5aa9f5; --peer: #56606d; --better: #3fbf92; --worse: #f0834a; } }
body {
  margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 72rem; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2.5rem 0 .5rem; }
p { margin: .5rem 0; max-width: 46rem; } .soft { color: var(--soft); }
.warning {
  border-left: 3px solid var(--worse); padding: .25rem .75rem; background: var(--panel);
  white-space: pre-wrap; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .87rem; }
th, td {
  padding: .35rem .7rem .35rem 0; border-bottom: 1px solid var(--rule); text-align: left;
  vertical-align: top; }
th { color: var(--soft); font-weight: 600; } td.figure, th.figure { text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; } td.pass { color: var(--better); } td.miss { color: var(--worse); }
td:first-child { min-width: 13rem; } table.goals td:nth-child(6), table.goals td:nth-child(8)
{ min-width: 7.5rem; }
td.pass, td.miss { font-weight: 700; white-space: nowrap; } td.ours, th.ours
{ font-weight: 650; color: var(--ours); }
summary { cursor: pointer; margin: 1rem 0 .5rem; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(22rem, 1fr)); gap: 1.5rem 2rem; }
figure { margin: 0; } figcaption { font-weight: 600; font-size: .9rem; margin-bottom: .2rem; }
svg { max-width: 100%; height: auto; }
"""


def document(results: Results) -> str:
    """The whole page."""
    lost = findings.losses(results)
    groups = findings.measured_groups(results)
    body = [
        f"<h1>{findings.TITLE}</h1>",
        f'<p class="soft">{escape(findings.machine(results))}</p>',
        *(f'<p class="warning">{escape(warning)}</p>' for warning in findings.warnings(results)),
    ]
    if groups:
        head, rows = findings.glance(results)
        body += [
            "<h2>At a glance</h2>",
            f"<p>{escape(findings.headline(judge_all(results)))}</p>",
            f'<p class="soft">{findings.GLANCE_NOTE}</p>',
            table(head, rows, figures=range(1, len(head))),
        ]
    for group in groups:
        body += broker(results, group)
    if results.growth:
        body += ["<h2>How the cost of a task grows</h2>", f'<div class="plots">{growth(results)}</div>']
    if groups:
        body += ["<h2>Losses and repeats</h2>", f"<p>{escape(findings.total(results))}</p>"]
        body += [table(findings.LOSSES_HEAD, lost)] if lost else []
    if results.limits:
        body += ["<h2>What this machine allows</h2>", f'<p class="soft">{findings.LIMIT_NOTE}</p>']
        body += [table(findings.LIMITS_HEAD, findings.limits(results), figures=(1, 2))]
    body += ["<h2>Peers</h2>", table(findings.PEERS_HEAD, findings.peers(results))]
    return (
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{findings.TITLE}</title>\n<style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def broker(results: Results, group: str) -> list[str]:
    """The part of one broker: goals, ratios, a plot for each figure, and all of them as a table."""
    rows = judge_all(results, group)
    head, lines = findings.figures(results, group)
    judged = [
        f"<p>{escape(findings.headline(rows))}</p>",
        targets(rows),
        f'<p class="soft">{findings.RATIO_NOTE}</p>',
        f'<div class="wide">{charts.against_best(rows)}</div>',
    ]
    return [
        f"<h2>{escape(findings.heading(group))}</h2>",
        *(judged if rows else []),
        f'<div class="plots">{plots(results, rows, group)}</div>',
        f"<details><summary>All figures on {escape(group)} as a table</summary>",
        table(head, lines, figures=range(2, len(head))),
        "</details>",
    ]


def growth(results: Results) -> str:
    """A plot for each curve and figure, and the numbers below it."""
    drawn = []
    for name in findings.curves(results):
        for figure, words in FIGURES.items():
            lines = lines_of(results, name, figure)
            if lines:
                drawn.append(charts.lines(f"{words}, against {CURVES[name].title}", lines))
    return "\n".join(drawn)


def lines_of(results: Results, curve: str, figure: str) -> dict[str, list[tuple[float, float]]]:
    """Each peer's points of one figure of a curve, from left to right."""
    found: dict[str, list[tuple[float, float]]] = {}
    for point in sorted(results.growth, key=lambda point: point.x):
        if point.curve == curve and figure in point.figures:
            found.setdefault(point.peer, []).append((point.x, point.figures[figure]))
    return found


def targets(rows: Sequence[Row]) -> str:
    """The table of the figures that have a goal; verdicts are coloured and also marked with a sign."""
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
                row.verdict if row.verdict in (PASS, MISS) else formats.NOTHING,
                formats.aim(row),
                row.aim if row.aim in (PASS, MISS) else formats.NOTHING if row.aim else "",
            ]
            for row in rows
        ],
        figures=(1, 2, 3, 4),
        kind="goals",
    )


def plots(results: Results, rows: Sequence[Row], group: str) -> str:
    """A small plot for each figure that more than one peer of the broker has."""
    bounds = {row.metric.name: row.required for row in rows if formats.subject(row) == row.metric.title}
    drawn = []
    for metric in METRICS.values():
        figures = results.figures(metric.name, group)
        if len(figures) > 1 and (metric.better or metric.name in bounds):
            drawn.append(charts.peers(metric, figures, bounds.get(metric.name)))
    return "\n".join(drawn)


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], figures: Collection[int] = (), kind: str = ""
) -> str:
    """An HTML table in a box that scrolls sideways; the columns in `figures` are set to the right, `kind` is
    its class."""

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
    return f'<div class="wide"><table class="{kind}">' + "\n".join(lines) + "</table></div>"
