"""A fake IronMQ server as a place: one project for each directory.

Comes from:  lease_places; test_interrupted.py.
Goes to:     the server of this test process (the fixture ``ironmq``), which other processes find by URL.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from qworker.clock import SYSTEM_CLOCK
from qworker.testing.contract import Assumption, Place
from qworker.testing.contract.patient import patient
from qworker.transports.capabilities import ETA
from qworker.transports.held.broker import HeldBroker
from qworker.transports.ironmq.broker import LEASE_SECONDS, IronServer
from tests.contract.place_kombu import LACKS
from tests.support.ironmq_server import TOKEN, IronMQ

PORT = "TEST_QWORKER_IRONMQ_PORT"
RUNNING: dict[int, IronMQ] = {}
"""The server of this process, by its port."""


@contextmanager
def ironmq_server() -> Iterator[IronMQ]:
    """Start a server. Processes started meanwhile find its port in their environment."""
    server = IronMQ()
    RUNNING[server.port] = server
    try:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv(PORT, str(server.port))
            yield server
    finally:
        server.close()


class IronPlace(Place):
    """TEST_CLOCK: delays run on the server's clock; tests/integration/test_ironmq_store.py moves it.
    UNMARKED: every requeued message is marked as redelivered."""

    fixture = "ironmq"
    lacks = LACKS - {ETA, Assumption.DEAD_FROM_ELSEWHERE} | {
        Assumption.LEASE_SECONDS,
        Assumption.TEST_CLOCK,
        Assumption.UNMARKED,
    }
    cannot = {
        "test_purge_keeps_leased_messages": "a purge deletes leased messages, too",
        "test_large_messages_are_leased_in_small_batches": "it refuses messages of this size",
    }
    examples = 10

    def __init__(self, directory: Path) -> None:
        self.port = int(os.environ[PORT])
        self.project = f"p{hashlib.sha1(str(directory).encode()).hexdigest()[:12]}"
        self.url = f"ironmq+http://{self.project}:{TOKEN}@127.0.0.1:{self.port}"

    def open(self, **options: Any) -> HeldBroker:
        server = IronServer(self.url, {"wait_time_seconds": 0}, LEASE_SECONDS, 4.0)
        return patient(HeldBroker(self.url, server, clock=options.get("clock", SYSTEM_CLOCK)))

    def count(self) -> int:
        return sum(RUNNING[self.port].size(self.project, name) for name in ("q", "r"))

    def lose(self) -> None:
        self.clear()

    def clear(self) -> None:
        if self.port in RUNNING:
            RUNNING[self.port].projects.pop(self.project, None)
