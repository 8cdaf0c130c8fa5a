"""Definitions: how a function, or a class, becomes a task of an app.

Comes from:  ``@app.task``, ``@shared_task``, ``app.register_task``.
Goes to:     the app's registry.
Thread:      whoever imports the module that defines the task.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, Any

from qworker import task_options
from qworker.arguments import argument_checker, is_coroutine_function
from qworker.errors import ConfigurationError
from qworker.task import AsyncTask, Task

if TYPE_CHECKING:
    from qworker.app import QWorker


def make_task(
    app: QWorker,
    function: Callable[..., Any],
    *,
    name: str | None = None,
    bind: bool = False,
    base: type[Task[..., Any]] | None = None,
    **options: Any,
) -> Task[..., Any]:
    """Make the task of *function*; see task_options.OPTIONS for the rest.

    Raises ConfigurationError for an option that does not exist or cannot have its value.
    """
    if not callable(function):
        raise ConfigurationError(
            f"@app.task decorates functions, not {function!r}: options are given by name"
        )
    if base is not None and not (isinstance(base, type) and issubclass(base, Task)):
        raise ConfigurationError(f"task {function}: base={base!r} must be a subclass of qworker.Task")
    name = name or app.gen_task_name(
        getattr(function, "__name__", type(function).__name__), function.__module__
    )
    is_async = is_coroutine_function(function)
    task = (base or (AsyncTask if is_async else Task))()
    task.__dict__.update(task_options.parse(name, options, app.middleware_options))
    run = MethodType(function, task) if bind else function
    task.__dict__.update(
        name=name,
        app=app,
        bind=bind,
        run=run,
        is_async=is_async,
        check_arguments=argument_checker(function, bind),
        __wrapped__=run,
        __doc__=function.__doc__,
        __module__=function.__module__,
        __name__=getattr(function, "__name__", name),
        __qualname__=getattr(function, "__qualname__", name),
    )
    return task


def adopt(task: Task[..., Any], app: QWorker, name: str) -> None:
    """Make *task*, whose run() is a method of its class, the task *name* of *app*."""
    given = {key: getattr(task, key) for key in task_options.OPTIONS if key in vars(type(task))}
    task.__dict__.update(task_options.parse(name, given, app.middleware_options))
    task.__dict__.update(
        name=name,
        app=app,
        bind=True,
        is_async=is_coroutine_function(task.run),
        check_arguments=argument_checker(type(task).run, bound=True),
    )
