"""Results on Redis or Valkey, under Celery's keys.

Comes from:  ``result_backend = "redis://host:6379/0"``, ``rediss://``, ``redis+socket:///path``,
             ``sentinel://…``, ``redis+cluster://…``.
Goes to:     keys and channels described in ``transports/redis/result_rows.py``; the server expires them.
             Joins: ``joins.py``.
Thread:      any. Each use borrows a connection; all waiters share one. No connection is shared across a fork.

A worker's batch is one script call. If the messages are in the same database, the broker stores the results
itself, in the script that acknowledges them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from qworker.backends.base import Backend, Found, Meta
from qworker.backends.keyvalue.keys import LOCK_PREFIX
from qworker.backends.redis.joins import RedisJoins
from qworker.clock import Clock
from qworker.errors import ConfigurationError
from qworker.transports.lease import ResultRow
from qworker.transports.portions import portions
from qworker.transports.redis.connection import Link, Links, Script, checked, pack
from qworker.transports.redis.join_rows import join_keys
from qworker.transports.redis.result_rows import GROUP_PREFIX, STORE_ROWS, TASK_PREFIX, row_arguments
from qworker.transports.redis.url import Endpoint, endpoint

MAX_KEYS = 1000
"""Maximum keys per command, so that the server can serve other clients in between."""

_STORE = Script(STORE_ROWS)
_COUNT = Script("""
local value = redis.call('INCR', KEYS[1])
if ARGV[1] == '' then redis.call('PERSIST', KEYS[1]) else redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
return value
""")


class RedisBackend(Backend):
    """Results on one server; it connects on first use."""

    def __init__(self, url: str, conf: Any, clock: Clock) -> None:
        super().__init__(url, conf, clock)
        self._options = dict(conf.result_backend_transport_options)
        try:
            self._where = endpoint(url, self._options, conf.redis_backend_use_ssl, "result_backend")
        except ConfigurationError as error:
            text = str(error).replace("broker_transport_options", "result_backend_transport_options")
            raise ConfigurationError(text, setting="result_backend") from None
        keys = join_keys(self._where.key_prefix(self._options), self._options, self.expires)
        self._prefix = keys.prefix
        self._links = Links(self._where)
        self._do = self._links.store
        self._joins = RedisJoins(self, self._do, self._where.place, keys)

    def same_store(self, store_url: str) -> bool:
        try:
            return endpoint(store_url, self._options).place == self._where.place
        except ConfigurationError:
            return False

    @property
    def safe_url(self) -> str:
        return self._where.safe_url

    # -- commands --

    def _ask(self, *command: Any, tries: int = 2) -> Any:
        return self._do(lambda link: checked(link, link.ask(pack(command))[0]), tries)

    def _key(self, prefix: str, name: str) -> str:
        return f"{self._prefix}{prefix}{name}"

    # -- tasks --

    def store(self, task_id: str, meta: Meta) -> bool:
        return self._store([(task_id, meta["status"], self.codec.encode(meta), self.expiry())]) > 0

    def store_rows(self, rows: Sequence[ResultRow]) -> None:
        self._store(rows)

    def _store(self, rows: Sequence[ResultRow]) -> int:
        now = self.clock.now()
        arguments = [part for row in rows for part in row_arguments(row, now, self._prefix)]
        return int(self._do(lambda link: _STORE.call(link, (self._key(TASK_PREFIX, ""),), arguments)))

    def get(self, task_id: str) -> Meta | None:
        data = self._ask("GET", self._key(TASK_PREFIX, task_id))
        return None if data is None else self.codec.decode(data, task_id)

    def read_many(self, ids: Collection[str]) -> dict[str, Found]:
        found: dict[str, Found] = {}
        for chunk in portions(ids, MAX_KEYS):
            values = self._ask("MGET", *(self._key(TASK_PREFIX, task_id) for task_id in chunk))
            found.update(
                (task_id, self.codec.found(data, task_id))
                for task_id, data in zip(chunk, values, strict=True)
                if data is not None
            )
        return found

    def forget(self, task_id: str) -> None:
        key = self._key(TASK_PREFIX, task_id)
        self._ask("DEL", key, f"{key}.status")

    def forget_many(self, ids: Iterable[str]) -> None:
        for chunk in portions((self._key(TASK_PREFIX, task_id) for task_id in ids), MAX_KEYS):
            self._ask("DEL", *chunk, *(f"{key}.status" for key in chunk))

    def open_source(self) -> RedisSubscription:
        return RedisSubscription(self._where, self._key(TASK_PREFIX, ""))

    # -- locks and counters --

    def add(self, key: str, ttl: float | None = None) -> bool:
        lasting = () if ttl is None else ("PX", _milliseconds(ttl))
        return self._ask("SET", self._key(LOCK_PREFIX, key), "1", "NX", *lasting, tries=1) is not None

    def incr(self, key: str, ttl: float | None = None) -> int:
        lasting = "" if ttl is None else _milliseconds(ttl)
        name = self._key(LOCK_PREFIX, key)
        return int(self._do(lambda link: _COUNT.call(link, (name,), (lasting,)), tries=1))

    def delete(self, key: str) -> None:
        self._ask("DEL", self._key(LOCK_PREFIX, key))

    @property
    def joins(self) -> RedisJoins:
        return self._joins

    # -- groups --

    def save_group(self, group_id: str, result: Any, kept: float = 0.0) -> None:
        lasting = () if self.expires is None else ("PX", _milliseconds(self.expires + kept))
        self._ask(
            "SET",
            self._key(GROUP_PREFIX, group_id),
            self.codec.encode_value({"result": result}, ("group", group_id)),
            *lasting,
        )

    def get_group(self, group_id: str) -> Any:
        data = self._ask("GET", self._key(GROUP_PREFIX, group_id))
        return None if data is None else self.codec.decode_value(data, ("group", group_id))["result"]

    def delete_group(self, group_id: str) -> None:
        self._ask("DEL", self._key(GROUP_PREFIX, group_id))

    def close(self) -> None:
        super().close()
        self._links.close()


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


# -- notifications; used by the leader --


class RedisSubscription:
    """A Source. prefix: of the channels, followed by a task's id. Methods may raise BrokerUnavailable."""

    def __init__(self, where: Endpoint, prefix: str) -> None:
        self._link = Link(where)
        self._prefix = prefix
        self._subscribed: set[str] = set()
        self._announced: list[str] = []

    def fileno(self) -> int:
        return self._link.fileno()

    def subscribe(self, ids: Collection[str]) -> None:
        """Return when the server has confirmed: the next read finds all results that are not announced."""
        wanted = set(ids)
        old, new = self._subscribed - wanted, wanted - self._subscribed
        data = pack(("UNSUBSCRIBE", *map(self._channel, old))) if old else b""
        if new:
            data += pack(("SUBSCRIBE", *map(self._channel, new)))
            pending = len(new)
            while pending:
                (reply,) = self._link.ask(data)
                pending -= checked(self._link, reply)[0] == b"subscribe"
                self._take(reply)
                data = b""
        elif old:
            self._link.send(data)
        self._subscribed = wanted

    def _channel(self, task_id: str) -> str:
        return self._prefix + task_id

    def _take(self, reply: Any) -> None:
        if reply[0] == b"message":
            self._announced.append(reply[1].decode()[len(self._prefix) :])

    def announced(self) -> Collection[str]:
        for reply in self._link.received():
            self._take(checked(self._link, reply))
        announced, self._announced = self._announced, []
        return announced

    def close(self) -> None:
        self._link.close()

    def abandon(self) -> None:
        self._link.abandon()
