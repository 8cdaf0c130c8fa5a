"""Workflows drawn at random, with options, overridden methods, middleware and signals drawn beside them.

What a user's code says of headers and options, wherever it may, changes nothing of what a workflow does:
plain Python says what that is (tests/support/flows.py), and how often each call and each errback runs.

``TEST_QWORKER_FLOWS=300`` draws thirty times as many, others each time.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from qworker import Middleware, QWorker, Task, chain, chord, graph, group, signature
from qworker.message.marks import JOINS, MARKS
from qworker.signals import before_task_publish
from qworker.testing import FakeClock, MemoryStore, StepWorker
from qworker.transports.sql.embedded.broker import SQLiteBroker
from tests.support import flows
from tests.support.flow_runs import Ledger, is_ready, tree, value_of
from tests.support.flows import canvas, expected

pytestmark = pytest.mark.integration

FLOWS = int(os.environ.get("TEST_QWORKER_FLOWS", "0"))
SEARCH = settings(
    max_examples=FLOWS * 30 or 100,
    derandomize=not FLOWS,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)


class Sets(Task):
    """Its calls have these headers, and no others."""

    def apply_async(self, args: Any = None, kwargs: Any = None, task_id: Any = None, **options: Any) -> Any:
        options["headers"] = {"tenant": "acme"}
        return super().apply_async(args, kwargs, task_id, **options)


class Clears(Task):
    def apply_async(self, args: Any = None, kwargs: Any = None, task_id: Any = None, **options: Any) -> Any:
        options.pop("headers", None)
        return super().apply_async(args, kwargs, task_id, **{**options, "headers": None})


class Replaces(Middleware):
    """Sends each message with headers of its own."""

    def publish(self, call_next: Callable[[Any], Any], message: Any) -> Any:
        return call_next(replace(message, headers={"trace": "1"}))


class Reads(Middleware):
    """Looks at what it runs."""

    def execute(self, call_next: Callable[[Any], Any], context: Any) -> Any:
        assert MARKS.isdisjoint(context.headers or {})
        return call_next(context)


def keep_the_protocols(headers: Any = None, **others: Any) -> None:
    """Take all headers away that no page of Celery's names."""
    known = {
        "lang", "task", "id", "shadow", "eta", "expires", "group", "group_index", "retries", "timelimit",
        "root_id", "parent_id", "argsrepr", "kwargsrepr", "origin", "ignore_result", "stamps",
        "replaced_task_nesting", "stamped_headers",
    }  # fmt: skip
    for name in headers.keys() - known:
        del headers[name]


@dataclass(frozen=True)
class UserCode:
    """What user code does in addition to its workflows.

    - separate: messages and results are in two stores, and not in one file.
    - base: the class of the tasks. middleware, receiver: of messages that are published.
    - options: of the call. own: of the calls in it, by turns.
    - forwards: each call makes another, to which it hands its own headers.
    - dicts: the workflow has been JSON.
    """

    separate: bool
    base: Any
    middleware: tuple[Any, ...]
    receiver: Any
    options: dict[str, Any]
    own: tuple[dict[str, Any], ...]
    forwards: bool
    dicts: bool


OPTIONS = st.sampled_from(
    [{}, {"headers": {"h": 1}}, {"headers": {}}, {"headers": None}, {"priority": 3}, {"expires": 300},
     {"shadow": "zz"}, {"headers": {"h": 1}, "priority": 2},
     {"headers": {name: [["x", 0]] for name in MARKS}}]
)  # fmt: skip

USER_CODE = st.builds(
    UserCode,
    separate=st.booleans(),
    base=st.sampled_from([None, Sets, Clears]),
    middleware=st.sampled_from([(), (Replaces,), (Reads,), (Reads, Replaces)]),
    receiver=st.sampled_from([None, None, keep_the_protocols]),
    options=OPTIONS,
    own=st.lists(st.sampled_from([{}, {"headers": {"own": 1}}]), min_size=1, max_size=3).map(tuple),
    forwards=st.booleans(),
    dicts=st.booleans(),
)


class Env:
    """An app whose user has these *manners*, and its worker."""

    def __init__(self, user_code: UserCode, directory: str) -> None:
        clock = FakeClock()
        separate = user_code.separate
        broker: Any = (
            MemoryStore(clock) if separate else SQLiteBroker(f"sqlite:///{directory}/q.db", clock=clock)
        )
        self.app = QWorker(
            "flows",
            broker=broker,
            backend="cache+memory://" if separate else None,
            clock=clock,
            middleware=list(user_code.middleware),
            set_as_current=False,
        )
        self.user_code = user_code
        self.seen: list[Any] = []
        self.forwarded = self.app.task(name="forwarded")(lambda: None)
        self.ledger = Ledger(self.app, user_code.base, self.on_run)
        self.worker = StepWorker(self.app)

    def on_run(self, task: Any) -> None:
        self.seen.append(task.request.headers)
        if self.user_code.forwards:
            self.forwarded.apply_async(headers=task.request.headers)

    def add_options(self, call: Any) -> Any:
        """*call* with the options that its calls have of their own."""
        turns = iter(self.user_code.own * 1000)

        def put(each: Any) -> None:
            kwargs = each["kwargs"]
            if each["subtask_type"] in ("chain", "group"):
                parts = list(kwargs["tasks"])
            elif each["subtask_type"] == "chord":
                parts = [each.header, each.body]
            elif each["subtask_type"] == "graph":
                parts = list(kwargs["nodes"].values())
            else:
                parts = []
                each.set(**next(turns))
            for part in parts:
                put(part)

        put(call)
        return signature(json.loads(json.dumps(call)), app=self.app) if self.user_code.dicts else call

    def check_nothing_is_left(self) -> None:
        assert self.app.backend.joins.count() == 0
        assert self.app.broker.admin.dead("celery") == []
        for headers in self.seen:
            assert MARKS.isdisjoint(headers or {})


@contextmanager
def env_of(user_code: UserCode) -> Iterator[Env]:
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        env = Env(user_code, directory)
        stack.callback(env.app.close)
        if user_code.receiver is not None:
            before_task_publish.connect(user_code.receiver)
            stack.callback(before_task_publish.disconnect, user_code.receiver)
        with env.worker:
            yield env


@SEARCH
@given(flow=flows.flows(), user_code=USER_CODE)
def test_workflow_with_options_matches_the_oracle(flow: Any, user_code: UserCode) -> None:
    want = expected(flow, ())
    if want.refused:
        return
    with env_of(user_code) as env:
        result = env.add_options(canvas(flow, env.app.tasks, "f")).apply_async(**user_code.options)
        env.worker.run()
        assert dict(env.ledger.ran("f")) == dict(+want.runs)
        assert dict(env.ledger.told["f"]) == dict(want.told)
        env.ledger.order_kept("f", want.before)
        assert all(map(is_ready, tree(result)))
        assert value_of(result) == want.value
        env.check_nothing_is_left()


NAMES = "abcde"
KINDS = st.sampled_from(["call", "chain", "group", "chord"])


@st.composite
def graphs(draw: Any) -> tuple[list[str], dict[str, list[str]]]:
    """Nodes in the order in which they are written down, and for which others each waits."""
    names = list(NAMES[: draw(st.integers(2, 5))])
    after = {}
    for place, name in enumerate(names[1:], 1):
        if wanted := draw(st.lists(st.sampled_from(names[:place]), unique=True, max_size=2)):
            after[name] = wanted
    return draw(st.permutations(names)), after


@SEARCH
@given(
    drawn=graphs(), kinds=st.lists(KINDS, min_size=5, max_size=5), follows=st.booleans(), user_code=USER_CODE
)
def test_graph_with_options_matches_the_oracle(
    drawn: tuple[list[str], dict[str, list[str]]], kinds: list[str], follows: bool, user_code: UserCode
) -> None:
    names, after = drawn

    def value(name: str) -> Any:
        inputs = sorted((each, value(each)) for each in after.get(name, ()))
        own = [name, inputs]
        kind = kinds[NAMES.index(name)]
        return {"call": own, "chain": [own], "group": [own, own], "chord": [[own, own]]}[kind]

    def node(task: Any, wrap: Any, name: str) -> Any:
        kind = kinds[NAMES.index(name)]
        call = task.s(name)
        if kind == "chain":
            return chain(call, wrap.s())
        if kind == "group":
            return group(call, task.s(name))
        return chord([call, task.s(name)], wrap.s()) if kind == "chord" else call

    with env_of(user_code) as env:
        ran: list[str] = []

        @env.app.task(name="give", bind=True, base=user_code.base)
        def give(self: Any, own: str, **inputs: Any) -> Any:
            env.on_run(self)
            ran.append(own)
            return [own, sorted(map(list, inputs.items()))]

        wrap = env.app.task(name="wrap", base=user_code.base)(lambda given: [given])
        drawn_graph = graph({name: node(give, wrap, name) for name in names}, after=after)
        work = chain(drawn_graph, wrap.s()) if follows else drawn_graph
        result = env.add_options(work).apply_async(**user_code.options)
        env.worker.run()
        values = {name: json.loads(json.dumps(value(name))) for name in names}
        found = result.get(timeout=0)
        assert (found == [values]) if follows else (found == values)
        twice = {name for name in names if kinds[NAMES.index(name)] in ("group", "chord")}
        assert sorted(ran) == sorted([*names, *twice])
        env.check_nothing_is_left()


EVERYTHING = UserCode(True, Sets, (Replaces,), keep_the_protocols, {"headers": {"h": 1}}, ({},), False, False)
"""All at once."""


def test_chain_of_many_segments_with_options() -> None:
    with env_of(EVERYTHING) as env:
        more = env.app.task(name="more", base=Sets)(lambda number: number + 1)
        result = chain([more.s(0)] + [more.s()] * 80).apply_async(headers={"h": 1})
        env.worker.run()
        assert result.get(timeout=0) == 81


def test_lazily_added_member_can_be_sent_with_headers() -> None:
    with env_of(EVERYTHING) as env:
        total = env.app.task(name="total", base=Sets)(sum)
        give = env.app.task(name="give", base=Sets)(lambda x: x)

        @env.app.task(name="adds", bind=True, base=Sets)
        def adds(self: Any, x: int) -> int:
            self.add_to_chord(give.s(10), lazy=True).apply_async(headers={"mine": 1})
            self.add_to_chord(give.s(100), lazy=True).set(headers={"mine": 1}).apply_async()
            return x

        result = chord([adds.s(1), give.s(2)], total.s()).apply_async()
        env.worker.run()
        assert result.get(timeout=0) == 113


def test_marks_are_in_the_headers_for_older_workers() -> None:
    """Marks stand among the headers of both."""
    with env_of(EVERYTHING) as env:
        give = env.app.task(name="give", base=Sets)(lambda *given: given)
        chord([chain(give.s(1), give.s(2)), give.s(3)], give.s()).apply_async(headers={"h": 1})
        first, second = env.app.broker.consumer.lease(["celery"], 10).messages
        (following,) = json.loads(first.body)[2]["chain"]
        ((join, number),) = following["options"]["headers"][JOINS]
        assert number == 0
        assert JOINS not in json.loads(first.headers)
        assert json.loads(second.headers)[JOINS] == [[join, 1]]


@SEARCH
@given(flow=flows.flows(), separate=st.booleans(), saved=st.booleans(), id_given=st.booleans())
def test_frozen_workflow_called_again_runs_again(
    flow: Any, separate: bool, saved: bool, id_given: bool
) -> None:
    """Its ids are the same each time, as in Celery."""
    want = expected(flow, ())
    if want.refused:
        return
    with env_of(UserCode(separate, None, (), None, {}, ({},), False, False)) as env:
        call = canvas(flow, env.app.tasks, "f")
        if id_given and call["subtask_type"] != "group":
            call.set(task_id="mine")
        else:
            call.freeze()
        if saved:
            call = signature(json.loads(json.dumps(call)), app=env.app)
        runs, told = +want.runs, +want.told
        for time in (1, 2, 3):
            result = call.apply_async()
            env.worker.run()
            assert env.ledger.ran("f") == Counter({number: time * runs[number] for number in runs})
            assert env.ledger.told["f"] == Counter({number: time * told[number] for number in told})
            assert value_of(result) == want.value
        env.check_nothing_is_left()


@pytest.mark.parametrize("separate", [False, True])
def test_parts_of_a_frozen_workflow_run_again(separate: bool) -> None:
    """Graphs, long chains, replaced and added members, and a body whose id alone is settled."""
    with env_of(UserCode(separate, None, (), None, {}, ({},), False, False)) as env:
        ran: list[str] = []

        @env.app.task(name="give", bind=True)
        def give(self: Any, *given: Any, **named: Any) -> int:
            ran.append("give")
            return len(given) + len(named)

        @env.app.task(name="spread", bind=True)
        def spread(self: Any, *given: Any) -> Any:
            return self.replace(group(give.si(), give.si()))

        @env.app.task(name="adds", bind=True)
        def adds(self: Any) -> int:
            self.add_to_chord(group(give.si(), give.si()))
            self.add_to_chord(chord([give.si()], give.s()), lazy=True).apply_async()
            return 0

        works = {
            "graph": (graph({"a": give.s(), "b": give.s(), "c": give.s()}, after={"c": ["a", "b"]}), 3),
            "graph in a chain": (chain(give.s(), graph({"a": give.s()}), give.s()), 3),
            "long chain": (chain([give.s()] * 70), 70),
            "replaced": (chord([spread.si(), give.si()], spread.s()), 5),
            "added": (chord([adds.si(), give.si()], give.s()), 6),
            "chord of chords": (chord([chord([give.si()], give.s())], chord([give.s()], give.s())), 4),
        }
        for name, (work, count) in works.items():
            work.freeze()
            for _ in range(3):
                ran.clear()
                work.apply_async()
                env.worker.run()
                assert len(ran) == count, name
        for _ in range(3):
            ran.clear()
            chord([give.si()], give.s().set(task_id="settled")).apply_async()
            env.worker.run()
            assert len(ran) == 2
        env.check_nothing_is_left()
