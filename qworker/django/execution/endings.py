"""endings: the steps after a package has run: cache, collected results, hook, and the next link of a chain.

Comes from:  ``work.py`` and ``calls.py``, with a package that has ended.
Goes to:     the cache and the hook; the caller, with calls to enqueue.
Thread:      the one that ran the task.

They are done once for each end, wherever the result is stored, or if it is not stored. A success becomes a
failure only if the result is too large. If the cache or the database is not available, nothing has been
notified yet, and end() may be called again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid5

from django.db import Error, router
from django.dispatch import Signal

from qworker.django.execution import cached, parts
from qworker.django.execution import connections as task_connections
from qworker.django.execution.running import SENDER, is_kept, located, note, observe, row_of
from qworker.django.models import Task
from qworker.django.signals import post_execute
from qworker.django.transports import task_rows
from qworker.django.transports.packages import Package, options_apart
from qworker.errors import BackendError, EncodeError
from qworker.interrupts import reraise_interrupt
from qworker.safe_repr import safe_repr

logger = logging.getLogger("django-q")

NAMESPACE = UUID("6c1f64f4-9a0e-5a5b-93a3-3d7c5b0e8f11")
"""Namespace for the ids of follow-ups: a repeated end enqueues the same ids."""

ended = Signal()
"""Sent before ``post_execute``, with the same argument: for the cluster's log."""

Following = tuple[Any, tuple[Any, ...], dict[str, Any], dict[str, Any]]
"""Function, args, kwargs and options of a task to enqueue."""


def end(package: Package) -> list[Following]:
    """Handle the end of *package*; return the calls to enqueue.

    Raises BackendError if the database or the cache does not answer.
    """
    is_observed = package.get("hook") is not None or post_execute.has_listeners(SENDER)
    _make_fit(package, is_observed)
    if package["success"] and package.get("attempt", 1) > 1 and not is_kept(package):
        _in_database(lambda: Task.objects.filter(pk=package["id"], success=False).delete())
    if package.get("iter_count"):
        _in_database(lambda: parts.add(package))
    elif package.get("cached"):
        cached.put(package)
    if is_observed and is_kept(package):  # they may read the task; the ack of its message stores it again
        _in_database(lambda: task_rows.save(row_of(package)))
    if package.get("hook") is not None:
        _call_hook(package)
    observe(ended, task=package)
    observe(post_execute, task=package)
    return _next(package) if package["success"] else []


def _make_fit(package: Package, is_observed: bool) -> None:
    """Turn a result that is too large for the database into a failure, before a success is reported."""
    is_observed = is_observed or bool(package.get("chain"))
    if package["success"] and (package.get("iter_count") or (is_observed and is_kept(package))):
        try:
            task_rows.pack(row_of(package), router.db_for_write(Task))
        except EncodeError as error:
            note(package, False, str(error))


def _in_database(work: Callable[[], None]) -> None:
    try:
        work()
    except Error as error:
        task_connections.drop_broken()
        raise BackendError(f"the database does not answer: {error}") from error


def _call_hook(package: Package) -> None:
    callers = task_connections.in_transaction()
    try:
        hook = package["hook"]
        call = located(hook) if isinstance(hook, str) else hook
        call(Task(**row_of(package)))
    except (Exception, SystemExit) as error:
        reraise_interrupt(error)
        logger.error("the hook of task %s failed: %s", package["id"], safe_repr(error))
        logger.debug("traceback of the hook's error", exc_info=error)
    task_connections.roll_back(callers)


def _next(package: Package) -> list[Following]:
    chain = list(package.get("chain") or ())
    if not chain:
        return []
    func, args, kwargs, options = call_of(chain.pop(0))
    options.setdefault("cluster", package.get("cluster"))
    of_all = {name: package[name] for name in ("group", "cached") if package.get(name) is not None}
    following = uuid5(NAMESPACE, package["id"]).hex
    return [(func, args, kwargs, {**options, **of_all, "id": following, "chain": chain})]


def call_of(link: Any) -> Following:
    """Return function, args, kwargs and options of *link*: a function, or ``(func, args, kwargs)`` without
    the last items. Its kwargs include the options. Raises TypeError for anything else."""
    parts = link if isinstance(link, tuple | list) else (link,)
    try:
        func, args, kwargs = (*parts, (), ())[:3]
        keywords, options = options_apart(kwargs or {})
        return func, tuple(args), keywords, options
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{safe_repr(link, 80)} is not a link of a chain: use a tuple (func, args, kwargs)"
        ) from error
