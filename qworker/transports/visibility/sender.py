"""Publishing in portions, with a delay for what is due later.

Comes from:  any thread, by ``Broker.sender``; the consumer, for what goes on.
Goes to:     ``RemoteQueue.send``, on a connection of its own.
Thread:      any, in turn.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from qworker.errors import BrokerUnavailable
from qworker.transports.kombu.messages import Outgoing
from qworker.transports.kombu.sender import KombuSender
from qworker.transports.own_headers import DUE
from qworker.transports.visibility.queue import Entry, RemoteQueue, portions


class RemoteSender(KombuSender):
    """See KombuSender."""

    def send(self, messages: Sequence[Outgoing], timeout: float = 10.0) -> None:
        if not messages:
            return
        deadline = time.monotonic() + timeout
        with self._publishing(timeout):
            for name in dict.fromkeys(message.queue for message in messages):
                if name not in self._declared:
                    self._declared[name] = self._server.declare(self._connection, name)
                queue: RemoteQueue = self._declared[name]
                entries = (
                    Entry(queue.text(message), self._delay(message, queue))
                    for message in messages
                    if message.queue == name
                )
                for portion in portions(queue, entries):
                    if time.monotonic() >= deadline:
                        raise BrokerUnavailable(
                            f"{self._server.shown} took not all messages within {timeout:g} s"
                        )
                    queue.send(portion)
        self._notify()

    def _delay(self, message: Outgoing, queue: RemoteQueue) -> int:
        """For how many seconds the server is to keep *message* to itself."""
        due = message.options["headers"].get(DUE)
        return 0 if due is None else max(0, min(queue.longest_delay, int(due - self._clock.now())))
