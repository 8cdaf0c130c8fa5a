"""Publishing in portions, with a delay for delayed messages.

Comes from:  any thread, through ``Broker.sender``; the consumer and the letters, for messages sent again.
Goes to:     ``ServerQueue.send``, on its own connection.
Thread:      any, in turn; neither the connection nor the turn crosses a fork.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from qworker.clock import Clock
from qworker.errors import BrokerUnavailable
from qworker.interrupts import LockTimeout, in_helper_thread, reraise_interrupt, with_lock
from qworker.naming import task_ids
from qworker.transports.held.messages import Outgoing, of_envelope
from qworker.transports.held.port import (
    ConnectionGone,
    NewMessage,
    NotAll,
    QueueGone,
    Server,
    ServerQueue,
    close,
)
from qworker.transports.lease import Envelope, Revoking, Sender
from qworker.transports.own_headers import DUE
from qworker.transports.portions import portions_by_size

LONGEST_PAUSE = 2.0
"""Maximum seconds between two tries of a portion."""
REVOKE_SECONDS = 10.0


class HeldSender(Sender, Revoking):
    """notify: called when something was sent, for a consumer of this process that waits."""

    def __init__(self, server: Server, clock: Clock, notify: Callable[[], None]) -> None:
        self._server = server
        self._clock = clock
        self._notify = notify
        self._turn = threading.Lock()
        self._connection: Any = None  # under the turn, as all below
        self._declared: dict[str, ServerQueue] = {}

    def after_fork(self) -> None:
        """In a forked child: the connection belongs to the parent."""
        self._turn = threading.Lock()
        self._connection = None

    @property
    def known(self) -> set[str]:
        """Return the queues that were published to on this connection."""
        return set(self._declared)

    def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
        now = self._clock.now()
        messages = [of_envelope(envelope, now) for envelope in envelopes]
        if self._server.notices_interrupts:
            self.send(messages, timeout)
        else:
            # We cannot release the locks of a library after an interrupt
            in_helper_thread(lambda: self.send(messages, timeout))

    def send(self, messages: Sequence[Outgoing], timeout: float = 10.0) -> None:
        """Send *messages*, a portion at a time. Raises BrokerUnavailable when the first was not accepted at
        once, or another not within *timeout* seconds: the caller will send all of them again."""
        if messages:
            self._in_turn(timeout, lambda: self._send_portions(messages, timeout))
            self._notify()

    def revoke(self, ids: Sequence[str], terminate: bool = False, signal: str = "SIGTERM") -> None:
        def revoke() -> None:
            with self._server.errors(self._connection):
                self._server.revoke(self._connection, ids, terminate, signal)

        self._in_turn(REVOKE_SECONDS, revoke)
        self._notify()

    # -- a turn at the connection --

    def _in_turn(self, timeout: float, work: Callable[[], None]) -> None:
        """Do *work* in our turn to publish, with a connection; any error closes it, and the next use opens
        another."""
        try:
            with_lock(self._turn, timeout, self._connected, work)
        except LockTimeout:
            raise BrokerUnavailable(
                f"{self._server.shown} accepted no message within {timeout:g} s"
            ) from None

    def _connected(self, work: Callable[[], None]) -> None:
        try:
            if self._connection is None:
                connection = self._server.connect()
                self._declared = {}
                self._connection = connection
            work()
        except BaseException:
            self._drop()
            raise

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            close(connection)

    def close(self) -> None:
        """Close the connection; the next use opens another."""
        with self._turn:
            self._drop()

    # -- portions --

    def _send_portions(self, messages: Sequence[Outgoing], timeout: float) -> None:
        taken = 0
        ids = task_ids()
        for name in dict.fromkeys(message.queue for message in messages):
            with self._server.errors(self._connection):
                queue = self._queue(name)
            entries = (
                NewMessage(queue.text(message), self._delay(message, queue), message.once or id)
                for message, id in zip(messages, ids, strict=False)
                if message.queue == name
            )
            for portion in portions_by_size(
                entries, queue.batch, queue.portion_bytes, lambda entry: len(entry.text)
            ):
                self._send(name, portion, timeout, taken, len(messages))
                taken += len(portion)

    def _queue(self, name: str) -> ServerQueue:
        if name not in self._declared:
            self._declared[name] = self._server.declare(self._connection, name)
        return self._declared[name]

    def _send(self, name: str, portion: Sequence[NewMessage], seconds: float, taken: int, total: int) -> None:
        """Send *portion* to the queue. Once the server has *taken* some of the *total*, even only of this
        portion, the rest is tried again for up to *seconds*."""
        end, pause = self._clock.monotonic() + seconds, 0.1
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
                reraise_interrupt(error)
                if not taken or isinstance(error, ConnectionGone):
                    raise
                if self._clock.monotonic() + pause > end:
                    text = f"{error}; it had accepted {taken} of {total} messages"
                    raise BrokerUnavailable(text) from error
                if isinstance(error, QueueGone):
                    del self._declared[name]
            self._clock.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _delay(self, message: Outgoing, queue: ServerQueue) -> int:
        """Return how many seconds the server must delay *message*."""
        due = message.options["headers"].get(DUE)
        return 0 if due is None else max(0, min(queue.longest_delay, int(due - self._clock.now())))
