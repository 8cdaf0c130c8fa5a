"""A broker for tests of publishing: it keeps the pushed messages, and fails on demand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from qworker import QWorker
from qworker.errors import BrokerUnavailable
from qworker.message.protocol import Body, decode_body, parse_headers, parse_properties
from qworker.testing.clock import FakeClock
from qworker.transports.lease import (
    Envelope,
    Hearing,
    Listing,
    Presenting,
    Revocations,
    Revoking,
    SingleObjectBroker,
    Workers,
)
from qworker.transports.presence import Presence

ACCEPT = frozenset({"json", "pickle", "msgpack"})


class Sent(NamedTuple):
    """A pushed message, decoded."""

    envelope: Envelope
    headers: dict[str, Any]
    properties: dict[str, Any]
    body: Body


class KeepingStore(SingleObjectBroker, Revoking, Hearing, Presenting, Listing):
    """pushes: the arguments of each push(). failures: how many pushes will fail,
    with the error failure. on_push: called before each."""

    url = "keeping://"

    def __init__(self, failures: int = 0) -> None:
        super().__init__(
            type(self).url,
            lacks=frozenset(),
            letters={},
            revocations=Revocations(self, self),
            presence=Workers(self, self),
            peeking=None,
            delayed=None,
            stored_results=None,
            by_queue=None,
            registry=None,
            lowest_first=False,
            silent_seconds=math.inf,
        )
        self.pushes: list[list[Envelope]] = []
        self.tries = 0
        self.failures = failures
        self.failure: Exception = BrokerUnavailable("the store is away")
        self.on_push: Callable[[], object] = lambda: None
        self.timeouts: list[float] = []
        self.revoked: list[tuple[list[str], bool, str]] = []
        self.alive: list[Presence] = []
        self.closed = 0

    def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
        self.tries += 1
        self.on_push()
        self.timeouts.append(timeout)
        if self.failures > 0:
            self.failures -= 1
            raise self.failure
        self.pushes.append(list(envelopes))

    def revoke(self, ids: Sequence[str], terminate: bool = False, signal: str = "SIGTERM") -> None:
        self.revoked.append((list(ids), terminate, signal))

    def workers(self) -> list[Presence]:
        return self.alive

    def close(self) -> None:
        self.closed += 1

    @property
    def sent(self) -> list[Sent]:
        """Every message pushed so far."""
        return [read(envelope) for push in self.pushes for envelope in push]


# Publishers never lease, so the rest of the interface is not needed.
KeepingStore.__abstractmethods__ = frozenset()


def read(envelope: Envelope) -> Sent:
    """Decode a message as a worker would."""
    headers, properties = parse_headers(envelope.headers), parse_properties(envelope.properties)
    return Sent(envelope, headers, properties, decode_body(envelope.body, headers, properties, ACCEPT))


def make_app(**settings: Any) -> tuple[QWorker, KeepingStore, FakeClock]:
    """An app with results in memory, its KeepingStore, and a fake clock."""
    store, clock = KeepingStore(settings.pop("failures", 0)), FakeClock()
    settings.setdefault("backend", "cache+memory://")
    app = QWorker("proj", broker=store, clock=clock, set_as_current=False, **settings)
    return app, store, clock
