"""How messages are taken from PostgreSQL: in batches, without waiting for others, at a cost that does not grow.

Comes from:  ``sql_postgresql.py``.
Goes to:     the table ``qworker_message``.
Thread:      the listener's.

What was taken leaves dead entries at the front of the index, which every further claim would step over until vacuum
comes: after a million messages 30 ms each time. So in a long drain a claim begins where the last one ended, and only
four times a second at the very front, for what came back there.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from qworker.transports.lease import MAX_LEASE_BYTES
from qworker.transports.sql_link import Claimed, Row, leased
from qworker.transports.sql_schema import COLUMNS, NEXT_DUE

# An array, not a join: then the plan is the same however many rows the planner believes there are. Whoever takes this
# holder for dead deletes its row first, and so waits until what is taken here can be seen.
_CLAIM = f"""WITH me AS (SELECT id FROM qworker_owner WHERE id = %s FOR KEY SHARE),
taken AS MATERIALIZED ($selection FOR UPDATE SKIP LOCKED),
fitting AS (SELECT tag FROM (SELECT tag, sum(size) OVER (ORDER BY place, tag ROWS UNBOUNDED PRECEDING) - size AS before
FROM taken) AS sized WHERE before < {MAX_LEASE_BYTES})
UPDATE qworker_message SET state = 2, owner = (SELECT id FROM me)
WHERE tag = ANY(ARRAY(SELECT tag FROM fitting)) AND EXISTS (SELECT 1 FROM me) RETURNING {COLUMNS}"""
_READY = """SELECT tag, urgency AS place, octet_length(body) AS size FROM qworker_message
WHERE queue = %s AND state = 0 $after ORDER BY urgency, tag LIMIT %s"""
_AFTER = """AND (urgency, tag) > (%s, %s) AND NOT EXISTS
(SELECT 1 FROM qworker_message WHERE queue = %s AND state = 0 AND urgency < %s)"""
_NEAR = """SELECT tag, due AS place, octet_length(body) AS size FROM qworker_message
WHERE queue = %s AND state = 1 AND due <= %s ORDER BY due LIMIT %s"""
CLAIM = _CLAIM.replace("$selection", _READY.replace("$after", ""))
CLAIM_AFTER = _CLAIM.replace("$selection", _READY.replace("$after", _AFTER))
CLAIM_NEAR = _CLAIM.replace("$selection", _NEAR)
RIPEN = """UPDATE qworker_message SET state = 0 WHERE tag = ANY(ARRAY(SELECT tag FROM qworker_message
WHERE queue = %s AND state = 1 AND due <= %s ORDER BY due LIMIT 1000 FOR UPDATE SKIP LOCKED))"""
LONG_DRAIN = 2000
"""Messages taken in a row without running dry."""
FRONT_SECONDS = 0.25


class _Drain(NamedTuple):
    """taken: in a row. urgency, tag: of the last. front_at: when the front is looked at again."""

    taken: int
    urgency: int
    tag: int
    front_at: float


class Claims:
    """Remembers how far each queue has been drained."""

    def __init__(self) -> None:
        self._drains: dict[str, _Drain] = {}

    def claim(
        self,
        connection: Any,
        epoch: int,
        queue: str,
        now: float,
        limit: int,
        until: float,
        near: int,
    ) -> Claimed:
        drain = self._drains.get(queue)
        clock = time.monotonic()
        after = limit > 0 and drain is not None and drain.taken >= LONG_DRAIN and clock < drain.front_at
        with connection.pipeline():
            connection.execute(RIPEN, (queue, now))
            ahead = connection.execute(CLAIM_NEAR, (epoch, queue, until, near)) if near > 0 else None
            if limit <= 0:
                ready = None
            elif after and drain:
                place = (drain.urgency, drain.tag, queue, drain.urgency)
                ready = connection.execute(CLAIM_AFTER, (epoch, queue, *place, limit))
            else:
                ready = connection.execute(CLAIM, (epoch, queue, limit))
            next_due = connection.execute(NEXT_DUE, (queue,))
        rows: list[Row] = ready.fetchall() if ready else []
        if after and len(rows) < limit and sum(len(row[-1]) for row in rows) < MAX_LEASE_BYTES:
            rows += connection.execute(CLAIM, (epoch, queue, limit - len(rows))).fetchall()
            after = False
        self._note(queue, rows, limit, drain, drain.front_at if drain and after else clock + FRONT_SECONDS)
        early = [leased(row) for row in ahead.fetchall()] if ahead else []
        return Claimed([leased(row) for row in rows], early, next_due.fetchone()[0])

    def _note(
        self, queue: str, rows: Sequence[Row], limit: int, drain: _Drain | None, front_at: float
    ) -> None:
        if limit <= 0:
            return
        if len(rows) < limit:
            self._drains.pop(queue, None)
            return
        urgency, tag = max((row[2], row[0]) for row in rows)
        before = drain.taken if drain else 0
        self._drains[queue] = _Drain(before + len(rows), urgency, tag, front_at)
