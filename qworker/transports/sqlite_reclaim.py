"""How a holder of leases shows that it lives, and what becomes of a dead one's messages.

Comes from:  ``sqlite_holder.py``.
Goes to:     the tables ``owner`` and ``message``.
Thread:      the listener's.

Beside the database lies a directory with two files for each holder: ``<epoch>.lock``, which the holder keeps
locked while it lives, and ``<pid>.<random>.running``, in which its children mark the tag of the message that
they run. A dead holder's marks say which messages were being run, and only for these does the death count as
a delivery.
"""

from __future__ import annotations

import math
import os
import sqlite3
import struct
from pathlib import Path

from qworker.crash_points import CRASHING, crash_point
from qworker.embedded import READY, Database, boot_id, transaction
from qworker.transports.lease import Reclaimed
from qworker.transports.sqlite_bindings import drop_queues_of

try:
    import fcntl
except ImportError:  # Windows: a holder's death is known by its lease alone
    fcntl = None  # type: ignore[assignment]

HELD = "SELECT tag FROM message WHERE owner = ? AND state = 2"
MARK = struct.Struct("=q")
"""One slot of the ``.running`` file: the tag that a child runs, 0 for none."""


def lock_path(database: Database, epoch: int) -> Path:
    return database.owners / f"{epoch}.lock"


def lock(path: Path) -> int:
    """Make the file and lock it; the lock ends with the process, if not before by closing what is returned."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return file


def lives(path: Path) -> bool:
    """Whether the holder's process is alive, as far as its lock tells (True where that cannot be asked)."""
    if fcntl is None:
        return True
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False


def reclaim(connection: sqlite3.Connection, database: Database, epoch: int, now: float) -> list[Reclaimed]:
    """Put back what dead holders other than *epoch* held. now: on the clock of the leases."""
    found = []
    owners = connection.execute(
        "SELECT id, name, boot, lease_until, marks FROM owner WHERE id <> ?", (epoch,)
    )
    for id, name, boot, lease_until, marks in owners.fetchall():
        lock_file, marks_file = lock_path(database, id), database.owners / marks
        dead = boot != boot_id() or not lives(lock_file)
        silent = lease_until < now and connection.execute(HELD, (id,)).fetchone() is not None
        if not dead and not silent:
            continue
        with transaction(connection):
            # Another may have been quicker; and the silent one may have spoken since we looked.
            last = math.inf if dead else now
            if not connection.execute(
                "DELETE FROM owner WHERE id = ? AND lease_until <= ?", (id, last)
            ).rowcount:
                continue
            found.append(_put_back(connection, id, name, _read_marks(marks_file)))
            if CRASHING:
                crash_point("reclaiming")
        if dead:
            lock_file.unlink(missing_ok=True)
            marks_file.unlink(missing_ok=True)
    return found


def tidy(connection: sqlite3.Connection, database: Database) -> None:
    """Delete the marks of workers that died before they became holders: no row tells of those."""
    known = {marks for (marks,) in connection.execute("SELECT marks FROM owner")}
    for path in database.owners.glob("*.running"):
        pid = path.name.partition(".")[0]
        if path.name not in known and pid.isdecimal() and not _runs(int(pid)):
            path.unlink(missing_ok=True)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


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
    drop_queues_of(connection, id)
    return Reclaimed(name, len(tags), len(running))


def _read_marks(path: Path) -> set[int]:
    """The tags that a dead holder's children had marked as running."""
    try:
        data = path.read_bytes()
    except OSError:
        return set()
    return {mark for (mark,) in MARK.iter_unpack(data[: len(data) // MARK.size * MARK.size]) if mark}
