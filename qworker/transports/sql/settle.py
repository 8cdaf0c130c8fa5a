"""Settling messages: deleting them, or moving them back to their queue or to the letters.

Comes from:  ``consumer.py``.
Goes to:     the tables ``qworker_message``, ``qworker_dead`` and ``qworker_failed``; results and parts of
             joins by ``results.py``.
Thread:      the listener's.
"""

from __future__ import annotations

from collections.abc import Sequence

from qworker.process.crash_points import crash_point
from qworker.transports.lease import Ack, DeadLetter, Part, Release, ResultRow, Settlement, Store
from qworker.transports.sql.link import Link
from qworker.transports.sql.results import ResultTable
from qworker.transports.sql.schema import DELAYED, LETTERS, READY

RELEASE = """UPDATE qworker_message SET state = %s, owner = NULL, due = coalesce(%s, due),
deliveries = deliveries + %s, parked = parked + %s, redelivered = greatest(redelivered, %s)
WHERE tag = %s AND owner = %s"""
DEAD_LETTER = """INSERT INTO {table} (tag, queue, reason, died_at, deliveries, urgency, headers,
properties, body)
SELECT %s, queue, %s, %s, deliveries + %s, urgency, headers, properties, body FROM qworker_message
WHERE tag = %s AND owner = %s"""


def settle(
    link: Link, generation: int, settlements: Sequence[Settlement], results: ResultTable, now: float
) -> set[int]:
    """Carry out *settlements* in one step; return the tags that *generation* does not hold."""
    acks = {each.tag for each in settlements if type(each) is Ack and each.row is None and not each.parts}
    if len(acks) == len(settlements):
        return acks - link.remove(list(acks), generation)
    results.prepare(link, settlements)
    with link.transaction():
        return settle_within(link, generation, settlements, results, now)


def settle_within(
    link: Link, generation: int, settlements: Sequence[Settlement], results: ResultTable, now: float
) -> set[int]:
    """settle(), within a transaction and after ``results.prepare()``."""
    acks: dict[int, Ack] = {}
    others: list[Settlement] = []
    rows: list[ResultRow] = []
    parts: list[Part] = []
    lost: set[int] = set()
    for each in settlements:
        if type(each) is not Ack:
            others.append(each)
        elif acks.setdefault(each.tag, each) is not each:
            lost.add(each.tag)  # a repeated tag
    gone = link.remove(list(acks), generation) if acks else set()
    crash_point("acking")
    lost |= acks.keys() - gone
    rows += [ack.row for tag, ack in acks.items() if ack.row is not None and tag in gone]
    parts += [part for tag, ack in acks.items() if ack.parts and tag in gone for part in ack.parts]
    for each in others:
        if isinstance(each, Store):
            crash_point("storing")
            if each.row is not None:
                rows.append(each.row)
            parts += each.parts
        elif isinstance(each, Release):
            if not _release(link, generation, each, now):
                lost.add(each.tag)
        elif isinstance(each, DeadLetter):
            if not _dead_letter(link, generation, each, now):
                lost.add(each.tag)
                continue
            if each.row is not None:
                rows.append(each.row)
            parts += each.parts
    results.store(link, rows)
    results.record(link, parts)
    if any(isinstance(each, Release) for each in others):
        link.notify()
    return lost


def _release(link: Link, generation: int, order: Release, now: float) -> bool:
    """Give a message back to its queue; False when *generation* does not hold it."""
    crash_point("releasing")
    due = order.due
    state = DELAYED if due is not None and due > now else READY
    again = int(order.counted or order.redelivered)
    values = (state, due, int(order.counted), int(order.requeued), again, order.tag, generation)
    return link.do(RELEASE, values) > 0


def _dead_letter(link: Link, generation: int, order: DeadLetter, now: float) -> bool:
    """Make a dead letter of a message, or a failed task; False when *generation* does not hold it."""
    # In a recreated message table, tags of older dead letters are used again.
    table = LETTERS["failed" if order.failed else "dead"]
    taken = link.ask(f"SELECT 1 FROM {table} WHERE tag = %s", (order.tag,))
    tag = link.new_tag() if taken else order.tag
    if not link.do(
        DEAD_LETTER.format(table=table), (tag, order.reason, now, int(order.counted), order.tag, generation)
    ):
        return False
    crash_point("dead-lettering")
    return bool(link.remove([order.tag], generation))
