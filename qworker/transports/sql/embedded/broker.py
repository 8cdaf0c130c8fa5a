"""The embedded broker: a Broker in one SQLite file.

Comes from:  ``broker_url`` ``sqlite:///path``, or no broker_url at all.
Goes to:     the tables of ``schema``.
Thread:      one connection publishes (any thread, in turn), one belongs to the listener; neither crosses a
             fork.

Publishing is durable: the commit is on the disk (``synchronous=FULL``) before push returns; callers that wait
together share one commit. The worker's own claims and acks are NORMAL: a power failure may undo the last of
them, which only means running a task again.

A consumer with leases has a row in ``owner`` and a locked file. The kernel releases the lock with the
process, so the death of a consumer is certain and noticed at once; one that is alive but does not renew for
``lease_seconds`` is considered dead too. Leases use the clock shared by all processes of one boot, never the
wall clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from qworker.clock import SYSTEM_CLOCK, Clock, boottime
from qworker.process.forked import forgetful
from qworker.transports.capabilities import Capabilities
from qworker.transports.lease import Broker, Kind, Revocations, Workers
from qworker.transports.sql.embedded import Database, Handle, Notifier, database_path
from qworker.transports.sql.embedded.admin import SQLiteAdmin
from qworker.transports.sql.embedded.consumer import SQLiteConsumer, StoreRows, store_rows
from qworker.transports.sql.embedded.letters import SQLiteLetters
from qworker.transports.sql.embedded.registry import SQLiteRegistry
from qworker.transports.sql.embedded.sender import SQLiteSender

if TYPE_CHECKING:
    from qworker.conf import Settings

CAPABILITIES = Capabilities(
    "SQLite (embedded)",
    ("sqlite",),
    accepted="committed to the file, on the disk (`embedded_synchronous`)",
    redelivered="at once: the kernel drops a dead worker's lock; a frozen worker's after "
    "worker_lease_seconds",
    eta="a column; fetched when due",
    priority="0 to 9",
    fanout="a table, read by all workers, including those that start later",
    dead_letters="a table",
    failed_tasks="a table",
    delivery_count="counted for running messages, whether a process or a whole worker died",
    note="One host; not on a network file system. A new file can be read by its owner only; chmod "
    "gives access to others.",
)

_brokers = forgetful()


class SQLiteBroker(Broker):
    """The embedded broker. Opens the file on first use.

    url: ``sqlite:///path`` or None for the default file.
    synchronous: FULL or NORMAL, for publishing.
    lease_seconds: how long a silent consumer is considered alive.
    revoke_expires: seconds for which a revocation is valid.
    uptime: the clock for leases, in seconds: shared by all processes of this boot, and never set.
    store_rows: stores the results of settlements.
    """

    sender: SQLiteSender
    consumer: SQLiteConsumer

    def __init__(
        self,
        url: str | None = None,
        *,
        synchronous: str = "FULL",
        lease_seconds: float = 15.0,
        revoke_expires: float = 86400.0,
        clock: Clock = SYSTEM_CLOCK,
        uptime: Callable[[], float] = boottime,
        store_rows: StoreRows = store_rows,
    ) -> None:
        self.path = database_path(url)
        database = Database(self.path, synchronous)
        self._publishing = Handle(database)
        self._messages = Notifier(database.pipes, "message")
        self._results = Notifier(database.pipes, "result")
        kinds: tuple[Kind, ...] = ("dead", "failed")
        sender = SQLiteSender(self._publishing, self._messages, self.path, clock, revoke_expires)
        consumer = SQLiteConsumer(
            database, self._messages, self._results, clock, lease_seconds, uptime, store_rows
        )
        admin = SQLiteAdmin(
            self._publishing, self._messages, database.owners, lambda: uptime() - lease_seconds
        )
        super().__init__(
            f"sqlite:///{self.path}",
            sender,
            consumer,
            admin,
            lacks=CAPABILITIES.lacks,
            letters={kind: SQLiteLetters(kind, self._publishing, self._messages, clock) for kind in kinds},
            revocations=Revocations(sender, consumer),
            presence=Workers(consumer, admin),
            peeking=admin,
            delayed=admin,
            stored_results=admin,
            by_queue=None,
            registry=SQLiteRegistry(self._publishing),
            lowest_first=False,
            silent_seconds=math.inf,
        )
        self._database = database
        _brokers.add(self)

    @property
    def missing(self) -> str | None:
        return str(self.path) if self._database.is_absent() else None

    def _after_fork(self) -> None:
        self.sender.after_fork()
        self.consumer.after_fork()

    def close(self) -> None:
        try:
            self.consumer.deregister()
        finally:
            self._publishing.close()
            self.consumer.close()
            self._messages.close()
            self._results.close()


def open_broker(url: str | None, conf: Settings) -> SQLiteBroker:
    """Return the embedded broker at *url* with the settings *conf*; the file is opened on first use."""
    return SQLiteBroker(
        url,
        synchronous=conf.embedded_synchronous,
        lease_seconds=conf.worker_lease_seconds,
        revoke_expires=conf.revoke_expires,
    )
