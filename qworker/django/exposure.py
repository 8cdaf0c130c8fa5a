"""exposure: which functions people without special rights may schedule.

Comes from:  the setting QWORKER_SCHEDULE_ALLOW and the tasks that are registered.
Goes to:     the form of a schedule in the admin.
Thread:      any.

Whoever may schedule any function that can be imported can run any program on the workers' machines. So in the
admin that takes a permission of its own; without it, only what the project has named can be chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from django.conf import settings

import qworker
from qworker.errors import ConfigurationError

_BUILT_IN = ("celery.", "qworker.")


def exposed_names() -> list[str]:
    """The paths that can be chosen, sorted: the registered tasks, and what the setting names in full."""
    registered = {name for name in _registered() if not name.startswith(_BUILT_IN)}
    return sorted(registered | {path for path in _allowed() if "*" not in path})


def is_exposed(path: str) -> bool:
    """Whether the dotted *path* can be chosen; in the setting, ``*`` stands for any characters."""
    return any(fnmatchcase(path, pattern) for pattern in _allowed()) or path in exposed_names()


def hooks_in(options: Mapping[str, Any]) -> list[str]:
    """The dotted paths of the hooks that the keyword arguments of a schedule name in ``q_options``."""
    given = options.get("q_options")
    hook = given.get("hook") if isinstance(given, Mapping) else None
    return [] if hook is None else [str(hook)]


def _registered() -> list[str]:
    """The names of the tasks of the current app; none where no app was made."""
    try:
        return list(qworker.current_app.tasks)
    except ConfigurationError:
        return []


def _allowed() -> tuple[str, ...]:
    return tuple(getattr(settings, "QWORKER_SCHEDULE_ALLOW", ()))
