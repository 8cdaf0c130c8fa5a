"""Redis and Valkey as a broker: a Broker in kombu's layout, which stock Celery producers and workers
share.

Comes from:  ``broker_url`` ``redis://``, ``rediss://``, ``redis+socket://``, ``sentinel://``.
Goes to:     kombu's lists, one for each queue and step of priority; ``qworker.delayed.<queue>`` for what is
             due later.
Thread:      any; see ``consumer.py`` for the listener's half.

A message is as durable as the server makes it (``appendonly``); it is there when push returns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.naming import task_ids
from qworker.transports.crash_points import CRASHING, crash_point
from qworker.transports.forked import forgetful
from qworker.transports.lease import Envelope, QueueInfo, Undivided
from qworker.transports.redis.connection import SURELY_TAKEN, Link, Links, checked, pack, refuse_too_large
from qworker.transports.redis.consumer import Holder, next_due
from qworker.transports.redis.envelope import SEPARATOR, route, to_payload
from qworker.transports.redis.layout import USUAL, layout
from qworker.transports.redis.reclaim import Watch, died, server_time
from qworker.transports.redis.scripts import FLUSH, PURGE, QUEUES
from qworker.transports.redis.url import endpoint

if TYPE_CHECKING:
    from qworker.conf import Settings

PORTION = 5000
"""How many messages go into one LPUSH."""
_stores = forgetful()


class RedisBroker(Holder, Undivided):
    """The broker at *url*. Connects at the first use, not before.

    options: as in ``broker_transport_options``; results: the options of the result store, if it is here too.
    lease_seconds: how long a silent holder is believed to live. uptime: the clock of the leases, None: the
    server's.
    """

    def __init__(
        self,
        url: str,
        *,
        options: Mapping[str, Any] | None = None,
        results: Mapping[str, Any] | None = None,
        use_ssl: Any = None,
        lease_seconds: float = 15.0,
        revoke_expires: float = 86400.0,
        clock: Clock = SYSTEM_CLOCK,
        uptime: Callable[[], float] | None = None,
    ) -> None:
        self.url = url
        self._clock = clock
        self._revoke_expires = revoke_expires
        self._where = endpoint(url, options, use_ssl)
        self._layout = layout(self._where.db, options or {}, results or {})
        self.lowest_first = not self._layout.scale.translated
        self._links = Links(self._where)
        self._declared: dict[str, tuple[bytes, bytes]] = {}
        """queue → the packed rings of its bell: for its usual list alone, and for anything. Stock tools know
        of these."""
        super().__init__(lease_seconds, uptime)
        _stores.add(self)

    def _after_fork(self) -> None:
        """In a forked child: the parent's sockets and leases are not ours."""
        self._links.abandon()
        self._disown()

    # -- any thread --

    def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
        now = self._clock.now()
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
        self._due = None
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
        bells = b"".join(
            [(self._declared.get(queue) or self._declare(queue))[more] for queue, more in queues.items()]
        )
        link = self._links.take()
        try:
            if len(data) > SURELY_TAKEN:
                refuse_too_large(link, (value for values in writes.values() for value in values))
            replies = link.ask(data + bells, count + len(queues), timeout)
            # After MULTI the last one says what became of all.
            for reply in replies[: count - 2 or 1] if count > 1 else ():
                checked(link, reply)
            final = checked(link, replies[count - 1])
            for reply in final if isinstance(final, list) else ():
                checked(link, reply)
        finally:
            self._links.give(link)
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
        """Tell stock tools of *queue*, once for each process; return the packed rings of its bell."""
        with self._links.lent() as link:
            self._bind(link, queue)
        channel = f"{self._layout.bell}{queue}"
        rings = pack(("PUBLISH", channel, USUAL)), pack(("PUBLISH", channel, "1"))
        self._declared[queue] = rings
        return rings

    def _bind(self, link: Link, queue: str) -> None:
        member = f"{queue}{SEPARATOR}{SEPARATOR}{queue}"
        tables = [
            f"{self._layout.prefix}_kombu.{table}.{queue}" for table in ("binding", "binding_permanent")
        ]
        commands = [pack(("SADD", table, member)) for table in tables]
        commands.append(pack(("SADD", self._layout.key("queues"), queue)))
        for reply in link.ask(b"".join(commands), len(commands)):
            checked(link, reply)

    # -- administration --

    def next_due(self, queues: Sequence[str]) -> float | None:
        with self._links.lent() as link:
            return next_due(link, self._layout, queues)

    def queues(self) -> list[QueueInfo]:
        rows = self._run(QUEUES, *self._layout.scale.steps)
        found = [
            QueueInfo(name.decode(), ready, delayed, leased, dead, float(oldest) if oldest else None)
            for name, ready, delayed, leased, dead, oldest in rows
        ]
        return sorted(info for info in found if info.ready or info.delayed or info.leased or info.dead)

    def purge(self, queue: str) -> int:
        count: int = self._run(PURGE, queue, *self._layout.scale.steps)
        return count

    def flush_delayed(self, queue: str) -> int:
        """Hand what waits in *queue* for its time to the plain lists, where stock consumers find it; return
        how many messages that were."""
        count = 0
        while portion := self._run(FLUSH, queue):
            count += portion
        return count

    def workers(self) -> list[dict[str, object]]:
        with self._links.lent() as link:
            owners = Watch(self._layout).owners(link)
            now = server_time(link) if self._leases_on is None else self._leases_on()
        return [
            {
                "name": record["name"],
                "pid": int(record["pid"]),
                "queues": record["queues"].split("\n"),
                "concurrency": int(record["concurrency"]),
                "started": float(record["started"]),
            }
            for _, lease, record in owners
            if int(record.get("concurrency", 0)) > 0
            and not died(record)
            and float(lease) + float(record["lease_seconds"]) > now
        ]

    def close(self) -> None:
        try:
            self.deregister()
        finally:
            self._link.close()
            self._links.close()
            self._doorbell.close()


def open_broker(url: str | None, conf: Settings) -> RedisBroker:
    """The Redis broker at *url* with the settings *conf*; it is connected at the first use."""
    return RedisBroker(
        url or "redis://",
        options={"socket_connect_timeout": conf.broker_connection_timeout, **conf.broker_transport_options},
        results=conf.result_backend_transport_options,
        use_ssl=conf.broker_use_ssl,
        lease_seconds=conf.worker_lease_seconds,
        revoke_expires=conf.revoke_expires,
    )
