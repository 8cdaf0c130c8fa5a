"""FailoverBroker: several brokers, of which one is used at a time; the next when it does not answer.

Comes from:  ``open_broker``, when ``broker_url`` names more than one.
Goes to:     the stores of those URLs.
Thread:      push and the administration from any thread; the leasing side from the listener only, as in
             Broker. The two sides choose their server apart: ``_sending`` is replaced whole, ``_leasing``
             is the listener's.

A server that fails once after it had answered gets a second chance, since connections break more often than
servers; not when it was silent until a timeout. Then the listener registers at the first other one that takes
it, and only that makes it leave. What it held at the old one comes back there by the end of its lease; tags
are marked by their server, so that a settlement never reaches another one.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from qworker.conf import mask_urls
from qworker.errors import BrokerUnavailable, LeaseLost
from qworker.transports.capabilities import RESULTS
from qworker.transports.lease import (
    Broker,
    Claim,
    Dead,
    Envelope,
    QueueInfo,
    Reclaimed,
    Revocation,
    Sender,
    Settlement,
    Store,
    Undivided,
)

R = TypeVar("R")
logger = logging.getLogger(__name__)

ROUND_ROBIN, SHUFFLE = "round-robin", "shuffle"
MARK_BITS = 56
"""A tag is marked from this bit on with the number of its server; the first one's are left as they are."""
NO_EPOCH = -1
"""No store has ever given it out, so nothing is settled under it."""
QUICK = 1.0
"""Seconds in which a broken connection is found; who takes longer to fail was silent."""
LEAST_TRY = 0.05
"""Seconds that a push may take at least at each server."""


class FailoverBroker(Undivided):
    """stores: in the order in which they are tried, at least one, at most 64. strategy: of those that are
    left when one fails, the next in order (``round-robin``) or any (``shuffle``)."""

    def __init__(self, stores: Sequence[Broker], strategy: str = ROUND_ROBIN) -> None:
        self._stores = tuple(stores)
        self._strategy = strategy
        self.url = ";".join(store.url for store in stores)
        # Results go to a store of their own: what is in the one broker would not be found by who asks the
        # other.
        self.lacks = frozenset({RESULTS}).union(*(store.lacks for store in stores))
        self.lowest_first = any(store.lowest_first for store in stores)
        self.silent_seconds = min(store.silent_seconds for store in stores)
        self._sending = 0
        self._leasing = 0  # listener, as all below
        self._answered = False
        """The server has answered since it last failed."""
        self._asked = -1
        """The server whose revocations were asked for last."""
        self._holder: tuple[str, Sequence[str], int] = ("", (), 0)

    def _others(self, index: int) -> list[int]:
        """Whom to try when number *index* fails."""
        count = len(self._stores)
        others = [(index + step) % count for step in range(1, count)]
        if self._strategy == SHUFFLE:
            random.shuffle(others)
        return others

    def _name(self, index: int) -> str:
        return mask_urls(self._stores[index].url)

    def _say(self, old: int, new: int, error: BrokerUnavailable, who: str) -> None:
        why = mask_urls(str(error))
        logger.warning("broker %s fails: %s; %s with %s", self._name(old), why, who, self._name(new))

    # -- any thread --

    def _ask(self, call: Callable[[Broker], R]) -> R:
        """What *call* returns at the server in use, or at the next one that answers, which is in use from
        then on."""
        first = self._sending
        failure: BrokerUnavailable | None = None
        for index in (first, *self._others(first)):
            try:
                answer = call(self._stores[index])
            except BrokerUnavailable as error:
                failure = failure or error
                continue
            if failure is not None:
                self._sending = index
                self._say(first, index, failure, "going on")
            return answer
        assert failure is not None
        raise BrokerUnavailable(
            f"none of {len(self._stores)} brokers answers; the first: {failure}"
        ) from failure

    def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
        """Raises BrokerUnavailable when no server took them within *timeout* seconds. A server that takes
        them and dies before it says so has them too: then they run twice, under the same ids."""
        deadline = time.monotonic() + timeout
        left = [len(self._stores)]

        def send(store: Broker) -> None:
            # Each gets its share of what is left, so that one that hangs leaves time for the others.
            share = (deadline - time.monotonic()) / left[0]
            left[0] -= 1
            store.sender.push(envelopes, max(share, LEAST_TRY))

        self._ask(send)

    def revoke(self, ids: Sequence[str], terminate: bool = False, signal: str = "SIGTERM") -> None:
        self._ask(lambda store: store.sender.revoke(ids, terminate, signal))

    def wake(self) -> None:
        self._stores[self._leasing].consumer.wake()

    # -- the listener --

    def register(self, name: str, queues: Sequence[str], concurrency: int) -> int:
        self._holder = (name, queues, concurrency)
        index, failure = self._leasing, None
        for candidate in (index, *self._others(index)):
            try:
                epoch = self._register_at(candidate)
            except BrokerUnavailable as error:
                failure = failure or error
                continue
            if failure is not None:
                self._say(index, candidate, failure, "working")
            return epoch
        raise BrokerUnavailable(
            f"none of {len(self._stores)} brokers answers; the first: {failure}"
        ) from failure

    def _register_at(self, index: int) -> int:
        """The epoch tells its server too, as the tags do."""
        name, queues, concurrency = self._holder
        epoch = self._stores[index].consumer.register(name, queues, concurrency)
        self._leasing = index
        self._answered = True
        return epoch * len(self._stores) + index

    def _at(self, call: Callable[[Broker], R]) -> R:
        """What *call* returns at the server that we lease from. Raises LeaseLost when we now lease from
        another."""
        index, began = self._leasing, time.monotonic()
        try:
            answer = call(self._stores[index])
        except BrokerUnavailable as error:
            if self._answered and time.monotonic() - began < QUICK:
                self._answered = False
                raise
            for candidate in self._others(index):
                try:
                    self._register_at(candidate)
                except BrokerUnavailable:
                    continue
                self._say(index, candidate, error, "working")
                raise LeaseLost(
                    f"the lease at {self._name(index)} is given up: it does not answer"
                ) from error
            raise
        self._answered = True
        return answer

    def _mark(self) -> int:
        return self._leasing << MARK_BITS

    def lease(
        self, queues: Sequence[str], limit: int, delayed_limit: int = 0, eta_window: float = 0.0
    ) -> Claim:
        claim = self._at(lambda store: store.consumer.lease(queues, limit, delayed_limit, eta_window))
        last = claim.last_revocation
        if last is not None:  # what another server's cursor means here is not known before it is asked
            last = last * len(self._stores) + self._leasing if self._asked == self._leasing else None
        mark = self._mark()
        messages = [one._replace(tag=one.tag ^ mark) for one in claim.messages] if mark else claim.messages
        return Claim(messages, claim.next_due, last)

    def settle(self, epoch: int, settlements: Sequence[Settlement]) -> set[int]:
        own, whose = divmod(epoch, len(self._stores))
        inner_epoch = own if whose == self._leasing else NO_EPOCH
        mark = self._mark()
        if not mark:
            return self._at(lambda store: store.consumer.settle(inner_epoch, settlements))
        inner = [one if isinstance(one, Store) else one._replace(tag=one.tag ^ mark) for one in settlements]
        return {tag ^ mark for tag in self._at(lambda store: store.consumer.settle(inner_epoch, inner))}

    def extend(self) -> None:
        self._at(lambda store: store.consumer.extend())

    def reclaim(self, silent: bool = True) -> list[Reclaimed]:
        return self._at(lambda store: store.consumer.reclaim(silent))

    @property
    def prefetched(self) -> bool:
        return self._stores[self._leasing].consumer.prefetched

    def wait(self, timeout: float, prefetch: int = 0) -> bool:
        return self._stores[self._leasing].consumer.wait(timeout, prefetch)

    def revoked_since(self, cursor: int) -> tuple[int, list[Revocation]]:
        # A cursor says whose it is; that of another server means nothing here.
        count = len(self._stores)
        known, whose = divmod(cursor, count)
        found = known if whose == self._leasing else 0
        reached, revocations = self._at(lambda store: store.consumer.revoked_since(found))
        self._asked = self._leasing
        return reached * count + self._leasing, revocations

    def sweep(self, dead_expires: float, dead_max: int) -> int:
        return self._at(lambda store: store.consumer.sweep(dead_expires, dead_max))

    def running_path(self) -> str | None:
        """The first server's: while we work with another one, deaths of a whole worker are not counted."""
        return self._stores[0].consumer.running_path()

    def deregister(self) -> None:
        self._stores[self._leasing].consumer.deregister()

    # -- administration, any thread --

    def queues(self) -> list[QueueInfo]:
        return self._ask(lambda store: store.admin.queues())

    def next_due(self, queues: Sequence[str]) -> float | None:
        return self._ask(lambda store: store.admin.next_due(queues))

    def depths(self, queues: Sequence[str]) -> list[QueueInfo]:
        return self._stores[self._leasing].admin.depths(queues)  # where the listener is

    def purge(self, queue: str) -> int:
        return self._ask(lambda store: store.admin.purge(queue))

    def dead(self, queue: str | None = None, limit: int = 100) -> list[Dead]:
        return self._ask(lambda store: store.admin.dead(queue, limit))

    def dead_retry(self, tags: Sequence[int] | None = None) -> int:
        return self._ask(lambda store: store.admin.dead_retry(tags))

    def dead_discard(self, tags: Sequence[int] | None = None) -> int:
        return self._ask(lambda store: store.admin.dead_discard(tags))

    def join(self, connection: Any) -> Sender:
        return self._stores[self._sending].sender.join(connection)

    def push_dead(self, letters: Sequence[Dead]) -> None:
        self._ask(lambda store: store.admin.push_dead(letters))

    def flush_delayed(self, queue: str) -> int:
        return self._ask(lambda store: store.admin.flush_delayed(queue))

    def workers(self) -> list[dict[str, object]]:
        return self._ask(lambda store: store.admin.workers())

    def close(self) -> None:
        for store in self._stores:
            try:
                store.close()
            except BrokerUnavailable as error:
                logger.info("broker %s did not hear that we leave: %s", mask_urls(store.url), error)
