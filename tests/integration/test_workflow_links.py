"""Callbacks and errbacks that are set on workflows, wherever these stand: each is called, as often as it is
to be, in both formats of joins."""

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


class House:
    """An app with a worker that is stepped; *told*: what was called, and how often."""

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
        self.told: Counter[str] = Counter()

        @self.app.task(name="one")
        def one(*values: Any) -> int:
            return 1

        @self.app.task(name="fail")
        def fail(*values: Any) -> None:
            raise ValueError("no")

        @self.app.task(name="tell")
        def tell(*values: Any) -> None:
            self.told[values[-1]] += 1

        self.one, self.fail, self.tell = one, fail, tell
        self.worker = StepWorker(self.app, concurrency=2)


@pytest.fixture(params=["shared", "celery"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    house = House(request.param, tmp_path)
    yield house
    house.app.close()


Flow = Callable[[House, Callable[..., Any]], Any]


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
def test_what_is_set_on_a_workflow_is_called(house: House, case: Case, how: str) -> None:
    def on(work: Any) -> Any:
        return HOWS[how](work, links)

    links = {"link": house.tell.si("callback"), "link_error": house.tell.si("errback")}
    made = case.make(house, on)
    made.apply_async()
    house.worker.run()
    assert (house.told["callback"], house.told["errback"]) == (case.callbacks, case.errbacks)
    house.told.clear()
    made.apply_async()  # what was made is not changed by being called
    house.worker.run()
    assert (house.told["callback"], house.told["errback"]) == (case.callbacks, case.errbacks)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_is_called_in_an_eager_run(house: House, case: Case) -> None:
    links = {"link": house.tell.si("callback"), "link_error": house.tell.si("errback")}
    made = case.make(house, lambda work: work.set(**links))
    try:
        made.apply()
    except ValueError:  # of a member of a header, as in Celery
        pass
    house.worker.run()
    assert house.told["callback"] == case.callbacks


@pytest.mark.parametrize("body", ["one", "group"])
def test_what_is_set_and_what_the_call_says_are_both_called(house: House, body: str) -> None:
    one, fail, tell = house.one, house.fail, house.tell
    ending = fail.s() if body == "one" else group(fail.s(), one.s())
    work = chord([one.si()], ending.set(link_error=tell.si("body's"))).set(link_error=tell.si("chord's"))
    work.apply_async(link_error=tell.si("call's"))
    house.worker.run()
    assert house.told == {"body's": 1, "chord's": 1, "call's": 1}


@pytest.mark.parametrize("where", ["header", "body"])
def test_an_errback_of_a_chord_with_a_chord_in_its_header_is_called_once(house: House, where: str) -> None:
    failing = [house.one.si(), house.fail.si()], house.one.s()
    inner = chord(*failing) if where == "header" else chord([house.one.si()], house.fail.s())
    outer = chord([house.one.si(), inner], house.one.s())
    outer.link_error(house.tell.si("errback"))
    outer.apply_async()
    house.worker.run()
    # Of a body that runs and fails Celery's format does not say that the errback is that of both.
    both = where == "body" and house.app.conf.canvas_format == "celery"
    assert house.told == {"errback": 2 if both else 1}


def test_a_group_whose_header_fails_has_the_error_of_the_member(house: House) -> None:
    seen: list[str] = []

    @house.app.task(name="see", autoretry_for=(ValueError,))
    def see(request: Any, error: BaseException, traceback: str) -> None:
        seen.append(repr(error))

    body = group(house.one.s(), see.s(1, 2)).set(link_error=see.s())
    result = chord([house.one.si(), house.fail.si()], body).apply_async()
    plain = chord([house.fail.si()], house.one.s()).apply_async()
    house.worker.run()
    assert [repr(house.app.AsyncResult(each.id).result) for each in result.results] == [
        "ValueError('no')"
    ] * 2
    assert seen == ["ValueError('no')"] * 2
    assert isinstance(house.app.AsyncResult(plain.id).result, ChordError)


@pytest.mark.parametrize("house", ["celery"], indirect=True)
def test_the_errbacks_of_a_body_whose_header_failed_are_its_children(house: House) -> None:
    """In Celery's format, where they are not called by a run of the body, as by Celery."""

    @house.app.task(name="failed")
    def failed(task_id: str) -> str:
        return task_id

    result = chord([house.fail.si()], house.one.s().on_error(failed.s())).apply_async()
    house.worker.run()
    (told,) = result.children
    assert [each.get(timeout=1) for each in told.children] == [result.id]


@pytest.mark.parametrize("kind", ["one", "chain", "group", "chord"])
def test_errbacks_that_celery_leaves_among_the_options_of_a_body_are_called(kind: str) -> None:
    one = Signature("one", task_id="one")
    body = {
        "one": one,
        "chain": chain(one, Signature("two", task_id="two")),
        "group": group(one, Signature("two", task_id="two")),
        "chord": chord([one], Signature("two", task_id="two")),
    }[kind]
    body["options"]["link_error"] = [Signature("tell")]
    told = [(call.id, len(call.options.get("link_error", ()))) for call, _ in first_calls(body)]
    expected = {"one": [("one", 1)], "chain": [("one", 1)], "group": [("one", 1), ("two", 1)]}
    assert sorted(told) == expected.get(kind, [("one", 0), ("two", 1)])


def test_a_graph_calls_nothing_back_and_tells_errbacks(house: House) -> None:
    errback = house.tell.si("errback")
    graph({"a": house.fail.si(), "b": house.one.si()}).set(link_error=errback).apply_async()
    house.worker.run()
    assert house.told == {"errback": 1}
    with pytest.raises(TypeError, match="calls nothing back"):
        graph({"a": house.one.si()}).set(link=errback).apply_async()
    (graph({"a": house.one.si()}).set(link=errback) | house.one.s()).apply_async()
    house.worker.run()
    assert house.told == {"errback": 2}
    with pytest.raises(TypeError, match="a group takes no link="):
        house.one.chunks([(1,), (2,)], 1).set(link=errback).apply_async()


@pytest.mark.parametrize("late", [True, False])
def test_a_member_that_is_ignored_fails_its_chord(house: House, late: bool) -> None:
    @house.app.task(name="ignored", acks_late=late)
    def ignored() -> None:
        raise Ignore

    body = house.one.s().on_error(house.tell.si("errback"))
    result = chord([ignored.si(), house.one.si()], body, app=house.app).apply_async()
    house.worker.run()
    assert isinstance(result.result, ChordError)
    assert house.told == {"errback": 1}
    assert house.app.AsyncResult(result.parent.results[0].id).state == "PENDING"
