"""watcher: polls for ended tasks and groups, for all waiting callers of this process.

Comes from:  ``fetching.py``, which waits through the watcher of a database.
Goes to:     the table of ``Task``; ``transports/notifications.py``, which reports when to query.
Thread:      any; the watcher's thread queries.

It has its own connections, so callers may be in a transaction, which would not see new rows, or in an event
loop. They are closed soon after the last caller stops waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.core.signals import setting_changed
from django.db import Error
from django.db.models import Count, Q, QuerySet

from qworker import states
from qworker.backends.base import Found
from qworker.backends.result_watcher import ResultWatcher
from qworker.clock import SYSTEM_CLOCK
from qworker.django.models import Task
from qworker.django.transports.databases import own_connection
from qworker.django.transports.notifications import Notifications, open_notifications
from qworker.transports.portions import portions
from qworker.transports.sql.link import detach_socket

LINGER_SECONDS = 1.0
"""Seconds for which the connections and the thread are kept after the last wait."""
PORTION = 500
"""Keys queried in one statement."""
_TASK, _GROUP, _SUCCESSES = "task", "group", "successes"


def task_key(text: str) -> str:
    """Return the key for the task with the id or name *text*."""
    return f"{_TASK}\n{text}"


def group_key(group: str, count: int, successes: bool = False) -> str:
    """Return the key for *count* ended tasks of *group*. successes: only those that succeeded."""
    return f"{_SUCCESSES if successes else _GROUP}\n{count}\n{group}"


def _text_of(key: str) -> str:
    """Return the text of the notification for *key*."""
    kind, _, rest = key.partition("\n")
    return rest if kind == _TASK else rest.partition("\n")[2]


class TaskWatcher:
    """Queries the database *alias*; rows are stored through the alias *written*."""

    listens = True
    """A separate thread polls and listens: callers' connections are not used."""

    def __init__(self, alias: str, written: str) -> None:
        self.clock = SYSTEM_CLOCK
        self._alias = alias
        self._written = written
        self._idle: list[Any] = []  # any thread: its operations are atomic
        self.watcher = ResultWatcher(self, LINGER_SECONDS)

    # -- querying --

    def read_many(self, ids: Collection[str]) -> dict[str, Found]:
        """Return which *ids*, keys of tasks and groups, have ended. The result of a task is its id.

        Raises the errors of the database.
        """
        keys = [key for key in ids if "\0" not in key]  # databases refuse NUL
        found: dict[str, Found] = {}
        for some in portions((key for key in keys if key.startswith(_TASK)), PORTION):
            found |= self._tasks(some)
        for kind, only in ((_GROUP, Q()), (_SUCCESSES, Q(success=True))):
            for some in portions((key for key in keys if key.startswith(kind)), PORTION):
                found |= self._groups(some, only)
        return found

    def _tasks(self, keys: Collection[str]) -> dict[str, Found]:
        texts = [_text_of(key) for key in keys]
        rows = self._rows(
            Task.objects.filter(Q(pk__in=texts) | Q(name__in=texts))
            .order_by("stopped")
            .values_list("pk", "name")
        )
        named = {name: pk for pk, name in rows} | {pk: pk for pk, _ in rows}
        return {key: _ended(named[text]) for key, text in zip(keys, texts, strict=True) if text in named}

    def _groups(self, keys: Collection[str], only: Q) -> dict[str, Found]:
        names = {_text_of(key) for key in keys}
        rows = self._rows(
            Task.objects.filter(only, group__in=names).order_by().values_list("group").annotate(Count("pk"))
        )
        counts = dict(rows)
        enough = {key: counts.get(_text_of(key), 0) for key in keys}
        return {key: _ended(count) for key, count in enough.items() if count >= int(key.split("\n")[1])}

    def load(self, task_id: str) -> Task | None:
        """Return a task, even if the caller's transaction began before its end and does not see it."""
        names = [field.attname for field in Task._meta.concrete_fields]
        for row in self._rows(Task.objects.filter(pk=task_id)):
            task: Task = Task.from_db(self._alias, names, row)
            return task
        return None

    def _rows(self, query: QuerySet[Any]) -> list[Any]:
        """Return the rows of *query*. A broken idle connection is reopened."""
        with self._lent() as kept:
            with suppress(Error):
                return _asked(query, kept)
            kept.close()
            return _asked(query, kept)

    @contextmanager
    def _lent(self) -> Iterator[Any]:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = own_connection(self._alias)
        whole = False
        try:
            yield connection
            whole = True
        finally:
            if whole:
                self._idle.append(connection)
            else:
                connection.close()

    # -- notifications --

    def open_source(self) -> TaskSource:
        """Return the source of notifications of the database's tasks. Raises errors of the database."""
        return TaskSource(
            open_notifications(self._written, Task._meta.db_table), self._close_idle, self._abandon_idle
        )

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _abandon_idle(self) -> None:
        """In a forked child, abandon the connections, whose sessions are the parent's."""
        _abandoned.extend(self._idle)
        for connection in self._idle:
            with suppress(Exception):  # a driver without a file descriptor
                driver = connection.connection
                detach_socket(driver._sock.fileno() if hasattr(driver, "_sock") else driver.fileno())
        self._idle.clear()

    def close(self) -> None:
        """Close all connections; waiting callers continue. Safe to call twice."""
        self.watcher.close()
        self._close_idle()


_abandoned: list[Any] = []
"""Connections of a forked child's parent, kept so that they are never closed."""


class TaskSource:
    """A Source of keys. notifications: of ids, names and groups. close, abandon: called, too."""

    def __init__(
        self, notifications: Notifications, close: Callable[[], None], abandon: Callable[[], None]
    ) -> None:
        self._notifications = notifications
        self._close = close
        self._abandon = abandon
        self._keys: dict[str, list[str]] = {}

    def fileno(self) -> int:
        return self._notifications.fileno()

    def subscribe(self, ids: Collection[str]) -> None:
        """Set the keys to report: notifications are of all tasks."""
        keys: dict[str, list[str]] = {}
        for key in ids:
            keys.setdefault(_text_of(key), []).append(key)
        self._keys = keys

    def announced(self) -> Collection[str] | None:
        announced = self._notifications.announced()
        return None if announced is None else [key for text in announced for key in self._keys.get(text, ())]

    def close(self) -> None:
        self._close()
        self._notifications.close()

    def abandon(self) -> None:
        self._abandon()
        self._notifications.abandon()


def _asked(query: QuerySet[Any], connection: Any) -> list[Any]:
    rows = query.query.get_compiler(connection=connection).results_iter()
    return [tuple(row) for row in rows]


def _ended(result: Any) -> dict[str, Any]:
    return {"status": states.SUCCESS, "result": result}


_watchers: dict[tuple[str, str], TaskWatcher] = {}
"""Any thread: its operations are atomic."""


def watcher_of(alias: str, written: str) -> TaskWatcher:
    """Return this process's watcher of the database *alias*, for tasks stored through *written*: the same
    alias, or the one that it is a replica of."""
    key = (alias, written)
    return _watchers.get(key) or _watchers.setdefault(key, TaskWatcher(*key))


def dismiss() -> None:
    """Close all watchers' connections; the next wait opens new ones."""
    while _watchers:
        _watchers.popitem()[1].close()


def _on_setting_changed(*, setting: str, **_: Any) -> None:
    if setting == "DATABASES":
        dismiss()


setting_changed.connect(_on_setting_changed, dispatch_uid="qworker.django.waiting.watcher")
