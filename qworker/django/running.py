"""Running: the function of a package is called, and what is kept of its end is made.

Comes from:  ``work.py`` in a child of the pool; ``calls.py`` in the caller's own process, for ``sync``.
Goes to:     the function of the package; ``endings.py`` sees to what follows.
Thread:      whichever runs the task.
"""

from __future__ import annotations

import asyncio
import inspect
import traceback as traces
from collections.abc import Callable
from typing import Any

from django.core.signing import BadSignature
from django.utils import timezone
from django.utils.module_loading import import_string

from qworker.django.conf import conf
from qworker.django.packages import Package, function_name
from qworker.django.reporters import report_error
from qworker.django.signals import post_execute_in_worker, pre_execute
from qworker.django.signing import SignedPackage
from qworker.errors import Reject
from qworker.interrupts import let_pass

SENDER = "django_q"
"""What signals name as their sender, as Django-Q does."""


def unpacked(text: str) -> Package:
    """Return the package that was signed as *text*. Raises Reject when it cannot be unpacked."""
    try:
        package = SignedPackage.loads(text)
    except BadSignature as error:
        raise Reject(
            f"the package is not signed with this project's SECRET_KEY for {conf.prefix!r}: {error}"
        ) from error
    except Exception as error:
        let_pass(error)
        raise Reject(f"the package cannot be unpacked: {type(error).__name__}: {error}") from error
    if not isinstance(package, dict) or not {"id", "func", "args", "kwargs"} <= package.keys():
        raise Reject(f"{type(package).__name__} is no package of a task")
    return package


def run(package: Package) -> Any:
    """Call the function of *package*; note in it how that ended. Raises what the function raises."""
    try:
        func = _resolved(package["func"])
        pre_execute.send(SENDER, func=func, task=package)
        value = func(*package["args"], **package["kwargs"])
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
    except BaseException as error:
        trace = "".join(traces.format_exception(error))
        note(package, False, f"{error} : {trace}")
        report_error()
        raise
    note(package, True, value)
    post_execute_in_worker.send(SENDER, func=func, task=package)
    return value


def note(package: Package, success: bool, result: Any) -> None:
    """Note in *package* how its run ended: result is what its function returned, or an error as text."""
    package["success"], package["result"], package["stopped"] = success, result, timezone.now()


def is_kept(package: Package) -> bool:
    """Tell whether the end of *package* is to be a row of ``Task``: failures always, but for what is cached,
    and for a part of an iterable, which is collected."""
    if package.get("cached") or package.get("iter_count"):
        return False
    return not package["success"] or bool(package.get("save", conf.save_limit >= 0))


def values_of(package: Package) -> dict[str, Any]:
    """Return the fields of ``Task`` for *package*, whose end is noted."""
    hook = package.get("hook")
    return {
        "id": package["id"],
        "name": package["name"],
        "func": function_name(package["func"])[:256],
        "hook": None if hook is None else function_name(hook)[:256],
        "args": package["args"],
        "kwargs": package["kwargs"],
        "result": package["result"],
        "group": package.get("group"),
        "cluster": package.get("cluster") or conf.cluster_name,
        "started": package["started"],
        "stopped": package["stopped"],
        "success": package["success"],
        "attempt_count": package.get("attempt", 1),
    }


def _resolved(func: Any) -> Callable[..., Any]:
    found: Callable[..., Any] = import_string(func) if isinstance(func, str) else func
    return found
