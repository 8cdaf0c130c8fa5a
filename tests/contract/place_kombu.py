"""The brokers that are spoken to through kombu, as places: kombu's memory, and Amazon SQS as moto plays it.

Comes from:  test_settlement_fuzz.py and test_interrupted.py. The suite of the whole contract, which they
             do not keep, does without them.
Goes to:     kombu in this process, or a server of the test's own.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from qworker.conf import Settings
from qworker.transports import open_broker
from qworker.transports.kombu.broker import KombuBroker, kombu_broker
from qworker.transports.kombu.server import DEAD
from tests.acceptance.sqs_server import REGION, Sqs

SQS_OPTIONS = {"region": REGION, "wait_time_seconds": 1}


@contextmanager
def sqs_server() -> Iterator[Sqs]:
    server = Sqs()
    try:
        yield server
    finally:
        server.close()


class KombuPlace:
    """A queue of its own: kombu keeps what is in memory for the whole process."""

    def __init__(self) -> None:
        self.queue = f"q{uuid.uuid4().hex[:8]}"
        self.opened: list[KombuBroker] = []

    def open(self, **options: Any) -> KombuBroker:
        store = kombu_broker("memory://", **options)
        store.admin.purge(DEAD)
        self.opened.append(store)
        return store

    def result(self, task_id: str) -> tuple[str, bytes] | None:
        return None

    def clear(self) -> None:
        for store in self.opened:
            for name in (self.queue, DEAD):
                store.admin.purge(name)
            store.close()


class SqsPlace(KombuPlace):
    def __init__(self, server: Sqs) -> None:
        super().__init__()
        self.server = server
        server.reset()

    def open(self, **options: Any) -> KombuBroker:
        store = open_broker(self.server.url, Settings({"broker_transport_options": SQS_OPTIONS}))
        assert isinstance(store, KombuBroker)
        self.opened.append(store)
        return store

    def clear(self) -> None:
        for store in self.opened:
            store.close()
