"""Plots as inline SVG, drawn with the colours of the page's style sheet. Pure functions from figures to
text."""

import math
from collections.abc import Mapping, Sequence
from html import escape

from benchmarks import formats
from benchmarks.judgement import Row, ours
from benchmarks.metrics import Metric
from benchmarks.results import Spread

LINE = 24
NAME = 190
WIDE = 60.0
"""Figures that differ by more than this are drawn on a logarithmic scale, as dots: bars need a zero."""


def text(x: float, y: float, content: str, kind: str = "", anchor: str = "start") -> str:
    """A word or number; `anchor` says which end of it is at x."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(content)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str, colour: str = "") -> str:
    """A straight line; its colour comes from the style sheet, or is `colour`."""
    stroke = f' stroke="{colour}"' if colour else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"{stroke}/>'


def svg(width: float, height: float, label: str, parts: Sequence[str]) -> str:
    """A picture of that size; `label` is for those who cannot see it."""
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" role="img" '
        f'aria-label="{escape(label, quote=True)}">' + "".join(parts) + "</svg>"
    )


def against_best(rows: Sequence[Row]) -> str:
    """One line per figure: how many times better than the best peer, on a logarithmic scale around 1."""
    shown = [(row, row.ratio, row.best[0]) for row in rows if row.ratio is not None and row.best is not None]
    if not shown:
        return ""
    name, width, right, top = 320.0, 880.0, 190.0, 30.0
    low = min(-0.5, math.floor(min(math.log10(ratio) for _, ratio, _ in shown)))
    high = max(0.5, math.ceil(max(math.log10(ratio) for _, ratio, _ in shown)))

    def place(value: float) -> float:
        return name + (math.log10(value) - low) / (high - low) * (width - name - right)

    bottom = top + LINE * len(shown)
    parts = []
    for power in range(math.ceil(low), math.floor(high) + 1):
        x = place(10.0**power)
        parts.append(line(x, top - 4, x, bottom, "axis" if power == 0 else "grid"))
        parts.append(text(x, top - 10, "best peer" if power == 0 else f"{10.0**power:g}×", "tick", "middle"))
    for index, (row, ratio, peer) in enumerate(shown):
        y = top + LINE * index + LINE / 2
        x, kind = place(ratio), "better" if ratio >= 1 else "worse"
        parts.append(text(name - 12, y + 4, formats.subject(row), "name", "end"))
        parts.append(line(place(1.0), y, x, y, f"stem {kind}"))
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" class="{kind}"/>')
        parts.append(text(width - right + 12, y + 4, f"{formats.ratio(ratio)} {peer}", "value"))
    return svg(width, bottom + 6, "qworker against the best peer of each figure", parts)


def peers(metric: Metric, figures: Mapping[str, Spread], bound: float | None) -> str:
    """All peers' figures of one metric, the best first, and the goal as a dashed line."""
    order = sorted(figures, key=lambda peer: figures[peer].median, reverse=metric.better == "higher")
    values = [figures[peer].median for peer in order]
    marks = [*values, *([bound] if bound is not None else [])]
    positive = [value for value in marks if value > 0]
    if not positive or min(marks) < 0:
        scale_low, scale_high, logarithmic = min(0.0, *marks), max(1e-9, *marks), False
    else:
        logarithmic = min(marks) > 0 and max(positive) / min(positive) > WIDE
        scale_low, scale_high = (min(positive) / 1.5, max(positive)) if logarithmic else (0.0, max(positive))
    width, right, top = 480.0, 84.0, 8.0

    def place(value: float) -> float:
        if logarithmic:
            share = math.log(value / scale_low) / math.log(scale_high / scale_low)
        else:
            share = (value - scale_low) / (scale_high - scale_low)
        return NAME + share * (width - NAME - right)

    bottom = top + LINE * len(order)
    zero = NAME if logarithmic else place(0.0)
    parts = [line(zero, top, zero, bottom, "grid" if logarithmic else "axis")]
    if bound is not None:
        x = place(bound)
        parts.append(line(x, top - 4, x, bottom + 4, "goal"))
        anchor = "end" if x > width - right - 40 else "middle"
        parts.append(text(x, bottom + 16, f"goal {formats.number(metric, bound)}", "tick", anchor))
    for index, peer in enumerate(order):
        y, x, kind = (
            top + LINE * index + LINE / 2,
            place(figures[peer].median),
            "ours" if ours(peer) else "peer",
        )
        parts.append(text(NAME - 10, y + 4, peer, f"name {kind}", "end"))
        if logarithmic:
            parts.append(line(NAME, y, width - right, y, "grid"))
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" class="{kind}"/>')
        else:
            left = min(x, zero)
            parts.append(
                f'<rect x="{left:.1f}" y="{y - 7:.1f}" width="{max(1.0, abs(x - zero)):.1f}" height="14" '
                f'rx="2" class="{kind}"/>'
            )
        parts.append(text(max(x, zero) + 9, y + 4, formats.number(metric, figures[peer].median), "value"))
    height = bottom + (22 if bound is not None else 6)
    note = " (logarithmic scale)" if logarithmic else ""
    caption = f"{metric.title}{f', {metric.unit}' if metric.unit else ''}{note}"
    return f"<figure><figcaption>{escape(caption)}</figcaption>{svg(width, height, caption, parts)}</figure>"
