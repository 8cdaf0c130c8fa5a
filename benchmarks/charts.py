"""Charts as inline SVG, drawn by matplotlib in the colours of the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from html import escape
from io import StringIO
from typing import TYPE_CHECKING

from benchmarks import formats
from benchmarks.judgement import Row, ours
from benchmarks.metrics import Metric
from benchmarks.results import Spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE = 60.0
"""Figures that differ by more than this are drawn on a logarithmic scale, as dots: bars need a zero."""
COLOURS = {
    "ink": "#1c2128", "soft": "#5b6470", "rule": "#dfe3e8", "ours": "#0b66c3", "peer": "#aab3bf",
    "better": "#0b7f5c", "worse": "#c2410c",
}  # fmt: skip
"""What charts are drawn with. In the page each becomes the variable of its name, which knows dark screens."""
LINES = ("#0b66c4", "#c2410d", "#0b7f5d", "#8b5cf6", "#b58900", "#db2777", "#64748b", "#0891b2")
"""One for each peer of a line chart, for light and dark screens alike. None is one of COLOURS, which are
replaced."""
_PIXEL = 1 / 72
STYLE = {
    "font.size": 12.0,
    "font.sans-serif": ["DejaVu Sans"],
    "svg.fonttype": "none",  # text stays text: smaller, and it can be searched for
    "text.color": COLOURS["ink"],
    "axes.edgecolor": COLOURS["soft"],
    "axes.labelcolor": COLOURS["ink"],
    "xtick.color": COLOURS["soft"],
    "xtick.labelsize": 11.0,
    "ytick.color": COLOURS["soft"],
    "ytick.labelcolor": COLOURS["ink"],
    "grid.color": COLOURS["rule"],
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def against_best(rows: Sequence[Row]) -> str:
    """One line per figure: how many times better than the best peer, on a logarithmic scale around 1."""
    shown = [(row, row.ratio, row.best[0]) for row in rows if row.ratio is not None and row.best is not None]
    if not shown:
        return ""
    with styled(STYLE):
        figure, axes = _chart(880, 24 * len(shown) + 40)
        axes.set_xscale("log")
        axes.axvline(1.0, color=COLOURS["soft"])
        for place, (_, ratio, peer) in enumerate(shown):
            colour = COLOURS["better" if ratio >= 1 else "worse"]
            axes.plot([1.0, ratio], [place, place], color=colour, linewidth=3, solid_capstyle="butt")
            axes.plot([ratio], [place], "o", color=colour)
            axes.annotate(
                f"{formats.ratio(ratio)} {peer}", (1.0, place), (10, 0), va="center",
                xycoords=("axes fraction", "data"), textcoords="offset points",
            )  # fmt: skip
        ratios = [ratio for _, ratio, _ in shown]
        axes.set_xlim(min(0.5, *ratios) / 1.3, max(2.0, *ratios) * 1.3)
        axes.xaxis.set_major_formatter(lambda value, _: "best peer" if value == 1 else f"{value:g}×")
        axes.set_xticks([], minor=True)
        axes.xaxis.tick_top()
        axes.grid(axis="x")
        _label(axes, [formats.subject(row) for row, _, _ in shown])
        return _svg(figure, "qworker against the best peer of each figure")


def peers(metric: Metric, figures: Mapping[str, Spread], bound: float | None) -> str:
    """All peers' figures of one metric, the best first, and the goal as a dashed line."""
    order = sorted(figures, key=lambda peer: figures[peer].median, reverse=metric.better == "higher")
    values = [figures[peer].median for peer in order]
    marks = [*values, *([bound] if bound is not None else [])]
    logarithmic = min(marks) > 0 and max(marks) / min(marks) > WIDE
    note = " (logarithmic scale)" if logarithmic else ""
    caption = f"{metric.title}{f', {metric.unit}' if metric.unit else ''}{note}"
    with styled(STYLE):
        figure, axes = _chart(480, 24 * len(order) + 26)
        colours = [COLOURS["ours" if ours(peer) else "peer"] for peer in order]
        if logarithmic:
            axes.set_xscale("log")
            axes.hlines(range(len(order)), 0, 1, COLOURS["rule"], transform=axes.get_yaxis_transform())
            axes.scatter(values, range(len(order)), color=colours, zorder=3)
            axes.set_xlim(min(marks) / 1.5, max(marks) * 1.1)
        else:
            axes.barh(range(len(order)), values, 0.6, color=colours)
            axes.axvline(0.0, color=COLOURS["soft"])
        for place, value in enumerate(values):
            right = value if logarithmic else max(value, 0.0)
            axes.annotate(
                formats.number(metric, value), (right, place), (7, 0), textcoords="offset points",
                va="center",
            )  # fmt: skip
        if bound is not None:
            axes.axvline(bound, color=COLOURS["worse"], linestyle=(0, (4, 3)), linewidth=1)
        axes.set_xticks(
            [] if bound is None else [bound],
            [] if bound is None else [f"goal {formats.number(metric, bound)}"],
        )
        axes.set_xticks([], minor=True)
        _label(axes, order)
        for label, colour in zip(axes.get_yticklabels(), colours, strict=True):
            label.set_color(COLOURS["ours"] if colour == COLOURS["ours"] else COLOURS["soft"])
        return _captioned(figure, caption)


def lines(title: str, series: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """A figure with one line for each peer through its points (x, microseconds a task); both above 0.

    Both scales are logarithmic, so a flat line is a cost that stays.
    """
    costs = [cost for points in series.values() for _, cost in points]
    with styled(STYLE):
        figure, axes = _chart(480, 260 + 20 * len(series))
        for colour, (peer, points) in zip(LINES * len(series), series.items(), strict=False):
            words = f"{peer}: {points[0][1]:,.1f} → {points[-1][1]:,.1f} µs"
            axes.plot(*zip(*points, strict=True), marker="o", color=colour, label=words)
        axes.set_xscale("log")
        axes.set_yscale("log")
        low, high = math.log10(min(costs)), math.log10(max(costs))
        axes.set_ylim(10 ** math.floor(low - 0.01), 10 ** math.ceil(high + 0.01))
        places = sorted({x for points in series.values() for x, _ in points})
        axes.set_xticks(places, [short(x) for x in places])
        axes.set_xticks([], minor=True)
        axes.yaxis.set_major_formatter(lambda value, _: short(value))
        axes.set_yticks([], minor=True)
        axes.grid()
        figure.legend(loc="outside lower left", frameon=False)
        return _captioned(figure, f"Microseconds to {title}")


def styled(style: Mapping[str, object]) -> AbstractContextManager[None]:
    """matplotlib's context with *style*."""
    from matplotlib import rc_context  # slow, and only needed when something is drawn

    return rc_context(dict(style))


def empty(width: float, height: float) -> Figure:
    """A figure without axes, in inches."""
    from matplotlib.figure import Figure  # slow, too

    return Figure((width, height), layout="constrained")


def _chart(width: float, height: float) -> tuple[Figure, Axes]:
    """An empty chart, in pixels."""
    figure = empty(width * _PIXEL, height * _PIXEL)
    return figure, figure.add_subplot()


def _label(axes: Axes, names: Sequence[str]) -> None:
    """Write a name beside each line, the first one on top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="both", length=0)
    axes.spines[:].set_visible(False)


def _captioned(figure: Figure, caption: str) -> str:
    return f"<figure><figcaption>{escape(caption)}</figcaption>{_svg(figure, caption)}</figure>"


def _svg(figure: Figure, label: str) -> str:
    """The figure as an element of the page; *label* is for those who cannot see it. The same figure gives
    the same text."""
    out = StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with styled({"svg.hashsalt": label}):  # ids in a page must differ
        figure.savefig(out, format="svg", transparent=True, metadata=nothing)
    text = out.getvalue()
    drawn = text[text.index("<svg") :].strip()
    for name, colour in COLOURS.items():
        drawn = drawn.replace(colour, f"var(--{name})")
    return drawn.replace("<svg", f'<svg role="img" aria-label="{escape(label, quote=True)}"', 1)


def short(value: float) -> str:
    """1000 → 1k, 1000000 → 1M."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
