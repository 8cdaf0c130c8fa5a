"""Administration of a Redis broker.

Comes from:  the command line, health checks, ``app.control``, through ``Broker.admin``.
Goes to:     the scripts of ``scripts.py`` and of this module.
Thread:      any; each use borrows a connection.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from qworker.transports.lease import (
    Admin,
    Delayed,
    Listing,
    MessageState,
    Peeked,
    Peeking,
    QueueInfo,
    StoredResults,
)
from qworker.transports.presence import Presence, from_text
from qworker.transports.redis.connection import Script
from qworker.transports.redis.database import Database
from qworker.transports.redis.envelope import Scale, from_payload, moment
from qworker.transports.redis.reclaim import Reclaimer, died, server_time
from qworker.transports.redis.scripts import FLUSH, PRELUDE, PURGE, QUEUES


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
