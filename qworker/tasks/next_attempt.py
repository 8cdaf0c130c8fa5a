"""The next attempt of a running task: whether there is one, when, and with which arguments.

Comes from:  ``task.retry()``, and automatic retries.
Goes to:     publishing, as a call with the same id; an eager run makes the call itself.
Thread:      the one that runs the task.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from qworker.canvas.signatures import Signature
from qworker.contracts import Task
from qworker.errors import MaxRetriesExceeded, Retry
from qworker.interrupts import conclude, deferred
from qworker.publishing.arguments import keywords, positional
from qworker.publishing.call import Invocation
from qworker.tasks.unsent import put_back_if_unsent

if TYPE_CHECKING:
    from qworker.message.context import Context


def retry(
    task: Task,
    args: Any,
    kwargs: Any,
    exc: BaseException | None,
    throw: bool,
    eta: datetime | None,
    countdown: float | timedelta | None,
    max_retries: int | None,
    options: Mapping[str, Any],
) -> Retry:
    """Send the next attempt of *task*. See ``Task.retry``."""
    request = task.request
    cause = exc if exc is not None else sys.exc_info()[1]
    if request.called_directly:
        raise cause or Retry("the task was called directly: there is no message to retry")
    limit = task.max_retries if max_retries is None else max_retries
    if limit is not None and request.retries >= limit:
        if exc is not None:
            raise exc
        raise MaxRetriesExceeded(
            f"cannot retry {task.name}[{request.id}]: it has no retries left (max_retries is {limit})",
            task_args=request.args,
            task_kwargs=request.kwargs,
        )
    if isinstance(countdown, timedelta):
        countdown = countdown.total_seconds()
    if eta is None and countdown is None:
        countdown = task.default_retry_delay
    attempt = _arguments(task, request, args, kwargs)
    directive = Retry(exc=cause, when=countdown if eta is None else eta, is_eager=request.is_eager)
    given = {**options, "eta": eta, "countdown": countdown}
    if request.is_eager:
        directive.sig = Signature(task.name, *attempt, given, app=task.app)
    else:
        # After it is sent, a time limit must not turn this attempt into a failure.
        publish = conclude if throw else deferred
        with put_back_if_unsent(task, request):
            publish(_publish, task, request, attempt, given)
    if throw:
        raise directive from cause
    return directive


def _publish(
    task: Task,
    request: Context,
    attempt: tuple[tuple[Any, ...], dict[str, Any]],
    options: dict[str, Any],
) -> None:
    if task.own_apply_async:
        headers = {**(request.headers or {}), **(options.pop("headers", None) or {})}
        given = {**options, "retries": request.retries + 1, "headers": headers}  # retries: set only here
        task.apply_async(*attempt, task_id=request.id, **given)
    else:
        task.app.publisher.next_attempt(Invocation(task, task.name, *attempt, options), request)


def _arguments(
    task: Task, request: Context, args: Any, kwargs: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of the next attempt: those of this one, overridden by the given ones.

    A parameter given by position in one and by name in the other is passed only once.
    """
    new = None if args is None else positional(task.name, args)
    named = None if kwargs is None else keywords(task.name, kwargs)
    if new is not None and named is not None:
        return new, named
    if new is None and named is None:
        return tuple(request.args), dict(request.kwargs)
    if new is not None:
        names = _names(task, len(new)) if request.kwargs else ()
        return new, {key: value for key, value in request.kwargs.items() if key not in names}
    kept, over = list(request.args), dict(named or {})
    for index, name in enumerate(_names(task, len(kept)) if over else ()):
        if name is not None and name in over:
            kept[index] = over.pop(name)
    return tuple(kept), over


def _names(task: Task, count: int) -> tuple[str | None, ...]:
    """Return the names of the first *count* positional parameters; None for a positional-only one."""
    import inspect  # here, because it takes 10 ms and is rarely needed

    try:
        parameters = inspect.signature(task.run).parameters.values()
    except (TypeError, ValueError):
        return ()
    positional = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return tuple(
        parameter.name if parameter.kind is parameter.POSITIONAL_OR_KEYWORD else None
        for parameter in positional[:count]
    )
