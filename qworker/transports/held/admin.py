"""Administration of a server that hides what it gives out, and counts what is delayed and leased as well.

Comes from:  people and tools, by ``Broker.admin``.
Goes to:     ``RemoteQueue``, on a connection for each question.
Thread:      any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from qworker.interrupts import undisturbed
from qworker.transports.held.queue import Received, RemoteQueue, by_queue
from qworker.transports.kombu.admin import KombuAdmin
from qworker.transports.kombu.messages import Outgoing, dead, outgoing, read
from qworker.transports.kombu.server import DEAD
from qworker.transports.lease import Dead, QueueInfo
from qworker.transports.own_headers import DELIVERIES, DIED, QUEUE, REASON


class RemoteAdmin(KombuAdmin):
    """See KombuAdmin."""

    @undisturbed
    def queues(self) -> list[QueueInfo]:
        names = sorted(self._names())
        standing = {info.queue: info for info in self._standing(names)}
        dead = Counter(letter.queue for letter in self.dead(None, 2**31))
        found = [
            standing.get(name, QueueInfo(name))._replace(dead=dead[name])
            for name in sorted({*names, *standing, *dead})
        ]
        return [info for info in found if info.ready or info.delayed or info.leased or info.dead]

    def _standing(self, queues: Sequence[str]) -> list[QueueInfo]:
        """As depths(), with all that the server tells only when it is asked for each message; it may be of
        other queues, too."""
        return self.depths(queues)

    @undisturbed
    def depths(self, queues: Sequence[str]) -> list[QueueInfo]:
        with self._administrating() as find:
            counts = [(name, find(name).count()) for name in queues]
        return [QueueInfo(name, count.ready, count.delayed, count.leased) for name, count in counts]

    @undisturbed
    def push_dead(self, letters: Sequence[Dead]) -> None:
        self._sender.send([_written(letter) for letter in letters])

    @contextmanager
    def _taken(self, kind: str) -> Iterator[list[tuple[Received, Dead]]]:
        """As KombuAdmin's, in batches."""
        taken: list[tuple[Received, Dead]] = []
        with self._administrating() as find:
            letters: RemoteQueue = find(kind)
            try:
                while found := letters.receive(letters.batch, letters.look_seconds):
                    taken += [(message, dead(read(message))) for message in found]
                yield taken
            finally:
                done = [message for message, _ in taken if message.acknowledged]
                for queue, batch in by_queue(done):
                    queue.delete(batch)
                for queue, batch in by_queue(message for message, _ in taken if not message.acknowledged):
                    queue.give_back(batch)


def _written(letter: Dead) -> Outgoing:
    own = {QUEUE: letter.queue, REASON: letter.reason, DIED: letter.died_at, DELIVERIES: letter.deliveries}
    return outgoing(DEAD, letter.headers, letter.properties, letter.body, 0, own)
