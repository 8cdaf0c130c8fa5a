"""custom: a transport for qworker's worker over the project's ``Q_CLUSTER['broker_class']``.

Comes from:  ``transports/opening.py``.
Goes to:     the methods of the project's class: enqueue, dequeue, acknowledge, fail, queue_size.
Thread:      the listener's; for each queue, one instance of the class publishes and another takes.

The guarantees are those of the class. Without receipts, tasks taken by a killed cluster are lost. When the
cluster ends, tasks that it returns are enqueued again and acknowledged.
"""

import logging
import math
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from django.core.signing import BadSignature

from qworker.django.brokers.base import Broker
from qworker.django.conf import conf
from qworker.django.signing import SignedPackage
from qworker.django.transports.packages import envelope_of, text_of
from qworker.errors import BrokerUnavailable
from qworker.transports.capabilities import Capability
from qworker.transports.lease import (
    Claim,
    DeadLetter,
    Envelope,
    Kind,
    Leased,
    QueueInfo,
    Reclaimed,
    Release,
    Settlement,
    SingleObjectBroker,
    Store,
)

logger = logging.getLogger("django-q")


MOST_FAILURES = 5
"""Attempts to settle a package that are repeated."""


class _Taken(NamedTuple):
    """A taken package: its broker, its tracking id, and its text; whether it was returned, and how many
    attempts to settle it have failed."""

    broker: Broker
    receipt: Any
    text: str
    is_returned: bool = False
    failures: int = 0


class CustomTransport(SingleObjectBroker):
    """A transport over the project's class. make: makes an instance for the queue of a name."""

    missing = None
    purges_leased = False

    def __init__(self, make: Callable[[str], Broker], name: str) -> None:
        super().__init__(
            f"custom://{name}",
            lacks=frozenset(Capability),
            letters={},
            revocations=None,
            presence=None,
            peeking=None,
            delayed=None,
            stored_results=None,
            by_queue=None,
            registry=None,
            lowest_first=False,
            silent_seconds=math.inf,
        )
        self._make = make
        self._publishing: dict[str, Broker] = {}
        self._lock = threading.Lock()  # of _publishing
        self._taking: dict[str, Broker] = {}  # the listener's, as all below
        self._taken: dict[int, _Taken] = {}
        self._settled: set[int] = set()
        """Tags settled by calls of settle() that failed."""
        self._fetched: list[Leased] = []
        self._queues: tuple[str, ...] = ()
        self._last = 0
        self._woken = threading.Event()

    def _broker(self, queue: str) -> Broker:
        with self._lock:
            return self._publishing.get(queue) or self._publishing.setdefault(queue, self._make(queue))

    # -- publishing --

    def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
        for each in envelopes:
            self._broker(each.queue).enqueue(text_of(each.body))

    @contextmanager
    def _calls(self) -> Iterator[None]:
        """Raise BrokerUnavailable for any exception of the project's class."""
        try:
            yield
        except Exception as error:
            raise BrokerUnavailable(f"{self.url}: {type(error).__name__}: {error}") from error

    # -- taking --

    def register(self, name: str, queues: Sequence[str], concurrency: int) -> int:
        self._queues = tuple(queues)
        self._taking = {queue: self._make(queue) for queue in queues}
        return 1

    def lease(
        self, queues: Sequence[str], limit: int, delayed_limit: int = 0, eta_window: float = 0.0
    ) -> Claim:
        try:
            while len(self._fetched) < limit and self._take(queues):
                pass
        except BrokerUnavailable:
            if not self._fetched:
                raise
        found, self._fetched = self._fetched, []
        return Claim(found)

    def _take(self, queues: Sequence[str]) -> bool:
        """Add packages to those fetched; return whether there were any."""
        before = len(self._fetched)
        for queue in queues:
            broker = self._taking[queue]
            with self._calls():
                packages = list(broker.dequeue() or ())
            for receipt, text in packages:
                leased = self._leased(queue, broker, receipt, text)
                if leased is not None:
                    self._fetched.append(leased)
        return len(self._fetched) > before

    def _leased(self, queue: str, broker: Broker, receipt: Any, text: Any) -> Leased | None:
        text = text.decode() if isinstance(text, bytes) else str(text)
        try:
            package = SignedPackage.loads(text)
            envelope = envelope_of(text, package, queue)
        except (BadSignature, LookupError, TypeError, ValueError, AttributeError, ImportError) as error:
            logger.error("a package in the queue %s cannot be unpacked, and is discarded: %s", queue, error)
            with suppress(BrokerUnavailable), self._calls():
                broker.fail(receipt)
            return None
        self._last += 1
        self._taken[self._last] = _Taken(broker, receipt, text)
        return Leased(
            self._last, queue, 0, None, 0, False, 0, envelope.headers, envelope.properties, envelope.body
        )

    @property
    def prefetched(self) -> bool:
        return bool(self._fetched)

    def wait(self, timeout: float, prefetch: int = 0) -> bool:
        if prefetch > 0 and not self._fetched:
            self._take(self._queues)
        if self._fetched:
            return True
        self._woken.wait(min(timeout, conf.poll))
        self._woken.clear()
        return False

    def wake(self) -> None:
        self._woken.set()

    def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
        lost: set[int] = set()
        settled: set[int] = set()
        failure: Exception | None = None
        for each in settlements:
            if isinstance(each, Store):
                continue
            taken = self._taken.get(each.tag)
            if taken is None:
                lost.add(each.tag)
                continue
            try:
                if isinstance(each, Release) and not taken.is_returned:
                    taken.broker.enqueue(taken.text)
                    taken = taken._replace(is_returned=True)
                if isinstance(each, DeadLetter):
                    taken.broker.fail(taken.receipt)
                else:
                    taken.broker.acknowledge(taken.receipt)
            except Exception as error:
                if taken.failures < MOST_FAILURES:
                    failure = error
                    self._taken[each.tag] = taken._replace(failures=taken.failures + 1)
                    continue
                logger.exception("a package cannot be acknowledged, and may be delivered again")
            del self._taken[each.tag]
            settled.add(each.tag)
        if failure is not None:
            self._settled |= settled
            raise BrokerUnavailable(f"{self.url}: {type(failure).__name__}: {failure}") from failure
        return lost

    def extend(self) -> None:
        """Do nothing: the class cannot extend the time for which a package is taken."""

    def reclaim(self, silent: bool = True) -> list[Reclaimed]:
        return []

    def settled_before(self, tags: Collection[int]) -> Collection[int]:
        found = self._settled.intersection(tags)
        self._settled -= found
        return found

    def in_doubt(self, tags: Collection[int]) -> Collection[int]:
        return ()

    def confirm(self) -> None:
        """Do nothing: acknowledge() is synchronous."""

    def sweep(self, kind: Kind, expires: float, most: int) -> int:
        return 0

    def running_path(self) -> str | None:
        return None

    def deregister(self) -> None:
        self._fetched = []
        before = math.inf
        while len(self._taken) < before:
            before = len(self._taken)
            with suppress(BrokerUnavailable):
                self.settle(1, [Release(tag) for tag in self._taken])
        if self._taken:
            raise BrokerUnavailable(f"{self.url}: {before} packages could not be returned to their queues")

    # -- inspecting --

    def queues(self) -> list[QueueInfo]:
        with self._lock:
            known = dict(self._publishing)
        return [QueueInfo(queue, int(broker.queue_size() or 0)) for queue, broker in known.items()]

    def depths(self, queues: Sequence[str]) -> list[QueueInfo]:
        found = []
        for queue in queues:
            broker = self._broker(queue)
            held = broker.lock_size() or 0
            found.append(QueueInfo(queue, int(broker.queue_size() or 0), leased=int(held)))
        return found

    def purge(self, queue: str) -> int:
        broker = self._broker(queue)
        count = int(broker.queue_size() or 0)
        broker.purge_queue()
        return count

    def close(self) -> None:
        """Do nothing: the project's class keeps its connections."""
