"""The report of ``benchmarks.django``: each workload of each broker, ours beside theirs.

Comes from:  what a run has found.
Goes to:     django.md.
"""

from collections.abc import Iterator
from pathlib import Path

from benchmarks.django import BROKERS, WORKLOADS, Found
from benchmarks.formats import MARKS, NOTHING
from benchmarks.judgement import MISS, PASS
from benchmarks.markdown import table
from benchmarks.summary import median

OURS, THEIRS = "qworker-django", "django-q2"
MOST_LOST = 0.15
"""What keeping to save_limit may cost of the rate without."""


def write(found: Found, out: Path) -> list[Path]:
    """Write the page into `out`; returns its path."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "django.md"
    path.write_text(document(found))
    return [path]


def document(found: Found) -> str:
    """The whole page."""
    machine = "; ".join(f"{name} {value}" for name, value in found.machine.items())
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    head = ("broker", "workload", OURS, THEIRS, "times better: each pair", "median", "goal", "")
    parts = ["# Django: qworker.django beside django-q2", f"{machine}. {versions}."]
    parts += [f"> {broker} was left out: {reason}" for broker, reason in found.skipped.items()]
    parts.append(table(head, list(_rows(found))))
    kept = list(_kept(found))
    if kept:
        head_kept = ("broker", "save_limit 250", "0: all", "-1: none", "250 costs of 0", "goal", "")
        parts += ["## What save_limit costs, tasks/s", table(head_kept, kept)]
    wrong = [
        f"- {cell.round} {cell.broker} {cell.workload} {cell.package}: "
        + (cell.error or f"{cell.lost} lost").replace("\n", " ")
        for cell in found.cells
        if cell.error or cell.lost
    ]
    if wrong:
        parts += ["## What went wrong", "\n".join(wrong)]
    return "\n\n".join(parts) + "\n"


def ratios(found: Found, broker: str, workload: str) -> list[float]:
    """How many times better ours was, pair by pair; a pair that lacks a figure is left out."""
    more_is_better = WORKLOADS[workload].more_is_better
    pairs = _by_round(found, broker, workload, OURS), _by_round(found, broker, workload, THEIRS)
    both = [(pairs[0][number], pairs[1][number]) for number in sorted(pairs[0].keys() & pairs[1].keys())]
    return [ours / theirs if more_is_better else theirs / ours for ours, theirs in both]


def _by_round(found: Found, broker: str, workload: str, package: str) -> dict[int, float]:
    return {
        cell.round: cell.value
        for cell in found.cells
        if (cell.broker, cell.workload, cell.package) == (broker, workload, package) and cell.value
    }


def _rows(found: Found) -> Iterator[tuple[str, ...]]:
    for broker in BROKERS:
        for name, workload in WORKLOADS.items():
            shown = [_shown(_by_round(found, broker, name, package)) for package in (OURS, THEIRS)]
            if workload.ours_only or shown == [NOTHING, NOTHING]:
                continue
            each, goal = ratios(found, broker, name), workload.goals.get(broker)
            middle = f"{median(each):,.2f}" if each else NOTHING
            mark = MARKS[PASS if median(each) >= goal else MISS] if each and goal else ""
            pairs = ", ".join(f"{ratio:,.2f}" for ratio in each) or NOTHING
            asked = f"≥ {goal:g}" if goal else NOTHING
            yield broker, workload.title, *shown, pairs, middle, asked, mark


def _kept(found: Found) -> Iterator[tuple[str, ...]]:
    for broker in BROKERS:
        rates = [_by_round(found, broker, name, OURS) for name in ("drain", "keep-all", "keep-none")]
        both = sorted(rates[0].keys() & rates[1].keys())
        if not both:
            continue
        cost = 1 - median([rates[0][number] / rates[1][number] for number in both])
        mark = MARKS[PASS if cost <= MOST_LOST else MISS]
        yield broker, *(_shown(rate) for rate in rates), f"{cost:.0%}", f"≤ {MOST_LOST:.0%}", mark


def _shown(values: dict[int, float]) -> str:
    """The median, and least to most where there are several."""
    found = list(values.values())
    if not found:
        return NOTHING
    text = f"{median(found):,.4g}"
    return text if len(found) == 1 else f"{text} ({min(found):,.4g}–{max(found):,.4g})"
