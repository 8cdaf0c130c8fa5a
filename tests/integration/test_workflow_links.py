"""Callbacks and errbacks of workflows, wherever these are: each is called the right number of times, in both
formats of joins."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from qworker import QWorker, Signature, chain, chord, graph, group
from qworker.canvas.membership import first_calls
from qworker.errors import ChordError, Ignore
from qworker.testing import StepWorker
from tests.servers import prefix_of, require

pytestmark = pytest.mark.integration


class Env:
    """An app with a StepWorker. notified: how often each callback and errback was called."""

    def __init__(self, kind: str, directory: Path) -> None:
        places: dict[str, Any] = {"broker": f"sqlite:///{directory}/queue.db"}
        if kind == "celery":
            url, options = require("redis"), {"global_keyprefix": prefix_of(directory)}
            places = {
                "broker": url,
                "backend": url,
                "broker_transport_options": options,
                "result_backend_transport_options": options,
                "canvas_format": "celery",
            }
        self.app = QWorker("links", set_as_current=False, **places)
        self.notified: Counter[str] = Counter()

        @self.app.task(name="one")
        def one(*values: Any) -> int:
            return 1

        @self.app.task(name="fail")
        def fail(*values: Any) -> None:
            raise ValueError("no")

        @self.app.task(name="tell")
        def tell(*values: Any) -> None:
            self.notified[values[-1]] += 1

        self.one, self.fail, self.tell = one, fail, tell
        self.worker = StepWorker(self.app, concurrency=2)


@pytest.fixture(params=["shared", "celery"])
def env(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Env]:
    env = Env(request.param, tmp_path)
    yield env
    env.app.close()


Flow = Callable[[Env, Callable[..., Any]], Any]


class Case(NamedTuple):
    """make: a workflow, in which ``on(work)`` says where the option is set. callbacks, errbacks: how often
    each is called."""

    name: str
    make: Flow
    callbacks: int = 0
    errbacks: int = 0


CASES = [
    Case("a task", lambda h, on: on(h.one.si()), 1),
    Case("a chain", lambda h, on: on(h.one.si() | h.one.s()), 1),
    Case("a chain that fails", lambda h, on: on(h.fail.si() | h.one.s()), 0, 1),
    Case("a group", lambda h, on: on(group(h.one.si(), h.one.si())), 2),
    Case("a group that fails", lambda h, on: on(group(h.one.si(), h.fail.si())), 1, 1),
    Case("a group in a group", lambda h, on: group(on(group(h.one.si(), h.fail.si())), h.fail.si()), 1, 1),
    Case("a group of one in a chain", lambda h, on: chain(h.one.si(), on(group(h.one.si())), h.one.s()), 1),
    Case("a group at the end of a chain", lambda h, on: h.one.si() | on(group(h.one.s(), h.fail.s())), 1, 1),
    Case("a header", lambda h, on: chord(on(group(h.one.si(), h.fail.si())), h.one.s()), 1, 1),
    Case("a chord", lambda h, on: on(chord([h.one.si()], h.one.s())), 1),
    Case("a chord whose header fails", lambda h, on: on(chord([h.one.si(), h.fail.si()], h.one.s())), 0, 1),
    Case("a chord whose body fails", lambda h, on: on(chord([h.one.si()], h.fail.s())), 0, 1),
    Case("a chord whose body is a chain", lambda h, on: on(chord([h.one.si()], h.one.s() | h.one.s())), 1),
    Case(
        "a chord whose body is a group",
        lambda h, on: on(chord([h.one.si()], group(h.one.s(), h.fail.s()))),
        1,
        1,
    ),
    Case("a body that is a group", lambda h, on: chord([h.one.si()], on(group(h.one.s(), h.fail.s()))), 1, 1),
    Case(
        "a body that is a chord", lambda h, on: chord([h.one.si()], on(chord([h.fail.s()], h.one.s()))), 0, 1
    ),
    Case("a chord in a chain", lambda h, on: chain(h.one.si(), on(chord([h.one.s()], h.one.s()))), 1),
    Case(
        "a chain that ends in a chord", lambda h, on: on(chain(h.one.si(), chord([h.one.s()], h.one.s()))), 1
    ),
    Case(
        "a chord in a header",
        lambda h, on: chord([on(chord([h.one.si()], h.one.s())), h.one.si()], h.one.s()),
        1,
    ),
    Case(
        "a chord that fails in a header",
        lambda h, on: chord([on(chord([h.fail.si()], h.one.s()))], h.one.s()),
        0,
        1,
    ),
    Case(
        "a chord of a chord that fails",
        lambda h, on: on(chord([chord([h.fail.si()], h.one.s())], h.one.s())),
        0,
        1,
    ),
]
HOWS: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "set()": lambda work, links: work.set(**links),
    "set() before it was JSON": lambda work, links: Signature.from_dict(
        json.loads(json.dumps(work.set(**links))), work.app
    ),
    "a list": lambda work, links: work.set(**{name: [each] for name, each in links.items()}),
}


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_callbacks_and_errbacks_of_workflows_are_called(env: Env, case: Case, how: str) -> None:
    def on(work: Any) -> Any:
        return HOWS[how](work, links)

    links = {"link": env.tell.si("callback"), "link_error": env.tell.si("errback")}
    made = case.make(env, on)
    made.apply_async()
    env.worker.run()
    assert (env.notified["callback"], env.notified["errback"]) == (case.callbacks, case.errbacks)
    env.notified.clear()
    made.apply_async()  # what was made is not changed by being called
    env.worker.run()
    assert (env.notified["callback"], env.notified["errback"]) == (case.callbacks, case.errbacks)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_callbacks_of_workflows_are_called_in_eager_mode(env: Env, case: Case) -> None:
    links = {"link": env.tell.si("callback"), "link_error": env.tell.si("errback")}
    made = case.make(env, lambda work: work.set(**links))
    try:
        made.apply()
    except ValueError:  # of a member of a header, as in Celery
        pass
    env.worker.run()
    assert env.notified["callback"] == case.callbacks


@pytest.mark.parametrize("body", ["one", "group"])
def test_errbacks_of_workflow_and_call_are_all_called(env: Env, body: str) -> None:
    one, fail, tell = env.one, env.fail, env.tell
    ending = fail.s() if body == "one" else group(fail.s(), one.s())
    work = chord([one.si()], ending.set(link_error=tell.si("body's"))).set(link_error=tell.si("chord's"))
    work.apply_async(link_error=tell.si("call's"))
    env.worker.run()
    assert env.notified == {"body's": 1, "chord's": 1, "call's": 1}


@pytest.mark.parametrize("where", ["header", "body"])
def test_errback_of_a_chord_with_a_nested_chord_is_called_once(env: Env, where: str) -> None:
    failing = [env.one.si(), env.fail.si()], env.one.s()
    inner = chord(*failing) if where == "header" else chord([env.one.si()], env.fail.s())
    outer = chord([env.one.si(), inner], env.one.s())
    outer.link_error(env.tell.si("errback"))
    outer.apply_async()
    env.worker.run()
    # Of a body that runs and fails Celery's format does not say that the errback is that of both.
    both = where == "body" and env.app.conf.canvas_format == "celery"
    assert env.notified == {"errback": 2 if both else 1}


def test_group_body_of_a_failed_header_has_the_members_error(env: Env) -> None:
    seen: list[str] = []

    @env.app.task(name="see", autoretry_for=(ValueError,))
    def see(request: Any, error: BaseException, traceback: str) -> None:
        seen.append(repr(error))

    body = group(env.one.s(), see.s(1, 2)).set(link_error=see.s())
    result = chord([env.one.si(), env.fail.si()], body).apply_async()
    plain = chord([env.fail.si()], env.one.s()).apply_async()
    env.worker.run()
    assert [repr(env.app.AsyncResult(each.id).result) for each in result.results] == ["ValueError('no')"] * 2
    assert seen == ["ValueError('no')"] * 2
    assert isinstance(env.app.AsyncResult(plain.id).result, ChordError)


@pytest.mark.parametrize("env", ["celery"], indirect=True)
def test_errbacks_of_a_body_with_a_failed_header_are_its_children(env: Env) -> None:
    """In Celery's format, in which the body does not run to call them, like in Celery."""

    @env.app.task(name="failed")
    def failed(task_id: str) -> str:
        return task_id

    result = chord([env.fail.si()], env.one.s().on_error(failed.s())).apply_async()
    env.worker.run()
    (notified,) = result.children
    assert [each.get(timeout=1) for each in notified.children] == [result.id]


@pytest.mark.parametrize("kind", ["one", "chain", "group", "chord"])
def test_errbacks_in_the_options_of_a_body_are_called(kind: str) -> None:
    one = Signature("one", task_id="one")
    body = {
        "one": one,
        "chain": chain(one, Signature("two", task_id="two")),
        "group": group(one, Signature("two", task_id="two")),
        "chord": chord([one], Signature("two", task_id="two")),
    }[kind]
    body["options"]["link_error"] = [Signature("tell")]
    notified = [(call.id, len(call.options.get("link_error", ()))) for call, _ in first_calls(body)]
    expected = {"one": [("one", 1)], "chain": [("one", 1)], "group": [("one", 1), ("two", 1)]}
    assert sorted(notified) == expected.get(kind, [("one", 0), ("two", 1)])


def test_graph_calls_errbacks_but_no_callbacks(env: Env) -> None:
    errback = env.tell.si("errback")
    graph({"a": env.fail.si(), "b": env.one.si()}).set(link_error=errback).apply_async()
    env.worker.run()
    assert env.notified == {"errback": 1}
    with pytest.raises(TypeError, match="takes no callback"):
        graph({"a": env.one.si()}).set(link=errback).apply_async()
    (graph({"a": env.one.si()}).set(link=errback) | env.one.s()).apply_async()
    env.worker.run()
    assert env.notified == {"errback": 2}
    with pytest.raises(TypeError, match="a group takes no link="):
        env.one.chunks([(1,), (2,)], 1).set(link=errback).apply_async()


@pytest.mark.parametrize("late", [True, False])
def test_ignored_member_fails_its_chord(env: Env, late: bool) -> None:
    @env.app.task(name="ignored", acks_late=late)
    def ignored() -> None:
        raise Ignore

    body = env.one.s().on_error(env.tell.si("errback"))
    result = chord([ignored.si(), env.one.si()], body, app=env.app).apply_async()
    env.worker.run()
    assert isinstance(result.result, ChordError)
    assert env.notified == {"errback": 1}
    assert env.app.AsyncResult(result.parent.results[0].id).state == "PENDING"
