"""A fake Disque server as a place: one node for each test process, emptied after each test.

Comes from:  lease_places; test_interrupted.py.
Goes to:     the node of this test process (the fixture ``disque``), which other processes find by URL.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from qworker.clock import SYSTEM_CLOCK
from qworker.testing.contract import Assumption, Place
from qworker.testing.contract.patient import patient
from qworker.transports.capabilities import ETA
from qworker.transports.disque.broker import DisqueServer as Server
from qworker.transports.disque.queue import Options
from qworker.transports.held.broker import HeldBroker
from qworker.transports.held.port import DEAD
from tests.contract.place_kombu import LACKS
from tests.support.disque_server import DisqueServer

URL = "TEST_QWORKER_DISQUE_URL"
LEASE_SECONDS = 30


@contextmanager
def disque_server() -> Iterator[DisqueServer]:
    """Start a server. Processes started meanwhile find its URL in their environment."""
    with closing(DisqueServer()) as server, pytest.MonkeyPatch.context() as environment:
        environment.setenv(URL, server.url)
        yield server


class DisqueLeasePlace(Place):
    """TEST_CLOCK: delays run on Disque's clock, which no test can move;
    tests/integration/test_disque_store.py waits for them. UNMARKED: every requeued message is marked as
    redelivered."""

    fixture = "disque"
    lacks = LACKS - {ETA} | {Assumption.TEST_CLOCK, Assumption.UNMARKED}
    examples = 10

    def __init__(self, directory: Path) -> None:
        self.url = os.environ[URL]

    def open(self, **options: Any) -> HeldBroker:
        jobs = Options(int(options.get("lease_seconds", LEASE_SECONDS)), 86400)
        server = Server(self.url, jobs, 4.0, wait_seconds=0)
        return patient(HeldBroker(server.url, server, clock=options.get("clock", SYSTEM_CLOCK)))

    def _ask(self, *words: str) -> Any:
        port = int(self.url.rpartition(":")[2])
        with closing(redis.Redis(host="127.0.0.1", port=port, protocol=2)) as client:
            return client.execute_command(*words)

    def count(self) -> int:
        _, jobs = self._ask("JSCAN", "0", "COUNT", "100000", "REPLY", "all")
        queues = [job[3].decode() for job in jobs]
        return sum(queue != DEAD for queue in queues)

    def lose(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._ask("DEBUG", "FLUSHALL")
