"""work: the worker's task that runs packages.

Comes from:  the pool, with the signed text of a package.
Goes to:     ``running.py`` and ``endings.py``; the stored values go into the row of the result.
Thread:      the one that runs the task.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from django.db import Error, InterfaceError, OperationalError

from qworker import states
from qworker.clock import SYSTEM_CLOCK
from qworker.context import get_current_task
from qworker.django.conf import conf, logger
from qworker.django.execution import cached, endings
from qworker.django.execution import connections as task_connections
from qworker.django.execution.calls import enqueue
from qworker.django.execution.running import is_kept, note, row_of, run, unpacked
from qworker.django.models import Task
from qworker.django.transports import task_rows
from qworker.django.transports.packages import Package
from qworker.errors import (
    BackendError,
    Ignore,
    QWorkerError,
    Reject,
    Retry,
    SoftTimeLimitExceeded,
    Terminated,
    TimeLimitExceeded,
)
from qworker.interrupts import reraise_interrupt
from qworker.message.context import Context, current_context
from qworker.message.exceptions import exception_of
from qworker.tasks.task import Task as BaseTask
from qworker.tasks.unsent import is_away, reason

P = ParamSpec("P")
T = TypeVar("T")

PASSING = (Ignore, Reject, Retry, Terminated, SoftTimeLimitExceeded)
"""Exceptions that are not handled as a failure of the package."""

PAUSES = (0.05, 0.2, 0.5, 1.0, 2.0)
"""Seconds before each new attempt at a task's follow-up; after the last, the task is redelivered."""


class PackageTask(BaseTask[..., Any]):
    """The task that runs packages. It also handles the end of a killed task, in a child."""

    has_on_terminated = True

    def on_terminated(self, context: Context, state: str, error: dict[str, Any]) -> None:
        package = _taken(context.args[0])
        package["attempt"] = (context.retries or 0) + 1
        context.__dict__["package"] = package
        note(package, False, _text_of(error))
        if error.get("exc_type") == TimeLimitExceeded.__name__ and _comes_again(package):
            raise _again(self, package, exception_of({"status": state, "result": error}))
        _go_on(package)


def run_package(*given: Any, **more: Any) -> Any:
    """Run the signed package, the only argument; return the result of its function.

    Raises Reject for a package that cannot be unpacked, which becomes a dead letter; and to redeliver a task
    whose follow-up fails because the broker or a store is not available.
    """
    if len(given) != 1 or more or not isinstance(given[0], str):
        raise Reject("the message contains no package")
    package = _taken(given[0])
    context = current_context()
    package["attempt"] = 1 if context is None else (context.retries or 0) + 1
    if context is not None:
        context.__dict__["package"] = package
    callers = task_connections.begin()
    try:
        if "slot" in package and (ended := _ended_or_back(package)) is not None:
            if context is not None and (context.delivery_info or {}).get("redelivered"):
                # The previous process may have died before it called the hook.
                note(package, ended.success, ended.result)
                package["stopped"] = ended.stopped
                _go_on_or_back(package)
            raise Ignore(f"the scheduled task {package['id']} was sent twice, and has run already")
        value = run(package)
    except PASSING:
        raise
    except BaseException as error:
        task_connections.roll_back(callers)
        if isinstance(error, Error):
            task_connections.drop_broken()
        if _comes_again(package):
            task: Any = get_current_task()
            raise _again(task, package, error) from error
        _go_on_or_back(package)
        raise
    else:
        task_connections.roll_back(callers)
        _go_on_or_back(package)
        return value
    finally:
        task_connections.end(callers)


def _taken(text: str) -> Package:
    """Return the package in the signed *text*, with the name of the cluster that runs it."""
    package = unpacked(text)
    package["cluster"] = package.get("cluster") or conf.cluster_name
    return package


def _ended_or_back(package: Package) -> Task | None:
    """Like _ended(). Raises Reject, which redelivers it, if the database does not answer: else it might run
    twice, or be lost."""
    try:
        return _ended(package)
    except (OperationalError, InterfaceError) as error:
        task_connections.drop_broken()
        raise Reject(f"cannot determine whether the task has already run: {error}", requeue=True) from error


def _ended(package: Package) -> Task | None:
    """Return the stored end of an earlier delivery of a schedule's task, whose id is made from the due time;
    None if there is none."""
    if package["attempt"] > 1:
        return None
    found = (
        cached.task(package["id"]) if package.get("cached") else Task.objects.filter(pk=package["id"]).first()
    )
    ends = package.get("ack_failure", conf.ack_failures)
    return found if found is not None and (found.success or ends) else None


def kept(context: Context, status: str, result: Any) -> dict[str, Any] | None:
    """Return the fields of ``Task`` to store for the run of *context*; None to store nothing."""
    package: Package | None = context.__dict__.get("package")
    if package is None:
        try:
            package = unpacked(context.args[0])
        except (Reject, LookupError):
            return None  # its message becomes a dead letter
    if status != states.SUCCESS and package.get("success", True):
        note(package, False, _text_of(result))
    return row_of(package) if status not in (states.STARTED, states.RETRY) and is_kept(package) else None


def _go_on_or_back(package: Package) -> None:
    try:
        _go_on(package)
    except QWorkerError as error:
        if is_away(error):
            raise Reject(reason(error), requeue=True) from error
        raise


def _go_on(package: Package) -> None:
    """Handle the end, and enqueue follow-ups. Raises QWorkerError if the broker or a store is not
    available."""
    for func, args, kwargs, options in _patiently(endings.end, package):
        _patiently(enqueue, func, args, kwargs, options)


def _patiently(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of *work*, retried for some seconds."""
    task: Any = get_current_task()
    clock = SYSTEM_CLOCK if task is None else task.app.clock
    for pause in PAUSES:
        try:
            return work(*args, **kwargs)
        except (Error, QWorkerError) as error:
            if isinstance(error, QWorkerError) and not is_away(error):
                raise
            reraise_interrupt(error)
            logger.debug("the end of a task cannot be handled yet; trying again: %s", error)
        task_connections.drop_broken()
        clock.sleep(pause)
    try:
        return work(*args, **kwargs)
    except Error as error:
        raise BackendError(f"the database does not answer: {error}") from error


def _again(task: BaseTask[..., Any], package: Package, error: BaseException) -> Retry:
    """Have the failed *package* redelivered; return the exception that ends this attempt."""
    _show_meanwhile(package)
    return task.retry(exc=error, countdown=conf.retry, max_retries=None, throw=False)


def _show_meanwhile(package: Package) -> None:
    """Store a failure that will be redelivered, perhaps forever, so that it can be seen. Not with the ack:
    the next attempt may have ended by then."""
    with suppress(BackendError, Error):  # the last attempt's end is stored anyway
        if is_kept(package):
            task_rows.save(row_of(package))
        elif package.get("cached") and not package.get("iter_count"):
            cached.put(package)


def _comes_again(package: Package) -> bool:
    """Return whether the failed *package* is redelivered: only if failures are not acknowledged."""
    if package.get("ack_failure", conf.ack_failures):
        return False
    most = conf.max_attempts
    return not most or package["attempt"] < most


def _text_of(error: Any) -> str:
    """Return a stored error as text."""
    if not isinstance(error, dict):
        return str(error)
    kind, message = error.get("exc_type"), error.get("exc_message")
    words = ", ".join(map(str, message)) if isinstance(message, list | tuple) else str(message)
    if kind == TimeLimitExceeded.__name__:
        words = f"it took longer than {words} s"
    return f"{kind}: {words}"
