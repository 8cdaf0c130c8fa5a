"""Results as messages to the one who called, as Celery's ``rpc://`` sends them.

Comes from:  ``result_backend = "rpc://"`` with a broker that kombu reaches.
Goes to:     the queue that a call names in ``reply_to``; ours is read by a thread into memory.
Thread:      any. Who sends has a connection a thread; the reply queue has one reader; none crosses a fork.

Only the process that called can ask for the result. A reply queue belongs to one process, and goes away with
it: results that come later are lost, and so are those that come while the broker is away.
"""

from __future__ import annotations

import logging
import marshal
import os
import socket
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from qworker.backends.base import Backend, Meta
from qworker.backends.memory import MemoryBackend
from qworker.clock import Clock
from qworker.errors import BackendError, BrokerUnavailable, ConfigurationError
from qworker.interrupts import apart
from qworker.transports.lease import ResultRow
from qworker.transports.tls import for_kombu

if TYPE_CHECKING:
    from qworker.context import Context

logger = logging.getLogger(__name__)

kombu: Any = import_module("kombu")  # which has types for a part of itself only

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 10.0
"""After so long without a word a server that was asked something is given up."""
LISTEN_SECONDS = 1.0
SWEEP_SECONDS = 60.0
_TRANSIENT = 1


class RpcBackend(MemoryBackend):
    """What was read from the reply queue is kept in memory until it expires; what is stored is sent."""

    supports_locks = False

    def __init__(self, url: str, conf: Any, clock: Clock) -> None:
        super().__init__(url, conf, clock)
        if conf.broker_url is None or conf.broker_url.startswith("sqlite:"):
            raise ConfigurationError(
                "rpc:// sends results through a broker that is a server: leave result_backend unset for the "
                "embedded broker",
                setting="result_backend",
            )
        hostname, ssl = for_kombu(conf.broker_url.split(";")[0], conf.broker_use_ssl)
        self._options = {
            "hostname": hostname,
            # For amqp:// kombu would look for librabbitmq at every connection. A child that was forked while
            # another thread is at it would wait for that import without end.
            "transport": "pyamqp" if hostname.startswith("amqp:") else None,
            "ssl": ssl,
            "transport_options": {**_patience(hostname), **conf.broker_transport_options},
            "connect_timeout": CONNECT_SECONDS,
        }
        self._senders = threading.local()
        self._opening = threading.Lock()
        self._reply_to: tuple[int, str] | None = None  # under _opening: process id, queue
        self._stop = threading.Event()

    # -- the caller --

    def _after_fork(self) -> None:
        super()._after_fork()
        self._opening = threading.Lock()

    def reply_to(self) -> str:
        """The queue for the results of this process, which is there when this returns. Raises
        BrokerUnavailable."""
        known = self._reply_to
        if known is not None and known[0] == os.getpid():
            return known[1]
        return apart(self._open_replies)

    def _open_replies(self) -> str:
        with self._opening:
            if self._reply_to is None or self._reply_to[0] != os.getpid():
                queue = kombu.Queue(
                    str(uuid.uuid4()), durable=True, auto_delete=True, expires=self.expires, routing_key=""
                )
                queue.routing_key = queue.name
                broken = self._broken
                try:
                    connection = self._connect()
                    self._consume(connection, queue)
                except broken as error:
                    raise BrokerUnavailable(f"no reply queue at {self.safe_url}: {error}") from error
                self._stop = threading.Event()
                threading.Thread(
                    target=self._read,
                    args=(connection, queue, self._stop, broken),
                    name="qworker-replies",
                    daemon=True,
                ).start()
                self._reply_to = os.getpid(), queue.name
            return self._reply_to[1]

    @property
    def _broken(self) -> tuple[type[BaseException], ...]:
        connection = kombu.Connection(**self._options)
        return (
            *connection.connection_errors,
            *connection.channel_errors,
            OSError,
            kombu.exceptions.KombuError,
        )

    def _connect(self) -> Any:
        connection = kombu.Connection(**self._options)
        connection.ensure_connection(max_retries=1, timeout=CONNECT_SECONDS)
        return connection

    def _consume(self, connection: Any, queue: Any) -> None:
        channel = connection.default_channel
        bound = queue(channel)
        bound.queue_declare()
        consumer = kombu.Consumer(channel, [bound], no_ack=True, auto_declare=False, on_message=self._take)
        consumer.consume()

    def _read(
        self, connection: Any, queue: Any, stop: threading.Event, broken: tuple[type[BaseException], ...]
    ) -> None:
        """The thread of the reply queue: reads until the store is closed, connects again when it breaks."""
        sweep_at, failures = 0.0, 0
        while not stop.is_set():
            try:
                if connection is None:
                    connection = self._connect()
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
                _let_go(connection)
                connection = None
                failures += 1
                stop.wait(min(0.1 * 2**failures, 10.0))
            now = self.clock.now()
            if now >= sweep_at:
                sweep_at = now + SWEEP_SECONDS
                self.sweep(now)
        _let_go(connection)

    def _take(self, message: Any) -> None:
        body = message.body.encode() if isinstance(message.body, str) else bytes(message.body)
        try:
            meta = self.decode(body)
            self._store(str(meta["task_id"]), meta["status"], body)
        except (BackendError, KeyError) as error:
            logger.error("a reply cannot be read: %s", error)

    # -- the worker --

    def meta(
        self,
        task_id: str,
        status: str,
        result: Any = None,
        traceback: str | None = None,
        context: Context | None = None,
        properties: Mapping[str, Any] | None = None,
        **extra: Any,
    ) -> Meta:
        """As in Backend, and where to send it."""
        meta = super().meta(task_id, status, result, traceback, context, **extra)
        asked = (context.properties if context is not None else properties) or {}
        meta["reply_to"] = asked.get("reply_to")
        meta["correlation_id"] = asked.get("correlation_id") or task_id
        return meta

    def row(self, task_id: str, meta: Meta) -> ResultRow | None:
        meta = dict(meta)
        queue, correlation = meta.pop("reply_to", None), meta.pop("correlation_id", None)
        if not queue:
            return None  # nobody waits for it
        return task_id, meta["status"], marshal.dumps((queue, correlation, self.encode(meta))), None

    def store(self, task_id: str, meta: Meta) -> bool:
        row = self.row(task_id, meta)
        if row is not None:
            self.store_rows([row])
        return row is not None

    def store_rows(self, rows: Sequence[ResultRow]) -> None:
        apart(lambda: self._send(rows))

    def _send(self, rows: Sequence[ResultRow]) -> None:
        with self._sender() as producer:
            for _, _, payload, _ in rows:
                queue, correlation, body = marshal.loads(payload)
                producer.publish(
                    body,
                    exchange="",
                    routing_key=queue,
                    correlation_id=correlation,
                    content_type=self._content_type,
                    content_encoding="utf-8" if self._serializer in ("json", "yaml") else "binary",
                    delivery_mode=_TRANSIENT,
                    retry=False,
                )

    @contextmanager
    def _sender(self) -> Iterator[Any]:
        """The producer of this thread; errors of the broker are BackendError, and end its connection."""
        senders = self._senders
        if getattr(senders, "pid", None) != os.getpid():
            senders.pid, senders.connection = os.getpid(), None
        try:
            if senders.connection is None:
                senders.connection = self._connect()
                senders.producer = senders.connection.Producer(auto_declare=False)
            yield senders.producer
        except self._broken as error:
            _let_go(senders.connection)
            senders.connection = None
            raise BackendError(f"{self.safe_url}: {error}") from error

    # What a dict can do, and messages cannot.
    add, incr, delete = Backend.add, Backend.incr, Backend.delete
    save_group, get_group, delete_group = Backend.save_group, Backend.get_group, Backend.delete_group

    def close(self) -> None:
        super().close()
        self._stop.set()
        self._reply_to = None
        connection = getattr(self._senders, "connection", None)
        if connection is not None and self._senders.pid == os.getpid():
            _let_go(connection)
            self._senders.connection = None


def _let_go(connection: Any) -> None:
    if connection is None:
        return
    try:
        # Not collect(): it sets a timeout for all new sockets of the process, for a while.
        connection.release()
    except Exception as error:  # noqa: BLE001
        # Whatever a broken connection raises when it is closed, it is closed.
        logger.debug("closing a connection: %s", error)


def _patience(hostname: str) -> dict[str, float]:
    """The options by which py-amqp gives up on a server that has accepted us and then says nothing."""
    amqp = hostname.partition("://")[0] in ("amqp", "amqps", "pyamqp")
    return {"read_timeout": ANSWER_SECONDS, "write_timeout": ANSWER_SECONDS} if amqp else {}
