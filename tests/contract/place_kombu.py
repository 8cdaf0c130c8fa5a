"""kombu's memory transport as a place, for the brokers used through kombu.

Comes from:  lease_places.
Goes to:     kombu in this process.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from qworker.testing.contract import Assumption, Place
from qworker.transports.capabilities import DEAD_LETTERS, Capability
from qworker.transports.held.broker import HeldBroker
from qworker.transports.held.port import DEAD
from tests.support.kombu_brokers import kombu_broker

LACKS = frozenset(Capability) - {DEAD_LETTERS} | {
    Assumption.ANY_QUEUE,
    Assumption.DEAD_FROM_ELSEWHERE,
    Assumption.FLUSHED,
    Assumption.RECLAIMING,
    Assumption.SWEPT,
    Assumption.TEXT,
    Assumption.UPTIME,
}
"""For all brokers used through kombu. The server itself controls leases, and returns the messages of dead
consumers. Dead letters are kept until they are retried or discarded, and cannot be imported. Headers are
rewritten with the same values. Consumers read only the queues that they registered for."""


class KombuLeasePlace(Place):
    """kombu's memory transport is global to the process, so the queues are emptied after each test, and what
    other tests of this process left there is deleted first."""

    lacks = LACKS | {Assumption.LEASE_SECONDS, Assumption.OTHER_PROCESSES}

    def __init__(self, directory: Path) -> None:
        self.opened: list[HeldBroker] = []
        self.client = self.open()
        self.client.admin.purge(DEAD)

    def open(self, **options: Any) -> HeldBroker:
        given = {name: value for name, value in options.items() if name == "clock"}
        store = kombu_broker("memory://", poll=0.02, **given)
        self.opened.append(store)
        return store

    def count(self) -> int:
        held = sum(len(store.consumer._holdings.everything()) for store in self.opened)
        return held + sum(info.ready for info in self.client.admin.depths(["q", "r"]))

    def lose(self) -> None:
        raise NotImplementedError("the memory of this process is not lost")

    def clear(self) -> None:
        names = {DEAD}.union(*(store.sender.known for store in self.opened), ("q", "r"))
        for store in self.opened:
            store.close()
        with closing(self.open()) as store:
            for name in names:
                store.admin.purge(name)
