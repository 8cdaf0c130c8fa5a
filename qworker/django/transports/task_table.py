"""task_table: stores results with acks on a database server, those of packages as rows of ``Task``.

Comes from:  ``opening.py``, for PostgreSQL, MySQL and MariaDB.
Goes to:     ``task_rows.py``, which makes the statements; the transaction of the ack.
Thread:      the listener's.
"""

from __future__ import annotations

from collections.abc import Sequence

from qworker.django.transports import task_rows
from qworker.transports.lease import ResultRow, Settlement
from qworker.transports.sql.link import Link
from qworker.transports.sql.results import ResultTable


class TaskTable(ResultTable):
    """Stores tasks in the table of ``Task``, and other results in qworker's table.

    vendor: postgresql or mysql.
    """

    def __init__(self, vendor: str, expires: float | None) -> None:
        super().__init__(expires=expires)
        self._vendor = vendor

    def prepare(self, link: Link, settlements: Sequence[Settlement]) -> None:
        others = [
            each
            for each in settlements
            if getattr(each, "row", None) is None or not task_rows.is_task(each.row)  # type: ignore[union-attr,arg-type]
        ]
        super().prepare(link, others)

    def store(self, link: Link, rows: Sequence[ResultRow]) -> None:
        for query, values in task_rows.statements(
            self._vendor, [row for row in rows if task_rows.is_task(row)]
        ):
            link.do(query, values)
        super().store(link, [row for row in rows if not task_rows.is_task(row)])
