"""Retention of tasks: the newest successes, of all or per group, name or function; and all failures."""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from qworker import QWorker
from qworker.django.clusters.retention import (
    COUNT_SECONDS,
    LOOK_SECONDS,
    MOST,
    SHARE,
    Retention,
    rest_after,
    sweep,
)
from qworker.django.models import Failure, Success, Task
from qworker.testing.clock import FakeClock

START = datetime(2024, 3, 1, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _tasks() -> None:
    """Create ten successes of three groups, and ten failures."""
    Task.objects.bulk_create(
        Task(
            id=f"{number:032x}",
            name=f"n{number % 5}",
            func=f"f{number % 2}",
            group=("a", "b", None)[number % 3],
            started=START,
            stopped=START + timedelta(seconds=number),
            success=number < 10,
        )
        for number in range(20)
    )


@pytest.mark.parametrize(("limit", "left"), [(4, 4), (10, 10), (50, 10), (0, 10)])
def test_newest_successes_are_kept(limit: int, left: int) -> None:
    with override_settings(Q_CLUSTER={"name": "default", "save_limit": limit}):
        assert sweep() == 10 - left
    assert [task.pk for task in Success.objects.all()] == [f"{9 - n:032x}" for n in range(left)]
    assert Failure.objects.count() == 10


def test_sweep_works_in_portions() -> None:
    with override_settings(Q_CLUSTER={"name": "default", "save_limit": 2}):
        assert [sweep(most=3) for _ in range(4)] == [3, 3, 2, 0]
    assert [task.pk for task in Success.objects.all()] == [f"{9 - n:032x}" for n in range(2)]


def test_limit_is_kept_of_tasks_that_ended_together() -> None:
    Task.objects.update(stopped=START)
    with override_settings(Q_CLUSTER={"name": "default", "save_limit": 4}):
        assert [sweep(most=3), sweep(most=3)] == [6, 0]
    assert sorted(task.pk for task in Success.objects.all()) == [f"{n:032x}" for n in range(6, 10)]
    assert Failure.objects.count() == 10


@pytest.mark.parametrize(("field", "left"), [("group", 6), ("name", 10), ("func", 4)])
def test_limit_per_group_name_or_function(field: str, left: int) -> None:
    with override_settings(Q_CLUSTER={"name": "default", "save_limit": 2, "save_limit_per": field}):
        sweep()
    counts = Counter(Success.objects.order_by().values_list(field, flat=True))
    assert set(counts.values()) == {2}
    assert sum(counts.values()) == left
    assert Failure.objects.count() == 10


@pytest.mark.parametrize(
    ("field", "seconds", "limit", "gone"),
    [
        ("group", 9, 2, {0, 3}),
        ("group", 8, 2, {0, 3, 2}),  # including tasks without a group
        ("name", 8, 1, {3, 4}),
        ("func", 9, 2, {1, 3, 5}),
    ],
)
def test_only_values_with_new_tasks_are_counted(field: str, seconds: int, limit: int, gone: set[int]) -> None:
    since = START + timedelta(seconds=seconds)
    kept = {"save_limit": limit, "save_limit_per": field}
    with override_settings(Q_CLUSTER={"name": "default", **kept}):
        assert sweep(since) == len(gone)
        assert {int(task.pk, 16) for task in Success.objects.all()} == set(range(10)) - gone
        assert sweep(since) == 0


@pytest.mark.parametrize("field", ["group", "name", "func"])
def test_sweep_of_new_tasks_uses_an_index(field: str) -> None:
    kept = {"save_limit": 2, "save_limit_per": field}
    settings = override_settings(Q_CLUSTER={"name": "default", **kept})
    with settings, CaptureQueriesContext(connection) as asked:
        assert sweep(START + timedelta(seconds=8)) == (0 if field == "name" else 6 if field == "func" else 3)
    plans = []
    for query in asked.captured_queries:
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN QUERY PLAN {query['sql']}")
            plans.append(" ".join(row[3] for row in cursor.fetchall()))
    newest, *others = plans
    assert re.search(r"SEARCH \w+ USING INDEX \w+_task_stopped \(success=\? AND stopped>\?\)", newest)
    assert len(others) == (1 if field == "name" else 7)
    for plan in others:
        assert re.search(rf"SEARCH \w+ USING INDEX \w+_task_{field} \({field}=\?", plan), plan


def test_all_tasks_are_counted_at_the_start_and_hourly() -> None:
    """This includes results that were stored late."""
    clock = FakeClock()
    retention = Retention(QWorker("retention", clock=clock, set_as_current=False), lambda *_: None)

    def left() -> dict[str | None, int]:
        retention.step(clock.monotonic())
        return dict(Counter(Success.objects.order_by().values_list("group", flat=True)))

    with override_settings(Q_CLUSTER={"name": "default", "save_limit": 2, "save_limit_per": "group"}):
        assert left() == {"a": 2, "b": 2, None: 2}
        Task.objects.filter(success=False).update(success=True, group="b")  # they have ended long ago
        assert left() == {"a": 2, "b": 12, None: 2}
        clock.advance(COUNT_SECONDS)
        assert left() == {"a": 2, "b": 2, None: 2}


def test_pause_grows_with_the_duration_of_a_sweep() -> None:
    assert rest_after(0.0, MOST) == 0.0
    assert rest_after(0.001, 5) == LOOK_SECONDS
    assert rest_after(0.7, MOST) == rest_after(0.7, 0) == 0.7 / SHARE > 20
