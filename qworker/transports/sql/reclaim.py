"""Reclaiming messages of dead consumers, and deleting old data.

Comes from:  ``consumer.py``, about once a second.
Goes to:     the tables ``qworker_owner`` and ``qworker_message``.
Thread:      the listener's.

On one machine the lock of a dead consumer shows its death at once (``process/owner_files.py``); elsewhere its
lease must expire, on the clock of the database. Only messages that were running when it died count a
delivery: its running file lists them, or, if that is not accessible, the copy in its row.
"""

from __future__ import annotations

import time

from qworker.clock import boot_id
from qworker.process import owner_files
from qworker.transports.lease import Reclaimed
from qworker.transports.sql.link import Link, Row
from qworker.transports.sql.results import PORTION, ResultTable
from qworker.transports.sql.schema import NOW

OWNERS = (
    f"SELECT id, name, boot, lock_path, marks, running, lease_until, {NOW} FROM qworker_owner WHERE id <> %s"
)
HELD = "SELECT tag FROM qworker_message WHERE owner = %s AND state = 2"
SILENT_SECONDS = 3600.0
"""After so long without a word, the row of a consumer that holds nothing goes as well."""


def reclaim(link: Link, generation: int, now: float | None, silent_too: bool) -> list[Reclaimed]:
    """Put back what dead consumers other than that of *generation* held. now: on the clock of the leases,
    None: the database's. silent_too: as in ``Consumer.reclaim()``."""
    found = []
    began = time.monotonic()
    owners = link.ask(OWNERS, (generation,))
    silent_too = silent_too and time.monotonic() - began < owner_files.PROMPT_SECONDS
    for owner in owners:
        id, lock, lease_until = owner[0], owner[3], owner[6]
        current = float(owner[7]) if now is None else now
        dead = owner_files.died(lock, owner[2])
        silent = silent_too and lease_until < current and bool(link.ask(f"{HELD} LIMIT 1", (id,)))
        if not dead and not silent:
            continue
        with link.transaction():
            # Another consumer may have been quicker; and the silent one may have renewed since we read it.
            spoken = "" if dead else " AND lease_until <= %s"
            if not link.do(
                f"DELETE FROM qworker_owner WHERE id = %s{spoken}", (id,) if dead else (id, current)
            ):
                continue
            reclaimed = _put_back(link, owner)
            if reclaimed.returned:
                link.notify()
        found.append(reclaimed)
        if dead:
            owner_files.bury(lock)
    return found


def _put_back(link: Link, owner: Row) -> Reclaimed:
    id, name, boot, _, running_file, copied, *_ = owner
    tags = {tag for (tag,) in link.ask(f"{HELD} FOR UPDATE", (id,))}
    running = owner_files.running_tags(running_file) if boot == boot_id() else None
    if running is None:
        running = owner_files.copied_tags(copied)
    running &= tags
    if running:
        link.do(
            "UPDATE qworker_message SET deliveries = deliveries + 1 WHERE tag = ANY(%s)", (list(running),)
        )
    link.do(
        "UPDATE qworker_message SET state = 0, owner = NULL, redelivered = 1 WHERE owner = %s AND state = 2",
        (id,),
    )
    return Reclaimed(name, len(tags), len(running))


def forget_silent(link: Link) -> int:
    """Delete rows of consumers that ended elsewhere, without messages and without notice."""
    return link.do(
        f"DELETE FROM qworker_owner WHERE lease_until + %s < {NOW} AND lease_until > 1e9 AND NOT EXISTS "
        "(SELECT 1 FROM qworker_message WHERE owner = qworker_owner.id AND state = 2)",
        (SILENT_SECONDS,),
    )


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
