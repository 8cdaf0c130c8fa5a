"""Dead letters and failed tasks in separate queues: shown, sent again, discarded.

Comes from:  users and tools, through ``Broker.letters``; the consumer stores them.
Goes to:     ``ServerQueue``, on a connection for each call; the sender, for those that run again.
Thread:      any.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from qworker.interrupts import undisturbed
from qworker.transports.held.messages import Outgoing, dead, outgoing, read
from qworker.transports.held.port import PLACES, Received, Server, by_queue, close
from qworker.transports.held.sender import HeldSender
from qworker.transports.lease import Again, Dead, Kind, Letters, page_of
from qworker.transports.own_headers import DELIVERIES, DIED, QUEUE, REASON, REDELIVERED


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
                        while found := queue.take(queue.batch, queue.look_seconds):
                            taken += [(message, dead(read(message))) for message in found]
                        yield taken
                    finally:
                        for _, batch in by_queue(message for message, _ in taken if message.acknowledged):
                            queue.finish(batch)
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
        count, chosen = 0, None if tags is None else set(tags)
        with self.taken() as taken:
            for message, letter in taken:
                if chosen is None or letter.tag in chosen:
                    same = Again(letter.tag, letter.headers, letter.properties, letter.body)
                    self._send(message, letter, same, {REDELIVERED: True})
                    count += 1
        return count

    @undisturbed
    def send_again(self, calls: Sequence[Again]) -> int:
        """See Letters.send_again(), but each in two steps: a crash in between leaves a message both sent and
        kept."""
        count = 0
        with self.taken() as taken:
            kept = {letter.tag: (message, letter) for message, letter in taken}
            for call in calls:
                if call.tag in kept:
                    self._send(*kept.pop(call.tag), call, {})
                    count += 1
        return count

    def _send(self, message: Received, letter: Dead, call: Again, own: dict[str, bool]) -> None:
        """Send *call* to replace *letter*, which is deleted."""
        priority = read(message).priority
        self._sender.send([outgoing(letter.queue, call.headers, call.properties, call.body, priority, own)])
        message.ack()

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
