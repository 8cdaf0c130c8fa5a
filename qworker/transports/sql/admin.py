"""Looking at a database's queues, dead letters and workers, and changing them.

Comes from:  the command line and other tools, by ``SQLBroker.admin``.
Goes to:     the tables of ``schema.py``.
Thread:      any; they take turns at one connection with who publishes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from qworker.clock import Clock
from qworker.process.owner_files import died
from qworker.transports.lease import Admin, Dead, Peeked, QueueInfo, Standing
from qworker.transports.presence import Presence, from_text
from qworker.transports.sql.link import Handle, Link, earliest
from qworker.transports.sql.results import ResultTable
from qworker.transports.sql.schema import DELAYED, LEASED, NEXT_DUE, NOW, READY

PORTION = 500
"""How many dead letters are changed by one statement."""
QUEUES = """SELECT queue, 'ready', count(*), min(sent) FROM qworker_message WHERE state = 0 GROUP BY queue
UNION ALL SELECT queue, 'delayed', count(*), NULL FROM qworker_message WHERE state = 1 GROUP BY queue
UNION ALL SELECT queue, 'leased', count(*), NULL FROM qworker_message WHERE state = 2 GROUP BY queue
UNION ALL SELECT queue, 'dead', count(*), NULL FROM qworker_dead GROUP BY queue"""
PURGE = "DELETE FROM qworker_message WHERE queue = %s AND state IN (0, 1)"
FLUSH = "UPDATE qworker_message SET state = 0, due = NULL WHERE queue = %s AND state = 1"
DEAD = "SELECT tag, queue, reason, died_at, deliveries, headers, properties, body FROM qworker_dead"
DEAD_HEADERS = "SELECT headers FROM qworker_dead WHERE tag = ANY(%s) FOR UPDATE"
TO_MESSAGE = """INSERT INTO qworker_message (queue, urgency, state, sent, redelivered, headers, properties,
body)
SELECT queue, urgency, 0, %s, 1, headers, properties, body FROM qworker_dead WHERE tag = ANY(%s)
ORDER BY tag"""
DISCARD = "DELETE FROM qworker_dead WHERE tag = ANY(%s)"
PUSH_DEAD = """INSERT INTO qworker_dead (tag, queue, reason, died_at, deliveries, urgency, headers,
properties, body)
VALUES (%s, %s, %s, %s, %s, 0, %s, %s, %s)"""
WORKERS = f"""SELECT name, pid, queues, concurrency, started, boot, lock_path, lease_until, {NOW}, presence
FROM qworker_owner
WHERE concurrency > 0 ORDER BY id"""

_PEEK = """SELECT urgency, due, sent, deliveries, headers,
coalesce((SELECT name FROM qworker_owner WHERE id = qworker_message.owner), '')
FROM qworker_message WHERE queue = %s AND state = {state} ORDER BY {order} LIMIT %s"""
PEEK: Mapping[Standing, str] = {
    "ready": _PEEK.format(state=READY, order="urgency, tag"),
    "delayed": _PEEK.format(state=DELAYED, order="due, tag"),
    "leased": _PEEK.format(state=LEASED, order="tag"),
}


class SQLAdmin(Admin):
    """uptime: the clock that leases run on, None: the database's."""

    def __init__(
        self,
        handle: Handle,
        results: ResultTable,
        clock: Clock,
        lease_seconds: float,
        uptime: Callable[[], float] | None,
    ) -> None:
        self._handle = handle
        self._results = results
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._uptime = uptime
        self._has_joins: Link | None = None  # under the handle's lock
        """The connection that has seen the tables of joins."""

    def next_due(self, queues: Sequence[str]) -> float | None:
        def work(link: Link) -> float | None:
            return earliest([link.ask(NEXT_DUE, (queue,))[0][0] for queue in queues])

        return self._handle.look(work, None)

    def may_have_due_joins(self, now: float) -> bool:
        def work(link: Link) -> bool:
            if self._has_joins is not link and not link.columns(self._results.joins.join):
                return False  # who opens the first join makes the tables
            self._has_joins = link
            return bool(link.ask(f"SELECT 1 FROM {self._results.joins.join} WHERE due <= %s LIMIT 1", (now,)))

        return self._handle.run_locked(work)

    def queues(self) -> list[QueueInfo]:
        found: dict[str, QueueInfo] = {}
        for queue, state, count, oldest in self._handle.look(lambda link: link.ask(QUEUES), []):
            info = found.get(queue) or QueueInfo(queue)
            found[queue] = info._replace(**{state: count, "oldest": oldest or info.oldest})
        return sorted(found.values())

    def peek(self, queue: str, standing: Standing, limit: int) -> list[Peeked]:
        rows = self._handle.look(lambda link: link.ask(PEEK[standing], (queue, limit)), [])
        return [Peeked(queue, standing, -urgency, *more) for urgency, *more in rows]

    def purge(self, queue: str) -> int:
        return self._handle.look(lambda link: link.do(PURGE, (queue,)), 0)

    def dead(self, queue: str | None = None, limit: int = 100) -> list[Dead]:
        where, values = ("", ()) if queue is None else (" WHERE queue = %s", (queue,))
        statement = f"{DEAD}{where} ORDER BY died_at DESC, tag DESC LIMIT %s"
        rows = self._handle.look(lambda link: link.ask(statement, (*values, limit)), [])
        return [Dead(*row) for row in rows]

    def dead_retry(self, tags: Sequence[int] | None = None) -> int:
        now = self._clock.now()

        def work(link: Link) -> int:
            count = 0
            for portion in _portions(link, tags):
                found = link.ask(DEAD_HEADERS, (portion,))
                self._results.forget_failures(link, [headers for (headers,) in found])
                count += link.do(TO_MESSAGE, (now, portion))
                link.do(DISCARD, (portion,))
            link.notify()
            return count

        return self._handle.look(work, 0)

    def dead_discard(self, tags: Sequence[int] | None = None) -> int:
        def work(link: Link) -> int:
            return sum(link.do(DISCARD, (portion,)) for portion in _portions(link, tags))

        return self._handle.look(work, 0)

    def push_dead(self, letters: Sequence[Dead]) -> None:
        def work(link: Link) -> None:
            for letter in letters:
                link.do(PUSH_DEAD, (link.new_tag(), *letter[1:]))

        self._handle.transact(work)

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


def _portions(link: Link, tags: Sequence[int] | None) -> list[list[int]]:
    if tags is None:
        tags = [tag for (tag,) in link.ask("SELECT tag FROM qworker_dead ORDER BY tag")]
    return [list(tags[start : start + PORTION]) for start in range(0, len(tags), PORTION)]
