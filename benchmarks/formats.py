"""How figures are written: the same in the terminal, in Markdown, in HTML and in the plots."""

from benchmarks.judgement import MISS, PASS, Row
from benchmarks.metrics import METRICS, Goal, Metric, Target
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
        return f"{sign} {wanted.bound:g} × {wanted.peer}"
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


def subject(row: Row) -> str:
    """The title of a judged figure, with the variant of qworker where it is not the plain one."""
    variant = row.target.subject.partition("-")[2]
    return f"{row.metric.title} ({variant.upper()} durability)" if variant else row.metric.title
