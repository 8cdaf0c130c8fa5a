"""Publishing in portions, with a delay for what is due later.

Comes from:  any thread, by ``Broker.sender``; the consumer, for what goes on.
Goes to:     ``RemoteQueue.send``, on a connection of its own.
Thread:      any, in turn.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from qworker.errors import BrokerUnavailable
from qworker.interrupts import let_pass
from qworker.naming import task_ids
from qworker.transports.held.queue import Entry, NotAll, RemoteQueue, portions
from qworker.transports.held.server import QueueGone
from qworker.transports.kombu.messages import Outgoing
from qworker.transports.kombu.sender import KombuSender
from qworker.transports.own_headers import DUE

LONGEST_PAUSE = 2.0
"""Seconds between two tries of a portion."""


class RemoteSender(KombuSender):
    """See KombuSender."""

    def send(self, messages: Sequence[Outgoing], timeout: float = 10.0) -> None:
        """Send *messages*, a portion at a time. Raises BrokerUnavailable when the first was not taken at
        once, or another not within *timeout* seconds: who is told so in the middle will send all of them
        again."""
        if messages:
            self._in_turn(timeout, lambda: self._send_portions(messages, timeout))
            self._notify()

    def _send_portions(self, messages: Sequence[Outgoing], timeout: float) -> None:
        taken = 0
        ids = task_ids()
        for name in dict.fromkeys(message.queue for message in messages):
            with self._server.errors(self._connection):
                queue = self._queue(name)
            entries = (
                Entry(queue.text(message), self._delay(message, queue), id)
                for message, id in zip(messages, ids, strict=False)
                if message.queue == name
            )
            for portion in portions(queue, entries):
                self._send(name, portion, timeout, taken, len(messages))
                taken += len(portion)

    def _queue(self, name: str) -> RemoteQueue:
        if name not in self._declared:
            self._declared[name] = self._server.declare(self._connection, name)
        queue: RemoteQueue = self._declared[name]
        return queue

    def _send(self, name: str, portion: Sequence[Entry], seconds: float, taken: int, total: int) -> None:
        """Have the queue take *portion*. When the server has *taken* some of the *total*, and be it of this
        portion, the rest is tried again for so many *seconds*."""
        end, pause = time.monotonic() + seconds, 0.1
        while True:
            try:
                with self._server.errors(self._connection):
                    try:
                        return self._queue(name).send(portion)
                    except NotAll as refused:
                        done, portion = refused.divide(portion)
                        taken += len(done)
                        raise refused.reason from refused.reason.__cause__
            except BrokerUnavailable as error:
                let_pass(error)
                if not taken:
                    raise
                if time.monotonic() + pause > end:
                    text = f"{error}; it had taken {taken} of {total} messages"
                    raise BrokerUnavailable(text) from error
                if isinstance(error, QueueGone):
                    del self._declared[name]
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _delay(self, message: Outgoing, queue: RemoteQueue) -> int:
        """For how many seconds the server is to keep *message* to itself."""
        due = message.options["headers"].get(DUE)
        return 0 if due is None else max(0, min(queue.longest_delay, int(due - self._clock.now())))
