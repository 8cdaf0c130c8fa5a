"""Dead letters and failed tasks in a database: read, sent again, discarded.

Comes from:  users and tools, through ``Broker.letters``; ``settle.py`` stores them.
Goes to:     the tables ``qworker_dead`` and ``qworker_failed``; ``qworker_message`` and the results when one
             is sent again.
Thread:      any; they share one connection with publishers, in turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from qworker.clock import Clock
from qworker.transports.lease import Again, Dead, Kind, Letters
from qworker.transports.portions import portions
from qworker.transports.sql.link import Handle, Link
from qworker.transports.sql.results import ResultTable
from qworker.transports.sql.schema import LETTERS

CHANGED_AT_ONCE = 500
PAGE = "SELECT tag, queue, reason, died_at, deliveries, headers, properties, body FROM {table}"
AFTER = "(died_at < %s OR died_at = %s AND tag < %s)"
LOCK = "SELECT headers FROM {table} WHERE tag = ANY(%s) FOR UPDATE"
_SEND = """INSERT INTO qworker_message (queue, urgency, state, sent, redelivered, headers, properties, body)
SELECT queue, urgency, 0, %s, 1, {message} FROM {table} WHERE tag = ANY(%s) ORDER BY tag"""
SEND = _SEND.replace("{message}", "headers, properties, body")
SEND_CHANGED = _SEND.replace("{message}", "%s, %s, %s")
DISCARD = "DELETE FROM {table} WHERE tag = ANY(%s)"
INSERT = """INSERT INTO {table} (tag, queue, reason, died_at, deliveries, urgency, headers, properties, body)
VALUES (%s, %s, %s, %s, %s, 0, %s, %s, %s)"""


class SQLLetters(Letters):
    """handle: the connection that publishes. results: those in the same database."""

    def __init__(self, kind: Kind, handle: Handle, results: ResultTable, clock: Clock) -> None:
        self._table = LETTERS[kind]
        self._handle = handle
        self._results = results
        self._clock = clock

    def page(self, queue: str | None, limit: int, after: Dead | None) -> list[Dead]:
        wheres: dict[str, tuple[Any, ...]] = {} if queue is None else {"queue = %s": (queue,)}
        wheres |= {} if after is None else {AFTER: (after.died_at, after.died_at, after.tag)}
        where = f" WHERE {' AND '.join(wheres)}" if wheres else ""
        statement = f"{self._named(PAGE)}{where} ORDER BY died_at DESC, tag DESC LIMIT %s"
        values = [value for some in wheres.values() for value in some]
        rows = self._handle.look(lambda link: link.ask(statement, (*values, limit)), [])
        return [Dead(*row) for row in rows]

    def retry(self, tags: Sequence[int] | None = None) -> int:
        now = self._clock.now()

        def work(link: Link) -> int:
            count = 0
            for portion in self._portions(link, tags):
                found = link.ask(self._named(LOCK), (portion,))
                self._results.forget_failures(link, [headers for (headers,) in found])
                count += link.do(self._named(SEND), (now, portion))
                link.do(self._named(DISCARD), (portion,))
            link.notify()
            return count

        return self._handle.look(work, 0)

    def send_again(self, calls: Sequence[Again]) -> int:
        now = self._clock.now()

        def work(link: Link) -> int:
            count = 0
            for tag, headers, properties, body in sorted(calls):  # in one order, against deadlocks
                found = link.ask(self._named(LOCK), ([tag],))
                if not found:
                    continue
                self._results.forget_failures(link, [found[0][0]])
                count += link.do(self._named(SEND_CHANGED), (now, headers, properties, body, [tag]))
                link.do(self._named(DISCARD), ([tag],))
            link.notify()
            return count

        return self._handle.look(work, 0)

    def discard(self, tags: Sequence[int] | None = None) -> int:
        def work(link: Link) -> int:
            return sum(link.do(self._named(DISCARD), (some,)) for some in self._portions(link, tags))

        return self._handle.look(work, 0)

    def push(self, letters: Sequence[Dead]) -> None:
        def work(link: Link) -> None:
            for letter in letters:
                link.do(self._named(INSERT), (link.new_tag(), *letter[1:]))

        self._handle.transact(work)

    def _portions(self, link: Link, tags: Sequence[int] | None) -> Iterator[list[int]]:
        if tags is None:
            tags = [tag for (tag,) in link.ask(self._named("SELECT tag FROM {table} ORDER BY tag"))]
        return portions(tags, CHANGED_AT_ONCE)

    def _named(self, statement: str) -> str:
        return statement.replace("{table}", self._table)
