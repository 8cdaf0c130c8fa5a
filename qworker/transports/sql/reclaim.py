"""Reclaiming messages of dead consumers, and deleting old data.

Comes from:  ``consumer.py`` and ``embedded/consumer.py``, about once a second.
Goes to:     the tables of consumers and messages.
Thread:      the listener's.

On one machine the lock of a dead consumer shows its death at once (``process/owner_files.py``); elsewhere its
lease must expire, on the clock of the database. Only messages that were running when it died count a
delivery: its running file lists them, or, if that is not accessible, the copy in its row.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple, Protocol

from qworker.clock import boot_id
from qworker.process import owner_files
from qworker.process.crash_points import crash_point
from qworker.process.randomness import RANDOM
from qworker.transports.lease import Reclaimed
from qworker.transports.portions import portions
from qworker.transports.sql.join_rows import PORTION as PLACES
from qworker.transports.sql.join_rows import Session, places
from qworker.transports.sql.schema import NOW

if TYPE_CHECKING:
    from qworker.transports.sql.link import Link
    from qworker.transports.sql.results import ResultTable

OWNERS = (
    f"SELECT id, name, boot, lock_path, marks, running, lease_until, {NOW} FROM qworker_owner WHERE id <> %s"
)
NEXT_OWNERS = f"""SELECT id, name, boot, lock_path, marks, running, lease_until, {NOW},
(SELECT count(*) FROM qworker_owner WHERE lease_until > {NOW}) FROM qworker_owner
WHERE id <> %s AND lease_until <=
coalesce((SELECT min(lease_until) FROM qworker_owner WHERE id <> %s AND lease_until > {NOW}), 1e300)"""
"""Only those whose lease has expired, and that whose lease expires next; and how many are alive."""
LOOK_APART = 0.05
"""Seconds between two looks of a large fleet, whose consumers look one after another."""
HELD = "SELECT tag FROM {message} WHERE owner = %s AND state = 2"
COUNT = "UPDATE {message} SET deliveries = deliveries + 1 WHERE tag"
PUT_BACK = "UPDATE {message} SET state = 0, owner = NULL, redelivered = 1 WHERE owner = %s AND state = 2"
PORTION = 1000
"""Maximum rows that are deleted at once."""
SENDING_SECONDS = 15.0
"""Seconds after the end of its lease when the session of a consumer that has locked rows is ended: it may be
sending a large result over a slow network."""
RECLAIMING_SECONDS = 1.0
"""How long rows of a silent consumer may be locked because another one reclaims them."""
SILENT_SECONDS = 3600.0
"""Seconds after the end of its lease when the row of a consumer that holds nothing is deleted."""

logger = logging.getLogger(__name__)


class OtherConsumer(NamedTuple):
    """Another consumer. dead: it has certainly ended. until: the end of its lease, which has expired by *now*
    if it is silent. forgotten: so
    long ago that its row is deleted even if it holds nothing. copied: the running tags in its row."""

    id: int
    name: str
    dead: bool
    silent: bool
    forgotten: bool
    until: float
    now: float
    lock: str
    running: str
    copied: str


class Tables(NamedTuple):
    """The names of the tables. locking: the end of a SELECT that locks its rows, except those locked by
    others."""

    message: str = "qworker_message"
    owner: str = "qworker_owner"
    locking: str = " FOR UPDATE SKIP LOCKED"


class Transacting(Session, Protocol):
    def transaction(self) -> AbstractContextManager[object]:
        """Run the block in one transaction."""


def reclaim(
    session: Transacting,
    tables: Tables,
    owners: Iterable[OtherConsumer],
    notify: Callable[[], object],
    end_session: Callable[[OtherConsumer], object],
) -> tuple[list[Reclaimed], bool]:
    """Put back what dead and silent *owners* held. notify: called within the transaction.

    Also return whether some of it is locked, usually by a claim or a settlement of its owner, whose process
    is frozen. Waiting for it could cost this consumer its own lease. end_session: called to end such a claim
    or settlement.
    """
    found, locked = [], False
    held = HELD.format(message=tables.message)
    for owner in owners:
        if not (owner.dead or owner.silent):
            continue
        # Another consumer may have been quicker; and the silent one may have renewed since we read it.
        values = (owner.id, 1e300 if owner.dead else owner.now)
        there = f"SELECT id FROM {tables.owner} WHERE id = %s AND lease_until <= %s"
        holds = owner.dead or owner.forgotten or bool(session.ask(f"{held} LIMIT 1", (owner.id,)))
        if not holds and (not tables.locking or session.ask(f"{there}{tables.locking}", values)):
            continue  # nor is it claiming anything
        with session.transaction():
            # First the owner: then it claims nothing more, and what it has claimed is visible.
            if session.ask(f"{there}{tables.locking}", values):
                tags = {tag for (tag,) in session.ask(f"{held}{tables.locking}", (owner.id,))}
                blocked = tags != {tag for (tag,) in session.ask(held, (owner.id,))}
                if not blocked and holds:
                    found.append(_put_back(session, tables, owner, tags))
                    notify()  # it may have been notified of messages that it did not claim
            else:
                blocked = bool(session.ask(there, values))
        if blocked:
            locked = True
            if owner.now >= owner.until + SENDING_SECONDS:
                end_session(owner)
        elif owner.dead:
            owner_files.delete_files(owner.lock)
    return found, locked


def _put_back(session: Session, tables: Tables, owner: OtherConsumer, tags: set[int]) -> Reclaimed:
    """Within a transaction: put back the messages *tags* of *owner*, and delete its row."""
    session.do(f"DELETE FROM {tables.owner} WHERE id = %s", (owner.id,))
    running = owner_files.running_tags(owner.running)
    running = tags & (owner_files.copied_tags(owner.copied) if running is None else running)
    for some in portions(running, PLACES):
        session.do(f"{COUNT.format(message=tables.message)} IN ({places(some)})", some)
    session.do(PUT_BACK.format(message=tables.message), (owner.id,))
    crash_point("reclaiming")
    return Reclaimed(owner.name, len(tags), len(running))


def others(
    link: Link, generation: int, now: float | None, silent_too: bool, every: bool
) -> tuple[list[OtherConsumer], int]:
    """Return the consumers besides that of *generation*, and how many are alive, or at most. now: on the
    clock of the leases, None: the database's. silent_too: as in ``Consumer.reclaim()``. every: False returns
    those of NEXT_OWNERS only."""
    began = time.monotonic()
    if every or now is not None:
        rows = link.ask(OWNERS, (generation,))
        count = len(rows) + 1
    else:
        rows = link.ask(NEXT_OWNERS, (generation, generation))
        count = rows[0][-1] if rows else 1
    found = []
    silent_too = silent_too and time.monotonic() - began < owner_files.PROMPT_SECONDS
    for id, name, boot, lock, running, copied, until, clock, *_ in rows:
        current = float(clock) if now is None else now
        dead, silent = owner_files.died(lock, boot), silent_too and until < current
        file = running if boot == boot_id() else ""
        found.append(OtherConsumer(id, name, dead, silent, False, until, current, lock, file, copied))
    return found, count


class Reclaimer:
    """Reclaims from other consumers, on behalf of one of them. lease_seconds: the length of its lease."""

    def __init__(self, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        self._local_deaths = owner_files.LocalDeaths()
        self._look_at = 0.0
        """The monotonic time until which no lease of another consumer expires."""
        self._blocked: dict[int, float] = {}
        """Since when rows of silent consumers are locked, in monotonic seconds."""
        self._locking: set[int] = set()
        """The ids of those for which this was logged."""

    def reclaim(
        self,
        run: Callable[[Callable[[Link], list[Reclaimed]]], list[Reclaimed]],
        generation: int,
        now: float | None,
        silent: bool,
        running: str,
    ) -> list[Reclaimed]:
        """Put back the messages of dead consumers. run: calls a function with the connection. now: on the
        clock of leases, None for the server's. silent: see ``Consumer.reclaim``. running: our running file,
        beside the locks of the other consumers on this machine. The server is only asked if one of them has
        died, or if another lease may have expired."""
        free = self._local_deaths.look(running)
        began = time.monotonic()
        if not free and (not silent or began < self._look_at):
            return []

        def work(link: Link) -> list[Reclaimed]:
            owners, count = others(link, generation, now, silent, bool(free))
            for other in self._blocked.keys() - {owner.id for owner in owners if owner.dead or owner.silent}:
                del self._blocked[other]
            found, locked = reclaim(
                link, Tables(), owners, link.notify, lambda owner: self._end_session(link, owner)
            )
            leases = [each.until - each.now for each in owners if not (each.dead or each.silent)]
            if silent and now is None and not locked:  # no lease expires before
                rest = min(leases, default=self._lease_seconds)
                if rest > 0:  # otherwise the answer was late
                    apart = count * LOOK_APART * RANDOM.uniform(0.5, 1.5)
                    rest = max(rest, min(apart, self._lease_seconds))  # the others may have died since
                self._look_at = began + rest
            self._local_deaths.ignore(free - {each.lock for each in owners if each.dead})
            return found

        return run(work)

    def _end_session(self, link: Link, owner: OtherConsumer) -> None:
        now = time.monotonic()
        if now < self._blocked.setdefault(owner.id, now) + RECLAIMING_SECONDS:
            return
        if link.end_session(owner.id):
            logger.warning(
                "worker %s is silent and has locked messages: its connection to the database is ended",
                owner.name,
                extra={"event": "worker-disconnected"},
            )
        elif owner.id not in self._locking:
            self._locking.add(owner.id)
            logger.error(
                "messages of worker %s, which is silent, are locked in the database by a connection that "
                "cannot be ended from here: find it in pg_stat_activity or SHOW PROCESSLIST, and end it",
                owner.name,
                extra={"event": "messages-locked"},
            )


def forget_silent(link: Link) -> int:
    """Delete rows of consumers that ended elsewhere, without messages and without notice."""
    condition = (
        f"FROM qworker_owner WHERE lease_until + %s < {NOW} AND lease_until > 1e9 AND NOT EXISTS "
        "(SELECT 1 FROM qworker_message WHERE owner = qworker_owner.id AND state = 2)"
    )
    # By id: without an index, MySQL would lock, and wait for, the rows of all consumers.
    ids = [id for (id,) in link.ask(f"SELECT id {condition}", (SILENT_SECONDS,))]
    return link.do(f"DELETE {condition} AND id = ANY(%s)", (SILENT_SECONDS, ids)) if ids else 0


def sweep(link: Link, results: ResultTable, now: float) -> int:
    """Delete revocations and results that have expired by *now*. Return the number of rows, limited per
    call."""
    count = link.do("DELETE FROM qworker_revoked WHERE expires < %s", (now,))
    if ids := results.expired(link, now):
        count += results.delete(link, ids)
    return count


def sweep_letters(link: Link, table: str, died_before: float, most: int) -> int:
    """Like sweep(), for the letters in *table* that died before then, or exceed the newest *most* of their
    queue."""
    old = f"SELECT tag FROM {table} WHERE died_at < %s LIMIT {PORTION}"
    tags = {tag for (tag,) in link.ask(old, (died_before,))}
    crowded = f"SELECT queue FROM {table} GROUP BY queue HAVING count(*) > %s"
    newest = f"""SELECT died_at, tag FROM {table} WHERE queue = %s
    ORDER BY died_at DESC, tag DESC LIMIT 1 OFFSET %s"""
    for (queue,) in link.ask(crowded, (most,)):
        for died_at, tag in link.ask(newest, (queue, most)):
            beyond = f"""SELECT tag FROM {table} WHERE queue = %s AND (died_at < %s OR (died_at = %s
            AND tag <= %s))
            LIMIT {PORTION}"""
            tags |= {tag for (tag,) in link.ask(beyond, (queue, died_at, died_at, tag))}
        if len(tags) >= PORTION:
            break
    return link.do(f"DELETE FROM {table} WHERE tag = ANY(%s)", (list(tags),)) if tags else 0
