"""Results as messages to the one who called, as Celery's ``rpc://`` sends them.

Comes from:  ``result_backend = "rpc://"`` with a broker that kombu reaches.
Goes to:     the queue that a call names in ``reply_to``, by ``rpc_sender.py``; ours is read into memory by
             ``rpc_replies.py``.
Thread:      any; the reader of our queue stores what comes.

Only the process that called can ask for the result. A reply queue belongs to one process, and goes away with
it: results that come later are lost, and so are those that come while the broker is away. A process that
calls much and asks for nothing keeps the newest results only.
"""

from __future__ import annotations

import logging
import marshal
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qworker.backends.base import Backend, Meta
from qworker.backends.memory import MemoryBackend
from qworker.backends.rpc_connection import Connector
from qworker.backends.rpc_replies import ReplyQueue
from qworker.backends.rpc_sender import Reply, ReplySender
from qworker.clock import Clock
from qworker.errors import BackendError, ConfigurationError
from qworker.interrupts import apart
from qworker.transports.lease import ResultRow

if TYPE_CHECKING:
    from qworker.context import Context

logger = logging.getLogger(__name__)


KEPT_BYTES = 64 * 1024**2
"""Of results that a process has got: beyond it the oldest go."""
ENTRY_BYTES = 256
"""What keeping one takes besides its own bytes, about."""


class RpcBackend(MemoryBackend):
    """What was read from the reply queue is kept in memory until it expires; what is stored is sent."""

    supports_locks = False
    sends = True
    kept_bytes = KEPT_BYTES

    def __init__(self, url: str, conf: Any, clock: Clock) -> None:
        super().__init__(url, conf, clock)
        self._size = 0  # of _values, under _lock
        self._lost = False
        if conf.broker_url is None or conf.broker_url.startswith("sqlite:"):
            raise ConfigurationError(
                "rpc:// sends results through a broker that is a server: leave result_backend unset for the "
                "embedded broker",
                setting="result_backend",
            )
        connector = Connector(conf, self.safe_url)
        encoding = "utf-8" if self._serializer in ("json", "yaml") else "binary"
        self._replies = ReplyQueue(connector, self.expires, clock, self._take, self.sweep)
        self._sender = ReplySender(connector, (self._content_type, encoding))

    # -- the caller --

    def _after_fork(self) -> None:
        super()._after_fork()
        self._replies.after_fork()

    def reply_to(self) -> str:
        """The queue for the results of this process, which is there when this returns. Raises
        BrokerUnavailable."""
        return self._replies.name()

    def _take(self, body: bytes) -> None:
        try:
            meta = self.decode(body)
            self._store(str(meta["task_id"]), meta["status"], body)
        except (BackendError, KeyError) as error:
            logger.error("a reply cannot be read: %s", error)

    def write(self, key: str, value: bytes, ttl: float | None) -> None:
        with self._lock:
            self.remove(key)  # what is newer stands behind
            self._size += len(value) + ENTRY_BYTES
            super().write(key, value, ttl)
            while self._size > self.kept_bytes and len(self._values) > 1:
                self.remove(next(iter(self._values)))
                if not self._lost:
                    self._lost = True
                    logger.warning(
                        "this process has %d MB of results that came by rpc://, and forgets the oldest: set "
                        "task_ignore_result or ignore_result where nobody asks for them, or result_backend",
                        self.kept_bytes // 1024**2,
                    )

    def remove(self, key: str) -> None:
        with self._lock:
            known = self._values.get(key)
            if known is not None:
                self._size -= len(known[0]) + ENTRY_BYTES
                super().remove(key)

    def sweep(self, now: float) -> int:
        with self._lock:
            count = super().sweep(now)
            self._size = sum(len(value) + ENTRY_BYTES for value, _ in self._values.values())
            return count

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
        replies = [Reply(*marshal.loads(payload)) for _, _, payload, _ in rows]
        apart(lambda: self._sender.send(replies))

    # What a dict can do, and messages cannot.
    add, incr, delete = Backend.add, Backend.incr, Backend.delete
    save_group, get_group, delete_group = Backend.save_group, Backend.get_group, Backend.delete_group

    def close(self) -> None:
        super().close()
        self._replies.close()
        self._sender.close()
