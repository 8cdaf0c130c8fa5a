"""Tasks with pydantic=True: messages and results have plain data, and the function gets models."""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Optional

import pytest

from qworker import QWorker, Task
from qworker.errors import ConfigurationError, EncodeError
from qworker.message.context import Context, pop, push
from qworker.message.protocol import Body
from tests.support.stores import KeepingStore, make_app

pydantic = pytest.importorskip("pydantic", reason='pip install "qworker-queue[pydantic]"')


class Order(pydantic.BaseModel):  # type: ignore[name-defined,misc]
    number: int
    lines: list[str] = []


class Express(Order):
    hours: int = 1


class Receipt(pydantic.BaseModel):  # type: ignore[name-defined,misc]
    text: str
    paid: Optional[int] = None  # noqa: UP045 - the older spelling is tested


@pytest.fixture
def app_and_store() -> tuple[QWorker, KeepingStore]:
    app, store, _ = make_app()
    return app, store


def bill(order: Order, note: str = "", *, more: Order | None = None) -> Receipt:
    assert isinstance(order, Order)
    assert more is None or isinstance(more, Order)
    return Receipt(text=f"{type(order).__name__} {order.number} {note}")


async def bill_async(order: Order, note: str = "", *, more: Order | None = None) -> Receipt:
    return bill(order, note, more=more)


@pytest.mark.parametrize("function", [bill, bill_async])
def test_models_are_dumped_and_loaded(app_and_store: tuple[QWorker, KeepingStore], function: Any) -> None:
    app, store = app_and_store
    task = app.task(name="bill", pydantic=True)(function)
    task.delay(Order(number=3, lines=["a"]), more=Order(number=4))
    (sent,) = store.sent
    assert (sent.body.args, sent.body.kwargs) == (
        ({"number": 3, "lines": ["a"]},),
        {"more": {"number": 4, "lines": []}},
    )
    for given in ({"number": 3}, Order(number=3)):
        assert task.apply((given, "x"), {"more": None}).get() == {"text": "Order 3 x", "paid": None}
    direct = task({"number": 3})
    assert (asyncio.run(direct) if task.is_async else direct) == {"text": "Order 3 ", "paid": None}


def test_all_ways_to_call_dump_models(app_and_store: tuple[QWorker, KeepingStore]) -> None:
    app, store = app_and_store
    task = app.task(name="bill", pydantic=True)(bill)
    order = Order(number=1)
    task.apply_async((order,), priority=3)
    task.apply_async(kwargs={"order": order})
    task.apply_many([(order,), {"order": order}, task.s(order)])
    task.s(order).delay()
    data = {"number": 1, "lines": []}
    assert [(one.body.args, one.body.kwargs) for one in store.sent] == [
        ((data,), {}), ((), {"order": data}), ((data,), {}), ((), {"order": data}), ((data,), {}), ((data,),
        {}),
    ]  # fmt: skip


def test_retry_dumps_models(app_and_store: tuple[QWorker, KeepingStore]) -> None:
    app, store = app_and_store

    @app.task(name="bill", bind=True, pydantic=True)
    def again(self: Any, order: Order) -> None: ...

    token = push(
        Context.from_message({"id": "i", "task": "bill"}, Body(({"number": 1},), {}, {}), task=again), again
    )
    again.retry(args=(Order(number=2),), countdown=1, throw=False)
    again.retry(kwargs={"order": Order(number=3)}, countdown=1, throw=False)
    again.retry(countdown=1, throw=False)
    pop(token)
    numbers = [one.body.args[0]["number"] for one in store.sent]
    assert numbers == [2, 3, 1]


def test_argument_that_would_change_on_loading_is_refused(
    app_and_store: tuple[QWorker, KeepingStore],
) -> None:
    app, _ = app_and_store
    task = app.task(name="bill", pydantic=True)(bill)
    with pytest.raises(EncodeError):
        task.delay(Express(number=1))  # would be loaded as an Order
    with pytest.raises(EncodeError):
        task.delay({"number": 1}, Order(number=1))  # not annotated as a model
    with pytest.raises(TypeError, match="missing"):
        task.delay()


def test_validation_error_fails_the_task(app_and_store: tuple[QWorker, KeepingStore]) -> None:
    app, _ = app_and_store
    task = app.task(name="bill", pydantic=True)(bill)
    for wrong in ({"number": "x"}, None):
        assert isinstance(task.apply((wrong,)).result, pydantic.ValidationError)
    strict = app.task(name="strict", pydantic=True, pydantic_strict=True)(bill)
    assert task.apply(({"number": "7"},)).successful()
    assert isinstance(strict.apply(({"number": "7"},)).result, pydantic.ValidationError)


def test_context_and_dump_options_are_passed_to_pydantic(app_and_store: tuple[QWorker, KeepingStore]) -> None:
    app, _ = app_and_store
    seen: list[Any] = []

    class WatchedModel(pydantic.BaseModel):  # type: ignore[name-defined,misc]
        number: int

        @pydantic.field_validator("number")
        @classmethod
        def look(cls, value: int, info: Any) -> int:
            seen.append(info.context)
            return value

    @app.task(
        name="watched", pydantic=True, pydantic_context={"a": 1}, pydantic_dump_kwargs={"exclude_unset": True}
    )
    def watched(given) -> Receipt:  # type: ignore[no-untyped-def]
        return Receipt(text="t")

    watched.run.__wrapped__.__annotations__["given"] = WatchedModel
    assert watched.apply(({"number": 1},)).get() == {"text": "t"}
    assert seen == [{"a": 1, "celery_app": app, "celery_task_name": "watched"}]


@pytest.mark.parametrize("result", [{"text": "x"}, None, Order(number=1)])
def test_result_of_another_class_is_not_converted(
    app_and_store: tuple[QWorker, KeepingStore], result: Any
) -> None:
    app, _ = app_and_store

    @app.task(name="odd", pydantic=True, serializer="json")
    def odd() -> Receipt | None:
        return result  # type: ignore[no-any-return]

    ended = odd.apply()
    if isinstance(result, Order):
        assert isinstance(ended.result, EncodeError)
    else:
        assert ended.get() == result


def test_unresolvable_annotations_are_ignored(
    app_and_store: tuple[QWorker, KeepingStore],
) -> None:
    app, _ = app_and_store

    @app.task(name="hinted", pydantic=True)
    def hinted(x: Nowhere, y: int) -> Nowhere:  # type: ignore[name-defined]  # noqa: F821
        return [x, y]

    assert hinted.apply((1, 2)).get() == [1, 2]


def test_pydantic_option_is_refused_without_pydantic(
    app_and_store: tuple[QWorker, KeepingStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, _ = app_and_store
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(ConfigurationError, match=r'task bill: .* pip install "qworker-queue\[pydantic\]"'):
        app.task(name="bill", pydantic=True)(bill)
    assert isinstance(app.task(name="plain")(bill), Task)
