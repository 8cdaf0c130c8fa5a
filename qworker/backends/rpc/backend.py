"""Results as messages to the calling process, like Celery's ``rpc://``.

Comes from:  ``result_backend = "rpc://"`` with a broker that kombu supports.
Goes to:     the queue named in ``reply_to`` of a call; ``replies.py`` reads the queue of this process into
             memory.
Thread:      any; the reader of the reply queue stores what arrives.

Only the calling process can read a result. A reply queue belongs to one process, and is deleted with it:
later results are lost, and so are those sent while the broker is unavailable. A process that makes many calls
without reading results keeps only the newest.
"""

from __future__ import annotations

import logging
import marshal
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from qworker import states
from qworker.backends.base import Backend, Meta
from qworker.backends.keyvalue.memory import MemoryBackend
from qworker.backends.rpc.replies import Connector, ReplyQueue, let_go
from qworker.clock import Clock
from qworker.errors import BackendError, ConfigurationError
from qworker.interrupts import in_helper_thread
from qworker.transports.lease import ResultRow

if TYPE_CHECKING:
    from qworker.message.context import Context

logger = logging.getLogger(__name__)


class RpcBackend(MemoryBackend):
    """Results read from the reply queue are kept in memory until they expire; stored results are sent."""

    supports_locks = False

    def __init__(self, url: str, conf: Any, clock: Clock) -> None:
        super().__init__(url, conf, clock)
        self._values = Newest()
        if conf.broker_url is None or conf.broker_url.startswith("sqlite:"):
            raise ConfigurationError(
                "rpc:// sends results through a broker that is a server: leave result_backend unset for the "
                "embedded broker",
                setting="result_backend",
            )
        connector = Connector(conf)
        encoding = "utf-8" if self._serializer in ("json", "yaml") else "binary"
        self._replies = ReplyQueue(connector, self.expires, clock, self._take, self.sweep)
        self._sender = ReplySender(connector, (self._content_type, encoding))

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
            meta = self.decode(body)
            self._store(str(meta["task_id"]), meta["status"], body, self.expires)
        except (BackendError, KeyError) as error:
            logger.error("a reply cannot be read: %s", error)
            if self._signer is None and isinstance(correlation, str):
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
        return task_id, meta["status"], marshal.dumps((queue, correlation, self.encode(reply))), None

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
                    "this process has %d MB of results from rpc://, and drops the oldest: set "
                    "task_ignore_result or ignore_result where results are not needed, or result_backend",
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
