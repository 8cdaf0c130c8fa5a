"""Values that are more than plain JSON, between a worker of Celery's and one of ours, on Redis: each calls
the other, and reads what the other returns."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple

import pytest

celery = pytest.importorskip("celery", reason="the test extra installs it")
pydantic = pytest.importorskip("pydantic", reason="the test extra installs it")
redis = pytest.importorskip("redis", reason="the test extra installs it")

from celery.contrib.testing.worker import start_worker  # noqa: E402

from qworker import QWorker  # noqa: E402
from tests.compat.sides import logging_kept  # noqa: E402
from tests.servers import require  # noqa: E402

pytestmark = [
    pytest.mark.compat,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::PendingDeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
PATIENCE = 30.0
CARRIED = {
    "uuid": uuid.UUID(int=7),
    "decimal": Decimal("1.10"),
    "aware": datetime(2030, 1, 2, 3, 4, 5, 678, tzinfo=UTC),
    "offset": datetime(2030, 1, 2, tzinfo=timezone(timedelta(hours=5, minutes=30))),
    "naive": datetime(2030, 1, 2, 3, 4, 5),
    "date": date(2030, 1, 2),
    "time": time(1, 2, 3, 4),
    "bytes": b"\x00\xff",
    "text as bytes": "Übermaß".encode(),
}


class Color(Enum):
    RED = "red"


@dataclass
class Order:
    number: uuid.UUID
    wait: timedelta
    color: Color = Color.RED


class Person(pydantic.BaseModel):  # type: ignore[name-defined,misc]
    name: str
    born: date


ORDER = Order(uuid.UUID(int=7), timedelta(hours=1))
PLAIN = {"number": ORDER.number, "wait": 3600, "color": "red"}
ADA = Person(name="Ada", born=date(1815, 12, 10))
PLAIN_ADA = {"name": "Ada", "born": "1815-12-10"}


class Pair(NamedTuple):
    """An app of each, with a worker each, on queues of their own."""

    theirs: Any
    ours: QWorker


def same(value: Any) -> Any:
    return value


def kinds(value: dict[str, Any]) -> list[str]:
    return [type(each).__name__ for each in value.values()]


def bill(order: Order, wait: timedelta = timedelta(0)) -> Order:
    """The same function in both apps. Celery's gives it plain data."""
    return Order(order.number, order.wait + wait) if isinstance(order, Order) else order


def greet(person: Person) -> Person:
    return Person(name=f"Dear {person.name}", born=person.born)


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    url, own = require("redis"), uuid.uuid4().hex[:12]
    options = {"global_keyprefix": f"{own}:"}
    common = {
        "broker_url": url, "result_backend": url, "broker_transport_options": options,
        "result_backend_transport_options": options,
        "task_routes": {"theirs.*": {"queue": "theirs"}, "ours.*": {"queue": "ours"}},
    }  # fmt: skip
    theirs = celery.Celery("pair", set_as_current=False)
    theirs.conf.update(common, worker_hijack_root_logger=False, task_default_queue="theirs")
    ours = QWorker("pair", set_as_current=False, **common)
    for name, function, more in (
        ("same", same, {}),
        ("kinds", kinds, {}),
        ("bill", bill, {}),
        ("greet", greet, {"pydantic": True}),
        ("greet_by_annotation", greet, {}),
    ):
        for app in (theirs, ours):
            for side in ("theirs", "ours"):
                app.task(name=f"{side}.{name}", **({"shared": False} if app is theirs else {}), **more)(
                    function
                )
    with (
        logging_kept(),
        start_worker(theirs, perform_ping_check=False, pool="solo", loglevel=logging.CRITICAL),
        ours.Worker(pool="threads", concurrency=2, queues=["ours"]),
    ):
        yield Pair(theirs, ours)
    ours.close()
    with redis.Redis.from_url(url) as client:
        for key in client.scan_iter(f"{own}*", count=10_000):
            client.delete(key)


def answers(pair: Pair, name: str, *args: Any) -> list[Any]:
    """What comes of a call that Celery makes and we run, and of one that we make and Celery runs."""
    with celery.result.allow_join_result():
        return [
            pair.theirs.tasks[f"ours.{name}"].delay(*args).get(timeout=PATIENCE),
            pair.ours.tasks[f"theirs.{name}"].delay(*args).get(timeout=PATIENCE),
        ]


@pytest.mark.parametrize("name", CARRIED)
def test_what_json_carries_goes_both_ways(pair: Pair, name: str) -> None:
    assert answers(pair, "same", CARRIED[name]) == [CARRIED[name]] * 2


def test_what_json_carries_arrives_as_it_was(pair: Pair) -> None:
    expected = [type(each).__name__ for each in CARRIED.values()]
    assert answers(pair, "kinds", CARRIED) == [expected] * 2
    assert answers(pair, "same", {"nested": [CARRIED]}) == [{"nested": [CARRIED]}] * 2


def test_celery_sends_plain_json_to_a_task_with_annotations(pair: Pair) -> None:
    ours = pair.theirs.tasks["ours.bill"]
    with celery.result.allow_join_result():
        assert ours.delay(PLAIN, 60).get(timeout=PATIENCE) == {**PLAIN, "wait": 3660}
        texts = {"number": str(ORDER.number), "wait": "PT1H"}
        assert ours.delay(texts).get(timeout=PATIENCE) == PLAIN
        assert ours.delay(order=texts, wait="PT1M").get(timeout=PATIENCE) == {**PLAIN, "wait": 3660}
        failed = ours.delay({"number": 1})
        with pytest.raises(
            Exception, match=r"ours\.bill does not take the argument order: Order needs the field"
        ):
            failed.get(timeout=PATIENCE)


def test_celery_runs_what_we_call_with_values(pair: Pair) -> None:
    result = pair.ours.tasks["theirs.bill"].delay(ORDER)
    assert result.get(timeout=PATIENCE) == PLAIN
    assert pair.ours.tasks["theirs.bill"].load_result(result.get()) == ORDER


def test_models_go_both_ways(pair: Pair) -> None:
    expected = {**PLAIN_ADA, "name": "Dear Ada"}
    assert answers(pair, "greet", PLAIN_ADA) == [expected] * 2
    assert pair.ours.tasks["theirs.greet"].delay(ADA).get(timeout=PATIENCE) == expected
    with celery.result.allow_join_result():
        by_annotation = pair.theirs.tasks["ours.greet_by_annotation"]
        assert by_annotation.delay(PLAIN_ADA).get(timeout=PATIENCE) == expected


def test_workflows_go_through_both(pair: Pair) -> None:
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
