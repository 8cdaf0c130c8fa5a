"""IronMQ, as our stand-in plays it, as places: one project for each directory.

Comes from:  lease_places; test_settlement_fuzz.py.
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
from qworker.transports.ironmq.server import LEASE_SECONDS, IronServer
from qworker.transports.kombu.broker import KombuBroker
from qworker.transports.visibility.broker import remote_broker
from tests.contract.patient_consumer import patient
from tests.contract.place_kombu import CANNOT as CANNOT_WITH_KOMBU
from tests.support.ironmq_server import TOKEN, IronMQ

PORT = "TEST_QWORKER_IRONMQ_PORT"
RUNNING: dict[int, IronMQ] = {}
"""The server of this process, by its port."""


@contextmanager
def ironmq_server() -> Iterator[IronMQ]:
    """A server, of which the processes that are started meanwhile find the port in their environment."""
    server = IronMQ()
    RUNNING[server.port] = server
    try:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv(PORT, str(server.port))
            yield server
    finally:
        server.close()


CANNOT = {
    **CANNOT_WITH_KOMBU,
    **dict.fromkeys(
        (
            "test_near_messages_are_taken_ahead_within_the_horizon",
            "test_near_messages_have_a_limit_of_their_own",
            "test_next_due_is_the_earliest_of_the_queues",
            "test_a_delayed_message_is_never_early",
            "test_a_wall_clock_set_back_makes_nothing_early",
            "test_a_release_may_be_for_later",
            "test_delayed_messages_are_flushed",
        ),
        "delays run on the server's clock, and only it knows when they end: "
        "tests/integration/test_ironmq_store.py moves it",
    ),
    "test_thousands_fall_due_at_once": "the same, and PRIORITY",
    **dict.fromkeys(
        (
            "test_a_release_puts_the_message_where_it_was",
            "test_a_release_says_why",
            "test_who_resigns_leaves_everything_uncounted",
        ),
        "whatever comes back is marked as redelivered",
    ),
    **dict.fromkeys(
        (
            "test_a_stopped_process_loses_its_lease",
            "test_what_a_killed_process_held_is_back_at_once",
            "test_the_dead_are_reclaimed_once",
            "test_a_child_neither_holds_nor_keeps_its_parents_leases",
        ),
        "DELIVERY_COUNT: IronMQ shows to others what was reserved for 30 s, and does not tell of it",
    ),
    "test_a_purge_leaves_what_runs": "it takes that, too",
    "test_live_workers_are_listed": "WORKERS",
}
del CANNOT["test_dead_letters_from_elsewhere"]


class IronPlace:
    """As the suite of leases asks for a place. cannot: the tests of it that ask for what IronMQ does not
    have, and why."""

    fixture = "ironmq"
    cannot = CANNOT

    def __init__(self, directory: Path) -> None:
        self.port = int(os.environ[PORT])
        self.project = f"p{hashlib.sha1(str(directory).encode()).hexdigest()[:12]}"
        self.url = f"ironmq+http://{self.project}:{TOKEN}@127.0.0.1:{self.port}"

    def open(self, **options: Any) -> KombuBroker:
        server = IronServer(self.url, {"wait_time_seconds": 0}, LEASE_SECONDS, 4.0)
        return patient(remote_broker(self.url, server, clock=options.get("clock", SYSTEM_CLOCK)))

    def result(self, task_id: str) -> tuple[str, bytes] | None:
        return None

    def count(self) -> int:
        return sum(RUNNING[self.port].size(self.project, name) for name in ("q", "r"))

    def lose(self) -> None:
        self.clear()

    def clear(self) -> None:
        if self.port in RUNNING:
            RUNNING[self.port].projects.pop(self.project, None)
