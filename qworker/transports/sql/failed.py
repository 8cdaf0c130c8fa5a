"""Failed tasks in a database: looked at, sent again, discarded.

Comes from:  people and tools, by ``SQLBroker.failed``; ``settle.py`` puts them there.
Goes to:     the table ``qworker_failed``; ``qworker_message`` and the results when one is sent again.
Thread:      any; they take turns at one connection with who publishes.
"""

from __future__ import annotations

from collections.abc import Sequence

from qworker.clock import Clock
from qworker.transports.lease import Again, Dead, FailedTasks
from qworker.transports.sql.link import Handle, Link
from qworker.transports.sql.results import ResultTable

PORTION = 500
"""How many are deleted by one statement."""
MADE = "SELECT tag FROM qworker_failed LIMIT 0"
"""Asked to see that the table is there."""
KEPT = "SELECT tag, queue, reason, died_at, deliveries, headers, properties, body FROM qworker_failed"
LOCK = "SELECT headers FROM qworker_failed WHERE tag = %s FOR UPDATE"
SEND = """INSERT INTO qworker_message (queue, urgency, state, sent, redelivered, headers, properties, body)
SELECT queue, urgency, 0, %s, 1, %s, %s, %s FROM qworker_failed WHERE tag = %s"""
DISCARD = "DELETE FROM qworker_failed WHERE tag = ANY(%s)"


class SQLFailed(FailedTasks):
    """handle: the connection that publishes. results: those that are beside."""

    def __init__(self, handle: Handle, results: ResultTable, clock: Clock) -> None:
        self._handle = handle
        self._results = results
        self._clock = clock

    def kept(self, queue: str | None = None, limit: int = 100) -> list[Dead]:
        where, values = ("", ()) if queue is None else (" WHERE queue = %s", (queue,))
        statement = f"{KEPT}{where} ORDER BY died_at DESC, tag DESC LIMIT %s"
        rows = self._handle.look(lambda link: link.ask(statement, (*values, limit)), [])
        return [Dead(*row) for row in rows]

    def send_again(self, calls: Sequence[Again]) -> int:
        now = self._clock.now()

        def work(link: Link) -> int:
            count = 0
            for tag, headers, properties, body in sorted(calls):  # in one order, against deadlocks
                found = link.ask(LOCK, (tag,))
                if not found:
                    continue
                self._results.forget_failures(link, [found[0][0]])
                count += link.do(SEND, (now, headers, properties, body, tag))
                link.do(DISCARD, ([tag],))
            link.notify()
            return count

        return self._handle.look(work, 0)

    def discard(self, tags: Sequence[int] | None = None) -> int:
        def work(link: Link) -> int:
            chosen = tags
            if chosen is None:
                chosen = [tag for (tag,) in link.ask("SELECT tag FROM qworker_failed ORDER BY tag")]
            portions = (list(chosen[start : start + PORTION]) for start in range(0, len(chosen), PORTION))
            return sum(link.do(DISCARD, (portion,)) for portion in portions)

        return self._handle.look(work, 0)
