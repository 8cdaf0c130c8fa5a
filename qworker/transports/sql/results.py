"""Results beside the messages: in Celery's table, stored in the transaction of the ack.

Comes from:  the settlements that the worker gives to ``consumer.py``.
Goes to:     ``celery_taskmeta``, or its name in ``database_table_names``; ``backends/sql/backend.py`` reads
             it, and on PostgreSQL waiting callers are notified.
Thread:      the listener's, except forget_failures().
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta

from qworker.clock import from_epoch, parse_iso
from qworker.errors import BrokerUnavailable
from qworker.process.crash_points import crash_point
from qworker.transports.lease import Part, Release, ResultRow, Settlement, latest
from qworker.transports.own_headers import id_in
from qworker.transports.sql.join_rows import TABLES, JoinTables
from qworker.transports.sql.link import Link
from qworker.transports.sql.result_rows import key_of, unpack

PORTION = 1000


class ResultTable:
    """name: of the table. expires: seconds for which results are kept, None forever. joins: the tables of
    joins, whose parts are recorded."""

    def __init__(
        self,
        name: str = "celery_taskmeta",
        expires: float | None = 86400.0,
        joins: JoinTables = TABLES,
    ) -> None:
        for each in (name, joins.join, joins.part):
            if not each.replace("_", "").replace(".", "").isalnum():
                raise ValueError(f"{each!r} is not the name of a table")
        self._name = name
        self._expires = expires
        self._columns: tuple[str, ...] = ()
        self._makes_ids = True
        self.joins = joins
        self._has_joins = False

    def forget_layout(self) -> None:
        """Read the table's columns again: the connection may lead to another server by now."""
        self._columns = ()
        self._has_joins = False

    def record(self, link: Link, parts: Sequence[Part]) -> None:
        """Within a transaction, after prepare(): record *parts*. Opening a join creates the tables of joins:
        without them, the parts belong to nothing."""
        if parts and self._has_joins:
            crash_point("recording-parts")
            link.record_parts(self.joins, parts)
            crash_point("parts-recorded")

    def store(self, link: Link, rows: Sequence[ResultRow]) -> None:
        """Within a transaction, after prepare(): store *rows*, oldest first, none over a state that it may
        not replace."""
        if not rows:
            return
        columns = self._columns
        found = []
        for task_id, status, payload, expires in latest(rows):
            values = unpack(status, payload)
            values["task_id"] = key_of(task_id)
            values["date_done"] = self._done(values.get("date_done"), expires)
            found.append(tuple(values.get(column) for column in columns))
        link.upsert(self._name, columns, found, self._makes_ids)

    def _done(self, text: str | None, expires: float | None) -> datetime | None:
        if text is not None:
            return parse_iso(text).astimezone(UTC).replace(tzinfo=None)
        if expires is None or self._expires is None:
            return None
        return from_epoch(expires - self._expires).replace(tzinfo=None)

    def prepare(self, link: Link, settlements: Sequence[Settlement]) -> None:
        """Outside of any transaction: create the table if it is missing and *settlements* have rows for it.
        (Within one, MySQL would commit it, and elsewhere a rollback would remove the table.) Raises
        BrokerUnavailable if its columns cannot be read."""
        if not self._has_joins and any(each.parts for each in settlements if not isinstance(each, Release)):
            self._has_joins = bool(link.columns(self.joins.part))
        if self._columns or not any(
            each.row is not None for each in settlements if not isinstance(each, Release)
        ):
            return
        found = link.columns(self._name)
        if not found:
            with link.transaction():
                link.make_results(self._name)
            found = link.columns(self._name)
        if not found:  # store() would insert rows without columns
            raise BrokerUnavailable(
                f"the columns of the table {self._name} cannot be read: another process may be creating it, "
                "or this user may not use it"
            )
        self._makes_ids = found.get("id", True)
        self._columns = tuple(name for name in found if name != "id")

    def forget_failures(self, link: Link, headers: Iterable[str]) -> None:
        """Delete the failures of these messages, so that callers that wait for a retried one see its new
        result."""
        ids = [key_of(task_id) for text in headers if (task_id := id_in(text)) is not None]
        if ids and link.columns(self._name):
            link.do(f"DELETE FROM {self._name} WHERE status = 'FAILURE' AND task_id = ANY(%s)", (ids,))

    def expired(self, link: Link, now: float) -> Collection[int]:
        """Return the ids of some rows that may be deleted."""
        if self._expires is None or not self._columns:
            return ()
        before = from_epoch(now).replace(tzinfo=None) - timedelta(seconds=self._expires)
        return [
            key
            for (key,) in link.ask(
                f"SELECT id FROM {self._name} WHERE date_done < %s LIMIT {PORTION}", (before,)
            )
        ]

    def delete(self, link: Link, ids: Collection[int]) -> int:
        return link.do(f"DELETE FROM {self._name} WHERE id = ANY(%s)", (list(ids),))
