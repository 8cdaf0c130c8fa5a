"""Results as messages to the calling process, like Celery's ``rpc://``.

Comes from:  ``result_backend = "rpc://"`` with a broker that kombu supports.
Goes to:     the queue named in ``reply_to`` of a call; from the queue of this process to memory.
Thread:      any; a separate thread reads the reply queue, and stores what arrives.

Only the calling process can read a result. A reply queue belongs to one process, and is deleted with it:
later results are lost, and so are those sent while the broker is unavailable. A process that makes many calls
without reading results keeps only the newest.
"""

from __future__ import annotations

import logging
import marshal
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from qworker import states
from qworker.backends.base import Backend, Meta
from qworker.backends.keyvalue.memory import MemoryBackend
from qworker.clock import Clock
from qworker.conf.secrets import mask_urls
from qworker.errors import BackendError, BrokerUnavailable, ConfigurationError
from qworker.interrupts import in_helper_thread
from qworker.message.exceptions import exception_to_dict
from qworker.transports.connect_errors import RABBITMQ, explained, while_connecting
from qworker.transports.lease import ResultRow
from qworker.transports.tls import for_kombu

if TYPE_CHECKING:
    from qworker.message.context import Context


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
                logger.warning("the reply queue is available again; results sent in the meantime may be lost")
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


logger = logging.getLogger(__name__)


class RpcBackend(MemoryBackend):
    """Results read from the reply queue are kept in memory until they expire; stored results are sent."""

    supports_locks = False

    def __init__(self, url: str, conf: Any, clock: Clock) -> None:
        super().__init__(url, conf, clock)
        self._values = Newest()
        if conf.broker_url is None or conf.broker_url.startswith("sqlite:"):
            raise ConfigurationError(
                "rpc:// needs a broker that is a server: leave result_backend unset for the embedded broker",
                setting="result_backend",
            )
        connector = Connector(conf)
        self._replies = ReplyQueue(connector, self.expires, clock, self._take, self.sweep)
        self._sender = ReplySender(connector, self.codec.content)

    # -- the caller --

    def _after_fork(self) -> None:
        super()._after_fork()
        self._replies.after_fork()

    def reply_to(self) -> str:
        """Return the queue for the results of this process, after creating it. Raises BrokerUnavailable."""
        return self._replies.name()

    def _take(self, body: bytes, correlation: object) -> None:
        """Store a received reply. An unreadable reply is stored for the task that it names, whose waiters get
        DamagedResult. With signatures it is discarded, because any client may have sent it."""
        try:
            meta = self.codec.decode(body)
            self._store(str(meta["task_id"]), meta["status"], body, self.expires)
        except (BackendError, KeyError) as error:
            logger.error("a reply cannot be read: %s", error)
            if not self.codec.signs and isinstance(correlation, str):
                self._store(correlation, states.FAILURE, body, self.expires)

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
        """See Backend.meta(); adds ``reply_to`` and ``correlation_id``."""
        asked = (context.properties if context is not None else properties) or {}
        where = {"reply_to": asked.get("reply_to"), "correlation_id": asked.get("correlation_id") or task_id}
        return {**super().meta(task_id, status, result, traceback, context, **extra), **where}

    def row(self, task_id: str, meta: Meta, kept: float = 0.0) -> ResultRow | None:
        queue, correlation = meta.get("reply_to"), meta.get("correlation_id")
        if not queue:
            return None  # the caller expects no result
        reply = {name: value for name, value in meta.items() if name not in ("reply_to", "correlation_id")}
        return task_id, meta["status"], marshal.dumps((queue, correlation, self.codec.encode(reply))), None

    def row_why_not(self, row: ResultRow, status: str, error: BaseException) -> ResultRow | None:
        """See Backend.row_why_not(); for the caller that *row* was for."""
        queue, correlation, _ = marshal.loads(row[2])
        where = {"reply_to": queue, "correlation_id": correlation}
        return self.row(row[0], self.meta(row[0], status, exception_to_dict(error), properties=where))

    def store(self, task_id: str, meta: Meta) -> bool:
        row = self.row(task_id, meta)
        if row is not None:
            self.store_rows([row])
        return row is not None

    def store_rows(self, rows: Sequence[ResultRow]) -> None:
        replies = [Reply(*marshal.loads(payload)) for _, _, payload, _ in rows]
        in_helper_thread(lambda: self._sender.send(replies))

    # Not supported, unlike in MemoryBackend.
    add, incr, delete = Backend.add, Backend.incr, Backend.delete
    save_group, get_group, delete_group = Backend.save_group, Backend.get_group, Backend.delete_group

    def close(self) -> None:
        super().close()
        self._replies.close()
        self._sender.close()


# -- received results: only the newest, so that unread results do not fill the memory --

KEPT_BYTES = 64 * 1024**2
"""Maximum size of all results; beyond it the oldest are removed."""
ENTRY_BYTES = 256
"""Approximate overhead of an entry."""

Value = tuple[bytes, float | None]


class Newest(dict[str, Value]):
    """A dict that removes its oldest values while they exceed *most* bytes in total."""

    def __init__(self, most: int = KEPT_BYTES) -> None:
        super().__init__()
        self._most = most
        self.size = 0
        self._warned = False

    def __setitem__(self, key: str, value: Value) -> None:
        self.pop(key, None)  # so that the new value comes last
        super().__setitem__(key, value)
        self.size += _size(value)
        while self.size > self._most and len(self) > 1:
            del self[next(iter(self))]
            if not self._warned:
                self._warned = True
                logger.warning(
                    "this process holds %d MB of results from rpc:// and drops the oldest: set ignore_result "
                    "for tasks whose results are not needed (task_ignore_result for all tasks), or set "
                    "result_backend to a store",
                    self._most // 1024**2,
                )

    def __delitem__(self, key: str) -> None:
        self.size -= _size(self[key])
        super().__delitem__(key)

    def pop(self, key: str, default: Value | None = None) -> Value | None:  # type: ignore[override]
        """Like pop() of a dict, with a default."""
        value = self.get(key)
        if value is None:
            return default
        del self[key]
        return value


def _size(value: Value) -> int:
    return len(value[0]) + ENTRY_BYTES


# -- sending results; each thread has its own connection --

_TRANSIENT = 1


class Reply(NamedTuple):
    """queue: the ``reply_to`` of the call. correlation: its correlation id."""

    queue: str
    correlation: str
    body: bytes


class ReplySender:
    """Sends replies. content: the type and encoding of all bodies."""

    def __init__(self, connector: Connector, content: tuple[str, str]) -> None:
        self._connector = connector
        self._content = content
        self._mine = threading.local()  # pid, connection and producer of each thread

    def send(self, replies: Iterable[Reply]) -> None:
        """Send *replies* in order. After a BackendError, some may have been sent."""
        content_type, content_encoding = self._content
        with self._producer() as producer:
            for reply in replies:
                producer.publish(
                    reply.body,
                    exchange="",
                    routing_key=reply.queue,
                    correlation_id=reply.correlation,
                    content_type=content_type,
                    content_encoding=content_encoding,
                    delivery_mode=_TRANSIENT,
                    retry=False,
                )

    @contextmanager
    def _producer(self) -> Iterator[Any]:
        """Return the producer of this thread. Errors of the broker close its connection, and become
        BackendError."""
        mine = self._mine
        if getattr(mine, "pid", None) != os.getpid():
            mine.pid, mine.connection = os.getpid(), None
        try:
            if mine.connection is None:
                mine.connection = self._connector.connect()
                mine.producer = mine.connection.Producer(auto_declare=False)
            yield mine.producer
        except self._connector.broken as error:
            let_go(mine.connection)
            mine.connection = None
            raise BackendError(f"{self._connector.safe_url}: {error}") from error

    def close(self) -> None:
        """Close the connection of this thread. May be called twice."""
        connection = getattr(self._mine, "connection", None)
        if connection is not None and self._mine.pid == os.getpid():
            let_go(connection)
            self._mine.connection = None
