"""Task.replace() and Task.add_to_chord() on a worker: on the embedded broker, with results in the same place
and elsewhere, and on Redis in both formats of joins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qworker import QWorker, Task, chain, chord, graph, group, signals
from qworker.beat.calls import messages
from qworker.beat.entry import Entry
from qworker.beat.kinds import maybe_schedule
from qworker.errors import ChordError, ConfigurationError, Ignore, NotInChord, PublishError, Replaced
from qworker.results.result import AsyncResult
from qworker.worker import Worker
from tests.servers import prefix_of, require
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.integration

KINDS: dict[str, Callable[[QWorker, int], Any]] = {
    "a task": lambda app, x: app.tasks["add"].s(x, 1),
    "a chain": lambda app, x: app.tasks["add"].s(x, 0) | app.tasks["add"].s(1),
    "a chord": lambda app, x: chord(
        [app.tasks["add"].s(x, 0), app.tasks["add"].s(1, 0)], app.tasks["total"].s()
    ),
    "a chain with a chord": lambda app, x: (
        app.tasks["add"].s(x, 0)
        | group(app.tasks["add"].s(1), app.tasks["add"].si(0, 0))
        | app.tasks["total"].s()
    ),
    "a replaced task": lambda app, x: app.tasks["become"].s("a chain", x),
    "a task that is replaced twice more": lambda app, x: app.tasks["become"].s("a replaced task", x),
}
"""Replacements, all of which return x + 1."""


class Flow:
    """An app. ran: how often each task ran. notified: values that callbacks got."""

    def __init__(self, **settings: Any) -> None:
        self.app = app = QWorker("replaced", set_as_current=False, **settings)
        self.ran: Counter[str] = Counter()
        self.notified: list[Any] = []

        @app.task(name="add")
        def add(x: int, y: int = 0) -> int:
            self.ran["add"] += 1
            return x + y

        @app.task(name="total")
        def total(values: list[int]) -> int:
            self.ran["total"] += 1
            return sum(values)

        @app.task(name="lists")
        def lists(values: Any) -> Any:
            self.ran["lists"] += 1
            return values

        @app.task(name="become", bind=True)
        def become(this: Any, kind: str, x: int) -> Any:
            self.ran["become"] += 1
            raise AssertionError(this.replace(KINDS[kind](app, x)))

        @app.task(name="spread", bind=True)
        def spread(this: Any, x: int, size: int = 2) -> Any:
            return this.replace(group([add.s(x, n) for n in range(size)]))

        @app.task(name="spread_last", bind=True)
        def spread_last(this: Any, x: int) -> Any:
            return this.replace(add.s(x, 0) | group(add.s(1), add.s(2)))

        @app.task(name="branch", bind=True)
        def branch(this: Any, x: int) -> Any:
            return this.replace(graph({"a": add.s(x), "b": add.s(y=1)}, after={"b": {"x": "a"}}))

        @app.task(name="fail")
        def fail(*args: Any) -> None:
            raise ValueError("no")

        @app.task(name="fail_instead", bind=True)
        def fail_instead(this: Any, *args: Any) -> Any:
            return this.replace(fail.si())

        @app.task(name="notified")
        def notified(value: Any) -> None:
            self.notified.append(value)

        @app.task(name="grow", bind=True)
        def grow(this: Any, x: int, lazy: bool = False) -> Any:
            added = this.add_to_chord(add.s(x, 100) | add.s(1), lazy=lazy)
            if lazy:
                added.delay()
            return x

    def s(self, name: str, *args: Any) -> Any:
        return self.app.tasks[name].s(*args)


@pytest.fixture(params=["sqlite", "sqlite and files", "redis", "redis, shared"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    if request.param == "sqlite":
        return {"broker": f"sqlite:///{tmp_path}/q.db"}
    if request.param == "sqlite and files":
        return {"broker": f"sqlite:///{tmp_path}/q.db", "backend": f"file://{tmp_path}/results"}
    url = require("redis")
    options = {"global_keyprefix": prefix_of(tmp_path)}
    return {
        "broker": url,
        "backend": url,
        "broker_transport_options": options,
        "result_backend_transport_options": options,
        "canvas_format": "shared" if "shared" in request.param else "celery",
    }


@pytest.fixture
def flow(settings: dict[str, Any]) -> Iterator[Flow]:
    flow = Flow(**settings)
    worker = Worker(flow.app, pool="threads", concurrency=2)
    worker.start()
    yield flow
    worker.stop()
    flow.app.close()


def value(result: AsyncResult[Any]) -> Any:
    return result.get(timeout=PATIENCE)


@pytest.mark.parametrize("kind", KINDS)
def test_replaced_task_has_the_value_of_its_replacement(flow: Flow, kind: str) -> None:
    result = flow.s("become", kind, 1).delay()
    assert (value(result), result.state) == (2, "SUCCESS")


@pytest.mark.parametrize("kind", KINDS)
def test_replacement_in_the_middle_of_a_chain(flow: Flow, kind: str) -> None:
    result = chain(flow.s("lists", kind), flow.s("become", 4), flow.s("add", 10))()
    assert value(result) == 15
    assert value(result.parent) == 5


@pytest.mark.parametrize("kind", KINDS)
def test_replacement_in_the_header_and_body_of_a_chord(flow: Flow, kind: str) -> None:
    header = [flow.s("add", 1, 0), flow.s("become", kind, 10), flow.s("add", 100, 0)]
    assert value(chord(header)(flow.s("lists"))) == [1, 11, 100]
    assert flow.ran["lists"] == 1
    result = chord([flow.s("add", 1, 0)])(flow.app.tasks["become"].si(kind, 20) | flow.s("add", 5))
    assert value(result) == 26


@pytest.mark.parametrize("kind", KINDS)
def test_replacement_of_a_body(flow: Flow, kind: str) -> None:
    header = [flow.s("add", 1, 0), flow.s("add", 2, 0)]
    result = chord(header)(flow.app.tasks["become"].si(kind, 20))
    assert (value(result), flow.ran["become"] > 0) == (21, True)
    inner = chord(header, flow.app.tasks["become"].si(kind, 30))
    assert value(chord([inner, flow.s("become", kind, 40)])(flow.s("lists"))) == [31, 41]


def test_body_can_be_replaced_by_groups_and_graphs(flow: Flow) -> None:
    header = [flow.s("add", 1, 0), flow.s("add", 2, 0)]
    assert value(chord(header)(flow.app.tasks["spread"].si(1))) == [1, 2]
    assert value(chord(header)(flow.app.tasks["branch"].si(1))) == {"a": 1, "b": 2}
    assert value(chord(header)(flow.app.tasks["spread_last"].si(1) | flow.s("total"))) == 5


@pytest.mark.parametrize("kind", KINDS)
def test_replacement_of_a_scheduled_call_published_twice(flow: Flow, kind: str) -> None:
    entry = Entry(name="often", task="become", schedule=maybe_schedule(60), args=(kind, 50))
    for _ in range(2):
        flow.app.broker.sender.push(messages(flow.app, entry, 1.0, "due", True))
    assert value(flow.app.AsyncResult("due")) == 51
    until(lambda: not any(queue.ready + queue.leased for queue in flow.app.broker.admin.queues()))
    became = flow.ran["become"]
    assert became == {"a replaced task": 2, "a task that is replaced twice more": 3}.get(kind, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_replacement_at_the_end_of_a_chain_in_a_header(flow: Flow, kind: str) -> None:
    header = [flow.s("lists", kind) | flow.s("become", 10), flow.s("add", 1, 0)]
    assert value(chord(header)(flow.s("lists"))) == [11, 1]


def test_replacement_by_a_group_returns_its_list(flow: Flow) -> None:
    assert value(flow.s("spread", 1).delay()) == [1, 2]
    assert value(flow.s("spread", 1, 0).delay()) == []
    assert value(flow.s("spread_last", 1).delay()) == [2, 3]
    assert value((flow.s("add", 1, 1) | flow.s("spread") | flow.s("total")).delay()) == 5
    assert value(chord([flow.s("spread", 1), flow.s("spread_last", 1)])(flow.s("lists"))) == [[1, 2], [2, 3]]


def test_replacement_by_a_graph_returns_values_by_name(flow: Flow) -> None:
    values = {"a": 1, "b": 2}
    assert value(flow.s("branch", 1).delay()) == values
    assert value((flow.s("add", 1, 0) | flow.s("branch") | flow.s("lists")).delay()) == values
    assert value(chord([flow.s("branch", 1), flow.s("add", 5)])(flow.s("lists"))) == [values, 5]


@pytest.mark.parametrize("kind", KINDS)
def test_callbacks_of_a_replaced_task_are_called_once(flow: Flow, kind: str) -> None:
    value(flow.s("become", kind, 1).apply_async(link=flow.s("notified")))
    until(lambda: flow.notified)
    assert flow.notified == [2]


def test_failed_replacement_calls_errbacks_and_fails_its_chord(flow: Flow) -> None:
    failing = flow.s("fail_instead").apply_async(link_error=flow.s("notified"))
    with pytest.raises(ValueError, match="no"):
        value(failing)
    until(lambda: flow.notified)
    assert flow.notified == [failing.id]
    result = chord([flow.s("add", 1, 1), flow.s("fail_instead")])(flow.s("total"))
    with pytest.raises((ChordError, ValueError)):
        value(result)
    result = chain(flow.s("fail_instead"), flow.s("add", 1))()
    with pytest.raises(ValueError, match="no"):
        value(result)


def test_add_to_chord_adds_members(flow: Flow) -> None:
    header = [flow.s("grow", 1), flow.s("add", 2, 0), flow.s("grow", 3, True)]
    got = value(chord(header)(flow.s("lists")))
    assert got[:3] == [1, 2, 3]
    assert sorted(got[3:]) == [102, 104]
    assert flow.ran["lists"] == 1


def test_add_to_chord_outside_of_a_chord_raises(flow: Flow) -> None:
    for call in (flow.s("grow", 1), flow.s("grow", 1) | flow.s("add", 1), group([flow.s("grow", 1)])):
        result = call.delay()
        with pytest.raises(NotInChord, match="is not a member of a chord"):
            value(result)


def test_replaced_run_ends_as_ignored(flow: Flow) -> None:
    """Only the success or failure of the replacement is reported."""
    seen: list[tuple[str, str]] = []

    def note(sender: Any = None, state: Any = None, **more: Any) -> None:
        seen.append((sender.name, state))

    signals.task_postrun.connect(note, weak=False)
    try:
        assert value(flow.s("become", "a task", 1).delay()) == 2
        until(lambda: len(seen) == 2)
    finally:
        signals.task_postrun.disconnect(note)
    assert sorted(seen) == [("add", "SUCCESS"), ("become", "IGNORED")]


def test_replacement_inherits_root_parent_and_group(flow: Flow) -> None:
    """And its nesting is increased by one."""
    requests: dict[str, list[Any]] = {}

    def note(task: Any = None, **more: Any) -> None:
        request = task.request
        fields = ("id", "root_id", "parent_id", "group", "group_index", "replaced_task_nesting")
        requests.setdefault(task.name, []).append([getattr(request, name) for name in fields])

    signals.task_prerun.connect(note, weak=False)
    try:
        value(chord([flow.s("lists", 1), flow.s("become", "a replaced task", 1)])(flow.s("total")))
    finally:
        signals.task_prerun.disconnect(note)
    (first, second), (added, last) = requests["become"], requests["add"]
    identity, root, parent, grouped, number, nesting = first
    assert (root, parent, number, nesting) == (identity, None, 1, 0)
    assert second == [identity, root, None, grouped, 1, 1]
    assert added[1:] == [root, None, None, None, 2]
    assert last == [identity, root, added[0], grouped, 1, 2]
    assert grouped == requests["lists"][0][3]


def test_on_replace_can_change_the_replacement(settings: dict[str, Any]) -> None:
    seen: list[Any] = []

    class Changing(Task[Any, Any]):
        def on_replace(self, sig: Any) -> Any:
            seen.append((self.name, [each.task for each in sig.tasks]))
            return super().on_replace(sig.set(queue="celery"))

    flow = Flow(**settings)

    @flow.app.task(name="changed", bind=True, base=Changing)
    def changed(this: Any, x: int) -> Any:
        return this.replace(flow.s("add", x, 1))

    worker = Worker(flow.app, pool="threads", concurrency=2)
    worker.start()
    try:
        assert value((flow.s("changed", 1) | flow.s("add", 3)).delay()) == 5
    finally:
        worker.stop()
        flow.app.close()
    assert seen == [("changed", ["add", "add"])]


def test_invalid_replacement_fails_the_task(flow: Flow) -> None:
    for name, sig in (
        ("in a chord", lambda: flow.s("add", 1, 1).set(chord=flow.s("total"))),
        ("an empty chain", lambda: chain()),
        ("no signature", lambda: 5),
        ("not kept", lambda: flow.s("add", 1, 1).set(ignore_result=True)),
    ):

        @flow.app.task(name=name, bind=True)
        def wrong(this: Any, sig: Any = sig) -> Any:
            return this.replace(sig())

    for name, error, said in (
        ("in a chord", ConfigurationError, "must not have the option chord"),
        ("an empty chain", ConfigurationError, "empty chain"),
        ("no signature", PublishError, "not a signature"),
    ):
        with pytest.raises(error, match=said):
            value(flow.s(name).delay())
    with pytest.raises(ChordError, match="is ignored, but a chord or graph waits for it"):
        chord([flow.s("not kept")])(flow.s("total")).get(timeout=PATIENCE, follow_parents=False)


def test_async_and_autoretry_tasks_can_be_replaced(flow: Flow) -> None:
    @flow.app.task(name="async_one", bind=True)
    async def async_one(this: Any, x: int) -> Any:
        return this.replace(flow.s("add", x, 1))

    @flow.app.task(name="retrying", bind=True, autoretry_for=(Exception,))
    def retrying(this: Any, x: int) -> Any:
        return this.replace(flow.s("add", x, 1))

    assert value(flow.s("async_one", 1).delay()) == 2
    assert value(flow.s("retrying", 1).delay()) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_eager_replacement_gives_the_same_values(kind: str) -> None:
    flow = Flow(broker="memory://", task_always_eager=True)
    assert value(flow.s("become", kind, 1).delay()) == 2
    assert value(chain(flow.s("lists", kind), flow.s("become", 4), flow.s("add", 10))()) == 15
    header = [flow.s("add", 1, 0), flow.s("become", kind, 10), flow.s("add", 100, 0)]
    assert value(chord(header)(flow.s("lists"))) == [1, 11, 100]
    result = flow.s("become", kind, 1).apply(link=flow.s("notified"))
    assert (result.get(), result.state, flow.notified) == (2, "SUCCESS", [2])
    assert value(flow.s("spread", 1).delay()) == [1, 2]
    for failing in (flow.s("fail_instead"), flow.s("become", "a task", None)):
        result = failing.apply(throw=False)
        assert result.state == "FAILURE"
        with pytest.raises((ValueError, TypeError)):
            failing.apply(throw=True)
    assert failing.apply(throw=False).traceback


def test_direct_call_of_a_replacing_task_sends_the_replacement(flow: Flow) -> None:
    with pytest.raises(Replaced) as raised:
        flow.app.tasks["become"]("a task", 1)
    assert isinstance(raised.value, Ignore)
    assert value(flow.app.AsyncResult(raised.value.sig.id)) == 2
