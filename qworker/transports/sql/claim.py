"""Claiming messages in PostgreSQL: in batches, without waiting for others, at constant cost.

Comes from:  ``postgresql.py``.
Goes to:     the table ``qworker_message``.
Thread:      the listener's.

A claim is one statement, and so one round trip: its last row, without a tag, tells when the next message is
due, and the number of the last revocation.

Taken messages leave dead entries at the front of the index, which every further claim would have to skip
until vacuum runs: after a million messages 30 ms each time. So in a long drain a claim begins where the last
one ended, and only four times a second at the very front, for messages that came back there.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import psycopg

from qworker.transports.lease import MAX_LEASE_BYTES
from qworker.transports.sql.link import Claimed, ClaimOrder, Row, leased
from qworker.transports.sql.schema import COLUMNS, LAST_REVOKED

# An array, not a join: then the plan does not depend on the planner's row estimates. A consumer that declares
# this one dead deletes its row first, and so waits until messages taken here are visible.
_TAKE = f"""WITH me AS (SELECT id FROM qworker_owner WHERE id = %s FOR KEY SHARE),
$selection,
fitting AS (SELECT tag FROM (SELECT tag, sum(size) OVER (ORDER BY place,
tag ROWS UNBOUNDED PRECEDING) - size AS before
FROM taken) AS sized WHERE before < {MAX_LEASE_BYTES}),
claimed AS (UPDATE qworker_message SET state = 2, owner = (SELECT id FROM me)
WHERE tag = ANY(ARRAY(SELECT tag FROM fitting)) AND EXISTS (SELECT 1 FROM me) RETURNING {COLUMNS})
SELECT {COLUMNS} FROM claimed"""
_DELAYED = "FROM qworker_message WHERE queue = %s AND state = 1"
_SOON = f"""taken AS MATERIALIZED (SELECT tag, due AS place, octet_length(body) AS size {_DELAYED}
AND due <= %s
ORDER BY due LIMIT %s FOR UPDATE SKIP LOCKED)"""
# Few messages became due since the last claim; earlier ones were made ready by PROMOTE_DUE.
_READY = f"""ready AS MATERIALIZED (SELECT tag, urgency AS place, octet_length(body) AS size
FROM qworker_message
WHERE queue = %s AND state = 0 $after ORDER BY urgency, tag LIMIT %s FOR UPDATE SKIP LOCKED),
fallen_due AS MATERIALIZED (SELECT tag, urgency AS place, octet_length(body) AS size {_DELAYED} AND due <= %s
ORDER BY due LIMIT 100 FOR UPDATE SKIP LOCKED),
taken AS (SELECT * FROM ready UNION ALL SELECT * FROM fallen_due ORDER BY place, tag LIMIT %s)"""
_AFTER = """AND (urgency, tag) > (%s, %s) AND NOT EXISTS
(SELECT 1 FROM qworker_message WHERE queue = %s AND state = 0 AND urgency < %s)"""
_NEXT = f"""UNION ALL SELECT NULL, NULL, NULL, (SELECT due {_DELAYED} AND tag <> ALL(ARRAY(SELECT tag
FROM fitting))
ORDER BY due LIMIT 1), ({LAST_REVOKED}), NULL, NULL, NULL, NULL, NULL"""
CLAIM = f"{_TAKE} {_NEXT}".replace("$selection", _READY.replace("$after", ""))
CLAIM_AFTER = f"{_TAKE} {_NEXT}".replace("$selection", _READY.replace("$after", _AFTER))
CLAIM_DELAYED = _TAKE.replace("$selection", _SOON)
PROMOTE_DUE = f"""UPDATE qworker_message SET state = 0 WHERE tag = ANY(ARRAY(SELECT tag {_DELAYED}
AND due <= %s ORDER BY due LIMIT 1000 FOR UPDATE SKIP LOCKED))"""
LONG_DRAIN = 2000
"""Messages taken in a row without finding the queue empty."""
FRONT_SECONDS = 0.25


class _Drain(NamedTuple):
    """taken: in a row. urgency, tag: of the last. front_at: when the front is checked again."""

    taken: int
    urgency: int
    tag: int
    front_at: float


class Claims:
    """The state of a connection's claims: how far each queue has been drained."""

    def __init__(self) -> None:
        self._drains: dict[str, _Drain] = {}

    def claim(self, connection: Any, order: ClaimOrder, next_due: float | None) -> Claimed:
        """next_due: when the first of the delayed messages is due, according to the last claim."""
        generation, queue, now, limit, delayed_limit, until = order
        limit = max(0, limit)
        if next_due is not None and next_due <= now:
            connection.execute(PROMOTE_DUE, (queue, now))
        drain = self._drains.get(queue)
        clock = time.monotonic()
        after = limit > 0 and drain is not None and drain.taken >= LONG_DRAIN and clock < drain.front_at
        statement = CLAIM
        place: Row = ()
        if after and drain:
            statement, place = CLAIM_AFTER, (drain.urgency, drain.tag, queue, drain.urgency)
        values = (generation, queue, *place, limit, queue, now, limit, queue)
        early: list[Row] = []
        if delayed_limit > 0:
            # One transaction: a retry must not lose what the first statement has taken
            with connection.pipeline():
                soon = connection.execute(CLAIM_DELAYED, (generation, queue, until, delayed_limit))
                ready = connection.execute(statement, values)
            early = soon.fetchall()
        else:
            ready = connection.execute(statement, values)
        rows, following, last_revocation = _parted(ready)
        if after and len(rows) < limit and sum(len(row[-1]) for row in rows) < MAX_LEASE_BYTES:
            after = False
            rest = limit - len(rows)
            try:
                front = connection.execute(CLAIM, (generation, queue, rest, queue, now, rest, queue))
                rows += _parted(front)[0]
            except psycopg.Error:  # nor must we; the next request reports the error
                if not rows and not early:
                    raise
        self._note(queue, rows, limit, drain, drain.front_at if drain and after else clock + FRONT_SECONDS)
        return Claimed(
            [leased(row) for row in rows], [leased(row) for row in early], following, last_revocation
        )

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


def _parted(cursor: Any) -> tuple[list[Row], float | None, int]:
    """Return the messages of a claim, when the next one is due, and the last revocation."""
    *rows, last = cursor.fetchall()
    return rows, last[3], last[4]
