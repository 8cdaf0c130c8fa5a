"""The ends of a message that is not simply acknowledged: back to its queue, or among the dead letters.

Comes from:  ``consumer.py``, within its transaction.
Goes to:     the tables ``qworker_message`` and ``qworker_dead``.
Thread:      the listener's.
"""

from __future__ import annotations

from qworker.transports.crash_points import CRASHING, crash_point
from qworker.transports.lease import Bury, Release
from qworker.transports.sql.link import Link
from qworker.transports.sql.schema import DELAYED, READY

RELEASE = """UPDATE qworker_message SET state = %s, owner = NULL, due = coalesce(%s, due),
deliveries = deliveries + %s, parked = parked + %s, redelivered = greatest(redelivered, %s)
WHERE tag = %s AND owner = %s"""
BURY = """INSERT INTO qworker_dead (tag, queue, reason, died_at, deliveries, urgency, headers, properties,
body)
SELECT %s, queue, %s, %s, deliveries + %s, urgency, headers, properties, body FROM qworker_message
WHERE tag = %s AND owner = %s"""


def release(link: Link, epoch: int, order: Release, now: float) -> bool:
    """Give a message back to its queue; False when *epoch* does not hold it."""
    if CRASHING:
        crash_point("releasing")
    due = order.due
    state = DELAYED if due is not None and due > now else READY
    again = int(order.counted or order.redelivered)
    return link.do(RELEASE, (state, due, int(order.counted), int(order.parked), again, order.tag, epoch)) > 0


def bury(link: Link, epoch: int, order: Bury, now: float) -> bool:
    """Make a dead letter of a message; False when *epoch* does not hold it."""
    # Of a message table that was made anew, tags come again that older dead letters have.
    taken = link.ask("SELECT 1 FROM qworker_dead WHERE tag = %s", (order.tag,))
    tag = link.new_tag() if taken else order.tag
    if not link.do(BURY, (tag, order.reason, now, int(order.counted), order.tag, epoch)):
        return False
    if CRASHING:
        crash_point("burying")
    return bool(link.remove([order.tag], epoch))
