"""Redis and Valkey as a broker, in kombu's format, which stock Celery producers and workers share.

Comes from:  ``broker_url`` ``redis://``, ``rediss://``, ``redis+socket://``, ``sentinel://``,
             ``redis+cluster://``.
Goes to:     ``sender.py`` and ``consumer.py``, which share one database with the administration.
Thread:      any.

A message is as durable as the server makes it (``appendonly``). It is stored when push returns.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.conf.results import options_beside
from qworker.process.forked import forgetful
from qworker.transports.capabilities import Capabilities
from qworker.transports.lease import (
    Admin,
    Broker,
    Delayed,
    Kind,
    Listing,
    MessageState,
    Peeked,
    Peeking,
    QueueInfo,
    Revocations,
    StoredResults,
    Workers,
)
from qworker.transports.presence import Presence, from_text
from qworker.transports.redis.connection import Links, Script, checked, pack
from qworker.transports.redis.consumer import RedisConsumer
from qworker.transports.redis.database import Database
from qworker.transports.redis.envelope import Scale, from_payload, layout, moment
from qworker.transports.redis.letters import RedisLetters
from qworker.transports.redis.reclaim import Reclaimer, died, server_time
from qworker.transports.redis.scripts import FLUSH, PRELUDE, PURGE, QUEUES
from qworker.transports.redis.sender import RedisSender
from qworker.transports.redis.url import endpoint
from qworker.transports.registry import Registry

if TYPE_CHECKING:
    from qworker.conf import Settings


class RedisAdmin(Admin, Listing, Peeking, Delayed, StoredResults):
    """uptime: the clock for leases, None: the server's."""

    purges_leased = False

    def __init__(self, database: Database, uptime: Callable[[], float] | None) -> None:
        self._database = database
        self._layout = database.layout
        self._leases_on = uptime

    def queues(self) -> list[QueueInfo]:
        rows = self._database.run(QUEUES, *self._layout.scale.steps)
        found = [
            QueueInfo(
                name.decode("utf-8", "replace"),
                ready,
                delayed,
                leased,
                dead,
                float(oldest) if oldest else None,
            )
            for name, ready, delayed, leased, dead, oldest in rows
        ]
        return sorted(info for info in found if info.ready or info.delayed or info.leased or info.dead)

    def may_have_due_joins(self, now: float) -> bool:
        return True  # no need to look: the joins are in the same database

    def next_due(self, queues: Sequence[str]) -> float | None:
        first = self._database.ask(
            [("ZRANGE", self._layout.key(f"delayed.{queue}"), 0, 0, "WITHSCORES") for queue in queues]
        )
        return min((float(due[1]) for due in first if due), default=None)

    def peek(self, queue: str, state: MessageState, limit: int) -> list[Peeked]:
        scale = self._layout.scale
        rows = self._database.run(PEEK, queue, state, limit, *scale.steps)
        return [peeked(row, queue, state, scale) for row in rows]

    def purge(self, queue: str) -> int:
        count: int = self._database.run(PURGE, queue, *self._layout.scale.steps)
        return count

    def flush_delayed(self, queue: str) -> int:
        """Move the delayed messages of *queue* to the plain lists, for stock consumers; return their
        number."""
        count = 0
        while portion := self._database.run(FLUSH, queue):
            count += portion
        return count

    def workers(self) -> list[Presence]:
        with self._database.links.lent() as link:
            owners = Reclaimer(self._layout).owners(link)
            now = server_time(link) if self._leases_on is None else self._leases_on()
        found = []
        for _, lease, record in owners:
            with contextlib.suppress(LookupError, ValueError):  # a record that was not written by our workers
                worker = _presence(record)
                alive = float(lease) + float(record["lease_seconds"]) > now
                if worker.concurrency > 0 and alive and not died(record):
                    found.append(worker)
        return found


def _presence(record: dict[str, str]) -> Presence:
    known = Presence(
        record["name"],
        int(record["pid"]),
        tuple(record["queues"].split("\n")),
        int(record["concurrency"]),
        float(record["started"]),
        record.get("host", ""),
    )
    return from_text(record.get("presence", ""), known)


# -- The Lua that reads messages without leasing them --
# Thread: any; constants and pure functions. Bodies stay in the server: the script cuts them out of our
# messages, whose first part contains their size.

PEEK = Script(
    PRELUDE
    + r"""
-- ARGV: queue, "ready", "delayed" or "leased", limit, steps…
-- Returns for each message its payload, when it was sent ('' if unknown), and the name of its consumer.
local queue, most, out = ARGV[4], tonumber(ARGV[6]), {}
local function bodiless(payload)
  local before, size, after = string.match(payload, '^({"qworker": {[^%[]-"sizes": %[%d+, )(%d+)()')
  if not size or #size > 9 then return payload end
  local rest = string.sub(payload, after, -3 - tonumber(size))
  if string.sub(rest, -9) ~= '"body": "' then return payload end
  return before .. '0' .. rest .. '"}'
end
local function show(payload, worker)
  local sent = string.match(string.sub(payload, 1, 200), '"sent": ([%d%.e+]+)')
  out[#out + 1] = {bodiless(payload), sent or '', worker}
end
if ARGV[5] == 'ready' then
  for i = 7, #ARGV do
    local found = most > #out and redis.call('LRANGE', list_of(queue, ARGV[i]), #out - most, -1) or {}
    for at = #found, 1, -1 do show(found[at], '') end
  end
elseif ARGV[5] == 'delayed' then
  local found = most > 0 and redis.call('ZRANGE', delayed_of(queue), 0, most - 1) or {}
  for _, member in ipairs(found) do show(string.match(member, '^%d+ %d+ (.*)$') or member, '') end
else
  for _, field in ipairs(redis.call('HKEYS', UNACKED)) do
    if #out >= most then break end
    local generation, whose = string.match(field, '^qworker:(%d+):%d+:%d+:(.*)$')
    if not generation or whose == queue then
      local value = redis.call('HGET', UNACKED, field)
      local payload, key = string.match(value, '^%[(.*), "[^"]*", "([^"]*)"%]$')
      if payload and (generation or key == queue) then
        local owner = generation and P .. 'qworker.owner.' .. generation
        show(payload, owner and redis.call('HGET', owner, 'name') or '')
      end
    end
  end
end
return out
"""
)


def peeked(row: Sequence[bytes], queue: str, state: MessageState, scale: Scale) -> Peeked:
    """Return the result of PEEK for one message of *queue*."""
    payload, sent, worker = row
    message = from_payload(payload, scale, queue)
    return Peeked(
        queue,
        state,
        message.priority,
        message.due,
        moment(sent),
        message.deliveries,
        message.headers,
        worker.decode("utf-8", "replace"),
    )


CAPABILITIES = Capabilities(
    "Redis, Valkey",
    ("redis", "rediss", "valkey", "valkeys", "unix", "sentinel", "redis+cluster", "rediss+cluster"),
    accepted="the server has it; on its disk according to its `appendfsync` (everysec: up to 1 s may "
    "be lost in a power failure)",
    redelivered="at once for a worker on the same machine; elsewhere when its lease expires "
    "(worker_lease_seconds)",
    eta="a sorted set; fetched when due",
    priority="0 to 9",
    fanout="kept for all workers, including those that start later",
    dead_letters="kept in the server",
    failed_tasks="kept in the server",
    delivery_count="counted for running messages, whether a process or a whole worker died",
    note="A failover loses what was not replicated. `maxmemory-policy` must be noeviction. On Redis Cluster "
    "all keys of an app are in one slot, so on one node; see [Redis Cluster]"
    "(../how-to/redis.md#redis-cluster).",
)

_brokers = forgetful()


class RedisBroker(Broker):
    """The broker at *url*. Connects on first use.

    options: as in ``broker_transport_options``; results: the options of the result store, if it is here too;
    results_expire: how many seconds results are kept.
    lease_seconds: how long a silent consumer is considered alive. uptime: the clock for leases, None: the
    server's.
    """

    consumer: RedisConsumer
    missing = None

    def __init__(
        self,
        url: str,
        *,
        options: Mapping[str, Any] | None = None,
        results: Mapping[str, Any] | None = None,
        results_expire: float | None = None,
        use_ssl: Any = None,
        lease_seconds: float = 15.0,
        revoke_expires: float = 86400.0,
        clock: Clock = SYSTEM_CLOCK,
        uptime: Callable[[], float] | None = None,
    ) -> None:
        where = endpoint(url, options, use_ssl)
        keys = layout(where, options or {}, results or {}, results_expire)
        self._links = Links(where)
        database = Database(where, keys, clock, self._links)
        kinds: tuple[Kind, ...] = ("dead", "failed")
        sender = RedisSender(database, revoke_expires)
        consumer = RedisConsumer(database, lease_seconds, uptime)
        admin = RedisAdmin(database, uptime)
        super().__init__(
            url,
            sender,
            consumer,
            admin,
            lacks=CAPABILITIES.lacks,
            letters={kind: RedisLetters(kind, database) for kind in kinds},
            revocations=Revocations(sender, consumer),
            presence=Workers(consumer, admin),
            peeking=admin,
            delayed=admin,
            stored_results=admin if keys.has_results else None,
            by_queue=None,
            registry=RedisRegistry(database),
            lowest_first=not keys.scale.translated,
            silent_seconds=math.inf,
        )
        _brokers.add(self)

    def _after_fork(self) -> None:
        """In a forked child: sockets and leases belong to the parent."""
        self.consumer.after_fork()

    def close(self) -> None:
        try:
            self.consumer.close()
        finally:
            self._links.close()


def open_broker(url: str | None, conf: Settings) -> RedisBroker:
    """Return the Redis broker at *url* with the settings *conf*; it connects on first use."""
    return RedisBroker(
        url or "redis://",
        options={"socket_connect_timeout": conf.broker_connection_timeout, **conf.broker_transport_options},
        results=options_beside(conf),
        results_expire=conf.result_expires or None,
        use_ssl=conf.broker_use_ssl,
        lease_seconds=conf.worker_lease_seconds,
        revoke_expires=conf.revoke_expires,
    )


# -- The registry of the Redis broker --

NEVER = b"never"


class RedisRegistry(Registry):
    """database: its links may be used by any thread."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._key = database.layout.key("registry")

    def entries(self) -> dict[str, float | None]:
        found = self._ask("HGETALL", self._key)
        pairs = found.items() if isinstance(found, dict) else zip(found[::2], found[1::2], strict=True)
        return {entry.decode(): None if value == NEVER else float(value) for entry, value in pairs}

    def put(self, entries: Mapping[str, float | None]) -> None:
        fields: list[Any] = []
        for entry, expires in entries.items():
            fields += (entry, NEVER if expires is None else repr(expires))
        if fields:
            self._ask("HSET", self._key, *fields)

    def drop(self, entries: Iterable[str]) -> None:
        fields = list(entries)
        if fields:
            self._ask("HDEL", self._key, *fields)

    def _ask(self, *command: Any) -> Any:
        with self._database.links.lent() as link:
            (reply,) = link.ask(pack(command))
            return checked(link, reply)
