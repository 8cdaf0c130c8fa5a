"""Invalid workflows: calling one raises a clear error; a worker that receives one ends it and continues."""

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
INVALID = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from(
        [-1, 0, 7, 2**31, 2**63, 2**80, 1e308, "", "x", "chord", "chain", "group", "give", "\udc80"]
    )
    | st.sampled_from(["x" * 300, "celery.chord"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=3),
    max_leaves=6,
)


class Env:
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

    def check_worker(self) -> None:
        """Check that the worker continues, and its queues are empty."""
        self.worker.run()
        result = self.app.tasks["give"].delay(7)
        self.worker.run()
        assert result.get(timeout=5) == [7]
        assert sum(queue.ready + queue.leased for queue in self.app.broker.admin.queues()) == 0


@pytest.fixture(scope="module")
def env() -> Iterator[Env]:
    env = Env()
    yield env
    env.app.close()


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all parts of *value*."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from paths(value[key], (*path, key))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from paths(each, (*path, number))


def changed(value: Any, path: tuple[Any, ...], invalid: Any) -> Any:
    """Return *value* with *invalid* at *path*."""
    if not path:
        return invalid
    copy = value.copy()
    copy[path[0]] = changed(value[path[0]], path[1:], invalid)
    return copy


@st.composite
def hostile(draw: st.DrawFn, flow: Any) -> Any:
    for _ in range(draw(st.integers(1, 3))):
        flow = changed(flow, draw(st.sampled_from(list(paths(flow)))), draw(INVALID))
        if isinstance(flow, dict) and draw(st.booleans()):
            options = [path for path in paths(flow) if path and path[-1] == "options"]
            if options:
                invalid = {draw(st.sampled_from(FIELDS)): draw(INVALID)}
                flow = changed(flow, draw(st.sampled_from(options)), invalid)
    return flow


FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@FUZZ
@given(data=st.data(), which=st.integers(0, 3))
def test_calling_an_invalid_workflow_raises_a_clear_error(env: Env, data: st.DataObject, which: int) -> None:
    fields = data.draw(hostile(env.valid()[which]))
    try:
        Signature.from_dict(fields, env.app).apply_async()
    except (QWorkerError, TypeError, ValueError) as error:
        text = str(error)
    else:
        text = "accepted"
    assert 0 < len(text) < 2000
    env.check_worker()


@FUZZ
@given(
    data=st.data(), which=st.integers(0, 3), name=st.sampled_from(["callbacks", "errbacks", "chain", "chord"])
)
def test_worker_continues_after_an_invalid_workflow(
    env: Env, data: st.DataObject, which: int, name: str
) -> None:
    invalid = data.draw(hostile(env.valid()[which]))
    embed: dict[str, Any] = dict.fromkeys(["callbacks", "errbacks", "chain", "chord"])
    embed[name] = invalid if name == "chord" or data.draw(st.booleans()) else [invalid]
    send(env, embed, data.draw(st.sampled_from(["give", "nobody.knows"])))
    env.check_worker()


@FUZZ
@given(joins=INVALID | st.lists(st.tuples(INVALID, INVALID) | st.just(["j", 0]), max_size=4), number=INVALID)
def test_worker_continues_after_invalid_headers(env: Env, joins: Any, number: Any) -> None:
    env.app.backend.joins.open([Join("j", 3, b"")])
    send(env, {}, "give", **{JOINS: joins, PUBLICATION: number})
    env.check_worker()


@FUZZ
@given(data=st.data(), which=st.integers(0, 3))
def test_invalid_body_ends_with_its_join(env: Env, data: st.DataObject, which: int) -> None:
    body = data.draw(hostile(env.valid()[which]))
    before = env.app.backend.joins.count()
    try:
        written = json.dumps(body).encode()
    except ValueError:
        return
    identity = f"s{time.monotonic_ns()}"
    env.app.backend.joins.open([Join(identity, 0, written)])
    env.check_worker()
    assert env.app.backend.joins.grow(identity, "added") is None
    assert env.app.backend.joins.count() <= before + 1


def send(env: Env, embed: Any, task: str, **headers: Any) -> None:
    """Send a message that qworker would not write."""
    known = {"lang": "py", "task": task, "id": f"h{time.monotonic_ns()}", "retries": 0, **headers}
    env.app.broker.sender.push(
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
def test_deeply_nested_workflow_is_refused(env: Env, kind: str) -> None:
    with pytest.raises((QWorkerError, TypeError), match=r"deep|nest|more than"):
        signature(nested(10_000, kind), app=env.app).apply_async()
    env.check_worker()
