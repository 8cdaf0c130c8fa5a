"""Publishing by one of kombu's transports.

Comes from:  any thread, by ``Broker.sender``; the consumer and the administration, for what they send anew.
Goes to:     kombu's producer, on a connection of its own.
Thread:      any, in turn; neither the connection nor the turn crosses a fork.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import kombu as untyped_kombu

from qworker.clock import Clock
from qworker.errors import BrokerUnavailable, NotSupported
from qworker.interrupts import NotOurTurn, apart, in_turn
from qworker.transports.kombu.messages import Outgoing, of_envelope
from qworker.transports.kombu.server import Server, close
from qworker.transports.lease import Envelope, Sender

kombu: Any = untyped_kombu


class KombuSender(Sender):
    """notify: called when something was sent, for a consumer of this process that waits."""

    def __init__(self, server: Server, clock: Clock, notify: Callable[[], None]) -> None:
        self._server = server
        self._clock = clock
        self._notify = notify
        self._turn = threading.Lock()
        self._connection: Any = None  # under the turn, as all below
        self._producer: Any = None
        self._declared: dict[str, Any] = {}

    def after_fork(self) -> None:
        """In a forked child: the parent's connection is not ours."""
        self._turn = threading.Lock()
        self._connection = self._producer = None

    @property
    def known(self) -> set[str]:
        """The queues that were published to on this connection."""
        return set(self._declared)

    def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
        messages = self._outgoing(envelopes)
        apart(lambda: self.send(messages, timeout))  # what kombu's transports lock is not ours to give back

    def _outgoing(self, envelopes: Sequence[Envelope]) -> list[Outgoing]:
        now = self._clock.now()
        return [of_envelope(envelope, now) for envelope in envelopes]

    def send(self, messages: Sequence[Outgoing], timeout: float = 10.0) -> None:
        """Send *messages*. Raises BrokerUnavailable when some did not go out within *timeout* seconds."""
        if messages:
            self._publishing(timeout, lambda: self._send_all(messages, timeout, time.monotonic() + timeout))
            self._notify()

    def _send_all(self, messages: Sequence[Outgoing], timeout: float, deadline: float) -> None:
        if self._producer is None:
            self._producer = kombu.Producer(self._connection.channel())
        for message in messages:
            left = deadline - time.monotonic()
            if left <= 0:
                raise BrokerUnavailable(f"{self._server.shown} took not all messages within {timeout:g} s")
            if message.queue not in self._declared:
                self._declared[message.queue] = self._server.declare(self._connection, message.queue)
            self._producer.publish(
                message.body, exchange="", routing_key=message.queue, serializer=None, **message.options
            )

    def _publishing(self, timeout: float, work: Callable[[], None]) -> None:
        """Do *work* in our turn to publish, with a connection, whose errors come out as ours."""

        def published() -> None:
            with self._server.errors(self._connection):
                work()

        self._in_turn(timeout, published)

    def _in_turn(self, timeout: float, work: Callable[[], None]) -> None:
        """Do *work* in our turn to publish, with a connection; after whatever error the next has another."""
        try:
            in_turn(self._turn, timeout, self._connected, work)
        except NotOurTurn:
            raise BrokerUnavailable(f"{self._server.shown} took no message within {timeout:g} s") from None

    def _connected(self, work: Callable[[], None]) -> None:
        try:
            if self._connection is None:
                connection = self._connect()
                self._declared = {}
                self._connection = connection
            work()
        except BaseException:
            self._drop()
            raise

    def _connect(self) -> Any:
        return self._server.connect()

    def _drop(self) -> None:
        connection, self._connection, self._producer = self._connection, None, None
        if connection is not None:
            close(connection)

    def revoke(self, ids: Sequence[str], terminate: bool = False, signal: str = "SIGTERM") -> None:
        raise NotSupported(
            f"{self._server.shown} has no way to tell all workers: tasks cannot be revoked with this broker"
        )

    def close(self) -> None:
        """Let go of the connection; the next use opens another."""
        with self._turn:
            self._drop()
