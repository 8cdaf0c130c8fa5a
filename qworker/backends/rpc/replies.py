"""The reply queue of a process, read by a thread.

Comes from:  ``backend.py``, which needs its name to make a call.
Goes to:     *take*, with the body of each reply.
Thread:      any thread may call name(); a separate thread reads.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from qworker.clock import Clock
from qworker.conf.secrets import mask_urls
from qworker.errors import BrokerUnavailable
from qworker.interrupts import in_helper_thread
from qworker.transports.connect_errors import RABBITMQ, explained, while_connecting
from qworker.transports.tls import for_kombu

logger = logging.getLogger(__name__)

LISTEN_SECONDS = 1.0
SWEEP_SECONDS = 60.0


@dataclass
class Reading:
    """What the reader of a queue knows. broken: see Connector."""

    queue: Any
    broken: tuple[type[BaseException], ...]
    stop: threading.Event
    connection: Any
    failures: int = 0
    sweep_at: float = 0.0


class ReplyQueue:
    """One queue for each process, deleted when the process ends.

    expires: seconds after which the broker deletes a queue without a reader. The reader calls take(body,
    correlation id) and sweep(epoch second).
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
        """In a forked child: another thread of the parent may have held the lock."""
        self._opening = threading.Lock()

    def name(self) -> str:
        """Return the queue for the results of this process, after creating it. Raises BrokerUnavailable."""
        known = self._known
        if known is not None and known[0] == os.getpid():
            return known[1]
        return in_helper_thread(self._open)

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
                self._start(Reading(queue, broken, self._stop, connection))
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

    def _start(self, reading: Reading) -> None:
        threading.Thread(target=self._read, args=(reading,), name="qworker-replies", daemon=True).start()

    def _read(self, reading: Reading) -> None:
        """Read until the store is closed. Runs in the reader's thread."""
        while not reading.stop.is_set():
            self.step(reading, LISTEN_SECONDS)
        let_go(reading.connection)

    def step(self, reading: Reading, seconds: float) -> bool:
        """Read one reply, for which it waits up to *seconds*; return whether there was one. Reconnect after
        failures."""
        found = False
        try:
            if reading.connection is None:
                reading.connection = self._connector.connect()
                self._consume(reading.connection, reading.queue)
                logger.warning("the reply queue is back; results sent meanwhile may be lost")
                reading.failures = 0
            reading.connection.drain_events(timeout=seconds)
            found = True
        except TimeoutError:
            pass
        except reading.broken as error:
            logger.warning("the reply queue cannot be read: %s", error)
            let_go(reading.connection)
            reading.connection = None
            reading.failures += 1
            reading.stop.wait(min(0.1 * 2**reading.failures, 10.0))
        now = self._clock.now()
        if now >= reading.sweep_at:
            reading.sweep_at = now + SWEEP_SECONDS
            self._sweep(now)
        return found

    def close(self) -> None:
        """Stop the reader; the next name() opens another queue. May be called twice."""
        self._stop.set()
        self._known = None


# -- connections of kombu to the broker; each belongs to the thread that made it --

kombu: Any = import_module("kombu")  # it has only partial types

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 10.0
"""Seconds to wait for an answer of the server."""


class Connector:
    """Makes connections to the broker in *conf*."""

    def __init__(self, conf: Any) -> None:
        self.safe_url = mask_urls(conf.broker_url)
        hostname, ssl = for_kombu(conf.broker_url.split(";")[0], conf.broker_use_ssl)
        self._options = {
            "hostname": hostname,
            # For amqp:// kombu would try to import librabbitmq for every connection. A child forked during
            # this import would wait for the import lock forever.
            "transport": "pyamqp" if hostname.startswith("amqp:") else None,
            "ssl": ssl,
            "transport_options": {**_timeouts(hostname), **conf.broker_transport_options},
            "connect_timeout": CONNECT_SECONDS,
        }

    def connect(self) -> Any:
        """Return a new connection. Raises exceptions in ``broken``."""
        connection = kombu.Connection(**self._options)
        connection.ensure_connection(max_retries=1, timeout=CONNECT_SECONDS)
        return connection

    def why(self, error: BaseException) -> str:
        """Return an explanation of *error*, which connect() raised, and what to do."""
        words = while_connecting(str(error) or type(error).__name__, bool(self._options["ssl"]))
        return f"no reply queue at the broker ({self.safe_url}): {explained(words, RABBITMQ)}"

    @property
    def broken(self) -> tuple[type[BaseException], ...]:
        """The exceptions of kombu for a broker that does not answer or refuses."""
        connection = kombu.Connection(**self._options)
        return (
            *connection.connection_errors,
            *connection.channel_errors,
            OSError,
            kombu.exceptions.KombuError,
        )


def let_go(connection: Any) -> None:
    """Close *connection*, which may be broken or None."""
    if connection is None:
        return
    try:
        # Not collect(): it temporarily sets a timeout for all new sockets of the process.
        connection.release()
    except Exception as error:  # noqa: BLE001
        # It is closed in any case.
        logger.debug("closing a connection: %s", error)


def _timeouts(hostname: str) -> dict[str, float]:
    """Return timeouts for py-amqp, for a server that accepts a connection and then does not answer."""
    amqp = hostname.partition("://")[0] in ("amqp", "amqps", "pyamqp")
    return {"read_timeout": ANSWER_SECONDS, "write_timeout": ANSWER_SECONDS} if amqp else {}
