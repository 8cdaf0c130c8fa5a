"""Disque, as its stand-in plays it, as places: one node for each test process, which forgets all after each.

Comes from:  lease_places; test_settlement_fuzz.py and test_interrupted.py.
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
from qworker.conf import Settings
from qworker.transports import open_broker
from qworker.transports.disque.broker import disque_broker
from qworker.transports.disque.queue import Options
from qworker.transports.disque.server import DisqueServer as Server
from qworker.transports.kombu.broker import KombuBroker
from qworker.transports.kombu.server import DEAD
from tests.contract.patient_consumer import patient
from tests.contract.place_kombu import CANNOT as CANNOT_WITH_KOMBU
from tests.contract.place_kombu import KombuPlace
from tests.support.disque_server import DisqueServer

URL = "TEST_QWORKER_DISQUE_URL"
LEASE_SECONDS = 30
OPTIONS = Options(LEASE_SECONDS, 86400)


@contextmanager
def disque_server() -> Iterator[DisqueServer]:
    """A server, of which the processes that are started meanwhile find the URL in their environment."""
    with closing(DisqueServer()) as server, pytest.MonkeyPatch.context() as environment:
        environment.setenv(URL, server.url)
        yield server


class DisquePlace(KombuPlace):
    """With a consumer as it is."""

    def __init__(self, server: DisqueServer) -> None:
        super().__init__()
        self.server = server
        server.reset()

    def open(self, **options: Any) -> KombuBroker:
        settings = Settings({"broker_transport_options": {"wait_time_seconds": 1}})
        store = open_broker(self.server.url, settings)
        assert isinstance(store, KombuBroker)
        self.opened.append(store)
        return store

    def clear(self) -> None:
        for store in self.opened:
            store.close()


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
        "delays run on Disque's clock, which no test can move, and only Disque knows when they end: "
        "tests/integration/test_disque_store.py waits for them",
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
        "DELIVERY_COUNT: Disque queues again what nobody works on for 30 s, and does not tell why",
    ),
    **dict.fromkeys(
        (
            "test_live_workers_are_listed",
            "test_what_a_worker_tells_of_itself_is_read_by_other_processes",
            "test_each_worker_has_a_presence_of_its_own_which_it_keeps_when_it_registers_again",
            "test_a_presence_that_is_damaged_spoils_nothing",
            "test_a_presence_may_be_large",
        ),
        "WORKERS",
    ),
}


class DisqueLeasePlace:
    """As the suite of leases asks for a place. cannot: the tests of it that ask for what Disque does not
    have, and why."""

    fixture = "disque"
    cannot = CANNOT

    def __init__(self, directory: Path) -> None:
        self.url = os.environ[URL]

    def open(self, **options: Any) -> KombuBroker:
        server = Server(self.url, OPTIONS, 4.0, wait_seconds=0)
        return patient(disque_broker(server, options.get("clock", SYSTEM_CLOCK)))

    def result(self, task_id: str) -> tuple[str, bytes] | None:
        return None

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
