"""Publishing into Redis, and calling tasks off.

Comes from:  any thread, by ``Broker.sender``.
Goes to:     kombu's lists, one for each queue and step of priority; ``qworker.delayed.<queue>`` for what is
             due later; the channels that consumers subscribe to.
Thread:      any; each use borrows a connection.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from qworker.naming import task_ids
from qworker.transports.crash_points import CRASHING, crash_point
from qworker.transports.lease import Envelope, Sender
from qworker.transports.redis.connection import SURELY_TAKEN, checked, pack, refuse_too_large
from qworker.transports.redis.database import Database
from qworker.transports.redis.envelope import SEPARATOR, route, to_payload
from qworker.transports.redis.layout import USUAL
from qworker.transports.redis.revocations import revoke

PORTION = 5000
"""How many messages go into one LPUSH."""


class RedisSender(Sender):
    """revoke_expires: seconds for which a revocation stands."""

    def __init__(self, database: Database, revoke_expires: float) -> None:
        self._database = database
        self._layout = database.layout
        self._revoke_expires = revoke_expires
        self._declared: dict[str, tuple[bytes, bytes]] = {}
        """queue → the packed notifications of it: for its usual list alone, and for anything. Stock tools
        know of these queues."""

    def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
        now = self._database.clock.now()
        sent = repr(now).encode()
        writes: dict[tuple[str, str | int], list[Any]] = {}
        scale = self._layout.scale
        for envelope, delivery_tag in zip(envelopes, task_ids(), strict=False):
            step, tail = route(envelope.queue, envelope.priority, scale)
            payload = to_payload(envelope, sent, tail, delivery_tag)
            if envelope.due is not None and envelope.due > now:
                target = writes.setdefault((envelope.queue, "delayed"), [])
                # The number keeps those that are due at the same time in the order in which they came.
                member = b"%d %020d %b" % (step, time.time_ns() + len(target), payload)
                target += (repr(float(envelope.due)), member)
            else:
                writes.setdefault((envelope.queue, step), []).append(payload)
        if not writes:
            return
        commands = [self._write(queue, where, values) for (queue, where), values in writes.items()]
        if CRASHING:
            crash_point("publishing")
        count = sum(commands_of for _, commands_of in commands)
        data = b"".join(packed for packed, _ in commands)
        if count > 1:
            data, count = b"".join((pack(("MULTI",)), data, pack(("EXEC",)))), count + 2
        queues: dict[str, bool] = {}
        usual = self._layout.usual
        for queue, where in writes:
            queues[queue] = queues.get(queue, False) or where != usual
        notifications = b"".join(
            [(self._declared.get(queue) or self._declare(queue))[more] for queue, more in queues.items()]
        )
        links = self._database.links
        link = links.take()
        try:
            if len(data) > SURELY_TAKEN:
                refuse_too_large(link, (value for values in writes.values() for value in values))
            replies = link.ask(data + notifications, count + len(queues), timeout)
            # After MULTI the last one says what became of all.
            for reply in replies[: count - 2 or 1] if count > 1 else ():
                checked(link, reply)
            final = checked(link, replies[count - 1])
            for reply in final if isinstance(final, list) else ():
                checked(link, reply)
        finally:
            links.give(link)
        if CRASHING:
            crash_point("published")

    def _write(self, queue: str, where: str | int, values: Sequence[Any]) -> tuple[bytes, int]:
        """The packed commands that store *values*, and how many these are."""
        if where == "delayed":
            head: tuple[str, str] = ("ZADD", self._layout.key(f"delayed.{queue}"))
        else:
            head = ("LPUSH", self._layout.list_of(queue, int(where)))
        if len(values) <= PORTION:
            return pack((*head, *values)), 1
        starts = range(0, len(values), 2 * PORTION)
        return b"".join(pack((*head, *values[at : at + 2 * PORTION])) for at in starts), len(starts)

    def _declare(self, queue: str) -> tuple[bytes, bytes]:
        """Tell stock tools of *queue*, once for each process; return the packed notifications of it."""
        member = f"{queue}{SEPARATOR}{SEPARATOR}{queue}"
        tables = [
            f"{self._layout.prefix}_kombu.{table}.{queue}" for table in ("binding", "binding_permanent")
        ]
        commands = [pack(("SADD", table, member)) for table in tables]
        commands.append(pack(("SADD", self._layout.key("queues"), queue)))
        with self._database.links.lent() as link:
            for reply in link.ask(b"".join(commands), len(commands)):
                checked(link, reply)
        channel = f"{self._layout.channels}{queue}"
        notifications = pack(("PUBLISH", channel, USUAL)), pack(("PUBLISH", channel, "1"))
        self._declared[queue] = notifications
        return notifications

    def revoke(self, ids: Sequence[str], terminate: bool = False, signal: str = "SIGTERM") -> None:
        until = self._database.clock.now() + self._revoke_expires
        if ids:
            revoke(self._database, until, ids, terminate, signal)
