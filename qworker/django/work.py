"""Work: the task of a worker that runs packages.

Comes from:  the pool, with the signed text of a package.
Goes to:     ``running.py`` and ``endings.py``; what is kept goes into the row of the result.
Thread:      whichever runs the task.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from django.db import DatabaseError, InterfaceError, close_old_connections, connections

from qworker import states
from qworker.context import Context, current_context, get_current_task
from qworker.django import cached, endings
from qworker.django.calls import enqueue
from qworker.django.conf import conf
from qworker.django.models import Task
from qworker.django.packages import Package
from qworker.django.running import is_kept, note, run, unpacked, values_of
from qworker.errors import Ignore, Reject, Retry, SoftTimeLimitExceeded, Terminated
from qworker.tasks.task import Task as BaseTask

PASSING = (Ignore, Reject, Retry, Terminated, SoftTimeLimitExceeded)
"""What ends a run in other ways than by failing."""

_here: ContextVar[Package | None] = ContextVar("qworker_django_package", default=None)
"""The package that runs here."""


class PackageTask(BaseTask[..., Any]):
    """The task that runs packages. Also the end of one that was killed is told, by a child."""

    hears_of_ends = True

    def heard_of_end(self, context: Context, state: str, error: dict[str, Any]) -> None:
        package = unpacked(context.args[0])
        note(package, False, _text_of(error))
        _go_on(package)
        context.__dict__["package"] = package


def run_package(text: str) -> Any:
    """Run the signed package *text*; return what its function does.

    Raises Reject for a package that cannot be unpacked, which makes a dead letter of it.
    """
    package = unpacked(text)
    context = current_context()
    package["attempt"] = 1 if context is None else (context.retries or 0) + 1
    if context is not None:
        context.__dict__["package"] = package
    close_old_connections()
    if "slot" in package and _has_run(package):
        raise Ignore(f"the task {package['id']} of a schedule was sent twice, and has run already")
    try:
        value = run(package)
    except PASSING:
        raise
    except BaseException as error:
        if isinstance(error, DatabaseError | InterfaceError):
            _drop_connections()
        if _comes_again(package):
            task: Any = get_current_task()
            raise task.retry(exc=error, countdown=conf.retry, max_retries=None, throw=False) from error
        _go_on(package)
        raise
    _go_on(package)
    return value


def _has_run(package: Package) -> bool:
    """Whether the task of a schedule has ended before, as far as is kept of it. Its id is that of the due
    time."""
    if package["attempt"] > 1:
        return False
    found = (
        cached.task(package["id"])
        if package.get("cached")
        else Task.objects.filter(pk=package["id"]).only("success").first()
    )
    ends = package.get("ack_failure", conf.ack_failures)
    return found is not None and (found.success or bool(ends))


def kept(context: Context, status: str, result: Any) -> dict[str, Any] | None:
    """Return the fields of ``Task`` that are to be stored for the run of *context*; None for none."""
    package: Package | None = context.__dict__.get("package")
    if package is None:
        package = unpacked(context.args[0])
    if status != states.SUCCESS and package.get("success", True):
        note(package, False, _text_of(result))
    return values_of(package) if status != states.STARTED and is_kept(package) else None


def _go_on(package: Package) -> None:
    """See to what follows, and enqueue it."""
    for func, args, kwargs, options in endings.end(package):
        enqueue(func, args, kwargs, options)


def _comes_again(package: Package) -> bool:
    """Whether the failed *package* is delivered again: not unless failures are not acknowledged."""
    if package.get("ack_failure", conf.ack_failures):
        return False
    most = conf.max_attempts
    return not most or package["attempt"] < most


def _drop_connections() -> None:
    """Close what may be broken, but for a connection that somebody has a transaction on."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


def _text_of(error: Any) -> str:
    """An error as execution stores it, as text."""
    if not isinstance(error, dict):
        return str(error)
    return f"{error.get('exc_type')}: {error.get('exc_message')}"
