"""Receiving messages as a worker does. Comes from: tests of brokers. Goes to: the broker's consumer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from qworker.transports.lease import Broker, Leased
from tests.support.waiting import PATIENCE


def receive(store: Broker, count: int, *queues: str, **options: Any) -> list[Leased]:
    """The next *count* messages of *queues* ("q" by default), in the order of delivery."""
    found: list[Leased] = []
    deadline = time.monotonic() + PATIENCE
    while len(found) < count:
        found += store.consumer.lease(queues or ("q",), count - len(found), **options).messages
        if len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} came"
            store.consumer.wait(0.05)
    return found


def everything(store: Broker, queues: Sequence[str] = ("celery",)) -> list[Leased]:
    """All messages of *queues*, due or not; for stores that return messages when their reader deregisters."""
    store.consumer.register("reader", queues, 1)
    taken = [
        *store.consumer.lease(queues, 10_000).messages,
        *store.consumer.lease(queues, 0, delayed_limit=10_000, eta_window=1e9).messages,
    ]
    store.consumer.deregister()
    return taken
