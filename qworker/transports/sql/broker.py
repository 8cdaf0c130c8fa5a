"""PostgreSQL, MariaDB or MySQL as the broker: a Broker in tables of a database that may hold other things
too.

Comes from:  ``broker_url`` ``postgresql://…``, ``mysql://…`` or ``mariadb://…``.
Goes to:     the tables of ``schema.py``; ``postgresql.py`` and ``mysql.py`` speak to the servers.
Thread:      one connection publishes (any thread, in turn), one belongs to the listener; neither crosses a
             fork.

Publishing is as durable as the database's commits; callers that wait together share one commit. Leases run on
the clock of the database. An instant at which a message falls due is compared with the clock of who leases,
as the settings ``eta`` and ``countdown`` were computed on the clock of who published: keep both in step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.conf.secrets import mask_urls
from qworker.errors import ConfigurationError
from qworker.transports.crash_points import CRASHING, crash_point
from qworker.transports.forked import forgetful
from qworker.transports.group_commit import GroupCommit
from qworker.transports.lease import Dead, Envelope, QueueInfo, Sender, Undivided
from qworker.transports.owner_files import died
from qworker.transports.sql.consumer import Holder, next_due
from qworker.transports.sql.link import Handle, Link, MessageRow
from qworker.transports.sql.reclaim import NOW
from qworker.transports.sql.results import ResultTable
from qworker.transports.sql.schema import DELAYED, NEXT_NUMBER, READY
from qworker.transports.sql.transactional import Joined, executor

if TYPE_CHECKING:
    from qworker.conf import Settings

_LINKS = {
    "postgresql": ("qworker.transports.sql.postgresql", "PostgreSQLLink"),
    "postgres": ("qworker.transports.sql.postgresql", "PostgreSQLLink"),
    "mysql": ("qworker.transports.sql.mysql", "MySQLLink"),
    "mariadb": ("qworker.transports.sql.mysql", "MySQLLink"),
}
TURN_SECONDS = 30.0
PORTION = 500
REVOKE = (
    "INSERT INTO qworker_revoked (seq, task_id, terminate, signal_name, expires) VALUES (%s, %s, %s, %s, %s)"
)
QUEUES = """SELECT queue, 'ready', count(*), min(sent) FROM qworker_message WHERE state = 0 GROUP BY queue
UNION ALL SELECT queue, 'delayed', count(*), NULL FROM qworker_message WHERE state = 1 GROUP BY queue
UNION ALL SELECT queue, 'leased', count(*), NULL FROM qworker_message WHERE state = 2 GROUP BY queue
UNION ALL SELECT queue, 'dead', count(*), NULL FROM qworker_dead GROUP BY queue"""
DEAD = "SELECT tag, queue, reason, died_at, deliveries, headers, properties, body FROM qworker_dead"
TO_MESSAGE = """INSERT INTO qworker_message (queue, urgency, state, sent, redelivered, headers, properties,
body)
SELECT queue, urgency, 0, %s, 1, headers, properties, body FROM qworker_dead WHERE tag = ANY(%s)
ORDER BY tag"""
PUSH_DEAD = """INSERT INTO qworker_dead (tag, queue, reason, died_at, deliveries, urgency, headers,
properties, body)
VALUES (%s, %s, %s, %s, %s, 0, %s, %s, %s)"""
FLUSH = "UPDATE qworker_message SET state = 0, due = NULL WHERE queue = %s AND state = 1"
WORKERS = f"""SELECT name, pid, queues, concurrency, started, boot, lock_path, lease_until, {NOW}
FROM qworker_owner
WHERE concurrency > 0 ORDER BY id"""

_stores = forgetful()


class SQLBroker(Holder, Undivided):
    """The broker in a database. Connects at the first use, not before.

    lease_seconds: how long a silent holder is believed to live. uptime: a clock for the leases, None: the
    database's.
    results: where rows of settlements go.
    """

    def __init__(
        self,
        url: str,
        *,
        options: Mapping[str, Any] | None = None,
        connect_timeout: float = 4.0,
        lease_seconds: float = 15.0,
        revoke_expires: float = 86400.0,
        results: ResultTable | None = None,
        clock: Clock = SYSTEM_CLOCK,
        uptime: Callable[[], float] | None = None,
    ) -> None:
        scheme, _, rest = url.partition("://")
        self.family = "postgresql" if scheme.startswith("postgres") else "mysql"
        plain = f"{self.family}://{rest}"
        self.url = url
        self.safe_url = mask_urls(url)
        self._clock = clock
        self._revoke_expires = revoke_expires
        self._results = results or ResultTable()
        module, name = _LINKS[self.family]
        link: Any = getattr(import_module(module), name)
        link.check(plain)
        connect = partial(link, plain, connect_timeout, dict(options or {}))
        self._publisher = Handle(partial(connect, False), self.safe_url)
        self._commits = GroupCommit(self._publisher, self._store, self.safe_url)
        super().__init__(Handle(partial(connect, True), self.safe_url), lease_seconds, uptime)
        _stores.add(self)

    def _after_fork(self) -> None:
        """In a forked child: what the parent was about to publish, and the leases it holds, are not ours."""
        self._commits.forget()
        self._publisher.abandon()
        self._disown()

    # -- publishing --

    def rows_of(self, envelopes: Sequence[Envelope]) -> list[MessageRow]:
        """The rows that *envelopes* are stored as."""
        now = self._clock.now()
        return [
            (
                message.queue,
                -message.priority,
                message.due,
                DELAYED if message.due is not None and message.due > now else READY,
                now,
                message.headers,
                message.properties,
                message.body,
            )
            for message in envelopes
        ]

    def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
        if not envelopes:
            return
        self._due = None
        self._commits.push(self.rows_of(envelopes), timeout)

    def _store(self, rows: Sequence[MessageRow], deadline: float) -> Exception | None:
        """Store *rows* in one transaction; return the error for which nothing of it was stored."""

        def work(link: Link) -> None:
            with link.within(deadline):
                link.insert(rows)

        try:
            if CRASHING:
                crash_point("publishing")
            self._publisher.run_at_rest(work)
        except Exception as error:  # noqa: BLE001 - it is returned to who pushed
            return error
        if CRASHING:
            crash_point("published")
        return None

    def join(self, connection: Any) -> Sender:
        execute = executor(connection, self.family)
        table, bell = self._publisher.run_in_turn(lambda link: link.place(), TURN_SECONDS)
        return Joined(execute, table, bell, self.rows_of)

    def _ask(self, work: Callable[[Link], Any]) -> Any:
        """What *work* makes of the publishing connection, in a transaction."""

        def whole(link: Link) -> Any:
            with link.transaction():
                return work(link)

        return self._publisher.run_in_turn(whole, TURN_SECONDS)

    def revoke(self, ids: Sequence[str], terminate: bool = False, signal: str = "SIGTERM") -> None:
        until = self._clock.now() + self._revoke_expires

        def work(link: Link) -> None:
            # One after another: a number that is committed after a higher one would go unheard.
            link.ask("SELECT version FROM qworker_schema WHERE id = 1 FOR UPDATE")
            first = int(link.ask(NEXT_NUMBER.format(table="qworker_revoked", column="seq"))[0][0])
            for number, task_id in enumerate(ids, first):
                link.do(REVOKE, (number, task_id, int(terminate), signal, until))
            link.ring()

        self._ask(work)

    # -- administration --

    def next_due(self, queues: Sequence[str]) -> float | None:
        return self._publisher.run_at_rest(partial(next_due, queues))

    def queues(self) -> list[QueueInfo]:
        found: dict[str, QueueInfo] = {}
        for queue, state, count, oldest in self._ask(lambda link: link.ask(QUEUES)):
            info = found.get(queue) or QueueInfo(queue, 0, 0, 0, 0, None)
            found[queue] = info._replace(**{state: count, "oldest": oldest or info.oldest})
        return sorted(found.values())

    def purge(self, queue: str) -> int:
        statement = "DELETE FROM qworker_message WHERE queue = %s AND state IN (0, 1)"
        count: int = self._ask(lambda link: link.do(statement, (queue,)))
        return count

    def dead(self, queue: str | None = None, limit: int = 100) -> list[Dead]:
        where, values = ("", ()) if queue is None else (" WHERE queue = %s", (queue,))
        statement = f"{DEAD}{where} ORDER BY died_at DESC, tag DESC LIMIT %s"
        return [Dead(*row) for row in self._ask(lambda link: link.ask(statement, (*values, limit)))]

    def dead_retry(self, tags: Sequence[int] | None = None) -> int:
        now = self._clock.now()

        def work(link: Link) -> int:
            count = 0
            for portion in _portions(link, tags):
                found = link.ask(
                    "SELECT headers FROM qworker_dead WHERE tag = ANY(%s) FOR UPDATE", (portion,)
                )
                self._results.forget_failures(link, [headers for (headers,) in found])
                count += link.do(TO_MESSAGE, (now, portion))
                link.do("DELETE FROM qworker_dead WHERE tag = ANY(%s)", (portion,))
            link.ring()
            return count

        count: int = self._ask(work)
        return count

    def dead_discard(self, tags: Sequence[int] | None = None) -> int:
        def work(link: Link) -> int:
            statement = "DELETE FROM qworker_dead WHERE tag = ANY(%s)"
            return sum(link.do(statement, (portion,)) for portion in _portions(link, tags))

        count: int = self._ask(work)
        return count

    def push_dead(self, letters: Sequence[Dead]) -> None:
        def work(link: Link) -> None:
            for letter in letters:
                link.do(PUSH_DEAD, (link.new_tag(), *letter[1:]))

        self._ask(work)

    def flush_delayed(self, queue: str) -> int:
        def work(link: Link) -> int:
            flushed = link.do(FLUSH, (queue,))
            link.ring()
            return flushed

        count: int = self._ask(work)
        return count

    def workers(self) -> list[dict[str, object]]:
        now = None if self._uptime is None else self._uptime()
        return [
            {
                "name": name,
                "pid": pid,
                "queues": queues.split("\n"),
                "concurrency": concurrency,
                "started": started,
            }
            for name, pid, queues, concurrency, started, where, lock, until, clock in self._ask(
                lambda link: link.ask(WORKERS)
            )
            if until + self._lease_seconds > (float(clock) if now is None else now) and not died(lock, where)
        ]

    def close(self) -> None:
        try:
            self.deregister()
        finally:
            self._publisher.close()
            self._waker.close()
            self._handle.close()


def _portions(link: Link, tags: Sequence[int] | None) -> list[list[int]]:
    if tags is None:
        tags = [tag for (tag,) in link.ask("SELECT tag FROM qworker_dead ORDER BY tag")]
    return [list(tags[start : start + PORTION]) for start in range(0, len(tags), PORTION)]


def open_broker(url: str | None, conf: Settings) -> SQLBroker:
    """The broker at *url* with the settings *conf*; it is connected at the first use."""
    if not url:
        raise ConfigurationError("broker_url names no database", setting="broker_url")
    if conf.broker_use_ssl:
        raise ConfigurationError(
            "broker_use_ssl is for Redis and RabbitMQ: databases are told in the URL, PostgreSQL by "
            "?sslmode=verify-full&sslrootcert=/path/to/ca.pem, MySQL and MariaDB by ?ssl_ca=/path/to/ca.pem",
            setting="broker_use_ssl",
        )
    return SQLBroker(
        url,
        options=conf.broker_transport_options,
        connect_timeout=conf.broker_connection_timeout,
        lease_seconds=conf.worker_lease_seconds,
        revoke_expires=conf.revoke_expires,
        results=ResultTable(
            conf.database_table_names.get("task", "celery_taskmeta"), conf.result_expires or None
        ),
    )
