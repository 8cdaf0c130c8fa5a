"""Endings: what follows when a package has run: cache, collected results, hook, the next of a chain.

Comes from:  ``work.py`` and ``calls.py``, with a package whose end is noted.
Goes to:     the cache; the hook; back to them, what is to be enqueued next.
Thread:      whichever ran the task.

It follows once from each end, wherever the result is kept, and also when it is not kept. Nothing here makes a
failure of a task that has succeeded. Where the cache or the database is away, nothing was told yet: end() may
be called again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid5

from django.db import Error, router
from django.utils import timezone

from qworker import states
from qworker.django.execution import cached
from qworker.django.execution import connections as task_connections
from qworker.django.execution.running import is_kept, located, note, observe, values_of
from qworker.django.models import Task
from qworker.django.signals import post_execute
from qworker.django.transports import task_rows
from qworker.django.transports.packages import Package, options_apart
from qworker.errors import BackendError, EncodeError
from qworker.interrupts import let_pass
from qworker.safe_repr import safe_repr
from qworker.transports.sql.refusals import refused

logger = logging.getLogger("django-q")

NAMESPACE = UUID("6c1f64f4-9a0e-5a5b-93a3-3d7c5b0e8f11")
"""Of the ids of what follows a task: who tells its end again enqueues the same."""

Following = tuple[Any, tuple[Any, ...], dict[str, Any], dict[str, Any]]
"""Function, args, kwargs and options of a task that is to be enqueued."""


def end(package: Package) -> list[Following]:
    """See to what follows from the end of *package*; return what is to be enqueued.

    Raises BackendError when the database or the cache does not answer.
    """
    _make_fit(package)
    if package.get("iter_count"):
        _in_database(lambda: _add_to_whole(package))
    elif package.get("cached"):
        cached.put(package)
    if package.get("hook") is not None:
        _call_hook(package)
    observe(post_execute, task=package)
    return _next(package) if package["success"] else []


def _make_fit(package: Package) -> None:
    """Make a failure of a result that is larger than the database takes, before anybody is told of a
    success."""
    if not package["success"] or not is_kept(package):
        return
    if package.get("hook") is not None or package.get("chain"):
        try:
            task_rows.pack(values_of(package), router.db_for_write(Task))
        except EncodeError as error:
            note(package, False, str(error))


def save(values: dict[str, Any]) -> None:
    """Save the values of a ``Task`` at once, by this process's own connection."""
    alias = router.db_for_write(Task)
    status = states.SUCCESS if values["success"] else states.FAILURE
    row = values["id"], status, task_rows.pack(values, alias), None
    try:
        task_rows.store([row], alias)
    except Error as error:
        if not refused(error.__cause__):
            raise
        task_rows.store([(*row[:2], task_rows.refused(row[2], f"it cannot be stored: {error}"), None)], alias)


def _in_database(work: Callable[[], None]) -> None:
    try:
        work()
    except Error as error:
        task_connections.drop_broken()
        raise BackendError(f"the database does not answer: {error}") from error


def _call_hook(package: Package) -> None:
    """The hook may look for the task: it is stored first, though the ack of its message stores it, too."""
    values = values_of(package)
    if is_kept(package):
        _in_database(lambda: save(values))
    callers = task_connections.in_transaction()
    try:
        hook = package["hook"]
        call = located(hook) if isinstance(hook, str) else hook
        call(Task(**values))
    except (Exception, SystemExit) as error:
        let_pass(error)
        logger.error("the hook of task %s failed: %s", package["id"], safe_repr(error))
        logger.debug("the traceback of that", exc_info=error)
    task_connections.roll_back(callers)


def _add_to_whole(package: Package) -> None:
    """Keep a part of an iterable; who brings the last one makes one task of all, and forgets the parts.

    They are kept in the cache; where that is not safe, in the table of ``Task``. Parts that the cache has
    thrown away make a failure of the whole. No part is forgotten before the whole is stored: who sees all
    parts makes the same of them, and who sees fewer finds the whole. Of a part that comes again after that
    nothing is kept.
    """
    group, count = package["group"], package["iter_count"]
    if package.get("cached"):
        if cached.is_finished(group) or cached.put(package) < count:
            return
        tasks = cached.members(group)
        if len(tasks) >= count or not cached.is_finished(group):  # else another has just collected them
            _collect(package, tasks)
            cached.finish(group)
        return
    if Task.objects.filter(pk=group).exists():
        return
    save(values_of(package))
    parts = Task.objects.filter(group=group).order_by("stopped", "id")
    if parts.count() < count:
        return
    tasks = list(parts)
    if len(tasks) >= count:
        _collect(package, tasks)
        parts.delete()


def _collect(package: Package, tasks: list[Task]) -> None:
    missing = package["iter_count"] - len(tasks)
    lost = f"the cache has thrown away {missing} of {package['iter_count']} results" if missing > 0 else ""
    if lost:
        logger.error("the iterable %s has no result: %s", package["group"], lost)
    whole = {
        **package,
        "id": package["group"],
        "args": [task.args for task in tasks],
        "result": lost or [task.result for task in tasks],
        "success": not lost and all(task.success for task in tasks),
        "started": min([task.started for task in tasks], default=package["started"]),
        "stopped": timezone.now(),
        "group": None,
        "cached": package.get("iter_cached"),
        "iter_count": None,
    }
    if whole["cached"]:
        cached.put(whole)
    elif is_kept(whole):
        try:
            save(values_of(whole))
        except EncodeError as error:  # it is larger than the database takes
            save(values_of({**whole, "success": False, "result": str(error)}))


def _next(package: Package) -> list[Following]:
    chain = list(package.get("chain") or ())
    if not chain:
        return []
    func, args, kwargs, options = call_of(chain.pop(0))
    of_all = {name: package[name] for name in ("group", "cached", "cluster") if package.get(name) is not None}
    following = uuid5(NAMESPACE, package["id"]).hex
    return [(func, args, kwargs, {**options, **of_all, "id": following, "chain": chain})]


def call_of(link: Any) -> Following:
    """Return function, args, kwargs and options of *link*: ``(func, args, kwargs)``, of which the last may be
    left out, or a function alone. The options are among its kwargs."""
    parts = link if isinstance(link, tuple | list) else (link,)
    func, args, kwargs = (*parts, (), ())[:3]
    keywords, options = options_apart(kwargs or {})
    return func, tuple(args), keywords, options
