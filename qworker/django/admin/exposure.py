"""exposure: which functions people without special rights may schedule.

Comes from:  the setting QWORKER_SCHEDULE_ALLOW and the tasks that are registered.
Goes to:     the form of a schedule in the admin.
Thread:      any.

Whoever may schedule any importable function can run any program on the workers' machines. So in the admin
that takes a separate permission; without it, only functions named by the project can be chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string

import qworker
from qworker.errors import ConfigurationError
from qworker.naming import own_tasks

SETTING = "QWORKER_SCHEDULE_ALLOW"
NOBODY = "exposed"
"""The value of the setting that makes the permission void, also for superusers."""
_HARMLESS = frozenset({"hook", "group", "save", "timeout", "cached", "ack_failure", "cluster", "task_name"})
_BUILT_IN = ("celery.", "qworker.")


def may_schedule_any(user: Any, permission: str) -> bool:
    """Return whether *user* may name any function: with *permission*, unless the setting is "exposed"."""
    return getattr(settings, SETTING, ()) != NOBODY and bool(user.has_perm(permission))


def exposed_names() -> list[str]:
    """Return the paths that can be chosen, sorted: the registered tasks, and the full names in the
    setting."""
    registered = own_tasks(_registered())
    return sorted({*registered} | {path for path in _allowed() if "*" not in path})


def is_exposed(path: str) -> bool:
    """Return whether the dotted *path* can be chosen.

    In the setting, ``*`` stands for any characters. Such a pattern covers functions defined in the modules
    that it names, and not their imports.
    """
    if path in exposed_names():
        return True
    return any(fnmatchcase(path, pattern) for pattern in _allowed()) and _is_at_home(path)


def is_harmless(options: Mapping[str, Any]) -> bool:
    """Return whether the options of a task name no callables, except exposed hooks."""
    hook = options.get("hook")
    return options.keys() <= _HARMLESS and (hook is None or (isinstance(hook, str) and is_exposed(hook)))


def _is_at_home(path: str) -> bool:
    """Return whether the object at *path* is defined there."""
    try:
        found = import_string(path)
    except ImportError:
        return False
    home = f"{getattr(found, '__module__', None)}.{getattr(found, '__qualname__', None)}"
    return callable(found) and home == path


def _registered() -> list[str]:
    """Return the names of the tasks of the current app; none without an app."""
    try:
        return list(qworker.current_app.tasks)
    except ConfigurationError:
        return []


def _allowed() -> tuple[str, ...]:
    found = getattr(settings, SETTING, ())
    return () if isinstance(found, str) else tuple(found)
