"""The broker of a server that reserves messages, consisting of the modules in this package.

Comes from:  the ``open_broker`` of each such transport; users and tools, through ``Broker.admin``.
Goes to:     the sender and the consumer beside this module; the administration opens a
             connection for each call.
Thread:      any; one connection publishes, in turn, one belongs to the listener; neither crosses a fork.

It supports what the server supports (see ``transports/capabilities.py``).
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.interrupts import undisturbed
from qworker.process.forked import forgetful
from qworker.process.wakeup import WakeupPipe
from qworker.transports.capabilities import capabilities_of
from qworker.transports.held.consumer import MESSAGE, HeldConsumer
from qworker.transports.held.messages import Outgoing, dead, outgoing, read
from qworker.transports.held.port import (
    DEAD,
    FAILED,
    PLACES,
    Received,
    Server,
    ServerQueue,
    by_queue,
    close,
    depths,
)
from qworker.transports.held.sender import HeldSender
from qworker.transports.lease import (
    Admin,
    Again,
    Broker,
    Dead,
    Kind,
    Letters,
    QueueInfo,
    Revocations,
    page_of,
)
from qworker.transports.own_headers import DELIVERIES, DIED, QUEUE, REASON, REDELIVERED

if TYPE_CHECKING:
    from qworker.conf import Settings


class HeldLetters(Letters):
    """sender: of this process. Reading takes all of them."""

    portion = sys.maxsize

    def __init__(self, server: Server, sender: HeldSender, kind: Kind) -> None:
        self._server = server
        self._sender = sender
        self._queue = PLACES[kind]
        self.after_fork()

    def after_fork(self) -> None:
        """In a forked child: the thread that held the lock is in the parent."""
        self._turn = threading.Lock()

    @contextmanager
    def taken(self) -> Iterator[list[tuple[Received, Dead]]]:
        """Yield all letters with their messages; unacknowledged ones go back. One reader at a time, because
        others would find none meanwhile."""
        taken: list[tuple[Received, Dead]] = []
        with self._turn:
            connection = self._server.connect()
            try:
                with self._server.errors(connection):
                    queue = self._server.declare(connection, self._queue)
                    try:
                        _take_all(queue, taken)
                        yield taken
                    finally:
                        _delete(message for message, _ in taken)
                        for _, batch in by_queue(one for one, _ in taken if not one.acknowledged):
                            queue.give_back(batch)
            finally:
                close(connection)

    @undisturbed
    def page(self, queue: str | None, limit: int, after: Dead | None) -> list[Dead]:
        with self.taken() as taken:
            letters = [letter for _, letter in taken if queue is None or letter.queue == queue]
        return page_of(letters, limit, after)

    @undisturbed
    def retry(self, tags: Sequence[int] | None = None) -> int:
        chosen = None if tags is None else set(tags)
        with self.taken() as taken:
            return self._send(
                (
                    (each, Again(each[1].tag, each[1].headers, each[1].properties, each[1].body))
                    for each in taken
                    if chosen is None or each[1].tag in chosen
                ),
                {REDELIVERED: True},
            )

    @undisturbed
    def send_again(self, calls: Sequence[Again]) -> int:
        """See Letters.send_again(), but a portion at a time, in two steps: a crash in between leaves its
        messages both sent and kept."""
        with self.taken() as taken:
            kept = {each[1].tag: each for each in taken}
            return self._send(((kept.pop(call.tag), call) for call in calls if call.tag in kept), {})

    def _send(self, calls: Iterable[tuple[tuple[Received, Dead], Again]], own: dict[str, bool]) -> int:
        """Send *calls* to replace the letters beside them, which are deleted; return how many were deleted.

        Where reading does not hide a letter, another process may send it at the same time: both send it under
        the letter's id, and one of them deletes it.
        """
        count, sent = 0, list[Received]()
        for (message, letter), call in calls:
            priority = read(message).priority
            again = outgoing(letter.queue, call.headers, call.properties, call.body, priority, own)
            self._sender.send([again._replace(once=f"{self._queue}.{message.delivery_tag}")])
            message.ack()
            sent.append(message)
            if len(sent) == message.queue.batch:
                count += _delete(sent)
                sent = []
        return count + _delete(sent)

    @undisturbed
    def discard(self, tags: Sequence[int] | None = None) -> int:
        count, chosen = 0, None if tags is None else set(tags)
        with self.taken() as taken:
            for message, letter in taken:
                if chosen is None or letter.tag in chosen:
                    message.ack()
                    count += 1
        return count

    @undisturbed
    def push(self, letters: Sequence[Dead]) -> None:
        self._sender.send([self._written(letter) for letter in letters])

    def _written(self, letter: Dead) -> Outgoing:
        _, queue, reason, died_at, deliveries, headers, properties, body = letter
        own = {QUEUE: queue, REASON: reason, DIED: died_at, DELIVERIES: deliveries}
        return outgoing(self._queue, headers, properties, body, 0, own)


def _take_all(queue: ServerQueue, taken: list[tuple[Received, Dead]]) -> None:
    """Add all messages in *queue* to *taken*. If there are many, the reservation of the first may expire
    before the last are read; then they come again."""
    began = time.monotonic()
    places: dict[str, int] = {}
    while found := queue.take(queue.batch, queue.look_seconds):
        count = len(taken)
        for message in found:
            each = (message, dead(read(message)))
            place = places.setdefault(message.delivery_tag, len(taken))
            if place < len(taken) and time.monotonic() - began >= message.lease_seconds:
                taken[place] = each  # the newer receipt is valid
            else:
                taken.append(each)
        if len(taken) == count:
            return


def _delete(messages: Iterable[Received]) -> int:
    """Delete those of *messages* that are acknowledged; return how many were there."""
    count = 0
    for queue, batch in by_queue(one for one in messages if one.acknowledged and not one.deleted):
        count += len(batch) - len(queue.finish(batch))
        for message in batch:
            message.deleted = True
    return count


class HeldAdmin(Admin):
    """known: queues to be listed, besides those that *sender* has published to and those that the server
    knows of."""

    def __init__(self, server: Server, sender: HeldSender, known: Sequence[str]) -> None:
        self._server = server
        self._sender = sender
        self._known = frozenset(known)

    @property
    def purges_leased(self) -> bool:
        return self._server.purges_leased

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        connection = self._server.connect()
        try:
            with self._server.errors(connection):
                yield connection
        finally:
            close(connection)

    @undisturbed
    def queues(self) -> list[QueueInfo]:
        with self._connected() as connection:
            names = {*self._known, *self._sender.known, *self._server.names(connection)} - {DEAD, FAILED}
            infos = {info.queue: info for info in self._server.queue_infos(connection, sorted(names))}
        dead = Counter(letter.queue for letter in self.dead(None, sys.maxsize))
        found = [
            infos.get(name, QueueInfo(name))._replace(dead=dead[name])
            for name in sorted({*names, *infos, *dead})
        ]
        return [info for info in found if info.ready or info.delayed or info.leased or info.dead]

    @undisturbed
    def depths(self, queues: Sequence[str]) -> list[QueueInfo]:
        with self._connected() as connection:
            return depths(self._server, connection, queues)

    @undisturbed
    def purge(self, queue: str) -> int:
        with self._connected() as connection:
            return self._server.declare(connection, queue).purge()


_brokers = forgetful()


class HeldBroker(Broker):
    """sender, consumer, admin: of one server. Connects on first use."""

    sender: HeldSender
    consumer: HeldConsumer
    admin: HeldAdmin
    letters: Mapping[Kind, HeldLetters]
    missing = None

    def __init__(
        self,
        url: str,
        server: Server,
        known: Sequence[str] = (),
        eta_limit: int = 1000,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """known: queues to be listed. eta_limit: how many delayed messages a worker holds."""
        wakeup = WakeupPipe()
        sender = HeldSender(server, clock, partial(wakeup.wake, MESSAGE))
        consumer = HeldConsumer(server, sender, wakeup, clock, eta_limit)
        super().__init__(
            url,
            sender,
            consumer,
            HeldAdmin(server, sender, known),
            lacks=capabilities_of(url).lacks,
            letters={
                kind: HeldLetters(server, sender, kind)
                for kind, queue in PLACES.items()
                if queue in (DEAD, *server.letters)
            },
            revocations=Revocations(sender, consumer) if server.spreads_revocations else None,
            presence=None,
            peeking=None,
            delayed=None,
            stored_results=None,
            by_queue=consumer,
            registry=None,
            lowest_first=False,
            silent_seconds=math.inf,
        )
        _brokers.add(self)

    def _after_fork(self) -> None:
        self.sender.after_fork()
        self.consumer.after_fork()
        for letters in self.letters.values():
            letters.after_fork()

    def close(self) -> None:
        try:
            self.consumer.deregister()
        finally:
            self.sender.close()
            self.consumer.close()


def held_broker(url: str, server: Server, conf: Settings) -> HeldBroker:
    """Return the broker at *url*, which is *server*, with the settings *conf*."""
    known = (conf.task_default_queue, *conf.task_queues)
    return HeldBroker(url, server, known, conf.worker_eta_task_limit)


def visibility_of(conf: Settings, usual: int) -> int:
    """Return how many whole seconds a server hides messages: the option ``visibility_timeout``, but no less
    than the lease, which is renewed three times in worker_lease_seconds."""
    asked = int(conf.broker_transport_options.get("visibility_timeout") or usual)
    return max(asked, math.ceil(conf.worker_lease_seconds))
