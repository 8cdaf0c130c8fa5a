"""taking: packages that a program takes from a queue itself, without a cluster.

Comes from:  ``Broker.dequeue()``, and the methods that acknowledge or reject.
Goes to:     the consumer of a separate transport, one per queue and process.
Thread:      one at a time, which takes and settles.

A taken package that is not settled is redelivered after ``retry`` seconds; at once, if its process on this
machine has died.
"""

from __future__ import annotations

from contextlib import suppress

from qworker.clock import SYSTEM_CLOCK
from qworker.django.conf import conf
from qworker.errors import BrokerUnavailable, ConfigurationError, LeaseLost
from qworker.naming import node_name
from qworker.transports.lease import NO_ROOM, Ack, Broker, DeadLetter, Leased, Release

UNSEEN = 0
"""The concurrency of a consumer that is not listed as a worker."""


class Taking:
    """Takes packages from *queue*. transport: used only here."""

    def __init__(self, transport: Broker, queue: str) -> None:
        self._transport = transport
        self._consumer = transport.consumer
        self._queue = queue
        self._generation = 0
        self._until: dict[int, float] = {}
        """When taken messages are released, by tag: monotonic seconds."""

    def take(self) -> list[Leased]:
        """Take up to ``bulk`` messages; wait up to ``poll`` seconds if there are none."""
        self._stand()
        found = self._consumer.lease((self._queue,), conf.bulk).messages
        end = SYSTEM_CLOCK.monotonic() + conf.poll
        while not found and (rest := end - SYSTEM_CLOCK.monotonic()) > 0:
            self._consumer.wait(rest)
            found = self._consumer.lease((self._queue,), conf.bulk).messages
        until = SYSTEM_CLOCK.monotonic() + conf.retry
        self._until |= dict.fromkeys((each.tag for each in found), until)
        if found:
            with suppress(BrokerUnavailable, LeaseLost):  # which the next call will meet
                # While the program works, new messages are left to others.
                self._consumer.wait(0.0, NO_ROOM)
        return found

    def settle(self, settlement: Ack | DeadLetter | Release) -> None:
        """Carry out *settlement*; do nothing for messages that are not held here."""
        if settlement.tag in self._until:
            self._consumer.settle(self._generation, [settlement])
            del self._until[settlement.tag]

    def _stand(self) -> None:
        """Renew the registration; release messages held for too long, and those of dead consumers."""
        try:
            if self._generation:
                self._consumer.extend()
        except LeaseLost:
            self._generation = 0
        if not self._generation:
            self._until.clear()
            self._generation = self._consumer.register(node_name("broker@%h"), (self._queue,), UNSEEN)
        now = SYSTEM_CLOCK.monotonic()
        late = [tag for tag, until in self._until.items() if until <= now]
        for tag in late:
            try:
                self.settle(Release(tag, redelivered=True))
            except (BrokerUnavailable, ConfigurationError, LeaseLost):
                raise
            except Exception:
                del self._until[tag]  # it would be refused again
                raise
        self._consumer.reclaim()

    def close(self) -> None:
        """Release held messages, and close the connections."""
        if self._generation:
            self._consumer.deregister()
        self._transport.close()
