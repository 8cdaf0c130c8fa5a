"""Reclaiming messages of dead consumers.

Comes from:  ``consumer.py``.
Goes to:     the tables ``owner`` and ``message``.
Thread:      the listener's.

Beside the database there is a directory with the files of each consumer (``process/owner_files.py``): a lock,
and the running file of its children, whose name is in its row. A dead consumer's running file lists the
messages that were running, and only for these the death counts a delivery.
"""

from __future__ import annotations

import math
import sqlite3

from qworker.clock import boot_id
from qworker.process import owner_files
from qworker.process.crash_points import crash_point
from qworker.safe_repr import printable
from qworker.transports.lease import Reclaimed
from qworker.transports.sql.embedded import READY, Database, transaction

HELD = "SELECT tag FROM message WHERE owner = ? AND state = 2"


def reclaim(
    connection: sqlite3.Connection, database: Database, epoch: int, now: float, silent_too: bool
) -> list[Reclaimed]:
    """Put back what dead holders other than *epoch* held. now: on the clock of the leases. silent_too: see
    Broker."""
    found = []
    owners = connection.execute(
        "SELECT id, CAST(name AS TEXT), CAST(boot AS TEXT), CAST(lease_until AS REAL), CAST(marks AS TEXT) "
        "FROM owner "
        "WHERE id <> ?",
        (epoch,),
    )
    for id, name, boot, lease_until, marks_name in owners.fetchall():
        marks = str(database.owners / marks_name.replace("\0", ""))
        lock = owner_files.lock_beside(marks)
        dead = boot != boot_id() or owner_files.died(lock, boot)
        forgotten = lease_until < now - owner_files.LONG_DEAD
        silent = (
            silent_too
            and lease_until < now
            and (forgotten or connection.execute(HELD, (id,)).fetchone() is not None)
        )
        if not dead and not silent:
            continue
        with transaction(connection):
            # Another consumer may have been quicker; and the silent one may have renewed since we read it.
            last = math.inf if dead else now
            if not connection.execute(
                "DELETE FROM owner WHERE id = ? AND lease_until <= ?", (id, last)
            ).rowcount:
                continue
            found.append(_put_back(connection, id, name, owner_files.running_tags(marks) or set()))
            crash_point("reclaiming")
        if dead:
            owner_files.bury(lock)
    return found


def _put_back(connection: sqlite3.Connection, id: int, name: str, marked: set[int]) -> Reclaimed:
    tags = {tag for (tag,) in connection.execute(HELD, (id,))}
    running = tags & marked
    connection.executemany(
        "UPDATE message SET deliveries = deliveries + 1 WHERE tag = ?", [(tag,) for tag in running]
    )
    connection.execute(
        f"UPDATE message SET state = {READY}, owner = NULL, redelivered = 1 WHERE owner = ? AND state = 2",
        (id,),
    )
    return Reclaimed(printable(name), len(tags), len(running))
