"""``Task.replace`` and ``add_to_chord`` compared with Celery's: the messages sent for the same request."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

celery = pytest.importorskip("celery", reason="the test extra installs it")

from celery import canvas as celery_canvas  # noqa: E402
from celery._state import _task_stack  # noqa: E402
from celery.exceptions import Ignore as CeleryIgnore  # noqa: E402
from celery.signals import before_task_publish as celery_publishes  # noqa: E402

from qworker import QWorker, canvas  # noqa: E402
from qworker.errors import Replaced  # noqa: E402
from qworker.message.context import Context, pop, push  # noqa: E402
from qworker.message.protocol import Body  # noqa: E402
from tests.compat.canvas_cases import app_in_use, message, namespace, renamed  # noqa: E402
from tests.servers import URLS, new_prefix, require  # noqa: E402
from tests.support.beside_celery import BESIDE_CELERY  # noqa: E402
from tests.support.stores import KeepingStore  # noqa: E402

pytestmark = BESIDE_CELERY

RESULTS = {"global_keyprefix": new_prefix()}
SIGNATURES: dict[str, Callable[[Any], Any]] = {
    "a task": lambda n: n.add.s(1, 2),
    "a task with callbacks": lambda n: linked(n.add.s(1, 2), n.mul.s(9)),
    "a chain": lambda n: n.add.s(1, 2) | n.mul.s(3) | n.add.s(4),
    "a group": lambda n: n.group(n.add.s(1, 2), n.mul.s(3, 4)),
    "a chord": lambda n: n.chord([n.add.s(1, 2), n.mul.s(3, 4)], n.xsum.s()),
    "a chain that ends in a group": lambda n: n.add.s(1, 2) | n.group(n.mul.s(3), n.mul.s(4)),
    "a chain with a chord": lambda n: n.add.s(1, 2) | n.group(n.mul.s(3), n.mul.s(4)) | n.xsum.s(),
    "a chain of a chord and a task": lambda n: n.chain(
        n.group(n.mul.s(3, 1), n.mul.s(4, 1)), n.xsum.s(), n.add.s(1)
    ),
}


def linked(call: Any, callback: Any) -> Any:
    call.link(callback)
    return call


def options(call: Any, task_id: str, **more: Any) -> Any:
    return {**call, "options": {"task_id": task_id, "reply_to": None, **more}}


PLACES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "alone": lambda n: {},
    "with links": lambda n: {
        "callbacks": [options(n.mul.s(7), "callback")],
        "errbacks": [options(n.count.s(), "errback")],
    },
    "in a chain": lambda n: {"chain": [options(n.add.s(6), "last"), options(n.mul.s(5), "next")]},
    "in a chord": lambda n: {"group": "a group", "group_index": 3, "chord": options(n.xsum.s(), "body")},
}


ON_THE_CHORD = "Celery puts the callback on the chord, which passes it on to its body; here it is on the body"
DIFFERENT = {
    ("a chain that ends in a group", "with links"): ON_THE_CHORD,
    ("a chain with a chord", "with links"): ON_THE_CHORD,
    ("a chain of a chord and a task", "with links"): "Celery loses the callbacks and errbacks of the task",
}
"""Combinations whose messages differ, and why."""


def plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def by_celery(n: SimpleNamespace, place: dict[str, Any], run: Callable[[Any], Any]) -> list[Any]:
    published: list[Any] = []

    def note(body: Any = None, headers: Any = None, **more: Any) -> None:
        published.append((headers, body))

    celery_publishes.connect(note, weak=False)
    n.add.push_request(
        id="the task", root_id="root", parent_id="parent", called_directly=False, is_eager=False, **place
    )
    _task_stack.push(n.add)
    try:
        with app_in_use(n.app):
            run(n.add)
    finally:
        _task_stack.pop()
        n.add.pop_request()
        celery_publishes.disconnect(note)
    return published


def by_us(n: SimpleNamespace, place: dict[str, Any], run: Callable[[Any], Any]) -> None:
    embed = {name: place.get(name) for name in ("callbacks", "errbacks", "chain", "chord")}
    headers = {"id": "the task", "task": "add", "root_id": "root", "parent_id": "parent", "retries": 0}
    headers |= {name: place.get(name) for name in ("group", "group_index")}
    token = push(Context.from_message(headers, Body((), {}, embed), task=n.add), n.add)
    try:
        run(n.add)
    finally:
        pop(token)


@pytest.fixture(scope="module")
def theirs() -> Any:
    app = celery.Celery("proj", broker="memory://", backend=require("redis"), set_as_current=False)
    app.conf.result_backend_transport_options = RESULTS
    yield namespace(app, celery_canvas)
    app.close()


@pytest.fixture
def ours() -> Any:
    store = KeepingStore()
    app = QWorker(
        "proj",
        broker=store,
        backend=URLS["redis"],
        result_backend_transport_options=RESULTS,
        canvas_format="celery",
        set_as_current=False,
    )
    made = namespace(app, canvas)
    made.store = store
    yield made
    app.close()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", SIGNATURES)
def test_messages_of_a_replacement_equal_celerys(name: str, place: str, theirs: Any, ours: Any) -> None:
    def replaced(task: Any, n: Any) -> None:
        with pytest.raises((CeleryIgnore, Replaced)):
            task.replace(SIGNATURES[name](n))

    sent = by_celery(theirs, plain(PLACES[place](theirs)), lambda task: replaced(task, theirs))
    by_us(ours, plain(PLACES[place](ours)), lambda task: replaced(task, ours))
    expected = [message(headers, *body) for headers, body in sent]
    got = [message(each.headers, *each.body) for each in ours.store.sent]
    assert (renamed(got) == renamed(expected)) is ((name, place) not in DIFFERENT)
    nesting = [headers["replaced_task_nesting"] for headers, _ in sent]
    assert [each.headers["replaced_task_nesting"] for each in ours.store.sent] == nesting
    assert {each.headers["root_id"] for each in ours.store.sent} == {
        headers["root_id"] for headers, _ in sent
    }


@pytest.mark.parametrize("lazy", [False, True])
def test_member_added_to_a_chord_uses_celerys_keys(lazy: bool, theirs: Any, ours: Any) -> None:
    """Its message equals Celery's except for the index: here it comes after all others."""
    group = uuid4().hex
    place = {"group": group, "group_index": 1, "chord": options(theirs.xsum.s(), "body")}
    more = []

    def added(task: Any, n: Any) -> None:
        client = theirs.app.backend.client
        key = theirs.app.backend.get_key_for_group(group, ".t")
        n.app.backend.joins.set_size(group, 2) if n is ours else client.set(key[:-2] + b".s", 2)
        client.delete(key)
        call = task.add_to_chord(n.mul.s(3, 4), lazy=lazy)
        if lazy:
            call.delay()
        more.append(client.get(key))
        client.delete(key, key[:-2] + b".s")

    sent = by_celery(theirs, plain(place), lambda task: added(task, theirs))
    by_us(ours, plain(place), lambda task: added(task, ours))
    (expected,) = [message(headers, *body) for headers, body in sent]
    (got,) = [message(each.headers, *each.body) for each in ours.store.sent]
    assert (expected.pop("index"), got.pop("index")) == (1, 2)
    assert renamed([got]) == renamed([expected])
    assert more == [b"1", b"1"]
