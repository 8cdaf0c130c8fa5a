"""The default result backend of each broker, without any settings."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from qworker import QWorker
from qworker.errors import NotSupported
from qworker.testing import StepWorker
from tests.servers import require

pytestmark = pytest.mark.integration

SERVERS = ("redis", "postgresql", "mysql", "mongodb", "rabbitmq")
"""Brokers that store or send results."""
QUEUE = f"default-results-{uuid.uuid4().hex[:8]}"


def make_app(url: str) -> QWorker:
    prefixed = {"global_keyprefix": f"{QUEUE}:"} if url.startswith("redis") else {}
    app = QWorker(
        "proj",
        broker=url,
        task_default_queue=QUEUE,
        broker_transport_options=prefixed,
        set_as_current=False,
        worker_concurrency=1,
    )
    app.task(name="double")(lambda x: 2 * x)
    app.task(name="note", ignore_result=True)(lambda x: None)
    return app


@pytest.fixture(params=SERVERS)
def apps(request: pytest.FixtureRequest) -> Iterator[tuple[QWorker, QWorker]]:
    """Return an app that calls, and an app that runs."""
    url = require(request.param)
    with make_app(url) as caller, make_app(url) as runner:
        yield caller, runner
        caller.broker.admin.purge(QUEUE)


def test_results_work_without_settings(apps: tuple[QWorker, QWorker]) -> None:
    caller, runner = apps
    double = caller.tasks["double"]
    results = [double.delay(4), double.apply_async((5,), priority=3), *double.apply_many([(6,), (7,)])]
    caller.tasks["note"].delay(1)
    with StepWorker(runner, queues=[QUEUE]) as worker:
        worker.run()
    assert [result.get(timeout=30) for result in results] == [8, 10, 12, 14]


def test_broker_that_stores_results_stores_them_with_the_ack(apps: tuple[QWorker, QWorker]) -> None:
    caller, _ = apps
    sent = caller.broker.url.startswith("amqp")
    assert caller.stores.sends_results is sent
    assert caller.results_with_broker is not sent
    if not sent:
        assert caller.backend.same_store(caller.broker.url)


@pytest.mark.parametrize(
    "url",
    ["sqs://", "nats://h", "ironmq://h", "disque://h", "spool:///tmp/spool", "amqp://a;amqp://b"],
)
def test_broker_without_results_raises_not_supported(url: str) -> None:
    with QWorker("proj", broker=url, set_as_current=False) as app:
        assert app.backend.why_none
        for ask in (lambda: app.AsyncResult("x").get(), lambda: app.AsyncResult("x").state):
            with pytest.raises(NotSupported, match="set result_backend"):
                ask()
