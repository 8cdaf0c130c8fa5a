"""Administration of a database broker: queues, dead letters and workers.

Comes from:  the command line and other tools, by ``Broker.admin``.
Goes to:     the tables of ``schema.py``.
Thread:      any; they share one connection with publishers, in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from qworker.process.owner_files import died
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
from qworker.transports.sql.link import Handle, Link, earliest
from qworker.transports.sql.results import ResultTable
from qworker.transports.sql.schema import DELAYED, LEASED, NEXT_DUE, NOW, READY

QUEUES = """SELECT queue, 'ready', count(*), min(sent) FROM qworker_message WHERE state = 0 GROUP BY queue
UNION ALL SELECT queue, 'delayed', count(*), NULL FROM qworker_message WHERE state = 1 GROUP BY queue
UNION ALL SELECT queue, 'leased', count(*), NULL FROM qworker_message WHERE state = 2 GROUP BY queue
UNION ALL SELECT queue, 'dead', count(*), NULL FROM qworker_dead GROUP BY queue"""
PURGE = "DELETE FROM qworker_message WHERE queue = %s AND state IN (0, 1)"
FLUSH = "UPDATE qworker_message SET state = 0, due = NULL WHERE queue = %s AND state = 1"
WORKERS = f"""SELECT name, pid, queues, concurrency, started, boot, lock_path, lease_until, {NOW}, presence
FROM qworker_owner
WHERE concurrency > 0 ORDER BY id"""

_PEEK = """SELECT urgency, due, sent, deliveries, headers,
coalesce((SELECT name FROM qworker_owner WHERE id = qworker_message.owner), '')
FROM qworker_message WHERE queue = %s AND state = {state} ORDER BY {order} LIMIT %s"""
PEEK: Mapping[MessageState, str] = {
    "ready": _PEEK.format(state=READY, order="urgency, tag"),
    "delayed": _PEEK.format(state=DELAYED, order="due, tag"),
    "leased": _PEEK.format(state=LEASED, order="tag"),
}


class SQLAdmin(Admin, Listing, Peeking, Delayed, StoredResults):
    """uptime: the clock for leases, None: the database's."""

    purges_leased = False

    def __init__(
        self,
        handle: Handle,
        results: ResultTable,
        lease_seconds: float,
        uptime: Callable[[], float] | None,
    ) -> None:
        self._handle = handle
        self._results = results
        self._lease_seconds = lease_seconds
        self._uptime = uptime
        self._has_joins: Link | None = None  # under the handle's lock
        """The connection on which the tables of joins were found."""

    def next_due(self, queues: Sequence[str]) -> float | None:
        def work(link: Link) -> float | None:
            return earliest([link.ask(NEXT_DUE, (queue,))[0][0] for queue in queues])

        return self._handle.look(work, None)

    def may_have_due_joins(self, now: float) -> bool:
        def work(link: Link) -> bool:
            if self._has_joins is not link and not link.columns(self._results.joins.join):
                return False  # the tables are created with the first join
            self._has_joins = link
            return bool(link.ask(f"SELECT 1 FROM {self._results.joins.join} WHERE due <= %s LIMIT 1", (now,)))

        return self._handle.run_locked(work)

    def queues(self) -> list[QueueInfo]:
        found: dict[str, QueueInfo] = {}
        for queue, state, count, oldest in self._handle.look(lambda link: link.ask(QUEUES), []):
            info = found.get(queue) or QueueInfo(queue)
            found[queue] = info._replace(**{state: count, "oldest": oldest or info.oldest})
        return sorted(found.values())

    def peek(self, queue: str, state: MessageState, limit: int) -> list[Peeked]:
        rows = self._handle.look(lambda link: link.ask(PEEK[state], (queue, limit)), [])
        return [Peeked(queue, state, -urgency, *more) for urgency, *more in rows]

    def purge(self, queue: str) -> int:
        return self._handle.look(lambda link: link.do(PURGE, (queue,)), 0)

    def flush_delayed(self, queue: str) -> int:
        def work(link: Link) -> int:
            flushed = link.do(FLUSH, (queue,))
            link.notify()
            return flushed

        return self._handle.look(work, 0)

    def workers(self) -> list[Presence]:
        now = None if self._uptime is None else self._uptime()
        rows = self._handle.look(lambda link: link.ask(WORKERS), [])
        return [
            from_text(text or "", Presence(name, pid, tuple(queues.split("\n")), concurrency, started))
            for name, pid, queues, concurrency, started, boot, lock, until, clock, text in rows
            if until + self._lease_seconds > (float(clock) if now is None else now) and not died(lock, boot)
        ]
