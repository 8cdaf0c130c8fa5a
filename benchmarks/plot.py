"""Line plots as inline SVG: how a cost grows. Both scales are logarithmic, so a flat line is a cost that
stays."""

import math
from collections.abc import Mapping, Sequence
from html import escape

from benchmarks.chart import line, svg, text

WIDTH, HEIGHT = 480.0, 260.0
LEFT, RIGHT, TOP, BOTTOM = 56.0, 14.0, 10.0, 40.0
LEGEND = 18.0
COLOURS = ("#0b66c3", "#c2410c", "#0b7f5c", "#8b5cf6", "#b58900", "#db2777", "#64748b", "#0891b2")


def lines(title: str, series: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """A figure with one line for each peer through its points (x, microseconds a task); both above 0."""
    every = [point for points in series.values() for point in points]
    low_x, high_x = _reach([x for x, _ in every])
    low_y, high_y = _reach([y for _, y in every], decades=True)

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - low_x) / (high_x - low_x)
        up = (math.log10(y) - low_y) / (high_y - low_y)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    parts = []
    for power in range(math.ceil(low_y), math.floor(high_y) + 1):
        _, y = place(10**low_x, 10.0**power)
        parts += [
            line(LEFT, y, WIDTH - RIGHT, y, "grid"),
            text(LEFT - 6, y + 4, _short(10.0**power), "tick", "end"),
        ]
    for x in sorted({x for x, _ in every}):
        across, _ = place(x, 10**low_y)
        parts += [line(across, TOP, across, HEIGHT - BOTTOM, "grid")]
        parts.append(text(across, HEIGHT - BOTTOM + 16, _short(x), "tick", "middle"))
    for number, (peer, points) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        spots = [place(x, y) for x, y in points]
        through = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        parts.append(f'<polyline points="{through}" stroke="{colour}"/>')
        for (x, y), (at, cost) in zip(spots, points, strict=True):
            hint = f"{peer}: {cost:,.1f} µs at {at:,.0f}"
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" '
                f'fill="{colour}"><title>{escape(hint)}</title></circle>'
            )
        row = HEIGHT + LEGEND * number
        parts.append(line(LEFT, row, LEFT + 22, row, "stem", colour))
        parts.append(text(LEFT + 30, row + 4, f"{peer}: {points[0][1]:,.1f} → {points[-1][1]:,.1f} µs"))
    caption = f"Microseconds to {title}"
    drawn = svg(WIDTH, HEIGHT + LEGEND * len(series), caption, parts)
    return f"<figure><figcaption>{escape(caption)}</figcaption>{drawn}</figure>"


def _reach(values: Sequence[float], decades: bool = False) -> tuple[float, float]:
    """The least and the most as powers of ten, never the same; widened to whole powers if `decades`."""
    low, high = math.log10(min(values)), math.log10(max(values))
    if decades:
        low, high = math.floor(low), math.ceil(high)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _short(value: float) -> str:
    """1000 → 1k, 1000000 → 1M."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
