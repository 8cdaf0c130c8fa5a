"""Amazon SQS as moto plays it, as places: one prefix of queue names for each directory.

Comes from:  lease_places; test_settlement_fuzz.py and test_interrupted.py, which wait for what comes.
Goes to:     the server of this test process (the fixture ``sqs``), which other processes find by URL.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.loaders import JSONFileLoader

from qworker.clock import SYSTEM_CLOCK
from qworker.conf import Settings
from qworker.transports import open_broker
from qworker.transports.kombu.broker import KombuBroker
from qworker.transports.kombu.server import DEAD
from qworker.transports.sqs.server import LEASE_SECONDS, SqsServer
from qworker.transports.visibility.broker import remote_broker
from tests.acceptance.sqs_server import REGION, Sqs
from tests.contract.patient_consumer import patient
from tests.contract.place_kombu import CANNOT as CANNOT_WITH_KOMBU
from tests.contract.place_kombu import KombuPlace

SQS_OPTIONS = {"region": REGION, "wait_time_seconds": 1}
URL = "TEST_QWORKER_SQS_URL"


def _read_once(read: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    """boto reads a megabyte of JSON for each connection, which takes longer than most tests."""
    found: dict[str, Any] = {}

    def load_file(loader: Any, path: str) -> Any:
        if path not in found:
            found[path] = read(loader, path)
        return found[path]

    return load_file


@contextmanager
def sqs_server() -> Iterator[Sqs]:
    """A server, of which the processes that are started meanwhile find the URL in their environment."""
    server = Sqs()
    try:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv(URL, server.url)
            environment.setattr(JSONFileLoader, "load_file", _read_once(JSONFileLoader.load_file))
            yield server
    finally:
        server.close()


class SqsPlace(KombuPlace):
    """With a consumer as it is."""

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
        "delays run on Amazon's clock, which no test can move, and only Amazon knows when they end: "
        "tests/integration/test_sqs_store.py waits for them",
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
        "DELIVERY_COUNT: SQS shows to others what was hidden for 30 s, and does not tell of it",
    ),
    "test_a_purge_leaves_what_runs": "it takes that, too, and Amazon does it once a minute",
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
    "test_thousands_of_dead_letters_go_at_once": "SQS is told of each by itself: 3000 calls, or a minute",
}
del CANNOT["test_dead_letters_from_elsewhere"]
"""test_lease_machine leaves SQS out like all that cannot do all: it counts what dead workers held, and looks
at the dead letters after every step, which takes SQS a second."""


@cache  # it takes boto a tenth of a second
def _client(url: str) -> Any:
    return boto3.client(
        "sqs",
        endpoint_url=f"http://{url.rpartition('@')[2].rstrip('/')}",
        region_name=REGION,
        aws_access_key_id="key",
        aws_secret_access_key="secret",
    )


class SqsLeasePlace:
    """As the suite of leases asks for a place. cannot: the tests of it that ask for what SQS does not have,
    and why."""

    fixture = "sqs"
    cannot = CANNOT

    def __init__(self, directory: Path) -> None:
        self.url = os.environ[URL]
        self.prefix = f"t{hashlib.sha1(str(directory).encode()).hexdigest()[:12]}-"
        self.client = _client(self.url)
        self._known: list[str] = []

    def open(self, **options: Any) -> KombuBroker:
        transport = {"region": REGION, "queue_name_prefix": self.prefix, "wait_time_seconds": 0}
        server = SqsServer(self.url, transport, LEASE_SECONDS, 4.0)
        return patient(remote_broker(self.url, server, clock=options.get("clock", SYSTEM_CLOCK)))

    def result(self, task_id: str) -> tuple[str, bytes] | None:
        return None

    def _urls(self) -> list[str]:
        if len(self._known) < len(("q", "r", DEAD)):
            self._known = self.client.list_queues(QueueNamePrefix=self.prefix).get("QueueUrls", [])
        return self._known

    def count(self) -> int:
        kinds = [f"ApproximateNumberOfMessages{kind}" for kind in ("", "Delayed", "NotVisible")]
        found = 0
        for url in self._urls():
            if not url.endswith(DEAD.replace(".", "-")):
                answer = self.client.get_queue_attributes(QueueUrl=url, AttributeNames=kinds)
                found += sum(map(int, answer["Attributes"].values()))
        return found

    def lose(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._known = []
        for url in self._urls():
            self.client.delete_queue(QueueUrl=url)
        self._known = []
