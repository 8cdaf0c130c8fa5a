"""PostgreSQL, MariaDB or MySQL as the broker, in tables of a database that may hold other things too.

Comes from:  ``broker_url`` ``postgresql://…``, ``mysql://…`` or ``mariadb://…``.
Goes to:     ``sender.py``, ``consumer.py`` and ``admin.py``; ``postgresql.py`` and ``mysql.py`` speak to the
             servers.
Thread:      one connection publishes and administers (any thread, in turn), one belongs to the listener;
             neither crosses a fork.

Publishing is as durable as the database's commits. Leases run on the clock of the database. An instant at
which a message falls due is compared with the clock of the consumer, as the settings ``eta`` and
``countdown`` were computed on the clock of who published: keep both in step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.conf.secrets import mask_urls
from qworker.errors import ConfigurationError
from qworker.process.forked import forgetful
from qworker.transports.connect_errors import refuse_setting
from qworker.transports.lease import Broker
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

_brokers = forgetful()


class SQLBroker(Broker):
    """The broker in a database. Connects at the first use, not before.

    lease_seconds: how long a silent consumer is believed to live. uptime: a clock for the leases, None: the
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
        super().__init__(
            url,
            SQLSender(self._shared, family, clock, revoke_expires, self.safe_url, url),
            SQLConsumer(partial(connect, True), self.safe_url, results, clock, lease_seconds, uptime),
            SQLAdmin(self._shared, results, lease_seconds, uptime),
            letters={kind: SQLLetters(kind, self._shared, results, clock) for kind in LETTERS},
        )
        self.registry = SQLRegistry(self._shared, family)
        _brokers.add(self)

    @property
    def missing(self) -> str | None:
        """See Broker; the tables of the database count here. Raises BrokerUnavailable when it cannot be
        asked."""
        return self._shared.look(lambda link: None, f"table of qworker in {self.safe_url}")

    def _after_fork(self) -> None:
        """In a forked child: what the parent was about to publish, and the leases it holds, are not ours."""
        self.sender.after_fork()
        self._shared.abandon()
        self.consumer.after_fork()

    def close(self) -> None:
        try:
            self.consumer.deregister()
        finally:
            self._shared.close()


def open_broker(url: str | None, conf: Settings) -> SQLBroker:
    """The broker at *url* with the settings *conf*; it is connected at the first use."""
    if not url:
        raise ConfigurationError("broker_url names no database", setting="broker_url")
    refuse_setting(
        conf.broker_use_ssl,
        "databases are told in the URL, PostgreSQL by ?sslmode=verify-full&sslrootcert=/path/to/ca.pem, "
        "MySQL and MariaDB by ?ssl_ca=/path/to/ca.pem",
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
