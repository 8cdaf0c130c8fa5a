"""Link, a connection to the broker's database, of any kind; and Handle, which keeps one open.

Comes from:  ``postgresql.py`` and ``mysql.py``, which make a Link each.
Goes to:     ``sender.py`` and ``broker.py``, which share one connection, and ``consumer.py``, which has its
             own.
Thread:      one at a time; a forked child drops its parent's without notifying the server.
"""

from __future__ import annotations

import math
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

from qworker.errors import BrokerUnavailable, ConfigurationError, QWorkerError
from qworker.interrupts import LockTimeout, in_helper_thread, with_lock
from qworker.process.randomness import RANDOM
from qworker.transports.lease import Leased, Part, RowsLocked
from qworker.transports.sql.join_rows import JoinTables, record
from qworker.transports.sql.schema import ADDITIONS, VERSION

T = TypeVar("T")
U = TypeVar("U")
Row = tuple[Any, ...]
MessageRow = tuple[Any, ...]
"""queue, urgency, due, state, sent, headers, properties, body."""

TRIES = 8
"""How often a transaction is tried after conflicts with others."""
LOCK_SECONDS = 30.0
"""How long a thread waits for another that uses the same connection."""
WAIT_SECONDS = 10.0
"""How long a statement waits for rows or tables that another transaction has locked."""
IDLE_SECONDS = 60
"""How long a transaction may be idle. Then the server ends it, if it can: its process may be frozen."""


class DriverError(NamedTuple):
    """A classified error of the driver. transient: a retry may succeed. fatal: not on this connection."""

    error: QWorkerError
    transient: bool = False
    fatal: bool = False


class ClaimOrder(NamedTuple):
    """What to take from one queue: up to *limit* messages due *now*, and up to *delayed_limit* due by
    *until*; for the consumer with this generation, if it is still registered."""

    generation: int
    queue: str
    now: float
    limit: int
    delayed_limit: int
    until: float


class Claimed(NamedTuple):
    """The messages taken from one queue, due and delayed.

    next_due: epoch second when the first remaining one is due; None when none is delayed.
    last_revocation: the highest number of a revocation, 0 when there is none.
    """

    ready: list[Leased]
    early: list[Leased]
    next_due: float | None
    last_revocation: int


def earliest(dues: Sequence[float | None]) -> float | None:
    """Return the first of *dues*; None when there is none."""
    return min((due for due in dues if due is not None), default=None)


class Notified(IntEnum):
    """NONE; ONE: a message, for this consumer; ALL: all consumers were notified."""

    NONE = 0
    ONE = 1
    ALL = 2


class Link(ABC):
    """One open connection. Statements are PostgreSQL's, with %s for values; MySQL's link translates the few
    differences. lease_seconds: of the consumer that uses it; inf for other uses."""

    errors: tuple[type[Exception], ...]
    table: str = ""
    """Distinguishes this broker from others in the same server."""
    lacks_additions: str = ""
    """Why the tables lack later additions; "" if they have them."""
    polls: bool = False
    """Whether consumers look for messages, since nobody notifies them."""
    notice: str = ""
    """What a worker logs about this connection when it starts."""

    def __init__(self, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        # Less than a third of the lease, so that it can be renewed.
        self._wait_seconds = min(WAIT_SECONDS, max(0.3, lease_seconds / 5))
        self._next_dues: dict[str, float | None] = {}
        """By queue: the ``next_due`` seen by the last claim on this connection. It saves a claim the search
        for delayed messages if there are none; a message delayed later is seen by the next claim."""

    @staticmethod
    @abstractmethod
    def check(url: str) -> None:
        """Raise ConfigurationError when *url* requests TLS in a way that can never work, such as with a
        missing file."""

    @abstractmethod
    def ask(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """Return the rows of *statement*."""

    @abstractmethod
    def do(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Run *statement*; return how many rows it changed."""

    def do_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run *statement*, an INSERT with VALUES (%s, …), for each of *rows*."""
        for row in rows:
            self.do(statement, row)

    @abstractmethod
    def new_tag(self) -> int:
        """Return an unused tag."""

    @abstractmethod
    def remove(self, tags: Sequence[int], owner: int) -> set[int]:
        """Delete those messages of *tags* that *owner* holds; return which these were."""

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def rollback(self) -> None: ...

    def use_client_cursor(self) -> None:  # noqa: B027 - MySQL does in any case
        """From now on, send each statement with its values as one message, so that the server never executes
        an incomplete one."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Context of a transaction."""
        self.begin()
        yield  # when it fails, its Handle rolls back
        self.commit()

    def flush(self) -> None:  # noqa: B027 - by default, every commit is on the disk
        """Return when all earlier commits are on the disk."""

    def crash(self) -> tuple[str, float]:
        """Return the last crash of the server that may have undone confirmed commits: an identifier, and how
        many seconds ago it was; ("", inf) if there are no such crashes."""
        return "", math.inf

    @abstractmethod
    def within(self, deadline: float) -> AbstractContextManager[None]:
        """Give up on the server at *deadline* (monotonic seconds), as far as the driver can."""

    @abstractmethod
    def prepare(self) -> None:
        """Set up the connection."""

    def configure(self, settings: Sequence[str]) -> None:
        """Carry out each of *settings*, a SET without this word, for all that follows on the connection."""
        for each in settings:
            self.do(f"SET {each}")

    @abstractmethod
    def has_tables(self) -> bool:
        """Whether the tables of ``schema.py`` exist, in any version."""

    @abstractmethod
    def create(self) -> None:
        """Create the tables, if missing, and their additions; other processes may do so at the same time."""

    @abstractmethod
    def add(self) -> None:
        """Add missing additions to the tables; other processes may do so at the same time."""

    def make_tables(self) -> None:
        """Call create() unless the tables exist in this version; add() what they lack. Raises
        ConfigurationError for tables of a newer version."""
        version = rows = 0
        if self.has_tables():
            found = self.ask("SELECT max(version), count(*) FROM qworker_schema")[0]
            version, rows = int(found[0] or 0), int(found[1])
        if version > VERSION:
            raise ConfigurationError(
                f"the tables in this database were created by a newer qworker (version {version}; "
                f"this one supports {VERSION}): upgrade qworker, or use another database",
                setting="broker_url",
            )
        if version < VERSION:
            self.create()
        elif rows <= len(ADDITIONS):
            try:
                self.add()
            except self.errors as error:
                # Without permission to change tables publishing still works; a worker reports it, see
                # SQLConsumer.
                if not isinstance(self.driver_error(error).error, ConfigurationError):
                    raise
                self.rollback()
                self.lacks_additions = str(error).strip().partition("\n")[0]

    @abstractmethod
    def table_and_channel(self) -> tuple[str, str]:
        """Return the full name of the table of messages, and the channel for notifications ('': none)."""

    @abstractmethod
    def insert(self, rows: Sequence[MessageRow]) -> None:
        """Store messages in one transaction, and notify consumers."""

    @abstractmethod
    def add_messages(self, rows: Sequence[MessageRow], table: str) -> None:
        """Within a transaction: store messages in *table*, its full name, without notification."""

    @abstractmethod
    def notify(self) -> None:
        """Within a transaction: wake waiting consumers, once it is committed."""

    @abstractmethod
    def listen(self, generation: int) -> None:
        """From now on notified() reports notifications, also those for the consumer *generation* alone."""

    @abstractmethod
    def end_session(self, generation: int) -> bool:
        """End another connection of the consumer *generation*, which keeps rows locked, perhaps because its
        process is frozen. Return whether there was one; False also if the server does not allow it."""

    @abstractmethod
    def notified(self, queues: Collection[str]) -> Notified:
        """Return which notifications came since the last call; where consumers poll: whether there is
        anything new, or anything to take from *queues*."""

    @abstractmethod
    def wake_another(self, generation: int, queues: Sequence[str]) -> None:
        """Wake another waiting consumer than *generation* for each of *queues*, where notifications are for
        one. A notification that is passed on ends when it has come round."""

    @abstractmethod
    def fileno(self) -> int:
        """Return the file to poll for notifications; -1: notified() must be called at intervals."""

    def claim(self, order: ClaimOrder) -> Claimed:
        """Carry out *order*. Delayed messages are only looked for when the last claim saw that there are
        some."""
        due = self._next_dues.get(order.queue, order.until)
        if due is None or due > order.until:
            order = order._replace(delayed_limit=0)
        found = self._claim(order)
        self._next_dues[order.queue] = found.next_due
        return found

    @abstractmethod
    def _claim(self, order: ClaimOrder) -> Claimed:
        """Carry out *order* as it is."""

    @abstractmethod
    def columns(self, table: str) -> dict[str, bool]:
        """Return the columns of *table*, and for each whether the server fills it if it is left out; {} if
        there is no such table."""

    @abstractmethod
    def make_results(self, table: str) -> None:
        """Create a table of results, as Celery does for extended ones: see ``backends/sql/tables.py``."""

    @abstractmethod
    def upsert(self, table: str, columns: Sequence[str], rows: Sequence[Row], makes_ids: bool) -> None:
        """Store results of different tasks (``result_upserts.py``). makes_ids: the server assigns the ids of
        new rows."""

    def record_parts(self, tables: JoinTables, parts: Sequence[Part]) -> None:
        """Within a transaction: record parts of joins (``join_rows.py``)."""
        record(self, tables, parts)

    @abstractmethod
    def gone(self) -> bool:
        """Whether the server has closed the connection since its last use. Sends nothing."""

    @abstractmethod
    def driver_error(self, error: Exception) -> DriverError: ...

    @abstractmethod
    def close(self) -> None:
        """Safe to call twice."""

    @abstractmethod
    def abandon(self) -> None:
        """In a forked child: close the connection without notifying the server, since the parent still uses
        it."""


def _nothing(link: Link) -> None:
    pass


def _prepared(link: Link) -> None:
    link.prepare()
    link.make_tables()


class _NoTables(Exception):
    """The tables do not exist, and reading does not create them."""


def _looked_at(link: Link) -> None:
    link.prepare()
    if not link.has_tables():
        raise _NoTables
    link.make_tables()  # those of an older version may lack additions


class Handle:
    """Keeps a Link open, and opens it again when it fails. lock: held by the thread that uses it, if several
    may. on_connect: called first on each new connection. prepare: sets up a connection; None: as a broker
    needs it, with its tables."""

    def __init__(
        self,
        connect: Callable[[], Link],
        url: str,
        on_connect: Callable[[Link], None] = _nothing,
        prepare: Callable[[Link], None] | None = None,
    ) -> None:
        self.lock = threading.Lock()
        self._connect = connect
        self._on_connect = on_connect
        self._prepare = prepare or _prepared
        self._url = url
        self._link: Link | None = None  # under lock
        self._whole = True
        """Whether the last use of the connection was completed."""
        self.connections = 0
        """How many were opened so far."""

    def open(self, prepare: Callable[[Link], None] | None = None) -> Link:
        """Return the connection, opened if necessary, with its tables. prepare: replaces that of the
        Handle."""
        if not self._whole and self._link is not None:
            self._drop(self._link)
        if self._link is None:
            try:
                link = in_helper_thread(self._connect)
            except ConfigurationError as error:
                raise self._waited_out(error) from error
            prepared = False
            try:
                for attempt in range(TRIES):
                    try:
                        (prepare or self._prepare)(link)
                        prepared = True
                        self._on_connect(link)
                        break
                    except link.errors as error:  # another process may be creating the tables
                        self._may_try_again(link, error, attempt, patient=not prepared)
            except BaseException:
                link.close()
                raise
            self._link, self._whole = link, True
            self.connections += 1
        return self._link

    def run(self, work: Callable[[Link], T], prepare: Callable[[Link], None] | None = None) -> T:
        """Return *work* applied to the connection; after a conflict with another transaction it is called
        again.
        prepare: as in open().

        Raises BrokerUnavailable when the server does not answer, or refuses.
        """
        for attempt in range(TRIES):
            link = self.open(prepare)
            self._whole = False
            try:
                found = work(link)
                self._whole = True
                return found
            except link.errors as error:
                self._may_try_again(link, error, attempt)
            except QWorkerError:
                self._undo(link)
                raise
            except BaseException:  # an interrupt: nobody can continue its work
                self._drop(link)
                raise
        raise AssertionError("unreachable: the last try returns or raises")

    def run_at_rest(self, work: Callable[[Link], T], prepare: Callable[[Link], None] | None = None) -> T:
        """run() on a connection that may have been idle for long; if the server has closed it, on a new
        one."""
        if self._link is not None and self._whole and self._link.gone():
            self._drop(self._link)
        return self.run(work, prepare)

    def _may_try_again(self, link: Link, error: Exception, attempt: int, patient: bool = False) -> None:
        """Return after a short pause if another try may succeed; raise our error otherwise. patient: also
        wait for locks again."""
        found = link.driver_error(error)
        if found.fatal:
            self._drop(link)
        else:
            self._undo(link)
        waits = found.transient or (patient and isinstance(found.error, RowsLocked))
        if not waits or attempt == TRIES - 1:
            raise self._waited_out(found.error) from error
        time.sleep(RANDOM.uniform(0.001, 0.01) * 2**attempt)

    def _waited_out(self, error: QWorkerError) -> QWorkerError:
        """Return the error to raise for *error*: a configuration that worked before is not wrong, but the
        server may be unavailable."""
        if isinstance(error, ConfigurationError) and self.connections:
            return BrokerUnavailable(str(error))
        return error

    def _undo(self, link: Link) -> None:
        try:
            link.rollback()
            self._whole = True
        except Exception:  # noqa: BLE001 - after any error, this connection is unusable
            self._drop(link)

    def _drop(self, link: Link) -> None:
        if self._link is link:
            self._link = None
        link.close()

    def run_locked(self, work: Callable[[Link], T], prepare: Callable[[Link], None] | None = None) -> T:
        """run() on a connection shared with other threads; BrokerUnavailable when they keep it for
        LOCK_SECONDS."""
        return self._in_turn(lambda: self.run_at_rest(work, prepare))

    def run_once(self, work: Callable[[Link], T]) -> T:
        """run_locked(), for a single use: a connection opened for it is closed afterwards."""

        def alone() -> T:
            kept = self._link is not None
            try:
                return self.run_at_rest(work)
            finally:
                if not kept:
                    self.close()

        return self._in_turn(alone)

    def _in_turn(self, work: Callable[[], T]) -> T:
        try:
            return with_lock(self.lock, LOCK_SECONDS, work)
        except LockTimeout:
            raise BrokerUnavailable(
                f"{self._url} was kept busy by other threads for {LOCK_SECONDS:g} s"
            ) from None

    def transact(self, work: Callable[[Link], T], prepare: Callable[[Link], None] | None = None) -> T:
        """run_locked(), in one transaction."""

        def whole(link: Link) -> T:
            with link.transaction():
                return work(link)

        return self.run_locked(whole, prepare)

    def look(self, work: Callable[[Link], T], nothing: U) -> T | U:
        """transact() for reading or changing existing data: returns *nothing* if there are no tables, and
        does not create them."""
        try:
            return self.transact(work, _looked_at)
        except _NoTables:
            return nothing

    def close(self) -> None:
        """Close the connection; the next use opens another. Safe to call twice."""
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def abandon(self) -> None:
        """In a forked child: drop the parent's connection without notifying the server."""
        self.lock = threading.Lock()
        link, self._link = self._link, None
        if link is not None:
            link.abandon()


def detach_socket(file: int) -> None:
    """Point *file* at the null device in this process only; other processes keep the socket."""
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.dup2(nowhere, file, inheritable=False)
    finally:
        os.close(nowhere)


def leased(row: Row) -> Leased:
    """Return a Leased from a row of schema.COLUMNS."""
    tag, queue, urgency, due, deliveries, redelivered, requeued, headers, properties, body = row
    return Leased(
        tag, queue, -urgency, due, deliveries, redelivered == 1, requeued, headers, properties, body
    )
