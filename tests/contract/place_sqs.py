"""Amazon SQS (moto) as a place: one prefix of queue names for each directory.

Comes from:  lease_places; test_interrupted.py.
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
from qworker.testing.contract import Assumption, Place
from qworker.testing.contract.patient import patient
from qworker.transports.capabilities import ETA
from qworker.transports.held.broker import HeldBroker
from qworker.transports.held.port import DEAD
from qworker.transports.sqs.broker import LEASE_SECONDS, SqsServer
from tests.acceptance.sqs_server import REGION, Sqs
from tests.contract.place_kombu import LACKS

SQS_OPTIONS = {"region": REGION, "wait_time_seconds": 1}
URL = "TEST_QWORKER_SQS_URL"


def _read_once(read: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    """Cache *read*: boto reads a megabyte of JSON for each connection, which takes longer than most tests."""
    found: dict[str, Any] = {}

    def load_file(loader: Any, path: str) -> Any:
        if path not in found:
            found[path] = read(loader, path)
        return found[path]

    return load_file


@contextmanager
def sqs_server() -> Iterator[Sqs]:
    """Start a server. Processes started meanwhile find its URL in their environment."""
    server = Sqs()
    try:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv(URL, server.url)
            environment.setattr(JSONFileLoader, "load_file", _read_once(JSONFileLoader.load_file))
            yield server
    finally:
        server.close()


@cache  # it takes boto a tenth of a second
def _client(url: str) -> Any:
    return boto3.client(
        "sqs",
        endpoint_url=f"http://{url.rpartition('@')[2].rstrip('/')}",
        region_name=REGION,
        aws_access_key_id="key",
        aws_secret_access_key="secret",
    )


class SqsLeasePlace(Place):
    """TEST_CLOCK: delays run on Amazon's clock, which no test can move; tests/integration/test_sqs_store.py
    waits for them. UNMARKED: every requeued message is marked as redelivered."""

    fixture = "sqs"
    lacks = LACKS - {ETA, Assumption.DEAD_FROM_ELSEWHERE} | {Assumption.TEST_CLOCK, Assumption.UNMARKED}
    cannot = {
        "test_large_messages_are_leased_in_small_batches": "it refuses messages of this size",
        "test_purge_keeps_leased_messages": "a purge deletes leased messages, too, once a minute",
        "test_many_dead_letters_are_retried_and_discarded_at_once": "one call for each takes a minute",
    }
    examples = 4

    def __init__(self, directory: Path) -> None:
        self.url = os.environ[URL]
        self.prefix = f"t{hashlib.sha1(str(directory).encode()).hexdigest()[:12]}-"
        self.client = _client(self.url)
        self._known: list[str] = []

    def open(self, **options: Any) -> HeldBroker:
        transport = {"region": REGION, "queue_name_prefix": self.prefix, "wait_time_seconds": 0}
        server = SqsServer(self.url, transport, int(options.get("lease_seconds", LEASE_SECONDS)), 4.0)
        return patient(HeldBroker(self.url, server, clock=options.get("clock", SYSTEM_CLOCK)))

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
