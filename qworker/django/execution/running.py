"""running: calls the function of a package, and makes its result to store.

Comes from:  ``work.py`` in a child of the pool; ``calls.py`` in the caller's process, for ``sync``.
Goes to:     the function of the package; then ``endings.py``.
Thread:      the one that runs the task.
"""

from __future__ import annotations

import asyncio
import builtins
import inspect
import pickle
import sys
import traceback as traces
from collections.abc import Callable
from functools import reduce
from typing import Any

from asgiref.sync import sync_to_async
from django.core.signing import BadSignature
from django.dispatch import Signal
from django.utils import timezone
from django.utils.module_loading import import_string

from qworker.django.conf import conf, logger
from qworker.django.execution import connections as task_connections
from qworker.django.execution.reporters import report_error
from qworker.django.function_names import function_name
from qworker.django.signals import post_execute_in_worker, pre_execute
from qworker.django.signing import PROTOCOL, SignedPackage
from qworker.django.transports.packages import Package
from qworker.errors import EncodeError, Reject
from qworker.interrupts import reraise_interrupt
from qworker.safe_repr import safe_repr, storable

SENDER = "django_q"
"""The sender of signals, as in Django-Q."""
PLAIN = frozenset([type(None), bool, int, float, str, bytes])
"""Types that can always be pickled."""
TEXT = "text"
"""The key for a package's original text."""
UNLIKE = "unlike"
"""The key that marks a package whose stored arguments differ from the originals."""
NOT_IN_FIELDS = frozenset(["timeout", "save", "ack_failure", "chain", "iter_count"])
"""Options that no field of ``Task`` other than the package stores."""
NEEDED = frozenset(["id", "name", "func", "args", "kwargs", "started"])
LENGTHS = {"name": 100, "func": 256, "hook": 256, "group": 100, "cluster": 100}
"""Maximum characters in the table of ``Task``."""


def unpacked(text: str) -> Package:
    """Return the package in the signed *text*. Raises Reject if it cannot be unpacked."""
    try:
        package = SignedPackage.loads(text)
    except BadSignature as error:
        raise Reject(
            f"the package is not signed with this project's SECRET_KEY for {conf.prefix!r}: {error}"
        ) from error
    except Exception as error:
        reraise_interrupt(error)
        raise Reject(f"the package cannot be unpacked: {type(error).__name__}: {error}") from error
    if not isinstance(package, dict) or not package.keys() >= NEEDED:
        raise Reject(f"the package contains a {type(package).__name__}, not a task")
    package[TEXT] = text
    return package


def run(package: Package) -> Any:
    """Call the function of *package*, and note its end in *package*. Raises the function's exception."""
    func: Callable[..., Any] | None = None
    try:
        try:
            func = _resolved(package["func"])
        finally:
            pre_execute.send(SENDER, func=func, task=package)
        value = func(*package["args"], **package["kwargs"])
        if inspect.iscoroutine(value):
            value = asyncio.run(_awaited(value))
        if type(value) not in PLAIN and (
            package.get("iter_count") or package.get("cached") or _saves(package)
        ):
            _check_picklable(value)
    except BaseException as error:
        note(package, False, _described(error))
        report_error()
        observe(post_execute_in_worker, func=func, task=package)
        raise
    note(package, True, value)
    observe(post_execute_in_worker, func=func, task=package)
    return value


async def _awaited(coroutine: Any) -> Any:
    """Return the result of *coroutine*. Coroutines use Django's connections of another thread."""
    callers = await sync_to_async(task_connections.begin)()
    try:
        return await coroutine
    finally:
        await sync_to_async(task_connections.end)(callers)


def _check_picklable(value: Any) -> None:
    """Raise EncodeError for a result that cannot be pickled."""
    try:
        pickle.dumps(value, PROTOCOL)
    except Exception as error:
        reraise_interrupt(error)
        raise EncodeError(f"the result cannot be pickled: {type(error).__name__}: {error}") from error


def _described(error: BaseException) -> str:
    """Return *error* with its traceback, as stored in ``Task``."""
    try:
        text = str(error)
    except Exception as own:  # noqa: BLE001 - the user's exception, whose __str__() raises
        reraise_interrupt(own)
        text = type(error).__name__
    return f"{text} : {''.join(traces.format_exception(error))}"


def observe(signal: Signal, **named: Any) -> None:
    """Send *signal*. Exceptions of its receivers are only logged."""
    for receiver, answer in signal.send_robust(SENDER, **named):
        if isinstance(answer, Exception):
            reraise_interrupt(answer)
            logger.error("the receiver %r of a task's signal failed: %r", receiver, answer)


def note(package: Package, success: bool, result: Any) -> None:
    """Note the end in *package*. result: what its function returned, or an error as text."""
    package["success"], package["result"], package["stopped"] = success, result, timezone.now()
    given, named = package["args"], package["kwargs"]
    package["args"] = tuple(_kept(each) for each in given)
    package["kwargs"] = {name: _kept(each) for name, each in named.items()}
    kept = *package["args"], *package["kwargs"].values()
    if any(one is not other for one, other in zip(kept, (*given, *named.values()), strict=True)):
        package[UNLIKE] = True


def _kept(argument: Any) -> Any:
    """Return *argument*; its repr() if the function has made it impossible to pickle."""
    if type(argument) not in PLAIN:
        try:
            pickle.dumps(argument, PROTOCOL)
        except Exception as error:  # noqa: BLE001 - the user's classes
            reraise_interrupt(error)
            return safe_repr(argument)
    return argument


def is_kept(package: Package) -> bool:
    """Return whether the ended *package* is stored as a row of ``Task``: successes by ``save``, and all
    failures. Cached tasks and calls of an iterable are not."""
    if package.get("cached") or package.get("iter_count"):
        return False
    return not package["success"] or _saves(package)


def _saves(package: Package) -> bool:
    return bool(package.get("save", conf.save_limit >= 0))


def row_of(package: Package) -> dict[str, Any]:
    """Return values_of() for the table, with the original package if the fields are not sufficient."""
    is_plain = package["success"] and UNLIKE not in package and NOT_IN_FIELDS.isdisjoint(package)
    return {**values_of(package), "package": None if is_plain else package.get(TEXT)}


def values_of(package: Package) -> dict[str, Any]:
    """Return the fields of ``Task`` for the ended *package*."""
    hook = package.get("hook")
    return {
        "id": package["id"],
        "name": _text("name", package["name"]),
        "func": _text("func", function_name(package["func"])),
        "hook": None if hook is None else _text("hook", function_name(hook)),
        "args": package["args"],
        "kwargs": package["kwargs"],
        "result": package["result"],
        "group": _text("group", package.get("group")),
        "cluster": _text("cluster", package.get("cluster") or conf.cluster_name),
        "started": package["started"],
        "stopped": package["stopped"],
        "success": package["success"],
        "attempt_count": package.get("attempt", 1),
    }


def _text(field: str, value: Any) -> str | None:
    """Return *value* as text that every database accepts."""
    return None if value is None else storable(str(value))[: LENGTHS[field]]


def _resolved(func: Any) -> Callable[..., Any]:
    found: Callable[..., Any] = located(func) if isinstance(func, str) else func
    return found


def located(path: str) -> Any:
    """Return the object at the dotted *path*: in a module, in a class, or among Python's builtins.

    Raises ImportError if it does not exist.
    """
    try:
        return import_string(path)
    except ImportError:
        # import_string() has imported those parts of the path that are modules.
        names = path.split(".")
        loaded = (end for end in range(len(names) - 1, 0, -1) if ".".join(names[:end]) in sys.modules)
        end = next(loaded, 0)
        start = sys.modules[".".join(names[:end])] if end else builtins
        try:
            return reduce(getattr, names[end:], start)
        except AttributeError:
            pass  # the error above is more informative
        raise
