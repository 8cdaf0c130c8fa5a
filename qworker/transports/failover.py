"""Failover: several brokers, one used at a time; the next one when it is unavailable.

Comes from:  ``open_broker``, when ``broker_url`` names more than one.
Goes to:     the stores of those URLs.
Thread:      Sender and Admin from any thread, Consumer from the listener only. The two sides choose their
             server separately: ``Current`` is replaced as a whole, ``FailoverConsumer.index`` is the
             listener's.

At its first failure after an answer, a server gets a second chance, because connections break more often than
servers; but not if it was silent until a timeout. At the next failure the listener registers at the first
other server that is available, and only then leaves the old one. Messages held at the old one come back there
when its lease expires; tags are marked with their server, so that a settlement never reaches another one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from qworker.conf import mask_urls
from qworker.errors import BrokerUnavailable, LeaseLost
from qworker.process.randomness import RANDOM
from qworker.transports.lease import (
    Admin,
    Again,
    Broker,
    ByQueue,
    Claim,
    Consumer,
    Dead,
    Delayed,
    Envelope,
    Hearing,
    Kind,
    Letters,
    Listing,
    MessageState,
    Peeked,
    Peeking,
    Presenting,
    QueueInfo,
    Reclaimed,
    Revocation,
    Revocations,
    Revoking,
    RowsLocked,
    Sender,
    Settlement,
    Store,
    Workers,
)
from qworker.transports.presence import Presence

R = TypeVar("R")
logger = logging.getLogger(__name__)

ROUND_ROBIN, SHUFFLE = "round-robin", "shuffle"
MARK_BITS = 56
"""A tag contains the number of its server from this bit on; those of the first server are unchanged."""
NO_GENERATION = -1
"""A value that brokers never use, so nothing is settled under it."""
QUICK = 1.0
"""Seconds in which a broken connection is noticed; a slower failure means a silent server."""
LEAST_TRY = 0.05
"""Minimum seconds for a push at each server."""


def _there(part: R | None) -> R:
    """Return *part*, which is not None: FailoverBroker only has parts that all its brokers have."""
    assert part is not None
    return part


class Brokers:
    """brokers: in the order in which they are tried. strategy: when one fails, the next is the next in order
    (``round-robin``) or random (``shuffle``)."""

    def __init__(self, brokers: Sequence[Broker], strategy: str) -> None:
        self.brokers = tuple(brokers)
        self._strategy = strategy

    def others(self, index: int) -> list[int]:
        """Return the brokers to try when number *index* fails."""
        count = len(self.brokers)
        others = [(index + step) % count for step in range(1, count)]
        if self._strategy == SHUFFLE:
            RANDOM.shuffle(others)
        return others

    def name(self, index: int) -> str:
        return mask_urls(self.brokers[index].url)

    def say(self, old: int, new: int, error: BrokerUnavailable, who: str) -> None:
        why = mask_urls(str(error))
        names = self.name(old), self.name(new)
        logger.warning(
            "broker %s fails: %s; %s with %s", names[0], why, who, names[1], extra={"event": "failover"}
        )


class Current:
    """The broker currently used for publishing and administration."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self.index = 0

    @property
    def broker(self) -> Broker:
        return self._brokers.brokers[self.index]

    @property
    def count(self) -> int:
        return len(self._brokers.brokers)

    def ask(self, call: Callable[[Broker], R]) -> R:
        """Return *call* applied to the current server, or to the next available one, which becomes the
        current one."""
        first = self.index
        failure: BrokerUnavailable | None = None
        for index in (first, *self._brokers.others(first)):
            try:
                answer = call(self._brokers.brokers[index])
            except RowsLocked:
                raise  # this server answers
            except BrokerUnavailable as error:
                failure = failure or error
                continue
            if failure is not None:
                self.index = index
                self._brokers.say(first, index, failure, "continuing")
            return answer
        assert failure is not None
        raise BrokerUnavailable(
            f"none of the {len(self._brokers.brokers)} brokers answers; error of the first: {failure}"
        ) from failure


class FailoverSender(Sender, Revoking):
    """Publishes at the current broker, or at the next available one."""

    def __init__(self, current: Current) -> None:
        self._current = current

    def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
        """Raises BrokerUnavailable when no server accepted the messages within *timeout* seconds. A server
        that stores them and dies before it answers has them too: then they run twice, under the same ids."""
        deadline = time.monotonic() + timeout
        left = [self._current.count]

        def send(broker: Broker) -> None:
            # Each gets its share of the remaining time, so that one that hangs leaves time for the others.
            share = (deadline - time.monotonic()) / left[0]
            left[0] -= 1
            broker.sender.push(envelopes, max(share, LEAST_TRY))

        self._current.ask(send)

    def revoke(self, ids: Sequence[str], terminate: bool = False, signal: str = "SIGTERM") -> None:
        self._current.ask(lambda broker: _there(broker.revocations).sender.revoke(ids, terminate, signal))

    def join(self, connection: Any) -> Sender:
        return self._current.broker.sender.join(connection)


class FailoverConsumer(Consumer, Hearing, Presenting, ByQueue):
    """Leases from one of *brokers*."""

    def __init__(self, brokers: Brokers, monotonic: Callable[[], float]) -> None:
        self._brokers = brokers
        self._monotonic = monotonic
        self._index = 0  # listener, as all below
        self._answered = False
        """Whether the broker has answered since its last failure."""
        self._silent: BrokerUnavailable | None = None
        """The error when the broker fell silent during a wait: the next call need not try it again."""
        self._asked = -1
        """The broker whose revocations were read last."""
        self._registration: tuple[str, Sequence[str], int] = ("", (), 0)
        self._presence = ""

    @property
    def broker(self) -> Broker:
        """The broker that messages are leased from."""
        return self._brokers.brokers[self._index]

    def wake(self) -> None:
        self.broker.consumer.wake()

    def present(self, text: str) -> None:
        self._presence = text
        self._present(self.broker)

    def _present(self, broker: Broker) -> None:
        if broker.presence is not None:
            broker.presence.consumer.present(self._presence)

    def register(self, name: str, queues: Sequence[str], concurrency: int) -> int:
        self._registration = (name, queues, concurrency)
        index, failure = self._index, None
        for candidate in (index, *self._brokers.others(index)):
            try:
                generation = self._register_at(candidate)
            except BrokerUnavailable as error:
                if failure is None and isinstance(error, RowsLocked):
                    raise  # the current server answers
                failure = failure or error
                continue
            if failure is not None:
                self._brokers.say(index, candidate, failure, "working")
            return generation
        raise BrokerUnavailable(
            f"none of the {len(self._brokers.brokers)} brokers answers; error of the first: {failure}"
        ) from failure

    def _register_at(self, index: int) -> int:
        """Register at broker number *index*. The returned generation contains this number, as tags do."""
        name, queues, concurrency = self._registration
        broker = self._brokers.brokers[index]
        self._present(broker)
        generation = broker.consumer.register(name, queues, concurrency)
        self._index = index
        self._answered, self._silent = True, None
        return generation * len(self._brokers.brokers) + index

    def _at(self, call: Callable[[Broker], R]) -> R:
        """Return *call* applied to the server of the lease. Raises LeaseLost if that is another server
        now."""
        index, began = self._index, self._monotonic()
        silent, self._silent = self._silent, None
        try:
            if silent is not None:
                raise silent
            answer = call(self._brokers.brokers[index])
        except RowsLocked:
            self._answered = True
            raise
        except BrokerUnavailable as error:
            if silent is None and self._answered and self._monotonic() - began < QUICK:
                self._answered = False
                raise
            for candidate in self._brokers.others(index):
                try:
                    self._register_at(candidate)
                except BrokerUnavailable:
                    continue
                self._brokers.say(index, candidate, error, "working")
                raise LeaseLost(
                    f"the lease at {self._brokers.name(index)} is given up: the broker is unavailable"
                ) from error
            raise
        self._answered = True
        return answer

    def _mark(self) -> int:
        return self._index << MARK_BITS

    def lease(
        self, queues: Sequence[str], limit: int, delayed_limit: int = 0, eta_window: float = 0.0
    ) -> Claim:
        return self._marked(
            self._at(lambda broker: broker.consumer.lease(queues, limit, delayed_limit, eta_window))
        )

    def look(self, queue: str) -> Claim:
        def look(broker: Broker) -> Claim:
            by_queue = broker.by_queue
            return broker.consumer.lease([queue], 1) if by_queue is None else by_queue.look(queue)

        return self._marked(self._at(look))

    def unbind(self, queue: str) -> None:
        self._at(lambda broker: broker.by_queue and broker.by_queue.unbind(queue))

    def _marked(self, claim: Claim) -> Claim:
        """Return *claim* with tags marked with their server."""
        last = claim.last_revocation
        if last is not None:  # the meaning of another server's cursor is unknown until that one is queried
            last = last * len(self._brokers.brokers) + self._index if self._asked == self._index else None
        mark = self._mark()
        messages = [one._replace(tag=one.tag ^ mark) for one in claim.messages] if mark else claim.messages
        return Claim(messages, claim.next_due, last)

    def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
        own, whose = divmod(generation, len(self._brokers.brokers))
        inner_generation = own if whose == self._index else NO_GENERATION
        mark = self._mark()
        if not mark:
            return self._at(lambda broker: broker.consumer.settle(inner_generation, settlements))
        inner = [one if isinstance(one, Store) else one._replace(tag=one.tag ^ mark) for one in settlements]
        return {
            tag ^ mark for tag in self._at(lambda broker: broker.consumer.settle(inner_generation, inner))
        }

    def settled_before(self, tags: Collection[int]) -> Collection[int]:
        mark = self._mark()
        inner = [tag ^ mark for tag in tags]
        return [tag ^ mark for tag in self._at(lambda broker: broker.consumer.settled_before(inner))]

    def in_doubt(self, tags: Collection[int]) -> Collection[int]:
        mark = self._mark()
        inner = [tag ^ mark for tag in tags]
        return [tag ^ mark for tag in self._brokers.brokers[self._index].consumer.in_doubt(inner)]

    def confirm(self) -> None:
        self._at(lambda broker: broker.consumer.confirm())

    def extend(self) -> None:
        self._at(lambda broker: broker.consumer.extend())

    def reclaim(self, silent: bool = True) -> list[Reclaimed]:
        return self._at(lambda broker: broker.consumer.reclaim(silent))

    @property
    def poll_seconds(self) -> float:  # type: ignore[override]
        return self.broker.consumer.poll_seconds

    @property
    def prefetched(self) -> bool:
        return self.broker.consumer.prefetched

    def wait(self, timeout: float, prefetch: int = 0) -> bool:
        began = self._monotonic()
        try:
            return self.broker.consumer.wait(timeout, prefetch)
        except BrokerUnavailable as error:
            if self._monotonic() - began >= timeout + QUICK:
                self._silent = error
            raise

    def revoked_since(self, cursor: int) -> tuple[int, list[Revocation]]:
        # A cursor contains its server; those of other servers are meaningless here.
        count = len(self._brokers.brokers)
        known, whose = divmod(cursor, count)
        found = known if whose == self._index else 0
        reached, revocations = self._at(
            lambda broker: _there(broker.revocations).consumer.revoked_since(found)
        )
        self._asked = self._index
        return reached * count + self._index, revocations

    def sweep(self, kind: Kind, expires: float, most: int) -> int:
        return self._at(lambda broker: broker.consumer.sweep(kind, expires, most))

    def running_path(self) -> str | None:
        """Return the first server's path. At other servers, deaths of whole workers are not counted."""
        return self._brokers.brokers[0].consumer.running_path()

    def deregister(self) -> None:
        self.broker.consumer.deregister()


class FailoverAdmin(Admin, Listing, Peeking, Delayed):
    """Queries the current broker, or the next available one. States of queues come from the one that messages
    are leased from."""

    def __init__(self, current: Current, consumer: FailoverConsumer) -> None:
        self._current = current
        self._consumer = consumer

    def queues(self) -> list[QueueInfo]:
        return self._current.ask(lambda broker: broker.admin.queues())

    def next_due(self, queues: Sequence[str]) -> float | None:
        return self._current.ask(lambda broker: _there(broker.delayed).next_due(queues))

    def peek(self, queue: str, state: MessageState, limit: int) -> list[Peeked]:
        return self._current.ask(lambda broker: _there(broker.peeking).peek(queue, state, limit))

    def depths(self, queues: Sequence[str]) -> list[QueueInfo]:
        return self._consumer.broker.admin.depths(queues)  # the listener's server

    @property
    def purges_leased(self) -> bool:
        return self._current.ask(lambda broker: broker.admin.purges_leased)

    def purge(self, queue: str) -> int:
        return self._current.ask(lambda broker: broker.admin.purge(queue))

    def flush_delayed(self, queue: str) -> int:
        return self._current.ask(lambda broker: _there(broker.delayed).flush_delayed(queue))

    def workers(self) -> list[Presence]:
        return self._current.ask(lambda broker: _there(broker.presence).admin.workers())


class FailoverLetters(Letters):
    """Letters of *kind* at the current broker, or at the next one that answers."""

    def __init__(self, kind: Kind, brokers: Sequence[Broker], current: Current) -> None:
        self.portion = max(broker.letters[kind].portion for broker in brokers)
        self._kind = kind
        self._current = current

    def _ask(self, call: Callable[[Letters], R]) -> R:
        return self._current.ask(lambda broker: call(broker.letters[self._kind]))

    def page(self, queue: str | None, limit: int, after: Dead | None) -> list[Dead]:
        # The portion of another broker may be larger than this one reads at a time.
        return self._ask(lambda letters: list(letters.newest(queue, limit, after)))

    def retry(self, tags: Sequence[int] | None = None) -> int:
        return self._ask(lambda letters: letters.retry(tags))

    def send_again(self, calls: Sequence[Again]) -> int:
        return self._ask(lambda letters: letters.send_again(calls))

    def discard(self, tags: Sequence[int] | None = None) -> int:
        return self._ask(lambda letters: letters.discard(tags))

    def push(self, letters: Sequence[Dead]) -> None:
        self._ask(lambda kept: kept.push(letters))


class FailoverBroker(Broker):
    """brokers: in the order in which they are tried, at least one, at most 64. strategy: see Brokers.
    monotonic: the clock with which the listener distinguishes silent from unreachable servers."""

    def __init__(
        self,
        brokers: Sequence[Broker],
        strategy: str = ROUND_ROBIN,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._brokers = tuple(brokers)
        shared = Brokers(brokers, strategy)
        current, consumer = Current(shared), FailoverConsumer(shared, monotonic)
        self._current = current
        sender, admin = FailoverSender(current), FailoverAdmin(current, consumer)

        def all_have(part: str) -> bool:
            return all(getattr(broker, part) is not None for broker in brokers)

        # Data stored at one broker would not be found at the other: no failed tasks, no results beside the
        # messages, no exchanges.
        kinds: list[Kind] = ["dead"] if all("dead" in broker.letters for broker in brokers) else []
        super().__init__(
            ";".join(broker.url for broker in brokers),
            sender,
            consumer,
            admin,
            lacks=frozenset().union(*(broker.lacks for broker in brokers)),
            letters={kind: FailoverLetters(kind, brokers, current) for kind in kinds},
            revocations=Revocations(sender, consumer) if all_have("revocations") else None,
            presence=Workers(consumer, admin) if all_have("presence") else None,
            peeking=admin if all_have("peeking") else None,
            delayed=admin if all_have("delayed") else None,
            stored_results=None,
            by_queue=consumer,
            registry=None,
            lowest_first=any(broker.lowest_first for broker in brokers),
            silent_seconds=min(broker.silent_seconds for broker in brokers),
        )

    @property
    def missing(self) -> str | None:
        return self._current.broker.missing

    def close(self) -> None:
        for broker in self._brokers:
            try:
                broker.close()
            except BrokerUnavailable as error:
                logger.info("could not deregister this worker at broker %s: %s", mask_urls(broker.url), error)
