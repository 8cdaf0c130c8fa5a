"""Workflows drawn at random, run by a whole worker on every store, and held against plain Python.

What is compared: the value, how often each call ran and each errback was told, what ended before what, that
every result has ended, and that nothing is left. See tests/support/flows.py.

``TEST_QWORKER_FLOWS=300`` draws as many batches for each store, others each time.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from qworker import QWorker, signature
from qworker.errors import PublishError
from qworker.worker import Worker
from tests.contract.join_places import MySQLJoinPlace, PostgreSQLJoinPlace
from tests.contract.place_amqp import AMQPPlace
from tests.contract.place_redis import RedisPlace
from tests.support import flows
from tests.support.flow_runs import Ledger, is_ready, tree, value_of
from tests.support.flows import Expected, canvas, expected, has_failed

pytestmark = pytest.mark.integration

BATCHES = int(os.environ.get("TEST_QWORKER_FLOWS", "0"))
SEARCH = settings(
    max_examples=BATCHES or 6,
    derandomize=not BATCHES,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
    report_multiple_bugs=False,
)
"""Failures are not shrunk: a flow that hangs takes seconds."""
QUIET = 5.0
"""Seconds without progress after which a flow is considered to hang."""


class Place:
    """A worker in this process, on one broker and one result store."""

    def __init__(self, app: QWorker, clear: Any = lambda: None) -> None:
        self.app = app
        self.clear = clear
        self.ledger = Ledger(app)
        self.names = itertools.count()
        self.worker = Worker(app, pool="threads", concurrency=4)
        self.worker.start()
        self.all: dict[str, Expected] = {}

    def run(self, batch: list[Any], dicts: bool, many: bool) -> None:
        """Call all flows of *batch*, wait until they have ended, and compare."""
        calls, running = [], []
        for flow in batch:
            name = f"f{next(self.names)}"
            given = () if many or not next(self.names) % 3 else ("x",)
            call = canvas(flow, self.app.tasks, name)
            if dicts:
                call = signature(json.loads(json.dumps(call)), app=self.app)
            want = expected(flow, given)
            if want.refused:
                with pytest.raises(PublishError, match="ignored"):
                    call.apply_async(given)
                assert not self.ledger.runs[name]
                continue
            calls.append((call, given))
            running.append((flow, name, want))
        if many:
            results = self.app.send_many([call for call, _ in calls])
        else:
            results = [call.apply_async(args) for call, args in calls]
        waiting = list(zip(running, results, strict=True))
        self.ledger.changed = time.monotonic()
        while waiting := [each for each in waiting if not self.has_ended(*each)]:
            if time.monotonic() - self.ledger.changed > QUIET:
                break
            time.sleep(0.002)
        for (flow, name, want), result in zip(running, results, strict=True):
            self.compare(flow, name, want, result)
            self.all[name] = want

    def has_ended(self, running: Any, result: Any) -> bool:
        _, name, want = running
        ledger = self.ledger
        if ledger.ran(name) != +want.runs or ledger.told[name] != want.told:
            return False
        return all(map(is_ready, tree(result)))

    def compare(self, flow: Any, name: str, want: Expected, result: Any) -> None:
        shape = repr(flow)
        assert dict(self.ledger.ran(name)) == dict(+want.runs), shape
        assert dict(self.ledger.told[name]) == dict(want.told), shape
        self.ledger.order_kept(name, want.before)
        assert not [each for each in tree(result) if not is_ready(each)], shape
        assert value_of(result) == want.value, shape

    def close(self) -> None:
        try:
            self.worker.stop()
            for name, want in self.all.items():
                assert dict(self.ledger.ran(name)) == dict(+want.runs), "a call ran again"
                assert dict(self.ledger.told[name]) == dict(want.told)
            assert self.app.backend.joins.count() == 0
            assert self.app.broker.admin.dead(self.app.conf.task_default_queue) == []
        finally:
            self.app.close()
            self.clear()


def sqlite(directory: Path) -> Place:
    return Place(QWorker("flows", broker=f"sqlite:///{directory}/q.db", set_as_current=False))


def sqlite_and_files(directory: Path) -> Place:
    return Place(
        QWorker(
            "flows",
            broker=f"sqlite:///{directory}/q.db",
            backend=f"file://{directory}/results",
            set_as_current=False,
        )
    )


def sqlite_and_memory(directory: Path) -> Place:
    broker = f"sqlite:///{directory}/q.db"
    return Place(QWorker("flows", broker=broker, backend="cache+memory://", set_as_current=False))


def redis_shared(directory: Path, canvas_format: str = "shared") -> Place:
    place = RedisPlace(directory)
    options = {"global_keyprefix": place.prefix}
    app = QWorker(
        "flows",
        broker=place.url,
        backend=place.url,
        broker_transport_options=options,
        result_backend_transport_options=options,
        canvas_format=canvas_format,
        set_as_current=False,
    )
    return Place(app, place.clear)


def redis_celery(directory: Path) -> Place:
    return redis_shared(directory, "celery")


def postgresql(directory: Path, kind: Any = PostgreSQLJoinPlace) -> Place:
    place = kind(directory)
    url = place.place.url
    return Place(QWorker("flows", broker=url, backend=f"db+{url}", set_as_current=False), place.clear)


def mariadb(directory: Path) -> Place:
    return postgresql(directory, MySQLJoinPlace)


def rabbitmq_and_redis(directory: Path) -> Place:
    rabbitmq, redis = AMQPPlace(directory), RedisPlace(directory)
    app = QWorker(
        "flows",
        broker=rabbitmq.url,
        backend=redis.url,
        task_default_queue=f"{rabbitmq.queues.prefix}q",
        result_backend_transport_options={"global_keyprefix": redis.prefix},
        set_as_current=False,
    )

    def clear() -> None:
        rabbitmq.clear()
        redis.clear()

    return Place(app, clear)


PLACES = {
    "sqlite": sqlite,
    "sqlite+files": sqlite_and_files,
    "sqlite+memory": sqlite_and_memory,
    "redis": redis_shared,
    "redis, Celery's format": redis_celery,
    "postgresql": postgresql,
    "mariadb": mariadb,
    "rabbitmq+redis": rabbitmq_and_redis,
}


@pytest.fixture(params=PLACES, scope="module")
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = PLACES[request.param](tmp_path_factory.mktemp("flows"))
    yield place
    place.close()


@SEARCH
@given(batch=st.lists(flows.flows(), min_size=3, max_size=8), dicts=st.booleans(), many=st.booleans())
def test_random_workflows_match_the_oracle(place: Place, batch: list[Any], dicts: bool, many: bool) -> None:
    place.run(batch, dicts, many)


@settings(SEARCH, max_examples=BATCHES * 10 or 150)
@given(flow=flows.flows(), dicts=st.booleans())
def test_random_eager_workflows_match_the_oracle(flow: Any, dicts: bool) -> None:
    app = QWorker(
        "flows", broker="memory://", backend="cache+memory://", task_always_eager=True, set_as_current=False
    )
    ledger = Ledger(app)
    for part in flows.parts_of(flow):
        if isinstance(part, flows.Call):
            part.ignored = False  # whoever calls eagerly has the value all the same
    want = expected(flow, ())
    call = canvas(flow, app.tasks, "f")
    if dicts:
        call = signature(json.loads(json.dumps(call)), app=app)
    if has_failed(want.value):
        return
    result = call.apply_async()
    assert value_of(result) == want.value
    assert dict(ledger.ran("f")) == dict(+want.runs)
    ledger.order_kept("f", want.before)
    assert all(map(is_ready, tree(result)))
