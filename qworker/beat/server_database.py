"""Schedules on a database server: the connection for ``store_sql``.

Comes from:  ``stores.py``.
Goes to:     the database, through its own Link; it does not use the broker's tables.
Thread:      any, one at a time; a forked child drops its parent's connection without contacting the server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

from qworker.beat.store import LEASE_SECONDS
from qworker.beat.store_sql import Pusher, are_missing
from qworker.clock import Clock
from qworker.conf.secrets import mask_urls
from qworker.errors import BackendError, BrokerUnavailable, QWorkerError
from qworker.interrupts import in_helper_thread
from qworker.process.forked import forgetful
from qworker.transports.connect_errors import MYSQL, POSTGRESQL, explained
from qworker.transports.lease import Sender
from qworker.transports.sql.link import Handle, Link
from qworker.transports.sql.links import as_written_plainly, connector, family_of
from qworker.transports.sql.result_rows import place_of
from qworker.transports.sql.sender import SQLSender

T = TypeVar("T")

TRIES = 3
"""Attempts of a transaction when connections are lost."""
CONNECT_SECONDS = 10.0
"""Connection timeout, if the URL has no ``connect_timeout``."""
_IDLE_MILLISECONDS = round(LEASE_SECONDS * 1000)
_IDLE_SECONDS = -(-_IDLE_MILLISECONDS // 1000)
SETTINGS = {
    "postgresql": (
        "statement_timeout = '30s'",
        "lock_timeout = '10s'",
        "default_transaction_isolation = 'read committed'",
        f"idle_in_transaction_session_timeout = {_IDLE_MILLISECONDS}",
    ),
    # Without READ COMMITTED, gaps read by one transaction are locked against inserts by others.
    "mysql": (
        "SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        "SESSION innodb_lock_wait_timeout = 10, "
        f"wait_timeout = {_IDLE_SECONDS}, net_read_timeout = {_IDLE_SECONDS}",
    ),
}
"""Settings of each connection, by dialect. A process that hangs or loses its network in a transaction keeps
the row of the lease locked, and no other process could lead until the server notices, which may take hours.
The timeouts also apply within a statement: PostgreSQL's timeout and MariaDB's ``wait_timeout`` run until a
message is complete, and each statement is one message; ``net_read_timeout`` is for other servers."""

_places = forgetful()


class ServerDatabase:
    """A database at *url*, in the notation of SQLAlchemy or of its driver, with or without ``db+``.

    Raises ConfigurationError for an invalid URL, or a driver that is not installed.
    """

    def __init__(self, url: str, clock: Clock) -> None:
        self._url = url
        self._clock = clock
        plain = as_written_plainly(url)
        self.dialect = family_of(plain)
        connect = connector(plain, _timeout(plain), {}, "beat_store")
        self._handle = Handle(lambda: connect(False), mask_urls(url), prepare=self._prepare)
        _places.add(self)

    def _after_fork(self) -> None:
        self._handle.abandon()

    def _prepare(self, link: Link) -> None:
        link.use_client_cursor()
        link.configure(SETTINGS[self.dialect])

    def transact(self, work: Callable[[Any], T]) -> T:
        return in_helper_thread(lambda: self._try(work, Link.transaction))

    def read(self, query: str, values: Sequence[Any]) -> list[Any]:
        return in_helper_thread(lambda: self._try(lambda link: link.ask(query, values), nullcontext))

    def _try(self, work: Callable[[Link], T], within: Callable[[Link], AbstractContextManager[Any]]) -> T:
        # Errors raised by *work*, and not by the connection
        theirs: list[QWorkerError] = []

        def whole(link: Link) -> T:
            with within(link):
                try:
                    return work(link)
                except QWorkerError as error:
                    theirs.append(error)
                    raise

        for attempt in range(1, TRIES + 1):
            try:
                return self._handle.run_locked(whole)
            except QWorkerError as error:
                if any(error is each for each in theirs):
                    raise
                lost = isinstance(error, BrokerUnavailable) and not are_missing(str(error))
                if attempt == TRIES or not lost:
                    raise self._explained(error) from error
                self._clock.sleep(0.02 * attempt)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _explained(self, error: QWorkerError) -> BackendError:
        cause = error.__cause__
        cause_text = str(error if cause is None or isinstance(cause, QWorkerError) else cause)
        text = explained(cause_text, POSTGRESQL if self.dialect == "postgresql" else MYSQL)
        return BackendError(f"the schedule store {mask_urls(self._url)}: {text}")

    def pusher(self, sender: Sender) -> Pusher | None:
        place = place_of(self._url)
        if not isinstance(sender, SQLSender) or place is None or place != place_of(sender.url):
            return None
        return lambda session, envelopes: sender.push_in(session, envelopes)

    def pushed(self, sender: Sender) -> None:
        if isinstance(sender, SQLSender):
            sender.notify()

    def close(self) -> None:
        self._handle.close()


def _timeout(url: str) -> float:
    """Return the connection timeout for *url*. (PostgreSQL's library reads it itself.)"""
    try:
        return float(dict(parse_qsl(urlsplit(url).query))["connect_timeout"])
    except (KeyError, ValueError):
        return CONNECT_SECONDS
