"""Celery's canvas, case by case: each is built of the names that both libraries have, and run by both.

Run eagerly, a case gives the same value on both sides. Published, it makes the same messages, but for the
ids, and but for what is told in DIFFERENT.
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
from tests.servers import URLS, require  # noqa: E402
from tests.support.stores import KeepingStore  # noqa: E402

pytestmark = [
    pytest.mark.compat,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::PendingDeprecationWarning"),
]


@pytest.fixture(scope="module")
def of_celery() -> Any:
    """One for the whole module: Celery lets tasks of one app be tasks of every later one."""
    app = celery.Celery("proj", broker="memory://", backend=URLS["redis"], set_as_current=False)
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
def test_the_value_is_celerys(name: str, theirs: Any, ours: Any) -> None:
    build, args = ALL[name]
    expected, got = (build(side).delay(*args) for side in (theirs, ours))
    assert got.get() == expected.get()


@pytest.mark.parametrize("name", ALL)
def test_what_it_is_made_of_stays_as_it_was(name: str, ours: Any) -> None:
    build, args = ALL[name]
    call = build(ours)
    before = plain(call)
    call.delay(*args)
    assert plain(call) == before


@pytest.mark.parametrize("name", ALL)
def test_the_types_are_celerys(name: str, theirs: Any, ours: Any) -> None:
    build, _ = ALL[name]
    expected, got = build(theirs), build(ours)
    assert (got["task"], got["subtask_type"]) == (expected["task"], expected["subtask_type"])
    assert type(got).__name__ == type(expected).__name__.lstrip("_")


@pytest.mark.parametrize("name", [name for name in ALL if name not in DIFFERENT])
def test_the_messages_are_celerys(name: str, of_celery: Any) -> None:
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
    ours = QWorker("proj", broker=store, backend=URLS["redis"], canvas_format="celery")
    build(namespace(ours, canvas)).delay(*args)
    got = [message(each.headers, *each.body) for each in store.sent]
    assert renamed(got) == renamed(expected)
