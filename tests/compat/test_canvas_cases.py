"""Runs each canvas case with Celery and with qworker.

Run eagerly, a case gives the same value on both sides. Published, it makes the same messages, except for
ids and the cases in DIFFERENT.
"""

from __future__ import annotations

from typing import Any

import pytest

celery = pytest.importorskip("celery", reason="the test extra installs it")

from celery import canvas as celery_canvas  # noqa: E402
from celery.signals import before_task_publish as celery_publishes  # noqa: E402

from qworker import QWorker, canvas  # noqa: E402
from tests.compat.canvas_cases import (  # noqa: E402
    ALL,
    DIFFERENT,
    app_in_use,
    message,
    namespace,
    plain,
    renamed,
)
from tests.servers import URLS, new_prefix, require  # noqa: E402
from tests.support.beside_celery import BESIDE_CELERY  # noqa: E402
from tests.support.stores import KeepingStore  # noqa: E402

pytestmark = BESIDE_CELERY


RESULTS = {"global_keyprefix": new_prefix()}
OURS: dict[str, Any] = {"backend": URLS["redis"], "result_backend_transport_options": RESULTS}


@pytest.fixture(scope="module")
def of_celery() -> Any:
    """One for the whole module, since tasks of one Celery app are added to every later one."""
    app = celery.Celery("proj", broker="memory://", backend=URLS["redis"], set_as_current=False)
    app.conf.result_backend_transport_options = RESULTS
    yield namespace(app, celery_canvas)
    app.close()


@pytest.fixture
def theirs(of_celery: Any) -> Any:
    of_celery.app.conf.task_always_eager = True
    with app_in_use(of_celery.app):
        yield of_celery
    of_celery.app.conf.task_always_eager = False


@pytest.fixture
def ours() -> Any:
    app = QWorker("proj", broker=KeepingStore(), backend="cache+memory://", task_always_eager=True)
    return namespace(app, canvas)


@pytest.mark.parametrize("name", ALL)
def test_values_equal_celerys(name: str, theirs: Any, ours: Any) -> None:
    build, args = ALL[name]
    expected, got = (build(side).delay(*args) for side in (theirs, ours))
    assert got.get() == expected.get()


@pytest.mark.parametrize("name", ALL)
def test_calling_does_not_change_the_signature(name: str, ours: Any) -> None:
    build, args = ALL[name]
    call = build(ours)
    before = plain(call)
    call.delay(*args)
    assert plain(call) == before


@pytest.mark.parametrize("name", ALL)
def test_types_equal_celerys(name: str, theirs: Any, ours: Any) -> None:
    build, _ = ALL[name]
    expected, got = build(theirs), build(ours)
    assert (got["task"], got["subtask_type"]) == (expected["task"], expected["subtask_type"])
    assert type(got).__name__ == type(expected).__name__.lstrip("_")


MAPPINGS: dict[str, Any] = {
    "map": lambda n: n.xsum.map([[1, 2]]),
    "starmap": lambda n: n.add.starmap([(1, 2)]),
    "starmap with a queue": lambda n: n.add.starmap([(1, 2)]).set(queue="own"),
}
IN_WORKFLOWS: dict[str, tuple[Any, list[str]]] = {
    "chunks": (lambda n: n.add.chunks([(1, 2), (3, 4)], 1), ["far", "far"]),
    "in a group": (
        lambda n: n.group(n.xsum.map([[1]]), n.add.starmap([(1, 2)]), n.mul.starmap([(1, 2)])),
        ["near", "far", "celery"],
    ),
    "at the head of a chain": (lambda n: n.add.starmap([(1, 2)]) | n.xsum.s(), ["far"]),
}
ROUTES = {"add": {"queue": "far"}, "xsum": {"queue": "near"}, "celery.*": {"queue": "wrong"}}


def reroute(app: Any, routes: Any) -> None:
    """Set the routes of a Celery *app*, which caches them in two places."""
    app.conf.task_routes = routes
    app.amqp.flush_routes()
    app.amqp.router = app.amqp.Router()


@pytest.mark.parametrize("name", MAPPINGS)
def test_mapping_is_routed_like_its_task(name: str, of_celery: Any) -> None:
    require("redis")
    queues: list[str] = []

    def note(routing_key: str = "", **more: Any) -> None:
        queues.append(routing_key)

    celery_publishes.connect(note, weak=False)
    reroute(of_celery.app, ROUTES)
    try:
        with app_in_use(of_celery.app):
            MAPPINGS[name](of_celery).apply_async()
    finally:
        celery_publishes.disconnect(note)
        reroute(of_celery.app, None)
    assert queues == queues_of(MAPPINGS[name])
    assert "wrong" not in queues


@pytest.mark.parametrize("name", IN_WORKFLOWS)
def test_mapping_in_a_workflow_is_routed_like_its_task(name: str) -> None:
    """Celery uses the routes of celery.starmap there."""
    build, queues = IN_WORKFLOWS[name]
    assert queues_of(build) == queues


def queues_of(build: Any) -> list[str]:
    """The queues that our calls are routed to with ROUTES."""
    store = KeepingStore()
    app = QWorker("proj", broker=store, task_routes=ROUTES, **OURS)
    build(namespace(app, canvas)).apply_async()
    return [each.envelope.queue for each in store.sent]


@pytest.mark.parametrize("name", [name for name in ALL if name not in DIFFERENT])
def test_messages_equal_celerys(name: str, of_celery: Any) -> None:
    require("redis")
    build, args = ALL[name]
    published: list[Any] = []

    def note(body: Any = None, headers: Any = None, **more: Any) -> None:
        published.append((headers, body))

    celery_publishes.connect(note, weak=False)
    try:
        with app_in_use(of_celery.app):
            build(of_celery).delay(*args)
    finally:
        celery_publishes.disconnect(note)
    expected = [message(headers, *body) for headers, body in published]
    store = KeepingStore()
    ours = QWorker("proj", broker=store, canvas_format="celery", **OURS)
    build(namespace(ours, canvas)).delay(*args)
    got = [message(each.headers, *each.body) for each in store.sent]
    assert renamed(got) == renamed(expected)
