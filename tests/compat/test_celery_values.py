"""Typed values between a Celery worker and one of ours, on Redis: each calls the other and reads its
results."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import pytest

celery = pytest.importorskip("celery", reason="the test extra installs it")
pydantic = pytest.importorskip("pydantic", reason="the test extra installs it")
pytest.importorskip("redis", reason="the test extra installs it")

from celery.contrib.testing.worker import start_worker  # noqa: E402

from tests.compat.sides import logging_kept  # noqa: E402
from tests.servers import require  # noqa: E402
from tests.support.beside_celery import BESIDE_CELERY, Pair, redis_results  # noqa: E402
from tests.support.values import CARRIED, ORDER, PLAIN, Order  # noqa: E402

pytestmark = BESIDE_CELERY
PATIENCE = 30.0


class Person(pydantic.BaseModel):  # type: ignore[name-defined,misc]
    name: str
    born: date


ADA = Person(name="Ada", born=date(1815, 12, 10))
PLAIN_ADA = {"name": "Ada", "born": "1815-12-10"}


def same(value: Any) -> Any:
    return value


def kinds(value: dict[str, Any]) -> list[str]:
    return [type(each).__name__ for each in value.values()]


def bill(order: Order, wait: timedelta = timedelta(0)) -> Order:
    """The same function in both apps; Celery passes it plain data."""
    return replace(order, wait=order.wait + wait) if isinstance(order, Order) else order


def greet(person: Person) -> Person:
    return Person(name=f"Dear {person.name}", born=person.born)


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """With a worker each, on separate queues."""
    results = redis_results()
    pair = Pair(
        **results,
        broker_url=require("redis"),
        broker_transport_options=results["result_backend_transport_options"],
        task_routes={"theirs.*": {"queue": "theirs"}, "ours.*": {"queue": "ours"}},
    )
    pair.theirs.conf.update(worker_hijack_root_logger=False, task_default_queue="theirs")
    for name, function, more in (
        ("same", same, {}),
        ("kinds", kinds, {}),
        ("bill", bill, {}),
        ("greet", greet, {"pydantic": True}),
        ("greet_by_annotation", greet, {}),
    ):
        for app in (pair.theirs, pair.ours):
            for side in ("theirs", "ours"):
                app.task(name=f"{side}.{name}", **({"shared": False} if app is pair.theirs else {}), **more)(
                    function
                )
    with (
        logging_kept(),
        start_worker(pair.theirs, perform_ping_check=False, pool="solo", loglevel=logging.CRITICAL),
        pair.ours.Worker(pool="threads", concurrency=2, queues=["ours"]),
    ):
        yield pair
    pair.close()


def results_both_ways(pair: Pair, name: str, *args: Any) -> list[Any]:
    """The results of a call from Celery to our worker, and of one from qworker to Celery's worker."""
    with celery.result.allow_join_result():
        return [
            pair.theirs.tasks[f"ours.{name}"].delay(*args).get(timeout=PATIENCE),
            pair.ours.tasks[f"theirs.{name}"].delay(*args).get(timeout=PATIENCE),
        ]


@pytest.mark.parametrize("name", CARRIED)
def test_typed_json_values_round_trip(pair: Pair, name: str) -> None:
    assert results_both_ways(pair, "same", CARRIED[name]) == [CARRIED[name]] * 2


def test_typed_json_values_keep_their_types(pair: Pair) -> None:
    expected = [type(each).__name__ for each in CARRIED.values()]
    assert results_both_ways(pair, "kinds", CARRIED) == [expected] * 2
    assert results_both_ways(pair, "same", {"nested": [CARRIED]}) == [{"nested": [CARRIED]}] * 2


def test_celery_sends_plain_json_to_an_annotated_task(pair: Pair) -> None:
    ours = pair.theirs.tasks["ours.bill"]
    with celery.result.allow_join_result():
        assert ours.delay(PLAIN, 60).get(timeout=PATIENCE) == {**PLAIN, "wait": 3660}
        texts = {"number": str(ORDER.number), "due": ORDER.due.isoformat(), "wait": "PT1H"}
        assert ours.delay(texts).get(timeout=PATIENCE) == PLAIN
        assert ours.delay(order=texts, wait="PT1M").get(timeout=PATIENCE) == {**PLAIN, "wait": 3660}
        failed = ours.delay({"number": 1})
        with pytest.raises(
            Exception, match=r"ours\.bill does not take the argument order: Order needs the field"
        ):
            failed.get(timeout=PATIENCE)


def test_celery_runs_our_call_with_typed_values(pair: Pair) -> None:
    result = pair.ours.tasks["theirs.bill"].delay(ORDER)
    assert result.get(timeout=PATIENCE) == PLAIN
    assert pair.ours.tasks["theirs.bill"].load_result(result.get()) == ORDER


def test_pydantic_models_round_trip(pair: Pair) -> None:
    expected = {**PLAIN_ADA, "name": "Dear Ada"}
    assert results_both_ways(pair, "greet", PLAIN_ADA) == [expected] * 2
    assert pair.ours.tasks["theirs.greet"].delay(ADA).get(timeout=PATIENCE) == expected
    with celery.result.allow_join_result():
        by_annotation = pair.theirs.tasks["ours.greet_by_annotation"]
        assert by_annotation.delay(PLAIN_ADA).get(timeout=PATIENCE) == expected


def test_workflows_with_typed_values_run_on_both(pair: Pair) -> None:
    work = (
        pair.ours.tasks["ours.bill"].s(ORDER)
        | pair.ours.tasks["theirs.same"].s()
        | pair.ours.tasks["ours.bill"].s(timedelta(minutes=1))
    )
    assert work.apply_async().get(timeout=PATIENCE) == {**PLAIN, "wait": 3660}
    theirs = (
        pair.theirs.tasks["ours.bill"].s(PLAIN)
        | pair.theirs.tasks["theirs.same"].s()
        | pair.theirs.tasks["ours.bill"].s(60)
    )
    with celery.result.allow_join_result():
        assert theirs.apply_async().get(timeout=PATIENCE) == {**PLAIN, "wait": 3660}
