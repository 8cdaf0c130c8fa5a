"""What type checkers say about calls. A line marked `# error: code` must be refused, every other line
accepted.

The marks name mypy's code; pyright must refuse the same lines. This file is read by the checkers, never run.
"""

from __future__ import annotations

from typing import Any, assert_type

from qworker import (
    AsyncResult,
    GraphResult,
    GroupResult,
    QWorker,
    ResultSet,
    Task,
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
    """A base of one's own."""


@app.task(base=Base)
def based(x: int) -> int:
    return x


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


async def main() -> None:
    assert_type(await add.delay(1), int)
    assert_type(await fetch("u"), bytes)
    assert_type(await fetch.delay("u"), bytes)
    assert_type(await graph({"a": add.s(1)})(), dict[str, Any])
    assert_type(await bound_fetch("u"), bytes)
    text: str = await add.delay(1)  # error: assignment
    print(text)
