"""results: the result store whose tasks are rows of the model ``Task``.

Comes from:  the child that ran a package; readers of qworker's results.
Goes to:     ``transports/task_rows.py``; for results without a package, a store of qworker's own.
Thread:      any.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from django.db import Error, router

from qworker import states
from qworker.backends import Backend
from qworker.backends.base import Found, Meta
from qworker.backends.joins import Joins
from qworker.clock import Clock, isoformat
from qworker.django.execution import connections as task_connections
from qworker.django.execution import work
from qworker.django.models import Task
from qworker.django.transports import task_rows
from qworker.django.transports.packages import RUN
from qworker.errors import BackendError, EncodeError
from qworker.message.exceptions import exception_to_dict
from qworker.transports.lease import ResultRow
from qworker.transports.sql.refusals import refused

if TYPE_CHECKING:
    from qworker.backends.waiters import NotificationSource
    from qworker.message.context import Context

KEPT = "django_task"
"""The key in the metadata of a ``Task``'s values."""
DONE = {True: states.SUCCESS, False: states.FAILURE}


class TaskResults(Backend):
    """others: makes the store of results without a package, on first use. alias: the database of ``Task``.
    same: returns whether the broker at a URL is in that database, too."""

    def __init__(
        self,
        url: str,
        conf: Any,
        clock: Clock,
        others: Callable[[], Backend],
        alias: str,
        same: Callable[[str], bool],
    ) -> None:
        super().__init__(url, conf, clock)
        self.supports_locks = url != "disabled://"  # type: ignore[misc]
        self._make_others = others
        self._made: Backend | None = None
        self._alias = alias
        self._same = same

    @property
    def others(self) -> Backend:
        """Return the store of results without a package."""
        if self._made is None:
            self._made = self._make_others()
        return self._made

    def same_store(self, store_url: str) -> bool:
        return self._same(store_url)

    # -- packages --

    def meta(
        self,
        task_id: str,
        status: str,
        result: Any = None,
        traceback: str | None = None,
        context: Context | None = None,
        properties: Any = None,
        **extra: Any,
    ) -> Meta:
        if context is None or context.task != RUN or status not in states.ALL_STATES:
            return self.others.meta(task_id, status, result, traceback, context, properties, **extra)
        return {
            "status": status,
            "result": None,
            "task_id": task_id,
            KEPT: work.kept(context, status, result),
        }

    def row(self, task_id: str, meta: Meta, kept: float = 0.0) -> ResultRow | None:
        if KEPT not in meta:
            return self.others.row(task_id, meta, kept)
        values = meta[KEPT]
        if values is None:
            return None
        return task_id, meta["status"], task_rows.pack(values, self._alias), None

    def row_why_not(self, row: ResultRow, status: str, error: BaseException) -> ResultRow | None:
        if not task_rows.is_task(row):
            return self.others.row_why_not(row, status, error)
        return row[0], states.FAILURE, task_rows.refused(row[2], f"{type(error).__name__}: {error}"), None

    def store(self, task_id: str, meta: Meta) -> bool:
        if KEPT not in meta:
            return self.others.store(task_id, meta)
        row = self.row(task_id, meta)
        if row is not None:
            self.store_rows([row])
        return True

    def store_rows(self, rows: Sequence[ResultRow]) -> None:
        tasks = [row for row in rows if task_rows.is_task(row)]
        others = [row for row in rows if not task_rows.is_task(row)]
        if tasks:
            self._in_database(lambda: task_rows.store(tasks, self._alias))
        if others:
            self.others.store_rows(others)

    def _in_database(self, work: Callable[[], Any]) -> Any:
        task_connections.begin()
        try:
            return work()
        except Error as error:
            task_connections.drop_broken()
            if refused(error.__cause__):
                raise EncodeError(f"the database {self._alias!r} cannot store this: {error}") from error
            raise BackendError(f"the database {self._alias!r}: {error}") from error

    def get(self, task_id: str) -> Meta | None:
        return self.get_many([task_id]).get(task_id)

    def read_many(self, ids: Collection[str]) -> dict[str, Found]:
        def look() -> list[Task]:
            return list(Task.objects.using(router.db_for_read(Task)).filter(pk__in=list(ids)))

        found: dict[str, Found] = {task.pk: _meta_of(task) for task in self._in_database(look)}
        missing = [task_id for task_id in ids if task_id not in found]
        if missing and self._made is not None:
            found |= self.others.read_many(missing)
        return found

    def forget(self, task_id: str) -> None:
        self._in_database(lambda: Task.objects.filter(pk=task_id).delete())
        if self._made is not None:
            self.others.forget(task_id)

    # -- results without a package --

    def open_source(self) -> NotificationSource | None:
        return self.others.open_source()

    @property
    def joins(self) -> Joins:
        return self.others.joins

    def add(self, key: str, ttl: float | None = None) -> bool:
        return self.others.add(key, ttl)

    def incr(self, key: str, ttl: float | None = None) -> int:
        return self.others.incr(key, ttl)

    def delete(self, key: str) -> None:
        self.others.delete(key)

    def save_group(self, group_id: str, result: Any, kept: float = 0.0) -> None:
        self.others.save_group(group_id, result, kept)

    def get_group(self, group_id: str) -> Any:
        return self.others.get_group(group_id)

    def delete_group(self, group_id: str) -> None:
        self.others.delete_group(group_id)

    def forget_many(self, ids: Iterable[str]) -> None:
        for task_id in ids:
            self.forget(task_id)

    def sweep(self, now: float) -> int:
        return 0 if self._made is None else self._made.sweep(now)

    def close(self) -> None:
        super().close()
        if self._made is not None:
            self._made.close()


def _meta_of(task: Task) -> Meta:
    result = task.result if task.success else exception_to_dict(BackendError(str(task.result)))
    return {
        "task_id": task.pk,
        "status": DONE[task.success],
        "result": result,
        "traceback": None if task.success else str(task.result),
        "children": [],
        "date_done": isoformat(task.stopped.timestamp()),
    }
