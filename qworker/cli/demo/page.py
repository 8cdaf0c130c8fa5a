"""Writes the demo's report as one self-contained HTML file: no script, no network, both colour schemes.

Comes from:  driver, a Report.
Goes to:     a file.
Thread:      main; pure except for write().
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from qworker.cli.demo.report import PARTS_HEADINGS, Report, parts_rows, short_path

WIDTH = 960
LABEL = 170
LANE = 46
PACKAGES_SHOWN = 20
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60)


def write(report: Report, path: Path) -> None:
    """Write the page to *path*, replacing an existing file."""
    path.write_text(page(report), encoding="utf-8")


def page(report: Report) -> str:
    facts = report.facts
    total = report.total
    tiles = [
        (f"{total.files:,}", "modules"),
        (f"{total.lines:,}", "lines"),
        (f"{total.tokens:,}", "tokens"),
        (f"{total.classes:,}", "classes"),
        (f"{total.functions:,}", "functions"),
        (f"{report.seconds:.1f} s", f"on {facts.get('children', '?')} children"),
    ]
    sections = [
        f"<h1>What Python {escape(facts.get('python', ''))} is made of</h1>",
        "<p>Every module of this installation, one task each, run by qworker "
        f"{escape(facts.get('version', ''))} on a "
        "broker that is one SQLite file.</p>",
        '<div class="tiles">'
        + "".join(f'<div class="tile"><b>{a}</b><span>{b}</span></div>' for a, b in tiles)
        + "</div>",
        "<h2>Who did what, when</h2>",
        "<p>A lane for each child process. Async tasks wait side by side in one child while it continues "
        "reading modules; "
        "the calls that are rate-limited keep their distance; a child that was killed stops, and another "
        "takes over.</p>",
        key(),
        timeline(report),
        "<h2>What ran</h2>",
        html_table(PARTS_HEADINGS, parts_rows(report)),
        "<h2>Largest packages, by tokens</h2>",
        packages(report),
        "<h2>Imported most</h2>",
        html_table(
            ("module", "imported by"), [[name, f"{count:,} modules"] for name, count in report.imports]
        ),
    ]
    if report.failures:
        sections.append(f"<h2>Not valid in this version of Python ({len(report.failures)})</h2><ul>")
        sections += [f"<li><code>{escape(short_path(failure))}</code></li>" for failure in report.failures]
        sections.append("</ul>")
    style = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>qworker demo</title>'
        f'<meta name="viewport" content="width=device-width"><style>{style}</style></head><body>\n'
        + "\n".join(sections)
        + "\n</body></html>\n"
    )


def html_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    numeric = [
        bool(rows) and all(row[column][:1].isdigit() or row[column] == "–" for row in rows)
        for column in range(len(headings))
    ]

    def line(tag: str, cells: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=number' if right else ''}>{escape(cell)}</{tag}>"
            for cell, right in zip(cells, numeric, strict=True)
        )

    body = "".join(f"<tr>{line('td', row)}</tr>" for row in rows)
    return f"<table><tr>{line('th', headings)}</tr>{body}</table>"


def packages(report: Report) -> str:
    """Return horizontal bars as HTML."""
    shown = report.packages[:PACKAGES_SHOWN]
    row = 24
    drawn = []
    for index, package in enumerate(shown):
        y = index * row
        length = (WIDTH - LABEL - 230) * package.tokens / shown[0].tokens
        drawn.append(
            f'<text x="{LABEL - 10}" y="{y + 16}" text-anchor="end">{escape(package.name)}</text>'
            f'<rect class="analyse" x="{LABEL}" y="{y + 4}" width="{max(length, 1):.1f}" height="{row - 8}" '
            'rx="3"/>'
            f'<text class="soft" x="{LABEL + length + 8:.1f}" y="{y + 16}">{package.tokens:,} tokens, '
            f"{package.files:,} {'file' if package.files == 1 else 'files'}</text>"
        )
    return f'<svg viewBox="0 0 {WIDTH} {len(shown) * row}" role="img">{"".join(drawn)}</svg>'


def key() -> str:
    names = [
        ("analyse", "module read"),
        ("digest", "async task"),
        ("notify", "rate-limited call"),
        ("mark", "other"),
    ]
    dots = [f'<span><svg viewBox="0 0 10 10"><rect class="{name}" width="10" height="10" '
            f'rx="3"/></svg>{words}</span>'
            for name, words in names]  # fmt: skip
    return f'<div class="key">{"".join(dots)}</div>'


def timeline(report: Report) -> str:
    """Return a row for each child: modules above, async tasks below, calls and single events as marks."""
    runs = [(run.part, run.value) for part in report.parts for run in part.runs if run.ok]
    if not runs:
        return "<p>No task succeeded.</p>"
    killed: dict[int, float] = {
        value["killed"]: value["killed_at"] for part, value in runs if part == "die_once"
    }
    begin: float = min([*(value["started"] for _, value in runs), *killed.values()])
    span: float = max(max(value["ended"] for _, value in runs) - begin, 0.001)
    scale = (WIDTH - LABEL - 20) / span
    first = killed.copy()  # a killed child may not have completed any task
    for _, value in runs:
        first[value["pid"]] = min(value["started"], first.get(value["pid"], value["started"]))
    lanes = {pid: index for index, pid in enumerate(sorted(first, key=lambda pid: first[pid]))}
    height = len(lanes) * LANE + 24

    def x(epoch: float) -> float:  # in pixels
        return LABEL + (epoch - begin) * scale

    drawn = [*grid(span, scale, height - 24)]
    for pid, lane in lanes.items():
        y = lane * LANE
        words = f"child {pid}" + (", killed" if pid in killed else "")
        drawn.append(f'<text x="{LABEL - 10}" y="{y + 25}" text-anchor="end">{words}</text>')
    drawn += [shape(part, value, x, lanes[value["pid"]] * LANE) for part, value in runs]
    drawn += [
        f'<text class="mark" x="{x(moment):.1f}" y="{lanes[pid] * LANE + 30}" font-weight="700" '
        f'text-anchor="middle">✕<title>killed here</title></text>'
        for pid, moment in killed.items()
    ]
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{"".join(drawn)}</svg>'


def grid(span: float, scale: float, height: int) -> Iterator[str]:
    step = next((step for step in TICKS if span / step <= 10), span)
    for index in range(int(span / step) + 1):
        x = LABEL + index * step * scale
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}"/>'
        words = f"{index * step:g} s"
        yield f'<text class="soft" x="{x:.1f}" y="{height + 16}" text-anchor="middle">{words}</text>'


def shape(part: str, value: dict[str, Any], x: Any, y: int) -> str:
    left, right = x(value["started"]), x(value["ended"])
    width = max(right - left, 0.6)
    if part == "analyse":
        name = escape("/".join(Path(value["path"]).parts[-2:]))
        return (
            f'<rect class="analyse" x="{left:.1f}" y="{y + 4}" width="{width:.1f}" height="18" '
            'fill-opacity=".85">'
            f"<title>{name}: {value['tokens']:,} tokens</title></rect>"
        )
    if part == "digest":
        return (
            f'<rect class="digest" x="{left:.1f}" y="{y + 26}" width="{width:.1f}" height="12" '
            'fill-opacity=".06"/>'
            f'<rect class="digest" x="{right - 0.6:.1f}" y="{y + 26}" width="0.6" height="12"/>'
        )
    if part == "notify":
        return (
            f'<circle class="notify" cx="{left:.1f}" cy="{y + 32}" r="3"><title>call '
            f"{value['number']}</title></circle>"
        )
    return f'<circle class="mark" cx="{left:.1f}" cy="{y + 32}" r="4"><title>{escape(part)}</title></circle>'
