"""Workflows that strangers wrote: whoever calls one is told in one message, and a worker that gets one ends
it and goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qworker import QWorker, chain, chord, group, signature
from qworker.backends.joins import Join
from qworker.canvas.signatures import Signature
from qworker.errors import QWorkerError
from qworker.message.marks import JOINS, PUBLICATION
from qworker.testing import FakeClock, MemoryStore, StepWorker
from qworker.transports.lease import Envelope

pytestmark = pytest.mark.integration

FIELDS = (
    "task", "args", "kwargs", "options", "subtask_type", "immutable", "tasks", "header", "body", "chain",
    "chord", "link", "link_error", "task_id", "group_id", "group_index", "headers", "priority", "countdown",
    "queue",
)  # fmt: skip
ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from(
        [-1, 0, 7, 2**31, 2**63, 2**80, 1e308, "", "x", "chord", "chain", "group", "give", "\udc80"]
    )
    | st.sampled_from(["x" * 300, "celery.chord"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=3),
    max_leaves=6,
)


class House:
    def __init__(self) -> None:
        clock = FakeClock()
        self.app = QWorker(
            "hostile",
            broker=MemoryStore(clock),
            backend="cache+memory://",
            clock=clock,
            set_as_current=False,
            task_unknown_delays=(),
        )

        @self.app.task(name="give")
        def give(*given: Any, **named: Any) -> Any:
            return given[:1]

        self.worker = StepWorker(self.app)

    def valid(self) -> list[Any]:
        give = self.app.tasks["give"]
        flows = [
            give.s(1),
            chain(give.s(1), give.s(), app=self.app),
            group([give.s(1), give.s(2)], app=self.app),
            chord([give.s(1), chain(give.s(2), give.s())], give.s().on_error(give.s()), app=self.app),
        ]
        return [json.loads(json.dumps(flow)) for flow in flows]

    def works(self) -> None:
        """The worker goes on, and nothing is left in its queues."""
        self.worker.run()
        result = self.app.tasks["give"].delay(7)
        self.worker.run()
        assert result.get(timeout=5) == [7]
        assert sum(queue.ready + queue.leased for queue in self.app.broker.admin.queues()) == 0


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    house = House()
    yield house
    house.app.close()


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all that stands in *value*."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from places(each, (*path, number))


def changed(value: Any, path: tuple[Any, ...], odd: Any) -> Any:
    """*value* with *odd* at *path*."""
    if not path:
        return odd
    copy = value.copy()
    copy[path[0]] = changed(value[path[0]], path[1:], odd)
    return copy


@st.composite
def hostile(draw: st.DrawFn, flow: Any) -> Any:
    for _ in range(draw(st.integers(1, 3))):
        flow = changed(flow, draw(st.sampled_from(list(places(flow)))), draw(ODD))
        if isinstance(flow, dict) and draw(st.booleans()):
            options = [path for path in places(flow) if path and path[-1] == "options"]
            if options:
                odd = {draw(st.sampled_from(FIELDS)): draw(ODD)}
                flow = changed(flow, draw(st.sampled_from(options)), odd)
    return flow


FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@FUZZ
@given(data=st.data(), which=st.integers(0, 3))
def test_who_calls_it_is_told(house: House, data: st.DataObject, which: int) -> None:
    fields = data.draw(hostile(house.valid()[which]))
    try:
        Signature.from_dict(fields, house.app).apply_async()
    except (QWorkerError, TypeError, ValueError) as error:
        told = str(error)
    else:
        told = "it is taken"
    assert 0 < len(told) < 2000
    house.works()


@FUZZ
@given(
    data=st.data(), which=st.integers(0, 3), name=st.sampled_from(["callbacks", "errbacks", "chain", "chord"])
)
def test_a_worker_that_gets_it_goes_on(house: House, data: st.DataObject, which: int, name: str) -> None:
    odd = data.draw(hostile(house.valid()[which]))
    embed: dict[str, Any] = dict.fromkeys(["callbacks", "errbacks", "chain", "chord"])
    embed[name] = odd if name == "chord" or data.draw(st.booleans()) else [odd]
    send(house, embed, data.draw(st.sampled_from(["give", "nobody.knows"])))
    house.works()


@FUZZ
@given(joins=ODD | st.lists(st.tuples(ODD, ODD) | st.just(["j", 0]), max_size=4), number=ODD)
def test_a_worker_that_gets_odd_headers_goes_on(house: House, joins: Any, number: Any) -> None:
    house.app.backend.joins.open([Join("j", 3, b"")])
    send(house, {}, "give", **{JOINS: joins, PUBLICATION: number})
    house.works()


@FUZZ
@given(data=st.data(), which=st.integers(0, 3))
def test_a_body_that_a_stranger_wrote_ends_with_its_join(
    house: House, data: st.DataObject, which: int
) -> None:
    body = data.draw(hostile(house.valid()[which]))
    before = house.app.backend.joins.count()
    try:
        written = json.dumps(body).encode()
    except ValueError:
        return
    identity = f"s{time.monotonic_ns()}"
    house.app.backend.joins.open([Join(identity, 0, written)])
    house.works()
    assert house.app.backend.joins.grow(identity, "added") is None
    assert house.app.backend.joins.count() <= before + 1


def send(house: House, embed: Any, task: str, **headers: Any) -> None:
    """A message as no client of ours would write it."""
    known = {"lang": "py", "task": task, "id": f"h{time.monotonic_ns()}", "retries": 0, **headers}
    house.app.broker.sender.push(
        [Envelope("celery", json.dumps(known), None, json.dumps([[1], {}, embed]).encode())]
    )


def nested(depth: int, kind: str) -> Any:
    inner: Any = {"task": "give", "args": [], "kwargs": {}, "options": {}, "subtask_type": None}
    for _ in range(depth):
        kwargs = {"header": [inner], "body": inner} if kind == "chord" else {"tasks": [inner]}
        if kind == "options":
            inner = {**inner, "options": {"link": [inner]}}
        else:
            inner = {"task": f"celery.{kind}", "kwargs": kwargs, "options": {}, "subtask_type": kind}
    return inner


@pytest.mark.parametrize("kind", ["chain", "group", "chord", "options"])
def test_a_workflow_ten_thousand_deep_is_refused(house: House, kind: str) -> None:
    with pytest.raises((QWorkerError, TypeError), match=r"deep|nest|more than"):
        signature(nested(10_000, kind), app=house.app).apply_async()
    house.works()
