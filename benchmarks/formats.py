"""How figures are written: the same in the terminal, in Markdown, in HTML and in the plots."""

from benchmarks.goals import Goal, Target
from benchmarks.judgement import MISS, PASS, Row
from benchmarks.metrics import METRICS, Metric
from benchmarks.results import Spread

MARKS = {PASS: "✔", MISS: "✘"}
NOTHING = "–"


def number(metric: Metric, value: float) -> str:
    """The value with thousands separators and the metric's digits; more digits where it would read as 0."""
    digits = metric.digits
    while value and round(value, digits) == 0 and digits < 4:
        digits += 1
    if round(value, digits) == 0:
        return f"{0:.{metric.digits}f}"
    return f"{value:,.{digits}f}".replace("-", "−")


def figure(metric: Metric, spread: Spread | None, unit: bool = True) -> str:
    """The median, and least to most when the rounds differ; a dash for nothing."""
    if spread is None:
        return NOTHING
    text = number(metric, spread.median)
    if spread.least != spread.most:
        text += f" ({number(metric, spread.least)}–{number(metric, spread.most)})"
    return f"{text} {metric.unit}".rstrip() if unit else text


def ratio(value: float | None) -> str:
    """How many times better, or a dash."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}×" if value >= 100 else f"{value:.1f}×" if value >= 10 else f"{value:.2f}×"


def goal(target: Target, wanted: Goal) -> str:
    """A goal in words: "≥ 2.5 × huey-sqlite", "≤ 1.00 ms"."""
    sign = "≥" if target.at_least else "≤"
    if wanted.peer:
        return f"{sign} {wanted.bound:.3g} × {wanted.peer}"
    return f"{sign} {number(METRICS[target.metric], wanted.bound)} {METRICS[target.metric].unit}".rstrip()


def goals(target: Target) -> str:
    """All goals of a target."""
    return ", ".join(goal(target, wanted) for wanted in target.goals)


def aim(row: Row) -> str:
    """What to try for after the target; empty when there is nothing more."""
    return goal(row.target, row.target.aim) if row.target.aim else ""


def mark(verdict: str) -> str:
    """A sign for a verdict; a dash when it could not be judged."""
    return MARKS.get(verdict, NOTHING)


def best(row: Row) -> str:
    """The best peer and its figure."""
    return f"{figure(row.metric, row.best[1])} {row.best[0]}" if row.best else NOTHING


VARIANTS = {"normal": "NORMAL durability", "unconfirmed": "unconfirmed"}
"""What sets a variant of qworker apart from the one that most figures are of."""


def subject(row: Row) -> str:
    """The title of a judged figure, with the variant of qworker where it is not the usual one."""
    variant = VARIANTS.get(row.target.subject.rpartition("-")[2])
    return f"{row.metric.title} ({variant})" if variant else row.metric.title


def limit(row: Row) -> str:
    """What the server or the machine allows, and how far from it the figure is."""
    if row.limit is None:
        return NOTHING
    text = f"{number(row.metric, row.limit)} {row.metric.unit}".rstrip()
    if row.figure is None or row.figure.median <= 0:
        return text
    share = row.figure.median / row.limit
    if row.metric.better == "higher":
        return f"{share:.0%} of {text}" if share >= 0.1 else f"{share:.1%} of {text}"
    return f"{share:.1f} times {text}"
