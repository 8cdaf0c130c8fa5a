"""PostgreSQL, MariaDB or MySQL as the broker, in tables of a database that may have other contents too.

Comes from:  ``broker_url`` ``postgresql://…``, ``mysql://…`` or ``mariadb://…``.
Goes to:     ``sender.py``, ``consumer.py`` and ``admin.py``; ``postgresql.py`` and ``mysql.py`` communicate
             with the servers.
Thread:      one connection publishes and administers (any thread, in turn), one belongs to the listener;
             neither is shared across a fork.

Publishing is as durable as the database's commits. Leases use the clock of the database. Due times are
compared with the clock of the consumer, and are computed from ``eta`` and ``countdown`` on the clock of the
publisher: keep both in step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.conf.secrets import mask_urls
from qworker.errors import ConfigurationError
from qworker.process.forked import forgetful
from qworker.transports.capabilities import Capabilities
from qworker.transports.connect_errors import refuse_setting
from qworker.transports.lease import Broker, Revocations, Workers
from qworker.transports.sql.admin import SQLAdmin
from qworker.transports.sql.consumer import SQLConsumer
from qworker.transports.sql.join_rows import TABLES, JoinTables
from qworker.transports.sql.letters import SQLLetters
from qworker.transports.sql.link import Handle
from qworker.transports.sql.links import connector, family_of
from qworker.transports.sql.registry import SQLRegistry
from qworker.transports.sql.results import ResultTable
from qworker.transports.sql.schema import LETTERS
from qworker.transports.sql.sender import SQLSender

if TYPE_CHECKING:
    from qworker.conf import Settings

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
        sender = SQLSender(self._shared, family, clock, revoke_expires, self.safe_url, url)
        consumer = SQLConsumer(partial(connect, True), self.safe_url, results, clock, lease_seconds, uptime)
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
