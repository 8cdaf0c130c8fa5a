"""The benchmark of schedulers: entries, arrivals of calls, and the report, of made-up figures."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections import Counter
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks import scheduler_app, scheduler_page, schedulers
from benchmarks.schedulers import Found, Scheduled
from qworker.beat import crontab

pytestmark = [
    pytest.mark.one_python,
    pytest.mark.skipif(find_spec("matplotlib") is None, reason="draws the plot: pip install matplotlib"),
]


def test_some_entries_are_due_every_minute_and_others_far_ahead() -> None:
    found = list(scheduler_app.crontabs(50_000, 100))
    assert len({name for name, _ in found}) == 50_000
    kinds = Counter(tuple(fields.values()) for _, fields in found)
    assert kinds.pop(("*",) * 4) == 100
    assert set(kinds.values()) == {1}  # each has its own instant
    month = datetime.now(UTC).month
    near = {month, month % 12 + 1}
    assert near.isdisjoint(int(each[3]) for each in kinds)
    assert crontab(**found[-1][1]).words()


def test_arrival_is_the_instant_of_the_read_that_found_it() -> None:
    counts, instants = iter([5, 5, 7, 7, 8]), iter([1.0, 2.0, 3.0, 4.0])
    seen = schedulers.arrivals(lambda: next(counts), 3, 9.0, lambda: next(instants))
    assert seen == [2.0, 2.0, 4.0]


def test_waiting_for_arrivals_ends_at_the_timeout() -> None:
    instants = iter([1.0, 2.0])
    counts = iter([0, 1, 1])
    assert schedulers.arrivals(lambda: next(counts), 2, 2.0, lambda: next(instants)) == [1.0]


def found() -> Found:
    figures = {"start": 0.2, "idle_cpu": 0.5, "memory": 30.0, "late_p99": 4.0}
    ours = {**figures, "takeover": 1.5, "takeover_most": 2.0}
    points = [
        Scheduled("qworker-redis", 10, ours),
        Scheduled("qworker-redis", 100, {**ours, "others_cpu": 90.0}),
        Scheduled("celery-redis", 10, {"start": 0.8, "idle_cpu": 0.0, "memory": 45.0, "late_p99": 50_000.0}),
        Scheduled("celery-redis", 100, {}, "no call within 120 s"),
    ]
    versions = {"qworker-redis": "1", "celery-redis": "5"}
    return Found("2026-01-01T00:00:00+00:00", {"processor": "2"}, versions, {}, points)


def test_report_has_ratios_and_lists_missing_figures() -> None:
    text = scheduler_page.document(found())
    assert "| Celery beat, Redis | 0.80 (4.00×) | –" in text
    assert "| over 50,000" in text
    assert "| qworker, Redis | 10      | 1.50   | 2.00" in text
    assert "- Celery beat, Redis, 100 entries: no call within 120 s" in text
    assert "busy with other work during: qworker, Redis, 100." in text


def test_plot_is_well_formed_and_reproducible() -> None:
    drawn = scheduler_page.plot(found())
    ElementTree.fromstring(drawn)
    assert drawn == scheduler_page.plot(found())


def test_merged_runs_keep_the_lowest_figures(tmp_path: Path) -> None:
    first, second = found(), found()
    second.points = [
        Scheduled("qworker-redis", 100, {"start": 0.1, "memory": 90.0}),
        Scheduled("celery-redis", 100, {"start": 7.0}),
    ]
    for name, run in (("a", first), ("b", second)):
        run.save(tmp_path / name)
    whole = schedulers.load([tmp_path / "a", tmp_path / "b"])
    assert [point.figures.get("start") for point in whole.points] == [0.2, 0.1, 0.8, 7.0]
    assert [point.figures.get("memory") for point in whole.points] == [30.0, 30.0, 45.0, None]
    assert [point.error for point in whole.points] == [None] * 4
    assert whole.peers == first.peers
