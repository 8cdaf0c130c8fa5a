"""Limits of workflows: oversized results, the RPC result backend, many workflows in one push."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qworker import QWorker, chain, chord, graph, group
from qworker.errors import ChordError, NotSupported, TaskRevoked
from qworker.results.group_result import GroupResult
from qworker.testing import StepWorker
from qworker.worker import Worker
from tests.contract.join_places import MySQLJoinPlace, PostgreSQLJoinPlace
from tests.servers import prefix_of, require
from tests.support.stores import KeepingStore
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.integration

LARGEST = 100_000


def with_tasks(app: QWorker, notified: list[str]) -> QWorker:
    @app.task(name="add")
    def add(x: int, y: int) -> int:
        return x + y

    @app.task(name="large")
    def large(size: int) -> str:
        return "x" * size

    @app.task(name="count")
    def count(values: list[Any]) -> int:
        return len(values)

    @app.task(name="notified")
    def tell(failed: str) -> None:
        notified.append(failed)

    return app


def sqlite(directory: Path) -> tuple[dict[str, Any], Callable[[], None]]:
    return {"broker": f"sqlite:///{directory}/q.db"}, lambda: None


def redis(directory: Path) -> tuple[dict[str, Any], Callable[[], None]]:
    url, options = require("redis"), {"global_keyprefix": prefix_of(directory)}
    named = {"broker_transport_options": options, "result_backend_transport_options": options}
    return {"broker": url, "backend": url, **named}, lambda: None


def postgresql(directory: Path, kind: Any = PostgreSQLJoinPlace) -> tuple[dict[str, Any], Callable[[], None]]:
    place = kind(directory)
    return {"broker": place.place.url, "backend": f"db+{place.place.url}"}, place.clear


def mariadb(directory: Path) -> tuple[dict[str, Any], Callable[[], None]]:
    return postgresql(directory, MySQLJoinPlace)


@pytest.mark.parametrize("in_format", ["shared", "celery"])
@pytest.mark.parametrize("place", [sqlite, redis, postgresql, mariadb])
def test_member_with_an_oversized_result_fails_the_workflow(
    place: Callable[[Path], Any], in_format: str, tmp_path: Path
) -> None:
    settings, clear = place(tmp_path)
    notified: list[str] = []
    app = with_tasks(
        QWorker(
            "limits",
            message_max_bytes=LARGEST,
            canvas_format=in_format if place is redis else "shared",
            set_as_current=False,
            **settings,
        ),
        notified,
    )
    add, large, count = app.tasks["add"], app.tasks["large"], app.tasks["count"]
    with StepWorker(app) as worker:
        body = count.s().on_error(app.tasks["notified"].s())
        result = chord([add.s(1, 2), large.s(LARGEST + 1), add.s(3, 4)], body).delay()
        whole = chord([large.s(LARGEST // 4)] * 3, count.s()).delay()
        nodes = graph({"one": large.s(LARGEST + 1), "two": add.si(1, 2)}, after={"two": ["one"]}).delay()
        worker.run()
        with pytest.raises(ChordError, match=r"Dependency .* raised EncodeError.*message_max_bytes"):
            result.get(timeout=PATIENCE, follow_parents=False)
        assert whole.get(timeout=PATIENCE) == 3
        assert nodes["two"].state == "FAILURE"
        worker.run()
    assert notified == [result.id]
    assert app.backend.joins.count() == 0
    assert app.broker.admin.queues() == []
    app.close()
    clear()


@pytest.fixture
def over_rpc(tmp_path: Path) -> Iterator[QWorker]:
    app = with_tasks(
        QWorker(
            "rpc",
            broker=require("rabbitmq"),
            backend="rpc://",
            task_default_queue=prefix_of(tmp_path)[:-1],
            set_as_current=False,
        ),
        [],
    )
    worker = Worker(app, pool="threads", concurrency=2)
    worker.start()
    yield app
    worker.stop()
    app.broker.admin.purge(app.conf.task_default_queue)
    app.close()


def test_chains_and_groups_return_results_over_rpc(over_rpc: QWorker) -> None:
    add = over_rpc.tasks["add"]
    assert chain(add.s(1, 2), add.s(3), add.s(4)).delay().get(timeout=PATIENCE) == 10
    found = group(add.s(number, number) for number in range(50)).delay()
    assert isinstance(found, GroupResult)
    assert found.get(timeout=PATIENCE) == [2 * number for number in range(50)]
    assert found.completed_count() == 50
    late = (add.s(1, 2) | group(add.s(1), add.s(2))).delay()
    assert late.get(timeout=PATIENCE) == [4, 5]


@pytest.mark.parametrize("how", ["option", "task"])
def test_chain_with_an_ignored_first_call_returns_its_result_over_rpc(over_rpc: QWorker, how: str) -> None:
    """Its message did not name a reply queue, so the last result was lost."""
    add = over_rpc.tasks["add"]
    silent = over_rpc.task(name="silent", ignore_result=True)(lambda x: x)
    first = silent.s(3) if how == "task" else add.s(1, 2).set(ignore_result=True)
    assert chain(first, add.s(4)).delay().get(timeout=PATIENCE) == 7


def test_failed_chain_raises_for_the_caller_over_rpc(over_rpc: QWorker) -> None:
    """The failed call sends the results of the calls that never run."""
    add = over_rpc.tasks["add"]
    failed = chain(add.s("x", 1), add.s(3), add.s(4)).delay()
    assert isinstance(failed.get(timeout=PATIENCE, propagate=False), TypeError)
    assert isinstance(failed.parent.get(timeout=PATIENCE, propagate=False), TypeError)
    revoked = chain(add.s(1, 2).set(countdown=0.2), add.s(3)).delay()
    revoked.parent.revoke()
    assert isinstance(revoked.get(timeout=PATIENCE, propagate=False), TaskRevoked)


def test_chord_over_rpc_is_refused(over_rpc: QWorker) -> None:
    add, count = over_rpc.tasks["add"], over_rpc.tasks["count"]
    for call in (
        chord([add.s(1, 2), add.s(3, 4)], count.s()),
        chain(add.s(1, 2), group(add.s(1), add.s(2)), count.s()),
        graph({"one": add.s(1, 2), "two": add.si(3, 4)}, after={"two": ["one"]}),
    ):
        with pytest.raises(NotSupported, match="rpc"):
            call.delay()


def test_many_workflows_are_published_in_one_push() -> None:
    store = KeepingStore()
    app = with_tasks(QWorker("many", broker=store, backend="cache+memory://", set_as_current=False), [])
    add, count = app.tasks["add"], app.tasks["count"]
    app.send_many(
        [
            add.s(1, 2),
            add.s(1, 2) | add.s(3),
            group(add.s(number, 1) for number in range(10)),
            chord([add.s(number, 1) for number in range(10)], count.s()),
            group(chain(add.s(number, 1), add.s(2)) for number in range(10)),
        ]
    )
    assert [len(push) for push in store.pushes] == [1 + 1 + 10 + 10 + 10]
