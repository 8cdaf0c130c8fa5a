"""Administration of one of kombu's transports: as little ours to mark as publishing is.

Comes from:  people and tools, by ``Broker.admin``.
Goes to:     kombu, on a connection for each question.
Thread:      any.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from qworker.interrupts import undisturbed
from qworker.transports.kombu.messages import dead, outgoing, read
from qworker.transports.kombu.sender import KombuSender
from qworker.transports.kombu.server import DEAD, FAILED, Server, close
from qworker.transports.lease import Admin, Dead, QueueInfo
from qworker.transports.own_headers import REDELIVERED
from qworker.transports.presence import Presence


class KombuAdmin(Admin):
    """known: queues to be listed, besides those that *sender* has published to."""

    def __init__(self, server: Server, sender: KombuSender, known: Sequence[str]) -> None:
        self._server = server
        self._sender = sender
        self._known = frozenset(known)
        self.after_fork()

    def after_fork(self) -> None:
        """In a forked child: whoever has the turn is in the parent."""
        self._turn = threading.Lock()

    def _names(self) -> set[str]:
        return {*self._known, *self._sender.known} - {DEAD, FAILED}

    @contextmanager
    def _administrating(self) -> Iterator[Callable[[str], Any]]:
        """A function that gives a queue, on a connection for this."""
        connection = self._server.connect()
        try:
            with self._server.errors(connection):
                yield lambda name: self._server.declare(connection, name)
        finally:
            close(connection)

    @undisturbed
    def queues(self) -> list[QueueInfo]:
        names = self._names()
        ready = {info.queue: info.ready for info in self.depths(sorted(names))}
        dead = Counter(letter.queue for letter in self.dead(None, 2**31))
        found = [QueueInfo(name, ready.get(name, 0), dead=dead[name]) for name in {*names, *dead}]
        return sorted(info for info in found if info.ready or info.dead)

    def next_due(self, queues: Sequence[str]) -> float | None:
        """Always None: brokers do not tell (see ``lacks``)."""
        return None

    @undisturbed
    def depths(self, queues: Sequence[str]) -> list[QueueInfo]:
        with self._administrating() as find:
            return [
                QueueInfo(name, int(find(name).queue_declare(passive=True).message_count or 0))
                for name in queues
            ]

    @undisturbed
    def purge(self, queue: str) -> int:
        with self._administrating() as find:
            return int(find(queue).purge() or 0)

    @contextmanager
    def letters(self, kind: str) -> Iterator[list[tuple[Any, Dead]]]:
        """All letters of a *kind* (DEAD, FAILED) with their messages; what is not acknowledged goes back. One
        reader at a time: while one has them, others would find none."""
        with self._turn, self._taken(kind) as taken:
            yield taken

    @contextmanager
    def _taken(self, kind: str) -> Iterator[list[tuple[Any, Dead]]]:
        taken: list[tuple[Any, Dead]] = []
        with self._administrating() as queue:
            letters = queue(kind)
            try:
                while (message := letters.get(no_ack=False)) is not None:
                    taken.append((message, dead(read(message))))
                yield taken
            finally:
                for message, _ in taken:
                    if not message.acknowledged:
                        message.requeue()

    @undisturbed
    def dead(self, queue: str | None = None, limit: int = 100) -> list[Dead]:
        return self.newest(DEAD, queue, limit)

    def newest(self, kind: str, queue: str | None, limit: int) -> list[Dead]:
        """Return the newest *limit* letters of a *kind*, of all queues or of *queue*, newest first."""
        with self.letters(kind) as taken:
            letters = [letter for _, letter in taken if queue is None or letter.queue == queue]
        letters.sort(key=lambda letter: -letter.died_at)
        return letters[:limit]

    @undisturbed
    def dead_retry(self, tags: Sequence[int] | None = None) -> int:
        count, chosen = 0, None if tags is None else set(tags)
        with self.letters(DEAD) as taken:
            for message, letter in taken:
                if chosen is not None and letter.tag not in chosen:
                    continue
                priority = read(message).priority
                self._sender.send(
                    [
                        outgoing(
                            letter.queue, letter.headers, letter.properties, letter.body, priority,
                            {REDELIVERED: True},
                        )
                    ]
                )  # fmt: skip
                message.ack()
                count += 1
        return count

    @undisturbed
    def dead_discard(self, tags: Sequence[int] | None = None) -> int:
        return self.discard(DEAD, tags)

    def discard(self, kind: str, tags: Sequence[int] | None) -> int:
        """Delete letters of a *kind* with *tags* (None: all); return how many."""
        count, chosen = 0, None if tags is None else set(tags)
        with self.letters(kind) as taken:
            for message, letter in taken:
                if chosen is None or letter.tag in chosen:
                    message.ack()
                    count += 1
        return count

    def workers(self) -> list[Presence]:
        """Always []: brokers do not tell (see ``lacks``)."""
        return []
