"""Which successes stay: the newest, of all or of each group, name or function; and every failure."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from django.test import override_settings

from qworker.django.clusters.retention import LOOK_SECONDS, MOST, SHARE, rest_after, sweep
from qworker.django.models import Failure, Success, Task

START = datetime(2024, 3, 1, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _tasks() -> None:
    """Ten successes of three groups, and ten failures."""
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
def test_the_newest_successes_stay(limit: int, left: int) -> None:
    with override_settings(Q_CLUSTER={"name": "default", "save_limit": limit}):
        assert sweep() == 10 - left
    assert [task.pk for task in Success.objects.all()] == [f"{9 - n:032x}" for n in range(left)]
    assert Failure.objects.count() == 10


def test_a_portion_after_the_other() -> None:
    with override_settings(Q_CLUSTER={"name": "default", "save_limit": 2}):
        assert [sweep(most=3) for _ in range(4)] == [3, 3, 2, 0]
    assert [task.pk for task in Success.objects.all()] == [f"{9 - n:032x}" for n in range(2)]


def test_of_those_that_have_ended_at_once_the_limit_stays() -> None:
    Task.objects.update(stopped=START)
    with override_settings(Q_CLUSTER={"name": "default", "save_limit": 4}):
        assert [sweep(most=3), sweep(most=3)] == [6, 0]
    assert sorted(task.pk for task in Success.objects.all()) == [f"{n:032x}" for n in range(6, 10)]
    assert Failure.objects.count() == 10


@pytest.mark.parametrize(("field", "left"), [("group", 6), ("name", 10), ("func", 4)])
def test_so_many_of_each(field: str, left: int) -> None:
    with override_settings(Q_CLUSTER={"name": "default", "save_limit": 2, "save_limit_per": field}):
        sweep()
    counts = Counter(Success.objects.order_by().values_list(field, flat=True))
    assert set(counts.values()) == {2}
    assert sum(counts.values()) == left
    assert Failure.objects.count() == 10


def test_the_longer_a_look_takes_the_longer_is_the_rest() -> None:
    assert rest_after(0.0, MOST) == 0.0
    assert rest_after(0.001, 5) == LOOK_SECONDS
    assert rest_after(0.7, MOST) == rest_after(0.7, 0) == 0.7 / SHARE > 20
