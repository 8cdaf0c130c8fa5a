"""Results where nothing says where they are kept: on each broker, as for one who has just changed the URL."""

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
"""What keeps results, or sends them."""
QUEUE = f"default-results-{uuid.uuid4().hex[:8]}"


def made(url: str) -> QWorker:
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
    """One that calls, and one that runs."""
    url = require(request.param)
    with made(url) as caller, made(url) as runner:
        yield caller, runner
        caller.broker.admin.purge(QUEUE)


def test_a_result_is_there_with_nothing_set(apps: tuple[QWorker, QWorker]) -> None:
    caller, runner = apps
    double = caller.tasks["double"]
    results = [double.delay(4), double.apply_async((5,), priority=3), *double.apply_many([(6,), (7,)])]
    caller.tasks["note"].delay(1)
    with StepWorker(runner, queues=[QUEUE]) as worker:
        worker.run()
    assert [result.get(timeout=30) for result in results] == [8, 10, 12, 14]


def test_results_are_stored_with_the_ack_where_the_broker_keeps_them(apps: tuple[QWorker, QWorker]) -> None:
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
def test_what_keeps_none_says_so(url: str) -> None:
    with QWorker("proj", broker=url, set_as_current=False) as app:
        assert app.backend.why_none
        for ask in (lambda: app.AsyncResult("x").get(), lambda: app.AsyncResult("x").state):
            with pytest.raises(NotSupported, match="set result_backend"):
                ask()
