"""PostgreSQL, MariaDB or MySQL as the broker, in tables of a database that may have other contents too.

Comes from:  ``broker_url`` ``postgresql://…``, ``mysql://…`` or ``mariadb://…``.
Goes to:     ``sender.py`` and ``consumer.py``; ``postgresql.py`` and ``mysql.py`` communicate
             with the servers.
Thread:      one connection publishes and administers (any thread, in turn), one belongs to the listener;
             neither is shared across a fork.

Publishing is as durable as the database's commits. Leases use the clock of the database. Due times are
compared with the clock of the consumer, and are computed from ``eta`` and ``countdown`` on the clock of the
publisher: keep both in step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.conf.secrets import mask_urls
from qworker.errors import ConfigurationError
from qworker.process.forked import forgetful
from qworker.process.owner_files import died
from qworker.transports.capabilities import Capabilities
from qworker.transports.connect_errors import refuse_setting
from qworker.transports.lease import (
    Admin,
    Again,
    Broker,
    Dead,
    Delayed,
    Kind,
    Letters,
    Listing,
    MessageState,
    Peeked,
    Peeking,
    QueueInfo,
    Revocations,
    StoredResults,
    Workers,
)
from qworker.transports.portions import portions
from qworker.transports.presence import Presence, from_text
from qworker.transports.registry import Registry
from qworker.transports.sql.consumer import SQLConsumer
from qworker.transports.sql.join_rows import TABLES, JoinTables
from qworker.transports.sql.link import Handle, Link, earliest
from qworker.transports.sql.links import connector, family_of
from qworker.transports.sql.results import ResultTable
from qworker.transports.sql.schema import DELAYED, LEASED, LETTERS, MYSQL_TABLE, NEXT_DUE, NOW, READY
from qworker.transports.sql.sender import SQLSender

if TYPE_CHECKING:
    from qworker.conf import Settings

CHANGED_AT_ONCE = 500
PAGE = "SELECT tag, queue, reason, died_at, deliveries, headers, properties, body FROM {table}"
AFTER = "(died_at < %s OR died_at = %s AND tag < %s)"
LOCK = "SELECT headers FROM {table} WHERE tag = ANY(%s) FOR UPDATE"
_SEND = """INSERT INTO qworker_message (queue, urgency, state, sent, redelivered, headers, properties, body)
SELECT queue, urgency, 0, %s, 1, {message} FROM {table} WHERE tag = ANY(%s) ORDER BY tag"""
SEND = _SEND.replace("{message}", "headers, properties, body")
SEND_CHANGED = _SEND.replace("{message}", "%s, %s, %s")
DISCARD = "DELETE FROM {table} WHERE tag = ANY(%s)"
INSERT = """INSERT INTO {table} (tag, queue, reason, died_at, deliveries, urgency, headers, properties, body)
VALUES (%s, %s, %s, %s, %s, 0, %s, %s, %s)"""


class SQLLetters(Letters):
    """handle: the connection that publishes. results: those in the same database."""

    def __init__(self, kind: Kind, handle: Handle, results: ResultTable, clock: Clock) -> None:
        self._table = LETTERS[kind]
        self._handle = handle
        self._results = results
        self._clock = clock

    def page(self, queue: str | None, limit: int, after: Dead | None) -> list[Dead]:
        wheres: dict[str, tuple[Any, ...]] = {} if queue is None else {"queue = %s": (queue,)}
        wheres |= {} if after is None else {AFTER: (after.died_at, after.died_at, after.tag)}
        where = f" WHERE {' AND '.join(wheres)}" if wheres else ""
        statement = f"{self._named(PAGE)}{where} ORDER BY died_at DESC, tag DESC LIMIT %s"
        values = [value for some in wheres.values() for value in some]
        rows = self._handle.look(lambda link: link.ask(statement, (*values, limit)), [])
        return [Dead(*row) for row in rows]

    def retry(self, tags: Sequence[int] | None = None) -> int:
        now = self._clock.now()

        def work(link: Link) -> int:
            count = 0
            for portion in self._portions(link, tags):
                found = link.ask(self._named(LOCK), (portion,))
                self._results.forget_failures(link, [headers for (headers,) in found])
                count += link.do(self._named(SEND), (now, portion))
                link.do(self._named(DISCARD), (portion,))
            link.notify()
            return count

        return self._handle.look(work, 0)

    def send_again(self, calls: Sequence[Again]) -> int:
        now = self._clock.now()

        def work(link: Link) -> int:
            count = 0
            for tag, headers, properties, body in sorted(calls):  # in one order, against deadlocks
                found = link.ask(self._named(LOCK), ([tag],))
                if not found:
                    continue
                self._results.forget_failures(link, [found[0][0]])
                count += link.do(self._named(SEND_CHANGED), (now, headers, properties, body, [tag]))
                link.do(self._named(DISCARD), ([tag],))
            link.notify()
            return count

        return self._handle.look(work, 0)

    def discard(self, tags: Sequence[int] | None = None) -> int:
        def work(link: Link) -> int:
            return sum(link.do(self._named(DISCARD), (some,)) for some in self._portions(link, tags))

        return self._handle.look(work, 0)

    def push(self, letters: Sequence[Dead]) -> None:
        def work(link: Link) -> None:
            for letter in letters:
                link.do(self._named(INSERT), (link.new_tag(), *letter[1:]))

        self._handle.transact(work)

    def _portions(self, link: Link, tags: Sequence[int] | None) -> Iterator[list[int]]:
        if tags is None:
            tags = [tag for (tag,) in link.ask(self._named("SELECT tag FROM {table} ORDER BY tag"))]
        return portions(tags, CHANGED_AT_ONCE)

    def _named(self, statement: str) -> str:
        return statement.replace("{table}", self._table)


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


# The key is a digest, because MySQL limits keys, and entries have no limit.
TABLE = """CREATE TABLE IF NOT EXISTS qworker_registry (
digest varchar(64) PRIMARY KEY, entry {text} NOT NULL, expires double precision) {suffix}"""
_MAKE = {
    # Two processes that create a table at the same time conflict in PostgreSQL.
    "postgresql": ("SELECT pg_advisory_xact_lock(7161001)", TABLE.format(text="text", suffix="")),
    "mysql": (TABLE.format(text="longtext", suffix=MYSQL_TABLE),),
}
_PUT = {
    "postgresql": "INSERT INTO qworker_registry (digest, entry, expires) VALUES (%s, %s, %s) "
    "ON CONFLICT (digest) DO UPDATE SET expires = excluded.expires",
    "mysql": "INSERT INTO qworker_registry (digest, entry, expires) VALUES (%s, %s, %s) "
    "ON DUPLICATE KEY UPDATE expires = VALUES(expires)",
}


class SQLRegistry(Registry):
    """handle: the connection that publishes and administers. family: ``postgresql`` or ``mysql``."""

    def __init__(self, handle: Handle, family: str) -> None:
        self._handle = handle
        self._family = family
        self._seen: Link | None = None  # under the handle's lock
        """The connection on which the table was last found."""

    def _is_there(self, link: Link) -> bool:
        if self._seen is not link and link.columns("qworker_registry"):
            self._seen = link
        return self._seen is link

    def entries(self) -> dict[str, float | None]:
        def work(link: Link) -> dict[str, float | None]:
            if not self._is_there(link):
                return {}
            return dict(link.ask("SELECT entry, expires FROM qworker_registry"))

        return self._handle.run_locked(work)

    def put(self, entries: Mapping[str, float | None]) -> None:
        rows = [(_digest(entry), entry, expires) for entry, expires in sorted(entries.items())]

        def make(link: Link) -> None:
            if not self._is_there(link):
                for statement in _MAKE[self._family]:
                    link.do(statement)

        def work(link: Link) -> None:
            for row in rows:
                link.do(_PUT[self._family], row)

        if rows:
            self._handle.transact(make)
            self._handle.transact(work)

    def drop(self, entries: Iterable[str]) -> None:
        digests = sorted(_digest(entry) for entry in entries)

        def work(link: Link) -> None:
            if self._is_there(link):
                for digest in digests:
                    link.do("DELETE FROM qworker_registry WHERE digest = %s", (digest,))

        if digests:
            self._handle.transact(work)


def _digest(entry: str) -> str:
    return sha256(entry.encode("utf-8", "surrogatepass")).hexdigest()


POLL_SECONDS = 10.0
"""Seconds between the claims of an idle consumer that no message has caused."""
CAPABILITIES = Capabilities(
    "PostgreSQL, MariaDB, MySQL",
    ("postgresql", "postgres", "mysql", "mariadb"),
    accepted="committed",
    redelivered="at once for a worker on the same machine; elsewhere when its lease expires "
    "(worker_lease_seconds)",
    eta="a column; fetched when due",
    priority="0 to 9",
    fanout="a table, read by all workers, including those that start later",
    dead_letters="a table",
    failed_tasks="a table",
    delivery_count="counted for running messages, whether a process or a whole worker died",
    note="`app.publishing_in(session)` publishes within the caller's own transaction.",
)

_brokers = forgetful()


class SQLBroker(Broker):
    """The broker in a database. Connects on first use.

    lease_seconds: how long a silent consumer is considered alive. uptime: a clock for leases, None: the
    database's.
    results: where rows of settlements go.
    """

    sender: SQLSender
    consumer: SQLConsumer

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
        self.safe_url = mask_urls(url)
        results = results or ResultTable()
        family, connect = family_of(url), connector(url, connect_timeout, options or {})
        self._shared = Handle(partial(connect, False), self.safe_url)
        """The connection that publishes and administers."""
        link = partial(connect, True, lease_seconds)
        sender = SQLSender(self._shared, family, clock, revoke_expires, self.safe_url, url)
        consumer = SQLConsumer(link, self.safe_url, results, clock, lease_seconds, uptime)
        consumer.poll_seconds = POLL_SECONDS
        admin = SQLAdmin(self._shared, results, lease_seconds, uptime)
        super().__init__(
            url,
            sender,
            consumer,
            admin,
            lacks=CAPABILITIES.lacks,
            letters={kind: SQLLetters(kind, self._shared, results, clock) for kind in LETTERS},
            revocations=Revocations(sender, consumer),
            presence=Workers(consumer, admin),
            peeking=admin,
            delayed=admin,
            stored_results=admin,
            by_queue=None,
            registry=SQLRegistry(self._shared, family),
            lowest_first=False,
            silent_seconds=math.inf,
        )
        _brokers.add(self)

    @property
    def missing(self) -> str | None:
        """See Broker; the tables of the database count here. Raises BrokerUnavailable when it is
        unavailable."""
        return self._shared.look(lambda link: None, f"table of qworker in {self.safe_url}")

    def _after_fork(self) -> None:
        """In a forked child: pending messages and leases belong to the parent."""
        self.sender.after_fork()
        self._shared.abandon()
        self.consumer.after_fork()

    def close(self) -> None:
        try:
            self.consumer.deregister()
        finally:
            self._shared.close()


def open_broker(url: str | None, conf: Settings) -> SQLBroker:
    """Return the broker at *url* with the settings *conf*; it connects on first use."""
    if not url:
        raise ConfigurationError("broker_url names no database", setting="broker_url")
    refuse_setting(
        conf.broker_use_ssl,
        "for databases it is set in the URL, for PostgreSQL with "
        "?sslmode=verify-full&sslrootcert=/path/to/ca.pem, for MySQL and MariaDB with "
        "?ssl_ca=/path/to/ca.pem",
    )
    names = conf.database_table_names
    return SQLBroker(
        url,
        options=conf.broker_transport_options,
        connect_timeout=conf.broker_connection_timeout,
        lease_seconds=conf.worker_lease_seconds,
        revoke_expires=conf.revoke_expires,
        results=ResultTable(
            names.get("task", "celery_taskmeta"),
            conf.result_expires or None,
            JoinTables(names.get("join", TABLES.join), names.get("part", TABLES.part)),
        ),
    )
