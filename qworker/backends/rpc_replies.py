"""The queue that results come to, read by a thread of the process that called.

Comes from:  ``rpc.py``, which asks for its name when this process calls.
Goes to:     *take*, with the body of each reply.
Thread:      any asks for the name; one thread of its own reads.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable
from typing import Any

from qworker.backends.rpc_connection import Connector, kombu, let_go
from qworker.clock import Clock
from qworker.errors import BrokerUnavailable
from qworker.interrupts import apart

logger = logging.getLogger(__name__)

LISTEN_SECONDS = 1.0
SWEEP_SECONDS = 60.0


class ReplyQueue:
    """One queue a process, which goes away with it.

    expires: seconds that it outlives its reader. take(body, correlation id) and sweep(epoch second):
    called by the reader.
    """

    def __init__(
        self,
        connector: Connector,
        expires: float | None,
        clock: Clock,
        take: Callable[[bytes, object], None],
        sweep: Callable[[float], Any],
    ) -> None:
        self._connector = connector
        self._expires = expires
        self._clock = clock
        self._take = take
        self._sweep = sweep
        self._opening = threading.Lock()
        self._known: tuple[int, str] | None = None  # under _opening: process id, queue
        self._stop = threading.Event()

    def after_fork(self) -> None:
        """In a forked child: another thread of the parent's may have held the lock."""
        self._opening = threading.Lock()

    def name(self) -> str:
        """The queue for the results of this process, which is there when this returns. Raises
        BrokerUnavailable."""
        known = self._known
        if known is not None and known[0] == os.getpid():
            return known[1]
        return apart(self._open)

    def _open(self) -> str:
        with self._opening:
            if self._known is None or self._known[0] != os.getpid():
                name = str(uuid.uuid4())
                queue = kombu.Queue(
                    name, durable=True, auto_delete=True, expires=self._expires, routing_key=name
                )
                broken = self._connector.broken
                try:
                    connection = self._connector.connect()
                    self._consume(connection, queue)
                except broken as error:
                    raise BrokerUnavailable(self._connector.why(error)) from error
                self._stop = threading.Event()
                threading.Thread(
                    target=self._read,
                    args=(connection, queue, self._stop, broken),
                    name="qworker-replies",
                    daemon=True,
                ).start()
                self._known = os.getpid(), name
            return self._known[1]

    def _consume(self, connection: Any, queue: Any) -> None:
        channel = connection.default_channel
        bound = queue(channel)
        bound.queue_declare()
        consumer = kombu.Consumer(
            channel, [bound], no_ack=True, auto_declare=False, on_message=self._on_message
        )
        consumer.consume()

    def _on_message(self, message: Any) -> None:
        body = message.body.encode() if isinstance(message.body, str) else bytes(message.body)
        self._take(body, message.properties.get("correlation_id"))

    def _read(
        self, connection: Any, queue: Any, stop: threading.Event, broken: tuple[type[BaseException], ...]
    ) -> None:
        """The thread of the reply queue: reads until the store is closed, connects again when it breaks."""
        sweep_at, failures = 0.0, 0
        while not stop.is_set():
            try:
                if connection is None:
                    connection = self._connector.connect()
                    self._consume(connection, queue)
                    logger.warning("the reply queue is back; results that came meanwhile may be lost")
                    failures = 0
                connection.drain_events(timeout=LISTEN_SECONDS)
            except TimeoutError:
                pass
            except broken as error:
                if isinstance(error, socket.timeout):
                    continue
                logger.warning("the reply queue cannot be read: %s", error)
                let_go(connection)
                connection = None
                failures += 1
                stop.wait(min(0.1 * 2**failures, 10.0))
            now = self._clock.now()
            if now >= sweep_at:
                sweep_at = now + SWEEP_SECONDS
                self._sweep(now)
        let_go(connection)

    def close(self) -> None:
        """End the reader; the next name() opens another queue. May be called twice."""
        self._stop.set()
        self._known = None
