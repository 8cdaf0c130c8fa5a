"""A RabbitMQ worker during a server restart: the server accepts connections before it serves its queues."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

from qworker.conf import Settings
from qworker.errors import BrokerUnavailable
from qworker.transports.amqp.broker import open_broker
from tests.acceptance.private_servers import RabbitMQ, serving
from tests.support.waiting import until

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture
def server() -> Iterator[RabbitMQ]:
    with serving("rabbitmq") as server:
        yield server


def test_worker_reconnecting_early_receives_revocations_later(
    server: RabbitMQ, caplog: pytest.LogCaptureFixture
) -> None:
    worker, other = (open_broker(server.url, Settings({})) for _ in range(2))
    with closing(worker), closing(other):
        consumer = worker.consumer
        consumer.register("w@here", ["q"], 1)
        for _ in range(3):  # it may reconnect too late
            server.stop()
            server.start(wait=False)
            until(lambda: _registered(consumer))
            server.wait()
            if "does not receive revocations" in caplog.text:
                break
        assert "has the queue 'qworker.revoked' but does not serve it" in caplog.text

        def live() -> bool:
            consumer.wait(0.1)
            consumer.lease(["q"], 1)
            consumer.reclaim()
            return bool(consumer.revoked_since(0)[1])

        until(lambda: _revoked(other))
        until(live)
        until(
            lambda: [each.name for each in other.admin.workers()] == ["w@here"], say="the worker to be shown"
        )


def _registered(consumer: Any) -> bool:
    with suppress(BrokerUnavailable):
        consumer.register("w@here", ["q"], 1)
        return True
    time.sleep(0.005)
    return False


def _revoked(broker: Any) -> bool:
    with suppress(BrokerUnavailable):
        broker.sender.revoke(["a"])
        return True
    time.sleep(0.1)
    return False
