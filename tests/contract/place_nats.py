"""NATS JetStream as a place: streams of its own for each directory, on the server of this machine.

Comes from:  lease_places.
Goes to:     JetStream, in this process or in others.
"""

from __future__ import annotations

import hashlib
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import Any

from qworker.clock import SYSTEM_CLOCK
from qworker.testing.contract import Assumption, Place
from qworker.testing.contract.patient import patient
from qworker.testing.contract.waiting import until
from qworker.transports.capabilities import ETA, FAILED_TASKS, FANOUT
from qworker.transports.held.broker import HeldBroker
from qworker.transports.nats.broker import NatsServer, StreamConfig
from qworker.transports.nats.client import Client, Refused
from qworker.transports.nats.url import LETTERS, Layout, read_url
from tests.contract.place_kombu import LACKS
from tests.servers import require

LEASE_SECONDS = 30.0
STAYS = "qworker-tests"


@cache
def hold_directory(url: str) -> None:
    """Have a stream at *url* that stays. JetStream (2.9.10) removes the directory of all streams with the
    last one, and then cannot make the one that another test asks for at that moment."""
    server = NatsServer(url, read_url(url), Layout(STAYS), StreamConfig(), 1.0, 5.0)
    with closing(Closing(server.connect())) as held:

        def made() -> bool:
            with suppress(Refused):
                held.ask(f"STREAM.CREATE.{STAYS}", {"name": STAYS, "subjects": [STAYS], "storage": "file"})
                return True
            return False

        until(made)


class NatsPlace(Place):
    """TEST_CLOCK: delays run on the server's clock, which no test can move; tests/integration/
    test_nats_store.py waits for them. UNMARKED: every requeued message is marked as redelivered."""

    lacks = LACKS - {ETA, FANOUT, FAILED_TASKS} | {Assumption.TEST_CLOCK, Assumption.UNMARKED}
    cannot = {
        "test_large_messages_are_leased_in_small_batches": "it refuses messages of this size",
        "test_purge_keeps_leased_messages": "a purge deletes all messages of a subject",
        "test_revocations_expire": "the server deletes them, by its own clock",
    }
    examples = 10

    def __init__(self, directory: Path) -> None:
        self.url = require("nats")
        hold_directory(self.url)
        self.layout = Layout(f"t{hashlib.sha1(str(directory).encode()).hexdigest()[:16]}")

    def server(
        self, url: str = "", timeout: float = 5.0, lease: float = LEASE_SECONDS, **config: Any
    ) -> NatsServer:
        """url: of a proxy, for example."""
        url = url or self.url
        return NatsServer(url, read_url(url), self.layout, StreamConfig(**config), lease, timeout)

    def open(self, **options: Any) -> HeldBroker:
        config = {"revoke_seconds": options["revoke_expires"]} if "revoke_expires" in options else {}
        server = self.server(lease=options.get("lease_seconds", LEASE_SECONDS), **config)
        store = HeldBroker(self.url, server, clock=options.get("clock", SYSTEM_CLOCK))
        return patient(store, self._on_its_way)

    def _on_its_way(self, queue: Any) -> bool:
        """JetStream reports a message as stored before its consumer can deliver it."""
        subject = self.layout.subject(queue.name)
        with suppress(Refused):
            asked = {"subjects_filter": subject}
            found = queue._connection.ask(f"STREAM.INFO.{self.layout.stream}", asked)
            stored = found["state"].get("subjects") or {}
            return int(stored.get(subject, 0)) > int(queue.count().leased)
        return False

    def count(self) -> int:
        with closing(Closing(self.server().connect())) as connection, suppress(Refused):
            return int(connection.ask(f"STREAM.INFO.{self.layout.stream}")["state"]["messages"])
        return 0

    def lose(self) -> None:
        self.clear()

    def clear(self) -> None:
        with closing(Closing(self.server().connect())) as connection:
            letters = map(self.layout.letters_stream, LETTERS)
            for stream in (self.layout.stream, *letters, self.layout.revoked_stream):
                with suppress(Refused):
                    connection.ask(f"STREAM.DELETE.{stream}")


class Closing:
    """A connection with close(), for ``contextlib.closing``."""

    def __init__(self, connection: Client) -> None:
        self.ask = connection.ask
        self.close = connection.release
