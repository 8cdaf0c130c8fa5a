"""Publishing to Redis, and revoking tasks.

Comes from:  any thread, through ``Broker.sender``; ``backends/redis/joins.py`` and ``beat/store_redis.py``,
             in their own scripts.
Goes to:     kombu's lists, one for each queue and step of priority; ``qworker.delayed.<queue>`` for delayed
             messages; the markers of queues that consumers wait for (``waiting.py``).
Thread:      any; each use borrows a connection.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any

from qworker.naming import task_ids
from qworker.process.crash_points import crash_point
from qworker.transports.lease import Envelope, Revocation, Revoking, Sender
from qworker.transports.portions import portions
from qworker.transports.redis.connection import SURELY_TAKEN, Link, Script, checked, pack, refuse_too_large
from qworker.transports.redis.database import Database
from qworker.transports.redis.envelope import SEPARATOR, Layout, route, to_payload, whole
from qworker.transports.redis.scripts import PRELUDE

logger = logging.getLogger(__name__)

PORTION = 2000
"""How many messages are sent to the server at a time."""
PUBLISH = """
while i <= #ARGV do
  local last = i + 2 + tonumber(ARGV[i + 2])
  for at = i + 3, last, 4000 do
    redis.call(ARGV[i], ARGV[i + 1], unpack(ARGV, at, math.min(at + 3999, last)))
  end
  i = last + 1
end
"""
"""The Lua of a script that publishes: it executes commands() starting at ARGV[i], the last one at the end."""
Writes = dict[tuple[str, str | int], list[Any]]


class RedisSender(Sender, Revoking):
    """revoke_expires: seconds for which a revocation is valid."""

    def __init__(self, database: Database, revoke_expires: float) -> None:
        self._database = database
        self._layout = database.layout
        self._revoke_expires = revoke_expires
        self._declared: dict[str, bytes] = {}
        """queue → the command that sets its marker. Stock tools know these queues."""

    @property
    def place(self) -> tuple[Any, ...]:
        """The server and database for publishing."""
        return self._database.where.place

    def commands(self, envelopes: Sequence[Envelope]) -> list[Any]:
        """Return what push() would do, as the last arguments of a script with PUBLISH: for each the command,
        the key, the number of values, and the values."""
        writes = self._gather(envelopes)
        found = [(*self._head(queue, where), values) for (queue, where), values in writes.items()]
        for queue in _queues(writes):
            if queue not in self._declared:
                self._declare(queue)
            found.append(("ZADD", self._layout.marker(queue), ["0", "0"]))
        return [part for command, key, values in found for part in (command, key, len(values), *values)]

    def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
        if len(envelopes) > PORTION:
            self._push_portions(envelopes, timeout)
            return
        writes = self._gather(envelopes)
        if not writes:
            return
        data, count = self._packed(writes)
        if count > 1:
            data, count = b"".join((pack(("MULTI",)), data, pack(("EXEC",)))), count + 2
        queues = _queues(writes)
        markers = self._markers(queues)
        links = self._database.links
        link = links.take()
        try:
            crash_point("publishing")
            replies = link.ask(data + markers, count + len(queues), timeout)
            # After MULTI the last reply covers all, but the first error says why.
            for reply in replies[: count - 1]:
                checked(link, reply)
            final = checked(link, replies[count - 1])
            for reply in final if isinstance(final, list) else ():
                checked(link, reply)
        finally:
            links.give(link)
        crash_point("published")

    def _push_portions(self, envelopes: Sequence[Envelope], timeout: float) -> None:
        """Push in portions, so that at most one portion is in memory twice; all or none."""
        links = self._database.links
        queues: dict[str, None] = {}
        link = links.take()
        try:
            link.ask(pack(("MULTI",)), 1, timeout)
            for some in portions(envelopes, PORTION):
                writes = self._gather(some)
                for reply in link.ask(*self._packed(writes), timeout):
                    checked(link, reply)
                queues |= _queues(writes)
            crash_point("publishing")
            final, *_ = link.ask(pack(("EXEC",)) + self._markers(queues), 1 + len(queues), timeout)
            for reply in checked(link, final):
                checked(link, reply)
        except BaseException:
            link.close()  # with its transaction
            raise
        links.give(link)  # not when interrupted
        crash_point("published")

    def _packed(self, writes: Writes) -> tuple[bytes, int]:
        """Return the commands that store *writes*, and their number. Raises EncodeError for a value larger
        than the server accepts."""
        data = b"".join(
            [pack((*self._head(queue, where), *values)) for (queue, where), values in writes.items()]
        )
        if len(data) > SURELY_TAKEN:
            with self._database.links.lent() as link:
                refuse_too_large(link, (value for values in writes.values() for value in values))
        return data, len(writes)

    def _markers(self, queues: Iterable[str]) -> bytes:
        """Return the packed commands that set the markers of *queues*, one for each."""
        declared = self._declared
        return b"".join([declared.get(queue) or self._declare(queue) for queue in queues])

    def _gather(self, envelopes: Sequence[Envelope]) -> Writes:
        """Return the values to be written for *envelopes*, by queue and step; "delayed" instead of a step for
        delayed ones."""
        now = self._database.clock.now()
        sent = repr(now).encode()
        writes: Writes = {}
        scale = self._layout.scale
        for envelope, delivery_tag in zip(envelopes, task_ids(), strict=False):
            step, tail = route(envelope.queue, envelope.priority, scale)
            payload = to_payload(envelope, sent, tail, delivery_tag)
            if envelope.due is not None and envelope.due > now:
                target = writes.setdefault((envelope.queue, "delayed"), [])
                # The number keeps messages due at the same time in their order.
                member = b"%d %020d %b" % (step, time.time_ns() + len(target), payload)
                target += (repr(float(envelope.due)), member)
            else:
                writes.setdefault((envelope.queue, step), []).append(payload)
        return writes

    def _head(self, queue: str, where: str | int) -> tuple[str, str]:
        """Return the command that stores values, and its key."""
        if where == "delayed":
            return "ZADD", self._layout.key(f"delayed.{queue}")
        return "LPUSH", self._layout.list_of(queue, int(where))

    def _declare(self, queue: str) -> bytes:
        """Announce *queue* to stock tools, once per process; return the command that sets its marker."""
        member = f"{queue}{SEPARATOR}{SEPARATOR}{queue}"
        tables = [
            f"{self._layout.prefix}_kombu.{table}.{queue}" for table in ("binding", "binding_permanent")
        ]
        commands = [pack(("SADD", table, member)) for table in tables]
        commands.append(pack(("SADD", self._layout.key("queues"), queue)))
        with self._database.links.lent() as link:
            for reply in link.ask(b"".join(commands), len(commands)):
                checked(link, reply)
        marker = self._declared[queue] = pack(("ZADD", self._layout.marker(queue), 0, 0))
        return marker

    def revoke(self, ids: Sequence[str], terminate: bool = False, signal: str = "SIGTERM") -> None:
        until = self._database.clock.now() + self._revoke_expires
        if ids:
            revoke(self._database, until, ids, terminate, signal)


def _queues(writes: Writes) -> dict[str, None]:
    """Return the queues that get something, in order."""
    return dict.fromkeys(queue for queue, _ in writes)


# -- Revocations on Redis: each has a number, and is valid until it expires --

REVOKE = Script(
    PRELUDE
    + r"""
-- ARGV: when the orders expire, each order as JSON…
for i = 5, #ARGV do
  local number = number_after(P .. 'qworker.revoked.number')
  redis.call('ZADD', P .. 'qworker.revoked', number, ARGV[4] .. ' ' .. number .. ' ' .. ARGV[i])
end
for _, generation in ipairs(redis.call('ZRANGE', OWNERS, 0, -1)) do
  redis.call('ZADD', P .. 'qworker.wake.' .. generation, 0, '1')
end
return 1
"""
)


def revoke(database: Database, until: float, ids: Sequence[str], terminate: bool, signal: str) -> None:
    """Revoke the tasks *ids*, until that epoch second."""
    orders = [json.dumps([task_id, terminate, signal]) for task_id in ids]
    database.run(REVOKE, repr(until), *orders)


def revoked_since(link: Link, layout: Layout, cursor: int, now: float) -> tuple[int, list[Revocation]]:
    """Return a new cursor, and the revocations since *cursor* that are valid at epoch second *now*."""
    # The number first: what it counts is there when the second command reads.
    commands = (
        ("GET", layout.key("revoked.number")),
        ("ZRANGEBYSCORE", layout.key("revoked"), f"({cursor}", "+inf"),
    )
    last, members = (checked(link, reply) for reply in link.ask(b"".join(map(pack, commands)), len(commands)))
    reached, found = max(cursor, whole(last)), []
    for member in members:
        try:
            expires, number, order = member.decode().split(" ", 2)
            at, until, read = int(number), float(expires), Revocation(*json.loads(order))
        except (ValueError, TypeError, RecursionError):
            logger.warning("skipped an invalid revocation: %.100r", member)
            continue
        reached = max(reached, at)
        if until > now and all(map(isinstance, read, (str, bool, str))):
            found.append(read)
    return reached, found
