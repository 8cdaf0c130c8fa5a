"""Values that are more than plain JSON, on every way that a call and its result take: those that JSON carries
in kombu's form, and those that an annotation tells."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qworker import QWorker, chord, group
from qworker.errors import InvalidSchedule, InvalidValue
from qworker.testing import StepWorker
from tests.servers import prefix_of, require
from tests.support import values
from tests.support.rabbitmq import forget_queues
from tests.support.values import ORDER, PLAIN, Order

pytestmark = pytest.mark.integration

CARRIED = {**values.CARRIED, "all of them": {"a": [values.CARRIED], "b": list(values.CARRIED.values())}}

PLACES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "sqlite": lambda path: {"broker": f"sqlite:///{path}/q.db"},
    "sqlite, files": lambda path: {
        "broker": f"sqlite:///{path}/q.db", "backend": f"file://{path}"},
    "sqlite, sql": lambda path: {
        "broker": f"sqlite:///{path}/q.db", "backend": f"db+sqlite:///{path}/results.db"},
    "redis": lambda path: {
        "broker": require("redis"), "broker_transport_options": {"global_keyprefix": prefix_of(path)},
        "result_backend_transport_options": {"global_keyprefix": prefix_of(path)}},
    "postgresql": lambda path: {"broker": require("postgresql")},
    "rabbitmq, rpc": lambda path: {"broker": require("rabbitmq"), "backend": "rpc://"},
    "eager": lambda path: {"broker": f"sqlite:///{path}/q.db", "task_always_eager": True},
}  # fmt: skip


def make(**settings: Any) -> QWorker:
    app = QWorker("values", set_as_current=False, **settings)

    @app.task(name="same")
    def same(value: Any = None, other: Any = None) -> Any:
        return value if other is None else other

    @app.task(name="again", bind=True)
    def again(self: Any, value: Any) -> Any:
        if not self.request.retries:
            raise self.retry(countdown=0)
        return value

    @app.task(name="bill")
    def bill(order: Order, *, others: list[Order] | None = None) -> Order:
        assert all(isinstance(each, Order) for each in (order, *(others or ())))
        return order

    @app.task(name="fails")
    def fails(value: Any) -> Any:
        if value != CARRIED:
            raise ValueError("no")
        return value

    return app


@pytest.fixture(params=PLACES)
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[QWorker]:
    queue = f"values{uuid.uuid4().hex[:12]}"
    with make(**PLACES[request.param](tmp_path), task_default_queue=queue) as made:
        if made.conf.task_always_eager:
            yield made
            return
        with made.Worker(pool="threads", concurrency=2, queues=[queue]):
            yield made
        made.broker.admin.purge(queue)
        if request.param.startswith("rabbitmq"):
            forget_queues(made.conf.broker_url, queue)


def answer(work: Any, *args: Any, **options: Any) -> Any:
    return work.apply_async(*args, **options).get(timeout=30)


def test_extended_json_values_work_in_every_kind_of_call(app: QWorker) -> None:
    same, value = app.tasks["same"], CARRIED
    assert answer(same, (value,)) == value
    assert answer(same, (), kwargs={"value": value}, countdown=0.01, priority=3) == value
    assert answer(same.s(value) | same.s() | same.s()) == value
    assert answer(same.s(1) | same.si(value) | same.s(other=value)) == value
    assert answer(group([same.s(value), same.s(value)])) == [value, value]
    assert answer(same.map([value])) == [value]
    assert answer(app.tasks["again"], (value,)) == value
    if app.backend.supports_locks:
        assert answer(chord([same.s(value), same.s(value)], same.s())) == [value, value]
        assert answer(chord([same.s(1), same.s(2)], same.si(value))) == value


def test_annotated_values_work_in_every_kind_of_call(app: QWorker) -> None:
    bill, same = app.tasks["bill"], app.tasks["same"]
    assert answer(bill, (ORDER,)) == PLAIN
    assert answer(bill, (ORDER,), kwargs={"others": [ORDER]}, countdown=0.01, priority=3) == PLAIN
    assert answer(bill.s(ORDER) | bill.s(others=[ORDER]) | bill.s()) == PLAIN
    assert answer(same.s(1) | bill.si(ORDER)) == PLAIN
    assert answer(group([bill.s(ORDER), bill.s(PLAIN)])) == [PLAIN, PLAIN]
    assert answer(bill.map([ORDER])) == [PLAIN]
    if app.backend.supports_locks:
        assert answer(chord([bill.s(ORDER), bill.s(ORDER)], same.s())) == [PLAIN, PLAIN]
        assert answer(chord([same.s(1), same.s(2)], bill.si(ORDER))) == PLAIN
    assert bill.load_result(answer(bill, (ORDER,))) == ORDER


@pytest.fixture
def still(tmp_path: Path) -> Iterator[QWorker]:
    with make(broker=f"sqlite:///{tmp_path}/q.db") as made:
        yield made


def run(app: QWorker) -> None:
    with StepWorker(app) as worker:
        worker.run()


@pytest.mark.parametrize("store", ["same", "redis", "postgresql"])
def test_schedule_stores_keep_extended_values(tmp_path: Path, store: str) -> None:
    settings = {} if store == "same" else {"beat_store": require(store), "beat_scope": f"v{uuid.uuid4().hex}"}
    with make(broker=f"sqlite:///{tmp_path}/q.db", **settings) as app:
        schedules = app.schedules
        schedules.add("same", "same", 60, args=[CARRIED], kwargs={"other": CARRIED["uuid"]})
        schedules.add("bill", app.tasks["bill"], 60, args=[ORDER])
        schedules.set("bill", kwargs={"others": [ORDER]})
        assert schedules.entry("same").args == (CARRIED,)
        assert schedules.entry("bill").args == (PLAIN,)
        assert schedules.entry("bill").kwargs == {"others": [PLAIN]}
        results = schedules.run("same"), schedules.run("bill")
        run(app)
        assert [result.get(timeout=1) for result in results] == [CARRIED["uuid"], PLAIN]
        with pytest.raises(InvalidSchedule, match="must be valid as JSON: Object of type Order is not"):
            schedules.add("plain", "same", 60, args=[ORDER])
        with pytest.raises(InvalidSchedule, match=r"entry 'sub': the argument order of bill cannot be sent"):
            schedules.add("sub", "bill", 60, args=[type("Sub", (Order,), {})(1, 2, 3)])  # type: ignore[call-arg]
        schedules.remove("same")
        schedules.remove("bill")


def test_failed_tasks_keep_extended_values(still: QWorker) -> None:
    result = still.tasks["fails"].delay(CARRIED["all of them"])
    other = still.tasks["bill"].delay("nonsense")
    run(still)
    assert isinstance(other.result, InvalidValue)
    (failed,) = still.failed.list(task="fails")
    still.failed.retry([failed.tag], args=[CARRIED])
    (failed,) = still.failed.list(task="bill", error="expected an object with the fields of Order")
    still.failed.retry([failed.tag], args=[ORDER], kwargs={"others": [ORDER]})
    run(still)
    assert still.AsyncResult(result.id).get(timeout=1) == CARRIED
    assert still.AsyncResult(other.id).get(timeout=1) == PLAIN
