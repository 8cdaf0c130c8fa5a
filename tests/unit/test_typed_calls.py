"""Tasks annotated with dataclasses, enums, timedeltas and models: plain data is sent, the function
gets values of its types, and its result is plain data again."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from functools import wraps
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pydantic
import pytest

from qworker import Middleware, QWorker, Task, chain, chord, graph, group
from qworker.errors import EncodeError, InvalidValue
from qworker.message.context import Context, pop, push
from qworker.message.protocol import Body
from qworker.testing import FakeClock, MemoryStore, StepWorker
from tests.support.stores import KeepingStore, make_app

if TYPE_CHECKING:
    from nowhere import Unknown


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Line:
    product: UUID
    count: int = 1


@dataclass
class Order:
    number: int
    lines: list[Line] = field(default_factory=list)
    color: Color = Color.RED


@dataclass
class Express(Order):
    hours: int = 1


@dataclass
class Receipt:
    order: Order
    waited: timedelta


class Person(pydantic.BaseModel):
    name: str
    age: int = 0


ID = UUID(int=7)
ORDER = Order(3, [Line(ID, 2)], Color.BLUE)
PLAIN = {"number": 3, "lines": [{"product": ID, "count": 2}], "color": "blue"}
RECEIPT = {"order": PLAIN, "waited": 60}


def bill(
    order: Order, note: str = "", wait: timedelta | None = None, *, by: Sequence[Person] = ()
) -> Receipt:
    assert type(order) is Order
    assert wait is None or type(wait) is timedelta
    assert all(type(person) is Person for person in by)
    return Receipt(order, wait or timedelta(minutes=1))


async def bill_async(
    order: Order, note: str = "", wait: timedelta | None = None, *, by: Sequence[Person] = ()
) -> Receipt:
    return bill(order, note, wait, by=by)


class BillTask(Task[..., Any]):
    name = "bill"

    def run(
        self, order: Order, note: str = "", wait: timedelta | None = None, *, by: Sequence[Person] = ()
    ) -> Receipt:
        return bill(order, note, wait, by=by)


def task_of(app: QWorker, function: Any, **options: Any) -> Task[..., Any]:
    if isinstance(function, type):
        return app.register_task(function())  # type: ignore[no-any-return]
    return app.task(name="bill", **options)(function)  # type: ignore[no-any-return]


def make_kept_app() -> tuple[QWorker, KeepingStore]:
    app, store, _ = make_app()
    return app, store


@pytest.fixture
def app_and_worker() -> Iterator[tuple[QWorker, StepWorker]]:
    """An app and a worker that is run step by step."""
    clock = FakeClock()
    broker = MemoryStore(clock, keeps_failed=True)
    app = QWorker(
        "app_and_worker", broker=broker, backend="cache+memory://", clock=clock, set_as_current=False
    )
    with StepWorker(app) as worker:
        yield app, worker


EVERY_KIND = pytest.mark.parametrize("function", [bill, bill_async, BillTask])


# -- sending --


@EVERY_KIND
def test_values_are_sent_as_plain_data(function: Any) -> None:
    app, store = make_kept_app()
    task = task_of(app, function)
    task.delay(ORDER, wait=timedelta(seconds=90), by=[Person(name="Ada")])
    task.apply_async((ORDER,), priority=3)
    task.apply_many([(ORDER,), {"order": ORDER}, task.s(ORDER)])
    task.s(ORDER).delay()
    app.send_many([task.s(ORDER)])
    assert [(one.body.args, one.body.kwargs) for one in store.sent] == [
        ((PLAIN,), {"wait": 90, "by": [{"name": "Ada", "age": 0}]}), ((PLAIN,), {}), ((PLAIN,), {}),
        ((), {"order": PLAIN}), ((PLAIN,), {}), ((PLAIN,), {}), ((PLAIN,), {}),
    ]  # fmt: skip


def test_plain_data_is_sent_unchanged() -> None:
    app, store = make_kept_app()
    task_of(app, bill).delay(PLAIN, "x", 90)
    task_of(app, bill).delay("nonsense")
    assert [one.body.args for one in store.sent] == [(PLAIN, "x", 90), ("nonsense",)]


def test_calls_by_name_need_plain_data() -> None:
    app, store = make_kept_app()
    task_of(app, bill)
    app.send_task("bill", (PLAIN,))
    assert store.sent[0].body.args == (PLAIN,)
    with pytest.raises(
        EncodeError, match=r"args\[0\] cannot be serialised .* parameter or result with Order"
    ):
        app.send_task("bill", (ORDER,))


def test_values_that_would_lose_their_type_are_rejected() -> None:
    app, store = make_kept_app()
    task = task_of(app, bill)
    with pytest.raises(
        EncodeError, match=r"argument order of bill cannot be sent: expected Order, not Expr"
    ) as no:
        task.delay(Express(1))
    assert (no.value.path, no.value.type_name) == ("order", "Express")
    with pytest.raises(EncodeError, match=r"argument by\[1\] of bill"):
        task.delay(ORDER, by=[Person(name="a"), type("Boss", (Person,), {})(name="b")])
    with pytest.raises(EncodeError, match=r"args\[1\] cannot"):
        task.delay(ORDER, ORDER)  # the parameter is a str
    with pytest.raises(TypeError, match="missing"):
        task.delay()
    assert not store.sent


def test_pickle_sends_values_unchanged() -> None:
    app, store, _ = make_app(
        result_serializer="pickle", accept_content=["json", "pickle"], security_key="x" * 32
    )
    task = task_of(app, bill)
    task.apply_async((Express(1),), serializer="pickle")
    pickled = app.task(name="pickled", serializer="pickle")(bill)
    pickled.delay(ORDER)
    assert [one.body.args for one in store.sent] == [(Express(1),), (ORDER,)]
    assert task.apply((ORDER,)).get() == Receipt(ORDER, timedelta(minutes=1))


def test_variable_arguments_are_converted() -> None:
    app, store = make_kept_app()
    seen: list[Any] = []

    @app.task(name="stars")
    def stars(first: int, *more: timedelta, **others: Color) -> None:
        seen.append((first, more, others))

    stars.delay(1, timedelta(1), timedelta(2), a=Color.RED)
    (sent,) = store.sent
    assert (sent.body.args, sent.body.kwargs) == ((1, 86400, 172800), {"a": "red"})
    stars.apply(sent.body.args, sent.body.kwargs)
    assert seen == [(1, (timedelta(1), timedelta(2)), {"a": Color.RED})]
    failed = stars.apply((1, 2, "x")).result
    assert str(failed).startswith("stars does not take the argument more[1]: expected a timedelta")


# -- running --


@EVERY_KIND
def test_function_gets_values_and_result_is_plain(
    app_and_worker: tuple[QWorker, StepWorker], function: Any
) -> None:
    app, worker = app_and_worker
    task = task_of(app, function)
    result = task.delay(ORDER, by=[Person(name="Ada")])
    by_name = app.send_task("bill", (PLAIN,), {"wait": "PT1M"})
    worker.run()
    assert result.get() == by_name.get() == RECEIPT
    assert task.load_result(result.get()) == Receipt(ORDER, timedelta(minutes=1))
    with pytest.raises(
        InvalidValue, match=r"the result\.waited of bill does not match its annotation: expected a time"
    ):
        task.load_result({**RECEIPT, "waited": "long"})


@EVERY_KIND
@pytest.mark.parametrize("given", [ORDER, PLAIN], ids=["value", "plain"])
def test_eager_runs_convert_values(function: Any, given: Any) -> None:
    app, _ = make_kept_app()
    task = task_of(app, function)
    assert task.apply((given,)).get() == RECEIPT
    app.conf.task_always_eager = True
    assert task.delay(given).get() == RECEIPT


def test_direct_call_converts_nothing() -> None:
    app, _ = make_kept_app()
    assert task_of(app, bill)(ORDER) == Receipt(ORDER, timedelta(minutes=1))
    app, _ = make_kept_app()
    assert asyncio.run(task_of(app, bill_async)(ORDER)) == Receipt(ORDER, timedelta(minutes=1))


@EVERY_KIND
def test_mismatching_argument_fails_the_task_with_its_path(
    app_and_worker: tuple[QWorker, StepWorker], function: Any
) -> None:
    app, worker = app_and_worker
    task = task_of(app, function)
    result = task.delay({"number": 1, "lines": [{"product": "x"}]})
    other = task.delay(PLAIN, by=[{"age": "old"}])
    worker.run()
    assert (result.state, other.state) == ("FAILURE", "FAILURE")
    assert isinstance(result.result, InvalidValue)
    assert str(result.result) == (
        "bill does not take the argument order.lines[0].product: expected a UUID, not 'x'"
    )
    assert str(other.result).startswith(
        "bill does not take the argument by[0]: it cannot be converted to Person: name: Field required; "
        "age: Input"
    )


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_mismatching_argument_is_not_retried(app_and_worker: tuple[QWorker, StepWorker], kind: str) -> None:
    app, worker = app_and_worker
    function = bill if kind == "sync" else bill_async
    task = app.task(name="bill", autoretry_for=(Exception,), max_retries=5, default_retry_delay=0)(function)
    result = task.delay("nonsense")
    worker.run()
    assert (result.state, type(result.result)) == ("FAILURE", InvalidValue)
    (failed,) = app.failed.list()
    assert (failed.attempts, failed.id) == (1, result.id)
    app.failed.retry([failed.tag], args=(ORDER,))
    worker.run()
    assert app.AsyncResult(result.id).get() == RECEIPT


def test_hooks_and_middleware_see_plain_data(app_and_worker: tuple[QWorker, StepWorker]) -> None:
    app, worker = app_and_worker
    seen: list[Any] = []

    class Watch(Middleware):
        def execute(self, call_next: Any, context: Any) -> Any:
            seen.append(context.args)
            value = call_next(context)
            seen.append(value)
            return value

    app.add_middleware(Watch())
    task = app.task(name="bill", on_success=lambda self, value, *rest: seen.append(value))(bill)
    task.delay(ORDER)
    worker.run()
    assert seen == [(PLAIN,), RECEIPT, RECEIPT]


def test_result_of_another_type_is_not_converted(app_and_worker: tuple[QWorker, StepWorker]) -> None:
    app, worker = app_and_worker

    @app.task(name="odd")
    def odd(value: Any) -> Receipt | None:
        return Express(1) if value == "order" else value  # type: ignore[return-value]

    results = [odd.delay(value) for value in ({"a": 1}, None, 5, "order")]
    worker.run()
    assert [result.get() for result in results[:3]] == [{"a": 1}, None, 5]
    assert isinstance(results[3].result, EncodeError)


# -- workflows --


def test_values_pass_through_workflows(app_and_worker: tuple[QWorker, StepWorker]) -> None:
    app, worker = app_and_worker
    seen: list[Any] = []

    @app.task(name="start")
    def start() -> Order:
        return ORDER

    @app.task(name="pass_on")
    def pass_on(order: Order, wait: timedelta = timedelta(0), *, color: Color | None = None) -> Order:
        seen.append((type(order), wait, color))
        return Order(order.number + 1, order.lines, color or order.color)

    @app.task(name="total")
    def total(orders: list[Order], wait: timedelta = timedelta(0)) -> timedelta:
        assert all(type(order) is Order for order in orders)
        return timedelta(seconds=sum(order.number for order in orders)) + wait

    def ended(work: Any, *args: Any, **options: Any) -> Any:
        result = work.apply_async(*args, **options)
        worker.run()
        return result.get()

    minute = timedelta(minutes=1)
    assert ended(start.s() | pass_on.s(minute, color=Color.RED) | pass_on.si(ORDER))["number"] == 4
    assert seen == [(Order, minute, Color.RED), (Order, timedelta(0), None)]
    assert ended(chord([pass_on.s(ORDER), pass_on.s(ORDER)], total.s(minute))) == 68
    assert ended(chord([pass_on.s(ORDER)], total.s(wait=minute))) == 64
    assert [
        each["number"] for each in ended(group(pass_on.s(color=Color.RED) for _ in range(2)), (ORDER,))
    ] == [4, 4]
    assert [each["number"] for each in ended(pass_on.map([ORDER, PLAIN]))] == [4, 4]
    assert [each["number"] for each in ended(start.si() | pass_on.starmap([(ORDER, minute)]))] == [4]
    assert ended(pass_on.chunks([(ORDER, minute), (ORDER,)], 1)) is not None
    del seen[:]
    pass_on.apply_async((ORDER,), link=pass_on.s(minute), link_error=total.si([ORDER]))
    worker.run()
    assert seen == [(Order, timedelta(0), None), (Order, minute, None)]
    long = chain(start.s(), *(pass_on.s(minute) for _ in range(40)))
    assert ended(long)["number"] == 43


def test_errbacks_get_values(app_and_worker: tuple[QWorker, StepWorker]) -> None:
    app, worker = app_and_worker
    seen: list[Any] = []

    @app.task(name="fail")
    def fail() -> None:
        raise ValueError("no")

    @app.task(name="told")
    def told(request: Any, error: Any, traceback: Any, order: Order) -> None:
        seen.append(order)

    fail.apply_async(link_error=told.s(ORDER))
    worker.run()
    assert seen == [ORDER]


def test_values_are_converted_in_the_first_workflow_of_an_app() -> None:
    app, store = make_kept_app()

    @app.task(name="first")
    def first() -> None: ...

    chain(first.s(), task_of(app, bill).si(ORDER)).apply_async()
    (sent,) = store.sent
    assert sent.body.embed["chain"][0]["args"] == [PLAIN]


def linked(call: Any, other: Any, how: str = "link") -> Any:
    getattr(call, how)(other)
    return call


LINKS = {
    "with an id": lambda a, fail, c: a.s(1).set(link=[c.set(task_id="x")]),
    "of a step": lambda a, fail, c: chain(a.s(1), linked(a.s(), c)),
    "of a link": lambda a, fail, c: linked(a.s(1), linked(a.s(), c)),
    "a chain": lambda a, fail, c: linked(a.s(1), chain(a.s(), c)),
    "a chain, of a step": lambda a, fail, c: chain(a.s(1), linked(a.s(), chain(a.s(), c))),
    "a graph, of a step": lambda a, fail, c: chain(a.s(1), linked(a.s(), graph({"a": a.si(1), "c": c}))),
    "of a group": lambda a, fail, c: linked(group(a.s(1), a.s(2)), c),
    "of a body": lambda a, fail, c: chord([a.s(1)], linked(a.s(), c)),
    "errback of a step": lambda a, fail, c: chain(a.s(1), linked(fail.s(), c, "link_error")),
    "errback of a chain": lambda a, fail, c: linked(chain(a.s(1), fail.s(), a.s()), c, "link_error"),
    "errback of a chord": lambda a, fail, c: linked(chord([fail.s(1), a.s(1)], a.s()), c, "link_error"),
}


@pytest.mark.parametrize("how", LINKS)
def test_linked_calls_get_values(app_and_worker: tuple[QWorker, StepWorker], how: str) -> None:
    app, worker = app_and_worker
    seen: list[Any] = []

    @app.task(name="a")
    def a(value: Any) -> Any:
        return value

    @app.task(name="fail")
    def fail(value: Any) -> None:
        raise ValueError("no")

    @app.task(name="called")
    def called(order: Order) -> None:
        seen.append(order)

    call = called.si(ORDER)
    LINKS[how](a, fail, call).apply_async()
    worker.run()
    assert seen == [ORDER]
    assert call.args == (ORDER,)  # the signature itself is unchanged


def test_mismatching_item_of_a_map_fails_it(app_and_worker: tuple[QWorker, StepWorker]) -> None:
    app, worker = app_and_worker
    result = task_of(app, bill).map([ORDER, 5]).apply_async()
    worker.run()
    assert str(result.result).startswith("bill does not take the argument order: expected an object")


def test_retry_accepts_values() -> None:
    app, store = make_kept_app()

    @app.task(name="bill", bind=True)
    def again(self: Any, order: Order) -> None: ...

    context = Context.from_message({"id": "i", "task": "bill"}, Body((PLAIN,), {}, {}), task=again)
    token = push(context, again)
    again.retry(args=(ORDER,), countdown=1, throw=False)
    again.retry(kwargs={"order": Order(3)}, countdown=1, throw=False)
    again.retry(countdown=1, throw=False)
    pop(token)
    assert [one.body.args[0]["number"] for one in store.sent] == [3, 3, 3]


# -- cost --


def test_tasks_without_typed_parameters_convert_nothing() -> None:
    app, _ = make_kept_app()

    def plain(x: int, y: str | None = None, *, when: UUID | None = None) -> list[int]: ...

    def wrong(x: Unknown) -> None: ...

    def bare(x, y): ...  # type: ignore[no-untyped-def]

    for number, function in enumerate((plain, wrong, bare)):
        assert app.task(name=str(number))(function).typed_calls is None
    assert app.task(name="off", typing=False)(bill).typed_calls is None


def test_annotations_are_resolved_on_first_use() -> None:
    app, store = make_kept_app()

    @app.task(name="later")
    def later(order: Later) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    later.s(1)
    globals()["Later"] = Order
    try:
        later.delay(ORDER)
    finally:
        del globals()["Later"]
    assert store.sent[0].body.args == (PLAIN,)


def test_plain_annotations_import_no_conversion_modules() -> None:
    program = """
import sys
from qworker import QWorker
app = QWorker("p", broker="memory://", backend="cache+memory://")
@app.task
def add(x: int, y: "str" = "") -> dict: return {}
add.apply((1,)).get()
assert add.typed_calls is None
ours = {f"qworker.tasks.{name}" for name in ("forms", "hints", "typed_calls", "values")}
print({*ours, "pydantic"} & sys.modules.keys())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_annotations_of_a_wrapped_function_are_used() -> None:
    app, store = make_kept_app()

    def loud(function: Any) -> Any:
        @wraps(function)
        def around(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return around

    task = task_of(app, loud(bill))
    task.delay(ORDER)
    assert store.sent[0].body.args == (PLAIN,)
    assert task.apply((PLAIN,)).get() == RECEIPT
