"""What type checkers say about calls. A line marked `# error: code` must be refused, every other line
accepted.

The marks name mypy's code; pyright must refuse the same lines. This file is read by the checkers, never run.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Unpack, assert_type

from qworker import (
    AsyncResult,
    CallOptions,
    EagerResult,
    GraphResult,
    GroupResult,
    QWorker,
    ResultSet,
    Task,
    TaskOptions,
    chain,
    chord,
    graph,
    group,
    shared_task,
)

app = QWorker("typed")


@app.task
def add(x: int, y: int = 0) -> int:
    return x + y


@app.task(max_retries=5, queue="slow")
def named(name: str, *, loud: bool = False) -> str:
    return name.upper() if loud else name


@app.task(bind=True)
def bound(self: Task[..., float], x: float) -> float:
    return x * self.request.retries


@app.task
async def fetch(url: str) -> bytes:
    return url.encode()


@app.task(bind=True, max_retries=2)
async def bound_fetch(self: Task[..., bytes], url: str) -> bytes:
    return url.encode()


@shared_task
def shared(x: int) -> list[int]:
    return [x]


@shared_task(bind=True)
def shared_bound(self: Task[..., int], x: int) -> int:
    return x


class Base(Task[..., object]):
    """A custom base."""


@app.task(base=Base)
def based(x: int) -> int:
    return x


class Plain(Task):
    """A base without types of arguments and result, with an attribute and its own apply_async()."""

    queue = "slow"
    room = "hall"

    def apply_async(
        self, args: Any = None, kwargs: Any = None, task_id: str | None = None, **options: Any
    ) -> AsyncResult:
        return super().apply_async(args, kwargs, task_id, **options)


@app.task(base=Plain, bind=True, room="attic")
def plainly(self: Task, x: int) -> int:
    return x


@app.task(
    name="n",
    queue="slow",
    priority=9,
    expires=timedelta(days=1),
    rate_limit="10/m",
    time_limit="1h",
    soft_time_limit=50.5,
    acks_late=False,
    autoretry_for=(OSError, ValueError),
    throws=KeyError,
    max_retries=None,
    retry_backoff=True,
    retry_kwargs={"max_retries": 2},
    on_failure=print,
)
def tuned(x: int, *names: str, loud: bool = False) -> str:
    return names[x]


@shared_task(bind=True, autoretry_for=[OSError], retry_backoff=2.5)
def shared_tuned(self: Task, x: int) -> int:
    raise self.retry(countdown=5, queue="slow", priority=3)


def whose(app: QWorker) -> str:
    return app.main or ""


@app.task(bind=True)
def passing_its_app(self: Task, x: int) -> str:
    assert_type(self.app.AsyncResult(self.request.id), AsyncResult[Any])
    return whose(self.app)


class Bound(Task):
    @classmethod
    def on_bound(cls, app: QWorker) -> None:
        whose(app)


def later(task: Task, *args: Any, **options: Unpack[CallOptions]) -> AsyncResult:
    options.setdefault("countdown", 60)
    return task.apply_async(args, **options)


def on_the_side(**options: Unpack[TaskOptions]) -> Any:
    options.setdefault("queue", "side")
    return app.task(**options)


of_a_middleware: dict[str, Any] = {"tenant": "acme"}

assert_type(plainly.delay(1).get(), int)
assert_type(add.delay(1).app, QWorker)
assert_type(add.delay(1).parent, AsyncResult[Any] | GroupResult[Any] | None)
assert_type(group([add.s(1)]).delay().app, QWorker)
assert_type(group([add.s(1)]).app, QWorker)
assert_type(add.s(1).app, QWorker)
assert_type(add.s(1).type.delay(1), AsyncResult[Any])
assert_type(tuned.delay(1, "a", "b", loud=True), AsyncResult[str])
assert_type(shared_tuned.delay(1), AsyncResult[int])
assert_type(later(add, 1, queue="slow"), AsyncResult[Any])
assert_type(Plain().delay(1, 2, three=3), AsyncResult[Any])
assert_type(add.apply_async((1,), None, "id", countdown=1.5, expires="1h"), AsyncResult[int])
assert_type(add.apply_async((1,), eta=datetime.now(UTC), link=shared.s(), link_error=[shared.s()]).get(), int)
assert_type(add.apply_async((1,), countdown=timedelta(1), headers={"a": 1}, **of_a_middleware).get(), int)
assert_type(add.apply_many([(1,)], queue="slow", priority=9), list[AsyncResult[int]])
assert_type(add.apply((1,), throw=True, time_limit=5), EagerResult[int])
assert_type(app.send_task("add", (1,), task_id="id", queue="slow"), AsyncResult[Any])
assert_type(app.send_many([("add", (1,))], ignore_result=True), list[Any])
assert_type(add.s(1).set(task_id="id", queue="slow", ignore_result=True).delay(), AsyncResult[Any])
assert_type(group([add.s(1)]).apply_async(queue="slow"), GroupResult[Any])
assert_type(add.delay(1), AsyncResult[int])
assert_type(add.delay(1, y=2).get(), int)
assert_type(add(1, 2), int)
assert_type(add.apply_async((1,)).get(timeout=1), int)
assert_type(add.apply((1,)).get(), int)
assert_type(add.apply_many([(1, 2)])[0].get(), int)
assert_type(add.AsyncResult("id").get(), int)
assert_type(named.delay("x", loud=True).get(), str)
assert_type(bound.delay(1.5).get(), float)
assert_type(fetch.delay("u").get(), bytes)
assert_type(bound_fetch.delay("u").get(), bytes)
assert_type(shared.delay(1).get(), list[int])
assert_type(shared_bound.delay(1).get(), int)
assert_type(based.delay(1).get(), int)
assert_type(ResultSet(add.apply_many([(1, 2)])).get(), list[int])
assert_type(GroupResult("g", [add.delay(1)])[0].get(), int)
assert_type(next(ResultSet([add.delay(1)]).iterate()), int)

assert_type(group([add.s(1)]).delay(), GroupResult[Any])
assert_type(group([add.s(1)])(), GroupResult[Any])
assert_type(add.chunks([(1, 2)], 3).delay(), GroupResult[Any])
assert_type(chord([add.s(1)])(shared.s()), AsyncResult[Any])
assert_type(chord([add.s(1)], shared.s()).delay(), AsyncResult[Any])
assert_type(chain(add.s(1), add.s(2)).delay(), Any)
assert_type(add.map([1]).delay(), AsyncResult[Any])
assert_type(graph({"a": add.s(1)}).delay(), GraphResult)
assert_type(graph({"a": add.s(1)})().get(), dict[str, Any])
assert_type(graph({"a": add.s(1)})()["a"], AsyncResult[Any])

chain(add.s(1), add.s(2)).delay()
(add.s(1, 2) | named.s(loud=True) | bound.s()).delay()
chord([add.s(1), add.s(2, y=3)], tuned.s("a", loud=True))
add.s()
add.s(y=1)
add.s(1, 2).set(queue="slow")
tuned.s("name")
tuned.s(1, "a", "b")
shared_tuned.s(1)
plainly.s(1)
anything: Task[..., Any] = app.tasks["anything"]
anything.s(1, "x", three=3)
add.si(1)
add.si(1, y=2)

add.s("x")  # error: call-overload
add.s(1, "x")  # error: call-overload
add.s(1, 2, 3)  # error: call-overload
named.s(b"x")  # error: call-overload
bound.s("x")  # error: call-overload
fetch.s(1)  # error: call-overload
shared.s("x")  # error: call-overload
add.si("x")  # error: arg-type
add.si(1, 2, 3)  # error: call-arg
named.si()  # error: call-arg
add.s(1).dealy()  # error: attr-defined
chain(add.s(1), add.s(2)).dealy()  # error: attr-defined
(add.s(1) | add.s(2)).dealy()  # error: attr-defined
group([add.s(1)]).dealy()  # error: attr-defined
chord([add.s(1)], add.s()).dealy()  # error: attr-defined
add.delay("x")  # error: arg-type
add.delay()  # error: call-arg
add.delay(1, 2, 3)  # error: call-arg
add.delay(1, z=2)  # error: call-arg
add("x")  # error: arg-type
named.delay(5)  # error: arg-type
named.delay("x", True)  # error: call-arg
bound.delay("x")  # error: arg-type
bound.delay(1.0, 2.0)  # error: call-arg
fetch.delay(b"u")  # error: arg-type
bound_fetch.delay(1)  # error: arg-type
shared.delay("x")  # error: arg-type
shared_bound.delay("x")  # error: arg-type
based.delay("x")  # error: arg-type
number: str = add.delay(1).get()  # error: assignment
add.delay(1).got()  # error: attr-defined
add.delya(1)  # error: attr-defined

app.task(queu="slow")  # error: call-overload
app.task(queue=5)  # error: call-overload
app.task(bind=True, max_retries="many")  # error: call-overload
app.task(autoretry_for=OSError("no"))  # error: call-overload
shared_task(time_limit=None, acks_latte=True)  # error: call-overload
shared_task(acks_late="yes")  # error: call-overload
on_the_side(retry_backof=True)  # error: call-arg
later(add, 1, countdwon=5)  # error: call-arg
add.apply_async((1,), countdwon=5)  # error: call-arg
add.apply_async((1,), countdown="soon")  # error: arg-type
add.apply_async((1,), queue=5)  # error: arg-type
add.apply_async((1,), eta=5)  # error: arg-type
add.apply_async((1,), link="add")  # error: arg-type
add.apply_async(1)  # error: arg-type
add.apply_many([(1,)], task_id="id")  # error: call-arg
add.apply((1,), countdwon=5)  # error: call-arg
app.send_task("add", (1,), que="slow")  # error: call-arg
app.send_many([("add", (1,))], priority="high")  # error: arg-type
add.s(1).set(countdwon=5)  # error: call-arg
add.s(1).apply_async(ignore_result="no")  # error: arg-type
group([add.s(1)]).apply_async(que="slow")  # error: call-arg
add.retry(root_id="id")  # error: call-arg


async def main() -> None:
    assert_type(await add.delay(1), int)
    assert_type(await fetch("u"), bytes)
    assert_type(await fetch.delay("u"), bytes)
    assert_type(await graph({"a": add.s(1)})(), dict[str, Any])
    assert_type(await bound_fetch("u"), bytes)
    assert_type(await (await add.adelay(1)), int)
    assert_type(await (await add.aapply_many([(1,)]))[0], int)
    await add.aapply_many([(1,)], que="slow")  # error: call-arg
    await (await (add.s(1) | add.s(2)).adelay())
    await chain(add.s(1), add.s(2)).aapply_async(queue="slow")
    await add.s(1).aapply_async(que="slow")  # error: call-arg
    text: str = await add.delay(1)  # error: assignment
    print(text)
