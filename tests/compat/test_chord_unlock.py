"""Chords of a Celery producer with a result backend that cannot count members: it publishes
celery.chord_unlock beside the header, and our worker runs both."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("celery", reason="the test extra installs it")

from celery import chain, chord, group
from celery.exceptions import ChordError

from tests.support.beside_celery import BESIDE_CELERY, Pair, queue_on, results_in
from tests.support.waiting import PATIENCE, until

pytestmark = BESIDE_CELERY


def never_run(*args: Any) -> None:
    """The body of Celery's tasks, which no Celery worker runs."""


class Unlocking(Pair):
    """A Celery producer, and our app with the tasks."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.told: list[Any] = []
        self.ran: list[str] = []
        task = self.ours.task

        @task(name="add")
        def add(x: int, y: int) -> int:
            self.ran.append("add")
            return x + y

        @task(name="total")
        def total(values: list[int]) -> int:
            self.ran.append("total")
            return sum(values)

        @task(name="lists")
        def lists(values: Any) -> Any:
            self.ran.append("lists")
            return values

        @task(name="fail")
        def fail() -> None:
            raise ValueError("no")

        @task(name="told")
        def told(failed: str) -> None:
            self.told.append(failed)

        for name in ("add", "total", "lists", "fail", "told"):
            self.theirs.task(name=name, shared=False)(never_run)

    def s(self, name: str, *args: Any) -> Any:
        return self.theirs.tasks[name].s(*args)


@pytest.fixture(params=["redis, sqlite", "rabbitmq, postgresql"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Unlocking]:
    broker, _, results = request.param.partition(", ")
    with (
        queue_on(broker) as queue,
        results_in(results, tmp_path) as store,
        closing(Unlocking(result_chord_retry_interval=0.2, **queue, **store)) as pair,
        pair.ours.Worker(pool="threads", concurrency=1),
    ):
        yield pair


def value(result: Any) -> Any:
    return result.get(timeout=2 * PATIENCE, interval=0.05, follow_parents=False)


def test_body_gets_the_values(pair: Unlocking) -> None:
    result = chord([pair.s("add", n, n) for n in range(4)], app=pair.theirs)(pair.s("lists"))
    assert value(result) == [0, 2, 4, 6]
    assert pair.ran.count("lists") == 1


def test_chords_in_workflows(pair: Unlocking) -> None:
    work = chain(
        pair.s("add", 1, 1),
        group([pair.s("add", 1), pair.s("add", 2) | pair.s("add", 3)], app=pair.theirs),
        pair.s("total"),
        pair.s("add", 100),
        app=pair.theirs,
    )
    assert value(work.apply_async()) == 110
    inner = chord([pair.s("add", 1, 1), pair.s("add", 2, 2)], pair.s("total"), app=pair.theirs)
    outer = chord([inner, pair.s("add", 5, 5)], app=pair.theirs)
    assert value(outer(pair.s("lists"))) == [6, 10]


def test_slow_member_does_not_block_the_worker(pair: Unlocking) -> None:
    """The only slot stays available for other tasks while chord_unlock retries."""
    header = [pair.s("add", 1, 1), pair.s("add", 2, 2).set(countdown=1.5)]
    result = chord(header, app=pair.theirs)(pair.s("lists"))
    other = pair.s("add", 3, 3).apply_async()
    assert value(other) == 6
    assert value(result) == [2, 4]
    assert pair.ran.count("lists") == 1


def test_failed_member_fails_the_body_and_calls_its_errback_once(pair: Unlocking) -> None:
    body = pair.s("total").on_error(pair.s("told")).set(task_id=uuid.uuid4().hex)
    result = chord([pair.s("add", 1, 1), pair.s("fail")], app=pair.theirs)(body | pair.s("add", 1))
    with pytest.raises(ChordError, match=r"Dependency .* raised ValueError\('no'\)"):
        value(pair.theirs.AsyncResult(body.id))
    with pytest.raises(ChordError):
        value(result)
    until(lambda: pair.told)
    assert pair.told == [body.id]
    assert "total" not in pair.ran


def test_interval_and_max_retries_of_the_chord_are_used(pair: Unlocking) -> None:
    work = chord([pair.s("add", 1, 1), pair.s("add", 2, 2).set(countdown=3600)], app=pair.theirs)
    with pytest.raises(ChordError, match="chord_unlock could not be retried: MaxRetriesExceeded"):
        value(work(pair.s("total"), interval=0.1, max_retries=2))
