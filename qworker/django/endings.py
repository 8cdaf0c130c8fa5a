"""Endings: what follows when a package has run: cache, collected results, hook, the next of a chain.

Comes from:  ``work.py`` and ``calls.py``, with a package whose end is noted.
Goes to:     the cache; the hook; back to them, what is to be enqueued next.
Thread:      whichever ran the task.

It follows once from each end, wherever the result is kept, and also when it is not kept. Nothing here makes a
failure of a task that has succeeded.
"""

from __future__ import annotations

import logging
from typing import Any

from django.db import router
from django.utils import timezone
from django.utils.module_loading import import_string

from qworker import states
from qworker.django import cached, task_rows
from qworker.django.models import Task
from qworker.django.packages import Package, options_apart
from qworker.django.running import SENDER, is_kept, values_of
from qworker.django.signals import post_execute
from qworker.interrupts import let_pass

logger = logging.getLogger("django-q")

Following = tuple[Any, tuple[Any, ...], dict[str, Any], dict[str, Any]]
"""Function, args, kwargs and options of a task that is to be enqueued."""


def end(package: Package) -> list[Following]:
    """See to what follows from the end of *package*; return what is to be enqueued."""
    if package.get("iter_count"):
        _add_to_whole(package)
    elif package.get("cached"):
        cached.put(package)
    if package.get("hook") is not None:
        _call_hook(package)
    post_execute.send(SENDER, task=package)
    return _next(package) if package["success"] else []


def save(values: dict[str, Any]) -> None:
    """Save the values of a ``Task`` at once, by this process's own connection."""
    alias = router.db_for_write(Task)
    status = states.SUCCESS if values["success"] else states.FAILURE
    task_rows.store([(values["id"], status, task_rows.pack(values, alias), None)], alias)


def _call_hook(package: Package) -> None:
    """The hook may look for the task: it is stored first, though the ack of its message stores it, too."""
    values = values_of(package)
    try:
        if is_kept(package):
            save(values)
        hook = package["hook"]
        call = import_string(hook) if isinstance(hook, str) else hook
        call(Task(**values))
    except Exception as error:
        let_pass(error)
        logger.error("the hook of task %s failed: %s: %s", package["id"], type(error).__name__, error)
        logger.debug("the traceback of that", exc_info=error)


def _add_to_whole(package: Package) -> None:
    """Keep a part of an iterable; who brings the last one makes one task of all, and forgets the parts.

    They are kept in the cache; where that is not safe, in the table of ``Task``. Parts that the cache has
    thrown away make a failure of the whole.
    """
    group, count = package["group"], package["iter_count"]
    if package.get("cached"):
        if cached.put(package) == count:
            _collect(package, cached.members(group))
            cached.delete_group(group)
        return
    save(values_of(package))
    parts = Task.objects.filter(group=group).order_by("stopped")
    if parts.count() >= count:  # who ends at the same time may see that, too, and makes the same of it
        _collect(package, list(parts))
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
        "kwargs": {},
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
        save(values_of(whole))


def _next(package: Package) -> list[Following]:
    chain = list(package.get("chain") or ())
    if not chain:
        return []
    func, args, kwargs, options = call_of(chain.pop(0))
    of_all = {name: package[name] for name in ("group", "cached", "cluster") if package.get(name) is not None}
    return [(func, args, kwargs, {**options, **of_all, "chain": chain})]


def call_of(link: Any) -> Following:
    """Return function, args, kwargs and options of *link*: ``(func, args, kwargs)``, of which the last may be
    left out, or a function alone. The options are among its kwargs."""
    parts = link if isinstance(link, tuple | list) else (link,)
    func, args, kwargs = (*parts, (), ())[:3]
    keywords, options = options_apart(kwargs or {})
    return func, tuple(args), keywords, options
